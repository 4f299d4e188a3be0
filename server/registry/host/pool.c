#include "host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How calls get their threads.
 *
 * One thread at a time is the reader. It takes as many frames as are there, then runs the calls itself,
 * one after another, and sends all answers with one write: a quick command costs no hand-over between
 * threads at all. So that a slow command holds nobody up, a monitor thread looks every millisecond,
 * while calls run: when the reader has been inside one call for a whole tick, another thread takes
 * over reading and the queue, and answers that wait for their batch are sent. An idle host has one thread,
 * blocked in recv; extra threads end after some seconds without work, and the monitor too.
 *
 * lock guards everything below but the out buffer; out_lock guards that and the order on the socket. */

#define STACK_BYTES (1024 * 1024)
#define TICK_NS 1000000
#define QUIET_TICKS 50
#define IDLE_SECONDS 3
#define FLUSH_BYTES (32 * 1024)
#define FREE_CALLS 64
#define KEEP_BYTES 4096
#define MAX_FDS 512 /* above so many more than at the start the host asks to be replaced */

static struct {
    struct host_options opt;
    const struct entries *entries;
    pthread_mutex_t lock;
    pthread_cond_t work, change, tick; /* idle threads; waiting calls; the monitor */
    struct call *queue, **queue_end;
    uint32_t queued;
    struct call *running;
    uint32_t n_running, n_live; /* live: somebody still waits for it */
    uint64_t taken;             /* calls taken from the queue so far */
    struct call *spare;
    uint32_t n_spare;
    uint32_t threads, idle;
    uint64_t reader; /* number of the reading thread; 0 = nobody */
    bool in_recv;
    enum { MONITOR_NONE, MONITOR_PARKED, MONITOR_TICKING } monitor;
    struct wire_buf in; /* the reader's */
    pthread_mutex_t out_lock;
    struct wire_buf out;
    int statm;
    uint32_t base_fds;
    bool drain_asked;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .out_lock = PTHREAD_MUTEX_INITIALIZER,
          .statm = -1,
          .queue_end = &pool.queue};

static _Thread_local uint64_t self; /* number of this thread; 0: not one of ours */
static atomic_bool forked;

void pool_lock(void)
{
    pthread_mutex_lock(&pool.lock);
}

void pool_unlock(void)
{
    pthread_mutex_unlock(&pool.lock);
}

/* --- sending ------------------------------------------------------------------------------------- */

/* Under out_lock. */
static void flush_locked(void)
{
    size_t at = 0;
    while (at < pool.out.len && !atomic_load_explicit(&forked, memory_order_relaxed)) {
        ssize_t n = send(pool.opt.fd, pool.out.data + at, pool.out.len - at, MSG_NOSIGNAL);
        if (n >= 0)
            at += (size_t)n;
        else if (errno != EINTR)
            _exit(0); /* the server is gone */
    }
    pool.out.len = 0;
    if (pool.out.cap > 4 * FLUSH_BYTES)
        wire_done(&pool.out);
}

static void flush(void)
{
    pthread_mutex_lock(&pool.out_lock);
    if (pool.out.len)
        flush_locked();
    pthread_mutex_unlock(&pool.out_lock);
}

void pool_send(struct wire_buf *b)
{
    pthread_mutex_lock(&pool.out_lock);
    wire_raw(&pool.out, b->data, b->len);
    if (pool.out.failed) { /* no room to queue it: straight out, in order */
        pool.out.failed = false;
        flush_locked();
        struct wire_buf queue = pool.out;
        pool.out = *b;
        *b = queue;
        flush_locked();
    } else if (pool.out.len >= FLUSH_BYTES) {
        flush_locked();
    }
    b->len = 0;
    pthread_mutex_unlock(&pool.out_lock);
}

/* --- children that calls leave behind -------------------------------------------------------------- */

