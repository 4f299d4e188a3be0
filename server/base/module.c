#include "base/module.h"

#include "base/own.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Fills path with DIR/FILE for the i-th place to look; false past the last one. */
static bool place(unsigned i, const char *file, char path[PATH_MAX])
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0)
        n = 0;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash)
        *slash = '\0';
    const char *dir = getenv("ABX_MODULE_DIR");
    int len = -1;
    path[0] = '\0';
    switch (i) {
    case 0:
        if (!dir || dir[0] != '/')
            return true;
        len = snprintf(path, PATH_MAX, "%s/%s", dir, file);
        break;
    case 1:
        len = snprintf(path, PATH_MAX, "%s/%s", exe, file);
        break;
    case 2:
        len = snprintf(path, PATH_MAX, "%s/../lib/abx-server/%s", exe, file);
        break;
    default:
        return false;
    }
    if (len < 0 || len >= PATH_MAX)
        path[0] = '\0';
    return true;
}

char *module_find_file(const char *file)
{
    char path[PATH_MAX];
    for (unsigned i = 0; place(i, file, path); i++)
        if (path[0] && access(path, R_OK) == 0)
            return strdup(path);
    return NULL;
}

void *module_symbol(const char *name, const char *symbol, struct abx_error *err)
{
    char file[64];
    snprintf(file, sizeof file, "abx-%s.so", name);
    autofree char *path = module_find_file(file);
    if (!path) {
        abx_fail(err, E_RUNTIME_503, 0, "the module '%s' is not installed beside the server", file);
        return NULL;
    }
    /* Never closed: the libraries below keep global state. dlopen counts references and locks itself. */
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *found = handle ? dlsym(handle, symbol) : NULL;
    if (!found) {
        const char *said = dlerror(), *why = said ? said : "it lacks what is looked for";
        abx_fail(err, error_text_is_want(why) ? E_OVERLOADED : E_RUNTIME_503, 0, "the module '%s' can't be used: %s", file,
                 why);
    }
    return found;
}
