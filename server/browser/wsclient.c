#include "browser/wsclient.h"

#include "base/buf.h"
#include "base/crypto.h"
#include "base/own.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <nettle/sha1.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <wslay/wslay.h>

/* How it works. Resolving, connecting and the upgrade run on a worker, in plain blocking steps with
 * a deadline each; the socket then moves to the loop, where libwslay reads and writes it as far as
 * it goes. */

#define STEP_MS 4000
#define MAX_HEAD (16 * KIB)
#define MAX_QUEUED (192 * (size_t)MIB)

struct wsclient {
    struct loop *loop;
    struct wsclient_ops ops;
    void *owner;
    bool closed, connecting, broken;
    size_t max_message;
    char host[256], port[8], path[1024];
    bool discover; /* http: ask for the address first */
    int fd;
    struct abx_error err;
    bool watching;
    struct io io;
    wslay_event_context_ptr frames;
    struct buf early; /* messages sent before it was open, NUL-ended */
};

/* --- on the worker -------------------------------------------------------------------------- */

static int wait_for(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    int r;
    do
        r = poll(&p, 1, STEP_MS);
    while (r < 0 && errno == EINTR);
    return r == 1 ? 0 : -1;
}

static int dial(const char *host, const char *port, struct abx_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int gai = getaddrinfo(host, port, &hints, &list);
    if (gai != 0)
        return abx_fail(err, E_RUNTIME_503, 0, "%s: %s", host, gai_strerror(gai));
    int result = -1, sys = ETIMEDOUT;
    for (struct addrinfo *a = list; a && result < 0; a = a->ai_next) {
        autoclose int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
            socklen_t len = sizeof sys;
            if (errno != EINPROGRESS) {
                sys = errno;
                continue;
            }
            if (wait_for(fd, POLLOUT) < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &sys, &len) < 0 ||
                sys != 0)
                continue;
        }
        result = take_fd(&fd);
    }
    freeaddrinfo(list);
    return result >= 0 ? result
                       : abx_fail(err, E_RUNTIME_503, sys, "%s:%s: %s", host, port, strerror(sys));
}

static int send_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        if (wait_for(fd, POLLOUT) < 0)
            return -1;
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -1;
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

/* Reads to the end of the head and not a byte further: frames may follow at once. */
static int read_head(int fd, struct buf *head)
{
    while (head->len < 4 || memcmp(head->data + head->len - 4, "\r\n\r\n", 4) != 0) {
        char c;
        if (head->len > MAX_HEAD || wait_for(fd, POLLIN) < 0)
            return -1;
        ssize_t n = recv(fd, &c, 1, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return -1;
        buf_addc(head, c);
        if (head->failed)
            return -1;
    }
    return 0;
}

/* The value of a header line, its length in *ret; NULL: not there. */
static const char *header(const char *head, const char *name, size_t *ret)
{
    size_t n = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, n) != 0 || line[n] != ':')
            continue;
        line += n + 1;
        line += strspn(line, " \t");
        *ret = strcspn(line, "\r\n");
        return line;
    }
    return NULL;
}

static int parse_url(struct wsclient *c, const char *url, struct abx_error *err)
{
    bool http = strncasecmp(url, "http://", 7) == 0;
    if (!http && strncasecmp(url, "ws://", 5) != 0)
        return abx_fail(err, E_VALUE, 0, "a ws:// or http:// URL is expected");
    const char *host = url + (http ? 7 : 5);
    size_t authority = strcspn(host, "/?#");
    const char *end = host + authority, *colon = NULL;
    for (const char *p = host; p < end; p++) {
        if (*p == ':')
            colon = p;
        if (*p == ']')
            colon = NULL;
    }
    const char *host_end = colon ? colon : end;
    if (*host == '[' && host_end > host && host_end[-1] == ']') {
        host++;
        host_end--;
    }
    size_t n = (size_t)(host_end - host), port = colon ? (size_t)(end - colon - 1) : 0;
    if (n == 0 || n >= sizeof c->host || port >= sizeof c->port - 1 ||
        strlen(end) >= sizeof c->path)
        return abx_fail(err, E_VALUE, 0, "a ws:// or http:// URL is expected");
    memcpy(c->host, host, n);
    c->host[n] = '\0';
    memcpy(c->port, port ? colon + 1 : "80", port ? port : 2);
    c->port[port ? port : 2] = '\0';
    (void)snprintf(c->path, sizeof c->path, "%s",
                   *end == '/' ? end : "/"); /* length checked above */
    c->discover = http;
    return 0;
}

