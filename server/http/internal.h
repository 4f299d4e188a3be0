#pragma once
/* What the files of http/ share. Nothing outside this folder includes it. */

#include "base/buf.h"
#include "base/list.h"
#include "base/metrics.h"
#include "http/http.h"
#include "http/target.h"

#include <llhttp.h>
#include <stdatomic.h>

#define MAX_REQUEST_LINE 65536
#define MAX_HEADER_LINE 65536
#define MAX_HEADERS 99
#define MAX_HEAD (128 * 1024)
#define READ_CHUNK (64 * 1024)
#define DRAIN_MAX (256 * 1024)       /* unread body that is read away to keep a connection */
#define JSON_ON_LOOP (64 * 1024)     /* larger bodies are parsed on a worker */
#define STREAM_HIGH (64 * 1024)
#define STREAM_LOW (16 * 1024)
#define DEFAULT_MAX_REQUEST (10 * 1024 * 1024)
#define LINGER_MS 2000               /* after a refusal: how long a sender may go on before the cut */
#define TRIM_BODY (1024 * 1024)      /* a body from this size on leaves holes in the heap that are given back */
#define TRIM_AFTER_MS 1000
#define HEARTBEAT_MS 15000
#define MAX_PARAMS 4
#define MAX_NOTED_PATHS 8

struct slot;

struct http {
    struct http_config config;
    struct loop *loop;
    struct metrics *metrics; /* of the loop */
    struct slot **slots;     /* by endpoint (http/measure.c); NULL until it is asked for */
    size_t n_slots;
    struct site *site;
    struct limits *limits;
    struct list conns, idle; /* every connection; those between requests, longest idle first */
    struct list dead;        /* closed connections, freed at the end of this turn */
    struct list dirty;       /* connections with output to flush at the end of this turn */
    size_t n_conns, max_conns;
    struct list listeners;
    struct list free_reqs; /* a few finished requests, their memory kept */
    size_t n_free_reqs;
    uv_check_t check;
    uv_prepare_t prepare;
    struct timer accept_retry;
    struct timer stop_timer;
    struct timer trim;     /* runs TRIM_AFTER_MS after the first large body of a while */
    uint32_t stop_rest_ms; /* second half of the grace time; 0 once it runs */
    bool stopping;
    void (*stopped)(void *data);
    void *stopped_data;
    uint64_t next_id;
    char date[40];
    uint64_t date_at; /* loop_now of the last Date */
    char *scratch;    /* READ_CHUNK bytes, for one read at a time */
    struct buf outbuf; /* for one answer at a time */
};

struct listener {
    struct list link;
    struct http *http;
    struct io io;
    int fd;
    enum http_port_kind kind;
};

enum conn_state {
    CONN_HEAD,   /* waiting for, or reading, a request's head */
    CONN_BODY,   /* reading a body */
    CONN_BUSY,   /* a handler works; nothing is read */
    CONN_ANSWER, /* the answer is complete and being written */
    CONN_DRAIN,  /* answered; the rest of a body is read away */
    CONN_LINGER, /* answered and shut down for writing; waiting for the peer to close */
    CONN_WS,
};

struct conn {
    struct http *http;
    struct list link, idle_link, dirty_link;
    int fd;
    struct io io;
    int wanted; /* events asked of io */
    enum conn_state state;
    enum http_port_kind kind;
    llhttp_t parser;
    struct req *req;
    struct buf in;  /* read, not yet parsed */
    struct buf out; /* to be written, from out_at */
    size_t out_at;
    int file_fd; /* after `out`: this part of a file */
    int64_t file_at, file_left;
    int64_t body_left; /* of the Content-Length; bytes to drain in CONN_DRAIN */
    bool chunked;      /* the body is */
    bool chunks_done;
    bool body_paused;
    bool keep_alive;
    bool half_closed; /* the peer sends no more */
    bool eof_seen;    /* the same, but what it sent is still to be read */
    char last_byte;   /* of the head so far */
    bool after_newline; /* the last piece of a head ended in a newline */
    bool reading;     /* conn_read is on the stack */
    bool closed;      /* in http->dead */
    struct timer deadline;
    uint64_t body_until; /* loop_now by which the whole body must be here */
    struct stream *stream;
    struct ws *ws;
};

struct header {
    uint32_t name, value; /* offsets into req->head, NUL-terminated there */
    uint32_t value_len;
};

struct resp {
    int status;
    const char *content_type; /* static or in the arena of headers below */
    char *type_copy;
    struct buf headers;       /* "Name: value\r\n"... */
    char *body;
    size_t len;
    bool has_content_type; /* a handler set its own */
    int file_fd;
    int64_t file_at, file_len;
    const char *code; /* for the audit; NULL = none */
    char code_copy[64];
    const struct endpoint *endpoint;
    uint16_t error; /* 1 + enum error_kind, 0: none */
};

