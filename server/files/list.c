#include "files/list.h"

#include "base/own.h"
#include "files/dir.h"
#include "files/names.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_CAP 128 /* one descriptor a level */

bool files_is_missing(int sys)
{
    return sys == ENOENT || sys == ENOTDIR || sys == ENAMETOOLONG || sys == ELOOP;
}

void files_parent_error(struct abx_error *err)
{
    if (err && err->kind == E_OS && err->sys == ENOTDIR)
        err->type = error_os_type(EEXIST);
}

int files_lookup_error(struct abx_error *err)
{
    if (err && err->kind == E_OS && files_is_missing(err->sys)) {
        err->kind = E_FILE_NOT_FOUND;
        err->status = 404;
        err->type = "FileNotFoundError";
    }
    return -1;
}

int files_open_dir(const struct guard *g, const char *path, size_t len, struct arena *arena,
                   struct guard_path *ret, int *ret_fd, struct abx_error *err)
{
    if (guard_open(g, path, len, OP_READ, O_RDONLY | O_DIRECTORY, 0, arena, ret, ret_fd, err) == 0)
        return 0;
    if (!err || err->kind != E_OS || err->sys != EACCES)
        return files_lookup_error(err);
    /* It may be a directory that is only closed to us. */
    if (guard_open(g, path, len, OP_READ, O_PATH | O_DIRECTORY, 0, arena, ret, ret_fd, err) == 0)
        return 0;
    return files_lookup_error(err);
}

bool files_may_show(const struct guard *g, const char *resolved, size_t len, bool link,
                    struct arena *scratch)
{
    if (guard_denies(g, resolved))
        return false;
    if (!link)
        return true;
    struct guard_path target;
    bool fine = guard_check(g, resolved, len, NULL, OP_READ, scratch, &target, NULL) == 0;
    arena_reset(scratch);
    return fine;
}

/* --- listing -------------------------------------------------------------------------------------
 */

struct lister {
    const struct guard *g;
    const struct list_options *opt;
    struct buf *out;
    struct buf path; /* of the directory at hand, without a slash at its end */
    struct arena scratch;
    struct time_writer time;
    int64_t left;
    bool judge_all; /* deny rules can hit entries here */
    bool truncated, first;
};

static void lister_done(struct lister *l)
{
    buf_done(&l->path);
    arena_done(&l->scratch);
}

static bool stop_reading(void *data, size_t so_far)
{
    const struct list_options *opt = data;
    if (opt->quick)
        return so_far > 1000;
    return opt->cancelled && opt->cancelled(opt->data);
}

static void write_entry(struct lister *l, const char *name, size_t len, const struct stat *st)
{
    struct buf *out = l->out;
    buf_adds(out, l->first ? "{" : ", {");
    l->first = false;
    name_field(out, "name", name, len);
    char tail[80];
    int n = snprintf(tail, sizeof tail, ", \"type\": \"%s\", \"size\": %lld, ",
                     S_ISDIR(st->st_mode) ? "directory" : "file", (long long)st->st_size);
    buf_add(out, tail, (size_t)n);
    time_field(out, &l->time, "modified", st->st_mtim);
    buf_add(out, ", ", 2);
    name_field(out, "path", l->path.data, l->path.len);
    buf_addc(out, '}');
}

static int walk(struct lister *l, int fd, int64_t depth, struct abx_error *err)
{
    autodir struct dir d = DIR_INIT;
    int rc = dir_read(&d, fd, stop_reading, (void *)l->opt);
    if (rc < 0 && errno == ENOMEM)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the listing");
    /* Other read errors: what came so far is shown, as for a directory that vanishes meanwhile. */
    if (rc == 1)
        return l->opt->quick ? 1 : abx_fail(err, E_CANCELLED, 0, "the client has left");
    dir_sort(&d);
    size_t base = l->path.len;
    for (size_t i = 0; i < d.n; i++) {
        if (l->left <= 0) {
            l->truncated = true;
            break;
        }
        if (i % 1024 == 1023 && l->opt->cancelled && l->opt->cancelled(l->opt->data))
            return abx_fail(err, E_CANCELLED, 0, "the client has left");
        const char *name = dir_name(&d, i);
        struct stat st;
        if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        l->path.len = base;
        buf_addc(&l->path, '/');
        buf_add(&l->path, name, d.entries[i].len);
        if (!buf_str(&l->path))
            return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the listing");
        bool link = S_ISLNK(st.st_mode);
        if ((link || l->judge_all) &&
            !files_may_show(l->g, l->path.data, l->path.len, link, &l->scratch))
            continue;
        write_entry(l, name, d.entries[i].len, &st);
        l->left--;
        if (!S_ISDIR(st.st_mode) || !l->opt->recursive || depth >= l->opt->max_depth)
            continue;
        autoclose int sub = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (sub < 0 && error_is_want(errno))
            return abx_fail_os(err, errno, l->path.data);
        if (sub >= 0 && walk(l, sub, depth + 1, err) < 0)
            return -1;
    }
    l->path.len = base;
    return l->out->failed ? abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the listing") : 0;
}

