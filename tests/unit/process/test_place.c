#include "process/place.h"
#include "../check_main.h"
#include "../filter.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static cpu_set_t mine(void)
{
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    return set;
}

/* The n lowest of `from`. */
static cpu_set_t lowest(const cpu_set_t *from, int n)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&set) < n; i++) {
        if (CPU_ISSET(i, from))
            CPU_SET(i, &set);
    }
    return set;
}

/* Instead of /proc/loadavg, which other programs of this machine move. */
static void load_is(struct place *p, const char *text)
{
    place_done(p);
    p->load_fd = memfd_create("loadavg", MFD_CLOEXEC);
    ck_assert_int_ge(p->load_fd, 0);
    ck_assert_int_eq((int)write(p->load_fd, text, strlen(text)), (int)strlen(text));
}

static void running(struct place *p, size_t n)
{
    char text[64];
    snprintf(text, sizeof(text), "0.51 0.34 0.22 %zu/187 28871\n", n);
    load_is(p, text);
}

static bool confine(struct place *p, struct placed *at)
{
    place_confine(p, at);
    return at->confined;
}

/* Confines and frees, by the child or else the worker; before and after it is what was found. */
static void check_there_and_back(struct place *p)
{
    running(p, 1);
    for (int by_child = 0; by_child < 2; by_child++) {
        const cpu_set_t before = mine();
        struct placed at;
        ck_assert(confine(p, &at));
        cpu_set_t now = mine();
        ck_assert_int_eq(CPU_COUNT(&now), 1);
        ck_assert(CPU_ISSET(sched_getcpu(), &now));
        if (by_child)
            place_free_both(p, &at);
        else
            place_free(p, &at);
        ck_assert(at.freed == (by_child == 1));
        now = mine();
        ck_assert(CPU_EQUAL(&now, &before));
        place_free(p, &at);
        now = mine();
        ck_assert(CPU_EQUAL(&now, &before));
    }
}

START_TEST(confines_to_where_it_runs_and_puts_back_what_was_found)
{
    const cpu_set_t all = mine();
    struct place p;
    place_init(&p);
    ck_assert_uint_eq(p.n, (size_t)CPU_COUNT(&all));
    cpu_set_t now = mine();
    ck_assert(CPU_EQUAL(&now, &all));
    if (CPU_COUNT(&all) > 1) {
        check_there_and_back(&p);
        check_there_and_back(&p);
    }
    place_done(&p);
}
END_TEST

START_TEST(is_left_where_it_is_when_the_processors_are_busy)
{
    const cpu_set_t all = mine();
    struct place p;
    struct placed at;
    place_init(&p);
    if (CPU_COUNT(&all) > 1) {
        ck_assert_int_ge(p.load_fd, 0);
        running(&p, p.n - 1);
        ck_assert(confine(&p, &at));
        place_free(&p, &at);
    }
    running(&p, p.n);
    ck_assert(!confine(&p, &at));
    static const char *const strange[] = {"", "\n", "0.00 0.00 0.00 0/0 0\n", "0.51 0.34 0.22 187 28871\n", "/", " /"};
    for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
        load_is(&p, strange[i]);
        ck_assert(!confine(&p, &at));
    }
    place_done(&p);
    ck_assert(!confine(&p, &at));
    const cpu_set_t now = mine();
    ck_assert(CPU_EQUAL(&now, &all));
}
END_TEST

START_TEST(what_an_operator_chose_stays)
{
    const cpu_set_t all = mine();
    for (int n = CPU_COUNT(&all) - 1; n > 0; n--) {
        const cpu_set_t some = lowest(&all, n);
        ck_assert_int_eq(sched_setaffinity(0, sizeof(some), &some), 0);
        struct place p;
        struct placed at;
        place_init(&p);
        ck_assert_uint_eq(p.n, (size_t)n);
        cpu_set_t now = mine();
        ck_assert(CPU_EQUAL(&now, &some));
        if (n > 1)
            check_there_and_back(&p);
        else
            ck_assert(!confine(&p, &at));
        place_done(&p);
    }
    ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
}
END_TEST

START_TEST(a_change_since_the_start_is_left_alone)
{
    const cpu_set_t all = mine(), one = lowest(&all, 1);
    struct place p;
    struct placed at;
    place_init(&p);
    running(&p, 1);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    ck_assert(!confine(&p, &at));
    cpu_set_t now = mine();
    ck_assert(CPU_EQUAL(&now, &one));
    ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
    ck_assert(confine(&p, &at) == (CPU_COUNT(&all) > 1));
    place_free(&p, &at);
    now = mine();
    ck_assert(CPU_EQUAL(&now, &all));
    place_done(&p);
}
END_TEST

START_TEST(a_change_during_a_clone_is_left_alone)
{
    const cpu_set_t all = mine();
    struct place p;
    place_init(&p);
    running(&p, 1);
    for (int by_child = 0; by_child < 2 && CPU_COUNT(&all) > 1; by_child++) {
        struct placed at;
        ck_assert(confine(&p, &at));
        cpu_set_t others = all;
        CPU_CLR(at.cpu, &others);
        ck_assert_int_eq(sched_setaffinity(0, sizeof(others), &others), 0);
        if (by_child)
            place_free_both(&p, &at);
        place_free(&p, &at);
        cpu_set_t now = mine();
        ck_assert(CPU_EQUAL(&now, &others));
        ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
    }
    place_done(&p);
}
END_TEST

/* A child's filter answers like the operator's that allows few calls. */
START_TEST(a_filter_that_kills_ends_nobody)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct place p;
        struct placed at;
        if (!filter_call(SYS_sched_setaffinity, SECCOMP_RET_KILL_PROCESS))
            _exit(77); /* none to be had */
        place_init(&p);
        _exit(confine(&p, &at) ? 1 : 0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
}
END_TEST

TEST_MAIN("place", confines_to_where_it_runs_and_puts_back_what_was_found, is_left_where_it_is_when_the_processors_are_busy,
          what_an_operator_chose_stays, a_change_since_the_start_is_left_alone, a_change_during_a_clone_is_left_alone,
          a_filter_that_kills_ends_nobody)
