/* Links between engines over real sockets: what works, what is refused, and with which words. */
#include "rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int dial(const char *address)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 10};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* A listener that never answers. */
static int silent_listener(char *address, size_t size)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(fd, 8) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0) {
        (void)close(fd);
        return -1;
    }
    (void)snprintf(address, size, "127.0.0.1:%u", ntohs(at.sin_port));
    return fd;
}

TEST(several_links_in_one_call_report_each_of_them)
{
    dd_engine *a = rig_prompt(1);
    dd_engine *c = rig_prompt(3);
    dd_engine *decoder = rig_decoder(9);
    char address[2][128];
    char silent[128];
    int listener = silent_listener(silent, sizeof(silent));
    dd_status results[3];
    dd_error err = {0};
    dd_key key = rig_key(DD_KEY_PREFIX, 1);
    dd_source source = rig_source(3, DD_KEY_PREFIX, 1);

    REQUIRE_TRUE(a != NULL && c != NULL && decoder != NULL && listener >= 0);
    EXPECT_OK(dd_engine_address(a, address[0], 128, &err));
    EXPECT_OK(dd_engine_address(c, address[1], 128, &err));
    (void)close(listener); /* nobody listens there any more */
    {
        dd_target targets[3] = {{.size = sizeof(dd_target), .cluster_id = 1, .remote = address[0]},
                                {.size = sizeof(dd_target), .cluster_id = 2, .remote = silent},
                                {.size = sizeof(dd_target), .cluster_id = 3, .remote = address[1]}};

        EXPECT_STATUS(dd_link_open(decoder, targets, 3, results, 300, &err), DD_LINK_FAILED);
        EXPECT_CONTAINS(err.text, silent);
        EXPECT_EQ(results[0], DD_OK);
        EXPECT_EQ(results[1], DD_LINK_FAILED);
        EXPECT_EQ(results[2], DD_OK);
        targets[1].cluster_id = 1;
        EXPECT_STATUS(dd_link_open(decoder, targets, 2, results, 5000, &err), DD_REPEATED);
        EXPECT_EQ(results[0], DD_ALREADY_LINKED);
        EXPECT_EQ(results[1], DD_REPEATED);
        EXPECT_STATUS(dd_link_open(decoder, targets, 0, results, 5000, &err), DD_INVALID);
    }
    EXPECT_EQ(rig_stats(decoder).links, 2);
    (void)rig_cache(c, 2, 1, 100, &key, 1);
    EXPECT_OK(dd_pull(decoder, &source, rig_cache(decoder, 2, 1, 100, NULL, 0), NULL, &err));
    EXPECT_OK(dd_link_check(decoder, 1, &err));
    EXPECT_STATUS(dd_link_check(decoder, 2, &err), DD_NOT_LINKED);
    dd_engine_destroy(decoder);
    dd_engine_destroy(a);
    dd_engine_destroy(c);
}

TEST(a_wrong_cluster_is_refused_with_expected_and_found)
{
    dd_engine *nine = rig_prompt(9);
    dd_engine *decoder = rig_decoder(2);
    char address[128];
    dd_error err = {0};

    REQUIRE_TRUE(nine != NULL && decoder != NULL);
    EXPECT_OK(dd_engine_address(nine, address, sizeof(address), &err));
    EXPECT_OK(rig_link(decoder, 9, nine));
    EXPECT_STATUS(rig_link_at(decoder, 7, address, 3000, &err), DD_LINK_FAILED);
    EXPECT_CONTAINS(err.text, "expected cluster 7");
    EXPECT_CONTAINS(err.text, "found cluster 9");
    EXPECT_OK(dd_link_check(decoder, 9, &err)); /* undisturbed */
    dd_engine_destroy(decoder);
    dd_engine_destroy(nine);
}

