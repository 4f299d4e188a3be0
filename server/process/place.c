#include "process/place.h"

/* Raw calls, for two reasons: libc hides how long the kernel's masks are, and the child uses the same. */

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "process/in_child.h"

#define WORD_BITS (8 * sizeof(unsigned long))

/* Bytes written, 0: refused. tid 0: the caller's. */
IN_CHILD static size_t get(pid_t tid, unsigned long *mask)
{
    long n = RAW(SYS_sched_getaffinity, tid, PLACE_WORDS * sizeof(*mask), mask);
    return n > 0 ? (size_t)n : 0;
}

IN_CHILD static bool set(pid_t tid, const unsigned long *mask, size_t size)
{
    return RAW(SYS_sched_setaffinity, tid, size, mask) == 0;
}

static bool unchanged(const struct place *p)
{
    unsigned long now[PLACE_WORDS];
    return get(0, now) == p->size && memcmp(now, p->found, p->size) == 0;
}

/* Only this processor. */
IN_CHILD static bool is_one(const unsigned long *mask, size_t size, int cpu)
{
    for (size_t i = 0; i < size / sizeof(*mask); i++) {
        if (mask[i] != ((size_t)cpu / WORD_BITS == i ? 1UL << ((size_t)cpu % WORD_BITS) : 0))
            return false;
    }
    return true;
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

/* Some filters don't refuse but kill: a child finds out, that nobody misses. */
static bool is_deadly(void)
{
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != SECCOMP_MODE_FILTER)
        return false;
    unsigned long mask[PLACE_WORDS];
    pid_t pid = vfork();
    if (pid == 0) {
        (void)set(0, mask, get(0, mask));
        _exit(0);
    }
    int status = 0;
    return pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status);
}

static bool learn(struct place *p)
{
    size_t size = get(0, p->found);
    for (size_t i = 0; i < size / sizeof(p->found[0]); i++)
        p->n += (size_t)__builtin_popcountl(p->found[i]);
    if (p->n < 2 || is_deadly())
        return false;
    /* Since Linux 6.2 a mask that was set bounds a cpuset that grows later. We set one only where somebody did. */
    memset(p->all, 0xff, size);
    if (!set(0, p->all, size))
        return false;
    p->size = size;
    if (unchanged(p))
        return true;
    memcpy(p->all, p->found, size);
    return set(0, p->found, size);
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

void place_confine(const struct place *p, struct placed *ret)
{
    *ret = (struct placed){0};
    int cpu = p->load_fd >= 0 && has_room(p) && unchanged(p) ? sched_getcpu() : -1;
    if (cpu < 0 || (size_t)cpu >= p->size * 8)
        return;
    unsigned long here[PLACE_WORDS] = {0};
    here[(size_t)cpu / WORD_BITS] = 1UL << ((size_t)cpu % WORD_BITS);
    *ret = (struct placed){.cpu = cpu, .worker = gettid(), .confined = set(0, here, p->size)};
}

IN_CHILD void place_free_both(const struct place *p, struct placed *at)
{
    unsigned long now[PLACE_WORDS];
    size_t size = get(at->worker, now);
    if (size == p->size && is_one(now, size, at->cpu)) {
        (void)set(0, p->all, p->size);
        at->freed = set(at->worker, p->all, p->size);
    } else { /* somebody else was faster */
        (void)set(0, now, size);
        at->freed = true;
    }
}

/* For one whose child was not born, or was killed before it came to that. */
void place_free(const struct place *p, const struct placed *at)
{
    unsigned long now[PLACE_WORDS];
    if (at->confined && !at->freed && is_one(now, get(0, now), at->cpu))
        (void)set(0, p->all, p->size);
}
