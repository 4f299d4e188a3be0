#include "browser/priv.h"

#include "base/own.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* How it works. Each client gets a DevTools session of its own on the browser target, so its
 * auto-attach, its ids and its events are apart from ours. What has no session id in its messages
 * means that root session; sessions that the browser opens below it are noted and belong to it, and
 * it can address no others. Messages are rebuilt from their scanned parts, never parsed as a whole.
 */

#define MAX_TAPS 8
#define MAX_TAP_SESSIONS 4096

struct tap {
    struct list link;
    struct browser *b;
    struct tap_ops ops;
    void *owner;
    char root[ID_MAX]; /* "": not attached yet */
    bool attaching;
    char (*sessions)[ID_MAX];
    size_t n_sessions, cap_sessions;
    char (*contexts)[ID_MAX]; /* browser contexts it made */
    size_t n_contexts, cap_contexts;
    char (*pages)[ID_MAX]; /* pages it opened */
    size_t n_pages, cap_pages;
    struct list calls;
};

/* A call under way; outlives its tap with tap NULL. */
struct tap_call {
    struct list link;
    struct tap *tap;
    int64_t id;
    char session[ID_MAX]; /* as the client named it; "": the root */
    bool makes_context, makes_page;
};

static bool add_id(char (**list)[ID_MAX], size_t *n, size_t *cap, const char *id, size_t len)
{
    if (len == 0 || len >= ID_MAX || *n >= MAX_TAP_SESSIONS)
        return false;
    if (*n == *cap) {
        size_t more = *cap ? 2 * *cap : 16;
        char(*grown)[ID_MAX] = realloc(*list, more * ID_MAX);
        if (!grown)
            return false;
        *list = grown;
        *cap = more;
    }
    memcpy((*list)[*n], id, len);
    (*list)[(*n)++][len] = '\0';
    return true;
}

static bool owns(const struct tap *t, struct cdp_span session)
{
    for (size_t i = 0; i < t->n_sessions; i++) {
        if (cdp_is(session, t->sessions[i]))
            return true;
    }
    return false;
}

static void tap_free(struct tap *t)
{
    list_for_each_safe(it, &t->calls)
    {
        struct tap_call *call = list_entry(it, struct tap_call, link);
        list_remove(&call->link);
        call->tap = NULL;
    }
    list_remove(&t->link);
    free(t->sessions);
    free(t->contexts);
    free(t->pages);
    free(t);
}

static void fail_tap(struct tap *t, const struct abx_error *err)
{
    void (*closed)(void *owner, const struct abx_error *err) = t->ops.closed;
    void *owner = t->owner;
    tap_free(t);
    closed(owner, err);
}

/* --- to the client -------------------------------------------------------------------------- */

static void deliver(struct tap *t, struct buf *text)
{
    if (!text->failed)
        t->ops.message(t->owner, text->data, text->len);
}

static void add_session(struct buf *out, const char *session)
{
    if (*session)
        buf_addf(out, ",\"sessionId\":\"%s\"", session);
}

static void refuse(struct tap *t, const struct cdp_head *h, const char *why)
{
    autobuf struct buf out = BUF_INIT;
    buf_addf(&out, "{\"id\":%lld,\"error\":{\"code\":-32000,\"message\":\"%s\"}", (long long)h->id,
             why);
    if (h->session.at)
        buf_addf(&out, ",\"sessionId\":\"%.*s\"", (int)h->session.len, h->session.at);
    buf_addc(&out, '}');
    deliver(t, &out);
}

static void pretend(struct tap *t, const struct cdp_head *h)
{
    autobuf struct buf out = BUF_INIT;
    buf_addf(&out, "{\"id\":%lld,\"result\":{}", (long long)h->id);
    if (h->session.at)
        buf_addf(&out, ",\"sessionId\":\"%.*s\"", (int)h->session.len, h->session.at);
    buf_addc(&out, '}');
    deliver(t, &out);
}

static void on_answer(void *data, struct cdp_answer *a)
{
    struct tap_call *call = data;
    struct tap *t = call->tap;
    list_remove(&call->link);
    if (t) {
        autobuf struct buf out = BUF_INIT;
        buf_addf(&out, "{\"id\":%lld,", (long long)call->id);
        if (a->raw && a->head.result.at) {
            buf_adds(&out, "\"result\":");
            buf_add(&out, a->head.result.at, a->head.result.len);
        } else if (a->raw && a->head.error.at) {
            buf_adds(&out, "\"error\":");
            buf_add(&out, a->head.error.at, a->head.error.len);
        } else {
            buf_adds(&out, "\"error\":{\"code\":-32000,\"message\":\"the answer did not come or is "
                           "too large\"}");
        }
        add_session(&out, call->session);
        buf_addc(&out, '}');
        if ((call->makes_context || call->makes_page) && a->raw && a->head.result.at) {
            autojson json_t *r = cdp_parse(a->head.result.at, a->head.result.len);
            const char *context = json_string_value(json_object_get(r, "browserContextId"));
            const char *page = json_string_value(json_object_get(r, "targetId"));
            if (context)
                (void)add_id(&t->contexts, &t->n_contexts, &t->cap_contexts, context,
                             strlen(context));
            if (page)
                (void)add_id(&t->pages, &t->n_pages, &t->cap_pages, page, strlen(page));
        }
        deliver(t, &out);
    }
    free(call);
}

