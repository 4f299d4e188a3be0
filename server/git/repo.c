#include "git/repo.h"

#include "base/loop.h"
#include "base/own.h"
#include "git/similar.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* How it works: libgit2 reads a repository without knowing external diffs, text conversions, file
 * system monitors, hooks or filter programs. Discovery is ours, because a repository may name other
 * places as its own (gitdir files, core.worktree, alternates): each of them must pass the guard.
 * Whose files they are is no matter, as nothing of them is run. */

#define MAX_ALTERNATES 32
#define MAX_DEPTH 5
#define CACHE_BYTES (8 * MIB)
#define MAX_KEPT_ENTRIES 100000

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void)
{
    /* What newer gits write and we need not understand: where a worktree's link points is a path
     * either way; the others concern writing. */
    static const char *extensions[] = {"relativeworktrees", "worktreeconfig", "preciousobjects",
                                       "partialclone"};
    git_libgit2_init(); /* a failure shows in the first call */
    git_libgit2_opts(GIT_OPT_SET_OWNER_VALIDATION, 0);
    git_libgit2_opts(GIT_OPT_SET_EXTENSIONS, extensions, ARRAY_LEN(extensions));
    git_libgit2_opts(GIT_OPT_SET_CACHE_MAX_SIZE, (ssize_t)CACHE_BYTES);
}

int repo_fail(struct abx_error *err, const char *what)
{
    const git_error *last = git_error_last();
    if (last && last->klass == GIT_ERROR_NOMEMORY)
        return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
    const char *text = last && last->message ? last->message : "unknown error";
    bool want = last && last->klass == GIT_ERROR_OS && error_text_is_want(text);
    return abx_fail(err, want ? E_OVERLOADED : E_GIT, 0, "%s: %s", what, text);
}

bool repo_late(const struct git_query *q) { return mono_ms() > q->deadline_ms; }

int repo_progress(const git_diff *diff, const char *old_path, const char *new_path, void *payload)
{
    return repo_late(payload) ? -1 : 0;
}

int repo_timed_out(const char *what, struct abx_error *err)
{
    return abx_fail(err, E_TIMEOUT_408, 0, "git %s timed out", what);
}

/* --- where it all lies ------------------------------------------------------------------------ */

static int must_be_allowed(const struct git_query *q, const char *path, struct abx_error *err)
{
    struct arena arena;
    struct guard_path judged;
    arena_init(&arena);
    int rc = guard_check(q->guard, path, strlen(path), NULL, OP_READ, &arena, &judged, err);
    arena_done(&arena);
    return rc < 0 ? abx_prefix(err, "repository: ") : 0;
}

/* objects/info/alternates: other object stores, one a line, relative to objects/. */
static int check_alternates(const struct git_query *q, const char *objects, int depth,
                            struct abx_error *err)
{
    char path[PATH_MAX], line[PATH_MAX];
    int rc = 0, n = 0;
    if ((size_t)snprintf(path, sizeof path, "%s/info/alternates", objects) >= sizeof path)
        return 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (rc == 0 && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (!line[0] || line[0] == '#')
            continue;
        if (++n > MAX_ALTERNATES || depth >= MAX_DEPTH ||
            (size_t)snprintf(path, sizeof path, "%s%s%s", line[0] == '/' ? "" : objects,
                             line[0] == '/' ? "" : "/", line) >= sizeof path)
            rc = abx_fail(err, E_GIT, 0, "The repository has too many alternates");
        else if ((rc = must_be_allowed(q, path, err)) == 0)
            rc = check_alternates(q, path, depth + 1, err);
    }
    fclose(file);
    return rc;
}

static int check_places(const struct git_query *q, git_repository *repo, struct abx_error *err)
{
    const char *work = git_repository_workdir(repo), *dir = git_repository_path(repo);
    if (git_repository_is_bare(repo) || !work)
        return abx_fail(err, E_GIT, 0,
                        "This operation must be run in a work tree; '%.300s' is a bare repository",
                        q->path);
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (strncmp(q->path, dir, n) == 0 && (q->path[n] == '/' || q->path[n] == '\0'))
        return abx_fail(err, E_GIT, 0,
                        "This operation must be run in a work tree; '%.300s' is inside .git",
                        q->path);
    if (must_be_allowed(q, work, err) < 0 || must_be_allowed(q, dir, err) < 0 ||
        must_be_allowed(q, git_repository_commondir(repo), err) < 0)
        return -1;
    autobuf struct buf objects = BUF_INIT;
    buf_adds(&objects, git_repository_commondir(repo));
    buf_adds(&objects, "objects");
    if (!buf_str(&objects))
        return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
    return check_alternates(q, objects.data, 0, err);
}

