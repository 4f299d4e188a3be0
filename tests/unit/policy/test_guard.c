/* The path guard: what it refuses, what it opens, and that nobody gets round it by racing it. */

#include "base/own.h"
#include "policy/guard.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static char top[64], base[96], side[96];
static struct arena arena;
static struct guard *g;
static struct guard_path path;
static struct abx_error err;

static const char *at(const char *dir, const char *rel)
{
    return arena_printf(&arena, "%s/%s", dir, rel);
}

static void put(const char *file, const char *text)
{
    autoclose int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void use(struct guard_config config)
{
    guard_free(g);
    if (!config.base_dir)
        config.base_dir = base;
    ck_assert_int_eq(guard_new(&config, &g, &err), 0);
}

static void set_up(void)
{
    arena_init(&arena);
    strcpy(top, "/tmp/guard-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(top));
    snprintf(base, sizeof base, "%s/box", top);
    snprintf(side, sizeof side, "%s/box-evil", top);
    mkdir(base, 0755);
    mkdir(side, 0755);
    mkdir(at(base, "d"), 0755);
    mkdir(at(base, "d/e"), 0755);
    put(at(base, "d/f"), "inside");
    put(at(side, "f"), "outside");
    ck_assert_int_eq(symlink(side, at(base, "out")), 0);
    ck_assert_int_eq(symlink("d", at(base, "in")), 0);
    ck_assert_int_eq(symlink("f", at(base, "d/lf")), 0);
    ck_assert_int_eq(symlink("loop", at(base, "loop")), 0);
    ck_assert_int_eq(symlink("none", at(base, "dangling")), 0);
    ck_assert_int_eq(symlink("../../made-outside", at(base, "d/dangling-out")), 0);
    g = NULL;
    use((struct guard_config){0});
}

static void tear_down(void)
{
    guard_force_fallback(false);
    guard_free(g);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", top);
    ck_assert_int_eq(system(command), 0);
    arena_done(&arena);
}

static int check_op(const char *p, enum guard_op op)
{
    return guard_check(g, p, strlen(p), NULL, op, &arena, &path, &err);
}

static int judge(const char *p) { return check_op(p, OP_READ); }

static int open_it(const char *p, int flags)
{
    int fd = -1;
    return guard_open(g, p, strlen(p), flags & O_ACCMODE ? OP_WRITE : OP_READ, flags, 0644, &arena,
                      &path, &fd, &err) < 0
               ? -1
               : fd;
}

static void assert_refused(const char *p, enum error_kind kind)
{
    ck_assert_int_eq(judge(p), -1);
    ck_assert_msg(err.kind == kind, "%s: %s", p, err.code);
}

static void assert_content(const char *p, const char *want)
{
    char text[64] = "";
    autoclose int fd = open_it(p, O_RDONLY);
    ck_assert_msg(fd >= 0, "%s: %s", p, err.message);
    ck_assert_int_ge(read(fd, text, sizeof text - 1), 0);
    ck_assert_str_eq(text, want);
}

START_TEST(empty_nul_and_long_paths_are_invalid)
{
    assert_refused("", E_INVALID_PATH);
    ck_assert_int_eq(guard_check(g, "a\0b", 3, NULL, OP_READ, &arena, &path, &err), -1);
    ck_assert_int_eq(err.kind, E_INVALID_PATH);
    char *text = arena_alloc(&arena, 4 * 4097 + 1);
    memset(text, 'a', 4097);
    text[4097] = '\0';
    assert_refused(text, E_INVALID_PATH);
    text[4096] = '\0';
    ck_assert_int_eq(judge(text), 0);
}
END_TEST

START_TEST(length_counts_characters_not_bytes)
{
    autofree char *text = malloc(3 * 4097 + 1);
    for (size_t i = 0; i < 4097; i++)
        memcpy(text + 3 * i, "\xe6\xbc\xa2", 3);
    text[3 * 4096] = '\0';
    ck_assert_int_eq(judge(text), 0);
    text[3 * 4096] = '\xe6';
    text[3 * 4097] = '\0';
    assert_refused(text, E_INVALID_PATH);
    memset(text, 0x80, 4097); /* stray continuation bytes count too */
    text[4097] = '\0';
    assert_refused(text, E_INVALID_PATH);
}
END_TEST

START_TEST(outside_is_refused_whether_it_exists_or_not)
{
    assert_refused("/etc/passwd", E_PATH_NOT_ALLOWED);
    assert_refused("/etc/no-such-file", E_PATH_NOT_ALLOWED);
    assert_refused("../x", E_PATH_NOT_ALLOWED);
    assert_refused(at(base, "../box-evil/f"), E_PATH_NOT_ALLOWED);
    assert_refused(side, E_PATH_NOT_ALLOWED); /* shares the prefix "box" */
    assert_refused("/", E_PATH_NOT_ALLOWED);
}
END_TEST

START_TEST(symlink_cannot_leave_root)
{
    assert_refused("out", E_PATH_NOT_ALLOWED);
    assert_refused("out/f", E_PATH_NOT_ALLOWED);
    assert_refused("out/new", E_PATH_NOT_ALLOWED);
    assert_refused("d/dangling-out", E_PATH_NOT_ALLOWED);
    ck_assert_int_eq(open_it("d/dangling-out", O_WRONLY | O_CREAT), -1);
    struct stat st;
    ck_assert_int_eq(stat(at(top, "made-outside"), &st), -1);
    ck_assert_int_eq(symlink("/nowhere/../etc", at(base, "devious")), 0);
    assert_refused("devious/passwd", E_PATH_NOT_ALLOWED);
    ck_assert_int_eq(symlink("/proc/self/root/etc", at(base, "magic")), 0);
    assert_refused("magic/passwd", E_PATH_NOT_ALLOWED);
}
END_TEST

START_TEST(system_folders_are_always_denied)
{
    use((struct guard_config){.base_dir = "/"});
    assert_refused("/proc", E_PATH_DENIED);
    assert_refused("/proc/self/environ", E_PATH_DENIED);
    assert_refused("/sys/kernel", E_PATH_DENIED);
    assert_refused("/dev/null", E_PATH_DENIED);
    assert_refused("//proc/version", E_PATH_DENIED);
    ck_assert_int_eq(judge("/process"), 0);
    ck_assert_int_eq(judge("/etc"), 0);
    ck_assert(guard_denies(g, "/dev"));
    ck_assert(!guard_denies(g, "/etc"));
    ck_assert_int_eq(symlink("/proc/version", at(base, "v")), 0);
    assert_refused(at(base, "v"), E_PATH_DENIED);
}
END_TEST

START_TEST(links_inside_the_roots_work)
{
    const char *allow[] = {base, side, NULL};
    use((struct guard_config){.allow = allow});
    assert_content("in/f", "inside");
    ck_assert_str_eq(path.resolved, at(base, "d/f"));
    ck_assert_str_eq(path.lexical, at(base, "in/f"));
    assert_content("d/lf", "inside");
    assert_content("out/f", "outside"); /* absolute, into the other root */
    ck_assert_str_eq(path.root, side);
}
END_TEST

START_TEST(dots_are_taken_out_before_links_are_followed)
{
    ck_assert_int_eq(judge("out/../x"), 0);
    ck_assert_str_eq(path.resolved, at(base, "x"));
    ck_assert_int_eq(judge(at(base, "nothere/.././/d//f")), 0);
    ck_assert_str_eq(path.resolved, at(base, "d/f"));
    ck_assert_int_eq(judge("/../../.."), -1);
}
END_TEST

START_TEST(relative_paths_hang_on_the_first_root_or_the_cwd_given)
{
    ck_assert_int_eq(judge("d/f"), 0);
    ck_assert_str_eq(path.resolved, at(base, "d/f"));
    const char *allow[] = {side, base, NULL};
    use((struct guard_config){.allow = allow});
    assert_content("f", "outside");
    ck_assert_int_eq(guard_check(g, "f", 1, at(base, "d"), OP_EXEC, &arena, &path, &err), 0);
    ck_assert_str_eq(path.resolved, at(base, "d/f"));
}
END_TEST

START_TEST(relative_allow_entry_is_refused)
{
    const char *allow[] = {"rel", NULL};
    struct guard *none = NULL;
    ck_assert_int_eq(
        guard_new(&(struct guard_config){.base_dir = base, .allow = allow}, &none, &err), -1);
    ck_assert_int_eq(err.kind, E_VALUE);
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(loops_and_dangling_links_pass_the_check_but_do_not_open)
{
    ck_assert_int_eq(judge("loop/x"), 0);
    ck_assert_int_eq(judge("dangling"), 0);
    ck_assert_str_eq(path.resolved, at(base, "none"));
    ck_assert_int_eq(open_it("loop", O_RDONLY), -1);
    ck_assert_int_eq(err.sys, ELOOP);
    ck_assert_int_eq(err.kind, E_OS);
    ck_assert_int_eq(open_it("dangling", O_RDONLY), -1);
    ck_assert_int_eq(err.sys, ENOENT);
}
END_TEST

START_TEST(a_chain_of_too_many_links_does_not_open)
{
    char name[16], target[160] = "/etc/hostname";
    for (int i = 0; i < 60; i++) {
        snprintf(name, sizeof name, "c%d", i);
        ck_assert_int_eq(symlink(target, at(base, name)), 0);
        snprintf(target, sizeof target, "%s/%s", base, name);
    }
    assert_refused("c5", E_PATH_NOT_ALLOWED);
    ck_assert_int_eq(open_it("c59", O_RDONLY), -1);
    guard_force_fallback(true);
    ck_assert_int_eq(open_it("c59", O_RDONLY), -1);
}
END_TEST

START_TEST(a_root_may_be_a_link)
{
    const char *link = at(top, "way");
    ck_assert_int_eq(symlink(base, link), 0);
    const char *deny[] = {at(link, "secret"), NULL};
    use((struct guard_config){.base_dir = link, .symlinks_never = true, .deny = deny});
    assert_content(at(link, "d/f"), "inside");
    assert_content(at(base, "d/f"), "inside");
    ck_assert_str_eq(path.root, base);
    assert_refused(at(link, "in/f"), E_SYMLINK_DENIED);
    assert_refused(at(link, "secret/x"), E_PATH_DENIED);
    assert_refused(at(base, "secret/x"), E_PATH_DENIED); /* the rule named the root by its link */
    ck_assert(guard_denies(g, at(base, "secret")));
    ck_assert(!guard_denies(g, at(base, "d")));
    int fd;
    ck_assert_int_eq(
        guard_open_parent(g, link, strlen(link), OP_DELETE, false, &arena, &path, &fd, &err), -1);
    ck_assert_int_eq(err.kind, E_PATH_DENIED);
}
END_TEST

START_TEST(a_root_need_not_exist)
{
    const char *missing = at(top, "later/root");
    use((struct guard_config){.base_dir = missing});
    ck_assert_int_eq(judge("x"), 0);
    ck_assert_int_eq(open_it("x", O_RDONLY), -1);
    ck_assert_int_eq(err.sys, ENOENT);
    assert_refused("../y", E_PATH_NOT_ALLOWED);
    int dir = -1;
    ck_assert_int_eq(guard_open_parent(g, "a/b/c", 5, OP_WRITE, true, &arena, &path, &dir, &err),
                     0);
    close(dir);
    struct stat st;
    ck_assert_int_eq(stat(at(missing, "a/b"), &st), 0);
}
END_TEST

START_TEST(never_refuses_every_crossed_link)
{
    use((struct guard_config){.symlinks_never = true});
    assert_refused("in", E_SYMLINK_DENIED);
    assert_refused("in/f", E_SYMLINK_DENIED);
    assert_refused("loop", E_SYMLINK_DENIED);
    assert_refused("out", E_PATH_NOT_ALLOWED); /* outside comes first */
    assert_content("d/f", "inside");
    assert_content("d/../d/f", "inside");
    assert_content(arena_printf(&arena, "/%s", at(base, "d/f")), "inside"); /* "//tmp/..." */
    int dir;
    ck_assert_int_eq(guard_open_parent(g, "in", 2, OP_WRITE, false, &arena, &path, &dir, &err), -1);
    ck_assert_int_eq(err.kind, E_SYMLINK_DENIED);
    ck_assert_int_eq(guard_open_parent(g, "in", 2, OP_DELETE, false, &arena, &path, &dir, &err), 0);
    close(dir);
}
END_TEST

START_TEST(deny_patterns_by_their_three_forms)
{
    const char *deny[] = {"*.pem",         "secret",          "**/priv/*.key", "deep/er", "old/",
                          at(base, "abs"), at(base, "gl?b*"), "[xy]z",         NULL};
    use((struct guard_config){.deny = deny});
    static const char *const no[] = {"x.pem",
                                     "x.pem/y",
                                     "secret/deep/file",
                                     "a/priv/b.key",
                                     "priv/c.key/d",
                                     "a/deep/er/x",
                                     "abs",
                                     "abs/x",
                                     "glob",
                                     "glib/far/below",
                                     "old/x",
                                     "a/xz/b"};
    static const char *const yes[] = {"secrets", "b.key", "deeper/x", "absx",
                                      "x/abs",   "pem",   "zz",       "deep/err"};
    for (size_t i = 0; i < ARRAY_LEN(no); i++) {
        assert_refused(no[i], E_PATH_DENIED);
        ck_assert(guard_denies(g, at(base, no[i])));
    }
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        ck_assert_msg(judge(yes[i]) == 0, "%s", yes[i]);
        ck_assert(!guard_denies(g, at(base, yes[i])));
    }
    ck_assert(guard_has_deny(g));
    /* judged by both names of a link */
    ck_assert_int_eq(symlink("d/f", at(base, "secret")), 0);
    assert_refused("secret", E_PATH_DENIED);
    put(at(base, "k.pem"), "");
    ck_assert_int_eq(symlink("k.pem", at(base, "harmless")), 0);
    assert_refused("harmless", E_PATH_DENIED);
}
END_TEST

START_TEST(glob_is_fnmatch_with_characters)
{
    static const struct {
        const char *pattern, *text;
        bool hit;
    } t[] = {
        {"*", "", true},         {"*", "a/b", true},       {"a*b*c", "axxbyybzc", true},
        {"a*b*c", "acb", false}, {"?", "\xc3\xa9", true},  {"?", "ab", false},
        {"[abc]x", "bx", true},  {"[!abc]x", "bx", false}, {"[!abc]", "\xe6\xbc\xa2", true},
        {"[a-c]", "b", true},    {"[]]", "]", true},       {"[", "[", true},
        {"[ab", "[ab", true},    {"a\\*", "a\\x", true},   {"A", "a", false},
        {"[c-a]", "b", false},   {"[a-]", "-", true},      {"", "", true},
        {"", "a", false},        {"?", "\xff", true},      {"\xc3\xa9", "\xc3\xa9", true},
        {"[^a]", "^", true},     {"**", "abc", true},      {"*a", "ba", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        ck_assert_msg(guard_glob(t[i].pattern, t[i].text) == t[i].hit, "%s ~ %s", t[i].pattern,
                      t[i].text);
}
END_TEST

START_TEST(glob_of_many_stars_is_bounded)
{
    char text[4001], pattern[201];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (size_t i = 0; i < 200; i += 2)
        memcpy(pattern + i, "*a", 2);
    pattern[199] = 'b';
    pattern[200] = '\0';
    ck_assert(!guard_glob(pattern, text));
}
END_TEST

START_TEST(read_only_is_the_last_rule)
{
    use((struct guard_config){.read_only = true});
    ck_assert_int_eq(check_op("d/f", OP_WRITE), -1);
    ck_assert_int_eq(err.kind, E_READ_ONLY);
    ck_assert_int_eq(check_op("d/f", OP_DELETE), -1);
    ck_assert_int_eq(check_op("d/f", OP_READ), 0);
    ck_assert_int_eq(check_op("d/f", OP_EXEC), 0);
    ck_assert_int_eq(check_op("/etc/x", OP_WRITE), -1);
    ck_assert_int_eq(err.kind, E_PATH_NOT_ALLOWED);
}
END_TEST

static void opens_like_open(void)
{
    assert_content("in/f", "inside");
    autoclose int made = open_it("d/new", O_RDWR | O_CREAT | O_EXCL);
    ck_assert_int_ge(made, 0);
    ck_assert_int_eq(fcntl(made, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(open_it("d/new", O_RDWR | O_CREAT | O_EXCL), -1);
    ck_assert_int_eq(err.sys, EEXIST);
    ck_assert_int_eq(unlink(at(base, "d/new")), 0);
    ck_assert_int_eq(open_it("d/f/x", O_RDONLY), -1);
    ck_assert_int_eq(err.sys, ENOTDIR);
    ck_assert_int_eq(open_it("d/f", O_RDONLY | O_DIRECTORY), -1);
    ck_assert_int_eq(err.sys, ENOTDIR);
    ck_assert_int_eq(open_it("d", O_WRONLY), -1);
    ck_assert_int_eq(err.sys, EISDIR);
    ck_assert_int_eq(open_it("none/x", O_RDONLY), -1);
    ck_assert_int_eq(err.sys, ENOENT);
    autoclose int dir = open_it("in", O_PATH | O_DIRECTORY);
    ck_assert_int_ge(dir, 0);
    autoclose int root = open_it(base, O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(root, 0);
    autoclose int plain = open_it("d/lf", O_PATH);
    struct stat st;
    ck_assert_int_eq(fstat(plain, &st), 0);
    ck_assert(S_ISREG(st.st_mode));
}

START_TEST(opens_like_open_with_openat2) { opens_like_open(); }
END_TEST

START_TEST(opens_like_open_with_the_fallback)
{
    guard_force_fallback(true);
    opens_like_open();
}
END_TEST

START_TEST(parent_is_opened_and_the_name_left_alone)
{
    int dir = -1;
    ck_assert_int_eq(guard_open_parent(g, "out", 3, OP_DELETE, false, &arena, &path, &dir, &err),
                     0);
    ck_assert_str_eq(path.resolved, at(base, "out"));
    ck_assert_str_eq(path.name, "out");
    ck_assert_int_eq(unlinkat(dir, path.name, 0), 0);
    close(dir);
    ck_assert_int_eq(guard_open_parent(g, "in/f", 4, OP_DELETE, false, &arena, &path, &dir, &err),
                     0);
    ck_assert_str_eq(path.resolved, at(base, "d/f"));
    close(dir);
    ck_assert_int_eq(guard_open_parent(g, "no/f", 4, OP_DELETE, false, &arena, &path, &dir, &err),
                     -1);
    ck_assert_int_eq(err.sys, ENOENT);
    ck_assert_int_eq(guard_open_parent(g, "d/f/x", 5, OP_WRITE, true, &arena, &path, &dir, &err),
                     -1);
    ck_assert_int_eq(err.sys, ENOTDIR);
}
END_TEST

START_TEST(the_root_is_never_deleted)
{
    int dir = -1;
    const char *names[] = {base, at(base, "d/.."), at(base, "."), "."};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        ck_assert_int_eq(guard_open_parent(g, names[i], strlen(names[i]), OP_DELETE, false, &arena,
                                           &path, &dir, &err),
                         -1);
        ck_assert_int_eq(err.kind, E_PATH_DENIED);
    }
    ck_assert_int_eq(
        guard_open_parent(g, base, strlen(base), OP_WRITE, true, &arena, &path, &dir, &err), 0);
    ck_assert_str_eq(path.name, ".");
    ck_assert_str_eq(path.resolved, base);
    close(dir);
}
END_TEST

START_TEST(parents_are_made_only_inside)
{
    for (int fallback = 0; fallback < 2; fallback++) {
        guard_force_fallback(fallback);
        int dir = -1;
        const char *deep = fallback ? "in/q/w/e" : "in/a/b/c";
        ck_assert_int_eq(
            guard_open_parent(g, deep, strlen(deep), OP_WRITE, true, &arena, &path, &dir, &err), 0);
        ck_assert_int_eq(mkdirat(dir, path.name, 0700), 0);
        close(dir);
        ck_assert_int_eq(access(at(base, deep), F_OK), 0);
        ck_assert_int_eq(
            guard_open_parent(g, "out/p/q", 7, OP_WRITE, true, &arena, &path, &dir, &err), -1);
        ck_assert_int_eq(err.kind, E_PATH_NOT_ALLOWED);
        ck_assert_int_eq(access(at(side, "p"), F_OK), -1);
        ck_assert_int_eq(
            guard_open_parent(g, "d/dangling-out/q", 16, OP_WRITE, true, &arena, &path, &dir, &err),
            -1);
        ck_assert_int_eq(access(at(top, "made-outside"), F_OK), -1);
    }
}
END_TEST

START_TEST(very_long_paths_open_by_walking)
{
    /* 30 levels of 200 bytes: longer than PATH_MAX, within 4,096 characters by 3-byte ones */
    char name[205] = "";
    for (int i = 0; i < 66; i++)
        strcat(name, "\xe6\xbc\xa2");
    autofree char *long_path = calloc(1, 8192);
    for (int i = 0; i < 30; i++) {
        strcat(long_path, name);
        strcat(long_path, "/");
    }
    strcat(long_path, "end");
    int dir = -1;
    ck_assert_int_eq(guard_open_parent(g, long_path, strlen(long_path), OP_WRITE, true, &arena,
                                       &path, &dir, &err),
                     0);
    autoclose int fd = openat(dir, path.name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    close(dir);
    autoclose int again = open_it(long_path, O_RDONLY);
    ck_assert_msg(again >= 0, "%s", err.message);
}
END_TEST

START_TEST(cwd_is_judged_and_must_be_a_directory)
{
    int fd = -1;
    const char *shown = NULL;
    ck_assert_int_eq(guard_open_cwd(g, NULL, 0, &arena, &shown, &fd, &err), 0);
    ck_assert_str_eq(shown, base);
    close(fd);
    ck_assert_int_eq(guard_open_cwd(g, "in", 2, &arena, &shown, &fd, &err), 0);
    ck_assert_str_eq(shown, at(base, "d"));
    close(fd);
    ck_assert_int_eq(guard_open_cwd(g, "/etc", 4, &arena, &shown, &fd, &err), -1);
    ck_assert_int_eq(err.kind, E_PATH_NOT_ALLOWED);
    ck_assert_int_eq(strncmp(err.message, "cwd: ", 5), 0);
    ck_assert_int_eq(guard_open_cwd(g, "d/f", 3, &arena, &shown, &fd, &err), -1);
    ck_assert_int_eq(err.kind, E_VALUE);
    ck_assert_int_eq(guard_open_cwd(g, "d/none", 6, &arena, &shown, &fd, &err), -1);
    ck_assert_int_eq(err.kind, E_VALUE);
    use((struct guard_config){.base_dir = "/no/such/base"});
    ck_assert_int_eq(guard_open_cwd(g, NULL, 0, &arena, &shown, &fd, &err), 0);
    ck_assert_str_eq(shown, "/");
    close(fd);
}
END_TEST

/* --- races -------------------------------------------------------------------------------------
 */

#define RACE_OPS 100000
#define RACE_SECONDS 25

struct swapper {
    atomic_bool stop;
    char dir[160], link[160];
};

/* Swaps BASE/race (a directory) with a link to the outside, as fast as it can. */
static void *swap(void *data)
{
    struct swapper *s = data;
    while (!atomic_load(&s->stop))
        (void)renameat2(AT_FDCWD, s->dir, AT_FDCWD, s->link,
                        RENAME_EXCHANGE); /* both always exist */
    return NULL;
}

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Reads, creates, makes parents, deletes; counts what reached the outside. */
static void race(bool fallback)
{
    guard_force_fallback(fallback);
    struct swapper s = {.stop = false};
    snprintf(s.dir, sizeof s.dir, "%s/race", base);
    snprintf(s.link, sizeof s.link, "%s/other", base);
    mkdir(s.dir, 0755);
    put(at(base, "race/f"), "inside");
    put(at(side, "keep"), "outside");
    ck_assert_int_eq(symlink(side, s.link), 0);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, swap, &s), 0);

    double end = now() + RACE_SECONDS;
    size_t opened = 0, refused = 0, reached = 0, done = 0;
    struct arena local;
    arena_init(&local);
    for (; done < RACE_OPS && now() < end; done++) {
        struct guard_path p;
        struct abx_error e;
        int fd = -1, rc;
        arena_reset(&local);
        switch (done % 4) {
        case 0:
            rc = guard_open(g, "race/f", 6, OP_READ, O_RDONLY, 0, &local, &p, &fd, &e);
            if (rc == 0) {
                char text[8] = "";
                ck_assert_int_ge(read(fd, text, 7), 0);
                reached += strcmp(text, "outside") == 0;
            }
            break;
        case 1:
            rc = guard_open(g, "race/made", 9, OP_WRITE, O_WRONLY | O_CREAT, 0600, &local, &p, &fd,
                            &e);
            break;
        case 2:
            rc = guard_open_parent(g, "race/p/q/x", 10, OP_WRITE, true, &local, &p, &fd, &e);
            break;
        default:
            rc = guard_open_parent(g, "race/keep", 9, OP_DELETE, false, &local, &p, &fd, &e);
            if (rc == 0)
                (void)unlinkat(fd, p.name, 0); /* not there inside */
        }
        if (rc == 0) {
            opened++;
            close(fd);
        } else {
            refused++;
        }
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    arena_done(&local);

    ck_assert_uint_eq(reached, 0);
    ck_assert_int_eq(access(at(side, "keep"), F_OK), 0);
    ck_assert_int_eq(access(at(side, "made"), F_OK), -1);
    ck_assert_int_eq(access(at(side, "p"), F_OK), -1);
    ck_assert_uint_gt(opened, 0);
    ck_assert_uint_gt(refused, 0);
    printf("race (%s): %zu operations, %zu opened, %zu refused\n", fallback ? "walk" : "openat2",
           done, opened, refused);
}

START_TEST(race_never_reaches_outside) { race(false); }
END_TEST

START_TEST(race_never_reaches_outside_with_the_fallback) { race(true); }
END_TEST

int main(void)
{
    Suite *s = suite_create("guard");
    TCase *t = tcase_create("paths");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, empty_nul_and_long_paths_are_invalid);
    tcase_add_test(t, length_counts_characters_not_bytes);
    tcase_add_test(t, outside_is_refused_whether_it_exists_or_not);
    tcase_add_test(t, symlink_cannot_leave_root);
    tcase_add_test(t, system_folders_are_always_denied);
    tcase_add_test(t, links_inside_the_roots_work);
    tcase_add_test(t, dots_are_taken_out_before_links_are_followed);
    tcase_add_test(t, relative_paths_hang_on_the_first_root_or_the_cwd_given);
    tcase_add_test(t, relative_allow_entry_is_refused);
    tcase_add_test(t, loops_and_dangling_links_pass_the_check_but_do_not_open);
    tcase_add_test(t, a_chain_of_too_many_links_does_not_open);
    tcase_add_test(t, a_root_may_be_a_link);
    tcase_add_test(t, a_root_need_not_exist);
    tcase_add_test(t, never_refuses_every_crossed_link);
    tcase_add_test(t, deny_patterns_by_their_three_forms);
    tcase_add_test(t, glob_is_fnmatch_with_characters);
    tcase_add_test(t, glob_of_many_stars_is_bounded);
    tcase_add_test(t, read_only_is_the_last_rule);
    tcase_add_test(t, opens_like_open_with_openat2);
    tcase_add_test(t, opens_like_open_with_the_fallback);
    tcase_add_test(t, parent_is_opened_and_the_name_left_alone);
    tcase_add_test(t, the_root_is_never_deleted);
    tcase_add_test(t, parents_are_made_only_inside);
    tcase_add_test(t, very_long_paths_open_by_walking);
    tcase_add_test(t, cwd_is_judged_and_must_be_a_directory);
    suite_add_tcase(s, t);
    TCase *r = tcase_create("races");
    tcase_set_timeout(r, 60);
    tcase_add_checked_fixture(r, set_up, tear_down);
    tcase_add_test(r, race_never_reaches_outside);
    tcase_add_test(r, race_never_reaches_outside_with_the_fallback);
    suite_add_tcase(s, r);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
