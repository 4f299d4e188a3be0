/* From text to a checked, normalised document. Normal form is what the revision is hashed from: sizes
 * are integers, groups a map, hashes lower case, the version is there; all else stays as written. */

#include "policy/policy_internal.h"

#include "base/json.h"
#include "base/num.h"
#include "base/text.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const struct knob limit_knobs[LIMIT_COUNT] = {
#define LIMIT(name, kind) [LIMIT_##name] = {#name, KNOB_##kind},
#include "policy/knobs.def"
#undef LIMIT
};

const struct knob param_knobs[PARAM_COUNT] = {
#define PARAM(name, kind) [PARAM_##name] = {#name, KNOB_##kind},
#include "policy/knobs.def"
#undef PARAM
};

int knob_find(const struct knob *knobs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(knobs[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

bool selector_is_glob(const char *selector)
{
    return strpbrk(selector, "*?[") != NULL;
}

/* --- places -------------------------------------------------------------------------------------- */

static void clean(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
    }
    text[utf8_floor(text, strlen(text))] = '\0';
}

struct place place_key(const struct place *parent, const char *name)
{
    struct place at;
    (void)snprintf(at.text, sizeof(at.text), "%.120s.%.120s", parent->text, name); /* cut: see clean */
    clean(at.text);
    return at;
}

struct place place_index(const struct place *parent, size_t index)
{
    struct place at;
    (void)snprintf(at.text, sizeof(at.text), "%.200s[%zu]", parent->text, index); /* cut on purpose */
    return at;
}

int fail_unknown(struct abx_error *err, const struct place *at, const char *what, const char *word,
                 const char *const *words, const char *tail)
{
    const char *near = suggest(word, words);

    return abx_fail(err, E_CONFIG, 0, "%s: unknown %s%s%s%s%s", at->text, what,
                    near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "", tail);
}

static int fail_expected(struct abx_error *err, const struct place *at, const char *what)
{
    return abx_fail(err, E_CONFIG, 0, "%s: expected %s", at->text, what);
}

static const char *type_word(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "text";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true/false";
    case JSON_NULL:
        break;
    }
    return "null";
}

static int want_object(const json_t *v, const struct place *at, struct abx_error *err)
{
    if (json_is_object(v))
        return 0;
    return abx_fail(err, E_CONFIG, 0, "%s: expected an object, got %s", at->text, type_word(v));
}

static int want_bool(const json_t *v, const struct place *at, struct abx_error *err)
{
    if (json_is_boolean(v))
        return 0;
    return abx_fail(err, E_CONFIG, 0, "%s: expected true or false, got %s", at->text, type_word(v));
}

static bool has_nul(const json_t *string)
{
    return strlen(json_string_value(string)) != json_string_length(string);
}

/* A list of strings without NUL. */
static int want_strings(const json_t *v, const struct place *at, struct abx_error *err)
{
    size_t i;
    const json_t *item;

    if (!json_is_array(v))
        return fail_expected(err, at, "a list of strings");
    json_array_foreach (v, i, item) {
        if (!json_is_string(item))
            return fail_expected(err, at, "a list of strings");
        if (has_nul(item))
            return abx_fail(err, E_CONFIG, 0, "%s: entry %zu holds a NUL byte", at->text, i);
    }
    return 0;
}

/* Every key of v is one of `words` (sorted, NULL-terminated). */
static int want_keys(const json_t *v, const struct place *at, const char *const *words,
                     struct abx_error *err)
{
    const char *key;
    json_t *item;

    json_object_foreach ((json_t *)v, key, item) {
        bool known = false;
        for (const char *const *w = words; *w && !known; w++)
            known = strcmp(*w, key) == 0;
        if (known)
            continue;
        struct place here = place_key(at, key);
        autobuf struct buf tail = BUF_INIT;
        buf_adds(&tail, "; allowed: ");
        for (const char *const *w = words; *w; w++) {
            buf_adds(&tail, w == words ? "" : ", ");
            buf_adds(&tail, *w);
        }
        const char *text = buf_str(&tail);
        return fail_unknown(err, &here, "key", key, words, text ? text : "");
    }
    return 0;
}

/* --- values -------------------------------------------------------------------------------------- */

/* "*", "ns:*", "ns:name" (name also with ":", ".", "-"), or a bare name (also with ".", "-"). */
static bool scope_valid(const char *s, size_t len)
{
    const char *colon = memchr(s, ':', len);
    size_t ns = colon ? (size_t)(colon - s) : len;

    if (len == 1 && s[0] == '*')
        return true;
    if (len == 0 || s[0] < 'a' || s[0] > 'z')
        return false;
    for (size_t i = 0; i < ns; i++) {
        bool word = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '_';
        if (!word && (colon || (s[i] != '.' && s[i] != '-')))
            return false;
    }
    if (!colon)
        return true;
    const char *name = colon + 1;
    size_t n = len - ns - 1;
    if (n == 1 && name[0] == '*')
        return true;
    if (n == 0 || name[0] < 'a' || name[0] > 'z')
        return false;
    for (size_t i = 0; i < n; i++) {
        bool word = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9');
        if (!word && !memchr("_:.-", name[i], 4))
            return false;
    }
    return true;
}

static int check_scopes(const json_t *v, const struct place *at, struct abx_error *err)
{
    size_t i;
    const json_t *item;

    if (!json_is_array(v))
        return fail_expected(err, at, "a list of scopes");
    json_array_foreach (v, i, item) {
        if (!json_is_string(item))
            return fail_expected(err, at, "a list of scopes");
        if (!scope_valid(json_string_value(item), json_string_length(item))) {
            char shown[80];
            (void)snprintf(shown, sizeof(shown), "%s", json_string_value(item)); /* cut on purpose */
            clean(shown);
            return abx_fail(err, E_CONFIG, 0, "%s: '%s' is not a scope", at->text, shown);
        }
    }
    return 0;
}

/* "5MB", " 1.5 kib ": the number is a double times the unit, cut, as the reference does it. */
static int parse_size(const char *s, int64_t *ret)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},           {"b", 1},           {"kb", 1e3},         {"mb", 1e6},
                 {"gb", 1e9},       {"kib", 1024.0},    {"mib", 1048576.0},  {"gib", 1073741824.0}};
    char number[64], unit[4] = "";
    size_t n, u = 0;

    s += strspn(s, " \t\n\r\f\v");
    n = strspn(s, "0123456789");
    if (n == 0)
        return -1;
    if (s[n] == '.') {
        size_t fraction = strspn(s + n + 1, "0123456789");
        if (fraction == 0)
            return -1;
        n += 1 + fraction;
    }
    if (n >= sizeof(number))
        return -1;
    memcpy(number, s, n);
    number[n] = '\0';
    s += n;
    s += strspn(s, " \t\n\r\f\v");
    for (; (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z'); s++) {
        if (u + 1 >= sizeof(unit))
            return -1;
        unit[u++] = (char)(*s | 0x20);
    }
    unit[u] = '\0';
    s += strspn(s, " \t\n\r\f\v");
    if (*s)
        return -1;

    double value;
    if (num_parse_double(number, &value) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        if (strcmp(unit, units[i].unit) != 0)
            continue;
        value *= units[i].factor;
        if (value < 1 || value >= 9223372036854775808.0)
            return -1;
        *ret = (int64_t)value;
        return 0;
    }
    return -1;
}

