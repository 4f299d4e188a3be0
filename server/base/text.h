#pragma once
/* Questions about strings that libc leaves to everybody. */

#include <stdbool.h>
#include <string.h>

static inline bool text_ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && memcmp(s + n - t, tail, t) == 0;
}
