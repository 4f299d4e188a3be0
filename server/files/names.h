#pragma once
/* File names and times as the wire shows them. Pure functions, any thread. */

#include "base/buf.h"

#include <stdint.h>
#include <time.h>

/* Appends `"key": "text"`. Text that is not UTF-8 comes out with U+FFFD, followed by
 * `, "key_base64": "..."` with the exact bytes. key: plain ASCII. */
void name_field(struct buf *out, const char *key, const char *text, size_t len);

/* Writes times as "2024-02-03T04:05:06.123457+00:00": UTC, microseconds rounded, no fraction when it
 * is zero. Remembers the last second, as neighbours in a directory often share it. */
struct time_writer {
    int64_t second;
    char text[40];
    size_t len; /* 0: nothing remembered */
};
#define TIME_MAX 48 /* bytes of the longest text */
size_t time_text(struct time_writer *w, struct timespec at, char out[TIME_MAX]);

/* Appends `"key": "time"`. */
void time_field(struct buf *out, struct time_writer *w, const char *key, struct timespec at);
