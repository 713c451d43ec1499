/* One link: its control connection on the loop, and what callers may see of it. Shared by links.c
 * (callers' side), link.c (loop's side) and listener.c. */
#ifndef DDI_LINK_H
#define DDI_LINK_H

#include "base/map.h"
#include "base/mutex.h"
#include "link/links.h"

#define DDI_LINK_ADDRS 8

/* What callers see. Only link.c moves it, on the loop's thread. */
enum ddi_link_phase { DDI_LINK_OPENING, DDI_LINK_STANDS, DDI_LINK_CLOSING, DDI_LINK_OVER };

struct ddi_link {
    struct ddi_links *links; /* constant */
    bool is_client;          /* constant */
    struct ddi_task start_task;
    /* Guarded by links->mu. */
    enum ddi_link_phase phase;
    bool is_mapped; /* stands in by_id under cluster_id */
    uint64_t cluster_id;
    uint32_t refs;               /* the loop, and callers that wait or transfer */
    uint32_t users;              /* transfers that run */
    dd_error outcome;            /* when OVER */
    struct ddi_channel *channel; /* from STANDS until the link is freed */
    struct ddi_link *next;       /* list of all links */
    /* Loop's thread only. */
    struct ddi_peer peer;
    struct ddi_watch watch;
    struct ddi_timer timer;
    struct ddi_timer probe_timer; /* how long an older link may take to answer */
    struct ddi_link *probed;      /* the older link that we wait for */
    struct ddi_link *prober;      /* the newer link that waits for us */
    uint64_t dial_deadline_ns;
    struct ddi_timer retry_timer; /* client: nobody listens yet */
    uint32_t retry_ms;
    dd_error refusal;                      /* client: how the last try ended */
    struct ddi_addr addrs[DDI_LINK_ADDRS]; /* client: to try; server: [0] is the peer */
    size_t addr_count;
    size_t addr_at;
    struct ddi_addr local; /* client: source address, len 0: none */
    uint8_t input[DDI_HEADER + DDI_MAX_GREETING];
    size_t input_len;
    uint8_t output[DDI_HEADER + DDI_MAX_GREETING];
    size_t output_len;
    bool is_dead; /* torn down; nothing happens any more */
};

struct ddi_links {
    struct ddi_links_config config; /* constant */
    struct ddi_mutex mu;            /* rank DDI_RANK_LINKS */
    struct ddi_cond changed;        /* a phase or a count of users changed */
    struct ddi_map by_id;           /* guarded by mu; borrowed from all */
    struct ddi_link *all;           /* guarded by mu */
    uint64_t standing;              /* guarded by mu */
    bool is_stopped;                /* guarded by mu */
    /* Loop's thread only. */
    struct ddi_watch listener;
    struct ddi_timer listener_timer; /* pause while descriptors are short */
    uint32_t guest_count;            /* server's side, handshake not over */
};

/* Loop's thread. Begin the life of a link: a client dials, a server waits for the first message on
 * `fd`. */
void ddi_link_start_client(void *link);
void ddi_link_start_server(struct ddi_link *link, int fd, const struct ddi_addr *peer);

/* Loop's thread. Feed one event into the state machine and do what it says. */
void ddi_link_step(struct ddi_link *link, const struct ddi_peer_event *event);

/* Loop's thread. End the link with this reason; `say_bye`: tell the peer if it can be told. */
void ddi_link_end(struct ddi_link *link, const dd_error *reason, bool say_bye);

/* Loop's thread. Send a message that the state machine asked for. */
void ddi_link_send(struct ddi_link *link, enum ddi_message_type type);

/* Loop's thread. The address we talk to, for texts. */
void ddi_link_text(const struct ddi_link *link, char text[DDI_ADDR_TEXT]);

/* The key of a cluster in links->by_id. */
static inline struct ddi_map_key ddi_link_key(uint64_t cluster_id)
{
    return (struct ddi_map_key){.a = cluster_id};
}

/* Any thread. A new link with two references (loop's and caller's); in no list yet. */
struct ddi_link *ddi_link_create(struct ddi_links *links, bool is_client, uint64_t cluster_id);
void ddi_link_put_locked(struct ddi_link *link);

/* Loop's thread. Stop accepting. */
void ddi_listener_close(struct ddi_links *links);

#endif
