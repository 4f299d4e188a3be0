#include "host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What a call is given and can do. A call's texts point into the frame it came in; results are written as JSON
 * text at once, and checked by the server, which trusts nothing that comes from here. */

struct call_mem {
    struct call_mem *next;
    max_align_t data[];
};

void *call_alloc(struct call *c, size_t size)
{
    struct call_mem *m = malloc(sizeof(*m) + size);
    if (!m)
        return NULL;
    m->next = c->mem;
    c->mem = m;
    return m->data;
}

char *call_strdup(struct call *c, const char *s)
{
    size_t len = strlen(s);
    char *copy = call_alloc(c, len + 1);
    return copy ? memcpy(copy, s, len + 1) : NULL;
}

void call_clear(struct call *c)
{
    while (c->mem) {
        struct call_mem *next = c->mem->next;
        free(c->mem);
        c->mem = next;
    }
}

/* --- decoding W_CALL ----------------------------------------------------------------------------- */

/* How many elements can really follow: each takes at least `least` bytes. */
static uint32_t count(struct wire_reader *r, size_t least)
{
    uint32_t n = wire_get_u32(r);
    if (n > (size_t)(r->end - r->at) / least)
        r->bad = true;
    return r->bad ? 0 : n;
}

static const char **texts(struct call *c, struct wire_reader *r, uint32_t *ret_n)
{
    uint32_t n = count(r, 5);
    const char **items = n ? call_alloc(c, n * sizeof(*items)) : NULL;
    if (n && !items)
        r->bad = true;
    for (uint32_t i = 0; i < n && !r->bad; i++)
        items[i] = wire_get_text(r, NULL);
    *ret_n = n;
    return items;
}

static void pairs(struct call *c, struct wire_reader *r, struct pairs *p)
{
    p->n = count(r, 10);
    p->items = p->n ? call_alloc(c, p->n * sizeof(*p->items)) : NULL;
    if (p->n && !p->items)
        r->bad = true;
    for (uint32_t i = 0; i < p->n && !r->bad; i++) {
        p->items[i].name = wire_get_text(r, NULL);
        p->items[i].value = wire_get_text(r, NULL);
    }
}

static void decode_arg(struct call *c, struct wire_reader *r, struct arg *a)
{
    uint32_t n;
    a->type = (int)wire_get_u32(r);
    a->name = wire_get_text(r, NULL);
    switch (a->type) {
    case ABX_TYPE_STRING:
        a->text = wire_get_text(r, &a->len);
        return;
    case ABX_TYPE_INTEGER:
        a->i = wire_get_i64(r);
        a->d = (double)a->i;
        return;
    case ABX_TYPE_FLOAT:
        a->d = wire_get_f64(r);
        return;
    case ABX_TYPE_BOOLEAN:
        a->i = wire_get_u32(r) != 0;
        return;
    case ABX_TYPE_STRINGS:
        a->items = texts(c, r, &n);
        a->len = n;
        return;
    default:
        r->bad = true;
    }
}

int call_decode(struct call *c, struct wire_reader *r, const struct entries *entries)
{
    uint32_t index = wire_get_u32(r);
    if (r->bad || index >= entries->n)
        return -1;
    c->entry = &entries->items[index];
    c->flags = wire_get_u32(r);
    c->request = wire_get_text(r, NULL);
    c->identity = wire_get_text(r, NULL);
    c->base_dir = wire_get_text(r, NULL);
    c->scopes = texts(c, r, &c->n_scopes);
    c->n_limits = count(r, 13);
    c->limits = c->n_limits ? call_alloc(c, c->n_limits * sizeof(*c->limits)) : NULL;
    if (c->n_limits && !c->limits)
        return -1;
    for (uint32_t i = 0; i < c->n_limits; i++) {
        c->limits[i].name = wire_get_text(r, NULL);
        c->limits[i].value = wire_get_f64(r);
    }
    c->n_args = count(r, 9);
    c->args = c->n_args ? call_alloc(c, c->n_args * sizeof(*c->args)) : NULL;
    if (c->n_args && !c->args)
        return -1;
    if (c->n_args)
        memset(c->args, 0, c->n_args * sizeof(*c->args));
    for (uint32_t i = 0; i < c->n_args && !r->bad; i++)
        decode_arg(c, r, &c->args[i]);
    if (c->flags & WIRE_CALL_ROUTE) {
        c->method = wire_get_text(r, NULL);
        c->path = wire_get_text(r, NULL);
        pairs(c, r, &c->params);
        pairs(c, r, &c->query);
        pairs(c, r, &c->headers);
        bool has_body = wire_get_u32(r);
        const char *body = wire_get_text(r, &c->body_len);
        c->body = has_body ? body : NULL;
    }
    return r->bad ? -1 : 0;
}

