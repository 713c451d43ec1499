/* A cache description with everything that follows from it. Plain value. */
#ifndef DDI_DESC_H
#define DDI_DESC_H

#include "base/status.h"

struct ddi_desc {
    uint32_t tensor_count;
    dd_data_type data_type;
    dd_placement placement;
    uint32_t dim_count;
    int64_t dims[DD_MAX_DIMS];
    uint64_t tensor_bytes;
    uint64_t slice_bytes; /* one batch slice or block: tensor_bytes / dims[0] */
};

/* Bytes of one element; 0 for a number that is no data type. */
uint32_t ddi_desc_element_bytes(dd_data_type type);

/* Check a public description and compute the rest.
 * Fails: DD_INVALID naming the field, found and allowed. */
dd_status ddi_desc_init(struct ddi_desc *out, const dd_cache_desc *desc, dd_error *err);

/* Resolve a run of layers to a run of tensors: tensors_per_layer 0 means 2, count 0 means all.
 * `side` ("source", "destination") is for the text.
 * Fails: DD_INVALID: tensors_per_layer above the tensor count; with a range given: tensor count
 * not a multiple, range outside. */
dd_status ddi_desc_layers(uint32_t tensor_count, uint32_t tensors_per_layer, dd_layers layers,
                          const char *side, uint32_t *first, uint32_t *count, dd_error *err);

#endif
