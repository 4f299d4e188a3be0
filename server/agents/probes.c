/* Which runtimes are installed: found on the children's PATH and able to say their version. What
 * was learnt is kept by path and modification time, so `--version` (a second with node) runs once
 * per installation. */
#include "agents/agents.h"

#include "base/own.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_ADAPTERS 8
#define PROBE_MS 10000
#define KEEP 4096
#define RETRY_MS 30000

struct probe {
    struct probes *p;
    const struct adapter *ad;
    struct runtime_state known;
    int64_t mtime_ns;  /* of known.path */
    uint64_t asked_ms; /* when it was learnt: what can't start is asked again after a while */
    /* found by the worker */
    char *path;
    int64_t found_ns;
    /* a run under way */
    struct child *child;
    int fd, given, cwd;
    struct io io;
    bool reading, running, exited;
    int status;
    struct buf out;
    struct timer timeout;
};

struct ask {
    struct ask *next;
    void (*done)(void *data, const struct runtime_state *states, size_t n);
    void *data;
};

struct probes {
    struct agents *ag;
    struct probe all[MAX_ADAPTERS];
    struct ask *asks;
    char *search, *home;
    char **envp;
    bool busy;
    int running;
};

struct probes *probes_new(struct agents *ag)
{
    struct probes *p = calloc(1, sizeof(*p));
    if (p)
        p->ag = ag;
    return p;
}

static void probe_clear(struct probe *b)
{
    if (b->reading)
        io_done(&b->io);
    if (b->running)
        timer_done(&b->timeout);
    if (b->running && b->fd >= 0)
        close(b->fd);
    child_free(b->child, true);
    buf_done(&b->out);
    free(b->path);
    b->child = NULL;
    b->path = NULL;
    b->reading = b->running = b->exited = false;
}

void probes_free(struct probes *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < adapter_count; i++)
        probe_clear(&p->all[i]);
    while (p->asks) {
        struct ask *next = p->asks->next;
        free(p->asks);
        p->asks = next;
    }
    free(p->search);
    free(p->home);
    free(p->envp);
    free(p);
}

static void answer(struct probes *p)
{
    struct runtime_state states[MAX_ADAPTERS];
    for (size_t i = 0; i < adapter_count; i++) {
        states[i] = p->all[i].known;
        states[i].credentials = false;
        for (const char *const *n = adapters[i]->auth_env; *n; n++) {
            const char *v = env_get(p->ag->d.env, *n);
            states[i].credentials = states[i].credentials || (v && *v);
        }
        if (!adapters[i]->binary)
            states[i].installed = true;
    }
    struct ask *asks = p->asks;
    p->asks = NULL;
    p->busy = false;
    while (asks) {
        struct ask *next = asks->next;
        asks->done(asks->data, states, adapter_count);
        free(asks);
        asks = next;
    }
}

static void settle(struct probe *b)
{
    if (!b->exited || b->reading)
        return;
    struct probes *p = b->p;
    struct runtime_state *k = &b->known;
    *k = (struct runtime_state){0};
    k->installed = child_status_code(b->status) == 0;
    if (k->installed) {
        snprintf(k->path, sizeof(k->path), "%s", b->path);
        autofree char *text = utf8_replace(b->out.data ? b->out.data : "", b->out.len, NULL);
        char *line = text;
        while (line && (*line == '\n' || *line == '\r' || *line == ' '))
            line++;
        if (line) {
            line[strcspn(line, "\r\n")] = '\0';
            snprintf(k->version, sizeof(k->version), "%.*s",
                     (int)utf8_floor(line, strlen(line) < 200 ? strlen(line) : 200), line);
        }
    }
    b->mtime_ns = b->found_ns;
    b->asked_ms = mono_ms();
    snprintf(k->path, sizeof(k->path), "%s",
             b->path); /* also of a broken one: it is not asked again until it changes */
    probe_clear(b);
    if (--p->running == 0)
        answer(p);
}

static void on_output(void *data, int events)
{
    struct probe *b = data;
    char chunk[1024];
    ssize_t n = read(b->fd, chunk, sizeof(chunk));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        if (b->out.len < KEEP)
            buf_add(&b->out, chunk, (size_t)n);
        return;
    }
    io_done(&b->io);
    b->reading = false;
    settle(b);
}

static void on_timeout(void *data)
{
    struct probe *b = data;
    if (b->child)
        child_kill_group(b->child, SIGKILL);
    if (b->reading) {
        io_done(&b->io);
        b->reading = false;
    }
    settle(b);
}

