/* A turn's child: prepared on a worker (workspace, tokens, argv), started, its lines read on the
 * loop, stopped INT - TERM - KILL, and its whole group swept at its end. Then artifacts are copied
 * on a worker and the turn is over. */
#include "agents/runner.h"

#include "agents/line.h"
#include "base/json.h"
#include "base/log.h"
#include "base/own.h"
#include "base/utf8.h"
#include "policy/guards.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STDERR_KEEP (16 * KIB)
#define STDERR_SHOWN 1500
#define MAX_LINE (8 * MIB)
#define BACKLOG_HIGH (8 * MIB)
#define INT_MS 5000
#define TERM_MS 3000
#define DRAIN_MS 500
#define MAX_ARTIFACTS 100
#define MAX_SUBENTRIES 2000
#define INSTALL_MS 600000

struct runner {
    struct turn *t;
    struct agents *ag;
    struct session *s;
    const struct adapter *ad;
    void *state;
    struct redact *redact;
    struct list items;
    struct list node; /* install.waiters */
    struct install *install;
    struct item *install_item;

    /* prepared by the worker */
    struct policy *policy;
    char *workspace, *thread, *model, *effort, *instructions, *before, *ref, *binary, *search,
        *private_dir;
    json_t *tools, *env;
    struct launch_out out;
    char **envp;
    int cwd;
    char code[64], why[1024];

    struct child *child;
    int fds[3];
    struct io io[3];
    bool open[3];
    size_t written;
    struct line_reader lines;
    struct buf err_tail;
    int64_t out_bytes;
    bool paused, cancelled, exited, started, killed, posted, drained;
    int64_t left; /* once drained: bytes of its output that are still to be read */
    int exit_code;
    uint64_t last_byte;
    struct timer total, idle, stop, drain, retry;
    int stage;
    const char *limit_code;
    char limit[128];
    int n_subentries;

    char **wrote;
    size_t n_wrote;
    struct {
        char id[AG_ID_MAX], *path;
        int64_t size;
    } kept[MAX_ARTIFACTS];
    size_t n_kept;
};

struct install {
    struct list node; /* agents.installs */
    struct agents *ag;
    const struct adapter *ad;
    struct list waiters;
    struct child *child;
    int fd, child_fd, cwd; /* child_fd: lent to the spawn until it has started */
    struct io io;
    bool reading, exited;
    int status;
    struct timer timeout;
    struct buf tail;
};

const struct redact *runner_redact(const struct runner *r) { return r->redact; }

struct list *runner_items(struct runner *r) { return &r->items; }

bool runner_count_subentry(struct runner *r) { return r->n_subentries++ < MAX_SUBENTRIES; }

void runner_free(struct runner *r)
{
    if (!r)
        return;
    if (r->state)
        r->ad->end(r->state);
    for (int i = 0; i < 3; i++) {
        if (r->open[i])
            io_done(&r->io[i]);
        if (r->fds[i] >= 0)
            close(r->fds[i]);
    }
    timer_done(&r->total);
    timer_done(&r->idle);
    timer_done(&r->stop);
    timer_done(&r->drain);
    timer_done(&r->retry);
    child_free(r->child, true);
    if (r->cwd >= 0)
        close(r->cwd);
    redact_free(r->redact);
    policy_unref(r->policy);
    free(r->workspace);
    free(r->thread);
    free(r->model);
    free(r->effort);
    free(r->instructions);
    free(r->before);
    free(r->ref);
    free(r->binary);
    free(r->search);
    free(r->private_dir);
    free(r->envp);
    json_decref(r->tools);
    json_decref(r->env);
    json_decref(r->out.env);
    strv_done(&r->out.argv);
    buf_done(&r->out.input);
    buf_done(&r->err_tail);
    line_done(&r->lines);
    for (size_t i = 0; i < r->n_wrote; i++)
        free(r->wrote[i]);
    free(r->wrote);
    for (size_t i = 0; i < r->n_kept; i++)
        free(r->kept[i].path);
    list_remove(&r->node);
    free(r);
}

/* --- the environment of a turn -----------------------------------------------------------------
 */

static const char *const passed[] = {"PATH",
                                     "HOME",
                                     "USER",
                                     "LOGNAME",
                                     "SHELL",
                                     "LANG",
                                     "LANGUAGE",
                                     "TERM",
                                     "TMPDIR",
                                     "TZ",
                                     "SSL_CERT_FILE",
                                     "SSL_CERT_DIR",
                                     "REQUESTS_CA_BUNDLE",
                                     "CURL_CA_BUNDLE",
                                     "NODE_EXTRA_CA_CERTS",
                                     "HTTP_PROXY",
                                     "HTTPS_PROXY",
                                     "NO_PROXY",
                                     "ALL_PROXY",
                                     "http_proxy",
                                     "https_proxy",
                                     "no_proxy",
                                     "all_proxy",
                                     "XDG_CONFIG_HOME",
                                     "XDG_DATA_HOME",
                                     "XDG_CACHE_HOME",
                                     "XDG_STATE_HOME",
                                     "CODEX_HOME",
                                     "CLAUDE_CONFIG_DIR",
                                     "QWEN_HOME"};
static const char *const passed_prefixes[] = {"LC_", "NPM_CONFIG_", "npm_config_"};

static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p;) {
        while (*p == ' ' || *p == ',')
            p++;
        const char *end = strchr(p, ',');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        while (len && p[len - 1] == ' ')
            len--;
        if (len == n && memcmp(p, name, n) == 0)
            return true;
        p = end;
    }
    return false;
}

