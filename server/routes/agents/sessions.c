/* Sessions: create, list, get, update, delete, and the input side of their events. A request that
 * writes checks its body on the loop, writes on a worker, and starts what it asked for when that is
 * on disk. */
#include "routes/agents/common.h"

#include "base/json.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

#define MAX_PROMPT_BYTES (256 * MIB) /* of all waiting turns */

struct create {
    struct job j;
    const struct adapter *ad;
    struct agent_spec spec;
    json_t *metadata;
    struct buf prompt;
    const char *key;
    char hash[65], id[AG_ID_MAX], turn[AG_ID_MAX];
    json_t *cfg;
    int64_t rid;
    char *replay; /* id of the session that the key made before */
    bool full;
    json_t *doc; /* its answer */
};

static json_t *labelled_session(json_t *o)
{
    return label(o, "local_process", LABEL_SESSION, NULL);
}

static int no_nul(struct call *c, const struct buf *text, const char *param)
{
    if (text->len && memchr(text->data, 0, text->len))
        return ag_invalid(c->e, param, "%s: no NUL in a prompt", param);
    return 0;
}

/* Scalars become text; as the reference shows them. */
static json_t *loose_metadata(struct call *c, const json_t *v)
{
    json_t *out = json_object();
    const char *key;
    json_t *value;
    if (v && !json_is_null(v) && !json_is_object(v)) {
        ag_invalid(c->e, NULL, "metadata: an object");
        goto bad;
    }
    if (json_object_size(v) > 256) {
        ag_invalid(c->e, NULL, "metadata: at most 256 pairs");
        goto bad;
    }
    json_object_foreach((json_t *)v, key, value)
    {
        char text[64];
        if (json_is_string(value)) {
            json_object_set(out, key, value);
            continue;
        }
        if (json_is_boolean(value)) {
            snprintf(text, sizeof(text), "%s", json_is_true(value) ? "True" : "False");
        } else if (json_is_integer(value)) {
            snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
        } else if (json_is_real(value)) {
            text[num_double(json_real_value(value), text)] = '\0';
        } else {
            ag_invalid(c->e, NULL, "metadata: values are strings, numbers or booleans");
            goto bad;
        }
        json_object_set_new(out, key, json_string(text));
    }
    return out;
bad:
    json_decref(out);
    return NULL;
}

static void create_free(struct create *k)
{
    agent_spec_done(&k->spec);
    json_decref(k->metadata);
    buf_done(&k->prompt);
    json_decref(k->cfg);
    json_decref(k->doc);
    free(k->replay);
    free(k);
}

/* The wire agent of a session. */
static json_t *wire_agent(const struct agent_spec *s, const struct adapter *ad,
                          const char *definition)
{
    const char *name = json_string_value(s->name);
    json_t *o = json_pack("{s:s}", "id", definition ? definition : name && *name ? name : ad->name);
    if (definition)
        json_object_set(o, "name", s->name ? s->name : json_null());
    else
        json_object_set_new(o, "name", json_string(name && *name ? name : ad->name));
    const char *model = json_string_value(s->model);
    json_object_set_new(
        o, "model", json_string(model && (definition || !ag_is_runtime(model)) ? model : ad->name));
    json_object_set(o, "instructions", s->instructions ? s->instructions : json_null());
    json_object_set_new(o, "multi_agent", json_pack("{s:b}", "enabled", 0));
    json_object_set_new(
        o, "reasoning",
        json_pack("{s:O, s:n}", "effort", s->effort ? s->effort : json_null(), "summary"));
    json_object_set_new(o, "service_tier", json_string("default"));
    json_object_set_new(
        o, "text", json_pack("{s:{s:s}, s:s}", "format", "type", "text", "verbosity", "medium"));
    json_object_set_new(o, "tools", s->tools ? json_deep_copy(s->tools) : json_array());
    return o;
}

