/* A range that is taken lies within the file. */

#include "files/range.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8)
        return 0;
    int64_t file;
    memcpy(&file, data, sizeof file);
    file &= INT64_MAX;
    char *text = strndup((const char *)data + 8, size - 8);
    assert(text);
    int64_t from = -1, len = -1;
    if (range_parse(text, file, &from, &len) == RANGE_PART)
        assert(from >= 0 && len >= 1 && from < file && len <= file - from);
    free(text);
    return 0;
}
