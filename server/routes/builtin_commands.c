/* upload, download, runshell: the commands of this API's first design. Each is judged by the policy of the
 * endpoint that does the same (enabled, scopes, paths, commands, limits), on top of run_command's. */

#include "routes/commands_internal.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/own.h"
#include "base/utf8.h"
#include "process/proc.h"
#include "routes/app.h"
#include "routes/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define UPLOAD_MAX_DEFAULT 104857600
#define DOWNLOAD_MAX (64 * MIB)
#define OUTPUT_MAX (16 * MIB)

/* --- files --------------------------------------------------------------------------------------------- */

struct transfer {
    struct req *req;
    const struct rule *rule;
    const char *path, *content;
    size_t path_len, content_len;
    int result;
    struct abx_error error;
};

static bool extension_in(const char *name, const struct str_list *list)
{
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; list && i < list->n; i++)
        if (strcasecmp(list->items[i], dot && dot != name ? dot : "") == 0)
            return true;
    return false;
}

static int write_all(int fd, const char *data, size_t len, struct abx_error *err)
{
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return abx_fail_os(err, errno, NULL);
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

static int upload(struct transfer *t, struct abx_error *err)
{
    struct arena *arena = req_arena(t->req);
    struct guard_path at;
    autoclose int dir = -1;
    autoclose int fd = -1;
    if (guard_check(t->rule->guard, t->path, t->path_len, NULL, OP_WRITE, arena, &at, err) < 0)
        return -1;
    const struct str_list *allow = rule_list(t->rule, PARAM_allow_extensions);
    if ((allow && !extension_in(at.name, allow)) || extension_in(at.name, rule_list(t->rule, PARAM_deny_extensions)))
        return abx_fail(err, E_EXTENSION, 0, "This file extension is not allowed");
    int64_t most = rule_limit(t->rule, LIMIT_max_bytes, UPLOAD_MAX_DEFAULT);
    if ((int64_t)t->content_len > most)
        return abx_fail(err, E_TOO_LARGE, 0, "Content too large (%zu bytes); limit is %lld", t->content_len, (long long)most);
    if (guard_open_parent(t->rule->guard, t->path, t->path_len, OP_WRITE, true, arena, &at, &dir, err) < 0)
        return -1;
    bool overwrite = rule_flag(t->rule, PARAM_overwrite, true);
    if (guard_open(t->rule->guard, t->path, t->path_len, OP_WRITE,
                   O_WRONLY | O_CREAT | O_NONBLOCK | (overwrite ? 0 : O_EXCL), 0666, arena, &at, &fd, err) < 0)
        return err->sys == EEXIST ? abx_fail(err, E_FILE_EXISTS_POLICY, 0, "The file exists and may not be overwritten") : -1;
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return abx_fail(err, E_VALUE, 0, "Not a regular file");
    if (ftruncate(fd, 0) < 0)
        return abx_fail_os(err, errno, at.resolved);
    if (write_all(fd, t->content, t->content_len, err) < 0)
        return -1;
    req_note_path(t->req, at.resolved);
    return resp_json(req_resp(t->req), err, "{s:{s:o, s:I}}", "result", "path", json_text(at.resolved), "bytes",
                     (json_int_t)t->content_len);
}

static int read_all(int fd, int64_t most, struct buf *out, struct abx_error *err)
{
    for (;;) {
        char *at = buf_reserve(out, 65536);
        if (!at)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory for the file");
        ssize_t n = read(fd, at, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return abx_fail_os(err, errno, NULL);
        if (n == 0)
            return 0;
        out->len += (size_t)n;
        if ((int64_t)out->len > most)
            return abx_fail(err, E_TOO_LARGE, 0, "File too large; limit is %lld", (long long)most);
    }
}

static int download(struct transfer *t, struct abx_error *err)
{
    struct guard_path at;
    autoclose int fd = -1;
    autobuf struct buf data = BUF_INIT;
    struct stat st;
    if (guard_open(t->rule->guard, t->path, t->path_len, OP_READ, O_RDONLY | O_NONBLOCK, 0, req_arena(t->req), &at, &fd,
                   err) < 0)
        return err->sys ? abx_fail_lookup(err, err->sys, t->path) : -1;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return abx_fail(err, E_FILE_NOT_FOUND, 0, "Not a regular file");
    int64_t most = rule_limit(t->rule, LIMIT_max_bytes, DOWNLOAD_MAX);
    if (read_all(fd, most < DOWNLOAD_MAX ? most : DOWNLOAD_MAX, &data, err) < 0)
        return -1;
    req_note_path(t->req, at.resolved);
    bool text = utf8_valid(data.data, data.len);
    autobuf struct buf base64 = BUF_INIT;
    if (!text)
        base64_append(&base64, data.data, data.len);
    json_t *content = text ? json_stringn(data.data ? data.data : "", data.len) : json_stringn(base64.data, base64.len);
    return resp_json(req_resp(t->req), err, "{s:{s:o, s:o, s:s, s:I}}", "result", "path", json_text(at.resolved), "content",
                     content, "encoding", text ? "utf-8" : "base64", "bytes", (json_int_t)data.len);
}

static void upload_run(void *data)
{
    struct transfer *t = data;
    t->result = upload(t, &t->error);
}

static void download_run(void *data)
{
    struct transfer *t = data;
    t->result = download(t, &t->error);
}

static void transfer_done(void *data)
{
    struct transfer *t = data;
    struct req *req = t->req;
    if (t->result < 0)
        req_fail(req, &t->error);
    else
        req_finish(req);
    req_unref(req);
}

static int start_transfer(struct req *req, const struct rule *rule, void (*run)(void *), struct abx_error *err)
{
    struct transfer *t = arena_zalloc(req_arena(req), sizeof(*t));
    if (!t)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    const json_t *path = json_object_get(req_body(req), "path"), *content = json_object_get(req_body(req), "content");
    *t = (struct transfer){.req = req_ref(req), .rule = rule, .path = json_string_value(path),
                           .path_len = json_string_length(path), .content = json_string_value(content),
                           .content_len = json_string_length(content)};
    if (req_work(req, WORK_LONG, run, transfer_done, t, err) == 0)
        return REQ_PENDING;
    req_unref(req);
    return -1;
}

static int run_upload(struct req *req, const struct rule *rule, struct resp *resp, struct abx_error *err)
{
    return start_transfer(req, rule, upload_run, err);
}

static int run_download(struct req *req, const struct rule *rule, struct resp *resp, struct abx_error *err)
{
    return start_transfer(req, rule, download_run, err);
}

/* --- runshell ---------------------------------------------------------------------------------------------- */

struct shell {
    struct req *req;
    const struct exec_order *order; /* until `started` */
    int64_t max_output;
    struct proc *proc;
    struct buf out[2];
    bool timed_out;
};

static void shell_done(struct shell *s)
{
    struct req *req = s->req;
    req_on_gone(req, NULL, NULL);
    buf_done(&s->out[0]);
    buf_done(&s->out[1]);
    req_unref(req);
}

static void shell_fail(struct shell *s, const struct abx_error *err)
{
    req_fail(s->req, err);
    shell_done(s);
}

static void on_started(void *owner, struct proc *p, int sys)
{
    struct shell *s = owner;
    struct abx_error err;
    if (sys == 0)
        return;
    (void)exec_failed(s->order, sys, &err);
    shell_fail(s, &err);
}

static void on_output(void *owner, enum proc_stream stream, const char *data, size_t len)
{
    struct shell *s = owner;
    struct buf *out = &s->out[stream == PROC_STDERR];
    size_t most = s->max_output >= 0 && s->max_output < OUTPUT_MAX ? (size_t)s->max_output : OUTPUT_MAX;
    buf_add(out, data, len < most - out->len ? len : most - out->len);
}

static void on_timed_out(void *owner)
{
    ((struct shell *)owner)->timed_out = true;
}

static void on_ended(void *owner, int exit_code)
{
    struct shell *s = owner;
    struct abx_error err;
    if (s->timed_out) {
        abx_fail(&err, E_TIMEOUT_500, 0, "Command timed out");
        shell_fail(s, &err);
        return;
    }
    json_t *out = json_bytes(s->out[0].data ? s->out[0].data : "", s->out[0].len);
    json_t *errors = json_bytes(s->out[1].data ? s->out[1].data : "", s->out[1].len);
    if (resp_json(req_resp(s->req), &err, "{s:{s:o, s:o, s:i}}", "result", "stdout", out, "stderr", errors, "exit_code",
                  exit_code) < 0) {
        shell_fail(s, &err);
        return;
    }
    req_finish(s->req);
    shell_done(s);
}

static void on_gone(void *data)
{
    struct shell *s = data;
    struct abx_error err;
    proc_cancel(s->proc, 2000);
    abx_fail(&err, E_CANCELLED, 0, "The client has left");
    shell_fail(s, &err);
}

/* With command rules the line is taken as words, as POST /shell takes it, so that one verdict holds for
 * both; without them a shell runs it. */
static int run_shell(struct req *req, const struct rule *rule, struct resp *resp, struct abx_error *err)
{
    static const struct proc_ops ops = {
        .started = on_started, .output = on_output, .timed_out = on_timed_out, .ended = on_ended};
    bool words = rule_list(rule, PARAM_allow_commands) || rule_list(rule, PARAM_deny_commands);
    struct shell *s = arena_zalloc(req_arena(req), sizeof(*s));
    autojson json_t *body = json_pack("{s:O, s:b}", "command", json_object_get(req_body(req), "cmd"), "shell", !words);
    if (!s || !body)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    struct exec_order *order = exec_decode(req, rule, body, err);
    if (!order)
        return -1;
    struct proc_opts opts;
    exec_fill(order, &opts);
    opts.timeout_ms = (uint64_t)(order->timeout * 1000) + 1;
    s->order = order;
    s->max_output = order->max_output;
    if (proc_start(req_app(req)->spawner, req_loop(req), &opts, &ops, s, &s->proc, err) < 0) {
        exec_free(order);
        return -1;
    }
    s->req = req_ref(req);
    req_on_gone(req, on_gone, s);
    return REQ_PENDING;
}

/* --- the table ------------------------------------------------------------------------------------------------ */

static const struct builtin_command builtins[] = {
    {"upload", "Write a text file.", "files_upload_stream", {"path", "content"}, run_upload},
    {"download", "Read a file.", "files_download_stream", {"path"}, run_download},
    {"runshell", "Run a shell command.", "shell", {"cmd"}, run_shell},
};

const struct builtin_command *builtin_command_find(const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(builtins); i++)
        if (strlen(builtins[i].name) == len && memcmp(builtins[i].name, name, len) == 0)
            return &builtins[i];
    return NULL;
}

const struct builtin_command *builtin_command_at(size_t i)
{
    return i < ARRAY_LEN(builtins) ? &builtins[i] : NULL;
}

json_t *builtin_command_json(const struct builtin_command *b)
{
    json_t *args = json_array();
    for (size_t i = 0; b->args[i]; i++)
        json_array_append_new(args, json_pack("{s:s, s:s, s:b, s:n, s:s}", "name", b->args[i], "type", "string", "required",
                                              1, "default", "description", ""));
    return json_pack("{s:s, s:o, s:s}", "name", b->name, "args", args, "description", b->description);
}

static int check_args(const struct builtin_command *b, const json_t *body, struct abx_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value)
    {
        size_t i = 0;
        while (b->args[i] && strcmp(b->args[i], key) != 0)
            i++;
        if (!b->args[i])
            return abx_fail(err, E_VALUE, 0, "Unexpected argument(s): ['%.100s']; declared: ['%s'%s%s%s]", key, b->args[0],
                            b->args[1] ? ", '" : "", b->args[1] ? b->args[1] : "", b->args[1] ? "'" : "");
    }
    for (size_t i = 0; b->args[i]; i++) {
        value = json_object_get(body, b->args[i]);
        if (!value)
            return abx_fail(err, E_VALUE, 0, "Required argument '%s' missing", b->args[i]);
        if (!json_is_string(value))
            return abx_fail(err, E_ARGUMENT_TYPE, 0, "Cannot convert argument '%s' to string: a text is needed", b->args[i]);
    }
    return 0;
}

int builtin_command_run(const struct builtin_command *b, struct req *req, struct resp *resp, struct abx_error *err)
{
    const struct rule *rule = policy_find(req_policy(req), b->endpoint);
    const char *scope = NULL;
    if (!rule)
        return abx_fail(err, E_UNKNOWN_COMMAND, 0, "Unknown command '%s'", b->name);
    if (policy_permits(rule, req_identity(req), &scope, err) < 0)
        return scope ? resp_error(resp, err, json_pack("{s:s}", "scope", scope)) : -1;
    int retry_after = 1;
    if (req_admit(req, rule, &retry_after, err) < 0) {
        char text[16];
        snprintf(text, sizeof(text), "%d", retry_after);
        (void)resp_header(resp, "Retry-After", text, NULL); /* best effort; the body has it too */
        return resp_error(resp, err, json_pack("{s:i}", "retry_after", retry_after));
    }
    if (check_args(b, req_body(req), err) < 0)
        return -1;
    return b->run(req, rule, resp, err);
}
