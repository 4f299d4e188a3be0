#include "system/host.h"

#include "base/json.h"
#include "base/loop.h"
#include "base/num.h"
#include "base/own.h"
#include "system/cgroup.h"
#include "system/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#define TOP_PROCESSES 20
#define MAX_INTERFACES 64

/* --- memory, CPUs, disks ---------------------------------------------------------------------- */

static int64_t at_least_zero(int64_t n) { return n < 0 ? 0 : n; }

static void machine_memory(const char *root, int64_t *ret_total, int64_t *ret_available)
{
    autobuf struct buf text = BUF_INIT;
    *ret_total = *ret_available = 0;
    if (file_read(root, "/proc/meminfo", 16 * KIB, &text) < 0)
        return;
    *ret_total = at_least_zero(text_number(text.data, "MemTotal")) * KIB;
    *ret_available = at_least_zero(text_number(text.data, "MemAvailable")) * KIB;
    if (*ret_available > *ret_total)
        *ret_available = *ret_total;
}

static void combine(const struct cgroup *cg, struct memory *m)
{
    m->limit = -1;
    m->used = m->total - m->available;
    if (cg->memory_limit < 0 || (m->total > 0 && cg->memory_limit >= m->total))
        return;
    m->limit = cg->memory_limit;
    m->total = cg->memory_limit;
    if (cg->memory_used >= 0)
        m->used = cg->memory_used;
    if (m->used > m->total)
        m->used = m->total;
    if (m->available > m->total - m->used)
        m->available = m->total - m->used;
}

void host_memory(const char *root, struct memory *ret)
{
    struct cgroup cg;
    cgroup_read(root, &cg);
    machine_memory(root, &ret->total, &ret->available);
    combine(&cg, ret);
}

int host_cpus(double quota)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int n = online > 0 && online < INT_MAX ? (int)online : 1;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 && CPU_COUNT(&set) < n)
        n = CPU_COUNT(&set);
    if (quota > 0 && ceil(quota) < n)
        n = (int)ceil(quota);
    return n;
}

static double to_gb(double bytes) { return num_round(bytes / (1024.0 * MIB), 2); }

void host_disk(const char *path, struct disk *ret)
{
    struct statvfs fs;
    *ret = (struct disk){0};
    if (statvfs(path, &fs) < 0 || fs.f_blocks == 0)
        return;
    double unit = fs.f_frsize ? (double)fs.f_frsize : (double)fs.f_bsize;
    double total = (double)fs.f_blocks * unit;
    double used = fs.f_bfree > fs.f_blocks ? 0 : (double)(fs.f_blocks - fs.f_bfree) * unit;
    double avail = fs.f_bavail > fs.f_blocks ? 0 : (double)fs.f_bavail * unit;
    ret->total_gb = to_gb(total);
    ret->used_gb = to_gb(used);
    ret->free_gb = to_gb(avail);
    ret->percent = used + avail > 0 ? num_round(used / (used + avail) * 100, 1) : 0;
}

/* --- python ----------------------------------------------------------------------------------- */

/* The interpreter that this entry of PATH stands for: itself, or what a pyenv shim (a shell script)
 * starts. NULL: neither. */
static char *interpreter_at(const char *path)
{
    char magic[2] = "", next[PATH_MAX];
    struct stat st;
    autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || access(path, X_OK) < 0 ||
        read(fd, magic, 2) != 2)
        return NULL;
    if (memcmp(magic, "#!", 2) != 0)
        return strdup(path);

    const char *shims = strstr(path, "/shims/");
    autobuf struct buf version = BUF_INIT;
    if (!shims ||
        (size_t)snprintf(next, sizeof next, "%.*s/version", (int)(shims - path), path) >=
            sizeof next ||
        file_read("", next, 256, &version) < 0)
        return NULL;
    int n = (int)strcspn(version.data, " \t\r\n:/");
    if (n == 0 || version.data[0] == '.' ||
        (size_t)snprintf(next, sizeof next, "%.*s/versions/%.*s/bin/python3", (int)(shims - path),
                         path, n, version.data) >= sizeof next ||
        access(next, X_OK) < 0)
        return NULL;
    return strdup(next);
}

static char *find_on_path(const char *search)
{
    for (const char *p = search; *p;) {
        char path[PATH_MAX];
        size_t n = strcspn(p, ":");
        char *found = NULL;
        if (*p == '/' &&
            (size_t)snprintf(path, sizeof path, "%.*s/python3", (int)n, p) < sizeof path)
            found = interpreter_at(path);
        if (found)
            return found;
        p += n + (p[n] == ':');
    }
    return NULL;
}

