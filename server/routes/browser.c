#include "routes/app.h"
#include "routes/table.h"

#include "base/json.h"
#include "base/num.h"
#include "base/own.h"
#include "browser/browser.h"
#include "browser/chrome.h"
#include "browser/keys.h"
#include "http/req.h"
#include "http/ws.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* How it works: a handler reads the body into a browser_call and submits it; the answer comes back
 * on the loop. A client that leaves cancels its call. */

#define DEFAULT_MS 28000 /* answers before the client's own 30 s are over */
#define CLICK_MS 5000
#define EVALUATE_MS 10000
#define MAX_MS (60 * 60 * 1000)
#define IDLE_SECONDS 900
#define MAX_CDP_MESSAGE (64 * (size_t)MIB)
#define CDP_QUEUE_HIGH (4 * (size_t)MIB)
#define CDP_CLIENT_HIGH (64 * (size_t)MIB)

struct browser_service {
    struct browser *browser; /* NULL until the first use */
    const char *path, *cdp_url;
    uint64_t idle_ms;
};

int browser_service_start(struct app *app, struct abx_error *err)
{
    struct browser_service *s = calloc(1, sizeof *s);
    if (!s)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    /* The server's own settings: what a client puts into /env must not choose a program. */
    const char *idle = getenv("ABX_BROWSER_IDLE_SECONDS");
    int64_t seconds = IDLE_SECONDS;
    if (idle && num_parse(idle, 0, 7 * 24 * 3600, &seconds) < 0) {
        free(s);
        return abx_fail(err, E_CONFIG, 0, "ABX_BROWSER_IDLE_SECONDS must be a number of seconds");
    }
    s->path = getenv("ABX_BROWSER_PATH");
    s->cdp_url = getenv("ABX_BROWSER_CDP_URL");
    s->idle_ms = (uint64_t)seconds * 1000;
    app->browser = s;
    chrome_clean_leftovers(app->loop, app->state_dir);
    return 0;
}

void browser_service_stop(struct app *app)
{
    if (app->browser)
        browser_free(app->browser->browser);
    free(take_ptr(app->browser));
}

static struct browser *get_browser(struct req *req, struct abx_error *err)
{
    struct app *app = req_app(req);
    struct browser_service *s = app->browser;
    if (!s->browser) {
        struct browser_config config = {
            .loop = app->loop,
            .spawner = app->spawner,
            .env = app->env,
            .state_dir = app->state_dir,
            .path = s->path,
            .cdp_url = s->cdp_url,
            .idle_ms = s->idle_ms,
        };
        s->browser = browser_new(&config, err);
    }
    return s->browser;
}

/* --- one call ------------------------------------------------------------------------------- */

struct pending {
    struct req *req;
    struct op *op;
    json_t *value;
    struct buf text;
};

static void pending_free(struct pending *p)
{
    req_unref(p->req);
    json_decref(p->value);
    buf_done(&p->text);
    free(p);
}

static void on_gone(void *data)
{
    struct pending *p = data;
    struct abx_error err;
    browser_cancel(p->op);
    abx_fail(&err, E_CANCELLED, 0, "the client has left");
    req_fail(p->req, &err);
    pending_free(p);
}

static void encode(void *data)
{
    struct pending *p = data;
    json_write(&p->text, p->value);
}

static void encoded(void *data)
{
    struct pending *p = data;
    size_t len = 0;
    char *text = buf_take(&p->text, &len);
    struct abx_error err;
    if (text && resp_json_text(req_resp(p->req), text, len) == 0) {
        req_finish(p->req);
    } else {
        abx_fail(&err, E_NO_MEMORY, 0, "out of memory");
        req_fail(p->req, &err);
    }
    pending_free(p);
}

