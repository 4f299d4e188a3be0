/* What sessions leave behind: turns, items, artifacts, traces, subagents. Read from the store on a
 * worker. */
#include "routes/agents/common.h"

#include "base/crypto.h"
#include "base/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TURN_COLS "status, created, started, completed, error, usage, session, items"
#define MAX_ROLLOUT (16 * MIB)
#define ENTRY_TEXT 65536

struct who {
    const char *agent, *session;
};

static json_t *turn_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    const struct who *w = data;
    autojson json_t *error = store_json(s, 5), *usage = store_json(s, 6);
    return label(turn_doc(store_text(s, 0), w->agent, w->session, store_text(s, 1),
                          sqlite3_column_double(s, 2), sqlite3_column_double(s, 3),
                          sqlite3_column_double(s, 4), error, usage),
                 "local_process", "usage_adapter_best_effort", NULL);
}

static json_t *item_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    json_t *o = store_json(s, 1);
    json_object_del(o, "_mcp");
    return label(o, "local_process", "redaction_best_effort", NULL);
}

/* The displayed agent of a session; heap. */
static char *agent_of(struct call *c, int64_t rid)
{
    sqlite3_stmt *s =
        store_stmt(c->ag->store, "SELECT agent_id FROM sessions WHERE rid = ?", "i", rid);
    char *name = s && sqlite3_step(s) == SQLITE_ROW ? strdup(store_text(s, 0)) : NULL;
    if (s)
        sqlite3_reset(s);
    return name;
}

static int turn_exists(struct call *c, int64_t rid, const char *turn)
{
    sqlite3_stmt *s = store_stmt(c->ag->store, "SELECT 1 FROM turns WHERE id = ? AND session = ?",
                                 "si", turn, rid);
    bool found = s && sqlite3_step(s) == SQLITE_ROW;
    if (s)
        sqlite3_reset(s);
    return found ? 0 : ag_unknown(c->e, "turn_id", "turn", turn);
}

/* Runs fn with the session found and the store locked. */
static int with_session(struct call *c,
                        int (*fn)(struct call *c, int64_t rid, const char *id, json_t **ret))
{
    const char *id = call_param(c, "id");
    int64_t rid;
    json_t *o = NULL;
    store_lock(c->ag->store);
    int rc = session_row(c, id, &rid);
    if (rc == 0)
        rc = fn(c, rid, id, &o);
    store_unlock(c->ag->store);
    return rc < 0 ? -1 : reply(c, o);
}

static int turns(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    static const struct list_sql sql = LIST_SQL(TURN_COLS, "turns", "session = ?1");
    struct page p;
    if (page_read(c, &p) < 0)
        return -1;
    autofree char *agent = agent_of(c, rid);
    struct who w = {agent ? agent : "", id};
    return list_rows(c, &p, &sql, ARG_I(rid), ARG_I(0), turn_of_row, &w, ret);
}

int agents_sessions_turns_list(struct call *c) { return with_session(c, turns); }

static int one_turn(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    const char *turn = call_param(c, "turn_id");
    autofree char *agent = agent_of(c, rid);
    struct who w = {agent ? agent : "", id};
    sqlite3_stmt *s =
        store_stmt(c->ag->store, "SELECT id, " TURN_COLS " FROM turns WHERE id = ? AND session = ?",
                   "si", turn, rid);
    if (s && sqlite3_step(s) == SQLITE_ROW)
        *ret = turn_of_row(c, s, &w);
    if (s)
        sqlite3_reset(s);
    return *ret ? 0 : ag_unknown(c->e, "turn_id", "turn", turn);
}

int agents_sessions_turns_get(struct call *c) { return with_session(c, one_turn); }

static int items(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    static const struct list_sql sql = LIST_SQL("doc", "items", "session = ?1");
    struct page p;
    if (page_read(c, &p) < 0)
        return -1;
    return list_rows(c, &p, &sql, ARG_I(rid), ARG_I(0), item_of_row, NULL, ret);
}

