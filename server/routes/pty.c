/* /pty/sessions/... and the terminal's socket /pty. */

#include "routes/table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"
#include "http/ws.h"
#include "policy/guards.h"
#include "pty/frame.h"
#include "pty/session.h"
#include "routes/app.h"

#define SESSIONS_DEFAULT 10
#define SIDE_MAX 1000               /* columns or rows over HTTP */
#define MESSAGE_MAX MIB             /* of a client */
#define PING_MS 20000
#define FRAME_BYTES ((size_t)64 * KIB) /* of output in one message */
#define QUEUE_BYTES ((size_t)128 * KIB)
#define LINGER_MS 3000              /* between "exited" and the close */

struct pty_service {
    struct pty_table *table;
    struct loop *loop;
    struct buf frame;          /* shared by all attachments: filled and sent at once */
    char chunk[FRAME_BYTES];
};

int pty_service_start(struct app *app, struct abx_error *err)
{
    struct pty_service *svc = malloc(sizeof(*svc)); /* chunk is not touched before it is used */
    if (!svc)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    int64_t idle_seconds = PTY_IDLE_MS / 1000;
    const char *idle = env_get(app->env, "ABX_PTY_IDLE_SECONDS");
    if (idle && num_parse(idle, 0, 1000000000, &idle_seconds) < 0)
        log_warn("ABX_PTY_IDLE_SECONDS is not a number of seconds: %s", idle);
    svc->loop = app->loop;
    svc->frame = (struct buf)BUF_INIT;
    svc->table = pty_table_new(app->loop, app->spawner, (uint64_t)idle_seconds * 1000);
    if (!svc->table) {
        free(svc);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    app->pty = svc;
    return 0;
}

void pty_service_stop(struct app *app)
{
    if (!app->pty)
        return;
    pty_table_free(app->pty->table);
    buf_done(&app->pty->frame);
    free(take_ptr(app->pty));
}

/* --- create -------------------------------------------------------------------------------------- */

static const char *const shells[] = {"/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash", "/usr/bin/zsh"};

/* A default that the image lacks is replaced by the shell that every image has; a shell asked for is not. */
static int decode_shell(const json_t *body, const char **ret, struct abx_error *err)
{
    const json_t *value = json_object_get(body, "shell");
    if (!value) {
        *ret = access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh";
        return 0;
    }
    const char *asked = json_word(value);
    for (size_t i = 0; asked && i < ARRAY_LEN(shells); i++) {
        if (strcmp(asked, shells[i]) == 0) {
            *ret = shells[i];
            return 0;
        }
    }
    return abx_fail(err, E_VALUE, 0,
                    "Shell '%.100s' is not allowed; permitted: /bin/bash, /bin/sh, /bin/zsh, /usr/bin/bash, "
                    "/usr/bin/zsh",
                    asked ? asked : "(no plain string)");
}

static int decode_side(const json_t *body, const char *name, int fallback, int *ret, struct abx_error *err)
{
    const json_t *value = json_object_get(body, name);
    int64_t n = fallback;
    if (value && json_coerce_int(value, &n) < 0)
        return abx_fail(err, E_VALUE, 0, "'cols' and 'rows' must be integers");
    if (n < 0 || n > SIDE_MAX)
        return abx_fail(err, E_VALUE, 0, "'%s' must be between 1 and %d", name, SIDE_MAX);
    *ret = (int)n;
    return 0;
}

static bool in_list(const struct str_list *list, const char *text)
{
    for (size_t i = 0; list && i < list->n; i++) {
        if (strcmp(list->items[i], text) == 0)
            return true;
    }
    return false;
}

/* What a loader would run in the shell before its first line. */
static bool is_dropped(const char *name)
{
    return strcmp(name, "LD_PRELOAD") == 0 || strcmp(name, "LD_LIBRARY_PATH") == 0 ||
           strcmp(name, "LD_AUDIT") == 0 || strcmp(name, "DYLD_INSERT_LIBRARIES") == 0;
}

/* The shell's environment over ours: TERM, then the caller's. */
static char **make_env(const struct env_map *base, json_t *vars)
{
    autojson json_t *overlay = json_object();
    const char *name;
    json_t *value;
    if (!overlay || json_object_set_new(overlay, "TERM", json_string("xterm-256color")) < 0)
        return NULL;
    json_object_foreach (vars, name, value) {
        if (is_dropped(name))
            log_info("pty: variable %s of a caller dropped", name);
        else if (json_object_set(overlay, name, value) < 0)
            return NULL;
    }
    return env_block(base, overlay);
}

static int check_env(const struct rule *rule, const struct env_map *env, json_t *vars, struct abx_error *err)
{
    const struct str_list *denied = rule_list(rule, PARAM_env_deny);
    const char *name;
    json_t *value;
    json_object_foreach (vars, name, value) {
        if (in_list(denied, name))
            return abx_fail(err, E_ENV_NOT_ALLOWED, 0, "Environment variable(s) not allowed: ['%s']", name);
    }
    return env_guard_secrets(vars, env, err);
}

struct create_call {
    struct req *req;
    char **envp;
    const char *shell;
    int cwd_fd;
};

static void create_free(struct create_call *c)
{
    if (c->cwd_fd >= 0)
        close(c->cwd_fd);
    free(c->envp);
    free(c);
}

static void created(void *data, struct pty_session *s, int sys)
{
    struct create_call *c = data;
    struct abx_error err;
    int rc;
    if (!s)
        rc = abx_fail(&err, E_OS, sys, "Could not start %s: %s", c->shell, strerror(sys));
    else
        rc = resp_json(req_resp(c->req), &err, "{s:s, s:o, s:i}", "session_id", pty_id(s), "ws_url",
                       json_sprintf("ws://localhost:%d/pty?session_id=%s", req_app(c->req)->pty_port, pty_id(s)),
                       "pid", (int)pty_pid(s));
    if (rc < 0)
        req_fail(c->req, &err);
    else
        req_finish(c->req);
    create_free(c);
}

/* POST /pty/sessions {"shell"?, "cols"?, "rows"?, "env"?} -> {"session_id", "ws_url", "pid"} */
int route_pty_create_session(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct app *app = req_app(req);
    const struct rule *rule = req_rule(req);
    const json_t *body = req_body(req);
    json_t *vars = json_object_get(body, "env");
    struct pty_create o = {0};
    const char *program;
    if (json_is_null(vars))
        vars = NULL;
    if (decode_shell(body, &o.shell, err) < 0 || decode_side(body, "cols", 80, &o.cols, err) < 0 ||
        decode_side(body, "rows", 24, &o.rows, err) < 0 || env_guard_check(vars, err) < 0 ||
        program_resolve(o.shell, NULL, "/", req_arena(req), &program, err) < 0)
        return -1;
    const struct str_list *allowed = rule_list(rule, PARAM_shells);
    if (allowed && !in_list(allowed, o.shell))
        return abx_fail(err, E_SHELL_NOT_ALLOWED, 0, "Shell '%s' is not allowed by policy", o.shell);
    if (check_env(rule, app->env, vars, err) < 0)
        return -1;
    struct pty_table *table = app->pty->table;
    pty_table_prune(table);
    int64_t most = rule_limit(rule, LIMIT_max_sessions, SESSIONS_DEFAULT);
    if ((int64_t)pty_table_alive(table) >= most)
        return abx_fail(err, E_SESSION_LIMIT, 0, "Session limit reached (%lld)", (long long)most);

    struct create_call *c = calloc(1, sizeof(*c));
    if (!c)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    *c = (struct create_call){.req = req, .shell = o.shell, .cwd_fd = -1};
    const char *cwd;
    c->envp = make_env(app->env, vars);
    if (!c->envp) {
        create_free(c);
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    }
    if (guard_open_cwd(req_guard(req), NULL, 0, req_arena(req), &cwd, &c->cwd_fd, err) < 0) {
        create_free(c);
        return -1;
    }
    o.envp = c->envp;
    o.cwd_fd = c->cwd_fd;
    if (pty_table_create(table, &o, created, c, err) < 0) {
        create_free(c);
        return -1;
    }
    return REQ_PENDING;
}

/* --- list, detail, resize, delete ------------------------------------------------------------------ */

static json_t *describe(const struct pty_session *s)
{
    return json_pack("{s:s, s:i, s:f, s:i, s:i, s:b, s:i}", "id", pty_id(s), "pid", (int)pty_pid(s),
                     "created_at", pty_created_at(s), "cols", pty_cols(s), "rows", pty_rows(s), "alive",
                     pty_alive(s), "clients", (int)pty_viewers(s));
}

static void list_one(void *data, struct pty_session *s)
{
    (void)json_array_append_new(data, describe(s));
}

/* GET /pty/sessions -> {"sessions": [{"id", "pid", "created_at", "cols", "rows", "alive", "clients"}]} */
int route_pty_list_sessions(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct pty_table *table = req_app(req)->pty->table;
    pty_table_prune(table);
    json_t *sessions = json_array();
    if (sessions)
        pty_table_each(table, list_one, sessions);
    return resp_json(resp, err, "{s:o}", "sessions", sessions);
}

static struct pty_session *find(struct req *req, struct abx_error *err)
{
    const char *id = req_param(req, "id", NULL);
    struct pty_session *s = id ? pty_table_find(req_app(req)->pty->table, id) : NULL;
    if (!s)
        (void)abx_fail(err, E_SESSION_NOT_FOUND, 0, "Session not found: %.100s", id ? id : "");
    return s;
}

/* GET /pty/sessions/{id} */
int route_pty_detail(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct pty_session *s = find(req, err);
    return s ? resp_value(resp, describe(s), err) : -1;
}

static int resize_side(const json_t *body, const char *name, int *ret, struct abx_error *err)
{
    const json_t *value = json_object_get(body, name);
    int64_t n;
    if (!value || json_coerce_int(value, &n) < 0)
        return abx_fail(err, E_VALUE, 0, "'cols' and 'rows' must be integers");
    if (n < 1 || n > SIDE_MAX)
        return abx_fail(err, E_VALUE, 0, "'%s' must be between 1 and %d", name, SIDE_MAX);
    *ret = (int)n;
    return 0;
}

/* POST /pty/sessions/{id}/resize {"cols", "rows"} */
int route_pty_resize(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct pty_session *s = find(req, err);
    int cols = 0, rows = 0;
    if (!s || resize_side(req_body(req), "cols", &cols, err) < 0 ||
        resize_side(req_body(req), "rows", &rows, err) < 0)
        return -1;
    pty_resize(s, cols, rows);
    return resp_value(resp, describe(s), err);
}

struct delete_call {
    struct req *req;
    char id[PTY_ID_LEN + 1];
    bool in_handler, done;
};

static int answer_deleted(struct delete_call *c, struct resp *resp, struct abx_error *err)
{
    return resp_json(resp, err, "{s:s, s:s}", "status", "closed", "session_id", c->id);
}

static void deleted(void *data)
{
    struct delete_call *c = data;
    struct abx_error err;
    c->done = true;
    if (c->in_handler)
        return;
    if (answer_deleted(c, req_resp(c->req), &err) < 0)
        req_fail(c->req, &err);
    else
        req_finish(c->req);
    free(c);
}

/* DELETE /pty/sessions/{id} -> {"status": "closed", "session_id"}, when the shell is gone */
int route_pty_delete_session(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct pty_session *s = find(req, err);
    if (!s)
        return -1;
    struct delete_call *c = calloc(1, sizeof(*c));
    if (!c)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    c->req = req;
    c->in_handler = true;
    memcpy(c->id, pty_id(s), PTY_ID_LEN);
    pty_delete(s, deleted, c);
    c->in_handler = false;
    if (!c->done)
        return REQ_PENDING;
    int rc = answer_deleted(c, resp, err);
    free(c);
    return rc;
}

/* --- the socket ------------------------------------------------------------------------------------ */

struct attachment {
    struct pty_service *svc;
    struct ws *ws;             /* NULL: gone */
    struct pty_viewer *viewer; /* NULL: refused, or closed */
    struct timer linger;
    bool binary, exited;
};

static void attachment_free(struct attachment *a)
{
    timer_done(&a->linger);
    pty_viewer_close(a->viewer);
    free(a);
}

/* Sends what the viewer has and the client can take. */
static void pump(struct attachment *a)
{
    struct pty_service *svc = a->svc;
    if (!a->viewer || a->exited)
        return;
    while (!ws_full(a->ws)) {
        bool last;
        size_t len = pty_take(a->viewer, svc->chunk, sizeof(svc->chunk), &last);
        if (len == 0)
            break;
        if (a->binary) {
            ws_binary(a->ws, svc->chunk, len);
        } else {
            buf_reset(&svc->frame);
            len = frame_output(&svc->frame, svc->chunk, len, last, pty_viewer_at(a->viewer));
            if (len == 0 || svc->frame.failed)
                break;
            ws_text(a->ws, svc->frame.data, svc->frame.len);
        }
        pty_advance(a->viewer, len);
    }
    int code;
    if (!pty_ended(a->viewer, &code))
        return;
    a->exited = true;
    buf_reset(&svc->frame);
    buf_addf(&svc->frame,
             "{\"type\": \"event\", \"event\": \"exited\", \"session_id\": \"%s\", \"exit_code\": %d}",
             pty_id(pty_viewer_session(a->viewer)), code);
    if (!svc->frame.failed)
        ws_text(a->ws, svc->frame.data, svc->frame.len);
    timer_start(&a->linger, LINGER_MS);
}

static void viewer_ready(void *owner)
{
    pump(owner);
}

static void viewer_input_full(void *owner, bool full)
{
    struct attachment *a = owner;
    if (full)
        ws_pause(a->ws);
    else
        ws_resume(a->ws);
}

static void drop_viewer(struct attachment *a)
{
    pty_viewer_close(a->viewer);
    a->viewer = NULL;
    ws_resume(a->ws); /* so that its close frame is read */
}

static void viewer_lost(void *owner)
{
    struct attachment *a = owner;
    drop_viewer(a);
    ws_close(a->ws, 1013, "Too slow for the output of this session");
}

static void linger_over(void *data)
{
    struct attachment *a = data;
    drop_viewer(a);
    ws_close(a->ws, 1000, "The shell has ended");
}

static const struct pty_viewer_ops viewer_ops = {
    .ready = viewer_ready, .input_full = viewer_input_full, .lost = viewer_lost};

static void on_message(void *owner, bool text, const char *data, size_t len)
{
    struct attachment *a = owner;
    if (!a->viewer)
        return;
    struct frame f;
    frame_parse(&f, data, len);
    if (f.kind == FRAME_INPUT)
        pty_input(a->viewer, f.data, f.len);
    else if (f.kind == FRAME_RESIZE)
        pty_resize(pty_viewer_session(a->viewer), f.cols, f.rows);
    else if (f.kind == FRAME_SIGNAL)
        pty_signal(pty_viewer_session(a->viewer), f.signal);
    frame_done(&f);
}

static void on_drain(void *owner)
{
    pump(owner);
}

static void on_closed(void *owner, int code)
{
    attachment_free(owner);
}

static const struct ws_ops socket_ops = {.message = on_message, .drain = on_drain, .closed = on_closed};

/* Where to begin: `since` (a position as "next" tells it), nothing of the past with replay=0, else all that
 * is kept. */
static uint64_t replay_from(struct req *req)
{
    const char *since = req_query(req, "since", NULL), *replay = req_query(req, "replay", NULL);
    int64_t at;
    if (since && num_parse(since, 0, INT64_MAX, &at) == 0)
        return (uint64_t)at;
    if (replay && (strcmp(replay, "0") == 0 || strcmp(replay, "false") == 0 || strcmp(replay, "no") == 0))
        return PTY_FROM_END;
    return PTY_FROM_START;
}

/* Admission is over when this runs; a refusal of it arrives as a close code, after the handshake. */
static int refusal(struct req *req, const char **ret_id, struct pty_session **ret, const char **ret_reason)
{
    int code = req_ws_refusal(req, ret_reason);
    if (code)
        return code;
    *ret_id = req_query(req, "session_id", NULL);
    *ret = NULL;
    if (!*ret_id) {
        *ret_reason = "Missing session_id parameter";
        return 1008;
    }
    *ret = pty_table_find(req_app(req)->pty->table, *ret_id);
    if (!*ret) {
        *ret_reason = "Unknown session";
        return 1008;
    }
    return 0;
}

static void send_started(struct attachment *a, struct pty_session *s)
{
    struct buf *out = &a->svc->frame;
    buf_reset(out);
    buf_addf(out,
             "{\"type\": \"event\", \"event\": \"started\", \"session_id\": \"%s\", \"pid\": %d, "
             "\"next\": %llu, \"dropped\": %s}",
             pty_id(s), (int)pty_pid(s), (unsigned long long)pty_viewer_at(a->viewer),
             pty_viewer_cut(a->viewer) ? "true" : "false");
    if (!out->failed)
        ws_text(a->ws, out->data, out->len);
}

/* WS /pty?session_id=ID[&replay=0][&since=N][&output=binary] */
int route_pty_connect(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct pty_service *svc = req_app(req)->pty;
    struct attachment *a = calloc(1, sizeof(*a));
    if (!a)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    a->svc = svc;
    timer_init(&a->linger, svc->loop, linger_over, a);

    const char *id = NULL, *reason = NULL;
    struct pty_session *s = NULL;
    int code = refusal(req, &id, &s, &reason);
    char text[120];
    if (code == 1008 && id) {
        snprintf(text, sizeof(text), "Unknown session: %.64s", id);
        text[utf8_floor(text, strlen(text))] = '\0';
        reason = text;
    }
    if (!code) {
        const char *output = req_query(req, "output", NULL);
        a->binary = output && strcmp(output, "binary") == 0;
        a->viewer = pty_viewer_open(s, replay_from(req), &viewer_ops, a, err);
        if (!a->viewer) {
            attachment_free(a);
            return -1;
        }
    }
    struct ws_options o = {.max_message = MESSAGE_MAX, .deflate = true, .ping_ms = PING_MS,
                           .high_mark = QUEUE_BYTES};
    a->ws = ws_accept(req, &o, &socket_ops, a, err);
    if (!a->ws) {
        attachment_free(a);
        return -1;
    }
    if (code) {
        ws_close(a->ws, code, reason);
        return REQ_PENDING;
    }
    send_started(a, s);
    pump(a);
    return REQ_PENDING;
}
