/* The pool and the memory behind it: where pieces lie, what is counted, what happens when the
 * system refuses. Some tests put a device in between that counts and refuses. */
#include "check.h"

#include "base/clock.h"
#include "store/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define ALL_GONE 3

/* What the device in between was asked for. Operations have no context, so it stands here. */
static struct {
    int reserved;
    int released;
    int commits;
    int refused;           /* how many of the next commits fail */
    uint64_t most;         /* largest region that can be had */
    struct ddi_pool *pool; /* not NULL: the next commit takes a piece from here, then fails */
    void *taken;
} device;

static dd_status counted_reserve(uint64_t bytes, struct ddi_region *out, dd_error *err)
{
    if (bytes > device.most) {
        return ddi_fail(err, DD_NO_MEMORY, "no address space");
    }
    device.reserved++;
    return ddi_cpu_device.reserve(bytes, out, err);
}

static dd_status counted_commit(const struct ddi_region *region, uint64_t offset, uint64_t len,
                                dd_error *err)
{
    struct ddi_pool *pool = device.pool;

    device.commits++;
    if (pool != NULL) {
        device.pool = NULL;
        EXPECT_OK(ddi_pool_alloc(pool, 2 * MIB, &device.taken, NULL));
        return ddi_fail(err, DD_NO_MEMORY, "commit refused");
    }
    if (device.refused > 0) {
        device.refused--;
        return ddi_fail(err, DD_NO_MEMORY, "commit refused");
    }
    return ddi_cpu_device.commit(region, offset, len, err);
}

static void counted_release(struct ddi_region *region)
{
    device.released++;
    ddi_cpu_device.release(region);
}

static uint64_t small_memory(void)
{
    return 1000 * MIB;
}

static struct ddi_pool *make_pool(uint64_t limit, bool clear)
{
    static const struct ddi_device_ops ops = {.name = "counted",
                                              .reserve = counted_reserve,
                                              .commit = counted_commit,
                                              .release = counted_release,
                                              .memory = small_memory};
    struct ddi_pool_config config = {
        .device = &ops, .limit_bytes = limit, .limit_fraction = 0.5, .clear = clear};
    struct ddi_pool *pool = NULL;

    (void)memset(&device, 0, sizeof(device));
    device.most = UINT64_MAX;
    EXPECT_OK(ddi_pool_create(&config, &pool, NULL));
    return pool;
}

static uint8_t *take(struct ddi_pool *pool, uint64_t bytes)
{
    void *addr = NULL;

    EXPECT_OK(ddi_pool_alloc(pool, bytes, &addr, NULL));
    return addr;
}

static struct ddi_pool_stats stats_of(struct ddi_pool *pool)
{
    struct ddi_pool_stats stats;

    ddi_pool_stats(pool, &stats);
    return stats;
}

static uint64_t count_not_zero(const uint8_t *data, uint64_t bytes)
{
    uint64_t count = 0;

    for (uint64_t i = 0; i < bytes; i++) {
        count += data[i] != 0;
    }
    return count;
}

TEST(pieces_are_aligned_and_their_sizes_are_rounded_to_512)
{
    struct ddi_pool *pool = make_pool(0, false);
    uint8_t *small = take(pool, 1);
    uint8_t *large = take(pool, 2 * MIB + 1);
    uint8_t *other = take(pool, 513);
    uint8_t *exact = take(pool, 2 * MIB);

    EXPECT_EQ((uintptr_t)small % 512, 0);
    EXPECT_EQ((uintptr_t)other % 512, 0);
    EXPECT_EQ((uintptr_t)large % (2 * MIB), 0);
    EXPECT_EQ((uintptr_t)exact % (2 * MIB), 0);
    ddi_pool_free(pool, exact);
    EXPECT_EQ(stats_of(pool).used_bytes, 512 + 2 * MIB + 512 + 1024);
    ddi_pool_free(pool, large);
    EXPECT_EQ(stats_of(pool).used_bytes, 512 + 1024);
    EXPECT_EQ(stats_of(pool).peak_bytes, 512 + 2 * MIB + 512 + 1024 + 2 * MIB);
    ddi_pool_free(pool, small);
    ddi_pool_free(pool, other);
    ddi_pool_free(pool, NULL);
    EXPECT_EQ(stats_of(pool).used_bytes, 0);
    ddi_pool_put(pool);
}

