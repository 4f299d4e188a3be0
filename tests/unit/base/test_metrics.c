#include "base/metrics.h"
#include "../check_main.h"

#include <stdlib.h>
#include <string.h>

/* What m looks like, as one text; the caller frees. */
static char *written(const struct metrics *m, bool openmetrics)
{
    struct buf out = BUF_INIT;
    struct metric_writer w = {.out = &out, .openmetrics = openmetrics};
    size_t len;
    metrics_write(m, &w);
    char *text = buf_take(&out, &len);
    ck_assert_ptr_nonnull(text);
    return text;
}

START_TEST(label_values_are_escaped)
{
    struct buf out = BUF_INIT;
    metric_escape(&out, "a\"b\\c\nd");
    ck_assert_str_eq(buf_str(&out), "a\\\"b\\\\c\\nd");
    buf_done(&out);
}
END_TEST

START_TEST(errors_that_look_alike_are_one_series)
{
    struct metrics m = {0};
    m.errors[E_VALUE] = 2;             /* ValueError without a code */
    m.errors[E_SESSION_NOT_FOUND] = 3; /* the same on the wire */
    m.errors[E_RATE_LIMITED] = 5;
    char *text = written(&m, false);
    ck_assert_ptr_nonnull(strstr(text, "\nabx_http_errors_total{type=\"ValueError\",code=\"\"} 5\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nabx_http_errors_total{type=\"RateLimited\",code=\"rate_limited\"} 5\n"));
    char *series = strstr(text, "\nabx_http_errors_total{");
    size_t n = 0;
    for (; series; series = strstr(series + 1, "\nabx_http_errors_total{"))
        n++;
    ck_assert_uint_eq(n, 2);
    free(text);
}
END_TEST

START_TEST(a_family_is_announced_once_under_the_name_of_its_format)
{
    struct metrics m = {.ended_zero = 1, .ended_signal = 2};
    char *classic = written(&m, false), *open = written(&m, true);
    ck_assert_ptr_nonnull(strstr(classic, "# TYPE abx_processes_ended_total counter\n"));
    ck_assert_ptr_nonnull(strstr(open, "# TYPE abx_processes_ended counter\n"));
    const char *first = strstr(classic, "# HELP abx_processes_ended_total ");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(strstr(first + 1, "# HELP abx_processes_ended_total "));
    ck_assert_ptr_nonnull(strstr(open, "\nabx_processes_ended_total{outcome=\"signal\"} 2\n"));
    free(classic);
    free(open);
}
END_TEST

TEST_MAIN("metrics", label_values_are_escaped, errors_that_look_alike_are_one_series,
          a_family_is_announced_once_under_the_name_of_its_format)
