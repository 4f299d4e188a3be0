#include "http/internal.h"

#include "base/json.h"
#include "base/log.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define KEPT_REQS 32 /* finished requests whose memory is kept for the next */

/* --- life ---------------------------------------------------------------------------------------- */

struct req *req_new(struct conn *c)
{
    struct http *h = c->http;
    struct req *r;
    if (!list_empty(&h->free_reqs)) {
        r = list_entry(h->free_reqs.next, struct req, link);
        list_remove(&r->link);
        h->n_free_reqs--;
    } else {
        r = calloc(1, sizeof *r);
        if (!r)
            return NULL;
        list_init(&r->link);
        arena_init(&r->arena);
    }
    r->refs = 1;
    r->http = h;
    r->conn = c;
    r->content_length = -1;
    r->started_ns = mono_ns();
    resp_init(&r->resp);
    return r;
}

static void req_free(struct req *r)
{
    struct http *h = r->http;
    measure_end(r);
    if (r->content_length >= TRIM_BODY && !h->stopping && !timer_running(&h->trim))
        timer_start(&h->trim, TRIM_AFTER_MS);
    limits_release(r->slot);
    limits_release(r->second_slot);
    site_unref(r->site);
    json_decref(r->body);
    resp_done(&r->resp);
    unsigned noted = atomic_load(&r->n_noted);
    for (unsigned i = 0; i < noted && i < MAX_NOTED_PATHS; i++)
        free(r->noted[i]);
    if (h->n_free_reqs >= KEPT_REQS || h->stopping) {
        arena_done(&r->arena);
        buf_done(&r->head);
        buf_done(&r->body_text);
        buf_done(&r->resp.headers);
        free(r);
        return;
    }
    struct arena arena = r->arena;
    struct buf head = r->head, body = r->body_text, headers = r->resp.headers;
    arena_reset(&arena);
    buf_reset(&head);
    if (head.cap > 4096)
        buf_done(&head);
    buf_done(&body);
    memset(r, 0, offsetof(struct req, headers));
    memset(&r->n_headers, 0, sizeof *r - offsetof(struct req, n_headers));
    r->arena = arena;
    r->head = head;
    r->resp.headers = headers;
    list_init(&r->link);
    list_append(&h->free_reqs, &r->link);
    h->n_free_reqs++;
}

struct req *req_ref(struct req *r)
{
    r->refs++;
    return r;
}

void req_unref(struct req *r)
{
    if (r && --r->refs == 0)
        req_free(r);
}

void req_set_gone(struct req *r)
{
    if (atomic_exchange(&r->gone, true))
        return;
    req_ref(r); /* who hears of it may let go of the last one */
    if (r->sink && !r->answered) {
        const struct body_sink *sink = r->sink;
        r->sink = NULL;
        sink->gone(r->sink_owner);
    }
    if (r->on_gone) {
        void (*fn)(void *data) = r->on_gone;
        r->on_gone = NULL;
        fn(r->on_gone_data);
    }
    req_unref(r);
}

/* --- what came ------------------------------------------------------------------------------------- */

struct app *req_app(const struct req *r)
{
    return r->http->config.app;
}

struct loop *req_loop(const struct req *r)
{
    return r->http->loop;
}

struct arena *req_arena(struct req *r)
{
    return &r->arena;
}

const struct rule *req_rule(const struct req *r)
{
    return r->rule;
}

const struct guard *req_guard(const struct req *r)
{
    return r->rule->guard;
}

const struct identity *req_identity(const struct req *r)
{
    return r->who;
}

const struct endpoint *req_endpoint(const struct req *r)
{
    return &r->route->ep;
}

const struct route *req_route(const struct req *r)
{
    return r->route;
}

struct policy *req_policy(const struct req *r)
{
    return site_policy(r->site);
}

struct site *req_site(const struct req *r)
{
    return r->site;
}

const char *req_id(const struct req *r)
{
    return r->id;
}

const char *req_method(const struct req *r)
{
    return llhttp_method_name((llhttp_method_t)r->method);
}

bool req_is_head(const struct req *r)
{
    return r->method == HTTP_HEAD;
}

const char *req_path(const struct req *r)
{
    return r->path;
}

const char *req_header(const struct req *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_headers; i++)
        if (strcasecmp(r->head.data + r->headers[i].name, name) == 0)
            return r->head.data + r->headers[i].value;
    return NULL;
}

void req_each_header(const struct req *r, void (*fn)(void *data, const char *name, const char *value),
                     void *data)
{
    for (uint32_t i = 0; i < r->n_headers; i++)
        fn(data, r->head.data + r->headers[i].name, r->head.data + r->headers[i].value);
}