/* http://host:port: the browser tells the path of its socket. */
static int discover(struct wsclient *c, struct abx_error *err)
{
    autoclose int fd = dial(c->host, c->port, err);
    if (fd < 0)
        return -1;
    autobuf struct buf text = BUF_INIT;
    buf_addf(&text, "GET /json/version HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n\r\n",
             c->host, c->port);
    if (text.failed || send_all(fd, text.data, text.len) < 0)
        return abx_fail(err, E_RUNTIME_503, 0, "no answer to /json/version");
    buf_reset(&text);
    while (text.len < 64 * KIB && wait_for(fd, POLLIN) == 0) {
        char *at = buf_reserve(&text, 4096);
        ssize_t n = at ? recv(fd, at, 4096, 0) : 0;
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            break;
        text.len += (size_t)n;
        if (buf_str(&text) && strstr(text.data, "\r\n\r\n") &&
            strchr(strstr(text.data, "\r\n\r\n"), '}'))
            break;
    }
    const char *all = buf_str(&text);
    const char *key = all ? strstr(all, "\"webSocketDebuggerUrl\"") : NULL;
    const char *url = key ? strstr(key, "ws://") : NULL;
    const char *path = url ? strchr(url + 5, '/') : NULL;
    size_t len = path ? strcspn(path, "\"") : 0;
    if (len == 0 || len >= sizeof c->path)
        return abx_fail(err, E_RUNTIME_503, 0, "/json/version names no webSocketDebuggerUrl");
    memcpy(c->path, path, len);
    c->path[len] = '\0';
    return 0;
}

