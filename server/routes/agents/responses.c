/* Responses: one turn of a hidden session each. What happens in the turn is said as it happens,
 * into a log of the response's own; JSON, SSE and WebSocket answers are readers of that log or wait
 * for its end. */
#include "routes/agents/common.h"

#include "base/json.h"
#include "base/log.h"
#include "base/num.h"
#include "base/utf8.h"
#include "http/ws.h"

#include <stdio.h>
#include <string.h>

#define KEEP_ALIVE_MS 15000
#define MAX_SOCKET_QUEUE 32
#define MAX_FRAME (10 * MIB)
#define MAX_OUTPUT_BYTES (64 * MIB)

struct response {     /* being answered; loop */
    struct list node; /* agents.responses */
    struct agents *ag;
    char id[AG_ID_MAX], turn[AG_ID_MAX], session[AG_ID_MAX];
    char *owner;
    int64_t rid;
    json_t *doc; /* as stored */
    struct evlog log;
    struct turn *t; /* NULL when over */
    struct list waiters;
    int n_readers;
    bool store, over;
    json_t *final; /* the answer, once over */
};

struct waiter { /* somebody who wants the whole response */
    struct list node;
    struct response *r;
    struct job j;
    bool cancel_with_client;
};

/* --- rendering
 * ------------------------------------------------------------------------------------------- */

/* The output form of a stored item; new reference. */
static json_t *output_item(const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *id = json_string_value(json_object_get(item, "id"));
    const char *hex = id && strchr(id, '_') ? strchr(id, '_') + 1 : "";
    bool mcp = json_is_true(json_object_get(item, "_mcp"));
    char shown[AG_ID_MAX];
    const char *prefix = strcmp(type, "message") == 0             ? "msg_"
                         : strcmp(type, "reasoning") == 0         ? "rs_"
                         : strcmp(type, "command_execution") == 0 ? "cmd_"
                         : mcp                                    ? "mcp_"
                                                                  : "tc_";
    snprintf(shown, sizeof(shown), "%s%s", prefix, hex);
    const json_t *status = json_object_get(item, "status");
    if (prefix[0] == 'm' && prefix[1] == 's') {
        const json_t *text =
            json_object_get(json_array_get(json_object_get(item, "content"), 0), "text");
        return json_pack("{s:s, s:s, s:O, s:s, s:[{s:s, s:O, s:[]}]}", "id", shown, "type",
                         "message", "status", status, "role", "assistant", "content", "type",
                         "output_text", "text", text, "annotations");
    }
    if (prefix[0] == 'r')
        return json_pack("{s:s, s:s, s:O, s:O}", "id", shown, "type", "reasoning", "summary",
                         json_object_get(item, "summary"), "status", status);
    json_t *o;
    if (prefix[0] == 'c') {
        o = json_pack("{s:s, s:s, s:O, s:O, s:O, s:O, s:O, s:O}", "id", shown, "type",
                      "command_execution", "status", status, "command",
                      json_object_get(item, "command"), "cwd", json_object_get(item, "cwd"),
                      "output", json_object_get(item, "output"), "exit_code",
                      json_object_get(item, "exit_code"), "duration_ms",
                      json_object_get(item, "duration_ms"));
    } else if (mcp) {
        autobuf struct buf arguments = BUF_INIT;
        json_write(&arguments, json_object_get(item, "arguments"));
        o = json_pack("{s:s, s:s, s:O, s:O, s:O, s:s, s:O, s:O}", "id", shown, "type", "mcp_call",
                      "status", status, "server_label", json_object_get(item, "server_label"),
                      "name", json_object_get(item, "name"), "arguments",
                      buf_str(&arguments) ? arguments.data : "", "output",
                      json_object_get(item, "output"), "error", json_object_get(item, "error"));
    } else {
        o = json_pack("{s:s, s:s, s:O, s:O, s:O, s:O, s:O}", "id", shown, "type", "tool_call",
                      "status", status, "tool_name", json_object_get(item, "name"), "arguments",
                      json_object_get(item, "arguments"), "output", json_object_get(item, "output"),
                      "error", json_object_get(item, "error"));
    }
    return label(o, "local_process", "response_is_cli_turn", NULL);
}

static json_t *usage_form(const json_t *usage)
{
    if (!json_is_object(usage))
        return json_null();
    json_t *o = json_deep_copy(usage);
    json_object_set_new(json_object_get(o, "input_tokens_details"), "cache_write_tokens",
                        json_integer(0));
    return o;
}

