#include "browser/priv.h"

#include "base/json.h"
#include "base/log.h"
#include "base/own.h"
#include "base/utf8.h"
#include "browser/value.h"
#include "policy/guards.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* How it works. The browser attaches us to every page and worker before it runs (auto-attach); a
 * target is one of ours (opened for a context), a pop-up of one, or foreign (a DevTools client's):
 * that one is let go. Events of our pages keep the context's picture of its page; a call that waits
 * for the page is woken by each change and looks at the picture. */

#define OPEN_MS 12000
#define PROBE_MS 300
#define FIX_MS 1200
#define MAX_POPUPS 4

/* --- small things --------------------------------------------------------------------------- */

void copy_id(char *to, const json_t *from)
{
    const char *s = json_string_value(from);
    size_t n = s ? strlen(s) : 0;
    if (n >= ID_MAX)
        n = 0; /* no id of the protocol is that long */
    if (n > 0)
        memcpy(to, s, n);
    to[n] = '\0';
}

static const char *str(const json_t *object, const char *name)
{
    const char *s = json_string_value(json_object_get(object, name));
    return s ? s : "";
}

static bool same_session(struct cdp_span s, const char *session)
{
    return *session && cdp_is(s, session);
}

static void tell(struct context *ctx, const char *method, json_t *params)
{
    if (ctx->b->cdp && *ctx->session)
        cdp_send(ctx->b->cdp, ctx->session, method, params, NULL, NULL);
    else
        json_decref(params);
}

static bool is_alive(const struct browser *b, const struct context *ctx)
{
    list_for_each(it, &b->contexts)
    {
        if (list_entry(it, struct context, link) == ctx)
            return true;
    }
    return false;
}

/* --- console -------------------------------------------------------------------------------- */

void page_note(struct context *ctx, const char *type, const char *text, size_t len, const char *url,
               int line, double at)
{
    size_t kept = len > CONSOLE_LINE_MAX ? utf8_floor(text, CONSOLE_LINE_MAX) : len;
    struct line l = {.type = strdup(type), .url = strdup(url), .line = line, .at = at};
    l.text = malloc(kept + 4);
    if (!l.type || !l.url || !l.text) {
        free(l.type);
        free(l.url);
        free(l.text);
        ctx->dropped++;
        return;
    }
    memcpy(l.text, text, kept);
    for (char *nul; (nul = memchr(l.text, '\0', kept));)
        *nul = ' ';
    memcpy(l.text + kept, kept < len ? "..." : "", kept < len ? 4 : 1);
    if (ctx->n_lines == CONSOLE_KEPT) {
        struct line *oldest = &ctx->lines[ctx->first_line];
        free(oldest->type);
        free(oldest->text);
        free(oldest->url);
        ctx->first_line = (ctx->first_line + 1) % CONSOLE_KEPT;
        ctx->n_lines--;
        ctx->dropped++;
    }
    ctx->lines[(ctx->first_line + ctx->n_lines++) % CONSOLE_KEPT] = l;
}

static void note(struct context *ctx, const char *type, const char *text)
{
    page_note(ctx, type, text, strlen(text), ctx->url, 0, wall_seconds());
}

static void on_console(struct context *ctx, const json_t *p)
{
    autobuf struct buf text = BUF_INIT;
    const json_t *args = json_object_get(p, "args"), *arg;
    size_t i;
    json_array_foreach(args, i, arg)
    {
        if (i > 0)
            buf_addc(&text, ' ');
        value_console_text(&text, arg);
    }
    const json_t *frames = json_object_get(json_object_get(p, "stackTrace"), "callFrames");
    const json_t *top = json_array_get(frames, 0);
    int line = top ? (int)json_integer_value(json_object_get(top, "lineNumber")) + 1 : 0;
    double at = json_number_value(json_object_get(p, "timestamp")) / 1000;
    if (!text.failed)
        page_note(ctx, str(p, "type"), text.len > 0 ? text.data : "", text.len, str(top, "url"),
                  line, at);
}

static void on_exception(struct context *ctx, const json_t *p)
{
    autobuf struct buf text = BUF_INIT;
    const json_t *details = json_object_get(p, "exceptionDetails");
    buf_adds(&text, "Uncaught ");
    value_exception_text(&text, details);
    double at = json_number_value(json_object_get(p, "timestamp")) / 1000;
    int line = (int)json_integer_value(json_object_get(details, "lineNumber")) + 1;
    if (!text.failed)
        page_note(ctx, "error", text.data, text.len, str(details, "url"), line, at);
}

static void on_log(struct context *ctx, const json_t *p)
{
    const json_t *e = json_object_get(p, "entry");
    const json_t *text = json_object_get(e, "text");
    const char *slash = strrchr(str(e, "url"), '/');
    if (slash && strcmp(slash, "/favicon.ico") == 0)
        return; /* asked for by the browser, not by the page */
    if (json_is_string(text))
        page_note(ctx, str(e, "level"), json_string_value(text), json_string_length(text),
                  str(e, "url"), (int)json_integer_value(json_object_get(e, "lineNumber")),
                  json_number_value(json_object_get(e, "timestamp")) / 1000);
}

/* --- the network ---------------------------------------------------------------------------- */

static void forget_request(struct context *ctx, const char *id)
{
    for (size_t i = 0; i < ctx->n_requests; i++) {
        if (strcmp(ctx->requests[i].id, id) != 0)
            continue;
        ctx->requests[i] = ctx->requests[--ctx->n_requests];
        if (ctx->n_requests == 0)
            ctx->quiet_since = loop_now(ctx->b->loop);
        return;
    }
}

/* A new document: what others still load does not count. */
static void keep_requests_of(struct context *ctx, const char *loader)
{
    for (size_t i = ctx->n_requests; i-- > 0;) {
        if (strcmp(ctx->requests[i].loader, loader) != 0)
            ctx->requests[i] = ctx->requests[--ctx->n_requests];
    }
    ctx->quiet_since = loop_now(ctx->b->loop);
}

static void on_request(struct context *ctx, const json_t *p)
{
    const char *url = str(json_object_get(p, "request"), "url");
    const char *type = str(p, "type"), *id = str(p, "requestId");
    if (strcmp(id, str(p, "loaderId")) == 0 && strcmp(str(p, "frameId"), ctx->target) == 0 &&
        strcmp(type, "Document") == 0)
        (void)snprintf(ctx->nav_url, sizeof ctx->nav_url, "%s",
                       url); /* cut: only its host is needed */
    if (strncmp(url, "data:", 5) == 0 || strncmp(url, "blob:", 5) == 0 ||
        strcmp(type, "EventSource") == 0 || strcmp(type, "WebSocket") == 0)
        return;
    forget_request(ctx, id); /* a redirect comes under the same id */
    if (ctx->n_requests == ctx->cap_requests) {
        size_t cap = ctx->cap_requests ? 2 * ctx->cap_requests : 16;
        struct request_id *more = cap <= 4096 ? realloc(ctx->requests, cap * sizeof *more) : NULL;
        if (!more)
            return; /* a page with thousands at once: quiet is told a little early */
        ctx->requests = more;
        ctx->cap_requests = cap;
    }
    struct request_id *r = &ctx->requests[ctx->n_requests++];
    copy_id(r->id, json_object_get(p, "requestId"));
    copy_id(r->loader, json_object_get(p, "loaderId"));
}

static void on_response(struct context *ctx, const json_t *p)
{
    if (strcmp(str(p, "requestId"), str(p, "loaderId")) != 0 ||
        strcmp(str(p, "frameId"), ctx->target) != 0 || strcmp(str(p, "type"), "Document") != 0)
        return;
    const json_t *r = json_object_get(p, "response");
    copy_id(ctx->response_loader, json_object_get(p, "loaderId"));
    /* Only HTTP has a status; Chromium makes up 200 for data: and blob:. */
    ctx->response_status = strncmp(str(r, "url"), "http", 4) == 0
                               ? (int)json_integer_value(json_object_get(r, "status"))
                               : 0;
}

/* --- requests that wait for a verdict (Fetch) ----------------------------------------------- */

struct verdict {
    struct browser *b;
    struct context *ctx; /* NULL: a pop-up's or a worker's */
    unsigned generation, opening;
    char session[ID_MAX], request[ID_MAX], host[256];
    bool loopback_passes;    /* the port is one that may be reached there */
    bool refused, document;
    enum error_kind why;
};

static void answer_request(struct browser *b, const char *session, const char *request, bool pass)
{
    if (!b->cdp)
        return;
    if (pass)
        cdp_send(b->cdp, session, "Fetch.continueRequest", json_pack("{s:s}", "requestId", request),
                 NULL, NULL);
    else
        cdp_send(b->cdp, session, "Fetch.failRequest",
                 json_pack("{s:s, s:s}", "requestId", request, "errorReason", "BlockedByClient"),
                 NULL, NULL);
}

static void verdict_work(void *data)
{
    struct verdict *v = data;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(v->host, NULL, &hints, &list) != 0)
        return; /* the browser will say so itself */
    for (struct addrinfo *a = list; a; a = a->ai_next)
        v->refused |= address_is_private(a->ai_addr) &&
                      !(v->loopback_passes && browser_is_loopback(a->ai_addr));
    freeaddrinfo(list);
}

