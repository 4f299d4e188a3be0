#include "base/workers.h"
#include "../check_main.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct item {
    struct work work;
    struct all *all;
    int number;
};

struct all {
    atomic_int done, running, most, late; /* late: out of order */
    atomic_bool hold;
    int last;
    bool ordered;
};

static void run(struct work *work)
{
    struct item *i = (struct item *)work;
    struct all *a = i->all;
    int now = atomic_fetch_add(&a->running, 1) + 1;
    for (int most = atomic_load(&a->most); now > most && !atomic_compare_exchange_weak(&a->most, &most, now);)
        ;
    if (a->ordered) {
        atomic_fetch_add(&a->late, i->number < a->last);
        a->last = i->number;
    }
    while (atomic_load(&a->hold))
        usleep(1000);
    atomic_fetch_sub(&a->running, 1);
    atomic_fetch_add(&a->done, 1);
    free(i);
}

static void add(struct workers *w, struct all *a, int number)
{
    struct item *i = calloc(1, sizeof(*i));
    *i = (struct item){.work = {.fn = run}, .all = a, .number = number};
    ck_assert_int_eq(workers_run(w, &i->work), 0);
}

START_TEST(one_worker_keeps_the_order)
{
    struct all a = {.ordered = true};
    struct workers *w = workers_new(1);
    for (int i = 0; i < 20000; i++)
        add(w, &a, i);
    workers_free(w); /* runs what is queued */
    ck_assert_int_eq(a.done, 20000);
    ck_assert_int_eq(a.late, 0);
    ck_assert_int_eq(a.most, 1);
}
END_TEST

START_TEST(as_many_run_as_there_may_be_and_no_more)
{
    struct all a = {.hold = true};
    struct workers *w = workers_new(4);
    for (int i = 0; i < 10; i++)
        add(w, &a, i);
    while (atomic_load(&a.running) < 4)
        usleep(1000);
    atomic_store(&a.hold, false);
    while (atomic_load(&a.done) < 10)
        usleep(1000);
    ck_assert_int_eq(a.most, 4);
    workers_free(w);
}
END_TEST

/* Workers become idle and are woken all the time: none may be missed. */
START_TEST(no_wake_up_is_lost)
{
    struct all a = {0};
    struct workers *w = workers_new(3);
    for (int i = 0; i < 20000; i++) {
        add(w, &a, i);
        if (i % 3 == 0) {
            while (atomic_load(&a.done) <= i)
                ;
        }
    }
    while (atomic_load(&a.done) < 20000)
        usleep(1000);
    workers_free(w);
}
END_TEST

static int threads(void)
{
    char line[128];
    int n = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof(line), f) && sscanf(line, "Threads: %d", &n) != 1)
        ;
    fclose(f);
    return n;
}

START_TEST(all_start_with_the_first_work)
{
    struct all a = {0};
    int before = threads();
    struct workers *w = workers_new(4);
    ck_assert_int_eq(threads(), before);
    add(w, &a, 0);
    ck_assert_int_eq(threads(), before + 4);
    for (int i = 0; i < 1000; i++)
        add(w, &a, i);
    ck_assert_int_eq(threads(), before + 4);
    workers_free(w);
    ck_assert_int_eq(a.done, 1001);
}
END_TEST

START_TEST(an_unused_pool_ends)
{
    workers_free(workers_new(8));
    workers_free(NULL);
}
END_TEST

TEST_MAIN("workers", one_worker_keeps_the_order, as_many_run_as_there_may_be_and_no_more, no_wake_up_is_lost,
          all_start_with_the_first_work, an_unused_pool_ends)
