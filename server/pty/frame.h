#pragma once
/* The JSON messages of the terminal's socket: output frames out, a client's messages in. Pure. */

#include "base/buf.h"

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

/* Appends one output message made of the bytes at data and returns how many of them it holds: all, less a
 * character cut at the end (at most 3 bytes), which stays for the next message unless `last`. Bad bytes
 * come out as U+FFFD; the JSON is ASCII. Returns 0, and appends nothing, when there is no whole character.
 * `at`: the position of data[0] in the stream; the message's "next" is the position after it.
 * Check out->failed. */
size_t frame_output(struct buf *out, const char *data, size_t len, bool last, uint64_t at);

/* Skips what can only be the rest of a cut character at the beginning of data (at most 3 bytes). */
size_t frame_skip_cut(const char *data, size_t len);

enum frame_kind { FRAME_IGNORED, FRAME_INPUT, FRAME_RESIZE, FRAME_SIGNAL };

struct frame {
    enum frame_kind kind;
    json_t *json; /* keeps `data` */
    const char *data;
    size_t len;
    int cols, rows; /* -1: not given */
    int signal;
};

/* Never fails: what is no message of the contract is FRAME_IGNORED (no JSON, no object, another type, a
 * size that is no integer in 1..65535, a signal that clients may not send). */
void frame_parse(struct frame *f, const char *text, size_t len);
void frame_done(struct frame *f);
