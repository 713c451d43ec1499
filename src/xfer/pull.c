/* A pull at the puller's side: resolve and pin the destination, plan it, find the peer, fetch.
 *
 * The calling thread does all of it. When it returns the destination is quiet: the transport's
 * fetch has ended on every thread, with any status. */
#include "xfer/xfer.h"

#include "base/clock.h"
#include "base/num.h"
#include "model/desc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_LIST 128 /* block pairs that need no memory of their own */

/* One pull that is under way. */
struct pull {
    struct ddi_xfer *xfer;
    struct ddi_entry *entry; /* pinned */
    const uint64_t *tensors; /* selected ones of the destination */
    uint32_t tensor_count;
    uint64_t offset;        /* slice: first byte in each tensor */
    const uint64_t *blocks; /* blocks and pieces: destination */
    size_t block_count;
    struct ddi_pull request;
    struct ddi_plan plan;
    bool has_plan;
};

static dd_status make_plan(struct pull *pull, uint64_t bytes, dd_error *err)
{
    const struct ddi_desc *desc = &pull->entry->desc;
    struct ddi_plan_input input = {.tensor_count = pull->tensor_count, .bytes = bytes};
    dd_status st;

    input.src.kind = DDI_SIDE_STREAM;
    input.dst.tensors = pull->tensors;
    input.dst.tensor_bytes = desc->tensor_bytes;
    if (pull->request.mode == DDI_PULL_SLICE) {
        input.dst.kind = DDI_SIDE_LINEAR;
        input.dst.offset = pull->offset;
    } else {
        input.dst.kind = DDI_SIDE_BLOCKS;
        input.dst.blocks = pull->blocks;
        input.dst.block_count = (uint64_t)desc->dims[0];
        input.piece_bytes = desc->slice_bytes;
        input.piece_count = pull->block_count;
    }
    st = ddi_plan_init(&pull->plan, &input, err);
    pull->has_plan = st == DD_OK;
    return st;
}

/* Called by the transport when the owner has said how many bytes come. */
static dd_status plan_for(void *context, uint64_t bytes, const struct ddi_plan **plan,
                          dd_error *err)
{
    struct pull *pull = context;
    dd_status st = DD_OK;

    if (pull->has_plan && pull->plan.bytes != bytes) {
        /* Only a source that is cut into pieces may be shorter than asked for. */
        if (pull->request.mode != DDI_PULL_PIECES || bytes > pull->plan.bytes) {
            return ddi_fail(err, DD_FAILED,
                            "owner sends %" PRIu64 " bytes per tensor, wanted %" PRIu64, bytes,
                            pull->plan.bytes);
        }
        ddi_plan_fini(&pull->plan);
        pull->has_plan = false;
        st = make_plan(pull, bytes, err);
    }
    *plan = &pull->plan;
    return st;
}

/* Name the source in the request. */
static dd_status set_source(struct ddi_pull *request, const dd_source *source, dd_error *err)
{
    request->key_kind = (uint8_t)DD_KEY_NONE;
    if (source->cache != 0) {
        request->cache = source->cache;
        request->batch = source->batch;
        return DD_OK;
    }
    if (source->key.kind != DD_KEY_REQUEST && source->key.kind != DD_KEY_PREFIX &&
        source->key.kind != DD_KEY_BLOCKS) {
        return ddi_fail(err, DD_INVALID,
                        "source: key kind is %d, wanted request, prefix or blocks, or a cache id",
                        (int)source->key.kind);
    }
    request->key_kind = (uint8_t)source->key.kind;
    request->key_id = source->key.id;
    request->model_id = source->key.model_id;
    return DD_OK;
}

