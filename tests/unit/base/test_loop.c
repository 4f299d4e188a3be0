#include "base/loop.h"
#include "../check_main.h"
#include "../turn.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

struct seen {
    struct loop *loop;
    struct timer timers[20];
    int order[20], n;
    int work_done, posts, readable;
    struct io io;
    int fds[2];
};

struct slot {
    struct seen *seen;
    int number;
};

static void fired(void *data)
{
    struct slot *s = data;
    s->seen->order[s->seen->n++] = s->number;
}

START_TEST(timers_fire_in_order_and_can_be_moved_and_stopped)
{
    struct seen seen = {.loop = loop_new()};
    struct slot slots[20];
    for (int i = 0; i < 20; i++) {
        slots[i] = (struct slot){&seen, i};
        timer_init(&seen.timers[i], seen.loop, fired, &slots[i]);
        timer_start(&seen.timers[i], (uint64_t)(7 * i % 20) * 2);
    }
    timer_start(&seen.timers[0], 60); /* was first */
    timer_stop(&seen.timers[1]);
    timer_stop(&seen.timers[1]);
    uv_run(loop_uv(seen.loop), UV_RUN_NOWAIT);
    while (seen.n < 19)
        turn_loop(seen.loop);
    for (int i = 1; i < 18; i++)
        ck_assert_int_le(7 * seen.order[i - 1] % 20, 7 * seen.order[i] % 20);
    ck_assert_int_eq(seen.order[18], 0);
    loop_free(seen.loop);
}
END_TEST

struct counts {
    int run;  /* the worker's */
    int done; /* the loop's */
};

static void work(void *data)
{
    ((struct counts *)data)->run++;
}

static void work_done(void *data)
{
    ((struct counts *)data)->done++;
}

START_TEST(both_lanes_run_and_come_back)
{
    struct loop *l = loop_new();
    struct counts counts[30] = {0};
    for (int i = 0; i < 30; i++)
        ck_assert_int_eq(loop_work(l, i % 2 ? WORK_LONG : WORK_SHORT, work, work_done, &counts[i]), 0);
    for (int left = 1; left;) {
        turn_loop(l);
        left = 0;
        for (int i = 0; i < 30; i++)
            left += counts[i].done != 1;
    }
    for (int i = 0; i < 30; i++)
        ck_assert_int_eq(counts[i].run, 1);
    loop_free(l);
}
END_TEST

struct gateway {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int waiting, gone;
    bool open;
};