static int upgrade(struct wsclient *c, int fd, struct abx_error *err)
{
    uint8_t nonce[16], digest[SHA1_DIGEST_SIZE];
    crypto_random(nonce, sizeof nonce);
    autobuf struct buf key = BUF_INIT, head = BUF_INIT, wanted = BUF_INIT;
    base64_append(&key, nonce, sizeof nonce);
    if (!buf_str(&key))
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    buf_addf(&head,
             "GET %s HTTP/1.1\r\nHost: %s:%s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
             "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n",
             c->path, c->host, c->port, key.data);
    if (head.failed || send_all(fd, head.data, head.len) < 0)
        return abx_fail(err, E_RUNTIME_503, 0, "the connection broke");
    buf_reset(&head);
    if (read_head(fd, &head) < 0 || !buf_str(&head))
        return abx_fail(err, E_RUNTIME_503, 0, "no answer to the WebSocket upgrade");
    if (strncmp(head.data, "HTTP/1.1 101", 12) != 0)
        return abx_fail(err, E_RUNTIME_503, 0, "the WebSocket upgrade was refused: %.60s",
                        head.data);
    /* RFC 6455, 4.2.2 */
    buf_adds(&key, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    struct sha1_ctx sha;
    sha1_init(&sha);
    sha1_update(&sha, key.len, (const uint8_t *)key.data);
    sha1_digest(&sha, sizeof digest, digest);
    base64_append(&wanted, digest, sizeof digest);
    size_t len;
    const char *accept = header(head.data, "Sec-WebSocket-Accept", &len);
    if (!accept || wanted.failed || len != wanted.len || memcmp(accept, wanted.data, len) != 0)
        return abx_fail(err, E_RUNTIME_503, 0, "the WebSocket upgrade was answered wrongly");
    return 0;
}

static void connect_work(void *data)
{
    struct wsclient *c = data;
    if (c->discover && discover(c, &c->err) < 0)
        return;
    autoclose int fd = dial(c->host, c->port, &c->err);
    if (fd >= 0 && upgrade(c, fd, &c->err) == 0)
        c->fd = take_fd(&fd);
}

/* --- on the loop ---------------------------------------------------------------------------- */

static void release(struct wsclient *c)
{
    if (c->watching)
        io_done(&c->io);
    if (c->fd >= 0)
        close(c->fd);
    if (c->frames)
        wslay_event_context_free(c->frames);
    buf_done(&c->early);
    free(c);
}

static void broke(struct wsclient *c, const char *why)
{
    if (c->broken || c->closed)
        return;
    c->broken = true;
    if (c->watching)
        (void)io_want(&c->io, 0); /* nothing more is read */
    c->ops.closed(c->owner, why);
}

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *buf, size_t len, int flags, void *data)
{
    struct wsclient *c = data;
    ssize_t n = recv(c->fd, buf, len, 0);
    if (n > 0)
        return n;
    wslay_event_set_error(ctx, n < 0 && (errno == EAGAIN || errno == EINTR)
                                   ? WSLAY_ERR_WOULDBLOCK
                                   : WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *buf, size_t len, int flags,
                       void *data)
{
    struct wsclient *c = data;
    ssize_t n = send(c->fd, buf, len, MSG_NOSIGNAL | (flags & WSLAY_MSG_MORE ? MSG_MORE : 0));
    if (n >= 0)
        return n;
    wslay_event_set_error(ctx, errno == EAGAIN || errno == EINTR ? WSLAY_ERR_WOULDBLOCK
                                                                 : WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static int on_mask(wslay_event_context_ptr ctx, uint8_t *buf, size_t len, void *data)
{
    crypto_random(buf, len);
    return 0;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *arg,
                       void *data)
{
    struct wsclient *c = data;
    if (c->broken || c->closed || arg->opcode != WSLAY_TEXT_FRAME)
        return;
    char *text = malloc(arg->msg_length + 1);
    if (!text)
        return; /* its call has a deadline */
    memcpy(text, arg->msg, arg->msg_length);
    text[arg->msg_length] = '\0';
    c->ops.message(c->owner, text, arg->msg_length);
}

static void pump(struct wsclient *c)
{
    if (c->broken || c->closed || !c->frames)
        return;
    if (wslay_event_want_write(c->frames) && wslay_event_send(c->frames) != 0) {
        broke(c, "the browser's connection broke");
        return;
    }
    if (io_want(&c->io, UV_READABLE | (wslay_event_want_write(c->frames) ? UV_WRITABLE : 0)) < 0)
        broke(c, "the browser's connection can't be watched");
}

static void on_io(void *data, int events)
{
    struct wsclient *c = data;
    c->connecting = true; /* holds it while callbacks may close it */
    if (events < 0 || wslay_event_recv(c->frames) != 0 ||
        wslay_event_get_close_received(c->frames) || !wslay_event_want_read(c->frames))
        broke(c, "the browser has ended the connection");
    pump(c);
    c->connecting = false;
    if (c->closed)
        release(c);
}

void wsclient_send(struct wsclient *c, const char *text, size_t len)
{
    if (c->broken || c->closed)
        return;
    if (!c->frames) {
        buf_add(&c->early, text, len);
        buf_addc(&c->early, '\0');
        return;
    }
    struct wslay_event_msg msg = {
        .opcode = WSLAY_TEXT_FRAME, .msg = (const uint8_t *)text, .msg_length = len};
    if (wslay_event_get_queued_msg_length(c->frames) + len > MAX_QUEUED ||
        wslay_event_queue_msg(c->frames, &msg) != 0) {
        broke(c, "the browser reads too slowly");
        return;
    }
    pump(c);
}

static void connect_done(void *data)
{
    struct wsclient *c = data;
    static const struct wslay_event_callbacks callbacks = {
        .recv_callback = on_recv,
        .send_callback = on_send,
        .genmask_callback = on_mask,
        .on_msg_recv_callback = on_message,
    };
    c->connecting = false;
    if (c->closed) {
        release(c);
        return;
    }
    if (c->fd < 0) {
        broke(c, c->err.message);
        return;
    }
    if (wslay_event_context_client_init(&c->frames, &callbacks, c) != 0 ||
        io_init(&c->io, c->loop, c->fd, on_io, c) < 0) {
        broke(c, "out of memory");
        return;
    }
    c->watching = true;
    wslay_event_config_set_max_recv_msg_length(c->frames, c->max_message);
    pump(c);
    for (size_t at = 0; at < c->early.len && !c->broken;) {
        size_t len = strlen(c->early.data + at);
        wsclient_send(c, c->early.data + at, len);
        at += len + 1;
    }
    buf_done(&c->early);
    c->early = (struct buf)BUF_INIT;
    if (!c->broken && c->ops.open)
        c->ops.open(c->owner);
}

struct wsclient *wsclient_open(struct loop *loop, const char *url, size_t max_message,
                               const struct wsclient_ops *ops, void *owner, struct abx_error *err)
{
    struct wsclient *c = calloc(1, sizeof *c);
    if (!c) {
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    c->loop = loop;
    c->ops = *ops;
    c->owner = owner;
    c->fd = -1;
    c->max_message = max_message;
    if (parse_url(c, url, err) < 0) {
        free(c);
        return NULL;
    }
    c->connecting = true;
    if (loop_work(loop, WORK_ALONE, connect_work, connect_done, c) < 0) {
        free(c);
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    return c;
}

void wsclient_close(struct wsclient *c)
{
    if (!c)
        return;
    c->closed = true;
    if (!c->connecting)
        release(c);
}
