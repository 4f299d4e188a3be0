#include "files/list.h"
#include "files/ops.h"
#include "files/search.h"

#include "base/json.h"
#include "base/own.h"

#include "../check_main.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* A root with a neighbour that nothing may reach. */
struct place {
    char top[64], root[80], outside[80];
    struct guard *g;
    struct arena arena;
};

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

static void place_init(struct place *p, const char *const *deny)
{
    strcpy(p->top, "/tmp/abx-files-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(p->top));
    snprintf(p->root, sizeof p->root, "%s/root", p->top);
    snprintf(p->outside, sizeof p->outside, "%s/outside", p->top);
    run("mkdir %s %s && echo secret > %s/s", p->root, p->outside, p->outside);
    struct guard_config c = {.base_dir = p->root, .deny = deny};
    ck_assert_int_eq(guard_new(&c, &p->g, NULL), 0);
    arena_init(&p->arena);
}

static void place_done(struct place *p)
{
    run("rm -rf %s", p->top);
    guard_free(p->g);
    arena_done(&p->arena);
}

static json_t *list(struct place *p, const char *path, bool recursive, int64_t max,
                    struct abx_error *err)
{
    autobuf struct buf out = BUF_INIT;
    struct list_options opt = {.recursive = recursive, .max_entries = max, .max_depth = 3};
    const char *resolved;
    if (files_list(p->g, path, strlen(path), &opt, &p->arena, &out, &resolved, err) < 0)
        return NULL;
    json_t *v;
    ck_assert_int_eq(json_parse(out.data, out.len, &v, NULL), 0);
    return v;
}

static const char *entry(json_t *v, size_t i, const char *key)
{
    return json_string_value(
        json_object_get(json_array_get(json_object_get(v, "entries"), i), key));
}

START_TEST(listing_of_what_is_no_directory_is_404)
{
    struct place p;
    place_init(&p, NULL);
    run("touch %s/f", p.root);
    struct abx_error err;
    ck_assert_ptr_null(list(&p, "f", false, 10, &err));
    ck_assert_int_eq(err.status, 404);
    ck_assert_str_eq(err.type, "FileNotFoundError");
    ck_assert_ptr_null(list(&p, "../outside", false, 10, &err));
    ck_assert_int_eq(err.kind, E_PATH_NOT_ALLOWED);
    place_done(&p);
}
END_TEST

START_TEST(listing_is_sorted_and_says_when_it_is_cut)
{
    struct place p;
    place_init(&p, NULL);
    run("cd %s && touch c a b && mkdir d && touch d/x && ln -s %s out && ln -s none dangling",
        p.root, p.outside);
    autojson json_t *v = list(&p, "", true, 10, &(struct abx_error){0});
    ck_assert_ptr_null(v); /* an empty path is refused */
    autojson json_t *all = list(&p, p.root, true, 10, NULL);
    ck_assert_uint_eq(json_array_size(json_object_get(all, "entries")), 6);
    ck_assert_str_eq(entry(all, 0, "name"), "a");
    ck_assert_str_eq(entry(all, 5, "name"), "dangling");
    ck_assert_str_eq(entry(all, 3, "type"), "directory");
    ck_assert(json_is_false(json_object_get(all, "truncated")));
    autojson json_t *two = list(&p, p.root, false, 2, NULL);
    ck_assert_uint_eq(json_array_size(json_object_get(two, "entries")), 2);
    ck_assert(json_is_true(json_object_get(two, "truncated")));
    place_done(&p);
}
END_TEST

START_TEST(names_that_are_no_utf8_come_with_their_bytes)
{
    struct place p;
    place_init(&p, NULL);
    run("touch \"$(printf '%s/caf\\351')\"", p.root);
    autojson json_t *v = list(&p, p.root, false, 10, NULL);
    ck_assert_str_eq(entry(v, 0, "name"), "caf\xef\xbf\xbd");
    ck_assert_str_eq(entry(v, 0, "name_base64"), "Y2Fm6Q==");
    ck_assert_ptr_nonnull(entry(v, 0, "path_base64"));
    place_done(&p);
}
END_TEST

START_TEST(delete_takes_links_and_never_their_targets)
{
    struct place p;
    place_init(&p, NULL);
    run("cd %s && mkdir -p d/e && ln -s %s d/out && ln -s . d/e/loop && ln -s %s l && ln -s none z",
        p.root, p.outside, p.outside);
    const char *path;
    struct abx_error err;
    ck_assert_int_lt(files_delete(p.g, p.root, strlen(p.root), OPS_FULL, &p.arena, &path, &err), 0);
    ck_assert_int_eq(err.kind, E_PATH_DENIED);
    ck_assert_int_lt(files_delete(p.g, "l/s", 3, OPS_FULL, &p.arena, &path, &err), 0);
    ck_assert_int_eq(err.kind, E_PATH_NOT_ALLOWED);
    ck_assert_int_lt(files_delete(p.g, "none", 4, OPS_FULL, &p.arena, &path, &err), 0);
    ck_assert_int_eq(err.kind, E_FILE_NOT_FOUND);
    ck_assert_int_eq(files_delete(p.g, "l", 1, OPS_FULL, &p.arena, &path, &err), 0);
    ck_assert_int_eq(files_delete(p.g, "z", 1, OPS_FULL, &p.arena, &path, &err), 0);
    ck_assert_int_eq(files_delete(p.g, "d", 1, OPS_FULL, &p.arena, &path, &err), 0);
    run("test -e %s/s && test ! -e %s/d && test ! -L %s/l", p.outside, p.root, p.root);
    place_done(&p);
}
END_TEST

START_TEST(delete_copes_with_trees_deeper_than_its_descriptors)
{
    struct place p;
    place_init(&p, NULL);
    run("cd %s && python3 -c \"import os\nfor i in range(1500):\n os.mkdir('d'); "
        "open('f','w').close(); "
        "os.chdir('d')\"",
        p.root);
    const char *path;
    struct abx_error err;
    ck_assert_int_eq(files_delete(p.g, "d", 1, OPS_FULL, &p.arena, &path, &err), 0);
    run("test ! -e %s/d", p.root);
    place_done(&p);
}
END_TEST

START_TEST(delete_refuses_a_tree_that_holds_a_denied_name)
{
    static const char *const deny[] = {"*.pem", NULL};
    struct place p;
    place_init(&p, deny);
    run("cd %s && mkdir -p d/e && touch d/a d/e/k.pem", p.root);
    const char *path;
    struct abx_error err;
    ck_assert_int_lt(files_delete(p.g, "d", 1, OPS_FULL, &p.arena, &path, &err), 0);
    ck_assert_int_eq(err.kind, E_PATH_DENIED);
    run("test -e %s/d/a", p.root);
    place_done(&p);
}
END_TEST

static int move(struct place *p, const char *from, const char *to, struct abx_error *err)
{
    const char *a, *b;
    return files_move(p->g, from, strlen(from), to, strlen(to), OPS_FULL, &p->arena, &a, &b, err);
}

START_TEST(move_loses_nothing_when_it_refuses)
{
    struct place p;
    place_init(&p, NULL);
    run("cd %s && mkdir -p d/e n/d && touch d/f n/x && ln -s %s/made dangling", p.root, p.outside);
    struct abx_error err;
    ck_assert_int_lt(move(&p, "d", "d/e/new/d", &err), 0);
    ck_assert_int_eq(err.kind, E_MOVE);
    ck_assert_int_lt(move(&p, "d", "n", &err), 0); /* n/d is there */
    ck_assert_int_eq(err.kind, E_MOVE);
    ck_assert_int_lt(move(&p, "d", "dangling", &err), 0);
    ck_assert_int_eq(err.kind, E_PATH_NOT_ALLOWED);
    ck_assert_int_lt(move(&p, "none", "b", &err), 0);
    ck_assert_int_eq(err.status, 404);
    run("cd %s && test -e d/f && test ! -e d/e/new && test ! -e %s/made", p.root, p.outside);
    place_done(&p);
}
END_TEST

START_TEST(move_replaces_a_link_and_goes_into_a_directory)
{
    struct place p;
    place_init(&p, NULL);
    run("cd %s && echo a > a && echo b > b && echo t > t && ln -s t l && mkdir d", p.root);
    ck_assert_int_eq(move(&p, "a", "l", NULL), 0);
    ck_assert_int_eq(move(&p, "b", "d", NULL), 0);
    ck_assert_int_eq(move(&p, "t", "t", NULL), 0);
    run("cd %s && test ! -L l && grep -q a l && grep -q t t && grep -q b d/b", p.root);
    place_done(&p);
}
END_TEST

/* A directory on another device: in /run, else on a mount of our own, which only we see. False: neither may be had. */
static bool other_device(const struct place *p, char other[80])
{
    struct stat a, b;
    strcpy(other, "/run/abx-files-XXXXXX");
    if (mkdtemp(other)) {
        if (stat(other, &a) == 0 && stat(p->root, &b) == 0 && a.st_dev != b.st_dev)
            return true;
        (void)rmdir(other);
    }
    snprintf(other, 80, "%s/mount", p->top);
    return mkdir(other, 0700) == 0 && unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("abx-test", other, "tmpfs", 0, "size=1m,mode=700") == 0;
}

static void other_done(const char *other)
{
    run("rm -rf %s/*", other);
    (void)umount(other); /* fails where it is none */
    (void)rmdir(other);  /* goes with the place otherwise */
}

START_TEST(move_crosses_devices)
{
    struct place p;
    place_init(&p, NULL);
    char other[80];
    if (!other_device(&p, other)) {
        place_done(&p);
        return;
    }
    guard_free(p.g);
    const char *const allow[] = {p.root, other, NULL};
    ck_assert_int_eq(
        guard_new(&(struct guard_config){.base_dir = p.root, .allow = allow}, &p.g, NULL), 0);
    run("cd %s && mkdir -p t/u && echo x > t/u/f && chmod 751 t/u/f && touch -d @1700000000 t/u/f "
        "&& "
        "ln -s u t/l && mkfifo t/p",
        p.root);
    char from[128], to[128];
    snprintf(from, sizeof from, "%s/t", p.root);
    snprintf(to, sizeof to, "%s/moved", other);
    ck_assert_int_eq(move(&p, from, to, NULL), 0);
    run("test ! -e %s && test -p %s/p && test \"$(readlink %s/l)\" = u && "
        "test \"$(stat -c '%%a %%Y' %s/u/f)\" = '751 1700000000' && test $(ls -A %s | wc -l) = 1",
        from, to, to, to, other);
    other_done(other);
    place_done(&p);
}
END_TEST

/* Permissions are what a read-only file system is to others: the source can be read, not removed. */
START_TEST(move_across_leaves_no_copy_of_what_it_cannot_remove)
{
    struct place p;
    place_init(&p, NULL);
    char other[80];
    if (!other_device(&p, other)) {
        place_done(&p);
        return;
    }
    guard_free(p.g);
    const char *const allow[] = {p.root, other, NULL};
    ck_assert_int_eq(
        guard_new(&(struct guard_config){.base_dir = p.root, .allow = allow}, &p.g, NULL), 0);
    run("cd %s && chmod 755 . .. && mkdir -p ro/sub open/deep/er && echo x > ro/f && echo y > ro/sub/g && "
        "echo z > open/a && echo w > open/deep/b && touch open/deep/er/c && echo old > %s/kept && chmod 777 open %s && "
        "chmod 555 ro open/deep",
        p.root, other, other);
    bool root = geteuid() == 0; /* whom modes don't bind */
    if (root)
        ck_assert_int_eq(seteuid(65534), 0);
    static const char *const sources[] = {"ro/f", "ro/sub", "open/deep", "open"}, *const names[] = {"new", "kept"};
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        char from[128], to[128];
        struct abx_error err;
        snprintf(from, sizeof from, "%s/%s", p.root, sources[i]);
        snprintf(to, sizeof to, "%s/%s", other, names[i % 2]);
        ck_assert_int_lt(move(&p, from, to, &err), 0);
        ck_assert_int_ge(err.status, 400);
    }
    if (root)
        ck_assert_int_eq(seteuid(0), 0);
    run("test \"$(ls -A %s)\" = kept && grep -q old %s/kept", other, other);
    run("cd %s && chmod -R u+w ro open && grep -q x ro/f && grep -q y ro/sub/g && grep -q z open/a && "
        "grep -q w open/deep/b && test -e open/deep/er/c && test $(ls -A open | wc -l) = 2",
        p.root);
    other_done(other);
    place_done(&p);
}
END_TEST

