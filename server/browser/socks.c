#include "browser/socks.h"

#include "base/list.h"
#include "base/own.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

/* How it works. A tunnel reads the greeting and the request, resolves the name on a thread of its own, tries
 * the addresses one after the other, and then moves bytes: one buffer per direction, and a side is
 * read only while the other has taken all. */

#define MAX_TUNNELS 512
#define PIECE (32 * KIB)
#define FAILURES 32
#define MAX_ADDRESSES 8
#define CONNECT_MS 20000

enum side { CLIENT, REMOTE };
enum stage { GREETING, REQUEST, WORKING, PIPING };

struct failure {
    char host[256];
    int port;
    const char *text;
};

struct socks {
    struct loop *loop;
    socks_judge judge; /* NULL: stopped */
    void *owner;
    uv_tcp_t listener;
    bool listener_closed;
    struct list tunnels;
    size_t n_tunnels;
    struct failure failures[FAILURES];
    size_t next_failure;
};

struct flow {
    char *piece;
    uv_write_t write;
    uv_shutdown_t shut;
    bool ended; /* its source has said all */
};

struct tunnel {
    struct list link;
    struct socks *socks;
    uv_tcp_t tcp[2];
    bool open[2];
    unsigned closing;
    bool resolving, closed;
    enum stage stage;
    unsigned char head[300];
    size_t head_len;
    char host[256];
    int port;
    struct sockaddr_storage addr[MAX_ADDRESSES];
    int n_addr, at_addr, last_error, gai;
    uv_connect_t connect;
    struct timer timer;
    struct flow from[2]; /* indexed by source */
    unsigned char reply[10];
    uv_write_t reply_write;
    bool refusing;
};

static void maybe_free(struct socks *s)
{
    if (!s->judge && s->listener_closed && s->n_tunnels == 0)
        free(s);
}

static void tunnel_free(struct tunnel *t)
{
    if (t->closing > 0 || t->resolving)
        return;
    struct socks *s = t->socks;
    list_remove(&t->link);
    free(t->from[CLIENT].piece);
    free(t->from[REMOTE].piece);
    free(t);
    s->n_tunnels--;
    maybe_free(s);
}

static void on_closed(uv_handle_t *h)
{
    struct tunnel *t = h->data;
    t->closing--;
    tunnel_free(t);
}

static void close_side(struct tunnel *t, enum side side)
{
    if (!t->open[side])
        return;
    t->open[side] = false;
    t->closing++;
    uv_close((uv_handle_t *)&t->tcp[side], on_closed);
}

static void tunnel_close(struct tunnel *t)
{
    if (t->closed)
        return;
    t->closed = true;
    timer_done(&t->timer);
    close_side(t, CLIENT);
    close_side(t, REMOTE);
    tunnel_free(t);
}

/* --- moving bytes --------------------------------------------------------------------------- */

static void read_side(struct tunnel *t, enum side side);

static void on_written(uv_write_t *w, int status)
{
    struct tunnel *t = w->data;
    if (status < 0) {
        tunnel_close(t);
        return;
    }
    if (!t->closed)
        read_side(t, w == &t->from[CLIENT].write ? CLIENT : REMOTE);
}

static void on_shut(uv_shutdown_t *w, int status)
{
    struct tunnel *t = w->data;
    if (status < 0 || (t->from[CLIENT].ended && t->from[REMOTE].ended))
        tunnel_close(t);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct tunnel *t = h->data;
    struct flow *f = &t->from[h == (uv_handle_t *)&t->tcp[CLIENT] ? CLIENT : REMOTE];
    if (!f->piece)
        f->piece = malloc(PIECE);
    *buf = uv_buf_init(f->piece, f->piece ? PIECE : 0);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct tunnel *t = stream->data;
    enum side side = stream == (uv_stream_t *)&t->tcp[CLIENT] ? CLIENT : REMOTE;
    enum side other = side == CLIENT ? REMOTE : CLIENT;
    struct flow *f = &t->from[side];
    if (n == 0)
        return;
    uv_read_stop(stream);
    if (n < 0) {
        f->ended = true;
        f->shut.data = t;
        if (n != UV_EOF || uv_shutdown(&f->shut, (uv_stream_t *)&t->tcp[other], on_shut) < 0)
            tunnel_close(t);
        return;
    }
    uv_buf_t out = uv_buf_init(buf->base, (unsigned)n);
    int sent = uv_try_write((uv_stream_t *)&t->tcp[other], &out, 1);
    if (sent == n) {
        read_side(t, side);
        return;
    }
    if (sent > 0)
        out = uv_buf_init(buf->base + sent, (unsigned)(n - sent));
    f->write.data = t;
    if ((sent < 0 && sent != UV_EAGAIN) ||
        uv_write(&f->write, (uv_stream_t *)&t->tcp[other], &out, 1, on_written) < 0)
        tunnel_close(t);
}