/* --- JSON text ------------------------------------------------------------------------------------ */

/* Length of the good UTF-8 sequence at s, or 0. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool bad = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
               (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return bad ? 0 : n;
}

/* A quoted string; what is not ASCII stays UTF-8 (the server escapes it), bad bytes become U+FFFD. */
static void put_quoted(struct wire_buf *out, const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    wire_raw(out, "\"", 1);
    size_t plain = 0;
    for (size_t i = 0; i < len;) {
        if (s[i] >= 0x20 && s[i] < 0x80 && s[i] != '"' && s[i] != '\\') {
            i++;
            continue;
        }
        size_t n = s[i] >= 0x80 ? utf8_length(s + i, len - i) : 0;
        if (n) {
            i += n;
            continue;
        }
        wire_raw(out, text + plain, i - plain);
        char escape[8];
        int e = s[i] >= 0x80 ? snprintf(escape, sizeof(escape), "\\ufffd")
                             : snprintf(escape, sizeof(escape), "\\u%04x", (unsigned)s[i]);
        wire_raw(out, escape, (size_t)e);
        plain = ++i;
    }
    wire_raw(out, text + plain, len - plain);
    wire_raw(out, "\"", 1);
}

static void put_number(struct wire_buf *out, double d)
{
    char text[40];
    int n = 0;
    for (int digits = 15; digits <= 17; digits++) {
        n = snprintf(text, sizeof(text), "%.*g", digits, d);
        if (strtod(text, NULL) == d) /* NOLINT: exact on purpose */
            break;
    }
    wire_raw(out, text, (size_t)n);
    if (!strpbrk(text, ".e"))
        wire_raw(out, ".0", 2); /* stays a float */
}

static const char *api_args_json(struct abx_call *call, size_t *ret_len)
{
    struct call *c = (struct call *)call;
    if (!c->args_json) {
        struct wire_buf b = {0};
        wire_raw(&b, "{", 1);
        for (uint32_t i = 0; i < c->n_args; i++) {
            const struct arg *a = &c->args[i];
            char number[32];
            if (i)
                wire_raw(&b, ", ", 2);
            put_quoted(&b, a->name, strlen(a->name));
            wire_raw(&b, ": ", 2);
            switch (a->type) {
            case ABX_TYPE_STRING:
                put_quoted(&b, a->text, a->len);
                break;
            case ABX_TYPE_INTEGER:
                wire_raw(&b, number, (size_t)snprintf(number, sizeof(number), "%lld", (long long)a->i));
                break;
            case ABX_TYPE_FLOAT:
                put_number(&b, a->d);
                break;
            case ABX_TYPE_BOOLEAN:
                wire_raw(&b, a->i ? "true" : "false", a->i ? 4 : 5);
                break;
            default:
                wire_raw(&b, "[", 1);
                for (size_t k = 0; k < a->len; k++) {
                    if (k)
                        wire_raw(&b, ", ", 2);
                    put_quoted(&b, a->items[k], strlen(a->items[k]));
                }
                wire_raw(&b, "]", 1);
            }
        }
        wire_raw(&b, "}", 2); /* with the NUL */
        c->args_json = b.failed ? NULL : call_alloc(c, b.len);
        if (c->args_json)
            memcpy(c->args_json, b.data, b.len);
        wire_done(&b);
    }
    if (ret_len)
        *ret_len = c->args_json ? strlen(c->args_json) : 0;
    return c->args_json;
}

/* --- arguments -------------------------------------------------------------------------------------- */

static const struct arg *find(struct abx_call *call, const char *name, int type)
{
    struct call *c = (struct call *)call;
    for (uint32_t i = 0; name && i < c->n_args; i++)
        if (strcmp(c->args[i].name, name) == 0)
            return !type || c->args[i].type == type ? &c->args[i] : NULL;
    return NULL;
}

static int api_has(struct abx_call *call, const char *name)
{
    return find(call, name, 0) != NULL;
}

static const char *api_string(struct abx_call *call, const char *name, size_t *ret_len)
{
    const struct arg *a = find(call, name, ABX_TYPE_STRING);
    if (ret_len)
        *ret_len = a ? a->len : 0;
    return a ? a->text : NULL;
}

