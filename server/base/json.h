#pragma once
/* JSON on top of jansson: strict and bounded in, pure ASCII and the reference's spelling out
 * (decisions 7 and 8). */

#include "base/buf.h"
#include "base/error.h"

#include <jansson.h>
#include <stdint.h>

#define JSON_MAX_NEST 512
#define JSON_MAX_VALUES 100000

/* Strict RFC 8259: UTF-8 without BOM, no NaN, no lone surrogates, integers within 64 bits, NUL only
 * in values. Depth and number of values are counted before anything is built. Any thread.
 * Errors: E_BAD_BODY ("Invalid JSON: ..."), E_NO_MEMORY. ret: new reference. */
int json_parse(const char *text, size_t len, json_t **ret, struct abx_error *err);

/* Appends value: separators ", " and ": ", ASCII (\uXXXX, surrogate pairs), shortest numbers,
 * insertion order. Non-finite numbers come out as null. */
void json_write(struct buf *out, const json_t *value);

/* No blanks, keys sorted by code point: for hashing. */
void json_write_canonical(struct buf *out, const json_t *value);

/* Two blanks a level, for people. */
void json_write_pretty(struct buf *out, const json_t *value);

/* Appends a quoted ASCII JSON string; s: valid UTF-8 (bad bytes come out as \ufffd). */
void json_write_string(struct buf *out, const char *s, size_t len);

/* A string value from bytes that may not be UTF-8 (U+FFFD for what is bad). New reference. */
json_t *json_bytes(const void *data, size_t len);
json_t *json_text(const char *s); /* the same for a C string; NULL gives JSON null */

/* The text of a string that holds no NUL, so that it can be compared as C text; NULL for all else. */
const char *json_word(const json_t *value);

/* json_pack with `err`: E_NO_MEMORY on failure. */
json_t *json_make(struct abx_error *err, const char *fmt, ...);
