/* Uploads and downloads.
 *
 * An upload's bytes are read by the loop straight into one of a few buffers; a worker decodes, hashes
 * and writes those that are full meanwhile. A download's base64 is made piece by piece on a worker
 * while the piece before is being sent; raw bytes go out by sendfile. */

#include "routes/files_internal.h"
#include "routes/table.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/metrics.h"
#include "base/num.h"
#include "base/own.h"
#include "files/base64.h"
#include "files/list.h"
#include "files/names.h"
#include "files/range.h"
#include "files/upload.h"

#include <errno.h>
#include <nettle/sha2.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#define UPLOAD_BYTES (100 * (int64_t)MIB)
#define DOWNLOAD_BYTES (4096 * (int64_t)MIB)
#define JSON_BYTES (10 * (int64_t)MIB)
#define HASHED_BYTES (64 * (int64_t)MIB) /* larger raw uploads are hashed when asked only */
#define RECEIVE_BUFFER (512 * KIB)
#define RECEIVE_BUFFERS 3
#define SEND_PIECE (192 * KIB)  /* of file bytes; a multiple of 3 */
#define VIRTUAL_FILE (16 * MIB) /* of a file whose size the kernel does not tell */

/* === uploads
 * ======================================================================================== */

/* The loop fills one buffer after the other, a worker empties them in the same order; neither waits for the other while
 * there is a buffer for it. */
struct receiver {
    struct req *req;
    struct upload *upload;
    struct buf bufs[RECEIVE_BUFFERS];
    unsigned filling, next; /* indices: the loop's, the worker's */
    size_t room;            /* bytes of a buffer that is full */
    int64_t body_max;       /* bytes of the whole body (JSON form) */
    int64_t seen, limit;
    bool unpack; /* the content is an archive: files_unpack goes on with it */
    bool busy, gone, over, dead;
    pthread_mutex_t lock; /* for the six that follow */
    unsigned full;        /* buffers filled and not yet emptied */
    bool ended;           /* no further buffer will come */
    bool waiting;         /* the loop has no buffer to fill */
    bool posted;          /* and a message that it has one again is on its way */
    bool finished;
    int rc;
    struct abx_error err; /* the worker's while busy */
    struct upload_result result;
};

static void receiver_free(struct receiver *r)
{
    if (r->posted) { /* room_again comes yet, and does it */
        r->dead = true;
        return;
    }
    upload_free(r->upload);
    for (size_t i = 0; i < RECEIVE_BUFFERS; i++)
        buf_done(&r->bufs[i]);
    pthread_mutex_destroy(&r->lock);
    struct req *req = r->req;
    free(r);
    req_unref(req);
}

static void receiver_fail(struct receiver *r)
{
    if (r->err.kind == E_TOO_LARGE)
        fail_with_limit(r->req, &r->err, r->limit);
    else
        req_fail(r->req, &r->err);
    receiver_free(r);
}

static void room_again(void *data)
{
    struct receiver *r = data;
    pthread_mutex_lock(&r->lock);
    r->posted = false;
    pthread_mutex_unlock(&r->lock);
    if (r->dead)
        receiver_free(r);
    else
        req_body_resume(r->req);
}

/* Empties what is full, and finishes the upload when that was all. Called and returns with the lock held. */
static void empty_buffers(struct receiver *r)
{
    while (r->full > 0) {
        struct buf *b = &r->bufs[r->next];
        pthread_mutex_unlock(&r->lock);
        int rc = upload_feed(r->upload, b->data, b->len, &r->err);
        buf_reset(b);
        r->next = (r->next + 1) % RECEIVE_BUFFERS;
        pthread_mutex_lock(&r->lock);
        r->rc = rc;
        if (rc < 0)
            return;
        r->full--;
        if (r->waiting) {
            r->waiting = false;
            r->posted = true;
            loop_post(req_loop(r->req), room_again, r);
        }
    }
    if (!r->ended)
        return;
    pthread_mutex_unlock(&r->lock);
    int rc = upload_finish(r->upload, &r->result, &r->err);
    pthread_mutex_lock(&r->lock);
    r->rc = rc;
    r->finished = rc == 0;
}