static int64_t api_integer(struct abx_call *call, const char *name)
{
    const struct arg *a = find(call, name, ABX_TYPE_INTEGER);
    return a ? a->i : 0;
}

static double api_number(struct abx_call *call, const char *name)
{
    const struct arg *a = find(call, name, 0);
    return a && (a->type == ABX_TYPE_FLOAT || a->type == ABX_TYPE_INTEGER) ? a->d : 0;
}

static int api_boolean(struct abx_call *call, const char *name)
{
    const struct arg *a = find(call, name, ABX_TYPE_BOOLEAN);
    return a ? (int)a->i : 0;
}

static size_t api_strings(struct abx_call *call, const char *name, const char *const **ret_items)
{
    const struct arg *a = find(call, name, ABX_TYPE_STRINGS);
    *ret_items = a ? a->items : NULL;
    return a ? a->len : 0;
}

static void *api_user(struct abx_call *call)
{
    return ((struct call *)call)->entry->user;
}

/* --- who and where ------------------------------------------------------------------------------------ */

static const char *api_info(struct abx_call *call, int what)
{
    struct call *c = (struct call *)call;
    switch (what) {
    case ABX_INFO_IDENTITY:
        return c->identity;
    case ABX_INFO_ENDPOINT:
        return c->entry->route ? c->entry->name : "run_command";
    case ABX_INFO_BASE_DIR:
        return c->base_dir;
    case ABX_INFO_NAME:
        return c->entry->name;
    case ABX_INFO_METHOD:
        return c->method ? c->method : "POST";
    case ABX_INFO_PATH:
        return c->path;
    case ABX_INFO_REQUEST:
        return c->request;
    default:
        return NULL;
    }
}

static int api_has_scope(struct abx_call *call, const char *scope)
{
    struct call *c = (struct call *)call;
    const char *colon = strchr(scope, ':');
    size_t ns = colon ? (size_t)(colon - scope) : 0;
    for (uint32_t i = 0; i < c->n_scopes; i++) {
        const char *held = c->scopes[i];
        if (strcmp(held, "*") == 0 || strcmp(held, scope) == 0 ||
            (colon && strncmp(held, scope, ns + 1) == 0 && strcmp(held + ns + 1, "*") == 0))
            return 1;
    }
    return strcmp(scope, "core:read") == 0;
}

static int api_require_scope(struct abx_call *call, const char *scope)
{
    struct call *c = (struct call *)call;
    if (api_has_scope(call, scope))
        return 0;
    char message[300];
    snprintf(message, sizeof(message), "Missing required scope '%s'", scope);
    struct wire_buf fields = {0};
    wire_raw(&fields, "{\"scope\": ", 10);
    put_quoted(&fields, scope, strlen(scope));
    wire_raw(&fields, "}", 2);
    call_fail(c, 403, "PolicyDenied", "missing_scope", message, fields.failed ? "" : fields.data);
    wire_done(&fields);
    return -1;
}

static double api_limit(struct abx_call *call, const char *name, double fallback)
{
    struct call *c = (struct call *)call;
    for (uint32_t i = 0; i < c->n_limits; i++)
        if (strcmp(c->limits[i].name, name) == 0)
            return c->limits[i].value;
    return fallback;
}

static int api_cancelled(struct abx_call *call)
{
    return atomic_load(&((struct call *)call)->cancelled);
}

static bool never(struct call *c)
{
    return false;
}

static int api_sleep_ms(struct abx_call *call, uint32_t ms)
{
    struct call *c = (struct call *)call;
    pool_wait(c, never, ms == UINT32_MAX ? ms - 1 : ms);
    return atomic_load(&c->cancelled);
}

static bool is_resolved(struct call *c)
{
    return c->resolve_done;
}

static int api_resolve(struct abx_call *call, const char *path, int op, const char **ret_path)
{
    struct call *c = (struct call *)call;
    struct wire_buf b = {0};
    size_t frame = wire_begin(&b, W_RESOLVE, c->id);
    wire_u32(&b, (uint32_t)op);
    wire_str(&b, path);
    if (wire_end(&b, frame) < 0) {
        wire_done(&b);
        call_fail(c, 503, "MemoryError", "no_memory", "out of memory", "");
        return -1;
    }
    pool_lock();
    c->resolve_done = false;
    pool_unlock();
    pool_send(&b);
    wire_done(&b);
    pool_wait(c, is_resolved, UINT32_MAX);
    pool_lock();
    bool done = c->resolve_done;
    pool_unlock();
    if (!done) {
        call_fail(c, 499, "CancelledError", "cancelled", "nobody waits for the answer", "");
        return -1;
    }
    if (c->resolve_status != 0)
        return -1;
    *ret_path = c->resolved;
    return 0;
}

