#include "routes/agents/common.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/num.h"
#include "base/utf8.h"
#include "policy/guards.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* --- calls
 * ---------------------------------------------------------------------------------------- */

void job_init(struct job *j, const struct call *c)
{
    j->c = *c;
    j->c.err = &j->err;
    j->c.e = &j->e;
}

static void run_job(void *data)
{
    struct job *j = data;
    j->work(j);
}

static void end_job(void *data)
{
    struct job *j = data;
    j->done(j);
}

int job_run(struct job *j, void (*work)(struct job *j), void (*done)(struct job *j))
{
    j->work = work;
    j->done = done;
    return req_work(j->c.req, WORK_SHORT, run_job, end_job, j, &j->err) < 0 ? -1 : REQ_PENDING;
}

void job_finish(struct job *j, int rc)
{
    if (rc < 0 && j->e.status)
        rc = reply_error(&j->c);
    if (rc < 0)
        req_fail(j->c.req, &j->err);
    else
        req_finish(j->c.req);
}

const char *call_owner(const struct call *c) { return req_identity(c->req)->id; }

const char *call_param(const struct call *c, const char *name)
{
    const char *v = req_param(c->req, name, NULL);
    return v ? v : "";
}

const json_t *call_body(const struct call *c) { return req_body(c->req); }

int reply_headers(struct call *c)
{
    return resp_header(c->resp, "X-Agent-Sandbox-Local", "1", c->err);
}

int reply(struct call *c, json_t *value)
{
    if (reply_headers(c) < 0) {
        json_decref(value);
        return -1;
    }
    return resp_value(c->resp, value, c->err);
}

json_t *error_value(const struct ag_error *e)
{
    json_t *o = json_pack("{s:o, s:s, s:o, s:s}", "message", json_text(e->message), "type",
                          e->status == 404 ? "not_found_error" : "invalid_request_error", "param",
                          e->has_param ? json_text(e->param) : json_null(), "code", e->code);
    if (e->refused)
        label(o, "none", "not_implemented_locally",
              json_pack("{s:s}", "runtimes", "/v1/agents/runtimes"));
    return o;
}

int reply_error(struct call *c)
{
    if (reply_headers(c) < 0 ||
        (c->e->status < 500 && resp_header(c->resp, "x-should-retry", "false", c->err) < 0))
        return -1;
    resp_status(c->resp, c->e->status);
    return resp_value(c->resp, json_pack("{s:o}", "error", error_value(c->e)), c->err);
}

json_t *label(json_t *o, const char *compute, const char *differences, json_t *extras)
{
    json_t *list = json_array();
    for (const char *p = differences; *p;) {
        size_t n = strcspn(p, " ");
        if (n)
            json_array_append_new(list, json_stringn(p, n));
        p += n + (p[n] == ' ');
    }
    json_t *l = json_pack("{s:b, s:s, s:o}", "local", 1, "compute", compute, "differences", list);
    if (extras)
        json_object_update(l, extras);
    json_decref(extras);
    json_object_set_new(o, "x_agent_sandbox", l);
    return o;
}

json_t *stamp_json(double t) { return t > 0 ? json_integer((json_int_t)t) : json_null(); }

/* --- lists
 * ---------------------------------------------------------------------------------------- */

int page_read(struct call *c, struct page *p)
{
    const char *limit = req_query(c->req, "limit", NULL), *order = req_query(c->req, "order", NULL);
    p->limit = 20;
    p->asc = false;
    p->after = req_query(c->req, "after", NULL);
    if (limit && num_parse(limit, 1, 100, &p->limit) < 0)
        return ag_invalid(c->e, "limit", "limit: a number from 1 to 100");
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return ag_invalid(c->e, "order", "order: asc or desc");
    p->asc = order && strcmp(order, "asc") == 0;
    return 0;
}

static json_t *envelope(json_t *data, bool more)
{
    size_t n = json_array_size(data);
    json_t *first = n ? json_object_get(json_array_get(data, 0), "id") : NULL;
    json_t *last = n ? json_object_get(json_array_get(data, n - 1), "id") : NULL;
    return json_pack("{s:s, s:o, s:O?, s:O?, s:b}", "object", "list", "data", data, "first_id",
                     first, "last_id", last, "has_more", more);
}

static void bind_arg(sqlite3_stmt *s, int n, struct list_arg a)
{
    if (a.kind == 'i')
        sqlite3_bind_int64(s, n, a.i);
    else if (a.s)
        sqlite3_bind_text(s, n, a.s, -1, SQLITE_TRANSIENT);
}

