#include "cli/cli.h"

#include "base/num.h"
#include "base/own.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static const char help[] = "usage: abx-server healthcheck [--host HOST] [--port PORT] [--timeout SECONDS]\n"
                           "\n"
                           "Asks GET /health. Exit status 0 when the answer is 200, else 1. Prints nothing.\n"
                           "\n"
                           "  --host HOST        where the server listens (127.0.0.1)\n"
                           "  --port PORT        its HTTP port (9000)\n"
                           "  --timeout SECONDS  for the whole check (2.0)\n";

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static bool wait_for(int fd, short events, double until)
{
    double left = until - now();
    struct pollfd p = {.fd = fd, .events = events};
    return left > 0 && poll(&p, 1, (int)(left * 1000) + 1) > 0;
}

static bool ask(const struct addrinfo *at, double until)
{
    autoclose int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    if (connect(fd, at->ai_addr, at->ai_addrlen) < 0) {
        int error = 0;
        socklen_t len = sizeof error;
        if (errno != EINPROGRESS || !wait_for(fd, POLLOUT, until) ||
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error != 0)
            return false;
    }
    static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) != (ssize_t)(sizeof request - 1))
        return false;
    char answer[64];
    size_t have = 0;
    while (have < 12) { /* "HTTP/1.1 200" */
        if (!wait_for(fd, POLLIN, until))
            return false;
        ssize_t n = recv(fd, answer + have, sizeof answer - 1 - have, 0);
        if (n <= 0)
            return false;
        have += (size_t)n;
    }
    answer[have] = '\0';
    return strncmp(answer, "HTTP/1.", 7) == 0 && strncmp(answer + 8, " 200", 4) == 0;
}

int cli_healthcheck(int argc, char **argv)
{
    static const struct option options[] = {{"host", required_argument, NULL, 'H'},
                                            {"port", required_argument, NULL, 'p'},
                                            {"timeout", required_argument, NULL, 't'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *host = "127.0.0.1", *port = "9000";
    double timeout = 2.0;
    for (int c; (c = cli_option(argc, argv, options, "abx-server healthcheck [OPTIONS]")) != -1;) {
        switch (c) {
        case 'H':
            host = optarg;
            break;
        case 'p': {
            int64_t n;
            port = optarg;
            if (!cli_is_digits(port + (*port == '-')) || num_parse(port, INT64_MIN, INT64_MAX, &n) < 0) {
                fprintf(stderr, "abx-server: --port must be a number, not '%s'\n", port);
                return EXIT_USAGE;
            }
            if (n < 1 || n > 65535)
                return EXIT_FAILED; /* nobody can be up there */
            break;
        }
        case 't':
            if (strspn(optarg, "+ \t\r\n") > 0 || strpbrk(optarg, " \t\r\n") || num_parse_double(optarg, &timeout) < 0) {
                fprintf(stderr, "abx-server: --timeout must be a number of seconds, not '%s'\n", optarg);
                return EXIT_USAGE;
            }
            break;
        case 'h':
            fputs(help, stdout);
            return EXIT_OK;
        default:
            return EXIT_USAGE;
        }
    }
    double until = now() + timeout;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return EXIT_FAILED;
    bool up = false;
    for (struct addrinfo *at = found; at && !up; at = at->ai_next)
        up = ask(at, until);
    freeaddrinfo(found);
    return up ? EXIT_OK : EXIT_FAILED;
}
