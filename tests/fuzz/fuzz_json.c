/* What the parser takes, the writer gives back as ASCII that parses to the same value. */

#include "base/json.h"
#include "base/own.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    autojson json_t *value = NULL, *again = NULL;
    struct abx_error err;
    if (json_parse((const char *)data, size, &value, &err) < 0) {
        assert(err.status == 400 && !value);
        return 0;
    }
    autobuf struct buf text = BUF_INIT;
    json_write(&text, value);
    assert(!text.failed);
    for (size_t i = 0; i < text.len; i++)
        assert((unsigned char)text.data[i] < 0x80 && (unsigned char)text.data[i] >= 0x20);
    assert(json_parse(text.data, text.len, &again, &err) == 0);
    assert(json_equal(value, again));
    return 0;
}
