#include "files/search.h"

/* Directories wait on a stack, the one that comes first in the answer on top. A search that is not over at once takes
 * helpers: each takes a directory, reads it and pushes what lies in it. Results are put into the answer by a cursor that
 * goes over the directories in the answer's order and stops at the first that is not done, so that the order does not
 * depend on who was faster. A directory is forgotten when the cursor has left it with all that lies in it. */

#include "base/list.h"
#include "base/loop.h"
#include "base/own.h"
#include "files/dir.h"
#include "files/list.h"
#include "files/names.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_CAP 128 /* one descriptor a level and helper */
#define READ_SIZE (64 * KIB)
#define HELPERS 3
#define ALONE_NS 4000000 /* so long it goes without helpers */

struct folder {
    struct folder *parent, *first_child, *next; /* next: its sibling */
    struct folder *below;                       /* on the stack */
    int64_t level;                              /* of what lies in it; 1: the start */
    int fd;                                     /* -1: not opened yet, or no longer needed */
    unsigned unopened;                          /* of its children, under the lock */
    bool done;
    struct buf hits; /* one a line */
    char name[];
};

struct search {
    const struct guard *g;
    const struct search_options *opt;
    struct buf *out;
    const char *start; /* without a slash at its end: "" for "/" */
    bool judge_all;
    atomic_bool timed_out, cancelled;
    atomic_int want; /* errno of a want of memory or descriptors, 0: none */
    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    struct folder *top;    /* of the stack */
    struct folder *cursor; /* NULL: it is through */
    unsigned working;
    bool stop, first, full;
    int64_t left; /* results still wanted */
};

/* What each thread has of its own. */
struct searcher {
    struct search *s;
    struct buf path;    /* of the directory at hand, without a slash at its end */
    struct buf content; /* window over a file */
    struct arena scratch;
    int64_t level;
};

static bool is_given_up(const struct search *s)
{
    return atomic_load(&s->timed_out) || atomic_load(&s->cancelled) || atomic_load(&s->want);
}

static bool must_stop(void *data, size_t so_far)
{
    struct search *s = ((struct searcher *)data)->s;
    if (mono_ns() >= s->opt->deadline_ns)
        atomic_store(&s->timed_out, true);
    if (s->opt->cancelled && s->opt->cancelled(s->opt->data))
        atomic_store(&s->cancelled, true);
    return is_given_up(s);
}

/* --- one directory ------------------------------------------------------------------------------- */

/* What can't be opened is passed over, but not when that is no fault of its own. */
static void note_want(struct search *s, int fd)
{
    if (fd < 0 && error_is_want(errno))
        atomic_store(&s->want, errno);
}

/* Does the file hold the bytes? Read in windows that overlap by the length of what is looked for. */
static bool holds(struct searcher *me, int dirfd, const char *name)
{
    const struct search_options *o = me->s->opt;
    autoclose int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    note_want(me->s, fd);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    buf_reset(&me->content);
    for (;;) {
        char *at = buf_reserve(&me->content, READ_SIZE);
        if (!at)
            return false;
        ssize_t n = read(fd, at, READ_SIZE);
        if (n <= 0)
            return false;
        me->content.len += (size_t)n;
        if (memmem(me->content.data, me->content.len, o->content, o->content_len))
            return true;
        if (me->content.len >= o->content_len)
            buf_consume(&me->content, me->content.len - (o->content_len - 1));
        if (must_stop(me, 0))
            return false;
    }
}

/* Could an entry be a hit, as far as its name and type tell? */
static bool name_fits(const struct search_options *o, const char *name, uint8_t type)
{
    return (type != DT_DIR || (o->include_dirs && !o->content)) && guard_glob(o->pattern, name);
}

static bool worth_keeping(void *data, const char *name, uint8_t type)
{
    const struct searcher *me = data;
    const struct search_options *o = me->s->opt;
    return type == DT_UNKNOWN || (type == DT_DIR && me->level < o->max_depth) || name_fits(o, name, type);
}

static bool is_hit(const struct search_options *o, int fd, const char *name, uint8_t type)
{
    if (type == DT_UNKNOWN || !name_fits(o, name, type))
        return false;
    struct stat st;
    return type != DT_LNK || o->include_dirs || fstatat(fd, name, &st, 0) < 0 || !S_ISDIR(st.st_mode);
}

/* The path of a folder: its name behind those of all above it. */
static void add_path(struct buf *path, const struct search *s, const struct folder *f)
{
    if (!f->parent) {
        buf_adds(path, s->start);
        return;
    }
    add_path(path, s, f->parent); /* as deep as DEPTH_CAP */
    buf_addc(path, '/');
    buf_adds(path, f->name);
}

