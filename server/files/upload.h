#pragma once
/* An upload in pieces: raw bytes, or the JSON form decoded while it arrives. Used by one worker at a time.
 *
 * The file appears whole or not at all: bytes go to an unnamed (or hidden) file in the target's directory,
 * which takes the name at the end. An upload that is freed before leaves nothing. */

#include "base/error.h"
#include "policy/guard.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct upload;

struct upload_options {
    const struct guard *guard;
    int64_t max_bytes;
    bool no_overwrite;
    const char *const *allow_ext; /* n_allow; NULL: all. With the dot, any case; "" = no suffix */
    size_t n_allow;
    const char *const *deny_ext;
    size_t n_deny;
    bool fsync;
    bool no_hash; /* sha256 is left empty: it costs more than the writing itself */
    /* Raw form: */
    const char *path; /* NULL: JSON form */
    size_t path_len;
    /* JSON form: */
    bool text_content; /* {"content": text} is taken too */
    int64_t max_other; /* bytes of the JSON around the content */
    /* The content goes to an unnamed spool file and the path only to upload_path: for extraction. */
    bool spool;
};

/* Suffix rules: the last suffix of the last component, with its dot, in any case. allow NULL: all. */
bool files_extension_allowed(const char *path, const char *const *allow, size_t n_allow, const char *const *deny,
                             size_t n_deny);

/* Copies strings. NULL: no memory. */
struct upload *upload_new(const struct upload_options *opt);
void upload_free(struct upload *u);

/* Errors: E_VALUE, E_BAD_BODY (malformed), E_TOO_LARGE (the limit is upload_limit), the guard's, E_EXTENSION,
 * OS errors, E_NO_SPACE. After an error only upload_free may follow. */
int upload_feed(struct upload *u, const char *data, size_t len, struct abx_error *err);

struct upload_result {
    const char *path; /* canonical; valid until upload_free */
    int64_t bytes;
    char sha256[65]; /* hex, or "" */
};
/* All has come: gives the file its name. Errors: as upload_feed; E_FILE_EXISTS_POLICY. */
int upload_finish(struct upload *u, struct upload_result *ret, struct abx_error *err);

/* spool: the content (caller closes), and a field of the JSON form, or NULL. */
int upload_take_spool(struct upload *u);
const json_t *upload_field(const struct upload *u, const char *name);

/* The first of /tmp, the root and memory that takes an unnamed file. -1 with err. */
int files_spool(const struct guard *g, struct abx_error *err);
