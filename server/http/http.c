/* Listeners, the turn's end, start and stop. */

#include "http/internal.h"

#include "base/log.h"
#include "base/own.h"
#include "http/req.h"

#include <errno.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define BACKLOG 4096
#define ACCEPT_TURN 64
#define ACCEPT_RETRY_MS 100
#define IDLE_LOOKS 64 /* at connections that might make room, per new one */
#define MIN_CONNS 4 /* however few descriptors there are */

/* The end of a turn: what was written goes out, what was closed is freed. */
static void end_turn(struct http *h)
{
    /* A flush may make others dirty (a drained stream writes on): they go in the same turn. */
    while (!list_empty(&h->dirty))
        conn_flush(list_entry(h->dirty.next, struct conn, dirty_link));
    list_for_each_safe(it, &h->dead) {
        struct conn *c = list_entry(it, struct conn, dirty_link);
        list_remove(it);
        free(c);
    }
}

static void turn_check(uv_check_t *handle)
{
    end_turn(handle->data);
}

static void turn_prepare(uv_prepare_t *handle)
{
    end_turn(handle->data);
}

static void listeners_want(struct http *h, int events)
{
    list_for_each(it, &h->listeners)
        io_want(&list_entry(it, struct listener, link)->io, events);
}

static void accept_again(void *data)
{
    struct http *h = data;
    if (!h->stopping)
        listeners_want(h, UV_READABLE);
}

static void trim_heap(void *data)
{
    (void)data;
    (void)malloc_trim(64 * 1024); /* what is left at the top for the next requests */
}

static void trim_due(void *data)
{
    struct http *h = data;
    (void)loop_work(h->loop, WORK_SHORT, trim_heap, NULL, NULL); /* best effort */
}

static void stop_deadline(void *data);

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

struct http *http_new(const struct http_config *config)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->config = *config;
    h->config.head_timeout_ms = or_default(config->head_timeout_ms, 30000);
    h->config.body_timeout_ms = or_default(config->body_timeout_ms, 60000);
    h->config.idle_timeout_ms = or_default(config->idle_timeout_ms, 120000);
    h->config.write_timeout_ms = or_default(config->write_timeout_ms, 120000);
    h->loop = config->loop;
    h->metrics = loop_metrics(h->loop);
    list_init(&h->conns);
    list_init(&h->idle);
    list_init(&h->dirty);
    list_init(&h->dead);
    list_init(&h->listeners);
    list_init(&h->free_reqs);
    /* Descriptors are kept back for children, files and whatever a request needs. */
    struct rlimit files = {.rlim_cur = 1024};
    getrlimit(RLIMIT_NOFILE, &files);
    rlim_t spare = files.rlim_cur / 4 > 512 ? 528 : files.rlim_cur / 4 + 16;
    rlim_t most = files.rlim_cur > spare + MIN_CONNS ? files.rlim_cur - spare : MIN_CONNS;
    h->max_conns = config->max_connections ? config->max_connections : 10240 + 512;
    if (h->max_conns > most)
        h->max_conns = (size_t)most;
    h->scratch = malloc(READ_CHUNK);
    h->limits = limits_new();
    if (!h->scratch || !h->limits) {
        limits_free(h->limits);
        free(h->scratch);
        free(h);
        return NULL;
    }
    uv_loop_t *uv = loop_uv(h->loop);
    uv_check_init(uv, &h->check);
    h->check.data = h;
    uv_check_start(&h->check, turn_check);
    uv_prepare_init(uv, &h->prepare);
    h->prepare.data = h;
    uv_prepare_start(&h->prepare, turn_prepare);
    timer_init(&h->accept_retry, h->loop, accept_again, h);
    timer_init(&h->stop_timer, h->loop, stop_deadline, h);
    timer_init(&h->trim, h->loop, trim_due, h);
    return h;
}

void http_set_site(struct http *h, struct site *s)
{
    struct site *old = h->site;
    h->site = site_ref(s);
    measure_site(h, s);
    site_unref(old);
}

struct site *http_site(struct http *h)
{
    return h->site;
}

/* Closes the connection that has been idle longest. One whose next request is already here is not idle, it has only
 * not been read yet: it will be within this turn. */
static bool close_idlest(struct http *h)
{
    int looked = 0;
    list_for_each(it, &h->idle) {
        struct conn *c = list_entry(it, struct conn, idle_link);
        char byte;
        if (recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) {
            conn_close(c);
            return true;
        }
        if (++looked == IDLE_LOOKS)
            break;
    }
    return false;
}

/* Over the cap an idle connection makes room. */
static bool make_room(struct http *h)
{
    return h->n_conns < h->max_conns || close_idlest(h);
}

/* Every place is taken by a request in work. */
static void refuse_connection(int fd)
{
    static const char body[] = "{\"error\": \"Too many connections\", \"type\": \"RuntimeError\", "
                               "\"code\": \"overloaded\", \"retry_after\": 1}";
    char text[512];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: " JSON_CONTENT "\r\n"
                     "Content-Length: %zu\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s",
                     sizeof body - 1, body);
    ssize_t unused = send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)unused; /* it is closed either way */
}

static void accept_ready(void *data, int events)
{
    struct listener *l = data;
    struct http *h = l->http;
    for (int i = 0; i < ACCEPT_TURN; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            if (errno == ENOBUFS || error_is_want(errno)) {
                /* Not in a busy loop: again soon, or as soon as the oldest idle one is closed. */
                if (close_idlest(h))
                    continue;
                listeners_want(h, 0);
                timer_start(&h->accept_retry, ACCEPT_RETRY_MS);
            }
            return;
        }
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (!make_room(h)) {
            refuse_connection(fd);
            h->metrics->turned_away++;
            close(fd);
            continue;
        }
        if (!conn_new(h, fd, l->kind))
            close(fd);
    }
}

