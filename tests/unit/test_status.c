/* Status names and error texts: every number has its own name, texts are whole or cut cleanly. */
#include "base/status.h"

#include "check.h"

#include <errno.h>

static const dd_status all[] = {
    DD_OK,
    DD_FAILED,
    DD_NO_CACHE,
    DD_REPEATED,
    DD_COMPLETED,
    DD_INVALID,
    DD_FINALIZED,
    DD_NOT_LINKED,
    DD_ALREADY_LINKED,
    DD_LINK_FAILED,
    DD_UNLINK_FAILED,
    DD_PEER_NOT_TOLD,
    DD_TOO_MANY_CLUSTERS,
    DD_LINK_IN_PROGRESS,
    DD_PREFIX_EXISTS,
    DD_NO_PREFIX,
    DD_TOO_LONG,
    DD_NO_FREE_BLOCK,
    DD_BLOCKS_NO_MEMORY,
    DD_KEY_EXISTS,
    DD_LINKS_EXIST,
    DD_NOT_ENABLED,
    DD_TIMEOUT,
    DD_LINK_BUSY,
    DD_NO_MEMORY,
};

#define COUNT (sizeof(all) / sizeof(all[0]))

TEST(every_status_has_a_name_of_its_own)
{
    for (size_t i = 0; i < COUNT; i++) {
        const char *name = dd_status_name(all[i]);

        EXPECT_TRUE(strncmp(name, "DD_", 3) == 0);
        for (size_t k = 0; k < i; k++) {
            EXPECT_TRUE(strcmp(name, dd_status_name(all[k])) != 0);
        }
    }
    EXPECT_CONTAINS(dd_status_name(DD_TIMEOUT), "DD_TIMEOUT");
}

TEST(a_number_that_is_no_status_has_no_name)
{
    const dd_status others[] = {1, DD_INVALID + 1000, DDI_AGAIN, DDI_UNSUPPORTED};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        EXPECT_CONTAINS(dd_status_name(others[i]), "unknown status");
    }
}

TEST(internal_statuses_are_negative_and_no_public_ones)
{
    EXPECT_TRUE((int32_t)DDI_AGAIN < 0);
    EXPECT_TRUE((int32_t)DDI_UNSUPPORTED < 0);
    for (size_t i = 0; i < COUNT; i++) {
        EXPECT_TRUE(all[i] != DDI_AGAIN && all[i] != DDI_UNSUPPORTED);
    }
}

TEST(a_failure_fills_all_of_the_error)
{
    dd_error err = {.status = DD_TIMEOUT, .system_error = EPIPE, .text = "what stood here before"};

    EXPECT_STATUS(ddi_fail(&err, DD_INVALID, "block %d of %s", 7, "nine"), DD_INVALID);
    EXPECT_EQ(err.status, DD_INVALID);
    EXPECT_EQ(err.system_error, 0);
    EXPECT_TRUE(strcmp(err.text, "block 7 of nine") == 0);
}

TEST(a_failure_of_the_system_adds_what_the_system_says)
{
    dd_error err = {0};

    EXPECT_STATUS(ddi_fail_system(&err, DD_LINK_FAILED, ECONNREFUSED, "cannot connect to %s", "x"),
                  DD_LINK_FAILED);
    EXPECT_EQ(err.system_error, ECONNREFUSED);
    EXPECT_TRUE(strcmp(err.text, "cannot connect to x: Connection refused") == 0);
    (void)ddi_fail_system(&err, DD_FAILED, 123456, "odd");
    EXPECT_CONTAINS(err.text, "odd: ");
    EXPECT_CONTAINS(err.text, "123456");
}

TEST(nobody_has_to_want_the_text)
{
    EXPECT_STATUS(ddi_fail(NULL, DD_NO_CACHE, "%d", 1), DD_NO_CACHE);
    EXPECT_STATUS(ddi_fail_system(NULL, DD_FAILED, EIO, "%d", 1), DD_FAILED);
    ddi_error_context(NULL, "%d", 1);
}

TEST(a_context_stands_in_front)
{
    dd_error err = {0};

    (void)ddi_fail_system(&err, DD_TIMEOUT, ETIMEDOUT, "no answer");
    ddi_error_context(&err, "layer %d", 3);
    ddi_error_context(&err, "pull from cluster %d", 9);
    EXPECT_TRUE(strncmp(err.text, "pull from cluster 9: layer 3: no answer: ", 41) == 0);
    EXPECT_EQ(err.status, DD_TIMEOUT);
    EXPECT_EQ(err.system_error, ETIMEDOUT);
}

TEST(a_long_text_is_cut_at_its_end)
{
    char text[2 * DD_ERROR_TEXT];
    dd_error err = {0};

    (void)memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)ddi_fail(&err, DD_INVALID, "begin %s", text);
    EXPECT_EQ(strlen(err.text), DD_ERROR_TEXT - 1);
    EXPECT_CONTAINS(err.text, "begin xxx");
    ddi_error_context(&err, "context");
    EXPECT_EQ(strlen(err.text), DD_ERROR_TEXT - 1);
    EXPECT_CONTAINS(err.text, "context: begin xxx");
    (void)ddi_fail_system(&err, DD_INVALID, EIO, "%s", text);
    EXPECT_EQ(strlen(err.text), DD_ERROR_TEXT - 1);
    ddi_error_context(&err, "%s", text);
    EXPECT_EQ(strlen(err.text), DD_ERROR_TEXT - 1);
}

TEST(the_library_says_which_version_it_is)
{
    EXPECT_TRUE(strcmp(dd_version(), DD_VERSION) == 0);
}

CHECK_MAIN(RUN(every_status_has_a_name_of_its_own); RUN(a_number_that_is_no_status_has_no_name);
           RUN(internal_statuses_are_negative_and_no_public_ones);
           RUN(a_failure_fills_all_of_the_error);
           RUN(a_failure_of_the_system_adds_what_the_system_says); RUN(nobody_has_to_want_the_text);
           RUN(a_context_stands_in_front); RUN(a_long_text_is_cut_at_its_end);
           RUN(the_library_says_which_version_it_is);)
