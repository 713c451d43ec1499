/* The event loop: order, threads, what happens inside a batch of events, and its end.
 *
 * A test that needs things to be there together holds the loop in a task until they are. */
#include "base/loop.h"

#include "check.h"
#include "counter.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MANY 50

/* A loop, and a task that holds it from hold() until `free` goes up. */
struct rig {
    struct ddi_loop *loop;
    struct ddi_task hold_task;
    struct counter held;
    struct counter free;
};

static void hold_loop(void *context)
{
    struct rig *rig = context;

    counter_up(&rig->held);
    EXPECT_TRUE(counter_reaches(&rig->free, counter_get(&rig->held)));
}

static bool rig_open(struct rig *rig)
{
    dd_error err = {0};

    (void)memset(rig, 0, sizeof(*rig));
    counter_init(&rig->held);
    counter_init(&rig->free);
    rig->hold_task = (struct ddi_task){.fn = hold_loop, .context = rig};
    EXPECT_OK(ddi_loop_open("dd-test", &rig->loop, &err));
    return rig->loop != NULL;
}

static void rig_close(struct rig *rig)
{
    ddi_loop_close(rig->loop);
    counter_fini(&rig->free);
    counter_fini(&rig->held);
}

static void hold(struct rig *rig)
{
    int before = counter_get(&rig->free);

    ddi_loop_post(rig->loop, &rig->hold_task);
    EXPECT_TRUE(counter_reaches(&rig->held, before + 1));
}

static void do_nothing(void *context)
{
    (void)context;
}

/* Until everything that is posted by now has run. */
static void sync_loop(struct rig *rig)
{
    ddi_loop_call(rig->loop, do_nothing, NULL);
}

/* What ran, in order. Loop's thread, and others after a call. */
struct trace {
    struct ddi_loop *loop;
    int at[4 * MANY];
    int len;
    bool is_elsewhere; /* something ran on another thread */
};

struct step {
    struct trace *trace;
    int number;
    int again; /* how often the task posts itself */
    struct ddi_task task;
    struct ddi_timer timer;
};

static void trace_step(void *context)
{
    struct step *step = context;
    struct trace *trace = step->trace;

    trace->is_elsewhere |= !ddi_loop_is_owner(trace->loop);
    if (trace->len < 4 * MANY) {
        trace->at[trace->len++] = step->number;
    }
    if (step->again-- > 0) {
        ddi_loop_post(trace->loop, &step->task);
    }
}

static void init_steps(struct step *steps, int n, struct trace *trace, const struct rig *rig)
{
    (void)memset(trace, 0, sizeof(*trace));
    trace->loop = rig->loop;
    for (int i = 0; i < n; i++) {
        steps[i] = (struct step){.trace = trace, .number = i};
        steps[i].task = (struct ddi_task){.fn = trace_step, .context = &steps[i]};
        steps[i].timer = (struct ddi_timer){.fn = trace_step, .context = &steps[i]};
    }
}

/* The number that the next descriptor gets: what is left open moves it. */
static int next_descriptor(void)
{
    int fd = dup(STDERR_FILENO);

    (void)close(fd);
    return fd;
}

TEST(posted_tasks_run_in_order_on_the_loops_thread)
{
    struct rig rig;
    struct trace trace;
    struct step steps[MANY];

    REQUIRE_TRUE(rig_open(&rig));
    init_steps(steps, MANY, &trace, &rig);
    EXPECT_TRUE(!ddi_loop_is_owner(rig.loop));
    for (int i = 0; i < MANY; i++) {
        ddi_loop_post(rig.loop, &steps[i].task);
    }
    sync_loop(&rig);
    EXPECT_EQ(trace.len, MANY);
    for (int i = 0; i < trace.len; i++) {
        EXPECT_EQ(trace.at[i], i);
    }
    EXPECT_TRUE(!trace.is_elsewhere);
    rig_close(&rig);
}

