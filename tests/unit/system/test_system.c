/* Host figures from fake trees, ports, packages, redaction. */

#include "base/json.h"
#include "base/own.h"
#include "system/cgroup.h"
#include "system/host.h"
#include "system/packages.h"
#include "system/ports.h"
#include "system/redact.h"

#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NO_LIMIT_V1 "9223372036854771712\n"

static char root[64];
static struct abx_error err;

static void set_up(void)
{
    strcpy(root, "/tmp/system-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    ck_assert_int_eq(system(command), 0);
}

/* Writes root + path, making its parents. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *s = full + strlen(root) + 1; (s = strchr(s, '/')); s++) {
        *s = '\0';
        mkdir(full, 0755);
        *s = '/';
    }
    autoclose int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void meminfo(int total_mb, int available_mb)
{
    char text[128];
    snprintf(text, sizeof text, "MemTotal: %d kB\nMemFree: 1 kB\nMemAvailable: %d kB\n",
             total_mb * 1024, available_mb * 1024);
    put("/proc/meminfo", text);
}

static struct memory memory(void)
{
    struct memory m;
    host_memory(root, &m);
    ck_assert_int_ge(m.used, 0);
    ck_assert_int_le(m.used, m.total);
    ck_assert_int_ge(m.available, 0);
    ck_assert_int_le(m.available, m.total);
    return m;
}

START_TEST(without_cgroups_the_machine_counts)
{
    meminfo(8192, 6144);
    struct memory m = memory();
    ck_assert_int_eq(m.total / MIB, 8192);
    ck_assert_int_eq(m.used / MIB, 2048);
    ck_assert_int_eq(m.limit, -1);
}
END_TEST

START_TEST(nothing_readable_gives_zeros)
{
    struct memory m = memory();
    ck_assert_int_eq(m.total, 0);
    ck_assert_int_eq(m.used, 0);
}
END_TEST

START_TEST(a_v2_limit_is_the_memory)
{
    meminfo(8192, 6144);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "536870912\n");
    put("/sys/fs/cgroup/memory.current", "419430400\n");
    put("/sys/fs/cgroup/memory.stat",
        "anon 1\ninactive_file 209715200\nactive_file 104857600\nslab_reclaimable 0\n");
    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    struct memory m = memory();
    ck_assert_int_eq(m.total / MIB, 512);
    ck_assert_int_eq(m.used / MIB, 100); /* 300 MiB of cache can be dropped */
    ck_assert_int_eq(m.available / MIB, 412);
    struct cgroup cg;
    cgroup_read(root, &cg);
    ck_assert_double_eq(cg.cpu_quota, 1.5);
    ck_assert_int_eq(host_cpus(1e9), host_cpus(-1));
    ck_assert_int_eq(host_cpus(0.5), 1);
}
END_TEST

START_TEST(max_huge_and_larger_limits_are_none)
{
    meminfo(1024, 512);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    struct cgroup cg;
    cgroup_read(root, &cg);
    ck_assert_int_eq(cg.memory_limit, -1);
    ck_assert_double_lt(cg.cpu_quota, 0);
    put("/sys/fs/cgroup/memory.max", "99999999999999\n");
    ck_assert_int_eq(memory().total / MIB, 1024);
    ck_assert_int_eq(memory().limit, -1);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", NO_LIMIT_V1);
    ck_assert_int_eq(memory().limit, -1);
}
END_TEST

