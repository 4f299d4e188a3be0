#pragma once
/* Policy: the document, its layers, and the rules compiled from them, one per endpoint.
 * A compiled policy is immutable and reference-counted (a reload makes a new one); the counters of
 * rate and concurrency live beside it and are touched on the loop only. */

#include "base/buf.h"
#include "base/error.h"
#include "policy/endpoint.h"
#include "policy/guard.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct policy;
struct policy_doc;

struct str_list {
    size_t n;
    const char **items;
};

enum audit_level { AUDIT_OFF, AUDIT_DENY, AUDIT_ALL };

/* What is in force for one endpoint. Owned by the policy. */
struct rule {
    const struct endpoint *endpoint;
    bool enabled;
    const char *origin;         /* why it is off: "default:opt-in:G", "preset:...", "policy:..." */
    struct str_list scopes;     /* all needed */
    enum audit_level audit;
    struct guard *guard;        /* never NULL; of endpoints without EP_PATHS: the base directory */
    bool counted_alone; /* it belongs to another endpoint, but has a rate or concurrency of its own */
    uint32_t limits_set, params_set; /* LIM() / PAR() bits that are configured */
    int64_t count[LIMIT_COUNT]; /* SIZE and COUNT limits */
    double seconds[LIMIT_COUNT];
    bool flag[PARAM_COUNT];
    struct str_list list[PARAM_COUNT];
    int64_t *signals;           /* allowed_signals */
    size_t n_signals;
    struct str_list allow, deny;     /* paths, for discovery */
    bool read_only, symlinks_never;
};

int64_t rule_limit(const struct rule *r, enum limit l, int64_t fallback);
double rule_seconds(const struct rule *r, enum limit l, double fallback);
bool rule_flag(const struct rule *r, enum param p, bool fallback);
const struct str_list *rule_list(const struct rule *r, enum param p); /* NULL when not configured */

struct identity {
    const char *id;
    struct str_list scopes; /* sorted */
    bool anonymous;
};
/* "core:read" always; else "*", the exact scope, or "ns:*". */
bool identity_has(const struct identity *who, const char *scope);

/* --- the document --------------------------------------------------------------------------- */

/* text: JSON, or YAML 1.1 (safe_load scalars, no aliases) when yaml; at most 1 MiB. `origin` names the
 * source in messages. Errors: E_CONFIG, a message that names the place. */
int policy_doc_parse(const char *text, size_t len, bool yaml, const char *origin, struct policy_doc **ret,
                     struct abx_error *err);
int policy_doc_load(const char *path, struct policy_doc **ret, struct abx_error *err);
struct policy_doc *policy_doc_empty(void);
void policy_doc_free(struct policy_doc *doc);

struct policy_source {
    const char *file;   /* --policy */
    const char *preset; /* --preset */
    const char *(*getenv)(const char *name); /* NULL: getenv(3) */
};
/* Finds and reads the document as 01 section 1 "Policy source" says. */
int policy_doc_resolve(const struct policy_source *src, struct policy_doc **ret, struct abx_error *err);

/* ABX_SERVER_TOKEN: adds the identity "server" when the document has no tokens. token: NULL or empty = no-op.
 * Only its SHA-256 is kept. */
int policy_doc_add_server_token(struct policy_doc *doc, const char *token, struct abx_error *err);

/* The same for a document that is read again, when the variable has long been wiped: what `from` got. */
int policy_doc_keep_server_token(struct policy_doc *doc, const struct policy_doc *from, struct abx_error *err);

/* The file that policy_doc_resolve reads, or NULL when the policy is inline or there is none. Borrowed. */
const char *policy_source_file(const struct policy_source *src);

/* NULL-terminated names of every token_env, for scrubbing. Owned by the document. */
const char *const *policy_doc_token_envs(const struct policy_doc *doc);

/* Reads the variable of every token_env now and keeps its SHA-256, so that the environment can be wiped before
 * the policy is compiled. Unset ones are left for policy_compile to complain about. Errors: E_NO_MEMORY. */
int policy_doc_hash_tokens(struct policy_doc *doc, struct abx_error *err);

/* base_dir of the document, or NULL. */
const char *policy_doc_base_dir(const struct policy_doc *doc);

/* --- compiling ------------------------------------------------------------------------------- */

