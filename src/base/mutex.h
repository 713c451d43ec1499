/* Mutexes with a rank, and conditions with a deadline. In debug builds taking a lock whose rank is
 * not below all that the thread holds ends the program: that is how deadlocks are found early. */
#ifndef DDI_MUTEX_H
#define DDI_MUTEX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Locks are taken from high rank to low. */
enum ddi_rank {
    DDI_RANK_LOG = 1,
    DDI_RANK_LOOP,
    DDI_RANK_WORKERS,
    DDI_RANK_POOL,
    DDI_RANK_TABLE,
    DDI_RANK_CHANNEL,
    DDI_RANK_LINKS,
    DDI_RANK_ENGINE
};

struct ddi_mutex {
    pthread_mutex_t mutex;
    enum ddi_rank rank; /* constant */
};

struct ddi_cond {
    pthread_cond_t cond; /* on the monotonic clock */
};

void ddi_mutex_init(struct ddi_mutex *mu, enum ddi_rank rank);
void ddi_mutex_fini(struct ddi_mutex *mu);
void ddi_mutex_lock(struct ddi_mutex *mu);
void ddi_mutex_unlock(struct ddi_mutex *mu);

void ddi_cond_init(struct ddi_cond *cond);
void ddi_cond_fini(struct ddi_cond *cond);
void ddi_cond_signal(struct ddi_cond *cond);
void ddi_cond_broadcast(struct ddi_cond *cond);

/* Wait until signalled or the deadline (DDI_NEVER: none). Returns true when the deadline has passed.
 * May return early without reason, as conditions do: callers test what they wait for. */
bool ddi_cond_wait_until(struct ddi_cond *cond, struct ddi_mutex *mu, uint64_t deadline_ns);

#endif
