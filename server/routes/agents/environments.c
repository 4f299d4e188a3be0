/* Environments (a bound directory plus variables), their files, templates, and uploaded files.
 * Files are written beneath the workspace's descriptor without following links; each also passes
 * the policy's path guard. */
#include "routes/agents/common.h"
#include "routes/agents/multipart.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/num.h"

#include <nettle/sha1.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES 100
#define MAX_LISTED 10000
#define MAX_DEPTH 20
#define MAX_VALUE_BYTES (128 * KIB - 256) /* what execve(2) takes as one string, with its name */
#define OWNER_BYTES ((int64_t)256 * MIB)

/* --- variables
 * -------------------------------------------------------------------------------------------- */

static bool env_refused(const char *name)
{
    static const char *const exact[] = {"PATH",
                                        "HOME",
                                        "USER",
                                        "LOGNAME",
                                        "SHELL",
                                        "IFS",
                                        "ENV",
                                        "BASH_ENV",
                                        "PS4",
                                        "PROMPT_COMMAND",
                                        "TMPDIR",
                                        "TERM",
                                        "LANG",
                                        "LANGUAGE",
                                        "TZ",
                                        "NODE_OPTIONS",
                                        "NODE_PATH",
                                        "NODE_EXTRA_CA_CERTS",
                                        "NPM_CONFIG_REGISTRY",
                                        "PYTHONPATH",
                                        "PYTHONHOME",
                                        "PYTHONSTARTUP",
                                        "PYTHONUSERBASE",
                                        "RUBYOPT",
                                        "PERL5OPT",
                                        "SSL_CERT_FILE",
                                        "SSL_CERT_DIR",
                                        "REQUESTS_CA_BUNDLE",
                                        "CURL_CA_BUNDLE"};
    static const char *const prefixes[] = {"LD_",        "DYLD_",       "CODEX_",  "QWEN_",
                                           "ABX_",       "GIT_",        "XDG_",    "LC_",
                                           "BASH_FUNC_", "NPM_CONFIG_", "OPENAI_", "ANTHROPIC_"};
    for (size_t i = 0; i < ARRAY_LEN(exact); i++)
        if (strcasecmp(name, exact[i]) == 0)
            return true;
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
        if (strncasecmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    size_t n = strlen(name);
    return n >= 6 && strcasecmp(name + n - 6, "_PROXY") == 0;
}

static int read_env(struct call *c, const json_t *v, const char *prefix, json_t **ret)
{
    char p[190];
    *ret = NULL;
    if (!v || json_is_null(v))
        return 0;
    snprintf(p, sizeof(p), "%senv", prefix);
    if (!json_is_object(v) || json_object_size(v) > 64)
        return ag_invalid(c->e, p, "%s: an object of at most 64 variables", p);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)v, name, value)
    {
        bool good = (isalpha((unsigned char)*name) || *name == '_') && strlen(name) <= 128;
        for (const char *s = name; good && *s; s++)
            good = isalnum((unsigned char)*s) || *s == '_';
        if (!good)
            return ag_invalid(c->e, p, "%s: names are 1 to 128 letters, digits and _", p);
        char at[190];
        snprintf(at, sizeof(at), "%senv.%.130s", prefix, name);
        if (env_refused(name))
            return ag_invalid(c->e, at, "%s: not a name that may be set", at);
        if (!json_is_string(value) || text_chars(value) > 32768 ||
            json_string_length(value) > MAX_VALUE_BYTES ||
            strlen(json_string_value(value)) != json_string_length(value))
            return ag_invalid(c->e, at, "%s: a string without NUL of at most 32768 characters", at);
    }
    *ret = json_deep_copy(v);
    return 0;
}

static bool nothing(const json_t *v)
{
    return !v || json_is_null(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v));
}

static int refuse_hosted(struct call *c, const json_t *o, const char *prefix)
{
    static const char *const fields[] = {
        "network", "packages", "setup_commands", "plugins",
        "skills",  "desktop",  "container_size", "capability_directories"};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        char p[64];
        snprintf(p, sizeof(p), "%s%s", prefix, fields[i]);
        const json_t *v = json_object_get(o, fields[i]), *on = json_object_get(v, "enabled");
        bool off = strcmp(fields[i], "desktop") == 0 && json_is_object(v) &&
                   (!on || json_is_null(on) || json_is_false(on));
        if (!off && !nothing(v))
            return ag_invalid(c->e, p, "%s: only a hosted environment has it", p);
    }
    return 0;
}

/* --- one file
 * ---------------------------------------------------------------------------------------------- */

struct file {
    char path[1100];     /* relative to the workspace */
    const char *file_id; /* or NULL */
    struct buf data;
};

static void file_done(struct file *f) { buf_done(&f->data); }

static char *blob_path(struct call *c, const char *id)
{
    struct buf path = BUF_INIT;
    buf_addf(&path, "%s/files/%s", c->ag->set.state_dir, id);
    return buf_take(&path, NULL);
}

static int read_blob(struct call *c, const char *id, struct buf *out)
{
    autofree char *path = blob_path(c, id);
    autoclose int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    char chunk[65536];
    ssize_t n = fd < 0 ? -1 : 0;
    while (fd >= 0 && (n = read(fd, chunk, sizeof(chunk))) > 0)
        buf_add(out, chunk, (size_t)n);
    return n < 0 || out->failed ? -1 : 0;
}