int agents_sessions_items_list(struct call *c) { return with_session(c, items); }

static int turn_items(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    static const struct list_sql sql = LIST_SQL("doc", "items", "session = ?1 AND turn = ?2");
    const char *turn = call_param(c, "turn_id");
    struct page p;
    if (turn_exists(c, rid, turn) < 0 || page_read(c, &p) < 0)
        return -1;
    return list_rows(c, &p, &sql, ARG_I(rid), ARG_S(turn), item_of_row, NULL, ret);
}

int agents_sessions_turns_items_list(struct call *c) { return with_session(c, turn_items); }

/* --- artifacts
 * ---------------------------------------------------------------------------------------- */

#define ARTIFACT_COLS "turn, environment, path, size, created"

static json_t *artifact_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    const char *session = data;
    return label(json_pack("{s:s, s:s, s:I, s:s, s:o, s:s, s:I, s:s}", "id", store_text(s, 0),
                           "object", "agent.session.artifact", "created_at",
                           (json_int_t)sqlite3_column_double(s, 5), "environment_id",
                           store_text(s, 2), "path", json_text(store_text(s, 3)), "session_id",
                           session, "size_bytes", (json_int_t)sqlite3_column_int64(s, 4), "turn_id",
                           store_text(s, 1)),
                 "local_state", "snapshot_copy reported_paths_only", NULL);
}

static int artifacts(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    static const struct list_sql all = LIST_SQL(ARTIFACT_COLS, "artifacts", "session = ?1");
    static const struct list_sql of =
        LIST_SQL(ARTIFACT_COLS, "artifacts", "session = ?1 AND environment = ?2");
    struct page p;
    const char *environment = req_query(c->req, "environment_id", NULL);
    if (page_read(c, &p) < 0)
        return -1;
    return list_rows(c, &p, environment ? &of : &all, ARG_I(rid), ARG_S(environment),
                     artifact_of_row, (void *)id, ret);
}

int agents_artifacts_list(struct call *c) { return with_session(c, artifacts); }

static int one_artifact(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    const char *artifact = call_param(c, "artifact_id");
    sqlite3_stmt *s = store_stmt(
        c->ag->store, "SELECT id, " ARTIFACT_COLS " FROM artifacts WHERE id = ? AND session = ?",
        "si", artifact, rid);
    if (s && sqlite3_step(s) == SQLITE_ROW)
        *ret = artifact_of_row(c, s, (void *)id);
    if (s)
        sqlite3_reset(s);
    return *ret ? 0 : ag_unknown(c->e, "artifact_id", "artifact", artifact);
}

int agents_artifacts_get(struct call *c) { return with_session(c, one_artifact); }

static char *artifact_file(struct call *c, const char *id)
{
    struct buf path = BUF_INIT;
    buf_addf(&path, "%s/artifacts/%s", c->ag->set.state_dir, id);
    return buf_take(&path, NULL);
}

static int drop_artifact(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    const char *artifact = call_param(c, "artifact_id");
    autojson json_t *row = NULL;
    if (one_artifact(c, rid, id, &row) < 0)
        return -1;
    if (store_exec(c->ag->store, c->err, "DELETE FROM artifacts WHERE id = ?", "s", artifact) < 0)
        return ag_store_fail(c->e, c->err);
    autofree char *file = artifact_file(c, artifact);
    if (file)
        (void)unlink(file); /* the row decides */
    *ret = label(json_pack("{s:s, s:s, s:b}", "id", artifact, "object",
                           "agent.session.artifact.deleted", "deleted", 1),
                 "local_state", "delete_removes_snapshot_only snapshot_copy",
                 json_pack("{s:s}", "deleted_scope", "snapshot"));
    return 0;
}

int agents_artifacts_delete(struct call *c) { return with_session(c, drop_artifact); }

