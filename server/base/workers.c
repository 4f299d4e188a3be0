#include "base/workers.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/thread.h"

struct worker {
    struct workers *all;
    struct worker *idle_next;
    sem_t wake;
    struct work *work; /* set before `wake`; NULL: end */
    pthread_t thread;
};

struct workers {
    pthread_mutex_t lock;
    struct worker *idle; /* the last that became idle first */
    struct work *first, **end;
    bool stopping;
    unsigned n, max;
    struct worker threads[];
};

/* The next work, or NULL after a turn on the idle list that ended with the pool. */
static struct work *next_work(struct worker *me)
{
    struct workers *all = me->all;
    pthread_mutex_lock(&all->lock);
    struct work *work = all->first;
    if (work) {
        all->first = work->next;
        if (!all->first)
            all->end = &all->first;
    }
    bool wait = !work && !all->stopping;
    if (wait) {
        me->idle_next = all->idle;
        all->idle = me;
    }
    pthread_mutex_unlock(&all->lock);
    if (!wait)
        return work;
    while (sem_wait(&me->wake) < 0 && errno == EINTR)
        ;
    return me->work;
}

static void *run(void *data)
{
    struct worker *me = data;
    for (struct work *work; (work = next_work(me));)
        work->fn(work);
    return NULL;
}

struct workers *workers_new(unsigned max)
{
    struct workers *w = calloc(1, sizeof(*w) + max * sizeof(w->threads[0]));
    if (!w)
        return NULL;
    (void)pthread_mutex_init(&w->lock, NULL); /* with defaults it can't fail on Linux */
    w->end = &w->first;
    w->max = max;
    return w;
}

static bool start_worker(struct workers *w)
{
    struct worker *new = &w->threads[w->n];
    *new = (struct worker){.all = w};
    if (sem_init(&new->wake, 0, 0) < 0)
        return false;
    if (thread_start(0, run, new, &new->thread) < 0) {
        sem_destroy(&new->wake);
        return false;
    }
    w->n++;
    return true;
}

int workers_run(struct workers *w, struct work *work)
{
    while (w->n < w->max && start_worker(w))
        ;
    if (w->n == 0)
        return -1;
    work->next = NULL;
    pthread_mutex_lock(&w->lock);
    struct worker *idle = w->idle;
    if (idle) {
        w->idle = idle->idle_next;
    } else {
        *w->end = work;
        w->end = &work->next;
    }
    pthread_mutex_unlock(&w->lock);
    if (idle) {
        idle->work = work;
        sem_post(&idle->wake);
    }
    return 0;
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    struct worker *idle = w->idle;
    w->idle = NULL;
    pthread_mutex_unlock(&w->lock);
    while (idle) {
        struct worker *next = idle->idle_next;
        idle->work = NULL;
        sem_post(&idle->wake);
        idle = next;
    }
    for (unsigned i = 0; i < w->n; i++) {
        (void)pthread_join(w->threads[i].thread, NULL);
        sem_destroy(&w->threads[i].wake);
    }
    pthread_mutex_destroy(&w->lock);
    free(w);
}
