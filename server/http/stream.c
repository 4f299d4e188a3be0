/* Answers in pieces: SSE and raw bytes, with backpressure towards whoever produces them. */

#include "http/internal.h"

#include "base/json.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct stream {
    struct req *req;
    struct conn *conn; /* NULL: HEAD, nothing is sent */
    const struct stream_ops *ops;
    void *owner;
    bool sse, chunked, was_full;
    int64_t left; /* of a known length; -1: unknown */
    struct timer heartbeat;
    uint64_t last_write;
};

static void beat(void *data);

/* A HEAD request gets the head of the answer only; its producer hears that nobody listens. */
static void nobody_listens(void *data)
{
    struct stream *s = data;
    if (s->ops->gone)
        s->ops->gone(s->owner);
    req_unref(s->req);
    free(s);
}

static struct stream *stream_new(struct req *r, const struct stream_ops *ops, void *owner)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        abort(); /* 100 bytes; the caller has no way to go on */
    s->req = r;
    s->ops = ops;
    s->owner = owner;
    s->left = -1;
    timer_init(&s->heartbeat, r->http->loop, beat, s);
    return s;
}

static bool left_early(const struct stream *s)
{
    return s->conn->half_closed || atomic_load(&s->req->gone);
}

static struct stream *open_stream(struct req *r, const char *content_type, int64_t length, bool sse,
                                  const struct stream_ops *ops, void *owner)
{
    struct stream *s = stream_new(r, ops, owner);
    struct conn *c = r->conn;
    s->sse = sse;
    s->left = length;
    r->answered = true;
    r->sink = NULL;
    r->on_gone = NULL;
    measure_answer(r, r->resp.status);
    if (!c) {
        loop_post(r->http->loop, nobody_listens, s); /* takes the handler's reference */
        req_complete(r);
        return s;
    }
    s->conn = c;
    s->chunked = length < 0 && !r->http10;
    if ((length < 0 && r->http10) || r->http->stopping)
        c->keep_alive = false;
    bool unread = c->body_left > 0 || (c->chunked && !c->chunks_done);
    if (unread && (r->expect_100 || c->chunked || c->body_left > DRAIN_MAX))
        c->keep_alive = false;
    answer_head(r, &c->out, r->resp.status, content_type, length, s->chunked);
    if (r->method == HTTP_HEAD) {
        s->conn = NULL;
        req_complete(r);
        req_ref(r);
        conn_answered(c, unread);
        loop_post(r->http->loop, nobody_listens, s);
        return s;
    }
    c->state = CONN_BUSY;
    c->stream = s;
    s->last_write = loop_now(r->http->loop);
    if (sse) {
        timer_start(&s->heartbeat, HEARTBEAT_MS);
        r->http->metrics->streams++;
    }
    conn_flush_later(c);
    /* It left before the stream began: the producer hears it soon, not from within this call; and not by the
     * connection's deadline, which ends when the head has been written. */
    if (left_early(s))
        timer_start(&s->heartbeat, 0);
    return s;
}

struct stream *stream_open_sse(struct req *r, const struct stream_ops *ops, void *owner)
{
    if (!r->resp.has_content_type) {
        (void)resp_header(&r->resp, "Cache-Control", "no-cache", NULL); /* best effort */
        (void)resp_header(&r->resp, "X-Accel-Buffering", "no", NULL);   /* proxies: pass on at once */
    }
    return open_stream(r, "text/event-stream", -1, true, ops, owner);
}

struct stream *stream_open_raw(struct req *r, const char *content_type, int64_t length,
                               const struct stream_ops *ops, void *owner)
{
    return open_stream(r, content_type, length, false, ops, owner);
}

size_t stream_pending(const struct stream *s)
{
    return s->conn ? conn_pending(s->conn) : 0;
}

bool stream_full(const struct stream *s)
{
    if (!s->conn || conn_pending(s->conn) < STREAM_HIGH)
        return false;
    ((struct stream *)s)->was_full = true; /* drain is owed */
    return true;
}

/* Room for len bytes of payload with its chunk frame around it: begin, then payload, then end. */
static void chunk_begin(struct stream *s, size_t len)
{
    if (s->chunked)
        buf_addf(&s->conn->out, "%zx\r\n", len);
}

