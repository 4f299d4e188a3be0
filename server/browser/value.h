#pragma once
/* What the protocol says about values and documents, in the words of the answers. Pure; any thread.
 */

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* A Runtime.RemoteObject that holds its value (no objectId): the JSON of it. undefined, NaN,
 * infinities, symbols and functions are null, -0 is -0.0, BigInts are numbers within 64 bits, else
 * text. New reference, or NULL when memory is out. */
json_t *value_of_remote(const json_t *object);

/* Appends a console argument as people read it: text plain, objects {a: 1}, lists [1, 2]. */
void value_console_text(struct buf *out, const json_t *object);

/* "Error: boom\n    at <anonymous>:1:7" of Runtime.ExceptionDetails. */
void value_exception_text(struct buf *out, const json_t *details);

/* Pages of a PDF as Chromium writes it; at least 1. */
int pdf_pages(const char *pdf, size_t len);

/* Paper in inches by name (A4, Letter, ... any case); false: unknown. */
bool pdf_paper(const char *name, double *ret_width, double *ret_height);

/* The accessibility tree (Accessibility.getFullAXTree's nodes) as indented lines; each element that
 * has a name or can be used ends with [ref=eN], N its backend node id. depth: of the first line.
 * Stops at max_bytes. Returns true when something was left out. */
bool ax_write(struct buf *out, const json_t *nodes, int depth, size_t max_bytes, size_t *ret_refs);