bool host_find_python(const char *search_path, char **ret_found, char **ret_real, char **ret_minor)
{
    autofree char *found = find_on_path(search_path);
    autofree char *real = found ? realpath(found, NULL) : NULL;
    if (!real)
        return false;
    const char *name = strrchr(real, '/') + 1;
    const char *digits = strncmp(name, "python3.", 8) == 0 ? name + 6 : "";
    *ret_minor = strndup(digits, strspn(digits, "0123456789."));
    if (!*ret_minor)
        return false;
    *ret_found = take_ptr(found);
    *ret_real = take_ptr(real);
    return true;
}

/* #define PY_VERSION "3.11.7" in the headers, where they are installed. dir: length of
 * "PREFIX/bin". */
static char *version_in_headers(const char *real, int dir, const char *minor)
{
    static const char define[] = "PY_VERSION";
    char path[PATH_MAX];
    autobuf struct buf text = BUF_INIT;
    if ((size_t)snprintf(path, sizeof path, "%.*s/../include/python%s/patchlevel.h", dir, real,
                         minor) >= sizeof path ||
        file_read("", path, 16 * KIB, &text) < 0)
        return NULL;
    for (const char *at = text.data; (at = strstr(at, define)); at++) {
        const char *value = at + strlen(define) + strspn(at + strlen(define), " \t");
        size_t n = strcspn(value + (*value == '"'), "\"\n");
        if (*value == '"' && n > 0 && n < 24)
            return strndup(value + 1, n);
    }
    return NULL;
}

/* Looks for a string constant "3.11.<digits>" in a program file. */
static char *version_in_file(const char *path, const char *minor)
{
    autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < 64 ||
        st.st_size > 256 * MIB)
        return NULL;
    char *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    char want[32], *version = NULL;
    size_t n = (size_t)snprintf(want, sizeof want, "%s.", minor);
    const char *end = map + st.st_size;
    for (const char *at = map + 1; !version && (at = memmem(at, (size_t)(end - at), want, n));
         at++) {
        /* a text of its own, or the end of "Python 3.11.7" that the linker shares */
        if (at[-1] != '\0' && at[-1] != ' ')
            continue;
        const char *digits = at + n, *stop = digits;
        while (stop < end && *stop >= '0' && *stop <= '9')
            stop++;
        const char *tail = stop; /* "rc1", "a6+" */
        while (tail < end &&
               ((*tail >= 'a' && *tail <= 'z') || (*tail >= '0' && *tail <= '9') || *tail == '+'))
            tail++;
        if (stop > digits && tail < end && *tail == '\0' && tail - digits < 12)
            version = strndup(at, (size_t)(tail - at));
    }
    munmap(map, (size_t)st.st_size);
    return version;
}

char *host_python_version(const char *search_path)
{
    autofree char *found = NULL, *real = NULL, *minor = NULL;
    if (!host_find_python(search_path, &found, &real, &minor))
        return strdup("");
    if (!*minor)
        return strdup("");
    int dir = (int)(strrchr(real, '/') - real);
    char *version = version_in_headers(real, dir, minor);
    if (!version)
        version = version_in_file(real, minor);
    /* A thin interpreter has it in its library. */
    static const char *const libs[] = {"../lib", "../lib64", "../lib/x86_64-linux-gnu",
                                       "../lib/aarch64-linux-gnu"};
    for (size_t i = 0; !version && i < ARRAY_LEN(libs); i++) {
        char lib[PATH_MAX];
        if ((size_t)snprintf(lib, sizeof lib, "%.*s/%s/libpython%s.so.1.0", dir, real, libs[i],
                             minor) < sizeof lib)
            version = version_in_file(lib, minor);
    }
    return version ? version : strdup(minor);
}

/* --- info ------------------------------------------------------------------------------------- */

static json_t *limit_mb(const struct memory *m)
{
    return m->limit < 0 ? json_null() : json_integer(m->limit / MIB);
}

static json_t *quota_of(const struct cgroup *cg)
{
    return cg->cpu_quota < 0 ? json_null() : json_real(num_round(cg->cpu_quota, 2));
}

