#include "agents/agents.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/num.h"
#include "base/own.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

int ag_fail(struct ag_error *e, int status, const char *code, const char *param, const char *fmt,
            ...)
{
    e->status = status;
    snprintf(e->code, sizeof(e->code), "%s", code);
    e->has_param = param != NULL;
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    e->refused = false;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof(e->message), fmt, ap);
    va_end(ap);
    return -1;
}

int ag_store_fail(struct ag_error *e, const struct abx_error *err)
{
    return ag_fail(e, err->status >= 500 ? err->status : 500, "server_error", NULL, "%s",
                   err->message);
}

int ag_refuse_adapter(struct ag_error *e, const char *name, bool declared)
{
    ag_fail(e, 404, "agents.not_implemented_locally", "adapter",
            declared
                ? "adapter '%.100s' is declared but has no local backend; GET /v1/agents/runtimes "
                  "reports what has"
                : "adapter '%.100s' is not a declared runtime; GET /v1/agents/runtimes lists them",
            name);
    e->refused = true;
    return -1;
}

void agents_new_id(const char *prefix, char out[AG_ID_MAX])
{
    size_t n = strlen(prefix);
    memcpy(out, prefix, n + 1);
    crypto_random_hex(out + n, 24);
}

/* --- settings ------------------------------------------------------------------------------------
 */

static const char *setting(const struct env_map *env, const char *name)
{
    const char *v = env_get(env, name);
    return v && *v ? v : NULL;
}

static int64_t number(const struct env_map *env, const char *name, int64_t fallback, int64_t min)
{
    int64_t n;
    const char *v = setting(env, name);
    return v && num_parse_loose(v, min, INT64_MAX / 4096, &n) == 0 ? n : fallback;
}

static bool on(const struct env_map *env, const char *name)
{
    const char *v = setting(env, name);
    return v && strcmp(v, "1") == 0;
}

static char *copy(const char *s) { return s ? strdup(s) : NULL; }

static char *configured_default(const struct env_map *env)
{
    const char *name = setting(env, "ABX_AGENTS_DEFAULT");
    if (name)
        return copy(name);
    const char *path = setting(env, "ABX_AGENTS_CONFIG");
    autojson json_t *doc = path ? json_load_file(path, 0, NULL) : NULL;
    name = json_string_value(json_object_get(doc, "default"));
    if (!name)
        name = json_string_value(json_object_get(json_object_get(doc, "agents"), "default"));
    return copy(name && *name ? name : "codex");
}

static void read_settings(struct ag_settings *s, const struct env_map *env)
{
    const char *persist = setting(env, "ABX_AGENTS_PERSIST");
    s->persist = !persist || (strcasecmp(persist, "0") != 0 && strcasecmp(persist, "false") != 0 &&
                              strcasecmp(persist, "no") != 0 && strcasecmp(persist, "off") != 0);
    s->traces = on(env, "ABX_AGENTS_TRACES");
    s->private_urls = on(env, "ABX_AGENTS_ALLOW_PRIVATE_URLS");
    s->webhook_http = on(env, "ABX_AGENTS_WEBHOOK_ALLOW_HTTP");
    s->install = on(env, "ABX_AGENTS_INSTALL");
    s->max_turns = number(env, "ABX_AGENTS_MAX_CONCURRENT_TURNS", 4, 1);
    s->max_vaults = number(env, "ABX_AGENTS_MAX_VAULTS", 100, 0);
    s->max_file_bytes = number(env, "ABX_AGENTS_MAX_FILE_BYTES", 10485760, 0);
    s->max_artifact_bytes = number(env, "ABX_AGENTS_MAX_ARTIFACT_BYTES", 10485760, 0);
    s->max_sessions = number(env, "ABX_AGENTS_MAX_SESSIONS", 200, 1);
    s->max_responses = number(env, "ABX_AGENTS_MAX_RESPONSES", 1000, 1);
    s->max_events = number(env, "ABX_AGENTS_MAX_EVENTS", 20000, 100);
    s->max_state_bytes = number(env, "ABX_AGENTS_MAX_STATE_BYTES", (int64_t)1 << 30, 1 << 20);
    s->max_output_bytes = number(env, "ABX_AGENTS_MAX_OUTPUT_BYTES", (int64_t)256 << 20, 1024);
    s->turn_timeout_s = number(env, "ABX_AGENTS_TURN_TIMEOUT", 1800, 1);
    s->idle_timeout_s = number(env, "ABX_AGENTS_IDLE_TIMEOUT", 300, 1);
    s->session_age_s = number(env, "ABX_AGENTS_SESSION_AGE", 86400, 1);
    s->webhook_backoff_ms = number(env, "ABX_AGENTS_WEBHOOK_BACKOFF_MS", 1000, 1);
    s->default_runtime = configured_default(env);
    s->responses_workspace = copy(setting(env, "ABX_AGENTS_RESPONSES_WORKSPACE"));
    const char *v = setting(env, "ABX_AGENTS_CODEX_VERSION");
    s->codex_version = copy(v ? v : "latest");
    v = setting(env, "ABX_AGENTS_QWEN_VERSION");
    s->qwen_version = copy(v ? v : "latest");
}

