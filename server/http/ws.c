/* WebSocket: the handshake, and libwslay between the connection's bytes and whole messages. */

#include "http/internal.h"

#include "base/crypto.h"
#include "base/own.h"
#include "base/utf8.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nettle/base64.h>
#include <nettle/sha1.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <wslay/wslay.h>
#include <zlib.h>

#define CLOSE_WAIT_MS 5000
#define DEFLATE_WINDOW 10 /* bits: 1 KiB, so that a session costs next to nothing */
#define DEFLATE_MEM 3
#define DEFLATE_MIN 512 /* shorter messages are sent as they are: no gain, and an echo stays quick */
#define DEFAULT_HIGH (64 * 1024)
#define UNSENT_MAX (128 * 1024)

struct ws {
    struct req *req;
    struct conn *conn; /* NULL: gone */
    wslay_event_context_ptr ctx;
    struct ws_options opt;
    const struct ws_ops *ops; /* NULL: dropped, no more calls */
    void *owner;
    const char *feed; /* while wslay reads */
    size_t feed_len;
    struct buf held; /* came while paused */
    bool busy;       /* wslay is on the stack */
    bool paused, was_full, closing;
    bool failed; /* what came is no frame: 1002 is on its way, wslay is out of it */
    int deflate_bits; /* 0: not negotiated */
    int sent_code;
    struct timer ping, close_wait;
    bool pong_due;
};

static ssize_t feed_wslay(wslay_event_context_ptr ctx, uint8_t *data, size_t len, int flags, void *user)
{
    struct ws *ws = user;
    if (ws->feed_len == 0 || ws->paused || !ws->conn) {
        wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
        return -1;
    }
    size_t n = ws->feed_len < len ? ws->feed_len : len;
    memcpy(data, ws->feed, n);
    ws->feed += n;
    ws->feed_len -= n;
    return (ssize_t)n;
}

static ssize_t take_from_wslay(wslay_event_context_ptr ctx, const uint8_t *data, size_t len, int flags, void *user)
{
    struct ws *ws = user;
    if (!ws->conn) {
        wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
        return -1;
    }
    buf_add(&ws->conn->out, data, len);
    if (ws->conn->out.failed) {
        wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
        return -1;
    }
    return (ssize_t)len;
}

/* --- permessage-deflate (RFC 7692) ----------------------------------------------------------------------- */

/* -1: larger than max; -2: not deflate data. */
static int inflate_message(const uint8_t *data, size_t len, size_t max, struct buf *out)
{
    static const uint8_t tail[4] = {0, 0, 0xFF, 0xFF};
    z_stream z = {0};
    if (inflateInit2(&z, -15) != Z_OK)
        return -1;
    int rc = 0;
    for (int part = 0; part < 2 && rc == 0; part++) {
        z.next_in = (Bytef *)(part == 0 ? data : tail);
        z.avail_in = (uInt)(part == 0 ? len : sizeof tail);
        for (;;) {
            size_t room = 16 * 1024;
            char *at = buf_reserve(out, room);
            if (!at) {
                rc = -1;
                break;
            }
            z.next_out = (Bytef *)at;
            z.avail_out = (uInt)room;
            int zrc = inflate(&z, Z_SYNC_FLUSH);
            out->len += room - z.avail_out;
            if (out->len > max) {
                rc = -1;
                break;
            }
            if (zrc == Z_STREAM_END || zrc == Z_BUF_ERROR)
                break;
            if (zrc != Z_OK) {
                rc = -2;
                break;
            }
            if (z.avail_in == 0 && z.avail_out > 0)
                break;
        }
    }
    inflateEnd(&z);
    return rc;
}

