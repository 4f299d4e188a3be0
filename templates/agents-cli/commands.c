/* Coding agents need nothing from a template but their group turned on and the CLIs installed (image.sh). This file adds a
 * command that tells which of them are there. */
#include <abx/commands.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ABX_GROUP_ON(agents);

/* Fills path with the program that PATH leads to; 0 when there is none. */
static int find_program(const char *name, char path[PATH_MAX])
{
    const char *dirs = getenv("PATH");
    while (dirs && *dirs) {
        size_t n = strcspn(dirs, ":");
        if (snprintf(path, PATH_MAX, "%.*s/%s", (int)n, dirs, name) < PATH_MAX && access(path, X_OK) == 0)
            return 1;
        dirs += n + (dirs[n] == ':');
    }
    return 0;
}

ABX_COMMAND(which_agents, "Which coding-agent CLIs are installed?")
{
    static const char *const names[] = {"codex", "qwen"};
    char path[PATH_MAX];
    abx_begin_object(call);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        abx_key(call, names[i]);
        abx_put_string(call, find_program(names[i], path) ? path : NULL);
    }
    return abx_end(call);
}
