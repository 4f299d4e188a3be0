#include "registry/host.h"

#include "base/log.h"
#include "base/metrics.h"
#include "base/own.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* A file has one current process; `next` while a replacement starts; and old ones that end their last calls.
 * Calls made in one turn of the loop travel in one write, just before the loop waits again. */

#define READ_BYTES (64 * 1024)
#define READS_PER_TURN 8
#define MAX_OUT (64u * MIB)
#define STEADY_MS 10000     /* who lived so long has not failed to start */
#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 5000
#define LOG_BURST 50        /* lines of what a host prints or logs, */
#define LOG_PER_SECOND 10   /* and so many more each second; the rest is counted */
#define LOG_LINE 1000
#define LOG_RESUME 10       /* after a flood it is quiet until so many lines are allowed again */
#define MAX_REGISTRATION (16u * MIB)

enum proc_state { PROC_LOADING, PROC_READY, PROC_DRAINING, PROC_ENDED };

struct host_proc {
    struct list link; /* of host->old, when draining */
    struct host *host;
    enum proc_state state;
    struct child *child;
    bool spawning, sock_eof;
    int status; /* once ended */
    int fd, log_fd, child_fd, child_log_fd;
    struct io io, log_io;
    struct wire_buf in, out, registration;
    bool want_write;
    struct list calls;
    uint32_t n_calls, abandoned;
    bool memory_drain;
    uint64_t started_ms;
    struct timer load_timer;
    char line[LOG_LINE + 1];
    size_t line_len;
};

struct host {
    struct host_options opt;
    char *file, *label, *program;
    struct host_content content;
    struct wire_buf registration; /* as first sent: a restarted host must say the same */
    bool loaded, stopping, freed;
    void (*on_loaded)(void *owner, const struct abx_error *err, int exit_status);
    void *owner;
    struct host_proc *current, *next;
    struct list old;
    uint32_t n_procs, n_calls;
    struct list waiting; /* calls for which there is no process yet */
    struct wire_buf build; /* the payload between begin and commit */
    size_t frame;
    struct wire_buf *target;
    uint32_t last_id, fails;
    struct timer retry;
    uv_prepare_t *prepare; /* closes by itself, later than us */
    bool prepared;
    struct host_call *spare;
    uint32_t n_spare;
    uint64_t log_ms;
    uint32_t log_tokens, log_dropped;
};

struct host_call {
    struct list link; /* of proc->calls or host->waiting */
    struct host *host;
    struct host_proc *proc; /* NULL: waiting */
    uint32_t id;
    struct timer timer;
    const struct host_call_ops *ops; /* NULL: nobody waits any more */
    void *owner;
    struct wire_buf frame; /* while waiting */
    char name[64];
};

static void start_proc(struct host *h, struct host_proc **slot);
static void proc_maybe_done(struct host_proc *p);
static void on_io(void *data, int events);

/* --- log --------------------------------------------------------------------------------------------- */

static bool may_log(struct host *h)
{
    uint64_t now = loop_now(h->opt.loop), more = (now - h->log_ms) * LOG_PER_SECOND / 1000;
    if (more) {
        h->log_tokens = h->log_tokens + more > LOG_BURST ? LOG_BURST : h->log_tokens + (uint32_t)more;
        h->log_ms = now;
    }
    if (!h->log_tokens || (h->log_dropped && h->log_tokens < LOG_RESUME)) {
        h->log_dropped++;
        return false;
    }
    if (h->log_dropped)
        log_warn("commands %s: %u lines of its output were dropped", h->label, h->log_dropped);
    h->log_dropped = 0;
    h->log_tokens--;
    return true;
}

static void log_line(struct host *h, enum log_level level, const char *text, size_t len)
{
    while (len && (text[len - 1] == '\r' || text[len - 1] == '\n'))
        len--;
    if (!len || !may_log(h))
        return;
    autofree char *clean = utf8_replace(text, len, NULL);
    if (clean)
        log_msg(level, "commands %s: %s", h->label, clean);
}

static void on_log(void *data, int events)
{
    struct host_proc *p = data;
    char piece[16384];
    for (int turn = 0; turn < READS_PER_TURN; turn++) {
        ssize_t n = read(p->log_fd, piece, sizeof(piece));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            log_line(p->host, LOG_INFO, p->line, p->line_len);
            io_done(&p->log_io);
            close(take_fd(&p->log_fd));
            return;
        }
        for (ssize_t i = 0; i < n; i++) {
            if (piece[i] == '\n') {
                log_line(p->host, LOG_INFO, p->line, p->line_len);
                p->line_len = 0;
            } else if (p->line_len < LOG_LINE) {
                p->line[p->line_len++] = piece[i];
            }
        }
    }
}