TEST(a_peer_that_never_answers_costs_the_time_out_and_no_more)
{
    dd_engine *decoder = rig_decoder(2);
    char address[128];
    int listener = silent_listener(address, sizeof(address));
    dd_error err = {0};

    REQUIRE_TRUE(decoder != NULL && listener >= 0);
    EXPECT_STATUS(rig_link_at(decoder, 7, address, 100, &err), DD_TIMEOUT);
    EXPECT_CONTAINS(err.text, address);
    EXPECT_STATUS(rig_link_at(decoder, 7, "127.0.0.1", 100, &err), DD_INVALID);
    EXPECT_STATUS(rig_link_at(decoder, 7, "::1:5", 100, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "brackets");
    EXPECT_EQ(rig_stats(decoder).links, 0);
    dd_engine_destroy(decoder);
    (void)close(listener);
}

TEST(unlink_orderly_and_forced_from_either_side_then_relink)
{
    dd_engine *prompt = rig_prompt(1);
    dd_engine *decoder = rig_decoder(2);
    dd_source source = rig_source(1, DD_KEY_PREFIX, 1);
    dd_key key = rig_key(DD_KEY_PREFIX, 1);
    dd_error err = {0};
    int64_t dst;

    REQUIRE_TRUE(prompt != NULL && decoder != NULL);
    (void)rig_cache(prompt, 2, 1, 5000, &key, 1);
    dst = rig_cache(decoder, 2, 1, 5000, NULL, 0);
    for (int round = 0; round < 6; round++) {
        dd_engine *closer = round % 2 == 0 ? decoder : prompt;
        uint64_t peer = round % 2 == 0 ? 1 : 2;

        EXPECT_OK(rig_link(decoder, 1, prompt));
        EXPECT_STATUS(rig_link(decoder, 1, prompt), DD_ALREADY_LINKED);
        EXPECT_OK(dd_pull(decoder, &source, dst, NULL, &err));
        RIG_AWAIT(rig_stats(prompt).links == 1);
        EXPECT_OK(rig_unlink(closer, peer, round >= 2));
        EXPECT_STATUS(rig_unlink(closer, peer, round >= 2), DD_NOT_LINKED);
        RIG_AWAIT(rig_stats(prompt).links == 0 && rig_stats(decoder).links == 0);
        EXPECT_STATUS(dd_pull(decoder, &source, dst, NULL, &err), DD_NOT_LINKED);
    }
    dd_engine_destroy(decoder);
    dd_engine_destroy(prompt);
}

TEST(the_same_cluster_from_elsewhere_is_refused_while_the_first_lives)
{
    dd_engine *prompt = rig_prompt(1);
    dd_engine *first = rig_decoder(2);
    dd_engine *second = rig_decoder(2);
    char address[128];
    dd_error err = {0};

    REQUIRE_TRUE(prompt != NULL && first != NULL && second != NULL);
    EXPECT_OK(dd_engine_address(prompt, address, sizeof(address), &err));
    EXPECT_OK(rig_link(first, 1, prompt));
    RIG_AWAIT(rig_stats(prompt).links == 1);
    EXPECT_STATUS(rig_link_at(second, 1, address, 3000, &err), DD_LINK_FAILED);
    EXPECT_CONTAINS(err.text, "alive");
    EXPECT_OK(dd_link_check(first, 1, &err));
    dd_engine_destroy(first);
    RIG_AWAIT(rig_stats(prompt).links == 0);
    EXPECT_OK(rig_link(second, 1, prompt));
    dd_engine_destroy(second);
    dd_engine_destroy(prompt);
}

TEST(strangers_at_the_listener_are_sent_away)
{
    static const char *const greetings[] = {
        "GET / HTTP/1.1\r\nHost: example\r\n\r\n",
        "\x80\x04\x95 a pickle, more or less ...................",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello ....................",
    };
    dd_engine *prompt = rig_start(1, DD_ROLE_PROMPT, "datadist.listen", "127.0.0.1:0",
                                  "datadist.log_level", "off", "datadist.handshake_ms", "200",
                                  NULL);
    dd_engine *decoder = rig_decoder(2);
    char address[128];
    char byte;
    dd_error err = {0};
    int silent;

    REQUIRE_TRUE(prompt != NULL && decoder != NULL);
    EXPECT_OK(rig_link(decoder, 1, prompt));
    EXPECT_OK(dd_engine_address(prompt, address, sizeof(address), &err));
    silent = dial(address);
    for (size_t i = 0; i < sizeof(greetings) / sizeof(greetings[0]); i++) {
        int fd = dial(address);

        REQUIRE_TRUE(fd >= 0);
        (void)send(fd, greetings[i], strlen(greetings[i]), MSG_NOSIGNAL);
        EXPECT_TRUE(recv(fd, &byte, 1, 0) <= 0); /* closed, not timed out: see below */
        (void)close(fd);
    }
    EXPECT_EQ(recv(silent, &byte, 1, 0), 0); /* closed by the handshake bound */
    (void)close(silent);
    EXPECT_OK(dd_link_check(decoder, 1, &err));
    dd_engine_destroy(decoder);
    dd_engine_destroy(prompt);
}

TEST(a_taken_port_is_named_with_the_option_to_change)
{
    dd_engine *first = rig_prompt(1);
    dd_engine *second = NULL;
    char address[128];
    dd_error err = {0};

    REQUIRE_TRUE(first != NULL);
    EXPECT_OK(dd_engine_address(first, address, sizeof(address), &err));
    EXPECT_TRUE(strcmp(strrchr(address, ':'), ":0") != 0);
    REQUIRE_OK(dd_engine_create(2, DD_ROLE_PROMPT, &second, &err));
    EXPECT_OK(dd_engine_set(second, "datadist.listen", address, &err));
    EXPECT_STATUS(dd_engine_start(second, &err), DD_FAILED);
    EXPECT_CONTAINS(err.text, address);
    EXPECT_CONTAINS(err.text, "datadist.listen");
    dd_engine_destroy(second);
    dd_engine_destroy(first);
}

struct late_start {
    char address[128];
    dd_engine *prompt;
};

static void *start_late(void *context)
{
    struct late_start *late = context;
    const struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};

    (void)nanosleep(&pause, NULL); /* the link call is on its way */
    late->prompt = rig_start(1, DD_ROLE_PROMPT, "datadist.listen", late->address,
                             "datadist.log_level", "error", NULL);
    return NULL;
}