START_TEST(mkdir_makes_parents_and_the_target_of_a_dangling_link)
{
    struct place p;
    place_init(&p, NULL);
    run("cd %s && touch f && ln -s t l && ln -s %s/x out", p.root, p.outside);
    const char *path;
    struct abx_error err;
    ck_assert_int_lt(files_mkdir(p.g, "out/y", 5, &p.arena, &path, &err), 0);
    ck_assert_int_eq(err.kind, E_PATH_NOT_ALLOWED);
    ck_assert_int_lt(files_mkdir(p.g, "f", 1, &p.arena, &path, &err), 0);
    ck_assert_str_eq(err.type, "FileExistsError");
    ck_assert_int_lt(files_mkdir(p.g, "f/x", 3, &p.arena, &path, &err), 0);
    ck_assert_str_eq(err.type, "NotADirectoryError");
    ck_assert_int_eq(files_mkdir(p.g, "a/b/c", 5, &p.arena, &path, &err), 0);
    ck_assert_int_eq(files_mkdir(p.g, "a/b/c", 5, &p.arena, &path, &err), 0);
    ck_assert_int_eq(files_mkdir(p.g, "l", 1, &p.arena, &path, &err), 0);
    run("cd %s && test -d a/b/c && test -d t && test -L l && test ! -e %s/x", p.root, p.outside);
    place_done(&p);
}
END_TEST

