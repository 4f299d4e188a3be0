/* abx-archive.so: libarchive behind the interface of archive.h. */

#include "files/archive.h"

#include "base/buf.h"
#include "base/own.h"
#include "files/dir.h"
#include "files/list.h"
#include "files/ops.h"
#include "files/upload.h"

#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE (128 * KIB)
#define LEVELS 200
#define ZIP_FIRST 315532800 /* 1980, where the format's dates begin */
#define ZIP_LAST 4354819198 /* end of 2107, where they end */

/* libarchive converts names by the thread's locale; the server's own is "C". */
static locale_t enter_utf8(locale_t *made)
{
    *made = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    return uselocale(*made);
}

static void leave_utf8(locale_t before, locale_t made)
{
    uselocale(before);
    if (made)
        freelocale(made);
}

/* === writing
 * ======================================================================================== */

struct packer {
    const struct archive_order *order;
    struct archive *archive;
    struct archive_entry *entry;
    int out_fd;
    int64_t written, input, files;
    bool too_large;
    int sys;               /* errno of a failed write */
    struct buf name, path; /* in the archive; canonical */
    struct arena scratch;
    json_t *tops;
    uint8_t *data;
};

static void packer_done(struct packer *p)
{
    if (p->entry)
        archive_entry_free(p->entry);
    if (p->archive)
        archive_write_free(p->archive);
    buf_done(&p->name);
    buf_done(&p->path);
    arena_done(&p->scratch);
    json_decref(p->tops);
    free(p->data);
}

static la_ssize_t write_piece(struct archive *a, void *data, const void *piece, size_t len)
{
    struct packer *p = data;
    if (p->written + (int64_t)len > p->order->max_bytes) {
        p->too_large = true;
        archive_set_error(a, EFBIG, "over the limit");
        return -1;
    }
    const char *at = piece;
    for (size_t left = len; left > 0;) {
        ssize_t n = write(p->out_fd, at, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            p->sys = errno;
            archive_set_error(a, errno, "write");
            return -1;
        }
        at += n;
        left -= (size_t)n;
    }
    p->written += (int64_t)len;
    return (la_ssize_t)len;
}

static int too_large(const struct packer *p, struct abx_error *err)
{
    return abx_fail(err, E_TOO_LARGE, 0, "Archive too large; limit is %lld bytes",
                    (long long)p->order->max_bytes);
}

static int failed(struct packer *p, struct abx_error *err)
{
    if (p->too_large)
        return too_large(p, err);
    if (p->sys)
        return abx_fail_os(err, p->sys, NULL);
    const char *why = archive_error_string(p->archive);
    return abx_fail(err, E_OS, archive_errno(p->archive), "archive: %s", why ? why : "failed");
}

/* A warning (a name that is no UTF-8, for one) is no failure. */
static bool broke(int rc) { return rc < ARCHIVE_WARN; }

static int no_memory(struct abx_error *err)
{
    return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the archive");
}

static int begin_entry(struct packer *p, const struct stat *st, const char *link,
                       struct abx_error *err)
{
    const char *name = buf_str(&p->name);
    if (!name)
        return no_memory(err);
    struct archive_entry *e = archive_entry_clear(p->entry);
    archive_entry_copy_stat(e, st);
    archive_entry_copy_pathname(e, name);
    archive_entry_unset_atime(e);
    archive_entry_unset_ctime(e);
    archive_entry_set_nlink(e, 1); /* hard links are packed as files of their own */
    int64_t t = st->st_mtim.tv_sec;
    if (p->order->zip && (t < ZIP_FIRST || t > ZIP_LAST))
        archive_entry_set_mtime(e, (time_t)(t < ZIP_FIRST ? ZIP_FIRST : ZIP_LAST), 0);
    if (link)
        archive_entry_copy_symlink(e, link);
    if (!S_ISREG(st->st_mode))
        archive_entry_set_size(e, 0);
    return broke(archive_write_header(p->archive, e)) ? failed(p, err) : 0;
}