static int from_definition(struct create *k, const char *id)
{
    struct call *c = &k->j.c;
    autojson json_t *doc = NULL;
    if (object_get(c, "definition", id, "agent_id", "agent", &doc) < 0)
        return -1;
    k->ad = adapter_find(json_string_value(json_object_get(doc, "_runtime")));
    k->spec.model = json_incref(json_object_get(doc, "model"));
    k->spec.name = json_incref(json_object_get(doc, "name"));
    k->spec.instructions = json_incref(json_object_get(doc, "instructions"));
    k->spec.effort = json_incref(json_object_get(json_object_get(doc, "reasoning"), "effort"));
    k->spec.tools = json_deep_copy(json_object_get(doc, "tools"));
    bool lost = false;
    autojson json_t *real = agents_tools_with_secrets(c->ag, id, k->spec.tools, &lost);
    if (lost)
        return ag_fail(
            c->e, 400, "agents.credential_unavailable", "agent_id",
            "agent_id: header values of its tools did not survive the restart; update the agent");
    k->spec.secrets = json_object();
    size_t i;
    json_t *tool;
    json_array_foreach(real, i, tool)
    {
        json_t *headers = json_object_get(json_object_get(tool, "transport"), "headers");
        if (json_object_size(headers))
            json_object_set(k->spec.secrets,
                            json_string_value(json_object_get(tool, "server_label")), headers);
    }
    return k->ad ? 0 : ag_refuse_adapter(c->e, "unknown", false);
}

static int build_cfg(struct create *k)
{
    struct call *c = &k->j.c;
    const json_t *body = call_body(c), *env = json_object_get(body, "environment");
    const char *definition = json_string_value(json_object_get(body, "agent_id"));
    if (definition && from_definition(k, definition) < 0)
        return -1;
    const char *env_id = json_string_value(json_object_get(env, "id"));
    const json_t *dir = json_object_get(env, "workspace_directory");
    autofree char *workspace = NULL;
    json_t *vaults = json_array();
    k->cfg = json_pack("{s:o}", "vault_ids", vaults);
    if (read_vaults(c, json_object_get(body, "vault_ids"), vaults) < 0)
        return -1;
    if (env_id) {
        autojson json_t *stored = NULL;
        if (object_get(c, "environment", env_id, "environment.id", "environment", &stored) < 0)
            return -1;
        workspace = strdup(json_string_value(json_object_get(stored, "workspace_directory")));
        if (json_is_string(dir) && workspace && strcmp(json_string_value(dir), workspace) != 0)
            return ag_invalid(c->e, "environment.workspace_directory",
                              "environment.workspace_directory: not the one of this environment");
        json_object_set(k->cfg, "env", json_object_get(stored, "_env"));
        size_t i;
        json_t *v, *seen;
        json_array_foreach(json_object_get(stored, "vault_ids"), i, v)
        {
            bool have = false;
            size_t n;
            json_array_foreach(vaults, n, seen) have = have || json_equal(seen, v);
            if (!have)
                json_array_append(vaults, v);
        }
    } else if (json_is_string(dir)) {
        workspace = strdup(json_string_value(dir));
    } else {
        workspace = agents_default_workspace(c->ag, req_guard(c->req), "/workspace");
    }
    if (!workspace)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    if (check_workspace(c, workspace, strlen(workspace), NULL, false) < 0)
        return -1;
    json_t *agent = wire_agent(&k->spec, k->ad, definition);
    json_object_set(k->cfg, "agent_id", json_object_get(agent, "id"));
    json_object_set_new(k->cfg, "agent", agent);
    json_object_set_new(k->cfg, "environment",
                        json_pack("{s:s, s:s, s:[], s:s, s:s}", "type", "self_hosted", "id",
                                  env_id ? env_id : "env_agent_sandbox", "capability_directories",
                                  "remote_url", "", "workspace_directory", workspace));
    json_object_set_new(k->cfg, "workspace", json_string(workspace));
    json_object_set_new(k->cfg, "env_id", env_id ? json_string(env_id) : json_null());
    json_object_set(k->cfg, "metadata", k->metadata);
    json_object_set_new(k->cfg, "runtime", json_string(k->ad->name));
    const char *model = json_string_value(k->spec.model);
    json_object_set_new(k->cfg, "cli_model",
                        model && !ag_is_runtime(model) ? json_string(model) : json_null());
    json_object_set(k->cfg, "effort", k->spec.effort ? k->spec.effort : json_null());
    json_object_set(k->cfg, "instructions",
                    k->spec.instructions ? k->spec.instructions : json_null());
    json_t *tools = k->spec.tools ? json_deep_copy(k->spec.tools) : json_array();
    json_object_set_new(k->cfg, "tools", tools);
    return bind_tools(c, tools, vaults);
}

