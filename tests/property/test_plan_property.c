/* The planner against a slow copy: random shapes and selections on real memory. Every case is
 * copied three ways, which must leave the same bytes everywhere, also beside what was selected:
 * byte by byte, by one plan, and by two plans that meet in a stream (the owner's and the puller's).
 *
 * The seed is printed. Replay a case: give its seed as the argument or in DD_SEED. */
#include "base/clock.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TENSORS 5
#define MAX_PIECES 40
#define MAX_BLOCKS 48
#define MAX_BATCH 9
#define MAX_PARTS 6
#define GAP 3 /* bytes between tensors, which nothing may touch */
#define RUN_MS 1500

struct memory {
    uint8_t *bytes;
    size_t size;
    uint64_t tensors[MAX_TENSORS];
};

/* One random transfer. Block lists are as a caller gives them, before duplicates are removed. */
struct scenario {
    struct ddi_plan_input input; /* src and dst without addresses */
    uint64_t src_blocks[MAX_PIECES];
    uint64_t dst_blocks[MAX_PIECES];
};

static uint64_t random_state;
static uint64_t seed; /* of the case that runs */

static uint64_t random_u64(void)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* low..high, both included. */
static uint64_t pick(uint64_t low, uint64_t high)
{
    return low + random_u64() % (high - low + 1);
}

static void check(bool is_true, const char *what)
{
    if (!is_true) {
        (void)fprintf(stderr, "failed: %s\nreplay: DD_SEED=%" PRIu64 "\n", what, seed);
        exit(1);
    }
}

static void check_ok(dd_status st, const dd_error *err)
{
    if (st != DD_OK) {
        check(false, err->text);
    }
}

/* Memory for all tensors of a side, in shuffled order with gaps, filled with random bytes. */
static void make_memory(struct memory *memory, uint32_t tensor_count, uint64_t tensor_bytes)
{
    uint64_t order[MAX_TENSORS] = {0};

    memory->size = GAP + tensor_count * (tensor_bytes + GAP);
    memory->bytes = malloc(memory->size);
    check(memory->bytes != NULL, "memory");
    for (size_t i = 0; i < memory->size; i++) {
        memory->bytes[i] = (uint8_t)random_u64();
    }
    for (uint32_t i = 0; i < tensor_count; i++) {
        uint64_t other = pick(0, i);

        order[i] = order[other];
        order[other] = i;
    }
    for (uint32_t i = 0; i < tensor_count; i++) {
        memory->tensors[i] = (uint64_t)(uintptr_t)memory->bytes + GAP +
                             order[i] * (tensor_bytes + GAP);
    }
}

static uint8_t *at_address(uint64_t address)
{
    return (uint8_t *)(uintptr_t)address;
}

/* Make n block indices: any, or each at most once, with a liking for neighbours. */
static void pick_blocks(uint64_t *blocks, uint64_t n, uint64_t block_count, bool is_unique)
{
    bool is_used[MAX_BLOCKS] = {false};

    for (uint64_t i = 0; i < n; i++) {
        uint64_t block = i > 0 && pick(0, 1) == 0 ? (blocks[i - 1] + 1) % block_count
                                                  : pick(0, block_count - 1);

        while (is_unique && is_used[block]) {
            block = (block + 1) % block_count;
        }
        is_used[block] = true;
        blocks[i] = block;
    }
}

static void make_side(struct ddi_side *side, const struct ddi_plan_input *input)
{
    if (side->kind == DDI_SIDE_BLOCKS) {
        side->block_count = pick(input->piece_count, MAX_BLOCKS);
        side->tensor_bytes = side->block_count * input->piece_bytes;
    } else {
        side->offset = pick(0, 50);
        side->tensor_bytes = side->offset + input->bytes + pick(0, 50);
    }
}

