#pragma once
/* Status and diff of a repository, in process: nothing of its configuration is ever run, nothing is
 * written. Lives in the module "git" (libgit2), opened on first use:
 *     const struct git_api *git = module_symbol("git", "abx_git_api", err);
 * Any worker; blocks on disk. */

#include "base/error.h"
#include "policy/guard.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct git_query {
    const struct guard *guard; /* the repository's own files must lie within it too */
    const char *path;          /* canonical directory to start at */
    const char *root;          /* discovery does not climb above it */
    const char *file;     /* diff: absolute, normalised, links not followed; NULL: everything */
    bool staged;          /* diff: index against HEAD, else work tree against index */
    uint64_t deadline_ms; /* mono_ms */
};

struct git_api {
    /* {"branch", "clean", "files": [{"path", "status", "name", "old_path", "index", "worktree",
     * "conflict", "name_base64"}], "head", "detached", "upstream", "ahead", "behind", "truncated"}.
     * Errors: E_GIT, E_TIMEOUT_408, E_NO_MEMORY, the guard's. */
    int (*status)(const struct git_query *q, json_t **ret, struct abx_error *err);

    /* {"diff", "stats": {"files_changed", "insertions", "deletions"}, "truncated"}. Same errors. */
    int (*diff)(const struct git_query *q, json_t **ret, struct abx_error *err);
};

extern const struct git_api abx_git_api;
