/* Commands that misbehave, for tests/faults/test_commands_host.py. */

#include <abx/commands.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

ABX_COMMAND(hello, "Say hello.", ABX_STRING(name, .fallback = "World"))
{
    return abx_return_string(call, "Hello, %s!", abx_string(call, "name"));
}

ABX_COMMAND(pid, "The host's process id.")
{
    return abx_return_integer(call, getpid());
}

ABX_COMMAND(count, "State lasts between calls.")
{
    static atomic_llong n;
    return abx_return_integer(call, atomic_fetch_add(&n, 1) + 1);
}

ABX_COMMAND(aborts, "Aborts.")
{
    abort();
}

ABX_COMMAND(segfaults, "Writes through a null pointer.")
{
    *(volatile int *)0 = 1;
    return 0;
}

ABX_COMMAND(overflows, "Recurses for ever.")
{
    volatile char frame[4096];
    frame[0] = 1;
    int r = abx_run_overflows(call);
    return r + frame[0];
}

ABX_COMMAND(exits, "Exits.", ABX_INTEGER(status, .fallback = "3"))
{
    exit((int)abx_integer(call, "status"));
}

ABX_COMMAND(hangs, "Never returns.", ABX_TIMEOUT(0.3))
{
    for (;;)
        pause();
}

ABX_COMMAND(spins, "Never returns, and works.", ABX_TIMEOUT(0.3))
{
    for (volatile unsigned i = 0;; i++)
        ;
}

ABX_COMMAND(patient, "Waits for its caller to leave.", ABX_STRING(file))
{
    char path[4096];
    snprintf(path, sizeof(path), "%s", abx_string(call, "file"));
    abx_sleep_ms(call, 30000);
    if (abx_cancelled(call))
        close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    return abx_return_boolean(call, abx_cancelled(call));
}

