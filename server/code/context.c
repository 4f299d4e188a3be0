#include "code/context.h"

/* The process is an ordinary one-shot run whose program is the driver (driver.py, driver.js): its code comes
 * on CODE_FD and a socket on LINK_FD. Output still comes through the pipes. The driver ends each run by
 * writing a random token to both pipes and then its answer to the socket, so a run is over when all three are
 * seen. A program that closed or hijacked its pipes is not waited for longer than MARK_MS. */

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/json.h"
#include "base/list.h"
#include "base/own.h"
#include "code/drivers.h"

#define LINK_FD 4
#define TOKEN_LEN 40
#define MARK_MS 500
#define REPLY_MAX ((size_t)16 * MIB)
#define BETWEEN_MAX ((size_t)64 * KIB) /* output that comes while nobody runs anything: kept for the next run */

struct pipe_text {
    struct buf held; /* not yet known not to be a token */
    bool marked;
};

struct context {
    struct list link;
    struct contexts *owner;
    char id[CONTEXT_ID_MAX + 1];
    const struct language *lang;
    struct source src;
    struct proc *proc; /* NULL: ended */
    int sock, theirs; /* the program's end, until it has started */
    struct io io;
    int wants;
    struct buf to_send, reply;
    struct pipe_text pipes[2];
    struct timer timer; /* of the run, or idle */
    struct timer mark_timer; /* an answer without tokens, or a process without its socket */
    /* The run. */
    void (*done)(void *data, int sys, const struct context_result *result); /* NULL: none */
    void *data;
    char token[TOKEN_LEN + 1];
    struct output out[2];
    uint64_t began_ns;
    bool timed_out;
    json_t *answer;
};

struct contexts {
    struct loop *loop;
    struct spawner *spawner;
    struct contexts_limits limits;
    struct list all;
    size_t n;
};

struct contexts *contexts_new(struct loop *loop, struct spawner *spawner, const struct contexts_limits *limits)
{
    struct contexts *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->loop = loop;
    c->spawner = spawner;
    c->limits = *limits;
    list_init(&c->all);
    return c;
}

static void close_link(struct context *x)
{
    if (x->sock < 0)
        return;
    io_done(&x->io);
    close(take_fd(&x->sock));
}

/* Forgets it: no run is in progress, its process is told to end. */
static void context_free(struct context *x)
{
    list_remove(&x->link);
    x->owner->n--;
    timer_done(&x->timer);
    timer_done(&x->mark_timer);
    close_link(x);
    if (x->proc)
        proc_cancel(x->proc, 0);
    source_remove(&x->src);
    if (x->theirs >= 0)
        close(x->theirs);
    for (int i = 0; i < 2; i++) {
        buf_done(&x->pipes[i].held);
        output_done(&x->out[i]);
    }
    buf_done(&x->to_send);
    buf_done(&x->reply);
    json_decref(x->answer);
    free(x);
}

void contexts_free(struct contexts *c)
{
    if (!c)
        return;
    list_for_each_safe(it, &c->all)
        context_free(list_entry(it, struct context, link));
    free(c);
}

bool context_language(const struct language *lang)
{
    return strcmp(lang->name, "python") == 0 || strcmp(lang->name, "node") == 0;
}

/* --- a run's end ---------------------------------------------------------------------------------- */

static void arm(struct context *x, void (*fn)(void *data), uint64_t after_ms)
{
    timer_stop(&x->timer);
    x->timer.fn = fn;
    timer_start(&x->timer, after_ms);
}

static void rest(void *data)
{
    context_free(data); /* idle for too long */
}

static void finish(struct context *x, int sys, int exit_code)
{
    void (*done)(void *, int, const struct context_result *) = x->done;
    void *data = x->data;
    if (!done)
        return;
    x->done = NULL;
    timer_stop(&x->timer);
    timer_stop(&x->mark_timer);
    output_finish(&x->out[0]);
    output_finish(&x->out[1]);
    struct context_result result = {
        .run = {.out = x->out,
                .exit_code = exit_code,
                .timed_out = x->timed_out,
                .ms = (double)(mono_ns() - x->began_ns) / 1e6},
        .reply = x->answer};
    done(data, sys, sys ? NULL : &result);
    output_done(&x->out[0]);
    output_done(&x->out[1]);
    json_decref(take_ptr(x->answer));
    if (x->owner->limits.idle_ms > 0) {
        arm(x, rest, x->owner->limits.idle_ms);
    }
}

static void answered(struct context *x)
{
    finish(x, 0, (int)json_integer_value(json_object_get(x->answer, "exit_code")));
}

static void check_answered(struct context *x)
{
    if (!x->done || !x->answer)
        return;
    if (x->pipes[0].marked && x->pipes[1].marked)
        answered(x);
    else if (!timer_running(&x->mark_timer))
        timer_start(&x->mark_timer, MARK_MS);
}

