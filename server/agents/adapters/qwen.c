/* Qwen Code: `qwen --output-format stream-json --include-partial-messages ...`, the prompt on stdin
 * (a positional one could be an option or a subcommand, is limited to 128 KiB and readable by all).
 * MCP servers go into a settings file of the turn's own, named by QWEN_CODE_SYSTEM_SETTINGS_PATH:
 * nothing is written into the workspace.
 *
 * Blocks of a message come twice: as deltas (stream_event) and whole (assistant). A whole block
 * completes the oldest open item of its kind that was streamed under the same message id. */
#include "agents/adapters/adapter.h"
#include "agents/agents.h"

#include "base/own.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_TOOLS_OPEN 256

struct qwen {
    struct turn *t;
    bool closed, failed, any_text;
    const char *code;
    char message[4096];
    char stream_id[128]; /* message id of the stream that is coming */
    char api_error[4096];
};

static const char *const names[] = {"qwen", "qwen_code", "qwencode", NULL};
static const char *const auth[] = {"OPENAI_API_KEY", NULL};
static const char *const own[] = {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", NULL};

static int write_settings(const struct launch *in, struct launch_out *out, char *why,
                          size_t why_size)
{
    autojson json_t *servers = json_object();
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)in->tools, i, tool)
    {
        const char *label = json_string_value(json_object_get(tool, "server_label"));
        json_t *server = json_pack("{s:O}", "httpUrl", json_object_get(tool, "url"));
        json_t *names_of = json_object();
        const char *name;
        json_t *value;
        json_object_foreach(json_object_get(tool, "headers"), name, value)
        {
            char variable[256], ref[260];
            mcp_variable(label, name, variable, sizeof(variable));
            snprintf(ref, sizeof(ref), "${%s}", variable);
            json_object_set_new(names_of, name, json_string(ref));
            json_object_set(out->env, variable, value);
        }
        if (json_object_size(names_of))
            json_object_set_new(server, "headers", names_of);
        else
            json_decref(names_of);
        json_object_set_new(servers, label, server);
    }
    autojson json_t *doc = json_pack("{s:O}", "mcpServers", servers);
    autofree char *text = json_dumps(doc, JSON_INDENT(2));
    autobuf struct buf path = BUF_INIT;
    buf_addf(&path, "%s/settings.json", in->private_dir);
    if (!text || !buf_str(&path)) {
        snprintf(why, why_size, "out of memory");
        return -1;
    }
    autoclose int fd = open(path.data, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) {
        snprintf(why, why_size, "cannot write the settings of this turn: %s", strerror(errno));
        return -1;
    }
    json_object_set_new(out->env, "QWEN_CODE_SYSTEM_SETTINGS_PATH", json_string(path.data));
    return 0;
}

static int launch(const struct launch *in, struct launch_out *out, char *why, size_t why_size)
{
    struct strv *a = &out->argv;
    strv_add(a, "qwen");
    strv_add(a, "--output-format");
    strv_add(a, "stream-json");
    strv_add(a, "--include-partial-messages");
    if (in->thread) {
        strv_add(a, "--resume");
        strv_add(a, in->thread);
    }
    if (in->model) {
        strv_add(a, "--model");
        strv_add(a, in->model);
        json_object_set_new(out->env, "OPENAI_MODEL", json_string(in->model));
    }
    strv_add(a, "--yolo");
    if (in->instructions && *in->instructions) {
        strv_add(a, "--append-system-prompt");
        strv_add(a, in->instructions);
    }
    if (json_array_size(in->tools) && write_settings(in, out, why, why_size) < 0)
        return -1;
    return launch_prompt(in, NULL, out, why, why_size);
}

static void *begin(struct turn *t)
{
    struct qwen *q = calloc(1, sizeof(*q));
    if (q)
        q->t = t;
    return q;
}

static bool is(const char *a, const char *b) { return a && strcmp(a, b) == 0; }

static int64_t count(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v)
           : json_is_real(v)  ? (int64_t)json_real_value(v)
                              : 0;
}

/* The text of a tool's result: a string, or text blocks. Heap. */
static char *result_text(const json_t *content)
{
    if (json_is_string(content))
        return strdup(json_string_value(content));
    struct buf out = BUF_INIT;
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)content, i, v)
    {
        const char *text = json_is_string(v) ? json_string_value(v) : field_str(v, "text");
        if (text)
            buf_addf(&out, "%s%s", out.len ? "\n" : "", text);
    }
    return buf_take(&out, NULL);
}

static void delta(struct qwen *q, int type, const char *key, const json_t *text)
{
    if (!json_is_string(text) || !json_string_length(text))
        return;
    char kind[192];
    snprintf(kind, sizeof(kind), "%s:%s", key, q->stream_id);
    struct item *it = turn_find(q->t, NULL, kind);
    if (!it) {
        it = turn_item(q->t, type, NULL, kind);
        if (!it)
            return;
        item_announce(it);
    }
    q->any_text = q->any_text || type == ITEM_MESSAGE;
    item_delta(it, json_string_value(text), json_string_length(text));
}

