/* The group file_ops: decode, call files/, encode. Transfers are in files_transfer.c. */

#include "routes/files_internal.h"
#include "routes/table.h"

#include "base/json.h"
#include "base/num.h"
#include "files/list.h"
#include "files/ops.h"
#include "files/search.h"

#include <string.h>
#include <strings.h>

#define LIST_ENTRIES 1000
#define LIST_DEPTH 3
#define SEARCH_DEPTH 5
#define SEARCH_RESULTS 100
#define SEARCH_SECONDS 10.0

static void op_run(void *data)
{
    struct file_op *op = data;
    op->rc = op->run(op, &op->err);
}

static void op_done(void *data)
{
    struct file_op *op = data;
    struct req *req = op->req;
    if (op->rc == 1) {
        op->full = true;
        if (req_work(req, WORK_LONG, op_run, op_done, op, &op->err) == 0)
            return;
        op->rc = -1;
    }
    if (op->rc < 0)
        req_fail(req, &op->err);
    else
        req_finish(req);
}

int file_op_start(struct req *req, int (*run)(struct file_op *op, struct abx_error *err),
                  struct abx_error *err)
{
    struct file_op *op = arena_zalloc(req_arena(req), sizeof *op);
    if (!op)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    op->req = req;
    op->resp = req_resp(req);
    op->run = run;
    return req_work(req, WORK_SHORT, op_run, op_done, op, err) < 0 ? -1 : REQ_PENDING;
}

int query_path(const struct req *req, const char **ret, size_t *ret_len, struct abx_error *err)
{
    *ret = req_query_raw(req, "path", ret_len);
    return *ret ? 0 : abx_fail(err, E_VALUE, 0, "Missing or invalid 'path'");
}

void fail_with_limit(struct req *req, const struct abx_error *err, int64_t limit)
{
    resp_error(req_resp(req), err, json_pack("{s:I}", "limit", (json_int_t)limit));
    req_finish(req);
}

bool client_left(void *req) { return req_is_gone(req); }

