/* The planner: runs, cursors, cuts, unique destinations, and what is refused. */
#include "plan/plan.h"

#include "check.h"

#define BLOCK 1024
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const uint64_t src_tensors[] = {0x100000, 0x300000, 0x200000};
static const uint64_t dst_tensors[] = {0x900000, 0x800000, 0x700000};

static struct ddi_side linear(const uint64_t *tensors, uint64_t tensor_bytes, uint64_t offset)
{
    return (struct ddi_side){.kind = DDI_SIDE_LINEAR,
                             .tensors = tensors,
                             .tensor_bytes = tensor_bytes,
                             .offset = offset};
}

static struct ddi_side blocks(const uint64_t *tensors, const uint64_t *list, uint64_t block_count)
{
    return (struct ddi_side){.kind = DDI_SIDE_BLOCKS,
                             .tensors = tensors,
                             .tensor_bytes = block_count * BLOCK,
                             .blocks = list,
                             .block_count = block_count};
}

static struct ddi_side stream(void)
{
    return (struct ddi_side){.kind = DDI_SIDE_STREAM};
}

/* Block pairs between two tensors of 16 blocks each. */
static struct ddi_plan_input pairs(const uint64_t *src, const uint64_t *dst, uint64_t n)
{
    return (struct ddi_plan_input){.src = blocks(src_tensors, src, 16),
                                   .dst = blocks(dst_tensors, dst, 16),
                                   .tensor_count = 1,
                                   .bytes = n * BLOCK,
                                   .piece_bytes = BLOCK,
                                   .piece_count = n};
}

static size_t all_segments(const struct ddi_plan *plan, struct ddi_segment *out, size_t max)
{
    struct ddi_cursor cursor = ddi_cursor_at(plan, 0, plan->total);

    return ddi_cursor_next(&cursor, out, max);
}

static void expect_segment(const struct ddi_segment *segment, uint64_t src, uint64_t dst,
                           uint64_t len)
{
    EXPECT_EQ(segment->src, src);
    EXPECT_EQ(segment->dst, dst);
    EXPECT_EQ(segment->len, len);
}

/* The input is refused and the text has both parts. */
static void expect_refused(const struct ddi_plan_input *input, const char *part,
                           const char *other_part)
{
    struct ddi_plan plan = {0};
    dd_error err = {0};

    EXPECT_STATUS(ddi_plan_init(&plan, input, &err), DD_INVALID);
    EXPECT_EQ(err.status, DD_INVALID);
    EXPECT_CONTAINS(err.text, part);
    EXPECT_CONTAINS(err.text, other_part);
    ddi_plan_fini(&plan);
}

TEST(contiguous_slice_is_one_segment_per_tensor)
{
    struct ddi_plan_input input = {.src = linear(src_tensors, 4096, 100),
                                   .dst = linear(dst_tensors, 8192, 5000),
                                   .tensor_count = 3,
                                   .bytes = 3000};
    struct ddi_segment out[8];
    struct ddi_plan plan = {0};

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(plan.total, 9000);
    EXPECT_EQ(all_segments(&plan, out, COUNT_OF(out)), 3);
    for (size_t i = 0; i < 3; i++) {
        expect_segment(&out[i], src_tensors[i] + 100, dst_tensors[i] + 5000, 3000);
    }
    ddi_plan_fini(&plan);
}

TEST(blocks_next_to_each_other_become_one_segment)
{
    uint64_t src[] = {4, 5, 6}, dst[] = {0, 1, 2};
    struct ddi_plan_input input = pairs(src, dst, 3);
    struct ddi_segment out[4];
    struct ddi_plan plan = {0};

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(plan.run_count, 1);
    EXPECT_EQ(all_segments(&plan, out, COUNT_OF(out)), 1);
    expect_segment(&out[0], src_tensors[0] + 4 * BLOCK, dst_tensors[0], 3 * BLOCK);
    ddi_plan_fini(&plan);
}