START_TEST(the_tightest_of_nested_groups_counts)
{
    meminfo(8192, 8000);
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/sys/fs/cgroup/a/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/a/memory.current", "10485760\n");
    put("/sys/fs/cgroup/a/b/memory.max", "268435456\n");
    put("/sys/fs/cgroup/a/b/memory.current", "20971520\n");
    put("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/c/memory.current", "5242880\n");
    put("/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
    put("/sys/fs/cgroup/a/b/c/cpu.max", "200000 100000\n");
    struct memory m = memory();
    ck_assert_int_eq(m.total / MIB, 256);
    ck_assert_int_eq(m.used / MIB, 20);
    struct cgroup cg;
    cgroup_read(root, &cg);
    ck_assert_double_eq(cg.cpu_quota, 0.5);
}
END_TEST

START_TEST(v1_limits_count_also_without_a_namespace)
{
    meminfo(8192, 8000);
    put("/proc/self/cgroup",
        "12:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n1:name=systemd:/docker/x\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "536870912\n"); /* the mount's top is our group */
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "314572800\n");
    put("/sys/fs/cgroup/memory/memory.stat",
        "cache 1\ntotal_inactive_file 104857600\ntotal_active_file 104857600\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "5000000\n");
    struct memory m = memory();
    ck_assert_int_eq(m.total / MIB, 512);
    ck_assert_int_eq(m.used / MIB, 100);
    struct cgroup cg;
    cgroup_read(root, &cg);
    ck_assert_double_eq(cg.cpu_quota, 1);
    ck_assert_int_eq(cg.cpu_usage_us, 5000);
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    cgroup_read(root, &cg);
    ck_assert_double_lt(cg.cpu_quota, 0);
}
END_TEST

START_TEST(used_never_leaves_its_bounds)
{
    meminfo(1024, 900);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "104857600\n");
    put("/sys/fs/cgroup/memory.current", "209715200\n");
    ck_assert_int_eq(memory().used, memory().total);
    put("/sys/fs/cgroup/memory.stat", "inactive_file 999999999999\n");
    ck_assert_int_eq(memory().used, 0);
    put("/proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 5000 kB\n");
    memory();
}
END_TEST

START_TEST(broken_trees_are_harmless)
{
    put("/proc/self/cgroup", "\n::\n0:\nx\n0::/../../..\n4:memory");
    put("/proc/meminfo", "MemTotal:\nMemAvailable: x\n");
    put("/proc/loadavg", "nan inf");
    put("/proc/net/dev", "x\ny:1 2\n");
    put("/proc/1/stat", "1 (");
    put("/proc/2/stat", "2 (a) b) S 1 2 3");
    struct cpu_sample cpu = {0};
    struct host host = {.root = root, .base_dir = "/no/such", .python_version = ""};
    autojson json_t *metrics = host_metrics(&host, &cpu, &err), *info = host_info(&host, &err);
    ck_assert_ptr_nonnull(metrics);
    ck_assert_ptr_nonnull(info);
    ck_assert_double_eq(json_real_value(json_object_get(metrics, "cpu_load_1m")), 0);
    ck_assert_double_eq(json_real_value(json_object_get(metrics, "base_disk_percent")), 0);
    ck_assert_double_eq(json_real_value(json_object_get(metrics, "memory_percent")), 0);
}
END_TEST

START_TEST(metrics_have_processes_and_interfaces)
{
    meminfo(1000, 750);
    put("/proc/loadavg", "0.10 0.20 1.05 1/2 3\n");
    put("/proc/net/dev", "head\n head\n  eth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n");
    put("/proc/7/stat", "7 (a) (b) S 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 3 0 100 1000 256 0\n");
    put("/proc/8/stat", "8 (big) R 1 8 8 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 100 1000 512 0\n");
    struct cpu_sample cpu = {0};
    struct host host = {.root = root, .base_dir = root, .python_version = ""};
    autojson json_t *m = host_metrics(&host, &cpu, &err);
    ck_assert_double_eq(json_real_value(json_object_get(m, "cpu_load_15m")), 1.05);
    ck_assert_int_eq(json_integer_value(json_object_get(m, "memory_used_mb")), 250);
    ck_assert_double_eq(json_real_value(json_object_get(m, "memory_percent")), 25);
    ck_assert_int_eq(json_integer_value(json_object_get(m, "process_count")), 2);
    json_t *list = json_object_get(m, "processes");
    ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(list, 0), "pid")), 8);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(list, 1), "name")), "a) (b");
    json_t *eth = json_array_get(json_object_get(m, "network"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(eth, "tx_bytes")), 20);
    ck_assert_double_gt(json_real_value(json_object_get(m, "base_disk_total_gb")), 0);
}
END_TEST