struct env_pick {
    struct runner *r;
    const char *passthrough;
    const struct str_list *deny;
};

static void pick(void *data, const char *name, const char *value)
{
    struct env_pick *p = data;
    struct runner *r = p->r;
    if (env_is_secret_name(r->ag->d.env, name))
        return;
    bool take = false, own = false;
    for (size_t i = 0; i < ARRAY_LEN(passed); i++)
        take = take || strcmp(name, passed[i]) == 0;
    for (size_t i = 0; i < ARRAY_LEN(passed_prefixes); i++)
        take = take || strncmp(name, passed_prefixes[i], strlen(passed_prefixes[i])) == 0;
    for (const char *const *n = r->ad->own_env; *n; n++)
        own = own || strcmp(name, *n) == 0;
    bool through = listed(p->passthrough, name);
    /* Set by POST /env: it differs from what the server was started with. */
    const char *at_start = getenv(name);
    bool set = !at_start || strcmp(at_start, value) != 0;
    if (!take && !own && !through && !set)
        return;
    for (size_t i = 0; p->deny && i < p->deny->n; i++)
        if (guard_glob(p->deny->items[i], name))
            return;
    json_object_set_new(r->env, name, json_text(value));
    for (const char *const *n = r->ad->auth_env; *n; n++)
        if (strcmp(name, *n) == 0)
            redact_add(r->redact, value);
    static const char *const secret_words[] = {"KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"};
    for (size_t i = 0; (through || set) && i < ARRAY_LEN(secret_words); i++)
        if (strcasestr(name, secret_words[i]))
            redact_add(r->redact, value);
}

static void build_env(struct runner *r)
{
    struct agents *ag = r->ag;
    const struct rule *rule = r->policy ? policy_find(r->policy, "process_start") : NULL;
    struct env_pick p = {.r = r, .passthrough = env_get(ag->d.env, "ABX_AGENTS_PASSTHROUGH_ENV")};
    p.deny = rule ? rule_list(rule, PARAM_env_deny) : NULL;
    r->env = json_object();
    json_object_set_new(
        r->env, "PATH",
        json_string("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
    json_object_set_new(r->env, "HOME", json_string("/"));
    json_object_set_new(r->env, "NO_COLOR", json_string("1"));
    env_each(ag->d.env, pick, &p);
    if (ag->set.state_dir) { /* installed on demand */
        autobuf struct buf path = BUF_INIT;
        buf_addf(&path, "%s:%s/cli/%s/node_modules/.bin",
                 json_string_value(json_object_get(r->env, "PATH")), ag->set.state_dir,
                 r->ad->name);
        if (buf_str(&path) && ag->set.install)
            json_object_set_new(r->env, "PATH", json_string(path.data));
    }
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(r->s->cfg, "env"), name, value)
        json_object_set(r->env, name, value);
}

/* --- on the worker ---------------------------------------------------------------------------- */

char *runtime_find(const char *path, const char *binary)
{
    for (const char *p = path; p && *p;) {
        const char *end = strchr(p, ':');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        struct buf file = BUF_INIT;
        buf_add(&file, p, len);
        buf_addf(&file, "%s%s", len ? "/" : "./", binary);
        struct stat st;
        if (len && buf_str(&file) && stat(file.data, &st) == 0 && S_ISREG(st.st_mode) &&
            access(file.data, X_OK) == 0)
            return buf_take(&file, NULL);
        buf_done(&file);
        p = end ? end + 1 : NULL;
    }
    return NULL;
}

static int refuse(struct runner *r, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int refuse(struct runner *r, const char *code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->why, sizeof(r->why), fmt, ap);
    va_end(ap);
    snprintf(r->code, sizeof(r->code), "%s", code);
    return -1;
}

/* Opens the workspace, made with its parents if missing, within what the policy allows. */
static int open_workspace(struct runner *r)
{
    struct abx_error err;
    const struct rule *rule = policy_find(r->policy, "agents_sessions_create");
    if (!rule)
        return refuse(r, "sandbox_error", "no rule for workspaces");
    struct arena arena;
    arena_init(&arena);
    struct guard_path gp;
    int rc = guard_open(rule->guard, r->workspace, strlen(r->workspace), OP_EXEC,
                        O_PATH | O_DIRECTORY, 0, &arena, &gp, &r->cwd, &err);
    if (rc < 0 && err.sys == ENOENT) {
        int parent = -1;
        rc = guard_open_parent(rule->guard, r->workspace, strlen(r->workspace), OP_WRITE, true,
                               &arena, &gp, &parent, &err);
        if (rc == 0) {
            if (mkdirat(parent, gp.name, 0777) < 0 && errno != EEXIST)
                rc = abx_fail_os(&err, errno, r->workspace);
            close(parent);
        }
        if (rc == 0)
            rc = guard_open(rule->guard, r->workspace, strlen(r->workspace), OP_EXEC,
                            O_PATH | O_DIRECTORY, 0, &arena, &gp, &r->cwd, &err);
    }
    if (rc < 0)
        refuse(r, "sandbox_error", "cannot create workspace %s: %s", r->workspace, err.message);
    arena_done(&arena);
    return rc;
}

/* Headers with tokens, for the adapter: [{server_label, url, headers}]. */
static int open_tools(struct runner *r)
{
    struct agents *ag = r->ag;
    json_t *ready = json_array();
    struct ag_error e = {0};
    bool lost = false;
    store_lock(ag->store);
    json_t *tools = agents_tools_with_secrets(ag, r->ref, r->tools, &lost);
    int rc = lost ? ag_fail(&e, 400, "agents.credential_unavailable", "vault_ids",
                            "header values of a tool are gone")
                  : agents_check_bindings(ag, tools, &e);
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        json_t *headers = json_object_get(json_object_get(tool, "transport"), "headers");
        headers = json_is_object(headers) ? json_deep_copy(headers) : json_object();
        autofree char *token = rc == 0 ? agents_token(ag, tool) : NULL;
        if (token) {
            autobuf struct buf value = BUF_INIT;
            buf_addf(&value, "Bearer %s", token);
            if (buf_str(&value)) {
                json_object_set_new(headers, "Authorization", json_text(value.data));
                redact_add(r->redact, value.data);
            }
            redact_add(r->redact, token);
        }
        const char *name;
        json_t *value;
        json_object_foreach(headers, name, value)
        {
            redact_add(r->redact, json_string_value(value));
            if (strncasecmp(json_string_value(value), "bearer ", 7) == 0)
                redact_add(r->redact, json_string_value(value) + 7);
        }
        json_array_append_new(
            ready,
            json_pack("{s:O, s:O, s:o}", "server_label", json_object_get(tool, "server_label"),
                      "url", json_object_get(json_object_get(tool, "transport"), "server_url"),
                      "headers", headers));
    }
    store_unlock(ag->store);
    json_decref(tools);
    json_decref(r->tools);
    r->tools = ready;
    return rc < 0 ? refuse(r, "authentication_error", "%s", e.message) : 0;
}

