#include "registry/spec.h"

#include "base/json.h"
#include "base/own.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

/* A command "c" with one argument "a", as a host would send it. */
static int one_arg(struct command_spec *ret, uint32_t type, uint32_t flags, const char *fallback, struct abx_error *err)
{
    struct wire_buf b = {0};
    wire_str(&b, "c");
    wire_str(&b, "");
    wire_u32(&b, 0);
    wire_f64(&b, 0);
    wire_u32(&b, 0);
    wire_u32(&b, 1);
    wire_u32(&b, type);
    wire_str(&b, "a");
    wire_u32(&b, flags);
    wire_str(&b, fallback);
    wire_str(&b, "");
    struct wire_reader r = {.at = b.data, .end = b.data + b.len};
    int result = command_spec_read(&r, ret, err);
    wire_done(&b);
    return result;
}

/* What arrives for {"a": json}: its text, or "!" and the error's type. */
static const char *converted(enum arg_type type, const char *json)
{
    static char text[400];
    struct command_spec c;
    struct abx_error err;
    struct wire_buf out = {0};
    autofree char *body = NULL;
    autojson json_t *given = NULL;
    ck_assert_int_eq(one_arg(&c, type, 0, "", &err), 0);
    ck_assert_int_gt(asprintf(&body, "{\"a\": %s}", json), 0);
    given = json_loads(body, JSON_ALLOW_NUL, NULL);
    ck_assert_msg(given != NULL, "%s", body);
    if (command_spec_args(&c, given, &out, &err) < 0) {
        snprintf(text, sizeof(text), "!%s", err.type);
        ck_assert_int_eq(err.status, 400);
    } else {
        struct wire_reader r = {.at = out.data, .end = out.data + out.len};
        ck_assert_uint_eq(wire_get_u32(&r), 1);
        ck_assert_uint_eq(wire_get_u32(&r), type);
        ck_assert_str_eq(wire_get_text(&r, NULL), "a");
        int n = 0;
        switch (type) {
        case ARG_STRING:
            snprintf(text, sizeof(text), "%s", wire_get_text(&r, NULL));
            break;
        case ARG_INTEGER:
            snprintf(text, sizeof(text), "%lld", (long long)wire_get_i64(&r));
            break;
        case ARG_FLOAT:
            snprintf(text, sizeof(text), "%.17g", wire_get_f64(&r));
            break;
        case ARG_BOOLEAN:
            snprintf(text, sizeof(text), "%s", wire_get_u32(&r) ? "true" : "false");
            break;
        case ARG_STRINGS:
            text[0] = 0;
            for (uint32_t k = wire_get_u32(&r); k; k--)
                n += snprintf(text + n, sizeof(text) - (size_t)n, "[%s]", wire_get_text(&r, NULL));
            break;
        }
        ck_assert(!r.bad && r.at == r.end);
    }
    wire_done(&out);
    command_spec_done(&c);
    return text;
}

struct row {
    enum arg_type type;
    const char *json, *want;
};

