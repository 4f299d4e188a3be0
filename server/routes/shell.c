/* POST /shell and POST /shell/stream. */

#include "routes/process_service.h"
#include "routes/table.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"

#define SPILL_AT (1 * MIB)              /* of answer text in memory per stream; the rest waits in a file */
#define SPILL_MAX ((int64_t)1024 * MIB) /* answer text per stream; beyond it the output is cut */
#define FILE_PIECE (256 * KIB)
#define LINE_MAX_BYTES (2 * MIB) /* a longer line comes in several events */

/* === /shell ======================================================================================
 *
 * Output is turned into the text of a JSON string as it comes. Past SPILL_AT it moves into an unlinked
 * file, so 100 MB of output cost 100 MB of disk and not of memory; meanwhile the program is paused.
 * The length of the answer is known before it begins. */

struct sink {
    struct utf8_decoder decoder;
    struct buf json; /* escaped, without quotes */
    int64_t bytes;   /* raw, kept */
    int64_t filed;   /* of json text, in the file before `json` */
    int fd;          /* -1: nothing filed */
    bool cr;         /* the last piece ended in CR */
    bool cut;
};

struct shell_call {
    struct req *req;
    struct process_service *svc;
    const struct exec_order *order; /* until `started` */
    double timeout;
    int64_t max_output;
    struct proc *proc;
    struct sink out[2];
    struct buf text; /* scratch */
    const char *spill_dirs[4]; /* NULL-terminated */
    bool spilling, ended, timed_out, gone;
    int exit_code;
    /* The long answer. */
    struct stream *stream;
    struct buf head, tail;
    int part; /* of PARTS */
    int64_t part_at;
    bool reading;
    char *piece;
    ssize_t piece_len;
};

static void shell_free(struct shell_call *c)
{
    for (int i = 0; i < 2; i++) {
        buf_done(&c->out[i].json);
        if (c->out[i].fd >= 0)
            close(c->out[i].fd);
    }
    buf_done(&c->text);
    buf_done(&c->head);
    buf_done(&c->tail);
    free(c->piece);
    free(c);
}

/* --- output into JSON text --- */

/* CRLF and lone CR become LF, in place; a CR at the end waits for what follows. */
static void unify_line_ends(struct sink *s, struct buf *text)
{
    size_t to = 0;
    for (size_t i = 0; i < text->len; i++) {
        char ch = text->data[i];
        if (s->cr && ch == '\n') {
            s->cr = false;
            continue; /* the CR before it has become one */
        }
        s->cr = ch == '\r';
        text->data[to++] = s->cr ? '\n' : ch;
    }
    text->len = to;
}

static void add_escaped(struct buf *json, const struct buf *text)
{
    size_t before = json->len;
    json_write_string(json, text->data, text->len);
    if (json->failed)
        return;
    size_t added = json->len - before - 2; /* without the quotes */
    memmove(json->data + before, json->data + before + 1, added);
    json->len = before + added;
}

static void sink_add(struct shell_call *c, struct sink *s, const char *data, size_t len)
{
    int64_t most = c->max_output;
    if (s->cut)
        return;
    if (most >= 0 && s->bytes + (int64_t)len > most) {
        len = (size_t)(most - s->bytes);
        s->cut = true;
    }
    s->bytes += (int64_t)len;
    buf_reset(&c->text);
    utf8_decode(&s->decoder, data, len, &c->text);
    bool has_cr = s->cr || memchr(c->text.data ? c->text.data : "", '\r', c->text.len);
    if (has_cr)
        unify_line_ends(s, &c->text);
    if (c->text.len > 0)
        add_escaped(&s->json, &c->text);
    if (c->text.failed || s->json.failed || s->filed + (int64_t)s->json.len > SPILL_MAX)
        s->cut = true;
}

/* --- the file --- */

static int open_unlinked(const char *const *dirs)
{
    for (; *dirs; dirs++) {
        int fd = open(*dirs, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd >= 0)
            return fd;
        char path[4096];
        int n = snprintf(path, sizeof(path), "%s/.abx-output-XXXXXX", *dirs);
        if (n < 0 || (size_t)n >= sizeof(path))
            continue;
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0) {
            (void)unlink(path); /* it lives as long as the descriptor */
            return fd;
        }
    }
    return -1;
}

