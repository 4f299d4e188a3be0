#include "process/spawn.h"
#include "../check_main.h"
#include "../filter.h"
#include "../turn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/own.h"

extern char **environ;

/* One program and what was heard of it; output up to 8 KiB. */
struct run {
    struct loop *loop;
    struct spawner *s;
    struct child *child;
    int started, exited, sys, status, stopped;
    int out[2];
    bool many; /* descriptors are open: the program's ends have high numbers */
    char text[8192];
};

static void on_started(void *owner, struct child *child, int sys)
{
    struct run *r = owner;
    r->child = child;
    r->sys = sys;
    r->started++;
}

static void on_exited(void *owner, struct child *child, int status)
{
    struct run *r = owner;
    r->status = status;
    r->exited++;
}

static void on_stopped(void *data)
{
    ((struct run *)data)->stopped = 1;
}

static const struct child_ops ops = {on_started, on_exited};

static void run_init(struct run *r)
{
    *r = (struct run){.loop = loop_new(), .out = {-1, -1}};
    r->s = spawner_new(r->loop);
    ck_assert_ptr_nonnull(r->s);
}

static void turn(struct run *r)
{
    turn_loop(r->loop);
}

static void run_done(struct run *r)
{
    child_free(r->child, true);
    spawner_stop(r->s, 0, on_stopped, r);
    while (!r->stopped)
        turn(r);
    spawner_free(r->s);
    loop_free(r->loop);
    if (r->out[0] >= 0)
        close(r->out[0]);
}

static void start_opts(struct run *r, struct spawn_opts *o)
{
    struct abx_error err;
    ck_assert_int_eq(pipe2(r->out, O_CLOEXEC), 0);
    if (r->many) {
        int high = fcntl(r->out[1], F_DUPFD_CLOEXEC, 700);
        close(r->out[1]);
        r->out[1] = high;
    }
    o->fds[0] = -1;
    o->fds[1] = r->out[1];
    o->fds[2] = r->out[1];
    ck_assert_int_eq(spawn_start(r->s, o, &ops, r, &err), 0);
    ck_assert_int_eq(r->started, 0);
    while (!r->started)
        turn(r);
    close(take_fd(&r->out[1]));
}

static void start_sh(struct run *r, const char *script)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    struct spawn_opts o = {
        .file = "/bin/sh", .argv = argv, .envp = environ, .cwd_fd = -1, .uid = -1, .gid = -1};
    start_opts(r, &o);
    ck_assert_int_eq(r->sys, 0);
}

/* Everything until the pipe closes. */
static const char *read_all(struct run *r)
{
    size_t n = 0;
    for (ssize_t got; (got = read(r->out[0], r->text + n, sizeof(r->text) - 1 - n)) > 0;)
        n += (size_t)got;
    r->text[n] = '\0';
    return r->text;
}

static const char *read_line(struct run *r)
{
    size_t n = 0;
    while (n < sizeof(r->text) - 1 && read(r->out[0], r->text + n, 1) == 1 && r->text[n] != '\n')
        n++;
    r->text[n] = '\0';
    return r->text;
}

static int wait_exit(struct run *r)
{
    while (!r->exited)
        turn(r);
    return child_exit_code(r->child);
}

static bool alive(pid_t pid)
{
    char path[32], text[256] = "";
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
        return false;
    const char *at = strrchr(text, ')');
    return at && at[2] != 'Z';
}

static void wait_gone(struct run *r, pid_t pid)
{
    for (uint64_t end = mono_ms() + 3000; alive(pid) && mono_ms() < end;)
        turn(r);
    ck_assert_msg(!alive(pid), "%d lives", (int)pid);
}

START_TEST(missing_program_reports_its_errno_and_leaves_no_child)
{
    struct run r;
    run_init(&r);
    char *argv[] = {"x", NULL};
    struct spawn_opts o = {
        .file = "no-such-program", .argv = argv, .envp = environ, .cwd_fd = -1, .uid = -1, .gid = -1};
    start_opts(&r, &o);
    ck_assert_int_eq(r.sys, ENOENT);
    ck_assert_ptr_null(r.child);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
    run_done(&r);
}
END_TEST