static void chunk_end(struct stream *s)
{
    struct conn *c = s->conn;
    if (s->chunked)
        buf_add(&c->out, "\r\n", 2);
    s->last_write = loop_now(s->req->http->loop);
    if (c->out.failed) {
        timer_start(&c->deadline, 0); /* out of memory: cut */
        return;
    }
    conn_flush_later(c);
}

void stream_write(struct stream *s, const void *data, size_t len)
{
    if (!s->conn || len == 0)
        return;
    if (s->left >= 0) {
        if ((int64_t)len > s->left)
            len = (size_t)s->left;
        s->left -= (int64_t)len;
    }
    chunk_begin(s, len);
    buf_add(&s->conn->out, data, len);
    chunk_end(s);
}

void stream_event_text(struct stream *s, const char *event, const char *json, size_t len, const char *id)
{
    if (!s->conn)
        return;
    struct buf *out = &s->conn->out;
    size_t total = 7 + strlen(event) + 1 + 6 + len + 2 + (id ? 4 + strlen(id) + 1 : 0);
    chunk_begin(s, total);
    buf_add(out, "event: ", 7);
    buf_adds(out, event);
    buf_add(out, "\n", 1);
    if (id) {
        buf_add(out, "id: ", 4);
        buf_adds(out, id);
        buf_add(out, "\n", 1);
    }
    buf_add(out, "data: ", 6);
    buf_add(out, json, len);
    buf_add(out, "\n\n", 2);
    chunk_end(s);
}

void stream_event(struct stream *s, const char *event, const json_t *data, const char *id)
{
    struct buf text = BUF_INIT;
    json_write(&text, data);
    if (!text.failed)
        stream_event_text(s, event, text.data, text.len, id);
    else if (s->conn)
        timer_start(&s->conn->deadline, 0);
    buf_done(&text);
}

void stream_comment(struct stream *s, const char *text)
{
    if (!s->conn)
        return;
    chunk_begin(s, strlen(text) + 4);
    buf_add(&s->conn->out, ": ", 2);
    buf_adds(&s->conn->out, text);
    buf_add(&s->conn->out, "\n\n", 2);
    chunk_end(s);
}

static void beat(void *data)
{
    struct stream *s = data;
    if (left_early(s)) {
        conn_close(s->conn); /* frees the stream */
        return;
    }
    uint64_t quiet = loop_now(s->req->http->loop) - s->last_write;
    if (quiet >= HEARTBEAT_MS) {
        if (conn_pending(s->conn) == 0)
            stream_comment(s, "ping");
        quiet = 0;
    }
    timer_start(&s->heartbeat, HEARTBEAT_MS - quiet);
}

/* Takes the stream off its connection. */
static void detach(struct stream *s)
{
    s->req->http->metrics->streams -= s->sse;
    timer_done(&s->heartbeat);
    s->conn->stream = NULL;
    s->conn = NULL;
}

void stream_end(struct stream *s)
{
    struct conn *c = s->conn;
    if (!c) {
        static const struct stream_ops silent = {0};
        s->ops = &silent; /* nobody_listens is on its way and frees it */
        return;
    }
    if (s->left > 0) {
        stream_abort(s);
        return;
    }
    struct req *r = s->req;
    if (s->chunked)
        buf_add(&c->out, "0\r\n\r\n", 5);
    bool unread = c->body_left > 0 || (c->chunked && !c->chunks_done);
    detach(s);
    free(s);
    req_complete(r);
    conn_answered(c, unread);
}

void stream_abort(struct stream *s)
{
    struct conn *c = s->conn;
    if (!c) {
        stream_end(s);
        return;
    }
    struct req *r = s->req;
    detach(s);
    free(s);
    req_complete(r);
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    conn_close(c); /* lets go of r */
}

void stream_drained(struct stream *s)
{
    if (!s->was_full)
        return;
    s->was_full = false;
    if (s->ops->drain)
        s->ops->drain(s->owner);
}

void stream_gone(struct stream *s)
{
    struct req *r = s->req;
    r->http->metrics->streams -= s->sse;
    timer_done(&s->heartbeat);
    atomic_store(&r->gone, true);
    req_complete(r);
    if (s->ops->gone)
        s->ops->gone(s->owner);
    free(s);
    req_unref(r);
}

void stream_stop(struct stream *s)
{
    static const struct stream_ops silent = {0};
    const struct stream_ops *ops = s->ops;
    s->ops = &silent;
    if (s->conn)
        s->conn->keep_alive = false;
    if (ops->gone)
        ops->gone(s->owner);
    stream_end(s);
}
