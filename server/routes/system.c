#include "routes/app.h"
#include "routes/table.h"

#include "base/json.h"
#include "base/log.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"
#include "http/req.h"
#include "policy/guards.h"
#include "system/host.h"
#include "system/packages.h"
#include "system/ports.h"
#include "system/redact.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* How it works: what blocks runs on a worker as a `struct job`; what it learned comes back with it
 * and is kept by the service on the loop, for the next call. While a job is out with some memory,
 * another one works without. */

#define METRICS_FRESH_MS 1000
#define DISK_PATIENCE_MS 3000 /* a dead mount must hold neither a caller nor the workers */
#define DESCRIPTORS_AT_ONCE 4 /* that a job may need */
#define MIN_SECRET 8          /* shorter values are looked for as a whole only */

struct system_service {
    char *python, *python_path; /* version, and the PATH it was found on */
    struct cpu_sample cpu;
    json_t *metrics; /* of metrics_at (loop_now) */
    uint64_t metrics_at;
    unsigned stuck; /* jobs past DISK_PATIENCE_MS: no further one is started */
    struct port_owners owners;
    struct package_cache packages[PACKAGE_MANAGERS][2]; /* [..][1]: global */
};

struct job {
    struct req *req;
    struct system_service *service;
    void (*work)(struct job *j); /* on a worker */
    char *search_path, *base_dir, *home, *pythonpath; /* copies: the environment is the loop's */
    char *python;
    struct cpu_sample cpu;
    struct port_owners owners;
    struct package_query query;
    struct package_cache cache;
    json_t *value;
    struct timer patience; /* of those that look at file systems */
    bool cpu_wanted;       /* it is for metrics */
    bool answered;         /* it ran out: the answer is given, the job may come back or not */
    bool failed;
    struct abx_error err;
};

int system_service_start(struct app *app, struct abx_error *err)
{
    app->system = calloc(1, sizeof *app->system);
    return app->system ? 0 : abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
}

