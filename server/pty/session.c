#include "pty/session.h"

/* A session's memory is held by: the shell (until it is reaped), the open master, the table, the viewers.
 * session_settle frees it when the last of them is gone.
 *
 * The end. When the leader of a terminal's session dies the kernel hangs the terminal up, so reading the
 * master gives the last output and then EIO, also with background jobs left. Only if that does not come
 * within DRAIN_MS after the shell's end (it had given its terminal away) the session ends without it.
 * EIO with a living shell (it closed all three descriptors) is looked at again every RETRY_MS. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/crypto.h"
#include "base/metrics.h"
#include "base/own.h"
#include "pty/frame.h"
#include "pty/ring.h"

#define READ_BYTES ((size_t)64 * KIB) /* a session's share of one loop turn */
#define DRAIN_MS 300
#define RETRY_MS 200
#define GRACE_MS 300
#define SHORT_READ ((size_t)2 * KIB)
#define PTY_INPUT_MAX ((size_t)4 * MIB) /* a viewer that does not hold back when told loses what it sends */

struct pty_table {
    struct loop *loop;
    struct spawner *spawner;
    uint64_t idle_ms;
    struct list sessions; /* struct pty_session.link, creation order */
    struct list all;      /* struct pty_session.all_link: unlisted ones too */
    size_t alive;
    char scratch[READ_BYTES];
};

struct pty_session {
    struct list link, all_link;
    struct pty_table *table;
    char id[PTY_ID_LEN + 1];
    int master; /* -1: closed */
    int cols, rows;
    struct io io;
    int wants; /* of io */
    struct child *child;
    pid_t pid;
    double created_at;
    int exit_code;
    bool listed, starting, exited, ended, eof, paused, input_full;
    struct ring ring;
    struct buf input; /* not yet taken by the terminal */
    struct list viewers;
    size_t n_viewers;
    unsigned busy; /* inside a loop over the viewers: not to be freed */
    struct timer timer;       /* idle; after the shell's end: drain, then dead */
    struct timer stall_timer; /* paused: somebody must take something; or EIO: look again */
    void (*created)(void *data, struct pty_session *s, int sys);
    void *created_data;
    void (*deleted)(void *data);
    void *deleted_data;
};

struct pty_viewer {
    struct list link;
    struct pty_session *session;
    const struct pty_viewer_ops *ops;
    void *owner;
    uint64_t at;
    bool cut, lost;
};

static void on_master(void *data, int events);
static void on_timer(void *data);
static void on_stall(void *data);

/* --- life ------------------------------------------------------------------------------------------ */

struct pty_table *pty_table_new(struct loop *loop, struct spawner *spawner, uint64_t idle_ms)
{
    struct pty_table *t = malloc(sizeof(*t)); /* not calloc: scratch is touched when it is used */
    if (!t)
        return NULL;
    t->loop = loop;
    t->spawner = spawner;
    t->idle_ms = idle_ms;
    t->alive = 0;
    list_init(&t->sessions);
    list_init(&t->all);
    return t;
}

static void close_master(struct pty_session *s)
{
    if (s->master < 0)
        return;
    io_done(&s->io);
    close(s->master);
    s->master = -1;
    buf_done(&s->input);
}

static void session_free(struct pty_session *s)
{
    close_master(s);
    timer_done(&s->timer);
    timer_done(&s->stall_timer);
    list_remove(&s->link);
    list_remove(&s->all_link);
    ring_done(&s->ring);
    buf_done(&s->input);
    free(s);
}

void pty_table_free(struct pty_table *t)
{
    if (!t)
        return;
    list_for_each_safe(it, &t->all) {
        struct pty_session *s = list_entry(it, struct pty_session, all_link);
        if (s->child)
            child_free(s->child, true);
        session_free(s);
    }
    free(t);
}

/* Frees the session when nobody holds it. */
static void session_settle(struct pty_session *s)
{
    if (s->busy == 0 && !s->listed && !s->starting && !s->child && s->n_viewers == 0 && (s->ended || s->master < 0))
        session_free(s);
}

static void unlist(struct pty_session *s)
{
    list_remove(&s->link);
    s->listed = false;
}

void pty_table_prune(struct pty_table *t)
{
    list_for_each_safe(it, &t->sessions) {
        struct pty_session *s = list_entry(it, struct pty_session, link);
        if (!s->exited)
            continue;
        unlist(s);
        session_settle(s);
    }
}

static void restart_idle(struct pty_session *s)
{
    if (s->exited)
        return;
    if (s->n_viewers == 0 && s->table->idle_ms > 0)
        timer_start(&s->timer, s->table->idle_ms);
    else
        timer_stop(&s->timer);
}

/* --- output ------------------------------------------------------------------------------------------ */

