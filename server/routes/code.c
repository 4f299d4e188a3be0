/* POST /code/run: a program text, run once or in a context that stays. */

#include "routes/table.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/num.h"
#include "base/own.h"
#include "code/context.h"
#include "policy/guards.h"
#include "routes/app.h"
#include "routes/exec.h"

#define TIMEOUT_DEFAULT 30
#define TIMEOUT_MAX 300
#define OUTPUT_DEFAULT (16 * MIB) /* bytes per stream, when the policy has no limit */
#define RUNS_MAX 64               /* at once; more are refused */
#define ARGS_MAX 256
#define CONTEXT_IDLE_SECONDS 1800
#define CONTEXT_MEMORY_MB 2048

static const char note[] = "Security relies on container isolation, not application-level restrictions";

struct code_service {
    struct contexts *contexts; /* NULL: none yet */
    struct app *app;
    size_t runs;
};

int code_service_start(struct app *app, struct abx_error *err)
{
    struct code_service *svc = calloc(1, sizeof(*svc));
    if (!svc)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    svc->app = app;
    app->code = svc;
    return 0;
}

void code_service_stop(struct app *app)
{
    if (!app->code)
        return;
    contexts_free(app->code->contexts);
    free(take_ptr(app->code));
}

static int64_t env_number(const struct env_map *env, const char *name, int64_t fallback)
{
    const char *text = env_get(env, name);
    if (text && num_parse(text, 0, 1000000000, &fallback) < 0)
        log_warn("%s is not a number: %s", name, text);
    return fallback;
}

static struct contexts *contexts_of(struct code_service *svc, struct abx_error *err)
{
    if (!svc->contexts) {
        const struct env_map *env = svc->app->env;
        struct contexts_limits l = {
            .idle_ms = (uint64_t)env_number(env, "ABX_CODE_CONTEXT_IDLE_SECONDS", CONTEXT_IDLE_SECONDS) * 1000,
            .memory_bytes = (uint64_t)env_number(env, "ABX_CODE_CONTEXT_MEMORY_MB", CONTEXT_MEMORY_MB) * MIB};
        svc->contexts = contexts_new(svc->app->loop, svc->app->spawner, &l);
        if (!svc->contexts)
            (void)abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    return svc->contexts;
}

/* --- decoding ---------------------------------------------------------------------------------------- */

struct call {
    struct req *req;
    struct code_service *svc;
    struct code_order o;
    struct code_run *run;
    const char *context_id; /* NULL: a run of its own */
    int64_t timeout;        /* seconds */
    char **envp;
    int cwd_fd;
    bool gone;
    /* What a worker looks up: paths may have to wait for a disk. Verdicts of before are told when its own are known. */
    const char *language;       /* as sent, NULL: no plain string */
    const char *search, *own_search; /* PATH with the caller's variables, and without */
    const char *cwd;
    size_t cwd_len;
    bool looking, kept_back;
    int rc;
    struct abx_error err;
};

static void call_free(struct call *c)
{
    if (c->cwd_fd >= 0)
        close(c->cwd_fd);
    free(c->envp);
    free(c);
}

static bool is_installed(const struct call *c, const struct language *lang)
{
    const char *program = NULL;
    return program_resolve(lang->program, c->own_search, NULL, req_arena(c->req), &program, NULL) == 0 && program;
}

static int unsupported(struct call *c)
{
    autobuf struct buf list = BUF_INIT;
    for (size_t i = 0; i < n_languages; i++) {
        if (languages[i].core || is_installed(c, &languages[i]))
            buf_addf(&list, "%s%s", list.len ? ", " : "", languages[i].name);
    }
    const char *text = buf_str(&list);
    return abx_fail(&c->err, E_VALUE, 0, "Unsupported language '%.64s'; supported: %s",
                    c->language ? c->language : "(no plain string)", text ? text : "");
}

static bool policy_allows(const struct rule *rule, const char *name)
{
    const struct str_list *allowed = rule_list(rule, PARAM_languages);
    for (size_t i = 0; allowed && i < allowed->n; i++) {
        if (strcasecmp(allowed->items[i], name) == 0)
            return true;
    }
    return !allowed;
}

/* Any case is fine; null and other types are no languages. */
static void decode_language(struct call *c, const json_t *body)
{
    const json_t *value = json_object_get(body, "language");
    const char *sent = value ? json_word(value) : "python";
    c->language = sent;
    if (!sent)
        return;
    char name[32] = "";
    for (size_t i = 0; sent[i] && i < sizeof(name) - 1; i++)
        name[i] = (char)(sent[i] >= 'A' && sent[i] <= 'Z' ? sent[i] + ('a' - 'A') : sent[i]);
    c->o.lang = strlen(sent) < sizeof(name) ? language_find(name) : NULL;
}

static int64_t decode_timeout(const struct rule *rule, const json_t *body)
{
    const json_t *value = json_object_get(body, "timeout");
    int64_t seconds;
    if (json_is_real(value) && json_real_value(value) > TIMEOUT_MAX)
        seconds = TIMEOUT_MAX;
    else if (!value || json_coerce_int(value, &seconds) < 0 || seconds <= 0)
        seconds = TIMEOUT_DEFAULT;
    if (seconds > TIMEOUT_MAX)
        seconds = TIMEOUT_MAX;
    double most = rule_seconds(rule, LIMIT_timeout_seconds, TIMEOUT_MAX);
    if ((double)seconds > most)
        seconds = most < 1 ? 1 : (int64_t)most;
    return seconds;
}

static int decode_args(struct call *c, const json_t *body, struct arena *arena, struct abx_error *err)
{
    const json_t *args = json_object_get(body, "args");
    if (!args || json_is_null(args))
        return 0;
    size_t n = json_array_size(args);
    if (!json_is_array(args) || n > ARGS_MAX)
        return abx_fail(err, E_VALUE, 0, "'args' must be an array of at most %d strings", ARGS_MAX);
    char **list = arena_alloc(arena, (n + 1) * sizeof(*list));
    if (!list)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(args, i);
        const char *text = json_string_value(one);
        if (!text || strlen(text) != json_string_length(one))
            return abx_fail(err, E_VALUE, 0, "'args' must be an array of strings without NUL");
        list[i] = (char *)(uintptr_t)text;
    }
    list[n] = NULL;
    c->o.args = list;
    return 0;
}

