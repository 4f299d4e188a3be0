#pragma once
/* The agents' state: one SQLite file in WAL mode, below the state directory; secrets live in an
 * attached database that is memory only.
 *
 * One connection behind one lock. Workers take the lock and read or write at once (store_lock); the
 * loop never waits for it: it queues writes (store_post), which a worker applies in order. Whoever
 * takes the lock applies the queue first, so a reader always sees what the loop has decided before.
 */

#include "base/error.h"
#include "base/loop.h"

#include <jansson.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>

struct store;

/* path NULL: a private temporary database, gone with the server. Blocks; any thread.
 * A damaged file is set aside (NAME.damaged-TIME) and a fresh one begun. A file of a newer form is refused and left as
 * it is (E_RUNTIME_503). Errors: E_OS, E_NO_MEMORY too. */
int store_open(const char *path, struct store **ret, struct abx_error *err);
/* Applies what is queued, then closes the file. The store can still be used, by a turn whose work comes back while the
 * server stops: statements are NULL, what is posted is dropped. Loop only, as the next. */
void store_close(struct store *st);
/* Closes it if it is open; the memory goes when no flush is under way. NULL does nothing. */
void store_free(struct store *st);
/* The loop that flushes the queue; before the first store_post. */
void store_set_loop(struct store *st, struct loop *loop);

/* Workers only. Between the two the caller owns the connection. */
void store_lock(struct store *st);
void store_unlock(struct store *st);

/* A statement with its arguments bound, ready to step; the next use of the same text resets it.
 * sql must be a literal (statements are cached by address). fmt, one letter an argument:
 * i int64_t, d double, s text or NULL, b (const void *, size_t), j json_t * (borrowed, written out;
 * NULL: null). Lock held. NULL when it can't be prepared (logged). */
sqlite3_stmt *store_stmt(struct store *st, const char *sql, const char *fmt, ...);
/* Runs it to its end: 0, or -1 with E_OS (E_NO_SPACE for a full disk). Lock held. */
int store_exec(struct store *st, struct abx_error *err, const char *sql, const char *fmt, ...);
int store_begin(struct store *st, struct abx_error *err);
int store_commit(struct store *st, struct abx_error *err); /* synced; rolls back when it fails */
void store_rollback(struct store *st);

/* Columns: borrowed until the next step. */
const char *store_text(sqlite3_stmt *s, int col); /* "" for NULL */
json_t *store_json(sqlite3_stmt *s, int col); /* new reference; JSON null when absent or damaged */

/* Loop only: applied soon, in order. Arguments are copied. */
void store_post(struct store *st, const char *sql, const char *fmt, ...);
/* Calls done on the loop once everything posted before is on disk. */
void store_sync(struct store *st, void (*done)(void *data), void *data);
/* Bytes posted and not yet applied: producers pause above a few MiB. */
size_t store_backlog(struct store *st);
/* Bytes in use in the file. Lock held. */
int64_t store_size(struct store *st);
