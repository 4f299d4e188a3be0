/* What clients write: command lines, patterns, URLs, globs, paths. The first byte picks the parser;
 * what must hold whatever comes is asserted. */

#include "base/own.h"
#include "policy/guards.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void split(const char *text, size_t len, struct arena *arena)
{
    char **argv;
    size_t argc, bytes = 0;
    if (command_split(text, len, arena, &argv, &argc, NULL) < 0)
        return;
    for (size_t i = 0; i < argc; i++)
        bytes += strlen(argv[i]);
    assert(!argv[argc] && bytes <= len);
}

static void url(const char *text, size_t len, struct arena *arena)
{
    struct url_rules rules = {.block_private = len & 1};
    struct url_parts parts, again;
    struct abx_error err;
    if (url_check(&rules, text, len, arena, &parts, &err) < 0)
        return;
    /* What we say we saw is seen the same way the second time. */
    assert(url_check(&rules, parts.href, strlen(parts.href), arena, &again, &err) == 0);
    assert(strcmp(parts.host, again.host) == 0 && parts.port == again.port);
    assert(strcmp(parts.href, again.href) == 0);
}

static void path(const char *text, size_t len, struct arena *arena)
{
    const char *deny[] = {"*.pem", "**/x/[a-c]*", "/etc/ssl", NULL};
    struct guard *g;
    struct guard_path judged;
    if (guard_new(&(struct guard_config){.base_dir = "/etc", .deny = deny}, &g, NULL) < 0)
        return;
    if (guard_check(g, text, len, NULL, OP_READ, arena, &judged, NULL) == 0)
        assert(strncmp(judged.resolved, "/etc", 4) == 0 &&
               (judged.resolved[4] == '/' || !judged.resolved[4]));
    guard_free(g);
}

static void pattern(const char *text, size_t len, struct arena *arena)
{
    const char *word = arena_strndup(arena, text, len);
    const char *middle = strchr(word, '\n');
    const char *items[] = {word};
    (void)command_patterns_check(&(struct str_list){1, items}, NULL);
    (void)guard_glob(word, middle ? middle + 1 : "some/path.txt");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const parsers[])(const char *text, size_t len,
                                   struct arena *arena) = {split, url, path, pattern};
    if (size == 0 || size > 20000)
        return 0;
    struct arena arena;
    arena_init(&arena);
    parsers[data[0] & 3]((const char *)data + 1, size - 1, &arena);
    arena_done(&arena);
    return 0;
}
