/* The link's state machine under chance. First a walk: one peer gets any event at any time and must
 * keep its promises. Then a client and a server that talk over a bad network: they may not disagree
 * about their link for longer than heartbeats allow.
 *
 * The seed of a case is printed when it fails. DD_SEED=<number> replays that case. */
#include "link/peer.h"

#include "base/clock.h"
#include "base/num.h"

#include "../unit/check.h"

#define MS DDI_NS_PER_MS
#define START (UINT64_C(1000) * 1000 * MS)
#define RUN_MS 1000 /* of each test */
#define QUEUE 64

static uint64_t random_state;
static uint64_t seed; /* of the case that runs */

static uint64_t random_u64(void)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* 0 .. n - 1 */
static uint64_t below(uint64_t n)
{
    return random_u64() % n;
}

static bool chance(unsigned percent)
{
    return below(100) < percent;
}

#define HOLDS(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            check_failures++;                                                             \
            (void)fprintf(stderr, "%s:%d: DD_SEED=%" PRIu64 ": not true: %s\n", __FILE__, \
                          __LINE__, seed, #condition);                                    \
        }                                                                                 \
    } while (0)

/* Run a case with many seeds for a while, or with the one in DD_SEED; stop at the first failure. */
static void run_cases(void (*run)(void))
{
    const char *replay = getenv("DD_SEED");
    uint64_t end_ns = ddi_deadline_ns(RUN_MS);
    int before = check_failures;
    uint64_t count = 0;

    seed = replay != NULL ? strtoull(replay, NULL, 10) : ddi_clock_ns();
    do {
        seed += count > 0;
        random_state = seed;
        run();
        count++;
    } while (replay == NULL && ddi_clock_ns() < end_ns && check_failures == before);
    (void)printf("%" PRIu64 " cases, the last one with DD_SEED=%" PRIu64 "\n", count, seed);
}

static struct ddi_identity random_identity(uint64_t cluster_id)
{
    return (struct ddi_identity){.cluster_id = cluster_id,
                                 .role = DD_ROLE_MIX,
                                 .heartbeat_ms = 50 + (uint32_t)below(2000),
                                 .handshake_ms = 10 + (uint32_t)below(6000)};
}

static uint64_t beat_of(const struct ddi_peer *peer)
{
    return peer->self->heartbeat_ms * MS;
}

/* ---- One peer, any event --------------------------------------------------------------------- */

/* Whether the diagram in peer.h has this arrow. */
static bool is_arrow(bool is_client, enum ddi_peer_state from, enum ddi_peer_state to)
{
    if (to == DDI_PEER_BROKEN) {
        return from != DDI_PEER_CLOSED;
    }
    switch (from) {
    case DDI_PEER_IDLE:
        return is_client ? to == DDI_PEER_CONNECTING
                         : to == DDI_PEER_PROBING || to == DDI_PEER_GREETING;
    case DDI_PEER_CONNECTING:
        return is_client && to == DDI_PEER_GREETING;
    case DDI_PEER_PROBING:
        return !is_client && to == DDI_PEER_GREETING;
    case DDI_PEER_GREETING:
        return to == DDI_PEER_LINKED;
    case DDI_PEER_LINKED:
        return to == DDI_PEER_DRAINING || to == DDI_PEER_CLOSED;
    case DDI_PEER_DRAINING:
        return to == DDI_PEER_CLOSED;
    default:
        return false;
    }
}

/* What is sent goes with the state that is reached, and with the side. */
static void check_sent(const struct ddi_peer *peer, const struct ddi_peer_event *event,
                       const struct ddi_peer_actions *did)
{
    switch (did->send) {
    case DDI_HELLO:
        HOLDS(peer->is_client && peer->state == DDI_PEER_GREETING);
        break;
    case DDI_WELCOME:
        HOLDS(!peer->is_client && peer->state == DDI_PEER_GREETING);
        break;
    case DDI_READY:
        HOLDS(peer->is_client && did->linked);
        break;
    case DDI_REFUSE:
        HOLDS(peer->state == DDI_PEER_BROKEN);
        break;
    case DDI_PING:
        HOLDS(peer->state == DDI_PEER_LINKED && event->type == DDI_EV_TIME);
        break;
    case DDI_PONG:
        HOLDS(event->type == DDI_EV_MESSAGE && event->message == DDI_PING);
        break;
    case DDI_BYE:
        HOLDS(peer->state == DDI_PEER_DRAINING);
        break;
    case DDI_BYE_ACK:
        HOLDS(peer->state == DDI_PEER_CLOSED);
        break;
    default:
        HOLDS(did->send == 0);
        break;
    }
}

