#pragma once
/* A program with its pipes: output as it comes, input as it is taken, a deadline, one end.
 *
 * Both output pipes are watched before the program starts, so pieces arrive in the order in which the
 * pipes became readable. The end is told once the leader has ended and both pipes are at their end, or
 * PROC_LINGER_MS after the leader's end when a background child still holds one: it never holds the
 * answer. At the deadline the whole tree gets TERM, after PROC_GRACE_MS KILL, and output is thrown away
 * from then on. Loop thread. */

#include "process/spawn.h"

#define PROC_LINGER_MS 100
#define PROC_GRACE_MS 500
#define PROC_PIECE (64 * 1024) /* most bytes of one `output` call */

enum proc_stream { PROC_STDOUT = 1, PROC_STDERR = 2 };

struct proc;

struct proc_ops {
    /* The program runs (sys 0), or could not be started: sys is the errno, and no other call follows; the
     * proc is gone. Optional while it succeeds. */
    void (*started)(void *owner, struct proc *p, int sys);
    /* May pause or cancel. Not after timed_out or proc_discard. */
    void (*output)(void *owner, enum proc_stream stream, const char *data, size_t len);
    /* The deadline has passed; `ended` follows. Optional. */
    void (*timed_out)(void *owner);
    /* The leader has ended: exit_code 0..255 or -signal. Before the last output. Optional. */
    void (*exited)(void *owner, int exit_code);
    /* The last call; the proc is gone after it. exit_code as above; -9 when proc_kill or the deadline
     * ended it (also if the program answered TERM in its own way). */
    void (*ended)(void *owner, int exit_code);
};

enum proc_stdin {
    PROC_STDIN_NULL,  /* /dev/null: immediate end of file */
    PROC_STDIN_INPUT, /* `input`, then end of file */
    PROC_STDIN_OPEN,  /* `input` if any, then proc_write until proc_close_stdin */
};

struct proc_opts {
    struct spawn_opts spawn; /* fds are set by proc_start */
    enum proc_stdin stdin_mode;
    const void *input; /* copied */
    size_t input_len;
    bool no_output;    /* 1 and 2 are /dev/null */
    bool merge;        /* 2 goes where 1 goes */
    uint64_t timeout_ms; /* from the start of the program; 0: none */
};

/* Errors: E_NO_MEMORY, E_STOPPING, E_OVERLOADED (no descriptors). cwd_fd is borrowed until `started`. */
int proc_start(struct spawner *s, struct loop *loop, const struct proc_opts *opts,
               const struct proc_ops *ops, void *owner, struct proc **ret, struct abx_error *err);

pid_t proc_pid(const struct proc *p);          /* 0 before `started` */
struct child *proc_child(const struct proc *p); /* NULL before `started` */

/* No output until resumed; the program is slowed down by its full pipe. */
void proc_pause(struct proc *p);
void proc_resume(struct proc *p);

/* Ends the tree: TERM, after grace_ms KILL (0: at once); output is thrown away from now on, `ended` follows. */
void proc_kill(struct proc *p, uint32_t grace_ms);

/* The owner leaves: no more calls. The tree is ended as by proc_kill. */
void proc_cancel(struct proc *p, uint32_t grace_ms);

/* Input in the order of the calls. `done` is called on the loop (perhaps at once, from within) when all
 * of it is in the pipe (sys 0), when nothing moved for stall_ms (EAGAIN) or when nobody reads any more
 * (EPIPE); the rest is dropped then. written: bytes that went in. Takes data (free).
 * -1 when stdin is not open (nothing taken, nothing called). */
int proc_write(struct proc *p, char *data, size_t len, uint32_t stall_ms,
               void (*done)(void *data, size_t written, int sys), void *done_data);
/* End of file after what is queued. Twice is fine. */
void proc_close_stdin(struct proc *p);
bool proc_stdin_open(const struct proc *p); /* false after proc_close_stdin */
