#include "process/table.h"
#include "../check_main.h"
#include "../turn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/own.h"

extern char **environ;

struct run {
    struct loop *loop;
    struct spawner *s;
    struct proc *p;
    int started, timed_out, ended, code, sys, stopped;
    bool stall; /* pauses at the first output */
    struct buf all, order; /* output; '1' or '2' per change of stream */
    size_t calls, written;
    int write_sys, write_done;
    struct entry *e;
};

static void on_started(void *o, struct proc *p, int sys)
{
    struct run *r = o;
    r->started++;
    r->sys = sys;
}

static void on_output(void *o, enum proc_stream stream, const char *data, size_t len)
{
    struct run *r = o;
    char which = stream == PROC_STDERR ? '2' : '1';
    r->calls++;
    buf_add(&r->all, data, len);
    if (r->order.len == 0 || r->order.data[r->order.len - 1] != which)
        buf_addc(&r->order, which);
    if (r->stall)
        proc_pause(r->p);
}

static void on_timed_out(void *o)
{
    ((struct run *)o)->timed_out++;
}

static void on_ended(void *o, int code)
{
    struct run *r = o;
    r->ended++;
    r->code = code;
    r->p = NULL;
}

static void on_stopped(void *o)
{
    ((struct run *)o)->stopped = 1;
}

static void on_written(void *o, size_t written, int sys)
{
    struct run *r = o;
    r->written = written;
    r->write_sys = sys;
    r->write_done++;
}

static const struct proc_ops ops = {
    .started = on_started, .output = on_output, .timed_out = on_timed_out, .ended = on_ended};

static void turn(struct run *r)
{
    turn_loop(r->loop);
}

static void run_init(struct run *r)
{
    signal(SIGPIPE, SIG_IGN);
    *r = (struct run){.loop = loop_new()};
    r->s = spawner_new(r->loop);
    ck_assert_ptr_nonnull(r->s);
}

static void run_done(struct run *r)
{
    spawner_stop(r->s, 0, on_stopped, r);
    while (!r->stopped)
        turn(r);
    ck_assert_ptr_null(r->p);
    spawner_free(r->s);
    loop_free(r->loop);
    buf_done(&r->all);
    buf_done(&r->order);
}

static struct proc_opts sh_opts(char **argv)
{
    return (struct proc_opts){
        .spawn = {.file = argv[0], .argv = argv, .envp = environ, .cwd_fd = -1, .uid = -1, .gid = -1}};
}

static void start(struct run *r, const char *script, enum proc_stdin mode, uint64_t timeout_ms)
{
    char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
    struct proc_opts o = sh_opts(argv);
    struct abx_error err;
    o.stdin_mode = mode;
    o.timeout_ms = timeout_ms;
    ck_assert_int_eq(proc_start(r->s, r->loop, &o, &ops, r, &r->p, &err), 0);
}

static void wait_end(struct run *r)
{
    while (!r->ended)
        turn(r);
}

START_TEST(missing_program_ends_before_it_begins)
{
    struct run r;
    run_init(&r);
    char *argv[] = {"/no/such", NULL};
    struct proc_opts o = sh_opts(argv);
    struct abx_error err;
    ck_assert_int_eq(proc_start(r.s, r.loop, &o, &ops, &r, &r.p, &err), 0);
    while (!r.started)
        turn(&r);
    r.p = NULL;
    ck_assert_int_eq(r.sys, ENOENT);
    ck_assert_int_eq(r.ended, 0);
    run_done(&r);
}
END_TEST

START_TEST(output_is_whole_and_in_order)
{
    struct run r;
    run_init(&r);
    start(&r, "printf a; sleep 0.05; printf b >&2; sleep 0.05; printf c; head -c 300000 /dev/zero >&2; exit 3",
          PROC_STDIN_NULL, 0);
    wait_end(&r);
    ck_assert_int_eq(r.code, 3);
    ck_assert_uint_eq(r.all.len, 300003);
    ck_assert_int_eq(memcmp(r.all.data, "abc", 3), 0);
    ck_assert_int_eq(memcmp(r.order.data, "1212", 4), 0);
    run_done(&r);
}
END_TEST

