/* Layers and merging, identities, limits, discovery, lint. */

#include "base/own.h"
#include "sample.h"

#include "../check_main.h"
#include <stdio.h>
#include <string.h>

static struct abx_error err;
static struct policy *policy;

static const char *test_env(const char *name)
{
    return strcmp(name, "OPS_TOKEN") == 0 ? "ops-secret" : NULL;
}

static const char *wiped_env(const char *name)
{
    return "*****";
}

static int compile(const char *text, const char *groups, const int8_t *code, const struct policy *previous)
{
    const struct endpoint *endpoints[SAMPLE_COUNT];
    struct policy_doc *doc = NULL;

    for (size_t i = 0; i < SAMPLE_COUNT; i++)
        endpoints[i] = &sample[i];
    ck_assert_msg(policy_doc_parse(text, strlen(text), false, "test", &doc, &err) == 0, "%s", err.message);
    struct policy_inputs in = {.doc = doc,
                               .endpoints = endpoints,
                               .n_endpoints = SAMPLE_COUNT,
                               .enabled_groups = groups,
                               .base_dir = "/srv",
                               .getenv = previous ? wiped_env : test_env,
                               .previous = previous};
    if (code)
        memcpy(in.code_groups, code, sizeof(in.code_groups));
    int rc = policy_compile(&in, &policy, &err);
    policy_doc_free(doc);
    return rc;
}

static void use(const char *text, const char *groups)
{
    ck_assert_msg(compile(text, groups, NULL, NULL) == 0, "%s", err.message);
}

static void done(void)
{
    policy_unref(policy);
    policy = NULL;
}

static void on(const char *id)
{
    ck_assert_msg(policy_find(policy, id)->enabled, "%s is off", id);
    ck_assert_ptr_null(policy_find(policy, id)->origin);
}

static void off(const char *id, const char *origin)
{
    ck_assert_msg(!policy_find(policy, id)->enabled, "%s is on", id);
    ck_assert_str_eq(policy_find(policy, id)->origin, origin);
}

START_TEST(opt_in_groups_are_off_until_asked_for)
{
    use("{}", NULL);
    off("code_run", "default:opt-in:dev_tools");
    on("shell");
    done();
    use("{\"groups\": [\"dev_tools\"]}", NULL);
    on("code_run");
    done();
    use("{\"groups\": {\"dev_tools\": false}}", " browser , dev_tools ,core,,");
    on("code_run");
    done();
    use("{\"endpoints\": {\"code_run\": {\"enabled\": true}}}", NULL);
    on("code_run");
    off("git_status", "default:opt-in:dev_tools");
    done();
    ck_assert_int_eq(compile("{}", "dev_tols", NULL, NULL), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "did you mean 'dev_tools'?"));
}
END_TEST

START_TEST(kind_beats_rank)
{
    use("{\"preset\": \"transfer-only\"}", "process");
    off("shell", "preset:transfer-only:endpoints.*");
    on("files_upload_stream");
    done();
    use("{\"preset\": \"read-only\", \"groups\": [\"process\"]}", NULL);
    on("shell");
    done();
    use("{\"preset\": \"read-only\", \"endpoints\": {\"*\": {\"enabled\": true}}}", NULL);
    on("code_run");
    off("files_mkdir", "preset:read-only:endpoints.files_mkdir");
    done();
    use("{\"endpoints\": {\"files_*\": {\"enabled\": true}, \"*list\": {\"enabled\": false}}}", NULL);
    off("files_list", "policy:endpoints.*list");
    done();
    use("{\"groups\": {\"process\": false}, \"endpoints\": {\"process_*\": {\"enabled\": true}}}", NULL);
    on("process_list");
    off("shell", "policy:groups.process");
    done();
    use("{\"defaults\": {\"enabled\": false}, \"endpoints\": {\"ports\": {\"enabled\": true}}}", NULL);
    off("shell", "policy:defaults");
    on("ports");
    on("health");
    on("capabilities");
    done();
    use("{\"endpoints\": {\"env_?et\": {\"enabled\": false}, \"[p]*s\": {\"enabled\": false}}}", NULL);
    off("env_get", "policy:endpoints.env_?et");
    off("ports", "policy:endpoints.[p]*s");
    done();
}
END_TEST

