/* What happens in a turn, as frames of its session's log, rows of the store and calls to its
 * watcher.
 *
 * An item's frames are: added, part.added, deltas, text.done, part.done, item.done. A finished
 * message waits for its done frames until the next item starts or the turn ends, since its phase
 * depends on that. */
#include "agents/agents.h"
#include "agents/runner.h"

#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/own.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_ITEMS 20000
#define CUT_MARK "\n[cut: longer than 262144 characters]"

static json_t *stamp(double t) { return t > 0 ? json_integer((json_int_t)t) : json_null(); }

static void emit(struct session *s, int sub, const char *type, json_t *fields)
{
    char id[40];
    s->active = wall_seconds();
    if (s->log.muted) {
        json_decref(fields);
        return;
    }
    int64_t seq = sub ? s->log.next_seq - 1 : s->log.next_seq;
    if (sub)
        snprintf(id, sizeof(id), "evt_%010" PRId64 "_%d", seq, sub);
    else
        snprintf(id, sizeof(id), "evt_%010" PRId64, seq);
    autojson json_t *frame = json_pack("{s:s, s:s}", "type", type, "event_id", id);
    if (frame && fields) {
        json_object_update(frame, fields);
        evlog_add(&s->log, sub, type, frame);
    }
    json_decref(fields);
}

/* --- JSON ------------------------------------------------------------------------------------ */

json_t *ag_usage_json(const struct ag_usage *u)
{
    if (!u->known)
        return json_null();
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)u->input,
                     "input_tokens_details", "cached_tokens", (json_int_t)u->cached,
                     "output_tokens", (json_int_t)u->output, "output_tokens_details",
                     "reasoning_tokens", (json_int_t)u->reasoning, "total_tokens",
                     (json_int_t)u->total);
}

void ag_usage_read(const json_t *v, struct ag_usage *u)
{
    *u = (struct ag_usage){.known = json_is_object(v)};
    u->input = json_integer_value(json_object_get(v, "input_tokens"));
    u->cached = json_integer_value(
        json_object_get(json_object_get(v, "input_tokens_details"), "cached_tokens"));
    u->output = json_integer_value(json_object_get(v, "output_tokens"));
    u->reasoning = json_integer_value(
        json_object_get(json_object_get(v, "output_tokens_details"), "reasoning_tokens"));
    u->total = json_integer_value(json_object_get(v, "total_tokens"));
}

void ag_usage_add(struct ag_usage *sum, const struct ag_usage *more)
{
    if (!more->known)
        return;
    sum->known = true;
    sum->input += more->input;
    sum->cached += more->cached;
    sum->output += more->output;
    sum->reasoning += more->reasoning;
    sum->total += more->total;
}

json_t *turn_doc(const char *id, const char *agent_id, const char *session_id, const char *status,
                 double created, double started, double completed, const json_t *error,
                 const json_t *usage)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:O, s:n, s:O}", "id", id, "object",
                     "agent.session.turn", "agent_id", agent_id, "session_id", session_id, "status",
                     status, "created_at", stamp(created), "started_at", stamp(started),
                     "completed_at", stamp(completed), "error", error, "subagent_id", "usage",
                     usage);
}

json_t *turn_json(const struct turn *t)
{
    const struct session *s = t->session;
    autojson json_t *error = t->error_code[0] ? json_pack("{s:s, s:s}", "code", t->error_code,
                                                          "message", t->error_message)
                                              : json_null();
    autojson json_t *usage = ag_usage_json(&t->usage);
    return turn_doc(t->id, json_string_value(json_object_get(s->cfg, "agent_id")), s->id, t->status,
                    t->created, t->started, t->completed, error, usage);
}

static json_t *text_value(const char *s) { return s ? json_text(s) : json_null(); }