static int insert_turn(struct call *c, const char *id, int64_t session, const char *prompt,
                       size_t len)
{
    struct abx_error err;
    /* What is kept of a prompt is clean: it may hold a token that somebody pasted. */
    autobuf struct buf clean = BUF_INIT;
    redact_text(NULL, prompt, len, &clean);
    if (store_exec(
            c->ag->store, &err,
            "INSERT INTO turns(id, session, status, created, prompt) VALUES(?,?,'queued',?,?)",
            "sidb", id, session, wall_seconds(), clean.data ? clean.data : "", clean.len) < 0)
        return ag_store_fail(c->e, &err);
    return 0;
}

static int insert_session(struct create *k)
{
    struct call *c = &k->j.c;
    struct store *st = c->ag->store;
    autobuf struct buf scope = BUF_INIT;
    buf_addf(&scope, "sessions:%s", call_owner(c));
    if (k->key && buf_str(&scope)) {
        int found = key_find(c, scope.data, k->key, k->hash, &k->replay);
        if (found)
            return found < 0 ? -1 : 0;
    }
    if (build_cfg(k) < 0)
        return -1;
    if (k->prompt.len) {
        if (agents_check_bindings(c->ag, json_object_get(k->cfg, "tools"), c->e) < 0)
            return -1;
    }
    double now = wall_seconds();
    k->full = agents_full(c->ag);
    agents_new_id("agsess_", k->id);
    if (store_begin(st, c->err) < 0)
        return ag_store_fail(c->e, c->err);
    if (store_exec(st, c->err,
                   "INSERT INTO sessions(id, owner, hidden, agent_id, cfg, created, active) "
                   "VALUES(?,?,0,?,?,?,?)",
                   "sssjdd", k->id, call_owner(c),
                   json_string_value(json_object_get(k->cfg, "agent_id")), k->cfg, now, now) < 0)
        return ag_store_fail(c->e, c->err);
    sqlite3_stmt *s = store_stmt(st, "SELECT last_insert_rowid()", "");
    if (s && sqlite3_step(s) == SQLITE_ROW)
        k->rid = sqlite3_column_int64(s, 0);
    if (s)
        sqlite3_reset(s);
    if (secrets_store(c, k->id, k->spec.secrets) < 0)
        return -1;
    if (k->prompt.len) {
        agents_new_id("turn_", k->turn);
        if (insert_turn(c, k->turn, k->rid, k->prompt.data, k->prompt.len) < 0)
            return -1;
    }
    if (k->key && scope.data && key_store(c, scope.data, k->key, k->hash, k->id, 1000) < 0)
        return -1;
    return store_commit(st, c->err) < 0 ? ag_store_fail(c->e, c->err) : 0;
}

static void create_work(struct job *j)
{
    struct create *k = (struct create *)j;
    store_lock(j->c.ag->store);
    j->rc = insert_session(k);
    store_unlock(j->c.ag->store);
}

