#pragma once
/* The command host: one small process that loads one commands file and runs its calls.
 *
 * loader.c opens the file and tells the server what it registers; pool.c reads frames, runs calls on
 * threads and sends what they answer; api.c is what a call can do. This process dies with what a
 * command does wrong, so it keeps nothing that the server needs. Globals are this program's one state. */

#define ABX_NO_PLUGIN
#include <abx/commands.h>

#include "registry/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct entry { /* a registered command or route; never changes after loading */
    bool route;
    uint32_t flags;
    const char *name, *method;
    abx_function run;
    void *user;
};

struct entries {
    struct entry *items;
    uint32_t n, cap;
};

struct arg { /* one decoded argument; points into the call's payload */
    int type;
    const char *name, *text;
    size_t len; /* text bytes, or number of items */
    int64_t i;
    double d;
    const char **items;
};

struct pair {
    const char *name, *value;
};

struct pairs {
    struct pair *items;
    uint32_t n;
};

#define PUT_DEPTH 64

struct call {
    struct abx_call pub; /* first: what a plugin sees */
    struct call *next;   /* in the queue or among the running */
    uint32_t id;
    const struct entry *entry;
    uint32_t flags;
    atomic_bool cancelled;
    int64_t credit;      /* bytes of events; under the pool's lock */
    char *payload;       /* what everything below points into */
    size_t payload_cap, payload_len;
    bool started;
    struct call_mem *mem; /* small arrays, freed with the call */

    const char *request, *identity, *base_dir, *method, *path;
    const char **scopes;
    uint32_t n_scopes, n_args;
    struct arg *args;
    struct limit {
        const char *name;
        double value;
    } *limits;
    uint32_t n_limits;
    struct pairs params, query, headers;
    const char *body;
    size_t body_len;
    char *args_json;

    /* the answer so far */
    struct wire_buf out;
    enum { ANSWER_NONE, ANSWER_JSON, ANSWER_BYTES, ANSWER_ERROR } answer;
    int status, error_status;
    const char *content_type, *error_type, *error_code, *error_fields;
    char *error_message;
    struct pair headers_out[32];
    uint32_t n_headers_out;
    const char *invalid; /* why the result can't be sent */
    unsigned depth;
    char stack[PUT_DEPTH]; /* '{' before a key, ':' after it, '[' */
    bool first[PUT_DEPTH];

    /* a path that the server is asked about */
    bool resolve_done;
    int resolve_status;
    char *resolved;
};

/* api.c */
extern const struct abx_api host_api;
void *call_alloc(struct call *c, size_t size); /* freed with the call; NULL: memory is out */
char *call_strdup(struct call *c, const char *s);
int call_decode(struct call *c, struct wire_reader *r, const struct entries *entries); /* -1: bad frame */
void call_answer(struct call *c, struct wire_buf *out); /* appends W_RESULT or W_ERROR */
void call_clear(struct call *c);
void call_fail(struct call *c, int status, const char *type, const char *code, const char *message,
               const char *fields); /* all copied */

/* loader.c: fills entries and appends frames up to W_READY, or W_LOAD_FAILED and returns -1. */
int host_load(const char *path, struct entries *entries, bool *ret_keep_children, struct wire_buf *out);

/* pool.c */
struct host_options {
    int fd;
    uint64_t memory_bytes; /* 0 = no limit */
    uint32_t max_threads;
    bool keep_children;
};
int pool_run(const struct host_options *options, const struct entries *entries, struct wire_buf *first);
/* Sends a frame that was built in b (and empties b). Waits while the server is slow. */
void pool_send(struct wire_buf *b);
/* Waits until `ready(c)` (called under the pool's lock), at most `ms` (UINT32_MAX: for ever) or until the
 * call is cancelled. Goes on reading from the server meanwhile when nobody else does. */
void pool_wait(struct call *c, bool (*ready)(struct call *c), uint32_t ms);
void pool_lock(void);
void pool_unlock(void);
