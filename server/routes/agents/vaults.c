/* Vaults and credentials: memory only, and no form of a secret is ever answered. */
#include "routes/agents/common.h"

#include "base/crypto.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static json_t *vault_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    autojson json_t *doc = store_json(s, 1);
    return label(json_pack("{s:s, s:s, s:o, s:O, s:O}", "id", store_text(s, 0), "object", "vault",
                           "created_at", stamp_json(sqlite3_column_double(s, 2)), "metadata",
                           json_object_get(doc, "metadata"), "name", json_object_get(doc, "name")),
                 "local_state", "memory_only", NULL);
}

static int read_name(struct call *c, const json_t *body, bool required, json_t **ret)
{
    const json_t *v = json_object_get(body, "name");
    *ret = NULL;
    if (!required && (!v || json_is_null(v)))
        return 0;
    const char *s = json_string_value(v);
    while (s && isspace((unsigned char)*s))
        s++;
    size_t n = s ? strlen(s) : 0;
    while (n && isspace((unsigned char)s[n - 1]))
        n--;
    if (n < 1 || n > 256)
        return ag_invalid(c->e, "name", "name: 1 to 256 bytes");
    *ret = json_stringn(s, n);
    return 0;
}

static json_t *get_vault(struct call *c, const char *id)
{
    json_t *o = NULL;
    sqlite3_stmt *s = store_stmt(
        c->ag->store, "SELECT id, doc, created FROM mem.vaults WHERE id = ? AND owner = ?", "ss",
        id, call_owner(c));
    if (s && sqlite3_step(s) == SQLITE_ROW)
        o = vault_of_row(c, s, NULL);
    if (s)
        sqlite3_reset(s);
    if (!o)
        ag_unknown(c->e, "vault_id", "vault", id);
    return o;
}

int agents_vaults_create(struct call *c)
{
    const json_t *body = call_body(c);
    json_t *name = NULL, *metadata = NULL, *o = NULL;
    char id[AG_ID_MAX];
    if (only_keys(c->e, body, "", "name metadata") < 0 || read_name(c, body, false, &name) < 0)
        return -1;
    if (read_metadata(c->e, json_object_get(body, "metadata"), "metadata", &metadata) < 0) {
        json_decref(name);
        return -1;
    }
    autojson json_t *doc =
        json_pack("{s:o, s:o}", "name", name ? name : json_null(), "metadata", metadata);
    agents_new_id("vlt_", id);
    store_lock(c->ag->store);
    sqlite3_stmt *s = store_stmt(c->ag->store, "SELECT count(*) FROM mem.vaults WHERE owner = ?",
                                 "s", call_owner(c));
    int64_t n = s && sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    if (s)
        sqlite3_reset(s);
    int rc = n >= c->ag->set.max_vaults
                 ? ag_fail(c->e, 400, "agents.limit_exceeded", NULL, "at most %lld vaults",
                           (long long)c->ag->set.max_vaults)
                 : 0;
    if (rc == 0 && store_exec(c->ag->store, c->err,
                              "INSERT INTO mem.vaults(id, owner, doc, created) VALUES(?,?,?,?)",
                              "ssjd", id, call_owner(c), doc, wall_seconds()) < 0)
        rc = ag_store_fail(c->e, c->err);
    if (rc == 0)
        o = get_vault(c, id);
    store_unlock(c->ag->store);
    return o ? reply(c, o) : -1;
}

/* metadata[KEY]=VALUE and status of a query, applied to a whole list. */
struct filter {
    const json_t *metadata;
    bool fits;
};

static void match(void *data, const char *name, const char *value)
{
    struct filter *f = data;
    size_t n = strlen(name);
    if (!*value || strncmp(name, "metadata[", 9) != 0 || name[n - 1] != ']')
        return;
    char key[80];
    snprintf(key, sizeof(key), "%.*s", (int)(n - 10 < 79 ? n - 10 : 79), name + 9);
    const char *have = json_string_value(json_object_get(f->metadata, key));
    if (!have || strcmp(have, value) != 0)
        f->fits = false;
}

