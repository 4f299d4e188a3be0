/* What a terminal's client sends and what a program prints: messages in, output frames out. The frames must
 * be JSON that holds the output, whole, whatever the cut. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/own.h"
#include "base/utf8.h"
#include "pty/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

/* All frames of data in pieces of `cut` bytes say what the bytes say at once. */
static void check_output(const char *data, size_t size, size_t cut)
{
    autobuf struct buf frame = BUF_INIT, said = BUF_INIT;
    size_t at = 0, end = 0;
    while (at < size) {
        end = end + cut < size ? end + cut : size;
        buf_reset(&frame);
        size_t used = frame_output(&frame, data + at, end - at, end == size, at);
        must(used <= end - at && (end < size ? end - at - used <= 3 : used == end - at));
        if (used == 0)
            continue;
        autojson json_t *json = json_loadb(frame.data, frame.len, JSON_ALLOW_NUL, NULL);
        const json_t *text = json_object_get(json, "data");
        must(json_is_string(text));
        at += used;
        must(json_integer_value(json_object_get(json, "next")) == (json_int_t)at);
        buf_add(&said, json_string_value(text), json_string_length(text));
    }
    size_t len;
    autofree char *whole = utf8_replace(data, size, &len);
    must(said.len == len && (len == 0 || memcmp(said.data, whole, len) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frame f;
    frame_parse(&f, (const char *)data, size);
    must(f.kind != FRAME_RESIZE || (f.cols >= -1 && f.cols <= 65535 && f.cols != 0));
    frame_done(&f);
    if (size > 0 && size <= 4096)
        check_output((const char *)data + 1, size - 1, data[0] % 32 + 4);
    return 0;
}