TEST(neighbours_on_one_side_only_stay_apart)
{
    uint64_t src[] = {4, 5, 6, 3}, dst[] = {0, 2, 3, 4};
    struct ddi_plan_input input = pairs(src, dst, 4);
    struct ddi_segment out[4];
    struct ddi_plan plan = {0};

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(all_segments(&plan, out, COUNT_OF(out)), 3);
    expect_segment(&out[0], src_tensors[0] + 4 * BLOCK, dst_tensors[0], BLOCK);
    expect_segment(&out[1], src_tensors[0] + 5 * BLOCK, dst_tensors[0] + 2 * BLOCK, 2 * BLOCK);
    expect_segment(&out[2], src_tensors[0] + 3 * BLOCK, dst_tensors[0] + 4 * BLOCK, BLOCK);
    ddi_plan_fini(&plan);
}

TEST(falling_neighbours_stay_apart)
{
    uint64_t src[] = {6, 5, 4}, dst[] = {2, 1, 0};
    struct ddi_plan_input input = pairs(src, dst, 3);
    struct ddi_plan plan = {0};

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(plan.run_count, 3);
    ddi_plan_fini(&plan);
}

TEST(tensors_that_touch_are_not_merged)
{
    uint64_t touching[] = {0x10000, 0x11000};
    struct ddi_plan_input input = {
        .src = linear(touching, 4096, 0), .dst = stream(), .tensor_count = 2, .bytes = 4096};
    struct ddi_segment out[4];
    struct ddi_plan plan = {0};

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(all_segments(&plan, out, COUNT_OF(out)), 2);
    expect_segment(&out[0], 0x10000, 0, 4096);
    expect_segment(&out[1], 0x11000, 4096, 4096);
    ddi_plan_fini(&plan);
}

TEST(last_piece_may_be_short)
{
    uint64_t dst[] = {7, 2, 3};
    struct ddi_plan_input input = {.src = linear(src_tensors, 4 * BLOCK, BLOCK / 2),
                                   .dst = blocks(dst_tensors, dst, 8),
                                   .tensor_count = 2,
                                   .bytes = 2 * BLOCK + 1,
                                   .piece_bytes = BLOCK,
                                   .piece_count = 3};
    struct ddi_segment out[8];
    struct ddi_plan plan = {0};

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(all_segments(&plan, out, COUNT_OF(out)), 4);
    for (size_t t = 0; t < 2; t++) {
        expect_segment(&out[2 * t], src_tensors[t] + BLOCK / 2, dst_tensors[t] + 7 * BLOCK, BLOCK);
        expect_segment(&out[2 * t + 1], src_tensors[t] + BLOCK / 2 + BLOCK,
                       dst_tensors[t] + 2 * BLOCK, BLOCK + 1);
    }
    ddi_plan_fini(&plan);
}

TEST(stream_positions_go_on_over_tensors)
{
    uint64_t src[] = {3, 1};
    struct ddi_plan_input input = {.src = blocks(src_tensors, src, 4),
                                   .dst = stream(),
                                   .tensor_count = 2,
                                   .bytes = 2 * BLOCK,
                                   .piece_bytes = BLOCK,
                                   .piece_count = 2};
    struct ddi_segment out[8];
    struct ddi_plan plan = {0};

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(all_segments(&plan, out, COUNT_OF(out)), 4);
    for (size_t i = 0; i < 4; i++) {
        EXPECT_EQ(out[i].dst, i * BLOCK);
    }
    EXPECT_EQ(out[3].src, src_tensors[1] + BLOCK);
    ddi_plan_fini(&plan);
}