bool tap_event(struct browser *b, const struct cdp_head *h, const char *text, size_t len)
{
    list_for_each_safe(it, &b->taps)
    {
        struct tap *t = list_entry(it, struct tap, link);
        bool root = *t->root && cdp_is(h->session, t->root);
        if (!root && !owns(t, h->session))
            continue;
        if (cdp_is(h->method, "Target.attachedToTarget") ||
            cdp_is(h->method, "Target.detachedFromTarget")) {
            autojson json_t *p = cdp_parse(h->params.at, h->params.len);
            const char *id = json_string_value(json_object_get(p, "sessionId"));
            size_t n = id ? strlen(id) : 0;
            if (cdp_is(h->method, "Target.attachedToTarget")) {
                (void)add_id(&t->sessions, &t->n_sessions, &t->cap_sessions, id ? id : "", n);
            } else {
                for (size_t i = 0; i < t->n_sessions; i++) {
                    if (id && strcmp(t->sessions[i], id) == 0)
                        memcpy(t->sessions[i], t->sessions[--t->n_sessions], ID_MAX);
                }
            }
        }
        autobuf struct buf out = BUF_INIT;
        buf_addf(&out, "{\"method\":\"%.*s\",\"params\":", (int)h->method.len, h->method.at);
        if (h->params.at)
            buf_add(&out, h->params.at, h->params.len);
        else
            buf_adds(&out, "{}");
        if (!root)
            buf_addf(&out, ",\"sessionId\":\"%.*s\"", (int)h->session.len, h->session.at);
        buf_addc(&out, '}');
        deliver(t, &out);
        return true;
    }
    return false;
}

/* --- from the client ------------------------------------------------------------------------ */

/* What would reach past the page: files, other proxies, the browser's own life. */
static const char *forbidden(const struct cdp_head *h)
{
    static const char *const refused[] = {
        "DOM.setFileInputFiles",
        "Tethering.bind",
        "Tethering.unbind",
        "Browser.crash",
        "Browser.crashGpuProcess",
        "Network.loadNetworkResource",
        "Extensions.loadUnpacked",
        "Browser.executeBrowserCommand",
        "PWA.install",
        "PWA.launch",
        "Target.setRemoteLocations",
        "Target.exposeDevToolsProtocol",
        "Page.setWebLifecycleState",
        "SystemInfo.getProcessInfo",
        "Target.attachToBrowserTarget",
    };
    static const char *const opening[] = {"Page.navigate", "Target.createTarget",
                                          "Target.createBrowserContext", "Target.openDevTools"};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (cdp_is(h->method, refused[i]))
            return "the server does not allow this method";
    }
    bool opens = false;
    for (size_t i = 0; i < ARRAY_LEN(opening); i++)
        opens |= cdp_is(h->method, opening[i]);
    if (!opens)
        return NULL;
    autojson json_t *p = h->params.at ? cdp_parse(h->params.at, h->params.len) : json_object();
    if (!json_is_object(p))
        return "params must be an object";
    if (json_object_get(p, "proxyServer") || json_object_get(p, "proxyBypassList"))
        return "the server does not allow other proxies";
    const char *url = json_string_value(json_object_get(p, "url"));
    static const char *const schemes[] = {
        "http:", "https:", "about:", "data:", "blob:", "javascript:"};
    bool fine = !url || !*url;
    for (size_t i = 0; i < ARRAY_LEN(schemes) && !fine; i++)
        fine = strncasecmp(url, schemes[i], strlen(schemes[i])) == 0;
    return fine ? NULL : "the server does not allow this kind of URL";
}

