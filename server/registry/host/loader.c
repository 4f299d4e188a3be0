#include "host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Opens the file, checks that it speaks our ABI, and walks its entries in the order of the source.
 * Structs may be smaller than ours (built with an older header): what they lack reads as zero. Larger ones
 * are refused, since we would not do what they ask for. Names and doubles are the server's to judge. */

struct loader {
    struct abx_loader pub;
    struct entries *entries;
    struct wire_buf *out;
    uint32_t arg_size, command_size, route_size;
    char message[400];
    bool failed;
};

static int fail(struct loader *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fail(struct loader *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!l->failed)
        vsnprintf(l->message, sizeof(l->message), fmt, ap);
    va_end(ap);
    l->failed = true;
    return -1;
}

struct settings {
    const char *name;
    uint32_t flags;
    double timeout;
    void *user;
};

/* Copies element i of an array whose elements may be shorter than ours. */
static struct abx_arg arg_at(const struct loader *l, const struct abx_arg *args, size_t i)
{
    struct abx_arg arg = {0};
    memcpy(&arg, (const char *)args + i * l->arg_size, l->arg_size);
    return arg;
}

static void read_settings(const struct loader *l, const struct abx_arg *args, struct settings *s)
{
    for (size_t i = 0; args; i++) {
        struct abx_arg arg = arg_at(l, args, i);
        switch (arg.type) {
        case 0:
            return;
        case ABX_OPTION_HIDDEN:
            s->flags |= WIRE_HIDDEN;
            break;
        case ABX_OPTION_STREAMS:
            s->flags |= WIRE_STREAMS;
            break;
        case ABX_OPTION_NO_AUTH:
            s->flags |= WIRE_NO_AUTH;
            break;
        case ABX_OPTION_NAME:
            s->name = arg.name;
            break;
        case ABX_OPTION_TIMEOUT:
            s->timeout = arg.number;
            break;
        case ABX_OPTION_USER:
            s->user = arg.pointer;
            break;
        default:
            break;
        }
    }
}

static bool is_arg(int type)
{
    return type >= ABX_TYPE_STRING && type <= ABX_TYPE_STRINGS;
}

/* Scopes, then arguments. */
static int put_args(struct loader *l, const struct abx_arg *args, const char *name, bool with_args)
{
    size_t at = l->out->len;
    uint32_t n = 0;
    wire_u32(l->out, 0);
    for (size_t i = 0; args && arg_at(l, args, i).type; i++) {
        struct abx_arg arg = arg_at(l, args, i);
        if (arg.type != ABX_OPTION_SCOPE)
            continue;
        wire_str(l->out, arg.name);
        n++;
    }
    wire_patch(l->out, at, n);
    at = l->out->len;
    n = 0;
    if (with_args)
        wire_u32(l->out, 0);
    for (size_t i = 0; args && arg_at(l, args, i).type; i++) {
        struct abx_arg arg = arg_at(l, args, i);
        if (!is_arg(arg.type)) {
            if (arg.type < ABX_OPTION_HIDDEN || arg.type > ABX_OPTION_USER)
                return fail(l, "'%s' has an argument of unknown type %d", name, arg.type);
            continue;
        }
        if (!with_args)
            return fail(l, "the route '%s' declares an argument; routes take settings only", name);
        wire_u32(l->out, (uint32_t)arg.type);
        wire_str(l->out, arg.name);
        wire_u32(l->out, (arg.optional ? 1u : 0) | (arg.fallback ? 2u : 0));
        wire_str(l->out, arg.fallback);
        wire_str(l->out, arg.description);
        n++;
    }
    if (with_args)
        wire_patch(l->out, at, n);
    return 0;
}

static int add_entry(struct loader *l, const struct entry *e)
{
    struct entries *all = l->entries;
    if (all->n == all->cap) {
        uint32_t cap = all->cap ? all->cap * 2 : 8;
        struct entry *items = realloc(all->items, cap * sizeof(*items));
        if (!items)
            return fail(l, "out of memory");
        all->items = items;
        all->cap = cap;
    }
    struct entry copy = *e;
    copy.name = strdup(e->name);
    copy.method = e->method ? strdup(e->method) : NULL;
    if (!copy.name || (e->method && !copy.method)) {
        free((char *)copy.name);
        free((char *)copy.method);
        return fail(l, "out of memory");
    }
    all->items[all->n++] = copy;
    return 0;
}

static int register_command(struct abx_loader *pub, const struct abx_command *given)
{
    struct loader *l = (struct loader *)pub;
    struct abx_command cmd = {0};
    memcpy(&cmd, given, l->command_size);
    struct settings s = {.name = cmd.name, .user = cmd.user};
    read_settings(l, cmd.args, &s);
    if (!s.name)
        return fail(l, "a command has no name");
    if (!cmd.run)
        return fail(l, "the command '%s' has no function", s.name);
    struct entry e = {.name = s.name, .run = cmd.run, .user = s.user, .flags = s.flags};
    if (add_entry(l, &e) < 0)
        return -1;
    size_t frame = wire_begin(l->out, W_COMMAND, 0);
    wire_str(l->out, s.name);
    wire_str(l->out, cmd.description);
    wire_u32(l->out, s.flags);
    wire_f64(l->out, s.timeout);
    if (put_args(l, cmd.args, s.name, true) < 0)
        return -1;
    return wire_end(l->out, frame) < 0 ? fail(l, "out of memory") : 0;
}

