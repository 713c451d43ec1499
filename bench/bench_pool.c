/* How fast the pool allocates and frees, beside malloc with the same sizes in the same order.
 *
 *     bench_pool [--pieces N] [--steps N] [--rounds N] [--json FILE]
 *
 * N pieces are alive all the time; a step frees one at random and allocates another in its place.
 * The memory was all in use before, so that no step needs the system: until the clock runs every
 * page of every piece is written, and malloc is told to keep what it has. Both do a round in turn,
 * in one process.
 *
 * Also reported is what fragmentation costs: the part of the region that was ever in use, which has
 * memory behind it, per byte that is in use. */
#include "raw.h"

#include "store/pool.h"

#include <malloc.h>

#define MAX_PIECES 1000000
#define MAX_STEPS 10000000
#define MAX_ROUNDS 101
#define WARM_ROUNDS 8
#define LARGE_PERCENT 1
#define PAGE 4096

struct options {
    uint64_t pieces;
    uint64_t steps;
    uint64_t rounds;
    const char *json;
};

struct piece {
    uint8_t *addr;
    uint64_t bytes;
};

struct step {
    uint64_t at; /* the piece that goes */
    uint64_t bytes;
};

struct side {
    struct ddi_pool *pool; /* NULL: malloc */
    struct piece *pieces;
    bool is_warming; /* pieces are written */
    uint8_t *first;  /* all pieces lay in [first, end) */
    uint8_t *end;
};

typedef uint64_t (*size_fn)(uint64_t random);

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Tensors of requests with 16 to 4096 tokens, 256 bytes each, every magnitude as often as another:
 * 4 KiB to 1 MiB; and a few of 2 to 8 MiB. */
static uint64_t mixed_size(uint64_t random)
{
    uint64_t magnitude = 4 + random % 8;
    uint64_t tokens = (UINT64_C(1) << magnitude) + (random >> 8) % (UINT64_C(1) << magnitude);

    if ((random >> 40) % 100 < LARGE_PERCENT) {
        return (UINT64_C(2) << 20) + ((random >> 8) % 6144) * 1024;
    }
    return tokens * 256;
}

