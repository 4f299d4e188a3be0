#pragma once
/* A file in conflict against both of its sides: the "diff --cc" that git shows during a merge. */

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct side {
    const char *data;
    size_t len;
};

/* Appends the hunks ("@@@ ... @@@"), nothing when none is of interest. 0, or -1 (no memory, or
 * libgit2 failed: git_error_last). */
int combined_hunks(const struct side parents[2], const struct side *result, struct buf *out);
