#include "pty/session.h"

#include "../check_main.h"
#include "../turn.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/own.h"

static char *const env[] = {(char *)"PATH=/usr/bin:/bin", (char *)"PS1=$ ", (char *)"TERM=xterm", NULL};

struct world {
    struct loop *loop;
    struct spawner *s;
    struct pty_table *table;
    struct pty_session *session;
    int sys, answered, deleted, stopped;
};

/* One that reads all it is told of, up to `most` bytes at a time (0: nothing). */
struct eye {
    struct pty_viewer *v;
    struct buf seen;
    bool blind, lost, full, ended;
    int exit_code;
};

static void eye_look(struct eye *e)
{
    char chunk[8192];
    bool last;
    size_t n;
    while (!e->blind && (n = pty_take(e->v, chunk, sizeof(chunk), &last)) > 0) {
        buf_add(&e->seen, chunk, n);
        pty_advance(e->v, n);
    }
    if (pty_ended(e->v, &e->exit_code))
        e->ended = true;
}

static void eye_ready(void *owner)
{
    eye_look(owner);
}

static void eye_full(void *owner, bool full)
{
    ((struct eye *)owner)->full = full;
}

static void eye_lost(void *owner)
{
    ((struct eye *)owner)->lost = true;
}

static const struct pty_viewer_ops eye_ops = {eye_ready, eye_full, eye_lost};

static void turn(struct world *w)
{
    turn_loop(w->loop);
}

