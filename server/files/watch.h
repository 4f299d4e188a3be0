#pragma once
/* Watching a directory with inotify. One instance a watch: closing it frees everything at once. All calls but
 * watch_fd run on a worker (one at a time); they may block on disk.
 *
 * What is known of the tree (path, kind, size, time) is kept, so that each change is told once however the
 * kernel words it, directories made in a hurry are looked through, and a queue that overflowed is made good by
 * looking at everything again. */

#include "base/buf.h"
#include "policy/guard.h"

#include <stdbool.h>

#define WATCH_LEVELS 5        /* of a recursive watch */
#define WATCH_ENTRIES 100000  /* more are not followed: an `overflow` event says so */

struct watch;

/* *ret_path: canonical, valid as long as the watch.
 * Errors: the guard's; E_FILE_NOT_FOUND (missing, not a directory); E_RESOURCE (the kernel's limits of instances or
 * watches); E_NO_MEMORY. */
int watch_new(const struct guard *g, const char *path, size_t len, bool recursive, struct watch **ret,
              const char **ret_path, struct abx_error *err);
void watch_free(struct watch *w);

/* Readable when something happened; owned by the watch. */
int watch_fd(const struct watch *w);

/* Appends what happened as ready SSE text ("event: change\ndata: {...}\n\n"...), about 256 KiB at most unless
 * everything had to be looked at again. True when there is more. */
bool watch_read(struct watch *w, struct buf *out);
