#include "registry/spec.h"

#include "base/json.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_NAME 200
#define MAX_ARGS 1000

static const char *const type_names[] = {
    [ARG_STRING] = "string", [ARG_INTEGER] = "integer",      [ARG_FLOAT] = "float",
    [ARG_BOOLEAN] = "boolean", [ARG_STRINGS] = "string_array",
};

/* --- reading -------------------------------------------------------------------------------------- */

static char *take_text(struct wire_reader *r)
{
    size_t len;
    const char *text = wire_get_text(r, &len);
    char *copy = utf8_replace(text, strlen(text), NULL);
    if (!copy)
        r->bad = true;
    return copy;
}

static char **take_scopes(struct wire_reader *r)
{
    uint32_t n = wire_get_u32(r);
    if (n > 100)
        r->bad = true;
    char **scopes = r->bad ? NULL : calloc(n + 1, sizeof(*scopes));
    for (uint32_t i = 0; scopes && i < n; i++)
        scopes[i] = take_text(r);
    if (!scopes)
        r->bad = true;
    return scopes;
}

static void free_scopes(char **scopes)
{
    for (size_t i = 0; scopes && scopes[i]; i++)
        free(scopes[i]);
    free(scopes);
}

/* 1..200 bytes, something to see in it, nothing that breaks a path segment or a log. */
static bool is_name(const char *s)
{
    bool seen = false;
    size_t len = strlen(s);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f || s[i] == '/')
            return false;
        seen = seen || s[i] != ' ';
    }
    return seen && len <= MAX_NAME && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

static bool is_scope(const char *s)
{
    size_t n = 0;
    for (; s[n]; n++)
        if (!islower((unsigned char)s[n]) && !isdigit((unsigned char)s[n]) && !strchr("_-.:*", s[n]))
            return false;
    return n > 0;
}

static int check_common(const char *what, const char *name, char **scopes, double timeout, struct abx_error *err)
{
    for (size_t i = 0; scopes[i]; i++)
        if (!is_scope(scopes[i]))
            return abx_fail(err, E_CONFIG, 0, "%s '%s': '%s' is not a scope", what, name, scopes[i]);
    if (!(timeout >= 0 && timeout < 1e9))
        return abx_fail(err, E_CONFIG, 0, "%s '%s': the timeout must be a number of seconds above 0", what, name);
    return 0;
}

static int convert(const struct arg_spec *a, const json_t *value, struct wire_buf *out, struct abx_error *err);

static int check_fallback(const struct command_spec *c, struct arg_spec *a, struct abx_error *err)
{
    struct abx_error why;
    if (a->type == ARG_STRINGS) {
        if (json_parse(a->fallback, strlen(a->fallback), &a->fallback_value, &why) < 0)
            return abx_fail(err, E_CONFIG, 0, "command '%s': the fallback of '%s' is not a JSON array of strings", c->name,
                            a->name);
    } else {
        a->fallback_value = json_string(a->fallback);
    }
    struct wire_buf scratch = {0};
    int r = convert(a, a->fallback_value, &scratch, &why);
    wire_done(&scratch);
    return r == 0 ? 0 : abx_fail(err, E_CONFIG, 0, "command '%s': the fallback of '%s' is not of type %s: '%s'", c->name,
                                 a->name, type_names[a->type], a->fallback);
}

static int read_arg(struct wire_reader *r, struct command_spec *c, struct abx_error *err)
{
    struct arg_spec *a = &c->args[c->n_args++];
    uint32_t type = wire_get_u32(r);
    a->name = take_text(r);
    uint32_t flags = wire_get_u32(r);
    char *fallback = take_text(r);
    a->description = take_text(r);
    if (flags & 2)
        a->fallback = fallback;
    else
        free(fallback);
    if (r->bad || type < ARG_STRING || type > ARG_STRINGS)
        return abx_fail(err, E_CONFIG, 0, "command '%s': unreadable argument", c->name);
    a->type = (enum arg_type)type;
    a->required = flags == 0;
    if (!a->name[0])
        return abx_fail(err, E_CONFIG, 0, "command '%s': an argument without a name", c->name);
    for (size_t i = 0; i + 1 < c->n_args; i++)
        if (strcmp(c->args[i].name, a->name) == 0)
            return abx_fail(err, E_CONFIG, 0, "command '%s': two arguments named '%s'", c->name, a->name);
    return a->fallback ? check_fallback(c, a, err) : 0;
}

