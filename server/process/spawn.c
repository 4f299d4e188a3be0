#include "process/spawn.h"

/* How a program starts. The loop copies the order into a job; a worker runs clone(CLONE_VM |
 * CLONE_VFORK | CLONE_PIDFD): the child borrows our memory and the worker sleeps until it has called
 * exec or given up, so no page tables are copied. Between clone and exec the child only makes raw
 * system calls: it shares the worker's TLS, and libc's set*id functions would signal all threads.
 * CLONE_CHILD_SETTID writes its pid into the job before its first instruction.
 *
 * How it ends. The pidfd becomes readable, the loop tells the owner and reaps. While a tree job works on the leader's
 * number (`pins`), both wait, so the number can't be given to a stranger meanwhile.
 *
 * Orphans. SIGCHLD is read from a signalfd, at most once per REAP_PAUSE_MS. waitid(WNOWAIT) shows one
 * ended child: if it is ours it ends as above, if a spawn in progress owns it we come back when that
 * is done, else it is an orphan and is collected.
 *
 * Descriptors. A copy of all of ours, made by clone and closed by exec, costs 0.3 us each: as much as the program itself
 * when some thousand connections are open. When there are many the child shares the table at first (CLONE_FILES), and
 * parts from it by a close_range(UNSHARE) that copies only what lies below. For that the program's ends are at low
 * numbers, a slot, while it starts. Until it has parted the child must not open, close or move any.
 *
 * Where the kernel lets us, each program is born in a cgroup of its own (process/cgroup.h) and with its signal handlers
 * taken off, which clone can't do: clone3 then. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/list.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/own.h"
#include "process/cgroup.h"
#include "process/in_child.h"
#include "process/place.h"
#include "process/tree.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

#define REAP_PAUSE_MS 20
#define OOM_SCORE_STEP 500
#define KILL_WAIT_MS 1000
#define STOP_POLL_MS 10
#define CLONE_FLAGS (CLONE_VM | CLONE_VFORK | CLONE_CHILD_SETTID)
#define SLOTS 4 /* programs that start at the same time: as many as there are workers by default */
#define SLOT_FDS 3
#define SLOTS_MIN_NOFILE 256 /* with fewer descriptors we don't keep any back */
#define FEW_OPEN 128         /* a copy of so many costs next to nothing */
#define CHILD_STACK (32 * KIB)
#define CANDIDATES_MAX 64 /* directories of PATH that are tried */
#define N_SIGNALS 64      /* the kernel's; NSIG hides 32 and 33, which libc keeps to itself */

/* Low numbers that are ours, /dev/null while not in use. */
struct slot {
    int fd[SLOT_FDS]; /* ascending */
    atomic_bool taken;
};

struct spawner {
    struct loop *loop;
    struct list children; /* struct child.link: not yet reaped */
    struct list jobs;     /* struct job.link: handed to a worker */
    size_t running;       /* of children, without helpers */
    size_t tree_jobs; /* and jobs that tidy up cgroups */
    pid_t told; /* its owner hears of its end just now, and it is to be reaped; 0: nobody */
    struct cgroups *cgroups;
    bool tidying;
    struct rlimit nofile; /* as we found it */
    struct place place;
    uint64_t ignored;     /* signals, bit N - 1: children don't ignore them */
    atomic_bool no_clone3, no_slots;
    struct slot slots[SLOTS];
    int null_fd, chld_fd;
    int proc_fd; /* /proc, -1: none. A shorter way for each child */
    char oom_score[8];
    struct io chld_io;
    struct timer reap_timer;
    bool reap_again; /* a spawn in progress hid an ended child */
    bool stopping;
    struct timer stop_timer;
    uint64_t kill_at, give_up_at; /* mono_ms, while stopping */
    bool killed;
    void (*stop_done)(void *data);
    void *stop_data;
};

struct child {
    struct list link;
    struct spawner *s;
    const struct child_ops *ops; /* NULL: the owner has forgotten it */
    void *owner;
    pid_t pid;
    int pidfd; /* -1: a kernel without; then SIGCHLD alone tells */
    unsigned cgroup; /* 0: none */
    struct io io;
    uint64_t started_ns;
    int status;
    bool reaped, helper, sweep;
    bool tty; /* has a terminal: interactive shells ignore TERM, so it gets HUP as well */
    bool pinned;      /* a tree job uses the pid */
    bool ended;       /* seen, perhaps not reaped yet because of that job */
    bool terminating; /* a sweep is due at the end */
    bool kill_due;    /* as soon as the tree job is done */
    bool killed;      /* the tree has got KILL: no further sweep */
    bool free_after; /* child_free was called; freed when reaped */
    struct tree tree; /* met while terminating */
    struct timer kill_timer;
};

struct fd_move {
    int target, source;
    int at; /* the source's number in the child */
};

struct job {
    struct list link;
    struct spawner *s;
    const struct child_ops *ops;
    void *owner;
    bool helper, sweep;
    struct spawn_opts opts; /* only if it has a `prepare` */
    /* The order. Pointers lead into `block`. */
    void *block;
    char **argv, **envp;
    const char *candidates[CANDIDATES_MAX + 1];
    const char *tty;
    int cwd_fd, null_fd;
    struct fd_move *moves;
    size_t n_moves;
    int top; /* highest target */
    struct slot *slot; /* NULL: the child gets a copy of all our descriptors */
    size_t in_slot;    /* of its numbers that stand for one of ours */
    struct spawn_limits limits;
    struct rlimit nofile;
    int64_t uid, gid;
    gid_t *groups;
    size_t n_groups;
    const char *oom_score;
    pid_t parent;
    struct cgroups *cgroups; /* NULL: start it in ours */
    struct placed placed;
    bool cleared;            /* the kernel has taken the handlers off */
    /* The result. */
    unsigned cgroup;
    bool born; /* the child has run its first instruction */
    bool not_parted; /* it could not part from our descriptors */
    _Atomic(pid_t) pid; /* written by the kernel before the child runs */
    int pidfd;
    int sys; /* errno of the step that failed */
    bool oom_failed;
    uint64_t started_ns;
};

