#include "agents/agents.h"
#include "agents/runner.h"

#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/own.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const struct adapter *session_adapter(const struct session *s)
{
    const char *name = json_string_value(json_object_get(s->cfg, "runtime"));
    return name ? adapter_find(name) : NULL;
}

struct session *session_find(struct agents *ag, const char *id, const char *owner, bool hidden)
{
    list_for_each(it, &ag->sessions)
    {
        struct session *s = list_entry(it, struct session, node);
        if (s->hidden == hidden && strcmp(s->id, id) == 0)
            return strcmp(s->owner, owner) == 0 ? s : NULL;
    }
    return NULL;
}

json_t *session_doc(const char *id, double created, double active, const json_t *cfg, bool busy,
                    const struct ag_usage *usage)
{
    return json_pack("{s:s, s:s, s:O, s:I, s:O, s:n, s:I, s:O, s:[], s:s, s:o, s:O}", "id", id,
                     "object", "agent.session", "agent", json_object_get(cfg, "agent"),
                     "created_at", (json_int_t)created, "environment",
                     json_object_get(cfg, "environment"), "error", "last_active_at",
                     (json_int_t)active, "metadata", json_object_get(cfg, "metadata"),
                     "required_actions", "status", busy ? "in_progress" : "idle", "usage",
                     ag_usage_json(usage), "vault_ids", json_object_get(cfg, "vault_ids"));
}

json_t *session_json(const struct session *s)
{
    return session_doc(s->id, s->created, s->active, s->cfg, s->n_turns > 0, &s->usage);
}

struct session *session_add(struct agents *ag, const char *id, const char *owner, bool hidden,
                            int64_t rid, json_t *cfg, double now)
{
    struct session *s = calloc(1, sizeof(*s));
    if (!s || !(s->owner = strdup(owner))) {
        free(s);
        json_decref(cfg);
        return NULL;
    }
    s->ag = ag;
    s->hidden = hidden;
    s->rid = rid;
    s->cfg = cfg;
    s->created = s->active = now;
    snprintf(s->id, sizeof(s->id), "%s", id);
    list_init(&s->node);
    list_init(&s->turns);
    evlog_init(&s->log, ag, rid * 2, 1);
    s->log.muted = hidden;
    list_append(&ag->sessions, &s->node);
    if (hidden)
        ag->n_hidden++;
    else
        ag->n_sessions++;
    if (!hidden && loop_on_thread(ag->d.loop)) /* else: agents_start */
        loop_metrics(ag->d.loop)->agent_sessions++;
    return s;
}

static void session_free(struct session *s)
{
    evlog_done(&s->log);
    json_decref(s->cfg);
    free(s->owner);
    free(s->thread);
    free(s);
}

/* --- deleting --- */

struct removal {
    struct agents *ag;
    int64_t rid;
    struct list *none;
    void (*done)(void *data);
    void *data;
};

/* Rows and files of a session that is gone; on a worker. */
static void remove_rows(void *data)
{
    struct removal *rm = data;
    struct store *st = rm->ag->store;
    autobuf struct buf files = BUF_INIT;
    store_lock(st);
    sqlite3_stmt *q = store_stmt(st, "SELECT id FROM artifacts WHERE session = ?", "i", rm->rid);
    while (q && sqlite3_step(q) == SQLITE_ROW)
        buf_addf(&files, "%s\n", store_text(q, 0));
    if (q)
        sqlite3_reset(q);
    struct abx_error err;
    bool bad = store_begin(st, &err) < 0;
    bad = bad || store_exec(st, &err, "DELETE FROM artifacts WHERE session = ?", "i", rm->rid) < 0;
    bad = bad || store_exec(st, &err, "DELETE FROM items WHERE session = ?", "i", rm->rid) < 0;
    bad = bad || store_exec(st, &err, "DELETE FROM turns WHERE session = ?", "i", rm->rid) < 0;
    bad = bad || store_exec(st, &err, "DELETE FROM subagents WHERE session = ?", "i", rm->rid) < 0;
    bad = bad || store_exec(st, &err, "DELETE FROM subentries WHERE session = ?", "i", rm->rid) < 0;
    bad = bad || store_exec(st, &err,
                            "DELETE FROM events WHERE log = ?1 * 2 OR log IN (SELECT rid * 2 + 1 "
                            "FROM responses WHERE "
                            "session = ?1)",
                            "i", rm->rid) < 0;
    bad = bad || store_exec(st, &err, "DELETE FROM responses WHERE session = ?", "i", rm->rid) < 0;
    bad = bad || store_exec(st, &err, "DELETE FROM sessions WHERE rid = ?", "i", rm->rid) < 0;
    if (bad || store_commit(st, &err) < 0)
        log_warn("agents: a deleted session's rows stay: %s", err.message);
    store_unlock(st);
    if (!buf_str(&files))
        return;
    for (char *save = NULL, *id = strtok_r(files.data, "\n", &save); id;
         id = strtok_r(NULL, "\n", &save)) {
        autobuf struct buf path = BUF_INIT;
        buf_addf(&path, "%s/artifacts/%s", rm->ag->set.state_dir, id);
        if (buf_str(&path))
            (void)unlink(path.data); /* may be gone */
    }
}

