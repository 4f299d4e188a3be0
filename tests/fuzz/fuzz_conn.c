/* A whole connection: whatever bytes a client sends, the answers are well-formed HTTP/1.1 and the server's
 * side ends when the client does. The first byte says in how large pieces the rest is sent. */

#include "http/internal.h"

#include <assert.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int echo(struct req *req, struct resp *resp, struct abx_error *err)
{
    return resp_value(resp, json_incref(req_body(req)), err);
}

static const struct route routes[] = {
    {.ep = {.id = "get", .method = M_GET, .path = "/a", .group = G_CORE, .flags = EP_NO_AUTH}, .run = echo},
    {.ep = {.id = "post", .method = M_POST, .path = "/a/{x}", .group = G_CORE, .flags = EP_NO_AUTH}, .run = echo},
    {.ep = {.id = "chunks", .method = M_PUT, .path = "/a", .group = G_CORE, .flags = EP_NO_AUTH | EP_CHUNKED},
     .run = echo},
};

static struct {
    struct loop *loop;
    struct http *http;
} world;

static void set_up(void)
{
    struct abx_error err;
    const struct route *table[] = {&routes[0], &routes[1], &routes[2]};
    const struct endpoint *endpoints[] = {&routes[0].ep, &routes[1].ep, &routes[2].ep};
    struct policy_doc *doc = policy_doc_empty();
    struct policy *policy;
    struct site *site;
    signal(SIGPIPE, SIG_IGN);
    world.loop = loop_new();
    world.http = http_new(&(struct http_config){.loop = world.loop, .server_name = "fuzz"});
    struct policy_inputs in = {.doc = doc, .endpoints = endpoints, .n_endpoints = 3, .base_dir = "/tmp"};
    assert(policy_compile(&in, &policy, &err) == 0);
    assert(site_new(table, 3, policy, NULL, NULL, &site, &err) == 0);
    http_set_site(world.http, site);
    site_unref(site);
    policy_unref(policy);
    policy_doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!world.loop)
        set_up();
    if (size < 1)
        return 0;
    size_t piece = data[0] ? data[0] : 65536;
    data++;
    size--;
    int pair[2];
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    assert(conn_new(world.http, pair[0], HTTP_PORT_MAIN));
    char answer[65536];
    size_t have = 0;
    bool sent = false;
    while (world.http->n_conns > 0) {
        if (size > 0) {
            size_t n = size < piece ? size : piece;
            ssize_t wrote = send(pair[1], data, n, MSG_NOSIGNAL);
            if (wrote > 0) {
                data += wrote;
                size -= (size_t)wrote;
            } else if (wrote < 0) {
                size = 0;
            }
        } else if (!sent) {
            shutdown(pair[1], SHUT_WR);
            sent = true;
        }
        uv_run(loop_uv(world.loop), UV_RUN_NOWAIT);
        ssize_t n = recv(pair[1], answer + have, sizeof answer - have, 0);
        if (n > 0)
            have = have + (size_t)n < sizeof answer ? have + (size_t)n : sizeof answer - 1;
    }
    if (have > 0)
        assert(have >= 12 && memcmp(answer, "HTTP/1.1 ", 9) == 0);
    close(pair[1]);
    return 0;
}