static void read_side(struct tunnel *t, enum side side)
{
    if (!t->from[side].ended && uv_read_start((uv_stream_t *)&t->tcp[side], on_alloc, on_read) < 0)
        tunnel_close(t);
}

/* --- connecting ----------------------------------------------------------------------------- */

static void note_failure(struct tunnel *t, const char *text)
{
    struct socks *s = t->socks;
    struct failure *f = &s->failures[s->next_failure++ % FAILURES];
    memcpy(f->host, t->host, sizeof f->host);
    f->port = t->port;
    f->text = text;
}

const char *socks_failure(const struct socks *s, const char *host, int port)
{
    size_t n = s->next_failure < FAILURES ? s->next_failure : FAILURES;
    for (size_t i = 1; i <= n; i++) {
        const struct failure *f = &s->failures[(s->next_failure - i) % FAILURES];
        if (f->port == port && strcasecmp(f->host, host) == 0)
            return f->text;
    }
    return NULL;
}

static const char *error_text(int sys, int gai)
{
    if (gai != 0)
        return "net::ERR_NAME_NOT_RESOLVED";
    switch (sys) {
    case UV_ECONNREFUSED:
        return "net::ERR_CONNECTION_REFUSED";
    case UV_ETIMEDOUT:
        return "net::ERR_CONNECTION_TIMED_OUT";
    case UV_ENETUNREACH:
    case UV_EHOSTUNREACH:
        return "net::ERR_ADDRESS_UNREACHABLE";
    case UV_ECONNRESET:
        return "net::ERR_CONNECTION_RESET";
    default:
        return "net::ERR_CONNECTION_FAILED";
    }
}

static void on_replied(uv_write_t *w, int status)
{
    struct tunnel *t = w->data;
    if (status < 0 || t->refusing) {
        tunnel_close(t);
        return;
    }
    if (t->closed)
        return;
    t->stage = PIPING;
    read_side(t, CLIENT);
    if (!t->closed)
        read_side(t, REMOTE);
}

/* RFC 1928, 6. code 0: connected. */
static void reply(struct tunnel *t, unsigned char code)
{
    memcpy(t->reply, (unsigned char[10]){5, code, 0, 1}, sizeof t->reply);
    t->refusing = code != 0;
    t->reply_write.data = t;
    uv_buf_t b = uv_buf_init((char *)t->reply, sizeof t->reply);
    if (uv_write(&t->reply_write, (uv_stream_t *)&t->tcp[CLIENT], &b, 1, on_replied) < 0)
        tunnel_close(t);
}

static void refuse(struct tunnel *t, unsigned char code, const char *text)
{
    note_failure(t, text);
    reply(t, code);
}

static void try_next(struct tunnel *t);

static void on_remote_closed(uv_handle_t *h)
{
    struct tunnel *t = h->data;
    t->closing--;
    if (t->closed)
        tunnel_free(t);
    else
        try_next(t);
}

static void on_connect(uv_connect_t *req, int status)
{
    struct tunnel *t = req->data;
    if (t->closed || !t->open[REMOTE])
        return;
    if (status < 0) {
        t->last_error = status;
        t->open[REMOTE] = false;
        t->closing++;
        uv_close((uv_handle_t *)&t->tcp[REMOTE], on_remote_closed);
        return;
    }
    timer_stop(&t->timer);
    (void)uv_tcp_nodelay(&t->tcp[REMOTE], 1); /* only latency */
    reply(t, 0);
}

