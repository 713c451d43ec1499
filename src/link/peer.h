/* The life of one link as a step function: (state, event, now) -> (state, actions). No I/O, no lock,
 * no clock, no memory: the loop feeds it, and so can a simulator.
 *
 *   client:  IDLE --dial--> CONNECTING --connected--> GREETING --WELCOME--> LINKED
 *   server:  IDLE --HELLO--> GREETING --READY--> LINKED
 *                 \--HELLO of a known id--> PROBING --old one is gone--> GREETING
 *   both:    LINKED --close--> DRAINING --BYE_ACK--> CLOSED       LINKED --BYE--> CLOSED
 *            any --lost, refused, deadline--> BROKEN (with the reason)
 */
#ifndef DDI_PEER_H
#define DDI_PEER_H

#include "wire/message.h"

enum ddi_peer_state {
    DDI_PEER_IDLE,
    DDI_PEER_CONNECTING,
    DDI_PEER_GREETING,
    DDI_PEER_PROBING,
    DDI_PEER_LINKED,
    DDI_PEER_DRAINING,
    DDI_PEER_CLOSED,
    DDI_PEER_BROKEN
};

/* Who this engine is; the same for all its links. */
struct ddi_identity {
    uint64_t cluster_id;
    uint8_t role;
    uint8_t generation[DDI_GENERATION];
    uint32_t heartbeat_ms; /* 0: no heartbeats; a peer is dead after three missed ones */
    uint32_t handshake_ms; /* a handshake may take this long at the server's side */
};

struct ddi_peer {
    enum ddi_peer_state state;
    bool is_client;
    const struct ddi_identity *self; /* constant, outlives the peer */
    uint64_t expected_id;            /* client: whom we dial */
    /* From HELLO or WELCOME. */
    uint64_t cluster_id;
    uint16_t version; /* that both speak */
    uint8_t role;
    uint8_t generation[DDI_GENERATION];
    uint8_t token[DDI_TOKEN]; /* made by the server, proves data connections */
    /* Time. */
    uint64_t deadline_ns; /* of the present state; DDI_NEVER when LINKED */
    uint64_t heard_ns;    /* last sign of life */
    uint64_t pinged_ns;
    /* Why it ended. */
    dd_error reason;
};

enum ddi_peer_event_type {
    DDI_EV_DIAL,      /* client: begin; deadline_ns */
    DDI_EV_CONNECTED, /* client: the connection stands */
    DDI_EV_MESSAGE,   /* a decoded message */
    DDI_EV_ADMIT,     /* server: no other link has this id (any more); token */
    DDI_EV_PROBE,     /* server: a live-looking link has this id; decided by deadline_ns */
    DDI_EV_DENY,      /* server: it is alive, or the id is taken; status and text in error */
    DDI_EV_CLOSE,     /* orderly close wanted; deadline_ns */
    DDI_EV_LOST,      /* connection ended or misbehaved; status and text in error */
    DDI_EV_TIME       /* nothing but the clock */
};

struct ddi_peer_event {
    enum ddi_peer_event_type type;
    uint64_t deadline_ns;
    enum ddi_message_type message;
    const struct ddi_hello *hello;     /* HELLO, WELCOME */
    const struct ddi_refusal *refusal; /* REFUSE */
    const uint8_t *token;              /* ADMIT */
    const dd_error *error;             /* LOST, DENY */
};

struct ddi_peer_actions {
    enum ddi_message_type send; /* 0: nothing; REFUSE carries peer->reason */
    bool ask_admission;         /* server: decide with ADMIT, PROBE or DENY */
    bool linked;                /* just became LINKED */
    bool close;                 /* close the connection, after `send` has left */
    uint64_t wake_ns;           /* next DDI_EV_TIME, DDI_NEVER: none */
};

void ddi_peer_init(struct ddi_peer *peer, const struct ddi_identity *self, bool is_client,
                   uint64_t expected_id, uint64_t now_ns);

/* Take one step. A message that is not allowed in a state breaks the link with a reason that says
 * so; an event of ours that comes too late (the link ended meanwhile) changes nothing. */
void ddi_peer_step(struct ddi_peer *peer, const struct ddi_peer_event *event, uint64_t now_ns,
                   struct ddi_peer_actions *out);

/* The HELLO or WELCOME that this side sends now. */
void ddi_peer_hello(const struct ddi_peer *peer, struct ddi_hello *out);

bool ddi_peer_is_over(const struct ddi_peer *peer); /* CLOSED or BROKEN */

const char *ddi_peer_state_name(enum ddi_peer_state state);

#endif
