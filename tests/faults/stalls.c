/* Preloaded into a server: names that end in ".stalled" are looked up for a minute, and so long an fsync takes when
 * STALL_FSYNC is set, as with a name server or a file system that has gone. */

#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STALL_S 60

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
    static const char suffix[] = ".stalled";
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    size_t len = host ? strlen(host) : 0;
    if (len >= sizeof suffix && strcmp(host + len - sizeof suffix + 1, suffix) == 0)
        sleep(STALL_S);
    return real(host, service, hints, list);
}

int fsync(int fd)
{
    if (getenv("STALL_FSYNC"))
        sleep(STALL_S);
    return fdatasync(fd);
}
