#include "routes/exec.h"

/* The checks speak in the order of docs/processes.md: shapes, program, environment, command patterns, cwd, secret
 * names, our own fields. What needs no file is looked at on the loop, the rest on the worker; verdicts that come too early
 * are kept back until their turn. So is cwd's, which is opened first because relative programs hang on it. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/json.h"
#include "base/num.h"
#include "base/own.h"
#include "http/req.h"
#include "policy/guards.h"
#include "process/user.h"
#include "routes/app.h"

static int no_memory(struct abx_error *err)
{
    return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
}

double exec_timeout(const struct rule *rule, const json_t *body, double fallback)
{
    double seconds = 0;
    int64_t ms = 0;
    const json_t *in_ms = json_object_get(body, "timeout_ms");
    if (in_ms && json_coerce_int(in_ms, &ms) == 0 && ms > 0)
        seconds = (double)ms / 1000.0;
    else if (json_coerce_seconds(json_object_get(body, "timeout"), &seconds) < 0 || !(seconds > 0))
        seconds = fallback;
    double most = rule_seconds(rule, LIMIT_timeout_seconds, EXEC_TIMEOUT_MAX);
    if (seconds > most)
        seconds = most;
    return seconds < EXEC_TIMEOUT_MAX ? seconds : EXEC_TIMEOUT_MAX;
}

static int env_shape(const json_t *vars, struct abx_error *err)
{
    if (!vars || json_is_null(vars))
        return 0;
    if (!json_is_object(vars))
        return abx_fail(err, E_VALUE, 0, "'env' must be an object of strings");
    for (void *it = json_object_iter((json_t *)vars); it; it = json_object_iter_next((json_t *)vars, it)) {
        if (!json_is_string(json_object_iter_value(it)))
            return abx_fail(err, E_VALUE, 0, "'env' must be an object of strings");
    }
    return 0;
}

static const json_t *vars_of(const json_t *vars)
{
    return json_is_object(vars) ? vars : NULL;
}

int exec_env(const struct exec_ctx *ctx, const json_t *vars, char ***ret, struct abx_error *err)
{
    if (env_shape(vars, err) < 0 || env_guard_check(vars_of(vars), err) < 0 ||
        env_guard_secrets(vars_of(vars), ctx->env, err) < 0)
        return -1;
    char **block = env_block(ctx->env, vars_of(vars));
    if (!block)
        return no_memory(err);
    *ret = block;
    return 0;
}

const char *exec_search_path(const struct exec_ctx *ctx, const json_t *vars)
{
    const char *path = json_string_value(json_object_get(vars_of(vars), "PATH"));
    if (!path)
        path = env_get(ctx->env, "PATH");
    return path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

/* --- our own fields ---------------------------------------------------------------------------- */

static int decode_input(const json_t *body, struct exec_order *o, struct abx_error *err)
{
    const json_t *base64 = json_object_get(body, "input_base64"), *text = json_object_get(body, "input");
    if (base64 && !json_is_null(base64)) {
        struct buf bytes = BUF_INIT;
        if (!json_is_string(base64) ||
            base64_decode(&bytes, json_string_value(base64), json_string_length(base64)) < 0) {
            buf_done(&bytes);
            return abx_fail(err, E_VALUE, 0, "'input_base64' is not base64");
        }
        o->input = bytes.len ? arena_strndup(&o->arena, bytes.data, bytes.len) : "";
        o->input_len = bytes.len;
        bool lost = bytes.failed || !o->input;
        buf_done(&bytes);
        if (lost)
            return no_memory(err);
        o->has_input = true;
    } else if (text && !json_is_null(text)) {
        if (!json_is_string(text))
            return abx_fail(err, E_VALUE, 0, "'input' must be a string");
        o->input = json_string_value(text);
        o->input_len = json_string_length(text);
        o->has_input = true;
    }
    return 0;
}

static int decode_limit(const json_t *limits, const char *name, uint64_t *ret, struct abx_error *err)
{
    const json_t *value = json_object_get(limits, name);
    int64_t n = 0;
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_integer(value) || (n = json_integer_value(value)) <= 0)
        return abx_fail(err, E_VALUE, 0, "'limits.%s' must be a positive integer", name);
    *ret = (uint64_t)n;
    return 0;
}

