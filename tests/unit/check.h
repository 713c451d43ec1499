/* The smallest test harness that says what went wrong. One executable per file:
 *
 *     TEST(neighbours_become_one_segment)
 *     {
 *         EXPECT_EQ(count, 1);
 *     }
 *     CHECK_MAIN(RUN(neighbours_become_one_segment))
 *
 * Exit status: 0 passed, 1 failed, 77 skipped. EXPECT_* go on after a failure, REQUIRE_* return. */
#ifndef DDI_CHECK_H
#define DDI_CHECK_H

#include "datadist.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_failures;
static int check_tests;

#define TEST(name) static void name(void)

#define EXPECT_TRUE(condition)                                                              \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            check_failures++;                                                               \
            (void)fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                                   \
    } while (0)

#define EXPECT_EQ(found, wanted)                                                              \
    do {                                                                                      \
        uint64_t check_found = (uint64_t)(found);                                             \
        uint64_t check_wanted = (uint64_t)(wanted);                                           \
        if (check_found != check_wanted) {                                                    \
            check_failures++;                                                                 \
            (void)fprintf(stderr, "%s:%d: %s is %" PRIu64 ", wanted %" PRIu64 "\n", __FILE__, \
                          __LINE__, #found, check_found, check_wanted);                       \
        }                                                                                     \
    } while (0)

#define EXPECT_STATUS(call, wanted)                                                            \
    do {                                                                                       \
        dd_status check_status = (call);                                                       \
        if (check_status != (wanted)) {                                                        \
            check_failures++;                                                                  \
            (void)fprintf(stderr, "%s:%d: %s gave %s, wanted %s\n", __FILE__, __LINE__, #call, \
                          dd_status_name(check_status), dd_status_name(wanted));               \
        }                                                                                      \
    } while (0)

#define EXPECT_OK(call) EXPECT_STATUS(call, DD_OK)

#define EXPECT_CONTAINS(text, part)                                                              \
    do {                                                                                         \
        const char *check_text = (text);                                                         \
        if (strstr(check_text, (part)) == NULL) {                                                \
            check_failures++;                                                                    \
            (void)fprintf(stderr, "%s:%d: \"%s\" does not contain \"%s\"\n", __FILE__, __LINE__, \
                          check_text, (part));                                                   \
        }                                                                                        \
    } while (0)

#define REQUIRE_TRUE(condition)                                                             \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            check_failures++;                                                               \
            (void)fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            return;                                                                         \
        }                                                                                   \
    } while (0)

#define REQUIRE_OK(call)                                                            \
    do {                                                                            \
        dd_status check_required = (call);                                          \
        if (check_required != DD_OK) {                                              \
            check_failures++;                                                       \
            (void)fprintf(stderr, "%s:%d: %s gave %s\n", __FILE__, __LINE__, #call, \
                          dd_status_name(check_required));                          \
            return;                                                                 \
        }                                                                           \
    } while (0)

#define RUN(name)                                                                         \
    do {                                                                                  \
        int check_before = check_failures;                                                \
        check_tests++;                                                                    \
        name();                                                                           \
        (void)printf("%s %s\n", check_failures == check_before ? "ok  " : "FAIL", #name); \
    } while (0)

#define CHECK_MAIN(runs)                                                      \
    int main(void)                                                            \
    {                                                                         \
        (void)setvbuf(stdout, NULL, _IOLBF, 0);                               \
        runs;                                                                 \
        (void)printf("%d tests, %d failures\n", check_tests, check_failures); \
        return check_failures == 0 ? 0 : 1;                                   \
    }

#endif