/* --- in the child, between clone and exec ------------------------------------------------------- */

struct kernel_sigaction {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

/* No handler of ours may run here once signals are let through, and what is ignored would stay so after exec. */
IN_CHILD static void reset_signals(const struct job *j)
{
    struct kernel_sigaction now, dfl = {.handler = (void *)SIG_DFL};
    for (int sig = 1; sig <= N_SIGNALS; sig++) {
        if (j->cleared ? j->s->ignored >> (sig - 1) & 1
                       : RAW(SYS_rt_sigaction, sig, NULL, &now, sizeof(now.mask)) == 0 &&
                             now.handler != (void *)SIG_DFL)
            (void)RAW(SYS_rt_sigaction, sig, &dfl, NULL, sizeof(dfl.mask));
    }
}

IN_CHILD static int set_limit(int what, uint64_t soft, uint64_t hard)
{
    uint64_t now[2], want[2] = {soft, hard};
    if (RAW(SYS_prlimit64, 0, what, NULL, now) < 0)
        return -1;
    if (want[1] > now[1]) /* raising the hard limit is not ours to do */
        want[1] = now[1];
    if (want[0] > want[1])
        want[0] = want[1];
    return (int)RAW(SYS_prlimit64, 0, what, want, NULL);
}

/* A table of its own, with what lies below the slot's end. */
IN_CHILD static void part(struct job *j)
{
    if (j->slot && RAW(SYS_close_range, j->slot->fd[SLOT_FDS - 1] + 1, ~0U, CLOSE_RANGE_UNSHARE) < 0) {
        j->not_parted = true; /* before Linux 5.9, or a seccomp filter */
        (void)RAW(SYS_exit_group, 127);
    }
}

/* Sources that lie in the range of the targets move above it first, so that no dup2 overwrites one. */
IN_CHILD static int move_descriptors(struct job *j)
{
    for (size_t i = 0; i < j->n_moves; i++) {
        if (j->moves[i].at > j->top)
            continue;
        long up = RAW(SYS_fcntl, j->moves[i].at, F_DUPFD_CLOEXEC, j->top + 1);
        if (up < 0)
            return -1;
        j->moves[i].at = (int)up;
    }
    (void)RAW(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC); /* should a library have forgotten it */
    for (size_t i = 0; i < j->n_moves; i++) {
        if (RAW(SYS_dup3, j->moves[i].at, j->moves[i].target, 0) < 0)
            return -1;
    }
    return 0;
}

IN_CHILD static int open_terminal(const struct job *j)
{
    long fd = RAW(SYS_openat, AT_FDCWD, j->tty, O_RDWR, 0);
    if (fd < 0)
        return -1;
    if (RAW(SYS_ioctl, fd, TIOCSCTTY, 0) < 0)
        return -1;
    for (int target = 0; target < 3; target++) {
        if (fd != target && RAW(SYS_dup3, fd, target, 0) < 0)
            return -1;
    }
    if (fd > 2)
        (void)RAW(SYS_close, fd);
    return 0;
}

IN_CHILD static int become_user(const struct job *j)
{
    if (j->uid >= 0 || j->gid >= 0) {
        if (RAW(SYS_setgroups, j->n_groups, j->groups) < 0)
            return -1;
    }
    if (j->gid >= 0 && RAW(SYS_setresgid, (gid_t)j->gid, (gid_t)j->gid, (gid_t)j->gid) < 0)
        return -1;
    if (j->uid >= 0 && RAW(SYS_setresuid, (uid_t)j->uid, (uid_t)j->uid, (uid_t)j->uid) < 0)
        return -1;
    return 0;
}

IN_CHILD static void raise_oom_score(struct job *j)
{
    long fd = RAW(SYS_openat, j->s->proc_fd, "self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
    size_t len = 0;
    while (j->oom_score[len])
        len++;
    if (fd < 0 || RAW(SYS_write, fd, j->oom_score, len) < 0)
        j->oom_failed = true; /* we are not dumpable: the worker tries after exec */
    if (fd >= 0)
        (void)RAW(SYS_close, fd);
}

IN_CHILD static int set_limits(const struct job *j)
{
    const struct spawn_limits *l = &j->limits;
    if (l->open_files) {
        if (set_limit(RLIMIT_NOFILE, l->open_files, l->open_files) < 0)
            return -1;
    } else if (RAW(SYS_prlimit64, 0, RLIMIT_NOFILE, &j->nofile, NULL) < 0 && /* lowered since: as far as we may */
               set_limit(RLIMIT_NOFILE, j->nofile.rlim_cur, j->nofile.rlim_max) < 0) {
        return -1;
    }
    if (l->memory_bytes && set_limit(RLIMIT_AS, l->memory_bytes, l->memory_bytes) < 0)
        return -1;
    if (l->cpu_seconds && set_limit(RLIMIT_CPU, l->cpu_seconds, l->cpu_seconds + 1) < 0)
        return -1;
    return 0;
}

/* Every step that fails leaves through errno; only exec doesn't return. */
IN_CHILD static int prepare(struct job *j)
{
    reset_signals(j);
    if (j->tty && RAW(SYS_setsid) < 0)
        return -1;
    if ((j->cwd_fd >= 0 ? RAW(SYS_fchdir, j->cwd_fd) : RAW(SYS_chdir, "/")) < 0)
        return -1;
    part(j);
    if (move_descriptors(j) < 0)
        return -1;
    if (j->tty && open_terminal(j) < 0)
        return -1;
    raise_oom_score(j);
    if (set_limits(j) < 0 || become_user(j) < 0)
        return -1;
    /* After the user: a change of credentials clears it. */
    if (RAW(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return -1;
    if (RAW(SYS_getppid) != j->parent) /* the server died before it was set */
        (void)RAW(SYS_exit_group, 127);
    /* With a session comes a scheduling group (sched_autogroup), so that a program's hundred busy threads weigh no more
     * than the server and the next program: sixteen endless loops would make a start take 12 ms instead of 0.9. When very
     * many begin at once the kernel lets some groups wait, fewer when they are young: hence last. open_terminal needs it
     * earlier. */
    if (!j->tty && RAW(SYS_setsid) < 0)
        return -1;
    uint64_t none = 0;
    return (int)RAW(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none));
}

IN_CHILD static int child_main(void *data)
{
    struct job *j = data;
    j->born = true;
    if (j->placed.confined)
        place_free_both(&j->s->place, &j->placed);
    if (prepare(j) < 0) {
        j->sys = errno;
        (void)RAW(SYS_exit_group, 127);
    }
    /* As execvp: a directory that may not be entered is remembered, a missing file is not. */
    int denied = 0, last = ENOENT;
    for (const char *const *file = j->candidates; *file; file++) {
        (void)RAW(SYS_execve, *file, j->argv, j->envp);
        last = errno;
        if (last == EACCES)
            denied = EACCES;
        else if (last != ENOENT && last != ENOTDIR && last != ESTALE && last != ENODEV)
            break;
    }
    j->sys = (last == ENOENT || last == ENOTDIR) && denied ? denied : last;
    (void)RAW(SYS_exit_group, 127);
    return 127;
}

#if defined(__SANITIZE_THREAD__)
/* ThreadSanitizer's clone() takes the child for a fork and switches itself off in the memory that both share;
 * libc's other name for it is left alone. */
int __clone(int (*fn)(void *data), void *stack, int flags, void *data, ...);
#define clone __clone
#endif

/* --- on the worker -------------------------------------------------------------------------------- */

static void reap_failed(struct job *j, pid_t pid)
{
    siginfo_t info;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | __WALL) < 0 && errno == EINTR)
        ;
    if (j->pidfd >= 0)
        close(j->pidfd);
    j->pidfd = -1;
}

static void raise_oom_score_of(const struct job *j, pid_t pid)
{
    char path[48];
    snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
    autoclose int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, j->oom_score, strlen(j->oom_score)); /* a wish, not a need */
}

