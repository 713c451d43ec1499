/* How fast the planner emits segments, beside a bare loop that writes the same segments.
 *
 *     bench_plan [--json]
 *
 * Both run in turn in one process, several rounds each: median, least and most are printed. Nothing
 * is checked by time; that both emit the same segments is. */
#include "base/clock.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS 80
#define ROUNDS 11
#define BATCH 512
#define ROUND_SEGMENTS 20000000 /* at least, per round */

struct shape {
    const char *name;
    uint64_t block_bytes;
    uint64_t block_count; /* of each tensor; half of them move */
};

struct setup {
    struct shape shape;
    uint64_t pieces; /* of each tensor; none follows another, so as many segments */
    uint64_t *src_blocks;
    uint64_t *dst_blocks;
    uint64_t src_tensors[TENSORS];
    uint64_t dst_tensors[TENSORS];
};

struct outcome {
    uint64_t segments;    /* per walk */
    double rates[ROUNDS]; /* million segments per second */
};

/* Segments of a walk, written without any plan: what the planner is measured against. */
static uint64_t walk_bare(const struct setup *setup)
{
    struct ddi_segment out[BATCH];
    uint64_t block_bytes = setup->shape.block_bytes;
    uint64_t segments = 0;

    for (uint32_t t = 0; t < TENSORS; t++) {
        uint64_t src = setup->src_tensors[t];
        uint64_t dst = setup->dst_tensors[t];

        for (uint64_t first = 0; first < setup->pieces; first += BATCH) {
            uint64_t n = setup->pieces - first < BATCH ? setup->pieces - first : BATCH;

            for (uint64_t i = 0; i < n; i++) {
                out[i].src = src + setup->src_blocks[first + i] * block_bytes;
                out[i].dst = dst + setup->dst_blocks[first + i] * block_bytes;
                out[i].len = block_bytes;
            }
            /* As if the segments were used here: all of them must be in memory. */
            __asm__ volatile("" : : "r"(out) : "memory");
            segments += n;
        }
    }
    return segments;
}

static uint64_t walk_plan(const struct ddi_plan *plan)
{
    struct ddi_segment out[BATCH];
    struct ddi_cursor cursor = ddi_cursor_at(plan, 0, plan->total);
    uint64_t segments = 0;
    size_t n;

    while ((n = ddi_cursor_next(&cursor, out, BATCH)) > 0) {
        __asm__ volatile("" : : "r"(out) : "memory");
        segments += n;
    }
    return segments;
}

/* The planner must emit exactly the segments of the bare loop. */
static bool is_same(const struct setup *setup, const struct ddi_plan *plan)
{
    struct ddi_cursor cursor = ddi_cursor_at(plan, 0, plan->total);
    struct ddi_segment segment = {0};

    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < setup->pieces; i++) {
            uint64_t src = setup->src_tensors[t] + setup->src_blocks[i] * setup->shape.block_bytes;
            uint64_t dst = setup->dst_tensors[t] + setup->dst_blocks[i] * setup->shape.block_bytes;

            if (ddi_cursor_next(&cursor, &segment, 1) != 1 || segment.src != src ||
                segment.dst != dst || segment.len != setup->shape.block_bytes) {
                return false;
            }
        }
    }
    return ddi_cursor_next(&cursor, &segment, 1) == 0;
}

/* Blocks 0, 2, 4 ... of the source and 1, 3, 5 ... of the destination, in two scattered orders: the
 * strides are primes, so they visit every block once. */
static bool make_setup(struct setup *setup, const struct shape *shape)
{
    uint64_t tensor_bytes = shape->block_bytes * shape->block_count;

    setup->shape = *shape;
    setup->pieces = shape->block_count / 2;
    setup->src_blocks = calloc(setup->pieces, sizeof(*setup->src_blocks));
    setup->dst_blocks = calloc(setup->pieces, sizeof(*setup->dst_blocks));
    if (setup->src_blocks == NULL || setup->dst_blocks == NULL) {
        return false;
    }
    for (uint64_t i = 0; i < setup->pieces; i++) {
        setup->src_blocks[i] = i * 7919 % setup->pieces * 2;
        setup->dst_blocks[i] = i * 104729 % setup->pieces * 2 + 1;
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        setup->src_tensors[t] = (UINT64_C(1) << 40) + t * tensor_bytes;
        setup->dst_tensors[t] = (UINT64_C(1) << 44) + t * tensor_bytes;
    }
    return true;
}

static struct ddi_plan_input make_input(const struct setup *setup)
{
    uint64_t tensor_bytes = setup->shape.block_bytes * setup->shape.block_count;
    struct ddi_plan_input input = {.src = {.kind = DDI_SIDE_BLOCKS,
                                           .tensors = setup->src_tensors,
                                           .tensor_bytes = tensor_bytes,
                                           .blocks = setup->src_blocks,
                                           .block_count = setup->shape.block_count},
                                   .tensor_count = TENSORS,
                                   .bytes = setup->pieces * setup->shape.block_bytes,
                                   .piece_bytes = setup->shape.block_bytes,
                                   .piece_count = setup->pieces};

    input.dst = input.src;
    input.dst.tensors = setup->dst_tensors;
    input.dst.blocks = setup->dst_blocks;
    return input;
}

static double rate(uint64_t segments, uint64_t begin_ns)
{
    return (double)segments * 1e3 / (double)(ddi_clock_ns() - begin_ns);
}

