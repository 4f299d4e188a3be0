#include "policy/guard.h"

#include "base/buf.h"
#include "base/own.h"

#include <errno.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How it works
 *
 * A client's path becomes three texts: `lexical` (made absolute; "." and ".." taken out before any
 * link is looked at), `resolved` (links followed by a readlink(2) walk over that text) and the
 * canonical root it lies in. The rules judge these texts only; they open nothing.
 *
 * What is opened is the canonical text, and the kernel is told that it holds no link
 * (RESOLVE_NO_SYMLINKS). Had a directory been swapped for a link since the walk, the open fails
 * with ELOOP and everything starts over: judged text and opened file can't differ. */

#define MAX_CHARS 4096
#define MAX_LINKS 40 /* the kernel's own limit, path_resolution(7) */
#define MAX_ATTEMPTS 3

struct root {
    char *path; /* as configured, absolute, normalised */
};

struct guard {
    struct root *roots;
    size_t n_roots;
    char *base_dir;
    char **deny;
    size_t n_deny;
    bool read_only, symlinks_never;
};

/* What a walk over a path found. */
struct walk {
    const char *path;
    bool loop; /* more than MAX_LINKS links: `path` is the text as given, and can't be opened */
    bool via_system; /* touched /proc, /sys or /dev on its way, links included */
};

static const char *const system_dirs[] = {"/proc", "/sys", "/dev"};

/* Only tests write it. */
static atomic_bool force_fallback;

void guard_force_fallback(bool on) { atomic_store(&force_fallback, on); }

/* --- texts ------------------------------------------------------------------------------------ */

/* Bytes of the character at s: one code point of valid UTF-8, or one byte that isn't. */
static size_t char_len(const char *s, const char *end)
{
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0x80 ? 1 : c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    if (c >= 0xf8 || n > (size_t)(end - s))
        return 1;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 1;
    return n;
}

static uint32_t char_at(const char *s, size_t n)
{
    unsigned char c = (unsigned char)*s;
    if (n == 1)
        return c < 0x80 ? c : 0xdc00u + c; /* a bad byte equals itself only */
    uint32_t cp = n == 2 ? c & 0x1f : n == 3 ? c & 0x0f : c & 0x07;
    for (size_t i = 1; i < n; i++)
        cp = cp << 6 | ((unsigned char)s[i] & 0x3f);
    return cp;
}

size_t guard_text_chars(const char *s, size_t len)
{
    size_t n = 0;
    for (const char *end = s + len; s < end; n++)
        s += char_len(s, end);
    return n;
}

/* True when path is dir or lies below it. dir: normalised. */
static bool is_within(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    if (n == 1)
        return true; /* "/" */
    return strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* What follows dir in path: "" or "/...". Only when is_within. */
static const char *tail_below(const char *path, const char *dir)
{
    if (dir[1] == '\0')
        return path[1] == '\0' ? "" : path;
    return path + strlen(dir);
}

/* Appends the components of text to the absolute path in out; ".." takes one away. */
static void append_normal(struct buf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = 0;
        while (i + n < len && text[i + n] != '/')
            n++;
        if (n == 2 && text[i] == '.' && text[i + 1] == '.') {
            while (out->len > 0 && out->data[--out->len] != '/')
                ;
        } else if (n > 0 && !(n == 1 && text[i] == '.')) {
            buf_addc(out, '/');
            buf_add(out, text + i, n);
        }
        i += n + 1;
    }
}

static char *normalise(const char *base, const char *path, size_t len, struct arena *arena)
{
    autobuf struct buf out = BUF_INIT;
    if (len == 0 || path[0] != '/')
        append_normal(&out, base, strlen(base));
    append_normal(&out, path, len);
    if (out.failed)
        return NULL;
    return out.len == 0 ? arena_strdup(arena, "/") : arena_strndup(arena, out.data, out.len);
}

/* --- links ------------------------------------------------------------------------------------ */

static bool is_system(const char *path)
{
    for (size_t i = 0; i < ARRAY_LEN(system_dirs); i++)
        if (is_within(path, system_dirs[i]))
            return true;
    return false;
}

