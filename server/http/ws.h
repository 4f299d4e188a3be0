#pragma once
/* WebSocket (RFC 6455) on an admitted request, one interface for every port. Loop thread.
 * Frames are libwslay's; masks, fragments, UTF-8, sizes and close codes are checked before a callback. */

#include "http/req.h"

struct ws;

struct ws_ops {
    void (*message)(void *owner, bool text, const char *data, size_t len);
    void (*drain)(void *owner); /* ws_pending fell below the low mark after ws_full */
    void (*closed)(void *owner, int code); /* last call; the socket is gone. 1006: without close frame */
};

struct ws_options {
    size_t max_message;    /* bytes; above: close 1009 */
    bool text_only;        /* a binary message closes with 1003 */
    bool deflate;          /* permessage-deflate, small windows, no context takeover, when offered */
    uint32_t ping_ms;      /* ping after this much silence; no pong within the same time: 1011. 0 = never */
    size_t high_mark;      /* ws_full above this many queued bytes; 0 = 64 KiB */
};

/* Are the headers a handshake? E_BAD_REQUEST. ws_accept asks it too. */
int ws_check(const struct req *req, struct abx_error *err);

/* Completes the handshake of a WS request (the pipeline has checked the upgrade headers). Answers the
 * request: nothing else may. NULL with err when memory is out (the request is then still open). */
struct ws *ws_accept(struct req *req, const struct ws_options *opt, const struct ws_ops *ops, void *owner,
                     struct abx_error *err);

void ws_text(struct ws *ws, const char *data, size_t len);
void ws_binary(struct ws *ws, const void *data, size_t len);
bool ws_full(const struct ws *ws);
size_t ws_pending(const struct ws *ws);
void ws_pause(struct ws *ws); /* stop reading from the client */
void ws_resume(struct ws *ws);
/* Sends a close frame after what is queued; `closed` follows. reason: at most 123 bytes of UTF-8. */
void ws_close(struct ws *ws, int code, const char *reason);
/* Cuts at once; `closed` is not called. */
void ws_drop(struct ws *ws);
