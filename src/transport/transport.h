/* Transports: bytes between this process and one peer. A transport has one data verb, fetch: the
 * destination's process moves the bytes, always; nobody writes into another process's memory.
 *
 * A channel is the data plane of one link. It calls up only through struct ddi_owner_ops, when the
 * peer fetches from us. */
#ifndef DDI_TRANSPORT_H
#define DDI_TRANSPORT_H

#include "plan/plan.h"
#include "wire/message.h"

#include <stdatomic.h>

struct ddi_channel;

/* One transfer at the owner's side. Made by ddi_owner_ops.serve; `plan` has a stream as destination
 * and its source stays pinned until `sent`. */
struct ddi_job {
    struct ddi_plan plan;
    uint64_t bytes; /* per tensor, told to the puller */
    bool confirm;   /* ask the puller for a confirmation */
    /* The transport's own. */
    uint64_t id;
    atomic_uint parts;     /* still being sent */
    atomic_uint refs;      /* parts, and the wait for a confirmation */
    atomic_bool is_broken; /* a part was not sent to its end */
};

/* What the layer above does for a peer that fetches from us. Called on a bulk loop's thread, no
 * lock held; none of them blocks. `owner` is what the channel was opened with. */
struct ddi_owner_ops {
    /* Resolve, check and pin. The job belongs to the transport until `end`. */
    dd_status (*serve)(void *owner, const struct ddi_pull *pull, struct ddi_job **job,
                       dd_error *err);
    /* No byte will be read from the source any more; is_whole: all were sent. Once per job. */
    void (*sent)(void *owner, struct ddi_job *job, bool is_whole);
    /* The puller has every byte. At most once, before or after `sent`. */
    void (*confirmed)(void *owner, struct ddi_job *job);
    /* Free the job. Once, last. */
    void (*end)(void *owner, struct ddi_job *job);
};

/* One transfer at the puller's side. */
struct ddi_fetch {
    struct ddi_pull *pull; /* streams, confirms and left_ms are filled in by the transport */
    uint64_t estimate;     /* bytes at most, to choose how many connections */
    uint64_t deadline_ns;
    uint32_t timeout_ms; /* for texts */
    /* The owner has accepted and says how many bytes per tensor: give the plan (source: stream).
     * The plan lives until the fetch returns. */
    dd_status (*plan)(void *context, uint64_t bytes, const struct ddi_plan **plan, dd_error *err);
    void *context;
    uint64_t total; /* out: bytes moved, on success */
};

#endif
