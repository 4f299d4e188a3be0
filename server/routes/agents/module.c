/* The module's one symbol, and the way of a call: handler on the loop or on a worker, errors in the
 * group's envelope. */
#include "routes/agents/common.h"

#include <string.h>

enum where { LOOP, WORKER };

static const struct {
    agents_handler run;
    enum where where;
} handlers[AGENTS_OP_COUNT] = {
#define AGENTS_OP(id, place) [AGENTS_OP_##id] = {agents_##id, place},
#include "routes/agents/ops.def"
#undef AGENTS_OP
};

struct plain {
    struct job j;
    agents_handler run;
};

static void plain_work(struct job *j) { j->rc = ((struct plain *)j)->run(&j->c); }

static void plain_done(struct job *j)
{
    job_finish(j, j->rc);
    free(j);
}

static int handle(struct agents *ag, enum agents_op op, struct req *req, struct resp *resp,
                  struct abx_error *err)
{
    struct ag_error e = {0};
    struct call c = {.ag = ag, .req = req, .resp = resp, .err = err, .e = &e};
    if (handlers[op].where == WORKER) {
        struct plain *p = calloc(1, sizeof(*p));
        if (!p)
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        job_init(&p->j, &c);
        p->run = handlers[op].run;
        int rc = job_run(&p->j, plain_work, plain_done);
        if (rc < 0) {
            *err = p->j.err;
            free(p);
        }
        return rc;
    }
    int rc = handlers[op].run(&c);
    return rc < 0 && e.status ? reply_error(&c) : rc;
}

__attribute__((visibility("default"))) extern const struct agents_module abx_agents_module;
const struct agents_module abx_agents_module = {
    .open = agents_open,
    .start = agents_start,
    .close = agents_close,
    .handle = handle,
};