/* On a worker; the loop doesn't touch the sinks meanwhile. */
static void spill_run(void *data)
{
    struct shell_call *c = data;
    for (int i = 0; i < 2; i++) {
        struct sink *s = &c->out[i];
        if (s->json.len < SPILL_AT || s->cut)
            continue;
        if (s->fd < 0)
            s->fd = open_unlinked(c->spill_dirs);
        size_t done = 0;
        while (s->fd >= 0 && done < s->json.len) {
            ssize_t n = write(s->fd, s->json.data + done, s->json.len - done);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                break;
            done += (size_t)n;
        }
        /* Nowhere to put it: what is in memory stays, and that was all. */
        s->cut = done < s->json.len;
        s->filed += (int64_t)done;
        buf_consume(&s->json, done);
    }
}

static void shell_answer(struct shell_call *c);

static void spill_done(void *data)
{
    struct shell_call *c = data;
    c->spilling = false;
    if (c->ended)
        shell_answer(c);
    else if (c->proc)
        proc_resume(c->proc);
}

static bool needs_spill(const struct sink *s)
{
    return s->json.len >= SPILL_AT && !s->cut;
}

/* --- the answer --- */

static bool cut_short(const struct shell_call *c)
{
    return c->out[0].cut || c->out[1].cut;
}

static void write_head(struct shell_call *c)
{
    if (c->timed_out) {
        char seconds[NUM_DOUBLE_MAX];
        size_t n = num_double(c->timeout, seconds);
        buf_addf(&c->head, "{\"error\": \"Command timed out after %.*ss\", \"type\": \"TimeoutError\", ", (int)n,
                 seconds);
    } else {
        buf_addc(&c->head, '{');
    }
    buf_adds(&c->head, "\"stdout\": \"");
}

static const char between[] = "\", \"stderr\": \"";

static void write_tail(struct shell_call *c)
{
    buf_addc(&c->tail, '"');
    if (!c->timed_out)
        buf_addf(&c->tail, ", \"exit_code\": %d", c->exit_code);
    if (c->timed_out)
        buf_addf(&c->tail, ", \"truncated\": %s", cut_short(c) ? "true" : "false");
    else if (cut_short(c))
        buf_adds(&c->tail, ", \"truncated\": true");
    buf_addc(&c->tail, '}');
}

enum part { PART_HEAD, PART_OUT_FILE, PART_OUT, PART_BETWEEN, PART_ERR_FILE, PART_ERR, PART_TAIL, PARTS };

static const char *part_memory(const struct shell_call *c, int part, int64_t *ret_len)
{
    switch ((enum part)part) {
    case PART_HEAD:
        *ret_len = (int64_t)c->head.len;
        return c->head.data;
    case PART_OUT:
        *ret_len = (int64_t)c->out[0].json.len;
        return c->out[0].json.data;
    case PART_BETWEEN:
        *ret_len = sizeof(between) - 1;
        return between;
    case PART_ERR:
        *ret_len = (int64_t)c->out[1].json.len;
        return c->out[1].json.data;
    case PART_TAIL:
        *ret_len = (int64_t)c->tail.len;
        return c->tail.data;
    case PART_OUT_FILE:
        *ret_len = c->out[0].filed;
        return NULL;
    case PART_ERR_FILE:
        *ret_len = c->out[1].filed;
        return NULL;
    case PARTS:
        break;
    }
    *ret_len = 0;
    return NULL;
}

static void read_piece(void *data)
{
    struct shell_call *c = data;
    struct sink *s = &c->out[c->part == PART_ERR_FILE];
    int64_t left = s->filed - c->part_at;
    size_t want = left < FILE_PIECE ? (size_t)left : FILE_PIECE;
    c->piece_len = pread(s->fd, c->piece, want, c->part_at);
}

static void pump(struct shell_call *c);

static void piece_read(void *data)
{
    struct shell_call *c = data;
    c->reading = false;
    if (c->gone) {
        shell_free(c);
        return;
    }
    if (c->piece_len <= 0) {
        stream_abort(c->stream);
        shell_free(c);
        return;
    }
    stream_write(c->stream, c->piece, (size_t)c->piece_len);
    c->part_at += c->piece_len;
    pump(c);
}

static void pump(struct shell_call *c)
{
    while (c->part < PARTS && !stream_full(c->stream)) {
        int64_t len;
        const char *memory = part_memory(c, c->part, &len);
        if (c->part_at == len) {
            c->part++;
            c->part_at = 0;
        } else if (memory) {
            size_t n = len - c->part_at < FILE_PIECE ? (size_t)(len - c->part_at) : FILE_PIECE;
            stream_write(c->stream, memory + c->part_at, n);
            c->part_at += (int64_t)n;
        } else {
            c->reading = true;
            if (loop_work(req_loop(c->req), WORK_SHORT, read_piece, piece_read, c) == 0)
                return;
            c->reading = false;
            stream_abort(c->stream);
            req_unref(c->req);
            shell_free(c);
            return;
        }
    }
    if (c->part == PARTS) {
        struct req *req = c->req;
        stream_end(c->stream);
        shell_free(c);
        req_unref(req);
    }
}

