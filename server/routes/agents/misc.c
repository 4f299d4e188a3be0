/* Runtimes, models, and the routes that only a hosted service could answer. */
#include "routes/agents/common.h"

#include <string.h>

/* --- runtimes
 * ------------------------------------------------------------------------------------------- */

static json_t *runtime_row(const struct adapter *a, const struct runtime_state *st,
                           const char *default_name)
{
    json_t *aliases = json_array(), *steps = json_array();
    for (const char *const *n = a->aliases; *n; n++)
        json_array_append_new(aliases, json_string(*n));
    if (a->package)
        json_array_append_new(steps, json_pack("[s, s, s, s]", "npm", "install", "-g", a->package));
    else if (a->install_script)
        json_array_append_new(steps, json_pack("[s, s, s]", "sh", "-c", a->install_script));
    const struct adapter *def = adapter_find(default_name);
    json_t *caps =
        json_pack("{s:b, s:b, s:b, s:s, s:b, s:b, s:b, s:b}", "resume", a->resume, "partial_deltas",
                  a->deltas, "mcp", a->mcp, "system_prompt", a->flag_prompt ? "flag" : "preamble",
                  "base_url", a->base_url, "max_turns", a->max_turns, "budget", a->budget,
                  "experimental", a->experimental);
    bool there = st->installed && st->path[0];
    json_t *o = json_pack("{s:s, s:o, s:s?, s:b, s:o, s:o, s:b, s:o, s:b, s:o}", "name", a->name,
                          "aliases", aliases, "binary", a->binary, "installed", st->installed,
                          "path", there ? json_string(st->path) : json_null(), "version",
                          there && st->version[0] ? json_string(st->version) : json_null(),
                          "experimental", a->experimental, "capabilities", caps, "auth_env_present",
                          st->credentials, "install_steps", steps);
    json_object_set_new(o, "id", json_string(a->name));
    json_object_set_new(o, "object", json_string("agent.runtime"));
    json_object_set_new(o, "implemented", json_boolean(a->implemented));
    json_object_set_new(o, "default", json_boolean(def == a && a->implemented));
    return label(
        o, "none", "",
        json_pack("{s:b, s:b}", "installed", st->installed, "implemented", a->implemented));
}

static void runtimes_known(void *data, const struct runtime_state *states, size_t n)
{
    struct job *j = data;
    struct call *c = &j->c;
    struct page p;
    json_t *list = NULL;
    autojson json_t *all = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all,
                              runtime_row(adapters[i], &states[i], c->ag->set.default_runtime));
    int rc = page_read(c, &p);
    if (rc == 0)
        rc = list_array(c, &p, all, &list);
    job_finish(j, rc < 0 ? -1 : reply(c, list));
    free(j);
}

static int ask(struct call *c,
               void (*done)(void *data, const struct runtime_state *states, size_t n))
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(j, c);
    probes_ask(c->ag->probes, done, j);
    return REQ_PENDING;
}

int agents_runtimes_list(struct call *c)
{
    struct page p;
    return page_read(c, &p) < 0 ? -1 : ask(c, runtimes_known);
}

/* --- models
 * -----------------------------------------------------------------------------------------------
 */

struct models {
    struct job j;
    struct runtime_state states[8];
    size_t n;
    json_t *answer;
};

static json_t *model_row(const char *id, double created, const char *kind, bool installed)
{
    return label(json_pack("{s:s, s:s, s:I, s:s}", "id", id, "object", "model", "created",
                           (json_int_t)created, "owned_by", "agent-sandbox-local"),
                 "none", "", json_pack("{s:s, s:b}", "kind", kind, "installed", installed));
}

static void models_work(struct job *j)
{
    struct models *k = (struct models *)j;
    struct call *c = &j->c;
    const char *wanted = req_param(c->req, "model", NULL);
    json_t *list = json_array();
    store_lock(c->ag->store);
    sqlite3_stmt *s = store_stmt(c->ag->store,
                                 "SELECT id, doc, created FROM objects WHERE kind = 'definition' "
                                 "AND owner = ? ORDER BY rid DESC",
                                 "s", call_owner(c));
    while (s && sqlite3_step(s) == SQLITE_ROW) {
        autojson json_t *doc = store_json(s, 1);
        const struct adapter *ad =
            adapter_find(json_string_value(json_object_get(doc, "_runtime")));
        bool installed = false;
        for (size_t i = 0; i < k->n; i++)
            installed = installed || (adapters[i] == ad && k->states[i].installed);
        json_array_append_new(list, model_row(store_text(s, 0), sqlite3_column_double(s, 2),
                                              "agent_definition", installed));
    }
    if (s)
        sqlite3_reset(s);
    store_unlock(c->ag->store);
    for (size_t i = 0; i < k->n; i++)
        if (adapters[i]->implemented)
            json_array_append_new(list, model_row(adapters[i]->name, c->ag->booted, "adapter",
                                                  k->states[i].installed));
    j->rc = 0;
    if (!wanted) {
        k->answer = json_pack("{s:s, s:o}", "object", "list", "data", list);
        return;
    }
    size_t i;
    json_t *o;
    json_array_foreach(list, i, o) if (strcmp(json_string_value(json_object_get(o, "id")),
                                              wanted) == 0) k->answer = json_incref(o);
    json_decref(list);
    if (!k->answer)
        j->rc = ag_fail(c->e, 404, "model_not_found", "model", "model '%.100s' not found", wanted);
}

static void models_done(struct job *j)
{
    struct models *k = (struct models *)j;
    job_finish(j, j->rc < 0 ? -1 : reply(&j->c, k->answer));
    free(k);
}

static void models_known(void *data, const struct runtime_state *states, size_t n)
{
    struct models *k = data;
    k->n = n < ARRAY_LEN(k->states) ? n : ARRAY_LEN(k->states);
    memcpy(k->states, states, k->n * sizeof(*states));
    if (job_run(&k->j, models_work, models_done) < 0) {
        job_finish(&k->j, -1);
        free(k);
    }
}

static int models(struct call *c)
{
    struct models *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(&k->j, c);
    probes_ask(c->ag->probes, models_known, k);
    return REQ_PENDING;
}

int agents_models_list(struct call *c) { return models(c); }

int agents_models_get(struct call *c) { return models(c); }

/* --- refused
 * ------------------------------------------------------------------------------------------------
 */

static int refused(struct call *c)
{
    ag_fail(c->e, 404, "agents.not_implemented_locally", NULL, "a local server can't do this");
    c->e->refused = true;
    return -1;
}

int agents_cannot_executor_registration(struct call *c) { return refused(c); }

int agents_cannot_executor_channel(struct call *c) { return refused(c); }

int agents_cannot_responses_input_tokens(struct call *c) { return refused(c); }

int agents_cannot_models_delete(struct call *c) { return refused(c); }