/* Never "not found" as a path error: what is missing is the language. */
static int runtime_failed(const struct call *c, int sys, struct abx_error *err)
{
    const char *name = c->o.lang->program;
    if (sys == ENOMEM || sys == EAGAIN)
        return abx_fail(err, E_NO_MEMORY, sys, "Could not start '%s': %s", name, strerror(sys));
    if (c->o.program)
        (void)abx_fail(err, E_OS, sys, "Runtime '%s' for language '%s' is there but cannot be executed: %s", name,
                       c->o.lang->name, strerror(sys));
    else
        (void)abx_fail(err, E_OS, sys, "Runtime not found for language '%s': no '%s' in PATH", c->o.lang->name,
                       name);
    err->type = error_os_type(ENOENT);
    return -1;
}

/* What needs no file, after the language. */
static int decode_rest(struct call *c, const struct exec_ctx *ctx, const json_t *body, struct abx_error *err)
{
    if (body_opt_str(body, "cwd", &c->cwd, &c->cwd_len, err) < 0 || decode_args(c, body, ctx->arena, err) < 0 ||
        body_opt_str(body, "stdin", &c->o.input, &c->o.input_len, err) < 0 ||
        body_opt_str(body, "context_id", &c->context_id, NULL, err) < 0)
        return -1;
    if (c->o.lang && !policy_allows(ctx->rule, c->o.lang->name))
        return abx_fail(err, E_LANGUAGE_NOT_ALLOWED, 0, "Language '%s' is not allowed by policy", c->o.lang->name);
    const json_t *vars = json_object_get(body, "env");
    if (exec_env(ctx, vars, &c->envp, err) < 0)
        return -1;
    c->search = arena_strdup(ctx->arena, exec_search_path(ctx, vars));
    return c->search ? 0 : abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
}

static int decode(struct call *c, struct abx_error *err)
{
    const struct rule *rule = req_rule(c->req);
    const json_t *body = req_body(c->req);
    struct exec_ctx ctx = {.rule = rule, .env = req_app(c->req)->env, .arena = req_arena(c->req)};
    if (body_str(body, "code", &c->o.code, &c->o.code_len, err) < 0)
        return -1;
    if (memchr(c->o.code, '\0', c->o.code_len))
        return abx_fail(err, E_VALUE, 0, "'code' holds a NUL");
    const char *tmp = env_get(ctx.env, "TMPDIR");
    c->o.tmp = arena_strdup(ctx.arena, tmp && *tmp == '/' ? tmp : "/tmp");
    c->own_search = arena_strdup(ctx.arena, exec_search_path(&ctx, NULL));
    if (!c->o.tmp || !c->own_search)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    decode_language(c, body);
    c->kept_back = decode_rest(c, &ctx, body, &c->err) < 0;
    c->timeout = decode_timeout(rule, body);
    c->o.timeout_ms = (uint64_t)c->timeout * 1000;
    c->o.max_output = (size_t)rule_limit(rule, LIMIT_max_output_bytes, OUTPUT_DEFAULT);
    return 0;
}

static int look_up(struct call *c)
{
    const char *path;
    if (!c->o.lang || (!c->o.lang->core && !is_installed(c, c->o.lang)))
        return unsupported(c);
    if (c->kept_back)
        return -1;
    struct arena *arena = req_arena(c->req);
    if (program_resolve(c->o.lang->program, c->search, NULL, arena, &c->o.program, &c->err) < 0 ||
        guard_open_cwd(req_guard(c->req), c->cwd, c->cwd ? c->cwd_len : 0, arena, &path, &c->cwd_fd, &c->err) < 0)
        return -1;
    req_note_path(c->req, path);
    return c->o.program ? 0 : runtime_failed(c, ENOENT, &c->err);
}

static void look_up_run(void *data)
{
    struct call *c = data;
    c->rc = look_up(c);
}