static int register_route(struct abx_loader *pub, const struct abx_route *given)
{
    struct loader *l = (struct loader *)pub;
    struct abx_route route = {0};
    memcpy(&route, given, l->route_size);
    struct settings s = {.name = route.name, .user = route.user};
    read_settings(l, route.settings, &s);
    if (!route.method || !route.path)
        return fail(l, "a route has no method or no path");
    char name[512];
    snprintf(name, sizeof(name), "%s %s", route.method, route.path);
    if (!s.name)
        s.name = name;
    if (!route.run)
        return fail(l, "the route '%s' has no function", s.name);
    struct entry e = {.route = true, .name = s.name, .method = route.method, .run = route.run, .user = s.user,
                      .flags = s.flags};
    if (add_entry(l, &e) < 0)
        return -1;
    size_t frame = wire_begin(l->out, W_ROUTE, 0);
    wire_str(l->out, route.method);
    wire_str(l->out, route.path);
    wire_str(l->out, route.group);
    wire_str(l->out, s.name);
    wire_str(l->out, route.summary);
    wire_u32(l->out, s.flags);
    wire_f64(l->out, s.timeout);
    if (put_args(l, route.settings, s.name, false) < 0)
        return -1;
    return wire_end(l->out, frame) < 0 ? fail(l, "out of memory") : 0;
}

static int set_group(struct abx_loader *pub, const char *group, int on)
{
    struct loader *l = (struct loader *)pub;
    size_t frame = wire_begin(l->out, W_GROUP, 0);
    wire_str(l->out, group);
    wire_u32(l->out, on ? 1 : 0);
    return wire_end(l->out, frame) < 0 ? fail(l, "out of memory") : 0;
}

__attribute__((format(printf, 2, 0))) static int load_failv(struct abx_loader *pub, const char *fmt, va_list ap)
{
    struct loader *l = (struct loader *)pub;
    char text[300];
    vsnprintf(text, sizeof(text), fmt, ap);
    return fail(l, "%s", text);
}

static const struct abx_api load_api = {
    .abi_version = ABX_ABI_VERSION,
    .size = sizeof(struct abx_api),
    .register_command = register_command,
    .register_route = register_route,
    .set_group = set_group,
    .load_failv = load_failv,
};

/* Compilers may lay the pointers of one source file in any order. */
static int by_source(const void *a, const void *b)
{
    const struct abx_entry *x = *(const struct abx_entry *const *)a, *y = *(const struct abx_entry *const *)b;
    int file = strcmp(x->file, y->file);
    return file ? file : (x->line > y->line) - (x->line < y->line);
}

static int run_entry(struct loader *l, const struct abx_entry *e, bool *keep_children)
{
    switch (e->kind) {
    case ABX_ENTRY_COMMAND:
        return register_command(&l->pub, e->what);
    case ABX_ENTRY_ROUTE:
        return register_route(&l->pub, e->what);
    case ABX_ENTRY_GROUP:
        return set_group(&l->pub, e->what, e->on);
    case ABX_ENTRY_KEEP_CHILDREN:
        *keep_children = true;
        return 0;
    case ABX_ENTRY_LOAD:
        return 0;
    default:
        return fail(l, "an entry of unknown kind %d", e->kind);
    }
}

static int check_plugin(struct loader *l, const struct abx_plugin *p)
{
    if (!p || p->abi_version != ABX_ABI_VERSION)
        return fail(l, "it was built for ABI version %u of abx/commands.h, this server has %u",
                    p ? p->abi_version : 0, ABX_ABI_VERSION);
    if (p->size > sizeof(struct abx_plugin) || p->api_size > sizeof(struct abx_api) ||
        p->arg_size > sizeof(struct abx_arg) || p->command_size > sizeof(struct abx_command) ||
        p->route_size > sizeof(struct abx_route) || p->entry_size > sizeof(struct abx_entry))
        return fail(l, "it was built with a newer abx/commands.h than this server's (same ABI version %u, "
                       "larger structs)", ABX_ABI_VERSION);
    if (p->size < offsetof(struct abx_plugin, end) + sizeof(p->end))
        return fail(l, "its abx_plugin() says size %u, which is too small", p->size);
    return 0;
}

static int load(struct loader *l, const char *path, bool *keep_children)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return fail(l, "%s", dlerror());
    union {
        void *object;
        const struct abx_plugin *(*function)(void);
    } get = {.object = dlsym(lib, "abx_plugin")};
    if (!get.object)
        return fail(l, "it is a library, but not one made with abx/commands.h (no function 'abx_plugin')");
    const struct abx_plugin *p = get.function();
    if (check_plugin(l, p) < 0)
        return -1;
    l->arg_size = p->arg_size;
    l->command_size = p->command_size;
    l->route_size = p->route_size;
    size_t n = p->begin ? (size_t)(p->end - p->begin) : 0;
    if (!n)
        return 0;
    const struct abx_entry **all = calloc(n, sizeof(*all));
    if (!all)
        return fail(l, "out of memory");
    memcpy(all, p->begin, n * sizeof(*all));
    qsort(all, n, sizeof(*all), by_source);
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = run_entry(l, all[i], keep_children);
    for (size_t i = 0; i < n && r == 0; i++)
        if (all[i]->kind == ABX_ENTRY_LOAD && all[i]->load(&l->pub) != 0)
            r = fail(l, "its ABX_LOAD function failed");
    free(all);
    return l->failed ? -1 : r;
}

int host_load(const char *path, struct entries *entries, bool *ret_keep_children, struct wire_buf *out)
{
    struct loader l = {.pub = {.api = &load_api}, .entries = entries, .out = out};
    if (load(&l, path, ret_keep_children) < 0) {
        out->len = 0; /* half a registration is none */
        size_t frame = wire_begin(out, W_LOAD_FAILED, 0);
        wire_str(out, l.message);
        wire_end(out, frame);
        return -1;
    }
    size_t frame = wire_begin(out, W_READY, 0);
    wire_u32(out, WIRE_VERSION);
    return wire_end(out, frame);
}
