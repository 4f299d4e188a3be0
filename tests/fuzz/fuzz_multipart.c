/* Any bytes as multipart/form-data: parsed or refused with a reason, within their memory, and what was parsed is text
 * fields and a file no longer than the body. The first line of the input is the content type. */

#include "base/own.h"
#include "routes/agents/multipart.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = size ? memchr(text, '\n', size) : NULL;
    if (!end)
        return 0;
    autofree char *type = strndup(text, (size_t)(end - text));
    size_t len = size - (size_t)(end + 1 - text);
    autofree char *body = malloc(len + 1); /* its own memory: a read past the end is seen */
    assert(type && body);
    memcpy(body, end + 1, len);
    struct multipart m;
    struct abx_error err = {0};
    if (multipart_parse(type, body, len, &m, &err) < 0) {
        assert(err.kind == E_VALUE && strncmp(err.message, "Invalid multipart body: ", 24) == 0);
    } else {
        const char *name;
        json_t *value;
        json_object_foreach(m.fields, name, value)
            assert(json_is_string(value));
        assert(m.has_file || m.file.len == 0);
        assert(m.file.len <= len);
    }
    multipart_done(&m);
    return 0;
}