/* --- ports -------------------------------------------------------------------------------------
 */

static int listen_on(int family, int *ret_port)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr *addr = family == AF_INET ? (void *)&v4 : (void *)&v6;
    socklen_t len = family == AF_INET ? sizeof v4 : sizeof v6;
    if (bind(fd, addr, len) < 0 || listen(fd, 1) < 0) {
        close(fd);
        return -1;
    }
    ck_assert_int_eq(getsockname(fd, addr, &len), 0);
    *ret_port = ntohs(family == AF_INET ? v4.sin_port : v6.sin6_port);
    return fd;
}

static const json_t *find_port(const json_t *list, int port)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)list, i, one)
    {
        if (json_integer_value(json_object_get(one, "port")) == port)
            return one;
    }
    return NULL;
}

START_TEST(own_listeners_are_found_with_their_pid)
{
    int port = 0, port6 = 0;
    autoclose int fd = listen_on(AF_INET, &port);
    autoclose int fd6 = listen_on(AF_INET6, &port6);
    ck_assert_int_ge(fd, 0);
    struct port_owners owners = {0};
    for (int round = 0; round < 2; round++) { /* the second one from memory */
        autojson json_t *list = ports_list("", &owners, &err);
        const json_t *one = find_port(list, port);
        ck_assert_ptr_nonnull(one);
        ck_assert_str_eq(json_string_value(json_object_get(one, "address")), "127.0.0.1");
        ck_assert_str_eq(json_string_value(json_object_get(one, "protocol")), "tcp");
        ck_assert_int_gt(json_integer_value(json_object_get(one, "pid")), 0);
        if (fd6 >= 0) {
            one = find_port(list, port6);
            ck_assert_str_eq(json_string_value(json_object_get(one, "address")), "[::1]");
            ck_assert_str_eq(json_string_value(json_object_get(one, "protocol")), "tcp6");
        }
    }
    port_owners_done(&owners);
}
END_TEST

START_TEST(tables_are_read_where_netlink_is_missing)
{
    put("/proc/net/tcp",
        "  sl  local_address rem_address   st\n"
        "   0: 0100007F:2328 00000000:0000 0A 0:0 00:0 0 0 0 77 1 0 100 0 0 10 0\n"
        "   1: 0100007F:2328 0100007F:9999 01 0:0 00:0 0 0 0 78 1 0 100 0 0 10 0\nbroken\n");
    put("/proc/net/tcp6", "  sl\n   0: 00000000000000000000000001000000:1F90 "
                          "00000000000000000000000000000000:0000 0A "
                          "0:0 00:0 0 0 0 79 1\n");
    put("/proc/42/comm", "a b\n");
    char link[128];
    snprintf(link, sizeof link, "%s/proc/42/fd", root);
    mkdir(link, 0755);
    strcat(link, "/5");
    ck_assert_int_eq(symlink("socket:[77]", link), 0);
    struct port_owners owners = {0};
    autojson json_t *list = ports_list(root, &owners, &err);
    ck_assert_uint_eq(json_array_size(list), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(find_port(list, 9000), "pid")), 42);
    ck_assert_str_eq(json_string_value(json_object_get(find_port(list, 9000), "process")), "a b");
    ck_assert(json_is_null(json_object_get(find_port(list, 8080), "pid")));
    ck_assert_str_eq(json_string_value(json_object_get(find_port(list, 8080), "address")), "[::1]");
    port_owners_done(&owners);
}
END_TEST

static void put_socket(int pid, int fd, int inode)
{
    char link[160], target[40];
    snprintf(link, sizeof link, "%s/proc/%d/fd/%d", root, pid, fd);
    snprintf(target, sizeof target, "socket:[%d]", inode);
    ck_assert_int_eq(symlink(target, link), 0);
}

