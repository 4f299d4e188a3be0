#pragma once
/* WebSocket client (RFC 6455) for a browser that runs elsewhere: ws://host:port/path. Frames are
 * libwslay's. Loop thread; the name is resolved on a worker. */

#include "base/error.h"
#include "base/loop.h"

#include <stddef.h>

struct wsclient;

struct wsclient_ops {
    void (*open)(void *owner);
    void (*message)(void *owner, char *text, size_t len); /* takes text */
    void (*closed)(void *owner, const char *why); /* the last call; wsclient_close is still due */
};

/* http://host:port[/...] first asks /json/version for the address, as DevTools clients do.
 * Errors: E_VALUE (no such URL), E_NO_MEMORY; the rest comes as `closed`. */
struct wsclient *wsclient_open(struct loop *loop, const char *url, size_t max_message,
                               const struct wsclient_ops *ops, void *owner, struct abx_error *err);
void wsclient_send(struct wsclient *c, const char *text, size_t len); /* queued before `open` */
void wsclient_close(struct wsclient *c);
