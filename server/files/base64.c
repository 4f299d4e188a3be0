#include "files/base64.h"

#include <string.h>

#define BAD 0x80

/* --- sixteen characters at a time ----------------------------------------------------------------
 * With the compiler's vectors, so that SSSE3 (where the processor has it) and NEON run the same code. What they leave
 * over, and every other machine's whole input, goes through the plain loops below. */

#if (defined __x86_64__ || defined __aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint32_t words4 __attribute__((vector_size(16)));
typedef uint64_t longs2 __attribute__((vector_size(16)));

#ifdef __x86_64__
#define VECTOR_CODE __attribute__((target("ssse3")))
static bool have_vectors(void)
{
    return __builtin_cpu_supports("ssse3");
}
#else
#define VECTOR_CODE
static bool have_vectors(void)
{
    return true;
}
#endif

/* Decodes blocks of 16 characters while 24 can be read, and stops before the first that holds anything but digits.
 * Returns the characters used; out gets 12 bytes for each 16, and the 4 behind them are touched. */
VECTOR_CODE static size_t decode_blocks(const uint8_t *in, size_t len, uint8_t *out)
{
    size_t at = 0;
    for (; len - at >= 24; at += 16, out += 12) {
        bytes16 c;
        memcpy(&c, in + at, sizeof c);
        bytes16 upper = (bytes16)(c - 'A' < 26), lower = (bytes16)(c - 'a' < 26), digit = (bytes16)(c - '0' < 10);
        bytes16 plus = (bytes16)(c == '+'), slash = (bytes16)(c == '/');
        longs2 good = (longs2)(upper | lower | digit | plus | slash);
        if ((good[0] & good[1]) != UINT64_MAX)
            break;
        words4 v = (words4)(c - (upper & 'A') - (lower & ('a' - 26)) + (digit & (52 - '0')) + (plus & (62 - '+')) +
                            (slash & (63 - '/')));
        /* Four values of 6 bits, the first in the lowest byte, become 24 bits, the first on top. */
        v = v << 18 | (v << 4 & 0x3f000) | (v >> 10 & 0xfc0) | v >> 24;
        bytes16 b = (bytes16)v;
        bytes16 packed = __builtin_shufflevector(b, b, 2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, 3, 3, 3, 3);
        memcpy(out, &packed, sizeof packed);
    }
    return at;
}

/* Encodes blocks of 12 bytes while 16 can be read. Returns the bytes used; out gets 16 characters for each 12. */
VECTOR_CODE static size_t encode_blocks(const uint8_t *data, size_t len, char *out)
{
    size_t at = 0;
    for (; len - at >= 16; at += 12, out += 16) {
        bytes16 b;
        memcpy(&b, data + at, sizeof b);
        words4 v = (words4)__builtin_shufflevector(b, b, 2, 1, 0, 0, 5, 4, 3, 3, 8, 7, 6, 6, 11, 10, 9, 9);
        v = (v >> 18 & 0x3f) | (v >> 4 & 0x3f00) | (v << 10 & 0x3f0000) | (v << 24 & 0x3f000000);
        bytes16 d = (bytes16)v;
        /* From each range of the alphabet to the next the distance to the character changes. */
        bytes16 c = d + 'A' + ((bytes16)(d > 25) & ('a' - 'Z' - 1)) - ((bytes16)(d > 51) & ('z' + 1 - '0')) -
                    ((bytes16)(d > 61) & ('9' + 1 - '+')) + ((bytes16)(d > 62) & ('/' - '+' - 1));
        memcpy(out, &c, sizeof c);
    }
    return at;
}

#else

static bool have_vectors(void)
{
    return false;
}

static size_t decode_blocks(const uint8_t *in, size_t len, uint8_t *out)
{
    return 0;
}

static size_t encode_blocks(const uint8_t *data, size_t len, char *out)
{
    return 0;
}

#endif

/* --- group by group ------------------------------------------------------------------------------ */

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

/* Keeps a character of an unfinished group. */
static bool hold(struct base64_reader *r, uint8_t c)
{
    r->held[r->n_held++] = c;
    return !(digit_value(c) & BAD) || c == '=';
}

ptrdiff_t base64_read(struct base64_reader *r, const char *text, size_t len, uint8_t *out)
{
    const uint8_t *in = (const uint8_t *)text, *end = in + len;
    uint8_t *start = out;
    if (len > 0 && r->ended)
        return -1;
    while (r->n_held > 0 && in < end) {
        if (!hold(r, *in++))
            return -1;
        if (r->n_held < 4)
            continue;
        r->n_held = 0;
        ptrdiff_t n = last_group(r, r->held, out);
        if (n < 0 || (r->ended && in < end))
            return -1;
        out += n;
    }
    if (have_vectors()) {
        size_t used = decode_blocks(in, (size_t)(end - in), out);
        in += used;
        out += used / 4 * 3;
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
    while (in < end) {
        if (!hold(r, *in++))
            return -1;
    }
    return out - start;
}

size_t base64_write(const uint8_t *data, size_t len, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *start = out;
    if (have_vectors()) {
        size_t used = encode_blocks(data, len, out);
        data += used;
        len -= used;
        out += used / 3 * 4;
    }
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