static void stream_event(struct qwen *q, const json_t *ev)
{
    const char *type = field_str(ev, "type");
    if (is(type, "message_start")) {
        const char *id = field_str(json_object_get(ev, "message"), "id");
        snprintf(q->stream_id, sizeof(q->stream_id), "%s", id ? id : "");
    } else if (is(type, "content_block_start")) {
        const json_t *block = json_object_get(ev, "content_block");
        if (is(field_str(block, "type"), "text"))
            delta(q, ITEM_MESSAGE, "text", json_object_get(block, "text"));
        else if (is(field_str(block, "type"), "thinking"))
            delta(q, ITEM_REASONING, "thinking", json_object_get(block, "thinking"));
    } else if (is(type, "content_block_delta")) {
        const json_t *d = json_object_get(ev, "delta");
        if (is(field_str(d, "type"), "text_delta"))
            delta(q, ITEM_MESSAGE, "text", json_object_get(d, "text"));
        else if (is(field_str(d, "type"), "thinking_delta"))
            delta(q, ITEM_REASONING, "thinking", json_object_get(d, "thinking"));
    } else if (is(type, "content_block_stop")) {
        /* The whole block follows with "assistant"; a new block of the same kind must not join this
         * one. */
    }
}

static void whole(struct qwen *q, int type, const char *key, const char *id, const json_t *text)
{
    if (!json_is_string(text) || !json_string_length(text))
        return;
    char kind[192];
    snprintf(kind, sizeof(kind), "%s:%s", key, id);
    struct item *it = turn_find(q->t, NULL, kind);
    if (!it) {
        it = turn_item(q->t, type, NULL, kind);
        if (!it)
            return;
        item_announce(it);
    }
    item_finish(it, json_string_value(text), json_string_length(text));
    if (type == ITEM_MESSAGE) {
        q->any_text = true;
        if (strncmp(json_string_value(text), "[API Error:", 11) == 0)
            snprintf(q->api_error, sizeof(q->api_error), "%s", json_string_value(text));
        else
            q->api_error[0] = '\0';
    }
}

static void tool_use(struct qwen *q, const json_t *block)
{
    const char *id = field_str(block, "id"), *name = field_str(block, "name");
    if (!id || !name || turn_find(q->t, id, NULL))
        return;
    const json_t *input = json_object_get(block, "input");
    bool shell = is(name, "Bash") || is(name, "run_shell_command");
    struct item *it = turn_item(q->t, shell ? ITEM_COMMAND : ITEM_CALL, id, name);
    if (!it)
        return;
    if (shell) {
        const char *command = field_str(input, "command");
        item_set_command(it, command ? command : "");
    } else if (strncmp(name, "mcp__", 5) == 0 && strstr(name + 5, "__")) {
        const char *tool = strstr(name + 5, "__");
        autofree char *server = strndup(name + 5, (size_t)(tool - name - 5));
        item_set_call(it, server ? server : "", tool + 2, input, true);
    } else {
        item_set_call(it, "qwen-code", name, input, false);
    }
    item_announce(it);
    if (is(name, "agent") || is(name, "task")) {
        const char *label = field_str(input, "description");
        turn_subagent(q->t, id, label ? label : field_str(input, "subagent_type"),
                      field_str(input, "prompt"), false);
    }
}

/* What Qwen's own shell tool reports of a command that failed: it is not marked as an error. */
static bool shell_exit(const char *output, int64_t *ret)
{
    const char *p = strstr(output, "\nExit Code: ");
    p = p ? p + 1 : strncmp(output, "Exit Code: ", 11) == 0 ? output : NULL;
    return p && sscanf(p, "Exit Code: %" SCNd64, ret) == 1;
}

static void tool_result(struct qwen *q, const json_t *block)
{
    static const char *const writers[] = {"write_file", "replace",   "edit",
                                          "write",      "multiedit", "edit_file"};
    const char *id = field_str(block, "tool_use_id");
    struct item *it = id ? turn_find(q->t, id, NULL) : NULL;
    if (!it)
        return;
    bool failed = json_is_true(json_object_get(block, "is_error"));
    autofree char *text = result_text(json_object_get(block, "content"));
    if (text)
        item_output(it, text, strlen(text));
    if (it->type == ITEM_COMMAND && text) {
        int64_t code;
        if (shell_exit(text, &code)) {
            it->has_exit = true;
            it->exit_code = code;
            failed = failed || code != 0;
        }
    }
    if (failed && it->type == ITEM_CALL && text)
        item_set_error(it, text);
    if (!failed && it->type == ITEM_CALL && !it->mcp)
        for (size_t i = 0; i < ARRAY_LEN(writers); i++)
            if (is(it->name, writers[i])) {
                const char *path = field_str(it->arguments, "file_path");
                path = path ? path : field_str(it->arguments, "path");
                path = path ? path : field_str(it->arguments, "absolute_path");
                if (path)
                    turn_wrote(q->t, path);
            }
    if (it->type == ITEM_CALL && (is(it->name, "agent") || is(it->name, "task")))
        turn_subagent(q->t, id, NULL, NULL, true);
    item_end(it, failed);
}

