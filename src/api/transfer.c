/* Public functions: links and pulls. */
#include "api/engine_state.h"

#include <inttypes.h>

static dd_status check_targets(const dd_target *targets, size_t n, const dd_status *results,
                               dd_error *err)
{
    if (targets == NULL || results == NULL || n == 0) {
        return ddi_fail(err, DD_INVALID, "%s",
                        n == 0            ? "no targets: n is 0"
                        : targets == NULL ? "targets is NULL"
                                          : "results is NULL");
    }
    for (size_t i = 0; i < n; i++) {
        dd_status st = ddi_engine_check_size(targets[i].size, sizeof(dd_target), sizeof(dd_target),
                                             "target", err);

        if (st != DD_OK) {
            return st;
        }
    }
    return DD_OK;
}

dd_status dd_link_open(dd_engine *engine, const dd_target *targets, size_t n, dd_status *results,
                       uint32_t timeout_ms, dd_error *err)
{
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    st = check_targets(targets, n, results, err);
    if (st == DD_OK) {
        st = ddi_links_open(engine->links, targets, n, results, timeout_ms, err);
    }
    ddi_engine_leave(engine);
    return st;
}

dd_status dd_link_close(dd_engine *engine, const dd_target *targets, size_t n, dd_status *results,
                        uint32_t timeout_ms, bool force, dd_error *err)
{
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    st = check_targets(targets, n, results, err);
    if (st == DD_OK) {
        st = ddi_links_close(engine->links, targets, n, results, timeout_ms, force, err);
    }
    ddi_engine_leave(engine);
    return st;
}

dd_status dd_link_check(dd_engine *engine, uint64_t cluster_id, dd_error *err)
{
    dd_status st = ddi_engine_enter(engine, err);

    if (st == DD_OK) {
        st = ddi_xfer_check(&engine->xfer, cluster_id, err);
        ddi_engine_leave(engine);
    }
    return st;
}

static dd_status check_source(const dd_source *source, dd_error *err)
{
    dd_status st;

    if (source == NULL) {
        return ddi_fail(err, DD_INVALID, "source is NULL");
    }
    st = ddi_engine_check_size(source->size, sizeof(*source), sizeof(*source), "source", err);
    if (st == DD_OK && source->cache == 0) { /* else the key is not looked at */
        st = ddi_engine_check_size(source->key.size, sizeof(source->key), sizeof(source->key),
                                   "source.key", err);
    }
    return st;
}

dd_status dd_pull(dd_engine *engine, const dd_source *source, int64_t cache, const dd_slice *slice,
                  dd_error *err)
{
    static const dd_slice whole = {.size = sizeof(whole)};
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    slice = slice == NULL ? &whole : slice;
    st = check_source(source, err);
    if (st == DD_OK) {
        st = ddi_engine_check_size(slice->size, sizeof(*slice), sizeof(*slice), "slice", err);
    }
    if (st == DD_OK) {
        st = ddi_xfer_pull(&engine->xfer, source, cache, slice, err);
    }
    ddi_engine_leave(engine);
    return st;
}

static dd_status check_blocks(const dd_blocks *blocks, dd_error *err)
{
    if (blocks == NULL) {
        return ddi_fail(err, DD_INVALID, "blocks is NULL");
    }
    if (blocks->count == 0 || blocks->dst == NULL) {
        return ddi_fail(err, DD_INVALID, "blocks: %s",
                        blocks->count == 0 ? "the list is empty" : "dst is NULL");
    }
    if (blocks->count > DDI_MAX_BLOCKS) {
        return ddi_fail(err, DD_INVALID, "blocks: %zu in one call, at most %u", blocks->count,
                        DDI_MAX_BLOCKS);
    }
    return ddi_engine_check_size(blocks->size, sizeof(*blocks), sizeof(*blocks), "blocks", err);
}

dd_status dd_pull_blocks(dd_engine *engine, const dd_source *source, int64_t cache,
                         const dd_blocks *blocks, dd_error *err)
{
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    st = check_source(source, err);
    if (st == DD_OK) {
        st = check_blocks(blocks, err);
    }
    if (st == DD_OK) {
        st = ddi_xfer_pull_blocks(&engine->xfer, source, cache, blocks, err);
    }
    ddi_engine_leave(engine);
    return st;
}
