#pragma once
/* Persistent contexts: one process of Python or Node each, which runs one text after the other, so that
 * variables survive. A context is made by its first use, ends with its process, a time-out, a reset or after
 * idle_ms without use. Loop thread. */

#include "code/run.h"

#include <jansson.h>

#define CONTEXT_MAX 16
#define CONTEXT_ID_MAX 64

struct contexts;
struct contexts_limits {
    uint64_t idle_ms;      /* 0: never */
    uint64_t memory_bytes; /* of one context: address space (Python), old space (Node) */
};
struct contexts *contexts_new(struct loop *loop, struct spawner *spawner, const struct contexts_limits *limits);
void contexts_free(struct contexts *c); /* nobody is told; NULL is fine */

bool context_language(const struct language *lang); /* does it have contexts? */

struct context_result {
    struct code_result run;
    json_t *reply; /* {"result": str or null, "results": [...]}; NULL when the process ended meanwhile */
};

/* o->args and o->input are not used; program, envp and cwd_fd only by the first use. id: 1..CONTEXT_ID_MAX of
 * [A-Za-z0-9._-]. reset: a new process even if there is one. done as in code_run_start.
 * Errors: E_VALUE (id, a language without contexts, or another one than the context's), E_CONFLICT (it is at
 * work), E_RESOURCE (CONTEXT_MAX), and those of code_run_start. */
int context_run(struct contexts *c, const char *id, bool reset, const struct code_order *o,
                void (*done)(void *data, int sys, const struct context_result *result), void *data,
                struct abx_error *err);
/* Ends the context if this is who waits for it; done follows. */
void context_cancel(struct contexts *c, void *data);
