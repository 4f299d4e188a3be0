#pragma once
/* The exec request, decoded and judged in one place for everything that starts a program for a caller:
 * /shell, /shell/stream, /process/start, code runs, terminals, a command host's runshell.
 * Loop thread unless it says otherwise. */

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

/* Made on the loop, completed on the worker that starts the program, for paths may have to wait for a disk. */
struct exec_order {
    const char *command; /* as sent */
    size_t command_len;
    char **argv;
    size_t argc;
    char **envp;         /* owned, one block */
    double timeout;      /* seconds, > 0, finite, cut by limits.timeout_seconds */
    int64_t max_output;  /* limits.max_output_bytes, or -1 */
    bool shell, merge_stderr, has_input;
    const char *input;
    size_t input_len;
    struct spawn_limits limits;
    int64_t uid, gid; /* -1: ours */
    gid_t *groups;
    size_t n_groups;
    /* The worker's. */
    const char *program; /* file to run; a bare name when nothing was found: exec will say so */
    int cwd_fd;          /* owned */
    struct abx_error refused;
    /* Ours. */
    struct req *req;
    const struct rule *rule;
    const json_t *body;
    const char *cwd, *search;
    size_t cwd_len;
    struct arena arena; /* everything lies here, but for envp and what is in the body */
    struct abx_error env_error, late_error;
    bool env_wrong, late_wrong;
};

/* body: {"command", "cwd"?, "env"?, "timeout"?} and our own "timeout_ms", "shell", "input", "input_base64",
 * "merge_stderr", "user", "limits": {"memory_bytes", "cpu_seconds", "open_files"}. rule: whose commands, paths and
 * limits hold. NULL: what the shapes alone tell is wrong; the rest comes with `started` (exec_failed). */
struct exec_order *exec_decode(struct req *req, const struct rule *rule, const json_t *body, struct abx_error *err);
void exec_free(struct exec_order *o);

/* Fills everything but stdin_mode, no_output and timeout_ms. Once the program's start is under way the order belongs
 * to that, and is freed after `started`; until then, and when it could not be begun, to the caller. */
void exec_fill(struct exec_order *o, struct proc_opts *ret);

/* Why `started` came with this sys: the order was refused, by docs/processes.md's rules in its order, or
 * "[Errno N] ...: 'name'". Returns -1. */
int exec_failed(const struct exec_order *o, int sys, struct abx_error *err);

/* Parts, for those whose body looks different. */

/* timeout_ms, else timeout, else the default; cut by limits.timeout_seconds. */
double exec_timeout(const struct rule *rule, const json_t *body, double fallback);

/* Judges "env" of a body (absent or null: none) and builds the block. *ret: free().
 * Errors: E_VALUE (shape), E_ENV_INVALID, E_ENV_DENIED, E_ENV_NOT_ALLOWED. */
int exec_env(const struct exec_ctx *ctx, const json_t *vars, char ***ret, struct abx_error *err);

/* PATH of a caller's map, else of the base environment, else the usual one. */
const char *exec_search_path(const struct exec_ctx *ctx, const json_t *vars);