START_TEST(file_that_is_not_executable_is_refused)
{
    struct run r;
    run_init(&r);
    char *argv[] = {"x", NULL};
    struct spawn_opts o = {
        .file = "/etc/passwd", .argv = argv, .envp = environ, .cwd_fd = -1, .uid = -1, .gid = -1};
    start_opts(&r, &o);
    ck_assert_int_eq(r.sys, EACCES);
    run_done(&r);
}
END_TEST

START_TEST(nothing_starts_while_stopping)
{
    struct run r;
    run_init(&r);
    spawner_stop(r.s, 0, on_stopped, &r);
    char *argv[] = {"true", NULL};
    struct spawn_opts o = {
        .file = "true", .argv = argv, .envp = environ, .cwd_fd = -1, .uid = -1, .gid = -1, .fds = {-1, -1, -1}};
    struct abx_error err;
    ck_assert_int_eq(spawn_start(r.s, &o, &ops, &r, &err), -1);
    ck_assert_int_eq(err.kind, E_STOPPING);
    run_done(&r);
}
END_TEST

START_TEST(exit_codes_and_signals_come_back)
{
    struct run r;
    run_init(&r);
    start_sh(&r, "echo out; echo err >&2; exit 7");
    ck_assert_str_eq(read_all(&r), "out\nerr\n");
    ck_assert_int_eq(wait_exit(&r), 7);
    ck_assert_int_eq(kill(child_pid(r.child), 0), -1); /* reaped */
    ck_assert_int_eq(child_signal(r.child, SIGTERM), -1);
    ck_assert_int_eq(errno, ESRCH);
    child_free(take_ptr(r.child), false);
    close(r.out[0]);

    r.started = r.exited = 0;
    start_sh(&r, "exit 255");
    ck_assert_int_eq(wait_exit(&r), 255);
    child_free(take_ptr(r.child), false);
    close(r.out[0]);

    r.started = r.exited = 0;
    start_sh(&r, "kill -9 $$");
    ck_assert_int_eq(wait_exit(&r), -9);
    ck_assert_int_eq(kill(child_pid(r.child), 0), -1);
    run_done(&r);
}
END_TEST

static void start_true(struct run *r, const struct child_ops *told)
{
    struct abx_error err;
    char *argv[] = {"true", NULL};
    const struct spawn_opts o = {.file = "/bin/true", .argv = argv, .envp = environ, .cwd_fd = -1,
                                 .fds = {-1, -1, -1}, .uid = -1, .gid = -1};
    ck_assert_int_eq(spawn_start(r->s, &o, told, r, &err), 0);
}

/* At its end the next one starts at once, as when requests are pipelined. */
static void start_next(void *owner, struct child *child, int status)
{
    struct run *r = owner;
    r->started = 0;
    start_true(r, &ops);
    ck_assert_int_eq(kill(child_pid(child), 0), -1);
    child_free(child, false);
}

/* A zombie counts among the processes that we may have: 503 for the next one, when that is one too many. */
START_TEST(one_that_is_started_at_anothers_end_finds_it_gone)
{
    static const struct child_ops chain = {on_started, start_next};
    struct run r;
    run_init(&r);
    start_true(&r, &chain);
    while (!r.exited)
        turn(&r);
    ck_assert_int_eq(child_exit_code(r.child), 0);
    run_done(&r);
}
END_TEST

/* The mask of /proc/self/status. */
static const char *own_processors(char *line, size_t size)
{
    static const char name[] = "Cpus_allowed:\t";
    FILE *f = fopen("/proc/self/status", "re");
    ck_assert_ptr_nonnull(f);
    bool found = false;
    while (!found && fgets(line, (int)size, f))
        found = strncmp(line, name, sizeof(name) - 1) == 0;
    fclose(f);
    ck_assert(found);
    line[strcspn(line, "\n")] = '\0';
    return line + sizeof(name) - 1;
}

