/* What a repository may not do to us, and what its odd shapes are called. */

#include "base/json.h"
#include "base/loop.h"
#include "base/own.h"
#include "git/git.h"
#include "git/similar.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* libgit2 up to 1.5 forgets a match of each configured key when it opens a repository of format
 * version 1 (its look for extensions.*). The server keeps the last repository open, so that it
 * happens once per change. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libpcre2\n"; }

static char top[64], base[96], side[96];
static struct guard *g;
static struct abx_error err;

/* A script in BASE with a git that knows nobody's settings. */
static void sh(const char *script)
{
    char command[4096];
    snprintf(command, sizeof command,
             "cd %s && export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 SIDE=%s GIT_AUTHOR_NAME=a "
             "GIT_AUTHOR_EMAIL=a@b "
             "GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b && { %s; } >/dev/null 2>&1",
             base, side, script);
    ck_assert_int_eq(system(command), 0);
}

static void set_up(void)
{
    strcpy(top, "/tmp/git-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(top));
    snprintf(base, sizeof base, "%s/base", top);
    snprintf(side, sizeof side, "%s/side", top);
    mkdir(base, 0755);
    mkdir(side, 0755);
    ck_assert_int_eq(guard_new(&(struct guard_config){.base_dir = base}, &g, &err), 0);
    sh("git init -qb main r && cd r && echo one > a && git add a && git commit -qm first");
}

static void tear_down(void)
{
    guard_free(g);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", top);
    ck_assert_int_eq(system(command), 0);
}

enum call { STATUS, DIFF, STAGED };

static json_t *ask(enum call call, const char *rel, const char *file)
{
    char path[256], full[512];
    json_t *answer = NULL;
    snprintf(path, sizeof path, "%s%s%s", base, *rel ? "/" : "", rel);
    snprintf(full, sizeof full, "%s/%s", path, file ? file : "");
    struct git_query q = {.guard = g,
                          .path = path,
                          .root = base,
                          .file = file ? full : NULL,
                          .staged = call == STAGED,
                          .deadline_ms = mono_ms() + 30000};
    int rc = call == STATUS ? abx_git_api.status(&q, &answer, &err)
                            : abx_git_api.diff(&q, &answer, &err);
    return rc < 0 ? NULL : answer;
}

static void assert_refused(const char *rel, enum error_kind kind, const char *says)
{
    for (enum call call = STATUS; call <= DIFF; call++) {
        autojson json_t *answer = ask(call, rel, NULL);
        ck_assert_msg(!answer, "%s passed", rel);
        ck_assert_msg(err.kind == kind, "%s: %s %s", rel, err.type, err.message);
        ck_assert_msg(strstr(err.message, says), "%s: %s", rel, err.message);
    }
}

static char *text_of(const json_t *answer, const char *key)
{
    const char *text = json_string_value(json_object_get(answer, key));
    return strdup(text ? text : "(none)");
}

static void assert_files(const char *rel, const char *want)
{
    autojson json_t *answer = ask(STATUS, rel, NULL);
    ck_assert_msg(answer != NULL, "%s", err.message);
    autobuf struct buf out = BUF_INIT;
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(answer, "files"), i, one)
    {
        buf_addf(&out, "%s %s;", json_string_value(json_object_get(one, "status")),
                 json_string_value(json_object_get(one, "path")));
    }
    ck_assert_str_eq(out.len ? buf_str(&out) : "", want);
    ck_assert_int_eq(json_is_true(json_object_get(answer, "clean")), out.len == 0);
}