/* Follows every link of an absolute path. What is missing, or can't be looked at, stays as written.
 */
static int resolve(const char *lexical, struct arena *arena, struct walk *ret)
{
    bool via_system = false;
    autobuf struct buf out = BUF_INIT;
    char target[PATH_MAX];
    const char *rest = lexical;
    unsigned links = 0;

    while (*rest) {
        size_t n = strcspn(rest, "/");
        if (n == 0) {
            rest++;
            continue;
        }
        size_t before = out.len;
        append_normal(&out, rest, n);
        const char *here = buf_str(&out);
        if (!here)
            return -1;
        rest += n;
        if (out.len <= before)
            continue;
        via_system |= is_system(here);

        ssize_t got = readlink(here, target, sizeof target);
        if (got <= 0)
            continue;
        if (++links > MAX_LINKS) {
            *ret = (struct walk){.path = lexical, .loop = true, .via_system = via_system};
            return 0;
        }
        out.len = target[0] == '/' ? 0 : before;
        rest = arena_printf(arena, "%.*s/%s", (int)got, target, rest);
        if (!rest)
            return -1;
    }
    const char *path =
        out.len == 0 ? arena_strdup(arena, "/") : arena_strndup(arena, out.data, out.len);
    if (!path || out.failed)
        return -1;
    *ret = (struct walk){.path = path, .via_system = via_system};
    return 0;
}

/* --- deny rules --------------------------------------------------------------------------------
 */

/* One bracket expression after '['. Returns what follows it, or NULL when it isn't closed. */
static const char *match_set(const char *p, uint32_t c, bool *ret)
{
    bool negate = *p == '!', hit = false;
    const char *end = p + strlen(p);
    if (negate)
        p++;
    for (bool first = true; *p != ']' || first; first = false) {
        if (!*p)
            return NULL;
        size_t n = char_len(p, end);
        uint32_t low = char_at(p, n), high = low;
        p += n;
        if (p[0] == '-' && p[1] && p[1] != ']') {
            n = char_len(p + 1, end);
            high = char_at(p + 1, n);
            p += 1 + n;
        }
        hit |= low <= c && c <= high;
    }
    *ret = hit != negate;
    return p + 1;
}

/* Greedy with one remembered star: what an earlier star took never has to change. */
static bool glob_span(const char *p, const char *t, const char *end)
{
    const char *p_end = p + strlen(p), *star = NULL, *star_t = NULL;
    for (;;) {
        if (*p == '*') {
            star = ++p;
            star_t = t;
            continue;
        }
        if (t == end && !*p)
            return true;
        if (t < end && *p) {
            size_t tn = char_len(t, end);
            uint32_t c = char_at(t, tn);
            const char *next = NULL;
            bool hit = false;
            if (*p == '?') {
                hit = true;
                next = p + 1;
            } else if (*p == '[') {
                next = match_set(p + 1, c, &hit);
            }
            if (!next) {
                size_t pn = char_len(p, p_end);
                hit = char_at(p, pn) == c;
                next = p + pn;
            }
            if (hit) {
                p = next;
                t += tn;
                continue;
            }
        }
        if (!star || star_t == end)
            return false;
        star_t += char_len(star_t, end);
        p = star;
        t = star_t;
    }
}

bool guard_glob(const char *pattern, const char *text)
{
    return glob_span(pattern, text, text + strlen(text));
}

/* path and each of its ancestors below "/", then "/" itself. */
static bool match_ancestors(const char *pattern, const char *path, bool literal_too)
{
    size_t n = strlen(path), want = strlen(pattern);
    for (;;) {
        size_t len = n > 0 ? n : 1;
        if (literal_too && len == want && memcmp(path, pattern, len) == 0)
            return true;
        if (glob_span(pattern, path, path + len))
            return true;
        if (n <= 1)
            return false;
        while (path[--n] != '/')
            ;
    }
}

static bool match_components(const char *pattern, const char *path)
{
    while (*path) {
        size_t n = strcspn(path, "/");
        if (n > 0 && (glob_span(pattern, path, path + n) ||
                      (strlen(pattern) == n && memcmp(pattern, path, n) == 0)))
            return true;
        path += n + (path[n] == '/');
    }
    return false;
}

