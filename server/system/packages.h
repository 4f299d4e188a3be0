#pragma once
/* What is installed, read from the package managers' own databases; no program is started. */

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum package_manager {
    PACKAGES_PIP,
    PACKAGES_NPM,
    PACKAGES_DPKG,
    PACKAGES_APK,
    PACKAGES_RPM,
    PACKAGE_MANAGERS
};

/* -1: unknown. Case-sensitive. */
int package_manager_parse(const char *name, enum package_manager *ret);

struct package_query {
    enum package_manager manager;
    bool global;      /* npm: the global packages */
    const char *root; /* "" or where a fake tree lies: goes before every path of the system */
    const char *search_path; /* where python3 and node are looked for */
    const char *base_dir;    /* npm: the project */
    const char *home;        /* pip: user packages; NULL or "" = none */
    const char *pythonpath;  /* NULL or "" = none */
};

/* An answer and what it was made from. Owned by whoever asks; pass it again to have it reused while
 * every directory and database still has the same time stamp. */
struct package_cache {
    char *json; /* {"manager", "packages": [{"name", "version", ...}], "scope"}: heap, ASCII */
    size_t len;
    char *stamp; /* what query and time stamps it is for */
};
void package_cache_done(struct package_cache *c);

/* Brings c up to date. Any thread; may block on disk. Missing managers give an empty list.
 * Errors: E_NO_MEMORY. */
int packages_read(const struct package_query *q, struct package_cache *c, struct abx_error *err);
