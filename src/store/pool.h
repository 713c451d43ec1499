/* The memory pool of an engine: regions of a device, cut into pieces for tensors.
 *
 * With a limit: one sparse region, if the address space has room for it; without: regions of at least
 * 64 MiB on demand, up to `limit_fraction` of the memory this process may use; a region that is wholly
 * free is released.
 * Pieces are aligned to 512 bytes, large ones (2 MiB and more) to 2 MiB; alignment places a piece,
 * it does not round its size. The limit counts bytes rounded up to 512. Metadata lives outside the
 * region: a device's memory is never touched here. Allocation and free cost O(1). */
#ifndef DDI_POOL_H
#define DDI_POOL_H

#include "base/status.h"
#include "device/device.h"

#include <stdbool.h>

struct ddi_pool;

struct ddi_pool_config {
    const struct ddi_device_ops *device;
    uint64_t limit_bytes;  /* 0: no limit of its own */
    double limit_fraction; /* without limit_bytes: of device->memory() */
    bool clear;            /* zero reused memory too */
};

struct ddi_pool_stats {
    uint64_t limit_bytes; /* in force */
    uint64_t used_bytes;  /* handed out, rounded to 512 each */
    uint64_t peak_bytes;
    uint64_t largest_free; /* that fits without a new region */
    uint64_t region_count;
};

/* Create a pool with one reference, owned by the caller. */
dd_status ddi_pool_create(const struct ddi_pool_config *config, struct ddi_pool **out,
                          dd_error *err);

/* References: the engine and every live cache entry (a view may outlive the engine). */
void ddi_pool_get(struct ddi_pool *pool);
void ddi_pool_put(struct ddi_pool *pool); /* NULL is fine; the last one releases all regions */

/* Whether `count` pieces of `bytes` each can be had under the limit now: what will fail in the end
 * fails before memory is made for the first ones. Promises nothing. Any thread.
 * Fails: DD_NO_MEMORY with wanted (all of them), used and limit in the text. */
dd_status ddi_pool_check(struct ddi_pool *pool, uint64_t bytes, uint64_t count, dd_error *err);

/* Allocate `bytes` (at least 1) that are committed. Any thread.
 * Fails: DD_NO_MEMORY with wanted, used and limit in the text. */
dd_status ddi_pool_alloc(struct ddi_pool *pool, uint64_t bytes, void **addr, dd_error *err);

/* Give a piece back. Any thread; NULL is fine. */
void ddi_pool_free(struct ddi_pool *pool, void *addr);

void ddi_pool_stats(struct ddi_pool *pool, struct ddi_pool_stats *out);

#endif
