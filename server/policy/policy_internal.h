#pragma once
/* What the files of policy/ share and nobody else sees. */

#include "base/arena.h"
#include "base/crypto.h"
#include "base/own.h"
#include "policy/policy.h"

#define POLICY_MAX_BYTES MIB
#define POLICY_WELL_KNOWN "/etc/agent-sandbox/server-policy.json"
#define SERVER_TOKEN_ENV "ABX_SERVER_TOKEN"
#define SERVER_TOKEN_ID "server"

/* --- names of what a rule may set (knobs.def) --------------------------------------------------- */

enum knob_kind {
    KNOB_SIZE,
    KNOB_COUNT,
    KNOB_SECONDS,
    KNOB_BOOL,
    KNOB_OVERRIDE,
    KNOB_UNION,
    KNOB_SIGNALS,
};
struct knob {
    const char *name;
    enum knob_kind kind;
};
extern const struct knob limit_knobs[LIMIT_COUNT];
extern const struct knob param_knobs[PARAM_COUNT];
int knob_find(const struct knob *knobs, size_t n, const char *name); /* -1: no such */

/* --- the document -------------------------------------------------------------------------------- */

struct policy_doc {
    json_t *json;            /* validated and normalised: what the revision is hashed from */
    const char **token_envs; /* NULL-terminated, borrowed from json */
    bool has_server_token;   /* auth.tokens is the one of ABX_SERVER_TOKEN, whose hash is here */
    uint8_t server_hash[SHA256_LEN];
    struct env_hash { /* of token_envs, in their order; NULL: not read yet */
        bool set;
        uint8_t hash[SHA256_LEN];
    } *env_hashes;
    uint8_t kept_hash[SHA256_LEN]; /* of ABX_SERVER_TOKEN, in use or not */
    bool has_kept_hash;
};

/* The one document of a YAML 1.1 stream as JSON, scalars read as safe_load reads them. Aliases, merge
 * keys, dates and other things that JSON has no word for are refused (dates and infinities are text
 * below `description`). Errors: E_CONFIG with the line. */
int yaml_to_json(const char *text, size_t len, json_t **ret, struct abx_error *err);

/* Checks root and brings it into normal form in place. Errors: E_CONFIG naming the place. */
int doc_validate(json_t *root, struct abx_error *err);

/* JSON text of a built-in preset, or NULL when there is none of this name. */
const char *preset_text(const char *name);
extern const char *const preset_names[]; /* NULL-terminated */

bool selector_is_glob(const char *selector);

/* Where in the document: parent + "." + name, made fit for a line of log, at most PLACE_MAX bytes. */
#define PLACE_MAX 256
struct place {
    char text[PLACE_MAX];
};
struct place place_key(const struct place *parent, const char *name);
struct place place_index(const struct place *parent, size_t index);

/* E_CONFIG "<place>: unknown <what> (did you mean 'x'?)" + tail. words: NULL-terminated. */
int fail_unknown(struct abx_error *err, const struct place *at, const char *what, const char *word,
                 const char *const *words, const char *tail);

/* --- compiled -------------------------------------------------------------------------------------- */

enum layer_kind { LAYER_DEFAULTS, LAYER_GROUP, LAYER_GLOB, LAYER_EXACT };
enum layer_rank { RANK_BUILT_IN, RANK_CODE, RANK_PRESET, RANK_POLICY, RANK_ENVIRONMENT };

/* A rule as written in one place, its lists ready to be shared by every endpoint it reaches. */
struct written_rule {
    int8_t enabled, read_only, symlinks_never; /* -1: not said */
    int8_t audit;                              /* -1, or enum audit_level */
    bool has_scopes, has_paths, has_allow;
    struct str_list scopes, allow, deny;
    uint32_t limits_set, params_set;
    int64_t count[LIMIT_COUNT];
    double seconds[LIMIT_COUNT];
    bool flag[PARAM_COUNT];
    struct str_list list[PARAM_COUNT];
    int64_t *signals;
    size_t n_signals;
};

struct layer {
    enum layer_kind kind;
    enum layer_rank rank;
    size_t prefix, position;
    enum group group; /* LAYER_GROUP */
    const char *selector, *origin;
    struct written_rule rule;
};
bool layer_reaches(const struct layer *l, const struct endpoint *e);

struct token {
    struct identity who;
    uint8_t hash[SHA256_LEN];
    const char *env; /* NULL: given by hash */
};

struct policy {
    _Atomic int refs;
    struct arena arena;
    json_t *json; /* the document: most strings here lie in it */
    json_t *preset_json;
    char revision[17];
    const char *preset, *base_dir;
    bool configured, anonymous_ok;
    bool anonymous_defaulted; /* allow_anonymous beside tokens, without anonymous_scopes */
    enum audit_level default_audit;
    struct str_list origins, hosts;
    bool has_origins, has_hosts;

    size_t n;
    const struct endpoint **endpoints;
    struct rule *rules;

    struct layer *layers; /* weakest first */
    size_t n_layers;

    struct guard **guards;
    size_t n_guards;

    struct token *tokens;
    size_t n_tokens;
    struct identity anonymous;
};

bool list_has(const struct str_list *l, const char *word);