static bool exists(const char *dir, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

START_TEST(what_is_no_work_tree_is_told_apart)
{
    sh("git init -q --bare bare; mkdir plain; touch file; cp -r r broken && echo garbage > "
       "broken/.git/HEAD; "
       "mkdir half && mkdir half/.git");
    assert_refused("bare", E_GIT, "bare");
    assert_refused("r/.git", E_GIT, "inside .git");
    assert_refused("plain", E_GIT, "not a git repository");
    assert_refused("file", E_GIT, "Not a directory");
    assert_refused("missing", E_GIT, "No such file");
    assert_refused("broken", E_GIT, "");
    assert_refused("half", E_GIT, "not a valid repository");
}
END_TEST

START_TEST(discovery_stops_at_the_root)
{
    char script[256];
    snprintf(script, sizeof script, "cd %s && git init -q . && mkdir -p %s/sub", top, base);
    sh(script);
    assert_refused("", E_GIT, "not a git repository");
    assert_refused("sub", E_GIT, "not a git repository");
    sh("mkdir -p r/x/y");
    assert_files("r/x/y", "");
}
END_TEST

START_TEST(a_repository_cannot_point_outside)
{
    sh("git init -qb main $SIDE/o && cd $SIDE/o && echo secret > s && git add s && git commit -qm "
       "x && echo more >> s");
    sh("mkdir l && echo \"gitdir: $SIDE/o/.git\" > l/.git");
    assert_refused("l", E_PATH_NOT_ALLOWED, "repository");
    sh("cp -r r w && git -C w config core.worktree $SIDE/o");
    assert_refused("w", E_PATH_NOT_ALLOWED, "repository");
    sh("cp -r r a && echo $SIDE/o/.git/objects > a/.git/objects/info/alternates");
    assert_refused("a", E_PATH_NOT_ALLOWED, "repository");
    sh("mkdir k && ln -s $SIDE/o/.git k/.git");
    assert_refused("k", E_PATH_NOT_ALLOWED, "repository");
    sh("cp -r r c && echo $SIDE/o/.git > c/.git/commondir");
    assert_refused("c", E_PATH_NOT_ALLOWED, "repository");
}
END_TEST

START_TEST(a_kept_repository_that_turned_outside_is_refused)
{
    sh("git init -qb main $SIDE/o && cd $SIDE/o && echo secret > s && git add s && git commit -qm "
       "x && echo more >> s");
    assert_files("r", "");
    sh("git -C r config core.worktree $SIDE/o");
    assert_refused("r", E_PATH_NOT_ALLOWED, "repository");
    sh("git -C r config --unset core.worktree; mv r/.git r/old; echo \"gitdir: $SIDE/o/.git\" > "
       "r/.git");
    assert_refused("r", E_PATH_NOT_ALLOWED, "repository");
}
END_TEST

START_TEST(a_submodule_outside_is_not_looked_into)
{
    sh("git init -qb main $SIDE/o && cd $SIDE/o && echo s > s && git add s && git commit -qm x && "
       "echo more >> s");
    sh("cd r && mkdir m && echo \"gitdir: $SIDE/o/.git\" > m/.git && "
       "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),m && git commit -qm m");
    assert_files("r", "");
}
END_TEST

START_TEST(nothing_of_the_configuration_is_run)
{
    sh("cd r && printf '#!/bin/sh\\ntouch %s/pwned\\n' > p && chmod +x p && sed -i "
       "\"s#%s#$PWD/..#\" p && "
       "for k in diff.external core.fsmonitor core.pager diff.x.textconv diff.x.command "
       "filter.x.clean filter.x.process "
       "core.sshCommand core.hooksPath; do git config $k \"$PWD/p\"; done; git config color.ui "
       "always; "
       "git config diff.noprefix true; git config status.short true; "
       "echo 'a diff=x filter=x' > .gitattributes; echo two >> a");
    assert_files("r", "modified a;untracked .gitattributes;untracked p;");
    autojson json_t *answer = ask(DIFF, "r", NULL);
    autofree char *diff = text_of(answer, "diff");
    ck_assert_msg(strstr(diff, "diff --git a/a b/a\n") && strstr(diff, "+two\n") &&
                      !strchr(diff, '\033'),
                  "%s", diff);
    ck_assert(!exists(base, "pwned"));
}
END_TEST

START_TEST(the_index_is_never_written)
{
    sh("cd r && touch -d @1 a && sha1sum .git/index > ../before");
    assert_files("r", "");
    json_decref(ask(DIFF, "r", NULL));
    json_decref(ask(STAGED, "r", NULL));
    sh("cd r && sha1sum -c ../before && ! ls .git/*.lock");
}
END_TEST

START_TEST(names_are_real_names)
{
    sh("cd r && for f in 'q\"q' ' lead' 'x -> y' \"$(printf 'tab\\there')\" 'ü ñ' old p; do echo "
       "\"$f\" > \"$f\"; done && "
       "git add . && git commit -qm n && for f in 'q\"q' ' lead' 'x -> y' \"$(printf "
       "'tab\\there')\" 'ü ñ'; do "
       "echo x >> \"$f\"; done && git mv old 'new é'");
    assert_files("r", "modified  lead;renamed new é;modified q\"q;modified tab\there;modified x -> "
                      "y;modified ü ñ;");
    sh("cd r && git commit -qam n && printf x > \"$(printf 'caf\\351')\"");
    assert_files("r", "untracked caf\xef\xbf\xbd;");
}
END_TEST

START_TEST(worktrees_and_separate_directories_work)
{
    sh("cd r && git worktree add -q -b wt ../w && cd .. && echo x >> w/a && "
       "git init -q --separate-git-dir=s.git s && echo x > s/f");
    assert_files("w", "modified a;");
    assert_files("s", "untracked f;");
    /* as newer gits write it */
    sh("echo 'gitdir: ../r/.git/worktrees/w' > w/.git && echo ../../../../w/.git > "
       "r/.git/worktrees/w/gitdir && "
       "git -C r config core.repositoryformatversion 1 && git -C r config "
       "extensions.relativeWorktrees true");
    assert_files("w", "modified a;");
    assert_files("r", "");
}
END_TEST

START_TEST(branches_are_named)
{
    sh("git init -qb trunk u; git clone -q r c; cd c; echo x > b; git add b; git commit -qm b; cd "
       "..; "
       "cp -r r d; git -C d checkout -q --detach");
    static const char *const t[][2] = {
        {"r", "main"}, {"u", "No commits yet on trunk"}, {"d", "HEAD (no branch)"}};
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        autojson json_t *answer = ask(STATUS, t[i][0], NULL);
        autofree char *branch = text_of(answer, "branch");
        ck_assert_str_eq(branch, t[i][1]);
    }
    autojson json_t *answer = ask(STATUS, "c", NULL);
    autofree char *upstream = text_of(answer, "upstream");
    ck_assert_str_eq(upstream, "origin/main");
    ck_assert_int_eq(json_integer_value(json_object_get(answer, "ahead")), 1);
}
END_TEST