/* clone3 with a function and a stack, as clone has them; libc offers no such call. -1 with errno. */
static pid_t clone_into(struct clone_args *args, int (*fn)(void *data), void *data)
{
#if defined(__x86_64__)
    long ret = SYS_clone3;
    register int (*child_fn)(void *) __asm__("r8") = fn;
    register void *child_data __asm__("r9") = data;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %%r9, %%rdi\n\t"
                     "call *%%r8\n\t"
                     "ud2\n"
                     "1:"
                     : "+a"(ret)
                     : "D"(args), "S"(sizeof(*args)), "r"(child_fn), "r"(child_data)
                     : "rcx", "r11", "memory", "cc");
#elif defined(__aarch64__)
    register long number __asm__("x8") = SYS_clone3;
    register long ret __asm__("x0") = (long)args;
    register size_t size __asm__("x1") = sizeof(*args);
    register int (*child_fn)(void *) __asm__("x2") = fn;
    register void *child_data __asm__("x3") = data;
    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t"
                     "mov x0, x3\n\t"
                     "blr x2\n\t"
                     "brk #0\n"
                     "1:"
                     : "+r"(ret)
                     : "r"(number), "r"(size), "r"(child_fn), "r"(child_data)
                     : "memory", "cc");
#else
    long ret = -ENOSYS;
#endif
    if (ret >= 0)
        return (pid_t)ret;
    errno = (int)-ret;
    return -1;
}

