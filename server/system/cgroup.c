#include "system/cgroup.h"

#include "base/own.h"
#include "system/files.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How it works: /proc/self/cgroup names our group in each hierarchy. Limits hold for whole
 * subtrees, so every level from there up to the mount is read and the tightest counts. Without a
 * cgroup namespace the name may be one of the host's that our mount doesn't show: missing levels
 * are skipped, and the mount's own top is always read. */

/* v1 says "no limit" by a huge number rounded to pages. */
#define V1_NO_LIMIT (INT64_MAX / 2)

struct hierarchy {
    const char *mount;
    char group[PATH_MAX]; /* "/a/b"; "" is the top */
};

static int64_t level_number(const char *root, const char *dir, const char *file)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, file) >= sizeof path)
        return -1;
    return file_number(root, path);
}

static int level_text(const char *root, const char *dir, const char *file, struct buf *out)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, file) >= sizeof path)
        return -1;
    return file_read(root, path, 64 * KIB, out);
}

static int64_t or_zero(int64_t n) { return n < 0 ? 0 : n; }

/* File cache and reclaimable slab go before anybody is refused memory. */
static int64_t used_at(const char *root, const char *dir, bool v2)
{
    autobuf struct buf stat = BUF_INIT;
    int64_t used = level_number(root, dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (used < 0)
        return -1;
    if (level_text(root, dir, "memory.stat", &stat) == 0) {
        used -= or_zero(text_number(stat.data, v2 ? "inactive_file" : "total_inactive_file"));
        used -= or_zero(text_number(stat.data, v2 ? "active_file" : "total_active_file"));
        if (v2)
            used -= or_zero(text_number(stat.data, "slab_reclaimable"));
    }
    return used < 0 ? 0 : used;
}

static void memory_level(const char *root, const char *dir, bool v2, struct cgroup *ret)
{
    int64_t limit = level_number(root, dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    if (limit < 0 || limit >= V1_NO_LIMIT || (ret->memory_limit >= 0 && limit >= ret->memory_limit))
        return;
    ret->memory_limit = limit;
    ret->memory_used = used_at(root, dir, v2);
}

static void cpu_level(const char *root, const char *dir, bool v2, struct cgroup *ret)
{
    int64_t quota = -1, period = -1;
    if (v2) {
        autobuf struct buf text = BUF_INIT;
        if (level_text(root, dir, "cpu.max", &text) == 0) {
            char *end;
            quota = strtoll(text.data, &end, 10); /* "max 100000" reads as 0 */
            period = strtoll(end, NULL, 10);
        }
    } else {
        quota = level_number(root, dir, "cpu.cfs_quota_us");
        period = level_number(root, dir, "cpu.cfs_period_us");
    }
    if (quota <= 0 || period <= 0)
        return;
    double cpus = (double)quota / (double)period;
    if (ret->cpu_quota < 0 || cpus < ret->cpu_quota)
        ret->cpu_quota = cpus;
}

static void each_level(const char *root, const struct hierarchy *h, bool v2,
                       void (*read_level)(const char *root, const char *dir, bool v2,
                                          struct cgroup *ret),
                       struct cgroup *ret)
{
    char group[PATH_MAX], dir[PATH_MAX + 64];
    (void)stpcpy(group, h->group);
    for (;;) {
        snprintf(dir, sizeof dir, "%s%s", h->mount, group);
        read_level(root, dir, v2, ret);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* Does a comma list (of controllers) hold this one? */
static bool lists(const char *list, size_t len, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < len;) {
        size_t word = 0;
        while (i + word < len && list[i + word] != ',')
            word++;
        if (word == n && memcmp(list + i, name, n) == 0)
            return true;
        i += word + 1;
    }
    return false;
}

/* Our group in the hierarchy that has `controller` ("" = v2). False: there is none. */
static bool find_group(const char *cgroups, const char *controller, char group[PATH_MAX])
{
    for (const char *line = cgroups; line && *line;) {
        size_t len = strcspn(line, "\n");
        const char *first = memchr(line, ':', len);
        const char *second =
            first ? memchr(first + 1, ':', len - (size_t)(first + 1 - line)) : NULL;
        if (second) {
            size_t list = (size_t)(second - first - 1), path = len - (size_t)(second + 1 - line);
            if (path < PATH_MAX && (*controller ? lists(first + 1, list, controller) : list == 0)) {
                memcpy(group, second + 1, path);
                group[path] = '\0';
                if (strcmp(group, "/") == 0 || strstr(group, "/.."))
                    group[0] = '\0'; /* "/../x": outside of our namespace */
                return true;
            }
        }
        line = line[len] ? line + len + 1 : NULL;
    }
    return false;
}

static void
read_v1(const char *root, const char *cgroups, const char *controller, const char *const *mounts,
        void (*read_level)(const char *root, const char *dir, bool v2, struct cgroup *ret),
        struct cgroup *ret)
{
    struct hierarchy h;
    if (!find_group(cgroups, controller, h.group))
        h.group[0] = '\0';
    for (; *mounts; mounts++) {
        h.mount = *mounts;
        each_level(root, &h, false, read_level, ret);
    }
}

/* Own usage only: the deepest level that shows it. */
static void usage_level(const char *root, const char *dir, bool v2, struct cgroup *ret)
{
    if (ret->cpu_usage_us >= 0)
        return;
    if (v2) {
        autobuf struct buf text = BUF_INIT;
        if (level_text(root, dir, "cpu.stat", &text) == 0)
            ret->cpu_usage_us = text_number(text.data, "usage_usec");
    } else {
        int64_t ns = level_number(root, dir, "cpuacct.usage");
        ret->cpu_usage_us = ns < 0 ? -1 : ns / 1000;
    }
}

void cgroup_read(const char *root, struct cgroup *ret)
{
    static const char *const v2_mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    static const char *const memory[] = {"/sys/fs/cgroup/memory", NULL};
    static const char *const cpu[] = {"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu", NULL};
    static const char *const cpuacct[] = {"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct",
                                          NULL};

    *ret =
        (struct cgroup){.memory_limit = -1, .memory_used = -1, .cpu_quota = -1, .cpu_usage_us = -1};
    autobuf struct buf text = BUF_INIT;
    const char *cgroups =
        file_read(root, "/proc/self/cgroup", 64 * KIB, &text) == 0 ? text.data : "";
    struct hierarchy h;
    if (!find_group(cgroups, "", h.group))
        h.group[0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(v2_mounts); i++) {
        h.mount = v2_mounts[i];
        each_level(root, &h, true, memory_level, ret);
        each_level(root, &h, true, cpu_level, ret);
        each_level(root, &h, true, usage_level, ret);
    }
    read_v1(root, cgroups, "memory", memory, memory_level, ret);
    read_v1(root, cgroups, "cpu", cpu, cpu_level, ret);
    read_v1(root, cgroups, "cpuacct", cpuacct, usage_level, ret);
}
