/* Worker threads: who takes a task, who refuses it, and that nothing is left behind. */
#include "base/workers.h"

#include "check.h"
#include "counter.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#define MANY 100

/* A task that runs until it is let go. */
struct blocker {
    struct ddi_task task;
    struct counter *begun;
    struct counter *free;
};

static void block(void *context)
{
    struct blocker *blocker = context;

    counter_up(blocker->begun);
    EXPECT_TRUE(counter_reaches(blocker->free, 1));
}

struct rig {
    struct ddi_workers *workers;
    struct blocker blockers[4];
    struct counter begun; /* blockers that run */
    struct counter free;
    struct counter done; /* counter_up tasks that ran */
};

static bool rig_open(struct rig *rig, uint32_t max_threads)
{
    dd_error err = {0};

    (void)memset(rig, 0, sizeof(*rig));
    counter_init(&rig->begun);
    counter_init(&rig->free);
    counter_init(&rig->done);
    for (int i = 0; i < 4; i++) {
        rig->blockers[i] = (struct blocker){.begun = &rig->begun, .free = &rig->free};
        rig->blockers[i].task = (struct ddi_task){.fn = block, .context = &rig->blockers[i]};
    }
    EXPECT_OK(ddi_workers_open(max_threads, &rig->workers, &err));
    return rig->workers != NULL;
}

static void rig_close(struct rig *rig)
{
    ddi_workers_close(rig->workers);
    counter_fini(&rig->done);
    counter_fini(&rig->free);
    counter_fini(&rig->begun);
}

/* Keep `n` threads busy. */
static void occupy(struct rig *rig, int n)
{
    for (int i = 0; i < n; i++) {
        EXPECT_TRUE(ddi_workers_post(rig->workers, &rig->blockers[i].task));
    }
    EXPECT_TRUE(counter_reaches(&rig->begun, n));
}

static struct ddi_task count_task(struct rig *rig)
{
    return (struct ddi_task){.fn = counter_up, .context = &rig->done};
}

TEST(a_posted_task_runs)
{
    struct rig rig;
    struct ddi_task task;

    REQUIRE_TRUE(rig_open(&rig, 1));
    task = count_task(&rig);
    EXPECT_TRUE(ddi_workers_post(rig.workers, &task));
    EXPECT_TRUE(counter_reaches(&rig.done, 1));
    rig_close(&rig);
}

/* Each waits until all of them run. */
TEST(tasks_run_side_by_side)
{
    struct rig rig;

    REQUIRE_TRUE(rig_open(&rig, 4));
    occupy(&rig, 4);
    counter_up(&rig.free);
    rig_close(&rig);
}

TEST(a_post_is_refused_while_all_threads_are_busy)
{
    struct rig rig;
    struct ddi_task refused;
    struct ddi_task taken;
    uint64_t deadline_ns = ddi_deadline_ns(COUNTER_LIMIT_MS);

    REQUIRE_TRUE(rig_open(&rig, 2));
    refused = taken = count_task(&rig);
    occupy(&rig, 2);
    for (int i = 0; i < MANY; i++) {
        EXPECT_TRUE(!ddi_workers_post(rig.workers, &refused));
    }
    counter_up(&rig.free);
    while (!ddi_workers_post(rig.workers, &taken) && ddi_clock_ns() < deadline_ns) {
        (void)sched_yield(); /* a thread takes a moment to be free */
    }
    EXPECT_TRUE(counter_reaches(&rig.done, 1));
    ddi_workers_close(rig.workers);
    rig.workers = NULL;
    EXPECT_EQ(rig.done.value, 1); /* what was refused did not run */
    rig_close(&rig);
}

TEST(a_thread_that_has_work_waiting_is_not_free)
{
    struct rig rig;
    struct ddi_task added;
    struct ddi_task posted;

    REQUIRE_TRUE(rig_open(&rig, 1));
    added = posted = count_task(&rig);
    occupy(&rig, 1);
    ddi_workers_add(rig.workers, &added);
    EXPECT_TRUE(!ddi_workers_post(rig.workers, &posted));
    EXPECT_EQ(counter_get(&rig.done), 0);
    counter_up(&rig.free);
    EXPECT_TRUE(counter_reaches(&rig.done, 1));
    rig_close(&rig);
}

TEST(without_threads_everything_is_refused)
{
    struct rig rig;
    struct ddi_task task;

    REQUIRE_TRUE(rig_open(&rig, 0));
    task = count_task(&rig);
    EXPECT_TRUE(!ddi_workers_post(rig.workers, &task));
    rig_close(&rig);
    ddi_workers_close(NULL);
}

/* Tasks that note the order in which they run. */
struct step {
    struct ddi_task task;
    int number;
    int *next; /* touched by the one worker only */
};

