#include "policy/endpoint.h"

#include "base/own.h"

#include <string.h>

static const char *const group_names[GROUP_COUNT] = {
    [G_CORE] = "core",         [G_COMMANDS] = "commands", [G_FILE_OPS] = "file_ops",
    [G_PROCESS] = "process",   [G_TERMINAL] = "terminal", [G_SYSTEM] = "system",
    [G_DEV_TOOLS] = "dev_tools", [G_BROWSER] = "browser", [G_AGENTS] = "agents",
};

static const char *const method_names[METHOD_COUNT] = {
    [M_GET] = "GET",       [M_POST] = "POST",   [M_PUT] = "PUT",
    [M_DELETE] = "DELETE", [M_PATCH] = "PATCH", [M_WS] = "WS",
};

const char *group_name(enum group g)
{
    return group_names[g];
}

int group_parse(const char *name, enum group *g)
{
    for (size_t i = 0; i < ARRAY_LEN(group_names); i++) {
        if (strcmp(name, group_names[i]) == 0) {
            *g = (enum group)i;
            return 0;
        }
    }
    return -1;
}

bool group_is_opt_in(enum group g)
{
    return g == G_DEV_TOOLS || g == G_BROWSER || g == G_AGENTS;
}

const char *method_name(enum method m)
{
    return method_names[m];
}
