#pragma once
/* What routes/files*.c share. */

#include "base/buf.h"
#include "files/upload.h"
#include "http/req.h"

/* A loop handler's work: `run` on a worker of the short lane; when it returns 1 ("this may take long") once more
 * on the long lane, where `full` is set. Then 0: the resp is filled; -1: err is. Lives in the request's arena. */
struct file_op {
    struct req *req;
    struct resp *resp;
    int (*run)(struct file_op *op, struct abx_error *err);
    bool full;
    int rc;
    struct abx_error err;
};
int file_op_start(struct req *req, int (*run)(struct file_op *op, struct abx_error *err), struct abx_error *err);

/* The raw bytes of ?path=. E_VALUE when missing. */
int query_path(const struct req *req, const char **ret, size_t *ret_len, struct abx_error *err);

/* A refusal with "limit": for 413s. */
void fail_with_limit(struct req *req, const struct abx_error *err, int64_t limit);

/* True when the client prefers raw bytes: Accept names application/octet-stream (or `also`, may be NULL). */
bool wants_raw(const struct req *req, const char *also);

bool client_left(void *req); /* for `cancelled` of the services */

/* Sends fd (taken), `size` bytes, as JSON {head..., "content_base64": "...", mid, "bytes": N, "sha256": ...} in
 * pieces, with a Content-Length. head: text up to and with the opening quote (taken). Loop; finishes the request.
 * A file that became shorter meanwhile gives a whole, valid answer with fewer bytes. */
void send_base64(struct req *req, int *fd, int64_t size, struct buf *head, const char *mid);

/* The same text for a file that is small enough, at once. Worker. *ret_bytes: what was read. */
int base64_text(int fd, int64_t size, const char *mid, struct buf *out, struct abx_error *err);

#define SMALL_FILE (256 * 1024) /* up to here an answer is made in one piece */

/* Takes the body of an upload and answers, or goes on with files_unpack. A handler's return value. */
enum receive_form { RECEIVE_RAW, RECEIVE_JSON };
enum receive_use { RECEIVE_BASE64, RECEIVE_TEXT_OR_BASE64, RECEIVE_ARCHIVE };
int files_receive(struct req *req, enum receive_form form, enum receive_use use, struct abx_error *err);

/* Unpacks the spooled content of a finished upload (taken) and answers. Loop. */
void files_unpack(struct req *req, struct upload *upload);

int64_t upload_limit(const struct rule *rule);           /* bytes of an upload's content */
bool type_is(const char *content_type, const char *type); /* parameters aside */
