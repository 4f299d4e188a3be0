/* Archives: packing to an unnamed spool file which is then sent, and unpacking of a spooled upload.
 */

#include "routes/files_internal.h"
#include "routes/table.h"

#include "base/json.h"
#include "base/metrics.h"
#include "base/module.h"
#include "base/own.h"
#include "files/archive.h"

#include <string.h>

#define ARCHIVE_BYTES (100 * (int64_t)MIB)
#define ARCHIVE_FILES 10000
#define INPUT_BYTES                                                                                \
    (1024 * (int64_t)MIB) /* of what is packed, at least; else ten times the archive's limit */
#define UNPACKED_BYTES (1024 * (int64_t)MIB)

static int64_t archive_limit(const struct req *req)
{
    return rule_limit(req_rule(req), LIMIT_max_bytes, ARCHIVE_BYTES);
}

/* === packing
 * ======================================================================================== */

struct packing {
    struct req *req;
    bool zip, raw;
    int fd, rc;
    int64_t size;
    struct buf head;
    struct abx_error err;
};

static void packing_free(struct packing *p)
{
    if (p->fd >= 0)
        close(p->fd);
    buf_done(&p->head);
    struct req *req = p->req;
    free(p);
    req_unref(req);
}

static int decode_paths(struct req *req, struct archive_path **ret, size_t *ret_n,
                        struct abx_error *err)
{
    const json_t *list = json_object_get(req_body(req), "paths");
    size_t n = json_array_size(list);
    if (n == 0)
        return abx_fail(err, E_VALUE, 0, "'paths' must be a non-empty list of strings");
    struct archive_path *paths = arena_alloc(req_arena(req), n * sizeof *paths);
    if (!paths)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_string(v))
            return abx_fail(err, E_VALUE, 0, "'paths' must be a non-empty list of strings");
        paths[i] = (struct archive_path){json_string_value(v), json_string_length(v)};
    }
    *ret = paths;
    *ret_n = n;
    return 0;
}

static const char *mid_field(const struct packing *p)
{
    return p->zip ? ", \"format\": \"zip\"" : ", \"format\": \"tar.gz\"";
}