static char **env_of(const json_t *env)
{
    size_t n = json_object_size(env), bytes = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)env, name, value) bytes +=
        strlen(name) + json_string_length(value) + 2;
    char **block = malloc((n + 1) * sizeof(*block) + bytes);
    if (!block)
        return NULL;
    char *at = (char *)(block + n + 1);
    size_t i = 0;
    json_object_foreach((json_t *)env, name, value)
    {
        block[i++] = at;
        at += sprintf(at, "%s=%s", name, json_string_value(value)) + 1; /* counted above */
    }
    block[i] = NULL;
    return block;
}

static void prepare(void *data)
{
    struct runner *r = data;
    if (!r->search) { /* else it comes again, after an installation */
        if (open_workspace(r) < 0 || open_tools(r) < 0)
            return;
        r->search = strdup(json_string_value(json_object_get(r->env, "PATH")));
    }
    r->binary = runtime_find(r->search, r->ad->binary);
    if (!r->binary)
        return;
    const char *root = r->ag->set.state_dir;
    autobuf struct buf dir = BUF_INIT;
    buf_addf(&dir, "%s/run", root);
    if (buf_str(&dir))
        (void)mkdir(dir.data, 0700); /* exists from the second turn on */
    buf_addf(&dir, "/%s", r->t->id);
    if (!buf_str(&dir) || mkdir(dir.data, 0700) < 0) {
        refuse(r, "sandbox_error", "cannot make the turn's directory: %s", strerror(errno));
        return;
    }
    r->private_dir = strdup(dir.data);
    struct launch in = {
        .thread = r->thread,
        .workspace = r->workspace,
        .model = r->model,
        .effort = r->effort,
        .instructions = r->instructions,
        .before = r->before,
        .prompt = r->t->prompt,
        .prompt_len = r->t->prompt_len,
        .tools = r->tools,
        .private_dir = r->private_dir,
    };
    r->out.env = json_object();
    if (r->ad->launch(&in, &r->out, r->why, sizeof(r->why)) < 0) {
        snprintf(r->code, sizeof(r->code), "sandbox_error");
        return;
    }
    json_object_update(r->env, r->out.env);
    const struct rule *rule = policy_find(r->policy, "process_start");
    if (rule && (rule_list(rule, PARAM_allow_commands) || rule_list(rule, PARAM_deny_commands))) {
        struct arena arena;
        struct abx_error err;
        arena_init(&arena);
        char **argv = arena_alloc(&arena, (r->out.argv.n + 1) * sizeof(*argv));
        if (argv)
            memcpy(argv, r->out.argv.v, (r->out.argv.n + 1) * sizeof(*argv));
        if (!argv ||
            command_check(rule, argv, r->out.argv.n, r->binary, r->workspace, &arena, &err) < 0)
            refuse(r, "sandbox_error", "cannot start '%s': %s", r->ad->binary,
                   argv ? err.message : "out of memory");
        arena_done(&arena);
        if (r->why[0])
            return;
    }
    r->envp = env_of(r->env);
    if (!r->envp)
        refuse(r, "sandbox_error", "out of memory");
}

static void remove_private(struct runner *r)
{
    if (!r->private_dir)
        return;
    autobuf struct buf file = BUF_INIT;
    buf_addf(&file, "%s/settings.json", r->private_dir);
    if (buf_str(&file))
        (void)unlink(file.data); /* not every turn has one */
    (void)rmdir(r->private_dir); /* what is left is swept at the next start */
}

/* --- artifacts ----------------------------------------------------------------------------------
 */

void turn_wrote(struct turn *t, const char *path)
{
    struct runner *r = t->run;
    for (size_t i = 0; i < r->n_wrote; i++)
        if (strcmp(r->wrote[i], path) == 0)
            return;
    if (r->n_wrote >= MAX_ARTIFACTS)
        return;
    char **more = realloc(r->wrote, (r->n_wrote + 1) * sizeof(*more));
    if (!more)
        return;
    r->wrote = more;
    if ((more[r->n_wrote] = strdup(path)))
        r->n_wrote++;
}

