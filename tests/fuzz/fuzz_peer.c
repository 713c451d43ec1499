/* Proves: whatever comes in whatever order, a link's state machine stays inside its diagram, is over
 * once and for all, says why, and always knows when it has to wake.
 *
 * Input: one byte for who we are, then events of four bytes: what, when, and two of content. */
#include "link/peer.h"

#include "base/clock.h"
#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START (UINT64_C(1000000) * DDI_NS_PER_MS)
#define EVENT 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_true, const char *what)
{
    if (!is_true) {
        (void)fprintf(stderr, "failed: %s\n", what);
        abort();
    }
}

/* States that follow each other in the diagram in peer.h; BROKEN follows all but CLOSED. */
static bool is_arrow(enum ddi_peer_state from, enum ddi_peer_state to)
{
    static const uint8_t next[] = {
        [DDI_PEER_IDLE] = 1U << DDI_PEER_CONNECTING | 1U << DDI_PEER_PROBING |
                          1U << DDI_PEER_GREETING,
        [DDI_PEER_CONNECTING] = 1U << DDI_PEER_GREETING,
        [DDI_PEER_GREETING] = 1U << DDI_PEER_LINKED,
        [DDI_PEER_PROBING] = 1U << DDI_PEER_GREETING,
        [DDI_PEER_LINKED] = 1U << DDI_PEER_DRAINING | 1U << DDI_PEER_CLOSED,
        [DDI_PEER_DRAINING] = 1U << DDI_PEER_CLOSED,
        [DDI_PEER_CLOSED] = 0,
        [DDI_PEER_BROKEN] = 0,
    };

    return to == DDI_PEER_BROKEN ? from != DDI_PEER_CLOSED : (next[from] >> to & 1) != 0;
}

static void check_wake(const struct ddi_peer *peer, enum ddi_peer_event_type type, uint64_t now_ns,
                       uint64_t wake_ns)
{
    uint64_t beat_ns = peer->self->heartbeat_ms * DDI_NS_PER_MS;
    uint64_t due_ns = peer->deadline_ns;

    if (peer->state == DDI_PEER_LINKED) {
        check(due_ns == DDI_NEVER, "a link that stands has no deadline");
        due_ns = beat_ns == 0 ? DDI_NEVER : ddi_max_u64(peer->heard_ns, peer->pinged_ns) + beat_ns;
    } else {
        check(due_ns != DDI_NEVER || (peer->is_client && peer->state == DDI_PEER_IDLE),
              "every other state has a deadline");
    }
    check(wake_ns == due_ns, "it wakes when something is due");
    check(type != DDI_EV_TIME || wake_ns > now_ns, "what is due was done");
}

static void check_step(const struct ddi_peer *before, const struct ddi_peer *peer,
                       const struct ddi_peer_event *event, uint64_t now_ns,
                       const struct ddi_peer_actions *did)
{
    bool was_over = ddi_peer_is_over(before);
    bool is_over = ddi_peer_is_over(peer);

    check(peer->state == before->state || is_arrow(before->state, peer->state),
          "a step follows an arrow");
    check(peer->state != DDI_PEER_CONNECTING || peer->is_client, "only clients dial");
    check(peer->state != DDI_PEER_PROBING || !peer->is_client, "only servers probe");
    check(did->close == (is_over && !was_over), "the end closes, and nothing else does");
    check(did->linked == (peer->state == DDI_PEER_LINKED && before->state != DDI_PEER_LINKED),
          "the link stands once");
    check(!did->ask_admission || (!peer->is_client && peer->state == DDI_PEER_IDLE),
          "only a hello asks for admission");
    check(did->send != DDI_WELCOME || !peer->is_client, "only servers welcome");
    check((did->send != DDI_HELLO && did->send != DDI_READY) || peer->is_client,
          "only clients greet");
    check(did->send != DDI_REFUSE || did->close, "a refusal closes");
    if (was_over) {
        check(peer->state == before->state && did->send == 0, "what is over is silent");
        check(memcmp(&peer->reason, &before->reason, sizeof(peer->reason)) == 0,
              "the first reason stays");
    }
    if (is_over) {
        check(did->wake_ns == DDI_NEVER, "what is over does not wake");
        check(peer->reason.status != DD_OK && peer->reason.text[0] != '\0' &&
                  memchr(peer->reason.text, '\0', sizeof(peer->reason.text)) != NULL,
              "an end has a reason");
    } else {
        check_wake(peer, event->type, now_ns, did->wake_ns);
    }
}

/* Time since the last step: nothing, up to the next wake, or up to twelve seconds. */
static uint64_t step_ns(uint8_t code, uint64_t now_ns, uint64_t wake_ns)
{
    if (code == 0) {
        return 0;
    }
    if (code < 64) {
        return wake_ns == DDI_NEVER || wake_ns < now_ns ? 0 : wake_ns - now_ns;
    }
    return (code - 64U) * (code - 64U) * DDI_NS_PER_MS / 3;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t token[DDI_TOKEN] = "token";
    struct ddi_identity self = {.cluster_id = 7, .role = DD_ROLE_MIX, .handshake_ms = 5000};
    struct ddi_peer_actions did = {.wake_ns = DDI_NEVER};
    struct ddi_refusal refusal = {.status = DD_FAILED};
    dd_error err = {.status = DD_LINK_FAILED, .text = "so it is"};
    uint64_t now_ns = START;
    struct ddi_peer peer;

    if (size == 0) {
        return 0;
    }
    self.heartbeat_ms = (data[0] >> 1) * 20U;
    (void)memset(refusal.text, 'n', DDI_MAX_TEXT);
    ddi_peer_init(&peer, &self, (data[0] & 1) != 0, 9, now_ns);
    for (size_t at = 1; at + EVENT <= size; at += EVENT) {
        const uint8_t *in = data + at;
        const struct ddi_peer before = peer;
        /* Zeroes in the content make a greeting that fits. */
        struct ddi_hello hello = {.min_version = 1 ^ (in[2] & 3),
                                  .max_version = 1 ^ (in[2] >> 2 & 3),
                                  .cluster_id = 9 ^ (in[2] >> 4),
                                  .expected_id = 7 ^ (in[3] >> 5)};
        struct ddi_peer_event event = {
            .type = (enum ddi_peer_event_type)(in[0] % (DDI_EV_TIME + 1)),
            .deadline_ns = now_ns + in[2] * 16 * DDI_NS_PER_MS,
            .message = (enum ddi_message_type)(in[3] & 31),
            .hello = &hello,
            .refusal = &refusal,
            .token = token,
            .error = &err};

        now_ns += step_ns(in[1], now_ns, did.wake_ns);
        ddi_peer_step(&peer, &event, now_ns, &did);
        check_step(&before, &peer, &event, now_ns, &did);
        ddi_peer_hello(&peer, &hello);
        check(hello.cluster_id == 7, "we are who we are");
    }
    return 0;
}