static void on_done(void *owner, struct browser_result *r)
{
    struct pending *p = owner;
    struct abx_error err;
    req_on_gone(p->req, NULL, NULL);
    if (r->err) {
        if (r->err->kind == E_TOO_LARGE &&
            resp_error(req_resp(p->req), r->err,
                       json_pack("{s:I}", "limit", (json_int_t)r->limit)) == 0)
            req_finish(p->req);
        else
            req_fail(p->req, r->err);
        pending_free(p);
        return;
    }
    int result;
    if (r->text) {
        result = resp_json_text(req_resp(p->req), take_ptr(r->text), r->len);
        if (result < 0)
            abx_fail(&err, E_NO_MEMORY, 0, "out of memory");
    } else if (r->big) {
        p->value = take_ptr(r->value);
        if (req_work(p->req, WORK_LONG, encode, encoded, p, &err) == 0)
            return;
        result = -1;
    } else {
        result = resp_value(req_resp(p->req), take_ptr(r->value), &err);
    }
    if (result < 0)
        req_fail(p->req, &err);
    else
        req_finish(p->req);
    pending_free(p);
}

/* A string that is all of what was sent: what comes after a NUL is not lost. NULL: absent or null. */
static int word_of(const json_t *body, const char *name, const char **ret, struct abx_error *err)
{
    size_t len = 0;
    if (body_opt_str(body, name, ret, &len, err) < 0)
        return -1;
    return !*ret || strlen(*ret) == len ? 0 : abx_fail(err, E_VALUE, 0, "Invalid '%s'", name);
}

static int session_of(struct req *req, const char **ret, struct abx_error *err)
{
    const char *name = NULL;
    if (word_of(req_body(req), "session", &name, err) < 0)
        return -1;
    if (!name)
        name = req_query(req, "session", NULL);
    if (!name)
        name = req_header(req, "X-Browser-Session");
    *ret = name ? name : "";
    if (!browser_session_valid(*ret))
        return abx_fail(err, E_VALUE, 0,
                        "A session's name is made of at most %d letters, digits, '.', '_', '-'",
                        BROWSER_SESSION_MAX);
    return 0;
}

static int submit(struct req *req, struct browser_call *call, struct abx_error *err)
{
    struct browser *b = get_browser(req, err);
    if (!b || session_of(req, &call->session, err) < 0)
        return -1;
    struct pending *p = calloc(1, sizeof *p);
    if (!p)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    call->policy = req_policy(req);
    call->owner = req_identity(req)->id;
    p->op = browser_submit(b, call, on_done, p, err);
    if (!p->op) {
        free(p);
        return -1;
    }
    p->req = req_ref(req);
    req_on_gone(req, on_gone, p);
    return REQ_PENDING;
}

/* Milliseconds as the contract reads them: what is no positive number is the default. */
static int64_t ms_of(const json_t *body, const char *name, int64_t fallback)
{
    int64_t v;
    if (json_coerce_int(json_object_get(body, name), &v) < 0 || v <= 0)
        return fallback;
    return v < MAX_MS ? v : MAX_MS;
}

/* "selector" or, as snapshots name elements, "ref". *ret NULL: neither. */
static int selector_of(struct req *req, const char **ret, struct abx_error *err)
{
    const json_t *body = req_body(req);
    const char *ref = NULL;
    size_t len = 0;
    if (body_opt_str(body, "selector", ret, &len, err) < 0 ||
        word_of(body, "ref", &ref, err) < 0)
        return -1;
    if (*ret && (len == 0 || strlen(*ret) != len))
        return abx_fail(err, E_VALUE, 0, "Missing or invalid 'selector'");
    if (!*ret && ref) {
        int64_t n;
        if (ref[0] != 'e' || num_parse(ref + 1, 1, INT32_MAX, &n) < 0)
            return abx_fail(err, E_VALUE, 0, "Missing or invalid 'ref'");
        *ret = arena_printf(req_arena(req), "ref=%s", ref);
        if (!*ret)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    return 0;
}

static int selector_required(struct req *req, const char **ret, struct abx_error *err)
{
    if (selector_of(req, ret, err) < 0)
        return -1;
    return *ret ? 0 : abx_fail(err, E_VALUE, 0, "Missing or invalid 'selector'");
}

static int until_of(const json_t *body, const char *name, struct browser_call *call,
                    struct abx_error *err)
{
    static const char *const words[] = {"networkidle", "load", "domcontentloaded", "commit"};
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v))
        return 0;
    call->has_until = true;
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (json_word(v) && strcmp(json_word(v), words[i]) == 0) {
            call->until = (enum browser_until)i;
            return 0;
        }
    }
    return abx_fail(err, E_BROWSER, 0,
                    "%s: expected one of (load|domcontentloaded|networkidle|commit)", name);
}