void turn_unwrote(struct turn *t, const char *path)
{
    struct runner *r = t->run;
    for (size_t i = 0; i < r->n_wrote; i++)
        if (strcmp(r->wrote[i], path) == 0) {
            free(r->wrote[i]);
            r->wrote[i] = r->wrote[--r->n_wrote];
            return;
        }
}

static void keep(struct runner *r, const char *root, const char *path)
{
    size_t root_len = strlen(root), ws_len = strlen(r->workspace);
    const char *rel = path;
    if (*path == '/') {
        if (strncmp(path, root, root_len) == 0 && path[root_len] == '/')
            rel = path + root_len + 1;
        else if (strncmp(path, r->workspace, ws_len) == 0 && path[ws_len] == '/')
            rel = path + ws_len + 1;
        else
            return;
    }
    struct open_how how = {.flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    autoclose int fd = (int)syscall(SYS_openat2, r->cwd, rel, &how, sizeof(how));
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
        st.st_size > r->ag->set.max_artifact_bytes)
        return;
    /* Where it really lies, for the name and for the rule about .git. */
    char link[64], real[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, real, sizeof(real) - 1);
    if (n <= 0)
        return;
    real[n] = '\0';
    if (strncmp(real, root, root_len) != 0 || real[root_len] != '/')
        return;
    const char *inside = real + root_len + 1;
    if (strncmp(inside, ".git/", 5) == 0 || strstr(inside, "/.git/"))
        return;
    size_t at = r->n_kept;
    agents_new_id("artifact_", r->kept[at].id);
    autobuf struct buf to = BUF_INIT;
    buf_addf(&to, "%s/artifacts", r->ag->set.state_dir);
    if (buf_str(&to))
        (void)mkdir(to.data, 0700);
    buf_addf(&to, "/%s", r->kept[at].id);
    autoclose int out =
        buf_str(&to) ? open(to.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (out < 0)
        return;
    int64_t size = 0;
    char chunk[65536];
    ssize_t got;
    bool whole = true;
    while ((got = read(fd, chunk, sizeof(chunk))) > 0 && whole) {
        size += got;
        whole = size <= r->ag->set.max_artifact_bytes && write(out, chunk, (size_t)got) == got;
    }
    if (got < 0 || !whole) {
        (void)unlink(to.data);
        return;
    }
    struct buf shown = BUF_INIT;
    buf_addf(&shown, "/workspace/%s", inside);
    r->kept[at].path = buf_take(&shown, NULL);
    r->kept[at].size = size;
    if (r->kept[at].path)
        r->n_kept++;
    else
        (void)unlink(to.data);
}

static void collect(void *data)
{
    struct runner *r = data;
    remove_private(r);
    char link[64], root[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", r->cwd);
    ssize_t n = r->cwd >= 0 ? readlink(link, root, sizeof(root) - 1) : -1;
    if (n <= 0)
        return;
    root[n] = '\0';
    for (size_t i = 0; i < r->n_wrote && r->n_kept < MAX_ARTIFACTS; i++)
        keep(r, root, r->wrote[i]);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void over(struct runner *r)
{
    struct turn *t = r->t;
    struct session *s = r->s;
    const char *environment = json_string_value(json_object_get(s->cfg, "env_id"));
    for (size_t i = 0; i < r->n_kept; i++)
        store_post(r->ag->store,
                   "INSERT INTO artifacts(id, session, turn, environment, path, size, created) "
                   "VALUES(?,?,?,?,?,?,?)",
                   "sisssid", r->kept[i].id, s->rid, t->id,
                   environment ? environment : "env_agent_sandbox", r->kept[i].path,
                   r->kept[i].size, wall_seconds());
    if (r->cancelled)
        turn_over(t, "cancelled", NULL, NULL);
    else if (r->code[0])
        turn_over(t, "failed", r->code, r->why);
    else
        turn_over(t, "completed", NULL, NULL);
}

/* Decides how it ended; the first that applies: cancel, limit, what the CLI said, exit status. */
static void judge(struct runner *r)
{
    struct adapter_end end = {0};
    if (r->state)
        r->ad->finish(r->state, r->exit_code, &end);
    if (r->cancelled || r->code[0])
        return;
    autobuf struct buf tail = BUF_INIT;
    if (r->err_tail.len) {
        size_t len;
        autofree char *clean = utf8_replace(r->err_tail.data, r->err_tail.len, &len);
        while (clean && len && strchr(" \t\r\n", clean[len - 1]))
            clean[--len] = '\0';
        size_t from = len > STDERR_SHOWN ? len - STDERR_SHOWN : 0;
        while (clean && from < len && ((unsigned char)clean[from] & 0xC0) == 0x80)
            from++;
        while (clean && strchr(" \t\r\n", clean[from]) && clean[from])
            from++;
        if (clean)
            buf_adds(&tail, clean + from);
    }
    const char *err = tail.len ? buf_str(&tail) : NULL;
    if (spawner_stopping(r->ag->d.spawner)) {
        refuse(r, "internal_error", "the server stopped while the turn was running");
    } else if (r->limit_code) {
        refuse(r, r->limit_code, "%s", r->limit);
    } else if (end.fatal) {
        const char *code = end.code ? end.code : failure_code(end.message);
        refuse(r, code ? code : "internal_error", "%s", end.message);
    } else if (r->exit_code != 0) {
        const char *code = end.code ? end.code : err ? failure_code(err) : NULL;
        if (err)
            refuse(r, code ? code : "internal_error", "%s", err);
        else
            refuse(r, "internal_error", "%s exited with status %d", r->ad->binary, r->exit_code);
    } else if (!end.closed) {
        refuse(r, "internal_error", "%s ended without its closing record%s%s", r->ad->binary,
               err ? ": " : "", err ? err : "");
    }
}

static void collected(void *data) { over(data); }

static void finish(struct runner *r)
{
    if (r->t->state == TURN_ENDING)
        return;
    r->t->state = TURN_ENDING;
    for (int i = 0; i < 3; i++)
        if (r->open[i]) {
            io_done(&r->io[i]);
            r->open[i] = false;
        }
    timer_stop(&r->total);
    timer_stop(&r->idle);
    timer_stop(&r->stop);
    timer_stop(&r->drain);
    timer_stop(&r->retry);
    if (r->started) {
        line_end(&r->lines);
        judge(r);
    }
    if (r->cancelled || r->code[0]) {
        for (size_t i = 0; i < r->n_wrote; i++)
            free(r->wrote[i]);
        r->n_wrote = 0;
    }
    if (!r->private_dir || loop_work(r->ag->d.loop, WORK_SHORT, collect, collected, r) < 0)
        over(r);
}

static void finish_later(void *data) { finish(data); }

/* Once: the runner is gone soon after. */
static void finish_soon(struct runner *r)
{
    if (!r->posted)
        loop_post(r->ag->d.loop, finish_later, r);
    r->posted = true;
}

static void maybe_finish(struct runner *r)
{
    if (r->exited && !r->open[1] && !r->open[2])
        finish_soon(r);
}

/* --- stopping --------------------------------------------------------------------------------- */

static void stop_next(void *data)
{
    struct runner *r = data;
    static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
    static const uint64_t waits[] = {INT_MS, TERM_MS, 0};
    if (r->exited || !r->child || r->stage > 2)
        return;
    child_kill_group(r->child, signals[r->stage]);
    if (waits[r->stage])
        timer_start(&r->stop, waits[r->stage]);
    r->stage++;
}

static void begin_stop(struct runner *r)
{
    if (r->killed)
        return;
    r->killed = true;
    r->stage = 0;
    if (r->child)
        stop_next(r);
}

void runner_cancel(struct turn *t)
{
    struct runner *r = t->run;
    if (r->cancelled || t->state == TURN_ENDING)
        return;
    r->cancelled = true;
    if (r->install) { /* waiting for an installation: others may go on with it */
        list_remove(&r->node);
        r->install = NULL;
        finish_soon(r);
        return;
    }
    begin_stop(r);
}

static void limit(struct runner *r, const char *code, const char *before, long long n,
                  const char *after)
{
    if (r->limit_code)
        return;
    r->limit_code = code;
    snprintf(r->limit, sizeof(r->limit), "%s %lld%s", before, n, after);
    begin_stop(r);
}

static void on_total(void *data)
{
    struct runner *r = data;
    limit(r, "request_timeout", "turn exceeded", r->ag->set.turn_timeout_s, "s");
}

static void on_idle(void *data)
{
    struct runner *r = data;
    uint64_t now = mono_ms(), limit_ms = (uint64_t)r->ag->set.idle_timeout_s * 1000;
    if (turn_tool_runs(
            r->t)) { /* a long command is silent for good reason; the clock starts behind it */
        r->last_byte = now;
        timer_start(&r->idle, limit_ms);
    } else if (now - r->last_byte < limit_ms) {
        timer_start(&r->idle, limit_ms - (now - r->last_byte));
    } else {
        limit(r, "request_timeout", "no output for", r->ag->set.idle_timeout_s, "s");
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static void on_line(void *owner, char *text, size_t len)
{
    struct runner *r = owner;
    struct abx_error err;
    json_t *o = NULL;
    if (r->t->state == TURN_OVER || json_parse(text, len, &o, &err) < 0)
        return;
    if (json_is_object(o))
        r->ad->line(r->state, o);
    json_decref(o);
}

static void on_dropped(void *owner)
{
    struct runner *r = owner;
    struct item *it = turn_item(r->t, ITEM_CALL, NULL, NULL);
    if (!it)
        return;
    item_set_call(it, r->ad->name, "unreadable_line", NULL, false);
    item_announce(it);
    item_set_error(it, "[cut: a line of the agent's output was too long]");
    item_end(it, true);
}

static void close_pipe(struct runner *r, int i)
{
    if (!r->open[i])
        return;
    io_done(&r->io[i]);
    r->open[i] = false;
    close(r->fds[i]);
    r->fds[i] = -1;
}

static void retry_read(void *data)
{
    struct runner *r = data;
    if (store_backlog(r->ag->store) > BACKLOG_HIGH) {
        timer_start(&r->retry, 20);
        return;
    }
    r->paused = false;
    if (r->open[1])
        io_want(&r->io[1], UV_READABLE);
}

static void on_stdout(void *data, int events)
{
    struct runner *r = data;
    char chunk[65536];
    for (int round = 0; round < 4; round++) {
        ssize_t n = read(r->fds[1], chunk, sizeof(chunk));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            close_pipe(r, 1);
            maybe_finish(r);
            return;
        }
        r->last_byte = mono_ms();
        r->out_bytes += n;
        r->left -= n;
        if (r->out_bytes > r->ag->set.max_output_bytes) {
            limit(r, "sandbox_error", "agent output exceeded", r->ag->set.max_output_bytes,
                  " bytes");
            continue; /* read on so that it can end, but look at nothing */
        }
        if (!r->limit_code)
            line_feed(&r->lines, chunk, (size_t)n);
        if (r->drained && r->left <= 0) {
            close_pipe(r, 1);
            maybe_finish(r);
            return;
        }
        if (store_backlog(r->ag->store) > BACKLOG_HIGH) {
            r->paused = true;
            io_want(&r->io[1], 0);
            timer_start(&r->retry, 20);
            return;
        }
    }
}

static void on_stderr(void *data, int events)
{
    struct runner *r = data;
    char chunk[16384];
    for (int round = 0; round < 4; round++) {
        ssize_t n = read(r->fds[2], chunk, sizeof(chunk));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            close_pipe(r, 2);
            maybe_finish(r);
            return;
        }
        r->last_byte = mono_ms();
        buf_add(&r->err_tail, chunk, (size_t)n);
        if (r->err_tail.len > STDERR_KEEP)
            buf_consume(&r->err_tail, r->err_tail.len - STDERR_KEEP);
    }
}

static void on_stdin(void *data, int events)
{
    struct runner *r = data;
    while (r->written < r->out.input.len) {
        /* a socket: MSG_NOSIGNAL keeps a reader that left from being our end */
        ssize_t n = send(r->fds[0], r->out.input.data + r->written, r->out.input.len - r->written,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            break; /* it does not want to hear the rest */
        r->written += (size_t)n;
    }
    close_pipe(r, 0);
    buf_done(&r->out.input);
}

/* Somebody outside of the group holds the pipe open, or we are slow: what is in it now is still the agent's. */
static void on_drain(void *data)
{
    struct runner *r = data;
    int waiting = 0;
    if (r->open[1] && (ioctl(r->fds[1], FIONREAD, &waiting) < 0 || waiting <= 0))
        close_pipe(r, 1);
    r->drained = true;
    r->left = waiting;
    close_pipe(r, 2);
    maybe_finish(r);
}

/* --- the child ----------------------------------------------------------------------------------
 */

static void close_given(struct runner *r, int *given)
{
    for (int i = 0; i < 3; i++)
        if (given[i] >= 0)
            close(given[i]);
}

struct starting { /* the child's ends, ours until it has them */
    struct runner *r;
    int given[3];
};

static void on_exited(void *owner, struct child *child, int status)
{
    struct starting *st = owner;
    struct runner *r = st->r;
    r->exited = true;
    r->exit_code = child_status_code(status);
    timer_stop(&r->stop);
    close_pipe(r, 0);
    timer_start(&r->drain, DRAIN_MS);
    free(st);
    maybe_finish(r);
}

static void on_started(void *owner, struct child *child, int sys)
{
    struct starting *st = owner;
    struct runner *r = st->r;
    close_given(r, st->given);
    if (sys) {
        if (sys == ENOENT)
            refuse(r, "sandbox_error",
                   "'%s' was not found on PATH, or the interpreter it names was not; %s%s",
                   r->ad->binary,
                   r->ad->package ? "install it with: npm install -g " : "see its documentation",
                   r->ad->package ? r->ad->package : "");
        else
            refuse(r, "sandbox_error", "cannot start '%s': %s", r->ad->binary, strerror(sys));
        free(st);
        finish(r);
        return;
    }
    r->child = child;
    r->started = true;
    r->t->state = TURN_RUNNING;
    r->last_byte = mono_ms();
    timer_start(&r->total, (uint64_t)r->ag->set.turn_timeout_s * 1000);
    timer_start(&r->idle, (uint64_t)r->ag->set.idle_timeout_s * 1000);
    static void (*const fns[3])(void *, int) = {on_stdin, on_stdout, on_stderr};
    for (int i = 0; i < 3; i++) {
        if (io_init(&r->io[i], r->ag->d.loop, r->fds[i], fns[i], r) < 0)
            continue;
        r->open[i] = true;
        io_want(&r->io[i], i == 0 ? UV_WRITABLE : UV_READABLE);
    }
    if (r->killed)
        stop_next(r);
}

static int launch_child(struct runner *r)
{
    struct starting *st = calloc(1, sizeof(*st));
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err_fds[2] = {-1, -1};
    if (!st || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) < 0 ||
        pipe2(out, O_CLOEXEC) < 0 || pipe2(err_fds, O_CLOEXEC) < 0) {
        refuse(r, "sandbox_error", "cannot start '%s': %s", r->ad->binary, strerror(errno));
        goto fail;
    }
    /* Qwen Code exits without waiting for a pipe that is full, and its last lines are lost. */
    (void)fcntl(out[0], F_SETPIPE_SZ, 1 * MIB);
    (void)fcntl(in[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(out[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(err_fds[0], F_SETFL, O_NONBLOCK);
    st->r = r;
    r->fds[0] = in[0];
    r->fds[1] = out[0];
    r->fds[2] = err_fds[0];
    st->given[0] = in[1];
    st->given[1] = out[1];
    st->given[2] = err_fds[1];
    static const struct child_ops ops = {.started = on_started, .exited = on_exited};
    struct spawn_opts opts = {
        .file = r->binary,
        .argv = r->out.argv.v,
        .envp = r->envp,
        .cwd_fd = r->cwd,
        .fds = {in[1], out[1], err_fds[1]},
        .uid = -1,
        .gid = -1,
        .sweep = true, /* background children end with their turn */
    };
    struct abx_error err;
    if (spawn_start(r->ag->d.spawner, &opts, &ops, st, &err) < 0) {
        refuse(r, "sandbox_error", "cannot start '%s': %s", r->ad->binary, err.message);
        close_given(r, st->given);
        free(st);
        return -1;
    }
    return 0;
fail:
    for (int i = 0; i < 2; i++) {
        if (in[i] >= 0)
            close(in[i]);
        if (out[i] >= 0)
            close(out[i]);
        if (err_fds[i] >= 0)
            close(err_fds[i]);
    }
    free(st);
    return -1;
}

/* --- installing on demand ------------------------------------------------------------------------
 */

static void prepared_again(void *data);

static void install_free(struct install *in)
{
    list_remove(&in->node);
    if (in->reading)
        io_done(&in->io);
    if (in->fd >= 0)
        close(in->fd);
    if (in->child_fd >= 0)
        close(in->child_fd);
    if (in->cwd >= 0)
        close(in->cwd);
    timer_done(&in->timeout);
    child_free(in->child, true);
    buf_done(&in->tail);
    free(in);
}

static void install_done(struct install *in, const char *why)
{
    struct list waiters;
    list_init(&waiters);
    while (!list_empty(&in->waiters)) {
        struct list *n = in->waiters.next;
        list_remove(n);
        list_append(&waiters, n);
    }
    while (!list_empty(&waiters)) {
        struct runner *r = list_entry(waiters.next, struct runner, node);
        list_remove(&r->node);
        r->install = NULL;
        if (r->install_item) {
            item_end(r->install_item, why != NULL);
            r->install_item = NULL;
        }
        if (why) {
            refuse(r, "sandbox_error", "installing %s failed: %s", r->ad->package, why);
            finish(r);
        } else if (loop_work(r->ag->d.loop, WORK_SHORT, prepare, prepared_again, r) < 0) {
            refuse(r, "sandbox_error", "out of memory");
            finish(r);
        }
    }
    install_free(in);
}

static void install_settle(struct install *in)
{
    if (!in->exited || in->reading)
        return;
    char why[600] = "";
    int code = child_status_code(in->status);
    if (code != 0) {
        size_t from = in->tail.len > 400 ? in->tail.len - 400 : 0;
        autofree char *tail =
            utf8_replace(in->tail.data ? in->tail.data + from : "", in->tail.len - from, NULL);
        snprintf(why, sizeof(why), "npm exited with status %d: %s", code, tail ? tail : "");
    }
    install_done(in, code ? why : NULL);
}

static void install_read(void *data, int events)
{
    struct install *in = data;
    char chunk[8192];
    ssize_t n = read(in->fd, chunk, sizeof(chunk));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        buf_add(&in->tail, chunk, (size_t)n);
        if (in->tail.len > STDERR_KEEP)
            buf_consume(&in->tail, in->tail.len - STDERR_KEEP);
        autofree char *text = utf8_replace(in->tail.data, in->tail.len, NULL);
        list_for_each(it, &in->waiters)
        {
            struct runner *r = list_entry(it, struct runner, node);
            if (r->install_item && text)
                item_output(r->install_item, text, strlen(text));
        }
        return;
    }
    io_done(&in->io);
    in->reading = false;
    install_settle(in);
}

static void install_timeout(void *data)
{
    struct install *in = data;
    if (in->child)
        child_terminate(in->child, 1000);
}

static void install_started(void *owner, struct child *child, int sys)
{
    struct install *in = owner;
    close(take_fd(&in->child_fd));
    if (sys) {
        install_done(in, sys == ENOENT ? "npm was not found on PATH" : strerror(sys));
        return;
    }
    in->child = child;
    timer_start(&in->timeout, INSTALL_MS);
    in->reading = io_init(&in->io, in->ag->d.loop, in->fd, install_read, in) == 0;
    if (in->reading)
        io_want(&in->io, UV_READABLE);
}

static void install_exited(void *owner, struct child *child, int status)
{
    struct install *in = owner;
    in->exited = true;
    in->status = status;
    install_settle(in);
}

static void wait_for_install(struct runner *r, struct install *in, const char *command)
{
    r->install = in;
    list_append(&in->waiters, &r->node);
    r->install_item = turn_item(r->t, ITEM_COMMAND, NULL, "install");
    if (r->install_item) {
        item_set_command(r->install_item, command);
        r->install_item->live = true;
        item_announce(r->install_item);
    }
}

/* Begins, or joins, the installation of the runtime. */
static int install(struct runner *r)
{
    struct agents *ag = r->ag;
    autobuf struct buf dir = BUF_INIT, spec = BUF_INIT, command = BUF_INIT;
    const char *version = r->ad == &adapter_codex ? ag->set.codex_version : ag->set.qwen_version;
    buf_addf(&spec, "%s@%s", r->ad->package, version);
    buf_addf(&dir, "%s/cli", ag->set.state_dir);
    if (!buf_str(&spec) || !buf_str(&dir))
        return refuse(r, "sandbox_error", "out of memory");
    (void)mkdir(dir.data, 0700);
    buf_addf(&dir, "/%s", r->ad->name);
    if (!buf_str(&dir) || (mkdir(dir.data, 0700) < 0 && errno != EEXIST))
        return refuse(r, "sandbox_error", "cannot make the directory to install into: %s",
                      strerror(errno));
    buf_addf(&command, "npm install --prefix %s %s", dir.data, spec.data);
    if (!buf_str(&command))
        return refuse(r, "sandbox_error", "out of memory");
    list_for_each(it, &ag->installs)
    {
        struct install *in = list_entry(it, struct install, node);
        if (in->ad == r->ad) {
            wait_for_install(r, in, command.data);
            return 0;
        }
    }
    struct install *in = calloc(1, sizeof(*in));
    int pipe_fds[2] = {-1, -1};
    if (!in || pipe2(pipe_fds, O_CLOEXEC) < 0) {
        free(in);
        return refuse(r, "sandbox_error", "cannot start npm: %s", strerror(errno));
    }
    (void)fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    *in = (struct install){.ag = ag, .ad = r->ad, .fd = pipe_fds[0], .child_fd = pipe_fds[1]};
    in->cwd = open(dir.data, O_PATH | O_DIRECTORY | O_CLOEXEC);
    list_init(&in->node);
    list_init(&in->waiters);
    timer_init(&in->timeout, ag->d.loop, install_timeout, in);
    list_append(&ag->installs, &in->node);
    char *const argv[] = {"npm",       "install",       "--prefix",   dir.data, "--no-audit",
                          "--no-fund", "--no-progress", "--loglevel", "http",   spec.data,
                          NULL};
    autofree char **envp = env_of(r->env);
    static const struct child_ops ops = {.started = install_started, .exited = install_exited};
    struct spawn_opts opts = {.file = "npm",
                              .argv = argv,
                              .envp = envp,
                              .cwd_fd = in->cwd,
                              .fds = {-1, pipe_fds[1], pipe_fds[1]},
                              .uid = -1,
                              .gid = -1,
                              .helper = true,
                              .sweep = true};
    struct abx_error err;
    int rc = envp ? spawn_start(ag->d.spawner, &opts, &ops, in, &err) : -1;
    if (rc < 0) {
        install_free(in);
        return refuse(r, "sandbox_error", "cannot start npm: %s",
                      envp ? err.message : "out of memory");
    }
    wait_for_install(r, in, command.data);
    return 0;
}

/* --- starting ----------------------------------------------------------------------------------
 */

static void missing(struct runner *r)
{
    if (r->ad->package)
        refuse(r, "sandbox_error",
               "'%s' was not found on PATH; install it with: npm install -g %s (GET "
               "/v1/agents/runtimes lists the steps)",
               r->ad->binary, r->ad->package);
    else
        refuse(r, "sandbox_error", "'%s' was not found on PATH", r->ad->binary);
}

static void prepared(void *data)
{
    struct runner *r = data;
    if (!r->cancelled && !r->code[0] && !r->binary) {
        if (r->ag->set.install && r->ad->package) {
            if (install(r) == 0)
                return;
        } else {
            missing(r);
        }
    }
    if (r->cancelled || r->code[0]) {
        finish(r);
        return;
    }
    r->state = r->ad->begin(r->t);
    if (!r->state) {
        refuse(r, "sandbox_error", "out of memory");
        finish(r);
        return;
    }
    if (launch_child(r) < 0)
        finish(r);
}

static void prepared_again(void *data)
{
    struct runner *r = data;
    if (!r->cancelled && !r->code[0] && !r->binary)
        missing(r);
    prepared(r);
}

static char *copy(const char *s) { return s ? strdup(s) : NULL; }

void runner_start(struct turn *t)
{
    struct session *s = t->session;
    struct agents *ag = t->ag;
    struct runner *r = calloc(1, sizeof(*r));
    t->run = r;
    if (!r) {
        turn_over(t, "failed", "sandbox_error", "out of memory");
        return;
    }
    *r = (struct runner){
        .t = t, .ag = ag, .s = s, .ad = session_adapter(s), .cwd = -1, .fds = {-1, -1, -1}};
    list_init(&r->items);
    list_init(&r->node);
    timer_init(&r->total, ag->d.loop, on_total, r);
    timer_init(&r->idle, ag->d.loop, on_idle, r);
    timer_init(&r->stop, ag->d.loop, stop_next, r);
    timer_init(&r->drain, ag->d.loop, on_drain, r);
    timer_init(&r->retry, ag->d.loop, retry_read, r);
    r->lines = (struct line_reader){.max_string = AG_TEXT_MAX + 1,
                                    .max_line = MAX_LINE,
                                    .line = on_line,
                                    .dropped = on_dropped,
                                    .owner = r};
    r->redact = redact_new();
    r->policy = policy_ref(ag->d.policy(ag->d.policy_data));
    const json_t *cfg = s->cfg;
    r->workspace = copy(json_string_value(json_object_get(cfg, "workspace")));
    r->thread = copy(s->thread);
    r->model = copy(t->model ? t->model : json_string_value(json_object_get(cfg, "cli_model")));
    r->effort = copy(json_string_value(json_object_get(cfg, "effort")));
    r->instructions = copy(json_string_value(json_object_get(cfg, "instructions")));
    r->before = copy(t->instructions);
    r->ref = copy(t->tools ? t->id : s->id);
    r->tools = t->tools ? json_deep_copy(t->tools) : json_deep_copy(json_object_get(cfg, "tools"));
    if (!r->redact || !r->workspace || !r->ad) {
        refuse(r, "sandbox_error", "out of memory");
        finish_soon(r);
        return;
    }
    build_env(r);
    if (loop_work(ag->d.loop, WORK_SHORT, prepare, prepared, r) < 0) {
        refuse(r, "sandbox_error", "out of memory");
        finish_soon(r);
    }
}
