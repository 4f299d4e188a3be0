#include "base/arena.h"
#include "base/crypto.h"
#include "base/env.h"
#include "base/json.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"
#include "../check_main.h"

#include <errno.h>
#include <string.h>

static void refused(const char *text, size_t len)
{
    json_t *value = NULL;
    struct abx_error err;
    ck_assert_msg(json_parse(text, len, &value, &err) < 0, "accepted: %.40s", text);
    ck_assert_ptr_null(value);
    ck_assert_int_eq(err.status, 400);
}

START_TEST(json_refuses_what_rfc_8259_does_not_know)
{
    static const char *const bad[] = {"",       "NaN",        "[Infinity]",  "{'a':1}",     "[1,]",
                                      "\xEF\xBB\xBF{}", "{\"a\":1} x", "[\"\\ud800\"]", "[18446744073709551616]",
                                      "[\"\xC3\x28\"]", "{\"a\\u0000b\":1}", "[01]", "[1e999]"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        refused(bad[i], strlen(bad[i]));
}
END_TEST

START_TEST(json_bounds_depth_and_values)
{
    struct buf text = BUF_INIT;
    for (int i = 0; i < JSON_MAX_NEST + 1; i++)
        buf_addc(&text, '[');
    refused(text.data, text.len);
    buf_reset(&text);
    buf_addc(&text, '[');
    for (int i = 0; i < JSON_MAX_VALUES; i++)
        buf_adds(&text, "{},");
    buf_adds(&text, "1]");
    refused(text.data, text.len);
    buf_done(&text);
}
END_TEST

static void written(const char *in, const char *out)
{
    autojson json_t *value = NULL;
    struct abx_error err;
    ck_assert_int_eq(json_parse(in, strlen(in), &value, &err), 0);
    autobuf struct buf b = BUF_INIT;
    json_write(&b, value);
    ck_assert_str_eq(buf_str(&b), out);
}

START_TEST(json_out_is_ascii_in_the_reference_spelling)
{
    written("{\"b\":1,\"a\":[true,null,\"\xC3\xA9\xF0\x9F\x98\x80\\u0000\\n\"]}",
            "{\"b\": 1, \"a\": [true, null, \"\\u00e9\\ud83d\\ude00\\u0000\\n\"]}");
    written("[0.1, 5.0, 1e22, 1e16, 123456789012345680.0, 0.0001, 0.00001, -0.0, 1.5e300, 2.2, 100.25]",
            "[0.1, 5.0, 1e+22, 1e+16, 1.2345678901234568e+17, 0.0001, 1e-05, -0.0, 1.5e+300, 2.2, 100.25]");
    written("{}", "{}");
    written("\"abcdefgh\\\\ijklmnop\\\"\"", "\"abcdefgh\\\\ijklmnop\\\"\"");
    autobuf struct buf b = BUF_INIT;
    json_write_string(&b, "\xE2\x80\xA8" "a\xFF" "b", 6);
    ck_assert_str_eq(buf_str(&b), "\"\\u2028a\\ufffdb\"");
}
END_TEST

START_TEST(json_string_escapes_the_same_wherever_the_special_byte_stands)
{
    for (int c = 0; c < 128; c++) {
        for (size_t at = 0; at < 19; at++) {
            char text[20];
            memset(text, 'x', sizeof text);
            text[at] = (char)c;
            autobuf struct buf b = BUF_INIT;
            json_write_string(&b, text, sizeof text);
            json_error_t why;
            autojson json_t *back = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
            ck_assert_msg(back != NULL, "byte %d at %zu", c, at);
            ck_assert_uint_eq(json_string_length(back), sizeof text);
            ck_assert_mem_eq(json_string_value(back), text, sizeof text);
        }
    }
}
END_TEST

START_TEST(runs_of_control_bytes_survive_whole)
{
    char text[3 * 32 * 256]; /* longer than what is written at once */
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i < sizeof text / 2 ? '\0' : (char)(i * 7 % 33);
    autobuf struct buf b = BUF_INIT;
    json_write_string(&b, text, sizeof text);
    json_error_t why;
    autojson json_t *back = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    ck_assert_ptr_nonnull(back);
    ck_assert_uint_eq(json_string_length(back), sizeof text);
    ck_assert_mem_eq(json_string_value(back), text, sizeof text);
}
END_TEST

START_TEST(numbers_are_strict)
{
    int64_t n;
    static const char *const bad[] = {"", "-", "+", " 1", "1 ", "0x1", "1.0", "9223372036854775808", "1e3"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_int_eq(num_parse(bad[i], INT64_MIN, INT64_MAX, &n), -1);
    ck_assert_int_eq(num_parse("-9223372036854775808", INT64_MIN, INT64_MAX, &n), 0);
    ck_assert(n == INT64_MIN);
    ck_assert_int_eq(num_parse("11", 0, 10, &n), -1);
    double d;
    ck_assert_int_eq(num_parse_double("nan", &d), -1);
    ck_assert_int_eq(num_parse_double("inf", &d), -1);
    ck_assert_int_eq(num_parse_double("0x10", &d), -1);
    ck_assert_int_eq(num_parse_double("1e999", &d), -1);
    ck_assert_int_eq(num_parse_double(" 1.5e3 ", &d), 0);
    ck_assert(d == 1500.0);
    ck_assert(num_round(2.345, 1) == 2.3 && num_round(0.25, 1) == 0.2);
}
END_TEST

START_TEST(utf8_survives_every_cut)
{
    static const char text[] = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80z\xFF\xFE\xE6\xBC" "b\xED\xA0\x80\xC0\x80";
    size_t whole_len;
    autofree char *whole = utf8_replace(text, sizeof text - 1, &whole_len);
    ck_assert_str_eq(whole, "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80z\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" "b"
                            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    for (size_t step = 1; step < sizeof text; step++) {
        autobuf struct buf out = BUF_INIT;
        struct utf8_decoder d = {0};
        for (size_t at = 0; at < sizeof text - 1; at += step) {
            size_t n = sizeof text - 1 - at < step ? sizeof text - 1 - at : step;
            utf8_decode(&d, text + at, n, &out);
        }
        utf8_finish(&d, &out);
        ck_assert_str_eq(buf_str(&out), whole);
    }
    ck_assert_uint_eq(utf8_floor("ab\xE6\xBC", 4), 2);
    ck_assert_uint_eq(utf8_floor("ab\xE6\xBC\xA2", 5), 5);
}
END_TEST

START_TEST(base64_is_strict)
{
    static const char *const bad[] = {"a", "ab", "abc", "ab=c", "a===", "YW Jj", "YWJj\n", "YW-_", "====", "YWI=YWI="};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        autobuf struct buf out = BUF_INIT;
        ck_assert_msg(base64_decode(&out, bad[i], strlen(bad[i])) < 0, "accepted %s", bad[i]);
    }
    autobuf struct buf out = BUF_INIT, back = BUF_INIT;
    ck_assert_int_eq(base64_decode(&out, "AAECAw==", 8), 0);
    ck_assert_mem_eq(out.data, "\0\1\2\3", 4);
    base64_append(&back, out.data, out.len);
    ck_assert_str_eq(buf_str(&back), "AAECAw==");
}
END_TEST

START_TEST(environment_loses_its_secrets_in_place)
{
    char token[] = "ABX_SERVER_TOKEN=hush", named[] = "READER=quiet", kept[] = "A=1", policy[] = "ABX_SERVER_POLICY={}";
    char *block[] = {token, named, kept, policy, NULL};
    const char *const secrets[] = {"READER", NULL};
    struct env_map *e = env_new(block, secrets);
    ck_assert_mem_eq(token + 17, "\0\0\0\0", 4);
    ck_assert_mem_eq(named + 7, "\0\0\0\0\0", 5);
    ck_assert_ptr_null(env_get(e, "ABX_SERVER_TOKEN"));
    ck_assert_ptr_null(env_get(e, "READER"));
    ck_assert(env_is_secret_name(e, "abx_server_x") && env_is_secret_name(e, "READER"));
    ck_assert_int_eq(env_set(e, "B", "2"), 0);
    autojson json_t *overlay = json_pack("{s:s, s:s}", "A", "9", "C", "3");
    autofree char **envp = env_block(e, overlay);
    ck_assert_str_eq(envp[0], "B=2");
    ck_assert_str_eq(envp[1], "A=9");
    ck_assert_str_eq(envp[2], "C=3");
    ck_assert_ptr_null(envp[3]);
    env_free(e);
}
END_TEST

START_TEST(error_names_the_errno_and_takes_a_prefix)
{
    struct abx_error err;
    abx_fail_os(&err, ENOENT, "x");
    ck_assert_str_eq(err.type, "FileNotFoundError");
    ck_assert_int_eq(err.status, 500);
    abx_fail_lookup(&err, ENOTDIR, "x");
    ck_assert_int_eq(err.status, 404);
    ck_assert_str_eq(err.type, "NotADirectoryError");
    abx_fail_os(&err, ENOSPC, "x");
    ck_assert_int_eq(err.status, 507);
    abx_fail(&err, E_VALUE, 0, "bad");
    abx_prefix(&err, "cwd: ");
    ck_assert_str_eq(err.message, "cwd: bad");
}
END_TEST

START_TEST(arena_gives_aligned_memory_of_any_size)
{
    struct arena a;
    arena_init(&a);
    for (size_t n = 1; n < 40000; n = n * 3 + 1) {
        char *p = arena_zalloc(&a, n);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % 16, 0);
        p[n - 1] = 1;
    }
    ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX - 4));
    arena_reset(&a);
    ck_assert_str_eq(arena_printf(&a, "%d-%s", 7, "x"), "7-x");
    arena_done(&a);
}
END_TEST

TEST_MAIN("text", json_refuses_what_rfc_8259_does_not_know, json_bounds_depth_and_values,
          json_out_is_ascii_in_the_reference_spelling,
          json_string_escapes_the_same_wherever_the_special_byte_stands, runs_of_control_bytes_survive_whole,
          numbers_are_strict,
          utf8_survives_every_cut, base64_is_strict, environment_loses_its_secrets_in_place,
          error_names_the_errno_and_takes_a_prefix, arena_gives_aligned_memory_of_any_size)