int command_spec_read(struct wire_reader *r, struct command_spec *c, struct abx_error *err)
{
    *c = (struct command_spec){0};
    c->name = take_text(r);
    c->description = take_text(r);
    c->flags = wire_get_u32(r);
    c->timeout = wire_get_f64(r);
    c->scopes = take_scopes(r);
    uint32_t n = wire_get_u32(r);
    if (!r->bad && n <= MAX_ARGS)
        c->args = calloc(n + 1, sizeof(*c->args));
    int result = c->args ? 0 : abx_fail(err, E_CONFIG, 0, "an unreadable command");
    if (result == 0 && !is_name(c->name))
        result = abx_fail(err, E_CONFIG, 0, "'%s' can't be a command's name (1 to 200 bytes, not blank, no '/' and no control characters)",
                          c->name);
    if (result == 0)
        result = check_common("command", c->name, c->scopes, c->timeout, err);
    for (uint32_t i = 0; i < n && result == 0; i++)
        result = read_arg(r, c, err);
    if (result < 0)
        command_spec_done(c);
    return result;
}

void command_spec_done(struct command_spec *c)
{
    for (size_t i = 0; i < c->n_args; i++) {
        free(c->args[i].name);
        free(c->args[i].description);
        free(c->args[i].fallback);
        json_decref(c->args[i].fallback_value);
    }
    free(c->args);
    free(c->name);
    free(c->description);
    free_scopes(c->scopes);
    *c = (struct command_spec){0};
}

static bool is_path(const char *p)
{
    if (p[0] != '/' || strlen(p) > 1000 || (p[1] && p[strlen(p) - 1] == '/') || strstr(p, "//"))
        return false;
    for (const char *s = p; *s; s++) {
        if ((unsigned char)*s <= 0x20 || *s == 0x7f || *s == '?' || *s == '#' || *s == ';')
            return false;
        if (*s == '{') {
            size_t n = strcspn(s + 1, "{}/");
            if (n == 0 || s[1 + n] != '}')
                return false;
            s += n + 1;
        } else if (*s == '}') {
            return false;
        }
    }
    return true;
}

static int method_parse(const char *name, enum method *ret)
{
    static const enum method known[] = {M_GET, M_POST, M_PUT, M_DELETE, M_PATCH};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(method_name(known[i]), name) == 0) {
            *ret = known[i];
            return 0;
        }
    return -1;
}

int route_spec_read(struct wire_reader *r, struct route_spec *s, struct abx_error *err)
{
    *s = (struct route_spec){0};
    autofree char *method = take_text(r);
    s->ep.path = take_text(r);
    autofree char *group = take_text(r);
    s->ep.id = take_text(r);
    s->ep.summary = take_text(r);
    s->flags = wire_get_u32(r);
    s->timeout = wire_get_f64(r);
    s->scopes = take_scopes(r);
    int result = 0;
    if (r->bad)
        result = abx_fail(err, E_CONFIG, 0, "an unreadable route");
    else if (!is_name(s->ep.id) && strchr(s->ep.id, ' ') == NULL)
        result = abx_fail(err, E_CONFIG, 0, "'%s' can't be a route's name", s->ep.id);
    else if (method_parse(method, &s->ep.method) < 0)
        result = abx_fail(err, E_CONFIG, 0, "route '%s': the method '%s' is not one of GET, POST, PUT, DELETE, PATCH",
                          s->ep.id, method);
    else if (!is_path(s->ep.path))
        result = abx_fail(err, E_CONFIG, 0, "route '%s': '%s' is not a path pattern", s->ep.id, s->ep.path);
    else if (group_parse(group, &s->ep.group) < 0 || s->ep.group == G_CORE)
        result = abx_fail(err, E_CONFIG, 0, "route '%s': '%s' is not a group that routes can be in", s->ep.id, group);
    else
        result = check_common("route", s->ep.id, s->scopes, s->timeout, err);
    if (result < 0) {
        route_spec_done(s);
        return -1;
    }
    s->ep.scopes = s->scopes[0] ? (const char *const *)s->scopes : NULL;
    s->ep.limits = LIMITS_COMMON | LIM(timeout_seconds);
    s->ep.flags = (s->flags & WIRE_NO_AUTH ? EP_NO_AUTH : 0u) | (s->flags & WIRE_STREAMS ? EP_STREAM : 0u);
    s->ep.custom = true;
    return 0;
}

void route_spec_done(struct route_spec *s)
{
    free((char *)s->ep.path);
    free((char *)s->ep.id);
    free((char *)s->ep.summary);
    free_scopes(s->scopes);
    *s = (struct route_spec){0};
}

/* --- converting ------------------------------------------------------------------------------------ */

