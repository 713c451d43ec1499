/* Options: defaults, the environment, and for each kind what is refused and in which words. */
#include "api/config.h"

#include "check.h"

#include <ctype.h>
#include <locale.h>
#include <unistd.h>

struct bad {
    const char *key;
    const char *value;
    const char *allowed;
};

/* The variable of an option: "tcp.streams" -> "DATADIST_TCP_STREAMS". */
static void variable_of(const char *name, char text[64])
{
    (void)snprintf(text, 64, "DATADIST_%s", name);
    for (char *at = text; *at != '\0'; at++) {
        *at = *at == '.' ? '_' : (char)toupper((unsigned char)*at);
    }
}

/* What the user's shell says must not matter here. */
static void clear_environment(void)
{
    struct ddi_option_facts facts;

    for (size_t i = 0; ddi_config_facts(i, &facts); i++) {
        char variable[64];

        variable_of(facts.name, variable);
        (void)unsetenv(variable);
    }
}

static struct ddi_config defaults(void)
{
    struct ddi_config config;
    dd_error err = {0};

    clear_environment();
    EXPECT_OK(ddi_config_init(&config, &err));
    return config;
}

/* Refused, with key, value and what is allowed in the text; nothing changes. */
static void expect_refused(const struct bad *bad)
{
    struct ddi_config config = defaults();
    struct ddi_config before = config;
    dd_error err = {0};
    char found[160];

    EXPECT_STATUS(ddi_config_set(&config, bad->key, bad->value, &err), DD_INVALID);
    EXPECT_EQ(err.status, DD_INVALID);
    (void)snprintf(found, sizeof(found), "%s is \"%.100s\", wanted ", bad->key, bad->value);
    EXPECT_CONTAINS(err.text, found);
    EXPECT_CONTAINS(err.text, bad->allowed);
    EXPECT_EQ(memcmp(&config, &before, sizeof(config)), 0);
    EXPECT_STATUS(ddi_config_set(&config, bad->key, bad->value, NULL), DD_INVALID);
}

TEST(defaults_are_as_documented)
{
    struct ddi_config config = defaults();
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    EXPECT_EQ(strlen(config.listen), 0);
    EXPECT_EQ(strcmp(config.transport, "auto"), 0);
    EXPECT_EQ(strcmp(config.log_level, "warning"), 0);
    EXPECT_EQ(strcmp(config.pool_clear, "off"), 0);
    EXPECT_EQ(strlen(config.tcp_congestion), 0);
    EXPECT_EQ(config.sync_timeout_ms, 1000);
    EXPECT_EQ(config.handshake_ms, 5000);
    EXPECT_EQ(config.heartbeat_ms, 1000);
    EXPECT_EQ(config.pool_bytes, 0);
    EXPECT_TRUE(config.pool_fraction == 0.95);
    EXPECT_EQ(config.workers, processors > 4 ? 4 : processors);
    EXPECT_EQ(config.tcp_streams, 2);
    EXPECT_EQ(config.tcp_stream_bytes, 4 << 20);
    EXPECT_EQ(config.tcp_idle_ms, 30000);
}

TEST(every_option_can_be_set_to_its_own_default)
{
    struct ddi_config config = defaults();
    struct ddi_config before = config;
    struct ddi_option_facts facts;
    size_t count = 0;

    for (; ddi_config_facts(count, &facts); count++) {
        char key[64];

        EXPECT_TRUE(facts.meaning[0] != '\0' && facts.allowed[0] != '\0');
        (void)snprintf(key, sizeof(key), "datadist.%s", facts.name);
        if (strcmp(facts.name, "workers") == 0) {
            EXPECT_EQ(strlen(facts.preset), 0); /* worked out by the machine */
        } else {
            EXPECT_OK(ddi_config_set(&config, key, facts.preset, NULL));
        }
    }
    EXPECT_TRUE(count >= 14);
    EXPECT_EQ(memcmp(&config, &before, sizeof(config)), 0);
    EXPECT_TRUE(!ddi_config_facts(count, &facts));
    EXPECT_TRUE(!ddi_config_facts(SIZE_MAX, &facts));
}