TEST(gaps_before_large_pieces_are_used_by_small_ones)
{
    struct ddi_pool *pool = make_pool(0, false);
    uint8_t *first = take(pool, 512);
    uint8_t *large = take(pool, 4 * MIB);
    uint8_t *small = take(pool, MIB);

    EXPECT_EQ(large - first, 2 * MIB);
    EXPECT_TRUE(small > first && small + MIB <= large);
    ddi_pool_free(pool, first);
    ddi_pool_free(pool, large);
    ddi_pool_free(pool, small);
    ddi_pool_put(pool);
}

TEST(the_limit_can_be_used_up_in_spite_of_alignment)
{
    const uint64_t bytes = 2 * MIB + 512; /* each leaves a gap of nearly its size */
    struct ddi_pool *pool = make_pool(64 * bytes, false);
    void *pieces[64] = {NULL};
    void *more = NULL;
    dd_error err = {0};

    for (int i = 0; i < 64; i++) {
        pieces[i] = take(pool, bytes);
    }
    EXPECT_EQ(stats_of(pool).used_bytes, 64 * bytes);
    EXPECT_EQ(device.reserved, 1);
    EXPECT_STATUS(ddi_pool_alloc(pool, 1000, &more, &err), DD_NO_MEMORY);
    EXPECT_CONTAINS(err.text, "1024 bytes wanted");
    EXPECT_CONTAINS(err.text, "134250496 in use of at most 134250496");
    EXPECT_TRUE(more == NULL);
    for (int i = 0; i < 64; i++) {
        ddi_pool_free(pool, pieces[i]);
    }
    ddi_pool_put(pool);
}

TEST(many_pieces_are_refused_at_once_when_they_cannot_all_be_had)
{
    struct ddi_pool *pool = make_pool(10 * MIB, false);
    uint8_t *piece = take(pool, MIB);
    dd_error err = {0};

    EXPECT_OK(ddi_pool_check(pool, MIB, 9, &err));
    EXPECT_STATUS(ddi_pool_check(pool, MIB, 10, &err), DD_NO_MEMORY);
    EXPECT_CONTAINS(err.text, "10485760 bytes wanted, 1048576 in use of at most 10485760");
    EXPECT_STATUS(ddi_pool_check(pool, MIB - 511, 10, &err), DD_NO_MEMORY); /* rounded each */
    EXPECT_STATUS(ddi_pool_check(pool, UINT64_C(1) << 40, UINT64_C(1) << 40, &err), DD_NO_MEMORY);
    EXPECT_STATUS(ddi_pool_check(pool, UINT64_MAX, 1, &err), DD_NO_MEMORY);
    ddi_pool_free(pool, piece);
    ddi_pool_put(pool);
}

TEST(without_a_limit_a_part_of_the_memory_is_the_limit)
{
    struct ddi_pool *pool = make_pool(0, false);
    void *addr = NULL;

    EXPECT_EQ(stats_of(pool).limit_bytes, 500 * MIB);
    EXPECT_STATUS(ddi_pool_alloc(pool, 500 * MIB + 1, &addr, NULL), DD_NO_MEMORY);
    EXPECT_TRUE(addr == NULL);
    ddi_pool_put(pool);
}

TEST(a_limit_beyond_the_address_space_still_gives_memory)
{
    struct ddi_pool *pool = make_pool(INT64_MAX, false);
    uint8_t *small;
    uint8_t *large;
    void *addr = NULL;

    device.most = 512 * MIB;
    small = take(pool, 1000);
    large = take(pool, 100 * MIB);
    EXPECT_TRUE(small != NULL && large != NULL);
    EXPECT_STATUS(ddi_pool_alloc(pool, 600 * MIB, &addr, NULL), DD_NO_MEMORY);
    EXPECT_TRUE(addr == NULL);
    ddi_pool_free(pool, small);
    ddi_pool_free(pool, large);
    ddi_pool_put(pool);

    pool = make_pool(UINT64_MAX, false); /* sizes near the end of numbers do not wrap around */
    device.most = 512 * MIB;
    EXPECT_STATUS(ddi_pool_alloc(pool, UINT64_MAX - 1023, &addr, NULL), DD_NO_MEMORY);
    EXPECT_STATUS(ddi_pool_alloc(pool, INT64_MAX - 511, &addr, NULL), DD_NO_MEMORY);
    EXPECT_TRUE(addr == NULL);
    ddi_pool_put(pool);
}

