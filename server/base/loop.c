#include "base/loop.h"

#include "base/metrics.h"

#include "base/list.h"
#include "base/own.h"
#include "base/thread.h"
#include "base/workers.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_WORKERS 4 /* as libuv's pool, whose variable this takes */
#define WORKERS_MAX 1024
#define ALONE_MAX 32
#define ALONE_STACK (256 * 1024) /* name service modules run on it */
#define CLOSE_LATER_MAX 64
#define HANDLES_KEPT 256         /* descriptors below it keep their handle */

struct job {
    struct work work; /* a worker's; first */
    struct loop *loop;
    struct list link; /* waiting for a place in its lane */
    struct gate *gate; /* WORK_ALONE */
    enum work_lane lane;
    void (*fn)(void *data);
    void (*done)(void *data);
    void *data;
    struct job *next; /* of those that came back */
};

struct post {
    struct post *next;
    void (*fn)(void *data);
    void *data;
};

/* What a thread of its own knows of the loop, which may be gone when it comes back. */
struct gate {
    pthread_mutex_t lock;
    struct loop *loop; /* NULL: gone */
    unsigned refs;
};

struct lane {
    unsigned running, max;
    struct list waiting; /* struct job.link */
};

struct loop {
    uv_loop_t uv;
    uv_timer_t clock; /* follows the top of the heap */
    uv_async_t wake;
    pthread_t thread;

    struct timer **heap; /* 1-based, by due */
    uint32_t heap_n, heap_cap;

    struct lane lanes[N_LANES];
    struct gate *gate;
    struct io_handle *handles[HANDLES_KEPT]; /* by descriptor */

    struct metrics metrics;

    uv_prepare_t before_wait;
    int closing[CLOSE_LATER_MAX];
    size_t n_closing;

    struct workers *workers;
    size_t out; /* jobs that a worker has, or that wait for one */

    pthread_mutex_t lock; /* guards what follows */
    struct post *posts, **posts_end;
    struct job *back, **back_end;
};

struct io_handle {
    uv_poll_t poll;
    struct io *io; /* NULL once done */
    int fd;
    bool watched; /* perhaps in the epoll set; libuv stops a handle that met an error, but leaves it in there */
};

/* --- timers -------------------------------------------------------------------------------------- */

static void heap_place(struct loop *l, uint32_t i, struct timer *t)
{
    l->heap[i] = t;
    t->slot = i;
}

static void heap_up(struct loop *l, uint32_t i, struct timer *t)
{
    while (i > 1 && l->heap[i / 2]->due > t->due) {
        heap_place(l, i, l->heap[i / 2]);
        i /= 2;
    }
    heap_place(l, i, t);
}

static void heap_down(struct loop *l, uint32_t i, struct timer *t)
{
    for (;;) {
        uint32_t child = 2 * i;
        if (child > l->heap_n)
            break;
        if (child < l->heap_n && l->heap[child + 1]->due < l->heap[child]->due)
            child++;
        if (l->heap[child]->due >= t->due)
            break;
        heap_place(l, i, l->heap[child]);
        i = child;
    }
    heap_place(l, i, t);
}

static void clock_fired(uv_timer_t *clock);

static void clock_follow(struct loop *l)
{
    if (l->heap_n == 0) {
        uv_timer_stop(&l->clock);
        return;
    }
    uint64_t now = uv_now(&l->uv), due = l->heap[1]->due;
    if (uv_is_active((uv_handle_t *)&l->clock) && uv_timer_get_due_in(&l->clock) + now == due)
        return;
    uv_timer_start(&l->clock, clock_fired, due > now ? due - now : 0, 0);
}

static void clock_fired(uv_timer_t *clock)
{
    struct loop *l = clock->data;
    uint64_t now = uv_now(&l->uv);
    while (l->heap_n > 0 && l->heap[1]->due <= now) {
        struct timer *t = l->heap[1];
        timer_stop(t);
        t->fn(t->data);
    }
    clock_follow(l);
}

