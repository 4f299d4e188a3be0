#include "base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION((p), (n))
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION((p), (n))
#else
#define POISON(p, n) ((void)0)
#define UNPOISON(p, n) ((void)0)
#endif

/* The first block is small: most requests need a few hundred bytes. */
#define FIRST_BLOCK 2048
#define BLOCK 8192

struct arena_block {
    struct arena_block *next;
    size_t size; /* of data */
    _Alignas(16) char data[];
};

void arena_init(struct arena *a)
{
    *a = (struct arena){0};
}

void arena_done(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        UNPOISON(b->data, b->size);
        free(b);
    }
    *a = (struct arena){0};
}

void arena_reset(struct arena *a)
{
    struct arena_block *keep = a->blocks;
    if (!keep)
        return;
    for (struct arena_block *b = keep->next, *next; b; b = next) {
        next = b->next;
        UNPOISON(b->data, b->size);
        free(b);
    }
    if (keep->size > BLOCK) { /* an outsized one is not worth keeping */
        UNPOISON(keep->data, keep->size);
        free(keep);
        *a = (struct arena){0};
        return;
    }
    keep->next = NULL;
    POISON(keep->data, keep->size);
    a->at = keep->data;
    a->end = keep->data + keep->size;
}

void *arena_alloc(struct arena *a, size_t size)
{
    size_t need;
    if (__builtin_add_overflow(size, (size_t)15, &need))
        return NULL;
    need &= ~(size_t)15;
    if ((size_t)(a->end - a->at) < need) {
        size_t room = a->blocks ? BLOCK : FIRST_BLOCK;
        if (room < need)
            room = need;
        struct arena_block *b = NULL;
        if (room <= SIZE_MAX - sizeof *b)
            b = malloc(sizeof *b + room);
        if (!b)
            return NULL;
        b->size = room;
        POISON(b->data, b->size);
        b->next = a->blocks;
        a->blocks = b;
        a->at = b->data;
        a->end = b->data + room;
    }
    char *p = a->at;
    a->at += need;
    UNPOISON(p, need);
    return p;
}

void *arena_zalloc(struct arena *a, size_t size)
{
    void *p = arena_alloc(a, size);
    if (p)
        memset(p, 0, size);
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t len)
{
    char *copy = len < SIZE_MAX ? arena_alloc(a, len + 1) : NULL;
    if (!copy)
        return NULL;
    memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *out = len < 0 ? NULL : arena_alloc(a, (size_t)len + 1);
    if (out)
        vsnprintf(out, (size_t)len + 1, fmt, again);
    va_end(again);
    return out;
}
