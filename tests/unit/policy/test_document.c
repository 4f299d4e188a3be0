/* Documents: every refusal, JSON and YAML, where the policy comes from, revisions. */

#include "base/own.h"
#include "sample.h"

#include "../check_main.h"
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static struct abx_error err;

static const char *no_env(const char *name)
{
    return NULL;
}

/* Parses and compiles. NULL with err on refusal. */
static struct policy *compile(const char *text, bool yaml)
{
    const struct endpoint *endpoints[SAMPLE_COUNT];
    struct policy_doc *doc = NULL;
    struct policy *p = NULL;

    for (size_t i = 0; i < SAMPLE_COUNT; i++)
        endpoints[i] = &sample[i];
    if (policy_doc_parse(text, strlen(text), yaml, "test", &doc, &err) < 0)
        return NULL;
    struct policy_inputs in = {
        .doc = doc, .endpoints = endpoints, .n_endpoints = SAMPLE_COUNT, .getenv = no_env};
    (void)policy_compile(&in, &p, &err); /* p tells */
    policy_doc_free(doc);
    return p;
}

static void refused(const char *text, const char *says)
{
    struct policy *p = compile(text, false);

    ck_assert_msg(p == NULL, "accepted: %s", text);
    ck_assert_int_eq(err.kind, E_CONFIG);
    ck_assert_msg(strstr(err.message, says) != NULL, "%s: says '%s', not '%s'", text, err.message, says);
}

static void revision_is(const char *text, bool yaml, const char *revision)
{
    struct policy *p = compile(text, yaml);

    ck_assert_msg(p != NULL, "refused: %s: %s", text, err.message);
    ck_assert_msg(strcmp(policy_revision(p), revision) == 0, "%s: %s", text, policy_revision(p));
    policy_unref(p);
}

START_TEST(unknown_words_are_refused_with_a_suggestion)
{
    refused("{\"nope\": 1}", "policy.nope: unknown key; allowed: auth, base_dir");
    refused("{\"endpoint\": {}}", "did you mean 'endpoints'?");
    refused("{\"Version\": 1}", "did you mean 'version'?");
    refused("{\"preset\": \"lockd\"}", "did you mean 'locked'?");
    refused("{\"groups\": [\"proces\"]}", "did you mean 'process'?");
    refused("{\"groups\": {\"files\": true}}", "did you mean 'file_ops'?");
    refused("{\"endpoints\": {\"files_lst\": {}}}",
            "policy.endpoints.files_lst: unknown endpoint (did you mean 'files_list'?)");
    refused("{\"endpoints\": {\"files_list\": {\"enable\": true}}}",
            "policy.endpoints.files_list.enable: unknown key (did you mean 'enabled'?); allowed: audit, "
            "enabled, limits, params, paths, scopes");
    refused("{\"endpoints\": {\"group:files\": {}}}", "unknown group");
    refused("{\"endpoints\": {\"shell\": {\"limits\": {\"timeout_second\": 1}}}}",
            "did you mean 'timeout_seconds'?");
    refused("{\"endpoints\": {\"shell\": {\"params\": {\"allow\": []}}}}", "params.allow: unknown key");
    refused("{\"endpoints\": {\"files_stat\": {\"paths\": {\"allowed\": []}}}}", "did you mean 'allow'?");
    refused("{\"auth\": {\"token\": []}}", "did you mean 'tokens'?");
    refused("{\"auth\": {\"tokens\": [{\"id\": \"a\", \"scopes\": [], \"token\": \"s\"}]}}",
            "policy.auth.tokens[0].token: unknown key (did you mean 'token_env'?)");
}
END_TEST

