#include "system/ports.h"

#include "base/json.h"
#include "base/loop.h"
#include "base/own.h"
#include "system/files.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How it works: sock_diag(7) dumps the sockets in LISTEN only, however many connections there are;
 * where the kernel has no such thing (gVisor), /proc/net/tcp and tcp6 are read. The holder is found
 * by the socket's inode among /proc/PID/fd. Looking through all descriptors is what costs (some
 * microseconds each), so the place where each was found is kept and only looked at again, and a search
 * looks first where listeners are: among the lowest descriptors of every process, made before its
 * connections, then from each process's highest one down, where new ones are. It ends after MAX_LOOKS. */

#define MAX_PORTS 20000
#define NOBODY_MS 10000
#define FIRST_FDS 64    /* the first pass: descriptors of each process below this, ... */
#define FIRST_GAPS 8    /* ... until so many in a row are not there */
#define MAX_LOOKS 20000 /* a search; whoever is not found by then counts as nobody's */

struct listener {
    uint64_t inode;
    uint16_t port;
    bool v6;
    uint8_t addr[16];
    int pid, fd;
    uint64_t nobody_until_ms; /* 0: look for the holder */
};

struct listeners {
    struct listener *list;
    size_t n, cap;
};

static int append(struct listeners *l, const struct listener *one)
{
    if (l->n == MAX_PORTS)
        return 0;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct listener *grown = realloc(l->list, cap * sizeof *grown);
        if (!grown)
            return -1;
        l->list = grown;
        l->cap = cap;
    }
    l->list[l->n++] = *one;
    return 0;
}

/* --- the kernel's list ------------------------------------------------------------------------ */

static int ask(int fd, int family)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 req;
    } msg = {
        .head = {.nlmsg_len = sizeof msg,
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        .req = {.sdiag_family = (uint8_t)family,
                .sdiag_protocol = IPPROTO_TCP,
                .idiag_states = 1u << TCP_LISTEN},
    };
    return send(fd, &msg, sizeof msg, 0) == (ssize_t)sizeof msg ? 0 : -1;
}

static int take_message(struct listeners *l, const struct nlmsghdr *head)
{
    struct inet_diag_msg diag;
    if (head->nlmsg_len < NLMSG_LENGTH(sizeof diag))
        return -1;
    memcpy(&diag, NLMSG_DATA(head), sizeof diag);
    struct listener one = {.inode = diag.idiag_inode,
                           .port = ntohs(diag.id.idiag_sport),
                           .v6 = diag.idiag_family == AF_INET6};
    memcpy(one.addr, diag.id.idiag_src, one.v6 ? 16 : 4);
    return append(l, &one);
}

static int read_dump(int fd, struct listeners *l)
{
    _Alignas(struct nlmsghdr) char data[32 * KIB];
    for (;;) {
        ssize_t got = recv(fd, data, sizeof data, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        size_t left = (size_t)got;
        for (const struct nlmsghdr *head = (const struct nlmsghdr *)data; NLMSG_OK(head, left);
             head = NLMSG_NEXT(head, left)) {
            if (head->nlmsg_type == NLMSG_DONE)
                return 0;
            if (head->nlmsg_type == NLMSG_ERROR || take_message(l, head) < 0)
                return -1;
        }
    }
}

static int list_by_netlink(struct listeners *l)
{
    autoclose int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0)
        return -1;
    struct timeval patience = {.tv_sec = 2};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience,
                     sizeof patience); /* it answers anyway */
    static const int families[] = {AF_INET, AF_INET6};
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (ask(fd, families[i]) < 0 || read_dump(fd, l) < 0)
            return -1;
    return 0;
}

/* "0100007F" and its four-word sister: words in host order, as the kernel prints them. */
static bool parse_hex_address(const char *hex, size_t len, uint8_t addr[16])
{
    if (len != 8 && len != 32)
        return false;
    for (size_t w = 0; w < len / 8; w++) {
        uint32_t word = 0;
        for (size_t i = 0; i < 8; i++) {
            char c = hex[8 * w + i];
            int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
            if (digit < 0)
                return false;
            word = word << 4 | (uint32_t)digit;
        }
        memcpy(addr + 4 * w, &word, 4);
    }
    return true;
}

