/* The life of a link as a state machine: every legal step, what breaks it and in which words, its
 * times.
 *
 * Random events and bad networks are in tests/property/test_peer_property.c. */
#include "link/peer.h"

#include "base/clock.h"
#include "check.h"

#define MS DDI_NS_PER_MS
#define START (UINT64_C(1000) * 1000 * MS) /* a clock does not begin at 0 */
#define BEAT (1000 * MS)
#define HANDSHAKE (5000 * MS)
#define CLIENT_ID 7
#define SERVER_ID 9

static const struct ddi_identity client_self = {.cluster_id = CLIENT_ID,
                                                .role = DD_ROLE_DECODER,
                                                .generation = "client-gen-of16",
                                                .heartbeat_ms = 1000,
                                                .handshake_ms = 5000};
static const struct ddi_identity server_self = {.cluster_id = SERVER_ID,
                                                .role = DD_ROLE_PROMPT,
                                                .generation = "server-gen-of16",
                                                .heartbeat_ms = 1000,
                                                .handshake_ms = 5000};
static const uint8_t token[DDI_TOKEN] = "token-of-link-1";
static const struct ddi_hello hello_of_client = {.min_version = DDI_PROTOCOL_MIN,
                                                 .max_version = DDI_PROTOCOL_MAX,
                                                 .cluster_id = CLIENT_ID,
                                                 .expected_id = SERVER_ID,
                                                 .role = DD_ROLE_DECODER,
                                                 .generation = "client-gen-of16"};
static const struct ddi_hello welcome_of_server = {.min_version = DDI_PROTOCOL_MIN,
                                                   .max_version = DDI_PROTOCOL_MAX,
                                                   .cluster_id = SERVER_ID,
                                                   .expected_id = CLIENT_ID,
                                                   .role = DD_ROLE_PROMPT,
                                                   .generation = "server-gen-of16",
                                                   .token = "token-of-link-1"};

/* One peer and the clock it lives by. */
struct life {
    struct ddi_peer peer;
    struct ddi_peer_actions did; /* in the last step */
    uint64_t now_ns;
};

static void step(struct life *life, struct ddi_peer_event event)
{
    ddi_peer_step(&life->peer, &event, life->now_ns, &life->did);
}

static void receive(struct life *life, enum ddi_message_type message)
{
    step(life, (struct ddi_peer_event){.type = DDI_EV_MESSAGE, .message = message});
}

static void receive_hello(struct life *life, enum ddi_message_type message,
                          const struct ddi_hello *hello)
{
    step(life, (struct ddi_peer_event){.type = DDI_EV_MESSAGE, .message = message, .hello = hello});
}

static void receive_refusal(struct life *life, const char *text)
{
    struct ddi_refusal refusal = {.status = DD_LINK_FAILED};

    (void)snprintf(refusal.text, sizeof(refusal.text), "%s", text);
    step(life, (struct ddi_peer_event){
                   .type = DDI_EV_MESSAGE, .message = DDI_REFUSE, .refusal = &refusal});
}

static void fail(struct life *life, enum ddi_peer_event_type type, dd_status status,
                 const char *text)
{
    dd_error err = {.status = status};

    (void)snprintf(err.text, sizeof(err.text), "%s", text);
    step(life, (struct ddi_peer_event){.type = type, .error = &err});
}

static void close_within(struct life *life, uint64_t left_ns)
{
    step(life,
         (struct ddi_peer_event){.type = DDI_EV_CLOSE, .deadline_ns = life->now_ns + left_ns});
}

static void admit(struct life *life)
{
    step(life, (struct ddi_peer_event){.type = DDI_EV_ADMIT, .token = token});
}

static void wait_for(struct life *life, uint64_t left_ns)
{
    life->now_ns += left_ns;
    step(life, (struct ddi_peer_event){.type = DDI_EV_TIME});
}

static struct life new_peer(bool is_client)
{
    struct life life = {.now_ns = START};

