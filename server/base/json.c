#include "base/json.h"

#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"

#include <math.h>
#include <string.h>

/* What jansson would build is counted first, in one pass over the text: a body of a million empty
 * objects must cost a scan, not a heap. The pass knows strings and brackets only; jansson judges the
 * grammar afterwards. */
static int scan(const char *text, size_t len, struct abx_error *err)
{
    size_t depth = 0, values = 1;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        switch (c) {
        case '"':
            in_string = true;
            break;
        case '[':
        case '{':
            values++;
            if (++depth > JSON_MAX_NEST)
                return abx_fail(err, E_BAD_BODY, 0, "Invalid JSON: nested deeper than %d levels",
                                JSON_MAX_NEST);
            break;
        case ']':
        case '}':
            if (depth > 0)
                depth--;
            break;
        case ',':
            values++;
            break;
        default:
            break;
        }
        if (values > JSON_MAX_VALUES)
            return abx_fail(err, E_BAD_BODY, 0, "Invalid JSON: more than %d values", JSON_MAX_VALUES);
    }
    return 0;
}

int json_parse(const char *text, size_t len, json_t **ret, struct abx_error *err)
{
    if (scan(text, len, err) < 0)
        return -1;
    json_error_t why;
    json_t *value = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!value) {
        if (json_error_code(&why) == json_error_out_of_memory)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        /* jansson quotes what it found; keep the place, which never holds a client's text. */
        return abx_fail(err, E_BAD_BODY, 0, "Invalid JSON: line %d column %d (byte %d)", why.line,
                        why.column, why.position);
    }
    *ret = value;
    return 0;
}

static const char hex[] = "0123456789abcdef";

static void add_u(struct buf *out, uint32_t unit)
{
    char *at = buf_reserve(out, 6);
    if (!at)
        return;
    at[0] = '\\';
    at[1] = 'u';
    at[2] = hex[unit >> 12 & 15];
    at[3] = hex[unit >> 8 & 15];
    at[4] = hex[unit >> 4 & 15];
    at[5] = hex[unit & 15];
    out->len += 6;
}

/* Without an escape of their own; binary output is full of them. */
static bool control(unsigned char c)
{
    return c < 0x20 && !(c >= '\b' && c <= '\r' && c != '\v');
}

/* The run of such bytes at p, at least one; returns what follows it. */
static const unsigned char *add_controls(struct buf *out, const unsigned char *p, const unsigned char *end)
{
    const unsigned char *run = p;
    while (p < end && p - run < 4096 && control(*p))
        p++;
    char *at = buf_reserve(out, (size_t)(p - run) * 6);
    if (!at)
        return p;
    for (; run < p; run++, at += 6) {
        memcpy(at, "\\u00", 4);
        at[4] = hex[*run >> 4];
        at[5] = hex[*run & 15];
        out->len += 6;
    }
    return p;
}

static bool plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
}