static int path_refused(struct call *c, const char *param, const char *why)
{
    return ag_fail(c->e, 400, "agents.path_refused", param, "%s: %s", param, why);
}

/* Text rules of a path; relative form through ret. */
static int file_path(struct call *c, const json_t *v, const char *param, char *ret, size_t size)
{
    static const char *const first_parts[] = {".git",  ".codex", ".claude", ".cursor",
                                              ".qwen", ".qoder", ".ssh"};
    static const char *const last_parts[] = {
        ".mcp.json", "AGENTS.md",     "QWEN.md",     "CLAUDE.md",    "GEMINI.md",
        ".bashrc",   ".bash_profile", ".bash_login", ".bash_logout", ".profile",
        ".zshrc",    ".zprofile",     ".zshenv",     ".envrc"};
    const char *s = json_string_value(v);
    if (!s || *s != '/' || strlen(s) != json_string_length(v) || json_string_length(v) > 1024)
        return ag_invalid(c->e, param, "%s: an absolute path of at most 1024 bytes", param);
    struct buf out = BUF_INIT;
    size_t parts = 0;
    const char *last = "";
    bool bad = false, first_bad = false;
    autofree char *copy = strdup(s);
    for (char *save = NULL, *part = copy ? strtok_r(copy, "/", &save) : NULL; part;
         part = strtok_r(NULL, "/", &save)) {
        if (strcmp(part, ".") == 0)
            continue;
        bad = bad || strcmp(part, "..") == 0 || strlen(part) > 255;
        if (!parts && !*last && strcmp(part, "workspace") == 0) {
            last = part; /* the leading /workspace is the workspace itself */
            continue;
        }
        if (parts++ == 0)
            for (size_t i = 0; i < ARRAY_LEN(first_parts); i++)
                first_bad = first_bad || strcmp(part, first_parts[i]) == 0;
        buf_addf(&out, "%s%s", out.len ? "/" : "", part);
        last = part;
    }
    int rc = 0;
    if (bad || !parts)
        rc = ag_invalid(c->e, param, "%s: not the path of a file", param);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(last_parts); i++)
        if (strcasecmp(last, last_parts[i]) == 0)
            rc = path_refused(c, param, "this name configures an agent or a shell");
    if (rc == 0 && first_bad)
        rc = path_refused(c, param, "this directory configures an agent or a tool");
    if (rc == 0)
        snprintf(ret, size, "%s", buf_str(&out) ? out.data : "");
    buf_done(&out);
    return rc;
}

/* One entry of "files", or the body of a file's create (prefix ""). load: the bytes of a file id,
 * too. */
static int read_file_spec(struct call *c, const json_t *o, const char *prefix, bool load,
                          struct file *f)
{
    char p[64];
#define PARAM(field) (snprintf(p, sizeof(p), "%s%s", prefix, field), p)
    if (!json_is_object(o)) { /* an entry of a list: its name is the prefix without the dot */
        snprintf(p, sizeof(p), "%.*s", (int)strlen(prefix) - 1, prefix);
        return ag_invalid(c->e, p, "%s: an object", p);
    }
    const char *type = json_string_value(json_object_get(o, "type"));
    if (!type || (strcmp(type, "inline") != 0 && strcmp(type, "file_id") != 0))
        return ag_invalid(c->e, PARAM("type"), "%s: inline or file_id", p);
    bool is_inline = strcmp(type, "inline") == 0;
    if (only_keys(c->e, o, prefix, "type path data file_id") < 0 ||
        file_path(c, json_object_get(o, "path"), PARAM("path"), f->path, sizeof(f->path)) < 0)
        return -1;
    if (is_inline) {
        const json_t *data = json_object_get(o, "data");
        if (!json_is_string(data) ||
            base64_decode(&f->data, json_string_value(data), json_string_length(data)) < 0)
            return ag_invalid(c->e, PARAM("data"), "%s: base64", p);
    } else {
        f->file_id = json_string_value(json_object_get(o, "file_id"));
        sqlite3_stmt *s = store_stmt(
            c->ag->store, "SELECT 1 FROM objects WHERE id = ? AND kind = 'file' AND owner = ?",
            "ss", f->file_id ? f->file_id : "", call_owner(c));
        bool found = s && sqlite3_step(s) == SQLITE_ROW;
        if (s)
            sqlite3_reset(s);
        if (!found || (load && read_blob(c, f->file_id, &f->data) < 0))
            return ag_fail(c->e, 400, "agents.file_not_found", PARAM("file_id"), "%s: no such file",
                           p);
    }
    if ((int64_t)f->data.len > c->ag->set.max_file_bytes)
        return ag_fail(c->e, 400, "agents.file_too_large", PARAM(is_inline ? "data" : "file_id"),
                       "%s: over %lld bytes", p, (long long)c->ag->set.max_file_bytes);
    return 0;
#undef PARAM
}