static void want(struct pty_session *s)
{
    if (s->master < 0)
        return;
    int events = (s->paused || s->eof ? 0 : UV_READABLE) | (s->input.len > 0 ? UV_WRITABLE : 0);
    if (events != s->wants) {
        s->wants = events;
        (void)io_want(&s->io, events); /* fails only for a closed descriptor */
    }
}

static uint64_t least_lag(const struct pty_session *s)
{
    uint64_t least = UINT64_MAX;
    list_for_each(it, &s->viewers) {
        const struct pty_viewer *v = list_entry(it, struct pty_viewer, link);
        if (!v->lost && s->ring.end - v->at < least)
            least = s->ring.end - v->at;
    }
    return least == UINT64_MAX ? 0 : least;
}

/* After the shell's end there is little left, and room for it was kept: no pause any more. */
static void update_pause(struct pty_session *s)
{
    bool pause = !s->exited && least_lag(s) >= PTY_LAG_PAUSE;
    if (pause == s->paused)
        return;
    s->paused = pause;
    if (pause)
        timer_start(&s->stall_timer, PTY_STALL_MS);
    else
        timer_stop(&s->stall_timer);
    want(s);
}

static void viewer_lost(struct pty_viewer *v)
{
    if (v->lost)
        return;
    v->lost = true;
    v->ops->lost(v->owner);
}

/* A callback may close its own viewer, not another's. */
static void tell_viewers(struct pty_session *s)
{
    uint64_t start = ring_start(&s->ring);
    s->busy++;
    list_for_each_safe(it, &s->viewers) {
        struct pty_viewer *v = list_entry(it, struct pty_viewer, link);
        if (v->lost)
            continue;
        if (v->at < start)
            viewer_lost(v);
        else
            v->ops->ready(v->owner);
    }
    s->busy--;
    update_pause(s);
}

static void finish(struct pty_session *s)
{
    if (s->ended)
        return;
    s->ended = true;
    close_master(s);
    timer_stop(&s->stall_timer);
    timer_start(&s->timer, PTY_DEAD_MS);
    tell_viewers(s);
    session_settle(s);
}

/* Reads one turn's share. */
static void drain(struct pty_session *s)
{
    size_t total = 0;
    char *scratch = s->table->scratch;
    while (total < READ_BYTES && !s->eof) {
        ssize_t n = read(s->master, scratch + total, READ_BYTES - total);
        if (n > 0) {
            total += (size_t)n;
            if ((size_t)n < SHORT_READ)
                break; /* a short read: most likely that was all, and the loop comes back anyway */
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            s->eof = n == 0 || errno != EAGAIN; /* EIO: hung up */
            break;
        }
    }
    if (total > 0) {
        ring_append(&s->ring, scratch, total);
        tell_viewers(s);
    }
}