int agents_artifacts_content(struct call *c)
{
    const char *id = call_param(c, "id"), *artifact = call_param(c, "artifact_id");
    int64_t rid;
    autojson json_t *row = NULL;
    store_lock(c->ag->store);
    int rc = session_row(c, id, &rid);
    if (rc == 0)
        rc = one_artifact(c, rid, id, &row);
    store_unlock(c->ag->store);
    if (rc < 0)
        return -1;
    autofree char *file = artifact_file(c, artifact);
    autoclose int fd = file ? open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return ag_unknown(c->e, "artifact_id", "artifact", artifact);
    const char *path = json_string_value(json_object_get(row, "path")), *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    autobuf struct buf disposition = BUF_INIT;
    buf_adds(&disposition, "attachment; filename=\"");
    bool plain = true;
    for (const char *p = name; *p; p++) {
        bool safe =
            (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x7f && *p != '"' && *p != '\\';
        buf_addc(&disposition, safe ? *p : '_');
        plain = plain && safe;
    }
    buf_addc(&disposition, '"');
    if (!plain) { /* RFC 6266 */
        buf_adds(&disposition, "; filename*=UTF-8''");
        for (const char *p = name; *p; p++)
            if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                strchr("-._~", *p))
                buf_addc(&disposition, *p);
            else
                buf_addf(&disposition, "%%%02X", (unsigned char)*p);
    }
    if (!buf_str(&disposition) || reply_headers(c) < 0 ||
        resp_header(c->resp, "Content-Disposition", disposition.data, c->err) < 0 ||
        resp_header(c->resp, "X-Content-Type-Options", "nosniff", c->err) < 0 ||
        resp_header(c->resp, "Cache-Control", "no-store", c->err) < 0)
        return -1;
    return resp_file(c->resp, "application/octet-stream", &fd, 0, st.st_size);
}

/* --- traces
 * -----------------------------------------------------------------------------------------------
 */

static json_t *nano(double t)
{
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)(t * 1e6) * 1000);
    return json_string(text);
}

static void trace_id(const char *turn, char id[32], char hex[SHA256_HEX])
{
    sha256_hex(turn, strlen(turn), hex);
    snprintf(id, 32, "trace_%.24s", hex);
}

static json_t *trace_of(const char *turn, const char *session, const char *status, double started,
                        double completed, int64_t items_n)
{
    char hex[SHA256_HEX], id[32], count[24];
    trace_id(turn, id, hex);
    snprintf(count, sizeof(count), "%lld", (long long)items_n);
    json_t *span = json_pack(
        "{s:s%, s:s%, s:s, s:i, s:o, s:o, s:[{s:s, s:{s:s}}, {s:s, s:{s:s}}], s:{s:i}}", "traceId",
        hex, (size_t)32, "spanId", hex + 32, (size_t)16, "name", "agent.turn", "kind", 1,
        "startTimeUnixNano", nano(started), "endTimeUnixNano", nano(completed), "attributes", "key",
        "turn.status", "value", "stringValue", status, "key", "turn.items", "value", "intValue",
        count, "status", "code", strcmp(status, "failed") == 0 ? 2 : 1);
    return label(
        json_pack("{s:s, s:s, s:I, s:s, s:{s:[{s:{s:[{s:s, s:{s:s}}]}, s:[{s:{s:s}, s:[o]}]}]}}",
                  "id", id, "object", "agent.session.trace", "created_at", (json_int_t)completed,
                  "session_id", session, "otlp", "resourceSpans", "resource", "attributes", "key",
                  "service.name", "value", "stringValue", "agent-sandbox-local", "scopeSpans",
                  "scope", "name", "agent-sandbox-agents", "spans", span),
        "local_state", "trace_from_journal_timing_only", NULL);
}