static int pack_file(struct packer *p, int fd, const struct stat *st, struct abx_error *err)
{
    p->input += st->st_size;
    if (p->input > p->order->max_input)
        return too_large(p, err);
    if (begin_entry(p, st, NULL, err) < 0)
        return -1;
    for (int64_t left = st->st_size; left > 0;) {
        if (p->order->cancelled(p->order->data))
            return abx_fail(err, E_CANCELLED, 0, "the client has left");
        ssize_t n = read(fd, p->data, left < PIECE ? (size_t)left : PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return abx_fail_os(err, errno, buf_str(&p->path));
        if (n == 0)
            break; /* it became shorter: libarchive fills up with zeros */
        if (archive_write_data(p->archive, p->data, (size_t)n) < 0)
            return failed(p, err);
        left -= n;
    }
    return broke(archive_write_finish_entry(p->archive)) ? failed(p, err) : 0;
}

static int pack_link(struct packer *p, int dirfd, const char *name, const struct stat *st,
                     struct abx_error *err)
{
    const char *path = buf_str(&p->path);
    if (!path)
        return no_memory(err);
    struct guard_path target;
    autoclose int fd = -1;
    struct stat to;
    struct abx_error why;
    bool there = guard_open(p->order->guard, path, p->path.len, OP_READ, O_PATH, 0, &p->scratch,
                            &target, &fd, &why) == 0;
    int rc = 0;
    if (there && (fstat(fd, &to) < 0 || S_ISDIR(to.st_mode)))
        goto out; /* linked directories are left out */
    if (!there && why.kind != E_OS)
        goto out; /* it leads out, or a rule denies it */
    if (!p->order->zip) {
        char text[PATH_MAX + 1];
        ssize_t n = readlinkat(dirfd, name, text, sizeof text - 1);
        if (n > 0) {
            text[n] = '\0';
            rc = begin_entry(p, st, text, err);
        }
        goto out;
    }
    if (!there || !S_ISREG(to.st_mode))
        goto out; /* a zip holds the target's content; dangling links have none */
    close(take_fd(&fd));
    rc = guard_open(p->order->guard, path, p->path.len, OP_READ, O_RDONLY | O_NONBLOCK, 0,
                    &p->scratch, &target, &fd, err);
    if (rc == 0 && (fstat(fd, &to) < 0 || !S_ISREG(to.st_mode)))
        goto out;
    if (rc == 0)
        rc = pack_file(p, fd, &to, err);
out:
    arena_reset(&p->scratch);
    return rc;
}

static int pack_dir(struct packer *p, int fd, const struct stat *st, int level,
                    struct abx_error *err);

static int pack_entry(struct packer *p, int dirfd, const char *name, int level, bool *ret_packed,
                      struct abx_error *err)
{
    struct stat st;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; /* vanished */
    bool dir = S_ISDIR(st.st_mode);
    if (!dir && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return 0;
    const char *path = buf_str(&p->path);
    if (!path)
        return no_memory(err);
    if (guard_denies(p->order->guard, path))
        return 0;
    *ret_packed = true;
    if (p->order->cancelled(p->order->data))
        return abx_fail(err, E_CANCELLED, 0, "the client has left");
    if (!dir && ++p->files > p->order->max_files)
        return abx_fail(err, E_VALUE, 0, "Too many files (%lld+), limit is %lld",
                        (long long)p->files, (long long)p->order->max_files);
    if (S_ISLNK(st.st_mode))
        return pack_link(p, dirfd, name, &st, err);
    autoclose int fd =
        openat(dirfd, name, (dir ? O_DIRECTORY : O_NONBLOCK) | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT || errno == ELOOP || (dir && errno == EACCES))
            return 0; /* swapped meanwhile; a closed directory looks empty */
        return abx_fail_os(err, errno, path);
    }
    if (fstat(fd, &st) < 0)
        return abx_fail_os(err, errno, path);
    if (dir)
        return pack_dir(p, fd, &st, level + 1, err);
    return S_ISREG(st.st_mode) ? pack_file(p, fd, &st, err) : 0;
}

static int pack_dir(struct packer *p, int fd, const struct stat *st, int level,
                    struct abx_error *err)
{
    if (level > LEVELS)
        return abx_fail(err, E_VALUE, 0, "The tree is more than %d levels deep", LEVELS);
    autodir struct dir d = DIR_INIT;
    if (dir_read(&d, fd, NULL, NULL) < 0)
        return abx_fail_os(err, errno, buf_str(&p->path));
    dir_sort(&d);
    size_t name = p->name.len, path = p->path.len;
    bool packed = false;
    for (size_t i = 0; i < d.n; i++) {
        p->name.len = name;
        p->path.len = path;
        buf_addc(&p->name, '/');
        buf_adds(&p->name, dir_name(&d, i));
        buf_addc(&p->path, '/');
        buf_adds(&p->path, dir_name(&d, i));
        if (pack_entry(p, fd, dir_name(&d, i), level, &packed, err) < 0)
            return -1;
    }
    p->name.len = name;
    p->path.len = path;
    if (d.n > 0)
        return 0;
    buf_addc(&p->name, '/');
    int rc = begin_entry(p, st, NULL, err); /* an empty directory would be lost otherwise */
    p->name.len = name;
    return rc;
}

/* The name an asked path goes by: its last component, numbered when it was there before. */
static int top_name(struct packer *p, const char *resolved, struct abx_error *err)
{
    const char *base = strrchr(resolved, '/') + 1;
    if (!*base)
        base = "root";
    for (int i = 1;; i++) {
        buf_reset(&p->name);
        buf_adds(&p->name, base);
        if (i > 1)
            buf_addf(&p->name, " (%d)", i);
        const char *name = buf_str(&p->name);
        if (!name)
            return no_memory(err);
        if (json_object_get(p->tops, name))
            continue;
        (void)json_object_set_new_nocheck(p->tops, name,
                                          json_true()); /* an equal name twice does no harm */
        return 0;
    }
}

static int pack_top(struct packer *p, const struct archive_path *asked, struct abx_error *err)
{
    struct guard_path gp;
    autoclose int fd = -1;
    struct arena arena;
    arena_init(&arena);
    int rc = guard_open(p->order->guard, asked->text, asked->len, OP_READ, O_RDONLY | O_NONBLOCK, 0,
                        &arena, &gp, &fd, err);
    struct stat st;
    if (rc < 0 && err->sys == ENXIO) {
        arena_done(&arena);
        return 0; /* a socket, or a device nobody drives: left out like those met while walking */
    }
    if (rc < 0)
        files_lookup_error(err);
    else if (fstat(fd, &st) < 0)
        rc = abx_fail_os(err, errno, gp.resolved);
    else
        rc = top_name(p, gp.resolved, err);
    if (rc == 0) {
        buf_reset(&p->path);
        buf_adds(&p->path, strcmp(gp.resolved, "/") ? gp.resolved : "");
        if (S_ISDIR(st.st_mode))
            rc = pack_dir(p, fd, &st, 0, err);
        else if (S_ISREG(st.st_mode))
            rc = pack_file(p, fd, &st, err);
    }
    arena_done(&arena);
    return rc;
}

static int open_writer(struct packer *p, struct abx_error *err)
{
    p->archive = archive_write_new();
    p->entry = archive_entry_new();
    p->data = malloc(PIECE);
    p->tops = json_object();
    if (!p->archive || !p->entry || !p->data || !p->tops)
        return no_memory(err);
    int rc;
    if (p->order->zip) {
        rc = archive_write_set_format_zip(p->archive);
        archive_write_set_options(p->archive, "zip:compression=deflate,zip:hdrcharset=UTF-8");
    } else {
        rc = archive_write_set_format_pax(p->archive); /* the restricted one cuts times to seconds */
        if (rc == ARCHIVE_OK)
            rc = archive_write_add_filter_gzip(p->archive);
        archive_write_set_options(p->archive, "gzip:compression-level=6");
    }
    archive_write_set_bytes_in_last_block(p->archive, 1);
    if (rc == ARCHIVE_OK)
        rc = archive_write_open2(p->archive, p, NULL, write_piece, NULL, NULL);
    return broke(rc) ? failed(p, err) : 0;
}

int abx_archive_create(const struct archive_order *order, int out_fd, int64_t *ret_bytes,
                       struct abx_error *err)
{
    struct packer p __attribute__((cleanup(packer_done))) = {.order = order, .out_fd = out_fd};
    arena_init(&p.scratch);
    for (size_t i = 0; i < order->n_paths; i++) {
        struct guard_path gp;
        if (guard_check(order->guard, order->paths[i].text, order->paths[i].len, NULL, OP_READ,
                        &p.scratch, &gp, err) < 0)
            return -1;
        arena_reset(&p.scratch);
    }
    locale_t made, before = enter_utf8(&made);
    int rc = open_writer(&p, err);
    for (size_t i = 0; rc == 0 && i < order->n_paths; i++)
        rc = pack_top(&p, &order->paths[i], err);
    if (rc == 0 && broke(archive_write_close(p.archive)))
        rc = failed(&p, err);
    leave_utf8(before, made);
    if (rc == 0)
        *ret_bytes = p.written;
    return rc;
}

/* === reading
 * ======================================================================================== */

struct unpacker {
    const struct extract_order *order;
    struct archive *archive;
    int dest;
    const char *dest_path;
    struct extract_result *ret;
    struct buf path;
    json_t *links; /* canonical paths of the archive's own links */
    uint8_t *data;
    bool writing; /* second pass */
};

static int damaged(struct archive *a, struct abx_error *err)
{
    const char *why = archive_error_string(a);
    return abx_fail(err, E_VALUE, 0, "Not a readable tar, tar.gz or zip: %s",
                    why ? why : "unknown format");
}

static int leaves(struct abx_error *err, const char *what, const char *name)
{
    return abx_fail(err, E_PATH_NOT_ALLOWED, 0, "%s would leave the directory: %.300s", what, name);
}

/* Number of real components, or -1 when the name is absolute or has "..". Empty and "." parts don't
 * count. */
static int components(const char *name)
{
    if (*name == '/')
        return -1;
    int n = 0;
    while (*name) {
        size_t len = strcspn(name, "/");
        if (len == 2 && name[0] == '.' && name[1] == '.')
            return -1;
        if (len > 0 && !(len == 1 && name[0] == '.'))
            n++;
        name += len + (name[len] == '/');
    }
    return n;
}

/* ".." may only lead, and only as often as the link lies deep: the directories above it are real
 * ones, so that is exactly where it leads, whatever other links there are. */
static bool link_stays(const char *text, int depth)
{
    if (*text == '/' || *text == '\0')
        return false;
    int up = 0;
    while (strncmp(text, "..", 2) == 0 && (text[2] == '/' || text[2] == '\0')) {
        up++;
        text += 2 + strspn(text + 2, "/");
    }
    return up <= depth && (*text == '\0' || components(text) >= 0);
}

static bool extension_fits(const struct extract_order *o, const char *name)
{
    return files_extension_allowed(name, o->allow_ext, o->n_allow, o->deny_ext, o->n_deny);
}

/* Is a directory of u->path one of the archive's links? */
static bool goes_through_link(struct unpacker *u)
{
    char *path = u->path.data;
    for (char *slash = path + strlen(u->dest_path); (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        bool link = json_object_get(u->links, path) != NULL;
        *slash = '/';
        if (link)
            return true;
    }
    return false;
}

/* Everything that can be known before a byte is written. 1: skip the entry. */
static int judge(struct unpacker *u, struct archive_entry *e, const char *name,
                 struct abx_error *err)
{
    int depth = components(name);
    if (depth < 0)
        return leaves(err, "An entry", name);
    if (depth == 0)
        return 1; /* "./" */
    if (++u->ret->entries > u->order->max_files)
        return abx_fail(err, E_TOO_LARGE, 0, "Too many entries; limit is %lld",
                        (long long)u->order->max_files);
    buf_reset(&u->path);
    buf_adds(&u->path, strcmp(u->dest_path, "/") ? u->dest_path : "");
    for (const char *at = name; *at;) {
        size_t len = strcspn(at, "/");
        if (len > 0 && !(len == 1 && at[0] == '.')) {
            buf_addc(&u->path, '/');
            buf_add(&u->path, at, len);
        }
        at += len + (at[len] == '/');
    }
    const char *path = buf_str(&u->path);
    if (!path)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the archive");
    if (guard_denies(u->order->guard, path))
        return abx_fail(err, E_PATH_DENIED, 0, "Path is denied by policy: %.300s", name);
    if (goes_through_link(u))
        return leaves(err, "An entry that goes through a link", name);
    const char *hard = archive_entry_hardlink(e), *soft = archive_entry_symlink(e);
    if (hard) {
        if (components(hard) <= 0)
            return leaves(err, "A hard link", name);
        return extension_fits(u->order, path)
                   ? 0
                   : abx_fail(err, E_EXTENSION, 0, "Extension not allowed: %.300s", name);
    }
    switch (archive_entry_filetype(e)) {
    case AE_IFDIR:
        return 0;
    case AE_IFLNK:
        if (!soft || !link_stays(soft, depth - 1))
            return leaves(err, "A link", name);
        (void)json_object_set_new_nocheck(u->links, path,
                                          json_true()); /* open_parent sees it again */
        return extension_fits(u->order, path)
                   ? 0
                   : abx_fail(err, E_EXTENSION, 0, "Extension not allowed: %.300s", name);
    case AE_IFREG:
        if (!extension_fits(u->order, path))
            return abx_fail(err, E_EXTENSION, 0, "Extension not allowed: %.300s", name);
        if (archive_entry_size_is_set(e) && archive_entry_size(e) > u->order->max_bytes)
            return abx_fail(err, E_TOO_LARGE, 0, "Unpacked size too large; limit is %lld bytes",
                            (long long)u->order->max_bytes);
        return 0;
    default:
        u->ret->skipped++;
        return 1;
    }
}

/* The directory that the last component of name lies in, made where missing, through no link. */
static int open_parent(struct unpacker *u, const char *name, const char **ret_leaf, char leaf[256],
                       int *ret_fd, struct abx_error *err)
{
    autoclose int fd = fcntl(u->dest, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return abx_fail_os(err, errno, name);
    leaf[0] = '\0';
    for (const char *at = name; *at;) {
        size_t len = strcspn(at, "/");
        if (len > 255)
            return abx_fail_os(err, ENAMETOOLONG, name);
        if (len > 0 && !(len == 1 && at[0] == '.')) {
            if (leaf[0]) {
                if (mkdirat(fd, leaf, 0777) < 0 && errno != EEXIST)
                    return abx_fail_os(err, errno, name);
                int next = openat(fd, leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (next < 0)
                    return errno == ELOOP || errno == ENOTDIR
                               ? leaves(err, "An entry that goes through a link or a file", name)
                               : abx_fail_os(err, errno, name);
                close(take_fd(&fd));
                fd = next;
            }
            memcpy(leaf, at, len);
            leaf[len] = '\0';
        }
        at += len + (at[len] == '/');
    }
    *ret_leaf = leaf;
    *ret_fd = take_fd(&fd);
    return 0;
}

/* Takes away what is in the way of a file or link. */
static int make_room(struct unpacker *u, int fd, const char *leaf, const char *name,
                     struct abx_error *err)
{
    struct stat st;
    if (fstatat(fd, leaf, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : abx_fail_os(err, errno, name);
    if (u->order->no_overwrite)
        return abx_fail(err, E_FILE_EXISTS_POLICY, EEXIST, "File exists: %.300s", name);
    if (unlinkat(fd, leaf, 0) < 0 && errno != ENOENT)
        return abx_fail_os(err, errno, name);
    return 0;
}

static int unpack_file(struct unpacker *u, struct archive_entry *e, int dirfd, const char *leaf,
                       const char *name, struct abx_error *err)
{
    autoclose int fd = -1;
    if (u->writing) {
        if (make_room(u, dirfd, leaf, name, err) < 0)
            return -1;
        fd = openat(dirfd, leaf, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    archive_entry_perm(e) & 0777);
        if (fd < 0)
            return abx_fail_os(err, errno, name);
    }
    for (;;) {
        if (u->order->cancelled(u->order->data))
            return abx_fail(err, E_CANCELLED, 0, "the client has left");
        la_ssize_t n = archive_read_data(u->archive, u->data, PIECE);
        if (n < 0)
            return damaged(u->archive, err);
        if (n == 0)
            break;
        u->ret->bytes += n;
        if (u->ret->bytes > u->order->max_bytes)
            return abx_fail(err, E_TOO_LARGE, 0, "Unpacked size too large; limit is %lld bytes",
                            (long long)u->order->max_bytes);
        const uint8_t *at = u->data;
        for (la_ssize_t left = n; u->writing && left > 0;) {
            ssize_t w = write(fd, at, (size_t)left);
            if (w < 0 && errno == EINTR)
                continue;
            if (w < 0) {
                int sys = errno;
                (void)unlinkat(dirfd, leaf, 0); /* no half of a file */
                return abx_fail_os(err, sys, name);
            }
            at += w;
            left -= w;
        }
    }
    if (u->writing && archive_entry_mtime_is_set(e)) {
        const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                          {archive_entry_mtime(e), archive_entry_mtime_nsec(e)}};
        (void)futimens(fd, times); /* a nicety */
    }
    return 0;
}

static int unpack_hard(struct unpacker *u, const char *target, int dirfd, const char *leaf,
                       const char *name, struct abx_error *err)
{
    autoclose int fd = -1;
    char text[256];
    const char *from;
    struct stat st;
    if (open_parent(u, target, &from, text, &fd, err) < 0 ||
        make_room(u, dirfd, leaf, name, err) < 0)
        return -1;
    if (fstatat(fd, from, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return abx_fail(err, E_VALUE, errno, "A hard link to what is not there: %.300s", name);
    if (!S_ISREG(st.st_mode))
        return leaves(err, "A hard link to what is no file", name);
    return linkat(fd, from, dirfd, leaf, 0) < 0 ? abx_fail_os(err, errno, name) : 0;
}

static int unpack_entry(struct unpacker *u, struct archive_entry *e, struct abx_error *err)
{
    const char *name = archive_entry_pathname(e);
    if (!name)
        return abx_fail(err, E_VALUE, 0, "An entry's name can't be read");
    int rc = judge(u, e, name, err);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    bool file = !archive_entry_hardlink(e) && archive_entry_filetype(e) == AE_IFREG;
    if (!u->writing)
        return file ? unpack_file(u, e, -1, NULL, name, err) : 0;
    autoclose int fd = -1;
    char text[256];
    const char *leaf;
    if (open_parent(u, name, &leaf, text, &fd, err) < 0)
        return -1;
    if (file)
        return unpack_file(u, e, fd, leaf, name, err);
    if (archive_entry_hardlink(e))
        return unpack_hard(u, archive_entry_hardlink(e), fd, leaf, name, err);
    if (archive_entry_filetype(e) == AE_IFLNK) {
        if (make_room(u, fd, leaf, name, err) < 0)
            return -1;
        return symlinkat(archive_entry_symlink(e), fd, leaf) < 0 ? abx_fail_os(err, errno, name)
                                                                 : 0;
    }
    if (mkdirat(fd, leaf, 0777) == 0)
        return 0;
    struct stat st;
    if (errno == EEXIST && fstatat(fd, leaf, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        return 0;
    return abx_fail_os(err, EEXIST, name);
}

static int pass(struct unpacker *u, int in_fd, bool writing, struct abx_error *err)
{
    *u->ret = (struct extract_result){.path = u->dest_path};
    u->writing = writing;
    if (lseek(in_fd, 0, SEEK_SET) < 0)
        return abx_fail_os(err, errno, NULL);
    u->archive = archive_read_new();
    if (!u->archive)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the archive");
    archive_read_support_filter_gzip(u->archive);
    archive_read_support_format_tar(u->archive);
    archive_read_support_format_zip(u->archive);
    int rc = archive_read_open_fd(u->archive, in_fd, 64 * KIB) == ARCHIVE_OK
                 ? 0
                 : damaged(u->archive, err);
    while (rc == 0) {
        struct archive_entry *e;
        int got = archive_read_next_header(u->archive, &e);
        if (got == ARCHIVE_EOF)
            break;
        rc = broke(got) ? damaged(u->archive, err) : unpack_entry(u, e, err);
    }
    archive_read_free(u->archive);
    u->archive = NULL;
    return rc;
}

int abx_archive_extract(const struct extract_order *order, int in_fd, struct arena *arena,
                        struct extract_result *ret, struct abx_error *err)
{
    struct guard_path gp;
    if (guard_check(order->guard, order->path, order->path_len, NULL, OP_WRITE, arena, &gp, err) <
        0)
        return -1;
    struct unpacker u = {.order = order, .dest = -1, .dest_path = gp.resolved, .ret = ret};
    u.data = malloc(PIECE);
    u.links = json_object();
    locale_t made, before = enter_utf8(&made);
    int rc = u.data && u.links ? pass(&u, in_fd, false, err)
                               : abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the archive");
    const char *path;
    autoclose int dest = -1;
    if (rc == 0)
        rc = files_mkdir(order->guard, order->path, order->path_len, arena, &path, err);
    if (rc == 0)
        rc = guard_open(order->guard, order->path, order->path_len, OP_WRITE,
                        O_RDONLY | O_DIRECTORY, 0, arena, &gp, &dest, err);
    if (rc == 0) {
        u.dest = dest;
        u.dest_path = gp.resolved;
        rc = pass(&u, in_fd, true, err);
    }
    leave_utf8(before, made);
    buf_done(&u.path);
    json_decref(u.links);
    free(u.data);
    return rc;
}
