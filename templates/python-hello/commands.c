/* The commands of this template: POST /commands/NAME runs one. abx/commands.h documents all that it offers. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include <abx/commands.h>

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

ABX_COMMAND(hello, "Say hello.", ABX_STRING(name, .fallback = "World"))
{
    return abx_return_string(call, "Hello, %s!", abx_string(call, "name"));
}

/* Every type of argument at once; the server has checked and converted them before this runs. */
ABX_COMMAND(invite, "Invite guests, and count tables and cost.",
            ABX_STRINGS(guests, .description = "who comes"),
            ABX_INTEGER(seats, .fallback = "4", .description = "seats of one table"),
            ABX_FLOAT(price, .fallback = "0", .description = "price of one seat"),
            ABX_BOOLEAN(formal, .fallback = "false"),
            ABX_STRING(note, .optional = 1))
{
    const char *const *guests;
    size_t n = abx_strings(call, "guests", &guests);
    int64_t seats = abx_integer(call, "seats");
    if (seats < 1)
        return abx_raise(call, "ValueError", "a table has at least one seat, not %lld", (long long)seats);

    abx_begin_object(call);
    abx_key(call, "letters");
    abx_begin_array(call);
    for (size_t i = 0; i < n; i++) {
        abx_begin_object(call);
        abx_key(call, "to");
        abx_put_string(call, guests[i]);
        abx_key(call, "opening");
        abx_put_string(call, abx_boolean(call, "formal") ? "Dear guest" : "Hi");
        abx_end(call);
    }
    abx_end(call);
    abx_key(call, "tables");
    abx_put_integer(call, (int64_t)n / seats + ((int64_t)n % seats != 0));
    abx_key(call, "cost");
    abx_put_float(call, (double)n * abx_float(call, "price"));
    abx_key(call, "note");
    abx_put_string(call, abx_string(call, "note")); /* NULL, and so null, when the caller left it out */
    return abx_end(call);
}

/* GET /countdown/{from}: an event stream, which ends when its reader has left. */
ABX_SSE_ROUTE(countdown, "GET", "/countdown/{from}", "commands", "Count down to zero, ten steps a second.")
{
    const char *from = abx_param(call, "from");
    size_t digits = strspn(from, "0123456789");
    if (digits < 1 || digits > 3 || from[digits])
        return abx_deny(call, 400, "bad_number", NULL, "from must be a number from 0 to 999");
    for (int n = atoi(from); n > 0; n--)
        if (abx_event(call, "tick", "{\"left\": %d}", n) < 0 || abx_sleep_ms(call, 100))
            return 0;
    return abx_event(call, "done", "{}");
}

static int run_python(struct abx_call *call, const char *function);

/* What is easier in Python stays in Python: a function of helper.py. */
ABX_COMMAND(describe, "Count the words of a text (in Python).",
            ABX_STRING(text), ABX_INTEGER(top, .fallback = "3"), ABX_TIMEOUT(60))
{
    return run_python(call, "describe");
}

/* --- how C calls Python ---------------------------------------------------------------------------------- */

#define MAX_ANSWER (1 << 20)

/* helper.py stands beside commands.so, or beside this source when the server compiles it. */
static int find_helper(char path[PATH_MAX])
{
    Dl_info here;
    const char *places[] = {dladdr((void *)find_helper, &here) ? here.dli_fname : "", __FILE__};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *slash = strrchr(places[i], '/');
        int folder = slash ? (int)(slash - places[i]) : 1;
        if (snprintf(path, PATH_MAX, "%.*s/helper.py", folder, slash ? places[i] : ".") < PATH_MAX &&
            access(path, R_OK) == 0)
            return 0;
    }
    return -1;
}

/* One socket is the child's standard input and output: the arguments go in, then our end says that it is all. */
static pid_t start_python(const char *helper, const char *function, int *ret_socket)
{
    extern char **environ;
    int ends[2];
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    char *argv[] = {"python3", (char *)helper, (char *)function, NULL};
    int error = posix_spawnp(&pid, "python3", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error) {
        close(ends[0]);
        errno = error;
        return -1;
    }
    *ret_socket = ends[0];
    return pid;
}

/* Sends and reads side by side, so that neither end waits for the other. The answer's length; -1 with *why when
 * the caller has left or the answer is too long. */
static ssize_t talk(struct abx_call *call, int s, const char *args, size_t len, char *answer, const char **why)
{
    size_t sent = 0, got = 0;
    for (;;) {
        struct pollfd p = {.fd = s, .events = (short)(sent < len ? POLLIN | POLLOUT : POLLIN)};
        poll(&p, 1, 100);
        if (abx_cancelled(call)) {
            *why = "nobody waits for the answer";
            return -1;
        }
        if (sent < len && (p.revents & POLLOUT)) {
            ssize_t n = send(s, args + sent, len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n > 0)
                sent += (size_t)n;
            else if (n < 0 && errno != EAGAIN && errno != EINTR)
                sent = len; /* the helper does not want the rest */
            if (sent == len)
                shutdown(s, SHUT_WR);
        }
        if (p.revents & (POLLIN | POLLHUP | POLLERR)) {
            ssize_t n = recv(s, answer + got, MAX_ANSWER - got, MSG_DONTWAIT);
            if (n == 0 || (n < 0 && errno == ECONNRESET))
                return (ssize_t)got;
            if (n > 0)
                got += (size_t)n;
            if (got == MAX_ANSWER) {
                *why = "it answers more than 1 MiB";
                return -1;
            }
        }
    }
}

/* Runs a function of helper.py with the call's arguments (JSON on its standard input); the JSON that it prints is
 * the call's result. When it fails it exits with 1 and prints "Type: message", which becomes the call's error. */
static int run_python(struct abx_call *call, const char *function)
{
    char helper[PATH_MAX];
    const char *why = NULL;
    size_t len;
    const char *args = abx_args_json(call, &len);
    int s, status = 0;
    if (find_helper(helper) < 0)
        return abx_raise(call, "FileNotFoundError", "helper.py is not beside the commands");
    char *answer = malloc(MAX_ANSWER + 1);
    if (!args || !answer) {
        free(answer);
        return abx_raise(call, "MemoryError", "out of memory");
    }
    pid_t pid = start_python(helper, function, &s);
    if (pid < 0) {
        free(answer);
        return abx_raise(call, "OSError", "python3 can't be started: %s", strerror(errno));
    }
    ssize_t n = talk(call, s, args, len, answer, &why);
    if (n < 0)
        kill(pid, SIGKILL);
    close(s);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;

    int result;
    if (n < 0) {
        result = abx_raise(call, "RuntimeError", "helper.py was ended: %s", why);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        result = abx_return_json_len(call, answer, (size_t)n);
    } else {
        answer[n] = '\0';
        answer[strcspn(answer, "\n")] = '\0';
        char *message = strstr(answer, ": ");
        if (message) {
            *message = '\0';
            result = abx_raise(call, answer, "%s", message + 2);
        } else {
            result = abx_raise(call, "RuntimeError", "helper.py ended with status %d",
                               WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        }
    }
    free(answer);
    return result;
}
