#pragma once
/* The one loop thread and its worker pool.
 *
 * Two lanes share the workers, so that long jobs (walks, archives, hashing, git) can't keep short
 * ones (spawn, stat, small reads) waiting: the long lane never uses more than half of them. What waits for
 * the network (name look-ups) can take as long as somebody else likes: it gets a thread of its own. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum work_lane { WORK_SHORT, WORK_LONG, WORK_ALONE, N_LANES };

struct loop;
struct metrics;

struct loop *loop_new(void);
void loop_free(struct loop *l);
uv_loop_t *loop_uv(struct loop *l);
struct metrics *loop_metrics(struct loop *l); /* loop thread */

/* Runs fn(data) on a worker, then done(data) on the loop. fn must not touch loop state.
 * Loop thread only. Returns 0, or -1 when memory is out (neither is called then).
 * loop_free waits for the workers, not for WORK_ALONE: a job that is still out then keeps its data, and its done is
 * not called. */
int loop_work(struct loop *l, enum work_lane lane, void (*fn)(void *data), void (*done)(void *data),
              void *data);

/* Turns the loop until no worker has a job that is still to come back: before what their `done` need is freed. */
void loop_settle(struct loop *l);

/* Runs fn(data) on the loop thread soon. Any thread. Never fails once the loop stands
 * (aborts when memory is out). */
void loop_post(struct loop *l, void (*fn)(void *data), void *data);

bool loop_on_thread(const struct loop *l);

/* Milliseconds, monotonic; refreshed once per loop turn (loop_now) or read now (mono_ms, mono_ns). */
uint64_t loop_now(const struct loop *l);
uint64_t mono_ms(void);
uint64_t mono_ns(void);
double wall_seconds(void); /* Unix time with fraction */

/* A one-shot timer owned by its struct; start again to move it, stop twice is fine.
 * timer_done may be called at any time on the loop thread, also from its own callback; the struct
 * may be freed at once after it. All timers share one uv timer (ordered by a heap). */
struct timer {
    struct loop *loop;
    uint64_t due;
    uint32_t slot; /* 1-based place in the heap; 0 = not running */
    void (*fn)(void *data);
    void *data;
};
void timer_init(struct timer *t, struct loop *l, void (*fn)(void *data), void *data);
void timer_start(struct timer *t, uint64_t after_ms);
void timer_stop(struct timer *t);
static inline bool timer_running(const struct timer *t)
{
    return t->slot != 0;
}
#define timer_done timer_stop

/* Watches a descriptor, which can't be a file and becomes non-blocking. The owner closes the fd itself, after io_done. io_done may be called from
 * the callback; the struct may be freed at once after it. */
struct io {
    struct loop *loop;
    struct io_handle *handle;
    void (*fn)(void *data, int events); /* UV_READABLE | UV_WRITABLE | UV_DISCONNECT; < 0: -errno */
    void *data;
};
int io_init(struct io *io, struct loop *l, int fd, void (*fn)(void *data, int events), void *data);
int io_want(struct io *io, int events); /* 0 = watch nothing */
void io_done(struct io *io);

/* Closes a descriptor that nobody watches any more before the loop waits again: who is to be answered comes first. */
void loop_close(struct loop *l, int fd);
