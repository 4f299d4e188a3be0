#include "http/internal.h"

#include <stdlib.h>
#include <string.h>

/* Fixed paths are found by hash; patterns with {parameters} are few and are walked in order. The
 * earliest registration wins in either case, so a template's route never hides a built-in. */

struct pattern {
    size_t index; /* of the route */
    unsigned segments;
    size_t first_len; /* of the leading literal segment, without slashes; 0 when it is a parameter */
};

struct bucket {
    size_t *routes; /* indexes, ascending */
    size_t n;
};

struct site {
    unsigned refs;
    const struct route **routes;
    size_t n;
    struct policy *policy;
    void (*free_owner)(void *owner);
    void *owner;
    struct bucket *table;
    size_t mask;
    struct pattern *patterns;
    size_t n_patterns;
    const struct route *pty;
    size_t pty_index;
};

static uint32_t hash_path(const char *s)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 16777619u;
    return h;
}

static unsigned count_segments(const char *path)
{
    unsigned n = 0;
    for (; *path; path++)
        n += *path == '/';
    return n;
}

/* Two patterns that match the same paths: equal but for the parameters' names. */
static bool same_shape(const char *a, const char *b)
{
    while (*a && *b) {
        if (*a == '{' && *b == '{') {
            while (*a && *a != '}')
                a++;
            while (*b && *b != '}')
                b++;
            continue;
        }
        if (*a++ != *b++)
            return false;
    }
    return *a == *b;
}

static int check_pattern(const struct endpoint *ep, struct abx_error *err)
{
    const char *p = ep->path;
    if (p[0] != '/')
        return abx_fail(err, E_CONFIG, 0, "route '%s': the path must begin with '/'", ep->id);
    size_t len = strlen(p);
    if (len > 1 && p[len - 1] == '/')
        return abx_fail(err, E_CONFIG, 0, "route '%s': '%s' can't be reached: trailing slashes are cut",
                        ep->id, p);
    unsigned params = 0;
    for (; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c <= ' ' || c >= 0x7F || strchr("?#;%", c))
            return abx_fail(err, E_CONFIG, 0, "route '%s': '%s' can't be reached: odd character", ep->id,
                            ep->path);
        if (*p == '{') {
            const char *close = strchr(p, '}');
            if (!close || close == p + 1 || p[-1] != '/' || (close[1] && close[1] != '/'))
                return abx_fail(err, E_CONFIG, 0,
                                "route '%s': a {parameter} must be a whole path segment: '%s'", ep->id,
                                ep->path);
            if (++params > MAX_PARAMS)
                return abx_fail(err, E_CONFIG, 0, "route '%s': more than %d parameters", ep->id, MAX_PARAMS);
        }
    }
    if (strstr(ep->path, "//"))
        return abx_fail(err, E_CONFIG, 0, "route '%s': '%s' has an empty segment", ep->id, ep->path);
    return 0;
}

static int check_routes(const struct route *const *routes, size_t n, struct abx_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct endpoint *a = &routes[i]->ep;
        if (check_pattern(a, err) < 0)
            return -1;
        for (size_t k = 0; k < i; k++) {
            const struct endpoint *b = &routes[k]->ep;
            if (strcmp(a->id, b->id) == 0)
                return abx_fail(err, E_CONFIG, 0, "two routes are named '%s'", a->id);
            if (a->method == b->method && same_shape(a->path, b->path))
                return abx_fail(err, E_CONFIG, 0, "route '%s' can't be reached: '%s' has %s %s already",
                                a->id, b->id, method_name(b->method), b->path);
        }
    }
    return 0;
}

static int add_fixed(struct site *s, size_t index)
{
    struct bucket *b = &s->table[hash_path(s->routes[index]->ep.path) & s->mask];
    size_t *grown = realloc(b->routes, (b->n + 1) * sizeof *grown);
    if (!grown)
        return -1;
    b->routes = grown;
    b->routes[b->n++] = index;
    return 0;
}

