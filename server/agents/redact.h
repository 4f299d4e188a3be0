#pragma once
/* Keeps secrets out of texts: registered values (as they are, URL-encoded, JSON-escaped) and the
 * shapes of well-known tokens become [REDACTED]. Texts that come in pieces hold back what may be
 * the beginning of one. */

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct redact;

struct redact *redact_new(void);
void redact_free(struct redact *r); /* wipes */
/* Registers a secret and its spellings; shorter than 6 bytes: ignored (it would hit ordinary text).
 */
void redact_add(struct redact *r, const char *secret);

/* Appends the clean form of text. r may be NULL: shapes only. */
void redact_text(const struct redact *r, const char *text, size_t len, struct buf *out);
char *redact_copy(const struct redact *r,
                  const char *text); /* heap, NUL-terminated; NULL: no memory */
/* Every string of a value, keys included. New reference. */
json_t *redact_json(const struct redact *r, const json_t *value);

/* A text in pieces: feed appends to `out` what is safe to show. finish gives the rest. */
struct redact_stream {
    struct buf held;
    char before; /* last byte shown: word boundaries */
};
void redact_feed(const struct redact *r, struct redact_stream *s, const char *text, size_t len,
                 struct buf *out);
void redact_finish(const struct redact *r, struct redact_stream *s, struct buf *out);
void redact_stream_done(struct redact_stream *s);