static void verdict_done(void *data)
{
    struct verdict *v = data;
    if (v->generation == v->b->generation) {
        if (v->refused && v->document && is_alive(v->b, v->ctx) && v->opening == v->ctx->opening)
            v->ctx->denied = v->why;
        answer_request(v->b, v->session, v->request, !v->refused);
    }
    free(v);
}

/* Of a URL that the rules have let pass; NULL: no memory, or a host that no lookup takes. */
static struct verdict *verdict_new(struct browser *b, const char *url, size_t len)
{
    const struct sockaddr_in loopback = {.sin_family = AF_INET,
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct arena arena;
    struct url_parts parts = {0};
    struct url_rules rules = {.allow_private = true};
    struct abx_error err;
    struct verdict *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    arena_init(&arena);
    if (url_check(&rules, url, len, &arena, &parts, &err) == 0 &&
        strlen(parts.host) < sizeof v->host) {
        v->b = b;
        v->generation = b->generation;
        memcpy(v->host, parts.host, strlen(parts.host) + 1);
        v->loopback_passes =
            browser_may_reach(b, v->host, parts.port, (const struct sockaddr *)&loopback);
    } else {
        free(take_ptr(v));
    }
    arena_done(&arena);
    return v;
}

static void on_paused(struct browser *b, struct context *ctx, const char *session, const json_t *p)
{
    const json_t *url_text = json_object_get(json_object_get(p, "request"), "url");
    const char *url = json_string_value(url_text) ? json_string_value(url_text) : "";
    const char *request = str(p, "requestId");
    bool document = ctx && strcmp(str(p, "resourceType"), "Document") == 0 &&
                    strcmp(str(p, "frameId"), ctx->target) == 0;
    if (strncmp(url, "http", 4) != 0 && strncmp(url, "ws", 2) != 0) {
        static const char *const local[] = {"data:", "blob:", "about:", "chrome-extension:"};
        bool pass = false;
        for (size_t i = 0; i < ARRAY_LEN(local); i++)
            pass |= strncmp(url, local[i], strlen(local[i])) == 0;
        answer_request(b, session, request, pass);
        return;
    }
    struct abx_error err;
    if (!b->policy || browser_judge_url(b->policy, url, json_string_length(url_text), &err) < 0) {
        if (document)
            ctx->denied = b->policy ? err.kind : E_URL_DENIED;
        answer_request(b, session, request, false);
        return;
    }
    /* Without a proxy of our own, names are looked up here as well. */
    const struct rule *r = browser_rule(b);
    if (b->socks || (r && rule_flag(r, PARAM_allow_private, false))) {
        answer_request(b, session, request, true);
        return;
    }
    struct verdict *v = verdict_new(b, url, json_string_length(url_text));
    if (!v) {
        answer_request(b, session, request, false);
        return;
    }
    v->ctx = ctx;
    v->opening = ctx ? ctx->opening : 0;
    v->document = document;
    v->why =
        r && rule_flag(r, PARAM_block_private_networks, false) ? E_URL_NOT_ALLOWED : E_URL_DENIED;
    (void)snprintf(v->session, sizeof v->session, "%s", session); /* as large as ours */
    copy_id(v->request, json_object_get(p, "requestId"));
    if (loop_work(b->loop, WORK_ALONE, verdict_work, verdict_done, v) < 0) {
        answer_request(b, session, request, false);
        free(v);
    }
}

/* --- opening -------------------------------------------------------------------------------- */

static void open_failed(struct context *ctx, const char *why)
{
    struct abx_error err;
    abx_fail(&err, E_BROWSER, 0, "No page could be opened: %s", why);
    page_drop(ctx, why);
    if (!list_empty(&ctx->queue))
        op_fail(list_entry(ctx->queue.next, struct op, link), &err);
    context_pump(ctx);
}

static void probe(struct context *ctx, uint64_t ms);

static void on_page_late(void *data)
{
    struct context *ctx = data;
    if (ctx->state == PAGE_FIXING && !ctx->terminated) {
        ctx->terminated = true;
        tell(ctx, "Runtime.terminateExecution", NULL);
        probe(ctx, FIX_MS);
    } else if (ctx->state == PAGE_FIXING) {
        note(ctx, "error", "The page did not respond and was replaced by a new one");
        tell(ctx, "Page.crash", NULL);
        page_drop(ctx, "the page did not respond");
        context_pump(ctx);
    } else if (ctx->state == PAGE_OPENING) {
        browser_down(ctx->b, "the browser does not respond");
    }
}

/* An answer to an opening; NULL context when it is an older one's. */
struct opening {
    struct browser *b;
    struct context *ctx;
    unsigned opening;
};

static struct context *opening_done(struct opening *o, struct cdp_answer *a)
{
    struct context *ctx = is_alive(o->b, o->ctx) ? o->ctx : NULL;
    bool current = ctx && ctx->state == PAGE_OPENING && ctx->opening == o->opening;
    free(o);
    if (!current || a->code == CDP_CLOSED)
        return NULL;
    if (a->code != CDP_OK) {
        open_failed(ctx, a->message);
        return NULL;
    }
    return ctx;
}

static void ask(struct context *ctx, const char *session, const char *method, json_t *params,
                cdp_done fn)
{
    struct opening *o = malloc(sizeof *o);
    if (!o) {
        json_decref(params);
        return; /* the opening's timer ends it */
    }
    *o = (struct opening){ctx->b, ctx, ctx->opening};
    cdp_send(ctx->b->cdp, session, method, params, fn, o);
}

static void on_set_up(void *data, struct cdp_answer *a)
{
    struct context *ctx = opening_done(data, a);
    if (!ctx)
        return;
    timer_stop(&ctx->page_timer);
    ctx->state = PAGE_READY;
    context_pump(ctx);
}

static bool must_intercept(const struct browser *b) { return !b->socks || browser_has_globs(b); }

static void intercept(struct browser *b, const char *session)
{
    cdp_send(b->cdp, session, "Fetch.enable",
             json_pack("{s:[{s:s}]}", "patterns", "urlPattern", "*"), NULL, NULL);
}

json_t *page_metrics(int width, int height, double scale)
{
    return json_pack("{s:i, s:i, s:f, s:b, s:i, s:i}", "width", width, "height", height,
                     "deviceScaleFactor", scale, "mobile", 0, "screenWidth", width, "screenHeight",
                     height);
}

/* The session of a fresh page is known: everything we need of it is turned on in one go. */
static void set_up(struct context *ctx, struct target *t)
{
    (void)snprintf(ctx->target, sizeof ctx->target, "%s", t->id);
    (void)snprintf(ctx->session, sizeof ctx->session, "%s", t->session);
    ctx->world = 0;
    ctx->loader[0] = ctx->response_loader[0] = '\0';
    (void)snprintf(ctx->url, sizeof ctx->url, "about:blank");
    ctx->dom_ready = ctx->loaded = ctx->nav_requested = false;
    ctx->n_requests = 0;
    tell(ctx, "Page.enable", NULL);
    tell(ctx, "Page.setLifecycleEventsEnabled", json_pack("{s:b}", "enabled", 1));
    tell(ctx, "Runtime.enable", NULL);
    tell(ctx, "Network.enable",
         json_pack("{s:i, s:i, s:i}", "maxTotalBufferSize", 1, "maxResourceBufferSize", 1,
                   "maxPostDataSize", 0));
    tell(ctx, "Log.enable", NULL);
    tell(ctx, "Inspector.enable", NULL);
    /* There is no printer; a page that waits for its dialog could not be made into a PDF. */
    tell(ctx, "Page.addScriptToEvaluateOnNewDocument",
         json_pack("{s:s, s:b}", "source", "window.print = function print() {}", "runImmediately",
                   1));
    tell(ctx, "Emulation.setFocusEmulationEnabled", json_pack("{s:b}", "enabled", 1));
    ctx->covered = false;
    if (must_intercept(ctx->b)) {
        intercept(ctx->b, ctx->session);
        tell(ctx, "Target.setAutoAttach",
             json_pack("{s:b, s:b, s:b}", "autoAttach", 1, "waitForDebuggerOnStart", 1, "flatten",
                       1));
    }
    if (t->waiting)
        tell(ctx, "Runtime.runIfWaitingForDebugger", NULL);
    t->waiting = false;
    ask(ctx, ctx->session, "Emulation.setDeviceMetricsOverride", page_metrics(ctx->width, ctx->height, ctx->scale), on_set_up);
}

static struct target *find_target(struct browser *b, const char *id)
{
    list_for_each(it, &b->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        if (*id && strcmp(t->id, id) == 0)
            return t;
    }
    return NULL;
}

static void on_created(void *data, struct cdp_answer *a)
{
    struct context *ctx = opening_done(data, a);
    if (!ctx)
        return;
    /* Auto-attach has told about it before this answer. */
    struct target *t = find_target(ctx->b, str(a->result, "targetId"));
    if (t)
        set_up(ctx, t);
    else
        open_failed(ctx, "the new page has gone at once");
}

static void create(struct context *ctx)
{
    json_t *params = json_pack("{s:s}", "url", "about:blank");
    if (*ctx->browser_context)
        json_object_set_new(params, "browserContextId", json_string(ctx->browser_context));
    ask(ctx, NULL, "Target.createTarget", params, on_created);
}

static void on_context(void *data, struct cdp_answer *a)
{
    struct context *ctx = opening_done(data, a);
    if (!ctx)
        return;
    copy_id(ctx->browser_context, json_object_get(a->result, "browserContextId"));
    cdp_send(ctx->b->cdp, NULL, "Browser.setDownloadBehavior",
             json_pack("{s:s, s:s, s:b}", "behavior", "deny", "browserContextId",
                       ctx->browser_context, "eventsEnabled", 1),
             NULL, NULL);
    create(ctx);
}

void page_open(struct context *ctx)
{
    struct browser *b = ctx->b;
    ctx->state = PAGE_OPENING;
    ctx->opening++;
    timer_init(&ctx->page_timer, b->loop, on_page_late, ctx);
    timer_start(&ctx->page_timer, OPEN_MS);
    /* Of a browser that others use too, we take no page and no cookies of theirs. */
    if (!*ctx->browser_context && (*ctx->name || b->cdp_url)) {
        ask(ctx, NULL, "Target.createBrowserContext", json_pack("{s:b}", "disposeOnDetach", 1),
            on_context);
        return;
    }
    if (!*ctx->name) {
        list_for_each(it, &b->targets)
        {
            struct target *t = list_entry(it, struct target, link);
            if (t->page && t->waiting && !*t->opener && !t->popup_of) {
                set_up(ctx, t); /* the page that the browser came with */
                return;
            }
        }
    }
    create(ctx);
}

void target_free(struct target *t)
{
    list_remove(&t->link);
    free(t);
}

void page_targets_clear(struct browser *b)
{
    list_for_each_safe(it, &b->targets) { target_free(list_entry(it, struct target, link)); }
}

void page_forget_context(struct context *ctx)
{
    list_for_each(it, &ctx->b->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        if (t->popup_of == ctx)
            t->popup_of = NULL;
    }
}

static void close_target(struct browser *b, const char *id)
{
    if (b->cdp && *id)
        cdp_send(b->cdp, NULL, "Target.closeTarget", json_pack("{s:s}", "targetId", id), NULL,
                 NULL);
}

void page_drop(struct context *ctx, const char *why)
{
    char target[ID_MAX];
    memcpy(target, ctx->target, sizeof target);
    if (ctx->state != PAGE_NONE)
        timer_stop(&ctx->page_timer);
    ctx->state = PAGE_NONE;
    ctx->opening++;
    ctx->target[0] = ctx->session[0] = '\0';
    ctx->world = 0;
    ctx->n_requests = 0;
    struct target *t = find_target(ctx->b, target);
    if (t) {
        target_free(t);
        close_target(ctx->b, target);
    }
    if (ctx->running) {
        struct abx_error err;
        abx_fail(&err, E_BROWSER, 0, "%s", why);
        op_fail(ctx->running, &err);
    }
}

static void on_probed(void *data, struct cdp_answer *a)
{
    struct opening *o = data;
    struct context *ctx = is_alive(o->b, o->ctx) ? o->ctx : NULL;
    bool current = ctx && ctx->state == PAGE_FIXING && ctx->opening == o->opening;
    free(o);
    if (!current || a->code == CDP_CLOSED)
        return;
    timer_stop(&ctx->page_timer);
    ctx->state = PAGE_READY;
    context_pump(ctx);
}

static void probe(struct context *ctx, uint64_t ms)
{
    ctx->opening++;
    timer_start(&ctx->page_timer, ms);
    ask(ctx, ctx->session, "Runtime.evaluate", json_pack("{s:s}", "expression", "1"), on_probed);
}

void page_fix(struct context *ctx, bool stop_loading)
{
    if (ctx->state != PAGE_READY)
        return;
    ctx->state = PAGE_FIXING;
    ctx->terminated = false;
    if (stop_loading)
        tell(ctx, "Page.stopLoading", NULL);
    probe(ctx, PROBE_MS);
}

/* --- events --------------------------------------------------------------------------------- */

static void on_navigated(struct context *ctx, const json_t *p)
{
    const json_t *f = json_object_get(p, "frame");
    if (json_is_string(json_object_get(f, "parentId")))
        return;
    char loader[ID_MAX];
    copy_id(loader, json_object_get(f, "loaderId"));
    (void)snprintf(ctx->url, sizeof ctx->url, "%s", str(f, "url")); /* cut: only shown */
    ctx->nav_requested = false;
    ctx->world = 0;
    if (strcmp(ctx->loader, loader) == 0)
        return;
    memcpy(ctx->loader, loader, sizeof ctx->loader);
    ctx->dom_ready = ctx->loaded = false;
    keep_requests_of(ctx, loader);
}

static void on_lifecycle(struct context *ctx, const json_t *p)
{
    if (strcmp(str(p, "frameId"), ctx->target) != 0)
        return;
    const char *name = str(p, "name");
    if (strcmp(str(p, "loaderId"), ctx->loader) != 0) {
        if (*ctx->loader)
            return;
        copy_id(ctx->loader, json_object_get(p, "loaderId")); /* the page's first document */
    }
    if (strcmp(name, "DOMContentLoaded") == 0)
        ctx->dom_ready = true;
    else if (strcmp(name, "load") == 0)
        ctx->dom_ready = ctx->loaded = true;
}

static void dismiss(struct browser *b, struct context *ctx, const char *session, const json_t *p)
{
    const char *type = str(p, "type");
    bool leaving = strcmp(type, "beforeunload") == 0;
    cdp_send(b->cdp, session, "Page.handleJavaScriptDialog", json_pack("{s:b}", "accept", leaving),
             NULL, NULL);
    autobuf struct buf text = BUF_INIT;
    buf_addf(&text, "%s dialog %s: ", type, leaving ? "accepted" : "dismissed");
    buf_adds(&text, str(p, "message"));
    if (!text.failed)
        page_note(ctx, "dialog", text.data, text.len, str(p, "url"), 0, wall_seconds());
}

static void page_message(struct context *ctx, const struct cdp_head *h)
{
    static const struct {
        const char *method;
        void (*fn)(struct context *ctx, const json_t *p);
    } table[] = {
        {"Page.frameNavigated", on_navigated},
        {"Page.lifecycleEvent", on_lifecycle},
        {"Network.requestWillBeSent", on_request},
        {"Network.responseReceived", on_response},
        {"Runtime.consoleAPICalled", on_console},
        {"Runtime.exceptionThrown", on_exception},
        {"Log.entryAdded", on_log},
    };
    struct browser *b = ctx->b;
    autojson json_t *p = NULL;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (!cdp_is(h->method, table[i].method))
            continue;
        p = cdp_parse(h->params.at, h->params.len);
        table[i].fn(ctx, p);
        op_page_changed(ctx);
        return;
    }
    if (cdp_is(h->method, "Inspector.targetCrashed")) {
        note(ctx, "error", "The page has crashed");
        page_drop(ctx, "the page has crashed");
        context_pump(ctx);
        return;
    }
    if (cdp_is(h->method, "Runtime.executionContextsCleared")) {
        ctx->world = 0;
        return;
    }
    bool finished =
        cdp_is(h->method, "Network.loadingFinished") || cdp_is(h->method, "Network.loadingFailed");
    bool dialog = cdp_is(h->method, "Page.javascriptDialogOpening");
    bool paused = cdp_is(h->method, "Fetch.requestPaused");
    bool requested = cdp_is(h->method, "Page.frameRequestedNavigation");
    bool stopped = cdp_is(h->method, "Page.frameStoppedLoading") ||
                   cdp_is(h->method, "Page.navigatedWithinDocument");
    bool download = cdp_is(h->method, "Page.downloadWillBegin");
    bool attached = cdp_is(h->method, "Target.attachedToTarget");
    if (!(finished || dialog || paused || requested || stopped || download || attached))
        return;
    p = cdp_parse(h->params.at, h->params.len);
    bool of_page = strcmp(str(p, "frameId"), ctx->target) == 0;
    if (finished) {
        forget_request(ctx, str(p, "requestId"));
    } else if (dialog) {
        dismiss(b, ctx, ctx->session, p);
    } else if (paused) {
        on_paused(b, ctx, ctx->session, p);
    } else if (requested && of_page) {
        if (strcmp(str(p, "disposition"), "currentTab") == 0)
            ctx->nav_requested = true;
    } else if (stopped && of_page) {
        ctx->nav_requested = false;
        const char *url = str(p, "url");
        if (*url)
            (void)snprintf(ctx->url, sizeof ctx->url, "%s", url); /* cut: only shown */
    } else if (download) {
        autobuf struct buf text = BUF_INIT;
        buf_addf(&text, "Download refused: %s", str(p, "url"));
        ctx->downloaded = true;
        ctx->nav_requested = false;
        if (!text.failed)
            page_note(ctx, "warning", text.data, text.len, str(p, "url"), 0, wall_seconds());
    } else if (attached) {
        /* A worker of a guarded page: its own requests are judged too. */
        struct target *t = calloc(1, sizeof *t);
        const json_t *info = json_object_get(p, "targetInfo");
        if (!t)
            return;
        copy_id(t->id, json_object_get(info, "targetId"));
        copy_id(t->session, json_object_get(p, "sessionId"));
        list_append(&b->targets, &t->link);
        intercept(b, t->session);
        cdp_send(b->cdp, t->session, "Runtime.runIfWaitingForDebugger", NULL, NULL, NULL);
    }
    op_page_changed(ctx);
}

