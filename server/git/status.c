#include "git/status.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/own.h"
#include "base/utf8.h"
#include "git/repo.h"
#include "git/scan.h"
#include "git/submodule.h"

#include <stdio.h>
#include <string.h>

/* How it works: HEAD's tree against the index, and the index against the work tree; both lists are
 * joined by path. The order is git's: what is tracked by path, then what isn't. */

#define MAX_FILES 100000

struct entry {
    char *path, *old_path; /* heap; old_path of a rename or NULL */
    char index, worktree;  /* git's letters; ' ' = unchanged */
    bool conflict;
};

struct entries {
    struct entry *list;
    size_t n, cap;
    bool failed;
};

static void entries_done(struct entries *e)
{
    for (size_t i = 0; i < e->n; i++) {
        free(e->list[i].path);
        free(e->list[i].old_path);
    }
    free(e->list);
}

static void add(struct entries *e, const char *path, const char *old_path, char index,
                char worktree, bool conflict)
{
    if (e->n == e->cap) {
        size_t cap = e->cap ? e->cap * 2 : 64;
        struct entry *grown = realloc(e->list, cap * sizeof *grown);
        if (!grown) {
            e->failed = true;
            return;
        }
        e->list = grown;
        e->cap = cap;
    }
    struct entry one = {.path = strdup(path),
                        .old_path = old_path ? strdup(old_path) : NULL,
                        .index = index,
                        .worktree = worktree,
                        .conflict = conflict};
    e->failed |= !one.path || (old_path && !one.old_path);
    e->list[e->n++] = one;
}

/* Tracked before untracked, then by bytes; the two halves of one path side by side. */
static int by_path(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    bool u = x->worktree == '?', v = y->worktree == '?';
    if (u != v)
        return u - v;
    return strcmp(x->path ? x->path : "", y->path ? y->path : "");
}

static void join(struct entries *e)
{
    if (e->n == 0)
        return;
    qsort(e->list, e->n, sizeof *e->list, by_path);
    size_t kept = 0;
    for (size_t i = 0; i < e->n; i++) {
        struct entry *last = kept > 0 ? &e->list[kept - 1] : NULL, *one = &e->list[i];
        if (!last || strcmp(last->path, one->path) != 0 ||
            (last->worktree == '?') != (one->worktree == '?')) {
            e->list[kept++] = *one;
            continue;
        }
        if (one->index != ' ')
            last->index = one->index;
        if (one->worktree != ' ')
            last->worktree = one->worktree;
        if (!last->old_path)
            last->old_path = take_ptr(one->old_path);
        last->conflict |= one->conflict;
        free(one->path);
        free(one->old_path);
    }
    e->n = kept;
}

static char letter(const git_diff_delta *delta)
{
    switch (delta->status) {
    case GIT_DELTA_ADDED:
        return 'A';
    case GIT_DELTA_DELETED:
        return 'D';
    case GIT_DELTA_MODIFIED:
        return 'M';
    case GIT_DELTA_RENAMED:
        return 'R';
    case GIT_DELTA_COPIED:
        return 'C';
    case GIT_DELTA_TYPECHANGE:
        return 'T';
    case GIT_DELTA_UNTRACKED:
        return '?';
    case GIT_DELTA_UNMODIFIED:
    case GIT_DELTA_IGNORED:
    case GIT_DELTA_UNREADABLE:
    case GIT_DELTA_CONFLICTED:
        break;
    }
    return ' ';
}

/* git's letters for the stages that are there: base 1, ours 2, theirs 4. */
static const char *conflict_letters(unsigned stages)
{
    static const char letters[8][3] = {"  ", "DD", "AU", "UD", "UA", "DU", "AA", "UU"};
    return letters[stages & 7];
}

static int add_conflicts(git_index *index, struct entries *e)
{
    git_index_conflict_iterator *it;
    const git_index_entry *base, *ours, *theirs;
    if (!git_index_has_conflicts(index))
        return 0;
    if (git_index_conflict_iterator_new(&it, index) < 0)
        return -1;
    int rc;
    while ((rc = git_index_conflict_next(&base, &ours, &theirs, it)) == 0) {
        const git_index_entry *any = ours ? ours : theirs ? theirs : base;
        const char *xy = conflict_letters((base ? 1u : 0) | (ours ? 2u : 0) | (theirs ? 4u : 0));
        add(e, any->path, NULL, xy[0], xy[1], true);
    }
    git_index_conflict_iterator_free(it);
    return rc == GIT_ITEROVER ? 0 : -1;
}