TEST(a_task_that_is_posted_already_runs_once)
{
    struct rig rig;
    struct trace trace;
    struct step steps[2];

    REQUIRE_TRUE(rig_open(&rig));
    init_steps(steps, 2, &trace, &rig);
    hold(&rig);
    ddi_loop_post(rig.loop, &steps[0].task);
    ddi_loop_post(rig.loop, &steps[1].task);
    ddi_loop_post(rig.loop, &steps[0].task);
    counter_up(&rig.free);
    sync_loop(&rig);
    EXPECT_EQ(trace.len, 2);
    ddi_loop_post(rig.loop, &steps[0].task); /* it has run, so it may come again */
    sync_loop(&rig);
    EXPECT_EQ(trace.len, 3);
    rig_close(&rig);
}

TEST(a_task_may_post_itself)
{
    struct rig rig;
    struct trace trace;
    struct step step;

    REQUIRE_TRUE(rig_open(&rig));
    init_steps(&step, 1, &trace, &rig);
    step.again = MANY - 1;
    ddi_loop_post(rig.loop, &step.task);
    rig_close(&rig); /* runs what is posted, and what that posts */
    EXPECT_EQ(trace.len, MANY);
}

struct nest {
    struct rig *rig;
    int level;
    int done;
};

static void call_nested(void *context)
{
    struct nest *nest = context;
    int level = nest->level++;

    EXPECT_TRUE(ddi_loop_is_owner(nest->rig->loop));
    if (level < 3) {
        ddi_loop_call(nest->rig->loop, call_nested, nest);
        EXPECT_EQ(nest->done, 3 - level);
    }
    nest->done++;
}

TEST(a_call_has_returned_when_it_is_done_also_on_the_loops_thread)
{
    struct rig rig;
    struct nest nest = {.rig = &rig};

    REQUIRE_TRUE(rig_open(&rig));
    ddi_loop_call(rig.loop, call_nested, &nest);
    EXPECT_EQ(nest.done, 4);
    rig_close(&rig);
}

struct caller {
    struct rig *rig;
    pthread_t thread;
    int *sum; /* touched on the loop's thread only: no lock */
};

static void add_one(void *context)
{
    ++*(int *)context;
}

static void *call_often(void *context)
{
    struct caller *caller = context;

    for (int i = 0; i < 500; i++) {
        ddi_loop_call(caller->rig->loop, add_one, caller->sum);
    }
    return NULL;
}