TEST(cursor_starts_and_ends_inside_runs)
{
    uint64_t src[] = {0, 5, 6}, dst[] = {9, 3, 4};
    struct ddi_plan_input input = pairs(src, dst, 3);
    struct ddi_segment out[4];
    struct ddi_plan plan = {0};
    struct ddi_cursor cursor;

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    cursor = ddi_cursor_at(&plan, BLOCK - 10, 20);
    EXPECT_EQ(ddi_cursor_next(&cursor, out, 4), 2);
    expect_segment(&out[0], src_tensors[0] + BLOCK - 10, dst_tensors[0] + 10 * BLOCK - 10, 10);
    expect_segment(&out[1], src_tensors[0] + 5 * BLOCK, dst_tensors[0] + 3 * BLOCK, 10);
    EXPECT_EQ(ddi_cursor_next(&cursor, out, 4), 0);

    cursor = ddi_cursor_at(&plan, 2 * BLOCK, 7);
    EXPECT_EQ(ddi_cursor_next(&cursor, out, 4), 1);
    expect_segment(&out[0], src_tensors[0] + 6 * BLOCK, dst_tensors[0] + 4 * BLOCK, 7);
    ddi_plan_fini(&plan);
}

TEST(cursor_gives_the_same_in_batches_of_one)
{
    uint64_t src[] = {0, 2, 4, 6}, dst[] = {9, 7, 5, 3};
    struct ddi_plan_input input = pairs(src, dst, 4);
    struct ddi_segment all[16], one;
    struct ddi_plan plan = {0};
    struct ddi_cursor cursor;
    size_t n;

    input.tensor_count = 3;
    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    n = all_segments(&plan, all, COUNT_OF(all));
    EXPECT_EQ(n, 12);
    cursor = ddi_cursor_at(&plan, 0, plan.total);
    for (size_t i = 0; i < n; i++) {
        EXPECT_EQ(ddi_cursor_next(&cursor, &one, 1), 1);
        expect_segment(&one, all[i].src, all[i].dst, all[i].len);
    }
    EXPECT_EQ(ddi_cursor_next(&cursor, &one, 1), 0);
    ddi_plan_fini(&plan);
}

TEST(empty_walks_emit_nothing)
{
    struct ddi_plan_input input = {
        .src = linear(src_tensors, 4096, 0), .dst = stream(), .tensor_count = 2, .bytes = 4096};
    struct ddi_segment out[2];
    struct ddi_plan plan = {0};
    struct ddi_cursor cursor;

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    cursor = ddi_cursor_at(&plan, 10, 0);
    EXPECT_EQ(ddi_cursor_next(&cursor, out, 2), 0);
    cursor = ddi_cursor_at(&plan, plan.total, 0);
    EXPECT_EQ(ddi_cursor_next(&cursor, out, 2), 0);
    cursor = ddi_cursor_at(&plan, 0, plan.total);
    EXPECT_EQ(ddi_cursor_next(&cursor, out, 0), 0);
    EXPECT_EQ(ddi_cursor_next(&cursor, out, 2), 2);
    ddi_plan_fini(&plan);
}

TEST(many_runs_are_kept_outside_the_plan)
{
    enum { N = 4 * DDI_PLAN_INLINE_RUNS };
    static uint64_t src[N], dst[N];
    struct ddi_plan_input input;
    struct ddi_plan plan = {0};

    for (uint64_t i = 0; i < N; i++) {
        src[i] = 2 * i;
        dst[i] = i;
    }
    input = pairs(src, dst, N);
    input.src = blocks(src_tensors, src, 2 * N);
    input.dst = blocks(dst_tensors, dst, N);
    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(plan.run_count, N);
    EXPECT_TRUE(plan.runs != plan.inline_runs);
    ddi_plan_fini(&plan);
    ddi_plan_fini(&plan); /* twice is fine */
}