START_TEST(background_child_does_not_hold_the_end)
{
    struct run r;
    run_init(&r);
    uint64_t before = mono_ms();
    start(&r, "echo started; sleep 60 & exit 0", PROC_STDIN_NULL, 0);
    wait_end(&r);
    ck_assert_uint_lt(mono_ms() - before, 2000);
    ck_assert_int_eq(r.code, 0);
    ck_assert_uint_eq(r.all.len, 8);
    run_done(&r);
}
END_TEST

START_TEST(what_a_child_writes_just_after_the_end_is_kept)
{
    struct run r;
    run_init(&r);
    start(&r, "(sleep 0.02; echo late) & exit 0", PROC_STDIN_NULL, 0);
    wait_end(&r);
    ck_assert_str_eq(buf_str(&r.all), "late\n");
    run_done(&r);
}
END_TEST

START_TEST(deadline_ends_the_tree)
{
    struct run r;
    run_init(&r);
    uint64_t before = mono_ms();
    start(&r, "trap '' TERM; sleep 300 & echo out; sleep 301; sleep 302; echo never", PROC_STDIN_NULL, 200);
    wait_end(&r);
    ck_assert_int_eq(r.timed_out, 1);
    ck_assert_int_eq(r.code, -9);
    ck_assert_uint_lt(mono_ms() - before, 2000);
    ck_assert_str_eq(buf_str(&r.all), "out\n");
    run_done(&r);
}
END_TEST

START_TEST(paused_program_is_slowed_down_and_loses_nothing)
{
    struct run r;
    run_init(&r);
    r.stall = true;
    start(&r, "head -c 2000000 /dev/zero", PROC_STDIN_NULL, 0);
    while (r.calls == 0)
        turn(&r);
    for (uint64_t end = mono_ms() + 300; mono_ms() < end;)
        turn(&r);
    ck_assert_uint_eq(r.calls, 1);
    ck_assert(!r.ended);
    r.stall = false;
    proc_resume(r.p);
    wait_end(&r);
    ck_assert_uint_eq(r.all.len, 2000000);
    run_done(&r);
}
END_TEST

START_TEST(pause_over_the_end_keeps_what_the_pipe_holds)
{
    struct run r;
    run_init(&r);
    r.stall = true;
    start(&r, "echo one; sleep 0.05; echo two; sleep 60 & exit 0", PROC_STDIN_NULL, 0);
    while (r.calls == 0)
        turn(&r);
    for (uint64_t end = mono_ms() + 400; mono_ms() < end;)
        turn(&r);
    ck_assert(!r.ended);
    r.stall = false;
    proc_resume(r.p);
    wait_end(&r);
    ck_assert_str_eq(buf_str(&r.all), "one\ntwo\n");
    run_done(&r);
}
END_TEST

START_TEST(input_goes_in_and_ends)
{
    struct run r;
    run_init(&r);
    start(&r, "sort", PROC_STDIN_OPEN, 0);
    while (!r.started)
        turn(&r);
    ck_assert_int_eq(proc_write(r.p, strdup("b\na\n"), 4, 1000, on_written, &r), 0);
    proc_close_stdin(r.p);
    ck_assert_int_eq(proc_write(r.p, "", 0, 1000, on_written, &r), -1);
    wait_end(&r);
    ck_assert_int_eq(r.write_done, 1);
    ck_assert_str_eq(buf_str(&r.all), "a\nb\n");
    run_done(&r);
}
END_TEST

START_TEST(input_that_nobody_takes_is_given_back)
{
    struct run r;
    run_init(&r);
    start(&r, "sleep 60", PROC_STDIN_OPEN, 0);
    while (!r.started)
        turn(&r);
    char *data = calloc(1, MIB);
    ck_assert_int_eq(proc_write(r.p, data, MIB, 100, on_written, &r), 0);
    while (!r.write_done)
        turn(&r);
    ck_assert_int_eq(r.write_sys, EAGAIN);
    ck_assert_uint_eq(r.written, 65536);
    proc_kill(r.p, 0);
    wait_end(&r);
    ck_assert_int_eq(r.code, -9);
    run_done(&r);
}
END_TEST