static void make_scenario(struct scenario *s)
{
    struct ddi_plan_input *input = &s->input;

    (void)memset(s, 0, sizeof(*s));
    input->src.kind = pick(0, 1) == 0 ? DDI_SIDE_LINEAR : DDI_SIDE_BLOCKS;
    input->dst.kind = pick(0, 1) == 0 ? DDI_SIDE_LINEAR : DDI_SIDE_BLOCKS;
    input->tensor_count = (uint32_t)pick(1, MAX_TENSORS);
    if (input->src.kind == DDI_SIDE_LINEAR && input->dst.kind == DDI_SIDE_LINEAR) {
        input->bytes = pick(1, pick(0, 3) == 0 ? 20000 : 300);
    } else {
        input->piece_bytes = pick(1, 40);
        input->piece_count = pick(1, MAX_PIECES);
        input->bytes = input->piece_count * input->piece_bytes;
        if (pick(0, 1) == 0) {
            input->bytes -= pick(0, input->piece_bytes - 1); /* a short last piece */
        }
    }
    make_side(&input->src, input);
    make_side(&input->dst, input);
    if (input->src.kind == DDI_SIDE_BLOCKS) {
        pick_blocks(s->src_blocks, input->piece_count, input->src.block_count, false);
    }
    if (input->dst.kind == DDI_SIDE_BLOCKS) {
        bool may_repeat = input->src.kind == DDI_SIDE_BLOCKS &&
                          input->bytes == input->piece_count * input->piece_bytes;

        pick_blocks(s->dst_blocks, input->piece_count, input->dst.block_count, !may_repeat);
    }
}

static uint64_t slow_address(const struct ddi_side *side, const uint64_t *blocks, uint64_t tensor,
                             uint64_t at, uint64_t piece_bytes)
{
    if (side->kind == DDI_SIDE_LINEAR) {
        return tensor + side->offset + at;
    }
    return tensor + blocks[at / piece_bytes] * piece_bytes + at % piece_bytes;
}

/* What a transfer means. */
static void slow_copy(const struct scenario *s, const struct memory *src, struct memory *dst)
{
    for (uint32_t t = 0; t < s->input.tensor_count; t++) {
        for (uint64_t at = 0; at < s->input.bytes; at++) {
            uint64_t from = slow_address(&s->input.src, s->src_blocks, src->tensors[t], at,
                                         s->input.piece_bytes);
            uint64_t to = slow_address(&s->input.dst, s->dst_blocks, dst->tensors[t], at,
                                       s->input.piece_bytes);

            *at_address(to) = *at_address(from);
        }
    }
}

/* Walk over [first, last) in random batches and copy; stream positions become addresses in
 * `stream`. The promises of ddi_cursor_next are checked on the way. */
static void walk(const struct ddi_plan *plan, uint64_t first, uint64_t last, uint8_t *stream)
{
    struct ddi_cursor cursor = ddi_cursor_at(plan, first, last - first);
    struct ddi_segment before = {0};
    uint64_t position = first;
    size_t n;

    do {
        struct ddi_segment out[MAX_BATCH];

        n = ddi_cursor_next(&cursor, out, pick(1, MAX_BATCH));
        for (size_t i = 0; i < n; i++) {
            struct ddi_segment segment = out[i];

            check(segment.len > 0, "segments are not empty");
            check(segment.len <= last - position, "segments end where the walk ends");
            check(plan->src_tensors != NULL || segment.src == position, "source position");
            check(plan->dst_tensors != NULL || segment.dst == position, "destination position");
            check(position == first || position % plan->bytes == 0 ||
                      segment.src != before.src + before.len ||
                      segment.dst != before.dst + before.len,
                  "touching segments of a tensor are merged");
            check(position / plan->bytes == (position + segment.len - 1) / plan->bytes,
                  "a segment belongs to one tensor");
            (void)memcpy(plan->dst_tensors != NULL ? at_address(segment.dst) : stream + segment.dst,
                         plan->src_tensors != NULL ? at_address(segment.src) : stream + segment.src,
                         segment.len);
            position += segment.len;
            before = segment;
        }
    } while (n > 0);
    check(position == last, "a walk emits all of its bytes");
}

/* Walk over the whole plan in parts: cut by the planner, or anywhere. */
static void walk_parts(const struct ddi_plan *plan, uint8_t *stream)
{
    uint32_t parts = (uint32_t)pick(1, MAX_PARTS);
    bool is_cut_anywhere = pick(0, 2) == 0;
    uint64_t first = 0;

    for (uint32_t part = 0; part < parts; part++) {
        uint64_t last = ddi_plan_cut(plan, part + 1, parts);

        if (is_cut_anywhere && part + 1 < parts) {
            last = pick(first, plan->total);
        }
        check(first <= last && last <= plan->total, "cuts rise");
        walk(plan, first, last, stream);
        first = last;
    }
}

