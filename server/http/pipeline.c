/* The way of a request: match, origin, authenticate, admit, query, body, handler. The order is contract
 * (docs/http.md): the first failure answers, and nothing of the body is read before admission. */

#include "http/internal.h"

#include "base/json.h"
#include "base/log.h"
#include "base/own.h"
#include "policy/guards.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define MAX_CREDENTIALS 16

/* --- refusing --------------------------------------------------------------------------------------- */

void pipeline_refuse(struct req *r, const struct abx_error *err, json_t *fields)
{
    struct abx_error broken;
    err = req_reason(r, err, &broken);
    if (err->status == 401)
        (void)resp_header(&r->resp, "WWW-Authenticate", "Bearer", NULL); /* best effort */
    resp_error(&r->resp, err, fields);
    answer_send(r);
}

static void refuse(struct req *r, enum error_kind kind, const char *message)
{
    struct abx_error err;
    abx_fail(&err, kind, 0, "%s", message);
    pipeline_refuse(r, &err, NULL);
}

void pipeline_bad(struct conn *c, enum error_kind kind, const char *message)
{
    if (!c->req)
        c->req = req_new(c);
    if (!c->req) {
        conn_close(c);
        return;
    }
    c->keep_alive = false;
    c->body_left = 0;
    c->chunked = false;
    refuse(c->req, kind, message);
}

/* What a handler's failure becomes. Details of our own faults stay in the log. */
static void handler_failed(struct req *r, struct abx_error *err)
{
    if (err->kind == E_INTERNAL) {
        log_error("%s %s: %s (errno %d)", r->id, r->route->ep.id, err->message, err->sys);
        abx_fail(err, E_INTERNAL, 0, "Internal error; see the server's log for %s", r->id);
    }
    pipeline_refuse(r, err, NULL);
}

/* --- the handler ------------------------------------------------------------------------------------- */

static void conclude(struct req *r)
{
    if (r->result == REQ_PENDING || r->answered)
        return;
    if (r->result < 0)
        handler_failed(r, &r->err);
    else
        answer_send(r);
}

static void run_on_worker(void *data)
{
    struct req *r = data;
    r->result = r->route->run(r, &r->resp, &r->err);
}

static void worker_done(void *data)
{
    struct req *r = data;
    conclude(r);
    req_unref(r);
}

static void run_handler(struct req *r)
{
    struct conn *c = r->conn;
    c->state = CONN_BUSY;
    r->dispatched = true;
    if (!r->body)
        r->body = json_object();
    if (!r->body) {
        refuse(r, E_NO_MEMORY, "out of memory");
        return;
    }
    uint32_t flags = r->route->ep.flags;
    req_ref(r);
    if (flags & (EP_WORKER | EP_WORKER_LONG)) {
        enum work_lane lane = flags & EP_WORKER_LONG ? WORK_LONG : WORK_SHORT;
        if (loop_work(r->http->loop, lane, run_on_worker, worker_done, r) < 0) {
            refuse(r, E_NO_MEMORY, "out of memory");
            req_unref(r);
        }
        return;
    }
    r->result = r->route->run(r, &r->resp, &r->err);
    conclude(r);
    req_unref(r);
}

/* --- the body ------------------------------------------------------------------------------------------ */

static void parse_body(void *data)
{
    struct req *r = data;
    r->result = json_parse(r->body_text.data, r->body_text.len, &r->body, &r->err);
}

static void parsed(void *data)
{
    struct req *r = data;
    buf_done(&r->body_text);
    if (!r->conn) { /* left while its body was parsed: nothing has run, nothing runs */
        r->resp.status = 499;
        answer_send(r);
        return;
    }
    if (r->result < 0) {
        pipeline_refuse(r, &r->err, NULL);
        return;
    }
    if (!json_is_object(r->body)) {
        refuse(r, E_BAD_BODY, "The request body must be a JSON object");
        return;
    }
    run_handler(r);
}

static void parsed_on_worker(void *data)
{
    struct req *r = data;
    parsed(r);
    req_unref(r);
}