static int filtered(struct call *c, const struct page *p, json_t *all, json_t **ret)
{
    autojson json_t *some = json_array();
    const char *status = req_query(c->req, "status", NULL);
    size_t i;
    json_t *o;
    json_array_foreach(all, i, o)
    {
        struct filter f = {.metadata = json_object_get(o, "metadata"),
                           .fits = !status || strcmp(status, "active") == 0};
        req_each_query(c->req, match, &f);
        if (f.fits)
            json_array_append(some, o);
    }
    return list_array(c, p, some, ret);
}

int agents_vaults_list(struct call *c)
{
    struct page p;
    json_t *list = NULL;
    autojson json_t *all = json_array();
    if (page_read(c, &p) < 0)
        return -1;
    store_lock(c->ag->store);
    sqlite3_stmt *s = store_stmt(
        c->ag->store, "SELECT id, doc, created FROM mem.vaults WHERE owner = ? ORDER BY rid", "s",
        call_owner(c));
    while (s && sqlite3_step(s) == SQLITE_ROW)
        json_array_append_new(all, vault_of_row(c, s, NULL));
    if (s)
        sqlite3_reset(s);
    store_unlock(c->ag->store);
    return filtered(c, &p, all, &list) < 0 ? -1 : reply(c, list);
}

int agents_vaults_get(struct call *c)
{
    store_lock(c->ag->store);
    json_t *o = get_vault(c, call_param(c, "vault_id"));
    store_unlock(c->ag->store);
    return o ? reply(c, o) : -1;
}

int agents_vaults_update(struct call *c)
{
    const char *id = call_param(c, "vault_id");
    const json_t *body = call_body(c);
    json_t *o = NULL, *name = NULL, *metadata = NULL;
    store_lock(c->ag->store);
    autojson json_t *was = get_vault(c, id);
    int rc = was ? only_keys(c->e, body, "", "name metadata") : -1;
    if (rc == 0)
        rc = read_name(
            c, body, json_object_get(body, "name") && !json_is_null(json_object_get(body, "name")),
            &name);
    if (rc == 0 && json_object_get(body, "metadata"))
        rc = read_metadata(c->e, json_object_get(body, "metadata"), "metadata", &metadata);
    if (rc == 0) {
        bool cleared = json_is_null(json_object_get(body, "name"));
        autojson json_t *doc =
            json_pack("{s:O, s:O}", "name",
                      name      ? name
                      : cleared ? json_null()
                                : json_object_get(was, "name"),
                      "metadata", metadata ? metadata : json_object_get(was, "metadata"));
        if (store_exec(c->ag->store, c->err, "UPDATE mem.vaults SET doc = ? WHERE id = ?", "js",
                       doc, id) < 0)
            ag_store_fail(c->e, c->err);
        else
            o = get_vault(c, id);
    }
    store_unlock(c->ag->store);
    json_decref(name);
    json_decref(metadata);
    return o ? reply(c, o) : -1;
}

int agents_vaults_delete(struct call *c)
{
    const char *id = call_param(c, "vault_id");
    store_lock(c->ag->store);
    autojson json_t *was = get_vault(c, id);
    bool gone =
        was &&
        store_exec(c->ag->store, c->err, "DELETE FROM mem.credentials WHERE vault = ?", "s", id) ==
            0 &&
        store_exec(c->ag->store, c->err, "DELETE FROM mem.vaults WHERE id = ?", "s", id) == 0;
    store_unlock(c->ag->store);
    if (!gone)
        return was ? ag_store_fail(c->e, c->err) : -1;
    return reply(
        c, label(json_pack("{s:s, s:s, s:b}", "id", id, "object", "vault.deleted", "deleted", 1),
                 "local_state", "memory_only", NULL));
}

/* --- credentials
 * ---------------------------------------------------------------------------------------- */

#define CRED_LABEL "memory_only secret_in_agent_env"

static json_t *cred_of_row(struct call *c, sqlite3_stmt *s, void *data)
{
    autojson json_t *doc = store_json(s, 1);
    return label(json_pack("{s:s, s:s, s:s, s:O, s:O, s:O, s:o, s:o}", "id", store_text(s, 0),
                           "object", "vault.credential", "vault_id", store_text(s, 4), "name",
                           json_object_get(doc, "name"), "metadata",
                           json_object_get(doc, "metadata"), "auth", json_object_get(doc, "auth"),
                           "created_at", stamp_json(sqlite3_column_double(s, 2)), "updated_at",
                           stamp_json(sqlite3_column_double(s, 3))),
                 "local_state", CRED_LABEL, NULL);
}

