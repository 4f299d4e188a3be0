#include "browser/chrome.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/num.h"
#include "base/own.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#define PIPE_SIZE (1 * MIB)
#define STDERR_KEEP (8 * KIB)
#define SHM_NEEDED (256 * (uint64_t)MIB)
#define TERM_GRACE_MS 1500
#define LOCK_NAME "owner"

struct chrome {
    struct loop *loop;
    struct spawner *spawner;
    struct chrome_ops ops;
    void *owner;
    bool stopped; /* chrome_stop was called: free when nothing is under way */
    bool busy;    /* a worker or a spawn holds it */
    int proxy_port;
    bool no_sandbox;
    char *search_path, *state_dir, *tmp_dir;
    char **envp; /* inherited part, NULL-terminated; one block */
    char *wanted, *program;
    char *profile; /* NULL: none */
    int lock_fd;
    struct abx_error err; /* of the worker */
    bool prepared;
    int pipe_in[2], pipe_out[2], pipe_err[2]; /* child's 3, 4 and 2 */
    struct spawn_extra extra[2];
    struct child *child;
    struct io err_io;
    bool err_watched;
    struct buf words;
    char last[256];
};

/* --- profiles ------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    (void)remove(path); /* what can't be removed keeps its parent; the next start tries again */
    return 0;
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static char *join(const char *a, const char *b)
{
    char *s = NULL;
    return asprintf(&s, "%s/%s", a, b) < 0 ? NULL : s;
}

static char *home_of_profiles(const char *root)
{
    char *s = NULL;
    return asprintf(&s, "%s/abx-browser-%u", root, (unsigned)geteuid()) < 0 ? NULL : s;
}

/* Ours alone: in /tmp anybody may have made a directory of that name. */
static bool is_private_dir(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           (st.st_mode & 077) == 0;
}

/* A descriptor that holds the lock of a profile, or -1: somebody lives there, or there is none. */
static int take_lock(const char *profile, int flags)
{
    autofree char *path = join(profile, LOCK_NAME);
    if (!path)
        return -1;
    autoclose int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return -1;
    return take_fd(&fd);
}

static void clean_root(const char *root)
{
    autofree char *home = home_of_profiles(root);
    if (!home || !is_private_dir(home))
        return;
    DIR *d = opendir(home);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, "p-", 2) != 0)
            continue;
        autofree char *profile = join(home, e->d_name);
        autoclose int fd = profile ? take_lock(profile, 0) : -1;
        struct stat st;
        if (fd >= 0) {
            remove_tree(profile);
        } else if (profile && errno == ENOENT && lstat(profile, &st) == 0 &&
                   st.st_mtime + 3600 < time(NULL)) {
            remove_tree(profile); /* a server died between making it and locking it */
        }
    }
    closedir(d);
    (void)rmdir(home); /* fails while a live one is in it */
}

static char *make_profile(const char *root, int *ret_lock)
{
    autofree char *home = home_of_profiles(root);
    if (!home || (mkdir(home, 0700) < 0 && errno != EEXIST) || !is_private_dir(home))
        return NULL;
    autofree char *profile = join(home, "p-XXXXXX");
    if (!profile || !mkdtemp(profile))
        return NULL;
    autoclose int fd = take_lock(profile, O_CREAT);
    if (fd < 0) {
        remove_tree(profile);
        return NULL;
    }
    *ret_lock = take_fd(&fd);
    return take_ptr(profile);
}

static void drop_profile(struct chrome *c)
{
    if (c->profile)
        remove_tree(c->profile);
    if (c->lock_fd >= 0)
        close(take_fd(&c->lock_fd));
    if (c->profile) {
        *strrchr(c->profile, '/') = '\0';
        (void)rmdir(c->profile); /* the directory of all profiles, when this was the last */
    }
    free(take_ptr(c->profile));
}

struct leftovers {
    char *roots[4];
};

static void leftovers_work(void *data)
{
    struct leftovers *l = data;
    for (size_t i = 0; i < ARRAY_LEN(l->roots); i++) {
        if (l->roots[i])
            clean_root(l->roots[i]);
        free(l->roots[i]);
    }
}

static void leftovers_done(void *data) { free(data); }

