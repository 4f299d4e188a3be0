#pragma once
/* The way out of the browser: a SOCKS 5 server (RFC 1928, CONNECT only) on a loopback port of its
 * own. Every connection Chromium makes, for whatever part of a page, comes through here, so the
 * addresses a page may reach are decided in one place, and the address that was judged is the one
 * connected to: redirects, workers, WebSockets and names that change their address can't get round
 * it. Loop thread. */

#include "base/error.h"
#include "base/loop.h"

#include <stdbool.h>

struct sockaddr;
struct socks;

/* May host:port be reached? addr NULL: judged by its name, before it is resolved. */
typedef bool (*socks_judge)(void *owner, const char *host, int port, const struct sockaddr *addr);

/* Listens on 127.0.0.1. Errors: E_OS, E_NO_MEMORY. */
struct socks *socks_start(struct loop *loop, socks_judge judge, void *owner, int *ret_port,
                          struct abx_error *err);
/* Cuts all connections; the memory goes when the loop has closed them. NULL is fine. */
void socks_stop(struct socks *s);

/* Why the newest connection to host:port was not made: a Chromium error text such as
 * "net::ERR_CONNECTION_REFUSED", "" when the judge refused it, NULL when nothing is known. */
const char *socks_failure(const struct socks *s, const char *host, int port);
