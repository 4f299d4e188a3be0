#include "browser/priv.h"

#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/own.h"
#include "policy/guards.h"

#include "inject.js.h"
#include "serialize.js.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

/* How it works. A context is a session's queue of calls, its page and its console. context_pump
 * moves it on: browser off -> start it; no page -> open one; else run the next call. Whatever
 * finishes something (browser up, page ready, call done) pumps again. */

#define START_MS 14000
#define SWEEP_MS 15000
#define MAX_SESSIONS 8
#define SESSION_IDLE_MS (10 * 60 * 1000)
#define MAX_QUEUE 64

/* --- policy --------------------------------------------------------------------------------- */

const struct rule *browser_rule(const struct browser *b)
{
    return b->policy ? policy_find(b->policy, "browser_navigate") : NULL;
}

bool browser_has_globs(const struct browser *b)
{
    const struct rule *r = browser_rule(b);
    return r && (rule_list(r, PARAM_url_allow) || rule_list(r, PARAM_url_deny));
}

static int judge(const struct rule *r, const char *url, size_t len, struct abx_error *err)
{
    struct url_rules rules = {
        .allow = r ? rule_list(r, PARAM_url_allow) : NULL,
        .deny = r ? rule_list(r, PARAM_url_deny) : NULL,
        .block_private = r && rule_flag(r, PARAM_block_private_networks, false),
        .allow_private = r && rule_flag(r, PARAM_allow_private, false),
        .loopback_ports = r ? rule_list(r, PARAM_loopback_ports) : NULL,
    };
    struct arena arena;
    struct url_parts parts;
    arena_init(&arena);
    int result = url_check(&rules, url, len, &arena, &parts, err);
    arena_done(&arena);
    return result;
}

int browser_judge_url(const struct policy *policy, const char *url, size_t len,
                      struct abx_error *err)
{
    return judge(policy_find(policy, "browser_navigate"), url, len, err);
}

bool browser_is_loopback(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *a = &((const struct sockaddr_in6 *)addr)->sin6_addr;
    return addr->sa_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127));
}

bool browser_may_reach(const struct browser *b, const char *host, int port,
                       const struct sockaddr *addr)
{
    const struct rule *r = browser_rule(b);
    if (r && rule_flag(r, PARAM_allow_private, false))
        return true;
    if (!addr) {
        /* The URL guard reads a host as browsers do; the port decides about loopback. */
        char url[320];
        struct arena arena;
        struct url_parts parts;
        struct abx_error err;
        struct url_rules rules = {.loopback_ports = r ? rule_list(r, PARAM_loopback_ports) : NULL};
        int n = strchr(host, ':') ? snprintf(url, sizeof url, "http://[%s]:%d/", host, port)
                                  : snprintf(url, sizeof url, "http://%s:%d/", host, port);
        if (n < 0 || (size_t)n >= sizeof url)
            return false;
        arena_init(&arena);
        int result = url_check(&rules, url, (size_t)n, &arena, &parts, &err);
        arena_done(&arena);
        return result == 0 || err.kind != E_URL_DENIED;
    }
    if (!address_is_private(addr))
        return true;
    char text[8];
    (void)snprintf(text, sizeof text, "%d", port); /* always fits */
    const struct str_list *ports = r ? rule_list(r, PARAM_loopback_ports) : NULL;
    for (size_t i = 0; ports && i < ports->n; i++) {
        if (browser_is_loopback(addr) && strcmp(ports->items[i], text) == 0)
            return true;
    }
    return false;
}

static bool socks_asks(void *owner, const char *host, int port, const struct sockaddr *addr)
{
    return browser_may_reach(owner, host, port, addr);
}

/* --- life ----------------------------------------------------------------------------------- */

static void fail_everything(struct browser *b, const struct abx_error *err)
{
    list_for_each_safe(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        while (!list_empty(&ctx->queue))
            op_fail(list_entry(ctx->queue.next, struct op, link), err);
    }
    tap_browser_down(b, err);
}

