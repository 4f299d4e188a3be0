#include "base/own.h"
#include "browser/browser.h"
#include "browser/cdp.h"
#include "browser/chrome.h"
#include "browser/keys.h"
#include "browser/socks.h"
#include "browser/value.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../turn.h"

/* --- messages ------------------------------------------------------------------------------- */

static int scan(const char *text, struct cdp_head *h) { return cdp_scan(text, strlen(text), h); }

START_TEST(broken_messages_are_refused)
{
    static const char *const bad[] = {"",           "[]",       "{",          "{\"id\":1",
                                      "{\"id\"1}",  "{id:1}",   "{\"a\":\"",  "{\"a\":[}",
                                      "{\"a\":1}x", "{\"a\":}", "{\"a\":1,}", "{\"a\\\":1}"};
    struct cdp_head h;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (scan(bad[i], &h) == 0)
            ck_assert_msg(strcmp(bad[i], "{\"a\":[}") == 0, "accepted: %s", bad[i]);
    }
}
END_TEST

START_TEST(top_level_members_are_found_whatever_is_inside)
{
    struct cdp_head h;
    ck_assert_int_eq(
        scan("{\"id\":7,\"result\":{\"id\":9,\"s\":\"}\\\"]\\\\\"},\"sessionId\":\"S\"}", &h), 0);
    ck_assert_int_eq(h.id, 7);
    ck_assert(cdp_is(h.session, "S"));
    ck_assert(cdp_is(h.result, "{\"id\":9,\"s\":\"}\\\"]\\\\\"}"));
    ck_assert_ptr_null(h.method.at);
    ck_assert_int_eq(scan(" { \"method\" : \"A.b\" , \"params\" : [1, 2] } ", &h), 0);
    ck_assert(cdp_is(h.method, "A.b"));
    ck_assert(cdp_is(h.params, "[1, 2]"));
    ck_assert_int_eq(h.id, 0);
}
END_TEST

START_TEST(lone_surrogates_become_replacement_characters)
{
    static const char text[] = "{\"a\":\"\\ud800x\\\\ud800 \\ud83d\\ude00 \\udc00\"}";
    autojson json_t *v = cdp_parse(text, sizeof text - 1);
    ck_assert_ptr_nonnull(v);
    ck_assert_str_eq(json_string_value(json_object_get(v, "a")),
                     "\uFFFDx\\ud800 \U0001F600 \uFFFD");
}
END_TEST

/* --- calls over pipes ------------------------------------------------------------------------ */

struct fixture {
    struct loop *loop;
    struct cdp *cdp;
    int to_us, from_us;
    int answers, code, events, closed;
    size_t size;
    char text[64];
};

static void on_event(void *owner, const struct cdp_head *h, const char *text, size_t len)
{
    struct fixture *f = owner;
    f->events++;
}

static void on_closed(void *owner, const char *why)
{
    struct fixture *f = owner;
    f->closed++;
}

static void on_answer(void *data, struct cdp_answer *a)
{
    struct fixture *f = data;
    f->answers++;
    f->code = a->code;
    f->size = a->size;
    const char *s = json_string_value(json_object_get(a->result, "v"));
    (void)snprintf(f->text, sizeof f->text, "%s", s ? s : a->message);
}

static void open_pair(struct fixture *f)
{
    static const struct cdp_ops ops = {.event = on_event, .closed = on_closed};
    int in[2], out[2];
    *f = (struct fixture){.loop = loop_new()};
    ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    f->to_us = in[1];
    f->from_us = out[0];
    f->cdp = cdp_new_pipe(f->loop, in[0], out[1], &ops, f, NULL);
    ck_assert_ptr_nonnull(f->cdp);
}

static void close_pair(struct fixture *f)
{
    cdp_free(f->cdp);
    for (int i = 0; i < 3; i++)
        uv_run(loop_uv(f->loop), UV_RUN_NOWAIT);
    if (f->to_us >= 0)
        close(f->to_us);
    close(f->from_us);
    loop_free(f->loop);
}

static void turn_until(struct fixture *f, const int *what, int n)
{
    for (int i = 0; i < 2000 && *what < n; i++) {
        uv_run(loop_uv(f->loop), UV_RUN_NOWAIT);
        usleep(500);
    }
    ck_assert_int_ge(*what, n);
}

