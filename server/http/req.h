#pragma once
/* A request as a handler sees it: matched, authenticated, admitted, its body read (or, with
 * EP_BODY_STREAM, about to come), and what it may answer with.
 *
 * A handler is
 *     int handler(struct req *req, struct resp *resp, struct abx_error *err)
 * and returns
 *     0            resp is filled: send it
 *     -1           err is filled: send that (type, code, endpoint)
 *     REQ_PENDING  the answer comes later: exactly one of req_finish, req_fail, stream_open, ws_accept.
 *                  (loop handlers only; not with EP_WORKER)
 * With EP_WORKER / EP_WORKER_LONG it runs on a worker, may block, and must not touch loop state;
 * otherwise it runs on the loop and must not block.
 *
 * A pending request must be finished even when the client has left: then nothing is sent.
 * req_on_gone tells when it leaves (a connection that the client closed or half-closed). */

#include "base/arena.h"
#include "base/error.h"
#include "base/loop.h"
#include "policy/policy.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct req;
struct resp;
struct app; /* defined by routes/: the services */

#define REQ_PENDING 1

typedef int (*req_handler)(struct req *req, struct resp *resp, struct abx_error *err);

/* --- what came ------------------------------------------------------------------------------- */

struct app *req_app(const struct req *req);
struct loop *req_loop(const struct req *req);
struct arena *req_arena(struct req *req); /* one owner at a time: the handler that runs */
const struct rule *req_rule(const struct req *req);
const struct guard *req_guard(const struct req *req); /* of the rule */
const struct identity *req_identity(const struct req *req);
const struct endpoint *req_endpoint(const struct req *req);
struct policy *req_policy(const struct req *req);
const char *req_id(const struct req *req);         /* for the log: "r-1a2b" */
const char *req_method(const struct req *req);     /* as sent: "GET", "HEAD", ... */
bool req_is_head(const struct req *req);
const char *req_path(const struct req *req);       /* slashes and suffix tidied (http/target.h), undecoded */
const char *req_header(const struct req *req, const char *name); /* first value, or NULL */
void req_each_header(const struct req *req, void (*fn)(void *data, const char *name, const char *value),
                     void *data);
const char *req_param(const struct req *req, const char *name, size_t *ret_len); /* {name}, decoded;
                                                                                    NULL: no such */
/* Query values are decoded; blank ones count as absent (NULL). len may be NULL. Bad UTF-8 became U+FFFD;
 * req_query_raw has the bytes as sent (after percent-decoding), for file names. */
const char *req_query(const struct req *req, const char *name, size_t *ret_len);
const char *req_query_raw(const struct req *req, const char *name, size_t *ret_len);
void req_each_query(const struct req *req, void (*fn)(void *data, const char *name, const char *value),
                    void *data);
json_t *req_body(const struct req *req); /* borrowed object; {} when there was no body */

/* The body's bytes as they came (EP_MULTIPART with a multipart Content-Type: req_body is {} then). */
const char *req_body_text(const struct req *req, size_t *ret_len);

/* EP_WS_LATE: 0, or the close code (4001, 4003, 1013) and reason to send right after ws_accept. */
int req_ws_refusal(const struct req *req, const char **ret_reason);

/* Decoders of common shapes; each fails with E_VALUE "Missing or invalid 'name'" unless said otherwise. */
bool req_query_bool(const struct req *req, const char *name); /* true, yes, 1 in any case */
int body_str(const json_t *body, const char *name, const char **ret, size_t *ret_len,
             struct abx_error *err); /* required, not empty */
/* absent or null: *ret = NULL and 0; present: must be a string */
int body_opt_str(const json_t *body, const char *name, const char **ret, size_t *ret_len,
                 struct abx_error *err);
bool body_truthy(const json_t *body, const char *name); /* truthiness as Python's */
/* Number truncated toward zero, bool 0/1, decimal text. 0 / -1 (no err: the endpoint has its own rule). */
int json_coerce_int(const json_t *value, int64_t *ret);
int json_coerce_seconds(const json_t *value, double *ret); /* finite number or numeric text */

/* Notes a resolved path for the audit line (first 8; copied). Worker or loop. */
void req_note_path(struct req *req, const char *path);

/* For a handler that does what another endpoint does: that one's rate and concurrency too (loop thread, once per
 * request; the slot is given back with the request). Errors: E_RATE_LIMITED, E_CONCURRENCY_LIMITED. */
int req_admit(struct req *req, const struct rule *rule, int *ret_retry_after, struct abx_error *err);

/* --- the plain answer ------------------------------------------------------------------------ */

/* The Content-Type of every JSON answer, however it is written. */
#define JSON_CONTENT "application/json; charset=utf-8"