int files_list(const struct guard *g, const char *path, size_t len,
               const struct list_options *given, struct arena *arena, struct buf *out,
               const char **ret_path, struct abx_error *err)
{
    struct guard_path gp;
    autoclose int fd = -1;
    if (files_open_dir(g, path, len, arena, &gp, &fd, err) < 0)
        return -1;
    *ret_path = gp.resolved;
    if (given->quick && given->recursive)
        return 1;
    struct list_options opt = *given;
    if (opt.max_depth > DEPTH_CAP)
        opt.max_depth = DEPTH_CAP;

    struct lister l __attribute__((cleanup(lister_done))) = {
        .g = g, .opt = &opt, .out = out, .left = opt.max_entries, .first = true};
    arena_init(&l.scratch);
    bool at_top = strcmp(gp.resolved, "/") == 0;
    l.judge_all = at_top || guard_has_deny(g);
    buf_adds(&l.path, at_top ? "" : gp.resolved);
    buf_adds(out, "{\"entries\": [");
    int rc = walk(&l, fd, 1, err);
    if (rc != 0)
        return rc;
    buf_adds(out, l.truncated ? "], \"truncated\": true}" : "], \"truncated\": false}");
    return 0;
}

/* --- stat ----------------------------------------------------------------------------------------
 */

static const char *base_name(const char *path)
{
    return strrchr(path, '/') + 1; /* canonical paths have one */
}

int files_stat(const struct guard *g, const char *path, size_t len, struct arena *arena,
               struct buf *out, const char **ret_path, struct abx_error *err)
{
    struct guard_path gp;
    struct stat st;
    bool exists = false;
    autoclose int fd = -1;
    struct abx_error why;
    if (guard_open(g, path, len, OP_READ, O_PATH, 0, arena, &gp, &fd, &why) == 0) {
        if (fstat(fd, &st) < 0)
            return abx_fail_os(err, errno, gp.resolved);
        exists = true;
    } else {
        if (guard_check(g, path, len, NULL, OP_READ, arena, &gp, err) < 0)
            return -1;
        if (why.kind != E_OS || !files_is_missing(why.sys)) {
            if (err)
                *err = why;
            return -1;
        }
    }
    *ret_path = gp.resolved;
    const char *name = base_name(gp.resolved);
    buf_addc(out, '{');
    name_field(out, "name", name, strlen(name));
    buf_adds(out, ", ");
    name_field(out, "path", gp.resolved, strlen(gp.resolved));
    if (!exists) {
        buf_adds(out,
                 ", \"type\": \"unknown\", \"size\": 0, \"permissions\": \"\", \"modified\": \"\", "
                 "\"accessed\": \"\", \"created\": \"\", \"exists\": false}");
    } else {
        struct time_writer time = {0};
        buf_addf(out, ", \"type\": \"%s\", \"size\": %lld, \"permissions\": \"%03o\", ",
                 S_ISDIR(st.st_mode) ? "directory" : "file", (long long)st.st_size,
                 st.st_mode & 0777u);
        time_field(out, &time, "modified", st.st_mtim);
        buf_adds(out, ", ");
        time_field(out, &time, "accessed", st.st_atim);
        buf_adds(out, ", ");
        time_field(out, &time, "created", st.st_ctim);
        buf_adds(out, ", \"exists\": true}");
    }
    return out->failed ? abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the answer") : 0;
}
