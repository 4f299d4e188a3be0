#include "pty/ring.h"

#include <stdlib.h>
#include <string.h>

#define RING_FIRST 512

void ring_init(struct ring *r, size_t max)
{
    *r = (struct ring){.max = max};
}

void ring_done(struct ring *r)
{
    free(r->data);
    *r = (struct ring){.max = r->max};
}

uint64_t ring_start(const struct ring *r)
{
    return r->end > r->cap ? r->end - r->cap : 0;
}

size_t ring_copy(const struct ring *r, uint64_t at, char *dst, size_t max)
{
    uint64_t have = r->end - at;
    size_t len = have < max ? (size_t)have : max;
    if (len == 0)
        return 0;
    size_t from = (size_t)at & (r->cap - 1);
    size_t first = r->cap - from < len ? r->cap - from : len;
    memcpy(dst, r->data + from, first);
    memcpy(dst + first, r->data, len - first);
    return len;
}

/* To the size at which `more` bytes push nothing out, or the largest. */
static void grow(struct ring *r, size_t more)
{
    size_t cap = r->cap ? r->cap : RING_FIRST;
    while (cap < r->max && r->end + more > cap)
        cap *= 2;
    if (cap == r->cap)
        return;
    char *data = malloc(cap);
    if (!data)
        return;
    for (uint64_t at = ring_start(r); at < r->end;) { /* the place of a byte depends on cap */
        size_t to = (size_t)at & (cap - 1);
        at += ring_copy(r, at, data + to, cap - to);
    }
    free(r->data);
    r->data = data;
    r->cap = cap;
}

void ring_append(struct ring *r, const char *data, size_t len)
{
    if (r->cap < r->max && r->end + len > r->cap)
        grow(r, len);
    if (len > r->cap) {
        data += len - r->cap;
        r->end += len - r->cap;
        len = r->cap;
    }
    if (len == 0)
        return;
    size_t to = (size_t)r->end & (r->cap - 1);
    size_t first = r->cap - to < len ? r->cap - to : len;
    memcpy(r->data + to, data, first);
    memcpy(r->data, data + first, len - first);
    r->end += len;
}
