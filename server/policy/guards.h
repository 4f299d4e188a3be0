#pragma once
/* The other guards: command lines, programs, environment maps, URLs. Pure functions; any thread. */

#include "base/arena.h"
#include "base/env.h"
#include "base/error.h"
#include "policy/guard.h"
#include "policy/policy.h"

/* --- commands ------------------------------------------------------------------------------ */

/* Splits as docs/guards.md says: POSIX quotes, no expansion. argv is NULL-terminated, in
 * the arena. text may hold no NUL (E_PROCESS_INVALID in the first word, else E_COMMAND_INVALID), and 256 words of
 * 16 KiB each at most (E_COMMAND_INVALID).
 * Errors: E_VALUE "No closing quotation" / "No escaped character" (the caller sets status/prefix). */
int command_split(const char *text, size_t len, struct arena *arena, char ***ret_argv, size_t *ret_argc,
                  struct abx_error *err);

/* Is this list of patterns well formed? For load time. Errors: E_VALUE. */
int command_patterns_check(const struct str_list *patterns, struct abx_error *err);

/* Judges argv against allow_commands / deny_commands of the rule (either may be NULL).
 * With either list set, programs that start others (shells, env, timeout, xargs, find -exec, python -c, ...)
 * pass only when an allow rule spells out their name: docs/guards.md has the classes.
 * Words taken for {path} are checked by the guard against `cwd` and *replaced* in argv by the
 * canonical path. program: what program_resolve found.
 * Errors: E_COMMAND_INVALID, E_COMMAND_NOT_ALLOWED, path errors with prefix "argv: ". */
int command_check(const struct rule *rule, char **argv, size_t argc, const char *program, const char *cwd,
                  struct arena *arena, struct abx_error *err);
/* The same for a shell's words, whose last is a script and no word: up to 131,071 bytes. */
int command_check_script(const struct rule *rule, char **argv, size_t argc, const char *program, const char *cwd,
                         struct arena *arena, struct abx_error *err);

/* Does the rule limit commands at all (allow_commands or deny_commands)? */
bool command_is_limited(const struct rule *rule);

/* --- programs ------------------------------------------------------------------------------ */

/* Finds argv[0] in `search_path` (bare names) or relative to `cwd` (names with a slash) and refuses
 * what lies under /proc, /sys or /dev, also through links. *ret: absolute path of the file to run
 * (not link-resolved: argv[0] tricks of busybox go on working); when nothing is found: NULL and 0,
 * the spawn will say so.
 * Errors: E_PROCESS_INVALID, E_PROCESS_DENIED. */
int program_resolve(const char *name, const char *search_path, const char *cwd, struct arena *arena,
                    const char **ret, struct abx_error *err);

/* --- environment --------------------------------------------------------------------------- */

/* A caller's map of names to strings (docs/guards.md, Environment; `vars` may be NULL = fine).
 * Errors: E_ENV_INVALID, E_ENV_DENIED. */
int env_guard_check(const json_t *vars, struct abx_error *err);

/* Secret names in a caller's map: E_ENV_NOT_ALLOWED. */
int env_guard_secrets(const json_t *vars, const struct env_map *env, struct abx_error *err);

/* With commands limited, a caller must not say which file a name means: PATH and loader variables are
 * E_ENV_NOT_ALLOWED. vars: NULL, or checked by env_guard_check. */
int env_guard_commands(const json_t *vars, const struct rule *rule, struct abx_error *err);

/* LD_*, DYLD_*, BASH_ENV, ENV, PYTHONSTARTUP, ... : run code in whatever starts next. */
bool env_is_loader_name(const char *name);

/* --- URLs ---------------------------------------------------------------------------------- */

struct url_rules {
    const struct str_list *allow, *deny; /* URL globs; without ":" and "/", or as IPv6 addresses, they are
                                            hosts'. NULL = none */
    bool block_private; /* loopback, link-local, private, ... hosts are "not allowed" rather than "denied" */
    bool allow_private; /* lifts the standing refusal of such hosts */
    const struct str_list *loopback_ports; /* "3000": http(s)://localhost:3000 passes all the same */
};

struct url_parts {
    const char *scheme, *host; /* host as browsers see it: lower case, IPv4 forms normalised, punycode, no
                                  brackets */
    int port;                  /* explicit or the scheme's */
    const char *href;          /* scheme://host[:port]/path?query, without user info and fragment */
    bool loopback;             /* passed by loopback_ports */
};

/* Parses http and https URLs as browsers do (127.1, 0x7f.1, 2130706433, %31, fullwidth digits, `\` as `/`)
 * and judges the text. Names are not looked up: who connects checks the address (address_is_private).
 * Errors in this order: E_URL_NOT_ALLOWED (a rule is set, and: not http(s), deny, not in allow,
 * block_private), E_URL_INVALID, E_URL_DENIED. */
int url_check(const struct url_rules *rules, const char *url, size_t len, struct arena *arena,
              struct url_parts *ret, struct abx_error *err);

/* Is `entry` of a list an IPv6 address, in brackets or bare, and `host` (likewise) the same one, however written? As a
 * glob "[::1]" would be a set of characters. */
bool host_is_v6(const char *entry, const char *host);

/* Is this address one that a page or a webhook must not reach? (loopback, link-local, private,
 * CGNAT, multicast, documentation, v4-mapped, NAT64, 6to4, unspecified). addr: sockaddr. */
struct sockaddr;
bool address_is_private(const struct sockaddr *addr);
