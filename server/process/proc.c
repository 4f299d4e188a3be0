#include "process/proc.h"

/* Each pipe end we keep is a struct pipe_end with an io of its own. Reading goes into one buffer per
 * call; what a call gets is at most PROC_PIECE, several per turn (READS_PER_TURN) so that one flood
 * can't keep the loop. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/list.h"
#include "base/metrics.h"
#include "base/own.h"

#define READS_PER_TURN 4
#define PIPE_WIDE (512 * KIB) /* for those who fill the kernel's 64 KiB */
#define GIVE_UP_MS 2000       /* after KILL: a process that can't die is left to the spawner */

struct pipe_end {
    struct proc *p;
    int fd; /* -1: at its end */
    struct io io;
    bool early; /* became readable before `started` */
    bool wide;
    int64_t left; /* while draining after the linger: bytes that may still be read */
};

struct write_job {
    struct list link;
    char *data;
    size_t len, written;
    uint32_t stall_ms;
    void (*done)(void *data, size_t written, int sys);
    void *done_data;
};

struct proc {
    struct loop *loop;
    const struct proc_ops *ops; /* NULL: the owner has left */
    void *owner;
    struct child *child;
    struct pipe_end out[2];
    int child_fds[3]; /* the program's ends, ours until it has started */
    struct pipe_end *first_early;
    struct io in;
    int in_fd;
    bool in_eof; /* close when the queue is empty */
    struct list writes;
    struct timer stall, deadline, linger, give_up;
    uint64_t timeout_ms;
    int exit_code;
    bool started, leader_ended, paused, discard, killed, linger_over, kill_at_start, no_grace, kill_counted;
    uint32_t grace_ms;
    unsigned busy; /* calls to the owner in progress: no release meanwhile */
    bool ended;
};

static void out_ready(void *data, int events);
static void flush_input(struct proc *p);

/* --- the end -------------------------------------------------------------------------------------- */

static void close_out(struct pipe_end *e)
{
    if (e->fd < 0)
        return;
    io_done(&e->io);
    loop_close(e->p->loop, e->fd);
    e->fd = -1;
}

static void close_in(struct proc *p)
{
    if (p->in_fd < 0)
        return;
    io_done(&p->in);
    close(p->in_fd);
    p->in_fd = -1;
    timer_stop(&p->stall);
}

static void finish_write(struct proc *p, int sys)
{
    struct write_job *w = list_entry(p->writes.next, struct write_job, link);
    list_remove(&w->link);
    if (w->done)
        w->done(w->done_data, w->written, sys);
    free(w->data);
    free(w);
}

static void drop_writes(struct proc *p, int sys)
{
    while (!list_empty(&p->writes))
        finish_write(p, sys);
}

static void release(struct proc *p)
{
    for (int i = 0; i < 2; i++)
        close_out(&p->out[i]);
    for (int i = 0; i < 3; i++) {
        if (p->child_fds[i] >= 0)
            close(p->child_fds[i]);
    }
    close_in(p);
    drop_writes(p, EPIPE);
    timer_done(&p->stall);
    timer_done(&p->deadline);
    timer_done(&p->linger);
    timer_done(&p->give_up);
    child_free(p->child, false);
    free(p);
}

static void end(struct proc *p)
{
    if (p->ended)
        return;
    p->ended = true;
    if (p->busy > 0)
        return; /* leave() comes back */
    const struct proc_ops *ops = p->ops;
    void *owner = p->owner;
    int code = p->killed ? -SIGKILL : p->exit_code;
    release(p);
    if (ops)
        ops->ended(owner, code);
}

static void enter(struct proc *p)
{
    p->busy++;
}

/* True when the proc is gone. */
static bool leave(struct proc *p)
{
    p->busy--;
    if (p->busy > 0 || !p->ended)
        return false;
    p->ended = false;
    end(p);
    return true;
}

static void check_end(struct proc *p)
{
    if (p->leader_ended && p->out[0].fd < 0 && p->out[1].fd < 0)
        end(p);
}

/* --- output ------------------------------------------------------------------------------------------ */