static json_t *shown_file(const struct file *f, bool with_id)
{
    char path[1200];
    snprintf(path, sizeof(path), "/workspace/%s", f->path);
    json_t *o = json_object();
    if (with_id) {
        uint8_t digest[SHA1_DIGEST_SIZE];
        char hex[2 * SHA1_DIGEST_SIZE + 1], id[40];
        struct sha1_ctx ctx;
        sha1_init(&ctx);
        sha1_update(&ctx, strlen(f->path), (const uint8_t *)f->path);
        sha1_digest(&ctx, sizeof(digest), digest);
        hex_encode(digest, sizeof(digest), hex);
        snprintf(id, sizeof(id), "envfile_%.20s", hex);
        json_object_set_new(o, "id", json_string(id));
    }
    json_object_set_new(o, "type", json_string(f->file_id && !with_id ? "file_id" : "inline"));
    if (f->file_id && !with_id)
        json_object_set_new(o, "file_id", json_string(f->file_id));
    json_object_set_new(o, "path", json_text(path));
    if (!f->file_id || with_id)
        json_object_set_new(o, "size_bytes", json_integer((json_int_t)f->data.len));
    return o;
}

/* --- writing
 * ------------------------------------------------------------------------------------------------
 */

struct written { /* to be taken back when a later one fails */
    char path[1100];
    bool fresh;
};

/* Walks to the parent of rel beneath root, making directories. */
static int open_parent(struct call *c, int root, const char *rel, const char *param,
                       const char **ret_name)
{
    int at = fcntl(root, F_DUPFD_CLOEXEC, 0);
    for (;;) {
        const char *slash = strchr(rel, '/');
        if (!slash) {
            *ret_name = rel;
            return at;
        }
        char part[256];
        snprintf(part, sizeof(part), "%.*s", (int)(slash - rel), rel);
        int next = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0 && errno == ENOENT) {
            if (mkdirat(at, part, 0755) == 0 || errno == EEXIST)
                next = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (next >= 0)
                (void)fchmod(next, 0755); /* whatever the umask is */
        }
        int sys = errno;
        close(at);
        if (next < 0) {
            if (sys == ENOTDIR || sys == ELOOP)
                path_refused(c, param, "a link or something that is no directory is on the way");
            else
                ag_fail(c->e, 400, "agents.workspace_error", param, "%s: %s", param, strerror(sys));
            return -1;
        }
        at = next;
        rel = slash + 1;
    }
}

static int same_bytes(int fd, const struct buf *data)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (size_t)st.st_size != data->len)
        return 0;
    char chunk[16384];
    size_t at = 0;
    ssize_t n;
    while ((n = read(fd, chunk, sizeof(chunk))) > 0) {
        if (at + (size_t)n > data->len || memcmp(data->data + at, chunk, (size_t)n) != 0)
            return 0;
        at += (size_t)n;
    }
    return n == 0 && at == data->len;
}

static int write_file(struct call *c, int root, const char *root_path, const struct file *f,
                      const char *param, bool *ret_fresh)
{
    /* the policy's own rules about this path */
    autobuf struct buf full = BUF_INIT;
    struct arena arena;
    struct guard_path gp;
    *ret_fresh = false;
    buf_addf(&full, "%s/%s", root_path, f->path);
    arena_init(&arena);
    int rc = buf_str(&full) ? guard_check(req_guard(c->req), full.data, full.len, NULL, OP_WRITE,
                                          &arena, &gp, c->err)
                            : abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    arena_done(&arena);
    if (rc < 0)
        return -1;
    const char *name = NULL;
    autoclose int parent = open_parent(c, root, f->path, param, &name);
    if (parent < 0)
        return -1;
    autoclose int fd =
        openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) {
        autoclose int have = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (have < 0 && errno == ELOOP)
            return path_refused(c, param, "it is a link");
        if (have >= 0 && same_bytes(have, &f->data))
            return 0;
        return ag_fail(c->e, 400, "agents.file_exists", param, "%s: exists with other contents",
                       param);
    }
    if (fd < 0)
        return ag_fail(c->e, 400, "agents.workspace_error", param, "%s: %s", param,
                       strerror(errno));
    *ret_fresh = true;
    (void)fchmod(fd, 0644); /* whatever the umask is */
    for (size_t at = 0; at < f->data.len;) {
        ssize_t n = write(fd, f->data.data + at, f->data.len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int sys = errno;
            (void)unlinkat(parent, name, 0);
            *ret_fresh = false;
            return ag_fail(c->e, sys == ENOSPC || sys == EDQUOT ? 507 : 400,
                           "agents.workspace_error", param, "%s: %s", param, strerror(sys));
        }
        at += (size_t)n;
    }
    return 0;
}

static void take_back(int root, struct written *w, size_t n)
{
    while (n--)
        if (w[n].fresh)
            (void)unlinkat(root, w[n].path, 0); /* written just now; directories stay */
}

/* --- environments
 * -------------------------------------------------------------------------------------------- */

static json_t *shown_env(const char *id, const json_t *doc, double created)
{
    return label(json_pack("{s:s, s:s, s:s, s:s, s:O, s:[], s:[], s:[], s:O, s:O, s:o}", "id", id,
                           "object", "agent.environment", "type", "self_hosted", "status", "ready",
                           "files", json_object_get(doc, "files"), "plugins", "skills",
                           "capability_directories", "workspace_directory",
                           json_object_get(doc, "workspace_directory"), "vault_ids",
                           json_object_get(doc, "vault_ids"), "created_at", stamp_json(created)),
                 "local_state",
                 json_is_true(json_object_get(doc, "_converted"))
                     ? "local_workspace nothing_provisioned hosted_request_converted"
                     : "local_workspace nothing_provisioned",
                 NULL);
}

