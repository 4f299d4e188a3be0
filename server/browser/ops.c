#include "browser/priv.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"
#include "browser/keys.h"
#include "browser/value.h"
#include "policy/guards.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* How it works. A call is a step function that is entered again each time what it waited for has
 * come; WAIT remembers the place (a switch over line numbers). Locals do not survive a WAIT: what
 * must is in the op. Deadline, crash and cancellation never reach a step: op_fail ends the call
 * around it. */

#define BEGIN(op)                                                                                  \
    switch ((op)->at) {                                                                            \
    case 0:
#define WAIT(op)                                                                                   \
    do {                                                                                           \
        (op)->at = __LINE__;                                                                       \
        return;                                                                                    \
    case __LINE__:;                                                                                \
    } while (0)
#define END }

#define QUIET_MS 500
#define MAX_PIXEL_HEIGHT 32000
#define MAX_PIXELS (120.0 * 1000 * 1000)
#define MAX_DOCUMENT (96 * (size_t)MIB)
#define PDF_PIECE 786432
#define SETTLE_MS 10000
#define DEFAULT_DELAY_MS 50
#define TYPING_MS 20000 /* the default delay shrinks so that a text takes no longer */

/* What texts of errors begin with: clients of the reference know the first seven. */
static const char *const op_names[] = {
    [BROWSER_NAVIGATE] = "Page.goto",
    [BROWSER_SCREENSHOT] = "Page.screenshot",
    [BROWSER_CONTENT] = "Page.content",
    [BROWSER_CLICK] = "Page.click",
    [BROWSER_TYPE] = "Page.type",
    [BROWSER_EVALUATE] = "Page.evaluate",
    [BROWSER_PDF] = "Page.pdf",
    [BROWSER_WAIT] = "Page.wait",
    [BROWSER_PRESS] = "Page.press",
    [BROWSER_SCROLL] = "Page.scroll",
    [BROWSER_COOKIES_GET] = "Page.cookies",
    [BROWSER_COOKIES_SET] = "Page.cookies",
    [BROWSER_VIEWPORT] = "Page.viewport",
    [BROWSER_SNAPSHOT] = "Page.snapshot",
};

static void inject_begin(struct op *op);

/* --- ending --------------------------------------------------------------------------------- */

void op_free(struct op *op)
{
    json_decref(op->reply);
    json_decref(op->inject_args);
    json_decref(op->extra);
    json_decref(op->call.text);
    policy_unref(op->call.policy);
    buf_done(&op->bytes);
    free(op->raw);
    free(op->text);
    arena_done(&op->arena);
    free(op);
}

/* Takes the call out of its queue and answers it. */
static void end(struct op *op, struct browser_result *result)
{
    struct context *ctx = op->ctx;
    /* A page that was too late, or was left in the middle, is looked after before the next call. */
    bool stuck = op->late || (op->outstanding && op->waits_for_page);
    op->finished = true;
    timer_done(&op->deadline);
    timer_done(&op->nap);
    cdp_forget(take_ptr(op->outstanding));
    list_remove(&op->link);
    ctx->n_queue--;
    ctx->used_ms = loop_now(ctx->b->loop);
    bool was_running = ctx->running == op, loading = op->loading;
    if (was_running)
        ctx->running = NULL;
    browser_done done = op->done;
    if (done)
        done(op->owner, result);
    json_decref(result->value);
    free(result->text);
    op_free(op);
    if (!was_running)
        return;
    if (stuck)
        page_fix(ctx, loading);
    context_pump(ctx);
}

void op_fail(struct op *op, const struct abx_error *err)
{
    if (op->finished)
        return;
    if (op->background) {
        op->error = *err; /* a worker has it; the end comes when that is done */
        return;
    }
    struct abx_error copy = *err;
    struct browser_result r = {.err = &copy, .limit = op->limit};
    end(op, &r);
}

static void fail(struct op *op, enum error_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(struct op *op, enum error_kind kind, const char *fmt, ...)
{
    struct abx_error err;
    va_list ap;
    va_start(ap, fmt);
    abx_failv(&err, kind, 0, fmt, ap);
    va_end(ap);
    op_fail(op, &err);
}

/* The same, with the call's name before the text. */
static void fail_call(struct op *op, enum error_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void fail_call(struct op *op, enum error_kind kind, const char *fmt, ...)
{
    struct abx_error err;
    va_list ap;
    va_start(ap, fmt);
    abx_failv(&err, kind, 0, fmt, ap);
    va_end(ap);
    fail(op, kind, "%s: %s", op_names[op->call.op], err.message);
}

/* Takes value. */
static void finish(struct op *op, json_t *value)
{
    if (!value) {
        fail(op, E_NO_MEMORY, "out of memory");
        return;
    }
    struct browser_result r = {.value = value, .big = op->reply_size > 256 * KIB};
    end(op, &r);
}

/* Takes text: a whole JSON object. */
static void finish_text(struct op *op, char *text, size_t len)
{
    struct browser_result r = {.text = text, .len = len};
    end(op, &r);
}

static void on_deadline(void *data)
{
    struct op *op = data;
    op->late = true;
    fail_call(op, E_TIMEOUT_500, "Timeout %lldms exceeded%s%s", (long long)op->call.timeout_ms,
              op->reason ? ": " : "", op->reason ? op->reason : "");
}

void browser_cancel(struct op *op)
{
    op->done = NULL;
    if (op->background)
        return;
    struct abx_error err;
    abx_fail(&err, E_CANCELLED, 0, "the caller has left");
    op_fail(op, &err);
}

/* --- waiting -------------------------------------------------------------------------------- */

static void resume(struct op *op)
{
    op->watching = false;
    timer_stop(&op->nap);
    op->step(op);
}

static void on_nap(void *data)
{
    struct op *op = data;
    if (op->inject_cmd)
        inject_begin(op);
    else
        resume(op);
}

static void nap(struct op *op, uint64_t ms) { timer_start(&op->nap, ms); }

/* Until something about the page changes, or ms have passed. */
static void watch(struct op *op, uint64_t ms)
{
    op->watching = true;
    nap(op, ms);
}

void op_page_changed(struct context *ctx)
{
    struct op *op = ctx->running;
    if (op && op->watching)
        timer_start(&op->nap, 0); /* after the events that come with this one */
}

static void keep_answer(struct op *op, struct cdp_answer *a)
{
    op->outstanding = NULL;
    json_decref(op->reply);
    op->reply = json_incref(a->result);
    op->reply_size = a->size;
    op->code = a->code;
    op->message = a->code != CDP_OK ? arena_strdup(&op->arena, a->message) : "";
    if (!op->message)
        op->message = "";
    free(op->raw);
    op->raw = take_ptr(a->raw);
    op->raw_head = a->head;
}

static void on_answer(void *data, struct cdp_answer *a)
{
    struct op *op = data;
    keep_answer(op, a);
    if (a->code == CDP_CLOSED)
        return; /* the browser's end fails the call */
    resume(op);
}

static void call(struct op *op, const char *method, json_t *params)
{
    struct browser *b = op->ctx->b;
    op->waits_for_page = true;
    op->outstanding = cdp_send(b->cdp, op->ctx->session, method, params, on_answer, op);
}

static void call_browser(struct op *op, const char *method, json_t *params)
{
    op->waits_for_page = false;
    op->outstanding = cdp_send(op->ctx->b->cdp, NULL, method, params, on_answer, op);
}

static void tell(struct op *op, const char *method, json_t *params)
{
    cdp_send(op->ctx->b->cdp, op->ctx->session, method, params, NULL, NULL);
}

static void fail_large(struct op *op, size_t limit)
{
    op->limit = (int64_t)limit;
    fail_call(op, E_TOO_LARGE, "the result is larger than %zu MiB", limit / MIB);
}

static bool failed(struct op *op)
{
    if (op->code == CDP_OK)
        return false;
    if (op->code == CDP_TOO_LARGE)
        fail_large(op, CDP_MAX_MESSAGE);
    else
        fail_call(op, E_BROWSER, "%s", op->message);
    return true;
}

/* --- scripts of ours in the page ------------------------------------------------------------ */

/* Answers that mean "the document changed under the call". */
static bool is_passing(const char *message)
{
    static const char *const texts[] = {"context",          "navigated",
                                        "Inspected target", "Frame with the given",
                                        "No frame",         "Promise was collected"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        if (strstr(message, texts[i]))
            return true;
    }
    return false;
}

static void inject_end(struct op *op)
{
    op->inject_cmd = NULL;
    op->locating = false;
    op->tries = 0;
    resume(op);
}

static void inject_again(struct op *op)
{
    static const uint64_t pauses[] = {0, 20, 50, 100, 100, 200};
    size_t i = (size_t)op->tries < ARRAY_LEN(pauses) ? (size_t)op->tries : ARRAY_LEN(pauses) - 1;
    op->tries++;
    nap(op, pauses[i]);
}

static void set_reason(struct op *op, const char *why)
{
    const char *what = op->call.selector             ? op->call.selector
                       : op->call.op == BROWSER_WAIT ? "the text"
                                                     : "the page";
    op->reason = arena_printf(&op->arena, "waiting for '%.200s': %s", what, why);
}

static void on_injected(void *data, struct cdp_answer *a)
{
    struct op *op = data;
    keep_answer(op, a);
    if (a->code == CDP_CLOSED)
        return;
    if (op->code != CDP_OK) {
        if (is_passing(op->message) && op->tries < 400) {
            op->ctx->world = 0;
            inject_again(op);
        } else {
            inject_end(op);
        }
        return;
    }
    json_t *details = json_object_get(op->reply, "exceptionDetails");
    if (details) {
        autobuf struct buf text = BUF_INIT;
        value_exception_text(&text, details);
        op->code = CDP_BAD;
        op->message = buf_str(&text) ? arena_strdup(&op->arena, text.data) : "";
        inject_end(op);
        return;
    }
    json_t *value = json_incref(json_object_get(json_object_get(op->reply, "result"), "value"));
    json_decref(op->reply);
    op->reply = value;
    const char *wait = json_string_value(json_object_get(value, "wait"));
    const char *bad = json_string_value(json_object_get(value, "bad"));
    const char *cannot = json_string_value(json_object_get(value, "cannot"));
    if (bad) {
        op->inject_cmd = NULL;
        fail(op, E_VALUE, "Bad selector '%.200s': %s", op->call.selector ? op->call.selector : "",
             bad);
    } else if (cannot) {
        op->inject_cmd = NULL;
        fail_call(op, E_BROWSER, "%s: %.200s", cannot, op->call.selector);
    } else if (json_is_true(json_object_get(value, "missing"))) {
        op->inject_cmd = NULL;
        fail(op, E_BROWSER_MISSING, "Selector not found: %.200s", op->call.selector ? op->call.selector : "");
    } else if (wait && op->locating) {
        set_reason(op, wait);
        inject_again(op);
    } else {
        inject_end(op);
    }
}

static void inject_call(struct op *op)
{
    struct browser *b = op->ctx->b;
    json_t *args = json_pack("[{s:s}, {s:O}]", "value", op->inject_cmd, "value", op->inject_args);
    if (args && op->object_id)
        json_array_append_new(args, json_pack("{s:s}", "objectId", op->object_id));
    op->waits_for_page = true;
    op->outstanding =
        cdp_send(b->cdp, op->ctx->session, "Runtime.callFunctionOn",
                 json_pack("{s:O, s:I, s:o, s:b, s:b, s:b}", "functionDeclaration", b->inject,
                           "executionContextId", (json_int_t)op->ctx->world, "arguments", args,
                           "awaitPromise", 1, "returnByValue", 1, "userGesture", 1),
                 on_injected, op);
}

static void on_resolved(void *data, struct cdp_answer *a)
{
    struct op *op = data;
    keep_answer(op, a);
    if (a->code == CDP_CLOSED)
        return;
    const char *id =
        json_string_value(json_object_get(json_object_get(op->reply, "object"), "objectId"));
    if (op->code == CDP_OK && id) {
        op->object_id = arena_strdup(&op->arena, id);
        inject_call(op);
    } else {
        op->inject_cmd = NULL;
        fail(op, E_BROWSER_MISSING,
             "Selector not found: %.200s (the page no longer has this element)", op->call.selector);
    }
}

/* The number in "ref=e12"; 0: another kind of selector. */
static int64_t ref_of(const char *selector)
{
    int64_t n = 0;
    if (!selector)
        return 0;
    if (strncmp(selector, "aria-", 5) == 0)
        selector += 5;
    if (strncmp(selector, "ref=e", 5) != 0 || num_parse(selector + 5, 1, INT32_MAX, &n) < 0)
        return 0;
    return n;
}

static void inject_in_world(struct op *op)
{
    int64_t ref = op->object_id ? 0 : ref_of(op->call.selector);
    if (ref > 0) {
        op->waits_for_page = true;
        op->outstanding = cdp_send(op->ctx->b->cdp, op->ctx->session, "DOM.resolveNode",
                                   json_pack("{s:I, s:I, s:s}", "backendNodeId", (json_int_t)ref,
                                             "executionContextId", (json_int_t)op->ctx->world,
                                             "objectGroup", "abx"),
                                   on_resolved, op);
    } else {
        inject_call(op);
    }
}

static void on_world(void *data, struct cdp_answer *a)
{
    struct op *op = data;
    keep_answer(op, a);
    if (a->code == CDP_CLOSED)
        return;
    if (op->code != CDP_OK) {
        if (op->tries < 400)
            inject_again(op);
        else
            inject_end(op);
        return;
    }
    op->ctx->world = json_integer_value(json_object_get(op->reply, "executionContextId"));
    op->object_id = NULL;
    inject_in_world(op);
}

static void inject_begin(struct op *op)
{
    if (op->ctx->world == 0) {
        op->waits_for_page = true;
        op->outstanding = cdp_send(op->ctx->b->cdp, op->ctx->session, "Page.createIsolatedWorld",
                                   json_pack("{s:s, s:s, s:b}", "frameId", op->ctx->target,
                                             "worldName", "abx", "grantUniveralAccess", 1),
                                   on_world, op);
    } else {
        inject_in_world(op);
    }
}

/* Runs a command of inject.js; its answer is op->reply. Takes args. */
static void inject(struct op *op, const char *cmd, json_t *args)
{
    json_decref(op->inject_args);
    op->inject_args = args ? args : json_object();
    if (op->call.selector && op->inject_args)
        json_object_set_new(op->inject_args, "selector", json_string(op->call.selector));
    op->inject_cmd = cmd;
    inject_begin(op);
}

/* The same, again and again until it says neither "wait" nor "bad". */
static void locate(struct op *op, const char *cmd, json_t *args)
{
    op->locating = true;
    inject(op, cmd, args);
}

/* --- work on a worker ----------------------------------------------------------------------- */

struct job {
    struct op *op;
    void (*fn)(struct op *op);
};

static void job_work(void *data)
{
    struct job *j = data;
    j->fn(j->op);
}

static void job_done(void *data)
{
    struct job *j = data;
    struct op *op = j->op;
    free(j);
    op->background = false;
    if (op->error.message[0]) {
        struct abx_error err = op->error;
        op_fail(op, &err);
    } else {
        size_t len = op->text_len;
        finish_text(op, take_ptr(op->text), len);
    }
}

/* fn sets op->text, or op->error. The answer follows. */
static void finish_on_worker(struct op *op, void (*fn)(struct op *op))
{
    timer_stop(&op->deadline);
    struct job *j = malloc(sizeof *j);
    if (j) {
        *j = (struct job){op, fn};
        op->background = true;
        if (loop_work(op->ctx->b->loop, WORK_LONG, job_work, job_done, j) == 0)
            return;
        op->background = false;
        free(j);
    }
    fail(op, E_NO_MEMORY, "out of memory");
}

/* --- navigate ------------------------------------------------------------------------------- */

static bool is_reached(struct op *op, uint64_t *ret_wait_ms)
{
    struct context *ctx = op->ctx;
    *ret_wait_ms = 60000;
    /* The answer to Page.navigate comes before the events of the new document. */
    if (*op->loader && strcmp(ctx->loader, op->before) == 0)
        return false;
    switch (op->call.until) {
    case UNTIL_COMMIT:
        return true;
    case UNTIL_DOMCONTENTLOADED:
        return ctx->dom_ready;
    case UNTIL_LOAD:
        return ctx->loaded;
    case UNTIL_NETWORKIDLE:
        break;
    }
    if (!ctx->dom_ready || ctx->n_requests > 0)
        return false;
    uint64_t quiet = loop_now(ctx->b->loop) - ctx->quiet_since;
    if (quiet >= QUIET_MS || (op->still && ctx->loaded))
        return true;
    *ret_wait_ms = QUIET_MS - quiet;
    return false;
}

/* Chromium's words, or what the proxy knows better. */
static void fail_navigation(struct op *op, const char *text)
{
    struct context *ctx = op->ctx;
    struct abx_error err;
    if (ctx->denied == E_URL_NOT_ALLOWED || ctx->denied == E_URL_DENIED ||
        ctx->denied == E_URL_INVALID) {
        fail(op, ctx->denied == E_URL_INVALID ? E_URL_DENIED : ctx->denied,
             "The policy does not let the page reach %.200s", ctx->nav_url);
        return;
    }
    if (strstr(text, "SOCKS") || strstr(text, "TUNNEL") || strstr(text, "PROXY")) {
        struct url_parts parts = {0};
        struct url_rules rules = {.allow_private = true};
        const char *known = NULL;
        if (ctx->b->socks &&
            url_check(&rules, ctx->nav_url, strlen(ctx->nav_url), &op->arena, &parts, &err) == 0)
            known = socks_failure(ctx->b->socks, parts.host, parts.port);
        if (known && !*known) {
            const struct rule *r = browser_rule(ctx->b);
            fail(op,
                 r && rule_flag(r, PARAM_block_private_networks, false) ? E_URL_NOT_ALLOWED
                                                                        : E_URL_DENIED,
                 "The policy does not let the page reach %.200s", ctx->nav_url);
            return;
        }
        if (known)
            text = known;
    }
    fail_call(op, E_BROWSER, "%s at %.300s", text,
         *ctx->nav_url ? ctx->nav_url : op->call.url);
}

static void step_navigate(struct op *op)
{
    struct context *ctx = op->ctx;
    uint64_t ms;
    BEGIN(op);
    ctx->denied = 0;
    ctx->downloaded = false;
    memcpy(op->before, ctx->loader, sizeof op->before);
    ctx->nav_url[0] = ctx->response_loader[0] = '\0';
    op->reason = "the page does not answer";
    call(op, "Page.navigate", json_pack("{s:s}", "url", op->call.url));
    op->loading = true;
    WAIT(op);
    op->loading = false;
    if (failed(op))
        return;
    op->reason = "the page is still loading";
    copy_id(op->loader, json_object_get(op->reply, "loaderId"));
    op->same_document = !*op->loader;
    const char *text = json_string_value(json_object_get(op->reply, "errorText"));
    if (text) {
        bool answered = *op->loader && strcmp(ctx->response_loader, op->loader) == 0;
        if (ctx->downloaded || json_is_true(json_object_get(op->reply, "isDownload"))) {
            fail_call(op, E_BROWSER,
                 "the answer is a download, and downloads are refused: %.300s",
                 op->call.url);
            return;
        }
        if (!answered || (ctx->response_status != 204 && ctx->response_status != 205)) {
            fail_navigation(op, text);
            return;
        }
        op->same_document = true; /* no content: the page stays as it is */
    }
    while (!op->same_document && !is_reached(op, &ms)) {
        if (op->call.until == UNTIL_NETWORKIDLE && ctx->loaded && ctx->n_requests == 0 &&
            !op->still_asked) {
            op->still_asked = true;
            inject(op, "still", NULL);
            WAIT(op);
            op->still = json_is_true(json_object_get(op->reply, "still"));
            continue;
        }
        watch(op, ms);
        WAIT(op);
    }
    op->reason = "the page does not respond";
    inject(op, "where", NULL);
    WAIT(op);
    if (failed(op))
        return;
    bool ours = strcmp(ctx->response_loader, op->loader) == 0 ||
                strcmp(ctx->response_loader, ctx->loader) == 0;
    finish(op, json_pack("{s:O, s:O, s:i}", "url", json_object_get(op->reply, "url"), "title",
                         json_object_get(op->reply, "title"), "status",
                         *ctx->response_loader && ours && *op->loader ? ctx->response_status : 0));
    END;
}

/* --- content and snapshot ------------------------------------------------------------------- */

static void step_content(struct op *op)
{
    BEGIN(op);
    op->reason = "the page does not respond";
    inject(op, "content", json_pack("{s:b}", "text", op->call.as_text));
    WAIT(op);
    if (failed(op))
        return;
    finish(op, json_pack("{s:O, s:O, s:O}", "content", json_object_get(op->reply, "content"), "url",
                         json_object_get(op->reply, "url"), "title",
                         json_object_get(op->reply, "title")));
    END;
}

#define SNAPSHOT_MAX (512 * KIB)

/* Frames of the page, outermost first, as a flat list of ids. */
static void list_frames(const json_t *tree, json_t *out, int depth)
{
    const json_t *child;
    size_t i;
    json_array_append(out, json_object_get(json_object_get(tree, "frame"), "id"));
    json_array_foreach(json_object_get(tree, "childFrames"), i, child)
    {
        if (depth < 16 && json_array_size(out) < 64)
            list_frames(child, out, depth + 1);
    }
}

static void step_snapshot(struct op *op)
{
    BEGIN(op);
    op->reason = "the page does not respond";
    call(op, "Page.getFrameTree", NULL);
    WAIT(op);
    if (failed(op))
        return;
    op->extra = json_array();
    list_frames(json_object_get(op->reply, "frameTree"), op->extra, 0);
    for (op->pos = 0; op->pos < json_array_size(op->extra); op->pos++) {
        call(op, "Accessibility.getFullAXTree",
             json_pack("{s:O}", "frameId", json_array_get(op->extra, op->pos)));
        WAIT(op);
        if (op->code != CDP_OK) {
            if (op->pos == 0 && failed(op))
                return;
            continue; /* a frame that went away meanwhile */
        }
        size_t refs = (size_t)op->width;
        if (op->pos > 0)
            buf_adds(&op->bytes, "- frame:\n");
        op->still |= ax_write(&op->bytes, json_object_get(op->reply, "nodes"), op->pos > 0,
                              SNAPSHOT_MAX, &refs);
        op->width = (double)refs;
    }
    inject(op, "where", NULL);
    WAIT(op);
    if (failed(op))
        return;
    finish(op, json_pack("{s:O, s:O, s:s%, s:I, s:b}", "url", json_object_get(op->reply, "url"),
                         "title", json_object_get(op->reply, "title"), "snapshot",
                         op->bytes.len > 0 ? op->bytes.data : "", op->bytes.len, "refs",
                         (json_int_t)op->width, "truncated", op->still));
    END;
}

/* --- screenshot ----------------------------------------------------------------------------- */

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

/* Width and height from the first bytes of a PNG. */
static bool png_size(const char *base64, size_t len, int *ret_width, int *ret_height)
{
    autobuf struct buf head = BUF_INIT;
    if (len < 32 || base64_decode(&head, base64, 32) < 0 || head.len < 24 ||
        memcmp(head.data + 12, "IHDR", 4) != 0)
        return false;
    const unsigned char *p = (const unsigned char *)head.data + 16;
    *ret_width = p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
    *ret_height = p[4] << 24 | p[5] << 16 | p[6] << 8 | p[7];
    return true;
}

/* The answer is made in the memory that the message came in: an image is held once. */
static void finish_image(struct op *op)
{
    static const char prefix[] = "{\"image_base64\": \"", mark[] = "{\"data\":\"";
    struct cdp_span result = op->raw_head.result;
    const char *end_quote =
        result.at && result.len > sizeof mark && memcmp(result.at, mark, sizeof mark - 1) == 0
            ? memchr(result.at + sizeof mark - 1, '"', result.len - sizeof mark + 1)
            : NULL;
    size_t skip = end_quote ? (size_t)(result.at - op->raw) + sizeof mark - 1 : 0;
    if (!end_quote || skip < sizeof prefix - 1) {
        fail_call(op, E_BROWSER, "the browser's answer holds no image");
        return;
    }
    size_t len = (size_t)(end_quote - op->raw) - skip;
    int width = (int)op->width, height = (int)op->height;
    if (!op->call.jpeg && !op->call.selector)
        (void)png_size(op->raw + skip, len, &width, &height); /* else what was asked for */
    char tail[120];
    int n = snprintf(tail, sizeof tail, "\", \"width\": %d, \"height\": %d%s}", width, height,
                     op->still ? ", \"truncated\": true" : "");
    memmove(op->raw + sizeof prefix - 1, op->raw + skip, len);
    memcpy(op->raw, prefix, sizeof prefix - 1);
    size_t total = sizeof prefix - 1 + len;
    char *text = realloc(op->raw, total + (size_t)n + 1);
    if (!text) {
        fail(op, E_NO_MEMORY, "out of memory");
        return;
    }
    op->raw = NULL;
    memcpy(text + total, tail, (size_t)n + 1);
    finish_text(op, text, total + (size_t)n);
}

static json_t *shot_params(struct op *op)
{
    json_t *p = json_pack("{s:s, s:b, s:b}", "format", op->call.jpeg ? "jpeg" : "png",
                          "captureBeyondViewport", op->call.selector || op->call.full_page,
                          "optimizeForSpeed", 1);
    if (op->call.jpeg)
        json_object_set_new(p, "quality", json_integer(80));
    if (op->call.selector || op->call.full_page) {
        /* Whole pixels, outward: a picture of parts of pixels is blurred. */
        double x = floor(op->x), y = floor(op->y);
        json_object_set_new(p, "clip",
                            json_pack("{s:f, s:f, s:f, s:f, s:f}", "x", x, "y", y, "width",
                                      ceil(op->x + op->width) - x, "height",
                                      ceil(op->y + op->height) - y, "scale", 1.0));
    }
    return p;
}

static void step_screenshot(struct op *op)
{
    struct context *ctx = op->ctx;
    BEGIN(op);
    op->reason = "the page does not respond";
    if (op->call.selector) {
        inject(op, "box", NULL);
        WAIT(op);
        if (failed(op))
            return;
        const char *wait = json_string_value(json_object_get(op->reply, "wait"));
        if (wait) {
            fail_call(op, E_BROWSER, "%s: %.200s", wait, op->call.selector);
            return;
        }
        op->x = number(op->reply, "x");
        op->y = number(op->reply, "y");
        op->width = number(op->reply, "width");
        op->height = number(op->reply, "height");
    } else if (op->call.full_page) {
        call(op, "Page.getLayoutMetrics", NULL);
        WAIT(op);
        if (failed(op))
            return;
        const json_t *size = json_object_get(op->reply, "cssContentSize");
        op->width = ceil(number(size, "width"));
        op->height = ceil(number(size, "height"));
    } else {
        op->width = ctx->width;
        op->height = ctx->height;
    }
    /* The picture is cut where it would take too much memory. */
    double most = fmin(MAX_PIXEL_HEIGHT / ctx->scale,
                       MAX_PIXELS / (ctx->scale * ctx->scale) / fmax(op->width, 1));
    if (op->height > most) {
        op->height = floor(most);
        op->still = true;
    }
    op->waits_for_page = true;
    op->outstanding = cdp_send_raw(ctx->b->cdp, ctx->session, "Page.captureScreenshot",
                                   shot_params(op), on_answer, op);
    WAIT(op);
    if (op->code == CDP_BAD && op->raw) {
        autojson json_t *e = cdp_parse(op->raw_head.error.at, op->raw_head.error.len);
        const char *m = json_string_value(json_object_get(e, "message"));
        fail_call(op, E_BROWSER, "%s", m ? m : "refused");
        return;
    }
    if (failed(op))
        return;
    finish_image(op);
    END;
}

/* --- pdf ------------------------------------------------------------------------------------ */

static void encode_pdf(struct op *op)
{
    struct buf out = BUF_INIT;
    buf_adds(&out, "{\"pdf_base64\": \"");
    base64_append(&out, op->bytes.data, op->bytes.len);
    buf_addf(&out, "\", \"pages\": %d}", pdf_pages(op->bytes.data, op->bytes.len));
    buf_done(&op->bytes);
    op->bytes = (struct buf)BUF_INIT;
    op->text = buf_take(&out, &op->text_len);
    if (!op->text)
        abx_fail(&op->error, E_NO_MEMORY, 0, "out of memory");
}

static void step_pdf(struct op *op)
{
    BEGIN(op);
    op->reason = "the page does not respond";
    if (!pdf_paper(op->call.word, &op->width, &op->height)) {
        fail_call(op, E_BROWSER, "Unknown paper format: %.60s", op->call.word);
        return;
    }
    call(op, "Page.printToPDF",
         json_pack("{s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:s}", "landscape", op->call.landscape,
                   "paperWidth", op->width, "paperHeight", op->height, "marginTop", 0.0,
                   "marginBottom", 0.0, "marginLeft", 0.0, "marginRight", 0.0, "printBackground", 0,
                   "transferMode", "ReturnAsStream"));
    WAIT(op);
    if (failed(op))
        return;
    op->extra = json_incref(json_object_get(op->reply, "stream"));
    do {
        call(op, "IO.read", json_pack("{s:O, s:i}", "handle", op->extra, "size", PDF_PIECE));
        WAIT(op);
        if (failed(op))
            return;
        const json_t *data = json_object_get(op->reply, "data");
        if (json_is_true(json_object_get(op->reply, "base64Encoded"))) {
            if (base64_decode(&op->bytes, json_string_value(data), json_string_length(data)) < 0) {
                fail_call(op, E_BROWSER, "the browser's answer is no base64");
                return;
            }
        } else if (data) {
            buf_add(&op->bytes, json_string_value(data), json_string_length(data));
        }
        if (op->bytes.len > MAX_DOCUMENT / 4 * 3) {
            tell(op, "IO.close", json_pack("{s:O}", "handle", op->extra));
            fail_large(op, MAX_DOCUMENT / 4 * 3);
            return;
        }
    } while (!json_is_true(json_object_get(op->reply, "eof")));
    tell(op, "IO.close", json_pack("{s:O}", "handle", op->extra));
    if (op->bytes.len == 0) {
        fail_call(op, E_BROWSER, "the browser made an empty document");
        return;
    }
    finish_on_worker(op, encode_pdf);
    END;
}

/* --- click, type, press, scroll, wait ------------------------------------------------------- */

static void mouse(struct op *op, const char *type, int buttons, int clicks)
{
    call(op, "Input.dispatchMouseEvent",
         json_pack("{s:s, s:f, s:f, s:s, s:i, s:i}", "type", type, "x", op->x, "y", op->y, "button",
                   clicks ? "left" : "none", "buttons", buttons, "clickCount", clicks));
}

/* A navigation that the input has started is awaited: the next call sees its page. */
static bool is_settling(struct op *op)
{
    struct context *ctx = op->ctx;
    if (loop_now(ctx->b->loop) >= op->until_ms)
        return false;
    return ctx->nav_requested ||
           (*ctx->loader && strcmp(ctx->loader, op->loader) != 0 && !ctx->dom_ready);
}

static void settle_start(struct op *op)
{
    memcpy(op->loader, op->ctx->loader, sizeof op->loader);
    op->ctx->nav_requested = false;
}

static void step_settle(struct op *op)
{
    BEGIN(op);
    uint64_t now = loop_now(op->ctx->b->loop),
             left = op->deadline.due > now ? op->deadline.due - now : 0;
    uint64_t most = left > 100 ? left - 50 : left / 2;
    op->until_ms = now + (most < SETTLE_MS ? most : SETTLE_MS);
    nap(op, 20);
    WAIT(op);
    while (is_settling(op)) {
        watch(op, 100);
        WAIT(op);
    }
    finish(op, take_ptr(op->extra));
    END;
}

/* The call goes on there, and ends with answer. Takes answer. */
static void settle(struct op *op, json_t *answer)
{
    op->extra = answer;
    op->step = step_settle;
    op->at = 0;
    op->step(op);
}

static void step_click(struct op *op)
{
    BEGIN(op);
    locate(op, "actionable", NULL);
    WAIT(op);
    if (failed(op))
        return;
    op->x = number(op->reply, "x");
    op->y = number(op->reply, "y");
    op->reason = "the page does not respond to the click";
    settle_start(op);
    mouse(op, "mouseMoved", 0, 0);
    WAIT(op);
    mouse(op, "mousePressed", 1, 1);
    WAIT(op);
    if (failed(op))
        return;
    mouse(op, "mouseReleased", 0, 1);
    WAIT(op);
    if (failed(op))
        return;
    settle(op, json_pack("{s:b, s:s}", "clicked", 1, "selector", op->call.selector));
    END;
}

static void step_type(struct op *op)
{
    struct key key;
    uint32_t cp;
    BEGIN(op);
    locate(op, "focus", json_pack("{s:b, s:b}", "clear", op->call.clear, "edit", 1));
    WAIT(op);
    if (failed(op))
        return;
    op->reason = "the page does not respond to the keys";
    size_t chars = 0;
    const char *text = json_string_value(op->call.text);
    for (size_t i = 0, n = json_string_length(op->call.text); i < n; i++)
        chars += ((unsigned char)text[i] & 0xC0) != 0x80;
    if (op->call.delay_ms < 0)
        op->call.delay_ms =
            chars * DEFAULT_DELAY_MS > TYPING_MS ? (int64_t)(TYPING_MS / chars) : DEFAULT_DELAY_MS;
    /* The deadline was for the element; typing has its own time. */
    timer_start(&op->deadline, (uint64_t)op->call.delay_ms * chars + 30000);
    while (op->pos < json_string_length(op->call.text)) {
        const char *at = json_string_value(op->call.text) + op->pos;
        size_t used = utf8_next(at, &cp);
        op->pos += used;
        if (cp == '\r' && at[1] == '\n')
            continue;
        if (cp != '\t' && key_of_char(cp, &key)) { /* Tab would leave the field */
            call(op, "Input.dispatchKeyEvent", key_event(&key, key.shifted ? KEY_SHIFT : 0, true));
            tell(op, "Input.dispatchKeyEvent", key_event(&key, key.shifted ? KEY_SHIFT : 0, false));
        } else {
            call(op, "Input.insertText", json_pack("{s:s%}", "text", at, used));
        }
        WAIT(op);
        if (failed(op))
            return;
        if (op->call.delay_ms > 0 && op->pos < json_string_length(op->call.text)) {
            nap(op, (uint64_t)op->call.delay_ms);
            WAIT(op);
        }
    }
    finish(op, json_pack("{s:b, s:s, s:O}", "typed", 1, "selector", op->call.selector, "text",
                         op->call.text));
    END;
}

static void step_press(struct op *op)
{
    struct key key;
    int modifiers;
    struct abx_error err;
    BEGIN(op);
    if (op->call.selector) {
        locate(op, "focus", json_pack("{s:b}", "edit", 0));
        WAIT(op);
        if (failed(op))
            return;
    }
    op->reason = "the page does not respond to the key";
    settle_start(op);
    if (key_parse(op->call.word, &key, &modifiers, &err) < 0) {
        op_fail(op, &err);
        return;
    }
    tell(op, "Input.dispatchKeyEvent", key_event(&key, modifiers, true));
    call(op, "Input.dispatchKeyEvent", key_event(&key, modifiers, false));
    WAIT(op);
    if (failed(op))
        return;
    settle(op, json_pack("{s:b, s:s}", "pressed", 1, "key", op->call.word));
    END;
}

static void step_scroll(struct op *op)
{
    BEGIN(op);
    json_t *args = json_object();
    if (op->call.has_x)
        json_object_set_new(args, "x", json_real(op->call.x));
    if (op->call.has_y)
        json_object_set_new(args, "y", json_real(op->call.y));
    if (op->call.state)
        json_object_set_new(args, "to", json_string(op->call.state));
    locate(op, "scroll", args);
    WAIT(op);
    if (failed(op))
        return;
    finish(op, json_pack("{s:b, s:O, s:O, s:O, s:O}", "scrolled", 1, "x",
                         json_object_get(op->reply, "x"), "y", json_object_get(op->reply, "y"),
                         "max_x", json_object_get(op->reply, "max_x"), "max_y",
                         json_object_get(op->reply, "max_y")));
    END;
}

static void step_wait(struct op *op)
{
    uint64_t ms;
    BEGIN(op);
    if (op->call.has_until) {
        op->reason = "the page is still loading";
        while (!is_reached(op, &ms)) {
            watch(op, ms);
            WAIT(op);
        }
    }
    if (op->call.selector) {
        locate(op, "check",
               json_pack("{s:s}", "state", op->call.state ? op->call.state : "visible"));
        WAIT(op);
        if (failed(op))
            return;
    }
    if (op->call.text) {
        locate(op, "text", json_pack("{s:O}", "text", op->call.text));
        WAIT(op);
        if (failed(op))
            return;
    }
    op->reason = "the page does not respond";
    inject(op, "where", NULL);
    WAIT(op);
    if (failed(op))
        return;
    finish(op, json_pack("{s:b, s:O, s:O}", "waited", 1, "url", json_object_get(op->reply, "url"),
                         "title", json_object_get(op->reply, "title")));
    END;
}

/* --- evaluate ------------------------------------------------------------------------------- */

/* A function expression alone is a statement without a name: brackets make it a value. */
static bool is_function_text(const char *s)
{
    s += strspn(s, " \t\r\n");
    if (strncmp(s, "async", 5) == 0) {
        size_t blanks = strspn(s + 5, " \t\r\n");
        if (blanks > 0)
            s += 5 + blanks;
    }
    return strncmp(s, "function", 8) == 0 && strchr(" \t\r\n(*", s[8]) != NULL && s[8] != '\0';
}

static json_t *script_of(const json_t *text)
{
    const char *s = json_string_value(text);
    if (!is_function_text(s))
        return json_incref((json_t *)text);
    size_t len = json_string_length(text);
    while (len > 0 && strchr(" \t\r\n;", s[len - 1]))
        len--;
    return json_sprintf("(%.*s\n)", (int)len, s);
}

static void encode_result(struct op *op)
{
    const json_t *text = json_object_get(json_object_get(op->reply, "result"), "value");
    autojson json_t *value = cdp_parse(json_string_value(text), json_string_length(text));
    if (!value) {
        abx_fail(&op->error, E_BROWSER, 0, "Page.evaluate: the page's own JSON functions are broken");
        return;
    }
    struct buf out = BUF_INIT;
    buf_adds(&out, "{\"result\": ");
    json_write(&out, value);
    buf_addc(&out, '}');
    op->text = buf_take(&out, &op->text_len);
    if (!op->text)
        abx_fail(&op->error, E_NO_MEMORY, 0, "out of memory");
}

/* True when the last answer was an exception: the call has failed then. */
static bool threw(struct op *op)
{
    if (op->code != CDP_OK && is_passing(op->message)) {
        fail_call(op, E_BROWSER, "the page navigated away before the script had ended");
        return true;
    }
    if (failed(op))
        return true;
    const json_t *details = json_object_get(op->reply, "exceptionDetails");
    if (!details)
        return false;
    autobuf struct buf text = BUF_INIT;
    value_exception_text(&text, details);
    const char *said = buf_str(&text);
    if (said && strstr(said, "Execution was terminated"))
        fail_call(op, E_TIMEOUT_500, "Timeout %lldms exceeded: the script was stopped",
             (long long)op->call.timeout_ms);
    else if (said && (strstr(said, "the result is too large") ||
                      strstr(said, "the result has too many values")))
        fail_large(op, MAX_DOCUMENT);
    else
        fail_call(op, E_BROWSER, "%s", said ? said : "the script failed");
    return true;
}

static void step_evaluate(struct op *op)
{
    BEGIN(op);
    op->reason = "the script has not ended";
    call(op, "Runtime.evaluate",
         json_pack("{s:o, s:b, s:b, s:s, s:I}", "expression", script_of(op->call.text), "replMode",
                   1, "userGesture", 1, "objectGroup", "abx", "timeout",
                   (json_int_t)op->call.timeout_ms));
    WAIT(op);
    if (threw(op))
        return;
    const json_t *result = json_object_get(op->reply, "result");
    const char *id = json_string_value(json_object_get(result, "objectId"));
    if (!id) {
        if (json_string_length(json_object_get(result, "value")) > MAX_DOCUMENT)
            fail_large(op, MAX_DOCUMENT);
        else
            finish(op, json_pack("{s:o}", "result", value_of_remote(result)));
        return;
    }
    call(op, "Runtime.callFunctionOn",
         json_pack("{s:O, s:s, s:b, s:b, s:b}", "functionDeclaration", op->ctx->b->serialize,
                   "objectId", id, "awaitPromise", 1, "returnByValue", 1, "userGesture", 1));
    WAIT(op);
    tell(op, "Runtime.releaseObjectGroup", json_pack("{s:s}", "objectGroup", "abx"));
    if (threw(op))
        return;
    if (!json_is_string(json_object_get(json_object_get(op->reply, "result"), "value"))) {
        fail_call(op, E_BROWSER, "the page's own JSON functions are broken");
        return;
    }
    if (op->reply_size > 64 * KIB) {
        finish_on_worker(op, encode_result);
        return;
    }
    encode_result(op);
    if (op->error.message[0]) {
        struct abx_error err = op->error;
        op_fail(op, &err);
        return;
    }
    size_t len = op->text_len;
    finish_text(op, take_ptr(op->text), len);
    END;
}

/* --- cookies and viewport ------------------------------------------------------------------- */

static json_t *in_context(struct op *op, json_t *params)
{
    if (params && *op->ctx->browser_context)
        json_object_set_new(params, "browserContextId", json_string(op->ctx->browser_context));
    return params;
}

static json_t *cookies_out(const json_t *from)
{
    static const char *const kept[] = {"name",     "value",  "domain",   "path",   "expires",
                                       "httpOnly", "secure", "sameSite", "session"};
    json_t *list = json_array();
    const json_t *c;
    size_t i;
    json_array_foreach(from, i, c)
    {
        json_t *out = json_object();
        for (size_t k = 0; k < ARRAY_LEN(kept); k++) {
            json_t *v = json_object_get(c, kept[k]);
            if (v)
                json_object_set(out, kept[k], v);
        }
        json_array_append_new(list, out);
    }
    return list;
}

static void step_cookies_get(struct op *op)
{
    BEGIN(op);
    call_browser(op, "Storage.getCookies", in_context(op, json_object()));
    WAIT(op);
    if (failed(op))
        return;
    finish(op, json_pack("{s:o}", "cookies", cookies_out(json_object_get(op->reply, "cookies"))));
    END;
}

static void step_cookies_set(struct op *op)
{
    BEGIN(op);
    if (op->call.clear) {
        call_browser(op, "Storage.clearCookies", in_context(op, json_object()));
        WAIT(op);
        if (failed(op))
            return;
    }
    if (json_array_size(op->call.text) > 0) {
        call_browser(op, "Storage.setCookies",
                     in_context(op, json_pack("{s:O}", "cookies", op->call.text)));
        WAIT(op);
        if (op->code != CDP_OK) {
            fail(op, E_VALUE, "Invalid 'cookies': %s", op->message);
            return;
        }
    }
    finish(op, json_pack("{s:I, s:b}", "set", (json_int_t)json_array_size(op->call.text), "cleared",
                         op->call.clear));
    END;
}

static void step_viewport(struct op *op)
{
    struct context *ctx = op->ctx;
    BEGIN(op);
    call(op, "Emulation.setDeviceMetricsOverride",
         page_metrics(op->call.width, op->call.height, op->call.scale));
    WAIT(op);
    if (failed(op))
        return;
    ctx->width = op->call.width;
    ctx->height = op->call.height;
    ctx->scale = op->call.scale;
    finish(op, json_pack("{s:i, s:i, s:f}", "width", ctx->width, "height", ctx->height, "scale",
                         ctx->scale));
    END;
}

/* --- running -------------------------------------------------------------------------------- */

void (*op_step_of(enum browser_op kind))(struct op *op)
{
    static void (*const steps[])(struct op * op) = {
        [BROWSER_NAVIGATE] = step_navigate,
        [BROWSER_SCREENSHOT] = step_screenshot,
        [BROWSER_CONTENT] = step_content,
        [BROWSER_CLICK] = step_click,
        [BROWSER_TYPE] = step_type,
        [BROWSER_EVALUATE] = step_evaluate,
        [BROWSER_PDF] = step_pdf,
        [BROWSER_WAIT] = step_wait,
        [BROWSER_PRESS] = step_press,
        [BROWSER_SCROLL] = step_scroll,
        [BROWSER_COOKIES_GET] = step_cookies_get,
        [BROWSER_COOKIES_SET] = step_cookies_set,
        [BROWSER_VIEWPORT] = step_viewport,
        [BROWSER_SNAPSHOT] = step_snapshot,
    };
    return steps[kind];
}

void op_start(struct op *op)
{
    struct context *ctx = op->ctx;
    ctx->running = op;
    timer_init(&op->deadline, ctx->b->loop, on_deadline, op);
    timer_init(&op->nap, ctx->b->loop, on_nap, op);
    timer_start(&op->deadline, (uint64_t)op->call.timeout_ms);
    if (ctx->covered) {
        ctx->covered = false;
        tell(op, "Page.bringToFront", NULL);
        tell(op, "Emulation.setDeviceMetricsOverride", page_metrics(ctx->width, ctx->height, ctx->scale));
    }
    op->step(op);
}
