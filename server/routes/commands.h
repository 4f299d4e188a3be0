#pragma once
/* What a template's commands files add to the server: the site (table + policy) with their routes in it, and
 * the registry that GET /commands and POST /commands/{name} read. Loop thread.
 *
 * serve, at start (registry_new ... registry_wait before this):
 *     commands_site(app, registry, &in, &site, &err);   // in: all but endpoints and code_groups
 *     commands_use(app, registry);                      // after the services have started
 *     http_set_site(app->http, site);
 * and at a reload the same three, with a new registry and policy document. A request that is running keeps what it
 * started with. check-config --commands needs commands_site only (site_policy has the policy). */

#include "registry/registry.h"
#include "routes/app.h"

struct registry_service {
    struct registry *current; /* NULL: no commands */
};

/* Built-in endpoints, for registry_config.taken; *ret_n of them. Static. */
const struct endpoint *const *commands_taken(size_t *ret_n);

/* Compiles the policy for the built-in endpoints and the registry's routes, and makes the site of both. The
 * site keeps the registry alive. registry may be NULL. Errors: E_CONFIG. */
int commands_site(struct registry *registry, const struct policy_inputs *in, struct site **ret,
                  struct abx_error *err);

/* Commands that the caller may see, as GET /commands lists them: new array, NULL when memory is out. */
json_t *commands_visible(struct req *req, bool with_builtin);

/* From now on commands come from this registry (takes a reference of its own). */
void commands_use(struct app *app, struct registry *registry);
