/* Who is calling, and may they? */

#include "policy/policy_internal.h"

#include <string.h>

static const char *no_scopes[] = {NULL};
static const struct identity nobody = {
    .id = "anonymous", .scopes = {0, no_scopes}, .anonymous = true};

const struct identity *policy_nobody(void)
{
    return &nobody;
}

bool identity_has(const struct identity *who, const char *scope)
{
    const char *colon = strchr(scope, ':');
    size_t ns = colon ? (size_t)(colon - scope) : 0;

    if (strcmp(scope, "core:read") == 0)
        return true;
    for (size_t i = 0; i < who->scopes.n; i++) {
        const char *held = who->scopes.items[i];
        if (strcmp(held, "*") == 0 || strcmp(held, scope) == 0)
            return true;
        if (colon && strncmp(held, scope, ns + 1) == 0 && strcmp(held + ns + 1, "*") == 0)
            return true;
    }
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static struct credential trimmed(struct credential c)
{
    while (c.len && is_blank(c.value[0])) {
        c.value++;
        c.len--;
    }
    while (c.len && is_blank(c.value[c.len - 1]))
        c.len--;
    return c;
}

/* More than one value of X-Access-Token, the empty one too. */
static bool ambiguous(const struct credential *creds, size_t n)
{
    struct credential first = {0};

    for (size_t i = 0; i < n; i++) {
        if (creds[i].bearer)
            continue;
        struct credential c = trimmed(creds[i]);
        if (!first.value)
            first = c;
        else if (c.len != first.len || memcmp(c.value, first.value, c.len) != 0)
            return true;
    }
    return false;
}

/* Always looks at every token, so time tells nothing about which one was near. */
static const struct token *match(const struct policy *p, struct credential c)
{
    uint8_t hash[SHA256_LEN];
    const struct token *found = NULL;

    sha256(c.value, c.len, hash);
    for (size_t i = 0; i < p->n_tokens; i++) {
        bool same = crypto_equal(hash, p->tokens[i].hash, SHA256_LEN);
        if (same && !found)
            found = &p->tokens[i];
    }
    crypto_wipe(hash, sizeof(hash));
    return found;
}

int policy_authenticate(const struct policy *p, const struct credential *creds, size_t n,
                        const struct identity **ret, struct abx_error *err)
{
    bool presented = false;

    if (ambiguous(creds, n))
        return abx_fail(err, E_AMBIGUOUS_CREDENTIALS, 0, "X-Access-Token came with different values");
    if (p->n_tokens == 0) {
        *ret = &p->anonymous;
        return 0;
    }
    /* Bearer tokens first, whatever the order of the headers. */
    for (int bearer = 1; bearer >= 0; bearer--) {
        for (size_t i = 0; i < n; i++) {
            struct credential c = trimmed(creds[i]);
            if (c.bearer != (bool)bearer || c.len == 0)
                continue;
            presented = true;
            const struct token *t = match(p, c);
            if (t) {
                *ret = &t->who;
                return 0;
            }
        }
    }
    if (!presented && p->anonymous_ok) {
        *ret = &p->anonymous;
        return 0;
    }
    return abx_fail(err, E_UNAUTHORIZED, 0, "unauthorized");
}

int policy_permits(const struct rule *r, const struct identity *who, const char **ret_scope,
                   struct abx_error *err)
{
    const char *id = r->endpoint->id;

    if (!r->enabled) {
        if (strncmp(r->origin, "default:opt-in:", 15) != 0)
            return abx_fail(err, E_DISABLED, 0, "Endpoint '%s' is disabled by %s", id, r->origin);
        const char *group = group_name(r->endpoint->group);
        return abx_fail(err, E_DISABLED, 0,
                        "Endpoint '%s' is disabled: its group '%s' is off unless asked for. Turn on the "
                        "group (ABX_SERVER_ENABLED_GROUPS=%s, or groups: [%s] in the policy) or only "
                        "this endpoint (endpoints.%s.enabled: true in the policy)",
                        id, group, group, group, id);
    }
    for (size_t i = 0; i < r->scopes.n; i++) {
        if (identity_has(who, r->scopes.items[i]))
            continue;
        if (ret_scope)
            *ret_scope = r->scopes.items[i];
        return abx_fail(err, E_MISSING_SCOPE, 0, "Endpoint '%s' needs the scope '%s', which '%s' lacks",
                        id, r->scopes.items[i], who->id);
    }
    return 0;
}
