/* The URL guard: hosts as browsers read them. */

#include "base/own.h"
#include "policy/guards.h"

#include <arpa/inet.h>
#include <check.h>
#include <string.h>

static struct arena arena;
static struct url_rules rules;
static struct url_parts parts;
static struct abx_error err;

static void set_up(void)
{
    arena_init(&arena);
    rules = (struct url_rules){0};
}

static void tear_down(void) { arena_done(&arena); }

static void assert_refused(const char *url, enum error_kind kind)
{
    ck_assert_msg(url_check(&rules, url, strlen(url), &arena, &parts, &err) == -1,
                  "%s passed as %s", url, parts.host);
    ck_assert_msg(err.kind == kind, "%s: %s", url, err.code);
}

static void assert_host(const char *url, const char *host)
{
    ck_assert_msg(url_check(&rules, url, strlen(url), &arena, &parts, &err) == 0, "%s: %s", url,
                  err.message);
    ck_assert_str_eq(parts.host, host);
}

START_TEST(what_is_no_web_address_is_invalid)
{
    static const char *const t[] = {"",
                                    "example.com",
                                    "ftp://example.com/",
                                    "javascript:alert(1)",
                                    "data:text/html,x",
                                    "about:blank",
                                    "file:///etc/passwd",
                                    "http:",
                                    "http://",
                                    "http:///",
                                    "http:example.com",
                                    "http://exa mple.com/",
                                    "http://example.com/\n",
                                    "\thttp://example.com",
                                    "http://example.com:0/",
                                    "http://example.com:70000/",
                                    "http://example.com:x/",
                                    "http://[::1/",
                                    "http://[]/",
                                    "http://[::1%25lo]/",
                                    "http://[1.2.3.4]/",
                                    "http://a%00b/",
                                    "http://a%2fb/",
                                    "http://a<b/",
                                    "http://a^b/",
                                    "http://a|b/",
                                    "http://a%b/",
                                    "http://1.2.3.4.5/",
                                    "http://256.1/",
                                    "http://1.2.3.0x/x\x7f",
                                    "http://0x100000000/",
                                    "http://1.256.1.1/",
                                    "http://08/",
                                    "http://1..2/",
                                    "http://.example.com/",
                                    "http://user@/",
                                    "http://:80/",
                                    "http://\xff\xfe/",
                                    ("http://loc\xc2\xad" "alhost/"),
                                    "http://\xe2\x93\x9bocalhost/",
                                    "http://\xf0\x9d\x9f\x8f.1/",
                                    "http://x\xe2\x80\x8b/",
                                    "http://[::1]x/",
                                    "http://foo.0x7f.1.2.3.4/"};
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        assert_refused(t[i], E_URL_INVALID);
}
END_TEST

