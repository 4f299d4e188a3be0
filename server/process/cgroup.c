#include "process/cgroup.h"

/* A cgroup is a number; but for a few warm ones, its directory is opened when a program starts in it.
 * `free` holds numbers whose program has ended, looked at (cgroup.events) before they are used;
 * `occupied` those in which something was still running then; `killed` those that are of no use any
 * more: since Linux 6.14 what CLONE_INTO_CGROUP puts into a cgroup that was once killed is killed
 * at birth (it compares the kill count with that of the parent's cgroup). All only name
 * directories, so losing a number costs an empty directory until we stop, no more. The lock is not
 * held during system calls, but for the set-up. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/own.h"

#define OCCUPIED_MIN 64 /* fewer are not worth a look */
#define NEST_MAX 8      /* levels of cgroups that programs made in theirs and that we remove */
#define LOOKS 3         /* candidates looked at before a new one is made */
#define DIR_MAX 512
#define PAUSE_MS 5
#define WARM 8 /* whose files stay open for the next program */
#define COLD_MAX (CGROUPS_IDLE_MAX - WARM)

enum state { UNTRIED, ON, OFF };

struct ids {
    unsigned *v;
    size_t n, cap;
};

struct warm {
    unsigned id; /* 0: none */
    int dir, events;
    bool taken;
};

struct cgroups {
    pthread_mutex_t lock;
    enum state state;
    char own[DIR_MAX]; /* the cgroup we run in */
    char dir[DIR_MAX]; /* ours below it */
    uint64_t ns;       /* pid namespace, so that PID in a name is not read as another's */
    unsigned last;
    struct warm warm[WARM];
    struct ids free, occupied, killed;
    size_t look_at; /* occupied ones at which they are worth a look again */
    bool swept;
};

/* --- numbers; under the lock --------------------------------------------------------------------
 */

static void push(struct ids *s, unsigned id)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16;
        unsigned *more = realloc(s->v, cap * sizeof(*more));
        if (!more)
            return;
        s->v = more;
        s->cap = cap;
    }
    s->v[s->n++] = id;
}

/* A used one, 0 if there is none. Occupied ones take turns. */
static unsigned pop(struct cgroups *cg, bool *looked)
{
    if (cg->free.n > 0)
        return cg->free.v[--cg->free.n];
    if (cg->occupied.n == 0 || *looked)
        return 0;
    *looked = true;
    struct ids *o = &cg->occupied;
    size_t i = cg->last++ % o->n;
    unsigned id = o->v[i];
    o->v[i] = o->v[--o->n];
    return id;
}

static void cool(struct warm *w)
{
    close(w->dir);
    close(w->events);
    *w = (struct warm){0};
}

static struct warm *find_warm(struct cgroups *cg, unsigned id)
{
    for (size_t i = 0; i < WARM; i++) {
        if (cg->warm[i].id == id)
            return &cg->warm[i];
    }
    return NULL;
}

static struct warm *idle_warm(struct cgroups *cg)
{
    for (size_t i = 0; i < WARM; i++) {
        if (cg->warm[i].id && !cg->warm[i].taken)
            return &cg->warm[i];
    }
    return NULL;
}

/* --- files
 * ------------------------------------------------------------------------------------------ */

static void pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static int open_events(int dir)
{
    return openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
}

/* By its cgroup.events; also true when that is gone. */
static bool still_populated(int events)
{
    char text[128];
    ssize_t n = events >= 0 ? pread(events, text, sizeof(text) - 1, 0) : -1;
    if (n < 0)
        return true;
    text[n] = '\0';
    return !strstr(text, "populated 0");
}

/* Each clone into a cgroup asks whether we may write to its cgroup.procs and to ours, and makes an inode for that unless
 * there is one: the kernel keeps what somebody has looked up. */
static void look_up_procs(int dir, const char *path)
{
    (void)faccessat(dir, path, F_OK, 0);
}

static bool populated(int dir)
{
    autoclose int fd = open_events(dir);
    return still_populated(fd);
}

static int write_kill(const char *dir)
{
    char path[DIR_MAX + 400];
    snprintf(path, sizeof(path), "%s/cgroup.kill", dir);
    autoclose int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, "1", 1) == 1 ? 0 : -1;
}

