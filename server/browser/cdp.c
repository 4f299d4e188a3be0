#include "browser/cdp.h"

#include "base/json.h"
#include "base/list.h"
#include "base/num.h"
#include "base/own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How it works. Calls wait in a small hash of lists, keyed by id. Input is cut at NULs; a message
 * over BIG is handed on in the buffer it came in, so a 30 MB screenshot is held once. A message
 * that grows past CDP_MAX_MESSAGE is skipped to its NUL, and the call named in its first bytes
 * fails. */

#define BIG (256 * KIB)
#define BUCKETS 64
#define READ_CHUNK (256 * KIB)

struct cdp {
    struct loop *loop;
    struct cdp_ops ops;
    void *owner;
    unsigned refs; /* the owner, workers that parse, posted failures */
    bool ended;    /* closed or freed: nothing is called */
    int64_t next_id;
    struct list calls[BUCKETS];
    bool piped, watching;
    int read_fd, write_fd;
    struct io in_io, out_io;
    struct buf in;
    size_t scanned; /* bytes of `in` known to hold no NUL */
    bool skipping;  /* an oversized message is being dropped */
    struct buf out;
    size_t out_sent;
};

struct cdp_call {
    struct list link;
    struct cdp *conn;
    int64_t id;
    bool raw, detached; /* detached: out of the table, a worker or a post holds it */
    cdp_done fn;
    void *data;
};

/* --- scanning ------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

/* p: after the opening quote. Returns the closing quote, or NULL. */
static const char *string_end(const char *p, const char *end)
{
    while (p < end) {
        const char *q = memchr(p, '"', (size_t)(end - p));
        if (!q)
            return NULL;
        const char *b = q;
        while (b > p && b[-1] == '\\')
            b--;
        if (((q - b) & 1) == 0)
            return q;
        p = q + 1; /* the quote was escaped; what is before it can't change that of a later one */
    }
    return NULL;
}

/* Returns the byte after the value at p, or NULL. */
static const char *value_end(const char *p, const char *end)
{
    if (p >= end)
        return NULL;
    if (*p == '"') {
        const char *q = string_end(p + 1, end);
        return q ? q + 1 : NULL;
    }
    if (*p == '{' || *p == '[') {
        size_t depth = 0;
        while (p < end) {
            char c = *p++;
            if (c == '"') {
                p = string_end(p, end);
                if (!p)
                    return NULL;
                p++;
            } else if (c == '{' || c == '[') {
                depth++;
            } else if ((c == '}' || c == ']') && --depth == 0) {
                return p;
            }
        }
        return NULL;
    }
    const char *start = p;
    while (p < end && !strchr(",}] \t\r\n", *p))
        p++;
    return p > start ? p : NULL;
}

bool cdp_is(struct cdp_span s, const char *text)
{
    return s.at && s.len == strlen(text) && memcmp(s.at, text, s.len) == 0;
}

int cdp_scan(const char *text, size_t len, struct cdp_head *ret)
{
    const char *end = text + len;
    const char *p = skip_blanks(text, end);
    *ret = (struct cdp_head){0};
    if (p >= end || *p != '{')
        return -1;
    p = skip_blanks(p + 1, end);
    if (p < end && *p == '}')
        return skip_blanks(p + 1, end) == end ? 0 : -1;
    for (;;) {
        if (p >= end || *p != '"')
            return -1;
        const char *key_end = string_end(p + 1, end);
        if (!key_end)
            return -1;
        struct cdp_span key = {p + 1, (size_t)(key_end - p - 1)};
        p = skip_blanks(key_end + 1, end);
        if (p >= end || *p != ':')
            return -1;
        p = skip_blanks(p + 1, end);
        const char *value = p;
        p = value_end(p, end);
        if (!p)
            return -1;
        struct cdp_span v = {value, (size_t)(p - value)};
        struct cdp_span inner =
            *value == '"' ? (struct cdp_span){value + 1, v.len - 2} : (struct cdp_span){NULL, 0};
        if (cdp_is(key, "id")) {
            char num[24];
            if (v.len < sizeof num) {
                memcpy(num, v.at, v.len);
                num[v.len] = '\0';
                (void)num_parse(num, INT64_MIN, INT64_MAX, &ret->id); /* else it stays 0 */
            }
        } else if (cdp_is(key, "sessionId")) {
            ret->session = inner;
        } else if (cdp_is(key, "method")) {
            ret->method = inner;
        } else if (cdp_is(key, "params")) {
            ret->params = v;
        } else if (cdp_is(key, "result")) {
            ret->result = v;
        } else if (cdp_is(key, "error")) {
            ret->error = v;
        }
        p = skip_blanks(p, end);
        if (p < end && *p == ',') {
            p = skip_blanks(p + 1, end);
            continue;
        }
        if (p < end && *p == '}')
            return skip_blanks(p + 1, end) == end ? 0 : -1;
        return -1;
    }
}

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        if (c >= '0' && c <= '9')
            v = v * 16 + (c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v * 16 + ((c | 32) - 'a' + 10);
        else
            return -1;
    }
    return v;
}