#define turn_until(w, cond)                                                                        \
    do {                                                                                           \
        uint64_t end_ = mono_ms() + 10000;                                                         \
        while (!(cond)) {                                                                          \
            ck_assert_msg(mono_ms() < end_, "never: %s", #cond);                                   \
            turn(w);                                                                               \
        }                                                                                          \
    } while (0)

static void on_created(void *data, struct pty_session *s, int sys)
{
    struct world *w = data;
    w->session = s;
    w->sys = sys;
    w->answered++;
}

static void on_deleted(void *data)
{
    ((struct world *)data)->deleted++;
}

static void on_stopped(void *data)
{
    ((struct world *)data)->stopped = 1;
}

static void world_init(struct world *w, uint64_t idle_ms)
{
    *w = (struct world){.loop = loop_new()};
    w->s = spawner_new(w->loop);
    w->table = pty_table_new(w->loop, w->s, idle_ms);
}

static void world_done(struct world *w)
{
    pty_table_free(w->table);
    spawner_stop(w->s, 0, on_stopped, w);
    turn_until(w, w->stopped);
    spawner_free(w->s);
    loop_free(w->loop);
}

static struct pty_session *create(struct world *w, const char *shell)
{
    struct pty_create c = {.shell = shell, .envp = env, .cwd_fd = -1, .cols = 132, .rows = 43};
    struct abx_error err;
    w->answered = 0;
    ck_assert_int_eq(pty_table_create(w->table, &c, on_created, w, &err), 0);
    turn_until(w, w->answered);
    return w->session;
}

static void look(struct eye *e, struct pty_session *s, uint64_t from)
{
    struct abx_error err;
    *e = (struct eye){0};
    e->v = pty_viewer_open(s, from, &eye_ops, e, &err);
    ck_assert_ptr_nonnull(e->v);
    eye_look(e);
}

static void close_eye(struct eye *e)
{
    pty_viewer_close(e->v);
    buf_done(&e->seen);
}

static bool saw(struct eye *e, const char *text)
{
    return e->seen.len > 0 && strstr(buf_str(&e->seen), text) != NULL;
}

static void type(struct eye *e, const char *text)
{
    pty_input(e->v, text, strlen(text));
}

START_TEST(a_missing_shell_is_told)
{
    struct world w;
    world_init(&w, 0);
    ck_assert_ptr_null(create(&w, "/nonexistent/shell"));
    ck_assert_int_eq(w.sys, ENOENT);
    ck_assert_uint_eq(pty_table_alive(w.table), 0);
    world_done(&w);
}
END_TEST

START_TEST(size_is_set_before_the_shell_runs)
{
    struct world w;
    struct eye e;
    world_init(&w, 0);
    look(&e, create(&w, "/bin/sh"), PTY_FROM_START);
    type(&e, "stty size\n");
    turn_until(&w, saw(&e, "43 132"));
    pty_resize(w.session, 77, -1);
    type(&e, "stty size\n");
    turn_until(&w, saw(&e, "43 77"));
    close_eye(&e);
    world_done(&w);
}
END_TEST

START_TEST(last_output_comes_before_the_end)
{
    struct world w;
    world_init(&w, 0);
    for (int i = 0; i < 20; i++) {
        struct eye e;
        look(&e, create(&w, "/bin/sh"), PTY_FROM_START);
        type(&e, "stty -echo; PS1=; head -c 20000 /dev/zero | tr '\\0' z; exit 3\n");
        turn_until(&w, e.ended);
        size_t z = 0;
        for (size_t k = 0; k < e.seen.len; k++)
            z += e.seen.data[k] == 'z';
        ck_assert_uint_ge(z, 20000);
        ck_assert_int_eq(e.exit_code, 3);
        close_eye(&e);
        pty_table_prune(w.table);
    }
    world_done(&w);
}
END_TEST

START_TEST(output_is_kept_while_nobody_looks_and_resumed_by_position)
{
    struct world w;
    struct eye e, again;
    world_init(&w, 0);
    look(&e, create(&w, "/bin/sh"), PTY_FROM_START);
    type(&e, "stty -echo; PS1=; echo on''e; sleep 0.2; seq 1 30000; echo E''ND\n");
    turn_until(&w, saw(&e, "one"));
    uint64_t at = pty_viewer_at(e.v);
    close_eye(&e);
    uint64_t stop = mono_ms() + 1500;
    while (mono_ms() < stop)
        turn(&w);
    look(&e, w.session, at);
    turn_until(&w, saw(&e, "END"));
    ck_assert(saw(&e, "1\r\n2\r\n3\r\n"));
    ck_assert(!saw(&e, "one"));
    ck_assert(saw(&e, "\r\n29999\r\n30000\r\nEND"));
    look(&again, w.session, PTY_FROM_START);
    ck_assert(saw(&again, "one"));
    close_eye(&again);
    look(&again, w.session, PTY_FROM_END);
    ck_assert_uint_eq(again.seen.len, 0);
    close_eye(&again);
    close_eye(&e);
    world_done(&w);
}
END_TEST

START_TEST(one_slow_viewer_slows_the_program_and_is_kept)
{
    struct world w;
    struct eye e;
    world_init(&w, 0);
    look(&e, create(&w, "/bin/sh"), PTY_FROM_START);
    type(&e, "stty -echo; PS1=; echo on''e\n");
    turn_until(&w, saw(&e, "one"));
    e.blind = true;
    type(&e, "head -c 600000 /dev/zero | tr '\\0' z; echo E''ND\n");
    uint64_t stop = mono_ms() + 500;
    while (mono_ms() < stop)
        turn(&w);
    ck_assert(!e.lost);
    e.blind = false;
    eye_look(&e);
    turn_until(&w, saw(&e, "END"));
    size_t z = 0;
    for (size_t k = 0; k < e.seen.len; k++)
        z += e.seen.data[k] == 'z';
    ck_assert_uint_eq(z, 600000);
    close_eye(&e);
    world_done(&w);
}
END_TEST

START_TEST(a_slow_viewer_among_several_is_dropped)
{
    struct world w;
    struct eye quick, slow;
    world_init(&w, 0);
    look(&quick, create(&w, "/bin/sh"), PTY_FROM_START);
    look(&slow, w.session, PTY_FROM_START);
    slow.blind = true;
    type(&quick, "head -c 600000 /dev/zero | tr '\\0' z; echo E''ND\n");
    turn_until(&w, saw(&quick, "END"));
    ck_assert(slow.lost);
    ck_assert(!quick.lost);
    close_eye(&slow);
    close_eye(&quick);
    world_done(&w);
}
END_TEST

START_TEST(input_nobody_reads_is_bounded)
{
    struct world w;
    struct eye e;
    char block[4096];
    memset(block, 'x', sizeof(block));
    world_init(&w, 0);
    look(&e, create(&w, "/bin/sh"), PTY_FROM_START);
    type(&e, "stty -icanon -echo; echo ra''w; sleep 30\n");
    turn_until(&w, saw(&e, "raw"));
    for (int i = 0; i < 100 && !e.full; i++)
        pty_input(e.v, block, sizeof(block));
    ck_assert(e.full);
    pty_delete(w.session, on_deleted, &w);
    turn_until(&w, w.deleted && e.ended);
    close_eye(&e);
    world_done(&w);
}
END_TEST

START_TEST(a_signal_reaches_the_job_in_the_foreground)
{
    struct world w;
    struct eye e;
    world_init(&w, 0);
    look(&e, create(&w, "/bin/bash"), PTY_FROM_START);
    type(&e, "echo u''p; sleep 60; echo \"af\"ter\n");
    turn_until(&w, saw(&e, "up\r\n"));
    uint64_t stop = mono_ms() + 200;
    while (mono_ms() < stop)
        turn(&w);
    pty_signal(w.session, SIGTERM);
    turn_until(&w, saw(&e, "after"));
    ck_assert(pty_alive(w.session));
    close_eye(&e);
    world_done(&w);
}
END_TEST

START_TEST(delete_of_an_idle_bash_is_quick)
{
    struct world w;
    world_init(&w, 0);
    pid_t pid = 0;
    struct eye e;
    look(&e, create(&w, "/bin/bash"), PTY_FROM_START);
    turn_until(&w, e.seen.len > 0);
    pid = pty_pid(w.session);
    uint64_t began = mono_ms();
    pty_delete(w.session, on_deleted, &w);
    ck_assert_ptr_null(pty_table_find(w.table, pty_id(w.session)));
    turn_until(&w, w.deleted);
    ck_assert_uint_lt(mono_ms() - began, 2500); /* the reference takes 3 s; 2 ms is usual here */
    ck_assert_int_eq(kill(pid, 0), -1);
    turn_until(&w, e.ended);
    close_eye(&e);
    world_done(&w);
}
END_TEST

START_TEST(an_idle_session_ends_but_not_one_with_a_viewer)
{
    struct world w;
    struct eye e;
    world_init(&w, 150);
    look(&e, create(&w, "/bin/sh"), PTY_FROM_START);
    uint64_t stop = mono_ms() + 400;
    while (mono_ms() < stop)
        turn(&w);
    ck_assert_uint_eq(pty_table_alive(w.table), 1);
    close_eye(&e);
    turn_until(&w, pty_table_alive(w.table) == 0);
    world_done(&w);
}
END_TEST

static int descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

START_TEST(nothing_is_left_of_200_flooding_sessions)
{
    struct world w;
    world_init(&w, 0);
    (void)create(&w, "/bin/sh");
    pty_delete(w.session, on_deleted, &w);
    turn_until(&w, w.deleted);
    int before = 0;
    for (int i = 0; i < 200; i++) {
        struct eye e, other;
        look(&e, create(&w, "/bin/sh"), PTY_FROM_START);
        type(&e, "yes\n");
        look(&other, w.session, PTY_FROM_START);
        w.deleted = 0;
        if (i % 4 == 0)
            turn(&w);
        if (i % 2 == 0)
            close_eye(&other);
        if (i % 3 == 0)
            type(&e, "\003exit\n");
        pty_delete(w.session, on_deleted, &w);
        turn_until(&w, w.deleted);
        if (i % 2)
            close_eye(&other);
        close_eye(&e);
        turn(&w);
        if (i == 10)
            before = descriptors();
    }
    uint64_t stop = mono_ms() + 5000;
    while (descriptors() > before && mono_ms() < stop)
        turn(&w);
    ck_assert_int_le(descriptors(), before);
    world_done(&w);
}
END_TEST

TEST_MAIN("pty_session", a_missing_shell_is_told, size_is_set_before_the_shell_runs,
          last_output_comes_before_the_end, output_is_kept_while_nobody_looks_and_resumed_by_position,
          one_slow_viewer_slows_the_program_and_is_kept, a_slow_viewer_among_several_is_dropped,
          input_nobody_reads_is_bounded, a_signal_reaches_the_job_in_the_foreground,
          delete_of_an_idle_bash_is_quick, an_idle_session_ends_but_not_one_with_a_viewer,
          nothing_is_left_of_200_flooding_sessions)