void system_service_stop(struct app *app)
{
    struct system_service *s = app->system;
    if (!s)
        return;
    free(s->python);
    free(s->python_path);
    json_decref(s->metrics);
    port_owners_done(&s->owners);
    for (size_t i = 0; i < PACKAGE_MANAGERS; i++)
        for (size_t k = 0; k < 2; k++)
            package_cache_done(&s->packages[i][k]);
    free(s);
    app->system = NULL;
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void job_free(struct job *j)
{
    if (!j)
        return;
    free(j->search_path);
    free(j->base_dir);
    free(j->home);
    free(j->pythonpath);
    free(j->python);
    port_owners_done(&j->owners);
    package_cache_done(&j->cache);
    json_decref(j->value);
    free(j);
}

static char *copy_var(const struct app *app, const char *name)
{
    const char *value = env_get(app->env, name);
    return strdup(value ? value : "");
}

static struct job *job_new(struct req *req, struct abx_error *err)
{
    struct app *app = req_app(req);
    struct job *j = calloc(1, sizeof *j);
    if (j) {
        j->req = req;
        j->service = app->system;
        j->search_path = copy_var(app, "PATH");
        j->home = copy_var(app, "HOME");
        j->pythonpath = copy_var(app, "PYTHONPATH");
        j->base_dir = strdup(guard_base_dir(req_guard(req)));
    }
    if (!j || !j->search_path || !j->home || !j->pythonpath || !j->base_dir) {
        job_free(j);
        abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
        return NULL;
    }
    return j;
}

/* A file that can't be opened is left out of an answer. A want of descriptors would look like a machine without memory,
 * ports or packages, so it is told before. */
static bool lacks_descriptors(struct job *j)
{
    int fds[DESCRIPTORS_AT_ONCE], sys = 0;
    size_t n = 0;
    while (n < ARRAY_LEN(fds) && (fds[n] = open("/", O_PATH | O_CLOEXEC)) >= 0)
        n++;
    if (n < ARRAY_LEN(fds))
        sys = errno;
    while (n > 0)
        close(fds[--n]);
    if (error_is_want(sys))
        j->failed = abx_fail_os(&j->err, sys, NULL) < 0;
    return j->failed;
}

static void job_run(void *data)
{
    struct job *j = data;
    if (!lacks_descriptors(j))
        j->work(j);
}

/* Takes j. */
static int job_start(struct job *j, void (*work)(struct job *j), void (*done)(void *data), struct abx_error *err)
{
    j->work = work;
    if (req_work(j->req, WORK_SHORT, job_run, done, j, err) < 0) {
        job_free(j);
        return -1;
    }
    return REQ_PENDING;
}

static void job_end(struct job *j)
{
    struct req *req = j->req;
    if (j->answered)
        j->service->stuck--;
    else if (j->failed)
        req_fail(req, &j->err);
    else
        req_finish(req);
    timer_done(&j->patience);
    job_free(j);
}

/* Ends the request with j->value, which resp_value takes, or its error; frees j. */
static void job_answer(struct job *j)
{
    if (!j->failed && !j->answered)
        j->failed = resp_value(req_resp(j->req), take_ptr(j->value), &j->err) < 0;
    job_end(j);
}

static int no_answer(struct abx_error *err)
{
    return abx_fail(err, E_RUNTIME_503, 0, "A file system does not answer");
}

static int answer_metrics(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct app *app = req_app(req);
    double up = (double)(mono_ns() - app->started_ns) / 1e9;
    json_t *answer = json_copy(app->system->metrics);
    json_object_set_new(answer, "uptime_seconds", json_real(num_round(up, 1)));
    return resp_value(resp, answer, err);
}

/* The last sample, if there is one, is better than nothing. */
static void give_up(void *data)
{
    struct job *j = data;
    struct resp *resp = req_resp(j->req);
    j->answered = true;
    j->service->stuck++;
    bool is_metrics = j->cpu_wanted && j->service->metrics;
    if (is_metrics ? answer_metrics(j->req, resp, &j->err) < 0 : no_answer(&j->err) < 0)
        req_fail(j->req, &j->err);
    else
        req_finish(j->req);
}

static int disk_job_start(struct job *j, void (*work)(struct job *j), void (*done)(void *data), struct abx_error *err)
{
    j->work = work;
    timer_init(&j->patience, req_loop(j->req), give_up, j);
    timer_start(&j->patience, DISK_PATIENCE_MS);
    if (req_work(j->req, WORK_SHORT, job_run, done, j, err) == 0)
        return REQ_PENDING;
    timer_done(&j->patience);
    job_free(j);
    return -1;
}

/* --- GET /system/info ------------------------------------------------------------------------- */

static void info_work(struct job *j)
{
    if (!j->python)
        j->python = host_python_version(j->search_path);
    struct host host = {
        .root = "", .base_dir = j->base_dir, .python_version = j->python ? j->python : ""};
    j->value = host_info(&host, &j->err);
    j->failed = !j->value;
}

static void info_done(void *data)
{
    struct job *j = data;
    struct system_service *s = j->service;
    if (j->python && (!s->python || strcmp(s->python_path, j->search_path) != 0)) {
        free(s->python);
        free(s->python_path);
        s->python = take_ptr(j->python);
        s->python_path = take_ptr(j->search_path);
    }
    job_answer(j);
}

int route_system_info(struct req *req, struct resp *resp, struct abx_error *err)
{
    if (req_app(req)->system->stuck)
        return no_answer(err);
    struct job *j = job_new(req, err);
    if (!j)
        return -1;
    if (j->service->python && strcmp(j->service->python_path, j->search_path) == 0)
        j->python = strdup(j->service->python); /* NULL: it is looked up again */
    return disk_job_start(j, info_work, info_done, err);
}

/* --- GET /system/metrics ---------------------------------------------------------------------- */

static void metrics_work(struct job *j)
{
    struct host host = {.root = "", .base_dir = j->base_dir, .python_version = ""};
    j->value = host_metrics(&host, &j->cpu, &j->err);
    j->failed = !j->value;
}

static void metrics_done(void *data)
{
    struct job *j = data;
    struct system_service *s = j->service;
    if (!j->failed) {
        json_decref(s->metrics);
        s->metrics = take_ptr(j->value);
        s->metrics_at = loop_now(req_loop(j->req));
        s->cpu = j->cpu;
        if (!j->answered)
            j->failed = answer_metrics(j->req, req_resp(j->req), &j->err) < 0;
    }
    job_end(j);
}

int route_system_metrics(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct system_service *s = req_app(req)->system;
    if (s->metrics && loop_now(req_loop(req)) - s->metrics_at < METRICS_FRESH_MS)
        return answer_metrics(req, resp, err);
    if (s->stuck)
        return s->metrics ? answer_metrics(req, resp, err) : no_answer(err);
    struct job *j = job_new(req, err);
    if (!j)
        return -1;
    j->cpu = s->cpu;
    j->cpu_wanted = true;
    return disk_job_start(j, metrics_work, metrics_done, err);
}

/* --- GET /ports ------------------------------------------------------------------------------- */

static void ports_work(struct job *j)
{
    json_t *list = ports_list("", &j->owners, &j->err);
    j->value = list ? json_make(&j->err, "{s:o}", "listening", list) : NULL;
    j->failed = !j->value;
}

static void ports_done(void *data)
{
    struct job *j = data;
    port_owners_done(&j->service->owners);
    j->service->owners = j->owners;
    j->owners = (struct port_owners){0};
    job_answer(j);
}

int route_ports(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct job *j = job_new(req, err);
    if (!j)
        return -1;
    j->owners = j->service->owners;
    j->service->owners = (struct port_owners){0};
    return job_start(j, ports_work, ports_done, err);
}

/* --- GET /packages ---------------------------------------------------------------------------- */

static void packages_work(struct job *j)
{
    j->failed = packages_read(&j->query, &j->cache, &j->err) < 0;
}

static void packages_done(void *data)
{
    struct job *j = data;
    struct req *req = j->req;
    char *text = j->failed ? NULL : strdup(j->cache.json);
    if (!j->failed && !text)
        j->failed = abx_fail(&j->err, E_NO_MEMORY, 0, "Out of memory") < 0;
    if (!j->failed)
        j->failed =
            resp_json_text(req_resp(req), text, j->cache.len) < 0;
    struct package_cache *kept = &j->service->packages[j->query.manager][j->query.global];
    package_cache_done(kept);
    *kept = j->cache;
    j->cache = (struct package_cache){0};
    job_end(j);
}

int route_packages(struct req *req, struct resp *resp, struct abx_error *err)
{
    const char *name = req_query(req, "manager", NULL), *scope = req_query(req, "scope", NULL);
    enum package_manager manager = PACKAGES_PIP;
    if (name && package_manager_parse(name, &manager) < 0)
        return abx_fail(err, E_VALUE, 0,
                        "Unsupported package manager: '%.100s'; use 'pip' or 'npm', or 'dpkg', "
                        "'apk' or 'rpm'",
                        name);
    if (scope && strcmp(scope, "local") != 0 && strcmp(scope, "global") != 0)
        return abx_fail(err, E_VALUE, 0, "'scope' must be local or global");
    struct job *j = job_new(req, err);
    if (!j)
        return -1;
    j->query = (struct package_query){.manager = manager,
                                      .global = manager == PACKAGES_NPM && scope &&
                                                strcmp(scope, "global") == 0,
                                      .root = "",
                                      .search_path = j->search_path,
                                      .base_dir = j->base_dir,
                                      .home = j->home,
                                      .pythonpath = j->pythonpath};
    struct package_cache *kept = &j->service->packages[manager][j->query.global];
    j->cache = *kept;
    *kept = (struct package_cache){0};
    return job_start(j, packages_work, packages_done, err);
}

/* --- GET /env --------------------------------------------------------------------------------- */

static bool any_glob(const struct str_list *list, const char *name)
{
    for (size_t i = 0; list && i < list->n; i++)
        if (guard_glob(list->items[i], name))
            return true;
    return false;
}

/* allow_vars and deny_vars of the rule. */
static bool rule_shows(const struct rule *rule, const char *name)
{
    const struct str_list *allow = rule_list(rule, PARAM_allow_vars);
    return !any_glob(rule_list(rule, PARAM_deny_vars), name) &&
           (!allow || allow->n == 0 || any_glob(allow, name));
}

struct listing {
    const struct req *req;
    const struct env_map *env;
    const struct policy *policy;
    const char *filter; /* NULL: all */
    json_t *variables;
    json_t *secrets; /* values of hidden variables */
};

static bool in_filter(const char *filter, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = filter;; p++) {
        p += strspn(p, " \t");
        size_t word = strcspn(p, ","), len = word;
        while (len > 0 && (p[len - 1] == ' ' || p[len - 1] == '\t'))
            len--;
        if (len == n && memcmp(p, name, n) == 0)
            return true;
        p += word;
        if (!*p)
            return false;
    }
}

