#include "http/internal.h"
#include "base/own.h"
#include "../check_main.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* One upload whose consumer pauses with every piece and goes on a turn later, as one does whose buffers are full. */
static struct {
    struct loop *loop;
    struct http *http;
    struct req *req;
    bool paused, ended, gone;
    unsigned pieces, while_paused;
    struct buf got;
} world;

static void go_on(void *data)
{
    world.paused = false;
    req_body_resume(world.req);
}

static int on_data(void *owner, const char *data, size_t len, struct abx_error *err)
{
    world.pieces++;
    world.while_paused += world.paused;
    buf_add(&world.got, data, len);
    if (!world.paused)
        loop_post(world.loop, go_on, NULL);
    world.paused = true;
    req_body_pause(world.req);
    return 0;
}

static void on_end(void *owner)
{
    struct abx_error err;
    ck_assert(!world.paused);
    world.ended = true;
    ck_assert_int_eq(resp_value(req_resp(world.req), json_true(), &err), 0);
    req_finish(world.req);
    req_unref(world.req);
}

static void on_gone(void *owner)
{
    struct abx_error err;
    world.gone = true;
    abx_fail(&err, E_CANCELLED, 0, "the client left");
    req_fail(world.req, &err);
    req_unref(world.req);
}

static int take(struct req *req, struct resp *resp, struct abx_error *err)
{
    static const struct body_sink sink = {.data = on_data, .end = on_end, .gone = on_gone};
    world.req = req_ref(req);
    req_body_start(req, &sink, NULL);
    return REQ_PENDING;
}

static const struct route route = {
    .ep = {.id = "put", .method = M_PUT, .path = "/a", .group = G_CORE, .flags = EP_NO_AUTH | EP_CHUNKED | EP_BODY_STREAM},
    .run = take};

static void set_up(void)
{
    struct abx_error err;
    const struct route *table[] = {&route};
    const struct endpoint *endpoints[] = {&route.ep};
    struct policy_doc *doc = policy_doc_empty();
    struct policy *policy;
    struct site *site;
    signal(SIGPIPE, SIG_IGN);
    memset(&world, 0, sizeof world);
    world.loop = loop_new();
    world.http = http_new(&(struct http_config){.loop = world.loop, .server_name = "test"});
    struct policy_inputs in = {.doc = doc, .endpoints = endpoints, .n_endpoints = 1, .base_dir = "/tmp"};
    ck_assert_int_eq(policy_compile(&in, &policy, &err), 0);
    ck_assert_int_eq(site_new(table, 1, policy, NULL, NULL, &site, &err), 0);
    http_set_site(world.http, site);
    site_unref(site);
    policy_unref(policy);
    policy_doc_free(doc);
}

/* A connection that has sent the text: its other end. */
static int client(const struct buf *text)
{
    int pair[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_ptr_nonnull(conn_new(world.http, pair[0], HTTP_PORT_MAIN));
    ck_assert_int_eq(send(pair[1], text->data, text->len, MSG_NOSIGNAL), (ssize_t)text->len);
    return pair[1];
}

START_TEST(no_chunk_comes_while_its_consumer_has_paused)
{
    set_up();
    autobuf struct buf text = BUF_INIT, want = BUF_INIT;
    buf_adds(&text, "PUT /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (unsigned i = 0; i < 100; i++) {
        buf_addf(&text, "4\r\n%04u\r\n", i);
        buf_addf(&want, "%04u", i);
    }
    buf_adds(&text, "0\r\n\r\n");
    autoclose int fd = client(&text);
    char answer[4096];
    size_t have = 0;
    for (ssize_t n = -1; n != 0; have += n > 0 ? (size_t)n : 0) {
        uv_run(loop_uv(world.loop), UV_RUN_ONCE);
        n = recv(fd, answer + have, sizeof answer - 1 - have, 0);
    }
    answer[have] = '\0';
    ck_assert_msg(strncmp(answer, "HTTP/1.1 200 ", 13) == 0, "%s", answer);
    ck_assert(world.ended && !world.gone);
    ck_assert_uint_eq(world.while_paused, 0);
    ck_assert_uint_eq(world.pieces, 100);
    ck_assert_str_eq(buf_str(&world.got), buf_str(&want));
    buf_done(&world.got);
}
END_TEST

/* What is read after it is freed is AddressSanitizer's to see. */
START_TEST(consumer_may_let_go_of_the_request_when_its_client_leaves)
{
    set_up();
    autobuf struct buf text = BUF_INIT;
    buf_adds(&text, "PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
    int fd = client(&text);
    while (world.pieces == 0 || world.paused)
        uv_run(loop_uv(world.loop), UV_RUN_ONCE);
    world.http->n_free_reqs = 1000; /* enough are kept for later: this one is freed */
    close(fd);
    while (world.http->n_conns > 0)
        uv_run(loop_uv(world.loop), UV_RUN_ONCE);
    ck_assert(world.gone && !world.ended);
    ck_assert_str_eq(buf_str(&world.got), "abc");
    buf_done(&world.got);
}
END_TEST

TEST_MAIN("body", no_chunk_comes_while_its_consumer_has_paused, consumer_may_let_go_of_the_request_when_its_client_leaves)