static int pack(struct packing *p, struct abx_error *err)
{
    struct req *req = p->req;
    int64_t most = archive_limit(req);
    struct archive_path *paths = NULL;
    struct archive_order order = {.guard = req_guard(req),
                                  .zip = p->zip,
                                  .max_files =
                                      rule_limit(req_rule(req), LIMIT_max_files, ARCHIVE_FILES),
                                  .max_bytes = most,
                                  .max_input = most > INPUT_BYTES / 10 ? most * 10 : INPUT_BYTES,
                                  .cancelled = client_left,
                                  .data = req};
    if (decode_paths(req, &paths, &order.n_paths, err) < 0)
        return -1;
    order.paths = paths;
    archive_create_fn *create = (archive_create_fn *)module_symbol("archive", ARCHIVE_CREATE, err);
    if (!create)
        return -1;
    p->fd = files_spool(req_guard(req), err);
    if (p->fd < 0 || create(&order, p->fd, &p->size, err) < 0)
        return -1;
    if (lseek(p->fd, 0, SEEK_SET) < 0)
        return abx_fail(err, E_INTERNAL, errno, "rewind of the spool file");
    if (p->raw)
        return resp_file(req_resp(req), p->zip ? "application/zip" : "application/gzip", &p->fd, 0,
                         p->size);
    buf_adds(&p->head, "{\"content_base64\": \"");
    if (p->size > SMALL_FILE)
        return 0;
    if (base64_text(p->fd, p->size, mid_field(p), &p->head, err) < 0)
        return -1;
    size_t n;
    char *text = buf_take(&p->head, &n);
    return text ? resp_json_text(req_resp(req), text, n)
                : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

static void pack_on_worker(void *data)
{
    struct packing *p = data;
    p->rc = pack(p, &p->err);
}

static void packed(void *data)
{
    struct packing *p = data;
    if (p->rc < 0 && p->err.kind == E_TOO_LARGE)
        fail_with_limit(p->req, &p->err, archive_limit(p->req));
    else if (p->rc < 0)
        req_fail(p->req, &p->err);
    else if (p->head.data)
        send_base64(p->req, &p->fd, p->size, &p->head, mid_field(p));
    else
        req_finish(p->req);
    packing_free(p);
}

int route_files_archive(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *format = json_object_get(req_body(req), "format");
    const char *name = format ? json_word(format) : "tar.gz";
    bool zip = name && strcmp(name, "zip") == 0;
    if (!zip && (!name || strcmp(name, "tar.gz") != 0))
        return abx_fail(err, E_VALUE, 0, "'format' must be tar.gz or zip");
    struct packing *p = calloc(1, sizeof *p);
    if (!p)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    p->req = req_ref(req);
    p->zip = zip;
    p->raw = wants_raw(req, zip ? "application/zip" : "application/gzip");
    p->fd = -1;
    if (req_work(req, WORK_LONG, pack_on_worker, packed, p, err) == 0)
        return REQ_PENDING;
    packing_free(p);
    return -1;
}

/* === unpacking
 * ====================================================================================== */

struct unpacking {
    struct req *req;
    struct upload *upload;
    int rc;
    struct extract_result result;
    struct abx_error err;
};

static int64_t unpacked_limit(const struct req *req)
{
    return rule_limit(req_rule(req), LIMIT_max_bytes, UNPACKED_BYTES);
}

static int unpack(struct unpacking *u, struct abx_error *err)
{
    struct req *req = u->req;
    const struct rule *rule = req_rule(req);
    const struct str_list *allow = rule_list(rule, PARAM_allow_extensions);
    const struct str_list *deny = rule_list(rule, PARAM_deny_extensions);
    const char *const none[] = {NULL};
    struct extract_order order = {.guard = req_guard(req),
                                  .max_files = ARCHIVE_FILES,
                                  .max_bytes = unpacked_limit(req),
                                  .no_overwrite = !rule_flag(rule, PARAM_overwrite, true),
                                  .allow_ext = allow ? (allow->items ? allow->items : none) : NULL,
                                  .n_allow = allow ? allow->n : 0,
                                  .deny_ext = deny ? deny->items : NULL,
                                  .n_deny = deny ? deny->n : 0,
                                  .cancelled = client_left,
                                  .data = req};
    const json_t *path = upload_field(u->upload, "path");
    if (path) {
        order.path = json_string_value(path);
        order.path_len = json_string_length(path);
    } else if (query_path(req, &order.path, &order.path_len, err) < 0) {
        return -1;
    }
    archive_extract_fn *extract =
        (archive_extract_fn *)module_symbol("archive", ARCHIVE_EXTRACT, err);
    if (!extract)
        return -1;
    autoclose int fd = upload_take_spool(u->upload);
    return extract(&order, fd, req_arena(req), &u->result, err);
}

static void unpack_on_worker(void *data)
{
    struct unpacking *u = data;
    u->rc = unpack(u, &u->err);
}

static void unpacking_free(struct unpacking *u)
{
    upload_free(u->upload);
    struct req *req = u->req;
    free(u);
    req_unref(req);
}

static void unpacked(void *data)
{
    struct unpacking *u = data;
    struct req *req = u->req;
    if (u->rc < 0 && u->err.kind == E_TOO_LARGE) {
        fail_with_limit(req, &u->err, unpacked_limit(req));
    } else if (u->rc == 0) {
        req_note_path(req, u->result.path);
        loop_metrics(req_loop(req))->file_written += u->result.bytes;
        u->rc = resp_value(req_resp(req),
                           json_pack("{s:o, s:I, s:I, s:I}", "path", json_text(u->result.path),
                                     "entries", (json_int_t)u->result.entries, "bytes",
                                     (json_int_t)u->result.bytes, "skipped",
                                     (json_int_t)u->result.skipped),
                           &u->err);
        if (u->rc == 0)
            req_finish(req);
        else
            req_fail(req, &u->err);
    } else {
        req_fail(req, &u->err);
    }
    unpacking_free(u);
}

void files_unpack(struct req *req, struct upload *upload)
{
    struct abx_error err;
    struct unpacking *u = calloc(1, sizeof *u);
    if (!u) {
        upload_free(upload);
        abx_fail(&err, E_NO_MEMORY, 0, "out of memory");
        req_fail(req, &err);
        return;
    }
    u->req = req_ref(req);
    u->upload = upload;
    if (req_work(req, WORK_LONG, unpack_on_worker, unpacked, u, &err) == 0)
        return;
    req_fail(req, &err);
    unpacking_free(u);
}

int route_files_extract(struct req *req, struct resp *resp, struct abx_error *err)
{
    /* curl calls any body a form: with ?path= all that does not say that it is JSON is the archive itself. */
    bool raw = req_query_raw(req, "path", NULL) && !type_is(req_content_type(req), "application/json");
    return files_receive(req, raw ? RECEIVE_RAW : RECEIVE_JSON, RECEIVE_ARCHIVE, err);
}
