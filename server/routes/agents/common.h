#pragma once
/* What the handlers of the agents group share: one call, its answers, lists, and the checks of
 * bodies. */

#include "routes/agents/module.h"

#include "base/own.h"

struct call {
    struct agents *ag;
    struct req *req;
    struct resp *resp;
    struct abx_error *err; /* the server's own error shape, used when e->status is 0 */
    struct ag_error *e;
};

typedef int (*agents_handler)(struct call *c); /* 0, -1, REQ_PENDING (loop handlers) */

#define AGENTS_OP(id, where) int agents_##id(struct call *c);
#include "routes/agents/ops.def"
#undef AGENTS_OP

/* A call that outlives its handler: request kept, errors of its own. */
struct job {
    struct call c;
    struct ag_error e;
    struct abx_error err;
    int rc;
    void (*work)(struct job *j); /* worker; sets rc */
    void (*done)(struct job *j); /* loop; finishes with job_finish and frees */
};
/* Prepares j (embedded first in a heap struct) for the request of c. */
void job_init(struct job *j, const struct call *c);
/* work on a worker, then done. Returns REQ_PENDING, or -1 with c->err (the caller frees). */
int job_run(struct job *j, void (*work)(struct job *j), void (*done)(struct job *j));
/* Answers: rc 0: resp is filled; -1: the error. */
void job_finish(struct job *j, int rc);

const char *call_owner(const struct call *c);
const char *call_param(const struct call *c, const char *name);
const json_t *call_body(const struct call *c);

/* Answers with value (taken) and the group's header. */
int reply(struct call *c, json_t *value);
int reply_headers(struct call *c);
/* Fills resp with e in the group's envelope. */
int reply_error(struct call *c);
json_t *error_value(const struct ag_error *e); /* the object under "error" */

/* differences: blank-separated. extras: object, taken, may be NULL. Adds x_agent_sandbox to o and
 * returns it. */
json_t *label(json_t *o, const char *compute, const char *differences, json_t *extras);
#define LABEL_SESSION "queued_not_steered usage_adapter_best_effort"

/* --- lists --- */

struct page {
    int64_t limit;
    bool asc;
    const char *after;
};
int page_read(struct call *c, struct page *p);

struct list_sql {
    const char *cursor, *asc, *desc;
};
/* where: a condition with ?1 and ?2. Every list is in order of insertion. */
#define LIST_SQL(cols, table, where)                                                               \
    {                                                                                              \
        .cursor = "SELECT rid FROM " table " WHERE " where " AND id = ?3",                         \
        .asc = "SELECT id, " cols " FROM " table " WHERE " where                                   \
               " AND rid > ?3 ORDER BY rid LIMIT ?4",                                              \
        .desc = "SELECT id, " cols " FROM " table " WHERE " where                                  \
                " AND rid < ?3 ORDER BY rid DESC LIMIT ?4",                                        \
    }
/* row: columns from 1 on are `cols`; new reference. fmt, a1, a2: as store_stmt ('i' int64_t, 's'
 * text). Lock held. Returns the envelope through ret. */
struct list_arg {
    char kind; /* i, s */
    int64_t i;
    const char *s;
};
#define ARG_I(v) ((struct list_arg){.kind = 'i', .i = (v)})
#define ARG_S(v) ((struct list_arg){.kind = 's', .s = (v)})
int list_rows(struct call *c, const struct page *p, const struct list_sql *sql, struct list_arg a1,
              struct list_arg a2, json_t *(*row)(struct call *c, sqlite3_stmt *s, void *data),
              void *data, json_t **ret);
/* Answers with a page of what the caller owns: ?1 is the owner, ?2 what `a2` says. Takes the lock. */
int reply_owned(struct call *c, const struct list_sql *sql, struct list_arg a2,
                json_t *(*row)(struct call *c, sqlite3_stmt *s, void *data));
/* As list_rows over an array in order of insertion, elements with "id". values: borrowed. */
int list_array(struct call *c, const struct page *p, const json_t *values, json_t **ret);

/* Appends value unless an equal one is there. value: borrowed. */
void add_once(json_t *list, json_t *value);

/* --- bodies: all return 0, or -1 with c->e --- */

/* Only these keys (blank-separated) in o. prefix: "environment." or "". */
int only_keys(struct ag_error *e, const json_t *o, const char *prefix, const char *keys);
/* ret: new object, {} when absent or null. */
int read_metadata(struct ag_error *e, const json_t *v, const char *param, json_t **ret);
size_t text_chars(const json_t *v);
/* The text of an input value ; appends. */
void input_text(const json_t *v, struct buf *out);
/* https (http when allowed) without user, query, fragment; hosts public when `open` is false. */
int check_url(struct ag_error *e, const char *url, size_t len, const char *param, bool http,
              bool query, bool open);
/* scheme://host:port of a URL that was checked, lower case; heap. */
char *url_origin(const char *url);
char *url_host(const char *url);
/* Idempotency-Key: *ret NULL when absent; arena. */
int read_key(struct call *c, const char **ret);
/* SHA-256 of the body's canonical form. */
void body_hash(const json_t *body, char out[65]);
/* What is stored under the key: 1 and *ret (heap) when the body is the same, 0 when it is new, -1
 * mismatch. Lock held. */
int key_find(struct call *c, const char *scope, const char *key, const char *hash, char **ret);
int key_store(struct call *c, const char *scope, const char *key, const char *hash, const char *ref,
              int keep);

/* --- agents --- */

struct agent_spec {
    json_t *model, *name, *instructions, *effort, *metadata; /* values as shown; NULL: not given */
    json_t *tools;   /* wire form, headers "***"; NULL: not given */
    json_t *secrets; /* {label: {header: value}}; NULL: none */
};
void agent_spec_done(struct agent_spec *s);
/* prefix "agent." or "". definition: model and metadata rules of a stored one. */
int agent_read(struct ag_error *e, const json_t *o, const char *prefix, const struct adapter *ad,
               struct agent_spec *ret);
/* First named runtime of the request. agent, model may be NULL. */
int select_runtime(struct call *c, const json_t *body, const json_t *agent, const char *model,
                   const struct adapter **ret);
bool ag_is_runtime(const char *name);
int secrets_store(struct call *c, const char *ref, const json_t *secrets); /* lock held */

/* A row of `objects`; *ret_doc new. 404 with param when it is not the caller's. Lock held. */
int object_get(struct call *c, const char *kind, const char *id, const char *param,
               const char *what, json_t **ret_doc);
int object_count(struct call *c, const char *kind);
int object_insert(struct call *c, const char *kind, const char *id, const json_t *doc, double now,
                  int64_t size);
int object_update(struct call *c, const char *id, const json_t *doc, double now);
int object_delete(struct call *c, const char *id);
#define MAX_OBJECTS 1000

/* The session's row id, or -1 with 404. Lock held. */
int session_row(struct call *c, const char *id, int64_t *ret_rid);
/* Checks vault_ids; appends those that are new to `into`. Lock held. */
int read_vaults(struct call *c, const json_t *v, json_t *into);
/* Binds tools (cfg form) to credentials of the vaults. Lock held. */
int bind_tools(struct call *c, json_t *tools, const json_t *vaults);
/* A ".." among the parts of a path. */
bool has_dots(const char *path);
/* Judges a workspace path and refuses system directories. param may be NULL. */
int check_workspace(struct call *c, const char *path, size_t len, const char *param,
                    bool system_dirs);
json_t *stamp_json(double t);