/* doc: as stored. status: of the turn. output, usage, error: borrowed; NULL: none. */
static json_t *render(const json_t *doc, const char *id, const char *status, double completed,
                      const json_t *error, const json_t *usage, const json_t *output)
{
    bool resolved = json_is_true(json_object_get(doc, "resolved")),
         steer = json_is_true(json_object_get(doc, "steer"));
    char differences[96];
    snprintf(differences, sizeof(differences), "response_is_cli_turn%s%s",
             resolved ? " model_passthrough" : "", steer ? " queued_steer" : "");
    json_t *shown_error = json_null();
    if (strcmp(status, "failed") == 0) {
        const char *code = json_string_value(json_object_get(error, "code"));
        shown_error =
            json_pack("{s:s, s:O?}", "code",
                      code && strcmp(code, "rate_limit_exceeded") == 0 ? code : "server_error",
                      "message", json_object_get(error, "message"));
    }
    json_t *o = json_pack(
        "{s:s, s:s, s:O, s:o, s:s, s:O, s:o, s:n, s:O, s:O, s:O}", "id", id, "object", "response",
        "created_at", json_object_get(doc, "created_at"), "completed_at",
        strcmp(status, "completed") == 0 ? stamp_json(completed) : json_null(), "status", status,
        "background", json_object_get(doc, "background"), "error", shown_error,
        "incomplete_details", "instructions", json_object_get(doc, "instructions"), "metadata",
        json_object_get(doc, "metadata"), "model", json_object_get(doc, "model"));
    json_object_set_new(o, "output", output ? json_incref((json_t *)output) : json_array());
    json_object_set_new(o, "parallel_tool_calls", json_false());
    json_object_set(o, "previous_response_id", json_object_get(doc, "previous"));
    json_object_set_new(o, "service_tier", json_null());
    json_object_set(o, "store", json_object_get(doc, "store"));
    json_object_set_new(o, "temperature", json_null());
    json_object_set_new(o, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    json_object_set_new(o, "tool_choice", json_string("auto"));
    json_object_set(o, "tools", json_object_get(doc, "tools"));
    json_object_set_new(o, "top_p", json_null());
    json_object_set_new(o, "usage", usage_form(usage));
    return label(o, "local_process", differences, json_pack("{s:b}", "model_resolved", resolved));
}

/* A stored response with what its turn has become. Lock held. NULL: not there. */
static json_t *render_stored(struct agents *ag, const char *id, const char *owner, int64_t *ret_rid)
{
    sqlite3_stmt *s = store_stmt(
        ag->store,
        "SELECT r.doc, r.turn, t.status, t.completed, t.error, t.usage, r.rid FROM responses r"
        " LEFT JOIN turns t ON t.id = r.turn WHERE r.id = ? AND r.owner = ?",
        "ss", id, owner);
    if (!s || sqlite3_step(s) != SQLITE_ROW) {
        if (s)
            sqlite3_reset(s);
        return NULL;
    }
    autojson json_t *doc = store_json(s, 0), *error = store_json(s, 4), *usage = store_json(s, 5),
                    *output = json_array();
    autofree char *turn = strdup(store_text(s, 1)), *status = strdup(store_text(s, 2));
    double completed = sqlite3_column_double(s, 3);
    if (ret_rid)
        *ret_rid = sqlite3_column_int64(s, 6);
    sqlite3_reset(s);
    s = store_stmt(ag->store, "SELECT doc FROM items WHERE turn = ? ORDER BY rid", "s", turn);
    size_t bytes = 0;
    while (s && bytes < MAX_OUTPUT_BYTES && sqlite3_step(s) == SQLITE_ROW) {
        autojson json_t *item = store_json(s, 0);
        bytes += (size_t)sqlite3_column_bytes(s, 0);
        if (json_is_object(item))
            json_array_append_new(output, output_item(item));
    }
    if (s)
        sqlite3_reset(s);
    bool going = strcmp(status, "queued") == 0 || strcmp(status, "in_progress") == 0;
    return render(doc, id, *status ? status : "failed", completed, error, usage,
                  going ? NULL : output);
}

/* --- events
 * ------------------------------------------------------------------------------------------------
 */

static void say(struct response *r, const char *type, json_t *fields)
{
    json_t *o =
        json_pack("{s:s, s:I}", "type", type, "sequence_number", (json_int_t)(r->log.next_seq - 1));
    json_object_update(o, fields);
    json_decref(fields);
    evlog_add(&r->log, 0, type, o);
    json_decref(o);
}

static json_t *item_out(const struct item *it)
{
    autojson json_t *o = item_json(it);
    if (it->mcp)
        json_object_set_new(o, "_mcp", json_true());
    return output_item(o);
}

static void on_added(void *owner, const struct item *it)
{
    struct response *r = owner;
    json_t *o = item_out(it);
    if (it->type == ITEM_MESSAGE)
        json_object_set_new(o, "content", json_array());
    json_t *id = json_incref(json_object_get(o, "id"));
    say(r, "response.output_item.added",
        json_pack("{s:i, s:o}", "output_index", it->index, "item", o));
    if (it->type == ITEM_MESSAGE)
        say(r, "response.content_part.added",
            json_pack("{s:O, s:i, s:i, s:{s:s, s:s, s:[]}}", "item_id", id, "output_index",
                      it->index, "content_index", 0, "part", "type", "output_text", "text", "",
                      "annotations"));
    json_decref(id);
}

static json_t *message_id(const struct item *it)
{
    char id[AG_ID_MAX];
    snprintf(id, sizeof(id), "msg_%s", strchr(it->id, '_') + 1);
    return json_string(id);
}

static void on_delta(void *owner, const struct item *it, const char *text, size_t len)
{
    struct response *r = owner;
    if (it->type == ITEM_MESSAGE)
        say(r, "response.output_text.delta",
            json_pack("{s:o, s:i, s:i, s:o, s:[]}", "item_id", message_id(it), "output_index",
                      it->index, "content_index", 0, "delta", json_bytes(text, len), "logprobs"));
}

static void on_item_done(void *owner, const struct item *it)
{
    struct response *r = owner;
    json_t *o = item_out(it);
    if (it->type == ITEM_MESSAGE) {
        json_t *part = json_array_get(json_object_get(o, "content"), 0);
        say(r, "response.output_text.done",
            json_pack("{s:o, s:i, s:i, s:O, s:[]}", "item_id", message_id(it), "output_index",
                      it->index, "content_index", 0, "text", json_object_get(part, "text"),
                      "logprobs"));
        say(r, "response.content_part.done",
            json_pack("{s:o, s:i, s:i, s:O}", "item_id", message_id(it), "output_index", it->index,
                      "content_index", 0, "part", part));
    }
    say(r, "response.output_item.done",
        json_pack("{s:i, s:o}", "output_index", it->index, "item", o));
}

static void response_free(struct response *r)
{
    list_remove(&r->node);
    evlog_done(&r->log);
    json_decref(r->doc);
    json_decref(r->final);
    free(r->owner);
    free(r);
}

/* Its readers have gone and its end was said: the store has the rest. */
static void response_settle(struct response *r)
{
    if (!r->over || r->n_readers || !list_empty(&r->waiters))
        return;
    struct agents *ag = r->ag;
    if (!r->store) {
        store_post(ag->store, "DELETE FROM responses WHERE id = ?", "s", r->id);
        store_post(ag->store, "DELETE FROM events WHERE log = ?", "i", r->log.id);
        struct session *s = session_find(ag, r->session, r->owner, true);
        if (s && !json_is_string(json_object_get(r->doc, "previous")))
            session_delete(s, NULL, NULL);
    }
    response_free(r);
}

struct ending {
    struct response *r;
    json_t *final;
};

static void read_final(void *data)
{
    struct ending *e = data;
    store_lock(e->r->ag->store);
    e->final = render_stored(e->r->ag, e->r->id, e->r->owner, NULL);
    store_unlock(e->r->ag->store);
}

static void final_read(void *data)
{
    struct ending *e = data;
    struct response *r = e->r;
    r->final = e->final ? e->final : render(r->doc, r->id, "failed", 0, NULL, NULL, NULL);
    free(e);
    const char *status = json_string_value(json_object_get(r->final, "status"));
    say(r,
        strcmp(status, "completed") == 0 ? "response.completed"
        : strcmp(status, "failed") == 0  ? "response.failed"
                                         : "response.incomplete",
        json_pack("{s:O}", "response", r->final));
    r->over = true;
    while (!list_empty(&r->waiters)) {
        struct waiter *w = list_entry(r->waiters.next, struct waiter, node);
        list_remove(&w->node);
        req_on_gone(w->j.c.req, NULL, NULL);
        job_finish(&w->j, reply(&w->j.c, json_incref(r->final)));
        free(w);
    }
    r->n_readers++; /* completing may close the last one */
    evlog_complete(&r->log);
    r->n_readers--;
    response_settle(r);
}

static void on_turn_ended(void *owner, struct turn *t)
{
    struct response *r = owner;
    struct ending *e = calloc(1, sizeof(*e));
    r->t = NULL;
    store_post(r->ag->store, "DELETE FROM mem.secrets WHERE ref = ?", "s", t->id);
    if (!e) {
        log_error("agents: out of memory, response %s has no end", r->id);
        return;
    }
    e->r = r;
    if (loop_work(r->ag->d.loop, WORK_SHORT, read_final, final_read, e) < 0)
        final_read(e);
}

static const struct turn_watch watch = {.item_added = on_added,
                                        .item_delta = on_delta,
                                        .item_done = on_item_done,
                                        .ended = on_turn_ended};

static struct response *response_find(struct agents *ag, const char *id, const char *owner)
{
    list_for_each(it, &ag->responses)
    {
        struct response *r = list_entry(it, struct response, node);
        if (strcmp(r->id, id) == 0 && strcmp(r->owner, owner) == 0)
            return r;
    }
    return NULL;
}

/* --- waiting for the whole
 * ---------------------------------------------------------------------------------- */

static void waiter_gone(void *data)
{
    struct waiter *w = data;
    if (w->cancel_with_client && w->r->t)
        turn_cancel(w->r->t);
}

static int wait_for(struct response *r, struct call *c, bool cancel_with_client)
{
    if (r->over)
        return reply(c, json_incref(r->final));
    struct waiter *w = calloc(1, sizeof(*w));
    if (!w)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(&w->j, c);
    w->r = r;
    w->cancel_with_client = cancel_with_client;
    list_init(&w->node);
    list_append(&r->waiters, &w->node);
    req_on_gone(c->req, waiter_gone, w);
    return REQ_PENDING;
}

/* --- SSE
 * ------------------------------------------------------------------------------------------------------
 */

struct out { /* one stream of a response's events */
    struct agents *ag;
    struct response *r;    /* NULL: a replay */
    struct evlog own;      /* of a replay */
    struct stream *stream; /* or */
    struct socket *socket;
    struct evlog_reader *in;
    struct timer alive;
    json_t *stored; /* replay: the response, for an end that is missing */
    bool cancel_with_client, terminal;
    int64_t last;
};

struct socket;
static void socket_next(struct socket *k);
static void socket_send(struct socket *k, const char *data, size_t len);
static bool socket_ready(struct socket *k);
static void socket_clear(struct socket *k);

static void out_free(struct out *o)
{
    struct response *r = o->r;
    timer_done(&o->alive);
    evlog_close(o->in);
    if (!r)
        evlog_done(&o->own);
    json_decref(o->stored);
    free(o);
    if (r) {
        r->n_readers--;
        response_settle(r);
    }
}

static void out_write(struct out *o, const char *type, const char *data, size_t len)
{
    if (o->socket) {
        socket_send(o->socket, data, len);
        return;
    }
    char head[96];
    int n = snprintf(head, sizeof(head), "event: %s\ndata: ", type);
    stream_write(o->stream, head, (size_t)n);
    stream_write(o->stream, data, len);
    stream_write(o->stream, "\n\n", 2);
    timer_start(&o->alive, KEEP_ALIVE_MS);
}

static bool is_terminal(const char *type)
{
    return strcmp(type, "response.completed") == 0 || strcmp(type, "response.failed") == 0 ||
           strcmp(type, "response.incomplete") == 0;
}

static bool out_frame(void *owner, int64_t seq, int sub, const char *type, const char *data,
                      size_t len)
{
    struct out *o = owner;
    o->last = seq;
    o->terminal = is_terminal(type);
    out_write(o, type, data, len);
    return true;
}

static bool out_ready(void *owner)
{
    struct out *o = owner;
    return o->socket ? socket_ready(o->socket) : !stream_full(o->stream);
}

static void out_ended(void *owner)
{
    struct out *o = owner;
    if (!o->r && !o->terminal && o->stored) { /* the server ended in the middle of it */
        autojson json_t *last =
            json_pack("{s:s, s:I, s:O}", "type", "response.failed", "sequence_number",
                      (json_int_t)(o->own.next_seq - 1), "response", o->stored);
        autofree char *text = ag_compact(last);
        if (text)
            out_write(o, "response.failed", text, strlen(text));
    }
    struct socket *socket = o->socket;
    if (o->stream)
        stream_end(o->stream);
    if (socket)
        socket_clear(socket);
    out_free(o);
    if (socket)
        socket_next(socket);
}

static const struct evlog_ops out_ops = {
    .frame = out_frame, .ready = out_ready, .ended = out_ended};

static void out_drain(void *owner)
{
    struct out *o = owner;
    evlog_resume(o->in);
}

static void out_gone(void *owner)
{
    struct out *o = owner;
    if (o->cancel_with_client && o->r && o->r->n_readers == 1 && o->r->t)
        turn_cancel(o->r->t);
    out_free(o);
}

static void out_alive(void *data)
{
    struct out *o = data;
    if (!stream_full(o->stream))
        stream_write(o->stream, ": keep-alive\n\n", 14);
    timer_start(&o->alive, KEEP_ALIVE_MS);
}

static struct out *out_new(struct agents *ag, struct response *r, int64_t after)
{
    struct out *o = calloc(1, sizeof(*o));
    if (!o)
        return NULL;
    o->ag = ag;
    o->r = r;
    timer_init(&o->alive, ag->d.loop, out_alive, o);
    if (r)
        r->n_readers++;
    o->in = r ? evlog_read(&r->log, after, &out_ops, o) : NULL;
    if (r && !o->in) {
        out_free(o);
        return NULL;
    }
    return o;
}

static int out_open(struct out *o, struct call *c)
{
    static const struct stream_ops ops = {.drain = out_drain, .gone = out_gone};
    if (reply_headers(c) < 0 || resp_header(c->resp, "Cache-Control", "no-cache", c->err) < 0 ||
        !(o->stream = stream_open_raw(c->req, "text/event-stream", -1, &ops, o))) {
        out_free(o);
        return -1;
    }
    timer_start(&o->alive, KEEP_ALIVE_MS);
    return REQ_PENDING;
}

static int stream_live(struct response *r, struct call *c, int64_t after, bool cancel_with_client)
{
    struct out *o = out_new(c->ag, r, after);
    if (!o)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    o->cancel_with_client = cancel_with_client;
    return out_open(o, c);
}

/* --- create
 * ------------------------------------------------------------------------------------------------------
 */

struct make {
    struct job j;
    const json_t *body; /* of the request, or own */
    json_t *own_body;
    struct socket *socket; /* or NULL: HTTP */
    const struct adapter *ad;
    const char *key, *agent_id;
    char hash[65];
    struct buf prompt, before;
    json_t *tools, *secrets, *shown_tools, *metadata;
    bool store, background, stream, steer, fresh, full;
    const char *effort;
    char ignored[256];
    /* made by the worker */
    char id[AG_ID_MAX], turn[AG_ID_MAX], session[AG_ID_MAX];
    int64_t rid, session_rid;
    json_t *cfg, *doc;
    char *replay;
};

static void make_free(struct make *k)
{
    buf_done(&k->prompt);
    buf_done(&k->before);
    json_decref(k->tools);
    json_decref(k->secrets);
    json_decref(k->shown_tools);
    json_decref(k->metadata);
    json_decref(k->cfg);
    json_decref(k->doc);
    json_decref(k->own_body);
    free(k->replay);
    free(k);
}

static bool given(const json_t *body, const char *key)
{
    const json_t *v = json_object_get(body, key);
    return v && !json_is_null(v);
}

static int read_bool(struct ag_error *e, const json_t *body, const char *key, bool fallback,
                     bool *ret)
{
    const json_t *v = json_object_get(body, key);
    *ret = fallback;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return ag_invalid(e, key, "%s: true or false", key);
    *ret = json_is_true(v);
    return 0;
}

/* sep: between it and what is there. */
static void add_text(struct buf *b, const char *sep, const json_t *text)
{
    if (b->len)
        buf_adds(b, sep);
    buf_add(b, json_string_value(text), json_string_length(text));
}

static int read_input(struct make *k, struct ag_error *e)
{
    const json_t *v = json_object_get(k->body, "input");
    if (json_is_string(v)) {
        add_text(&k->prompt, "\n\n", v);
        if (!k->prompt.len)
            return ag_invalid(e, "input", "input: empty");
    } else if (json_is_array(v) && json_array_size(v)) {
        size_t i, n;
        json_t *m, *part;
        json_array_foreach((json_t *)v, i, m)
        {
            char p[64];
            snprintf(p, sizeof(p), "input[%zu]", i);
            const char *type = json_string_value(json_object_get(m, "type"));
            const char *role = json_string_value(json_object_get(m, "role"));
            const json_t *content = json_object_get(m, "content");
            if (!json_is_object(m) ||
                (json_object_get(m, "type") && (!type || strcmp(type, "message") != 0))) {
                snprintf(p, sizeof(p), "input[%zu].type", i);
                return ag_invalid(e, p, "%s: message", p);
            }
            bool user = role && strcmp(role, "user") == 0;
            if (!user &&
                (!role || (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0))) {
                snprintf(p, sizeof(p), "input[%zu].role", i);
                return ag_invalid(e, p, "%s: user, system or developer", p);
            }
            struct buf *to = user ? &k->prompt : &k->before;
            if (json_is_string(content)) {
                add_text(to, "\n\n", content);
                continue;
            }
            snprintf(p, sizeof(p), "input[%zu].content", i);
            if (!json_is_array(content) || !json_array_size(content))
                return ag_invalid(e, p, "%s: a string or a list of input_text", p);
            json_array_foreach((json_t *)content, n, part)
            {
                const char *kind = json_string_value(json_object_get(part, "type"));
                const json_t *text = json_object_get(part, "text");
                bool known = kind && strcmp(kind, "input_text") == 0;
                snprintf(p, sizeof(p), "input[%zu].content[%zu].%s", i, n, known ? "text" : "type");
                if (!known || !json_is_string(text))
                    return ag_invalid(e, p, "%s: the text of an input_text", p);
                add_text(to, n ? "\n" : "\n\n", text);
            }
        }
        if (!k->prompt.len)
            return ag_invalid(e, "input", "input: no text of a user in it");
    } else {
        return ag_invalid(e, "input", "input: a string or a list of messages");
    }
    if (k->prompt.failed || k->before.failed)
        return ag_fail(e, 503, "server_error", NULL, "out of memory");
    if (memchr(k->prompt.data, 0, k->prompt.len) ||
        (k->before.len && memchr(k->before.data, 0, k->before.len)))
        return ag_invalid(e, "input", "input: no NUL in a prompt");
    return 0;
}

/* The tools of a response in the form of a session's. */
static int read_tools(struct make *k, struct ag_error *e)
{
    const json_t *v = json_object_get(k->body, "tools");
    k->shown_tools = json_array();
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v) || json_array_size(v) > 32)
        return ag_invalid(e, "tools", "tools: a list of at most 32");
    autojson json_t *list = json_array();
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)v, i, tool)
    {
        char p[64];
        snprintf(p, sizeof(p), "tools[%zu].", i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || strcmp(type, "mcp") != 0) {
            strncat(p, "type", sizeof(p) - strlen(p) - 1);
            return ag_invalid(e, p, "%s: only mcp", p);
        }
        if (only_keys(e, tool, p,
                      "type server_label server_url headers authorization require_approval "
                      "server_description allowed_tools") < 0)
            return -1;
        const char *bad = given(tool, "allowed_tools")                     ? "allowed_tools"
                          : !json_is_string(json_object_get(tool, "server_url")) ? "server_url"
                                                                           : NULL;
        if (bad) {
            strncat(p, bad, sizeof(p) - strlen(p) - 1);
            return ag_invalid(e, p, *bad == 'a' ? "%s: not supported here" : "%s: a URL", p);
        }
        const json_t *approval = json_object_get(tool, "require_approval");
        if (approval && !json_is_null(approval) &&
            (!json_is_string(approval) || strcmp(json_string_value(approval), "never") != 0)) {
            strncat(p, "require_approval", sizeof(p) - strlen(p) - 1);
            return ag_invalid(e, p, "%s: never", p);
        }
        const json_t *token = json_object_get(tool, "authorization");
        json_t *headers = json_is_object(json_object_get(tool, "headers"))
                              ? json_copy(json_object_get(tool, "headers"))
                              : json_object();
        if (token && !json_is_null(token)) {
            autobuf struct buf value = BUF_INIT;
            if (!json_is_string(token) || !json_string_length(token)) {
                json_decref(headers);
                strncat(p, "authorization", sizeof(p) - strlen(p) - 1);
                return ag_invalid(e, p, "%s: a token", p);
            }
            buf_addf(&value, "Bearer %s", json_string_value(token));
            json_object_set_new(headers, "Authorization",
                                json_text(buf_str(&value) ? value.data : ""));
        }
        json_array_append_new(
            list, json_pack("{s:s, s:O?, s:{s:s, s:O?, s:o}}", "type", "mcp", "server_label",
                            json_object_get(tool, "server_label"), "transport", "type", "http",
                            "server_url", json_object_get(tool, "server_url"), "headers", headers));
        json_array_append_new(k->shown_tools,
                              json_pack("{s:s, s:O?, s:O?}", "type", "mcp", "server_label",
                                        json_object_get(tool, "server_label"), "server_url",
                                        json_object_get(tool, "server_url")));
    }
    autojson json_t *as_agent = json_pack("{s:O}", "tools", list);
    struct agent_spec spec = {0};
    int rc = agent_read(e, as_agent, "", NULL, &spec);
    if (rc == 0 && json_array_size(spec.tools)) {
        k->tools = json_incref(spec.tools);
        k->secrets = json_incref(spec.secrets);
    }
    agent_spec_done(&spec);
    return rc;
}