static int traces(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    struct page p;
    if (page_read(c, &p) < 0)
        return -1;
    autojson json_t *all = json_array();
    sqlite3_stmt *s = c->ag->set.traces
                          ? store_stmt(c->ag->store,
                                       "SELECT id, status, coalesce(started, created), completed, "
                                       "items FROM turns WHERE "
                                       "session = ? AND completed IS NOT NULL ORDER BY rid",
                                       "i", rid)
                          : NULL;
    while (s && sqlite3_step(s) == SQLITE_ROW)
        json_array_append_new(
            all, trace_of(store_text(s, 0), id, store_text(s, 1), sqlite3_column_double(s, 2),
                          sqlite3_column_double(s, 3), sqlite3_column_int64(s, 4)));
    if (s)
        sqlite3_reset(s);
    return list_array(c, &p, all, ret);
}

int agents_traces_list(struct call *c) { return with_session(c, traces); }

/* --- subagents
 * ---------------------------------------------------------------------------------------------- */

#define SUB_COLS "runtime, name, instructions, opened, closed"
#define SUB_LABEL "ids_from_cli_only"

static json_t *sub_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    const struct who *w = data;
    bool closed = sqlite3_column_type(s, 5) != SQLITE_NULL;
    json_t *name =
        sqlite3_column_type(s, 2) == SQLITE_NULL ? json_null() : json_text(store_text(s, 2));
    json_t *instructions = json_array();
    if (sqlite3_column_type(s, 3) != SQLITE_NULL)
        json_array_append_new(instructions, json_pack("{s:s, s:o}", "type", "input_text", "text",
                                                      json_text(store_text(s, 3))));
    return label(json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:o, s:s}", "id", store_text(s, 0),
                           "object", "agent.session.subagent", "session_id", w->session,
                           "parent_agent_id", w->agent, "name", name, "instructions", instructions,
                           "opened_at", (json_int_t)sqlite3_column_double(s, 4), "closed_at",
                           closed ? stamp_json(sqlite3_column_double(s, 5)) : json_null(), "status",
                           closed ? "closed" : "active"),
                 "local_process", SUB_LABEL, NULL);
}

static int subagents(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    static const struct list_sql sql = LIST_SQL(SUB_COLS, "subagents", "session = ?1");
    struct page p;
    if (page_read(c, &p) < 0)
        return -1;
    autofree char *agent = agent_of(c, rid);
    struct who w = {agent ? agent : "", id};
    return list_rows(c, &p, &sql, ARG_I(rid), ARG_I(0), sub_of_row, &w, ret);
}

int agents_subagents_list(struct call *c) { return with_session(c, subagents); }

static int one_subagent(struct call *c, int64_t rid, const char *id, json_t **ret)
{
    const char *sub = call_param(c, "subagent_id");
    autofree char *agent = agent_of(c, rid);
    struct who w = {agent ? agent : "", id};
    sqlite3_stmt *s = store_stmt(
        c->ag->store, "SELECT id, " SUB_COLS " FROM subagents WHERE id = ? AND session = ?", "si",
        sub, rid);
    if (s && sqlite3_step(s) == SQLITE_ROW)
        *ret = sub_of_row(c, s, &w);
    if (s)
        sqlite3_reset(s);
    return *ret ? 0 : ag_unknown(c->e, "subagent_id", "subagent", sub);
}

int agents_subagents_get(struct call *c) { return with_session(c, one_subagent); }

/* What a subagent did: turns and items in order, read from where its CLI keeps it. */
struct story {
    json_t *turns, *items; /* bare objects */
    const char *sub, *session, *label;
    char turn[160];
    double at;
    size_t n_items, n_turns;
    bool ended; /* the next item begins a turn */
};

static json_t *clipped(const char *text)
{
    size_t n = strlen(text);
    if (n <= ENTRY_TEXT)
        return json_text(text);
    n = ENTRY_TEXT;
    while (n && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    return json_bytes(text, n);
}

static void story_turn(struct story *st, const char *id)
{
    st->n_turns++;
    if (id)
        snprintf(st->turn, sizeof(st->turn), "%.150s", id);
    else
        snprintf(st->turn, sizeof(st->turn), "turn_%zu_%.100s", st->n_turns, st->sub);
    json_array_append_new(
        st->turns, json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:n, s:s, s:n}", "id",
                             st->turn, "object", "agent.session.turn", "agent_id", st->sub,
                             "session_id", st->session, "status", "completed", "created_at",
                             stamp_json(st->at), "started_at", stamp_json(st->at), "completed_at",
                             stamp_json(st->at), "error", "subagent_id", st->sub, "usage"));
}

