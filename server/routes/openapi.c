/* GET /openapi.json: this server's API for programs.
 *
 * The descriptions of the built-in endpoints lie packed in the program and are unpacked for the answer only; what the
 * policy, the template's commands and its routes add is written around them. Nothing of it stays in memory. */

#include "routes/openapi.h"

#include "base/json.h"
#include "base/own.h"
#include "http/req.h"
#include "policy/policy.h"
#include "routes/app.h"
#include "routes/commands.h"
#include "routes/table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

struct document {
    struct req *req;
    struct site *site;
    struct policy *policy;
    char *plain;                    /* the unpacked texts */
    const char *texts[ROUTE_COUNT]; /* of the rows */
    const char *components, *run_answers;
    bool all; /* also what is turned off */
    struct buf out;
};

static int unpack(struct document *d, struct abx_error *err)
{
    d->plain = malloc(openapi_plain_len);
    if (!d->plain)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    uLongf len = openapi_plain_len;
    int rc = uncompress((Bytef *)d->plain, &len, openapi_packed, openapi_packed_len);
    if (rc == Z_MEM_ERROR)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    if (rc != Z_OK || len != openapi_plain_len)
        return abx_fail(err, E_INTERNAL, 0, "the API's description does not unpack (%d)", rc);
    const char *at = d->plain;
    for (size_t i = 0; i < ROUTE_COUNT; i++) {
        d->texts[i] = at;
        at += strlen(at) + 1;
    }
    d->components = at;
    d->run_answers = at + strlen(at) + 1;
    return 0;
}

static void add_string(struct buf *out, const char *text)
{
    json_write_string(out, text, strlen(text));
}

static const char *method_key(enum method m)
{
    static const char *const keys[METHOD_COUNT] = {
        [M_GET] = "get", [M_POST] = "post", [M_PUT] = "put", [M_DELETE] = "delete", [M_PATCH] = "patch", [M_WS] = "get"};
    return keys[m];
}

/* Who may call it under this policy, and whether it is on. */
static void add_rule(struct buf *out, const struct rule *rule)
{
    buf_adds(out, ", \"x-abx-scopes\": [");
    for (size_t i = 0; i < rule->scopes.n; i++) {
        if (i > 0)
            buf_adds(out, ", ");
        add_string(out, rule->scopes.items[i]);
    }
    buf_adds(out, "]");
    if (!rule->enabled)
        buf_adds(out, ", \"x-abx-enabled\": false");
}

/* {name}s of the path, as strings. */
static void add_path_parameters(struct buf *out, const char *path)
{
    const char *comma = "";
    buf_adds(out, ", \"parameters\": [");
    for (const char *p = path; (p = strchr(p, '{')); p++) {
        size_t len = strcspn(p + 1, "}");
        buf_adds(out, comma);
        buf_adds(out, "{\"name\": ");
        json_write_string(out, p + 1, len);
        buf_adds(out, ", \"in\": \"path\", \"required\": true, \"schema\": {\"type\": \"string\"}}");
        comma = ", ";
    }
    buf_adds(out, "]");
}

/* A route of the template: what it takes and answers is its own affair. */
static void add_custom(struct buf *out, const struct endpoint *e)
{
    buf_adds(out, "\"operationId\": ");
    add_string(out, e->id);
    buf_adds(out, ", \"summary\": ");
    add_string(out, e->summary ? e->summary : "");
    buf_adds(out, ", \"tags\": [");
    add_string(out, group_name(e->group));
    buf_adds(out, "]");
    if (e->flags & EP_NO_AUTH)
        buf_adds(out, ", \"security\": []");
    if (strchr(e->path, '{'))
        add_path_parameters(out, e->path);
    if (e->method != M_GET)
        buf_adds(out, ", \"requestBody\": {\"required\": false, \"content\": {\"application/json\": {\"schema\": {\"type\": \"object\"}}}}");
    buf_adds(out, ", \"responses\": {\"default\": {\"description\": \"What the template answers, or a refusal\"}}");
}

static void add_operation(struct document *d, size_t i, const struct rule *rule)
{
    const struct endpoint *e = &site_route(d->site, i)->ep;
    add_string(&d->out, method_key(e->method));
    buf_adds(&d->out, ": {");
    if (e->custom)
        add_custom(&d->out, e);
    else
        buf_adds(&d->out, d->texts[i]);
    add_rule(&d->out, rule);
    buf_addc(&d->out, '}');
}

static bool is_shown(const struct document *d, size_t i)
{
    return d->all || policy_rule(d->policy, i)->enabled;
}

/* True when an earlier row had this path: it was told there. */
static bool path_is_told(const struct document *d, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (is_shown(d, k) && strcmp(site_route(d->site, k)->ep.path, site_route(d->site, i)->ep.path) == 0)
            return true;
    return false;
}

static void add_path(struct document *d, size_t i, bool *first)
{
    const char *path = site_route(d->site, i)->ep.path;
    unsigned told = 0; /* GET and a WebSocket on one path are one operation: the earlier row's */
    buf_adds(&d->out, *first ? "" : ", ");
    *first = false;
    add_string(&d->out, path);
    buf_adds(&d->out, ": {");
    for (size_t k = i; k < site_route_count(d->site); k++) {
        const struct endpoint *e = &site_route(d->site, k)->ep;
        unsigned bit = 1u << (e->method == M_WS ? M_GET : e->method);
        if (strcmp(e->path, path) != 0 || !is_shown(d, k) || (told & bit))
            continue;
        buf_adds(&d->out, told ? ", " : "");
        told |= bit;
        add_operation(d, k, policy_rule(d->policy, k));
    }
    buf_addc(&d->out, '}');
}

