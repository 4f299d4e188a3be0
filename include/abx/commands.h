/* abx/commands.h: commands, routes and event streams of a sandbox template, in C.
 *
 * Plain C99 (gcc or clang, for constructor sections), needs nothing but libc. A whole template:
 *
 *     #include <abx/commands.h>
 *
 *     ABX_COMMAND(hello, "Say hello.", ABX_STRING(name, .fallback = "World"))
 *     {
 *         return abx_return_string(call, "Hello, %s!", abx_string(call, "name"));
 *     }
 *
 *     cc -shared -fPIC -o commands.so commands.c $(pkg-config --cflags abx-commands)
 *     abx-server serve --commands commands.so
 *     curl -X POST localhost:9000/commands/hello -d '{"name": "Ada"}'   -> {"result": "Hello, Ada!"}
 *
 * Commands run in a process of their own, the command host, one per file. State in it lasts between
 * calls; calls run side by side on several threads, so shared state needs a lock or atomics. A crash or
 * an exit ends the calls in flight in that host (500, type "CommandCrashed" or "CommandExited"), and the
 * host is started again. A call has a time limit (300 s, limit `timeout_seconds` of `run_command`);
 * past it the caller gets 500 "TimeoutError" and the thread is left to itself. Stacks are 1 MiB.
 * What is printed to stdout or stderr goes to the server's log, some lines a second.
 *
 * Everything that a call hands out (texts, lists) is borrowed and valid until the command returns.
 * Functions that take `call` may be used by the thread that runs the call, and by no other, except
 * abx_cancelled. docs/commands.md is the guide. */
#ifndef ABX_COMMANDS_H
#define ABX_COMMANDS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#error "abx/commands.h is C: compile this file as C and call C++ from it"
#endif

/* Changes only when old plugins can't run any more. A host refuses another number, and structs larger
 * than its own (a plugin built for a newer server); what is smaller it reads as far as it goes. */
#define ABX_ABI_VERSION 1

#if defined(__GNUC__)
#define ABX_ATTR_(...) __attribute__((__VA_ARGS__))
#else
#error "abx/commands.h needs gcc or clang"
#endif

/* === what is registered ======================================================================= */

struct abx_call;
struct abx_loader;

enum abx_type {
    ABX_TYPE_STRING = 1,  /* any text; numbers and booleans are turned into text */
    ABX_TYPE_INTEGER = 2, /* 64 bits */
    ABX_TYPE_FLOAT = 3,   /* finite double */
    ABX_TYPE_BOOLEAN = 4,
    ABX_TYPE_STRINGS = 5, /* list of strings ("string_array" in the listing) */
    /* Not arguments but settings that stand among them: */
    ABX_OPTION_HIDDEN = 100,
    ABX_OPTION_SCOPE = 101,
    ABX_OPTION_NAME = 102,
    ABX_OPTION_TIMEOUT = 103,
    ABX_OPTION_STREAMS = 104,
    ABX_OPTION_NO_AUTH = 105,
    ABX_OPTION_USER = 106
};

/* One argument, or one setting. An argument without `fallback` and without `optional` is required.
 * An optional one without fallback that the caller leaves out is absent (abx_has is 0).
 * fallback: text, converted like a caller's text; for ABX_STRINGS a JSON array of strings.
 * Refused at load: an empty name, a name given twice, a fallback that can't be converted. */
struct abx_arg {
    int type; /* enum abx_type */
    const char *name, *fallback, *description;
    int optional;
    double number; /* ABX_TIMEOUT */
    void *pointer; /* ABX_USER */
    int abx_end_;
};

/* What runs. Returns 0 after one of the abx_return_ functions (returning without one answers null), or
 * -1 after abx_raise or abx_deny; use `return abx_return_...(...)` and both come by themselves. */
typedef int (*abx_function)(struct abx_call *call);

struct abx_command {
    const char *name;            /* 1..200 bytes of UTF-8, no '/', not blank, no control characters */
    const char *description;     /* or NULL */
    const struct abx_arg *args;  /* arguments and settings; ends with a zeroed element; or NULL */
    abx_function run;
    void *user;                  /* for abx_user */
};