static json_t *env_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    autojson json_t *doc = store_json(s, 1);
    return shown_env(store_text(s, 0), doc, sqlite3_column_double(s, 2));
}

/* Opens the workspace, made if missing. */
static int open_workspace(struct call *c, const char *path, const char *param, int *ret_fd,
                          char real[4096])
{
    struct arena arena;
    struct guard_path gp;
    struct abx_error err;
    arena_init(&arena);
    int fd = -1;
    int rc = guard_open(req_guard(c->req), path, strlen(path), OP_WRITE, O_RDONLY | O_DIRECTORY, 0,
                        &arena, &gp, &fd, &err);
    if (rc < 0 && err.sys == ENOENT) {
        int parent = -1;
        rc = guard_open_parent(req_guard(c->req), path, strlen(path), OP_WRITE, true, &arena, &gp,
                               &parent, &err);
        if (rc == 0) {
            if (mkdirat(parent, gp.name, 0777) < 0 && errno != EEXIST)
                rc = abx_fail_os(&err, errno, path);
            close(parent);
        }
        if (rc == 0)
            rc = guard_open(req_guard(c->req), path, strlen(path), OP_WRITE, O_RDONLY | O_DIRECTORY,
                            0, &arena, &gp, &fd, &err);
    }
    if (rc == 0) {
        snprintf(real, 4096, "%s", gp.resolved);
        *ret_fd = fd;
    } else if (err.status == 403) {
        *c->err = err;
    } else {
        ag_fail(c->e, 400, "agents.workspace_error", param, "workspace_directory: %s", err.message);
    }
    arena_done(&arena);
    return rc;
}

static int write_all(struct call *c, const char *workspace, struct file *files, size_t n,
                     const char *prefix, int root)
{
    struct written *w = calloc(n ? n : 1, sizeof(*w));
    size_t done = 0;
    int rc = w ? 0 : abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char param[64];
        snprintf(param, sizeof(param), "%sfiles[%zu].path", prefix, i);
        rc = write_file(c, root, workspace, &files[i], param, &w[i].fresh);
        snprintf(w[i].path, sizeof(w[i].path), "%s", files[i].path);
        done = i + 1;
    }
    if (rc < 0)
        take_back(root, w, done);
    free(w);
    return rc;
}

