#include "git/diff.h"

#include "base/json.h"
#include "base/own.h"
#include "base/utf8.h"
#include "git/combined.h"
#include "git/repo.h"
#include "git/scan.h"
#include "git/submodule.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* How it works: libgit2 finds what differs and the changed lines; the text around them is written
 * here, so that it is git's to the byte: order, quoting, abbreviated ids, conflicts. One file's
 * patch is in memory at a time, and past the limit they are only counted. */

#define MAX_TEXT 1048576
#define CUT_MARK "\n... (truncated at 1MB)"
#define MAX_CONFLICT_FILE (16 * MIB)

/* Submodules that differ from the index; their paths are the index's. */
struct subs {
    struct submodule *list;
    size_t n, cap;
    bool failed;
};

struct ctx {
    const struct git_query *q;
    git_repository *repo;
    git_odb *odb;
    git_index *index;
    git_diff *diff;
    struct buf text;
    int abbrev;
    bool quote_high;
    int64_t files, insertions, deletions;
    struct subs subs;
};

/* One thing to show, in git's order. */
struct item {
    const char *path;
    const struct submodule *submodule; /* NULL: a file */
    size_t delta;                      /* SIZE_MAX: none */
    bool unmerged;                     /* "* Unmerged path", then ours against the work tree */
};

/* --- ids -------------------------------------------------------------------------------------- */

/* Objects in packs, as the pack indexes say (gitformat-pack(5), version 2: the last fan-out entry).
 */
static uint64_t packed_objects(git_repository *repo)
{
    char dir[PATH_MAX];
    uint64_t n = 0;
    if ((size_t)snprintf(dir, sizeof dir, "%sobjects/pack", git_repository_commondir(repo)) >=
        sizeof dir)
        return 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        size_t len = strlen(entry->d_name);
        uint8_t count[4];
        if (len < 4 || strcmp(entry->d_name + len - 4, ".idx") != 0)
            continue;
        autoclose int fd = openat(dirfd(d), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && pread(fd, count, 4, 8 + 255 * 4) == 4)
            n += (uint64_t)count[0] << 24 | (uint64_t)count[1] << 16 | (uint64_t)count[2] << 8 |
                 count[3];
    }
    closedir(d);
    return n;
}

/* core.abbrev, else half the bits that the number of objects needs, at least 7. */
static int abbrev_length(git_repository *repo, git_config *config)
{
    int32_t configured;
    if (config && git_config_get_int32(&configured, config, "core.abbrev") == 0 && configured >= 4)
        return configured > GIT_OID_HEXSZ ? GIT_OID_HEXSZ : configured;
    uint64_t n = packed_objects(repo);
    int bits = n ? 64 - __builtin_clzll(n) : 0;
    return (bits + 1) / 2 > 7 ? (bits + 1) / 2 : 7;
}

/* Longer where another object begins alike. */
static void put_id(struct ctx *c, struct buf *out, const git_oid *id)
{
    char hex[GIT_OID_HEXSZ + 1];
    git_oid_tostr(hex, sizeof hex, id);
    int len = c->abbrev;
    for (; len < GIT_OID_HEXSZ && !git_oid_is_zero(id); len++) {
        git_oid found;
        int rc = git_odb_exists_prefix(&found, c->odb, id, (size_t)len);
        if (rc == GIT_ENOTFOUND || (rc == 0 && git_oid_equal(&found, id)))
            break;
    }
    buf_add(out, hex, (size_t)len);
}

/* --- one file --------------------------------------------------------------------------------- */

static void put_name(struct ctx *c, const char *prefix, const char *name)
{
    if (name)
        repo_quote(&c->text, prefix, name, c->quote_high);
    else
        buf_adds(&c->text, "/dev/null");
}

static void put_label(struct ctx *c, const char *sign, const char *prefix, const char *name)
{
    buf_adds(&c->text, sign);
    put_name(c, prefix, name);
    if (name && strchr(name, ' '))
        buf_addc(&c->text, '\t'); /* so that patch(1) finds the end of a name with blanks */
    buf_addc(&c->text, '\n');
}

