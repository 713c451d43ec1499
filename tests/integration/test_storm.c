/* Everything at once, for a short while: many threads pull, check, allocate and free while links come
 * and go. Every pull that succeeds has brought the right bytes, every one that fails says so with a
 * status that fits, and nothing is left behind. DD_SEED replays the choices, not the timing. */
#include "rig.h"

#include "base/clock.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#define OWNERS 3
#define THREADS 6
#define STORM_MS 1500
#define TENSORS 4
#define BLOCKS 64
#define BYTES 8192

static dd_engine *owners[OWNERS];
static dd_engine *decoder;
static char addresses[OWNERS][128];
static uint64_t end_ns;
static uint64_t seed;

struct storm {
    uint64_t random;
    uint64_t pulls;
    uint64_t refused;
    uint64_t wrong;    /* bytes */
    dd_status strange; /* a status that must not come */
};

static uint64_t below(struct storm *storm, uint64_t n)
{
    storm->random ^= storm->random << 13;
    storm->random ^= storm->random >> 7;
    storm->random ^= storm->random << 17;
    return storm->random % n;
}

static void take(struct storm *storm, dd_status st)
{
    if (st == DD_OK) {
        storm->pulls++;
    } else if (st == DD_NOT_LINKED) {
        storm->refused++; /* links come and go */
    } else {
        storm->strange = st;
    }
}

static void check_block(struct storm *storm, const uint8_t *tensor, uint32_t t, uint64_t src,
                        uint64_t dst)
{
    for (uint64_t i = 0; i < BYTES; i += 509) {
        storm->wrong += tensor[dst * BYTES + i] != rig_byte(t, src * BYTES + i);
    }
}

static void pull_some(struct storm *storm, int64_t cache)
{
    dd_source source = rig_source(1 + below(storm, OWNERS), DD_KEY_BLOCKS, 0);
    uint64_t src[BLOCKS];
    uint64_t dst[BLOCKS];
    dd_blocks blocks = {.size = sizeof(blocks), .src = src, .dst = dst};
    uint64_t shift = below(storm, BLOCKS);
    dd_status st;

    blocks.count = 1 + below(storm, BLOCKS);
    for (size_t i = 0; i < blocks.count; i++) {
        src[i] = below(storm, BLOCKS);
        dst[i] = (i * 11 + shift) % BLOCKS; /* each once */
    }
    st = dd_pull_blocks(decoder, &source, cache, &blocks, NULL);
    take(storm, st);
    for (uint32_t t = 0; st == DD_OK && t < TENSORS; t++) {
        const uint8_t *tensor = rig_tensor(decoder, cache, TENSORS, t);

        for (size_t i = 0; i < blocks.count; i++) {
            check_block(storm, tensor, t, src[i], dst[i]);
        }
    }
}

static void *run_puller(void *context)
{
    struct storm *storm = context;
    int64_t cache = rig_cache(decoder, TENSORS, BLOCKS, BYTES, NULL, 0);

    while (ddi_clock_ns() < end_ns) {
        switch (below(storm, 8)) {
        case 0:
            take(storm, dd_link_check(decoder, 1 + below(storm, OWNERS), NULL));
            break;
        case 1:
            EXPECT_OK(dd_cache_free(decoder, cache, NULL));
            cache = rig_cache(decoder, TENSORS, BLOCKS, BYTES, NULL, 0);
            break;
        default:
            pull_some(storm, cache);
            break;
        }
    }
    return NULL;
}

static void *run_linker(void *context)
{
    struct storm *storm = context;
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};

    while (ddi_clock_ns() < end_ns) {
        uint64_t id = 1 + below(storm, OWNERS);
        bool by_owner = below(storm, 3) == 0;
        dd_status st = by_owner ? rig_unlink(owners[id - 1], 9, below(storm, 2) == 0)
                                : rig_unlink(decoder, id, below(storm, 2) == 0);

        /* In progress: the owner's half of a new link does not stand yet. */
        if (st != DD_OK && st != DD_NOT_LINKED && st != DD_PEER_NOT_TOLD &&
            st != DD_LINK_IN_PROGRESS) {
            storm->strange = st;
        }
        do {
            dd_error err = {0};

            (void)nanosleep(&pause, NULL);
            st = rig_link_at(decoder, id, addresses[id - 1], 5000, &err);
        } while (st != DD_OK && st != DD_ALREADY_LINKED && ddi_clock_ns() < end_ns);
    }
    return NULL;
}

static void run_threads(void)
{
    struct storm storms[THREADS];
    pthread_t threads[THREADS];
    uint64_t pulls = 0;

    end_ns = ddi_clock_ns() + STORM_MS * DDI_NS_PER_MS;
    for (uint64_t i = 0; i < THREADS; i++) {
        storms[i] = (struct storm){.random = seed + i * 7919 + 1};
        (void)pthread_create(&threads[i], NULL, i == 0 ? run_linker : run_puller, &storms[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
        EXPECT_EQ(storms[i].wrong, 0);
        EXPECT_STATUS(storms[i].strange, DD_OK);
        pulls += storms[i].pulls;
    }
    (void)printf("DD_SEED=%" PRIu64 ": %" PRIu64 " pulls and checks\n", seed, pulls);
    EXPECT_TRUE(pulls > 0);
}

TEST(a_storm_leaves_right_bytes_and_nothing_behind)
{
    dd_key key = rig_key(DD_KEY_BLOCKS, 0);

    decoder = rig_decoder(9);
    for (uint64_t i = 0; i < OWNERS; i++) {
        int64_t cache;

        owners[i] = rig_prompt(i + 1);
        REQUIRE_TRUE(owners[i] != NULL && decoder != NULL);
        cache = rig_cache(owners[i], TENSORS, BLOCKS, BYTES, &key, 1);
        rig_fill(owners[i], cache, TENSORS, (uint64_t)BLOCKS * BYTES);
        REQUIRE_OK(dd_engine_address(owners[i], addresses[i], sizeof(addresses[i]), NULL));
        REQUIRE_OK(rig_link(decoder, i + 1, owners[i]));
    }
    run_threads();
    EXPECT_EQ(rig_stats(decoder).pins, 0);
    for (uint64_t i = 0; i < OWNERS; i++) {
        RIG_AWAIT(rig_stats(owners[i]).pins == 0);
        (void)rig_unlink(decoder, i + 1, true);
        RIG_AWAIT(rig_stats(owners[i]).links == 0);
        dd_engine_destroy(owners[i]);
    }
    EXPECT_EQ(rig_stats(decoder).links, 0);
    dd_engine_destroy(decoder);
}

int main(void)
{
    const char *given = getenv("DD_SEED");

    seed = given != NULL ? strtoull(given, NULL, 10) : ddi_clock_ns();
    RUN(a_storm_leaves_right_bytes_and_nothing_behind);
    (void)printf("%d tests, %d failures\n", check_tests, check_failures);
    return check_failures == 0 ? 0 : 1;
}