static void watch_out(struct proc *p)
{
    for (int i = 0; i < 2; i++) {
        if (p->out[i].fd >= 0)
            (void)io_want(&p->out[i].io, p->paused ? 0 : UV_READABLE);
    }
}

/* Reads what there is, within the turn's share. True when the proc is gone. */
static bool read_out(struct pipe_end *e)
{
    struct proc *p = e->p;
    char buf[PROC_PIECE];
    for (int i = 0; i < READS_PER_TURN && e->fd >= 0 && !p->paused; i++) {
        size_t want = sizeof(buf);
        if (p->linger_over) {
            if (e->left <= 0) {
                close_out(e);
                break;
            }
            if ((int64_t)want > e->left)
                want = (size_t)e->left;
        }
        ssize_t n = read(e->fd, buf, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (p->linger_over)
                close_out(e);
            break;
        }
        if (n <= 0) {
            close_out(e);
            break;
        }
        e->left -= n;
        if ((size_t)n == sizeof(buf) && !e->wide) {
            e->wide = true;
            (void)fcntl(e->fd, F_SETPIPE_SZ, PIPE_WIDE); /* a user's quota may forbid it */
        }
        if (!p->discard && p->ops) {
            enter(p);
            p->ops->output(p->owner, e == &p->out[0] ? PROC_STDOUT : PROC_STDERR, buf, (size_t)n);
            if (leave(p))
                return true;
        }
        if ((size_t)n < want)
            break; /* a pipe gives all it has: the next read would only say EAGAIN */
    }
    return false;
}

static void out_ready(void *data, int events)
{
    struct pipe_end *e = data;
    struct proc *p = e->p;
    if (!p->started) { /* the program runs, but nobody was told yet */
        e->early = true;
        if (!p->first_early)
            p->first_early = e;
        (void)io_want(&e->io, 0);
        return;
    }
    if (!read_out(e))
        check_end(p);
}

/* The leader has ended and someone else holds a pipe: take what is in it now, no more. */
static void drain(struct proc *p)
{
    for (int i = 0; i < 2; i++) {
        while (p->out[i].fd >= 0 && !p->paused) {
            if (read_out(&p->out[i]))
                return;
        }
    }
    check_end(p);
}

static void linger_fired(void *data)
{
    struct proc *p = data;
    p->linger_over = true;
    for (int i = 0; i < 2; i++) {
        int waiting = 0;
        if (p->out[i].fd >= 0 && ioctl(p->out[i].fd, FIONREAD, &waiting) == 0)
            p->out[i].left = waiting;
    }
    drain(p);
}

void proc_pause(struct proc *p)
{
    if (p->paused)
        return;
    p->paused = true;
    if (p->started)
        watch_out(p);
}

void proc_resume(struct proc *p)
{
    if (!p->paused)
        return;
    p->paused = false;
    if (!p->started)
        return;
    if (p->linger_over)
        drain(p);
    else
        watch_out(p);
}

/* --- life ----------------------------------------------------------------------------------------------- */

static void give_up_fired(void *data)
{
    struct proc *p = data;
    p->leader_ended = true;
    p->exit_code = -SIGKILL;
    linger_fired(p);
}

static void terminate(struct proc *p, uint32_t grace_ms)
{
    p->discard = true;
    p->paused = false;
    timer_stop(&p->deadline);
    if (!p->child) {
        p->kill_at_start = true;
        p->grace_ms = grace_ms;
        return;
    }
    watch_out(p); /* read on, so that a writer that handles TERM is not stuck */
    if (p->leader_ended)
        return;
    p->killed = true;
    child_terminate(p->child, grace_ms);
    timer_start(&p->give_up, grace_ms + GIVE_UP_MS);
}

/* For GET /metrics: the first reason is the one. */
static void count_kill(struct proc *p, int64_t *counter)
{
    if (!p->leader_ended && !p->kill_counted)
        (*counter)++;
    p->kill_counted = true;
}

void proc_kill(struct proc *p, uint32_t grace_ms)
{
    count_kill(p, &loop_metrics(p->loop)->killed_other);
    terminate(p, grace_ms);
    if (p->leader_ended && p->linger_over)
        drain(p); /* it was only held up by a pause */
}

