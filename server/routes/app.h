#pragma once
/* What the handlers work with: one struct, made by cli/serve, passed to every request. Loop thread. */

#include "base/env.h"
#include "base/error.h"
#include "base/loop.h"
#include "http/http.h"
#include "process/spawn.h"

#define ABX_VERSION_STRING ABX_VERSION

struct app {
    struct loop *loop;
    struct http *http;
    struct spawner *spawner;
    struct env_map *env;
    const char *base_dir;      /* absolute, as configured */
    const char *state_dir;     /* absolute; the browser's profile, long output */
    char **commands;           /* --commands, NULL-terminated */
    bool reload;               /* --reload */
    int port, pty_port;        /* as bound */
    const char *host;
    uint64_t started_ns;       /* mono_ns */
    double started_at;         /* Unix seconds */
#define SERVICE(name) struct name##_service *name;
#include "routes/services.def"
#undef SERVICE
};

/* Each service of services.def: start fills app->NAME (may leave it NULL when it has no state); stop frees
 * it (loop thread; children are already gone). Start must cost next to nothing: work begins on first use. */
#define SERVICE(name)                                                                              \
    int name##_service_start(struct app *app, struct abx_error *err);                              \
    void name##_service_stop(struct app *app);
#include "routes/services.def"
#undef SERVICE