static void empty_on_worker(void *data)
{
    struct receiver *r = data;
    pthread_mutex_lock(&r->lock);
    empty_buffers(r);
    pthread_mutex_unlock(&r->lock);
}

static void emptied(void *data);

/* Has a worker empty what is full; nothing else of this upload runs. */
static void start_worker(struct receiver *r)
{
    r->busy = true;
    if (req_work(r->req, WORK_SHORT, empty_on_worker, emptied, r, &r->err) < 0) {
        r->busy = false;
        receiver_fail(r);
    }
}

static void receiver_done(struct receiver *r)
{
    if (r->unpack) { /* takes the upload over */
        files_unpack(r->req, take_ptr(r->upload));
        receiver_free(r);
        return;
    }
    json_t *answer = json_pack("{s:o, s:I}", "path", json_text(r->result.path), "bytes",
                               (json_int_t)r->result.bytes);
    if (r->result.sha256[0] &&
        json_object_set_new(answer, "sha256", json_string(r->result.sha256)) < 0) {
        json_decref(answer);
        answer = NULL;
    }
    req_note_path(r->req, r->result.path);
    loop_metrics(req_loop(r->req))->file_written += r->result.bytes;
    struct abx_error err;
    if (resp_value(req_resp(r->req), answer, &err) < 0)
        req_fail(r->req, &err);
    else
        req_finish(r->req);
    receiver_free(r);
}

/* What the loop finds wrong while a worker may be using r->err is written down by these, later. */
static void overflowed(struct receiver *r)
{
    if (r->seen > r->body_max)
        abx_fail(&r->err, E_TOO_LARGE, 0, "Request body too large; limit is %lld",
                 (long long)r->body_max);
    else
        abx_fail(&r->err, E_NO_MEMORY, 0, "out of memory");
    r->limit = r->body_max;
    receiver_fail(r);
}

static void left(struct receiver *r)
{
    abx_fail(&r->err, E_CANCELLED, 0, "the client left during the upload");
    receiver_fail(r);
}

static void emptied(void *data)
{
    struct receiver *r = data;
    r->busy = false;
    pthread_mutex_lock(&r->lock);
    bool more = r->full > 0 || r->ended, finished = r->finished;
    int rc = r->rc;
    pthread_mutex_unlock(&r->lock);
    if (rc < 0)
        receiver_fail(r);
    else if (finished)
        receiver_done(r);
    else if (r->over)
        overflowed(r);
    else if (r->gone)
        left(r);
    else if (more)
        start_worker(r);
}

/* The buffer at hand goes to the worker. */
static void push(struct receiver *r)
{
    pthread_mutex_lock(&r->lock);
    r->full++;
    r->waiting = r->full == RECEIVE_BUFFERS;
    bool waiting = r->waiting;
    pthread_mutex_unlock(&r->lock);
    r->filling = (r->filling + 1) % RECEIVE_BUFFERS;
    if (waiting)
        req_body_pause(r->req);
    if (!r->busy)
        start_worker(r);
}

static void *receive_buffer(void *owner, size_t *ret_size)
{
    struct receiver *r = owner;
    struct buf *b = &r->bufs[r->filling];
    if (!buf_reserve(b, r->room - b->len))
        return NULL;
    *ret_size = r->room - b->len;
    return b->data + b->len;
}

static int receive_data(void *owner, const char *data, size_t len, struct abx_error *err)
{
    struct receiver *r = owner;
    struct buf *b = &r->bufs[r->filling];
    r->seen += (int64_t)len;
    if (b->data && data == b->data + b->len && b->cap - b->len >= len)
        b->len += len; /* read straight into it */
    else
        buf_add(b, data, len);
    if (b->failed || r->seen > r->body_max) {
        r->over = true;
        if (r->busy) /* reported when the worker is back */
            req_body_pause(r->req);
        else
            overflowed(r);
    } else if (b->len >= r->room) {
        push(r);
    }
    return 0;
}