START_TEST(an_endpoint_that_belongs_to_another_has_its_rules_and_its_own)
{
    use("{\"endpoints\": {\"files_upload_stream\": {\"enabled\": false}}}", NULL);
    off("files_extract", "policy:endpoints.files_upload_stream");
    done();
    use("{\"endpoints\": {\"files_extract\": {\"enabled\": false}}}", NULL);
    off("files_extract", "policy:endpoints.files_extract");
    on("files_upload_stream");
    done();
    use("{\"endpoints\": {\"files_up*\": {\"enabled\": false}}}", NULL);
    off("files_extract", "policy:endpoints.files_up*");
    done();
    /* Either's no is one; else its own word is the last, wherever it stands. */
    use("{\"endpoints\": {\"files_extract\": {\"enabled\": true, \"limits\": {\"max_bytes\": 5}},"
        " \"files_upload_stream\": {\"limits\": {\"max_bytes\": 9}, \"params\": {\"deny_extensions\": [\".sh\"]}}}}",
        NULL);
    on("files_extract");
    const struct rule *own = policy_find(policy, "files_extract");
    ck_assert_int_eq(rule_limit(own, LIMIT_max_bytes, 0), 5);
    ck_assert_int_eq(rule_limit(policy_find(policy, "files_upload_stream"), LIMIT_max_bytes, 0), 9);
    ck_assert_str_eq(rule_list(own, PARAM_deny_extensions)->items[0], ".sh");
    done();
    use("{\"endpoints\": {\"files_extract\": {\"enabled\": true}, \"files_upload_stream\": {\"enabled\": false}}}", NULL);
    off("files_extract", "policy:endpoints.files_upload_stream");
    done();
    use("{\"preset\": \"transfer-only\"}", NULL);
    on("files_extract");
    done();
    use("{\"preset\": \"read-only\"}", NULL);
    off("files_extract", "preset:read-only:endpoints.files_upload_stream");
    done();
}
END_TEST

START_TEST(code_turns_groups_on_and_off_below_the_policy)
{
    int8_t code[GROUP_COUNT] = {[G_DEV_TOOLS] = 1, [G_PROCESS] = -1, [G_CORE] = -1};

    ck_assert_int_eq(compile("{}", NULL, code, NULL), 0);
    on("code_run");
    off("shell", "code:disable_group:process");
    on("health");
    done();
    ck_assert_int_eq(compile("{\"groups\": [\"process\"]}", NULL, code, NULL), 0);
    on("shell");
    done();
}
END_TEST

START_TEST(the_last_word_wins_key_by_key)
{
    use("{\"defaults\": {\"limits\": {\"max_request_bytes\": 100, \"rate_per_minute\": 5}},"
        " \"endpoints\": {\"s*\": {\"limits\": {\"max_request_bytes\": 50}},"
        " \"shell*\": {\"limits\": {\"max_request_bytes\": 200}, \"scopes\": []},"
        " \"shell\": {\"limits\": {\"timeout_seconds\": 2.5}, \"scopes\": [\"process:run\", \"ops:shell\"]}}}",
        NULL);
    const struct rule *r = policy_find(policy, "shell");
    ck_assert_int_eq(rule_limit(r, LIMIT_max_request_bytes, 0), 200);
    ck_assert_int_eq(rule_limit(r, LIMIT_rate_per_minute, 0), 5);
    ck_assert(rule_seconds(r, LIMIT_timeout_seconds, 0) == 2.5);
    ck_assert_int_eq(r->scopes.n, 2);
    ck_assert_str_eq(r->scopes.items[1], "ops:shell");
    ck_assert_int_eq(rule_limit(policy_find(policy, "ports"), LIMIT_max_request_bytes, 0), 100);
    done();
}
END_TEST

