/* The commands and routes that the conformance cases expect; README.md has the list. */

#include <abx/commands.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

ABX_COMMAND(hello, "Say hello.", ABX_STRING(name, .fallback = "World"))
{
    return abx_return_string(call, "Hello, %s!", abx_string(call, "name"));
}

ABX_COMMAND(add, "Add two integers.", ABX_INTEGER(a), ABX_INTEGER(b))
{
    int64_t sum;
    if (__builtin_add_overflow(abx_integer(call, "a"), abx_integer(call, "b"), &sum))
        return abx_raise(call, "OverflowError", "the sum does not fit into 64 bits");
    return abx_return_integer(call, sum);
}

ABX_COMMAND(scale, "Multiply a number.", ABX_FLOAT(x), ABX_FLOAT(factor, .fallback = "2.0"))
{
    return abx_return_float(call, abx_float(call, "x") * abx_float(call, "factor"));
}

ABX_COMMAND(flag, "Give a boolean back.", ABX_BOOLEAN(on))
{
    return abx_return_boolean(call, abx_boolean(call, "on"));
}

ABX_COMMAND(echo_all, "Give one value of each type back.", ABX_STRING(s), ABX_INTEGER(i), ABX_FLOAT(f), ABX_BOOLEAN(b))
{
    size_t len;
    const char *s = abx_string_len(call, "s", &len);
    abx_begin_object(call);
    abx_key(call, "s");
    abx_put_bytes(call, s, len);
    abx_key(call, "i");
    abx_put_integer(call, abx_integer(call, "i"));
    abx_key(call, "f");
    abx_put_float(call, abx_float(call, "f"));
    abx_key(call, "b");
    abx_put_boolean(call, abx_boolean(call, "b"));
    return abx_end(call);
}

ABX_COMMAND(tags, "Join a list of strings.", ABX_STRINGS(items), ABX_STRING(sep, .fallback = ","))
{
    const char *const *items;
    const char *sep = abx_string(call, "sep");
    size_t n = abx_strings(call, "items", &items), len = 1;
    for (size_t i = 0; i < n; i++)
        len += strlen(items[i]) + strlen(sep);
    char *joined = malloc(len);
    if (!joined)
        return abx_raise(call, "MemoryError", "out of memory");
    char *at = joined;
    for (size_t i = 0; i < n; i++) {
        if (i)
            at = stpcpy(at, sep);
        at = stpcpy(at, items[i]);
    }
    *at = 0;
    abx_begin_object(call);
    abx_key(call, "count");
    abx_put_integer(call, (int64_t)n);
    abx_key(call, "joined");
    abx_put_string(call, joined);
    free(joined);
    return abx_end(call);
}

ABX_COMMAND(default_tags, "A list with a default.", ABX_STRINGS(items, .fallback = "[\"x\", \"y\"]"))
{
    const char *const *items;
    size_t n = abx_strings(call, "items", &items);
    return abx_return_strings(call, items, n);
}

ABX_COMMAND(nothing, "Give null back.")
{
    return abx_return_null(call);
}

ABX_COMMAND(nested, "Give nested JSON back.")
{
    return abx_return_json(call, "{\"list\": [1, 2.5, \"three\", null, true], \"object\": {\"deep\": {\"er\": []}}, "
                                 "\"text\": \"zo\xc3\xab \xe2\x98\x83 \xf0\x9f\x98\x80\"}");
}

ABX_COMMAND(big, "Give a long string back.", ABX_INTEGER(size))
{
    int64_t size = abx_integer(call, "size");
    char *text = size >= 0 ? malloc((size_t)size + 1) : NULL;
    if (!text)
        return abx_raise(call, "MemoryError", "no memory for %lld bytes", (long long)size);
    memset(text, 'x', (size_t)size);
    abx_put_bytes(call, text, (size_t)size);
    free(text);
    return 0;
}

ABX_COMMAND(fail, "Always fails.", ABX_STRING(message, .fallback = "it failed"))
{
    return abx_raise(call, "ValueError", "%s", abx_string(call, "message"));
}

ABX_COMMAND(fail_key, "Fails with another type of error.")
{
    return abx_raise(call, "KeyError", "'missing'");
}

ABX_COMMAND(hidden_hello, "Not listed.", ABX_HIDDEN)
{
    return abx_return_string(call, "hidden");
}

ABX_COMMAND(slow, "Sleeps.", ABX_FLOAT(seconds))
{
    double seconds = abx_float(call, "seconds");
    abx_sleep_ms(call, seconds > 0 ? (uint32_t)(seconds * 1000) : 0);
    return abx_return_string(call, "done");
}

ABX_COMMAND(needs_scope, "Needs a scope of its own.", ABX_SCOPE("reports:run"))
{
    return abx_return_string(call, "allowed");
}

ABX_COMMAND(count, "Counts its calls: state lasts between calls.")
{
    static atomic_llong n;
    return abx_return_integer(call, atomic_fetch_add(&n, 1) + 1);
}

ABX_ROUTE(hello_route, "GET", "/hello-route", "commands", "A route of the template.")
{
    const char *name = abx_query(call, "name");
    abx_begin_object(call);
    abx_key(call, "hello");
    abx_put_string(call, name ? name : "route");
    return abx_end(call);
}

ABX_ROUTE(open_route, "GET", "/open-route", "commands", "No token needed.", ABX_NO_AUTH)
{
    return abx_return_json(call, "{\"open\": true}");
}

ABX_ROUTE(scoped_route, "GET", "/scoped-route", "commands", "Needs a scope.", ABX_SCOPE("reports:run"))
{
    return abx_return_json(call, "{\"scoped\": true}");
}

ABX_ROUTE(item_route, "POST", "/items/{kind}/{id}", "commands", "Status, header, body.")
{
    abx_status(call, 201);
    abx_reply_header(call, "X-Item", abx_param(call, "id"));
    abx_begin_object(call);
    abx_key(call, "kind");
    abx_put_string(call, abx_param(call, "kind"));
    abx_key(call, "id");
    abx_put_string(call, abx_param(call, "id"));
    abx_key(call, "body");
    abx_put_json(call, abx_body(call, NULL));
    return abx_end(call);
}

ABX_ROUTE(fail_route, "GET", "/fail-route", "commands", "Fails.")
{
    return abx_raise(call, "RuntimeError", "the route failed");
}

ABX_SSE_ROUTE(ticks, "GET", "/ticks", "commands", "An event stream.")
{
    const char *n = abx_query(call, "n");
    long count = n ? strtol(n, NULL, 10) : 3;
    for (long i = 0; i < count; i++)
        if (abx_event(call, "tick", "{\"n\": %ld}", i) < 0)
            return 0;
    return abx_event_json(call, "end", "{}");
}