/* The input with addresses and lists that are unique by destination. */
static struct ddi_plan_input complete_input(struct scenario *unique, const struct memory *src,
                                            const struct memory *dst)
{
    struct ddi_plan_input input = unique->input;
    size_t count = input.piece_count;
    dd_error err;

    if (input.dst.kind == DDI_SIDE_BLOCKS) {
        uint64_t *src_blocks = input.src.kind == DDI_SIDE_BLOCKS ? unique->src_blocks : NULL;

        check_ok(
            ddi_plan_unique(src_blocks, unique->dst_blocks, &count, input.dst.block_count, &err),
            &err);
        if (count < input.piece_count) {
            input.piece_count = count;
            input.bytes = count * input.piece_bytes;
        }
        input.dst.blocks = unique->dst_blocks;
    }
    if (input.src.kind == DDI_SIDE_BLOCKS) {
        input.src.blocks = unique->src_blocks;
    }
    input.src.tensors = src->tensors;
    input.dst.tensors = dst->tensors;
    return input;
}

static void copy_direct(const struct ddi_plan_input *input)
{
    struct ddi_plan plan = {0};
    dd_error err;

    check_ok(ddi_plan_init(&plan, input, &err), &err);
    check(plan.total == input->bytes * input->tensor_count, "total");
    walk_parts(&plan, NULL);
    ddi_plan_fini(&plan);
}

/* Owner and puller: each knows its own side, the bytes meet in a stream. */
static void copy_by_stream(const struct ddi_plan_input *input)
{
    struct ddi_plan_input owner_input = *input;
    struct ddi_plan_input puller_input = *input;
    struct ddi_plan owner = {0};
    struct ddi_plan puller = {0};
    uint8_t *stream;
    dd_error err;

    owner_input.dst = (struct ddi_side){.kind = DDI_SIDE_STREAM};
    puller_input.src = (struct ddi_side){.kind = DDI_SIDE_STREAM};
    check_ok(ddi_plan_init(&owner, &owner_input, &err), &err);
    check_ok(ddi_plan_init(&puller, &puller_input, &err), &err);
    check(owner.total == puller.total, "both sides agree on the total");
    for (uint32_t parts = 1; parts <= MAX_PARTS; parts++) {
        for (uint32_t part = 0; part <= parts; part++) {
            uint64_t cut = ddi_plan_cut(&owner, part, parts);

            check(cut == ddi_plan_cut(&puller, part, parts), "both sides cut alike");
            check(input->piece_bytes == 0 || cut == owner.total ||
                      cut % input->bytes % input->piece_bytes == 0,
                  "cuts lie at piece borders");
        }
    }
    stream = malloc(owner.total);
    check(stream != NULL, "memory");
    walk_parts(&owner, stream);
    walk_parts(&puller, stream);
    free(stream);
    ddi_plan_fini(&owner);
    ddi_plan_fini(&puller);
}

static void run_case(void)
{
    struct scenario given;
    struct scenario unique;
    struct ddi_plan_input input;
    struct memory src;
    struct memory dst;
    uint8_t *before;
    uint8_t *wanted;

    random_state = seed;
    make_scenario(&given);
    make_memory(&src, given.input.tensor_count, given.input.src.tensor_bytes);
    make_memory(&dst, given.input.tensor_count, given.input.dst.tensor_bytes);
    before = malloc(dst.size);
    wanted = malloc(dst.size);
    check(before != NULL && wanted != NULL, "memory");
    (void)memcpy(before, dst.bytes, dst.size);

    slow_copy(&given, &src, &dst);
    (void)memcpy(wanted, dst.bytes, dst.size);

    unique = given;
    input = complete_input(&unique, &src, &dst);
    (void)memcpy(dst.bytes, before, dst.size);
    copy_direct(&input);
    check(memcmp(dst.bytes, wanted, dst.size) == 0, "one plan leaves the slow copy's bytes");

    (void)memcpy(dst.bytes, before, dst.size);
    copy_by_stream(&input);
    check(memcmp(dst.bytes, wanted, dst.size) == 0, "two plans leave the slow copy's bytes");

    free(before);
    free(wanted);
    free(src.bytes);
    free(dst.bytes);
}

int main(int argc, char **argv)
{
    const char *given = argc > 1 ? argv[1] : getenv("DD_SEED");
    uint64_t end_ns = ddi_deadline_ns(RUN_MS);
    uint64_t cases = 0;

    seed = given != NULL ? strtoull(given, NULL, 0) : ddi_clock_ns();
    (void)printf("seed %" PRIu64 "\n", seed);
    (void)fflush(stdout);
    do {
        run_case();
        seed++;
        cases++;
    } while (ddi_clock_ns() < end_ns);
    (void)printf("%" PRIu64 " cases, 0 failures\n", cases);
    return 0;
}