static void create_done(struct job *j)
{
    struct create *k = (struct create *)j;
    struct call *c = &j->c;
    int rc = j->rc;
    if (rc == 0 && k->replay) {
        struct session *s = session_find(c->ag, k->replay, call_owner(c), false);
        rc = s ? reply(c, labelled_session(session_json(s)))
               : ag_unknown(c->e, "session_id", "session", k->replay);
    } else if (rc == 0) {
        session_evict(c->ag, k->full);
        struct session *s =
            session_add(c->ag, k->id, call_owner(c), false, k->rid, k->cfg, wall_seconds());
        k->cfg = NULL;
        if (!s) {
            rc = abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
        } else {
            hooks_fire(c->ag->hooks, s, "agent.session.created");
            struct turn *t =
                k->prompt.len ? turn_new(s, k->turn, k->prompt.data, k->prompt.len) : NULL;
            if (t)
                turn_submit(t);
            rc = reply(c, labelled_session(session_json(s)));
        }
    }
    job_finish(j, rc);
    create_free(k);
}

int agents_sessions_create(struct call *c)
{
    const json_t *body = call_body(c), *agent = json_object_get(body, "agent");
    struct create *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(&k->j, c);
    const json_t *env = json_object_get(body, "environment"), *v;
    v = json_object_get(body, "tools");
    if (v && !json_is_null(v)) {
        ag_invalid(c->e, "tools", "tools: they belong inside agent");
        goto bad;
    }
    if (read_key(c, &k->key) < 0)
        goto bad;
    if (k->key)
        body_hash(body, k->hash);
    v = json_object_get(body, "agent_id");
    if (v && !json_is_null(v)) {
        if (!json_is_string(v) || (agent && !json_is_null(agent))) {
            ag_invalid(c->e, "agent_id",
                       "agent_id: the id of a stored agent, without agent beside it");
            goto bad;
        }
    }
    if (agent && !json_is_null(agent) && !json_is_object(agent)) {
        ag_invalid(c->e, "agent", "agent: an object");
        goto bad;
    }
    agent = json_is_object(agent) ? agent : NULL;
    if (!json_is_string(v)) {
        autojson json_t *merged = agent ? json_copy((json_t *)agent) : json_object();
        const json_t *top = json_object_get(body, "model");
        const json_t *own = json_object_get(merged, "model");
        bool use_top = !own && top && !json_is_null(top) &&
                       (!json_is_string(top) || json_string_length(top)); /* "" is none */
        const char *name = json_string_value(own ? own : use_top ? top : NULL);
        if (select_runtime(c, body, agent, name, &k->ad) < 0)
            goto bad;
        if (use_top) {
            autojson json_t *alone = json_pack("{s:O}", "model", top);
            struct agent_spec spec = {0};
            int rc = agent_read(c->e, alone, "", k->ad, &spec);
            agent_spec_done(&spec);
            if (rc < 0)
                goto bad;
            json_object_set(merged, "model", (json_t *)top);
        }
        if (agent_read(c->e, merged, "agent.", k->ad, &k->spec) < 0)
            goto bad;
    }
    if (env && !json_is_null(env)) {
        if (!json_is_object(env)) {
            ag_invalid(c->e, NULL, "environment: an object");
            goto bad;
        }
        const json_t *type = json_object_get(env, "type"), *id = json_object_get(env, "id");
        const json_t *dir = json_object_get(env, "workspace_directory");
        const char *kind = json_string_value(type);
        if (type && !json_is_null(type) &&
            (!kind || (strcmp(kind, "self_hosted") != 0 && strcmp(kind, "none") != 0))) {
            ag_invalid(c->e, NULL, "environment.type: self_hosted or none");
            goto bad;
        }
        if (id && !json_is_null(id) && !json_is_string(id)) {
            ag_invalid(c->e, "environment.id", "environment.id: the id of a stored environment");
            goto bad;
        }
        if (dir && !json_is_null(dir)) {
            if (!json_is_string(dir)) {
                ag_invalid(c->e, NULL, "environment.workspace_directory: a string");
                goto bad;
            }
            const char *p = json_string_value(dir);
            if (*p != '/' || strlen(p) != json_string_length(dir)) {
                ag_invalid(c->e, NULL,
                           "environment.workspace_directory: an absolute path without ..");
                goto bad;
            }
        }
    }
    v = json_object_get(body, "vault_ids");
    if (v && !json_is_null(v) && !json_is_array(v)) {
        ag_invalid(c->e, "vault_ids", "vault_ids: a list of vault ids");
        goto bad;
    }
    k->metadata = loose_metadata(c, json_object_get(body, "metadata"));
    if (!k->metadata)
        goto bad;
    input_text(json_object_get(body, "input"), &k->prompt);
    if (no_nul(c, &k->prompt, "input") < 0)
        goto bad;
    if (k->prompt.len && c->ag->prompt_bytes + k->prompt.len > MAX_PROMPT_BYTES) {
        ag_fail(c->e, 429, "agents.limit_exceeded", "input",
                "input: too many prompts wait already");
        goto bad;
    }
    k->j.c.e = &k->j.e;
    int rc = job_run(&k->j, create_work, create_done);
    if (rc == REQ_PENDING)
        return rc;
    *c->err = k->j.err;
bad:
    create_free(k);
    return -1;
}

