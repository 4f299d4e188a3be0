/* GET /commands, POST /commands/{name}, and the routes of a template. */

#include "routes/commands.h"

#include "base/json.h"
#include "base/log.h"
#include "base/own.h"
#include "routes/commands_internal.h"
#include "routes/table.h"

#include <string.h>
#include <strings.h>

#define TIMEOUT_DEFAULT 300.0
#define RELAY_ON_LOOP (256 * KIB) /* larger results are checked on a worker */

/* --- the service ----------------------------------------------------------------------------------- */

int registry_service_start(struct app *app, struct abx_error *err)
{
    app->registry = calloc(1, sizeof(*app->registry));
    return app->registry ? 0 : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

void registry_service_stop(struct app *app)
{
    if (app->registry)
        registry_unref(app->registry->current);
    free(take_ptr(app->registry));
}

void commands_use(struct app *app, struct registry *registry)
{
    struct registry *before = app->registry->current;
    app->registry->current = registry ? registry_ref(registry) : NULL;
    registry_unref(before);
}

const struct endpoint *const *commands_taken(size_t *ret_n)
{
    static const struct endpoint *const taken[ROUTE_COUNT] = {
#define ROUTE(id, ...) [R_##id] = &builtin_routes[R_##id].ep,
#include "routes/routes.def"
#undef ROUTE
    };
    *ret_n = ROUTE_COUNT;
    return taken;
}

/* --- a call ------------------------------------------------------------------------------------------ */

/* Lives in the request's arena; holds the request and the registry until its end. */
struct call {
    struct req *req;
    struct registry *registry;
    struct host_call *host_call;
    struct stream *stream;
    bool route, streams;
    bool gone;        /* the client has left */
    size_t uncredited; /* bytes of events that the host has not been given back */
    const char *scope_missing;
    /* a large result on its way through a worker */
    char *body;
    size_t body_len;
    struct buf text;
    struct abx_error error;
    int relayed;
};

static void call_done(struct call *c)
{
    struct registry *registry = c->registry;
    struct req *req = c->req;
    req_on_gone(req, NULL, NULL);
    buf_done(&c->text);
    free(take_ptr(c->body));
    req_unref(req);
    registry_unref(registry);
}

/* The JSON object in `fields` (from a host, may be anything), plus nothing that would hide our own keys. */
static json_t *parse_fields(const char *fields)
{
    struct abx_error ignored;
    json_t *object = NULL;
    if (!fields || !*fields || json_parse(fields, strlen(fields), &object, &ignored) < 0)
        return NULL;
    if (!json_is_object(object)) {
        json_decref(object);
        return NULL;
    }
    static const char *const own[] = {"error", "type", "code", "endpoint"};
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        json_object_del(object, own[i]);
    return object;
}

static void finish_error(struct call *c, const struct abx_error *err, json_t *fields)
{
    struct abx_error shown = *err;
    if (shown.status == 500 && !shown.type)
        shown.type = "RuntimeError";
    if (resp_error(req_resp(c->req), &shown, fields) < 0)
        req_fail(c->req, &shown);
    else
        req_finish(c->req);
}

/* An error after events: told as an event, since the status has gone out. */
static void stream_error(struct call *c, const struct abx_error *err, json_t *fields)
{
    autojson json_t *data = fields ? fields : json_object();
    json_object_set_new(data, "error", json_text(err->message));
    json_object_set_new(data, "type", json_text(err->type));
    if (err->code)
        json_object_set_new(data, "code", json_text(err->code));
    stream_event(c->stream, "error", data, NULL);
    stream_end(take_ptr(c->stream));
}

static void fail_call(struct call *c, const struct abx_error *err, json_t *fields)
{
    if (c->stream)
        stream_error(c, err, fields);
    else
        finish_error(c, err, fields);
    call_done(c);
}

static void on_failed(void *owner, const struct abx_error *err, const char *fields)
{
    struct call *c = owner;
    c->host_call = NULL;
    fail_call(c, err, parse_fields(fields));
}

/* --- results ------------------------------------------------------------------------------------------- */

static void send_text(struct call *c)
{
    size_t len;
    if (c->stream) {
        if (!c->route)
            stream_event_text(c->stream, "result", c->text.data, c->text.len, NULL);
        stream_end(take_ptr(c->stream));
        call_done(c);
        return;
    }
    char *text = buf_take(&c->text, &len);
    if (!text) {
        abx_fail(&c->error, E_NO_MEMORY, 0, "out of memory for the result");
        fail_call(c, &c->error, NULL);
        return;
    }
    if (resp_json_text(req_resp(c->req), text, len) < 0) {
        abx_fail(&c->error, E_NO_MEMORY, 0, "out of memory for the result");
        req_fail(c->req, &c->error);
    } else {
        req_finish(c->req);
    }
    call_done(c);
}

static int relay(struct call *c, const char *body, size_t len)
{
    if (!c->route)
        buf_adds(&c->text, "{\"result\": ");
    if (json_relay(&c->text, body, len, &c->error) < 0) {
        struct abx_error why = c->error;
        return why.kind == E_VALUE ? abx_fail(&c->error, E_COMMAND_RESULT, 0, "The result is not JSON: %s", why.message) : -1;
    }
    if (!c->route)
        buf_addc(&c->text, '}');
    return c->text.failed ? abx_fail(&c->error, E_NO_MEMORY, 0, "out of memory for the result") : 0;
}

static void relay_run(void *data)
{
    struct call *c = data;
    c->relayed = relay(c, c->body, c->body_len);
}

static void relay_done(void *data)
{
    struct call *c = data;
    if (c->relayed < 0)
        fail_call(c, &c->error, NULL);
    else
        send_text(c);
}

static bool is_framing(const char *name)
{
    static const char *const ours[] = {"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade",
                                       "trailer", "date", "server"};
    for (size_t i = 0; i < ARRAY_LEN(ours); i++)
        if (strcasecmp(name, ours[i]) == 0)
            return true;
    return false;
}

/* Status and headers of a route's answer; *ret_type: its own Content-Type, or NULL. */
static int reply_head(struct call *c, const struct host_result *res, const char **ret_type)
{
    struct wire_reader r = res->headers;
    if (res->status < 200 || res->status > 599)
        return abx_fail(&c->error, E_COMMAND_RESULT, 0, "The route answered with status %d", res->status);
    for (uint32_t i = 0; i < res->n_headers; i++) {
        const char *name = wire_get_text(&r, NULL), *value = wire_get_text(&r, NULL);
        if (is_framing(name))
            return abx_fail(&c->error, E_COMMAND_RESULT, 0, "The route set the header '%.60s', which is the server's", name);
        if (strcasecmp(name, "content-type") == 0)
            *ret_type = value;
        else if (resp_header(req_resp(c->req), name, value, &c->error) < 0)
            return abx_fail(&c->error, E_COMMAND_RESULT, 0, "The route set a header that can't be sent");
    }
    resp_status(req_resp(c->req), res->status);
    return 0;
}

static bool is_text(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
            return false;
    return true;
}

static void on_result(void *owner, const struct host_result *res)
{
    struct call *c = owner;
    c->host_call = NULL;
    const char *type = NULL;
    if (c->route && !c->stream && reply_head(c, res, &type) < 0) {
        fail_call(c, &c->error, NULL);
        return;
    }
    if (!res->json && !c->stream) {
        type = type ? type : res->content_type;
        if (!c->route)
            abx_fail(&c->error, E_COMMAND_RESULT, 0, "A command can't return bytes, only a route can");
        else if (!*type || !is_text(type))
            abx_fail(&c->error, E_COMMAND_RESULT, 0, "The route answered with a bad content type");
        else if (resp_bytes(req_resp(c->req), type, res->body, res->body_len, &c->error) == 0) {
            req_finish(c->req);
            call_done(c);
            return;
        }
        fail_call(c, &c->error, NULL);
        return;
    }
    if (res->body_len > RELAY_ON_LOOP) {
        c->body = malloc(res->body_len);
        c->body_len = res->body_len;
        if (!c->body)
            abx_fail(&c->error, E_NO_MEMORY, 0, "out of memory for the result");
        else
            memcpy(c->body, res->body, res->body_len);
        if (!c->body || req_work(c->req, WORK_SHORT, relay_run, relay_done, c, &c->error) < 0)
            fail_call(c, &c->error, NULL);
        return;
    }
    if (c->route && c->stream)
        send_text(c); /* what a stream returns at its end is not sent */
    else if (relay(c, res->body, res->body_len) < 0)
        fail_call(c, &c->error, NULL);
    else if (c->route && type && is_text(type)) { /* JSON under a name of its own: application/problem+json */
        if (resp_bytes(req_resp(c->req), type, c->text.data, c->text.len, &c->error) < 0) {
            fail_call(c, &c->error, NULL);
        } else {
            req_finish(c->req);
            call_done(c);
        }
    } else {
        send_text(c);
    }
}

/* --- events ---------------------------------------------------------------------------------------------- */

static void give_credit(struct call *c)
{
    if (c->host_call)
        host_call_credit(c->host_call, c->uncredited);
    c->uncredited = 0;
}

static void on_drain(void *owner)
{
    give_credit(owner);
}

/* The client has left, by the stream's or the request's word. */
static void on_gone(void *data)
{
    struct call *c = data;
    struct abx_error err;
    if (c->gone)
        return;
    c->gone = true;
    bool streamed = c->stream != NULL;
    c->stream = NULL;
    if (!c->host_call) /* its result is on a worker: that ends it */
        return;
    host_call_cancel(take_ptr(c->host_call));
    if (!streamed) {
        abx_fail(&err, E_CANCELLED, 0, "The client has left");
        req_fail(c->req, &err);
    }
    call_done(c);
}

static bool is_event_name(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    return n > 0 && n <= 64 && !s[n];
}

static void on_event(void *owner, const char *name, const char *json, size_t len)
{
    static const struct stream_ops ops = {.drain = on_drain, .gone = on_gone};
    struct call *c = owner;
    autobuf struct buf text = BUF_INIT;
    if (!c->stream) {
        req_on_gone(c->req, NULL, NULL);
        c->stream = stream_open_sse(c->req, &ops, c);
    }
    int bad = is_event_name(name) ? json_relay(&text, json, len, &c->error)
                                  : abx_fail(&c->error, E_VALUE, 0, "the name of an event is not a word");
    if (bad || !c->stream) {
        struct abx_error why = c->error;
        host_call_cancel(take_ptr(c->host_call));
        abx_fail(&c->error, E_COMMAND_RESULT, 0, "The event can't be sent: %s", bad ? why.message : "no memory");
        fail_call(c, &c->error, NULL);
        return;
    }
    stream_event_text(c->stream, name, text.data, text.len, NULL);
    c->uncredited += len + strlen(name) + 22; /* as the host counts: with the frame around it */
    if (c->stream && !stream_full(c->stream) && c->uncredited >= WIRE_CREDIT / 4)
        give_credit(c);
}

/* --- paths ------------------------------------------------------------------------------------------------- */

static int on_resolve(void *owner, int op, const char *path, const char **ret, struct abx_error *err)
{
    static const enum guard_op ops[] = {OP_READ, OP_WRITE, OP_DELETE, OP_EXEC};
    struct call *c = owner;
    struct guard_path judged;
    if (op < 0 || (size_t)op >= ARRAY_LEN(ops))
        return abx_fail(err, E_VALUE, 0, "unknown operation");
    if (guard_check(req_guard(c->req), path, strlen(path), NULL, ops[op], req_arena(c->req), &judged, err) < 0)
        return -1;
    req_note_path(c->req, judged.resolved);
    *ret = judged.resolved;
    return 0;
}

/* --- making a call ------------------------------------------------------------------------------------------- */

static const struct host_call_ops call_ops = {
    .result = on_result, .failed = on_failed, .event = on_event, .resolve = on_resolve};

static void put_caller(const struct req *req, uint32_t index, uint32_t flags, struct wire_buf *out)
{
    const struct identity *who = req_identity(req);
    const struct rule *rule = req_rule(req);
    wire_u32(out, index);
    wire_u32(out, flags);
    wire_str(out, req_id(req));
    wire_str(out, who->id);
    wire_str(out, policy_base_dir(req_policy(req)));
    wire_u32(out, (uint32_t)who->scopes.n);
    for (size_t i = 0; i < who->scopes.n; i++)
        wire_str(out, who->scopes.items[i]);
    static const struct {
        enum limit limit;
        const char *name;
        bool seconds;
    } limits[] = {{LIMIT_max_request_bytes, "max_request_bytes", false},
                  {LIMIT_rate_per_minute, "rate_per_minute", false},
                  {LIMIT_max_concurrency, "max_concurrency", false},
                  {LIMIT_timeout_seconds, "timeout_seconds", true}};
    size_t at = out->len;
    uint32_t n = 0;
    wire_u32(out, 0);
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        if (!(rule->limits_set & (1u << limits[i].limit)))
            continue;
        wire_str(out, limits[i].name);
        wire_f64(out, limits[i].seconds ? rule->seconds[limits[i].limit] : (double)rule->count[limits[i].limit]);
        n++;
    }
    wire_patch(out, at, n);
}