static void waited(void *data)
{
    struct context *x = data;
    if (x->done && x->answer)
        answered(x); /* without its tokens */
    else if (x->proc)
        proc_kill(x->proc, 0); /* without its socket it is of no use */
}

static void out_of_time(void *data)
{
    struct context *x = data;
    x->timed_out = true;
    proc_kill(x->proc, 0);
}

/* --- the pipes --- */

static void give(struct context *x, int which, size_t len)
{
    struct buf *held = &x->pipes[which].held;
    if (x->done && len > 0)
        output_add(&x->out[which], held->data, len);
    buf_consume(held, len);
}

static void scan(struct context *x, int which)
{
    struct pipe_text *p = &x->pipes[which];
    if (!x->done || p->marked || p->held.len == 0)
        return;
    const char *mark = memmem(p->held.data, p->held.len, x->token, TOKEN_LEN);
    if (mark) {
        size_t before = (size_t)(mark - p->held.data);
        give(x, which, before);
        buf_consume(&p->held, TOKEN_LEN);
        p->marked = true;
    } else if (p->held.len >= TOKEN_LEN) {
        give(x, which, p->held.len - (TOKEN_LEN - 1));
    }
}

static void on_output(void *owner, enum proc_stream stream, const char *data, size_t len)
{
    struct context *x = owner;
    int which = stream == PROC_STDERR;
    struct pipe_text *p = &x->pipes[which];
    buf_add(&p->held, data, len);
    if (p->held.failed)
        buf_done(&p->held);
    if (!x->done && p->held.len > BETWEEN_MAX)
        buf_consume(&p->held, p->held.len - BETWEEN_MAX);
    scan(x, which);
    check_answered(x);
}

/* --- the socket --- */

static void on_link(void *data, int events);

static void want(struct context *x)
{
    int events = UV_READABLE | (x->to_send.len > 0 ? UV_WRITABLE : 0);
    if (x->sock >= 0 && events != x->wants) {
        x->wants = events;
        (void)io_want(&x->io, events);
    }
}