static int deflate_message(int bits, const void *data, size_t len, struct buf *out)
{
    z_stream z = {0};
    if (deflateInit2(&z, 1, Z_DEFLATED, -bits, DEFLATE_MEM, Z_DEFAULT_STRATEGY) != Z_OK)
        return -1;
    size_t bound = deflateBound(&z, (uLong)len) + 16;
    char *at = buf_reserve(out, bound);
    int rc = -1;
    if (at) {
        z.next_in = (Bytef *)data;
        z.avail_in = (uInt)len;
        z.next_out = (Bytef *)at;
        z.avail_out = (uInt)bound;
        if (deflate(&z, Z_SYNC_FLUSH) == Z_OK && z.avail_in == 0 && z.avail_out > 0) {
            out->len += bound - z.avail_out - 4; /* without the 00 00 FF FF */
            rc = 0;
        }
    }
    deflateEnd(&z);
    return rc;
}

/* One offer: "permessage-deflate; a; b=1". True when it can be taken; *bits the server's window. */
static bool offer_fits(char *offer, int *bits)
{
    char *save, *word = strtok_r(offer, ";", &save);
    *bits = DEFLATE_WINDOW;
    for (bool first = true; word; word = strtok_r(NULL, ";", &save), first = false) {
        while (*word == ' ' || *word == '\t')
            word++;
        size_t len = strlen(word);
        while (len > 0 && (word[len - 1] == ' ' || word[len - 1] == '\t'))
            word[--len] = '\0';
        if (first) {
            if (strcasecmp(word, "permessage-deflate") != 0)
                return false;
            continue;
        }
        char *value = strchr(word, '=');
        if (value) {
            *value++ = '\0';
            if (*value == '"')
                value++;
        }
        if (strcasecmp(word, "server_no_context_takeover") == 0 ||
            strcasecmp(word, "client_no_context_takeover") == 0 ||
            strcasecmp(word, "client_max_window_bits") == 0)
            continue;
        if (strcasecmp(word, "server_max_window_bits") == 0 && value) {
            long n = strtol(value, NULL, 10);
            if (n < 9 || n > 15) /* zlib has no raw window of 8 bits */
                return false;
            if (n < *bits)
                *bits = (int)n;
            continue;
        }
        return false;
    }
    return true;
}

static int negotiate_deflate(struct req *r)
{
    const char *offers = req_header(r, "sec-websocket-extensions");
    if (!offers)
        return 0;
    autofree char *copy = strdup(offers);
    if (!copy)
        return 0;
    char *save, *offer = strtok_r(copy, ",", &save);
    for (; offer; offer = strtok_r(NULL, ",", &save)) {
        int bits;
        if (offer_fits(offer, &bits))
            return bits;
    }
    return 0;
}

/* --- messages in --------------------------------------------------------------------------------------------- */

static void message(struct ws *ws, bool text, const char *data, size_t len)
{
    if (ws->ops && ws->ops->message && !ws->closing)
        ws->ops->message(ws->owner, text, data, len);
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *arg, void *user)
{
    struct ws *ws = user;
    ws->pong_due = false;
    if (arg->opcode != WSLAY_TEXT_FRAME && arg->opcode != WSLAY_BINARY_FRAME)
        return;
    bool text = arg->opcode == WSLAY_TEXT_FRAME;
    if (!text && ws->opt.text_only) {
        ws_close(ws, 1003, "text frames only");
        return;
    }
    if (!wslay_get_rsv1(arg->rsv)) {
        message(ws, text, (const char *)arg->msg, arg->msg_length);
        return;
    }
    autobuf struct buf plain = BUF_INIT;
    int rc = inflate_message(arg->msg, arg->msg_length, ws->opt.max_message, &plain);
    if (rc == -1)
        ws_close(ws, 1009, "message too big");
    else if (rc == -2)
        ws_close(ws, 1007, "bad compressed data");
    else if (text && !utf8_valid(plain.data, plain.len))
        ws_close(ws, 1007, "not UTF-8");
    else
        message(ws, text, plain.data ? plain.data : "", plain.len);
}

static void free_ws(struct ws *ws)
{
    wslay_event_context_free(ws->ctx);
    buf_done(&ws->held);
    free(ws);
}