TEST(freed_neighbours_become_one)
{
    struct ddi_pool *pool = make_pool(0, false);
    uint8_t *pieces[5];
    uint8_t *joined;

    for (int i = 0; i < 5; i++) {
        pieces[i] = take(pool, MIB / 4);
    }
    ddi_pool_free(pool, pieces[1]);
    ddi_pool_free(pool, pieces[3]);
    ddi_pool_free(pool, pieces[2]); /* merges with both sides */
    joined = take(pool, 3 * MIB / 4);
    EXPECT_TRUE(joined == pieces[1]);
    ddi_pool_free(pool, joined);
    ddi_pool_free(pool, pieces[0]);
    ddi_pool_free(pool, pieces[4]);
    EXPECT_TRUE(stats_of(pool).largest_free >= 64 * MIB);
    ddi_pool_put(pool);
}

TEST(a_free_region_is_given_back_but_for_one)
{
    struct ddi_pool *pool = make_pool(0, false);
    uint8_t *pieces[3];
    uint8_t *large;

    for (int i = 0; i < 3; i++) {
        pieces[i] = take(pool, 40 * MIB); /* no two fit into a region */
    }
    EXPECT_EQ(stats_of(pool).region_count, 3);
    for (int i = 0; i < 3; i++) {
        ddi_pool_free(pool, pieces[i]);
    }
    EXPECT_EQ(stats_of(pool).region_count, 1);
    EXPECT_EQ(device.released, 2);
    large = take(pool, 200 * MIB); /* has a region to itself */
    EXPECT_EQ(stats_of(pool).region_count, 2);
    ddi_pool_free(pool, large);
    EXPECT_EQ(stats_of(pool).region_count, 1);
    ddi_pool_put(pool);
    EXPECT_EQ(device.released, device.reserved);
}

TEST(memory_is_committed_once)
{
    struct ddi_pool *pool = make_pool(0, false);
    uint8_t *piece = take(pool, 7 * MIB);

    EXPECT_EQ(device.commits, 1);
    for (int i = 0; i < 10; i++) {
        ddi_pool_free(pool, piece);
        piece = take(pool, 7 * MIB);
    }
    ddi_pool_free(pool, piece);
    piece = take(pool, 512);
    EXPECT_EQ(device.commits, 1);
    ddi_pool_free(pool, piece);
    ddi_pool_put(pool);
}

TEST(a_refused_commit_leaves_the_pool_as_it_was)
{
    struct ddi_pool *pool = make_pool(0, false);
    uint8_t *piece = take(pool, 1000);
    void *addr = NULL;
    dd_error err = {0};

    device.refused = 1;
    EXPECT_STATUS(ddi_pool_alloc(pool, 3 * MIB, &addr, &err), DD_NO_MEMORY);
    EXPECT_CONTAINS(err.text, "refused");
    EXPECT_TRUE(addr == NULL); /* an output is written on success only */
    EXPECT_EQ(stats_of(pool).used_bytes, 1024);
    EXPECT_OK(ddi_pool_alloc(pool, 3 * MIB, &addr, &err));
    EXPECT_EQ(count_not_zero(addr, 3 * MIB), 0);
    ddi_pool_free(pool, addr);
    ddi_pool_free(pool, piece);
    ddi_pool_put(pool);
}

/* The first piece is refused memory while the second one, behind it, has got some. */
TEST(dirty_memory_between_fresh_memory_is_cleared_too)
{
    struct ddi_pool *pool = make_pool(0, true);
    void *addr = NULL;
    uint8_t *piece;

    device.pool = pool;
    EXPECT_STATUS(ddi_pool_alloc(pool, 2 * MIB, &addr, NULL), DD_NO_MEMORY);
    REQUIRE_TRUE(device.taken != NULL);
    (void)memset(device.taken, 0xFF, 2 * MIB);
    ddi_pool_free(pool, device.taken);
    piece = take(pool, 6 * MIB);
    EXPECT_TRUE(piece < (uint8_t *)device.taken);
    EXPECT_EQ(count_not_zero(piece, 6 * MIB), 0);
    ddi_pool_free(pool, piece);
    ddi_pool_put(pool);
}

TEST(the_last_reference_gives_all_regions_back)
{
    struct ddi_pool *pool = make_pool(100 * MIB, false);
    uint8_t *piece = take(pool, 5 * MIB);

    ddi_pool_get(pool);
    ddi_pool_put(pool);
    EXPECT_EQ(device.released, 0);
    piece[5 * MIB - 1] = 1;
    ddi_pool_free(pool, piece);
    ddi_pool_put(pool);
    EXPECT_EQ(device.released, device.reserved);
    ddi_pool_put(NULL);
}

TEST(a_child_process_does_not_have_the_memory)
{
    struct ddi_pool *pool = make_pool(0, false);
    uint8_t *piece = take(pool, 4096);
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        uint8_t *page = (uint8_t *)((uintptr_t)piece & ~(uintptr_t)4095);

        _exit(msync(page, 4096, MS_ASYNC) != 0 && errno == ENOMEM ? ALL_GONE : 0);
    }
    EXPECT_TRUE(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == ALL_GONE);
    ddi_pool_free(pool, piece);
    ddi_pool_put(pool);
}

