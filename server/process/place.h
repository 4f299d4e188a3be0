#pragma once
/* Where a program begins. A worker that waits for its child's exec leaves its processor free, and that processor has in its
 * caches what the child needs; the kernel doesn't know and begins the child on another. So the worker confines itself to
 * its processor for the moment of the clone, the child inherits that and frees itself first of all; exec and
 * everything later happen wherever the kernel likes. On a virtual machine, where the processor left alone sleeps deeper and the
 * one in use runs faster, that is worth a tenth to a quarter of a short program's time.
 *
 * Only while fewer threads run than there are processors (/proc/loadavg): where the worker's has others waiting, one of
 * them would go on first and the child could not move away. And only while nobody has changed the server's processors since
 * its start (taskset, a cpuset): what is put back is what was found then. A kernel or a filter that refuses changes
 * nothing. */

#include <stdbool.h>
#include <stddef.h>

#define PLACE_WORDS 128 /* 8,192 processors, the kernel's most */

struct place {
    unsigned long found[PLACE_WORDS]; /* what the server may run on */
    unsigned long all[PLACE_WORDS];   /* what puts it back: everything, where only a cpuset bounds us and may change later */
    size_t size;                      /* bytes of both in use */
    size_t n;                         /* processors found */
    int load_fd;                      /* /proc/loadavg; -1: none, then nobody is confined */
};

/* On the thread whose settings all others inherit. */
void place_init(struct place *p);
void place_done(struct place *p);
/* Confines the calling thread to the processor it runs on; false: it was left as it is. */
bool place_confine(const struct place *p);
void place_free(const struct place *p);