/* Moves what wslay has queued to the connection; ends the connection when both sides are done. */
static void pump(struct ws *ws)
{
    if (!ws->conn)
        return;
    if (wslay_event_want_write(ws->ctx) && wslay_event_send(ws->ctx) != 0) {
        timer_start(&ws->close_wait, 0);
        return;
    }
    conn_flush_later(ws->conn);
}

/* wslay ends some broken frames (a fragmented ping, a length of 63 bits) without a code of its own. Everything it
 * queued before is in `out`, so this stands between two frames. */
static void fail_framing(struct ws *ws)
{
    static const char close_1002[] = {(char)0x88, 2, 1002 >> 8, (char)(1002 & 0xFF)};
    ws->failed = true;
    timer_stop(&ws->ping);
    if (!ws->closing) {
        ws->closing = true;
        ws->sent_code = 1002;
        buf_add(&ws->conn->out, close_1002, sizeof close_1002);
    }
    timer_start(&ws->close_wait, CLOSE_WAIT_MS);
    conn_flush_later(ws->conn);
}

void ws_readable(struct ws *ws, const char *data, size_t len)
{
    if (ws->failed)
        return;
    if (ws->held.len > 0) {
        buf_add(&ws->held, data, len);
        return;
    }
    ws->feed = data;
    ws->feed_len = len;
    ws->busy = true;
    int rc = wslay_event_recv(ws->ctx);
    ws->busy = false;
    if (!ws->conn) {
        free_ws(ws);
        return;
    }
    if (ws->feed_len > 0 && wslay_event_get_read_enabled(ws->ctx)) {
        buf_add(&ws->held, ws->feed, ws->feed_len);
        if (ws->held.failed) {
            conn_close(ws->conn);
            return;
        }
    }
    ws->feed_len = 0;
    if (rc != 0 && rc != WSLAY_ERR_WOULDBLOCK) {
        fail_framing(ws);
        return;
    }
    if (wslay_event_get_close_received(ws->ctx) && !timer_running(&ws->close_wait))
        timer_start(&ws->close_wait, CLOSE_WAIT_MS);
    pump(ws);
}

/* --- the handshake ---------------------------------------------------------------------------------------------- */

static bool has_token(const char *list, const char *token)
{
    size_t len = strlen(token);
    while (list && *list) {
        list += strspn(list, " ,\t");
        size_t n = strcspn(list, " ,\t");
        if (n == len && strncasecmp(list, token, len) == 0)
            return true;
        list += n;
    }
    return false;
}

static void accept_key(const char *key, char out[32])
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"; /* RFC 6455, 1.3 */
    struct sha1_ctx ctx;
    uint8_t hash[SHA1_DIGEST_SIZE];
    sha1_init(&ctx);
    sha1_update(&ctx, strlen(key), (const uint8_t *)key);
    sha1_update(&ctx, sizeof guid - 1, (const uint8_t *)guid);
    sha1_digest(&ctx, sizeof hash, hash);
    base64_encode_raw(out, sizeof hash, hash);
    out[BASE64_ENCODE_RAW_LENGTH(SHA1_DIGEST_SIZE)] = '\0';
}

static void ping_due(void *data)
{
    struct ws *ws = data;
    if (ws->pong_due && conn_pending(ws->conn) == 0) {
        ws_close(ws, 1011, "no pong");
        return;
    }
    if (ws->pong_due) { /* the ping may lie behind what the client is slow to take; writes have their own limit */
        timer_start(&ws->ping, ws->opt.ping_ms);
        return;
    }
    struct wslay_event_msg msg = {.opcode = WSLAY_PING, .msg = NULL, .msg_length = 0};
    ws->pong_due = true;
    if (wslay_event_queue_msg(ws->ctx, &msg) == 0)
        pump(ws);
    timer_start(&ws->ping, ws->opt.ping_ms);
}

static void close_waited(void *data)
{
    struct ws *ws = data;
    if (ws->conn)
        conn_close(ws->conn);
}

static int genmask(wslay_event_context_ptr ctx, uint8_t *out, size_t len, void *user)
{
    crypto_random(out, len);
    return 0;
}

