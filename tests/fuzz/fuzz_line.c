/* A line reader gives the same lines however its input is cut; each is valid UTF-8 without a line end, within its
 * bounds; and a line that was JSON, with no string to shorten, is the same JSON afterwards. */

#include "agents/line.h"
#include "base/own.h"
#include "base/utf8.h"

#include <assert.h>
#include <jansson.h>
#include <string.h>

#define MAX_LINE 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct heard {
    struct buf lines; /* each with its line end */
    size_t n, dropped;
};

static void on_line(void *owner, char *text, size_t len)
{
    struct heard *h = owner;
    assert(text[len] == '\0' && len <= MAX_LINE && !memchr(text, '\n', len));
    assert(utf8_valid(text, len));
    buf_add(&h->lines, text, len);
    buf_addc(&h->lines, '\n');
    h->n++;
}

static void on_dropped(void *owner)
{
    ((struct heard *)owner)->dropped++;
}

static void read_all(const char *text, size_t len, size_t step, size_t max_string, struct heard *ret)
{
    struct line_reader r = {.max_string = max_string, .max_line = MAX_LINE, .line = on_line, .dropped = on_dropped, .owner = ret};
    for (size_t at = 0; at < len; at += step)
        line_feed(&r, text + at, len - at < step ? len - at : step);
    line_end(&r);
    line_done(&r);
}

static void same_json(const char *line, size_t len)
{
    autojson json_t *before = json_loadb(line, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!before || memchr(line, '\0', len))
        return;
    struct heard h = {0};
    read_all(line, len, len, MAX_LINE, &h);
    if (h.n == 1) { /* or too long, or nothing but blanks */
        autojson json_t *after = json_loadb(h.lines.data, h.lines.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert(after && json_equal(before, after));
    }
    buf_done(&h.lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    size_t len = size - 2, step = (size_t)data[0] % 31 + 1, max_string = (size_t)data[1] + 1;
    struct heard whole = {0}, pieces = {0};
    read_all(text, len, len + 1, max_string, &whole);
    read_all(text, len, step, max_string, &pieces);
    assert(whole.n == pieces.n && whole.dropped == pieces.dropped && whole.lines.len == pieces.lines.len);
    assert(whole.lines.len == 0 || memcmp(whole.lines.data, pieces.lines.data, whole.lines.len) == 0);
    buf_done(&whole.lines);
    buf_done(&pieces.lines);
    const char *end = memchr(text, '\n', len);
    same_json(text, end ? (size_t)(end - text) : len);
    return 0;
}
