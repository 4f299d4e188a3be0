/* YAML as Python's yaml.safe_load reads it (YAML 1.1 resolution with PyYAML's patterns), built into
 * JSON from libyaml's events. Aliases are refused, so a small file can't grow into a big document. */

#include "policy/policy_internal.h"

#include "base/num.h"
#include "base/utf8.h"

#include <math.h>
#include <string.h>
#include <yaml.h>

#define MAX_DEPTH 64
#define MAX_VALUES 100000
#define TAG "tag:yaml.org,2002:"

struct frame {
    json_t *container;  /* owned */
    char *key;          /* of the value to come; owned; NULL: a key is next (objects) */
    bool text_only;     /* below `description`: what JSON can't say becomes text */
};

struct loader {
    struct frame stack[MAX_DEPTH];
    size_t depth, values;
    json_t *root; /* owned */
};

static int fail_at(struct abx_error *err, size_t line, const char *what)
{
    return abx_fail(err, E_CONFIG, 0, "line %zu: %s", line + 1, what);
}

static bool one_of(const char *s, const char *const *words)
{
    for (; *words; words++) {
        if (strcmp(s, *words) == 0)
            return true;
    }
    return false;
}

static const char *skip(const char *s, const char *set)
{
    return s + strspn(s, set);
}

static const char *skip_sign(const char *s)
{
    return *s == '+' || *s == '-' ? s + 1 : s;
}

/* (":" [0-5]?[0-9])+ ; NULL when there is none. */
static const char *skip_sixties(const char *s)
{
    if (*s != ':')
        return NULL;
    while (*s == ':') {
        s++;
        if (s[0] >= '0' && s[0] <= '5' && s[1] >= '0' && s[1] <= '9')
            s += 2;
        else if (s[0] >= '0' && s[0] <= '9')
            s++;
        else
            return NULL;
    }
    return s;
}

static bool is_int(const char *s)
{
    const char *p = skip_sign(s), *end;

    if (p[0] == '0' && p[1] == 'b' && p[2])
        return *skip(p + 2, "01_") == '\0';
    if (p[0] == '0' && p[1] == 'x' && p[2])
        return *skip(p + 2, "0123456789abcdefABCDEF_") == '\0';
    if (p[0] == '0')
        return *skip(p + 1, "01234567_") == '\0';
    if (*p < '1' || *p > '9')
        return false;
    p = skip(p, "0123456789_");
    if (*p == '\0')
        return true;
    end = skip_sixties(p);
    return end && *end == '\0';
}

static bool is_float(const char *s)
{
    const char *p = skip_sign(s), *end;

    if (one_of(p, (const char *const[]){".inf", ".Inf", ".INF", NULL}) ||
        one_of(s, (const char *const[]){".nan", ".NaN", ".NAN", NULL}))
        return true;
    if (p == s && p[0] == '.' && p[1] >= '0' && p[1] <= '9') {
        p = skip(p + 1, "0123456789_");
    } else {
        if (*p < '0' || *p > '9')
            return false;
        p = skip(p, "0123456789_");
        end = skip_sixties(p);
        if (end)
            return *end == '.' && *skip(end + 1, "0123456789_") == '\0';
        if (*p != '.')
            return false;
        p = skip(p + 1, "0123456789_");
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p != '+' && *p != '-')
            return false;
        p++;
        if (*p < '0' || *p > '9')
            return false;
        p = skip(p, "0123456789");
    }
    return *p == '\0';
}

/* n digits at least, at most m; NULL when they are not there. */
static const char *digits(const char *s, int n, int m)
{
    int i = 0;
    while (i < m && s[i] >= '0' && s[i] <= '9')
        i++;
    return i >= n ? s + i : NULL;
}

static const char *literal(const char *s, char c)
{
    return s && *s == c ? s + 1 : NULL;
}

/* A date, or a date and a time. */
static bool is_timestamp(const char *s)
{
    const char *p = literal(digits(s, 4, 4), '-');
    const char *month = p ? digits(p, 1, 2) : NULL;
    const char *day = literal(month, '-');
    const char *end = day ? digits(day, 1, 2) : NULL;

    if (!end)
        return false;
    if (*end == '\0')
        return month - p == 2 && end - day == 2;
    p = *end == 'T' || *end == 't' ? end + 1 : skip(end, " \t");
    if (p == end)
        return false;
    p = literal(digits(p, 1, 2), ':');
    p = p ? literal(digits(p, 2, 2), ':') : NULL;
    p = p ? digits(p, 2, 2) : NULL;
    if (!p)
        return false;
    if (*p == '.')
        p = skip(p + 1, "0123456789");
    p = skip(p, " \t");
    if (*p == 'Z')
        return p[1] == '\0';
    if (*p == '+' || *p == '-') {
        p = digits(p + 1, 1, 2);
        if (!p)
            return false;
        if (*p == ':')
            p = digits(p + 1, 2, 2);
        else if (*p)
            p = digits(p, 2, 2);
    }
    return p && *p == '\0';
}

