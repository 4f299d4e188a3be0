#pragma once
/* A cgroup (v2) per program, so that a daemon which has forked away from everything is still known
 * as its program's and ends with it (cgroup.kill).
 *
 * They lie in one directory of ours, abx-PID-START-NAMESPACE, below the cgroup that this server
 * runs in. An empty one is used again: mkdir and rmdir, the costly part, are off the way of a
 * start. Where there is no cgroup v2 that we may write to, or no clone3 and cgroup.kill
 * (Linux 5.14), everything here does nothing. Any thread unless it says otherwise. */

#include <stdbool.h>
#include <sys/types.h>

#include "process/tree.h"

#define CGROUPS_IDLE_MAX 12 /* empty ones that are kept for the next programs */

struct cgroups;

struct cgroups *cgroups_new(void); /* NULL: no memory. Touches nothing yet */
/* Removes all that are empty, and our directory. Blocks for 50 ms at most. */
void cgroups_free(struct cgroups *cg);

/* An empty cgroup for one program. `fd` (O_PATH) is for CLONE_INTO_CGROUP; where `close` is set the caller closes it.
 * The number (> 0) is given back with cgroups_put once the program is reaped. */
struct cgroup_lease {
    unsigned id;
    int fd;
    bool close;
};
/* -1: none to be had, start it without. On a worker: the first call finds out where we are. */
int cgroups_take(struct cgroups *cg, struct cgroup_lease *ret);
/* What is left running in it keeps it from being used again until that has ended. One that has had
 * cgroups_kill is never used again. */
enum cgroup_state { CGROUP_USED, CGROUP_KILLED };
void cgroups_put(struct cgroups *cg, unsigned id, enum cgroup_state state);
/* The kernel does not start programs in ours: not tried again. */
void cgroups_off(struct cgroups *cg);

/* Adds all that run in it to t, but not the leader. id 0: nobody. On a worker. */
void cgroups_members(struct cgroups *cg, unsigned id, struct tree *t, pid_t leader);
/* KILL for all that run in it; id 0: in all of ours. On a worker. */
void cgroups_kill(struct cgroups *cg, unsigned id);

/* True when cgroups_tidy has something to do: more of them than we keep, or, once, what dead
 * servers left. */
bool cgroups_untidy(struct cgroups *cg);
/* Removes the killed ones, and the idle ones beyond CGROUPS_IDLE_MAX. The first call also ends what
 * servers that were killed hard have left running in theirs, and removes those. On a worker; takes
 * up to 100 ms. */
void cgroups_tidy(struct cgroups *cg);