static bool is_conflict(git_index *index, const char *path)
{
    return git_index_get_bypath(index, path, 0) == NULL &&
           (git_index_get_bypath(index, path, 1) || git_index_get_bypath(index, path, 2) ||
            git_index_get_bypath(index, path, 3));
}

static bool intent_to_add(git_index *index, const char *path)
{
    const git_index_entry *entry = git_index_get_bypath(index, path, 0);
    return entry && (entry->flags_extended & GIT_INDEX_ENTRY_INTENT_TO_ADD);
}

static void take_staged(git_diff *diff, git_index *index, struct entries *e)
{
    for (size_t i = 0; i < git_diff_num_deltas(diff); i++) {
        const git_diff_delta *delta = git_diff_get_delta(diff, i);
        char c = letter(delta);
        const char *path = c == 'D' ? delta->old_file.path : delta->new_file.path;
        if (c == ' ' || is_conflict(index, path) || (c == 'A' && intent_to_add(index, path)))
            continue;
        add(e, path, c == 'R' || c == 'C' ? delta->old_file.path : NULL, c, ' ', false);
    }
}

/* A directory where the index has a file: git says "deleted" and no more. */
static bool replaces_file(git_index *index, const char *path)
{
    char name[GIT_PATH_MAX];
    size_t n = strlen(path);
    if (n < 2 || n >= sizeof name || path[n - 1] != '/')
        return false;
    memcpy(name, path, n - 1);
    name[n - 1] = '\0';
    return git_index_get_bypath(index, name, 0) != NULL;
}

/* libgit2 sees no change in an empty file that is only intended to be added. */
static void take_intended(git_index *index, struct entries *e)
{
    size_t listed = e->n;
    for (size_t i = 0; i < git_index_entrycount(index); i++) {
        const git_index_entry *entry = git_index_get_byindex(index, i);
        size_t k = 0;
        if (!(entry->flags_extended & GIT_INDEX_ENTRY_INTENT_TO_ADD))
            continue;
        while (k < listed && strcmp(e->list[k].path, entry->path) != 0)
            k++;
        if (k == listed)
            add(e, entry->path, NULL, ' ', 'A', false);
    }
}

static void take_untracked(git_repository *repo, git_index *index, const char *path,
                           struct entries *e)
{
    if (!replaces_file(index, path) && scan_shows_untracked(repo, path))
        add(e, path, NULL, '?', '?', false);
}

static void take_submodule(void *data, const struct submodule *one)
{
    add(data, one->path, NULL, ' ', one->gone ? 'D' : 'M', false);
}

static void take_worktree(git_diff *diff, git_index *index, struct entries *e)
{
    bool conflicts = git_index_has_conflicts(index);
    for (size_t i = 0; i < git_diff_num_deltas(diff); i++) {
        const git_diff_delta *delta = git_diff_get_delta(diff, i);
        char c = letter(delta);
        const char *path = delta->new_file.path ? delta->new_file.path : delta->old_file.path;
        if (c == ' ' || (conflicts && is_conflict(index, path)) ||
            (c != '?' && delta->old_file.mode == GIT_FILEMODE_COMMIT))
            continue;
        if (c == '?' && replaces_file(index, path))
            continue;
        if (c == '?')
            add(e, path, NULL, '?', '?', false);
        else
            add(e, path, NULL, ' ', c == 'M' && intent_to_add(index, path) ? 'A' : c, false);
    }
}

static int collect(const struct git_query *q, git_repository *repo, struct entries *e,
                   struct abx_error *err)
{
    git_index *index = NULL;
    git_tree *tree = NULL;
    git_diff *staged = NULL, *worktree = NULL;
    git_config *config = NULL;
    struct scanned scanned = {0};
    int rc = -1;
    git_diff_options opts;
    git_diff_options_init(&opts, GIT_DIFF_OPTIONS_VERSION);
    opts.progress_cb = repo_progress;
    opts.payload = (void *)q;
    opts.flags = GIT_DIFF_INCLUDE_TYPECHANGE;
    if (repo_index(repo, &index) < 0) {
        repo_fail(err, "cannot read the index");
        goto out;
    }
    if (repo_head_tree(repo, &tree, err) < 0)
        goto out;
    if (git_diff_tree_to_index(&staged, repo, tree, index, &opts) < 0 ||
        repo_find_renames(staged) < 0)
        goto broken;