static void ignore(struct make *k, const char *name)
{
    size_t n = strlen(k->ignored);
    snprintf(k->ignored + n, sizeof(k->ignored) - n, "%s%s", n ? "," : "", name);
}

static int read_body(struct make *k)
{
    struct call *c = &k->j.c;
    struct ag_error *e = c->e;
    const json_t *body = k->body, *v;
    if (only_keys(e, body, "",
                  "type model input instructions tools previous_response_id store background "
                  "stream metadata reasoning "
                  "temperature top_p max_output_tokens top_logprobs truncation parallel_tool_calls "
                  "user safety_identifier "
                  "prompt_cache_key prompt_cache_retention stream_options text service_tier "
                  "tool_choice include "
                  "conversation prompt adapter runtime") < 0)
        return -1;
    if (!k->socket && json_object_get(body, "type"))
        return ag_invalid(e, "type", "type: not a field that is known here");
    v = json_object_get(body, "model");
    const char *model = json_string_value(v);
    if (!model || !*model || text_chars(v) > 256 || *model == '-' ||
        strlen(model) != json_string_length(v))
        return ag_invalid(e, "model", "model: 1 to 256 characters that don't begin with -");
    if (read_input(k, e) < 0)
        return -1;
    v = json_object_get(body, "instructions");
    if (v && !json_is_null(v)) {
        if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
            return ag_invalid(e, "instructions", "instructions: a string");
        autobuf struct buf own = BUF_INIT;
        buf_add(&own, json_string_value(v), json_string_length(v));
        if (k->before.len) {
            buf_adds(&own, "\n\n");
            buf_add(&own, k->before.data, k->before.len);
        }
        buf_reset(&k->before);
        buf_add(&k->before, own.data ? own.data : "", own.len);
    }
    v = json_object_get(body, "previous_response_id");
    if (v && !json_is_null(v) && !json_is_string(v))
        return ag_invalid(e, "previous_response_id", "previous_response_id: the id of a response");
    if (read_bool(e, body, "store", true, &k->store) < 0 ||
        read_bool(e, body, "background", false, &k->background) < 0 ||
        read_bool(e, body, "stream", false, &k->stream) < 0)
        return -1;
    if (k->background && !k->store)
        return ag_invalid(e, "background", "background: needs store");
    if (read_metadata(e, json_object_get(body, "metadata"), "metadata", &k->metadata) < 0 ||
        read_tools(k, e) < 0)
        return -1;
    v = json_object_get(body, "service_tier");
    if (v && !json_is_null(v) &&
        (!json_is_string(v) || (strcmp(json_string_value(v), "auto") != 0 &&
                                strcmp(json_string_value(v), "default") != 0)))
        return ag_invalid(e, "service_tier", "service_tier: auto or default");
    v = json_object_get(body, "tool_choice");
    if (v && !json_is_null(v) && (!json_is_string(v) || strcmp(json_string_value(v), "auto") != 0))
        return ag_invalid(e, "tool_choice", "tool_choice: auto");
    v = json_object_get(body, "include");
    if (v && !json_is_null(v) && (!json_is_array(v) || json_array_size(v)))
        return ag_invalid(e, "include", "include: nothing can be included");
    if (given(body, "conversation"))
        return ag_invalid(e, "conversation", "conversation: not supported here");
    if (given(body, "prompt"))
        return ag_invalid(e, "prompt", "prompt: not supported here");
    const json_t *text = json_object_get(body, "text");
    if (text && !json_is_null(text)) {
        if (!json_is_object(text))
            return ag_invalid(e, "text", "text: an object");
        if (only_keys(e, text, "text.", "format verbosity") < 0)
            return -1;
        const json_t *format = json_object_get(text, "format");
        const char *type = json_string_value(json_object_get(format, "type"));
        if (format && !json_is_null(format) && (!type || strcmp(type, "text") != 0))
            return ag_invalid(e, "text.format", "text.format: only the type text");
    }
    static const char *const unused[] = {"temperature",
                                         "top_p",
                                         "max_output_tokens",
                                         "top_logprobs",
                                         "truncation",
                                         "parallel_tool_calls",
                                         "user",
                                         "safety_identifier",
                                         "prompt_cache_key",
                                         "prompt_cache_retention",
                                         "stream_options"};
    for (size_t i = 0; i < ARRAY_LEN(unused); i++)
        if (given(body, unused[i]))
            ignore(k, unused[i]);
    if (given(text, "verbosity"))
        ignore(k, "text.verbosity");
    if (strncmp(model, "agent_", 6) == 0)
        k->agent_id = model; /* when it is stored; else a model like any other */
    if (select_runtime(c, body, NULL, model, &k->ad) < 0) {
        if (!k->agent_id)
            return -1;
        *e = (struct ag_error){0};
    }
    v = json_object_get(body, "reasoning");
    if (v && !json_is_null(v)) {
        if (!json_is_object(v))
            return ag_invalid(e, "reasoning", "reasoning: an object");
        if (k->ad && k->ad != &adapter_codex) {
            ignore(k, "reasoning");
        } else {
            autojson json_t *probe =
                json_pack("{s:{s:O?}}", "reasoning", "effort", json_object_get(v, "effort"));
            struct agent_spec spec = {0};
            int rc = agent_read(e, probe, "", NULL, &spec);
            agent_spec_done(&spec);
            if (rc < 0)
                return -1;
            k->effort = json_string_value(json_object_get(v, "effort"));
        }
    }
    return 0;
}

