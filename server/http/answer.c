/* How an answer becomes bytes. */

#include "http/internal.h"

#include "base/log.h"
#include "base/own.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

const char *status_text(int status)
{
    switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 410: return "Gone";
    case 412: return "Precondition Failed";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 416: return "Range Not Satisfiable";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 426: return "Upgrade Required";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    case 507: return "Insufficient Storage";
    default: return "Status";
    }
}

const char *http_date(struct http *h)
{
    uint64_t now = loop_now(h->loop);
    if (h->date[0] && now - h->date_at < 500)
        return h->date;
    time_t t = time(NULL);
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(h->date, sizeof h->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    h->date_at = now;
    return h->date;
}

static void add_number(struct buf *out, int64_t n)
{
    char text[24];
    char *at = text + sizeof text;
    uint64_t v = (uint64_t)n;
    do
        *--at = (char)('0' + v % 10);
    while (v /= 10);
    buf_add(out, at, (size_t)(text + sizeof text - at));
}

static bool body_allowed(int status)
{
    return status >= 200 && status != 204 && status != 304;
}

/* The CORS headers of an answer, for an origin that the policy lists. */
static void add_cors(struct req *r, struct buf *out)
{
    const char *origin = r->site ? req_header(r, "origin") : NULL;
    if (!origin)
        return;
    const struct str_list *allowed = policy_origins(site_policy(r->site));
    for (size_t i = 0; allowed && i < allowed->n; i++) {
        if (!guard_glob(allowed->items[i], origin))
            continue;
        buf_adds(out, "Access-Control-Allow-Origin: ");
        buf_adds(out, origin);
        buf_adds(out, "\r\nVary: Origin\r\n");
        return;
    }
}

void answer_head(struct req *r, struct buf *out, int status, const char *content_type, int64_t length,
                 bool chunked)
{
    struct conn *c = r->conn;
    buf_adds(out, "HTTP/1.1 ");
    add_number(out, status);
    buf_addc(out, ' ');
    buf_adds(out, status_text(status));
    buf_adds(out, "\r\nServer: ");
    buf_adds(out, r->http->config.server_name);
    buf_adds(out, "\r\nDate: ");
    buf_adds(out, http_date(r->http));
    buf_add(out, "\r\n", 2);
    if (content_type && !r->resp.has_content_type) {
        buf_adds(out, "Content-Type: ");
        buf_adds(out, content_type);
        buf_add(out, "\r\n", 2);
    }
    buf_add(out, r->resp.headers.data, r->resp.headers.len);
    if (chunked) {
        buf_adds(out, "Transfer-Encoding: chunked\r\n");
    } else if (length >= 0 && body_allowed(status)) {
        buf_adds(out, "Content-Length: ");
        add_number(out, length);
        buf_add(out, "\r\n", 2);
    }
    if (!c->keep_alive)
        buf_adds(out, "Connection: close\r\n");
    else if (r->http10)
        buf_adds(out, "Connection: keep-alive\r\n");
    add_cors(r, out);
    buf_add(out, "\r\n", 2);
}

/* Is a part of the request's body still to come? */
static bool body_unread(const struct conn *c)
{
    return c->body_left > 0 || (c->chunked && !c->chunks_done);
}

void answer_send(struct req *r)
{
    r->answered = true;
    r->sink = NULL;
    struct conn *c = r->conn;
    struct resp *resp = &r->resp;
    measure_answer(r, resp->status);
    if (!c) { /* the client has left */
        req_complete(r);
        req_unref(r);
        return;
    }
    bool unread = body_unread(c);
    /* A sender that waits for 100 may or may not send now: no telling where its body ends. */
    if (unread && (r->expect_100 || c->chunked || c->body_left > DRAIN_MAX))
        c->keep_alive = false;
    if (r->http->stopping)
        c->keep_alive = false;
    if (resp->status == 202 && resp->len == 2 && memcmp(resp->body, "{}", 2) == 0) {
        resp->len = 0; /* the contract's empty 202 */
        resp->content_type = NULL;
    }
    bool has_file = resp->file_fd >= 0;
    int64_t length = has_file ? resp->file_len : (int64_t)resp->len;
    struct buf *out = conn_pending(c) == 0 ? &r->http->outbuf : &c->out;
    if (out != &c->out)
        buf_reset(out);
    answer_head(r, out, resp->status, resp->content_type, length, false);
    bool head = r->method == HTTP_HEAD || !body_allowed(resp->status);
    if (!head && !has_file)
        buf_add(out, resp->body, resp->len);
    if (out->failed) {
        buf_done(out);
        log_error("%s: out of memory while answering", r->id);
        req_complete(r);
        conn_close(c);
        return;
    }
    if (out != &c->out) {
        /* Straight to the socket; only what it does not take is copied. */
        size_t sent = 0;
        if (c->out_at == c->out.len) {
            c->out.len = c->out_at = 0;
            ssize_t n = send(c->fd, out->data, out->len, MSG_NOSIGNAL | (has_file && !head ? MSG_MORE : 0));
            if (n > 0)
                sent = (size_t)n;
            r->http->metrics->sent += (int64_t)sent;
        }
        buf_add(&c->out, out->data + sent, out->len - sent);
        if (out->cap > 256 * KIB)
            buf_done(out);
    }
    if (has_file && !head) {
        c->file_fd = resp->file_fd;
        c->file_at = resp->file_at;
        c->file_left = resp->file_len;
        resp->file_fd = -1;
    }
    req_complete(r);
    conn_answered(c, unread);
}
