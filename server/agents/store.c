#include "agents/store.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/own.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STMT_SLOTS 256
#define MAX_ARGS 20

struct op_arg {
    char kind;
    int64_t i;
    double d;
    size_t off, len; /* text: within the op's data */
};

struct op {
    struct op *next;
    const char *sql; /* NULL: a barrier */
    void (*done)(void *data);
    void *data;
    size_t n_args, size;
    struct op_arg args[MAX_ARGS];
    char bytes[];
};

struct store {
    pthread_mutex_t db_lock; /* connection, statements */
    pthread_mutex_t q_lock;  /* head .. fired */
    sqlite3 *db;
    struct {
        const char *sql;
        sqlite3_stmt *stmt;
    } stmts[STMT_SLOTS];
    struct loop *loop;
    struct op *head, **tail;
    struct op *fired; /* barriers whose writes are on disk */
    size_t backlog;
    bool flushing;
    bool closed; /* what is posted from now on is dropped */
    bool freed;  /* while flushing: flush_done frees it */
    bool complained;
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS sessions(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT "
    "NULL,"
    " owner TEXT NOT NULL, hidden INTEGER NOT NULL, agent_id TEXT NOT NULL, cfg TEXT NOT NULL, "
    "thread TEXT,"
    " usage TEXT, created REAL NOT NULL, active REAL NOT NULL);"
    "CREATE INDEX IF NOT EXISTS sessions_owner ON sessions(owner, hidden, rid);"
    "CREATE TABLE IF NOT EXISTS turns(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT "
    "NULL,"
    " session INTEGER NOT NULL, status TEXT NOT NULL, created REAL NOT NULL, started REAL, "
    "completed REAL,"
    " error TEXT, usage TEXT, prompt TEXT, items INTEGER NOT NULL DEFAULT 0);"
    "CREATE INDEX IF NOT EXISTS turns_session ON turns(session, rid);"
    "CREATE INDEX IF NOT EXISTS turns_open ON turns(status) WHERE status IN ('queued', "
    "'in_progress');"
    "CREATE TABLE IF NOT EXISTS items(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT "
    "NULL,"
    " session INTEGER NOT NULL, turn TEXT NOT NULL, doc TEXT NOT NULL);"
    "CREATE INDEX IF NOT EXISTS items_session ON items(session, rid);"
    "CREATE INDEX IF NOT EXISTS items_turn ON items(turn, rid);"
    "CREATE TABLE IF NOT EXISTS events(log INTEGER NOT NULL, seq INTEGER NOT NULL, sub INTEGER NOT "
    "NULL,"
    " type TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY(log, seq, sub)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS artifacts(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE "
    "NOT NULL,"
    " session INTEGER NOT NULL, turn TEXT NOT NULL, environment TEXT NOT NULL, path TEXT NOT NULL,"
    " size INTEGER NOT NULL, created REAL NOT NULL);"
    "CREATE INDEX IF NOT EXISTS artifacts_session ON artifacts(session, rid);"
    "CREATE TABLE IF NOT EXISTS subagents(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL,"
    " session INTEGER NOT NULL, runtime TEXT NOT NULL, name TEXT, instructions TEXT, opened REAL "
    "NOT NULL,"
    " closed REAL, UNIQUE(session, id));"
    "CREATE TABLE IF NOT EXISTS subentries(rid INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER "
    "NOT NULL,"
    " subagent TEXT NOT NULL, at REAL NOT NULL, doc TEXT NOT NULL);"
    "CREATE INDEX IF NOT EXISTS subentries_of ON subentries(session, subagent, rid);"
    "CREATE TABLE IF NOT EXISTS objects(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT "
    "NULL,"
    " kind TEXT NOT NULL, owner TEXT NOT NULL, doc TEXT NOT NULL, created REAL NOT NULL, updated "
    "REAL NOT NULL,"
    " size INTEGER NOT NULL DEFAULT 0);"
    "CREATE INDEX IF NOT EXISTS objects_owner ON objects(kind, owner, rid);"
    "CREATE TABLE IF NOT EXISTS responses(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE "
    "NOT NULL,"
    " owner TEXT NOT NULL, session INTEGER NOT NULL, turn TEXT NOT NULL, previous TEXT, doc TEXT "
    "NOT NULL,"
    " input TEXT NOT NULL, created REAL NOT NULL);"
    "CREATE INDEX IF NOT EXISTS responses_session ON responses(session, rid);"
    "CREATE INDEX IF NOT EXISTS responses_owner ON responses(owner, rid);"
    "CREATE TABLE IF NOT EXISTS keys(rid INTEGER PRIMARY KEY AUTOINCREMENT, scope TEXT NOT NULL,"
    " key TEXT NOT NULL, hash TEXT NOT NULL, ref TEXT NOT NULL, UNIQUE(scope, key));"
    "CREATE TABLE IF NOT EXISTS dead_letters(rid INTEGER PRIMARY KEY AUTOINCREMENT, endpoint TEXT "
    "NOT NULL,"
    " event TEXT NOT NULL, body TEXT NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL);"
    /* memory only */
    "CREATE TABLE mem.vaults(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL,"
    " owner TEXT NOT NULL, doc TEXT NOT NULL, created REAL NOT NULL);"
    "CREATE TABLE mem.credentials(rid INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL,"
    " vault TEXT NOT NULL, doc TEXT NOT NULL, secret TEXT NOT NULL, created REAL NOT NULL, updated "
    "REAL NOT NULL);"
    "CREATE TABLE mem.secrets(ref TEXT PRIMARY KEY, doc TEXT NOT NULL);";

static const char pragmas[] = "PRAGMA journal_mode=WAL;"
                              "PRAGMA synchronous=FULL;"
                              "PRAGMA journal_size_limit=8388608;"
                              "PRAGMA cache_size=-1024;"
                              "PRAGMA temp_store=MEMORY;"
                              "PRAGMA secure_delete=ON;"
                              "ATTACH ':memory:' AS mem;";

/* The form of the state file, kept in it as user_version. 0 is a file that is empty, or whose making was cut off:
 * `schema` adds what is not there yet. */
#define FORM 1
#define SET_FORM(n) "PRAGMA user_version=" #n
#define SET_FORM_OF(n) SET_FORM(n)

static int read_form(sqlite3 *db, int *ret)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &q, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(q);
        if (rc == SQLITE_ROW) {
            *ret = sqlite3_column_int(q, 0);
            rc = SQLITE_OK;
        } else if (rc == SQLITE_DONE) {
            rc = SQLITE_CORRUPT;
        }
    }
    sqlite3_finalize(q);
    return rc;
}