/* --- calls ---------------------------------------------------------------------------------------------- */

static struct host_call *call_new(struct host *h)
{
    struct host_call *c = h->spare;
    if (c) {
        h->spare = *(struct host_call **)c->name;
        h->n_spare--;
    } else {
        c = malloc(sizeof(*c));
    }
    if (c)
        *c = (struct host_call){.host = h};
    return c;
}

/* Out of every list and count. */
static void call_free(struct host_call *c)
{
    struct host *h = c->host;
    timer_done(&c->timer);
    list_remove(&c->link);
    if (c->proc)
        c->proc->n_calls--;
    h->n_calls--;
    wire_done(&c->frame);
    if (h->n_spare >= 128) {
        free(c);
        return;
    }
    *(struct host_call **)c->name = h->spare;
    h->spare = c;
    h->n_spare++;
}

static void call_fail(struct host_call *c, const struct abx_error *err, const char *fields)
{
    const struct host_call_ops *ops = c->ops;
    void *owner = c->owner;
    call_free(c);
    if (ops)
        ops->failed(owner, err, fields);
}

static struct host_call *find_call(struct host_proc *p, uint32_t id)
{
    /* Answers come mostly in the order of the calls. */
    list_for_each(it, &p->calls) {
        struct host_call *c = list_entry(it, struct host_call, link);
        if (c->id == id)
            return c;
    }
    return NULL;
}

/* --- writing --------------------------------------------------------------------------------------------- */