static void flush_input(struct pty_session *s)
{
    while (s->input.len > 0) {
        ssize_t n = write(s->master, s->input.data, s->input.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        buf_consume(&s->input, n < 0 ? s->input.len : (size_t)n); /* EIO: nobody will ever read it */
    }
    if (s->input.len == 0)
        buf_done(&s->input);
    if (s->input_full && s->input.len < PTY_INPUT_BYTES / 2) {
        s->input_full = false;
        list_for_each_safe(it, &s->viewers) {
            struct pty_viewer *v = list_entry(it, struct pty_viewer, link);
            v->ops->input_full(v->owner, false);
        }
    }
}

static void on_master(void *data, int events)
{
    struct pty_session *s = data;
    if (events < 0) {
        s->eof = true;
    } else {
        if (events & UV_WRITABLE)
            flush_input(s);
        if (events & UV_READABLE)
            drain(s);
    }
    if (s->eof && s->exited) {
        finish(s);
        return;
    }
    if (s->eof)
        timer_start(&s->stall_timer, RETRY_MS);
    want(s);
}

/* Paused: nobody took anything for too long. At the end of the terminal: does it have one again? */
static void on_stall(void *data)
{
    struct pty_session *s = data;
    if (s->eof) {
        s->eof = false;
        on_master(s, UV_READABLE);
        return;
    }
    list_for_each_safe(it, &s->viewers) {
        struct pty_viewer *v = list_entry(it, struct pty_viewer, link);
        if (s->ring.end - v->at >= PTY_LAG_PAUSE)
            viewer_lost(v);
    }
    update_pause(s);
}

static void on_timer(void *data)
{
    struct pty_session *s = data;
    if (s->ended) {
        if (s->listed)
            unlist(s);
        session_settle(s);
    } else if (s->exited) {
        drain(s);
        finish(s);
    } else {
        pty_delete(s, NULL, NULL); /* idle */
    }
}

/* --- the shell ------------------------------------------------------------------------------------------ */

static void on_exited(void *data, struct child *child, int status)
{
    struct pty_session *s = data;
    s->exited = true;
    s->exit_code = child_exit_code(child);
    s->child = NULL;
    child_free(child, false);
    s->table->alive--;
    loop_metrics(s->table->loop)->pty_sessions--;
    s->paused = false;
    timer_stop(&s->stall_timer);
    timer_start(&s->timer, DRAIN_MS);
    if (s->deleted) {
        void (*done)(void *) = s->deleted;
        s->deleted = NULL;
        done(s->deleted_data);
    }
    if (s->eof)
        finish(s);
    else
        want(s);
}

static void on_started(void *data, struct child *child, int sys)
{
    struct pty_session *s = data;
    struct pty_table *t = s->table;
    void (*created)(void *, struct pty_session *, int) = s->created;
    void *created_data = s->created_data;
    s->starting = false;
    if (sys != 0) {
        t->alive--;
        session_free(s);
        created(created_data, NULL, sys);
        return;
    }
    s->child = child;
    s->pid = child_pid(child);
    s->listed = true;
    list_append(&t->sessions, &s->link);
    loop_metrics(t->loop)->pty_sessions++;
    loop_metrics(t->loop)->pty_created++;
    restart_idle(s);
    want(s);
    created(created_data, s, 0);
}

static const struct child_ops shell_ops = {.started = on_started, .exited = on_exited};

/* Opens a terminal of this size. path: at least 32 bytes. */
static int open_terminal(int cols, int rows, char *path, size_t path_size)
{
    autoclose int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    int number, unlock = 0;
    struct winsize size = {.ws_col = (unsigned short)cols, .ws_row = (unsigned short)rows};
    if (fd < 0 || ioctl(fd, TIOCSPTLCK, &unlock) < 0 || ioctl(fd, TIOCGPTN, &number) < 0 ||
        ioctl(fd, TIOCSWINSZ, &size) < 0)
        return -1;
    struct termios mode;
    if (tcgetattr(fd, &mode) == 0) {
        mode.c_iflag |= IUTF8; /* so that erasing takes a whole character */
        (void)tcsetattr(fd, TCSANOW, &mode); /* without it the terminal works too */
    }
    snprintf(path, path_size, "/dev/pts/%d", number);
    return take_fd(&fd);
}

int pty_table_create(struct pty_table *t, const struct pty_create *c,
                     void (*done)(void *data, struct pty_session *s, int sys), void *data,
                     struct abx_error *err)
{
    char path[32];
    autoclose int master = open_terminal(c->cols, c->rows, path, sizeof(path));
    if (master < 0)
        return abx_fail(err, E_OS, errno, "Could not open a terminal: %s", strerror(errno));
    struct pty_session *s = calloc(1, sizeof(*s));
    if (!s)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    s->table = t;
    s->master = -1;
    s->cols = c->cols;
    s->rows = c->rows;
    s->starting = true;
    s->created_at = wall_seconds();
    s->created = done;
    s->created_data = data;
    crypto_random_hex(s->id, PTY_ID_LEN);
    list_init(&s->link);
    list_init(&s->viewers);
    list_append(&t->all, &s->all_link);
    ring_init(&s->ring, PTY_RING_BYTES);
    timer_init(&s->timer, t->loop, on_timer, s);
    timer_init(&s->stall_timer, t->loop, on_stall, s);
    if (io_init(&s->io, t->loop, master, on_master, s) < 0) {
        session_free(s);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    s->master = take_fd(&master);

    char *argv[] = {(char *)(uintptr_t)c->shell, NULL};
    struct spawn_opts o = {.file = c->shell, .argv = argv, .envp = c->envp, .cwd_fd = c->cwd_fd,
                           .fds = {-1, -1, -1}, .tty = path, .uid = -1, .gid = -1};
    if (spawn_start(t->spawner, &o, &shell_ops, s, err) < 0) {
        session_free(s);
        return -1;
    }
    t->alive++;
    return 0;
}

void pty_delete(struct pty_session *s, void (*done)(void *data), void *data)
{
    if (s->listed)
        unlist(s);
    if (!s->child) {
        if (done)
            done(data);
        session_settle(s);
        return;
    }
    s->deleted = done;
    s->deleted_data = data;
    timer_stop(&s->timer);
    child_terminate(s->child, GRACE_MS);
}

/* --- the table ------------------------------------------------------------------------------------------ */

size_t pty_table_alive(const struct pty_table *t)
{
    return t->alive;
}

void pty_table_each(struct pty_table *t, void (*fn)(void *data, struct pty_session *s), void *data)
{
    list_for_each_safe(it, &t->sessions)
        fn(data, list_entry(it, struct pty_session, link));
}

struct pty_session *pty_table_find(struct pty_table *t, const char *id)
{
    list_for_each(it, &t->sessions) {
        struct pty_session *s = list_entry(it, struct pty_session, link);
        if (strcmp(s->id, id) == 0)
            return s;
    }
    return NULL;
}

const char *pty_id(const struct pty_session *s)
{
    return s->id;
}

pid_t pty_pid(const struct pty_session *s)
{
    return s->pid;
}

double pty_created_at(const struct pty_session *s)
{
    return s->created_at;
}

int pty_cols(const struct pty_session *s)
{
    return s->cols;
}

int pty_rows(const struct pty_session *s)
{
    return s->rows;
}

bool pty_alive(const struct pty_session *s)
{
    return !s->exited;
}

size_t pty_viewers(const struct pty_session *s)
{
    return s->n_viewers;
}

void pty_resize(struct pty_session *s, int cols, int rows)
{
    if (cols >= 0)
        s->cols = cols;
    if (rows >= 0)
        s->rows = rows;
    struct winsize size = {.ws_col = (unsigned short)s->cols, .ws_row = (unsigned short)s->rows};
    if (s->master >= 0)
        (void)ioctl(s->master, TIOCSWINSZ, &size); /* the kernel compares and sends SIGWINCH */
}

void pty_signal(struct pty_session *s, int sig)
{
    if (!s->child || s->master < 0)
        return;
    /* TIOCSIG finds the group and signals it in one step, but knows only these two. */
    if ((sig == SIGINT || sig == SIGQUIT) && ioctl(s->master, TIOCSIG, sig) == 0)
        return;
    pid_t group = tcgetpgrp(s->master);
    if (group > 1 && kill(-group, sig) == 0)
        return;
    child_kill_group(s->child, sig);
}

/* --- viewers ------------------------------------------------------------------------------------------ */

struct pty_viewer *pty_viewer_open(struct pty_session *s, uint64_t from, const struct pty_viewer_ops *ops,
                                   void *owner, struct abx_error *err)
{
    struct pty_viewer *v = calloc(1, sizeof(*v));
    if (!v) {
        abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
        return NULL;
    }
    v->session = s;
    v->ops = ops;
    v->owner = owner;
    uint64_t start = ring_start(&s->ring);
    if (from == PTY_FROM_START && start == 0)
        v->at = 0;
    else if (from == PTY_FROM_START || from < start) {
        /* The oldest byte may be in the middle of a character. */
        char first[4];
        v->at = start + frame_skip_cut(first, ring_copy(&s->ring, start, first, 3));
        v->cut = true;
    } else {
        v->at = from > s->ring.end ? s->ring.end : from;
    }
    list_append(&s->viewers, &v->link);
    s->n_viewers++;
    loop_metrics(s->table->loop)->pty_clients++;
    restart_idle(s);
    update_pause(s);
    return v;
}

void pty_viewer_close(struct pty_viewer *v)
{
    if (!v)
        return;
    struct pty_session *s = v->session;
    list_remove(&v->link);
    s->n_viewers--;
    loop_metrics(s->table->loop)->pty_clients--;
    free(v);
    restart_idle(s);
    update_pause(s);
    session_settle(s);
}

struct pty_session *pty_viewer_session(const struct pty_viewer *v)
{
    return v->session;
}

uint64_t pty_viewer_at(const struct pty_viewer *v)
{
    return v->at;
}

bool pty_viewer_cut(const struct pty_viewer *v)
{
    return v->cut;
}

size_t pty_take(const struct pty_viewer *v, char *dst, size_t max, bool *ret_last)
{
    const struct pty_session *s = v->session;
    *ret_last = false;
    if (v->lost || v->at < ring_start(&s->ring))
        return 0;
    size_t len = ring_copy(&s->ring, v->at, dst, max);
    *ret_last = s->ended && v->at + len == s->ring.end;
    return len;
}

void pty_advance(struct pty_viewer *v, size_t len)
{
    v->at += len;
    if (len > 0 && v->session->paused) {
        timer_start(&v->session->stall_timer, PTY_STALL_MS);
        update_pause(v->session);
    }
}

bool pty_ended(const struct pty_viewer *v, int *ret_exit_code)
{
    if (!v->session->ended || v->at != v->session->ring.end)
        return false;
    *ret_exit_code = v->session->exit_code;
    return true;
}

void pty_input(struct pty_viewer *v, const char *data, size_t len)
{
    struct pty_session *s = v->session;
    if (s->master < 0 || s->exited || s->input.len > PTY_INPUT_MAX)
        return;
    buf_add(&s->input, data, len);
    if (s->input.failed) {
        buf_done(&s->input); /* out of memory: typed text is lost, the session is not */
        return;
    }
    flush_input(s);
    if (s->input.len > PTY_INPUT_BYTES) { /* again for each message: a viewer may be new */
        s->input_full = true;
        list_for_each_safe(it, &s->viewers) {
            struct pty_viewer *other = list_entry(it, struct pty_viewer, link);
            other->ops->input_full(other->owner, true);
        }
    }
    want(s);
}
