#pragma once
/* Small threads beside the loop and its workers. */

#include <pthread.h>
#include <stddef.h>

/* A thread that gets no signals: those are the loop's. stack: bytes, 0 for the usual; ret: to be joined by, NULL for one
 * that is detached. 0, or -1: none to be had. */
int thread_start(size_t stack, void *(*fn)(void *data), void *data, pthread_t *ret);
