/* A connection: bytes in, through llhttp, to the pipeline; answers, streams and WebSockets out.
 *
 * Reading stops while a handler works; what came too early waits in `in`. Interest in READABLE is
 * dropped only when something does arrive meanwhile, so that a quick handler costs no epoll_ctl.
 * llhttp sees heads and chunked bodies; a body with Content-Length is counted here and can be read
 * straight into its consumer's buffer. */

#include "http/internal.h"

#include "base/log.h"
#include "base/num.h"
#include "base/own.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#define DRAIN_MS 5000
#define BODY_MIN_RATE 4096         /* bytes a second that a body must come at, beyond its grace time */
#define STREAM_STALL_MS 600000     /* a stream whose reader takes nothing for this long is cut */
#define SENDFILE_TURN (4 * 1024 * 1024)

static void conn_event(void *data, int events);
static void conn_timeout(void *data);
static void process(struct conn *c, const char *data, size_t len);

/* --- llhttp ------------------------------------------------------------------------------------------ */

static struct req *head_req(llhttp_t *p)
{
    struct conn *c = p->data;
    return c->req;
}

static bool is_token_char(unsigned char ch)
{
    return ch > ' ' && ch < 0x7F && !strchr("\"(),/:;<=>?@[\\]{}", ch);
}

/* Notes why the head is refused and stops the parser. */
static int head_refuse(struct req *r, enum error_kind kind)
{
    r->head_error = (uint8_t)kind;
    return -1;
}

static int head_append(struct req *r, const char *at, size_t len)
{
    if (r->head.len + len > MAX_HEAD)
        return head_refuse(r, E_HEADERS_TOO_LARGE);
    buf_add(&r->head, at, len);
    return r->head.failed ? head_refuse(r, E_NO_MEMORY) : 0;
}

static int on_url(llhttp_t *p, const char *at, size_t len)
{
    struct req *r = head_req(p);
    if (r->head.len + len > MAX_REQUEST_LINE)
        return head_refuse(r, E_URI_TOO_LONG);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)at[i] <= ' ' || (unsigned char)at[i] >= 0x7F)
            return head_refuse(r, E_BAD_REQUEST);
    return head_append(r, at, len);
}

static int on_url_complete(llhttp_t *p)
{
    struct req *r = head_req(p);
    r->target_len = (uint32_t)r->head.len;
    return head_append(r, "", 1);
}

static int on_field(llhttp_t *p, const char *at, size_t len)
{
    struct req *r = head_req(p);
    if (r->n_headers >= MAX_HEADERS)
        return head_refuse(r, E_HEADERS_TOO_LARGE);
    if (!r->line_start)
        r->line_start = (uint32_t)r->head.len;
    if (r->head.len - r->line_start + len > MAX_HEADER_LINE)
        return head_refuse(r, E_HEADERS_TOO_LARGE);
    for (size_t i = 0; i < len; i++)
        if (!is_token_char((unsigned char)at[i]))
            return head_refuse(r, E_BAD_REQUEST);
    return head_append(r, at, len);
}

static int on_field_complete(llhttp_t *p)
{
    struct req *r = head_req(p);
    if (r->n_headers >= MAX_HEADERS || r->line_start == 0 || r->head.len == r->line_start)
        return head_refuse(r, E_BAD_REQUEST); /* a line that begins with a colon */
    r->headers[r->n_headers].name = r->line_start;
    if (head_append(r, "", 1) < 0)
        return -1;
    /* Lengths are ours to read (check_framing): llhttp ends the head at the second of two equal ones and at
     * one beyond 64 bits, which are fine here and a 413. It forgets that it knows the name. */
    if (strcasecmp(r->head.data + r->line_start, "content-length") == 0)
        p->header_state = 0;
    r->headers[r->n_headers].value = (uint32_t)r->head.len;
    return 0;
}

static int on_value(llhttp_t *p, const char *at, size_t len)
{
    struct req *r = head_req(p);
    if (r->head.len - r->line_start + len > MAX_HEADER_LINE)
        return head_refuse(r, E_HEADERS_TOO_LARGE);
    for (size_t i = 0; i < len; i++)
        if (((unsigned char)at[i] < ' ' && at[i] != '\t') || at[i] == 0x7F)
            return head_refuse(r, E_BAD_REQUEST);
    return head_append(r, at, len);
}