json_t *item_json(const struct item *it)
{
    json_t *o = json_pack("{s:s, s:s}", "id", it->id, "turn_id", it->turn->id);
    static const char *const types[] = {"message", "reasoning", "command_execution", "mcp_call"};
    json_object_set_new(o, "type", json_string(types[it->type]));
    if (it->type == ITEM_MESSAGE)
        json_object_set_new(o, "role", json_string("assistant"));
    json_object_set_new(o, "status", json_string(it->status));
    json_t *text = json_bytes(it->text.data ? it->text.data : "", it->text.len);
    if (it->type == ITEM_MESSAGE) {
        json_object_set_new(o, "content",
                            json_pack("[{s:s, s:O}]", "type", "output_text", "text", text));
        if (it->phase)
            json_object_set_new(o, "phase", json_string(it->phase));
    } else if (it->type == ITEM_REASONING) {
        json_object_set_new(o, "summary",
                            it->text.len
                                ? json_pack("[{s:s, s:O}]", "type", "summary_text", "text", text)
                                : json_array());
    } else if (it->type == ITEM_COMMAND) {
        json_object_set_new(o, "command", json_text(it->command ? it->command : ""));
        json_object_set(o, "cwd", json_object_get(it->turn->session->cfg, "workspace"));
        json_object_set(o, "output", text);
        json_object_set_new(o, "exit_code",
                            it->has_exit ? json_integer(it->exit_code) : json_null());
        json_object_set_new(o, "duration_ms",
                            it->duration_ms >= 0 ? json_integer(it->duration_ms) : json_null());
    } else {
        json_object_set_new(o, "server_label", text_value(it->label));
        json_object_set_new(o, "name", text_value(it->name));
        json_object_set(o, "arguments", it->arguments ? it->arguments : json_null());
        json_object_set(o, "output", it->output ? text : json_null());
        json_object_set_new(o, "error", text_value(it->error));
    }
    json_decref(text);
    return o;
}

/* As stored: with what only responses show. */
static json_t *item_row(const struct item *it)
{
    json_t *o = item_json(it);
    if (it->mcp)
        json_object_set_new(o, "_mcp", json_true());
    return o;
}

/* --- items ----------------------------------------------------------------------------------- */

static json_t *place(const struct item *it)
{
    return json_pack("{s:s, s:s, s:s, s:i}", "session_id", it->turn->session->id, "turn_id",
                     it->turn->id, "item_id", it->id, "output_index", it->index);
}

static json_t *with(json_t *o, const char *key, json_t *value)
{
    json_object_set_new(o, key, value);
    return o;
}

static void item_free(struct item *it)
{
    list_remove(&it->node);
    free(it->key);
    free(it->kind);
    buf_done(&it->text);
    buf_done(&it->raw);
    redact_stream_done(&it->stream);
    free(it->command);
    free(it->label);
    free(it->name);
    free(it->output);
    free(it->error);
    json_decref(it->arguments);
    free(it);
}

static void say_delta(struct item *it, const char *text, size_t len)
{
    if (!len)
        return;
    struct turn *t = it->turn;
    const char *type = it->type == ITEM_MESSAGE ? "agent.session.turn.output_text.delta"
                       : it->type == ITEM_COMMAND
                           ? "agent.output.command_execution_output.delta"
                           : "agent.session.turn.reasoning_summary_text.delta";
    if (it->type == ITEM_CALL || (it->type == ITEM_COMMAND && !it->live))
        return;
    if (!t->session->log.muted) {
        json_t *o = place(it);
        if (it->type == ITEM_MESSAGE)
            json_object_set_new(o, "content_index", json_integer(0));
        else if (it->type == ITEM_REASONING)
            json_object_set_new(o, "summary_index", json_integer(0));
        emit(t->session, 0, type, with(o, "delta", json_bytes(text, len)));
    }
    if (t->watch && t->watch->item_delta)
        t->watch->item_delta(t->watch_owner, it, text, len);
}

