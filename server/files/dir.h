#pragma once
/* The names in a directory, read at one go. Worker threads. */

#include "base/buf.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct dir_entry {
    uint64_t key; /* first 8 bytes, big-endian: most comparisons end there */
    uint32_t at;  /* offset of the NUL-terminated name in `names` */
    uint16_t len;
    uint8_t type; /* DT_* as the directory says; DT_UNKNOWN: ask */
};

struct dir {
    struct buf names;
    struct dir_entry *entries;
    size_t n, cap;
};
#define DIR_INIT {0}

void dir_done(struct dir *d);
void dir_reset(struct dir *d); /* keeps the memory */

/* Reads fd (opened for reading) to its end, or until `stop(data)` says true (NULL: never; asked about once
 * per 32 KiB of entries). "." and ".." are left out. 0; 1 when stopped; -1 with errno. */
int dir_read(struct dir *d, int fd, bool (*stop)(void *data, size_t so_far), void *data);
/* The same for those entries only that `keep` wants (type: DT_*, DT_UNKNOWN where the directory does not tell). */
int dir_read_some(struct dir *d, int fd, bool (*keep)(void *data, const char *name, uint8_t type),
                  bool (*stop)(void *data, size_t so_far), void *data);

/* By bytes of the name. */
void dir_sort(struct dir *d);

static inline const char *dir_name(const struct dir *d, size_t i)
{
    return d->names.data + d->entries[i].at;
}

/* DT_* of an entry, asking the file system where the directory does not tell. DT_UNKNOWN: it is gone. */
uint8_t dir_type(const struct dir *d, size_t i, int fd);

#define autodir __attribute__((cleanup(dir_done), unused))
