#pragma once
/* Where a program begins. A worker that waits for its child's exec leaves its processor free, and that processor has in its
 * caches what the child needs; the kernel doesn't know and begins the child on another. So the worker confines itself to
 * its processor for the moment of the clone and the child inherits that. First of all the child frees both: at exec the
 * worker wakes up, and must not wait for its own program then. A short program is done about a tenth sooner; on a virtual machine,
 * where a processor runs faster while the other sleeps, it can be a quarter.
 *
 * Only while fewer threads run than there are processors (/proc/loadavg): where the worker's has others waiting, one of
 * them would go on first and the child could not move away. And only while nobody has changed the server's processors since
 * its start (taskset, a cpuset); who does so during a clone is left alone too. A kernel or a filter that refuses changes
 * nothing. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PLACE_WORDS 128 /* 8,192 processors, the kernel's most */

struct place {
    unsigned long found[PLACE_WORDS]; /* what the server may run on */
    unsigned long all[PLACE_WORDS];   /* what puts it back: everything, where only a cpuset bounds us and may change later */
    size_t size;                      /* bytes of both in use */
    size_t n;                         /* processors found */
    int load_fd;                      /* /proc/loadavg; -1: none, then nobody is confined */
};

/* A clone in progress. */
struct placed {
    bool confined;
    bool freed; /* by the child */
    int cpu;
    pid_t worker;
};

/* On the thread whose settings all others inherit, before there are others. */
void place_init(struct place *p);
void place_done(struct place *p);
/* On the worker, around the clone. */
void place_confine(const struct place *p, struct placed *ret);
void place_free(const struct place *p, const struct placed *at);
/* In the child. */
void place_free_both(const struct place *p, struct placed *at);
