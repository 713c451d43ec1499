/* The pool under random allocation and free: no piece overlaps another, every piece is zero when it
 * is fresh and keeps its bytes, the counts are right, and everything merges again at the end. */
#include "../unit/check.h"

#include "base/clock.h"
#include "store/pool.h"

#define PIECES 400

struct piece {
    uint8_t *addr;
    uint64_t bytes;
    uint8_t mark;
};

static uint64_t random_state;

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

static uint64_t random_size(void)
{
    switch (below(4)) {
    case 0:
        return 1 + below(600);
    case 1:
        return 512 * (1 + below(64));
    case 2:
        return 1 + below(300000);
    default:
        return 1 + below(6000000);
    }
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

/* First and last bytes carry the piece's mark. */
static void mark(struct piece *piece, uint8_t value)
{
    piece->mark = value;
    piece->addr[0] = value;
    piece->addr[piece->bytes / 2] = value;
    piece->addr[piece->bytes - 1] = value;
}

static bool is_intact(const struct piece *piece)
{
    return piece->addr[0] == piece->mark && piece->addr[piece->bytes / 2] == piece->mark &&
           piece->addr[piece->bytes - 1] == piece->mark;
}

static void check_apart(const struct piece *pieces, const struct piece *added)
{
    for (size_t i = 0; i < PIECES; i++) {
        const struct piece *other = &pieces[i];

        if (other != added && other->addr != NULL) {
            EXPECT_TRUE(added->addr + added->bytes <= other->addr ||
                        other->addr + other->bytes <= added->addr);
        }
    }
}

static void run_steps(struct ddi_pool *pool, uint64_t limit, int steps)
{
    static struct piece pieces[PIECES];
    struct ddi_pool_stats stats;
    uint64_t used = 0;
    uint64_t peak = 0;

    (void)memset(pieces, 0, sizeof(pieces));
    for (int step = 0; step < steps; step++) {
        struct piece *piece = &pieces[below(PIECES)];

        if (piece->addr == NULL) {
            void *addr = NULL;
            uint64_t bytes = random_size();
            dd_status st = ddi_pool_alloc(pool, bytes, &addr, NULL);

            EXPECT_TRUE(st == DD_OK || st == DD_NO_MEMORY);
            EXPECT_TRUE((st == DD_OK) == (used + rounded(bytes) <= limit));
            if (st != DD_OK) {
                continue;
            }
            *piece = (struct piece){.addr = addr, .bytes = bytes};
            EXPECT_EQ((uint64_t)(uintptr_t)addr % (bytes > 2097152 ? 2097152 : 512), 0);
            check_apart(pieces, piece);
            mark(piece, (uint8_t)(1 + below(255)));
            used += rounded(bytes);
            peak = used > peak ? used : peak;
        } else {
            EXPECT_TRUE(is_intact(piece));
            ddi_pool_free(pool, piece->addr);
            used -= rounded(piece->bytes);
            *piece = (struct piece){0};
        }
        ddi_pool_stats(pool, &stats);
        EXPECT_EQ(stats.used_bytes, used);
        EXPECT_EQ(stats.peak_bytes, peak);
    }
    for (size_t i = 0; i < PIECES; i++) {
        if (pieces[i].addr != NULL) {
            EXPECT_TRUE(is_intact(&pieces[i]));
            ddi_pool_free(pool, pieces[i].addr);
        }
    }
    ddi_pool_stats(pool, &stats);
    EXPECT_EQ(stats.used_bytes, 0);
    EXPECT_TRUE(stats.region_count <= 1);
}

static struct ddi_pool *make_pool(uint64_t limit)
{
    struct ddi_pool_config config = {
        .device = &ddi_cpu_device, .limit_bytes = limit, .limit_fraction = 0.5};
    struct ddi_pool *pool = NULL;

    EXPECT_OK(ddi_pool_create(&config, &pool, NULL));
    return pool;
}

TEST(random_pieces_never_overlap_and_all_comes_back)
{
    struct ddi_pool *pool = make_pool(0);

    run_steps(pool, UINT64_MAX, 8000);
    ddi_pool_put(pool);
}

TEST(the_limit_counts_bytes_and_nothing_else)
{
    struct ddi_pool *pool = make_pool(UINT64_C(200) << 20);
    struct ddi_pool_stats stats;
    void *whole = NULL;

    run_steps(pool, UINT64_C(200) << 20, 8000);
    EXPECT_OK(ddi_pool_alloc(pool, UINT64_C(200) << 20, &whole, NULL)); /* all merged again */
    ddi_pool_stats(pool, &stats);
    EXPECT_EQ(stats.largest_free, 0);
    ddi_pool_free(pool, whole);
    ddi_pool_put(pool);
}

TEST(fresh_memory_is_zero_and_reused_memory_on_request)
{
    struct ddi_pool_config config = {
        .device = &ddi_cpu_device, .limit_fraction = 0.5, .clear = true};
    struct ddi_pool *pool = NULL;

    REQUIRE_OK(ddi_pool_create(&config, &pool, NULL));
    for (int round = 0; round < 3; round++) {
        void *addr = NULL;
        uint64_t wrong = 0;

        REQUIRE_OK(ddi_pool_alloc(pool, 3000000, &addr, NULL));
        for (size_t i = 0; i < 3000000; i++) {
            wrong += ((uint8_t *)addr)[i] != 0;
        }
        EXPECT_EQ(wrong, 0);
        (void)memset(addr, 0xFF, 3000000);
        ddi_pool_free(pool, addr);
    }
    ddi_pool_put(pool);
}

TEST(what_no_machine_has_is_a_status_with_numbers)
{
    struct ddi_pool *pool = make_pool(1 << 20);
    void *addr = NULL;
    dd_error err = {0};

    EXPECT_STATUS(ddi_pool_alloc(pool, UINT64_MAX, &addr, &err), DD_NO_MEMORY);
    EXPECT_STATUS(ddi_pool_alloc(pool, 0, &addr, &err), DD_NO_MEMORY);
    EXPECT_STATUS(ddi_pool_alloc(pool, UINT64_C(1) << 62, &addr, &err), DD_NO_MEMORY);
    EXPECT_STATUS(ddi_pool_alloc(pool, (1 << 20) + 1, &addr, &err), DD_NO_MEMORY);
    EXPECT_CONTAINS(err.text, "1049088"); /* wanted, rounded to 512 */
    EXPECT_CONTAINS(err.text, "1048576"); /* allowed */
    EXPECT_TRUE(addr == NULL);
    ddi_pool_put(pool);
}

int main(void)
{
    const char *seed = getenv("DD_SEED");

    random_state = seed != NULL ? strtoull(seed, NULL, 10) : ddi_clock_ns() | 1;
    (void)printf("DD_SEED=%" PRIu64 "\n", random_state);
    RUN(random_pieces_never_overlap_and_all_comes_back);
    RUN(the_limit_counts_bytes_and_nothing_else);
    RUN(fresh_memory_is_zero_and_reused_memory_on_request);
    RUN(what_no_machine_has_is_a_status_with_numbers);
    (void)printf("%d tests, %d failures\n", check_tests, check_failures);
    return check_failures == 0 ? 0 : 1;
}