static const struct row refused[] = {
    {ARG_STRING, "null", "!TypeError"},     {ARG_STRING, "[\"a\"]", "!TypeError"},
    {ARG_STRING, "{}", "!TypeError"},       {ARG_INTEGER, "true", "!TypeError"},
    {ARG_INTEGER, "null", "!TypeError"},    {ARG_INTEGER, "[]", "!TypeError"},
    {ARG_INTEGER, "{}", "!TypeError"},      {ARG_INTEGER, "\"\"", "!TypeError"},
    {ARG_INTEGER, "\" \"", "!TypeError"},   {ARG_INTEGER, "\"5.0\"", "!TypeError"},
    {ARG_INTEGER, "\"0x10\"", "!TypeError"}, {ARG_INTEGER, "5.9", "!TypeError"},
    {ARG_INTEGER, "1e300", "!TypeError"},   {ARG_INTEGER, "\"_1\"", "!TypeError"},
    {ARG_INTEGER, "\"1__0\"", "!TypeError"}, {ARG_INTEGER, "\"1_\"", "!TypeError"},
    {ARG_INTEGER, "\"9223372036854775808\"", "!TypeError"}, {ARG_INTEGER, "9223372036854775808.0", "!TypeError"},
    {ARG_INTEGER, "\"1\\u00002\"", "!TypeError"}, {ARG_INTEGER, "\"+ 1\"", "!TypeError"},
    {ARG_FLOAT, "null", "!TypeError"},      {ARG_FLOAT, "[1]", "!TypeError"},
    {ARG_FLOAT, "\"\"", "!TypeError"},      {ARG_FLOAT, "\"x\"", "!TypeError"},
    {ARG_FLOAT, "\"nan\"", "!TypeError"},   {ARG_FLOAT, "\"inf\"", "!TypeError"},
    {ARG_FLOAT, "\"1e999\"", "!TypeError"}, {ARG_FLOAT, "\"0x10\"", "!TypeError"},
    {ARG_BOOLEAN, "2", "!TypeError"},       {ARG_BOOLEAN, "-1", "!TypeError"},
    {ARG_BOOLEAN, "1.0", "!TypeError"},     {ARG_BOOLEAN, "null", "!TypeError"},
    {ARG_BOOLEAN, "\"on\"", "!TypeError"},  {ARG_BOOLEAN, "\" true \"", "!TypeError"},
    {ARG_BOOLEAN, "\"\"", "!TypeError"},    {ARG_BOOLEAN, "[]", "!TypeError"},
    {ARG_BOOLEAN, "\"true\\u0000\"", "!TypeError"},
    {ARG_STRINGS, "\"[]\"", "!TypeError"},  {ARG_STRINGS, "[1]", "!TypeError"},
    {ARG_STRINGS, "[\"a\", null]", "!TypeError"}, {ARG_STRINGS, "{}", "!TypeError"},
    {ARG_STRINGS, "null", "!TypeError"},
};

START_TEST(what_does_not_fit_a_type_is_refused)
{
    const struct row *row = &refused[_i];
    ck_assert_msg(strcmp(converted(row->type, row->json), row->want) == 0, "%s became %s", row->json,
                  converted(row->type, row->json));
}
END_TEST

static const struct row taken[] = {
    {ARG_STRING, "\"x\"", "x"},        {ARG_STRING, "\"\"", ""},         {ARG_STRING, "5", "5"},
    {ARG_STRING, "1.0", "1.0"},        {ARG_STRING, "0.1", "0.1"},       {ARG_STRING, "true", "True"},
    {ARG_STRING, "false", "False"},    {ARG_INTEGER, "5", "5"},          {ARG_INTEGER, "5.0", "5"},
    {ARG_INTEGER, "\" -7 \"", "-7"},   {ARG_INTEGER, "\"+1_000\"", "1000"}, {ARG_INTEGER, "\"007\"", "7"},
    {ARG_INTEGER, "-9223372036854775808", "-9223372036854775808"},
    {ARG_INTEGER, "\"9223372036854775807\"", "9223372036854775807"},
    {ARG_FLOAT, "2", "2"},             {ARG_FLOAT, "0.5", "0.5"},        {ARG_FLOAT, "true", "1"},
    {ARG_FLOAT, "false", "0"},         {ARG_FLOAT, "\" 1e3 \"", "1000"}, {ARG_FLOAT, "\"1_0.5\"", "10.5"},
    {ARG_BOOLEAN, "true", "true"},     {ARG_BOOLEAN, "1", "true"},       {ARG_BOOLEAN, "0", "false"},
    {ARG_BOOLEAN, "\"YES\"", "true"},  {ARG_BOOLEAN, "\"No\"", "false"}, {ARG_BOOLEAN, "\"1\"", "true"},
    {ARG_STRINGS, "[]", ""},           {ARG_STRINGS, "[\"a\", \"\"]", "[a][]"},
};

START_TEST(what_fits_is_converted)
{
    const struct row *row = &taken[_i];
    ck_assert_str_eq(converted(row->type, row->json), row->want);
}
END_TEST