TEST(many_threads_may_call)
{
    struct rig rig;
    struct caller callers[4];
    int sum = 0;

    REQUIRE_TRUE(rig_open(&rig));
    for (int i = 0; i < 4; i++) {
        callers[i] = (struct caller){.rig = &rig, .sum = &sum};
        REQUIRE_TRUE(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(callers[i].thread, NULL);
    }
    rig_close(&rig);
    EXPECT_EQ(sum, 2000);
}

TEST(close_runs_what_is_posted_and_leaves_nothing_open)
{
    int before = next_descriptor();
    struct rig rig;
    struct trace trace;
    struct step steps[MANY];

    REQUIRE_TRUE(rig_open(&rig));
    init_steps(steps, MANY, &trace, &rig);
    hold(&rig);
    for (int i = 0; i < MANY; i++) {
        ddi_loop_post(rig.loop, &steps[i].task);
    }
    counter_up(&rig.free);
    rig_close(&rig);
    EXPECT_EQ(trace.len, MANY);
    EXPECT_EQ(next_descriptor(), before);
    ddi_loop_close(NULL);
}

static void look_at_thread(void *context)
{
    char name[16] = "";
    sigset_t blocked;

    (void)context;
    EXPECT_EQ(pthread_getname_np(pthread_self(), name, sizeof(name)), 0);
    EXPECT_EQ(strcmp(name, "dd-test"), 0);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    EXPECT_TRUE(sigismember(&blocked, SIGINT) == 1 && sigismember(&blocked, SIGTERM) == 1);
}

TEST(the_thread_has_its_name_and_takes_no_signals)
{
    struct rig rig;
    sigset_t before;
    sigset_t after;

    (void)pthread_sigmask(SIG_SETMASK, NULL, &before);
    REQUIRE_TRUE(rig_open(&rig));
    (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
    EXPECT_EQ(sigismember(&after, SIGINT), sigismember(&before, SIGINT));
    ddi_loop_call(rig.loop, look_at_thread, NULL);
    rig_close(&rig);
}

/* ---- Timers ---------------------------------------------------------------------------------- */

/* Timers that note the order in which they fire, all set within one call. */
struct clockwork {
    struct rig *rig;
    struct trace trace;
    struct step steps[6];
    struct ddi_timer last; /* fires behind all others */
    struct counter done;
};

static void on_last(void *context)
{
    struct clockwork *work = context;

    EXPECT_TRUE(ddi_clock_ns() >= work->last.deadline_ns);
    counter_up(&work->done);
}

static void set_timers(void *context)
{
    struct clockwork *work = context;
    const unsigned after_ms[6] = {9, 3, 6, 3, 0, 5};
    uint64_t now = ddi_clock_ns();

    for (int i = 0; i < 6; i++) {
        ddi_loop_set_timer(work->rig->loop, &work->steps[i].timer,
                           now + after_ms[i] * DDI_NS_PER_MS);
    }
    work->last = (struct ddi_timer){.fn = on_last, .context = work};
    ddi_loop_set_timer(work->rig->loop, &work->last, now + 20 * DDI_NS_PER_MS);
    ddi_loop_set_timer(work->rig->loop, &work->steps[5].timer, now + 12 * DDI_NS_PER_MS);
    ddi_loop_clear_timer(work->rig->loop, &work->steps[2].timer);
    ddi_loop_clear_timer(work->rig->loop, &work->steps[2].timer); /* inactive is fine */
}

TEST(timers_fire_once_in_the_order_of_their_deadlines)
{
    struct rig rig;
    struct clockwork work = {.rig = &rig};
    const int wanted[] = {4, 1, 3, 0, 5}; /* 5 was moved, 2 was cleared, 1 and 3 are as set */

    REQUIRE_TRUE(rig_open(&rig));
    counter_init(&work.done);
    init_steps(work.steps, 6, &work.trace, &rig);
    ddi_loop_call(rig.loop, set_timers, &work);
    EXPECT_TRUE(counter_reaches(&work.done, 1));
    rig_close(&rig);
    EXPECT_EQ(work.trace.len, 5);
    EXPECT_EQ(memcmp(work.trace.at, wanted, sizeof(wanted)), 0);
    EXPECT_TRUE(!work.trace.is_elsewhere);
    EXPECT_TRUE(!work.last.is_active && !work.steps[0].timer.is_active);
    EXPECT_EQ(work.done.value, 1);
    counter_fini(&work.done);
}

/* A timer that clears another one, which is due as well, and sets itself again. */
struct ticker {
    struct rig *rig;
    struct ddi_timer timer;
    struct step other;
    struct trace trace;
    struct counter ticks;
};

static void tick(void *context)
{
    struct ticker *ticker = context;

    ddi_loop_clear_timer(ticker->rig->loop, &ticker->other.timer);
    if (counter_get(&ticker->ticks) < 2) {
        ddi_loop_set_timer(ticker->rig->loop, &ticker->timer, ddi_clock_ns());
    }
    counter_up(&ticker->ticks);
}

static void start_ticker(void *context)
{
    struct ticker *ticker = context;

    ticker->timer = (struct ddi_timer){.fn = tick, .context = ticker};
    ddi_loop_set_timer(ticker->rig->loop, &ticker->timer, 0);
    ddi_loop_set_timer(ticker->rig->loop, &ticker->other.timer, 0);
}

TEST(a_timer_may_set_itself_and_clear_others)
{
    struct rig rig;
    struct ticker ticker = {.rig = &rig};

    REQUIRE_TRUE(rig_open(&rig));
    counter_init(&ticker.ticks);
    init_steps(&ticker.other, 1, &ticker.trace, &rig);
    ddi_loop_call(rig.loop, start_ticker, &ticker);
    EXPECT_TRUE(counter_reaches(&ticker.ticks, 3));
    rig_close(&rig);
    EXPECT_EQ(ticker.ticks.value, 3);
    EXPECT_EQ(ticker.trace.len, 0);
    counter_fini(&ticker.ticks);
}

static void set_far_timers(void *context)
{
    struct step *steps = context;

    ddi_loop_set_timer(steps[0].trace->loop, &steps[0].timer, DDI_NEVER);
    ddi_loop_set_timer(steps[0].trace->loop, &steps[1].timer, ddi_deadline_ns(UINT32_MAX));
}

TEST(timers_that_are_not_due_do_not_keep_the_loop_open)
{
    struct rig rig;
    struct trace trace;
    struct step steps[2];

    REQUIRE_TRUE(rig_open(&rig));
    init_steps(steps, 2, &trace, &rig);
    ddi_loop_call(rig.loop, set_far_timers, steps);
    rig_close(&rig);
    EXPECT_EQ(trace.len, 0);
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

/* A socket that is watched, and its other end. `friend` is unwatched and freed by our callback. */
struct pipe {
    struct rig *rig;
    struct ddi_watch watch;
    int other_fd;
    struct pipe **friend;
    struct counter *events;
    atomic_uint seen; /* relaxed: what it says is known to have happened */
    dd_status status;
    dd_error err;
};

static void free_pipe(struct pipe *pipe)
{
    ddi_loop_unwatch(pipe->rig->loop, &pipe->watch);
    (void)close(pipe->watch.fd);
    (void)close(pipe->other_fd);
    free(pipe);
}

static void on_pipe(void *context, uint32_t events)
{
    struct pipe *pipe = context;
    char byte;

    EXPECT_TRUE(ddi_loop_is_owner(pipe->rig->loop));
    (void)atomic_fetch_or_explicit(&pipe->seen, events, memory_order_relaxed);
    if ((events & EPOLLIN) != 0) {
        EXPECT_EQ(read(pipe->watch.fd, &byte, 1), 1);
    }
    if ((events & EPOLLOUT) != 0) {
        ddi_loop_rewatch(pipe->rig->loop, &pipe->watch, EPOLLIN);
    }
    if (pipe->friend != NULL && *pipe->friend != NULL) {
        struct pipe *friend = *pipe->friend;

        *pipe->friend = NULL;
        friend->friend = NULL;
        free_pipe(friend);
    }
    counter_up(pipe->events);
}

static void watch_pipe(void *context)
{
    struct pipe *pipe = context;

    pipe->status = ddi_loop_watch(pipe->rig->loop, &pipe->watch, EPOLLIN, &pipe->err);
}

static struct pipe *open_pipe(struct rig *rig, struct counter *events)
{
    struct pipe *pipe = calloc(1, sizeof(*pipe));
    int fds[2];

    if (pipe == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        abort();
    }
    *pipe = (struct pipe){.rig = rig, .other_fd = fds[1], .events = events};
    pipe->watch = (struct ddi_watch){.fd = fds[0], .fn = on_pipe, .context = pipe};
    ddi_loop_call(rig->loop, watch_pipe, pipe);
    EXPECT_OK(pipe->status);
    return pipe;
}

static void send_byte(const struct pipe *pipe)
{
    EXPECT_EQ(write(pipe->other_fd, "x", 1), 1);
}

static void watch_for_room(void *context)
{
    struct pipe *pipe = context;

    ddi_loop_rewatch(pipe->rig->loop, &pipe->watch, EPOLLIN | EPOLLOUT);
}

static void free_on_loop(void *context)
{
    free_pipe(context);
}

TEST(a_watch_hears_what_it_asked_for)
{
    struct rig rig;
    struct counter events;
    struct pipe *pipe;

    REQUIRE_TRUE(rig_open(&rig));
    counter_init(&events);
    pipe = open_pipe(&rig, &events);
    EXPECT_TRUE(pipe->watch.is_active);
    send_byte(pipe);
    EXPECT_TRUE(counter_reaches(&events, 1));
    sync_loop(&rig);
    EXPECT_EQ(atomic_load_explicit(&pipe->seen, memory_order_relaxed), EPOLLIN);
    ddi_loop_call(rig.loop, watch_for_room, pipe);
    EXPECT_TRUE(counter_reaches(&events, 2));
    sync_loop(&rig);
    EXPECT_EQ(atomic_load_explicit(&pipe->seen, memory_order_relaxed), EPOLLIN | EPOLLOUT);
    send_byte(pipe);
    EXPECT_TRUE(counter_reaches(&events, 3));
    sync_loop(&rig);
    EXPECT_EQ(counter_get(&events), 3); /* room is no news any more */
    ddi_loop_call(rig.loop, free_on_loop, pipe);
    rig_close(&rig);
    counter_fini(&events);
}

TEST(an_unwatch_inside_a_batch_takes_its_event_back)
{
    struct rig rig;
    struct counter events;
    struct pipe *pair[2];

    REQUIRE_TRUE(rig_open(&rig));
    counter_init(&events);
    for (int round = 0; round < MANY; round++) {
        int before = counter_get(&events);

        pair[0] = open_pipe(&rig, &events);
        pair[1] = open_pipe(&rig, &events);
        pair[0]->friend = &pair[1];
        pair[1]->friend = &pair[0];
        hold(&rig);
        send_byte(pair[round % 2]); /* both are ready when the loop looks again */
        send_byte(pair[1 - round % 2]);
        counter_up(&rig.free);
        EXPECT_TRUE(counter_reaches(&events, before + 1));
        sync_loop(&rig);
        EXPECT_EQ(counter_get(&events), before + 1);
        EXPECT_TRUE((pair[0] == NULL) != (pair[1] == NULL));
        ddi_loop_call(rig.loop, free_on_loop, pair[0] != NULL ? pair[0] : pair[1]);
    }
    rig_close(&rig);
    counter_fini(&events);
}

static void unwatch_twice(void *context)
{
    struct pipe *pipe = context;

    ddi_loop_unwatch(pipe->rig->loop, &pipe->watch);
    EXPECT_TRUE(!pipe->watch.is_active);
    ddi_loop_unwatch(pipe->rig->loop, &pipe->watch);
}

TEST(what_is_not_watched_is_not_heard)
{
    struct rig rig;
    struct counter events;
    struct pipe *pipe;
    struct pipe bad = {.rig = &rig, .watch = {.fd = -1, .fn = on_pipe}};

    REQUIRE_TRUE(rig_open(&rig));
    counter_init(&events);
    pipe = open_pipe(&rig, &events);
    ddi_loop_call(rig.loop, unwatch_twice, pipe);
    send_byte(pipe);
    sync_loop(&rig);
    EXPECT_EQ(counter_get(&events), 0);
    ddi_loop_call(rig.loop, watch_pipe, pipe); /* the byte is still there */
    EXPECT_TRUE(counter_reaches(&events, 1));
    ddi_loop_call(rig.loop, free_on_loop, pipe);
    ddi_loop_call(rig.loop, watch_pipe, &bad);
    EXPECT_STATUS(bad.status, DD_FAILED);
    EXPECT_CONTAINS(bad.err.text, "cannot watch descriptor -1: ");
    EXPECT_TRUE(!bad.watch.is_active);
    rig_close(&rig);
    counter_fini(&events);
}

CHECK_MAIN(RUN(posted_tasks_run_in_order_on_the_loops_thread);
           RUN(a_task_that_is_posted_already_runs_once); RUN(a_task_may_post_itself);
           RUN(a_call_has_returned_when_it_is_done_also_on_the_loops_thread);
           RUN(many_threads_may_call); RUN(close_runs_what_is_posted_and_leaves_nothing_open);
           RUN(the_thread_has_its_name_and_takes_no_signals);
           RUN(timers_fire_once_in_the_order_of_their_deadlines);
           RUN(a_timer_may_set_itself_and_clear_others);
           RUN(timers_that_are_not_due_do_not_keep_the_loop_open);
           RUN(a_watch_hears_what_it_asked_for);
           RUN(an_unwatch_inside_a_batch_takes_its_event_back);
           RUN(what_is_not_watched_is_not_heard);)