START_TEST(wrong_types_are_refused_and_the_place_is_named)
{
    static const char *const cases[][2] = {
        {"[1]", "policy: expected an object"},
        {"{\"version\": 2}", "policy.version"},
        {"{\"version\": true}", "policy.version"},
        {"{\"version\": 1.0}", "policy.version"},
        {"{\"version\": \"1\"}", "policy.version"},
        {"{\"preset\": null}", "policy.preset"},
        {"{\"base_dir\": \"srv\"}", "policy.base_dir"},
        {"{\"base_dir\": \"/a\\u0000b\"}", "policy.base_dir"},
        {"{\"groups\": \"process\"}", "policy.groups"},
        {"{\"groups\": [1]}", "policy.groups"},
        {"{\"groups\": {\"process\": \"no\"}}", "policy.groups.process"},
        {"{\"groups\": {\"core\": false}}", "policy.groups.core"},
        {"{\"defaults\": []}", "policy.defaults"},
        {"{\"endpoints\": null}", "policy.endpoints"},
        {"{\"endpoints\": {\"shell\": true}}", "policy.endpoints.shell"},
        {"{\"endpoints\": {\"shell\": {\"enabled\": \"yes\"}}}", "shell.enabled"},
        {"{\"endpoints\": {\"shell\": {\"audit\": \"some\"}}}", "shell.audit"},
        {"{\"endpoints\": {\"shell\": {\"scopes\": \"a:b\"}}}", "shell.scopes"},
        {"{\"endpoints\": {\"shell\": {\"paths\": []}}}", "shell.paths"},
        {"{\"endpoints\": {\"shell\": {\"paths\": {\"allow\": [\"srv\"]}}}}", "paths.allow"},
        {"{\"endpoints\": {\"shell\": {\"paths\": {\"allow\": [\"/a\\u0000\"]}}}}", "NUL"},
        {"{\"endpoints\": {\"shell\": {\"paths\": {\"deny\": [1]}}}}", "paths.deny"},
        {"{\"endpoints\": {\"shell\": {\"paths\": {\"read_only\": 1}}}}", "paths.read_only"},
        {"{\"endpoints\": {\"shell\": {\"paths\": {\"symlinks\": \"follow\"}}}}", "paths.symlinks"},
        {"{\"endpoints\": {\"shell\": {\"limits\": {\"max_concurrency\": 0}}}}", "max_concurrency"},
        {"{\"endpoints\": {\"shell\": {\"limits\": {\"rate_per_minute\": 1.5}}}}", "rate_per_minute"},
        {"{\"endpoints\": {\"shell\": {\"limits\": {\"timeout_seconds\": true}}}}", "timeout_seconds"},
        {"{\"endpoints\": {\"shell\": {\"limits\": {\"timeout_seconds\": -1}}}}", "timeout_seconds"},
        {"{\"endpoints\": {\"shell\": {\"params\": {\"allow_commands\": \"ls\"}}}}", "allow_commands"},
        {"{\"endpoints\": {\"shell\": {\"params\": {\"allow_commands\": [\"l\\u0000s\"]}}}}", "NUL"},
        {"{\"endpoints\": {\"process_signal\": {\"params\": {\"allowed_signals\": [\"TERM\"]}}}}",
         "allowed_signals"},
        {"{\"endpoints\": {\"process_signal\": {\"params\": {\"allowed_signals\": [true]}}}}",
         "allowed_signals"},
        {"{\"endpoints\": {\"files_upload_stream\": {\"params\": {\"overwrite\": 1}}}}", "overwrite"},
        {"{\"auth\": []}", "policy.auth"},
        {"{\"auth\": {\"tokens\": {}}}", "policy.auth.tokens"},
        {"{\"auth\": {\"allow_anonymous\": 1}}", "allow_anonymous"},
        {"{\"auth\": {\"anonymous_scopes\": \"*\"}}", "anonymous_scopes"},
        {"{\"auth\": {\"allowed_origins\": [\"example.com\"]}}", "allowed_origins"},
        {"{\"auth\": {\"allowed_origins\": [\"https://example.com/x\"]}}", "allowed_origins"},
        {"{\"auth\": {\"allowed_hosts\": [\"a b\"]}}", "allowed_hosts"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(cases[i][0], cases[i][1]);
}
END_TEST

START_TEST(tokens_need_an_id_scopes_and_one_secret)
{
#define TOKENS(x) "{\"auth\": {\"tokens\": [" x "]}}"
#define ZEROS "\"token_sha256\": \"0000000000000000000000000000000000000000000000000000000000000000\""
    refused(TOKENS("\"x\""), "tokens[0]: expected an object");
    refused(TOKENS("{\"scopes\": [], " ZEROS "}"), "tokens[0].id");
    refused(TOKENS("{\"id\": \"\", \"scopes\": [], " ZEROS "}"), "tokens[0].id");
    refused(TOKENS("{\"id\": \"a\", " ZEROS "}"), "tokens[0].scopes: required");
    refused(TOKENS("{\"id\": \"a\", \"scopes\": []}"), "exactly one of");
    refused(TOKENS("{\"id\": \"a\", \"scopes\": [], \"token_env\": \"X\", " ZEROS "}"), "exactly one of");
    refused(TOKENS("{\"id\": \"a\", \"scopes\": [], \"token_env\": \"\"}"), "token_env");
    refused(TOKENS("{\"id\": \"a\", \"scopes\": [], \"token_env\": \"UNSET\"}"),
            "environment variable 'UNSET' is not set");
    refused(TOKENS("{\"id\": \"a\", \"scopes\": [], \"token_sha256\": \"abc\"}"), "64 hexadecimal");
    refused(TOKENS("{\"id\": \"a\", \"scopes\": [], " ZEROS "}, {\"id\": \"a\", \"scopes\": [], " ZEROS "}"),
            "tokens[1].id: used twice");
}
END_TEST

START_TEST(scopes_have_a_grammar)
{
    static const char *const good[] = {"*", "a:*", "a:b", "a", "a.b-c", "a:b:c", "a:b-c.d:e", "a_b:c_d", "a-"};
    static const char *const bad[] = {"",    "A",  "a:",   "a:B", "a b",   ":a",   "*:a",   "a:*b", "1a",
                                      "a:1", "-a", "a:b*", "a:.", "a.b:c", "_a:b", "a\\n", "a:b\\n"};
    char text[128];

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        snprintf(text, sizeof(text), "{\"auth\": {\"anonymous_scopes\": [\"%s\"]}}", good[i]);
        struct policy *p = compile(text, false);
        ck_assert_msg(p != NULL, "%s: %s", good[i], err.message);
        policy_unref(p);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(text, sizeof(text), "{\"auth\": {\"anonymous_scopes\": [\"%s\"]}}", bad[i]);
        refused(text, "is not a scope");
    }
}
END_TEST

START_TEST(sizes_are_read_with_their_units)
{
    static const struct {
        const char *text;
        long long bytes; /* 0: refused */
    } cases[] = {{"1", 1},           {"1KB", 1000},       {"1 KiB", 1024},     {"1.5kb", 1500},
                 {" 2  MB ", 2000000}, {"1GiB", 1073741824}, {"5b", 5},        {"007", 7},
                 {"1.9", 1},         {"1.001KB", 1000},   {"0", 0},            {"0.5", 0},
                 {"1K", 0},          {"1TB", 0},          {"1e3", 0},          {"1.", 0},
                 {".5KB", 0},        {"-5", 0},           {"+5", 0},           {"1,000", 0},
                 {"", 0},            {"KB", 0},           {"99999999999GB", 0}, {"5 parsecs", 0}};
    char text[128];

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(text, sizeof(text), "{\"endpoints\": {\"shell\": {\"limits\": {\"max_output_bytes\": \"%s\"}}}}",
                 cases[i].text);
        if (!cases[i].bytes) {
            refused(text, "policy.endpoints.shell.limits.max_output_bytes: invalid size");
            continue;
        }
        struct policy *p = compile(text, false);
        ck_assert_msg(p != NULL, "%s: %s", cases[i].text, err.message);
        ck_assert_int_eq(rule_limit(policy_find(p, "shell"), LIMIT_max_output_bytes, 0), cases[i].bytes);
        policy_unref(p);
    }
}
END_TEST

