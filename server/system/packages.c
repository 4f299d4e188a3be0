#include "system/packages.h"

#include "base/json.h"
#include "base/own.h"
#include "system/files.h"
#include "system/host.h"
#include "system/rpm.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* How it works: for each manager there is a list of places (directories or one database file).
 * Their time stamps make the cache's stamp; only when one has changed are they read again. */

#define MAX_PLACES 32
#define MAX_PACKAGES 50000
#define MAX_DATABASE (64 * MIB)

struct places {
    char *path[MAX_PLACES];
    size_t n;
};

static const char *const names[PACKAGE_MANAGERS] = {"pip", "npm", "dpkg", "apk", "rpm"};

int package_manager_parse(const char *name, enum package_manager *ret)
{
    for (int i = 0; i < PACKAGE_MANAGERS; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum package_manager)i;
            return 0;
        }
    return -1;
}

void package_cache_done(struct package_cache *c)
{
    free(c->json);
    free(c->stamp);
    *c = (struct package_cache){0};
}

/* --- places ----------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void add_place(struct places *p, const char *fmt, ...)
{
    char path[PATH_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(path, sizeof path, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof path || p->n == MAX_PLACES)
        return;
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->path[i], path) == 0)
            return;
    char *copy = strdup(path);
    if (copy)
        p->path[p->n++] = copy;
}

static void places_done(struct places *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->path[i]);
}

static bool says_true(const char *text, const char *key)
{
    const char *at = strcasestr(text, key);
    return at && strncasecmp(at + strlen(key) + strspn(at + strlen(key), " \t="), "true", 4) == 0;
}

static void add_site(struct places *p, const char *root, int prefix_len, const char *prefix,
                     const char *minor)
{
    add_place(p, "%s%.*s/local/lib/python%s/dist-packages", root, prefix_len, prefix, minor);
    add_place(p, "%s%.*s/lib/python%s/site-packages", root, prefix_len, prefix, minor);
    add_place(p, "%s%.*s/lib64/python%s/site-packages", root, prefix_len, prefix, minor);
    add_place(p, "%s%.*s/lib/python3/dist-packages", root, prefix_len, prefix);
}

/* The directories that python3 on the path would import from: site.py, site.main(). */
static void pip_places(const struct package_query *q, struct places *p)
{
    for (const char *at = q->pythonpath ? q->pythonpath : ""; *at;) {
        size_t n = strcspn(at, ":");
        if (*at == '/')
            add_place(p, "%s%.*s", q->root, (int)n, at);
        at += n + (at[n] == ':');
    }
    autofree char *found = NULL, *real = NULL, *minor = NULL;
    if (!host_find_python(q->search_path, &found, &real, &minor) || !*minor)
        return;

    /* In a virtual environment pyvenv.cfg lies beside bin/. */
    int venv = 0;
    bool isolated = false;
    char *slash = strrchr(found, '/');
    for (char *s = slash - 1; s > found && !venv; s--)
        if (*s == '/')
            venv = (int)(s - found);
    char cfg[PATH_MAX];
    autobuf struct buf text = BUF_INIT;
    if (venv > 0 &&
        (size_t)snprintf(cfg, sizeof cfg, "%.*s/pyvenv.cfg", venv, found) < sizeof cfg &&
        file_read("", cfg, 16 * KIB, &text) == 0) {
        add_site(p, q->root, venv, found, minor);
        isolated = !says_true(text.data, "include-system-site-packages");
    }
    if (isolated)
        return;
    if (q->home && *q->home)
        add_place(p, "%s%s/.local/lib/python%s/site-packages", q->root, q->home, minor);
    int prefix = (int)(strrchr(real, '/') - real);
    while (prefix > 0 && real[prefix - 1] != '/')
        prefix--;
    prefix -= prefix > 0;
    add_site(p, q->root, prefix, real, minor);
    if (prefix == 4 && strncmp(real, "/usr", 4) == 0)
        add_place(p, "%s/usr/local/lib/python%s/dist-packages", q->root, minor);
}

static void npm_places(const struct package_query *q, struct places *p)
{
    if (!q->global) {
        add_place(p, "%s", q->base_dir);
        add_place(p, "%s/package.json", q->base_dir);
        add_place(p, "%s/node_modules", q->base_dir);
        return;
    }
    for (const char *at = q->search_path;
         *at;) { /* PREFIX/bin/node goes with PREFIX/lib/node_modules */
        size_t n = strcspn(at, ":");
        if (n > 4 && strncmp(at + n - 4, "/bin", 4) == 0)
            add_place(p, "%s%.*s/lib/node_modules", q->root, (int)n - 4, at);
        at += n + (at[n] == ':');
    }
}

