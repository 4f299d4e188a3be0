#pragma once
/* Search by base name (and, if asked, content). Worker threads; may block on disk. */

#include "base/buf.h"
#include "policy/guard.h"

#include <stdbool.h>
#include <stdint.h>

struct search_options {
    const char *pattern;
    int64_t max_depth;   /* levels below the start; files on level 1..max_depth */
    int64_t max_results; /* 0 or less: 1 */
    uint64_t deadline_ns; /* mono_ns */
    bool include_dirs;
    const char *content; /* bytes that a regular file must hold, or NULL */
    size_t content_len;
    bool (*cancelled)(void *data);
    void *data;
};

/* {"results": [{"name", "path"}, ...], "timed_out": bool, "truncated": bool}: the hits of a directory in
 * byte order, then its subdirectories. Linked directories are not entered, closed ones skipped.
 * Errors: the guard's; E_FILE_NOT_FOUND (missing, not a directory); E_CANCELLED; E_NO_MEMORY. */
int files_search(const struct guard *g, const char *path, size_t len, const struct search_options *opt,
                 struct arena *arena, struct buf *out, const char **ret_path, struct abx_error *err);