/* --- commands ---------------------------------------------------------------------------------------------- */

/* The schema of an argument as GET /commands lists it. New reference. */
static json_t *argument_schema(const json_t *arg)
{
    static const char *const types[][2] = {
        {"string", "string"}, {"integer", "integer"}, {"float", "number"}, {"boolean", "boolean"}, {"string_array", "array"}};
    const char *type = json_string_value(json_object_get(arg, "type"));
    json_t *schema = json_object(), *fallback = json_object_get(arg, "default"), *text = json_object_get(arg, "description");
    for (size_t i = 0; type && i < ARRAY_LEN(types); i++)
        if (strcmp(type, types[i][0]) == 0)
            json_object_set_new(schema, "type", json_string(types[i][1]));
    if (type && strcmp(type, "string_array") == 0)
        json_object_set_new(schema, "items", json_pack("{s:s}", "type", "string"));
    if (json_string_length(text) > 0)
        json_object_set(schema, "description", text);
    if (!json_is_string(fallback))
        return schema;
    json_t *value = type && strcmp(type, "string") == 0 ? json_incref(fallback)
                                                         : json_loads(json_string_value(fallback), JSON_DECODE_ANY, NULL);
    if (value) /* "True" of a boolean is no JSON: it is left out */
        json_object_set_new(schema, "default", value);
    return schema;
}

static json_t *arguments_schema(const json_t *args)
{
    json_t *properties = json_object(), *required = json_array(), *arg;
    size_t i;
    json_array_foreach((json_t *)args, i, arg)
    {
        json_t *name = json_object_get(arg, "name");
        json_object_set_new(properties, json_string_value(name), argument_schema(arg));
        if (json_is_true(json_object_get(arg, "required")))
            json_array_append(required, name);
    }
    return json_pack("{s:s, s:o, s:o, s:b}", "type", "object", "properties", properties, "required", required,
                     "additionalProperties", 0);
}

/* Everything but unreserved characters as %XX (RFC 3986, 2.3): one segment of a path. */
static void add_path_segment(struct buf *out, const char *name)
{
    for (const unsigned char *p = (const unsigned char *)name; *p; p++) {
        if (isalnum(*p) && *p < 0x80)
            buf_addc(out, (char)*p);
        else if (strchr("-._~", *p))
            buf_addc(out, (char)*p);
        else
            buf_addf(out, "%%%02X", *p);
    }
}

/* A path of its own for each command that the caller may see: POST /commands/NAME. */
static void add_commands(struct document *d, const struct rule *rule)
{
    autojson json_t *list = commands_visible(d->req, false);
    json_t *command;
    size_t i;
    json_array_foreach(list, i, command)
    {
        const char *name = json_string_value(json_object_get(command, "name"));
        json_t *args = json_object_get(command, "args");
        autojson json_t *schema = arguments_schema(args);
        autobuf struct buf id = BUF_INIT;
        buf_addf(&id, "run_command %s", name);
        buf_adds(&d->out, ", \"/commands/");
        add_path_segment(&d->out, name);
        buf_adds(&d->out, "\": {\"post\": {\"operationId\": ");
        add_string(&d->out, buf_str(&id) ? id.data : "");
        buf_adds(&d->out, ", \"summary\": ");
        json_write(&d->out, json_object_get(command, "description"));
        buf_addf(&d->out, ", \"tags\": [\"commands\"], \"requestBody\": {\"required\": %s, \"content\": {\"application/json\": {\"schema\": ",
                 json_array_size(json_object_get(schema, "required")) > 0 ? "true" : "false");
        json_write(&d->out, schema);
        buf_adds(&d->out, "}}}, \"responses\": ");
        buf_adds(&d->out, d->run_answers);
        add_rule(&d->out, rule);
        buf_adds(&d->out, "}}");
    }
}

/* --- the whole --------------------------------------------------------------------------------------------- */

static void write_document(struct document *d)
{
    bool tokens = policy_has_tokens(d->policy), first = true;
    buf_adds(&d->out, "{\"openapi\": \"3.1.0\", \"info\": {\"title\": \"abx-server\", \"version\": \"" ABX_VERSION_STRING "\", "
                      "\"description\": \"What this server offers under its policy. x-abx-scopes: what a caller needs; "
                      "The schema of a text/event-stream is that of one event; x-abx-settings: what a policy may set.\"}, "
                      "\"servers\": [{\"url\": \"/\"}], \"security\": ");
    buf_adds(&d->out, tokens ? "[{\"accessToken\": []}, {\"bearer\": []}]" : "[]");
    buf_adds(&d->out, ", \"paths\": {");
    for (size_t i = 0; i < site_route_count(d->site); i++) {
        if (is_shown(d, i) && !path_is_told(d, i))
            add_path(d, i, &first);
    }
    if (policy_rule(d->policy, R_run_command)->enabled)
        add_commands(d, policy_rule(d->policy, R_run_command));
    buf_adds(&d->out, "}, \"components\": ");
    buf_adds(&d->out, d->components);
    buf_addc(&d->out, '}');
}

/* GET /openapi.json?all= -> an OpenAPI 3.1 document. On the loop: it reads the commands, which are the loop's. */
int route_openapi(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct document d = {.req = req, .site = req_site(req), .policy = req_policy(req), .all = req_query_bool(req, "all")};
    int rc = unpack(&d, err);
    if (rc == 0) {
        write_document(&d);
        size_t len;
        char *text = buf_take(&d.out, &len);
        rc = text ? resp_json_text(resp, text, len) : abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    buf_done(&d.out);
    free(d.plain);
    return rc;
}