static json_t *story_item(struct story *st, const char *type, const char *status)
{
    if (!st->n_turns || st->ended)
        story_turn(st, NULL);
    st->ended = false;
    json_object_set_new(json_array_get(st->turns, json_array_size(st->turns) - 1), "completed_at",
                        stamp_json(st->at));
    char id[256];
    snprintf(id, sizeof(id), "item_%zu_%s", ++st->n_items, st->turn);
    json_t *o = json_pack("{s:s, s:s, s:s, s:s}", "id", id, "turn_id", st->turn, "type", type,
                          "status", status);
    json_array_append_new(st->items, o);
    return o;
}

static void story_message(struct story *st, const char *role, const char *text)
{
    json_t *o = story_item(st, "message", "completed");
    json_object_set_new(o, "role", json_string(role));
    json_object_set_new(o, "content",
                        json_pack("[{s:s, s:o}]", "type",
                                  strcmp(role, "user") == 0 ? "input_text" : "output_text", "text",
                                  clipped(text)));
}

static void story_reasoning(struct story *st, const char *text)
{
    json_object_set_new(story_item(st, "reasoning", "completed"), "summary",
                        json_pack("[{s:s, s:o}]", "type", "summary_text", "text", clipped(text)));
}

static void story_call(struct story *st, const char *call, const char *name, json_t *arguments)
{
    json_t *o = story_item(st, "tool_call", "in_progress");
    json_object_set_new(o, "tool_name", json_text(name));
    json_object_set_new(o, "arguments", arguments);
    json_object_set_new(o, "output", json_null());
    json_object_set_new(o, "_call", json_text(call));
}

static void story_result(struct story *st, const char *call, const char *output, bool failed)
{
    size_t i;
    json_t *o;
    json_array_foreach(st->items, i, o)
    {
        const char *id = json_string_value(json_object_get(o, "_call"));
        if (id && strcmp(id, call) == 0) {
            json_object_set_new(o, "status", json_string(failed ? "failed" : "completed"));
            json_object_set_new(o, "output", clipped(output));
        }
    }
}

static const char *str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* Texts of a list of {text}. */
static char *joined(const json_t *list)
{
    struct buf out = BUF_INIT;
    size_t i;
    json_t *v;
    if (json_is_string(list))
        buf_adds(&out, json_string_value(list));
    json_array_foreach((json_t *)list, i, v)
    {
        const char *text = json_is_string(v) ? json_string_value(v) : str(v, "text");
        if (text)
            buf_addf(&out, "%s%s", out.len ? "\n" : "", text);
    }
    return buf_take(&out, NULL);
}

static void rollout_row(struct story *st, const json_t *row)
{
    const char *type = str(row, "type");
    const json_t *p = json_object_get(row, "payload");
    const char *kind = str(p, "type");
    if (!type)
        return;
    if (strcmp(type, "turn_context") == 0 ||
        (strcmp(type, "event_msg") == 0 && kind &&
         (strcmp(kind, "task_started") == 0 || strcmp(kind, "turn_started") == 0))) {
        const char *id = str(p, "turn_id");
        if (!id || strcmp(id, st->turn) != 0) /* both rows of one turn name it */
            story_turn(st, id);
    } else if (strcmp(type, "response_item") == 0 && kind) {
        autofree char *text = NULL;
        if (strcmp(kind, "message") == 0) {
            const char *role = str(p, "role");
            text = joined(json_object_get(p, "content"));
            if (text && role && (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0))
                story_message(st, role, text);
        } else if (strcmp(kind, "reasoning") == 0) {
            text = joined(json_object_get(p, "summary"));
            if (text)
                story_reasoning(st, text);
        } else if (strcmp(kind, "function_call") == 0) {
            const char *raw = str(p, "arguments");
            json_t *arguments = raw ? json_loads(raw, JSON_DECODE_ANY, NULL) : NULL;
            story_call(st, str(p, "call_id") ? str(p, "call_id") : "",
                       str(p, "name") ? str(p, "name") : "",
                       arguments ? arguments : json_text(raw ? raw : ""));
        } else if (strcmp(kind, "function_call_output") == 0) {
            const json_t *out = json_object_get(p, "output");
            text = json_is_string(out) ? strdup(json_string_value(out))
                                       : json_dumps(out, JSON_ENCODE_ANY);
            story_result(st, str(p, "call_id") ? str(p, "call_id") : "", text ? text : "", false);
        }
    }
}

