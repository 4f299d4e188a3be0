#include "files/ops.h"

#include "base/crypto.h"
#include "base/own.h"
#include "files/list.h"
#include "files/tree.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RACE_TRIES 3

/* --- mkdir ---------------------------------------------------------------------------------------
 */

int files_mkdir(const struct guard *g, const char *path, size_t len, struct arena *arena,
                const char **ret_path, struct abx_error *err)
{
    struct guard_path gp, parent;
    for (int attempt = 0;; attempt++) {
        struct abx_error why;
        autoclose int fd = -1;
        if (guard_open(g, path, len, OP_WRITE, O_PATH, 0, arena, &gp, &fd, &why) == 0) {
            struct stat st;
            if (fstat(fd, &st) < 0)
                return abx_fail_os(err, errno, gp.resolved);
            if (!S_ISDIR(st.st_mode))
                return abx_fail_os(err, EEXIST, gp.resolved);
            break;
        }
        if (why.kind != E_OS || why.sys != ENOENT) {
            if (err)
                *err = why;
            return -1;
        }
        /* A dangling link stands for its target: the canonical path is what gets made. */
        if (guard_check(g, path, len, NULL, OP_WRITE, arena, &gp, err) < 0)
            return -1;
        autoclose int dirfd = -1;
        if (guard_open_parent(g, gp.resolved, strlen(gp.resolved), OP_WRITE, true, arena, &parent,
                              &dirfd, err) < 0)
            return -1;
        if (mkdirat(dirfd, parent.name, 0777) == 0)
            break;
        if (errno != EEXIST || attempt == RACE_TRIES)
            return abx_fail_os(err, errno, gp.resolved);
    }
    *ret_path = gp.resolved;
    return 0;
}

/* --- delete --------------------------------------------------------------------------------------
 */