/* --- the contract's eight ------------------------------------------------------------------- */

int route_browser_navigate(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    struct browser_call call = {.op = BROWSER_NAVIGATE};
    size_t len;
    if (body_str(body, "url", &call.url, &len, err) < 0 ||
        browser_judge_url(req_policy(req), call.url, len, err) < 0 ||
        until_of(body, "wait_until", &call, err) < 0)
        return -1;
    call.timeout_ms = ms_of(body, "timeout", DEFAULT_MS);
    return submit(req, &call, err);
}

int route_browser_screenshot(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    struct browser_call call = {
        .op = BROWSER_SCREENSHOT, .timeout_ms = DEFAULT_MS, .full_page = true};
    const char *format = json_word(json_object_get(body, "format"));
    const json_t *selector = json_object_get(body, "selector");
    /* An empty selector means the page, as for every client that always sends the field. */
    if (!(json_is_string(selector) && json_string_length(selector) == 0) &&
        selector_of(req, &call.selector, err) < 0)
        return -1;
    call.jpeg = format && strcasecmp(format, "jpeg") == 0;
    if (json_object_get(body, "full_page"))
        call.full_page = body_truthy(body, "full_page");
    return submit(req, &call, err);
}

int route_browser_content(struct req *req, struct resp *resp, struct abx_error *err)
{
    const char *type = req_query(req, "type", NULL);
    struct browser_call call = {.op = BROWSER_CONTENT,
                                .timeout_ms = DEFAULT_MS,
                                .as_text = type && strcasecmp(type, "text") == 0};
    return submit(req, &call, err);
}

int route_browser_click(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct browser_call call = {.op = BROWSER_CLICK,
                                .timeout_ms = ms_of(req_body(req), "timeout", CLICK_MS)};
    if (selector_required(req, &call.selector, err) < 0)
        return -1;
    return submit(req, &call, err);
}

int route_browser_type(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    struct browser_call call = {.op = BROWSER_TYPE,
                                .timeout_ms = ms_of(body, "timeout", DEFAULT_MS),
                                .text = json_object_get(body, "text"),
                                .clear = body_truthy(body, "clear"),
                                .delay_ms = -1};
    if (selector_required(req, &call.selector, err) < 0)
        return -1;
    if (!json_is_string(call.text))
        return abx_fail(err, E_VALUE, 0, "Missing or invalid 'text'");
    int64_t delay;
    if (json_coerce_int(json_object_get(body, "delay"), &delay) == 0 && delay >= 0)
        call.delay_ms = delay < 60000 ? delay : 60000;
    return submit(req, &call, err);
}

int route_browser_evaluate(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    const char *script;
    size_t len;
    if (body_str(body, "script", &script, &len, err) < 0)
        return -1;
    struct browser_call call = {.op = BROWSER_EVALUATE,
                                .timeout_ms = ms_of(body, "timeout", EVALUATE_MS),
                                .text = json_object_get(body, "script")};
    return submit(req, &call, err);
}