static void say(struct fixture *f, const char *text)
{
    ck_assert_int_eq(write(f->to_us, text, strlen(text) + 1), (ssize_t)strlen(text) + 1);
}

START_TEST(answers_find_their_calls_in_any_order_and_cut)
{
    struct fixture f;
    open_pair(&f);
    cdp_send(f.cdp, NULL, "A.b", NULL, on_answer, &f);
    cdp_send(f.cdp, "S", "A.c", json_pack("{s:i}", "n", 1), on_answer, &f);
    char sent[200] = {0};
    ssize_t n = read(f.from_us, sent, sizeof sent - 1);
    ck_assert_int_gt(n, 0);
    ck_assert_ptr_nonnull(strstr(sent, "\"method\":\"A.b\""));
    ck_assert_ptr_nonnull(strstr(sent + strlen(sent) + 1, "\"sessionId\":\"S\""));
    ck_assert_int_eq(write(f.to_us, "{\"id\":2,\"resu", 13), 13);
    uv_run(loop_uv(f.loop), UV_RUN_NOWAIT);
    ck_assert_int_eq(f.answers, 0);
    say(&f, "lt\":{\"v\":\"two\"}}");
    turn_until(&f, &f.answers, 1);
    ck_assert_str_eq(f.text, "two");
    say(&f, "{\"method\":\"X.y\",\"params\":{}}");
    say(&f, "{\"id\":1,\"error\":{\"code\":-32601,\"message\":\"no such\"}}");
    turn_until(&f, &f.answers, 2);
    ck_assert_int_eq(f.code, -32601);
    ck_assert_str_eq(f.text, "no such");
    ck_assert_int_eq(f.events, 1);
    close_pair(&f);
}
END_TEST

START_TEST(a_forgotten_call_is_not_answered)
{
    struct fixture f;
    open_pair(&f);
    cdp_forget(cdp_send(f.cdp, NULL, "A.b", NULL, on_answer, &f));
    say(&f, "{\"id\":1,\"result\":{}}");
    say(&f, "{\"method\":\"X.y\"}");
    turn_until(&f, &f.events, 1);
    ck_assert_int_eq(f.answers, 0);
    close_pair(&f);
}
END_TEST

START_TEST(the_end_of_the_browser_answers_all_calls)
{
    struct fixture f;
    open_pair(&f);
    for (int i = 0; i < 100; i++)
        cdp_send(f.cdp, NULL, "A.b", NULL, on_answer, &f);
    close(f.to_us);
    f.to_us = -1;
    turn_until(&f, &f.closed, 1);
    ck_assert_int_eq(f.answers, 100);
    ck_assert_int_eq(f.code, CDP_CLOSED);
    cdp_send(f.cdp, NULL, "A.b", NULL, on_answer, &f);
    turn_until(&f, &f.answers, 101);
    close_pair(&f);
}
END_TEST

START_TEST(a_large_answer_is_parsed_whole)
{
    struct fixture f;
    open_pair(&f);
    cdp_send(f.cdp, NULL, "A.b", NULL, on_answer, &f);
    size_t len = 3 * MIB;
    autofree char *text = malloc(len + 64);
    int head = sprintf(text, "{\"id\":1,\"result\":{\"v\":\"");
    memset(text + head, 'x', len);
    memcpy(text + head + len, "\"}}", 4);
    size_t total = (size_t)head + len + 4, at = 0;
    ck_assert_int_eq(fcntl(f.to_us, F_SETFL, O_NONBLOCK), 0);
    while (at < total) {
        ssize_t n = write(f.to_us, text + at, total - at);
        if (n > 0)
            at += (size_t)n;
        uv_run(loop_uv(f.loop), UV_RUN_NOWAIT);
    }
    turn_until(&f, &f.answers, 1);
    ck_assert_int_eq(f.code, CDP_OK);
    ck_assert_uint_eq(f.size, total - 1);
    say(&f, "{\"method\":\"X.y\"}");
    turn_until(&f, &f.events, 1);
    close_pair(&f);
}
END_TEST

/* --- values --------------------------------------------------------------------------------- */

