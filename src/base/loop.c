/* An event loop on epoll. */
#include "base/loop.h"

#include "base/clock.h"
#include "base/mutex.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BATCH 64
#define STACK_BYTES (256 * 1024)

struct ddi_loop {
    pthread_t thread;
    bool has_thread;
    int epoll_fd;
    int wake_fd;
    struct ddi_mutex mu;         /* rank DDI_RANK_LOOP */
    struct ddi_task *first_task; /* guarded by mu */
    struct ddi_task *last_task;  /* guarded by mu */
    bool is_closing;             /* guarded by mu */
    /* Loop thread only. */
    struct ddi_timer *timers; /* by deadline */
    struct epoll_event events[BATCH];
    int event_count;
    int event_at;
};

static void run_timers(struct ddi_loop *loop)
{
    uint64_t now = ddi_clock_ns();

    while (loop->timers != NULL && loop->timers->deadline_ns <= now) {
        struct ddi_timer *timer = loop->timers;

        loop->timers = timer->next;
        timer->is_active = false;
        timer->fn(timer->context);
    }
}

/* Returns true when the loop is to end and nothing is left to run. */
static bool run_tasks(struct ddi_loop *loop)
{
    for (;;) {
        struct ddi_task *task;
        bool is_closing;

        ddi_mutex_lock(&loop->mu);
        task = loop->first_task;
        is_closing = loop->is_closing;
        if (task != NULL) {
            loop->first_task = task->next;
            if (loop->first_task == NULL) {
                loop->last_task = NULL;
            }
            task->is_posted = false;
        }
        ddi_mutex_unlock(&loop->mu);
        if (task == NULL) {
            return is_closing;
        }
        task->fn(task->context);
    }
}

static void *run_loop(void *context)
{
    struct ddi_loop *loop = context;

    for (;;) {
        uint64_t count;
        int wait_ms = loop->timers == NULL ? -1 : ddi_left_ms(loop->timers->deadline_ns);
        int n = epoll_wait(loop->epoll_fd, loop->events, BATCH, wait_ms);

        loop->event_count = n < 0 ? 0 : n;
        for (loop->event_at = 0; loop->event_at < loop->event_count; loop->event_at++) {
            struct epoll_event *event = &loop->events[loop->event_at];
            struct ddi_watch *watch = event->data.ptr;

            if (event->data.ptr == loop) { /* the door */
                (void)!read(loop->wake_fd, &count, sizeof(count));
            } else if (watch != NULL) { /* NULL: went away in this batch */
                watch->fn(watch->context, event->events);
            }
        }
        loop->event_count = 0;
        run_timers(loop);
        if (run_tasks(loop)) {
            return NULL;
        }
    }
}

static dd_status start_thread(struct ddi_loop *loop, const char *name, dd_error *err)
{
    pthread_attr_t attr;
    sigset_t all;
    sigset_t before;
    int rc;

    if (pthread_attr_init(&attr) != 0) {
        return ddi_fail(err, DD_NO_MEMORY, "thread %s", name);
    }
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* Signals belong to the application's threads. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&loop->thread, &attr, run_loop, loop);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    if (rc != 0) {
        return ddi_fail_system(err, DD_NO_MEMORY, rc, "cannot start thread %s", name);
    }
    loop->has_thread = true;
    (void)pthread_setname_np(loop->thread, name);
    return DD_OK;
}

dd_status ddi_loop_open(const char *name, struct ddi_loop **out, dd_error *err)
{
    struct epoll_event door = {.events = EPOLLIN};
    dd_status st;
    struct ddi_loop *loop = calloc(1, sizeof(*loop));

    if (loop == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "event loop %s", name);
    }
    ddi_mutex_init(&loop->mu, DDI_RANK_LOOP);
    door.data.ptr = loop; /* tells the door from watches */
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->epoll_fd < 0 || loop->wake_fd < 0 ||
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &door) != 0) {
        st = ddi_fail_system(err, DD_FAILED, errno, "event loop %s", name);
        goto fail;
    }
    st = start_thread(loop, name, err);
    if (st != DD_OK) {
        goto fail;
    }
    *out = loop;
    return DD_OK;

fail:
    ddi_loop_close(loop);
    return st;
}

static void wake(struct ddi_loop *loop)
{
    const uint64_t one = 1;

    /* Fails only when the counter is full, and then the loop is awake anyway. */
    (void)!write(loop->wake_fd, &one, sizeof(one));
}

