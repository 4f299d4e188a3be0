#include "agents/redact.h"

#include "../check_main.h"

#include <string.h>

/* At once, and in pieces of every size: the same. */
static void expect(const struct redact *r, const char *in, const char *want)
{
    struct buf out = BUF_INIT;
    redact_text(r, in, strlen(in), &out);
    ck_assert_str_eq(buf_str(&out), want);
    size_t n = strlen(in);
    for (size_t piece = 1; piece <= n && piece < 40; piece++) {
        struct redact_stream s = {0};
        buf_reset(&out);
        for (size_t at = 0; at < n; at += piece)
            redact_feed(r, &s, in + at, at + piece < n ? piece : n - at, &out);
        redact_finish(r, &s, &out);
        ck_assert_str_eq(buf_str(&out), want);
        redact_stream_done(&s);
    }
    buf_done(&out);
}

START_TEST(shapes_of_tokens_are_hidden)
{
    expect(NULL, "a sk-abcdefghijklmnop1234 b", "a [REDACTED] b");
    expect(NULL, "ghp_ABCDEFGHIJKLMNOP1234", "[REDACTED]");
    expect(NULL, "github_pat_ABCDEFGHIJKLMNOP1234.", "[REDACTED]");
    expect(NULL, "Authorization: Bearer abcdefghijklmnop99", "Authorization: [REDACTED]");
    expect(NULL, "x-api-key: 12345678", "x-api-key: [REDACTED]");
    expect(NULL, "{\"api_key\": \"12345678\"}", "{\"api_key\": \"[REDACTED]\"}");
    expect(NULL, "OPENAI_API_KEY=abcdefgh1", "OPENAI_API_KEY=[REDACTED]");
}
END_TEST

START_TEST(ordinary_text_is_left_alone)
{
    expect(NULL, "task-management-systems-are-fine", "task-management-systems-are-fine");
    expect(NULL, "sk-short, bearer of news, api_key: abc",
           "sk-short, bearer of news, api_key: abc");
    expect(NULL, "\"OPENAI_API_KEY\": \"k1\"", "\"OPENAI_API_KEY\": \"k1\"");
    expect(NULL, "b", "b");
}
END_TEST

START_TEST(registered_secrets_are_hidden_in_every_spelling)
{
    struct redact *r = redact_new();
    redact_add(r, "Bearer p@ss \"word\"/1");
    redact_add(r, "p@ss \"word\"/1");
    redact_add(r, "short");
    expect(r, "x Bearer p@ss \"word\"/1 y", "x [REDACTED] y");
    expect(r, "x p@ss \"word\"/1 y", "x [REDACTED] y");
    expect(r, "u=p%40ss%20%22word%22%2F1&", "u=[REDACTED]&");
    expect(r, "j p@ss \\\"word\\\"/1", "j [REDACTED]");
    expect(r, "short text stays short", "short text stays short");
    redact_free(r);
}
END_TEST

START_TEST(of_two_that_begin_alike_the_longer_wins)
{
    struct redact *r = redact_new();
    redact_add(r, "secret-1");
    redact_add(r, "secret-123");
    expect(r, "secret-123 secret-12", "[REDACTED] [REDACTED]2");
    redact_free(r);
}
END_TEST

START_TEST(ordinary_deltas_are_not_held_back)
{
    struct redact_stream s = {0};
    struct buf out = BUF_INIT;
    redact_feed(NULL, &s, "hel", 3, &out);
    ck_assert_str_eq(buf_str(&out), "hel");
    redact_feed(NULL, &s, "lo wor", 6, &out);
    ck_assert_str_eq(buf_str(&out), "hello wor");
    redact_stream_done(&s);
    buf_done(&out);
}
END_TEST

START_TEST(values_are_cleaned_with_their_names)
{
    json_t *in =
        json_pack("{s:s, s:[s]}", "api_key", "abcdefgh12", "list", "sk-abcdefghijklmnop1234");
    json_t *out = redact_json(NULL, in);
    ck_assert_str_eq(json_string_value(json_object_get(out, "api_key")), "[REDACTED]");
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(out, "list"), 0)),
                     "[REDACTED]");
    json_decref(in);
    json_decref(out);
}
END_TEST

TEST_MAIN("agents redact", shapes_of_tokens_are_hidden, ordinary_text_is_left_alone,
          registered_secrets_are_hidden_in_every_spelling, of_two_that_begin_alike_the_longer_wins,
          ordinary_deltas_are_not_held_back, values_are_cleaned_with_their_names)
