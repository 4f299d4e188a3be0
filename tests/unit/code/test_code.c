#include "code/context.h"
#include "code/output.h"
#include "code/run.h"

#include "../check_main.h"
#include "../turn.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/own.h"

static char *const env[] = {(char *)"PATH=/usr/local/bin:/usr/bin:/bin", (char *)"LC_ALL=C.UTF-8", NULL};

struct world {
    struct loop *loop;
    struct spawner *s;
    struct contexts *contexts;
    struct code_run *run;
    int answered, sys, exit_code, stopped;
    bool timed_out, cut, has_reply;
    char out[4096], err[4096], result[256];
};

static void turn(struct world *w)
{
    turn_loop(w->loop);
}

static void turn_until(struct world *w, const int *what)
{
    uint64_t end = mono_ms() + 20000;
    while (!*what) {
        ck_assert_msg(mono_ms() < end, "nothing came");
        turn(w);
    }
}

static void on_stopped(void *data)
{
    ((struct world *)data)->stopped = 1;
}

static void world_init(struct world *w, uint64_t idle_ms)
{
    struct contexts_limits l = {.idle_ms = idle_ms, .memory_bytes = (uint64_t)4096 * MIB};
    *w = (struct world){.loop = loop_new()};
    w->s = spawner_new(w->loop);
    w->contexts = contexts_new(w->loop, w->s, &l);
}

static void world_done(struct world *w)
{
    contexts_free(w->contexts);
    spawner_stop(w->s, 0, on_stopped, w);
    turn_until(w, &w->stopped);
    spawner_free(w->s);
    loop_free(w->loop);
}

static void keep(struct world *w, int sys, const struct code_result *r)
{
    w->sys = sys;
    w->answered++;
    if (!r)
        return;
    snprintf(w->out, sizeof(w->out), "%.*s", (int)r->out[0].text.len, r->out[0].text.data);
    snprintf(w->err, sizeof(w->err), "%.*s", (int)r->out[1].text.len, r->out[1].text.data);
    w->exit_code = r->exit_code;
    w->timed_out = r->timed_out;
    w->cut = r->out[0].cut || r->out[1].cut;
}

static void ran(void *data, int sys, const struct code_result *r)
{
    keep(data, sys, r);
}

static void ran_in_context(void *data, int sys, const struct context_result *r)
{
    struct world *w = data;
    keep(w, sys, r ? &r->run : NULL);
    w->has_reply = r && r->reply;
    const char *result = r ? json_string_value(json_object_get(r->reply, "result")) : NULL;
    snprintf(w->result, sizeof(w->result), "%s", result ? result : "");
}

static struct code_order order(const char *language, const char *code)
{
    const struct language *lang = language_find(language);
    ck_assert_ptr_nonnull(lang);
    return (struct code_order){.lang = lang, .program = lang->program, .code = code, .code_len = strlen(code),
                               .envp = env, .cwd_fd = -1, .tmp = "/tmp", .timeout_ms = 10000,
                               .max_output = MIB};
}

static void run(struct world *w, const struct code_order *o)
{
    struct abx_error err;
    w->answered = 0;
    ck_assert_int_eq(code_run_start(w->s, w->loop, o, ran, w, &w->run, &err), 0);
    turn_until(w, &w->answered);
}

static void run_in(struct world *w, const char *id, const struct code_order *o)
{
    struct abx_error err;
    w->answered = 0;
    ck_assert_msg(context_run(w->contexts, id, false, o, ran_in_context, w, &err) == 0, "%s", err.message);
    turn_until(w, &w->answered);
}

START_TEST(a_missing_program_is_told)
{
    struct world w;
    world_init(&w, 0);
    struct code_order o = order("bash", "echo");
    o.program = "/nonexistent/bash";
    run(&w, &o);
    ck_assert_int_eq(w.sys, ENOENT);
    o = order("python", "1");
    o.program = "/nonexistent/python3";
    run_in(&w, "a", &o);
    ck_assert_int_eq(w.sys, ENOENT);
    world_done(&w);
}
END_TEST