static int decode_limits(const json_t *body, struct exec_order *o, struct abx_error *err)
{
    const json_t *limits = json_object_get(body, "limits");
    if (!limits || json_is_null(limits))
        return 0;
    if (!json_is_object(limits))
        return abx_fail(err, E_VALUE, 0, "'limits' must be an object");
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)limits, name, value) /* one that is misspelt would limit nothing */
    {
        if (strcmp(name, "memory_bytes") != 0 && strcmp(name, "cpu_seconds") != 0 && strcmp(name, "open_files") != 0)
            return abx_fail(err, E_VALUE, 0, "Unknown 'limits.%.64s'; there are memory_bytes, cpu_seconds, open_files",
                            name);
    }
    if (decode_limit(limits, "memory_bytes", &o->limits.memory_bytes, err) < 0 ||
        decode_limit(limits, "cpu_seconds", &o->limits.cpu_seconds, err) < 0)
        return -1;
    return decode_limit(limits, "open_files", &o->limits.open_files, err);
}

/* HOME, USER and LOGNAME of another user, where the caller names none. A number without an entry lives in "/", as in a
 * container runtime. */
static int set_home(const struct user *u, const json_t *vars, json_t **ret, struct abx_error *err)
{
    char number[16];
    snprintf(number, sizeof(number), "%u", (unsigned)u->uid);
    const char *home = u->home[0] ? u->home : "/", *name = u->name[0] ? u->name : number;
    json_t *all = vars ? json_copy((json_t *)vars) : json_object();
    const char *const set[][2] = {{"HOME", home}, {"USER", name}, {"LOGNAME", name}};
    bool lost = !all;
    for (size_t i = 0; i < ARRAY_LEN(set) && !lost; i++) {
        if (!json_object_get(all, set[i][0]))
            lost = json_object_set_new(all, set[i][0], json_text(set[i][1])) < 0;
    }
    if (lost) {
        json_decref(all);
        return no_memory(err);
    }
    *ret = all;
    return 0;
}

/* "user": a name or a number; only a server that runs as root can change it.
 * ret_vars: what the environment gets on top; a new reference. */
static int decode_user(const json_t *body, struct exec_order *o, json_t **ret_vars, struct abx_error *err)
{
    const json_t *value = json_object_get(body, "user");
    if (!value || json_is_null(value))
        return 0;
    char number[24];
    const char *name = json_word(value);
    if (json_is_integer(value)) {
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        name = number;
    }
    if (!name || !*name)
        return abx_fail(err, E_VALUE, 0, "'user' must be a name or a number");
    struct user u;
    if (user_find(name, &u) < 0)
        return abx_fail(err, E_VALUE, 0, "Unknown user '%s'", name);
    if (geteuid() != 0) {
        if (u.uid == geteuid())
            return 0;
        return abx_fail(err, E_PERMISSION, EPERM, "Only a server that runs as root can change the user");
    }
    o->uid = u.uid;
    o->gid = u.gid;
    o->n_groups = u.n_groups;
    o->groups = arena_alloc(&o->arena, (u.n_groups + 1) * sizeof(gid_t));
    if (!o->groups)
        return no_memory(err);
    memcpy(o->groups, u.groups, u.n_groups * sizeof(gid_t));
    return set_home(&u, vars_of(json_object_get(body, "env")), ret_vars, err);
}

/* --- the whole --------------------------------------------------------------------------------- */

static int decode_command(const json_t *body, struct exec_order *o, struct abx_error *err)
{
    o->shell = body_truthy(body, "shell");
    if (o->shell) {
        if (memchr(o->command, 0, o->command_len))
            return abx_fail(err, E_COMMAND_INVALID, 0, "The command holds a NUL");
        o->argv = arena_alloc(&o->arena, 4 * sizeof(*o->argv));
        char *text = arena_strndup(&o->arena, o->command, o->command_len);
        char *sh = arena_strdup(&o->arena, "/bin/sh"), *c = arena_strdup(&o->arena, "-c");
        if (!o->argv || !text || !sh || !c)
            return no_memory(err);
        o->argv[0] = sh;
        o->argv[1] = c;
        o->argv[2] = text;
        o->argv[3] = NULL;
        o->argc = 3;
        return 0;
    }
    if (command_split(o->command, o->command_len, &o->arena, &o->argv, &o->argc, err) < 0)
        return err->kind == E_VALUE ? abx_prefix(err, "Invalid command: ") : -1;
    if (o->argc == 0)
        return abx_fail(err, E_VALUE, 0, "Invalid command: it has no words");
    return 0;
}

static int late(const struct env_map *env, struct exec_order *o, json_t **ret_vars, struct abx_error *err)
{
    if (env_guard_secrets(vars_of(json_object_get(o->body, "env")), env, err) < 0 ||
        decode_input(o->body, o, err) < 0 || decode_limits(o->body, o, err) < 0)
        return -1;
    return decode_user(o->body, o, ret_vars, err);
}

