/* Codex: `codex exec [resume THREAD] --json ... -`, the prompt on stdin. Its items come whole, so a
 * message is one delta; commands report their output as they run (item.updated). */
#include "agents/adapters/adapter.h"
#include "agents/agents.h"

#include "base/own.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct codex {
    struct turn *t;
    bool failed, closed;
    char message[4096];
};

static const char *const names[] = {"openai-codex", NULL};
static const char *const auth[] = {"OPENAI_API_KEY", "CODEX_API_KEY", NULL};
static const char *const own[] = {"OPENAI_API_KEY", "CODEX_API_KEY", "OPENAI_BASE_URL", NULL};

/* A TOML basic string. */
static void toml_string(struct buf *out, const char *text)
{
    buf_addc(out, '"');
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\')
            buf_addf(out, "\\%c", *p);
        else if ((unsigned char)*p < 0x20 || *p == 0x7f)
            buf_addf(out, "\\u%04x", (unsigned char)*p);
        else
            buf_addc(out, *p);
    }
    buf_addc(out, '"');
}

static void toml_key(struct buf *out, const char *key)
{
    bool bare = *key;
    for (const char *p = key; *p; p++)
        bare = bare && (isalnum((unsigned char)*p) || *p == '_' || *p == '-');
    if (bare)
        buf_adds(out, key);
    else
        toml_string(out, key);
}

static void tool_args(struct launch_out *out, const json_t *tool)
{
    const char *label = json_string_value(json_object_get(tool, "server_label"));
    const char *url = json_string_value(json_object_get(tool, "url"));
    autobuf struct buf arg = BUF_INIT;
    buf_adds(&arg, "mcp_servers.");
    toml_key(&arg, label);
    buf_adds(&arg, ".url=");
    toml_string(&arg, url);
    strv_add(&out->argv, "-c");
    strv_add(&out->argv, buf_str(&arg) ? arg.data : "");
    json_t *headers = json_object_get(tool, "headers");
    if (!json_object_size(headers))
        return;
    buf_reset(&arg);
    buf_adds(&arg, "mcp_servers.");
    toml_key(&arg, label);
    buf_adds(&arg, ".env_http_headers={");
    const char *name, *sep = "";
    json_t *value;
    json_object_foreach(headers, name, value)
    {
        char variable[256];
        mcp_variable(label, name, variable, sizeof(variable));
        buf_adds(&arg, sep);
        toml_key(&arg, name);
        buf_adds(&arg, " = ");
        toml_string(&arg, variable);
        sep = ", ";
        json_object_set(out->env, variable, value);
    }
    buf_addc(&arg, '}');
    strv_add(&out->argv, "-c");
    strv_add(&out->argv, buf_str(&arg) ? arg.data : "");
}

static int launch(const struct launch *in, struct launch_out *out, char *why, size_t why_size)
{
    struct strv *a = &out->argv;
    strv_add(a, "codex");
    strv_add(a, "exec");
    if (in->thread) {
        strv_add(a, "resume");
        strv_add(a, in->thread);
    }
    strv_add(a, "--json");
    strv_add(a, "--skip-git-repo-check");
    if (!in->thread) {
        strv_add(a, "-C");
        strv_add(a, in->workspace);
    }
    if (in->model) {
        strv_add(a, "-m");
        strv_add(a, in->model);
    }
    strv_add(a, "-c");
    strv_add(a, "sandbox_mode=\"danger-full-access\"");
    strv_add(a, "-c");
    strv_add(a, "approval_policy=\"never\"");
    if (in->effort) {
        strv_add(a, "-c");
        strv_addf(a, "model_reasoning_effort=\"%s\"", in->effort);
    }
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)in->tools, i, tool) tool_args(out, tool);
    strv_add(a, "-");

    return launch_prompt(in, in->thread ? NULL : in->instructions, out, why, why_size);
}

static void *begin(struct turn *t)
{
    struct codex *c = calloc(1, sizeof(*c));
    if (c)
        c->t = t;
    return c;
}

static int64_t count(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : 0;
}

static bool is(const char *a, const char *b) { return a && strcmp(a, b) == 0; }

static void message(struct codex *c, const json_t *item, int type)
{
    const json_t *text = json_object_get(item, "text");
    if (!json_is_string(text))
        return;
    struct item *it = turn_item(c->t, type, NULL, NULL);
    if (!it)
        return;
    item_announce(it);
    item_finish(it, json_string_value(text), json_string_length(text));
}

static void command(struct codex *c, const json_t *item, bool last)
{
    const char *id = field_str(item, "id");
    struct item *it = turn_find(c->t, id, "command");
    if (!it) {
        it = turn_item(c->t, ITEM_COMMAND, id, "command");
        if (!it)
            return;
        const char *cmd = field_str(item, "command");
        item_set_command(it, cmd ? cmd : "");
        item_announce(it);
    }
    const json_t *output = json_object_get(item, "aggregated_output");
    it->live = it->live || (!last && json_string_length(output));
    if (json_is_string(output))
        item_output(it, json_string_value(output), json_string_length(output));
    if (!last)
        return;
    const json_t *code = json_object_get(item, "exit_code");
    if (json_is_integer(code)) {
        it->has_exit = true;
        it->exit_code = json_integer_value(code);
    }
    const char *status = field_str(item, "status");
    item_end(it, is(status, "failed") || is(status, "declined") ||
                     (it->has_exit && it->exit_code != 0));
}