static int take_json_text(struct resp *resp, struct buf *out, struct abx_error *err)
{
    size_t len;
    char *text = buf_take(out, &len);
    return text ? resp_json_text(resp, text, len) : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

/* --- list, stat
 * -------------------------------------------------------------------------------------- */

static int run_list(struct file_op *op, struct abx_error *err)
{
    struct req *req = op->req;
    const struct rule *rule = req_rule(req);
    const char *path, *resolved;
    size_t len;
    if (query_path(req, &path, &len, err) < 0)
        return -1;
    struct list_options opt = {.recursive = req_query_bool(req, "recursive"),
                               .max_entries = rule_limit(rule, LIMIT_max_entries, LIST_ENTRIES),
                               .max_depth = rule_limit(rule, LIMIT_max_depth, LIST_DEPTH),
                               .quick = !op->full,
                               .cancelled = client_left,
                               .data = req};
    const char *max = req_query(req, "max_entries", NULL);
    int64_t asked;
    if (!max || num_parse_loose(max, INT64_MIN, INT64_MAX, &asked) < 0)
        asked = LIST_ENTRIES;
    if (asked < opt.max_entries)
        opt.max_entries = asked;
    autobuf struct buf out = BUF_INIT;
    int rc = files_list(req_guard(req), path, len, &opt, req_arena(req), &out, &resolved, err);
    if (rc != 0)
        return rc;
    req_note_path(req, resolved);
    return take_json_text(op->resp, &out, err);
}

int route_files_list(struct req *req, struct resp *resp, struct abx_error *err)
{
    return file_op_start(req, run_list, err);
}

int route_files_stat(struct req *req, struct resp *resp, struct abx_error *err)
{
    const char *path, *resolved;
    size_t len;
    if (query_path(req, &path, &len, err) < 0)
        return -1;
    autobuf struct buf out = BUF_INIT;
    if (files_stat(req_guard(req), path, len, req_arena(req), &out, &resolved, err) < 0)
        return -1;
    req_note_path(req, resolved);
    return take_json_text(resp, &out, err);
}

/* --- mkdir, delete, move
 * ----------------------------------------------------------------------------- */

int route_files_mkdir(struct req *req, struct resp *resp, struct abx_error *err)
{
    const char *path, *resolved;
    size_t len;
    if (body_str(req_body(req), "path", &path, &len, err) < 0 ||
        files_mkdir(req_guard(req), path, len, req_arena(req), &resolved, err) < 0)
        return -1;
    req_note_path(req, resolved);
    return resp_value(resp, json_pack("{s:o, s:b}", "path", json_text(resolved), "created", 1),
                      err);
}

static int run_delete(struct file_op *op, struct abx_error *err)
{
    const char *path, *resolved;
    size_t len;
    if (query_path(op->req, &path, &len, err) < 0)
        return -1;
    int rc = files_delete(req_guard(op->req), path, len, op->full ? OPS_FULL : OPS_QUICK,
                          req_arena(op->req), &resolved, err);
    if (rc != 0)
        return rc;
    req_note_path(op->req, resolved);
    return resp_value(op->resp, json_pack("{s:o, s:b}", "path", json_text(resolved), "deleted", 1),
                      err);
}

int route_files_delete(struct req *req, struct resp *resp, struct abx_error *err)
{
    return file_op_start(req, run_delete, err);
}

static int run_move(struct file_op *op, struct abx_error *err)
{
    const json_t *body = req_body(op->req);
    const char *source, *destination, *from, *to;
    size_t source_len, destination_len;
    if (body_str(body, "source", &source, &source_len, err) < 0 ||
        body_str(body, "destination", &destination, &destination_len, err) < 0)
        return -1;
    int rc = files_move(req_guard(op->req), source, source_len, destination, destination_len,
                        op->full ? OPS_FULL : OPS_QUICK, req_arena(op->req), &from, &to, err);
    if (rc != 0)
        return rc;
    req_note_path(op->req, from);
    req_note_path(op->req, to);
    return resp_value(
        op->resp, json_pack("{s:o, s:o}", "source", json_text(from), "destination", json_text(to)),
        err);
}

int route_files_move(struct req *req, struct resp *resp, struct abx_error *err)
{
    return file_op_start(req, run_move, err);
}

/* --- search
 * ------------------------------------------------------------------------------------------ */

/* A number field: absent gives the fallback, anything that is no number is refused. */
static int int_field(const json_t *body, const char *name, int64_t fallback, int64_t *ret,
                     struct abx_error *err)
{
    const json_t *v = json_object_get(body, name);
    *ret = fallback;
    if (!v || json_coerce_int(v, ret) == 0)
        return 0;
    return abx_fail(err, E_VALUE, 0, "'%s' must be an integer", name);
}

int route_files_search(struct req *req, struct resp *resp, struct abx_error *err)
{
    const json_t *body = req_body(req);
    const struct rule *rule = req_rule(req);
    const char *path, *resolved;
    size_t len;
    struct search_options opt = {.cancelled = client_left, .data = req};
    if (body_str(body, "path", &path, &len, err) < 0 ||
        body_str(body, "pattern", &opt.pattern, NULL, err) < 0 ||
        int_field(body, "max_depth", SEARCH_DEPTH, &opt.max_depth, err) < 0 ||
        int_field(body, "max_results", SEARCH_RESULTS, &opt.max_results, err) < 0 ||
        body_opt_str(body, "content", &opt.content, &opt.content_len, err) < 0)
        return -1;
    if (opt.content_len == 0)
        opt.content = NULL;
    opt.include_dirs = json_is_true(json_object_get(body, "include_dirs"));
    int64_t most = rule_limit(rule, LIMIT_max_depth, INT64_MAX);
    if (opt.max_depth > most)
        opt.max_depth = most;
    most = rule_limit(rule, LIMIT_max_results, INT64_MAX);
    if (opt.max_results > most)
        opt.max_results = most;
    double seconds = rule_seconds(rule, LIMIT_timeout_seconds, SEARCH_SECONDS);
    opt.deadline_ns = mono_ns() + (uint64_t)((seconds < 1e6 ? seconds : 1e6) * 1e9);
    autobuf struct buf out = BUF_INIT;
    if (files_search(req_guard(req), path, len, &opt, req_arena(req), &out, &resolved, err) < 0)
        return -1;
    req_note_path(req, resolved);
    return take_json_text(resp, &out, err);
}
