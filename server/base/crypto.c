#include "base/crypto.h"

#include <errno.h>
#include <nettle/base64.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void sha256(const void *data, size_t len, uint8_t out[SHA256_LEN])
{
    struct sha256_ctx ctx;
    sha256_init(&ctx);
    sha256_update(&ctx, len, data);
    sha256_digest(&ctx, SHA256_LEN, out);
}

void hex_encode(const uint8_t *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        *out++ = digits[data[i] >> 4];
        *out++ = digits[data[i] & 15];
    }
    *out = '\0';
}

void sha256_hex(const void *data, size_t len, char out[SHA256_HEX])
{
    uint8_t hash[SHA256_LEN];
    sha256(data, len, hash);
    hex_encode(hash, sizeof hash, out);
}

void hmac_sha256(const void *key, size_t key_len, const void *data, size_t len, uint8_t out[SHA256_LEN])
{
    struct hmac_sha256_ctx ctx;
    hmac_sha256_set_key(&ctx, key_len, key);
    hmac_sha256_update(&ctx, len, data);
    hmac_sha256_digest(&ctx, SHA256_LEN, out);
    crypto_wipe(&ctx, sizeof ctx);
}

bool crypto_equal(const void *a, const void *b, size_t len)
{
    return memeql_sec(a, b, len);
}

void crypto_wipe(void *data, size_t len)
{
    explicit_bzero(data, len);
}

void crypto_random(void *out, size_t len)
{
    uint8_t *p = out;
    while (len > 0) {
        ssize_t n = getrandom(p, len, 0);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            abort();
        }
        p += n;
        len -= (size_t)n;
    }
}

void crypto_random_hex(char *out, size_t hex_chars)
{
    uint8_t raw[64];
    size_t bytes = hex_chars / 2;
    if (bytes > sizeof raw)
        bytes = sizeof raw;
    crypto_random(raw, bytes);
    hex_encode(raw, bytes, out);
}

void base64_append(struct buf *out, const void *data, size_t len)
{
    if (len > SIZE_MAX / 2) {
        out->failed = true;
        return;
    }
    char *at = buf_reserve(out, BASE64_ENCODE_RAW_LENGTH(len));
    if (!at)
        return;
    base64_encode_raw(at, len, data);
    out->len += BASE64_ENCODE_RAW_LENGTH(len);
}

/* nettle's decoder skips white space and takes missing padding; both are refused here. */
int base64_decode(struct buf *out, const char *text, size_t len)
{
    if (len % 4 != 0)
        return -1;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        bool digit = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                     c == '+' || c == '/';
        bool pad = c == '=' && (i == len - 1 || (i == len - 2 && text[len - 1] == '='));
        if (!digit && !pad)
            return -1;
    }
    if (len == 0)
        return 0;
    char *at = buf_reserve(out, BASE64_DECODE_LENGTH(len) + 4);
    if (!at)
        return -1;
    struct base64_decode_ctx ctx;
    base64_decode_init(&ctx);
    size_t n = BASE64_DECODE_LENGTH(len) + 4;
    if (!base64_decode_update(&ctx, &n, (uint8_t *)at, len, text) || !base64_decode_final(&ctx))
        return -1;
    out->len += n;
    return 0;
}
