/* The event stream of a session: frames of its log as SSE, paced by the client. */
#include "routes/agents/common.h"

#include "base/log.h"
#include "base/num.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define PING_MS 15000

struct sse {
    struct agents *ag;
    struct stream *out;
    struct evlog_reader *in;
    struct timer ping;
    char session[AG_ID_MAX];
    char *owner;
    bool over;
};

static void sse_free(struct sse *x)
{
    timer_done(&x->ping);
    evlog_close(x->in);
    free(x->owner);
    free(x);
}

static void sse_end(struct sse *x)
{
    if (x->over)
        return;
    x->over = true;
    stream_end(x->out);
    sse_free(x);
}

static bool on_frame(void *owner, int64_t seq, int sub, const char *type, const char *data,
                     size_t len)
{
    struct sse *x = owner;
    char head[160];
    int n = snprintf(head, sizeof(head), "id: %lld\nevent: %s\ndata: ", (long long)seq, type);
    stream_write(x->out, head, (size_t)n);
    stream_write(x->out, data, len);
    stream_write(x->out, "\n\n", 2);
    timer_start(&x->ping, PING_MS);
    if (strcmp(type, "agent.session.idle") == 0) {
        struct session *s = session_find(x->ag, x->session, x->owner, false);
        if (s && !s->n_turns && !s->pending && s->log.next_seq == seq + 1) {
            sse_end(x);
            return false;
        }
    } else if (strcmp(type, "agent.session.deleted") == 0) {
        sse_end(x);
        return false;
    }
    return true;
}

static bool is_ready(void *owner)
{
    struct sse *x = owner;
    return !stream_full(x->out);
}

static void on_gap(void *owner, int64_t first)
{
    struct sse *x = owner;
    char frame[320];
    int n = snprintf(
        frame, sizeof(frame),
        "event: agent.session.gap\ndata: {\"type\":\"agent.session.gap\",\"session_id\":\"%s\","
        "\"first_available\":\"evt_%010lld\"}\n\n",
        x->session, (long long)first);
    stream_write(x->out, frame, (size_t)n);
}

static void on_ended(void *owner) { sse_end(owner); }

static void on_drain(void *owner)
{
    struct sse *x = owner;
    evlog_resume(x->in);
}

static void on_gone(void *owner) { sse_free(owner); }

static void on_ping(void *data)
{
    struct sse *x = data;
    if (!stream_full(x->out))
        stream_write(x->out, ": ping\n\n", 8);
    timer_start(&x->ping, PING_MS);
}

/* "12", "evt_0000000012", "evt_0000000012_1": 12. */
static int read_after(const char *text, int64_t *ret)
{
    char digits[24];
    const char *p = strncmp(text, "evt_", 4) == 0 ? text + 4 : text;
    size_t n = strspn(p, "0123456789");
    if (!n || n >= sizeof(digits) || (p == text && text[n]))
        return -1;
    memcpy(digits, p, n);
    digits[n] = '\0';
    return num_parse(digits, 0, INT64_MAX - 1, ret);
}

int agents_sessions_events_stream(struct call *c)
{
    static const struct stream_ops stream_ops = {.drain = on_drain, .gone = on_gone};
    static const struct evlog_ops log_ops = {
        .frame = on_frame, .ready = is_ready, .gap = on_gap, .ended = on_ended};
    const char *id = call_param(c, "id"), *after = req_query(c->req, "after", NULL);
    struct session *s = session_find(c->ag, id, call_owner(c), false);
    if (!s)
        return ag_unknown(c->e, "session_id", "session", id);
    int64_t newest = s->log.next_seq - 1, from = newest;
    const char *last = req_header(c->req, "Last-Event-ID");
    if (after) {
        if (read_after(after, &from) < 0)
            return ag_invalid(c->e, "after", "after: a number or an event id");
        if (from > newest)
            return ag_invalid(c->e, "after", "after: this session has no event of that number yet");
    } else if (last && *last && read_after(last, &from) == 0) {
        from = from > newest ? newest : from;
    }
    if (s->log.n_readers >= AG_MAX_STREAMS)
        return ag_fail(c->e, 429, "agents.too_many_streams", NULL,
                       "this session has %d streams already", AG_MAX_STREAMS);
    struct sse *x = calloc(1, sizeof(*x));
    if (!x)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    x->ag = c->ag;
    x->owner = strdup(call_owner(c));
    snprintf(x->session, sizeof(x->session), "%s", s->id);
    timer_init(&x->ping, req_loop(c->req), on_ping, x);
    if (!x->owner || reply_headers(c) < 0 ||
        resp_header(c->resp, "Cache-Control", "no-cache", c->err) < 0) {
        sse_free(x);
        return -1;
    }
    x->in = evlog_read(&s->log, from, &log_ops, x);
    if (!x->in) {
        sse_free(x);
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    }
    x->out = stream_open_raw(c->req, "text/event-stream", -1, &stream_ops, x);
    if (!x->out) {
        sse_free(x);
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    }
    timer_start(&x->ping, PING_MS);
    return REQ_PENDING;
}