static void check_wake(const struct ddi_peer *peer, const struct ddi_peer_event *event,
                       uint64_t now_ns, const struct ddi_peer_actions *did)
{
    bool is_due = peer->deadline_ns <= now_ns;

    if (peer->state == DDI_PEER_LINKED) {
        HOLDS(peer->deadline_ns == DDI_NEVER);
        HOLDS((did->wake_ns == DDI_NEVER) == (beat_of(peer) == 0));
        is_due = beat_of(peer) != 0 &&
                 ddi_max_u64(peer->heard_ns, peer->pinged_ns) + beat_of(peer) <= now_ns;
    } else {
        HOLDS(did->wake_ns == peer->deadline_ns);
        HOLDS(did->wake_ns != DDI_NEVER || (peer->is_client && peer->state == DDI_PEER_IDLE));
    }
    HOLDS(did->wake_ns > now_ns || is_due);
    HOLDS(did->wake_ns > now_ns || event->type != DDI_EV_TIME);
}

static void check_step(const struct ddi_peer *before, const struct ddi_peer_event *event,
                       uint64_t now_ns, const struct ddi_peer *peer,
                       const struct ddi_peer_actions *did)
{
    HOLDS(before->state == peer->state || is_arrow(peer->is_client, before->state, peer->state));
    HOLDS(did->close == (ddi_peer_is_over(peer) && !ddi_peer_is_over(before)));
    HOLDS(did->linked == (peer->state == DDI_PEER_LINKED && before->state != DDI_PEER_LINKED));
    HOLDS(!did->ask_admission || (!peer->is_client && peer->state == DDI_PEER_IDLE));
    if (ddi_peer_is_over(before)) {
        HOLDS(did->send == 0);
        HOLDS(memcmp(&before->reason, &peer->reason, sizeof(peer->reason)) == 0);
    }
    if (ddi_peer_is_over(peer)) {
        HOLDS(did->wake_ns == DDI_NEVER);
        HOLDS(peer->reason.status != DD_OK && peer->reason.text[0] != '\0');
    } else {
        check_wake(peer, event, now_ns, did);
    }
    check_sent(peer, event, did);
}

/* The event that leads a peer on. */
static void choose_fitting(const struct ddi_peer *peer, struct ddi_peer_event *event)
{
    event->type = DDI_EV_MESSAGE;
    switch (peer->state) {
    case DDI_PEER_IDLE:
        event->type = peer->is_client ? DDI_EV_DIAL : chance(50) ? DDI_EV_MESSAGE : DDI_EV_ADMIT;
        event->message = DDI_HELLO;
        break;
    case DDI_PEER_CONNECTING:
        event->type = DDI_EV_CONNECTED;
        break;
    case DDI_PEER_PROBING:
        event->type = DDI_EV_ADMIT;
        break;
    case DDI_PEER_GREETING:
        event->message = peer->is_client ? DDI_WELCOME : DDI_READY;
        break;
    default:
        event->message = chance(50) ? DDI_PING : DDI_PONG;
        break;
    }
}

static uint64_t random_step_ns(const struct ddi_peer_actions *did, uint64_t now_ns)
{
    switch (below(4)) {
    case 0:
        return 0;
    case 1: /* in time, to the nanosecond */
        return did->wake_ns == DDI_NEVER || did->wake_ns < now_ns ? 0 : did->wake_ns - now_ns;
    case 2:
        return below(4000 * MS);
    default:
        return below(50 * MS);
    }
}