static void try_next(struct tunnel *t)
{
    while (t->at_addr < t->n_addr) {
        const struct sockaddr *addr = (const struct sockaddr *)&t->addr[t->at_addr++];
        if (uv_tcp_init(loop_uv(t->socks->loop), &t->tcp[REMOTE]) < 0)
            break;
        t->tcp[REMOTE].data = t;
        t->open[REMOTE] = true;
        t->connect.data = t;
        int r = uv_tcp_connect(&t->connect, &t->tcp[REMOTE], addr, on_connect);
        if (r == 0)
            return;
        t->last_error = r;
        t->open[REMOTE] = false;
        t->closing++;
        uv_close((uv_handle_t *)&t->tcp[REMOTE], on_remote_closed);
        return;
    }
    refuse(t, 5, error_text(t->last_error, 0));
}

static void on_late(void *data)
{
    struct tunnel *t = data;
    note_failure(t, "net::ERR_CONNECTION_TIMED_OUT");
    tunnel_close(t);
}

static void resolve_work(void *data)
{
    struct tunnel *t = data;
    char port[8];
    (void)snprintf(port, sizeof port, "%d", t->port); /* always fits */
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *list = NULL;
    t->gai = getaddrinfo(t->host, port, &hints, &list);
    if (t->gai != 0) {
        hints.ai_flags = 0; /* literals and localhost of a family no interface has */
        t->gai = getaddrinfo(t->host, port, &hints, &list);
    }
    if (t->gai != 0)
        return;
    for (struct addrinfo *a = list; a && t->n_addr < MAX_ADDRESSES; a = a->ai_next) {
        if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
            memcpy(&t->addr[t->n_addr++], a->ai_addr, a->ai_addrlen);
    }
    freeaddrinfo(list);
}

static void resolve_done(void *data)
{
    struct tunnel *t = data;
    struct socks *s = t->socks;
    t->resolving = false;
    if (t->closed) {
        tunnel_free(t);
        return;
    }
    if (t->gai != 0 || t->n_addr == 0) {
        refuse(t, 4, error_text(0, t->gai ? t->gai : EAI_NONAME));
        return;
    }
    for (int i = 0; i < t->n_addr; i++) {
        if (!s->judge || !s->judge(s->owner, t->host, t->port, (struct sockaddr *)&t->addr[i])) {
            refuse(t, 2, "");
            return;
        }
    }
    timer_start(&t->timer, CONNECT_MS);
    try_next(t);
}

static void start_resolving(struct tunnel *t)
{
    struct socks *s = t->socks;
    if (!s->judge || !s->judge(s->owner, t->host, t->port, NULL)) {
        refuse(t, 2, "");
        return;
    }
    t->resolving = true;
    if (loop_work(s->loop, WORK_ALONE, resolve_work, resolve_done, t) < 0) {
        t->resolving = false;
        refuse(t, 1, "net::ERR_OUT_OF_MEMORY");
    }
}

/* --- the client's side ---------------------------------------------------------------------- */

static void on_method_written(uv_write_t *w, int status)
{
    struct tunnel *t = w->data;
    if (status < 0)
        tunnel_close(t);
}

/* Returns the bytes used, 0 for "more", -1 for "not SOCKS 5". */
static int take_head(struct tunnel *t)
{
    const unsigned char *h = t->head;
    size_t n = t->head_len;
    if (t->stage == GREETING) {
        if (n < 2)
            return 0;
        if (h[0] != 5)
            return -1;
        if (n < 2 + (size_t)h[1])
            return 0;
        memcpy(t->reply, (unsigned char[2]){5, 0}, 2); /* no authentication */
        t->reply_write.data = t;
        uv_buf_t b = uv_buf_init((char *)t->reply, 2);
        if (uv_write(&t->reply_write, (uv_stream_t *)&t->tcp[CLIENT], &b, 1, on_method_written) < 0)
            return -1;
        t->stage = REQUEST;
        return 2 + h[1];
    }
    if (n < 5)
        return 0;
    if (h[0] != 5 || h[1] != 1)
        return -1;
    size_t addr = h[3] == 1 ? 4 : h[3] == 4 ? 16 : h[3] == 3 ? (size_t)h[4] + 1 : 0;
    if (addr == 0)
        return -1;
    if (n < 4 + addr + 2)
        return 0;
    if (h[3] == 3) {
        memcpy(t->host, h + 5, h[4]);
        t->host[h[4]] = '\0';
        if (strlen(t->host) != h[4])
            return -1;
    } else {
        int family = h[3] == 1 ? AF_INET : AF_INET6;
        if (uv_inet_ntop(family, h + 4, t->host, sizeof t->host) < 0)
            return -1;
    }
    t->port = h[4 + addr] << 8 | h[4 + addr + 1];
    t->stage = WORKING;
    return (int)(4 + addr + 2);
}

