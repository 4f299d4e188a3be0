/* /process/...: background processes, their signals, input and output. */

#include "routes/process_service.h"
#include "routes/table.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/crypto.h"
#include "base/json.h"
#include "base/num.h"
#include "base/own.h"

#define WAIT_MAX_SECONDS 30.0
#define STDIN_STALL_MS 5000 /* input that nobody takes for so long is refused */

static const int known_signals[] = {SIGINT, SIGKILL, SIGTERM, SIGCONT, SIGTSTP};

/* --- the service ------------------------------------------------------------------------------- */

int process_service_start(struct app *app, struct abx_error *err)
{
    struct process_service *svc = calloc(1, sizeof(*svc));
    if (!svc || !(svc->table = proc_table_new(app->loop, app->spawner))) {
        free(svc);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    app->process = svc;
    return 0;
}

void process_service_stop(struct app *app)
{
    if (!app->process)
        return;
    proc_table_free(app->process->table);
    free(take_ptr(app->process));
}

int process_admit(const struct req *req, size_t running, int64_t most, struct abx_error *err)
{
    most = rule_limit(req_rule(req), LIMIT_max_processes, most);
    if (most < 0 || (int64_t)running < most)
        return 0;
    return abx_fail(err, E_RESOURCE, 0, "Process limit reached (%lld)", (long long)most);
}

/* --- small things -------------------------------------------------------------------------------- */

/* An integer of any size; beyond 64 bits the nearest that fits (nobody's pid, nobody's number). */
static int parse_any_int(const char *text, int64_t *ret)
{
    if (num_parse_loose(text, INT64_MIN, INT64_MAX, ret) == 0)
        return 0;
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || digits[strspn(digits, "0123456789")])
        return -1;
    *ret = *text == '-' ? INT64_MIN : INT64_MAX;
    return 0;
}

static int pid_param(const struct req *req, int64_t *ret, struct abx_error *err)
{
    size_t len;
    const char *text = req_param(req, "pid", &len);
    if (!text || strlen(text) != len || parse_any_int(text, ret) < 0)
        return abx_fail(err, E_VALUE, 0, "Invalid pid: '%s'", text ? text : "");
    return 0;
}

static int unknown_pid(int64_t pid, struct abx_error *err)
{
    return abx_fail(err, E_NOT_FOUND, 0, "Process %lld not found", (long long)pid);
}

static struct entry *find_entry(const struct req *req, int64_t *ret_pid, struct abx_error *err)
{
    if (pid_param(req, ret_pid, err) < 0)
        return NULL;
    struct entry *e = NULL;
    if (*ret_pid > 0 && *ret_pid <= INT32_MAX)
        e = proc_table_find(req_app(req)->process->table, (pid_t)*ret_pid);
    if (!e)
        (void)unknown_pid(*ret_pid, err);
    return e;
}

/* "pid", "command", "state", "started_at"; the caller adds more. */
static void write_entry(struct buf *out, const struct entry *e)
{
    size_t len;
    const char *command = entry_command(e, &len);
    char started_at[NUM_DOUBLE_MAX];
    size_t n = num_double(entry_started_at(e), started_at);
    buf_addf(out, "{\"pid\": %d, \"command\": ", (int)entry_pid(e));
    json_write_string(out, command, len);
    buf_addf(out, ", \"state\": \"%s\", \"started_at\": ", entry_running(e) ? "running" : "exited");
    buf_add(out, started_at, n);
}

static void write_exit_code(struct buf *out, const struct entry *e)
{
    if (entry_running(e))
        buf_adds(out, ", \"exit_code\": null");
    else
        buf_addf(out, ", \"exit_code\": %d", entry_exit_code(e));
}