static void proc_flush(struct host_proc *p)
{
    size_t at = 0;
    while (at < p->out.len && p->fd >= 0) {
        ssize_t n = send(p->fd, p->out.data + at, p->out.len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break; /* full, or broken: then the end of the process is on its way */
        at += (size_t)n;
    }
    wire_consume(&p->out, at);
    if (!p->out.len && p->out.cap > 256 * KIB)
        wire_done(&p->out);
    bool want = p->out.len > 0 && !p->sock_eof;
    if (want != p->want_write && p->fd >= 0) {
        p->want_write = want;
        (void)io_want(&p->io, UV_READABLE | (want ? UV_WRITABLE : 0)); /* can only fail for a bad fd */
    }
}

static void on_prepare(uv_prepare_t *handle)
{
    struct host *h = handle->data;
    uv_prepare_stop(handle);
    h->prepared = false;
    if (h->current)
        proc_flush(h->current);
    list_for_each(it, &h->old)
        proc_flush(list_entry(it, struct host_proc, link));
}

static void flush_soon(struct host *h)
{
    if (!h->prepared && uv_prepare_start(h->prepare, on_prepare) == 0)
        h->prepared = true;
}

static void send_simple(struct host_proc *p, enum wire_type type, uint32_t id, const uint32_t *number)
{
    size_t frame = wire_begin(&p->out, type, id);
    if (number)
        wire_u32(&p->out, *number);
    (void)wire_end(&p->out, frame); /* no memory: the call's own timeout ends it */
    flush_soon(p->host);
}

/* --- a replacement ------------------------------------------------------------------------------------------ */

static void replace(struct host_proc *p, const char *why)
{
    struct host *h = p->host;
    if (h->stopping || h->next || p != h->current)
        return;
    log_warn("commands %s: the command host is replaced: %s", h->label, why);
    loop_metrics(h->opt.loop)->host_replaced++;
    start_proc(h, &h->next);
}

static void proc_drain(struct host_proc *p)
{
    p->state = PROC_DRAINING;
    list_append(&p->host->old, &p->link);
    proc_maybe_done(p);
}

/* Ends a draining process once nobody waits for it. */
static void proc_maybe_done(struct host_proc *p)
{
    if ((p->state == PROC_DRAINING || p->host->stopping) && p->n_calls == 0 && p->child)
        child_kill_group(p->child, SIGKILL);
}

/* --- calls, for the owners ------------------------------------------------------------------------------------ */

static void on_call_timeout(void *data)
{
    struct host_call *c = data;
    struct host_proc *p = c->proc;
    struct abx_error err;
    if (!p) {
        abx_fail(&err, E_COMMAND_TIMEOUT, 0, "Command '%s' timed out while its command host was not there", c->name);
        call_fail(c, &err, "");
        return;
    }
    abx_fail(&err, E_COMMAND_TIMEOUT, 0, "Command '%s' timed out", c->name);
    if (c->ops)
        send_simple(p, W_CANCEL, c->id, NULL);
    p->abandoned++;
    bool replace_it = p->abandoned >= HOST_MAX_ABANDONED;
    call_fail(c, &err, "");
    if (replace_it)
        replace(p, "too many of its calls do not return");
    proc_maybe_done(p);
}

struct wire_buf *host_call_begin(struct host *h, struct abx_error *err)
{
    if (h->stopping) {
        abx_fail(err, E_STOPPING, 0, "The server is stopping");
        return NULL;
    }
    if (h->n_calls >= HOST_MAX_CALLS || (h->current && h->current->out.len > MAX_OUT)) {
        abx_fail(err, E_OVERLOADED, 0, "Too many calls of commands are waiting");
        return NULL;
    }
    h->target = h->current ? &h->current->out : &h->build;
    h->frame = wire_begin(h->target, W_CALL, ++h->last_id);
    return h->target;
}

void host_call_abort(struct host *h)
{
    h->target->len = h->frame;
    h->target->failed = false;
}

int host_call_commit(struct host *h, const char *name, uint64_t timeout_ms, const struct host_call_ops *ops,
                     void *owner, struct host_call **ret, struct abx_error *err)
{
    struct host_call *c = call_new(h);
    if (!c || wire_end(h->target, h->frame) < 0) {
        if (c)
            free(c);
        host_call_abort(h);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory for a call");
    }
    c->id = h->last_id;
    c->ops = ops;
    c->owner = owner;
    memcpy(c->name, name, utf8_floor(name, strnlen(name, sizeof(c->name) - 1)));
    list_init(&c->link);
    timer_init(&c->timer, h->opt.loop, on_call_timeout, c);
    timer_start(&c->timer, timeout_ms);
    h->n_calls++;
    if (h->target == &h->build) {
        c->frame = h->build;
        h->build = (struct wire_buf){0};
        list_append(&h->waiting, &c->link);
    } else {
        c->proc = h->current;
        c->proc->n_calls++;
        list_append(&c->proc->calls, &c->link);
        flush_soon(h);
    }
    *ret = c;
    return 0;
}

void host_call_cancel(struct host_call *c)
{
    c->ops = NULL;
    c->owner = NULL;
    if (c->proc)
        send_simple(c->proc, W_CANCEL, c->id, NULL);
    else
        call_free(c);
}

void host_call_credit(struct host_call *c, size_t bytes)
{
    uint32_t n = (uint32_t)bytes;
    if (c->proc && n)
        send_simple(c->proc, W_CREDIT, c->id, &n);
}

static void send_waiting(struct host *h)
{
    struct host_proc *p = h->current;
    list_for_each_safe(it, &h->waiting) {
        struct host_call *c = list_entry(it, struct host_call, link);
        wire_raw(&p->out, c->frame.data, c->frame.len);
        if (p->out.failed) {
            struct abx_error err;
            p->out.failed = false;
            abx_fail(&err, E_NO_MEMORY, 0, "out of memory for a call");
            call_fail(c, &err, "");
            continue;
        }
        wire_done(&c->frame);
        list_remove(&c->link);
        c->proc = p;
        p->n_calls++;
        list_append(&p->calls, &c->link);
    }
    proc_flush(p);
}

/* --- registration -------------------------------------------------------------------------------------------- */

static void content_done(struct host_content *c)
{
    for (size_t i = 0; i < c->n_commands; i++)
        command_spec_done(&c->commands[i]);
    for (size_t i = 0; i < c->n_routes; i++)
        route_spec_done(&c->routes[i]);
    free(c->commands);
    free(c->routes);
    *c = (struct host_content){0};
}

static void *grow(void *items, size_t n, size_t size)
{
    return n % 16 ? items : reallocarray(items, n + 16, size);
}

static int add_command(struct host_content *c, struct wire_reader *r, uint32_t index, struct abx_error *err)
{
    struct command_spec *items = grow(c->commands, c->n_commands, sizeof(*items));
    if (!items)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    c->commands = items;
    struct command_spec *added = &items[c->n_commands];
    if (command_spec_read(r, added, err) < 0)
        return -1;
    added->index = index;
    c->n_commands++;
    for (size_t i = 0; i + 1 < c->n_commands; i++)
        if (strcmp(items[i].name, added->name) == 0)
            return abx_fail(err, E_CONFIG, 0, "two commands are named '%s'", added->name);
    return 0;
}

static int add_route(struct host_content *c, struct wire_reader *r, uint32_t index, struct abx_error *err)
{
    struct route_spec *items = grow(c->routes, c->n_routes, sizeof(*items));
    if (!items)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    c->routes = items;
    if (route_spec_read(r, &items[c->n_routes], err) < 0)
        return -1;
    items[c->n_routes++].index = index;
    return 0;
}

static int add_group(struct host_content *c, struct wire_reader *r, struct abx_error *err)
{
    const char *name = wire_get_text(r, NULL);
    bool on = wire_get_u32(r);
    enum group g;
    if (r->bad || group_parse(name, &g) < 0)
        return abx_fail(err, E_CONFIG, 0, "unknown group '%.60s'", name);
    if (g == G_CORE && !on)
        return abx_fail(err, E_CONFIG, 0, "the group 'core' can't be turned off");
    if (g != G_CORE)
        c->groups[g] = on ? 1 : -1;
    return 0;
}

static int read_content(const struct wire_buf *frames, struct host_content *c, struct abx_error *err)
{
    struct wire_header h;
    struct wire_reader r;
    uint32_t index = 0;
    size_t at = 0, need;
    int result = 0;
    while (result == 0 && wire_next(frames->data + at, frames->len - at, &h, &r, &need) == 1) {
        at += need;
        if (h.type == W_COMMAND)
            result = add_command(c, &r, index++, err);
        else if (h.type == W_ROUTE)
            result = add_route(c, &r, index++, err);
        else if (h.type == W_GROUP)
            result = add_group(c, &r, err);
    }
    return result;
}

/* --- a process's life ------------------------------------------------------------------------------------------ */

static void tell_loaded(struct host *h, const struct abx_error *err, int exit_status)
{
    void (*fn)(void *, const struct abx_error *, int) = h->on_loaded;
    h->on_loaded = NULL;
    if (fn)
        fn(h->owner, err, exit_status);
}

static void kill_proc(struct host_proc *p)
{
    if (p->child)
        child_kill_group(p->child, SIGKILL);
}

static void load_failed(struct host_proc *p, const char *why)
{
    struct host *h = p->host;
    struct abx_error err;
    p->state = PROC_DRAINING; /* nothing more from it */
    timer_stop(&p->load_timer);
    if (h->on_loaded) {
        abx_fail(&err, E_CONFIG, 0, "cannot load commands file '%s': %s", h->label, why);
        tell_loaded(h, &err, 0);
    } else {
        log_error("commands %s: a new command host can't be used: %s", h->label, why);
    }
    kill_proc(p);
}

static void on_load_timeout(void *data)
{
    load_failed(data, "loading it takes more than 30 s");
}

static void on_ready(struct host_proc *p, uint32_t version)
{
    struct host *h = p->host;
    struct abx_error err;
    timer_stop(&p->load_timer);
    if (version != WIRE_VERSION) {
        load_failed(p, "abx-command-host is of another version than the server");
        return;
    }
    if (!h->loaded) {
        if (read_content(&p->registration, &h->content, &err) < 0) {
            load_failed(p, err.message);
            return;
        }
        h->registration = p->registration;
        p->registration = (struct wire_buf){0};
        h->loaded = true;
    } else if (h->registration.len != p->registration.len ||
               (h->registration.len && memcmp(h->registration.data, p->registration.data, h->registration.len) != 0)) {
        load_failed(p, "the file has changed since the server started and registers other things now; restart the "
                       "server, or serve with --reload");
        return;
    }
    wire_done(&p->registration);
    p->state = PROC_READY;
    p->started_ms = mono_ms();
    if (p == h->next) {
        h->next = NULL;
        struct host_proc *before = h->current;
        h->current = p;
        if (before)
            proc_drain(before);
    } else {
        h->next = NULL;
        h->current = p;
    }
    send_waiting(h);
    tell_loaded(h, NULL, 0);
}

static void on_resolve(struct host_proc *p, uint32_t id, struct wire_reader *r)
{
    struct host_call *c = find_call(p, id);
    int op = (int)wire_get_u32(r);
    const char *path = wire_get_text(r, NULL), *resolved = NULL;
    if (!c || !c->ops || r->bad)
        return;
    struct abx_error err = {0};
    int result = c->ops->resolve(c->owner, op, path, &resolved, &err);
    size_t frame = wire_begin(&p->out, W_RESOLVED, id);
    wire_u32(&p->out, result < 0 ? (uint32_t)err.status : 0);
    if (result < 0) {
        wire_str(&p->out, err.type);
        wire_str(&p->out, err.code);
        wire_str(&p->out, err.message);
    } else {
        wire_str(&p->out, resolved);
    }
    (void)wire_end(&p->out, frame); /* no memory: the call's timeout ends it */
    flush_soon(p->host);
}

static void on_result(struct host_call *c, struct wire_reader *r)
{
    struct host_result res = {.status = (int)wire_get_u32(r), .json = wire_get_u32(r) == WIRE_KIND_JSON};
    res.n_headers = wire_get_u32(r);
    res.headers = *r;
    for (uint32_t i = 0; i < res.n_headers && !r->bad; i++) {
        wire_get_text(r, NULL);
        wire_get_text(r, NULL);
    }
    res.content_type = wire_get_text(r, NULL);
    res.body = wire_get_text(r, &res.body_len);
    if (r->bad) {
        struct abx_error err;
        abx_fail(&err, E_COMMAND_RESULT, 0, "The command host sent an unreadable result");
        call_fail(c, &err, "");
        return;
    }
    const struct host_call_ops *ops = c->ops;
    void *owner = c->owner;
    call_free(c);
    if (ops)
        ops->result(owner, &res);
}

static void on_error(struct host_call *c, struct wire_reader *r)
{
    struct abx_error err = {.kind = E_RUNTIME_500};
    int status = (int)wire_get_u32(r);
    autofree char *type = utf8_replace(r->at, 0, NULL);
    const char *raw_type = wire_get_text(r, NULL), *raw_code = wire_get_text(r, NULL);
    const char *message = wire_get_text(r, NULL), *fields = wire_get_text(r, NULL);
    free(type);
    type = utf8_replace(raw_type, strlen(raw_type), NULL);
    autofree char *code = utf8_replace(raw_code, strlen(raw_code), NULL);
    autofree char *clean = utf8_replace(message, strlen(message), NULL);
    err.status = status >= 400 && status <= 599 ? status : 500;
    err.type = type && *type ? type : "RuntimeError";
    err.code = code && *code ? code : NULL;
    size_t n = clean ? utf8_floor(clean, strnlen(clean, sizeof(err.message) - 1)) : 0;
    memcpy(err.message, clean ? clean : "", n);
    err.message[n] = 0;
    call_fail(c, &err, fields);
}

/* A frame of a process that is ready or draining. */
static void on_frame(struct host_proc *p, const struct wire_header *h, struct wire_reader *r)
{
    struct host_call *c;
    switch (h->type) {
    case W_RESULT:
    case W_ERROR:
    case W_ENDED:
        c = find_call(p, h->id);
        if (!c) {
            if (h->id && p->abandoned)
                p->abandoned--;
            return;
        }
        if (h->type == W_RESULT) {
            on_result(c, r);
        } else if (h->type == W_ERROR) {
            on_error(c, r);
        } else {
            call_free(c);
        }
        proc_maybe_done(p);
        return;
    case W_EVENT: {
        c = find_call(p, h->id);
        size_t len;
        const char *name = wire_get_text(r, NULL), *json = wire_get_text(r, &len);
        if (c && c->ops && !r->bad)
            c->ops->event(c->owner, name, json, len);
        return;
    }
    case W_RESOLVE:
        on_resolve(p, h->id, r);
        return;
    case W_LOG: {
        static const enum log_level levels[] = {LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR};
        uint32_t level = wire_get_u32(r);
        size_t len;
        const char *text = wire_get_text(r, &len);
        log_line(p->host, levels[level < ARRAY_LEN(levels) ? level : 1], text, len < LOG_LINE ? len : LOG_LINE);
        return;
    }
    case W_DRAIN: {
        const char *why = wire_get_text(r, NULL);
        p->memory_drain = p->memory_drain || strcmp(why, "memory") == 0;
        replace(p, strcmp(why, "memory") == 0 ? "it is over its memory limit" : "it has too many descriptors open");
        return;
    }
    default:
        return;
    }
}

static void on_loading_frame(struct host_proc *p, const struct wire_header *h, struct wire_reader *r, size_t size)
{
    switch (h->type) {
    case W_COMMAND:
    case W_ROUTE:
    case W_GROUP:
        wire_raw(&p->registration, r->at - sizeof(*h), size);
        if (p->registration.failed || p->registration.len > MAX_REGISTRATION)
            load_failed(p, "it registers too much");
        return;
    case W_READY:
        on_ready(p, wire_get_u32(r));
        return;
    case W_LOAD_FAILED:
        load_failed(p, wire_get_text(r, NULL));
        return;
    default:
        on_frame(p, h, r);
        return;
    }
}

static void take_frames(struct host_proc *p)
{
    struct wire_header h;
    struct wire_reader r;
    size_t at = 0, need = 0;
    int more = 0;
    while ((more = wire_next(p->in.data + at, p->in.len - at, &h, &r, &need)) == 1) {
        if (p->state == PROC_LOADING)
            on_loading_frame(p, &h, &r, need);
        else
            on_frame(p, &h, &r);
        at += need;
    }
    wire_consume(&p->in, at);
    if (more < 0) {
        log_error("commands %s: the command host sent something that is no frame; it is ended", p->host->label);
        p->in.len = 0;
        kill_proc(p);
    }
    if (!p->in.len && p->in.cap > 4 * READ_BYTES)
        wire_done(&p->in);
}

static void proc_read(struct host_proc *p, int turns)
{
    while (turns-- > 0 && !p->sock_eof) {
        char *at = wire_reserve(&p->in, READ_BYTES);
        if (!at) {
            p->in.failed = false;
            kill_proc(p);
            return;
        }
        ssize_t n = recv(p->fd, at, READ_BYTES, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            p->sock_eof = true;
            (void)io_want(&p->io, 0); /* its end is told by the child */
            return;
        }
        p->in.len += (size_t)n;
        take_frames(p);
        if (n < READ_BYTES)
            return;
    }
}

static void on_io(void *data, int events)
{
    struct host_proc *p = data;
    if (events < 0 || events & (UV_READABLE | UV_DISCONNECT))
        proc_read(p, READS_PER_TURN);
    if (events > 0 && events & UV_WRITABLE)
        proc_flush(p);
}

static void host_destroy(struct host *h)
{
    content_done(&h->content);
    wire_done(&h->registration);
    wire_done(&h->build);
    timer_done(&h->retry);
    uv_prepare_stop(h->prepare);
    uv_close((uv_handle_t *)h->prepare, (uv_close_cb)free);
    while (h->spare) {
        struct host_call *c = h->spare;
        h->spare = *(struct host_call **)c->name;
        free(c);
    }
    free(h->file);
    free(h->label);
    free(h->program);
    free(h);
}

static void destroy_later(void *data)
{
    host_destroy(data);
}

/* The process is gone and so is all that it sent. */
static void proc_free(struct host_proc *p)
{
    struct host *h = p->host;
    list_remove(&p->link);
    timer_done(&p->load_timer);
    if (p->fd >= 0) {
        io_done(&p->io);
        close(p->fd);
    }
    if (p->log_fd >= 0) {
        io_done(&p->log_io);
        close(p->log_fd);
    }
    if (p->child_fd >= 0)
        close(p->child_fd);
    if (p->child_log_fd >= 0)
        close(p->child_log_fd);
    wire_done(&p->in);
    wire_done(&p->out);
    wire_done(&p->registration);
    if (p->child)
        child_free(p->child, true);
    if (h->current == p)
        h->current = NULL;
    if (h->next == p)
        h->next = NULL;
    h->n_procs--;
    free(p);
    if (h->freed && !h->n_procs)
        loop_post(h->opt.loop, destroy_later, h); /* we may be deep in a call of its own */
}

static void end_error(const struct host_proc *p, const char *name, struct abx_error *err, char fields[64])
{
    const char *label = p->host->label;
    fields[0] = 0;
    if (p->host->stopping) {
        abx_fail(err, E_STOPPING, 0, "The server is stopping");
    } else if (WIFSIGNALED(p->status)) {
        int sig = WTERMSIG(p->status);
        const char *abbrev = sigabbrev_np(sig);
        abx_fail(err, E_COMMAND_CRASHED, 0, "The command host of '%s' was killed by signal %d (SIG%s) during '%s'", label,
                 sig, abbrev ? abbrev : "?", name);
        snprintf(fields, 64, "{\"signal\": \"SIG%s\"}", abbrev ? abbrev : "?");
    } else if (WEXITSTATUS(p->status) == WIRE_EXIT_MEMORY && p->memory_drain) {
        abx_fail(err, E_COMMAND_MEMORY, 0, "The command host of '%s' was ended during '%s': it used twice its memory limit",
                 label, name);
    } else {
        abx_fail(err, E_COMMAND_EXITED, 0, "The command host of '%s' exited with status %d during '%s'", label,
                 WEXITSTATUS(p->status), name);
        snprintf(fields, 64, "{\"exit_code\": %d}", WEXITSTATUS(p->status));
    }
}

static void fail_waiting(struct host *h, const char *why)
{
    struct abx_error err;
    abx_fail(&err, E_RUNTIME_503, 0, "The command host of '%s' can't be started: %s", h->label, why);
    while (!list_empty(&h->waiting))
        call_fail(list_entry(h->waiting.next, struct host_call, link), &err, "");
}

static void on_retry(void *data)
{
    struct host *h = data;
    if (!h->stopping && !h->current && !h->next)
        start_proc(h, &h->next);
}

/* Brings the host back, at once or a little later. */
static void restart(struct host *h, bool at_once)
{
    if (h->stopping || !h->loaded || h->current || h->next || timer_running(&h->retry))
        return;
    if (at_once) {
        h->fails = 0;
        start_proc(h, &h->next);
        return;
    }
    uint64_t wait = RETRY_MIN_MS << (h->fails < 6 ? h->fails : 6);
    h->fails++;
    timer_start(&h->retry, wait < RETRY_MAX_MS ? wait : RETRY_MAX_MS);
}

static void on_exited(void *owner, struct child *child, int status)
{
    struct host_proc *p = owner;
    struct host *h = p->host;
    bool was_loading = p->state == PROC_LOADING, was_ready = p->state == PROC_READY, was_current = p == h->current;
    child_kill_group(child, SIGKILL); /* what it left behind */
    proc_read(p, 1 << 20);            /* what it said before its end still counts */
    if (p->log_fd >= 0)
        on_log(p, UV_READABLE);
    p->status = status;
    loop_metrics(h->opt.loop)->hosts--;
    was_loading = was_loading && p->state == PROC_LOADING;
    bool in_flight = p->n_calls > 0, steady = was_ready && mono_ms() - p->started_ms > STEADY_MS;
    p->state = PROC_ENDED;
    if (h->current == p)
        h->current = NULL;
    if (h->next == p)
        h->next = NULL;
    struct abx_error err;
    char fields[64];
    if (was_loading) {
        end_error(p, "loading", &err, fields);
        if (h->on_loaded) {
            char why[400];
            snprintf(why, sizeof(why), "%.390s", err.message);
            abx_fail(&err, E_CONFIG, 0, "cannot load commands file '%s': %s", h->label, why);
            tell_loaded(h, &err, WIFEXITED(status) ? WEXITSTATUS(status) : 0);
        } else {
            log_error("commands %s: %s", h->label, err.message);
            fail_waiting(h, err.message);
        }
    } else if (was_ready && !h->stopping) {
        const char *one = !list_empty(&p->calls) ? list_entry(p->calls.next, struct host_call, link)->name : "no call";
        end_error(p, one, &err, fields);
        log_error("commands %s: %s; it is started again", h->label, err.message);
        loop_metrics(h->opt.loop)->host_crashes++;
    }
    if (was_current || was_loading)
        restart(h, was_ready && (in_flight || steady));
    while (!list_empty(&p->calls)) {
        struct host_call *c = list_entry(p->calls.next, struct host_call, link);
        end_error(p, c->name, &err, fields);
        call_fail(c, &err, fields);
    }
    proc_free(p);
}

static void on_started(void *owner, struct child *child, int sys)
{
    struct host_proc *p = owner;
    struct host *h = p->host;
    p->spawning = false;
    close(take_fd(&p->child_fd));
    close(take_fd(&p->child_log_fd));
    p->child = child;
    loop_metrics(h->opt.loop)->hosts += child != NULL;
    if (child && (h->stopping || p->state == PROC_DRAINING))
        kill_proc(p);
    if (child)
        return;
    struct abx_error err;
    abx_fail(&err, E_CONFIG, sys, "cannot start '%s' for commands file '%s': %s", h->program, h->label, strerror(sys));
    if (h->on_loaded) {
        tell_loaded(h, &err, 0);
    } else if (!h->stopping) {
        log_error("%s", err.message);
        fail_waiting(h, strerror(sys));
    }
    proc_free(p);
    restart(h, false);
}

static const struct child_ops child_ops = {.started = on_started, .exited = on_exited};

static int proc_spawn(struct host_proc *p)
{
    struct host *h = p->host;
    char memory[32], threads[16];
    snprintf(memory, sizeof(memory), "%llu", (unsigned long long)h->opt.memory_bytes);
    snprintf(threads, sizeof(threads), "%u", h->opt.max_threads);
    char *argv[] = {h->program, "3", memory, threads, h->file, NULL};
    autofree char **envp = env_block(h->opt.env, NULL);
    struct spawn_extra extra = {.child_fd = 3, .fd = p->child_fd};
    struct spawn_opts opts = {.file = h->program,
                              .argv = argv,
                              .envp = envp,
                              .cwd_fd = -1,
                              .fds = {-1, p->child_log_fd, p->child_log_fd},
                              .extra = &extra,
                              .n_extra = 1,
                              .uid = -1,
                              .gid = -1,
                              .helper = true};
    return envp ? spawn_start(h->opt.spawner, &opts, &child_ops, p, NULL) : -1;
}

static void start_later(void *data)
{
    struct host *h = data;
    struct abx_error err;
    abx_fail(&err, E_CONFIG, errno, "cannot start a command host for '%s': no descriptors, threads or memory", h->label);
    if (h->on_loaded)
        tell_loaded(h, &err, 0);
    else
        restart(h, false);
}

static void start_proc(struct host *h, struct host_proc **slot)
{
    int pair[2] = {-1, -1}, pipe_fds[2] = {-1, -1};
    struct host_proc *p = calloc(1, sizeof(*p));
    if (!p)
        goto fail;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 || pipe2(pipe_fds, O_CLOEXEC) < 0)
        goto fail;
    (void)fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK); /* our end only */
    *p = (struct host_proc){.host = h, .state = PROC_LOADING, .fd = pair[0], .child_fd = pair[1], .log_fd = pipe_fds[0],
                            .child_log_fd = pipe_fds[1], .spawning = true};
    list_init(&p->link);
    list_init(&p->calls);
    timer_init(&p->load_timer, h->opt.loop, on_load_timeout, p);
    if (io_init(&p->io, h->opt.loop, p->fd, on_io, p) < 0)
        goto fail;
    if (io_init(&p->log_io, h->opt.loop, p->log_fd, on_log, p) < 0) {
        io_done(&p->io);
        goto fail;
    }
    h->n_procs++;
    *slot = p;
    if (proc_spawn(p) < 0) {
        *slot = NULL;
        proc_free(p);
        loop_post(h->opt.loop, start_later, h);
        return;
    }
    (void)io_want(&p->io, UV_READABLE);
    (void)io_want(&p->log_io, UV_READABLE);
    timer_start(&p->load_timer, HOST_LOAD_MS);
    return;
