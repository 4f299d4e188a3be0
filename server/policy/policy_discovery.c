/* What a policy says about itself: GET /capabilities, POST /capabilities/check, check-config. */

#include "policy/policy_internal.h"

#include "base/json.h"

#include <string.h>

#define API_VERSION 2

static json_t *no_memory(struct abx_error *err)
{
    abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    return NULL;
}

static json_t *words_json(const struct str_list *l)
{
    json_t *a = json_array();
    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(a, json_text(l->items[i])); /* NULL: seen by the caller's size check */
    if (json_array_size(a) != l->n) {
        json_decref(a);
        return NULL;
    }
    return a;
}

static int set(json_t *o, const char *key, json_t *value)
{
    return json_object_set_new_nocheck(o, key, value);
}

static json_t *text_or_null(const char *s)
{
    return s ? json_string(s) : json_null();
}

static json_t *limits_json(const struct rule *r)
{
    json_t *o = json_object();
    int rc = o ? 0 : -1;

    for (size_t i = 0; i < LIMIT_COUNT; i++) {
        if (!(r->limits_set & (1u << i)))
            continue;
        rc |= set(o, limit_knobs[i].name,
                  limit_knobs[i].kind == KNOB_SECONDS ? json_real(r->seconds[i])
                                                      : json_integer(r->count[i]));
    }
    if (rc == 0)
        return o;
    json_decref(o);
    return NULL;
}

static json_t *params_json(const struct rule *r)
{
    json_t *o = json_object();
    int rc = o ? 0 : -1;

    for (size_t i = 0; i < PARAM_COUNT; i++) {
        json_t *v;
        if (!(r->params_set & (1u << i)))
            continue;
        if (param_knobs[i].kind == KNOB_BOOL) {
            v = json_boolean(r->flag[i]);
        } else if (param_knobs[i].kind == KNOB_SIGNALS) {
            v = json_array();
            for (size_t j = 0; j < r->n_signals; j++)
                rc |= json_array_append_new(v, json_integer(r->signals[j]));
        } else {
            v = words_json(&r->list[i]);
        }
        rc |= set(o, param_knobs[i].name, v);
    }
    if (rc == 0)
        return o;
    json_decref(o);
    return NULL;
}

/* Patterns stay secret: only their number is told. */
static json_t *paths_json(const struct rule *r)
{
    return json_pack("{s:o, s:b, s:I, s:s}", "allow", words_json(&r->allow), "read_only",
                     (int)r->read_only, "deny_count", (json_int_t)r->deny.n, "symlinks",
                     r->symlinks_never ? "never" : "within");
}

static json_t *endpoint_json(const struct rule *r, const struct identity *who)
{
    const struct endpoint *e = r->endpoint;
    struct abx_error why = {.kind = E_DISABLED};
    bool allowed = policy_permits(r, who, NULL, &why) == 0;
    json_t *o = json_object();
    int rc = o ? 0 : -1;

    rc |= set(o, "method", json_string(method_name(e->method)));
    rc |= set(o, "path", json_text(e->path));
    rc |= set(o, "group", json_string(group_name(e->group)));
    rc |= set(o, "summary", json_text(e->summary ? e->summary : ""));
    rc |= set(o, "streaming", json_boolean(e->flags & (EP_STREAM | EP_WS)));
    rc |= set(o, "enabled", json_boolean(r->enabled));
    rc |= set(o, "allowed", json_boolean(allowed));
    rc |= set(o, "reason", text_or_null(allowed ? NULL : why.code));
    rc |= set(o, "rule", text_or_null(r->origin));
    rc |= set(o, "scopes", words_json(&r->scopes));
    if (allowed) {
        rc |= set(o, "limits", limits_json(r));
        rc |= set(o, "params", params_json(r));
        if (e->flags & EP_PATHS)
            rc |= set(o, "paths", paths_json(r));
    }
    if (rc == 0)
        return o;
    json_decref(o);
    return NULL;
}

/* The caller of an auth-free endpoint is nobody. */
static const struct identity *caller_of(const struct endpoint *e, const struct identity *who)
{
    return e->flags & EP_NO_AUTH ? policy_nobody() : who;
}

json_t *policy_capabilities(const struct policy *p, const struct identity *who, const char *version,
                            struct abx_error *err)
{
    json_int_t enabled[GROUP_COUNT] = {0}, total[GROUP_COUNT] = {0};
    autojson json_t *endpoints = json_object(), *groups = json_object(), *summary = json_object();
    json_t *doc, *warnings = json_array();
    int rc = 0;