static void item_save(struct item *it, bool fresh)
{
    struct turn *t = it->turn;
    it->saved_ms = mono_ms();
    autojson json_t *row = item_row(it);
    if (fresh)
        store_post(t->ag->store, "INSERT INTO items(id, session, turn, doc) VALUES(?,?,?,?)",
                   "sisj", it->id, t->session->rid, t->id, row);
    else
        store_post(t->ag->store, "UPDATE items SET doc = ? WHERE id = ?", "js", row, it->id);
}

/* Appends clean text within the bound; says it. */
static void show(struct item *it, const char *text, size_t len)
{
    if (it->cut || !len)
        return;
    size_t take = 0;
    while (take < len && it->chars < AG_TEXT_MAX) {
        uint32_t cp;
        take += utf8_next(text + take, &cp);
        it->chars++;
    }
    if (take > len)
        take = len;
    buf_add(&it->text, text, take);
    say_delta(it, text, take);
    if (take < len) {
        it->cut = true;
        buf_adds(&it->text, CUT_MARK);
    }
    /* Lists show unfinished items, too; not each delta is worth a write. */
    uint64_t now = mono_ms();
    if (now - it->saved_ms > 250)
        item_save(it, false);
}

static const struct redact *secrets(const struct turn *t)
{
    return t->run ? runner_redact(t->run) : NULL;
}

static void flush_text(struct item *it)
{
    autobuf struct buf clean = BUF_INIT;
    redact_finish(secrets(it->turn), &it->stream, &clean);
    if (buf_str(&clean))
        show(it, clean.data, clean.len);
}

/* The closing frames; the item is gone afterwards. */
static void item_close(struct item *it)
{
    struct turn *t = it->turn;
    struct session *s = t->session;
    int sub = 0;
    if (it->type == ITEM_MESSAGE || it->type == ITEM_REASONING) {
        flush_text(it);
        if (!s->log.muted) {
            bool msg = it->type == ITEM_MESSAGE;
            const char *index = msg ? "content_index" : "summary_index";
            const char *part = msg ? "output_text" : "summary_text";
            json_t *text = json_bytes(it->text.data ? it->text.data : "", it->text.len);
            emit(s, sub++,
                 msg ? "agent.session.turn.output_text.done"
                     : "agent.session.turn.reasoning_summary_text.done",
                 with(with(place(it), index, json_integer(0)), "text", json_incref(text)));
            emit(s, sub++,
                 msg ? "agent.session.turn.content_part.done"
                     : "agent.session.turn.reasoning_summary_part.done",
                 with(with(place(it), index, json_integer(0)), "part",
                      json_pack("{s:s, s:o}", "type", part, "text", text)));
        }
    }
    if (!s->log.muted)
        emit(s, sub, "agent.session.turn.item.done",
             json_pack("{s:s, s:s, s:i, s:o}", "session_id", s->id, "turn_id", t->id,
                       "output_index", it->index, "item", item_json(it)));
    item_save(it, false);
    if (t->watch && t->watch->item_done)
        t->watch->item_done(t->watch_owner, it);
    item_free(it);
}

static void close_waiting(struct turn *t, const char *phase)
{
    list_for_each_safe(n, runner_items(t->run))
    {
        struct item *it = list_entry(n, struct item, node);
        if (it->type == ITEM_MESSAGE && it->finished) {
            it->phase = phase;
            item_close(it);
        }
    }
}

struct item *turn_item(struct turn *t, int type, const char *key, const char *kind)
{
    if (t->n_items >= MAX_ITEMS)
        return NULL;
    close_waiting(t, "commentary");
    struct item *it = calloc(1, sizeof(*it));
    if (!it)
        return NULL;
    it->turn = t;
    it->type = (enum item_type)type;
    it->index = t->n_items++;
    it->key = key ? strdup(key) : NULL;
    it->kind = kind ? strdup(kind) : NULL;
    it->status = "in_progress";
    it->duration_ms = -1;
    it->started_ns = mono_ns();
    it->saved_ms = mono_ms();
    agents_new_id("item_", it->id);
    list_init(&it->node);
    list_append(runner_items(t->run), &it->node);
    return it;
}