int site_new(const struct route *const *routes, size_t n, struct policy *policy, void (*free_owner)(void *owner),
             void *owner, struct site **ret, struct abx_error *err)
{
    if (check_routes(routes, n, err) < 0)
        return -1;
    struct site *s = calloc(1, sizeof *s);
    if (!s)
        goto no_memory;
    s->refs = 1;
    s->n = n;
    s->routes = malloc(n * sizeof *s->routes);
    s->mask = 1;
    while (s->mask < 2 * n)
        s->mask *= 2;
    s->table = calloc(s->mask, sizeof *s->table);
    s->mask--;
    s->patterns = calloc(n, sizeof *s->patterns);
    if (!s->routes || !s->table || !s->patterns)
        goto no_memory;
    for (size_t i = 0; i < n; i++) {
        s->routes[i] = routes[i];
        const char *path = routes[i]->ep.path;
        if (!strchr(path, '{')) {
            if (add_fixed(s, i) < 0)
                goto no_memory;
        } else {
            size_t first = strcspn(path + 1, "/");
            s->patterns[s->n_patterns++] = (struct pattern){
                .index = i, .segments = count_segments(path), .first_len = path[1] == '{' ? 0 : first};
        }
        if (strcmp(routes[i]->ep.id, "pty_connect") == 0) {
            s->pty = routes[i];
            s->pty_index = i;
        }
    }
    s->policy = policy_ref(policy);
    s->free_owner = free_owner;
    s->owner = owner;
    *ret = s;
    return 0;
no_memory:
    if (s)
        site_unref(s);
    return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

struct site *site_ref(struct site *s)
{
    s->refs++;
    return s;
}

void site_unref(struct site *s)
{
    if (!s || --s->refs > 0)
        return;
    if (s->free_owner)
        s->free_owner(s->owner);
    if (s->policy)
        policy_unref(s->policy);
    for (size_t i = 0; s->table && i <= s->mask; i++)
        free(s->table[i].routes);
    free(s->table);
    free(s->patterns);
    free(s->routes);
    free(s);
}

struct policy *site_policy(struct site *s)
{
    return s->policy;
}

size_t site_route_count(const struct site *s)
{
    return s->n;
}

const struct route *site_route(const struct site *s, size_t i)
{
    return s->routes[i];
}

const struct route *site_pty_route(const struct site *s, struct req *r)
{
    if (s->pty)
        r->place = measure_slot(r->http, s, s->pty_index);
    return s->pty;
}

/* Does path fit the pattern? Each {name} takes one or more characters other than '/'. */
static bool fits(const char *pattern, const char *path)
{
    while (*pattern) {
        if (*pattern == '{') {
            size_t len = strcspn(path, "/");
            if (len == 0)
                return false;
            path += len;
            pattern = strchr(pattern, '}') + 1;
            continue;
        }
        if (*pattern++ != *path++)
            return false;
    }
    return *path == '\0';
}

static bool take_params(struct req *r, const char *pattern, const char *path)
{
    r->n_params = 0;
    while (*pattern) {
        if (*pattern == '{') {
            size_t len = strcspn(path, "/");
            size_t name_len = strcspn(pattern + 1, "}");
            size_t out_len;
            char *value = percent_decode(&r->arena, path, len, &out_len);
            if (!value)
                return false;
            r->params[r->n_params].name = pattern + 1;
            r->params[r->n_params].name_len = name_len;
            r->params[r->n_params].value = value;
            r->params[r->n_params].len = out_len;
            r->n_params++;
            path += len;
            pattern += name_len + 2;
            continue;
        }
        pattern++;
        path++;
    }
    return true;
}

enum match site_match(struct site *s, enum method method, const char *path, struct req *r, uint32_t *ret_allowed)
{
    size_t best = s->n;
    uint32_t allowed = 0;
    struct bucket *b = &s->table[hash_path(path) & s->mask];
    for (size_t i = 0; i < b->n; i++) {
        const struct endpoint *ep = &s->routes[b->routes[i]]->ep;
        if (strcmp(ep->path, path) != 0)
            continue;
        allowed |= 1u << ep->method;
        if (ep->method == method && b->routes[i] < best)
            best = b->routes[i];
    }
    unsigned segments = count_segments(path);
    for (size_t i = 0; i < s->n_patterns; i++) {
        const struct pattern *p = &s->patterns[i];
        const struct endpoint *ep = &s->routes[p->index]->ep;
        if (p->index >= best)
            break;
        if (p->segments != segments || (p->first_len && strncmp(ep->path, path, p->first_len + 1) != 0))
            continue;
        if ((ep->method == method || best == s->n) && fits(ep->path, path)) {
            allowed |= 1u << ep->method;
            if (ep->method == method)
                best = p->index;
        }
    }
    *ret_allowed = allowed;
    if (best == s->n)
        return allowed ? MATCH_OTHER_METHOD : MATCH_NONE;
    r->route = s->routes[best];
    r->place = measure_slot(r->http, s, best);
    r->rule = policy_rule(s->policy, best);
    r->n_params = 0;
    if (strchr(r->route->ep.path, '{') && !take_params(r, r->route->ep.path, path))
        return MATCH_NONE;
    return MATCH_OK;
}