static void ignore(int number)
{
    (void)number;
}

TEST(signals_do_not_disturb_a_commit)
{
    const struct itimerval often = {{0, 1000}, {0, 1000}};
    const struct itimerval off = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = ignore};
    struct sigaction before;
    struct ddi_pool *pool = make_pool(0, false);
    uint8_t *piece;

    REQUIRE_TRUE(sigaction(SIGALRM, &action, &before) == 0);
    REQUIRE_TRUE(setitimer(ITIMER_REAL, &often, NULL) == 0);
    piece = take(pool, 256 * MIB);
    (void)setitimer(ITIMER_REAL, &off, NULL);
    (void)sigaction(SIGALRM, &before, NULL);
    EXPECT_TRUE(piece != NULL);
    ddi_pool_free(pool, piece);
    ddi_pool_put(pool);
}

TEST(the_machine_says_how_much_memory_there_is)
{
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES);
    uint64_t memory = ddi_cpu_device.memory();

    EXPECT_TRUE(memory > MIB);
    EXPECT_TRUE(memory <= pages * (uint64_t)sysconf(_SC_PAGESIZE));
}

struct crew {
    struct ddi_pool *pool;
    uint8_t mark;
    bool is_good;
};

/* Hold up to 16 pieces, each marked at both ends. */
static void *churn(void *context)
{
    struct crew *crew = context;
    uint64_t random = 88172645463325252U + crew->mark;
    uint8_t *pieces[16] = {NULL};
    uint64_t sizes[16] = {0};

    crew->is_good = true;
    for (int step = 0; step < 4000; step++) {
        uint64_t at;

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        at = random % 16;
        if (pieces[at] != NULL) {
            crew->is_good = crew->is_good && pieces[at][0] == crew->mark &&
                            pieces[at][sizes[at] - 1] == crew->mark;
            ddi_pool_free(crew->pool, pieces[at]);
            pieces[at] = NULL;
        } else {
            void *addr = NULL;

            sizes[at] = 1 + (random >> 20) % (step % 8 == 0 ? 3 * MIB : MIB / 64);
            crew->is_good = ddi_pool_alloc(crew->pool, sizes[at], &addr, NULL) == DD_OK &&
                            crew->is_good;
            if (addr != NULL) {
                pieces[at] = addr;
                pieces[at][0] = crew->mark;
                pieces[at][sizes[at] - 1] = crew->mark;
            }
        }
    }
    for (int i = 0; i < 16; i++) {
        ddi_pool_free(crew->pool, pieces[i]);
    }
    return NULL;
}

TEST(threads_share_the_pool)
{
    struct ddi_pool_config config = {.device = &ddi_cpu_device, .limit_fraction = 0.5};
    struct ddi_pool *pool = NULL;
    struct crew crews[4];
    pthread_t threads[4];

    REQUIRE_OK(ddi_pool_create(&config, &pool, NULL));
    for (uint8_t i = 0; i < 4; i++) {
        crews[i] = (struct crew){.pool = pool, .mark = (uint8_t)(i + 1)};
        REQUIRE_TRUE(pthread_create(&threads[i], NULL, churn, &crews[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], NULL);
        EXPECT_TRUE(crews[i].is_good);
    }
    EXPECT_EQ(stats_of(pool).used_bytes, 0);
    ddi_pool_put(pool);
}

CHECK_MAIN(RUN(pieces_are_aligned_and_their_sizes_are_rounded_to_512);
           RUN(gaps_before_large_pieces_are_used_by_small_ones);
           RUN(the_limit_can_be_used_up_in_spite_of_alignment);
           RUN(many_pieces_are_refused_at_once_when_they_cannot_all_be_had);
           RUN(without_a_limit_a_part_of_the_memory_is_the_limit);
           RUN(a_limit_beyond_the_address_space_still_gives_memory);
           RUN(freed_neighbours_become_one); RUN(a_free_region_is_given_back_but_for_one);
           RUN(memory_is_committed_once); RUN(a_refused_commit_leaves_the_pool_as_it_was);
           RUN(dirty_memory_between_fresh_memory_is_cleared_too);
           RUN(the_last_reference_gives_all_regions_back);
           RUN(a_child_process_does_not_have_the_memory); RUN(signals_do_not_disturb_a_commit);
           RUN(the_machine_says_how_much_memory_there_is); RUN(threads_share_the_pool);)