static void walk(void)
{
    static const uint8_t token[DDI_TOKEN] = "token";
    const dd_error err = {.status = DD_LINK_FAILED, .text = "so it is"};
    const struct ddi_refusal refusal = {.status = DD_FAILED, .text = "no"};
    struct ddi_identity self = random_identity(7);
    uint64_t now_ns = START;
    struct ddi_peer_actions did = {.wake_ns = DDI_NEVER};
    struct ddi_peer peer;

    if (chance(20)) {
        self.heartbeat_ms = 0;
    }
    ddi_peer_init(&peer, &self, chance(50), 9, now_ns);
    for (int i = 0; i < 100; i++) {
        struct ddi_peer before = peer;
        struct ddi_hello hello = {.min_version = (uint16_t)(chance(90) ? 1 : below(3)),
                                  .max_version = (uint16_t)(chance(90) ? 1 : below(3)),
                                  .cluster_id = chance(90) ? 9 : below(12),
                                  .expected_id = chance(90) ? 7 : below(12)};
        struct ddi_peer_event event = {.type = (enum ddi_peer_event_type)below(DDI_EV_TIME + 1),
                                       .deadline_ns = now_ns + below(3000 * MS),
                                       .message = (enum ddi_message_type)below(DDI_DIAL + 2),
                                       .hello = &hello,
                                       .refusal = &refusal,
                                       .token = token,
                                       .error = &err};

        now_ns += random_step_ns(&did, now_ns);
        if (chance(30)) {
            event.type = DDI_EV_TIME;
        } else if (chance(80)) {
            choose_fitting(&peer, &event);
        }
        ddi_peer_step(&peer, &event, now_ns, &did);
        check_step(&before, &event, now_ns, &peer, &did);
    }
}

TEST(a_peer_keeps_its_promises_whatever_comes)
{
    run_cases(walk);
}

/* ---- Two peers and a network ----------------------------------------------------------------- */

struct packet {
    uint64_t at_ns;                /* when it arrives */
    enum ddi_message_type message; /* 0: the connection ends */
    struct ddi_hello hello;
    struct ddi_refusal refusal;
};

/* One side, and what is on its way to it. */
struct side {
    struct ddi_identity self;
    struct ddi_peer peer;
    uint64_t wake_ns;
    uint64_t admit_ns;  /* server: when admission is decided */
    uint64_t close_ns;  /* when it is asked to close */
    uint64_t close_ms;  /* how long that may take */
    uint64_t silent_ns; /* from then on nothing reaches it */
    struct packet queue[QUEUE];
    unsigned first;
    unsigned count;
};

struct network {
    uint64_t now_ns;
    uint64_t max_delay_ns;
    unsigned loss; /* percent */
    uint64_t reset_ns;
    uint64_t apart_ns;    /* since when they disagree; DDI_NEVER: they agree */
    struct side sides[2]; /* client, server */
};

static void put_packet(struct network *net, struct side *to, const struct packet *packet)
{
    uint64_t last_ns = to->count == 0 ? 0 : to->queue[(to->first + to->count - 1) % QUEUE].at_ns;
    uint64_t at_ns = net->now_ns + below(net->max_delay_ns + 1);

    if (chance(net->loss) || net->now_ns >= to->silent_ns) {
        return;
    }
    HOLDS(to->count < QUEUE);
    if (to->count < QUEUE) {
        to->queue[(to->first + to->count) % QUEUE] = *packet;
        to->queue[(to->first + to->count) % QUEUE].at_ns = ddi_max_u64(at_ns, last_ns);
        to->count++;
    }
}