    ddi_peer_init(&life.peer, is_client ? &client_self : &server_self, is_client,
                  is_client ? SERVER_ID : 0, life.now_ns);
    return life;
}

static void begin_client(struct life *life, enum ddi_peer_state state)
{
    if (state >= DDI_PEER_CONNECTING) {
        step(life, (struct ddi_peer_event){.type = DDI_EV_DIAL, .deadline_ns = START + 3000 * MS});
    }
    if (state >= DDI_PEER_GREETING) {
        step(life, (struct ddi_peer_event){.type = DDI_EV_CONNECTED});
    }
    if (state >= DDI_PEER_LINKED) {
        receive_hello(life, DDI_WELCOME, &welcome_of_server);
    }
}

static void begin_server(struct life *life, enum ddi_peer_state state)
{
    if (state > DDI_PEER_IDLE) {
        receive_hello(life, DDI_HELLO, &hello_of_client);
    }
    if (state == DDI_PEER_PROBING) {
        step(life, (struct ddi_peer_event){.type = DDI_EV_PROBE});
    } else if (state >= DDI_PEER_GREETING) {
        admit(life);
    }
    if (state >= DDI_PEER_LINKED) {
        receive(life, DDI_READY);
    }
}

/* A peer in that state, by a way that real ones take. */
static struct life peer_in(bool is_client, enum ddi_peer_state state)
{
    struct life life = new_peer(is_client);

    if (is_client) {
        begin_client(&life, state);
    } else {
        begin_server(&life, state);
    }
    if (state == DDI_PEER_DRAINING) {
        close_within(&life, 500 * MS);
    } else if (state == DDI_PEER_CLOSED) {
        receive(&life, DDI_BYE);
    } else if (state == DDI_PEER_BROKEN) {
        fail(&life, DDI_EV_LOST, DD_NOT_LINKED, "peer lost: gone");
    }
    EXPECT_EQ(life.peer.state, state);
    return life;
}

/* Where a live peer can be. */
static const struct {
    bool is_client;
    enum ddi_peer_state state;
} live[] = {{true, DDI_PEER_IDLE},     {true, DDI_PEER_CONNECTING}, {true, DDI_PEER_GREETING},
            {true, DDI_PEER_LINKED},   {true, DDI_PEER_DRAINING},   {false, DDI_PEER_IDLE},
            {false, DDI_PEER_PROBING}, {false, DDI_PEER_GREETING},  {false, DDI_PEER_LINKED},
            {false, DDI_PEER_DRAINING}};
#define LIVE_COUNT (sizeof(live) / sizeof(live[0]))

/* What every end has in common. */
static void expect_over(const struct life *life, enum ddi_peer_state state, dd_status status,
                        enum ddi_message_type sent, const char *reason)
{
    EXPECT_EQ(life->peer.state, state);
    EXPECT_TRUE(ddi_peer_is_over(&life->peer));
    EXPECT_TRUE(life->did.close);
    EXPECT_TRUE(!life->did.linked);
    EXPECT_EQ(life->did.send, sent);
    EXPECT_EQ(life->did.wake_ns, DDI_NEVER);
    EXPECT_STATUS(life->peer.reason.status, status);
    EXPECT_CONTAINS(life->peer.reason.text, reason);
}

static void expect_quiet(const struct life *life)
{
    EXPECT_EQ(life->did.send, 0);
    EXPECT_TRUE(!life->did.ask_admission && !life->did.linked && !life->did.close);
}