START_TEST(values_json_lacks_follow_the_rules)
{
    static const struct {
        const char *remote, *json;
    } cases[] = {
        {"{\"type\":\"undefined\"}", "null"},
        {"{\"type\":\"number\",\"unserializableValue\":\"NaN\"}", "null"},
        {"{\"type\":\"number\",\"unserializableValue\":\"-Infinity\"}", "null"},
        {"{\"type\":\"number\",\"unserializableValue\":\"-0\"}", "-0.0"},
        {"{\"type\":\"bigint\",\"unserializableValue\":\"10n\"}", "10"},
        {"{\"type\":\"bigint\",\"unserializableValue\":\"99999999999999999999n\"}",
         "\"99999999999999999999\""},
        {"{\"type\":\"string\",\"value\":\"a\"}", "\"a\""},
        {"{\"type\":\"boolean\",\"value\":false}", "false"},
        {"{\"type\":\"object\",\"subtype\":\"null\",\"value\":null}", "null"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        autojson json_t *remote = json_loads(cases[i].remote, 0, NULL);
        autojson json_t *v = value_of_remote(remote);
        autofree char *text = json_dumps(v, JSON_ENCODE_ANY);
        ck_assert_str_eq(text, cases[i].json);
    }
}
END_TEST

START_TEST(console_text_reads_like_the_console)
{
    static const struct {
        const char *remote, *text;
    } cases[] = {
        {"{\"type\":\"string\",\"value\":\"hello\"}", "hello"},
        {"{\"type\":\"number\",\"value\":5}", "5"},
        {"{\"type\":\"number\",\"value\":0.5}", "0.5"},
        {"{\"type\":\"undefined\"}", "undefined"},
        {"{\"type\":\"object\",\"description\":\"Object\",\"preview\":{\"properties\":[{\"name\":"
         "\"a\","
         "\"value\":\"1\"},{\"name\":\"b\",\"value\":\"x\"}]}}",
         "{a: 1, b: x}"},
        {"{\"type\":\"object\",\"subtype\":\"array\",\"description\":\"Array(2)\",\"preview\":{"
         "\"properties\":"
         "[{\"name\":\"0\",\"value\":\"1\"},{\"name\":\"1\",\"value\":\"2\"}]}}",
         "[1, 2]"},
        {"{\"type\":\"object\",\"subtype\":\"error\",\"description\":\"Error: x\"}", "Error: x"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        autojson json_t *remote = json_loads(cases[i].remote, 0, NULL);
        autobuf struct buf out = BUF_INIT;
        value_console_text(&out, remote);
        ck_assert_str_eq(buf_str(&out), cases[i].text);
    }
}
END_TEST

START_TEST(pdf_pages_are_those_of_the_root)
{
    static const char nested[] =
        "1 0 obj<</Type /Page\n>>endobj 2 0 obj<</Type /Pages\n/Count 3\n>>endobj "
        "3 0 obj<</Type /Pages\n/Kids []\n/Count 11\n>>endobj";
    ck_assert_int_eq(pdf_pages(nested, sizeof nested - 1), 11);
    ck_assert_int_eq(pdf_pages("", 0), 1);
    static const char cut[] = "/Type /Pages /Count ";
    ck_assert_int_eq(pdf_pages(cut, sizeof cut - 1), 1);
}
END_TEST

START_TEST(a_snapshot_names_what_can_be_used)
{
    static const char text[] =
        "[{\"nodeId\":\"1\",\"role\":{\"value\":\"RootWebArea\"},\"childIds\":[\"2\",\"3\",\"9\"]},"
        "{\"nodeId\":\"2\",\"ignored\":true,\"childIds\":[\"4\"]},"
        "{\"nodeId\":\"4\",\"role\":{\"value\":\"button\"},\"name\":{\"value\":\"Say \\\"hi\\\"\"},"
        "\"backendDOMNodeId\":12,\"childIds\":[\"5\"]},"
        "{\"nodeId\":\"5\",\"role\":{\"value\":\"StaticText\"},\"name\":{\"value\":\"Say\"}},"
        "{\"nodeId\":\"3\",\"role\":{\"value\":\"checkbox\"},\"name\":{\"value\":\"On\"},"
        "\"backendDOMNodeId\":13,"
        "\"properties\":[{\"name\":\"checked\",\"value\":{\"value\":\"true\"}}],\"childIds\":["
        "\"1\"]}]";
    autojson json_t *nodes = json_loads(text, 0, NULL);
    autobuf struct buf out = BUF_INIT;
    size_t refs = 0;
    (void)ax_write(&out, nodes, 0, 4096, &refs);
    ck_assert_ptr_nonnull(strstr(buf_str(&out), "- button \"Say \\\"hi\\\"\" [ref=e12]\n"));
    ck_assert_ptr_nonnull(strstr(out.data, "- checkbox \"On\" [checked] [ref=e13]\n"));
    ck_assert_uint_ge(refs, 2);
}
END_TEST

/* --- keys ----------------------------------------------------------------------------------- */

START_TEST(unknown_keys_are_refused)
{
    static const char *const bad[] = {"",    "Enterr",   "Hyper+a",     "Control+",
                                      "++a", "\xc3\xa4", "Control+Nope"};
    struct key k;
    int modifiers;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct abx_error err;
        ck_assert_msg(key_parse(bad[i], &k, &modifiers, &err) < 0, "accepted: %s", bad[i]);
        ck_assert_int_eq(err.status, 400);
    }
}
END_TEST

START_TEST(keys_carry_code_text_and_modifiers)
{
    struct key k;
    int modifiers;
    ck_assert_int_eq(key_parse("Control+Shift+ArrowLeft", &k, &modifiers, NULL), 0);
    ck_assert_str_eq(k.code, "ArrowLeft");
    ck_assert_int_eq(modifiers, KEY_CTRL | KEY_SHIFT);
    ck_assert_int_eq(key_parse("Control++", &k, &modifiers, NULL), 0);
    ck_assert_str_eq(k.code, "Equal");
    ck_assert_int_eq(key_parse("A", &k, &modifiers, NULL), 0);
    ck_assert_str_eq(k.code, "KeyA");
    ck_assert_int_eq(modifiers, KEY_SHIFT);
    ck_assert_int_eq(key_parse("F5", &k, &modifiers, NULL), 0);
    ck_assert_int_eq(k.vk, 116);
    for (uint32_t c = 0x20; c < 0x7F; c++)
        ck_assert(key_of_char(c, &k));
    ck_assert(!key_of_char(0xE4, &k));
    ck_assert(key_of_char('\n', &k));
    ck_assert_str_eq(k.key, "Enter");
}
END_TEST

/* --- the way out ------------------------------------------------------------------------------ */

struct route_test {
    struct loop *loop;
    struct socks *socks;
    uv_tcp_t target;
    int port, done;
};

static bool judge(void *owner, const char *host, int port, const struct sockaddr *addr)
{
    return strcmp(host, "forbidden.test") != 0 && port != 9;
}

static void on_target(uv_stream_t *s, int status)
{
    uv_tcp_t *c = malloc(sizeof *c);
    uv_tcp_init(s->loop, c);
    uv_accept(s, (uv_stream_t *)c);
    uv_buf_t b = uv_buf_init((char *)"hi", 2);
    uv_try_write((uv_stream_t *)c, &b, 1);
    uv_close((uv_handle_t *)c, (uv_close_cb)free);
}

/* Talks to the proxy from a thread; returns what came after the greeting. */
struct client {
    int port;
    const char *request;
    size_t len;
    unsigned char got[32];
    ssize_t n;
    struct route_test *test;
};

static void finished(void *data)
{
    struct route_test *t = data;
    t->done++;
}

static void client_thread(void *data)
{
    struct client *c = data;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 && write(fd, "\5\1\0", 3) == 3) {
        unsigned char greeting[2];
        (void)!read(fd, greeting, 2);
        (void)!write(fd, c->request, c->len);
        for (ssize_t n; c->n < (ssize_t)sizeof c->got &&
                        (n = read(fd, c->got + c->n, sizeof c->got - (size_t)c->n)) > 0;)
            c->n += n;
    }
    close(fd);
    loop_post(c->test->loop, finished, c->test);
}

