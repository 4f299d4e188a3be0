#pragma once
/* JSON lines from a program, in bounded memory: a string of a line is kept up to a number of
 * characters and the rest of it dropped as it comes, so that a line of any length stays valid JSON.
 * Unpaired surrogate escapes become \ufffd and bad UTF-8 U+FFFD, so that one odd character does not
 * lose a line. */

#include "base/buf.h"

#include <stdint.h>

struct line_reader {
    size_t max_string; /* characters of one string */
    size_t max_line;   /* bytes of a line after that; above it the line is dropped */
    void (*line)(void *owner, char *text,
                 size_t len); /* NUL-terminated, valid UTF-8, its own for the call */
    void (*dropped)(void *owner);
    void *owner;
    struct buf buf;
    size_t chars; /* of the string that is being read */
    bool in_string, in_escape, in_hex, dropping, skipping;
    uint8_t hex_n;
    uint16_t hex, high; /* high: a high surrogate that waits for its other half; 0 = none */
};

void line_feed(struct line_reader *r, const char *data, size_t len);
void line_end(struct line_reader *r); /* end of input: an unfinished last line counts */
void line_done(struct line_reader *r);
