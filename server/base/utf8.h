#pragma once
/* UTF-8 in pieces: bytes arrive in any cut, text comes out whole, bad bytes become U+FFFD. */

#include "base/buf.h"

#include <stdint.h>

struct utf8_decoder {
    unsigned char tail[4]; /* an unfinished character of the last piece */
    uint8_t len;
};

/* Appends the whole characters of tail + data to out as valid UTF-8; keeps an unfinished one.
 * One U+FFFD per maximal bad sequence (WHATWG rule). */
void utf8_decode(struct utf8_decoder *d, const void *data, size_t len, struct buf *out);

/* End of input: what is unfinished becomes one U+FFFD. */
void utf8_finish(struct utf8_decoder *d, struct buf *out);

bool utf8_valid(const void *data, size_t len);

/* The whole thing at once, bad bytes replaced; heap copy (free), NUL-terminated, or NULL. */
char *utf8_replace(const void *data, size_t len, size_t *ret_len);

/* Length of the longest prefix of data (<= len) that does not cut a character. */
size_t utf8_floor(const char *data, size_t len);

/* Reads one code point at s (valid UTF-8); returns the bytes used. */
size_t utf8_next(const char *s, uint32_t *ret_cp);

/* Looks at the one sequence at p (len >= 1). Returns its length when whole and good; 0 when the input ends
 * inside a good beginning (*used = what is there); -1 when bad (*used = the maximal bad part, >= 1). */
int utf8_sequence(const unsigned char *p, size_t len, size_t *used);
