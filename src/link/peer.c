/* The life of one link as a step function. Pure. */
#include "link/peer.h"

#include "base/clock.h"
#include "base/num.h"

#include <inttypes.h>
#include <string.h>

#define MISSED_BEATS 3

static void break_link(struct ddi_peer *peer, struct ddi_peer_actions *out)
{
    peer->state = DDI_PEER_BROKEN;
    peer->deadline_ns = DDI_NEVER;
    out->close = true;
}

static void refuse(struct ddi_peer *peer, struct ddi_peer_actions *out)
{
    out->send = DDI_REFUSE;
    break_link(peer, out);
}

static void take_hello(struct ddi_peer *peer, const struct ddi_hello *hello)
{
    peer->cluster_id = hello->cluster_id;
    peer->role = hello->role;
    (void)memcpy(peer->generation, hello->generation, DDI_GENERATION);
}

/* Whether the peer speaks a version that we speak. */
static bool version_fits(struct ddi_peer *peer, const struct ddi_hello *hello)
{
    if (hello->min_version <= DDI_PROTOCOL_MAX && hello->max_version >= DDI_PROTOCOL_MIN) {
        peer->version = (uint16_t)ddi_min_u64(hello->max_version, DDI_PROTOCOL_MAX);
        return true;
    }
    (void)ddi_fail(&peer->reason, DD_LINK_FAILED,
                   "protocol version differs: expected %d to %d, found %u to %u", DDI_PROTOCOL_MIN,
                   DDI_PROTOCOL_MAX, hello->min_version, hello->max_version);
    return false;
}

static void on_hello(struct ddi_peer *peer, const struct ddi_hello *hello,
                     struct ddi_peer_actions *out)
{
    take_hello(peer, hello);
    if (!version_fits(peer, hello)) {
        refuse(peer, out);
    } else if (hello->expected_id != peer->self->cluster_id) {
        (void)ddi_fail(&peer->reason, DD_LINK_FAILED,
                       "wrong cluster: cluster %" PRIu64 " expected cluster %" PRIu64
                       " here, found cluster %" PRIu64,
                       hello->cluster_id, hello->expected_id, peer->self->cluster_id);
        refuse(peer, out);
    } else {
        out->ask_admission = true;
    }
}

static void on_welcome(struct ddi_peer *peer, const struct ddi_hello *hello, uint64_t now_ns,
                       struct ddi_peer_actions *out)
{
    take_hello(peer, hello);
    (void)memcpy(peer->token, hello->token, DDI_TOKEN);
    if (!version_fits(peer, hello)) {
        refuse(peer, out);
    } else if (hello->cluster_id != peer->expected_id) {
        (void)ddi_fail(&peer->reason, DD_LINK_FAILED,
                       "wrong cluster: expected cluster %" PRIu64 ", found cluster %" PRIu64,
                       peer->expected_id, hello->cluster_id);
        refuse(peer, out);
    } else {
        peer->state = DDI_PEER_LINKED;
        peer->deadline_ns = DDI_NEVER;
        peer->pinged_ns = now_ns;
        out->send = DDI_READY;
        out->linked = true;
    }
}

static void illegal(struct ddi_peer *peer, enum ddi_message_type message,
                    struct ddi_peer_actions *out)
{
    (void)ddi_fail(&peer->reason, DD_LINK_FAILED, "unexpected message of type %d while %s",
                   (int)message, ddi_peer_state_name(peer->state));
    break_link(peer, out);
}

static void close_by_peer(struct ddi_peer *peer, struct ddi_peer_actions *out)
{
    (void)ddi_fail(&peer->reason, DD_NOT_LINKED, "unlinked by the peer");
    out->send = DDI_BYE_ACK;
    out->close = true;
    peer->state = DDI_PEER_CLOSED;
    peer->deadline_ns = DDI_NEVER;
}