static int check_size(json_t *limits, const char *key, const json_t *v, const struct place *at,
                      struct abx_error *err)
{
    int64_t bytes;

    if (json_is_integer(v)) {
        if (json_integer_value(v) > 0)
            return 0;
        return abx_fail(err, E_CONFIG, 0, "%s: a size must be more than 0", at->text);
    }
    if (json_is_string(v) && !has_nul(v) && parse_size(json_string_value(v), &bytes) == 0) {
        if (json_object_set_new(limits, key, json_integer(bytes)) < 0)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return 0;
    }
    char shown[80] = "";
    if (json_is_string(v)) {
        (void)snprintf(shown, sizeof(shown), " '%s'", json_string_value(v)); /* cut on purpose */
        clean(shown);
    }
    return abx_fail(err, E_CONFIG, 0, "%s: invalid size%s (use an integer or e.g. '5MB', '1GiB')",
                    at->text, shown);
}

static const char *const limit_words[] = {
    "max_bytes",         "max_concurrency", "max_depth",        "max_duration_seconds",
    "max_entries",       "max_files",       "max_output_bytes", "max_processes",
    "max_request_bytes", "max_results",     "max_sessions",     "rate_per_minute",
    "timeout_seconds",   NULL};
_Static_assert(ARRAY_LEN(limit_words) == LIMIT_COUNT + 1, "a limit is missing here");

