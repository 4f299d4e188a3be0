#pragma once
/* The last bytes of a stream, addressed by their distance from its beginning. Memory follows what was
 * written (from 512 bytes, doubling) up to `max`, so that a quiet terminal costs next to nothing.
 * Not thread-safe. */

#include <stddef.h>
#include <stdint.h>

struct ring {
    char *data;
    size_t cap, max; /* powers of two */
    uint64_t end;    /* bytes ever written */
};

void ring_init(struct ring *r, size_t max); /* max: a power of two, at least 512 */
void ring_done(struct ring *r);

/* Oldest bytes are given up for it. When memory is out the ring remembers less than `max`, at worst
 * nothing; `end` moves all the same. */
void ring_append(struct ring *r, const char *data, size_t len);

/* The oldest byte still there. */
uint64_t ring_start(const struct ring *r);

/* Copies from `at` (ring_start..end) at most max bytes; returns how many. */
size_t ring_copy(const struct ring *r, uint64_t at, char *dst, size_t max);
