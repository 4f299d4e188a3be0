#include "files/upload.h"
#include "files/list.h"

#include "base/buf.h"
#include "base/crypto.h"
#include "base/json.h"
#include "base/own.h"
#include "files/base64.h"

#include <errno.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define DECODE_PIECE (64 * KIB)
#define TEMP_NAME 48

/* Where the reader of the JSON form stands. */
enum place {
    AT_START, /* before the { */
    AT_FIRST, /* a key or } */
    AT_KEY,   /* a key (after a comma) */
    IN_KEY,
    AT_COLON,
    AT_VALUE,
    IN_VALUE,   /* a collected value */
    IN_CONTENT, /* inside the quotes of content_base64 */
    AT_COMMA,
    AT_END,
};

struct upload {
    struct upload_options opt;
    struct arena arena;
    /* the target */
    struct guard_path at;
    const char *resolved; /* NULL: not opened yet */
    int dirfd, fd;
    char temp[TEMP_NAME]; /* hidden name, or "": unnamed */
    bool spooled;         /* fd is a spool: content came before the path */
    bool exists;
    struct stat old;
    bool has_later;
    struct abx_error later; /* fails the upload at its end, after errors of form */
    /* the content */
    int64_t bytes;
    struct sha256_ctx hash;
    bool has_content;
    struct base64_reader base64;
    uint8_t *decoded;
    /* the JSON form */
    enum place place;
    struct buf raw; /* text of the key or value at hand */
    bool in_string, escaped;
    unsigned depth;
    char escape[8];
    uint8_t n_escape; /* of an escape inside the content */
    char *key;
    json_t *fields;
    int64_t other; /* bytes that were not content */
};

struct upload *upload_new(const struct upload_options *opt)
{
    struct upload *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    arena_init(&u->arena);
    u->opt = *opt;
    u->dirfd = u->fd = -1;
    sha256_init(&u->hash);
    if (opt->path) {
        u->opt.path = arena_strndup(&u->arena, opt->path, opt->path_len);
        if (!u->opt.path) {
            upload_free(u);
            return NULL;
        }
    } else {
        u->fields = json_object();
        if (!u->fields) {
            upload_free(u);
            return NULL;
        }
    }
    return u;
}

void upload_free(struct upload *u)
{
    if (!u)
        return;
    if (u->temp[0] && u->dirfd >= 0)
        (void)unlinkat(u->dirfd, u->temp, 0); /* nothing is left of a broken upload */
    if (u->fd >= 0)
        close(u->fd);
    if (u->dirfd >= 0)
        close(u->dirfd);
    free(u->decoded);
    free(u->key);
    json_decref(u->fields);
    buf_done(&u->raw);
    arena_done(&u->arena);
    free(u);
}

static int no_memory(struct abx_error *err)
{
    return abx_fail(err, E_NO_MEMORY, ENOMEM, "no memory for the upload");
}

/* --- the target ----------------------------------------------------------------------------------
 */

static const char *suffix_of(const char *name)
{
    name += strspn(name, ".");
    const char *dot = strrchr(name, '.');
    return dot ? dot : ""; /* ".profile" has none, that of "a." is "." */
}

static bool in_list(const char *const *list, size_t n, const char *suffix)
{
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(list[i], suffix) == 0)
            return true;
    return false;
}

bool files_extension_allowed(const char *path, const char *const *allow, size_t n_allow,
                             const char *const *deny, size_t n_deny)
{
    const char *slash = strrchr(path, '/');
    const char *suffix = suffix_of(slash ? slash + 1 : path);
    return !in_list(deny, n_deny, suffix) && (!allow || in_list(allow, n_allow, suffix));
}

static int fail_later(struct upload *u, int rc, const struct abx_error *err)
{
    if (rc == 0)
        return 0;
    u->later = *err;
    u->has_later = true;
    return 0;
}