static int read_files(struct call *c, const json_t *v, const char *prefix, bool load,
                      struct file *files, size_t *n)
{
    if (!v || json_is_null(v))
        return 0;
    char p[64];
    snprintf(p, sizeof(p), "%sfiles", prefix);
    if (!json_is_array(v) || *n + json_array_size(v) > MAX_FILES)
        return ag_invalid(c->e, p, "%s: a list of at most 100", p);
    size_t i;
    json_t *o;
    json_array_foreach((json_t *)v, i, o)
    {
        snprintf(p, sizeof(p), "%sfiles[%zu].", prefix, i);
        int rc = read_file_spec(c, o, p, load, &files[(*n)++]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int create_env(struct call *c, struct file *files, json_t **ret)
{
    const json_t *body = call_body(c), *o = json_object_get(body, "environment"), *v;
    if (only_keys(c->e, body, "", "environment vault_ids") < 0)
        return -1;
    if (!json_is_object(o))
        return ag_invalid(c->e, "environment", "environment: an object");
    if (only_keys(c->e, o, "environment.",
                  "type workspace_directory env files environment_template_id network packages "
                  "setup_commands plugins "
                  "skills desktop container_size capability_directories") < 0 ||
        refuse_hosted(c, o, "environment.") < 0)
        return -1;
    v = json_object_get(o, "type");
    const char *type = json_is_string(v) ? json_string_value(v) : "self_hosted";
    bool hosted = strcmp(type, "openai_hosted") == 0;
    if ((v && !json_is_null(v) && !json_is_string(v)) ||
        (!hosted && strcmp(type, "self_hosted") != 0))
        return ag_invalid(c->e, "environment.type", "environment.type: self_hosted");
    if (hosted) {
        const char *key;
        json_t *value;
        json_object_foreach(
            (json_t *)o, key,
            value) if (strcmp(key, "type") != 0 &&
                       !nothing(
                           value)) return ag_invalid(c->e, "environment.type",
                                                     "environment.type: openai_hosted is taken as "
                                                     "self_hosted only with nothing beside it");
    }
    v = json_object_get(o, "workspace_directory");
    if (v && !json_is_null(v) && !json_is_string(v))
        return ag_invalid(c->e, "environment.workspace_directory",
                          "environment.workspace_directory: a string");
    autofree char *workspace =
        json_is_string(v) ? strndup(json_string_value(v), json_string_length(v))
                          : agents_default_workspace(c->ag, req_guard(c->req), "/workspace");
    if (!workspace)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    autojson json_t *env = NULL, *own = NULL, *vaults = json_array(), *shown = json_array();
    size_t n = 0;
    const json_t *template = json_object_get(o, "environment_template_id");
    if (template && !json_is_null(template)) {
        autojson json_t *doc = NULL;
        const char *id = json_string_value(template);
        if (!id)
            return ag_invalid(c->e, "environment.environment_template_id",
                              "environment.environment_template_id: the id of a template");
        if (object_get(c, "template", id, "environment.environment_template_id",
                       "environment template", &doc) < 0)
            return -1;
        env = json_deep_copy(json_object_get(doc, "_env"));
        size_t i;
        json_t *f;
        json_array_foreach(json_object_get(doc, "_files"), i, f)
        {
            struct file *t = &files[n];
            autofree char *blob = NULL;
            snprintf(t->path, sizeof(t->path), "%s", json_string_value(json_object_get(f, "path")));
            if (read_blob(c, json_string_value(json_object_get(f, "blob")), &t->data) < 0)
                return ag_fail(
                    c->e, 400, "agents.file_not_found", "environment.environment_template_id",
                    "environment.environment_template_id: a file of the template is gone");
            n++;
        }
    }
    if (read_env(c, json_object_get(o, "env"), "environment.", &own) < 0)
        return -1;
    if (own && env)
        json_object_update(env, own);
    const json_t *all_env = env ? env : own;
    if (read_vaults(c, json_object_get(body, "vault_ids"), vaults) < 0 ||
        check_workspace(c, workspace, strlen(workspace), "environment.workspace_directory", true) <
            0 ||
        read_files(c, json_object_get(o, "files"), "environment.", true, files, &n) < 0)
        return -1;
    char real[4096];
    autoclose int root = -1;
    if (open_workspace(c, workspace, "environment.workspace_directory", &root, real) < 0 ||
        write_all(c, real, files, n, "environment.", root) < 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        json_array_append_new(shown, shown_file(&files[i], true));
    autojson json_t *doc = json_pack("{s:O, s:s, s:O, s:O, s:b}", "files", shown,
                                     "workspace_directory", real, "vault_ids", vaults, "_env",
                                     all_env ? all_env : json_null(), "_converted", hosted);
    char id[AG_ID_MAX];
    agents_new_id("env_", id);
    double now = wall_seconds();
    if (object_insert(c, "environment", id, doc, now, 0) < 0)
        return -1;
    *ret = shown_env(id, doc, now);
    return 0;
}

int agents_environments_create(struct call *c)
{
    struct file *files = calloc(2 * MAX_FILES + 1, sizeof(*files));
    json_t *o = NULL;
    if (!files)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    store_lock(c->ag->store);
    int rc = create_env(c, files, &o);
    store_unlock(c->ag->store);
    for (size_t i = 0; i < 2 * MAX_FILES + 1; i++)
        file_done(&files[i]);
    free(files);
    return rc < 0 ? -1 : reply(c, o);
}

int agents_environments_list(struct call *c)
{
    static const struct list_sql sql =
        LIST_SQL("doc, created", "objects", "kind = ?2 AND owner = ?1");
    const char *type = req_query(c->req, "type", NULL);
    return reply_owned(c, &sql, ARG_S(type && strcmp(type, "self_hosted") != 0 ? "none" : "environment"), env_of_row);
}

static int get_env(struct call *c, json_t **ret_doc, double *ret_created)
{
    const char *id = call_param(c, "environment_id");
    store_lock(c->ag->store);
    sqlite3_stmt *s = store_stmt(
        c->ag->store,
        "SELECT doc, created FROM objects WHERE id = ? AND kind = 'environment' AND owner = ?",
        "ss", id, call_owner(c));
    bool found = s && sqlite3_step(s) == SQLITE_ROW;
    if (found) {
        *ret_doc = store_json(s, 0);
        *ret_created = sqlite3_column_double(s, 1);
    }
    if (s)
        sqlite3_reset(s);
    store_unlock(c->ag->store);
    return found ? 0 : ag_unknown(c->e, "environment_id", "environment", id);
}

int agents_environments_get(struct call *c)
{
    autojson json_t *doc = NULL;
    double created;
    if (get_env(c, &doc, &created) < 0)
        return -1;
    return reply(c, shown_env(call_param(c, "environment_id"), doc, created));
}

int agents_environment_files_create(struct call *c)
{
    autojson json_t *doc = NULL;
    double created;
    struct file *f = calloc(1, sizeof(*f));
    if (!f)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    int rc = get_env(c, &doc, &created);
    if (rc == 0) {
        store_lock(c->ag->store);
        rc = read_file_spec(c, call_body(c), "", true, f);
        store_unlock(c->ag->store);
    }
    char real[4096], path[1200];
    autoclose int root = -1;
    bool fresh;
    if (rc == 0)
        rc = open_workspace(c, json_string_value(json_object_get(doc, "workspace_directory")),
                            "environment_id", &root, real);
    if (rc == 0)
        rc = write_file(c, root, real, f, "path", &fresh);
    snprintf(path, sizeof(path), "/workspace/%s", f->path);
    size_t size = f->data.len;
    file_done(f);
    free(f);
    if (rc < 0)
        return -1;
    return reply(c, label(json_pack("{s:s, s:s, s:o, s:I}", "object", "agent.environment.file",
                                    "environment_id", call_param(c, "environment_id"), "path",
                                    json_text(path), "size_bytes", (json_int_t)size),
                          "local_state", "local_workspace no_overwrite", NULL));
}

/* --- listing files
 * -------------------------------------------------------------------------------------------- */

struct entry {
    char *path;
    int64_t size;
};

struct walk {
    struct entry *all;
    size_t n, cap;
};

static void walk_dir(struct walk *w, int fd, const char *prefix, int depth)
{
    static const char *const hidden[] = {".git",  ".codex", ".claude", ".cursor",
                                         ".qwen", ".qoder", ".ssh"};
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return;
    }
    struct dirent *e;
    while (w->n < MAX_LISTED && (e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        bool skip = false;
        for (size_t i = 0; !*prefix && i < ARRAY_LEN(hidden); i++)
            skip = skip || strcasecmp(e->d_name, hidden[i]) == 0;
        struct stat st;
        if (skip || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        struct buf path = BUF_INIT;
        buf_addf(&path, "%s%s%s", prefix, *prefix ? "/" : "", e->d_name);
        if (!buf_str(&path)) {
            buf_done(&path);
            continue;
        }
        if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH) {
            int sub = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (sub >= 0)
                walk_dir(w, sub, path.data, depth + 1);
            buf_done(&path);
        } else if (S_ISREG(st.st_mode)) {
            if (w->n == w->cap) {
                size_t cap = w->cap ? w->cap * 2 : 64;
                struct entry *more = realloc(w->all, cap * sizeof(*more));
                if (!more) {
                    buf_done(&path);
                    break;
                }
                w->all = more;
                w->cap = cap;
            }
            w->all[w->n++] = (struct entry){buf_take(&path, NULL), st.st_size};
        } else {
            buf_done(&path);
        }
    }
    closedir(d);
}

/* By path parts: a '/' sorts before every other byte. */
static int by_parts(const void *a, const void *b)
{
    const unsigned char *x = (const unsigned char *)((const struct entry *)a)->path;
    const unsigned char *y = (const unsigned char *)((const struct entry *)b)->path;
    while (*x && *x == *y)
        x++, y++;
    int cx = *x == '/' ? 1 : *x, cy = *y == '/' ? 1 : *y;
    return cx - cy;
}

int agents_environment_files_list(struct call *c)
{
    autojson json_t *doc = NULL;
    double created;
    struct page p;
    const char *id = call_param(c, "environment_id");
    if (get_env(c, &doc, &created) < 0 || page_read(c, &p) < 0)
        return -1;
    const char *under = req_query(c->req, "path", NULL), *token = req_query(c->req, "page", NULL);
    int64_t from = 0;
    if (under && (*under != '/' || has_dots(under)))
        return ag_invalid(c->e, "path", "path: an absolute prefix without ..");
    if (token && (token[0] != 'o' || !isdigit((unsigned char)token[1]) ||
                  num_parse(token + 1, 0, INT64_MAX, &from) < 0))
        return ag_invalid(c->e, "page", "page: the next of an earlier answer");
    if (under && strncmp(under, "/workspace", 10) == 0 && (under[10] == '/' || !under[10]))
        under += 10;
    while (under && *under == '/')
        under++;
    size_t under_len = under ? strlen(under) : 0;
    while (under_len && under[under_len - 1] == '/')
        under_len--;
    char real[4096];
    int root = -1;
    struct arena arena;
    struct guard_path gp;
    arena_init(&arena);
    const char *workspace = json_string_value(json_object_get(doc, "workspace_directory"));
    int rc = guard_open(req_guard(c->req), workspace, strlen(workspace), OP_READ,
                        O_RDONLY | O_DIRECTORY, 0, &arena, &gp, &root, c->err);
    arena_done(&arena);
    if (rc < 0) {
        if (c->err->status == 403)
            return -1;
        return ag_fail(c->e, 400, "agents.workspace_error", "environment_id",
                       "the workspace can't be read: %s", c->err->message);
    }
    (void)real;
    struct walk w = {0};
    walk_dir(&w, root, "", 0);
    if (w.n)
        qsort(w.all, w.n, sizeof(*w.all), by_parts);
    json_t *list = json_array();
    int64_t at = 0, last = -1;
    bool more = false;
    for (size_t i = 0; i < w.n; i++) {
        const struct entry *e = &w.all[p.asc ? i : w.n - 1 - i];
        if (under_len && (strncmp(e->path, under, under_len) != 0 ||
                          (e->path[under_len] && e->path[under_len] != '/')))
            continue;
        if (at++ < from)
            continue;
        if ((int64_t)json_array_size(list) == p.limit) {
            more = true;
            break;
        }
        last = at;
        autobuf struct buf shown = BUF_INIT;
        buf_addf(&shown, "/workspace/%s", e->path);
        json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:I}", "object",
                                              "agent.environment.file", "environment_id", id,
                                              "path", json_bytes(shown.data, shown.len),
                                              "size_bytes", (json_int_t)e->size));
    }
    for (size_t i = 0; i < w.n; i++)
        free(w.all[i].path);
    free(w.all);
    char next[32];
    snprintf(next, sizeof(next), "o%lld", (long long)last);
    return reply(c,
                 label(json_pack("{s:s, s:o, s:b, s:o}", "object", "list", "data", list, "has_more",
                                 more, "next", more ? json_string(next) : json_null()),
                       "local_state", "local_workspace", NULL));
}

/* --- templates
 * ---------------------------------------------------------------------------------------------------
 */

static json_t *shown_template(const char *id, const json_t *doc, double created, double updated)
{
    return label(json_pack("{s:s, s:s, s:o, s:o, s:O, s:O, s:[], s:{s:s, s:[]}, s:{s:[], s:[], "
                           "s:[]}, s:[], s:[], s:n}",
                           "id", id, "object", "agent.environment.template", "created_at",
                           stamp_json(created), "updated_at", stamp_json(updated), "name",
                           json_object_get(doc, "name"), "files", json_object_get(doc, "files"),
                           "capability_directories", "network", "access", "enabled",
                           "allowed_domains", "packages", "npm", "python", "system", "plugins",
                           "skills", "desktop"),
                 "local_state", "not_hosted_template applies_env_and_files_only", NULL);
}

static json_t *template_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    autojson json_t *doc = store_json(s, 1);
    return shown_template(store_text(s, 0), doc, sqlite3_column_double(s, 2),
                          sqlite3_column_double(s, 3));
}