/* Appends an entry's name to the path. The whole, or NULL without memory. */
static const char *path_of(struct searcher *me, size_t base, const char *name, size_t len)
{
    me->path.len = base;
    buf_addc(&me->path, '/');
    buf_add(&me->path, name, len);
    return buf_str(&me->path);
}

/* The hits among the entries, sorted; one more than could be wanted is enough. */
static int find_hits(struct searcher *me, struct folder *f, const struct dir *d)
{
    struct search *s = me->s;
    const struct search_options *o = s->opt;
    size_t base = me->path.len;
    int64_t most = o->max_results > 0 ? o->max_results : 1;
    for (size_t i = 0; i < d->n && most >= 0 && !atomic_load(&s->cancelled); i++) {
        const char *name = dir_name(d, i);
        size_t len = d->entries[i].len;
        uint8_t type = d->entries[i].type;
        if (type == DT_DIR && !name_fits(o, name, type))
            continue;
        if (!path_of(me, base, name, len))
            return -1;
        bool link = type == DT_LNK;
        if ((link || s->judge_all) && !files_may_show(s->g, me->path.data, me->path.len, link, &me->scratch))
            continue;
        if (o->content && (type != DT_REG || !holds(me, f->fd, name)))
            continue;
        buf_addc(&f->hits, '{');
        name_field(&f->hits, "name", name, len);
        buf_adds(&f->hits, ", ");
        name_field(&f->hits, "path", me->path.data, me->path.len);
        buf_adds(&f->hits, "}\n");
        most--;
    }
    me->path.len = base;
    return f->hits.failed ? -1 : 0;
}

static struct folder *folder_new(struct folder *parent, const char *name, size_t len)
{
    struct folder *f = calloc(1, sizeof *f + len + 1);
    if (!f)
        return NULL;
    f->parent = parent;
    f->level = parent ? parent->level + 1 : 1;
    f->fd = -1;
    memcpy(f->name, name, len);
    return f;
}

/* Makes the children of the subdirectories among the entries. */
static int add_children(struct searcher *me, struct folder *f, const struct dir *d)
{
    struct search *s = me->s;
    size_t base = me->path.len;
    struct folder **end = &f->first_child;
    for (size_t i = 0; i < d->n; i++) {
        if (d->entries[i].type != DT_DIR)
            continue;
        const char *text = path_of(me, base, dir_name(d, i), d->entries[i].len);
        if (!text)
            return -1;
        if (s->judge_all && guard_denies(s->g, text))
            continue;
        *end = folder_new(f, dir_name(d, i), d->entries[i].len);
        if (!*end)
            return -1;
        end = &(*end)->next;
        f->unopened++;
    }
    me->path.len = base;
    return 0;
}

/* Reads a directory that is open: its hits and its children. -1: no memory. */
static int visit(struct searcher *me, struct folder *f)
{
    const struct search_options *o = me->s->opt;
    buf_reset(&me->path);
    add_path(&me->path, me->s, f);
    autodir struct dir d = DIR_INIT;
    me->level = f->level;
    if (me->path.failed || (dir_read_some(&d, f->fd, worth_keeping, must_stop, me) < 0 && errno == ENOMEM))
        return -1;
    /* Hits and subdirectories stay, each with what it is; the rest is dropped before sorting. */
    size_t kept = 0;
    for (size_t i = 0; i < d.n; i++) {
        uint8_t type = dir_type(&d, i, f->fd);
        if (!is_hit(o, f->fd, dir_name(&d, i), type) && (type != DT_DIR || f->level == o->max_depth))
            continue;
        d.entries[kept] = d.entries[i];
        d.entries[kept++].type = type;
        if (i % 4096 == 4095 && must_stop(me, 0))
            break;
    }
    d.n = kept;
    dir_sort(&d);
    if (find_hits(me, f, &d) < 0)
        return -1;
    return f->level < o->max_depth && f->level < DEPTH_CAP ? add_children(me, f, &d) : 0;
}

/* --- all ----------------------------------------------------------------------------------------- */

static void folder_free(struct folder *f)
{
    if (f->fd >= 0)
        close(f->fd);
    buf_done(&f->hits);
    free(f);
}

/* Puts a folder's hits into the answer, as many as are wanted. */
static void give(struct search *s, struct folder *f)
{
    for (size_t at = 0; at < f->hits.len && !s->full;) {
        const char *line = f->hits.data + at;
        size_t n = (size_t)((char *)memchr(line, '\n', f->hits.len - at) - line);
        if (s->left == 0) {
            s->full = true;
            break;
        }
        if (!s->first)
            buf_adds(s->out, ", ");
        s->first = false;
        buf_add(s->out, line, n);
        s->left--;
        at += n + 1;
    }
    buf_done(&f->hits);
}

