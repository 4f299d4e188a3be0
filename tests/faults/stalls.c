/* Preloaded into a server: names that end in ".stalled" are looked up for a minute, so are files (readlink, stat, open)
 * below a directory whose name ends so, and an fsync or fdatasync takes
 * STALL_SYNC_MS longer while the file STALL_SYNC_WHILE exists, as with a name server or a disk that has gone or is slow.
 * All names are noted in the file STALL_NAMES. */

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STALL_S 60

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
    static const char suffix[] = ".stalled";
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    size_t len = host ? strlen(host) : 0;
    const char *notes = getenv("STALL_NAMES");
    FILE *f = notes && host ? fopen(notes, "a") : NULL;
    if (f) {
        fprintf(f, "%s\n", host);
        fclose(f);
    }
    if (len >= sizeof suffix && strcmp(host + len - sizeof suffix + 1, suffix) == 0)
        sleep(STALL_S);
    return real(host, service, hints, list);
}

static void path_late(const char *path)
{
    if (path && strstr(path, ".stalled"))
        sleep(STALL_S);
}

ssize_t readlink(const char *path, char *to, size_t size)
{
    path_late(path);
    return syscall(SYS_readlinkat, AT_FDCWD, path, to, size);
}

int stat(const char *path, struct stat *st)
{
    path_late(path);
    return fstatat(AT_FDCWD, path, st, 0);
}

int lstat(const char *path, struct stat *st)
{
    path_late(path);
    return fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    path_late(path);
    return openat(AT_FDCWD, path, flags, mode);
}

static long sync_late(long number, int fd)
{
    const char *text = getenv("STALL_SYNC_MS"), *file = getenv("STALL_SYNC_WHILE");
    long ms = text && file && access(file, F_OK) == 0 ? strtol(text, NULL, 10) : 0;
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    return syscall(number, fd);
}

int fsync(int fd)
{
    return (int)sync_late(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return (int)sync_late(SYS_fdatasync, fd);
}