static bool differ(const git_diff_delta *d)
{
    return d->status == GIT_DELTA_ADDED || d->status == GIT_DELTA_DELETED ||
           !git_oid_equal(&d->old_file.id, &d->new_file.id);
}

static void put_header(struct ctx *c, const git_diff_delta *d)
{
    struct buf *out = &c->text;
    bool added = d->status == GIT_DELTA_ADDED, deleted = d->status == GIT_DELTA_DELETED;
    const char *from = added ? d->new_file.path : d->old_file.path;
    const char *to = deleted ? d->old_file.path : d->new_file.path;
    buf_adds(out, "diff --git ");
    repo_quote(out, "a/", from, c->quote_high);
    buf_addc(out, ' ');
    repo_quote(out, "b/", to, c->quote_high);
    buf_addc(out, '\n');
    if (added)
        buf_addf(out, "new file mode %06o\n", d->new_file.mode);
    else if (deleted)
        buf_addf(out, "deleted file mode %06o\n", d->old_file.mode);
    else if (d->old_file.mode != d->new_file.mode)
        buf_addf(out, "old mode %06o\nnew mode %06o\n", d->old_file.mode, d->new_file.mode);
    if (d->status == GIT_DELTA_RENAMED) {
        buf_addf(out, "similarity index %d%%\nrename from ", d->similarity);
        repo_quote(out, "", from, c->quote_high);
        buf_adds(out, "\nrename to ");
        repo_quote(out, "", to, c->quote_high);
        buf_addc(out, '\n');
    }
    if (!differ(d))
        return;
    static const git_oid none;
    buf_adds(out, "index ");
    put_id(c, out, added ? &none : &d->old_file.id);
    buf_adds(out, "..");
    put_id(c, out, deleted ? &none : &d->new_file.id);
    if (!added && !deleted && d->old_file.mode == d->new_file.mode)
        buf_addf(out, " %06o", d->new_file.mode);
    buf_addc(out, '\n');
}

static int put_lines(struct ctx *c, git_patch *patch)
{
    struct buf *out = &c->text;
    for (size_t h = 0; h < git_patch_num_hunks(patch); h++) {
        const git_diff_hunk *hunk;
        size_t n;
        if (git_patch_get_hunk(&hunk, &n, patch, h) < 0)
            return -1;
        buf_add(out, hunk->header, hunk->header_len);
        for (size_t i = 0; i < n; i++) {
            const git_diff_line *line;
            if (git_patch_get_line_in_hunk(&line, patch, h, i) < 0)
                return -1;
            if (line->origin == GIT_DIFF_LINE_CONTEXT || line->origin == GIT_DIFF_LINE_ADDITION ||
                line->origin == GIT_DIFF_LINE_DELETION)
                buf_addc(out, line->origin);
            buf_add(out, line->content,
                    line->content_len); /* the others begin with their own newline */
        }
    }
    return 0;
}

static int count_lines(struct ctx *c, git_patch *patch)
{
    size_t added, deleted;
    if (git_patch_line_stats(NULL, &added, &deleted, patch) < 0)
        return -1;
    c->insertions += (int64_t)added;
    c->deletions += (int64_t)deleted;
    return 0;
}

static bool is_full(const struct ctx *c) { return c->text.len > MAX_TEXT; }