static bool is_multipart(const struct req *r)
{
    const char *type = req_header(r, "content-type");
    while (type && (*type == ' ' || *type == '\t'))
        type++;
    return type && strncasecmp(type, "multipart/form-data", 19) == 0;
}

void pipeline_body(struct req *r)
{
    r->conn->state = CONN_BUSY;
    r->dispatched = true;
    if (r->body_text.len == 0 || ((r->route->ep.flags & EP_MULTIPART) && is_multipart(r))) {
        run_handler(r);
        return;
    }
    if (r->body_text.len <= JSON_ON_LOOP) {
        parse_body(r);
        parsed(r);
        return;
    }
    if (loop_work(r->http->loop, WORK_SHORT, parse_body, parsed_on_worker, req_ref(r)) < 0) {
        req_unref(r);
        refuse(r, E_NO_MEMORY, "out of memory");
    }
}

const char *req_body_text(const struct req *r, size_t *ret_len)
{
    *ret_len = r->body_text.len;
    return r->body_text.data;
}

/* --- who asks ------------------------------------------------------------------------------------------- */

static size_t host_len(const char *authority)
{
    if (*authority == '[') {
        const char *end = strchr(authority, ']');
        return end ? (size_t)(end - authority) + 1 : strlen(authority);
    }
    return strcspn(authority, ":");
}

static bool list_has(const struct str_list *list, const char *text)
{
    for (size_t i = 0; list && i < list->n; i++)
        if (guard_glob(list->items[i], text))
            return true;
    return false;
}

/* "[::1]:9000", which is no pattern with a set of characters. */
static bool is_v6_with_port(const char *entry)
{
    char host[64];
    size_t len = host_len(entry);
    if (entry[0] != '[' || entry[len] != ':' || len >= sizeof host)
        return false;
    memcpy(host, entry, len);
    host[len] = '\0';
    return host_is_v6(host, host);
}

/* name: the host without its port; host: as the client sent it. */
static bool host_listed(const struct str_list *list, const char *name, const char *host)
{
    for (size_t i = 0; i < list->n; i++) {
        const char *entry = list->items[i];
        bool hit;
        if (host_is_v6(entry, entry))
            hit = host_is_v6(entry, name);
        else if (is_v6_with_port(entry))
            hit = strcasecmp(entry, host) == 0;
        else
            hit = guard_glob(entry, name) || guard_glob(entry, host);
        if (hit)
            return true;
    }
    return false;
}

/* Decision 12: without tokens, any web page could otherwise drive the sandbox through its visitor. */
static int check_origin(struct req *r, struct abx_error *err)
{
    struct policy *p = site_policy(r->site);
    const char *host = req_header(r, "host");
    const struct str_list *hosts = policy_hosts(p);
    if (hosts && hosts->n > 0) {
        char *name = arena_strndup(&r->arena, host ? host : "", host ? host_len(host) : 0);
        if (!name)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        for (char *c = name; *c; c++)
            if (*c >= 'A' && *c <= 'Z')
                *c |= 0x20;
        if (!host_listed(hosts, name, host ? host : ""))
            return abx_fail(err, E_HOST_DENIED, 0, "This Host is not accepted");
    }
    if (policy_has_tokens(p))
        return 0;
    const char *origin = req_header(r, "origin"), *fetch = req_header(r, "sec-fetch-site");
    if (!origin && !fetch)
        return 0;
    if (origin && list_has(policy_origins(p), origin))
        return 0;
    if (origin) {
        const char *authority = strstr(origin, "://");
        if (!authority || !host || strcasecmp(authority + 3, host) != 0)
            return abx_fail(err, E_ORIGIN_DENIED, 0, "Requests from other web origins need a token or a policy");
        return 0;
    }
    if (strcasecmp(fetch, "cross-site") == 0)
        return abx_fail(err, E_ORIGIN_DENIED, 0, "Requests from other web sites need a token or a policy");
    return 0;
}