static bool is_child(const char *pid)
{
    char path[64], stat[256];
    snprintf(path, sizeof(path), "/proc/%.16s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, stat, sizeof(stat) - 1);
    close(fd);
    if (n <= 0)
        return false;
    stat[n] = 0;
    const char *end = strrchr(stat, ')'); /* the name in between may hold anything */
    int ppid = 0;
    char state;
    return end && sscanf(end + 1, " %c %d", &state, &ppid) == 2 && ppid == getpid();
}

/* Under lock, with no live call: kills and reaps all that descends from us. We are a subreaper, so the
 * children of killed children turn up as ours in the next round. */
static void sweep_children(void)
{
    siginfo_t si;
    for (int round = 0; round < 100; round++) {
        if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) < 0)
            return; /* ECHILD: the usual case, one system call */
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        DIR *proc = opendir("/proc");
        if (!proc)
            return;
        for (struct dirent *d; (d = readdir(proc));)
            if (d->d_name[0] >= '1' && d->d_name[0] <= '9' && is_child(d->d_name))
                kill(atoi(d->d_name), SIGKILL);
        closedir(proc);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void call_is_over(struct call *c)
{
    if (!atomic_load(&c->cancelled) && --pool.n_live == 0 && !pool.queued && !pool.opt.keep_children)
        sweep_children();
}

/* --- frames from the server ------------------------------------------------------------------------- */

static struct call *find_call(uint32_t id)
{
    for (struct call *c = pool.running; c; c = c->next)
        if (c->id == id)
            return c;
    for (struct call *c = pool.queue; c; c = c->next)
        if (c->id == id)
            return c;
    return NULL;
}

static struct call *new_call(const struct wire_header *h, const struct wire_reader *r)
{
    struct call *c = pool.spare;
    if (c) {
        pool.spare = c->next;
        pool.n_spare--;
        c->next = NULL;
    } else {
        c = calloc(1, sizeof(*c));
    }
    if (!c)
        return NULL;
    if (c->payload_cap < h->len) {
        char *payload = realloc(c->payload, h->len);
        if (!payload) {
            call_clear(c);
            free(c->payload);
            free(c);
            return NULL;
        }
        c->payload = payload;
        c->payload_cap = h->len;
    }
    memcpy(c->payload, r->at, h->len);
    c->payload_len = h->len;
    c->pub.api = &host_api;
    c->id = h->id;
    c->credit = WIRE_CREDIT;
    c->status = 200;
    return c;
}

static void free_call(struct call *c)
{
    call_clear(c);
    if (c->out.cap > KEEP_BYTES)
        wire_done(&c->out);
    if (pool.n_spare < FREE_CALLS && c->payload_cap <= KEEP_BYTES) {
        char *payload = c->payload;
        size_t cap = c->payload_cap;
        struct wire_buf out = c->out;
        memset(c, 0, sizeof(*c));
        c->payload = payload;
        c->payload_cap = cap;
        c->out = out;
        c->out.len = 0;
        c->next = pool.spare;
        pool.spare = c;
        pool.n_spare++;
        return;
    }
    wire_done(&c->out);
    free(c->payload);
    free(c);
}

static void on_resolved(struct call *c, struct wire_reader *r)
{
    int status = (int)wire_get_u32(r);
    if (status == 0) {
        c->resolved = call_strdup(c, wire_get_text(r, NULL));
        if (!c->resolved)
            status = 503;
    } else {
        const char *type = wire_get_text(r, NULL), *code = wire_get_text(r, NULL);
        call_fail(c, status, type, code, wire_get_text(r, NULL), "");
    }
    c->resolve_status = status;
    c->resolve_done = true;
}

/* Under lock. */
static void on_frame(const struct wire_header *h, struct wire_reader *r)
{
    struct call *c;
    switch (h->type) {
    case W_CALL:
        c = new_call(h, r);
        if (!c)
            _exit(70); /* without memory for 100 bytes nothing here can go on: the server starts us again */
        *pool.queue_end = c;
        pool.queue_end = &c->next;
        pool.queued++;
        return;
    case W_CANCEL:
        c = find_call(h->id);
        if (c && !atomic_exchange(&c->cancelled, true) && c->started && --pool.n_live == 0 && !pool.queued &&
            !pool.opt.keep_children)
            sweep_children();
        break;
    case W_CREDIT:
        c = find_call(h->id);
        if (c)
            c->credit += wire_get_u32(r);
        break;
    case W_RESOLVED:
        c = find_call(h->id);
        if (c)
            on_resolved(c, r);
        break;
    default:
        break;
    }
    pthread_cond_broadcast(&pool.change);
}

/* The reader only, without lock: waits for bytes (at most ms, -1 = for ever). */
static void read_more(int ms)
{
    struct wire_buf *in = &pool.in;
    if (ms >= 0) {
        struct pollfd p = {.fd = pool.opt.fd, .events = POLLIN};
        if (poll(&p, 1, ms) <= 0)
            return;
    }
    size_t need = 0;
    struct wire_header h;
    struct wire_reader r;
    wire_next(in->data, in->len, &h, &r, &need);
    size_t room = need > in->len && need - in->len > 16384 ? need - in->len : 16384;
    char *at = wire_reserve(in, room);
    if (!at)
        _exit(70);
    ssize_t n = recv(pool.opt.fd, at, room, 0);
    if (n == 0 || (n < 0 && errno != EINTR))
        _exit(0); /* the server has gone, or wants us to go */
    if (n > 0)
        in->len += (size_t)n;
}

/* The reader only, under lock. */
static void take_frames(void)
{
    struct wire_header h;
    struct wire_reader r;
    size_t at = 0, need;
    while (wire_next(pool.in.data + at, pool.in.len - at, &h, &r, &need) == 1) {
        on_frame(&h, &r);
        at += need;
    }
    wire_consume(&pool.in, at);
    if (!pool.in.len && pool.in.cap > 8 * FLUSH_BYTES)
        wire_done(&pool.in);
}

/* --- running calls -------------------------------------------------------------------------------- */

static void start_thread(void *(*fn)(void *), uint64_t number);
static void *worker(void *arg);
static void *monitor(void *arg);

static void wake_monitor(void)
{
    if (pool.monitor == MONITOR_PARKED)
        pthread_cond_signal(&pool.tick);
    else if (pool.monitor == MONITOR_NONE)
        start_thread(monitor, 0);
    else
        return;
    pool.monitor = MONITOR_TICKING;
}

static void one_more_worker(void)
{
    static uint64_t number = 1;
    if (pool.idle) {
        pthread_cond_signal(&pool.work);
    } else if (pool.threads < pool.opt.max_threads) {
        pool.threads++;
        start_thread(worker, ++number);
    }
}

/* Under lock; drops it while the command runs. */
static void run_next(void)
{
    struct call *c = pool.queue;
    pool.queue = c->next;
    if (!pool.queue)
        pool.queue_end = &pool.queue;
    pool.queued--;
    pool.taken++;
    if (atomic_load(&c->cancelled)) { /* before it began */
        pthread_mutex_lock(&pool.out_lock);
        (void)wire_end(&pool.out, wire_begin(&pool.out, W_ENDED, c->id)); /* lost: counted as stuck */
        pthread_mutex_unlock(&pool.out_lock);
        free_call(c);
        return;
    }
    c->started = true;
    c->next = pool.running;
    pool.running = c;
    pool.n_running++;
    pool.n_live++;
    if (pool.monitor != MONITOR_TICKING)
        wake_monitor();
    pthread_mutex_unlock(&pool.lock);

    struct wire_reader r = {.at = c->payload, .end = c->payload + c->payload_len};
    if (call_decode(c, &r, pool.entries) < 0)
        _exit(71); /* the server's frames and ours disagree, or no memory for a few arrays */
    int result = c->entry->run(&c->pub);
    if (atomic_load_explicit(&forked, memory_order_relaxed))
        _exit(0); /* a child that a command forked came back here */
    if (result != 0 && c->answer != ANSWER_ERROR)
        call_fail(c, 500, "RuntimeError", "", "the command failed without saying why", "");

    pthread_mutex_lock(&pool.out_lock);
    if (atomic_load(&c->cancelled))
        (void)wire_end(&pool.out, wire_begin(&pool.out, W_ENDED, c->id)); /* lost: counted as stuck */
    else
        call_answer(c, &pool.out);
    if (pool.out.len >= FLUSH_BYTES)
        flush_locked();
    pthread_mutex_unlock(&pool.out_lock);
    pthread_mutex_lock(&pool.lock);
    for (struct call **at = &pool.running; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    pool.n_running--;
    call_is_over(c);
    free_call(c);
}

static bool reader_is_away(void)
{
    return !pool.reader || !pool.in_recv;
}

/* Under lock; as the reader, drops it while waiting. */
static void read_once(int ms)
{
    pool.reader = self;
    pool.in_recv = true;
    pthread_mutex_unlock(&pool.lock);
    flush();
    read_more(ms);
    pthread_mutex_lock(&pool.lock);
    pool.in_recv = false;
    take_frames();
}

static void deadline_in(struct timespec *t, uint64_t ns)
{
    clock_gettime(CLOCK_MONOTONIC, t);
    ns += (uint64_t)t->tv_nsec;
    t->tv_sec += (time_t)(ns / 1000000000);
    t->tv_nsec = (long)(ns % 1000000000);
}

/* Waits for work; false: none came for a while. */
static bool park(void)
{
    struct timespec until;
    deadline_in(&until, IDLE_SECONDS * 1000000000ull);
    pool.idle++;
    int r = pthread_cond_timedwait(&pool.work, &pool.lock, &until);
    pool.idle--;
    return r == 0 || pool.queue;
}

static void *worker(void *arg)
{
    self = (uint64_t)(uintptr_t)arg;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        if (pool.queue) {
            run_next();
            continue;
        }
        if (pool.reader == self || reader_is_away()) {
            read_once(-1);
            continue;
        }
        pthread_mutex_unlock(&pool.lock);
        flush();
        pthread_mutex_lock(&pool.lock);
        if (!pool.queue && !reader_is_away() && !park())
            break;
    }
    pool.threads--;
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

static void start_thread(void *(*fn)(void *), uint64_t number)
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_t t;
    int r = pthread_create(&t, &attr, fn, (void *)(uintptr_t)number);
    pthread_attr_destroy(&attr);
    if (r != 0 && fn == worker)
        pool.threads--; /* calls wait for the threads there are */
    else if (r != 0)
        pool.monitor = MONITOR_NONE;
}

/* --- waiting inside a call --------------------------------------------------------------------------- */

void pool_wait(struct call *c, bool (*ready)(struct call *c), uint32_t ms)
{
    struct timespec until, now;
    deadline_in(&until, (uint64_t)ms * 1000000);
    pthread_mutex_lock(&pool.lock);
    while (!ready(c) && !atomic_load(&c->cancelled)) {
        int64_t left = -1;
        if (ms != UINT32_MAX) {
            clock_gettime(CLOCK_MONOTONIC, &now);
            left = (until.tv_sec - now.tv_sec) * 1000 + (until.tv_nsec - now.tv_nsec + 999999) / 1000000;
            if (left <= 0)
                break;
        }
        if (self && reader_is_away()) {
            read_once((int)left);
            if (pool.queue)
                one_more_worker();
        } else if (ms == UINT32_MAX) {
            pthread_cond_wait(&pool.change, &pool.lock);
        } else {
            pthread_cond_timedwait(&pool.change, &pool.lock, &until);
        }
    }
    /* Others may be waiting for frames that only a reader brings. */
    if (self && pool.reader == self && !pool.in_recv)
        pool.reader = 0;
    pthread_cond_broadcast(&pool.change);
    pthread_mutex_unlock(&pool.lock);
}

/* --- the monitor -------------------------------------------------------------------------------------- */

static uint64_t resident_bytes(void)
{
    char text[64];
    ssize_t n = pool.statm >= 0 ? pread(pool.statm, text, sizeof(text) - 1, 0) : 0;
    unsigned long total = 0, resident = 0;
    if (n <= 0)
        return 0;
    text[n] = 0;
    return sscanf(text, "%lu %lu", &total, &resident) == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static uint32_t count_fds(void)
{
    uint32_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return 0;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void ask_drain(const char *why)
{
    if (pool.drain_asked)
        return;
    pool.drain_asked = true;
    struct wire_buf b = {0};
    size_t frame = wire_begin(&b, W_DRAIN, 0);
    wire_str(&b, why);
    if (wire_end(&b, frame) == 0) {
        pool_send(&b);
        flush();
    }
    wire_done(&b);
}

/* A host that is over its limit asks to be replaced, so that calls in flight can end; at twice the limit there
 * is no time for that. */
static void check_memory(void)
{
    uint64_t used = pool.opt.memory_bytes ? resident_bytes() : 0;
    if (used > pool.opt.memory_bytes)
        ask_drain("memory");
    if (used > 2 * pool.opt.memory_bytes)
        _exit(WIRE_EXIT_MEMORY);
}

static void *monitor(void *arg)
{
    uint64_t seen = 0, full = 0;
    uint32_t quiet = 0, ticks = 0;
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
        pthread_mutex_lock(&pool.lock);
        bool stuck = pool.taken == seen && pool.n_running;
        full = pool.queue ? full + 1 : 0;
        if (stuck && reader_is_away())
            one_more_worker();
        if (pool.queue && (stuck || full > 2))
            for (uint32_t n = pool.queued < 16 ? pool.queued : 16; n; n--)
                one_more_worker();
        quiet = pool.taken != seen || pool.queue || pool.n_live ? 0 : quiet + 1;
        seen = pool.taken;
        pthread_mutex_unlock(&pool.lock);
        if (pthread_mutex_trylock(&pool.out_lock) == 0) {
            if (pool.out.len)
                flush_locked();
            pthread_mutex_unlock(&pool.out_lock);
        }
        if (++ticks % 8 == 0)
            check_memory();
        if ((ticks % 1024 == 0 || quiet == QUIET_TICKS) && count_fds() > pool.base_fds + MAX_FDS)
            ask_drain("descriptors");
        if (quiet < QUIET_TICKS)
            continue;
        pthread_mutex_lock(&pool.lock);
        quiet = 0;
        if (!pool.queue && pool.taken == seen) {
            struct timespec until;
            deadline_in(&until, IDLE_SECONDS * 1000000000ull);
            pool.monitor = MONITOR_PARKED;
            while (pool.monitor == MONITOR_PARKED)
                if (pthread_cond_timedwait(&pool.tick, &pool.lock, &until) == ETIMEDOUT &&
                    pool.monitor == MONITOR_PARKED) {
                    pool.monitor = MONITOR_NONE;
                    pthread_mutex_unlock(&pool.lock);
                    return NULL;
                }
        }
        pthread_mutex_unlock(&pool.lock);
    }
}

static void in_forked_child(void)
{
    atomic_store(&forked, true);
    close(pool.opt.fd); /* what the child still says must not reach the server */
}

int pool_run(const struct host_options *options, const struct entries *entries, struct wire_buf *first)
{
    pool.opt = *options;
    pool.entries = entries;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pool.work, &attr);
    pthread_cond_init(&pool.change, &attr);
    pthread_cond_init(&pool.tick, &attr);
    pthread_atfork(NULL, NULL, in_forked_child);
    pool.statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    pool.base_fds = count_fds();
    pool_send(first);
    wire_done(first);
    pool.threads = 1;
    worker((void *)(uintptr_t)1);
    for (;;)
        pause();
}