/* --- reading
 * ----------------------------------------------------------------------------------------- */

/* Columns: created, active, cfg, busy, and the rid for its usage. */
#define SESSION_COLS                                                                               \
    "created, active, cfg, EXISTS(SELECT 1 FROM turns t WHERE t.session = sessions.rid AND "       \
    "t.status IN ('queued', "                                                                      \
    "'in_progress')), rid"

static json_t *session_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    struct ag_usage sum = {0};
    sqlite3_stmt *q =
        store_stmt(c->ag->store, "SELECT usage FROM turns WHERE session = ? AND usage IS NOT NULL",
                   "i", sqlite3_column_int64(s, 5));
    while (q && sqlite3_step(q) == SQLITE_ROW) {
        struct ag_usage one;
        autojson json_t *u = store_json(q, 0);
        ag_usage_read(u, &one);
        ag_usage_add(&sum, &one);
    }
    if (q)
        sqlite3_reset(q);
    autojson json_t *cfg = store_json(s, 3);
    return labelled_session(session_doc(store_text(s, 0), sqlite3_column_double(s, 1),
                                        sqlite3_column_double(s, 2), cfg,
                                        sqlite3_column_int(s, 4) != 0, &sum));
}

int agents_sessions_list(struct call *c)
{
    static const struct list_sql all =
        LIST_SQL(SESSION_COLS, "sessions", "owner = ?1 AND hidden = 0");
    static const struct list_sql of_agent =
        LIST_SQL(SESSION_COLS, "sessions", "owner = ?1 AND hidden = 0 AND agent_id = ?2");
    const char *agent = req_query(c->req, "agent_id", NULL);
    return reply_owned(c, agent ? &of_agent : &all, ARG_S(agent), session_of_row);
}

int agents_sessions_get(struct call *c)
{
    json_t *o = NULL;
    const char *id = call_param(c, "id");
    store_lock(c->ag->store);
    sqlite3_stmt *s = store_stmt(c->ag->store,
                                 "SELECT id, " SESSION_COLS
                                 " FROM sessions WHERE id = ? AND owner = ? AND hidden = 0",
                                 "ss", id, call_owner(c));
    if (s && sqlite3_step(s) == SQLITE_ROW)
        o = session_of_row(c, s, NULL);
    if (s)
        sqlite3_reset(s);
    store_unlock(c->ag->store);
    return o ? reply(c, o) : ag_unknown(c->e, "session_id", "session", id);
}

static void synced(void *data)
{
    struct job *j = data;
    job_finish(j, 0);
    free(j);
}

