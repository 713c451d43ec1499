/* A piece of a transfer: `len` bytes from `src` to `dst`. Addresses, or positions in a stream. */
#ifndef DDI_SEGMENT_H
#define DDI_SEGMENT_H

#include <stdint.h>

struct ddi_segment {
    uint64_t src;
    uint64_t dst;
    uint64_t len;
};

#endif