START_TEST(private_hosts_are_denied_in_every_spelling)
{
    static const char *const t[] = {"http://localhost/",
                                    "http://a.localhost/",
                                    "http://LOCALHOST:8080/",
                                    "http://localhost./",
                                    "http://127.0.0.1:9000/health",
                                    "http://10.1.2.3/",
                                    "https://172.16.0.1/",
                                    "http://192.168.1.1/",
                                    "http://0.0.0.0/",
                                    "http://0/",
                                    "http://example.com@127.0.0.1/",
                                    "http://a:b@c@127.0.0.1/",
                                    "http://127.1/",
                                    "http://127.0.1/",
                                    "http://2130706433/",
                                    "http://0x7f000001/",
                                    "http://0x7f.1/",
                                    "http://0177.0.0.1/",
                                    "http://017700000001/",
                                    "http://127.0.0.1./",
                                    "http://0x7F.0x0.0x0.0x1/",
                                    "http://%31%32%37.0.0.1/",
                                    "http://%6cocalhost/",
                                    "http://\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.1/",
                                    "http://127\xe3\x80\x82"
                                    "0\xe3\x80\x82"
                                    "0\xe3\x80\x82"
                                    "1/",
                                    "http://"
                                    "\xef\xbd\x8c\xef\xbd\x8f\xef\xbd\x83\xef\xbd\x81\xef\xbd\x8c"
                                    "\xef\xbd\x88\xef\xbd\x8f\xef\xbd\x93\xef\xbd\x94/",
                                    "http:\\\\127.0.0.1\\x",
                                    "http:/127.0.0.1/",
                                    "http:////127.0.0.1/",
                                    "http://169.254.169.254/latest",
                                    "http://100.64.0.1/",
                                    "http://224.0.0.1/",
                                    "http://255.255.255.255/",
                                    "http://198.18.0.1/",
                                    "http://203.0.113.9/",
                                    "http://[::1]/",
                                    "http://[::]/",
                                    "http://[fe80::1]/",
                                    "http://[fd00::1]/",
                                    "http://[::ffff:127.0.0.1]/",
                                    "http://[::ffff:7f00:1]/",
                                    "http://[::127.0.0.1]/",
                                    "http://[64:ff9b::10.0.0.1]/",
                                    "http://[64:ff9b:1::1]/",
                                    "http://[2002:7f00:1::]/",
                                    "http://[2002:c0a8:101::1]/",
                                    "http://[2001:db8::1]/",
                                    "http://[2001::1]/",
                                    "http://[ff02::1]/",
                                    "http://[fec0::1]/",
                                    "http://[::ffff:0:127.0.0.1]/",
                                    "http://[0:0:0:0:0:0:0:1]:80/"};
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        assert_refused(t[i], E_URL_DENIED);
    /* the authority ends at the backslash */
    assert_host("http://example.com\\@127.0.0.1/", "example.com");
}
END_TEST

START_TEST(public_hosts_pass_normalised)
{
    assert_host("http://example.com/", "example.com");
    ck_assert_int_eq(parts.port, 80);
    assert_host("HTTPS://user:pw@EXAMPLE.com:8443/a/../b/%2e%2e/c?q#f", "example.com");
    ck_assert_int_eq(parts.port, 8443);
    ck_assert_str_eq(parts.scheme, "https");
    ck_assert_str_eq(parts.href, "https://example.com:8443/c?q");
    assert_host("http://8.8.8.8/", "8.8.8.8");
    assert_host("http://134744072/", "8.8.8.8");
    assert_host("http://[2606:4700::1111]:81", "2606:4700::1111");
    ck_assert_str_eq(parts.href, "http://[2606:4700::1111]:81/");
    assert_host("http://[64:ff9b::8.8.8.8]/", "64:ff9b::808:808");
    assert_host("http://B\xc3\xbc"
                "cher.example/",
                "xn--bcher-kva.example");
    assert_host("http://\xe4\xb8\xad\xe6\x96\x87.com/", "xn--fiq228c.com");
    assert_host("http://xn--bcher-kva.example/", "xn--bcher-kva.example");
    assert_host("http://notlocalhost/", "notlocalhost");
    assert_host("http://1.2.3.4.example/", "1.2.3.4.example");
    assert_host("https://example.com:443", "example.com");
    ck_assert_str_eq(parts.href, "https://example.com/");
}
END_TEST

static struct str_list list_of(const char *item)
{
    const char **items = arena_alloc(&arena, sizeof *items);
    items[0] = item;
    return (struct str_list){1, items};
}

START_TEST(rules_answer_before_everything_else)
{
    struct str_list allow = list_of("https://example.com/*"), deny = list_of("*/admin/*");
    rules = (struct url_rules){.allow = &allow, .deny = &deny};
    assert_host("https://example.com/x", "example.com");
    assert_host("https://EXAMPLE.com:443/x", "example.com");
    assert_refused("https://other.example/", E_URL_NOT_ALLOWED);
    assert_refused("http://127.0.0.1/", E_URL_NOT_ALLOWED);
    assert_refused("https://example.com/admin/x", E_URL_NOT_ALLOWED);
    assert_refused("https://example.com/%61dmin/x", E_URL_NOT_ALLOWED);
    assert_refused("https://example.com/a/..\\admin\\x", E_URL_NOT_ALLOWED);
    assert_refused("https://example.com/@evil.com/../admin/", E_URL_NOT_ALLOWED);
    assert_refused("https://example.com@evil.com/x", E_URL_NOT_ALLOWED);
    assert_refused("ftp://example.com/", E_URL_NOT_ALLOWED);
    assert_refused("data:text/html,x", E_URL_NOT_ALLOWED);
    assert_refused("https://example.com/a b", E_URL_INVALID);
    allow = list_of("*");
    assert_refused("ftp://example.com/", E_URL_NOT_ALLOWED);
    assert_refused("http://10.0.0.1/", E_URL_DENIED);
    allow = list_of("*.example.com");
    assert_host("https://a.example.com/x", "a.example.com");
    assert_refused("https://evil.com/.example.com", E_URL_NOT_ALLOWED);
}
END_TEST