__attribute__((format(printf, 3, 0))) static void api_logv(struct abx_call *call, int level, const char *fmt, va_list ap)
{
    struct call *c = (struct call *)call;
    char text[1001];
    vsnprintf(text, sizeof(text), fmt, ap);
    struct wire_buf b = {0};
    size_t frame = wire_begin(&b, W_LOG, c->id);
    wire_u32(&b, (uint32_t)level);
    wire_str(&b, text);
    if (wire_end(&b, frame) == 0)
        pool_send(&b);
    wire_done(&b);
}

/* --- routes --------------------------------------------------------------------------------------------- */

static const char *look_up(const struct pairs *p, const char *name, bool any_case)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (any_case ? strcasecmp(p->items[i].name, name) == 0 : strcmp(p->items[i].name, name) == 0)
            return p->items[i].value;
    return NULL;
}

static const char *api_query(struct abx_call *call, const char *name)
{
    return look_up(&((struct call *)call)->query, name, false);
}

static const char *api_header(struct abx_call *call, const char *name)
{
    return look_up(&((struct call *)call)->headers, name, true);
}

static const char *api_param(struct abx_call *call, const char *name)
{
    return look_up(&((struct call *)call)->params, name, false);
}

static const char *api_body(struct abx_call *call, size_t *ret_len)
{
    struct call *c = (struct call *)call;
    if (ret_len)
        *ret_len = c->body ? c->body_len : 0;
    return c->body;
}

static int api_status(struct abx_call *call, int status)
{
    struct call *c = (struct call *)call;
    c->status = status;
    return 0;
}

static int api_reply_header(struct abx_call *call, const char *name, const char *value)
{
    struct call *c = (struct call *)call;
    char *n = call_strdup(c, name), *v = call_strdup(c, value);
    if (c->n_headers_out == sizeof(c->headers_out) / sizeof(c->headers_out[0]))
        c->invalid = "more than 32 headers";
    else if (n && v)
        c->headers_out[c->n_headers_out++] = (struct pair){n, v};
    return 0;
}

/* --- results ---------------------------------------------------------------------------------------------- */

/* A value on top level replaces what was there. */
static void begin_answer(struct call *c, int kind)
{
    c->out.len = 0;
    c->out.failed = false;
    c->answer = kind;
    c->depth = 0;
    c->invalid = NULL;
}

static int api_return_bytes(struct abx_call *call, const char *content_type, const void *data, size_t len)
{
    struct call *c = (struct call *)call;
    begin_answer(c, ANSWER_BYTES);
    c->content_type = call_strdup(c, content_type);
    wire_raw(&c->out, data, len);
    return 0;
}

/* Before a value: the comma, or a place on top level. */
static bool begin_value(struct call *c)
{
    if (c->answer == ANSWER_ERROR)
        return false;
    if (c->depth == 0) {
        begin_answer(c, ANSWER_JSON);
        return true;
    }
    if (c->out.len > WIRE_MAX_RESULT) {
        c->invalid = "larger than 64 MiB";
        return false;
    }
    char *top = &c->stack[c->depth - 1];
    if (*top == '{') {
        c->invalid = "a value in an object without a key";
        return false;
    }
    if (*top == ':')
        *top = '{';
    else if (!c->first[c->depth - 1])
        wire_raw(&c->out, ", ", 2);
    c->first[c->depth - 1] = false;
    return true;
}

static void open_level(struct call *c, char kind)
{
    if (!begin_value(c))
        return;
    if (c->depth == PUT_DEPTH) {
        c->invalid = "more than 64 levels";
        return;
    }
    c->stack[c->depth] = kind;
    c->first[c->depth++] = true;
    wire_raw(&c->out, kind == '{' ? "{" : "[", 1);
}

static void close_level(struct call *c)
{
    if (c->depth == 0 || c->stack[c->depth - 1] == ':') {
        c->invalid = "abx_end without a begin, or after a key";
        return;
    }
    wire_raw(&c->out, c->stack[--c->depth] == '{' ? "}" : "]", 1);
}

static void put_key(struct call *c, const char *text, size_t len)
{
    if (c->depth == 0 || c->stack[c->depth - 1] != '{' || !text) {
        c->invalid = "a key outside an object";
        return;
    }
    if (!c->first[c->depth - 1])
        wire_raw(&c->out, ", ", 2);
    c->first[c->depth - 1] = false;
    put_quoted(&c->out, text, len);
    wire_raw(&c->out, ": ", 2);
    c->stack[c->depth - 1] = ':';
}

