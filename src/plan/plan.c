/* The planner: from a selection to segments. Pure; any thread. It trusts nothing in its input: what
 * passes ddi_plan_init stays inside the tensors for every cursor. */
#include "plan/plan.h"

#include "base/num.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define CUT_BYTES 4096 /* cuts of plans without pieces */

/* Sides. */

static dd_status check_linear(const struct ddi_side *side, const char *name, uint64_t bytes,
                              dd_error *err)
{
    if (!ddi_fits(side->offset, bytes, side->tensor_bytes)) {
        return ddi_fail(err, DD_INVALID,
                        "%s: %" PRIu64 " bytes from offset %" PRIu64
                        " are outside the tensor of %" PRIu64 " bytes",
                        name, bytes, side->offset, side->tensor_bytes);
    }
    return DD_OK;
}

static dd_status check_blocks(const struct ddi_side *side, const char *name,
                              const struct ddi_plan_input *input, dd_error *err)
{
    uint64_t all;

    if (side->blocks == NULL) {
        return ddi_fail(err, DD_INVALID, "%s: block list is missing", name);
    }
    if (!ddi_mul_u64(side->block_count, input->piece_bytes, &all) || all != side->tensor_bytes) {
        return ddi_fail(err, DD_INVALID,
                        "%s: block size of %" PRIu64 " bytes does not fit, the tensor has %" PRIu64
                        " bytes in %" PRIu64 " blocks",
                        name, input->piece_bytes, side->tensor_bytes, side->block_count);
    }
    for (uint64_t i = 0; i < input->piece_count; i++) {
        if (side->blocks[i] >= side->block_count) {
            return ddi_fail(err, DD_INVALID,
                            "%s: block %" PRIu64 " at position %" PRIu64
                            " is out of range, the cache has %" PRIu64 " blocks",
                            name, side->blocks[i], i, side->block_count);
        }
    }
    return DD_OK;
}

static dd_status check_side(const struct ddi_side *side, const char *name,
                            const struct ddi_plan_input *input, dd_error *err)
{
    uint64_t end;

    if (side->kind == DDI_SIDE_STREAM) {
        return DD_OK;
    }
    if (side->tensors == NULL) {
        return ddi_fail(err, DD_INVALID, "%s: tensor addresses are missing", name);
    }
    for (uint32_t i = 0; i < input->tensor_count; i++) {
        if (!ddi_add_u64(side->tensors[i], side->tensor_bytes, &end)) {
            return ddi_fail(err, DD_INVALID,
                            "%s: tensor %" PRIu32 " at 0x%" PRIx64 " with %" PRIu64
                            " bytes does not fit into the address space",
                            name, i, side->tensors[i], side->tensor_bytes);
        }
    }
    switch (side->kind) {
    case DDI_SIDE_LINEAR:
        return check_linear(side, name, input->bytes, err);
    case DDI_SIDE_BLOCKS:
        return check_blocks(side, name, input, err);
    case DDI_SIDE_STREAM:
        break;
    }
    return ddi_fail(err, DD_INVALID, "%s: side kind %d is unknown", name, (int)side->kind);
}

static bool has_blocks(const struct ddi_plan_input *input)
{
    return input->src.kind == DDI_SIDE_BLOCKS || input->dst.kind == DDI_SIDE_BLOCKS;
}

static dd_status check_sizes(const struct ddi_plan_input *input, uint64_t *total, dd_error *err)
{
    uint64_t pieces;

    if (input->tensor_count == 0) {
        return ddi_fail(err, DD_INVALID, "no tensor is selected, at least 1 is needed");
    }
    if (input->bytes == 0) {
        return ddi_fail(err, DD_INVALID, "0 bytes of each tensor, at least 1 is needed");
    }
    if (!ddi_mul_u64(input->bytes, input->tensor_count, total)) {
        return ddi_fail(err, DD_INVALID,
                        "%" PRIu64 " bytes of each of %" PRIu32 " tensors do not fit into 64 bits",
                        input->bytes, input->tensor_count);
    }
    if (!has_blocks(input)) {
        return DD_OK;
    }
    if (input->piece_bytes == 0) {
        return ddi_fail(err, DD_INVALID, "block size is 0 bytes, at least 1 is needed");
    }
    pieces = (input->bytes - 1) / input->piece_bytes + 1;
    if (input->piece_count != pieces) {
        return ddi_fail(err, DD_INVALID,
                        "block list has %" PRIu64 " entries, %" PRIu64
                        " bytes in blocks of %" PRIu64 " need %" PRIu64,
                        input->piece_count, input->bytes, input->piece_bytes, pieces);
    }
    return DD_OK;
}

/* Runs. */

/* Where piece i lies in a tensor of this side. The side was checked: nothing overflows. */
static uint64_t piece_at(const struct ddi_side *side, uint64_t i, uint64_t piece_bytes)
{
    switch (side->kind) {
    case DDI_SIDE_BLOCKS:
        return side->blocks[i] * piece_bytes;
    case DDI_SIDE_LINEAR:
        return side->offset + i * piece_bytes;
    case DDI_SIDE_STREAM:
        break;
    }
    return i * piece_bytes;
}