int agents_sessions_update(struct call *c)
{
    const char *id = call_param(c, "id");
    struct session *s = session_find(c->ag, id, call_owner(c), false);
    if (!s)
        return ag_unknown(c->e, "session_id", "session", id);
    const json_t *body = call_body(c), *v = json_object_get(body, "metadata");
    json_t *metadata = NULL;
    if (only_keys(c->e, body, "", "metadata") < 0)
        return -1;
    if (!v)
        return reply(c, labelled_session(session_json(s)));
    if (read_metadata(c->e, v, "metadata", &metadata) < 0)
        return -1;
    /* Frames and workers may hold the old value. */
    json_t *cfg = json_copy(s->cfg);
    json_object_set_new(cfg, "metadata", metadata);
    json_decref(s->cfg);
    s->cfg = cfg;
    store_post(c->ag->store, "UPDATE sessions SET cfg = ? WHERE rid = ?", "ji", cfg, s->rid);
    struct job *j = calloc(1, sizeof(*j));
    if (!j || reply(c, labelled_session(session_json(s))) < 0) {
        free(j);
        return -1;
    }
    job_init(j, c);
    store_sync(c->ag->store, synced, j);
    return REQ_PENDING;
}

int agents_sessions_delete(struct call *c)
{
    const char *id = call_param(c, "id");
    struct session *s = session_find(c->ag, id, call_owner(c), false);
    if (!s)
        return ag_unknown(c->e, "session_id", "session", id);
    struct job *j = calloc(1, sizeof(*j));
    json_t *o =
        json_pack("{s:s, s:s, s:b}", "id", id, "object", "agent.session.deleted", "deleted", 1);
    if (!j || reply(c, label(o, "local_process", LABEL_SESSION, NULL)) < 0) {
        free(j);
        return -1;
    }
    job_init(j, c);
    session_delete(s, synced, j);
    return REQ_PENDING;
}

/* --- input
 * -------------------------------------------------------------------------------------------- */

struct submit {
    struct job j;
    char session[AG_ID_MAX], turn[AG_ID_MAX], hash[65];
    int64_t rid;
    json_t *tools;
    struct buf prompt;
    bool cancel, full; /* full: as many turns wait as may */
    const char *key;
    char *replay;
};

static void submit_free(struct submit *k)
{
    json_decref(k->tools);
    buf_done(&k->prompt);
    free(k->replay);
    free(k);
}

static int submit_rows(struct submit *k)
{
    struct call *c = &k->j.c;
    autobuf struct buf scope = BUF_INIT;
    buf_addf(&scope, "events:%s", k->session);
    if (k->key && buf_str(&scope)) {
        int found = key_find(c, scope.data, k->key, k->hash, &k->replay);
        if (found)
            return found < 0 ? -1 : 0;
    }
    if (k->prompt.len && k->full)
        return ag_invalid(c->e, NULL, "too many queued turns for this session");
    if (k->prompt.len) {
        bool lost;
        autojson json_t *tools = agents_tools_with_secrets(c->ag, k->session, k->tools, &lost);
        if (lost)
            return ag_fail(c->e, 400, "agents.credential_unavailable", "vault_ids",
                           "header values of the session's tools did not survive the restart");
        if (agents_check_bindings(c->ag, tools, c->e) < 0)
            return -1;
    }
    if (store_begin(c->ag->store, c->err) < 0)
        return ag_store_fail(c->e, c->err);
    if (k->prompt.len && insert_turn(c, k->turn, k->rid, k->prompt.data, k->prompt.len) < 0)
        return -1;
    if (k->key && scope.data && key_store(c, scope.data, k->key, k->hash, k->turn, 256) < 0)
        return -1;
    return store_commit(c->ag->store, c->err) < 0 ? ag_store_fail(c->e, c->err) : 0;
}

static void submit_work(struct job *j)
{
    store_lock(j->c.ag->store);
    j->rc = submit_rows((struct submit *)j);
    store_unlock(j->c.ag->store);
}

static int accepted(struct call *c)
{
    resp_status(c->resp, 202);
    return reply(c, json_object()); /* sent without a body */
}