static json_t *get_cred(struct call *c, const char *vault, const char *id, json_t **ret_doc)
{
    json_t *o = NULL;
    sqlite3_stmt *s = store_stmt(
        c->ag->store,
        "SELECT id, doc, created, updated, vault FROM mem.credentials WHERE id = ? AND vault = ?",
        "ss", id, vault);
    if (s && sqlite3_step(s) == SQLITE_ROW) {
        o = cred_of_row(c, s, NULL);
        if (ret_doc)
            *ret_doc = store_json(s, 1);
    }
    if (s)
        sqlite3_reset(s);
    if (!o)
        ag_unknown(c->e, "credential_id", "credential", id);
    return o;
}

/* RFC 3339; seconds through ret. */
static int read_time(const char *s, double *ret)
{
    struct tm tm = {0};
    int n = 0, oh = 0, om = 0;
    if (!s ||
        sscanf(s, "%4d-%2d-%2d%*1[Tt ]%2d:%2d:%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
               &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &n) != 6 ||
        tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour > 23 ||
        tm.tm_min > 59 || tm.tm_sec > 60 || tm.tm_year < 1970)
        return -1;
    s += n;
    if (*s == '.') {
        size_t digits = strspn(s + 1, "0123456789");
        if (!digits)
            return -1;
        s += 1 + digits;
    }
    int sign = 0;
    if ((*s == 'Z' || *s == 'z') && !s[1])
        sign = 0;
    else if ((*s == '+' || *s == '-') && sscanf(s + 1, "%2d:%2d%n", &oh, &om, &n) == 2 &&
             !s[1 + n] && oh < 24 && om < 60)
        sign = *s == '+' ? 1 : -1;
    else
        return -1;
    int day = tm.tm_mday;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    struct tm date = {.tm_year = tm.tm_year, .tm_mon = tm.tm_mon, .tm_mday = day};
    if (timegm(&date) == -1 || date.tm_mday != day)
        return -1; /* no such day in that month */
    *ret = (double)timegm(&tm) - sign * (oh * 3600 + om * 60);
    return 0;
}

static int read_token(struct call *c, const json_t *v, const char *param)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    bool good = json_is_string(v) && n >= 1 && n <= 8192;
    for (size_t i = 0; good && i < n; i++)
        good = (unsigned char)s[i] >= 0x20 && s[i] != 0x7f;
    return good ? 0 : ag_invalid(c->e, param, "%s: one line of 1 to 8192 characters", param);
}

/* auth of a create (was NULL) or an update. Sets doc's auth, _expires; *ret_secret borrowed or
 * NULL. */