int list_rows(struct call *c, const struct page *p, const struct list_sql *sql, struct list_arg a1,
              struct list_arg a2, json_t *(*row)(struct call *c, sqlite3_stmt *s, void *data),
              void *data, json_t **ret)
{
    struct store *st = c->ag->store;
    int64_t cursor = p->asc ? 0 : INT64_MAX;
    if (p->after) {
        sqlite3_stmt *s = store_stmt(st, sql->cursor, "");
        if (!s)
            return ag_fail(c->e, 500, "server_error", NULL, "the state can't be read");
        bind_arg(s, 1, a1);
        bind_arg(s, 2, a2);
        sqlite3_bind_text(s, 3, p->after, -1, SQLITE_TRANSIENT);
        bool found = sqlite3_step(s) == SQLITE_ROW;
        cursor = found ? sqlite3_column_int64(s, 0) : 0;
        sqlite3_reset(s);
        if (!found)
            return ag_fail(c->e, 404, "agents.cursor_not_found", "after",
                           "after: no such entry in this list");
    }
    sqlite3_stmt *s = store_stmt(st, p->asc ? sql->asc : sql->desc, "");
    if (!s)
        return ag_fail(c->e, 500, "server_error", NULL, "the state can't be read");
    bind_arg(s, 1, a1);
    bind_arg(s, 2, a2);
    sqlite3_bind_int64(s, 3, cursor);
    sqlite3_bind_int64(s, 4, p->limit + 1);
    json_t *list = json_array();
    bool more = false;
    while (sqlite3_step(s) == SQLITE_ROW) {
        if ((int64_t)json_array_size(list) == p->limit) {
            more = true;
            break;
        }
        json_array_append_new(list, row(c, s, data));
    }
    sqlite3_reset(s);
    *ret = envelope(list, more);
    return 0;
}

int reply_owned(struct call *c, const struct list_sql *sql, struct list_arg a2,
                json_t *(*row)(struct call *c, sqlite3_stmt *s, void *data))
{
    struct page p;
    json_t *list;
    if (page_read(c, &p) < 0)
        return -1;
    store_lock(c->ag->store);
    int rc = list_rows(c, &p, sql, ARG_S(call_owner(c)), a2, row, NULL, &list);
    store_unlock(c->ag->store);
    return rc < 0 ? -1 : reply(c, list);
}

int list_array(struct call *c, const struct page *p, const json_t *values, json_t **ret)
{
    size_t n = json_array_size(values), from = 0;
    if (p->after) {
        for (from = 0; from < n; from++) {
            size_t i = p->asc ? from : n - 1 - from;
            const char *id = json_string_value(json_object_get(json_array_get(values, i), "id"));
            if (id && strcmp(id, p->after) == 0)
                break;
        }
        if (from == n)
            return ag_fail(c->e, 404, "agents.cursor_not_found", "after",
                           "after: no such entry in this list");
        from++;
    }
    json_t *list = json_array();
    while (from < n && (int64_t)json_array_size(list) < p->limit) {
        json_array_append(list, json_array_get(values, p->asc ? from : n - 1 - from));
        from++;
    }
    *ret = envelope(list, from < n);
    return 0;
}

void add_once(json_t *list, json_t *value)
{
    size_t i;
    json_t *have;
    json_array_foreach(list, i, have)
    {
        if (json_equal(have, value))
            return;
    }
    json_array_append(list, value);
}

/* --- bodies
 * --------------------------------------------------------------------------------------- */

static bool listed(const char *keys, const char *key)
{
    size_t n = strlen(key);
    for (const char *p = keys; *p;) {
        size_t w = strcspn(p, " ");
        if (w == n && memcmp(p, key, n) == 0)
            return true;
        p += w + (p[w] == ' ');
    }
    return false;
}

int only_keys(struct ag_error *e, const json_t *o, const char *prefix, const char *keys)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        if (listed(keys, key))
            continue;
        char param[190];
        snprintf(param, sizeof(param), "%s%.120s", prefix, key);
        return ag_invalid(e, param, "%s: not a field that is known here", param);
    }
    return 0;
}