    for (size_t i = 0; i < p->n; i++) {
        const struct rule *r = &p->rules[i];
        const struct endpoint *e = r->endpoint;
        if (e->flags & EP_UNLISTED)
            continue;
        if (!(e->flags & EP_ADDITIVE)) {
            total[e->group]++;
            enabled[e->group] += r->enabled;
        }
        rc |= set(endpoints, e->id, endpoint_json(r, caller_of(e, who)));
    }
    for (size_t g = 0; g < GROUP_COUNT; g++) {
        const char *name = group_name((enum group)g);
        rc |= set(groups, name, json_boolean(enabled[g] > 0));
        rc |= set(summary, name, json_pack("{s:I, s:I}", "enabled", enabled[g], "total", total[g]));
    }
    if (p->n_tokens && list_has(&who->scopes, "*"))
        rc |= json_array_append_new(warnings, json_string("identity holds the wildcard scope '*'"));
    doc = json_pack("{s:i, s:s, s:O, s:O, s:{s:o, s:o}, s:{s:s, s:s, s:b}, s:O, s:o}", "api_version",
                    API_VERSION, "server_version", version, "groups", groups, "group_summary", summary,
                    "identity", "id", json_text(who->id), "scopes", words_json(&who->scopes), "policy",
                    "preset", p->preset, "revision", p->revision, "configured", (int)p->configured,
                    "endpoints", endpoints, "warnings", warnings);
    if (rc == 0 && doc)
        return doc;
    json_decref(doc);
    return no_memory(err);
}

/* --- questions --------------------------------------------------------------------------------------- */

struct question {
    const json_t *path, *paths; /* NULL: not asked */
    enum guard_op op;
};

static int read_question(const json_t *body, const struct endpoint *e, struct question *q,
                         struct abx_error *err)
{
    static const char *const ops[] = {
        [OP_READ] = "read", [OP_WRITE] = "write", [OP_DELETE] = "delete", [OP_EXEC] = "exec"};
    const json_t *op = json_object_get(body, "op"), *item;
    size_t i;

    q->path = json_object_get(body, "path");
    q->paths = json_object_get(body, "paths");
    if (json_is_null(q->path))
        q->path = NULL;
    if (json_is_null(q->paths))
        q->paths = NULL;
    if (q->path && !json_is_string(q->path))
        return abx_fail(err, E_VALUE, 0, "'path' must be a string");
    if (q->paths && !json_is_array(q->paths))
        return abx_fail(err, E_VALUE, 0, "'paths' must be a list of strings");
    json_array_foreach (q->paths, i, item) {
        if (!json_is_string(item))
            return abx_fail(err, E_VALUE, 0, "'paths' must be a list of strings");
    }
    q->op = e ? e->op : OP_READ;
    if (!op || json_is_null(op))
        return 0;
    for (i = 0; i < ARRAY_LEN(ops); i++) {
        if (json_is_string(op) && strcmp(json_string_value(op), ops[i]) == 0) {
            q->op = (enum guard_op)i;
            return 0;
        }
    }
    return abx_fail(err, E_VALUE, 0, "'op' must be read, write, delete or exec");
}

static int judge(const struct rule *r, const json_t *path, enum guard_op op, struct abx_error *err)
{
    struct arena arena;
    struct guard_path found;
    int rc;

    arena_init(&arena);
    rc = guard_check(r->guard, json_string_value(path), json_string_length(path), NULL, op, &arena, &found,
                     err);
    arena_done(&arena);
    return rc;
}

static int judge_all(const struct rule *r, const struct question *q, struct abx_error *err)
{
    const json_t *item;
    size_t i;

    if (q->path && judge(r, q->path, q->op, err) < 0)
        return -1;
    json_array_foreach (q->paths, i, item) {
        if (judge(r, item, q->op, err) < 0)
            return -1;
    }
    return 0;
}

static json_t *answer(const json_t *endpoint, bool allowed, const char *code, const char *reason)
{
    json_t *o = json_object();
    int rc = o ? 0 : -1;

    rc |= json_object_set(o, "endpoint", (json_t *)endpoint);
    rc |= set(o, "allowed", json_boolean(allowed));
    rc |= set(o, "code", text_or_null(code));
    rc |= set(o, "reason", reason ? json_text(reason) : json_null());
    if (rc == 0)
        return o;
    json_decref(o);
    return NULL;
}

