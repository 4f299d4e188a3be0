#pragma once
/* One commands file: its command host, the calls in flight, and the host's replacement when it ends,
 * leaks or gets stuck. Loop thread.
 *
 * A host that ends fails the calls that were sent to it and no others; it is started again at once (with
 * growing pauses up to 5 s when it does not even come up), and calls that come meanwhile wait for it. A call
 * past its time fails at once and leaves its thread behind; at HOST_MAX_ABANDONED of these, or when the host asks
 * for it (memory, descriptors), a second host is started, new calls go there, and the first is ended when its
 * last call is. */

#include "base/env.h"
#include "base/list.h"
#include "base/loop.h"
#include "process/spawn.h"
#include "registry/spec.h"

#define HOST_MAX_ABANDONED 8
#define HOST_MAX_CALLS 4096 /* waiting and in flight; beyond: E_OVERLOADED */
#define HOST_LOAD_MS 30000

struct host_options {
    struct loop *loop;
    struct spawner *spawner;
    struct env_map *env;
    const char *program; /* abx-command-host */
    uint64_t memory_bytes;
    uint32_t max_threads;
};

struct host;

/* What a file registered; owned by the host, never changes once it is ready. */
struct host_content {
    struct command_spec *commands;
    size_t n_commands;
    struct route_spec *routes;
    size_t n_routes;
    int8_t groups[GROUP_COUNT]; /* 1 on, -1 off, 0 not mentioned */
};

/* file: absolute path of a shared object; label: how messages and the log name it. Texts are copied.
 * loaded: called once, from the loop (never from within): err NULL, or why the file can't be used
 * (E_CONFIG) with the host's exit status (1..255) when it ended by itself, else 0. NULL: no memory. */
struct host *host_new(const struct host_options *options, const char *file, const char *label,
                      void (*loaded)(void *owner, const struct abx_error *err, int exit_status), void *owner);
const struct host_content *host_content(const struct host *h);
const char *host_label(const struct host *h);
/* No new calls and no new process; each process is ended with its last call. */
void host_stop(struct host *h);
/* Calls in flight fail (E_STOPPING), children are killed. The memory goes when they are reaped. */
void host_free(struct host *h);
pid_t host_pid(const struct host *h); /* of the current process, 0 when there is none */

struct host_call;

struct host_pair {
    const char *name, *value;
};

/* Everything borrowed for the call. */
struct host_result {
    int status;
    bool json;
    const char *content_type, *body;
    size_t body_len;
    uint32_t n_headers;
    struct wire_reader headers; /* n_headers times text name, text value */
};

struct host_call_ops {
    /* Exactly one of these two, unless the call was cancelled; the call is gone after it. */
    void (*result)(void *owner, const struct host_result *result);
    void (*failed)(void *owner, const struct abx_error *err, const char *fields); /* fields: JSON text or "" */
    void (*event)(void *owner, const char *name, const char *json, size_t len);
    /* Judges a path: 0 and *ret (borrowed), or -1. */
    int (*resolve)(void *owner, int op, const char *path, const char **ret, struct abx_error *err);
};

/* host_call_begin gives a buffer in which a W_CALL payload is built; then commit or abort, at once.
 * Errors: E_OVERLOADED, E_NO_MEMORY. commit: E_NO_MEMORY (as after abort). name is copied. */
struct wire_buf *host_call_begin(struct host *h, struct abx_error *err);
void host_call_abort(struct host *h);
int host_call_commit(struct host *h, const char *name, uint64_t timeout_ms, const struct host_call_ops *ops,
                     void *owner, struct host_call **ret, struct abx_error *err);
/* The owner leaves. */
void host_call_cancel(struct host_call *c);
/* Room for `bytes` more of events (after `event`, once they are on their way). */
void host_call_credit(struct host_call *c, size_t bytes);
