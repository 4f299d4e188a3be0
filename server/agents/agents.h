#pragma once
/* Coding-agent CLIs as sessions: who may do what, what runs, what is kept. Knows no HTTP;
 * routes/agents decodes, calls this and encodes.
 *
 * The loop owns sessions, turns, logs and webhook queues. Workers own nothing but the store while
 * they hold its lock; a request that writes does so on a worker first and tells the loop when it is
 * on disk. */

#include "agents/adapters/adapter.h"
#include "agents/redact.h"
#include "agents/store.h"

#include "base/env.h"
#include "base/list.h"
#include "base/loop.h"
#include "policy/policy.h"
#include "process/spawn.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define AG_ID_MAX 48       /* longest own id with NUL */
#define AG_TEXT_MAX 262144 /* characters of one item's text */
#define AG_MAX_WAITING 32  /* queued turns of a session */
#define AG_MAX_STREAMS 32  /* readers of a session's events */

/* An agents error: what the client is told in the group's own envelope. status 0: none. */
struct ag_error {
    int status;
    char code[64];
    bool has_param;
    char param[192];
    char message[512];
    bool refused; /* only a hosted service could answer: labelled so */
};
/* Fills e; param NULL: null. Returns -1. */
int ag_fail(struct ag_error *e, int status, const char *code, const char *param, const char *fmt,
            ...) __attribute__((format(printf, 5, 6)));
#define ag_invalid(e, param, ...) ag_fail(e, 400, "invalid_request", param, __VA_ARGS__)
#define ag_unknown(e, param, what, id)                                                             \
    ag_fail(e, 404, "resource_not_found", param, "%s '%.100s' not found", what, id)
/* The store failed: 500 (507 when the disk is full). */
int ag_store_fail(struct ag_error *e, const struct abx_error *err);
int ag_refuse_adapter(struct ag_error *e, const char *name, bool declared);

/* --- settings (docs/agents.md) -------------------------------------------------------------- */

struct ag_settings {
    char *state_dir, *default_runtime, *responses_workspace;
    bool persist, traces, private_urls, webhook_http, install;
    int64_t max_turns, max_vaults, max_file_bytes, max_artifact_bytes, max_sessions, max_responses,
        max_events, max_state_bytes, max_output_bytes, turn_timeout_s, idle_timeout_s,
        session_age_s, webhook_backoff_ms;
    char *codex_version, *qwen_version;
};

/* --- usage ---------------------------------------------------------------------------------- */

struct ag_usage {
    bool known;
    int64_t input, cached, output, reasoning, total;
};
json_t *ag_usage_json(const struct ag_usage *u); /* null when not known */
void ag_usage_read(const json_t *value, struct ag_usage *ret);
void ag_usage_add(struct ag_usage *sum, const struct ag_usage *more);

/* --- event logs ------------------------------------------------------------------------------ */

struct agents;
struct evlog;

struct evlog_ops {
    /* One frame, in order. Return false to stop (the reader must then be closed by its owner, later
     * or at once inside the call). */
    bool (*frame)(void *owner, int64_t seq, int sub, const char *type, const char *data,
                  size_t len);
    bool (*ready)(void *owner);              /* may more be given? evlog_resume continues */
    void (*gap)(void *owner, int64_t first); /* frames before `first` are no longer there */
    void (*ended)(void *owner);              /* the log is gone or complete; last call */
};
struct evlog_reader;

struct evlog {
    struct agents *ag;
    int64_t id, next_seq;
    struct list frames; /* the newest, for live readers */
    size_t n_frames, bytes;
    struct list readers;
    int n_readers;
    bool complete; /* nothing more will come */
    bool muted;    /* nobody will ever read it */
    int64_t since_trim;
};
void evlog_init(struct evlog *l, struct agents *ag, int64_t id, int64_t next_seq);
/* Appends; sub 0 opens a new seq, others continue it. data: borrowed. */
void evlog_add(struct evlog *l, int sub, const char *type, const json_t *data);
void evlog_complete(struct evlog *l); /* readers get what is left, then ended */
void evlog_done(struct evlog *l);     /* ended at once for all */
void evlog_discard(
    struct evlog *l); /* at the end of the server: the memory, without a word to anybody */
/* Frames after `after` (whole seq). The first calls come later, never from within. NULL: no memory.
 */
