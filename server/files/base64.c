#include "files/base64.h"

#define BAD 0x80

static uint8_t digit_value(unsigned char c)
{
    /* Row by row: the value of each ASCII digit of the alphabet, BAD for all else. */
    static const uint8_t values[128] = {
        BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, /* 00 */
        BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, /* 10 */
        BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, BAD, 62,  BAD, BAD, BAD, 63,  /* + / */
        52,  53,  54,  55,  56,  57,  58,  59,  60,  61,  BAD, BAD, BAD, BAD, BAD, BAD, /* 0-9 */
        BAD, 0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  /* A- */
        15,  16,  17,  18,  19,  20,  21,  22,  23,  24,  25,  BAD, BAD, BAD, BAD, BAD, /* -Z */
        BAD, 26,  27,  28,  29,  30,  31,  32,  33,  34,  35,  36,  37,  38,  39,  40,  /* a- */
        41,  42,  43,  44,  45,  46,  47,  48,  49,  50,  51,  BAD, BAD, BAD, BAD, BAD, /* -z */
    };
    return c < 128 ? values[c] : BAD;
}

/* One whole group; may carry padding. Returns 1 to 3 bytes, or -1. */
static ptrdiff_t last_group(struct base64_reader *r, const uint8_t *g, uint8_t *out)
{
    uint8_t a = digit_value(g[0]), b = digit_value(g[1]);
    unsigned pad = g[3] == '=' ? (g[2] == '=' ? 2 : 1) : 0;
    uint8_t c = pad == 2 ? 0 : digit_value(g[2]), d = pad ? 0 : digit_value(g[3]);
    if ((a | b | c | d) & BAD)
        return -1;
    uint32_t v = (uint32_t)a << 18 | (uint32_t)b << 12 | (uint32_t)c << 6 | d;
    out[0] = (uint8_t)(v >> 16);
    if (pad < 2)
        out[1] = (uint8_t)(v >> 8);
    if (pad < 1)
        out[2] = (uint8_t)v;
    r->ended = pad > 0;
    return 3 - (ptrdiff_t)pad;
}

ptrdiff_t base64_read(struct base64_reader *r, const char *text, size_t len, uint8_t *out)
{
    const uint8_t *in = (const uint8_t *)text, *end = in + len;
    uint8_t *start = out;
    if (len > 0 && r->ended)
        return -1;
    while (r->n_held > 0 && in < end) {
        r->held[r->n_held++] = *in++;
        if (r->n_held < 4)
            continue;
        r->n_held = 0;
        ptrdiff_t n = last_group(r, r->held, out);
        if (n < 0 || (r->ended && in < end))
            return -1;
        out += n;
    }
    while (end - in >= 4) {
        uint8_t a = digit_value(in[0]), b = digit_value(in[1]), c = digit_value(in[2]),
                d = digit_value(in[3]);
        if (__builtin_expect((a | b | c | d) & BAD, 0)) {
            ptrdiff_t n = last_group(r, in, out);
            if (n < 0 || end - in > 4)
                return -1;
            return out + n - start;
        }
        uint32_t v = (uint32_t)a << 18 | (uint32_t)b << 12 | (uint32_t)c << 6 | d;
        out[0] = (uint8_t)(v >> 16);
        out[1] = (uint8_t)(v >> 8);
        out[2] = (uint8_t)v;
        out += 3;
        in += 4;
    }
    while (in < end)
        r->held[r->n_held++] = *in++;
    return out - start;
}

size_t base64_write(const uint8_t *data, size_t len, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *start = out;
    for (; len >= 3; len -= 3, data += 3, out += 4) {
        uint32_t v = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];
        out[0] = digits[v >> 18];
        out[1] = digits[v >> 12 & 63];
        out[2] = digits[v >> 6 & 63];
        out[3] = digits[v & 63];
    }
    if (len > 0) {
        uint32_t v = (uint32_t)data[0] << 16 | (len == 2 ? (uint32_t)data[1] << 8 : 0);
        out[0] = digits[v >> 18];
        out[1] = digits[v >> 12 & 63];
        out[2] = len == 2 ? digits[v >> 6 & 63] : '=';
        out[3] = '=';
        out += 4;
    }
    return (size_t)(out - start);
}