static int listen_on(const struct addrinfo *at, int *ret_fd)
{
    autoclose int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int one = 1, off = 0;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0)
        return -1;
    if (at->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off); /* "::" takes IPv4 too */
    if (bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
        return -1;
    *ret_fd = take_fd(&fd);
    return 0;
}

int http_listen(struct http *h, const char *host, int port, enum http_port_kind kind, int *ret_port,
                struct abx_error *err)
{
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found;
    hints.ai_flags |= AI_NUMERICHOST; /* the common case costs no resolver */
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc != 0) {
        hints.ai_flags &= ~AI_NUMERICHOST;
        rc = getaddrinfo(host, service, &hints, &found);
    }
    if (rc != 0)
        return abx_fail(err, E_CONFIG, 0, "can't listen on %s port %d: %s", host, port, gai_strerror(rc));
    int fd = -1, sys = EADDRNOTAVAIL;
    for (struct addrinfo *at = found; at && fd < 0; at = at->ai_next)
        if (listen_on(at, &fd) < 0)
            sys = errno;
    freeaddrinfo(found);
    if (fd < 0) {
        char text[128];
        return abx_fail(err, E_CONFIG, sys, "can't listen on %s port %d: %s", host, port,
                        sys == EADDRINUSE ? "the port is in use" : strerror_r(sys, text, sizeof text));
    }
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    getsockname(fd, (struct sockaddr *)&bound, &len);
    *ret_port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                  : ((struct sockaddr_in *)&bound)->sin_port);
    struct listener *l = calloc(1, sizeof *l);
    if (!l || io_init(&l->io, h->loop, fd, accept_ready, l) != 0) {
        free(l);
        close(fd);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    l->http = h;
    l->fd = fd;
    l->kind = kind;
    list_append(&h->listeners, &l->link);
    io_want(&l->io, UV_READABLE);
    return 0;
}

static void close_listeners(struct http *h)
{
    list_for_each_safe(it, &h->listeners) {
        struct listener *l = list_entry(it, struct listener, link);
        list_remove(&l->link);
        io_done(&l->io);
        close(l->fd);
        free(l);
    }
    timer_stop(&h->accept_retry);
}

/* Streams that nobody's process feeds end at once; those of running programs get until the middle of the
 * grace time, so that their exit is still told. */
static void stop_streams(struct http *h, bool all)
{
    for (;;) {
        struct conn *found = NULL;
        list_for_each(it, &h->conns) {
            struct conn *c = list_entry(it, struct conn, link);
            if (c->stream && c->req && (all || !(c->req->route->ep.flags & (EP_EXEC | EP_FOLLOWS)))) {
                found = c;
                break;
            }
        }
        if (!found)
            return;
        stream_stop(found->stream);
    }
}

static void stop_deadline(void *data)
{
    struct http *h = data;
    if (h->stop_rest_ms > 0) {
        stop_streams(h, true);
        timer_start(&h->stop_timer, h->stop_rest_ms);
        h->stop_rest_ms = 0;
        return;
    }
    while (!list_empty(&h->conns))
        conn_close(list_entry(h->conns.next, struct conn, link));
}

static void stopped_already(void *data)
{
    struct http *h = data;
    if (h->n_conns == 0 && h->stopped) {
        void (*fn)(void *data) = h->stopped;
        h->stopped = NULL;
        timer_stop(&h->stop_timer);
        fn(h->stopped_data);
    }
}

void http_stop(struct http *h, uint32_t grace_ms, void (*stopped)(void *data), void *data)
{
    h->stopping = true;
    h->stopped = stopped;
    h->stopped_data = data;
    close_listeners(h);
    while (!list_empty(&h->idle))
        conn_close(list_entry(h->idle.next, struct conn, idle_link));
    stop_streams(h, false);
    list_for_each(it, &h->conns) {
        struct conn *c = list_entry(it, struct conn, link);
        if (c->ws)
            ws_stop(c->ws);
    }
    h->stop_rest_ms = grace_ms - grace_ms / 2;
    timer_start(&h->stop_timer, grace_ms / 2);
    loop_post(h->loop, stopped_already, h);
}

static void forget_handle(uv_handle_t *handle)
{
}

void http_free(struct http *h)
{
    if (!h)
        return;
    h->stopping = true;
    h->stopped = NULL;
    close_listeners(h);
    while (!list_empty(&h->conns))
        conn_close(list_entry(h->conns.next, struct conn, link));
    list_for_each_safe(it, &h->free_reqs) {
        struct req *r = list_entry(it, struct req, link);
        arena_done(&r->arena);
        buf_done(&r->head);
        buf_done(&r->body_text);
        buf_done(&r->resp.headers);
        free(r);
    }
    end_turn(h);
    timer_done(&h->stop_timer);
    timer_done(&h->trim);
    uv_close((uv_handle_t *)&h->check, forget_handle);
    uv_close((uv_handle_t *)&h->prepare, forget_handle);
    uv_run(loop_uv(h->loop), UV_RUN_NOWAIT);
    site_unref(h->site);
    limits_free(h->limits);
    measure_done(h);
    buf_done(&h->outbuf);
    free(h->scratch);
    free(h);
}