static int decode(struct exec_order *o, struct abx_error *err)
{
    const json_t *body = o->body, *vars = json_object_get(body, "env");
    if (body_str(body, "command", &o->command, &o->command_len, err) < 0 ||
        body_opt_str(body, "cwd", &o->cwd, &o->cwd_len, err) < 0 || env_shape(vars, err) < 0 ||
        decode_command(body, o, err) < 0)
        return -1;
    vars = vars_of(vars);
    const struct exec_ctx ctx = {.rule = o->rule, .env = req_app(o->req)->env, .arena = &o->arena};
    o->search = arena_strdup(&o->arena, exec_search_path(&ctx, vars));
    if (!o->search)
        return no_memory(err);
    o->env_wrong = env_guard_check(vars, &o->env_error) < 0 || env_guard_commands(vars, o->rule, &o->env_error) < 0;
    if (o->env_wrong)
        return 0;
    autojson json_t *with_home = NULL;
    o->late_wrong = late(ctx.env, o, &with_home, &o->late_error) < 0;
    if (o->late_wrong)
        return 0;
    o->merge_stderr = body_truthy(body, "merge_stderr");
    o->timeout = exec_timeout(o->rule, body, EXEC_TIMEOUT_DEFAULT);
    o->max_output = rule_limit(o->rule, LIMIT_max_output_bytes, -1);
    o->envp = env_block(ctx.env, with_home ? with_home : vars);
    return o->envp ? 0 : no_memory(err);
}

struct exec_order *exec_decode(struct req *req, const struct rule *rule, const json_t *body, struct abx_error *err)
{
    struct exec_order *o = malloc(sizeof(*o));
    if (!o) {
        (void)no_memory(err);
        return NULL;
    }
    *o = (struct exec_order){.req = req_ref(req),
                             .rule = rule,
                             .body = json_incref((json_t *)body),
                             .cwd_fd = -1,
                             .uid = -1,
                             .gid = -1};
    arena_init(&o->arena);
    if (decode(o, err) < 0) {
        exec_free(o);
        return NULL;
    }
    return o;
}

void exec_free(struct exec_order *o)
{
    if (!o)
        return;
    if (o->cwd_fd >= 0)
        close(o->cwd_fd);
    free(o->envp);
    arena_done(&o->arena);
    json_decref((json_t *)o->body);
    req_unref(o->req);
    free(o);
}

static int refuse(struct exec_order *o, const struct abx_error *why)
{
    if (why)
        o->refused = *why;
    return SPAWN_REFUSED;
}

/* On a worker. */
static int look_up(void *order, struct spawn_opts *opts)
{
    struct exec_order *o = order;
    const struct guard *guard = o->rule->guard;
    struct abx_error cwd_error;
    const char *where = guard_base_dir(guard);
    bool cwd_wrong = guard_open_cwd(guard, o->cwd, o->cwd_len, &o->arena, &where, &o->cwd_fd, &cwd_error) < 0;

    if (program_resolve(o->argv[0], o->search, where, &o->arena, &o->program, &o->refused) < 0)
        return refuse(o, NULL);
    if (o->env_wrong)
        return refuse(o, &o->env_error);
    if ((o->shell ? command_check_script : command_check)(o->rule, o->argv, o->argc, o->program, where, &o->arena,
                                                          &o->refused) < 0)
        return refuse(o, NULL);
    if (cwd_wrong && error_is_want(cwd_error.sys))
        return cwd_error.sys; /* no fault of the order */
    if (cwd_wrong)
        return refuse(o, &cwd_error);
    if (o->late_wrong)
        return refuse(o, &o->late_error);
    req_note_path(o->req, where);
    opts->file = o->program ? o->program : o->argv[0];
    opts->cwd_fd = o->cwd_fd;
    return 0;
}

static void unused(void *order)
{
    exec_free(order);
}

int exec_failed(const struct exec_order *o, int sys, struct abx_error *err)
{
    if (sys == SPAWN_REFUSED) {
        *err = o->refused;
        return -1;
    }
    if (sys == EMFILE || sys == ENFILE || sys == EAGAIN)
        return abx_fail(err, E_OVERLOADED, sys, "No room for another process");
    return abx_fail_os(err, sys, o->argv[0]);
}

void exec_fill(struct exec_order *o, struct proc_opts *ret)
{
    *ret = (struct proc_opts){.spawn = {.argv = o->argv,
                                        .envp = o->envp,
                                        .cwd_fd = -1,
                                        .limits = o->limits,
                                        .uid = o->uid,
                                        .gid = o->gid,
                                        .groups = o->groups,
                                        .n_groups = o->n_groups,
                                        .prepare = look_up,
                                        .unused = unused,
                                        .order = o},
                              .stdin_mode = o->has_input ? PROC_STDIN_INPUT : PROC_STDIN_NULL,
                              .input = o->input,
                              .input_len = o->input_len,
                              .merge = o->merge_stderr};
}
