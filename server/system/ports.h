#pragma once
/* Listening TCP sockets and who holds them. Any thread; may block on /proc. */

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Where the holder of a socket was seen, so that the next call need not search all descriptors. */
struct port_owner {
    uint64_t inode;
    int pid, fd;       /* pid 0: nobody was found (another pid namespace, another user) ... */
    uint64_t until_ms; /* ... and need not be looked for until then (mono_ms) */
};
struct port_owners {
    struct port_owner *list; /* heap */
    size_t n;
    size_t looked; /* descriptors that the call which filled this has looked at */
};
void port_owners_done(struct port_owners *o);

/* Array for GET /ports: {"port", "protocol", "address", "pid", "process", "inode"}, one per socket,
 * in the kernel's order. root: "" or where a fake /proc lies (then no netlink). owners: memory of
 * the last call, may be empty, replaced. New array; NULL with err. */
json_t *ports_list(const char *root, struct port_owners *owners, struct abx_error *err);