START_TEST(search_finds_by_name_and_by_content)
{
    struct place p;
    place_init(&p, NULL);
    run("cd %s && mkdir -p d/e && echo needle > d/e/a.txt && echo hay > b.txt && ln -s d ld && ln "
        "-s . loop",
        p.root);
    struct search_options opt = {
        .pattern = "*.txt", .max_depth = 5, .max_results = 10, .deadline_ns = UINT64_MAX};
    const char *path;
    autobuf struct buf out = BUF_INIT;
    ck_assert_int_eq(files_search(p.g, p.root, strlen(p.root), &opt, &p.arena, &out, &path, NULL),
                     0);
    char want[400];
    snprintf(want, sizeof want,
             "{\"results\": [{\"name\": \"b.txt\", \"path\": \"%s/b.txt\"}, {\"name\": \"a.txt\", "
             "\"path\": "
             "\"%s/d/e/a.txt\"}], \"timed_out\": false, \"truncated\": false}",
             p.root, p.root);
    ck_assert_str_eq(buf_str(&out), want);
    buf_reset(&out);
    opt.content = "eedl";
    opt.content_len = 4;
    ck_assert_int_eq(files_search(p.g, p.root, strlen(p.root), &opt, &p.arena, &out, &path, NULL),
                     0);
    ck_assert_ptr_null(strstr(buf_str(&out), "b.txt"));
    ck_assert_ptr_nonnull(strstr(out.data, "a.txt"));
    buf_reset(&out);
    opt.deadline_ns = 0;
    ck_assert_int_eq(files_search(p.g, p.root, strlen(p.root), &opt, &p.arena, &out, &path, NULL),
                     0);
    ck_assert_ptr_nonnull(strstr(buf_str(&out), "\"timed_out\": true"));
    place_done(&p);
}
END_TEST