static int refuse(const struct arg_spec *a, const char *why, const json_t *value, struct abx_error *err)
{
    if (json_is_string(value)) {
        size_t len = utf8_floor(json_string_value(value), json_string_length(value) < 100 ? json_string_length(value) : 100);
        return abx_fail(err, E_ARGUMENT_TYPE, 0, "Cannot convert argument '%s' to %s: %s: '%.*s'", a->name,
                        type_names[a->type], why, (int)len, json_string_value(value));
    }
    return abx_fail(err, E_ARGUMENT_TYPE, 0, "Cannot convert argument '%s' to %s: %s", a->name, type_names[a->type], why);
}

/* Copies a number's text without blanks around it and without `_` between digits; false: not that shape. */
static bool number_text(const json_t *value, char *out, size_t size)
{
    const char *s = json_string_value(value);
    size_t len = json_string_length(value), n = 0;
    while (len && isspace((unsigned char)s[len - 1]))
        len--;
    while (len && isspace((unsigned char)*s)) {
        s++;
        len--;
    }
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '_') {
            if (i == 0 || i + 1 == len || !isdigit((unsigned char)s[i - 1]) || !isdigit((unsigned char)s[i + 1]))
                return false;
            continue;
        }
        if (!s[i] || n + 1 >= size)
            return false;
        out[n++] = s[i];
    }
    out[n] = 0;
    return n > 0;
}

static int convert_string(const struct arg_spec *a, const json_t *value, struct wire_buf *out, struct abx_error *err)
{
    char text[NUM_DOUBLE_MAX];
    size_t n;
    switch (json_typeof(value)) {
    case JSON_STRING:
        wire_text(out, json_string_value(value), json_string_length(value));
        return 0;
    case JSON_INTEGER:
        n = (size_t)snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        wire_text(out, text, n);
        return 0;
    case JSON_REAL:
        wire_text(out, text, num_double(json_real_value(value), text));
        return 0;
    case JSON_TRUE:
    case JSON_FALSE:
        wire_str(out, json_is_true(value) ? "True" : "False");
        return 0;
    case JSON_NULL:
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return refuse(a, "a text, number or boolean is needed", value, err);
}

static int convert_integer(const struct arg_spec *a, const json_t *value, struct wire_buf *out, struct abx_error *err)
{
    int64_t v;
    char text[64];
    if (json_is_integer(value)) {
        v = json_integer_value(value);
    } else if (json_is_real(value)) {
        double d = json_real_value(value);
        if (d != trunc(d) || !(d >= -9223372036854775808.0 && d < 9223372036854775808.0))
            return refuse(a, "not a whole number of 64 bits", value, err);
        v = (int64_t)d;
    } else if (!json_is_string(value)) {
        return refuse(a, "an integer is needed", value, err);
    } else if (!number_text(value, text, sizeof(text)) || num_parse(text, INT64_MIN, INT64_MAX, &v) < 0) {
        return refuse(a, "not a decimal integer of 64 bits", value, err);
    }
    wire_i64(out, v);
    return 0;
}

static int convert_float(const struct arg_spec *a, const json_t *value, struct wire_buf *out, struct abx_error *err)
{
    double d;
    char text[400];
    if (json_is_number(value))
        d = json_number_value(value);
    else if (json_is_boolean(value))
        d = json_is_true(value) ? 1.0 : 0.0;
    else if (!json_is_string(value))
        return refuse(a, "a number is needed", value, err);
    else if (!number_text(value, text, sizeof(text)) || num_parse_double(text, &d) < 0)
        return refuse(a, "not a finite decimal number", value, err);
    if (!isfinite(d))
        return refuse(a, "not a finite number", value, err);
    wire_f64(out, d);
    return 0;
}

static int convert_boolean(const struct arg_spec *a, const json_t *value, struct wire_buf *out, struct abx_error *err)
{
    static const char *const words[] = {"false", "true", "no", "yes", "0", "1"};
    if (json_is_boolean(value) || (json_is_integer(value) && (json_integer_value(value) | 1) == 1)) {
        wire_u32(out, json_is_true(value) || json_integer_value(value) == 1);
        return 0;
    }
    for (size_t i = 0; json_is_string(value) && i < ARRAY_LEN(words); i++)
        if (strlen(words[i]) == json_string_length(value) && strcasecmp(words[i], json_string_value(value)) == 0) {
            wire_u32(out, i & 1);
            return 0;
        }
    return refuse(a, "one of true, false, yes, no, 1, 0 is needed", value, err);
}

static int convert_strings(const struct arg_spec *a, const json_t *value, struct wire_buf *out, struct abx_error *err)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value))
        return refuse(a, "a list of strings is needed", value, err);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(value, i)))
            return refuse(a, "a list of nothing but strings is needed", value, err);
    wire_u32(out, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(value, i);
        wire_text(out, json_string_value(item), json_string_length(item));
    }
    return 0;
}

