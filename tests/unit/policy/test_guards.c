/* Command lines, programs, environment maps. */

#include "base/own.h"
#include "policy/guards.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static char base[64];
static struct arena arena;
static struct guard *g;
static struct rule rule;
static struct abx_error err;
static char **argv;
static size_t argc;

static void set_up(void)
{
    arena_init(&arena);
    strcpy(base, "/tmp/guards-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(base));
    ck_assert_int_eq(guard_new(&(struct guard_config){.base_dir = base}, &g, &err), 0);
    rule = (struct rule){.guard = g};
}

static void tear_down(void)
{
    guard_free(g);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    ck_assert_int_eq(system(command), 0);
    arena_done(&arena);
}

static const char *at(const char *rel) { return arena_printf(&arena, "%s/%s", base, rel); }

static void set_list(enum param p, const char *const *items)
{
    rule.list[p] = (struct str_list){.items = (const char **)items};
    for (rule.list[p].n = 0; items[rule.list[p].n];)
        rule.list[p].n++;
    rule.params_set |= 1u << p;
}

#define ALLOW(...)                                                                                 \
    static const char *const allow_list[] = {__VA_ARGS__, NULL};                                   \
    set_list(PARAM_allow_commands, allow_list)
#define DENY(...)                                                                                  \
    static const char *const deny_list[] = {__VA_ARGS__, NULL};                                    \
    set_list(PARAM_deny_commands, deny_list)

static int try_command(const char *text)
{
    const char *program = NULL;
    if (command_split(text, strlen(text), &arena, &argv, &argc, &err) < 0)
        return -1;
    if (argc > 0 && program_resolve(argv[0], getenv("PATH"), base, &arena, &program, &err) < 0)
        return -1;
    return command_check(&rule, argv, argc, program, base, &arena, &err);
}

static void assert_passes(const char *text)
{
    ck_assert_msg(try_command(text) == 0, "%s: %s", text, err.message);
}

static void assert_refused(const char *text, enum error_kind kind)
{
    ck_assert_msg(try_command(text) == -1, "%s passed", text);
    ck_assert_msg(err.kind == kind, "%s: %s %s", text, err.code, err.message);
}

static void script(const char *name, const char *text)
{
    autoclose int fd = open(at(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

START_TEST(words_are_split_as_posix_quotes_say)
{
    static const struct {
        const char *text;
        const char *words[6];
    } t[] = {
        {"a b\tc\rd\ne", {"a", "b", "c", "d", "e"}},
        {"  a  ", {"a"}},
        {"", {NULL}},
        {"to''uch 'a b' \"c d\"", {"touch", "a b", "c d"}},
        {"'' \"\"", {"", ""}},
        {"a\\ b \\'", {"a b", "'"}},
        {"\"a\\\"b\\\\c\\nd\"", {"a\"b\\c\\nd"}},
        {"'a\\b'", {"a\\b"}},
        {"a\\\nb", {"a\nb"}},
        {"a;b|c&d #e", {"a;b|c&d", "#e"}},
        {"$HOME *", {"$HOME", "*"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        ck_assert_int_eq(command_split(t[i].text, strlen(t[i].text), &arena, &argv, &argc, &err),
                         0);
        for (size_t w = 0; w < argc; w++)
            ck_assert_str_eq(argv[w], t[i].words[w]);
        ck_assert_ptr_null(argv[argc]);
        ck_assert_ptr_null(t[i].words[argc]);
    }
}
END_TEST

START_TEST(unbalanced_quotes_and_nul_are_refused)
{
    ck_assert_int_eq(command_split("a 'b", 4, &arena, &argv, &argc, &err), -1);
    ck_assert_int_eq(err.kind, E_VALUE);
    ck_assert_int_eq(command_split("a \"b\\", 5, &arena, &argv, &argc, &err), -1);
    ck_assert_int_eq(command_split("a\\", 2, &arena, &argv, &argc, &err), -1);
    ck_assert_str_eq(err.message, "No escaped character");
    ck_assert_int_eq(command_split(" a\0b c", 6, &arena, &argv, &argc, &err), -1);
    ck_assert_int_eq(err.kind, E_PROCESS_INVALID);
    ck_assert_int_eq(command_split("a b\0c", 5, &arena, &argv, &argc, &err), -1);
    ck_assert_int_eq(err.kind, E_COMMAND_INVALID);
}
END_TEST

START_TEST(command_size_is_bounded)
{
    autofree char *text = malloc(6000);
    strcpy(text, "echo");
    for (int i = 0; i < 255; i++)
        strcat(text, " a");
    assert_passes(text);
    strcat(text, " a");
    assert_refused(text, E_COMMAND_INVALID);
    strcpy(text, "echo ");
    memset(text + 5, 'a', 4097);
    text[5 + 4096] = '\0';
    assert_passes(text);
    text[5 + 4096] = 'a';
    text[5 + 4097] = '\0';
    assert_refused(text, E_COMMAND_INVALID);
    argc = 0;
    ck_assert_int_eq(command_check(&rule, argv, 0, NULL, base, &arena, &err), -1);
}
END_TEST

START_TEST(broken_patterns_are_found_at_load)
{
    static const char *const bad[] = {
        "", "  ", "ls 'a", "... a", "{path}", "ls {x}", "a ... ... ... ...", "ls {PATH}", "ls \\"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const char *items[] = {"ls", bad[i]};
        ck_assert_msg(command_patterns_check(&(struct str_list){2, items}, &err) == -1, "'%s'",
                      bad[i]);
        ck_assert_int_eq(err.kind, E_VALUE);
    }
    const char *good[] = {
        "ls", "/bin/echo", "e*o", "cat {path}", "a ... {int} ... {word} ...", "echo 'a b'"};
    ck_assert_int_eq(command_patterns_check(&(struct str_list){ARRAY_LEN(good), good}, &err), 0);
    ck_assert_int_eq(command_patterns_check(NULL, &err), 0);
}
END_TEST

START_TEST(a_bare_name_means_the_program_on_the_servers_path)
{
    script("echo", "#!/bin/sh\necho pwned\n");
    script("evil", "#!/bin/sh\necho pwned\n");
    ALLOW("echo", "printf");
    assert_passes("echo hi");
    assert_passes("/bin/echo hi");
    assert_passes("printf x");
    assert_refused("ls", E_COMMAND_NOT_ALLOWED);
    assert_refused("./echo hi", E_COMMAND_NOT_ALLOWED);
    assert_refused(at("echo"), E_COMMAND_NOT_ALLOWED);
    assert_refused(at("evil"), E_COMMAND_NOT_ALLOWED);
    assert_refused("no/such/echo", E_COMMAND_NOT_ALLOWED);
    /* a caller's PATH leads elsewhere */
    const char *program = NULL;
    char *words[] = {"echo", NULL};
    ck_assert_int_eq(program_resolve("echo", base, base, &arena, &program, &err), 0);
    ck_assert_str_eq(program, at("echo"));
    ck_assert_int_eq(command_check(&rule, words, 1, program, base, &arena, &err), -1);
}
END_TEST

START_TEST(a_path_in_a_rule_means_that_path)
{
    script("tool", "#!/usr/bin/python3\n");
    const char *list[] = {"/bin/echo", at("tool"), at("bin/*"), NULL};
    set_list(PARAM_allow_commands, list);
    assert_passes("/bin/echo hi");
    assert_refused("echo hi", E_COMMAND_NOT_ALLOWED);
    assert_passes(at("tool"));
    assert_passes(at("bin/x"));
    assert_refused(at("bin/../evil"), E_COMMAND_NOT_ALLOWED);
}
END_TEST

START_TEST(patterns_take_the_whole_command_line)
{
    ALLOW("echo a b", "printf ... end", "ls a ...", "cat f*", "head -*", "tail a/*", "seq {int}",
          "wc {word}");
    assert_passes("echo a b");
    assert_refused("echo a", E_COMMAND_NOT_ALLOWED);
    assert_refused("echo a b c", E_COMMAND_NOT_ALLOWED);
    assert_refused("echo b a", E_COMMAND_NOT_ALLOWED);
    assert_passes("printf x y end");
    assert_passes("printf end");
    assert_refused("printf x", E_COMMAND_NOT_ALLOWED);
    assert_passes("ls a");
    assert_passes("ls a b c");
    assert_passes("cat foo");
    assert_refused("cat f/x", E_COMMAND_NOT_ALLOWED);
    assert_refused("cat f..x", E_COMMAND_NOT_ALLOWED);
    assert_refused("cat -f", E_COMMAND_NOT_ALLOWED);
    assert_passes("head -n");
    assert_refused("head n", E_COMMAND_NOT_ALLOWED);
    assert_passes("tail a/b/c");
    assert_refused("tail a/../b", E_COMMAND_NOT_ALLOWED);
    assert_passes("seq 123456789");
    assert_refused("seq 1234567890", E_COMMAND_NOT_ALLOWED);
    assert_refused("seq '1\n'", E_COMMAND_NOT_ALLOWED);
    assert_passes("wc a.b@c:d+e=f,g-h");
    assert_refused("wc 'a\n'", E_COMMAND_NOT_ALLOWED);
    assert_refused("wc -a", E_COMMAND_NOT_ALLOWED);
}
END_TEST

START_TEST(grouped_flags_are_seen_apart)
{
    ALLOW("ls -l -a", "wc -la", "cat -n {path}");
    assert_passes("ls -la");
    assert_passes("ls -l -a");
    assert_refused("ls -al", E_COMMAND_NOT_ALLOWED);
    assert_refused("wc -la", E_COMMAND_NOT_ALLOWED);
    assert_passes("cat -n x");
    assert_refused("cat -nb x", E_COMMAND_NOT_ALLOWED);
    DENY("ls -R ...");
    assert_refused("ls -Rl", E_COMMAND_NOT_ALLOWED);
}
END_TEST

START_TEST(the_judged_path_is_what_runs)
{
    ALLOW("cat {path}", "ls ... {path} end", "echo {path} {path}");
    mkdir(at("d"), 0755);
    ck_assert_int_eq(symlink("d", at("l")), 0);
    ck_assert_int_eq(symlink("/etc", at("out")), 0);
    assert_passes("cat etc/hostname");
    ck_assert_str_eq(argv[1], at("etc/hostname"));
    assert_passes("cat l/x");
    ck_assert_str_eq(argv[1], at("d/x"));
    assert_passes("cat .");
    ck_assert_str_eq(argv[1], base);
    assert_refused("cat /etc/hostname", E_PATH_NOT_ALLOWED);
    ck_assert_int_eq(strncmp(err.message, "argv: ", 6), 0);
    assert_refused("cat out/hostname", E_PATH_NOT_ALLOWED);
    assert_refused("cat ../x", E_PATH_NOT_ALLOWED);
    assert_refused("cat -a", E_COMMAND_NOT_ALLOWED);
    assert_refused("cat ''", E_COMMAND_NOT_ALLOWED);
    assert_refused("echo a /etc", E_PATH_NOT_ALLOWED);
    assert_passes("ls /etc b end");
    ck_assert_str_eq(argv[1], "/etc");
    ck_assert_str_eq(argv[2], at("b"));
}
END_TEST

START_TEST(relative_paths_hang_on_the_cwd_of_the_call)
{
    ALLOW("cat {path}");
    char *words[] = {"cat", "f", NULL};
    ck_assert_int_eq(command_check(&rule, words, 2, "/bin/cat", at("d"), &arena, &err), 0);
    ck_assert_str_eq(words[1], at("d/f"));
}
END_TEST

START_TEST(many_ellipses_and_paths_are_bounded)
{
    ALLOW("echo ... {path} ... {path} ... end");
    autofree char *text = malloc(2000);
    strcpy(text, "echo");
    for (int i = 0; i < 254; i++)
        strcat(text, " /x");
    assert_refused(text, E_PATH_NOT_ALLOWED);
}
END_TEST

START_TEST(deny_beats_allow)
{
    ALLOW("echo");
    DENY("echo secret", "cat {path}");
    assert_passes("echo hi");
    assert_refused("echo secret", E_COMMAND_NOT_ALLOWED);
    assert_passes("echo secret too");
    assert_refused("cat /anything", E_COMMAND_NOT_ALLOWED);
}
END_TEST

START_TEST(a_denied_program_is_known_by_every_name)
{
    DENY("rm");
    ck_assert_int_eq(symlink("/bin/rm", at("x")), 0);
    static const char *const no[] = {"rm f",   "/bin/rm f", "/usr/bin/rm f", "/bin/../bin/rm f",
                                     "r\\m f", "'r''m' f",  "\"rm\" f",      "./x f"};
    for (size_t i = 0; i < ARRAY_LEN(no); i++)
        assert_refused(no[i], E_COMMAND_NOT_ALLOWED);
    assert_passes("ls");
    assert_passes("rmdir f");
    assert_passes("echo rm");
}
END_TEST

START_TEST(programs_that_start_others_are_denied_as_a_class)
{
    DENY("rm");
    ck_assert_int_eq(symlink("/bin/sh", at("innocent")), 0);
    script("x.sh", "#!/bin/sh\nrm f\n");
    script("y.sh", "#! /usr/bin/env -S bash -e\nrm f\n");
    script("z.py", "#!/usr/bin/env python3\nprint(1)\n");
    static const char *const no[] = {"env rm f",
                                     "timeout 5 rm f",
                                     "bash -c 'rm f'",
                                     "sh -c 'touch${IFS}f'",
                                     "nice rm f",
                                     "xargs rm",
                                     "busybox rm f",
                                     "find . -delete",
                                     "find . -exec rm {} +",
                                     "find . -ok rm {} ;",
                                     "setsid rm f",
                                     "nohup rm f",
                                     "stdbuf -o0 rm f",
                                     "bash x.sh",
                                     "dash",
                                     "/usr/bin/env rm f",
                                     "./innocent -c 'rm f'",
                                     "./x.sh",
                                     "./y.sh",
                                     "python3 -c 'import os'",
                                     "python3 -m os",
                                     "python3 -",
                                     "python3",
                                     "python3 -uc 'x'",
                                     "perl -e 1",
                                     "perl -pe 1 f",
                                     "node -e 1",
                                     "awk 'BEGIN{system(\"rm f\")}'",
                                     "awk '{print | \"rm f\"}' x",
                                     "sed '1e rm f' x",
                                     "sed -e 's/a/rm f/e' x",
                                     "sed 'e rm f' x",
                                     "tar cf /dev/null --checkpoint-action=exec=rm f",
                                     "tar cf x -I rm f",
                                     "git -c alias.x=!rm x",
                                     "git rebase -x 'rm f'",
                                     "make",
                                     "vim -c '!rm f'",
                                     "sudo rm f",
                                     "npm run x",
                                     "/lib64/ld-linux-x86-64.so.2 /bin/rm f",
                                     "split --filter=rm f",
                                     "sort --compress-program=rm f",
                                     "script -c 'rm f'",
                                     "flock f rm f",
                                     "watch rm f",
                                     "chroot / rm f",
                                     "ssh h rm"};
    for (size_t i = 0; i < ARRAY_LEN(no); i++)
        assert_refused(no[i], E_COMMAND_NOT_ALLOWED);
    static const char *const yes[] = {"find . -name x",
                                      "python3 x.py",
                                      "python3 -u x.py",
                                      "python3 --version",
                                      "awk '{print $1}' f",
                                      "sed s/one/two/ f",
                                      "sed -n 1,3p f",
                                      "tar cf x f",
                                      "git status",
                                      "git log --oneline",
                                      "ls -la",
                                      "./z.py",
                                      "sort f",
                                      "gzip f",
                                      "npm install",
                                      "cat e"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++)
        assert_passes(yes[i]);
}
END_TEST

START_TEST(a_wrapper_needs_a_rule_that_spells_it_out)
{
    ALLOW("e*", "b*", "timeout 5 ls ...");
    assert_passes("echo x");
    assert_refused("env ls", E_COMMAND_NOT_ALLOWED);
    assert_refused("bash -c ls", E_COMMAND_NOT_ALLOWED);
    assert_passes("timeout 5 ls");
    assert_refused("timeout 6 ls", E_COMMAND_NOT_ALLOWED);
}
END_TEST

START_TEST(an_allowed_wrapper_may_not_mention_a_denied_program)
{
    ALLOW("bash", "env");
    DENY("rm");
    assert_passes("bash -c 'echo x'");
    assert_refused("bash -c 'echo x; rm f'", E_COMMAND_NOT_ALLOWED);
    assert_refused("bash -c 'echo x;/bin/rm f'", E_COMMAND_NOT_ALLOWED);
    assert_refused("env rm f", E_COMMAND_NOT_ALLOWED);
    assert_passes("env ls");
}
END_TEST

START_TEST(a_star_alone_allows_everything)
{
    ALLOW("*");
    assert_passes("env ls");
    assert_passes("no-such-program");
    assert_refused("./no-such-program", E_COMMAND_NOT_ALLOWED);
}
END_TEST

START_TEST(without_lists_everything_passes)
{
    assert_passes("env rm f");
    set_list(PARAM_allow_commands, (const char *const[]){NULL});
    assert_passes("bash -c x");
    ck_assert(!command_is_limited(&rule));
}
END_TEST

static int resolve(const char *name, const char **ret)
{
    return program_resolve(name, getenv("PATH"), base, &arena, ret, &err);
}

START_TEST(programs_under_proc_sys_dev_are_denied)
{
    const char *p;
    ck_assert_int_eq(symlink("/dev/null", at("l")), 0);
    ck_assert_int_eq(symlink("/proc/self/exe", at("self")), 0);
    ck_assert_int_eq(symlink("/proc/self/root/bin", at("bin")), 0);
    const char *no[] = {
        "/proc/self/exe",        "/sys/x",    "/dev/null", at("l"), "./self", "bin/ls",
        "/bin/../proc/self/exe", "//dev/null"};
    for (size_t i = 0; i < ARRAY_LEN(no); i++) {
        ck_assert_msg(resolve(no[i], &p) == -1, "%s", no[i]);
        ck_assert_int_eq(err.kind, E_PROCESS_DENIED);
    }
    ck_assert_int_eq(program_resolve("exe", "/proc/self", base, &arena, &p, &err), -1);
    ck_assert_int_eq(resolve("", &p), -1);
    ck_assert_int_eq(err.kind, E_PROCESS_INVALID);
}
END_TEST

START_TEST(programs_are_found_as_a_shell_would)
{
    const char *p = "";
    ck_assert_int_eq(resolve("ls", &p), 0);
    ck_assert_ptr_nonnull(strstr(p, "/ls"));
    ck_assert_int_eq(p[0], '/');
    ck_assert_int_eq(resolve("no-such-program", &p), 0);
    ck_assert_ptr_null(p);
    script("t", "#!/bin/sh\n");
    ck_assert_int_eq(resolve("t", &p), 0);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(resolve("./t", &p), 0);
    ck_assert_str_eq(p, at("./t"));
    ck_assert_int_eq(program_resolve("t", "/bin:", base, &arena, &p, &err), 0);
    ck_assert_str_eq(p, at("t"));
    mkdir(at("sub"), 0755);
    ck_assert_int_eq(program_resolve("sub", base, base, &arena, &p, &err), 0);
    ck_assert_ptr_null(p); /* a directory */
    autoclose int fd = open(at("plain"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    ck_assert_int_eq(program_resolve("plain", base, base, &arena, &p, &err), 0);
    ck_assert_str_eq(p, at("plain")); /* the spawn says that it can't be executed */
}
END_TEST

static int check_env(const char *json)
{
    autojson json_t *vars = json_loads(json, JSON_ALLOW_NUL, NULL);
    ck_assert_ptr_nonnull(vars);
    return env_guard_check(vars, &err);
}

START_TEST(environment_names_and_values_are_checked)
{
    static const char *const invalid[] = {
        "{\"A-B\":\"x\"}",       "{\"\":\"x\"}",     "{\"A=B\":\"x\"}",
        "{\"1A\":\"x\"}",        "{\"A\":1}",        "{\"A\":null}",
        "{\"A\":\"a\\u0000b\"}", "{\"A\\n\":\"x\"}", "[]",
        "{\"\xc3\xa9\":\"x\"}"};
    for (size_t i = 0; i < ARRAY_LEN(invalid); i++) {
        ck_assert_msg(check_env(invalid[i]) == -1, "%s", invalid[i]);
        ck_assert_int_eq(err.kind, E_ENV_INVALID);
    }
    ck_assert_int_eq(check_env("{\"abx_x\":\"x\"}"), -1);
    ck_assert_int_eq(err.kind, E_ENV_DENIED);
    ck_assert_int_eq(check_env("{\"ABX_SERVER_TOKEN\":\"x\", \"a-b\":\"\"}"), -1);
    ck_assert_int_eq(err.kind, E_ENV_DENIED); /* the first bad name decides */
    ck_assert_int_eq(check_env("{\"_a1\":\"\", \"PATH\":\"x\"}"), 0);
    ck_assert_int_eq(env_guard_check(NULL, &err), 0);
}
END_TEST

START_TEST(limited_commands_keep_their_path)
{
    autojson json_t *path = json_pack("{s:s}", "PATH", "/x"),
                    *loader = json_pack("{s:s}", "LD_PRELOAD", "x"),
                    *fine = json_pack("{s:s}", "A", "x");
    ck_assert_int_eq(env_guard_commands(path, &rule, &err), 0);
    ALLOW("echo");
    ck_assert_int_eq(env_guard_commands(path, &rule, &err), -1);
    ck_assert_int_eq(err.kind, E_ENV_NOT_ALLOWED);
    ck_assert_int_eq(env_guard_commands(loader, &rule, &err), -1);
    ck_assert_int_eq(env_guard_commands(fine, &rule, &err), 0);
    ck_assert_int_eq(env_guard_commands(NULL, &rule, &err), 0);
}
END_TEST

START_TEST(loader_variables_are_known)
{
    static const char *const yes[] = {"LD_PRELOAD",
                                      "LD_LIBRARY_PATH",
                                      "DYLD_INSERT_LIBRARIES",
                                      "BASH_ENV",
                                      "ENV",
                                      "PYTHONSTARTUP",
                                      "GIT_EXTERNAL_DIFF",
                                      "GIT_CONFIG_COUNT",
                                      "BASH_FUNC_ls%%",
                                      "NODE_OPTIONS",
                                      "PERL5OPT"};
    static const char *const no[] = {"PATH", "HOME",    "PYTHONPATH", "ENVIRONMENT",
                                     "LANG", "LDFLAGS", "GIT_DIR"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++)
        ck_assert_msg(env_is_loader_name(yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < ARRAY_LEN(no); i++)
        ck_assert_msg(!env_is_loader_name(no[i]), "%s", no[i]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("guards");
    TCase *t = tcase_create("guards");
    tcase_set_timeout(t, 30);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, words_are_split_as_posix_quotes_say);
    tcase_add_test(t, unbalanced_quotes_and_nul_are_refused);
    tcase_add_test(t, command_size_is_bounded);
    tcase_add_test(t, broken_patterns_are_found_at_load);
    tcase_add_test(t, a_bare_name_means_the_program_on_the_servers_path);
    tcase_add_test(t, a_path_in_a_rule_means_that_path);
    tcase_add_test(t, patterns_take_the_whole_command_line);
    tcase_add_test(t, grouped_flags_are_seen_apart);
    tcase_add_test(t, the_judged_path_is_what_runs);
    tcase_add_test(t, relative_paths_hang_on_the_cwd_of_the_call);
    tcase_add_test(t, many_ellipses_and_paths_are_bounded);
    tcase_add_test(t, deny_beats_allow);
    tcase_add_test(t, a_denied_program_is_known_by_every_name);
    tcase_add_test(t, programs_that_start_others_are_denied_as_a_class);
    tcase_add_test(t, a_wrapper_needs_a_rule_that_spells_it_out);
    tcase_add_test(t, an_allowed_wrapper_may_not_mention_a_denied_program);
    tcase_add_test(t, a_star_alone_allows_everything);
    tcase_add_test(t, without_lists_everything_passes);
    tcase_add_test(t, programs_under_proc_sys_dev_are_denied);
    tcase_add_test(t, programs_are_found_as_a_shell_would);
    tcase_add_test(t, environment_names_and_values_are_checked);
    tcase_add_test(t, limited_commands_keep_their_path);
    tcase_add_test(t, loader_variables_are_known);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