/* Would this value open the door? Only hashes of the tokens are kept, so it is tried. */
static bool is_token(const struct policy *policy, const char *value)
{
    struct credential credential = {.bearer = true, .value = value, .len = strlen(value)};
    const struct identity *who;
    struct abx_error ignored;
    return *value && policy_has_tokens(policy) &&
           policy_authenticate(policy, &credential, 1, &who, &ignored) == 0;
}

static bool is_hidden(const struct listing *l, const char *name, const char *value)
{
    return redact_name(name) || env_is_secret_name(l->env, name) || redact_value(value) ||
           is_token(l->policy, value);
}

static void collect_secret(void *data, const char *name, const char *value)
{
    struct listing *l = data;
    if (strlen(value) >= MIN_SECRET && is_hidden(l, name, value))
        json_object_set_new_nocheck(l->secrets, value, json_true());
}

static bool holds_secret(const struct listing *l, const char *value)
{
    const char *secret;
    json_t *unused;
    json_object_foreach(l->secrets, secret, unused)
    {
        if (strstr(value, secret))
            return true;
    }
    return false;
}

static void list_variable(void *data, const char *name, const char *value)
{
    struct listing *l = data;
    if ((l->filter && !in_filter(l->filter, name)) || is_hidden(l, name, value) ||
        holds_secret(l, value) || !rule_shows(req_rule(l->req), name))
        return;
    autofree char *key = utf8_replace(name, strlen(name), NULL);
    if (key)
        json_object_set_new_nocheck(l->variables, key, json_text(value));
}

