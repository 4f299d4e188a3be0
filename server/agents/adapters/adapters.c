#include "agents/adapters/adapter.h"

#include "base/own.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char *const no_names[] = {NULL};
static const char *const claude_names[] = {"claude", "claude_code", "claudecode", NULL};
static const char *const claude_auth[] = {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN",
                                          "CLAUDE_CODE_OAUTH_TOKEN", NULL};
static const char *const claude_env[] = {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN",
                                         "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN", NULL};
static const char *const command_names[] = {"custom", NULL};
static const char *const cursor_names[] = {"cursor-agent", "cursor_agent", NULL};
static const char *const cursor_auth[] = {"CURSOR_API_KEY", NULL};

static const struct adapter adapter_claude = {
    .name = "claude-code",
    .binary = "claude",
    .package = "@anthropic-ai/claude-code",
    .aliases = claude_names,
    .auth_env = claude_auth,
    .own_env = claude_env,
    .resume = true,
    .deltas = true,
    .mcp = true,
    .flag_prompt = true,
    .base_url = true,
    .max_turns = true,
    .budget = true,
};
static const struct adapter adapter_command = {
    .name = "command",
    .aliases = command_names,
    .auth_env = no_names,
    .own_env = no_names,
    .deltas = true,
};
static const struct adapter adapter_cursor = {
    .name = "cursor",
    .binary = "cursor-agent",
    .aliases = cursor_names,
    .auth_env = cursor_auth,
    .own_env = cursor_auth,
    .experimental = true,
    .resume = true,
    .deltas = true,
    .mcp = true,
    .install_script = "curl -fsS https://cursor.com/install | bash",
};

const struct adapter *const adapters[] = {&adapter_codex, &adapter_qwen, &adapter_claude,
                                          &adapter_command, &adapter_cursor};
const size_t adapter_count = ARRAY_LEN(adapters);

const struct adapter *adapter_find(const char *name)
{
    while (isspace((unsigned char)*name))
        name++;
    size_t len = strlen(name);
    while (len && isspace((unsigned char)name[len - 1]))
        len--;
    for (size_t i = 0; len && i < adapter_count; i++) {
        const struct adapter *a = adapters[i];
        if (strlen(a->name) == len && strncasecmp(a->name, name, len) == 0)
            return a;
        for (const char *const *alias = a->aliases; *alias; alias++)
            if (strlen(*alias) == len && strncasecmp(*alias, name, len) == 0)
                return a;
    }
    return NULL;
}

void strv_add(struct strv *s, const char *text)
{
    char **more = s->failed ? NULL : realloc(s->v, (s->n + 2) * sizeof(*more));
    char *copy = more ? strdup(text) : NULL;
    if (more)
        s->v = more;
    if (!copy) {
        s->failed = true;
        return;
    }
    s->v[s->n++] = copy;
    s->v[s->n] = NULL;
}

void strv_addf(struct strv *s, const char *fmt, ...)
{
    struct buf text = BUF_INIT;
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    char *at = n >= 0 ? buf_reserve(&text, (size_t)n + 1) : NULL;
    if (at) {
        vsnprintf(at, (size_t)n + 1, fmt, ap);
        strv_add(s, at);
    } else {
        s->failed = true;
    }
    va_end(ap);
    buf_done(&text);
}

void strv_done(struct strv *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->v[i]);
    free(s->v);
    *s = (struct strv){0};
}

const char *field_str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

int launch_prompt(const struct launch *in, const char *preamble, struct launch_out *out, char *why,
                  size_t why_size)
{
    const char *const before[] = {preamble, in->before};
    for (size_t i = 0; i < ARRAY_LEN(before); i++)
        if (before[i] && *before[i])
            buf_addf(&out->input, "%s\n\n---\n\n", before[i]);
    buf_add(&out->input, in->prompt, in->prompt_len);
    if (!out->argv.failed && !out->input.failed)
        return 0;
    snprintf(why, why_size, "out of memory");
    return -1;
}

const char *mcp_variable(const char *label, const char *header, char *out, size_t size)
{
    int n = snprintf(out, size, "ABX_MCP_%s_%s", label, header);
    size_t len = n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1, at = 0;
    for (size_t i = 0; i < len; i++) {
        char c = (char)toupper((unsigned char)out[i]);
        if ((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
            out[at++] = c;
        else if (at == 0 || out[at - 1] != '_')
            out[at++] = '_';
    }
    out[at] = '\0';
    return out;
}

/* `word` in `text`, any case; whole: with no letter or digit beside it. */
static bool has(const char *text, const char *word, bool whole)
{
    size_t n = strlen(word);
    for (const char *p = text; (p = strcasestr(p, word)); p++) {
        if (!whole)
            return true;
        bool left = p == text || !isalnum((unsigned char)p[-1]);
        if (left && !isalnum((unsigned char)p[n]))
            return true;
    }
    return false;
}

const char *failure_code(const char *text)
{
    static const struct {
        const char *code;
        const char *words[10]; /* "=" in front: as a whole word */
    } rows[] = {
        {"authentication_error",
         {"=401", "=403", "unauthorized", "invalid api key", "incorrect api key", "invalid_api_key",
          "authentication", "not logged in", "/login"}},
        {"rate_limit_exceeded", {"=429", "rate limit", "rate_limit", "quota", "too many requests"}},
        {"server_overloaded", {"overloaded", "=503", "=529", "service unavailable"}},
        {"context_length_exceeded",
         {"context length", "context_length", "prompt is too long", "too many tokens",
          "maximum context"}},
        {"connection_failed",
         {"econnrefused", "enotfound", "connection refused", "connection reset", "getaddrinfo",
          "econnreset"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (size_t w = 0; w < ARRAY_LEN(rows[i].words) && rows[i].words[w]; w++) {
            const char *word = rows[i].words[w];
            if (*word == '=' ? has(text, word + 1, true) : has(text, word, false))
                return rows[i].code;
        }
    return NULL;
}
