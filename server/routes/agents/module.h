#pragma once
/* What the module abx-agents.so gives the server: routes/agents.c opens it when the first request
 * of the group comes. */

#include "agents/agents.h"
#include "http/req.h"

enum agents_op {
#define AGENTS_OP(id, where) AGENTS_OP_##id,
#include "routes/agents/ops.def"
#undef AGENTS_OP
    AGENTS_OP_COUNT
};

struct agents_module {
    int (*open)(const struct agents_deps *deps, struct agents **ret,
                struct abx_error *err);                     /* worker */
    int (*start)(struct agents *ag, struct abx_error *err); /* loop */
    void (*close)(struct agents *ag);                       /* loop */
    /* A handler's contract: 0, -1 with err, or REQ_PENDING. Loop. */
    int (*handle)(struct agents *ag, enum agents_op op, struct req *req, struct resp *resp,
                  struct abx_error *err);
};
#define AGENTS_MODULE_SYMBOL "abx_agents_module"