struct evlog_reader *evlog_read(struct evlog *l, int64_t after, const struct evlog_ops *ops,
                                void *owner);
void evlog_resume(struct evlog_reader *r);
void evlog_close(struct evlog_reader *r);

/* --- sessions -------------------------------------------------------------------------------- */

struct turn;

struct session {
    struct list node; /* agents.sessions */
    struct agents *ag;
    char id[AG_ID_MAX];
    char *owner;
    bool hidden; /* backs responses */
    int64_t rid;
    json_t *cfg;  /* as stored: agent, environment, metadata, vault_ids, runtime, cli_model, effort,
                     instructions,  tools, env_id, workspace, agent_id */
    char *thread; /* the CLI's own id, or NULL */
    struct ag_usage usage, reported;
    double created, active;
    struct evlog log;
    struct list turns; /* waiting and running, in order */
    int n_turns;
    int pending; /* submissions on their way through a worker */
    bool busy;   /* session.in_progress was said and idle not yet */
    bool dead;
    int refs; /* turns and deletions that still need the memory */
    void (*deleted)(void *data);
    void *deleted_data;
};

const struct adapter *session_adapter(const struct session *s);
struct session *session_find(struct agents *ag, const char *id, const char *owner, bool hidden);
/* The REST object without label, status as the loop knows it. New reference. */
json_t *session_json(const struct session *s);
/* The same from a stored row, for workers. */
json_t *session_doc(const char *id, double created, double active, const json_t *cfg, bool busy,
                    const struct ag_usage *usage);
/* A stored session becomes a live one. Takes cfg. NULL: no memory. */
struct session *session_add(struct agents *ag, const char *id, const char *owner, bool hidden,
                            int64_t rid, json_t *cfg, double now);
/* Ends its turns, forgets it, deletes its rows and files; done (may be NULL) once that is on disk.
 */
void session_delete(struct session *s, void (*done)(void *data), void *data);
/* Makes room for one more: old ones, then the longest idle; full: the state file is above its
 * bound, so some of the longest idle go whatever their number. */
void session_evict(struct agents *ag, bool full);
/* Is the state file above its bound? Lock held. */
bool agents_full(struct agents *ag);

/* --- turns ----------------------------------------------------------------------------------- */

enum item_type { ITEM_MESSAGE, ITEM_REASONING, ITEM_COMMAND, ITEM_CALL };

struct item {
    struct list node;
    struct turn *turn;
    char id[AG_ID_MAX];
    enum item_type type;
    int index;
    char *key;       /* the CLI's id, or NULL */
    char *kind;      /* adapter's tag of a stream ("text:1"), or NULL */
    struct buf text; /* clean text as shown so far; output of a command */
    struct buf raw;  /* as it came: compared with the final text */
    struct redact_stream stream;
    size_t chars; /* of text, cut at AG_TEXT_MAX */
    bool cut;
    bool finished;      /* text is whole; its done frames wait (messages) */
    const char *status; /* in_progress, completed, failed, incomplete */
    char *command, *label, *name, *output, *error;
    json_t *arguments;
    bool has_exit, mcp, live; /* live: its output is told as it comes */
    uint64_t saved_ms;
    int64_t exit_code;
    uint64_t started_ns;
    int64_t duration_ms; /* -1: not known */
    const char *phase;
};
/* The REST object without label. New reference. */
json_t *item_json(const struct item *it);
/* Compact ASCII JSON in the spelling of frames and webhooks; heap, NULL when memory is out. */
char *ag_compact(const json_t *value);

struct turn_watch { /* loop; all may be NULL */
    void (*started)(void *owner);
    void (*item_added)(void *owner, const struct item *it);
    void (*item_delta)(void *owner, const struct item *it, const char *text, size_t len);
    void (*item_done)(void *owner, const struct item *it);
    void (*ended)(void *owner, struct turn *t); /* last call */
};

enum turn_state { TURN_QUEUED, TURN_STARTING, TURN_RUNNING, TURN_ENDING, TURN_OVER };