/* --- opening
 * --------------------------------------------------------------------------------------- */

static int make_dirs(const char *path, struct abx_error *err)
{
    autofree char *p = strdup(path);
    if (!p)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "out of memory");
    for (char *at = p + 1; *at; at++)
        if (*at == '/') {
            *at = '\0';
            (void)mkdir(p, 0700); /* the last one tells */
            *at = '/';
        }
    struct stat st;
    if (mkdir(p, 0700) < 0 && (errno != EEXIST || stat(p, &st) < 0 || !S_ISDIR(st.st_mode)))
        return abx_fail_os(err, errno, p);
    return 0; /* one that was there keeps its mode: it may be shared with others */
}

/* Removes what a turn that was killed hard has left. */
static void sweep_run(const char *state_dir)
{
    autobuf struct buf dir = BUF_INIT;
    buf_addf(&dir, "%s/run", state_dir);
    DIR *d = buf_str(&dir) ? opendir(dir.data) : NULL;
    struct dirent *e;
    while (d && (e = readdir(d))) {
        if (strncmp(e->d_name, "turn_", 5) != 0)
            continue;
        autobuf struct buf path = BUF_INIT;
        buf_addf(&path, "%s/%s/settings.json", dir.data, e->d_name);
        if (buf_str(&path))
            (void)unlink(path.data); /* may not be there */
        path.len -= strlen("/settings.json");
        if (buf_str(&path))
            (void)rmdir(path.data); /* others may use it */
    }
    if (d)
        closedir(d);
}

