#include "files/tree.h"

#include "base/buf.h"
#include "base/crypto.h"
#include "base/own.h"
#include "files/dir.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define MAX_JUDGED 100000
/* One descriptor a level. A deeper directory is moved to the top of the tree first when it is to be
 * removed; other walks refuse it. */
#define MAX_LEVELS 200
#define ENTER (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static int fail_at(struct abx_error *err, int sys, struct buf *path)
{
    return abx_fail_os(err, sys, buf_str(path));
}

static void push(struct buf *path, const char *name)
{
    buf_addc(path, '/');
    buf_adds(path, name);
}

/* --- judging -------------------------------------------------------------------------------------
 */

/* By errno. */
static int cannot_judge(struct abx_error *err, const char *path)
{
    if (error_is_want(errno))
        return abx_fail_os(err, errno, path);
    return abx_fail(err, E_PATH_DENIED, errno, "the tree can't be checked against the policy");
}

static int judge(const struct guard *g, int fd, struct buf *path, size_t *count, int level,
                 struct abx_error *err)
{
    autodir struct dir d = DIR_INIT;
    if (level >= MAX_LEVELS)
        return abx_fail(err, E_PATH_DENIED, 0,
                        "the tree is too deep to be checked against the policy");
    if (dir_read(&d, fd, NULL, NULL) < 0)
        return fail_at(err, errno, path);
    size_t base = path->len;
    for (size_t i = 0; i < d.n; i++) {
        path->len = base;
        push(path, dir_name(&d, i));
        const char *text = buf_str(path);
        if (!text)
            return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the walk");
        if (++*count > MAX_JUDGED || guard_denies(g, text))
            return abx_fail(err, E_PATH_DENIED, 0, "the tree holds what the policy denies");
        if (dir_type(&d, i, fd) != DT_DIR)
            continue;
        autoclose int sub = openat(fd, dir_name(&d, i), ENTER);
        if (sub < 0 && errno != ENOENT)
            return cannot_judge(err, text);
        if (sub >= 0 && judge(g, sub, path, count, level + 1, err) < 0)
            return -1;
    }
    path->len = base;
    return 0;
}

int tree_check_denied(const struct guard *g, int dirfd, const char *name, const char *resolved,
                      struct abx_error *err)
{
    if (!guard_has_deny(g))
        return 0;
    autoclose int fd = openat(dirfd, name, ENTER);
    if (fd < 0) {
        if (errno == ENOTDIR || errno == ELOOP || errno == ENOENT)
            return 0; /* not a directory: judged by its own path */
        return cannot_judge(err, resolved);
    }
    autobuf struct buf path = BUF_INIT;
    buf_adds(&path, resolved);
    size_t count = 0;
    return judge(g, fd, &path, &count, 0, err);
}

/* --- removing ------------------------------------------------------------------------------------
 */

static int empty_out(int fd, int top, struct buf *path, int level, struct abx_error *err);