static const char *const param_words[] = {
    "allow_commands",  "allow_extensions", "allow_private", "allow_vars",
    "allowed_signals", "block_private_networks", "deny_commands", "deny_extensions",
    "deny_vars",       "env_deny",         "languages",     "loopback_ports",
    "overwrite",       "shells",           "url_allow",     "url_deny",
    NULL};
_Static_assert(ARRAY_LEN(param_words) == PARAM_COUNT + 1, "a param is missing here");

static int check_limits(json_t *limits, const struct place *at, struct abx_error *err)
{
    const char *key;
    json_t *v;
    void *next;

    if (want_object(limits, at, err) < 0 || want_keys(limits, at, limit_words, err) < 0)
        return -1;
    json_object_foreach_safe (limits, next, key, v) {
        const struct knob *knob = &limit_knobs[knob_find(limit_knobs, LIMIT_COUNT, key)];
        struct place here = place_key(at, key);
        if (knob->kind == KNOB_SIZE) {
            if (check_size(limits, knob->name, v, &here, err) < 0)
                return -1;
        } else if (knob->kind == KNOB_COUNT) {
            if (!json_is_integer(v) || json_integer_value(v) <= 0)
                return fail_expected(err, &here, "an integer more than 0");
        } else if (!json_is_number(v) || !(json_number_value(v) > 0)) {
            return fail_expected(err, &here, "a number more than 0");
        }
    }
    return 0;
}