void ddi_loop_close(struct ddi_loop *loop)
{
    if (loop == NULL) {
        return;
    }
    if (loop->has_thread) {
        ddi_mutex_lock(&loop->mu);
        loop->is_closing = true;
        ddi_mutex_unlock(&loop->mu);
        wake(loop);
        (void)pthread_join(loop->thread, NULL);
    }
    if (loop->epoll_fd >= 0) {
        (void)close(loop->epoll_fd);
    }
    if (loop->wake_fd >= 0) {
        (void)close(loop->wake_fd);
    }
    ddi_mutex_fini(&loop->mu);
    free(loop);
}

bool ddi_loop_is_owner(const struct ddi_loop *loop)
{
    return pthread_equal(pthread_self(), loop->thread) != 0;
}

void ddi_loop_post(struct ddi_loop *loop, struct ddi_task *task)
{
    ddi_mutex_lock(&loop->mu);
    if (!task->is_posted) {
        task->is_posted = true;
        task->next = NULL;
        if (loop->last_task == NULL) {
            loop->first_task = task;
        } else {
            loop->last_task->next = task;
        }
        loop->last_task = task;
    }
    ddi_mutex_unlock(&loop->mu);
    wake(loop);
}

struct call {
    ddi_task_fn fn;
    void *context;
    struct ddi_mutex mu; /* rank DDI_RANK_LOOP */
    struct ddi_cond done;
    bool is_done; /* guarded by mu */
};

static void run_call(void *context)
{
    struct call *call = context;

    call->fn(call->context);
    ddi_mutex_lock(&call->mu);
    call->is_done = true;
    ddi_cond_signal(&call->done);
    ddi_mutex_unlock(&call->mu);
}

void ddi_loop_call(struct ddi_loop *loop, ddi_task_fn fn, void *context)
{
    struct call call = {.fn = fn, .context = context};
    struct ddi_task task = {.fn = run_call, .context = &call};

    if (ddi_loop_is_owner(loop)) {
        fn(context);
        return;
    }
    ddi_mutex_init(&call.mu, DDI_RANK_LOOP);
    ddi_cond_init(&call.done);
    ddi_loop_post(loop, &task);
    ddi_mutex_lock(&call.mu);
    while (!call.is_done) {
        (void)ddi_cond_wait_until(&call.done, &call.mu, DDI_NEVER);
    }
    ddi_mutex_unlock(&call.mu);
    ddi_cond_fini(&call.done);
    ddi_mutex_fini(&call.mu);
}

dd_status ddi_loop_watch(struct ddi_loop *loop, struct ddi_watch *watch, uint32_t events,
                         dd_error *err)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, watch->fd, &event) != 0) {
        return ddi_fail_system(err, errno == ENOMEM ? DD_NO_MEMORY : DD_FAILED, errno,
                               "cannot watch descriptor %d", watch->fd);
    }
    watch->is_active = true;
    return DD_OK;
}

void ddi_loop_rewatch(struct ddi_loop *loop, struct ddi_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event);
}

void ddi_loop_unwatch(struct ddi_loop *loop, struct ddi_watch *watch)
{
    if (!watch->is_active) {
        return;
    }
    (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->is_active = false;
    /* Events of this watch that are still in the current batch must not reach freed memory. */
    for (int i = loop->event_at + 1; i < loop->event_count; i++) {
        if (loop->events[i].data.ptr == watch) {
            loop->events[i].data.ptr = NULL;
        }
    }
}

void ddi_loop_set_timer(struct ddi_loop *loop, struct ddi_timer *timer, uint64_t deadline_ns)
{
    struct ddi_timer **at = &loop->timers;

    ddi_loop_clear_timer(loop, timer);
    timer->deadline_ns = deadline_ns;
    while (*at != NULL && (*at)->deadline_ns <= deadline_ns) {
        at = &(*at)->next;
    }
    timer->next = *at;
    *at = timer;
    timer->is_active = true;
}

void ddi_loop_clear_timer(struct ddi_loop *loop, struct ddi_timer *timer)
{
    struct ddi_timer **at = &loop->timers;

    if (!timer->is_active) {
        return;
    }
    while (*at != timer) {
        at = &(*at)->next;
    }
    *at = timer->next;
    timer->is_active = false;
}