/* Copies s without "_" into out; -1 when it is longer than a number of ours can be. */
static int without_underscores(const char *s, char *out, size_t size)
{
    size_t n = 0;
    for (; *s; s++) {
        if (*s == '_')
            continue;
        if (n + 1 >= size)
            return -1;
        out[n++] = *s;
    }
    out[n] = '\0';
    return 0;
}

/* s: fits is_int, without underscores. */
static int int_value(const char *s, int64_t *ret)
{
    bool negative = *s == '-';
    const char *p = skip_sign(s);
    int base = 10;
    uint64_t total = 0, part = 0;

    if (p[0] == '0' && (p[1] == 'b' || p[1] == 'x')) {
        base = p[1] == 'b' ? 2 : 16;
        p += 2;
        if (*p == '\0')
            return -1; /* "0x_" */
    } else if (p[0] == '0') {
        base = 8;
    }
    for (;; p++) {
        if (*p == ':' || *p == '\0') {
            if (ckd_add(&total, total, part))
                return -1;
            part = 0;
            if (*p == '\0')
                break;
            if (ckd_mul(&total, total, (uint64_t)60))
                return -1;
            continue;
        }
        int digit = *p <= '9' ? *p - '0' : (*p | 0x20) - 'a' + 10;
        if (ckd_mul(&part, part, (uint64_t)base) || ckd_add(&part, part, (uint64_t)digit))
            return -1;
    }
    if (total > (uint64_t)INT64_MAX + negative)
        return -1;
    *ret = negative ? (int64_t)(0 - total) : (int64_t)total;
    return 0;
}

/* s: fits is_float (and is finite), without underscores. */
static int float_value(const char *s, double *ret)
{
    bool negative = *s == '-';
    const char *p = skip_sign(s);
    double total = 0;

    for (const char *colon; (colon = strchr(p, ':')); p = colon + 1) {
        double part = 0;
        for (; p < colon; p++)
            part = part * 10 + (*p - '0');
        total = (total + part) * 60;
    }
    double last;
    if (num_parse_double(p, &last) < 0)
        return -1;
    total += last;
    if (!isfinite(total))
        return -1;
    *ret = negative ? -total : total;
    return 0;
}

enum scalar_kind { S_NULL, S_BOOL, S_INT, S_FLOAT, S_TIMESTAMP, S_TEXT, S_MERGE, S_VALUE };

static const char *const true_words[] = {"yes",  "Yes",  "YES", "true", "True",
                                         "TRUE", "on",   "On",  "ON",   NULL};
static const char *const false_words[] = {"no",    "No",  "NO",  "false", "False",
                                          "FALSE", "off", "Off", "OFF",   NULL};

static enum scalar_kind resolve(const char *s)
{
    if (one_of(s, true_words) || one_of(s, false_words))
        return S_BOOL;
    if (one_of(s, (const char *const[]){"", "~", "null", "Null", "NULL", NULL}))
        return S_NULL;
    if (strcmp(s, "<<") == 0)
        return S_MERGE;
    if (strcmp(s, "=") == 0)
        return S_VALUE;
    if (is_int(s))
        return S_INT;
    if (is_float(s))
        return S_FLOAT;
    return is_timestamp(s) ? S_TIMESTAMP : S_TEXT;
}

/* The kind that an explicit tag asks for; the text must fit it. */
static int tagged(const char *tag, const char *text, enum scalar_kind *kind)
{
    static const struct {
        const char *tag;
        enum scalar_kind kind;
    } known[] = {{TAG "str", S_TEXT},   {"!", S_TEXT},          {TAG "null", S_NULL},
                 {TAG "bool", S_BOOL},  {TAG "int", S_INT},     {TAG "float", S_FLOAT}};

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(tag, known[i].tag) != 0)
            continue;
        *kind = known[i].kind;
        return *kind == S_TEXT || *kind == resolve(text) ? 0 : -1;
    }
    return -1;
}