json_t *host_info(const struct host *h, struct abx_error *err)
{
    struct utsname names = {0};
    struct cgroup cg;
    struct memory m;
    struct disk disk, base;
    (void)uname(&names); /* can only fail on a bad address */
    cgroup_read(h->root, &cg);
    machine_memory(h->root, &m.total, &m.available);
    combine(&cg, &m);
    host_disk("/", &disk);
    host_disk(h->base_dir, &base);
    return json_make(
        err, "{s:s, s:s, s:i, s:I, s:I, s:f, s:f, s:s, s:s, s:s, s:o, s:o, s:s, s:f, s:f}", "os",
        names.sysname, "arch", names.machine, "cpu_count", host_cpus(cg.cpu_quota),
        "memory_total_mb", (json_int_t)(m.total / MIB), "memory_available_mb",
        (json_int_t)(m.available / MIB), "disk_total_gb", disk.total_gb, "disk_free_gb",
        disk.free_gb, "python_version", h->python_version, "hostname", names.nodename, "kernel",
        names.release, "cpu_quota", quota_of(&cg), "memory_limit_mb", limit_mb(&m), "base_dir",
        h->base_dir, "base_disk_total_gb", base.total_gb, "base_disk_free_gb", base.free_gb);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static void loads(const char *root, double ret[3])
{
    autobuf struct buf text = BUF_INIT;
    ret[0] = ret[1] = ret[2] = 0;
    if (file_read(root, "/proc/loadavg", 256, &text) < 0)
        return;
    char *save = NULL, *word = strtok_r(text.data, " ", &save);
    for (int i = 0; i < 3 && word; i++, word = strtok_r(NULL, " ", &save)) {
        double value;
        if (num_parse_double(word, &value) == 0 && value >= 0)
            ret[i] = num_round(value, 2);
    }
}

/* Ticks that a CPU worked, of the whole machine, in microseconds. */
static int64_t machine_busy_us(const char *root)
{
    autobuf struct buf text = BUF_INIT;
    if (file_read(root, "/proc/stat", 4 * KIB, &text) < 0 || strncmp(text.data, "cpu ", 4) != 0)
        return -1;
    int64_t busy = 0;
    char *at = text.data + 4;
    for (int i = 0; i < 8; i++) { /* user nice system idle iowait irq softirq steal */
        int64_t ticks = strtoll(at, &at, 10);
        if (i != 3 && i != 4)
            busy += ticks;
    }
    return busy * (1000000 / sysconf(_SC_CLK_TCK));
}

static json_t *cpu_percent(const char *root, const struct cgroup *cg, struct cpu_sample *last)
{
    /* Our group's figure is ours alone; the machine's counts where no group shows one. */
    bool own = cg->cpu_usage_us >= 0;
    struct cpu_sample now = {.at_ns = mono_ns(),
                             .busy_us = own ? cg->cpu_usage_us : machine_busy_us(root)};
    now.cpus = cg->cpu_quota > 0 ? cg->cpu_quota : host_cpus(-1);
    struct cpu_sample before = *last;
    *last = now;
    if (before.at_ns == 0 || before.busy_us < 0 || now.busy_us < before.busy_us ||
        now.at_ns <= before.at_ns)
        return json_null();
    double elapsed_us = (double)(now.at_ns - before.at_ns) / 1000;
    double percent = (double)(now.busy_us - before.busy_us) / elapsed_us / now.cpus * 100;
    return json_real(num_round(percent > 100 ? 100 : percent, 1));
}

static json_t *network(const char *root)
{
    json_t *list = json_array();
    autobuf struct buf text = BUF_INIT;
    if (file_read(root, "/proc/net/dev", 256 * KIB, &text) < 0)
        return list;
    char *save = NULL;
    for (char *line = strtok_r(text.data, "\n", &save);
         line && json_array_size(list) < MAX_INTERFACES; line = strtok_r(NULL, "\n", &save)) {
        char *colon = strchr(line, ':');
        unsigned long long n[16];
        if (!colon)
            continue;
        *colon = '\0';
        if (sscanf(colon + 1, "%llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu", &n[0],
                   &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &n[7], &n[8], &n[9], &n[10],
                   &n[11]) != 12)
            continue;
        json_array_append_new(
            list, json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name",
                            json_text(line + strspn(line, " ")), "rx_bytes", (json_int_t)n[0],
                            "rx_packets", (json_int_t)n[1], "rx_errors", (json_int_t)n[2],
                            "rx_dropped", (json_int_t)n[3], "tx_bytes", (json_int_t)n[8],
                            "tx_packets", (json_int_t)n[9], "tx_errors", (json_int_t)n[10],
                            "tx_dropped", (json_int_t)n[11]));
    }
    return list;
}

struct process {
    int pid;
    char name[64], state;
    int64_t rss_pages, ticks, threads;
};

/* /proc/PID/stat, proc(5): the name may hold blanks and brackets, so the last ")" ends it. */
static bool read_process(const char *root, const char *pid, struct process *ret)
{
    char path[64];
    autobuf struct buf text = BUF_INIT;
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    if (file_read(root, path, 2 * KIB, &text) < 0)
        return false;
    char *open = strchr(text.data, '('), *close = strrchr(text.data, ')');
    long long utime, stime, threads, rss;
    if (!open || !close || close < open ||
        sscanf(close + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld %*d %*d %*d %*d %lld %*d %*u "
               "%*u %lld",
               &ret->state, &utime, &stime, &threads, &rss) != 5)
        return false;
    ret->pid = (int)strtol(pid, NULL, 10);
    snprintf(ret->name, sizeof ret->name, "%.*s", (int)(close - open - 1), open + 1);
    ret->rss_pages = rss;
    ret->ticks = utime + stime;
    ret->threads = threads;
    return true;
}

