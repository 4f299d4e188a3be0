#include "git/scan.h"

#include "base/own.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* How it works: a few threads take directories from a common stack. Each name is looked up in the
 * index (sorted, so a directory is a range of it); what is there as it was when the index was
 * written needs no closer look. What no thread has met is gone. A file as old as the index itself
 * may have changed since without a trace (gitformat-index: "racily clean"), so it is looked at too.
 */

#define MAX_THREADS 8
#define ENTRIES_PER_THREAD 2500
#define MAX_CANDIDATES 2000
#define MIN_ENTRIES 500 /* fewer: libgit2 alone is quick enough */

struct directory {
    char *path;      /* "" or "a/b/" */
    size_t from, to; /* its range of the index */
};

struct scan {
    const struct git_query *q;
    const git_index_entry **entries;
    size_t n_entries;
    unsigned char *seen;
    struct timespec index_time;
    bool file_mode; /* core.fileMode */
    int root;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct directory *stack;
    size_t n_stack, cap_stack;
    size_t busy;
    struct scanned found;
    atomic_bool stop; /* too many, no memory, no descriptors, no time */
    bool failed;
};

/* --- shared, under the lock ------------------------------------------------------------------- */

static void give_up(struct scan *s, bool failed)
{
    pthread_mutex_lock(&s->lock);
    s->failed |= failed;
    atomic_store(&s->stop, true);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Takes path. */
static void add_path(struct scan *s, struct paths *to, char *path)
{
    pthread_mutex_lock(&s->lock);
    if (to->n == to->cap && to->n < MAX_CANDIDATES) {
        size_t cap = to->cap ? to->cap * 2 : 64;
        char **grown = realloc(to->list, cap * sizeof *grown);
        if (grown) {
            to->list = grown;
            to->cap = cap;
        }
    }
    if (path && to->n < to->cap && to->n < MAX_CANDIDATES) {
        to->list[to->n++] = path;
        path = NULL;
    } else {
        s->failed |= to->n < MAX_CANDIDATES;
        atomic_store(&s->stop, true);
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    free(path);
}

/* Takes d.path. */
static void push(struct scan *s, struct directory d)
{
    pthread_mutex_lock(&s->lock);
    if (s->n_stack == s->cap_stack) {
        size_t cap = s->cap_stack ? s->cap_stack * 2 : 64;
        struct directory *grown = realloc(s->stack, cap * sizeof *grown);
        if (grown) {
            s->stack = grown;
            s->cap_stack = cap;
        }
    }
    if (d.path && s->n_stack < s->cap_stack) {
        s->stack[s->n_stack++] = d;
        d.path = NULL;
        pthread_cond_signal(&s->changed);
    } else {
        s->failed = true;
        atomic_store(&s->stop, true);
    }
    pthread_mutex_unlock(&s->lock);
    free(d.path);
}

static bool pop(struct scan *s, struct directory *ret)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_stack == 0 && s->busy > 0 && !atomic_load(&s->stop))
        pthread_cond_wait(&s->changed, &s->lock);
    bool got = s->n_stack > 0 && !atomic_load(&s->stop);
    if (got) {
        *ret = s->stack[--s->n_stack];
        s->busy++;
    } else {
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return got;
}

static void done_with(struct scan *s)
{
    pthread_mutex_lock(&s->lock);
    if (--s->busy == 0)
        pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* --- one directory ---------------------------------------------------------------------------- */

/* First entry of [from, to) whose path isn't before prefix + name. */
static size_t lower_bound(const struct scan *s, size_t from, size_t to, size_t prefix,
                          const char *name)
{
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (strcmp(s->entries[mid]->path + prefix, name) < 0)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

static bool is_older(const git_index_time *a, const struct timespec *b)
{
    return a->seconds != (int32_t)b->tv_sec ? a->seconds < (int32_t)b->tv_sec
                                            : a->nanoseconds < (uint32_t)b->tv_nsec;
}

static bool same_time(const git_index_time *a, const struct timespec *b)
{
    return a->seconds == (int32_t)b->tv_sec && a->nanoseconds == (uint32_t)b->tv_nsec;
}

static bool same_kind(const struct scan *s, uint32_t mode, mode_t now)
{
    if (S_ISLNK(now))
        return mode == GIT_FILEMODE_LINK;
    if (!S_ISREG(now))
        return false;
    if (!s->file_mode)
        return mode == GIT_FILEMODE_BLOB || mode == GIT_FILEMODE_BLOB_EXECUTABLE;
    return mode == (now & 0100 ? GIT_FILEMODE_BLOB_EXECUTABLE : GIT_FILEMODE_BLOB);
}

static bool is_clean(const struct scan *s, const git_index_entry *e, const struct stat *st)
{
    return same_kind(s, e->mode, st->st_mode) && e->file_size == (uint32_t)st->st_size &&
           same_time(&e->mtime, &st->st_mtim) && same_time(&e->ctime, &st->st_ctim) &&
           e->ino == (uint32_t)st->st_ino && is_older(&e->mtime, &s->index_time) &&
           !(e->flags_extended & GIT_INDEX_ENTRY_INTENT_TO_ADD);
}

static char *join(const char *dir, const char *name, const char *tail)
{
    size_t a = strlen(dir), b = strlen(name), c = strlen(tail);
    char *path = malloc(a + b + c + 1);
    if (path) {
        memcpy(path, dir, a);
        memcpy(path + a, name, b);
        memcpy(path + a + b, tail, c + 1);
    }
    return path;
}

static bool is_unwatched(const git_index_entry *e)
{
    return (e->flags & GIT_INDEX_ENTRY_VALID) ||
           (e->flags_extended & GIT_INDEX_ENTRY_SKIP_WORKTREE);
}

/* Every stage of this path; each has now been met. */
static void take_entry(struct scan *s, const struct directory *d, int dir, const char *name,
                       size_t at, size_t prefix)
{
    struct stat st;
    const git_index_entry *e = s->entries[at];
    bool conflict = git_index_entry_stage(e) != 0;
    for (size_t i = at; i < d->to && strcmp(s->entries[i]->path + prefix, name) == 0; i++)
        s->seen[i] = 1;
    if (conflict || e->mode == GIT_FILEMODE_COMMIT || is_unwatched(e))
        return; /* known from the index; submodule.h; asked not to look */
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !is_clean(s, e, &st))
        add_path(s, &s->found.tracked, strdup(e->path));
}

static void take_name(struct scan *s, const struct directory *d, int dir,
                      const struct dirent *entry)
{
    const char *name = entry->d_name;
    size_t prefix = strlen(d->path), len = strlen(name);
    size_t at = lower_bound(s, d->from, d->to, prefix, name);
    if (at < d->to && strcmp(s->entries[at]->path + prefix, name) == 0) {
        take_entry(s, d, dir, name, at, prefix);
        return;
    }
    /* "name/...": a directory of the index? Names between "name" and "name/" sort in front of it.
     */
    char *sub = join(d->path, name, "/");
    if (!sub) {
        give_up(s, true);
        return;
    }
    at = lower_bound(s, at, d->to, prefix, sub + prefix);
    bool tracked = at < d->to && strncmp(s->entries[at]->path + prefix, sub + prefix, len + 1) == 0;
    struct stat st;
    bool is_dir = entry->d_type == DT_DIR ||
                  (entry->d_type == DT_UNKNOWN &&
                   fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode));
    if (!tracked || !is_dir) {
        sub[prefix + len] = is_dir ? '/' : '\0';
        add_path(s, &s->found.untracked, sub);
        return;
    }
    sub[prefix + len] = '/' + 1; /* the first text past all of "name/..." */
    size_t to = lower_bound(s, at, d->to, prefix, sub + prefix);
    sub[prefix + len] = '/';
    push(s, (struct directory){.path = sub, .from = at, .to = to});
}

static void take_directory(struct scan *s, const struct directory *d)
{
    int fd =
        openat(s->root, *d->path ? d->path : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) { /* what was in it counts as not met */
        if (error_is_want(errno))
            give_up(s, false); /* libgit2 may try, and say so */
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *entry;
         !atomic_load_explicit(&s->stop, memory_order_relaxed) && (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            strcmp(entry->d_name, ".git") != 0)
            take_name(s, d, fd, entry);
    closedir(dir);
}

static void *work(void *data)
{
    struct scan *s = data;
    struct directory d;
    while (pop(s, &d)) {
        take_directory(s, &d);
        free(d.path);
        if (repo_late(s->q))
            give_up(s, true);
        done_with(s);
    }
    return NULL;
}

/* --- all -------------------------------------------------------------------------------------- */

static void run(struct scan *s)
{
    /* More threads than CPUs: most of the time is the kernel's, and waits for disks when it is
     * cold. */
    pthread_t threads[MAX_THREADS];
    size_t n = 0, want = s->n_entries / ENTRIES_PER_THREAD;
    want = want > MAX_THREADS ? MAX_THREADS : want;
    while (n + 1 < want && pthread_create(&threads[n], NULL, work, s) == 0)
        n++;
    work(s);
    while (n > 0)
        pthread_join(threads[--n], NULL);
    for (size_t i = 0; i < s->n_entries && !atomic_load(&s->stop); i++)
        if (!s->seen[i] && git_index_entry_stage(s->entries[i]) == 0 &&
            s->entries[i]->mode != GIT_FILEMODE_COMMIT && !is_unwatched(s->entries[i]))
            add_path(s, &s->found.tracked, strdup(s->entries[i]->path));
}

static bool config_bool(git_repository *repo, const char *name, bool fallback)
{
    git_config *config = NULL;
    int value = fallback;
    if (git_repository_config_snapshot(&config, repo) == 0)
        (void)git_config_get_bool(&value, config, name); /* not set: stays */
    git_config_free(config);
    return value;
}

static void paths_done(struct paths *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->list[i]);
    free(p->list);
    *p = (struct paths){0};
}

void scanned_done(struct scanned *s)
{
    paths_done(&s->tracked);
    paths_done(&s->untracked);
}

int scan_worktree(const struct git_query *q, git_repository *repo, git_index *index,
                  struct scanned *ret)
{
    struct stat st;
    size_t n = git_index_entrycount(index);
    if (n < MIN_ENTRIES || config_bool(repo, "core.ignorecase", false) ||
        !config_bool(repo, "core.trustctime", true) || stat(git_index_path(index), &st) < 0)
        return 1;
    struct scan s = {.q = q,
                     .n_entries = n,
                     .index_time = st.st_mtim,
                     .file_mode = config_bool(repo, "core.filemode", true),
                     .root = open(git_repository_workdir(repo), O_PATH | O_DIRECTORY | O_CLOEXEC),
                     .entries = malloc(n * sizeof *s.entries),
                     .seen = calloc(n, 1)};
    int rc = -1;
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.changed, NULL);
    if (s.root < 0 || !s.entries || !s.seen)
        goto out;
    for (size_t i = 0; i < n; i++)
        s.entries[i] = git_index_get_byindex(index, i);
    push(&s, (struct directory){.path = strdup(""), .to = n});
    run(&s);
    rc = s.failed ? -1 : atomic_load(&s.stop) ? 1 : 0;
    if (rc == 0) {
        *ret = s.found;
        s.found = (struct scanned){0};
    }
out:
    for (size_t i = 0; i < s.n_stack; i++)
        free(s.stack[i].path);
    free(s.stack);
    scanned_done(&s.found);
    free(s.entries);
    free(s.seen);
    if (s.root >= 0)
        close(s.root);
    pthread_cond_destroy(&s.changed);
    pthread_mutex_destroy(&s.lock);
    return rc;
}