bool page_event(struct browser *b, const struct cdp_head *h)
{
    list_for_each(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        if (same_session(h->session, ctx->session)) {
            page_message(ctx, h);
            return true;
        }
    }
    list_for_each(it, &b->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        if (!same_session(h->session, t->session))
            continue;
        if (cdp_is(h->method, "Page.javascriptDialogOpening") && t->popup_of) {
            autojson json_t *p = cdp_parse(h->params.at, h->params.len);
            dismiss(b, t->popup_of, t->session, p);
        } else if (cdp_is(h->method, "Fetch.requestPaused")) {
            autojson json_t *p = cdp_parse(h->params.at, h->params.len);
            on_paused(b, NULL, t->session, p);
        }
        return true;
    }
    return false;
}

static struct context *context_of_page(struct browser *b, const char *target)
{
    list_for_each(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        if (*target && strcmp(ctx->target, target) == 0)
            return ctx;
    }
    return NULL;
}

/* A pop-up stays beside its page, set up so that its dialogs can't block it; the oldest gives way.
 */
static void adopt_popup(struct browser *b, struct context *ctx, struct target *t)
{
    t->popup_of = ctx;
    cdp_send(b->cdp, t->session, "Page.enable", NULL, NULL, NULL);
    if (must_intercept(b))
        intercept(b, t->session);
    cdp_send(b->cdp, t->session, "Runtime.runIfWaitingForDebugger", NULL, NULL, NULL);
    t->waiting = false;
    size_t n = 0;
    struct target *oldest = NULL;
    list_for_each(it, &b->targets)
    {
        struct target *other = list_entry(it, struct target, link);
        if (other->popup_of != ctx)
            continue;
        n++;
        if (!oldest)
            oldest = other;
    }
    if (n > MAX_POPUPS && oldest) {
        close_target(b, oldest->id);
        target_free(oldest);
    }
}