START_TEST(fallbacks_are_checked_at_load)
{
    static const struct {
        uint32_t type;
        const char *fallback;
        int want;
    } rows[] = {{ARG_INTEGER, "many", -1}, {ARG_STRINGS, "a,b", -1}, {ARG_STRINGS, "[1]", -1}, {ARG_BOOLEAN, "maybe", -1},
                {9, "", -1},               {0, "", -1},              {ARG_INTEGER, "3", 0},    {ARG_STRINGS, "[\"a\"]", 0}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct command_spec c;
        struct abx_error err;
        ck_assert_int_eq(one_arg(&c, rows[i].type, 2, rows[i].fallback, &err), rows[i].want);
        if (rows[i].want == 0)
            command_spec_done(&c);
        else
            ck_assert_int_eq(err.kind, E_CONFIG);
    }
}
END_TEST

START_TEST(unexpected_arguments_come_before_wrong_ones_and_missing_ones)
{
    struct command_spec c;
    struct abx_error err;
    struct wire_buf out = {0};
    ck_assert_int_eq(one_arg(&c, ARG_INTEGER, 0, "", &err), 0);
    autojson json_t *given = json_pack("{s:s, s:i, s:i}", "a", "wrong", "z", 1, "c", 1);
    ck_assert_int_eq(command_spec_args(&c, given, &out, &err), -1);
    ck_assert_str_eq(err.type, "ValueError");
    ck_assert_str_eq(err.message, "Unexpected argument(s): ['c', 'z']; declared: ['a']");
    autojson json_t *none = json_object();
    ck_assert_int_eq(command_spec_args(&c, none, &out, &err), -1);
    ck_assert_str_eq(err.message, "Required argument 'a' missing");
    wire_done(&out);
    command_spec_done(&c);
}
END_TEST

START_TEST(an_optional_argument_may_be_absent)
{
    struct command_spec c;
    struct abx_error err;
    struct wire_buf out = {0};
    ck_assert_int_eq(one_arg(&c, ARG_INTEGER, 1, "", &err), 0);
    autojson json_t *none = json_object();
    ck_assert_int_eq(command_spec_args(&c, none, &out, &err), 0);
    struct wire_reader r = {.at = out.data, .end = out.data + out.len};
    ck_assert_uint_eq(wire_get_u32(&r), 0);
    wire_done(&out);
    command_spec_done(&c);
}
END_TEST

START_TEST(payloads_that_are_cut_are_refused)
{
    struct wire_buf b = {0};
    wire_str(&b, "c");
    wire_str(&b, "");
    wire_u32(&b, 0);
    wire_f64(&b, 0);
    wire_u32(&b, 1);
    wire_str(&b, "a:b");
    wire_u32(&b, 1);
    wire_u32(&b, ARG_STRING);
    wire_str(&b, "a");
    for (size_t len = 0; len < b.len; len++) {
        struct wire_reader r = {.at = b.data, .end = b.data + len};
        struct command_spec c;
        struct abx_error err;
        ck_assert_int_eq(command_spec_read(&r, &c, &err), -1);
    }
    wire_done(&b);
}
END_TEST

static const char *const no_json[] = {"",     " ",      "{",       "[",         "[1,]",     "{\"a\"}",   "{\"a\":}",
                                      "{a:1}", "[1 2]",  "1 2",     "nul",       "truex",    "\"",        "\"\\x\"",
                                      "\"\t\"", "01",    "-",       "1.",        "1e",       ".5",        "NaN",
                                      "1e999", "\"\\ud800\"", "\"\\udc00\\ud800\"", "\"\xff\"", "\"\xc0\x80\"", "]", "}",
                                      "{\"a\":1,}", ("\xef\xbb\xbf" "1"), "'a'", "[1]]", "\"\xed\xa0\x80\""};

