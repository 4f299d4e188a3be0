#pragma once
/* All that `--commands` brings: one command host per file, and what the files register, merged.
 * Loop thread.
 *
 * How serve uses it (routes/commands.h has the route side):
 *   1. registry_new starts every host at once and returns; do other start-up work (policy document, ports)
 *      while they load;
 *   2. registry_wait runs the loop until all have registered: a few hundred microseconds. On failure print
 *      the message, registry_unref, and exit with registry_exit_status;
 *   3. registry_code_groups fills policy_inputs.code_groups; commands_site builds table, policy and site;
 *   4. with --reload: registry_watch calls back when a file has changed; then registry_new again,
 *      registry_on_loaded instead of registry_wait, commands_site, http_set_site. Any failure: log it and
 *      registry_unref the new one; the old one serves on. The old one ends when its last request is done.
 * Stop: registry_stop before spawner_stop, registry_unref at the end.
 *
 * A value of --commands is a shared object, a C source (compiled with $CC or cc into a private
 * directory below $TMPDIR), or a directory: all its .so and .c files in the order of their names. The same real
 * path is loaded once. A file named itself must load (E_CONFIG otherwise); a file of a directory that does
 * not is skipped, and the log says why. A name that is registered again by a later file replaces the
 * earlier one at its place, with a warning; two routes with one id or one method and path: the later file is refused. */

#include "registry/host.h"

struct registry;

struct registry_config {
    struct loop *loop;
    struct spawner *spawner;
    struct env_map *env;
    char *const *files;                  /* --commands, NULL-terminated; NULL: none */
    const struct endpoint *const *taken; /* built-in endpoints, whose ids and places routes can't have */
    size_t n_taken;
    /* Reload: what serves now, looked at in registry_new only. A file of a directory that it has must load. */
    const struct registry *before;
};

#define REGISTRY_MEMORY_DEFAULT (512ull * 1024 * 1024)
#define REGISTRY_THREADS_DEFAULT 256

/* Reads ABX_COMMAND_MEMORY (bytes or "512MiB"; "0": no limit) and ABX_COMMAND_THREADS (1..4096) from env.
 * Errors: E_CONFIG (a bad setting; a missing, foreign or Python file), E_NO_MEMORY. */
int registry_new(const struct registry_config *config, struct registry **ret, struct abx_error *err);
struct registry *registry_ref(struct registry *r);
void registry_unref(struct registry *r); /* the last one ends the hosts */

/* The server stops: calls in flight may end within the spawner's grace, new ones are refused (E_STOPPING), and a
 * host without calls is ended at once. */
void registry_stop(struct registry *r);

/* Runs the loop until everything is loaded. Start-up only, never from within a loop callback.
 * Errors: E_CONFIG. */
int registry_wait(struct registry *r, struct abx_error *err);
/* The same without waiting: done is called once from the loop, err NULL when all is well. */
void registry_on_loaded(struct registry *r, void (*done)(void *data, const struct abx_error *err), void *data);
int registry_exit_status(const struct registry *r); /* of a file that ended its host while loading; else 1 */

/* --- once loaded --- */

void registry_code_groups(const struct registry *r, int8_t groups[GROUP_COUNT]); /* as in policy_inputs */

struct registry_command {
    const struct command_spec *spec;
    struct host *host;
};
size_t registry_command_count(const struct registry *r);
const struct registry_command *registry_command_at(const struct registry *r, size_t i); /* in listing order */
const struct registry_command *registry_find(const struct registry *r, const char *name, size_t len);

struct registry_route {
    const struct route_spec *spec;
    struct host *host;
};
size_t registry_route_count(const struct registry *r);
const struct registry_route *registry_route_at(const struct registry *r, size_t i);

/* --reload: changed is called from the loop, each time, some 200 ms after a file or its directory has last changed.
 * Once per registry. Errors: E_OS. */
int registry_watch(struct registry *r, void (*changed)(void *data), void *data, struct abx_error *err);

/* What a compiler needs to build a commands file: "-I DIR" of abx/commands.h ("" when it stands in the usual
 * place), for `abx-server --cflags` and for .c files. Heap (free). */
char *registry_cflags(void);