/* ret_form: the file's, when it is newer than ours (SQLITE_MISMATCH; the file is left as it is). */
static int open_file(const char *path, sqlite3 **ret, int *ret_form)
{
    sqlite3 *db = NULL;
    int form = 0;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    int rc = sqlite3_open_v2(path ? path : "", &db, flags, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_busy_timeout(db, 5000);
        rc = read_form(db, &form); /* before anything that writes */
    }
    if (rc == SQLITE_OK && form > FORM) {
        *ret_form = form;
        rc = SQLITE_MISMATCH;
    }
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, pragmas, NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, schema, NULL, NULL, NULL);
    if (rc == SQLITE_OK && form < FORM)
        rc = sqlite3_exec(db, SET_FORM_OF(FORM), NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        sqlite3_close_v2(db);
        return rc;
    }
    *ret = db;
    return SQLITE_OK;
}

int store_open(const char *path, struct store **ret, struct abx_error *err)
{
    struct store *st = calloc(1, sizeof(*st));
    if (!st)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "out of memory");
    st->tail = &st->head;
    if (path) { /* SQLite gives the file's mode to its -wal and -shm */
        autoclose int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
            free(st);
            return abx_fail_os(err, errno, path);
        }
        (void)fchmod(fd, 0600); /* an older, wider mode is narrowed where we may */
    }
    int form = 0;
    int rc = open_file(path, &st->db, &form);
    if (path && (rc == SQLITE_CORRUPT || rc == SQLITE_NOTADB)) {
        struct buf aside = BUF_INIT;
        buf_addf(&aside, "%s.damaged-%lld", path, (long long)time(NULL));
        if (buf_str(&aside)) {
            log_warn("agents: the state file is damaged, set aside as %s", aside.data);
            (void)rename(path,
                         aside.data); /* when it fails the open below fails again and says so */
        }
        buf_reset(&aside);
        buf_addf(&aside, "%s-wal", path);
        if (buf_str(&aside))
            (void)unlink(aside.data); /* belongs to the damaged file */
        buf_done(&aside);
        autoclose int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        rc = open_file(path, &st->db, &form);
    }
    if (rc == SQLITE_MISMATCH && form > FORM) {
        free(st);
        return abx_fail(err, E_RUNTIME_503, 0,
                        "agents' state was written by a newer server (form %d, this one knows up to %d): %s", form,
                        FORM, path);
    }
    if (rc != SQLITE_OK) {
        free(st);
        return abx_fail(err, rc == SQLITE_FULL ? E_NO_SPACE : E_OS, 0,
                        "agents' state can't be opened: %s", sqlite3_errstr(rc));
    }
    pthread_mutex_init(&st->db_lock, NULL);
    pthread_mutex_init(&st->q_lock, NULL);
    *ret = st;
    return 0;
}

