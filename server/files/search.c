#include "files/search.h"

#include "base/loop.h"
#include "base/own.h"
#include "files/dir.h"
#include "files/list.h"
#include "files/names.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_CAP 128 /* one descriptor a level */
#define READ_SIZE (64 * KIB)

struct searcher {
    const struct guard *g;
    const struct search_options *opt;
    struct buf *out;
    struct buf path;    /* of the directory at hand, without a slash at its end */
    struct buf content; /* window over a file */
    struct arena scratch;
    int64_t left;
    bool judge_all, timed_out, cancelled, full, first;
};

static void searcher_done(struct searcher *s)
{
    buf_done(&s->path);
    buf_done(&s->content);
    arena_done(&s->scratch);
}

static bool must_stop(void *data, size_t so_far)
{
    struct searcher *s = data;
    if (mono_ns() >= s->opt->deadline_ns)
        s->timed_out = true;
    if (s->opt->cancelled && s->opt->cancelled(s->opt->data))
        s->cancelled = true;
    return s->timed_out || s->cancelled;
}

/* Does the file hold the bytes? Read in windows that overlap by the length of what is looked for.
 */
static bool holds(struct searcher *s, int dirfd, const char *name)
{
    const struct search_options *o = s->opt;
    autoclose int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    buf_reset(&s->content);
    for (;;) {
        char *at = buf_reserve(&s->content, READ_SIZE);
        if (!at)
            return false;
        ssize_t n = read(fd, at, READ_SIZE);
        if (n <= 0)
            return false;
        s->content.len += (size_t)n;
        if (memmem(s->content.data, s->content.len, o->content, o->content_len))
            return true;
        if (s->content.len >= o->content_len)
            buf_consume(&s->content, s->content.len - (o->content_len - 1));
        if (must_stop(s, 0))
            return false;
    }
}

static bool is_hit(struct searcher *s, int fd, const struct dir *d, size_t i, uint8_t type)
{
    const struct search_options *o = s->opt;
    const char *name = dir_name(d, i);
    if (type == DT_UNKNOWN || (type == DT_DIR && (!o->include_dirs || o->content)))
        return false;
    if (!guard_glob(o->pattern, name))
        return false;
    if (type == DT_LNK) {
        struct stat st;
        bool to_dir = fstatat(fd, name, &st, 0) == 0 && S_ISDIR(st.st_mode);
        if (to_dir && !o->include_dirs)
            return false;
    }
    return true;
}

static void add_hit(struct searcher *s, const char *name, size_t len)
{
    buf_adds(s->out, s->first ? "{" : ", {");
    s->first = false;
    name_field(s->out, "name", name, len);
    buf_adds(s->out, ", ");
    name_field(s->out, "path", s->path.data, s->path.len);
    buf_addc(s->out, '}');
}

static int walk(struct searcher *s, int fd, int64_t level)
{
    if (level > s->opt->max_depth || level > DEPTH_CAP || must_stop(s, 0))
        return 0;
    autodir struct dir d = DIR_INIT;
    if (dir_read(&d, fd, must_stop, s) < 0 && errno == ENOMEM)
        return -1;

    /* Keep hits and subdirectories, each with what it is; the rest is dropped before sorting. */
    size_t kept = 0, base = s->path.len;
    for (size_t i = 0; i < d.n; i++) {
        uint8_t type = dir_type(&d, i, fd);
        bool hit = is_hit(s, fd, &d, i, type);
        if (!hit && (type != DT_DIR || level == s->opt->max_depth))
            continue;
        d.entries[kept] = d.entries[i];
        d.entries[kept++].type = type;
        if (i % 4096 == 4095 && must_stop(s, 0))
            break;
    }
    d.n = kept;
    dir_sort(&d);

    for (size_t i = 0; i < d.n && !s->full && !s->cancelled; i++) {
        const char *name = dir_name(&d, i);
        uint8_t type = d.entries[i].type;
        if (type == DT_DIR && !is_hit(s, fd, &d, i, type))
            continue;
        s->path.len = base;
        buf_addc(&s->path, '/');
        buf_add(&s->path, name, d.entries[i].len);
        if (!buf_str(&s->path))
            return -1;
        bool link = type == DT_LNK;
        if ((link || s->judge_all) &&
            !files_may_show(s->g, s->path.data, s->path.len, link, &s->scratch))
            continue;
        if (s->opt->content && (type != DT_REG || !holds(s, fd, name)))
            continue;
        if (s->left <= 0) {
            s->full = true;
            break;
        }
        add_hit(s, name, d.entries[i].len);
        s->left--;
    }
    for (size_t i = 0; i < d.n && !s->full && !s->timed_out && !s->cancelled; i++) {
        if (d.entries[i].type != DT_DIR)
            continue;
        s->path.len = base;
        buf_addc(&s->path, '/');
        buf_add(&s->path, dir_name(&d, i), d.entries[i].len);
        const char *text = buf_str(&s->path);
        if (!text)
            return -1;
        if (s->judge_all && guard_denies(s->g, text))
            continue;
        autoclose int sub =
            openat(fd, dir_name(&d, i), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (sub >= 0 && walk(s, sub, level + 1) < 0)
            return -1;
    }
    s->path.len = base;
    return s->out->failed ? -1 : 0;
}

int files_search(const struct guard *g, const char *path, size_t len,
                 const struct search_options *opt, struct arena *arena, struct buf *out,
                 const char **ret_path, struct abx_error *err)
{
    struct guard_path gp;
    autoclose int fd = -1;
    if (guard_open(g, path, len, OP_READ, O_RDONLY | O_DIRECTORY, 0, arena, &gp, &fd, err) < 0) {
        if (!err || err->kind != E_OS || err->sys != EACCES)
            return files_lookup_error(err);
        if (guard_open(g, path, len, OP_READ, O_PATH | O_DIRECTORY, 0, arena, &gp, &fd, err) < 0)
            return files_lookup_error(err);
    }
    *ret_path = gp.resolved;
    struct searcher s __attribute__((cleanup(searcher_done))) = {
        .g = g,
        .opt = opt,
        .out = out,
        .first = true,
        .left = opt->max_results > 0 ? opt->max_results : 1};
    arena_init(&s.scratch);
    bool at_top = strcmp(gp.resolved, "/") == 0;
    s.judge_all = at_top || guard_has_deny(g);
    buf_adds(&s.path, at_top ? "" : gp.resolved);
    buf_adds(out, "{\"results\": [");
    if (walk(&s, fd, 1) < 0)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the search");
    if (s.cancelled)
        return abx_fail(err, E_CANCELLED, 0, "the client has left");
    buf_addf(out, "], \"timed_out\": %s, \"truncated\": %s}", s.timed_out ? "true" : "false",
             s.full ? "true" : "false");
    return out->failed ? abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the search") : 0;
}
