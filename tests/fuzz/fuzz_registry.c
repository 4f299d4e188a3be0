/* What a command host may send: frames, registrations and results, from a process that a user's code has
 * corrupted. The first byte picks the parser. */

#include "registry/spec.h"

#include "base/own.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void registration(const struct wire_header *h, struct wire_reader *r)
{
    struct abx_error err;
    struct command_spec command;
    struct route_spec route;
    if (h->type == W_COMMAND && command_spec_read(r, &command, &err) == 0) {
        struct wire_buf out = {0};
        autojson json_t *given = json_pack("{s:s, s:i, s:[s]}", "a", "1", "b", 1, "c", "x");
        autojson json_t *shown = command_spec_json(&command);
        (void)command_spec_args(&command, given, &out, &err);
        wire_done(&out);
        command_spec_done(&command);
    } else if (h->type == W_ROUTE && route_spec_read(r, &route, &err) == 0) {
        route_spec_done(&route);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const char *text = (const char *)data + 1;
    size_t len = size - 1;
    if (data[0] & 1) {
        struct abx_error err;
        autobuf struct buf once = BUF_INIT, twice = BUF_INIT;
        if (json_relay(&once, text, len, &err) == 0) {
            /* What we send is JSON too, and says the same. */
            if (json_relay(&twice, once.data, once.len, &err) < 0 || once.len != twice.len ||
                memcmp(once.data, twice.data, once.len) != 0)
                __builtin_trap();
        }
        return 0;
    }
    struct wire_header h;
    struct wire_reader r;
    size_t need;
    while (wire_next(text, len, &h, &r, &need) == 1) {
        registration(&h, &r);
        text += need;
        len -= need;
    }
    return 0;
}