/* Resolve layers on both sides as far as this side knows them. */
static dd_status set_layers(struct pull *pull, uint32_t tensors_per_layer, dd_layers src,
                            dd_layers dst, dd_error *err)
{
    uint32_t tensor_count = pull->entry->desc.tensor_count;
    uint32_t per_layer = tensors_per_layer == 0 ? 2 : tensors_per_layer;
    uint32_t first;
    dd_status st;

    if ((src.count > 0 || dst.count > 0) && tensor_count % per_layer != 0) {
        return ddi_fail(err, DD_INVALID,
                        "destination: %u tensors are no multiple of %u tensors per layer",
                        tensor_count, per_layer);
    }
    if (src.count > 0 && dst.count > 0 && src.count != dst.count) {
        return ddi_fail(err, DD_INVALID, "source range has %u layers, destination range %u",
                        src.count, dst.count);
    }
    st = ddi_desc_layers(tensor_count, tensors_per_layer, dst, "destination", &first,
                         &pull->tensor_count, err);
    if (st != DD_OK) {
        return st;
    }
    pull->tensors = pull->entry->tensors + first;
    pull->request.tensors_per_layer = tensors_per_layer;
    pull->request.first_layer = src.first;
    pull->request.layer_count = src.count;
    pull->request.want_tensors = pull->tensor_count;
    return DD_OK;
}

/* Find the peer and move the bytes. */
static dd_status fetch(struct pull *pull, uint64_t cluster_id, uint64_t estimate, dd_error *err)
{
    struct ddi_xfer *xfer = pull->xfer;
    struct ddi_fetch fetch = {.pull = &pull->request,
                              .estimate = estimate,
                              .deadline_ns = ddi_deadline_ns(xfer->sync_timeout_ms),
                              .timeout_ms = xfer->sync_timeout_ms,
                              .plan = plan_for,
                              .context = pull};
    struct ddi_channel *channel;
    struct ddi_link *link;
    dd_status st = ddi_links_use(xfer->links, cluster_id, &link, &channel, err);

    if (st != DD_OK) {
        return st;
    }
    st = ddi_tcp_fetch(channel, &fetch, err);
    ddi_links_done(xfer->links, link);
    if (st == DD_OK) {
        atomic_fetch_add_explicit(&xfer->counters.bytes_pulled, fetch.total, memory_order_relaxed);
    }
    return st;
}

static dd_status end_pull(struct pull *pull, dd_status st)
{
    struct ddi_xfer_counters *counters = &pull->xfer->counters;

    if (pull->has_plan) {
        ddi_plan_fini(&pull->plan);
    }
    if (pull->entry != NULL) {
        ddi_table_unpin(pull->xfer->table, pull->entry);
    }
    atomic_fetch_add_explicit(st == DD_OK ? &counters->pulls : &counters->pulls_failed, 1,
                              memory_order_relaxed);
    return st;
}

static dd_status begin_slice(struct pull *pull, const dd_slice *slice, dd_error *err)
{
    const struct ddi_desc *desc = &pull->entry->desc;
    uint64_t bytes = slice->bytes;

    if (slice->dst_batch >= (uint64_t)desc->dims[0]) {
        return ddi_fail(err, DD_INVALID,
                        "destination: batch index %u is out of range, cache has %" PRId64,
                        slice->dst_batch, desc->dims[0]);
    }
    if (slice->dst_offset >= desc->slice_bytes) {
        return ddi_fail(err, DD_INVALID,
                        "destination: offset %" PRIu64 " is outside the batch slice of %" PRIu64
                        " bytes",
                        slice->dst_offset, desc->slice_bytes);
    }
    if (bytes == 0) {
        bytes = desc->slice_bytes - slice->dst_offset;
    }
    if (!ddi_fits(slice->dst_offset, bytes, desc->slice_bytes)) {
        return ddi_fail(err, DD_INVALID,
                        "destination: offset %" PRIu64 " and %" PRIu64
                        " bytes exceed the batch slice of %" PRIu64 " bytes",
                        slice->dst_offset, bytes, desc->slice_bytes);
    }
    pull->request.mode = DDI_PULL_SLICE;
    pull->request.keep_key = slice->keep_key;
    pull->request.offset = slice->src_offset;
    pull->request.bytes = bytes;
    pull->offset = slice->dst_batch * desc->slice_bytes + slice->dst_offset;
    return make_plan(pull, bytes, err);
}

