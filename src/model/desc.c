/* Cache descriptions: check a public one and compute what follows from it. Pure. */
#include "model/desc.h"

#include "base/num.h"

#include <inttypes.h>

#define DEFAULT_TENSORS_PER_LAYER 2

static dd_status check_fields(const dd_cache_desc *desc, dd_error *err)
{
    if (desc == NULL) {
        return ddi_fail(err, DD_INVALID, "cache description is NULL");
    }
    if (desc->size != sizeof(*desc)) {
        return ddi_fail(err, DD_INVALID, "cache description: size is %zu, expected %zu", desc->size,
                        sizeof(*desc));
    }
    if (desc->tensor_count == 0) {
        return ddi_fail(err, DD_INVALID,
                        "cache description: tensor_count is 0, at least 1 is needed");
    }
    if (ddi_desc_element_bytes(desc->data_type) == 0) {
        return ddi_fail(err, DD_INVALID, "cache description: data_type %d is unknown",
                        (int)desc->data_type);
    }
    if (desc->placement != DD_HOST && desc->placement != DD_DEVICE) {
        return ddi_fail(err, DD_INVALID,
                        "cache description: placement is %d, allowed are 0 (host) and 1 (device)",
                        (int)desc->placement);
    }
    if (desc->dim_count == 0 || desc->dim_count > DD_MAX_DIMS) {
        return ddi_fail(err, DD_INVALID,
                        "cache description: dim_count is %" PRIu32 ", allowed are 1 to %d",
                        desc->dim_count, DD_MAX_DIMS);
    }
    if (desc->dims == NULL) {
        return ddi_fail(err, DD_INVALID, "cache description: dims is NULL");
    }
    return DD_OK;
}

uint32_t ddi_desc_element_bytes(dd_data_type type)
{
    switch (type) {
    case DD_INT8:
    case DD_UINT8:
    case DD_BOOL:
        return 1;
    case DD_FLOAT16:
    case DD_INT16:
    case DD_UINT16:
    case DD_BFLOAT16:
        return 2;
    case DD_FLOAT32:
    case DD_INT32:
    case DD_UINT32:
        return 4;
    case DD_INT64:
    case DD_UINT64:
    case DD_FLOAT64:
        return 8;
    case DD_STRING:
        return 16;
    }
    return 0;
}

dd_status ddi_desc_init(struct ddi_desc *out, const dd_cache_desc *desc, dd_error *err)
{
    struct ddi_desc result = {0};
    uint64_t bytes;
    uint64_t all;
    dd_status st = check_fields(desc, err);

    if (st != DD_OK) {
        return st;
    }
    bytes = ddi_desc_element_bytes(desc->data_type);
    for (uint32_t i = 0; i < desc->dim_count; i++) {
        if (desc->dims[i] < 1) {
            return ddi_fail(err, DD_INVALID,
                            "cache description: dims[%" PRIu32 "] is %" PRId64
                            ", at least 1 is needed",
                            i, desc->dims[i]);
        }
        if (!ddi_mul_u64(bytes, (uint64_t)desc->dims[i], &bytes)) {
            return ddi_fail(
                err, DD_INVALID,
                "cache description: bytes of a tensor do not fit into 64 bits, dims[%" PRIu32
                "] is %" PRId64,
                i, desc->dims[i]);
        }
        result.dims[i] = desc->dims[i];
    }
    /* Half of what 64 bits hold, so that rounding and adding caches stays far from overflow. */
    if (!ddi_mul_u64(bytes, desc->tensor_count, &all) || all > INT64_MAX) {
        return ddi_fail(err, DD_INVALID,
                        "cache description: %" PRIu32 " tensors of %" PRIu64
                        " bytes do not fit into 63 bits",
                        desc->tensor_count, bytes);
    }
    result.tensor_count = desc->tensor_count;
    result.data_type = desc->data_type;
    result.placement = desc->placement;
    result.dim_count = desc->dim_count;
    result.tensor_bytes = bytes;
    result.slice_bytes = bytes / (uint64_t)desc->dims[0];
    *out = result;
    return DD_OK;
}

dd_status ddi_desc_layers(uint32_t tensor_count, uint32_t tensors_per_layer, dd_layers layers,
                          const char *side, uint32_t *first, uint32_t *count, dd_error *err)
{
    uint32_t per_layer = tensors_per_layer > 0 ? tensors_per_layer : DEFAULT_TENSORS_PER_LAYER;

    if (tensors_per_layer > tensor_count) {
        return ddi_fail(err, DD_INVALID,
                        "%s: %" PRIu32 " tensors per layer, the cache has %" PRIu32 " tensors",
                        side, tensors_per_layer, tensor_count);
    }
    if (layers.count == 0 && layers.first != 0) {
        return ddi_fail(err, DD_INVALID, "%s: first layer is %" PRIu32 " but the layer count is 0",
                        side, layers.first);
    }
    if (layers.count == 0) {
        *first = 0;
        *count = tensor_count;
        return DD_OK;
    }
    if (tensor_count % per_layer != 0) {
        return ddi_fail(err, DD_INVALID,
                        "%s: %" PRIu32 " tensors are not a multiple of %" PRIu32
                        " tensors per layer",
                        side, tensor_count, per_layer);
    }
    if (!ddi_fits(layers.first, layers.count, tensor_count / per_layer)) {
        return ddi_fail(err, DD_INVALID,
                        "%s: %" PRIu32 " layers from layer %" PRIu32
                        " are outside, the cache has %" PRIu32 " layers",
                        side, layers.count, layers.first, tensor_count / per_layer);
    }
    /* Inside the cache, so below tensor_count: no overflow. */
    *first = layers.first * per_layer;
    *count = layers.count * per_layer;
    return DD_OK;
}
