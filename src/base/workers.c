/* A few threads for blocking work. */
#include "base/workers.h"

#include "base/clock.h"
#include "base/mutex.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define STACK_BYTES (256 * 1024)

struct ddi_workers {
    struct ddi_mutex mu; /* rank DDI_RANK_WORKERS */
    struct ddi_cond work;
    struct ddi_task *first; /* guarded by mu */
    struct ddi_task *last;  /* guarded by mu */
    uint32_t queued;        /* guarded by mu */
    uint32_t idle;          /* guarded by mu */
    uint32_t thread_count;  /* guarded by mu */
    bool is_closing;        /* guarded by mu */
    uint32_t max_threads;   /* constant */
    pthread_t threads[];    /* guarded by mu */
};

static void *run_worker(void *context)
{
    struct ddi_workers *workers = context;

    ddi_mutex_lock(&workers->mu);
    for (;;) {
        struct ddi_task *task = workers->first;

        if (task != NULL) {
            workers->first = task->next;
            if (workers->first == NULL) {
                workers->last = NULL;
            }
            workers->queued--;
            ddi_mutex_unlock(&workers->mu);
            task->fn(task->context);
            ddi_mutex_lock(&workers->mu);
        } else if (workers->is_closing) {
            break;
        } else {
            workers->idle++;
            (void)ddi_cond_wait_until(&workers->work, &workers->mu, DDI_NEVER);
            workers->idle--;
        }
    }
    ddi_mutex_unlock(&workers->mu);
    return NULL;
}

static bool start_thread_locked(struct ddi_workers *workers)
{
    pthread_attr_t attr;
    sigset_t all;
    sigset_t before;
    bool is_started;

    if (workers->is_closing || workers->thread_count == workers->max_threads ||
        pthread_attr_init(&attr) != 0) {
        return false;
    }
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    is_started = pthread_create(&workers->threads[workers->thread_count], &attr, run_worker,
                                workers) == 0;
    if (is_started) {
        (void)pthread_setname_np(workers->threads[workers->thread_count], "dd-worker");
        workers->thread_count++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return is_started;
}

dd_status ddi_workers_open(uint32_t max_threads, struct ddi_workers **out, dd_error *err)
{
    struct ddi_workers *workers =
        calloc(1, sizeof(*workers) + max_threads * sizeof(workers->threads[0]));

    if (workers == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "worker threads");
    }
    ddi_mutex_init(&workers->mu, DDI_RANK_WORKERS);
    ddi_cond_init(&workers->work);
    workers->max_threads = max_threads;
    *out = workers;
    return DD_OK;
}

void ddi_workers_close(struct ddi_workers *workers)
{
    uint32_t count;

    if (workers == NULL) {
        return;
    }
    ddi_mutex_lock(&workers->mu);
    workers->is_closing = true; /* no thread starts from here on */
    count = workers->thread_count;
    ddi_cond_broadcast(&workers->work);
    ddi_mutex_unlock(&workers->mu);
    for (uint32_t i = 0; i < count; i++) {
        (void)pthread_join(workers->threads[i], NULL);
    }
    while (workers->first != NULL) { /* no thread could be started for these */
        struct ddi_task *task = workers->first;

        workers->first = task->next;
        task->fn(task->context);
    }
    ddi_cond_fini(&workers->work);
    ddi_mutex_fini(&workers->mu);
    free(workers);
}

static void append_locked(struct ddi_workers *workers, struct ddi_task *task)
{
    task->next = NULL;
    if (workers->last == NULL) {
        workers->first = task;
    } else {
        workers->last->next = task;
    }
    workers->last = task;
    workers->queued++;
    ddi_cond_signal(&workers->work);
}

bool ddi_workers_post(struct ddi_workers *workers, struct ddi_task *task)
{
    bool is_taken;

    ddi_mutex_lock(&workers->mu);
    /* Only a thread that is free, or just started, takes it: work behind a busy thread could wait
     * for another transfer's time-out. */
    is_taken = workers->idle > workers->queued || start_thread_locked(workers);
    if (is_taken) {
        append_locked(workers, task);
    }
    ddi_mutex_unlock(&workers->mu);
    return is_taken;
}

void ddi_workers_add(struct ddi_workers *workers, struct ddi_task *task)
{
    ddi_mutex_lock(&workers->mu);
    if (workers->idle <= workers->queued) {
        (void)start_thread_locked(workers);
    }
    append_locked(workers, task);
    ddi_mutex_unlock(&workers->mu);
}
