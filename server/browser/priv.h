#pragma once
/* Shared by the files of this room only. */

#include "base/arena.h"
#include "base/list.h"
#include "browser/browser.h"
#include "browser/cdp.h"
#include "browser/chrome.h"
#include "browser/socks.h"
#include "browser/wsclient.h"

#define ID_MAX 80 /* session, target, frame, loader and request ids of the protocol */

enum browser_state { BROWSER_OFF, BROWSER_STARTING, BROWSER_UP };

struct browser {
    struct loop *loop;
    struct spawner *spawner;
    const struct env_map *env;
    char *state_dir, *path, *cdp_url;
    uint64_t idle_ms;
    enum browser_state state;
    bool no_sandbox;     /* its sandbox could not be had last time */
    bool retried;        /* this start is the second try, without the sandbox */
    unsigned generation; /* counts starts */
    struct chrome *chrome;
    struct wsclient *remote;
    struct cdp *cdp;
    struct socks *socks; /* NULL: a remote browser, or the environment's own proxies */
    int socks_port;
    struct policy *policy; /* of the newest call */
    struct timer start_timer, idle_timer, turn_timer;
    struct list contexts, targets, taps;
    size_t n_contexts;
    json_t *inject, *serialize; /* the scripts, as JSON strings */
    char product[64], user_agent[256];
};

/* What the browser has told about one of its pages or workers. */
struct target {
    struct list link;
    char id[ID_MAX], session[ID_MAX], context[ID_MAX], opener[ID_MAX];
    struct context *popup_of;
    bool page, waiting; /* waiting: not let run by us yet */
};

enum page_state { PAGE_NONE, PAGE_OPENING, PAGE_READY, PAGE_FIXING };

struct request_id {
    char id[ID_MAX], loader[ID_MAX];
};

struct line {
    char *type, *text, *url;
    int line;
    double at;
};
#define CONSOLE_KEPT 1000
#define CONSOLE_LINE_MAX (16 * 1024)

/* A session: its page, its calls, its console. */
struct context {
    struct list link;
    struct browser *b;
    char *owner, *name;           /* both "" for the shared one */
    char browser_context[ID_MAX]; /* "": the browser's default */
    uint64_t used_ms;

    enum page_state state;
    char target[ID_MAX], session[ID_MAX];
    struct timer page_timer; /* opening, fixing */
    bool terminated;         /* fixing: its scripts have been stopped */
    unsigned opening;        /* counts openings: an answer to an older one is dropped */
    int64_t world;           /* execution context of our scripts; 0: none yet */

    char loader[ID_MAX], url[512];
    bool dom_ready, loaded;
    bool nav_requested;
    char response_loader[ID_MAX];
    int response_status;
    char nav_url[2048];     /* last request of a navigation of the page itself */
    enum error_kind denied; /* why that was refused; 0: it wasn't */
    bool downloaded;
    struct request_id *requests;
    size_t n_requests, cap_requests;
    uint64_t quiet_since;
    bool covered; /* others may have taken the front of its window (then it draws nothing) or its
                     size */

    int width, height;
    double scale;

    struct list queue;
    size_t n_queue;
    struct op *running;

    struct line lines[CONSOLE_KEPT];
    size_t first_line, n_lines, dropped;
};

struct op {
    struct list link;
    struct context *ctx;
    struct browser_call call;
    struct arena arena;
    browser_done done;
    void *owner;
    void (*step)(struct op *op);
    int at;
    bool started, finished, background;
    struct timer deadline, nap;
    struct cdp_call *outstanding;
    bool late;           /* its deadline has passed */
    bool loading;        /* a navigation has not been answered */
    bool waits_for_page; /* the outstanding call is answered by the page's own process */
    bool watching;       /* resume when something about the page changes */
    /* the last answer */
    int code;
    const char *message; /* arena */
    json_t *reply;       /* owned */
    size_t reply_size;
    char *raw;
    struct cdp_head raw_head;
    /* a script call under way */
    const char *inject_cmd;
    json_t *inject_args;
    bool locating;
    int tries;
    const char *object_id; /* arena */
    const char *reason;    /* arena: what is being waited for */
    /* of the steps */
    size_t pos;
    double x, y, width, height;
    char loader[ID_MAX], before[ID_MAX];
    bool still_asked, still, same_document;
    uint64_t until_ms;
    json_t *extra; /* owned */
    struct buf bytes;
    char *text;
    size_t text_len;
    int64_t limit; /* bytes; of E_TOO_LARGE */
    struct abx_error error;
};

/* --- browser.c ------------------------------------------------------------------------------ */

void browser_touch(struct browser *b);
/* Starts it when it is off. */
void browser_wake(struct browser *b);
/* It died or is given up: running calls fail with why, waiting ones start it again. */
void browser_down(struct browser *b, const char *why);
const struct rule *browser_rule(const struct browser *b);
bool browser_has_globs(const struct browser *b);
void context_pump(struct context *ctx);
struct context *context_find(struct browser *b, const char *owner, const char *name);
/* A name or address a page may not reach? (rows 4 and 6) */
bool browser_may_reach(const struct browser *b, const char *host, int port,
                       const struct sockaddr *addr);
bool browser_is_loopback(const struct sockaddr *addr); /* any thread */

/* --- page.c --------------------------------------------------------------------------------- */

void page_open(struct context *ctx);
/* The page has gone; its target is closed when it still exists. The running call fails with why. */
void page_drop(struct context *ctx, const char *why);
/* After a call that was not done in time: when the page does not respond, its scripts are stopped;
 * when that does not help, it is replaced. stop_loading: a navigation is under way that nobody
 * wants any more. */
void page_fix(struct context *ctx, bool stop_loading);
void page_root_event(struct browser *b, const struct cdp_head *h);
/* True when the session is one of ours. */
bool page_event(struct browser *b, const struct cdp_head *h);
void page_note(struct context *ctx, const char *type, const char *text, size_t len, const char *url,
               int line, double at);
/* Parameters of Emulation.setDeviceMetricsOverride. New object, or NULL. */
json_t *page_metrics(int width, int height, double scale);
void page_targets_clear(struct browser *b);
void page_forget_context(struct context *ctx);
void target_free(struct target *t);
void copy_id(char *to, const json_t *from);

/* --- ops.c ---------------------------------------------------------------------------------- */

void op_start(struct op *op);
void op_fail(struct op *op, const struct abx_error *err);
void op_page_changed(struct context *ctx); /* wakes a watching call */
void op_free(struct op *op);
void (*op_step_of(enum browser_op kind))(struct op *op);

/* --- tap.c ---------------------------------------------------------------------------------- */

bool tap_event(struct browser *b, const struct cdp_head *h, const char *text, size_t len);
void tap_browser_up(struct browser *b);
void tap_browser_down(struct browser *b, const struct abx_error *err); /* err NULL: it has gone */
