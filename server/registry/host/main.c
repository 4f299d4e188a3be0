#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* abx-command-host FD MEMORY_BYTES MAX_THREADS FILE: started by the server, never by hand. FD is the
 * protocol's socket; stdout and stderr are the log. */

static void ignore(int sig)
{
    (void)sig;
}

static uint64_t number(const char *text)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    return errno || *end || end == text ? 0 : n;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "abx-command-host is started by abx-server\n");
        return 2;
    }
    struct host_options opt = {.fd = (int)number(argv[1]),
                               .memory_bytes = number(argv[2]),
                               .max_threads = (uint32_t)number(argv[3])};
    if (opt.fd < 3 || fcntl(opt.fd, F_SETFD, FD_CLOEXEC) < 0)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* what commands print is a log: line by line */
    /* A handler, unlike SIG_IGN, is not inherited by what a command starts. */
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = ignore}, NULL);
    /* The server's stop: it ends us when our last call is done, or kills us. */
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = ignore, .sa_flags = SA_RESTART}, NULL);
    /* Children of ended children come to us, so that none is lost. */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);

    static struct entries entries;
    struct wire_buf first = {0};
    if (host_load(argv[4], &entries, &opt.keep_children, &first) < 0) {
        for (size_t at = 0; at < first.len;) {
            ssize_t n = write(opt.fd, first.data + at, first.len - at);
            if (n <= 0)
                break;
            at += (size_t)n;
        }
        return 1;
    }
    return pool_run(&opt, &entries, &first);
}
