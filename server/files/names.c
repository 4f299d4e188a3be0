#include "files/names.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* True when text may stand between quotes as it is. */
static bool plain(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
            return false;
    }
    return true;
}

static void key_part(struct buf *out, const char *key, const char *suffix)
{
    buf_addc(out, '"');
    buf_adds(out, key);
    buf_adds(out, suffix);
    buf_add(out, "\": ", 3);
}

void name_field(struct buf *out, const char *key, const char *text, size_t len)
{
    key_part(out, key, "");
    if (plain(text, len)) {
        char *at = buf_reserve(out, len + 2);
        if (!at)
            return;
        at[0] = '"';
        memcpy(at + 1, text, len);
        at[len + 1] = '"';
        out->len += len + 2;
        return;
    }
    json_write_string(out, text, len);
    if (utf8_valid(text, len))
        return;
    buf_adds(out, ", ");
    key_part(out, key, "_base64");
    buf_addc(out, '"');
    base64_append(out, text, len);
    buf_addc(out, '"');
}

static char *two_digits(char *out, unsigned value)
{
    *out++ = (char)('0' + value / 10);
    *out++ = (char)('0' + value % 10);
    return out;
}

size_t time_text(struct time_writer *w, struct timespec at, char out[TIME_MAX])
{
    int64_t second = at.tv_sec;
    unsigned micros = (unsigned)((at.tv_nsec + 500) / 1000);
    if (micros >= 1000000) {
        micros = 0;
        second++;
    }
    if (w->len == 0 || w->second != second) {
        struct tm tm;
        time_t t = (time_t)second;
        if (!gmtime_r(&t, &tm)) {
            tm = (struct tm){.tm_year = 70, .tm_mday = 1};
            second = 0;
        }
        int n = snprintf(w->text, sizeof w->text, "%04lld-", (long long)tm.tm_year + 1900);
        char *p = w->text + n;
        p = two_digits(p, (unsigned)tm.tm_mon + 1);
        *p++ = '-';
        p = two_digits(p, (unsigned)tm.tm_mday);
        *p++ = 'T';
        p = two_digits(p, (unsigned)tm.tm_hour);
        *p++ = ':';
        p = two_digits(p, (unsigned)tm.tm_min);
        *p++ = ':';
        p = two_digits(p, (unsigned)tm.tm_sec);
        w->len = (size_t)(p - w->text);
        w->second = second;
    }
    memcpy(out, w->text, w->len);
    size_t len = w->len;
    if (micros) {
        out[len] = '.';
        for (size_t i = 6; i > 0; i--, micros /= 10)
            out[len + i] = (char)('0' + micros % 10);
        len += 7;
    }
    memcpy(out + len, "+00:00", 6);
    return len + 6;
}

void time_field(struct buf *out, struct time_writer *w, const char *key, struct timespec at)
{
    key_part(out, key, "");
    char *text = buf_reserve(out, TIME_MAX + 2);
    if (!text)
        return;
    text[0] = '"';
    size_t len = time_text(w, at, text + 1);
    text[len + 1] = '"';
    out->len += len + 2;
}