static bool match_tail(const char *tail, const char *path)
{
    autobuf struct buf deep = BUF_INIT;
    buf_adds(&deep, "*/");
    buf_adds(&deep, tail);
    const char *pattern = buf_str(&deep);
    if (!pattern)
        return true; /* no memory to judge with: denied */
    return match_ancestors(pattern, path, false) || match_ancestors(tail, path, false);
}

static bool denied_text(const struct guard *g, const char *path)
{
    if (is_system(path))
        return true;
    for (size_t i = 0; i < g->n_deny; i++) {
        const char *p = g->deny[i];
        bool hit = !strchr(p, '/')         ? match_components(p, path)
                   : p[0] == '/'           ? match_ancestors(p, path, true)
                   : !strncmp(p, "**/", 3) ? match_tail(p + 3, path)
                                           : match_tail(p, path);
        if (hit)
            return true;
    }
    return false;
}

/* --- judging ------------------------------------------------------------------------------------
 */

static int no_memory(struct abx_error *err)
{
    return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
}

static int check_text(const char *path, size_t len, struct abx_error *err)
{
    if (!path || len == 0)
        return abx_fail(err, E_INVALID_PATH, 0, "Missing or invalid path");
    if (memchr(path, '\0', len))
        return abx_fail(err, E_INVALID_PATH, 0, "Path contains a NUL byte");
    if (guard_text_chars(path, len) > MAX_CHARS)
        return abx_fail(err, E_INVALID_PATH, 0, "Path too long");
    return 0;
}

/* Finds the root that `resolved` lies in; ret_root: canonical, ret_configured: as configured.
 * Returns 1, 0 (none) or -1 (no memory). */
static int find_root(const struct guard *g, const char *resolved, struct arena *arena,
                     const char **ret_root, const char **ret_configured)
{
    for (size_t i = 0; i < g->n_roots; i++) {
        struct walk root;
        if (resolve(g->roots[i].path, arena, &root) < 0)
            return -1;
        if (is_within(resolved, root.path)) {
            *ret_root = root.path;
            *ret_configured = g->roots[i].path;
            return 1;
        }
    }
    return 0;
}

/* With "never", the text below the root must be the resolved one. The root may be a link itself and
 * be named either way. */
static bool crosses_link(const char *lexical, const char *resolved, const char *root,
                         const char *configured)
{
    const char *want = tail_below(resolved, root);
    if (is_within(lexical, configured) && strcmp(tail_below(lexical, configured), want) == 0)
        return false;
    return !(is_within(lexical, root) && strcmp(tail_below(lexical, root), want) == 0);
}

/* Rules 3 to 6 of 01-core 5.1 on a resolved path. Fills ret. */
static int judge(const struct guard *g, const char *lexical, const struct walk *walk,
                 enum guard_op op, struct arena *arena, struct guard_path *ret,
                 struct abx_error *err)
{
    const char *resolved = walk->path, *root, *configured;
    int found = find_root(g, resolved, arena, &root, &configured);
    if (found < 0)
        return no_memory(err);
    if (!found)
        return abx_fail(err, E_PATH_NOT_ALLOWED, 0, "Path is outside the allowed directories");
    if (g->symlinks_never && (walk->loop || crosses_link(lexical, resolved, root, configured)))
        return abx_fail(err, E_SYMLINK_DENIED, 0, "Symlinks are not allowed here");

    /* A rule may name the root as configured while the root is a link: judge that spelling too. */
    bool denied = denied_text(g, resolved) || denied_text(g, lexical);
    if (!denied && g->n_deny > 0 && strcmp(root, configured) != 0) {
        const char *alias = arena_printf(arena, "%s%s", configured[1] ? configured : "",
                                         tail_below(resolved, root));
        if (!alias)
            return no_memory(err);
        denied = *alias && denied_text(g, alias);
    }
    if (denied)
        return abx_fail(err, E_PATH_DENIED, 0, "Path is denied by policy");
    if (g->read_only && (op == OP_WRITE || op == OP_DELETE))
        return abx_fail(err, E_READ_ONLY, 0, "This endpoint is read-only");