struct turn {
    struct list node; /* session.turns */
    struct list wait; /* agents.waiting */
    struct session *session;
    struct agents *ag;
    char id[AG_ID_MAX];
    enum turn_state state;
    const char *status;
    char *prompt; /* as it came; freed once written */
    size_t prompt_len;
    char *instructions; /* of a response: before the prompt */
    json_t *tools;      /* of a response, else the session's */
    char *model;        /* of a response's own, or NULL */
    double created, started, completed;
    char error_code[64], error_message[4096];
    struct ag_usage usage;
    int n_items;
    const struct turn_watch *watch;
    void *watch_owner;
    struct runner *run;
    bool hooks; /* a webhook endpoint existed when it was posted */
};
/* Takes ownership of everything in `t` (made by turn_new). Emits turn.created and queues it. */
struct turn *turn_new(struct session *s, const char *id, const char *prompt, size_t len);
void turn_free(struct turn *t);
void turn_submit(struct turn *t);
json_t *turn_json(const struct turn *t);
json_t *turn_doc(const char *id, const char *agent_id, const char *session_id, const char *status,
                 double created, double started, double completed, const json_t *error,
                 const json_t *usage);
/* A waiting turn is cancelled at once, a running one is interrupted. */
void turn_cancel(struct turn *t);
struct turn *session_running(const struct session *s);

/* runner.c: the child of a running turn */
void runner_start(struct turn *t);
void runner_cancel(struct turn *t);
/* Called by the runner when the child and its group are gone. code NULL: completed; "cancelled" as
 * status. */
void turn_over(struct turn *t, const char *status, const char *code, const char *message);
void agents_schedule(struct agents *ag);

/* --- webhooks -------------------------------------------------------------------------------- */

struct hooks;
struct hooks *hooks_new(struct agents *ag);
void hooks_free(struct hooks *h);
bool hooks_any(const struct hooks *h, const char *owner);
/* Endpoints change with the store; doc as stored. */
void hooks_set(struct hooks *h, const char *id, const char *owner, const json_t *doc);
void hooks_remove(struct hooks *h, const char *id);
void hooks_fire(struct hooks *h, const struct session *s, const char *type); /* h NULL: nobody is told any more */
/* One delivery without retries; done(status) with 0 when it could not be made. */
int hooks_test(struct hooks *h, const char *id, const char *type,
               void (*done)(void *data, int status, const char *why), void *data,
               struct ag_error *e);

/* --- runtimes -------------------------------------------------------------------------------- */

struct runtime_state {
    bool installed, credentials;
    char path[512], version[208];
};
struct probes;
struct probes *probes_new(struct agents *ag);
void probes_free(struct probes *p);
/* All runtimes, in the table's order; done on the loop, never from within. */
void probes_ask(struct probes *p,
                void (*done)(void *data, const struct runtime_state *states, size_t n), void *data);
/* The child's PATH search. Any thread. ret: heap, NULL when it is not there. */
char *runtime_find(const char *path, const char *binary);

/* --- the service ------------------------------------------------------------------------------ */

struct agents_deps {
    struct loop *loop;
    struct spawner *spawner;
    struct env_map *env;
    const char *base_dir;
    struct policy *(*policy)(void *data); /* in force now, borrowed */
    void *policy_data;
};

struct agents {
    struct agents_deps d;
    struct ag_settings set;
    struct store *store;
    struct list sessions;
    int n_sessions, n_hidden;
    struct list waiting; /* turns without a slot, in order */
    int n_running;
    struct hooks *hooks;
    struct probes *probes;
    struct list installs;
    struct list responses; /* being answered */
    size_t prompt_bytes;
    bool stopping;
    double booted; /* unique stamps */
};

/* Blocks (opens the store): on a worker; then agents_start on the loop. */
int agents_open(const struct agents_deps *deps, struct agents **ret, struct abx_error *err);
int agents_start(struct agents *ag, struct abx_error *err);
/* Children are gone already. */
void agents_close(struct agents *ag);

/* The workspace to use when none is named: /workspace if `g` allows it, else BASE/workspace. Heap.
 */
char *agents_default_workspace(const struct agents *ag, const struct guard *g, const char *wanted);
void agents_new_id(const char *prefix, char out[AG_ID_MAX]);
/* The tools of a session or definition with their secret headers put back; new array. */
/* Lock held. *ret_lost: some are gone (after a restart). */
json_t *agents_tools_with_secrets(struct agents *ag, const char *ref, const json_t *tools,
                                  bool *ret_lost);
/* Checks that every bound credential is there and fresh. Lock held. */
int agents_check_bindings(struct agents *ag, const json_t *tools, struct ag_error *e);
/* Token of a bound credential; heap. Lock held. */
char *agents_token(struct agents *ag, const json_t *tool);