static void mcp(struct codex *c, const json_t *item, bool last)
{
    const char *id = field_str(item, "id");
    struct item *it = turn_find(c->t, id, "mcp");
    if (!it) {
        it = turn_item(c->t, ITEM_CALL, id, "mcp");
        if (!it)
            return;
        const char *server = field_str(item, "server"), *tool = field_str(item, "tool");
        item_set_call(it, server ? server : "codex", tool ? tool : "",
                      json_object_get(item, "arguments"), true);
        item_announce(it);
    }
    if (!last)
        return;
    const json_t *result = json_object_get(item, "result");
    if (json_is_string(result)) {
        item_output(it, json_string_value(result), json_string_length(result));
    } else if (result && !json_is_null(result)) {
        autofree char *text = json_dumps(result, JSON_ENCODE_ANY);
        if (text)
            item_output(it, text, strlen(text));
    }
    const char *error = field_str(json_object_get(item, "error"), "message");
    if (error)
        item_set_error(it, error);
    item_end(it, error || is(field_str(item, "status"), "failed"));
}

static void file_change(struct codex *c, const json_t *item)
{
    struct item *it = turn_item(c->t, ITEM_CALL, NULL, NULL);
    if (!it)
        return;
    bool failed = is(field_str(item, "status"), "failed");
    autojson json_t *changes = json_array();
    autobuf struct buf text = BUF_INIT;
    size_t i;
    json_t *change;
    json_array_foreach(json_object_get(item, "changes"), i, change)
    {
        const char *path = field_str(change, "path"), *kind = field_str(change, "kind");
        if (!path)
            continue;
        kind = kind ? kind : "update";
        json_array_append_new(changes, json_pack("{s:s, s:s}", "path", path, "kind", kind));
        buf_addf(&text, "%s%s: %s", text.len ? "\n" : "", kind, path);
        if (!failed && strcmp(kind, "delete") != 0)
            turn_wrote(c->t, path);
        else if (!failed)
            turn_unwrote(c->t, path);
    }
    autojson json_t *arguments = json_pack("{s:O}", "changes", changes);
    item_set_call(it, "codex", "file_change", arguments, false);
    item_announce(it);
    if (buf_str(&text))
        item_output(it, text.data, text.len);
    item_end(it, failed);
}

static void web_search(struct codex *c, const json_t *item)
{
    const char *query = field_str(item, "query");
    struct item *it = turn_item(c->t, ITEM_CALL, NULL, NULL);
    if (!it)
        return;
    autojson json_t *arguments = json_pack("{s:s}", "query", query ? query : "");
    item_set_call(it, "codex", "web_search", arguments, false);
    item_announce(it);
    item_output(it, query ? query : "", query ? strlen(query) : 0);
    item_end(it, is(field_str(item, "status"), "failed"));
}

static void collab(struct codex *c, const json_t *item)
{
    const char *tool = field_str(item, "tool"),
               *prompt = is(tool, "spawn_agent") ? field_str(item, "prompt") : NULL;
    const json_t *states = json_object_get(item, "agents_states");
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(item, "receiver_thread_ids"), i, v)
    {
        const char *id = json_string_value(v);
        if (id)
            turn_subagent(c->t, id, NULL, prompt, is(tool, "close_agent"));
    }
    const char *id;
    json_object_foreach((json_t *)states, id, v)
    {
        const char *status = json_is_string(v) ? json_string_value(v) : field_str(v, "status");
        turn_subagent(c->t, id, NULL, prompt,
                      is(status, "shutdown") || is(status, "closed") || is(tool, "close_agent"));
    }
}

static void line(void *state, const json_t *o)
{
    struct codex *c = state;
    const char *type = field_str(o, "type");
    const json_t *item = json_object_get(o, "item");
    if (!type)
        return;
    if (is(type, "thread.started")) {
        if (field_str(o, "thread_id"))
            turn_thread(c->t, field_str(o, "thread_id"));
    } else if (is(type, "turn.completed")) {
        const json_t *u = json_object_get(o, "usage");
        c->closed = true;
        if (json_is_object(u))
            turn_usage(c->t, count(u, "input_tokens"), count(u, "cached_input_tokens"),
                       count(u, "output_tokens"), count(u, "reasoning_output_tokens"),
                       json_is_integer(json_object_get(u, "total_tokens"))
                           ? count(u, "total_tokens")
                           : count(u, "input_tokens") + count(u, "output_tokens"));
    } else if (is(type, "turn.failed")) {
        const char *text = field_str(json_object_get(o, "error"), "message");
        c->failed = true;
        snprintf(c->message, sizeof(c->message), "%s", text ? text : "the turn failed");
    } else if (json_is_object(item)) {
        const char *kind = field_str(item, "type");
        bool last = is(type, "item.completed");
        if (!last && !is(type, "item.started") && !is(type, "item.updated"))
            return;
        if (is(kind, "command_execution"))
            command(c, item, last);
        else if (is(kind, "mcp_tool_call"))
            mcp(c, item, last);
        else if (!last)
            return;
        else if (is(kind, "agent_message"))
            message(c, item, ITEM_MESSAGE);
        else if (is(kind, "reasoning"))
            message(c, item, ITEM_REASONING);
        else if (is(kind, "file_change"))
            file_change(c, item);
        else if (is(kind, "web_search"))
            web_search(c, item);
        else if (is(kind, "collab_tool_call"))
            collab(c, item);
    }
}

static void finish(void *state, int exit_code, struct adapter_end *ret)
{
    struct codex *c = state;
    ret->fatal = c->failed;
    ret->closed = c->closed;
    snprintf(ret->message, sizeof(ret->message), "%s", c->message);
}

const struct adapter adapter_codex = {
    .name = "codex",
    .binary = "codex",
    .package = "@openai/codex",
    .aliases = names,
    .auth_env = auth,
    .own_env = own,
    .implemented = true,
    .resume = true,
    .mcp = true,
    .base_url = true,
    .subagent_source = "turns_from_rollout",
    .launch = launch,
    .begin = begin,
    .line = line,
    .finish = finish,
    .end = free,
};