static int on_value_complete(llhttp_t *p)
{
    struct req *r = head_req(p);
    struct header *h = &r->headers[r->n_headers++];
    while (r->head.len > h->value && (r->head.data[r->head.len - 1] == ' ' || r->head.data[r->head.len - 1] == '\t'))
        r->head.len--;
    h->value_len = (uint32_t)(r->head.len - h->value);
    r->line_start = 0;
    return head_append(r, "", 1);
}

/* A length of plain digits; what is beyond 63 bits is as good as their end: any limit is below it. */
static int read_length(const char *text, size_t len, int64_t *ret)
{
    if (len == 0 || strspn(text, "0123456789") != len)
        return -1;
    int64_t n = 0;
    for (size_t i = 0; i < len; i++)
        if (ckd_mul(&n, n, 10) || ckd_add(&n, n, text[i] - '0')) {
            n = INT64_MAX;
            break;
        }
    *ret = n;
    return 0;
}

static bool same_value(const struct req *r, uint32_t i, uint32_t j)
{
    return r->headers[i].value_len == r->headers[j].value_len &&
           memcmp(r->head.data + r->headers[i].value, r->head.data + r->headers[j].value, r->headers[i].value_len) == 0;
}

/* Framing that two parsers could read differently is refused (RFC 9112, 6.3 and 11.2), beyond what llhttp
 * refuses itself. Equal lengths are one (RFC 9110, 8.6). */
static int check_framing(struct req *r, llhttp_t *p)
{
    unsigned codings = 0, hosts = 0;
    int64_t length = -1;
    uint32_t length_at = 0;
    for (uint32_t i = 0; i < r->n_headers; i++) {
        const char *name = r->head.data + r->headers[i].name, *value = r->head.data + r->headers[i].value;
        if (strcasecmp(name, "content-length") == 0) {
            if (length >= 0 && !same_value(r, i, length_at))
                return head_refuse(r, E_BAD_LENGTH);
            if (read_length(value, r->headers[i].value_len, &length) < 0)
                return head_refuse(r, E_BAD_LENGTH);
            length_at = i;
        } else if (strcasecmp(name, "transfer-encoding") == 0) {
            if (r->headers[i].value_len == 0)
                return head_refuse(r, E_BAD_REQUEST);
            codings++;
        } else if (strcasecmp(name, "host") == 0) {
            hosts++;
        }
    }
    if (hosts > 1)
        return head_refuse(r, E_BAD_REQUEST);
    if (codings > 1 || (codings && (length >= 0 || p->http_minor == 0))) /* HTTP/1.0 knows none */
        return head_refuse(r, E_UNSUPPORTED_ENCODING);
    r->content_length = length;
    return 0;
}

static int on_headers_complete(llhttp_t *p)
{
    struct conn *c = p->data;
    struct req *r = c->req;
    r->method = p->method;
    r->http10 = p->http_minor == 0;
    if (p->http_major != 1)
        return head_refuse(r, E_HTTP_VERSION);
    if (check_framing(r, p) < 0)
        return -1;
    c->keep_alive = llhttp_should_keep_alive(p);
    const char *coding = req_header(r, "transfer-encoding");
    c->chunked = coding && strcasecmp(coding, "chunked") == 0;
    c->chunks_done = false;
    if (coding && !c->chunked)
        c->keep_alive = false; /* whatever follows can't be read */
    c->body_left = r->content_length > 0 ? r->content_length : 0;
    if (c->chunked)
        return HPE_PAUSED; /* the body is parsed after admission */
    return 1; /* no body as far as llhttp is concerned; on_message_complete pauses it */
}

static int on_message_complete(llhttp_t *p)
{
    struct conn *c = p->data;
    c->chunks_done = true;
    return HPE_PAUSED;
}

