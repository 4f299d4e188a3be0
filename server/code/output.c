#include "code/output.h"

#include <string.h>

void output_init(struct output *o, size_t most)
{
    *o = (struct output){.most = most};
}

void output_done(struct output *o)
{
    buf_done(&o->text);
}

/* In place, from `from` on. */
static void unify_line_ends(struct output *o, size_t from)
{
    char *text = o->text.data;
    size_t to = from;
    for (size_t i = from; i < o->text.len; i++) {
        char c = text[i];
        bool second = o->cr && c == '\n'; /* the CR before it has become one */
        o->cr = c == '\r';
        if (!second)
            text[to++] = o->cr ? '\n' : c;
    }
    o->text.len = to;
}

void output_add(struct output *o, const char *data, size_t len)
{
    if (o->cut)
        return;
    if (len > o->most - o->bytes) {
        len = o->most - o->bytes;
        o->cut = true;
    }
    o->bytes += len;
    size_t from = o->text.len;
    utf8_decode(&o->decoder, data, len, &o->text);
    if (o->text.failed)
        o->cut = true;
    else if (o->text.len > from && (o->cr || memchr(o->text.data + from, '\r', o->text.len - from)))
        unify_line_ends(o, from);
}

void output_finish(struct output *o)
{
    if (!o->cut)
        utf8_finish(&o->decoder, &o->text);
}