static void find_places(const struct package_query *q, struct places *p)
{
    switch (q->manager) {
    case PACKAGES_PIP:
        pip_places(q, p);
        break;
    case PACKAGES_NPM:
        npm_places(q, p);
        break;
    case PACKAGES_DPKG:
        add_place(p, "%s/var/lib/dpkg/status", q->root);
        add_place(p, "%s/var/lib/dpkg/status.d", q->root); /* images without dpkg */
        break;
    case PACKAGES_APK:
        add_place(p, "%s/lib/apk/db/installed", q->root);
        add_place(p, "%s/usr/lib/apk/db/installed", q->root);
        break;
    case PACKAGES_RPM:
        add_place(p, "%s/var/lib/rpm/rpmdb.sqlite", q->root);
        add_place(p, "%s/usr/lib/sysimage/rpm/rpmdb.sqlite", q->root);
        break;
    case PACKAGE_MANAGERS:
        break;
    }
}

static char *make_stamp(const struct package_query *q, const struct places *p)
{
    struct buf out = BUF_INIT;
    buf_addf(&out, "%d %d\n", (int)q->manager, q->global);
    for (size_t i = 0; i < p->n; i++) {
        struct stat st = {0};
        if (stat(p->path[i], &st) < 0)
            st = (struct stat){0};
        buf_addf(&out, "%s %llu %lld %lld.%ld\n", p->path[i], (unsigned long long)st.st_ino,
                 (long long)st.st_size, (long long)st.st_mtim.tv_sec, (long)st.st_mtim.tv_nsec);
    }
    return buf_take(&out, NULL);
}

/* --- collecting ------------------------------------------------------------------------------- */

static bool add_package(json_t *list, json_t *name, json_t *version)
{
    if (!name || !version || json_array_size(list) >= MAX_PACKAGES) {
        json_decref(name);
        json_decref(version);
        return false;
    }
    return json_array_append_new(list, json_pack("{s:o, s:o}", "name", name, "version", version)) ==
           0;
}

static const char *name_of(const json_t *package)
{
    return json_string_value(json_object_get(package, "name"));
}

/* PEP 503: what two spellings of one name have in common. */
static void canonical(const char *name, char *out, size_t size)
{
    size_t n = 0;
    for (; *name && n + 1 < size; name++) {
        char c = *name;
        if (c == '_' || c == '.' || c == '-') {
            if (n > 0 && out[n - 1] == '-')
                continue;
            c = '-';
        } else if (c >= 'A' && c <= 'Z') {
            c = (char)(c - 'A' + 'a');
        }
        out[n++] = c;
    }
    out[n] = '\0';
}

static int by_name(const void *a, const void *b)
{
    char x[256], y[256];
    canonical(name_of(*(json_t *const *)a), x, sizeof x);
    canonical(name_of(*(json_t *const *)b), y, sizeof y);
    return strcmp(x, y);
}

static json_t *sorted(json_t *list)
{
    size_t n = json_array_size(list);
    autofree json_t **items = malloc((n + 1) * sizeof *items);
    json_t *out = json_array();
    if (!items || !out) {
        json_decref(out);
        return list;
    }
    for (size_t i = 0; i < n; i++)
        items[i] = json_array_get(list, i);
    qsort(items, n, sizeof *items, by_name);
    for (size_t i = 0; i < n; i++)
        json_array_append(out, items[i]);
    json_decref(list);
    return out;
}

/* --- pip -------------------------------------------------------------------------------------- */

/* A header of METADATA or PKG-INFO (RFC 822 style, before the first blank line). */
static json_t *header(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; *line && *line != '\n' && *line != '\r';) {
        size_t len = strcspn(line, "\r\n");
        if (len > n && strncasecmp(line, name, n) == 0 && line[n] == ':') {
            const char *value = line + n + 1 + strspn(line + n + 1, " \t");
            return json_bytes(value, len - (size_t)(value - line));
        }
        line += len;
        line += *line == '\r';
        line += *line == '\n';
    }
    return NULL;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n > m && strcmp(s + n - m, tail) == 0;
}

