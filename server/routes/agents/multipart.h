#pragma once
/* multipart/form-data (RFC 7578) as POST /v1/files takes it: text fields, and one part named
 * "file". */

#include "base/buf.h"
#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

struct multipart {
    json_t *fields; /* name -> text; "filename" from the file part unless a field of that name is
                       there */
    struct buf file;
    bool has_file;
};

/* LF line ends and a missing end boundary are tolerated; base64 and quoted-printable parts are
 * decoded. Errors: E_VALUE "Invalid multipart body: ...". The caller calls multipart_done in any
 * case. */
int multipart_parse(const char *content_type, const char *body, size_t len, struct multipart *ret,
                    struct abx_error *err);
void multipart_done(struct multipart *m);
