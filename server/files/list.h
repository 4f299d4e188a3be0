#pragma once
/* Listing and stat: answers written straight as JSON text. Worker threads; may block on disk. */

#include "base/buf.h"
#include "policy/guard.h"

#include <stdbool.h>
#include <stdint.h>

struct list_options {
    bool recursive;
    int64_t max_entries, max_depth;
    bool quick; /* give up (1) when the directory is large or the walk may be: the long lane does it */
    bool (*cancelled)(void *data); /* NULL: never */
    void *data;
};

/* {"entries": [{"name", "type", "size", "modified", "path"}, ...], "truncated": bool}; depth first, each
 * directory before what is in it, names in byte order. Links that lead out and entries a rule denies are
 * left out; closed directories look empty. *ret_path: canonical path, in the arena.
 * Returns 0; 1 see `quick`. Errors: the guard's; E_FILE_NOT_FOUND (missing, or not a directory),
 * E_CANCELLED, E_NO_MEMORY. */
int files_list(const struct guard *g, const char *path, size_t len, const struct list_options *opt,
               struct arena *arena, struct buf *out, const char **ret_path, struct abx_error *err);

/* {"name", "path", "type", ..., "exists"}: links are followed; what is missing has exists false.
 * Errors: the guard's; OS errors other than "missing". */
int files_stat(const struct guard *g, const char *path, size_t len, struct arena *arena, struct buf *out,
               const char **ret_path, struct abx_error *err);

/* True for errno values that mean "there is nothing at that path". */
bool files_is_missing(int sys);

/* Turns an open's "missing" (E_OS) into 404 FileNotFoundError; other errors stay. Returns -1. */
int files_lookup_error(struct abx_error *err);

/* A directory to list or to search. One that is closed to us is opened too, with O_PATH: it looks empty. Errors as above. */
int files_open_dir(const struct guard *g, const char *path, size_t len, struct arena *arena,
                   struct guard_path *ret, int *ret_fd, struct abx_error *err);

/* Below a file there is no directory to make: mkdir's FileExistsError, as clients of the reference know it. */
void files_parent_error(struct abx_error *err);

/* What may be shown or read of an entry met in a walk. `resolved`: canonical path of its directory + name.
 * link: the entry is a symbolic link (its target is judged too). */
bool files_may_show(const struct guard *g, const char *resolved, size_t len, bool link,
                    struct arena *scratch);
