#pragma once
/* Owning locals: set where declared, released at scope end, handed over by take_ptr and take_fd. */

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

static inline void own_free_(void *p)
{
    free(*(void **)p);
}

static inline void own_close_(int *fd)
{
    if (*fd >= 0)
        close(*fd); /* never retried on EINTR: the descriptor is gone either way */
}

static inline void own_json_(json_t **j)
{
    json_decref(*j);
}

#define autofree __attribute__((cleanup(own_free_), unused))
#define autoclose __attribute__((cleanup(own_close_), unused))
#define autojson __attribute__((cleanup(own_json_), unused))

#define take_ptr(p)                                                                                \
    __extension__({                                                                                \
        __typeof__(p) taken_ = (p);                                                                \
        (p) = NULL;                                                                                \
        taken_;                                                                                    \
    })

static inline int take_fd(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))
#define KIB 1024
#define MIB (1024 * 1024)