static int list_by_file(const char *root, const char *path, bool v6, struct listeners *l)
{
    char full[PATH_MAX], line[512];
    if ((size_t)snprintf(full, sizeof full, "%s%s", root, path) >= sizeof full)
        return 0;
    FILE *file = fopen(full, "re");
    if (!file)
        return 0;
    int rc = 0;
    while (rc == 0 && fgets(line, sizeof line, file)) {
        char local[40];
        unsigned port, state;
        unsigned long long inode;
        struct listener one = {.v6 = v6};
        if (sscanf(line, " %*d: %39[0-9A-F]:%x %*s %x %*s %*s %*s %*d %*d %llu", local, &port,
                   &state, &inode) == 4 &&
            state == TCP_LISTEN && port <= UINT16_MAX &&
            parse_hex_address(local, strlen(local), one.addr)) {
            one.port = (uint16_t)port;
            one.inode = inode;
            rc = append(l, &one);
        }
    }
    fclose(file);
    return rc;
}

/* --- who holds them --------------------------------------------------------------------------- */

static bool is_socket(int dir, const char *name, uint64_t *ret_inode)
{
    char target[64];
    errno = 0;
    ssize_t n = readlinkat(dir, name, target, sizeof target - 1);
    if (n < 10 || memcmp(target, "socket:[", 8) != 0)
        return false;
    target[n] = '\0';
    *ret_inode = strtoull(target + 8, NULL, 10);
    return true;
}

static int by_inode(const void *a, const void *b)
{
    uint64_t x = (*(struct listener *const *)a)->inode, y = (*(struct listener *const *)b)->inode;
    return x < y ? -1 : x > y;
}

static struct listener **find(struct listener **index, size_t n, uint64_t inode)
{
    struct listener key = {.inode = inode}, *wanted = &key;
    return bsearch(&wanted, index, n, sizeof *index, by_inode);
}

/* Marks those still held where they were seen last, and those not to be looked for; returns how
 * many. */
static size_t recall(const char *root, struct listener **index, size_t n,
                     const struct port_owners *owners)
{
    size_t known = 0;
    for (size_t i = 0; i < owners->n; i++) {
        char path[PATH_MAX];
        uint64_t inode;
        struct listener **at = find(index, n, owners->list[i].inode);
        if (at && !owners->list[i].pid && owners->list[i].until_ms > mono_ms()) {
            (*at)->nobody_until_ms = owners->list[i].until_ms;
            known++;
            continue;
        }
        if (!at || (*at)->pid || !owners->list[i].pid ||
            (size_t)snprintf(path, sizeof path, "%s/proc/%d/fd/%d", root, owners->list[i].pid,
                             owners->list[i].fd) >= sizeof path ||
            !is_socket(AT_FDCWD, path, &inode) || inode != owners->list[i].inode)
            continue;
        (*at)->pid = owners->list[i].pid;
        (*at)->fd = owners->list[i].fd;
        known++;
    }
    return known;
}

struct search {
    const char *root;
    struct listener **index;
    size_t n, known, looked;
};

/* False: there is no such descriptor. */
static bool look_at(struct search *s, int dir, int pid, int fd)
{
    char name[16];
    uint64_t inode;
    struct listener **at;
    snprintf(name, sizeof name, "%d", fd);
    s->looked++;
    if (!is_socket(dir, name, &inode))
        return errno != ENOENT;
    if ((at = find(s->index, s->n, inode)) && !(*at)->pid) {
        (*at)->pid = pid;
        (*at)->fd = fd;
        s->known++;
    }
    return true;
}

static bool is_over(const struct search *s) { return s->known == s->n || s->looked >= MAX_LOOKS; }

static int open_process(const struct search *s, const char *pid)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/proc/%s/fd", s->root, pid) >= sizeof path)
        return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void search_lowest(struct search *s, const char *pid)
{
    autoclose int dir = open_process(s, pid);
    if (dir < 0)
        return; /* ended, or somebody else's */
    for (int fd = 0, gaps = 0; fd < FIRST_FDS && gaps < FIRST_GAPS && !is_over(s); fd++)
        gaps = look_at(s, dir, (int)strtol(pid, NULL, 10), fd) ? 0 : gaps + 1;
}

static int highest_first(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void search_all(struct search *s, const char *pid)
{
    autoclose int fd = open_process(s, pid);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return;
    (void)take_fd(&fd);
    autofree int *fds = NULL;
    size_t n = 0, cap = 0;
    for (struct dirent *entry; n < MAX_LOOKS && (entry = readdir(dir));) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        if (n == cap) {
            int *grown = realloc(fds, (cap = cap ? cap * 2 : 256) * sizeof *fds);
            if (!grown)
                break;
            fds = grown;
        }
        fds[n++] = (int)strtol(entry->d_name, NULL, 10);
    }
    if (n > 0)
        qsort(fds, n, sizeof *fds, highest_first);
    for (size_t i = 0; i < n && !is_over(s); i++)
        (void)look_at(s, dirfd(dir), (int)strtol(pid, NULL, 10), fds[i]); /* it may be closed by now */
    closedir(dir);
}

