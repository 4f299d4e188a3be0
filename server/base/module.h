#pragma once
/* Rooms whose libraries are heavy (git, archives, agents' store and webhooks) are shared objects
 * opened on first use: start-up pays nothing for them. They use the server's own symbols.
 * Looked for in this order: $ABX_MODULE_DIR, the executable's directory, ../lib/abx-server beside it. */

#include "base/error.h"

/* Loads NAME ("git": abx-git.so) once for good and finds symbol. Any thread. NULL with E_RUNTIME_503. */
void *module_symbol(const char *name, const char *symbol, struct abx_error *err);

/* Absolute path of a file installed beside the server (same search order), or NULL. Heap (free). */
char *module_find_file(const char *file);
