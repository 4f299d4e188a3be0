#pragma once
/* Background processes by pid: what /process/... shows. Loop thread.
 *
 * An entry is `running` until its program has ended and its output is complete, then `exited`. Exited ones
 * stay readable until there are more than TABLE_EXITED_MAX of them, they are older than TABLE_EXITED_MS, or
 * their output together is more than TABLE_EXITED_BYTES: the oldest go first. A pid that comes back means
 * the newer entry. */

#include "base/buf.h"
#include "base/list.h"
#include "process/proc.h"

#define TABLE_RUNNING_MAX 100 /* unless a policy says otherwise */
#define TABLE_EXITED_MAX 256
#define TABLE_EXITED_MS (60u * 60 * 1000)
#define TABLE_EXITED_BYTES (32u * 1024 * 1024)
#define TABLE_RING_CHARS (1024 * 1024) /* unless a policy says otherwise */
#define TABLE_EVENT_BYTES 4096

struct proc_table;
struct entry;

struct proc_table *proc_table_new(struct loop *loop, struct spawner *spawner);
/* Children are gone already; nothing is called. */
void proc_table_free(struct proc_table *t);

struct entry_opts {
    struct proc_opts proc;
    const char *command; /* copied */
    size_t command_len;
    int64_t running_max; /* entries that may run at once */
    bool capture;        /* keep the output */
    int64_t ring_chars;
    bool has_stdin;      /* stdin was asked for */
};

/* Is there room for one more beside those that run or start? Errors: E_RESOURCE. */
int proc_table_admit(struct proc_table *t, int64_t running_max, struct abx_error *err);

/* started: the entry is in the table (sys 0), or sys says why there is none. On the loop, not from within.
 * Errors: E_RESOURCE (too many), those of proc_start. */
int proc_table_start(struct proc_table *t, const struct entry_opts *opts,
                     void (*started)(void *data, struct entry *e, int sys), void *data, struct abx_error *err);

struct entry *proc_table_find(struct proc_table *t, pid_t pid); /* NULL: unknown */
/* Running ones in start order. */
void proc_table_each(struct proc_table *t, void (*fn)(void *data, struct entry *e), void *data);

pid_t entry_pid(const struct entry *e);
const char *entry_command(const struct entry *e, size_t *ret_len);
bool entry_running(const struct entry *e);
int entry_exit_code(const struct entry *e);
double entry_started_at(const struct entry *e); /* Unix seconds */
bool entry_captures(const struct entry *e);
/* Asked for at the start and not closed by entry_close_stdin (its reader may have ended all the same). */
bool entry_has_stdin(const struct entry *e);
void entry_close_stdin(struct entry *e); /* after what is queued */
struct proc *entry_proc(struct entry *e);     /* NULL when exited */

/* --- output ---- */

struct out_event {
    enum proc_stream stream;
    double at; /* Unix seconds */
    uint32_t len, chars;
    char text[]; /* UTF-8 */
};

int64_t entry_first(const struct entry *e); /* oldest seq that is kept */
int64_t entry_next(const struct entry *e);  /* seq of the next event */
bool entry_dropped(const struct entry *e);
const struct out_event *entry_event(const struct entry *e, int64_t seq); /* first <= seq < next */

/* fn is called after each change (events, end). The owner removes the watch before it goes; removing it
 * from within is fine. While one is there the entry stays. */
struct entry_watch {
    struct list link;
    void (*fn)(void *data);
    void *data;
};
void entry_watch(struct entry *e, struct entry_watch *w);
void entry_unwatch(struct entry_watch *w);
