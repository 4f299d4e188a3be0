#pragma once
/* Small files of the kernel and of package managers, read whole. Any thread; may block. */

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

/* Reads root + path into out (NUL-terminated, at most max bytes). 0, or -1 with errno. */
int file_read(const char *root, const char *path, size_t max, struct buf *out);

/* First number in root + path; -1: no such file or no number ("max"). */
int64_t file_number(const char *root, const char *path);

/* The number after "key" at the beginning of a line ("key 12", "key: 12 kB"); -1: none. */
int64_t text_number(const char *text, const char *key);