const char *req_param(const struct req *r, const char *name, size_t *ret_len)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < r->n_params; i++) {
        if (r->params[i].name_len != len || memcmp(r->params[i].name, name, len) != 0)
            continue;
        if (ret_len)
            *ret_len = r->params[i].len;
        return r->params[i].value;
    }
    return NULL;
}

static const struct pair *find_query(const struct req *r, const char *name)
{
    for (size_t i = 0; i < r->n_query; i++)
        if (strcmp(r->query[i].name, name) == 0)
            return &r->query[i];
    return NULL;
}

const char *req_query(const struct req *r, const char *name, size_t *ret_len)
{
    const struct pair *p = find_query(r, name);
    if (p && ret_len)
        *ret_len = p->len;
    return p ? p->value : NULL;
}

const char *req_query_raw(const struct req *r, const char *name, size_t *ret_len)
{
    const struct pair *p = find_query(r, name);
    if (p && ret_len)
        *ret_len = p->raw_len;
    return p ? p->raw : NULL;
}

void req_each_query(const struct req *r, void (*fn)(void *data, const char *name, const char *value), void *data)
{
    for (size_t i = 0; i < r->n_query; i++)
        fn(data, r->query[i].name, r->query[i].value);
}

json_t *req_body(const struct req *r)
{
    return r->body;
}

int req_ws_refusal(const struct req *r, const char **ret_reason)
{
    *ret_reason = r->ws_reason;
    return r->ws_refusal;
}

bool req_query_bool(const struct req *r, const char *name)
{
    const char *v = req_query(r, name, NULL);
    return v && (strcasecmp(v, "true") == 0 || strcasecmp(v, "yes") == 0 || strcmp(v, "1") == 0);
}

void req_note_path(struct req *r, const char *path)
{
    unsigned i = atomic_load(&r->n_noted);
    if (i >= MAX_NOTED_PATHS)
        return;
    r->noted[i] = strndup(path, 512);
    if (r->noted[i])
        atomic_store(&r->n_noted, i + 1);
}

bool req_is_gone(const struct req *r)
{
    return atomic_load(&((struct req *)r)->gone);
}

/* Whoever waits for it by now: the one who did when this was posted may have been answered and be free. */
static void tell_gone(void *data)
{
    struct req *r = data;
    void (*fn)(void *data) = r->on_gone;
    r->on_gone = NULL;
    if (fn)
        fn(r->on_gone_data);
    req_unref(r);
}

void req_on_gone(struct req *r, void (*fn)(void *data), void *data)
{
    r->on_gone = fn;
    r->on_gone_data = data;
    if (fn && req_is_gone(r))
        loop_post(r->http->loop, tell_gone, req_ref(r));
}

/* --- decoders --------------------------------------------------------------------------------------- */

int body_str(const json_t *body, const char *name, const char **ret, size_t *ret_len, struct abx_error *err)
{
    const json_t *v = json_object_get(body, name);
    if (!json_is_string(v) || json_string_length(v) == 0)
        return abx_fail(err, E_VALUE, 0, "Missing or invalid '%s'", name);
    *ret = json_string_value(v);
    if (ret_len)
        *ret_len = json_string_length(v);
    return 0;
}

int body_opt_str(const json_t *body, const char *name, const char **ret, size_t *ret_len, struct abx_error *err)
{
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v)) {
        *ret = NULL;
        if (ret_len)
            *ret_len = 0;
        return 0;
    }
    if (!json_is_string(v))
        return abx_fail(err, E_VALUE, 0, "'%s' must be a string", name);
    *ret = json_string_value(v);
    if (ret_len)
        *ret_len = json_string_length(v);
    return 0;
}

bool body_truthy(const json_t *body, const char *name)
{
    const json_t *v = json_object_get(body, name);
    if (!v)
        return false;
    switch (json_typeof(v)) {
    case JSON_TRUE:
        return true;
    case JSON_INTEGER:
        return json_integer_value(v) != 0;
    case JSON_REAL:
        return json_real_value(v) != 0;
    case JSON_STRING:
        return json_string_length(v) > 0;
    case JSON_ARRAY:
        return json_array_size(v) > 0;
    case JSON_OBJECT:
        return json_object_size(v) > 0;
    case JSON_FALSE:
    case JSON_NULL:
        break;
    }
    return false;
}

int json_coerce_int(const json_t *v, int64_t *ret)
{
    if (json_is_boolean(v)) {
        *ret = json_is_true(v);
        return 0;
    }
    if (json_is_integer(v)) {
        *ret = json_integer_value(v);
        return 0;
    }
    if (json_is_real(v)) {
        double d = json_real_value(v); /* the cast cuts toward zero */
        *ret = d >= 0x1p63 ? INT64_MAX : d <= -0x1p63 ? INT64_MIN : (int64_t)d;
        return 0;
    }
    if (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v))
        return num_parse_loose(json_string_value(v), INT64_MIN, INT64_MAX, ret);
    return -1;
}