/* The chain's session of a response that must be its newest. Lock held. */
static int find_chain(struct call *c, const char *previous, int64_t *ret_session,
                      char ret_id[AG_ID_MAX])
{
    sqlite3_stmt *s = store_stmt(
        c->ag->store,
        "SELECT r.session, s.id, r.rid = (SELECT max(rid) FROM responses WHERE session = r.session)"
        " FROM responses r JOIN sessions s ON s.rid = r.session WHERE r.id = ? AND r.owner = ?",
        "ss", previous, call_owner(c));
    bool found = s && sqlite3_step(s) == SQLITE_ROW, newest = false;
    if (found) {
        *ret_session = sqlite3_column_int64(s, 0);
        snprintf(ret_id, AG_ID_MAX, "%s", store_text(s, 1));
        newest = sqlite3_column_int(s, 2) != 0;
    }
    if (s)
        sqlite3_reset(s);
    if (!found)
        return ag_unknown(c->e, "previous_response_id", "response", previous);
    if (!newest)
        return ag_fail(c->e, 400, "agents.previous_response_not_latest", "previous_response_id",
                       "previous_response_id: a later response has continued it");
    return 0;
}

static int new_session(struct make *k)
{
    struct call *c = &k->j.c;
    const char *model = json_string_value(json_object_get(k->body, "model"));
    autojson json_t *definition = NULL;
    if (k->agent_id) {
        if (object_get(c, "definition", k->agent_id, "model", "agent", &definition) == 0) {
            k->ad = adapter_find(json_string_value(json_object_get(definition, "_runtime")));
            model = json_string_value(json_object_get(definition, "model"));
        } else if (k->ad) {
            *c->e = (struct ag_error){0};
            k->agent_id = NULL;
        } else {
            return -1;
        }
        if (!k->ad)
            return ag_refuse_adapter(c->e, "unknown", false);
    }
    const char *wanted =
        c->ag->set.responses_workspace ? c->ag->set.responses_workspace : "/workspace";
    autofree char *workspace = agents_default_workspace(c->ag, req_guard(c->req), wanted);
    if (!workspace)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    const json_t *effort = json_object_get(json_object_get(definition, "reasoning"), "effort");
    json_t *tools =
        definition ? json_deep_copy(json_object_get(definition, "tools")) : json_array();
    k->cfg = json_pack("{s:s, s:s, s:{}, s:{}, s:[], s:s, s:O, s:O, s:o, s:n}", "agent_id",
                       k->agent_id ? k->agent_id : k->ad->name, "runtime", k->ad->name, "agent",
                       "environment", "vault_ids", "workspace", workspace, "effort",
                       json_is_string(effort) ? effort : json_null(), "instructions",
                       definition ? json_object_get(definition, "instructions") : json_null(),
                       "tools", tools, "env_id");
    json_object_set_new(k->cfg, "metadata", json_object());
    json_object_set_new(k->cfg, "cli_model",
                        model && !ag_is_runtime(model) ? json_string(model) : json_null());
    const char *shown = json_string_value(json_object_get(k->body, "model"));
    json_object_set_new(k->cfg, "shown_model",
                        json_string(ag_is_runtime(shown) ? k->ad->name : shown));
    agents_new_id("agsess_", k->session);
    k->fresh = true;
    k->full = agents_full(c->ag);
    double now = wall_seconds();
    if (store_exec(c->ag->store, c->err,
                   "INSERT INTO sessions(id, owner, hidden, agent_id, cfg, created, active) "
                   "VALUES(?,?,1,?,?,?,?)",
                   "sssjdd", k->session, call_owner(c),
                   json_string_value(json_object_get(k->cfg, "agent_id")), k->cfg, now, now) < 0)
        return ag_store_fail(c->e, c->err);
    sqlite3_stmt *s = store_stmt(c->ag->store, "SELECT last_insert_rowid()", "");
    if (s && sqlite3_step(s) == SQLITE_ROW)
        k->session_rid = sqlite3_column_int64(s, 0);
    if (s)
        sqlite3_reset(s);
    if (definition) { /* the headers of the definition's tools */
        bool lost;
        autojson json_t *real = agents_tools_with_secrets(c->ag, k->agent_id, tools, &lost),
                        *secrets = json_object();
        size_t i;
        json_t *tool;
        json_array_foreach(real, i, tool)
            json_object_set(secrets, json_string_value(json_object_get(tool, "server_label")),
                            json_object_get(json_object_get(tool, "transport"), "headers"));
        if (lost)
            return ag_fail(c->e, 400, "agents.credential_unavailable", "model",
                           "model: header values of the agent's tools did not survive the restart");
        if (json_array_size(tools) && secrets_store(c, k->session, secrets) < 0)
            return -1;
    }
    return 0;
}