TEST(cuts_lie_at_piece_borders_and_cover_everything)
{
    uint64_t src[] = {0, 2, 4, 6, 8}, dst[] = {9, 7, 5, 3, 1};
    struct ddi_plan_input input = pairs(src, dst, 5);
    struct ddi_plan plan = {0};

    input.tensor_count = 3;
    input.bytes = 4 * BLOCK + 100;
    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    for (uint32_t parts = 1; parts < 40; parts++) {
        EXPECT_EQ(ddi_plan_cut(&plan, 0, parts), 0);
        EXPECT_EQ(ddi_plan_cut(&plan, parts, parts), plan.total);
        for (uint32_t part = 0; part < parts; part++) {
            uint64_t cut = ddi_plan_cut(&plan, part, parts);

            EXPECT_EQ(cut % input.bytes % BLOCK, 0);
            EXPECT_TRUE(cut <= ddi_plan_cut(&plan, part + 1, parts));
        }
    }
    ddi_plan_fini(&plan);
}

TEST(both_sides_of_a_transfer_cut_alike)
{
    uint64_t list[] = {3, 1, 2};
    struct ddi_plan_input owner = {.src = linear(src_tensors, 3 * BLOCK, 0),
                                   .dst = stream(),
                                   .tensor_count = 3,
                                   .bytes = 3 * BLOCK - 1,
                                   .piece_bytes = BLOCK};
    struct ddi_plan_input puller = {.src = stream(),
                                    .dst = blocks(dst_tensors, list, 4),
                                    .tensor_count = 3,
                                    .bytes = 3 * BLOCK - 1,
                                    .piece_bytes = BLOCK,
                                    .piece_count = 3};
    struct ddi_plan owner_plan = {0}, puller_plan = {0};

    REQUIRE_OK(ddi_plan_init(&owner_plan, &owner, NULL));
    REQUIRE_OK(ddi_plan_init(&puller_plan, &puller, NULL));
    EXPECT_EQ(owner_plan.total, puller_plan.total);
    for (uint32_t part = 0; part <= 7; part++) {
        EXPECT_EQ(ddi_plan_cut(&owner_plan, part, 7), ddi_plan_cut(&puller_plan, part, 7));
    }
    ddi_plan_fini(&owner_plan);
    ddi_plan_fini(&puller_plan);
}

TEST(cuts_without_pieces_are_page_multiples)
{
    struct ddi_plan_input input = {.src = stream(),
                                   .dst = linear(dst_tensors, 1 << 20, 0),
                                   .tensor_count = 2,
                                   .bytes = 100000};
    struct ddi_plan plan = {0};

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    EXPECT_EQ(ddi_plan_cut(&plan, 1, 4), 49152);  /* of 50000 */
    EXPECT_EQ(ddi_plan_cut(&plan, 2, 4), 100000); /* the second tensor */
    EXPECT_EQ(ddi_plan_cut(&plan, 3, 4), 100000 + 49152);
    ddi_plan_fini(&plan);
}

TEST(huge_streams_are_cut_without_overflow)
{
    uint64_t at_zero = 0;
    struct ddi_plan_input input = {.src = linear(&at_zero, UINT64_MAX, 0),
                                   .dst = stream(),
                                   .tensor_count = 1,
                                   .bytes = UINT64_MAX};
    struct ddi_plan plan = {0};
    uint64_t half;

    REQUIRE_OK(ddi_plan_init(&plan, &input, NULL));
    half = ddi_plan_cut(&plan, UINT32_MAX / 2, UINT32_MAX);
    EXPECT_TRUE(half > UINT64_MAX / 2 - (UINT64_C(1) << 33));
    EXPECT_TRUE(half <= UINT64_MAX / 2);
    ddi_plan_fini(&plan);
}

TEST(block_out_of_range_names_side_position_and_limit)
{
    uint64_t good[] = {0, 1, 2}, bad[] = {0, 1, 16};
    struct ddi_plan_input input = pairs(bad, good, 3);

    expect_refused(&input, "source: block 16 at position 2", "has 16 blocks");
    input = pairs(good, bad, 3);
    expect_refused(&input, "destination: block 16 at position 2", "has 16 blocks");
    bad[2] = UINT64_MAX; /* -1 */
    expect_refused(&input, "destination: block 18446744073709551615 at position 2",
                   "has 16 blocks");
}