int route_env_get(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct app *app = req_app(req);
    autojson json_t *secrets = json_object();
    struct listing l = {.req = req,
                        .env = app->env,
                        .policy = req_policy(req),
                        .filter = req_query(req, "filter", NULL),
                        .variables = json_object(),
                        .secrets = secrets};
    env_each(app->env, collect_secret, &l);
    env_each(app->env, list_variable, &l);
    return resp_value(resp, json_pack("{s:o}", "variables", l.variables), err);
}

/* --- POST /env -------------------------------------------------------------------------------- */

static int refuse_protected(const json_t *vars, struct abx_error *err)
{
    static const char *const names[] = {"HOME", "PATH", "SHELL", "USER"};
    char list[64] = "", *at = list;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_object_get(vars, names[i]))
            at = stpcpy(stpcpy(at, at == list ? "" : ", "), names[i]);
    return *list ? abx_fail(err, E_ENV_PROTECTED, 0, "Cannot overwrite protected variable(s): %s",
                            list)
                 : 0;
}

/* Variables that run code in whatever starts next need a rule that spells them out. */
static bool is_spelled_out(const struct str_list *allow, const char *name)
{
    for (size_t i = 0; allow && i < allow->n; i++)
        if (strcmp(allow->items[i], name) == 0)
            return true;
    return false;
}