TEST(client_goes_from_dial_to_linked)
{
    struct life life = new_peer(true);
    struct ddi_hello hello;

    EXPECT_EQ(life.peer.state, DDI_PEER_IDLE);
    EXPECT_EQ(life.peer.cluster_id, SERVER_ID);
    step(&life, (struct ddi_peer_event){.type = DDI_EV_DIAL, .deadline_ns = START + 3000 * MS});
    EXPECT_EQ(life.peer.state, DDI_PEER_CONNECTING);
    EXPECT_EQ(life.did.wake_ns, START + 3000 * MS);
    expect_quiet(&life);
    life.now_ns += 20 * MS;
    step(&life, (struct ddi_peer_event){.type = DDI_EV_CONNECTED});
    EXPECT_EQ(life.peer.state, DDI_PEER_GREETING);
    EXPECT_EQ(life.did.send, DDI_HELLO);
    EXPECT_EQ(life.did.wake_ns, START + 3000 * MS);
    ddi_peer_hello(&life.peer, &hello);
    EXPECT_EQ(memcmp(&hello, &hello_of_client, sizeof(hello)), 0);
    life.now_ns += 20 * MS;
    receive_hello(&life, DDI_WELCOME, &welcome_of_server);
    EXPECT_EQ(life.peer.state, DDI_PEER_LINKED);
    EXPECT_EQ(life.did.send, DDI_READY);
    EXPECT_TRUE(life.did.linked && !life.did.close);
    EXPECT_EQ(life.did.wake_ns, life.now_ns + BEAT);
    EXPECT_EQ(life.peer.role, DD_ROLE_PROMPT);
    EXPECT_EQ(memcmp(life.peer.token, token, DDI_TOKEN), 0);
    EXPECT_EQ(memcmp(life.peer.generation, server_self.generation, DDI_GENERATION), 0);
}

TEST(server_goes_from_hello_to_linked)
{
    struct life life = new_peer(false);
    struct ddi_hello welcome;

    wait_for(&life, 10 * MS);
    EXPECT_EQ(life.did.wake_ns, START + HANDSHAKE);
    receive_hello(&life, DDI_HELLO, &hello_of_client);
    EXPECT_TRUE(life.did.ask_admission && !life.did.close);
    EXPECT_EQ(life.did.send, 0);
    EXPECT_EQ(life.peer.cluster_id, CLIENT_ID);
    EXPECT_EQ(life.peer.role, DD_ROLE_DECODER);
    EXPECT_EQ(memcmp(life.peer.generation, client_self.generation, DDI_GENERATION), 0);
    admit(&life);
    EXPECT_EQ(life.peer.state, DDI_PEER_GREETING);
    EXPECT_EQ(life.did.send, DDI_WELCOME);
    EXPECT_EQ(life.did.wake_ns, START + HANDSHAKE);
    ddi_peer_hello(&life.peer, &welcome);
    EXPECT_EQ(memcmp(&welcome, &welcome_of_server, sizeof(welcome)), 0);
    life.now_ns += 10 * MS;
    receive(&life, DDI_READY);
    EXPECT_EQ(life.peer.state, DDI_PEER_LINKED);
    EXPECT_TRUE(life.did.linked && !life.did.close);
    EXPECT_EQ(life.did.send, 0);
    EXPECT_EQ(life.did.wake_ns, life.now_ns + BEAT);
}

TEST(wrong_cluster_is_refused_by_the_server_and_both_know_why)
{
    struct life client = peer_in(true, DDI_PEER_GREETING);
    struct life server = new_peer(false);
    struct ddi_hello hello = hello_of_client;

    hello.expected_id = 12;
    receive_hello(&server, DDI_HELLO, &hello);
    expect_over(&server, DDI_PEER_BROKEN, DD_LINK_FAILED, DDI_REFUSE,
                "cluster 7 expected cluster 12 here, found cluster 9");
    EXPECT_TRUE(!server.did.ask_admission);
    receive_refusal(&client, server.peer.reason.text);
    expect_over(&client, DDI_PEER_BROKEN, DD_LINK_FAILED, 0,
                "refused by the peer: wrong cluster: cluster 7 expected cluster 12 here, found "
                "cluster 9");
}