START_TEST(a_file_is_a_name_and_no_pattern)
{
    sh("cd r && mkdir d && echo 1 > d/x && echo 1 > '*' && echo 1 > --cached && git add . && git "
       "commit -qm f && "
       "echo 2 >> a && echo 2 >> d/x && echo 2 >> '*' && echo 2 >> ./--cached");
    static const struct {
        const char *file;
        int files;
    } t[] = {{"*", 1},          {"--cached", 1}, {"d", 1},    {"d/x", 1}, {":(top)*", 0},
             {"--output=x", 0}, {"d/x/y", 0},    {"none", 0}, {"?", 0}};
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        autojson json_t *answer = ask(DIFF, "r", t[i].file);
        ck_assert_msg(answer != NULL, "%s", err.message);
        ck_assert_msg(json_integer_value(json_object_get(json_object_get(answer, "stats"),
                                                         "files_changed")) == t[i].files,
                      "%s", t[i].file);
    }
    ck_assert(!exists(base, "r/x"));
}
END_TEST

START_TEST(denied_files_are_left_out_of_a_diff)
{
    guard_free(g);
    const char *deny[] = {"secret.txt", NULL};
    ck_assert_int_eq(guard_new(&(struct guard_config){.base_dir = base, .deny = deny}, &g, &err),
                     0);
    sh("cd r && mkdir s && echo s > s/secret.txt && echo s > s/fine && git add . && git commit -qm "
       "s && "
       "echo TOP >> s/secret.txt && echo more >> s/fine && git add . && git mv s/secret.txt "
       "s/other");
    for (enum call call = DIFF; call <= STAGED; call++) {
        autojson json_t *answer = ask(call, "r", "s");
        autofree char *diff = text_of(answer, "diff");
        ck_assert_msg(!strstr(diff, "TOP") || call == STAGED, "%s", diff);
        ck_assert_msg(!strstr(diff, "secret.txt"), "%s", diff);
    }
}
END_TEST