void timer_init(struct timer *t, struct loop *l, void (*fn)(void *data), void *data)
{
    *t = (struct timer){.loop = l, .fn = fn, .data = data};
}

void timer_start(struct timer *t, uint64_t after_ms)
{
    struct loop *l = t->loop;
    uint64_t due = uv_now(&l->uv) + after_ms;
    if (t->slot) {
        uint64_t was = t->due;
        uint32_t i = t->slot;
        t->due = due;
        if (due < was)
            heap_up(l, i, t);
        else
            heap_down(l, i, t);
        /* A clock that rings too early finds nothing due and is set again: cheaper than moving it each
         * time a deadline is pushed out. */
        if (due < was)
            clock_follow(l);
        return;
    }
    if (l->heap_n + 1 >= l->heap_cap) {
        uint32_t cap = l->heap_cap ? l->heap_cap * 2 : 64;
        struct timer **grown = realloc(l->heap, cap * sizeof(struct timer *));
        if (!grown)
            abort(); /* a deadline that is silently lost is worse */
        l->heap = grown;
        l->heap_cap = cap;
    }
    t->due = due;
    l->heap_n++;
    heap_up(l, l->heap_n, t);
    if (t->slot == 1)
        clock_follow(l);
}

void timer_stop(struct timer *t)
{
    if (!t->slot)
        return;
    struct loop *l = t->loop;
    uint32_t i = t->slot;
    t->slot = 0;
    struct timer *last = l->heap[l->heap_n--];
    if (last == t)
        return;
    if (i > 1 && l->heap[i / 2]->due > last->due)
        heap_up(l, i, last);
    else
        heap_down(l, i, last);
}

/* --- posts --------------------------------------------------------------------------------------- */

static void job_done(void *data);

static void run_posts(uv_async_t *wake)
{
    struct loop *l = wake->data;
    pthread_mutex_lock(&l->lock);
    struct post *p = l->posts;
    l->posts = NULL;
    l->posts_end = &l->posts;
    struct job *back = l->back;
    l->back = NULL;
    l->back_end = &l->back;
    pthread_mutex_unlock(&l->lock);
    while (back) {
        struct job *next = back->next;
        l->out--;
        job_done(back);
        back = next;
    }
    while (p) {
        struct post *next = p->next;
        p->fn(p->data);
        free(p);
        p = next;
    }
}

void loop_post(struct loop *l, void (*fn)(void *data), void *data)
{
    struct post *p = malloc(sizeof *p);
    if (!p)
        abort();
    *p = (struct post){.fn = fn, .data = data};
    pthread_mutex_lock(&l->lock);
    *l->posts_end = p;
    l->posts_end = &p->next;
    pthread_mutex_unlock(&l->lock);
    uv_async_send(&l->wake);
}

/* --- work ---------------------------------------------------------------------------------------- */

static void gate_ref(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->refs++;
    pthread_mutex_unlock(&g->lock);
}

static void gate_unref(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    bool last = --g->refs == 0;
    pthread_mutex_unlock(&g->lock);
    if (last) {
        pthread_mutex_destroy(&g->lock);
        free(g);
    }
}

static void job_run(struct work *work)
{
    struct job *j = (struct job *)work;
    struct loop *l = j->loop;
    j->fn(j->data);
    pthread_mutex_lock(&l->lock);
    bool first = !l->back; /* else the loop has been woken and has not come yet */
    *l->back_end = j;
    l->back_end = &j->next;
    pthread_mutex_unlock(&l->lock);
    if (first)
        uv_async_send(&l->wake);
}

static int pool_start(struct job *j)
{
    j->work.fn = job_run;
    if (workers_run(j->loop->workers, &j->work) < 0)
        return -1;
    j->loop->out++;
    return 0;
}

static void *alone_run(void *data)
{
    struct job *j = data;
    struct gate *g = j->gate;
    j->fn(j->data);
    pthread_mutex_lock(&g->lock);
    if (g->loop)
        loop_post(g->loop, job_done, j);
    else
        free(j);
    pthread_mutex_unlock(&g->lock);
    gate_unref(g);
    return NULL;
}

