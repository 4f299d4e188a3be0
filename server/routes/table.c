#include "routes/table.h"

#define SCOPES(...) (const char *const[]){__VA_ARGS__, NULL}

/* Limits and params that several rows share. */
#define EXEC_LIMITS (LIM(timeout_seconds) | LIM(max_output_bytes) | LIM(max_processes))
#define EXEC_PARAMS (PAR(allow_commands) | PAR(deny_commands))

#define ROUTE(rid, m, p, g, ...)                                                                   \
    [R_##rid] = {.ep = {.id = #rid, .method = M_##m, .path = p, .group = G_##g, __VA_ARGS__},      \
                 .run = route_##rid},

const struct route builtin_routes[ROUTE_COUNT] = {
#include "routes/routes.def"
};