START_TEST(ipv6_addresses_are_plain_entries)
{
    static const char *const entries[] = {"2606:4700::1111", "[2606:4700::1111]", "[2606:4700:0:0::1111]"};
    for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
        struct str_list one = list_of(entries[i]);
        rules = (struct url_rules){.allow = &one};
        assert_host("http://[2606:4700::1111]:81/x", "2606:4700::1111");
        assert_refused("http://[2606:4700::1112]/", E_URL_NOT_ALLOWED);
        rules = (struct url_rules){.deny = &one};
        assert_refused("http://[2606:4700::1111]/", E_URL_NOT_ALLOWED);
        assert_host("http://[2606:4700::1112]/", "2606:4700::1112");
    }
    ck_assert(host_is_v6("::1", "[::1]") && host_is_v6("[::1]", "::1") && host_is_v6("0::1", "[::1]"));
    ck_assert(!host_is_v6("::1", "[::2]") && !host_is_v6("1", "1") && !host_is_v6("[::1", "::1"));
}
END_TEST

START_TEST(block_private_and_exceptions)
{
    rules = (struct url_rules){.block_private = true};
    assert_refused("http://localhost/", E_URL_NOT_ALLOWED);
    assert_refused("http://192.168.0.1/", E_URL_NOT_ALLOWED);
    assert_host("http://example.com/", "example.com");
    struct str_list ports = list_of("3000");
    rules.loopback_ports = &ports;
    assert_host("http://localhost:3000/x", "localhost");
    ck_assert(parts.loopback);
    assert_host("http://[::1]:3000/x", "::1");
    assert_host("http://127.1:3000", "127.0.0.1");
    assert_refused("http://localhost:3001/", E_URL_NOT_ALLOWED);
    assert_refused("http://10.0.0.1:3000/", E_URL_NOT_ALLOWED);
    rules = (struct url_rules){.allow_private = true};
    assert_host("http://10.0.0.1:3000/", "10.0.0.1");
}
END_TEST

START_TEST(addresses_of_connections_are_judged_alike)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    inet_pton(AF_INET, "10.0.0.1", &v4.sin_addr);
    ck_assert(address_is_private((struct sockaddr *)&v4));
    inet_pton(AF_INET, "1.1.1.1", &v4.sin_addr);
    ck_assert(!address_is_private((struct sockaddr *)&v4));
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    inet_pton(AF_INET6, "::ffff:10.0.0.1", &v6.sin6_addr);
    ck_assert(address_is_private((struct sockaddr *)&v6));
    inet_pton(AF_INET6, "2606:4700::1111", &v6.sin6_addr);
    ck_assert(!address_is_private((struct sockaddr *)&v6));
    struct sockaddr other = {.sa_family = AF_UNIX};
    ck_assert(address_is_private(&other));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("url");
    TCase *t = tcase_create("url");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, what_is_no_web_address_is_invalid);
    tcase_add_test(t, private_hosts_are_denied_in_every_spelling);
    tcase_add_test(t, public_hosts_pass_normalised);
    tcase_add_test(t, rules_answer_before_everything_else);
    tcase_add_test(t, ipv6_addresses_are_plain_entries);
    tcase_add_test(t, block_private_and_exceptions);
    tcase_add_test(t, addresses_of_connections_are_judged_alike);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