struct req {
    struct list link; /* free list */
    unsigned refs;    /* loop thread */
    struct http *http;
    struct conn *conn; /* NULL once the connection is gone */
    struct site *site;
    const struct route *route;
    const struct rule *rule;
    const struct identity *who;
    struct limit_slot *slot;
    struct limit_slot *second_slot; /* of req_admit */
    struct arena arena;
    struct buf head; /* target and headers as they came, each NUL-terminated */
    struct header headers[MAX_HEADERS];
    uint32_t n_headers;
    uint32_t target_len;
    uint32_t line_start; /* of the header being read */
    uint8_t method;      /* llhttp_method */
    uint8_t head_error;  /* enum: 0 or an error found in a callback */
    bool http10;
    char *path;          /* after step 1, in the arena */
    char *query_text;
    struct pair *query;
    size_t n_query;
    struct {
        const char *name;
        size_t name_len;
        const char *value;
        size_t len;
    } params[MAX_PARAMS];
    size_t n_params;
    int64_t content_length; /* -1: none given */
    int64_t max_body;
    struct buf body_text;
    json_t *body;
    struct resp resp;
    struct abx_error err; /* of a worker */
    int result;
    bool in_flight;  /* counted as such */
    bool measured;   /* counted as answered */
    bool dispatched; /* a handler (or the parsing of its body) was started: it will answer */
    bool answered;  /* req_finish or the like was called */
    bool expect_100;
    bool body_broken; /* its chunks are malformed */
    atomic_bool gone;
    void (*on_gone)(void *data);
    void *on_gone_data;
    const struct body_sink *sink;
    void *sink_owner;
    int ws_refusal;
    const char *ws_reason;
    char id[24];
    char *noted[MAX_NOTED_PATHS];
    atomic_uint n_noted;
    size_t place; /* of its endpoint, in http->slots */
    uint64_t started_ns; /* mono_ns at the first byte of its head */
};

/* conn.c */
struct conn *conn_new(struct http *h, int fd, enum http_port_kind kind);
void conn_close(struct conn *c); /* cuts; the struct lives to the end of the loop's turn */
void conn_resume(struct conn *c); /* go on with what was read already */
void conn_start_body(struct conn *c);
void conn_flush_later(struct conn *c);
void conn_flush(struct conn *c);
void conn_update(struct conn *c); /* asks io for what the state needs */
void conn_answered(struct conn *c, bool body_unread); /* the answer is in `out`: send it, go on or close */
size_t conn_pending(const struct conn *c);
void conn_to_ws(struct conn *c);
void conn_ws_linger(struct conn *c); /* the WebSocket has said its last: it is let go, the peer gets time to read */

/* req.c */
/* What the client is told: that it is "gone" only means that its body could not be read to the end. */
const struct abx_error *req_reason(const struct req *r, const struct abx_error *err, struct abx_error *broken);
struct req *req_new(struct conn *c);
void req_complete(struct req *r); /* the answer has been given: release slot, audit */
void req_set_gone(struct req *r);
void resp_init(struct resp *resp);
void resp_done(struct resp *resp);

/* pipeline.c: the head is complete */
void pipeline_head(struct req *r);
/* the body is complete (not for sinks) */
void pipeline_body(struct req *r);
void pipeline_refuse(struct req *r, const struct abx_error *err, json_t *fields);
/* Refusals of the connection layer: no route known. Closes after the answer. */
void pipeline_bad(struct conn *c, enum error_kind kind, const char *message);

/* measure.c: what GET /metrics tells by endpoint */
void measure_site(struct http *h, const struct site *s); /* of the first site; without memory nothing is counted */
size_t measure_slot(const struct http *h, const struct site *s, size_t index); /* of a route */
void measure_begin(struct req *r);                /* its head is complete */
void measure_answer(struct req *r, int status);   /* answered; streams and WebSockets: opened */
void measure_end(struct req *r);                  /* nothing more will be sent; several calls are fine */
void measure_done(struct http *h);

/* answer.c */
void answer_send(struct req *r); /* r->resp to the connection */
void answer_head(struct req *r, struct buf *out, int status, const char *content_type, int64_t length,
                 bool chunked);
const char *status_text(int status);
const char *http_date(struct http *h);

/* site.c */
enum match { MATCH_NONE, MATCH_OTHER_METHOD, MATCH_OK };
enum match site_match(struct site *s, enum method method, const char *path, struct req *r, uint32_t *ret_allowed);
const struct route *site_pty_route(const struct site *s, struct req *r); /* notes its place */

/* stream.c */
void stream_drained(struct stream *s);
void stream_gone(struct stream *s); /* calls ops->gone, frees */
void stream_stop(struct stream *s); /* gone for the owner, a proper end for the client */

/* ws.c */
void ws_readable(struct ws *ws, const char *data, size_t len);
void ws_drained(struct ws *ws);
void ws_gone(struct ws *ws);
bool ws_paused(const struct ws *ws);
void ws_stop(struct ws *ws);