START_TEST(holders_are_found_without_looking_at_every_connection)
{
    char dir[128];
    static const int pids[] = {42, 43};
    for (size_t i = 0; i < ARRAY_LEN(pids); i++) {
        char comm[40];
        snprintf(comm, sizeof comm, "/proc/%d/comm", pids[i]);
        put(comm, "x\n");
        snprintf(dir, sizeof dir, "%s/proc/%d/fd", root, pids[i]);
        mkdir(dir, 0755);
        put_socket(pids[i], 4, pids[i]);
        for (int fd = 100; fd < 3100; fd++)
            put_socket(pids[i], fd, 100000 * (int)i + fd);
    }
    static const char head[] = "  sl\n   0: 0100007F:2328 00000000:0000 0A 0:0 00:0 0 0 0 42 1\n"
                               "   1: 0100007F:2329 00000000:0000 0A 0:0 00:0 0 0 0 43 1\n";
    put("/proc/net/tcp", head);
    put("/proc/net/tcp6", "  sl\n");
    struct port_owners owners = {0};
    json_t *list = ports_list(root, &owners, &err);
    ck_assert_int_eq(json_integer_value(json_object_get(find_port(list, 9000), "pid")), 42);
    ck_assert_int_eq(json_integer_value(json_object_get(find_port(list, 9001), "pid")), 43);
    ck_assert_uint_le(owners.looked, 200);
    json_decref(list);

    /* One that lies between the connections is found all the same. */
    char more[sizeof head + 100];
    snprintf(more, sizeof more, "%s   2: 0100007F:232A 00000000:0000 0A 0:0 00:0 0 0 0 101500 1\n", head);
    put("/proc/net/tcp", more);
    list = ports_list(root, &owners, &err);
    ck_assert_int_eq(json_integer_value(json_object_get(find_port(list, 9002), "pid")), 43);
    ck_assert_uint_gt(owners.looked, 200);
    json_decref(list);
    list = ports_list(root, &owners, &err);
    ck_assert_uint_eq(owners.looked, 0);
    json_decref(list);

    /* Nobody's: the search is bounded. */
    snprintf(more, sizeof more, "%s   2: 0100007F:232B 00000000:0000 0A 0:0 00:0 0 0 0 7 1\n", head);
    put("/proc/net/tcp", more);
    for (int fd = 4000; fd < 20000; fd++)
        put_socket(42, fd, 10000000 + fd);
    list = ports_list(root, &owners, &err);
    ck_assert(json_is_null(json_object_get(find_port(list, 9003), "pid")));
    ck_assert_uint_le(owners.looked, 20000);
    json_decref(list);
    port_owners_done(&owners);
}
END_TEST

/* --- packages ----------------------------------------------------------------------------------
 */

static struct package_cache cache;

static void assert_packages(struct package_query q, const char *want)
{
    char base[128];
    snprintf(base, sizeof base, "%s/base", root);
    q.root = root;
    q.base_dir = base;
    if (!q.search_path)
        q.search_path = "/bin";
    ck_assert_int_eq(packages_read(&q, &cache, &err), 0);
    autojson json_t *answer = json_loads(cache.json, 0, NULL);
    autobuf struct buf out = BUF_INIT;
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(answer, "packages"), i, one)
    {
        buf_addf(&out, "%s %s;", json_string_value(json_object_get(one, "name")),
                 json_string_value(json_object_get(one, "version")));
    }
    ck_assert_str_eq(out.len ? buf_str(&out) : "", want);
}

START_TEST(missing_databases_are_empty_lists)
{
    for (int m = 0; m < PACKAGE_MANAGERS; m++)
        assert_packages(
            (struct package_query){.manager = (enum package_manager)m, .search_path = "/no"}, "");
    enum package_manager manager;
    ck_assert_int_eq(package_manager_parse("PIP", &manager), -1);
    ck_assert_int_eq(package_manager_parse("apt", &manager), -1);
    ck_assert_int_eq(package_manager_parse("dpkg", &manager), 0);
}
END_TEST