START_TEST(lists_that_deny_are_joined_and_those_that_allow_replaced)
{
    use("{\"endpoints\": {\"*\": {\"paths\": {\"deny\": [\"a\", \"b\", \"a\"], \"allow\": [\"/x\"]},"
        " \"params\": {\"deny_commands\": [\"rm\"], \"allow_commands\": [\"ls\"]}},"
        " \"shell\": {\"paths\": {\"deny\": [\"c\", \"b\"], \"allow\": [\"/y\"]},"
        " \"params\": {\"deny_commands\": [\"dd\", \"rm\"], \"allow_commands\": [\"cat\", \"dd\"]}}}}",
        NULL);
    const struct rule *r = policy_find(policy, "shell");
    ck_assert_int_eq(r->deny.n, 3);
    ck_assert_str_eq(r->deny.items[2], "c");
    ck_assert_int_eq(r->allow.n, 1);
    ck_assert_str_eq(r->allow.items[0], "/y");
    ck_assert_int_eq(rule_list(r, PARAM_deny_commands)->n, 2);
    ck_assert_str_eq(rule_list(r, PARAM_deny_commands)->items[1], "dd");
    ck_assert_int_eq(rule_list(r, PARAM_allow_commands)->n, 2);
    ck_assert_int_eq(policy_find(policy, "files_stat")->deny.n, 2);
    ck_assert_int_eq(policy_find(policy, "ports")->deny.n, 0);
    done();
}
END_TEST

START_TEST(what_is_forbidden_stays_forbidden)
{
    use("{\"preset\": \"hardened\", \"defaults\": {\"paths\": {\"symlinks\": \"never\"}},"
        " \"endpoints\": {\"files_*\": {\"paths\": {\"read_only\": true}},"
        " \"files_stat\": {\"paths\": {\"read_only\": false, \"symlinks\": \"within\"}}}}",
        NULL);
    ck_assert(policy_find(policy, "files_stat")->read_only);
    ck_assert(policy_find(policy, "files_stat")->symlinks_never);
    ck_assert(policy_find(policy, "shell")->symlinks_never);
    ck_assert(!policy_find(policy, "shell")->read_only);
    ck_assert_int_eq(policy_find(policy, "files_stat")->deny.n, 9);
    done();
}
END_TEST

START_TEST(equal_rules_share_a_guard)
{
    use("{\"endpoints\": {\"files_*\": {\"paths\": {\"deny\": [\"x\"]}}}}", NULL);
    ck_assert_ptr_eq(policy_find(policy, "files_stat")->guard, policy_find(policy, "files_list")->guard);
    ck_assert_ptr_eq(policy_find(policy, "ports")->guard, policy_find(policy, "shell")->guard);
    ck_assert_ptr_ne(policy_find(policy, "ports")->guard, policy_find(policy, "files_stat")->guard);
    ck_assert_str_eq(guard_base_dir(policy_find(policy, "ports")->guard), "/srv");
    done();
    use("{\"base_dir\": \"/data\"}", NULL);
    ck_assert_str_eq(policy_base_dir(policy), "/data");
    done();
}
END_TEST

/* --- identities --- */

static const struct identity *caller(const struct credential *creds, size_t n)
{
    const struct identity *who = NULL;
    return policy_authenticate(policy, creds, n, &who, &err) == 0 ? who : NULL;
}
#define BEARER(s) {true, s, sizeof(s) - 1}
#define ACCESS(s) {false, s, sizeof(s) - 1}
#define CALLER(...) caller((struct credential[]){__VA_ARGS__}, sizeof((struct credential[]){__VA_ARGS__}) / \
                                                                   sizeof(struct credential))