static void on_linked_message(struct ddi_peer *peer, enum ddi_message_type message,
                              struct ddi_peer_actions *out)
{
    switch (message) {
    case DDI_PING:
        out->send = DDI_PONG;
        break;
    case DDI_PONG:
        break;
    case DDI_BYE:
        close_by_peer(peer, out);
        break;
    case DDI_BYE_ACK:
        if (peer->state == DDI_PEER_DRAINING) {
            (void)ddi_fail(&peer->reason, DD_NOT_LINKED, "unlinked");
            peer->state = DDI_PEER_CLOSED;
            peer->deadline_ns = DDI_NEVER;
            out->close = true;
            break;
        }
        illegal(peer, message, out);
        break;
    default:
        illegal(peer, message, out);
        break;
    }
}

static void on_message(struct ddi_peer *peer, const struct ddi_peer_event *event, uint64_t now_ns,
                       struct ddi_peer_actions *out)
{
    enum ddi_message_type message = event->message;

    peer->heard_ns = now_ns;
    if (message == DDI_REFUSE && !ddi_peer_is_over(peer)) {
        (void)ddi_fail(&peer->reason, DD_LINK_FAILED, "refused by the peer: %s",
                       event->refusal->text);
        break_link(peer, out);
        return;
    }
    switch (peer->state) {
    case DDI_PEER_IDLE:
        if (!peer->is_client && message == DDI_HELLO) {
            on_hello(peer, event->hello, out);
            return;
        }
        break;
    case DDI_PEER_GREETING:
        if (peer->is_client && message == DDI_WELCOME) {
            on_welcome(peer, event->hello, now_ns, out);
            return;
        }
        if (!peer->is_client && message == DDI_READY) {
            peer->state = DDI_PEER_LINKED;
            peer->deadline_ns = DDI_NEVER;
            peer->pinged_ns = now_ns;
            out->linked = true;
            return;
        }
        break;
    case DDI_PEER_LINKED:
    case DDI_PEER_DRAINING:
        on_linked_message(peer, message, out);
        return;
    case DDI_PEER_CLOSED:
    case DDI_PEER_BROKEN:
        return; /* late, and of no interest */
    case DDI_PEER_CONNECTING:
    case DDI_PEER_PROBING:
        break;
    }
    illegal(peer, message, out);
}

/* A server that may be told whether to let its client in. */
static bool is_undecided(const struct ddi_peer *peer)
{
    return !peer->is_client && (peer->state == DDI_PEER_IDLE || peer->state == DDI_PEER_PROBING);
}

static void on_time(struct ddi_peer *peer, uint64_t now_ns, struct ddi_peer_actions *out)
{
    uint64_t beat_ns = peer->self->heartbeat_ms * DDI_NS_PER_MS;

    if (now_ns >= peer->deadline_ns) {
        (void)ddi_fail(&peer->reason,
                       peer->state == DDI_PEER_DRAINING ? DD_PEER_NOT_TOLD : DD_TIMEOUT,
                       "no answer in time while %s", ddi_peer_state_name(peer->state));
        if (peer->state == DDI_PEER_PROBING) {
            out->send = DDI_REFUSE;
        }
        break_link(peer, out);
        return;
    }
    if (peer->state != DDI_PEER_LINKED || beat_ns == 0) {
        return;
    }
    if (now_ns - peer->heard_ns >= MISSED_BEATS * beat_ns) {
        (void)ddi_fail(&peer->reason, DD_NOT_LINKED,
                       "peer lost: no sign of life for %" PRIu64 " ms",
                       (now_ns - peer->heard_ns) / DDI_NS_PER_MS);
        break_link(peer, out);
    } else if (now_ns - ddi_max_u64(peer->heard_ns, peer->pinged_ns) >= beat_ns) {
        peer->pinged_ns = now_ns;
        out->send = DDI_PING;
    }
}

static uint64_t next_wake(const struct ddi_peer *peer)
{
    uint64_t beat_ns = peer->self->heartbeat_ms * DDI_NS_PER_MS;

    if (peer->state == DDI_PEER_LINKED && beat_ns != 0) {
        return ddi_min_u64(peer->deadline_ns,
                           ddi_max_u64(peer->heard_ns, peer->pinged_ns) + beat_ns);
    }
    return peer->deadline_ns;
}