/* The paths that a search over 40 x 40 directories must give, in its order: a directory's files, then what lies below. */
static size_t expected_paths(const struct place *p, char (*ret)[112])
{
    size_t n = 0;
    for (int d = 0; d < 40; d++) {
        snprintf(ret[n++], sizeof *ret, "%s/d%02d/x.txt", p->root, d);
        for (int e = 0; e < 40; e++)
            for (int f = 0; f < 4; f++)
                snprintf(ret[n++], sizeof *ret, "%s/d%02d/e%02d/f%d.txt", p->root, d, e, f);
    }
    return n;
}

static bool after_some_calls(void *data)
{
    return atomic_fetch_sub((atomic_int *)data, 1) <= 0;
}

START_TEST(search_with_helpers_keeps_its_order_and_its_bounds)
{
    struct place p;
    place_init(&p, NULL);
    run("cd %s && mkdir -p $(seq -f d%%02g 0 39 | sed 's:$:/e:' | while read d; do seq -f $d%%02g 0 39; done) && "
        "touch $(for d in d*; do echo $d/x.txt $d/y.bin; done) && "
        "for d in d*/e*; do : >$d/f0.txt; : >$d/f1.txt; : >$d/f2.txt; : >$d/f3.txt; done", p.root);
    static char want[40 * 161][112];
    size_t n = expected_paths(&p, want);
    struct search_options opt = {.pattern = "*.txt", .max_depth = 5, .deadline_ns = UINT64_MAX};
    const size_t limits[] = {1, 2, 161, 162, 1000, n - 1, n, n + 1};
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
        autobuf struct buf out = BUF_INIT;
        const char *path;
        opt.max_results = (int64_t)limits[k];
        ck_assert_int_eq(files_search(p.g, p.root, strlen(p.root), &opt, &p.arena, &out, &path, NULL), 0);
        autojson json_t *answer = NULL;
        ck_assert_int_eq(json_parse(out.data, out.len, &answer, NULL), 0);
        json_t *results = json_object_get(answer, "results");
        ck_assert_uint_eq(json_array_size(results), limits[k] < n ? limits[k] : n);
        ck_assert_int_eq(json_is_true(json_object_get(answer, "truncated")), limits[k] < n);
        for (size_t i = 0; i < json_array_size(results); i++)
            ck_assert_str_eq(json_string_value(json_object_get(json_array_get(results, i), "path")), want[i]);
    }
    for (int calls = 0; calls < 2000; calls += 97) {
        autobuf struct buf out = BUF_INIT;
        const char *path;
        struct abx_error err;
        atomic_int left = calls;
        opt.cancelled = after_some_calls;
        opt.data = &left;
        ck_assert_int_lt(files_search(p.g, p.root, strlen(p.root), &opt, &p.arena, &out, &path, &err), 0);
        ck_assert_int_eq(err.kind, E_CANCELLED);
    }
    place_done(&p);
}
END_TEST