static void rows_removed(void *data)
{
    struct removal *rm = data;
    if (rm->done)
        rm->done(rm->data);
    free(rm);
}

void session_settle(struct session *s)
{
    if (!s->dead || !list_empty(&s->turns))
        return;
    struct removal *rm = calloc(1, sizeof(*rm));
    if (rm) {
        *rm = (struct removal){
            .ag = s->ag, .rid = s->rid, .done = s->deleted, .data = s->deleted_data};
        if (loop_work(s->ag->d.loop, WORK_SHORT, remove_rows, rows_removed, rm) < 0)
            rows_removed(rm);
    } else if (s->deleted) {
        s->deleted(s->deleted_data);
    }
    if (!s->log.muted) {
        autojson json_t *frame = json_pack("{s:s, s:s, s:s}", "type", "agent.session.deleted",
                                           "event_id", "evt_deleted", "session_id", s->id);
        evlog_add(&s->log, 0, "agent.session.deleted", frame);
    }
    session_free(s);
}

void session_delete(struct session *s, void (*done)(void *data), void *data)
{
    struct agents *ag = s->ag;
    s->dead = true;
    s->deleted = done;
    s->deleted_data = data;
    list_remove(&s->node);
    if (s->hidden)
        ag->n_hidden--;
    else
        ag->n_sessions--;
    if (!s->hidden)
        loop_metrics(ag->d.loop)->agent_sessions--;
    /* Nobody finds it from now on, whatever becomes of the rest. */
    store_post(ag->store, "DELETE FROM sessions WHERE rid = ?", "i", s->rid);
    s->refs++; /* the last cancelled turn must not take the session away under us */
    for (struct list *it = s->turns.prev; it != &s->turns;) {
        struct turn *t = list_entry(it, struct turn, node);
        it = it->prev;
        if (t->state == TURN_QUEUED) {
            s->dead = false;
            turn_cancel(t);
            s->dead = true;
        }
    }
    struct turn *running = session_running(s);
    s->refs--;
    if (running)
        turn_cancel(running);
    session_settle(s);
}

static bool evictable(const struct session *s)
{
    return !s->hidden && list_empty(&s->turns) && !s->log.n_readers && !s->pending;
}

bool agents_full(struct agents *ag) { return store_size(ag->store) > ag->set.max_state_bytes; }

void session_evict(struct agents *ag, bool full)
{
    int extra = full ? 10 : 0;
    double now = wall_seconds();
    list_for_each_safe(it, &ag->sessions)
    {
        struct session *s = list_entry(it, struct session, node);
        if (evictable(s) && now - s->active > (double)ag->set.session_age_s)
            session_delete(s, NULL, NULL);
    }
    while (ag->n_sessions >= ag->set.max_sessions || extra-- > 0) {
        struct session *oldest = NULL;
        list_for_each(it, &ag->sessions)
        {
            struct session *s = list_entry(it, struct session, node);
            if (evictable(s) && (!oldest || s->active < oldest->active))
                oldest = s;
        }
        if (!oldest)
            break;
        session_delete(oldest, NULL, NULL);
    }
    /* Chains of responses: the longest unused go. */
    extra = full ? 10 : 0;
    while (ag->n_hidden > ag->set.max_responses || extra-- > 0) {
        struct session *oldest = NULL;
        list_for_each(it, &ag->sessions)
        {
            struct session *s = list_entry(it, struct session, node);
            if (s->hidden && list_empty(&s->turns) && !s->pending &&
                (!oldest || s->active < oldest->active))
                oldest = s;
        }
        if (!oldest)
            break;
        session_delete(oldest, NULL, NULL);
    }
}
