/* Addresses: what is accepted is dialled exactly as written, everything else says what is wrong.
 * No name goes to a network: names here are local ones, or too long to be asked for. */
#include "base/addr.h"

#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define MAX_ADDRS 8

static void expect_resolves(const char *text, const char *shown)
{
    struct ddi_addr addrs[MAX_ADDRS];
    char back[DDI_ADDR_TEXT];
    size_t count = 0;
    dd_error err = {0};

    REQUIRE_OK(ddi_addr_resolve(text, addrs, MAX_ADDRS, &count, &err));
    REQUIRE_TRUE(count == 1);
    ddi_addr_text(&addrs[0], back);
    EXPECT_CONTAINS(back, shown);
    EXPECT_EQ(strlen(back), strlen(shown));
}

/* Refused, with the text itself and `reason` in the words, and nothing written. */
static void expect_refused_with(dd_status status, const char *text, const char *reason)
{
    struct ddi_addr addr = {.len = 77};
    size_t count = 99;
    dd_error err = {0};
    char quoted[DDI_ADDR_TEXT];

    EXPECT_STATUS(ddi_addr_resolve(text, &addr, 1, &count, &err), status);
    EXPECT_EQ(err.status, status);
    (void)snprintf(quoted, sizeof(quoted), "address \"%.100s\"", text);
    EXPECT_CONTAINS(err.text, quoted);
    EXPECT_CONTAINS(err.text, reason);
    EXPECT_EQ(addr.len, 77);
    EXPECT_EQ(count, 99);
}

static void expect_refused(const char *text, const char *reason)
{
    expect_refused_with(DD_INVALID, text, reason);
}

TEST(numeric_addresses_are_taken_as_written)
{
    expect_resolves("127.0.0.1:26000", "127.0.0.1:26000");
    expect_resolves("127.0.0.1:0", "127.0.0.1:0");
    expect_resolves("0.0.0.0:65535", "0.0.0.0:65535");
    expect_resolves("255.255.255.255:1", "255.255.255.255:1");
    expect_resolves("[::1]:26000", "[::1]:26000");
    expect_resolves("[::]:0", "[::]:0");
    expect_resolves("[2001:db8:0:0::7]:80", "[2001:db8::7]:80");
    expect_resolves("127.0.0.1:00080", "127.0.0.1:80");
}

TEST(a_v4_mapped_address_stays_v6)
{
    struct ddi_addr addr;
    size_t count = 0;

    expect_resolves("[::ffff:127.0.0.1]:26000", "[::ffff:127.0.0.1]:26000");
    REQUIRE_OK(ddi_addr_resolve("[::ffff:127.0.0.1]:26000", &addr, 1, &count, NULL));
    EXPECT_EQ(addr.storage.ss_family, AF_INET6);
    EXPECT_EQ(addr.len, sizeof(struct sockaddr_in6));
}

TEST(a_link_local_address_keeps_its_interface)
{
    struct ddi_addr addr;
    struct sockaddr_in6 v6;
    size_t count = 0;

    expect_resolves("[fe80::1%lo]:26000", "[fe80::1%lo]:26000");
    expect_resolves("[fe80::1%4000000]:1", "[fe80::1%4000000]:1");
    REQUIRE_OK(ddi_addr_resolve("[fe80::1%lo]:26000", &addr, 1, &count, NULL));
    (void)memcpy(&v6, &addr.storage, sizeof(v6));
    EXPECT_TRUE(v6.sin6_scope_id != 0);
    expect_refused("[fe80::1%no-such-interface]:26000", "fe80::1%no-such-interface");
    expect_refused("fe80::1%lo", "brackets");
    expect_refused("fe80::1%lo:26000", "brackets");
}

TEST(a_local_name_is_resolved)
{
    struct ddi_addr addrs[MAX_ADDRS];
    size_t count = 0;
    dd_error err = {0};

    REQUIRE_OK(ddi_addr_resolve("localhost:26000", addrs, MAX_ADDRS, &count, &err));
    REQUIRE_TRUE(count >= 1 && count <= MAX_ADDRS);
    for (size_t i = 0; i < count; i++) {
        char text[DDI_ADDR_TEXT];

        ddi_addr_text(&addrs[i], text);
        EXPECT_TRUE(strcmp(text, "127.0.0.1:26000") == 0 || strcmp(text, "[::1]:26000") == 0);
    }
    EXPECT_OK(ddi_addr_resolve("localhost:1", addrs, 1, &count, &err));
    EXPECT_EQ(count, 1);
}

