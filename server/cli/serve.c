#include "cli/cli.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/num.h"
#include "base/own.h"
#include "base/thread.h"
#include "routes/app.h"
#include "routes/commands.h"
#include "routes/table.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define STOP_GRACE_MS 3500  /* connections; the whole stop stays below 5 s */
#define CHILD_GRACE_MS 1000 /* between TERM and KILL */
#define STOP_LIMIT_MS 4600  /* then the process ends whatever is still going on */
#define LIMIT_STACK (64 * 1024)
#define MAX_DESCRIPTORS 65536
#define HEAP_STEP (1024 * 1024)

extern char **environ;

static const char usage[] = "abx-server serve [--host HOST] [--port PORT] [--commands FILE] [OPTIONS]";
static const char help[] =
    "usage: abx-server serve [OPTIONS]\n"
    "\n"
    "Runs the server until SIGTERM or SIGINT.\n"
    "\n"
    "  --host HOST       address to listen on (0.0.0.0; \"::\" takes IPv4 and IPv6)\n"
    "  --port PORT       HTTP port (9000)\n"
    "  --pty-port PORT   terminal WebSocket port (ABX_PTY_PORT, else 9001)\n"
    "  --commands FILE   the template's commands: a .so, or a .c that is compiled first; repeatable\n"
    "  --reload          load the commands and the policy again when their files change\n"
    "  --policy FILE     policy, JSON or YAML (ABX_SERVER_POLICY, ABX_SERVER_POLICY_FILE,\n"
    "                    /etc/agent-sandbox/server-policy.json)\n"
    "  --preset NAME     default, transfer-only, read-only, hardened, locked\n"
    "  --base-dir DIR    the only directory that files may be in (ABX_SERVER_BASE_DIR, else /home/user)\n"
    "\n"
    "ABX_SERVER_TOKEN: the token that every request must then bring (X-Access-Token or bearer).\n"
    "ABX_SERVER_ENABLED_GROUPS: opt-in groups to turn on (dev_tools, browser, agents).\n";

struct settings {
    const char *host, *base_dir;
    long port, pty_port;
    struct policy_source policy;
    char **commands;
    size_t n_commands;
    bool reload;
};

struct server {
    struct app app;
    struct settings settings;
    struct policy_doc *doc;
    struct registry *registry, *next; /* next: being loaded for a reload */
    uv_fs_event_t policy_watch;
    struct timer policy_settle; /* editors write a file in several steps */
    bool again;                 /* something changed while a reload was under way */
    uv_signal_t signals[3];
    int stops_left; /* of the two parts of a stop that are still running */
    bool running, stopping;
};

/* --- options --------------------------------------------------------------------------------------- */

static const struct option options[] = {
    {"host", required_argument, NULL, 'H'},     {"port", required_argument, NULL, 'p'},
    {"pty-port", required_argument, NULL, 'P'}, {"commands", required_argument, NULL, 'c'},
    {"policy", required_argument, NULL, 'y'},   {"preset", required_argument, NULL, 's'},
    {"base-dir", required_argument, NULL, 'b'}, {"reload", no_argument, NULL, 'r'},
    {"help", no_argument, NULL, 'h'},           {0}};

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, struct settings *s)
{
    const char *pty = getenv("ABX_PTY_PORT");
    int64_t n;
    s->host = "0.0.0.0";
    s->port = 9000;
    s->pty_port = pty && num_parse(pty, 1, 65535, &n) == 0 ? (long)n : 9001;
    s->commands = calloc((size_t)argc + 1, sizeof *s->commands);
    if (!s->commands)
        return EXIT_FAILED;
    for (int c; (c = cli_option(argc, argv, options, usage)) != -1;) {
        switch (c) {
        case 'H':
            s->host = optarg;
            break;
        case 'p':
            if (cli_number("--port", optarg, 1, 65535, &s->port) < 0)
                return EXIT_USAGE;
            break;
        case 'P':
            if (cli_number("--pty-port", optarg, 1, 65535, &s->pty_port) < 0)
                return EXIT_USAGE;
            break;
        case 'c':
            s->commands[s->n_commands++] = optarg;
            break;
        case 'y':
            s->policy.file = optarg;
            break;
        case 's':
            s->policy.preset = optarg;
            break;
        case 'b':
            s->base_dir = optarg;
            break;
        case 'r':
            s->reload = true;
            break;
        case 'h':
            fputs(help, stdout);
            return EXIT_OK;
        default:
            return EXIT_USAGE;
        }
    }
    return -1;
}

