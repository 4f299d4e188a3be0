#pragma once
/* The RPM database (SQLite format, rpm 4.16 and later), without rpm. */

#include <jansson.h>

/* Appends {"name", "version"} for each package; version is [epoch:]version-release. What can't be
 * read adds nothing: no SQLite library, an older database format, broken headers. */
void rpm_read(const char *path, json_t *list);