/* Gives bytes of the body to who wants them. False: answered with a refusal. */
static bool deliver(struct conn *c, const char *data, size_t len)
{
    struct req *r = c->req;
    if (!r || r->answered)
        return true; /* being drained */
    if (r->sink) {
        struct abx_error err;
        if (r->sink->data(r->sink_owner, data, len, &err) < 0) {
            r->sink = NULL;
            if (!r->answered)
                pipeline_refuse(r, &err, NULL);
            return false;
        }
        return true;
    }
    if ((int64_t)(r->body_text.len + len) > r->max_body) {
        struct abx_error err;
        abx_fail(&err, E_TOO_LARGE, 0, "Request body too large; limit is %lld", (long long)r->max_body);
        pipeline_refuse(r, &err, json_pack("{s:I}", "limit", (json_int_t)r->max_body));
        return false;
    }
    buf_add(&r->body_text, data, len);
    if (r->body_text.failed) {
        struct abx_error err;
        abx_fail(&err, E_NO_MEMORY, 0, "out of memory");
        pipeline_refuse(r, &err, NULL);
        return false;
    }
    return true;
}

static int on_body(llhttp_t *p, const char *at, size_t len)
{
    struct conn *c = p->data;
    if (!deliver(c, at, len))
        return HPE_USER;
    /* What was read may hold further chunks: a consumer that has paused gets them when it goes on. */
    return c->state == CONN_BODY && c->body_paused ? HPE_PAUSED : 0;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_url_complete = on_url_complete,
    .on_header_field = on_field,
    .on_header_field_complete = on_field_complete,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

/* --- life ---------------------------------------------------------------------------------------------- */

struct conn *conn_new(struct http *h, int fd, enum http_port_kind kind)
{
    struct conn *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->http = h;
    c->fd = fd;
    c->file_fd = -1;
    c->kind = kind;
    list_init(&c->link);
    list_init(&c->idle_link);
    list_init(&c->dirty_link);
    timer_init(&c->deadline, h->loop, conn_timeout, c);
    if (io_init(&c->io, h->loop, fd, conn_event, c) != 0) {
        free(c);
        return NULL;
    }
    llhttp_init(&c->parser, HTTP_REQUEST, &settings);
    c->parser.data = c;
    list_append(&h->conns, &c->link);
    h->n_conns++;
    h->metrics->connections++;
    h->metrics->accepted++;
    list_append(&h->idle, &c->idle_link);
    timer_start(&c->deadline, h->config.head_timeout_ms);
    c->wanted = UV_READABLE | UV_DISCONNECT;
    io_want(&c->io, c->wanted);
    return c;
}

/* Called when a connection has gone: the last one ends a stop. */
static void http_conn_gone(struct http *h)
{
    if (h->stopping && h->n_conns == 0 && h->stopped) {
        void (*fn)(void *data) = h->stopped;
        h->stopped = NULL;
        timer_stop(&h->stop_timer);
        loop_post(h->loop, fn, h->stopped_data);
    }
}

void conn_close(struct conn *c)
{
    if (c->fd < 0)
        return;
    struct http *h = c->http;
    list_remove(&c->link);
    list_remove(&c->idle_link);
    list_remove(&c->dirty_link);
    timer_done(&c->deadline);
    io_done(&c->io);
    close(c->fd);
    c->fd = -1;
    h->n_conns--;
    h->metrics->connections--;
    buf_done(&c->in);
    buf_done(&c->out);
    c->out_at = 0;
    if (c->file_fd >= 0)
        close(c->file_fd);
    c->file_fd = -1;
    struct req *r = c->req;
    c->req = NULL;
    if (c->ws) {
        struct ws *ws = c->ws;
        c->ws = NULL;
        ws_gone(ws);
    } else if (c->stream) {
        struct stream *s = c->stream;
        c->stream = NULL;
        if (r)
            r->conn = NULL;
        stream_gone(s);
    } else if (r) {
        r->conn = NULL;
        bool pending = r->dispatched && !r->answered;
        if (pending)
            req_set_gone(r); /* its handler still answers; that lets it go */
        else
            req_unref(r);
    }
    c->closed = true;
    list_append(&h->dead, &c->dirty_link); /* whoever is on the stack may still look at it */
    http_conn_gone(h);
}

/* --- writing --------------------------------------------------------------------------------------------- */

size_t conn_pending(const struct conn *c)
{
    return c->out.len - c->out_at + (c->file_left > 0 ? (size_t)c->file_left : 0);
}

void conn_flush_later(struct conn *c)
{
    if (list_empty(&c->dirty_link))
        list_append(&c->http->dirty, &c->dirty_link);
}

/* 1: all is out; 0: the socket is full; -1: it is broken. */
static int write_out(struct conn *c)
{
    while (c->out_at < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->out_at, c->out.len - c->out_at,
                         MSG_NOSIGNAL | (c->file_left > 0 ? MSG_MORE : 0));
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN ? 0 : -1;
        }
        c->out_at += (size_t)n;
        c->http->metrics->sent += n;
    }
    if (c->out.cap > STREAM_HIGH)
        buf_done(&c->out);
    else
        buf_reset(&c->out);
    c->out_at = 0;
    int64_t turn = SENDFILE_TURN;
    while (c->file_left > 0) {
        if (turn <= 0)
            return 0; /* others first; the socket is still writable */
        off_t at = (off_t)c->file_at;
        ssize_t n = sendfile(c->fd, c->file_fd, &at, (size_t)(c->file_left < turn ? c->file_left : turn));
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN ? 0 : -1;
        }
        if (n == 0)
            return -1; /* the file became shorter: the client must see that the answer is not whole */
        c->file_at += n;
        c->file_left -= n;
        c->http->metrics->sent += n;
        c->http->metrics->file_read += n;
        turn -= n;
    }
    if (c->file_fd >= 0) {
        close(c->file_fd);
        c->file_fd = -1;
    }
    return 1;
}