/* Two tokens: sha256("a") given by hash in capitals, and one from the environment. */
static const char two_tokens[] =
    "{\"auth\": {\"tokens\": [{\"id\": \"ay\", \"scopes\": [\"files:*\", \"a:b\", \"files:*\"], \"token_sha256\":"
    " \"CA978112CA1BBDCAFAC231B39A23DC4DA786EFF8147C4E72B9807785AFEE48BB\"},"
    " {\"id\": \"ops\", \"scopes\": [\"process:run\"], \"token_env\": \"OPS_TOKEN\"}]}}";

START_TEST(who_brings_no_right_token_is_refused)
{
    use(two_tokens, NULL);
    ck_assert_ptr_null(caller(NULL, 0));
    ck_assert_int_eq(err.status, 401);
    ck_assert_ptr_null(CALLER(ACCESS("b")));
    ck_assert_ptr_null(CALLER(ACCESS("")));
    ck_assert_ptr_null(CALLER(BEARER("")));
    ck_assert_ptr_null(CALLER(ACCESS("ops-secre")));
    ck_assert_ptr_null(CALLER(ACCESS("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb")));
    ck_assert_ptr_null(CALLER(ACCESS("a"), ACCESS("")));
    ck_assert_int_eq(err.kind, E_AMBIGUOUS_CREDENTIALS);
    ck_assert_ptr_null(CALLER(ACCESS("a"), ACCESS("b")));
    ck_assert_int_eq(err.kind, E_AMBIGUOUS_CREDENTIALS);
    done();
}
END_TEST

START_TEST(the_first_matching_credential_is_the_caller)
{
    use(two_tokens, NULL);
    ck_assert_str_eq(CALLER(ACCESS("a"))->id, "ay");
    ck_assert_str_eq(CALLER(ACCESS(" a "))->id, "ay");
    ck_assert_str_eq(CALLER(BEARER("ops-secret"))->id, "ops");
    ck_assert_str_eq(CALLER(BEARER("gateway"), ACCESS("a"))->id, "ay");
    ck_assert_str_eq(CALLER(BEARER("gateway"), BEARER("ops-secret"))->id, "ops");
    ck_assert_str_eq(CALLER(ACCESS("a"), BEARER("ops-secret"))->id, "ops");
    ck_assert_str_eq(CALLER(ACCESS("a"), ACCESS("a"))->id, "ay");
    const struct identity *who = CALLER(ACCESS("a"));
    ck_assert_int_eq(who->scopes.n, 2);
    ck_assert_str_eq(who->scopes.items[0], "a:b");
    done();
}
END_TEST

START_TEST(anonymous_callers_get_what_the_policy_says)
{
    use("{}", NULL);
    ck_assert(identity_has(caller(NULL, 0), "process:run"));
    ck_assert_str_eq(CALLER(ACCESS("gateway"))->id, "anonymous");
    ck_assert_ptr_null(CALLER(ACCESS("x"), ACCESS("y")));
    done();
    use("{\"auth\": {\"anonymous_scopes\": [\"files:read\"]}}", NULL);
    ck_assert(identity_has(caller(NULL, 0), "files:read"));
    ck_assert(!identity_has(caller(NULL, 0), "files:write"));
    done();
#define BESIDE "\"tokens\": [{\"id\": \"a\", \"scopes\": [], \"token_env\": \"OPS_TOKEN\"}]"
    use("{\"auth\": {\"allow_anonymous\": true, " BESIDE "}}", NULL);
    ck_assert_int_eq(caller(NULL, 0)->scopes.n, 0);
    ck_assert_ptr_null(CALLER(ACCESS("wrong")));
    done();
    use("{\"auth\": {\"allow_anonymous\": true, \"anonymous_scopes\": [\"*\"], " BESIDE "}}", NULL);
    ck_assert(identity_has(caller(NULL, 0), "files:write"));
    done();
}
END_TEST

