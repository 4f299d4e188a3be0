#pragma once
/* Terminal sessions: a shell on a terminal of its own, its output kept and handed to any number of viewers,
 * its input taken from any of them. Bytes and events; no WebSocket. Loop thread only.
 *
 * Output is always drained. Each viewer has a place of its own in the session's ring (PTY_RING_BYTES). The
 * terminal is read as long as the fastest viewer is less than PTY_LAG_PAUSE behind (always when there is
 * none): a single slow viewer slows the program, one slow viewer among several falls out of the ring and is
 * told `lost`. When nobody takes anything for PTY_STALL_MS, whoever holds the program up is told `lost`.
 *
 * A session that ended stays listed as dead (its last output can be looked at) until pty_prune or
 * PTY_DEAD_MS later. One without viewers and input for idle_ms is ended. */

#include "base/error.h"
#include "base/list.h"
#include "base/loop.h"
#include "process/spawn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTY_RING_BYTES ((size_t)256 * 1024)
#define PTY_LAG_PAUSE ((size_t)96 * 1024)
#define PTY_STALL_MS 60000
#define PTY_DEAD_MS 60000
#define PTY_IDLE_MS 1800000
#define PTY_INPUT_BYTES ((size_t)64 * 1024) /* above: input_full */
#define PTY_ID_LEN 12

struct pty_table;
struct pty_session;
struct pty_viewer;

/* idle_ms 0: sessions are never ended for being idle. NULL: no memory. */
struct pty_table *pty_table_new(struct loop *loop, struct spawner *spawner, uint64_t idle_ms);
/* Forgets all sessions without a call to anybody; viewers must be closed before. NULL is fine. */
void pty_table_free(struct pty_table *t);

/* Sessions that are alive or being started. */
size_t pty_table_alive(const struct pty_table *t);
/* Drops the dead ones. */
void pty_table_prune(struct pty_table *t);
void pty_table_each(struct pty_table *t, void (*fn)(void *data, struct pty_session *s), void *data);
struct pty_session *pty_table_find(struct pty_table *t, const char *id); /* also dead ones; NULL: none */

struct pty_create {
    const char *shell;  /* absolute path of the program */
    char *const *envp;  /* copied */
    int cwd_fd;         /* as spawn_opts.cwd_fd; borrowed until `done` */
    int cols, rows;     /* 0..65535 */
};
/* done is called once, later: with a session, or with sys, the errno of what failed.
 * Errors: E_OS (no terminal to be had), E_NO_MEMORY, E_STOPPING. */
int pty_table_create(struct pty_table *t, const struct pty_create *c,
                     void (*done)(void *data, struct pty_session *s, int sys), void *data,
                     struct abx_error *err);

const char *pty_id(const struct pty_session *s);
pid_t pty_pid(const struct pty_session *s);
double pty_created_at(const struct pty_session *s);
int pty_cols(const struct pty_session *s);
int pty_rows(const struct pty_session *s);
bool pty_alive(const struct pty_session *s);
size_t pty_viewers(const struct pty_session *s);

/* The program in the foreground gets SIGWINCH when the size differs. -1 as it was. */
void pty_resize(struct pty_session *s, int cols, int rows);
/* To the job in the foreground, else to the shell's group. */
void pty_signal(struct pty_session *s, int sig);

/* Unlists the session and ends what runs in it: hang-up, and KILL for what is left after a moment. done is
 * called once, when the shell is gone; maybe before this returns. */
void pty_delete(struct pty_session *s, void (*done)(void *data), void *data);

/* --- viewers ------------------------------------------------------------------------------------------ */

struct pty_viewer_ops {
    void (*ready)(void *owner); /* there is output, or the end (call pty_take, pty_ended) */
    void (*input_full)(void *owner, bool full); /* hold input back; false: go on */
    void (*lost)(void *owner); /* too slow: close the viewer */
};

/* from: the position in the output to begin at, PTY_FROM_START (the oldest that is kept) or PTY_FROM_END. A
 * position that is gone or not reached yet becomes the nearest one. `ready` is never called from within. */
#define PTY_FROM_START UINT64_MAX
#define PTY_FROM_END (UINT64_MAX - 1)
struct pty_viewer *pty_viewer_open(struct pty_session *s, uint64_t from, const struct pty_viewer_ops *ops,
                                   void *owner, struct abx_error *err);
void pty_viewer_close(struct pty_viewer *v); /* NULL is fine */

struct pty_session *pty_viewer_session(const struct pty_viewer *v);
uint64_t pty_viewer_at(const struct pty_viewer *v); /* position of the next byte it gets */
/* True when bytes before pty_viewer_at that it asked for are gone. */
bool pty_viewer_cut(const struct pty_viewer *v);

/* Copies what comes next without moving on. *ret_last: nothing will follow these bytes. */
size_t pty_take(const struct pty_viewer *v, char *dst, size_t max, bool *ret_last);
void pty_advance(struct pty_viewer *v, size_t len);
/* True when the session has ended and the viewer has all of it. */
bool pty_ended(const struct pty_viewer *v, int *ret_exit_code);

/* Types. Beyond PTY_INPUT_BYTES waiting, every viewer is told input_full. */
void pty_input(struct pty_viewer *v, const char *data, size_t len);
