#pragma once
/* What status and diff share: opening a repository within the guard, names, errors. */

#include "base/buf.h"
#include "git/git.h"

#include <git2.h>

/* Finds and opens the repository around q->path. Errors: E_GIT (none, bare, broken, inside .git),
 * the guard's (its files lie outside). The caller gives it back with repo_close. */
int repo_open(const struct git_query *q, git_repository **ret, struct abx_error *err);

/* Keeps it for the next call with the same path, or frees it. */
void repo_close(const struct git_query *q, git_repository *repo);

/* Its index, as it is on disk now. */
int repo_index(git_repository *repo, git_index **ret);

/* Opens exactly this directory (a submodule's), if it is a repository and all of it passes the
 * guard. */
int repo_open_at(const struct git_query *q, const char *dir, git_repository **ret);

/* E_GIT with libgit2's last message. Returns -1. */
int repo_fail(struct abx_error *err, const char *what);

/* HEAD's tree; *ret NULL when there is no commit yet. */
int repo_head_tree(git_repository *repo, git_tree **ret, struct abx_error *err);

/* Past the deadline? For libgit2's progress callbacks (payload: const struct git_query *): non-zero
 * stops. */
int repo_progress(const git_diff *diff, const char *old_path, const char *new_path, void *payload);
int repo_timed_out(const char *what, struct abx_error *err);
bool repo_late(const struct git_query *q);

/* Renames as git finds them (HEAD against index). */
int repo_find_renames(git_diff *diff);

/* Appends name as git shows it in a diff: plain, or in quotes with C escapes when it has controls,
 * quotes, backslashes or (quote_high: core.quotePath) bytes from 0x80 on. prefix: "a/", "b/" or "".
 */
void repo_quote(struct buf *out, const char *prefix, const char *name, bool quote_high);
