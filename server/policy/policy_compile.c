/* Layers and merging. Every source of rules becomes a layer; sorted weakest first they are laid over
 * each endpoint. Lists are made once per layer and shared by all rules they reach; equal guards are
 * made once. */

#include "policy/policy_internal.h"

#include "base/json.h"
#include "policy/guards.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static int no_memory(struct abx_error *err)
{
    return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

/* --- lists ------------------------------------------------------------------------------------------ */

bool list_has(const struct str_list *l, const char *word)
{
    for (size_t i = 0; i < l->n; i++) {
        if (strcmp(l->items[i], word) == 0)
            return true;
    }
    return false;
}

/* Strings stay in v. NULL-terminated. */
static int make_list(struct arena *arena, const json_t *v, struct str_list *ret)
{
    size_t n = json_array_size(v);

    ret->items = arena_alloc(arena, (n + 1) * sizeof(*ret->items));
    if (!ret->items)
        return -1;
    for (size_t i = 0; i < n; i++)
        ret->items[i] = json_string_value(json_array_get(v, i));
    ret->items[n] = NULL;
    ret->n = n;
    return 0;
}

/* into = into + more, in first-seen order, without duplicates. */
static int join_list(struct arena *arena, struct str_list *into, const struct str_list *more)
{
    struct str_list all = {0, arena_alloc(arena, (into->n + more->n + 1) * sizeof(*all.items))};

    if (!all.items)
        return -1;
    for (size_t i = 0; i < into->n + more->n; i++) {
        const char *word = i < into->n ? into->items[i] : more->items[i - into->n];
        if (!list_has(&all, word))
            all.items[all.n++] = word;
    }
    all.items[all.n] = NULL;
    *into = all;
    return 0;
}

/* The same for a list that is joined with others: without duplicates from the start. */
static int make_set(struct arena *arena, const json_t *v, struct str_list *ret)
{
    struct str_list all, set = {0, NULL};

    if (make_list(arena, v, &all) < 0 || join_list(arena, &set, &all) < 0)
        return -1;
    *ret = set;
    return 0;
}

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void sort_unique(struct str_list *l)
{
    size_t n = 0;

    qsort(l->items, l->n, sizeof(*l->items), compare_words);
    for (size_t i = 0; i < l->n; i++) {
        if (n == 0 || strcmp(l->items[n - 1], l->items[i]) != 0)
            l->items[n++] = l->items[i];
    }
    l->n = n;
}

/* --- layers ------------------------------------------------------------------------------------------ */

/* By this endpoint's own name. */
static bool is_own(const struct layer *l, const struct endpoint *e)
{
    return l->kind == LAYER_EXACT && strcmp(l->selector, e->id) == 0;
}

bool layer_reaches(const struct layer *l, const struct endpoint *e)
{
    switch (l->kind) {
    case LAYER_DEFAULTS:
        return true;
    case LAYER_GROUP:
        return e->group == l->group;
    case LAYER_GLOB:
        return guard_glob(l->selector, e->id) || (e->rule_of && guard_glob(l->selector, e->rule_of));
    case LAYER_EXACT:
        return is_own(l, e) || (e->rule_of && strcmp(l->selector, e->rule_of) == 0);
    }
    return false;
}

static const struct written_rule nothing_written = {
    .enabled = -1, .read_only = -1, .symlinks_never = -1, .audit = -1};

static int8_t tri_state(const json_t *v)
{
    return (int8_t)(v ? json_is_true(v) : -1);
}

static int read_params(struct arena *arena, const json_t *params, struct written_rule *w)
{
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const json_t *v = json_object_get(params, param_knobs[i].name);
        if (!v)
            continue;
        w->params_set |= 1u << i;
        if (param_knobs[i].kind == KNOB_BOOL) {
            w->flag[i] = json_is_true(v);
        } else if (param_knobs[i].kind == KNOB_SIGNALS) {
            w->n_signals = json_array_size(v);
            w->signals = arena_alloc(arena, (w->n_signals + 1) * sizeof(*w->signals));
            if (!w->signals)
                return -1;
            for (size_t j = 0; j < w->n_signals; j++)
                w->signals[j] = json_integer_value(json_array_get(v, j));
        } else if (param_knobs[i].kind == KNOB_UNION ? make_set(arena, v, &w->list[i]) < 0
                                                     : make_list(arena, v, &w->list[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* rule: validated. */
static int read_rule(struct arena *arena, const json_t *rule, struct written_rule *w)
{
    const json_t *v, *paths = json_object_get(rule, "paths");
    const json_t *limits = json_object_get(rule, "limits");

    *w = nothing_written;
    w->enabled = tri_state(json_object_get(rule, "enabled"));
    if ((v = json_object_get(rule, "audit"))) {
        const char *word = json_string_value(v);
        w->audit = (int8_t)(strcmp(word, "off") == 0    ? AUDIT_OFF
                            : strcmp(word, "deny") == 0 ? AUDIT_DENY
                                                        : AUDIT_ALL);
    }
    if ((v = json_object_get(rule, "scopes"))) {
        w->has_scopes = true;
        if (make_list(arena, v, &w->scopes) < 0)
            return -1;
    }
    w->has_paths = paths != NULL;
    w->read_only = tri_state(json_object_get(paths, "read_only"));
    if ((v = json_object_get(paths, "symlinks")))
        w->symlinks_never = strcmp(json_string_value(v), "never") == 0;
    if ((v = json_object_get(paths, "allow"))) {
        w->has_allow = true;
        if (make_list(arena, v, &w->allow) < 0)
            return -1;
    }
    if ((v = json_object_get(paths, "deny")) && make_set(arena, v, &w->deny) < 0)
        return -1;
    for (size_t i = 0; i < LIMIT_COUNT; i++) {
        if (!(v = json_object_get(limits, limit_knobs[i].name)))
            continue;
        w->limits_set |= 1u << i;
        if (limit_knobs[i].kind == KNOB_SECONDS)
            w->seconds[i] = json_number_value(v);
        else
            w->count[i] = json_integer_value(v);
    }
    return read_params(arena, json_object_get(rule, "params"), w);
}

struct layers {
    struct policy *p;
    size_t cap;
};

/* NULL when memory is out. The new layer says nothing yet. */
static struct layer *layer_add(struct layers *ls, enum layer_kind kind, enum layer_rank rank,
                               const char *selector)
{
    struct policy *p = ls->p;

    if (p->n_layers == ls->cap) {
        size_t cap = ls->cap ? 2 * ls->cap : 8;
        struct layer *more = realloc(p->layers, cap * sizeof(*more));
        if (!more)
            return NULL;
        p->layers = more;
        ls->cap = cap;
    }
    struct layer *l = &p->layers[p->n_layers];
    *l = (struct layer){.kind = kind,
                        .rank = rank,
                        .selector = selector,
                        .prefix = strcspn(selector, "*"),
                        .position = p->n_layers,
                        .rule = nothing_written};
    p->n_layers++;
    return l;
}

/* origin: prefix + what + the group's name. */
static int layer_group(struct layers *ls, enum layer_rank rank, enum group g, bool on, const char *prefix,
                       const char *what)
{
    struct layer *l = layer_add(ls, LAYER_GROUP, rank, group_name(g));

    if (!l)
        return -1;
    l->group = g;
    l->rule.enabled = on;
    l->origin = arena_printf(&ls->p->arena, "%s%s%s", prefix, what, group_name(g));
    return l->origin ? 0 : -1;
}

/* defaults, groups and endpoints of a document or preset. prefix: "policy:" or "preset:NAME:". */
static int layers_of(struct layers *ls, const json_t *doc, enum layer_rank rank, const char *prefix)
{
    struct arena *arena = &ls->p->arena;
    const char *key;
    json_t *v;

    if ((v = json_object_get(doc, "defaults"))) {
        struct layer *l = layer_add(ls, LAYER_DEFAULTS, rank, "");
        if (!l || read_rule(arena, v, &l->rule) < 0 ||
            !(l->origin = arena_printf(arena, "%sdefaults", prefix)))
            return -1;
    }
    json_object_foreach (json_object_get(doc, "groups"), key, v) {
        enum group g = G_CORE;
        (void)group_parse(key, &g); /* the document is valid */
        if (layer_group(ls, rank, g, json_is_true(v), prefix, "groups.") < 0)
            return -1;
    }
    json_object_foreach (json_object_get(doc, "endpoints"), key, v) {
        bool group = strncmp(key, "group:", 6) == 0;
        enum layer_kind kind = strcmp(key, "@defaults") == 0 ? LAYER_DEFAULTS
                               : group                       ? LAYER_GROUP
                               : selector_is_glob(key)       ? LAYER_GLOB
                                                             : LAYER_EXACT;
        struct layer *l = layer_add(ls, kind, rank, key);
        if (!l || read_rule(arena, v, &l->rule) < 0 ||
            !(l->origin = arena_printf(arena, "%sendpoints.%s", prefix, key)))
            return -1;
        if (group)
            (void)group_parse(key + 6, &l->group); /* the document is valid */
    }
    return 0;
}

static int layers_environment(struct layers *ls, const char *text, struct abx_error *err)
{
    static const char *const words[] = {"commands",  "file_ops", "process", "terminal", "system",
                                        "dev_tools", "browser",  "agents",  NULL};

    while (text && *text) {
        size_t n = strcspn(text, ",");
        const char *start = text, *end = text + n;
        char name[64];
        enum group g;

        text = *end ? end + 1 : end;
        while (start < end && (*start == ' ' || *start == '\t'))
            start++;
        while (end > start && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        (void)snprintf(name, sizeof(name), "%.*s", (int)(end - start < 63 ? end - start : 63), start);
        if (!*name || strcmp(name, "core") == 0)
            continue;
        if (group_parse(name, &g) < 0) {
            struct place at = place_key(&(struct place){"ABX_SERVER_ENABLED_GROUPS"}, name);
            return fail_unknown(err, &at, "group", name, words,
                                "; allowed: commands, file_ops, process, terminal, system, dev_tools, "
                                "browser, agents");
        }
        if (layer_group(ls, RANK_ENVIRONMENT, g, true, "environment:", "groups.") < 0)
            return no_memory(err);
    }
    return 0;
}

static int compare_layers(const void *a, const void *b)
{
    const struct layer *x = a, *y = b;

    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->prefix != y->prefix)
        return x->prefix < y->prefix ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

static int collect_layers(struct policy *p, const struct policy_inputs *in, struct abx_error *err)
{
    struct layers ls = {.p = p};
    char prefix[64];

    for (size_t g = 0; g < GROUP_COUNT; g++) {
        if (group_is_opt_in((enum group)g) &&
            layer_group(&ls, RANK_BUILT_IN, (enum group)g, false, "default:", "opt-in:") < 0)
            return no_memory(err);
        if (in->code_groups[g] && g != G_CORE &&
            layer_group(&ls, RANK_CODE, (enum group)g, in->code_groups[g] > 0, "code:",
                        in->code_groups[g] > 0 ? "enable_group:" : "disable_group:") < 0)
            return no_memory(err);
    }
    if (strcmp(p->preset, "default") != 0) {
        const char *text = preset_text(p->preset);
        if (json_parse(text, strlen(text), &p->preset_json, err) < 0)
            return -1;
        (void)snprintf(prefix, sizeof(prefix), "preset:%s:", p->preset); /* names are short */
        if (layers_of(&ls, p->preset_json, RANK_PRESET, prefix) < 0)
            return no_memory(err);
    }
    if (layers_of(&ls, p->json, RANK_POLICY, "policy:") < 0)
        return no_memory(err);
    if (layers_environment(&ls, in->enabled_groups, err) < 0)
        return -1;
    qsort(p->layers, p->n_layers, sizeof(*p->layers), compare_layers);
    return 0;
}

/* --- what the document says about this table of endpoints ------------------------------------------- */

static const struct endpoint *find_endpoint(const struct policy *p, const char *id)
{
    for (size_t i = 0; i < p->n; i++) {
        if (strcmp(p->endpoints[i]->id, id) == 0)
            return p->endpoints[i];
    }
    return NULL;
}

static int fail_endpoint(const struct policy *p, const struct layer *l, const struct place *at,
                         struct abx_error *err)
{
    autofree const char **ids = calloc(p->n + 1, sizeof(*ids));

    if (!ids)
        return no_memory(err);
    for (size_t i = 0; i < p->n; i++)
        ids[i] = p->endpoints[i]->id;
    return fail_unknown(err, at, "endpoint", l->selector, ids, "");
}

static int check_exact(const struct policy *p, const struct layer *l, const struct place *at,
                       struct abx_error *err)
{
    const struct endpoint *e = find_endpoint(p, l->selector);
    struct place here = *at;

    if (!e)
        return fail_endpoint(p, l, at, err);
    if (l->rule.has_paths && !(e->flags & EP_PATHS)) {
        here = place_key(at, "paths");
        goto misfit;
    }
    for (size_t i = 0; i < LIMIT_COUNT; i++) {
        if (l->rule.limits_set & ~(e->limits | LIMITS_COMMON) & (1u << i)) {
            here = place_key(at, "limits");
            here = place_key(&here, limit_knobs[i].name);
            goto misfit;
        }
    }
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        if (l->rule.params_set & ~e->params & (1u << i)) {
            here = place_key(at, "params");
            here = place_key(&here, param_knobs[i].name);
            goto misfit;
        }
    }
    if (e->group == G_CORE && (e->flags & EP_NO_AUTH) && l->rule.scopes.n > 0) {
        return abx_fail(err, E_CONFIG, 0,
                        "%s.scopes: callers of '%s' never have a scope, so nobody could reach it",
                        at->text, e->id);
    }
    return 0;

misfit:
    return abx_fail(err, E_CONFIG, 0, "%s: not applicable to endpoint '%s'", here.text, e->id);
}

static int check_commands(const struct layer *l, const struct place *at, struct abx_error *err)
{
    static const enum param lists[] = {PARAM_allow_commands, PARAM_deny_commands};

    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        struct abx_error why;
        if (!(l->rule.params_set & (1u << lists[i])) ||
            command_patterns_check(&l->rule.list[lists[i]], &why) == 0)
            continue;
        struct place here = place_key(at, "params");
        here = place_key(&here, param_knobs[lists[i]].name);
        return abx_fail(err, E_CONFIG, 0, "%s: %s", here.text, why.message);
    }
    return 0;
}

static int check_layers(const struct policy *p, struct abx_error *err)
{
    static const struct place root = {"policy"};

    for (size_t i = 0; i < p->n_layers; i++) {
        const struct layer *l = &p->layers[i];
        if (l->rank != RANK_POLICY)
            continue;
        struct place at = place_key(&root, strncmp(l->origin, "policy:defaults", 15) == 0 ? "defaults"
                                                                                           : "endpoints");
        if (l->kind != LAYER_DEFAULTS)
            at = place_key(&at, l->selector);
        if (l->kind == LAYER_EXACT && check_exact(p, l, &at, err) < 0)
            return -1;
        if (check_commands(l, &at, err) < 0)
            return -1;
    }
    return 0;
}

/* --- merging ----------------------------------------------------------------------------------------- */

/* The part of enabled: the last (kind, rank) that says anything decides; inside it one `false` wins. */
struct decision {
    const struct layer *by;
    bool on;
};

static void decide(struct decision *d, const struct layer *l)
{
    bool on = l->rule.enabled > 0;

    if (!d->by || d->by->kind != l->kind || d->by->rank != l->rank || (d->on && !on))
        *d = (struct decision){.by = l, .on = on};
}

static int merge_params(struct policy *p, struct rule *r, const struct written_rule *w)
{
    uint32_t fits = w->params_set & r->endpoint->params;

    for (size_t i = 0; fits >> i; i++) {
        if (!(fits & (1u << i)))
            continue;
        if (param_knobs[i].kind == KNOB_UNION && (r->params_set & (1u << i))) {
            if (join_list(&p->arena, &r->list[i], &w->list[i]) < 0)
                return -1;
        } else {
            r->list[i] = w->list[i];
            r->flag[i] = w->flag[i];
        }
        if (param_knobs[i].kind == KNOB_SIGNALS) {
            r->signals = w->signals;
            r->n_signals = w->n_signals;
        }
        r->params_set |= 1u << i;
    }
    return 0;
}

/* Lays one layer over the rule. read_only and symlinks: strictest wins, so that a preset or a later
 * rule can't undo what the document forbids. */
static int merge(struct policy *p, struct rule *r, const struct layer *l)
{
    const struct written_rule *w = &l->rule;
    const struct endpoint *e = r->endpoint;
    uint32_t fits = w->limits_set & (e->limits | LIMITS_COMMON);

    /* Who asks for health has no scopes: a rule meant for the others must not make it look dead. */
    if (w->has_scopes && !(e->group == G_CORE && (e->flags & EP_NO_AUTH)))
        r->scopes = w->scopes;
    if (w->audit >= 0)
        r->audit = (enum audit_level)w->audit;
    if (e->flags & EP_PATHS) {
        if (w->has_allow)
            r->allow = w->allow;
        if (r->deny.n == 0)
            r->deny = w->deny;
        else if (w->deny.n && join_list(&p->arena, &r->deny, &w->deny) < 0)
            return -1;
        r->read_only |= w->read_only > 0;
        r->symlinks_never |= w->symlinks_never > 0;
    }
    for (size_t i = 0; fits >> i; i++) {
        if (fits & (1u << i)) {
            r->count[i] = w->count[i];
            r->seconds[i] = w->seconds[i];
            r->limits_set |= 1u << i;
        }
    }
    return merge_params(p, r, w);
}

static bool same_list(const struct str_list *a, const struct str_list *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; a->items != b->items && i < a->n; i++) {
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    }
    return true;
}

/* A guard of an earlier rule that says the same, else a new one. */
static int attach_guard(struct policy *p, size_t index, struct abx_error *err)
{
    struct rule *r = &p->rules[index];

    for (size_t i = 0; i < index; i++) {
        const struct rule *o = &p->rules[i];
        if (o->read_only == r->read_only && o->symlinks_never == r->symlinks_never &&
            same_list(&o->allow, &r->allow) && same_list(&o->deny, &r->deny)) {
            r->guard = o->guard;
            return 0;
        }
    }
    struct guard_config config = {.base_dir = p->base_dir,
                                  .allow = r->allow.n ? r->allow.items : NULL,
                                  .deny = r->deny.n ? r->deny.items : NULL,
                                  .read_only = r->read_only,
                                  .symlinks_never = r->symlinks_never};
    if (guard_new(&config, &p->guards[p->n_guards], err) < 0)
        return -1;
    r->guard = p->guards[p->n_guards++];
    return 0;
}

static int merge_all(struct policy *p, struct abx_error *err)
{
    static const char *none[] = {NULL};

    for (size_t i = 0; i < p->n; i++) {
        struct rule *r = &p->rules[i];
        const struct endpoint *e = p->endpoints[i];
        struct decision d = {.by = NULL, .on = true};

        r->endpoint = e;
        r->audit = AUDIT_DENY;
        /* An endpoint's own scopes are never written to. */
        r->scopes.items = e->scopes ? (const char **)e->scopes : none;
        while (r->scopes.items[r->scopes.n])
            r->scopes.n++;
        for (size_t j = 0; j < 2 * p->n_layers; j++) { /* what names it itself comes last */
            const struct layer *l = &p->layers[j % p->n_layers];
            if (!layer_reaches(l, e) || is_own(l, e) != (j >= p->n_layers))
                continue;
            if (l->rule.enabled >= 0)
                decide(&d, l);
            if (is_own(l, e) && l->rule.limits_set & (LIM(rate_per_minute) | LIM(max_concurrency)))
                r->counted_alone = true;
            if (merge(p, r, l) < 0)
                return no_memory(err);
        }
        r->enabled = d.on || e->group == G_CORE;
        r->origin = r->enabled ? NULL : d.by->origin;
        if (attach_guard(p, i, err) < 0)
            return -1;
    }
    p->default_audit = AUDIT_DENY;
    for (size_t j = 0; j < p->n_layers; j++) {
        if (p->layers[j].kind == LAYER_DEFAULTS && p->layers[j].rule.audit >= 0)
            p->default_audit = (enum audit_level)p->layers[j].rule.audit;
    }
    return 0;
}

/* --- identities -------------------------------------------------------------------------------------- */

/* The hash a former policy had for this variable, or NULL. */
static const uint8_t *former_hash(const struct policy *former, const char *env)
{
    for (size_t i = 0; former && i < former->n_tokens; i++) {
        if (former->tokens[i].env && strcmp(former->tokens[i].env, env) == 0)
            return former->tokens[i].hash;
    }
    return NULL;
}

static int hex_value(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static const uint8_t *noted_hash(const struct policy_doc *doc, const char *env)
{
    for (size_t i = 0; doc->env_hashes && doc->token_envs[i]; i++)
        if (doc->env_hashes[i].set && strcmp(doc->token_envs[i], env) == 0)
            return doc->env_hashes[i].hash;
    return NULL;
}

static int read_token(struct policy *p, const struct policy_inputs *in, const json_t *json,
                      struct token *t, struct abx_error *err)
{
    const char *hash = json_string_value(json_object_get(json, "token_sha256"));

    t->who.id = json_string_value(json_object_get(json, "id"));
    t->env = json_string_value(json_object_get(json, "token_env"));
    if (make_list(&p->arena, json_object_get(json, "scopes"), &t->who.scopes) < 0)
        return no_memory(err);
    sort_unique(&t->who.scopes);
    if (hash) {
        for (size_t i = 0; i < SHA256_LEN; i++)
            t->hash[i] = (uint8_t)(hex_value(hash[2 * i]) << 4 | hex_value(hash[2 * i + 1]));
        return 0;
    }
    const uint8_t *former = noted_hash(in->doc, t->env);
    if (!former)
        former = former_hash(in->previous, t->env);
    if (in->doc->has_server_token && strcmp(t->env, SERVER_TOKEN_ENV) == 0) {
        memcpy(t->hash, in->doc->server_hash, SHA256_LEN);
    } else if (former) {
        memcpy(t->hash, former, SHA256_LEN);
    } else {
        const char *value = in->getenv ? in->getenv(t->env) : getenv(t->env);
        size_t len;
        if (policy_token_text(t->env, value, &value, &len, err) < 0)
            return -1;
        if (len == 0) {
            struct place at = place_key(&(struct place){"policy.auth.tokens"}, t->who.id);
            return abx_fail(err, E_CONFIG, 0, "%s: environment variable '%s' is not set", at.text,
                            t->env);
        }
        sha256(value, len, t->hash);
    }
    return 0;
}

static int read_identities(struct policy *p, const struct policy_inputs *in, struct abx_error *err)
{
    const json_t *auth = json_object_get(p->json, "auth");
    const json_t *tokens = json_object_get(auth, "tokens");
    const json_t *scopes = json_object_get(auth, "anonymous_scopes");
    static const char *everything[] = {"*", NULL}, *nothing[] = {NULL};
    bool allowed = json_is_true(json_object_get(auth, "allow_anonymous"));
    const json_t *v;

    p->n_tokens = json_array_size(tokens);
    if (p->n_tokens && !(p->tokens = arena_zalloc(&p->arena, p->n_tokens * sizeof(*p->tokens))))
        return no_memory(err);
    for (size_t i = 0; i < p->n_tokens; i++) {
        if (read_token(p, in, json_array_get(tokens, i), &p->tokens[i], err) < 0)
            return -1;
    }
    p->anonymous_ok = allowed || p->n_tokens == 0;
    p->anonymous = (struct identity){.id = "anonymous", .anonymous = true};
    if (scopes) {
        if (make_list(&p->arena, scopes, &p->anonymous.scopes) < 0)
            return no_memory(err);
        sort_unique(&p->anonymous.scopes);
    } else if (p->n_tokens == 0) {
        p->anonymous.scopes = (struct str_list){1, everything};
    } else {
        /* Beside tokens, whoever has none gets nothing unless the policy says what. */
        p->anonymous.scopes = (struct str_list){0, nothing};
        p->anonymous_defaulted = allowed;
    }
    if ((v = json_object_get(auth, "allowed_origins"))) {
        p->has_origins = true;
        if (make_list(&p->arena, v, &p->origins) < 0)
            return no_memory(err);
    }
    if ((v = json_object_get(auth, "allowed_hosts"))) {
        p->has_hosts = true;
        if (make_list(&p->arena, v, &p->hosts) < 0)
            return no_memory(err);
    }
    return 0;
}

/* --- public ------------------------------------------------------------------------------------------ */

static int fill(struct policy *p, const struct policy_inputs *in, struct abx_error *err)
{
    const char *base = policy_doc_base_dir(in->doc);
    const char *preset = json_string_value(json_object_get(in->doc->json, "preset"));
    autobuf struct buf canonical = BUF_INIT;
    char hex[SHA256_HEX];

    /* A copy: the document may be given a token or freed while the policy lives. */
    p->json = json_deep_copy(in->doc->json);
    p->preset = arena_strdup(&p->arena, preset ? preset : "default");
    p->base_dir = arena_strdup(&p->arena, base ? base : in->base_dir ? in->base_dir : "/home/user");
    p->n = in->n_endpoints;
    p->endpoints = arena_alloc(&p->arena, (p->n + 1) * sizeof(const struct endpoint *));
    p->rules = arena_zalloc(&p->arena, (p->n + 1) * sizeof(*p->rules));
    p->guards = arena_zalloc(&p->arena, (p->n + 1) * sizeof(struct guard *));
    if (!p->json || !p->preset || !p->base_dir || !p->endpoints || !p->rules || !p->guards)
        return no_memory(err);
    if (p->n)
        memcpy(p->endpoints, in->endpoints, p->n * sizeof(const struct endpoint *));

    json_write_canonical(&canonical, p->json);
    if (!buf_str(&canonical))
        return no_memory(err);
    sha256_hex(canonical.data, canonical.len, hex);
    memcpy(p->revision, hex, 16);
    p->configured = json_object_size(p->json) > 1;

    if (collect_layers(p, in, err) < 0 || check_layers(p, err) < 0 || read_identities(p, in, err) < 0)
        return -1;
    return merge_all(p, err);
}

int policy_compile(const struct policy_inputs *in, struct policy **ret, struct abx_error *err)
{
    struct policy *p = calloc(1, sizeof(*p));

    if (!p)
        return no_memory(err);
    p->refs = 1;
    arena_init(&p->arena);
    if (fill(p, in, err) < 0) {
        policy_unref(p);
        return -1;
    }
    *ret = p;
    return 0;
}

struct policy *policy_ref(struct policy *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void policy_unref(struct policy *p)
{
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) > 1)
        return;
    for (size_t i = 0; i < p->n_guards; i++)
        guard_free(p->guards[i]);
    free(p->layers);
    json_decref(p->json);
    json_decref(p->preset_json);
    arena_done(&p->arena);
    free(p);
}

const struct rule *policy_rule(const struct policy *p, size_t endpoint_index)
{
    return &p->rules[endpoint_index];
}

const struct rule *policy_find(const struct policy *p, const char *endpoint_id)
{
    for (size_t i = 0; i < p->n; i++) {
        if (strcmp(p->endpoints[i]->id, endpoint_id) == 0)
            return &p->rules[i];
    }
    return NULL;
}

const char *policy_revision(const struct policy *p)
{
    return p->revision;
}

const char *policy_preset(const struct policy *p)
{
    return p->preset;
}

bool policy_configured(const struct policy *p)
{
    return p->configured;
}

bool policy_has_tokens(const struct policy *p)
{
    return p->n_tokens > 0;
}

enum audit_level policy_default_audit(const struct policy *p)
{
    return p->default_audit;
}

const char *policy_base_dir(const struct policy *p)
{
    return p->base_dir;
}

const struct str_list *policy_origins(const struct policy *p)
{
    return p->has_origins ? &p->origins : NULL;
}

const struct str_list *policy_hosts(const struct policy *p)
{
    return p->has_hosts ? &p->hosts : NULL;
}

int64_t rule_limit(const struct rule *r, enum limit l, int64_t fallback)
{
    return r->limits_set & (1u << l) ? r->count[l] : fallback;
}

double rule_seconds(const struct rule *r, enum limit l, double fallback)
{
    return r->limits_set & (1u << l) ? r->seconds[l] : fallback;
}

bool rule_flag(const struct rule *r, enum param p, bool fallback)
{
    return r->params_set & (1u << p) ? r->flag[p] : fallback;
}

const struct str_list *rule_list(const struct rule *r, enum param p)
{
    return r->params_set & (1u << p) ? &r->list[p] : NULL;
}
