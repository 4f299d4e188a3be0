/* Stored agents. A session takes a snapshot of its definition, so an update reaches new sessions
 * only. */
#include "routes/agents/common.h"

#include <string.h>

#define DIFFERENCES "update_in_place snapshot_at_session_start"

/* Columns: doc, created, updated. */
static json_t *shown(const char *id, const json_t *doc, double created, double updated)
{
    json_t *o = json_pack("{s:s, s:s, s:o, s:o}", "id", id, "object", "agent", "created_at",
                          stamp_json(created), "updated_at", stamp_json(updated));
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)doc, key, v) if (key[0] != '_') json_object_set(o, key, v);
    return label(o, "local_state", DIFFERENCES,
                 json_pack("{s:O}", "runtime", json_object_get(doc, "_runtime")));
}

static json_t *row(struct call *c, sqlite3_stmt *s, void *data)
{
    autojson json_t *doc = store_json(s, 1);
    return shown(store_text(s, 0), doc, sqlite3_column_double(s, 2), sqlite3_column_double(s, 3));
}

static void apply(json_t *doc, const struct agent_spec *s)
{
    if (s->name)
        json_object_set(doc, "name", s->name);
    if (s->model)
        json_object_set(doc, "model", s->model);
    if (s->instructions)
        json_object_set(doc, "instructions", s->instructions);
    if (s->metadata)
        json_object_set(doc, "metadata", s->metadata);
    if (s->effort)
        json_object_set_new(doc, "reasoning",
                            json_pack("{s:O, s:n}", "effort", s->effort, "summary"));
    if (s->tools)
        json_object_set(doc, "tools", s->tools);
}

int agents_definitions_create(struct call *c)
{
    const json_t *body = call_body(c);
    const struct adapter *ad;
    struct agent_spec spec = {0};
    const json_t *model = json_object_get(body, "model");
    int rc = -1;
    if (!model || json_is_null(model))
        return ag_invalid(c->e, "model", "model: required");
    if (select_runtime(c, body, NULL, json_string_value(model), &ad) < 0)
        return -1;
    char id[AG_ID_MAX];
    agents_new_id("agent_", id);
    double now = wall_seconds();
    autojson json_t *doc = json_pack(
        "{s:n, s:n, s:n, s:{}, s:{s:b, s:n}, s:{s:n, s:n}, s:s, s:{s:{s:s}, s:s}, s:[], s:s}",
        "name", "model", "instructions", "metadata", "multi_agent", "enabled", 0,
        "max_concurrent_subagents", "reasoning", "effort", "summary", "service_tier", "default",
        "text", "format", "type", "text", "verbosity", "medium", "tools", "_runtime", ad->name);
    if (agent_read(c->e, body, "", ad, &spec) == 0) {
        apply(doc, &spec);
        store_lock(c->ag->store);
        rc = object_insert(c, "definition", id, doc, now, 0);
        if (rc == 0)
            rc = secrets_store(c, id, spec.secrets);
        store_unlock(c->ag->store);
    }
    agent_spec_done(&spec);
    return rc < 0 ? -1 : reply(c, shown(id, doc, now, now));
}

int agents_definitions_list(struct call *c)
{
    static const struct list_sql sql =
        LIST_SQL("doc, created, updated", "objects", "kind = 'definition' AND owner = ?1");
    return reply_owned(c, &sql, ARG_I(0), row);
}

static json_t *get(struct call *c, const char *id)
{
    json_t *o = NULL;
    sqlite3_stmt *s = store_stmt(c->ag->store,
                                 "SELECT id, doc, created, updated FROM objects WHERE id = ? AND "
                                 "kind = 'definition' AND owner = ?",
                                 "ss", id, call_owner(c));
    if (s && sqlite3_step(s) == SQLITE_ROW)
        o = row(c, s, NULL);
    if (s)
        sqlite3_reset(s);
    return o;
}

int agents_definitions_get(struct call *c)
{
    const char *id = call_param(c, "agent_id");
    store_lock(c->ag->store);
    json_t *o = get(c, id);
    store_unlock(c->ag->store);
    return o ? reply(c, o) : ag_unknown(c->e, "agent_id", "agent", id);
}

int agents_definitions_update(struct call *c)
{
    const char *id = call_param(c, "agent_id");
    const json_t *body = call_body(c);
    struct agent_spec spec = {0};
    autojson json_t *doc = NULL;
    json_t *o = NULL;
    store_lock(c->ag->store);
    int rc = object_get(c, "definition", id, "agent_id", "agent", &doc);
    for (const char *const *f = (const char *const[]){"adapter", "runtime", NULL}; rc == 0 && *f;
         f++)
        if (json_object_get(body, *f))
            rc = ag_invalid(c->e, *f, "%s: fixed when the agent is created", *f);
    if (rc == 0)
        rc = agent_read(c->e, body, "",
                        adapter_find(json_string_value(json_object_get(doc, "_runtime"))), &spec);
    if (rc == 0) {
        apply(doc, &spec);
        rc = object_update(c, id, doc, wall_seconds());
    }
    if (rc == 0 && spec.tools)
        rc = secrets_store(c, id, spec.secrets);
    if (rc == 0)
        o = get(c, id);
    store_unlock(c->ag->store);
    agent_spec_done(&spec);
    return rc < 0 ? -1 : reply(c, o);
}

int agents_definitions_delete(struct call *c)
{
    const char *id = call_param(c, "agent_id");
    autojson json_t *doc = NULL;
    store_lock(c->ag->store);
    int rc = object_get(c, "definition", id, "agent_id", "agent", &doc);
    if (rc == 0)
        rc = object_delete(c, id);
    if (rc == 0)
        (void)store_exec(c->ag->store, NULL, "DELETE FROM mem.secrets WHERE ref = ?", "s",
                         id); /* unreachable now */
    store_unlock(c->ag->store);
    if (rc < 0)
        return -1;
    return reply(
        c, label(json_pack("{s:s, s:s, s:b}", "id", id, "object", "agent.deleted", "deleted", 1),
                 "local_state", "snapshot_at_session_start",
                 json_pack("{s:O}", "runtime", json_object_get(doc, "_runtime"))));
}