/* Keeps the largest, largest first. */
static void keep_largest(struct process *top, size_t *n, const struct process *p)
{
    if (*n == TOP_PROCESSES && top[*n - 1].rss_pages >= p->rss_pages)
        return;
    size_t i = *n < TOP_PROCESSES ? (*n)++ : *n - 1;
    for (; i > 0 && top[i - 1].rss_pages < p->rss_pages; i--)
        top[i] = top[i - 1];
    top[i] = *p;
}

static json_t *processes(const char *root, int64_t *ret_count)
{
    struct process top[TOP_PROCESSES] = {0}, p;
    size_t n = 0;
    char path[PATH_MAX];
    *ret_count = 0;
    json_t *list = json_array();
    if ((size_t)snprintf(path, sizeof path, "%s/proc", root) >= sizeof path)
        return list;
    DIR *dir = opendir(path);
    if (!dir)
        return list;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' ||
            !read_process(root, entry->d_name, &p))
            continue;
        (*ret_count)++;
        keep_largest(top, &n, &p);
    }
    closedir(dir);

    double page = (double)sysconf(_SC_PAGESIZE), tick = (double)sysconf(_SC_CLK_TCK);
    for (size_t i = 0; i < n; i++) {
        char state[2] = {top[i].state, '\0'};
        json_array_append_new(list,
                              json_pack("{s:i, s:o, s:s, s:f, s:f, s:I}", "pid", top[i].pid, "name",
                                        json_text(top[i].name), "state", state, "memory_mb",
                                        num_round((double)top[i].rss_pages * page / MIB, 1),
                                        "cpu_seconds", num_round((double)top[i].ticks / tick, 2),
                                        "threads", (json_int_t)top[i].threads));
    }
    return list;
}

/* How long the sandbox's first process lives: the container, or the machine. */
static double sandbox_uptime(const char *root)
{
    autobuf struct buf up = BUF_INIT, stat = BUF_INIT;
    if (file_read(root, "/proc/uptime", 256, &up) < 0 ||
        file_read(root, "/proc/1/stat", 2 * KIB, &stat) < 0)
        return 0;
    double uptime = strtod(up.data, NULL);
    char *close = strrchr(stat.data, ')');
    unsigned long long start = 0;
    if (!close ||
        sscanf(close + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %*d %*d %llu",
               &start) != 1)
        return 0;
    double age = uptime - (double)start / (double)sysconf(_SC_CLK_TCK);
    return age > 0 ? num_round(age, 1) : 0;
}

json_t *host_metrics(const struct host *h, struct cpu_sample *last, struct abx_error *err)
{
    double load[3];
    struct cgroup cg;
    struct memory m;
    struct disk disk, base;
    int64_t count;
    loads(h->root, load);
    cgroup_read(h->root, &cg);
    machine_memory(h->root, &m.total, &m.available);
    combine(&cg, &m);
    host_disk("/", &disk);
    host_disk(h->base_dir, &base);
    json_t *list = processes(h->root, &count);
    int64_t used = m.used / MIB, total = m.total / MIB;
    double percent = total > 0 ? num_round((double)used / (double)total * 100, 1) : 0;
    return json_make(
        err,
        "{s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:o, s:i, s:o, s:o, s:f, s:f, s:f, "
        "s:f, s:I, s:o, s:o}",
        "cpu_load_1m", load[0], "cpu_load_5m", load[1], "cpu_load_15m", load[2], "memory_used_mb",
        (json_int_t)used, "memory_total_mb", (json_int_t)total, "memory_percent", percent,
        "disk_used_gb", disk.used_gb, "disk_total_gb", disk.total_gb, "disk_percent", disk.percent,
        "disk_free_gb", disk.free_gb, "cpu_percent", cpu_percent(h->root, &cg, last), "cpu_count",
        host_cpus(cg.cpu_quota), "cpu_quota", quota_of(&cg), "memory_limit_mb", limit_mb(&m),
        "base_disk_used_gb", base.used_gb, "base_disk_total_gb", base.total_gb, "base_disk_percent",
        base.percent, "sandbox_uptime_seconds", sandbox_uptime(h->root), "process_count",
        (json_int_t)count, "processes", list, "network", network(h->root));
}