static void receive_end(void *owner)
{
    struct receiver *r = owner;
    pthread_mutex_lock(&r->lock);
    r->ended = true;
    r->full += r->bufs[r->filling].len > 0;
    pthread_mutex_unlock(&r->lock);
    if (!r->busy)
        start_worker(r);
}

static void receive_gone(void *owner)
{
    struct receiver *r = owner;
    r->gone = true;
    if (!r->busy)
        left(r);
}

bool type_is(const char *header, const char *type)
{
    size_t n = strlen(type);
    while (*header == ' ' || *header == '\t')
        header++;
    return strncasecmp(header, type, n) == 0 &&
           (header[n] == '\0' || header[n] == ';' || header[n] == ' ');
}

int64_t upload_limit(const struct rule *rule)
{
    int64_t fallback = UPLOAD_BYTES;
    const char *env = getenv("ABX_MAX_UPLOAD_SIZE");
    int64_t n;
    if (env && num_parse_loose(env, 1, INT64_MAX, &n) == 0)
        fallback = n;
    return rule_limit(rule, LIMIT_max_bytes, fallback);
}

int files_receive(struct req *req, enum receive_form form, enum receive_use use,
                  struct abx_error *err)
{
    bool raw = form == RECEIVE_RAW;
    const struct rule *rule = req_rule(req);
    const struct str_list *allow = rule_list(rule, PARAM_allow_extensions);
    const struct str_list *deny = rule_list(rule, PARAM_deny_extensions);
    int64_t body_max = rule_limit(rule, LIMIT_max_request_bytes, JSON_BYTES);
    struct upload_options opt = {.guard = req_guard(req),
                                 .max_bytes = upload_limit(rule),
                                 .no_overwrite = !rule_flag(rule, PARAM_overwrite, true),
                                 .allow_ext = allow ? allow->items : NULL,
                                 .n_allow = allow ? allow->n : 0,
                                 .deny_ext = deny ? deny->items : NULL,
                                 .n_deny = deny ? deny->n : 0,
                                 .fsync = req_query_bool(req, "fsync"),
                                 .text_content = use == RECEIVE_TEXT_OR_BASE64,
                                 .spool = use == RECEIVE_ARCHIVE,
                                 .max_other = body_max};
    if (allow && !opt.allow_ext)
        opt.allow_ext = (const char *const[]){NULL}; /* an empty list allows nothing */
    if (raw && query_path(req, &opt.path, &opt.path_len, err) < 0)
        return -1;
    int64_t length = req_body_length(req), most = raw ? opt.max_bytes : body_max;
    if (length > most) {
        abx_fail(err, E_TOO_LARGE, 0, "Request body too large (%lld bytes); limit is %lld",
                 (long long)length, (long long)most);
        resp_error(req_resp(req), err, json_pack("{s:I}", "limit", (json_int_t)most));
        return 0;
    }
    opt.no_hash =
        use == RECEIVE_ARCHIVE || (raw && length > HASHED_BYTES && !req_query_bool(req, "sha256"));
    struct receiver *r = calloc(1, sizeof *r);
    struct upload *u = r ? upload_new(&opt) : NULL;
    if (!u) {
        free(r);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    r->req = req_ref(req);
    r->upload = u;
    r->unpack = use == RECEIVE_ARCHIVE;
    r->limit = opt.max_bytes;
    r->body_max = raw ? INT64_MAX : body_max;
    pthread_mutex_init(&r->lock, NULL);
    r->room = length >= 0 && length < RECEIVE_BUFFER ? (size_t)length + 1 : RECEIVE_BUFFER;
    static const struct body_sink sink = {
        .buffer = receive_buffer, .data = receive_data, .end = receive_end, .gone = receive_gone};
    req_body_start(req, &sink, r);
    return REQ_PENDING;
}

int route_files_upload_stream(struct req *req, struct resp *resp, struct abx_error *err)
{
    /* Existing clients' JSON is JSON whatever its type says; the raw form has its path in the query. */
    bool raw = req_query_raw(req, "path", NULL) && type_is(req_content_type(req), "application/octet-stream");
    return files_receive(req, raw ? RECEIVE_RAW : RECEIVE_JSON, RECEIVE_BASE64, err);
}

int route_files_upload(struct req *req, struct resp *resp, struct abx_error *err)
{
    bool raw = req_query_raw(req, "path", NULL) ||
               type_is(req_content_type(req), "application/octet-stream");
    return files_receive(req, raw ? RECEIVE_RAW : RECEIVE_JSON, RECEIVE_TEXT_OR_BASE64, err);
}

/* === base64 answers
 * ================================================================================== */

/* Reads until `want` bytes or the end. */
static ssize_t read_up_to(int fd, uint8_t *into, size_t want)
{
    size_t got = 0;
    while (got < want) {
        ssize_t n = read(fd, into + got, want - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

#define HASH_FIELD (sizeof ", \"sha256\": \"\"" - 1 + SHA256_HEX - 1)

/* What follows the content, up to the closing brace. */
static void add_tail(struct buf *out, const char *mid, int64_t bytes, struct sha256_ctx *hash)
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    char hex[SHA256_HEX];
    sha256_digest(hash, sizeof digest, digest);
    hex_encode(digest, sizeof digest, hex);
    buf_addf(out, "\"%s, \"bytes\": %lld, \"sha256\": \"%s\"", mid, (long long)bytes, hex);
}

static void add_base64(struct buf *out, const uint8_t *data, size_t len)
{
    char *at = buf_reserve(out, len / 3 * 4 + 4);
    if (at)
        out->len += base64_write(data, len, at);
}

int base64_text(int fd, int64_t size, const char *mid, struct buf *out, struct abx_error *err)
{
    size_t cap = size > 0 ? (size_t)size : 4096, len = 0;
    autofree uint8_t *data = malloc(cap);
    for (;;) {
        ssize_t n = data ? read_up_to(fd, data + len, cap - len) : -1;
        if (!data)
            return abx_fail(err, E_NO_MEMORY, ENOMEM, "out of memory");
        if (n < 0)
            return abx_fail_os(err, errno, NULL);
        len += (size_t)n;
        if (len < cap || size > 0)
            break;
        if (cap >= VIRTUAL_FILE)
            return abx_fail(err, E_TOO_LARGE, 0,
                            "File too large; limit is %d bytes where no size is told",
                            VIRTUAL_FILE);
        uint8_t *grown = realloc(data, cap * 2);
        if (!grown)
            return abx_fail(err, E_NO_MEMORY, ENOMEM, "out of memory");
        data = grown;
        cap *= 2;
    }
    struct sha256_ctx hash;
    sha256_init(&hash);
    sha256_update(&hash, len, data);
    add_base64(out, data, len);
    add_tail(out, mid, (int64_t)len, &hash);
    buf_addc(out, '}');
    return 0;
}

struct sender {
    struct req *req;
    struct stream *stream;
    int fd;
    int64_t size, done; /* bytes of the file: promised, encoded */
    int64_t left;       /* bytes of the answer still to be made */
    const char *mid;
    struct sha256_ctx hash;
    uint8_t *data;
    struct buf piece; /* made, not yet given to the stream */
    bool busy, ready, gone, broken, text_over;
};

static void sender_free(struct sender *s)
{
    loop_metrics(req_loop(s->req))->file_read += s->done;
    close(s->fd);
    buf_done(&s->piece);
    free(s->data);
    struct req *req = s->req;
    free(s);
    req_unref(req);
}

static void make_piece(void *data)
{
    struct sender *s = data;
    if (!s->text_over) {
        size_t want = s->size - s->done < SEND_PIECE ? (size_t)(s->size - s->done) : SEND_PIECE;
        ssize_t n = read_up_to(s->fd, s->data, want);
        if (n < 0) {
            s->broken = true;
            return;
        }
        sha256_update(&s->hash, (size_t)n, s->data);
        add_base64(&s->piece, s->data, (size_t)n);
        s->done += n;
        if (s->done == s->size || (size_t)n < want) { /* or it became shorter */
            add_tail(&s->piece, s->mid, s->done, &s->hash);
            s->text_over = true;
        }
    }
    if (s->text_over) {
        /* Blanks make up for what a shrinking file did not give: the length was promised. */
        int64_t blanks = s->left - (int64_t)s->piece.len - 1;
        size_t n = blanks < SEND_PIECE ? (size_t)blanks : SEND_PIECE;
        char *at = n > 0 ? buf_reserve(&s->piece, n) : NULL;
        if (at) {
            memset(at, ' ', n);
            s->piece.len += n;
        }
        if ((int64_t)n == blanks)
            buf_addc(&s->piece, '}');
    }
    s->left -= (int64_t)s->piece.len;
    if (s->piece.failed)
        s->broken = true;
}

static void piece_made(void *data);

static void next_piece(struct sender *s)
{
    struct abx_error err;
    s->busy = true;
    if (req_work(s->req, WORK_SHORT, make_piece, piece_made, s, &err) < 0) {
        s->busy = false;
        s->broken = true;
    }
}

/* Gives what is ready to the stream and has the next piece made meanwhile. */
static void send_ready(struct sender *s)
{
    while (s->ready && !s->busy && !s->broken && !stream_full(s->stream)) {
        stream_write(s->stream, s->piece.data, s->piece.len);
        buf_reset(&s->piece);
        s->ready = false;
        if (s->left == 0) {
            stream_end(s->stream);
            sender_free(s);
            return;
        }
        next_piece(s);
    }
    if (s->broken && !s->busy) {
        stream_abort(s->stream);
        sender_free(s);
    }
}

static void piece_made(void *data)
{
    struct sender *s = data;
    s->busy = false;
    s->ready = true;
    if (s->gone)
        sender_free(s);
    else
        send_ready(s);
}

static void sender_drain(void *owner) { send_ready(owner); }

static void sender_gone(void *owner)
{
    struct sender *s = owner;
    s->gone = true;
    if (!s->busy)
        sender_free(s);
}

void send_base64(struct req *req, int *fd, int64_t size, struct buf *head, const char *mid)
{
    struct abx_error err;
    struct sender *s = calloc(1, sizeof *s);
    uint8_t *data = malloc(SEND_PIECE);
    if (!s || !data || head->failed) {
        free(s);
        free(data);
        close(take_fd(fd));
        abx_fail(&err, E_NO_MEMORY, 0, "out of memory");
        req_fail(req, &err);
        return;
    }
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)size);
    int64_t total = (int64_t)head->len + (size + 2) / 3 * 4 + (int64_t)strlen("\", \"bytes\": }") +
                    (int64_t)strlen(mid) + n + (int64_t)HASH_FIELD;
    *s = (struct sender){.req = req_ref(req),
                         .fd = take_fd(fd),
                         .size = size,
                         .left = total,
                         .mid = mid,
                         .data = data};
    sha256_init(&s->hash);
    s->piece = *head;
    *head = (struct buf)BUF_INIT;
    static const struct stream_ops ops = {.drain = sender_drain, .gone = sender_gone};
    s->stream = stream_open_raw(req, JSON_CONTENT, total, &ops, s);
    next_piece(s);
    if (s->broken)
        send_ready(s);
}

/* === downloads
 * ======================================================================================= */

bool wants_raw(const struct req *req, const char *also)
{
    const char *accept = req_header(req, "accept");
    if (!accept)
        return false;
    return strcasestr(accept, "application/octet-stream") || (also && strcasestr(accept, also));
}

/* RFC 6266: a plain name for old readers, the exact one percent-encoded (RFC 8187). */
static int add_disposition(struct resp *resp, const char *name, struct abx_error *err)
{
    autobuf struct buf text = BUF_INIT;
    buf_adds(&text, "attachment; filename=\"");
    for (const char *p = name; *p; p++) {
        unsigned char c = (unsigned char)*p;
        bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\' && c != '%';
        buf_addc(&text, plain ? *p : '_');
    }
    buf_adds(&text, "\"; filename*=UTF-8''");
    for (const char *p = name; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
            strchr("!#$&+-.^_`|~", c))
            buf_addc(&text, *p);
        else
            buf_addf(&text, "%%%02X", c);
    }
    const char *value = buf_str(&text);
    return value ? resp_header(resp, "Content-Disposition", value, err)
                 : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

/* Does the list of an If-None-Match name this tag? (weak comparison) */
static bool names_tag(const char *list, const char *tag)
{
    return list && (strcmp(list, "*") == 0 || strstr(list, tag));
}

struct download {
    struct file_op op;
    bool raw;
    int fd;
    int64_t size;
    struct buf head;
};

static int answer_raw(struct download *d, const struct stat *st, const char *name, int64_t most,
                      struct abx_error *err)
{
    struct req *req = d->op.req;
    struct resp *resp = d->op.resp;
    if (st->st_size == 0) { /* empty, or a virtual file: read it to its end */
        autobuf struct buf text = BUF_INIT;
        for (;;) {
            char *at = buf_reserve(&text, 4096);
            ssize_t n = at ? read_up_to(d->fd, (uint8_t *)at, 4096) : -1;
            if (n < 0)
                return at ? abx_fail_os(err, errno, name)
                          : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
            text.len += (size_t)n;
            if (n < 4096)
                break;
            if (text.len >= VIRTUAL_FILE)
                return abx_fail(err, E_TOO_LARGE, 0, "File too large");
        }
        if (add_disposition(resp, name, err) < 0)
            return -1;
        return resp_bytes(resp, "application/octet-stream", text.data ? text.data : "", text.len,
                          err);
    }
    char tag[80], text[96], date[40];
    snprintf(tag, sizeof tag, "\"%llx-%llx-%llx-%lx\"", (unsigned long long)st->st_ino,
             (unsigned long long)st->st_size, (unsigned long long)st->st_mtim.tv_sec,
             st->st_mtim.tv_nsec);
    struct tm tm;
    time_t changed = st->st_mtim.tv_sec;
    if (!gmtime_r(&changed, &tm) ||
        strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm) == 0)
        date[0] = '\0';
    if (resp_header(resp, "ETag", tag, err) < 0 ||
        resp_header(resp, "Accept-Ranges", "bytes", err) < 0 ||
        (date[0] && resp_header(resp, "Last-Modified", date, err) < 0) ||
        add_disposition(resp, name, err) < 0)
        return -1;
    if (names_tag(req_header(req, "if-none-match"), tag)) {
        resp_status(resp, 304);
        return resp_bytes(resp, "application/octet-stream", "", 0, err);
    }
    int64_t from = 0, len = st->st_size;
    const char *condition = req_header(req, "if-range");
    enum range_kind kind = RANGE_NONE;
    if (!condition || strcmp(condition, tag) == 0 || (date[0] && strcmp(condition, date) == 0))
        kind = range_parse(req_header(req, "range"), st->st_size, &from, &len);
    if (kind == RANGE_UNSATISFIABLE) {
        snprintf(text, sizeof text, "bytes */%lld", (long long)st->st_size);
        abx_fail(err, E_RANGE, 0, "The range lies beyond the end of the file");
        if (resp_header(resp, "Content-Range", text, err) < 0)
            return -1;
        return resp_error(resp, err, json_pack("{s:I}", "size", (json_int_t)st->st_size));
    }
    if (len > most)
        return abx_fail(err, E_TOO_LARGE, 0, "File too large (%lld bytes); limit is %lld",
                        (long long)len, (long long)most);
    if (kind == RANGE_PART) {
        snprintf(text, sizeof text, "bytes %lld-%lld/%lld", (long long)from,
                 (long long)(from + len - 1), (long long)st->st_size);
        if (resp_header(resp, "Content-Range", text, err) < 0)
            return -1;
        resp_status(resp, 206);
    }
    return resp_file(resp, "application/octet-stream", &d->fd, from, len);
}

