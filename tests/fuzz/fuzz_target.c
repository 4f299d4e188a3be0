/* Any target gives a path that begins with one slash, and a query whose names are single. */

#include "http/target.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a;
    arena_init(&a);
    char *text = arena_strndup(&a, (const char *)data, size), *query;
    char *path = target_path(&a, text, &query);
    if (path) {
        assert(path[0] == '/' && (path[1] != '/' || path[1] == '\0'));
        assert(strlen(path) == 1 || path[strlen(path) - 1] != '/');
        assert(!strpbrk(path, "?#"));
        struct pair *pairs;
        size_t n;
        struct abx_error err;
        if (query_parse(&a, query, &pairs, &n, &err) == 0)
            for (size_t i = 0; i < n; i++)
                assert(pairs[i].raw_len > 0 && (i == 0 || strcmp(pairs[i - 1].name, pairs[i].name) < 0));
    }
    arena_done(&a);
    return 0;
}