TEST(unequal_block_sizes_are_refused_with_both_sizes)
{
    uint64_t list[] = {0, 1};
    struct ddi_plan_input input = pairs(list, list, 2);

    input.src.block_count = 8; /* 16 KiB in 8 blocks of 2048 */
    expect_refused(&input, "source: block size of 1024 bytes", "16384 bytes in 8 blocks");
    input = pairs(list, list, 2);
    input.dst.tensor_bytes--;
    expect_refused(&input, "destination: block size of 1024 bytes", "16383 bytes in 16 blocks");
}

TEST(lists_of_wrong_length_are_refused)
{
    uint64_t list[] = {0, 1, 2};
    struct ddi_plan_input input = pairs(list, list, 3);

    input.piece_count = 2;
    expect_refused(&input, "2 entries", "need 3");
    input.piece_count = 4;
    expect_refused(&input, "4 entries", "need 3");
    input.piece_count = 0;
    expect_refused(&input, "0 entries", "need 3");
    input.piece_bytes = 0;
    expect_refused(&input, "block size is 0", "");
    input = pairs(list, NULL, 3);
    expect_refused(&input, "destination: block list", "missing");
}

TEST(bytes_outside_a_tensor_are_refused)
{
    struct ddi_plan_input input = {.src = linear(src_tensors, 4096, 4000),
                                   .dst = linear(dst_tensors, 4096, 0),
                                   .tensor_count = 1,
                                   .bytes = 97};

    expect_refused(&input, "source: 97 bytes from offset 4000", "4096 bytes");
    input.bytes = 96;
    input.dst.offset = UINT64_MAX - 10; /* the sum would wrap */
    expect_refused(&input, "destination: 96 bytes from offset 18446744073709551605", "4096 bytes");
    input.dst.offset = 4097;
    expect_refused(&input, "destination: 96 bytes from offset 4097", "4096 bytes");
}

TEST(nothing_selected_is_refused)
{
    struct ddi_plan_input input = {
        .src = linear(src_tensors, 4096, 0), .dst = stream(), .tensor_count = 0, .bytes = 10};

    expect_refused(&input, "no tensor", "at least 1");
    input.tensor_count = 1;
    input.bytes = 0;
    expect_refused(&input, "0 bytes", "at least 1");
    input.bytes = 1;
    input.src.tensors = NULL;
    expect_refused(&input, "source: tensor addresses", "missing");
    input.src.kind = (enum ddi_side_kind)7;
    input.src.tensors = src_tensors;
    expect_refused(&input, "source: side kind 7", "unknown");
}

TEST(sizes_that_overflow_are_refused)
{
    uint64_t list[] = {0};
    uint64_t high = UINT64_MAX - 100;
    struct ddi_plan_input input = {.src = linear(src_tensors, UINT64_MAX, 0),
                                   .dst = stream(),
                                   .tensor_count = 2,
                                   .bytes = UINT64_C(1) << 63};

    expect_refused(&input, "9223372036854775808 bytes of each of 2 tensors", "64 bits");
    input.tensor_count = 1;
    expect_refused(&input, "source: tensor 0", "address space");
    input.src = linear(&high, 101, 0);
    input.bytes = 1;
    expect_refused(&input, "source: tensor 0", "address space");

    input = pairs(list, list, 1);
    input.src.block_count = (UINT64_C(1) << 54) + 16; /* times BLOCK is 16 * BLOCK again */
    expect_refused(&input, "source: block size", "does not fit");
}