/* By clone3, into the cgroup of that descriptor unless it is -1. -1 with errno. */
static pid_t clone3_child(struct job *j, char *stack, size_t size, int cgroup)
{
    struct clone_args args = {.flags = (uint64_t)CLONE_FLAGS | CLONE_PIDFD | CLONE_CLEAR_SIGHAND |
                                       (j->slot ? CLONE_FILES : 0) | (cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
                              .pidfd = (uintptr_t)&j->pidfd,
                              .child_tid = (uintptr_t)&j->pid,
                              .exit_signal = SIGCHLD,
                              .stack = (uintptr_t)stack,
                              .stack_size = size,
                              .cgroup = cgroup >= 0 ? (uint64_t)cgroup : 0};
    j->cleared = true;
    return clone_into(&args, child_main, j);
}

/* A want of processes, too, says nothing about the kernel. */
static bool is_want(int sys)
{
    return sys == EAGAIN || error_is_want(sys);
}

/* In a cgroup of its own; -1 when that can't be, and nothing has happened. *ret_killed: it has, but it was killed before
 * its first instruction. */
static pid_t clone_in_cgroup(struct job *j, char *stack, size_t size, bool *ret_killed)
{
    struct cgroup_lease lease;
    if (!j->cgroups || cgroups_take(j->cgroups, &lease) < 0)
        return -1;
    j->cgroup = lease.id;
    pid_t pid = clone3_child(j, stack, size, lease.fd);
    int sys = errno;
    *ret_killed = pid >= 0 && !j->born;
    if (pid < 0 && !is_want(sys) && sys != ENODEV)
        cgroups_off(j->cgroups); /* an old kernel, a seccomp filter, a cgroup not delegated to us */
    if (*ret_killed) {
        reap_failed(j, pid);
        pid = -1;
    }
    if (lease.close)
        close(lease.fd);
    if (pid < 0) {
        cgroups_put(j->cgroups, j->cgroup, *ret_killed ? CGROUP_KILLED : CGROUP_USED);
        j->cgroup = 0;
        j->pidfd = -1;
    }
    errno = sys;
    return pid;
}

/* By clone, where clone3 or its flags (Linux 5.5) are not to be had. */
static pid_t clone_child(struct job *j, char *stack, size_t size)
{
    const int flags = CLONE_FLAGS | SIGCHLD | (j->slot ? CLONE_FILES : 0);
    j->cleared = false;
    j->pidfd = -1;
    pid_t pid = clone(child_main, stack + size, flags | CLONE_PIDFD, j, &j->pidfd, NULL, (pid_t *)&j->pid);
    if (pid < 0 && errno == EINVAL) { /* before Linux 5.2 */
        j->pidfd = -1;
        pid = clone(child_main, stack + size, flags, j, NULL, NULL, (pid_t *)&j->pid);
    }
    return pid;
}

/* The way that this kernel knows. -1 with errno. */
static pid_t clone_any(struct job *j, char *stack, size_t size)
{
    for (size_t i = 0; i < j->n_moves && !j->slot; i++)
        j->moves[i].at = j->moves[i].source;
    pid_t pid = -1;
    bool no_clone3 = atomic_load(&j->s->no_clone3);
    if (!no_clone3) {
        bool killed = false;
        pid = clone_in_cgroup(j, stack, size, &killed);
        if (killed) /* by somebody's kill -9 -1, or by the kernel (process/cgroup.c), which would do so again */
            pid = clone_in_cgroup(j, stack, size, &killed);
        if (pid < 0 && killed)
            cgroups_off(j->cgroups);
        if (pid < 0)
            pid = clone3_child(j, stack, size, -1);
        no_clone3 = pid < 0 && !is_want(errno);
        if (no_clone3)
            atomic_store(&j->s->no_clone3, true);
    }
    return no_clone3 ? clone_child(j, stack, size) : pid;
}

static void leave_slot(struct job *j)
{
    if (!j->slot)
        return;
    while (j->in_slot > 0)
        (void)dup3(j->s->null_fd, j->slot->fd[--j->in_slot], O_CLOEXEC); /* can't fail: both are open */
    atomic_store(&j->slot->taken, false);
    j->slot = NULL;
}

/* Gives the program's ends low numbers. Without a slot, or with too many of them, things go on as they are. */
static void enter_slot(struct job *j)
{
    int high = 0; /* the lowest free numbers are given out, so this tells how many are open */
    for (size_t i = 0; i < j->n_moves; i++)
        high = j->moves[i].source > high ? j->moves[i].source : high;
    if (high < FEW_OPEN)
        return;
    for (size_t k = 0; k < SLOTS && !j->slot && !atomic_load(&j->s->no_slots); k++) {
        if (!atomic_exchange(&j->s->slots[k].taken, true))
            j->slot = &j->s->slots[k];
    }
    for (size_t i = 0; i < j->n_moves && j->slot; i++) {
        struct fd_move *m = &j->moves[i];
        m->at = m->source;
        if (m->source < j->slot->fd[0])
            continue;
        if (j->in_slot < SLOT_FDS && dup3(m->source, j->slot->fd[j->in_slot], O_CLOEXEC) >= 0)
            m->at = j->slot->fd[j->in_slot++];
        else
            leave_slot(j);
    }
}

static int fill_job(struct job *j, const struct spawn_opts *o);

static void job_run(void *data)
{
    struct job *j = data;
    if (j->opts.prepare) {
        j->sys = j->opts.prepare(j->opts.order, &j->opts);
        if (j->sys == 0 && fill_job(j, &j->opts) < 0)
            j->sys = ENOMEM;
        if (j->sys != 0)
            return;
    }
    char stack[CHILD_STACK] __attribute__((aligned(64)));
    uint64_t all = ~(uint64_t)0, before;

    /* No handler of ours may run in the child; bytewise, so that 32 and 33 are in. */
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof(all));
    j->started_ns = mono_ns();
    enter_slot(j);
    place_confine(&j->s->place, &j->placed);
    pid_t pid = clone_any(j, stack, sizeof(stack));
    if (pid >= 0 && j->not_parted) { /* again, and from now on, with a copy of all */
        atomic_store(&j->s->no_slots, true);
        reap_failed(j, pid);
        leave_slot(j);
        cgroups_put(j->cgroups, j->cgroup, CGROUP_USED);
        j->cgroup = 0;
        j->born = false;
        pid = clone_any(j, stack, sizeof(stack));
    }
    int clone_errno = pid < 0 ? errno : 0;
    place_free(&j->s->place, &j->placed);
    leave_slot(j);
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before));

    if (pid < 0) {
        j->sys = clone_errno;
        j->pidfd = -1;
        return;
    }
    atomic_store(&j->pid, pid);
    if (j->sys != 0)
        reap_failed(j, pid);
    else if (j->oom_failed)
        raise_oom_score_of(j, pid);
}

/* --- a child's end ---------------------------------------------------------------------------------- */

static void child_check(struct child *c);
static void kill_now(void *data);
static void stop_step(void *data);

static void child_release(struct child *c)
{
    timer_done(&c->kill_timer);
    tree_done(&c->tree);
    free(c);
}

static void unwatch(struct child *c)
{
    if (c->pidfd < 0)
        return;
    io_done(&c->io);
    loop_close(c->s->loop, c->pidfd);
    c->pidfd = -1;
}

