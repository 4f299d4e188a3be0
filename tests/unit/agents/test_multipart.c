#include "routes/agents/multipart.h"

#include "../check_main.h"

#include <string.h>

static int parse(const char *type, const char *body, struct multipart *m)
{
    struct abx_error err;
    return multipart_parse(type, body, strlen(body), m, &err);
}

static const char *field(const struct multipart *m, const char *name)
{
    return json_string_value(json_object_get(m->fields, name));
}

START_TEST(broken_bodies_are_refused)
{
    struct multipart m;
    ck_assert_int_lt(parse("multipart/form-data", "--b\r\n", &m), 0);
    multipart_done(&m);
    ck_assert_int_lt(parse("multipart/form-data; boundary=b", "nothing", &m), 0);
    multipart_done(&m);
    ck_assert_int_lt(parse("multipart/form-data; boundary=b",
                           "--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--", &m),
                     0);
    multipart_done(&m);
    ck_assert_int_lt(parse("multipart/form-data; boundary=b", "--b\r\nno head at all", &m), 0);
    multipart_done(&m);
}
END_TEST

START_TEST(fields_and_file_are_read)
{
    struct multipart m;
    ck_assert_int_eq(
        parse("multipart/form-data; boundary=\"b;x\"",
              "--b;x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n"
              "--b;x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a "
              "\\\"b.txt\"\r\n\r\n"
              "one\r\n--bnot\r\ntwo\r\n--b;x--\r\n",
              &m),
        0);
    ck_assert_str_eq(field(&m, "purpose"), "user_data");
    ck_assert_str_eq(field(&m, "filename"), "a \"b.txt");
    ck_assert(m.has_file);
    ck_assert_str_eq(buf_str(&m.file), "one\r\n--bnot\r\ntwo");
    multipart_done(&m);
}
END_TEST

START_TEST(loose_forms_are_tolerated)
{
    struct multipart m;
    ck_assert_int_eq(
        parse("Multipart/Form-Data; boundary=b",
              "--b\nContent-Disposition: form-data; name=file; filename*=UTF-8''caf%C3%A9\n"
              "Content-Transfer-Encoding: base64\n\naGVs\nbG8=\n",
              &m),
        0);
    ck_assert_str_eq(buf_str(&m.file), "hello");
    ck_assert_str_eq(field(&m, "filename"), "caf\xc3\xa9");
    multipart_done(&m);
}
END_TEST

TEST_MAIN("agents multipart", broken_bodies_are_refused, fields_and_file_are_read,
          loose_forms_are_tolerated)
