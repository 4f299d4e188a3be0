#include "system/rpm.h"

#include "base/json.h"
#include "base/own.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* How it works: SQLite is opened on first use, so that start-up never pays for it. Each row of
 * Packages is a header: counts of index entries and of data bytes, the entries (tag, type, offset,
 * count), the data; all big-endian (rpm file format, "Header Structure"). */

#define TAG_NAME 1000
#define TAG_VERSION 1001
#define TAG_RELEASE 1002
#define TAG_EPOCH 1003
#define TYPE_INT32 4
#define TYPE_STRING 6
#define SQLITE_ROW 100
#define SQLITE_OPEN_READONLY_URI (0x1 | 0x40)

struct sqlite {
    int (*open_v2)(const char *uri, void **ret, int flags, const char *vfs);
    int (*prepare_v2)(void *db, const char *sql, int len, void **ret, const char **tail);
    int (*step)(void *stmt);
    const void *(*column_blob)(void *stmt, int column);
    int (*column_bytes)(void *stmt, int column);
    int (*finalize)(void *stmt);
    int (*close)(void *db);
};

static bool load(struct sqlite *s)
{
    void *lib = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL); /* stays for good */
    if (!lib)
        return false;
    *(void **)&s->open_v2 = dlsym(lib, "sqlite3_open_v2");
    *(void **)&s->prepare_v2 = dlsym(lib, "sqlite3_prepare_v2");
    *(void **)&s->step = dlsym(lib, "sqlite3_step");
    *(void **)&s->column_blob = dlsym(lib, "sqlite3_column_blob");
    *(void **)&s->column_bytes = dlsym(lib, "sqlite3_column_bytes");
    *(void **)&s->finalize = dlsym(lib, "sqlite3_finalize");
    *(void **)&s->close = dlsym(lib, "sqlite3_close");
    return s->open_v2 && s->prepare_v2 && s->step && s->column_blob && s->column_bytes &&
           s->finalize && s->close;
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The data of a tag, or NULL. A string is NUL-terminated within the header. */
static const uint8_t *find_tag(const uint8_t *blob, size_t len, uint32_t tag, uint32_t type)
{
    if (len < 8)
        return NULL;
    size_t entries = be32(blob), data = be32(blob + 4);
    if (entries > len / 16 || data > len || 8 + 16 * entries + data > len)
        return NULL;
    const uint8_t *store = blob + 8 + 16 * entries;
    for (size_t i = 0; i < entries; i++) {
        const uint8_t *e = blob + 8 + 16 * i;
        size_t at = be32(e + 8);
        if (be32(e) != tag || be32(e + 4) != type || at >= data)
            continue;
        bool fits =
            type == TYPE_STRING ? memchr(store + at, '\0', data - at) != NULL : data - at >= 4;
        return fits ? store + at : NULL;
    }
    return NULL;
}

static void take_header(const uint8_t *blob, size_t len, json_t *list)
{
    const char *name = (const char *)find_tag(blob, len, TAG_NAME, TYPE_STRING);
    const char *version = (const char *)find_tag(blob, len, TAG_VERSION, TYPE_STRING);
    const char *release = (const char *)find_tag(blob, len, TAG_RELEASE, TYPE_STRING);
    const uint8_t *epoch = find_tag(blob, len, TAG_EPOCH, TYPE_INT32);
    if (!name || !version || strcmp(name, "gpg-pubkey") == 0)
        return; /* keys of repositories are kept as packages */
    char full[512], number[16] = "";
    if (epoch)
        snprintf(number, sizeof number, "%u:", be32(epoch));
    snprintf(full, sizeof full, "%s%s%s%s", number, version, release ? "-" : "",
             release ? release : "");
    json_array_append_new(
        list, json_pack("{s:o, s:o}", "name", json_text(name), "version", json_text(full)));
}

void rpm_read(const char *path, json_t *list)
{
    struct sqlite s;
    char uri[PATH_MAX + 32];
    void *db = NULL, *rows = NULL;
    /* immutable: no lock, no journal, nothing written beside it */
    if (strpbrk(path, "?#%") ||
        (size_t)snprintf(uri, sizeof uri, "file:%s?immutable=1", path) >= sizeof uri || !load(&s))
        return;
    if (s.open_v2(uri, &db, SQLITE_OPEN_READONLY_URI, NULL) == 0 &&
        s.prepare_v2(db, "SELECT blob FROM Packages", -1, &rows, NULL) == 0)
        while (s.step(rows) == SQLITE_ROW) {
            const uint8_t *blob = s.column_blob(rows, 0);
            int len = s.column_bytes(rows, 0);
            if (blob && len > 0)
                take_header(blob, (size_t)len, list);
        }
    s.finalize(rows);
    s.close(db);
}