static void send_order(struct context *x)
{
    while (x->to_send.len > 0) {
        ssize_t n = send(x->sock, x->to_send.data, x->to_send.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            buf_reset(&x->to_send); /* the process is about to end */
        if (n < 0)
            break;
        buf_consume(&x->to_send, (size_t)n);
    }
    if (x->to_send.len == 0)
        buf_done(&x->to_send);
    want(x);
}

static void read_reply(struct context *x)
{
    char *room;
    ssize_t n = -1;
    while ((room = buf_reserve(&x->reply, 64 * KIB)) && x->reply.len < REPLY_MAX) {
        n = recv(x->sock, room, 64 * KIB, MSG_DONTWAIT);
        if (n <= 0)
            break;
        x->reply.len += (size_t)n;
    }
    if (n == 0 || !room || x->reply.len >= REPLY_MAX) {
        close_link(x); /* the program has ended, closed it, or talks nonsense on it */
        if (!x->answer)
            timer_start(&x->mark_timer, MARK_MS);
        return;
    }
    char *end = memchr(x->reply.data, '\n', x->reply.len);
    if (!end)
        return;
    json_t *answer = NULL;
    if (x->done && !x->answer && json_parse(x->reply.data, (size_t)(end - x->reply.data), &answer, NULL) == 0)
        x->answer = answer;
    buf_done(&x->reply);
    check_answered(x);
}

static void on_link(void *data, int events)
{
    struct context *x = data;
    if (events >= 0 && (events & UV_WRITABLE))
        send_order(x);
    if (x->sock >= 0)
        read_reply(x);
}

/* --- the process --- */

static void on_started(void *owner, struct proc *p, int sys)
{
    struct context *x = owner;
    close(take_fd(&x->src.fd));
    close(take_fd(&x->theirs));
    if (sys == 0)
        return;
    x->proc = NULL;
    finish(x, sys, 0);
    context_free(x);
}

static void on_ended(void *owner, int exit_code)
{
    struct context *x = owner;
    x->proc = NULL;
    for (int i = 0; i < 2; i++) {
        scan(x, i);
        give(x, i, x->pipes[i].held.len);
    }
    finish(x, 0, x->answer ? (int)json_integer_value(json_object_get(x->answer, "exit_code")) : exit_code);
    context_free(x);
}

static const struct proc_ops ops = {.started = on_started, .output = on_output, .ended = on_ended};

static int start_process(struct context *x, const struct code_order *o, struct abx_error *err)
{
    bool python = strcmp(x->lang->name, "python") == 0;
    const char *driver = python ? code_driver_python : code_driver_node;
    char space[48];
    uint64_t memory = x->owner->limits.memory_bytes;
    if (source_write(x->lang, driver, strlen(driver), NULL, &x->src, err) < 0)
        return -1;
    autofree char **plain = language_argv(x->lang, NULL, NULL);
    if (!plain)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    snprintf(space, sizeof(space), "--max-old-space-size=%llu", (unsigned long long)(memory / MIB));
    char *argv[] = {plain[0], python ? plain[1] : space, python ? plain[2] : plain[1], python ? NULL : plain[2], NULL};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return abx_fail(err, E_OVERLOADED, errno, "No descriptors left for another context");
    x->sock = pair[0];
    if (io_init(&x->io, x->owner->loop, x->sock, on_link, x) < 0) {
        close(take_fd(&x->sock));
        close(pair[1]);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    x->theirs = pair[1];
    struct spawn_extra extra[] = {{.child_fd = CODE_FD, .fd = x->src.fd}, {.child_fd = LINK_FD, .fd = pair[1]}};
    struct proc_opts p = {
        .spawn = {.file = o->program, .argv = argv, .envp = o->envp, .cwd_fd = o->cwd_fd, .fds = {-1, -1, -1},
                  .extra = extra, .n_extra = ARRAY_LEN(extra), .uid = -1, .gid = -1,
                  .limits = {.memory_bytes = python ? memory : 0}},
        .stdin_mode = PROC_STDIN_NULL};
    return proc_start(x->owner->spawner, x->owner->loop, &p, &ops, x, &x->proc, err);
}

/* --- the front ------------------------------------------------------------------------------------- */

static int check_id(const char *id, struct abx_error *err)
{
    size_t len = strlen(id);
    bool good = len >= 1 && len <= CONTEXT_ID_MAX;
    for (size_t i = 0; good && i < len; i++)
        good = isalnum((unsigned char)id[i]) || strchr("._-", id[i]);
    if (!good)
        return abx_fail(err, E_VALUE, 0, "'context_id' must be 1 to %d letters, digits, '.', '_' or '-'",
                        CONTEXT_ID_MAX);
    return 0;
}

static struct context *find(struct contexts *c, const char *id)
{
    list_for_each(it, &c->all) {
        struct context *x = list_entry(it, struct context, link);
        if (strcmp(x->id, id) == 0)
            return x;
    }
    return NULL;
}

static struct context *make(struct contexts *c, const char *id, const struct code_order *o, struct abx_error *err)
{
    if (c->n >= CONTEXT_MAX) {
        abx_fail(err, E_RESOURCE, 0, "Context limit reached (%d)", CONTEXT_MAX);
        return NULL;
    }
    struct context *x = calloc(1, sizeof(*x));
    if (!x) {
        abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
        return NULL;
    }
    x->owner = c;
    x->lang = o->lang;
    x->src.fd = x->sock = x->theirs = -1;
    memcpy(x->id, id, strlen(id));
    timer_init(&x->timer, c->loop, rest, x);
    timer_init(&x->mark_timer, c->loop, waited, x);
    list_append(&c->all, &x->link);
    c->n++;
    if (start_process(x, o, err) < 0) {
        context_free(x);
        return NULL;
    }
    return x;
}

int context_run(struct contexts *c, const char *id, bool reset, const struct code_order *o,
                void (*done)(void *data, int sys, const struct context_result *result), void *data,
                struct abx_error *err)
{
    if (check_id(id, err) < 0)
        return -1;
    if (!context_language(o->lang))
        return abx_fail(err, E_VALUE, 0, "Contexts are for python and node, not for %s", o->lang->name);
    struct context *x = find(c, id);
    if (x && x->done)
        return abx_fail(err, E_CONFLICT, 0, "Context '%s' is at work", id);
    if (x && (reset || x->sock < 0)) {
        context_free(x);
        x = NULL;
    }
    if (x && x->lang != o->lang)
        return abx_fail(err, E_VALUE, 0, "Context '%s' runs %s", id, x->lang->name);

    char token[TOKEN_LEN + 1];
    crypto_random_hex(token, TOKEN_LEN);
    autojson json_t *order = json_pack("{s:s%, s:s}", "code", o->code, o->code_len, "token", token);
    autobuf struct buf text = BUF_INIT;
    if (order)
        json_write(&text, order);
    buf_addc(&text, '\n');
    if (!order || text.failed)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    if (!x && !(x = make(c, id, o, err)))
        return -1;

    x->to_send = text;
    text = (struct buf)BUF_INIT;
    memcpy(x->token, token, sizeof(token));
    x->done = done;
    x->data = data;
    x->timed_out = false;
    x->began_ns = mono_ns();
    for (int i = 0; i < 2; i++) {
        x->pipes[i].marked = false;
        output_init(&x->out[i], o->max_output);
    }
    arm(x, out_of_time, o->timeout_ms);
    send_order(x);
    return 0;
}

void context_cancel(struct contexts *c, void *data)
{
    list_for_each(it, &c->all) {
        struct context *x = list_entry(it, struct context, link);
        if (x->done && x->data == data) {
            if (x->proc)
                proc_kill(x->proc, 0);
            return;
        }
    }
}