static void measure(const struct setup *setup, const struct ddi_plan *plan, struct outcome *bare,
                    struct outcome *planned)
{
    for (size_t round = 0; round < ROUNDS; round++) {
        uint64_t begin_ns = ddi_clock_ns();
        uint64_t done = 0;

        while (done < ROUND_SEGMENTS) {
            bare->segments = walk_bare(setup);
            done += bare->segments;
        }
        bare->rates[round] = rate(done, begin_ns);

        begin_ns = ddi_clock_ns();
        done = 0;
        while (done < ROUND_SEGMENTS) {
            planned->segments = walk_plan(plan);
            done += planned->segments;
        }
        planned->rates[round] = rate(done, begin_ns);
    }
}

static int compare(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

/* Time to make a plan, in microseconds, median of the rounds. */
static double measure_init(const struct ddi_plan_input *input)
{
    double us[ROUNDS];

    for (size_t round = 0; round < ROUNDS; round++) {
        struct ddi_plan plan = {0};
        uint64_t begin_ns = ddi_clock_ns();

        if (ddi_plan_init(&plan, input, NULL) != DD_OK) {
            return -1;
        }
        us[round] = (double)(ddi_clock_ns() - begin_ns) / 1e3;
        ddi_plan_fini(&plan);
    }
    qsort(us, ROUNDS, sizeof(us[0]), compare);
    return us[ROUNDS / 2];
}

static void print(const struct setup *setup, struct outcome *bare, struct outcome *planned,
                  double init_us, bool as_json, bool is_first)
{
    double ratio;

    qsort(bare->rates, ROUNDS, sizeof(bare->rates[0]), compare);
    qsort(planned->rates, ROUNDS, sizeof(planned->rates[0]), compare);
    ratio = planned->rates[ROUNDS / 2] / bare->rates[ROUNDS / 2];
    if (as_json) {
        (void)printf("%s\n  {\"name\": \"%s\", \"tensors\": %d, \"pieces\": %" PRIu64
                     ", \"segments\": %" PRIu64 ", \"init_us\": %.1f,\n"
                     "   \"bare_msegments_s\": {\"median\": %.1f, \"min\": %.1f, \"max\": %.1f},\n"
                     "   \"plan_msegments_s\": {\"median\": %.1f, \"min\": %.1f, \"max\": %.1f},\n"
                     "   \"ratio\": %.3f}",
                     is_first ? "" : ",", setup->shape.name, TENSORS, setup->pieces,
                     planned->segments, init_us, bare->rates[ROUNDS / 2], bare->rates[0],
                     bare->rates[ROUNDS - 1], planned->rates[ROUNDS / 2], planned->rates[0],
                     planned->rates[ROUNDS - 1], ratio);
        return;
    }
    (void)printf("%-16s %9" PRIu64 " %8.1f  %6.0f (%4.0f - %4.0f)  %6.0f (%4.0f - %4.0f)  %5.2f\n",
                 setup->shape.name, planned->segments, init_us, bare->rates[ROUNDS / 2],
                 bare->rates[0], bare->rates[ROUNDS - 1], planned->rates[ROUNDS / 2],
                 planned->rates[0], planned->rates[ROUNDS - 1], ratio);
}

static bool run(const struct shape *shape, bool as_json, bool is_first)
{
    struct setup setup = {0};
    struct outcome bare = {0};
    struct outcome planned = {0};
    struct ddi_plan plan = {0};
    struct ddi_plan_input input;
    bool is_good = make_setup(&setup, shape);
    double init_us;

    input = make_input(&setup);
    is_good = is_good && ddi_plan_init(&plan, &input, NULL) == DD_OK && is_same(&setup, &plan);
    if (is_good) {
        init_us = measure_init(&input);
        measure(&setup, &plan, &bare, &planned);
        print(&setup, &bare, &planned, init_us, as_json, is_first);
    } else {
        (void)fprintf(stderr, "%s: the plan differs from the bare loop\n", shape->name);
    }
    ddi_plan_fini(&plan);
    free(setup.src_blocks);
    free(setup.dst_blocks);
    return is_good;
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        {.name = "1000 of 16 KiB", .block_bytes = 16384, .block_count = 2000},
        {.name = "50000 of 16 KiB", .block_bytes = 16384, .block_count = 100000},
        {.name = "100 of 128 KiB", .block_bytes = 131072, .block_count = 200},
        {.name = "8 of 16 KiB", .block_bytes = 16384, .block_count = 16},
        {.name = "1 of 64 MiB", .block_bytes = UINT64_C(1) << 26, .block_count = 2},
    };
    bool as_json = argc > 1 && strcmp(argv[1], "--json") == 0;
    bool is_good = true;

    if (as_json) {
        (void)printf("{\"bench\": \"plan\", \"rounds\": %d, \"batch\": %d, \"cases\": [", ROUNDS,
                     BATCH);
    } else {
        (void)printf("%d tensors, batches of %d, million segments/s: median (min - max) of %d\n",
                     TENSORS, BATCH, ROUNDS);
        (void)printf("%-16s %9s %8s  %20s  %20s  %5s\n", "of each tensor", "segments", "init us",
                     "bare loop", "planner", "ratio");
    }
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        is_good = run(&shapes[i], as_json, i == 0) && is_good;
    }
    if (as_json) {
        (void)printf("\n]}\n");
    }
    return is_good ? 0 : 1;
}
