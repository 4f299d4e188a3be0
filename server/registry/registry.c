#include "registry/registry.h"

#include "base/log.h"
#include "base/module.h"
#include "base/num.h"
#include "base/own.h"
#include "process/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <uv.h>

#define COMPILE_MS 120000
#define COMPILE_OUTPUT 4000
#define SETTLE_MS 200
#define MAX_FILES 256

/* One file. It is `pending` from the start until it is loaded, refused or skipped. */
struct file {
    struct registry *registry;
    char *path;   /* real path, as given to us */
    char *label;
    char *object; /* what the host opens: path, or the compiled one */
    bool of_directory, needed; /* one of a directory is needed when it served before a reload */
    bool pending, ok;
    struct host *host;
    struct proc *cc;
    char output[COMPILE_OUTPUT + 1];
    size_t output_len;
};

struct watch {
    uv_fs_event_t handle;
    struct registry *registry; /* NULL once stopped */
};

struct registry {
    unsigned refs;
    struct registry_config config; /* files: not kept */
    struct host_options host;
    char *program;
    struct file *files;
    size_t n_files, n_pending;
    char *tmp; /* compiled files; made on first use */
    bool loading, failed;
    struct abx_error error;
    int exit_status;
    void (*done)(void *data, const struct abx_error *err);
    void *done_data;
    struct registry_command *commands;
    size_t n_commands;
    struct registry_route *routes;
    size_t n_routes;
    struct watch **watches;
    size_t n_watches;
    struct timer settle;
    void (*changed)(void *data);
    void *changed_data;
};

/* --- merging --------------------------------------------------------------------------------------- */

static int merge_commands(struct registry *r, const struct host_content *c, struct host *h)
{
    struct registry_command *all = reallocarray(r->commands, r->n_commands + c->n_commands + 1, sizeof(*all));
    if (!all)
        return -1;
    r->commands = all;
    for (size_t i = 0; i < c->n_commands; i++) {
        struct registry_command added = {.spec = &c->commands[i], .host = h};
        size_t at = 0;
        while (at < r->n_commands && strcmp(all[at].spec->name, added.spec->name) != 0)
            at++;
        if (at < r->n_commands)
            log_warn("commands: '%s' of %s takes the place of the one of %s", added.spec->name, host_label(h),
                     host_label(all[at].host));
        else
            r->n_commands++;
        all[at] = added;
    }
    return 0;
}

static bool same_place(const struct endpoint *a, const struct endpoint *b)
{
    if (a->method != b->method)
        return false;
    const char *x = a->path, *y = b->path;
    while (*x && *y) {
        if (*x == '{' && *y == '{') { /* parameters are the same whatever their names */
            x += strcspn(x, "}");
            y += strcspn(y, "}");
        }
        if (*x != *y)
            return false;
        x++;
        y++;
    }
    return *x == *y;
}

static int check_route(const struct registry *r, const struct endpoint *ep, const struct endpoint *other,
                       const char *whose, struct abx_error *err)
{
    if (strcmp(ep->id, other->id) == 0)
        return abx_fail(err, E_CONFIG, 0, "the route name '%s' is taken by %s", ep->id, whose);
    if (same_place(ep, other))
        return abx_fail(err, E_CONFIG, 0, "route '%s': %s %s is served by %s ('%s')", ep->id, method_name(ep->method),
                        ep->path, whose, other->id);
    return 0;
}

static int merge_routes(struct registry *r, const struct host_content *c, struct host *h, struct abx_error *err)
{
    size_t before = r->n_routes;
    struct registry_route *all = reallocarray(r->routes, r->n_routes + c->n_routes + 1, sizeof(*all));
    if (!all)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    r->routes = all;
    int result = 0;
    for (size_t i = 0; i < c->n_routes && result == 0; i++) {
        const struct endpoint *ep = &c->routes[i].ep;
        for (size_t k = 0; k < r->config.n_taken && result == 0; k++)
            result = check_route(r, ep, r->config.taken[k], "the server itself", err);
        for (size_t k = 0; k < r->n_routes && result == 0; k++)
            result = check_route(r, ep, &all[k].spec->ep, host_label(all[k].host), err);
        if (result == 0)
            all[r->n_routes++] = (struct registry_route){.spec = &c->routes[i], .host = h};
    }
    if (result < 0)
        r->n_routes = before;
    return result;
}