static void answer_done(struct conn *c);

void conn_flush(struct conn *c)
{
    list_remove(&c->dirty_link);
    size_t before = conn_pending(c);
    int rc = write_out(c);
    if (rc < 0) {
        conn_close(c);
        return;
    }
    if (rc == 1) {
        if (c->state == CONN_ANSWER) {
            answer_done(c);
            return;
        }
        if (c->stream || c->ws)
            timer_stop(&c->deadline);
    } else if (conn_pending(c) < before || !timer_running(&c->deadline)) {
        /* The clock of a stalled reader restarts with each byte it takes. */
        timer_start(&c->deadline, c->stream || c->ws ? STREAM_STALL_MS : c->http->config.write_timeout_ms);
    }
    conn_update(c);
    if (c->closed)
        return;
    if (c->stream && conn_pending(c) <= STREAM_LOW)
        stream_drained(c->stream);
    else if (c->ws)
        ws_drained(c->ws);
}

/* --- states ------------------------------------------------------------------------------------------------ */

void conn_update(struct conn *c)
{
    if (c->fd < 0)
        return;
    int want = 0;
    switch (c->state) {
    case CONN_HEAD:
    case CONN_DRAIN:
    case CONN_LINGER:
        want = UV_READABLE | UV_DISCONNECT;
        break;
    case CONN_BODY:
        want = c->body_paused ? UV_DISCONNECT : UV_READABLE | UV_DISCONNECT;
        break;
    case CONN_BUSY:
    case CONN_ANSWER:
        /* READABLE stays as it is until something arrives (conn_event). */
        want = (c->wanted & UV_READABLE) | UV_DISCONNECT;
        break;
    case CONN_WS:
        want = ws_paused(c->ws) ? UV_DISCONNECT : UV_READABLE | UV_DISCONNECT;
        break;
    }
    if (c->half_closed)
        want &= ~(UV_DISCONNECT | UV_READABLE);
    if (c->eof_seen)
        want &= ~UV_DISCONNECT;
    if (conn_pending(c) > 0)
        want |= UV_WRITABLE;
    if (want == c->wanted)
        return;
    c->wanted = want;
    if (io_want(&c->io, want) != 0)
        conn_close(c);
}

/* Waiting for the next request. */
static void to_head(struct conn *c)
{
    c->state = CONN_HEAD;
    c->body_left = 0;
    c->chunked = false;
    list_append(&c->http->idle, &c->idle_link);
    timer_start(&c->deadline, c->http->config.idle_timeout_ms);
}

/* No more from us; the peer may still be sending, and a close now would reset what it has not read. */
static void to_linger(struct conn *c)
{
    if (c->half_closed) {
        conn_close(c);
        return;
    }
    shutdown(c->fd, SHUT_WR);
    c->state = CONN_LINGER;
    timer_start(&c->deadline, LINGER_MS);
}