TEST(good_values_are_taken)
{
    struct ddi_config config = defaults();

    EXPECT_OK(ddi_config_set(&config, "datadist.listen", "[::1]:0", NULL));
    EXPECT_EQ(strcmp(config.listen, "[::1]:0"), 0);
    EXPECT_OK(ddi_config_set(&config, "datadist.listen", "", NULL));
    EXPECT_EQ(strlen(config.listen), 0);
    EXPECT_OK(ddi_config_set(&config, "datadist.transport", "tcp", NULL));
    EXPECT_EQ(strcmp(config.transport, "tcp"), 0);
    EXPECT_OK(ddi_config_set(&config, "datadist.heartbeat_ms", "0", NULL));
    EXPECT_EQ(config.heartbeat_ms, 0);
    EXPECT_OK(ddi_config_set(&config, "datadist.heartbeat_ms", "2147483647", NULL));
    EXPECT_EQ(config.heartbeat_ms, INT32_MAX);
    EXPECT_OK(ddi_config_set(&config, "datadist.pool_bytes", "9223372036854775807", NULL));
    EXPECT_EQ(config.pool_bytes, INT64_MAX);
    EXPECT_OK(ddi_config_set(&config, "datadist.tcp.streams", "16", NULL));
    EXPECT_EQ(config.tcp_streams, 16);
    EXPECT_OK(ddi_config_set(&config, "datadist.pool_fraction", "0.25", NULL));
    EXPECT_TRUE(config.pool_fraction == 0.25);
    EXPECT_OK(ddi_config_set(&config, "datadist.pool_fraction", "1", NULL));
    EXPECT_TRUE(config.pool_fraction == 1.0);
    EXPECT_OK(ddi_config_set(&config, "datadist.pool_fraction", "0", NULL));
    EXPECT_TRUE(config.pool_fraction == 0.0);
    EXPECT_OK(ddi_config_set(&config, "datadist.log_level", "off", NULL));
    EXPECT_EQ(strcmp(config.log_level, "off"), 0);
}

TEST(the_environment_gives_the_default)
{
    struct ddi_config config = defaults();

    (void)setenv("DATADIST_TCP_STREAMS", "7", 1);
    (void)setenv("DATADIST_LISTEN", "127.0.0.1:0", 1);
    (void)setenv("DATADIST_POOL_FRACTION", "0.5", 1);
    (void)setenv("DATADIST_POOL_CLEAR", "on", 1);
    (void)setenv("DATADIST_WORKERS", "3", 1);
    EXPECT_OK(ddi_config_init(&config, NULL));
    EXPECT_EQ(config.tcp_streams, 7);
    EXPECT_EQ(strcmp(config.listen, "127.0.0.1:0"), 0);
    EXPECT_TRUE(config.pool_fraction == 0.5);
    EXPECT_EQ(strcmp(config.pool_clear, "on"), 0);
    EXPECT_EQ(config.workers, 3);
    EXPECT_EQ(config.tcp_idle_ms, 30000);
    EXPECT_OK(ddi_config_set(&config, "datadist.tcp.streams", "9", NULL)); /* the key wins */
    EXPECT_EQ(config.tcp_streams, 9);
    clear_environment();
}

TEST(every_option_has_a_variable)
{
    struct ddi_option_facts facts;

    for (size_t i = 0; ddi_config_facts(i, &facts); i++) {
        struct ddi_config config = defaults();
        char variable[64];
        char text[DDI_CONFIG_TEXT + 1];
        dd_error err = {0};

        (void)memset(text, 'x', sizeof(text) - 1); /* too long for a text, wrong for the rest */
        text[sizeof(text) - 1] = '\0';
        variable_of(facts.name, variable);
        (void)setenv(variable, text, 1);
        EXPECT_STATUS(ddi_config_init(&config, &err), DD_INVALID);
        EXPECT_EQ(strncmp(err.text, variable, strlen(variable)), 0);
        EXPECT_CONTAINS(err.text, " is \"xxxxxxxxxx");
        EXPECT_CONTAINS(err.text, facts.allowed);
        EXPECT_STATUS(ddi_config_init(&config, NULL), DD_INVALID);
    }
    clear_environment();
}

