#include "files/range.h"
#include "files/upload.h"
#include "files/watch.h"

#include "base/own.h"

#include "../check_main.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void run(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void run(const char *fmt, ...)
{
    char cmd[2000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    ck_assert_int_eq(system(cmd), 0);
}

struct place {
    char root[64];
    struct guard *g;
};

static void place_init(struct place *p)
{
    strcpy(p->root, "/tmp/abx-transfer-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(p->root));
    ck_assert_int_eq(guard_new(&(struct guard_config){.base_dir = p->root}, &p->g, NULL), 0);
}

static void place_done(struct place *p)
{
    run("rm -rf %s", p->root);
    guard_free(p->g);
}

static int upload(const struct upload_options *opt, const char *text, size_t step,
                  struct abx_error *err)
{
    struct upload *u = upload_new(opt);
    struct upload_result result;
    int rc = 0;
    size_t len = strlen(text);
    for (size_t at = 0; at < len && rc == 0; at += step)
        rc = upload_feed(u, text + at, len - at < step ? len - at : step, err);
    if (rc == 0)
        rc = upload_finish(u, &result, err);
    upload_free(u);
    return rc;
}

START_TEST(refused_upload_leaves_nothing_and_the_old_file_whole)
{
    struct place p;
    place_init(&p);
    run("cd %s && printf old > a && chmod 751 a && mkfifo p && mkdir d", p.root);
    struct upload_options opt = {.guard = p.g, .max_bytes = 10, .max_other = 1000};
    struct abx_error err;
    static const char *const bad[] = {
        "{\"path\": \"a\", \"content_base64\": \"eA\"}",
        "{\"path\": \"a\", \"content_base64\": \"eA==eA==\"}",
        "{\"path\": \"a\", \"content_base64\": \"e A=\"}",
        "{\"path\": \"a\", \"content_base64\": 5}",
        "{\"path\": \"a\", \"content_base64\": \"eA==\"",
        "{\"path\": \"a\"}",
        "{\"content_base64\": \"eA==\"}",
        "{\"path\": \"\", \"content_base64\": \"eA==\"}",
        "{\"path\": \"a\", \"path\": \"b\", \"content_base64\": \"eA==\"}",
        "{\"path\": \"p\", \"content_base64\": \"eA==\"}",
        "[]",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ck_assert_int_lt(upload(&opt, bad[i], 3, &err), 0);
        ck_assert_int_eq(err.status, 400);
    }
    ck_assert_int_lt(
        upload(&opt, "{\"path\": \"a\", \"content_base64\": \"eHh4eHh4eHh4eHh4\"}", 7, &err), 0);
    ck_assert_int_eq(err.kind, E_TOO_LARGE);
    ck_assert_int_lt(upload(&opt, "{\"path\": \"d\", \"content_base64\": \"eA==\"}", 7, &err), 0);
    ck_assert_str_eq(err.type, "IsADirectoryError");
    ck_assert_int_lt(upload(&opt, "{\"path\": \"../x\", \"content_base64\": \"!\"}", 7, &err), 0);
    ck_assert_int_eq(err.kind, E_PATH_NOT_ALLOWED);
    run("cd %s && test \"$(ls -A | tr '\\n' ' ')\" = 'a d p ' && grep -qx old a", p.root);
    place_done(&p);
}
END_TEST

START_TEST(upload_replaces_in_one_step_and_keeps_the_mode)
{
    struct place p;
    place_init(&p);
    run("cd %s && printf old > a && chmod 751 a && ln -s a l", p.root);
    struct upload_options opt = {.guard = p.g, .max_bytes = 100, .max_other = 1000, .fsync = true};
    ck_assert_int_eq(upload(&opt, "{\"path\": \"l\", \"content_base64\": \"bmV3\"}", 1, NULL), 0);
    ck_assert_int_eq(
        upload(&opt, "{\"content_base64\": \"bGF0ZQ\\u003d\\u003d\", \"path\": \"n/m\"}", 5, NULL),
        0);
    ck_assert_int_eq(upload(&opt, "{\"path\": \"e\", \"content_base64\": \"\"}", 50, NULL), 0);
    run("cd %s && test -L l && grep -qx new a && test \"$(stat -c %%a a)\" = 751 && grep -qx late "
        "n/m && "
        "test -f e && test ! -s e && test $(ls -A | wc -l) = 4",
        p.root);
    opt.no_overwrite = true;
    struct abx_error err;
    ck_assert_int_lt(upload(&opt, "{\"path\": \"a\", \"content_base64\": \"eA==\"}", 50, &err), 0);
    ck_assert_int_eq(err.status, 409);
    ck_assert_int_eq(upload(&opt, "{\"path\": \"fresh\", \"content_base64\": \"eA==\"}", 50, &err),
                     0);
    place_done(&p);
}
END_TEST

START_TEST(full_disk_is_told_and_spares_the_old_file)
{
    struct place p;
    place_init(&p);
    char cmd[160];
    snprintf(cmd, sizeof cmd, "mount -t tmpfs -o size=64k tmpfs %s 2>/dev/null", p.root);
    if (system(cmd) != 0) { /* no right to mount here */
        place_done(&p);
        return;
    }
    run("printf old > %s/f", p.root);
    autofree char *big = calloc(1, 200001);
    memset(big, 'x', 200000);
    struct abx_error err;
    struct upload_options opt = {.guard = p.g, .max_bytes = 1 << 20, .path = "f", .path_len = 1};
    ck_assert_int_lt(upload(&opt, big, 50000, &err), 0);
    ck_assert_int_eq(err.status, 507);
    run("cd %s && grep -qx old f && test $(ls -A | wc -l) = 1", p.root);
    run("umount %s", p.root);
    place_done(&p);
}
END_TEST

START_TEST(ranges_that_make_no_sense_are_ignored_or_refused)
{
    int64_t from, len;
    ck_assert_int_eq(range_parse(NULL, 10, &from, &len), RANGE_NONE);
    ck_assert_int_eq(range_parse("bytes=5-2", 10, &from, &len), RANGE_NONE);
    ck_assert_int_eq(range_parse("bytes=0-1,3-4", 10, &from, &len), RANGE_NONE);
    ck_assert_int_eq(range_parse("bytes=10-", 10, &from, &len), RANGE_UNSATISFIABLE);
    ck_assert_int_eq(range_parse("bytes=-0", 10, &from, &len), RANGE_UNSATISFIABLE);
    ck_assert_int_eq(range_parse("bytes=2-99999999999999999999", 10, &from, &len), RANGE_PART);
    ck_assert_int_eq(from, 2);
    ck_assert_int_eq(len, 8);
    ck_assert_int_eq(range_parse("bytes=-3", 10, &from, &len), RANGE_PART);
    ck_assert_int_eq(from, 7);
}
END_TEST

/* Reads until `want` shows up, for two seconds at most. */
static void expect(struct watch *w, struct buf *seen, const char *want)
{
    for (int i = 0; i < 20; i++) {
        (void)watch_read(w, seen);
        if (strstr(buf_str(seen), want))
            return;
        struct pollfd fd = {.fd = watch_fd(w), .events = POLLIN};
        poll(&fd, 1, 100);
    }
    ck_abort_msg("never told: %s; but: %s", want, seen->data);
}

START_TEST(watch_tells_what_was_made_in_a_hurry_and_renames_as_one)
{
    struct place p;
    place_init(&p);
    run("cd %s && mkdir w && touch w/old", p.root);
    struct watch *w;
    const char *path;
    struct abx_error err;
    ck_assert_int_lt(watch_new(p.g, "w/old", 5, true, &w, &path, &err), 0);
    ck_assert_int_eq(err.kind, E_FILE_NOT_FOUND);
    ck_assert_int_eq(watch_new(p.g, "w", 1, true, &w, &path, &err), 0);
    autobuf struct buf seen = BUF_INIT;
    run("cd %s/w && mkdir -p c/d/e && touch c/d/e/f && touch s && rm s", p.root);
    expect(w, &seen, "/w/c/d/e/f\"");
    expect(w, &seen, "{\"type\": \"deleted\", \"path\": ");
    ck_assert_ptr_null(strstr(seen.data, "old"));
    char *first = strstr(seen.data, "e/f\"");
    ck_assert_ptr_null(strstr(first + 1, "e/f\""));
    run("cd %s/w && mv c z && touch z/d/e/g", p.root);
    expect(w, &seen, "\"renamed\"");
    expect(w, &seen, "/w/z/d/e/g\"");
    run("rm -r %s/w", p.root);
    expect(w, &seen, "\"deleted\", \"path\": \"");
    expect(w, &seen, "/w/old\"");
    watch_free(w);
    place_done(&p);
}
END_TEST

TEST_MAIN("files_transfer", refused_upload_leaves_nothing_and_the_old_file_whole,
          upload_replaces_in_one_step_and_keeps_the_mode, full_disk_is_told_and_spares_the_old_file,
          ranges_that_make_no_sense_are_ignored_or_refused,
          watch_tells_what_was_made_in_a_hurry_and_renames_as_one)