/* Turns that ran when the server ended are failed, with the frames that a follower waits for. */
static int recover(struct store *st, struct abx_error *err)
{
    static const char message[] = "server restarted while the turn was running";
    autojson json_t *error = json_pack("{s:s, s:s}", "code", "internal_error", "message", message);
    double now = wall_seconds();
    if (store_begin(st, err) < 0)
        return -1;
    autojson json_t *lost = json_array();
    sqlite3_stmt *q = store_stmt(
        st,
        "SELECT t.id, t.created, t.started, s.id, s.rid, s.agent_id, s.hidden, s.created, s.cfg,"
        " s.usage FROM turns t JOIN sessions s ON s.rid = t.session"
        " WHERE t.status IN ('queued', 'in_progress') ORDER BY t.rid",
        "");
    if (!q)
        return abx_fail(err, E_OS, 0, "agents' state can't be read");
    int64_t session = -1;
    while (sqlite3_step(q) == SQLITE_ROW) {
        if (sqlite3_column_int(q, 6))
            continue;
        autojson json_t *none = json_null();
        json_t *turn =
            turn_doc(store_text(q, 0), store_text(q, 5), store_text(q, 3), "failed",
                     sqlite3_column_double(q, 1), sqlite3_column_double(q, 2), now, error, none);
        json_array_append_new(lost,
                              json_pack("{s:I, s:s, s:s, s:o}", "log",
                                        (json_int_t)sqlite3_column_int64(q, 4) * 2, "session",
                                        store_text(q, 3), "id", store_text(q, 0), "turn", turn));
        session = sqlite3_column_int64(q, 4);
    }
    (void)session;
    sqlite3_reset(q);
    size_t i, n = json_array_size(lost);
    json_t *row;
    json_array_foreach(lost, i, row)
    {
        int64_t log = json_integer_value(json_object_get(row, "log")), seq = 1;
        q = store_stmt(st, "SELECT coalesce(max(seq), 0) + 1 FROM events WHERE log = ?", "i", log);
        if (q && sqlite3_step(q) == SQLITE_ROW)
            seq = sqlite3_column_int64(q, 0);
        if (q)
            sqlite3_reset(q);
        char event[40];
        snprintf(event, sizeof(event), "evt_%010lld", (long long)seq);
        autojson json_t *frame =
            json_pack("{s:s, s:s, s:O, s:O, s:O}", "type", "agent.session.turn.failed", "event_id",
                      event, "session_id", json_object_get(row, "session"), "turn_id",
                      json_object_get(row, "id"), "turn", json_object_get(row, "turn"));
        autofree char *text = ag_compact(frame);
        if (!text ||
            store_exec(st, err, "INSERT INTO events(log, seq, sub, type, data) VALUES(?,?,0,?,?)",
                       "iiss", log, seq, "agent.session.turn.failed", text) < 0)
            return -1;
        json_t *next = json_array_get(lost, i + 1);
        if (i + 1 < n && json_integer_value(json_object_get(next, "log")) == log)
            continue;
        /* the last of its session: idle */
        q = store_stmt(st, "SELECT id, created, cfg FROM sessions WHERE rid = ?", "i", log / 2);
        if (!q || sqlite3_step(q) != SQLITE_ROW)
            continue;
        autojson json_t *cfg = store_json(q, 2);
        struct ag_usage none = {0};
        json_t *doc =
            session_doc(store_text(q, 0), sqlite3_column_double(q, 1), now, cfg, false, &none);
        sqlite3_reset(q);
        snprintf(event, sizeof(event), "evt_%010lld", (long long)seq + 1);
        autojson json_t *idle = json_pack("{s:s, s:s, s:o}", "type", "agent.session.idle",
                                          "event_id", event, "session", doc);
        autofree char *idle_text = ag_compact(idle);
        if (idle_text &&
            store_exec(st, err, "INSERT INTO events(log, seq, sub, type, data) VALUES(?,?,0,?,?)",
                       "iiss", log, seq + 1, "agent.session.idle", idle_text) < 0)
            return -1;
    }
    if (store_exec(st, err,
                   "UPDATE turns SET status = 'failed', completed = ?, error = ? WHERE status IN "
                   "('queued', "
                   "'in_progress')",
                   "dj", now, error) < 0 ||
        store_exec(st, err,
                   "UPDATE items SET doc = json_set(doc, '$.status', CASE WHEN json_extract(doc, "
                   "'$.type') IN ('message',"
                   " 'reasoning') THEN 'incomplete' ELSE 'failed' END)"
                   " WHERE json_extract(doc, '$.status') = 'in_progress'",
                   "") < 0 ||
        store_exec(st, err, "DELETE FROM responses WHERE session NOT IN (SELECT rid FROM sessions)",
                   "") < 0)
        return -1;
    return store_commit(st, err);
}