static bool good_id(const char *id)
{
    size_t n = strlen(id);
    if (n < 6 || n > 96 ||
        !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", id[0]))
        return false;
    return strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-") == n;
}

/* Finds rollout-*-ID.jsonl below dir; opens it. */
static int find_rollout(int dir, const char *id, int depth)
{
    int found = -1;
    DIR *d = fdopendir(dir);
    if (!d) {
        close(dir);
        return -1;
    }
    autobuf struct buf end = BUF_INIT;
    buf_addf(&end, "-%s.jsonl", id);
    struct dirent *e;
    while (found < 0 && buf_str(&end) && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.')
            continue;
        if (strncmp(e->d_name, "rollout-", 8) == 0 && n > end.len &&
            strcmp(e->d_name + n - end.len, end.data) == 0) {
            found = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        } else if (depth > 0 && (e->d_type == DT_DIR || e->d_type == DT_UNKNOWN)) {
            int sub = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (sub >= 0)
                found = find_rollout(sub, id, depth - 1);
        }
    }
    closedir(d);
    return found;
}

static void read_rollout(struct call *c, struct story *st)
{
    if (!good_id(st->sub))
        return;
    /* Snapshots of settings of the loop: both are fixed after start for all practical purposes. */
    const char *home = getenv("CODEX_HOME"), *user = getenv("HOME");
    autobuf struct buf path = BUF_INIT;
    if (home && *home)
        buf_addf(&path, "%s/sessions", home);
    else
        buf_addf(&path, "%s/.codex/sessions", user ? user : "");
    int dir = buf_str(&path) ? open(path.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    autoclose int fd = dir >= 0 ? find_rollout(dir, st->sub, 6) : -1;
    struct stat info;
    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return;
    st->at = (double)info.st_mtim.tv_sec;
    size_t want = info.st_size > MAX_ROLLOUT ? MAX_ROLLOUT : (size_t)info.st_size;
    autofree char *text = malloc(want + 1);
    size_t have = 0;
    ssize_t n;
    while (text && have < want && (n = read(fd, text + have, want - have)) > 0)
        have += (size_t)n;
    if (!text)
        return;
    text[have] = '\0';
    for (char *line = text, *end; line < text + have; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + have - line));
        if (!end)
            end = text + have;
        autojson json_t *row = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (row)
            rollout_row(st, row);
    }
}

static void stream_entry(struct story *st, const json_t *message)
{
    size_t i;
    json_t *b;
    bool assistant = str(message, "role") && strcmp(str(message, "role"), "assistant") == 0;
    json_array_foreach(json_object_get(message, "content"), i, b)
    {
        const char *kind = str(b, "type");
        if (!kind)
            continue;
        if (strcmp(kind, "text") == 0 && str(b, "text")) {
            story_message(st, assistant ? "assistant" : "user", str(b, "text"));
            st->ended = assistant; /* its answer ends a turn */
        } else if (strcmp(kind, "thinking") == 0 && str(b, "thinking"))
            story_reasoning(st, str(b, "thinking"));
        else if (strcmp(kind, "tool_use") == 0)
            story_call(st, str(b, "id") ? str(b, "id") : "", str(b, "name") ? str(b, "name") : "",
                       json_deep_copy(json_object_get(b, "input") ? json_object_get(b, "input")
                                                                  : json_null()));
        else if (strcmp(kind, "tool_result") == 0) {
            autofree char *text = joined(json_object_get(b, "content"));
            story_result(st, str(b, "tool_use_id") ? str(b, "tool_use_id") : "", text ? text : "",
                         json_is_true(json_object_get(b, "is_error")));
        }
    }
}

