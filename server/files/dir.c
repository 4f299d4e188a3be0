#include "files/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define READ_BYTES 32768

void dir_done(struct dir *d)
{
    buf_done(&d->names);
    free(d->entries);
    *d = (struct dir)DIR_INIT;
}

void dir_reset(struct dir *d)
{
    buf_reset(&d->names);
    d->n = 0;
}

static uint64_t sort_key(const char *name, size_t len)
{
    uint64_t key = 0;
    for (size_t i = 0; i < 8; i++)
        key = key << 8 | (i < len ? (unsigned char)name[i] : 0);
    return key;
}

static int add(struct dir *d, const char *name, uint8_t type)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 64;
        struct dir_entry *grown = reallocarray(d->entries, cap, sizeof *grown);
        if (!grown)
            return -1;
        d->entries = grown;
        d->cap = cap;
    }
    size_t len = strlen(name);
    d->entries[d->n] = (struct dir_entry){.key = sort_key(name, len),
                                          .at = (uint32_t)d->names.len,
                                          .len = (uint16_t)len,
                                          .type = type};
    buf_add(&d->names, name, len + 1);
    if (d->names.failed || d->names.len > UINT32_MAX / 2) {
        errno = ENOMEM;
        return -1;
    }
    d->n++;
    return 0;
}

int dir_read(struct dir *d, int fd, bool (*stop)(void *data, size_t so_far), void *data)
{
    return dir_read_some(d, fd, NULL, stop, data);
}

int dir_read_some(struct dir *d, int fd, bool (*keep)(void *data, const char *name, uint8_t type),
                  bool (*stop)(void *data, size_t so_far), void *data)
{
    _Alignas(struct dirent64) char raw[READ_BYTES];
    for (;;) {
        long got = syscall(SYS_getdents64, fd, raw, sizeof raw);
        if (got < 0)
            return -1;
        if (got == 0)
            return 0;
        for (long at = 0; at < got;) {
            const struct dirent64 *e = (const struct dirent64 *)(raw + at);
            at += e->d_reclen;
            const char *name = e->d_name;
            if (name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0')))
                continue;
            if (keep && !keep(data, name, e->d_type))
                continue;
            if (add(d, name, e->d_type) < 0)
                return -1;
        }
        if (stop && stop(data, d->n))
            return 1;
    }
}

static int by_name(const void *a, const void *b, void *names)
{
    const struct dir_entry *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    const char *text = names;
    return strcmp(text + x->at, text + y->at);
}

void dir_sort(struct dir *d)
{
    if (d->n > 1)
        qsort_r(d->entries, d->n, sizeof *d->entries, by_name, d->names.data);
}

uint8_t dir_type(const struct dir *d, size_t i, int fd)
{
    if (d->entries[i].type != DT_UNKNOWN)
        return d->entries[i].type;
    struct stat st;
    if (fstatat(fd, dir_name(d, i), &st, AT_SYMLINK_NOFOLLOW) < 0)
        return DT_UNKNOWN;
    return (uint8_t)IFTODT(st.st_mode);
}
