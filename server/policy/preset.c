#include "policy/policy_internal.h"

#include <string.h>

#define SECRETS_RULE                                                                               \
    "{\"paths\": {\"symlinks\": \"within\", \"deny\": [\"/proc\", \"/sys\", \"/dev\","             \
    " \"**/.ssh\", \"**/.env\", \"**/.env.*\", \"**/*.pem\", \"**/id_rsa*\", \"**/id_ed25519*\"]}}"
#define NO_EXECUTION                                                                               \
    "\"groups\": {\"process\": false, \"terminal\": false, \"dev_tools\": false, \"browser\": false}"
#define OFF "{\"enabled\": false}"
#define ON "{\"enabled\": true}"

static const struct {
    const char *name, *text;
} presets[] = {
    {"default", "{}"},
    {"transfer-only", "{\"endpoints\": {\"*\": " OFF ", \"files_upload_stream\": " ON
                      ", \"files_download_stream\": " ON "}}"},
    {"read-only", "{" NO_EXECUTION ", \"endpoints\": {\"files_mkdir\": " OFF
                  ", \"files_delete\": " OFF ", \"files_move\": " OFF
                  ", \"files_upload_stream\": " OFF ", \"env_set\": " OFF "}}"},
    {"hardened", "{" NO_EXECUTION ", \"defaults\": {\"audit\": \"deny\"}, \"endpoints\": {"
                 "\"env_set\": " OFF ", \"files_*\": " SECRETS_RULE "}}"},
    {"locked", "{\"endpoints\": {\"*\": " OFF ", \"list_commands\": " ON ", \"run_command\": " ON
               "}}"},
};

const char *const preset_names[] = {"default",  "transfer-only", "read-only",
                                    "hardened", "locked",        NULL};

const char *preset_text(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(presets); i++) {
        if (strcmp(presets[i].name, name) == 0)
            return presets[i].text;
    }
    return NULL;
}
