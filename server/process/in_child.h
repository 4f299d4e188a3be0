#pragma once
/* For what runs between clone and exec (process/spawn.c): it shares the memory and the TLS of the worker, which sleeps. */

#include <sys/syscall.h>
#include <unistd.h>

#define IN_CHILD                                                                                   \
    __attribute__((no_sanitize("address"), no_sanitize("undefined"), no_sanitize("thread"),        \
                   no_stack_protector))

/* A raw call: its errno is the worker's TLS, which sleeps and doesn't care. */
#define RAW(...) syscall(__VA_ARGS__)