TEST(wrong_cluster_is_refused_by_the_client_and_both_know_why)
{
    struct life client = peer_in(true, DDI_PEER_GREETING);
    struct life server = peer_in(false, DDI_PEER_GREETING);
    struct ddi_hello welcome = welcome_of_server;

    welcome.cluster_id = 12;
    receive_hello(&client, DDI_WELCOME, &welcome);
    expect_over(&client, DDI_PEER_BROKEN, DD_LINK_FAILED, DDI_REFUSE,
                "wrong cluster: expected cluster 9, found cluster 12");
    receive_refusal(&server, client.peer.reason.text);
    expect_over(&server, DDI_PEER_BROKEN, DD_LINK_FAILED, 0,
                "expected cluster 9, found cluster 12");
}

TEST(a_version_that_we_do_not_speak_is_refused)
{
    const uint16_t ranges[][2] = {{DDI_PROTOCOL_MAX + 1, DDI_PROTOCOL_MAX + 1},
                                  {DDI_PROTOCOL_MAX + 1, UINT16_MAX},
                                  {0, DDI_PROTOCOL_MIN - 1},
                                  {UINT16_MAX, 0}};
    struct ddi_hello hello = hello_of_client;
    struct ddi_hello welcome = welcome_of_server;
    struct life server = new_peer(false);
    char found[64];

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        struct life refusing = new_peer(false);
        struct life client = peer_in(true, DDI_PEER_GREETING);

        (void)snprintf(found, sizeof(found), "expected %d to %d, found %u to %u", DDI_PROTOCOL_MIN,
                       DDI_PROTOCOL_MAX, ranges[i][0], ranges[i][1]);
        hello.min_version = welcome.min_version = ranges[i][0];
        hello.max_version = welcome.max_version = ranges[i][1];
        receive_hello(&refusing, DDI_HELLO, &hello);
        expect_over(&refusing, DDI_PEER_BROKEN, DD_LINK_FAILED, DDI_REFUSE, "protocol version");
        EXPECT_CONTAINS(refusing.peer.reason.text, found);
        receive_hello(&client, DDI_WELCOME, &welcome);
        expect_over(&client, DDI_PEER_BROKEN, DD_LINK_FAILED, DDI_REFUSE, "protocol version");
        EXPECT_CONTAINS(client.peer.reason.text, found);
    }
    hello.min_version = 0; /* a range around ours is fine */
    hello.max_version = UINT16_MAX;
    receive_hello(&server, DDI_HELLO, &hello);
    EXPECT_TRUE(server.did.ask_admission);
}

TEST(a_refusal_ends_every_state_with_its_words)
{
    for (size_t i = 0; i < LIVE_COUNT; i++) {
        struct life life = peer_in(live[i].is_client, live[i].state);

        receive_refusal(&life, "not today");
        expect_over(&life, DDI_PEER_BROKEN, DD_LINK_FAILED, 0, "refused by the peer: not today");
    }
}

TEST(a_probe_admits_or_denies)
{
    struct life admitted = peer_in(false, DDI_PEER_PROBING);
    struct life denied = peer_in(false, DDI_PEER_PROBING);
    struct life denied_at_once = new_peer(false);

    expect_quiet(&admitted);
    EXPECT_EQ(admitted.did.wake_ns, START + HANDSHAKE);
    admit(&admitted);
    EXPECT_EQ(admitted.did.send, DDI_WELCOME);
    receive(&admitted, DDI_READY);
    EXPECT_TRUE(admitted.did.linked);
    fail(&denied, DDI_EV_DENY, DD_LINK_FAILED, "cluster 7 is linked from x and alive");
    expect_over(&denied, DDI_PEER_BROKEN, DD_LINK_FAILED, DDI_REFUSE, "linked from x and alive");
    receive_hello(&denied_at_once, DDI_HELLO, &hello_of_client);
    fail(&denied_at_once, DDI_EV_DENY, DD_LINK_IN_PROGRESS, "is being made already");
    expect_over(&denied_at_once, DDI_PEER_BROKEN, DD_LINK_IN_PROGRESS, DDI_REFUSE,
                "is being made already");
}

