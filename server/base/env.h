#pragma once
/* The environment that children get: our own copy, taken once at start and scrubbed of secrets.
 * `POST /env` changes it; a spawn takes an immutable snapshot. Loop thread, except where said. */

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

struct env_map;

/* Takes over the process environment: copies it, and overwrites in place the values of
 * ABX_SERVER_TOKEN and of each name in `secrets` (NULL-terminated; may be NULL), so that
 * /proc/PID/environ shows no token. Never kept: ABX_SERVER_TOKEN, ABX_SERVER_POLICY,
 * ABX_SERVER_POLICY_FILE, the secrets. */
struct env_map *env_new(char **environ_block, const char *const *secrets);
void env_free(struct env_map *e);

const char *env_get(const struct env_map *e, const char *name); /* borrowed until the next set */
int env_set(struct env_map *e, const char *name, const char *value);
void env_unset(struct env_map *e, const char *name);

/* What one variable takes of the room for words and environment that execve(2) gives, pointer included. */
size_t env_cost(const char *name, const char *value);
/* The whole map's. */
size_t env_total(const struct env_map *e);
/* The most that the map may take: half of that room, so that spawns have the other half for their words and variables
 * of their own. */
size_t env_total_max(void);
#define ENV_STRING_MAX (128 * 1024) /* NAME=value with its NUL: execve(2), MAX_ARG_STRLEN */

/* Calls fn in environment order. */
void env_each(const struct env_map *e, void (*fn)(void *data, const char *name, const char *value),
              void *data);

/* True for ABX_SERVER_* (any case) and the names given as secrets. */
bool env_is_secret_name(const struct env_map *e, const char *name);

/* More names become secrets (a policy that was read again): dropped from the map, refused from now on.
 * -1: no memory. */
int env_add_secrets(struct env_map *e, const char *const *names);

/* An immutable envp for one spawn: the map, then `overlay` (object name -> string; may be NULL)
 * on top. NULL-terminated, one heap block: free(). Any thread may read it. NULL: no memory. */
char **env_block(const struct env_map *e, const json_t *overlay);