START_TEST(contexts_refuse_what_they_cannot_do)
{
    struct world w;
    struct abx_error err;
    world_init(&w, 0);
    struct code_order o = order("bash", "echo");
    ck_assert_int_eq(context_run(w.contexts, "a", false, &o, ran_in_context, &w, &err), -1);
    o = order("python", "import time; time.sleep(0.3)");
    static const char *const bad[] = {"", "../x", "a b", "0123456789012345678901234567890123456789012345678901234567890123x"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_int_eq(context_run(w.contexts, bad[i], false, &o, ran_in_context, &w, &err), -1);
    w.answered = 0;
    ck_assert_int_eq(context_run(w.contexts, "a", false, &o, ran_in_context, &w, &err), 0);
    ck_assert_int_eq(context_run(w.contexts, "a", false, &o, ran_in_context, &w, &err), -1);
    ck_assert_int_eq(err.kind, E_CONFLICT);
    turn_until(&w, &w.answered);
    world_done(&w);
}
END_TEST

START_TEST(code_of_any_length_runs_and_shows_in_no_argument)
{
    struct world w;
    world_init(&w, 0);
    size_t len = 600000;
    autofree char *code = malloc(len + 200);
    memset(code, '#', len);
    snprintf(code + len, 200, "\nwc -c < /proc/$$/cmdline; exit 3\n");
    struct code_order o = order("bash", code);
    run(&w, &o);
    ck_assert_int_eq(w.exit_code, 3);
    ck_assert_int_lt(atoi(w.out), 100);
    world_done(&w);
}
END_TEST

START_TEST(python_behaves_as_with_c)
{
    struct world w;
    world_init(&w, 0);
    char *args[] = {(char *)"-x", NULL};
    struct code_order o = order("python", "import sys\r\nprint(__name__, sys.argv)\r\n1/0\r\n");
    o.args = args;
    run(&w, &o);
    ck_assert_str_eq(w.out, "__main__ ['-c', '-x']\n");
    ck_assert_ptr_nonnull(strstr(w.err, "File \"<string>\", line 3, in <module>\nZeroDivisionError"));
    ck_assert_int_eq(w.exit_code, 1);
    o = order("python", "print(input())");
    o.input = "typed\n";
    o.input_len = 6;
    run(&w, &o);
    ck_assert_str_eq(w.out, "typed\n");
    world_done(&w);
}
END_TEST

START_TEST(a_file_language_leaves_no_file)
{
    struct world w;
    world_init(&w, 0);
    struct code_order o = order("c", "#include <stdio.h>\nint main(int n, char **v){puts(v[0]);return n;}");
    run(&w, &o);
    ck_assert_int_eq(w.exit_code, 1);
    ck_assert_ptr_nonnull(strstr(w.out, "/main\n"));
    w.out[strlen(w.out) - 1] = '\0';
    uint64_t end = mono_ms() + 5000;
    while (access(w.out, F_OK) == 0 && mono_ms() < end)
        turn(&w);
    ck_assert_int_eq(access(w.out, F_OK), -1);
    world_done(&w);
}
END_TEST

START_TEST(a_time_out_ends_all_and_keeps_the_output)
{
    struct world w;
    world_init(&w, 0);
    struct code_order o = order("bash", "sleep 30.77 & echo $!; wait");
    o.timeout_ms = 300;
    run(&w, &o);
    ck_assert(w.timed_out);
    pid_t pid = (pid_t)atoi(w.out);
    ck_assert_int_gt(pid, 1);
    uint64_t end = mono_ms() + 3000;
    while (kill(pid, 0) == 0 && mono_ms() < end)
        turn(&w);
    ck_assert_int_eq(kill(pid, 0), -1);
    world_done(&w);
}
END_TEST

START_TEST(output_is_cut_at_a_character_and_told)
{
    struct output o;
    output_init(&o, 5);
    output_add(&o, "\xC3\xA9\xC3", 3);
    output_add(&o, "\xA9\xC3\xA9", 3);
    output_finish(&o);
    ck_assert(o.cut);
    ck_assert_str_eq(buf_str(&o.text), "\xC3\xA9\xC3\xA9");
    output_done(&o);
    output_init(&o, 100);
    output_add(&o, "a\r", 2);
    output_add(&o, "\nb\rc\xFF", 5);
    output_finish(&o);
    ck_assert(!o.cut);
    ck_assert_str_eq(buf_str(&o.text), "a\nb\nc\xEF\xBF\xBD");
    output_done(&o);
}
END_TEST

START_TEST(variables_survive_between_runs_of_a_context)
{
    static const char *const lines[][3] = {{"python", "x = 20; print('in')", "x + 1"},
                                           {"node", "const x = 20; console.log('in')", "x + 1"}};
    struct world w;
    world_init(&w, 0);
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        if (strcmp(lines[i][0], "node") == 0 && access("/usr/bin/node", X_OK) < 0)
            continue;
        struct code_order o = order(lines[i][0], lines[i][1]);
        run_in(&w, lines[i][0], &o);
        ck_assert_str_eq(w.out, "in\n");
        ck_assert_str_eq(w.result, "");
        o = order(lines[i][0], lines[i][2]);
        run_in(&w, lines[i][0], &o);
        ck_assert_str_eq(w.result, "21");
        ck_assert_str_eq(w.out, "");
    }
    world_done(&w);
}
END_TEST

START_TEST(a_context_that_ends_or_hangs_is_replaced)
{
    struct world w;
    world_init(&w, 0);
    struct code_order o = order("python", "import os; print('bye', flush=True); os._exit(9)");
    run_in(&w, "a", &o);
    ck_assert(!w.has_reply);
    ck_assert_int_eq(w.exit_code, 9);
    ck_assert_str_eq(w.out, "bye\n");
    o = order("python", "import time; print('so far', flush=True); time.sleep(60)");
    o.timeout_ms = 1500;
    run_in(&w, "a", &o);
    ck_assert(w.timed_out);
    ck_assert_str_eq(w.out, "so far\n");
    o = order("python", "6*7");
    run_in(&w, "a", &o);
    ck_assert_str_eq(w.result, "42");
    world_done(&w);
}
END_TEST

START_TEST(an_idle_context_ends)
{
    struct world w;
    world_init(&w, 300);
    struct code_order o = order("python", "import os; os.getpid()");
    run_in(&w, "a", &o);
    run_in(&w, "a", &o); /* in its idle time: which begins anew */
    pid_t pid = (pid_t)atoi(w.result);
    uint64_t end = mono_ms() + 5000;
    while (kill(pid, 0) == 0 && mono_ms() < end)
        turn(&w);
    ck_assert_int_eq(kill(pid, 0), -1);
    world_done(&w);
}
END_TEST

TEST_MAIN("code", a_missing_program_is_told, contexts_refuse_what_they_cannot_do,
          code_of_any_length_runs_and_shows_in_no_argument, python_behaves_as_with_c, a_file_language_leaves_no_file,
          a_time_out_ends_all_and_keeps_the_output, output_is_cut_at_a_character_and_told,
          variables_survive_between_runs_of_a_context, a_context_that_ends_or_hangs_is_replaced,
          an_idle_context_ends)
