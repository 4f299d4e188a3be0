#include "agents/line.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static void begin(struct line_reader *r)
{
    buf_reset(&r->buf);
    r->in_string = r->in_escape = r->in_hex = r->dropping = r->skipping = false;
    r->chars = 0;
    r->high = 0;
}

/* One character of a string: shown or, beyond the bound, dropped. */
static bool room(struct line_reader *r)
{
    if (r->chars >= r->max_string) {
        r->skipping = true;
        return false;
    }
    r->chars++;
    return true;
}

static void lone_high(struct line_reader *r)
{
    if (r->high && room(r))
        buf_adds(&r->buf, "\\ufffd");
    r->high = 0;
}

static void end_hex(struct line_reader *r)
{
    uint16_t cp = r->hex;
    if (r->high && cp >= 0xDC00 && cp <= 0xDFFF) {
        if (room(r))
            buf_addf(&r->buf, "\\u%04x\\u%04x", r->high, cp);
        r->high = 0;
        return;
    }
    lone_high(r);
    if (cp >= 0xD800 && cp <= 0xDBFF)
        r->high = cp;
    else if (room(r))
        buf_addf(&r->buf, "\\u%04x", cp >= 0xDC00 && cp <= 0xDFFF ? 0xFFFD : cp);
}

static void string_byte(struct line_reader *r, char c)
{
    if (r->in_hex) {
        unsigned v = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                     : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
                                            : 16;
        if (v == 16) { /* no JSON: let the parser say so */
            r->in_hex = false;
            buf_adds(&r->buf, "\\u");
            string_byte(r, c);
            return;
        }
        r->hex = (uint16_t)((r->hex << 4) | v);
        if (++r->hex_n == 4) {
            r->in_hex = false;
            end_hex(r);
        }
        return;
    }
    if (r->in_escape) {
        r->in_escape = false;
        if (c == 'u') {
            r->in_hex = true;
            r->hex_n = 0;
            r->hex = 0;
            return;
        }
        lone_high(r);
        if (room(r)) {
            buf_addc(&r->buf, '\\');
            buf_addc(&r->buf, c);
        }
        return;
    }
    if (c == '\\') {
        r->in_escape = true;
        return;
    }
    lone_high(r);
    if (c == '"') {
        r->in_string = r->skipping = false;
        buf_addc(&r->buf, c);
        return;
    }
    if (((unsigned char)c & 0xC0) == 0x80) { /* continues the character before it */
        if (!r->skipping)
            buf_addc(&r->buf, c);
        return;
    }
    if (room(r))
        buf_addc(&r->buf, c);
}

static void end_line(struct line_reader *r)
{
    if (r->dropping || r->buf.failed) {
        if (r->dropped)
            r->dropped(r->owner);
    } else if (r->buf.len) {
        buf_str(&r->buf);
        if (utf8_valid(r->buf.data, r->buf.len)) {
            r->line(r->owner, r->buf.data, r->buf.len);
        } else {
            size_t len;
            char *clean = utf8_replace(r->buf.data, r->buf.len, &len);
            if (clean)
                r->line(r->owner, clean, len);
            free(clean);
        }
    }
    if (r->buf.failed || r->buf.cap > 65536)
        buf_done(&r->buf); /* a long line's memory is not kept */
    begin(r);
}

void line_feed(struct line_reader *r, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = data[i];
        if (c == '\n') {
            end_line(r);
            continue;
        }
        if (r->dropping)
            continue;
        if (r->in_string) {
            /* Plain runs are the bulk of what comes. */
            if (!r->in_escape && !r->in_hex && !r->high && c != '"' && c != '\\' &&
                (unsigned char)c < 0x80) {
                size_t end = i;
                while (end < len && data[end] != '"' && data[end] != '\\' && data[end] != '\n' &&
                       (unsigned char)data[end] < 0x80)
                    end++;
                size_t n = end - i, left = r->max_string - r->chars, take = n < left ? n : left;
                buf_add(&r->buf, data + i, take);
                r->chars += take;
                r->skipping = r->skipping || take < n;
                i = end - 1;
            } else {
                string_byte(r, c);
            }
        } else {
            if (c == '"') {
                r->in_string = true;
                r->chars = 0;
            }
            buf_addc(&r->buf, c);
        }
        if (r->buf.len > r->max_line) {
            r->dropping = true;
            buf_reset(&r->buf);
        }
    }
}

void line_end(struct line_reader *r)
{
    if (r->buf.len || r->dropping)
        end_line(r);
}

void line_done(struct line_reader *r) { buf_done(&r->buf); }