START_TEST(scopes_match_exactly_or_by_name_space)
{
    const char *held[] = {"a:*", "b:c", "plain"};
    struct identity who = {.id = "x", .scopes = {3, held}};

    ck_assert(identity_has(&who, "core:read"));
    ck_assert(identity_has(&who, "a:b"));
    ck_assert(identity_has(&who, "a:b:c"));
    ck_assert(identity_has(&who, "b:c"));
    ck_assert(identity_has(&who, "plain"));
    ck_assert(!identity_has(&who, "b:d"));
    ck_assert(!identity_has(&who, "ab:c"));
    ck_assert(!identity_has(&who, "a"));
    ck_assert(!identity_has(&who, "plain:x"));
}
END_TEST

START_TEST(a_reload_keeps_hashes_whose_variables_are_wiped)
{
    use(two_tokens, NULL);
    struct policy *former = policy;
    ck_assert_int_eq(compile(two_tokens, NULL, NULL, former), 0);
    policy_unref(former);
    ck_assert_str_eq(CALLER(BEARER("ops-secret"))->id, "ops");
    done();
}
END_TEST

START_TEST(the_server_token_is_an_identity_and_stays_out_of_the_revision)
{
    static const char *const tokens[] = {"a", "bb"};
    for (size_t i = 0; i < 2; i++) {
        struct policy_doc *doc = policy_doc_empty();
        ck_assert_int_eq(policy_doc_add_server_token(doc, tokens[i], &err), 0);
        ck_assert_str_eq(policy_doc_token_envs(doc)[0], "ABX_SERVER_TOKEN");
        struct policy_inputs in = {.doc = doc, .getenv = test_env};
        ck_assert_int_eq(policy_compile(&in, &policy, &err), 0);
        policy_doc_free(doc);
        ck_assert_str_eq(policy_revision(policy), "d1ef803dd4ff43bb");
        ck_assert(policy_configured(policy));
        struct credential c = {true, tokens[i], strlen(tokens[i])};
        ck_assert_str_eq(caller(&c, 1)->id, "server");
        ck_assert_ptr_null(caller(NULL, 0));
        done();
    }
}
END_TEST

/* --- limits --- */

static int admit(struct limits *l, const char *id, const char *who, uint64_t now, struct limit_slot **slot)
{
    struct identity identity = {.id = who};
    int wait = 0;
    if (limits_admit(l, policy_find(policy, id), &identity, now, slot, &wait, &err) == 0)
        return 0;
    return wait;
}