int repo_open_at(const struct git_query *q, const char *dir, git_repository **ret)
{
    git_repository *repo;
    struct abx_error ignored;
    if (git_repository_open_ext(
            &repo, dir, GIT_REPOSITORY_OPEN_NO_SEARCH | GIT_REPOSITORY_OPEN_CROSS_FS, NULL) < 0)
        return -1;
    if (check_places(q, repo, &ignored) < 0) {
        git_repository_free(repo);
        return -1;
    }
    *ret = repo;
    return 0;
}

/* git calls it no repository at all; a branch without commits is fine. */
static int check_head(git_repository *repo, struct abx_error *err)
{
    git_reference *head = NULL;
    int rc = git_reference_lookup(&head, repo, "HEAD");
    git_reference_free(head);
    return rc < 0 ? repo_fail(err, "the repository's HEAD is broken") : 0;
}

static bool is_below(const char *path, const char *root)
{
    size_t n = strlen(root);
    return n == 1 || (strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == '\0'));
}

/* A ".git" that is there but can't be opened: it must not be taken for "no repository". */
static bool has_dot_git(const char *dir)
{
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/.git", dir) < sizeof path &&
           access(path, F_OK) == 0;
}

static int check_directory(const char *path, struct abx_error *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return abx_fail(err, E_GIT, errno, "cannot change to '%.300s': %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return abx_fail(err, E_GIT, ENOTDIR, "cannot change to '%.300s': %s", path,
                        strerror(ENOTDIR));
    return 0;
}

/* --- the one kept --------------------------------------------------------------------------- */

/* Reading the index of a large repository costs more than half of a status call, so the last
 * repository is kept. libgit2 sees by itself when index, references, configuration or attributes
 * have changed; where the repository lies it reads only once, so what says that is compared. */
struct kept {
    char *path;
    git_repository *repo;
    struct stat dot_git, config;
};

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept kept; /* under kept_lock */