static int rows(struct make *k)
{
    struct call *c = &k->j.c;
    struct store *st = c->ag->store;
    autobuf struct buf scope = BUF_INIT;
    buf_addf(&scope, "responses:%s", call_owner(c));
    if (k->key && buf_str(&scope)) {
        int found = key_find(c, scope.data, k->key, k->hash, &k->replay);
        if (found)
            return found < 0 ? -1 : 0;
    }
    const json_t *previous = json_object_get(k->body, "previous_response_id");
    const json_t *model;
    autojson json_t *chain = NULL;
    if (store_begin(st, c->err) < 0)
        return ag_store_fail(c->e, c->err);
    if (json_is_string(previous)) {
        if (find_chain(c, json_string_value(previous), &k->session_rid, k->session) < 0)
            return -1;
        sqlite3_stmt *s =
            store_stmt(st, "SELECT cfg FROM sessions WHERE rid = ?", "i", k->session_rid);
        if (s && sqlite3_step(s) == SQLITE_ROW)
            chain = store_json(s, 0);
        if (s)
            sqlite3_reset(s);
    } else if (new_session(k) < 0) {
        return -1;
    }
    const json_t *cfg = chain ? chain : k->cfg;
    model = json_object_get(cfg, "shown_model");
    agents_new_id("resp_", k->id);
    agents_new_id("turn_", k->turn);
    double now = wall_seconds();
    char message[AG_ID_MAX];
    autojson json_t *inputs = json_array();
    const json_t *input = json_object_get(k->body, "input");
    size_t i;
    json_t *m;
    if (json_is_string(input)) {
        autobuf struct buf clean = BUF_INIT;
        redact_text(NULL, json_string_value(input), json_string_length(input), &clean);
        agents_new_id("msg_", message);
        json_array_append_new(
            inputs, json_pack("{s:s, s:s, s:s, s:[{s:s, s:o}]}", "id", message, "type", "message",
                              "role", "user", "content", "type", "input_text", "text",
                              json_bytes(clean.data ? clean.data : "", clean.len)));
    }
    json_array_foreach((json_t *)(json_is_array(input) ? input : NULL), i, m)
    {
        const json_t *content = json_object_get(m, "content");
        json_t *clean = redact_json(NULL, content);
        agents_new_id("msg_", message);
        if (json_is_string(clean))
            clean = json_pack("[{s:s, s:o}]", "type", "input_text", "text", clean);
        json_array_append_new(inputs,
                              json_pack("{s:s, s:s, s:O, s:o}", "id", message, "type", "message",
                                        "role", json_object_get(m, "role"), "content", clean));
    }
    const json_t *instructions = json_object_get(k->body, "instructions");
    k->doc = json_pack("{s:I, s:b, s:O?, s:O, s:O?, s:O?, s:b, s:O, s:b, s:b}", "created_at",
                       (json_int_t)now, "background", k->background, "instructions",
                       json_is_string(instructions) ? instructions : NULL, "metadata", k->metadata,
                       "model", model, "previous", json_is_string(previous) ? previous : NULL,
                       "store", k->store, "tools", k->shown_tools, "resolved",
                       json_is_string(json_object_get(cfg, "cli_model")), "steer", k->steer);
    autobuf struct buf clean = BUF_INIT;
    redact_text(NULL, k->prompt.data, k->prompt.len, &clean);
    if (store_exec(
            st, c->err,
            "INSERT INTO turns(id, session, status, created, prompt) VALUES(?,?,'queued',?,?)",
            "sidb", k->turn, k->session_rid, now, clean.data ? clean.data : "", clean.len) < 0 ||
        store_exec(st, c->err,
                   "INSERT INTO responses(id, owner, session, turn, previous, doc, input, created) "
                   "VALUES(?,?,?,?,?,?,?,?)",
                   "ssissjjd", k->id, call_owner(c), k->session_rid, k->turn,
                   json_string_value(previous), k->doc, inputs, now) < 0)
        return ag_store_fail(c->e, c->err);
    sqlite3_stmt *s = store_stmt(st, "SELECT last_insert_rowid()", "");
    if (s && sqlite3_step(s) == SQLITE_ROW)
        k->rid = sqlite3_column_int64(s, 0);
    if (s)
        sqlite3_reset(s);
    if (k->tools && secrets_store(c, k->turn, k->secrets) < 0)
        return -1;
    if (k->key && scope.data && key_store(c, scope.data, k->key, k->hash, k->id, 1000) < 0)
        return -1;
    return store_commit(st, c->err) < 0 ? ag_store_fail(c->e, c->err) : 0;
}