size_t text_chars(const json_t *v)
{
    const char *s = json_string_value(v);
    size_t n = 0;
    for (; s && *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static bool has_nul(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v);
}

int read_metadata(struct ag_error *e, const json_t *v, const char *param, json_t **ret)
{
    if (!v || json_is_null(v)) {
        *ret = json_object();
        return 0;
    }
    if (!json_is_object(v) || json_object_size(v) > 16)
        return ag_invalid(e, param, "%s: an object of at most 16 pairs", param);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        size_t chars = 0;
        for (const char *p = key; *p; p++)
            chars += ((unsigned char)*p & 0xC0) != 0x80;
        if (chars < 1 || chars > 64)
            return ag_invalid(e, param, "%s: keys have 1 to 64 characters", param);
        if (!json_is_string(value) || text_chars(value) > 512) {
            char name[190];
            snprintf(name, sizeof(name), "%s.%.150s", param, key);
            return ag_invalid(e, name, "%s: a string of at most 512 characters", name);
        }
    }
    *ret = json_deep_copy(v);
    return 0;
}

void input_text(const json_t *v, struct buf *out)
{
    if (json_is_string(v)) {
        buf_add(out, json_string_value(v), json_string_length(v));
    } else if (json_is_array(v)) {
        size_t i;
        json_t *m;
        bool any = false;
        json_array_foreach((json_t *)v, i, m)
        {
            autobuf struct buf one = BUF_INIT;
            input_text(m, &one);
            if (!one.len)
                continue;
            if (any)
                buf_addc(out, '\n');
            buf_add(out, one.data, one.len);
            any = true;
        }
    } else if (json_is_object(v)) {
        const json_t *content = json_object_get(v, "content"), *text = json_object_get(v, "text");
        if (json_is_string(text) && !content) {
            buf_add(out, json_string_value(text), json_string_length(text));
            return;
        }
        const json_t *inner = content ? content : text ? text : json_object_get(v, "input");
        if (inner)
            input_text(inner, out);
    }
}

/* --- URLs
 * ----------------------------------------------------------------------------------------- */

static bool global_name(const char *host)
{
    size_t n = strlen(host);
    while (n && host[n - 1] == '.')
        n--;
    static const char *const ends[] = {"localhost", ".localhost", ".local", ".internal"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        size_t w = strlen(ends[i]);
        if ((i == 0 ? n == w : n > w) && strncasecmp(host + n - w, ends[i], w) == 0)
            return false;
    }
    return true;
}

int check_url(struct ag_error *e, const char *url, size_t len, const char *param, bool http,
              bool query, bool open)
{
    struct arena arena;
    struct abx_error err;
    struct url_parts parts;
    struct url_rules rules = {.block_private = !open, .allow_private = open};
    arena_init(&arena);
    int rc = 0;
    if (len > 2048 || strlen(url) != len)
        rc = ag_invalid(e, param, "%s: a URL of at most 2048 characters", param);
    for (const char *p = url; rc == 0 && *p; p++)
        if ((unsigned char)*p <= 0x20 || *p == 0x7f || *p == '\\')
            rc = ag_invalid(e, param, "%s: no blanks or control characters in a URL", param);
    if (rc == 0 && url_check(&rules, url, len, &arena, &parts, &err) < 0)
        rc = ag_invalid(e, param, "%s: %s", param, err.message);
    if (rc == 0 && strcmp(parts.scheme, "https") != 0 &&
        !(http && strcmp(parts.scheme, "http") == 0))
        rc = ag_invalid(e, param, "%s: the scheme must be %s", param,
                        http ? "http or https" : "https");
    const char *at = strstr(url, "://");
    size_t authority = at ? strcspn(at + 3, "/?#") : 0;
    if (rc == 0 && (!at || memchr(at + 3, '@', authority)))
        rc = ag_invalid(e, param, "%s: no user information in a URL", param);
    if (rc == 0 && !query && strpbrk(url, "?#"))
        rc = ag_invalid(e, param, "%s: no query or fragment in this URL", param);
    if (rc == 0 && (!*parts.host || (!open && !global_name(parts.host))))
        rc = ag_invalid(e, param, "%s: the host is not a public one", param);
    arena_done(&arena);
    return rc;
}

static char *url_piece(const char *url, bool origin)
{
    struct arena arena;
    struct abx_error err;
    struct url_parts parts;
    struct url_rules rules = {.allow_private = true};
    struct buf out = BUF_INIT;
    arena_init(&arena);
    if (url_check(&rules, url, strlen(url), &arena, &parts, &err) == 0) {
        if (origin)
            buf_addf(&out, "%s://%s:%d", parts.scheme, parts.host, parts.port);
        else
            buf_adds(&out, parts.host);
    }
    arena_done(&arena);
    return buf_take(&out, NULL);
}

