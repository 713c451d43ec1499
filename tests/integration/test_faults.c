/* What goes wrong in the field: peers that die, stop, lie or answer late. Each test asks: right
 * status and text, no hang, no late write, and both processes still usable. */
#include "fake_owner.h"
#include "rig.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define BYTES 4000000

static double seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static dd_engine *decoder_with_timeout(const char *timeout_ms)
{
    return rig_start(2, DD_ROLE_DECODER, "datadist.log_level", "off", "datadist.sync_timeout_ms",
                     timeout_ms, "datadist.heartbeat_ms", "0", "datadist.tcp.streams", "1", NULL);
}

/* Fill the destination with a pattern, as a caller that has got its memory back. */
static void take_back(dd_engine *engine, int64_t cache)
{
    (void)memset(rig_tensor(engine, cache, 2, 0), 0x55, BYTES);
    (void)memset(rig_tensor(engine, cache, 2, 1), 0x55, BYTES);
}

static bool is_untouched(dd_engine *engine, int64_t cache)
{
    for (uint32_t t = 0; t < 2; t++) {
        const uint8_t *tensor = rig_tensor(engine, cache, 2, t);

        for (size_t i = 0; i < BYTES; i++) {
            if (tensor[i] != 0x55) {
                return false;
            }
        }
    }
    return true;
}

static void pull_from_fake(enum fake_script script, dd_status wanted, const char *words)
{
    struct fake_owner fake;
    dd_engine *decoder = decoder_with_timeout("1500");
    dd_source source = rig_source(1, DD_KEY_REQUEST, 1);
    dd_slice slice = {.size = sizeof(slice)};
    dd_error err = {0};
    double begin;
    int64_t dst;

    REQUIRE_TRUE(decoder != NULL && fake_open(&fake, 1, script));
    REQUIRE_OK(rig_link_at(decoder, 1, fake.address, 3000, &err));
    dst = rig_cache(decoder, 2, 1, BYTES, NULL, 0);
    begin = seconds();
    EXPECT_STATUS(dd_pull(decoder, &source, dst, &slice, &err), wanted);
    EXPECT_TRUE(seconds() - begin < 6);
    EXPECT_CONTAINS(err.text, words);
    EXPECT_CONTAINS(err.text, "cluster 1 at 127.0.0.1:");
    take_back(decoder, dst);
    (void)sem_post(&fake.resume);
    if (script == FAKE_HALF_THEN_SILENCE) {
        (void)sem_wait(&fake.resumed);
    }
    EXPECT_TRUE(is_untouched(decoder, dst));
    EXPECT_EQ(rig_stats(decoder).pins, 0);
    EXPECT_EQ(rig_stats(decoder).pulls_failed, 1);
    dd_engine_destroy(decoder);
    fake_close(&fake);
}

TEST(a_data_connection_that_closes_midway_is_a_lost_peer)
{
    pull_from_fake(FAKE_HALF_THEN_CLOSE, DD_NOT_LINKED, "bytes done of 8000000 wanted");
}

TEST(bytes_that_come_after_the_time_out_touch_nothing)
{
    pull_from_fake(FAKE_HALF_THEN_SILENCE, DD_TIMEOUT, "4000000 bytes done of 8000000 wanted");
}

TEST(an_owner_that_does_not_reply_costs_the_time_out)
{
    pull_from_fake(FAKE_NO_REPLY, DD_TIMEOUT, "1500 ms");
}

TEST(a_source_withdrawn_before_its_last_byte_is_no_success)
{
    pull_from_fake(FAKE_WITHDRAWN, DD_NO_CACHE, "withdrawn");
}

TEST(an_owner_that_lies_about_sizes_is_refused)
{
    pull_from_fake(FAKE_WRONG_SIZE, DD_FAILED, "wanted 4000000");
}

TEST(garbage_instead_of_a_reply_is_refused)
{
    pull_from_fake(FAKE_GARBAGE, DD_FAILED, "bad reply");
}

TEST(another_protocol_version_is_refused_with_both)
{
    struct fake_owner fake;
    dd_engine *decoder = decoder_with_timeout("300");
    dd_error err = {0};

    REQUIRE_TRUE(decoder != NULL && fake_open(&fake, 1, FAKE_WRONG_VERSION));
    EXPECT_STATUS(rig_link_at(decoder, 1, fake.address, 3000, &err), DD_LINK_FAILED);
    EXPECT_CONTAINS(err.text, "expected 1");
    EXPECT_CONTAINS(err.text, "found 77");
    dd_engine_destroy(decoder);
    fake_close(&fake);
}

/* A prompt process of its own, so that it can be stopped and killed. */
struct child {
    pid_t pid;
    int to_child;
    char address[128];
};

static void run_child(int out, int in)
{
    dd_engine *prompt = rig_prompt(1);
    dd_key key = rig_key(DD_KEY_PREFIX, 1);
    char address[128] = {0};
    char byte;

    if (prompt == NULL || rig_cache(prompt, 2, 1, BYTES, &key, 1) == 0) {
        _exit(1);
    }
    (void)dd_engine_address(prompt, address, sizeof(address), NULL);
    (void)!write(out, address, sizeof(address));
    (void)!read(in, &byte, 1); /* until the test lets go */
    dd_engine_destroy(prompt);
    _exit(0);
}