static void make_work(struct job *j)
{
    store_lock(j->c.ag->store);
    j->rc = rows((struct make *)j);
    store_unlock(j->c.ag->store);
}

/* What is stored becomes a turn. NULL with c->err or c->e. */
static struct response *begin(struct make *k)
{
    struct call *c = &k->j.c;
    struct agents *ag = c->ag;
    struct session *s = NULL;
    if (k->fresh) {
        session_evict(ag, k->full);
        s = session_add(ag, k->session, call_owner(c), true, k->session_rid, k->cfg,
                        wall_seconds());
        k->cfg = NULL;
    } else {
        s = session_find(ag, k->session, call_owner(c), true);
    }
    struct response *r = s ? calloc(1, sizeof(*r)) : NULL;
    struct turn *t = r ? turn_new(s, k->turn, k->prompt.data, k->prompt.len) : NULL;
    if (!t || !(r->owner = strdup(call_owner(c)))) {
        turn_free(t);
        free(r);
        abx_fail(c->err, E_NO_MEMORY, 0, "the response could not be started");
        return NULL;
    }
    r->ag = ag;
    r->rid = k->rid;
    r->store = k->store;
    r->doc = json_incref(k->doc);
    r->t = t;
    snprintf(r->id, sizeof(r->id), "%s", k->id);
    snprintf(r->turn, sizeof(r->turn), "%s", k->turn);
    snprintf(r->session, sizeof(r->session), "%s", k->session);
    list_init(&r->waiters);
    list_init(&r->node);
    list_append(&ag->responses, &r->node);
    evlog_init(&r->log, ag, k->rid * 2 + 1, 1);
    t->watch = &watch;
    t->watch_owner = r;
    t->instructions = k->before.len ? strndup(k->before.data, k->before.len) : NULL;
    t->tools = k->tools ? json_deep_copy(k->tools) : NULL;
    if (k->effort) {
        json_t *cfg = json_copy(s->cfg);
        json_object_set_new(cfg, "effort", json_string(k->effort));
        json_decref(s->cfg);
        s->cfg = cfg;
    }
    json_t *early = render(r->doc, r->id, "in_progress", 0, NULL, NULL, NULL);
    say(r, "response.created", json_pack("{s:O}", "response", early));
    say(r, "response.in_progress", json_pack("{s:o}", "response", early));
    turn_submit(t);
    return r;
}

static int answer_stored(struct make *k);
static void socket_made(struct make *k, struct response *r, int rc);

static void make_done(struct job *j)
{
    struct make *k = (struct make *)j;
    struct call *c = &j->c;
    int rc = j->rc;
    struct response *r = NULL;
    if (rc == 0 && !k->replay) {
        r = begin(k);
        rc = r ? 0 : -1;
    }
    if (k->socket) {
        socket_made(k, r, rc);
        return;
    }
    if (rc == 0 && k->ignored[0])
        rc = resp_header(c->resp, "X-Agent-Sandbox-Ignored-Params", k->ignored, c->err);
    if (rc == 0 && k->replay) {
        r = response_find(c->ag, k->replay, call_owner(c));
        if (!r) {
            rc = answer_stored(k);
            if (rc == REQ_PENDING)
                return; /* k lives on */
        }
    }
    if (rc == 0 && r) {
        if (k->stream)
            rc = stream_live(r, c, 0, !k->store && !k->background);
        else if (k->background)
            rc = reply(c, render(r->doc, r->id, "in_progress", 0, NULL, NULL, NULL));
        else
            rc = wait_for(r, c, !k->store);
    }
    if (rc != REQ_PENDING)
        job_finish(j, rc);
    make_free(k);
}

int agents_responses_create(struct call *c)
{
    struct make *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(&k->j, c);
    k->body = call_body(c);
    int rc = read_key(&k->j.c, &k->key);
    if (rc == 0)
        rc = read_body(k);
    if (rc == 0 && k->key)
        body_hash(k->body, k->hash);
    if (rc == 0 && c->ag->prompt_bytes + k->prompt.len > 256 * (size_t)MIB)
        rc = ag_fail(&k->j.e, 429, "agents.limit_exceeded", "input",
                     "input: too many prompts wait already");
    if (rc == 0)
        rc = job_run(&k->j, make_work, make_done);
    if (rc < 0) {
        *c->e = k->j.e;
        *c->err = k->j.err;
        make_free(k);
    }
    return rc;
}

/* --- stored ones
 * ---------------------------------------------------------------------------------------------------
 */

struct lookup {
    struct job j;
    char id[AG_ID_MAX];
    bool stream, whole; /* whole: its log has the closing event */
    int64_t after, rid, last;
    json_t *found;
    char session[AG_ID_MAX];
    bool alone; /* its session has no other */
    void (*then)(struct lookup *k);
};

static void lookup_work(struct job *j)
{
    struct lookup *k = (struct lookup *)j;
    struct store *st = j->c.ag->store;
    store_lock(st);
    k->found = render_stored(j->c.ag, k->id, call_owner(&j->c), &k->rid);
    sqlite3_stmt *s = k->found
                          ? store_stmt(st,
                                       "SELECT seq, type FROM events WHERE log = ? "
                                       "ORDER BY seq DESC, sub DESC LIMIT 1",
                                       "i", k->rid * 2 + 1)
                          : NULL;
    if (s && sqlite3_step(s) == SQLITE_ROW) {
        k->last = sqlite3_column_int64(s, 0);
        k->whole = is_terminal(store_text(s, 1));
    }
    if (s)
        sqlite3_reset(s);
    s = k->found ? store_stmt(st,
                              "SELECT s.id, (SELECT count(*) FROM responses WHERE session = "
                              "r.session) FROM responses r "
                              "JOIN sessions s ON s.rid = r.session WHERE r.id = ?",
                              "s", k->id)
                 : NULL;
    if (s && sqlite3_step(s) == SQLITE_ROW) {
        snprintf(k->session, sizeof(k->session), "%s", store_text(s, 0));
        k->alone = sqlite3_column_int64(s, 1) <= 1;
    }
    if (s)
        sqlite3_reset(s);
    store_unlock(st);
    j->rc = k->found ? 0 : ag_unknown(j->c.e, "response_id", "response", k->id);
}

static void lookup_done(struct job *j)
{
    struct lookup *k = (struct lookup *)j;
    if (j->rc == 0 && k->then) {
        k->then(k);
        return;
    }
    int rc = j->rc;
    struct call *c = &j->c;
    if (rc == 0 && k->stream) {
        struct out *o = out_new(c->ag, NULL, 0);
        if (o) {
            evlog_init(&o->own, c->ag, k->rid * 2 + 1, k->last + 1);
            o->own.complete = true;
            o->stored = json_incref(k->found);
            o->terminal = k->whole || k->after > k->last; /* nothing to add then */
            o->in = evlog_read(&o->own, k->after, &out_ops, o);
        }
        rc = o && o->in ? out_open(o, c) : abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    } else if (rc == 0) {
        rc = reply(c, json_incref(k->found));
    }
    json_decref(k->found);
    if (rc != REQ_PENDING)
        job_finish(j, rc);
    free(k);
}

