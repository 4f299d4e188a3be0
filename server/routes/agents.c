/* The agents group: its handlers live in the module abx-agents.so (SQLite, libcurl), opened when
 * the first request of the group comes, so that a server without agents pays nothing for them. */
#include "base/log.h"
#include "base/module.h"
#include "base/own.h"
#include "policy/policy.h"
#include "routes/agents/module.h"
#include "routes/app.h"
#include "routes/table.h"

struct pending { /* a request that came while the module was being opened */
    struct list node;
    struct req *req;
    enum agents_op op;
};

struct agents_service {
    struct app *app;
    const struct agents_module *module;
    struct agents *agents;
    struct list pending;
    bool opening;
    /* of the worker */
    struct agents_deps deps;
    struct agents *opened;
    const struct agents_module *found;
    struct abx_error err;
    int rc;
};

static struct policy *policy_now(void *data)
{
    struct app *app = data;
    return site_policy(http_site(app->http));
}

int agents_service_start(struct app *app, struct abx_error *err)
{
    struct agents_service *s = calloc(1, sizeof(*s));
    if (!s)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    s->app = app;
    list_init(&s->pending);
    app->agents = s;
    return 0;
}

void agents_service_stop(struct app *app)
{
    struct agents_service *s = app->agents;
    if (!s)
        return;
    app->agents = NULL;
    if (s->agents)
        s->module->close(s->agents);
    if (!s->opening) /* else the worker still writes to it; the process ends */
        free(s);
}

static void open_work(void *data)
{
    struct agents_service *s = data;
    s->found = module_symbol("agents", AGENTS_MODULE_SYMBOL, &s->err);
    s->rc = s->found ? s->found->open(&s->deps, &s->opened, &s->err) : -1;
}

static void serve(struct agents_service *s, struct pending *p)
{
    struct abx_error err;
    int rc = s->agents ? s->module->handle(s->agents, p->op, p->req, req_resp(p->req), &err) : -1;
    if (!s->agents)
        err = s->err;
    if (rc == 0)
        req_finish(p->req);
    else if (rc < 0)
        req_fail(p->req, &err);
    free(p);
}

static void open_done(void *data)
{
    struct agents_service *s = data;
    s->opening = false;
    if (s->rc == 0 && s->found->start(s->opened, &s->err) == 0) {
        s->module = s->found;
        s->agents = s->opened;
    } else {
        if (s->rc == 0)
            s->found->close(s->opened);
        log_error("agents: %s", s->err.message);
    }
    s->opened = NULL;
    while (!list_empty(&s->pending)) {
        struct pending *p = list_entry(s->pending.next, struct pending, node);
        list_remove(&p->node);
        serve(s, p);
    }
}

static int dispatch(struct req *req, struct resp *resp, struct abx_error *err, enum agents_op op)
{
    struct app *app = req_app(req);
    struct agents_service *s = app->agents;
    if (!s)
        return abx_fail(err, E_STOPPING, 0, "the server stops");
    if (s->agents)
        return s->module->handle(s->agents, op, req, resp, err);
    struct pending *p = calloc(1, sizeof(*p));
    if (!p)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    p->req = req;
    p->op = op;
    list_init(&p->node);
    if (!s->opening) {
        s->deps = (struct agents_deps){.loop = app->loop,
                                       .spawner = app->spawner,
                                       .env = app->env,
                                       .base_dir = app->base_dir,
                                       .policy = policy_now,
                                       .policy_data = app};
        if (loop_work(app->loop, WORK_SHORT, open_work, open_done, s) < 0) {
            free(p);
            return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
        }
        s->opening = true;
    }
    list_append(&s->pending, &p->node);
    return REQ_PENDING;
}

#define AGENTS_OP(id, where)                                                                       \
    int route_agents_##id(struct req *req, struct resp *resp, struct abx_error *err)               \
    {                                                                                              \
        return dispatch(req, resp, err, AGENTS_OP_##id);                                           \
    }
#include "routes/agents/ops.def"
#undef AGENTS_OP
