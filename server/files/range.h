#pragma once
/* The Range header (RFC 9110, 14.2): one byte range. Pure, any thread. */

#include <stdint.h>

enum range_kind {
    RANGE_NONE,        /* absent, several, another unit or malformed: the whole file is sent */
    RANGE_PART,        /* *ret_from, *ret_len are set; len at least 1 */
    RANGE_UNSATISFIABLE,
};
enum range_kind range_parse(const char *header, int64_t size, int64_t *ret_from, int64_t *ret_len);