static void ask(struct route_test *t, int port, const char *host, struct client *c)
{
    static char request[300];
    size_t n = strlen(host);
    memcpy(request, "\5\1\0\3", 4);
    request[4] = (char)n;
    memcpy(request + 5, host, n);
    request[5 + n] = (char)(t->port >> 8);
    request[6 + n] = (char)t->port;
    *c = (struct client){.port = port, .request = request, .len = n + 7, .test = t};
    uv_thread_t thread;
    uv_thread_create(&thread, client_thread, c);
    int before = t->done;
    while (t->done == before)
        turn_loop(t->loop);
    uv_thread_join(&thread);
}

START_TEST(only_judged_addresses_are_reached)
{
    struct route_test t = {.loop = loop_new()};
    struct client c;
    int port;
    t.socks = socks_start(t.loop, judge, &t, &port, NULL);
    ck_assert_ptr_nonnull(t.socks);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int len = sizeof a;
    uv_tcp_init(loop_uv(t.loop), &t.target);
    ck_assert_int_eq(uv_tcp_bind(&t.target, (struct sockaddr *)&a, 0), 0);
    ck_assert_int_eq(uv_listen((uv_stream_t *)&t.target, 8, on_target), 0);
    uv_tcp_getsockname(&t.target, (struct sockaddr *)&a, &len);
    t.port = ntohs(a.sin_port);

    ask(&t, port, "forbidden.test", &c);
    ck_assert_int_eq(c.n, 10);
    ck_assert_int_eq(c.got[1], 2);
    ck_assert_str_eq(socks_failure(t.socks, "FORBIDDEN.test", t.port), "");

    ask(&t, port, "127.0.0.1", &c);
    ck_assert_int_eq(c.n, 12);
    ck_assert_int_eq(c.got[1], 0);
    ck_assert_mem_eq(c.got + 10, "hi", 2);

    int open = t.port;
    uv_close((uv_handle_t *)&t.target, NULL);
    for (int i = 0; i < 5; i++)
        uv_run(loop_uv(t.loop), UV_RUN_NOWAIT);
    ask(&t, port, "127.0.0.1", &c);
    ck_assert_int_eq(c.got[1], 5);
    ck_assert_str_eq(socks_failure(t.socks, "127.0.0.1", open), "net::ERR_CONNECTION_REFUSED");
    ck_assert_ptr_null(socks_failure(t.socks, "127.0.0.1", open + 1));
    socks_stop(t.socks);
    for (int i = 0; i < 5; i++)
        uv_run(loop_uv(t.loop), UV_RUN_NOWAIT);
    loop_free(t.loop);
}
END_TEST

