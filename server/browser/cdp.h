#pragma once
/* DevTools protocol, flat sessions: one connection carries the browser's own session and those of
 * its pages. Calls get ids here; answers find their callback; events go to one function. Loop
 * thread.
 *
 * Messages are not parsed as a whole: a scan finds the few top-level members, so that what is only
 * passed on (screenshots, foreign sessions) costs one look. Answers over 256 KiB are parsed on a
 * worker. */

#include "base/buf.h"
#include "base/error.h"
#include "base/loop.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define CDP_MAX_MESSAGE (160 * 1024 * 1024) /* a longer answer fails its call with CDP_TOO_LARGE   \
                                             */

struct cdp_span {
    const char *at; /* NULL: not there */
    size_t len;
};

/* Top-level members of a message; values as JSON text, strings without their quotes. */
struct cdp_head {
    int64_t id; /* 0: none */
    struct cdp_span session, method, params, result, error;
};

/* 0, or -1 when text is not an object or a string or bracket is left open. Escapes in the names of
 * members, sessions and methods are not decoded (Chromium and its clients use none). */
int cdp_scan(const char *text, size_t len, struct cdp_head *ret);

bool cdp_is(struct cdp_span s, const char *text);

/* Parses a span. Lone surrogates, which page scripts can produce and RFC 8259 parsers refuse,
 * become U+FFFD. NULL when it is no JSON. Any thread. */
json_t *cdp_parse(const char *text, size_t len);

enum cdp_code {
    CDP_OK = 0,
    CDP_CLOSED = 1,    /* the connection ended */
    CDP_TOO_LARGE = 2, /* over CDP_MAX_MESSAGE */
    CDP_BAD = 3,       /* an answer that is no JSON */
    /* else the protocol's own negative codes */
};

struct cdp_answer {
    int code;
    const char *message; /* "" when code is 0 */
    json_t *result;      /* borrowed; NULL for raw calls and errors */
    size_t size;         /* of the whole message, bytes */
    char *raw; /* raw calls: the whole message, malloc'd; take it and set NULL, or leave it */
    struct cdp_head head; /* raw calls: spans into raw */
};
typedef void (*cdp_done)(void *data, struct cdp_answer *answer);

struct cdp;
struct cdp_call;

struct cdp_ops {
    void (*event)(void *owner, const struct cdp_head *head, const char *text, size_t len);
    void (*closed)(void *owner, const char *why); /* all calls have been answered with CDP_CLOSED */
    /* Only for transports of the owner (cdp_new): len bytes of one message, taken (free). */
    void (*send)(void *owner, char *text, size_t len);
};

/* A connection whose owner carries the messages: feed it by cdp_message. NULL: no memory. */
struct cdp *cdp_new(struct loop *loop, const struct cdp_ops *ops, void *owner);
/* Takes text (malloc'd). */
void cdp_message(struct cdp *c, char *text, size_t len);
/* The owner's transport ended. */
void cdp_fail(struct cdp *c, const char *why);

/* Over a pipe pair, messages ended by NUL. Takes both descriptors. */
struct cdp *cdp_new_pipe(struct loop *loop, int read_fd, int write_fd, const struct cdp_ops *ops,
                         void *owner, struct abx_error *err);

/* Closes the pipes. Outstanding calls are forgotten without an answer; nothing is called any more.
 */
void cdp_free(struct cdp *c);

/* session NULL: the browser's own. Takes params (NULL: none). fn NULL: the answer does not matter.
 * fn is never called from within. Returns a handle valid until fn is called, or NULL (fn NULL or
 * the connection has ended; then fn is called soon with CDP_CLOSED, if it can be). */
struct cdp_call *cdp_send(struct cdp *c, const char *session, const char *method, json_t *params,
                          cdp_done fn, void *data);
/* The same; the answer comes unparsed. */
struct cdp_call *cdp_send_raw(struct cdp *c, const char *session, const char *method,
                              json_t *params, cdp_done fn, void *data);
/* Foreign method and params as text (NULL span: none); answered raw. */
struct cdp_call *cdp_pass(struct cdp *c, struct cdp_span session, struct cdp_span method,
                          struct cdp_span params, cdp_done fn, void *data);
/* fn will not be called. */
void cdp_forget(struct cdp_call *call);

size_t cdp_pending_bytes(const struct cdp *c); /* not yet written */