struct tree_job {
    struct spawner *s;
    struct child *c; /* NULL: everything that descends from us */
    pid_t leader;
    int sig;
    unsigned cgroup;
    pid_t *skip; /* children of ours that are told otherwise */
    size_t n_skip;
    struct tree tree;
};

/* The leader is unreaped, so the group's number is its own. */
static void signal_group(pid_t leader, int sig)
{
    if (leader <= 0)
        return;
    (void)kill(-leader, sig);
    if (sig == SIGTERM || sig == SIGHUP)
        (void)kill(-leader, SIGCONT); /* a stopped one must wake up to act on it */
}

static void tree_run(void *data)
{
    struct tree_job *t = data;
    cgroups_members(t->s->cgroups, t->cgroup, &t->tree, t->leader);
    if (t->sig == SIGKILL) {
        tree_kill(&t->tree, t->leader);
        if (t->cgroup || !t->leader)
            cgroups_kill(t->s->cgroups, t->cgroup);
        return;
    }
    /* Collected first: once the leader is dead nobody knows whose its children were. */
    (void)(t->leader ? tree_collect(&t->tree, t->leader)
                     : tree_collect_own(&t->tree, t->skip, t->n_skip));
    signal_group(t->leader, t->sig);
    (void)tree_signal(&t->tree, t->leader, t->sig);
    if (t->sig == SIGTERM || t->sig == SIGHUP)
        (void)tree_signal(&t->tree, t->leader, SIGCONT);
}

static void tree_ran(void *data)
{
    struct tree_job *t = data;
    t->s->tree_jobs--;
    struct child *c = t->c;
    if (c) {
        tree_done(&c->tree);
        c->tree = t->tree;
        c->pinned = false;
        if (c->kill_due)
            kill_now(c);
        else if (c->ended)
            child_check(c);
    } else {
        tree_done(&t->tree);
    }
    free(t->skip);
    free(t);
}

/* Runs on a worker, for /proc is read; one at a time per child. -1: no memory, nothing done. */
static int tree_start(struct spawner *s, struct child *c, int sig, pid_t *skip, size_t n_skip)
{
    struct tree_job *t = calloc(1, sizeof(*t));
    if (!t)
        return -1;
    *t = (struct tree_job){
        .s = s, .c = c, .leader = c ? c->pid : 0, .sig = sig, .skip = skip, .n_skip = n_skip};
    if (c) {
        t->tree = c->tree;
        t->cgroup = c->cgroup;
    }
    if (loop_work(s->loop, WORK_SHORT, tree_run, tree_ran, t) < 0) {
        free(t);
        return -1;
    }
    s->tree_jobs++;
    if (c) {
        c->tree = (struct tree){0};
        c->pinned = true;
    }
    return 0;
}

static void kill_now(void *data)
{
    struct child *c = data;
    timer_stop(&c->kill_timer);
    if (c->reaped || c->killed)
        return;
    c->terminating = true;
    c->kill_due = c->pinned;
    if (c->kill_due)
        return;
    c->killed = true;
    if (tree_start(c->s, c, SIGKILL, NULL, 0) < 0)
        signal_group(c->pid, SIGKILL); /* without memory the group alone */
}

static void tidy_run(void *data)
{
    cgroups_tidy(((struct spawner *)data)->cgroups);
}

static void tidy_ran(void *data)
{
    struct spawner *s = data;
    s->tree_jobs--;
    s->tidying = false;
}

/* The program of this cgroup has been reaped. */
static void give_back(struct spawner *s, unsigned cgroup, enum cgroup_state state)
{
    cgroups_put(s->cgroups, cgroup, state);
    if (s->tidying || s->stopping || !cgroups_untidy(s->cgroups))
        return;
    s->tidying = loop_work(s->loop, WORK_SHORT, tidy_run, tidy_ran, s) == 0;
    s->tree_jobs += s->tidying;
}

/* For GET /metrics. */
static void count_end(struct spawner *s, int status)
{
    struct metrics *m = loop_metrics(s->loop);
    s->running--;
    m->programs--;
    if (WIFSIGNALED(status))
        m->ended_signal++;
    else if (WEXITSTATUS(status) == 0)
        m->ended_zero++;
    else
        m->ended_nonzero++;
}

/* As waitpid would give it. The child is left to be reaped. */
static bool has_ended(pid_t pid, int *ret_status)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
        return errno != ECHILD && waitpid(pid, ret_status, WNOHANG) == pid; /* some filters know no waitid */
    if (info.si_pid == 0)
        return false;
    *ret_status = info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status, 0)
                                             : info.si_status | (info.si_code == CLD_DUMPED ? WCOREFLAG : 0);
    return true;
}

static void reap_told(struct spawner *s)
{
    if (s->told)
        (void)waitpid(s->told, NULL, WNOHANG);
    s->told = 0;
}

/* It has ended (or this is a false alarm): sweep if that is due, then tell and reap. In this order, for the kernel takes
 * its time for the latter and somebody waits for an answer. */
static void child_check(struct child *c)
{
    int status = 0;
    if (c->reaped || !has_ended(c->pid, &status))
        return;
    if (c->pinned || ((c->terminating || c->sweep) && !c->killed)) { /* its number is still needed */
        c->ended = true;
        if (c->pidfd >= 0)
            (void)io_want(&c->io, 0); /* level-triggered: it stays readable until reaped */
        if (c->terminating || c->sweep)
            kill_now(c);
        if (c->pinned)
            return; /* tree_ran comes back */
    }

    struct spawner *s = c->s;
    reap_told(s);
    s->told = c->pid;
    c->status = status;
    c->reaped = true;
    give_back(s, c->cgroup, c->killed ? CGROUP_KILLED : CGROUP_USED);
    list_remove(&c->link);
    if (!c->helper)
        count_end(s, status);
    unwatch(c);
    timer_stop(&c->kill_timer);
    if (c->free_after)
        child_release(c);
    else if (c->ops)
        c->ops->exited(c->owner, c, status);
    reap_told(s);
}