static int save_blob(struct call *c, const char *id, const void *data, size_t len)
{
    autobuf struct buf dir = BUF_INIT;
    buf_addf(&dir, "%s/files", c->ag->set.state_dir);
    if (buf_str(&dir))
        (void)mkdir(dir.data, 0700);
    autofree char *path = blob_path(c, id);
    autoclose int fd = path ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return ag_fail(c->e, 500, "server_error", NULL, "a file can't be kept: %s",
                       strerror(errno));
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, (const char *)data + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int sys = errno;
            (void)unlink(path);
            return ag_fail(c->e, sys == ENOSPC || sys == EDQUOT ? 507 : 500, "server_error", NULL,
                           "a file can't be kept: %s", strerror(sys));
        }
        at += (size_t)n;
    }
    return 0;
}

static void drop_blobs(struct call *c, const json_t *files)
{
    size_t i;
    json_t *f;
    json_array_foreach((json_t *)files, i, f)
    {
        autofree char *path = blob_path(c, json_string_value(json_object_get(f, "blob")));
        if (path)
            (void)unlink(path); /* nobody names it any more */
    }
}

/* Fields given in the body go into doc. */
static int fill_template(struct call *c, json_t *doc)
{
    const json_t *body = call_body(c), *v = json_object_get(body, "name");
    if (only_keys(
            c->e, body, "",
            "name env files network packages setup_commands plugins skills desktop container_size "
            "capability_directories") < 0 ||
        refuse_hosted(c, body, "") < 0)
        return -1;
    if (v && !json_is_null(v) && (!json_is_string(v) || text_chars(v) > 256))
        return ag_invalid(c->e, "name", "name: a string of at most 256 characters");
    if (v)
        json_object_set(doc, "name", (json_t *)v);
    json_t *env = NULL;
    if (json_object_get(body, "env")) {
        if (read_env(c, json_object_get(body, "env"), "", &env) < 0)
            return -1;
        json_object_set_new(doc, "_env", env ? env : json_object());
    }
    if (!json_object_get(body, "files"))
        return 0;
    struct file *files = calloc(MAX_FILES + 1, sizeof(*files));
    if (!files)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    size_t n = 0;
    int rc = read_files(c, json_object_get(body, "files"), "", true, files, &n);
    autojson json_t *kept = json_array(), *shown = json_array();
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char blob[AG_ID_MAX];
        agents_new_id("tmplfile-", blob);
        rc = save_blob(c, blob, files[i].data.data, files[i].data.len);
        if (rc == 0) {
            json_array_append_new(kept,
                                  json_pack("{s:s, s:s}", "path", files[i].path, "blob", blob));
            json_array_append_new(shown, shown_file(&files[i], false));
        }
    }
    if (rc == 0) {
        drop_blobs(c, json_object_get(doc, "_files"));
        json_object_set(doc, "_files", kept);
        json_object_set(doc, "files", shown);
    } else {
        drop_blobs(c, kept);
    }
    for (size_t i = 0; i <= MAX_FILES; i++)
        file_done(&files[i]);
    free(files);
    return rc;
}