/* --- start ------------------------------------------------------------------------------------------ */

static int fail(const char *what, const struct abx_error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->message);
    return EXIT_FAILED;
}

static char *absolute(const char *path)
{
    if (path[0] == '/')
        return strdup(path);
    char cwd[PATH_MAX];
    char *out = NULL;
    if (!getcwd(cwd, sizeof cwd) || asprintf(&out, "%s/%s", cwd, path) < 0)
        return NULL;
    return out;
}

/* Where state that outlives the server goes: ABX_STATE_DIR, else the XDG place. */
static char *state_dir(void)
{
    const char *own = getenv("ABX_STATE_DIR"), *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *out = NULL;
    int rc;
    if (own && own[0] == '/')
        return strdup(own);
    if (xdg && xdg[0] == '/')
        rc = asprintf(&out, "%s/abx-server", xdg);
    else if (home && home[0] == '/')
        rc = asprintf(&out, "%s/.local/state/abx-server", home);
    else
        rc = asprintf(&out, "/tmp/abx-server-%u", (unsigned)getuid());
    return rc < 0 ? NULL : out;
}

static void raise_descriptors(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    rlim_t want = files.rlim_max < MAX_DESCRIPTORS ? files.rlim_max : MAX_DESCRIPTORS;
    if (files.rlim_cur < want) {
        files.rlim_cur = want;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* Which terminal endpoint is on? Without any the port stays closed. */
static bool terminal_wanted(struct site *site)
{
    for (size_t i = 0; i < site_route_count(site); i++) {
        const struct rule *r = policy_rule(site_policy(site), i);
        if (r->endpoint->group == G_TERMINAL && r->enabled)
            return true;
    }
    return false;
}

struct env_map *cli_child_environment(const struct policy_doc *doc)
{
    size_t n = 0;
    while (environ[n])
        n++;
    char **copy = calloc(n + 1, sizeof *copy);
    struct env_map *map = NULL;
    bool whole = copy != NULL;
    for (size_t i = 0; whole && i < n; i++)
        whole = (copy[i] = strdup(environ[i])) != NULL;
    if (whole)
        map = env_new(copy, policy_doc_token_envs(doc));
    for (size_t i = 0; copy && i < n; i++)
        free(copy[i]);
    free(copy);
    return map;
}

/* Hosts start at once and load while the rest goes on. */
static int start_registry(struct server *s, struct registry **ret, struct abx_error *err)
{
    struct registry_config config = {
        .loop = s->app.loop, .spawner = s->app.spawner, .env = s->app.env,
        .files = s->settings.commands, .before = s->registry};
    config.taken = commands_taken(&config.n_taken);
    return registry_new(&config, ret, err);
}

static int build_site(struct server *s, struct policy_doc *doc, struct registry *registry, struct policy *previous,
                      struct site **ret, struct abx_error *err)
{
    struct policy_inputs in = {.doc = doc,
                               .enabled_groups = getenv("ABX_SERVER_ENABLED_GROUPS"),
                               .base_dir = s->app.base_dir,
                               .previous = previous};
    return commands_site(registry, &in, ret, err);
}

/* --- reload ----------------------------------------------------------------------------------------- */

#define POLICY_SETTLE_MS 200

static void watch_commands(struct server *s);
static void on_changed(void *data);

/* Everything is built beside what runs; only when all of it stands is it swapped in. */
static int swap_in(struct server *s, struct registry *fresh, struct abx_error *err)
{
    struct policy_doc *doc = NULL;
    struct site *site;
    if (policy_doc_resolve(&s->settings.policy, &doc, err) < 0 ||
        policy_doc_keep_server_token(doc, s->doc, err) < 0 || policy_doc_hash_tokens(doc, err) < 0 ||
        build_site(s, doc, fresh, site_policy(http_site(s->app.http)), &site, err) < 0 ||
        env_add_secrets(s->app.env, policy_doc_token_envs(doc)) < 0) {
        policy_doc_free(doc);
        return -1;
    }
    env_free(env_new(environ, policy_doc_token_envs(doc))); /* wipes new secrets of our own block */
    commands_use(&s->app, fresh);
    http_set_site(s->app.http, site);
    site_unref(site);
    policy_doc_free(s->doc);
    s->doc = doc;
    return 0;
}

static void on_reloaded(void *data, const struct abx_error *failure)
{
    struct server *s = data;
    struct registry *fresh = take_ptr(s->next);
    struct abx_error err;
    if (s->stopping) {
        registry_unref(fresh);
        return;
    }
    if (failure || swap_in(s, fresh, &err) < 0) {
        log_error("reload: %s; what was loaded before goes on", failure ? failure->message : err.message);
        registry_unref(fresh);
    } else {
        registry_unref(s->registry);
        s->registry = fresh;
        watch_commands(s);
        log_info("reload: commands and policy are new");
    }
    if (s->again) {
        s->again = false;
        on_changed(s);
    }
}

static void on_changed(void *data)
{
    struct server *s = data;
    struct abx_error err;
    if (s->stopping)
        return;
    if (s->next) {
        s->again = true;
        return;
    }
    if (start_registry(s, &s->next, &err) < 0)
        log_error("reload: %s; what was loaded before goes on", err.message);
    else
        registry_on_loaded(s->next, on_reloaded, s);
}

static void on_policy_event(uv_fs_event_t *handle, const char *name, int events, int status)
{
    struct server *s = handle->data;
    const char *file = policy_source_file(&s->settings.policy), *slash = file ? strrchr(file, '/') : NULL;
    if (file && name && strcmp(name, slash ? slash + 1 : file) != 0)
        return; /* a neighbour in the same directory */
    timer_start(&s->policy_settle, POLICY_SETTLE_MS);
}

/* The directory is watched, since most programs replace a file instead of writing it. */
static void watch_policy(struct server *s)
{
    const char *file = policy_source_file(&s->settings.policy);
    if (!s->settings.reload || !file)
        return;
    autofree char *copy = strdup(file);
    timer_init(&s->policy_settle, s->app.loop, on_changed, s);
    uv_fs_event_init(loop_uv(s->app.loop), &s->policy_watch);
    s->policy_watch.data = s;
    int rc = copy ? uv_fs_event_start(&s->policy_watch, on_policy_event, dirname(copy), 0) : UV_ENOMEM;
    if (rc < 0)
        log_warn("reload: '%s' can't be watched: %s", file, uv_strerror(rc));
    uv_unref((uv_handle_t *)&s->policy_watch);
}

static void watch_commands(struct server *s)
{
    struct abx_error err;
    if (s->settings.reload && !s->stopping && registry_watch(s->registry, on_changed, s, &err) < 0)
        log_warn("reload: %s", err.message);
}

static void print_lint(struct policy *policy)
{
    autojson json_t *warnings = policy_lint(policy, NULL);
    size_t i;
    json_t *text;
    json_array_foreach(warnings, i, text) fprintf(stderr, "policy lint: %s\n", json_string_value(text));
}

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcmp(host, "localhost") == 0;
}

static void wipe_token(struct policy_doc *doc)
{
    char *token = getenv("ABX_SERVER_TOKEN");
    (void)doc;
    if (token)
        explicit_bzero(token, strlen(token));
}

/* --- stop --------------------------------------------------------------------------------------------- */

static void part_stopped(void *data)
{
    struct server *s = data;
    if (--s->stops_left == 0)
        uv_stop(loop_uv(s->app.loop));
}

/* A worker may be stuck in a system call (a network file system that hangs, a disk that stalls), which neither the loop's
 * end nor exit() would survive. */
static void *stop_limit(void *unused)
{
    struct timespec left = {.tv_sec = STOP_LIMIT_MS / 1000, .tv_nsec = STOP_LIMIT_MS % 1000 * 1000000L};
    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
    log_warn("stop: some work could not be ended");
    log_stop();
    _exit(EXIT_OK);
}

static void limit_stop(void)
{
    if (thread_start(LIMIT_STACK, stop_limit, NULL, NULL) < 0)
        log_warn("stop: without a limit of time, for want of a thread");
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct server *s = handle->data;
    if (!s->running) /* nothing is served yet, and what was started ends with us (PR_SET_PDEATHSIG) */
        _exit(EXIT_OK);
    if (s->stopping) /* asked twice: now */
        _exit(128 + number);
    s->stopping = true;
    s->stops_left = 2;
    limit_stop();
    registry_unref(take_ptr(s->next));
    registry_stop(s->registry);
    log_info("stopping on signal %d", number);
    spawner_stop(s->app.spawner, CHILD_GRACE_MS, part_stopped, s);
    http_stop(s->app.http, STOP_GRACE_MS, part_stopped, s);
}

static void watch_signals(struct server *s)
{
    static const int numbers[ARRAY_LEN(s->signals)] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        uv_signal_init(loop_uv(s->app.loop), &s->signals[i]);
        s->signals[i].data = s;
        uv_signal_start(&s->signals[i], on_signal, numbers[i]);
        uv_unref((uv_handle_t *)&s->signals[i]);
    }
    signal(SIGPIPE, SIG_IGN);
}

