/* A message of the browser: the scan never reads outside, what it finds lies inside, and whole JSON
 * objects are always accepted. The parsed values go through everything that turns them into
 * answers. */

#include "base/own.h"
#include "browser/cdp.h"
#include "browser/keys.h"
#include "browser/value.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void inside(struct cdp_span s, const char *text, size_t len)
{
    assert(!s.at || (s.at >= text && s.len <= len && s.at + s.len <= text + len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    autofree char *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    struct cdp_head h;
    int scanned = cdp_scan(text, size, &h);
    if (scanned == 0) {
        inside(h.session, text, size);
        inside(h.method, text, size);
        inside(h.params, text, size);
        inside(h.result, text, size);
        inside(h.error, text, size);
    }
    autojson json_t *strict = json_loadb(text, size, JSON_ALLOW_NUL, NULL);
    assert(!json_is_object(strict) || scanned == 0 ||
           memchr(text, 0, size)); /* jansson passes some NULs */
    autojson json_t *value = cdp_parse(text, size);
    autobuf struct buf out = BUF_INIT;
    size_t refs = 0;
    value_console_text(&out, value);
    value_exception_text(&out, value);
    (void)ax_write(&out, json_object_get(value, "nodes"), 0, 4096, &refs);
    json_decref(value_of_remote(value));
    assert(pdf_pages(text, size) >= 1);
    struct key key;
    int modifiers;
    (void)key_parse(text, &key, &modifiers, NULL); /* either is fine */
    return 0;
}