TEST(either_side_closes_orderly)
{
    struct life sides[] = {peer_in(true, DDI_PEER_LINKED), peer_in(false, DDI_PEER_LINKED)};

    for (size_t i = 0; i < 2; i++) {
        struct life *asks = &sides[i];
        struct life other = peer_in(i > 0, DDI_PEER_LINKED);

        close_within(asks, 500 * MS);
        EXPECT_EQ(asks->peer.state, DDI_PEER_DRAINING);
        EXPECT_EQ(asks->did.send, DDI_BYE);
        EXPECT_TRUE(!asks->did.close);
        EXPECT_EQ(asks->did.wake_ns, asks->now_ns + 500 * MS);
        receive(&other, DDI_BYE);
        expect_over(&other, DDI_PEER_CLOSED, DD_NOT_LINKED, DDI_BYE_ACK, "unlinked by the peer");
        receive(asks, DDI_BYE_ACK);
        expect_over(asks, DDI_PEER_CLOSED, DD_NOT_LINKED, 0, "unlinked");
    }
}

TEST(both_sides_close_at_once)
{
    struct life client = peer_in(true, DDI_PEER_DRAINING);
    struct life server = peer_in(false, DDI_PEER_DRAINING);

    receive(&client, DDI_BYE);
    expect_over(&client, DDI_PEER_CLOSED, DD_NOT_LINKED, DDI_BYE_ACK, "unlinked by the peer");
    receive(&server, DDI_BYE);
    expect_over(&server, DDI_PEER_CLOSED, DD_NOT_LINKED, DDI_BYE_ACK, "unlinked by the peer");
    receive(&client, DDI_BYE_ACK); /* late */
    EXPECT_EQ(client.peer.state, DDI_PEER_CLOSED);
    expect_quiet(&client);
}

TEST(a_link_that_drains_still_answers)
{
    struct life life = peer_in(true, DDI_PEER_DRAINING);

    receive(&life, DDI_PING);
    EXPECT_EQ(life.did.send, DDI_PONG);
    receive(&life, DDI_PONG);
    expect_quiet(&life);
    EXPECT_EQ(life.peer.state, DDI_PEER_DRAINING);
    EXPECT_EQ(life.did.wake_ns, life.now_ns + 500 * MS); /* traffic does not move the deadline */
}

TEST(a_lost_connection_ends_every_state)
{
    for (size_t i = 0; i < LIVE_COUNT; i++) {
        struct life life = peer_in(live[i].is_client, live[i].state);

        fail(&life, DDI_EV_LOST, DD_NOT_LINKED, "peer lost: reset");
        expect_over(&life, DDI_PEER_BROKEN, DD_NOT_LINKED, 0, "peer lost: reset");
    }
}

TEST(a_silent_peer_is_pinged_and_dead_after_three)
{
    struct life life = peer_in(true, DDI_PEER_LINKED);

    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(life.did.wake_ns, life.now_ns + BEAT);
        wait_for(&life, BEAT - 1);
        expect_quiet(&life);
        wait_for(&life, 1);
        EXPECT_EQ(life.did.send, DDI_PING);
        EXPECT_TRUE(!life.did.close);
    }
    wait_for(&life, BEAT - 1);
    expect_quiet(&life);
    wait_for(&life, 1);
    expect_over(&life, DDI_PEER_BROKEN, DD_NOT_LINKED, 0, "peer lost: no sign of life for 3000 ms");
}

TEST(a_peer_that_answers_pings_lives_on)
{
    struct life life = peer_in(false, DDI_PEER_LINKED);

    for (int i = 0; i < 1000; i++) {
        wait_for(&life, life.did.wake_ns - life.now_ns);
        EXPECT_EQ(life.did.send, DDI_PING);
        life.now_ns += 900 * MS; /* a slow answer is an answer */
        receive(&life, DDI_PONG);
        expect_quiet(&life);
    }
    EXPECT_EQ(life.peer.state, DDI_PEER_LINKED);
}