static int run_download(struct file_op *op, struct abx_error *err)
{
    struct download *d = (struct download *)op;
    struct req *req = op->req;
    int64_t most = rule_limit(req_rule(req), LIMIT_max_bytes, DOWNLOAD_BYTES);
    const char *path;
    size_t len;
    struct guard_path gp;
    if (query_path(req, &path, &len, err) < 0)
        return -1;
    if (guard_open(req_guard(req), path, len, OP_READ, O_RDONLY | O_NONBLOCK, 0, req_arena(req),
                   &gp, &d->fd, err) < 0) {
        if (err->kind == E_OS && err->sys == ENXIO) /* a socket */
            return abx_fail(err, E_FILE_NOT_FOUND, ENXIO, "Not a regular file: %s", path);
        return files_lookup_error(err);
    }
    req_note_path(req, gp.resolved);
    struct stat st;
    if (fstat(d->fd, &st) < 0)
        return abx_fail_os(err, errno, gp.resolved);
    if (!S_ISREG(st.st_mode))
        return abx_fail(err, E_FILE_NOT_FOUND, 0, "Not a regular file: %s", gp.resolved);
    const char *name = strrchr(gp.resolved, '/') + 1;
    if (d->raw)
        return answer_raw(d, &st, name, most, err);
    if (st.st_size > most)
        return abx_fail(err, E_TOO_LARGE, 0, "File too large (%lld bytes); limit is %lld",
                        (long long)st.st_size, (long long)most);
    buf_addc(&d->head, '{');
    name_field(&d->head, "path", gp.resolved, strlen(gp.resolved));
    buf_adds(&d->head, ", \"content_base64\": \"");
    d->size = st.st_size;
    if (st.st_size > SMALL_FILE)
        return 0; /* in pieces */
    if (base64_text(d->fd, st.st_size, "", &d->head, err) < 0)
        return -1;
    size_t n;
    char *text = buf_take(&d->head, &n);
    return text ? resp_json_text(op->resp, text, n)
                : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

static void download_on_worker(void *data)
{
    struct download *d = data;
    d->op.rc = run_download(&d->op, &d->op.err);
}

static void download_done(void *data)
{
    struct download *d = data;
    struct req *req = d->op.req;
    if (d->op.rc < 0 && d->op.err.kind == E_TOO_LARGE)
        fail_with_limit(req, &d->op.err,
                        rule_limit(req_rule(req), LIMIT_max_bytes, DOWNLOAD_BYTES));
    else if (d->op.rc < 0)
        req_fail(req, &d->op.err);
    else if (!d->raw && d->head.data)
        send_base64(req, &d->fd, d->size, &d->head, "");
    else {
        if (!d->raw)
            loop_metrics(req_loop(req))->file_read += d->size;
        req_finish(req);
    }
    buf_done(&d->head);
    if (d->fd >= 0)
        close(d->fd);
    free(d);
    req_unref(req);
}

static int download(struct req *req, bool raw, struct abx_error *err)
{
    struct download *d = calloc(1, sizeof *d);
    if (!d)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    d->op.req = req_ref(req);
    d->op.resp = req_resp(req);
    d->raw = raw;
    d->fd = -1;
    if (req_work(req, WORK_SHORT, download_on_worker, download_done, d, err) == 0)
        return REQ_PENDING;
    req_unref(req);
    free(d);
    return -1;
}

int route_files_download_stream(struct req *req, struct resp *resp, struct abx_error *err)
{
    return download(req, wants_raw(req, NULL), err);
}

int route_files_download(struct req *req, struct resp *resp, struct abx_error *err)
{
    return download(req, true, err);
}
