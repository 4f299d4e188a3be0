/* Webhook endpoints: stored rows, mirrored in the delivery queues that the loop owns. */
#include "routes/agents/common.h"

#include "base/crypto.h"

#include <stdio.h>
#include <string.h>

#define LABEL_HOOK "local_signer memory_only"
#define MAX_ENDPOINTS 100

static const char *const event_types[] = {"agent.session.created", "agent.session.in_progress",
                                          "agent.session.idle", "agent.session.failed"};

static json_t *shown(const char *id, const json_t *doc, double created, double updated,
                     const char *secret)
{
    json_t *o = json_pack("{s:s, s:s, s:o, s:O, s:O, s:n, s:O, s:o}", "id", id, "object",
                          "webhook_endpoint", "created_at", stamp_json(created), "event_types",
                          json_object_get(doc, "event_types"), "name", json_object_get(doc, "name"),
                          "signing_secret_hint", "url", json_object_get(doc, "url"), "updated_at",
                          stamp_json(updated));
    label(o, "local_state", LABEL_HOOK, NULL);
    if (secret)
        json_object_set_new(o, "signing_secret", json_string(secret));
    return o;
}

static json_t *row(struct call *c, sqlite3_stmt *s, void *data)
{
    autojson json_t *doc = store_json(s, 1);
    return shown(store_text(s, 0), doc, sqlite3_column_double(s, 2), sqlite3_column_double(s, 3),
                 NULL);
}

static bool known_type(const json_t *v)
{
    for (size_t i = 0; json_is_string(v) && i < ARRAY_LEN(event_types); i++)
        if (strcmp(event_types[i], json_string_value(v)) == 0)
            return true;
    return false;
}

/* Fields that are given go into doc. */
static int read_fields(struct call *c, json_t *doc, bool fresh)
{
    const json_t *body = call_body(c), *v;
    if (only_keys(c->e, body, "", "url event_types name") < 0)
        return -1;
    v = json_object_get(body, "url");
    if (fresh || v) {
        if (!json_is_string(v))
            return ag_invalid(c->e, "url", "url: a URL");
        if (check_url(c->e, json_string_value(v), json_string_length(v), "url",
                      c->ag->set.webhook_http, false, c->ag->set.private_urls) < 0)
            return -1;
        json_object_set(doc, "url", (json_t *)v);
    }
    v = json_object_get(body, "event_types");
    if (fresh || v) {
        bool good = json_is_array(v) && json_array_size(v) >= 1 && json_array_size(v) <= 16;
        size_t i;
        json_t *type, *types = json_array();
        json_array_foreach((json_t *)v, i, type)
        {
            good = good && known_type(type);
            add_once(types, type);
        }
        if (good)
            json_object_set(doc, "event_types", types);
        json_decref(types);
        if (!good)
            return ag_invalid(c->e, "event_types",
                              "event_types: some of those of GET /v1/webhook_event_types");
    }
    v = json_object_get(body, "name");
    if (v && !json_is_null(v) && (!json_is_string(v) || text_chars(v) > 256))
        return ag_invalid(c->e, "name", "name: a string of at most 256 characters");
    if (v)
        json_object_set_new(doc, "name",
                            json_is_null(v) ? json_string("") : json_incref((json_t *)v));
    return 0;
}

static void new_secret(json_t *doc)
{
    uint8_t key[32];
    autobuf struct buf text = BUF_INIT;
    crypto_random(key, sizeof(key));
    buf_adds(&text, "whsec_");
    base64_append(&text, key, sizeof(key));
    if (buf_str(&text))
        json_object_set_new(doc, "_secret", json_string(text.data));
    crypto_wipe(key, sizeof(key));
}

enum change { CREATE, UPDATE, ROTATE, DELETE };

struct edit {
    struct job j;
    enum change what;
    char id[AG_ID_MAX];
    json_t *doc;
    double created, updated;
};

static int find(struct edit *k)
{
    struct call *c = &k->j.c;
    sqlite3_stmt *s = store_stmt(
        c->ag->store,
        "SELECT doc, created, updated FROM objects WHERE id = ? AND kind = 'webhook' AND owner = ?",
        "ss", k->id, call_owner(c));
    bool found = s && sqlite3_step(s) == SQLITE_ROW;
    if (found) {
        k->doc = store_json(s, 0);
        k->created = sqlite3_column_double(s, 1);
    }
    if (s)
        sqlite3_reset(s);
    return found ? 0 : ag_unknown(c->e, "webhook_endpoint_id", "webhook endpoint", k->id);
}

static int edit(struct edit *k)
{
    struct call *c = &k->j.c;
    k->updated = wall_seconds();
    if (k->what == CREATE) {
        k->doc = json_pack("{s:s}", "name", "");
        k->created = k->updated;
        if (read_fields(c, k->doc, true) < 0)
            return -1;
        if (object_count(c, "webhook") >= MAX_ENDPOINTS)
            return ag_fail(c->e, 400, "agents.limit_exceeded", NULL, "at most %d webhook endpoints",
                           MAX_ENDPOINTS);
        new_secret(k->doc);
        agents_new_id("we_", k->id);
        return object_insert(c, "webhook", k->id, k->doc, k->updated, 0);
    }
    if (find(k) < 0)
        return -1;
    if (k->what == DELETE)
        return object_delete(c, k->id);
    if (k->what == UPDATE && read_fields(c, k->doc, false) < 0)
        return -1;
    if (k->what == ROTATE) {
        const json_t *body = call_body(c),
                     *keep = json_object_get(body, "keep_old_secret_active_for_24_hours");
        if (only_keys(c->e, body, "", "keep_old_secret_active_for_24_hours") < 0)
            return -1;
        if (keep && !json_is_null(keep) && !json_is_false(keep))
            return ag_invalid(c->e, "keep_old_secret_active_for_24_hours",
                              "keep_old_secret_active_for_24_hours: the old one ends at once here");
        new_secret(k->doc);
    }
    return object_update(c, k->id, k->doc, k->updated);
}