/* The answer is written. */
static void answer_done(struct conn *c)
{
    if (!c->keep_alive || c->half_closed || c->http->stopping) {
        to_linger(c);
    } else if (c->body_left > 0) {
        c->state = CONN_DRAIN;
        timer_start(&c->deadline, DRAIN_MS);
    } else {
        to_head(c);
    }
    if (c->fd >= 0 && !c->reading)
        conn_resume(c);
}

void conn_answered(struct conn *c, bool body_unread)
{
    struct req *r = c->req;
    c->req = NULL;
    r->conn = NULL;
    req_unref(r);
    c->state = CONN_ANSWER;
    c->body_paused = false;
    if (!body_unread)
        c->body_left = 0;
    if (conn_pending(c) == 0) {
        timer_stop(&c->deadline);
        answer_done(c);
        return;
    }
    conn_flush(c);
}

void conn_resume(struct conn *c)
{
    if (c->reading || c->closed)
        return;
    if (c->in.len == 0) {
        conn_update(c);
        return;
    }
    struct buf in = c->in;
    c->in = (struct buf)BUF_INIT;
    process(c, in.data, in.len);
    buf_done(&in);
}

void conn_to_ws(struct conn *c)
{
    c->state = CONN_WS;
    timer_stop(&c->deadline);
    list_remove(&c->idle_link);
    if (!c->reading)
        conn_resume(c);
}

void conn_ws_linger(struct conn *c)
{
    struct ws *ws = c->ws;
    c->ws = NULL;
    c->req = NULL;
    to_linger(c);
    ws_gone(ws);
    conn_update(c);
}

/* --- the body ---------------------------------------------------------------------------------------------- */

static void start_clock_of_body(struct conn *c)
{
    struct http *h = c->http;
    uint64_t size = c->body_left > 0 ? (uint64_t)c->body_left : 0;
    c->body_until = loop_now(h->loop) + h->config.body_timeout_ms + size / BODY_MIN_RATE * 1000;
    timer_start(&c->deadline, h->config.body_timeout_ms);
}

static void body_progress(struct conn *c)
{
    struct http *h = c->http;
    uint64_t now = loop_now(h->loop), wait = h->config.body_timeout_ms;
    /* A chunked body has no total: it must only keep coming. */
    if (!c->chunked && c->body_until < now + wait)
        wait = c->body_until > now ? c->body_until - now : 0;
    timer_start(&c->deadline, wait);
}

static void body_complete(struct conn *c)
{
    struct req *r = c->req;
    timer_stop(&c->deadline);
    c->state = CONN_BUSY;
    if (r->sink) {
        const struct body_sink *sink = r->sink;
        r->sink = NULL;
        sink->end(r->sink_owner);
    } else {
        pipeline_body(r);
    }
}

/* What came with the head, or nothing yet, is still to be looked at. */
void conn_start_body(struct conn *c)
{
    struct req *r = c->req;
    c->state = CONN_BODY;
    c->body_paused = false;
    if (c->body_left == 0 && !c->chunked) {
        r->expect_100 = false;
        body_complete(c);
        return;
    }
    if (r->expect_100) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        buf_add(&c->out, go_on, sizeof go_on - 1);
        r->expect_100 = false;
        conn_flush_later(c);
    }
    start_clock_of_body(c);
    if (!c->reading)
        conn_resume(c);
}

void req_body_start(struct req *r, const struct body_sink *sink, void *owner)
{
    struct conn *c = r->conn;
    r->sink = sink;
    r->sink_owner = owner;
    if (!c) {
        r->sink = NULL;
        loop_post(r->http->loop, sink->gone, owner);
        return;
    }
    conn_start_body(c);
}

void req_body_pause(struct req *r)
{
    if (!r->conn || r->conn->state != CONN_BODY)
        return;
    r->conn->body_paused = true;
    timer_stop(&r->conn->deadline);
    if (!r->conn->reading)
        conn_update(r->conn);
}

void req_body_resume(struct req *r)
{
    struct conn *c = r->conn;
    if (!c || c->state != CONN_BODY || !c->body_paused)
        return;
    c->body_paused = false;
    c->body_until += c->http->config.body_timeout_ms / 4; /* time that was ours */
    body_progress(c);
    if (!c->reading && (c->chunked ? c->chunks_done : c->body_left == 0))
        body_complete(c);
    else
        conn_resume(c);
}