static void read_distribution(const char *dir, const char *entry, json_t *seen, json_t *list)
{
    char path[PATH_MAX];
    autobuf struct buf text = BUF_INIT;
    bool wheel = ends_with(entry, ".dist-info");
    if (!wheel && !ends_with(entry, ".egg-info"))
        return;
    const char *file = wheel ? "/METADATA" : "/PKG-INFO";
    if ((size_t)snprintf(path, sizeof path, "%s/%s%s", dir, entry, file) >= sizeof path)
        return;
    /* An egg-info may be one file; only the head of any of them is of interest. */
    if (file_read("", path, 16 * KIB, &text) < 0 && !wheel &&
        (size_t)snprintf(path, sizeof path, "%s/%s", dir, entry) < sizeof path) {
        buf_reset(&text);
        (void)file_read("", path, 16 * KIB, &text); /* checked by what is in it */
    }
    const char *head = text.failed || text.len == 0 ? "" : text.data;
    json_t *name = header(head, "Name"), *version = header(head, "Version");
    if (!name || !version) { /* "name-1.0.dist-info" says it too */
        size_t n = strcspn(entry, "-"), v = entry[n] ? n + 1 : n;
        size_t end = strlen(entry) - strlen(".dist-info") + (wheel ? 0 : 1);
        json_decref(name);
        json_decref(version);
        name = v < end ? json_bytes(entry, n) : NULL;
        version = v < end ? json_bytes(entry + v, end - v) : NULL;
    }
    char key[256];
    canonical(name ? json_string_value(name) : "", key, sizeof key);
    if (!*key || json_object_get(seen, key)) { /* the first one on the path is what gets imported */
        json_decref(name);
        json_decref(version);
        return;
    }
    json_object_set_new(seen, key, json_true());
    add_package(list, name, version);
}

static void each_entry(const char *dir,
                       void (*fn)(const char *dir, const char *entry, json_t *seen, json_t *list),
                       json_t *seen, json_t *list)
{
    DIR *d = opendir(dir);
    if (!d)
        return;
    for (struct dirent *entry; (entry = readdir(d));)
        if (entry->d_name[0] != '.')
            fn(dir, entry->d_name, seen, list);
    closedir(d);
}

static json_t *read_pip(const struct places *p)
{
    json_t *list = json_array();
    autojson json_t *seen = json_object();
    for (size_t i = 0; i < p->n; i++)
        each_entry(p->path[i], read_distribution, seen, list);
    return sorted(list);
}

/* --- npm -------------------------------------------------------------------------------------- */

static json_t *read_json(const char *path)
{
    autobuf struct buf text = BUF_INIT;
    json_t *value;
    if (file_read("", path, 4 * MIB, &text) < 0 ||
        json_parse(text.data, text.len, &value, NULL) < 0)
        return NULL;
    return value;
}

/* dir/name/package.json; a package without a version is none. */
static void read_module(const char *dir, const char *name, json_t *seen, json_t *list)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s/package.json", dir, name) >= sizeof path)
        return;
    autojson json_t *manifest = read_json(path);
    const json_t *version = json_object_get(manifest, "version");
    if (!json_is_string(version) || json_object_get(seen, name))
        return;
    json_object_set_new(seen, name, json_true());
    add_package(list, json_text(name), json_incref((json_t *)version));
}

static void read_scope(const char *dir, const char *entry, json_t *seen, json_t *list)
{
    char name[512], path[PATH_MAX];
    if (entry[0] != '@') {
        read_module(dir, entry, seen, list);
        return;
    }
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, entry) >= sizeof path)
        return;
    DIR *d = opendir(path);
    if (!d)
        return;
    for (struct dirent *sub; (sub = readdir(d));)
        if (sub->d_name[0] != '.' &&
            (size_t)snprintf(name, sizeof name, "%s/%s", entry, sub->d_name) < sizeof name)
            read_module(dir, name, seen, list);
    closedir(d);
}

static bool is_module_name(const char *name)
{
    return name[0] && name[0] != '.' && name[0] != '/' && !strstr(name, "..") && strlen(name) < 256;
}

/* As `npm list --depth=0`: what package.json asks for and is there; without one, all that is there.
 */
