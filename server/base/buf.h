#pragma once
/* A growable byte buffer. Appending to a buffer that could not grow marks it failed and does
 * nothing more, so a writer checks once, at the end. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data;
    size_t len, cap;
    bool failed;
};

#define BUF_INIT {0}

void buf_done(struct buf *b);
void buf_reset(struct buf *b); /* keeps the memory */

/* Room for `more` bytes at data + len; NULL when memory is out. */
char *buf_reserve(struct buf *b, size_t more);
void buf_add(struct buf *b, const void *data, size_t len);
void buf_adds(struct buf *b, const char *s);
void buf_addc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n);

/* NUL-terminates (not counted in len) and returns data; NULL when failed. */
const char *buf_str(struct buf *b);

/* Hands the memory to the caller (free), NUL-terminated; NULL when failed. */
char *buf_take(struct buf *b, size_t *ret_len);

#define autobuf __attribute__((cleanup(buf_done), unused))
