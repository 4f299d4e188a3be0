#include "system/files.h"

#include "base/own.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

int file_read(const char *root, const char *path, size_t max, struct buf *out)
{
    char full[PATH_MAX];
    if ((size_t)snprintf(full, sizeof full, "%s%s", root, path) >= sizeof full) {
        errno = ENAMETOOLONG;
        return -1;
    }
    autoclose int fd = open(full, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return -1;
    while (out->len < max) {
        size_t want = max - out->len < 16 * KIB ? max - out->len : 16 * KIB;
        char *at = buf_reserve(out, want + 1);
        if (!at) {
            errno = ENOMEM;
            return -1;
        }
        ssize_t n = read(fd, at, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        out->len += (size_t)n;
    }
    return buf_str(out) ? 0 : -1;
}

static int64_t number_at(const char *s)
{
    s += strspn(s, " \t:");
    if (*s < '0' || *s > '9')
        return -1;
    int64_t value = 0;
    for (; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *s - '0', &value))
            return INT64_MAX;
    return value;
}

int64_t file_number(const char *root, const char *path)
{
    autobuf struct buf text = BUF_INIT;
    return file_read(root, path, 4 * KIB, &text) < 0 ? -1 : number_at(text.data);
}

int64_t text_number(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == ':' || line[n] == '\t'))
            return number_at(line + n);
    return -1;
}