static int put_float(struct call *c, double d)
{
    if (!isfinite(d)) {
        call_fail(c, 500, "ValueError", "", "Out of range float values are not JSON compliant", "");
        return -1;
    }
    if (begin_value(c))
        put_number(&c->out, d);
    return 0;
}

static int api_put(struct abx_call *call, int kind, const char *text, size_t len, int64_t i, double d)
{
    struct call *c = (struct call *)call;
    char number[32];
    if (text && len == (size_t)-1)
        len = strlen(text);
    switch (kind) {
    case ABX_PUT_OBJECT:
        open_level(c, '{');
        return 0;
    case ABX_PUT_ARRAY:
        open_level(c, '[');
        return 0;
    case ABX_PUT_END:
        close_level(c);
        return c->answer == ANSWER_ERROR ? -1 : 0;
    case ABX_PUT_KEY:
        put_key(c, text, len);
        return 0;
    case ABX_PUT_FLOAT:
        return put_float(c, d);
    default:
        break;
    }
    if (!begin_value(c))
        return c->answer == ANSWER_ERROR ? -1 : 0;
    if (kind == ABX_PUT_STRING && text)
        put_quoted(&c->out, text, len);
    else if (kind == ABX_PUT_JSON && text)
        wire_raw(&c->out, text, len);
    else if (kind == ABX_PUT_INTEGER)
        wire_raw(&c->out, number, (size_t)snprintf(number, sizeof(number), "%lld", (long long)i));
    else if (kind == ABX_PUT_BOOLEAN)
        wire_raw(&c->out, i ? "true" : "false", i ? 4 : 5);
    else
        wire_raw(&c->out, "null", 4);
    return 0;
}

static int api_return_json(struct abx_call *call, const char *json, size_t len)
{
    struct call *c = (struct call *)call;
    begin_answer(c, ANSWER_JSON);
    wire_raw(&c->out, json, len == (size_t)-1 ? strlen(json) : len);
    return 0;
}

__attribute__((format(printf, 1, 0))) static char *formatted(const char *fmt, va_list ap)
{
    char *text = NULL;
    return vasprintf(&text, fmt, ap) < 0 ? NULL : text;
}

static int no_memory(struct call *c)
{
    call_fail(c, 503, "MemoryError", "no_memory", "out of memory", "");
    return -1;
}

__attribute__((format(printf, 2, 0))) static int api_return_textv(struct abx_call *call, const char *fmt, va_list ap)
{
    struct call *c = (struct call *)call;
    char small[512];
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof(small), fmt, ap);
    char *text = n >= 0 && (size_t)n >= sizeof(small) ? formatted(fmt, again) : small;
    va_end(again);
    if (n < 0 || !text)
        return no_memory(c);
    begin_answer(c, ANSWER_JSON);
    put_quoted(&c->out, text, (size_t)n);
    if (text != small)
        free(text);
    return 0;
}

void call_fail(struct call *c, int status, const char *type, const char *code, const char *message,
               const char *fields)
{
    begin_answer(c, ANSWER_ERROR);
    c->error_status = status >= 400 && status <= 599 ? status : 500;
    c->error_type = call_strdup(c, type ? type : "RuntimeError");
    c->error_code = call_strdup(c, code ? code : "");
    c->error_fields = call_strdup(c, fields ? fields : "");
    c->error_message = call_strdup(c, message);
}

__attribute__((format(printf, 3, 0))) static int api_raisev(struct abx_call *call, const char *type, const char *fmt, va_list ap)
{
    struct call *c = (struct call *)call;
    char *message = formatted(fmt, ap);
    if (!message)
        return no_memory(c);
    call_fail(c, 500, type, "", message, "");
    free(message);
    return -1;
}

__attribute__((format(printf, 5, 0))) static int api_denyv(struct abx_call *call, int status, const char *code, const char *fields, const char *fmt,
                     va_list ap)
{
    struct call *c = (struct call *)call;
    char *message = formatted(fmt, ap);
    if (!message)
        return no_memory(c);
    call_fail(c, status, "PolicyDenied", code, message, fields);
    free(message);
    return -1;
}