struct item *turn_find(struct turn *t, const char *key, const char *kind)
{
    list_for_each(n, runner_items(t->run))
    {
        struct item *it = list_entry(n, struct item, node);
        if (it->finished || (key && (!it->key || strcmp(it->key, key) != 0)) ||
            (kind && (!it->kind || strcmp(it->kind, kind) != 0)))
            continue;
        return it;
    }
    return NULL;
}

bool turn_tool_runs(const struct turn *t)
{
    list_for_each(n, runner_items(t->run))
    {
        const struct item *it = list_entry(n, struct item, node);
        if (it->type == ITEM_COMMAND || it->type == ITEM_CALL)
            return true;
    }
    return false;
}

void item_announce(struct item *it)
{
    struct turn *t = it->turn;
    struct session *s = t->session;
    if (!s->log.muted) {
        emit(s, 0, "agent.session.turn.item.added",
             json_pack("{s:s, s:s, s:i, s:o}", "session_id", s->id, "turn_id", t->id,
                       "output_index", it->index, "item", item_json(it)));
        if (it->type == ITEM_MESSAGE)
            emit(s, 1, "agent.session.turn.content_part.added",
                 with(with(place(it), "content_index", json_integer(0)), "part",
                      json_pack("{s:s, s:s}", "type", "output_text", "text", "")));
        else if (it->type == ITEM_REASONING)
            emit(s, 1, "agent.session.turn.reasoning_summary_part.added",
                 with(with(place(it), "summary_index", json_integer(0)), "part",
                      json_pack("{s:s, s:s}", "type", "summary_text", "text", "")));
    }
    item_save(it, true);
    if (t->watch && t->watch->item_added)
        t->watch->item_added(t->watch_owner, it);
}

/* last: nothing follows, so what was held back goes with it, in one delta. */
static void add_text(struct item *it, const char *text, size_t len, bool last)
{
    if (it->cut)
        return;
    if (it->raw.len < 4 * AG_TEXT_MAX)
        buf_add(&it->raw, text, len);
    autobuf struct buf clean = BUF_INIT;
    redact_feed(secrets(it->turn), &it->stream, text, len, &clean);
    if (last)
        redact_finish(secrets(it->turn), &it->stream, &clean);
    if (buf_str(&clean))
        show(it, clean.data, clean.len);
}

void item_delta(struct item *it, const char *text, size_t len) { add_text(it, text, len, false); }

void item_finish(struct item *it, const char *text, size_t len)
{
    struct turn *t = it->turn;
    if (text && !it->cut) {
        if (len >= it->raw.len &&
            memcmp(text, it->raw.data ? it->raw.data : "", it->raw.len) == 0) {
            size_t had = it->raw.len;
            if (len > had)
                add_text(it, text + had, len - had, true);
        } else { /* the final text is another one: it counts */
            autobuf struct buf clean = BUF_INIT;
            redact_text(secrets(t), text, len, &clean);
            redact_stream_done(&it->stream);
            it->stream = (struct redact_stream){0};
            buf_reset(&it->text);
            size_t take = 0;
            uint32_t cp;
            for (it->chars = 0; buf_str(&clean) && take < clean.len && it->chars < AG_TEXT_MAX;
                 it->chars++)
                take += utf8_next(clean.data + take, &cp);
            buf_add(&it->text, clean.data, take);
            if (take < clean.len) {
                it->cut = true;
                buf_adds(&it->text, CUT_MARK);
            }
        }
    }
    it->status = "completed";
    it->finished = true;
    if (it->type == ITEM_REASONING) {
        item_close(it);
    } else if (it->index < t->n_items - 1) {
        it->phase = "commentary";
        item_close(it);
    } else {
        flush_text(it); /* shown whole, the closing frames wait */
        item_save(it, false);
    }
}

void item_set_command(struct item *it, const char *command)
{
    free(it->command);
    it->command = redact_copy(secrets(it->turn), command);
}