static void feed(struct network *net, unsigned at, const struct ddi_peer_event *event)
{
    struct side *side = &net->sides[at];
    struct side *other = &net->sides[1 - at];
    struct ddi_peer before = side->peer;
    struct ddi_peer_actions did;

    if (ddi_peer_is_over(&side->peer)) {
        return; /* its connection is closed */
    }
    ddi_peer_step(&side->peer, event, net->now_ns, &did);
    check_step(&before, event, net->now_ns, &side->peer, &did);
    side->wake_ns = did.wake_ns;
    if (did.send != 0) {
        struct packet packet = {.message = did.send};

        ddi_peer_hello(&side->peer, &packet.hello);
        (void)snprintf(packet.refusal.text, sizeof(packet.refusal.text), "%.*s", DDI_MAX_TEXT,
                       side->peer.reason.text);
        put_packet(net, other, &packet);
    }
    if (did.close) {
        struct packet end = {.message = 0};

        put_packet(net, other, &end);
    }
    if (did.ask_admission) {
        struct ddi_peer_event probe = {.type = DDI_EV_PROBE};

        side->admit_ns = net->now_ns;
        if (chance(30)) {
            side->admit_ns += below(500 * MS);
            feed(net, at, &probe);
        }
    }
}

static void lose(struct network *net, unsigned at)
{
    const dd_error err = {.status = DD_NOT_LINKED, .text = "peer lost: connection closed"};
    struct ddi_peer_event event = {.type = DDI_EV_LOST, .error = &err};

    feed(net, at, &event);
}

static void take_packet(struct network *net, unsigned at)
{
    struct side *side = &net->sides[at];
    struct packet packet = side->queue[side->first];
    struct ddi_peer_event event = {.type = DDI_EV_MESSAGE,
                                   .message = packet.message,
                                   .hello = &packet.hello,
                                   .refusal = &packet.refusal};

    side->first = (side->first + 1) % QUEUE;
    side->count--;
    if (packet.message == 0) {
        lose(net, at);
    } else {
        feed(net, at, &event);
    }
}

static uint64_t next_of(const struct side *side)
{
    uint64_t next_ns = ddi_min_u64(side->wake_ns, ddi_min_u64(side->admit_ns, side->close_ns));

    if (side->count > 0) {
        next_ns = ddi_min_u64(next_ns, side->queue[side->first].at_ns);
    }
    return next_ns;
}

/* Do what is due at one side. */
static void advance(struct network *net, unsigned at)
{
    static const uint8_t token[DDI_TOKEN] = "token";
    struct side *side = &net->sides[at];
    struct ddi_peer_event event = {.type = DDI_EV_TIME, .token = token};

    while (side->count > 0 && side->queue[side->first].at_ns <= net->now_ns) {
        take_packet(net, at);
    }
    if (side->admit_ns <= net->now_ns) {
        side->admit_ns = DDI_NEVER;
        event.type = DDI_EV_ADMIT;
        feed(net, at, &event);
    }
    if (side->close_ns <= net->now_ns) {
        side->close_ns = DDI_NEVER;
        event.type = DDI_EV_CLOSE;
        event.deadline_ns = net->now_ns + side->close_ms * MS;
        feed(net, at, &event);
    }
    if (side->wake_ns <= net->now_ns) {
        event.type = DDI_EV_TIME;
        feed(net, at, &event);
    }
}

/* One side takes the link for alive while at the other it is over or does not stand yet. */
static void check_agreement(struct network *net)
{
    for (unsigned at = 0; at < 2; at++) {
        const struct ddi_peer *peer = &net->sides[at].peer;
        enum ddi_peer_state other = net->sides[1 - at].peer.state;

        if (peer->state == DDI_PEER_LINKED && other != DDI_PEER_LINKED &&
            other != DDI_PEER_DRAINING) {
            net->apart_ns = ddi_min_u64(net->apart_ns, net->now_ns);
            HOLDS(net->now_ns - net->apart_ns <= 3 * beat_of(peer) + net->max_delay_ns);
            return;
        }
    }
    net->apart_ns = DDI_NEVER;
}

