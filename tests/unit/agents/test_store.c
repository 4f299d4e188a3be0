#include "agents/store.h"

#include "../check_main.h"
#include "base/buf.h"
#include "base/loop.h"
#include "base/own.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *folder(void)
{
    char *dir = strdup("/tmp/abx-store-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    return dir;
}

static void drop(const char *dir)
{
    char path[256];
    static const char *const names[] = {"a.db", "a.db-wal", "a.db-shm"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void)unlink(path); /* not all are there */
    }
    (void)rmdir(dir);
}

static int64_t count(struct store *st)
{
    store_lock(st);
    sqlite3_stmt *s = store_stmt(st, "SELECT count(*) FROM objects", "");
    int64_t n = s && sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : -1;
    if (s)
        sqlite3_reset(s);
    store_unlock(st);
    return n;
}

#define INSERT                                                                                     \
    "INSERT INTO objects(id, kind, owner, doc, created, updated) VALUES(?, 'k', 'o', ?, 1, 1)"

START_TEST(the_file_is_private_and_keeps_what_was_written)
{
    autofree char *dir = folder();
    char path[256];
    struct store *st;
    struct abx_error err;
    snprintf(path, sizeof(path), "%s/a.db", dir);
    ck_assert_int_eq(store_open(path, &st, &err), 0);
    json_t *doc = json_pack("{s:s}", "t", "x");
    store_lock(st);
    ck_assert_int_eq(store_exec(st, &err, INSERT, "sj", "one", doc), 0);
    store_unlock(st);
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0600);
    store_free(st);
    ck_assert_int_eq(store_open(path, &st, &err), 0);
    ck_assert_int_eq(count(st), 1);
    store_free(st);
    json_decref(doc);
    drop(dir);
}
END_TEST

static int64_t ask(const char *path, const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *q;
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    int64_t n = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : -1;
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

START_TEST(a_newer_form_is_refused_and_left_as_it_is)
{
    autofree char *dir = folder();
    char path[256];
    struct store *st;
    struct abx_error err;
    snprintf(path, sizeof(path), "%s/a.db", dir);
    ck_assert_int_eq(store_open(path, &st, &err), 0);
    store_free(st);
    ck_assert_int_eq(ask(path, "PRAGMA user_version"), 1);
    (void)ask(path, "PRAGMA user_version=2");
    (void)ask(path, "DROP TABLE keys");
    ck_assert_int_eq(store_open(path, &st, &err), -1);
    ck_assert_int_eq(err.status, 503);
    ck_assert_ptr_nonnull(strstr(err.message, "newer"));
    ck_assert_int_eq(ask(path, "PRAGMA user_version"), 2);
    ck_assert_int_eq(ask(path, "SELECT count(*) FROM sqlite_master WHERE name = 'keys'"), 0);
    (void)ask(path, "PRAGMA user_version=0"); /* as a file whose making was cut off */
    ck_assert_int_eq(store_open(path, &st, &err), 0);
    store_free(st);
    ck_assert_int_eq(ask(path, "PRAGMA user_version"), 1);
    ck_assert_int_eq(ask(path, "SELECT count(*) FROM sqlite_master WHERE name = 'keys'"), 1);
    drop(dir);
}
END_TEST

START_TEST(what_is_posted_is_seen_by_the_next_reader)
{
    struct store *st;
    struct abx_error err;
    ck_assert_int_eq(store_open(NULL, &st, &err), 0);
    store_post(st, INSERT, "ss", "one", "{}");
    store_post(st, INSERT, "sb", "two", "{}", (size_t)2);
    ck_assert_uint_gt(store_backlog(st), 0);
    ck_assert_int_eq(count(st), 2);
    ck_assert_uint_eq(store_backlog(st), 0);
    store_free(st);
}
END_TEST

START_TEST(a_transaction_left_open_is_rolled_back)
{
    struct store *st;
    struct abx_error err;
    ck_assert_int_eq(store_open(NULL, &st, &err), 0);
    store_lock(st);
    ck_assert_int_eq(store_begin(st, &err), 0);
    ck_assert_int_eq(store_exec(st, &err, INSERT, "ss", "one", "{}"), 0);
    store_unlock(st);
    ck_assert_int_eq(count(st), 0);
    store_free(st);
}
END_TEST

START_TEST(a_damaged_file_is_set_aside)
{
    autofree char *dir = folder();
    char path[256];
    struct store *st;
    struct abx_error err;
    snprintf(path, sizeof(path), "%s/a.db", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, "this is no database, not at all, for it is a text", 49), 49);
    close(fd);
    ck_assert_int_eq(store_open(path, &st, &err), 0);
    ck_assert_int_eq(count(st), 0);
    store_free(st);
    char command[300];
    snprintf(command, sizeof(command), "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* What is never freed is LeakSanitizer's to see. */
START_TEST(what_is_closed_while_a_worker_flushes_is_freed_after_it)
{
    struct store *st;
    struct abx_error err;
    struct loop *loop = loop_new();
    ck_assert_int_eq(store_open(NULL, &st, &err), 0);
    store_set_loop(st, loop);
    store_post(st, INSERT, "ss", "one", "{}");
    store_free(st);
    st = NULL;
    loop_free(loop); /* waits for the worker */
}
END_TEST

static void must_not_be_told(void *data)
{
    *(bool *)data = true;
}

/* A turn whose work comes back while the server stops. */
START_TEST(what_comes_after_the_close_is_dropped)
{
    struct store *st;
    struct abx_error err;
    struct loop *loop = loop_new();
    bool told = false;
    ck_assert_int_eq(store_open(NULL, &st, &err), 0);
    store_set_loop(st, loop);
    store_post(st, INSERT, "ss", "one", "{}"); /* a flush is under way when it closes */
    store_close(st);
    for (int round = 0; round < 3; round++) {
        store_post(st, INSERT, "ss", "two", "{}");
        store_sync(st, must_not_be_told, &told);
        ck_assert_uint_eq(store_backlog(st), 0);
        store_lock(st);
        ck_assert_ptr_null(store_stmt(st, "SELECT 1", ""));
        store_unlock(st);
        uv_run(loop_uv(loop), UV_RUN_NOWAIT);
    }
    store_free(st);
    loop_free(loop);
    ck_assert(!told);
}
END_TEST

TEST_MAIN("agents store", the_file_is_private_and_keeps_what_was_written, a_newer_form_is_refused_and_left_as_it_is,
          what_is_posted_is_seen_by_the_next_reader, a_transaction_left_open_is_rolled_back,
          a_damaged_file_is_set_aside,
          what_is_closed_while_a_worker_flushes_is_freed_after_it,
          what_comes_after_the_close_is_dropped)
