/* Group core: is the server up, what may the caller do? */

#include "http/req.h"
#include "routes/app.h"
#include "routes/table.h"

/* GET /health -> {"status": "ok"} */
int route_health(struct req *req, struct resp *resp, struct abx_error *err)
{
    static const char body[] = "{\"status\": \"ok\"}";
    return resp_bytes(resp, JSON_CONTENT, body, sizeof(body) - 1, err);
}

/* GET /capabilities -> the discovery document for the caller. */
int route_capabilities(struct req *req, struct resp *resp, struct abx_error *err)
{
    json_t *doc = policy_capabilities(req_policy(req), req_identity(req), ABX_VERSION_STRING, err);
    return doc ? resp_value(resp, doc, err) : -1;
}

/* POST /capabilities/check {"endpoint", "path"?, "paths"?, "op"?}
 *     -> {"endpoint", "allowed", "code", "reason", "rule"?}; judges paths, so it may touch the disk. */
int route_capabilities_check(struct req *req, struct resp *resp, struct abx_error *err)
{
    json_t *answer = policy_check(req_policy(req), req_identity(req), req_body(req), err);
    return answer ? resp_value(resp, answer, err) : -1;
}