static int check_vars(struct req *req, const json_t *vars, struct abx_error *err)
{
    const struct rule *rule = req_rule(req);
    if (env_guard_check(vars, err) < 0 || refuse_protected(vars, err) < 0 ||
        env_guard_secrets(vars, req_app(req)->env, err) < 0)
        return -1;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)vars, name, value)
    {
        if (!rule_shows(rule, name) ||
            (env_is_loader_name(name) && !is_spelled_out(rule_list(rule, PARAM_allow_vars), name)))
            return abx_fail(err, E_ENV_NOT_ALLOWED, 0,
                            "Environment variable(s) not allowed: ['%.200s']", name);
    }
    return 0;
}

/* ["A", "B"] as an object of empty strings, so that both take the same checks. New reference. */
static json_t *names_as_vars(const json_t *list, struct abx_error *err)
{
    autojson json_t *vars = json_object();
    size_t i;
    json_t *name;
    if (!json_is_array(list)) {
        abx_fail(err, E_VALUE, 0, "Missing or invalid 'unset'");
        return NULL;
    }
    json_array_foreach((json_t *)list, i, name)
    {
        if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name)) {
            abx_fail(err, E_VALUE, 0, "Missing or invalid 'unset'");
            return NULL;
        }
        json_object_set_new_nocheck(vars, json_string_value(name), json_string(""));
    }
    return take_ptr(vars);
}

static int by_code_point(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static json_t *sorted_names(const json_t *vars)
{
    size_t n = 0;
    autofree const char **names = malloc((json_object_size(vars) + 1) * sizeof *names);
    json_t *list = json_array();
    const char *name;
    json_t *value;
    if (!names)
        return list;
    json_object_foreach((json_t *)vars, name, value) { names[n++] = name; }
    qsort(names, n, sizeof *names, by_code_point);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(names[i]));
    return list;
}

/* So large that no program could be started any more? */
static int check_room(const struct env_map *env, const json_t *vars, const json_t *removed, struct abx_error *err)
{
    size_t before = env_total(env), after = before;
    const char *name, *old;
    json_t *value;
    json_object_foreach((json_t *)vars, name, value)
    {
        if ((old = env_get(env, name)))
            after -= env_cost(name, old);
        after += env_cost(name, json_string_value(value));
    }
    json_object_foreach((json_t *)removed, name, value)
    {
        if (json_object_get(vars, name))
            after -= env_cost(name, json_string_value(json_object_get(vars, name)));
        else if ((old = env_get(env, name)))
            after -= env_cost(name, old);
    }
    if (after <= before || after <= env_total_max())
        return 0;
    return abx_fail(err, E_TOO_LARGE, 0,
                    "The environment would take %zu bytes; more than %zu would leave programs no room to start", after,
                    env_total_max());
}

int route_env_set(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct env_map *env = req_app(req)->env;
    const json_t *vars = json_object_get(req_body(req), "vars");
    const json_t *unset = json_object_get(req_body(req), "unset");
    if (vars && !json_is_object(vars))
        return abx_fail(err, E_VALUE, 0, "Missing or invalid 'vars'");
    autojson json_t *removed = unset ? names_as_vars(unset, err) : NULL;
    if (unset && !removed)
        return -1;
    if ((vars && check_vars(req, vars, err) < 0) || (removed && check_vars(req, removed, err) < 0) ||
        check_room(env, vars, removed, err) < 0)
        return -1;

    const char *name;
    json_t *value;
    json_object_foreach((json_t *)vars, name, value)
    {
        if (env_set(env, name, json_string_value(value)) < 0)
            return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
        if (redact_name(name))
            log_info("env_set: %s is set and will not be shown by env_get", name);
    }
    json_object_foreach(removed, name, value) { env_unset(env, name); }
    json_t *answer = json_pack("{s:o}", "updated", sorted_names(vars));
    if (removed && answer)
        json_object_set_new(answer, "unset", sorted_names(removed));
    return resp_value(resp, answer, err);
}