static uint64_t timeout_ms(const struct req *req, double own)
{
    double seconds = rule_seconds(req_rule(req), LIMIT_timeout_seconds, TIMEOUT_DEFAULT);
    if (own > 0 && own < seconds)
        seconds = own;
    return seconds < 0.001 ? 1 : seconds > 1e12 ? (uint64_t)1e15 : (uint64_t)(seconds * 1000);
}

static int start_call(struct req *req, struct registry *registry, struct host *host, const char *name, double timeout,
                      bool route, struct abx_error *err)
{
    struct call *c = arena_zalloc(req_arena(req), sizeof(*c));
    if (!c) {
        host_call_abort(host);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    c->route = route;
    if (host_call_commit(host, name, timeout_ms(req, timeout), &call_ops, c, &c->host_call, err) < 0)
        return -1;
    c->req = req_ref(req);
    c->registry = registry_ref(registry);
    req_on_gone(req, on_gone, c);
    return REQ_PENDING;
}

/* --- POST /commands/{name} -------------------------------------------------------------------------------------- */

static bool visible(const struct registry_command *c, const struct identity *who)
{
    if (c->spec->flags & WIRE_HIDDEN)
        return false;
    for (size_t i = 0; c->spec->scopes[i]; i++)
        if (!identity_has(who, c->spec->scopes[i]))
            return false;
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int unknown_command(struct req *req, const char *name, size_t len, struct abx_error *err)
{
    const struct registry *r = req_app(req)->registry->current;
    size_t n = r ? registry_command_count(r) : 0, seen = 0;
    const char **names = arena_alloc(req_arena(req), (n + 1) * sizeof(*names));
    autobuf struct buf text = BUF_INIT;
    for (size_t i = 0; names && i < n; i++) {
        const struct registry_command *c = registry_command_at(r, i);
        if (visible(c, req_identity(req)))
            names[seen++] = c->spec->name;
    }
    if (seen)
        qsort(names, seen, sizeof(*names), by_text);
    for (size_t i = 0; i < seen; i++)
        buf_addf(&text, "%s%s", i ? ", " : "", names[i]);
    const char *list = buf_str(&text);
    return abx_fail(err, E_UNKNOWN_COMMAND, 0, "Unknown command '%.*s'; available: %s", (int)(len < 200 ? len : 200), name,
                    seen && list ? list : "(none)");
}

static int missing_scope(const char *scope, struct resp *resp, struct abx_error *err)
{
    abx_fail(err, E_MISSING_SCOPE, 0, "Missing required scope '%s'", scope);
    return resp_error(resp, err, json_pack("{s:s}", "scope", scope));
}

static bool wants_events(const struct req *req)
{
    const char *accept = req_header(req, "Accept");
    return accept && strcasestr(accept, "text/event-stream");
}

int route_run_command(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct registry *registry = req_app(req)->registry->current;
    size_t len;
    const char *name = req_param(req, "name", &len);
    const struct registry_command *cmd = registry ? registry_find(registry, name, len) : NULL;
    const struct builtin_command *builtin = cmd ? NULL : builtin_command_find(name, len);
    if (builtin)
        return builtin_command_run(builtin, req, resp, err);
    if (!cmd)
        return unknown_command(req, name, len, err);
    const struct command_spec *spec = cmd->spec;
    for (size_t i = 0; spec->scopes[i]; i++)
        if (!identity_has(req_identity(req), spec->scopes[i]))
            return missing_scope(spec->scopes[i], resp, err);
    struct wire_buf *frame = host_call_begin(cmd->host, err);
    if (!frame)
        return -1;
    bool events = spec->flags & WIRE_STREAMS && wants_events(req);
    put_caller(req, spec->index, events ? WIRE_CALL_EVENTS : 0, frame);
    if (command_spec_args(spec, req_body(req), frame, err) < 0) {
        host_call_abort(cmd->host);
        return -1;
    }
    return start_call(req, registry, cmd->host, spec->name, spec->timeout, false, err);
}

/* --- GET /commands ------------------------------------------------------------------------------------------------- */

json_t *commands_visible(struct req *req, bool with_builtin)
{
    const struct registry *r = req_app(req)->registry->current;
    json_t *list = json_array();
    for (size_t i = 0; r && i < registry_command_count(r); i++) {
        const struct registry_command *c = registry_command_at(r, i);
        if (visible(c, req_identity(req)))
            json_array_append_new(list, command_spec_json(c->spec));
    }
    const struct builtin_command *b;
    for (size_t i = 0; with_builtin && (b = builtin_command_at(i)); i++)
        if (!r || !registry_find(r, b->name, strlen(b->name)))
            json_array_append_new(list, builtin_command_json(b));
    return list;
}

int route_list_commands(struct req *req, struct resp *resp, struct abx_error *err)
{
    return resp_json(resp, err, "{s:o}", "commands", commands_visible(req, req_query_bool(req, "builtin")));
}

/* --- routes of a template --------------------------------------------------------------------------------------------- */

/* The owner of a site: its own rows, and the registry that they point into. */
struct custom_routes {
    struct registry *registry;
    struct route *routes;
    struct custom {
        struct custom_routes *all;
        const struct registry_route *route;
    } *customs;
};

static void free_custom(void *owner)
{
    struct custom_routes *all = owner;
    registry_unref(all->registry);
    free(all->routes);
    free(all->customs);
    free(all);
}

static void add_pair(void *data, const char *name, const char *value)
{
    struct wire_buf *out = data;
    wire_str(out, name);
    wire_str(out, value);
}

struct counter {
    struct wire_buf *out;
    uint32_t n;
};

static void add_counted(void *data, const char *name, const char *value)
{
    struct counter *c = data;
    add_pair(c->out, name, value);
    c->n++;
}

static void put_params(struct req *req, struct wire_buf *out)
{
    size_t at = out->len;
    uint32_t n = 0;
    wire_u32(out, 0);
    for (const char *s = req_endpoint(req)->path; (s = strchr(s, '{')); s++) {
        size_t len = strcspn(s + 1, "}");
        const char *name = arena_strndup(req_arena(req), s + 1, len);
        const char *value = name ? req_param(req, name, NULL) : NULL;
        if (!value)
            continue;
        add_pair(out, name, value);
        n++;
    }
    wire_patch(out, at, n);
}

static void put_each(const struct req *req, struct wire_buf *out,
                     void (*each)(const struct req *, void (*)(void *, const char *, const char *), void *))
{
    size_t at = out->len;
    struct counter c = {.out = out};
    wire_u32(out, 0);
    each(req, add_counted, &c);
    wire_patch(out, at, c.n);
}

/* The caller's credentials are the server's business: a route sees who it is, never the token. */
static void add_header(void *data, const char *name, const char *value)
{
    if (strcasecmp(name, "Authorization") != 0 && strcasecmp(name, "X-Access-Token") != 0)
        add_counted(data, name, value);
}

static int run_custom(struct req *req, struct resp *resp, struct abx_error *err)
{
    const struct custom *custom = req_route(req)->data;
    const struct route_spec *spec = custom->route->spec;
    struct host *host = custom->route->host;
    struct wire_buf *out = host_call_begin(host, err);
    if (!out)
        return -1;
    bool has_body = spec->ep.method != M_GET;
    put_caller(req, spec->index, WIRE_CALL_ROUTE | (spec->flags & WIRE_STREAMS ? WIRE_CALL_EVENTS : 0), out);
    route_args(has_body ? req_body(req) : NULL, out);
    wire_str(out, req_method(req));
    wire_str(out, req_path(req));
    put_params(req, out);
    put_each(req, out, req_each_query);
    size_t at = out->len;
    struct counter headers = {.out = out};
    wire_u32(out, 0);
    req_each_header(req, add_header, &headers);
    wire_patch(out, at, headers.n);
    autobuf struct buf body = BUF_INIT;
    if (has_body)
        json_write(&body, req_body(req));
    wire_u32(out, has_body);
    wire_text(out, body.data, body.len);
    return start_call(req, custom->all->registry, host, spec->ep.id, spec->timeout, true, err);
}

static struct custom_routes *custom_new(struct registry *registry)
{
    size_t n = registry ? registry_route_count(registry) : 0;
    struct custom_routes *all = calloc(1, sizeof(*all));
    if (!all)
        return NULL;
    all->routes = calloc(n + 1, sizeof(*all->routes));
    all->customs = calloc(n + 1, sizeof(*all->customs));
    if (!all->routes || !all->customs) {
        free_custom(all);
        return NULL;
    }
    all->registry = registry ? registry_ref(registry) : NULL;
    for (size_t i = 0; i < n; i++) {
        all->customs[i] = (struct custom){.all = all, .route = registry_route_at(registry, i)};
        all->routes[i] = (struct route){.ep = all->customs[i].route->spec->ep, .run = run_custom, .data = &all->customs[i]};
    }
    return all;
}

int commands_site(struct registry *registry, const struct policy_inputs *in, struct site **ret, struct abx_error *err)
{
    size_t n_custom = registry ? registry_route_count(registry) : 0, n = ROUTE_COUNT + n_custom;
    struct custom_routes *all = custom_new(registry);
    autofree const struct route **routes = calloc(n, sizeof(*routes));
    autofree const struct endpoint **endpoints = calloc(n, sizeof(*endpoints));
    if (!all || !routes || !endpoints) {
        if (all)
            free_custom(all);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        routes[i] = i < ROUTE_COUNT ? &builtin_routes[i] : &all->routes[i - ROUTE_COUNT];
        endpoints[i] = &routes[i]->ep;
    }
    struct policy_inputs inputs = *in;
    inputs.endpoints = endpoints;
    inputs.n_endpoints = n;
    if (registry)
        registry_code_groups(registry, inputs.code_groups);
    struct policy *policy;
    if (policy_compile(&inputs, &policy, err) < 0) {
        free_custom(all);
        return -1;
    }
    int rc = site_new(routes, n, policy, free_custom, all, ret, err);
    policy_unref(policy);
    if (rc < 0)
        free_custom(all);
    return rc;
}