START_TEST(a_bucket_starts_full_and_refills_with_time)
{
    struct limits *l = limits_new();
    struct limit_slot *slot;

    use("{\"endpoints\": {\"group:system\": {\"limits\": {\"rate_per_minute\": 2}}}}", NULL);
    ck_assert_int_eq(admit(l, "ports", "a", 1000, &slot), 0);
    ck_assert_int_eq(admit(l, "ports", "a", 1000, &slot), 0);
    ck_assert_int_eq(admit(l, "ports", "a", 1000, &slot), 30);
    ck_assert_int_eq(err.kind, E_RATE_LIMITED);
    ck_assert_int_eq(admit(l, "ports", "a", 30999, &slot), 1);
    ck_assert_int_eq(admit(l, "ports", "a", 31000, &slot), 0);
    ck_assert_int_eq(admit(l, "ports", "b", 1000, &slot), 0);
    ck_assert_int_eq(admit(l, "env_get", "a", 1000, &slot), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(admit(l, "ports", "a", 10000000, &slot), 0);
    ck_assert_int_eq(admit(l, "ports", "a", 10000000, &slot), 30);
    limits_free(l);
    done();
}
END_TEST

START_TEST(slots_are_counted_for_each_caller_and_given_back)
{
    struct limits *l = limits_new();
    struct limit_slot *one, *two;

    use("{\"endpoints\": {\"shell\": {\"limits\": {\"max_concurrency\": 1}}}}", NULL);
    ck_assert_int_eq(admit(l, "shell", "a", 0, &one), 0);
    ck_assert_ptr_nonnull(one);
    ck_assert_int_eq(admit(l, "shell", "a", 0, &two), 1);
    ck_assert_int_eq(err.kind, E_CONCURRENCY_LIMITED);
    ck_assert_ptr_null(two);
    ck_assert_int_eq(admit(l, "shell", "b", 0, &two), 0);
    limits_release(one);
    limits_release(two);
    limits_release(NULL);
    ck_assert_int_eq(admit(l, "shell", "a", 0, &one), 0);
    limits_release(one);
    limits_free(l);
    done();
}
END_TEST

START_TEST(a_rate_of_its_own_is_counted_alone)
{
    struct identity me = {.id = "me"};
    struct limit_slot *slot;
    int wait;
    struct limits *l = limits_new();
    use("{\"endpoints\": {\"files_upload_stream\": {\"limits\": {\"rate_per_minute\": 2}}}}", NULL);
    ck_assert_int_eq(limits_admit(l, policy_find(policy, "files_extract"), &me, 1000, &slot, &wait, &err), 0);
    ck_assert_int_eq(limits_admit(l, policy_find(policy, "files_upload_stream"), &me, 1000, &slot, &wait, &err), 0);
    ck_assert_int_eq(limits_admit(l, policy_find(policy, "files_extract"), &me, 1000, &slot, &wait, &err), -1);
    done();
    limits_free(l);
    l = limits_new();
    use("{\"endpoints\": {\"files_upload_stream\": {\"limits\": {\"rate_per_minute\": 100}},"
        " \"files_extract\": {\"limits\": {\"rate_per_minute\": 1}}}}", NULL);
    ck_assert_int_eq(limits_admit(l, policy_find(policy, "files_extract"), &me, 1000, &slot, &wait, &err), 0);
    ck_assert_int_eq(limits_admit(l, policy_find(policy, "files_extract"), &me, 1000, &slot, &wait, &err), -1);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(limits_admit(l, policy_find(policy, "files_upload_stream"), &me, 1000, &slot, &wait, &err), 0);
    done();
    limits_free(l);
}
END_TEST

START_TEST(counters_of_the_gone_are_dropped)
{
    struct limits *l = limits_new();
    struct limit_slot *held, *slot;
    char who[16];

    use("{\"endpoints\": {\"shell\": {\"limits\": {\"max_concurrency\": 1, \"rate_per_minute\": 1}}}}", NULL);
    ck_assert_int_eq(admit(l, "shell", "held", 0, &held), 0);
    for (int i = 0; i < 10000; i++) {
        snprintf(who, sizeof(who), "w%d", i);
        ck_assert_int_eq(admit(l, "shell", who, (uint64_t)i * 100000, &slot), 0);
        limits_release(slot);
    }
    ck_assert_int_gt(admit(l, "shell", "held", 2000000000, &slot), 0); /* still in use */
    limits_release(held);
    limits_free(l);
    done();
}
END_TEST

/* --- discovery and lint --- */

START_TEST(discovery_tells_limits_only_to_whom_they_concern)
{
    use("{\"auth\": {\"tokens\": [{\"id\": \"r\", \"scopes\": [\"files:read\"], \"token_env\": \"OPS_TOKEN\"}]},"
        " \"endpoints\": {\"files_*\": {\"paths\": {\"deny\": [\"*.pem\"]}, \"limits\": {\"rate_per_minute\": 9}}}}",
        NULL);
    autojson json_t *doc = policy_capabilities(policy, CALLER(ACCESS("ops-secret")), "1", &err);
    ck_assert_ptr_nonnull(doc);
    const json_t *endpoints = json_object_get(doc, "endpoints");
    const json_t *stat = json_object_get(endpoints, "files_stat");
    ck_assert(json_is_true(json_object_get(stat, "allowed")));
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(stat, "limits"), "rate_per_minute")), 9);
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(stat, "paths"), "deny_count")), 1);
    const json_t *mkdir_ = json_object_get(endpoints, "files_mkdir");
    ck_assert_str_eq(json_string_value(json_object_get(mkdir_, "reason")), "missing_scope");
    ck_assert_ptr_null(json_object_get(mkdir_, "limits"));
    const json_t *code = json_object_get(endpoints, "code_run");
    ck_assert_str_eq(json_string_value(json_object_get(code, "reason")), "endpoint_disabled");
    autofree char *text = json_dumps(doc, 0);
    ck_assert_ptr_null(strstr(text, "pem"));
    done();
}
END_TEST

