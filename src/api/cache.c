/* Public functions: caches, keys and views. */
#include "api/engine_state.h"

#include <inttypes.h>
#include <stdlib.h>

struct dd_view {
    struct ddi_entry *entry; /* held */
    uint64_t address;
};

static dd_status check_alloc(const dd_cache_desc *desc, const dd_key *keys, size_t key_count,
                             const int64_t *cache, dd_error *err)
{
    if (desc == NULL || cache == NULL || (keys == NULL && key_count > 0)) {
        return ddi_fail(err, DD_INVALID, "%s is NULL",
                        desc == NULL    ? "desc"
                        : cache == NULL ? "cache"
                                        : "keys");
    }
    for (size_t i = 0; i < key_count; i++) {
        dd_status st = ddi_engine_check_size(keys[i].size, sizeof(dd_key), sizeof(dd_key), "key",
                                             err);

        if (st != DD_OK) {
            return st;
        }
    }
    return ddi_engine_check_size(desc->size, sizeof(*desc), sizeof(*desc), "desc", err);
}

dd_status dd_cache_alloc(dd_engine *engine, const dd_cache_desc *desc, const dd_key *keys,
                         size_t key_count, int64_t *cache, dd_error *err)
{
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    st = check_alloc(desc, keys, key_count, cache, err);
    if (st == DD_OK) {
        st = ddi_xfer_alloc(&engine->xfer, desc, keys, key_count, cache, err);
    }
    ddi_engine_leave(engine);
    return st;
}

/* Pin a cache and check a device, and a tensor if asked for. */
static dd_status pin_tensor(dd_engine *engine, int64_t cache, uint32_t device, uint32_t tensor,
                            struct ddi_entry **out, dd_error *err)
{
    struct ddi_entry *entry;
    dd_status st = ddi_table_pin(engine->xfer.table, cache, &entry, err);

    if (st != DD_OK) {
        return st;
    }
    if (device >= entry->device_count) {
        st = ddi_fail(err, DD_INVALID, "device index %u is out of range, cache has %u", device,
                      entry->device_count);
    } else if (tensor >= entry->desc.tensor_count) {
        st = ddi_fail(err, DD_INVALID, "tensor index %u is out of range, cache has %u", tensor,
                      entry->desc.tensor_count);
    }
    if (st != DD_OK) {
        ddi_table_unpin(engine->xfer.table, entry);
        return st;
    }
    *out = entry;
    return DD_OK;
}

dd_status dd_cache_addresses(dd_engine *engine, int64_t cache, uint32_t device, uint64_t *addresses,
                             uint32_t tensor_count, dd_error *err)
{
    struct ddi_entry *entry = NULL;
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    st = pin_tensor(engine, cache, device, 0, &entry, err);
    if (st == DD_OK) {
        if (addresses == NULL || tensor_count != entry->desc.tensor_count) {
            st = ddi_fail(err, DD_INVALID, "room for %u addresses, wanted %u",
                          addresses == NULL ? 0 : tensor_count, entry->desc.tensor_count);
        } else {
            for (uint32_t i = 0; i < tensor_count; i++) {
                addresses[i] = entry->tensors[(size_t)device * tensor_count + i];
            }
        }
        ddi_table_unpin(engine->xfer.table, entry);
    }
    ddi_engine_leave(engine);
    return st;
}

dd_status dd_cache_free(dd_engine *engine, int64_t cache, dd_error *err)
{
    dd_status st = ddi_engine_enter(engine, err);

    if (st == DD_OK) {
        st = ddi_table_free(engine->xfer.table, cache, err);
        ddi_engine_leave(engine);
    }
    return st;
}

dd_status dd_key_remove(dd_engine *engine, const dd_key *key, dd_error *err)
{
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    st = key == NULL ? ddi_fail(err, DD_INVALID, "key is NULL")
                     : ddi_engine_check_size(key->size, sizeof(*key), sizeof(*key), "key", err);
    if (st == DD_OK) {
        st = ddi_table_remove_key(engine->xfer.table, key, err);
    }
    ddi_engine_leave(engine);
    return st;
}

dd_status dd_view_open(dd_engine *engine, int64_t cache, uint32_t device, uint32_t tensor,
                       dd_view **view, dd_error *err)
{
    struct ddi_entry *entry = NULL;
    dd_view *v;
    dd_status st = ddi_engine_enter(engine, err);

    if (st != DD_OK) {
        return st;
    }
    v = calloc(1, sizeof(*v));
    if (v == NULL || view == NULL) {
        st = v == NULL ? ddi_fail(err, DD_NO_MEMORY, "view")
                       : ddi_fail(err, DD_INVALID, "view is NULL");
    } else {
        st = pin_tensor(engine, cache, device, tensor, &entry, err);
    }
    if (st == DD_OK) {
        ddi_entry_hold(entry);
        v->entry = entry;
        v->address = entry->tensors[(size_t)device * entry->desc.tensor_count + tensor];
        ddi_table_unpin(engine->xfer.table, entry);
        *view = v;
    } else {
        free(v);
    }
    ddi_engine_leave(engine);
    return st;
}

void *dd_view_data(const dd_view *view)
{
    return (void *)(uintptr_t)view->address;
}

uint64_t dd_view_bytes(const dd_view *view)
{
    return view->entry->desc.tensor_bytes;
}

void dd_view_close(dd_view *view)
{
    if (view != NULL) {
        ddi_entry_release(view->entry);
        free(view);
    }
}
