#include "system/self.h"

#include "base/buf.h"
#include "system/files.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux 6.2 and later tell the number as the directory's size; before, it is counted. */
static int64_t count_fds(void)
{
    struct stat st;
    if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0)
        return st.st_size;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return -1;
    int64_t n = -1; /* that of the directory itself */
    for (const struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

void self_read(struct self *ret)
{
    *ret = (struct self){.open_fds = count_fds(), .max_fds = -1, .resident = -1, .virtual_bytes = -1, .threads = -1};
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        ret->max_fds = files.rlim_cur > INT64_MAX ? INT64_MAX : (int64_t)files.rlim_cur;

    /* proc(5): the name in parentheses may hold anything, so fields count from its end. */
    autobuf struct buf text = BUF_INIT, boot = BUF_INIT;
    if (file_read("", "/proc/self/stat", 4096, &text) < 0)
        return;
    const char *rest = strrchr(text.data, ')');
    unsigned long long user, system, threads, start, size, pages;
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %llu %*d %llu %llu %llu",
                        &user, &system, &threads, &start, &size, &pages) != 6)
        return;
    double hz = (double)sysconf(_SC_CLK_TCK);
    ret->cpu_seconds = (double)(user + system) / hz;
    ret->threads = (int64_t)threads;
    ret->virtual_bytes = (int64_t)size;
    ret->resident = (int64_t)pages * sysconf(_SC_PAGESIZE);
    if (file_read("", "/proc/stat", 1024 * 1024, &boot) < 0)
        return;
    const char *line = strstr(boot.data, "\nbtime ");
    int64_t booted = line ? text_number(line + 1, "btime") : -1;
    if (booted > 0)
        ret->started_at = (double)booted + (double)start / hz;
}