static void expect_turn(void *context)
{
    const struct step *step = context;

    EXPECT_EQ(step->number, *step->next);
    ++*step->next;
}

TEST(added_tasks_wait_for_their_turn)
{
    struct rig rig;
    struct step steps[MANY];
    int next = 0;

    REQUIRE_TRUE(rig_open(&rig, 1));
    occupy(&rig, 1);
    for (int i = 0; i < MANY; i++) {
        steps[i] = (struct step){.number = i, .next = &next};
        steps[i].task = (struct ddi_task){.fn = expect_turn, .context = &steps[i]};
        ddi_workers_add(rig.workers, &steps[i].task);
    }
    counter_up(&rig.free);
    rig_close(&rig); /* runs what is queued */
    EXPECT_EQ(next, MANY);
}

/* A task that adds itself again. */
struct chain {
    struct rig *rig;
    struct ddi_task task;
    int left;
};

static void run_chain(void *context)
{
    struct chain *chain = context;

    counter_up(&chain->rig->done);
    if (--chain->left > 0) {
        ddi_workers_add(chain->rig->workers, &chain->task);
    }
}

/* Adds three chains, for which there is no thread yet, when it is let go. */
static void add_chains(void *context)
{
    struct chain *chains = context;

    EXPECT_TRUE(counter_reaches(&chains->rig->free, 1));
    for (int i = 1; i < 4; i++) {
        ddi_workers_add(chains->rig->workers, &chains[i].task);
    }
}

TEST(close_runs_also_what_tasks_add)
{
    struct rig rig;
    struct chain chains[4];

    REQUIRE_TRUE(rig_open(&rig, 4));
    for (int i = 0; i < 4; i++) {
        chains[i] = (struct chain){.rig = &rig, .left = MANY};
        chains[i].task = (struct ddi_task){.fn = run_chain, .context = &chains[i]};
    }
    chains[0].task.fn = add_chains;
    ddi_workers_add(rig.workers, &chains[0].task);
    counter_up(&rig.free);
    ddi_workers_close(rig.workers); /* has begun when the chains are added, or begins then */
    rig.workers = NULL;
    EXPECT_EQ(rig.done.value, 3 * MANY);
    rig_close(&rig);
}

static void look_at_thread(void *context)
{
    struct counter *done = context;
    sigset_t blocked;

    (void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    EXPECT_TRUE(sigismember(&blocked, SIGINT) == 1 && sigismember(&blocked, SIGTERM) == 1);
    counter_up(done);
}

TEST(workers_take_no_signals)
{
    struct rig rig;
    struct ddi_task task;
    sigset_t before;
    sigset_t after;

    REQUIRE_TRUE(rig_open(&rig, 1));
    task = (struct ddi_task){.fn = look_at_thread, .context = &rig.done};
    (void)pthread_sigmask(SIG_SETMASK, NULL, &before);
    EXPECT_TRUE(ddi_workers_post(rig.workers, &task));
    (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
    EXPECT_EQ(sigismember(&after, SIGINT), sigismember(&before, SIGINT));
    EXPECT_TRUE(counter_reaches(&rig.done, 1));
    rig_close(&rig);
}

/* Someone who posts what is taken, adds the rest, and counts. */
struct giver {
    struct rig *rig;
    pthread_t thread;
    struct ddi_task tasks[10 * MANY];
};

static void *give(void *context)
{
    struct giver *giver = context;

    for (int i = 0; i < 10 * MANY; i++) {
        giver->tasks[i] = count_task(giver->rig);
        if (i % 2 == 0 || !ddi_workers_post(giver->rig->workers, &giver->tasks[i])) {
            ddi_workers_add(giver->rig->workers, &giver->tasks[i]);
        }
    }
    return NULL;
}

TEST(each_task_runs_once_whoever_gives_it)
{
    struct rig rig;
    static struct giver givers[4];

    REQUIRE_TRUE(rig_open(&rig, 3));
    for (int i = 0; i < 4; i++) {
        givers[i].rig = &rig;
        REQUIRE_TRUE(pthread_create(&givers[i].thread, NULL, give, &givers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(givers[i].thread, NULL);
    }
    ddi_workers_close(rig.workers);
    rig.workers = NULL;
    EXPECT_EQ(rig.done.value, 4 * 10 * MANY);
    rig_close(&rig);
}

CHECK_MAIN(RUN(a_posted_task_runs); RUN(tasks_run_side_by_side);
           RUN(a_post_is_refused_while_all_threads_are_busy);
           RUN(a_thread_that_has_work_waiting_is_not_free);
           RUN(without_threads_everything_is_refused); RUN(added_tasks_wait_for_their_turn);
           RUN(close_runs_also_what_tasks_add); RUN(workers_take_no_signals);
           RUN(each_task_runs_once_whoever_gives_it);)
