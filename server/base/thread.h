#pragma once
/* Small threads beside the loop and its workers. */

#include <stddef.h>

/* A detached thread with `stack` bytes that gets no signals: those are the loop's. 0, or -1: none to be had. */
int thread_start(size_t stack, void *(*fn)(void *data), void *data);
