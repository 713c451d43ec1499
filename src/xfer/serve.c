/* A pull at the owner's side: resolve the claim of a peer, check it, pin and plan; later count and
 * unpin. Runs on the transport's bulk loops; never blocks. Addresses and counts from a peer are
 * claims: everything is checked against the cache table here. */
#include "xfer/xfer.h"

#include "base/clock.h"
#include "base/num.h"
#include "model/desc.h"

#include <inttypes.h>
#include <stdlib.h>

/* How long an allocation waits for confirmations under way: for memory, which may be short for other
 * reasons; and for a key, which is rarely given while it is bound but right after it was pulled. */
#define MEMORY_WAIT_MS 10
#define KEY_WAIT_MS 500

struct serving {
    struct ddi_job job; /* first: the transport sees this part */
    struct ddi_grant grant;
    uint32_t first_tensor;
    uint32_t tensor_count;
    uint64_t total;
};

static struct serving *serving_of(struct ddi_job *job)
{
    return (struct serving *)job; /* job is its first member */
}

/* Where the bytes of a slice, or of a slice in pieces, lie in each tensor. */
static dd_status plan_slice(const struct ddi_desc *desc, const struct ddi_pull *pull,
                            uint32_t batch, struct ddi_plan_input *input, dd_error *err)
{
    uint64_t bytes = pull->bytes;
    uint64_t offset = pull->offset;

    if (pull->mode == DDI_PULL_PIECES) {
        uint64_t pieces = pull->block_bytes == 0 ? 0
                                                 : desc->slice_bytes / pull->block_bytes +
                                                       (desc->slice_bytes % pull->block_bytes != 0);

        if (pull->piece_count == 0 || pull->piece_count > pieces) {
            return ddi_fail(err, DD_INVALID,
                            "source: %u blocks of %" PRIu64
                            " bytes wanted, its batch slice of %" PRIu64 " bytes has %" PRIu64,
                            pull->piece_count, pull->block_bytes, desc->slice_bytes, pieces);
        }
        offset = 0;
        input->piece_bytes = pull->block_bytes; /* both sides cut the stream at the same places */
        bytes = pull->piece_count == pieces ? desc->slice_bytes
                                            : pull->piece_count * pull->block_bytes;
    }
    if (bytes == 0 || !ddi_fits(offset, bytes, desc->slice_bytes)) {
        return ddi_fail(err, DD_INVALID,
                        "source: offset %" PRIu64 " and %" PRIu64
                        " bytes exceed the batch slice of %" PRIu64 " bytes",
                        offset, bytes, desc->slice_bytes);
    }
    input->src.kind = DDI_SIDE_LINEAR;
    input->src.offset = batch * desc->slice_bytes + offset;
    input->bytes = bytes;
    return DD_OK;
}

static dd_status plan_blocks(const struct ddi_desc *desc, const struct ddi_pull *pull,
                             struct ddi_plan_input *input, dd_error *err)
{
    if (pull->block_bytes != desc->slice_bytes) {
        return ddi_fail(err, DD_INVALID,
                        "block sizes differ: source %" PRIu64 " bytes, destination %" PRIu64
                        " bytes",
                        desc->slice_bytes, pull->block_bytes);
    }
    if (!ddi_mul_u64(pull->block_count, desc->slice_bytes, &input->bytes)) {
        return ddi_fail(err, DD_INVALID, "source: %u blocks are too many", pull->block_count);
    }
    input->src.kind = DDI_SIDE_BLOCKS;
    input->src.blocks = pull->blocks;
    input->src.block_count = (uint64_t)desc->dims[0];
    input->piece_bytes = desc->slice_bytes;
    input->piece_count = pull->block_count;
    return DD_OK;
}

static dd_status plan_source(struct serving *serving, const struct ddi_pull *pull, dd_error *err)
{
    const struct ddi_entry *entry = serving->grant.entry;
    const struct ddi_desc *desc = &entry->desc;
    struct ddi_plan_input input = {0};
    dd_layers layers = {.first = pull->first_layer, .count = pull->layer_count};
    dd_status st = ddi_desc_layers(desc->tensor_count, pull->tensors_per_layer, layers, "source",
                                   &serving->first_tensor, &serving->tensor_count, err);

    if (st != DD_OK) {
        return st;
    }
    if (serving->tensor_count != pull->want_tensors) {
        return ddi_fail(err, DD_INVALID, "source selects %u tensors, destination %u",
                        serving->tensor_count, pull->want_tensors);
    }
    st = pull->mode == DDI_PULL_BLOCKS ? plan_blocks(desc, pull, &input, err)
                                       : plan_slice(desc, pull, serving->grant.batch, &input, err);
    if (st != DD_OK) {
        return st;
    }
    input.src.tensors = entry->tensors + serving->first_tensor;
    input.src.tensor_bytes = desc->tensor_bytes;
    input.dst.kind = DDI_SIDE_STREAM;
    input.tensor_count = serving->tensor_count;
    return ddi_plan_init(&serving->job.plan, &input, err);
}