/* Overwrites lone \uD800..\uDFFF escapes by \uFFFD, in place. */
static void mend_surrogates(char *text, size_t len)
{
    for (size_t i = 0; i + 1 < len; i++) {
        if (text[i] != '\\')
            continue;
        i++;
        if (text[i] != 'u' || i + 4 >= len)
            continue;
        int hi = hex4(text + i + 1);
        bool low_follows = i + 10 < len && text[i + 5] == '\\' && text[i + 6] == 'u';
        int lo = low_follows ? hex4(text + i + 7) : -1;
        if (hi >= 0xD800 && hi < 0xDC00 && lo >= 0xDC00 && lo < 0xE000) {
            i += 10;
            continue;
        }
        if (hi >= 0xD800 && hi < 0xE000)
            memcpy(text + i + 1, "FFFD", 4);
        i += 4;
    }
}

json_t *cdp_parse(const char *text, size_t len)
{
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_t *v = json_loadb(text, len, flags, NULL);
    if (v || !memchr(text, '\\', len))
        return v;
    autofree char *copy = malloc(len);
    if (!copy)
        return NULL;
    memcpy(copy, text, len);
    mend_surrogates(copy, len);
    return json_loadb(copy, len, flags, NULL);
}

/* --- calls ---------------------------------------------------------------------------------- */

static void conn_unref(struct cdp *c)
{
    if (--c->refs > 0)
        return;
    buf_done(&c->in);
    buf_done(&c->out);
    free(c);
}

static struct cdp_call *find_call(struct cdp *c, int64_t id)
{
    list_for_each(it, &c->calls[(uint64_t)id % BUCKETS])
    {
        struct cdp_call *call = list_entry(it, struct cdp_call, link);
        if (call->id == id)
            return call;
    }
    return NULL;
}

static void call_free(struct cdp_call *call)
{
    list_remove(&call->link);
    free(call);
}

static void answer_call(struct cdp_call *call, struct cdp_answer *a)
{
    cdp_done fn = call->fn;
    void *data = call->data;
    call_free(call);
    if (!a->message)
        a->message = "";
    if (fn)
        fn(data, a);
    free(a->raw);
}

void cdp_forget(struct cdp_call *call)
{
    if (!call)
        return;
    call->fn = NULL;
}

static void fail_later(void *data)
{
    struct cdp_call *call = data;
    struct cdp *c = call->conn;
    struct cdp_answer a = {.code = CDP_CLOSED, .message = "the browser has gone"};
    answer_call(call, &a);
    conn_unref(c);
}

static struct cdp_call *call_new(struct cdp *c, bool raw, cdp_done fn, void *data)
{
    struct cdp_call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    call->conn = c;
    call->id = ++c->next_id;
    call->raw = raw;
    call->fn = fn;
    call->data = data;
    list_init(&call->link);
    if (c->ended) {
        call->detached = true;
        c->refs++;
        loop_post(c->loop, fail_later, call);
    } else {
        list_append(&c->calls[(uint64_t)call->id % BUCKETS], &call->link);
    }
    return call;
}

static void answer_error(struct cdp_call *call, struct cdp_span error, size_t size)
{
    autojson json_t *e = cdp_parse(error.at, error.len);
    struct cdp_answer a = {.size = size};
    a.code = (int)json_integer_value(json_object_get(e, "code"));
    if (a.code == 0)
        a.code = CDP_BAD;
    a.message = json_string_value(json_object_get(e, "message"));
    answer_call(call, &a);
}