TEST(unique_keeps_the_last_pair_of_each_destination)
{
    uint64_t src[] = {10, 11, 12, 13, 14, 15}, dst[] = {5, 3, 5, 8, 3, 1};
    size_t count = 6;

    EXPECT_OK(ddi_plan_unique(src, dst, &count, 9, NULL));
    EXPECT_EQ(count, 4);
    EXPECT_TRUE(memcmp(src, (uint64_t[]){12, 13, 14, 15}, 32) == 0);
    EXPECT_TRUE(memcmp(dst, (uint64_t[]){5, 8, 3, 1}, 32) == 0);
}

TEST(unique_leaves_lists_without_duplicates_alone)
{
    uint64_t src[] = {1, 1, 1}, dst[] = {64, 0, 63};
    size_t count = 3;

    EXPECT_OK(ddi_plan_unique(src, dst, &count, 65, NULL));
    EXPECT_EQ(count, 3);
    EXPECT_TRUE(memcmp(dst, (uint64_t[]){64, 0, 63}, 24) == 0);
    EXPECT_OK(ddi_plan_unique(NULL, dst, &count, 65, NULL));
    count = 0;
    EXPECT_OK(ddi_plan_unique(src, dst, &count, 65, NULL));
    EXPECT_EQ(count, 0);
}

TEST(unique_needs_no_memory_for_rising_lists)
{
    uint64_t src[] = {1, 2}, dst[] = {5, UINT64_MAX - 1};
    size_t count = 2;

    EXPECT_OK(ddi_plan_unique(src, dst, &count, UINT64_MAX, NULL));
    EXPECT_EQ(count, 2);
}

TEST(unique_refuses_what_is_out_of_range_and_changes_nothing)
{
    uint64_t src[] = {1, 2, 3}, dst[] = {5, 5, 9};
    size_t count = 3;
    dd_error err = {0};

    EXPECT_STATUS(ddi_plan_unique(src, dst, &count, 9, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "block 9 at position 2");
    EXPECT_CONTAINS(err.text, "has 9 blocks");
    EXPECT_EQ(count, 3);
    EXPECT_EQ(src[0], 1);
    EXPECT_EQ(dst[1], 5);
}

TEST(unique_refuses_duplicates_of_a_cut_source)
{
    uint64_t dst[] = {5, 4, 6, 4};
    size_t count = 4;
    dd_error err = {0};

    EXPECT_STATUS(ddi_plan_unique(NULL, dst, &count, 9, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "block 4 comes twice, at positions 1 and 3");
    EXPECT_EQ(count, 4);
}

CHECK_MAIN(
    RUN(contiguous_slice_is_one_segment_per_tensor);
    RUN(blocks_next_to_each_other_become_one_segment); RUN(neighbours_on_one_side_only_stay_apart);
    RUN(falling_neighbours_stay_apart); RUN(tensors_that_touch_are_not_merged);
    RUN(last_piece_may_be_short); RUN(stream_positions_go_on_over_tensors);
    RUN(cursor_starts_and_ends_inside_runs); RUN(cursor_gives_the_same_in_batches_of_one);
    RUN(empty_walks_emit_nothing); RUN(many_runs_are_kept_outside_the_plan);
    RUN(cuts_lie_at_piece_borders_and_cover_everything); RUN(both_sides_of_a_transfer_cut_alike);
    RUN(cuts_without_pieces_are_page_multiples); RUN(huge_streams_are_cut_without_overflow);
    RUN(block_out_of_range_names_side_position_and_limit);
    RUN(unequal_block_sizes_are_refused_with_both_sizes); RUN(lists_of_wrong_length_are_refused);
    RUN(bytes_outside_a_tensor_are_refused); RUN(nothing_selected_is_refused);
    RUN(sizes_that_overflow_are_refused); RUN(unique_keeps_the_last_pair_of_each_destination);
    RUN(unique_leaves_lists_without_duplicates_alone); RUN(unique_needs_no_memory_for_rising_lists);
    RUN(unique_refuses_what_is_out_of_range_and_changes_nothing);
    RUN(unique_refuses_duplicates_of_a_cut_source);)