/* Returns how many descriptors were looked at. */
static size_t find_holders(const char *root, struct listeners *l, const struct port_owners *owners)
{
    autofree struct listener **index = malloc((l->n + 1) * sizeof *index);
    char path[PATH_MAX];
    if (!index || l->n == 0 || (size_t)snprintf(path, sizeof path, "%s/proc", root) >= sizeof path)
        return 0;
    for (size_t i = 0; i < l->n; i++)
        index[i] = &l->list[i];
    qsort(index, l->n, sizeof *index, by_inode);

    struct search s = {.root = root, .index = index, .n = l->n};
    s.known = recall(root, index, l->n, owners);
    DIR *dir = is_over(&s) ? NULL : opendir(path);
    for (int rest = 0; dir && rest < 2; rest++) {
        rewinddir(dir);
        for (struct dirent *entry; !is_over(&s) && (entry = readdir(dir));)
            if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
                (rest ? search_all : search_lowest)(&s, entry->d_name);
    }
    if (dir)
        closedir(dir);
    return s.looked;
}

/* --- the answer ------------------------------------------------------------------------------- */

/* Names of processes: most sockets of one holder come in a row. */
struct last_name {
    int pid;
    json_t *name;
};

static json_t *process_name(const char *root, int pid, struct last_name *last)
{
    char path[64];
    if (!pid)
        return json_null();
    if (last->pid != pid) {
        autobuf struct buf text = BUF_INIT;
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        bool known = file_read(root, path, 256, &text) == 0;
        json_decref(last->name);
        last->name = known ? json_bytes(text.data, strcspn(text.data, "\n")) : json_null();
        last->pid = pid;
    }
    return json_incref(last->name);
}

static json_t *describe(const char *root, const struct listener *one, struct last_name *last)
{
    char text[INET6_ADDRSTRLEN] = "", shown[INET6_ADDRSTRLEN + 2];
    (void)inet_ntop(one->v6 ? AF_INET6 : AF_INET, one->addr, text, sizeof text); /* room for any */
    snprintf(shown, sizeof shown, one->v6 ? "[%s]" : "%s", text);
    return json_pack("{s:i, s:s, s:s, s:o, s:o, s:I}", "port", one->port, "protocol",
                     one->v6 ? "tcp6" : "tcp", "address", shown, "pid",
                     one->pid ? json_integer(one->pid) : json_null(), "process",
                     process_name(root, one->pid, last), "inode", (json_int_t)one->inode);
}

static void remember(const struct listeners *l, struct port_owners *owners)
{
    port_owners_done(owners);
    owners->list = malloc((l->n + 1) * sizeof *owners->list);
    if (!owners->list)
        return;
    for (size_t i = 0; i < l->n; i++) {
        const struct listener *one = &l->list[i];
        uint64_t until = one->pid               ? 0
                         : one->nobody_until_ms ? one->nobody_until_ms
                                                : mono_ms() + NOBODY_MS;
        owners->list[owners->n++] = (struct port_owner){one->inode, one->pid, one->fd, until};
    }
}

void port_owners_done(struct port_owners *o)
{
    free(o->list);
    *o = (struct port_owners){0};
}

json_t *ports_list(const char *root, struct port_owners *owners, struct abx_error *err)
{
    struct listeners l = {0};
    if (*root || list_by_netlink(&l) < 0) {
        l.n = 0;
        if (list_by_file(root, "/proc/net/tcp", false, &l) < 0 ||
            list_by_file(root, "/proc/net/tcp6", true, &l) < 0) {
            free(l.list);
            abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
            return NULL;
        }
    }
    size_t looked = find_holders(root, &l, owners);
    json_t *list = json_array();
    struct last_name last = {0};
    for (size_t i = 0; i < l.n; i++)
        json_array_append_new(list, describe(root, &l.list[i], &last));
    json_decref(last.name);
    bool whole = list && json_array_size(list) == l.n;
    remember(&l, owners);
    owners->looked = looked;
    free(l.list);
    if (whole)
        return list;
    json_decref(list);
    abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
    return NULL;
}