void item_set_call(struct item *it, const char *label, const char *name, const json_t *arguments,
                   bool mcp)
{
    free(it->label);
    free(it->name);
    json_decref(it->arguments);
    it->label = strdup(label);
    it->name = redact_copy(secrets(it->turn), name);
    it->arguments = redact_json(secrets(it->turn), arguments ? arguments : json_null());
    it->mcp = mcp;
}

void item_output(struct item *it, const char *output, size_t len)
{
    autobuf struct buf clean = BUF_INIT;
    redact_text(secrets(it->turn), output, len, &clean);
    if (!buf_str(&clean))
        return;
    if (it->type == ITEM_CALL && !it->output)
        it->output = strdup("");
    /* All of it so far: what was shown already stays, what is new is a delta. */
    size_t same = it->text.len <= clean.len &&
                          memcmp(clean.data, it->text.data ? it->text.data : "", it->text.len) == 0
                      ? it->text.len
                      : 0;
    if (it->cut)
        return;
    if (!same && it->text.len) {
        buf_reset(&it->text);
        it->chars = 0;
    }
    show(it, clean.data + same, clean.len - same);
}

void item_set_error(struct item *it, const char *error)
{
    free(it->error);
    it->error = redact_copy(secrets(it->turn), error);
    if (it->error)
        it->error[utf8_floor(it->error, strlen(it->error) < 65536 ? strlen(it->error) : 65536)] =
            '\0';
}

void item_end(struct item *it, bool failed)
{
    it->status = failed ? "failed" : "completed";
    it->duration_ms = (int64_t)((mono_ns() - it->started_ns) / 1000000);
    item_close(it);
}

void turn_close_items(struct turn *t)
{
    close_waiting(t, "final_answer");
    struct list *items = runner_items(t->run);
    while (!list_empty(items)) {
        struct item *it = list_entry(items->next, struct item, node);
        it->status =
            it->type == ITEM_MESSAGE || it->type == ITEM_REASONING ? "incomplete" : "failed";
        if (it->type == ITEM_MESSAGE)
            it->phase = it->index < t->n_items - 1 ? "commentary" : "final_answer";
        item_close(it);
    }
}

/* --- what else an adapter reports ------------------------------------------------------------- */

void turn_thread(struct turn *t, const char *thread)
{
    struct session *s = t->session;
    size_t len = strlen(thread);
    /* It becomes an argument of the next turn. */
    if (!len || len > 128 || thread[0] == '-' || (s->thread && strcmp(s->thread, thread) == 0))
        return;
    char *copy = strdup(thread);
    if (!copy)
        return;
    if (!s->thread)
        s->reported = (struct ag_usage){0};
    free(s->thread);
    s->thread = copy;
    store_post(t->ag->store, "UPDATE sessions SET thread = ? WHERE rid = ?", "si", copy, s->rid);
}

/* The CLIs report sums over the resumed conversation; a turn's share is the difference. */
void turn_usage(struct turn *t, int64_t input, int64_t cached, int64_t output, int64_t reasoning,
                int64_t total)
{
    struct session *s = t->session;
    struct ag_usage now = {true, input, cached, output, reasoning, total}, *last = &s->reported;
    t->usage = now;
    bool grows = last->known && input >= last->input && cached >= last->cached &&
                 output >= last->output && reasoning >= last->reasoning && total >= last->total;
    if (grows) {
        t->usage.input -= last->input;
        t->usage.cached -= last->cached;
        t->usage.output -= last->output;
        t->usage.reasoning -= last->reasoning;
        t->usage.total -= last->total;
    }
    if (total || grows)
        s->reported = now;
}