static int alone_start(struct job *j)
{
    j->gate = j->loop->gate;
    gate_ref(j->gate);
    if (thread_start(ALONE_STACK, alone_run, j, NULL) < 0) {
        gate_unref(j->gate);
        return -1;
    }
    return 0;
}

static int job_start(struct job *j)
{
    int rc = j->lane == WORK_ALONE ? alone_start(j) : pool_start(j);
    if (rc == 0)
        j->loop->lanes[j->lane].running++;
    return rc;
}

/* It is back on the loop: its place is for the next, its caller is told. */
static void job_done(void *data)
{
    struct job *j = data;
    struct lane *lane = &j->loop->lanes[j->lane];
    lane->running--;
    while (lane->running < lane->max && !list_empty(&lane->waiting)) {
        struct job *next = list_entry(lane->waiting.next, struct job, link);
        list_remove(&next->link);
        if (job_start(next) == 0)
            continue;
        lane->running++;
        if (pool_start(next) < 0) { /* no thread at all: here then, rather than never */
            next->fn(next->data);
            job_done(next);
        }
    }
    if (j->done)
        j->done(j->data);
    free(j);
}

int loop_work(struct loop *l, enum work_lane lane, void (*fn)(void *data), void (*done)(void *data),
              void *data)
{
    struct job *j = malloc(sizeof *j);
    if (!j)
        return -1;
    *j = (struct job){.loop = l, .lane = lane, .fn = fn, .done = done, .data = data};
    list_init(&j->link);
    if (l->lanes[lane].running >= l->lanes[lane].max) {
        list_append(&l->lanes[lane].waiting, &j->link);
        return 0;
    }
    if (job_start(j) != 0) {
        free(j);
        return -1;
    }
    return 0;
}

/* --- descriptors --------------------------------------------------------------------------------- */

static void io_ready(uv_poll_t *poll, int status, int events)
{
    struct io_handle *h = poll->data;
    if (h->io)
        h->io->fn(h->io->data, status < 0 ? status : events);
}

static void io_closed(uv_handle_t *handle)
{
    free(handle->data);
}

/* A libuv handle is bound to a number. One whose descriptor was closed serves the next with that number: making a
 * handle costs libuv four system calls (it tries the descriptor in the epoll set), and a program has three. */
static struct io_handle *handle_of(struct loop *l, int fd)
{
    return fd >= 0 && fd < HANDLES_KEPT ? l->handles[fd] : NULL;
}

int io_init(struct io *io, struct loop *l, int fd, void (*fn)(void *data, int events), void *data)
{
    struct io_handle *h = handle_of(l, fd);
    if (h && h->io)
        return UV_EEXIST;
    if (h) {
        int on = 1;
        if (ioctl(fd, FIONBIO, &on) < 0)
            return -errno;
    } else {
        h = malloc(sizeof *h);
        if (!h)
            return UV_ENOMEM;
        int rc = uv_poll_init(&l->uv, &h->poll, fd);
        if (rc != 0) {
            free(h);
            return rc;
        }
        h->poll.data = h;
        h->fd = fd;
        h->watched = false;
        if (fd < HANDLES_KEPT)
            l->handles[fd] = h;
    }
    h->io = io;
    *io = (struct io){.loop = l, .handle = h, .fn = fn, .data = data};
    return 0;
}

static int unwatch(struct io_handle *h)
{
    bool watched = h->watched;
    h->watched = false;
    return watched ? uv_poll_stop(&h->poll) : 0;
}

int io_want(struct io *io, int events)
{
    struct io_handle *h = io->handle;
    if (!h)
        return -1;
    if (!events)
        return unwatch(h);
    h->watched = true;
    return uv_poll_start(&h->poll, events, io_ready);
}

void io_done(struct io *io)
{
    struct io_handle *h = io->handle;
    if (!h)
        return;
    h->io = NULL;
    io->handle = NULL;
    if (handle_of(io->loop, h->fd) == h)
        (void)unwatch(h);
    else
        uv_close((uv_handle_t *)&h->poll, io_closed);
}

