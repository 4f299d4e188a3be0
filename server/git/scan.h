#pragma once
/* A quick look at the work tree: which paths might differ from the index, and which are not in it?
 * libgit2 then judges only these. */

#include "git/repo.h"

struct paths {
    char **list; /* relative to the work tree; heap */
    size_t n, cap;
};

struct scanned {
    struct paths tracked; /* literal; may differ */
    struct paths
        untracked; /* "a", or "a/" for a directory of which nothing is tracked; maybe ignored */
};
void scanned_done(struct scanned *s);

/* Every tracked path that differs is in the result, others may be too; submodules aren't
 * (submodule.h). Returns 0; 1: too many, or nothing is gained here, compare everything; -1: out of
 * memory or time. */
int scan_worktree(const struct git_query *q, git_repository *repo, git_index *index,
                  struct scanned *ret);

/* Does git status show this path of `untracked`? A directory only when something in it isn't
 * ignored. */
bool scan_shows_untracked(git_repository *repo, const char *path);