/* A thread swaps a directory for a link that leads out, again and again. */
struct swapper {
    const struct place *p;
    atomic_bool stop;
};

static void *swap(void *data)
{
    struct swapper *s = data;
    char dir[128], hidden[128], link[128];
    snprintf(dir, sizeof dir, "%s/d", s->p->root);
    snprintf(hidden, sizeof hidden, "%s/real", s->p->root);
    snprintf(link, sizeof link, "%s/link", s->p->root);
    while (!s->stop) {
        (void)rename(dir, hidden); /* losing these races is the point */
        (void)symlink(s->p->outside, link);
        (void)rename(link, dir);
        (void)unlink(dir);
        (void)rename(hidden, dir);
    }
    return NULL;
}

START_TEST(race_of_directory_and_link_never_reaches_outside)
{
    struct place p;
    place_init(&p, NULL);
    run("mkdir %s/d && echo mine > %s/d/s", p.root, p.root);
    struct swapper s = {.p = &p};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, swap, &s), 0);
    const char *env = getenv("ABX_RACE_ROUNDS");
    long rounds = env ? strtol(env, NULL, 10) : 4000;
    struct abx_error err;
    const char *path, *other;
    long reached = 0;
    for (long i = 0; i < rounds; i++) {
        arena_reset(&p.arena);
        autobuf struct buf out = BUF_INIT;
        struct list_options lo = {.recursive = true, .max_entries = 100, .max_depth = 3};
        struct guard_path gp;
        autoclose int fd = -1;
        switch (i % 6) {
        case 0:
            if (guard_open(p.g, "d/s", 3, OP_READ, O_RDONLY, 0, &p.arena, &gp, &fd, &err) == 0) {
                char text[8] = "";
                ck_assert_int_ge(read(fd, text, 6), 0);
                ck_assert_str_ne(text, "secret");
                reached++;
            }
            break;
        case 1:
            (void)files_mkdir(p.g, "d/new/x", 7, &p.arena, &path, &err);
            break;
        case 2:
            (void)files_delete(p.g, "d/new", 5, OPS_FULL, &p.arena, &path, &err);
            break;
        case 3:
            if (files_list(p.g, "d", 1, &lo, &p.arena, &out, &path, &err) == 0)
                ck_assert_ptr_null(strstr(buf_str(&out), "only-outside"));
            break;
        case 4:
            (void)files_move(p.g, "d/s", 3, "d/t", 3, OPS_FULL, &p.arena, &path, &other, &err);
            break;
        default:
            (void)files_move(p.g, "d/t", 3, "d/s", 3, OPS_FULL, &p.arena, &path, &other, &err);
            break;
        }
        if (i == 0)
            run("touch %s/only-outside", p.outside);
    }
    s.stop = true;
    pthread_join(thread, NULL);
    run("cd %s && test \"$(ls -A | tr '\\n' ' ')\" = 'only-outside s ' && grep -q secret s",
        p.outside);
    ck_assert_int_gt(reached, 0);
    place_done(&p);
}
END_TEST

TEST_MAIN("files_ops", listing_of_what_is_no_directory_is_404,
          listing_is_sorted_and_says_when_it_is_cut, names_that_are_no_utf8_come_with_their_bytes,
          delete_takes_links_and_never_their_targets,
          delete_copes_with_trees_deeper_than_its_descriptors,
          delete_refuses_a_tree_that_holds_a_denied_name, move_loses_nothing_when_it_refuses,
          move_replaces_a_link_and_goes_into_a_directory, move_crosses_devices,
          move_across_leaves_no_copy_of_what_it_cannot_remove,
          mkdir_makes_parents_and_the_target_of_a_dangling_link,
          search_finds_by_name_and_by_content,
          search_with_helpers_keeps_its_order_and_its_bounds, race_of_directory_and_link_never_reaches_outside)
