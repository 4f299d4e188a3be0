#pragma once
/* The browser: one Chromium, started on first use, and in it one page per session. Every call names
 * a session and is answered by a callback; calls of one session run one after the other, sessions
 * side by side. Loop thread. docs/browser.md says what each call does.
 *
 * Costs nothing until the first call: no process, no socket, no timer. */

#include "base/env.h"
#include "base/error.h"
#include "base/loop.h"
#include "policy/policy.h"
#include "process/spawn.h"

#include <jansson.h>
#include <stdbool.h>

struct browser;

struct browser_config {
    struct loop *loop;
    struct spawner *spawner;
    const struct env_map *env;
    const char *state_dir;
    const char *path;    /* ABX_BROWSER_PATH or NULL */
    const char *cdp_url; /* ABX_BROWSER_CDP_URL or NULL: use that browser, start none */
    uint64_t idle_ms;    /* the browser ends after this long without a call; 0: never */
};

struct browser *browser_new(const struct browser_config *config, struct abx_error *err);
/* At the server's stop: children are gone. Nothing is answered any more. */
void browser_free(struct browser *b);

enum browser_op {
    BROWSER_NAVIGATE,
    BROWSER_SCREENSHOT,
    BROWSER_CONTENT,
    BROWSER_CLICK,
    BROWSER_TYPE,
    BROWSER_EVALUATE,
    BROWSER_PDF,
    BROWSER_WAIT,
    BROWSER_PRESS,
    BROWSER_SCROLL,
    BROWSER_COOKIES_GET,
    BROWSER_COOKIES_SET,
    BROWSER_VIEWPORT,
    BROWSER_SNAPSHOT,
};

enum browser_until { UNTIL_NETWORKIDLE, UNTIL_LOAD, UNTIL_DOMCONTENTLOADED, UNTIL_COMMIT };

/* Strings and JSON are borrowed for the call to browser_submit (JSON is kept by reference). */
struct browser_call {
    enum browser_op op;
    struct policy *policy; /* whose browser_navigate rule judges URLs */
    const char *owner;     /* identity: named sessions belong to one */
    const char *session;   /* "": the page that all callers share */
    int64_t timeout_ms;
    const char *selector; /* NULL: none */
    const char *url;      /* navigate */
    enum browser_until until;
    const char *state; /* wait: visible, hidden, attached, detached; scroll: top, bottom; or NULL */
    const char *word;  /* press: the key; pdf: the paper; or NULL */
    json_t *text;      /* type, wait, evaluate's script, cookies to set; or NULL */
    bool jpeg, full_page, clear, landscape, as_text, has_until, has_x, has_y;
    double x, y, scale;
    int width, height;
    int64_t delay_ms; /* type; -1: the default */
};

/* Either value or text (a JSON object, ready; len bytes) on success, else err. What is taken is set
 * NULL; the rest is freed after the call. big: encode value on a worker. */
struct browser_result {
    const struct abx_error *err;
    int64_t limit; /* with E_TOO_LARGE: bytes */
    json_t *value;
    char *text;
    size_t len;
    bool big;
};
typedef void (*browser_done)(void *owner, struct browser_result *result);

/* done is called once, later, unless browser_cancel comes first.
 * Errors: E_VALUE (session name), E_SESSION_LIMIT, E_OVERLOADED, E_NO_MEMORY. */
struct op;
struct op *browser_submit(struct browser *b, const struct browser_call *call, browser_done done,
                          void *owner, struct abx_error *err);
/* The caller has left: done is not called; what runs is stopped. */
void browser_cancel(struct op *op);

#define BROWSER_SESSION_MAX 64 /* characters of a session's name: letters, digits, . _ - */
bool browser_session_valid(const char *name);

/* Console lines of a session since the last read: [{"type", "text", "timestamp", "url", "line"}].
 * Needs no browser and waits for nothing. ret_dropped: lost because more than 1000 were not read.
 */
json_t *browser_console(struct browser *b, const char *owner, const char *session,
                        size_t *ret_dropped);

/* {"running", "program", "sessions": [{"session", "url", "busy", "idle_seconds"}]} of one owner. */
json_t *browser_sessions(struct browser *b, const char *owner);
/* Ends a session with its cookies and page (the shared one: its page). False: no such session. */
bool browser_session_close(struct browser *b, const char *owner, const char *session);

/* May this URL be opened? rows 1-3, 5, 6 of docs/browser.md; names are not resolved.
 * Errors: E_URL_NOT_ALLOWED, E_URL_INVALID, E_URL_DENIED. */
int browser_judge_url(const struct policy *policy, const char *url, size_t len,
                      struct abx_error *err);

/* --- pass-through for DevTools clients
 * ------------------------------------------------------------- */

struct tap;
struct tap_ops {
    /* The browser is there: messages may come. */
    void (*ready)(void *owner);
    /* It can't be had (err), or has gone (NULL). The last call; the tap is freed. */
    void (*closed)(void *owner, const struct abx_error *err);
    void (*message)(void *owner, const char *text, size_t len);
};
/* Errors: E_OVERLOADED (8 at once), E_NO_MEMORY. */
struct tap *tap_open(struct browser *b, struct policy *policy, const struct tap_ops *ops,
                     void *owner, struct abx_error *err);
void tap_message(struct tap *t, const char *text, size_t len);
/* Nothing is called any more. What the client made in the browser goes. */
void tap_close(struct tap *t);
/* Bytes waiting for the browser: stop reading from the client above 4 MiB. */
size_t tap_pending(const struct tap *t);
/* "Chrome/156.0.1.2" and "HeadlessChrome/..." as of the last start; "" before. */
const char *browser_product(const struct browser *b);
const char *browser_user_agent(const struct browser *b);
