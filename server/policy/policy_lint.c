/* Things a policy may say that are probably not meant. */

#include "policy/policy_internal.h"

#include <fcntl.h>
#include <libgen.h>
#include <string.h>

struct lint {
    const struct policy *p;
    struct arena arena;
    struct str_list found;
    size_t cap;
    bool failed;
};

static void add(struct lint *l, const char *text)
{
    if (!text || l->failed) {
        l->failed = true;
        return;
    }
    if (l->found.n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        const char **more = realloc(l->found.items, cap * sizeof(*more));
        if (!more) {
            l->failed = true;
            return;
        }
        l->found.items = more;
        l->cap = cap;
    }
    l->found.items[l->found.n++] = text;
}

#define warn(l, ...) add((l), arena_printf(&(l)->arena, __VA_ARGS__))

static bool has_path_rule(const struct rule *r)
{
    return r->allow.n || r->deny.n || r->read_only || r->symlinks_never;
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The first three by name, "a, b, c". */
static const char *first_three(struct lint *l, const char **ids, size_t n)
{
    qsort(ids, n, sizeof(*ids), compare_ids);
    return arena_printf(&l->arena, "%s%s%s%s%s", ids[0], n > 1 ? ", " : "", n > 1 ? ids[1] : "",
                        n > 2 ? ", " : "", n > 2 ? ids[2] : "");
}

static void lint_bypass(struct lint *l, const struct identity *who)
{
    const struct policy *p = l->p;
    const char **scoped = arena_alloc(&l->arena, (p->n + 1) * sizeof(*scoped));
    const char **exec = arena_alloc(&l->arena, (p->n + 1) * sizeof(*exec));
    size_t n_scoped = 0, n_exec = 0;

    if (!scoped || !exec) {
        l->failed = true;
        return;
    }
    for (size_t i = 0; i < p->n; i++) {
        const struct rule *r = &p->rules[i];
        if (policy_permits(r, who, NULL, NULL) < 0)
            continue;
        if ((r->endpoint->flags & EP_PATHS) && !(r->endpoint->flags & EP_UNLISTED) && has_path_rule(r))
            scoped[n_scoped++] = r->endpoint->id;
        if (r->endpoint->flags & EP_EXEC)
            exec[n_exec++] = r->endpoint->id;
    }
    if (n_scoped && n_exec)
        warn(l,
             "L1: identity '%s' can use path-scoped endpoints (%s...) and also execute programs via %s; "
             "path rules can be bypassed",
             who->id, first_three(l, scoped, n_scoped), first_three(l, exec, n_exec));
}

/* "/", "//", "/x/..": all the file system. */
static bool is_root(const char *path)
{
    int depth = 0;

    while (*path) {
        size_t n = strcspn(path, "/");
        if (n == 2 && path[0] == '.' && path[1] == '.')
            depth -= depth > 0;
        else if (n > 1 || (n == 1 && path[0] != '.'))
            depth++;
        path += n;
        path += strspn(path, "/");
    }
    return depth == 0;
}

static void lint_rules(struct lint *l)
{
    for (size_t i = 0; i < l->p->n; i++) {
        const struct rule *r = &l->p->rules[i];
        const char *id = r->endpoint->id;
        for (size_t j = 0; j < r->allow.n; j++) {
            if (is_root(r->allow.items[j]))
                warn(l, "L2: endpoint '%s' allows the filesystem root '/'", id);
        }
        if (!rule_flag(r, PARAM_overwrite, true) && r->allow.n == 0)
            warn(l, "L4: endpoint '%s' sets overwrite=false without paths.allow", id);
        if ((r->endpoint->flags & EP_NO_AUTH) && r->enabled && r->scopes.n)
            warn(l, "L10: endpoint '%s' takes callers without a token and asks for scopes, which they "
                    "never have: nobody can reach it",
                 id);
    }
}

static void lint_tokens(struct lint *l)
{
    const struct policy *p = l->p;

    for (size_t i = 0; i < p->n_tokens; i++) {
        const struct identity *who = &p->tokens[i].who;
        if (p->n_tokens > 1 && list_has(&who->scopes, "*"))
            warn(l, "L3: identity '%s' holds the scope '*' beside other tokens", who->id);
        lint_bypass(l, who);
    }
    if (p->anonymous_ok)
        lint_bypass(l, &p->anonymous);
    if (p->anonymous_defaulted)
        warn(l, "L9: auth.allow_anonymous without auth.anonymous_scopes: callers without a token get no "
                "scopes");
}

/* A glob that reaches nothing; a knob that none of the endpoints it reaches has. */
static void lint_selector(struct lint *l, const struct layer *layer)
{
    uint32_t limits = 0, params = 0;
    bool paths = false, reached = false;

    for (size_t i = 0; i < l->p->n; i++) {
        const struct endpoint *e = l->p->endpoints[i];
        if (!layer_reaches(layer, e))
            continue;
        reached = true;
        limits |= e->limits | LIMITS_COMMON;
        params |= e->params;
        paths |= (e->flags & EP_PATHS) != 0;
    }
    if (!reached) {
        warn(l, "L6: %s matches no endpoint", layer->origin);
        return;
    }
    if (layer->rule.has_paths && !paths)
        warn(l, "L7: %s: paths apply to none of its endpoints", layer->origin);
    for (size_t i = 0; i < LIMIT_COUNT; i++) {
        if (layer->rule.limits_set & ~limits & (1u << i))
            warn(l, "L7: %s: limits.%s applies to none of its endpoints", layer->origin,
                 limit_knobs[i].name);
    }
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        if (layer->rule.params_set & ~params & (1u << i))
            warn(l, "L7: %s: params.%s applies to none of its endpoints", layer->origin,
                 param_knobs[i].name);
    }
}