static void line(void *state, const json_t *o)
{
    struct qwen *q = state;
    const char *type = field_str(o, "type"), *parent = field_str(o, "parent_tool_use_id");
    if (!type)
        return;
    const json_t *message = json_object_get(o, "message");
    if (parent) {
        if (is(type, "assistant") || is(type, "user"))
            turn_subentry(q->t, parent, message);
        return;
    }
    size_t i;
    json_t *block;
    if (is(type, "system")) {
        const char *sub = field_str(o, "subtype");
        if ((is(sub, "init") || is(sub, "session_start")) && field_str(o, "session_id"))
            turn_thread(q->t, field_str(o, "session_id"));
    } else if (is(type, "stream_event")) {
        stream_event(q, json_object_get(o, "event"));
    } else if (is(type, "assistant")) {
        const char *id = field_str(message, "id");
        json_array_foreach(json_object_get(message, "content"), i, block)
        {
            const char *kind = field_str(block, "type");
            if (is(kind, "text"))
                whole(q, ITEM_MESSAGE, "text", id ? id : "", json_object_get(block, "text"));
            else if (is(kind, "thinking"))
                whole(q, ITEM_REASONING, "thinking", id ? id : "",
                      json_object_get(block, "thinking"));
            else if (is(kind, "tool_use"))
                tool_use(q, block);
        }
    } else if (is(type, "user")) {
        json_array_foreach(json_object_get(message, "content"), i, block)
        {
            if (is(field_str(block, "type"), "tool_result"))
                tool_result(q, block);
        }
    } else if (is(type, "result")) {
        const json_t *u = json_object_get(o, "usage");
        const json_t *result = json_object_get(o, "result");
        const char *sub = field_str(o, "subtype");
        q->closed = true;
        if (json_is_object(u)) {
            int64_t output = count(u, "output_tokens"), total = count(u, "total_tokens");
            int64_t input = count(u, "input_tokens");
            if (!json_is_integer(json_object_get(u, "total_tokens"))) {
                input +=
                    count(u, "cache_creation_input_tokens") + count(u, "cache_read_input_tokens");
                total = input + output;
            }
            turn_usage(q->t, input, count(u, "cache_read_input_tokens"), output, 0, total);
        }
        if (json_is_true(json_object_get(o, "is_error")) ||
            (sub && strncmp(sub, "error", 5) == 0)) {
            const char *text = json_string_value(result);
            const char *error = field_str(json_object_get(o, "error"), "message");
            q->failed = true;
            if (is(sub, "error_max_turns") || is(sub, "error_max_budget_usd") ||
                is(sub, "error_max_session_turns"))
                q->code = "session_budget_exceeded";
            snprintf(q->message, sizeof(q->message), "%s",
                     text && *text ? text
                     : error       ? error
                     : sub         ? sub
                                   : "the turn failed");
        } else if (json_is_string(result) &&
                   strncmp(json_string_value(result), "[API Error:", 11) == 0) {
            snprintf(q->api_error, sizeof(q->api_error), "%s", json_string_value(result));
        } else if (json_is_string(result) && json_string_length(result) && !q->any_text) {
            whole(q, ITEM_MESSAGE, "text", "result", result);
        }
    }
}

static void finish(void *state, int exit_code, struct adapter_end *ret)
{
    struct qwen *q = state;
    ret->closed = q->closed;
    ret->fatal = q->failed;
    ret->code = q->code;
    snprintf(ret->message, sizeof(ret->message), "%s", q->message);
    if (exit_code == 53 || exit_code == 55) {
        ret->fatal = true;
        ret->code = "session_budget_exceeded";
        snprintf(ret->message, sizeof(ret->message), "qwen-code stopped: %s exceeded",
                 exit_code == 53 ? "session turn limit" : "budget");
    } else if (!ret->fatal && q->api_error[0]) {
        /* A model that could not be reached ends as a text and exit 0. */
        ret->fatal = true;
        snprintf(ret->message, sizeof(ret->message), "%s", q->api_error);
    }
}

const struct adapter adapter_qwen = {
    .name = "qwen-code",
    .binary = "qwen",
    .package = "@qwen-code/qwen-code",
    .aliases = names,
    .auth_env = auth,
    .own_env = own,
    .implemented = true,
    .experimental = true,
    .resume = true,
    .deltas = true,
    .mcp = true,
    .flag_prompt = true,
    .base_url = true,
    .max_turns = true,
    .subagent_source = "turns_grouped_from_parent_stream",
    .launch = launch,
    .begin = begin,
    .line = line,
    .finish = finish,
    .end = free,
};
