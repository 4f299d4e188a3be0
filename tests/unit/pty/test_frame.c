#include "pty/frame.h"
#include "pty/ring.h"

#include "../check_main.h"

#include <signal.h>
#include <string.h>

#include "base/json.h"
#include "base/own.h"
#include "base/utf8.h"

static const char *ignored[] = {
    "",
    "no JSON",
    "[1]",
    "5",
    "null",
    "\"text\"",
    "{}",
    "{\"type\": 1}",
    "{\"type\": \"unknown\"}",
    "{\"type\": \"input\"}",
    "{\"type\": \"input\", \"data\": 5}",
    "{\"type\": \"input\", \"data\": \"\"}",
    "{\"type\": \"resize\", \"cols\": 0, \"rows\": 0}",
    "{\"type\": \"resize\", \"cols\": -1}",
    "{\"type\": \"resize\", \"cols\": 70000}",
    "{\"type\": \"resize\", \"cols\": \"80\"}",
    "{\"type\": \"resize\", \"cols\": 1.5}",
    "{\"type\": \"resize\", \"cols\": null, \"rows\": 3}",
    "{\"type\": \"resize\", \"cols\": true}",
    "{\"type\": \"signal\", \"signal\": \"SIGUSR1\"}",
    "{\"type\": \"signal\", \"signal\": 9}",
    "\xff\xfe",
};

START_TEST(what_is_no_message_is_ignored)
{
    for (size_t i = 0; i < ARRAY_LEN(ignored); i++) {
        struct frame f;
        frame_parse(&f, ignored[i], strlen(ignored[i]));
        ck_assert_msg(f.kind == FRAME_IGNORED, "%s", ignored[i]);
        frame_done(&f);
    }
}
END_TEST

static struct frame parsed(const char *text)
{
    struct frame f;
    frame_parse(&f, text, strlen(text));
    return f;
}

START_TEST(messages_are_understood)
{
    struct frame f = parsed("{\"type\": \"input\", \"data\": \"a\\u0000\\u0003\"}");
    ck_assert_int_eq(f.kind, FRAME_INPUT);
    ck_assert_uint_eq(f.len, 3);
    ck_assert_int_eq(memcmp(f.data, "a\0\3", 3), 0);
    frame_done(&f);
    f = parsed("{\"type\": \"resize\", \"rows\": 44}");
    ck_assert_int_eq(f.kind, FRAME_RESIZE);
    ck_assert_int_eq(f.cols, -1);
    ck_assert_int_eq(f.rows, 44);
    frame_done(&f);
    f = parsed("{\"type\": \"signal\"}");
    ck_assert_int_eq(f.kind, FRAME_SIGNAL);
    ck_assert_int_eq(f.signal, SIGINT);
    frame_done(&f);
    f = parsed("{\"type\": \"signal\", \"signal\": \"SIGHUP\"}");
    ck_assert_int_eq(f.signal, SIGHUP);
    frame_done(&f);
}
END_TEST

/* Decoder and JSON writer of base/ are the measure: the fast escaper must agree with them, byte for byte. */
static void check_escapes(const char *data, size_t len, bool last)
{
    autobuf struct buf out = BUF_INIT, want = BUF_INIT;
    size_t used = frame_output(&out, data, len, last, 100);
    ck_assert_uint_le(used, len);
    ck_assert(last ? used == len : len - used <= 3);
    if (used == 0) {
        ck_assert_uint_eq(out.len, 0);
        return;
    }
    buf_adds(&want, "{\"type\": \"output\", \"data\": ");
    size_t text_len;
    autofree char *text = utf8_replace(data, used, &text_len);
    json_write_string(&want, text, text_len);
    buf_addf(&want, ", \"next\": %zu}", 100 + used);
    ck_assert_str_eq(buf_str(&out), buf_str(&want));
}

START_TEST(output_is_escaped_as_everywhere)
{
    char data[4096];
    unsigned seed = 7;
    for (int round = 0; round < 400; round++) {
        size_t len = (size_t)(rand_r(&seed) % 300) + 1;
        for (size_t i = 0; i < len; i++) {
            int kind = rand_r(&seed) % 8;
            data[i] = (char)(kind < 5 ? ' ' + rand_r(&seed) % 95 : rand_r(&seed) % 256);
        }
        check_escapes(data, len, true);
        check_escapes(data, len, false);
    }
    check_escapes("\xF0\x9F\x98\x80\xE2\x82\xAC\r\n\x1b[0m\x7f", 15, true);
}
END_TEST

START_TEST(a_cut_character_waits_for_its_rest)
{
    autobuf struct buf out = BUF_INIT;
    ck_assert_uint_eq(frame_output(&out, "ab\xE2\x82", 4, false, 0), 2);
    ck_assert_str_eq(buf_str(&out), "{\"type\": \"output\", \"data\": \"ab\", \"next\": 2}");
    buf_reset(&out);
    ck_assert_uint_eq(frame_output(&out, "\xE2\x82", 2, false, 2), 0);
    ck_assert_uint_eq(out.len, 0);
    ck_assert_uint_eq(frame_output(&out, "\xE2\x82", 2, true, 2), 2);
    ck_assert_str_eq(buf_str(&out), "{\"type\": \"output\", \"data\": \"\\ufffd\", \"next\": 4}");
    ck_assert_uint_eq(frame_skip_cut("\x82\xACx", 3), 2);
}
END_TEST

START_TEST(ring_keeps_the_last_bytes_and_grows_as_needed)
{
    struct ring r;
    char all[20000], got[4096];
    unsigned seed = 3;
    ring_init(&r, 4096);
    for (size_t i = 0; i < sizeof(all); i++)
        all[i] = (char)rand_r(&seed);
    ring_append(&r, all, 100);
    ck_assert_uint_eq(r.cap, 512);
    size_t at = 100;
    while (at < sizeof(all)) {
        size_t len = (size_t)rand_r(&seed) % 5000;
        len = len < sizeof(all) - at ? len : sizeof(all) - at;
        ring_append(&r, all + at, len);
        at += len;
        ck_assert_uint_eq(r.end, at);
        uint64_t start = ring_start(&r);
        ck_assert(start == 0 || r.cap == 4096);
        size_t n = ring_copy(&r, start, got, sizeof(got));
        ck_assert_uint_eq(n, at - start);
        ck_assert_int_eq(memcmp(got, all + start, n), 0);
    }
    ring_done(&r);
}
END_TEST

TEST_MAIN("pty_frame", what_is_no_message_is_ignored, messages_are_understood, output_is_escaped_as_everywhere,
          a_cut_character_waits_for_its_rest, ring_keeps_the_last_bytes_and_grows_as_needed)