int64_t req_body_length(const struct req *r)
{
    return r->conn && r->conn->chunked ? -1 : r->content_length > 0 ? r->content_length : 0;
}

const char *req_content_type(const struct req *r)
{
    const char *type = req_header(r, "content-type");
    return type ? type : "";
}

static size_t take_body(struct conn *c, const char *data, size_t len)
{
    if (!c->chunked) {
        size_t n = (uint64_t)c->body_left < len ? (size_t)c->body_left : len;
        c->body_left -= (int64_t)n;
        body_progress(c);
        if (!deliver(c, data, n))
            return n;
        if (c->fd >= 0 && c->state == CONN_BODY && c->body_left == 0 && !c->body_paused)
            body_complete(c);
        return n;
    }
    llhttp_resume(&c->parser);
    llhttp_errno_t rc = llhttp_execute(&c->parser, data, len);
    if (c->closed || c->state != CONN_BODY)
        return len; /* refused meanwhile: nothing behind it is read as a request */
    if (rc == HPE_OK) {
        body_progress(c);
        return len;
    }
    if (rc == HPE_PAUSED) {
        size_t n = (size_t)(llhttp_get_error_pos(&c->parser) - data);
        if (c->chunks_done) {
            if (!c->body_paused)
                body_complete(c);
        }
        return n;
    }
    struct req *r = c->req;
    c->chunks_done = true;
    c->keep_alive = false;
    if (r->sink) {
        /* Its owner hears that no more comes and fails the request, at once or after its last write; what it
         * says becomes the 400 that this is. */
        r->body_broken = true;
        c->state = CONN_BUSY;
        timer_stop(&c->deadline);
        req_set_gone(r);
        return len;
    }
    pipeline_bad(c, E_BAD_REQUEST, "The chunked body is malformed");
    return len;
}

/* --- the head ------------------------------------------------------------------------------------------------ */

/* Why llhttp (or a callback of ours) refused. */
static enum error_kind head_error(struct conn *c, llhttp_errno_t rc, const char *data, size_t len,
                                  const char **ret_message)
{
    if (c->req->head_error) {
        enum error_kind kind = (enum error_kind)c->req->head_error;
        *ret_message = kind == E_URI_TOO_LONG         ? "The request line is too long"
                       : kind == E_HEADERS_TOO_LARGE ? "The headers are too large or too many"
                       : kind == E_BAD_LENGTH        ? "Invalid Content-Length header"
                       : kind == E_HTTP_VERSION      ? "Only HTTP/1.0 and HTTP/1.1 are spoken here"
                       : kind == E_NO_MEMORY         ? "out of memory"
                       : kind == E_UNSUPPORTED_ENCODING ? "This Transfer-Encoding is not supported; send Content-Length"
                                                     : "The request head is ambiguous or malformed";
        return kind;
    }
    switch ((int)rc) {
    case HPE_INVALID_VERSION:
    case HPE_PAUSED_H2_UPGRADE:
        *ret_message = "Only HTTP/1.0 and HTTP/1.1 are spoken here";
        return E_HTTP_VERSION;
    case HPE_INVALID_TRANSFER_ENCODING:
        *ret_message = "This Transfer-Encoding is not supported; send Content-Length";
        return E_UNSUPPORTED_ENCODING;
    case HPE_INVALID_METHOD: {
        /* A well-formed word that is no method we know is 501, garbage is 400. */
        size_t i = 0;
        while (i < len && is_token_char((unsigned char)data[i]))
            i++;
        if (i > 0 && i < 32 && (i == len || data[i] == ' ')) {
            *ret_message = "This method is not implemented";
            return E_NOT_IMPLEMENTED;
        }
        break;
    }
    default:
        break;
    }
    *ret_message = "The request head is malformed";
    return E_BAD_REQUEST;
}

/* Line folding (RFC 9112, 5.2) is refused; llhttp passes it. */
static bool has_folding(struct conn *c, const char *data, size_t len)
{
    const char *p = data, *end = data + len;
    bool after = c->after_newline;
    c->after_newline = len > 0 && data[len - 1] == '\n';
    if (after && len > 0 && (*p == ' ' || *p == '\t'))
        return true;
    while ((p = memchr(p, '\n', (size_t)(end - p)))) {
        if (++p == end)
            return false;
        if (*p == ' ' || *p == '\t')
            return true;
    }
    return false;
}

