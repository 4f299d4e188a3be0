#include "git/submodule.h"

#include "base/own.h"

#include <string.h>
#include <sys/stat.h>

#define MAX_DEPTH 8

static void note(void *data, const struct submodule *one) { *(bool *)data = true; }

/* Does anything differ from HEAD? */
static int is_dirty(const struct git_query *q, git_repository *repo, enum untracked untracked,
                    int depth, bool *ret)
{
    git_diff_options opts;
    git_diff_options_init(&opts, GIT_DIFF_OPTIONS_VERSION);
    opts.flags = GIT_DIFF_IGNORE_SUBMODULES |
                 (untracked == UNTRACKED_COUNTS ? GIT_DIFF_INCLUDE_UNTRACKED : 0);
    opts.progress_cb = repo_progress;
    opts.payload = (void *)q;
    git_index *index = NULL;
    git_tree *tree = NULL;
    git_diff *diff = NULL;
    int rc = -1;
    if (git_repository_index(&index, repo) < 0 || repo_head_tree(repo, &tree, NULL) < 0 ||
        git_diff_tree_to_index(&diff, repo, tree, index, NULL) < 0)
        goto out;
    *ret = git_diff_num_deltas(diff) > 0;
    git_diff_free(diff);
    diff = NULL;
    if (!*ret) {
        if (git_diff_index_to_workdir(&diff, repo, index, &opts) < 0)
            goto out;
        *ret = git_diff_num_deltas(diff) > 0;
    }
    rc = *ret ? 0 : submodules_each(q, repo, index, untracked, depth + 1, note, ret);
out:
    git_diff_free(diff);
    git_tree_free(tree);
    git_index_free(index);
    return rc;
}

static int look_at(const struct git_query *q, git_repository *repo, const git_index_entry *entry,
                   enum untracked untracked, int depth, struct submodule *ret, bool *ret_differs)
{
    autobuf struct buf path = BUF_INIT;
    struct stat st;
    git_repository *sub = NULL;
    buf_adds(&path, git_repository_workdir(repo));
    buf_adds(&path, entry->path);
    if (!buf_str(&path))
        return -1;
    *ret = (struct submodule){.path = entry->path, .recorded = entry->id};
    if (lstat(path.data, &st) < 0 || !S_ISDIR(st.st_mode)) {
        *ret_differs = ret->gone = true;
        return 0;
    }
    *ret_differs = false;
    if (repo_open_at(q, path.data, &sub) < 0)
        return 0; /* not checked out, or not ours to look at */
    int rc = 0;
    if (git_reference_name_to_id(&ret->current, sub, "HEAD") == 0) {
        rc = is_dirty(q, sub, untracked, depth, &ret->dirty);
        *ret_differs = ret->dirty || !git_oid_equal(&ret->current, &ret->recorded);
    }
    git_repository_free(sub);
    return rc;
}

int submodules_each(const struct git_query *q, git_repository *repo, git_index *index,
                    enum untracked untracked, int depth,
                    void (*fn)(void *data, const struct submodule *one), void *data)
{
    const uint16_t unwatched = GIT_INDEX_ENTRY_VALID;
    for (size_t i = 0; depth < MAX_DEPTH && i < git_index_entrycount(index); i++) {
        const git_index_entry *entry = git_index_get_byindex(index, i);
        struct submodule one;
        bool differs;
        if (entry->mode != GIT_FILEMODE_COMMIT || git_index_entry_stage(entry) != 0 ||
            (entry->flags & unwatched) || (entry->flags_extended & GIT_INDEX_ENTRY_SKIP_WORKTREE))
            continue;
        if (repo_late(q) || look_at(q, repo, entry, untracked, depth, &one, &differs) < 0)
            return -1;
        if (differs)
            fn(data, &one);
    }
    return 0;
}