struct parse_job {
    struct cdp *conn;
    struct cdp_call *call;
    char *text;
    size_t size;
    struct cdp_span result;
    json_t *value;
};

static void parse_work(void *data)
{
    struct parse_job *j = data;
    j->value = cdp_parse(j->result.at, j->result.len);
    free(take_ptr(j->text));
}

static void parse_done(void *data)
{
    struct parse_job *j = data;
    struct cdp_answer a = {
        .code = j->value ? CDP_OK : CDP_BAD, .result = j->value, .size = j->size};
    if (!j->value)
        a.message = "the browser's answer is no JSON";
    answer_call(j->call, &a);
    json_decref(j->value);
    conn_unref(j->conn);
    free(j);
}

/* One message; text is ours to free. */
static void dispatch(struct cdp *c, char *text, size_t len)
{
    struct cdp_head h;
    if (cdp_scan(text, len, &h) < 0) {
        free(text);
        return; /* nothing that could be answered; the call it may have been for has a deadline */
    }
    if (h.id == 0) {
        c->refs++;
        if (h.method.at && c->ops.event)
            c->ops.event(c->owner, &h, text, len);
        conn_unref(c);
        free(text);
        return;
    }
    struct cdp_call *call = find_call(c, h.id);
    if (!call) {
        free(text);
        return;
    }
    if (call->raw) {
        struct cdp_answer a = {.size = len, .raw = text, .head = h};
        if (h.error.at)
            a.code = CDP_BAD;
        answer_call(call, &a);
        return;
    }
    if (h.error.at || !h.result.at) {
        answer_error(call, h.error.at ? h.error : (struct cdp_span){"{}", 2}, len);
    } else if (len > BIG && call->fn) {
        struct parse_job *j = calloc(1, sizeof *j);
        if (j) {
            *j = (struct parse_job){
                .conn = c, .call = call, .text = text, .size = len, .result = h.result};
            list_remove(&call->link);
            call->detached = true;
            c->refs++;
            if (loop_work(c->loop, WORK_LONG, parse_work, parse_done, j) == 0)
                return;
            c->refs--;
            free(j);
        }
        struct cdp_answer a = {.code = CDP_BAD, .message = "out of memory", .size = len};
        answer_call(call, &a);
    } else {
        autojson json_t *v = call->fn ? cdp_parse(h.result.at, h.result.len) : NULL;
        struct cdp_answer a = {.code = v ? CDP_OK : CDP_BAD, .result = v, .size = len};
        answer_call(call, &a);
    }
    free(text);
}

void cdp_message(struct cdp *c, char *text, size_t len) { dispatch(c, text, len); }

/* --- ends ----------------------------------------------------------------------------------- */

static void unwatch(struct cdp *c)
{
    if (!c->watching)
        return;
    c->watching = false;
    io_done(&c->in_io);
    io_done(&c->out_io);
    close(c->read_fd);
    close(c->write_fd);
}

void cdp_fail(struct cdp *c, const char *why)
{
    if (c->ended)
        return;
    c->ended = true;
    c->refs++;
    unwatch(c);
    for (size_t i = 0; i < BUCKETS; i++) {
        while (!list_empty(&c->calls[i])) {
            struct cdp_call *call = list_entry(c->calls[i].next, struct cdp_call, link);
            struct cdp_answer a = {.code = CDP_CLOSED, .message = why};
            answer_call(call, &a);
        }
    }
    if (c->ops.closed)
        c->ops.closed(c->owner, why);
    conn_unref(c);
}

void cdp_free(struct cdp *c)
{
    if (!c)
        return;
    c->ended = true;
    unwatch(c);
    for (size_t i = 0; i < BUCKETS; i++) {
        list_for_each_safe(it, &c->calls[i]) { call_free(list_entry(it, struct cdp_call, link)); }
    }
    c->ops = (struct cdp_ops){0};
    conn_unref(c);
}

/* --- the pipes ------------------------------------------------------------------------------ */