    *ret = (struct guard_path){
        .resolved = resolved, .lexical = lexical, .root = root, .name = strrchr(lexical, '/') + 1};
    return 0;
}

static int to_lexical(const struct guard *g, const char *path, size_t len, const char *cwd,
                      struct arena *arena, const char **ret, struct abx_error *err)
{
    if (check_text(path, len, err) < 0)
        return -1;
    *ret = normalise(cwd ? cwd : guard_root(g), path, len, arena);
    return *ret ? 0 : no_memory(err);
}

static int check(const struct guard *g, const char *path, size_t len, const char *cwd,
                 enum guard_op op, struct arena *arena, struct guard_path *ret, bool *ret_loop,
                 struct abx_error *err)
{
    const char *lexical;
    if (to_lexical(g, path, len, cwd, arena, &lexical, err) < 0)
        return -1;
    struct walk walk;
    if (resolve(lexical, arena, &walk) < 0)
        return no_memory(err);
    *ret_loop = walk.loop;
    return judge(g, lexical, &walk, op, arena, ret, err);
}

int guard_check(const struct guard *g, const char *path, size_t len, const char *cwd,
                enum guard_op op, struct arena *arena, struct guard_path *ret,
                struct abx_error *err)
{
    bool loop;
    return check(g, path, len, cwd, op, arena, ret, &loop, err);
}

int guard_is_system_path(const char *path, struct arena *arena)
{
    const char *lexical = normalise("/", path, strlen(path), arena);
    struct walk walk;
    if (!lexical || resolve(path, arena, &walk) < 0)
        return -1;
    return walk.via_system || is_system(lexical);
}

bool guard_denies(const struct guard *g, const char *resolved)
{
    if (denied_text(g, resolved))
        return true;
    /* Almost always the root is no link: then no system call is needed. */
    for (size_t i = 0; i < g->n_roots; i++)
        if (is_within(resolved, g->roots[i].path))
            return false;

    struct arena arena;
    arena_init(&arena);
    const char *root, *configured;
    bool denied = true;
    if (find_root(g, resolved, &arena, &root, &configured) == 1) {
        const char *alias = arena_printf(&arena, "%s%s", configured[1] ? configured : "",
                                         tail_below(resolved, root));
        denied = !alias || (*alias && denied_text(g, alias));
    }
    arena_done(&arena);
    return denied;
}

/* --- opening ------------------------------------------------------------------------------------
 */

static int sys_openat2(int dirfd, const char *path, int flags, mode_t mode, uint64_t how_resolve)
{
    struct open_how how = {.flags = (uint64_t)(unsigned)flags, .resolve = how_resolve};
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE)
        how.mode = mode & 07777;
    return (int)syscall(SYS_openat2, dirfd, path, &how, sizeof how);
}

