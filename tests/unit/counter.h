/* A number that one thread raises and another waits for, with a limit. */
#ifndef DDI_COUNTER_H
#define DDI_COUNTER_H

#include "base/clock.h"
#include "base/mutex.h"

#define COUNTER_LIMIT_MS 10000

struct counter {
    struct ddi_mutex mu; /* above all ranks of what is tested here */
    struct ddi_cond changed;
    int value; /* guarded by mu */
};

static inline void counter_init(struct counter *counter)
{
    ddi_mutex_init(&counter->mu, DDI_RANK_ENGINE);
    ddi_cond_init(&counter->changed);
    counter->value = 0;
}

static inline void counter_fini(struct counter *counter)
{
    ddi_cond_fini(&counter->changed);
    ddi_mutex_fini(&counter->mu);
}

/* A ddi_task_fn: raise the counter by one. */
static inline void counter_up(void *context)
{
    struct counter *counter = context;

    ddi_mutex_lock(&counter->mu);
    counter->value++;
    ddi_cond_broadcast(&counter->changed);
    ddi_mutex_unlock(&counter->mu);
}

static inline int counter_get(struct counter *counter)
{
    int value;

    ddi_mutex_lock(&counter->mu);
    value = counter->value;
    ddi_mutex_unlock(&counter->mu);
    return value;
}

/* Wait for the value. False when it is not reached within the limit. */
static inline bool counter_reaches(struct counter *counter, int value)
{
    uint64_t deadline_ns = ddi_deadline_ns(COUNTER_LIMIT_MS);
    bool is_late = false;
    bool is_reached;

    ddi_mutex_lock(&counter->mu);
    while (counter->value < value && !is_late) {
        is_late = ddi_cond_wait_until(&counter->changed, &counter->mu, deadline_ns);
    }
    is_reached = counter->value >= value;
    ddi_mutex_unlock(&counter->mu);
    return is_reached;
}

#endif