/* A cgroup and those in it; false while something runs there. */
static bool remove_tree(int parent, const char *name, int levels)
{
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return true;
    if (levels == 0)
        return false;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool all = true;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            all &= remove_tree(dirfd(d), e->d_name, levels - 1);
    }
    closedir(d);
    return all && (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT);
}

static void path_of(const struct cgroups *cg, unsigned id, char *path, size_t size)
{
    snprintf(path, size, "%s/%u", cg->dir, id);
}

static bool remove_one(const struct cgroups *cg, unsigned id)
{
    char path[DIR_MAX + 16];
    path_of(cg, id, path, sizeof(path));
    return remove_tree(AT_FDCWD, path, NEST_MAX);
}

/* Where cgroup v2 is mounted, and which part of it that mount shows. */
static bool find_mount(char *root, char *point)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return false;
    char *line = NULL;
    size_t size = 0;
    bool found = false;
    while (!found && getline(&line, &size, f) >
                         0) { /* proc(5): ID PARENT DEV ROOT POINT OPTIONS ... - TYPE */
        const char *type = strstr(line, " - ");
        found = type && strncmp(type, " - cgroup2 ", 11) == 0 &&
                sscanf(line, "%*s %*s %*s %255s %255s", root, point) == 2 && !strchr(root, '\\') &&
                !strchr(point, '\\');
    }
    free(line);
    fclose(f);
    return found;
}

/* The directory of the cgroup that we run in. */
static bool find_own(char *own, size_t size)
{
    char root[256], point[256], path[256] = "";
    if (!find_mount(root, point))
        return false;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return false;
    char line[512];
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "0::%255[^\n]", path) == 1)
            break;
    }
    fclose(f);
    size_t skip = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (path[0] != '/' || strstr(path, "/..") || strncmp(path, root, skip) != 0 ||
        (skip && path[skip] && path[skip] != '/'))
        return false;
    snprintf(own, size, "%s%s", point, strcmp(path + skip, "/") == 0 ? "" : path + skip);
    return true;
}

/* --- life
 * --------------------------------------------------------------------------------------------- */

static bool set_up(struct cgroups *cg)
{
    struct stat ns;
    struct tree_stat self;
    if (!find_own(cg->own, sizeof(cg->own) - 128) || stat("/proc/self/ns/pid", &ns) < 0 ||
        tree_read_stat(getpid(), &self) < 0)
        return false;
    cg->ns = ns.st_ino;
    size_t len = strlen(cg->own);
    memcpy(cg->dir, cg->own, len);
    snprintf(cg->dir + len, sizeof(cg->dir) - len, "/abx-%d-%llu-%llu", (int)getpid(),
             (unsigned long long)self.start, (unsigned long long)cg->ns);
    if (mkdir(cg->dir, 0755) < 0)
        return false;
    char path[DIR_MAX + 64];
    snprintf(path, sizeof(path), "%s/cgroup.kill", cg->dir);
    if (access(path, W_OK) < 0) {
        (void)rmdir(cg->dir);
        return false;
    }
    snprintf(path, sizeof(path), "%s/cgroup.procs", cg->own);
    look_up_procs(AT_FDCWD, path);
    return true;
}

struct cgroups *cgroups_new(void)
{
    struct cgroups *cg = calloc(1, sizeof(*cg));
    if (!cg)
        return NULL;
    (void)pthread_mutex_init(&cg->lock, NULL); /* with defaults it can't fail on Linux */
    cg->look_at = OCCUPIED_MIN;
    return cg;
}

void cgroups_free(struct cgroups *cg)
{
    if (!cg)
        return;
    for (size_t i = 0; i < WARM; i++) {
        if (cg->warm[i].id)
            cool(&cg->warm[i]);
    }
    /* Those that got KILL a moment ago may not be out yet. */
    for (int i = 0; cg->dir[0] && i < 10 && !remove_tree(AT_FDCWD, cg->dir, NEST_MAX); i++)
        pause_ms(PAUSE_MS);
    free(cg->free.v);
    free(cg->occupied.v);
    free(cg->killed.v);
    pthread_mutex_destroy(&cg->lock);
    free(cg);
}

void cgroups_off(struct cgroups *cg)
{
    pthread_mutex_lock(&cg->lock);
    cg->state = OFF;
    pthread_mutex_unlock(&cg->lock);
}