TEST(a_bad_variable_is_refused_by_its_own_name)
{
    struct ddi_config config;
    dd_error err = {0};

    clear_environment();
    (void)setenv("DATADIST_TCP_STREAMS", "abc", 1);
    EXPECT_STATUS(ddi_config_init(&config, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text,
                    "DATADIST_TCP_STREAMS is \"abc\", wanted a whole number from 1 to 16");
    (void)setenv("DATADIST_TCP_STREAMS", "", 1);
    EXPECT_STATUS(ddi_config_init(&config, &err), DD_INVALID);
    clear_environment();
}

TEST(bad_numbers_are_refused)
{
    static const char *const values[] = {"abc",
                                         "",
                                         " 5",
                                         "5 ",
                                         "+5",
                                         "-1",
                                         "5.0",
                                         "0x5",
                                         "5e0",
                                         "5\n5",
                                         "17",
                                         "0",
                                         "18446744073709551618" /* 2^64 + 2 */};
    const struct bad edges[] = {
        {"datadist.sync_timeout_ms", "abc", "a whole number from 1 to 2147483647"},
        {"datadist.sync_timeout_ms", "0", "a whole number from 1 to 2147483647"},
        {"datadist.sync_timeout_ms", "2147483648", "a whole number from 1 to 2147483647"},
        {"datadist.handshake_ms", "9", "a whole number from 10 to 2147483647"},
        {"datadist.heartbeat_ms", "-1", "a whole number from 0 to 2147483647"},
        {"datadist.pool_bytes", "9223372036854775808", "from 0 to 9223372036854775807"},
        {"datadist.workers", "0", "a whole number from 1 to 16"},
        {"datadist.tcp.stream_bytes", "4095", "a whole number from 4096 to 9223372036854775807"},
        {"datadist.tcp.idle_ms", "1.5", "a whole number from 1 to 2147483647"},
    };

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct bad bad = {"datadist.tcp.streams", values[i], "a whole number from 1 to 16"};

        expect_refused(&bad);
    }
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        expect_refused(&edges[i]);
    }
}

TEST(bad_fractions_are_refused)
{
    static const char *const values[] = {"",     "half",  "1.01",  "-0.1", "+0.1",  ".5",
                                         " 0.5", "0.5 ",  "0,5",   "95%",  "nan",   "inf",
                                         "1e9",  "0.5.5", "2e400", "95",   "0x1p-1"};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct bad bad = {"datadist.pool_fraction", values[i], "a number from 0.0 to 1.0"};

        expect_refused(&bad);
    }
}

TEST(bad_choices_are_refused)
{
    const struct bad bads[] = {
        {"datadist.transport", "rdma", "auto|tcp"},
        {"datadist.transport", "", "auto|tcp"},
        {"datadist.transport", "TCP", "auto|tcp"},
        {"datadist.transport", "tcp ", "auto|tcp"},
        {"datadist.transport", "aut", "auto|tcp"},
        {"datadist.transport", "uto", "auto|tcp"},
        {"datadist.pool_clear", "true", "off|on"},
        {"datadist.pool_clear", "o", "off|on"},
        {"datadist.log_level", "warn", "debug|info|warning|error|off"},
        {"datadist.log_level", "2", "debug|info|warning|error|off"},
    };

    for (size_t i = 0; i < sizeof(bads) / sizeof(bads[0]); i++) {
        expect_refused(&bads[i]);
    }
}

TEST(several_choices_at_once_are_none)
{
    const struct bad bads[] = {
        {"datadist.transport", "auto|tcp", "auto|tcp"},
        {"datadist.transport", "auto|", "auto|tcp"},
        {"datadist.transport", "|tcp", "auto|tcp"},
        {"datadist.transport", "|", "auto|tcp"},
        {"datadist.log_level", "info|warning", "debug|info|warning|error|off"},
    };

    for (size_t i = 0; i < sizeof(bads) / sizeof(bads[0]); i++) {
        expect_refused(&bads[i]);
    }
}

