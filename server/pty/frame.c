#include "pty/frame.h"

/* Output is mostly printable ASCII with a CR LF per line, so the escaper copies runs of it 16 bytes at a
 * time and looks at single bytes only where a run ends. */

#include <signal.h>
#include <string.h>

#include "base/json.h"
#include "base/own.h"
#include "base/utf8.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* The longest escape of one input byte: \u001b, or \ufffd for a bad one. A character of 4 bytes takes 12. */
#define ESCAPED_MAX 6
#define STEP 16

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* Copies the plain run at p; out has room for len + STEP bytes. */
static size_t copy_plain(char *out, const unsigned char *p, size_t len)
{
    size_t i = 0;
#ifdef __SSE2__
    const __m128i blank = _mm_set1_epi8(0x20), quote = _mm_set1_epi8('"'), back = _mm_set1_epi8('\\');
    for (; i + STEP <= len; i += STEP) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        _mm_storeu_si128((__m128i *)(void *)(out + i), v);
        /* Signed: 0x80..0xFF are below a blank too. */
        __m128i odd = _mm_or_si128(_mm_cmplt_epi8(v, blank),
                                   _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, back)));
        unsigned mask = (unsigned)_mm_movemask_epi8(odd);
        if (mask)
            return i + (size_t)__builtin_ctz(mask);
    }
#endif
    for (; i < len && is_plain(p[i]); i++)
        out[i] = (char)p[i];
    return i;
}

static char *put_u(char *out, uint32_t unit)
{
    static const char hex[] = "0123456789abcdef";
    out[0] = '\\';
    out[1] = 'u';
    out[2] = hex[unit >> 12 & 15];
    out[3] = hex[unit >> 8 & 15];
    out[4] = hex[unit >> 4 & 15];
    out[5] = hex[unit & 15];
    return out + 6;
}

static char *put_ascii(char *out, unsigned char c)
{
    static const char names[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n',  ['\f'] = 'f',
                                 ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    if (c < sizeof(names) && names[c]) {
        out[0] = '\\';
        out[1] = names[c];
        return out + 2;
    }
    return put_u(out, c);
}

static char *put_code_point(char *out, uint32_t cp)
{
    if (cp < 0x10000)
        return put_u(out, cp);
    cp -= 0x10000;
    return put_u(put_u(out, 0xD800 + (cp >> 10)), 0xDC00 + (cp & 0x3FF));
}

static const char head[] = "{\"type\": \"output\", \"data\": \"";

size_t frame_output(struct buf *out, const char *data, size_t len, bool last, uint64_t at)
{
    const unsigned char *p = (const unsigned char *)data;
    char *start = buf_reserve(out, sizeof(head) + len * ESCAPED_MAX + STEP + 64);
    if (!start)
        return 0;
    memcpy(start, head, sizeof(head) - 1);
    char *to = start + sizeof(head) - 1;
    size_t i = 0;
    while (i < len) {
        size_t run = copy_plain(to, p + i, len - i);
        to += run;
        i += run;
        if (i == len)
            break;
        if (p[i] < 0x80) {
            to = put_ascii(to, p[i++]);
            continue;
        }
        size_t used;
        int r = utf8_sequence(p + i, len - i, &used);
        if (r == 0 && !last)
            break;
        uint32_t cp = 0xFFFD;
        if (r > 0)
            (void)utf8_next(data + i, &cp);
        to = put_code_point(to, cp);
        i += used;
    }
    if (i == 0)
        return 0;
    out->len += (size_t)(to - start);
    buf_addf(out, "\", \"next\": %llu}", (unsigned long long)(at + i));
    return i;
}

size_t frame_skip_cut(const char *data, size_t len)
{
    size_t i = 0;
    while (i < len && i < 3 && ((unsigned char)data[i] & 0xC0) == 0x80)
        i++;
    return i;
}

/* Absent: -1. Present: an integer in 1..65535, else false. */
static bool read_size(const json_t *json, const char *name, int *ret)
{
    const json_t *value = json_object_get(json, name);
    if (!value) {
        *ret = -1;
        return true;
    }
    if (!json_is_integer(value))
        return false;
    json_int_t n = json_integer_value(value);
    if (n < 1 || n > 65535)
        return false;
    *ret = (int)n;
    return true;
}

static int signal_number(const char *name)
{
    static const struct {
        const char *name;
        int sig;
    } known[] = {
        {"SIGINT", SIGINT}, {"SIGTERM", SIGTERM}, {"SIGKILL", SIGKILL}, {"SIGHUP", SIGHUP}, {"SIGQUIT", SIGQUIT},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(name, known[i].name) == 0)
            return known[i].sig;
    }
    return 0;
}

void frame_parse(struct frame *f, const char *text, size_t len)
{
    *f = (struct frame){.kind = FRAME_IGNORED};
    if (json_parse(text, len, &f->json, NULL) < 0)
        return;
    const char *type = json_string_value(json_object_get(f->json, "type"));
    if (!type)
        return;
    if (strcmp(type, "input") == 0) {
        const json_t *data = json_object_get(f->json, "data");
        f->data = json_string_value(data);
        f->len = json_string_length(data);
        if (f->data && f->len > 0)
            f->kind = FRAME_INPUT;
    } else if (strcmp(type, "resize") == 0) {
        if (read_size(f->json, "cols", &f->cols) && read_size(f->json, "rows", &f->rows))
            f->kind = FRAME_RESIZE;
    } else if (strcmp(type, "signal") == 0) {
        const json_t *name = json_object_get(f->json, "signal");
        if (!name)
            f->signal = SIGINT;
        else if (json_is_string(name))
            f->signal = signal_number(json_string_value(name));
        if (f->signal)
            f->kind = FRAME_SIGNAL;
    }
}

void frame_done(struct frame *f)
{
    json_decref(f->json);
    f->json = NULL;
}
