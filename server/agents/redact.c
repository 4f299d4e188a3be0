#include "agents/redact.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/own.h"
#include "base/utf8.h"

#include <string.h>
#include <strings.h>

#define MARK "[REDACTED]"
#define SECRET_MIN 6
#define TOKEN_MIN 16
#define VALUE_MIN 8
#define HOLD_MAX                                                                                   \
    8192 /* a "token" longer than this is shown as one mark and the rest swallowed as text */

struct redact {
    char **secrets; /* longest first */
    size_t n, longest;
};

static const struct shape {
    const char *prefix;
    bool any_case;
    bool blank_after; /* "bearer": blanks between word and token */
} token_shapes[] = {
    {"sk-", false, false},  {"ghp_", false, false}, {"gho_", false, false},
    {"ghs_", false, false}, {"ghu_", false, false}, {"github_pat_", false, false},
    {"bearer", true, true},
};
static const char *const value_words[] = {"x-api-key", "api_key", "api-key", "apikey",
                                          "authorization"};

struct redact *redact_new(void) { return calloc(1, sizeof(struct redact)); }

void redact_free(struct redact *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++) {
        crypto_wipe(r->secrets[i], strlen(r->secrets[i]));
        free(r->secrets[i]);
    }
    free(r->secrets);
    free(r);
}

static void add_one(struct redact *r, const char *text, size_t len)
{
    if (len < SECRET_MIN)
        return;
    for (size_t i = 0; i < r->n; i++)
        if (strlen(r->secrets[i]) == len && memcmp(r->secrets[i], text, len) == 0)
            return;
    char **more = realloc(r->secrets, (r->n + 1) * sizeof(*more));
    if (!more)
        return;
    r->secrets = more;
    char *copy = strndup(text, len);
    if (!copy)
        return;
    size_t at = r->n;
    while (at > 0 && strlen(more[at - 1]) < len) {
        more[at] = more[at - 1];
        at--;
    }
    more[at] = copy;
    r->n++;
    if (len > r->longest)
        r->longest = len;
}

void redact_add(struct redact *r, const char *secret)
{
    size_t len = strlen(secret);
    if (len < SECRET_MIN)
        return;
    add_one(r, secret, len);
    autobuf struct buf url = BUF_INIT, plus = BUF_INIT, esc = BUF_INIT;
    for (const char *p = secret; *p; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                     (*p >= '0' && *p <= '9') || strchr("-_.~", *p);
        if (plain)
            buf_addc(&url, *p);
        else
            buf_addf(&url, "%%%02X", (unsigned char)*p);
        if (*p == ' ')
            buf_addc(&plus, '+');
        else if (plain)
            buf_addc(&plus, *p);
        else
            buf_addf(&plus, "%%%02X", (unsigned char)*p);
    }
    json_write_string(&esc, secret, len);
    if (buf_str(&url) && buf_str(&plus) && buf_str(&esc)) {
        add_one(r, url.data, url.len);
        add_one(r, plus.data, plus.len);
        add_one(r, esc.data + 1, esc.len - 2);
        crypto_wipe(url.data, url.len);
        crypto_wipe(plus.data, plus.len);
        crypto_wipe(esc.data, esc.len);
    }
}

static bool is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '~' || c == '+' || c == '/' || c == '=';
}

static bool is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_blank_char(char c) { return c == ' ' || c == '\t'; }