static void pump_drain(void *owner)
{
    struct shell_call *c = owner;
    if (!c->reading)
        pump(c);
}

static void pump_gone(void *owner)
{
    struct shell_call *c = owner;
    c->gone = true;
    req_unref(c->req);
    if (!c->reading)
        shell_free(c);
}

static const struct stream_ops pump_ops = {.drain = pump_drain, .gone = pump_gone};

static void answer_long(struct shell_call *c)
{
    int64_t total = 0;
    for (int i = 0; i < PARTS; i++) {
        int64_t len;
        (void)part_memory(c, i, &len);
        total += len;
    }
    c->piece = malloc(FILE_PIECE);
    if (!c->piece) {
        struct abx_error err;
        (void)abx_fail(&err, E_NO_MEMORY, ENOMEM, "Out of memory");
        req_fail(c->req, &err);
        shell_free(c);
        return;
    }
    (void)req_ref(c->req);
    c->stream = stream_open_raw(c->req, JSON_CONTENT, total, &pump_ops, c);
    if (!c->stream) {
        req_unref(c->req);
        shell_free(c);
        return;
    }
    pump(c);
}

static void answer_short(struct shell_call *c)
{
    struct buf body = c->head;
    c->head = (struct buf)BUF_INIT;
    buf_add(&body, c->out[0].json.data, c->out[0].json.len);
    buf_adds(&body, between);
    buf_add(&body, c->out[1].json.data, c->out[1].json.len);
    buf_add(&body, c->tail.data, c->tail.len);
    size_t len;
    char *text = buf_take(&body, &len);
    struct abx_error err;
    if (text && resp_json_text(req_resp(c->req), text, len) == 0) {
        req_finish(c->req);
    } else {
        buf_done(&body);
        (void)abx_fail(&err, E_NO_MEMORY, ENOMEM, "Out of memory");
        req_fail(c->req, &err);
    }
    shell_free(c);
}

static void shell_answer(struct shell_call *c)
{
    if (c->gone) {
        struct abx_error err;
        (void)abx_fail(&err, E_CANCELLED, 0, "The client has left");
        req_fail(c->req, &err);
        shell_free(c);
        return;
    }
    req_on_gone(c->req, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        struct sink *s = &c->out[i];
        buf_reset(&c->text);
        if (!s->cut) /* the tail of a cut text is dropped */
            utf8_finish(&s->decoder, &c->text);
        if (c->text.len > 0)
            add_escaped(&s->json, &c->text);
    }
    write_head(c);
    write_tail(c);
    if (c->timed_out)
        resp_status(req_resp(c->req), 500);
    if (c->out[0].filed || c->out[1].filed)
        answer_long(c);
    else
        answer_short(c);
}

/* --- its program --- */

static void shell_started(void *owner, struct proc *p, int sys)
{
    struct shell_call *c = owner;
    if (sys == 0)
        return;
    c->svc->shells--;
    struct abx_error err;
    (void)exec_failed(c->order, sys, &err);
    req_on_gone(c->req, NULL, NULL);
    req_fail(c->req, &err);
    shell_free(c);
}

static void shell_output(void *owner, enum proc_stream stream, const char *data, size_t len)
{
    struct shell_call *c = owner;
    sink_add(c, &c->out[stream == PROC_STDERR], data, len);
    if (!needs_spill(&c->out[0]) && !needs_spill(&c->out[1]))
        return;
    proc_pause(c->proc);
    c->spilling = loop_work(req_loop(c->req), WORK_SHORT, spill_run, spill_done, c) == 0;
    if (!c->spilling) {
        c->out[0].cut = c->out[1].cut = true;
        proc_resume(c->proc);
    }
}

static void shell_timed_out(void *owner)
{
    ((struct shell_call *)owner)->timed_out = true;
}

static void shell_ended(void *owner, int exit_code)
{
    struct shell_call *c = owner;
    c->svc->shells--;
    c->proc = NULL;
    c->ended = true;
    c->exit_code = exit_code;
    if (!c->spilling)
        shell_answer(c);
}

static const struct proc_ops shell_ops = {
    .started = shell_started, .output = shell_output, .timed_out = shell_timed_out, .ended = shell_ended};