START_TEST(dpkg_lists_what_is_installed)
{
    struct package_query q = {.manager = PACKAGES_DPKG};
    put("/var/lib/dpkg/status", "Package: zed\nStatus: install ok installed\nVersion: "
                                "1:2-3\nDescription: x\n Version: no\n\n"
                                "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
                                "Package: half\nStatus: install ok half-installed\nVersion: 1\n\n"
                                "Package: abc\nStatus: install ok installed\nVersion: 0.1");
    assert_packages(q, "abc 0.1;zed 1:2-3;");
    put("/var/lib/dpkg/status", "");
    put("/var/lib/dpkg/status.d/base", "Package: base-files\nVersion: 12\n");
    assert_packages(q, "base-files 12;");
}
END_TEST

START_TEST(apk_lists_its_database)
{
    put("/lib/apk/db/installed",
        "C:x\nP:musl\nV:1.2-r0\nA:x86_64\n\nP:busybox\nV:1.36-r1\nF:bin\n\n");
    assert_packages((struct package_query){.manager = PACKAGES_APK},
                    "busybox 1.36-r1;musl 1.2-r0;");
}
END_TEST

START_TEST(npm_lists_the_project_or_the_globals)
{
    struct package_query q = {.manager = PACKAGES_NPM};
    put("/base/node_modules/left/package.json", "{\"version\":\"1.2.3\"}");
    put("/base/node_modules/@s/right/package.json", "{\"version\":\"2.0.0\"}");
    put("/base/node_modules/.bin/x/package.json", "{\"version\":\"9\"}");
    put("/base/node_modules/broken/package.json", "{");
    assert_packages(q, "@s/right 2.0.0;left 1.2.3;");
    put("/base/package.json",
        "{\"dependencies\":{\"left\":\"^1\",\"missing\":\"1\",\"../../etc\":\"1\"}}");
    assert_packages(q, "left 1.2.3;");
    put("/usr/lib/node_modules/npm/package.json", "{\"version\":\"9.2\"}");
    q.global = true;
    q.search_path = "/usr/bin";
    assert_packages(q, "npm 9.2;");
}
END_TEST

/* An interpreter that only looks like one: nothing may start it. */
static void fake_python(const char *dir)
{
    char path[256], link[256];
    snprintf(path, sizeof path, "%s/python3.11", dir);
    put(path, "\177ELF, never run");
    snprintf(link, sizeof link, "%s%s/python3", root, dir);
    ck_assert_int_eq(symlink("python3.11", link), 0);
}

START_TEST(pip_reads_what_python3_would_import)
{
    char search[128];
    fake_python("/usr/bin");
    snprintf(search, sizeof search, "/no:%s/usr/bin", root);
    /* the interpreter's own path already lies in the tree */
    struct package_query q = {.manager = PACKAGES_PIP, .search_path = search};
    put("/usr/lib/python3.11/site-packages/Foo_Bar-1.0.dist-info/METADATA",
        "Metadata-Version: 2.1\r\nName: Foo.Bar\r\nVersion: 1.0\r\n\r\nVersion: no\r\n");
    put("/usr/lib/python3/dist-packages/foo_bar-0.9.dist-info/METADATA",
        "Name: foo-bar\nVersion: 0.9\n");
    put("/usr/lib/python3/dist-packages/six-1.16.egg-info/PKG-INFO", "Name: six\nVersion: 1.16\n");
    put("/usr/lib/python3/dist-packages/one.egg-info", "Name: one\nVersion: 3\n");
    put("/usr/lib/python3/dist-packages/nometa-4.5.dist-info/RECORD", "");
    put("/usr/lib/python3/dist-packages/six/__init__.py", "");
    q.root = "";
    ck_assert_int_eq(packages_read(&q, &cache, &err), 0);
    ck_assert_str_eq(
        cache.json,
        "{\"manager\": \"pip\", \"packages\": [{\"name\": \"Foo.Bar\", \"version\": \"1.0\"}, "
        "{\"name\": \"nometa\", \"version\": \"4.5\"}, {\"name\": \"one\", \"version\": \"3\"}, "
        "{\"name\": \"six\", \"version\": \"1.16\"}]}");
}
END_TEST

