/* A few threads for blocking work that several of them share. Threads start when first needed. */
#ifndef DDI_WORKERS_H
#define DDI_WORKERS_H

#include "base/loop.h"

struct ddi_workers;

dd_status ddi_workers_open(uint32_t max_threads, struct ddi_workers **out, dd_error *err);

/* Run what is posted, end the threads, free. NULL is fine. */
void ddi_workers_close(struct ddi_workers *workers);

/* Any thread. Hand a task to a thread. False, and not taken, when there is no thread for it and none
 * can be started: the caller does the work itself. */
bool ddi_workers_post(struct ddi_workers *workers, struct ddi_task *task);

/* Any thread. Hand over a task that nobody waits for: it is queued when all threads are busy. */
void ddi_workers_add(struct ddi_workers *workers, struct ddi_task *task);

#endif