dd_status ddi_xfer_pull(struct ddi_xfer *xfer, const dd_source *source, int64_t cache,
                        const dd_slice *slice, dd_error *err)
{
    struct pull pull = {.xfer = xfer};
    dd_status st = ddi_table_pin(xfer->table, cache, &pull.entry, err);

    if (st == DD_OK) {
        st = set_source(&pull.request, source, err);
    }
    if (st == DD_OK) {
        st = set_layers(&pull, slice->tensors_per_layer, slice->src_layers, slice->dst_layers, err);
    }
    if (st == DD_OK) {
        st = begin_slice(&pull, slice, err);
    }
    if (st == DD_OK) {
        st = fetch(&pull, source->cluster_id, pull.plan.total, err);
    }
    return end_pull(&pull, st);
}

/* Copy the caller's lists, so that a destination that comes twice can lose its earlier pair. */
static dd_status begin_blocks(struct pull *pull, const dd_blocks *blocks, uint64_t *src,
                              uint64_t *dst, dd_error *err)
{
    const struct ddi_desc *desc = &pull->entry->desc;
    size_t count = blocks->count;
    uint64_t bytes;
    dd_status st;

    if (blocks->src != NULL) {
        for (size_t i = 0; i < count; i++) {
            src[i] = blocks->src[i];
            if (src[i] > UINT32_MAX) {
                return ddi_fail(err, DD_INVALID,
                                "source: block %" PRIu64 " (position %zu) is out "
                                "of range",
                                src[i], i);
            }
        }
    }
    (void)memcpy(dst, blocks->dst, count * sizeof(*dst));
    st = ddi_plan_unique(blocks->src != NULL ? src : NULL, dst, &count, (uint64_t)desc->dims[0],
                         err);
    if (st != DD_OK) {
        return st;
    }
    pull->request.mode = blocks->src != NULL ? DDI_PULL_BLOCKS : DDI_PULL_PIECES;
    pull->request.block_bytes = desc->slice_bytes;
    pull->request.blocks = src;
    pull->request.block_count = blocks->src != NULL ? (uint32_t)count : 0;
    pull->request.piece_count = blocks->src != NULL ? 0 : (uint32_t)count;
    pull->blocks = dst;
    pull->block_count = count;
    if (!ddi_mul_u64(count, desc->slice_bytes, &bytes)) {
        return ddi_fail(err, DD_INVALID, "%zu blocks of %" PRIu64 " bytes are too many", count,
                        desc->slice_bytes);
    }
    return make_plan(pull, bytes, err);
}

dd_status ddi_xfer_pull_blocks(struct ddi_xfer *xfer, const dd_source *source, int64_t cache,
                               const dd_blocks *blocks, dd_error *err)
{
    struct pull pull = {.xfer = xfer};
    uint64_t small[2 * SMALL_LIST];
    uint64_t *lists = small;
    dd_status st = ddi_table_pin(xfer->table, cache, &pull.entry, err);

    if (st == DD_OK && blocks->count > SMALL_LIST) {
        lists = calloc(blocks->count, 2 * sizeof(*lists));
        if (lists == NULL) {
            st = ddi_fail(err, DD_NO_MEMORY, "lists of %zu blocks", blocks->count);
        }
    }
    if (st == DD_OK) {
        st = set_source(&pull.request, source, err);
    }
    if (st == DD_OK) {
        st = set_layers(&pull, blocks->tensors_per_layer, blocks->src_layers, blocks->dst_layers,
                        err);
    }
    if (st == DD_OK) {
        st = begin_blocks(&pull, blocks, lists, lists + blocks->count, err);
    }
    if (st == DD_OK) {
        st = fetch(&pull, source->cluster_id, pull.plan.total, err);
    }
    if (lists != small) {
        free(lists);
    }
    return end_pull(&pull, st);
}

dd_status ddi_xfer_check(struct ddi_xfer *xfer, uint64_t cluster_id, dd_error *err)
{
    struct ddi_channel *channel;
    struct ddi_link *link;
    dd_status st = ddi_links_use(xfer->links, cluster_id, &link, &channel, err);

    if (st == DD_OK) {
        st = ddi_tcp_check(channel, ddi_deadline_ns(xfer->sync_timeout_ms), xfer->sync_timeout_ms,
                           err);
        ddi_links_done(xfer->links, link);
    }
    return st;
}