static void check_a_clean_child(bool many)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    autoclose int inherited = dup(2); /* not CLOEXEC */
    struct run r;
    run_init(&r);
    r.many = many;
    /* Built-ins look: around a fork a shell blocks signals and has descriptors of its own for a while. */
    start_sh(&r, "ulimit -n; cat /proc/self/oom_score_adj;"
                 " while read -r k v; do case $k in SigBlk:|SigIgn:|Cpus_allowed:) printf '%s\\t%s\\n' $k $v;; esac; done"
                 " </proc/$$/status;"
                 " for i in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$i ] && printf '%d ' $i; done;"
                 " cut -d' ' -f5,6 /proc/$$/stat; pwd; exit 0");
    struct rlimit nofile;
    getrlimit(RLIMIT_NOFILE, &nofile);
    char line[512], want[1024];
    snprintf(want, sizeof(want),
             "%lu\n500\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nCpus_allowed:\t%s\n0 1 2 %d %d\n/\n",
             (unsigned long)nofile.rlim_cur, own_processors(line, sizeof(line)), (int)child_pid(r.child), (int)child_pid(r.child));
    ck_assert_str_eq(read_all(&r), want);
    ck_assert_int_eq(wait_exit(&r), 0);
    run_done(&r);
}

START_TEST(child_has_clean_signals_own_session_and_three_descriptors)
{
    check_a_clean_child(false);
    check_a_clean_child(true);
}
END_TEST

