#pragma once
/* Making, deleting and moving names. Worker threads; may block on disk. */

#include "base/arena.h"
#include "base/error.h"
#include "policy/guard.h"

#include <stddef.h>

/* `mkdir -p`, 0777 & ~umask; fine when it is there. *ret_path: canonical path, in the arena.
 * Errors: the guard's; OS (EEXIST over a file, ENOTDIR below one). */
int files_mkdir(const struct guard *g, const char *path, size_t len, struct arena *arena,
                const char **ret_path, struct abx_error *err);

/* What may take long is left to the long lane: with QUICK, 1 is returned and nothing was done. */
enum ops_pace { OPS_QUICK, OPS_FULL };

/* Deletes the name: a link itself, a directory with all in it.
 * Errors: the guard's; E_FILE_NOT_FOUND; E_PATH_DENIED (the root; a denied entry inside); OS. */
int files_delete(const struct guard *g, const char *path, size_t len, enum ops_pace pace, struct arena *arena,
                 const char **ret_path, struct abx_error *err);

/* Moves the name (a link itself). Parents of the destination are made. A destination that is a directory
 * takes the source in; a file or link there is replaced. Across devices: copied, then deleted.
 * Messages begin with "source: " or "destination: " where the guard refuses.
 * Errors: the guard's; E_FILE_NOT_FOUND; E_MOVE (into itself; name taken in the directory); OS. */
int files_move(const struct guard *g, const char *source, size_t source_len, const char *destination,
               size_t destination_len, enum ops_pace pace, struct arena *arena, const char **ret_source,
               const char **ret_destination, struct abx_error *err);
