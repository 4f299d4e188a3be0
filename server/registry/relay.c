#include "base/json.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"
#include "registry/spec.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct relay {
    struct buf *out;
    const char *start, *at, *end;
    const char *why;
    bool nested[JSON_MAX_NEST]; /* true: object */
};

static void blanks(struct relay *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

static bool bad(struct relay *r, const char *why)
{
    if (!r->why)
        r->why = why;
    return false;
}

static int hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)s[i]))
            return -1;
        v = v * 16 + (s[i] <= '9' ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    return v;
}

/* At the backslash. Escapes are kept as they are, but \/ and upper case become the usual spelling. */
static bool escape(struct relay *r)
{
    if (r->end - r->at < 2)
        return bad(r, "the text ends inside a string");
    char c = r->at[1];
    if (c == '/') {
        buf_addc(r->out, '/');
    } else if (c && strchr("\"\\bfnrt", c)) {
        buf_add(r->out, r->at, 2);
    } else if (c == 'u') {
        int v = r->end - r->at >= 6 ? hex4(r->at + 2) : -1;
        if (v < 0)
            return bad(r, "a bad \\u escape");
        if (v >= 0xd800 && v <= 0xdfff) {
            int low = v <= 0xdbff && r->end - r->at >= 12 && r->at[6] == '\\' && r->at[7] == 'u' ? hex4(r->at + 8) : -1;
            if (low < 0xdc00 || low > 0xdfff)
                return bad(r, "half a surrogate pair");
            buf_addf(r->out, "\\u%04x\\u%04x", (unsigned)v, (unsigned)low);
            r->at += 12;
            return true;
        }
        static const char shorts[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
        const char *at = v ? memchr(shorts, v, sizeof(shorts) - 1) : NULL;
        if (v > 0x7f)
            at = NULL;
        if (at)
            buf_addf(r->out, "\\%c", letters[at - shorts]);
        else if (v >= 0x20 && v <= 0x7f)
            buf_addc(r->out, (char)v);
        else
            buf_addf(r->out, "\\u%04x", (unsigned)v);
        r->at += 6;
        return true;
    } else {
        return bad(r, "an unknown escape");
    }
    r->at += 2;
    return true;
}

static bool string(struct relay *r)
{
    buf_addc(r->out, '"');
    r->at++;
    for (;;) {
        const char *plain = r->at;
        while (r->at < r->end && (unsigned char)*r->at >= 0x20 && (unsigned char)*r->at < 0x7f && *r->at != '"' &&
               *r->at != '\\')
            r->at++;
        buf_add(r->out, plain, (size_t)(r->at - plain));
        if (r->at == r->end)
            return bad(r, "the text ends inside a string");
        unsigned char c = (unsigned char)*r->at;
        if (c == '"') {
            buf_addc(r->out, '"');
            r->at++;
            return true;
        }
        if (c == '\\') {
            if (!escape(r))
                return false;
            continue;
        }
        if (c < 0x20)
            return bad(r, "a control character in a string");
        if (c == 0x7f) {
            buf_addc(r->out, 0x7f);
            r->at++;
            continue;
        }
        size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        if ((size_t)(r->end - r->at) < n || !utf8_valid(r->at, n))
            return bad(r, "bytes that are not UTF-8");
        uint32_t cp;
        utf8_next(r->at, &cp);
        if (cp >= 0x10000)
            buf_addf(r->out, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10), 0xdc00 + ((cp - 0x10000) & 0x3ff));
        else
            buf_addf(r->out, "\\u%04x", cp);
        r->at += n;
    }
}

static void digits(struct relay *r)
{
    while (r->at < r->end && isdigit((unsigned char)*r->at))
        r->at++;
}

static bool number(struct relay *r)
{
    const char *from = r->at;
    bool real = false;
    if (*r->at == '-')
        r->at++;
    const char *first = r->at;
    digits(r);
    if (r->at == first || (*first == '0' && r->at - first > 1))
        return bad(r, "not a JSON value");
    if (r->at < r->end && *r->at == '.') {
        first = ++r->at;
        digits(r);
        real = true;
        if (r->at == first)
            return bad(r, "a number that ends in a dot");
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-'))
            r->at++;
        first = r->at;
        digits(r);
        real = true;
        if (r->at == first)
            return bad(r, "a number without exponent digits");
    }
    size_t len = (size_t)(r->at - from);
    if (!real) {
        buf_add(r->out, from, len);
        return true;
    }
    char text[512], shortest[NUM_DOUBLE_MAX];
    if (len >= sizeof(text))
        return bad(r, "a number of more than 511 characters");
    memcpy(text, from, len);
    text[len] = 0;
    double d = strtod(text, NULL);
    if (!isfinite(d))
        return bad(r, "a number too large for a double");
    buf_add(r->out, shortest, num_double(d, shortest));
    return true;
}

static bool word(struct relay *r, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, w, n) != 0)
        return bad(r, "not a JSON value");
    buf_add(r->out, w, n);
    r->at += n;
    return true;
}

static bool key(struct relay *r)
{
    blanks(r);
    if (r->at == r->end || *r->at != '"')
        return bad(r, "an object without a key");
    if (!string(r))
        return false;
    blanks(r);
    if (r->at == r->end || *r->at != ':')
        return bad(r, "a key without a colon");
    r->at++;
    buf_adds(r->out, ": ");
    return true;
}

static bool text(struct relay *r)
{
    size_t depth = 0;
    for (;;) {
        /* a value */
        blanks(r);
        char c = r->at < r->end ? *r->at : 0;
        if (c == '{' || c == '[') {
            if (depth == JSON_MAX_NEST)
                return bad(r, "nested too deep");
            r->nested[depth++] = c == '{';
            buf_addc(r->out, c);
            r->at++;
            blanks(r);
            if (r->at == r->end || *r->at != (c == '{' ? '}' : ']')) {
                if (c == '{' && !key(r))
                    return false;
                continue;
            }
        } else if (c == '"' ? !string(r)
                   : c == 't' ? !word(r, "true")
                   : c == 'f' ? !word(r, "false")
                   : c == 'n' ? !word(r, "null")
                   : c == '-' || isdigit((unsigned char)c) ? !number(r)
                                                           : !bad(r, c ? "not a JSON value" : "no value")) {
            return false;
        }
        /* what follows it */
        for (;;) {
            blanks(r);
            if (depth == 0)
                return r->at == r->end || bad(r, "text after the value");
            bool object = r->nested[depth - 1];
            c = r->at < r->end ? *r->at : 0;
            if (c == (object ? '}' : ']')) {
                buf_addc(r->out, c);
                r->at++;
                depth--;
                continue;
            }
            if (c != ',')
                return bad(r, "a comma or an end is missing");
            r->at++;
            buf_adds(r->out, ", ");
            if (object && !key(r))
                return false;
            break;
        }
    }
}

int json_relay(struct buf *out, const char *source, size_t len, struct abx_error *err)
{
    size_t before = out->len;
    struct relay r = {.out = out, .start = source, .at = source, .end = source + len};
    if (text(&r) && !out->failed)
        return 0;
    if (out->failed)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    out->len = before;
    autofree char *piece = utf8_replace(source, len < 60 ? len : utf8_floor(source, 60), NULL);
    return abx_fail(err, E_VALUE, 0, "%s at byte %zu of '%s%s'", r.why, (size_t)(r.at - source), piece ? piece : "",
                    len < 60 ? "" : "...");
}
