/* Sums and products of sizes that came from outside. Return false on overflow; *out is then not
 * to be used. Pure. */
#ifndef DDI_NUM_H
#define DDI_NUM_H

#include <stdbool.h>
#include <stdint.h>

static inline bool ddi_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool ddi_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Whether [offset, offset + len) lies inside [0, limit). */
static inline bool ddi_fits(uint64_t offset, uint64_t len, uint64_t limit)
{
    return len <= limit && offset <= limit - len;
}

static inline uint64_t ddi_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t ddi_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Round up to a power of two; the caller knows that it does not overflow. */
static inline uint64_t ddi_align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

#endif