static int look_up(struct call *c, const char *id, bool stream, int64_t after,
                   void (*then)(struct lookup *k))
{
    struct lookup *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(&k->j, c);
    snprintf(k->id, sizeof(k->id), "%s", id);
    k->stream = stream;
    k->after = after;
    k->then = then;
    int rc = job_run(&k->j, lookup_work, lookup_done);
    if (rc < 0) {
        *c->err = k->j.err;
        free(k);
    }
    return rc;
}

/* The key's earlier response, as asked for now. */
static int answer_stored(struct make *k)
{
    int rc = look_up(&k->j.c, k->replay, k->stream, 0, NULL);
    if (rc == REQ_PENDING)
        make_free(k);
    return rc;
}

int agents_responses_get(struct call *c)
{
    const char *id = call_param(c, "response_id"),
               *after = req_query(c->req, "starting_after", NULL);
    const char *asked = req_query(c->req, "stream", NULL);
    bool stream = asked && strcmp(asked, "true") == 0;
    int64_t n = -1;
    if (after && (strspn(after, "0123456789") != strlen(after) ||
                  num_parse(after, 0, INT64_MAX - 2, &n) < 0))
        return ag_invalid(c->e, "starting_after", "starting_after: a sequence number");
    struct response *r = response_find(c->ag, id, call_owner(c));
    /* sequence numbers begin with 0, places in the log with 1 */
    if (r && stream)
        return stream_live(r, c, n + 1, false);
    return look_up(c, id, stream, n + 1, NULL);
}

static void deleted(void *data)
{
    struct job *j = data;
    job_finish(j, 0);
    free(j);
}

static void do_delete(struct lookup *k)
{
    struct call *c = &k->j.c;
    struct response *r = response_find(c->ag, k->id, call_owner(c));
    json_decref(k->found);
    struct job *j = calloc(1, sizeof(*j));
    if (!j) {
        job_finish(&k->j, abx_fail(c->err, E_NO_MEMORY, 0, "out of memory"));
        free(k);
        return;
    }
    if (r) {
        r->store = false; /* goes when it is over */
        if (r->t)
            turn_cancel(r->t);
    }
    store_post(c->ag->store, "DELETE FROM responses WHERE id = ?", "s", k->id);
    store_post(c->ag->store, "DELETE FROM events WHERE log = ?", "i", k->rid * 2 + 1);
    int rc = reply(
        c, label(json_pack("{s:s, s:s, s:b}", "id", k->id, "object", "response", "deleted", 1),
                 "local_state", "response_is_cli_turn", NULL));
    job_init(j, c);
    if (rc < 0) {
        j->err = k->j.err;
        job_finish(j, -1);
        free(j);
        free(k);
        return;
    }
    struct session *s =
        k->alone && !r ? session_find(c->ag, k->session, call_owner(c), true) : NULL;
    free(k);
    if (s)
        session_delete(s, deleted, j);
    else
        store_sync(j->c.ag->store, deleted, j);
}

int agents_responses_delete(struct call *c)
{
    return look_up(c, call_param(c, "response_id"), false, 0, do_delete);
}

static void not_cancellable(struct lookup *k)
{
    json_decref(k->found);
    job_finish(&k->j, ag_fail(k->j.c.e, 400, "agents.not_cancellable", "response_id",
                              "response_id: it is over already"));
    free(k);
}

int agents_responses_cancel(struct call *c)
{
    const char *id = call_param(c, "response_id");
    struct response *r = response_find(c->ag, id, call_owner(c));
    if (!r || !r->t)
        return look_up(c, id, false, 0, not_cancellable);
    int rc = wait_for(r, c, false);
    if (rc == REQ_PENDING)
        turn_cancel(r->t);
    return rc;
}

int agents_responses_input_items(struct call *c)
{
    const char *id = call_param(c, "response_id");
    autojson json_t *items = NULL;
    store_lock(c->ag->store);
    sqlite3_stmt *s =
        store_stmt(c->ag->store, "SELECT input FROM responses WHERE id = ? AND owner = ?", "ss", id,
                   call_owner(c));
    if (s && sqlite3_step(s) == SQLITE_ROW)
        items = store_json(s, 0);
    if (s)
        sqlite3_reset(s);
    store_unlock(c->ag->store);
    if (!items)
        return ag_unknown(c->e, "response_id", "response", id);
    struct page p;
    json_t *list = NULL;
    size_t i;
    json_t *o;
    json_array_foreach(items, i, o) label(o, "local_state", "response_is_cli_turn", NULL);
    if (page_read(c, &p) < 0 || list_array(c, &p, items, &list) < 0)
        return -1;
    return reply(c, list);
}

/* --- compact
 * --------------------------------------------------------------------------------------------------------
 */

struct compact {
    struct job j;
    char session[AG_ID_MAX], turn[AG_ID_MAX];
    int64_t session_rid;
    char *previous;
    json_t *output;
};

static void compact_free(struct compact *k)
{
    json_decref(k->output);
    free(k->previous);
    free(k);
}

static void compact_work(struct job *j)
{
    struct compact *k = (struct compact *)j;
    struct call *c = &j->c;
    autojson json_t *cfg = NULL;
    store_lock(c->ag->store);
    j->rc = find_chain(c, k->previous, &k->session_rid, k->session);
    sqlite3_stmt *s = k->session_rid /* also of one that is not the newest */
                          ? store_stmt(c->ag->store, "SELECT cfg FROM sessions WHERE rid = ?", "i",
                                       k->session_rid)
                          : NULL;
    if (s && sqlite3_step(s) == SQLITE_ROW)
        cfg = store_json(s, 0);
    if (s)
        sqlite3_reset(s);
    const char *runtime = json_string_value(json_object_get(cfg, "runtime"));
    if (k->session_rid && (!runtime || strcmp(runtime, "qwen-code") != 0))
        j->rc = ag_fail(c->e, 400, "agents.compact_unsupported", "model",
                        "model: only qwen-code can compact");
    if (j->rc == 0 &&
        store_exec(
            c->ag->store, c->err,
            "INSERT INTO turns(id, session, status, created, prompt) VALUES(?,?,'queued',?,?)",
            "sids", k->turn, k->session_rid, wall_seconds(), "/compress") < 0)
        j->rc = ag_store_fail(c->e, c->err);
    store_unlock(c->ag->store);
}

static void compact_item(void *owner, const struct item *it)
{
    struct compact *k = owner;
    if (it->type == ITEM_MESSAGE)
        json_array_append_new(k->output, item_out(it));
}

static void compact_ended(void *owner, struct turn *t)
{
    struct compact *k = owner;
    struct call *c = &k->j.c;
    int rc;
    if (strcmp(t->status, "completed") != 0) {
        rc = ag_fail(c->e, 400, "agents.compact_failed", "previous_response_id",
                     "the conversation was not compacted: %.300s", t->error_message);
    } else {
        char id[AG_ID_MAX];
        agents_new_id("resp_cmp_", id);
        id[strlen("resp_cmp_") + 20] = '\0';
        json_t *extras = json_object();
        const json_t *last = json_array_get(k->output, json_array_size(k->output) - 1);
        const char *text = json_string_value(
            json_object_get(json_array_get(json_object_get(last, "content"), 0), "text"));
        autojson json_t *told = text ? json_loads(text, 0, NULL) : NULL;
        if (json_is_integer(json_object_get(told, "originalTokenCount")))
            json_object_set(extras, "original_token_count",
                            json_object_get(told, "originalTokenCount"));
        if (json_is_integer(json_object_get(told, "newTokenCount")))
            json_object_set(extras, "new_token_count", json_object_get(told, "newTokenCount"));
        autojson json_t *usage = ag_usage_json(&t->usage);
        rc = reply(c,
                   label(json_pack("{s:s, s:s, s:o, s:O, s:o}", "id", id, "object",
                                   "response.compaction", "created_at", stamp_json(wall_seconds()),
                                   "output", k->output, "usage", usage_form(usage)),
                         "local_process", "summary_not_encrypted_compaction response_is_cli_turn",
                         extras));
    }
    job_finish(&k->j, rc);
    compact_free(k);
}