void proc_cancel(struct proc *p, uint32_t grace_ms)
{
    p->ops = NULL;
    p->owner = NULL;
    drop_writes(p, EPIPE);
    count_kill(p, &loop_metrics(p->loop)->killed_other);
    terminate(p, grace_ms);
    if (p->leader_ended)
        end(p);
}

static void deadline_fired(void *data)
{
    struct proc *p = data;
    if (p->leader_ended)
        return; /* it made it; only its pipes are not empty yet */
    count_kill(p, &loop_metrics(p->loop)->killed_timeout);
    terminate(p, PROC_GRACE_MS);
    if (p->ops && p->ops->timed_out) {
        enter(p);
        p->ops->timed_out(p->owner);
        (void)leave(p);
    }
}

static void on_exited(void *owner, struct child *child, int status)
{
    struct proc *p = owner;
    p->leader_ended = true;
    p->exit_code = child_status_code(status);
    timer_stop(&p->deadline);
    timer_stop(&p->give_up);
    close_in(p);
    drop_writes(p, EPIPE);
    if (p->ops && p->ops->exited) {
        enter(p);
        p->ops->exited(p->owner, p->killed ? -SIGKILL : p->exit_code);
        if (leave(p))
            return;
    }
    if (p->out[0].fd < 0 && p->out[1].fd < 0)
        end(p);
    else
        timer_start(&p->linger, p->killed ? 0 : PROC_LINGER_MS);
}

static void close_child_fds(struct proc *p)
{
    for (int i = 0; i < 3; i++) {
        if (p->child_fds[i] >= 0)
            close(p->child_fds[i]);
        p->child_fds[i] = -1;
    }
}

static void on_started(void *owner, struct child *child, int sys)
{
    struct proc *p = owner;
    const struct proc_ops *ops = p->ops;
    void *o = p->owner;
    close_child_fds(p);
    if (sys != 0) {
        release(p);
        if (ops)
            ops->started(o, NULL, sys);
        return;
    }
    p->child = child;
    p->started = true;
    if (p->timeout_ms)
        timer_start(&p->deadline, p->timeout_ms);
    enter(p);
    if (ops && ops->started)
        ops->started(o, p, 0);
    if (p->kill_at_start)
        terminate(p, p->grace_ms);
    if (leave(p))
        return;
    flush_input(p);
    /* What was readable first is read first. */
    struct pipe_end *first = p->first_early;
    if (first && !p->paused) {
        struct pipe_end *second = first == &p->out[0] ? &p->out[1] : &p->out[0];
        if (read_out(first) || (second->early && read_out(second)))
            return;
    }
    if (first || p->paused)
        watch_out(p);
}

static const struct child_ops child_ops = {.started = on_started, .exited = on_exited};

/* --- input ------------------------------------------------------------------------------------------------- */

static void stall_fired(void *data)
{
    struct proc *p = data;
    if (!list_empty(&p->writes))
        finish_write(p, EAGAIN);
    flush_input(p);
}

/* Writes what the pipe takes, then waits for room, or closes it when that is due. */
static void flush_input(struct proc *p)
{
    if (p->in_fd < 0 || !p->started)
        return;
    while (!list_empty(&p->writes)) {
        struct write_job *w = list_entry(p->writes.next, struct write_job, link);
        if (w->written == w->len) {
            timer_stop(&p->stall);
            finish_write(p, 0);
            continue;
        }
        ssize_t n = write(p->in_fd, w->data + w->written, w->len - w->written);
        if (n > 0) {
            w->written += (size_t)n;
            timer_stop(&p->stall);
        } else if (n < 0 && errno == EAGAIN) {
            if (!timer_running(&p->stall) && w->stall_ms)
                timer_start(&p->stall, w->stall_ms);
            (void)io_want(&p->in, UV_WRITABLE);
            return;
        } else if (n < 0 && errno != EINTR) {
            close_in(p);
            drop_writes(p, EPIPE);
            return;
        }
    }
    timer_stop(&p->stall);
    (void)io_want(&p->in, 0);
    if (p->in_eof)
        close_in(p);
}

static void in_ready(void *data, int events)
{
    flush_input(data);
}

