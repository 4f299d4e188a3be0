#pragma once
/* Archives: the interface of the module abx-archive.so (libarchive is opened on first use). Worker threads. */

#include "base/error.h"
#include "policy/guard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct archive_path {
    const char *text;
    size_t len;
};

struct archive_order {
    const struct guard *guard;
    const struct archive_path *paths;
    size_t n_paths;
    bool zip;             /* else tar.gz */
    int64_t max_files;    /* met while walking directories */
    int64_t max_bytes;    /* of the archive */
    int64_t max_input;    /* bytes of all files together */
    bool (*cancelled)(void *data);
    void *data;
};

/* Writes an archive of the paths to out_fd while it reads them. Links that lead out, denied entries, FIFOs,
 * sockets and devices are left out; empty directories are kept; equal top names get " (2)", " (3)", ...
 * Errors: the guard's (all paths are judged before any is looked at); E_FILE_NOT_FOUND; E_VALUE (too many files);
 * E_TOO_LARGE; OS errors; E_CANCELLED. */
typedef int archive_create_fn(const struct archive_order *order, int out_fd, int64_t *ret_bytes,
                              struct abx_error *err);
#define ARCHIVE_CREATE "abx_archive_create"
archive_create_fn abx_archive_create;

struct extract_order {
    const struct guard *guard;
    const char *path; /* the directory; made when it is not there */
    size_t path_len;
    int64_t max_files, max_bytes; /* entries; bytes unpacked */
    bool no_overwrite;
    const char *const *allow_ext, *const *deny_ext; /* as upload_options */
    size_t n_allow, n_deny;
    bool (*cancelled)(void *data);
    void *data;
};

struct extract_result {
    const char *path; /* canonical, in the arena */
    int64_t entries, bytes, skipped; /* skipped: devices, FIFOs, sockets */
};

/* Unpacks tar, tar.gz or zip from in_fd (seekable). The whole archive is looked through before anything is
 * written. Nothing is followed: no entry goes through a link, links must stay within the directory.
 * Errors: the guard's; E_VALUE (no archive, damaged); E_PATH_NOT_ALLOWED (an entry or link that leaves);
 * E_PATH_DENIED; E_EXTENSION; E_FILE_EXISTS_POLICY; E_TOO_LARGE; OS errors. What was written before an
 * error while writing (a full disk) stays. */
typedef int archive_extract_fn(const struct extract_order *order, int in_fd, struct arena *arena,
                               struct extract_result *ret, struct abx_error *err);
#define ARCHIVE_EXTRACT "abx_archive_extract"
archive_extract_fn abx_archive_extract;