static const char *check_code(const char *question)
{
    static char code[64];
    autojson json_t *body = json_loads(question, JSON_ALLOW_NUL, NULL);
    autojson json_t *answer = policy_check(policy, caller(NULL, 0), body, &err);

    if (!answer)
        return NULL;
    const char *s = json_string_value(json_object_get(answer, "code"));
    snprintf(code, sizeof(code), "%s", s ? s : "allowed");
    return code;
}

START_TEST(questions_are_answered)
{
    use("{\"endpoints\": {\"files_*\": {\"paths\": {\"deny\": [\"secret\"], \"read_only\": true}}}}", NULL);
    ck_assert_str_eq(check_code("{\"endpoint\": \"nope\"}"), "unknown_endpoint");
    ck_assert_str_eq(check_code("{\"endpoint\": \"code_run\"}"), "endpoint_disabled");
    ck_assert_str_eq(check_code("{\"endpoint\": \"files_stat\", \"path\": \"/srv/x\"}"), "allowed");
    ck_assert_str_eq(check_code("{\"endpoint\": \"files_stat\", \"path\": \"/etc\"}"), "path_not_allowed");
    ck_assert_str_eq(check_code("{\"endpoint\": \"files_stat\", \"path\": \"/srv/secret/x\"}"), "path_denied");
    ck_assert_str_eq(check_code("{\"endpoint\": \"files_mkdir\", \"path\": \"/srv/x\"}"), "read_only");
    ck_assert_str_eq(check_code("{\"endpoint\": \"files_mkdir\", \"path\": \"/srv/x\", \"op\": \"read\"}"),
                     "allowed");
    ck_assert_str_eq(check_code("{\"endpoint\": \"files_stat\", \"path\": \"a\\u0000b\"}"), "invalid_path");
    ck_assert_str_eq(check_code("{\"endpoint\": \"files_stat\", \"paths\": [\"/srv/x\", \"/etc\"]}"),
                     "path_not_allowed");
    ck_assert_ptr_null(check_code("{}"));
    ck_assert_int_eq(err.status, 400);
    ck_assert_ptr_null(check_code("{\"endpoint\": 5}"));
    ck_assert_ptr_null(check_code("{\"endpoint\": \"files_stat\", \"path\": 5}"));
    ck_assert_ptr_null(check_code("{\"endpoint\": \"files_stat\", \"paths\": [1]}"));
    ck_assert_ptr_null(check_code("{\"endpoint\": \"files_stat\", \"op\": [\"read\"]}"));
    ck_assert_ptr_null(check_code("{\"endpoint\": \"files_stat\", \"op\": \"chmod\"}"));
    done();
}
END_TEST

static bool warns(const char *text, const char *groups, const char *with)
{
    use(text, groups);
    autojson json_t *warnings = policy_lint(policy, NULL);
    bool found = false;
    size_t i;
    const json_t *w;
    json_array_foreach (warnings, i, w)
        found = found || strncmp(json_string_value(w), with, strlen(with)) == 0;
    if (!*with)
        found = json_array_size(warnings) > 0;
    done();
    return found;
}