START_TEST(cancel_ends_the_program_and_calls_nobody)
{
    struct run r;
    run_init(&r);
    start(&r, "echo x; trap '' TERM; while :; do sleep 0.1; done", PROC_STDIN_NULL, 0);
    while (r.calls == 0)
        turn(&r);
    proc_cancel(take_ptr(r.p), 50);
    while (spawner_running(r.s) > 0)
        turn(&r);
    ck_assert_int_eq(r.ended, 0);
    run_done(&r);
}
END_TEST

static void entry_started(void *o, struct entry *e, int sys)
{
    struct run *r = o;
    r->started++;
    r->sys = sys;
    r->e = e;
}

static void start_entry(struct run *r, struct proc_table *t, const char *script, int64_t ring)
{
    char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
    struct entry_opts o = {.proc = sh_opts(argv), .command = "x", .command_len = 1, .running_max = 2,
                           .capture = true, .ring_chars = ring};
    struct abx_error err;
    r->started = 0;
    ck_assert_int_eq(proc_table_start(t, &o, entry_started, r, &err), 0);
    while (!r->started)
        turn(r);
}

START_TEST(table_refuses_more_than_may_run)
{
    struct run r;
    run_init(&r);
    struct proc_table *t = proc_table_new(r.loop, r.s);
    start_entry(&r, t, "sleep 60", 100);
    start_entry(&r, t, "sleep 60", 100);
    struct abx_error err;
    ck_assert_int_eq(proc_table_admit(t, 2, &err), -1);
    ck_assert_int_eq(err.status, 429);
    ck_assert_str_eq(err.type, "ResourceError");
    spawner_stop(r.s, 0, on_stopped, &r);
    while (!r.stopped)
        turn(&r);
    r.stopped = 0;
    proc_table_free(t);
    run_done(&r);
}
END_TEST

START_TEST(ring_drops_the_oldest_and_says_so)
{
    struct run r;
    run_init(&r);
    struct proc_table *t = proc_table_new(r.loop, r.s);
    start_entry(&r, t, "printf 12345; sleep 0.05; printf abc; sleep 0.05; printf \"\\303\\251\\303\"", 6);
    pid_t pid = entry_pid(r.e);
    while (entry_running(r.e))
        turn(&r);
    ck_assert_ptr_eq(proc_table_find(t, pid), r.e);
    ck_assert(entry_dropped(r.e));
    ck_assert_int_eq(entry_first(r.e), 1);
    ck_assert_int_eq(entry_next(r.e), 4);
    const struct out_event *ev = entry_event(r.e, 2);
    ck_assert_uint_eq(ev->chars, 1);
    ck_assert_int_eq(memcmp(ev->text, "\303\251", 2), 0);
    ck_assert_int_eq(memcmp(entry_event(r.e, 3)->text, "\357\277\275", 3), 0);
    proc_table_free(t);
    run_done(&r);
}
END_TEST

START_TEST(exited_entries_are_kept_within_bounds)
{
    struct run r;
    run_init(&r);
    struct proc_table *t = proc_table_new(r.loop, r.s);
    pid_t first = 0, last = 0;
    for (int i = 0; i < TABLE_EXITED_MAX + 5; i++) {
        start_entry(&r, t, "exit 4", 100);
        last = entry_pid(r.e);
        first = first ? first : last;
        while (entry_running(r.e))
            turn(&r);
    }
    ck_assert_ptr_null(proc_table_find(t, first));
    ck_assert_int_eq(entry_exit_code(proc_table_find(t, last)), 4);
    proc_table_free(t);
    run_done(&r);
}
END_TEST

TEST_MAIN("proc", missing_program_ends_before_it_begins, output_is_whole_and_in_order,
          background_child_does_not_hold_the_end, what_a_child_writes_just_after_the_end_is_kept,
          deadline_ends_the_tree, paused_program_is_slowed_down_and_loses_nothing,
          pause_over_the_end_keeps_what_the_pipe_holds, input_goes_in_and_ends,
          input_that_nobody_takes_is_given_back, cancel_ends_the_program_and_calls_nobody,
          table_refuses_more_than_may_run, ring_drops_the_oldest_and_says_so,
          exited_entries_are_kept_within_bounds)