TEST(a_name_that_is_not_found_fails_the_link)
{
    /* A label has at most 63 characters, so nobody is asked for this one. */
    expect_refused_with(
        DD_LINK_FAILED,
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:26000",
        "not found");
}

TEST(v6_without_brackets_gets_a_hint)
{
    expect_refused("::1", "write IPv6 addresses in brackets, \"[::1]:26000\"");
    expect_refused("::1:26000", "brackets");
    expect_refused("::", "brackets");
    expect_refused("2001:db8::7:26000", "brackets");
    expect_refused("127.0.0.1:80:90", "brackets");
}

TEST(brackets_hold_a_numeric_v6_address)
{
    expect_refused("[::1", "\"]:port\" is missing");
    expect_refused("[::1]", "\"]:port\" is missing");
    expect_refused("[::1]26000", "\"]:port\" is missing");
    expect_refused("[::1] :26000", "\"]:port\" is missing");
    expect_refused("[::1]:26000]", "port \"26000]\" is not a number");
    expect_refused("[127.0.0.1]:26000", "host \"127.0.0.1\"");
    expect_refused("[localhost]:26000", "host \"localhost\"");
    expect_refused("[ ::1]:26000", "host \" ::1\"");
    expect_refused("[::1 ]:26000", "host \"::1 \"");
    expect_refused("[:::1]:26000", "host \":::1\"");
    expect_refused("[[::1]]:26000", "\"]:port\" is missing");
}

TEST(the_host_may_not_be_missing)
{
    expect_refused(":26000", "host has 0 characters");
    expect_refused("[]:26000", "host has 0 characters");
    expect_refused(":", "host has 0 characters");
    expect_refused("", "\":port\" is missing");
}

TEST(the_port_may_not_be_missing)
{
    expect_refused("127.0.0.1", "\":port\" is missing");
    expect_refused("localhost", "\":port\" is missing");
    expect_refused("26000", "\":port\" is missing");
    expect_refused("127.0.0.1:", "port is empty");
    expect_refused("[::1]:", "port is empty");
}

TEST(the_port_is_a_plain_number)
{
    expect_refused("127.0.0.1:http", "port \"http\" is not a number");
    expect_refused("127.0.0.1:80x", "port \"80x\" is not a number");
    expect_refused("127.0.0.1:0x50", "port \"0x50\" is not a number");
    expect_refused("127.0.0.1:-1", "port \"-1\" is not a number");
    expect_refused("127.0.0.1:+80", "port \"+80\" is not a number");
    expect_refused("127.0.0.1: 80", "port \" 80\" is not a number");
    expect_refused("127.0.0.1:80 ", "port \"80 \" is not a number");
    expect_refused("127.0.0.1:80\n", "is not a number");
    expect_refused("127.0.0.1:8.0", "port \"8.0\" is not a number");
    expect_refused("127.0.0.1:65536", "port is above 65535");
    expect_refused("[::1]:65536", "port is above 65535");
    expect_refused("127.0.0.1:18446744073709551696", "port is above 65535"); /* 80 + 2^64 */
}

/* The C library reads "127.1", "010.0.0.1" and "7" as addresses, and other ones than they look. */
TEST(a_host_of_digits_is_a_whole_dotted_address_or_refused)
{
    struct ddi_addr addr;

    expect_refused("127.1:26000", "127.1");
    expect_refused("7:26000", "7");
    expect_refused("2130706433:26000", "2130706433");
    expect_refused("0x7f000001:26000", "0x7f000001");
    expect_refused("010.0.0.1:26000", "010.0.0.1");
    expect_refused("127.0.0.1 x:26000", "127.0.0.1 x");
    EXPECT_STATUS(ddi_addr_host("127.1", &addr, NULL), DD_INVALID);
    EXPECT_STATUS(ddi_addr_host("010.0.0.1", &addr, NULL), DD_INVALID);
}