void store_set_loop(struct store *st, struct loop *loop) { st->loop = loop; }

static void free_ops(struct op *op)
{
    while (op) {
        struct op *next = op->next;
        free(op);
        op = next;
    }
}

void store_close(struct store *st)
{
    store_lock(st);
    for (size_t i = 0; i < STMT_SLOTS; i++)
        sqlite3_finalize(st->stmts[i].stmt);
    sqlite3_close_v2(st->db);
    st->db = NULL;
    memset(st->stmts, 0, sizeof(st->stmts));
    st->closed = true;
    pthread_mutex_unlock(&st->db_lock);
}

static void destroy(struct store *st)
{
    free_ops(st->fired);
    pthread_mutex_destroy(&st->db_lock);
    pthread_mutex_destroy(&st->q_lock);
    free(st);
}

void store_free(struct store *st)
{
    if (!st)
        return;
    if (!st->closed)
        store_close(st);
    if (st->flushing)
        st->freed = true; /* a worker has it */
    else
        destroy(st);
}

static sqlite3_stmt *prepared(struct store *st, const char *sql)
{
    if (!st->db)
        return NULL;
    size_t at = ((uintptr_t)sql >> 3) % STMT_SLOTS;
    for (size_t n = 0; n < STMT_SLOTS; n++, at = (at + 1) % STMT_SLOTS) {
        if (st->stmts[at].sql == sql) {
            sqlite3_reset(st->stmts[at].stmt);
            return st->stmts[at].stmt;
        }
        if (!st->stmts[at].sql)
            break;
    }
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v3(st->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL) != SQLITE_OK) {
        log_error("agents: state: %s", sqlite3_errmsg(st->db));
        return NULL;
    }
    st->stmts[at].sql = sql;
    st->stmts[at].stmt = stmt;
    return stmt;
}

static sqlite3_stmt *stmt_v(struct store *st, const char *sql, const char *fmt, va_list ap)
{
    sqlite3_stmt *s = prepared(st, sql);
    if (!s)
        return NULL;
    sqlite3_clear_bindings(s);
    int n = 1;
    for (const char *f = fmt; *f; f++, n++) {
        if (*f == 'i') {
            sqlite3_bind_int64(s, n, va_arg(ap, int64_t));
        } else if (*f == 'd') {
            sqlite3_bind_double(s, n, va_arg(ap, double));
        } else if (*f == 's') {
            const char *text = va_arg(ap, const char *);
            if (text)
                sqlite3_bind_text(s, n, text, -1, SQLITE_TRANSIENT);
        } else if (*f == 'b') {
            const void *data = va_arg(ap, const void *);
            size_t len = va_arg(ap, size_t);
            sqlite3_bind_text(s, n, data, (int)len, SQLITE_TRANSIENT);
        } else {
            const json_t *value = va_arg(ap, const json_t *);
            struct buf text = BUF_INIT;
            if (value)
                json_write(&text, value);
            if (value && buf_str(&text))
                sqlite3_bind_text(s, n, text.data, (int)text.len, SQLITE_TRANSIENT);
            buf_done(&text);
        }
    }
    return s;
}

sqlite3_stmt *store_stmt(struct store *st, const char *sql, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *s = stmt_v(st, sql, fmt, ap);
    va_end(ap);
    return s;
}

static int db_fail(struct store *st, int rc, struct abx_error *err)
{
    return abx_fail(err, rc == SQLITE_FULL ? E_NO_SPACE : E_OS, 0, "agents' state: %s",
                    sqlite3_errmsg(st->db));
}