/* A value that is none: our mark, or the name of a variable that carries a header (runner.c). */
static bool is_public(const char *s, size_t n)
{
    static const char *const begins[] = {MARK, "ABX_MCP_"};
    for (size_t i = 0; i < ARRAY_LEN(begins); i++)
        if (n >= strlen(begins[i]) && memcmp(s, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

/* What stands at `at`. */
enum look { LOOK_NO, LOOK_YES, LOOK_MAYBE };

/* Compares text[at..len) with word as far as it goes. */
static enum look starts(const char *text, size_t len, size_t at, const char *word, bool any_case)
{
    size_t n = strlen(word), have = len - at < n ? len - at : n;
    bool same =
        any_case ? strncasecmp(text + at, word, have) == 0 : memcmp(text + at, word, have) == 0;
    return !same ? LOOK_NO : have == n ? LOOK_YES : LOOK_MAYBE;
}

/* Is there something to hide at `at`? YES: [*from, *to) is it. MAYBE: more text could make it so.
 */
static enum look look_at(const struct redact *r, const char *text, size_t len, size_t at,
                         char before, bool final, size_t *from, size_t *to)
{
    enum look result = LOOK_NO;
    for (size_t i = 0; r && i < r->n; i++) {
        enum look l = starts(text, len, at, r->secrets[i], false);
        if (l == LOOK_YES) {
            /* A longer one (sorted before) that may still come wins: wait for it. */
            if (result == LOOK_MAYBE && !final)
                return LOOK_MAYBE;
            *from = at;
            *to = at + strlen(r->secrets[i]);
            return LOOK_YES;
        }
        if (l == LOOK_MAYBE)
            result = LOOK_MAYBE;
    }
    char prev = at ? text[at - 1] : before;
    if (!is_word_char(prev)) {
        for (size_t i = 0; i < ARRAY_LEN(token_shapes); i++) {
            const struct shape *sh = &token_shapes[i];
            enum look l = starts(text, len, at, sh->prefix, sh->any_case);
            if (l == LOOK_MAYBE)
                result = LOOK_MAYBE;
            if (l != LOOK_YES)
                continue;
            size_t p = at + strlen(sh->prefix);
            if (sh->blank_after) {
                size_t blanks = p;
                while (p < len && is_blank_char(text[p]))
                    p++;
                if (p == blanks && p < len)
                    continue;
            }
            size_t start = p;
            while (p < len && is_token_char(text[p]))
                p++;
            if (p == len && !final && p - at < HOLD_MAX)
                return LOOK_MAYBE;
            if (p - start >= TOKEN_MIN) {
                *from = at;
                *to = p;
                return LOOK_YES;
            }
        }
    }
    /* also inside a word: MY_API_KEY, myapikey */
    for (size_t i = 0; i < ARRAY_LEN(value_words); i++) {
        enum look l = starts(text, len, at, value_words[i], true);
        if (l == LOOK_MAYBE)
            result = LOOK_MAYBE;
        if (l != LOOK_YES)
            continue;
        size_t p = at + strlen(value_words[i]);
        if (p < len && (text[p] == '"' || text[p] == '\''))
            p++;
        else if (p + 1 < len && text[p] == '\\' && text[p + 1] == '"')
            p += 2;
        while (p < len && is_blank_char(text[p]))
            p++;
        if (p == len && !final)
            return LOOK_MAYBE;
        if (p >= len || (text[p] != ':' && text[p] != '='))
            continue;
        p++;
        while (p < len &&
               (is_blank_char(text[p]) || text[p] == '"' || text[p] == '\'' || text[p] == '\\'))
            p++;
        size_t start = p;
        while (p < len && !strchr(" \t\r\n\"',;\\}", text[p]))
            p++;
        if (p == len && !final && p - at < HOLD_MAX)
            return LOOK_MAYBE;
        if (p - start >= VALUE_MIN && !is_public(text + start, p - start)) {
            *from = start;
            *to = p;
            return LOOK_YES;
        }
    }
    return result;
}

/* Could anything begin with this byte? Keeps the common case at one table look-up a byte. */
static void first_bytes(const struct redact *r, bool set[256])
{
    memset(set, 0, 256 * sizeof(bool));
    for (const char *p = "sgbBxXaA"; *p; p++)
        set[(unsigned char)*p] = true;
    for (size_t i = 0; r && i < r->n; i++)
        set[(unsigned char)r->secrets[i][0]] = true;
}

/* Returns how much of text was dealt with. */
static size_t scan(const struct redact *r, const char *text, size_t len, char before, bool final,
                   struct buf *out)
{
    bool set[256];
    first_bytes(r, set);
    size_t shown = 0, at = 0;
    while (at < len) {
        size_t from, to;
        if (!set[(unsigned char)text[at]]) {
            at++;
            continue;
        }
        enum look l = look_at(r, text, len, at, before, final, &from, &to);
        if (l == LOOK_YES) {
            buf_add(out, text + shown, from - shown);
            buf_adds(out, MARK);
            shown = at = to;
            continue;
        }
        if (l == LOOK_MAYBE && !final)
            break;
        at++;
    }
    buf_add(out, text + shown, at - shown);
    return at;
}

void redact_text(const struct redact *r, const char *text, size_t len, struct buf *out)
{
    scan(r, text, len, 0, true, out);
}

char *redact_copy(const struct redact *r, const char *text)
{
    struct buf out = BUF_INIT;
    redact_text(r, text, strlen(text), &out);
    return buf_take(&out, NULL);
}

json_t *redact_json(const struct redact *r, const json_t *value)
{
    if (json_is_string(value)) {
        autobuf struct buf out = BUF_INIT;
        redact_text(r, json_string_value(value), json_string_length(value), &out);
        const char *text = buf_str(&out);
        return text ? json_stringn_nocheck(text, out.len) : json_string("");
    }
    if (json_is_array(value)) {
        json_t *list = json_array();
        size_t i;
        json_t *v;
        json_array_foreach((json_t *)value, i, v) json_array_append_new(list, redact_json(r, v));
        return list;
    }
    if (json_is_object(value)) {
        json_t *map = json_object();
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)value, key, v)
        {
            autofree char *name = redact_copy(r, key);
            autobuf struct buf probe = BUF_INIT;
            /* {"api_key": "..."}: the name gives the value away */
            if (json_is_string(v)) {
                buf_addf(&probe, "%s: ", key);
                size_t head = probe.len;
                buf_add(&probe, json_string_value(v), json_string_length(v));
                autobuf struct buf clean = BUF_INIT;
                if (buf_str(&probe)) {
                    scan(r, probe.data, probe.len, 0, true, &clean);
                    if (buf_str(&clean) && clean.len >= head &&
                        memcmp(clean.data, probe.data, head) == 0) {
                        json_object_set_new_nocheck(
                            map, name ? name : key,
                            json_stringn_nocheck(clean.data + head, clean.len - head));
                        continue;
                    }
                }
            }
            json_object_set_new_nocheck(map, name ? name : key, redact_json(r, v));
        }
        return map;
    }
    return json_incref((json_t *)value);
}

void redact_feed(const struct redact *r, struct redact_stream *s, const char *text, size_t len,
                 struct buf *out)
{
    buf_add(&s->held, text, len);
    if (s->held.failed || !s->held.len)
        return;
    size_t start = out->len;
    size_t done = scan(r, s->held.data, s->held.len, s->before, false, out);
    if (done)
        s->before = s->held.data[done - 1];
    buf_consume(&s->held, done);
    (void)start;
}

void redact_finish(const struct redact *r, struct redact_stream *s, struct buf *out)
{
    if (s->held.len && !s->held.failed)
        scan(r, s->held.data, s->held.len, s->before, true, out);
    buf_reset(&s->held);
}

void redact_stream_done(struct redact_stream *s)
{
    if (s->held.data)
        crypto_wipe(s->held.data, s->held.cap);
    buf_done(&s->held);
}
