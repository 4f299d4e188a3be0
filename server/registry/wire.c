#include "registry/wire.h"

#include <stdlib.h>
#include <string.h>

void wire_done(struct wire_buf *b)
{
    free(b->data);
    *b = (struct wire_buf){0};
}

void wire_consume(struct wire_buf *b, size_t n)
{
    b->len -= n;
    if (b->len)
        memmove(b->data, b->data + n, b->len);
}

char *wire_reserve(struct wire_buf *b, size_t more)
{
    size_t need;
    if (b->failed || __builtin_add_overflow(b->len, more, &need)) {
        b->failed = true;
        return NULL;
    }
    if (need > b->cap) {
        size_t cap = b->cap ? b->cap * 2 : 1024;
        if (cap < need)
            cap = need;
        char *data = realloc(b->data, cap);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    return b->data + b->len;
}

void wire_raw(struct wire_buf *b, const void *data, size_t len)
{
    char *at = wire_reserve(b, len);
    if (!at)
        return;
    if (len)
        memcpy(at, data, len);
    b->len += len;
}

void wire_u32(struct wire_buf *b, uint32_t v)
{
    wire_raw(b, &v, sizeof(v));
}

void wire_i64(struct wire_buf *b, int64_t v)
{
    wire_raw(b, &v, sizeof(v));
}

void wire_f64(struct wire_buf *b, double v)
{
    wire_raw(b, &v, sizeof(v));
}

void wire_text(struct wire_buf *b, const char *s, size_t len)
{
    if (len > WIRE_MAX_PAYLOAD) {
        b->failed = true;
        return;
    }
    uint32_t n = (uint32_t)len;
    char *at = wire_reserve(b, len + sizeof(n) + 1);
    if (!at)
        return;
    memcpy(at, &n, sizeof(n));
    if (len)
        memcpy(at + sizeof(n), s, len);
    at[sizeof(n) + len] = 0;
    b->len += len + sizeof(n) + 1;
}

void wire_str(struct wire_buf *b, const char *s)
{
    wire_text(b, s, s ? strlen(s) : 0);
}

size_t wire_begin(struct wire_buf *b, enum wire_type type, uint32_t id)
{
    size_t frame = b->len;
    struct wire_header h = {.len = 0, .id = id, .type = type};
    wire_raw(b, &h, sizeof(h));
    return frame;
}

int wire_end(struct wire_buf *b, size_t frame)
{
    size_t len = b->len - frame - sizeof(struct wire_header);
    if (b->failed || len > WIRE_MAX_PAYLOAD) {
        b->failed = false;
        b->len = frame;
        return -1;
    }
    wire_patch(b, frame + offsetof(struct wire_header, len), (uint32_t)len);
    return 0;
}

void wire_patch(struct wire_buf *b, size_t at, uint32_t v)
{
    if (!b->failed)
        memcpy(b->data + at, &v, sizeof(v));
}

static const void *take(struct wire_reader *r, size_t n)
{
    if (r->bad || (size_t)(r->end - r->at) < n) {
        r->bad = true;
        return NULL;
    }
    const void *at = r->at;
    r->at += n;
    return at;
}

uint32_t wire_get_u32(struct wire_reader *r)
{
    uint32_t v = 0;
    const void *at = take(r, sizeof(v));
    if (at)
        memcpy(&v, at, sizeof(v));
    return v;
}

int64_t wire_get_i64(struct wire_reader *r)
{
    int64_t v = 0;
    const void *at = take(r, sizeof(v));
    if (at)
        memcpy(&v, at, sizeof(v));
    return v;
}

double wire_get_f64(struct wire_reader *r)
{
    double v = 0;
    const void *at = take(r, sizeof(v));
    if (at)
        memcpy(&v, at, sizeof(v));
    return v;
}

const char *wire_get_text(struct wire_reader *r, size_t *ret_len)
{
    size_t len = wire_get_u32(r);
    const char *text = take(r, len + 1);
    if (!text || text[len]) {
        r->bad = true;
        text = "";
        len = 0;
    }
    if (ret_len)
        *ret_len = len;
    return text;
}

int wire_next(const char *data, size_t len, struct wire_header *ret, struct wire_reader *payload,
              size_t *ret_need)
{
    *ret_need = 0;
    if (len < sizeof(*ret))
        return 0;
    memcpy(ret, data, sizeof(*ret));
    if (ret->len > WIRE_MAX_PAYLOAD)
        return -1;
    *ret_need = sizeof(*ret) + ret->len;
    if (len < *ret_need)
        return 0;
    *payload = (struct wire_reader){.at = data + sizeof(*ret), .end = data + *ret_need};
    return 1;
}