static int authenticate(struct req *r, struct abx_error *err)
{
    if (r->route->ep.flags & EP_NO_AUTH) {
        r->who = policy_nobody();
        return 0;
    }
    struct credential creds[MAX_CREDENTIALS];
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < r->n_headers; i++) {
            const char *name = r->head.data + r->headers[i].name, *value = r->head.data + r->headers[i].value;
            size_t len = r->headers[i].value_len;
            if (pass == 0) {
                if (strcasecmp(name, "authorization") != 0 || strncasecmp(value, "bearer", 6) != 0 ||
                    (value[6] != ' ' && value[6] != '\0'))
                    continue;
                value += 6;
                len -= 6;
                while (*value == ' ' || *value == '\t') {
                    value++;
                    len--;
                }
            } else if (strcasecmp(name, "x-access-token") != 0) {
                continue;
            }
            if (!len && (r->route->ep.flags & EP_QUERY_TOKEN))
                continue; /* a blank one is none: the query's is read */
            if (n == MAX_CREDENTIALS)
                return abx_fail(err, E_AMBIGUOUS_CREDENTIALS, 0, "Too many credential headers");
            creds[n++] = (struct credential){.bearer = pass == 0, .value = value, .len = len};
        }
    }
    if (n == 0 && (r->route->ep.flags & EP_QUERY_TOKEN)) {
        size_t len;
        const char *token = req_query_raw(r, "token", &len);
        if (token)
            creds[n++] = (struct credential){.value = token, .len = len};
    }
    return policy_authenticate(site_policy(r->site), creds, n, &r->who, err);
}

/* Accept first, close then: browsers can read only close codes. */
static bool refuse_late(struct req *r, const struct abx_error *err)
{
    if (!(r->route->ep.flags & EP_WS_LATE))
        return false;
    static const struct {
        enum error_kind kind;
        int close_code;
        const char *reason;
    } rows[] = {
        {E_UNAUTHORIZED, 4001, "Unauthorized"},
        {E_AMBIGUOUS_CREDENTIALS, 4001, "Unauthorized"},
        {E_DISABLED, 4003, "Endpoint disabled"},
        {E_MISSING_SCOPE, 4003, "Forbidden"},
        {E_RATE_LIMITED, 1013, "Try again later"},
        {E_CONCURRENCY_LIMITED, 1013, "Try again later"},
    };
    size_t i = 0;
    while (i < ARRAY_LEN(rows) && rows[i].kind != err->kind)
        i++;
    if (i == ARRAY_LEN(rows))
        return false;
    r->ws_refusal = rows[i].close_code;
    r->ws_reason = rows[i].reason;
    snprintf(r->resp.code_copy, sizeof r->resp.code_copy, "%s", err->code);
    r->resp.code = r->resp.code_copy; /* for the audit */
    r->resp.error = (uint16_t)(err->kind + 1);
    return true;
}

/* Steps 3 and 4. 0: go on. -1: answered, or (late) to be answered by the handler. */
static int admit(struct req *r)
{
    struct abx_error err;
    if (authenticate(r, &err) < 0) {
        if (!refuse_late(r, &err))
            pipeline_refuse(r, &err, NULL);
        return -1;
    }
    const char *scope = NULL;
    if (policy_permits(r->rule, r->who, &scope, &err) < 0) {
        if (refuse_late(r, &err))
            return -1;
        json_t *fields = NULL;
        if (err.kind == E_MISSING_SCOPE)
            fields = json_pack("{s:s, s:s}", "scope", scope, "identity", r->who->id);
        else if (r->rule->origin)
            fields = json_pack("{s:s}", "rule", r->rule->origin);
        pipeline_refuse(r, &err, fields);
        return -1;
    }
    int retry_after = 1;
    if (limits_admit(r->http->limits, r->rule, r->who, loop_now(r->http->loop), &r->slot, &retry_after, &err) < 0) {
        if (refuse_late(r, &err))
            return -1;
        char text[16];
        snprintf(text, sizeof text, "%d", retry_after);
        (void)resp_header(&r->resp, "Retry-After", text, NULL); /* best effort; the body has it too */
        pipeline_refuse(r, &err, json_pack("{s:i}", "retry_after", retry_after));
        return -1;
    }
    return 0;
}

/* --- the head is complete -------------------------------------------------------------------------------- */