int agents_open(const struct agents_deps *deps, struct agents **ret, struct abx_error *err)
{
    struct agents *ag = calloc(1, sizeof(*ag));
    if (!ag)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "out of memory");
    ag->d = *deps;
    list_init(&ag->sessions);
    list_init(&ag->waiting);
    list_init(&ag->installs);
    list_init(&ag->responses);
    read_settings(&ag->set, deps->env);

    const char *dir = setting(deps->env, "ABX_AGENTS_STATE_DIR"), *state = setting(deps->env, "ABX_STATE_DIR"),
               *home = setting(deps->env, "HOME");
    autobuf struct buf path = BUF_INIT;
    if (!ag->set.persist) {
        /* Artifacts and settings of turns need a place all the same; gone at the end. */
        const char *tmp = setting(deps->env, "TMPDIR");
        buf_addf(&path, "%s/abx-agents-XXXXXX", tmp ? tmp : "/tmp");
        if (!buf_str(&path) || !mkdtemp(path.data)) {
            abx_fail_os(err, errno, path.data);
            goto fail;
        }
    } else if (dir) {
        buf_adds(&path, dir);
    } else if (state && state[0] == '/') {
        buf_addf(&path, "%s/agents", state);
    } else {
        buf_addf(&path, "%s/.agent-sandbox/agents", home ? home : "/tmp");
    }
    if (!buf_str(&path) || make_dirs(path.data, err) < 0)
        goto fail;
    ag->set.state_dir = strdup(path.data);
    buf_adds(&path, "/agents.db");
    if (!ag->set.state_dir || !buf_str(&path) ||
        store_open(ag->set.persist ? path.data : NULL, &ag->store, err) < 0)
        goto fail;
    sweep_run(ag->set.state_dir);
    store_lock(ag->store);
    int rc = recover(ag->store, err);
    store_unlock(ag->store);
    if (rc < 0)
        goto fail;

    store_lock(ag->store);
    sqlite3_stmt *q =
        store_stmt(ag->store,
                   "SELECT rid, id, owner, hidden, cfg, thread, usage, created, active,"
                   " (SELECT coalesce(max(seq), 0) + 1 FROM events WHERE log = sessions.rid * 2)"
                   " FROM sessions ORDER BY rid",
                   "");
    while (q && sqlite3_step(q) == SQLITE_ROW) {
        struct session *s =
            session_add(ag, store_text(q, 1), store_text(q, 2), sqlite3_column_int(q, 3) != 0,
                        sqlite3_column_int64(q, 0), store_json(q, 4), sqlite3_column_double(q, 7));
        if (!s)
            continue;
        s->active = sqlite3_column_double(q, 8);
        s->thread = sqlite3_column_type(q, 5) == SQLITE_NULL ? NULL : strdup(store_text(q, 5));
        autojson json_t *usage = store_json(q, 6);
        ag_usage_read(usage, &s->reported);
        s->log.next_seq = sqlite3_column_int64(q, 9);
    }
    if (q)
        sqlite3_reset(q);
    list_for_each(it, &ag->sessions)
    {
        struct session *s = list_entry(it, struct session, node);
        q = store_stmt(ag->store, "SELECT usage FROM turns WHERE session = ? AND usage IS NOT NULL",
                       "i", s->rid);
        while (q && sqlite3_step(q) == SQLITE_ROW) {
            struct ag_usage u;
            autojson json_t *usage = store_json(q, 0);
            ag_usage_read(usage, &u);
            ag_usage_add(&s->usage, &u);
        }
        if (q)
            sqlite3_reset(q);
    }
    store_unlock(ag->store);
    *ret = ag;
    return 0;
fail:
    agents_close(ag);
    return -1;
}

static void load_hooks(struct agents *ag)
{
    store_lock(ag->store);
    sqlite3_stmt *q = store_stmt(
        ag->store, "SELECT id, owner, doc FROM objects WHERE kind = 'webhook' ORDER BY rid", "");
    while (q && sqlite3_step(q) == SQLITE_ROW) {
        autojson json_t *doc = store_json(q, 2);
        hooks_set(ag->hooks, store_text(q, 0), store_text(q, 1), doc);
    }
    if (q)
        sqlite3_reset(q);
    store_unlock(ag->store);
}

int agents_start(struct agents *ag, struct abx_error *err)
{
    store_set_loop(ag->store, ag->d.loop);
    ag->hooks = hooks_new(ag);
    ag->probes = probes_new(ag);
    if (!ag->hooks || !ag->probes)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "out of memory");
    loop_metrics(ag->d.loop)->agent_sessions = ag->n_sessions;
    load_hooks(ag); /* nothing else uses the store yet: the lock is free */
    return 0;
}

static void remove_tree(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        autobuf struct buf path = BUF_INIT;
        buf_addf(&path, "%s/%s", dir, e->d_name);
        if (buf_str(&path) && unlink(path.data) < 0 && errno == EISDIR)
            remove_tree(path.data);
    }
    if (d)
        closedir(d);
    (void)rmdir(dir); /* private and temporary: what stays harms nobody */
}

