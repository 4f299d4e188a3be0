#pragma once
/* The one error type: what a failed call says, and what a client is told about it. */

#include <stdarg.h>
#include <stdbool.h>

enum error_kind {
#define ERROR(name, status, type, code) E_##name,
#include "base/errors.def"
#undef ERROR
    ERROR_KIND_COUNT
};

struct abx_error {           /* valid only after a call returned < 0; owns nothing */
    enum error_kind kind;
    int status;              /* HTTP, 400..599 */
    int sys;                 /* errno behind it, for the log; 0 if none */
    const char *type, *code; /* wire strings from errors.def; code may be NULL */
    char message[512];       /* for people; never parsed */
};

/* Fills err (NULL is allowed: the caller wants the result only). Returns -1. */
int abx_fail(struct abx_error *err, enum error_kind kind, int sys, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int abx_failv(struct abx_error *err, enum error_kind kind, int sys, const char *fmt, va_list ap)
    __attribute__((format(printf, 4, 0)));

/* "[Errno N] text: 'path'", status 500 (ENOSPC, EDQUOT: 507; ENOMEM, EMFILE, ENFILE: 503), `type` named after the
 * errno as docs/files.md says (ENOENT FileNotFoundError, EACCES PermissionError, ...).
 * path NULL: no ": 'path'". Returns -1. */
int abx_fail_os(struct abx_error *err, int sys, const char *path);

/* The same, but "missing" (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP) is 404. Returns -1. */
int abx_fail_lookup(struct abx_error *err, int sys, const char *path);

/* The wire strings of a kind, from errors.def; code may be NULL. */
void error_wire(enum error_kind kind, const char **ret_type, const char **ret_code);

/* A want of descriptors or memory: it says nothing about what was asked for, and may be over in a moment. */
bool error_is_want(int sys);
/* The same, descriptors only, of a library's message: it keeps the errno to itself, but for its text at the end. */
bool error_text_is_want(const char *text);

/* Wire type for an errno: "FileNotFoundError", ..., "OSError". */
const char *error_os_type(int sys);

/* Puts "prefix" in front of the message ("cwd: ", "source: "). Returns -1. */
int abx_prefix(struct abx_error *err, const char *prefix);
