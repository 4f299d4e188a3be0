#pragma once
/* The server side of HTTP: listeners, connections, the route table and the pipeline of a request. */

#include "base/loop.h"
#include "http/req.h"
#include "http/ws.h"

struct site;

/* One row of the table. */
struct route {
    struct endpoint ep;
    req_handler run;
    void *data; /* custom routes: what their handler needs (req_route_data) */
};
const struct route *req_route(const struct req *req);
struct site *req_site(const struct req *req); /* borrowed: the table and policy this request lives under */

/* The table and the policy compiled for it: immutable, swapped as one by a reload. */
struct site;

/* routes: built-ins first, in order; copied as pointers (must outlive the site; free_routes, if not NULL,
 * is called with `owner` when the last request that uses it is done).
 * Errors: E_CONFIG (two routes with the same id, or the same method and path; an unreachable one). */
int site_new(const struct route *const *routes, size_t n, struct policy *policy, void (*free_owner)(void *owner),
             void *owner, struct site **ret, struct abx_error *err);
struct site *site_ref(struct site *s);
void site_unref(struct site *s);
struct policy *site_policy(struct site *s);
size_t site_route_count(const struct site *s);
const struct route *site_route(const struct site *s, size_t i);

struct http;
struct metric_writer;
struct http_config {
    struct loop *loop;
    struct app *app;
    const char *server_name; /* Server header */
    /* Bounds; 0 = the default in brackets. */
    size_t max_connections;     /* [10240] beyond it: 503 and close */
    uint32_t head_timeout_ms;   /* [30000] from the first byte to the end of the head */
    uint32_t body_timeout_ms;   /* [60000] without one byte of the body */
    uint32_t idle_timeout_ms;   /* [120000] between requests */
    uint32_t write_timeout_ms;  /* [120000] an answer that nobody reads */
};
struct http *http_new(const struct http_config *config);
void http_set_site(struct http *h, struct site *s); /* takes a reference of its own */
struct site *http_site(struct http *h);

/* Requests by endpoint, method and status, and how long they took. Loop thread. */
void http_write_metrics(const struct http *h, struct metric_writer *w);

/* Binds and listens; several times for several ports. host: name or address, IPv4 and IPv6 ("::" takes both).
 * only_prefix: NULL, or the path that alone is served on this port ("/pty": the terminal port takes any path).
 * Errors: E_OS with a message that names host and port. */
enum http_port_kind { HTTP_PORT_MAIN, HTTP_PORT_PTY };
int http_listen(struct http *h, const char *host, int port, enum http_port_kind kind, int *ret_port,
                struct abx_error *err);

/* Stop: no new connections, idle ones closed, streams told to end (gone), running requests get until the
 * deadline; then `stopped` is called once everything is closed. */
void http_stop(struct http *h, uint32_t grace_ms, void (*stopped)(void *data), void *data);
void http_free(struct http *h);