static void compact_done(struct job *j)
{
    static const struct turn_watch compact_watch = {.item_done = compact_item,
                                                    .ended = compact_ended};
    struct compact *k = (struct compact *)j;
    struct call *c = &j->c;
    struct session *s = j->rc == 0 ? session_find(c->ag, k->session, call_owner(c), true) : NULL;
    struct turn *t = s ? turn_new(s, k->turn, "/compress", 9) : NULL;
    if (j->rc == 0 && !t)
        j->rc = abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    if (j->rc < 0) {
        job_finish(j, -1);
        compact_free(k);
        return;
    }
    k->output = json_array();
    t->watch = &compact_watch;
    t->watch_owner = k;
    turn_submit(t);
}

int agents_responses_compact(struct call *c)
{
    const json_t *body = call_body(c);
    /* The conversation has its runtime and model; those of the body are not looked at. */
    if (only_keys(c->e, body, "", "model previous_response_id adapter runtime") < 0)
        return -1;
    const char *previous = json_string_value(json_object_get(body, "previous_response_id"));
    if (!previous || !*previous)
        return ag_invalid(c->e, "previous_response_id",
                          "previous_response_id: the newest response of a chain");
    struct compact *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    job_init(&k->j, c);
    k->previous = strdup(previous);
    agents_new_id("turn_", k->turn);
    int rc = k->previous ? job_run(&k->j, compact_work, compact_done) : -1;
    if (rc < 0) {
        *c->err = k->j.err;
        compact_free(k);
    }
    return rc;
}

/* --- the socket
 * -------------------------------------------------------------------------------------------------------
 */

struct queued {
    struct list node;
    struct make *k;
};

struct socket {
    struct call c;
    struct ag_error e;
    struct abx_error err;
    struct ws *ws; /* NULL: closed */
    struct list queue;
    size_t n_queue;
    struct out *out;
    bool making;
};

static void socket_free(struct socket *k)
{
    list_for_each_safe(it, &k->queue)
    {
        struct queued *q = list_entry(it, struct queued, node);
        list_remove(&q->node);
        make_free(q->k);
        free(q);
    }
    req_unref(k->c.req);
    free(k);
}

static void socket_send(struct socket *k, const char *data, size_t len)
{
    if (k->ws)
        ws_text(k->ws, data, len);
}

static bool socket_ready(struct socket *k) { return k->ws && !ws_full(k->ws); }

static void socket_clear(struct socket *k) { k->out = NULL; }

static void socket_error(struct socket *k, json_t *error)
{
    autojson json_t *o = json_pack("{s:s, s:o}", "type", "error", "error", error);
    autofree char *text = ag_compact(o);
    if (text)
        socket_send(k, text, strlen(text));
}

static void socket_refuse(struct socket *k, const struct ag_error *e, const struct abx_error *err)
{
    if (e->status)
        socket_error(k, error_value(e));
    else
        socket_error(k, json_pack("{s:o, s:s}", "message", json_text(err->message), "code",
                                  err->code ? err->code : "server_error"));
}

static void socket_next(struct socket *k)
{
    if (!k->ws) {
        if (!k->making && !k->out)
            socket_free(k);
        return;
    }
    while (!k->making && !k->out && !list_empty(&k->queue)) {
        struct queued *q = list_entry(k->queue.next, struct queued, node);
        struct make *m = q->k;
        list_remove(&q->node);
        k->n_queue--;
        free(q);
        k->making = true;
        if (job_run(&m->j, make_work, make_done) < 0) {
            k->making = false;
            socket_refuse(k, &m->j.e, &m->j.err);
            make_free(m);
        }
    }
}

static void socket_made(struct make *m, struct response *r, int rc)
{
    struct socket *k = m->socket;
    k->making = false;
    if (rc < 0) {
        socket_refuse(k, &m->j.e, &m->j.err);
    } else if (k->ws) {
        k->out = out_new(k->c.ag, r, 0);
        if (k->out) {
            k->out->socket = k;
            k->out->cancel_with_client = !m->store;
        }
    } else if (!m->store && r->t) {
        turn_cancel(r->t);
    }
    make_free(m);
    socket_next(k);
}

static void socket_message(void *owner, bool text, const char *data, size_t len)
{
    struct socket *k = owner;
    json_t *o = NULL;
    struct abx_error err;
    if (json_parse(data, len, &o, &err) < 0 || !json_is_object(o)) {
        json_decref(o);
        socket_error(k, json_pack("{s:s, s:s}", "message", "a client event is a JSON object",
                                  "code", "bad_frame"));
        return;
    }
    const char *type = json_string_value(json_object_get(o, "type"));
    struct ag_error e = {0};
    bool steer = type && strcmp(type, "response.steer") == 0;
    struct make *m = NULL;
    struct queued *q = NULL;
    if (!steer && (!type || strcmp(type, "response.create") != 0))
        ag_invalid(&e, "type", "type: response.create or response.steer");
    else if (k->n_queue >= MAX_SOCKET_QUEUE)
        ag_fail(&e, 429, "agents.limit_exceeded", NULL, "too many requests wait on this socket");
    else if (!(m = calloc(1, sizeof(*m))) || !(q = calloc(1, sizeof(*q))))
        ag_fail(&e, 503, "server_error", NULL, "out of memory");
    if (m && !e.status) {
        job_init(&m->j, &k->c);
        m->socket = k;
        m->steer = steer;
        json_object_del(o, "stream");
        m->body = m->own_body = o;
        o = NULL;
        if (read_body(m) == 0) {
            m->background = false;
            q->k = m;
            list_init(&q->node);
            list_append(&k->queue, &q->node);
            k->n_queue++;
            socket_next(k);
            return;
        }
        socket_refuse(k, &m->j.e, &m->j.err);
        make_free(m);
        m = NULL;
    } else {
        socket_error(k, error_value(&e));
    }
    free(m);
    free(q);
    json_decref(o);
}

static void socket_drain(void *owner)
{
    struct socket *k = owner;
    if (k->out)
        evlog_resume(k->out->in);
}

static void socket_closed(void *owner, int code)
{
    struct socket *k = owner;
    struct out *o = k->out;
    k->ws = NULL;
    k->out = NULL;
    if (o)
        out_gone(o);
    if (!k->making)
        socket_free(k);
}

int agents_responses_connect(struct call *c)
{
    const char *upgrade = req_header(c->req, "Upgrade");
    if (!upgrade || !strcasestr(upgrade, "websocket"))
        return ag_fail(c->e, 400, "agents.websocket_upgrade_required", NULL,
                       "this address speaks WebSocket; POST creates a response");
    const char *key = req_header(c->req, "Sec-WebSocket-Key"),
               *connection = req_header(c->req, "Connection");
    const char *version = req_header(c->req, "Sec-WebSocket-Version");
    if (!key || !*key || strlen(key) > 128 || !version || strcmp(version, "13") != 0 ||
        !connection || !strcasestr(connection, "upgrade"))
        return ag_fail(c->e, 400, "agents.websocket_handshake_invalid", NULL,
                       "a handshake needs Connection: Upgrade, a key and version 13");
    static const struct ws_ops ops = {
        .message = socket_message, .drain = socket_drain, .closed = socket_closed};
    static const struct ws_options options = {.max_message = MAX_FRAME, .text_only = true};
    struct socket *k = calloc(1, sizeof(*k));
    if (!k)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    k->c = *c;
    k->c.e = &k->e;
    k->c.err = &k->err;
    list_init(&k->queue);
    struct abx_error err;
    if (reply_headers(c) < 0 || !(k->ws = ws_accept(c->req, &options, &ops, k, &err))) {
        free(k);
        return ag_fail(c->e, 400, "agents.websocket_handshake_invalid", NULL, "%s", err.message);
    }
    req_ref(c->req);
    return REQ_PENDING;
}
