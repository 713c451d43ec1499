/* Mutexes with a rank, and conditions with a deadline. */
#include "base/mutex.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>

#ifndef NDEBUG
/* The one changeable variable of the library outside objects, and in debug builds only: the lowest
 * rank that this thread holds, per depth. */
static _Thread_local enum ddi_rank held[16];
static _Thread_local unsigned depth;

static void note_lock(const struct ddi_mutex *mu)
{
    assert(depth == 0 || mu->rank < held[depth - 1]);
    assert(depth < sizeof(held) / sizeof(held[0]));
    held[depth++] = mu->rank;
}

static void note_unlock(const struct ddi_mutex *mu)
{
    assert(depth > 0 && held[depth - 1] == mu->rank);
    depth--;
}
#else
static void note_lock(const struct ddi_mutex *mu)
{
    (void)mu;
}

static void note_unlock(const struct ddi_mutex *mu)
{
    (void)mu;
}
#endif

void ddi_mutex_init(struct ddi_mutex *mu, enum ddi_rank rank)
{
    mu->rank = rank;
    (void)pthread_mutex_init(&mu->mutex, NULL);
}

void ddi_mutex_fini(struct ddi_mutex *mu)
{
    (void)pthread_mutex_destroy(&mu->mutex);
}

void ddi_mutex_lock(struct ddi_mutex *mu)
{
    note_lock(mu);
    (void)pthread_mutex_lock(&mu->mutex);
}

void ddi_mutex_unlock(struct ddi_mutex *mu)
{
    note_unlock(mu); /* first: once unlocked, the mutex may be gone */
    (void)pthread_mutex_unlock(&mu->mutex);
}

void ddi_cond_init(struct ddi_cond *cond)
{
    pthread_condattr_t attr;

    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&cond->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
}

void ddi_cond_fini(struct ddi_cond *cond)
{
    (void)pthread_cond_destroy(&cond->cond);
}

void ddi_cond_signal(struct ddi_cond *cond)
{
    (void)pthread_cond_signal(&cond->cond);
}

void ddi_cond_broadcast(struct ddi_cond *cond)
{
    (void)pthread_cond_broadcast(&cond->cond);
}

bool ddi_cond_wait_until(struct ddi_cond *cond, struct ddi_mutex *mu, uint64_t deadline_ns)
{
    struct timespec at;

    if (deadline_ns == DDI_NEVER) {
        (void)pthread_cond_wait(&cond->cond, &mu->mutex);
        return false;
    }
    at.tv_sec = (time_t)(deadline_ns / UINT64_C(1000000000));
    at.tv_nsec = (long)(deadline_ns % UINT64_C(1000000000));
    return pthread_cond_timedwait(&cond->cond, &mu->mutex, &at) == ETIMEDOUT;
}