int route_browser_pdf(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    struct browser_call call = {
        .op = BROWSER_PDF, .timeout_ms = DEFAULT_MS, .landscape = body_truthy(body, "landscape")};
    const json_t *format = json_object_get(body, "format");
    call.word = !format || json_is_null(format) ? "A4" : json_word(format);
    if (!call.word)
        return abx_fail(err, E_BROWSER, 0, "Page.pdf: Unknown paper format: it must be a name");
    return submit(req, &call, err);
}

int route_browser_console(struct req *req, struct resp *resp, struct abx_error *err)
{
    const char *session;
    struct browser *b = req_app(req)->browser->browser;
    if (session_of(req, &session, err) < 0)
        return -1;
    size_t dropped = 0;
    json_t *logs = b ? browser_console(b, req_identity(req)->id, session, &dropped) : json_array();
    return resp_json(resp, err, "{s:o, s:I}", "logs", logs, "dropped", (json_int_t)dropped);
}

/* --- additions ------------------------------------------------------------------------------ */

int route_browser_wait(struct req *req, struct resp *resp, struct abx_error *err)
{
    static const char *const states[] = {"visible", "hidden", "attached", "detached"};
    const json_t *body = req_body(req);
    const char *text = NULL;
    struct browser_call call = {.op = BROWSER_WAIT,
                                .timeout_ms = ms_of(body, "timeout", DEFAULT_MS)};
    if (selector_of(req, &call.selector, err) < 0 ||
        body_opt_str(body, "text", &text, NULL, err) < 0 ||
        word_of(body, "state", &call.state, err) < 0 ||
        until_of(body, "load_state", &call, err) < 0)
        return -1;
    bool known = !call.state;
    for (size_t i = 0; i < ARRAY_LEN(states) && !known; i++)
        known = strcmp(call.state, states[i]) == 0;
    if (!known)
        return abx_fail(err, E_VALUE, 0, "Invalid 'state': visible, hidden, attached or detached");
    if (!call.selector && !text && !call.has_until)
        return abx_fail(err, E_VALUE, 0, "One of 'selector', 'text' and 'load_state' is needed");
    if (text)
        call.text = json_object_get(body, "text");
    return submit(req, &call, err);
}

int route_browser_press(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    struct browser_call call = {.op = BROWSER_PRESS,
                                .timeout_ms = ms_of(body, "timeout", CLICK_MS)};
    struct key key;
    int modifiers;
    if (body_str(body, "key", &call.word, NULL, err) < 0 ||
        word_of(body, "key", &call.word, err) < 0 || selector_of(req, &call.selector, err) < 0 ||
        key_parse(call.word, &key, &modifiers, err) < 0)
        return -1;
    return submit(req, &call, err);
}

static int number_of(const json_t *body, const char *name, bool *ret_has, double *ret,
                     struct abx_error *err)
{
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return abx_fail(err, E_VALUE, 0, "Missing or invalid '%s'", name);
    *ret_has = true;
    *ret = json_number_value(v);
    return 0;
}

int route_browser_scroll(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    struct browser_call call = {.op = BROWSER_SCROLL,
                                .timeout_ms = ms_of(body, "timeout", CLICK_MS)};
    if (selector_of(req, &call.selector, err) < 0 ||
        word_of(body, "to", &call.state, err) < 0 ||
        number_of(body, "x", &call.has_x, &call.x, err) < 0 ||
        number_of(body, "y", &call.has_y, &call.y, err) < 0)
        return -1;
    if (call.state && strcmp(call.state, "top") != 0 && strcmp(call.state, "bottom") != 0)
        return abx_fail(err, E_VALUE, 0, "Invalid 'to': top or bottom");
    if (!call.selector && !call.state && !call.has_x && !call.has_y)
        return abx_fail(err, E_VALUE, 0, "One of 'selector', 'to', 'x' and 'y' is needed");
    return submit(req, &call, err);
}

int route_browser_cookies(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct browser_call call = {.op = BROWSER_COOKIES_GET, .timeout_ms = DEFAULT_MS};
    return submit(req, &call, err);
}

