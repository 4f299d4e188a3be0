/* Base64 in any pieces decodes as the library's strict decoder does at once, and what is encoded
 * comes back. */

#include "base/buf.h"
#include "base/crypto.h"
#include "base/own.h"
#include "files/base64.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t step = (size_t)data[0] % 129 + 1;
    const char *text = (const char *)data + 1;
    size_t len = size - 1;
    autobuf struct buf want = BUF_INIT, back = BUF_INIT;
    bool good = base64_decode(&want, text, len) == 0;
    autofree uint8_t *got = malloc(len + 4);
    assert(got);
    struct base64_reader r = {0};
    size_t n = 0;
    bool fine = true;
    for (size_t at = 0; at < len && fine; at += step) {
        ptrdiff_t m = base64_read(&r, text + at, len - at < step ? len - at : step, got + n);
        fine = m >= 0;
        n += fine ? (size_t)m : 0;
    }
    fine = fine && base64_whole(&r);
    assert(fine || !good);
    if (good) {
        assert(n == want.len);
        assert(n == 0 || memcmp(got, want.data, n) == 0);
    }
    autofree char *out = malloc((len + 2) / 3 * 4 + 1);
    assert(out);
    size_t written = base64_write((const uint8_t *)text, len, out);
    assert(base64_decode(&back, out, written) == 0 && back.len == len);
    /* Bits that the last digit has too many may be set (as the reference takes them), nothing else
     * may differ. */
    if (fine && !good) {
        autofree char *again = malloc(len + 8);
        assert(again && base64_write(got, n, again) == len && memcmp(again, text, len - 4) == 0);
    }
    assert(len == 0 || memcmp(back.data, text, len) == 0);
    return 0;
}
