/* The TCP transport: data connections between two engines.
 *
 * A link has a few data connections, dialled by the link's client when they are first needed. Each
 * is used in one direction: one side sends requests on it, the other answers. A puller checks
 * connections out, one thread reads from each straight into the destination. The owner answers from
 * its bulk loops: never blocking, gathering straight from cache memory.
 *
 * Threads: every function from any thread unless it says otherwise. */
#ifndef DDI_TCP_H
#define DDI_TCP_H

#include "base/addr.h"
#include "base/log.h"
#include "base/workers.h"
#include "transport/transport.h"

#define DDI_TCP_MAX_LOOPS 16
#define DDI_TCP_MAX_STREAMS 16 /* of one transfer */

struct ddi_tcp;

struct ddi_tcp_config {
    uint32_t streams;      /* connections one transfer may use, at most DDI_TCP_MAX_STREAMS */
    uint32_t loops;        /* bulk loop threads, at most DDI_TCP_MAX_LOOPS */
    uint32_t workers;      /* threads that read beside the calling one */
    uint64_t stream_bytes; /* a transfer uses another connection for each so many bytes */
    uint32_t idle_ms;      /* connections unused for this long are closed */
    const char *congestion;
    const struct ddi_log *log;
    const struct ddi_owner_ops *owner;
};

/* What a link tells its channel. */
struct ddi_tcp_peer {
    uint64_t cluster_id;
    uint8_t token[DDI_TOKEN];
    bool is_client; /* we can dial */
    struct ddi_addr remote;
    struct ddi_addr local; /* len 0: none */
    void *owner;           /* for ddi_owner_ops; outlives the channel's last reference */
    /* Ask the peer to dial `count` connections for us; server's side only. Must not block. */
    void (*ask)(void *ask_context, uint32_t count);
    void *ask_context;
};

/* The engine's part of the transport: threads start when first needed. */
dd_status ddi_tcp_open(const struct ddi_tcp_config *config, struct ddi_tcp **out, dd_error *err);

/* All channels are cut and unused. Ends the threads, and with them the last connections. */
void ddi_tcp_close(struct ddi_tcp *tcp);

/* The data plane of a link, with one reference. Opens nothing yet. */
dd_status ddi_tcp_channel_open(struct ddi_tcp *tcp, const struct ddi_tcp_peer *peer,
                               struct ddi_channel **out, dd_error *err);
void ddi_tcp_channel_put(struct ddi_channel *channel); /* NULL is fine */

/* Fetch. Blocks until all bytes are in place or nothing writes to the destination any more.
 * Fails: what the owner said; DD_TIMEOUT, DD_NOT_LINKED, the reason of a cut; with bytes done. */
dd_status ddi_tcp_fetch(struct ddi_channel *channel, struct ddi_fetch *fetch, dd_error *err);

/* Make one round trip on a data connection. */
dd_status ddi_tcp_check(struct ddi_channel *channel, uint64_t deadline_ns, uint32_t timeout_ms,
                        dd_error *err);

/* End every transfer in both directions and refuse new ones, with this reason. Does not wait. */
void ddi_tcp_cut(struct ddi_channel *channel, const dd_error *reason);

/* Take a connection whose ATTACH was read, and answer it. `user`: as in struct ddi_attach, seen from
 * the one who accepted. Takes fd, also on failure. */
void ddi_tcp_adopt(struct ddi_channel *channel, int fd, uint8_t user);

/* The peer asked us to dial `count` connections that it will use. Does not block. */
void ddi_tcp_dial_for_peer(struct ddi_channel *channel, uint32_t count);

/* Close connections that were idle too long. */
void ddi_tcp_sweep(struct ddi_channel *channel, uint64_t now_ns);

#endif