/* Runs llhttp over a piece of a head. A line end that is a bare LF is legal in a head (RFC 9112, 2.2) but
 * not in llhttp's strict mode: it is given as CR LF. *ret_used: how far it got when it paused. */
static llhttp_errno_t parse_head(struct conn *c, const char *data, size_t len, size_t *ret_used)
{
    size_t at = 0;
    while (at < len) {
        const char *from = data + at, *lone = NULL;
        for (const char *p = from; (p = memchr(p, '\n', (size_t)(data + len - p))); p++) {
            char before = p > data ? p[-1] : c->last_byte;
            if (before != '\r') {
                lone = p;
                break;
            }
        }
        size_t n = lone ? (size_t)(lone - from) : len - at;
        llhttp_errno_t rc = llhttp_execute(&c->parser, from, n);
        if (rc != HPE_OK) {
            *ret_used = rc == HPE_PAUSED ? (size_t)(llhttp_get_error_pos(&c->parser) - data) : len;
            return rc;
        }
        at += n;
        if (!lone)
            break;
        rc = llhttp_execute(&c->parser, "\r\n", 2);
        at++;
        if (rc != HPE_OK) {
            *ret_used = at;
            return rc;
        }
    }
    c->last_byte = data[len - 1];
    *ret_used = len;
    return HPE_OK;
}

static size_t take_head(struct conn *c, const char *data, size_t len)
{
    if (!c->req) {
        /* Empty lines before a request are skipped (RFC 9112, 2.2). */
        size_t skip = 0;
        while (skip < len && (data[skip] == '\r' || data[skip] == '\n'))
            skip++;
        if (skip > 0)
            return skip;
        c->req = req_new(c);
        if (!c->req) {
            conn_close(c);
            return len;
        }
        list_remove(&c->idle_link);
        llhttp_reset(&c->parser);
        c->after_newline = false;
        c->last_byte = 0;
        timer_start(&c->deadline, c->http->config.head_timeout_ms);
    }
    size_t used;
    llhttp_errno_t rc = parse_head(c, data, len, &used);
    if (rc == HPE_OK) {
        if (has_folding(c, data, len))
            pipeline_bad(c, E_BAD_REQUEST, "Folded header lines are not accepted");
        return len;
    }
    if (rc != HPE_PAUSED) {
        const char *message;
        enum error_kind kind = head_error(c, rc, data, len, &message);
        pipeline_bad(c, kind, message);
        return len;
    }
    if (has_folding(c, data, used)) {
        pipeline_bad(c, E_BAD_REQUEST, "Folded header lines are not accepted");
        return len;
    }
    timer_stop(&c->deadline);
    pipeline_head(c->req);
    return used;
}

/* --- reading -------------------------------------------------------------------------------------------------- */

/* Uses up data as far as the state allows; the rest waits in c->in. */
static void process(struct conn *c, const char *data, size_t len)
{
    c->reading = true;
    while (len > 0 && !c->closed) {
        size_t n;
        switch (c->state) {
        case CONN_HEAD:
            n = take_head(c, data, len);
            break;
        case CONN_BODY:
            if (c->body_paused)
                goto keep;
            n = take_body(c, data, len);
            break;
        case CONN_DRAIN:
            n = (uint64_t)c->body_left < len ? (size_t)c->body_left : len;
            c->body_left -= (int64_t)n;
            if (c->body_left == 0)
                to_head(c);
            break;
        case CONN_LINGER:
            n = len;
            break;
        case CONN_WS:
            if (ws_paused(c->ws))
                goto keep;
            ws_readable(c->ws, data, len);
            n = len;
            break;
        case CONN_BUSY:
        case CONN_ANSWER:
        default:
            goto keep;
        }
        data += n;
        len -= n;
    }
    /* A body that is complete, whose consumer had paused, ends when it goes on. */
    if (!c->closed && c->state == CONN_BODY && !c->body_paused &&
        (c->chunked ? c->chunks_done : c->body_left == 0))
        body_complete(c);
keep:
    c->reading = false;
    if (c->closed)
        return;
    if (len > 0) {
        buf_add(&c->in, data, len);
        if (c->in.failed) {
            conn_close(c);
            return;
        }
    }
    conn_update(c);
}

