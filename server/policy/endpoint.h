#pragma once
/* What is declared about an endpoint, apart from its handler: the table in routes/ and a
 * template's own routes are made of these, and policy, discovery, lint and docs read them. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum group {
    G_CORE,
    G_COMMANDS,
    G_FILE_OPS,
    G_PROCESS,
    G_TERMINAL,
    G_SYSTEM,
    G_DEV_TOOLS,
    G_BROWSER,
    G_AGENTS,
    GROUP_COUNT
};
const char *group_name(enum group g);             /* "core", "file_ops", ... */
int group_parse(const char *name, enum group *g); /* -1: unknown */
bool group_is_opt_in(enum group g);               /* dev_tools, browser, agents: off by default */

enum method { M_GET, M_POST, M_PUT, M_DELETE, M_PATCH, M_WS, METHOD_COUNT };
const char *method_name(enum method m); /* "GET", ..., "WS" */

enum limit {
#define LIMIT(name, kind) LIMIT_##name,
#include "policy/knobs.def"
#undef LIMIT
    LIMIT_COUNT
};
enum param {
#define PARAM(name, kind) PARAM_##name,
#include "policy/knobs.def"
#undef PARAM
    PARAM_COUNT
};
#define LIM(name) (1u << LIMIT_##name)
#define PAR(name) (1u << PARAM_##name)
#define LIMITS_COMMON (LIM(max_request_bytes) | LIM(rate_per_minute) | LIM(max_concurrency))

enum guard_op { OP_READ, OP_WRITE, OP_DELETE, OP_EXEC };

enum endpoint_flags {
    EP_NO_AUTH = 1 << 0,   /* no token needed; the caller is "anonymous" without scopes */
    EP_PATHS = 1 << 1,     /* path rules apply (P) */
    EP_EXEC = 1 << 2,      /* executes programs (X) */
    EP_STREAM = 1 << 3,    /* answers with a stream (S) */
    EP_WS = 1 << 4,        /* a WebSocket */
    EP_WORKER = 1 << 5,    /* the handler blocks: run it on a worker (short lane) */
    EP_WORKER_LONG = 1 << 6, /* the same on the long lane */
    EP_BODY_STREAM = 1 << 7, /* the handler takes the body as it arrives (req_body_start) */
    EP_CHUNKED = 1 << 8,   /* Transfer-Encoding: chunked is accepted */
    EP_ADDITIVE = 1 << 9,  /* beyond the reference's API: listed, but not in group_summary, whose totals clients know */
    EP_UNLISTED = 1 << 10, /* not in the discovery document */
    EP_NO_AUDIT = 1 << 11, /* never in the audit log (health) */
    EP_MULTIPART = 1 << 12, /* a multipart/form-data body is not parsed as JSON: req_body_text has it */
    EP_WS_LATE = 1 << 13, /* a refused caller gets the handshake first, then a close code (req_ws_refusal) */
    EP_QUERY_TOKEN = 1 << 14, /* ?token= counts when there is no credential header */
    EP_HALF_CLOSE_OK = 1 << 15, /* a client that only closed its sending side has not left */
    EP_FOLLOWS = 1 << 16, /* its stream follows a program, whose end is still told when the server stops */
};

struct endpoint {
    const char *id, *path, *summary;
    enum method method;
    enum group group;
    const char *const *scopes; /* NULL-terminated; NULL = none needed */
    uint32_t limits;           /* LIM() bits; LIMITS_COMMON is always in */
    uint32_t params;           /* PAR() bits */
    uint32_t flags;            /* enum endpoint_flags */
    enum guard_op op;          /* what capabilities/check assumes when `op` is absent */
    bool custom;               /* a template's own route */
    const char *rule_of;       /* id of the endpoint (of the same group) whose rules reach this one too; its own come on top */
};