static bool header_has_token(const char *value, const char *token)
{
    size_t len = strlen(token);
    while (value && *value) {
        while (*value == ' ' || *value == ',' || *value == '\t')
            value++;
        size_t n = strcspn(value, ", \t");
        if (n == len && strncasecmp(value, token, len) == 0)
            return true;
        value += n;
    }
    return false;
}

static void answer_options(struct req *r)
{
    const char *origin = req_header(r, "origin");
    if (origin && req_header(r, "access-control-request-method")) {
        if (!list_has(policy_origins(site_policy(r->site)), origin)) {
            refuse(r, E_ORIGIN_DENIED, "Cross-origin requests are off; the policy's auth.allowed_origins turns them on");
            return;
        }
        const char *headers = req_header(r, "access-control-request-headers");
        (void)resp_header(&r->resp, "Access-Control-Allow-Methods", "GET, POST, PUT, DELETE, PATCH", NULL);
        if (headers)
            (void)resp_header(&r->resp, "Access-Control-Allow-Headers", headers, NULL);
        (void)resp_header(&r->resp, "Access-Control-Max-Age", "600", NULL);
    }
    resp_status(&r->resp, 204);
    answer_send(r);
}

static void add_allow(struct req *r, uint32_t allowed)
{
    autobuf struct buf text = BUF_INIT;
    for (int m = 0; m < METHOD_COUNT; m++) {
        if (!(allowed & (1u << m)))
            continue;
        buf_adds(&text, m == M_WS ? "GET" : method_name((enum method)m));
        buf_adds(&text, ", ");
        if (m == M_GET)
            buf_adds(&text, "HEAD, ");
    }
    buf_adds(&text, "OPTIONS");
    if (buf_str(&text))
        (void)resp_header(&r->resp, "Allow", text.data, NULL);
}

static enum method method_of(const struct req *r)
{
    switch (r->method) {
    case HTTP_GET:
    case HTTP_HEAD:
        return M_GET;
    case HTTP_POST:
        return M_POST;
    case HTTP_PUT:
        return M_PUT;
    case HTTP_DELETE:
        return M_DELETE;
    case HTTP_PATCH:
        return M_PATCH;
    default:
        return METHOD_COUNT;
    }
}

/* False: answered. */
static bool match(struct req *r)
{
    uint32_t allowed = 0;
    enum method method = method_of(r);
    const char *upgrade = req_header(r, "upgrade");
    bool websocket = r->method == HTTP_GET && upgrade && header_has_token(upgrade, "websocket");
    if (r->conn->kind == HTTP_PORT_PTY) {
        r->route = site_pty_route(r->site, r);
        r->rule = r->route ? policy_find(site_policy(r->site), r->route->ep.id) : NULL;
        if (!r->rule) {
            refuse(r, E_NO_ROUTE, "There is no terminal here");
            return false;
        }
        if (!websocket) {
            (void)resp_header(&r->resp, "Upgrade", "websocket", NULL);
            r->route = NULL;
            refuse(r, E_UPGRADE_REQUIRED, "This port speaks WebSocket only");
            return false;
        }
        r->resp.endpoint = &r->route->ep;
        return true;
    }
    if (websocket && site_match(r->site, M_WS, r->path, r, &allowed) == MATCH_OK) {
        r->resp.endpoint = &r->route->ep;
        return true;
    }
    enum match found = site_match(r->site, method, r->path, r, &allowed);
    if (r->method == HTTP_OPTIONS) {
        if (found == MATCH_NONE && strcmp(r->path, "*") != 0) {
            refuse(r, E_NO_ROUTE, "Not found");
            return false;
        }
        add_allow(r, allowed);
        answer_options(r);
        return false;
    }
    if (found == MATCH_OK) {
        r->resp.endpoint = &r->route->ep;
        return true;
    }
    r->route = NULL;
    struct abx_error err;
    if (found == MATCH_OTHER_METHOD) {
        add_allow(r, allowed);
        if (allowed == 1u << M_WS) {
            (void)resp_header(&r->resp, "Upgrade", "websocket", NULL);
            abx_fail(&err, E_UPGRADE_REQUIRED, 0, "This is a WebSocket endpoint");
        } else {
            abx_fail(&err, E_METHOD, 0, "%s is not allowed here", req_method(r));
        }
    } else {
        abx_fail(&err, E_NO_ROUTE, 0, "Not found: %.200s", r->path);
    }
    pipeline_refuse(r, &err, NULL);
    return false;
}