static void put_invalid(struct call *c, struct wire_buf *out, const char *why)
{
    size_t frame = wire_begin(out, W_ERROR, c->id);
    char message[200];
    snprintf(message, sizeof(message), "The result can't be sent: %s", why);
    wire_u32(out, 500);
    wire_str(out, "InvalidResult");
    wire_str(out, "invalid_result");
    wire_str(out, message);
    wire_str(out, "");
    wire_end(out, frame);
}

void call_answer(struct call *c, struct wire_buf *out)
{
    if (c->answer == ANSWER_ERROR) {
        size_t frame = wire_begin(out, W_ERROR, c->id);
        wire_u32(out, (uint32_t)c->error_status);
        wire_str(out, c->error_type);
        wire_str(out, c->error_code);
        wire_str(out, c->error_message);
        wire_str(out, c->error_fields);
        if (wire_end(out, frame) < 0)
            put_invalid(c, out, "its error is too large");
        return;
    }
    if (c->answer == ANSWER_NONE)
        wire_raw(&c->out, "null", 4);
    if (c->depth)
        c->invalid = "an object or list was not ended";
    if (c->out.failed)
        c->invalid = "out of memory";
    if (c->out.len > WIRE_MAX_RESULT)
        c->invalid = "larger than 64 MiB";
    if (c->invalid) {
        put_invalid(c, out, c->invalid);
        return;
    }
    size_t frame = wire_begin(out, W_RESULT, c->id);
    wire_u32(out, (uint32_t)c->status);
    wire_u32(out, c->answer == ANSWER_BYTES ? WIRE_KIND_BYTES : WIRE_KIND_JSON);
    wire_u32(out, c->n_headers_out);
    for (uint32_t i = 0; i < c->n_headers_out; i++) {
        wire_str(out, c->headers_out[i].name);
        wire_str(out, c->headers_out[i].value);
    }
    wire_str(out, c->content_type);
    wire_text(out, c->out.data, c->out.len);
    if (wire_end(out, frame) < 0)
        put_invalid(c, out, "out of memory");
}

/* --- events -------------------------------------------------------------------------------------------------- */

static bool has_credit(struct call *c)
{
    return c->credit > 0;
}

static int api_event(struct abx_call *call, const char *event, const char *json, size_t len)
{
    struct call *c = (struct call *)call;
    if (atomic_load(&c->cancelled))
        return -1;
    if (!(c->entry->flags & WIRE_STREAMS)) {
        call_fail(c, 500, "RuntimeError", "", "events need ABX_STREAMS (or ABX_SSE_ROUTE)", "");
        return -1;
    }
    if (!(c->flags & WIRE_CALL_EVENTS))
        return 0;
    if (len == (size_t)-1)
        len = strlen(json);
    struct wire_buf b = {0};
    size_t frame = wire_begin(&b, W_EVENT, c->id);
    wire_str(&b, event);
    wire_text(&b, json, len);
    if (wire_end(&b, frame) < 0) {
        wire_done(&b);
        return no_memory(c);
    }
    pool_lock();
    c->credit -= (int64_t)b.len;
    bool wait = c->credit <= 0;
    pool_unlock();
    pool_send(&b);
    wire_done(&b);
    if (wait)
        pool_wait(c, has_credit, UINT32_MAX);
    return atomic_load(&c->cancelled) ? -1 : 0;
}

__attribute__((format(printf, 3, 0))) static int api_eventv(struct abx_call *call, const char *event, const char *fmt, va_list ap)
{
    char *json = formatted(fmt, ap);
    if (!json)
        return no_memory((struct call *)call);
    int r = api_event(call, event, json, (size_t)-1);
    free(json);
    return r;
}

const struct abx_api host_api = {
    .abi_version = ABX_ABI_VERSION,
    .size = sizeof(struct abx_api),
    .has = api_has,
    .string = api_string,
    .integer = api_integer,
    .number = api_number,
    .boolean = api_boolean,
    .strings = api_strings,
    .args_json = api_args_json,
    .user = api_user,
    .info = api_info,
    .has_scope = api_has_scope,
    .require_scope = api_require_scope,
    .cancelled = api_cancelled,
    .sleep_ms = api_sleep_ms,
    .resolve = api_resolve,
    .logv = api_logv,
    .limit = api_limit,
    .query = api_query,
    .header = api_header,
    .param = api_param,
    .body = api_body,
    .status = api_status,
    .reply_header = api_reply_header,
    .return_bytes = api_return_bytes,
    .return_textv = api_return_textv,
    .return_json = api_return_json,
    .put = api_put,
    .raisev = api_raisev,
    .denyv = api_denyv,
    .event = api_event,
    .eventv = api_eventv,
};