static int remove_dir(int fd, const char *name, int top, struct buf *path, int level,
                      struct abx_error *err)
{
    if (level >= MAX_LEVELS) {
        char hidden[40] = ".abx-delete-";
        crypto_random_hex(hidden + strlen(hidden), 16);
        if (renameat(fd, name, top, hidden) < 0)
            return fail_at(err, errno, path);
        return 0; /* the top is read again until it is empty */
    }
    /* New entries may come while we remove: a few more rounds, then it is somebody's race to lose.
     */
    for (int round = 0;; round++) {
        if (unlinkat(fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
            return 0;
        if ((errno != ENOTEMPTY && errno != EEXIST) || round == 10)
            return fail_at(err, errno, path);
        autoclose int sub = openat(fd, name, ENTER);
        if (sub < 0)
            return fail_at(err, errno, path);
        if (empty_out(sub, level == 0 ? sub : top, path, level + 1, err) < 0)
            return -1;
        if (level == 0)
            round = -1; /* deep directories come up here one by one */
    }
}

static int remove_one(int fd, const char *name, bool dir, int top, struct buf *path, int level,
                      struct abx_error *err)
{
    if (!dir) {
        if (unlinkat(fd, name, 0) == 0 || errno == ENOENT)
            return 0;
        if (errno != EISDIR && errno != EPERM)
            return fail_at(err, errno, path);
        struct stat st;
        int sys = errno;
        if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
            return fail_at(err, sys, path);
    }
    return remove_dir(fd, name, top, path, level, err);
}

static int empty_out(int fd, int top, struct buf *path, int level, struct abx_error *err)
{
    autodir struct dir d = DIR_INIT;
    if (dir_read(&d, fd, NULL, NULL) < 0)
        return fail_at(err, errno, path);
    size_t base = path->len;
    for (size_t i = 0; i < d.n; i++) {
        path->len = base;
        push(path, dir_name(&d, i));
        if (remove_one(fd, dir_name(&d, i), d.entries[i].type == DT_DIR, top, path, level, err) < 0)
            return -1;
    }
    path->len = base;
    return 0;
}

int tree_remove(int dirfd, const char *name, const char *resolved, struct abx_error *err)
{
    autobuf struct buf path = BUF_INIT;
    buf_adds(&path, resolved);
    struct stat st;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return abx_fail_os(err, errno, resolved);
    return remove_one(dirfd, name, S_ISDIR(st.st_mode), -1, &path, 0, err);
}

static int may_empty(int fd, struct buf *path, int level, struct abx_error *err)
{
    autodir struct dir d = DIR_INIT;
    if (level >= MAX_LEVELS)
        return fail_at(err, ENAMETOOLONG, path);
    if (dir_read(&d, fd, NULL, NULL) < 0 || (d.n > 0 && faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) < 0))
        return fail_at(err, errno, path);
    size_t base = path->len;
    for (size_t i = 0; i < d.n; i++) {
        if (dir_type(&d, i, fd) != DT_DIR)
            continue;
        path->len = base;
        push(path, dir_name(&d, i));
        autoclose int sub = openat(fd, dir_name(&d, i), ENTER);
        if (sub < 0 && errno != ENOENT)
            return fail_at(err, errno, path);
        if (sub >= 0 && may_empty(sub, path, level + 1, err) < 0)
            return -1;
    }
    path->len = base;
    return 0;
}

int tree_check_removable(int dirfd, const char *name, const char *resolved, struct abx_error *err)
{
    if (faccessat(dirfd, ".", W_OK | X_OK, AT_EACCESS) < 0)
        return abx_fail_os(err, errno, resolved);
    autoclose int fd = openat(dirfd, name, ENTER);
    if (fd < 0)
        return errno == ENOTDIR || errno == ELOOP ? 0 : abx_fail_os(err, errno, resolved);
    autobuf struct buf path = BUF_INIT;
    buf_adds(&path, resolved);
    return may_empty(fd, &path, 0, err);
}

/* --- copying -------------------------------------------------------------------------------------
 */

static int copy_bytes(int from, int to)
{
    for (;;) {
        ssize_t n = sendfile(to, from, NULL, 4 * MIB);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -1;
    }
}

/* Owner first: changing it clears mode bits. Owner and times are best effort, as `cp -p` does. */
static void copy_owner_and_times(int to_fd, const char *to_name, const struct stat *st)
{
    (void)!fchownat(to_fd, to_name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW);
    if (!S_ISLNK(st->st_mode))
        (void)fchmodat(to_fd, to_name, st->st_mode & 07777, 0); /* just made by us, no link */
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    (void)utimensat(to_fd, to_name, times, AT_SYMLINK_NOFOLLOW);
}

static int copy_one(int from_fd, const char *name, int to_fd, const char *to_name, struct buf *path,
                    int level, struct abx_error *err);

static int copy_dir(int from_fd, const char *name, int to_fd, const char *to_name, struct buf *path,
                    int level, struct abx_error *err)
{
    if (level >= MAX_LEVELS)
        return fail_at(err, ENAMETOOLONG, path);
    autoclose int from = openat(from_fd, name, ENTER);
    if (from < 0)
        return fail_at(err, errno, path);
    if (mkdirat(to_fd, to_name, 0700) < 0)
        return fail_at(err, errno, path);
    autoclose int to = openat(to_fd, to_name, ENTER);
    if (to < 0)
        return fail_at(err, errno, path);
    autodir struct dir d = DIR_INIT;
    if (dir_read(&d, from, NULL, NULL) < 0)
        return fail_at(err, errno, path);
    size_t base = path->len;
    for (size_t i = 0; i < d.n; i++) {
        path->len = base;
        push(path, dir_name(&d, i));
        if (copy_one(from, dir_name(&d, i), to, dir_name(&d, i), path, level + 1, err) < 0)
            return -1;
    }
    path->len = base;
    return 0;
}

static int copy_file(int from_fd, const char *name, int to_fd, const char *to_name)
{
    autoclose int from = openat(from_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (from < 0)
        return -1;
    autoclose int to =
        openat(to_fd, to_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return -1;
    return copy_bytes(from, to);
}

static int copy_link(int from_fd, const char *name, int to_fd, const char *to_name)
{
    char target[PATH_MAX + 1];
    ssize_t n = readlinkat(from_fd, name, target, sizeof target - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';
    return symlinkat(target, to_fd, to_name);
}

static int copy_one(int from_fd, const char *name, int to_fd, const char *to_name, struct buf *path,
                    int level, struct abx_error *err)
{
    struct stat st;
    if (fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return fail_at(err, errno, path);
    int rc;
    if (S_ISDIR(st.st_mode)) {
        if (copy_dir(from_fd, name, to_fd, to_name, path, level, err) < 0)
            return -1;
        rc = 0;
    } else if (S_ISREG(st.st_mode)) {
        rc = copy_file(from_fd, name, to_fd, to_name);
    } else if (S_ISLNK(st.st_mode)) {
        rc = copy_link(from_fd, name, to_fd, to_name);
    } else {
        rc = mknodat(to_fd, to_name, st.st_mode, st.st_rdev);
    }
    if (rc < 0)
        return fail_at(err, errno, path);
    copy_owner_and_times(to_fd, to_name, &st);
    return 0;
}

int tree_copy(int from_fd, const char *name, int to_fd, const char *to_name, const char *resolved,
              struct abx_error *err)
{
    autobuf struct buf path = BUF_INIT;
    buf_adds(&path, resolved);
    return copy_one(from_fd, name, to_fd, to_name, &path, 0, err);
}