/* The call an oversized message answers: {"id":N comes first in all that Chromium sends. */
static void fail_oversized(struct cdp *c)
{
    char head[40] = {0};
    size_t n = c->in.len < sizeof head - 1 ? c->in.len : sizeof head - 1;
    memcpy(head, c->in.data, n);
    if (strncmp(head, "{\"id\":", 6) != 0)
        return;
    struct cdp_call *call = find_call(c, strtoll(head + 6, NULL, 10));
    if (!call)
        return;
    struct cdp_answer a = {.code = CDP_TOO_LARGE, .message = "the answer is too large"};
    answer_call(call, &a);
}

/* Cuts what is in the buffer into messages. */
static void take_messages(struct cdp *c)
{
    size_t start = 0;
    while (!c->ended) {
        char *from = c->in.data + start + c->scanned;
        char *nul = c->in.len > start + c->scanned
                        ? memchr(from, '\0', c->in.len - start - c->scanned)
                        : NULL;
        if (!nul) {
            c->scanned = c->in.len - start;
            break;
        }
        char *text = c->in.data + start;
        size_t len = (size_t)(nul - text);
        c->scanned = 0;
        if (c->skipping) {
            c->skipping = false;
            start += len + 1;
            continue;
        }
        if (len > BIG && start == 0) {
            struct buf rest = BUF_INIT;
            buf_add(&rest, nul + 1, c->in.len - len - 1);
            struct buf own = c->in;
            c->in = rest;
            if (rest.failed) {
                buf_done(&own);
                cdp_fail(c, "out of memory");
                return;
            }
            dispatch(c, own.data, len);
            continue;
        }
        start += len + 1;
        char *copy = malloc(len + 1);
        if (!copy) {
            cdp_fail(c, "out of memory");
            return;
        }
        memcpy(copy, text, len);
        copy[len] = '\0';
        dispatch(c, copy, len);
    }
    if (c->ended)
        return;
    buf_consume(&c->in, start);
    if (c->skipping) {
        buf_reset(&c->in);
        c->scanned = 0;
    } else if (c->in.len > CDP_MAX_MESSAGE) {
        fail_oversized(c);
        c->skipping = true;
        buf_done(&c->in);
        c->in = (struct buf)BUF_INIT;
        c->scanned = 0;
    } else if (c->in.len == 0 && c->in.cap > 4 * (size_t)BIG) {
        buf_done(&c->in); /* one large answer must not hold its memory for good */
        c->in = (struct buf)BUF_INIT;
    }
}

static void on_readable(void *data, int events)
{
    struct cdp *c = data;
    c->refs++;
    /* A few chunks a turn, so that a large answer leaves room for other work of the loop. */
    for (int turn = 0; turn < 4 && !c->ended; turn++) {
        char *at = buf_reserve(&c->in, READ_CHUNK);
        if (!at) {
            cdp_fail(c, "out of memory");
            break;
        }
        ssize_t n = read(c->read_fd, at, READ_CHUNK);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0) {
            cdp_fail(c, "the browser has ended");
            break;
        }
        c->in.len += (size_t)n;
        take_messages(c);
        if (n < READ_CHUNK / 4)
            break;
    }
    conn_unref(c);
}

static void flush(struct cdp *c)
{
    while (c->watching && c->out_sent < c->out.len) {
        ssize_t n = write(c->write_fd, c->out.data + c->out_sent, c->out.len - c->out_sent);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            return; /* EPIPE: the end of the other pipe tells, with what was still said before it */
        c->out_sent += (size_t)n;
    }
    if (c->out_sent == c->out.len) {
        c->out_sent = 0;
        buf_reset(&c->out);
        if (c->out.cap > 4 * (size_t)BIG) {
            buf_done(&c->out);
            c->out = (struct buf)BUF_INIT;
        }
    } else if (c->out_sent > BIG) {
        buf_consume(&c->out, c->out_sent);
        c->out_sent = 0;
    }
    if (c->watching)
        (void)io_want(&c->out_io, c->out.len > 0 ? UV_WRITABLE : 0); /* a next call tries again */
}

static void on_writable(void *data, int events) { flush(data); }

static void set_ops(struct cdp *c, struct loop *loop, const struct cdp_ops *ops, void *owner)
{
    c->loop = loop;
    c->ops = *ops;
    c->owner = owner;
    c->refs = 1;
    c->read_fd = c->write_fd = -1;
    for (size_t i = 0; i < BUCKETS; i++)
        list_init(&c->calls[i]);
}