    git_buf show = GIT_BUF_INIT;
    opts.flags |= GIT_DIFF_INCLUDE_UNTRACKED | GIT_DIFF_IGNORE_SUBMODULES;
    if (git_repository_config_snapshot(&config, repo) == 0 &&
        git_config_get_string_buf(&show, config, "status.showuntrackedfiles") == 0) {
        if (strcmp(show.ptr, "no") == 0)
            opts.flags &= ~(uint32_t)GIT_DIFF_INCLUDE_UNTRACKED;
        else if (strcmp(show.ptr, "all") == 0)
            opts.flags |= GIT_DIFF_RECURSE_UNTRACKED_DIRS;
    }
    git_buf_dispose(&show);
    bool all = opts.flags & GIT_DIFF_RECURSE_UNTRACKED_DIRS,
         any = opts.flags & GIT_DIFF_INCLUDE_UNTRACKED;
    int quick = all ? 1 : scan_worktree(q, repo, index, &scanned);
    if (quick == 0) {
        opts.flags =
            (opts.flags | GIT_DIFF_DISABLE_PATHSPEC_MATCH) & ~(uint32_t)GIT_DIFF_INCLUDE_UNTRACKED;
        opts.pathspec = (git_strarray){scanned.tracked.list, scanned.tracked.n};
    }
    if (quick < 0 || ((quick || scanned.tracked.n > 0) &&
                      git_diff_index_to_workdir(&worktree, repo, index, &opts) < 0))
        goto broken;
    for (size_t i = 0; quick == 0 && any && i < scanned.untracked.n; i++)
        take_untracked(repo, index, scanned.untracked.list[i], e);
    if (add_conflicts(index, e) < 0 ||
        submodules_each(q, repo, index, UNTRACKED_COUNTS, 0, take_submodule, e) < 0)
        goto broken;
    take_staged(staged, index, e);
    if (worktree)
        take_worktree(worktree, index, e);
    if (!e->failed)
        take_intended(index, e);
    rc = e->failed ? abx_fail(err, E_NO_MEMORY, 0, "Out of memory") : 0;
    goto out;

broken:
    rc = repo_late(q) ? repo_timed_out("status", err) : repo_fail(err, "cannot read the status");
out:
    scanned_done(&scanned);
    git_config_free(config);
    git_diff_free(worktree);
    git_diff_free(staged);
    git_tree_free(tree);
    git_index_free(index);
    return rc;
}

/* --- the answer ------------------------------------------------------------------------------- */

static const char *word_for(char c, char buf[2])
{
    switch (c) {
    case 'M':
        return "modified";
    case 'A':
        return "added";
    case 'D':
        return "deleted";
    case 'R':
        return "renamed";
    case 'C':
        return "copied";
    case 'U':
        return "unmerged";
    case '?':
        return "untracked";
    default:
        buf[0] = c;
        buf[1] = '\0';
        return buf;
    }
}

static json_t *describe(const struct entry *e)
{
    char letters[2][2] = {{e->index, '\0'}, {e->worktree, '\0'}}, other[2];
    json_t *file = json_pack("{s:o, s:s, s:o, s:s, s:s}", "path", json_text(e->path), "status",
                             word_for(e->index != ' ' ? e->index : e->worktree, other), "name",
                             json_text(e->path), "index", letters[0], "worktree", letters[1]);
    if (file && e->old_path)
        json_object_set_new(file, "old_path", json_text(e->old_path));
    if (file && e->conflict)
        json_object_set_new(file, "conflict", json_true());
    if (file && !utf8_valid(e->path, strlen(e->path))) {
        autobuf struct buf raw = BUF_INIT;
        base64_append(&raw, e->path, strlen(e->path));
        json_object_set_new(file, "name_base64", json_text(buf_str(&raw)));
    }
    return file;
}

struct tracking {
    const char *merge; /* the ref's name over there */
    git_buf local;     /* and here */
};

static int try_refspec(const git_config_entry *entry, void *data)
{
    struct tracking *t = data;
    git_refspec *spec = NULL;
    if (!t->local.ptr && git_refspec_parse(&spec, entry->value, 1) == 0 &&
        git_refspec_src_matches(spec, t->merge))
        (void)git_refspec_transform(&t->local, spec, t->merge); /* stays empty: no upstream */
    git_refspec_free(spec);
    return 0;
}

/* The ref that this branch follows, by branch.NAME.remote, .merge and the remote's refspecs.
 * (libgit2's own look-up loses memory at each configured key: its regular expressions, up to 1.5.)
 * -1: none. */