/* What belongs to the process that ran (or was to run). */
static void tear_down(struct browser *b)
{
    timer_stop(&b->start_timer);
    loop_metrics(b->loop)->browser_up = 0;
    b->state = BROWSER_OFF;
    struct cdp *cdp = take_ptr(b->cdp);
    if (cdp) {
        cdp_fail(cdp, "the browser has gone");
        cdp_free(cdp);
    }
    if (b->remote)
        wsclient_close(take_ptr(b->remote));
    chrome_stop(take_ptr(b->chrome));
    socks_stop(take_ptr(b->socks));
    page_targets_clear(b);
}

void browser_down(struct browser *b, const char *why)
{
    if (b->state == BROWSER_OFF)
        return;
    char reason[300];
    (void)snprintf(reason, sizeof reason, "%s", why); /* a cut text will do; why may die below */
    tear_down(b);
    list_for_each_safe(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        bool opening = ctx->state == PAGE_OPENING;
        ctx->browser_context[0] = '\0';
        page_drop(ctx, reason);
        /* A browser that dies of opening a page is not started again and again for the same call.
         */
        if (opening && !list_empty(&ctx->queue)) {
            struct abx_error err;
            abx_fail(&err, E_BROWSER, 0, "%s", reason);
            op_fail(list_entry(ctx->queue.next, struct op, link), &err);
        }
    }
    tap_browser_down(b, NULL);
    list_for_each_safe(it, &b->contexts) { context_pump(list_entry(it, struct context, link)); }
}