char *url_origin(const char *url) { return url_piece(url, true); }

char *url_host(const char *url) { return url_piece(url, false); }

/* --- idempotency
 * ------------------------------------------------------------------------------------ */

int read_key(struct call *c, const char **ret)
{
    const char *v = req_header(c->req, "Idempotency-Key");
    *ret = NULL;
    if (!v)
        return 0;
    while (*v == ' ' || *v == '\t')
        v++;
    size_t n = strlen(v);
    while (n && (v[n - 1] == ' ' || v[n - 1] == '\t'))
        n--;
    if (!n)
        return 0;
    bool plain = n <= 128;
    for (size_t i = 0; plain && i < n; i++)
        plain = (unsigned char)v[i] >= 0x20 && (unsigned char)v[i] < 0x7f;
    if (!plain)
        return ag_invalid(c->e, "Idempotency-Key",
                          "Idempotency-Key: at most 128 printable ASCII characters");
    *ret = arena_strndup(req_arena(c->req), v, n);
    return *ret ? 0 : abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
}

void body_hash(const json_t *body, char out[65])
{
    autobuf struct buf text = BUF_INIT;
    json_write_canonical(&text, body);
    sha256_hex(text.data ? text.data : "", text.len, out);
}

int key_find(struct call *c, const char *scope, const char *key, const char *hash, char **ret)
{
    sqlite3_stmt *s = store_stmt(
        c->ag->store, "SELECT hash, ref FROM keys WHERE scope = ? AND key = ?", "ss", scope, key);
    if (!s || sqlite3_step(s) != SQLITE_ROW) {
        if (s)
            sqlite3_reset(s);
        return 0;
    }
    bool same = strcmp(store_text(s, 0), hash) == 0;
    *ret = same ? strdup(store_text(s, 1)) : NULL;
    sqlite3_reset(s);
    if (!same)
        return ag_fail(c->e, 409, "idempotency.mismatch", "Idempotency-Key",
                       "Idempotency-Key: used before with another body");
    return 1;
}

int key_store(struct call *c, const char *scope, const char *key, const char *hash, const char *ref,
              int keep)
{
    struct abx_error err;
    if (store_exec(c->ag->store, &err, "INSERT INTO keys(scope, key, hash, ref) VALUES(?,?,?,?)",
                   "ssss", scope, key, hash, ref) < 0 ||
        store_exec(c->ag->store, &err,
                   "DELETE FROM keys WHERE scope = ?1 AND rid NOT IN (SELECT rid FROM keys WHERE "
                   "scope = ?1 ORDER BY rid "
                   "DESC LIMIT ?2)",
                   "si", scope, (int64_t)keep) < 0)
        return ag_store_fail(c->e, &err);
    return 0;
}

/* --- objects
 * ---------------------------------------------------------------------------------------- */

int object_get(struct call *c, const char *kind, const char *id, const char *param,
               const char *what, json_t **ret_doc)
{
    sqlite3_stmt *s =
        store_stmt(c->ag->store, "SELECT doc FROM objects WHERE id = ? AND kind = ? AND owner = ?",
                   "sss", id, kind, call_owner(c));
    bool found = s && sqlite3_step(s) == SQLITE_ROW;
    if (found)
        *ret_doc = store_json(s, 0);
    if (s)
        sqlite3_reset(s);
    return found ? 0 : ag_unknown(c->e, param, what, id);
}

int object_count(struct call *c, const char *kind)
{
    sqlite3_stmt *s =
        store_stmt(c->ag->store, "SELECT count(*) FROM objects WHERE kind = ? AND owner = ?", "ss",
                   kind, call_owner(c));
    int n = s && sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int(s, 0) : 0;
    if (s)
        sqlite3_reset(s);
    return n;
}

int object_insert(struct call *c, const char *kind, const char *id, const json_t *doc, double now,
                  int64_t size)
{
    struct abx_error err;
    if (object_count(c, kind) >= MAX_OBJECTS)
        return ag_fail(c->e, 400, "agents.limit_exceeded", NULL,
                       "too many of these; delete some first");
    if (store_exec(c->ag->store, &err,
                   "INSERT INTO objects(id, kind, owner, doc, created, updated, size) "
                   "VALUES(?,?,?,?,?,?,?)",
                   "sssjddi", id, kind, call_owner(c), doc, now, now, size) < 0)
        return ag_store_fail(c->e, &err);
    return 0;
}