static void wait_at(struct gateway *g)
{
    pthread_mutex_lock(&g->lock);
    g->waiting++;
    pthread_cond_broadcast(&g->changed);
    while (!g->open)
        pthread_cond_wait(&g->changed, &g->lock);
    g->gone++;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

struct visitor {
    struct gateway *gateway;
    int done;
};

static void visit(void *data)
{
    wait_at(((struct visitor *)data)->gateway);
}

static void visited(void *data)
{
    ((struct visitor *)data)->done++;
}

#define VISITORS 40 /* more than threads */

START_TEST(what_waits_alone_keeps_nobody_waiting)
{
    struct loop *l = loop_new();
    struct gateway g = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct visitor visitors[VISITORS] = {0};
    struct counts other = {0};
    for (int i = 0; i < VISITORS; i++) {
        visitors[i].gateway = &g;
        ck_assert_int_eq(loop_work(l, WORK_ALONE, visit, visited, &visitors[i]), 0);
    }
    ck_assert_int_eq(loop_work(l, WORK_LONG, work, work_done, &other), 0);
    while (!other.done)
        turn_loop(l);
    for (int i = 0; i < VISITORS; i++)
        ck_assert_int_eq(visitors[i].done, 0);
    pthread_mutex_lock(&g.lock);
    g.open = true;
    pthread_cond_broadcast(&g.changed);
    pthread_mutex_unlock(&g.lock);
    for (int left = 1; left;) {
        turn_loop(l);
        left = 0;
        for (int i = 0; i < VISITORS; i++)
            left += visitors[i].done != 1;
    }
    ck_assert_int_eq(g.gone, VISITORS);
    loop_free(l);
}
END_TEST

START_TEST(the_loops_end_does_not_wait_for_those_alone)
{
    struct loop *l = loop_new();
    struct gateway g = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct visitor v = {.gateway = &g};
    ck_assert_int_eq(loop_work(l, WORK_ALONE, visit, visited, &v), 0);
    pthread_mutex_lock(&g.lock);
    while (g.waiting == 0)
        pthread_cond_wait(&g.changed, &g.lock);
    pthread_mutex_unlock(&g.lock);
    loop_free(l);
    pthread_mutex_lock(&g.lock);
    g.open = true;
    pthread_cond_broadcast(&g.changed);
    while (g.gone == 0)
        pthread_cond_wait(&g.changed, &g.lock);
    pthread_mutex_unlock(&g.lock);
    ck_assert_int_eq(v.done, 0);
}
END_TEST

static void posted(void *data)
{
    struct seen *s = data;
    ck_assert(loop_on_thread(s->loop));
    s->posts++;
}

static void *poster(void *data)
{
    struct seen *s = data;
    for (int i = 0; i < 100; i++)
        loop_post(s->loop, posted, s);
    return NULL;
}

START_TEST(posts_arrive_on_the_loop_thread)
{
    struct seen seen = {.loop = loop_new()};
    pthread_t t;
    pthread_create(&t, NULL, poster, &seen);
    while (seen.posts < 100)
        turn_loop(seen.loop);
    pthread_join(t, NULL);
    loop_free(seen.loop);
}
END_TEST

static void readable(void *data, int events)
{
    struct seen *s = data;
    s->readable++;
    io_done(&s->io); /* allowed from the callback */
}

START_TEST(io_may_end_in_its_own_callback)
{
    struct seen seen = {.loop = loop_new()};
    ck_assert_int_eq(pipe(seen.fds), 0);
    ck_assert_int_eq(io_init(&seen.io, seen.loop, seen.fds[0], readable, &seen), 0);
    io_want(&seen.io, UV_READABLE);
    ck_assert_int_eq(write(seen.fds[1], "x", 1), 1);
    while (seen.readable == 0)
        turn_loop(seen.loop);
    uv_run(loop_uv(seen.loop), UV_RUN_NOWAIT);
    ck_assert_int_eq(seen.readable, 1);
    close(seen.fds[0]);
    close(seen.fds[1]);
    loop_free(seen.loop);
}
END_TEST

struct line {
    struct io io;
    int fds[2];
    int events;
};

static void counted(void *data, int events)
{
    struct line *l = data;
    l->events++;
    io_want(&l->io, 0); /* nobody reads: it would come again */
}

static void line_open(struct line *l, struct loop *loop)
{
    ck_assert_int_eq(pipe(l->fds), 0);
    ck_assert_int_eq(io_init(&l->io, loop, l->fds[0], counted, l), 0);
    ck_assert_int_ne(fcntl(l->fds[0], F_GETFL) & O_NONBLOCK, 0);
    ck_assert_int_eq(io_want(&l->io, UV_READABLE), 0);
}

static void line_close(struct line *l)
{
    io_done(&l->io);
    close(l->fds[0]);
    close(l->fds[1]);
}

START_TEST(a_number_used_again_is_watched_again)
{
    struct loop *loop = loop_new();
    struct line first = {0}, second = {0};
    for (int i = 0; i < 3; i++) {
        int before = second.events;
        line_open(&first, loop);
        ck_assert_int_eq(write(first.fds[1], "x", 1), 1);
        int number = first.fds[0];
        line_close(&first); /* with an event that nobody has seen */
        line_open(&second, loop);
        ck_assert_int_eq(second.fds[0], number);
        uv_run(loop_uv(loop), UV_RUN_NOWAIT);
        ck_assert_int_eq(first.events, 0);
        ck_assert_int_eq(second.events, before);
        ck_assert_int_eq(write(second.fds[1], "x", 1), 1);
        while (second.events == before)
            turn_loop(loop);
        ck_assert_int_eq(second.events, before + 1);
        line_close(&second);
    }
    loop_free(loop);
}
END_TEST

static void closes_the_other(void *data, int events)
{
    struct line *l = data, *other = l + (l->fds[1] == -2 ? -1 : 1);
    l->events++;
    io_want(&l->io, 0);
    if (other->fds[0] >= 0) {
        line_close(other);
        other->fds[0] = -1;
    }
}

START_TEST(what_is_done_gets_none_of_the_events_of_this_turn)
{
    struct loop *loop = loop_new();
    for (int round = 0; round < 2; round++) { /* the second with kept handles */
        struct line two[2] = {0};
        line_open(&two[0], loop);
        line_open(&two[1], loop);
        int writers[2] = {two[0].fds[1], dup(two[1].fds[1])};
        two[0].io.fn = two[1].io.fn = closes_the_other;
        close(two[1].fds[1]);
        two[1].fds[1] = -2;
        ck_assert_int_eq(write(writers[0], "x", 1), 1);
        ck_assert_int_eq(write(writers[1], "x", 1), 1);
        while (two[0].events + two[1].events == 0)
            turn_loop(loop);
        ck_assert_int_eq(two[0].events + two[1].events, 1);
        close(writers[1]);
        for (int i = 0; i < 2; i++) {
            if (two[i].fds[0] >= 0)
                line_close(&two[i]);
        }
    }
    loop_free(loop);
}
END_TEST

static void failed(void *data, int events)
{
    struct line *l = data;
    l->events = events;
    io_done(&l->io);
    close(l->fds[1]);
}

/* A child that is about to call exec has a copy, so that closing our number does not take the file out of the epoll
 * set. */
START_TEST(a_number_whose_file_failed_is_clean_for_the_next)
{
    struct loop *loop = loop_new();
    for (int round = 0; round < 2; round++) { /* the second with a kept handle */
        struct line broken = {0}, next = {0};
        ck_assert_int_eq(pipe(broken.fds), 0);
        int number = broken.fds[1], copy = dup(number);
        close(broken.fds[0]);
        ck_assert_int_eq(io_init(&broken.io, loop, number, failed, &broken), 0);
        io_want(&broken.io, UV_WRITABLE);
        while (broken.events == 0)
            turn_loop(loop);
        ck_assert_int_lt(broken.events, 0); /* nobody reads */

        int fds[2];
        ck_assert_int_eq(pipe(fds), 0);
        int writer = fcntl(fds[1], F_DUPFD, 100), reader = fcntl(fds[0], F_DUPFD, 100);
        close(fds[0]);
        close(fds[1]);
        ck_assert_int_eq(dup2(reader, number), number);
        close(reader);
        ck_assert_int_eq(io_init(&next.io, loop, number, counted, &next), 0);
        io_want(&next.io, UV_READABLE);
        for (int i = 0; i < 3; i++)
            uv_run(loop_uv(loop), UV_RUN_NOWAIT);
        ck_assert_int_eq(next.events, 0);
        ck_assert_int_eq(write(writer, "x", 1), 1);
        while (next.events == 0)
            turn_loop(loop);
        io_done(&next.io);
        close(number);
        close(writer);
        close(copy);
    }
    loop_free(loop);
}
END_TEST

START_TEST(a_descriptor_has_one_watcher)
{
    struct loop *loop = loop_new();
    struct line l = {0};
    struct io again;
    line_open(&l, loop);
    ck_assert_int_lt(io_init(&again, loop, l.fds[0], counted, &l), 0);
    line_close(&l);
    ck_assert_int_lt(io_init(&again, loop, l.fds[0], counted, &l), 0); /* closed */
    loop_free(loop);
}
END_TEST

TEST_MAIN("loop", a_number_used_again_is_watched_again, what_is_done_gets_none_of_the_events_of_this_turn,
          a_number_whose_file_failed_is_clean_for_the_next, a_descriptor_has_one_watcher, timers_fire_in_order_and_can_be_moved_and_stopped, both_lanes_run_and_come_back,
          what_waits_alone_keeps_nobody_waiting, the_loops_end_does_not_wait_for_those_alone,
          posts_arrive_on_the_loop_thread, io_may_end_in_its_own_callback)
