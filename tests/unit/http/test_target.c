#include "http/http.h"
#include "http/target.h"
#include "../check_main.h"

#include <string.h>

static struct arena arena;

static void path_is(const char *target, const char *path, const char *query)
{
    char *q;
    char *got = target_path(&arena, target, &q);
    if (!path) {
        ck_assert_msg(got == NULL, "%s gave %s", target, got);
        return;
    }
    ck_assert_str_eq(got, path);
    if (query)
        ck_assert_str_eq(q, query);
    else
        ck_assert_ptr_null(q);
}

START_TEST(target_is_cut_to_the_path_that_is_routed_on)
{
    path_is("health", NULL, NULL);
    path_is("", NULL, NULL);
    path_is("://x/a", NULL, NULL);
    path_is("ht1tp://x/a", NULL, NULL);
    path_is("/health", "/health", NULL);
    path_is("/", "/", NULL);
    path_is("///", "/", NULL);
    path_is("//a//b//", "/a//b", NULL);
    path_is("/a;x/b;y", "/a;x/b", NULL);
    path_is("/a/;y", "/a", NULL);
    path_is("/a?b=1#c", "/a", "b=1");
    path_is("/a#c?b=1", "/a", NULL);
    path_is("http://h:1/a/?q", "/a", "q");
    path_is("http://h", "/", NULL);
    path_is("http://h?x=1", "/", "x=1");
    path_is("/%73hell", "/%73hell", NULL);
    arena_done(&arena);
}
END_TEST

static int parse(const char *text, struct pair **pairs, size_t *n, struct abx_error *err)
{
    return query_parse(&arena, arena_strdup(&arena, text), pairs, n, err);
}

START_TEST(query_repeats_are_refused_after_decoding_and_blanks_do_not_count)
{
    struct pair *pairs;
    size_t n;
    struct abx_error err;
    ck_assert_int_eq(parse("a=1&%61=2", &pairs, &n, &err), -1);
    ck_assert_str_eq(err.code, "duplicate_parameter");
    ck_assert_int_eq(parse("a=&a=1&a", &pairs, &n, &err), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(parse("A=1&a=2", &pairs, &n, &err), 0);
    ck_assert_uint_eq(n, 2);
    arena_done(&arena);
}
END_TEST

START_TEST(query_values_are_decoded_once)
{
    struct pair *pairs;
    size_t n;
    struct abx_error err;
    ck_assert_int_eq(parse("a=%2B+%2525%26%3D%zz%4", &pairs, &n, &err), 0);
    ck_assert_str_eq(pairs[0].value, "+ %25&=%zz%4");
    ck_assert_int_eq(parse("a=caf%E9%00x", &pairs, &n, &err), 0);
    ck_assert_uint_eq(pairs[0].raw_len, 6);
    ck_assert_mem_eq(pairs[0].raw, "caf\xE9\0x", 6);
    ck_assert_mem_eq(pairs[0].value, "caf\xEF\xBF\xBD\0x", 8);
    arena_done(&arena);
}
END_TEST

/* --- the table ------------------------------------------------------------------------------------- */

static int nothing(struct req *req, struct resp *resp, struct abx_error *err)
{
    return 0;
}

static struct route make(const char *id, enum method m, const char *path)
{
    return (struct route){.ep = {.id = id, .method = m, .path = path, .group = G_COMMANDS}, .run = nothing};
}

static int build(struct route *a, struct route *b, struct abx_error *err)
{
    const struct route *routes[] = {a, b};
    const struct endpoint *endpoints[] = {&a->ep, &b->ep};
    struct policy_doc *doc = policy_doc_empty();
    struct policy *policy = NULL;
    struct site *site = NULL;
    struct policy_inputs in = {.doc = doc, .endpoints = endpoints, .n_endpoints = 2, .base_dir = "/tmp"};
    int rc = policy_compile(&in, &policy, err);
    if (rc == 0)
        rc = site_new(routes, 2, policy, NULL, NULL, &site, err);
    policy_unref(policy);
    site_unref(site);
    policy_doc_free(doc);
    return rc;
}

START_TEST(table_refuses_doubles_and_what_can_not_be_reached)
{
    struct abx_error err;
    struct route ok = make("ok", M_GET, "/ok/{id}");
    static const struct {
        const char *id, *path;
        int rc;
    } rows[] = {{"ok", "/x", -1},        {"x", "/ok/{name}", -1}, {"x", "ok", -1},       {"x", "/x/", -1},
                {"x", "/a b", -1},       {"x", "/a?b", -1},       {"x", "/a//b", -1},    {"x", "/a{b}", -1},
                {"x", "/{}", -1},        {"x", "/{a}/{b}/{c}/{d}/{e}", -1}, {"x", "/ok/x", 0}, {"x", "/ok/{a}/b", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct route other = make(rows[i].id, M_GET, rows[i].path);
        ck_assert_msg(build(&ok, &other, &err) == rows[i].rc, "%s %s", rows[i].id, rows[i].path);
    }
    struct route post = make("post", M_POST, "/ok/{id}");
    ck_assert_int_eq(build(&ok, &post, &err), 0);
}
END_TEST

TEST_MAIN("target", target_is_cut_to_the_path_that_is_routed_on,
          query_repeats_are_refused_after_decoding_and_blanks_do_not_count, query_values_are_decoded_once,
          table_refuses_doubles_and_what_can_not_be_reached)
