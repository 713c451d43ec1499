/* Transfers: one from start to end at the puller's side (pull.c), the answer at the owner's side
 * (serve.c). */
#ifndef DDI_XFER_H
#define DDI_XFER_H

#include "base/mutex.h"
#include "link/links.h"
#include "store/table.h"

#include <stdatomic.h>

/* Counters; relaxed, read by statistics only. */
struct ddi_xfer_counters {
    atomic_uint_fast64_t pulls;
    atomic_uint_fast64_t pulls_failed;
    atomic_uint_fast64_t bytes_pulled;
    atomic_uint_fast64_t serves;
    atomic_uint_fast64_t serves_failed;
    atomic_uint_fast64_t bytes_served;
};

/* What transfers of one engine need. Outlives all of them. */
struct ddi_xfer {
    struct ddi_table *table;  /* constant */
    struct ddi_links *links;  /* constant */
    uint32_t sync_timeout_ms; /* constant */
    struct ddi_xfer_counters counters;
    struct ddi_mutex mu;       /* rank DDI_RANK_TABLE; never with another lock of that rank */
    struct ddi_cond confirmed; /* a transfer was confirmed, or will not be */
    uint64_t unconfirmed;      /* guarded by mu; served transfers that wait for a confirmation */
};

/* Before and after everything else here. */
void ddi_xfer_init(struct ddi_xfer *xfer);
void ddi_xfer_fini(struct ddi_xfer *xfer);

/* See dd_cache_alloc. A puller's confirmation that a key is used up comes shortly after its pull: an
 * allocation that lacks memory or finds its key bound waits a little for confirmations under way. */
dd_status ddi_xfer_alloc(struct ddi_xfer *xfer, const dd_cache_desc *desc, const dd_key *keys,
                         size_t key_count, int64_t *cache, dd_error *err);

/* See dd_pull, dd_pull_blocks and dd_link_check. */
dd_status ddi_xfer_pull(struct ddi_xfer *xfer, const dd_source *source, int64_t cache,
                        const dd_slice *slice, dd_error *err);
dd_status ddi_xfer_pull_blocks(struct ddi_xfer *xfer, const dd_source *source, int64_t cache,
                               const dd_blocks *blocks, dd_error *err);
dd_status ddi_xfer_check(struct ddi_xfer *xfer, uint64_t cluster_id, dd_error *err);

/* The owner's side, for channels whose `owner` is a struct ddi_xfer. */
extern const struct ddi_owner_ops ddi_xfer_owner_ops;

#endif