/* --- the answer ------------------------------------------------------------------------------------------ */

static json_t *text_of(const struct output *o)
{
    return o->text.len ? json_stringn(o->text.data, o->text.len) : json_string("");
}

static void set_truncated(json_t *body, const struct code_result *r)
{
    if (r->out[0].cut || r->out[1].cut)
        (void)json_object_set_new(body, "truncated", json_true());
}

static void set_context(json_t *body, const struct call *c, const json_t *reply)
{
    (void)json_object_set_new(body, "context_id", json_string(c->context_id));
    json_t *result = json_object_get(reply, "result"), *results = json_object_get(reply, "results");
    (void)json_object_set(body, "result", result ? result : json_null());
    (void)json_object_set_new(body, "results", results ? json_incref(results) : json_array());
    if (json_is_true(json_object_get(reply, "results_dropped")))
        (void)json_object_set_new(body, "results_dropped", json_true());
    if (!reply) /* its process has ended: variables are gone */
        (void)json_object_set_new(body, "context_ended", json_true());
}

static int answer(struct call *c, const struct code_result *r, const json_t *reply, struct abx_error *err)
{
    if (r->timed_out) {
        struct abx_error what;
        (void)abx_fail(&what, E_TIMEOUT_408, 0, "Code execution timed out after %llds", (long long)c->timeout);
        json_t *fields = json_pack("{s:o, s:o}", "stdout", text_of(&r->out[0]), "stderr", text_of(&r->out[1]));
        if (fields)
            set_truncated(fields, r);
        if (fields && c->context_id)
            set_context(fields, c, NULL);
        return resp_error(req_resp(c->req), &what, fields);
    }
    json_t *body = json_pack("{s:o, s:o, s:i, s:s, s:f, s:s}", "stdout", text_of(&r->out[0]), "stderr",
                             text_of(&r->out[1]), "exit_code", r->exit_code, "language", c->o.lang->name,
                             "execution_time_ms", num_round(r->ms, 2), "_security_note", note);
    if (body)
        set_truncated(body, r);
    if (body && c->context_id)
        set_context(body, c, reply);
    return resp_value(req_resp(c->req), body, err);
}

static void complete(struct call *c, int sys, const struct code_result *r, const json_t *reply)
{
    struct abx_error err;
    c->svc->runs--;
    if (!c->gone)
        req_on_gone(c->req, NULL, NULL);
    if ((sys ? runtime_failed(c, sys, &err) : answer(c, r, reply, &err)) < 0)
        req_fail(c->req, &err);
    else
        req_finish(c->req);
    call_free(c);
}

static void ran(void *data, int sys, const struct code_result *r)
{
    complete(data, sys, r, NULL);
}

static void ran_in_context(void *data, int sys, const struct context_result *r)
{
    complete(data, sys, r ? &r->run : NULL, r ? r->reply : NULL);
}

/* The client left: what runs for it ends. */
static void client_gone(void *data)
{
    struct call *c = data;
    c->gone = true;
    if (c->run)
        code_run_kill(c->run);
    else if (!c->looking)
        context_cancel(c->svc->contexts, c);
}

static int run(struct call *c, struct abx_error *err)
{
    struct req *req = c->req;
    c->o.envp = c->envp;
    c->o.cwd_fd = c->cwd_fd;
    if (!c->context_id)
        return code_run_start(req_app(req)->spawner, req_loop(req), &c->o, ran, c, &c->run, err);
    struct contexts *contexts = contexts_of(c->svc, err);
    if (!contexts)
        return -1;
    return context_run(contexts, c->context_id, body_truthy(req_body(req), "reset"), &c->o, ran_in_context, c, err);
}

static void looked_up(void *data)
{
    struct call *c = data;
    c->looking = false;
    if (c->rc == 0 && c->gone)
        c->rc = abx_fail(&c->err, E_CANCELLED, 0, "The client has left");
    if (c->rc == 0 && run(c, &c->err) == 0)
        return;
    c->svc->runs--;
    if (!c->gone)
        req_on_gone(c->req, NULL, NULL);
    req_fail(c->req, &c->err);
    call_free(c);
}

/* POST /code/run {"code", "language"?, "timeout"?, "cwd"?, "env"?, "stdin"?, "args"?, "context_id"?,
 * "reset"?} -> {"stdout", "stderr", "exit_code", "language", "execution_time_ms", "_security_note"} */
int route_code_run(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct code_service *svc = req_app(req)->code;
    struct call *c = calloc(1, sizeof(*c));
    if (!c)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    *c = (struct call){.req = req, .svc = svc, .cwd_fd = -1, .looking = true};
    int rc = decode(c, err);
    if (rc == 0 && svc->runs >= RUNS_MAX)
        rc = abx_fail(err, E_RESOURCE, 0, "Too many code runs at once (%d)", RUNS_MAX);
    if (rc == 0 && loop_work(req_loop(req), WORK_SHORT, look_up_run, looked_up, c) < 0)
        rc = abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    if (rc < 0) {
        call_free(c);
        return -1;
    }
    svc->runs++;
    req_on_gone(req, client_gone, c);
    return REQ_PENDING;
}