TEST(nobody_is_pinged_while_traffic_flows)
{
    struct life life = peer_in(true, DDI_PEER_LINKED);

    for (int i = 0; i < 100; i++) {
        life.now_ns += BEAT - 1;
        receive(&life, i % 2 == 0 ? DDI_PING : DDI_PONG);
        EXPECT_EQ(life.did.send, i % 2 == 0 ? DDI_PONG : 0);
        EXPECT_EQ(life.did.wake_ns, life.now_ns + BEAT);
        step(&life, (struct ddi_peer_event){.type = DDI_EV_TIME});
        expect_quiet(&life);
    }
}

TEST(a_late_timer_pings_once_or_gives_up)
{
    struct life life = peer_in(true, DDI_PEER_LINKED);

    wait_for(&life, 2 * BEAT + BEAT / 2); /* the loop was busy */
    EXPECT_EQ(life.did.send, DDI_PING);
    EXPECT_TRUE(life.did.wake_ns > life.now_ns);
    wait_for(&life, BEAT / 2);
    expect_over(&life, DDI_PEER_BROKEN, DD_NOT_LINKED, 0, "no sign of life for 3000 ms");
}

TEST(without_heartbeats_a_silent_peer_stays)
{
    struct ddi_identity self = client_self;
    struct life life = peer_in(true, DDI_PEER_LINKED);

    self.heartbeat_ms = 0;
    life.peer.self = &self;
    for (int i = 0; i < 3; i++) {
        wait_for(&life, UINT64_C(1000000) * BEAT);
        expect_quiet(&life);
        EXPECT_EQ(life.did.wake_ns, DDI_NEVER);
    }
    receive(&life, DDI_PING);
    EXPECT_EQ(life.did.send, DDI_PONG);
}

