#pragma once
/* Strict base64 in pieces (RFC 4648 section 4: right padding, no blanks). Pure, any thread. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct base64_reader {
    uint8_t held[4]; /* digits of an unfinished group, as they came */
    uint8_t n_held;
    bool ended; /* padding was seen: nothing may follow */
};

/* Decodes len characters into out (room for len / 4 * 3 + 3 bytes). Returns the bytes written, or -1 as
 * soon as a character is seen that can't stand there. */
ptrdiff_t base64_read(struct base64_reader *r, const char *text, size_t len, uint8_t *out);

/* Was the text whole? */
static inline bool base64_whole(const struct base64_reader *r)
{
    return r->n_held == 0;
}

/* Encodes len bytes (a multiple of 3, except in the last piece) to out: (len + 2) / 3 * 4 characters. */
size_t base64_write(const uint8_t *data, size_t len, char *out);