int agents_environment_templates_create(struct call *c)
{
    autojson json_t *doc = json_pack("{s:n, s:{}, s:[], s:[]}", "name", "_env", "_files", "files");
    char id[AG_ID_MAX];
    agents_new_id("envtmpl_", id);
    double now = wall_seconds();
    store_lock(c->ag->store);
    int rc = fill_template(c, doc);
    if (rc == 0 && (rc = object_insert(c, "template", id, doc, now, 0)) < 0)
        drop_blobs(c, json_object_get(doc, "_files"));
    store_unlock(c->ag->store);
    return rc < 0 ? -1 : reply(c, shown_template(id, doc, now, now));
}

int agents_environment_templates_list(struct call *c)
{
    static const struct list_sql sql =
        LIST_SQL("doc, created, updated", "objects", "kind = 'template' AND owner = ?1");
    return reply_owned(c, &sql, ARG_I(0), template_of_row);
}

static json_t *get_template(struct call *c, const char *id, json_t **ret_doc)
{
    json_t *o = NULL;
    sqlite3_stmt *s = store_stmt(c->ag->store,
                                 "SELECT id, doc, created, updated FROM objects WHERE id = ? AND "
                                 "kind = 'template' AND owner = ?",
                                 "ss", id, call_owner(c));
    if (s && sqlite3_step(s) == SQLITE_ROW) {
        o = template_of_row(c, s, NULL);
        if (ret_doc)
            *ret_doc = store_json(s, 1);
    }
    if (s)
        sqlite3_reset(s);
    if (!o)
        ag_unknown(c->e, "environment_template_id", "environment template", id);
    return o;
}