static int open_one(const struct cgroups *cg, unsigned id)
{
    char path[DIR_MAX + 16];
    path_of(cg, id, path, sizeof(path));
    return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int make_one(const struct cgroups *cg, unsigned id)
{
    char path[DIR_MAX + 16];
    path_of(cg, id, path, sizeof(path));
    int r = mkdir(path, 0755);
    if (r < 0 && errno == ENOENT) { /* someone has tidied up our directory while it was empty */
        (void)mkdir(cg->dir, 0755);
        r = mkdir(path, 0755);
    }
    return r < 0 ? -1 : open_one(cg, id);
}

/* A warm one that is empty; those that are not cool down. */
static bool take_warm(struct cgroups *cg, struct cgroup_lease *ret)
{
    for (;;) {
        pthread_mutex_lock(&cg->lock);
        struct warm *w = cg->state == ON ? idle_warm(cg) : NULL;
        if (w)
            w->taken = true; /* nobody else touches it now */
        pthread_mutex_unlock(&cg->lock);
        if (!w)
            return false;
        if (!still_populated(w->events)) {
            *ret = (struct cgroup_lease){.id = w->id, .fd = w->dir};
            return true;
        }
        pthread_mutex_lock(&cg->lock);
        push(&cg->occupied, w->id);
        cool(w);
        pthread_mutex_unlock(&cg->lock);
    }
}

/* Keeps its files open when there is room for it among the warm ones; else closes `events`. */
static void warm_up(struct cgroups *cg, struct cgroup_lease *l, int events)
{
    pthread_mutex_lock(&cg->lock);
    struct warm *w = events >= 0 ? find_warm(cg, 0) : NULL;
    if (w) {
        *w = (struct warm){.id = l->id, .dir = l->fd, .events = events, .taken = true};
        l->close = false;
    }
    pthread_mutex_unlock(&cg->lock);
    if (w)
        look_up_procs(l->fd, "cgroup.procs");
    else if (events >= 0)
        close(events);
}

int cgroups_take(struct cgroups *cg, struct cgroup_lease *ret)
{
    if (take_warm(cg, ret))
        return 0;
    bool looked = false;
    unsigned id = 0;
    int fd = -1, events = -1;
    for (int i = 0; i < LOOKS && fd < 0; i++) {
        pthread_mutex_lock(&cg->lock);
        if (cg->state == UNTRIED) {
            errno = 0;
            bool done = set_up(cg), want = error_is_want(errno);
            cg->state = done ? ON : want ? UNTRIED : OFF;
            if (!done)
                cg->dir[0] = '\0';
        }
        bool on = cg->state == ON;
        id = on ? pop(cg, &looked) : 0;
        pthread_mutex_unlock(&cg->lock);
        if (!on)
            return -1;
        if (!id)
            break;
        fd = open_one(cg, id);
        events = fd >= 0 ? open_events(fd) : -1;
        if (fd >= 0 && still_populated(events)) {
            if (events >= 0)
                close(events);
            close(fd);
            fd = -1;
            pthread_mutex_lock(&cg->lock);
            push(&cg->occupied, id);
            pthread_mutex_unlock(&cg->lock);
        }
    }
    if (fd < 0) {
        pthread_mutex_lock(&cg->lock);
        id = ++cg->last;
        pthread_mutex_unlock(&cg->lock);
        fd = make_one(cg, id);
        events = fd >= 0 ? open_events(fd) : -1;
    }
    if (fd < 0)
        return -1;
    *ret = (struct cgroup_lease){.id = id, .fd = fd, .close = true};
    warm_up(cg, ret, events);
    return 0;
}

void cgroups_put(struct cgroups *cg, unsigned id, enum cgroup_state state)
{
    if (!id)
        return;
    pthread_mutex_lock(&cg->lock);
    struct warm *w = find_warm(cg, id);
    if (w && state == CGROUP_USED) {
        w->taken = false;
    } else {
        if (w)
            cool(w);
        push(state == CGROUP_KILLED ? &cg->killed : &cg->free, id);
    }
    pthread_mutex_unlock(&cg->lock);
}

void cgroups_members(struct cgroups *cg, unsigned id, struct tree *t, pid_t leader)
{
    if (!id)
        return;
    char path[DIR_MAX + 64];
    snprintf(path, sizeof(path), "%s/%u/cgroup.procs", cg->dir, id);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    char line[32];
    while (fgets(line, sizeof(line), f)) {
        pid_t pid = (pid_t)strtol(line, NULL, 10);
        if (pid != leader)
            tree_add(t, pid);
    }
    fclose(f);
}

void cgroups_kill(struct cgroups *cg, unsigned id)
{
    char path[DIR_MAX + 16];
    pthread_mutex_lock(&cg->lock);
    bool ours = cg->dir[0] != '\0'; /* also when switched off since: some may run there */
    pthread_mutex_unlock(&cg->lock);
    if (!ours)
        return;
    if (id)
        path_of(cg, id, path, sizeof(path));
    else
        snprintf(path, sizeof(path), "%s", cg->dir);
    (void)write_kill(path); /* gone: nobody runs there */
}

/* --- tidying up
 * -------------------------------------------------------------------------------------------- */

bool cgroups_untidy(struct cgroups *cg)
{
    pthread_mutex_lock(&cg->lock);
    bool untidy =
        cg->state == ON && (!cg->swept || cg->free.n > COLD_MAX ||
                            cg->killed.n > CGROUPS_IDLE_MAX || cg->occupied.n >= cg->look_at);
    pthread_mutex_unlock(&cg->lock);
    return untidy;
}

/* One directory abx-PID-START-NAMESPACE that isn't ours. A live server's is left alone; one whose
 * server is in a pid namespace that we can't see into is removed when nothing runs there (its
 * server would make a new one). */
static void sweep_one(struct cgroups *cg, int own, const char *name)
{
    int pid;
    unsigned long long start, ns;
    if (sscanf(name, "abx-%d-%llu-%llu", &pid, &start, &ns) != 3)
        return;
    struct tree_stat st;
    if (ns == cg->ns) {
        if (tree_read_stat((pid_t)pid, &st) == 0 && st.start == start && st.state != 'Z')
            return;
        char path[DIR_MAX + 300];
        snprintf(path, sizeof(path), "%s/%s", cg->own, name);
        (void)write_kill(path); /* not ours to end: then it stays */
    } else {
        autoclose int fd = openat(own, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || populated(fd))
            return;
    }
    for (int i = 0; i < 5 && !remove_tree(own, name, NEST_MAX); i++)
        pause_ms(PAUSE_MS);
}

static void sweep(struct cgroups *cg)
{
    DIR *d = opendir(cg->own[0] ? cg->own : "/");
    if (!d)
        return;
    const char *mine = strrchr(cg->dir, '/') + 1;
    for (struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, "abx-", 4) == 0 && strcmp(e->d_name, mine) != 0)
            sweep_one(cg, dirfd(d), e->d_name);
    }
    closedir(d);
}