START_TEST(knobs_that_an_endpoint_lacks_are_refused_only_where_it_is_named)
{
    refused("{\"endpoints\": {\"ports\": {\"limits\": {\"max_bytes\": 5}}}}",
            "policy.endpoints.ports.limits.max_bytes: not applicable to endpoint 'ports'");
    refused("{\"endpoints\": {\"ports\": {\"paths\": {}}}}", "policy.endpoints.ports.paths: not applicable");
    refused("{\"endpoints\": {\"shell\": {\"params\": {\"overwrite\": true}}}}",
            "policy.endpoints.shell.params.overwrite: not applicable");
    struct policy *p =
        compile("{\"endpoints\": {\"*\": {\"limits\": {\"max_results\": 3}, \"params\": {\"overwrite\": false}}}}",
                false);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(rule_limit(policy_find(p, "files_search"), LIMIT_max_results, 0), 3);
    ck_assert_uint_eq(policy_find(p, "ports")->limits_set, 0);
    policy_unref(p);
}
END_TEST

START_TEST(broken_command_patterns_are_refused_at_load)
{
    refused("{\"endpoints\": {\"shell\": {\"params\": {\"allow_commands\": [\"\"]}}}}",
            "policy.endpoints.shell.params.allow_commands:");
    refused("{\"endpoints\": {\"*\": {\"params\": {\"deny_commands\": [\"a ... ... ... ...\"]}}}}",
            "policy.endpoints.*.params.deny_commands:");
}
END_TEST

