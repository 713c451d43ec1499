/* An event loop: one thread with epoll, timers, and a door for other threads.
 *
 * Watches and timers are embedded in their owner and touched by the loop's thread only. Callbacks
 * run on that thread, no lock held, and may do everything but close the loop. */
#ifndef DDI_LOOP_H
#define DDI_LOOP_H

#include "base/status.h"

#include <stdbool.h>

struct ddi_loop;

typedef void (*ddi_watch_fn)(void *context, uint32_t events); /* EPOLLIN, EPOLLOUT, EPOLLHUP ... */
typedef void (*ddi_task_fn)(void *context);

struct ddi_watch {
    int fd;
    ddi_watch_fn fn;
    void *context;
    bool is_active;
};

struct ddi_timer {
    uint64_t deadline_ns;
    ddi_task_fn fn;
    void *context;
    struct ddi_timer *next;
    bool is_active;
};

/* A task for another thread to hand over; embedded in its owner, in one loop at a time. */
struct ddi_task {
    ddi_task_fn fn;
    void *context;
    struct ddi_task *next;
    bool is_posted; /* guarded by the loop's lock */
};

/* Open a loop and its thread, named `name` (15 characters at most). DD_NO_MEMORY, DD_FAILED. */
dd_status ddi_loop_open(const char *name, struct ddi_loop **out, dd_error *err);

/* Run what is posted, end the thread and free the loop. Not from the loop's own thread. NULL ok. */
void ddi_loop_close(struct ddi_loop *loop);

bool ddi_loop_is_owner(const struct ddi_loop *loop);

/* Any thread. Post a task; one that is posted already is not posted twice. Never fails. */
void ddi_loop_post(struct ddi_loop *loop, struct ddi_task *task);

/* Any thread. Run fn(context) on the loop's thread and wait for it. On the loop's own thread: a
 * plain call. */
void ddi_loop_call(struct ddi_loop *loop, ddi_task_fn fn, void *context);

/* Loop thread only. Watch a descriptor (watch->fd, fn, context are set by the caller, who keeps
 * `watch` until unwatch). DD_FAILED, DD_NO_MEMORY. */
dd_status ddi_loop_watch(struct ddi_loop *loop, struct ddi_watch *watch, uint32_t events,
                         dd_error *err);
void ddi_loop_rewatch(struct ddi_loop *loop, struct ddi_watch *watch, uint32_t events);
void ddi_loop_unwatch(struct ddi_loop *loop, struct ddi_watch *watch); /* inactive is fine */

/* Loop thread only. Fire once at timer->deadline_ns; setting an active timer moves it. */
void ddi_loop_set_timer(struct ddi_loop *loop, struct ddi_timer *timer, uint64_t deadline_ns);
void ddi_loop_clear_timer(struct ddi_loop *loop, struct ddi_timer *timer);

#endif