/* 16 bytes in base64 (RFC 6455, 4.2.1). */
static bool key_is_good(const char *key)
{
    autobuf struct buf bytes = BUF_INIT;
    return key && strlen(key) == 24 && base64_decode(&bytes, key, 24) == 0 && bytes.len == 16;
}

int ws_check(const struct req *r, struct abx_error *err)
{
    const char *key = req_header(r, "sec-websocket-key"), *version = req_header(r, "sec-websocket-version");
    if (!has_token(req_header(r, "connection"), "upgrade") || !has_token(req_header(r, "upgrade"), "websocket") ||
        !key_is_good(key) || !version || strcmp(version, "13") != 0 || r->http10)
        return abx_fail(err, E_BAD_REQUEST, 0, "Not a WebSocket handshake (RFC 6455, 4.2.1)");
    return 0;
}

struct ws *ws_accept(struct req *r, const struct ws_options *opt, const struct ws_ops *ops, void *owner,
                     struct abx_error *err)
{
    if (ws_check(r, err) < 0)
        return NULL;
    struct conn *c = r->conn;
    if (!c) {
        abx_fail(err, E_CANCELLED, 0, "the client has left");
        return NULL;
    }
    struct ws *ws = calloc(1, sizeof *ws);
    const struct wslay_event_callbacks callbacks = {
        .recv_callback = feed_wslay,
        .send_callback = take_from_wslay,
        .genmask_callback = genmask,
        .on_msg_recv_callback = on_message,
    };
    if (!ws || wslay_event_context_server_init(&ws->ctx, &callbacks, ws) != 0) {
        free(ws);
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    ws->req = r;
    ws->conn = c;
    ws->opt = *opt;
    if (ws->opt.high_mark == 0)
        ws->opt.high_mark = DEFAULT_HIGH;
    ws->ops = ops;
    ws->owner = owner;
    ws->deflate_bits = opt->deflate ? negotiate_deflate(r) : 0;
    if (ws->deflate_bits)
        wslay_event_config_set_allowed_rsv_bits(ws->ctx, WSLAY_RSV1_BIT);
    wslay_event_config_set_max_recv_msg_length(ws->ctx, opt->max_message);
    timer_init(&ws->ping, r->http->loop, ping_due, ws);
    timer_init(&ws->close_wait, r->http->loop, close_waited, ws);

    char accept[32];
    accept_key(req_header(r, "sec-websocket-key"), accept);
    buf_addf(&c->out,
             "HTTP/1.1 101 Switching Protocols\r\nServer: %s\r\nUpgrade: websocket\r\n"
             "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n",
             r->http->config.server_name, accept);
    if (ws->deflate_bits)
        buf_addf(&c->out,
                 "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; "
                 "client_no_context_takeover; server_max_window_bits=%d\r\n",
                 ws->deflate_bits);
    buf_add(&c->out, r->resp.headers.data, r->resp.headers.len);
    buf_add(&c->out, "\r\n", 2);
    r->answered = true;
    r->resp.status = 101;
    measure_answer(r, 101);
    r->http->metrics->websockets++;
    r->on_gone = NULL;
    c->ws = ws;
    if (opt->ping_ms)
        timer_start(&ws->ping, opt->ping_ms);
    /* What waits for a slow reader waits here, where it is bounded, not in megabytes of the kernel's buffer. */
    int unsent = UNSENT_MAX;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent); /* only a wish */
    conn_flush_later(c);
    conn_to_ws(c);
    return ws;
}

/* --- messages out ------------------------------------------------------------------------------------------------ */

static void queue(struct ws *ws, uint8_t opcode, const void *data, size_t len)
{
    if (!ws->conn || ws->closing)
        return;
    struct wslay_event_msg msg = {.opcode = opcode, .msg = data, .msg_length = len};
    autobuf struct buf packed = BUF_INIT;
    uint8_t rsv = WSLAY_RSV_NONE;
    if (ws->deflate_bits && len >= DEFLATE_MIN && len < UINT32_MAX / 2 &&
        deflate_message(ws->deflate_bits, data, len, &packed) == 0) {
        msg.msg = (const uint8_t *)packed.data;
        msg.msg_length = packed.len;
        rsv = WSLAY_RSV1_BIT;
    }
    if (wslay_event_queue_msg_ex(ws->ctx, &msg, rsv) != 0) {
        timer_start(&ws->close_wait, 0);
        return;
    }
    pump(ws);
}

