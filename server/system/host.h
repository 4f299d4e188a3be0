#pragma once
/* Figures of the machine as the sandbox sees it. Any thread; may block on /proc, /sys and file
 * systems. */

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Where and about what. root: "" or where fake /proc and /sys trees lie. */
struct host {
    const char *root;
    const char *base_dir;       /* its file system gets fields of its own */
    const char *python_version; /* "" when there is no python3 */
};

struct memory {
    int64_t total, available, used, limit; /* bytes; limit -1: none */
};
/* The smaller of limit and machine; 0 <= used <= total. */
void host_memory(const char *root, struct memory *ret);

struct disk {
    double total_gb, free_gb, used_gb; /* GiB; free: what an ordinary user may still take */
    double percent;                    /* as df: used / (used + free) */
};
/* Zeros when unknown. */
void host_disk(const char *path, struct disk *ret);

/* CPUs that can be used: online, affinity, quota rounded up; at least 1. quota < 0: none. */
int host_cpus(double quota);

/* GET /system/info. New object; NULL with err. */
json_t *host_info(const struct host *h, struct abx_error *err);

/* CPU time until now, for the load between two samples. */
struct cpu_sample {
    uint64_t at_ns;  /* mono_ns; 0: none taken yet */
    int64_t busy_us; /* of the group when limited, else of the machine; -1 unknown */
    double cpus;     /* what 100 % means */
};

/* GET /system/metrics without uptime_seconds. last: sample before, updated. New object; NULL with
 * err. */
json_t *host_metrics(const struct host *h, struct cpu_sample *last, struct abx_error *err);

/* Version of the python3 on `search_path` ("3.11.7"), "3.11" when only that can be told, "" when
 * there is none. Nothing is started: the number is read from its headers or its file. Heap (free),
 * NULL: no memory. */
char *host_python_version(const char *search_path);

/* Real path of the python3 on search_path, and "3.11"; both heap. False: none. */
bool host_find_python(const char *search_path, char **ret_found, char **ret_real, char **ret_minor);
