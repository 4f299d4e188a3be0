#include "process/tree.h"

/* The kernel lists a thread's children in /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN); where it
 * does not, all of /proc is read once per round and searched by parent. */

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/own.h"

#define ROUNDS_MAX 16 /* a fork bomb that outruns this many rounds is left to the group's KILL */

void tree_done(struct tree *t)
{
    free(t->members);
    *t = (struct tree){0};
}

/* Reads a small file of /proc; returns the length, NUL-terminated, or -1. */
static ssize_t read_small(int dirfd, const char *path, char *buf, size_t size)
{
    autoclose int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buf, size - 1);
    if (n < 0)
        return -1;
    buf[n] = '\0';
    return n;
}

int tree_read_stat(pid_t pid, struct tree_stat *ret)
{
    char path[32], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (read_small(AT_FDCWD, path, text, sizeof(text)) <= 0)
        return -1;
    char *at = strrchr(text, ')'); /* the name may hold anything, also ") " */
    if (!at)
        return -1;
    int ppid, pgrp, session;
    unsigned long long start;
    char state;
    if (sscanf(at + 1,
               " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &state, &ppid, &pgrp, &session, &start) != 5)
        return -1;
    *ret = (struct tree_stat){
        .ppid = ppid, .pgrp = pgrp, .session = session, .start = start, .state = state};
    return 0;
}

static bool has(const struct tree *t, pid_t pid, uint64_t start)
{
    for (size_t i = 0; i < t->n; i++) {
        if (t->members[i].pid == pid && t->members[i].start == start)
            return true;
    }
    return false;
}

/* False when it is known already, can't be kept, or must never be signalled. */
static bool add(struct tree *t, pid_t pid, uint64_t start)
{
    if (pid <= 1 || pid == getpid() || has(t, pid, start))
        return false;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 16;
        if (cap > TREE_MAX)
            return false;
        struct tree_member *more = realloc(t->members, cap * sizeof(*more));
        if (!more)
            return false;
        t->members = more;
        t->cap = cap;
    }
    t->members[t->n++] = (struct tree_member){.pid = pid, .start = start};
    return true;
}

void tree_add(struct tree *t, pid_t pid)
{
    struct tree_stat st;
    if (tree_read_stat(pid, &st) == 0)
        (void)add(t, pid, st.start);
}

typedef size_t (*visit_fn)(struct tree *t, pid_t pid, pid_t parent, pid_t leader);

static size_t visit_child(struct tree *t, pid_t pid, pid_t parent, pid_t leader)
{
    struct tree_stat st;
    if (pid == leader || tree_read_stat(pid, &st) < 0 || st.ppid != parent)
        return 0;
    return add(t, pid, st.start);
}

/* An inherited orphan: ours by parentage, the leader's by session. */
static size_t visit_orphan(struct tree *t, pid_t pid, pid_t parent, pid_t leader)
{
    if (pid == leader || getsid(pid) != leader)
        return 0;
    return visit_child(t, pid, parent, leader);
}

static size_t scan_all(struct tree *t, pid_t parent, pid_t leader, visit_fn visit)
{
    DIR *proc = opendir("/proc");
    if (!proc)
        return 0;
    size_t found = 0;
    for (struct dirent *e; (e = readdir(proc));) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        struct tree_stat st;
        if (tree_read_stat(pid, &st) == 0 && st.ppid == parent)
            found += visit(t, pid, parent, leader);
    }
    closedir(proc);
    return found;
}

/* Calls visit for the pids of one children file; -1 when there is no such file. */
static int scan_file(struct tree *t, int taskdir, const char *tid, pid_t parent, pid_t leader,
                     visit_fn visit, size_t *found)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/children", tid);
    autoclose int fd = openat(taskdir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    char buf[4096];
    pid_t pid = 0;
    for (ssize_t n; (n = read(fd, buf, sizeof(buf))) > 0;) {
        for (ssize_t i = 0; i < n; i++) {
            if (buf[i] >= '0' && buf[i] <= '9') {
                pid = pid * 10 + (buf[i] - '0');
            } else if (pid) {
                *found += visit(t, pid, parent, leader);
                pid = 0;
            }
        }
    }
    return 0;
}

static size_t children_of(struct tree *t, pid_t parent, pid_t leader, visit_fn visit)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/task", (int)parent);
    DIR *tasks = opendir(path);
    if (!tasks)
        return 0;
    size_t found = 0, files = 0, threads = 0;
    for (struct dirent *e; (e = readdir(tasks));) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        threads++;
        if (scan_file(t, dirfd(tasks), e->d_name, parent, leader, visit, &found) == 0)
            files++;
    }
    closedir(tasks);
    if (threads > 0 && files == 0 && access("/proc/self/task", F_OK) == 0 &&
        access("/proc/thread-self/children", F_OK) < 0)
        return scan_all(t, parent, leader, visit);
    return found;
}

size_t tree_collect(struct tree *t, pid_t leader)
{
    size_t found = children_of(t, leader, leader, visit_child);
    found += children_of(t, getpid(), leader, visit_orphan);
    for (size_t i = 0; i < t->n; i++) /* grows while it runs: breadth first */
        found += children_of(t, t->members[i].pid, leader, visit_child);
    return found;
}

/* Forgets the last members from `from` on that are listed in skip. */
static void drop(struct tree *t, size_t from, const pid_t *skip, size_t n_skip)
{
    size_t kept = from;
    for (size_t i = from; i < t->n; i++) {
        bool skipped = false;
        for (size_t k = 0; k < n_skip && !skipped; k++)
            skipped = skip[k] == t->members[i].pid;
        if (!skipped)
            t->members[kept++] = t->members[i];
    }
    t->n = kept;
}

size_t tree_collect_own(struct tree *t, const pid_t *skip, size_t n_skip)
{
    size_t before = t->n;
    size_t found = children_of(t, getpid(), 0, visit_child);
    drop(t, before, skip, n_skip);
    for (size_t i = 0; i < t->n; i++)
        found += children_of(t, t->members[i].pid, 0, visit_child);
    return found;
}

static bool signal_member(const struct tree_member *m, pid_t except, int sig)
{
    autoclose int fd = (int)syscall(SYS_pidfd_open, m->pid, 0);
    struct tree_stat st;
    if (tree_read_stat(m->pid, &st) < 0 || st.start != m->start ||
        (except && st.pgrp == except))
        return false;
    if (fd < 0) /* a kernel without pidfds: a race of microseconds is left */
        return kill(m->pid, sig) == 0;
    return syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0) == 0;
}

size_t tree_signal(const struct tree *t, pid_t except, int sig)
{
    size_t reached = 0;
    for (size_t i = 0; i < t->n; i++)
        reached += signal_member(&t->members[i], except, sig);
    return reached;
}

void tree_kill(struct tree *t, pid_t leader)
{
    size_t stopped = 0;
    if (leader > 0)
        (void)kill(leader, SIGSTOP); /* unreaped, so the number is its own */
    for (int round = 0; round < ROUNDS_MAX; round++) {
        if (leader > 0)
            (void)tree_collect(t, leader);
        else
            (void)tree_collect_own(t, NULL, 0);
        if (stopped == t->n)
            break;
        for (; stopped < t->n; stopped++)
            (void)signal_member(&t->members[stopped], 0, SIGSTOP);
    }
    if (leader > 0)
        (void)kill(-leader, SIGKILL); /* the number stays reserved while the leader is unreaped */
    (void)tree_signal(t, 0, SIGKILL);
}