static int put_patch(struct ctx *c, const git_diff_delta *d, git_patch *patch)
{
    bool added = d->status == GIT_DELTA_ADDED, deleted = d->status == GIT_DELTA_DELETED;
    bool same_commit =
        d->new_file.mode == GIT_FILEMODE_COMMIT && !differ(d); /* a dirty submodule */
    if (patch && !same_commit && count_lines(c, patch) < 0)
        return -1;
    if (is_full(c))
        return 0;
    put_header(c, d);
    const char *from = added ? NULL : d->old_file.path, *to = deleted ? NULL : d->new_file.path;
    if (d->flags & GIT_DIFF_FLAG_BINARY) {
        if (!differ(d))
            return 0;
        buf_adds(&c->text, "Binary files ");
        put_name(c, "a/", from);
        buf_adds(&c->text, " and ");
        put_name(c, "b/", to);
        buf_adds(&c->text, " differ\n");
        return 0;
    }
    if (!patch || git_patch_num_hunks(patch) == 0)
        return 0;
    put_label(c, "--- ", "a/", from);
    put_label(c, "+++ ", "b/", to);
    return put_lines(c, patch);
}

/* The file as `git add` would store it: through the guard, links as their text, line ends
 * converted. Returns its mode, 0 when it is gone, or -1. */
static int read_worktree(struct ctx *c, const char *path, struct buf *out)
{
    struct arena arena;
    struct guard_path judged;
    struct abx_error ignored;
    struct stat st;
    autobuf struct buf full = BUF_INIT;
    buf_adds(&full, git_repository_workdir(c->repo));
    buf_adds(&full, path);
    if (!buf_str(&full))
        return -1;
    char target[PATH_MAX];
    ssize_t link = readlink(full.data, target, sizeof target);
    if (link > 0) {
        buf_add(out, target, (size_t)link);
        return GIT_FILEMODE_LINK;
    }
    autoclose int fd = -1;
    arena_init(&arena);
    int rc = guard_open(c->q->guard, full.data, full.len, OP_READ, O_RDONLY | O_NONBLOCK, 0, &arena,
                        &judged, &fd, &ignored);
    arena_done(&arena);
    if (rc < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_CONFLICT_FILE)
        return 0;
    autobuf struct buf raw = BUF_INIT;
    for (ssize_t n = 1; n > 0 && raw.len <= MAX_CONFLICT_FILE;) {
        char *at = buf_reserve(&raw, 64 * KIB);
        n = at ? read(fd, at, 64 * KIB) : -1;
        if (n < 0)
            return -1;
        raw.len += (size_t)n;
    }
    git_filter_list *filters = NULL;
    git_buf filtered = GIT_BUF_INIT;
    if (git_filter_list_load(&filters, c->repo, NULL, path, GIT_FILTER_TO_ODB,
                             GIT_FILTER_ALLOW_UNSAFE) == 0 &&
        filters &&
        git_filter_list_apply_to_buffer(&filtered, filters, raw.data ? raw.data : "", raw.len) == 0)
        buf_add(out, filtered.ptr, filtered.size);
    else
        buf_add(out, raw.data, raw.len);
    git_buf_dispose(&filtered);
    git_filter_list_free(filters);
    return st.st_mode & 0111 ? GIT_FILEMODE_BLOB_EXECUTABLE : GIT_FILEMODE_BLOB;
}

/* What is binary by attribute libgit2 doesn't read, so it has no id. */
static int complete_id(struct ctx *c, git_diff_delta *d)
{
    autobuf struct buf content = BUF_INIT;
    if (c->q->staged || d->status == GIT_DELTA_DELETED || !git_oid_is_zero(&d->new_file.id))
        return 0;
    if (read_worktree(c, d->new_file.path, &content) <= 0)
        return 0;
    return git_odb_hash(&d->new_file.id, content.data ? content.data : "", content.len,
                        GIT_OBJECT_BLOB);
}

static bool intent_to_add(struct ctx *c, const char *path)
{
    const git_index_entry *entry = git_index_get_bypath(c->index, path, 0);
    return entry && (entry->flags_extended & GIT_INDEX_ENTRY_INTENT_TO_ADD);
}

