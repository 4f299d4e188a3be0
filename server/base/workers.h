#pragma once
/* Threads that take what would block the loop. libuv has a pool too; this one wakes a thread without holding a lock that
 * the thread needs (on one processor that costs two further switches each way), and wakes the one that has worked last,
 * whose memory is warm. */

struct workers;

/* `max` threads, which start with the first work and stay; fewer while there are none to be had. NULL: no memory. */
struct workers *workers_new(unsigned max);
/* Runs what is queued, then ends the threads. */
void workers_free(struct workers *w);

struct work {
    struct work *next;
    void (*fn)(struct work *work); /* on a worker; it may free the work */
};

/* In the order of the calls, from one thread. 0, or -1: no thread to be had, and none there. */
int workers_run(struct workers *w, struct work *work);