START_TEST(health_keeps_its_callers)
{
    refused("{\"endpoints\": {\"health\": {\"scopes\": [\"a\"]}}}", "nobody could reach it");
    struct policy *p = compile("{\"endpoints\": {\"*\": {\"scopes\": [\"admin:all\"]}}}", false);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(policy_permits(policy_find(p, "health"), policy_nobody(), NULL, &err), 0);
    ck_assert_int_eq(policy_permits(policy_find(p, "ports"), policy_nobody(), NULL, &err), -1);
    policy_unref(p);
}
END_TEST

START_TEST(the_revision_is_that_of_the_reference)
{
    revision_is("{}", false, "2430f1a2ad2982d0");
    revision_is("{\"version\":1}", false, "2430f1a2ad2982d0");
    revision_is("version: 1\n", true, "2430f1a2ad2982d0");
    revision_is("{\"preset\": \"hardened\"}", false, "e2320bfc13232e38");
    revision_is("{\"preset\": \"read-only\", \"description\": \"\xc3\xa9\xf0\x9f\x98\x80\"}", false,
                "e0e9a27b7e33473e");
    revision_is("{\"endpoints\": {\"shell\": {\"limits\": {\"max_request_bytes\": \"1\"}}}}", false,
                "e6a7adb7077703a1");
}
END_TEST

START_TEST(yaml_scalars_read_as_safe_load_reads_them)
{
    /* The text of `description` enters the revision: these come from the reference. */
    static const char *const cases[][2] = {
        {"hi", "3515ea32f9e96f94"},      {"2020-01-01", "0153fcf8599ed7b4"}, {"1:30", "0e2d989c35e0a8b6"},
        {"0o17", "d3922bd4b3fb164a"},    {"017", "cc6689c0da386f2d"},        {"0x1F", "fc908f2564384b1d"},
        {"1_000", "14f3fde75be6c7de"},   {"1e3", "c005772a4db63b6a"},        {"1.5e+3", "b3907854a6abb76b"},
        {".5", "7d4d4efd7c53eff6"},      {"1.", "5ef7d4221d05d48b"},         {"yes", "4b5f594980542cd2"},
        {"y", "c08d8593b8f8b4ae"},       {"Off", "4d12113e8da5cd27"},        {"~", "228f37c74978b266"},
        {"", "228f37c74978b266"},        {"!!str 5", "9210b08d6991a9d2"},    {"!!int '5'", "9210b08d6991a9d2"},
        {"0b11", "e38338a00226d590"},    {"-0x1f", "3ecd36b0dd0ea934"},      {"190:20:30.15", "dbf264fbf842de04"},
        {"09", "4040f93257c19f0f"},      {"1__0", "fe6fe42eedb12748"},       {".", "ec69942c32fbec1e"},
        {"1.e+5", "84ff8c6e9850f969"},   {"-1_0.5", "0ccd8b38357f5192"},     {"1:60", "8d644b9164ac0ebd"},
        {"'5'", "9210b08d6991a9d2"},     {"[a, 'b', 1.0, {x: y}]", "27c74630aee4c9c1"},
        {"|\n  a\n  b\n", "eb35e8c062d5a6f8"}, {"\"a\\u00e9\"", "6f6376e71626be31"}};
    char text[128];

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(text, sizeof(text), "description: %s\n", cases[i][0]);
        revision_is(text, true, cases[i][1]);
    }
}
END_TEST

