#pragma once
/* The built-in endpoints, expanded from routes.def. */

#include "http/http.h"

enum route_id {
#define ROUTE(id, ...) R_##id,
#include "routes/routes.def"
#undef ROUTE
    ROUTE_COUNT
};

#define ROUTE(id, ...) int route_##id(struct req *req, struct resp *resp, struct abx_error *err);
#include "routes/routes.def"
#undef ROUTE

extern const struct route builtin_routes[ROUTE_COUNT];