static int convert(const struct arg_spec *a, const json_t *value, struct wire_buf *out, struct abx_error *err)
{
    wire_u32(out, a->type);
    wire_str(out, a->name);
    switch (a->type) {
    case ARG_STRING:
        return convert_string(a, value, out, err);
    case ARG_INTEGER:
        return convert_integer(a, value, out, err);
    case ARG_FLOAT:
        return convert_float(a, value, out, err);
    case ARG_BOOLEAN:
        return convert_boolean(a, value, out, err);
    case ARG_STRINGS:
        return convert_strings(a, value, out, err);
    }
    return refuse(a, "unknown type", value, err);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* "'a', 'b'" sorted, cut where an error message would be. */
static void quoted_list(const char **names, size_t n, struct buf *out)
{
    qsort(names, n, sizeof(*names), by_text);
    buf_addc(out, '[');
    for (size_t i = 0; i < n; i++)
        buf_addf(out, "%s'%s'", i ? ", " : "", names[i]);
    buf_addc(out, ']');
}

static int unexpected(const struct command_spec *c, const json_t *given, struct abx_error *err)
{
    size_t n = json_object_size(given), n_bad = 0;
    autofree const char **names = calloc(n + c->n_args + 1, sizeof(*names));
    autobuf struct buf text = BUF_INIT;
    if (!names)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)given, key, value)
    {
        size_t i = 0;
        while (i < c->n_args && strcmp(c->args[i].name, key) != 0)
            i++;
        if (i == c->n_args)
            names[n_bad++] = key;
    }
    buf_adds(&text, "Unexpected argument(s): ");
    quoted_list(names, n_bad, &text);
    buf_adds(&text, "; declared: ");
    for (size_t i = 0; i < c->n_args; i++)
        names[i] = c->args[i].name;
    if (c->n_args)
        quoted_list(names, c->n_args, &text);
    else
        buf_adds(&text, "(none)");
    const char *s = buf_str(&text);
    return s ? abx_fail(err, E_VALUE, 0, "%s", s) : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

int command_spec_args(const struct command_spec *c, const json_t *given, struct wire_buf *out, struct abx_error *err)
{
    size_t known = 0;
    for (size_t i = 0; i < c->n_args; i++)
        known += json_object_get(given, c->args[i].name) != NULL;
    if (known != json_object_size(given))
        return unexpected(c, given, err);
    size_t at = out->len;
    uint32_t n = 0;
    wire_u32(out, 0);
    for (size_t i = 0; i < c->n_args; i++) {
        const struct arg_spec *a = &c->args[i];
        const json_t *value = json_object_get(given, a->name);
        if (!value && a->required)
            return abx_fail(err, E_VALUE, 0, "Required argument '%s' missing", a->name);
        if (!value)
            value = a->fallback_value;
        if (!value)
            continue;
        if (convert(a, value, out, err) < 0)
            return -1;
        n++;
    }
    wire_patch(out, at, n);
    return 0;
}

static bool all_strings(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return false;
    return json_is_array(list);
}

void route_args(const json_t *body, struct wire_buf *out)
{
    size_t at = out->len;
    uint32_t n = 0;
    wire_u32(out, 0);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value)
    {
        struct arg_spec a = {.name = (char *)key,
                             .type = json_is_string(value)    ? ARG_STRING
                                     : json_is_integer(value) ? ARG_INTEGER
                                     : json_is_real(value)    ? ARG_FLOAT
                                     : json_is_boolean(value) ? ARG_BOOLEAN
                                                              : ARG_STRINGS};
        if (a.type == ARG_STRINGS && !all_strings(value))
            continue;
        convert(&a, value, out, NULL);
        n++;
    }
    wire_patch(out, at, n);
}

json_t *command_spec_json(const struct command_spec *c)
{
    json_t *args = json_array();
    for (size_t i = 0; i < c->n_args; i++) {
        const struct arg_spec *a = &c->args[i];
        json_array_append_new(args, json_pack("{s:s, s:s, s:b, s:s?, s:s}", "name", a->name, "type", type_names[a->type],
                                              "required", a->required, "default", a->fallback, "description",
                                              a->description));
    }
    return json_pack("{s:s, s:o, s:s}", "name", c->name, "args", args, "description", c->description);
}
