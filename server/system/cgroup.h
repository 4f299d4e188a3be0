#pragma once
/* What the control groups around this process allow it: cgroup v2, v1 and hybrid, nested, with and
 * without a cgroup namespace. Any thread; may block on /proc and /sys. */

#include <stdint.h>

struct cgroup {
    int64_t memory_limit; /* bytes: the tightest of all levels; -1: none */
    int64_t
        memory_used;  /* bytes at that level, without file cache and slab that can be dropped; -1 */
    double cpu_quota; /* CPUs: the tightest of all levels; < 0: none */
    int64_t cpu_usage_us; /* CPU time of our own group since it was made; -1: unknown */
};

/* root: "" or where fake /proc and /sys trees lie. Never fails: what can't be read is unlimited. */
void cgroup_read(const char *root, struct cgroup *ret);