static int run(struct store *st, sqlite3_stmt *s, struct abx_error *err)
{
    if (!s)
        return abx_fail(err, E_OS, 0, "agents' state: %s",
                        st->db ? sqlite3_errmsg(st->db) : "closed");
    int rc;
    while ((rc = sqlite3_step(s)) == SQLITE_ROW)
        ;
    if (rc != SQLITE_DONE)
        db_fail(st, rc, err);
    sqlite3_reset(s);
    return rc == SQLITE_DONE ? 0 : -1;
}

int store_exec(struct store *st, struct abx_error *err, const char *sql, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *s = stmt_v(st, sql, fmt, ap);
    va_end(ap);
    return run(st, s, err);
}

int store_begin(struct store *st, struct abx_error *err)
{
    return store_exec(st, err, "BEGIN IMMEDIATE", "");
}

int store_commit(struct store *st, struct abx_error *err)
{
    /* What a client is told about has to survive the machine, not only the process. */
    if (store_exec(st, err, "COMMIT", "") < 0) {
        store_rollback(st);
        return -1;
    }
    return 0;
}

void store_rollback(struct store *st)
{
    if (st->db && !sqlite3_get_autocommit(st->db))
        (void)store_exec(st, NULL, "ROLLBACK",
                         ""); /* fails only when there is nothing to roll back */
}

const char *store_text(sqlite3_stmt *s, int col)
{
    const char *text = (const char *)sqlite3_column_text(s, col);
    return text ? text : "";
}