static void on_pidfd(void *data, int events)
{
    struct child *c = data;
    child_check(c);
}

static struct child *find_child(struct spawner *s, pid_t pid)
{
    list_for_each(it, &s->children) {
        struct child *c = list_entry(it, struct child, link);
        if (c->pid == pid)
            return c;
    }
    return NULL;
}

static bool spawn_owns(struct spawner *s, pid_t pid)
{
    list_for_each(it, &s->jobs) {
        if (atomic_load(&list_entry(it, struct job, link)->pid) == pid)
            return true;
    }
    return false;
}

/* Collects orphans until none has ended, or one stands before them that isn't ours to collect yet. */
static void reap_orphans(void *data)
{
    struct spawner *s = data;
    struct signalfd_siginfo drain[8];
    while (read(s->chld_fd, drain, sizeof(drain)) > 0)
        ;
    (void)io_want(&s->chld_io, UV_READABLE);
    s->reap_again = false;
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0 || info.si_pid == 0)
            return;
        struct child *c = find_child(s, info.si_pid);
        if (c) {
            child_check(c);
            if (find_child(s, info.si_pid) == c) { /* a tree job uses it: later */
                timer_start(&s->reap_timer, REAP_PAUSE_MS);
                return;
            }
        } else if (spawn_owns(s, info.si_pid)) {
            s->reap_again = true;
            return;
        } else {
            (void)waitpid(info.si_pid, NULL, WNOHANG | __WALL);
        }
    }
}

static void on_sigchld(void *data, int events)
{
    struct spawner *s = data;
    (void)io_want(&s->chld_io, 0);
    if (!timer_running(&s->reap_timer))
        timer_start(&s->reap_timer, REAP_PAUSE_MS);
}

/* --- starting ------------------------------------------------------------------------------------------ */

static void job_free(struct job *j)
{
    free(j->block);
    free(j);
}

static void job_done(void *data)
{
    struct job *j = data;
    struct spawner *s = j->s;
    const struct child_ops *ops = j->ops;
    void *owner = j->owner;
    int sys = j->sys;
    struct child *c = NULL;

    list_remove(&j->link);
    if (sys == 0) {
        c = calloc(1, sizeof(*c));
        if (!c || (j->pidfd >= 0 && io_init(&c->io, s->loop, j->pidfd, on_pidfd, c) < 0)) {
            free(c);
            c = NULL;
            sys = ENOMEM;
            (void)kill(-j->pid, SIGKILL);
            if (j->pidfd >= 0)
                close(j->pidfd); /* it will be collected as an orphan */
        }
    }
    if (sys != 0)
        give_back(s, j->cgroup, CGROUP_USED);
    if (c) {
        *c = (struct child){.s = s,
                            .ops = ops,
                            .owner = owner,
                            .pid = j->pid,
                            .pidfd = j->pidfd,
                            .cgroup = j->cgroup,
                            .io = c->io,
                            .started_ns = j->started_ns,
                            .helper = j->helper,
                            .sweep = j->sweep,
                            .tty = j->tty != NULL};
        list_append(&s->children, &c->link);
        if (!c->helper) {
            s->running++;
            loop_metrics(s->loop)->programs++;
            loop_metrics(s->loop)->programs_started++;
        }
        timer_init(&c->kill_timer, s->loop, kill_now, c);
        if (c->pidfd >= 0)
            (void)io_want(&c->io, UV_READABLE);
    }
    if (!c && !j->helper && sys != SPAWN_REFUSED)
        loop_metrics(s->loop)->programs_failed++;
    void (*unused)(void *) = j->opts.unused;
    void *order = j->opts.order;
    job_free(j);
    if (s->reap_again && !timer_running(&s->reap_timer))
        timer_start(&s->reap_timer, 0);
    if (c && s->stopping)
        child_terminate(c, 0);
    ops->started(owner, c, sys);
    if (unused)
        unused(order);
}

/* Lengths first, then one block for everything that must outlive the call. */
struct packer {
    char *at;
    size_t need;
};

static void *pack(struct packer *p, const void *data, size_t size, size_t align)
{
    p->need = (p->need + align - 1) & ~(align - 1);
    void *to = p->at ? p->at + p->need : NULL;
    if (to && data)
        memcpy(to, data, size);
    p->need += size;
    return to;
}

static char *pack_string(struct packer *p, const char *s)
{
    return s ? pack(p, s, strlen(s) + 1, 1) : NULL;
}

static char **pack_strings(struct packer *p, char *const *v)
{
    size_t n = 0;
    while (v && v[n])
        n++;
    char **to = pack(p, NULL, (n + 1) * sizeof(*to), sizeof(*to));
    for (size_t i = 0; i < n; i++) {
        char *s = pack_string(p, v[i]);
        if (to)
            to[i] = s;
    }
    if (to)
        to[n] = NULL;
    return to;
}