START_TEST(long_diffs_are_cut_and_counted)
{
    sh("cd r && seq 1 200000 | sed 's/$/ ü/' > big && git add big");
    autojson json_t *answer = ask(STAGED, "r", NULL);
    autofree char *diff = text_of(answer, "diff");
    ck_assert(json_is_true(json_object_get(answer, "truncated")));
    ck_assert_uint_le(strlen(diff), 1048576 + 30);
    ck_assert_ptr_nonnull(strstr(diff, "\n... (truncated at 1MB)"));
    ck_assert_int_eq(
        json_integer_value(json_object_get(json_object_get(answer, "stats"), "insertions")),
        200000);
}
END_TEST

START_TEST(changes_between_calls_are_seen)
{
    assert_files("r", "");
    sh("cd r && echo 2 >> a");
    assert_files("r", "modified a;");
    sh("cd r && git commit -qam 2");
    assert_files("r", "");
    sh("cd r && echo '*.o' > .gitignore && touch x.o && git add .gitignore && git commit -qm i");
    assert_files("r", "");
    sh("rm -rf r && git init -qb other r && touch r/x.o");
    assert_files("r", "untracked x.o;");
}
END_TEST

START_TEST(time_is_bounded)
{
    json_t *answer;
    char path[256];
    snprintf(path, sizeof path, "%s/r", base);
    sh("cd r && echo 2 >> a");
    struct git_query q = {.guard = g, .path = path, .root = base, .deadline_ms = 0};
    ck_assert_int_eq(abx_git_api.diff(&q, &answer, &err), -1);
    ck_assert_int_eq(err.kind, E_TIMEOUT_408);
}
END_TEST

START_TEST(likeness_is_measured_in_lines)
{
    ck_assert_int_eq(similar_score("a\nb\nc\nd\n", 8, "a\nb\nc\nd\n", 8), 100);
    ck_assert_int_eq(similar_score("a\nb\nc\nd\n", 8, "a\nb\nx\ny\n", 8), 50);
    ck_assert_int_eq(similar_score("a\r\nb\r\n", 6, "a\nb\n", 4), 66);
    ck_assert_int_eq(similar_score("", 0, "", 0), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("git");
    TCase *t = tcase_create("git");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, what_is_no_work_tree_is_told_apart);
    tcase_add_test(t, discovery_stops_at_the_root);
    tcase_add_test(t, a_repository_cannot_point_outside);
    tcase_add_test(t, a_kept_repository_that_turned_outside_is_refused);
    tcase_add_test(t, a_submodule_outside_is_not_looked_into);
    tcase_add_test(t, nothing_of_the_configuration_is_run);
    tcase_add_test(t, the_index_is_never_written);
    tcase_add_test(t, names_are_real_names);
    tcase_add_test(t, worktrees_and_separate_directories_work);
    tcase_add_test(t, branches_are_named);
    tcase_add_test(t, a_file_is_a_name_and_no_pattern);
    tcase_add_test(t, denied_files_are_left_out_of_a_diff);
    tcase_add_test(t, long_diffs_are_cut_and_counted);
    tcase_add_test(t, changes_between_calls_are_seen);
    tcase_add_test(t, time_is_bounded);
    tcase_add_test(t, likeness_is_measured_in_lines);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
