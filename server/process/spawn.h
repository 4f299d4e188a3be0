#pragma once
/* The one way to start a program: a vfork-like clone on a worker, its exit awaited with a pidfd on the
 * loop. (posix_spawn can't set PDEATHSIG, rlimits, the user, the OOM score or hand over a pidfd, and a
 * helper executable between would cost a second exec.)
 *
 * The child leads its own session and process group, has the default signal mask and dispositions, only
 * the descriptors given (0-2 and `extra`), the server's original RLIMIT_NOFILE, oom_score_adj +500, and
 * gets KILL when the server is killed hard. Where cgroup v2 is ours to write it also has a cgroup of its own
 * (process/cgroup.h; not with a `tty`, nor helpers without `sweep`): signals for its tree reach all in there too,
 * and KILL nobody in there survives.
 *
 * The server is the reaper of its descendants (PR_SET_CHILD_SUBREAPER, or as PID 1): orphans are
 * collected too. Nobody else in the program may wait for children. Everything here: loop thread. */

#include "base/error.h"
#include "base/loop.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct spawner; /* one per app: counts children, reaps orphans when PID 1 */

/* Blocks SIGCHLD in the calling thread (a signalfd reads it), so call it before any other thread is
 * started; remembers RLIMIT_NOFILE for the children, so call it before raising that. NULL: no memory
 * or no descriptors. */
struct spawner *spawner_new(struct loop *loop);
/* TERM to every group, KILL after grace_ms; done when no child is left (or 1 s after KILL). */
void spawner_stop(struct spawner *s, uint32_t grace_ms, void (*done)(void *data), void *data);
void spawner_free(struct spawner *s);

bool spawner_stopping(const struct spawner *s);
/* Programs that run now, without helpers. */
size_t spawner_running(const struct spawner *s);
/* /dev/null, open for reading and writing, as long as the spawner lives. */
int spawner_null_fd(const struct spawner *s);

struct spawn_extra {
    int child_fd; /* >= 3 */
    int fd;       /* ours; borrowed until `started` */
};

struct spawn_limits { /* 0 = inherit */
    uint64_t memory_bytes; /* RLIMIT_AS */
    uint64_t cpu_seconds;  /* RLIMIT_CPU */
    uint64_t open_files;   /* RLIMIT_NOFILE */
};

struct spawn_opts {
    const char *file;        /* absolute path, or a bare name to look up in PATH of envp */
    char *const *argv;       /* copied */
    char *const *envp;       /* copied */
    int cwd_fd;              /* O_PATH directory, borrowed until `started`; -1: "/" */
    int fds[3];              /* 0-2 of the child, borrowed until `started`; -1: /dev/null */
    const char *tty;         /* path of a PTY slave: opened as 0-2, made the controlling terminal; else NULL */
    const struct spawn_extra *extra;
    size_t n_extra;
    struct spawn_limits limits;
    int64_t uid, gid;        /* -1: ours (needs CAP_SETUID, CAP_SETGID) */
    const gid_t *groups;     /* supplementary groups when uid is set; copied */
    size_t n_groups;
    bool helper;             /* not counted as a user's process (command host, browser) */
    bool sweep;              /* what is left of it when the leader has ended gets KILL before `exited` */
    /* Optional. `prepare` runs on the worker first and finds the rest of the order, whatever may have to wait for a
     * disk: file, argv, envp, cwd_fd, limits, user. 0, or what `started` gets: an errno, or SPAWN_REFUSED when the
     * order itself knows why. From a spawn_start that succeeded on the order lives until `unused` is called, on the
     * loop, after `started` (also when the owner has left meanwhile). */
    int (*prepare)(void *order, struct spawn_opts *o);
    void (*unused)(void *order);
    void *order;
};

#define SPAWN_REFUSED (-1)

struct child;

struct child_ops {
    /* The program runs (sys 0; child valid) or could not be started (sys = exec's errno or what `prepare` returned,
     * child NULL and no other call follows). Always called on the loop, never from within spawn_start. */
    void (*started)(void *owner, struct child *child, int sys);
    /* It has ended, and will be reaped when this returns. status as waitpid gives it. The child stays valid until
     * child_free. */
    void (*exited)(void *owner, struct child *child, int status);
};

/* Errors: E_NO_MEMORY, E_STOPPING. Copies what it needs; descriptors are the caller's again at `started`. */
int spawn_start(struct spawner *s, const struct spawn_opts *opts, const struct child_ops *ops, void *owner,
                struct abx_error *err);

pid_t child_pid(const struct child *c);
bool child_running(const struct child *c);
int child_exit_code(const struct child *c); /* 0..255, or -signal */
int child_status_code(int status);          /* the same for a wait status */
uint64_t child_started_ns(const struct child *c); /* mono_ns at spawn */

/* Only the leader, through its pidfd: a recycled pid is never hit. -1 with ESRCH when it has ended. */
int child_signal(struct child *c, int sig);
/* The whole group and what descends from it. Never fails visibly. */
void child_kill_group(struct child *c, int sig);
/* TERM (and HUP, for one with a `tty`) to the group and what descends from it, KILL after grace_ms unless all of it is gone; what is left
 * when the leader has ended gets KILL before `exited` is called. grace_ms 0: KILL at once. A second call
 * can only shorten the grace. */
void child_terminate(struct child *c, uint32_t grace_ms);
/* Forgets the owner (no more calls); a running child is left alone unless kill_it. */
void child_free(struct child *c, bool kill_it);