void ws_text(struct ws *ws, const char *data, size_t len)
{
    queue(ws, WSLAY_TEXT_FRAME, data, len);
}

void ws_binary(struct ws *ws, const void *data, size_t len)
{
    queue(ws, WSLAY_BINARY_FRAME, data, len);
}

size_t ws_pending(const struct ws *ws)
{
    return ws->conn ? conn_pending(ws->conn) : 0;
}

bool ws_full(const struct ws *ws)
{
    if (ws_pending(ws) < ws->opt.high_mark)
        return false;
    ((struct ws *)ws)->was_full = true; /* drain is owed */
    return true;
}

void ws_pause(struct ws *ws)
{
    ws->paused = true;
    if (ws->conn && !ws->busy)
        conn_update(ws->conn);
}

void ws_resume(struct ws *ws)
{
    if (!ws->paused)
        return;
    ws->paused = false;
    if (!ws->conn || ws->busy)
        return;
    if (ws->held.len > 0) {
        struct buf held = ws->held;
        ws->held = (struct buf)BUF_INIT;
        struct conn *c = ws->conn;
        ws_readable(ws, held.data, held.len);
        buf_done(&held);
        conn_resume(c);
        return;
    }
    conn_resume(ws->conn);
}

bool ws_paused(const struct ws *ws)
{
    return ws->paused;
}

void ws_close(struct ws *ws, int code, const char *reason)
{
    if (!ws->conn || ws->closing)
        return;
    ws->closing = true;
    ws->sent_code = code;
    timer_stop(&ws->ping);
    size_t len = reason ? utf8_floor(reason, strlen(reason) < 123 ? strlen(reason) : 123) : 0;
    wslay_event_queue_close(ws->ctx, (uint16_t)code, (const uint8_t *)reason, len);
    timer_start(&ws->close_wait, CLOSE_WAIT_MS);
    pump(ws);
}

void ws_drop(struct ws *ws)
{
    ws->ops = NULL;
    if (ws->conn)
        conn_close(ws->conn);
}

/* --- called by the connection -------------------------------------------------------------------------------------- */

void ws_drained(struct ws *ws)
{
    struct conn *c = ws->conn;
    bool done = ws->failed || (!wslay_event_want_write(ws->ctx) && !wslay_event_want_read(ws->ctx));
    if (conn_pending(c) == 0 && done) {
        if (!ws->failed && wslay_event_get_close_received(ws->ctx))
            conn_close(c);
        else
            conn_ws_linger(c); /* the peer may still be sending: a close now would take our code from it */
        return;
    }
    if (ws->was_full && conn_pending(c) <= ws->opt.high_mark / 4) {
        ws->was_full = false;
        if (ws->ops && ws->ops->drain)
            ws->ops->drain(ws->owner);
    }
}

void ws_gone(struct ws *ws)
{
    struct req *r = ws->req;
    ws->conn = NULL;
    r->http->metrics->websockets--;
    timer_done(&ws->ping);
    timer_done(&ws->close_wait);
    r->conn = NULL;
    atomic_store(&r->gone, true);
    req_complete(r);
    int code = 1006;
    if (wslay_event_get_close_received(ws->ctx)) {
        code = wslay_event_get_status_code_received(ws->ctx);
        if (code == 0)
            code = 1005;
        if (ws->closing)
            code = ws->sent_code;
    }
    const struct ws_ops *ops = ws->ops;
    ws->ops = NULL;
    if (ops && ops->closed)
        ops->closed(ws->owner, code);
    req_unref(r);
    if (!ws->busy)
        free_ws(ws);
}

void ws_stop(struct ws *ws)
{
    ws_close(ws, 1001, "the server is stopping");
}
