#include "base/env.h"

#include "base/buf.h"
#include "base/crypto.h"
#include "base/own.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Entries are "NAME=value" heap strings in order; a few dozen, so a walk finds them. */
struct env_map {
    char **entries;
    size_t n, cap;
    char **secrets; /* names, beside ABX_SERVER_* */
    size_t n_secrets;
};

static const char *const never_kept[] = {"ABX_SERVER_TOKEN", "ABX_SERVER_POLICY", "ABX_SERVER_POLICY_FILE"};

static bool is_name(const char *entry, const char *name)
{
    size_t n = strlen(name);
    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

static size_t find(const struct env_map *e, const char *name)
{
    for (size_t i = 0; i < e->n; i++)
        if (is_name(e->entries[i], name))
            return i;
    return SIZE_MAX;
}

static int append(struct env_map *e, char *entry)
{
    if (e->n == e->cap) {
        size_t cap = e->cap ? e->cap * 2 : 64;
        char **grown = realloc(e->entries, cap * sizeof *grown);
        if (!grown)
            return -1;
        e->entries = grown;
        e->cap = cap;
    }
    e->entries[e->n++] = entry;
    return 0;
}

bool env_is_secret_name(const struct env_map *e, const char *name)
{
    if (strncasecmp(name, "ABX_SERVER_", 11) == 0)
        return true;
    for (size_t i = 0; i < e->n_secrets; i++)
        if (strcmp(e->secrets[i], name) == 0)
            return true;
    return false;
}

/* Children keep ABX_SERVER_BASE_DIR and the like (03, "Environment of children"); only what holds a
 * secret or the policy goes. */
static bool dropped(const struct env_map *e, const char *entry)
{
    for (size_t i = 0; i < ARRAY_LEN(never_kept); i++)
        if (is_name(entry, never_kept[i]))
            return true;
    for (size_t i = 0; i < e->n_secrets; i++)
        if (is_name(entry, e->secrets[i]))
            return true;
    return false;
}

static bool holds_secret(const struct env_map *e, const char *entry)
{
    if (is_name(entry, "ABX_SERVER_TOKEN"))
        return true;
    for (size_t i = 0; i < e->n_secrets; i++)
        if (is_name(entry, e->secrets[i]))
            return true;
    return false;
}

struct env_map *env_new(char **block, const char *const *secrets)
{
    struct env_map *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    size_t n = 0;
    while (secrets && secrets[n])
        n++;
    e->secrets = calloc(n + 1, sizeof *e->secrets);
    if (!e->secrets)
        goto fail;
    for (size_t i = 0; i < n; i++) {
        e->secrets[i] = strdup(secrets[i]);
        if (!e->secrets[i])
            goto fail;
        e->n_secrets++;
    }
    for (char **at = block; *at; at++) {
        char *value = strchr(*at, '=');
        if (!value)
            continue;
        if (dropped(e, *at)) {
            if (holds_secret(e, *at))
                crypto_wipe(value + 1, strlen(value + 1));
            continue;
        }
        char *copy = strdup(*at);
        if (!copy || append(e, copy) < 0) {
            free(copy);
            goto fail;
        }
    }
    return e;
fail:
    env_free(e);
    return NULL;
}

void env_free(struct env_map *e)
{
    if (!e)
        return;
    for (size_t i = 0; i < e->n; i++)
        free(e->entries[i]);
    for (size_t i = 0; i < e->n_secrets; i++)
        free(e->secrets[i]);
    free(e->entries);
    free(e->secrets);
    free(e);
}

const char *env_get(const struct env_map *e, const char *name)
{
    size_t i = find(e, name);
    return i == SIZE_MAX ? NULL : e->entries[i] + strlen(name) + 1;
}

static char *join(const char *name, const char *value)
{
    struct buf b = BUF_INIT;
    buf_adds(&b, name);
    buf_addc(&b, '=');
    buf_adds(&b, value);
    char *entry = buf_take(&b, NULL);
    if (!entry)
        buf_done(&b);
    return entry;
}

int env_set(struct env_map *e, const char *name, const char *value)
{
    char *entry = join(name, value);
    if (!entry)
        return -1;
    size_t i = find(e, name);
    if (i != SIZE_MAX) {
        free(e->entries[i]);
        e->entries[i] = entry;
        return 0;
    }
    if (append(e, entry) < 0) {
        free(entry);
        return -1;
    }
    return 0;
}

void env_unset(struct env_map *e, const char *name)
{
    size_t i = find(e, name);
    if (i == SIZE_MAX)
        return;
    free(e->entries[i]);
    memmove(&e->entries[i], &e->entries[i + 1], (e->n - i - 1) * sizeof *e->entries);
    e->n--;
}

size_t env_cost(const char *name, const char *value)
{
    return strlen(name) + strlen(value) + 2 + sizeof(char *);
}

size_t env_total(const struct env_map *e)
{
    size_t total = 0;
    for (size_t i = 0; i < e->n; i++)
        total += strlen(e->entries[i]) + 1 + sizeof(char *);
    return total;
}

size_t env_total_max(void)
{
    /* A quarter of the stack's limit, and never less than 128 KiB; with a large stack the kernel has a bound of its
     * own that sysconf(3) does not know (6 MiB). */
    long room = sysconf(_SC_ARG_MAX);
    return (size_t)(room > 0 && room < 2 * 1024 * 1024 ? room : 2 * 1024 * 1024) / 2;
}

void env_each(const struct env_map *e, void (*fn)(void *data, const char *name, const char *value),
              void *data)
{
    for (size_t i = 0; i < e->n; i++) {
        const char *eq = strchr(e->entries[i], '=');
        autofree char *name = strndup(e->entries[i], (size_t)(eq - e->entries[i]));
        if (name)
            fn(data, name, eq + 1);
    }
}

int env_add_secrets(struct env_map *e, const char *const *names)
{
    for (; names && *names; names++) {
        if (env_is_secret_name(e, *names))
            continue;
        char **grown = realloc(e->secrets, (e->n_secrets + 1) * sizeof *grown);
        if (!grown)
            return -1;
        e->secrets = grown;
        if (!(e->secrets[e->n_secrets] = strdup(*names)))
            return -1;
        e->n_secrets++;
        env_unset(e, *names);
    }
    return 0;
}

char **env_block(const struct env_map *e, const json_t *overlay)
{
    json_t *vars = (json_t *)overlay; /* jansson's iterators take no const; nothing is changed */
    size_t n = e->n, bytes = 0;
    for (size_t i = 0; i < e->n; i++)
        bytes += strlen(e->entries[i]) + 1;
    for (void *it = vars ? json_object_iter(vars) : NULL; it; it = json_object_iter_next(vars, it)) {
        bytes += strlen(json_object_iter_key(it)) + strlen(json_string_value(json_object_iter_value(it))) + 2;
        n++;
    }
    char **out = malloc((n + 1) * sizeof *out + bytes);
    if (!out)
        return NULL;
    char *at = (char *)(out + n + 1);
    size_t k = 0;
    for (size_t i = 0; i < e->n; i++) {
        const char *eq = strchr(e->entries[i], '=');
        char name[256];
        size_t len = (size_t)(eq - e->entries[i]);
        if (vars && len < sizeof name) {
            memcpy(name, e->entries[i], len);
            name[len] = '\0';
            if (json_object_get(vars, name))
                continue;
        }
        size_t size = strlen(e->entries[i]) + 1;
        memcpy(at, e->entries[i], size);
        out[k++] = at;
        at += size;
    }
    for (void *it = vars ? json_object_iter(vars) : NULL; it; it = json_object_iter_next(vars, it)) {
        const char *name = json_object_iter_key(it), *value = json_string_value(json_object_iter_value(it));
        out[k++] = at;
        at = stpcpy(at, name);
        *at++ = '=';
        at = stpcpy(at, value) + 1;
    }
    out[k] = NULL;
    return out;
}