int files_delete(const struct guard *g, const char *path, size_t len, enum ops_pace pace,
                 struct arena *arena, const char **ret_path, struct abx_error *err)
{
    struct guard_path gp;
    autoclose int dirfd = -1;
    if (guard_open_parent(g, path, len, OP_DELETE, false, arena, &gp, &dirfd, err) < 0)
        return files_lookup_error(err);
    struct stat st;
    if (pace == OPS_QUICK && fstatat(dirfd, gp.name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(st.st_mode))
        return 1;
    if (tree_check_denied(g, dirfd, gp.name, gp.resolved, err) < 0)
        return -1;
    if (tree_remove(dirfd, gp.name, gp.resolved, err) < 0)
        return files_lookup_error(err);
    *ret_path = gp.resolved;
    return 0;
}

/* --- move ----------------------------------------------------------------------------------------
 */

static int guard_prefix(struct abx_error *err, const char *prefix)
{
    if (err && err->kind != E_OS)
        abx_prefix(err, prefix);
    return -1;
}

static bool lies_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* rename(2); keep: never over what is there. */
static int rename_to(int from_fd, const char *from, int to_fd, const char *to, bool keep)
{
    if (!keep)
        return renameat(from_fd, from, to_fd, to);
    if (renameat2(from_fd, from, to_fd, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != ENOSYS && errno != EINVAL)
        return -1;
    /* A file system without RENAME_NOREPLACE: as near as it gets. */
    struct stat st;
    if (fstatat(to_fd, to, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;
        return -1;
    }
    return renameat(from_fd, from, to_fd, to);
}

/* Nothing is lost and nothing is there twice, whatever fails: the copy gets its name only when the source has given up
 * its own, which a source that can't be removed does not. Only if a part of a tree resists then, what is left of the
 * source stays where it was, beside the whole copy. */
static int move_across(int from_fd, const struct guard_path *from, int to_fd, const char *to,
                       bool keep, struct abx_error *err)
{
    char temp[40] = ".abx-move-"; /* in both directories */
    crypto_random_hex(temp + strlen(temp), 16);
    if (tree_check_removable(from_fd, from->name, from->resolved, err) < 0)
        return -1;
    int rc = tree_copy(from_fd, from->name, to_fd, temp, from->resolved, err);
    if (rc == 0 && renameat(from_fd, from->name, from_fd, temp) < 0) {
        rc = abx_fail_os(err, errno, from->resolved);
    } else if (rc == 0 && rename_to(to_fd, temp, to_fd, to, keep) < 0) {
        if (errno == EEXIST && keep)
            rc = abx_fail(err, E_MOVE, EEXIST, "Destination already has '%s'", to);
        else
            rc = abx_fail_os(err, errno, from->resolved);
        (void)rename_to(from_fd, temp, from_fd, from->name, true); /* the first error is the one that counts */
    }
    if (rc < 0) {
        (void)tree_remove(to_fd, temp, temp, NULL); /* likewise */
        return -1;
    }
    if (tree_remove(from_fd, temp, from->resolved, err) == 0)
        return 0;
    (void)rename_to(from_fd, temp, from_fd, from->name, true); /* likewise */
    return -1;
}

int files_move(const struct guard *g, const char *source, size_t source_len,
               const char *destination, size_t destination_len, enum ops_pace pace,
               struct arena *arena, const char **ret_source, const char **ret_destination,
               struct abx_error *err)
{
    /* All refusals come before anything tells what exists. */
    struct guard_path from, to, judged;
    if (guard_check(g, destination, destination_len, NULL, OP_WRITE, arena, &judged, err) < 0) {
        struct abx_error first;
        if (guard_check(g, source, source_len, NULL, OP_DELETE, arena, &from, &first) < 0 && err) {
            *err = first;
            return guard_prefix(err, "source: ");
        }
        return guard_prefix(err, "destination: ");
    }
    autoclose int from_fd = -1;
    if (guard_open_parent(g, source, source_len, OP_DELETE, false, arena, &from, &from_fd, err) <
        0) {
        guard_prefix(err, "source: ");
        return files_lookup_error(err);
    }
    struct stat st;
    if (fstatat(from_fd, from.name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        if (files_is_missing(errno))
            return abx_fail(err, E_FILE_NOT_FOUND, errno, "Source not found: %s", from.resolved);
        return abx_fail_os(err, errno, from.resolved);
    }
    if (pace == OPS_QUICK && S_ISDIR(st.st_mode) && guard_has_deny(g))
        return 1;
    if (tree_check_denied(g, from_fd, from.name, from.resolved, err) < 0)
        return -1;
    *ret_source = from.resolved;

    autoclose int to_fd = -1;
    const char *name;
    bool into = guard_open(g, destination, destination_len, OP_WRITE, O_PATH | O_DIRECTORY, 0,
                           arena, &to, &to_fd, NULL) == 0;
    if (into) {
        struct stat there;
        if (fstat(to_fd, &there) == 0 && there.st_dev == st.st_dev && there.st_ino == st.st_ino) {
            *ret_destination = to.resolved; /* a directory onto itself: nothing to do */
            return 0;
        }
        name = from.name;
        const char *final =
            arena_printf(arena, "%s/%s", strcmp(to.resolved, "/") ? to.resolved : "", name);
        if (!final)
            return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the path");
        if (guard_denies(g, final))
            return abx_fail(err, E_PATH_DENIED, 0, "destination: Path is denied by policy");
        judged.resolved = to.resolved;
    }
    if (S_ISDIR(st.st_mode) && lies_below(judged.resolved, from.resolved))
        return abx_fail(err, E_MOVE, EINVAL, "Cannot move a directory into itself: '%s'",
                        from.resolved);
    if (!into) {
        if (guard_open_parent(g, destination, destination_len, OP_WRITE, true, arena, &to, &to_fd,
                              err) < 0) {
            files_parent_error(err);
            return guard_prefix(err, "destination: ");
        }
        name = to.name;
    }
    *ret_destination = to.resolved;
    if (rename_to(from_fd, from.name, to_fd, name, into) == 0)
        return 0;
    switch (errno) {
    case EXDEV:
        if (pace == OPS_QUICK)
            return 1;
        return move_across(from_fd, &from, to_fd, name, into, err);
    case EEXIST:
        if (into)
            return abx_fail(err, E_MOVE, EEXIST, "Destination '%s' already has '%s'", to.resolved,
                            name);
        return abx_fail_os(err, EEXIST, to.resolved);
    case ENOTDIR: /* a directory onto something that is none */
        return abx_fail_os(err, EEXIST, to.resolved);
    case ENOENT:
        return abx_fail(err, E_FILE_NOT_FOUND, ENOENT, "Source not found: %s", from.resolved);
    default:
        return abx_fail_os(err, errno, to.resolved);
    }
}