TEST(a_text_has_room_for_255_bytes)
{
    struct ddi_config config = defaults();
    char text[1000];
    struct bad bad = {"datadist.listen", text, "a text of at most 255 bytes"};

    (void)memset(text, 'x', sizeof(text));
    text[999] = '\0';
    expect_refused(&bad);
    text[256] = '\0';
    expect_refused(&bad);
    bad.key = "datadist.tcp.congestion";
    expect_refused(&bad);
    text[255] = '\0';
    EXPECT_OK(ddi_config_set(&config, "datadist.listen", text, NULL));
    EXPECT_EQ(strcmp(config.listen, text), 0);
    EXPECT_EQ(strcmp(config.transport, "auto"), 0); /* its neighbour */
}

TEST(unknown_options_are_refused_by_name)
{
    static const char *const keys[] = {"datadist.listen2",
                                       "datadist.liste",
                                       "datadist.",
                                       "datadist",
                                       "",
                                       "listen",
                                       "tcp.streams",
                                       "datadist.tcp",
                                       "datadist.tcp.",
                                       "datadist.streams",
                                       "DATADIST.listen",
                                       "DATADIST_LISTEN",
                                       "datadist.Listen",
                                       " datadist.listen",
                                       "datadist.listen ",
                                       "datadist..listen",
                                       "datadistlisten",
                                       "datadist.datadist.listen",
                                       "datadist.tcp_streams",
                                       "llm.listenIpInfo",
                                       "ge.flowGraphMemMaxSize"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct ddi_config config = defaults();
        struct ddi_config before = config;
        dd_error err = {0};
        char quoted[64];

        EXPECT_STATUS(ddi_config_set(&config, keys[i], "1", &err), DD_INVALID);
        (void)snprintf(quoted, sizeof(quoted), "option \"%s\" does not exist", keys[i]);
        EXPECT_CONTAINS(err.text, quoted);
        EXPECT_CONTAINS(err.text, "docs/config.md");
        EXPECT_EQ(memcmp(&config, &before, sizeof(config)), 0);
        EXPECT_STATUS(ddi_config_set(&config, keys[i], "1", NULL), DD_INVALID);
    }
}

TEST(a_long_key_is_cut_in_the_text)
{
    struct ddi_config config = defaults();
    static char key[100 * 1000] = "datadist.";
    dd_error err = {0};

    (void)memset(key + 9, 'k', sizeof(key) - 10);
    EXPECT_STATUS(ddi_config_set(&config, key, "1", &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "datadist.kkkk");
    EXPECT_CONTAINS(err.text, "does not exist");
}

/* An application may have set a locale that writes "0,95", or one where i and I are no pair. */
TEST(the_locale_of_the_application_changes_nothing)
{
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "tr_TR"};
    struct ddi_config config;

    for (size_t i = 0; i < sizeof(locales) / sizeof(locales[0]); i++) {
        if (setlocale(LC_ALL, locales[i]) == NULL) {
            continue; /* not installed here */
        }
        config = defaults();
        EXPECT_TRUE(config.pool_fraction == 0.95);
        EXPECT_OK(ddi_config_set(&config, "datadist.pool_fraction", "0.5", NULL));
        EXPECT_STATUS(ddi_config_set(&config, "datadist.pool_fraction", "0,5", NULL), DD_INVALID);
        (void)setenv("DATADIST_TCP_IDLE_MS", "77", 1);
        EXPECT_OK(ddi_config_init(&config, NULL));
        EXPECT_EQ(config.tcp_idle_ms, 77);
    }
    (void)setlocale(LC_ALL, "C");
    clear_environment();
}

CHECK_MAIN(RUN(defaults_are_as_documented); RUN(every_option_can_be_set_to_its_own_default);
           RUN(good_values_are_taken); RUN(the_environment_gives_the_default);
           RUN(every_option_has_a_variable); RUN(a_bad_variable_is_refused_by_its_own_name);
           RUN(bad_numbers_are_refused); RUN(bad_fractions_are_refused);
           RUN(bad_choices_are_refused); RUN(several_choices_at_once_are_none);
           RUN(a_text_has_room_for_255_bytes); RUN(unknown_options_are_refused_by_name);
           RUN(a_long_key_is_cut_in_the_text); RUN(the_locale_of_the_application_changes_nothing);)