/* Whether piece i follows piece i - 1 on this side. */
static bool follows(const struct ddi_side *side, uint64_t i)
{
    return side->kind != DDI_SIDE_BLOCKS || side->blocks[i] == side->blocks[i - 1] + 1;
}

static uint64_t count_runs(const struct ddi_plan_input *input, uint64_t piece_count)
{
    uint64_t runs = 1;

    for (uint64_t i = 1; i < piece_count; i++) {
        if (!follows(&input->src, i) || !follows(&input->dst, i)) {
            runs++;
        }
    }
    return runs;
}

static void begin_run(struct ddi_run *run, const struct ddi_plan_input *input, uint64_t piece,
                      uint64_t at)
{
    run->src = piece_at(&input->src, piece, input->piece_bytes);
    run->dst = piece_at(&input->dst, piece, input->piece_bytes);
    run->at = at;
}

static void fill_runs(struct ddi_plan *plan, const struct ddi_plan_input *input,
                      uint64_t piece_count)
{
    struct ddi_run *run = plan->runs;

    begin_run(run, input, 0, 0);
    for (uint64_t i = 1; i < piece_count; i++) {
        if (!follows(&input->src, i) || !follows(&input->dst, i)) {
            uint64_t at = i * input->piece_bytes;

            run->len = at - run->at;
            run++;
            begin_run(run, input, i, at);
        }
    }
    run->len = input->bytes - run->at;
}

dd_status ddi_plan_init(struct ddi_plan *plan, const struct ddi_plan_input *input, dd_error *err)
{
    uint64_t piece_count = has_blocks(input) ? input->piece_count : 1;
    uint64_t total = 0;
    uint64_t run_count;
    uint64_t run_bytes;
    dd_status st;

    st = check_sizes(input, &total, err);
    if (st != DD_OK) {
        return st;
    }
    st = check_side(&input->src, "source", input, err);
    if (st != DD_OK) {
        return st;
    }
    st = check_side(&input->dst, "destination", input, err);
    if (st != DD_OK) {
        return st;
    }
    run_count = count_runs(input, piece_count);
    plan->runs = plan->inline_runs;
    if (run_count > DDI_PLAN_INLINE_RUNS) {
        plan->runs = ddi_mul_u64(run_count, sizeof(plan->runs[0]), &run_bytes) &&
                             run_bytes <= SIZE_MAX
                         ? malloc((size_t)run_bytes)
                         : NULL;
    }
    if (plan->runs == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "plan with %" PRIu64 " runs", run_count);
    }
    plan->src_tensors = input->src.kind == DDI_SIDE_STREAM ? NULL : input->src.tensors;
    plan->dst_tensors = input->dst.kind == DDI_SIDE_STREAM ? NULL : input->dst.tensors;
    plan->tensor_count = input->tensor_count;
    plan->bytes = input->bytes;
    plan->total = total;
    plan->piece_bytes = input->piece_bytes;
    plan->run_count = (size_t)run_count;
    fill_runs(plan, input, piece_count);
    return DD_OK;
}

void ddi_plan_fini(struct ddi_plan *plan)
{
    if (plan->runs != plan->inline_runs) {
        free(plan->runs);
    }
    plan->runs = NULL;
    plan->run_count = 0;
}

/* Unique destinations. */

/* Mark a block; returns whether it was marked before. */
static bool mark(uint64_t *marks, uint64_t block)
{
    uint64_t bit = UINT64_C(1) << (block % 64);
    bool was_marked = (marks[block / 64] & bit) != 0;

    marks[block / 64] |= bit;
    return was_marked;
}

/* Check the range of all blocks and say whether they rise, so that none can come twice. */
static dd_status check_destinations(const uint64_t *dst, size_t count, uint64_t block_count,
                                    bool *is_rising, dd_error *err)
{
    *is_rising = true;
    for (size_t i = 0; i < count; i++) {
        if (dst[i] >= block_count) {
            return ddi_fail(err, DD_INVALID,
                            "destination: block %" PRIu64
                            " at position %zu is out of range, the cache has %" PRIu64 " blocks",
                            dst[i], i, block_count);
        }
        if (i > 0 && dst[i] <= dst[i - 1]) {
            *is_rising = false;
        }
    }
    return DD_OK;
}

static dd_status refuse_duplicates(const uint64_t *dst, size_t count, uint64_t *marks,
                                   dd_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (mark(marks, dst[i])) {
            size_t before = 0;

            while (dst[before] != dst[i]) {
                before++;
            }
            return ddi_fail(err, DD_INVALID,
                            "destination: block %" PRIu64 " comes twice, at positions %zu and %zu",
                            dst[i], before, i);
        }
    }
    return DD_OK;
}

