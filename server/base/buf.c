#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_done(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = false;
}

char *buf_reserve(struct buf *b, size_t more)
{
    if (b->failed)
        return NULL;
    if (b->cap - b->len >= more && b->data)
        return b->data + b->len;
    size_t need, cap = b->cap ? b->cap : 256;
    if (__builtin_add_overflow(b->len, more, &need) || need > SIZE_MAX / 2) {
        b->failed = true;
        return NULL;
    }
    while (cap < need)
        cap *= 2;
    char *grown = realloc(b->data, cap);
    if (!grown) {
        b->failed = true;
        return NULL;
    }
    b->data = grown;
    b->cap = cap;
    return b->data + b->len;
}

void buf_add(struct buf *b, const void *data, size_t len)
{
    if (len == 0)
        return;
    char *at = buf_reserve(b, len);
    if (!at)
        return;
    memcpy(at, data, len);
    b->len += len;
}

void buf_adds(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_addc(struct buf *b, char c)
{
    char *at = buf_reserve(b, 1);
    if (!at)
        return;
    *at = c;
    b->len++;
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *at = len < 0 ? NULL : buf_reserve(b, (size_t)len + 1);
    if (at) {
        vsnprintf(at, (size_t)len + 1, fmt, again);
        b->len += (size_t)len;
    }
    va_end(again);
}

void buf_consume(struct buf *b, size_t n)
{
    if (n >= b->len) {
        b->len = 0;
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

const char *buf_str(struct buf *b)
{
    char *at = buf_reserve(b, 1);
    if (!at)
        return NULL;
    *at = '\0';
    return b->data;
}

char *buf_take(struct buf *b, size_t *ret_len)
{
    if (!buf_str(b))
        return NULL;
    char *data = b->data;
    if (ret_len)
        *ret_len = b->len;
    *b = (struct buf){0};
    return data;
}