static int read_auth(struct call *c, const json_t *auth, json_t *doc, const json_t *was,
                     const char **ret_secret)
{
    if (!json_is_object(auth))
        return ag_invalid(c->e, "auth", "auth: an object");
    const char *type = json_string_value(json_object_get(auth, "type"));
    bool bearer = type && strcmp(type, "static_bearer") == 0,
         oauth = type && strcmp(type, "mcp_oauth") == 0;
    if (!bearer && !oauth)
        return ag_invalid(c->e, "auth.type", "auth.type: static_bearer or mcp_oauth");
    const char *old =
        was ? json_string_value(json_object_get(json_object_get(was, "auth"), "type")) : NULL;
    if (old && strcmp(old, type) != 0)
        return ag_invalid(c->e, "auth.type", "auth.type: stays what it was");
    const char *keys =
        was ? (bearer ? "type token" : "type access_token expires_at refresh")
            : (bearer ? "type mcp_server_url token networking"
                      : "type mcp_server_url access_token expires_at networking refresh");
    if (only_keys(c->e, auth, "auth.", keys) < 0)
        return -1;
    json_t *shown =
        was ? json_copy(json_object_get(was, "auth")) : json_pack("{s:s}", "type", type);
    json_object_set_new(doc, "auth", shown);
    const char *secret_key = bearer ? "token" : "access_token",
               *param = bearer ? "auth.token" : "auth.access_token";
    const json_t *secret = json_object_get(auth, secret_key);
    *ret_secret = NULL;
    if (!was) {
        const json_t *url = json_object_get(auth, "mcp_server_url");
        if (!json_is_string(url))
            return ag_invalid(c->e, "auth.mcp_server_url", "auth.mcp_server_url: a URL");
        if (check_url(c->e, json_string_value(url), json_string_length(url), "auth.mcp_server_url",
                      false, false, c->ag->set.private_urls) < 0)
            return -1;
        json_object_set(shown, "mcp_server_url", (json_t *)url);
        const json_t *net = json_object_get(auth, "networking");
        if (net && !json_is_null(net)) {
            autofree char *host = url_host(json_string_value(url));
            const json_t *hosts = json_object_get(net, "allowed_hosts");
            const char *kind = json_string_value(json_object_get(net, "type"));
            const char *named = json_string_value(json_array_get(hosts, 0));
            if (!kind || strcmp(kind, "limited") != 0 || json_array_size(hosts) != 1 || !named ||
                !host || strcasecmp(named, host) != 0 || json_object_size(net) != 2)
                return ag_invalid(c->e, "auth.networking",
                                  "auth.networking: null, or limited to the host of the URL");
            json_object_set_new(
                shown, "networking",
                json_pack("{s:s, s:[s]}", "type", "limited", "allowed_hosts", host));
        }
    }
    const json_t *refresh = json_object_get(auth, "refresh");
    if (refresh && !json_is_null(refresh))
        return ag_invalid(c->e, "auth.refresh", "auth.refresh: not supported here");
    if (was && oauth && json_is_null(secret))
        secret = NULL; /* kept */
    if (secret || !was || bearer) {
        if (read_token(c, secret, param) < 0)
            return -1;
        *ret_secret = json_string_value(secret);
    }
    if (oauth) {
        const json_t *expires = json_object_get(auth, "expires_at");
        if (expires && !json_is_null(expires)) {
            double at;
            if (read_time(json_string_value(expires), &at) < 0)
                return ag_invalid(c->e, "auth.expires_at",
                                  "auth.expires_at: an RFC 3339 time or null");
            json_object_set(shown, "expires_at", (json_t *)expires);
            json_object_set_new(doc, "_expires", json_real(at));
        } else if (expires ||
                   *ret_secret) { /* a new token without a time of its own does not expire */
            json_object_set_new(shown, "expires_at", json_null());
            json_object_del(doc, "_expires");
        }
        json_object_set_new(shown, "refresh", json_null());
    }
    return 0;
}

int agents_vault_credentials_create(struct call *c)
{
    const char *vault = call_param(c, "vault_id"), *secret = NULL;
    const json_t *body = call_body(c);
    json_t *name = NULL, *metadata = NULL, *o = NULL;
    autojson json_t *doc = json_object();
    char id[AG_ID_MAX];
    agents_new_id("cred_", id);
    store_lock(c->ag->store);
    autojson json_t *holder = get_vault(c, vault);
    int rc = holder ? only_keys(c->e, body, "", "name metadata auth") : -1;
    if (rc == 0)
        rc = read_name(c, body, true, &name);
    if (rc == 0)
        rc = read_metadata(c->e, json_object_get(body, "metadata"), "metadata", &metadata);
    if (rc == 0)
        rc = read_auth(c, json_object_get(body, "auth"), doc, NULL, &secret);
    sqlite3_stmt *s =
        rc == 0 ? store_stmt(c->ag->store, "SELECT count(*) FROM mem.credentials WHERE vault = ?",
                             "s", vault)
                : NULL;
    if (s && sqlite3_step(s) == SQLITE_ROW && sqlite3_column_int(s, 0) >= MAX_OBJECTS)
        rc =
            ag_fail(c->e, 400, "agents.limit_exceeded", NULL, "too many credentials in this vault");
    if (s)
        sqlite3_reset(s);
    if (rc == 0) {
        double now = wall_seconds();
        json_object_set(doc, "name", name);
        json_object_set(doc, "metadata", metadata);
        if (store_exec(c->ag->store, c->err,
                       "INSERT INTO mem.credentials(id, vault, doc, secret, created, updated) "
                       "VALUES(?,?,?,?,?,?)",
                       "ssjsdd", id, vault, doc, secret, now, now) < 0)
            ag_store_fail(c->e, c->err);
        else
            o = get_cred(c, vault, id, NULL);
    }
    store_unlock(c->ag->store);
    json_decref(name);
    json_decref(metadata);
    return o ? reply(c, o) : -1;
}