/* The last tests: without CK_FORK the filters stay. */
START_TEST(without_close_range_a_child_is_as_clean)
{
    if (!filter_call(SYS_close_range, SECCOMP_RET_ERRNO | EPERM)) /* as container runtimes of some years ago do */
        return; /* a kernel without filters */
    ck_assert_int_eq(syscall(SYS_close_range, 900, 901, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    check_a_clean_child(false);
    check_a_clean_child(true);
}
END_TEST

START_TEST(without_clone3_a_child_is_as_clean)
{
    if (!filter_call(SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS))
        return; /* a kernel without filters */
    ck_assert_int_eq(syscall(SYS_clone3, NULL, 0), -1);
    ck_assert_int_eq(errno, ENOSYS);
    check_a_clean_child(false);
    check_a_clean_child(true);
}
END_TEST

struct order {
    struct run *run;
    int result, cwd, unused;
    char *argv[2];
};

static int look_up(void *data, struct spawn_opts *o)
{
    struct order *order = data;
    o->file = "/bin/pwd";
    o->argv = order->argv;
    o->envp = environ;
    o->cwd_fd = order->cwd;
    return order->result;
}

static void order_unused(void *data)
{
    struct order *order = data;
    ck_assert_int_eq(order->run->started, 1);
    order->unused++;
}

START_TEST(an_order_is_completed_on_the_worker_and_lives_until_its_start)
{
    struct run r;
    run_init(&r);
    const int results[] = {0, SPAWN_REFUSED, EIO};
    for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++) {
        struct order order = {.run = &r, .result = results[i], .argv = {"pwd", NULL}};
        order.cwd = open("/usr", O_PATH | O_CLOEXEC);
        struct spawn_opts o = {
            .cwd_fd = -1, .uid = -1, .gid = -1, .prepare = look_up, .unused = order_unused, .order = &order};
        r.started = r.exited = 0;
        start_opts(&r, &o);
        ck_assert_int_eq(order.unused, 1);
        ck_assert_int_eq(r.sys, results[i]);
        ck_assert_str_eq(read_all(&r), results[i] ? "" : "/usr\n");
        close(take_fd(&r.out[0]));
        close(order.cwd);
        if (results[i] == 0) {
            ck_assert_int_eq(wait_exit(&r), 0);
            child_free(take_ptr(r.child), false);
        }
    }
    run_done(&r);
}
END_TEST

START_TEST(nobody_else_holds_a_programs_ends)
{
    struct run r;
    run_init(&r);
    for (int i = 0; i < 20; i++) {
        r.many = i % 4 > 1;
        start_sh(&r, "exec >&- 2>&-; sleep 60");
        ck_assert_str_eq(read_all(&r), "");
        ck_assert(child_running(r.child));
        child_free(take_ptr(r.child), true);
        close(take_fd(&r.out[0]));

        char *argv[] = {"nobody-has-this", NULL};
        struct spawn_opts o = {
            .file = "/nobody-has-this", .argv = argv, .envp = environ, .cwd_fd = -1, .uid = -1, .gid = -1};
        r.started = 0;
        start_opts(&r, &o);
        ck_assert_int_eq(r.sys, ENOENT);
        ck_assert_str_eq(read_all(&r), "");
        close(take_fd(&r.out[0]));
        r.started = 0;
    }
    run_done(&r);
}
END_TEST

/* Low numbers, high ones, and more of them than fit in a slot. */
START_TEST(ends_arrive_whatever_their_numbers)
{
    struct run r;
    run_init(&r);
    for (int high = 0; high < 2; high++) {
        r.many = high;
        for (size_t n_extra = 0; n_extra <= 4; n_extra++) {
            int side[2];
            ck_assert_int_eq(pipe2(side, O_CLOEXEC), 0);
            int end = high ? fcntl(side[1], F_DUPFD_CLOEXEC, 700) : dup(side[1]);
            close(side[1]);
            struct spawn_extra extra[4];
            char script[128] = "echo out; echo err >&2;", text[32] = "", want[32] = "";
            for (size_t i = 0; i < n_extra; i++) {
                extra[i] = (struct spawn_extra){.child_fd = 3 + (int)i, .fd = end};
                size_t len = strlen(script);
                snprintf(script + len, sizeof(script) - len, " echo %zu >&%zu;", i, 3 + i);
                len = strlen(want);
                snprintf(want + len, sizeof(want) - len, "%zu\n", i);
            }
            char *argv[] = {"sh", "-c", script, NULL};
            struct spawn_opts o = {.file = "sh", .argv = argv, .envp = environ, .cwd_fd = -1, .uid = -1, .gid = -1,
                                   .extra = extra, .n_extra = n_extra};
            r.started = r.exited = 0;
            start_opts(&r, &o);
            close(end);
            ck_assert_str_eq(read_all(&r), "out\nerr\n");
            size_t got = 0;
            for (ssize_t more; (more = read(side[0], text + got, sizeof(text) - 1 - got)) > 0;)
                got += (size_t)more;
            ck_assert_str_eq(text, want);
            close(side[0]);
            ck_assert_int_eq(wait_exit(&r), 0);
            child_free(take_ptr(r.child), false);
            close(take_fd(&r.out[0]));
        }
    }
    run_done(&r);
}
END_TEST

START_TEST(extra_descriptors_and_limits_arrive)
{
    struct run r;
    run_init(&r);
    int side[2];
    ck_assert_int_eq(pipe2(side, O_CLOEXEC), 0);
    struct spawn_extra extra[] = {{.child_fd = 3, .fd = side[1]}, {.child_fd = 5, .fd = side[1]}};
    char *argv[] = {"sh", "-c", "echo three >&3; echo five >&5; ulimit -n; ulimit -v; ulimit -t", NULL};
    struct spawn_opts o = {.file = "sh", .argv = argv, .envp = environ, .cwd_fd = -1, .uid = -1,
                           .gid = -1, .extra = extra, .n_extra = 2,
                           .limits = {.open_files = 77, .memory_bytes = 1u << 30, .cpu_seconds = 9}};
    start_opts(&r, &o);
    close(side[1]);
    ck_assert_str_eq(read_all(&r), "77\n1048576\n9\n");
    char text[32] = "";
    ck_assert_int_eq(read(side[0], text, sizeof(text)), 11);
    ck_assert_str_eq(text, "three\nfive\n");
    close(side[0]);
    run_done(&r);
}
END_TEST

START_TEST(user_is_changed_when_privileged)
{
    if (getuid() != 0)
        return;
    struct run r;
    run_init(&r);
    gid_t groups[] = {12345};
    char *argv[] = {"id", NULL};
    struct spawn_opts o = {.file = "id", .argv = argv, .envp = environ, .cwd_fd = -1, .uid = 4321,
                           .gid = 4322, .groups = groups, .n_groups = 1};
    start_opts(&r, &o);
    ck_assert_str_eq(read_all(&r), "uid=4321 gid=4322 groups=4322,12345\n");
    ck_assert_int_eq(wait_exit(&r), 0);
    run_done(&r);
}
END_TEST

START_TEST(terminate_ends_grandchildren_also_in_sessions_of_their_own)
{
    struct run r;
    run_init(&r);
    start_sh(&r, "sleep 300 & echo $!; setsid sleep 301 & echo $!; wait");
    pid_t first = atoi(read_line(&r)), second = atoi(read_line(&r));
    ck_assert(alive(first) && alive(second));
    child_terminate(r.child, 2000);
    ck_assert_int_eq(wait_exit(&r), -15);
    wait_gone(&r, first);
    wait_gone(&r, second);
    run_done(&r);
}
END_TEST

START_TEST(kill_follows_when_term_is_ignored)
{
    struct run r;
    run_init(&r);
    start_sh(&r, "trap '' TERM; (trap '' TERM; sleep 300) & echo $!; while :; do sleep 1; done");
    pid_t inner = atoi(read_line(&r));
    uint64_t before = mono_ms();
    child_terminate(r.child, 100);
    ck_assert_int_eq(wait_exit(&r), -9);
    ck_assert_uint_lt(mono_ms() - before, 3000);
    wait_gone(&r, inner);
    run_done(&r);
}
END_TEST

START_TEST(grace_can_be_shortened_once_it_runs)
{
    struct run r;
    run_init(&r);
    start_sh(&r, "trap '' TERM; echo up; while :; do sleep 0.02; done");
    ck_assert_str_eq(read_line(&r), "up");
    uint64_t before = mono_ms();
    child_terminate(r.child, 30000);
    child_terminate(r.child, 60000);
    child_terminate(r.child, 100);
    ck_assert_int_eq(wait_exit(&r), -9);
    ck_assert_uint_lt(mono_ms() - before, 5000);
    child_free(take_ptr(r.child), false);
    struct timer other; /* walks the heap that the first timer was in */
    timer_init(&other, r.loop, (void (*)(void *))timer_stop, &other);
    timer_start(&other, 1);
    turn(&r);
    run_done(&r);
}
END_TEST

START_TEST(orphans_are_collected_and_exit_codes_are_not_stolen)
{
    struct run r;
    run_init(&r);
    for (int i = 0; i < 50; i++) {
        r.started = r.exited = 0;
        start_sh(&r, "(sleep 0.05 &); exit 5");
        ck_assert_int_eq(wait_exit(&r), 5);
        child_free(take_ptr(r.child), false);
        close(take_fd(&r.out[0]));
    }
    siginfo_t info;
    bool gone = false;
    for (uint64_t end = mono_ms() + 3000; !gone && mono_ms() < end;) {
        turn(&r);
        gone = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD;
    }
    ck_assert(gone);
    run_done(&r);
}
END_TEST

START_TEST(stop_ends_everything_with_grace)
{
    struct run r;
    run_init(&r);
    start_sh(&r, "trap 'echo bye; exit 3' TERM; (setsid sleep 300 &); echo up; while :; do sleep 0.02; done");
    ck_assert_str_eq(read_line(&r), "up");
    spawner_stop(r.s, 1000, on_stopped, &r);
    while (!r.stopped)
        turn(&r);
    ck_assert_int_eq(r.exited, 1);
    ck_assert_int_eq(child_exit_code(r.child), 3);
    ck_assert_ptr_nonnull(strstr(read_all(&r), "bye\n")); /* sh may say "Terminated" before */
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    r.stopped = 0;
    run_done(&r);
}
END_TEST

TEST_MAIN("spawn", missing_program_reports_its_errno_and_leaves_no_child, file_that_is_not_executable_is_refused,
          nothing_starts_while_stopping, exit_codes_and_signals_come_back, one_that_is_started_at_anothers_end_finds_it_gone,
          child_has_clean_signals_own_session_and_three_descriptors, extra_descriptors_and_limits_arrive,
          user_is_changed_when_privileged, terminate_ends_grandchildren_also_in_sessions_of_their_own,
          kill_follows_when_term_is_ignored, grace_can_be_shortened_once_it_runs, orphans_are_collected_and_exit_codes_are_not_stolen,
          stop_ends_everything_with_grace,
          an_order_is_completed_on_the_worker_and_lives_until_its_start, nobody_else_holds_a_programs_ends, ends_arrive_whatever_their_numbers,
          without_close_range_a_child_is_as_clean, without_clone3_a_child_is_as_clean)