START_TEST(traps_are_warned_about)
{
    ck_assert(!warns("{}", NULL, ""));
    ck_assert(!warns("{\"preset\": \"hardened\"}", NULL, ""));
    ck_assert(warns("{\"endpoints\": {\"files_stat\": {\"paths\": {\"deny\": [\"x\"]}}}}", NULL,
                    "L1: identity 'anonymous' can use path-scoped endpoints (files_stat...) and also execute "
                    "programs via shell"));
    ck_assert(warns("{\"endpoints\": {\"files_stat\": {\"paths\": {\"allow\": [\"/x/..\"]}}}}", NULL, "L2:"));
    ck_assert(warns("{\"auth\": {\"tokens\": [{\"id\": \"a\", \"scopes\": [\"*\"], \"token_env\": \"OPS_TOKEN\"},"
                    " {\"id\": \"b\", \"scopes\": [], \"token_env\": \"OPS_TOKEN\"}]}}",
                    NULL, "L3:"));
    ck_assert(warns("{\"endpoints\": {\"files_upload_stream\": {\"params\": {\"overwrite\": false}}}}", NULL,
                    "L4: endpoint 'files_upload_stream'"));
    ck_assert(warns("{\"endpoints\": {\"zz*\": {\"enabled\": false}}}", NULL, "L6: policy:endpoints.zz*"));
    ck_assert(warns("{\"endpoints\": {\"process_*\": {\"limits\": {\"max_bytes\": 1}}}}", NULL, "L7:"));
    ck_assert(!warns("{\"endpoints\": {\"files_*\": {\"limits\": {\"max_bytes\": 1}}}}", NULL, "L7:"));
    ck_assert(warns("{\"preset\": \"transfer-only\", \"groups\": [\"process\"]}", NULL,
                    "L8: policy:groups.process has no effect: preset:transfer-only:endpoints.*"));
    ck_assert(warns("{\"preset\": \"transfer-only\"}", "process", "L8: environment:groups.process"));
    ck_assert(warns("{\"auth\": {\"allow_anonymous\": true, \"tokens\": [{\"id\": \"a\", \"scopes\": [],"
                    " \"token_env\": \"OPS_TOKEN\"}]}}",
                    NULL, "L9:"));
    ck_assert(warns("{\"endpoints\": {\"GET /open\": {\"scopes\": [\"a\"]}}}", NULL, "L10:"));
    ck_assert(warns("{\"endpoints\": {\"files_*\": {\"paths\": {\"read_only\": true}},"
                    " \"files_stat\": {\"paths\": {\"read_only\": false}}}}",
                    NULL, "L11: policy:endpoints.files_stat"));
}
END_TEST

START_TEST(suggestions_are_near_misses_only)
{
    const char *const words[] = {"enabled", "scopes", "audit", NULL};
    ck_assert_str_eq(suggest("enable", words), "enabled");
    ck_assert_str_eq(suggest("AUDIT", words), "audit");
    ck_assert_ptr_null(suggest("nope", words));
    ck_assert_ptr_null(suggest("", words));
}
END_TEST

TEST_MAIN("policy_rules", opt_in_groups_are_off_until_asked_for, kind_beats_rank,
          an_endpoint_that_belongs_to_another_has_its_rules_and_its_own,
          code_turns_groups_on_and_off_below_the_policy, the_last_word_wins_key_by_key,
          lists_that_deny_are_joined_and_those_that_allow_replaced, what_is_forbidden_stays_forbidden,
          equal_rules_share_a_guard, who_brings_no_right_token_is_refused,
          the_first_matching_credential_is_the_caller, anonymous_callers_get_what_the_policy_says,
          scopes_match_exactly_or_by_name_space, a_reload_keeps_hashes_whose_variables_are_wiped,
          the_server_token_is_an_identity_and_stays_out_of_the_revision,
          a_bucket_starts_full_and_refills_with_time, slots_are_counted_for_each_caller_and_given_back,
          a_rate_of_its_own_is_counted_alone, counters_of_the_gone_are_dropped, discovery_tells_limits_only_to_whom_they_concern,
          questions_are_answered, traps_are_warned_about, suggestions_are_near_misses_only)