static void peer_finished(struct conn *c)
{
    c->half_closed = true;
    struct req *r = c->req;
    switch (c->state) {
    case CONN_BODY:
        if (r && r->sink) {
            conn_close(c);
            return;
        }
        pipeline_bad(c, E_BAD_REQUEST, "The body ended before its Content-Length");
        return;
    case CONN_BUSY:
        if (c->stream) {
            conn_close(c);
            return;
        }
        conn_update(c);
        if (r && r->dispatched && !(r->route && (r->route->ep.flags & EP_HALF_CLOSE_OK)))
            req_set_gone(r);
        return;
    case CONN_ANSWER:
        conn_update(c);
        return;
    case CONN_HEAD:
        if (r) { /* a head cut short deserves an answer: the peer may still read */
            pipeline_bad(c, E_BAD_REQUEST, "The request head is incomplete");
            return;
        }
        conn_close(c);
        return;
    case CONN_DRAIN:
    case CONN_LINGER:
    case CONN_WS:
    default:
        conn_close(c);
        return;
    }
}

static void conn_read(struct conn *c)
{
    struct req *r = c->req;
    char *into = c->http->scratch;
    size_t room = READ_CHUNK;
    bool direct = false;
    if (c->state == CONN_BODY && !c->chunked && r && r->sink && r->sink->buffer) {
        void *own = r->sink->buffer(r->sink_owner, &room);
        if (own) {
            into = own;
            direct = true;
            if ((int64_t)room > c->body_left)
                room = (size_t)c->body_left;
        } else {
            room = READ_CHUNK;
        }
    }
    ssize_t n = recv(c->fd, into, room, 0);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return;
        conn_close(c);
        return;
    }
    if (n == 0) {
        peer_finished(c);
        return;
    }
    c->http->metrics->received += n;
    if (!direct && c->in.len > 0) {
        struct buf in = c->in;
        c->in = (struct buf)BUF_INIT;
        buf_add(&in, into, (size_t)n);
        if (in.failed)
            conn_close(c);
        else
            process(c, in.data, in.len);
        buf_done(&in);
        return;
    }
    process(c, into, (size_t)n);
}

static void conn_event(void *data, int events)
{
    struct conn *c = data;
    if (events < 0) {
        conn_close(c);
        return;
    }
    if (events & UV_WRITABLE) {
        c->reading = true; /* no request is begun from within the flush */
        conn_flush(c);
        c->reading = false;
        if (c->closed)
            return;
        if (c->state != CONN_BUSY && c->in.len > 0) {
            conn_resume(c);
            return;
        }
        conn_update(c);
    }
    if (!(events & (UV_READABLE | UV_DISCONNECT)))
        return;
    if (c->state == CONN_BUSY || c->state == CONN_ANSWER || (c->state == CONN_BODY && c->body_paused) ||
        (c->state == CONN_WS && ws_paused(c->ws))) {
        if (events & UV_DISCONNECT) {
            if (c->state == CONN_BODY || c->state == CONN_WS) {
                c->eof_seen = true; /* what it sent before is still to be read */
                conn_update(c);
                return;
            }
            peer_finished(c);
            return;
        }
        c->wanted &= ~UV_READABLE;
        io_want(&c->io, c->wanted);
        return;
    }
    conn_read(c);
}

static void conn_timeout(void *data)
{
    struct conn *c = data;
    switch (c->state) {
    case CONN_HEAD:
        if (!c->req) {
            conn_close(c);
            return;
        }
        pipeline_bad(c, E_REQUEST_TIMEOUT, "The request head took too long");
        return;
    case CONN_BODY: {
        struct req *r = c->req;
        if (r->sink) {
            conn_close(c); /* its consumer hears that it is gone */
            return;
        }
        pipeline_bad(c, E_REQUEST_TIMEOUT, "The request body took too long");
        return;
    }
    case CONN_BUSY:
    case CONN_ANSWER:
    case CONN_DRAIN:
    case CONN_LINGER:
    case CONN_WS:
    default:
        conn_close(c);
        return;
    }
}
