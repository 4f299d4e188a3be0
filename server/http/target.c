#include "http/target.h"

#include "base/own.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

char *target_path(struct arena *a, const char *target, char **ret_query)
{
    const char *t = target;
    *ret_query = NULL;
    if (*t != '/') { /* absolute-form: scheme://authority is dropped */
        const char *sep = strstr(t, "://");
        if (!sep || sep == t)
            return NULL;
        for (const char *p = t; p < sep; p++)
            if ((*p | 0x20) < 'a' || (*p | 0x20) > 'z')
                return NULL;
        t = sep + 3 + strcspn(sep + 3, "/?#");
    }
    size_t len = strcspn(t, "?#");
    if (t[len] == '?') {
        const char *query = t + len + 1;
        *ret_query = arena_strndup(a, query, strcspn(query, "#"));
        if (!*ret_query)
            return NULL;
    }
    size_t last = len;
    while (last > 0 && t[last - 1] != '/')
        last--;
    const char *suffix = memchr(t + last, ';', len - last);
    if (suffix)
        len = (size_t)(suffix - t);
    while (len > 1 && t[len - 1] == '/')
        len--;
    size_t lead = 0;
    while (lead + 1 < len && t[lead + 1] == '/')
        lead++;
    return len == 0 ? arena_strdup(a, "/") : arena_strndup(a, t + lead, len - lead);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* out may be s. Returns the length; adds the NUL. */
static size_t decode(const char *s, size_t len, bool plus, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        int high, low;
        if (plus && s[i] == '+') {
            out[n++] = ' ';
        } else if (s[i] == '%' && i + 2 < len && (high = hex_value(s[i + 1])) >= 0 &&
                   (low = hex_value(s[i + 2])) >= 0) {
            out[n++] = (char)(high << 4 | low);
            i += 2;
        } else {
            out[n++] = s[i];
        }
    }
    out[n] = '\0';
    return n;
}

char *percent_decode(struct arena *a, const char *s, size_t len, size_t *ret_len)
{
    char *out = arena_alloc(a, len + 1);
    if (out)
        *ret_len = decode(s, len, false, out);
    return out;
}

/* As text: bad UTF-8 replaced, in the arena. */
static const char *as_text(struct arena *a, const char *raw, size_t len, size_t *ret_len)
{
    *ret_len = len;
    if (utf8_valid(raw, len))
        return raw;
    autofree char *fixed = utf8_replace(raw, len, ret_len);
    return fixed ? arena_strndup(a, fixed, *ret_len) : NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct pair *)a)->name, ((const struct pair *)b)->name);
}

int query_parse(struct arena *a, char *text, struct pair **ret, size_t *ret_n, struct abx_error *err)
{
    *ret = NULL;
    *ret_n = 0;
    if (!text)
        return 0;
    size_t most = 1, n = 0;
    for (const char *p = text; *p; p++)
        most += *p == '&';
    struct pair *pairs = arena_alloc(a, most * sizeof *pairs);
    if (!pairs)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    for (char *at = text, *next; at; at = next) {
        next = strchr(at, '&');
        if (next)
            *next++ = '\0';
        char *value = strchr(at, '=');
        if (!value || !value[1])
            continue;
        *value++ = '\0';
        struct pair *p = &pairs[n];
        size_t name_len = decode(at, strlen(at), true, at);
        p->raw = value;
        p->raw_len = decode(value, strlen(value), true, value);
        p->name = as_text(a, at, name_len, &name_len);
        p->value = as_text(a, value, p->raw_len, &p->len);
        if (!p->name || !p->value)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        n++;
    }
    /* Order matters to nobody: names are single after this. */
    if (n > 1)
        qsort(pairs, n, sizeof *pairs, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(pairs[i - 1].name, pairs[i].name) == 0)
            return abx_fail(err, E_DUPLICATE_PARAMETER, 0, "A query parameter may be given once only");
    *ret = pairs;
    *ret_n = n;
    return 0;
}