void cgroups_tidy(struct cgroups *cg)
{
    struct ids old = {0}, kept = {0}, dead;
    pthread_mutex_lock(&cg->lock);
    bool first = !cg->swept;
    cg->swept = true;
    if (cg->free.n > COLD_MAX) {
        size_t n = cg->free.n - COLD_MAX; /* the newest are at the end */
        for (size_t i = 0; i < n; i++)
            push(&old, cg->free.v[i]);
        memmove(cg->free.v, cg->free.v + n, COLD_MAX * sizeof(*cg->free.v));
        cg->free.n = COLD_MAX;
    }
    for (size_t i = 0; i < cg->occupied.n; i++)
        push(&old, cg->occupied.v[i]);
    cg->occupied.n = 0;
    dead = cg->killed;
    cg->killed = (struct ids){0};
    pthread_mutex_unlock(&cg->lock);

    for (size_t i = 0; i < old.n; i++) {
        if (!remove_one(cg, old.v[i]))
            push(&kept, old.v[i]);
    }
    for (size_t i = 0; i < dead.n;) {
        if (remove_one(cg, dead.v[i]))
            dead.v[i] = dead.v[--dead.n];
        else
            i++;
    }

    pthread_mutex_lock(&cg->lock);
    for (size_t i = 0; i < kept.n; i++)
        push(&cg->occupied, kept.v[i]);
    for (size_t i = 0; i < dead.n; i++)
        push(&cg->killed, dead.v[i]);
    cg->look_at = cg->occupied.n * 2 > OCCUPIED_MIN ? cg->occupied.n * 2 : OCCUPIED_MIN;
    pthread_mutex_unlock(&cg->lock);
    free(old.v);
    free(kept.v);
    free(dead.v);
    if (first)
        sweep(cg);
}