/* A server pads to a few lengths: powers of two, 4 KiB to 512 KiB. */
static uint64_t padded_size(uint64_t random)
{
    return UINT64_C(4096) << random % 8;
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

static bool take(struct side *side, struct piece *piece, uint64_t bytes)
{
    void *addr = NULL;
    dd_error err = {0};

    if (side->pool == NULL) {
        addr = malloc(bytes);
    } else if (ddi_pool_alloc(side->pool, bytes, &addr, &err) != DD_OK) {
        return raw_complain("pool", &err);
    }
    *piece = (struct piece){.addr = addr, .bytes = bytes};
    for (uint64_t at = 0; side->is_warming && addr != NULL && at < bytes; at += PAGE) {
        piece->addr[at] = 1;
    }
    return addr != NULL;
}

static void give_back(struct side *side, struct piece *piece)
{
    if (side->pool == NULL) {
        free(piece->addr);
    } else {
        ddi_pool_free(side->pool, piece->addr);
    }
}

/* Nanoseconds per step; negative on failure. */
static double run_round(struct side *side, const struct step *steps, uint64_t count)
{
    uint64_t begin_ns = raw_now_ns();

    for (uint64_t i = 0; i < count; i++) {
        struct piece *piece = &side->pieces[steps[i].at];

        give_back(side, piece);
        if (!take(side, piece, steps[i].bytes)) {
            piece->addr = NULL;
            return -1;
        }
        side->first = piece->addr < side->first ? piece->addr : side->first;
        side->end = piece->addr + piece->bytes > side->end ? piece->addr + piece->bytes : side->end;
    }
    return (double)(raw_now_ns() - begin_ns) / (double)count;
}

static void make_steps(struct step *steps, const struct options *options, size_fn size,
                       uint64_t round)
{
    for (uint64_t i = 0; i < options->steps; i++) {
        uint64_t random = raw_mix(round * MAX_STEPS + i);

        steps[i].at = raw_mix(random) % options->pieces;
        steps[i].bytes = size(random);
    }
}

static bool fill(struct side *side, const struct options *options, size_fn size)
{
    side->is_warming = true;
    side->pieces = calloc(options->pieces, sizeof(*side->pieces));
    if (side->pieces == NULL) {
        return raw_complain("pieces", NULL);
    }
    for (uint64_t i = 0; i < options->pieces; i++) {
        if (!take(side, &side->pieces[i], size(raw_mix(~i)))) {
            return raw_complain("first pieces", NULL);
        }
    }
    side->first = side->pieces[0].addr;
    side->end = side->first;
    return true;
}

static void empty(struct side *side, const struct options *options)
{
    for (uint64_t i = 0; side->pieces != NULL && i < options->pieces; i++) {
        give_back(side, &side->pieces[i]);
    }
    free(side->pieces);
}

/* Measure one mix of sizes: results[0] is the time, results[1] the memory. */
static bool measure(struct side *ours, struct side *theirs, const struct options *options,
                    size_fn size, struct raw_result results[2])
{
    static double our_ns[MAX_ROUNDS];
    static double their_ns[MAX_ROUNDS];
    static double ratios[MAX_ROUNDS];
    static double made[MAX_ROUNDS];
    struct step *steps = calloc(options->steps, sizeof(*steps));
    bool is_good = steps != NULL;

    for (uint64_t round = 0; is_good && round < WARM_ROUNDS + options->rounds; round++) {
        uint64_t at = round < WARM_ROUNDS ? 0 : round - WARM_ROUNDS; /* the first ones are lost */
        struct ddi_pool_stats stats;

        ours->is_warming = round < WARM_ROUNDS;
        theirs->is_warming = ours->is_warming;
        make_steps(steps, options, size, round);
        if (round % 2 == 0) {
            our_ns[at] = run_round(ours, steps, options->steps);
            their_ns[at] = run_round(theirs, steps, options->steps);
        } else {
            their_ns[at] = run_round(theirs, steps, options->steps);
            our_ns[at] = run_round(ours, steps, options->steps);
        }
        is_good = our_ns[at] > 0 && their_ns[at] > 0;
        ratios[at] = our_ns[at] / their_ns[at];
        ddi_pool_stats(ours->pool, &stats);
        is_good = is_good && stats.region_count == 1; /* else addresses do not tell what was made */
        made[at] = (double)(ours->end - ours->first) / (double)stats.used_bytes;
    }
    free(steps);
    if (is_good) {
        results[0].ours = raw_figures(our_ns, options->rounds);
        results[0].limit = raw_figures(their_ns, options->rounds);
        results[0].ratio = raw_figures(ratios, options->rounds);
        results[1].ours = raw_figures(made, options->rounds);
    }
    return is_good;
}

static bool run(const struct options *options, size_fn size, struct raw_result results[2])
{
    const struct ddi_pool_config config = {.device = &ddi_cpu_device,
                                           .limit_bytes = ddi_cpu_device.memory()};
    struct side ours = {0};
    struct side theirs = {0};
    dd_error err = {0};
    bool is_good = ddi_pool_create(&config, &ours.pool, &err) == DD_OK;

    if (!is_good) {
        return raw_complain("pool", &err);
    }
    is_good = fill(&ours, options, size) && fill(&theirs, options, size) &&
              measure(&ours, &theirs, options, size, results);
    empty(&ours, options);
    empty(&theirs, options);
    ddi_pool_put(ours.pool);
    return is_good;
}

int main(int argc, char **argv)
{
    struct options options = {.pieces = 10000, .steps = 100000, .rounds = 21};
    const struct raw_option known[] = {{"--pieces", &options.pieces, NULL, MAX_PIECES},
                                       {"--steps", &options.steps, NULL, MAX_STEPS},
                                       {"--rounds", &options.rounds, NULL, MAX_ROUNDS},
                                       {"--json", NULL, &options.json, 0}};
    struct raw_result results[] = {
        {.what = "free and allocate, mixed sizes", .unit = "ns", .target = 3},
        {.what = "memory per byte in use, mixed sizes", .unit = "x"},
        {.what = "free and allocate, padded sizes", .unit = "ns", .target = 3},
        {.what = "memory per byte in use, padded sizes", .unit = "x"}};
    const size_t count = sizeof(results) / sizeof(results[0]);

    if (!raw_parse(argc, argv, known, sizeof(known) / sizeof(known[0]))) {
        (void)fprintf(stderr,
                      "usage: bench_pool [--pieces N] [--steps N] [--rounds N] [--json FILE]\n");
        return 2;
    }
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the most that it takes */
    (void)mallopt(M_TRIM_THRESHOLD, -1);
    if (!run(&options, mixed_size, &results[0]) || !run(&options, padded_size, &results[2])) {
        return 1;
    }
    (void)printf("pool beside malloc, %" PRIu64 " pieces alive; median (least - most) of %" PRIu64
                 " rounds of %" PRIu64 " steps\n",
                 options.pieces, options.rounds, options.steps);
    for (size_t i = 0; i < count; i++) {
        raw_show(&results[i], i % 2 == 0 ? 0 : 2);
    }
    if (options.json != NULL && !raw_write_json(options.json, "pool", results, count)) {
        return raw_complain(options.json, NULL) ? 0 : 1;
    }
    return 0;
}