int json_coerce_seconds(const json_t *v, double *ret)
{
    if (json_is_boolean(v)) {
        *ret = json_is_true(v);
        return 0;
    }
    if (json_is_number(v)) {
        *ret = json_number_value(v);
        return 0;
    }
    if (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v))
        return num_parse_double(json_string_value(v), ret);
    return -1;
}

/* --- the plain answer --------------------------------------------------------------------------------- */

void resp_init(struct resp *resp)
{
    struct buf headers = resp->headers;
    *resp = (struct resp){.status = 200, .file_fd = -1, .headers = headers};
    buf_reset(&resp->headers);
}

void resp_done(struct resp *resp)
{
    free(resp->body);
    free(resp->type_copy);
    if (resp->file_fd >= 0)
        close(resp->file_fd);
    resp->body = NULL;
    resp->type_copy = NULL;
    resp->file_fd = -1;
    if (resp->headers.cap > 4096)
        buf_done(&resp->headers);
}

void resp_status(struct resp *resp, int status)
{
    resp->status = status;
}

/* Forgets an earlier body, keeps status and headers. */
static void drop_body(struct resp *resp)
{
    free(resp->body);
    resp->body = NULL;
    resp->len = 0;
    if (resp->file_fd >= 0)
        close(resp->file_fd);
    resp->file_fd = -1;
}

static int no_memory(struct abx_error *err)
{
    return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

int resp_take(struct resp *resp, const char *content_type, char *data, size_t len)
{
    drop_body(resp);
    resp->body = data;
    resp->len = len;
    if (content_type && !resp->has_content_type) {
        free(resp->type_copy);
        resp->type_copy = strdup(content_type);
        resp->content_type = resp->type_copy;
    }
    return 0;
}

static int take_json(struct resp *resp, const json_t *value, struct abx_error *err)
{
    struct buf out = BUF_INIT;
    json_write(&out, value);
    size_t len;
    char *text = buf_take(&out, &len);
    if (!text) {
        buf_done(&out);
        return no_memory(err);
    }
    drop_body(resp);
    resp->body = text;
    resp->len = len;
    if (!resp->has_content_type)
        resp->content_type = JSON_CONTENT;
    return 0;
}

int resp_value(struct resp *resp, json_t *value, struct abx_error *err)
{
    autojson json_t *owned = value;
    if (!owned)
        return no_memory(err);
    return take_json(resp, owned, err);
}

int resp_json(struct resp *resp, struct abx_error *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    json_error_t why;
    json_t *value = json_vpack_ex(&why, 0, fmt, ap);
    va_end(ap);
    return resp_value(resp, value, err);
}

int resp_json_text(struct resp *resp, char *text, size_t len)
{
    drop_body(resp);
    resp->body = text;
    resp->len = len;
    if (!resp->has_content_type)
        resp->content_type = JSON_CONTENT;
    return 0;
}

int resp_bytes(struct resp *resp, const char *content_type, const void *data, size_t len, struct abx_error *err)
{
    char *copy = malloc(len + 1);
    if (!copy)
        return no_memory(err);
    if (len > 0)
        memcpy(copy, data, len);
    return resp_take(resp, content_type, copy, len);
}

int resp_header(struct resp *resp, const char *name, const char *value, struct abx_error *err)
{
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7F || *p == ':')
            return abx_fail(err, E_INTERNAL, 0, "bad header name");
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7F)
            return abx_fail(err, E_INTERNAL, 0, "bad value of header '%s'", name);
    /* Framing is this room's alone. */
    if (strcasecmp(name, "Content-Length") == 0 || strcasecmp(name, "Transfer-Encoding") == 0 ||
        strcasecmp(name, "Connection") == 0)
        return 0;
    if (strcasecmp(name, "Content-Type") == 0)
        resp->has_content_type = true;
    buf_adds(&resp->headers, name);
    buf_add(&resp->headers, ": ", 2);
    buf_adds(&resp->headers, value);
    buf_add(&resp->headers, "\r\n", 2);
    return resp->headers.failed ? no_memory(err) : 0;
}

int resp_file(struct resp *resp, const char *content_type, int *fd, int64_t offset, int64_t len)
{
    resp_take(resp, content_type, NULL, 0);
    resp->file_fd = take_fd(fd);
    resp->file_at = offset;
    resp->file_len = len;
    return 0;
}