TEST(each_state_ends_at_its_deadline)
{
    const struct {
        bool is_client;
        enum ddi_peer_state state;
        uint64_t left_ns;
        dd_status status;
        enum ddi_message_type sent;
    } cases[] = {
        {true, DDI_PEER_CONNECTING, 3000 * MS, DD_TIMEOUT, 0},
        {true, DDI_PEER_GREETING, 3000 * MS, DD_TIMEOUT, 0},
        {true, DDI_PEER_DRAINING, 500 * MS, DD_PEER_NOT_TOLD, 0},
        {false, DDI_PEER_IDLE, HANDSHAKE, DD_TIMEOUT, 0},
        {false, DDI_PEER_PROBING, HANDSHAKE, DD_TIMEOUT, DDI_REFUSE},
        {false, DDI_PEER_GREETING, HANDSHAKE, DD_TIMEOUT, 0},
        {false, DDI_PEER_DRAINING, 500 * MS, DD_PEER_NOT_TOLD, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct life life = peer_in(cases[i].is_client, cases[i].state);

        wait_for(&life, cases[i].left_ns - 1);
        expect_quiet(&life);
        EXPECT_EQ(life.peer.state, cases[i].state);
        EXPECT_EQ(life.did.wake_ns, life.now_ns + 1);
        wait_for(&life, 1);
        expect_over(&life, DDI_PEER_BROKEN, cases[i].status, cases[i].sent,
                    "no answer in time while ");
        EXPECT_CONTAINS(life.peer.reason.text, ddi_peer_state_name(cases[i].state));
    }
}

/* Whether this message has a meaning for that side in that state. */
static bool is_legal(bool is_client, enum ddi_peer_state state, int message)
{
    switch (state) {
    case DDI_PEER_IDLE:
        return !is_client && message == DDI_HELLO;
    case DDI_PEER_GREETING:
        return message == (is_client ? DDI_WELCOME : DDI_READY);
    case DDI_PEER_LINKED:
        return message == DDI_PING || message == DDI_PONG || message == DDI_BYE;
    case DDI_PEER_DRAINING:
        return message >= DDI_PING && message <= DDI_BYE_ACK;
    default:
        return false;
    }
}

TEST(any_other_message_breaks_the_link)
{
    for (size_t i = 0; i < LIVE_COUNT; i++) {
        for (int message = 0; message <= DDI_DIAL + 1; message++) {
            struct life life = peer_in(live[i].is_client, live[i].state);

            if (message == DDI_REFUSE || is_legal(live[i].is_client, live[i].state, message)) {
                continue;
            }
            receive_hello(&life, (enum ddi_message_type)message, &welcome_of_server);
            expect_over(&life, DDI_PEER_BROKEN, DD_LINK_FAILED, 0, "unexpected ");
            EXPECT_CONTAINS(life.peer.reason.text, ddi_peer_state_name(live[i].state));
        }
    }
}

/* Every event and every message, in turn, to a peer that is over. */
TEST(what_is_over_stays_over_and_silent)
{
    const dd_error late = {.status = DD_LINK_FAILED, .text = "came late"};
    const struct ddi_refusal refusal = {.status = DD_FAILED, .text = "came late"};
    struct ddi_peer_event event = {
        .hello = &hello_of_client, .refusal = &refusal, .token = token, .error = &late};

    for (int i = 0; i < 4 * (DDI_EV_TIME + 1) * (DDI_DIAL + 1); i++) {
        enum ddi_peer_state state = i / 2 % 2 == 0 ? DDI_PEER_CLOSED : DDI_PEER_BROKEN;
        struct life life = peer_in(i % 2 == 0, state);
        dd_error reason = life.peer.reason;

        life.now_ns += BEAT;
        event.type = (enum ddi_peer_event_type)(i / 4 % (DDI_EV_TIME + 1));
        event.message = (enum ddi_message_type)(i / 4 / (DDI_EV_TIME + 1));
        event.deadline_ns = life.now_ns;
        step(&life, event);
        EXPECT_EQ(life.peer.state, state);
        expect_quiet(&life);
        EXPECT_EQ(life.did.wake_ns, DDI_NEVER);
        EXPECT_EQ(memcmp(&life.peer.reason, &reason, sizeof(reason)), 0);
    }
}

TEST(neither_side_takes_steps_of_the_other)
{
    const dd_error err = {.status = DD_LINK_FAILED, .text = "denied"};
    struct life server = new_peer(false);

    step(&server, (struct ddi_peer_event){.type = DDI_EV_DIAL, .deadline_ns = START + MS});
    EXPECT_TRUE(server.peer.state != DDI_PEER_CONNECTING);
    for (size_t i = 0; i < LIVE_COUNT && live[i].is_client; i++) {
        for (int type = DDI_EV_ADMIT; type <= DDI_EV_DENY; type++) {
            struct life client = peer_in(true, live[i].state);
            struct ddi_peer_event event = {
                .type = (enum ddi_peer_event_type)type, .token = token, .error = &err};

            step(&client, event);
            EXPECT_TRUE(client.peer.state == live[i].state || client.peer.state == DDI_PEER_BROKEN);
            EXPECT_EQ(client.did.send, 0);
        }
    }
}

CHECK_MAIN(RUN(client_goes_from_dial_to_linked); RUN(server_goes_from_hello_to_linked);
           RUN(wrong_cluster_is_refused_by_the_server_and_both_know_why);
           RUN(wrong_cluster_is_refused_by_the_client_and_both_know_why);
           RUN(a_version_that_we_do_not_speak_is_refused);
           RUN(a_refusal_ends_every_state_with_its_words); RUN(a_probe_admits_or_denies);
           RUN(either_side_closes_orderly); RUN(both_sides_close_at_once);
           RUN(a_link_that_drains_still_answers); RUN(a_lost_connection_ends_every_state);
           RUN(a_silent_peer_is_pinged_and_dead_after_three);
           RUN(a_peer_that_answers_pings_lives_on); RUN(nobody_is_pinged_while_traffic_flows);
           RUN(a_late_timer_pings_once_or_gives_up); RUN(without_heartbeats_a_silent_peer_stays);
           RUN(each_state_ends_at_its_deadline); RUN(any_other_message_breaks_the_link);
           RUN(what_is_over_stays_over_and_silent); RUN(neither_side_takes_steps_of_the_other);)
