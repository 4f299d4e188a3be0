#pragma once
/* What a request line's target says: the path that is routed on, and the query. Pure functions. */

#include "base/arena.h"
#include "base/error.h"

/* One query parameter, decoded. value: bad UTF-8 became U+FFFD; raw: the bytes as sent. */
struct pair {
    const char *name, *value, *raw;
    size_t len, raw_len; /* of value and raw; either may hold NUL */
};

/* Scheme and authority, query and fragment, a ";..." suffix of the last segment and
 * trailing slashes go, leading slashes collapse; nothing is decoded. target: NUL-terminated, printable ASCII.
 * *ret_query: what stands after "?" (own copy, to be given to query_parse), NULL without one.
 * NULL: not a path, or no memory. */
char *target_path(struct arena *a, const char *target, char **ret_query);

/* text (NULL is fine) is decoded in place. `&` separates, `+` is a blank, %XX a byte, what is no escape stays;
 * parameters without a value are dropped. Sorted by name. Errors: E_DUPLICATE_PARAMETER, E_NO_MEMORY. */
int query_parse(struct arena *a, char *text, struct pair **ret, size_t *ret_n, struct abx_error *err);

/* %XX decoded; what is no escape stays. NUL-terminated copy, or NULL. */
char *percent_decode(struct arena *a, const char *s, size_t len, size_t *ret_len);