TEST(a_very_long_text_is_refused_and_cut)
{
    static char text[100 * 1000];
    dd_error err = {0};
    struct ddi_addr addr;
    size_t count;

    (void)memset(text, 'h', sizeof(text) - 1);
    expect_refused(text, "\":port\" is missing");
    (void)memcpy(text + sizeof(text) - 4, ":80", 4);
    expect_refused(text, "host has 99996 characters, wanted 1 to 1024");
    text[0] = '[';
    (void)memcpy(text + sizeof(text) - 5, "]:80", 5);
    expect_refused(text, "host has 99994 characters");
    (void)memcpy(text, "127.0.0.1:", 10);
    (void)memset(text + 10, '9', sizeof(text) - 11);
    EXPECT_STATUS(ddi_addr_resolve(text, &addr, 1, &count, &err), DD_INVALID);
    EXPECT_TRUE(strlen(err.text) < 200);
    (void)memset(text + 10, ' ', sizeof(text) - 11);
    EXPECT_STATUS(ddi_addr_resolve(text, &addr, 1, &count, &err), DD_INVALID);
    EXPECT_TRUE(strlen(err.text) < 200);
}

TEST(text_and_address_go_round)
{
    const char *texts[] = {"1.2.3.4:5",      "127.0.0.1:65535",    "[::1]:1",
                           "[fe80::1%lo]:7", "[::ffff:1.2.3.4]:9", "[1:2:3:4:5:6:7:8]:65535"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct ddi_addr first;
        struct ddi_addr again;
        char text[DDI_ADDR_TEXT];
        size_t count = 0;

        REQUIRE_OK(ddi_addr_resolve(texts[i], &first, 1, &count, NULL));
        ddi_addr_text(&first, text);
        EXPECT_CONTAINS(text, texts[i]);
        REQUIRE_OK(ddi_addr_resolve(text, &again, 1, &count, NULL));
        EXPECT_EQ(again.len, first.len);
        EXPECT_EQ(memcmp(&again.storage, &first.storage, first.len), 0);
    }
}

TEST(an_address_that_is_none_has_a_text)
{
    struct ddi_addr none = {.len = 0};
    char text[DDI_ADDR_TEXT];

    ddi_addr_text(&none, text);
    EXPECT_CONTAINS(text, "(no address)");
}

TEST(a_source_address_has_no_port)
{
    struct ddi_addr addr;
    char text[DDI_ADDR_TEXT];
    const char *good[][2] = {{"127.0.0.1", "127.0.0.1:0"},
                             {"::1", "[::1]:0"},
                             {"fe80::1%lo", "[fe80::1%lo]:0"},
                             {"::ffff:127.0.0.1", "[::ffff:127.0.0.1]:0"}};
    const char *bad[] = {"",         "localhost",  "127.0.0.1:80", "[::1]",
                         "[::1]:80", "127.0.0.1 ", "300.0.0.1",    "::1%no-such-interface"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        EXPECT_OK(ddi_addr_host(good[i][0], &addr, NULL));
        ddi_addr_text(&addr, text);
        EXPECT_CONTAINS(text, good[i][1]);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        dd_error err = {0};

        EXPECT_STATUS(ddi_addr_host(bad[i], &addr, &err), DD_INVALID);
        EXPECT_CONTAINS(err.text, "numeric host without port");
        EXPECT_CONTAINS(err.text, bad[i]);
    }
}

CHECK_MAIN(RUN(numeric_addresses_are_taken_as_written); RUN(a_v4_mapped_address_stays_v6);
           RUN(a_link_local_address_keeps_its_interface); RUN(a_local_name_is_resolved);
           RUN(a_name_that_is_not_found_fails_the_link); RUN(v6_without_brackets_gets_a_hint);
           RUN(brackets_hold_a_numeric_v6_address); RUN(the_host_may_not_be_missing);
           RUN(the_port_may_not_be_missing); RUN(the_port_is_a_plain_number);
           RUN(a_host_of_digits_is_a_whole_dotted_address_or_refused);
           RUN(a_very_long_text_is_refused_and_cut); RUN(text_and_address_go_round);
           RUN(an_address_that_is_none_has_a_text); RUN(a_source_address_has_no_port);)
