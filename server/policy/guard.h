#pragma once
/* The path guard: which files an endpoint may touch. Immutable after guard_new; any thread.
 *
 * A path from a client is opened only through here. Links are resolved component by component with
 * readlinkat, the rules judge the canonical path, and that path is opened beneath its root by
 * openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS) (fallback: an O_NOFOLLOW walk). A race starts
 * over, three times at most. So what was checked is what is opened. */

#include "base/arena.h"
#include "base/error.h"
#include "policy/endpoint.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

struct guard;

struct guard_config {
    const char *base_dir;          /* absolute; the only root when `allow` is empty, and what relative
                                      paths hang on when it is */
    const char *const *allow;      /* absolute directories, NULL-terminated, or NULL */
    const char *const *deny;       /* patterns (docs/guards.md), NULL-terminated, or NULL */
    bool read_only;
    bool symlinks_never;
};

/* Takes copies. Errors: E_NO_MEMORY, E_VALUE (an allow entry that is not absolute). */
int guard_new(const struct guard_config *config, struct guard **ret, struct abx_error *err);
void guard_free(struct guard *g);

/* A judged path. Everything lies in the arena given to the call. */
struct guard_path {
    const char *resolved; /* canonical absolute path: links followed, tail may not exist */
    const char *lexical;  /* absolute, `.`, `..`, `//` gone, links not followed */
    const char *root;     /* the root that `resolved` lies in, canonical */
    const char *name;     /* last component of `lexical`; "" for "/" */
};

/* Judges without opening. `path`: len bytes as the client sent them; relative ones hang on `cwd`
 * (absolute, already judged) or, when cwd is NULL, on the first allow root or the base directory.
 * Errors: E_INVALID_PATH (empty, NUL, over 4096 characters), E_PATH_NOT_ALLOWED, E_SYMLINK_DENIED,
 * E_PATH_DENIED, E_READ_ONLY. Existence is never told. */
int guard_check(const struct guard *g, const char *path, size_t len, const char *cwd, enum guard_op op,
                struct arena *arena, struct guard_path *ret, struct abx_error *err);

/* Judges and opens the target (links followed within the rules). flags: open(2) flags; O_CLOEXEC and
 * O_NOCTTY are added, O_NOFOLLOW is implied for the canonical path. Parents are not created.
 * Errors: those of guard_check; abx_fail_os(errno) for the rest (E_OS kinds; err->sys has errno). */
int guard_open(const struct guard *g, const char *path, size_t len, enum guard_op op, int flags,
               mode_t mode, struct arena *arena, struct guard_path *ret, int *ret_fd,
               struct abx_error *err);

/* For what acts on the name itself (delete, rename, mkdir, symlink): opens the parent directory
 * (O_PATH | O_DIRECTORY) with links in it followed, and leaves the last component alone.
 * `ret->resolved` is parent's canonical path + "/" + name: the name is judged, not its target.
 * make_parents: missing parents are made (0777 & ~umask), each beneath the root.
 * The root itself is E_PATH_DENIED for OP_DELETE; for other operations *ret_dirfd is the root and
 * `ret->name` is ".". */
int guard_open_parent(const struct guard *g, const char *path, size_t len, enum guard_op op,
                      bool make_parents, struct arena *arena, struct guard_path *ret, int *ret_dirfd,
                      struct abx_error *err);

/* Judges an entry met while walking from a judged directory: `resolved` is canonical already.
 * True when a deny rule (policy or /proc, /sys, /dev) matches it or it lies outside the roots. */
bool guard_denies(const struct guard *g, const char *resolved);

/* True when the policy has deny patterns of its own (deletes must then look at whole trees). */
bool guard_has_deny(const struct guard *g);

/* First root, canonical when it exists, and the base directory as configured. */
const char *guard_root(const struct guard *g);
const char *guard_base_dir(const struct guard *g);

/* Opens the directory a child should start in: `cwd` of a request judged with OP_EXEC; NULL or empty:
 * the base directory when it exists, else "/". O_PATH | O_DIRECTORY descriptor.
 * Errors as guard_check with prefix "cwd: "; E_VALUE "'cwd' is not a directory: X". */
int guard_open_cwd(const struct guard *g, const char *cwd, size_t len, struct arena *arena,
                   const char **ret_path, int *ret_fd, struct abx_error *err);

/* fnmatch as the policy knows it: case-sensitive, `*` also crosses `/`, `?`, `[abc]`, `[!abc]`,
 * no escapes. */
bool guard_glob(const char *pattern, const char *text);

/* True (1) when this absolute path, or any link on its way, lies under /proc, /sys or /dev; 0, or -1 when
 * memory is out. For programs: what is run there is somebody's process image, not a file. */
int guard_is_system_path(const char *path, struct arena *arena);

/* Characters of UTF-8 text; a byte that is none counts as one. */
size_t guard_text_chars(const char *s, size_t len);

/* Test hook: forces the walk that replaces openat2. */
void guard_force_fallback(bool on);