int resp_error(struct resp *resp, const struct abx_error *what, json_t *fields)
{
    autojson json_t *extra = fields;
    autojson json_t *body = json_object();
    json_object_set_new(body, "error", json_text(what->message));
    json_object_set_new(body, "type", json_string(what->type));
    if (what->code)
        json_object_set_new(body, "code", json_string(what->code));
    if (resp->endpoint && what->code)
        json_object_set_new(body, "endpoint", json_text(resp->endpoint->id));
    if (extra)
        json_object_update(body, extra);
    resp->status = what->status;
    resp->error = (uint16_t)(what->kind + 1);
    resp->has_content_type = false;
    if (what->code) {
        snprintf(resp->code_copy, sizeof resp->code_copy, "%s", what->code);
        resp->code = resp->code_copy;
    } else {
        resp->code = "error";
    }
    struct abx_error err;
    if ((resp->status == 429 || what->kind == E_OVERLOADED) && !json_object_get(extra, "retry_after"))
        (void)resp_header(resp, "Retry-After", "1", NULL); /* nobody knows when; best effort */
    if (take_json(resp, body, &err) < 0) {
        drop_body(resp);
        resp->status = 503;
    }
    return 0;
}

struct resp *req_resp(struct req *r)
{
    return &r->resp;
}

/* --- answering later ------------------------------------------------------------------------------------ */

void req_finish(struct req *r)
{
    if (r->answered)
        return;
    answer_send(r);
}

const struct abx_error *req_reason(const struct req *r, const struct abx_error *err, struct abx_error *broken)
{
    if (!r->body_broken || err->kind != E_CANCELLED)
        return err;
    (void)abx_fail(broken, E_BAD_REQUEST, 0, "The chunked body is malformed");
    return broken;
}

void req_fail(struct req *r, const struct abx_error *err)
{
    if (r->answered)
        return;
    struct abx_error broken;
    resp_error(&r->resp, req_reason(r, err, &broken), NULL);
    answer_send(r);
}

struct work {
    struct req *req;
    void (*done)(void *data);
    void (*fn)(void *data);
    void *data;
};

static void work_run(void *data)
{
    struct work *w = data;
    w->fn(w->data);
}

static void work_done(void *data)
{
    struct work *w = data;
    struct req *r = w->req;
    w->done(w->data);
    free(w);
    req_unref(r);
}

int req_work(struct req *r, enum work_lane lane, void (*fn)(void *data), void (*done)(void *data), void *data,
             struct abx_error *err)
{
    struct work *w = malloc(sizeof *w);
    if (!w)
        return no_memory(err);
    *w = (struct work){.req = req_ref(r), .fn = fn, .done = done, .data = data};
    if (loop_work(r->http->loop, lane, work_run, work_done, w) < 0) {
        req_unref(r);
        free(w);
        return no_memory(err);
    }
    return 0;
}

/* --- the end ---------------------------------------------------------------------------------------------- */

static bool is_denial(const struct req *r)
{
    int s = r->resp.status;
    return s == 401 || s == 403 || s == 404 || s == 413 || s == 429 || r->resp.code != NULL;
}

static void audit(struct req *r)
{
    if (!r->route || (r->route->ep.flags & EP_NO_AUDIT))
        return;
    enum audit_level level = r->who ? r->rule->audit : policy_default_audit(site_policy(r->site));
    bool denied = is_denial(r);
    if (level == AUDIT_OFF || (level == AUDIT_DENY && !denied))
        return;
    const char *code = r->resp.code;
    if (!code && r->resp.status >= 400)
        code = "error";
    autobuf struct buf line = BUF_INIT;
    buf_addf(&line, "{\"ts\":%.3f,\"identity\":", wall_seconds());
    if (r->who)
        json_write_string(&line, r->who->id, strlen(r->who->id));
    else
        buf_adds(&line, "null");
    buf_adds(&line, ",\"endpoint\":");
    json_write_string(&line, r->route->ep.id, strlen(r->route->ep.id));
    buf_addf(&line, ",\"method\":\"%s\",\"decision\":\"%s\",\"status\":%d,\"code\":", req_method(r),
             denied ? "deny" : "allow", r->resp.status);
    if (code)
        json_write_string(&line, code, strlen(code));
    else
        buf_adds(&line, "null");
    buf_adds(&line, ",\"paths\":[");
    unsigned n = atomic_load(&r->n_noted);
    for (unsigned i = 0; i < n; i++) {
        if (i > 0)
            buf_addc(&line, ',');
        json_write_string(&line, r->noted[i], strlen(r->noted[i]));
    }
    buf_adds(&line, "],\"id\":");
    json_write_string(&line, r->id, strlen(r->id));
    buf_addc(&line, '}');
    if (!line.failed)
        log_json_line(line.data, line.len);
}

void req_complete(struct req *r)
{
    measure_end(r);
    audit(r);
    limits_release(r->slot);
    r->slot = NULL;
    limits_release(r->second_slot);
    r->second_slot = NULL;
}

int req_admit(struct req *r, const struct rule *rule, int *ret_retry_after, struct abx_error *err)
{
    assert(!r->second_slot);
    return limits_admit(r->http->limits, rule, r->who, loop_now(r->http->loop), &r->second_slot, ret_retry_after, err);
}