static int find_upstream(git_repository *repo, const char *branch, git_reference **ret)
{
    git_config *config = NULL;
    const char *remote, *merge;
    autobuf struct buf key = BUF_INIT;
    struct tracking t = {.local = GIT_BUF_INIT};
    int rc = -1;
    if (git_repository_config_snapshot(&config, repo) < 0)
        return -1;
    buf_addf(&key, "branch.%s.remote", branch);
    if (!buf_str(&key) || git_config_get_string(&remote, config, key.data) < 0)
        goto out;
    buf_reset(&key);
    buf_addf(&key, "branch.%s.merge", branch);
    if (!buf_str(&key) || git_config_get_string(&merge, config, key.data) < 0)
        goto out;
    t.merge = merge;
    if (strcmp(remote, ".") != 0) {
        buf_reset(&key);
        buf_addf(&key, "remote.%s.fetch", remote);
        if (!buf_str(&key) ||
            git_config_get_multivar_foreach(config, key.data, NULL, try_refspec, &t) < 0)
            goto out;
    }
    const char *name = strcmp(remote, ".") == 0 ? merge : t.local.ptr;
    rc = name && git_reference_lookup(ret, repo, name) == 0 ? 0 : -1;
out:
    git_buf_dispose(&t.local);
    git_config_free(config);
    return rc;
}

static void add_upstream(git_repository *repo, git_reference *head, json_t *answer)
{
    git_reference *upstream = NULL;
    size_t ahead, behind;
    if (find_upstream(repo, git_reference_shorthand(head), &upstream) < 0)
        return; /* none, or gone */
    json_object_set_new(answer, "upstream", json_text(git_reference_shorthand(upstream)));
    const git_oid *ours = git_reference_target(head), *theirs = git_reference_target(upstream);
    if (ours && theirs && git_graph_ahead_behind(&ahead, &behind, repo, ours, theirs) == 0) {
        json_object_set_new(answer, "ahead", json_integer((json_int_t)ahead));
        json_object_set_new(answer, "behind", json_integer((json_int_t)behind));
    }
    git_reference_free(upstream);
}

/* "main", "HEAD (no branch)", "No commits yet on trunk"; and what goes beside it. */
static int add_branch(git_repository *repo, json_t *answer, struct abx_error *err)
{
    git_reference *symbolic = NULL, *head = NULL;
    autobuf struct buf name = BUF_INIT;
    if (git_reference_lookup(&symbolic, repo, "HEAD") < 0)
        return repo_fail(err, "cannot read HEAD");
    bool detached = git_reference_type(symbolic) == GIT_REFERENCE_DIRECT;
    bool born = git_repository_head(&head, repo) == 0;
    const char *target = detached ? NULL : git_reference_symbolic_target(symbolic);
    if (target && strncmp(target, "refs/heads/", 11) == 0)
        target += 11;
    if (!born)
        buf_adds(&name, "No commits yet on ");
    buf_adds(&name, target ? target : "HEAD (no branch)");
    json_object_set_new(answer, "branch", json_text(buf_str(&name)));
    json_object_set_new(answer, "detached", json_boolean(detached));
    json_object_set_new(answer, "upstream", json_null());
    json_object_set_new(answer, "ahead", json_integer(0));
    json_object_set_new(answer, "behind", json_integer(0));
    char hex[GIT_OID_HEXSZ + 1] = "";
    if (born && git_reference_target(head))
        git_oid_tostr(hex, sizeof hex, git_reference_target(head));
    json_object_set_new(answer, "head", *hex ? json_string(hex) : json_null());
    if (born && !detached)
        add_upstream(repo, head, answer);
    git_reference_free(head);
    git_reference_free(symbolic);
    return 0;
}

int git_room_status(const struct git_query *q, json_t **ret, struct abx_error *err)
{
    git_repository *repo = NULL;
    struct entries e = {0};
    autojson json_t *answer = NULL;
    int rc = -1;
    if (repo_open(q, &repo, err) < 0)
        return -1;
    if (collect(q, repo, &e, err) < 0)
        goto out;
    join(&e);
    size_t shown = e.n < MAX_FILES ? e.n : MAX_FILES;
    json_t *files = json_array();
    for (size_t i = 0; i < shown; i++)
        json_array_append_new(files, describe(&e.list[i]));
    answer = json_make(err, "{s:s, s:b, s:o}", "branch", "", "clean", e.n == 0, "files", files);
    if (!answer || add_branch(repo, answer, err) < 0)
        goto out;
    if (shown < e.n)
        json_object_set_new(answer, "truncated", json_true());
    *ret = take_ptr(answer);
    rc = 0;
out:
    entries_done(&e);
    repo_close(q, repo);
    return rc;
}
