#include "base/thread.h"

#include <signal.h>

int thread_start(size_t stack, void *(*fn)(void *data), void *data, pthread_t *ret)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attr);
    if (!ret)
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (stack)
        pthread_attr_setstacksize(&attr, stack);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* the new one inherits it */
    int rc = pthread_create(ret ? ret : &thread, &attr, fn, data);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc == 0 ? 0 : -1;
}
