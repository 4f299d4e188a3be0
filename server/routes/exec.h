#pragma once
/* The exec request, decoded and judged in one place for everything that starts a program for a caller:
 * /shell, /shell/stream, /process/start, code runs, terminals, a command host's runshell.
 * Loop thread. */

#include "base/arena.h"
#include "base/env.h"
#include "policy/policy.h"
#include "process/proc.h"

#define EXEC_TIMEOUT_DEFAULT 300.0
#define EXEC_TIMEOUT_MAX 1e9 /* seconds */

struct exec_ctx {
    const struct rule *rule; /* whose commands, paths and limits hold */
    struct env_map *env;
    struct arena *arena; /* everything in the order lies here, but for envp and cwd_fd */
};

struct exec_order {
    const char *command; /* as sent */
    size_t command_len;
    char **argv;
    size_t argc;
    const char *program; /* file to run; a bare name when nothing was found: exec will say so */
    const char *cwd;     /* canonical */
    int cwd_fd;          /* owned */
    char **envp;         /* owned, one block */
    double timeout;      /* seconds, > 0, finite, cut by limits.timeout_seconds */
    int64_t max_output;  /* limits.max_output_bytes, or -1 */
    bool merge_stderr;
    bool has_input;
    const char *input;
    size_t input_len;
    struct spawn_limits limits;
    int64_t uid, gid; /* -1: ours */
    gid_t *groups;
    size_t n_groups;
};

/* body: {"command", "cwd"?, "env"?, "timeout"?} and our own "timeout_ms", "shell", "input", "input_base64",
 * "merge_stderr", "user", "limits": {"memory_bytes", "cpu_seconds", "open_files"}.
 * Errors: as docs/processes.md says, in its order. On failure the order owns nothing. */
int exec_decode(const struct exec_ctx *ctx, const json_t *body, struct exec_order *ret,
                struct abx_error *err);
void exec_done(struct exec_order *o); /* twice is fine */

/* Fills everything but stdin_mode, no_output and timeout_ms; what o holds is borrowed until `started`. */
void exec_fill(const struct exec_order *o, struct proc_opts *ret);

/* Parts, for those whose body looks different. */

/* timeout_ms, else timeout, else the default; cut by limits.timeout_seconds. */
double exec_timeout(const struct rule *rule, const json_t *body, double fallback);

/* Judges "env" of a body (absent or null: none) and builds the block. *ret: free().
 * Errors: E_VALUE (shape), E_ENV_INVALID, E_ENV_DENIED, E_ENV_NOT_ALLOWED. */
int exec_env(const struct exec_ctx *ctx, const json_t *vars, char ***ret, struct abx_error *err);

/* PATH of a caller's map, else of the base environment, else the usual one. */
const char *exec_search_path(const struct exec_ctx *ctx, const json_t *vars);

/* Error of a program that could not be started: "[Errno N] ...: 'name'", 500, type by errno. Returns -1. */
int exec_start_failed(struct abx_error *err, int sys, const char *name);
