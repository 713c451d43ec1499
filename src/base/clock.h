/* Monotonic time and deadlines, in nanoseconds. */
#ifndef DDI_CLOCK_H
#define DDI_CLOCK_H

#include <stdint.h>
#include <time.h>

#define DDI_NS_PER_MS UINT64_C(1000000)
#define DDI_NEVER UINT64_MAX /* a deadline that does not come */

static inline uint64_t ddi_clock_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline uint64_t ddi_deadline_ns(uint32_t timeout_ms)
{
    return ddi_clock_ns() + timeout_ms * DDI_NS_PER_MS;
}

/* Milliseconds until the deadline for poll(2): rounded up, 0 when it is over, -1 for DDI_NEVER. */
static inline int ddi_left_ms(uint64_t deadline_ns)
{
    uint64_t now;
    uint64_t left;

    if (deadline_ns == DDI_NEVER) {
        return -1;
    }
    now = ddi_clock_ns();
    if (now >= deadline_ns) {
        return 0;
    }
    left = (deadline_ns - now + DDI_NS_PER_MS - 1) / DDI_NS_PER_MS;
    return left > INT32_MAX ? INT32_MAX : (int)left;
}

#endif