static int check_existing(struct upload *u, struct abx_error *err)
{
    if (fstatat(u->dirfd, u->at.name, &u->old, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT)
            return 0;
        return abx_fail_os(err, errno, u->resolved);
    }
    u->exists = true;
    if (u->opt.no_overwrite)
        return abx_fail(err, E_FILE_EXISTS_POLICY, EEXIST, "File exists: %s", u->resolved);
    if (S_ISDIR(u->old.st_mode))
        return abx_fail_os(err, EISDIR, u->resolved);
    if (S_ISLNK(u->old.st_mode)) /* a loop: other links have been resolved */
        return abx_fail(err, E_SYMLINK_DENIED, ELOOP, "Too many levels of symbolic links: %s", u->resolved);
    if (!S_ISREG(u->old.st_mode))
        return abx_fail(err, E_VALUE, 0, "Not a regular file: %s", u->resolved);
    /* Replacing needs no right on the file itself, yet a read-only file means what it says. */
    autoclose int probe =
        openat(u->dirfd, u->at.name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (probe < 0 && errno != ETXTBSY && errno != ENOENT)
        return abx_fail_os(err, errno, u->resolved);
    return 0;
}

static int open_temp(struct upload *u, struct abx_error *err)
{
    u->fd = openat(u->dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (u->fd >= 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)
        return abx_fail_os(err, errno, u->resolved);
    strcpy(u->temp, ".abx-upload-");
    crypto_random_hex(u->temp + strlen(u->temp), 16);
    u->fd = openat(u->dirfd, u->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (u->fd >= 0)
        return 0;
    u->temp[0] = '\0';
    return abx_fail_os(err, errno, u->resolved);
}

/* mkdir by another upload or a removal may come between the steps of the walk: start over a few
 * times. */
static int open_parent(struct upload *u, struct abx_error *err)
{
    for (int attempt = 0;; attempt++) {
        if (guard_open_parent(u->opt.guard, u->resolved, strlen(u->resolved), OP_WRITE, true,
                              &u->arena, &u->at, &u->dirfd, err) == 0)
            return 0;
        if (err->kind != E_OS || err->sys != ENOENT || attempt == 3)
            break;
    }
    files_parent_error(err);
    return -1;
}

static int open_target(struct upload *u, const char *path, size_t len, struct abx_error *err)
{
    struct guard_path gp;
    if (guard_check(u->opt.guard, path, len, NULL, OP_WRITE, &u->arena, &gp, err) < 0)
        return -1;
    u->resolved = gp.resolved;
    if (u->opt.spool)
        return 0;
    if (!files_extension_allowed(gp.resolved, u->opt.allow_ext, u->opt.n_allow, u->opt.deny_ext,
                                 u->opt.n_deny))
        return abx_fail(err, E_EXTENSION, 0, "This extension is not allowed: %s", gp.resolved);
    struct abx_error why;
    int rc = open_parent(u, &why);
    if (rc == 0)
        rc = check_existing(u, &why);
    if (rc < 0) {
        if (!u->opt.path)
            return fail_later(u, rc, &why);
        *err = why;
        return -1;
    }
    return 0;
}

int files_spool(const struct guard *g, struct abx_error *err)
{
    const char *dirs[] = {getenv("TMPDIR"), "/tmp", "/var/tmp", guard_root(g)};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        if (!dirs[i] || dirs[i][0] != '/')
            continue;
        int fd = open(dirs[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd >= 0)
            return fd;
    }
    int fd = memfd_create("abx-spool", MFD_CLOEXEC);
    return fd >= 0 ? fd : abx_fail_os(err, errno, NULL);
}

/* The first byte of content: where does it go? */
static int begin_content(struct upload *u, struct abx_error *err)
{
    if (u->fd >= 0 || u->has_later)
        return 0;
    if (u->opt.spool || !u->resolved) {
        u->spooled = true;
        u->fd = files_spool(u->opt.guard, err);
        return u->fd < 0 ? -1 : 0;
    }
    struct abx_error why;
    int rc = open_temp(u, &why);
    if (rc == 0)
        return 0;
    if (!u->opt.path)
        return fail_later(u, rc, &why);
    *err = why;
    return -1;
}

static int write_all(int fd, const uint8_t *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

static int put(struct upload *u, const uint8_t *data, size_t len, struct abx_error *err)
{
    u->bytes += (int64_t)len;
    if (u->bytes > u->opt.max_bytes)
        return abx_fail(err, E_TOO_LARGE, 0, "Upload too large; limit is %lld bytes",
                        (long long)u->opt.max_bytes);
    if (u->has_later)
        return 0;
    if (write_all(u->fd, data, len) < 0)
        return abx_fail_os(err, errno, u->resolved);
    if (!u->opt.no_hash)
        sha256_update(&u->hash, len, data);
    return 0;
}

/* --- the JSON form -------------------------------------------------------------------------------
 */

static int bad_json(struct abx_error *err, const char *what)
{
    return abx_fail(err, E_BAD_BODY, 0, "Invalid JSON: %s", what);
}

/* Parses what was collected. New reference, or NULL. */
static json_t *collected(struct upload *u, struct abx_error *err)
{
    autobuf struct buf text = BUF_INIT; /* in brackets: json_parse wants a container */
    buf_addc(&text, '[');
    buf_add(&text, u->raw.data, u->raw.len);
    buf_addc(&text, ']');
    autojson json_t *list = NULL;
    buf_reset(&u->raw);
    if (text.failed) {
        no_memory(err);
        return NULL;
    }
    if (json_parse(text.data, text.len, &list, err) < 0)
        return NULL;
    if (json_array_size(list) != 1) {
        bad_json(err, "a single value was expected");
        return NULL;
    }
    return json_incref(json_array_get(list, 0));
}

static int end_key(struct upload *u, struct abx_error *err)
{
    autojson json_t *name = collected(u, err);
    if (!name)
        return -1;
    free(u->key);
    u->key = strndup(json_string_value(name), json_string_length(name));
    if (!u->key)
        return no_memory(err);
    bool again = json_object_get(u->fields, u->key) ||
                 (u->has_content && strcmp(u->key, "content_base64") == 0);
    if (again)
        return abx_fail(err, E_BAD_BODY, 0, "Key given twice: %s", u->key);
    u->place = AT_COLON;
    return 0;
}

static int end_value(struct upload *u, struct abx_error *err)
{
    json_t *value = collected(u, err);
    if (!value)
        return -1;
    u->place = AT_COMMA;
    if (json_object_set_new(u->fields, u->key, value) < 0)
        return no_memory(err);
    if (strcmp(u->key, "content_base64") == 0 ||
        (strcmp(u->key, "content") == 0 && u->opt.text_content))
        return 0; /* judged at the end */
    if (strcmp(u->key, "path") != 0)
        return 0;
    if (!json_is_string(value) || json_string_length(value) == 0)
        return abx_fail(err, E_VALUE, 0, "Missing or invalid 'path'");
    return 0;
}

static int begin_base64(struct upload *u, struct abx_error *err)
{
    u->has_content = true;
    u->place = IN_CONTENT;
    if (!u->decoded) {
        u->decoded = malloc(DECODE_PIECE / 4 * 3 + 3);
        if (!u->decoded)
            return no_memory(err);
    }
    const json_t *path = json_object_get(u->fields, "path");
    if (path && open_target(u, json_string_value(path), json_string_length(path), err) < 0)
        return -1;
    return begin_content(u, err);
}

static int put_base64(struct upload *u, const char *text, size_t len, struct abx_error *err)
{
    while (len > 0) {
        size_t n = len < DECODE_PIECE ? len : DECODE_PIECE;
        ptrdiff_t got = base64_read(&u->base64, text, n, u->decoded);
        if (got < 0)
            return abx_fail(err, E_VALUE, 0,
                            "Invalid base64: not the standard alphabet, padded, without blanks");
        if (put(u, u->decoded, (size_t)got, err) < 0)
            return -1;
        text += n;
        len -= n;
    }
    return 0;
}

/* A finished escape: \/ and \u00XX may stand for digits; all others are no base64. */
static int put_escape(struct upload *u, struct abx_error *err)
{
    char c = u->escape[1];
    if (c == 'u') {
        unsigned v = 0;
        for (int i = 2; i < 6; i++) {
            char h = u->escape[i];
            unsigned d = h >= '0' && h <= '9'                 ? (unsigned)(h - '0')
                         : (h | 32) >= 'a' && (h | 32) <= 'f' ? (unsigned)((h | 32) - 'a' + 10)
                                                              : 255;
            if (d == 255)
                return bad_json(err, "a broken \\u escape");
            v = v << 4 | d;
        }
        c = v < 128 ? (char)v : '\0';
    } else if (c != '/') {
        if (!strchr("\"\\bfnrt", c) || c == '\0')
            return bad_json(err, "an unknown escape");
        c = '\0';
    }
    u->n_escape = 0;
    return put_base64(u, &c, 1, err);
}

/* A piece of content up to its quote, an escape or its end. Returns the bytes used, or -1. */
static ptrdiff_t content_piece(struct upload *u, const char *data, size_t len, struct abx_error *err)
{
    const char *quote = memchr(data, '"', len);
    size_t end = quote ? (size_t)(quote - data) : len;
    const char *slash = memchr(data, '\\', end);
    if (slash)
        end = (size_t)(slash - data);
    if (put_base64(u, data, end, err) < 0)
        return -1;
    if (slash) {
        u->escape[0] = '\\';
        u->n_escape = 1;
    } else if (quote) {
        if (!base64_whole(&u->base64))
            return abx_fail(err, E_VALUE, 0, "Invalid base64: the last group is incomplete");
        u->place = AT_COMMA;
    }
    return (ptrdiff_t)(end + (quote || slash));
}

/* Content until its closing quote. Returns the bytes used, or -1. */
static ptrdiff_t content(struct upload *u, const char *data, size_t len, struct abx_error *err)
{
    size_t i = 0;
    while (i < len && u->place == IN_CONTENT) {
        if (u->n_escape > 0) {
            u->escape[u->n_escape++] = data[i++];
            if (u->n_escape == (u->escape[1] == 'u' ? 6 : 2) && put_escape(u, err) < 0)
                return -1;
            continue;
        }
        /* Most pieces are digits and nothing else, which decoding finds out by itself. */
        size_t n = len - i < DECODE_PIECE ? len - i : DECODE_PIECE;
        struct base64_reader before = u->base64;
        ptrdiff_t got = base64_read(&u->base64, data + i, n, u->decoded);
        if (got >= 0) {
            if (put(u, u->decoded, (size_t)got, err) < 0)
                return -1;
            i += n;
            continue;
        }
        u->base64 = before;
        got = content_piece(u, data + i, n, err);
        if (got < 0)
            return -1;
        i += (size_t)got;
    }
    return (ptrdiff_t)i;
}

/* One character of a collected value; true when it was its last. */
static bool value_char(struct upload *u, char c)
{
    if (u->in_string) {
        if (u->escaped)
            u->escaped = false;
        else if (c == '\\')
            u->escaped = true;
        else if (c == '"')
            u->in_string = false;
        return !u->in_string && u->depth == 0;
    }
    if (c == '"') {
        u->in_string = true;
    } else if (c == '{' || c == '[') {
        u->depth++;
    } else if (c == '}' || c == ']') {
        return --u->depth == 0;
    }
    return false;
}

static int json_char(struct upload *u, char c, struct abx_error *err)
{
    bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (++u->other > u->opt.max_other)
        return abx_fail(err, E_TOO_LARGE, 0, "Request body too large; limit is %lld",
                        (long long)u->opt.max_other);
    switch (u->place) {
    case AT_START:
        if (blank)
            return 0;
        if (c != '{')
            return abx_fail(err, E_BAD_BODY, 0, "The request body must be a JSON object");
        u->place = AT_FIRST;
        return 0;
    case AT_FIRST:
    case AT_KEY:
        if (blank)
            return 0;
        if (c == '}' && u->place == AT_FIRST) {
            u->place = AT_END;
            return 0;
        }
        if (c != '"')
            return bad_json(err, "a key was expected");
        buf_addc(&u->raw, c);
        u->place = IN_KEY;
        u->escaped = false;
        return 0;
    case IN_KEY:
        buf_addc(&u->raw, c);
        if (u->escaped)
            u->escaped = false;
        else if (c == '\\')
            u->escaped = true;
        else if (c == '"')
            return end_key(u, err);
        return 0;
    case AT_COLON:
        if (blank)
            return 0;
        if (c != ':')
            return bad_json(err, "a colon was expected");
        u->place = AT_VALUE;
        return 0;
    case AT_VALUE:
        if (blank)
            return 0;
        if (c == '"' && strcmp(u->key, "content_base64") == 0)
            return begin_base64(u, err);
        if (c == ',' || c == '}' || c == ']')
            return bad_json(err, "a value was expected");
        u->in_string = u->escaped = false;
        u->depth = 0;
        buf_addc(&u->raw, c);
        u->place = IN_VALUE;
        value_char(u, c);
        return 0;
    case IN_VALUE:
        if (!u->in_string && u->depth == 0 && (blank || c == ',' || c == '}')) {
            /* the end of a number, true, false or null */
            if (end_value(u, err) < 0)
                return -1;
            u->other--;
            return json_char(u, c, err);
        }
        buf_addc(&u->raw, c);
        if (!u->in_string && u->depth == 0 && (c == '"' || c == ']' || c == '{' || c == '['))
            return bad_json(err, "an unexpected character in a value");
        return value_char(u, c) ? end_value(u, err) : 0;
    case AT_COMMA:
        if (blank)
            return 0;
        if (c != ',' && c != '}')
            return bad_json(err, "a comma or the end of the object was expected");
        u->place = c == ',' ? AT_KEY : AT_END;
        return 0;
    case AT_END:
        return blank ? 0 : bad_json(err, "there is text after the object");
    case IN_CONTENT:
    default:
        return abx_fail(err, E_INTERNAL, 0, "upload reader in state %d", (int)u->place);
    }
}

int upload_feed(struct upload *u, const char *data, size_t len, struct abx_error *err)
{
    if (u->opt.path) {
        if (!u->resolved && open_target(u, u->opt.path, u->opt.path_len, err) < 0)
            return -1;
        if (begin_content(u, err) < 0)
            return -1;
        return put(u, (const uint8_t *)data, len, err);
    }
    for (size_t i = 0; i < len;) {
        if (u->place == IN_CONTENT) {
            ptrdiff_t n = content(u, data + i, len - i, err);
            if (n < 0)
                return -1;
            i += (size_t)n;
        } else if (json_char(u, data[i++], err) < 0) {
            return -1;
        }
    }
    return u->raw.failed ? no_memory(err) : 0;
}

/* --- the end -------------------------------------------------------------------------------------
 */

/* Text content, or what is wrong with the content. */
static int finish_json(struct upload *u, struct abx_error *err)
{
    if (u->place != AT_END && !(u->place == AT_START && u->other == 0))
        return bad_json(err, "the object is not finished");
    const json_t *path = json_object_get(u->fields, "path");
    if (!path)
        return abx_fail(err, E_VALUE, 0, "Missing or invalid 'path'");
    const json_t *text =
        u->opt.text_content && !u->has_content ? json_object_get(u->fields, "content") : NULL;
    if (!u->has_content && !json_is_string(text))
        return abx_fail(err, E_VALUE, 0, "Missing or invalid '%s'",
                        u->opt.text_content ? "content" : "content_base64");
    if (!u->resolved && open_target(u, json_string_value(path), json_string_length(path), err) < 0)
        return -1;
    if (begin_content(u, err) < 0)
        return -1;
    if (text && put(u, (const uint8_t *)json_string_value(text), json_string_length(text), err) < 0)
        return -1;
    if (u->has_later) {
        *err = u->later;
        return -1;
    }
    u->opt.fsync = u->opt.fsync || json_is_true(json_object_get(u->fields, "fsync"));
    return 0;
}

/* Content that came before its path: now it can move beside its target. */
static int unspool(struct upload *u, struct abx_error *err)
{
    autoclose int spool = take_fd(&u->fd);
    u->spooled = false;
    if (open_temp(u, err) < 0)
        return -1;
    off_t at = 0;
    while (at < u->bytes) {
        ssize_t n = sendfile(u->fd, spool, &at, (size_t)(u->bytes - at));
        if (n <= 0)
            return abx_fail_os(err, n < 0 ? errno : EIO, u->resolved);
    }
    return 0;
}

/* Mode and owner of the file that is replaced. */
static void keep_mode(struct upload *u)
{
    if (!u->exists)
        return;
    if (u->old.st_uid != geteuid() || u->old.st_gid != getegid())
        (void)!fchown(u->fd, u->old.st_uid, u->old.st_gid); /* as far as we may */
    (void)fchmod(u->fd, u->old.st_mode & 0777);
}

static int give_name(struct upload *u, struct abx_error *err)
{
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", u->fd);
    if (!u->temp[0]) {
        if (!u->exists && linkat(AT_FDCWD, self, u->dirfd, u->at.name, AT_SYMLINK_FOLLOW) == 0)
            return 0;
        if (!u->exists && errno != EEXIST)
            return abx_fail_os(err, errno, u->resolved);
        if (u->opt.no_overwrite)
            return abx_fail(err, E_FILE_EXISTS_POLICY, EEXIST, "File exists: %s", u->resolved);
        strcpy(u->temp, ".abx-upload-");
        crypto_random_hex(u->temp + strlen(u->temp), 16);
        if (linkat(AT_FDCWD, self, u->dirfd, u->temp, AT_SYMLINK_FOLLOW) < 0) {
            u->temp[0] = '\0';
            return abx_fail_os(err, errno, u->resolved);
        }
    }
    int rc = u->opt.no_overwrite ? linkat(u->dirfd, u->temp, u->dirfd, u->at.name, 0)
                                 : renameat(u->dirfd, u->temp, u->dirfd, u->at.name);
    if (rc < 0) {
        if (u->opt.no_overwrite && errno == EEXIST)
            return abx_fail(err, E_FILE_EXISTS_POLICY, EEXIST, "File exists: %s", u->resolved);
        return abx_fail_os(err, errno, u->resolved);
    }
    if (u->opt.no_overwrite)
        (void)unlinkat(u->dirfd, u->temp, 0); /* its second name */
    u->temp[0] = '\0';
    return 0;
}

int upload_finish(struct upload *u, struct upload_result *ret, struct abx_error *err)
{
    if (u->opt.path) {
        if (upload_feed(u, "", 0, err) < 0) /* an empty body has not opened anything yet */
            return -1;
    } else if (finish_json(u, err) < 0) {
        return -1;
    }
    uint8_t hash[SHA256_DIGEST_SIZE];
    sha256_digest(&u->hash, sizeof hash, hash);
    ret->sha256[0] = '\0';
    if (!u->opt.no_hash)
        hex_encode(hash, sizeof hash, ret->sha256);
    ret->bytes = u->bytes;
    ret->path = u->resolved;
    if (u->opt.spool)
        return 0;
    if (u->spooled && unspool(u, err) < 0)
        return -1;
    keep_mode(u);
    if (u->opt.fsync && fsync(u->fd) < 0)
        return abx_fail_os(err, errno, u->resolved);
    if (give_name(u, err) < 0)
        return -1;
    if (u->opt.fsync) {
        autoclose int dir = openat(u->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir >= 0 && fsync(dir) < 0)
            return abx_fail_os(err, errno, u->resolved);
    }
    return 0;
}

int upload_take_spool(struct upload *u) { return take_fd(&u->fd); }

const json_t *upload_field(const struct upload *u, const char *name)
{
    return u->fields ? json_object_get(u->fields, name) : NULL;
}