/* A group turned on or off whose endpoints all end up otherwise. */
static void lint_group(struct lint *l, const struct layer *layer)
{
    bool on = layer->rule.enabled > 0;
    const char *other = NULL;
    size_t n = 0, agree = 0;

    if (layer->group == G_CORE)
        return;
    for (size_t i = 0; i < l->p->n; i++) {
        const struct rule *r = &l->p->rules[i];
        if (r->endpoint->group != layer->group)
            continue;
        n++;
        agree += r->enabled == on;
        if (r->enabled != on && r->origin)
            other = r->origin;
    }
    if (n && !agree)
        warn(l, "L8: %s has no effect: %s%s decides", layer->origin, other ? "" : "a stronger rule",
             other ? other : "");
}

/* Strictest wins: a laxer word after (or before) a stricter one does nothing. */
static void lint_laxer(struct lint *l, const struct layer *layer)
{
    bool writable = layer->rule.read_only == 0, links = layer->rule.symlinks_never == 0;

    for (size_t i = 0; i < l->p->n && (writable || links); i++) {
        const struct rule *r = &l->p->rules[i];
        if (!(r->endpoint->flags & EP_PATHS) || !layer_reaches(layer, r->endpoint))
            continue;
        if (writable && r->read_only) {
            warn(l, "L11: %s: paths.read_only false is overruled by a stricter rule on '%s'",
                 layer->origin, r->endpoint->id);
            writable = false;
        }
        if (links && r->symlinks_never) {
            warn(l, "L11: %s: paths.symlinks within is overruled by a stricter rule on '%s'",
                 layer->origin, r->endpoint->id);
            links = false;
        }
    }
}

static void lint_layers(struct lint *l)
{
    for (size_t i = 0; i < l->p->n_layers; i++) {
        const struct layer *layer = &l->p->layers[i];
        bool ours = layer->rank == RANK_POLICY;
        if (ours && layer->kind != LAYER_EXACT)
            lint_selector(l, layer);
        if ((ours || layer->rank == RANK_ENVIRONMENT) && layer->kind == LAYER_GROUP &&
            layer->rule.enabled >= 0)
            lint_group(l, layer);
        if (ours)
            lint_laxer(l, layer);
    }
}

static void lint_file(json_t *out, const char *file)
{
    autofree char *copy = strdup(file);

    if (faccessat(AT_FDCWD, file, W_OK, AT_EACCESS) == 0)
        json_array_append_new(
            out, json_sprintf("L5: policy file %s is writable by the current user", file));
    const char *directory = copy ? dirname(copy) : NULL; /* changes copy */
    if (directory && faccessat(AT_FDCWD, directory, W_OK, AT_EACCESS) == 0)
        json_array_append_new(
            out, json_sprintf("L5: policy directory %s is writable by the current user", directory));
}

json_t *policy_lint(const struct policy *p, const char *policy_file)
{
    struct lint l = {.p = p};
    json_t *out = json_array();

    arena_init(&l.arena);
    lint_rules(&l);
    lint_tokens(&l);
    lint_layers(&l);
    if (l.found.n)
        qsort(l.found.items, l.found.n, sizeof(*l.found.items), compare_ids);
    for (size_t i = 0; i < l.found.n; i++) {
        if (i == 0 || strcmp(l.found.items[i], l.found.items[i - 1]) != 0)
            json_array_append_new(out, json_string(l.found.items[i]));
    }
    if (policy_file)
        lint_file(out, policy_file);
    if (l.failed) {
        json_decref(out);
        out = NULL;
    }
    free(l.found.items);
    arena_done(&l.arena);
    return out;
}