enum what { SUB_TURNS, SUB_TURN, SUB_ITEMS, SUB_TURN_ITEMS };

static int story(struct call *c, enum what what)
{
    const char *id = call_param(c, "id"), *sub = call_param(c, "subagent_id"),
               *turn = call_param(c, "turn_id");
    int64_t rid;
    autojson json_t *row = NULL, *all_turns = json_array(), *all_items = json_array();
    struct story st = {.turns = all_turns, .items = all_items, .sub = sub, .session = id};
    char runtime[32] = "";
    store_lock(c->ag->store);
    int rc = session_row(c, id, &rid);
    if (rc == 0)
        rc = one_subagent(c, rid, id, &row);
    sqlite3_stmt *s =
        rc == 0
            ? store_stmt(c->ag->store, "SELECT runtime FROM subagents WHERE id = ? AND session = ?",
                         "si", sub, rid)
            : NULL;
    if (s && sqlite3_step(s) == SQLITE_ROW)
        snprintf(runtime, sizeof(runtime), "%s", store_text(s, 0));
    if (s)
        sqlite3_reset(s);
    const struct adapter *ad = adapter_find(runtime);
    s = rc == 0
            ? store_stmt(
                  c->ag->store,
                  "SELECT doc, at FROM subentries WHERE session = ? AND subagent = ? ORDER BY rid",
                  "is", rid, sub)
            : NULL;
    while (s && sqlite3_step(s) == SQLITE_ROW) {
        autojson json_t *entry = store_json(s, 0);
        st.at = sqlite3_column_double(s, 1);
        stream_entry(&st, entry);
    }
    if (s)
        sqlite3_reset(s);
    store_unlock(c->ag->store);
    if (rc < 0)
        return -1;
    if (ad == &adapter_codex)
        read_rollout(c, &st);

    char differences[96];
    snprintf(differences, sizeof(differences), SUB_LABEL " %s", ad ? ad->subagent_source : "");
    size_t i;
    json_t *o;
    json_array_foreach(all_turns, i, o) label(o, "local_process", differences, NULL);
    json_array_foreach(all_items, i, o)
    {
        json_object_del(o, "_call");
        label(o, "local_process", differences, NULL);
    }
    json_t *list = NULL, *match = NULL;
    json_array_foreach(all_turns, i, o) if (turn[0] && strcmp(turn, str(o, "id")) == 0) match = o;
    if ((what == SUB_TURN || what == SUB_TURN_ITEMS) && !match)
        return ag_unknown(c->e, "turn_id", "turn", turn);
    if (what == SUB_TURN)
        return reply(c, json_incref(match));
    struct page p;
    if (page_read(c, &p) < 0)
        return -1;
    if (what == SUB_TURNS) {
        rc = list_array(c, &p, all_turns, &list);
    } else if (what == SUB_ITEMS) {
        rc = list_array(c, &p, all_items, &list);
    } else {
        autojson json_t *some = json_array();
        json_array_foreach(all_items, i, o) if (strcmp(turn, str(o, "turn_id")) == 0)
            json_array_append(some, o);
        rc = list_array(c, &p, some, &list);
    }
    return rc < 0 ? -1 : reply(c, list);
}

int agents_subagents_items_list(struct call *c) { return story(c, SUB_ITEMS); }

int agents_subagents_turns_list(struct call *c) { return story(c, SUB_TURNS); }

int agents_subagents_turns_get(struct call *c) { return story(c, SUB_TURN); }

int agents_subagents_turns_items_list(struct call *c) { return story(c, SUB_TURN_ITEMS); }