static void make_id(struct req *r)
{
    uint64_t n = ++r->http->next_id;
    char text[20];
    size_t at = sizeof text;
    do
        text[--at] = "0123456789abcdef"[n & 15];
    while (n >>= 4);
    r->id[0] = 'r';
    r->id[1] = '-';
    memcpy(r->id + 2, text + at, sizeof text - at);
    r->id[2 + sizeof text - at] = '\0';
}

/* The body's framing as far as it is wrong for every endpoint; the head's own contradictions were
 * refused while it was read. */
static int check_body(struct req *r, struct abx_error *err)
{
    if (req_header(r, "transfer-encoding") && !(r->route->ep.flags & EP_CHUNKED))
        return abx_fail(err, E_UNSUPPORTED_ENCODING, 0, "Transfer-Encoding is not supported here; send Content-Length");
    if (r->content_length > r->max_body)
        return abx_fail(err, E_TOO_LARGE, 0, "Request body too large (%lld bytes); limit is %lld",
                        (long long)r->content_length, (long long)r->max_body);
    return 0;
}

void pipeline_head(struct req *r)
{
    struct conn *c = r->conn;
    struct abx_error err;
    make_id(r);
    r->site = site_ref(r->http->site);
    measure_begin(r);
    const char *expect = req_header(r, "expect");
    r->expect_100 = expect && !r->http10 && strcasecmp(expect, "100-continue") == 0;
    if (r->target_len == 1 && r->head.data[0] == '*' && r->method == HTTP_OPTIONS)
        r->path = arena_strdup(&r->arena, "*");
    else
        r->path = target_path(&r->arena, r->head.data, &r->query_text);
    if (!r->path) {
        pipeline_bad(c, E_BAD_REQUEST, "The request target is not a path");
        return;
    }
    if (r->http->stopping) {
        refuse(r, E_STOPPING, "The server is stopping");
        return;
    }
    if (!match(r))
        return;
    if (check_origin(r, &err) < 0) {
        pipeline_refuse(r, &err, NULL);
        return;
    }
    /* A WebSocket's query comes first: its token may be there. A repeated name is refused after admission. */
    bool ws = r->route->ep.flags & EP_QUERY_TOKEN;
    int query = ws ? query_parse(&r->arena, r->query_text, &r->query, &r->n_query, &err) : 0;
    struct abx_error query_err = err;
    if (admit(r) < 0) {
        if (r->ws_refusal)
            run_handler(r);
        return;
    }
    if (!ws)
        query = query_parse(&r->arena, r->query_text, &r->query, &r->n_query, &query_err);
    if (query < 0) {
        pipeline_refuse(r, &query_err, NULL);
        return;
    }
    if (expect && !r->expect_100 && !r->http10) {
        c->keep_alive = false; /* whether its body comes is not known */
        refuse(r, E_EXPECTATION, "Only Expect: 100-continue is understood");
        return;
    }
    if (r->method == HTTP_GET || r->method == HTTP_HEAD) {
        run_handler(r);
        return;
    }
    r->max_body = rule_limit(r->rule, LIMIT_max_request_bytes, DEFAULT_MAX_REQUEST);
    if (r->route->ep.flags & EP_BODY_STREAM)
        r->max_body = INT64_MAX; /* the handler has limits of its own */
    if (check_body(r, &err) < 0) {
        pipeline_refuse(r, &err, err.kind == E_TOO_LARGE ? json_pack("{s:I}", "limit", (json_int_t)r->max_body) : NULL);
        return;
    }
    if (r->route->ep.flags & EP_BODY_STREAM) {
        run_handler(r); /* calls req_body_start */
        return;
    }
    conn_start_body(c);
}