json_t *store_json(sqlite3_stmt *s, int col)
{
    const char *text = (const char *)sqlite3_column_text(s, col);
    json_t *value = text ? json_loadb(text, (size_t)sqlite3_column_bytes(s, col),
                                      JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                         : NULL;
    return value ? value : json_null();
}

/* Applies the queue. db_lock held; outside of a transaction. */
static void apply(struct store *st)
{
    pthread_mutex_lock(&st->q_lock);
    struct op *op = st->head;
    st->head = NULL;
    st->tail = &st->head;
    st->backlog = 0;
    pthread_mutex_unlock(&st->q_lock);
    if (!op)
        return;

    struct abx_error err;
    bool failed = store_exec(st, &err, "BEGIN IMMEDIATE", "") < 0;
    struct op *barriers = NULL, **last = &barriers;
    while (op) {
        struct op *next = op->next;
        if (!op->sql) {
            op->next = NULL;
            *last = op;
            last = &op->next;
            op = next;
            continue;
        }
        sqlite3_stmt *s = prepared(st, op->sql);
        if (s) {
            sqlite3_clear_bindings(s);
            for (size_t i = 0; i < op->n_args; i++) {
                const struct op_arg *a = &op->args[i];
                if (a->kind == 'i')
                    sqlite3_bind_int64(s, (int)i + 1, a->i);
                else if (a->kind == 'd')
                    sqlite3_bind_double(s, (int)i + 1, a->d);
                else if (a->kind == 's')
                    sqlite3_bind_text(s, (int)i + 1, op->bytes + a->off, (int)a->len,
                                      SQLITE_STATIC);
            }
        }
        if (run(st, s, &err) < 0)
            failed = true;
        if (s)
            sqlite3_clear_bindings(s);
        free(op);
        op = next;
    }
    if (store_commit(st, &err) < 0)
        failed = true;
    if (failed && !st->complained)
        log_warn("agents: %s; what happens now may be missing after a restart", err.message);
    st->complained = failed;

    pthread_mutex_lock(&st->q_lock);
    struct op **end = &st->fired;
    while (*end)
        end = &(*end)->next;
    *end = barriers;
    pthread_mutex_unlock(&st->q_lock);
}

void store_lock(struct store *st)
{
    pthread_mutex_lock(&st->db_lock);
    apply(st);
}

void store_unlock(struct store *st)
{
    store_rollback(st); /* a caller that failed half-way */
    pthread_mutex_unlock(&st->db_lock);
}

static void flush_work(void *data)
{
    struct store *st = data;
    store_lock(st);
    store_unlock(st);
}

static void flush_done(void *data)
{
    struct store *st = data;
    pthread_mutex_lock(&st->q_lock);
    struct op *fired = st->fired;
    st->fired = NULL;
    bool more = st->head != NULL;
    st->flushing = more;
    pthread_mutex_unlock(&st->q_lock);
    if (more && loop_work(st->loop, WORK_SHORT, flush_work, flush_done, st) < 0)
        st->flushing = false; /* the next post tries again */
    if (st->closed) { /* whom the barriers were to tell is no more */
        free_ops(fired);
        if (st->freed)
            destroy(st);
        return;
    }
    while (fired) {
        struct op *next = fired->next;
        fired->done(fired->data);
        free(fired);
        fired = next;
    }
}

static void enqueue(struct store *st, struct op *op)
{
    if (st->closed) {
        free(op);
        return;
    }
    pthread_mutex_lock(&st->q_lock);
    op->next = NULL;
    *st->tail = op;
    st->tail = &op->next;
    st->backlog += op->size;
    bool start = !st->flushing && st->loop;
    if (start)
        st->flushing = true;
    pthread_mutex_unlock(&st->q_lock);
    if (start && loop_work(st->loop, WORK_SHORT, flush_work, flush_done, st) < 0)
        st->flushing = false;
}

void store_post(struct store *st, const char *sql, const char *fmt, ...)
{
    struct op_arg args[MAX_ARGS] = {0};
    struct buf bytes = BUF_INIT;
    size_t n = 0;
    va_list ap;
    va_start(ap, fmt);
    for (const char *f = fmt; *f && n < MAX_ARGS; f++, n++) {
        struct op_arg *a = &args[n];
        a->kind = *f;
        a->off = bytes.len;
        if (*f == 'i') {
            a->i = va_arg(ap, int64_t);
        } else if (*f == 'd') {
            a->d = va_arg(ap, double);
        } else {
            const char *text = NULL;
            size_t len = 0;
            if (*f == 's') {
                text = va_arg(ap, const char *);
                len = text ? strlen(text) : 0;
                buf_add(&bytes, text ? text : "", len);
            } else if (*f == 'b') {
                text = va_arg(ap, const char *);
                len = va_arg(ap, size_t);
                buf_add(&bytes, text, len);
            } else {
                const json_t *value = va_arg(ap, const json_t *);
                text = value ? "" : NULL;
                if (value)
                    json_write(&bytes, value);
                len = bytes.len - a->off;
            }
            a->kind = text ? 's' : 'n';
            a->len = len;
        }
    }
    va_end(ap);
    struct op *op = bytes.failed ? NULL : malloc(sizeof(*op) + bytes.len + 1);
    if (!op) {
        log_error("agents: out of memory, a change of state is lost");
    } else {
        *op = (struct op){.sql = sql, .n_args = n, .size = sizeof(*op) + bytes.len};
        memcpy(op->args, args, sizeof(args));
        if (bytes.len)
            memcpy(op->bytes, bytes.data, bytes.len);
        enqueue(st, op);
    }
    buf_done(&bytes);
}

void store_sync(struct store *st, void (*done)(void *data), void *data)
{
    struct op *op = calloc(1, sizeof(*op));
    if (!op) {
        loop_post(st->loop, done, data); /* unsynced, but whoever waits must go on */
        return;
    }
    op->done = done;
    op->data = data;
    op->size = sizeof(*op);
    enqueue(st, op);
}

size_t store_backlog(struct store *st)
{
    pthread_mutex_lock(&st->q_lock);
    size_t n = st->backlog;
    pthread_mutex_unlock(&st->q_lock);
    return n;
}

int64_t store_size(struct store *st)
{
    int64_t pages = 0, unused = 0, size = 0;
    sqlite3_stmt *s = store_stmt(st, "PRAGMA page_count", "");
    if (s && sqlite3_step(s) == SQLITE_ROW)
        pages = sqlite3_column_int64(s, 0);
    if ((s = store_stmt(st, "PRAGMA freelist_count", "")) && sqlite3_step(s) == SQLITE_ROW)
        unused = sqlite3_column_int64(s, 0);
    if ((s = store_stmt(st, "PRAGMA page_size", "")) && sqlite3_step(s) == SQLITE_ROW)
        size = sqlite3_column_int64(s, 0);
    if (s)
        sqlite3_reset(s);
    return (pages - unused) * size;
}
