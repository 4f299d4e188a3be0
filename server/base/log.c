#include "base/log.h"

#include "base/json.h"
#include "base/loop.h"
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Lines go to a bounded queue that a thread of its own writes to stderr: a reader that stalls blocks
 * that thread and nothing else. (Making stderr non-blocking would change it for whoever shares it.)
 * This is the one mutable global of the program: there is one stderr. */
#define QUEUE_BYTES (256 * 1024)
#define LINE_MAX_BYTES 8192
#define WRITER_STACK (64 * 1024)

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    struct buf queue;
    bool started, running, writing, people, colour, broken;
    uint64_t dropped, lost; /* since the last line that says so; since the start */
    enum log_level level;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER,
           .idle = PTHREAD_COND_INITIALIZER, .level = LOG_INFO};

static const struct {
    const char *name, *colour;
} levels[] = {{"debug", "\033[2m"}, {"info", "\033[32m"}, {"warn", "\033[33m"}, {"error", "\033[31m"}};

/* False when stderr is gone for good. */
static bool write_all(const char *data, size_t len, uint64_t *ret_lost)
{
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, data, len);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN) {
                struct timespec pause = {.tv_nsec = 20000000};
                nanosleep(&pause, NULL);
                continue;
            }
            bool full = errno == ENOSPC;
            for (*ret_lost = 0; len > 0; len--)
                *ret_lost += *data++ == '\n';
            return full; /* a full disk may have room again later: this piece is lost */
        }
        data += n;
        len -= (size_t)n;
    }
    return true;
}

static void *writer(void *unused)
{
    pthread_mutex_lock(&state.lock);
    for (;;) {
        while (state.queue.len == 0 && state.running)
            pthread_cond_wait(&state.work, &state.lock);
        if (state.queue.len == 0)
            break;
        struct buf taken = state.queue;
        state.queue = (struct buf)BUF_INIT;
        uint64_t dropped = state.dropped;
        state.dropped = 0;
        state.writing = true;
        bool broken = state.broken;
        uint64_t lost = 0;
        pthread_mutex_unlock(&state.lock);
        if (!broken) {
            if (dropped > 0)
                buf_addf(&taken, "{\"level\": \"warn\", \"message\": \"%llu log lines were dropped\"}\n",
                         (unsigned long long)dropped);
            broken = !write_all(taken.data, taken.len, &lost);
        }
        buf_done(&taken);
        pthread_mutex_lock(&state.lock);
        state.broken = broken;
        state.lost += lost;
        state.writing = false;
        pthread_cond_broadcast(&state.idle);
    }
    state.started = false;
    pthread_cond_broadcast(&state.idle);
    pthread_mutex_unlock(&state.lock);
    return NULL;
}

void log_start(void)
{
    state.people = isatty(STDERR_FILENO) == 1;
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    state.colour = state.people && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
    state.running = true;
}

uint64_t log_lost(void)
{
    pthread_mutex_lock(&state.lock);
    uint64_t n = state.lost;
    pthread_mutex_unlock(&state.lock);
    return n;
}

void log_set_level(enum log_level level)
{
    state.level = level;
}

/* The thread starts with the first line: a quiet server has none. Lock held. */
static void ensure_writer(void)
{
    if (state.started || !state.running)
        return;
    state.started = thread_start(WRITER_STACK, writer, NULL, NULL) == 0;
}

static void enqueue(const char *line, size_t len)
{
    pthread_mutex_lock(&state.lock);
    if (!state.running) {
        /* Before log_start and after log_stop: straight out (start-up and exit messages). */
        pthread_mutex_unlock(&state.lock);
        uint64_t unused;
        (void)write_all(line, len, &unused);
        return;
    }
    if (state.broken || state.queue.len + len > QUEUE_BYTES) {
        state.dropped++;
        state.lost++;
    } else {
        buf_add(&state.queue, line, len);
        ensure_writer();
        if (!state.started) { /* no thread to be had: then as at start-up */
            struct buf taken = state.queue;
            state.queue = (struct buf)BUF_INIT;
            pthread_mutex_unlock(&state.lock);
            uint64_t unused;
            (void)write_all(taken.data, taken.len, &unused);
            buf_done(&taken);
            return;
        }
        pthread_cond_signal(&state.work);
    }
    pthread_mutex_unlock(&state.lock);
}

void log_stop(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until); /* the wall clock may jump */
    until.tv_nsec += 200 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&state.lock);
    state.running = false;
    pthread_cond_signal(&state.work);
    while (state.started)
        if (pthread_cond_clockwait(&state.idle, &state.lock, CLOCK_MONOTONIC, &until) != 0)
            break;
    buf_done(&state.queue);
    pthread_mutex_unlock(&state.lock);
}

void log_json_line(const char *json, size_t len)
{
    struct buf line = BUF_INIT;
    buf_add(&line, json, len);
    buf_addc(&line, '\n');
    if (!line.failed)
        enqueue(line.data, line.len);
    buf_done(&line);
}

void log_msg(enum log_level level, const char *fmt, ...)
{
    if (level < state.level)
        return;
    char text[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (len < 0)
        return;
    if ((size_t)len >= sizeof text)
        len = sizeof text - 1;

    struct buf line = BUF_INIT;
    if (state.people) {
        time_t now = time(NULL);
        struct tm tm;
        char clock[16];
        localtime_r(&now, &tm);
        strftime(clock, sizeof clock, "%H:%M:%S", &tm);
        buf_addf(&line, "%s %s%-5s%s ", clock, state.colour ? levels[level].colour : "", levels[level].name,
                 state.colour ? "\033[0m" : "");
        /* Controls and bytes beyond ASCII come escaped, as in JSON, without the quotes. */
        struct buf quoted = BUF_INIT;
        json_write_string(&quoted, text, (size_t)len);
        if (quoted.len >= 2)
            buf_add(&line, quoted.data + 1, quoted.len - 2);
        buf_done(&quoted);
    } else {
        buf_addf(&line, "{\"ts\": %.3f, \"level\": \"%s\", \"message\": ", wall_seconds(), levels[level].name);
        json_write_string(&line, text, (size_t)len);
        buf_addc(&line, '}');
    }
    buf_addc(&line, '\n');
    if (!line.failed)
        enqueue(line.data, line.len);
    buf_done(&line);
}
