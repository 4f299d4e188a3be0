#include "files/watch.h"

#include "base/own.h"
#include "files/dir.h"
#include "files/list.h"
#include "files/names.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#define MASK                                                                                       \
    (IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR |    \
     IN_EXCL_UNLINK)
#define OUT_SOFT_MAX (256 * KIB)
#define EVENT_BYTES (64 * KIB)

struct item {          /* something below the root that the client knows of */
    struct item *next; /* of its bucket */
    char *path;
    uint32_t hash;
    bool is_dir;
    unsigned seen; /* the round of looking through that met it last */
    int64_t size, mtime_ns;
};

struct node { /* a directory that is watched */
    char *path;
    int level; /* the root is 0; its entries are on level 1 */
};

struct watch {
    const struct guard *guard;
    char *root;
    int fd, max_level;
    struct item **buckets;
    size_t n_buckets, n_items;
    struct node **nodes; /* by watch descriptor */
    size_t n_nodes;
    struct arena scratch;
    struct buf path; /* of the entry at hand */
    unsigned round;
    bool tell;                     /* new items are told */
    bool overflown, told_overflow; /* there is more than we follow */
    bool no_memory;
    const struct node *open_node; /* the directory that open_fd is */
    int open_fd;
    char *moved_from; /* the first half of a rename that waits for its second */
    uint32_t cookie;
    bool moved_dir;
};

/* --- items
 * ----------------------------------------------------------------------------------------- */

static uint32_t hash_of(const char *path)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *path; path++)
        h = (h ^ (unsigned char)*path) * 16777619u;
    return h;
}

static struct item **find(struct watch *w, const char *path)
{
    uint32_t h = hash_of(path);
    struct item **at = &w->buckets[h % w->n_buckets];
    while (*at && ((*at)->hash != h || strcmp((*at)->path, path) != 0))
        at = &(*at)->next;
    return at;
}

static void grow(struct watch *w)
{
    size_t n = w->n_buckets * 2;
    struct item **buckets = calloc(n, sizeof *buckets);
    if (!buckets)
        return; /* longer chains, nothing worse */
    for (size_t i = 0; i < w->n_buckets; i++) {
        for (struct item *it = w->buckets[i], *next; it; it = next) {
            next = it->next;
            it->next = buckets[it->hash % n];
            buckets[it->hash % n] = it;
        }
    }
    free(w->buckets);
    w->buckets = buckets;
    w->n_buckets = n;
}

static void drop(struct watch *w, struct item **at)
{
    struct item *it = *at;
    *at = it->next;
    free(it->path);
    free(it);
    w->n_items--;
}

static struct item *add(struct watch *w, const char *path, bool is_dir)
{
    if (w->n_items >= WATCH_ENTRIES) {
        w->overflown = true;
        return NULL;
    }
    if (w->n_items > w->n_buckets)
        grow(w);
    struct item *it = calloc(1, sizeof *it);
    char *copy = strdup(path);
    if (!it || !copy) {
        free(it);
        free(copy);
        w->no_memory = true;
        return NULL;
    }
    it->path = copy;
    it->hash = hash_of(path);
    it->is_dir = is_dir;
    it->seen = w->round;
    it->next = w->buckets[it->hash % w->n_buckets];
    w->buckets[it->hash % w->n_buckets] = it;
    w->n_items++;
    return it;
}

static int64_t nanoseconds(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

static bool update(struct item *it, const struct stat *st)
{
    int64_t mtime = nanoseconds(st->st_mtim);
    bool changed =
        it->size != st->st_size || it->mtime_ns != mtime || it->is_dir != S_ISDIR(st->st_mode);
    it->size = st->st_size;
    it->mtime_ns = mtime;
    it->is_dir = S_ISDIR(st->st_mode);
    return changed;
}

static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/';
}

/* --- telling
 * --------------------------------------------------------------------------------------- */

static void tell(struct buf *out, const char *type, const char *path, bool is_dir,
                 const char *old_path)
{
    buf_adds(out, "event: change\ndata: {\"type\": \"");
    buf_adds(out, type);
    buf_adds(out, "\", ");
    name_field(out, "path", path, strlen(path));
    buf_adds(out, is_dir ? ", \"is_dir\": true" : ", \"is_dir\": false");
    if (old_path) {
        buf_adds(out, ", ");
        name_field(out, "old_path", old_path, strlen(old_path));
    }
    buf_adds(out, "}\n\n");
}

