#include "routes/agents/multipart.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/own.h"
#include "base/utf8.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define MAX_PARTS 64

static int bad(struct abx_error *err, const char *why)
{
    return abx_fail(err, E_VALUE, 0, "Invalid multipart body: %s", why);
}

/* A parameter of a header value: name="value" or name=value. Heap, NULL when absent. */
static char *parameter(const char *header, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = strchr(header, ';'); p; p = strchr(p, ';')) {
        p++;
        while (isspace((unsigned char)*p))
            p++;
        if (strncasecmp(p, name, n) != 0)
            goto skip;
        const char *v = p + n;
        while (isspace((unsigned char)*v))
            v++;
        if (*v++ != '=')
            goto skip;
        while (isspace((unsigned char)*v))
            v++;
        struct buf out = BUF_INIT;
        if (*v == '"') {
            for (v++; *v && *v != '"'; v++) {
                if (*v == '\\' && v[1])
                    v++;
                buf_addc(&out, *v);
            }
        } else {
            buf_add(&out, v, strcspn(v, "; \t\r\n"));
        }
        return buf_take(&out, NULL);
    skip:
        /* a quoted value may hold a ';' */
        for (bool quoted = false; *p && (quoted || *p != ';'); p++)
            quoted = *p == '"' ? !quoted : quoted;
    }
    return NULL;
}

/* filename*=UTF-8''a%20b (RFC 8187). Heap. */
static char *extended(const char *value)
{
    const char *p = strchr(value, '\'');
    p = p ? strchr(p + 1, '\'') : NULL;
    if (!p)
        return NULL;
    struct buf out = BUF_INIT;
    for (p++; *p; p++) {
        if (*p == '%' && isxdigit((unsigned char)p[1]) && isxdigit((unsigned char)p[2])) {
            char hex[3] = {p[1], p[2], 0};
            buf_addc(&out, (char)strtol(hex, NULL, 16));
            p += 2;
        } else {
            buf_addc(&out, *p);
        }
    }
    return buf_take(&out, NULL);
}

static void quoted_printable(const char *s, size_t len, struct buf *out)
{
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '=' && i + 2 < len && isxdigit((unsigned char)s[i + 1]) &&
            isxdigit((unsigned char)s[i + 2])) {
            char hex[3] = {s[i + 1], s[i + 2], 0};
            buf_addc(out, (char)strtol(hex, NULL, 16));
            i += 2;
        } else if (s[i] == '=' && i + 1 < len && (s[i + 1] == '\n' || s[i + 1] == '\r')) {
            i += s[i + 1] == '\r' && i + 2 < len && s[i + 2] == '\n' ? 2 : 1;
        } else {
            buf_addc(out, s[i]);
        }
    }
}

/* A header of a part's head; heap. */
static char *header(const char *head, size_t len, const char *name)
{
    size_t n = strlen(name);
    const char *end = head + len;
    for (const char *line = head; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        if ((size_t)(stop - line) > n && line[n] == ':' && strncasecmp(line, name, n) == 0) {
            struct buf out = BUF_INIT;
            line += n + 1;
            while (line < stop && (*line == ' ' || *line == '\t'))
                line++;
            buf_add(&out, line, (size_t)(stop - line));
            while (out.len && isspace((unsigned char)out.data[out.len - 1]))
                out.len--;
            return buf_take(&out, NULL);
        }
        line = stop + 1;
    }
    return NULL;
}

static int part(const char *data, size_t len, struct multipart *m, struct abx_error *err)
{
    const char *crlf = memmem(data, len, "\r\n\r\n", 4), *lf = memmem(data, len, "\n\n", 2);
    const char *split = crlf && (!lf || crlf < lf) ? crlf : lf;
    size_t skip = split == crlf ? 4 : 2;
    if (!split)
        return bad(err, "malformed multipart body");
    size_t head_len = (size_t)(split - data);
    const char *body = split + skip;
    size_t body_len = len - head_len - skip;
    autofree char *disposition = header(data, head_len, "content-disposition");
    autofree char *coding = header(data, head_len, "content-transfer-encoding");
    autofree char *name = disposition ? parameter(disposition, "name") : NULL;
    if (!name || !*name)
        return bad(err, "multipart part without a name");
    autobuf struct buf decoded = BUF_INIT;
    if (coding && strcasecmp(coding, "base64") == 0) {
        autobuf struct buf packed = BUF_INIT;
        for (size_t i = 0; i < body_len; i++)
            if (!isspace((unsigned char)body[i]))
                buf_addc(&packed, body[i]);
        if (base64_decode(&decoded, packed.data ? packed.data : "", packed.len) < 0)
            return bad(err, "a part's base64 is broken");
    } else if (coding && strcasecmp(coding, "quoted-printable") == 0) {
        quoted_printable(body, body_len, &decoded);
    } else {
        buf_add(&decoded, body, body_len);
    }
    if (strcmp(name, "file") == 0) {
        buf_reset(&m->file);
        buf_add(&m->file, decoded.data ? decoded.data : "", decoded.len);
        m->has_file = true;
        autofree char *star = parameter(disposition, "filename*");
        autofree char *plain = parameter(disposition, "filename");
        autofree char *shown = star ? extended(star) : NULL;
        const char *file_name = shown ? shown : plain;
        if (file_name && *file_name && !json_object_get(m->fields, "filename"))
            json_object_set_new(m->fields, "filename", json_text(file_name));
    } else {
        if (decoded.len && !utf8_valid(decoded.data, decoded.len))
            return bad(err, "a field is not UTF-8");
        json_object_set_new(m->fields, name,
                            json_bytes(decoded.data ? decoded.data : "", decoded.len));
    }
    return m->file.failed || decoded.failed ? abx_fail(err, E_NO_MEMORY, 0, "out of memory") : 0;
}

int multipart_parse(const char *content_type, const char *body, size_t len, struct multipart *m,
                    struct abx_error *err)
{
    *m = (struct multipart){.fields = json_object()};
    autofree char *boundary = parameter(content_type, "boundary");
    if (!boundary || !*boundary || strlen(boundary) > 200)
        return bad(err, "malformed multipart body");
    autobuf struct buf mark = BUF_INIT;
    buf_addf(&mark, "--%s", boundary);
    if (!buf_str(&mark))
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    const char *end = body + len, *at = body;
    int n = 0;
    /* the first boundary stands at the beginning of a line */
    while (at && (at = memmem(at, (size_t)(end - at), mark.data, mark.len)) && at != body &&
           at[-1] != '\n')
        at += mark.len;
    if (!at)
        return bad(err, "malformed multipart body");
    while (at) {
        const char *from = at + mark.len;
        if (end - from >= 2 && memcmp(from, "--", 2) == 0)
            break;
        while (from < end && (*from == ' ' || *from == '\t'))
            from++;
        if (from < end && *from == '\r')
            from++;
        if (from >= end || *from != '\n')
            break;
        from++;
        const char *next = from;
        while ((next = memmem(next, (size_t)(end - next), mark.data, mark.len)) && next != from &&
               next[-1] != '\n')
            next += mark.len;
        const char *stop = next ? next : end;
        if (stop > from && stop[-1] == '\n')
            stop--;
        if (stop > from && stop[-1] == '\r')
            stop--;
        if (++n > MAX_PARTS)
            return bad(err, "too many parts");
        if (part(from, (size_t)(stop - from), m, err) < 0)
            return -1;
        at = next;
    }
    return n ? 0 : bad(err, "malformed multipart body");
}

void multipart_done(struct multipart *m)
{
    json_decref(m->fields);
    buf_done(&m->file);
}