void tap_message(struct tap *t, const char *text, size_t len)
{
    struct cdp_head h;
    if (!*t->root || cdp_scan(text, len, &h) < 0 || !h.method.at || h.id == 0 ||
        memchr(h.method.at, '\\', h.method.len) || memchr(text, '\0', len))
        return; /* as a browser does with what it can't answer */
    if (h.session.len == 0)
        h.session.at = NULL; /* some clients write "" for the root */
    if (h.session.at && !owns(t, h.session)) {
        h.session.at = NULL;
        refuse(t, &h, "Session with given id not found.");
        return;
    }
    const char *why = forbidden(&h);
    if (why) {
        refuse(t, &h, why);
        return;
    }
    /* The browser is the server's, and downloads are refused: agreed to, and left as it is. */
    if (cdp_is(h.method, "Browser.close") || cdp_is(h.method, "Browser.setDownloadBehavior") ||
        cdp_is(h.method, "Page.setDownloadBehavior")) {
        pretend(t, &h);
        return;
    }
    struct tap_call *call = calloc(1, sizeof *call);
    if (!call)
        return;
    call->tap = t;
    call->id = h.id;
    call->makes_context = cdp_is(h.method, "Target.createBrowserContext");
    call->makes_page = cdp_is(h.method, "Target.createTarget");
    if (h.session.at) {
        memcpy(call->session, h.session.at, h.session.len);
        call->session[h.session.len] = '\0';
    }
    list_append(&t->calls, &call->link);
    struct cdp_span session =
        h.session.at ? h.session : (struct cdp_span){t->root, strlen(t->root)};
    (void)cdp_pass(t->b->cdp, session, h.method, h.params, on_answer,
                   call); /* answered in any case */
}

/* --- life ----------------------------------------------------------------------------------- */

static void on_attached(void *data, struct cdp_answer *a)
{
    struct tap_call *call = data;
    struct tap *t = call->tap;
    list_remove(&call->link);
    free(call);
    if (!t)
        return;
    t->attaching = false;
    const char *id = json_string_value(json_object_get(a->result, "sessionId"));
    if (a->code == CDP_CLOSED)
        return; /* the browser's end is told to all */
    if (!id || strlen(id) >= ID_MAX) {
        struct abx_error err;
        abx_fail(&err, E_BROWSER, 0, "The browser takes no DevTools client: %s", a->message);
        fail_tap(t, &err);
        return;
    }
    memcpy(t->root, id, strlen(id) + 1);
    t->ops.ready(t->owner);
}

static void attach(struct tap *t)
{
    if (*t->root || t->attaching)
        return;
    struct tap_call *call = calloc(1, sizeof *call);
    if (!call)
        return;
    call->tap = t;
    t->attaching = true;
    list_append(&t->calls, &call->link);
    (void)cdp_send(t->b->cdp, NULL, "Target.attachToBrowserTarget", NULL, on_attached, call);
}

void tap_browser_up(struct browser *b)
{
    list_for_each_safe(it, &b->taps) { attach(list_entry(it, struct tap, link)); }
}

void tap_browser_down(struct browser *b, const struct abx_error *err)
{
    list_for_each_safe(it, &b->taps) { fail_tap(list_entry(it, struct tap, link), err); }
}

struct tap *tap_open(struct browser *b, struct policy *policy, const struct tap_ops *ops,
                     void *owner, struct abx_error *err)
{
    size_t n = 0;
    list_for_each(it, &b->taps) { n++; }
    if (n >= MAX_TAPS) {
        abx_fail(err, E_OVERLOADED, 0, "At most %d DevTools clients at once", MAX_TAPS);
        return NULL;
    }
    struct tap *t = calloc(1, sizeof *t);
    if (!t) {
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    t->b = b;
    t->ops = *ops;
    t->owner = owner;
    list_init(&t->calls);
    list_append(&b->taps, &t->link);
    if (b->policy != policy) {
        policy_unref(b->policy);
        b->policy = policy_ref(policy);
    }
    if (b->state == BROWSER_UP)
        attach(t);
    else
        browser_wake(b);
    return t;
}

void tap_close(struct tap *t)
{
    struct browser *b = t->b;
    if (b->cdp) {
        for (size_t i = 0; i < t->n_pages; i++)
            cdp_send(b->cdp, NULL, "Target.closeTarget",
                     json_pack("{s:s}", "targetId", t->pages[i]), NULL, NULL);
        for (size_t i = 0; i < t->n_contexts; i++)
            cdp_send(b->cdp, NULL, "Target.disposeBrowserContext",
                     json_pack("{s:s}", "browserContextId", t->contexts[i]), NULL, NULL);
        if (*t->root)
            cdp_send(b->cdp, NULL, "Target.detachFromTarget",
                     json_pack("{s:s}", "sessionId", t->root), NULL, NULL);
    }
    list_for_each(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        ctx->used_ms = loop_now(b->loop);
        ctx->covered = true; /* it may have changed the pages' sizes and order */
    }
    tap_free(t);
    browser_touch(b);
}

size_t tap_pending(const struct tap *t) { return t->b->cdp ? cdp_pending_bytes(t->b->cdp) : 0; }