struct cdp *cdp_new(struct loop *loop, const struct cdp_ops *ops, void *owner)
{
    struct cdp *c = calloc(1, sizeof *c);
    if (c)
        set_ops(c, loop, ops, owner);
    return c;
}

struct cdp *cdp_new_pipe(struct loop *loop, int read_fd, int write_fd, const struct cdp_ops *ops,
                         void *owner, struct abx_error *err)
{
    autoclose int r = read_fd, w = write_fd;
    struct cdp *c = cdp_new(loop, ops, owner);
    if (!c) {
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    if (fcntl(r, F_SETFL, O_NONBLOCK) < 0 || fcntl(w, F_SETFL, O_NONBLOCK) < 0 ||
        io_init(&c->in_io, loop, r, on_readable, c) < 0) {
        abx_fail_os(err, errno, NULL);
        cdp_free(c);
        return NULL;
    }
    if (io_init(&c->out_io, loop, w, on_writable, c) < 0) {
        io_done(&c->in_io);
        abx_fail_os(err, errno, NULL);
        cdp_free(c);
        return NULL;
    }
    c->piped = c->watching = true;
    c->read_fd = take_fd(&r);
    c->write_fd = take_fd(&w);
    if (io_want(&c->in_io, UV_READABLE) < 0) {
        abx_fail(err, E_RUNTIME_500, 0, "watching the browser's pipe");
        cdp_free(c);
        return NULL;
    }
    return c;
}

/* --- sending -------------------------------------------------------------------------------- */

static void put(struct cdp *c, struct buf *msg)
{
    if (msg->failed) {
        buf_done(msg);
        return; /* the call's deadline answers for it */
    }
    if (c->piped) {
        buf_addc(msg, '\0');
        buf_add(&c->out, msg->data, msg->len);
        buf_done(msg);
        flush(c);
    } else {
        size_t len = 0;
        char *text = buf_take(msg, &len);
        if (text && c->ops.send)
            c->ops.send(c->owner, text, len);
        else
            free(text);
    }
}

static struct cdp_call *send_text(struct cdp *c, struct cdp_span session, struct cdp_span method,
                                  struct cdp_span params, bool raw, cdp_done fn, void *data)
{
    struct cdp_call *call = call_new(c, raw, fn, data);
    if (!call || c->ended)
        return call;
    struct buf msg = BUF_INIT;
    buf_addf(&msg, "{\"id\":%lld,\"method\":\"", (long long)call->id);
    buf_add(&msg, method.at, method.len);
    buf_adds(&msg, "\",\"params\":");
    if (params.at)
        buf_add(&msg, params.at, params.len);
    else
        buf_adds(&msg, "{}");
    if (session.at) {
        buf_adds(&msg, ",\"sessionId\":\"");
        buf_add(&msg, session.at, session.len);
        buf_addc(&msg, '"');
    }
    buf_addc(&msg, '}');
    put(c, &msg);
    return fn ? call : NULL;
}

static struct cdp_call *send_json(struct cdp *c, const char *session, const char *method,
                                  json_t *params, bool raw, cdp_done fn, void *data)
{
    autobuf struct buf text = BUF_INIT;
    if (params)
        json_write(&text, params);
    json_decref(params);
    struct cdp_span s = {session, session ? strlen(session) : 0};
    struct cdp_span m = {method, strlen(method)};
    struct cdp_span p = {text.len > 0 ? text.data : NULL, text.len};
    return send_text(c, s, m, p, raw, fn, data);
}

struct cdp_call *cdp_send(struct cdp *c, const char *session, const char *method, json_t *params,
                          cdp_done fn, void *data)
{
    return send_json(c, session, method, params, false, fn, data);
}

struct cdp_call *cdp_send_raw(struct cdp *c, const char *session, const char *method,
                              json_t *params, cdp_done fn, void *data)
{
    return send_json(c, session, method, params, true, fn, data);
}

struct cdp_call *cdp_pass(struct cdp *c, struct cdp_span session, struct cdp_span method,
                          struct cdp_span params, cdp_done fn, void *data)
{
    return send_text(c, session, method, params, true, fn, data);
}

size_t cdp_pending_bytes(const struct cdp *c) { return c->out.len - c->out_sent; }