static void on_head_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct tunnel *t = h->data;
    *buf = uv_buf_init((char *)t->head + t->head_len, (unsigned)(sizeof t->head - t->head_len));
}

static void on_head(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct tunnel *t = stream->data;
    if (n == 0)
        return;
    if (n < 0) {
        tunnel_close(t);
        return;
    }
    t->head_len += (size_t)n;
    while (t->stage != WORKING) {
        int used = take_head(t);
        if (used < 0 || (used == 0 && t->head_len == sizeof t->head)) {
            tunnel_close(t);
            return;
        }
        if (used == 0)
            return;
        memmove(t->head, t->head + used, t->head_len - (size_t)used);
        t->head_len -= (size_t)used;
    }
    uv_read_stop(stream);
    timer_stop(&t->timer);
    if (t->head_len > 0)
        tunnel_close(t); /* data before the answer: no client of ours does this */
    else
        start_resolving(t);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct socks *s = listener->data;
    if (status < 0)
        return;
    struct tunnel *t = calloc(1, sizeof *t);
    if (!t || uv_tcp_init(loop_uv(s->loop), &t->tcp[CLIENT]) < 0) {
        free(t);
        return; /* libuv offers it again */
    }
    t->socks = s;
    t->tcp[CLIENT].data = t;
    t->open[CLIENT] = true;
    timer_init(&t->timer, s->loop, on_late, t);
    list_append(&s->tunnels, &t->link);
    s->n_tunnels++;
    if (uv_accept(listener, (uv_stream_t *)&t->tcp[CLIENT]) < 0 || s->n_tunnels > MAX_TUNNELS ||
        uv_read_start((uv_stream_t *)&t->tcp[CLIENT], on_head_alloc, on_head) < 0) {
        tunnel_close(t);
        return;
    }
    (void)uv_tcp_nodelay(&t->tcp[CLIENT], 1); /* only latency */
    timer_start(&t->timer, CONNECT_MS);
}

static void on_listener_closed(uv_handle_t *h)
{
    struct socks *s = h->data;
    s->listener_closed = true;
    maybe_free(s);
}

void socks_stop(struct socks *s)
{
    if (!s)
        return;
    s->judge = NULL;
    uv_close((uv_handle_t *)&s->listener, on_listener_closed);
    list_for_each_safe(it, &s->tunnels) { tunnel_close(list_entry(it, struct tunnel, link)); }
}

struct socks *socks_start(struct loop *loop, socks_judge judge, void *owner, int *ret_port,
                          struct abx_error *err)
{
    struct socks *s = calloc(1, sizeof *s);
    if (!s || uv_tcp_init(loop_uv(loop), &s->listener) < 0) {
        free(s);
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    s->loop = loop;
    s->judge = judge;
    s->owner = owner;
    s->listener.data = s;
    list_init(&s->tunnels);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int len = sizeof addr;
    int r = uv_tcp_bind(&s->listener, (struct sockaddr *)&addr, 0);
    if (r == 0)
        r = uv_listen((uv_stream_t *)&s->listener, 128, on_connection);
    if (r == 0)
        r = uv_tcp_getsockname(&s->listener, (struct sockaddr *)&addr, &len);
    if (r < 0) {
        socks_stop(s);
        abx_fail(err, E_OS, -r, "The browser's proxy can't listen: %s", uv_strerror(r));
        return NULL;
    }
    *ret_port = ntohs(addr.sin_port);
    return s;
}
