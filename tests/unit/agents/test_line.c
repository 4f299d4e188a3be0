#include "agents/line.h"

#include "../check_main.h"

#include <jansson.h>
#include <string.h>

struct got {
    struct buf all; /* lines joined by '|' */
    int lines, dropped;
};

static void on_line(void *owner, char *text, size_t len)
{
    struct got *g = owner;
    g->lines++;
    buf_add(&g->all, text, len);
    buf_addc(&g->all, '|');
}

static void on_dropped(void *owner) { ((struct got *)owner)->dropped++; }

static struct line_reader reader(struct got *g, size_t max_string, size_t max_line)
{
    return (struct line_reader){.max_string = max_string,
                                .max_line = max_line,
                                .line = on_line,
                                .dropped = on_dropped,
                                .owner = g};
}

/* Feeds byte by byte and at once: the cut of the input must not matter. */
static void expect(const char *in, size_t max_string, const char *want)
{
    for (int whole = 0; whole < 2; whole++) {
        struct got g = {0};
        struct line_reader r = reader(&g, max_string, 65536);
        size_t n = strlen(in);
        for (size_t i = 0; !whole && i < n; i++)
            line_feed(&r, in + i, 1);
        if (whole)
            line_feed(&r, in, n);
        line_end(&r);
        ck_assert_str_eq(buf_str(&g.all), want);
        line_done(&r);
        buf_done(&g.all);
    }
}

START_TEST(long_strings_are_cut_and_stay_json)
{
    expect("{\"a\":\"0123456789\",\"b\":1}\n", 4, "{\"a\":\"0123\",\"b\":1}|");
    expect("{\"a\":\"\\n\\n\\n\\n\\n\\n\"}\n", 4, "{\"a\":\"\\n\\n\\n\\n\"}|");
    expect("[\"\xc3\xa9\xc3\xa9\xc3\xa9\"]\n", 2, "[\"\xc3\xa9\xc3\xa9\"]|");
    expect("[\"a\\\"b\",\"c\"]\n", 100, "[\"a\\\"b\",\"c\"]|");
}
END_TEST

START_TEST(pairs_of_surrogates_stay_together)
{
    expect("[\"x\\uD83D\\uDE00y\"]\n", 2, "[\"x\\ud83d\\ude00\"]|");
    expect("[\"x\\uD83D\\uDE00y\"]\n", 1, "[\"x\"]|");
}
END_TEST

START_TEST(lone_surrogates_become_replacement_characters)
{
    expect("[\"\\uD83Dx\"]\n", 100, "[\"\\ufffdx\"]|");
    expect("[\"\\uDE00\"]\n", 100, "[\"\\ufffd\"]|");
    expect("[\"\\uD83D\"]\n", 100, "[\"\\ufffd\"]|");
    expect("[\"\\uD83D\\uD83D\\uDE00\"]\n", 100, "[\"\\ufffd\\ud83d\\ude00\"]|");
}
END_TEST

START_TEST(bad_utf8_is_replaced)
{
    expect("{\"t\":\"caf\xe9\"}\n", 100, "{\"t\":\"caf\xef\xbf\xbd\"}|");
}
END_TEST

START_TEST(a_last_line_without_its_end_counts) { expect("{}\n\n{\"a\":1}", 100, "{}|{\"a\":1}|"); }
END_TEST

START_TEST(a_line_beyond_the_bound_is_dropped_and_the_next_one_read)
{
    struct got g = {0};
    struct line_reader r = reader(&g, 1000, 64);
    for (int i = 0; i < 1000; i++)
        line_feed(&r, "[1],", 4);
    line_feed(&r, "\n{}\n", 4);
    ck_assert_int_eq(g.dropped, 1);
    ck_assert_str_eq(buf_str(&g.all), "{}|");
    ck_assert_uint_le(r.buf.cap, 65536);
    line_done(&r);
    buf_done(&g.all);
}
END_TEST

TEST_MAIN("agents line", long_strings_are_cut_and_stay_json, pairs_of_surrogates_stay_together,
          lone_surrogates_become_replacement_characters, bad_utf8_is_replaced,
          a_last_line_without_its_end_counts,
          a_line_beyond_the_bound_is_dropped_and_the_next_one_read)