void chrome_clean_leftovers(struct loop *loop, const char *state_dir)
{
    const char *roots[4] = {getenv("TMPDIR"), "/tmp", "/dev/shm", state_dir};
    struct leftovers *l = NULL;
    for (size_t i = 0; i < ARRAY_LEN(roots); i++) {
        if (!roots[i] || !*roots[i])
            continue;
        autofree char *home = home_of_profiles(roots[i]);
        if (!home || !is_private_dir(home))
            continue;
        if (!l)
            l = calloc(1, sizeof *l);
        if (!l)
            return;
        l->roots[i] = strdup(roots[i]);
    }
    if (l && loop_work(loop, WORK_LONG, leftovers_work, leftovers_done, l) < 0) {
        for (size_t i = 0; i < ARRAY_LEN(l->roots); i++)
            free(l->roots[i]);
        free(l);
    }
}

/* --- finding -------------------------------------------------------------------------------- */

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

char *chrome_find(const char *search_path)
{
    static const char *const names[] = {
        "chromium", "chromium-browser",        "google-chrome-stable", "google-chrome",
        "chrome",   "chromium-headless-shell", "headless_shell",       "microsoft-edge-stable",
    };
    if (!search_path || !*search_path)
        search_path = "/usr/local/bin:/usr/bin:/bin";
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (const char *p = search_path; *p;) {
            size_t n = strcspn(p, ":");
            if (n > 0 && *p == '/') {
                char *path = NULL;
                if (asprintf(&path, "%.*s/%s", (int)n, p, names[i]) < 0)
                    return NULL;
                if (is_program(path))
                    return path;
                free(path);
            }
            p += n + (p[n] == ':');
        }
    }
    return NULL;
}

/* --- starting ------------------------------------------------------------------------------- */

static void release(struct chrome *c)
{
    free(c->search_path);
    free(c->state_dir);
    free(c->tmp_dir);
    free(c->envp);
    free(c->wanted);
    free(c->program);
    buf_done(&c->words);
    free(c);
}

static void close_pair(int fds[2])
{
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(take_fd(&fds[i]));
    }
}

static void unwatch_words(struct chrome *c)
{
    if (c->err_watched)
        io_done(&c->err_io);
    c->err_watched = false;
}

static void drop_work(void *data) { drop_profile(data); }

static void drop_done(void *data) { release(data); }

/* Nothing runs any more: the profile goes, then the struct. */
static void bury(struct chrome *c)
{
    unwatch_words(c);
    close_pair(c->pipe_in);
    close_pair(c->pipe_out);
    close_pair(c->pipe_err);
    if (c->child)
        child_free(take_ptr(c->child), true);
    if (!c->profile && c->lock_fd < 0) {
        release(c);
        return;
    }
    if (loop_work(c->loop, WORK_LONG, drop_work, drop_done, c) < 0) {
        drop_profile(c);
        release(c);
    }
}

static void fail(struct chrome *c, const struct abx_error *err)
{
    if (c->stopped)
        bury(c);
    else
        c->ops.failed(c->owner, err);
}