static bool child_start(struct child *child)
{
    int from_child[2];
    int to_child[2];

    if (pipe(from_child) != 0 || pipe(to_child) != 0) {
        return false;
    }
    child->pid = fork(); /* no engine runs at this moment */
    if (child->pid == 0) {
        (void)close(from_child[0]);
        (void)close(to_child[1]);
        run_child(from_child[1], to_child[0]);
    }
    (void)close(from_child[1]);
    (void)close(to_child[0]);
    child->to_child = to_child[1];
    (void)!read(from_child[0], child->address, sizeof(child->address));
    (void)close(from_child[0]);
    return child->pid > 0 && child->address[0] != '\0';
}

static int child_end(struct child *child)
{
    int status = 0;

    (void)close(child->to_child);
    (void)waitpid(child->pid, &status, 0);
    return status;
}

/* Stop a child; the signal alone returns before it has stopped. */
static void stop_child(const struct child *child)
{
    (void)kill(child->pid, SIGSTOP);
    (void)waitpid(child->pid, NULL, WUNTRACED);
}

TEST(a_killed_peer_is_noticed_at_once_and_can_be_linked_anew)
{
    struct child first;
    struct child second;
    dd_source source = rig_source(1, DD_KEY_PREFIX, 1);
    dd_engine *decoder;
    dd_error err = {0};
    double begin;
    int64_t dst;

    REQUIRE_TRUE(child_start(&first) && child_start(&second));
    decoder = rig_start(2, DD_ROLE_DECODER, "datadist.log_level", "off", "datadist.sync_timeout_ms",
                        "20000", NULL);
    REQUIRE_TRUE(decoder != NULL);
    dst = rig_cache(decoder, 2, 1, BYTES, NULL, 0);
    REQUIRE_OK(rig_link_at(decoder, 1, first.address, 3000, &err));
    EXPECT_OK(dd_pull(decoder, &source, dst, NULL, &err));
    (void)kill(first.pid, SIGKILL);
    begin = seconds();
    while (dd_pull(decoder, &source, dst, NULL, &err) == DD_OK && seconds() - begin < 5) {
    }
    EXPECT_STATUS(err.status, DD_NOT_LINKED);
    EXPECT_TRUE(seconds() - begin < 2);
    RIG_AWAIT(rig_stats(decoder).links == 0);
    EXPECT_OK(rig_link_at(decoder, 1, second.address, 3000, &err));
    EXPECT_OK(dd_pull(decoder, &source, dst, NULL, &err));
    dd_engine_destroy(decoder);
    EXPECT_TRUE(WIFSIGNALED(child_end(&first)));
    EXPECT_EQ(child_end(&second), 0);
}

TEST(a_stopped_peer_costs_the_time_out_and_works_again_when_it_goes_on)
{
    struct child child;
    dd_source source = rig_source(1, DD_KEY_PREFIX, 1);
    dd_engine *decoder;
    dd_error err = {0};
    double begin;
    int64_t dst;

    REQUIRE_TRUE(child_start(&child));
    decoder = decoder_with_timeout("500");
    REQUIRE_TRUE(decoder != NULL);
    dst = rig_cache(decoder, 2, 1, BYTES, NULL, 0);
    REQUIRE_OK(rig_link_at(decoder, 1, child.address, 3000, &err));
    EXPECT_OK(dd_pull(decoder, &source, dst, NULL, &err));
    stop_child(&child);
    begin = seconds();
    EXPECT_STATUS(dd_pull(decoder, &source, dst, NULL, &err), DD_TIMEOUT);
    EXPECT_STATUS(dd_link_check(decoder, 1, &err), DD_TIMEOUT);
    EXPECT_TRUE(seconds() - begin < 4);
    take_back(decoder, dst);
    (void)kill(child.pid, SIGCONT);
    EXPECT_OK(dd_link_check(decoder, 1, &err)); /* its answer comes behind the late bytes */
    EXPECT_TRUE(is_untouched(decoder, dst));
    EXPECT_OK(dd_pull(decoder, &source, dst, NULL, &err));
    EXPECT_EQ(rig_tensor(decoder, dst, 2, 0)[BYTES - 1], 0);
    dd_engine_destroy(decoder);
    EXPECT_EQ(child_end(&child), 0);
}

TEST(a_stopped_peer_is_dead_after_three_missed_heartbeats)
{
    struct child child;
    dd_engine *decoder;
    dd_error err = {0};

    REQUIRE_TRUE(child_start(&child));
    decoder = rig_start(2, DD_ROLE_DECODER, "datadist.log_level", "off", "datadist.heartbeat_ms",
                        "50", "datadist.sync_timeout_ms", "20000", NULL);
    REQUIRE_TRUE(decoder != NULL);
    REQUIRE_OK(rig_link_at(decoder, 1, child.address, 3000, &err));
    stop_child(&child);
    EXPECT_STATUS(dd_link_check(decoder, 1, &err), DD_NOT_LINKED); /* long before 20 s */
    EXPECT_CONTAINS(err.text, "no sign of life");
    (void)kill(child.pid, SIGCONT);
    dd_engine_destroy(decoder);
    EXPECT_EQ(child_end(&child), 0);
}

CHECK_MAIN(RUN(a_data_connection_that_closes_midway_is_a_lost_peer);
           RUN(bytes_that_come_after_the_time_out_touch_nothing);
           RUN(an_owner_that_does_not_reply_costs_the_time_out);
           RUN(a_source_withdrawn_before_its_last_byte_is_no_success);
           RUN(an_owner_that_lies_about_sizes_is_refused);
           RUN(garbage_instead_of_a_reply_is_refused);
           RUN(another_protocol_version_is_refused_with_both);
           RUN(a_killed_peer_is_noticed_at_once_and_can_be_linked_anew);
           RUN(a_stopped_peer_costs_the_time_out_and_works_again_when_it_goes_on);
           RUN(a_stopped_peer_is_dead_after_three_missed_heartbeats);)