int object_update(struct call *c, const char *id, const json_t *doc, double now)
{
    struct abx_error err;
    if (store_exec(c->ag->store, &err, "UPDATE objects SET doc = ?, updated = ? WHERE id = ?",
                   "jds", doc, now, id) < 0)
        return ag_store_fail(c->e, &err);
    return 0;
}

int object_delete(struct call *c, const char *id)
{
    struct abx_error err;
    if (store_exec(c->ag->store, &err, "DELETE FROM objects WHERE id = ?", "s", id) < 0)
        return ag_store_fail(c->e, &err);
    return 0;
}

int session_row(struct call *c, const char *id, int64_t *ret_rid)
{
    sqlite3_stmt *s = store_stmt(
        c->ag->store, "SELECT rid FROM sessions WHERE id = ? AND owner = ? AND hidden = 0", "ss",
        id, call_owner(c));
    bool found = s && sqlite3_step(s) == SQLITE_ROW;
    if (found)
        *ret_rid = sqlite3_column_int64(s, 0);
    if (s)
        sqlite3_reset(s);
    return found ? 0 : ag_unknown(c->e, "session_id", "session", id);
}

/* --- agents
 * ----------------------------------------------------------------------------------------- */

void agent_spec_done(struct agent_spec *s)
{
    json_decref(s->model);
    json_decref(s->name);
    json_decref(s->instructions);
    json_decref(s->effort);
    json_decref(s->metadata);
    json_decref(s->tools);
    json_decref(s->secrets);
}

bool ag_is_runtime(const char *name) { return name && adapter_find(name) != NULL; }

static const char *name_in(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));
    return v && *v ? v : NULL;
}

int select_runtime(struct call *c, const json_t *body, const json_t *agent, const char *model,
                   const struct adapter **ret)
{
    const char *name = req_header(c->req, "X-ABX-Adapter");
    if (!name || !*name)
        name = name_in(body, "adapter");
    if (!name)
        name = name_in(body, "runtime");
    if (!name)
        name = name_in(agent, "adapter");
    if (!name)
        name = name_in(agent, "runtime");
    if (!name && model && ag_is_runtime(model))
        name = model;
    if (!name)
        name = c->ag->set.default_runtime;
    const struct adapter *a = adapter_find(name);
    if (!a || !a->implemented)
        return ag_refuse_adapter(c->e, name, a != NULL);
    *ret = a;
    return 0;
}

static bool is_token(const char *s)
{
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("!#$%&'*+-.^_`|~", *s))
            return false;
    return true;
}

static bool one_line(const json_t *v, size_t max)
{
    size_t n = json_string_length(v);
    if (!json_is_string(v) || n < 1 || n > max)
        return false;
    const char *s = json_string_value(v);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return false;
    return true;
}

static bool nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