/* Status 200 unless set. Each of these fills resp completely and returns 0, or -1 with err. */
int resp_json(struct resp *resp, struct abx_error *err, const char *fmt, ...); /* json_pack format */
int resp_value(struct resp *resp, json_t *value, struct abx_error *err);       /* takes value (NULL: E_NO_MEMORY) */
int resp_json_text(struct resp *resp, char *text, size_t len);                 /* takes ready JSON (free) */
int resp_bytes(struct resp *resp, const char *content_type, const void *data, size_t len,
               struct abx_error *err);                                         /* copies */
int resp_take(struct resp *resp, const char *content_type, char *data, size_t len); /* takes (free) */
void resp_status(struct resp *resp, int status);
int resp_header(struct resp *resp, const char *name, const char *value, struct abx_error *err); /* copies;
                                         control characters are refused: E_INTERNAL */
/* An error with further fields: {"error", "type", "code", "endpoint", ...fields}. fields: object, taken,
 * may be NULL. Returns 0: resp is the answer. */
int resp_error(struct resp *resp, const struct abx_error *what, json_t *fields);
/* len bytes of a file from offset, by sendfile. Takes fd. */
int resp_file(struct resp *resp, const char *content_type, int *fd, int64_t offset, int64_t len);

/* --- answering later (loop thread) ------------------------------------------------------------ */

struct resp *req_resp(struct req *req);
void req_finish(struct req *req); /* req_resp is filled */
void req_fail(struct req *req, const struct abx_error *err);

/* Called once, on the loop, when the client has left before the answer was complete. fn NULL: forget it.
 * Is called soon when it has left already. */
void req_on_gone(struct req *req, void (*fn)(void *data), void *data);
bool req_is_gone(const struct req *req); /* any thread */

/* Runs fn on a worker and done on the loop, keeping req alive; for handlers with several stages. */
int req_work(struct req *req, enum work_lane lane, void (*fn)(void *data), void (*done)(void *data),
             void *data, struct abx_error *err);

/* The identity and policy stay valid while req does. A holder keeps it alive: */
struct req *req_ref(struct req *req);
void req_unref(struct req *req);

/* --- streamed bodies in (EP_BODY_STREAM, loop thread) ------------------------------------------- */

struct body_sink {
    /* Where the next bytes should be read to; size at least 1. NULL: a shared buffer is used. Optional. */
    void *(*buffer)(void *owner, size_t *ret_size);
    /* data is the buffer given or the shared one, valid during the call. Return -1 with err to refuse:
     * the answer goes out and the rest is drained or cut. */
    int (*data)(void *owner, const char *data, size_t len, struct abx_error *err);
    void (*end)(void *owner);  /* the whole body has been seen */
    void (*gone)(void *owner); /* client left, or the body broke; no other call follows. The request must
                                  still be finished (req_fail) */
};
/* Content-Length, or -1 when chunked. */
int64_t req_body_length(const struct req *req);
const char *req_content_type(const struct req *req); /* "" when absent */
void req_body_start(struct req *req, const struct body_sink *sink, void *owner); /* sends 100 if asked for */
void req_body_pause(struct req *req);
void req_body_resume(struct req *req);

/* --- streamed answers (loop thread) --------------------------------------------------------------- */

struct stream;
struct stream_ops {
    void (*drain)(void *owner); /* there is room again after stream_full */
    void (*gone)(void *owner);  /* the client left (or the server stops); the stream is no longer valid
                                   after this call. Not called after stream_end. */
};
/* SSE: heartbeat comments every 15 s of silence, no Content-Length, closed after the end. */
struct stream *stream_open_sse(struct req *req, const struct stream_ops *ops, void *owner);
/* Bytes: headers and status of req_resp(req); length -1 = chunked. */
struct stream *stream_open_raw(struct req *req, const char *content_type, int64_t length,
                               const struct stream_ops *ops, void *owner);
/* True when more than the bound (64 KiB) is waiting for the client: stop producing until drain. */
bool stream_full(const struct stream *s);
size_t stream_pending(const struct stream *s);
/* event: name; data: JSON value, borrowed. id: "id:" line or NULL. */
void stream_event(struct stream *s, const char *event, const json_t *data, const char *id);
/* The same with ready JSON text (ASCII, one line). */
void stream_event_text(struct stream *s, const char *event, const char *json, size_t len, const char *id);
void stream_write(struct stream *s, const void *data, size_t len); /* raw streams; or ready SSE text */
void stream_comment(struct stream *s, const char *text);
void stream_end(struct stream *s);   /* flushes, then ends properly (final chunk / close) */
void stream_abort(struct stream *s); /* the client must see that it is not whole: connection reset */
