#pragma once
/* The commands that the server itself has; see builtin_commands.c. */

#include "http/req.h"
#include "registry/spec.h"

struct builtin_command {
    const char *name, *description;
    const char *endpoint; /* whose policy holds */
    const char *args[3];  /* required strings, NULL-terminated */
    int (*run)(struct req *req, const struct rule *rule, struct resp *resp, struct abx_error *err);
};

const struct builtin_command *builtin_command_find(const char *name, size_t len);
/* NULL past the last one. */
const struct builtin_command *builtin_command_at(size_t i);
json_t *builtin_command_json(const struct builtin_command *b);
/* Judges by the policy of its endpoint, checks the arguments and runs it. As a handler. */
int builtin_command_run(const struct builtin_command *b, struct req *req, struct resp *resp, struct abx_error *err);
