/* GET /files/watch: changes of a directory as events.
 *
 * The loop waits for the inotify descriptor; a worker reads it and writes the events' text. After
 * the first event of a burst a short while passes, so that "created" and the writing that follows
 * are one change; after each delivery the client's interval passes. A client that does not read
 * stops the reading, and the kernel's queue makes up for it until it overflows: then everything is
 * compared again. */

#include "routes/files_internal.h"
#include "routes/table.h"

#include "base/num.h"
#include "files/names.h"
#include "files/watch.h"

#include <string.h>

#define SETTLE_MS 20
#define INTERVAL 0.5
#define TIMEOUT 300.0

struct watcher {
    struct req *req;
    struct watch *watch;
    struct stream *stream;
    const char *root;
    struct io io;
    struct timer pause, end;
    uint32_t interval_ms;
    double timeout;
    bool recursive, busy, gone, over, more, has_io;
    int rc;
    struct abx_error err;
    struct buf out;
};

static void free_watch(void *data) { watch_free(data); }

static void watcher_free(struct watcher *w)
{
    if (w->has_io)
        io_done(&w->io);
    timer_done(&w->pause);
    timer_done(&w->end);
    buf_done(&w->out);
    struct req *req = w->req;
    /* Closing an inotify instance with many watches takes a while: not on the loop. */
    if (w->watch && loop_work(req_loop(req), WORK_SHORT, free_watch, NULL, w->watch) < 0)
        watch_free(w->watch);
    free(w);
    req_unref(req);
}

static void read_on_worker(void *data)
{
    struct watcher *w = data;
    w->more = watch_read(w->watch, &w->out);
}

static void deliver(void *data);

static void finish(struct watcher *w)
{
    static const char reason[] = "{\"reason\": \"timeout\"}";
    stream_event_text(w->stream, "end", reason, sizeof reason - 1, NULL);
    stream_end(w->stream);
    watcher_free(w);
}

static void start_reading(struct watcher *w)
{
    struct abx_error err;
    w->busy = true;
    io_want(&w->io, 0);
    if (req_work(w->req, WORK_SHORT, read_on_worker, deliver, w, &err) < 0) {
        w->busy = false;
        stream_abort(w->stream);
        watcher_free(w);
    }
}

static void deliver(void *data)
{
    struct watcher *w = data;
    w->busy = false;
    if (w->gone) {
        watcher_free(w);
        return;
    }
    if (w->out.len > 0)
        stream_write(w->stream, w->out.data, w->out.len);
    if (w->out.cap > 64 * 1024)
        buf_done(&w->out);
    else
        buf_reset(&w->out);
    if (w->over) {
        finish(w);
        return;
    }
    if (stream_full(w->stream))
        return; /* watcher_drain goes on */
    timer_start(&w->pause, w->more ? 0 : w->interval_ms);
}

/* The pause is over: read what came, or wait for something to come. */
static void pause_over(void *data)
{
    struct watcher *w = data;
    bool more = w->more;
    w->more = false; /* the worker's from here on */
    if (more)
        start_reading(w);
    else
        io_want(&w->io, UV_READABLE);
}

static void something_came(void *data, int events)
{
    struct watcher *w = data;
    io_want(&w->io, 0);
    w->more = true; /* read when the pause is over */
    timer_start(&w->pause, SETTLE_MS);
}

static void time_over(void *data)
{
    struct watcher *w = data;
    w->over = true;
    if (!w->busy)
        start_reading(w); /* what happened until now is still told */
}

static void watcher_drain(void *owner)
{
    struct watcher *w = owner;
    if (!w->busy && !timer_running(&w->pause))
        timer_start(&w->pause, w->more ? 0 : w->interval_ms);
}

static void watcher_gone(void *owner)
{
    struct watcher *w = owner;
    w->gone = true;
    if (!w->busy)
        watcher_free(w);
}

static void open_on_worker(void *data)
{
    struct watcher *w = data;
    const char *path;
    size_t len;
    w->rc = query_path(w->req, &path, &len, &w->err);
    if (w->rc == 0)
        w->rc = watch_new(req_guard(w->req), path, len, w->recursive, &w->watch, &w->root, &w->err);
}

static void opened(void *data)
{
    struct watcher *w = data;
    w->busy = false;
    struct loop *loop = req_loop(w->req);
    if (w->rc == 0 && io_init(&w->io, loop, watch_fd(w->watch), something_came, w) != 0)
        w->rc = abx_fail(&w->err, E_NO_MEMORY, 0, "out of memory");
    else
        w->has_io = w->rc == 0;
    if (w->rc < 0) {
        req_fail(w->req, &w->err);
        watcher_free(w);
        return;
    }
    req_note_path(w->req, w->root);
    static const struct stream_ops ops = {.drain = watcher_drain, .gone = watcher_gone};
    w->stream = stream_open_sse(w->req, &ops, w);
    buf_adds(&w->out, "{");
    name_field(&w->out, "path", w->root, strlen(w->root));
    buf_adds(&w->out, "}");
    if (!w->out.failed)
        stream_event_text(w->stream, "ready", w->out.data, w->out.len, NULL);
    buf_reset(&w->out);
    timer_start(&w->end, (uint64_t)(w->timeout * 1000));
    io_want(&w->io, UV_READABLE);
}

/* A number of seconds within [min, max]; anything else in the query is refused. */
static int seconds_query(const struct req *req, const char *name, double fallback, double min,
                         double max, double *ret, struct abx_error *err)
{
    const char *text = req_query(req, name, NULL);
    *ret = fallback;
    if (text && num_parse_double(text, ret) < 0)
        return abx_fail(err, E_VALUE, 0, "'%s' must be a number of seconds", name);
    if (*ret > max)
        *ret = max;
    if (*ret < min)
        *ret = min;
    return 0;
}

int route_files_watch(struct req *req, struct resp *resp, struct abx_error *err)
{
    double interval, timeout,
        most = rule_seconds(req_rule(req), LIMIT_max_duration_seconds, TIMEOUT);
    const char *path;
    size_t len;
    if (query_path(req, &path, &len, err) < 0 ||
        seconds_query(req, "interval", INTERVAL, 0.1, 5, &interval, err) < 0 ||
        seconds_query(req, "timeout", TIMEOUT, 0.1, most, &timeout, err) < 0)
        return -1;
    struct watcher *w = calloc(1, sizeof *w);
    if (!w)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    w->req = req_ref(req);
    w->recursive = req_query_bool(req, "recursive");
    w->interval_ms = (uint32_t)(interval * 1000);
    w->timeout = timeout;
    timer_init(&w->pause, req_loop(req), pause_over, w);
    timer_init(&w->end, req_loop(req), time_over, w);
    w->busy = true;
    if (req_work(req, w->recursive ? WORK_LONG : WORK_SHORT, open_on_worker, opened, w, err) == 0)
        return REQ_PENDING;
    watcher_free(w);
    return -1;
}