/* A signal that comes while the server starts waits until it can be stopped in order: as PID 1 it would
 * otherwise be lost. */
static void hold_signals(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    (void)pthread_sigmask(how, &set, NULL); /* can't fail with these arguments */
}

/* --- all of it ------------------------------------------------------------------------------------ */

/* 0, or -1 with errno when `path` is no directory to work in. */
static int access_dir(const char *path)
{
    autoclose int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -1 : 0;
}

/* Everything before the first request. -1: running; else the exit status. */
static int start(struct server *s)
{
    struct app *app = &s->app;
    struct settings *set = &s->settings;
    struct abx_error err;

    app->started_ns = mono_ns();
    app->started_at = wall_seconds();
    app->commands = set->commands;
    app->reload = set->reload;
    app->host = set->host;
    if (set->base_dir && setenv("ABX_SERVER_BASE_DIR", set->base_dir, 1) < 0)
        return EXIT_FAILED;
    const char *base = getenv("ABX_SERVER_BASE_DIR");
    app->base_dir = absolute(base && *base ? base : "/home/user");
    app->state_dir = state_dir();
    if (!app->base_dir || !app->state_dir)
        return EXIT_FAILED;

    if (policy_doc_resolve(&set->policy, &s->doc, &err) < 0 ||
        policy_doc_add_server_token(s->doc, getenv("ABX_SERVER_TOKEN"), &err) < 0)
        return fail("policy error", &err);
    app->loop = loop_new();
    if (app->loop) {
        watch_signals(s);
        hold_signals(SIG_UNBLOCK);
    }
    app->spawner = app->loop ? spawner_new(app->loop) : NULL; /* before the limit is raised: it keeps the old one */
    if (policy_doc_hash_tokens(s->doc, &err) < 0)
        return fail("policy error", &err);
    /* Wiped before the first child runs: a command's file could look at our block. */
    app->env = app->spawner ? env_new(environ, policy_doc_token_envs(s->doc)) : NULL;
    wipe_token(s->doc);
    if (!app->env) {
        fputs("abx-server: can't set up the event loop\n", stderr);
        return EXIT_FAILED;
    }
    raise_descriptors();

    struct site *site;
    if (start_registry(s, &s->registry, &err) < 0)
        return fail("abx-server", &err);
    if (registry_wait(s->registry, &err) < 0) {
        (void)fail("abx-server", &err);
        return registry_exit_status(s->registry);
    }
    if (build_site(s, s->doc, s->registry, NULL, &site, &err) < 0)
        return fail("configuration error", &err);
    print_lint(site_policy(site));

    app->http = http_new(&(struct http_config){
        .loop = app->loop, .app = app, .server_name = "abx-server/" ABX_VERSION_STRING});
    if (!app->http) {
        site_unref(site);
        fputs("abx-server: out of memory\n", stderr);
        return EXIT_FAILED;
    }
    http_set_site(app->http, site);
    bool terminal = terminal_wanted(site), tokens = policy_has_tokens(site_policy(site));
    autofree char *files = strdup(policy_base_dir(site_policy(site)));
    site_unref(site);
    if (!files) {
        fputs("abx-server: out of memory\n", stderr);
        return EXIT_FAILED;
    }
    if (http_listen(app->http, set->host, (int)set->port, HTTP_PORT_MAIN, &app->port, &err) < 0)
        return fail("abx-server", &err);
    if (terminal &&
        http_listen(app->http, set->host, (int)set->pty_port, HTTP_PORT_PTY, &app->pty_port, &err) < 0)
        return fail("abx-server", &err);
#define SERVICE(name)                                                                              \
    if (name##_service_start(app, &err) < 0)                                                       \
        return fail("abx-server: " #name, &err);
#include "routes/services.def"
#undef SERVICE
    commands_use(app, s->registry);
    watch_commands(s);
    watch_policy(s);
#ifndef __SANITIZE_ADDRESS__ /* its leak check attaches to the process */
    if (tokens)
        prctl(PR_SET_DUMPABLE, 0); /* other users' children can't look into our memory */
#endif
    if (!tokens && !is_loopback(set->host))
        log_warn("listening on %s without a token: anybody who reaches port %d controls this sandbox", set->host,
                 app->port);
    log_info("abx-server %s on http://%s:%d, base directory %s", ABX_VERSION_STRING, set->host, app->port,
             files);
    if (access_dir(files) < 0) /* no error: whoever mounts it later, or uploads, makes it */
        log_warn("base directory %s can't be used: %s", files, strerror(errno));
    return -1;
}

/* Services in reverse order of services.def. */
static void stop_services(struct app *app)
{
    static void (*const stops[])(struct app *) = {
#define SERVICE(name) name##_service_stop,
#include "routes/services.def"
#undef SERVICE
    };
    for (size_t i = ARRAY_LEN(stops); i-- > 0;)
        stops[i](app);
}

/* Large blocks go back to the kernel when they are freed: glibc would otherwise raise its thresholds with the
 * first one and keep up to 64 MiB of a heap that idles at two. */
static void bound_heap(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, HEAP_STEP);
    (void)mallopt(M_TRIM_THRESHOLD, HEAP_STEP);
}

int cli_serve(int argc, char **argv)
{
    static struct server s; /* a start that fails leaves what it made to the process's end */
    int status = parse_options(argc, argv, &s.settings);
    if (status >= 0) {
        free(s.settings.commands);
        return status;
    }
    log_start();
    bound_heap();
    hold_signals(SIG_BLOCK);
    status = start(&s);
    if (status >= 0)
        return status;
    s.running = true;
    uv_run(loop_uv(s.app.loop), UV_RUN_DEFAULT);
    loop_settle(s.app.loop); /* jobs of requests whose clients have left */
    http_free(s.app.http);
    stop_services(&s.app);
    registry_unref(s.registry);
    uv_run(loop_uv(s.app.loop), UV_RUN_NOWAIT); /* what ends a turn later */
    spawner_free(s.app.spawner);
    loop_free(s.app.loop);
    env_free(s.app.env);
    policy_doc_free(s.doc);
    free(s.settings.commands);
    free((char *)s.app.base_dir);
    free((char *)s.app.state_dir);
    log_stop();
    return EXIT_OK;
}
