/* Asks the git room from the command line, for the corpus comparison and the bench:
 *     git_tool status|diff|staged DIRECTORY [FILE]      prints the answer as JSON
 *     git_tool bench DIRECTORY [N]                      milliseconds of N status calls, one a line
 */

#include "base/json.h"
#include "base/loop.h"
#include "base/own.h"
#include "git/git.h"

#include <stdio.h>
#include <string.h>

static int ask(const char *what, const struct git_query *q, json_t **ret, struct abx_error *err)
{
    return strcmp(what, "status") == 0 || strcmp(what, "bench") == 0
               ? abx_git_api.status(q, ret, err)
               : abx_git_api.diff(q, ret, err);
}

int main(int argc, char **argv)
{
    struct guard *guard;
    struct abx_error err;
    if (argc < 3 || guard_new(&(struct guard_config){.base_dir = "/"}, &guard, &err) < 0)
        return 2;
    autofree char *path = realpath(argv[2], NULL), *file = NULL;
    if (!path)
        return 2;
    bool bench = strcmp(argv[1], "bench") == 0;
    if (argc > 3 && !bench) {
        file = malloc(strlen(path) + strlen(argv[3]) + 2);
        if (file)
            sprintf(file, "%s/%s", path, argv[3]);
    }
    struct git_query q = {.guard = guard,
                          .path = path,
                          .root = "/",
                          .file = file,
                          .staged = strcmp(argv[1], "staged") == 0,
                          .deadline_ms = mono_ms() + 30000};
    int rounds = bench ? (argc > 3 ? (int)strtol(argv[3], NULL, 10) : 10) : 1, rc = 0;
    for (int i = 0; i < rounds && rc == 0; i++) {
        autojson json_t *answer = NULL;
        autobuf struct buf out = BUF_INIT;
        uint64_t start = mono_ns();
        rc = ask(argv[1], &q, &answer, &err);
        if (rc < 0) {
            fprintf(stderr, "%s: %s\n", err.type, err.message);
            continue;
        }
        json_write(&out, answer);
        if (bench)
            printf("%.2f\n", (double)(mono_ns() - start) / 1e6);
        else
            puts(buf_str(&out));
    }
    guard_free(guard);
    return rc < 0;
}