dd_status ddi_plan_unique(uint64_t *src, uint64_t *dst, size_t *count, uint64_t block_count,
                          dd_error *err)
{
    uint64_t words = block_count / 64 + 1;
    size_t kept = *count;
    bool is_rising;
    uint64_t *marks;
    dd_status st = check_destinations(dst, *count, block_count, &is_rising, err);

    if (st != DD_OK || is_rising) {
        return st;
    }
    marks = words <= SIZE_MAX / sizeof(*marks) ? calloc((size_t)words, sizeof(*marks)) : NULL;
    if (marks == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "one bit for each of %" PRIu64 " destination blocks",
                        block_count);
    }
    if (src == NULL) {
        st = refuse_duplicates(dst, *count, marks, err);
        free(marks);
        return st;
    }
    /* From the end, so that the last pair is met first; survivors gather at the end. */
    for (size_t i = *count; i-- > 0;) {
        if (!mark(marks, dst[i])) {
            kept--;
            src[kept] = src[i];
            dst[kept] = dst[i];
        }
    }
    free(marks);
    (void)memmove(src, src + kept, (*count - kept) * sizeof(*src));
    (void)memmove(dst, dst + kept, (*count - kept) * sizeof(*dst));
    *count -= kept;
    return DD_OK;
}

/* Cursors. */

/* The run that holds position `at` of a tensor's stream; run_count at the end. */
static size_t find_run(const struct ddi_plan *plan, uint64_t at)
{
    size_t low = 0;
    size_t high = plan->run_count;

    if (at >= plan->bytes) {
        return plan->run_count;
    }
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (plan->runs[middle].at <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

struct ddi_cursor ddi_cursor_at(const struct ddi_plan *plan, uint64_t first, uint64_t len)
{
    struct ddi_cursor cursor = {.plan = plan, .left = len};
    uint64_t at = first % plan->bytes;

    cursor.tensor = (uint32_t)(first / plan->bytes);
    cursor.run = find_run(plan, at);
    cursor.in_run = at - plan->runs[cursor.run].at;
    return cursor;
}

static uint64_t src_base(const struct ddi_cursor *cursor)
{
    const struct ddi_plan *plan = cursor->plan;

    return plan->src_tensors != NULL ? plan->src_tensors[cursor->tensor]
                                     : cursor->tensor * plan->bytes;
}

static uint64_t dst_base(const struct ddi_cursor *cursor)
{
    const struct ddi_plan *plan = cursor->plan;

    return plan->dst_tensors != NULL ? plan->dst_tensors[cursor->tensor]
                                     : cursor->tensor * plan->bytes;
}

static void end_runs(struct ddi_cursor *cursor, size_t next_run)
{
    cursor->run = next_run;
    cursor->in_run = 0;
    if (next_run == cursor->plan->run_count) {
        cursor->run = 0;
        cursor->tensor++;
    }
}

/* Emit whole runs of the present tensor. The loop decides nothing per segment: which runs fit into
 * the rest of the walk is found beforehand. */
static size_t emit_whole(struct ddi_cursor *cursor, struct ddi_segment *out, size_t max)
{
    const struct ddi_plan *plan = cursor->plan;
    const struct ddi_run *run = plan->runs + cursor->run;
    uint64_t src = src_base(cursor);
    uint64_t dst = dst_base(cursor);
    uint64_t at = run->at;
    size_t last = plan->run_count;
    size_t n;

    if (cursor->left < plan->bytes - at) {
        last = find_run(plan, at + cursor->left);
    }
    n = last - cursor->run;
    if (n > max) {
        n = max;
        last = cursor->run + n;
    }
    for (size_t i = 0; i < n; i++) {
        out[i].src = src + run[i].src;
        out[i].dst = dst + run[i].dst;
        out[i].len = run[i].len;
    }
    cursor->left -= (last < plan->run_count ? plan->runs[last].at : plan->bytes) - at;
    end_runs(cursor, last);
    return n;
}

/* Emit the rest of the present run, or its beginning when the walk ends inside it. */
static void emit_part(struct ddi_cursor *cursor, struct ddi_segment *out)
{
    const struct ddi_run *run = cursor->plan->runs + cursor->run;
    uint64_t len = ddi_min_u64(run->len - cursor->in_run, cursor->left);

    out->src = src_base(cursor) + run->src + cursor->in_run;
    out->dst = dst_base(cursor) + run->dst + cursor->in_run;
    out->len = len;
    cursor->left -= len;
    cursor->in_run += len;
    if (cursor->in_run == run->len) {
        end_runs(cursor, cursor->run + 1);
    }
}

size_t ddi_cursor_next(struct ddi_cursor *cursor, struct ddi_segment *out, size_t max)
{
    size_t n = 0;

    while (n < max && cursor->left > 0) {
        if (cursor->in_run > 0 || cursor->left < cursor->plan->runs[cursor->run].len) {
            emit_part(cursor, &out[n]);
            n++;
        } else {
            n += emit_whole(cursor, out + n, max - n);
        }
    }
    return n;
}

uint64_t ddi_plan_cut(const struct ddi_plan *plan, uint32_t part, uint32_t parts)
{
    uint64_t unit = plan->piece_bytes > 0 ? plan->piece_bytes : CUT_BYTES;
    uint64_t target;

    if (part >= parts) {
        return plan->total;
    }
    /* total * part / parts without overflow: the rest is below 2^32, its product below 2^64. */
    target = plan->total / parts * part + plan->total % parts * part / parts;
    return target - target % plan->bytes % unit;
}