static void init_network(struct network *net)
{
    struct ddi_peer_event dial = {.type = DDI_EV_DIAL, .deadline_ns = START + 3000 * MS};
    struct ddi_peer_event connected = {.type = DDI_EV_CONNECTED};

    (void)memset(net, 0, sizeof(*net));
    net->now_ns = START;
    net->reset_ns = net->apart_ns = DDI_NEVER;
    for (unsigned at = 0; at < 2; at++) {
        struct side *side = &net->sides[at];

        side->self = random_identity(at == 0 ? 7 : 9);
        side->admit_ns = side->close_ns = side->silent_ns = DDI_NEVER;
        ddi_peer_init(&side->peer, &side->self, at == 0, at == 0 ? 9 : 0, START);
        side->wake_ns = START + side->self.handshake_ms * MS;
    }
    feed(net, 0, &dial);
    feed(net, 0, &connected);
}

static void run_network(struct network *net, uint64_t until_ns)
{
    int before = check_failures;

    while (net->now_ns < until_ns && check_failures == before) {
        uint64_t next_ns = ddi_min_u64(next_of(&net->sides[0]), next_of(&net->sides[1]));

        net->now_ns = ddi_min_u64(ddi_min_u64(next_ns, net->reset_ns), until_ns);
        if (net->reset_ns <= net->now_ns) {
            net->reset_ns = DDI_NEVER;
            lose(net, (unsigned)below(2)); /* the other one hears of it as the network likes */
        }
        advance(net, 0);
        check_agreement(net);
        advance(net, 1);
        check_agreement(net);
    }
}

static void run_bad_network(void)
{
    static struct network net;

    init_network(&net);
    net.max_delay_ns = below(1500 * MS);
    net.loss = chance(50) ? 0 : (unsigned)below(40);
    net.reset_ns = chance(30) ? START + below(20000 * MS) : DDI_NEVER;
    for (unsigned at = 0; at < 2; at++) {
        struct side *side = &net.sides[at];

        side->close_ns = chance(30) ? START + below(20000 * MS) : DDI_NEVER;
        side->close_ms = below(4000);
        side->silent_ns = chance(30) ? START + below(20000 * MS) : DDI_NEVER;
    }
    run_network(&net, START + 60000 * MS);
    for (unsigned at = 0; at < 2; at++) {
        enum ddi_peer_state state = net.sides[at].peer.state;

        HOLDS(state == DDI_PEER_LINKED || state == DDI_PEER_IDLE ||
              ddi_peer_is_over(&net.sides[at].peer));
        HOLDS(net.sides[at].silent_ns == DDI_NEVER || state != DDI_PEER_LINKED);
    }
}

/* Nothing is lost and answers come soon: the link stands, and ends only when it is asked to. */
static void run_good_network(void)
{
    static struct network net;
    bool is_closed = chance(50);

    init_network(&net);
    net.sides[1].self.handshake_ms += 3000;
    net.sides[1].peer.deadline_ns += 3000 * MS;
    net.sides[1].wake_ns += 3000 * MS;
    /* Four messages fit into the handshake's and the close's 3 s, beside 500 ms of admission. */
    net.max_delay_ns = below(ddi_min_u64(
        500 * MS, ddi_min_u64(beat_of(&net.sides[0].peer), beat_of(&net.sides[1].peer)) / 4));
    run_network(&net, START + 5000 * MS);
    HOLDS(net.sides[0].peer.state == DDI_PEER_LINKED);
    HOLDS(net.sides[1].peer.state == DDI_PEER_LINKED);
    for (unsigned at = 0; at < 2 && is_closed; at++) {
        net.sides[at].close_ms = 3000;
        net.sides[at].close_ns = net.now_ns + (chance(50) ? 0 : below(100 * MS));
    }
    run_network(&net, START + 30000 * MS);
    for (unsigned at = 0; at < 2; at++) {
        HOLDS(net.sides[at].peer.state == (is_closed ? DDI_PEER_CLOSED : DDI_PEER_LINKED));
    }
}

TEST(two_peers_never_disagree_for_long)
{
    run_cases(run_bad_network);
}

TEST(a_link_over_a_good_network_stands)
{
    run_cases(run_good_network);
}

CHECK_MAIN(RUN(a_peer_keeps_its_promises_whatever_comes); RUN(two_peers_never_disagree_for_long);
           RUN(a_link_over_a_good_network_stands);)