/* New reference in *ret. text_only: see struct frame. */
static int scalar_value(const yaml_event_t *ev, bool text_only, json_t **ret, struct abx_error *err)
{
    const char *text = (const char *)ev->data.scalar.value;
    const char *tag = (const char *)ev->data.scalar.tag;
    size_t len = ev->data.scalar.length, line = ev->start_mark.line;
    enum scalar_kind kind = S_TEXT;
    char plain[512];
    int64_t whole;
    double real;

    if (tag) {
        if (tagged(tag, text, &kind) < 0)
            return fail_at(err, line, "this tag, or this value for it, is not supported");
    } else if (ev->data.scalar.plain_implicit && strlen(text) == len) {
        kind = resolve(text);
    }

    switch (kind) {
    case S_NULL:
        *ret = json_null();
        break;
    case S_BOOL:
        *ret = json_boolean(one_of(text, true_words));
        break;
    case S_INT:
        if (without_underscores(text, plain, sizeof(plain)) == 0 && int_value(plain, &whole) == 0)
            *ret = json_integer(whole);
        else if (text_only)
            *ret = json_stringn(text, len);
        else
            return fail_at(err, line, "an integer beyond 64 bits");
        break;
    case S_FLOAT:
        if (without_underscores(text, plain, sizeof(plain)) == 0 && float_value(plain, &real) == 0)
            *ret = json_real(real);
        else if (text_only)
            *ret = json_stringn(text, len);
        else
            return fail_at(err, line, "a number that is not finite");
        break;
    case S_TIMESTAMP:
        if (!text_only)
            return fail_at(err, line, "this reads as a date; put it in quotes");
        *ret = json_stringn(text, len);
        break;
    case S_MERGE:
    case S_VALUE:
        return fail_at(err, line, "'<<' and '=' are not supported; put them in quotes");
    case S_TEXT:
        *ret = json_stringn(text, len);
        break;
    }
    return *ret ? 0 : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

static int take_key(struct frame *top, const yaml_event_t *ev, struct abx_error *err)
{
    size_t line = ev->start_mark.line;
    autojson json_t *key = NULL;

    if (ev->type != YAML_SCALAR_EVENT)
        return fail_at(err, line, "a key must be text");
    if (scalar_value(ev, top->text_only, &key, err) < 0)
        return -1;
    if (!json_is_string(key))
        return fail_at(err, line, "a key must be text; put it in quotes");
    if (strlen(json_string_value(key)) != json_string_length(key))
        return fail_at(err, line, "a key may hold no NUL");
    top->key = strdup(json_string_value(key));
    return top->key ? 0 : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

/* Puts a finished value where it belongs. Takes value. */
static int place_value(struct loader *l, json_t *value, struct abx_error *err)
{
    int rc;

    if (l->depth == 0) {
        l->root = value;
        return 0;
    }
    struct frame *top = &l->stack[l->depth - 1];
    if (json_is_array(top->container)) {
        rc = json_array_append_new(top->container, value);
    } else {
        rc = json_object_set_new(top->container, top->key, value);
        free(top->key);
        top->key = NULL;
    }
    return rc < 0 ? abx_fail(err, E_NO_MEMORY, 0, "out of memory") : 0;
}

static int take_event(struct loader *l, const yaml_event_t *ev, struct abx_error *err)
{
    struct frame *top = l->depth ? &l->stack[l->depth - 1] : NULL;
    size_t line = ev->start_mark.line;
    bool text_only;

    switch (ev->type) {
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        return 0;
    case YAML_DOCUMENT_START_EVENT:
        return l->root ? fail_at(err, line, "only one document is expected") : 0;
    case YAML_ALIAS_EVENT:
        return fail_at(err, line, "aliases are not accepted");
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: {
        json_t *done = top->container;
        l->depth--;
        return place_value(l, done, err);
    }
    case YAML_SCALAR_EVENT:
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        break;
    }

    if (++l->values > MAX_VALUES)
        return fail_at(err, line, "too many values");
    if (top && json_is_object(top->container) && !top->key)
        return take_key(top, ev, err);
    text_only =
        top && (top->text_only || (l->depth == 1 && top->key && strcmp(top->key, "description") == 0));

    if (ev->type == YAML_SCALAR_EVENT) {
        json_t *value = NULL;
        if (scalar_value(ev, text_only, &value, err) < 0)
            return -1;
        return place_value(l, value, err);
    }
    bool map = ev->type == YAML_MAPPING_START_EVENT;
    const yaml_char_t *tag = map ? ev->data.mapping_start.tag : ev->data.sequence_start.tag;
    if (tag && strcmp((const char *)tag, map ? TAG "map" : TAG "seq") != 0)
        return fail_at(err, line, "this tag is not supported");
    if (l->depth == MAX_DEPTH)
        return fail_at(err, line, "nested too deeply");
    json_t *container = map ? json_object() : json_array();
    if (!container)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    l->stack[l->depth++] = (struct frame){.container = container, .text_only = text_only};
    return 0;
}

static int run(struct loader *l, yaml_parser_t *parser, struct abx_error *err)
{
    for (;;) {
        yaml_event_t ev;
        if (!yaml_parser_parse(parser, &ev)) {
            if (parser->error == YAML_MEMORY_ERROR)
                return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
            return fail_at(err, parser->problem_mark.line,
                           parser->problem ? parser->problem : "not valid YAML");
        }
        bool end = ev.type == YAML_STREAM_END_EVENT;
        int rc = take_event(l, &ev, err);
        yaml_event_delete(&ev);
        if (rc < 0 || end)
            return rc;
    }
}

int yaml_to_json(const char *text, size_t len, json_t **ret, struct abx_error *err)
{
    yaml_parser_t parser;
    int rc;

    if (!utf8_valid(text, len))
        return abx_fail(err, E_CONFIG, 0, "not UTF-8");
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        len -= 3;
    }
    struct loader *l = calloc(1, sizeof(*l));
    if (!l || !yaml_parser_initialize(&parser)) {
        free(l);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    rc = run(l, &parser, err);
    yaml_parser_delete(&parser);

    while (l->depth > 0) {
        struct frame *f = &l->stack[--l->depth];
        json_decref(f->container);
        free(f->key);
    }
    if (rc < 0)
        json_decref(l->root);
    else
        *ret = l->root ? l->root : json_null();
    free(l);
    return rc;
}