static int answer_text(struct resp *resp, struct buf *text, struct abx_error *err)
{
    size_t len;
    char *data = buf_take(text, &len);
    if (!data) {
        buf_done(text);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    return resp_json_text(resp, data, len);
}

/* --- start ------------------------------------------------------------------------------------------ */

struct start_call {
    struct req *req;
    const struct exec_order *order; /* until `started` */
};

static void start_done(void *data, struct entry *e, int sys)
{
    struct start_call *c = data;
    struct abx_error err;
    int rc;
    if (sys != 0) {
        rc = exec_failed(c->order, sys, &err);
    } else {
        struct buf text = BUF_INIT;
        buf_addf(&text, "{\"pid\": %d, \"command\": ", (int)entry_pid(e));
        json_write_string(&text, c->order->command, c->order->command_len);
        buf_addc(&text, '}');
        rc = answer_text(req_resp(c->req), &text, &err);
    }
    if (rc < 0)
        req_fail(c->req, &err);
    else
        req_finish(c->req);
    free(c);
}

/* POST /process/start {"command", "capture_output"?, "stdin"?, ...} -> {"pid": int, "command": str} */
int route_process_start(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct app *app = req_app(req);
    const struct rule *rule = req_rule(req);
    const json_t *body = req_body(req);
    int64_t running_max = rule_limit(rule, LIMIT_max_processes, TABLE_RUNNING_MAX);
    const char *command;
    size_t len;
    if (body_str(body, "command", &command, &len, err) < 0 ||
        proc_table_admit(app->process->table, running_max, err) < 0)
        return -1;
    struct start_call *c = calloc(1, sizeof(*c));
    if (!c)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    struct exec_order *order = exec_decode(req, rule, body, err);
    if (!order) {
        free(c);
        return -1;
    }
    *c = (struct start_call){.req = req, .order = order};
    struct entry_opts o = {.command = order->command,
                           .command_len = order->command_len,
                           .running_max = running_max,
                           .capture = body_truthy(body, "capture_output"),
                           .has_stdin = body_truthy(body, "stdin"),
                           .ring_chars = rule_limit(rule, LIMIT_max_output_bytes, TABLE_RING_CHARS)};
    exec_fill(order, &o.proc);
    o.proc.no_output = !o.capture;
    if (o.has_stdin)
        o.proc.stdin_mode = PROC_STDIN_OPEN;
    /* A caller's own timeout is for commands that are waited for; a policy's holds here too. */
    double most = rule_seconds(rule, LIMIT_timeout_seconds, 0);
    if (most > 0)
        o.proc.timeout_ms = (uint64_t)(most * 1000.0 + 0.5);
    if (proc_table_start(app->process->table, &o, start_done, c, err) < 0) {
        exec_free(order);
        free(c);
        return -1;
    }
    return REQ_PENDING;
}

/* --- list, detail -------------------------------------------------------------------------------------- */

static void list_one(void *data, struct entry *e)
{
    struct buf *out = data;
    if (out->len > 0 && out->data[out->len - 1] == '}')
        buf_adds(out, ", ");
    write_entry(out, e);
    buf_addc(out, '}');
}

/* GET /process/list -> {"processes": [{"pid", "command", "state", "started_at"}]}: running ones in start order */
int route_process_list(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct buf text = BUF_INIT;
    buf_adds(&text, "{\"processes\": [");
    proc_table_each(req_app(req)->process->table, list_one, &text);
    buf_adds(&text, "]}");
    return answer_text(resp, &text, err);
}

/* GET /process/{pid} -> {"pid", "command", "state", "started_at", "exit_code": int or null} */
int route_process_detail(struct req *req, struct resp *resp, struct abx_error *err)
{
    int64_t pid;
    struct entry *e = find_entry(req, &pid, err);
    if (!e)
        return -1;
    struct buf text = BUF_INIT;
    write_entry(&text, e);
    write_exit_code(&text, e);
    buf_addc(&text, '}');
    return answer_text(resp, &text, err);
}

/* --- signal ------------------------------------------------------------------------------------------------ */

static bool signal_permitted(const struct rule *rule, int64_t sig)
{
    if (!(rule->params_set & PAR(allowed_signals)))
        return true;
    for (size_t i = 0; i < rule->n_signals; i++) {
        if (rule->signals[i] == sig)
            return true;
    }
    return false;
}

static bool signal_known(int64_t sig)
{
    for (size_t i = 0; i < ARRAY_LEN(known_signals); i++) {
        if (known_signals[i] == sig)
            return true;
    }
    return false;
}

/* POST /process/{pid}/signal {"signal": int} -> {"pid", "signal"}: to the process's whole group */
int route_process_signal(struct req *req, struct resp *resp, struct abx_error *err)
{
    int64_t pid, sig;
    const json_t *value = json_object_get(req_body(req), "signal");
    if (pid_param(req, &pid, err) < 0)
        return -1;
    if (!value || json_coerce_int(value, &sig) < 0)
        return abx_fail(err, E_VALUE, 0, "Missing or invalid 'signal'");
    if (!signal_known(sig))
        return abx_fail(err, E_VALUE, 0, "Signal %lld not allowed; permitted: [2, 9, 15, 18, 20]",
                        (long long)sig);
    if (!signal_permitted(req_rule(req), sig))
        return abx_fail(err, E_SIGNAL_NOT_ALLOWED, 0, "Signal %lld is not allowed by the policy",
                        (long long)sig);
    if (pid == 1 || pid == getpid())
        return abx_fail(err, E_PERMISSION, 0, "Process %lld can't be signalled", (long long)pid);
    struct entry *e = find_entry(req, &pid, err);
    if (!e)
        return -1;
    struct proc *p = entry_proc(e);
    if (!p || child_signal(proc_child(p), 0) < 0)
        return abx_fail(err, E_NOT_FOUND, ESRCH, "Process %lld has ended", (long long)pid);
    child_kill_group(proc_child(p), (int)sig);
    return resp_json(resp, err, "{s:I, s:I}", "pid", (json_int_t)pid, "signal", (json_int_t)sig);
}

/* --- stdin --------------------------------------------------------------------------------------------------- */

struct stdin_call {
    struct req *req;
    int64_t pid;
    bool eof;
};

static int stdin_answer(struct resp *resp, int64_t pid, size_t written, bool closed, struct abx_error *err)
{
    return resp_json(resp, err, "{s:I, s:I, s:b}", "pid", (json_int_t)pid, "written", (json_int_t)written,
                     "closed", (int)closed);
}

static void stdin_done(void *data, size_t written, int sys)
{
    struct stdin_call *c = data;
    struct abx_error err;
    int rc;
    if (sys == 0) {
        struct entry *e = proc_table_find(req_app(c->req)->process->table, (pid_t)c->pid);
        if (c->eof && e)
            entry_close_stdin(e);
        rc = stdin_answer(req_resp(c->req), c->pid, written, c->eof, &err);
    } else {
        if (sys == EPIPE)
            (void)abx_fail(&err, E_CONFLICT, sys, "stdin closed: [Errno 32] Broken pipe");
        else
            (void)abx_fail(&err, E_CONFLICT, sys, "Process %lld does not read its stdin", (long long)c->pid);
        rc = resp_error(req_resp(c->req), &err, json_pack("{s:I}", "written", (json_int_t)written));
    }
    if (rc < 0)
        req_fail(c->req, &err);
    else
        req_finish(c->req);
    free(c);
}

/* What is to be written: "data_base64", else "data". */
static int stdin_bytes(const json_t *body, struct buf *out, struct abx_error *err)
{
    const json_t *base64 = json_object_get(body, "data_base64"), *text = json_object_get(body, "data");
    if (base64 && !json_is_null(base64)) {
        if (!json_is_string(base64) ||
            base64_decode(out, json_string_value(base64), json_string_length(base64)) < 0)
            return abx_fail(err, E_VALUE, 0, "'data_base64' is not base64");
        return 0;
    }
    if (text && !json_is_null(text)) {
        if (!json_is_string(text))
            return abx_fail(err, E_VALUE, 0, "'data' must be a string");
        buf_add(out, json_string_value(text), json_string_length(text));
    }
    return 0;
}

/* POST /process/{pid}/stdin {"data" | "data_base64", "eof"?} -> {"pid", "written", "closed"} */
int route_process_stdin(struct req *req, struct resp *resp, struct abx_error *err)
{
    int64_t pid;
    const json_t *body = req_body(req);
    bool eof = body_truthy(body, "eof");
    struct entry *e = find_entry(req, &pid, err);
    if (!e)
        return -1;
    if (!entry_has_stdin(e))
        return abx_fail(err, E_CONFLICT, 0, "Process %lld was not started with stdin enabled, or it is closed",
                        (long long)pid);
    autobuf struct buf bytes = BUF_INIT;
    if (stdin_bytes(body, &bytes, err) < 0)
        return -1;
    if (bytes.len == 0 && !bytes.failed && !eof)
        return abx_fail(err, E_VALUE, 0, "Give 'data', 'data_base64' or 'eof'");
    struct proc *p = entry_proc(e);
    if (bytes.len == 0 && !bytes.failed) {
        if (!p && !eof)
            return abx_fail(err, E_CONFLICT, EPIPE, "stdin closed: [Errno 32] Broken pipe");
        if (eof)
            entry_close_stdin(e);
        return stdin_answer(resp, pid, 0, eof, err);
    }
    if (!p || !proc_stdin_open(p))
        return abx_fail(err, E_CONFLICT, EPIPE, "stdin closed: [Errno 32] Broken pipe");
    struct stdin_call *c = malloc(sizeof(*c));
    size_t len;
    char *data = buf_take(&bytes, &len);
    if (!c || !data) {
        free(c);
        free(data);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    *c = (struct stdin_call){.req = req, .pid = pid, .eof = eof};
    if (proc_write(p, data, len, STDIN_STALL_MS, stdin_done, c) < 0) {
        free(c);
        free(data);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    return REQ_PENDING;
}

/* --- output ---------------------------------------------------------------------------------------------------- */

static const char *stream_name(const struct out_event *ev)
{
    return ev->stream == PROC_STDERR ? "stderr" : "stdout";
}

static void write_data(struct buf *out, const struct out_event *ev)
{
    char at[NUM_DOUBLE_MAX];
    size_t n = num_double(ev->at, at);
    buf_adds(out, "\"data\": ");
    json_write_string(out, ev->text, ev->len);
    buf_adds(out, ", \"ts\": ");
    buf_add(out, at, n);
    buf_addc(out, '}');
}

static int answer_output(struct resp *resp, const struct entry *e, int64_t since, struct abx_error *err)
{
    struct buf text = BUF_INIT;
    buf_addf(&text, "{\"pid\": %d, \"events\": [", (int)entry_pid(e));
    int64_t from = since > entry_first(e) ? since : entry_first(e);
    for (int64_t seq = from; seq < entry_next(e); seq++) {
        const struct out_event *ev = entry_event(e, seq);
        buf_addf(&text, "%s{\"seq\": %lld, \"stream\": \"%s\", ", seq > from ? ", " : "", (long long)seq,
                 stream_name(ev));
        write_data(&text, ev);
    }
    buf_addf(&text, "], \"next\": %lld, \"state\": \"%s\"", (long long)entry_next(e),
             entry_running(e) ? "running" : "exited");
    write_exit_code(&text, e);
    buf_addf(&text, ", \"dropped\": %s}", entry_dropped(e) ? "true" : "false");
    return answer_text(resp, &text, err);
}

/* A long poll. */
struct poll_call {
    struct req *req;
    struct entry *e;
    struct entry_watch watch;
    struct timer timer;
    int64_t since;
};

static void poll_answer(void *data)
{
    struct poll_call *c = data;
    struct abx_error err;
    entry_unwatch(&c->watch);
    timer_done(&c->timer);
    req_on_gone(c->req, NULL, NULL);
    if (answer_output(req_resp(c->req), c->e, c->since, &err) < 0)
        req_fail(c->req, &err);
    else
        req_finish(c->req);
    free(c);
}

static void poll_changed(void *data)
{
    struct poll_call *c = data;
    if (entry_next(c->e) > c->since || !entry_running(c->e))
        poll_answer(c);
}

static int poll_start(struct req *req, struct entry *e, int64_t since, double wait, struct abx_error *err)
{
    struct poll_call *c = malloc(sizeof(*c));
    if (!c)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    *c = (struct poll_call){
        .req = req, .e = e, .since = since, .watch = {.fn = poll_changed, .data = c}};
    timer_init(&c->timer, req_loop(req), poll_answer, c);
    timer_start(&c->timer, (uint64_t)(wait * 1000.0 + 0.5));
    entry_watch(e, &c->watch);
    req_on_gone(req, poll_answer, c); /* nothing is sent then */
    return REQ_PENDING;
}

/* A reader of the event stream. */
struct follow {
    struct entry *e;
    struct stream *stream;
    struct entry_watch watch;
    struct buf sse;
    int64_t seq;
};

static void follow_free(struct follow *f)
{
    entry_unwatch(&f->watch);
    buf_done(&f->sse);
    free(f);
}

static void follow_pump(void *data)
{
    struct follow *f = data;
    struct entry *e = f->e;
    while (f->seq < entry_next(e) && !stream_full(f->stream)) {
        buf_reset(&f->sse);
        if (f->seq < entry_first(e)) {
            buf_addf(&f->sse, "event: dropped\ndata: {\"from\": %lld, \"to\": %lld}\n\n", (long long)f->seq,
                     (long long)entry_first(e));
            f->seq = entry_first(e);
        }
        for (; f->seq < entry_next(e) && f->sse.len < 32 * KIB; f->seq++) {
            const struct out_event *ev = entry_event(e, f->seq);
            buf_addf(&f->sse, "event: %s\nid: %lld\ndata: {\"seq\": %lld, ", stream_name(ev),
                     (long long)f->seq, (long long)f->seq);
            write_data(&f->sse, ev);
            buf_adds(&f->sse, "\n\n");
        }
        if (f->sse.failed) { /* the reader must see that it is not whole */
            stream_abort(f->stream);
            follow_free(f);
            return;
        }
        stream_write(f->stream, f->sse.data, f->sse.len);
    }
    if (f->seq >= entry_next(e) && !entry_running(e)) {
        char text[48];
        int n = snprintf(text, sizeof(text), "{\"exit_code\": %d}", entry_exit_code(e));
        stream_event_text(f->stream, "exit", text, (size_t)n, NULL);
        stream_end(f->stream);
        follow_free(f);
    }
}

static void follow_gone(void *owner)
{
    follow_free(owner);
}

static const struct stream_ops follow_ops = {.drain = follow_pump, .gone = follow_gone};

static int follow_start(struct req *req, struct entry *e, int64_t since, struct abx_error *err)
{
    struct follow *f = malloc(sizeof(*f));
    if (!f)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    const char *last = req_header(req, "Last-Event-ID");
    int64_t seen;
    if (last && num_parse_loose(last, 0, INT64_MAX - 1, &seen) == 0)
        since = seen + 1;
    *f = (struct follow){.e = e, .seq = since, .watch = {.fn = follow_pump, .data = f}};
    list_init(&f->watch.link);
    f->stream = stream_open_sse(req, &follow_ops, f);
    if (!f->stream) {
        free(f);
        return REQ_PENDING; /* it has been answered */
    }
    entry_watch(e, &f->watch);
    follow_pump(f);
    return REQ_PENDING;
}

static bool wants_events(const struct req *req)
{
    const char *accept = req_header(req, "Accept");
    return accept && strcasestr(accept, "text/event-stream");
}

/* GET /process/{pid}/output?since=N&wait=S -> {"pid", "events": [{"seq", "stream", "data", "ts"}], "next",
 * "state", "exit_code", "dropped"}; with Accept: text/event-stream the same as events, with ids. */
int route_process_output(struct req *req, struct resp *resp, struct abx_error *err)
{
    int64_t pid, since = 0;
    double wait = 0;
    struct entry *e = find_entry(req, &pid, err);
    if (!e)
        return -1;
    const char *text = req_query(req, "since", NULL);
    if (text && parse_any_int(text, &since) < 0)
        return abx_fail(err, E_VALUE, 0, "'since' must be an integer");
    text = req_query(req, "wait", NULL);
    if (text && num_parse_double(text, &wait) < 0)
        return abx_fail(err, E_VALUE, 0, "'wait' must be a number of seconds");
    if (!entry_captures(e))
        return abx_fail(err, E_CONFLICT, 0, "Process %lld was started without capture_output",
                        (long long)pid);
    if (since < 0)
        since = 0;
    if (wants_events(req))
        return follow_start(req, e, since, err);
    if (wait > WAIT_MAX_SECONDS)
        wait = WAIT_MAX_SECONDS;
    if (wait > 0 && entry_next(e) <= since && entry_running(e))
        return poll_start(req, e, since, wait, err);
    return answer_output(resp, e, since, err);
}
