#pragma once
/* What the kernel counts about this very process. Any thread; reads /proc only. */

#include <stdint.h>

struct self {
    double cpu_seconds;    /* user and system, all threads */
    int64_t resident, virtual_bytes; /* bytes */
    int64_t open_fds, max_fds;       /* -1: unknown; max: the soft limit, INT64_MAX when there is none */
    int64_t threads;
    double started_at;     /* Unix seconds; 0: unknown */
};

/* What can't be read is -1 or 0. */
void self_read(struct self *ret);