static void work(struct job *j)
{
    store_lock(j->c.ag->store);
    j->rc = edit((struct edit *)j);
    store_unlock(j->c.ag->store);
}

static void done(struct job *j)
{
    struct edit *k = (struct edit *)j;
    struct call *c = &j->c;
    int rc = j->rc;
    if (rc == 0 && k->what == DELETE) {
        hooks_remove(c->ag->hooks, k->id);
        rc = reply(c, label(json_pack("{s:s, s:s, s:b}", "id", k->id, "object",
                                      "webhook_endpoint.deleted", "deleted", 1),
                            "local_state", LABEL_HOOK, NULL));
    } else if (rc == 0) {
        hooks_set(c->ag->hooks, k->id, call_owner(c), k->doc);
        const char *secret =
            k->what == UPDATE ? NULL : json_string_value(json_object_get(k->doc, "_secret"));
        rc = reply(c, shown(k->id, k->doc, k->created, k->updated, secret));
    }
    job_finish(j, rc);
    json_decref(k->doc);
    free(k);
}

static int start(struct call *c, enum change what)
{
    struct edit *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(&k->j, c);
    k->what = what;
    snprintf(k->id, sizeof(k->id), "%s", call_param(c, "webhook_endpoint_id"));
    int rc = job_run(&k->j, work, done);
    if (rc < 0) {
        *c->err = k->j.err;
        free(k);
    }
    return rc;
}

int agents_webhooks_create(struct call *c) { return start(c, CREATE); }

int agents_webhooks_update(struct call *c) { return start(c, UPDATE); }

int agents_webhooks_delete(struct call *c) { return start(c, DELETE); }

int agents_webhooks_rotate_secret(struct call *c) { return start(c, ROTATE); }

int agents_webhooks_list(struct call *c)
{
    static const struct list_sql sql =
        LIST_SQL("doc, created, updated", "objects", "kind = 'webhook' AND owner = ?1");
    return reply_owned(c, &sql, ARG_I(0), row);
}

int agents_webhooks_get(struct call *c)
{
    const char *id = call_param(c, "webhook_endpoint_id");
    json_t *o = NULL;
    store_lock(c->ag->store);
    sqlite3_stmt *s = store_stmt(c->ag->store,
                                 "SELECT id, doc, created, updated FROM objects WHERE id = ? AND "
                                 "kind = 'webhook' AND owner = ?",
                                 "ss", id, call_owner(c));
    if (s && sqlite3_step(s) == SQLITE_ROW)
        o = row(c, s, NULL);
    if (s)
        sqlite3_reset(s);
    store_unlock(c->ag->store);
    return o ? reply(c, o) : ag_unknown(c->e, "webhook_endpoint_id", "webhook endpoint", id);
}

struct trial {
    struct job j;
    char id[AG_ID_MAX], type[64];
};

static void tried(void *data, int status, const char *why)
{
    struct trial *k = data;
    struct call *c = &k->j.c;
    int rc;
    if (status)
        rc =
            reply(c, label(json_pack("{s:s, s:s, s:i, s:b, s:s}", "object", "webhook_endpoint.test",
                                     "event_type", k->type, "status_code", status, "success",
                                     status >= 200 && status < 300, "webhook_endpoint_id", k->id),
                           "local_state", LABEL_HOOK, NULL));
    else
        rc = ag_fail(c->e, 400, "agents.webhook_delivery_failed", "url", "url: %s", why);
    job_finish(&k->j, rc);
    free(k);
}

static void find_work(struct job *j)
{
    struct trial *k = (struct trial *)j;
    struct edit probe = {.j = *j};
    probe.j.c.e = j->c.e;
    snprintf(probe.id, sizeof(probe.id), "%s", k->id);
    store_lock(j->c.ag->store);
    j->rc = find(&probe);
    store_unlock(j->c.ag->store);
    json_decref(probe.doc);
}

static void find_done(struct job *j)
{
    struct trial *k = (struct trial *)j;
    int rc = j->rc;
    if (rc == 0 && !k->type[0])
        rc = ag_invalid(j->c.e, "event_type",
                        "event_type: one of those of GET /v1/webhook_event_types");
    if (rc == 0)
        rc = hooks_test(j->c.ag->hooks, k->id, k->type, tried, k, j->c.e);
    if (rc < 0) {
        job_finish(j, rc);
        free(k);
    }
}

int agents_webhooks_test(struct call *c)
{
    struct trial *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    const json_t *type = json_object_get(call_body(c), "event_type");
    bool known = known_type(type);
    job_init(&k->j, c);
    snprintf(k->id, sizeof(k->id), "%s", call_param(c, "webhook_endpoint_id"));
    snprintf(k->type, sizeof(k->type), "%s", known ? json_string_value(type) : "");
    int rc = job_run(&k->j, find_work, find_done);
    if (rc < 0) {
        *c->err = k->j.err;
        free(k);
    }
    return rc;
}

int agents_webhook_event_types(struct call *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < ARRAY_LEN(event_types); i++)
        json_array_append_new(list, json_string(event_types[i]));
    return reply(c, label(json_pack("{s:s, s:o}", "object", "list", "data", list), "none",
                          "local_signer", NULL));
}
