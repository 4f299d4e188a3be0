#include "files/base64.h"
#include "../check_main.h"

#include <stdlib.h>
#include <string.h>

/* The plainest encoder and decoder there can be; the room's take many characters at a time. */
static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static size_t plain_encode(const uint8_t *data, size_t len, char *out)
{
    size_t n = 0;
    for (size_t bit = 0; bit < len * 8; bit += 6) {
        unsigned v = 0;
        for (size_t b = bit; b < bit + 6; b++)
            v = v << 1 | (b < len * 8 ? data[b / 8] >> (7 - b % 8) & 1 : 0);
        out[n++] = alphabet[v];
    }
    while (n % 4)
        out[n++] = '=';
    return n;
}

static void fill(uint8_t *data, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        data[i] = (uint8_t)((seed = seed * 1103515245u + 12345u) >> 16);
}

/* Decodes in pieces of `step` characters from a copy that ends where its memory ends. -1: refused or not whole. */
static ptrdiff_t decode(const char *text, size_t len, size_t step, uint8_t *out)
{
    struct base64_reader r = {0};
    ptrdiff_t total = 0;
    for (size_t at = 0; at < len; at += step) {
        size_t n = len - at < step ? len - at : step;
        char *piece = malloc(n);
        uint8_t *room = malloc(n / 4 * 3 + 3);
        memcpy(piece, text + at, n);
        ptrdiff_t got = base64_read(&r, piece, n, room);
        if (got > 0)
            memcpy(out + total, room, (size_t)got);
        free(piece);
        free(room);
        if (got < 0)
            return -1;
        total += got;
    }
    return base64_whole(&r) ? total : -1;
}

START_TEST(every_length_goes_both_ways)
{
    uint8_t data[300], back[310];
    char text[404], want[404];
    for (size_t len = 0; len <= 300; len++) {
        fill(data, len, (unsigned)len);
        uint8_t *exact = malloc(len + 1);
        memcpy(exact, data, len);
        char *room = malloc((len + 2) / 3 * 4 + 1);
        size_t n = base64_write(exact, len, room);
        memcpy(text, room, n);
        free(exact);
        free(room);
        ck_assert_uint_eq(n, plain_encode(data, len, want));
        ck_assert_mem_eq(text, want, n);
        for (size_t step = 1; step <= n + 1; step = step < 8 ? step + 1 : step * 2 + 1) {
            ck_assert_int_eq(decode(text, n, step, back), (ptrdiff_t)len);
            ck_assert_mem_eq(back, data, len);
        }
        ck_assert_int_eq(decode(text, n, n + 1, back), (ptrdiff_t)len);
    }
}
END_TEST

START_TEST(each_digit_is_known_at_each_place)
{
    char text[64];
    uint8_t back[64], again[64];
    for (size_t place = 0; place < sizeof text; place++) {
        for (int c = 0; c < 256; c++) {
            memset(text, 'q', sizeof text);
            text[place] = (char)c;
            ptrdiff_t got = decode(text, sizeof text, sizeof text, back);
            bool digit = c != 0 && strchr(alphabet, c);
            bool padding = c == '=' && place == sizeof text - 1;
            ck_assert_msg(got == (digit ? 48 : padding ? 47 : -1), "%d at %zu: %td", c, place, got);
            ck_assert_int_eq(decode(text, sizeof text, 1, again), got);
            if (!digit)
                continue;
            char there[68];
            plain_encode(back, 48, there);
            ck_assert_mem_eq(there, text, sizeof text);
        }
    }
}
END_TEST

START_TEST(a_wrong_character_is_refused_at_once)
{
    for (size_t before = 0; before < 40; before++) {
        char text[40];
        uint8_t out[40];
        memset(text, 'q', sizeof text);
        struct base64_reader r = {0};
        ck_assert_int_ge(base64_read(&r, text, before, out), 0);
        ck_assert_int_eq(base64_read(&r, "\"", 1, out), -1);
        struct base64_reader whole = {0};
        text[before] = '"';
        ck_assert_int_eq(base64_read(&whole, text, before + 1, out), -1);
    }
}
END_TEST

START_TEST(padding_ends_the_text)
{
    uint8_t back[64];
    static const char *const bad[] = {"====",     "=AAA",     "A===",         "AA=A",
                                      "QQ==QQ==", "QQ==A",    "AAAAAAAAQQ=",  "AAAAAAAAAAAAAAAAAAAAQQ==AAAAAAAAAAAAAAAAAAAA",
                                      "A",        "AA",       "AAA",          "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t step = 1; step < 48; step++)
            ck_assert_msg(decode(bad[i], strlen(bad[i]), step, back) == -1, "%s by %zu", bad[i], step);
}
END_TEST

TEST_MAIN("base64", every_length_goes_both_ways, each_digit_is_known_at_each_place,
          a_wrong_character_is_refused_at_once, padding_ends_the_text)