static void start_failed(struct browser *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void start_failed(struct browser *b, const char *fmt, ...)
{
    struct abx_error err;
    va_list ap;
    va_start(ap, fmt);
    abx_failv(&err, E_RUNTIME_503, 0, fmt, ap);
    va_end(ap);
    tear_down(b);
    log_warn("browser: %s", err.message);
    fail_everything(b, &err);
}

static void start_now(struct browser *b);

/* It ended before it answered. Without user namespaces its own sandbox can't be had: once more
 * without. */
static void start_died(struct browser *b, const char *how)
{
    const char *words = chrome_last_words(b->chrome);
    if (!b->no_sandbox && !b->retried && strcasestr(words, "sandbox")) {
        b->no_sandbox = b->retried = true;
        log_warn("browser: no sandbox of its own can be had here, starting without");
        tear_down(b);
        start_now(b);
        return;
    }
    char said[300];
    (void)snprintf(said, sizeof said, "%s%s", *words ? ": " : "", words); /* a cut text will do */
    start_failed(b, "The browser %s %s%s", chrome_program(b->chrome), how, said);
}

static void on_chrome_failed(void *owner, const struct abx_error *err)
{
    start_failed(owner, "%s", err->message);
}

static void crashed(struct browser *b, const char *how)
{
    if (b->state != BROWSER_OFF)
        loop_metrics(b->loop)->browser_crashes++;
    browser_down(b, how);
}

static void on_chrome_exited(void *owner, int status)
{
    struct browser *b = owner;
    if (b->state == BROWSER_STARTING)
        start_died(b, "ended at once");
    else
        crashed(b, "the browser has crashed");
}

static void on_closed(void *owner, const char *why)
{
    struct browser *b = owner;
    if (b->state == BROWSER_STARTING && b->chrome)
        return; /* its exit comes next and knows more */
    if (b->state == BROWSER_STARTING)
        start_failed(b, "The browser at ABX_BROWSER_CDP_URL: %s", why);
    else
        crashed(b, why);
}

static void on_event(void *owner, const struct cdp_head *h, const char *text, size_t len)
{
    struct browser *b = owner;
    if (!h->session.at)
        page_root_event(b, h);
    else if (!page_event(b, h))
        (void)tap_event(b, h, text, len); /* else: a page that was left meanwhile */
}

static void on_version(void *data, struct cdp_answer *a)
{
    struct browser *b = data;
    if (b->state != BROWSER_STARTING)
        return;
    if (a->code != CDP_OK) {
        if (a->code != CDP_CLOSED)
            start_failed(b, "The browser speaks no DevTools protocol: %s", a->message);
        return;
    }
    const char *product = json_string_value(json_object_get(a->result, "product"));
    const char *agent = json_string_value(json_object_get(a->result, "userAgent"));
    (void)snprintf(b->product, sizeof b->product, "%s",
                   product ? product : ""); /* cut: only shown */
    (void)snprintf(b->user_agent, sizeof b->user_agent, "%s", agent ? agent : "");
}

static void on_attaching(void *data, struct cdp_answer *a)
{
    struct browser *b = data;
    if (b->state != BROWSER_STARTING || a->code == CDP_CLOSED)
        return;
    if (a->code != CDP_OK) {
        start_failed(b, "The browser can't be controlled: %s", a->message);
        return;
    }
    timer_stop(&b->start_timer);
    b->state = BROWSER_UP;
    loop_metrics(b->loop)->browser_up = 1;
    loop_metrics(b->loop)->browser_starts++;
    b->retried = false;
    log_info("browser: %s is up (pid %d)", b->product, (int)chrome_pid(b->chrome));
    browser_touch(b);
    tap_browser_up(b);
    list_for_each_safe(it, &b->contexts) { context_pump(list_entry(it, struct context, link)); }
}

static void greet(struct browser *b)
{
    cdp_send(b->cdp, NULL, "Browser.getVersion", NULL, on_version, b);
    cdp_send(b->cdp, NULL, "Browser.setDownloadBehavior",
             json_pack("{s:s, s:b}", "behavior", "deny", "eventsEnabled", 1), NULL, NULL);
    /* Pages and workers wait until they are set up here; nothing runs unguarded. */
    cdp_send(b->cdp, NULL, "Target.setAutoAttach",
             json_pack("{s:b, s:b, s:b, s:[{s:s}, {s:s}, {s:s}]}", "autoAttach", 1,
                       "waitForDebuggerOnStart", 1, "flatten", 1, "filter", "type", "page", "type",
                       "service_worker", "type", "shared_worker"),
             on_attaching, b);
}

static const struct cdp_ops cdp_callbacks = {.event = on_event, .closed = on_closed};

static void on_chrome_up(void *owner, int read_fd, int write_fd)
{
    struct browser *b = owner;
    struct abx_error err;
    b->cdp = cdp_new_pipe(b->loop, read_fd, write_fd, &cdp_callbacks, b, &err);
    if (!b->cdp)
        start_failed(b, "%s", err.message);
    else
        greet(b);
}

static void on_remote_open(void *owner) { greet(owner); }

static void on_remote_message(void *owner, char *text, size_t len)
{
    struct browser *b = owner;
    if (b->cdp)
        cdp_message(b->cdp, text, len);
    else
        free(text);
}

static void on_remote_closed(void *owner, const char *why)
{
    struct browser *b = owner;
    if (b->cdp)
        cdp_fail(b->cdp, why);
}

static void send_remote(void *owner, char *text, size_t len)
{
    struct browser *b = owner;
    if (b->remote)
        wsclient_send(b->remote, text, len);
    free(text);
}

static void on_start_late(void *data)
{
    struct browser *b = data;
    if (b->chrome)
        start_died(b, "does not answer");
    else
        start_failed(b, "The browser at ABX_BROWSER_CDP_URL does not answer");
}

/* Its own proxies mean that names are resolved elsewhere: then only URLs can be judged. */
static bool environment_has_proxy(const struct env_map *env)
{
    static const char *const names[] = {"http_proxy", "https_proxy", "all_proxy",
                                        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *v = env_get(env, names[i]);
        if (v && *v)
            return true;
    }
    return false;
}

static void start_now(struct browser *b)
{
    struct abx_error err;
    b->state = BROWSER_STARTING;
    b->generation++;
    timer_start(&b->start_timer, START_MS);
    if (b->cdp_url) {
        static const struct cdp_ops remote_callbacks = {
            .event = on_event, .closed = on_closed, .send = send_remote};
        static const struct wsclient_ops ops = {
            .open = on_remote_open, .message = on_remote_message, .closed = on_remote_closed};
        b->cdp = cdp_new(b->loop, &remote_callbacks, b);
        b->remote =
            b->cdp ? wsclient_open(b->loop, b->cdp_url, CDP_MAX_MESSAGE, &ops, b, &err) : NULL;
        if (!b->remote)
            start_failed(b, "ABX_BROWSER_CDP_URL: %s", b->cdp ? err.message : "out of memory");
        return;
    }
    b->socks_port = 0;
    if (!environment_has_proxy(b->env)) {
        b->socks = socks_start(b->loop, socks_asks, b, &b->socks_port, &err);
        if (!b->socks) {
            start_failed(b, "%s", err.message);
            return;
        }
    }
    struct chrome_config config = {
        .loop = b->loop,
        .spawner = b->spawner,
        .env = b->env,
        .path = b->path,
        .state_dir = b->state_dir,
        .proxy_port = b->socks_port,
        .no_sandbox = b->no_sandbox,
    };
    static const struct chrome_ops ops = {
        .up = on_chrome_up, .failed = on_chrome_failed, .exited = on_chrome_exited};
    b->chrome = chrome_start(&config, &ops, b, &err);
    if (!b->chrome)
        start_failed(b, "%s", err.message);
}

static void on_turn(void *data)
{
    struct browser *b = data;
    if (b->state == BROWSER_STARTING && !b->chrome && !b->cdp)
        start_now(b);
    list_for_each_safe(it, &b->contexts) { context_pump(list_entry(it, struct context, link)); }
}

void browser_wake(struct browser *b)
{
    if (b->state != BROWSER_OFF)
        return;
    /* From the loop, so that a call is never answered from within its submission. */
    b->state = BROWSER_STARTING;
    timer_start(&b->turn_timer, 0);
}

/* --- idling --------------------------------------------------------------------------------- */

void browser_touch(struct browser *b)
{
    if (b->state != BROWSER_OFF && !timer_running(&b->idle_timer))
        timer_start(&b->idle_timer,
                    b->idle_ms > 0 && b->idle_ms < SWEEP_MS ? b->idle_ms : SWEEP_MS);
}

static void context_free(struct context *ctx)
{
    struct abx_error err;
    abx_fail(&err, E_BROWSER, 0, "the session has been closed");
    while (!list_empty(&ctx->queue))
        op_fail(list_entry(ctx->queue.next, struct op, link), &err);
    page_drop(ctx, "the session has been closed");
    page_forget_context(ctx);
    struct browser *b = ctx->b;
    if (ctx->browser_context[0] && b->cdp)
        cdp_send(b->cdp, NULL, "Target.disposeBrowserContext",
                 json_pack("{s:s}", "browserContextId", ctx->browser_context), NULL, NULL);
    timer_done(&ctx->page_timer);
    list_remove(&ctx->link);
    b->n_contexts--;
    for (size_t i = 0; i < ctx->n_lines; i++) {
        struct line *l = &ctx->lines[(ctx->first_line + i) % CONSOLE_KEPT];
        free(l->type);
        free(l->text);
        free(l->url);
    }
    free(ctx->requests);
    free(ctx->owner);
    free(ctx->name);
    free(ctx);
}

static void on_idle(void *data)
{
    struct browser *b = data;
    uint64_t now = loop_now(b->loop), newest = 0;
    bool busy = !list_empty(&b->taps);
    list_for_each_safe(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        bool works = ctx->running || ctx->n_queue > 0;
        busy |= works;
        if (ctx->used_ms > newest)
            newest = ctx->used_ms;
        if (!works && *ctx->name && now - ctx->used_ms > SESSION_IDLE_MS)
            context_free(ctx);
    }
    if (!busy && b->idle_ms > 0 && b->state == BROWSER_UP && now - newest >= b->idle_ms) {
        log_info("browser: idle, stopping");
        browser_down(b, "the browser was idle");
        return;
    }
    browser_touch(b);
}

/* --- sessions and calls --------------------------------------------------------------------- */

bool browser_session_valid(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return name[n] == '\0' && n <= BROWSER_SESSION_MAX;
}

struct context *context_find(struct browser *b, const char *owner, const char *name)
{
    if (!*name)
        owner = "";
    list_for_each(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        if (strcmp(ctx->name, name) == 0 && strcmp(ctx->owner, owner) == 0)
            return ctx;
    }
    return NULL;
}

static struct context *context_new(struct browser *b, const char *owner, const char *name,
                                   struct abx_error *err)
{
    if (*name && b->n_contexts >= MAX_SESSIONS + 1) {
        abx_fail(err, E_SESSION_LIMIT, 0, "At most %d browser sessions at once", MAX_SESSIONS);
        return NULL;
    }
    struct context *ctx = calloc(1, sizeof *ctx);
    if (ctx) {
        ctx->owner = strdup(*name ? owner : "");
        ctx->name = strdup(name);
    }
    if (!ctx || !ctx->owner || !ctx->name) {
        if (ctx) {
            free(ctx->owner);
            free(ctx->name);
        }
        free(ctx);
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    ctx->b = b;
    ctx->width = 1280;
    ctx->height = 720;
    ctx->scale = 1;
    list_init(&ctx->queue);
    list_append(&b->contexts, &ctx->link);
    b->n_contexts++;
    return ctx;
}

void context_pump(struct context *ctx)
{
    struct browser *b = ctx->b;
    if (ctx->running || list_empty(&ctx->queue))
        return;
    if (b->state == BROWSER_OFF)
        browser_wake(b);
    if (b->state != BROWSER_UP)
        return;
    if (ctx->state == PAGE_NONE)
        page_open(ctx);
    if (ctx->state != PAGE_READY || ctx->running || list_empty(&ctx->queue))
        return;
    struct op *op = list_entry(ctx->queue.next, struct op, link);
    op_start(op);
}

static const char *keep(struct arena *arena, const char *s, bool *failed)
{
    if (!s)
        return NULL;
    const char *copy = arena_strdup(arena, s);
    *failed |= !copy;
    return copy;
}

struct op *browser_submit(struct browser *b, const struct browser_call *call, browser_done done,
                          void *owner, struct abx_error *err)
{
    if (!browser_session_valid(call->session)) {
        abx_fail(err, E_VALUE, 0,
                 "A session's name is made of at most %d letters, digits, '.', '_', '-'",
                 BROWSER_SESSION_MAX);
        return NULL;
    }
    struct context *ctx = context_find(b, call->owner, call->session);
    if (!ctx)
        ctx = context_new(b, call->owner, call->session, err);
    if (!ctx)
        return NULL;
    if (ctx->n_queue >= MAX_QUEUE) {
        abx_fail(err, E_OVERLOADED, 0, "%d calls are waiting for this browser session", MAX_QUEUE);
        return NULL;
    }
    struct op *op = calloc(1, sizeof *op);
    if (!op) {
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    bool failed = false;
    arena_init(&op->arena);
    op->ctx = ctx;
    op->call = *call;
    op->call.owner = op->call.session = NULL;
    op->call.policy = policy_ref(call->policy);
    op->call.selector = keep(&op->arena, call->selector, &failed);
    op->call.url = keep(&op->arena, call->url, &failed);
    op->call.state = keep(&op->arena, call->state, &failed);
    op->call.word = keep(&op->arena, call->word, &failed);
    op->call.text = json_incref(call->text);
    op->done = done;
    op->owner = owner;
    op->step = op_step_of(call->op);
    list_init(&op->link);
    if (failed) {
        op_free(op);
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    if (b->policy != call->policy) {
        policy_unref(b->policy);
        b->policy = policy_ref(call->policy);
    }
    list_append(&ctx->queue, &op->link);
    ctx->n_queue++;
    ctx->used_ms = loop_now(b->loop);
    timer_start(&b->turn_timer, 0); /* never answered from within */
    return op;
}

/* --- what needs no page --------------------------------------------------------------------- */

json_t *browser_console(struct browser *b, const char *owner, const char *session,
                        size_t *ret_dropped)
{
    json_t *logs = json_array();
    struct context *ctx = context_find(b, owner, session);
    *ret_dropped = 0;
    if (!logs || !ctx)
        return logs;
    ctx->used_ms = loop_now(b->loop);
    for (size_t i = 0; i < ctx->n_lines; i++) {
        struct line *l = &ctx->lines[(ctx->first_line + i) % CONSOLE_KEPT];
        json_array_append_new(logs, json_pack("{s:s, s:s, s:f, s:s, s:i}", "type", l->type, "text",
                                              l->text, "timestamp", l->at, "url", l->url, "line",
                                              l->line));
        free(l->type);
        free(l->text);
        free(l->url);
    }
    *ret_dropped = ctx->dropped;
    ctx->n_lines = ctx->first_line = ctx->dropped = 0;
    return logs;
}

json_t *browser_sessions(struct browser *b, const char *owner)
{
    json_t *list = json_array();
    list_for_each(it, &b->contexts)
    {
        struct context *ctx = list_entry(it, struct context, link);
        if (*ctx->name && strcmp(ctx->owner, owner) != 0)
            continue;
        json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:f}", "session", ctx->name, "url",
                                              ctx->state == PAGE_NONE ? "" : ctx->url, "busy",
                                              ctx->running || ctx->n_queue > 0, "idle_seconds",
                                              (double)(loop_now(b->loop) - ctx->used_ms) / 1000));
    }
    return json_pack("{s:b, s:s, s:s, s:o}", "running", b->state == BROWSER_UP, "program",
                     chrome_program(b->chrome), "product", b->product, "sessions", list);
}

bool browser_session_close(struct browser *b, const char *owner, const char *session)
{
    struct context *ctx = context_find(b, owner, session);
    if (!ctx)
        return false;
    context_free(ctx);
    return true;
}

const char *browser_product(const struct browser *b) { return b->product; }

const char *browser_user_agent(const struct browser *b) { return b->user_agent; }

/* --- whole ---------------------------------------------------------------------------------- */

struct browser *browser_new(const struct browser_config *config, struct abx_error *err)
{
    struct browser *b = calloc(1, sizeof *b);
    if (!b) {
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    b->loop = config->loop;
    b->spawner = config->spawner;
    b->env = config->env;
    b->idle_ms = config->idle_ms;
    b->state_dir = config->state_dir ? strdup(config->state_dir) : NULL;
    b->path = config->path && *config->path ? strdup(config->path) : NULL;
    b->cdp_url = config->cdp_url && *config->cdp_url ? strdup(config->cdp_url) : NULL;
    b->inject = json_string(inject_js);
    b->serialize = json_string(serialize_js);
    list_init(&b->contexts);
    list_init(&b->targets);
    list_init(&b->taps);
    timer_init(&b->start_timer, b->loop, on_start_late, b);
    timer_init(&b->idle_timer, b->loop, on_idle, b);
    timer_init(&b->turn_timer, b->loop, on_turn, b);
    if (!b->inject || !b->serialize) {
        browser_free(b);
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    return b;
}

void browser_free(struct browser *b)
{
    if (!b)
        return;
    timer_done(&b->start_timer);
    timer_done(&b->idle_timer);
    timer_done(&b->turn_timer);
    b->state = BROWSER_OFF;
    struct abx_error err;
    abx_fail(&err, E_STOPPING, 0, "The server is stopping");
    fail_everything(b, &err);
    while (!list_empty(&b->contexts)) {
        struct context *ctx = list_entry(b->contexts.next, struct context, link);
        context_free(ctx);
    }
    struct cdp *cdp = take_ptr(b->cdp);
    if (cdp) {
        cdp_fail(cdp, "the server is stopping");
        cdp_free(cdp);
    }
    if (b->remote)
        wsclient_close(take_ptr(b->remote));
    chrome_stop_now(take_ptr(b->chrome));
    socks_stop(take_ptr(b->socks));
    page_targets_clear(b);
    policy_unref(b->policy);
    json_decref(b->inject);
    json_decref(b->serialize);
    free(b->state_dir);
    free(b->path);
    free(b->cdp_url);
    free(b);
}