static int read_tool(struct ag_error *e, const json_t *tool, const char *at, json_t **ret,
                     json_t *secrets)
{
    char p[190];
#define PARAM(field) (snprintf(p, sizeof(p), "%.120s%s", at, field), p)
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!type || strcmp(type, "mcp") != 0)
        return ag_invalid(e, PARAM(".type"), "%s: only mcp", p);
    if (only_keys(e, tool, PARAM("."),
                  "type server_label transport allowed_tools connection_origin credential_id "
                  "request_metadata required") < 0)
        return -1;
    const json_t *name = json_object_get(tool, "server_label");
    const char *text = json_string_value(name);
    bool good = text && *text && strlen(text) <= 40;
    for (const char *s = text; good && *s; s++)
        good = isalnum((unsigned char)*s) || *s == '_' || *s == '-';
    if (!good)
        return ag_invalid(e, PARAM(".server_label"), "%s: 1 to 40 letters, digits, - or _", p);
    const json_t *transport = json_object_get(tool, "transport");
    const char *kind = json_string_value(json_object_get(transport, "type"));
    if (!kind || strcmp(kind, "http") != 0)
        return ag_invalid(e, PARAM(".transport.type"), "%s: only http", p);
    if (only_keys(e, transport, PARAM(".transport."), "type server_url headers") < 0)
        return -1;
    const json_t *url = json_object_get(transport, "server_url");
    if (!json_is_string(url))
        return ag_invalid(e, PARAM(".transport.server_url"), "%s: a URL", p);
    if (check_url(e, json_string_value(url), json_string_length(url),
                  PARAM(".transport.server_url"), true, false, true) < 0)
        return -1;
    const json_t *headers = json_object_get(transport, "headers");
    json_t *shown = json_object();
    if (headers && !json_is_null(headers) && !json_is_object(headers)) {
        json_decref(shown);
        return ag_invalid(e, PARAM(".transport.headers"), "%s: an object of strings", p);
    }
    if (json_object_size(headers)) {
        json_t *real = json_object();
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)headers, key, value)
        {
            bool name_bad = !*key || strlen(key) > 128 || !is_token(key);
            if (name_bad || !one_line(value, 8192)) {
                json_decref(shown);
                json_decref(real);
                PARAM(".transport.headers");
                if (!name_bad)
                    snprintf(p + strlen(p), sizeof(p) - strlen(p), ".%.40s", key);
                return ag_invalid(e, p, "%s: names of token characters, values of one line", p);
            }
            json_object_set_new(shown, key, json_string("***"));
            json_object_set(real, key, value);
        }
        json_object_set_new(secrets, text, real);
    }
    const char *bad = NULL;
    const json_t *origin = json_object_get(tool, "connection_origin"),
                 *credential = json_object_get(tool, "credential_id");
    if (!nothing(json_object_get(tool, "allowed_tools")))
        bad = ".allowed_tools";
    else if (!nothing(json_object_get(tool, "request_metadata")))
        bad = ".request_metadata";
    else if (!nothing(json_object_get(tool, "required")))
        bad = ".required";
    else if (origin && !json_is_null(origin) &&
             (!json_is_string(origin) || strcmp(json_string_value(origin), "environment") != 0))
        bad = ".connection_origin";
    else if (credential && !json_is_null(credential) && !json_is_string(credential))
        bad = ".credential_id";
    if (bad) {
        json_decref(shown);
        return ag_invalid(e, PARAM(bad), "%s: not supported here", p);
    }
    *ret = json_pack("{s:s, s:O, s:{s:s, s:O, s:o}, s:n, s:s, s:O?, s:{}, s:b}", "type", "mcp",
                     "server_label", name, "transport", "type", "http", "server_url", url,
                     "headers", shown, "allowed_tools", "connection_origin", "environment",
                     "credential_id", json_is_string(credential) ? credential : NULL,
                     "request_metadata", "required", 0);
    return 0;
#undef PARAM
}

/* A text field that was given: "" is none, as null. */
static json_t *text_or_null(const json_t *v)
{
    if (!v)
        return NULL;
    return json_string_length(v) ? json_incref((json_t *)v) : json_null();
}

