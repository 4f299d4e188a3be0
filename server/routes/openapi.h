#pragma once
/* What GET /openapi.json is made of: texts one after the other, each with a NUL, packed by zlib. One per row of routes.def
 * (an Operation Object of OpenAPI, without its braces), then the Components Object, then the Responses Object of a
 * command. Made by scripts/api_table.py from routes.def and api/api.py. */

#include <stddef.h>

extern const unsigned char openapi_packed[];
extern const size_t openapi_packed_len, openapi_plain_len;
