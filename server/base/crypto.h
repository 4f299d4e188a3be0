#pragma once
/* Hashes, base64, random: thin names over nettle and getrandom(2). */

#include "base/buf.h"

#include <stdint.h>

#define SHA256_LEN 32
#define SHA256_HEX 65 /* with NUL */

void sha256(const void *data, size_t len, uint8_t out[SHA256_LEN]);
void sha256_hex(const void *data, size_t len, char out[SHA256_HEX]);
void hex_encode(const uint8_t *data, size_t len, char *out); /* 2 * len + 1 bytes */
void hmac_sha256(const void *key, size_t key_len, const void *data, size_t len, uint8_t out[SHA256_LEN]);

/* Time does not depend on the contents. */
bool crypto_equal(const void *a, const void *b, size_t len);
void crypto_wipe(void *data, size_t len);

/* Fills from the kernel; aborts the process if it can't (it always can on Linux >= 3.17). */
void crypto_random(void *out, size_t len);
void crypto_random_hex(char *out, size_t hex_chars); /* hex_chars even; adds NUL */

void base64_append(struct buf *out, const void *data, size_t len);

/* Strict: standard alphabet, right padding, no blanks. Appends; -1 when it isn't. */
int base64_decode(struct buf *out, const char *text, size_t len);
