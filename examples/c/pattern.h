/* What both examples agree on: the shape of the cache, and bytes that give away any misplaced one. */
#ifndef EXAMPLE_PATTERN_H
#define EXAMPLE_PATTERN_H

#include <stdint.h>

enum { LAYERS = 32, TENSORS = 2 * LAYERS, TOKENS = 1024, HEADS = 8, HEAD_SIZE = 128 };

static const int64_t dims[4] = {1, TOKENS, HEADS, HEAD_SIZE}; /* batch, tokens, heads, head size */

#define PROMPT_CLUSTER UINT64_C(1)
#define DECODE_CLUSTER UINT64_C(2)
#define REQUEST_ID UINT64_C(42)

/* The 16-bit element at `index` of `tensor`. */
static inline uint16_t pattern(uint32_t tensor, uint64_t index)
{
    uint64_t mixed = (index + 1) * UINT64_C(0x9E3779B97F4A7C15) +
                     tensor * UINT64_C(0xD1B54A32D192ED03);

    return (uint16_t)(mixed >> 48);
}

#endif