/* --- directories
 * ----------------------------------------------------------------------------------- */

static void close_open_dir(struct watch *w)
{
    if (w->open_fd >= 0)
        close(w->open_fd);
    w->open_fd = -1;
    w->open_node = NULL;
}

static int open_dir(struct watch *w, const char *path)
{
    struct guard_path gp;
    int fd = -1;
    if (guard_open(w->guard, path, strlen(path), OP_READ, O_RDONLY | O_DIRECTORY, 0, &w->scratch,
                   &gp, &fd, NULL) < 0)
        fd = -1;
    else if (strcmp(gp.resolved, path) != 0) { /* a link by now */
        close(fd);
        fd = -1;
    }
    arena_reset(&w->scratch);
    return fd;
}

/* Descriptor of a watched directory, kept open for the events that follow. */
static int node_fd(struct watch *w, const struct node *node)
{
    if (w->open_node != node) {
        close_open_dir(w);
        w->open_fd = open_dir(w, node->path);
        w->open_node = node;
    }
    return w->open_fd;
}

static void forget_node(struct watch *w, size_t wd)
{
    struct node *node = wd < w->n_nodes ? w->nodes[wd] : NULL;
    if (!node)
        return;
    if (w->open_node == node)
        close_open_dir(w);
    w->nodes[wd] = NULL;
    free(node->path);
    free(node);
}

/* Watches an open directory. 0, or -1 with errno. */
static int watch_dir(struct watch *w, int fd, const char *path, int level)
{
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int wd = inotify_add_watch(w->fd, self, MASK);
    if (wd < 0)
        return -1;
    if ((size_t)wd >= w->n_nodes) {
        size_t n = (size_t)wd + 64;
        struct node **grown = reallocarray(w->nodes, n, sizeof *grown);
        if (!grown)
            return -1;
        memset(grown + w->n_nodes, 0, (n - w->n_nodes) * sizeof *grown);
        w->nodes = grown;
        w->n_nodes = n;
    }
    forget_node(w, (size_t)wd); /* the same directory under another name: it was moved */
    struct node *node = calloc(1, sizeof *node);
    char *copy = strdup(path);
    if (!node || !copy) {
        free(node);
        free(copy);
        return -1;
    }
    node->path = copy;
    node->level = level;
    w->nodes[wd] = node;
    return 0;
}

/* A directory that is to be watched, -1 if it can't be; for want of descriptors we follow less than there is. */
static int open_below(struct watch *w, int dirfd, const char *name)
{
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    w->overflown |= fd < 0 && error_is_want(errno);
    return fd;
}

/* Watches a directory and looks through it: unknown entries become items (told when w->tell),
 * changed ones are told in a round of looking again. The watch comes first, so that nothing falls
 * between. `fd` is closed. -1: the root can't be watched (errno). */
