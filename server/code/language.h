#pragma once
/* The languages that code can be run in, and how a program of each gets its code: never as an argument,
 * which has a limit and shows in process listings. */

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define CODE_FD 3 /* of the child: the code, from its beginning */

struct language {
    const char *name;           /* on the wire, lower case */
    const char *program;        /* looked up in PATH */
    const char *file;           /* NULL: the code comes on CODE_FD; else the file that it is written to */
    const char *const *argv;    /* NULL-terminated, argv[0] included; "{dir}" is the file's directory */
    const char *before_args;    /* goes before a caller's arguments, if there are any; may be NULL */
    bool core;                  /* always offered; others only where they are installed */
    bool unix_lines;            /* can't read CRLF: made LF */
};

extern const struct language languages[];
extern const size_t n_languages;
const struct language *language_find(const char *name); /* NULL: unknown */

/* The code, ready for a program. */
struct source {
    int fd;    /* -1: in dir */
    char *dir; /* temporary, NULL: on fd */
};

/* Writes it down; may block on disk when lang->file. tmp: directory for temporary ones.
 * Errors: OS errors, E_NO_MEMORY. */
int source_write(const struct language *lang, const char *code, size_t len, const char *tmp, struct source *ret,
                 struct abx_error *err);
/* Removes the directory with all that is in it; may block. */
void source_remove(struct source *s);

/* argv of the run, one heap block (free). args: NULL-terminated or NULL. NULL: no memory. */
char **language_argv(const struct language *lang, const char *dir, char *const *args);
