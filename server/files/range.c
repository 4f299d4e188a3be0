#include "files/range.h"

#include "base/num.h"

#include <string.h>
#include <strings.h>

/* Digits only; too large a number counts as the largest. -1: not a number. */
static int64_t position(const char *text, size_t len)
{
    if (len == 0)
        return -1;
    int64_t v = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        if (ckd_mul(&v, v, 10) || ckd_add(&v, v, text[i] - '0'))
            v = INT64_MAX / 16; /* stays huge, can't overflow again for long texts */
    }
    return v;
}

enum range_kind range_parse(const char *header, int64_t size, int64_t *ret_from, int64_t *ret_len)
{
    if (!header || strncasecmp(header, "bytes=", 6) != 0)
        return RANGE_NONE;
    const char *text = header + 6 + strspn(header + 6, " \t");
    size_t len = strlen(text);
    while (len > 0 && (text[len - 1] == ' ' || text[len - 1] == '\t'))
        len--;
    const char *dash = memchr(text, '-', len);
    if (!dash)
        return RANGE_NONE;
    size_t before = (size_t)(dash - text), after = len - before - 1;
    int64_t first = position(text, before), last = position(dash + 1, after);
    if ((before > 0 && first < 0) || (after > 0 && last < 0) || (before == 0 && after == 0))
        return RANGE_NONE;
    if (before == 0) { /* the last N bytes */
        if (last == 0 || size == 0)
            return RANGE_UNSATISFIABLE;
        *ret_len = last < size ? last : size;
        *ret_from = size - *ret_len;
        return RANGE_PART;
    }
    if (after > 0 && last < first)
        return RANGE_NONE;
    if (first >= size)
        return RANGE_UNSATISFIABLE;
    if (after == 0 || last >= size)
        last = size - 1;
    *ret_from = first;
    *ret_len = last - first + 1;
    return RANGE_PART;
}