START_TEST(yaml_that_json_has_no_word_for_is_refused)
{
    static const char *const cases[] = {"",
                                        "~",
                                        "- a\n",
                                        "a: &x 1\nversion: *x\n",
                                        "endpoints: &x {shell: *x}\n",
                                        "version: 1\n---\nversion: 1\n",
                                        "endpoints: {shell: {<<: {enabled: false}}}\n",
                                        "endpoints: {files_stat: {paths: {deny: [2020-01-01]}}}\n",
                                        "endpoints: {shell: {limits: {timeout_seconds: .inf}}}\n",
                                        "endpoints: {shell: {limits: {timeout_seconds: 99999999999999999999}}}\n",
                                        "description: !foo 5\n",
                                        "description: =\n",
                                        "on: true\n",
                                        "? [a]\n: 1\n",
                                        "\tversion: 1\n",
                                        "version: [1\n",
                                        "description: \xff\n"};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct policy *p = compile(cases[i], true);
        ck_assert_msg(p == NULL, "accepted: %s", cases[i]);
        ck_assert_int_eq(err.kind, E_CONFIG);
    }
    char deep[300] = "description: ";
    memset(deep + 13, '[', 200);
    ck_assert_ptr_null(compile(deep, true));
}
END_TEST

START_TEST(a_document_has_a_greatest_size)
{
    size_t n = 1024 * 1024 + 1;
    autofree char *text = malloc(n);
    struct policy_doc *doc = NULL;

    memset(text, ' ', n);
    memcpy(text, "{}", 2);
    ck_assert_int_eq(policy_doc_parse(text, n, false, "test", &doc, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "1 MiB"));
    ck_assert_int_eq(policy_doc_parse(text, n - 1, false, "test", &doc, &err), 0);
    policy_doc_free(doc);
}
END_TEST

static const char *inline_env(const char *name)
{
    if (strcmp(name, "ABX_SERVER_POLICY") == 0)
        return "{\"preset\": \"locked\"}";
    return strcmp(name, "ABX_SERVER_POLICY_FILE") == 0 ? "/nowhere/policy.json" : NULL;
}

static const char *file_env(const char *name)
{
    return strcmp(name, "ABX_SERVER_POLICY_FILE") == 0 ? "/nowhere/policy.json" : NULL;
}

static void found(const struct policy_source *src, const char *revision)
{
    struct policy_doc *doc = NULL;
    struct policy *p = NULL;

    ck_assert_msg(policy_doc_resolve(src, &doc, &err) == 0, "%s", err.message);
    struct policy_inputs in = {.doc = doc};
    ck_assert_int_eq(policy_compile(&in, &p, &err), 0);
    ck_assert_str_eq(policy_revision(p), revision);
    policy_unref(p);
    policy_doc_free(doc);
}

START_TEST(the_document_is_found_where_the_contract_says)
{
    struct policy_doc *doc = NULL;

    found(&(struct policy_source){.preset = "hardened", .getenv = file_env}, "e2320bfc13232e38");
    struct policy_source src = {.getenv = inline_env};
    ck_assert_int_eq(policy_doc_resolve(&src, &doc, &err), 0); /* inline wins over the file */
    policy_doc_free(doc);
    src.getenv = file_env;
    ck_assert_int_eq(policy_doc_resolve(&src, &doc, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "/nowhere/policy.json"));
    src = (struct policy_source){.preset = "lockd", .getenv = no_env};
    ck_assert_int_eq(policy_doc_resolve(&src, &doc, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "did you mean 'locked'?"));
    ck_assert_int_eq(policy_doc_load("/tmp", &doc, &err), -1);
}
END_TEST

TEST_MAIN("policy_document", unknown_words_are_refused_with_a_suggestion,
          wrong_types_are_refused_and_the_place_is_named, tokens_need_an_id_scopes_and_one_secret,
          scopes_have_a_grammar, sizes_are_read_with_their_units,
          knobs_that_an_endpoint_lacks_are_refused_only_where_it_is_named,
          broken_command_patterns_are_refused_at_load, health_keeps_its_callers,
          the_revision_is_that_of_the_reference, yaml_scalars_read_as_safe_load_reads_them,
          yaml_that_json_has_no_word_for_is_refused, a_document_has_a_greatest_size,
          the_document_is_found_where_the_contract_says)