/* --- finding a browser ------------------------------------------------------------------------ */

START_TEST(only_an_executable_file_is_a_browser)
{
    char dir[] = "/tmp/abx-test-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(dir));
    char path[64], search[64];
    (void)snprintf(search, sizeof search, "relative:%s:", dir);
    ck_assert_ptr_null(chrome_find(search));
    (void)snprintf(path, sizeof path, "%s/chromium", dir);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    ck_assert_ptr_null(chrome_find(search));
    ck_assert_int_eq(rmdir(path), 0);
    (void)snprintf(path, sizeof path, "%s/chrome", dir);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
    close(fd);
    autofree char *found = chrome_find(search);
    ck_assert_str_eq(found, path);
    unlink(path);
    rmdir(dir);
}
END_TEST

START_TEST(session_names_are_plain_words)
{
    ck_assert(browser_session_valid(""));
    ck_assert(browser_session_valid("a-B_9."));
    ck_assert(!browser_session_valid("a b"));
    ck_assert(!browser_session_valid("\xc3\xa4"));
    ck_assert(!browser_session_valid(
        "0123456789012345678901234567890123456789012345678901234567890123x"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("browser");
    TCase *t = tcase_create("browser");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, broken_messages_are_refused);
    tcase_add_test(t, top_level_members_are_found_whatever_is_inside);
    tcase_add_test(t, lone_surrogates_become_replacement_characters);
    tcase_add_test(t, answers_find_their_calls_in_any_order_and_cut);
    tcase_add_test(t, a_forgotten_call_is_not_answered);
    tcase_add_test(t, the_end_of_the_browser_answers_all_calls);
    tcase_add_test(t, a_large_answer_is_parsed_whole);
    tcase_add_test(t, values_json_lacks_follow_the_rules);
    tcase_add_test(t, console_text_reads_like_the_console);
    tcase_add_test(t, pdf_pages_are_those_of_the_root);
    tcase_add_test(t, a_snapshot_names_what_can_be_used);
    tcase_add_test(t, unknown_keys_are_refused);
    tcase_add_test(t, keys_carry_code_text_and_modifiers);
    tcase_add_test(t, only_judged_addresses_are_reached);
    tcase_add_test(t, only_an_executable_file_is_a_browser);
    tcase_add_test(t, session_names_are_plain_words);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
