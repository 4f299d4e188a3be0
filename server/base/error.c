#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static const struct {
    int status;
    const char *type, *code;
} kinds[ERROR_KIND_COUNT] = {
#define ERROR(name, http, wire_type, wire_code)                                                    \
    [E_##name] = {.status = (http), .type = (wire_type), .code = (wire_code)},
#include "base/errors.def"
#undef ERROR
};

void error_wire(enum error_kind kind, const char **ret_type, const char **ret_code)
{
    *ret_type = kinds[kind].type;
    *ret_code = kinds[kind].code;
}

int abx_failv(struct abx_error *err, enum error_kind kind, int sys, const char *fmt, va_list ap)
{
    if (!err)
        return -1;
    err->kind = kind;
    err->status = kinds[kind].status;
    err->type = kinds[kind].type;
    err->code = kinds[kind].code;
    err->sys = sys;
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    return -1;
}

int abx_fail(struct abx_error *err, enum error_kind kind, int sys, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    abx_failv(err, kind, sys, fmt, ap);
    va_end(ap);
    return -1;
}

bool error_is_want(int sys)
{
    return sys == EMFILE || sys == ENFILE || sys == ENOMEM;
}

bool error_text_is_want(const char *text)
{
    return text_ends_with(text, strerrordesc_np(EMFILE)) || text_ends_with(text, strerrordesc_np(ENFILE));
}

const char *error_os_type(int sys)
{
    switch (sys) {
    case ENOENT:
        return "FileNotFoundError";
    case EEXIST:
        return "FileExistsError";
    case ENOTDIR:
        return "NotADirectoryError";
    case EISDIR:
        return "IsADirectoryError";
    case EACCES:
    case EPERM:
        return "PermissionError";
    case EPIPE:
        return "BrokenPipeError";
    case ESRCH:
        return "ProcessLookupError";
    default:
        return "OSError";
    }
}

int abx_fail_os(struct abx_error *err, int sys, const char *path)
{
    enum error_kind kind = E_OS;
    if (sys == ENOSPC || sys == EDQUOT)
        kind = E_NO_SPACE;
    else if (sys == ENOMEM)
        kind = E_NO_MEMORY;
    else if (error_is_want(sys))
        kind = E_OVERLOADED;
    char text[128];
    const char *what = strerror_r(sys, text, sizeof text);
    if (path)
        abx_fail(err, kind, sys, "[Errno %d] %s: '%s'", sys, what, path);
    else
        abx_fail(err, kind, sys, "[Errno %d] %s", sys, what);
    if (err && kind == E_OS)
        err->type = error_os_type(sys);
    return -1;
}

int abx_fail_lookup(struct abx_error *err, int sys, const char *path)
{
    abx_fail_os(err, sys, path);
    if (err && (sys == ENOENT || sys == ENOTDIR || sys == ENAMETOOLONG || sys == ELOOP)) {
        err->kind = E_FILE_NOT_FOUND;
        err->status = 404;
        if (sys != ENOTDIR)
            err->type = "FileNotFoundError";
    }
    return -1;
}

int abx_prefix(struct abx_error *err, const char *prefix)
{
    if (!err)
        return -1;
    size_t n = strlen(prefix), len = strlen(err->message);
    if (n >= sizeof err->message)
        n = sizeof err->message - 1;
    if (len > sizeof err->message - 1 - n)
        len = sizeof err->message - 1 - n;
    memmove(err->message + n, err->message, len);
    memcpy(err->message, prefix, n);
    err->message[n + len] = '\0';
    return -1;
}