START_TEST(results_that_are_no_json_are_refused)
{
    struct abx_error err;
    autobuf struct buf out = BUF_INIT;
    buf_adds(&out, "kept");
    ck_assert_msg(json_relay(&out, no_json[_i], strlen(no_json[_i]), &err) == -1, "%s", no_json[_i]);
    ck_assert_str_eq(buf_str(&out), "kept");
}
END_TEST

START_TEST(results_come_out_in_the_servers_spelling)
{
    static const char *const rows[][2] = {
        {"null", "null"},
        {" { \"a\" :[ 1,2.50 ,-0.0, 1E3,true,{ } ,[]]} ", "{\"a\": [1, 2.5, -0.0, 1000.0, true, {}, []]}"},
        {"\"\xc3\xa9\xe2\x98\x83\xf0\x9f\x98\x80\"", "\"\\u00e9\\u2603\\ud83d\\ude00\""},
        {"\"\\u00E9\\u0041\\/\\u0022\\u000a\\u0000\\ud83d\\ude00\"", "\"\\u00e9A/\\\"\\n\\u0000\\ud83d\\ude00\""},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct abx_error err;
        autobuf struct buf out = BUF_INIT;
        ck_assert_int_eq(json_relay(&out, rows[i][0], strlen(rows[i][0]), &err), 0);
        ck_assert_str_eq(buf_str(&out), rows[i][1]);
    }
}
END_TEST

START_TEST(nesting_is_bounded)
{
    struct abx_error err;
    char text[2 * JSON_MAX_NEST + 2];
    autobuf struct buf out = BUF_INIT;
    memset(text, '[', JSON_MAX_NEST);
    memset(text + JSON_MAX_NEST, ']', JSON_MAX_NEST);
    ck_assert_int_eq(json_relay(&out, text, 2 * JSON_MAX_NEST, &err), 0);
    memset(text, '[', JSON_MAX_NEST + 1);
    memset(text + JSON_MAX_NEST + 1, ']', JSON_MAX_NEST + 1);
    ck_assert_int_eq(json_relay(&out, text, sizeof(text), &err), -1);
}
END_TEST

START_TEST(frames_are_cut_from_any_pieces)
{
    struct wire_buf b = {0};
    size_t frame = wire_begin(&b, W_EVENT, 7);
    wire_text(&b, "a\0b", 3);
    ck_assert_int_eq(wire_end(&b, frame), 0);
    struct wire_header h;
    struct wire_reader r;
    size_t need, len;
    for (size_t n = 0; n < b.len; n++)
        ck_assert_int_eq(wire_next(b.data, n, &h, &r, &need), 0);
    ck_assert_int_eq(wire_next(b.data, b.len, &h, &r, &need), 1);
    ck_assert_uint_eq(need, b.len);
    ck_assert_uint_eq(h.id, 7);
    ck_assert_mem_eq(wire_get_text(&r, &len), "a\0b", 4);
    ck_assert_uint_eq(len, 3);
    ck_assert(!r.bad && r.at == r.end);
    wire_get_u32(&r);
    ck_assert(r.bad);
    wire_patch(&b, 0, UINT32_MAX);
    ck_assert_int_eq(wire_next(b.data, b.len, &h, &r, &need), -1);
    wire_done(&b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("registry");
    TCase *t = tcase_create("spec");
    tcase_add_loop_test(t, what_does_not_fit_a_type_is_refused, 0, ARRAY_LEN(refused));
    tcase_add_loop_test(t, what_fits_is_converted, 0, ARRAY_LEN(taken));
    tcase_add_test(t, fallbacks_are_checked_at_load);
    tcase_add_test(t, unexpected_arguments_come_before_wrong_ones_and_missing_ones);
    tcase_add_test(t, an_optional_argument_may_be_absent);
    tcase_add_test(t, payloads_that_are_cut_are_refused);
    tcase_add_loop_test(t, results_that_are_no_json_are_refused, 0, ARRAY_LEN(no_json));
    tcase_add_test(t, results_come_out_in_the_servers_spelling);
    tcase_add_test(t, nesting_is_bounded);
    tcase_add_test(t, frames_are_cut_from_any_pieces);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
