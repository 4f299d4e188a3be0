#pragma once
/* One turn of a loop in a test: what is due or ready now, after at most 5 ms of waiting for it. UV_RUN_ONCE would not
 * do: it may run the last timer first and then wait for ever. */

#include <poll.h>
#include <uv.h>

#include "base/loop.h"

static inline void turn_loop(struct loop *l)
{
    uv_run(loop_uv(l), UV_RUN_NOWAIT); /* also hands new descriptors to epoll */
    struct pollfd p = {.fd = uv_backend_fd(loop_uv(l)), .events = POLLIN};
    (void)poll(&p, 1, 5);
    uv_run(loop_uv(l), UV_RUN_NOWAIT);
}