static void prepare_work(void *data)
{
    struct chrome *c = data;
    if (c->wanted) {
        if (!is_program(c->wanted)) {
            abx_fail(&c->err, E_RUNTIME_503, 0,
                     "ABX_BROWSER_PATH names no program that can be executed: %s", c->wanted);
            return;
        }
        c->program = strdup(c->wanted);
    } else {
        c->program = chrome_find(c->search_path);
        if (!c->program) {
            abx_fail(
                &c->err, E_RUNTIME_503, 0,
                "No browser is installed: install Chromium (Debian: apt-get install chromium) or "
                "set ABX_BROWSER_PATH");
            return;
        }
    }
    const char *roots[] = {c->tmp_dir, "/tmp", "/dev/shm", c->state_dir};
    for (size_t i = 0; i < ARRAY_LEN(roots); i++) {
        if (roots[i])
            clean_root(roots[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(roots) && !c->profile; i++) {
        if (roots[i])
            c->profile = make_profile(roots[i], &c->lock_fd);
    }
    if (!c->program || !c->profile) {
        abx_fail(
            &c->err, E_RUNTIME_503, 0,
            "No place for the browser's profile in TMPDIR, /tmp, /dev/shm or the state directory");
        return;
    }
    c->prepared = true;
}

static void on_words(void *data, int events)
{
    struct chrome *c = data;
    char piece[4096];
    ssize_t n = read(c->pipe_err[0], piece, sizeof piece);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        unwatch_words(c);
        return;
    }
    buf_add(&c->words, piece, (size_t)n);
    if (c->words.len > 2 * STDERR_KEEP)
        buf_consume(&c->words, c->words.len - STDERR_KEEP);
}

/* What Chromium says on any machine without a desktop, and at its end. */
static bool is_noise(const char *line, size_t len)
{
    static const char *const noise[] = {"dbus", "DevTools listening", "devtools_pipe_handler"};
    for (size_t i = 0; i < ARRAY_LEN(noise); i++) {
        if (memmem(line, len, noise[i], strlen(noise[i])))
            return true;
    }
    return len == 0;
}

const char *chrome_last_words(struct chrome *c)
{
    if (c->err_watched)
        on_words(c, UV_READABLE);
    c->last[0] = '\0';
    for (size_t at = 0; at < c->words.len;) {
        const char *line = c->words.data + at;
        const char *end = memchr(line, '\n', c->words.len - at);
        size_t len = end ? (size_t)(end - line) : c->words.len - at;
        at += len + 1;
        if (is_noise(line, len))
            continue;
        size_t n = len < sizeof c->last - 1 ? len : sizeof c->last - 1;
        memcpy(c->last, line, n);
        c->last[n] = '\0';
    }
    return c->last;
}

static void on_started(void *owner, struct child *child, int sys)
{
    struct chrome *c = owner;
    c->busy = false;
    c->child = child;
    close(take_fd(&c->pipe_in[0]));
    close(take_fd(&c->pipe_out[1]));
    close(take_fd(&c->pipe_err[1]));
    if (!child) {
        struct abx_error err;
        abx_fail(&err, E_RUNTIME_503, sys, "The browser %s could not be executed: %s", c->program,
                 strerror(sys));
        fail(c, &err);
        return;
    }
    if (c->stopped) {
        close_pair(c->pipe_in);
        close_pair(c->pipe_out);
        child_terminate(child, TERM_GRACE_MS);
        return;
    }
    c->err_watched = io_init(&c->err_io, c->loop, c->pipe_err[0], on_words, c) == 0 &&
                     io_want(&c->err_io, UV_READABLE) == 0;
    int read_fd = take_fd(&c->pipe_out[0]), write_fd = take_fd(&c->pipe_in[1]);
    c->ops.up(c->owner, read_fd, write_fd);
}

static void on_exited(void *owner, struct child *child, int status)
{
    struct chrome *c = owner;
    child_kill_group(child, SIGKILL); /* helpers that outlived their browser */
    if (c->stopped)
        bury(c);
    else
        c->ops.exited(c->owner, status);
}

static bool shared_memory_is_small(void)
{
    struct statvfs v;
    return statvfs("/dev/shm", &v) < 0 || (uint64_t)v.f_bavail * v.f_frsize < SHM_NEEDED;
}

/* Puts together argv or envp: strings in one buffer, taken over by the array. */
struct words {
    char *items[96];
    size_t n;
    bool failed;
};

static void words_add(struct words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void words_add(struct words *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = NULL;
    if (w->n + 1 >= ARRAY_LEN(w->items) || vasprintf(&s, fmt, ap) < 0)
        w->failed = true;
    else
        w->items[w->n++] = s;
    va_end(ap);
}

static void words_done(struct words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->items[i]);
}

static void build_args(struct words *w, const struct chrome *c)
{
    static const char *const flags[] = {
        "--headless=new",
        "--remote-debugging-pipe",
        "--enable-automation",
        "--no-first-run",
        "--no-default-browser-check",
        "--no-service-autorun",
        "--disable-background-networking",
        "--disable-background-timer-throttling",
        "--disable-backgrounding-occluded-windows",
        "--disable-renderer-backgrounding",
        "--disable-breakpad",
        "--disable-client-side-phishing-detection",
        "--disable-component-extensions-with-background-pages",
        "--disable-component-update",
        "--disable-default-apps",
        "--disable-extensions",
        "--disable-gpu",
        "--disable-hang-monitor",
        "--disable-ipc-flooding-protection",
        "--disable-prompt-on-repost",
        "--disable-search-engine-choice-screen",
        "--disable-sync",
        "--disable-quic",
        "--enable-unsafe-swiftshader",
        "--force-color-profile=srgb",
        /* UDP would go around the proxy. Chromium reads the one, its headless shell the other. */
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--hide-scrollbars",
        "--lang=en-US",
        "--metrics-recording-only",
        "--mute-audio",
        "--password-store=basic",
        "--use-mock-keychain",
        "--window-size=1280,720",
        /* It calls nobody on its own account: neither for components nor for a signed-in user, and (below) not for the
         * time and the fields of forms. Nothing listens there, and our proxy would say no. */
        "--component-updater=url-source=http://127.0.0.1:1/",
        "--gaia-url=http://127.0.0.1:1/",
        /* Frames share their page's process, so one session sees every request of a page; and no
         * windows of the address bar, which would cost two renderers. */
        "--disable-site-isolation-trials",
        "--disable-features=IsolateOrigins,site-per-process,Translate,MediaRouter,"
        "OptimizationHints,"
        "AcceptCHFrame,DialMediaRouteProvider,GlobalMediaControls,HttpsUpgrades,"
        "InterestFeedContentSuggestions,"
        "WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,AimEnabled,"
        "PreloadTopChromeWebUI,"
        "SpareRendererForSitePerProcess,BackForwardCache,LocalNetworkAccessChecks,AutoDeElevate,"
        "NetworkTimeServiceQuerying,AutofillServerCommunication",
    };
    words_add(w, "%s", c->program);
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        words_add(w, "%s", flags[i]);
    words_add(w, "--user-data-dir=%s", c->profile);
    words_add(w, "--crash-dumps-dir=%s", c->profile);
    if (geteuid() == 0 || c->no_sandbox)
        words_add(w, "--no-sandbox");
    if (shared_memory_is_small())
        words_add(w, "--disable-dev-shm-usage");
    if (c->proxy_port > 0) {
        words_add(w, "--proxy-server=socks5://127.0.0.1:%d", c->proxy_port);
        words_add(w, "--proxy-bypass-list=<-loopback>"); /* loopback goes through it too */
    }
    words_add(w, "about:blank");
}

static void build_env(struct words *w, const struct chrome *c)
{
    for (char **e = c->envp; *e; e++) {
        static const char *const kept[] = {"HOME=", "LANG=",       "LANGUAGE=",     "LC_",
                                           "TZ=",   "FONTCONFIG_", "XDG_DATA_DIRS="};
        static const char *const proxies[] = {
            "http_proxy=", "https_proxy=", "all_proxy=", "no_proxy="};
        bool keep = false;
        for (size_t i = 0; i < ARRAY_LEN(kept) && !keep; i++)
            keep = strncmp(*e, kept[i], strlen(kept[i])) == 0;
        for (size_t i = 0; i < ARRAY_LEN(proxies) && !keep && c->proxy_port == 0; i++)
            keep = strncasecmp(*e, proxies[i], strlen(proxies[i])) == 0;
        if (keep && strlen(*e) < 4096)
            words_add(w, "%s", *e);
    }
    const char *libraries = getenv("LD_LIBRARY_PATH");
    words_add(w, "PATH=%s", *c->search_path ? c->search_path : "/usr/local/bin:/usr/bin:/bin");
    if (libraries)
        words_add(w, "LD_LIBRARY_PATH=%s", libraries);
    words_add(w, "TMPDIR=%s", c->profile);
    words_add(w, "XDG_CONFIG_HOME=%s", c->profile);
    words_add(w, "XDG_CACHE_HOME=%s", c->profile);
    words_add(w, "BREAKPAD_DUMP_LOCATION=%s", c->profile);
    words_add(w, "DBUS_SESSION_BUS_ADDRESS=disabled:");
}

static int launch(struct chrome *c, struct abx_error *err)
{
    if (pipe2(c->pipe_in, O_CLOEXEC) < 0 || pipe2(c->pipe_out, O_CLOEXEC) < 0 ||
        pipe2(c->pipe_err, O_CLOEXEC) < 0)
        return abx_fail(err, E_RUNTIME_503, errno, "No pipes for the browser: %s", strerror(errno));
    if (fcntl(c->pipe_err[0], F_SETFL, O_NONBLOCK) < 0)
        return abx_fail_os(err, errno, NULL);
    /* Larger pipes save wake-ups for screenshots; the default works too. */
    (void)fcntl(c->pipe_in[0], F_SETPIPE_SZ, PIPE_SIZE);
    (void)fcntl(c->pipe_out[0], F_SETPIPE_SZ, PIPE_SIZE);

    struct words args = {0}, env = {0};
    build_args(&args, c);
    build_env(&env, c);
    c->extra[0] = (struct spawn_extra){.child_fd = 3, .fd = c->pipe_in[0]};
    c->extra[1] = (struct spawn_extra){.child_fd = 4, .fd = c->pipe_out[1]};
    struct spawn_opts opts = {
        .file = c->program,
        .argv = args.items,
        .envp = env.items,
        .cwd_fd = -1,
        .fds = {-1, -1, c->pipe_err[1]},
        .extra = c->extra,
        .n_extra = 2,
        .uid = -1,
        .gid = -1,
        .helper = true,
    };
    static const struct child_ops ops = {.started = on_started, .exited = on_exited};
    int r = args.failed || env.failed ? abx_fail(err, E_NO_MEMORY, 0, "out of memory")
                                      : spawn_start(c->spawner, &opts, &ops, c, err);
    words_done(&args);
    words_done(&env);
    return r;
}

static void prepare_done(void *data)
{
    struct chrome *c = data;
    c->busy = false;
    struct abx_error err = c->err;
    if (c->stopped) {
        bury(c);
    } else if (!c->prepared || launch(c, &err) < 0) {
        fail(c, &err);
    } else {
        c->busy = true; /* until `started` */
    }
}

struct chrome *chrome_start(const struct chrome_config *config, const struct chrome_ops *ops,
                            void *owner, struct abx_error *err)
{
    struct chrome *c = calloc(1, sizeof *c);
    if (!c) {
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    c->loop = config->loop;
    c->spawner = config->spawner;
    c->ops = *ops;
    c->owner = owner;
    c->proxy_port = config->proxy_port;
    c->no_sandbox = config->no_sandbox;
    c->lock_fd = -1;
    for (int i = 0; i < 2; i++)
        c->pipe_in[i] = c->pipe_out[i] = c->pipe_err[i] = -1;
    /* Of the server's own environment: what a client puts into /env chooses no program. */
    const char *tmp = getenv("TMPDIR"), *path = getenv("PATH");
    c->search_path = strdup(path ? path : "");
    c->state_dir = config->state_dir ? strdup(config->state_dir) : NULL;
    c->tmp_dir = tmp && *tmp == '/' ? strdup(tmp) : NULL;
    c->wanted = config->path ? strdup(config->path) : NULL;
    c->envp = env_block(config->env, NULL);
    if (!c->search_path || !c->envp || (config->path && !c->wanted) ||
        loop_work(c->loop, WORK_SHORT, prepare_work, prepare_done, c) < 0) {
        release(c);
        abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        return NULL;
    }
    c->busy = true;
    return c;
}

void chrome_stop(struct chrome *c)
{
    if (!c || c->stopped)
        return;
    c->stopped = true;
    if (c->busy)
        return; /* its completion sees `stopped` */
    if (c->child && child_running(c->child))
        child_terminate(c->child, TERM_GRACE_MS);
    else
        bury(c);
}

void chrome_stop_now(struct chrome *c)
{
    if (!c)
        return;
    unwatch_words(c);
    close_pair(c->pipe_in);
    close_pair(c->pipe_out);
    close_pair(c->pipe_err);
    if (c->child)
        child_free(take_ptr(c->child), true);
    drop_profile(c);
    release(c);
}

pid_t chrome_pid(const struct chrome *c)
{
    return c && c->child && child_running(c->child) ? child_pid(c->child) : 0;
}

const char *chrome_program(const struct chrome *c) { return c && c->program ? c->program : ""; }