int agent_read(struct ag_error *e, const json_t *o, const char *prefix, const struct adapter *ad,
               struct agent_spec *ret)
{
    char p[190];
#define PARAM(field) (snprintf(p, sizeof(p), "%s%s", prefix, field), p)
    if (only_keys(e, o, prefix,
                  "model name instructions metadata multi_agent reasoning service_tier text tools "
                  "adapter runtime") < 0)
        return -1;
    const json_t *v = json_object_get(o, "model");
    if (v) {
        const char *s = json_string_value(v);
        while (s && isspace((unsigned char)*s))
            s++;
        size_t n = s ? strlen(s) : 0;
        while (n && isspace((unsigned char)s[n - 1]))
            n--;
        json_t *trimmed = n ? json_stringn(s, n) : NULL;
        if (!trimmed || text_chars(trimmed) > 256 || has_nul(v) || s[0] == '-') {
            json_decref(trimmed);
            return ag_invalid(e, PARAM("model"), "%s: 1 to 256 characters that don't begin with -",
                              p);
        }
        ret->model = trimmed;
    }
    v = json_object_get(o, "name");
    if (v && !json_is_null(v) && (!json_is_string(v) || text_chars(v) > 256 || has_nul(v)))
        return ag_invalid(e, PARAM("name"), "%s: a string of at most 256 characters", p);
    ret->name = text_or_null(v);
    v = json_object_get(o, "instructions");
    if (v && !json_is_null(v) && (!json_is_string(v) || text_chars(v) > 262144 || has_nul(v)))
        return ag_invalid(e, PARAM("instructions"), "%s: a string of at most 262144 characters", p);
    ret->instructions = text_or_null(v);
    v = json_object_get(o, "metadata");
    if (v && read_metadata(e, v, PARAM("metadata"), &ret->metadata) < 0)
        return -1;
    v = json_object_get(o, "multi_agent");
    if (v && !json_is_null(v)) {
        if (!json_is_object(v))
            return ag_invalid(e, PARAM("multi_agent"), "%s: an object", p);
        if (!nothing(json_object_get(v, "enabled")))
            return ag_invalid(e, PARAM("multi_agent.enabled"), "%s: not supported here", p);
    }
    v = json_object_get(o, "reasoning");
    if (json_is_null(v)) {
        ret->effort = json_null();
    } else if (v) {
        if (!json_is_object(v))
            return ag_invalid(e, PARAM("reasoning"), "%s: an object", p);
        if (only_keys(e, v, PARAM("reasoning."), "effort summary") < 0)
            return -1;
        const json_t *effort = json_object_get(v, "effort"),
                     *summary = json_object_get(v, "summary");
        if (effort && !json_is_null(effort)) {
            static const char *const levels[] = {"none",   "minimal", "low",
                                                 "medium", "high",    "xhigh"};
            bool known = false;
            for (size_t i = 0; json_is_string(effort) && i < ARRAY_LEN(levels); i++)
                known = known || strcmp(levels[i], json_string_value(effort)) == 0;
            if (!known || (ad && ad != &adapter_codex))
                return ag_invalid(e, PARAM("reasoning.effort"),
                                  "%s: none, minimal, low, medium, high or xhigh, with codex", p);
        }
        if (summary && !json_is_null(summary))
            return ag_invalid(e, PARAM("reasoning.summary"), "%s: not supported here", p);
        ret->effort = effort ? json_incref((json_t *)effort) : json_null();
    }
    v = json_object_get(o, "service_tier");
    if (v && !json_is_null(v) &&
        (!json_is_string(v) || (strcmp(json_string_value(v), "auto") != 0 &&
                                strcmp(json_string_value(v), "default") != 0)))
        return ag_invalid(e, PARAM("service_tier"), "%s: auto or default", p);
    v = json_object_get(o, "text");
    if (v && !json_is_null(v)) {
        if (!json_is_object(v))
            return ag_invalid(e, PARAM("text"), "%s: an object", p);
        const json_t *format = json_object_get(v, "format"),
                     *verbosity = json_object_get(v, "verbosity");
        const char *type = json_string_value(json_object_get(format, "type"));
        if (format && !json_is_null(format) && (!type || strcmp(type, "text") != 0))
            return ag_invalid(e, PARAM("text.format"), "%s: only the type text", p);
        if (verbosity && !json_is_null(verbosity) &&
            (!json_is_string(verbosity) || strcmp(json_string_value(verbosity), "medium") != 0))
            return ag_invalid(e, PARAM("text.verbosity"), "%s: only medium", p);
    }
    v = json_object_get(o, "tools");
    if (json_is_null(v)) {
        ret->tools = json_array();
    } else if (v) {
        if (!json_is_array(v) || json_array_size(v) > 32)
            return ag_invalid(e, PARAM("tools"), "%s: a list of at most 32", p);
        ret->tools = json_array();
        ret->secrets = json_object();
        size_t i;
        json_t *tool;
        json_array_foreach((json_t *)v, i, tool)
        {
            /* tools[0].… stands by itself: the contract names it without "agent." too */
            char at[64];
            snprintf(at, sizeof(at), "%stools[%zu]", prefix, i);
            json_t *wire = NULL;
            if (read_tool(e, tool, at, &wire, ret->secrets) < 0)
                return -1;
            size_t k;
            json_t *other;
            json_array_foreach(ret->tools, k,
                               other) if (json_equal(json_object_get(other, "server_label"),
                                                     json_object_get(wire, "server_label")))
            {
                json_decref(wire);
                strncat(at, ".server_label", sizeof(at) - strlen(at) - 1);
                return ag_invalid(e, at, "%s: used twice", at);
            }
            json_array_append_new(ret->tools, wire);
        }
    }
    return 0;
#undef PARAM
}

int secrets_store(struct call *c, const char *ref, const json_t *secrets)
{
    struct abx_error err;
    if (!json_object_size(secrets))
        return 0;
    if (store_exec(c->ag->store, &err, "INSERT OR REPLACE INTO mem.secrets(ref, doc) VALUES(?,?)",
                   "sj", ref, secrets) < 0)
        return ag_store_fail(c->e, &err);
    return 0;
}

/* --- vaults of a session
 * --------------------------------------------------------------------------------- */