static int put_delta(struct ctx *c, size_t at)
{
    git_patch *patch = NULL;
    if (git_patch_from_diff(&patch, c->diff, at) < 0)
        return -1;
    git_diff_delta delta = *(patch ? git_patch_get_delta(patch) : git_diff_get_delta(c->diff, at));
    if (!c->q->staged && delta.status == GIT_DELTA_MODIFIED &&
        intent_to_add(c, delta.new_file.path))
        delta.status = GIT_DELTA_ADDED;
    int rc = complete_id(c, &delta);
    if (rc == 0)
        rc = put_patch(c, &delta, patch);
    git_patch_free(patch);
    return rc;
}

/* --- conflicts -------------------------------------------------------------------------------- */

static int read_stage(struct ctx *c, const git_index_entry *entry, git_blob **ret,
                      struct side *side)
{
    if (git_blob_lookup(ret, c->repo, &entry->id) < 0)
        return -1;
    *side = (struct side){git_blob_rawcontent(*ret), (size_t)git_blob_rawsize(*ret)};
    return 0;
}

static bool is_binary(const struct side *side)
{
    return side->len > 0 && memchr(side->data, '\0', side->len < 8000 ? side->len : 8000);
}

static void put_combined_header(struct ctx *c, const git_index_entry *ours,
                                const git_index_entry *theirs, int mode, bool labels)
{
    static const git_oid none;
    struct buf *out = &c->text;
    buf_adds(out, "diff --cc ");
    repo_quote(out, "", ours->path, c->quote_high);
    buf_adds(out, "\nindex ");
    put_id(c, out, &ours->id);
    buf_addc(out, ',');
    put_id(c, out, &theirs->id);
    buf_adds(out, "..");
    put_id(c, out, &none); /* the work tree's has none yet */
    buf_addc(out, '\n');
    if ((int)ours->mode != mode || (int)theirs->mode != mode) {
        buf_addf(out, "%smode %06o,%06o", mode ? "" : "deleted file ", ours->mode, theirs->mode);
        if (mode)
            buf_addf(out, "..%06o", (unsigned)mode);
        buf_addc(out, '\n');
    }
    if (labels) { /* here git adds no tab */
        buf_adds(out, "--- ");
        put_name(c, "a/", ours->path);
        buf_adds(out, "\n+++ ");
        put_name(c, "b/", mode ? ours->path : NULL);
        buf_addc(out, '\n');
    }
}

/* What git's summary says of a conflict: ours against the work tree. */
static int count_against_ours(struct ctx *c, const struct side *ours, const struct side *now,
                              bool same_mode)
{
    if (same_mode && ours->len == now->len && memcmp(ours->data, now->data, now->len) == 0)
        return 0;
    git_patch *patch = NULL;
    git_diff_options opts;
    git_diff_options_init(&opts, GIT_DIFF_OPTIONS_VERSION); /* can't fail: the version is ours */
    opts.flags = GIT_DIFF_INDENT_HEURISTIC;
    c->files++;
    if (git_patch_from_buffers(&patch, ours->data, ours->len, NULL, now->data, now->len, NULL,
                               &opts) < 0)
        return -1;
    int rc = patch ? count_lines(c, patch) : 0;
    git_patch_free(patch);
    return rc;
}

static int put_combined(struct ctx *c, const git_index_entry *ours, const git_index_entry *theirs)
{
    git_blob *blobs[2] = {NULL, NULL};
    struct side sides[2], now;
    autobuf struct buf content = BUF_INIT;
    int mode = read_worktree(c, ours->path, &content), rc = -1;
    if (mode < 0 || read_stage(c, ours, &blobs[0], &sides[0]) < 0 ||
        read_stage(c, theirs, &blobs[1], &sides[1]) < 0)
        goto out;
    now = (struct side){content.data ? content.data : "", content.len};
    bool binary = is_binary(&sides[0]) || is_binary(&sides[1]) || is_binary(&now);
    if (count_against_ours(c, &sides[0], &now, (int)ours->mode == mode) < 0)
        goto out;
    rc = 0;
    if (is_full(c))
        goto out;
    put_combined_header(c, ours, theirs, mode, !binary);
    if (binary)
        buf_adds(&c->text, "Binary files differ\n");
    else if (mode) /* of a file that is gone git shows the header only */
        rc = combined_hunks(sides, &now, &c->text);
out:
    git_blob_free(blobs[0]);
    git_blob_free(blobs[1]);
    return rc;
}

