#pragma once
/* One stream of output as text: whole UTF-8 (bad bytes U+FFFD), CRLF and CR as LF, cut at a number of raw
 * bytes (a character cut there is dropped). */

#include "base/utf8.h"

struct output {
    struct utf8_decoder decoder;
    struct buf text;
    size_t bytes, most;
    bool cr, cut;
};

void output_init(struct output *o, size_t most);
void output_done(struct output *o);
void output_add(struct output *o, const char *data, size_t len);
void output_finish(struct output *o);