int route_browser_cookies_set(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req), *cookie;
    size_t i;
    struct browser_call call = {.op = BROWSER_COOKIES_SET,
                                .timeout_ms = DEFAULT_MS,
                                .clear = body_truthy(body, "clear"),
                                .text = json_object_get(body, "cookies")};
    if (call.text && !json_is_array(call.text))
        return abx_fail(err, E_VALUE, 0, "Invalid 'cookies': a list is expected");
    if (!call.text && !call.clear)
        return abx_fail(err, E_VALUE, 0, "One of 'cookies' and 'clear' is needed");
    json_array_foreach(call.text, i, cookie)
    {
        if (!json_is_string(json_object_get(cookie, "name")) ||
            !json_is_string(json_object_get(cookie, "value")) ||
            (!json_is_string(json_object_get(cookie, "domain")) &&
             !json_is_string(json_object_get(cookie, "url"))))
            return abx_fail(err, E_VALUE, 0,
                            "Invalid 'cookies': each needs name, value, and domain or url");
    }
    return submit(req, &call, err);
}

int route_browser_viewport(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    struct browser_call call = {.op = BROWSER_VIEWPORT, .timeout_ms = DEFAULT_MS, .scale = 1};
    double width = 0, height = 0;
    bool has_width = false, has_height = false, has_scale = false;
    if (number_of(body, "width", &has_width, &width, err) < 0 ||
        number_of(body, "height", &has_height, &height, err) < 0 ||
        number_of(body, "scale", &has_scale, &call.scale, err) < 0)
        return -1;
    if (!has_width || width < 1 || width > 8192 || !has_height || height < 1 || height > 8192)
        return abx_fail(err, E_VALUE, 0, "'width' and 'height' must be between 1 and 8192");
    if (call.scale < 0.1 || call.scale > 4)
        return abx_fail(err, E_VALUE, 0, "'scale' must be between 0.1 and 4");
    call.width = (int)width;
    call.height = (int)height;
    return submit(req, &call, err);
}

int route_browser_snapshot(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct browser_call call = {.op = BROWSER_SNAPSHOT, .timeout_ms = DEFAULT_MS};
    return submit(req, &call, err);
}

int route_browser_sessions(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct browser *b = req_app(req)->browser->browser;
    if (!b)
        return resp_json(resp, err, "{s:b, s:s, s:s, s:[]}", "running", 0, "program", "", "product",
                         "", "sessions");
    return resp_value(resp, browser_sessions(b, req_identity(req)->id), err);
}

int route_browser_session_delete(struct req *req, struct resp *resp, struct abx_error *err)
{
    const char *session;
    struct browser *b = req_app(req)->browser->browser;
    if (session_of(req, &session, err) < 0)
        return -1;
    if (!b || !browser_session_close(b, req_identity(req)->id, session))
        return abx_fail(err, E_BROWSER_MISSING, 0, "No such browser session: '%s'", session);
    return resp_json(resp, err, "{s:s, s:b}", "session", session, "closed", 1);
}

/* --- DevTools clients ----------------------------------------------------------------------- */

/* What /json/version of a browser says; clients take the address from it. */
static int discovery(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct app *app = req_app(req);
    const struct browser *b = app->browser->browser;
    const char *host = req_header(req, "Host"), *proto = req_header(req, "X-Forwarded-Proto");
    char own[300];
    if (!host) {
        (void)snprintf(own, sizeof own, "%s:%d", app->host,
                       app->port); /* a cut name leads nowhere */
        host = own;
    }
    json_t *url = json_sprintf("%s://%s/browser/cdp",
                               proto && strcasecmp(proto, "https") == 0 ? "wss" : "ws", host);
    return resp_json(resp, err, "{s:s, s:s, s:s, s:o}", "Browser",
                     b && *browser_product(b) ? browser_product(b) : "Chrome", "Protocol-Version",
                     "1.3", "User-Agent", b ? browser_user_agent(b) : "", "webSocketDebuggerUrl",
                     url);
}

