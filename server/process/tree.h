#pragma once
/* Who descends from a process, and signals for all of them. Everything here reads /proc and may take
 * milliseconds: any thread, best a worker. Nothing is shared between calls.
 *
 * A member is known by pid *and* start time, and is signalled through a pidfd whose start time was
 * compared after it was opened: a recycled pid is never hit. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tree_member {
    pid_t pid;
    uint64_t start; /* clock ticks since boot, proc(5) stat field 22 */
};

#define TREE_MAX 8192 /* members remembered; what is beyond is reached through its process group only */

struct tree {
    struct tree_member *members;
    size_t n, cap;
};

void tree_done(struct tree *t);

struct tree_stat {
    pid_t ppid, pgrp, session;
    uint64_t start;
    char state; /* 'R', 'S', 'Z', ... */
};

/* 0, or -1 when there is no such process. */
int tree_read_stat(pid_t pid, struct tree_stat *ret);

/* Adds one process, if there is such; never this one or PID 1. */
void tree_add(struct tree *t, pid_t pid);

/* Adds what descends from `leader` (not the leader itself), from the members already there, and the
 * orphans of the leader's session that this process has inherited as their reaper.
 * The leader must be a child that nobody reaps meanwhile. Returns how many were new. */
size_t tree_collect(struct tree *t, pid_t leader);

/* Adds every descendant of this process, except the children named in skip and what descends from them. */
size_t tree_collect_own(struct tree *t, const pid_t *skip, size_t n_skip);

/* Sends sig to each member that still is who it was, but not to those of the process group `except`
 * (0: none), who have had it. Returns how many were reached. */
size_t tree_signal(const struct tree *t, pid_t except, int sig);

/* Ends leader, its group and everything that descends from it: all of them are stopped first, so that
 * none can fork while the others die. The leader must be a child that nobody reaps meanwhile (it may
 * have ended already). Members that are there already end too. leader 0: everything that descends from this
 * process. */
void tree_kill(struct tree *t, pid_t leader);
