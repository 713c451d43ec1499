/* The inside of a TCP channel, shared by tcp.c (connections), tcp_fetch.c (the puller's side) and
 * tcp_serve.c (the owner's side). */
#ifndef DDI_TCP_CHANNEL_H
#define DDI_TCP_CHANNEL_H

#include "base/mutex.h"
#include "transport/tcp.h"

#define DDI_TCP_BATCH 512 /* pieces of memory per system call */

struct ddi_tcp {
    struct ddi_tcp_config config;              /* constant */
    struct ddi_workers *workers;               /* constant */
    struct ddi_mutex mu;                       /* rank DDI_RANK_WORKERS */
    struct ddi_loop *loops[DDI_TCP_MAX_LOOPS]; /* guarded by mu until set, then constant */
    uint32_t next_loop;                        /* guarded by mu */
};

/* A data connection that we send requests on. */
struct ddi_stream {
    int fd;             /* shut down by a cut under the channel's lock, closed by its user */
    uint32_t remote_id; /* the owner's name for it */
    uint64_t idle_since_ns;
    struct ddi_stream *next;
};

struct ddi_served;

struct ddi_channel {
    struct ddi_tcp *tcp;           /* constant */
    struct ddi_tcp_peer peer;      /* constant */
    char name[DDI_ADDR_TEXT + 48]; /* "cluster 7 at 1.2.3.4:5", constant */
    atomic_uint refs;              /* the link, callers and served connections end in any order */
    struct ddi_mutex mu;           /* rank DDI_RANK_CHANNEL */
    struct ddi_cond changed;       /* a stream became idle, or the channel was cut */
    struct ddi_stream *idle;       /* guarded by mu */
    struct ddi_stream *active;     /* guarded by mu */
    bool is_cut;                   /* guarded by mu */
    dd_error reason;               /* guarded by mu; why it was cut */
    uint64_t next_id;              /* guarded by mu; of transfers */
    uint64_t confirms[DDI_MAX_CONFIRMS]; /* guarded by mu; sent, not known to be seen */
    uint16_t confirm_count;              /* guarded by mu */
    struct ddi_served *served;           /* guarded by mu; connections that we answer on */
    uint32_t next_served;                /* guarded by mu; ids */
    uint32_t served_count;               /* guarded by mu */
    struct ddi_task dial_task;           /* a wish of the peer */
    uint32_t dial_count;                 /* guarded by mu */
};

void ddi_tcp_channel_get(struct ddi_channel *channel);

/* Fill err with the reason of the cut, if there was one. */
bool ddi_tcp_is_cut(struct ddi_channel *channel, dd_error *err);

/* Check out up to `want` streams, dialling what is missing; at least one on DD_OK. */
dd_status ddi_tcp_checkout(struct ddi_channel *channel, uint32_t want, uint64_t deadline_ns,
                           uint32_t timeout_ms, struct ddi_stream **streams, uint32_t *got,
                           dd_error *err);

/* Give a stream back: for reuse when nothing is left to read on it, else it is closed. */
void ddi_tcp_checkin(struct ddi_channel *channel, struct ddi_stream *stream, bool is_clean);

/* The loop for the next served connection. */
dd_status ddi_tcp_next_loop(struct ddi_tcp *tcp, struct ddi_loop **out, dd_error *err);

/* Answer requests on fd from now on; first send ATTACHED. Takes fd, also on failure. */
void ddi_served_open(struct ddi_channel *channel, int fd);

/* Close all served connections of a cut channel, soon; channel->mu is held. */
void ddi_served_cut_locked(struct ddi_channel *channel);

#endif