fail:
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0)
            close(pair[i]);
        if (pipe_fds[i] >= 0)
            close(pipe_fds[i]);
    }
    free(p);
    loop_post(h->opt.loop, start_later, h);
}

/* --- the file ------------------------------------------------------------------------------------------------- */

struct host *host_new(const struct host_options *options, const char *file, const char *label,
                      void (*loaded)(void *owner, const struct abx_error *err, int exit_status), void *owner)
{
    struct host *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    h->opt = *options;
    h->file = strdup(file);
    h->label = strdup(label);
    h->program = strdup(options->program);
    h->prepare = calloc(1, sizeof(*h->prepare));
    if (!h->file || !h->label || !h->program || !h->prepare) {
        free(h->file);
        free(h->label);
        free(h->program);
        free(h->prepare);
        free(h);
        return NULL;
    }
    uv_prepare_init(loop_uv(h->opt.loop), h->prepare);
    h->prepare->data = h;
    h->on_loaded = loaded;
    h->owner = owner;
    h->log_tokens = LOG_BURST;
    h->log_ms = loop_now(h->opt.loop);
    list_init(&h->old);
    list_init(&h->waiting);
    timer_init(&h->retry, h->opt.loop, on_retry, h);
    start_proc(h, &h->next);
    return h;
}