void turn_subagent(struct turn *t, const char *id, const char *name, const char *instructions,
                   bool closed)
{
    const struct redact *r = secrets(t);
    size_t len = strlen(id);
    if (!len || len > 128)
        return;
    autofree char *clean = instructions ? redact_copy(r, instructions) : NULL;
    autofree char *label = name ? redact_copy(r, name) : NULL;
    double now = wall_seconds();
    const char *runtime = session_adapter(t->session)->name;
    store_post(t->ag->store,
               "INSERT INTO subagents(id, session, runtime, name, instructions, opened, closed) "
               "VALUES(?,?,?,?,?,?,NULL)"
               " ON CONFLICT(session, id) DO UPDATE SET name = coalesce(excluded.name, name),"
               " instructions = coalesce(excluded.instructions, instructions)",
               "sisssd", id, t->session->rid, runtime, label, clean, now);
    if (closed)
        store_post(t->ag->store,
                   "UPDATE subagents SET closed = coalesce(closed, ?) WHERE session = ? AND id = ?",
                   "dis", now, t->session->rid, id);
}

void turn_subentry(struct turn *t, const char *subagent, const json_t *entry)
{
    autojson json_t *clean = redact_json(secrets(t), entry);
    if (runner_count_subentry(t->run) && strlen(subagent) <= 128)
        store_post(t->ag->store,
                   "INSERT INTO subentries(session, subagent, at, doc) VALUES(?,?,?,?)", "isdj",
                   t->session->rid, subagent, wall_seconds(), clean);
}

/* --- life ------------------------------------------------------------------------------------ */

struct turn *turn_new(struct session *s, const char *id, const char *prompt, size_t len)
{
    struct turn *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->session = s;
    t->ag = s->ag;
    t->status = "queued";
    t->created = wall_seconds();
    t->prompt = malloc(len + 1);
    if (!t->prompt) {
        free(t);
        return NULL;
    }
    memcpy(t->prompt, prompt, len);
    t->prompt[len] = '\0';
    t->prompt_len = len;
    snprintf(t->id, sizeof(t->id), "%s", id);
    list_init(&t->node);
    list_init(&t->wait);
    s->ag->prompt_bytes += len;
    return t;
}

void turn_free(struct turn *t)
{
    if (!t)
        return;
    t->ag->prompt_bytes -= t->prompt_len;
    list_remove(&t->node);
    list_remove(&t->wait);
    free(t->prompt);
    free(t->instructions);
    free(t->model);
    json_decref(t->tools);
    free(t);
}

static void say_turn(struct turn *t, const char *type)
{
    struct session *s = t->session;
    if (s->log.muted)
        return;
    json_t *o =
        json_pack("{s:s, s:s, s:o}", "session_id", s->id, "turn_id", t->id, "turn", turn_json(t));
    if (t->usage.known && t->completed > 0)
        json_object_set_new(o, "usage", ag_usage_json(&t->usage));
    emit(s, 0, type, o);
}

static void say_session(struct session *s, const char *type)
{
    if (!s->log.muted)
        emit(s, 0, type, json_pack("{s:o}", "session", session_json(s)));
}

void turn_submit(struct turn *t)
{
    struct session *s = t->session;
    list_append(&s->turns, &t->node);
    s->n_turns++;
    t->hooks = !s->hidden && hooks_any(t->ag->hooks, s->owner);
    if (!s->busy) {
        s->busy = true;
        say_session(s, "agent.session.in_progress");
        if (t->hooks)
            hooks_fire(t->ag->hooks, s, "agent.session.in_progress");
    }
    say_turn(t, "agent.session.turn.created");
    if (s->turns.next == &t->node)
        list_append(&t->ag->waiting, &t->wait);
    agents_schedule(t->ag);
}

struct turn *session_running(const struct session *s)
{
    if (list_empty(&s->turns))
        return NULL;
    struct turn *t = list_entry(s->turns.next, struct turn, node);
    return t->state == TURN_QUEUED ? NULL : t;
}