static void drop_file(struct file *f)
{
    host_free(f->host);
    f->host = NULL;
    f->ok = false;
}

/* The file is of no use: skipped when a directory brought it and nobody knows its commands yet, else all fails. */
static void refuse(struct file *f, const char *why, int exit_status)
{
    struct registry *r = f->registry;
    if (!f->needed) {
        log_error("commands: %s is skipped: %s", f->label, why);
    } else if (!r->failed) {
        r->failed = true;
        r->exit_status = exit_status ? exit_status : 1;
        abx_fail(&r->error, E_CONFIG, 0, "%s", why);
    }
    drop_file(f);
}

static void merge(struct registry *r)
{
    struct abx_error err;
    char why[600];
    for (size_t i = 0; i < r->n_files && !r->failed; i++) {
        struct file *f = &r->files[i];
        if (!f->ok)
            continue;
        const struct host_content *c = host_content(f->host);
        if (merge_routes(r, c, f->host, &err) < 0) {
            snprintf(why, sizeof(why), "cannot load commands file '%s': %s", f->label, err.message);
            refuse(f, why, 0);
        } else if (merge_commands(r, c, f->host) < 0) {
            refuse(f, "out of memory", 0);
        }
    }
}

static void finished(struct registry *r)
{
    r->loading = false;
    merge(r);
    void (*done)(void *, const struct abx_error *) = r->done;
    r->done = NULL;
    if (done)
        done(r->done_data, r->failed ? &r->error : NULL);
}

static void file_done(struct file *f)
{
    struct registry *r = f->registry;
    if (!f->pending)
        return;
    f->pending = false;
    if (--r->n_pending == 0)
        finished(r);
}

/* --- loading ------------------------------------------------------------------------------------------ */

static void on_host_loaded(void *owner, const struct abx_error *err, int exit_status)
{
    struct file *f = owner;
    if (err)
        refuse(f, err->message, exit_status);
    else
        f->ok = true;
    file_done(f);
}

static void start_host(struct file *f)
{
    f->host = host_new(&f->registry->host, f->object ? f->object : f->path, f->label, on_host_loaded, f);
    if (!f->host) {
        refuse(f, "out of memory", 0);
        file_done(f);
    }
}

static void on_cc_output(void *owner, enum proc_stream stream, const char *data, size_t len)
{
    struct file *f = owner;
    size_t room = COMPILE_OUTPUT - f->output_len;
    if (len > room)
        len = room;
    memcpy(f->output + f->output_len, data, len);
    f->output_len += len;
}

static void on_cc_started(void *owner, struct proc *p, int sys)
{
    struct file *f = owner;
    if (sys == 0)
        return;
    f->cc = NULL;
    char why[600];
    snprintf(why, sizeof(why),
             "cannot compile '%.300s': no C compiler (%s); install one (gcc, clang, tcc) or give a compiled .so", f->label,
             strerror(sys));
    refuse(f, why, 0);
    file_done(f);
}

static void on_cc_ended(void *owner, int exit_code)
{
    struct file *f = owner;
    f->cc = NULL;
    f->output[f->output_len] = 0;
    if (exit_code == 0) {
        start_host(f);
        return;
    }
    char why[600];
    snprintf(why, sizeof(why), "cannot compile '%.100s' (the compiler said %d): %.400s", f->label, exit_code, f->output);
    refuse(f, why, 0);
    file_done(f);
}