int read_vaults(struct call *c, const json_t *v, json_t *into)
{
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v) || json_array_size(v) > 16)
        return ag_invalid(c->e, "vault_ids", "vault_ids: a list of at most 16 vault ids");
    size_t i;
    json_t *id;
    json_array_foreach((json_t *)v, i, id)
    {
        char param[32];
        snprintf(param, sizeof(param), "vault_ids[%zu]", i);
        if (!json_is_string(id))
            return ag_invalid(c->e, "vault_ids", "vault_ids: a list of strings");
        sqlite3_stmt *s =
            store_stmt(c->ag->store, "SELECT 1 FROM mem.vaults WHERE id = ? AND owner = ?", "ss",
                       json_string_value(id), call_owner(c));
        bool found = s && sqlite3_step(s) == SQLITE_ROW;
        if (s)
            sqlite3_reset(s);
        if (!found)
            return ag_unknown(c->e, param, "vault", json_string_value(id));
        add_once(into, id);
    }
    return 0;
}

int bind_tools(struct call *c, json_t *tools, const json_t *vaults)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        char param[48];
        snprintf(param, sizeof(param), "tools[%zu].credential_id", i);
        const char *wanted = json_string_value(json_object_get(tool, "credential_id"));
        autofree char *origin = url_origin(
            json_string_value(json_object_get(json_object_get(tool, "transport"), "server_url")));
        size_t k;
        json_t *vault;
        autofree char *found = NULL;
        bool named = false, mismatch = false;
        int matches = 0;
        json_array_foreach((json_t *)vaults, k, vault)
        {
            sqlite3_stmt *s = store_stmt(
                c->ag->store, "SELECT id, doc FROM mem.credentials WHERE vault = ? ORDER BY rid",
                "s", json_string_value(vault));
            while (s && sqlite3_step(s) == SQLITE_ROW) {
                autojson json_t *doc = store_json(s, 1);
                const char *url = json_string_value(
                    json_object_get(json_object_get(doc, "auth"), "mcp_server_url"));
                autofree char *theirs = url_origin(url ? url : "");
                bool same = theirs && origin && strcmp(theirs, origin) == 0;
                if (wanted && strcmp(store_text(s, 0), wanted) != 0)
                    continue;
                named = named || wanted;
                mismatch = mismatch || (wanted && !same);
                if (!same)
                    continue;
                matches++;
                free(found);
                found = strdup(store_text(s, 0));
            }
            if (s)
                sqlite3_reset(s);
        }
        if (wanted && !named)
            return ag_fail(c->e, 400, "agents.credential_not_found", param,
                           "%s: not in the vaults of this session", param);
        if (wanted && mismatch)
            return ag_fail(c->e, 400, "agents.credential_mismatch", param,
                           "%s: it is for another server", param);
        if (!wanted && matches > 1)
            return ag_fail(c->e, 400, "agents.credential_ambiguous", param,
                           "%s: several fit, name one", param);
        if (found)
            json_object_set_new(tool, "_credential", json_string(found));
    }
    return 0;
}

/* --- workspaces
 * ------------------------------------------------------------------------------------------ */

bool has_dots(const char *path)
{
    for (const char *p = path; (p = strstr(p, "..")); p += 2)
        if ((p == path || p[-1] == '/') && (p[2] == '/' || !p[2]))
            return true;
    return false;
}

int check_workspace(struct call *c, const char *path, size_t len, const char *param,
                    bool system_dirs)
{
    if (*path != '/' || has_dots(path) || strlen(path) != len || len > 4000)
        return ag_invalid(c->e, param, "workspace_directory: an absolute path without ..");
    static const char *const refused[] = {"/proc", "/sys",  "/dev", "/etc",   "/boot", "/usr",
                                          "/bin",  "/sbin", "/lib", "/lib64", "/run",  "/var/lib"};
    autofree char *real = realpath(path, NULL);
    const char *forms[] = {path, real ? real : path};
    for (size_t f = 0; system_dirs && f < 2; f++) {
        const char *form = forms[f];
        bool bad = form[strspn(form, "/")] == '\0';
        for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
            size_t n = strlen(refused[i]);
            bad = bad || (strncmp(form, refused[i], n) == 0 && (form[n] == '/' || !form[n]));
        }
        if (bad)
            return ag_fail(c->e, 400, "agents.path_refused", param,
                           "workspace_directory: not a place for a workspace");
    }
    struct arena arena;
    struct guard_path gp;
    arena_init(&arena);
    int rc = guard_check(req_guard(c->req), path, len, NULL, OP_WRITE, &arena, &gp, c->err);
    if (rc == 0)
        req_note_path(c->req, gp.resolved);
    arena_done(&arena);
    return rc;
}
