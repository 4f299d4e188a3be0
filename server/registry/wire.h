#pragma once
/* The host protocol: frames over a socketpair between the server and one command host, both on one
 * machine, so numbers travel in native order. libc only: the host is built from it too.
 *
 * A frame is a header and `len` bytes of payload; a payload is a sequence of fields. A text is
 * u32 length, the bytes, and a NUL, so that a reader can point into the payload.
 * A reader never runs past its end: a bad payload sets `bad` and yields zeros and "". */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION 1
#define WIRE_MAX_PAYLOAD (80u * 1024 * 1024)
#define WIRE_MAX_RESULT (64u * 1024 * 1024)
#define WIRE_EXIT_MEMORY 72 /* exit status of a host that was far over its memory limit */
#define WIRE_CREDIT (64 * 1024) /* bytes of events that may be on their way */

enum wire_type {
    /* server to host */
    W_CALL = 1, /* see wire_call below */
    W_CANCEL,   /* nobody waits for this call any more */
    W_CREDIT,   /* u32: so many bytes of events more */
    W_RESOLVED, /* u32 status; 0: text path; else text type, code, message */
    /* host to server: once, while loading, in this order */
    W_COMMAND = 32, /* text name, description; u32 flags; f64 timeout; texts scopes; args */
    W_ROUTE,        /* text method, path, group, name, summary; u32 flags; f64 timeout; texts scopes */
    W_GROUP,        /* text name; u32 on */
    W_READY,        /* u32 WIRE_VERSION */
    W_LOAD_FAILED,  /* text why; the host exits after it */
    /* host to server: calls */
    W_RESULT = 64, /* u32 status, u32 kind; u32 n, n x (text name, value) headers; text content type; text body */
    W_ERROR,       /* u32 status; text type, code, message, fields (JSON object or "") */
    W_EVENT,       /* text name, text json */
    W_RESOLVE,     /* u32 op; text path */
    W_LOG,         /* u32 level; text; call id 0: none */
    W_DRAIN,       /* text why: please replace me */
    W_ENDED,       /* a cancelled call has returned: its thread is free again */
};

/* W_CALL: u32 index of the command or route (in order of registration), u32 flags; text request id, identity,
 * base dir; texts scopes; u32 n, n x (text name, f64) limits; u32 n args; and with WIRE_CALL_ROUTE: text
 * method, path; pairs params, query, headers; u32 has body, text body.
 * An arg: u32 type (enum abx_type), text name, then text | i64 | f64 | u32 | texts. */
enum { WIRE_CALL_ROUTE = 1, WIRE_CALL_EVENTS = 2 };

enum { WIRE_HIDDEN = 1, WIRE_STREAMS = 2, WIRE_NO_AUTH = 4 };
enum { WIRE_KIND_JSON = 0, WIRE_KIND_BYTES = 1 };

struct wire_header {
    uint32_t len, id, type;
};

struct wire_buf {
    char *data;
    size_t len, cap;
    bool failed; /* memory was out; what follows is dropped */
};
void wire_done(struct wire_buf *b);
void wire_consume(struct wire_buf *b, size_t n);
char *wire_reserve(struct wire_buf *b, size_t more);
void wire_raw(struct wire_buf *b, const void *data, size_t len);
void wire_u32(struct wire_buf *b, uint32_t v);
void wire_i64(struct wire_buf *b, int64_t v);
void wire_f64(struct wire_buf *b, double v);
void wire_text(struct wire_buf *b, const char *s, size_t len);
void wire_str(struct wire_buf *b, const char *s); /* NULL: "" */

/* wire_begin ... fields ... wire_end. wire_end undoes the frame and returns -1 when memory was out or the
 * payload is too large; then the buffer is as before. */
size_t wire_begin(struct wire_buf *b, enum wire_type type, uint32_t id);
int wire_end(struct wire_buf *b, size_t frame);
/* Puts a number in a place noted earlier (a count that is known late). */
void wire_patch(struct wire_buf *b, size_t at, uint32_t v);

struct wire_reader {
    const char *at, *end;
    bool bad;
};
uint32_t wire_get_u32(struct wire_reader *r);
int64_t wire_get_i64(struct wire_reader *r);
double wire_get_f64(struct wire_reader *r);
const char *wire_get_text(struct wire_reader *r, size_t *ret_len); /* never NULL; ret_len may be NULL */

/* 1 and the frame (payload within data), 0 when more bytes are needed (*ret_need: of the whole frame, when
 * known, else 0), -1 when it can't be a frame. */
int wire_next(const char *data, size_t len, struct wire_header *ret, struct wire_reader *payload,
              size_t *ret_need);
