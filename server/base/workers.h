#pragma once
/* Threads that take what would block the loop. libuv has a pool too; this one wakes a thread without holding a lock that
 * the thread needs (on one processor that costs two further switches each way), wakes the one that has worked last,
 * whose memory is warm, and starts threads when they are needed. */

struct workers;

/* At most `max` threads; each starts when all others are busy, and stays. NULL: no memory. */
struct workers *workers_new(unsigned max);
/* Runs what is queued, then ends the threads. */
void workers_free(struct workers *w);

struct work {
    struct work *next;
    void (*fn)(struct work *work); /* on a worker; it may free the work */
};

/* In the order of the calls, from one thread. 0, or -1: no thread to be had, and none there. */
int workers_run(struct workers *w, struct work *work);
