#pragma once
/* Whole trees, always relative to an open parent directory and never through a link. Worker threads. */

#include "base/arena.h"
#include "base/error.h"
#include "policy/guard.h"

#include <stdbool.h>

/* Looks at the tree `name` in dirfd before it is deleted or moved. resolved: its canonical path.
 * Errors: E_PATH_DENIED when a deny rule matches something in it, or when it has more than 100,000 entries
 * (then nobody can tell). */
int tree_check_denied(const struct guard *g, int dirfd, const char *name, const char *resolved,
                      struct abx_error *err);

/* Removes `name` in dirfd and all that is in it; links are removed, not followed. resolved: for messages.
 * Errors: OS errors with the path at fault; what was removed before stays removed. */
int tree_remove(int dirfd, const char *name, const char *resolved, struct abx_error *err);

/* Could tree_remove do it? Looks at the directories only: their permissions and a read-only file system.
 * Errors: OS errors with the path at fault. */
int tree_check_removable(int dirfd, const char *name, const char *resolved, struct abx_error *err);

/* Copies `name` in from_fd to `to_name` in to_fd, which must not exist: contents, links as links, FIFOs,
 * modes, times, owner where permitted. Errors: OS errors; what was copied before stays. */
int tree_copy(int from_fd, const char *name, int to_fd, const char *to_name, const char *resolved,
              struct abx_error *err);