static bool is_link(int dirfd, const char *name)
{
    struct stat st;
    return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

/* One component that must be a directory and no link. errno ELOOP when it is a link. make: create
 * it. */
static int open_component(int dirfd, const char *name, bool make)
{
    const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(dirfd, name, flags);
    if (fd < 0 && errno == ENOENT && make) {
        if (mkdirat(dirfd, name, 0777) < 0 && errno != EEXIST)
            return -1;
        fd = openat(dirfd, name, flags);
    }
    if (fd < 0 && errno == ENOTDIR)
        errno = is_link(dirfd, name) ? ELOOP : ENOTDIR;
    return fd;
}

/* The walk that needs no openat2: down to the parent of the last component of rel. Returns its
 * descriptor; *ret_name: where the last component begins ("" when rel has none). rel is cut up. */
static int walk_down(int start, char *rel, bool make, const char **ret_name)
{
    autoclose int fd = fcntl(start, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    for (;;) {
        while (*rel == '/')
            rel++;
        char *slash = strchr(rel, '/');
        if (!slash) {
            *ret_name = rel;
            return take_fd(&fd);
        }
        *slash = '\0';
        int next = open_component(fd, rel, make);
        if (next < 0)
            return -1;
        close(fd);
        fd = next;
        rel = slash + 1;
    }
}

static int open_by_walk(int start, const char *rel, int flags, mode_t mode)
{
    autofree char *copy = strdup(rel);
    if (!copy)
        return -1;
    const char *name;
    autoclose int dir = walk_down(start, copy, false, &name);
    if (dir < 0)
        return -1;
    if (!*name)
        return openat(dir, ".", flags & ~(O_CREAT | O_EXCL), mode);
    if ((flags & O_PATH) && is_link(dir, name)) {
        errno = ELOOP; /* O_PATH | O_NOFOLLOW would open the link itself */
        return -1;
    }
    int fd = openat(dir, name, flags | O_NOFOLLOW, mode);
    if (fd < 0 && errno == ENOTDIR && is_link(dir, name))
        errno = ELOOP; /* O_DIRECTORY hides it */
    if (fd >= 0 && (flags & O_PATH)) {
        struct stat st;
        if (fstat(fd, &st) < 0 || S_ISLNK(st.st_mode)) {
            close(fd);
            errno = ELOOP;
            return -1;
        }
    }
    return fd;
}

/* Opens rel ("" or "/..." or "a/b", canonical) beneath start without following any link. */
static int open_beneath(int start, const char *rel, int flags, mode_t mode)
{
    while (*rel == '/')
        rel++;
    if (!*rel)
        rel = ".";
    if (!atomic_load_explicit(&force_fallback, memory_order_relaxed) && strlen(rel) < PATH_MAX) {
        int fd = sys_openat2(start, rel, flags, mode, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
        /* ENOSYS: kernel before 5.6; EPERM: a seccomp filter that doesn't know it (or a true EPERM,
         * which the walk will find again). */
        if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
            return fd;
    }
    return open_by_walk(start, strcmp(rel, ".") == 0 ? "" : rel, flags, mode);
}

/* -1 also where openat2 is not to be had. */
static int open_without_links(const char *path, int flags)
{
    if (atomic_load_explicit(&force_fallback, memory_order_relaxed))
        return -1;
    return sys_openat2(AT_FDCWD, path, flags, 0, RESOLVE_NO_SYMLINKS);
}

static int open_slash(void) { return open("/", O_PATH | O_DIRECTORY | O_CLOEXEC); }

static int make_beneath(int start, const char *rel)
{
    autofree char *copy = malloc(strlen(rel) + 2);
    if (!copy)
        return -1;
    (void)stpcpy(stpcpy(copy, rel), "/"); /* the last component is a directory too */
    const char *name;
    return walk_down(start, copy, true, &name);
}

/* A canonical directory below start, made when missing and asked for. */
static int open_dir(int start, const char *rel, bool make)
{
    int fd = open_beneath(start, rel, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    return fd < 0 && errno == ENOENT && make ? make_beneath(start, rel) : fd;
}

static int open_root(const char *root, bool make)
{
    autoclose int slash = open_slash();
    if (slash < 0)
        return -1;
    return root[1] ? open_dir(slash, root, make) : take_fd(&slash);
}

/* The world changed between judging and opening. EXDEV: left the root by "..", which a canonical
 * path has none of; EAGAIN: openat2 could not be sure. */
static bool is_race(int sys) { return sys == ELOOP || sys == EXDEV || sys == EAGAIN; }

static int open_failed(int sys, bool loop, const char *shown, struct abx_error *err)
{
    if (is_race(sys) && !loop)
        return abx_fail(err, E_SYMLINK_DENIED, sys, "Path changed while it was being opened");
    return abx_fail_os(err, sys, shown);
}

static int open_flags(int flags)
{
    flags |= O_CLOEXEC;
    return flags & O_PATH ? flags : flags | O_NOCTTY; /* openat2 refuses more with O_PATH */
}

int guard_open(const struct guard *g, const char *path, size_t len, enum guard_op op, int flags,
               mode_t mode, struct arena *arena, struct guard_path *ret, int *ret_fd,
               struct abx_error *err)
{
    struct guard_path judged;
    bool loop = false;
    int sys = 0;
    for (int i = 0; i < MAX_ATTEMPTS; i++) {
        if (check(g, path, len, NULL, op, arena, &judged, &loop, err) < 0)
            return -1;
        autoclose int root = open_root(judged.root, false);
        int fd = root < 0 ? -1
                          : open_beneath(root, tail_below(judged.resolved, judged.root),
                                         open_flags(flags), mode);
        if (fd >= 0) {
            *ret = judged;
            *ret_fd = fd;
            return 0;
        }
        sys = errno;
        if (!is_race(sys) || loop)
            break;
    }
    return open_failed(sys, loop, judged.resolved, err);
}

/* Is this text a root, by either of its names? */
static int names_root(const struct guard *g, const char *lexical, const char *resolved,
                      struct arena *arena, const char **ret_root)
{
    for (size_t i = 0; i < g->n_roots; i++) {
        struct walk root;
        if (resolve(g->roots[i].path, arena, &root) < 0)
            return -1;
        if (strcmp(lexical, g->roots[i].path) == 0 || strcmp(resolved, root.path) == 0) {
            *ret_root = root.path;
            return 1;
        }
    }
    return 0;
}

/* Judges path by its name: the parent's links are followed, the last component is not. */
static int check_name(const struct guard *g, const char *path, size_t len, enum guard_op op,
                      struct arena *arena, struct guard_path *ret, bool *ret_loop,
                      bool *ret_is_root, struct abx_error *err)
{
    const char *lexical;
    if (to_lexical(g, path, len, NULL, arena, &lexical, err) < 0)
        return -1;
    const char *slash = strrchr(lexical, '/');
    const char *parent =
        slash == lexical ? "/" : arena_strndup(arena, lexical, (size_t)(slash - lexical));
    struct walk walk;
    if (!parent || resolve(parent, arena, &walk) < 0)
        return no_memory(err);
    if (lexical[1]) {
        walk.path = arena_printf(arena, "%s%s", walk.path[1] ? walk.path : "", slash);
        if (!walk.path)
            return no_memory(err);
    }
    *ret_loop = walk.loop;

    const char *root;
    int is_root = names_root(g, lexical, walk.path, arena, &root);
    if (is_root < 0)
        return no_memory(err);
    *ret_is_root = is_root == 1;
    if (!is_root)
        return judge(g, lexical, &walk, op, arena, ret, err);
    if (op == OP_DELETE)
        return abx_fail(err, E_PATH_DENIED, 0, "The root directory cannot be deleted or moved");
    walk = (struct walk){.path = root};
    if (judge(g, lexical, &walk, op, arena, ret, err) < 0)
        return -1;
    ret->name = ".";
    return 0;
}

int guard_open_parent(const struct guard *g, const char *path, size_t len, enum guard_op op,
                      bool make_parents, struct arena *arena, struct guard_path *ret,
                      int *ret_dirfd, struct abx_error *err)
{
    struct guard_path judged;
    bool loop = false, is_root = false;
    const char *parent = NULL;
    int sys = 0;
    for (int i = 0; i < MAX_ATTEMPTS; i++) {
        if (check_name(g, path, len, op, arena, &judged, &loop, &is_root, err) < 0)
            return -1;
        parent = judged.resolved;
        if (!is_root) {
            const char *slash = strrchr(judged.resolved, '/');
            size_t n = slash == judged.resolved ? 1 : (size_t)(slash - judged.resolved);
            parent = arena_strndup(arena, judged.resolved, n);
            if (!parent)
                return no_memory(err);
        }
        autoclose int root = open_root(judged.root, make_parents);
        autoclose int fd =
            root < 0 ? -1 : open_dir(root, tail_below(parent, judged.root), make_parents);
        /* Under "never" a write may not go by a link, not even to replace it; deleting one is fine.
         */
        if (fd >= 0 && g->symlinks_never && op == OP_WRITE && !is_root && is_link(fd, judged.name))
            return abx_fail(err, E_SYMLINK_DENIED, 0, "Symlinks are not allowed here");
        if (fd >= 0) {
            *ret = judged;
            *ret_dirfd = take_fd(&fd);
            return 0;
        }
        sys = errno;
        /* ENOENT while making: somebody deletes the same tree just now. */
        if ((!is_race(sys) && !(make_parents && sys == ENOENT)) || loop)
            break;
    }
    return open_failed(sys, loop, parent, err);
}

int guard_open_cwd(const struct guard *g, const char *cwd, size_t len, struct arena *arena,
                   const char **ret_path, int *ret_fd, struct abx_error *err)
{
    const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    if (!cwd || len == 0) {
        struct walk base = {.path = g->base_dir};
        int fd = open_without_links(base.path, flags); /* nearly always */
        if (fd < 0 && resolve(g->base_dir, arena, &base) < 0)
            return no_memory(err);
        if (fd < 0)
            fd = open(base.path, flags);
        if (fd < 0 && !error_is_want(errno)) {
            base.path = "/";
            fd = open_slash();
        }
        if (fd < 0)
            return abx_fail_os(err, errno, base.path);
        *ret_path = arena_strdup(arena, base.path);
        if (!*ret_path) {
            close(fd);
            return no_memory(err);
        }
        *ret_fd = fd;
        return 0;
    }
    struct abx_error why;
    struct guard_path judged;
    if (guard_open(g, cwd, len, OP_EXEC, flags, 0, arena, &judged, ret_fd, &why) < 0) {
        if (why.kind == E_NO_MEMORY || why.status == 400 || why.status == 403) {
            if (err)
                *err = why;
            return abx_prefix(err, "cwd: ");
        }
        return abx_fail(err, E_VALUE, why.sys, "'cwd' is not a directory: %.*s",
                        (int)(len > 400 ? 400 : len), cwd);
    }
    *ret_path = judged.resolved;
    return 0;
}

/* --- life ---------------------------------------------------------------------------------------
 */

static char *heap_normal(const char *path)
{
    autobuf struct buf out = BUF_INIT;
    append_normal(&out, path, strlen(path));
    if (out.len == 0)
        buf_addc(&out, '/');
    return buf_take(&out, NULL);
}

/* A trailing slash says "directory": the rule means the directory itself. */
static char *heap_pattern(const char *pattern)
{
    size_t n = strlen(pattern);
    while (n > 1 && pattern[n - 1] == '/')
        n--;
    return strndup(pattern, n);
}

static size_t count(const char *const *list)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    return n;
}

int guard_new(const struct guard_config *config, struct guard **ret, struct abx_error *err)
{
    const char *base = config->base_dir;
    size_t n_allow = count(config->allow), n_deny = count(config->deny);
    struct guard *g = calloc(1, sizeof *g);
    if (!g)
        return no_memory(err);
    g->read_only = config->read_only;
    g->symlinks_never = config->symlinks_never;
    g->base_dir = heap_normal(base);
    g->roots = calloc(n_allow ? n_allow : 1, sizeof *g->roots);
    g->deny = calloc(n_deny + 1, sizeof *g->deny);
    if (!g->base_dir || !g->roots || !g->deny)
        goto fail;

    for (size_t i = 0; i < (n_allow ? n_allow : 1); i++) {
        const char *root = n_allow ? config->allow[i] : base;
        if (root[0] != '/') {
            abx_fail(err, E_VALUE, 0, "'%s' is not an absolute path", root);
            guard_free(g);
            return -1;
        }
        g->roots[i].path = heap_normal(root);
        if (!g->roots[i].path)
            goto fail;
        g->n_roots++;
    }
    for (size_t i = 0; i < n_deny; i++) {
        g->deny[i] = heap_pattern(config->deny[i]);
        if (!g->deny[i])
            goto fail;
        g->n_deny++;
    }
    *ret = g;
    return 0;

fail:
    guard_free(g);
    return no_memory(err);
}

void guard_free(struct guard *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_roots; i++)
        free(g->roots[i].path);
    for (size_t i = 0; i < g->n_deny; i++)
        free(g->deny[i]);
    free(g->roots);
    free(g->deny);
    free(g->base_dir);
    free(g);
}

bool guard_has_deny(const struct guard *g) { return g->n_deny > 0; }

const char *guard_root(const struct guard *g) { return g->roots[0].path; }

const char *guard_base_dir(const struct guard *g) { return g->base_dir; }
