#pragma once
/* Memory that dies together: a request's strings and small objects. Not thread-safe: one owner at
 * a time. All functions return NULL when memory is out; nothing is freed singly. */

#include <stdarg.h>
#include <stddef.h>

struct arena {
    struct arena_block *blocks;
    char *at, *end;
};

void arena_init(struct arena *a);
void arena_done(struct arena *a);

/* Forgets everything but keeps one block for the next use. */
void arena_reset(struct arena *a);

void *arena_alloc(struct arena *a, size_t size);  /* 16-byte aligned, not cleared */
void *arena_zalloc(struct arena *a, size_t size); /* cleared */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t len); /* adds the NUL */
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