static json_t *read_npm(const struct package_query *q, const struct places *p)
{
    static const char *const kinds[] = {"dependencies", "devDependencies", "optionalDependencies",
                                        "peerDependencies"};
    json_t *list = json_array();
    autojson json_t *seen = json_object();
    autojson json_t *manifest = !q->global && p->n == 3 ? read_json(p->path[1]) : NULL;
    if (!manifest) {
        for (size_t i = q->global ? 0 : 2; i < p->n; i++)
            each_entry(p->path[i], read_scope, seen, list);
        return sorted(list);
    }
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        const char *name;
        json_t *range;
        json_object_foreach(json_object_get(manifest, kinds[i]), name, range)
        {
            if (is_module_name(name))
                read_module(p->path[2], name, seen, list);
        }
    }
    return sorted(list);
}

/* --- dpkg, apk -------------------------------------------------------------------------------- */

/* Paragraphs of "Key: value" lines. name, version: keys with their colon. */
static void read_paragraphs(const char *text, const char *name_key, const char *version_key,
                            bool dpkg, json_t *list)
{
    const char *name = NULL, *version = NULL;
    size_t name_len = 0, version_len = 0, n = strlen(name_key), v = strlen(version_key);
    bool installed = !dpkg, has_status = false;
    for (const char *line = text;; line++) {
        size_t len = strcspn(line, "\n");
        if (len == 0) {
            /* status.d has no Status lines: what is there is installed */
            if (name && version && (installed || !has_status))
                add_package(list, json_bytes(name, name_len), json_bytes(version, version_len));
            name = version = NULL;
            installed = !dpkg;
            has_status = false;
        } else if (strncmp(line, name_key, n) == 0) {
            name = line + n;
            name_len = len - n;
        } else if (strncmp(line, version_key, v) == 0) {
            version = line + v;
            version_len = len - v;
        } else if (dpkg && strncmp(line, "Status: ", 8) == 0) {
            has_status = true;
            installed = len >= 18 && strncmp(line + len - 10, " installed", 10) == 0;
        }
        line += len;
        if (!*line) {
            if (len == 0)
                return;
            if (name && version && (installed || !has_status)) /* the text ends without a newline */
                add_package(list, json_bytes(name, name_len), json_bytes(version, version_len));
            return;
        }
    }
}

static void read_status_file(const char *dir, const char *entry, json_t *seen, json_t *list)
{
    char path[PATH_MAX];
    autobuf struct buf text = BUF_INIT;
    if (ends_with(entry, ".md5sums") ||
        (size_t)snprintf(path, sizeof path, "%s/%s", dir, entry) >= sizeof path ||
        file_read("", path, MIB, &text) < 0)
        return;
    read_paragraphs(text.data, "Package: ", "Version: ", true, list);
}

static json_t *read_database(const struct package_query *q, const struct places *p)
{
    json_t *list = json_array();
    for (size_t i = 0; i < p->n; i++) {
        autobuf struct buf text = BUF_INIT;
        struct stat st;
        if (stat(p->path[i], &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode))
            each_entry(p->path[i], read_status_file, NULL, list);
        else if (q->manager == PACKAGES_RPM)
            rpm_read(p->path[i], list);
        else if (file_read("", p->path[i], MAX_DATABASE, &text) == 0)
            read_paragraphs(text.data, q->manager == PACKAGES_DPKG ? "Package: " : "P:",
                            q->manager == PACKAGES_DPKG ? "Version: " : "V:",
                            q->manager == PACKAGES_DPKG, list);
    }
    return sorted(list);
}

/* --- the answer ------------------------------------------------------------------------------- */

int packages_read(const struct package_query *q, struct package_cache *c, struct abx_error *err)
{
    struct places p = {0};
    find_places(q, &p);
    autofree char *stamp = make_stamp(q, &p);
    if (stamp && c->stamp && strcmp(stamp, c->stamp) == 0) {
        places_done(&p);
        return 0;
    }
    json_t *list = q->manager == PACKAGES_PIP   ? read_pip(&p)
                   : q->manager == PACKAGES_NPM ? read_npm(q, &p)
                                                : read_database(q, &p);
    places_done(&p);
    autojson json_t *answer =
        json_pack("{s:s, s:o}", "manager", names[q->manager], "packages", list);
    if (q->manager == PACKAGES_NPM)
        json_object_set_new(answer, "scope", json_string(q->global ? "global" : "local"));
    struct buf text = BUF_INIT;
    if (answer)
        json_write(&text, answer);
    size_t len;
    char *json = answer ? buf_take(&text, &len) : NULL;
    if (!json || !stamp) {
        free(json);
        return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
    }
    package_cache_done(c);
    *c = (struct package_cache){.json = json, .len = len, .stamp = take_ptr(stamp)};
    return 0;
}
