#pragma once
/* What a commands file declares, checked, and how a caller's arguments become what a command gets
 * (docs/commands.md, Arguments: nothing is cut, rounded or guessed). Pure functions; any thread. */

#include "base/buf.h"
#include "base/error.h"
#include "policy/endpoint.h"
#include "registry/wire.h"

#include <jansson.h>

enum arg_type { ARG_STRING = 1, ARG_INTEGER, ARG_FLOAT, ARG_BOOLEAN, ARG_STRINGS };

struct arg_spec {
    enum arg_type type;
    char *name, *description;
    char *fallback; /* as declared; NULL: none */
    bool required;
    json_t *fallback_value;
};

struct command_spec {
    uint32_t index; /* in its host */
    char *name, *description;
    char **scopes;  /* NULL-terminated, never NULL itself */
    uint32_t flags; /* WIRE_HIDDEN, WIRE_STREAMS */
    double timeout; /* seconds; 0: the endpoint's */
    struct arg_spec *args;
    size_t n_args;
};

struct route_spec {
    uint32_t index;
    uint32_t flags; /* WIRE_STREAMS, WIRE_NO_AUTH */
    double timeout;
    char **scopes;
    struct endpoint ep; /* its texts are owned by this struct */
};

/* Read one W_COMMAND / W_ROUTE payload. Errors: E_CONFIG, message without the file's name. */
int command_spec_read(struct wire_reader *r, struct command_spec *ret, struct abx_error *err);
int route_spec_read(struct wire_reader *r, struct route_spec *ret, struct abx_error *err);
void command_spec_done(struct command_spec *c);
void route_spec_done(struct route_spec *r);

/* Appends the argument part of W_CALL (count and args). given: the request's object.
 * Errors: E_VALUE (unexpected or missing argument), E_ARGUMENT_TYPE. */
int command_spec_args(const struct command_spec *c, const json_t *given, struct wire_buf *out,
                      struct abx_error *err);

/* The same for a route: every top-level field that is a scalar or a list of strings. Never fails. */
void route_args(const json_t *body, struct wire_buf *out);

/* {"name", "args": [...], "description"}: new reference, NULL when memory is out. */
json_t *command_spec_json(const struct command_spec *c);

/* Checks JSON text that a host sent and appends it in the server's spelling (ASCII, ", " and ": ",
 * shortest numbers). At most JSON_MAX_NEST deep; no bound on the number of values, no tree is built.
 * Errors: E_VALUE, saying what is wrong where, with a short piece of the text. `out` is as before then. */
int json_relay(struct buf *out, const char *text, size_t len, struct abx_error *err);
