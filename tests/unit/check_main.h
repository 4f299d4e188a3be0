#pragma once
/* main() of a unit test: runs every START_TEST of the list. CK_FORK follows the environment. */

#include <check.h>
#include <stdlib.h>

#define TEST_MAIN(suite_name, ...)                                                                 \
    int main(void)                                                                                 \
    {                                                                                              \
        const TTest *const tests[] = {__VA_ARGS__};                                                \
        Suite *suite = suite_create(suite_name);                                                   \
        TCase *tcase = tcase_create(suite_name);                                                   \
        tcase_set_timeout(tcase, 60);                                                              \
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)                                  \
            tcase_add_test(tcase, tests[i]);                                                       \
        suite_add_tcase(suite, tcase);                                                             \
        SRunner *runner = srunner_create(suite);                                                   \
        srunner_run_all(runner, CK_NORMAL);                                                        \
        int failed = srunner_ntests_failed(runner);                                                \
        srunner_free(runner);                                                                      \
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;                                               \
    }