/* True when any of the 8 bytes needs an escape (control, quote, backslash, DEL or non-ASCII). */
static bool word_special(uint64_t w)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = UINT64_C(0x8080808080808080);
    uint64_t quote = w ^ (ones * '"'), slash = w ^ (ones * '\\'), del = w ^ (ones * 0x7F);
    uint64_t low = (w - ones * 0x20) & ~w; /* below 0x20 */
    uint64_t hit = low | ((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((del - ones) & ~del) | w;
    return (hit & high) != 0;
}

void json_write_string(struct buf *out, const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + len;
    buf_reserve(out, len + 2); /* one growth for the common case */
    buf_addc(out, '"');
    while (p < end) {
        const unsigned char *run = p;
        while (end - p >= 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            if (word_special(w))
                break;
            p += 8;
        }
        while (p < end && plain(*p))
            p++;
        buf_add(out, run, (size_t)(p - run));
        if (p == end)
            break;
        unsigned char c = *p;
        if (c < 0x80) {
            p++;
            switch (c) {
            case '"':
                buf_add(out, "\\\"", 2);
                break;
            case '\\':
                buf_add(out, "\\\\", 2);
                break;
            case '\n':
                buf_add(out, "\\n", 2);
                break;
            case '\r':
                buf_add(out, "\\r", 2);
                break;
            case '\t':
                buf_add(out, "\\t", 2);
                break;
            case '\b':
                buf_add(out, "\\b", 2);
                break;
            case '\f':
                buf_add(out, "\\f", 2);
                break;
            case 0x7F: /* the reference writes DEL as it is */
                buf_addc(out, 0x7F);
                break;
            default:
                p = add_controls(out, p - 1, end);
                break;
            }
            continue;
        }
        /* One character; bad bytes are the caller's mistake and come out as U+FFFD. */
        size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        uint32_t cp = 0xFFFD;
        if ((size_t)(end - p) >= n && utf8_valid(p, n))
            utf8_next((const char *)p, &cp);
        else
            n = 1;
        p += n;
        if (cp >= 0x10000) {
            add_u(out, 0xD800 + ((cp - 0x10000) >> 10));
            add_u(out, 0xDC00 + ((cp - 0x10000) & 0x3FF));
        } else {
            add_u(out, cp);
        }
    }
    buf_addc(out, '"');
}

struct style {
    const char *comma, *colon;
    bool sorted;
    int indent; /* 0: one line */
};

static void newline(struct buf *out, const struct style *st, int level)
{
    if (!st->indent)
        return;
    buf_addc(out, '\n');
    for (int i = 0; i < st->indent * level; i++)
        buf_addc(out, ' ');
}

static int by_key(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void write_value(struct buf *out, const json_t *v, const struct style *st, int level);

static void write_pair(struct buf *out, const char *key, const json_t *value, bool first,
                       const struct style *st, int level)
{
    if (!first)
        buf_adds(out, st->comma);
    newline(out, st, level);
    json_write_string(out, key, strlen(key));
    buf_adds(out, st->colon);
    write_value(out, value, st, level);
}

static void write_object(struct buf *out, const json_t *v, const struct style *st, int level)
{
    size_t n = json_object_size(v);
    if (n == 0) {
        buf_adds(out, "{}");
        return;
    }
    json_t *object = (json_t *)v; /* jansson's iterators take no const; nothing is changed */
    buf_addc(out, '{');
    if (st->sorted) {
        autofree const char **keys = malloc(n * sizeof *keys);
        if (!keys) {
            out->failed = true;
            return;
        }
        size_t i = 0;
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it))
            keys[i++] = json_object_iter_key(it);
        qsort(keys, n, sizeof *keys, by_key);
        for (i = 0; i < n; i++)
            write_pair(out, keys[i], json_object_get(v, keys[i]), i == 0, st, level + 1);
    } else {
        bool first = true;
        for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
            write_pair(out, json_object_iter_key(it), json_object_iter_value(it), first, st, level + 1);
            first = false;
        }
    }
    newline(out, st, level);
    buf_addc(out, '}');
}

static void write_value(struct buf *out, const json_t *v, const struct style *st, int level)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        write_object(out, v, st, level);
        break;
    case JSON_ARRAY: {
        size_t n = json_array_size(v);
        buf_addc(out, '[');
        for (size_t i = 0; i < n; i++) {
            if (i > 0)
                buf_adds(out, st->comma);
            newline(out, st, level + 1);
            write_value(out, json_array_get(v, i), st, level + 1);
        }
        if (n > 0)
            newline(out, st, level);
        buf_addc(out, ']');
        break;
    }
    case JSON_STRING:
        json_write_string(out, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER: {
        char text[24];
        int len = snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        buf_add(out, text, (size_t)len);
        break;
    }
    case JSON_REAL: {
        char text[NUM_DOUBLE_MAX];
        double d = json_real_value(v);
        if (isfinite(d))
            buf_add(out, text, num_double(d, text));
        else
            buf_adds(out, "null");
        break;
    }
    case JSON_TRUE:
        buf_adds(out, "true");
        break;
    case JSON_FALSE:
        buf_adds(out, "false");
        break;
    case JSON_NULL:
        buf_adds(out, "null");
        break;
    }
}

void json_write(struct buf *out, const json_t *value)
{
    write_value(out, value, &(struct style){.comma = ", ", .colon = ": "}, 0);
}

void json_write_canonical(struct buf *out, const json_t *value)
{
    write_value(out, value, &(struct style){.comma = ",", .colon = ":", .sorted = true}, 0);
}

void json_write_pretty(struct buf *out, const json_t *value)
{
    write_value(out, value, &(struct style){.comma = ",", .colon = ": ", .indent = 2}, 0);
}

json_t *json_bytes(const void *data, size_t len)
{
    if (utf8_valid(data, len))
        return json_stringn_nocheck(data, len);
    size_t n;
    autofree char *text = utf8_replace(data, len, &n);
    return text ? json_stringn_nocheck(text, n) : NULL;
}

json_t *json_text(const char *s)
{
    return s ? json_bytes(s, strlen(s)) : json_null();
}

const char *json_word(const json_t *value)
{
    const char *s = json_string_value(value);
    return s && strlen(s) == json_string_length(value) ? s : NULL;
}

json_t *json_make(struct abx_error *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    json_error_t why;
    json_t *value = json_vpack_ex(&why, 0, fmt, ap);
    va_end(ap);
    if (!value)
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    return value;
}