/* Only one side has the file (or none): said so, and shown against the work tree if it is ours. */
static int put_unmerged(struct ctx *c, const char *path)
{
    const git_index_entry *ours = git_index_get_bypath(c->index, path, 2);
    if (!is_full(c))
        buf_addf(&c->text, "* Unmerged path %s\n", path);
    if (!ours || c->q->staged)
        return 0;
    git_blob *blob = NULL;
    git_patch *patch = NULL;
    struct side side;
    autobuf struct buf content = BUF_INIT;
    int mode = read_worktree(c, path, &content), rc = -1;
    git_diff_options opts;
    git_diff_options_init(&opts, GIT_DIFF_OPTIONS_VERSION);
    opts.flags = GIT_DIFF_INDENT_HEURISTIC;
    if (mode < 0 || read_stage(c, ours, &blob, &side) < 0)
        goto out;
    git_diff_delta d = {.status = mode ? GIT_DELTA_MODIFIED : GIT_DELTA_DELETED,
                        .old_file = {.path = path, .mode = (uint16_t)ours->mode, .id = ours->id},
                        .new_file = {.path = path, .mode = (uint16_t)mode}};
    if (mode && git_odb_hash(&d.new_file.id, content.data ? content.data : "", content.len,
                             GIT_OBJECT_BLOB) < 0)
        goto out;
    if (mode && git_oid_equal(&d.new_file.id, &ours->id) && mode == (int)ours->mode) {
        rc = 0;
        goto out;
    }
    if (git_patch_from_buffers(&patch, side.data, side.len, path,
                               mode && content.data ? content.data : "", content.len, path,
                               &opts) < 0)
        goto out;
    if (patch)
        d.flags = git_patch_get_delta(patch)->flags & GIT_DIFF_FLAG_BINARY;
    c->files++;
    rc = put_patch(c, &d, patch);
out:
    git_patch_free(patch);
    git_blob_free(blob);
    return rc;
}

/* --- all of them ------------------------------------------------------------------------------ */

static int by_path(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    if (order)
        return order;
    if (x->unmerged != y->unmerged)
        return y->unmerged - x->unmerged;
    return x->delta < y->delta ? -1
                               : x->delta > y->delta; /* a change of type: deleted, then added */
}

/* Does the `file` of the call cover this path of the repository? Literally: it is a name, no
 * pattern. */