int route_browser_cdp_version(struct req *req, struct resp *resp, struct abx_error *err)
{
    return discovery(req, resp, err);
}

int route_browser_json_version(struct req *req, struct resp *resp, struct abx_error *err)
{
    return discovery(req, resp, err);
}

struct attachment {
    struct req *req; /* NULL once upgraded */
    struct tap *tap; /* NULL: ended */
    struct ws *ws;
    bool paused;
};

static void attachment_free(struct attachment *a)
{
    if (a->req)
        req_unref(a->req);
    free(a);
}

static void ws_message(void *owner, bool text, const char *data, size_t len)
{
    struct attachment *a = owner;
    if (!a->tap)
        return;
    tap_message(a->tap, data, len);
    if (a->tap && !a->paused && tap_pending(a->tap) > CDP_QUEUE_HIGH) {
        a->paused = true;
        ws_pause(a->ws);
    }
}

static void ws_closed(void *owner, int code)
{
    struct attachment *a = owner;
    if (a->tap)
        tap_close(take_ptr(a->tap));
    attachment_free(a);
}

static void tap_said(void *owner, const char *text, size_t len)
{
    struct attachment *a = owner;
    if (!a->ws)
        return;
    if (ws_pending(a->ws) > CDP_CLIENT_HIGH) {
        /* The protocol has no way to leave messages out. */
        tap_close(take_ptr(a->tap));
        ws_close(a->ws, 1013, "too slow");
        return;
    }
    ws_text(a->ws, text, len);
    if (a->paused && tap_pending(a->tap) <= CDP_QUEUE_HIGH / 2) {
        a->paused = false;
        ws_resume(a->ws);
    }
}

static void tap_ended(void *owner, const struct abx_error *err)
{
    struct attachment *a = owner;
    struct abx_error gone;
    a->tap = NULL;
    if (a->ws) {
        ws_close(a->ws, 1011, "the browser has gone");
        return;
    }
    if (!err)
        abx_fail(&gone, E_BROWSER, 0, "the browser has gone");
    req_on_gone(a->req, NULL, NULL);
    req_fail(a->req, err ? err : &gone);
    attachment_free(a);
}

static void cdp_client_gone(void *data)
{
    struct attachment *a = data;
    struct abx_error err;
    tap_close(take_ptr(a->tap));
    abx_fail(&err, E_CANCELLED, 0, "the client has left");
    req_fail(a->req, &err);
    attachment_free(a);
}

static void tap_ready(void *owner)
{
    static const struct ws_options options = {.max_message = MAX_CDP_MESSAGE,
                                              .text_only = true,
                                              .ping_ms = 30000,
                                              .high_mark = CDP_CLIENT_HIGH};
    static const struct ws_ops ops = {.message = ws_message, .closed = ws_closed};
    struct attachment *a = owner;
    struct abx_error err;
    req_on_gone(a->req, NULL, NULL);
    a->ws = ws_accept(a->req, &options, &ops, a, &err);
    if (!a->ws) {
        tap_close(take_ptr(a->tap));
        req_fail(a->req, &err);
        attachment_free(a);
        return;
    }
    req_unref(take_ptr(a->req));
}

int route_browser_cdp(struct req *req, struct resp *resp, struct abx_error *err)
{
    static const struct tap_ops ops = {
        .ready = tap_ready, .closed = tap_ended, .message = tap_said};
    struct browser *b = get_browser(req, err);
    if (!b)
        return -1;
    struct attachment *a = calloc(1, sizeof *a);
    if (!a)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    a->tap = tap_open(b, req_policy(req), &ops, a, err);
    if (!a->tap) {
        free(a);
        return -1;
    }
    a->req = req_ref(req);
    req_on_gone(req, cdp_client_gone, a);
    return REQ_PENDING;
}