START_TEST(pip_stays_within_a_virtual_environment)
{
    char search[128];
    fake_python("/venv/bin");
    snprintf(search, sizeof search, "%s/venv/bin", root);
    put("/venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n");
    put("/venv/lib/python3.11/site-packages/a-1.dist-info/METADATA", "Name: a\nVersion: 1\n");
    put("/home/.local/lib/python3.11/site-packages/b-2.dist-info/METADATA",
        "Name: b\nVersion: 2\n");
    char home[128];
    snprintf(home, sizeof home, "%s/home", root);
    struct package_query q = {
        .manager = PACKAGES_PIP, .search_path = search, .root = "", .home = home};
    ck_assert_int_eq(packages_read(&q, &cache, &err), 0);
    ck_assert_ptr_nonnull(strstr(cache.json, "\"a\""));
    ck_assert_ptr_null(strstr(cache.json, "\"b\""));
    put("/venv/pyvenv.cfg", "include-system-site-packages = true\n");
    put("/venv/lib/python3.11/site-packages/c-1.dist-info/METADATA", "Name: c\nVersion: 1\n");
    ck_assert_int_eq(packages_read(&q, &cache, &err), 0);
    ck_assert_ptr_nonnull(strstr(cache.json, "\"b\""));
}
END_TEST

START_TEST(answers_are_kept_until_something_changes)
{
    struct package_query q = {.manager = PACKAGES_APK};
    put("/lib/apk/db/installed", "P:a\nV:1\n\n");
    assert_packages(q, "a 1;");
    const char *before = cache.json;
    assert_packages(q, "a 1;");
    ck_assert_ptr_eq(cache.json, before);
    put("/lib/apk/db/installed", "P:a\nV:1.1\n\n");
    assert_packages(q, "a 1.1;");
}
END_TEST

START_TEST(rpm_headers_are_read_from_sqlite)
{
    char command[2048];
    mkdir((snprintf(command, sizeof command, "%s/var", root), command), 0755);
    mkdir((snprintf(command, sizeof command, "%s/var/lib", root), command), 0755);
    mkdir((snprintf(command, sizeof command, "%s/var/lib/rpm", root), command), 0755);
    snprintf(command, sizeof command,
             "python3 - %s/var/lib/rpm/rpmdb.sqlite <<'E' 2>/dev/null\n"
             "import sqlite3, struct, sys\n"
             "def header(name, version, release, epoch=None):\n"
             "    data, index = b'', []\n"
             "    for tag, text in ((1000, name), (1001, version), (1002, release)):\n"
             "        index.append((tag, 6, len(data), 1)); data += text.encode() + b'\\0'\n"
             "    if epoch is not None:\n"
             "        data += b'\\0' * (-len(data) %% 4)\n"
             "        index.append((1003, 4, len(data), 1)); data += struct.pack('>I', epoch)\n"
             "    return struct.pack('>II', len(index), len(data)) + b''.join(struct.pack('>IIII', "
             "*i) for i in index) + data\n"
             "db = sqlite3.connect(sys.argv[1])\n"
             "db.execute('CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB NOT NULL)')\n"
             "for b in (header('bash', '5.1', '6.el9'), header('vim', '8.2', '1', 2), "
             "header('gpg-pubkey', '1', '1'), b'\\xff' * 40, b''):\n"
             "    db.execute('INSERT INTO Packages (blob) VALUES (?)', (b,))\n"
             "db.commit()\nE\n",
             root);
    if (system(command) != 0)
        return; /* no python3 with sqlite here: nothing to build the database with */
    assert_packages((struct package_query){.manager = PACKAGES_RPM}, "bash 5.1-6.el9;vim 2:8.2-1;");
}
END_TEST

/* --- redaction ---------------------------------------------------------------------------------
 */