int proc_write(struct proc *p, char *data, size_t len, uint32_t stall_ms,
               void (*done)(void *data, size_t written, int sys), void *done_data)
{
    if (!proc_stdin_open(p))
        return -1;
    struct write_job *w = malloc(sizeof(*w));
    if (!w)
        return -1;
    *w = (struct write_job){
        .data = data, .len = len, .stall_ms = stall_ms, .done = done, .done_data = done_data};
    bool idle = list_empty(&p->writes);
    list_append(&p->writes, &w->link);
    if (idle)
        flush_input(p);
    return 0;
}

void proc_close_stdin(struct proc *p)
{
    p->in_eof = true;
    if (list_empty(&p->writes))
        flush_input(p);
}

bool proc_stdin_open(const struct proc *p)
{
    return p->in_fd >= 0 && !p->in_eof;
}

/* --- starting ------------------------------------------------------------------------------------------------- */

pid_t proc_pid(const struct proc *p)
{
    return p->child ? child_pid(p->child) : 0;
}

struct child *proc_child(const struct proc *p)
{
    return p->child;
}

/* Our end is non-blocking, the program's is not. */
static int open_out(struct proc *p, int which)
{
    struct pipe_end *e = &p->out[which];
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    p->child_fds[which + 1] = fds[1];
    if (io_init(&e->io, p->loop, fds[0], out_ready, e) < 0) {
        close(fds[0]);
        return -1;
    }
    e->fd = fds[0];
    return io_want(&e->io, UV_READABLE);
}

static int open_in(struct proc *p)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    p->child_fds[0] = fds[0];
    if (io_init(&p->in, p->loop, fds[1], in_ready, p) < 0) {
        close(fds[1]);
        return -1;
    }
    p->in_fd = fds[1];
    return 0;
}

static int open_pipes(struct proc *p, const struct proc_opts *o)
{
    if (o->stdin_mode != PROC_STDIN_NULL && open_in(p) < 0)
        return -1;
    if (o->no_output)
        return 0;
    if (open_out(p, 0) < 0)
        return -1;
    return o->merge ? 0 : open_out(p, 1);
}

static int queue_input(struct proc *p, const struct proc_opts *o)
{
    p->in_eof = false;
    if (o->input_len > 0) {
        char *copy = malloc(o->input_len);
        if (!copy)
            return -1;
        memcpy(copy, o->input, o->input_len);
        if (proc_write(p, copy, o->input_len, 0, NULL, NULL) < 0) {
            free(copy);
            return -1;
        }
    }
    p->in_eof = o->stdin_mode == PROC_STDIN_INPUT;
    return 0;
}

int proc_start(struct spawner *s, struct loop *loop, const struct proc_opts *o, const struct proc_ops *ops,
               void *owner, struct proc **ret, struct abx_error *err)
{
    struct proc *p = calloc(1, sizeof(*p));
    if (!p)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    *p = (struct proc){.loop = loop,
                       .ops = ops,
                       .owner = owner,
                       .in_fd = -1,
                       .child_fds = {-1, -1, -1},
                       .timeout_ms = o->timeout_ms};
    for (int i = 0; i < 2; i++)
        p->out[i] = (struct pipe_end){.p = p, .fd = -1};
    list_init(&p->writes);
    timer_init(&p->stall, loop, stall_fired, p);
    timer_init(&p->deadline, loop, deadline_fired, p);
    timer_init(&p->linger, loop, linger_fired, p);
    timer_init(&p->give_up, loop, give_up_fired, p);

    if (open_pipes(p, o) < 0) {
        int sys = errno;
        release(p);
        return abx_fail(err, E_OVERLOADED, sys, "No descriptors left for another process");
    }
    struct spawn_opts spawn = o->spawn;
    for (int i = 0; i < 3; i++)
        spawn.fds[i] = p->child_fds[i];
    if (o->merge && !o->no_output)
        spawn.fds[2] = p->child_fds[1];
    if (p->in_fd >= 0 && queue_input(p, o) < 0) {
        release(p);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    if (spawn_start(s, &spawn, &child_ops, p, err) < 0) {
        release(p);
        return -1;
    }
    *ret = p;
    return 0;
}
