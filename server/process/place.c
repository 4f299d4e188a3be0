#include "process/place.h"

/* Raw calls, for two reasons: libc hides how long the kernel's masks are, and a child between clone and exec uses the
 * same (process/spawn.c). */

#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define WORD_BITS (8 * sizeof(unsigned long))

/* Bytes written, 0: refused. */
static size_t get(unsigned long *mask)
{
    long n = syscall(SYS_sched_getaffinity, 0, PLACE_WORDS * sizeof(*mask), mask);
    return n > 0 ? (size_t)n : 0;
}

static bool set(const unsigned long *mask, size_t size)
{
    return syscall(SYS_sched_setaffinity, 0, size, mask) == 0;
}

static bool unchanged(const struct place *p)
{
    unsigned long now[PLACE_WORDS];
    return get(now) == p->size && memcmp(now, p->found, p->size) == 0;
}

/* The kernel's own: what container tools lay over it is read through another process. */
static int open_load(void)
{
    struct statfs fs;
    int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && (fstatfs(fd, &fs) < 0 || fs.f_type != PROC_SUPER_MAGIC)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Threads that run or could, us among them, by "0.20 0.18 0.12 RUNNING/ALL PID". */
static bool has_room(const struct place *p)
{
    char text[128];
    ssize_t n = pread(p->load_fd, text, sizeof(text) - 1, 0);
    if (n <= 0)
        return false;
    text[n] = '\0';
    const char *slash = strchr(text, '/'), *at = slash;
    while (at && at > text && at[-1] != ' ')
        at--;
    unsigned long running = slash ? strtoul(at, NULL, 10) : 0; /* 0: not the kernel's word, for we do run */
    return running > 0 && running < p->n;
}

static bool learn(struct place *p)
{
    size_t size = get(p->found);
    for (size_t i = 0; i < size / sizeof(p->found[0]); i++)
        p->n += (size_t)__builtin_popcountl(p->found[i]);
    if (p->n < 2)
        return false;
    /* Since Linux 6.2 a mask that was set bounds a cpuset that grows later. We set one only where somebody did. */
    memset(p->all, 0xff, size);
    if (!set(p->all, size))
        return false;
    p->size = size;
    if (unchanged(p))
        return true;
    memcpy(p->all, p->found, size);
    return set(p->found, size);
}

void place_init(struct place *p)
{
    *p = (struct place){.load_fd = -1};
    if (learn(p))
        p->load_fd = open_load();
}

void place_done(struct place *p)
{
    if (p->load_fd >= 0)
        close(p->load_fd);
    p->load_fd = -1;
}

bool place_confine(const struct place *p)
{
    int cpu = p->load_fd >= 0 && has_room(p) && unchanged(p) ? sched_getcpu() : -1;
    if (cpu < 0 || (size_t)cpu >= p->size * 8)
        return false;
    unsigned long here[PLACE_WORDS] = {0};
    here[(size_t)cpu / WORD_BITS] = 1UL << ((size_t)cpu % WORD_BITS);
    return set(here, p->size);
}

void place_free(const struct place *p)
{
    (void)set(p->all, p->size);
}