static bool somebody_opens(struct browser *b, const char *browser_context)
{
    list_for_each(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        if (ctx->state == PAGE_OPENING && !*ctx->target &&
            (!*ctx->browser_context || strcmp(ctx->browser_context, browser_context) == 0))
            return true;
    }
    return false;
}

/* Whose window is it, when it names no opener (noopener) and no DevTools client could have made it?
 */
static struct context *context_of_windows(struct browser *b, const char *browser_context)
{
    if (!list_empty(&b->taps))
        return NULL;
    list_for_each(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        if (*ctx->target &&
            (!*ctx->browser_context || strcmp(ctx->browser_context, browser_context) == 0))
            return ctx;
    }
    return NULL;
}

static void let_go(struct browser *b, struct target *t)
{
    if (must_intercept(b))
        intercept(b, t->session);
    cdp_send(b->cdp, t->session, "Runtime.runIfWaitingForDebugger", NULL, NULL, NULL);
    t->waiting = false;
    if (!must_intercept(b)) {
        cdp_send(b->cdp, NULL, "Target.detachFromTarget",
                 json_pack("{s:s}", "sessionId", t->session), NULL, NULL);
        target_free(t);
    }
}

static void on_attached(struct browser *b, const json_t *p)
{
    const json_t *info = json_object_get(p, "targetInfo");
    if (strcmp(str(info, "type"), "browser") == 0)
        return; /* a DevTools client's own session */
    struct target *t = calloc(1, sizeof *t);
    if (!t)
        return;
    copy_id(t->id, json_object_get(info, "targetId"));
    copy_id(t->session, json_object_get(p, "sessionId"));
    copy_id(t->context, json_object_get(info, "browserContextId"));
    copy_id(t->opener, json_object_get(info, "openerId"));
    t->page = strcmp(str(info, "type"), "page") == 0;
    t->waiting = true;
    list_append(&b->targets, &t->link);
    list_for_each(it, &b->contexts)
    {
        struct context *c = list_entry(it, struct context, link);
        if (t->page && (!*c->browser_context || strcmp(c->browser_context, t->context) == 0))
            c->covered = true;
    }
    struct target *opener = find_target(b, t->opener);
    struct context *ctx = context_of_page(b, t->opener);
    if (!ctx && opener)
        ctx = opener->popup_of;
    if (t->page && ctx)
        adopt_popup(b, ctx, t);
    else if (!t->page || *t->opener)
        let_go(b, t);
    else if (b->state == BROWSER_STARTING && !b->cdp_url)
        return; /* the page it comes with: kept for the first call */
    else if (!somebody_opens(b, t->context) && (ctx = context_of_windows(b, t->context)))
        adopt_popup(b, ctx, t);
    else if (!somebody_opens(b, t->context))
        let_go(b, t);
}

static void on_gone(struct browser *b, const char *target, const char *session)
{
    struct context *ctx = NULL;
    list_for_each(it, &b->contexts)
    {
        struct context *c = list_entry(it, struct context, link);
        if ((*target && strcmp(c->target, target) == 0) ||
            (*session && strcmp(c->session, session) == 0))
            ctx = c;
    }
    list_for_each_safe(it, &b->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        if ((*target && strcmp(t->id, target) == 0) ||
            (*session && strcmp(t->session, session) == 0))
            target_free(t);
    }
    if (ctx) {
        page_drop(ctx, "the page has been closed");
        context_pump(ctx);
    }
}

void page_root_event(struct browser *b, const struct cdp_head *h)
{
    bool attached = cdp_is(h->method, "Target.attachedToTarget");
    bool detached = cdp_is(h->method, "Target.detachedFromTarget");
    bool crashed = cdp_is(h->method, "Target.targetCrashed");
    if (!attached && !detached && !crashed)
        return;
    autojson json_t *p = cdp_parse(h->params.at, h->params.len);
    if (attached)
        on_attached(b, p);
    else if (detached)
        on_gone(b, "", str(p, "sessionId"));
    else
        on_gone(b, str(p, "targetId"), "");
}