static const char *path_of(char *const *envp)
{
    for (; envp && *envp; envp++) {
        if (strncmp(*envp, "PATH=", 5) == 0)
            return *envp + 5;
    }
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

/* file in each directory of PATH; an empty entry is the working directory. */
static void pack_candidates(struct packer *p, struct job *j, const char *file, char *const *envp)
{
    size_t n = 0, name_len = strlen(file);
    if (strchr(file, '/') || !*file) {
        j->candidates[n++] = pack_string(p, file);
    } else {
        for (const char *at = path_of(envp); n < CANDIDATES_MAX;) {
            size_t len = strcspn(at, ":");
            char *s = pack(p, NULL, len + name_len + 2, 1);
            if (s) {
                memcpy(s, at, len);
                size_t slash = len > 0;
                if (slash)
                    s[len] = '/';
                memcpy(s + len + slash, file, name_len + 1);
            }
            j->candidates[n++] = s;
            if (!at[len])
                break;
            at += len + 1;
        }
    }
    j->candidates[n] = NULL;
}

static void pack_order(struct packer *p, struct job *j, const struct spawn_opts *o)
{
    p->need = 0;
    j->argv = o->prepare ? (char **)o->argv : pack_strings(p, o->argv); /* such an order lives as long as the job */
    j->envp = o->prepare ? (char **)o->envp : pack_strings(p, o->envp);
    pack_candidates(p, j, o->file, o->envp);
    j->tty = pack_string(p, o->tty);
    j->groups = pack(p, o->groups, o->n_groups * sizeof(*o->groups), sizeof(gid_t));
    j->n_moves = (o->tty ? 0 : 3) + o->n_extra;
    j->moves = pack(p, NULL, j->n_moves * sizeof(*j->moves), sizeof(int));
}

/* Copies what must outlive the call. -1: no memory. */
static int fill_job(struct job *j, const struct spawn_opts *o)
{
    j->cwd_fd = o->cwd_fd;
    j->limits = o->limits;
    j->uid = o->uid;
    j->gid = o->gid;
    j->n_groups = o->n_groups;
    struct packer p = {0};
    pack_order(&p, j, o);
    p.at = j->block = malloc(p.need);
    if (!p.at)
        return -1;
    pack_order(&p, j, o);

    size_t n = 0;
    for (int i = 0; i < 3 && !o->tty; i++)
        j->moves[n++] = (struct fd_move){.target = i, .source = o->fds[i] >= 0 ? o->fds[i] : j->s->null_fd};
    for (size_t i = 0; i < o->n_extra; i++) {
        j->moves[n++] = (struct fd_move){.target = o->extra[i].child_fd, .source = o->extra[i].fd};
        if (o->extra[i].child_fd > j->top)
            j->top = o->extra[i].child_fd;
    }
    return 0;
}

int spawn_start(struct spawner *s, const struct spawn_opts *o, const struct child_ops *ops, void *owner,
                struct abx_error *err)
{
    if (s->stopping)
        return abx_fail(err, E_STOPPING, 0, "The server is stopping");
    reap_told(s); /* it counts among the processes that a cgroup or a user may have */
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    *j = (struct job){.s = s,
                      .ops = ops,
                      .owner = owner,
                      .helper = o->helper,
                      .sweep = o->sweep,
                      .nofile = s->nofile,
                      .oom_score = s->oom_score,
                      .parent = getpid(),
                      /* What is started from a terminal, or from a helper that lives on, may outlive it. */
                      .cgroups = o->tty || (o->helper && !o->sweep) ? NULL : s->cgroups,
                      .pidfd = -1,
                      .top = 2};
    if (o->prepare)
        j->opts = *o;
    list_append(&s->jobs, &j->link);
    if ((!o->prepare && fill_job(j, o) < 0) || loop_work(s->loop, WORK_SHORT, job_run, job_done, j) < 0) {
        list_remove(&j->link);
        job_free(j);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    return 0;
}

/* --- a child's life -------------------------------------------------------------------------------------- */

pid_t child_pid(const struct child *c)
{
    return c->pid;
}

bool child_running(const struct child *c)
{
    return !c->reaped;
}

int child_status_code(int status)
{
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int child_exit_code(const struct child *c)
{
    return child_status_code(c->status);
}

uint64_t child_started_ns(const struct child *c)
{
    return c->started_ns;
}

int child_signal(struct child *c, int sig)
{
    if (c->reaped || c->ended) {
        errno = ESRCH;
        return -1;
    }
    return kill(c->pid, sig); /* unreaped, and only this thread reaps: the number is its own */
}

void child_kill_group(struct child *c, int sig)
{
    if (c->reaped)
        return;
    if (sig == SIGKILL) {
        child_terminate(c, 0);
        return;
    }
    if (c->pinned || tree_start(c->s, c, sig, NULL, 0) < 0)
        signal_group(c->pid, sig);
}

void child_terminate(struct child *c, uint32_t grace_ms)
{
    if (c->reaped)
        return;
    bool first = !c->terminating;
    c->terminating = true;
    if (grace_ms == 0) {
        kill_now(c);
        return;
    }
    if (!first && (!timer_running(&c->kill_timer) || c->kill_timer.due <= mono_ms() + grace_ms))
        return;
    if (first) {
        if (c->tty)
            signal_group(c->pid, SIGHUP);
        if (c->pinned || tree_start(c->s, c, SIGTERM, NULL, 0) < 0)
            signal_group(c->pid, SIGTERM);
    }
    timer_start(&c->kill_timer, grace_ms);
}

void child_free(struct child *c, bool kill_it)
{
    if (!c)
        return;
    c->ops = NULL;
    c->owner = NULL;
    if (c->reaped) {
        child_release(c);
        return;
    }
    c->free_after = true;
    if (kill_it)
        child_terminate(c, 0);
}

/* --- the spawner -------------------------------------------------------------------------------------------- */

static void read_oom_score(struct spawner *s)
{
    char text[32] = "0";
    autoclose int fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, text, sizeof(text) - 1);
        text[n > 0 ? n : 0] = '\0';
    }
    long score = strtol(text, NULL, 10) + OOM_SCORE_STEP;
    snprintf(s->oom_score, sizeof(s->oom_score), "%d", (int)(score > 1000 ? 1000 : score));
}

/* What we were started with. All that we open ourselves is CLOEXEC from birth. */
static void keep_inherited(void)
{
    if (syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
        return;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        int fd = atoi(e->d_name);
        if (fd > 2)
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    if (d)
        closedir(d);
}

static void free_slots(struct spawner *s)
{
    for (size_t i = 0; i < SLOTS * SLOT_FDS; i++) {
        int fd = s->slots[i / SLOT_FDS].fd[i % SLOT_FDS];
        if (fd >= 0)
            close(fd);
    }
}

/* After null_fd and proc_fd, which children need below their slot; before anything else is opened. */
static void make_slots(struct spawner *s)
{
    int last = s->null_fd > s->proc_fd ? s->null_fd : s->proc_fd;
    bool some = s->null_fd >= 0 && s->nofile.rlim_cur >= SLOTS_MIN_NOFILE;
    for (size_t i = 0; i < SLOTS * SLOT_FDS; i++) {
        int fd = some ? fcntl(s->null_fd, F_DUPFD_CLOEXEC, last + 1) : -1;
        s->slots[i / SLOT_FDS].fd[i % SLOT_FDS] = fd;
        some = fd >= 0;
        last = fd;
    }
    atomic_store(&s->no_slots, !some);
}

/* What it holds, and itself. */
static void release(struct spawner *s)
{
    if (s->null_fd >= 0)
        close(s->null_fd);
    if (s->chld_fd >= 0)
        close(s->chld_fd);
    if (s->proc_fd >= 0)
        close(s->proc_fd);
    place_done(&s->place);
    free_slots(s);
    cgroups_free(s->cgroups);
    free(s);
}

struct spawner *spawner_new(struct loop *loop)
{
    struct spawner *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->loop = loop;
    list_init(&s->children);
    list_init(&s->jobs);
    timer_init(&s->reap_timer, loop, reap_orphans, s);
    timer_init(&s->stop_timer, loop, stop_step, s);
    if (getrlimit(RLIMIT_NOFILE, &s->nofile) < 0)
        s->nofile = (struct rlimit){1024, 4096};
    read_oom_score(s);
    keep_inherited();
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* Linux >= 3.4; without it orphans go to PID 1 */

    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    (void)pthread_sigmask(SIG_BLOCK, &chld, NULL);
    for (int sig = 1; sig <= N_SIGNALS; sig++) {
        struct kernel_sigaction now;
        if (syscall(SYS_rt_sigaction, sig, NULL, &now, sizeof(now.mask)) == 0 && now.handler == (void *)SIG_IGN)
            s->ignored |= (uint64_t)1 << (sig - 1);
    }
    s->ignored |= (uint64_t)1 << (SIGPIPE - 1); /* we do, sooner or later */
    signal(SIGCHLD, SIG_DFL); /* ignored by whoever started us, the kernel would throw exit codes away */
    place_init(&s->place);
    s->cgroups = cgroups_new();
    s->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    s->proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    make_slots(s);
    s->chld_fd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    if (!s->cgroups || s->null_fd < 0 || s->chld_fd < 0 || io_init(&s->chld_io, loop, s->chld_fd, on_sigchld, s) < 0) {
        release(s);
        return NULL;
    }
    (void)io_want(&s->chld_io, UV_READABLE);
    return s;
}

bool spawner_stopping(const struct spawner *s)
{
    return s->stopping;
}

size_t spawner_running(const struct spawner *s)
{
    return s->running;
}

int spawner_null_fd(const struct spawner *s)
{
    return s->null_fd;
}

/* Looks every few milliseconds: orphans tell nobody when they end but SIGCHLD. */
static void stop_step(void *data)
{
    struct spawner *s = data;
    reap_orphans(s);
    siginfo_t info;
    bool none = list_empty(&s->jobs) && s->tree_jobs == 0 && list_empty(&s->children) &&
                waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0 && errno == ECHILD;
    uint64_t now = mono_ms();
    if (none || (now >= s->give_up_at && s->tree_jobs == 0 && list_empty(&s->jobs))) {
        if (!none)
            log_warn("stop: some child processes could not be ended");
        void (*done)(void *) = s->stop_done;
        s->stop_done = NULL;
        if (done)
            done(s->stop_data);
        return;
    }
    if (now >= s->kill_at && !s->killed) {
        s->killed = true;
        (void)tree_start(s, NULL, SIGKILL, NULL, 0); /* children have it already */
    }
    timer_start(&s->stop_timer, STOP_POLL_MS);
}

void spawner_stop(struct spawner *s, uint32_t grace_ms, void (*done)(void *data), void *data)
{
    s->stopping = true;
    s->stop_done = done;
    s->stop_data = data;
    s->kill_at = mono_ms() + grace_ms;
    s->give_up_at = s->kill_at + KILL_WAIT_MS;
    size_t n = 0;
    list_for_each(it, &s->children)
        n++;
    pid_t *leaders = calloc(n + 1, sizeof(*leaders));
    n = 0;
    list_for_each_safe(it, &s->children) {
        struct child *c = list_entry(it, struct child, link);
        if (leaders)
            leaders[n++] = c->pid;
        child_terminate(c, grace_ms);
    }
    /* Orphans have nobody else who tells them. */
    if (!leaders || grace_ms == 0 || tree_start(s, NULL, SIGTERM, leaders, n) < 0)
        free(leaders);
    timer_start(&s->stop_timer, 0);
}

void spawner_free(struct spawner *s)
{
    if (!s)
        return;
    list_for_each_safe(it, &s->children) {
        struct child *c = list_entry(it, struct child, link);
        list_remove(&c->link);
        unwatch(c);
        c->reaped = true;
        if (c->free_after)
            child_release(c);
    }
    timer_done(&s->reap_timer);
    timer_done(&s->stop_timer);
    io_done(&s->chld_io);
    release(s);
}