static int look_through(struct watch *w, int fd_given, const char *path, int level, struct buf *out)
{
    autoclose int fd = fd_given;
    autofree char *dir_path = strdup(path); /* w->path changes meanwhile */
    if (!dir_path) {
        w->no_memory = true;
        return 0;
    }
    if (watch_dir(w, fd, dir_path, level) < 0) {
        if (level == 0 || errno == ENOSPC || error_is_want(errno)) {
            w->overflown = true;
            return -1;
        }
        return 0;
    }
    if (level >= w->max_level)
        return 0;
    autodir struct dir d = DIR_INIT;
    if (dir_read(&d, fd, NULL, NULL) < 0)
        return 0;
    dir_sort(&d);
    int rc = 0;
    for (size_t i = 0; i < d.n && rc == 0; i++) {
        struct stat st;
        if (fstatat(fd, dir_name(&d, i), &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        buf_reset(&w->path);
        buf_adds(&w->path, strcmp(dir_path, "/") ? dir_path : "");
        buf_addc(&w->path, '/');
        buf_adds(&w->path, dir_name(&d, i));
        const char *text = buf_str(&w->path);
        if (!text || !files_may_show(w->guard, text, w->path.len, S_ISLNK(st.st_mode), &w->scratch))
            continue;
        struct item *it = *find(w, text);
        if (!it) {
            it = add(w, text, S_ISDIR(st.st_mode));
            if (!it)
                continue;
            update(it, &st);
            if (w->tell)
                tell(out, "created", text, it->is_dir, NULL);
        } else if (update(it, &st) && w->tell) {
            tell(out, "modified", text, it->is_dir, NULL);
        }
        it->seen = w->round;
        if (!it->is_dir)
            continue;
        int sub = open_below(w, fd, dir_name(&d, i));
        if (sub >= 0)
            rc = look_through(w, sub, text, level + 1, out);
    }
    return rc;
}

/* Tells what lay below dir as deleted and forgets it, its watches too. */
static void forget_below(struct watch *w, const char *dir, struct buf *out)
{
    for (size_t wd = 0; wd < w->n_nodes; wd++) {
        const struct node *node = w->nodes[wd];
        if (node && (strcmp(node->path, dir) == 0 || is_below(node->path, dir))) {
            (void)inotify_rm_watch(w->fd, (int)wd); /* gone already when the directory is */
            forget_node(w, wd);
        }
    }
    for (size_t i = 0; i < w->n_buckets; i++) {
        for (struct item **at = &w->buckets[i]; *at;) {
            if (!is_below((*at)->path, dir)) {
                at = &(*at)->next;
                continue;
            }
            tell(out, "deleted", (*at)->path, (*at)->is_dir, NULL);
            drop(w, at);
        }
    }
}

static char *moved_path(const char *path, const char *from, const char *to)
{
    char *moved = NULL;
    if (asprintf(&moved, "%s%s", to, path + strlen(from)) < 0)
        return NULL;
    return moved;
}

/* A directory was renamed: what is known below it, and its watches, move along. */
static void move_below(struct watch *w, const char *from, const char *to, int level_change)
{
    for (size_t wd = 0; wd < w->n_nodes; wd++) {
        struct node *node = w->nodes[wd];
        if (!node || (strcmp(node->path, from) != 0 && !is_below(node->path, from)))
            continue;
        char *moved = moved_path(node->path, from, to);
        if (!moved) {
            w->no_memory = true;
            return;
        }
        free(node->path);
        node->path = moved;
        node->level += level_change;
    }
    struct item *list = NULL;
    for (size_t i = 0; i < w->n_buckets; i++) {
        for (struct item **at = &w->buckets[i]; *at;) {
            struct item *it = *at;
            if (!is_below(it->path, from)) {
                at = &it->next;
                continue;
            }
            *at = it->next;
            it->next = list;
            list = it;
        }
    }
    while (list) {
        struct item *it = list;
        list = it->next;
        char *moved = moved_path(it->path, from, to);
        if (moved) {
            free(it->path);
            it->path = moved;
            it->hash = hash_of(moved);
        } else {
            w->no_memory = true;
        }
        it->next = w->buckets[it->hash % w->n_buckets];
        w->buckets[it->hash % w->n_buckets] = it;
    }
}

/* The queue overflowed: everything is looked at again and compared. */
static void look_again(struct watch *w, struct buf *out)
{
    close_open_dir(w);
    w->round++;
    int fd = open_dir(w, w->root);
    if (fd >= 0)
        (void)look_through(w, fd, w->root, 0,
                           out); /* what can't be watched any more is marked overflown */
    for (size_t i = 0; i < w->n_buckets; i++) {
        for (struct item **at = &w->buckets[i]; *at;) {
            if ((*at)->seen == w->round) {
                at = &(*at)->next;
                continue;
            }
            tell(out, "deleted", (*at)->path, (*at)->is_dir, NULL);
            drop(w, at);
        }
    }
}

/* --- events
 * ---------------------------------------------------------------------------------------- */

static void gone(struct watch *w, const char *path, struct buf *out)
{
    struct item **at = find(w, path);
    if (!*at)
        return;
    bool is_dir = (*at)->is_dir;
    if (is_dir)
        forget_below(w, path, out);
    at = find(w, path);
    tell(out, "deleted", path, is_dir, NULL);
    drop(w, at);
}

/* An entry is there (made, moved in, changed). */
static void present(struct watch *w, const struct node *node, const char *name, bool made,
                    bool dir_hint, struct buf *out)
{
    struct stat st;
    int fd = node_fd(w, node), level = node->level;
    bool there = fd >= 0 && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    autofree char *path = strdup(buf_str(&w->path));
    if (!path)
        return;
    if (!there && !made)
        return;
    if (!files_may_show(w->guard, path, strlen(path), there && S_ISLNK(st.st_mode), &w->scratch))
        return;
    struct item *it = *find(w, path);
    if (it) {
        if (there && update(it, &st))
            tell(out, "modified", path, it->is_dir, NULL);
        return;
    }
    it = add(w, path, there ? S_ISDIR(st.st_mode) : dir_hint);
    if (!it)
        return;
    if (there)
        update(it, &st);
    tell(out, "created", path, it->is_dir, NULL);
    if (!there || !it->is_dir)
        return;
    int sub = open_below(w, fd, name);
    if (sub >= 0)
        (void)look_through(w, sub, path, level + 1,
                           out); /* marked overflown when the limit is met */
}

static int depth_of(const char *path)
{
    int n = 0;
    for (; *path; path++)
        n += *path == '/';
    return n;
}

static void renamed(struct watch *w, const struct node *node, const char *name, struct buf *out)
{
    autofree char *from = take_ptr(w->moved_from);
    autofree char *path = strdup(buf_str(&w->path));
    struct item **old = path ? find(w, from) : NULL;
    struct stat st;
    int fd = node_fd(w, node), level = node->level;
    bool there = path && fd >= 0 && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!old || !*old || !there ||
        !files_may_show(w->guard, path, strlen(path), S_ISLNK(st.st_mode), &w->scratch)) {
        gone(w, from, out);
        present(w, node, name, true, w->moved_dir, out);
        return;
    }
    bool is_dir = (*old)->is_dir;
    drop(w, old);
    if (is_dir)
        close_open_dir(w);
    struct item **over = find(w, path);
    if (*over)
        drop(w, over);
    if (is_dir)
        move_below(w, from, path, depth_of(path) - depth_of(from));
    struct item *it = add(w, path, is_dir);
    if (!it)
        return;
    update(it, &st);
    tell(out, "renamed", path, is_dir, from);
    if (!is_dir)
        return;
    int sub = open_dir(w, path);
    if (sub >= 0) /* something may have been added since */
        (void)look_through(w, sub, path, level + 1, out);
}

/* The first half of a rename that got no second: moved out of sight. */
static void settle_move(struct watch *w, struct buf *out)
{
    autofree char *from = take_ptr(w->moved_from);
    if (from)
        gone(w, from, out);
}

/* Something was made or removed in a directory: its own time has changed. */
static void dir_changed(struct watch *w, const struct node *node, struct buf *out)
{
    struct stat st;
    int fd = node->level > 0 ? node_fd(w, node) : -1;
    struct item *it = fd >= 0 ? *find(w, node->path) : NULL;
    if (it && fstat(fd, &st) == 0 && update(it, &st))
        tell(out, "modified", node->path, true, NULL);
}

static void handle(struct watch *w, const struct inotify_event *e, struct buf *out)
{
    if (e->mask & IN_Q_OVERFLOW) {
        settle_move(w, out);
        look_again(w, out);
        return;
    }
    if (e->wd < 0 || (size_t)e->wd >= w->n_nodes)
        return;
    if (e->mask & IN_IGNORED) {
        forget_node(w, (size_t)e->wd);
        return;
    }
    const struct node *node = w->nodes[e->wd];
    if (!node || e->len == 0)
        return;
    bool told = node->level < w->max_level, dir = e->mask & IN_ISDIR;
    buf_reset(&w->path);
    buf_adds(&w->path, strcmp(node->path, "/") ? node->path : "");
    buf_addc(&w->path, '/');
    buf_adds(&w->path, e->name);
    if (!buf_str(&w->path)) {
        w->no_memory = true;
        return;
    }
    bool second_half = (e->mask & IN_MOVED_TO) && w->moved_from && w->cookie == e->cookie;
    if (!second_half)
        settle_move(w, out);
    /* settle_move may have dropped the very node */
    node = w->nodes[e->wd];
    if (!node)
        return;
    if (told) {
        buf_reset(&w->path);
        buf_adds(&w->path, strcmp(node->path, "/") ? node->path : "");
        buf_addc(&w->path, '/');
        buf_adds(&w->path, e->name);
        const char *path = buf_str(&w->path);
        if (second_half) {
            renamed(w, node, e->name, out);
        } else if (e->mask & IN_MOVED_FROM) {
            w->moved_from = strdup(path);
            w->cookie = e->cookie;
            w->moved_dir = dir;
        } else if (e->mask & (IN_CREATE | IN_MOVED_TO)) {
            present(w, node, e->name, true, dir, out);
        } else if (e->mask & IN_DELETE) {
            autofree char *copy = strdup(path);
            if (copy)
                gone(w, copy, out);
        } else {
            present(w, node, e->name, false, dir, out);
        }
    }
    node = w->nodes[e->wd];
    if (node && (e->mask & (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO)))
        dir_changed(w, node, out);
}

bool watch_read(struct watch *w, struct buf *out)
{
    _Alignas(struct inotify_event) char raw[EVENT_BYTES];
    bool more = true;
    while (out->len < OUT_SOFT_MAX) {
        ssize_t n = read(w->fd, raw, sizeof raw);
        if (n <= 0) {
            more = false;
            break;
        }
        for (ssize_t at = 0; at < n;) {
            const struct inotify_event *e = (const struct inotify_event *)(raw + at);
            at += (ssize_t)(sizeof *e + e->len);
            handle(w, e, out);
        }
    }
    settle_move(w, out);
    close_open_dir(w);
    if (w->overflown && !w->told_overflow) {
        w->told_overflow = true;
        buf_adds(out, "event: overflow\ndata: {\"reason\": \"limit\", ");
        name_field(out, "path", w->root, strlen(w->root));
        buf_adds(out, "}\n\n");
    }
    return more;
}

/* --- life
 * ------------------------------------------------------------------------------------------ */

int watch_fd(const struct watch *w) { return w->fd; }

void watch_free(struct watch *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    close_open_dir(w);
    for (size_t i = 0; i < w->n_nodes; i++)
        forget_node(w, i);
    for (size_t i = 0; w->buckets && i < w->n_buckets; i++)
        while (w->buckets[i])
            drop(w, &w->buckets[i]);
    free(w->buckets);
    free(w->nodes);
    free(w->moved_from);
    free(w->root);
    buf_done(&w->path);
    arena_done(&w->scratch);
    free(w);
}

int watch_new(const struct guard *g, const char *path, size_t len, bool recursive,
              struct watch **ret, const char **ret_path, struct abx_error *err)
{
    struct guard_path gp;
    autoclose int fd = -1;
    bool closed = false;
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the watch");
    arena_init(&w->scratch);
    w->guard = g;
    w->fd = w->open_fd = -1;
    w->max_level = recursive ? WATCH_LEVELS : 1;
    w->n_buckets = 64;
    w->buckets = calloc(w->n_buckets, sizeof(struct item *));
    struct abx_error why;
    int rc =
        guard_open(g, path, len, OP_READ, O_RDONLY | O_DIRECTORY, 0, &w->scratch, &gp, &fd, &why);
    if (rc < 0 && why.kind == E_OS && why.sys == EACCES) {
        rc =
            guard_open(g, path, len, OP_READ, O_PATH | O_DIRECTORY, 0, &w->scratch, &gp, &fd, &why);
        closed = rc == 0; /* nothing can be seen in it, so nothing will be told */
    }
    if (rc < 0) {
        files_lookup_error(&why);
    } else {
        w->root = strdup(gp.resolved);
        w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        if (!w->root || !w->buckets)
            rc = abx_fail(&why, E_NO_MEMORY, ENOMEM, "no memory for the watch");
        else if (w->fd < 0)
            rc = abx_fail(&why, E_RESOURCE, errno,
                          "No more watches: the system's limit of inotify instances is reached");
    }
    if (rc == 0 && !closed && look_through(w, take_fd(&fd), w->root, 0, NULL) < 0)
        rc = abx_fail(&why, E_RESOURCE, errno,
                      "No more watches: the system's limit of watched directories is reached");
    if (rc < 0) {
        watch_free(w);
        if (err)
            *err = why;
        return -1;
    }
    w->tell = true;
    *ret = w;
    *ret_path = w->root;
    return 0;
}