START_TEST(secret_names_are_hidden)
{
    static const char *const yes[] = {
        "My_ToKeN",      "db_password",   "X_APIKEY_Y", "MONKEY",      "CREDENTIALS",
        "my_secret",     "MYSQL_PWD",     "PGPASS",     "AUTH_HEADER", "Authorization",
        "PRIVATE_THING", "SSH_AUTH_SOCK", "DB_PASSWD",  "PASSPHRASE"};
    static const char *const no[] = {"NORMAL",     "PATH",      "PWD",  "OLDPWD", "GIT_AUTHOR_NAME",
                                     "XAUTHORITY", "COMPASS_X", "HOME", "LANG",   "ABX_PTY_PORT"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++)
        ck_assert_msg(redact_name(yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < ARRAY_LEN(no); i++)
        ck_assert_msg(!redact_name(no[i]), "%s", no[i]);
}
END_TEST

START_TEST(secret_values_are_hidden)
{
    static const char *const yes[] = {
        "postgres://u:p@h/db",     "x redis://:pw@h", "-----BEGIN RSA PRIVATE KEY-----\nx",
        "Bearer abcdefgh",         "sk-abcdefghij",   "ghp_0123456789",
        "eyJhbGciOiJIUzI1NiJ9.x.y"};
    static const char *const no[] = {
        "https://h/x?a=b@c", "http://user@h/", "http://h:80/@x", "", "sk-x", "hello",
        "/usr/bin:/bin",     "http://u:@h"};
    for (size_t i = 0; i < ARRAY_LEN(yes); i++)
        ck_assert_msg(redact_value(yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < ARRAY_LEN(no); i++)
        ck_assert_msg(!redact_value(no[i]), "%s", no[i]);
}
END_TEST

START_TEST(python_is_named_without_starting_it)
{
    char search[256];
    fake_python("/usr/bin");
    snprintf(search, sizeof search, "/no:%s/usr/bin", root);
    autofree char *minor = host_python_version(search);
    ck_assert_str_eq(minor, "3.11");
    put("/usr/include/python3.11/patchlevel.h",
        "#define PY_MAJOR_VERSION 3\n#define PY_VERSION      \t\"3.11.9rc1\"\n");
    autofree char *exact = host_python_version(search);
    ck_assert_str_eq(exact, "3.11.9rc1");
    autofree char *none = host_python_version("/no");
    ck_assert_str_eq(none, "");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("system");
    TCase *t = tcase_create("system");
    tcase_set_timeout(t, 30);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, without_cgroups_the_machine_counts);
    tcase_add_test(t, nothing_readable_gives_zeros);
    tcase_add_test(t, a_v2_limit_is_the_memory);
    tcase_add_test(t, max_huge_and_larger_limits_are_none);
    tcase_add_test(t, the_tightest_of_nested_groups_counts);
    tcase_add_test(t, v1_limits_count_also_without_a_namespace);
    tcase_add_test(t, used_never_leaves_its_bounds);
    tcase_add_test(t, broken_trees_are_harmless);
    tcase_add_test(t, metrics_have_processes_and_interfaces);
    tcase_add_test(t, own_listeners_are_found_with_their_pid);
    tcase_add_test(t, tables_are_read_where_netlink_is_missing);
    tcase_add_test(t, holders_are_found_without_looking_at_every_connection);
    tcase_add_test(t, missing_databases_are_empty_lists);
    tcase_add_test(t, dpkg_lists_what_is_installed);
    tcase_add_test(t, apk_lists_its_database);
    tcase_add_test(t, npm_lists_the_project_or_the_globals);
    tcase_add_test(t, pip_reads_what_python3_would_import);
    tcase_add_test(t, pip_stays_within_a_virtual_environment);
    tcase_add_test(t, answers_are_kept_until_something_changes);
    tcase_add_test(t, rpm_headers_are_read_from_sqlite);
    tcase_add_test(t, secret_names_are_hidden);
    tcase_add_test(t, secret_values_are_hidden);
    tcase_add_test(t, python_is_named_without_starting_it);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    package_cache_done(&cache);
    return failed != 0;
}