static void close_now(uv_prepare_t *prepare)
{
    struct loop *l = prepare->data;
    while (l->n_closing > 0)
        close(l->closing[--l->n_closing]);
    uv_prepare_stop(prepare);
}

void loop_close(struct loop *l, int fd)
{
    if (l->n_closing == CLOSE_LATER_MAX) {
        close(fd);
        return;
    }
    if (l->n_closing == 0)
        uv_prepare_start(&l->before_wait, close_now);
    l->closing[l->n_closing++] = fd;
}

/* --- the loop ------------------------------------------------------------------------------------ */

struct loop *loop_new(void)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->gate = calloc(1, sizeof *l->gate);
    if (!l->gate || uv_loop_init(&l->uv) != 0) {
        free(l->gate);
        free(l);
        return NULL;
    }
    pthread_mutex_init(&l->gate->lock, NULL);
    l->gate->loop = l;
    l->gate->refs = 1;
    l->thread = pthread_self();
    l->posts_end = &l->posts;
    l->back_end = &l->back;
    pthread_mutex_init(&l->lock, NULL);
    const char *size = getenv("UV_THREADPOOL_SIZE");
    long workers = size ? strtol(size, NULL, 10) : DEFAULT_WORKERS;
    workers = workers < 1 ? 1 : workers > WORKERS_MAX ? WORKERS_MAX : workers;
    const unsigned max[N_LANES] = {
        [WORK_SHORT] = UINT_MAX, [WORK_LONG] = workers >= 4 ? (unsigned)workers / 2 : 1, [WORK_ALONE] = ALONE_MAX};
    for (size_t i = 0; i < N_LANES; i++) {
        l->lanes[i].max = max[i];
        list_init(&l->lanes[i].waiting);
    }
    uv_timer_init(&l->uv, &l->clock);
    l->clock.data = l;
    uv_prepare_init(&l->uv, &l->before_wait);
    l->before_wait.data = l;
    l->workers = workers_new((unsigned)workers);
    if (!l->workers || uv_async_init(&l->uv, &l->wake, run_posts) != 0) {
        workers_free(l->workers);
        free(l->gate);
        free(l);
        return NULL;
    }
    l->wake.data = l;
    return l;
}

static void close_any(uv_handle_t *handle, void *arg)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->gate->lock);
    l->gate->loop = NULL; /* whoever is still out does not come back */
    pthread_mutex_unlock(&l->gate->lock);
    gate_unref(l->gate);
    struct list *waiting = &l->lanes[WORK_ALONE].waiting;
    while (!list_empty(waiting)) {
        struct job *j = list_entry(waiting->next, struct job, link);
        list_remove(&j->link);
        free(j);
    }
    loop_settle(l);
    workers_free(l->workers);
    close_now(&l->before_wait);
    uv_walk(&l->uv, close_any, NULL);
    uv_run(&l->uv, UV_RUN_DEFAULT);
    uv_loop_close(&l->uv);
    for (size_t i = 0; i < HANDLES_KEPT; i++)
        free(l->handles[i]);
    while (l->posts) {
        struct post *next = l->posts->next;
        free(l->posts);
        l->posts = next;
    }
    pthread_mutex_destroy(&l->lock);
    free(l->heap);
    free(l);
}

void loop_settle(struct loop *l)
{
    while (l->out > 0)
        uv_run(&l->uv, UV_RUN_ONCE);
}

struct metrics *loop_metrics(struct loop *l)
{
    return &l->metrics;
}

uv_loop_t *loop_uv(struct loop *l)
{
    return &l->uv;
}

bool loop_on_thread(const struct loop *l)
{
    return pthread_equal(l->thread, pthread_self());
}

uint64_t loop_now(const struct loop *l)
{
    return uv_now(&l->uv);
}

uint64_t mono_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t mono_ms(void)
{
    return mono_ns() / 1000000u;
}

double wall_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}
