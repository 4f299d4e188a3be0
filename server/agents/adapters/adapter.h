#pragma once
/* What is declared about each runtime, and how a turn of an implemented one is started and its
 * lines read. A further CLI is one more file here and one more row in adapters.c. */

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct turn;
struct item;

struct strv { /* a growing argv; all heap */
    char **v;
    size_t n;
    bool failed;
};
void strv_add(struct strv *s, const char *text);
void strv_addf(struct strv *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strv_done(struct strv *s);

/* All that starting needs; built on the loop, used on a worker. */
struct launch {
    const char *thread; /* resume it, or NULL */
    const char *workspace;
    const char *model;        /* NULL: the CLI's own default */
    const char *effort;       /* or NULL */
    const char *instructions; /* the session's, or NULL */
    const char *before;       /* a response's own, or NULL */
    const char *prompt;
    size_t prompt_len;
    const json_t *tools;     /* [{server_label, url, headers: {name: value}}], secrets in */
    const char *private_dir; /* this turn's own directory, 0700, removed after it */
};

struct launch_out {
    struct strv argv;
    json_t *env;      /* object: name -> string, on top of the turn's environment */
    struct buf input; /* for stdin */
};

struct adapter_end {
    bool fatal;       /* the CLI said that it failed */
    bool closed;      /* its closing record was seen */
    const char *code; /* NULL: from the text */
    char message[4096];
};

struct adapter {
    const char *name, *binary, *package, *install_script;
    const char *const *aliases;  /* NULL-terminated */
    const char *const *auth_env; /* credential variables of the runtime */
    const char *const *own_env;  /* passed to it */
    bool implemented, experimental, resume, deltas, mcp, flag_prompt, base_url, max_turns, budget;
    const char *subagent_source; /* label of turns and items of a subagent */

    int (*launch)(const struct launch *in, struct launch_out *out, char *why,
                  size_t why_size); /* worker */
    void *(*begin)(struct turn *t);
    void (*line)(void *state, const json_t *line);
    /* exit_code as child_exit_code; fills what it knows. */
    void (*finish)(void *state, int exit_code, struct adapter_end *ret);
    void (*end)(void *state); /* frees */
};

extern const struct adapter *const adapters[];
extern const size_t adapter_count;
extern const struct adapter adapter_codex, adapter_qwen;

/* Name or alias, trimmed, any case; NULL: not declared. */
const struct adapter *adapter_find(const char *name);

/* --- what an adapter calls (loop) --- */

void turn_thread(struct turn *t, const char *thread);
/* A new item; ends what waits for its successor. key, kind: copied, may be NULL. */
struct item *turn_item(struct turn *t, int type, const char *key, const char *kind);
struct item *turn_find(struct turn *t, const char *key, const char *kind); /* open ones */
void item_delta(struct item *it, const char *text,
                size_t len); /* raw text of a message or reasoning */
/* The whole text is `text` (NULL: what came so far); a message waits for its phase, others are
 * done. */
void item_finish(struct item *it, const char *text, size_t len);
void item_output(struct item *it, const char *output,
                 size_t len); /* all output so far of a command; says the delta */
void item_set_command(struct item *it, const char *command);
void item_set_call(struct item *it, const char *label, const char *name, const json_t *arguments,
                   bool mcp);
void item_set_error(struct item *it, const char *error);
void item_end(struct item *it, bool failed); /* command or call */
void item_announce(struct item *it);         /* item.added, once its fields are set */
void turn_usage(struct turn *t, int64_t input, int64_t cached, int64_t output, int64_t reasoning,
                int64_t total);
void turn_wrote(struct turn *t, const char *path); /* artifacts */
void turn_unwrote(struct turn *t, const char *path);
/* Subagents: name and instructions may be NULL (kept as they were). */
void turn_subagent(struct turn *t, const char *id, const char *name, const char *instructions,
                   bool closed);
void turn_subentry(struct turn *t, const char *subagent, const json_t *entry);
bool turn_has_message(const struct turn *t);

/* "authentication_error", ... by the words of a text; NULL when none fits. */
const char *failure_code(const char *text);
/* A string field of a line; NULL: absent or another type. */
const char *field_str(const json_t *o, const char *key);
/* The end of a launch: what stands before the prompt (preamble may be NULL; then in->before), each
 * set off by a line of dashes, and the prompt, into out->input. -1 with `why` when memory ran out,
 * also before. */
int launch_prompt(const struct launch *in, const char *preamble, struct launch_out *out, char *why,
                  size_t why_size);
const char *mcp_variable(const char *label, const char *header, char *out, size_t size);