static void submit_done(struct job *j)
{
    struct submit *k = (struct submit *)j;
    struct call *c = &j->c;
    struct session *s = session_find(c->ag, k->session, call_owner(c), false);
    int rc = j->rc;
    if (s)
        s->pending--;
    if (rc == 0 && !s)
        rc = ag_unknown(c->e, "session_id", "session", k->session);
    if (rc == 0 && !k->replay) {
        struct turn *running = k->cancel ? session_running(s) : NULL;
        if (running)
            turn_cancel(running);
        struct turn *t = k->prompt.len ? turn_new(s, k->turn, k->prompt.data, k->prompt.len) : NULL;
        if (t)
            turn_submit(t);
    }
    if (rc == 0)
        rc = accepted(c);
    job_finish(j, rc);
    submit_free(k);
}

static bool is(const char *a, const char *b) { return a && strcmp(a, b) == 0; }

static int read_events(struct submit *k, struct call *c, const json_t *body)
{
    const json_t *events = json_object_get(body, "events");
    if (!events) {
        input_text(json_object_get(body, "input"), &k->prompt);
        if (!json_object_get(body, "input"))
            return ag_invalid(c->e, "events", "events: a list of input events");
        return no_nul(c, &k->prompt, "input");
    }
    if (!json_is_array(events) || !json_array_size(events))
        return ag_invalid(c->e, "events", "events: a list of at least one input event");
    size_t i;
    json_t *ev;
    json_array_foreach((json_t *)events, i, ev)
    {
        if (!json_is_object(ev))
            return ag_invalid(c->e, "events", "events: members are objects");
        const char *type = json_string_value(json_object_get(ev, "type"));
        if (is(type, "agent.session.input.cancel") || is(type, "input.cancel")) {
            k->cancel = true;
        } else if (is(type, "agent.session.input.message") || is(type, "input.message")) {
            const json_t *v = json_object_get(ev, "input");
            v = v ? v : json_object_get(ev, "content");
            v = v ? v : json_object_get(ev, "text");
            autobuf struct buf one = BUF_INIT;
            input_text(v, &one);
            if (one.len)
                buf_addf(&k->prompt, "%s", k->prompt.len ? "\n" : "");
            buf_add(&k->prompt, one.data ? one.data : "", one.len);
        } else if (is(type, "agent.session.input.tool_result") ||
                   is(type, "agent.session.input.computer_use_approval_request_result")) {
            return ag_fail(c->e, 400, "agents.tool_result_unsupported", "events",
                           "events: the agent runs its tools itself, it takes no results");
        } else {
            return ag_invalid(c->e, "events", "unsupported event type '%.80s'", type ? type : "");
        }
    }
    if (!k->prompt.len && !k->cancel)
        return ag_invalid(c->e, "events", "events: no text in them");
    return no_nul(c, &k->prompt, "events");
}

int agents_sessions_events_create(struct call *c)
{
    const char *id = call_param(c, "id");
    struct session *s = session_find(c->ag, id, call_owner(c), false);
    if (!s)
        return ag_unknown(c->e, "session_id", "session", id);
    struct submit *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(&k->j, c);
    snprintf(k->session, sizeof(k->session), "%s", s->id);
    k->rid = s->rid;
    const json_t *body = call_body(c);
    if (read_key(c, &k->key) < 0 || read_events(k, c, body) < 0)
        goto bad;
    if (k->key)
        body_hash(body, k->hash);
    if (!k->prompt.len && !k->cancel && !k->key) {
        submit_free(k);
        return accepted(c); /* {"input": ""}: nothing to do */
    }
    if (k->prompt.len) {
        k->full = s->n_turns + s->pending - (session_running(s) ? 1 : 0) >= AG_MAX_WAITING;
        if (c->ag->prompt_bytes + k->prompt.len > MAX_PROMPT_BYTES) {
            ag_fail(c->e, 429, "agents.limit_exceeded", "events", "too many prompts wait already");
            goto bad;
        }
        agents_new_id("turn_", k->turn);
    }
    k->tools = json_deep_copy(json_object_get(s->cfg, "tools"));
    s->pending++;
    int rc = job_run(&k->j, submit_work, submit_done);
    if (rc == REQ_PENDING)
        return rc;
    s->pending--;
    *c->err = k->j.err;
bad:
    submit_free(k);
    return -1;
}
