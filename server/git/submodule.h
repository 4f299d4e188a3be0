#pragma once
/* Submodules of a work tree. Looked at here and not by libgit2, because a submodule's own files
 * must pass the guard too (and because libgit2 1.5 loses memory whenever it reads .gitmodules). */

#include "git/repo.h"

struct submodule {
    const char *path; /* of the index entry: valid during the call */
    git_oid recorded; /* in the index */
    git_oid current;  /* its HEAD; zero when gone */
    bool gone;        /* its directory is missing */
    bool dirty;       /* files in it differ from its HEAD */
};

/* git status calls a submodule with untracked files modified, git diff doesn't. */
enum untracked { UNTRACKED_IGNORED, UNTRACKED_COUNTS };

/* Calls fn for each one that differs from the index; those not checked out don't. depth: 0 from
 * outside. Returns 0, or -1: libgit2 failed or time is up. */
int submodules_each(const struct git_query *q, git_repository *repo, git_index *index,
                    enum untracked untracked, int depth,
                    void (*fn)(void *data, const struct submodule *one), void *data);