static int make_tmp(struct registry *r, struct abx_error *err)
{
    if (r->tmp)
        return 0;
    const char *dir = env_get(r->config.env, "TMPDIR");
    autofree char *path = NULL;
    if (asprintf(&path, "%s/abx-commands-XXXXXX", dir && dir[0] == '/' ? dir : "/tmp") < 0) {
        path = NULL;
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    if (!mkdtemp(path))
        return abx_fail_os(err, errno, path);
    r->tmp = take_ptr(path);
    return 0;
}

static int compile(struct file *f, struct abx_error *err)
{
    static const struct proc_ops ops = {.started = on_cc_started, .output = on_cc_output, .ended = on_cc_ended};
    struct registry *r = f->registry;
    if (make_tmp(r, err) < 0)
        return -1;
    autofree char *include = registry_cflags();
    if (!include || asprintf(&f->object, "%s/%zu.so", r->tmp, (size_t)(f - r->files)) < 0) {
        f->object = NULL;
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    const char *cc = env_get(r->config.env, "CC");
    char *argv[] = {(char *)(cc && *cc ? cc : "cc"), "-shared", "-fPIC", "-O2", "-g", "-o", f->object, f->path,
                    *include ? include : NULL, NULL};
    autofree char **envp = env_block(r->config.env, NULL);
    struct proc_opts opts = {.spawn = {.file = argv[0], .argv = argv, .envp = envp, .cwd_fd = -1, .uid = -1, .gid = -1,
                                       .helper = true},
                             .merge = true,
                             .timeout_ms = COMPILE_MS};
    return envp ? proc_start(r->config.spawner, r->config.loop, &opts, &ops, f, &f->cc, err)
                : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int start_file(struct file *f, struct abx_error *err)
{
    if (ends_in(f->path, ".c"))
        return compile(f, err);
    start_host(f);
    return 0;
}

/* --- what --commands names ----------------------------------------------------------------------------- */

static bool serves(const struct registry *r, const char *path)
{
    for (size_t i = 0; r && i < r->n_files; i++)
        if (r->files[i].ok && strcmp(r->files[i].path, path) == 0)
            return true;
    return false;
}

static int add_file(struct registry *r, const char *path, const char *label, bool of_directory, struct abx_error *err)
{
    autofree char *real = realpath(path, NULL);
    if (!real)
        return abx_fail(err, E_CONFIG, errno, "cannot load commands file '%s': %s", label, strerror(errno));
    for (size_t i = 0; i < r->n_files; i++)
        if (strcmp(r->files[i].path, real) == 0)
            return 0;
    if (r->n_files == MAX_FILES)
        return abx_fail(err, E_CONFIG, 0, "more than %d commands files", MAX_FILES);
    struct file *f = &r->files[r->n_files];
    f->label = strdup(label);
    if (!f->label)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    f->path = take_ptr(real);
    f->registry = r;
    f->of_directory = of_directory;
    f->needed = !of_directory || serves(r->config.before, f->path);
    r->n_files++;
    return 0;
}

static int add_directory(struct registry *r, const char *dir, struct abx_error *err)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort), result = 0;
    if (n < 0)
        return abx_fail(err, E_CONFIG, errno, "cannot load commands from '%s': %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        char path[PATH_MAX];
        if (name[0] != '.' && result == 0) {
            if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
                log_error("commands: %s/%.60s is skipped: its path is too long", dir, name);
            else if (!ends_in(name, ".so") && !ends_in(name, ".c"))
                log_warn("commands: %s is skipped: neither a shared object (.so) nor a C source (.c)", path);
            else
                result = add_file(r, path, path, true, err);
        }
        free(names[i]);
    }
    free(names);
    return result;
}

static int add_spec(struct registry *r, const char *spec, struct abx_error *err)
{
    struct stat st;
    bool exists = stat(spec, &st) == 0;
    if (ends_in(spec, ".py") || (!exists && !strchr(spec, '/') && !ends_in(spec, ".so") && !ends_in(spec, ".c")))
        return abx_fail(err, E_CONFIG, 0,
                        "cannot load commands file '%s': commands are written in C here, not Python; `abx-server init DIR` "
                        "writes a template to start from, docs/commands.md shows how each Python construct looks in C",
                        spec);
    if (exists && S_ISDIR(st.st_mode))
        return add_directory(r, spec, err);
    if (exists && !S_ISREG(st.st_mode))
        return abx_fail(err, E_CONFIG, 0, "cannot load commands file '%s': not a regular file", spec);
    return add_file(r, spec, spec, false, err);
}

/* --- settings ---------------------------------------------------------------------------------------------- */

static int parse_memory(const char *text, uint64_t *ret, struct abx_error *err)
{
    static const struct {
        const char *unit;
        uint64_t factor;
    } units[] = {{"", 1}, {"B", 1}, {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000}, {"KIB", KIB}, {"MIB", MIB},
                 {"GIB", 1024ull * MIB}};
    size_t n = strspn(text, "0123456789");
    char digits[20];
    int64_t v;
    const char *unit = text + n + strspn(text + n, " ");
    if (n < sizeof(digits)) {
        memcpy(digits, text, n);
        digits[n] = 0;
        for (size_t i = 0; i < ARRAY_LEN(units); i++)
            if (strcasecmp(unit, units[i].unit) == 0 && num_parse(digits, 0, INT64_MAX, &v) == 0 &&
                !ckd_mul(ret, (uint64_t)v, units[i].factor))
                return 0;
    }
    return abx_fail(err, E_CONFIG, 0, "ABX_COMMAND_MEMORY: invalid size '%.60s' (bytes, or e.g. '512MiB'; 0: no limit)", text);
}

static int read_settings(struct registry *r, struct abx_error *err)
{
    const char *memory = env_get(r->config.env, "ABX_COMMAND_MEMORY");
    const char *threads = env_get(r->config.env, "ABX_COMMAND_THREADS");
    int64_t n = REGISTRY_THREADS_DEFAULT;
    r->host.memory_bytes = REGISTRY_MEMORY_DEFAULT;
    if (memory && *memory && parse_memory(memory, &r->host.memory_bytes, err) < 0)
        return -1;
    if (threads && *threads && num_parse(threads, 1, 4096, &n) < 0)
        return abx_fail(err, E_CONFIG, 0, "ABX_COMMAND_THREADS: '%.60s' is not a number from 1 to 4096", threads);
    r->host.max_threads = (uint32_t)n;
    return 0;
}

/* --- the whole ---------------------------------------------------------------------------------------------- */

static void no_files(void *data)
{
    struct registry *r = data;
    if (r->loading && r->n_pending == 0)
        finished(r);
    registry_unref(r);
}

static int start_all(struct registry *r, struct abx_error *err)
{
    r->loading = true;
    for (size_t i = 0; i < r->n_files; i++) {
        r->files[i].pending = true;
        r->n_pending++;
    }
    for (size_t i = 0; i < r->n_files; i++)
        if (start_file(&r->files[i], err) < 0)
            return -1;
    if (!r->n_files) {
        registry_ref(r);
        loop_post(r->config.loop, no_files, r);
    }
    return 0;
}

int registry_new(const struct registry_config *config, struct registry **ret, struct abx_error *err)
{
    struct registry *r = calloc(1, sizeof(*r));
    if (!r)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    r->refs = 1;
    r->config = *config;
    r->config.files = NULL;
    r->exit_status = 1;
    r->host = (struct host_options){.loop = config->loop, .spawner = config->spawner, .env = config->env};
    bool any = config->files && config->files[0];
    if (any) {
        r->files = calloc(MAX_FILES, sizeof(*r->files));
        r->program = module_find_file("abx-command-host");
        r->host.program = r->program;
    }
    int result = read_settings(r, err);
    if (result == 0 && any && !r->files)
        result = abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    if (result == 0 && any && !r->program)
        result = abx_fail(err, E_CONFIG, 0, "abx-command-host is not installed beside the server");
    for (size_t i = 0; any && result == 0 && config->files[i]; i++)
        result = add_spec(r, config->files[i], err);
    r->config.before = NULL;
    if (result == 0)
        result = start_all(r, err);
    if (result < 0) {
        registry_unref(r);
        return -1;
    }
    *ret = r;
    return 0;
}

struct registry *registry_ref(struct registry *r)
{
    r->refs++;
    return r;
}

void registry_stop(struct registry *r)
{
    for (size_t i = 0; i < r->n_files; i++)
        if (r->files[i].host)
            host_stop(r->files[i].host);
}

static void watch_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void stop_watching(struct registry *r)
{
    for (size_t i = 0; i < r->n_watches; i++) {
        r->watches[i]->registry = NULL;
        uv_close((uv_handle_t *)&r->watches[i]->handle, watch_closed);
    }
    free(r->watches);
    r->watches = NULL;
    r->n_watches = 0;
    if (r->changed)
        timer_done(&r->settle);
    r->changed = NULL;
}

void registry_unref(struct registry *r)
{
    if (!r || --r->refs)
        return;
    stop_watching(r);
    for (size_t i = 0; i < r->n_files; i++) {
        struct file *f = &r->files[i];
        if (f->cc)
            proc_cancel(f->cc, 0);
        host_free(f->host);
        if (f->object)
            (void)unlink(f->object); /* a directory below /tmp that stays is no harm */
        free(f->object);
        free(f->path);
        free(f->label);
    }
    if (r->tmp)
        (void)rmdir(r->tmp); /* likewise */
    free(r->tmp);
    free(r->files);
    free(r->commands);
    free(r->routes);
    free(r->program);
    free(r);
}

int registry_wait(struct registry *r, struct abx_error *err)
{
    while (r->loading)
        uv_run(loop_uv(r->config.loop), UV_RUN_ONCE);
    if (r->failed) {
        *err = r->error;
        return -1;
    }
    return 0;
}

static void tell_later(void *data)
{
    struct registry *r = data;
    void (*done)(void *, const struct abx_error *) = r->done;
    r->done = NULL;
    if (done)
        done(r->done_data, r->failed ? &r->error : NULL);
    registry_unref(r);
}

void registry_on_loaded(struct registry *r, void (*done)(void *data, const struct abx_error *err), void *data)
{
    r->done = done;
    r->done_data = data;
    if (!r->loading) {
        registry_ref(r);
        loop_post(r->config.loop, tell_later, r);
    }
}

int registry_exit_status(const struct registry *r)
{
    return r->exit_status;
}

void registry_code_groups(const struct registry *r, int8_t groups[GROUP_COUNT])
{
    memset(groups, 0, GROUP_COUNT);
    for (size_t i = 0; i < r->n_files; i++)
        for (int g = 0; r->files[i].ok && g < GROUP_COUNT; g++)
            if (host_content(r->files[i].host)->groups[g])
                groups[g] = host_content(r->files[i].host)->groups[g];
}

size_t registry_command_count(const struct registry *r)
{
    return r->n_commands;
}

const struct registry_command *registry_command_at(const struct registry *r, size_t i)
{
    return &r->commands[i];
}

const struct registry_command *registry_find(const struct registry *r, const char *name, size_t len)
{
    for (size_t i = 0; i < r->n_commands; i++) {
        const char *known = r->commands[i].spec->name;
        if (strncmp(known, name, len) == 0 && !known[len])
            return &r->commands[i];
    }
    return NULL;
}

size_t registry_route_count(const struct registry *r)
{
    return r->n_routes;
}

const struct registry_route *registry_route_at(const struct registry *r, size_t i)
{
    return &r->routes[i];
}

/* --- watching -------------------------------------------------------------------------------------------- */

static void on_settled(void *data)
{
    struct registry *r = data;
    r->changed(r->changed_data);
}

/* The directory is watched, since editors and compilers replace files. */
static void on_fs_event(uv_fs_event_t *handle, const char *name, int events, int status)
{
    struct watch *w = handle->data;
    struct registry *r = w->registry;
    if (!r || !r->changed)
        return;
    for (size_t i = 0; i < r->n_files; i++) {
        const char *base = strrchr(r->files[i].path, '/') + 1;
        if (!name || strcmp(base, name) == 0 || r->files[i].of_directory) {
            timer_start(&r->settle, SETTLE_MS);
            return;
        }
    }
}

int registry_watch(struct registry *r, void (*changed)(void *data), void *data, struct abx_error *err)
{
    r->watches = calloc(r->n_files + 1, sizeof(*r->watches));
    if (!r->watches)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    r->changed = changed;
    r->changed_data = data;
    timer_init(&r->settle, r->config.loop, on_settled, r);
    for (size_t i = 0; i < r->n_files; i++) {
        char dir[PATH_MAX];
        snprintf(dir, sizeof(dir), "%s", r->files[i].path);
        char *slash = strrchr(dir, '/');
        slash[slash == dir] = 0;
        struct watch *w = calloc(1, sizeof(*w));
        if (!w)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        w->registry = r;
        uv_fs_event_init(loop_uv(r->config.loop), &w->handle);
        w->handle.data = w;
        r->watches[r->n_watches++] = w;
        int n = uv_fs_event_start(&w->handle, on_fs_event, dir, 0);
        if (n < 0)
            return abx_fail(err, E_OS, -n, "cannot watch '%s': %s", dir, uv_strerror(n));
        uv_unref((uv_handle_t *)&w->handle);
    }
    return 0;
}

char *registry_cflags(void)
{
    static const char *const places[] = {"include/abx/commands.h", "../include/abx/commands.h",
                                         "../../include/abx/commands.h"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        autofree char *found = module_find_file(places[i]);
        autofree char *real = found ? realpath(found, NULL) : NULL;
        if (!real)
            continue;
        real[strlen(real) - strlen("/abx/commands.h")] = 0;
        char *flags = NULL;
        if (strcmp(real, "/usr/include") == 0 || strcmp(real, "/usr/local/include") == 0)
            return strdup("");
        return asprintf(&flags, "-I%s", real) < 0 ? NULL : flags;
    }
    return strdup("");
}