struct policy_inputs {
    struct policy_doc *doc;              /* borrowed */
    const struct endpoint *const *endpoints; /* in registration order; the array is copied, the
                                                endpoints must outlive the policy */
    size_t n_endpoints;
    const char *enabled_groups;          /* ABX_SERVER_ENABLED_GROUPS or NULL */
    const char *base_dir;                /* absolute: what --base-dir / environment / default say */
    int8_t code_groups[GROUP_COUNT];     /* a commands file: 1 on, -1 off, 0 not mentioned */
    const char *(*getenv)(const char *name);
    const struct policy *previous;       /* a reload: the policy in force, or NULL. Its hashes serve token_env
                                            names again, whose values are wiped from the environment */
};
/* Errors: E_CONFIG (unknown endpoint, knob not applicable, token_env unset, broken command pattern, ...). */
int policy_compile(const struct policy_inputs *in, struct policy **ret, struct abx_error *err);
struct policy *policy_ref(struct policy *p);
void policy_unref(struct policy *p);

const struct rule *policy_rule(const struct policy *p, size_t endpoint_index);
const struct rule *policy_find(const struct policy *p, const char *endpoint_id); /* NULL: unknown */
const char *policy_revision(const struct policy *p);  /* 16 hex digits */
const char *policy_preset(const struct policy *p);
bool policy_configured(const struct policy *p);
bool policy_has_tokens(const struct policy *p);
enum audit_level policy_default_audit(const struct policy *p);
const char *policy_base_dir(const struct policy *p);
/* A token from a variable, without the blanks and line ends around it that files and secrets often have (they can't be
 * sent: presented tokens are trimmed too). *ret_len 0: NULL or empty. name: for messages.
 * Errors: E_CONFIG, nothing but blanks, or a control character inside. */
int policy_token_text(const char *name, const char *value, const char **ret, size_t *ret_len,
                      struct abx_error *err);

/* Extra accepted origins and hosts (auth.allowed_origins, auth.allowed_hosts); NULL when not configured. */
const struct str_list *policy_origins(const struct policy *p);
const struct str_list *policy_hosts(const struct policy *p);

/* "L1: ..." sorted, unique; new JSON array of strings. policy_file: for L5, or NULL. */
json_t *policy_lint(const struct policy *p, const char *policy_file);

/* --- a request's way ------------------------------------------------------------------------- */

/* One credential as it came: header values in order. */
struct credential {
    bool bearer; /* from Authorization: Bearer; else X-Access-Token */
    const char *value;
    size_t len;
};
/* 4.5 of 01. *ret stays valid as long as the policy. Errors: E_AMBIGUOUS_CREDENTIALS, E_UNAUTHORIZED. */
int policy_authenticate(const struct policy *p, const struct credential *creds, size_t n,
                        const struct identity **ret, struct abx_error *err);
const struct identity *policy_nobody(void); /* "anonymous", no scopes: auth-free routes */

/* Steps 4a and 4b: enabled and scopes. ret_scope: the missing one (E_MISSING_SCOPE only).
 * Errors: E_DISABLED, E_MISSING_SCOPE. */
int policy_permits(const struct rule *r, const struct identity *who, const char **ret_scope,
                   struct abx_error *err);

/* Steps 4c and 4d, loop only. Counters survive a reload (they are keyed by identity and endpoint id).
 * On success *ret_slot is set when concurrency is limited: give it back with limits_release.
 * Errors: E_RATE_LIMITED, E_CONCURRENCY_LIMITED with *ret_retry_after in seconds. */
struct limits;
struct limits *limits_new(void);
void limits_free(struct limits *l);
struct limit_slot;
int limits_admit(struct limits *l, const struct rule *r, const struct identity *who, uint64_t now_ms,
                 struct limit_slot **ret_slot, int *ret_retry_after, struct abx_error *err);
void limits_release(struct limit_slot *slot); /* NULL is fine */

/* --- discovery ------------------------------------------------------------------------------- */

/* GET /capabilities. New object, or NULL with err. */
json_t *policy_capabilities(const struct policy *p, const struct identity *who, const char *version,
                            struct abx_error *err);

/* POST /capabilities/check. body: the request's object. Errors: E_VALUE for bad input. */
json_t *policy_check(const struct policy *p, const struct identity *who, const json_t *body,
                     struct abx_error *err);

/* check-config's three forms. */
void policy_describe(const struct policy *p, json_t *warnings, struct buf *out);
json_t *policy_describe_json(const struct policy *p, json_t *warnings);

/* Near miss of `word` among `words` (NULL-terminated) or NULL: "did you mean". */
const char *suggest(const char *word, const char *const *words);