int agents_vault_credentials_list(struct call *c)
{
    const char *vault = call_param(c, "vault_id");
    struct page p;
    json_t *list = NULL;
    autojson json_t *all = json_array();
    store_lock(c->ag->store);
    autojson json_t *holder = get_vault(c, vault);
    sqlite3_stmt *s = holder ? store_stmt(c->ag->store,
                                          "SELECT id, doc, created, updated, vault FROM "
                                          "mem.credentials WHERE vault = ? ORDER BY rid",
                                          "s", vault)
                             : NULL;
    while (s && sqlite3_step(s) == SQLITE_ROW)
        json_array_append_new(all, cred_of_row(c, s, NULL));
    if (s)
        sqlite3_reset(s);
    store_unlock(c->ag->store);
    if (!holder || page_read(c, &p) < 0)
        return -1;
    return filtered(c, &p, all, &list) < 0 ? -1 : reply(c, list);
}

int agents_vault_credentials_get(struct call *c)
{
    const char *vault = call_param(c, "vault_id");
    store_lock(c->ag->store);
    autojson json_t *holder = get_vault(c, vault);
    json_t *o = holder ? get_cred(c, vault, call_param(c, "credential_id"), NULL) : NULL;
    store_unlock(c->ag->store);
    return o ? reply(c, o) : -1;
}

int agents_vault_credentials_update(struct call *c)
{
    const char *vault = call_param(c, "vault_id"), *id = call_param(c, "credential_id"),
               *secret = NULL;
    const json_t *body = call_body(c);
    json_t *o = NULL, *metadata = NULL;
    autojson json_t *doc = NULL;
    store_lock(c->ag->store);
    autojson json_t *holder = get_vault(c, vault);
    autojson json_t *was = holder ? get_cred(c, vault, id, &doc) : NULL;
    int rc = was ? only_keys(c->e, body, "", "metadata auth") : -1;
    if (rc == 0 && json_object_get(body, "metadata")) {
        rc = read_metadata(c->e, json_object_get(body, "metadata"), "metadata", &metadata);
        if (rc == 0)
            json_object_set(doc, "metadata", metadata);
    }
    const json_t *auth = json_object_get(body, "auth");
    if (rc == 0 && auth && !json_is_null(auth))
        rc = read_auth(c, auth, doc, was, &secret);
    if (rc == 0) {
        if (store_exec(c->ag->store, c->err,
                       "UPDATE mem.credentials SET doc = ?, updated = ? WHERE id = ?", "jds", doc,
                       wall_seconds(), id) < 0 ||
            (secret &&
             store_exec(c->ag->store, c->err, "UPDATE mem.credentials SET secret = ? WHERE id = ?",
                        "ss", secret, id) < 0))
            ag_store_fail(c->e, c->err);
        else
            o = get_cred(c, vault, id, NULL);
    }
    store_unlock(c->ag->store);
    json_decref(metadata);
    return o ? reply(c, o) : -1;
}

int agents_vault_credentials_delete(struct call *c)
{
    const char *vault = call_param(c, "vault_id"), *id = call_param(c, "credential_id");
    store_lock(c->ag->store);
    autojson json_t *holder = get_vault(c, vault);
    autojson json_t *was = holder ? get_cred(c, vault, id, NULL) : NULL;
    bool gone = was && store_exec(c->ag->store, c->err, "DELETE FROM mem.credentials WHERE id = ?",
                                  "s", id) == 0;
    store_unlock(c->ag->store);
    if (!gone)
        return was ? ag_store_fail(c->e, c->err) : -1;
    return reply(c, label(json_pack("{s:s, s:s, s:b}", "id", id, "object",
                                    "vault.credential.deleted", "deleted", 1),
                          "local_state", CRED_LABEL, NULL));
}