/* From a folder that is dealt with to the one behind it; what has no more to come is forgotten. */
static struct folder *step(struct folder *f)
{
    if (f->first_child)
        return f->first_child;
    while (f) {
        struct folder *next = f->next, *parent = f->parent;
        folder_free(f);
        if (next)
            return next;
        f = parent;
    }
    return NULL;
}

/* Moves the cursor as far as everything is done; with `all` to the end, over what is not. */
static void advance(struct search *s, bool all)
{
    while (s->cursor && (all || (s->cursor->done && !s->full))) {
        if (s->cursor->done)
            give(s, s->cursor);
        s->cursor = step(s->cursor);
    }
}

/* Opens a folder taken from the stack. The lock is held, but not while the disk is asked. */
static bool open_folder(struct search *s, struct folder *f)
{
    if (!f->parent)
        return true;
    pthread_mutex_unlock(&s->lock);
    int fd = openat(f->parent->fd, f->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    note_want(s, fd);
    pthread_mutex_lock(&s->lock);
    f->fd = fd;
    if (--f->parent->unopened == 0)
        close(take_fd(&f->parent->fd));
    return fd >= 0;
}

/* Takes one from the stack and deals with it. The lock is held, but not meanwhile. */
static void deal_with_one(struct searcher *me)
{
    struct search *s = me->s;
    struct folder *f = s->top;
    s->top = f->below;
    s->working++;
    if (open_folder(s, f)) {
        pthread_mutex_unlock(&s->lock);
        int rc = must_stop(me, 0) ? 0 : visit(me, f);
        pthread_mutex_lock(&s->lock);
        if (rc < 0)
            atomic_store(&s->want, ENOMEM);
        if (f->unopened == 0)
            close(take_fd(&f->fd));
    }
    struct folder **at = &s->top, *rest = s->top;
    for (struct folder *child = f->first_child; child; child = child->next) {
        *at = child;
        at = &child->below;
    }
    *at = rest;
    f->done = true;
    s->working--;
    advance(s, false);
    s->stop = s->stop || s->full || is_given_up(s);
    pthread_cond_broadcast(&s->changed);
}

static void searcher_done(struct searcher *me)
{
    buf_done(&me->path);
    buf_done(&me->content);
    arena_done(&me->scratch);
}

/* Until there is nothing to do any more. Returns true when it ran alone for long enough and there is work for two. */
static bool work(struct search *s, uint64_t alone_until)
{
    struct searcher me __attribute__((cleanup(searcher_done))) = {.s = s};
    arena_init(&me.scratch);
    bool more = false;
    pthread_mutex_lock(&s->lock);
    while (!s->stop && !more) {
        if (s->top) {
            deal_with_one(&me);
            more = alone_until && s->top && s->top->below && mono_ns() >= alone_until;
        } else if (s->working > 0) {
            pthread_cond_wait(&s->changed, &s->lock);
        } else {
            break;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return more;
}

static void *help(void *data)
{
    (void)work(data, 0);
    return NULL;
}

static void run(struct search *s)
{
    if (!work(s, mono_ns() + ALONE_NS))
        return;
    pthread_t helpers[HELPERS];
    int n = 0;
    while (n < HELPERS && pthread_create(&helpers[n], NULL, help, s) == 0)
        n++;
    (void)work(s, 0);
    while (n > 0)
        pthread_join(helpers[--n], NULL);
}

int files_search(const struct guard *g, const char *path, size_t len,
                 const struct search_options *opt, struct arena *arena, struct buf *out,
                 const char **ret_path, struct abx_error *err)
{
    struct guard_path gp;
    autoclose int fd = -1;
    if (files_open_dir(g, path, len, arena, &gp, &fd, err) < 0)
        return -1;
    *ret_path = gp.resolved;
    bool at_top = strcmp(gp.resolved, "/") == 0;
    struct search s = {.g = g,
                       .opt = opt,
                       .out = out,
                       .start = at_top ? "" : gp.resolved,
                       .judge_all = at_top || guard_has_deny(g),
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .changed = PTHREAD_COND_INITIALIZER,
                       .first = true,
                       .left = opt->max_results > 0 ? opt->max_results : 1};
    buf_adds(out, "{\"results\": [");
    if (opt->max_depth > 0) {
        s.top = s.cursor = folder_new(NULL, "", 0);
        if (!s.top)
            return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the search");
        s.top->fd = take_fd(&fd);
        run(&s);
        advance(&s, true);
    }
    if (atomic_load(&s.cancelled))
        return abx_fail(err, E_CANCELLED, 0, "the client has left");
    buf_addf(out, "], \"timed_out\": %s, \"truncated\": %s}", atomic_load(&s.timed_out) ? "true" : "false",
             s.full ? "true" : "false");
    int want = out->failed ? ENOMEM : atomic_load(&s.want);
    if (want == ENOMEM)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the search");
    return want ? abx_fail_os(err, want, gp.resolved) : 0;
}