json_t *policy_check(const struct policy *p, const struct identity *who, const json_t *body,
                     struct abx_error *err)
{
    const json_t *endpoint = json_object_get(body, "endpoint");
    const char *id = json_string_value(endpoint);
    const struct rule *r = NULL;
    struct question q = {.op = OP_READ};
    struct abx_error why;
    json_t *o;

    if (!id || !json_string_length(endpoint)) {
        abx_fail(err, E_VALUE, 0, "Missing or invalid 'endpoint'");
        return NULL;
    }
    if (strlen(id) == json_string_length(endpoint))
        r = policy_find(p, id);
    if (read_question(body, r ? r->endpoint : NULL, &q, err) < 0)
        return NULL;

    bool asks_paths = q.path || q.paths;
    if (!r) {
        o = answer(endpoint, false, "unknown_endpoint", "Unknown endpoint");
    } else if (policy_permits(r, caller_of(r->endpoint, who), NULL, &why) < 0) {
        o = answer(endpoint, false, why.code, why.message);
        if (o && set(o, "rule", text_or_null(r->origin)) < 0) {
            json_decref(o);
            o = NULL;
        }
    } else if (judge_all(r, &q, &why) < 0) {
        o = answer(endpoint, false, why.code, why.message);
    } else {
        o = answer(endpoint, true, NULL, NULL);
    }
    /* It has no path rules of its own: what was judged is only the base directory. */
    if (o && r && asks_paths && !(r->endpoint->flags & EP_PATHS) &&
        set(o, "paths", json_string("not_applicable")) < 0) {
        json_decref(o);
        o = NULL;
    }
    return o ? o : no_memory(err);
}

/* --- check-config ------------------------------------------------------------------------------------ */

static int compare_rules(const void *a, const void *b)
{
    const struct rule *const *x = a, *const *y = b;
    return strcmp((*x)->endpoint->id, (*y)->endpoint->id);
}

/* Pointers to the listed rules, by id. NULL: no memory. free(). */
static const struct rule **sorted_rules(const struct policy *p, size_t *ret_n)
{
    const struct rule **rules = calloc(p->n + 1, sizeof(*rules));
    size_t n = 0;

    for (size_t i = 0; rules && i < p->n; i++) {
        if (!(p->rules[i].endpoint->flags & EP_UNLISTED))
            rules[n++] = &p->rules[i];
    }
    if (rules)
        qsort(rules, n, sizeof(*rules), compare_rules);
    *ret_n = n;
    return rules;
}

void policy_describe(const struct policy *p, json_t *warnings, struct buf *out)
{
    size_t n, i;
    autofree const struct rule **rules = sorted_rules(p, &n);
    const json_t *w;

    out->failed |= !rules;
    buf_addf(out, "policy ServerPolicy(preset='%s', revision='%s')\n", p->preset, p->revision);
    for (i = 0; rules && i < n; i++) {
        const struct rule *r = rules[i];
        buf_addf(out, "  [%s] %-24s scopes=", r->enabled ? "on " : "off", r->endpoint->id);
        for (size_t j = 0; j < r->scopes.n; j++)
            buf_addf(out, "%s%s", j ? "," : "", r->scopes.items[j]);
        buf_adds(out, r->scopes.n ? "\n" : "-\n");
    }
    json_array_foreach (warnings, i, w)
        buf_addf(out, "warning: %s\n", json_string_value(w));
}

json_t *policy_describe_json(const struct policy *p, json_t *warnings)
{
    size_t n;
    autofree const struct rule **rules = sorted_rules(p, &n);
    autojson json_t *list = json_array();
    int rc = rules && list ? 0 : -1;

    for (size_t i = 0; rules && i < n; i++) {
        const struct rule *r = rules[i];
        json_t *o = json_object();
        rc |= set(o, "endpoint", json_text(r->endpoint->id));
        rc |= set(o, "group", json_string(group_name(r->endpoint->group)));
        rc |= set(o, "enabled", json_boolean(r->enabled));
        rc |= set(o, "rule", text_or_null(r->origin));
        rc |= set(o, "scopes", words_json(&r->scopes));
        rc |= set(o, "limits", limits_json(r));
        rc |= set(o, "paths",
                  json_pack("{s:o, s:o, s:b}", "allow", words_json(&r->allow), "deny",
                            words_json(&r->deny), "read_only", (int)r->read_only));
        rc |= json_array_append_new(list, o);
    }
    return rc < 0 ? NULL
                  : json_pack("{s:s, s:O, s:O}", "revision", p->revision, "endpoints", list, "warnings",
                              warnings);
}