static bool is_asked_for(const struct ctx *c, const char *path)
{
    if (!c->q->file)
        return true;
    const char *work = git_repository_workdir(c->repo);
    size_t n = strlen(work);
    if (strncmp(c->q->file, work, n - 1) != 0)
        return false;
    if (!c->q->file[n - 1])
        return true; /* the work tree itself */
    if (c->q->file[n - 1] != '/')
        return false;
    const char *rel = c->q->file + n;
    size_t len = strlen(rel);
    return strncmp(path, rel, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static bool is_denied(const struct ctx *c, const char *path)
{
    autobuf struct buf full = BUF_INIT;
    if (!path || !guard_has_deny(c->q->guard))
        return false;
    buf_adds(&full, git_repository_workdir(c->repo));
    buf_adds(&full, path);
    return !buf_str(&full) || guard_denies(c->q->guard, full.data);
}

static bool shows(const struct ctx *c, const git_diff_delta *d)
{
    const char *path = d->status == GIT_DELTA_DELETED ? d->old_file.path : d->new_file.path;
    if (d->status == GIT_DELTA_UNMODIFIED || d->status == GIT_DELTA_UNTRACKED ||
        d->status == GIT_DELTA_IGNORED || d->status == GIT_DELTA_UNREADABLE ||
        d->status == GIT_DELTA_CONFLICTED)
        return false;
    if (!c->q->staged && d->old_file.mode == GIT_FILEMODE_COMMIT)
        return false; /* submodule.h */
    return is_asked_for(c, path) && !is_denied(c, path) && !is_denied(c, d->old_file.path);
}

/* Conflicts with both sides come first, at once; the others take their place among the files. */
static int take_conflicts(struct ctx *c, struct item *items, size_t *n, size_t max)
{
    git_index_conflict_iterator *it;
    const git_index_entry *base, *ours, *theirs;
    if (!git_index_has_conflicts(c->index))
        return 0;
    if (git_index_conflict_iterator_new(&it, c->index) < 0)
        return -1;
    int rc;
    while ((rc = git_index_conflict_next(&base, &ours, &theirs, it)) == 0) {
        const git_index_entry *any = ours ? ours : theirs ? theirs : base;
        if (!is_asked_for(c, any->path) || is_denied(c, any->path))
            continue;
        if (!c->q->staged && ours && theirs && ours->mode != GIT_FILEMODE_COMMIT &&
            theirs->mode != GIT_FILEMODE_COMMIT) {
            if (put_combined(c, ours, theirs) < 0)
                break;
        } else if (*n < max) {
            items[(*n)++] = (struct item){.path = any->path, .delta = SIZE_MAX, .unmerged = true};
        }
    }
    git_index_conflict_iterator_free(it);
    return rc == GIT_ITEROVER ? 0 : -1;
}

static bool in_conflict(const struct ctx *c, const char *path)
{
    for (int stage = 1; stage <= 3; stage++)
        if (git_index_get_bypath(c->index, path, stage))
            return true;
    return false;
}

/* libgit2 sees no change in an empty file that is only intended to be added. */
static void take_intended(struct ctx *c, struct item *items, size_t *n, size_t max)
{
    size_t listed = *n;
    for (size_t i = 0; !c->q->staged && i < git_index_entrycount(c->index) && *n < max; i++) {
        const git_index_entry *entry = git_index_get_byindex(c->index, i);
        if (!(entry->flags_extended & GIT_INDEX_ENTRY_INTENT_TO_ADD) ||
            !is_asked_for(c, entry->path) || is_denied(c, entry->path))
            continue;
        size_t k = 0;
        while (k < listed && strcmp(items[k].path, entry->path) != 0)
            k++;
        if (k == listed)
            items[(*n)++] = (struct item){.path = entry->path, .delta = SIZE_MAX};
    }
}

static int put_intended(struct ctx *c, const char *path)
{
    autobuf struct buf content = BUF_INIT;
    int mode = read_worktree(c, path, &content);
    git_diff_delta d = {.status = GIT_DELTA_ADDED,
                        .new_file = {.path = path, .mode = (uint16_t)mode}};
    if (mode <= 0)
        return mode;
    return complete_id(c, &d) < 0 ? -1 : put_patch(c, &d, NULL);
}

static void keep_submodule(void *data, const struct submodule *one)
{
    struct subs *subs = data;
    if (subs->n == subs->cap) {
        size_t cap = subs->cap ? subs->cap * 2 : 16;
        struct submodule *grown = realloc(subs->list, cap * sizeof *grown);
        if (!grown) {
            subs->failed = true;
            return;
        }
        subs->list = grown;
        subs->cap = cap;
    }
    subs->list[subs->n++] = *one;
}

static int take_submodules(struct ctx *c, struct item *items, size_t *n, size_t max)
{
    if (c->q->staged)
        return 0;
    if (submodules_each(c->q, c->repo, c->index, UNTRACKED_IGNORED, 0, keep_submodule, &c->subs) <
            0 ||
        c->subs.failed)
        return -1;
    for (size_t i = 0; i < c->subs.n && *n < max; i++)
        if (is_asked_for(c, c->subs.list[i].path) && !is_denied(c, c->subs.list[i].path))
            items[(*n)++] = (struct item){
                .path = c->subs.list[i].path, .submodule = &c->subs.list[i], .delta = SIZE_MAX};
    return 0;
}

static void put_submodule(struct ctx *c, const struct submodule *one)
{
    char hex[GIT_OID_HEXSZ + 1];
    git_diff_delta d = {
        .status = one->gone ? GIT_DELTA_DELETED : GIT_DELTA_MODIFIED,
        .old_file = {.path = one->path, .mode = GIT_FILEMODE_COMMIT, .id = one->recorded},
        .new_file = {.path = one->path, .mode = GIT_FILEMODE_COMMIT, .id = one->current}};
    bool moved = differ(&d); /* otherwise only files in it have changed, and git counts no lines */
    c->insertions += moved && !one->gone;
    c->deletions += moved;
    if (is_full(c))
        return;
    put_header(c, &d);
    put_label(c, "--- ", "a/", one->path);
    put_label(c, "+++ ", "b/", one->gone ? NULL : one->path);
    git_oid_tostr(hex, sizeof hex, &one->recorded);
    buf_addf(&c->text, "@@ -1 +%s @@\n-Subproject commit %s\n", one->gone ? "0,0" : "1", hex);
    git_oid_tostr(hex, sizeof hex, &one->current);
    if (!one->gone)
        buf_addf(&c->text, "+Subproject commit %s%s\n", hex, one->dirty ? "-dirty" : "");
}

static int put_item(struct ctx *c, const struct item *item)
{
    if (item->unmerged)
        return put_unmerged(c, item->path);
    if (item->submodule) {
        put_submodule(c, item->submodule);
        return 0;
    }
    return item->delta == SIZE_MAX ? put_intended(c, item->path) : put_delta(c, item->delta);
}

static int put_all(struct ctx *c, struct abx_error *err)
{
    size_t n = 0, deltas = git_diff_num_deltas(c->diff),
           max = deltas + git_index_entrycount(c->index);
    bool conflicts = git_index_has_conflicts(c->index);
    autofree struct item *items = malloc((max + 1) * sizeof *items);
    if (!items)
        return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
    if (take_conflicts(c, items, &n, max) < 0)
        return repo_fail(err, "cannot show a conflict");
    for (size_t i = 0; i < deltas && n < max; i++) {
        const git_diff_delta *d = git_diff_get_delta(c->diff, i);
        const char *path = d->status == GIT_DELTA_DELETED ? d->old_file.path : d->new_file.path;
        if (!shows(c, d) || (conflicts && in_conflict(c, path)) ||
            (c->q->staged && d->status == GIT_DELTA_ADDED && intent_to_add(c, path)))
            continue;
        items[n++] = (struct item){.path = path, .delta = i};
    }
    take_intended(c, items, &n, max);
    if (take_submodules(c, items, &n, max) < 0)
        return repo_late(c->q) ? repo_timed_out("diff", err)
                               : repo_fail(err, "cannot read a submodule");
    qsort(items, n, sizeof *items, by_path);
    for (size_t i = 0; i < n; i++) {
        if (repo_late(c->q))
            return repo_timed_out("diff", err);
        /* a change of type is two patches of one file */
        if (!items[i].unmerged &&
            (i == 0 || items[i - 1].unmerged || strcmp(items[i - 1].path, items[i].path) != 0))
            c->files++;
        if (put_item(c, &items[i]) < 0)
            return repo_fail(err, "cannot make the diff");
    }
    return 0;
}

/* Without a pathspec libgit2 would look at everything; a literal one keeps it to what is asked for.
 */
static int make_diff(struct ctx *c, struct abx_error *err)
{
    git_diff_options opts;
    git_diff_options_init(&opts, GIT_DIFF_OPTIONS_VERSION);
    opts.flags = GIT_DIFF_INDENT_HEURISTIC | GIT_DIFF_DISABLE_PATHSPEC_MATCH;
    opts.progress_cb = repo_progress;
    opts.payload = (void *)c->q;
    const char *work = git_repository_workdir(c->repo);
    size_t n = strlen(work);
    char *spec = NULL;
    /* a rename is told from both of its ends, so the index is compared whole */
    if (c->q->file && !c->q->staged && strncmp(c->q->file, work, n) == 0 && c->q->file[n]) {
        spec = (char *)c->q->file + n;
        opts.pathspec = (git_strarray){&spec, 1};
    }
    struct scanned scanned = {0};
    int rc;
    if (c->q->staged) {
        git_tree *tree = NULL;
        if (repo_head_tree(c->repo, &tree, err) < 0)
            return -1;
        rc = git_diff_tree_to_index(&c->diff, c->repo, tree, c->index, &opts);
        git_tree_free(tree);
        if (rc == 0 && !c->q->file) /* git gives the file alone: added, not renamed */
            rc = repo_find_renames(c->diff);
    } else {
        opts.flags |= GIT_DIFF_IGNORE_SUBMODULES; /* submodule.h */
        if (!spec && scan_worktree(c->q, c->repo, c->index, &scanned) == 0) {
            static char nothing[] = "/"; /* no path of an index begins so */
            spec = nothing;
            opts.pathspec = scanned.tracked.n
                                ? (git_strarray){scanned.tracked.list, scanned.tracked.n}
                                : (git_strarray){&spec, 1};
        }
        rc = git_diff_index_to_workdir(&c->diff, c->repo, c->index, &opts);
        scanned_done(&scanned);
    }
    if (rc < 0)
        return repo_late(c->q) ? repo_timed_out("diff", err) : repo_fail(err, "cannot compare");
    return 0;
}

/* The text as JSON wants it, cut on a character's border. */
static json_t *finish_text(struct buf *raw, bool *ret_cut)
{
    size_t len;
    autofree char *text = utf8_replace(raw->data ? raw->data : "", raw->len, &len);
    *ret_cut = false;
    if (!text)
        return NULL;
    if (len <= MAX_TEXT)
        return json_stringn_nocheck(text, len);
    *ret_cut = true;
    autobuf struct buf cut = BUF_INIT;
    buf_add(&cut, text, utf8_floor(text, MAX_TEXT));
    buf_adds(&cut, CUT_MARK);
    return cut.failed ? NULL : json_stringn_nocheck(cut.data, cut.len);
}

int git_room_diff(const struct git_query *q, json_t **ret, struct abx_error *err)
{
    struct ctx c = {.q = q};
    git_config *config = NULL;
    int rc = -1, quote = 1;
    if (repo_open(q, &c.repo, err) < 0)
        return -1;
    if (git_repository_odb(&c.odb, c.repo) < 0 || repo_index(c.repo, &c.index) < 0) {
        repo_fail(err, "cannot read the repository");
        goto out;
    }
    if (git_repository_config_snapshot(&config, c.repo) == 0)
        (void)git_config_get_bool(&quote, config, "core.quotepath"); /* not set: on */
    c.quote_high = quote;
    c.abbrev = abbrev_length(c.repo, config);
    if (make_diff(&c, err) < 0 || put_all(&c, err) < 0)
        goto out;

    bool cut;
    json_t *text = c.text.failed ? NULL : finish_text(&c.text, &cut);
    if (!text) {
        abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
        goto out;
    }
    json_t *answer = json_make(err, "{s:o, s:{s:I, s:I, s:I}}", "diff", text, "stats",
                               "files_changed", (json_int_t)c.files, "insertions",
                               (json_int_t)c.insertions, "deletions", (json_int_t)c.deletions);
    if (!answer)
        goto out;
    if (cut)
        json_object_set_new(answer, "truncated", json_true());
    *ret = answer;
    rc = 0;
out:
    buf_done(&c.text);
    free(c.subs.list);
    git_config_free(config);
    git_diff_free(c.diff);
    git_index_free(c.index);
    git_odb_free(c.odb);
    repo_close(q, c.repo);
    return rc;
}