static void started(void *owner, struct child *child, int sys)
{
    struct probe *b = owner;
    close(take_fd(&b->given));
    if (sys) {
        b->exited = true;
        b->status = 127 << 8;
        settle(b);
        return;
    }
    b->child = child;
    timer_start(&b->timeout, PROBE_MS);
    b->reading = io_init(&b->io, b->p->ag->d.loop, b->fd, on_output, b) == 0;
    if (b->reading)
        io_want(&b->io, UV_READABLE);
}

static void ended(void *owner, struct child *child, int status)
{
    struct probe *b = owner;
    b->exited = true;
    b->status = status;
    settle(b);
}

static void run(struct probe *b)
{
    struct probes *p = b->p;
    int fds[2];
    b->exited = false;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return;
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    b->fd = fds[0];
    b->given = fds[1];
    timer_init(&b->timeout, p->ag->d.loop, on_timeout, b);
    char name[64];
    snprintf(name, sizeof(name), "%s", b->ad->binary);
    char *const argv[] = {name, "--version", NULL};
    static const struct child_ops ops = {.started = started, .exited = ended};
    struct spawn_opts opts = {.file = b->path,
                              .argv = argv,
                              .envp = p->envp,
                              .cwd_fd = -1,
                              .fds = {-1, b->given, b->given},
                              .uid = -1,
                              .gid = -1,
                              .helper = true,
                              .sweep = true};
    struct abx_error err;
    b->running = true;
    if (spawn_start(p->ag->d.spawner, &opts, &ops, b, &err) < 0) {
        close(take_fd(&b->given));
        probe_clear(b);
        return;
    }
    p->running++;
}

static void look(void *data)
{
    struct probes *p = data;
    for (size_t i = 0; i < adapter_count; i++) {
        struct probe *b = &p->all[i];
        b->p = p;
        b->ad = adapters[i];
        free(b->path);
        b->path = b->ad->binary ? runtime_find(p->search, b->ad->binary) : NULL;
        struct stat st;
        b->found_ns = b->path && stat(b->path, &st) == 0
                          ? st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec
                          : 0;
    }
}

static void looked(void *data)
{
    struct probes *p = data;
    p->running = 1; /* so that none of those below answers before all are started */
    for (size_t i = 0; i < adapter_count; i++) {
        struct probe *b = &p->all[i];
        if (!b->path) {
            b->known = (struct runtime_state){0};
            b->mtime_ns = 0;
        } else if (strcmp(b->path, b->known.path) != 0 || b->found_ns != b->mtime_ns ||
                   (!b->known.installed && mono_ms() - b->asked_ms > RETRY_MS)) {
            run(b);
        }
    }
    if (--p->running == 0)
        answer(p);
}

void probes_ask(struct probes *p,
                void (*done)(void *data, const struct runtime_state *states, size_t n), void *data)
{
    struct ask *a = calloc(1, sizeof(*a));
    if (!a) {
        struct runtime_state none[MAX_ADAPTERS] = {0};
        done(data, none, adapter_count);
        return;
    }
    a->done = done;
    a->data = data;
    a->next = p->asks;
    p->asks = a;
    if (p->busy)
        return;
    p->busy = true;
    struct agents *ag = p->ag;
    const char *path = env_get(ag->d.env, "PATH"), *home = env_get(ag->d.env, "HOME");
    struct buf search = BUF_INIT;
    buf_adds(&search,
             path && *path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    for (size_t i = 0; ag->set.install && i < adapter_count; i++)
        buf_addf(&search, ":%s/cli/%s/node_modules/.bin", ag->set.state_dir, adapters[i]->name);
    free(p->search);
    p->search = buf_take(&search, NULL);
    free(p->envp);
    size_t size = (p->search ? strlen(p->search) : 0) + (home ? strlen(home) : 1) + 64;
    p->envp = malloc(4 * sizeof(char *) + size);
    if (p->envp && p->search) {
        char *at = (char *)(p->envp + 4);
        p->envp[0] = at;
        at += sprintf(at, "PATH=%s", p->search) + 1; /* sized above */
        p->envp[1] = at;
        at += sprintf(at, "HOME=%s", home ? home : "/") + 1;
        p->envp[2] = at;
        sprintf(at, "NO_COLOR=1");
        p->envp[3] = NULL;
    }
    if (!p->envp || !p->search || loop_work(ag->d.loop, WORK_SHORT, look, looked, p) < 0)
        answer(p);
}