const struct host_content *host_content(const struct host *h)
{
    return &h->content;
}

const char *host_label(const struct host *h)
{
    return h->label;
}

pid_t host_pid(const struct host *h)
{
    return h->current && h->current->child ? child_pid(h->current->child) : 0;
}

static void proc_stop(struct host_proc *p)
{
    struct abx_error err;
    abx_fail(&err, E_STOPPING, 0, "The server is stopping");
    timer_stop(&p->load_timer);
    p->state = PROC_DRAINING;
    while (!list_empty(&p->calls))
        call_fail(list_entry(p->calls.next, struct host_call, link), &err, "");
    kill_proc(p);
}

void host_stop(struct host *h)
{
    h->stopping = true;
    timer_stop(&h->retry);
    fail_waiting(h, "the server is stopping");
    if (h->next)
        proc_stop(h->next);
    if (h->current)
        proc_maybe_done(h->current);
}

void host_free(struct host *h)
{
    if (!h)
        return;
    h->stopping = true;
    h->freed = true;
    h->on_loaded = NULL;
    timer_stop(&h->retry);
    fail_waiting(h, "the server is stopping");
    if (h->current)
        proc_stop(h->current);
    if (h->next)
        proc_stop(h->next);
    list_for_each_safe(it, &h->old)
        proc_stop(list_entry(it, struct host_proc, link));
    if (!h->n_procs)
        loop_post(h->opt.loop, destroy_later, h);
}