static void places(git_repository *repo, struct stat *dot_git, struct stat *config)
{
    char path[PATH_MAX];
    *dot_git = *config = (struct stat){0};
    if ((size_t)snprintf(path, sizeof path, "%s.git", git_repository_workdir(repo)) < sizeof path)
        (void)lstat(path, dot_git); /* stays zero: never equal to a real one */
    if ((size_t)snprintf(path, sizeof path, "%sconfig", git_repository_commondir(repo)) <
        sizeof path)
        (void)stat(path, config);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* A directory's times change with every commit; that it is the same directory is enough. */
static bool same_place(const struct stat *a, const struct stat *b)
{
    return S_ISDIR(a->st_mode)
               ? S_ISDIR(b->st_mode) && a->st_ino == b->st_ino && a->st_dev == b->st_dev
               : same_file(a, b);
}

static git_repository *take_kept(const struct git_query *q)
{
    struct stat dot_git, config;
    pthread_mutex_lock(&kept_lock);
    struct kept mine = {0};
    if (kept.path && strcmp(kept.path, q->path) == 0) {
        mine = kept;
        kept = (struct kept){0};
    }
    pthread_mutex_unlock(&kept_lock);
    free(mine.path);
    if (!mine.repo)
        return NULL;
    places(mine.repo, &dot_git, &config);
    if (dot_git.st_ino && same_place(&dot_git, &mine.dot_git) && config.st_ino &&
        same_file(&config, &mine.config))
        return mine.repo;
    git_repository_free(mine.repo);
    return NULL;
}

void repo_close(const struct git_query *q, git_repository *repo)
{
    struct kept old = {0}, one = {.repo = repo};
    git_index *index = NULL;
    if (!repo)
        return;
    bool keep =
        git_repository_index(&index, repo) == 0 && git_index_entrycount(index) <= MAX_KEPT_ENTRIES;
    git_index_free(index);
    one.path = keep ? strdup(q->path) : NULL;
    if (!one.path) {
        git_repository_free(repo);
        return;
    }
    places(repo, &one.dot_git, &one.config);
    pthread_mutex_lock(&kept_lock);
    old = kept;
    kept = one;
    pthread_mutex_unlock(&kept_lock);
    free(old.path);
    git_repository_free(old.repo);
}

int repo_index(git_repository *repo, git_index **ret)
{
    if (git_repository_index(ret, repo) < 0)
        return -1;
    if (git_index_read(*ret, false) == 0)
        return 0;
    git_index_free(*ret);
    *ret = NULL;
    return -1;
}

int repo_open(const struct git_query *q, git_repository **ret, struct abx_error *err)
{
    pthread_once(&once, start);
    if (check_directory(q->path, err) < 0)
        return -1;
    git_repository *last = take_kept(q);
    if (last && check_places(q, last, err) == 0 && check_head(last, err) == 0) {
        *ret = last;
        return 0;
    }
    git_repository_free(last);
    autofree char *dir = strdup(q->path);
    if (!dir)
        return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
    for (;;) {
        git_repository *repo;
        int rc = git_repository_open_ext(
            &repo, dir, GIT_REPOSITORY_OPEN_NO_SEARCH | GIT_REPOSITORY_OPEN_CROSS_FS, NULL);
        if (rc == 0) {
            if (check_places(q, repo, err) < 0 || check_head(repo, err) < 0) {
                git_repository_free(repo);
                return -1;
            }
            *ret = repo;
            return 0;
        }
        if (rc != GIT_ENOTFOUND)
            return repo_fail(err, "cannot open the repository");
        if (has_dot_git(dir))
            return abx_fail(err, E_GIT, 0, "'%.300s/.git' is not a valid repository", dir);
        char *slash = strrchr(dir, '/');
        if (!dir[1])
            break;
        slash[slash == dir] = '\0';
        if (!is_below(dir, q->root))
            break;
    }
    return abx_fail(err, E_GIT, 0,
                    "not a git repository (or any of the parent directories up to '%.300s')",
                    q->root);
}

int repo_head_tree(git_repository *repo, git_tree **ret, struct abx_error *err)
{
    git_object *tree = NULL;
    int unborn = git_repository_head_unborn(repo);
    *ret = NULL;
    if (unborn == 1)
        return 0;
    if (unborn < 0 || git_revparse_single(&tree, repo, "HEAD^{tree}") < 0)
        return repo_fail(err, "cannot read HEAD");
    *ret = (git_tree *)tree;
    return 0;
}

int repo_find_renames(git_diff *diff)
{
    git_diff_similarity_metric metric = similar_metric();
    git_diff_find_options opts;
    git_diff_find_options_init(&opts, GIT_DIFF_FIND_OPTIONS_VERSION);
    opts.flags = GIT_DIFF_FIND_RENAMES;
    opts.rename_threshold = 50;
    opts.rename_limit = 1000;
    opts.metric = &metric;
    return git_diff_find_similar(diff, &opts);
}

/* --- names ------------------------------------------------------------------------------------ */

static bool needs_quotes(const char *name, bool quote_high)
{
    for (const unsigned char *s = (const unsigned char *)name; *s; s++)
        if (*s < 0x20 || *s == 0x7f || *s == '"' || *s == '\\' || (*s >= 0x80 && quote_high))
            return true;
    return false;
}

void repo_quote(struct buf *out, const char *prefix, const char *name, bool quote_high)
{
    static const char letters[] = "abtnvfr"; /* 7 to 13 */
    if (!needs_quotes(name, quote_high)) {
        buf_adds(out, prefix);
        buf_adds(out, name);
        return;
    }
    buf_addc(out, '"');
    buf_adds(out, prefix);
    for (const unsigned char *s = (const unsigned char *)name; *s; s++) {
        if (*s >= 7 && *s <= 13)
            buf_addf(out, "\\%c", letters[*s - 7]);
        else if (*s == '"' || *s == '\\')
            buf_addf(out, "\\%c", *s);
        else if (*s < 0x20 || *s == 0x7f || (*s >= 0x80 && quote_high))
            buf_addf(out, "\\%03o", *s);
        else
            buf_addc(out, (char)*s);
    }
    buf_addc(out, '"');
}