struct abx_route {
    const char *method;          /* GET, POST, PUT, DELETE, PATCH */
    const char *path;            /* "/things/{id}": starts with '/', {names} take one segment */
    const char *group;           /* commands, file_ops, process, terminal, system, dev_tools, browser, agents */
    const char *name;            /* its endpoint id; NULL: "METHOD /path" */
    const char *summary;         /* or NULL */
    const struct abx_arg *settings; /* ABX_SCOPE, ABX_NO_AUTH, ABX_STREAMS, ABX_NAME, ABX_TIMEOUT; or NULL */
    abx_function run;
    void *user;
};

/* Arguments: ABX_STRING(name), ABX_INTEGER(count, .fallback = "3"), ABX_FLOAT(x, .optional = 1),
 * ABX_BOOLEAN(on, .description = "..."), ABX_STRINGS(items, .fallback = "[\"a\"]"). The name is an
 * identifier; ABX_ARG(ABX_TYPE_STRING, "any name", ...) takes any text. */
#define ABX_STRING(...) ABX_ARG_ID_(ABX_TYPE_STRING, __VA_ARGS__, .abx_end_ = 0)
#define ABX_INTEGER(...) ABX_ARG_ID_(ABX_TYPE_INTEGER, __VA_ARGS__, .abx_end_ = 0)
#define ABX_FLOAT(...) ABX_ARG_ID_(ABX_TYPE_FLOAT, __VA_ARGS__, .abx_end_ = 0)
#define ABX_BOOLEAN(...) ABX_ARG_ID_(ABX_TYPE_BOOLEAN, __VA_ARGS__, .abx_end_ = 0)
#define ABX_STRINGS(...) ABX_ARG_ID_(ABX_TYPE_STRINGS, __VA_ARGS__, .abx_end_ = 0)
#define ABX_ARG(kind, ...) ABX_ARG_TEXT_(kind, __VA_ARGS__, .abx_end_ = 0)
#define ABX_ARG_ID_(kind, arg, ...) {.type = (kind), .name = #arg, __VA_ARGS__}
#define ABX_ARG_TEXT_(kind, text, ...) {.type = (kind), .name = (text), __VA_ARGS__}

/* Settings, anywhere among the arguments. */
#define ABX_HIDDEN {.type = ABX_OPTION_HIDDEN}                         /* runs, but is not listed */
#define ABX_SCOPE(text) {.type = ABX_OPTION_SCOPE, .name = (text)}     /* the caller must hold it; repeatable */
#define ABX_NAME(text) {.type = ABX_OPTION_NAME, .name = (text)}       /* instead of the identifier */
#define ABX_TIMEOUT(seconds) {.type = ABX_OPTION_TIMEOUT, .number = (seconds)} /* may lower the limit only */
#define ABX_STREAMS {.type = ABX_OPTION_STREAMS}                       /* may send events */
#define ABX_NO_AUTH {.type = ABX_OPTION_NO_AUTH}                       /* routes: no token needed */
#define ABX_USER(ptr) {.type = ABX_OPTION_USER, .pointer = (ptr)}      /* constant address, for abx_user */

/* ABX_COMMAND(id, "description", arguments and settings...) { body; `call` is the call }
 * POST /commands/ID. Listed in the order of the file. Refused at load: a bad name, a name twice in one
 * file. A command of a later file takes the place of an earlier file's (a warning says so), and any
 * command takes the place of the built-in upload, download, runshell. */