ABX_COMMAND(floods, "Prints.", ABX_INTEGER(bytes))
{
    char line[1024];
    memset(line, 'f', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (int64_t left = abx_integer(call, "bytes"); left > 0; left -= (int64_t)sizeof(line))
        fwrite(line, 1, sizeof(line), stdout);
    fflush(stdout);
    return abx_return_string(call, "printed");
}

ABX_COMMAND(logs, "Logs.", ABX_INTEGER(lines))
{
    for (int64_t i = 0; i < abx_integer(call, "lines"); i++)
        abx_log(call, ABX_LOG_WARN, "line %lld of a flood", (long long)i);
    return abx_return_null(call);
}

ABX_COMMAND(leaks_fd, "Leaks a descriptor.")
{
    return abx_return_integer(call, open("/dev/null", O_RDONLY));
}

ABX_COMMAND(eats, "Takes memory and keeps it.", ABX_INTEGER(mib))
{
    size_t n = (size_t)abx_integer(call, "mib") << 20;
    char *p = malloc(n);
    if (!p)
        return abx_raise(call, "MemoryError", "no");
    memset(p, 1, n);
    return abx_return_boolean(call, p[n / 2]);
}

ABX_COMMAND(forks, "Leaves a child.", ABX_BOOLEAN(own_session, .fallback = "false"))
{
    pid_t pid = fork();
    if (pid == 0) {
        if (abx_boolean(call, "own_session"))
            setsid();
        for (;;)
            pause();
    }
    return abx_return_integer(call, pid);
}

ABX_COMMAND(forks_and_returns, "The child comes back into the host.")
{
    pid_t pid = fork();
    return abx_return_string(call, pid == 0 ? "child" : "parent");
}

ABX_COMMAND(daemonizes, "Leaves a grandchild.")
{
    return abx_return_integer(call, system("(setsid sleep 1000 &) >/dev/null 2>&1 </dev/null"));
}

ABX_COMMAND(bad_json, "Returns what is not JSON.", ABX_STRING(text))
{
    return abx_return_json(call, abx_string(call, "text"));
}

ABX_COMMAND(unfinished, "Ends no object.")
{
    abx_begin_object(call);
    return 0;
}

ABX_COMMAND(keyless, "A value without a key.")
{
    abx_begin_object(call);
    abx_put_integer(call, 1);
    return abx_end(call);
}

ABX_COMMAND(infinite, "A number that JSON lacks.")
{
    return abx_return_float(call, 1.0 / 0.0);
}

ABX_COMMAND(says_nothing, "Fails without a word.")
{
    return -1;
}

ABX_COMMAND(denies, "Refuses.", ABX_INTEGER(status, .fallback = "409"))
{
    return abx_deny(call, (int)abx_integer(call, "status"), "my_code", "{\"extra_field\": [1], \"type\": \"Hidden\"}", "my message");
}

ABX_COMMAND(needs, "Asks for a scope.")
{
    if (abx_require_scope(call, "deploy:prod"))
        return -1;
    return abx_return_string(call, "%s", abx_identity(call));
}

ABX_COMMAND(resolves, "Asks for a path.", ABX_STRING(path))
{
    const char *path;
    if (abx_resolve(call, abx_string(call, "path"), ABX_WRITE, &path))
        return -1;
    return abx_return_string(call, "%s", path);
}

ABX_COMMAND(args, "All arguments as JSON.", ABX_STRING(s), ABX_INTEGER(i), ABX_FLOAT(f), ABX_BOOLEAN(b), ABX_STRINGS(l),
            ABX_STRING(o, .optional = 1))
{
    return abx_return_json(call, abx_args_json(call, NULL));
}

ABX_COMMAND(where, "What a call knows.")
{
    abx_begin_object(call);
    abx_key(call, "identity");
    abx_put_string(call, abx_identity(call));
    abx_key(call, "endpoint");
    abx_put_string(call, abx_endpoint(call));
    abx_key(call, "name");
    abx_put_string(call, abx_name(call));
    abx_key(call, "base_dir");
    abx_put_string(call, abx_base_dir(call));
    abx_key(call, "token");
    abx_put_string(call, getenv("ABX_SERVER_TOKEN"));
    abx_key(call, "limit");
    abx_put_float(call, abx_limit(call, "rate_per_minute", -1));
    return abx_end(call);
}

ABX_COMMAND(steps, "Streams.", ABX_STREAMS, ABX_INTEGER(n), ABX_BOOLEAN(fails, .fallback = "false"))
{
    for (int64_t i = 0; i < abx_integer(call, "n"); i++)
        if (abx_event(call, "step", "{\"i\": %lld}", (long long)i))
            return -1;
    if (abx_boolean(call, "fails"))
        return abx_raise(call, "StepError", "it stumbled");
    return abx_return_integer(call, abx_integer(call, "n"));
}

static atomic_llong sent;

ABX_SSE_ROUTE(firehose, "GET", "/firehose", "commands", "Events without end.")
{
    char text[1026];
    memset(text, 'x', sizeof(text));
    text[0] = text[1024] = '"';
    while (abx_event_json_len(call, "x", text, 1025) == 0)
        atomic_fetch_add(&sent, 1);
    return 0;
}

ABX_COMMAND(fired, "How many of them were taken.")
{
    return abx_return_integer(call, atomic_load(&sent));
}

ABX_ROUTE(plain, "POST", "/plain/{what}", "commands", "Another type than JSON.")
{
    return abx_return_bytes(call, "text/plain; charset=utf-8", abx_string(call, "text"), strlen(abx_string(call, "text")));
}

ABX_ROUTE(bad_header, "GET", "/bad-header", "commands", "Splits the answer.")
{
    abx_reply_header(call, "X-A", "b\r\nSet-Cookie: x");
    return abx_return_null(call);
}

ABX_ROUTE(bad_status, "GET", "/bad-status", "commands", "No such status.")
{
    abx_status(call, 99);
    return abx_return_null(call);
}

ABX_ROUTE(headers, "GET", "/headers", "commands", "What a route sees.")
{
    abx_begin_object(call);
    abx_key(call, "agent");
    abx_put_string(call, abx_header(call, "user-agent"));
    abx_key(call, "token");
    abx_put_string(call, abx_header(call, "X-Access-Token"));
    abx_key(call, "path");
    abx_put_string(call, abx_path(call));
    return abx_end(call);
}

static int say_user(struct abx_call *call)
{
    return abx_return_string(call, "%s %s", (const char *)abx_user(call), abx_args_json(call, NULL));
}

ABX_LOAD(late)
{
    static const struct abx_arg args[] = {ABX_ARG(ABX_TYPE_STRING, "any name", .fallback = "v"), {.type = 0}};
    char name[32];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "late %d", i);
        if (abx_register_command(loader, &(struct abx_command){.name = name, .args = args, .run = say_user, .user = "user"}))
            return -1;
    }
    return 0;
}