static dd_status serve(void *owner, const struct ddi_pull *pull, struct ddi_job **job,
                       dd_error *err)
{
    struct ddi_xfer *xfer = owner;
    struct ddi_source_ref ref = {.kind = (dd_key_kind)pull->key_kind,
                                 .id = pull->key_id,
                                 .model_id = pull->model_id,
                                 .cache = pull->cache,
                                 .batch = pull->batch};
    struct serving *serving = calloc(1, sizeof(*serving));
    dd_status st;

    if (serving == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "owner has no memory for a transfer");
    }
    st = ddi_table_find(xfer->table, &ref, &serving->grant, err);
    if (st != DD_OK) {
        free(serving);
        return st;
    }
    st = plan_source(serving, pull, err);
    if (st != DD_OK) {
        ddi_table_unpin(xfer->table, serving->grant.entry);
        free(serving);
        atomic_fetch_add_explicit(&xfer->counters.serves_failed, 1, memory_order_relaxed);
        return st;
    }
    serving->job.bytes = serving->job.plan.bytes;
    serving->job.confirm = serving->grant.kind == DD_KEY_REQUEST && !pull->keep_key;
    serving->total = serving->job.plan.total;
    if (serving->job.confirm) {
        ddi_mutex_lock(&xfer->mu);
        xfer->unconfirmed++;
        ddi_mutex_unlock(&xfer->mu);
    }
    *job = &serving->job;
    return DD_OK;
}

static void sent(void *owner, struct ddi_job *job, bool is_whole)
{
    struct ddi_xfer *xfer = owner;
    struct serving *serving = serving_of(job);

    ddi_table_unpin(xfer->table, serving->grant.entry);
    serving->grant.entry = NULL;
    if (is_whole) {
        atomic_fetch_add_explicit(&xfer->counters.serves, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&xfer->counters.bytes_served, serving->total,
                                  memory_order_relaxed);
    } else {
        atomic_fetch_add_explicit(&xfer->counters.serves_failed, 1, memory_order_relaxed);
    }
}

static void confirmed(void *owner, struct ddi_job *job)
{
    struct ddi_xfer *xfer = owner;
    struct serving *serving = serving_of(job);

    ddi_table_consume(xfer->table, &serving->grant, serving->first_tensor, serving->tensor_count);
}

static void end(void *owner, struct ddi_job *job)
{
    struct ddi_xfer *xfer = owner;

    if (job->confirm) {
        ddi_mutex_lock(&xfer->mu);
        xfer->unconfirmed--;
        ddi_cond_broadcast(&xfer->confirmed);
        ddi_mutex_unlock(&xfer->mu);
    }
    ddi_plan_fini(&job->plan);
    free(serving_of(job));
}

void ddi_xfer_init(struct ddi_xfer *xfer)
{
    ddi_mutex_init(&xfer->mu, DDI_RANK_TABLE);
    ddi_cond_init(&xfer->confirmed);
}

void ddi_xfer_fini(struct ddi_xfer *xfer)
{
    ddi_cond_fini(&xfer->confirmed);
    ddi_mutex_fini(&xfer->mu);
}

/* Wait until fewer transfers are unconfirmed. False when none is, or the time is up. */
static bool await_confirmation(struct ddi_xfer *xfer, uint64_t deadline_ns)
{
    uint64_t before;
    bool is_late = false;
    bool has_changed;

    ddi_mutex_lock(&xfer->mu);
    before = xfer->unconfirmed;
    while (before > 0 && xfer->unconfirmed >= before && !is_late) {
        is_late = ddi_cond_wait_until(&xfer->confirmed, &xfer->mu, deadline_ns);
    }
    has_changed = xfer->unconfirmed < before;
    ddi_mutex_unlock(&xfer->mu);
    return has_changed;
}

dd_status ddi_xfer_alloc(struct ddi_xfer *xfer, const dd_cache_desc *desc, const dd_key *keys,
                         size_t key_count, int64_t *cache, dd_error *err)
{
    uint64_t memory_ns = ddi_deadline_ns(MEMORY_WAIT_MS);
    uint64_t key_ns = ddi_deadline_ns(KEY_WAIT_MS);
    dd_status st;

    do {
        st = ddi_table_alloc(xfer->table, desc, keys, key_count, cache, err);
    } while ((st == DD_NO_MEMORY && await_confirmation(xfer, memory_ns)) ||
             (st == DD_KEY_EXISTS && await_confirmation(xfer, key_ns)));
    return st;
}

const struct ddi_owner_ops ddi_xfer_owner_ops = {
    .serve = serve, .sent = sent, .confirmed = confirmed, .end = end};