static int check_params(const json_t *params, const struct place *at, struct abx_error *err)
{
    const char *key;
    json_t *v, *item;
    size_t i;

    if (want_object(params, at, err) < 0 || want_keys(params, at, param_words, err) < 0)
        return -1;
    json_object_foreach ((json_t *)params, key, v) {
        const struct knob *knob = &param_knobs[knob_find(param_knobs, PARAM_COUNT, key)];
        struct place here = place_key(at, key);
        if (knob->kind == KNOB_BOOL) {
            if (want_bool(v, &here, err) < 0)
                return -1;
        } else if (knob->kind == KNOB_SIGNALS) {
            if (!json_is_array(v))
                return fail_expected(err, &here, "a list of integers");
            json_array_foreach (v, i, item) {
                if (!json_is_integer(item))
                    return fail_expected(err, &here, "a list of integers");
            }
        } else if (want_strings(v, &here, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int check_paths(const json_t *paths, const struct place *at, struct abx_error *err)
{
    static const char *const words[] = {"allow", "deny", "read_only", "symlinks", NULL};
    const json_t *v, *item;
    size_t i;

    if (want_object(paths, at, err) < 0 || want_keys(paths, at, words, err) < 0)
        return -1;
    if ((v = json_object_get(paths, "allow"))) {
        struct place here = place_key(at, "allow");
        if (want_strings(v, &here, err) < 0)
            return -1;
        json_array_foreach (v, i, item) {
            if (json_string_value(item)[0] != '/')
                return abx_fail(err, E_CONFIG, 0, "%s: entry %zu must be an absolute directory",
                                here.text, i);
        }
    }
    if ((v = json_object_get(paths, "deny"))) {
        struct place here = place_key(at, "deny");
        if (want_strings(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(paths, "read_only"))) {
        struct place here = place_key(at, "read_only");
        if (want_bool(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(paths, "symlinks"))) {
        const char *word = json_is_string(v) ? json_string_value(v) : "";
        struct place here = place_key(at, "symlinks");
        if ((strcmp(word, "within") != 0 && strcmp(word, "never") != 0) || has_nul(v))
            return fail_expected(err, &here, "'within' or 'never'");
    }
    return 0;
}

static int check_rule(const json_t *rule, const struct place *at, struct abx_error *err)
{
    static const char *const words[] = {"audit", "enabled", "limits", "params", "paths", "scopes", NULL};
    json_t *v;

    if (want_object(rule, at, err) < 0 || want_keys(rule, at, words, err) < 0)
        return -1;
    if ((v = json_object_get(rule, "enabled"))) {
        struct place here = place_key(at, "enabled");
        if (want_bool(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(rule, "scopes"))) {
        struct place here = place_key(at, "scopes");
        if (check_scopes(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(rule, "audit"))) {
        const char *word = json_is_string(v) && !has_nul(v) ? json_string_value(v) : "";
        struct place here = place_key(at, "audit");
        if (strcmp(word, "off") != 0 && strcmp(word, "deny") != 0 && strcmp(word, "all") != 0)
            return fail_expected(err, &here, "'off', 'deny' or 'all'");
    }
    if ((v = json_object_get(rule, "paths"))) {
        struct place here = place_key(at, "paths");
        if (check_paths(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(rule, "limits"))) {
        struct place here = place_key(at, "limits");
        if (check_limits(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(rule, "params"))) {
        struct place here = place_key(at, "params");
        if (check_params(v, &here, err) < 0)
            return -1;
    }
    return 0;
}

/* --- sections ------------------------------------------------------------------------------------ */

static const char *const sorted_groups[] = {"agents",   "browser", "commands", "core",    "dev_tools",
                                            "file_ops", "process", "system",   "terminal", NULL};
_Static_assert(ARRAY_LEN(sorted_groups) == GROUP_COUNT + 1, "a group is missing here");

static int check_groups(json_t *root, const struct place *at, struct abx_error *err)
{
    json_t *groups = json_object_get(root, "groups"), *v;
    const char *key;
    size_t i;

    if (json_is_array(groups)) {
        json_t *map = json_object();
        json_array_foreach (groups, i, v) {
            if (!json_is_string(v) || has_nul(v)) {
                json_decref(map);
                return fail_expected(err, at, "a list of group names");
            }
            if (json_object_set_new(map, json_string_value(v), json_true()) < 0) {
                json_decref(map);
                return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
            }
        }
        if (json_object_set_new(root, "groups", map) < 0) /* takes map also on failure */
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        groups = map;
    }
    if (want_object(groups, at, err) < 0 || want_keys(groups, at, sorted_groups, err) < 0)
        return -1;
    json_object_foreach (groups, key, v) {
        struct place here = place_key(at, key);
        if (want_bool(v, &here, err) < 0)
            return -1;
        if (strcmp(key, "core") == 0 && json_is_false(v))
            return abx_fail(err, E_CONFIG, 0, "%s: the group core can't be turned off", here.text);
    }
    return 0;
}

static int check_endpoints(const json_t *endpoints, const struct place *at, struct abx_error *err)
{
    const char *selector;
    json_t *rule;

    if (want_object(endpoints, at, err) < 0)
        return -1;
    json_object_foreach ((json_t *)endpoints, selector, rule) {
        struct place here = place_key(at, selector);
        enum group g;
        if (check_rule(rule, &here, err) < 0)
            return -1;
        if (strncmp(selector, "group:", 6) == 0 && group_parse(selector + 6, &g) < 0)
            return fail_unknown(err, &here, "group", selector + 6, sorted_groups, "");
    }
    return 0;
}

static int check_token(json_t *token, const struct place *at, struct abx_error *err)
{
    static const char *const words[] = {"id", "scopes", "token_env", "token_sha256", NULL};
    json_t *v, *env, *hash;

    if (want_object(token, at, err) < 0 || want_keys(token, at, words, err) < 0)
        return -1;
    v = json_object_get(token, "id");
    if (!v || !json_is_string(v) || json_string_length(v) == 0 || has_nul(v)) {
        struct place here = place_key(at, "id");
        return fail_expected(err, &here, "text that is not empty");
    }
    v = json_object_get(token, "scopes");
    struct place scopes = place_key(at, "scopes");
    if (!v)
        return abx_fail(err, E_CONFIG, 0, "%s: required", scopes.text);
    if (check_scopes(v, &scopes, err) < 0)
        return -1;
    env = json_object_get(token, "token_env");
    hash = json_object_get(token, "token_sha256");
    if (!env == !hash)
        return abx_fail(err, E_CONFIG, 0,
                        "%s: exactly one of 'token_env' or 'token_sha256' is required "
                        "(a token itself never stands in a policy)",
                        at->text);
    if (env) {
        struct place here = place_key(at, "token_env");
        if (!json_is_string(env) || json_string_length(env) == 0 || has_nul(env) ||
            strchr(json_string_value(env), '='))
            return fail_expected(err, &here, "the name of an environment variable");
        return 0;
    }
    struct place here = place_key(at, "token_sha256");
    const char *text = json_is_string(hash) ? json_string_value(hash) : "";
    if (strlen(text) != 64 || strspn(text, "0123456789abcdefABCDEF") != 64 || has_nul(hash))
        return fail_expected(err, &here, "64 hexadecimal digits");
    char lower[SHA256_HEX];
    for (size_t i = 0; i < 64; i++)
        lower[i] = (char)(text[i] >= 'A' && text[i] <= 'F' ? text[i] | 0x20 : text[i]);
    lower[64] = '\0';
    if (json_string_set(hash, lower) < 0)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    return 0;
}

static int check_tokens(const json_t *tokens, const struct place *at, struct abx_error *err)
{
    autojson json_t *seen = json_object();
    size_t i;
    json_t *token;

    if (!json_is_array(tokens))
        return fail_expected(err, at, "a list");
    json_array_foreach (tokens, i, token) {
        struct place here = place_index(at, i);
        if (check_token(token, &here, err) < 0)
            return -1;
        const char *id = json_string_value(json_object_get(token, "id"));
        if (json_object_get(seen, id))
            return abx_fail(err, E_CONFIG, 0, "%s.id: used twice", here.text);
        if (json_object_set_new(seen, id, json_true()) < 0)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    return 0;
}

/* "*" or "scheme://host[:port]" (origin), "host[:port]" (host): no blanks, nothing after it. */
static int check_names(const json_t *v, const struct place *at, bool origin, struct abx_error *err)
{
    size_t i;
    const json_t *item;

    if (want_strings(v, at, err) < 0)
        return -1;
    json_array_foreach (v, i, item) {
        const char *s = json_string_value(item), *rest = s;
        bool fine = true;
        if (origin && strcmp(s, "*") != 0 && strcmp(s, "null") != 0) {
            rest = strstr(s, "://");
            fine = rest && rest != s;
            rest = fine ? rest + 3 : s;
        }
        for (const char *p = s; *p; p++)
            fine = fine && *p > 0x20 && *p != 0x7f;
        if (!fine || *rest == '\0' || strpbrk(rest, "/?#@"))
            return abx_fail(err, E_CONFIG, 0, "%s: entry %zu must look like %s", at->text, i,
                            origin ? "'https://example.com' or 'http://localhost:3000'"
                                   : "'example.com' or 'localhost:9000'");
    }
    return 0;
}

static int check_auth(const json_t *auth, const struct place *at, struct abx_error *err)
{
    static const char *const words[] = {"allow_anonymous", "allowed_hosts", "allowed_origins",
                                        "anonymous_scopes", "tokens",       NULL};
    const json_t *v;

    if (want_object(auth, at, err) < 0 || want_keys(auth, at, words, err) < 0)
        return -1;
    if ((v = json_object_get(auth, "tokens"))) {
        struct place here = place_key(at, "tokens");
        if (check_tokens(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(auth, "allow_anonymous"))) {
        struct place here = place_key(at, "allow_anonymous");
        if (want_bool(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(auth, "anonymous_scopes"))) {
        struct place here = place_key(at, "anonymous_scopes");
        if (check_scopes(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(auth, "allowed_origins"))) {
        struct place here = place_key(at, "allowed_origins");
        if (check_names(v, &here, true, err) < 0)
            return -1;
    }
    if ((v = json_object_get(auth, "allowed_hosts"))) {
        struct place here = place_key(at, "allowed_hosts");
        if (check_names(v, &here, false, err) < 0)
            return -1;
    }
    return 0;
}

static int check_preset(const char *name, const struct place *at, struct abx_error *err)
{
    if (preset_text(name))
        return 0;
    return fail_unknown(err, at, "preset", name, preset_names,
                        "; allowed: default, transfer-only, read-only, hardened, locked");
}

/* --- description as text ---------------------------------------------------------------------------- */

/* Text in quotes as Python's repr writes it. */
static void repr_string(struct buf *out, const char *s, size_t len)
{
    char quote = memchr(s, '\'', len) && !memchr(s, '"', len) ? '"' : '\'';

    buf_addc(out, quote);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == (unsigned char)quote || c == '\\')
            buf_addf(out, "\\%c", c);
        else if (c == '\n')
            buf_adds(out, "\\n");
        else if (c == '\r')
            buf_adds(out, "\\r");
        else if (c == '\t')
            buf_adds(out, "\\t");
        else if (c < 0x20 || c == 0x7f)
            buf_addf(out, "\\x%02x", c);
        else
            buf_addc(out, (char)c);
    }
    buf_addc(out, quote);
}

/* What Python's str() makes of a value: that text enters the revision. */
static void python_text(struct buf *out, const json_t *v)
{
    size_t i;
    json_t *item;
    const char *key;
    const char *separator = "";

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        buf_addc(out, '{');
        json_object_foreach ((json_t *)v, key, item) {
            buf_adds(out, separator);
            repr_string(out, key, strlen(key));
            buf_adds(out, ": ");
            python_text(out, item);
            separator = ", ";
        }
        buf_addc(out, '}');
        break;
    case JSON_ARRAY:
        buf_addc(out, '[');
        json_array_foreach (v, i, item) {
            buf_adds(out, separator);
            python_text(out, item);
            separator = ", ";
        }
        buf_addc(out, ']');
        break;
    case JSON_STRING:
        repr_string(out, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        buf_addf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL: {
        char text[NUM_DOUBLE_MAX];
        buf_add(out, text, num_double(json_real_value(v), text));
        break;
    }
    case JSON_TRUE:
        buf_adds(out, "True");
        break;
    case JSON_FALSE:
        buf_adds(out, "False");
        break;
    case JSON_NULL:
        buf_adds(out, "None");
        break;
    }
}

static int describe_as_text(json_t *root, struct abx_error *err)
{
    const json_t *v = json_object_get(root, "description");
    autobuf struct buf text = BUF_INIT;

    if (!v || json_is_string(v))
        return 0;
    python_text(&text, v);
    if (!buf_str(&text) ||
        json_object_set_new(root, "description", json_stringn(text.data, text.len)) < 0)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    return 0;
}

int doc_validate(json_t *root, struct abx_error *err)
{
    static const char *const words[] = {"auth",   "base_dir", "defaults", "description", "endpoints",
                                        "groups", "preset",   "version",  NULL};
    const struct place at = {"policy"};
    json_t *v;

    if (want_object(root, &at, err) < 0 || want_keys(root, &at, words, err) < 0)
        return -1;
    v = json_object_get(root, "version");
    if (!v) {
        if (json_object_set_new(root, "version", json_integer(1)) < 0)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    } else if (!json_is_integer(v) || json_integer_value(v) != 1) {
        return abx_fail(err, E_CONFIG, 0, "policy.version: unsupported; this server understands 1");
    }
    if (describe_as_text(root, err) < 0)
        return -1;
    if ((v = json_object_get(root, "preset"))) {
        struct place here = place_key(&at, "preset");
        if (!json_is_string(v) || has_nul(v))
            return fail_expected(err, &here, "the name of a preset");
        if (check_preset(json_string_value(v), &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(root, "base_dir"))) {
        struct place here = place_key(&at, "base_dir");
        if (!json_is_string(v) || has_nul(v) || json_string_value(v)[0] != '/')
            return fail_expected(err, &here, "an absolute path");
    }
    if (json_object_get(root, "groups")) {
        struct place here = place_key(&at, "groups");
        if (check_groups(root, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(root, "defaults"))) {
        struct place here = place_key(&at, "defaults");
        if (check_rule(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(root, "endpoints"))) {
        struct place here = place_key(&at, "endpoints");
        if (check_endpoints(v, &here, err) < 0)
            return -1;
    }
    if ((v = json_object_get(root, "auth"))) {
        struct place here = place_key(&at, "auth");
        if (check_auth(v, &here, err) < 0)
            return -1;
    }
    return 0;
}

/* --- public ---------------------------------------------------------------------------------------- */

/* Fills doc->token_envs from the tokens. */
static int collect_envs(struct policy_doc *doc, struct abx_error *err)
{
    const json_t *tokens = json_object_get(json_object_get(doc->json, "auth"), "tokens");
    const char **names = calloc(json_array_size(tokens) + 1, sizeof(*names));
    size_t i, n = 0;
    json_t *token;

    if (!names)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    json_array_foreach (tokens, i, token) {
        const char *env = json_string_value(json_object_get(token, "token_env"));
        if (env)
            names[n++] = env;
    }
    free(doc->token_envs);
    doc->token_envs = names;
    return 0;
}

/* Takes root. */
static int doc_new(json_t *root, struct policy_doc **ret, struct abx_error *err)
{
    struct policy_doc *doc = calloc(1, sizeof(*doc));

    if (!doc) {
        json_decref(root);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    doc->json = root;
    if (doc_validate(root, err) < 0 || collect_envs(doc, err) < 0) {
        policy_doc_free(doc);
        return -1;
    }
    *ret = doc;
    return 0;
}

int policy_doc_parse(const char *text, size_t len, bool yaml, const char *origin, struct policy_doc **ret,
                     struct abx_error *err)
{
    struct abx_error why;
    json_t *root = NULL;

    if (len > POLICY_MAX_BYTES)
        return abx_fail(err, E_CONFIG, 0, "%s: larger than 1 MiB", origin);
    if (yaml ? yaml_to_json(text, len, &root, &why) < 0 : json_parse(text, len, &root, &why) < 0) {
        if (why.kind == E_NO_MEMORY)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        static const char prefix[] = "Invalid JSON: ";
        const char *detail = why.message;
        if (strncmp(detail, prefix, sizeof(prefix) - 1) == 0)
            detail += sizeof(prefix) - 1;
        return abx_fail(err, E_CONFIG, 0, "%s is not valid %s: %s", origin, yaml ? "YAML" : "JSON", detail);
    }
    return doc_new(root, ret, err);
}

/* Up to POLICY_MAX_BYTES + 1 bytes of a file. */
static int read_all(const char *path, struct buf *out, struct abx_error *err)
{
    autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);

    if (fd < 0)
        return abx_fail(err, E_CONFIG, errno, "can't read policy file '%s': %s", path, strerror(errno));
    while (out->len <= POLICY_MAX_BYTES) {
        char *at = buf_reserve(out, 16 * KIB);
        if (!at)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        ssize_t n = read(fd, at, 16 * KIB);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return abx_fail(err, E_CONFIG, errno, "can't read policy file '%s': %s", path,
                            strerror(errno));
        if (n == 0)
            break;
        out->len += (size_t)n;
    }
    return 0;
}

int policy_doc_load(const char *path, struct policy_doc **ret, struct abx_error *err)
{
    autobuf struct buf text = BUF_INIT;
    bool yaml = text_ends_with(path, ".yaml") || text_ends_with(path, ".yml");

    if (read_all(path, &text, err) < 0)
        return -1;
    if (!buf_str(&text))
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    return policy_doc_parse(text.data, text.len, yaml, path, ret, err);
}

struct policy_doc *policy_doc_empty(void)
{
    struct policy_doc *doc = NULL;
    json_t *root = json_object();

    return root && doc_new(root, &doc, NULL) == 0 ? doc : NULL;
}

void policy_doc_free(struct policy_doc *doc)
{
    if (!doc)
        return;
    json_decref(doc->json);
    free(doc->token_envs);
    free(doc->env_hashes);
    crypto_wipe(doc->server_hash, sizeof(doc->server_hash));
    crypto_wipe(doc->kept_hash, sizeof(doc->kept_hash));
    free(doc);
}

static const char *lookup(const struct policy_source *src, const char *name)
{
    const char *value = src->getenv ? src->getenv(name) : getenv(name);
    return value && *value ? value : NULL;
}

const char *policy_source_file(const struct policy_source *src)
{
    const char *value;

    if (src->file)
        return src->file;
    if (src->preset || lookup(src, "ABX_SERVER_POLICY"))
        return NULL;
    if ((value = lookup(src, "ABX_SERVER_POLICY_FILE")))
        return value;
    return access(POLICY_WELL_KNOWN, F_OK) == 0 ? POLICY_WELL_KNOWN : NULL;
}

static int find_document(const struct policy_source *src, struct policy_doc **ret, struct abx_error *err)
{
    const char *file = policy_source_file(src), *text;

    if (file)
        return policy_doc_load(file, ret, err);
    if (!src->preset && (text = lookup(src, "ABX_SERVER_POLICY")))
        return policy_doc_parse(text, strlen(text), false, "ABX_SERVER_POLICY", ret, err);
    *ret = policy_doc_empty();
    return *ret ? 0 : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

int policy_doc_resolve(const struct policy_source *src, struct policy_doc **ret, struct abx_error *err)
{
    struct policy_doc *doc = NULL;

    if (src->preset && check_preset(src->preset, &(struct place){"--preset"}, err) < 0)
        return -1;
    if (find_document(src, &doc, err) < 0)
        return -1;
    if (src->preset && json_object_set_new(doc->json, "preset", json_string(src->preset)) < 0) {
        policy_doc_free(doc);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    *ret = doc;
    return 0;
}

/* The identity "server", unless the document has tokens of its own. */
static int add_server_identity(struct policy_doc *doc, const uint8_t hash[SHA256_LEN], struct abx_error *err)
{
    json_t *auth = json_object_get(doc->json, "auth");

    if (json_array_size(json_object_get(auth, "tokens")) > 0)
        return 0;
    if (!auth) {
        auth = json_object();
        if (json_object_set_new(doc->json, "auth", auth) < 0)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    json_t *tokens = json_pack("[{s:s, s:[s], s:s}]", "id", SERVER_TOKEN_ID, "scopes", "*", "token_env",
                               SERVER_TOKEN_ENV);
    if (!tokens || json_object_set_new(auth, "tokens", tokens) < 0)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    if (collect_envs(doc, err) < 0)
        return -1;
    memcpy(doc->server_hash, hash, SHA256_LEN);
    doc->has_server_token = true;
    return 0;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

int policy_token_text(const char *name, const char *value, const char **ret, size_t *ret_len,
                      struct abx_error *err)
{
    const char *from = value ? value : "", *to = from + strlen(from);

    while (from < to && is_blank(*from))
        from++;
    while (to > from && is_blank(to[-1]))
        to--;
    if (value && *value && from == to)
        return abx_fail(err, E_CONFIG, 0, "the token in '%s' is nothing but blanks", name);
    for (const char *p = from; p < to; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            return abx_fail(err, E_CONFIG, 0,
                            "the token in '%s' has a line break or another control character in it, so nobody "
                            "could send it", name);
    *ret = from;
    *ret_len = (size_t)(to - from);
    return 0;
}

int policy_doc_hash_tokens(struct policy_doc *doc, struct abx_error *err)
{
    size_t n = 0;

    while (doc->token_envs[n])
        n++;
    struct env_hash *hashes = calloc(n + 1, sizeof(*hashes));
    if (!hashes)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const char *value;
        size_t len;
        if (policy_token_text(doc->token_envs[i], getenv(doc->token_envs[i]), &value, &len, err) < 0) {
            free(hashes);
            return -1;
        }
        hashes[i].set = len > 0;
        if (hashes[i].set)
            sha256(value, len, hashes[i].hash);
    }
    free(doc->env_hashes);
    doc->env_hashes = hashes;
    return 0;
}

int policy_doc_add_server_token(struct policy_doc *doc, const char *token, struct abx_error *err)
{
    uint8_t hash[SHA256_LEN];
    size_t len;

    if (policy_token_text(SERVER_TOKEN_ENV, token, &token, &len, err) < 0)
        return -1;
    if (len == 0)
        return 0;
    sha256(token, len, hash);
    /* Kept even when the document has tokens: a later version of it may have none. */
    memcpy(doc->kept_hash, hash, SHA256_LEN);
    doc->has_kept_hash = true;
    return add_server_identity(doc, hash, err);
}

int policy_doc_keep_server_token(struct policy_doc *doc, const struct policy_doc *from, struct abx_error *err)
{
    if (!from->has_kept_hash)
        return 0;
    memcpy(doc->kept_hash, from->kept_hash, SHA256_LEN);
    doc->has_kept_hash = true;
    return add_server_identity(doc, from->kept_hash, err);
}

const char *const *policy_doc_token_envs(const struct policy_doc *doc)
{
    return doc->token_envs;
}

const char *policy_doc_base_dir(const struct policy_doc *doc)
{
    return json_string_value(json_object_get(doc->json, "base_dir"));
}