void agents_schedule(struct agents *ag)
{
    while (!ag->stopping && ag->n_running < ag->set.max_turns && !list_empty(&ag->waiting)) {
        struct turn *t = list_entry(ag->waiting.next, struct turn, wait);
        list_remove(&t->wait);
        ag->n_running++;
        loop_metrics(ag->d.loop)->turns_running++;
        t->state = TURN_STARTING;
        t->status = "in_progress";
        t->started = wall_seconds();
        store_post(ag->store, "UPDATE turns SET status = 'in_progress', started = ? WHERE id = ?",
                   "ds", t->started, t->id);
        say_turn(t, "agent.session.turn.in_progress");
        if (t->watch && t->watch->started)
            t->watch->started(t->watch_owner);
        runner_start(t);
    }
}

void turn_over(struct turn *t, const char *status, const char *code, const char *message)
{
    struct session *s = t->session;
    struct agents *ag = t->ag;
    bool ran = t->state != TURN_QUEUED;
    if (t->run)
        turn_close_items(t);
    t->status = status;
    t->completed = wall_seconds();
    t->state = TURN_OVER;
    if (code) {
        snprintf(t->error_code, sizeof(t->error_code), "%s", code);
        autobuf struct buf clean = BUF_INIT;
        redact_text(secrets(t), message, strlen(message), &clean);
        const char *text = buf_str(&clean);
        size_t take = 0, chars = 0;
        uint32_t cp;
        while (text && take < clean.len && chars++ < 2000 && take < sizeof(t->error_message) - 8)
            take += utf8_next(text + take, &cp);
        snprintf(t->error_message, sizeof(t->error_message), "%.*s", (int)take, text ? text : "");
    }
    ag_usage_add(&s->usage, &t->usage);
    autojson json_t *error =
        code ? json_pack("{s:s, s:s}", "code", t->error_code, "message", t->error_message) : NULL;
    autojson json_t *usage = t->usage.known ? ag_usage_json(&t->usage) : NULL;
    store_post(
        ag->store,
        "UPDATE turns SET status = ?, completed = ?, error = ?, usage = ?, items = ? WHERE id = ?",
        "sdjjis", status, t->completed, error, usage, (int64_t)t->n_items, t->id);
    say_turn(t, strcmp(status, "completed") == 0 ? "agent.session.turn.completed"
                : strcmp(status, "failed") == 0  ? "agent.session.turn.failed"
                                                 : "agent.session.turn.cancelled");
    if (code && t->hooks && !s->dead)
        hooks_fire(ag->hooks, s, "agent.session.failed");

    list_remove(&t->node);
    list_remove(&t->wait);
    s->n_turns--;
    struct metrics *m = loop_metrics(ag->d.loop);
    if (ran) {
        ag->n_running--;
        m->turns_running--;
    }
    if (strcmp(status, "completed") == 0)
        m->turns_completed++;
    else if (strcmp(status, "failed") == 0)
        m->turns_failed++;
    else
        m->turns_cancelled++;
    if (t->run) {
        runner_free(t->run);
        t->run = NULL;
    }
    if (list_empty(&s->turns) && s->busy) {
        s->busy = false;
        say_session(s, "agent.session.idle");
        if (t->hooks && !s->dead)
            hooks_fire(ag->hooks, s, "agent.session.idle");
    } else if (!list_empty(&s->turns)) {
        struct turn *next = list_entry(s->turns.next, struct turn, node);
        if (next->state == TURN_QUEUED && list_empty(&next->wait))
            list_append(&ag->waiting, &next->wait);
    }
    autojson json_t *reported = s->reported.known ? ag_usage_json(&s->reported) : NULL;
    store_post(ag->store, "UPDATE sessions SET active = ?, usage = ? WHERE rid = ?", "dji",
               s->active, reported, s->rid);
    if (t->watch && t->watch->ended)
        t->watch->ended(t->watch_owner, t);
    turn_free(t);
    agents_schedule(ag);
    session_settle(s);
}

void turn_cancel(struct turn *t)
{
    if (t->state == TURN_QUEUED)
        turn_over(t, "cancelled", NULL, NULL);
    else if (t->state != TURN_OVER)
        runner_cancel(t);
}