#define ABX_COMMAND(...) ABX_COMMAND_(__VA_ARGS__, {.type = 0})
#define ABX_COMMAND_(id, text, ...)                                                                \
    static int abx_run_##id(struct abx_call *call);                                                \
    static const struct abx_arg abx_args_##id[] = {__VA_ARGS__};                                   \
    static const struct abx_command abx_command_##id = {#id, text, abx_args_##id, abx_run_##id, 0};  \
    ABX_ENTRY_(id, ABX_ENTRY_COMMAND, &abx_command_##id, 0, 0);                                    \
    static int abx_run_##id(struct abx_call *call ABX_ATTR_(unused))

/* ABX_ROUTE(id, "GET", "/path/{name}", "group", "summary", settings...) { body }
 * An endpoint of its own with that id: policies can name it, GET /capabilities lists it. The answer is
 * what an abx_return_ function says, as the whole body (no "result" around it).
 * Refused at load: a bad method, path or group, core as group, an id or a method and path that exist. */
#define ABX_ROUTE(...) ABX_ROUTE_(__VA_ARGS__, {.type = 0})
#define ABX_ROUTE_(id, verb, pattern, grp, text, ...)                                              \
    static int abx_run_##id(struct abx_call *call);                                                \
    static const struct abx_arg abx_args_##id[] = {__VA_ARGS__};                                   \
    static const struct abx_route abx_route_##id = {verb, pattern,       grp,          #id,        \
                                                    text, abx_args_##id, abx_run_##id, 0};         \
    ABX_ENTRY_(id, ABX_ENTRY_ROUTE, &abx_route_##id, 0, 0);                                        \
    static int abx_run_##id(struct abx_call *call ABX_ATTR_(unused))

/* The same for an event stream (text/event-stream): the body calls abx_event_json as often as it likes. If it
 * ends before the first event, its answer or error is sent as a plain one. */
#define ABX_SSE_ROUTE(...) ABX_ROUTE_(__VA_ARGS__, ABX_STREAMS, {.type = 0})

/* ABX_LOAD(id) { runs once when the file is loaded; `loader` is for abx_register_... } Return 0, or -1
 * after abx_load_fail: the file is refused then. It runs after all that the other macros registered. */
#define ABX_LOAD(id)                                                                               \
    static int abx_load_##id(struct abx_loader *loader);                                           \
    ABX_ENTRY_(id, ABX_ENTRY_LOAD, 0, abx_load_##id, 0);                                           \
    static int abx_load_##id(struct abx_loader *loader ABX_ATTR_(unused))

/* Turns a group of endpoints on or off by default (a policy or ABX_SERVER_ENABLED_GROUPS can overrule
 * it): ABX_GROUP_ON(dev_tools) ABX_GROUP_OFF(system). Turning core off is refused, on does nothing. */
#define ABX_GROUP_ON(group) ABX_ENTRY_(on_##group, ABX_ENTRY_GROUP, #group, 0, 1)
#define ABX_GROUP_OFF(group) ABX_ENTRY_(off_##group, ABX_ENTRY_GROUP, #group, 0, 0)

/* Children that a command leaves running are killed as soon as no call runs in the host. A file that
 * wants to keep them (a daemon of its own) says so once: ABX_KEEP_CHILDREN. They end with the host. */
#define ABX_KEEP_CHILDREN ABX_ENTRY_(keep_children, ABX_ENTRY_KEEP_CHILDREN, 0, 0, 1)

/* === inside a call ============================================================================ */

enum abx_log_level { ABX_LOG_DEBUG, ABX_LOG_INFO, ABX_LOG_WARN, ABX_LOG_ERROR };
enum abx_path_op { ABX_READ, ABX_WRITE, ABX_DELETE, ABX_EXEC };

/* The host's functions, by pointer; use the abx_ functions below. Fields are only ever appended. */
struct abx_api {
    uint32_t abi_version, size;
    /* arguments */
    int (*has)(struct abx_call *, const char *name);
    const char *(*string)(struct abx_call *, const char *name, size_t *ret_len);
    int64_t (*integer)(struct abx_call *, const char *name);
    double (*number)(struct abx_call *, const char *name);
    int (*boolean)(struct abx_call *, const char *name);
    size_t (*strings)(struct abx_call *, const char *name, const char *const **ret_items);
    const char *(*args_json)(struct abx_call *, size_t *ret_len);
    void *(*user)(struct abx_call *);
    /* who, what, where */
    const char *(*info)(struct abx_call *, int what);
    int (*has_scope)(struct abx_call *, const char *scope);
    int (*require_scope)(struct abx_call *, const char *scope);
    int (*cancelled)(struct abx_call *);
    int (*sleep_ms)(struct abx_call *, uint32_t ms);
    int (*resolve)(struct abx_call *, const char *path, int op, const char **ret_path);
    void (*logv)(struct abx_call *, int level, const char *fmt, va_list ap);
    double (*limit)(struct abx_call *, const char *name, double fallback);
    /* routes */
    const char *(*query)(struct abx_call *, const char *name);
    const char *(*header)(struct abx_call *, const char *name);
    const char *(*param)(struct abx_call *, const char *name);
    const char *(*body)(struct abx_call *, size_t *ret_len);
    int (*status)(struct abx_call *, int status);
    int (*reply_header)(struct abx_call *, const char *name, const char *value);
    int (*return_bytes)(struct abx_call *, const char *content_type, const void *data, size_t len);
    /* results */
    int (*return_textv)(struct abx_call *, const char *fmt, va_list ap);
    int (*return_json)(struct abx_call *, const char *json, size_t len);
    int (*put)(struct abx_call *, int kind, const char *text, size_t len, int64_t i, double d);
    int (*raisev)(struct abx_call *, const char *type, const char *fmt, va_list ap);
    int (*denyv)(struct abx_call *, int status, const char *code, const char *fields, const char *fmt,
                 va_list ap);
    int (*event)(struct abx_call *, const char *event, const char *json, size_t len);
    int (*eventv)(struct abx_call *, const char *event, const char *fmt, va_list ap);
    /* loading */
    int (*register_command)(struct abx_loader *, const struct abx_command *);
    int (*register_route)(struct abx_loader *, const struct abx_route *);
    int (*set_group)(struct abx_loader *, const char *group, int on);
    int (*load_failv)(struct abx_loader *, const char *fmt, va_list ap);
};

struct abx_call {   /* the rest is the host's own */
    const struct abx_api *api;
};
struct abx_loader { /* the rest is the host's own */
    const struct abx_api *api;
};

/* --- arguments (after conversion), and of routes the top-level fields of a JSON body ----------- */

/* 1 when the caller gave it or it has a fallback. */
static inline int abx_has(struct abx_call *call, const char *name)
{
    return call->api->has(call, name);
}
/* Absent or of another type: NULL, 0, 0.0, 0. A string may hold NUL bytes: ret_len has its length in bytes. */
static inline const char *abx_string(struct abx_call *call, const char *name)
{
    return call->api->string(call, name, NULL);
}
static inline const char *abx_string_len(struct abx_call *call, const char *name, size_t *ret_len)
{
    return call->api->string(call, name, ret_len);
}
static inline int64_t abx_integer(struct abx_call *call, const char *name)
{
    return call->api->integer(call, name);
}
static inline double abx_float(struct abx_call *call, const char *name) /* integers too */
{
    return call->api->number(call, name);
}
static inline int abx_boolean(struct abx_call *call, const char *name)
{
    return call->api->boolean(call, name);
}
/* Number of items; *ret_items: that many strings. */
static inline size_t abx_strings(struct abx_call *call, const char *name, const char *const **ret_items)
{
    return call->api->strings(call, name, ret_items);
}
/* All arguments after conversion, as one JSON object (ASCII). ret_len may be NULL. NULL: memory is out. */
static inline const char *abx_args_json(struct abx_call *call, size_t *ret_len)
{
    return call->api->args_json(call, ret_len);
}
static inline void *abx_user(struct abx_call *call) /* .user of the registration, or ABX_USER */
{
    return call->api->user(call);
}

/* --- who calls, and from where ----------------------------------------------------------------- */

#define ABX_INFO_IDENTITY 0
#define ABX_INFO_ENDPOINT 1
#define ABX_INFO_BASE_DIR 2
#define ABX_INFO_NAME 3
#define ABX_INFO_METHOD 4
#define ABX_INFO_PATH 5
#define ABX_INFO_REQUEST 6
static inline const char *abx_identity(struct abx_call *call) /* "anonymous", "server", a token's id */
{
    return call->api->info(call, ABX_INFO_IDENTITY);
}
static inline const char *abx_endpoint(struct abx_call *call) /* "run_command", or the route's id */
{
    return call->api->info(call, ABX_INFO_ENDPOINT);
}
static inline const char *abx_base_dir(struct abx_call *call)
{
    return call->api->info(call, ABX_INFO_BASE_DIR);
}
static inline const char *abx_name(struct abx_call *call) /* of the command or route */
{
    return call->api->info(call, ABX_INFO_NAME);
}
static inline const char *abx_method(struct abx_call *call)
{
    return call->api->info(call, ABX_INFO_METHOD);
}
static inline const char *abx_path(struct abx_call *call)
{
    return call->api->info(call, ABX_INFO_PATH);
}
static inline const char *abx_request_id(struct abx_call *call) /* as in the server's log */
{
    return call->api->info(call, ABX_INFO_REQUEST);
}
/* Does the caller hold this scope (itself, by "ns:*" or by "*")? */
static inline int abx_has_scope(struct abx_call *call, const char *scope)
{
    return call->api->has_scope(call, scope);
}
/* 0, or -1 with the denial set (403, code missing_scope): `if (abx_require_scope(call, "a:b")) return -1;` */
static inline int abx_require_scope(struct abx_call *call, const char *scope)
{
    return call->api->require_scope(call, scope);
}
/* A limit that the policy sets for this endpoint (rate_per_minute, max_concurrency, max_request_bytes,
 * timeout_seconds), or the fallback. */
static inline double abx_limit(struct abx_call *call, const char *name, double fallback)
{
    return call->api->limit(call, name, fallback);
}
/* 1 once nobody waits for the answer: the caller has left, the time limit has passed, the server stops.
 * Cheap; long loops should ask. Any thread, while the call runs. */
static inline int abx_cancelled(struct abx_call *call)
{
    return call->api->cancelled(call);
}
/* Sleeps; returns early with 1 when the call is cancelled. */
static inline int abx_sleep_ms(struct abx_call *call, uint32_t ms)
{
    return call->api->sleep_ms(call, ms);
}
/* Judges a path by the endpoint's path rules (relative ones hang on the base directory): 0 and the
 * canonical path to use, or -1 with the denial set (400 invalid_path, 403 path_not_allowed, ...).
 * Whether it exists is not looked at. */
static inline int abx_resolve(struct abx_call *call, const char *path, enum abx_path_op op,
                              const char **ret_path)
{
    return call->api->resolve(call, path, (int)op, ret_path);
}
/* One line in the server's log, at most 1000 bytes of it. */
ABX_ATTR_(format(printf, 3, 4), unused)
static inline void abx_log(struct abx_call *call, enum abx_log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    call->api->logv(call, (int)level, fmt, ap);
    va_end(ap);
}

/* --- results: the first one counts... until another replaces it --------------------------------- */

/* A text, by printf. Bytes that are not UTF-8 become U+FFFD. */
ABX_ATTR_(format(printf, 2, 3), unused)
static inline int abx_return_string(struct abx_call *call, const char *fmt, ...)
{
    va_list ap;
    int r;
    va_start(ap, fmt);
    r = call->api->return_textv(call, fmt, ap);
    va_end(ap);
    return r;
}
/* Ready JSON text of any type, len bytes (abx_return_json: a C string). Text that is not JSON answers 500
 * "InvalidResult" with a short piece of it. */
static inline int abx_return_json_len(struct abx_call *call, const char *json, size_t len)
{
    return call->api->return_json(call, json, len);
}
static inline int abx_return_json(struct abx_call *call, const char *json)
{
    return call->api->return_json(call, json, (size_t)-1);
}

/* Any JSON, piece by piece; commas and escapes come by themselves:
 *     abx_begin_object(call);
 *     abx_key(call, "count"); abx_put_integer(call, 3);
 *     abx_key(call, "items"); abx_begin_array(call); abx_put_string(call, "a"); abx_end(call);
 *     return abx_end(call);
 * Begun on top level, a value replaces the result so far. Up to 64 levels and 64 MiB; beyond, and for an
 * object or list that is not ended or a key out of place: 500 "InvalidResult". All return 0. A number that
 * is not finite becomes 500 "ValueError" (JSON has none). */
enum { ABX_PUT_OBJECT, ABX_PUT_ARRAY, ABX_PUT_END, ABX_PUT_KEY, ABX_PUT_STRING, ABX_PUT_INTEGER,
       ABX_PUT_FLOAT, ABX_PUT_BOOLEAN, ABX_PUT_NULL, ABX_PUT_JSON };
static inline int abx_begin_object(struct abx_call *call)
{
    return call->api->put(call, ABX_PUT_OBJECT, NULL, 0, 0, 0);
}
static inline int abx_begin_array(struct abx_call *call)
{
    return call->api->put(call, ABX_PUT_ARRAY, NULL, 0, 0, 0);
}
static inline int abx_end(struct abx_call *call)
{
    return call->api->put(call, ABX_PUT_END, NULL, 0, 0, 0);
}
static inline int abx_key(struct abx_call *call, const char *key)
{
    return call->api->put(call, ABX_PUT_KEY, key, (size_t)-1, 0, 0);
}
static inline int abx_put_string(struct abx_call *call, const char *text) /* NULL: null */
{
    return call->api->put(call, ABX_PUT_STRING, text, (size_t)-1, 0, 0);
}
static inline int abx_put_bytes(struct abx_call *call, const char *text, size_t len)
{
    return call->api->put(call, ABX_PUT_STRING, text, len, 0, 0);
}
static inline int abx_put_integer(struct abx_call *call, int64_t value)
{
    return call->api->put(call, ABX_PUT_INTEGER, NULL, 0, value, 0);
}
static inline int abx_put_float(struct abx_call *call, double value)
{
    return call->api->put(call, ABX_PUT_FLOAT, NULL, 0, 0, value);
}
static inline int abx_put_boolean(struct abx_call *call, int value)
{
    return call->api->put(call, ABX_PUT_BOOLEAN, NULL, 0, value != 0, 0);
}
static inline int abx_put_null(struct abx_call *call)
{
    return call->api->put(call, ABX_PUT_NULL, NULL, 0, 0, 0);
}
static inline int abx_put_json(struct abx_call *call, const char *json) /* ready JSON as one value */
{
    return call->api->put(call, ABX_PUT_JSON, json, (size_t)-1, 0, 0);
}
static inline int abx_return_integer(struct abx_call *call, int64_t value)
{
    return abx_put_integer(call, value);
}
static inline int abx_return_float(struct abx_call *call, double value)
{
    return abx_put_float(call, value);
}
static inline int abx_return_boolean(struct abx_call *call, int value)
{
    return abx_put_boolean(call, value);
}
static inline int abx_return_null(struct abx_call *call)
{
    return abx_put_null(call);
}
static inline int abx_return_strings(struct abx_call *call, const char *const *items, size_t n)
{
    size_t i;
    abx_begin_array(call);
    for (i = 0; i < n; i++)
        abx_put_string(call, items[i]);
    return abx_end(call);
}

/* --- errors: each returns -1 ------------------------------------------------------------------- */

/* 500 {"error": message, "type": type}; the client shows type as the exception's class. */
ABX_ATTR_(format(printf, 3, 4), unused)
static inline int abx_raise(struct abx_call *call, const char *type, const char *fmt, ...)
{
    va_list ap;
    int r;
    va_start(ap, fmt);
    r = call->api->raisev(call, type, fmt, ap);
    va_end(ap);
    return r;
}
/* {"error": message, "type": "PolicyDenied", "code": code, "endpoint": ..., further fields} with that
 * status (400..599; another one becomes 500). fields_json: a JSON object of further fields, or NULL. */
ABX_ATTR_(format(printf, 5, 6), unused)
static inline int abx_deny(struct abx_call *call, int status, const char *code, const char *fields_json,
                           const char *fmt, ...)
{
    va_list ap;
    int r;
    va_start(ap, fmt);
    r = call->api->denyv(call, status, code, fields_json, fmt, ap);
    va_end(ap);
    return r;
}

/* --- streams ------------------------------------------------------------------------------------ */

/* One event with a JSON value as its data. Waits while the client is slow. 0, or -1 when nobody
 * listens any more: the command should end. Name: 1..64 of [A-Za-z0-9_.-].
 * In a command (ABX_STREAMS) events reach callers that asked with `Accept: text/event-stream`; the stream
 * ends with `result` {"result": ...} or `error` {"error", "type"}. Other callers get the plain answer, and
 * events go nowhere. */
static inline int abx_event_json(struct abx_call *call, const char *event, const char *json)
{
    return call->api->event(call, event, json, (size_t)-1);
}
ABX_ATTR_(format(printf, 3, 4), unused)
static inline int abx_event(struct abx_call *call, const char *event, const char *fmt, ...) /* fmt makes JSON */
{
    va_list ap;
    int r;
    va_start(ap, fmt);
    r = call->api->eventv(call, event, fmt, ap);
    va_end(ap);
    return r;
}
static inline int abx_event_json_len(struct abx_call *call, const char *event, const char *json, size_t len)
{
    return call->api->event(call, event, json, len);
}

/* --- routes ------------------------------------------------------------------------------------- */

/* Query parameter, request header (any case), {name} of the path, all decoded; NULL when absent. */
static inline const char *abx_query(struct abx_call *call, const char *name)
{
    return call->api->query(call, name);
}
static inline const char *abx_header(struct abx_call *call, const char *name)
{
    return call->api->header(call, name);
}
static inline const char *abx_param(struct abx_call *call, const char *name)
{
    return call->api->param(call, name);
}
/* The JSON body as text; NULL for GET. Top-level fields: abx_string, abx_integer, ... */
static inline const char *abx_body(struct abx_call *call, size_t *ret_len)
{
    return call->api->body(call, ret_len);
}
/* 200..599, for the answer that follows; else 500. Commands: always 200. */
static inline int abx_status(struct abx_call *call, int status)
{
    return call->api->status(call, status);
}
/* Up to 32; no control characters, and not those that frame the answer (Content-Length, Connection,
 * Transfer-Encoding, ...): such ones answer 500. */
static inline int abx_reply_header(struct abx_call *call, const char *name, const char *value)
{
    return call->api->reply_header(call, name, value);
}
/* The answer of a route in another type than JSON. */
static inline int abx_return_bytes(struct abx_call *call, const char *content_type, const void *data,
                                   size_t len)
{
    return call->api->return_bytes(call, content_type, data, len);
}

/* === while loading ============================================================================= */

/* The structs are copied, with all their texts. 0, or -1 and the file is refused with a message. */
static inline int abx_register_command(struct abx_loader *loader, const struct abx_command *command)
{
    return loader->api->register_command(loader, command);
}
static inline int abx_register_route(struct abx_loader *loader, const struct abx_route *route)
{
    return loader->api->register_route(loader, route);
}
static inline int abx_set_group(struct abx_loader *loader, const char *group, int on)
{
    return loader->api->set_group(loader, group, on);
}
ABX_ATTR_(format(printf, 2, 3), unused)
static inline int abx_load_fail(struct abx_loader *loader, const char *fmt, ...)
{
    va_list ap;
    int r;
    va_start(ap, fmt);
    r = loader->api->load_failv(loader, fmt, ap);
    va_end(ap);
    return r;
}

/* === how the host finds it all ================================================================= */

enum { ABX_ENTRY_COMMAND = 1, ABX_ENTRY_ROUTE, ABX_ENTRY_LOAD, ABX_ENTRY_GROUP, ABX_ENTRY_KEEP_CHILDREN };

struct abx_entry {
    int kind, line;
    const char *file;
    const void *what;
    int (*load)(struct abx_loader *loader);
    int on;
};

struct abx_plugin {
    uint32_t abi_version, size; /* of this struct */
    uint32_t api_size, arg_size, command_size, route_size, entry_size;
    const struct abx_entry *const *begin, *const *end;
};

/* Pointers in a section of their own, which the linker brackets with __start_ and __stop_; so any
 * number of source files can go into one plugin. */
#define ABX_ENTRY_(id, kind_, what_, load_, on_)                                                   \
    static const struct abx_entry abx_entry_##id = {kind_, __LINE__, __FILE__, what_, load_, on_}; \
    static const struct abx_entry *const abx_entry_ptr_##id ABX_ATTR_(section("abx_entries"),      \
                                                                      used) = &abx_entry_##id

#ifndef ABX_NO_PLUGIN
extern const struct abx_entry *const __start_abx_entries[] ABX_ATTR_(weak, visibility("hidden"));
extern const struct abx_entry *const __stop_abx_entries[] ABX_ATTR_(weak, visibility("hidden"));

ABX_ATTR_(weak, visibility("default")) const struct abx_plugin *abx_plugin(void);
ABX_ATTR_(weak, visibility("default")) const struct abx_plugin *abx_plugin(void)
{
    static const struct abx_plugin plugin = {
        ABX_ABI_VERSION,           (uint32_t)sizeof(struct abx_plugin), (uint32_t)sizeof(struct abx_api),
        (uint32_t)sizeof(struct abx_arg), (uint32_t)sizeof(struct abx_command),
        (uint32_t)sizeof(struct abx_route), (uint32_t)sizeof(struct abx_entry),
        __start_abx_entries,       __stop_abx_entries};
    return &plugin;
}
#endif

#endif