int agents_environment_templates_get(struct call *c)
{
    store_lock(c->ag->store);
    json_t *o = get_template(c, call_param(c, "environment_template_id"), NULL);
    store_unlock(c->ag->store);
    return o ? reply(c, o) : -1;
}

int agents_environment_templates_update(struct call *c)
{
    const char *id = call_param(c, "environment_template_id");
    autojson json_t *doc = NULL;
    json_t *o = NULL;
    store_lock(c->ag->store);
    autojson json_t *was = get_template(c, id, &doc);
    if (was && fill_template(c, doc) == 0 && object_update(c, id, doc, wall_seconds()) == 0)
        o = get_template(c, id, NULL);
    store_unlock(c->ag->store);
    return o ? reply(c, o) : -1;
}

int agents_environment_templates_delete(struct call *c)
{
    const char *id = call_param(c, "environment_template_id");
    autojson json_t *doc = NULL;
    store_lock(c->ag->store);
    autojson json_t *was = get_template(c, id, &doc);
    int rc = was ? object_delete(c, id) : -1;
    if (rc == 0)
        drop_blobs(c, json_object_get(doc, "_files"));
    store_unlock(c->ag->store);
    return rc < 0 ? -1
                  : reply(c, label(json_pack("{s:s, s:s, s:b}", "id", id, "object",
                                             "agent.environment.template.deleted", "deleted", 1),
                                   "local_state", "not_hosted_template applies_env_and_files_only",
                                   NULL));
}

/* --- uploaded files
 * ------------------------------------------------------------------------------------------------
 */

static int create_file(struct call *c, const json_t *body, const struct buf *raw)
{
    const json_t *purpose = json_object_get(body, "purpose");
    const json_t *data = json_object_get(body, "data"), *file = json_object_get(body, "file");
    const json_t *name = json_object_get(body, "filename");
    if (only_keys(c->e, body, "", "purpose data file filename") < 0)
        return -1;
    if (!json_is_string(purpose) || strcmp(json_string_value(purpose), "user_data") != 0)
        return ag_invalid(c->e, "purpose", "purpose: user_data");
    if (name && !json_is_null(name) && (!json_is_string(name) || text_chars(name) > 255))
        return ag_invalid(c->e, "filename", "filename: a string of at most 255 characters");
    autobuf struct buf bytes = BUF_INIT;
    if (raw) {
        buf_add(&bytes, raw->data ? raw->data : "", raw->len);
    } else {
        const json_t *text = data ? data : file;
        if (!json_is_string(text) ||
            base64_decode(&bytes, json_string_value(text), json_string_length(text)) < 0)
            return ag_invalid(c->e, file && !data ? "file" : "data", "%s: base64",
                              file && !data ? "file" : "data");
    }
    if (bytes.failed)
        return abx_fail(c->err, E_NO_MEMORY, 0, "out of memory");
    if ((int64_t)bytes.len > c->ag->set.max_file_bytes)
        return ag_fail(c->e, 400, "agents.file_too_large", "file", "file: over %lld bytes",
                       (long long)c->ag->set.max_file_bytes);
    char id[AG_ID_MAX];
    autojson json_t *fallback = json_string("upload");
    const json_t *filename = json_is_string(name) && json_string_length(name) ? name : fallback;
    agents_new_id("file-", id);
    double now = wall_seconds();
    json_t *o = json_pack("{s:s, s:s, s:I, s:o, s:O, s:s, s:s, s:n}", "id", id, "object", "file",
                          "bytes", (json_int_t)bytes.len, "created_at", stamp_json(now), "filename",
                          filename, "purpose", "user_data", "status", "processed", "expires_at");
    store_lock(c->ag->store);
    sqlite3_stmt *s =
        store_stmt(c->ag->store,
                   "SELECT coalesce(sum(size), 0) FROM objects WHERE kind = 'file' AND owner = ?",
                   "s", call_owner(c));
    int64_t used = s && sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    if (s)
        sqlite3_reset(s);
    int rc = used + (int64_t)bytes.len > OWNER_BYTES
                 ? ag_fail(c->e, 400, "agents.limit_exceeded", "file", "file: over 256 MiB in all")
                 : save_blob(c, id, bytes.data ? bytes.data : "", bytes.len);
    if (rc == 0)
        rc = object_insert(c, "file", id, o, now, (int64_t)bytes.len);
    store_unlock(c->ag->store);
    if (rc < 0) {
        json_decref(o);
        return -1;
    }
    return reply(c, label(o, "local_state", "local_blob", NULL));
}

int agents_files_create(struct call *c)
{
    const char *type = req_content_type(c->req);
    while (*type == ' ' || *type == '\t')
        type++;
    if (strncasecmp(type, "multipart/form-data", 19) != 0)
        return create_file(c, call_body(c), NULL);
    size_t len = 0;
    const char *text = req_body_text(c->req, &len);
    struct multipart m;
    int rc = multipart_parse(type, text ? text : "", text ? len : 0, &m, c->err);
    if (rc == 0)
        rc = create_file(c, m.fields, m.has_file ? &m.file : NULL);
    multipart_done(&m);
    return rc;
}
