/* The browser needs nothing from a template but its group turned on and Chromium installed (image.sh). This file adds a
 * command that tells which Chromium the server would start. */
#include <abx/commands.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ABX_GROUP_ON(browser);

ABX_COMMAND(which_browser, "Which browser is installed?")
{
    static const char *const names[] = {"chromium", "chromium-browser", "google-chrome"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (const char *dirs = getenv("PATH"); dirs && *dirs;) {
            size_t n = strcspn(dirs, ":");
            if (snprintf(path, sizeof(path), "%.*s/%s", (int)n, dirs, names[i]) < (int)sizeof(path) && access(path, X_OK) == 0)
                return abx_return_string(call, "%s", path);
            dirs += n + (dirs[n] == ':');
        }
    }
    return abx_return_null(call);
}
