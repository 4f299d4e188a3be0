#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Length of the sequence that `lead` opens, and the range of its second byte (Unicode 15, table 3-7);
 * 0 when no sequence begins so. */
static unsigned lead_info(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF)
        return 2;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (lead == 0xE0)
            *low = 0xA0;
        else if (lead == 0xED)
            *high = 0x9F;
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (lead == 0xF0)
            *low = 0x90;
        else if (lead == 0xF4)
            *high = 0x8F;
        return 4;
    }
    return 0;
}

int utf8_sequence(const unsigned char *p, size_t len, size_t *used)
{
    if (p[0] < 0x80) {
        *used = 1;
        return 1;
    }
    unsigned char low, high;
    unsigned need = lead_info(p[0], &low, &high);
    if (need == 0) {
        *used = 1;
        return -1;
    }
    for (unsigned i = 1; i < need; i++) {
        if (i >= len) {
            *used = len;
            return 0;
        }
        if (p[i] < low || p[i] > high) {
            *used = i;
            return -1;
        }
        low = 0x80;
        high = 0xBF;
    }
    *used = need;
    return (int)need;
}

static const char replacement[] = "\xEF\xBF\xBD";

static size_t ascii_run(const unsigned char *p, size_t len)
{
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        if (word & UINT64_C(0x8080808080808080))
            break;
    }
    while (i < len && p[i] < 0x80)
        i++;
    return i;
}

void utf8_decode(struct utf8_decoder *d, const void *data, size_t len, struct buf *out)
{
    const unsigned char *p = data;
    /* Finish the character begun in an earlier piece, byte by byte. */
    while (d->len > 0 && len > 0) {
        unsigned char joined[5];
        memcpy(joined, d->tail, d->len);
        joined[d->len] = *p;
        size_t used;
        int r = utf8_sequence(joined, d->len + 1u, &used);
        if (r > 0) {
            buf_add(out, joined, used);
            d->len = 0;
            p++;
            len--;
        } else if (r == 0) {
            d->tail[d->len++] = *p++;
            len--;
        } else {
            /* The kept part was bad after all; this byte starts anew. */
            buf_add(out, replacement, 3);
            d->len = 0;
        }
    }
    while (len > 0) {
        size_t run = ascii_run(p, len);
        buf_add(out, p, run);
        p += run;
        len -= run;
        if (len == 0)
            break;
        size_t used;
        int r = utf8_sequence(p, len, &used);
        if (r == 0) {
            memcpy(d->tail, p, used);
            d->len = (uint8_t)used;
            return;
        }
        if (r > 0)
            buf_add(out, p, used);
        else
            buf_add(out, replacement, 3);
        p += used;
        len -= used;
    }
}

void utf8_finish(struct utf8_decoder *d, struct buf *out)
{
    if (d->len > 0)
        buf_add(out, replacement, 3);
    d->len = 0;
}

bool utf8_valid(const void *data, size_t len)
{
    const unsigned char *p = data;
    while (len > 0) {
        size_t used = ascii_run(p, len);
        if (used == 0 && utf8_sequence(p, len, &used) <= 0)
            return false;
        p += used;
        len -= used;
    }
    return true;
}

char *utf8_replace(const void *data, size_t len, size_t *ret_len)
{
    struct buf out = BUF_INIT;
    struct utf8_decoder d = {0};
    utf8_decode(&d, data, len, &out);
    utf8_finish(&d, &out);
    char *text = buf_take(&out, ret_len);
    if (!text)
        buf_done(&out);
    return text;
}

size_t utf8_floor(const char *data, size_t len)
{
    const unsigned char *p = (const unsigned char *)data;
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char c = p[len - back];
        if ((c & 0xC0) == 0x80)
            continue;
        size_t used;
        if (c >= 0xC0 && utf8_sequence(p + len - back, back, &used) == 0)
            return len - back;
        break;
    }
    return len;
}

size_t utf8_next(const char *s, uint32_t *ret_cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *ret_cp = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *ret_cp = (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
        return 2;
    }
    if (p[0] < 0xF0) {
        *ret_cp = (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        return 3;
    }
    *ret_cp = (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
              (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
    return 4;
}