static void shell_gone(void *data)
{
    struct shell_call *c = data;
    c->gone = true;
    if (c->proc) {
        proc_cancel(take_ptr(c->proc), PROCESS_LEAVE_GRACE_MS);
        c->svc->shells--;
    }
    c->ended = true;
    if (!c->spilling)
        shell_answer(c);
}

/* POST /shell {"command", ...} -> {"stdout": str, "stderr": str, "exit_code": int, "truncated"?: true} */
int route_shell(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct app *app = req_app(req);
    struct exec_order *order = exec_decode(req, req_rule(req), req_body(req), err);
    if (!order)
        return -1;
    struct shell_call *c = calloc(1, sizeof(*c));
    if (!c) {
        exec_free(order);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    *c = (struct shell_call){.req = req,
                             .svc = app->process,
                             .order = order,
                             .timeout = order->timeout,
                             .max_output = order->max_output,
                             .out = {{.fd = -1}, {.fd = -1}},
                             .spill_dirs = {"/tmp", "/var/tmp", app->state_dir}};
    struct proc_opts opts;
    exec_fill(order, &opts);
    opts.timeout_ms = (uint64_t)(order->timeout * 1000.0 + 0.5);
    if (process_admit(req, app->process->shells, -1, err) < 0 ||
        proc_start(app->spawner, app->loop, &opts, &shell_ops, c, &c->proc, err) < 0) {
        exec_free(order);
        shell_free(c);
        return -1;
    }
    c->svc->shells++;
    req_on_gone(req, shell_gone, c);
    return REQ_PENDING;
}

/* === /shell/stream ================================================================================= */

struct line {
    struct utf8_decoder decoder;
    struct buf text;  /* begun, not ended */
    size_t searched;  /* of text: no LF before it */
};

struct stream_call {
    struct req *req;
    struct process_service *svc;
    const struct exec_order *order; /* until `started` */
    int64_t max_output;
    struct proc *proc;
    struct stream *stream;
    struct line line[2];
    struct buf sse; /* events of this piece */
    int64_t counted;
    bool over;      /* no further output */
};

static void stream_free(struct stream_call *c)
{
    for (int i = 0; i < 2; i++)
        buf_done(&c->line[i].text);
    buf_done(&c->sse);
    free(c);
}

static int64_t count_characters(const char *s, size_t len)
{
    int64_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

/* False when the limit is passed: the line is not sent. */
static bool count_line(struct stream_call *c, const char *s, size_t len, int ends)
{
    if (c->max_output < 0)
        return true;
    c->counted += count_characters(s, len) + ends;
    return c->counted <= c->max_output;
}

static void add_line(struct stream_call *c, int which, const char *s, size_t len, bool partial)
{
    buf_adds(&c->sse, which ? "event: stderr\ndata: {\"data\": " : "event: stdout\ndata: {\"data\": ");
    json_write_string(&c->sse, s, len);
    buf_adds(&c->sse, partial ? ", \"partial\": true}\n\n" : "}\n\n");
}

static void send_lines(struct stream_call *c)
{
    if (c->sse.len > 0 && !c->sse.failed)
        stream_write(c->stream, c->sse.data, c->sse.len);
    c->sse.failed = false; /* an event that found no memory is lost, the stream goes on */
    buf_reset(&c->sse);
}

static void send_error(struct stream_call *c, const char *what)
{
    autojson json_t *data = json_pack("{s:s}", "error", what);
    if (data)
        stream_event(c->stream, "error", data, NULL);
}

static void output_limit(struct stream_call *c)
{
    c->over = true;
    send_lines(c);
    send_error(c, "output_limit");
    proc_kill(c->proc, PROC_GRACE_MS);
}

/* Sends the complete lines of a stream, and an endless one in pieces. */
static void take_lines(struct stream_call *c, int which)
{
    struct line *l = &c->line[which];
    size_t from = 0;
    for (;;) {
        const char *lf = l->searched < l->text.len
                             ? memchr(l->text.data + l->searched, '\n', l->text.len - l->searched)
                             : NULL;
        size_t len;
        if (lf) {
            len = (size_t)(lf - l->text.data) - from;
        } else if (l->text.len - from > LINE_MAX_BYTES) {
            len = utf8_floor(l->text.data + from, LINE_MAX_BYTES);
        } else {
            l->searched = l->text.len;
            break;
        }
        if (!count_line(c, l->text.data + from, len, lf != NULL)) {
            output_limit(c);
            return;
        }
        add_line(c, which, l->text.data + from, len, !lf);
        from += len + (lf != NULL);
        l->searched = from;
    }
    buf_consume(&l->text, from);
    l->searched -= from;
    if (c->max_output >= 0 &&
        c->counted + count_characters(l->text.data, l->text.len) > c->max_output)
        output_limit(c);
}

/* What is left without a LF. */
static void take_tails(struct stream_call *c)
{
    for (int i = 0; i < 2 && !c->over; i++) {
        struct line *l = &c->line[i];
        utf8_finish(&l->decoder, &l->text);
        if (l->text.len == 0)
            continue;
        if (count_line(c, l->text.data, l->text.len, 1)) {
            add_line(c, i, l->text.data, l->text.len, false);
        } else {
            c->over = true;
            send_lines(c);
            send_error(c, "output_limit");
        }
    }
    send_lines(c);
}

static void stream_output(void *owner, enum proc_stream stream, const char *data, size_t len)
{
    struct stream_call *c = owner;
    int which = stream == PROC_STDERR;
    if (c->over)
        return;
    utf8_decode(&c->line[which].decoder, data, len, &c->line[which].text);
    take_lines(c, which);
    if (c->over)
        return;
    send_lines(c);
    if (stream_full(c->stream))
        proc_pause(c->proc);
}

static void stream_drain(void *owner)
{
    struct stream_call *c = owner;
    if (c->proc)
        proc_resume(c->proc);
}

static void stream_gone(void *owner)
{
    struct stream_call *c = owner;
    proc_cancel(c->proc, PROCESS_LEAVE_GRACE_MS);
    c->svc->streams--;
    stream_free(c);
}

static const struct stream_ops stream_ops = {.drain = stream_drain, .gone = stream_gone};

/* The client has left before the answer began. */
static void start_gone(void *data)
{
    struct stream_call *c = data;
    struct abx_error err;
    (void)abx_fail(&err, E_CANCELLED, 0, "The client has left");
    proc_cancel(c->proc, PROCESS_LEAVE_GRACE_MS);
    c->svc->streams--;
    req_fail(c->req, &err);
    stream_free(c);
}

static void stream_started(void *owner, struct proc *p, int sys)
{
    struct stream_call *c = owner;
    struct abx_error err;
    req_on_gone(c->req, NULL, NULL);
    if (sys == SPAWN_REFUSED) {
        (void)exec_failed(c->order, sys, &err);
        c->svc->streams--;
        req_fail(c->req, &err);
        stream_free(c);
        return;
    }
    c->stream = stream_open_sse(c->req, &stream_ops, c);
    if (!c->stream) { /* no memory: the request has been answered */
        if (p)
            proc_cancel(p, 0);
        c->svc->streams--;
        stream_free(c);
        return;
    }
    if (sys == 0)
        return;
    (void)exec_failed(c->order, sys, &err);
    send_error(c, err.message);
    stream_end(c->stream);
    c->svc->streams--;
    stream_free(c);
}

static void stream_timed_out(void *owner)
{
    struct stream_call *c = owner;
    if (c->over)
        return;
    take_tails(c);
    if (c->over)
        return;
    c->over = true;
    send_error(c, "timeout");
}

static void stream_ended(void *owner, int exit_code)
{
    struct stream_call *c = owner;
    take_tails(c);
    char data[48];
    int n = snprintf(data, sizeof(data), "{\"exit_code\": %d}", exit_code);
    stream_event_text(c->stream, "exit", data, (size_t)n, NULL);
    stream_end(c->stream);
    c->svc->streams--;
    stream_free(c);
}

static const struct proc_ops stream_proc_ops = {.started = stream_started,
                                                .output = stream_output,
                                                .timed_out = stream_timed_out,
                                                .ended = stream_ended};

/* POST /shell/stream {"command", ...} -> SSE: stdout, stderr {"data"}, error {"error"}, exit {"exit_code"} */
int route_shell_stream(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct app *app = req_app(req);
    struct exec_order *order = exec_decode(req, req_rule(req), req_body(req), err);
    if (!order)
        return -1;
    struct stream_call *c = calloc(1, sizeof(*c));
    if (!c) {
        exec_free(order);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    *c = (struct stream_call){.req = req, .svc = app->process, .order = order, .max_output = order->max_output};
    struct proc_opts opts;
    exec_fill(order, &opts);
    opts.timeout_ms = (uint64_t)(order->timeout * 1000.0 + 0.5);
    if (process_admit(req, app->process->streams, -1, err) < 0 ||
        proc_start(app->spawner, app->loop, &opts, &stream_proc_ops, c, &c->proc, err) < 0) {
        exec_free(order);
        stream_free(c);
        return -1;
    }
    c->svc->streams++;
    req_on_gone(req, start_gone, c);
    return REQ_PENDING;
}