void agents_close(struct agents *ag)
{
    if (!ag)
        return;
    ag->stopping = true;
    hooks_free(take_ptr(ag->hooks));
    probes_free(take_ptr(ag->probes));
    if (ag->store)
        store_close(ag->store);
    if (!ag->set.persist && ag->set.state_dir)
        remove_tree(ag->set.state_dir);
    bool busy = ag->n_running > 0 || !list_empty(&ag->responses);
    list_for_each(it, &ag->sessions)
    {
        const struct session *s = list_entry(it, struct session, node);
        busy = busy || s->pending || !list_empty(&s->turns);
    }
    if (busy) /* its turns may still come back; the process ends */
        return;
    store_free(ag->store);
    list_for_each_safe(it, &ag->sessions)
    {
        struct session *s = list_entry(it, struct session, node);
        list_remove(&s->node);
        evlog_discard(&s->log);
        json_decref(s->cfg);
        free(s->owner);
        free(s->thread);
        free(s);
    }
    free(ag->set.state_dir);
    free(ag->set.default_runtime);
    free(ag->set.responses_workspace);
    free(ag->set.codex_version);
    free(ag->set.qwen_version);
    free(ag);
}

/* --- workspaces and secrets
 * --------------------------------------------------------------------------- */

char *agents_default_workspace(const struct agents *ag, const struct guard *g, const char *wanted)
{
    struct arena arena;
    struct guard_path gp;
    struct abx_error err;
    arena_init(&arena);
    bool fits = guard_check(g, wanted, strlen(wanted), NULL, OP_WRITE, &arena, &gp, &err) == 0;
    arena_done(&arena);
    if (fits)
        return strdup(wanted);
    struct buf path = BUF_INIT;
    const char *base = guard_root(g);
    buf_addf(&path, "%s/workspace", base && strcmp(base, "/") != 0 ? base : "");
    return buf_take(&path, NULL);
}

json_t *agents_tools_with_secrets(struct agents *ag, const char *ref, const json_t *tools,
                                  bool *ret_lost)
{
    *ret_lost = false;
    json_t *all = json_deep_copy(tools);
    autojson json_t *secrets = NULL;
    sqlite3_stmt *q = store_stmt(ag->store, "SELECT doc FROM mem.secrets WHERE ref = ?", "s", ref);
    if (q && sqlite3_step(q) == SQLITE_ROW)
        secrets = store_json(q, 0);
    if (q)
        sqlite3_reset(q);
    size_t i;
    json_t *tool;
    json_array_foreach(all, i, tool)
    {
        json_t *headers = json_object_get(json_object_get(tool, "transport"), "headers");
        const char *name;
        json_t *value;
        json_object_foreach(headers, name, value)
        {
            json_t *real = json_object_get(
                json_object_get(secrets, json_string_value(json_object_get(tool, "server_label"))),
                name);
            if (json_is_string(real))
                json_object_set(headers, name, real);
            else
                *ret_lost = true;
        }
    }
    return all;
}

int agents_check_bindings(struct agents *ag, const json_t *tools, struct ag_error *e)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const char *id = json_string_value(json_object_get(tool, "_credential"));
        if (!id)
            continue;
        sqlite3_stmt *q =
            store_stmt(ag->store, "SELECT doc FROM mem.credentials WHERE id = ?", "s", id);
        bool there = q && sqlite3_step(q) == SQLITE_ROW;
        autojson json_t *doc = there ? store_json(q, 0) : NULL;
        if (q)
            sqlite3_reset(q);
        if (!there)
            return ag_fail(e, 400, "agents.credential_unavailable", "vault_ids",
                           "vault_ids: the credential of this session is no longer there");
        double expires = json_number_value(json_object_get(doc, "_expires"));
        if (expires > 0 && expires <= wall_seconds())
            return ag_fail(e, 400, "agents.credential_expired", "vault_ids",
                           "vault_ids: credential '%s' has expired", id);
    }
    return 0;
}

char *agents_token(struct agents *ag, const json_t *tool)
{
    const char *id = json_string_value(json_object_get(tool, "_credential"));
    if (!id)
        return NULL;
    sqlite3_stmt *q =
        store_stmt(ag->store, "SELECT secret FROM mem.credentials WHERE id = ?", "s", id);
    char *token = q && sqlite3_step(q) == SQLITE_ROW ? strdup(store_text(q, 0)) : NULL;
    if (q)
        sqlite3_reset(q);
    return token;
}