TEST(a_peer_that_starts_later_is_reached_within_the_time_out)
{
    struct late_start late = {.prompt = NULL};
    dd_engine *decoder = rig_decoder(2);
    int listener = silent_listener(late.address, sizeof(late.address));
    pthread_t thread;
    dd_error err = {0};

    REQUIRE_TRUE(decoder != NULL && listener >= 0);
    (void)close(listener); /* its port is free for the late one */
    EXPECT_STATUS(rig_link_at(decoder, 1, late.address, 50, &err), DD_LINK_FAILED);
    EXPECT_CONTAINS(err.text, "refused");
    EXPECT_CONTAINS(err.text, late.address);
    (void)pthread_create(&thread, NULL, start_late, &late);
    EXPECT_OK(rig_link_at(decoder, 1, late.address, 5000, &err));
    (void)pthread_join(thread, NULL);
    dd_engine_destroy(decoder);
    dd_engine_destroy(late.prompt);
}

TEST(ipv6_and_host_names_work)
{
    dd_engine *six = rig_start(1, DD_ROLE_PROMPT, "datadist.listen", "[::1]:0",
                               "datadist.log_level", "error", NULL);
    dd_engine *decoder = rig_decoder(2);
    dd_engine *prompt = rig_prompt(3);
    char address[128];
    char name[160];
    dd_error err = {0};

    REQUIRE_TRUE(decoder != NULL && prompt != NULL);
    EXPECT_OK(dd_engine_address(prompt, address, sizeof(address), &err));
    (void)snprintf(name, sizeof(name), "localhost%s", strrchr(address, ':'));
    EXPECT_OK(rig_link_at(decoder, 3, name, 3000, &err));
    if (six != NULL) { /* a host without IPv6 has none to test */
        EXPECT_OK(dd_engine_address(six, address, sizeof(address), &err));
        EXPECT_CONTAINS(address, "[::1]:");
        EXPECT_OK(rig_link(decoder, 1, six));
    }
    dd_engine_destroy(decoder);
    dd_engine_destroy(six);
    dd_engine_destroy(prompt);
}

struct puller {
    dd_engine *engine;
    int64_t cache;
    dd_status last;
    uint64_t pulls;
};

static void *pull_until_it_fails(void *context)
{
    struct puller *puller = context;
    dd_source source = rig_source(1, DD_KEY_PREFIX, 1);

    do {
        puller->last = dd_pull(puller->engine, &source, puller->cache, NULL, NULL);
        puller->pulls += puller->last == DD_OK;
    } while (puller->last == DD_OK);
    return NULL;
}

TEST(stop_and_forced_unlink_end_running_pulls)
{
    dd_engine *prompt = rig_prompt(1);
    dd_key key = rig_key(DD_KEY_PREFIX, 1);

    REQUIRE_TRUE(prompt != NULL);
    (void)rig_cache(prompt, 4, 1, 16 << 20, &key, 1);
    for (int round = 0; round < 4; round++) {
        struct puller pullers[3];
        pthread_t threads[3];
        dd_engine *decoder = rig_decoder(2);

        REQUIRE_TRUE(decoder != NULL);
        EXPECT_OK(rig_link(decoder, 1, prompt));
        for (int i = 0; i < 3; i++) {
            pullers[i] = (struct puller){.engine = decoder,
                                         .cache = rig_cache(decoder, 4, 1, 16 << 20, NULL, 0)};
            (void)pthread_create(&threads[i], NULL, pull_until_it_fails, &pullers[i]);
        }
        RIG_AWAIT(rig_stats(decoder).pulls > 2);
        if (round == 0) {
            EXPECT_OK(rig_unlink(decoder, 1, true));
        } else if (round == 1) {
            EXPECT_OK(rig_unlink(decoder, 1, false)); /* lets the running ones end */
        } else if (round == 2) {
            RIG_AWAIT(rig_stats(prompt).links == 1);
            EXPECT_OK(rig_unlink(prompt, 2, true));
        } else {
            dd_engine_stop(decoder);
        }
        for (int i = 0; i < 3; i++) {
            (void)pthread_join(threads[i], NULL);
            EXPECT_STATUS(pullers[i].last, round == 3 ? DD_FINALIZED : DD_NOT_LINKED);
        }
        dd_engine_destroy(decoder);
        RIG_AWAIT(rig_stats(prompt).links == 0);
        RIG_AWAIT(rig_stats(prompt).pins == 0);
    }
    dd_engine_destroy(prompt);
}

CHECK_MAIN(RUN(several_links_in_one_call_report_each_of_them);
           RUN(a_wrong_cluster_is_refused_with_expected_and_found);
           RUN(a_peer_that_never_answers_costs_the_time_out_and_no_more);
           RUN(unlink_orderly_and_forced_from_either_side_then_relink);
           RUN(the_same_cluster_from_elsewhere_is_refused_while_the_first_lives);
           RUN(strangers_at_the_listener_are_sent_away);
           RUN(a_taken_port_is_named_with_the_option_to_change);
           RUN(a_peer_that_starts_later_is_reached_within_the_time_out);
           RUN(ipv6_and_host_names_work); RUN(stop_and_forced_unlink_end_running_pulls);)
