#pragma once
/* A small table of endpoints with every kind of knob, for the tests of policy/. */

#include "policy/policy.h"

#define SC(...) (const char *const[]){__VA_ARGS__, NULL}
#define EXEC_LIMITS (LIM(timeout_seconds) | LIM(max_output_bytes) | LIM(max_processes))
#define EXEC_PARAMS (PAR(allow_commands) | PAR(deny_commands))

static const struct endpoint sample[] = {
    {.id = "health", .path = "/health", .group = G_CORE, .flags = EP_NO_AUTH},
    {.id = "capabilities", .path = "/capabilities", .group = G_CORE, .scopes = SC("core:read")},
    {.id = "list_commands", .path = "/commands", .group = G_COMMANDS, .scopes = SC("commands:list")},
    {.id = "run_command", .path = "/commands/{name}", .method = M_POST, .group = G_COMMANDS,
     .scopes = SC("commands:run")},
    {.id = "files_list", .path = "/files/list", .group = G_FILE_OPS, .scopes = SC("files:read"),
     .limits = LIM(max_depth) | LIM(max_entries), .flags = EP_PATHS},
    {.id = "files_stat", .path = "/files/stat", .group = G_FILE_OPS, .scopes = SC("files:read"),
     .flags = EP_PATHS},
    {.id = "files_mkdir", .path = "/files/mkdir", .method = M_POST, .group = G_FILE_OPS,
     .scopes = SC("files:write"), .flags = EP_PATHS, .op = OP_WRITE},
    {.id = "files_move", .path = "/files/move", .method = M_POST, .group = G_FILE_OPS,
     .scopes = SC("files:write", "files:delete"), .flags = EP_PATHS, .op = OP_DELETE},
    {.id = "files_search", .path = "/files/search", .method = M_POST, .group = G_FILE_OPS,
     .scopes = SC("files:read"), .limits = LIM(max_depth) | LIM(max_results) | LIM(timeout_seconds),
     .flags = EP_PATHS},
    {.id = "files_upload_stream", .path = "/files/upload-stream", .method = M_POST, .group = G_FILE_OPS,
     .scopes = SC("files:write"), .limits = LIM(max_bytes),
     .params = PAR(overwrite) | PAR(allow_extensions) | PAR(deny_extensions), .flags = EP_PATHS,
     .op = OP_WRITE},
    {.id = "files_download_stream", .path = "/files/download-stream", .group = G_FILE_OPS,
     .scopes = SC("files:read"), .limits = LIM(max_bytes), .flags = EP_PATHS},
    {.id = "files_extract", .path = "/files/extract", .method = M_POST, .group = G_FILE_OPS,
     .scopes = SC("files:write"), .limits = LIM(max_bytes),
     .params = PAR(overwrite) | PAR(allow_extensions) | PAR(deny_extensions), .flags = EP_PATHS,
     .op = OP_WRITE, .rule_of = "files_upload_stream"},
    {.id = "shell", .path = "/shell", .method = M_POST, .group = G_PROCESS, .scopes = SC("process:run"),
     .limits = EXEC_LIMITS, .params = EXEC_PARAMS, .flags = EP_PATHS | EP_EXEC, .op = OP_EXEC},
    {.id = "process_list", .path = "/process/list", .group = G_PROCESS, .scopes = SC("process:read")},
    {.id = "process_signal", .path = "/process/{pid}/signal", .method = M_POST, .group = G_PROCESS,
     .scopes = SC("process:manage"), .params = PAR(allowed_signals)},
    {.id = "pty_connect", .path = "/pty", .method = M_WS, .group = G_TERMINAL,
     .scopes = SC("terminal:use"), .flags = EP_WS},
    {.id = "env_get", .path = "/env", .group = G_SYSTEM, .scopes = SC("system:read"),
     .params = PAR(allow_vars) | PAR(deny_vars)},
    {.id = "env_set", .path = "/env", .method = M_POST, .group = G_SYSTEM, .scopes = SC("system:write"),
     .params = PAR(allow_vars) | PAR(deny_vars)},
    {.id = "ports", .path = "/ports", .group = G_SYSTEM, .scopes = SC("system:read")},
    {.id = "code_run", .path = "/code/run", .method = M_POST, .group = G_DEV_TOOLS,
     .scopes = SC("devtools:run"), .limits = LIM(timeout_seconds) | LIM(max_output_bytes),
     .params = PAR(languages), .flags = EP_EXEC},
    {.id = "git_status", .path = "/git/status", .group = G_DEV_TOOLS, .scopes = SC("devtools:read"),
     .flags = EP_PATHS},
    {.id = "GET /open", .path = "/open", .group = G_COMMANDS, .flags = EP_NO_AUTH, .custom = true},
};
#define SAMPLE_COUNT (sizeof(sample) / sizeof(sample[0]))