void ddi_peer_init(struct ddi_peer *peer, const struct ddi_identity *self, bool is_client,
                   uint64_t expected_id, uint64_t now_ns)
{
    (void)memset(peer, 0, sizeof(*peer));
    peer->self = self;
    peer->is_client = is_client;
    peer->expected_id = expected_id;
    peer->cluster_id = expected_id;
    peer->heard_ns = now_ns;
    peer->deadline_ns = is_client ? DDI_NEVER : now_ns + self->handshake_ms * DDI_NS_PER_MS;
}

void ddi_peer_step(struct ddi_peer *peer, const struct ddi_peer_event *event, uint64_t now_ns,
                   struct ddi_peer_actions *out)
{
    (void)memset(out, 0, sizeof(*out));
    switch (event->type) {
    case DDI_EV_DIAL:
        if (peer->is_client && peer->state == DDI_PEER_IDLE) {
            peer->state = DDI_PEER_CONNECTING;
            peer->deadline_ns = event->deadline_ns;
        }
        break;
    case DDI_EV_CONNECTED:
        if (peer->state == DDI_PEER_CONNECTING) {
            peer->state = DDI_PEER_GREETING;
            peer->heard_ns = now_ns;
            out->send = DDI_HELLO;
        }
        break;
    case DDI_EV_ADMIT:
        if (is_undecided(peer)) {
            (void)memcpy(peer->token, event->token, DDI_TOKEN);
            peer->state = DDI_PEER_GREETING;
            out->send = DDI_WELCOME;
        }
        break;
    case DDI_EV_PROBE:
        if (is_undecided(peer)) {
            peer->state = DDI_PEER_PROBING;
            peer->deadline_ns = ddi_max_u64(peer->deadline_ns, event->deadline_ns);
        }
        break;
    case DDI_EV_DENY:
        if (is_undecided(peer)) {
            peer->reason = *event->error;
            refuse(peer, out);
        }
        break;
    case DDI_EV_CLOSE:
        if (peer->state == DDI_PEER_LINKED) {
            peer->state = DDI_PEER_DRAINING;
            peer->deadline_ns = event->deadline_ns;
            out->send = DDI_BYE;
        }
        break;
    case DDI_EV_LOST:
        if (!ddi_peer_is_over(peer)) {
            peer->reason = *event->error;
            break_link(peer, out);
        }
        break;
    case DDI_EV_MESSAGE:
        on_message(peer, event, now_ns, out);
        break;
    case DDI_EV_TIME:
        if (!ddi_peer_is_over(peer)) {
            on_time(peer, now_ns, out);
        }
        break;
    }
    out->wake_ns = ddi_peer_is_over(peer) ? DDI_NEVER : next_wake(peer);
}

void ddi_peer_hello(const struct ddi_peer *peer, struct ddi_hello *out)
{
    (void)memset(out, 0, sizeof(*out));
    out->min_version = peer->is_client ? DDI_PROTOCOL_MIN : peer->version;
    out->max_version = peer->is_client ? DDI_PROTOCOL_MAX : peer->version;
    out->cluster_id = peer->self->cluster_id;
    out->expected_id = peer->is_client ? peer->expected_id : peer->cluster_id;
    out->role = peer->self->role;
    (void)memcpy(out->generation, peer->self->generation, DDI_GENERATION);
    (void)memcpy(out->token, peer->token, DDI_TOKEN);
}

bool ddi_peer_is_over(const struct ddi_peer *peer)
{
    return peer->state == DDI_PEER_CLOSED || peer->state == DDI_PEER_BROKEN;
}

const char *ddi_peer_state_name(enum ddi_peer_state state)
{
    switch (state) {
    case DDI_PEER_IDLE:
        return "waiting for hello";
    case DDI_PEER_CONNECTING:
        return "connecting";
    case DDI_PEER_GREETING:
        return "greeting";
    case DDI_PEER_PROBING:
        return "probing an older link";
    case DDI_PEER_LINKED:
        return "linked";
    case DDI_PEER_DRAINING:
        return "unlinking";
    case DDI_PEER_CLOSED:
        return "closed";
    case DDI_PEER_BROKEN:
        return "broken";
    }
    return "unknown";
}