/* --- untracked -------------------------------------------------------------------------------- */

#define MAX_DEPTH 64

static bool is_ignored(git_repository *repo, const char *path)
{
    int ignored = 0;
    return git_ignore_path_is_ignored(&ignored, repo, path) == 0 && ignored;
}

/* path ends in "/" and isn't ignored. Another repository in it counts as something. */
static bool holds_something(git_repository *repo, const char *path, int depth)
{
    autofree char *full = join(git_repository_workdir(repo), path, "");
    DIR *dir = full && depth < MAX_DEPTH ? opendir(full) : NULL;
    if (!dir)
        return false;
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(dir));) {
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (strcmp(entry->d_name, ".git") == 0) {
            found = true;
            continue;
        }
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        bool is_dir = S_ISDIR(st.st_mode);
        autofree char *sub = join(path, entry->d_name, is_dir ? "/" : "");
        if (sub && (is_dir || S_ISREG(st.st_mode) || S_ISLNK(st.st_mode)) && !is_ignored(repo, sub))
            found = !is_dir || holds_something(repo, sub, depth + 1);
    }
    closedir(dir);
    return found;
}

bool scan_shows_untracked(git_repository *repo, const char *path)
{
    size_t n = strlen(path);
    if (is_ignored(repo, path))
        return false;
    if (path[n - 1] == '/')
        return holds_something(repo, path, 0);
    struct stat st; /* git knows files and links only */
    autofree char *full = join(git_repository_workdir(repo), path, "");
    return full && lstat(full, &st) == 0 && (S_ISREG(st.st_mode) || S_ISLNK(st.st_mode));
}
