/* The upload's own JSON reader, fed in pieces, takes nothing that the strict parser refuses, and
 * finds the same content. The first byte is the size of the pieces. */

#include "base/crypto.h"
#include "base/json.h"
#include "base/own.h"
#include "files/base64.h"
#include "files/upload.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t step = (size_t)data[0] % 17 + 1;
    const char *text = (const char *)data + 1;
    size_t len = size - 1;
    struct guard *g;
    struct abx_error err;
    assert(guard_new(&(struct guard_config){.base_dir = "/tmp"}, &g, &err) == 0);
    struct upload_options opt = {.guard = g,
                                 .max_bytes = 1 << 20,
                                 .max_other = 1 << 20,
                                 .spool = true,
                                 .text_content = true};
    struct upload *u = upload_new(&opt);
    assert(u);
    int rc = 0;
    for (size_t at = 0; at < len && rc == 0; at += step)
        rc = upload_feed(u, text + at, len - at < step ? len - at : step, &err);
    struct upload_result result;
    if (rc == 0 && upload_finish(u, &result, &err) == 0) {
        autojson json_t *value = NULL;
        assert(json_parse(text, len, &value, &err) == 0);
        const json_t *coded = json_object_get(value, "content_base64"),
                     *plain = json_object_get(value, "content");
        autobuf struct buf content = BUF_INIT;
        if (coded && json_is_string(coded)) {
            struct base64_reader r = {0};
            char *at = buf_reserve(&content, len + 4);
            ptrdiff_t n =
                base64_read(&r, json_string_value(coded), json_string_length(coded), (uint8_t *)at);
            assert(n >= 0 && base64_whole(&r));
            content.len = (size_t)n;
        } else {
            buf_add(&content, json_string_value(plain), json_string_length(plain));
        }
        assert((int64_t)content.len == result.bytes);
        char hash[SHA256_HEX];
        sha256_hex(content.data ? content.data : "", content.len, hash);
        assert(strcmp(hash, result.sha256) == 0);
    }
    upload_free(u);
    guard_free(g);
    return 0;
}
