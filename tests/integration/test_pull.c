/* Pulls between two engines over real sockets: every byte checked, every reference counted. */
#include "rig.h"

#include <time.h>

#define PROMPT 1
#define DECODER 2

static dd_engine *prompt;
static dd_engine *decoder;

static bool start_pair(void)
{
    prompt = rig_prompt(PROMPT);
    decoder = rig_decoder(DECODER);
    return prompt != NULL && decoder != NULL && rig_link(decoder, PROMPT, prompt) == DD_OK;
}

static void stop_pair(void)
{
    if (prompt != NULL && decoder != NULL) {
        EXPECT_EQ(rig_stats(decoder).pins, 0);
        RIG_AWAIT(rig_stats(prompt).pins == 0);
    }
    dd_engine_destroy(decoder);
    dd_engine_destroy(prompt);
}

static uint64_t count_wrong(int64_t cache, uint32_t tensors, uint64_t dst_at, uint64_t src_at,
                            uint64_t bytes)
{
    uint64_t wrong = 0;

    for (uint32_t t = 0; t < tensors; t++) {
        const uint8_t *tensor = rig_tensor(decoder, cache, tensors, t);

        for (uint64_t i = 0; i < bytes; i++) {
            wrong += tensor[dst_at + i] != rig_byte(t, src_at + i);
        }
    }
    return wrong;
}

TEST(a_pull_brings_every_byte_and_uses_the_key_up)
{
    dd_key keys[2] = {rig_key(DD_KEY_REQUEST, 7), rig_key(DD_KEY_REQUEST, 8)};
    dd_source source = rig_source(PROMPT, DD_KEY_REQUEST, 8);
    dd_slice slice = {.size = sizeof(slice), .dst_batch = 2};
    dd_error err = {0};
    int64_t src;
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    src = rig_cache(prompt, 6, 2, 10000, keys, 2);
    dst = rig_cache(decoder, 6, 3, 10000, NULL, 0);
    rig_fill(prompt, src, 6, 20000);
    EXPECT_OK(dd_cache_free(prompt, src, &err));
    EXPECT_OK(dd_pull(decoder, &source, dst, &slice, &err));
    EXPECT_EQ(count_wrong(dst, 6, 20000, 10000, 10000), 0);
    EXPECT_EQ(rig_tensor(decoder, dst, 6, 0)[19999], 0); /* the slice before is untouched */
    EXPECT_STATUS(dd_pull(decoder, &source, dst, &slice, &err), DD_NO_CACHE);
    EXPECT_CONTAINS(err.text, "8");
    source.key.id = 7;
    EXPECT_OK(dd_pull(decoder, &source, dst, NULL, &err));
    EXPECT_EQ(count_wrong(dst, 6, 0, 0, 10000), 0);
    RIG_AWAIT(rig_stats(prompt).caches == 0);
    EXPECT_EQ(rig_stats(prompt).pool_used_bytes, 0);
    stop_pair();
}

TEST(a_key_that_was_pulled_can_be_given_again_at_once)
{
    dd_key key = rig_key(DD_KEY_REQUEST, 7);
    dd_source source = rig_source(PROMPT, DD_KEY_REQUEST, 7);
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    dst = rig_cache(decoder, 2, 1, 1000, NULL, 0);
    for (int i = 0; i < 300; i++) {
        int64_t src = rig_cache(prompt, 2, 1, 1000, &key, 1);

        REQUIRE_TRUE(src != 0);
        EXPECT_OK(dd_cache_free(prompt, src, NULL));
        EXPECT_OK(dd_pull(decoder, &source, dst, NULL, NULL));
    }
    stop_pair();
}

TEST(scattered_blocks_go_where_they_belong)
{
    enum { BLOCKS = 64, BYTES = 4096, TENSORS = 4 };
    dd_key key = rig_key(DD_KEY_BLOCKS, 0);
    dd_source source = rig_source(PROMPT, DD_KEY_BLOCKS, 0);
    uint64_t from[5] = {63, 0, 10, 11, 12};
    uint64_t to[5] = {1, 2, 30, 31, 1}; /* block 1 twice: the last pair wins */
    dd_blocks blocks = {.size = sizeof(blocks), .src = from, .dst = to, .count = 5};
    dd_error err = {0};
    int64_t src;
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    src = rig_cache(prompt, TENSORS, BLOCKS, BYTES, &key, 1);
    dst = rig_cache(decoder, TENSORS, BLOCKS, BYTES, NULL, 0);
    rig_fill(prompt, src, TENSORS, (uint64_t)BLOCKS * BYTES);
    EXPECT_OK(dd_pull_blocks(decoder, &source, dst, &blocks, &err));
    EXPECT_EQ(count_wrong(dst, TENSORS, 1 * BYTES, 12 * BYTES, BYTES), 0);
    EXPECT_EQ(count_wrong(dst, TENSORS, 2 * BYTES, 0 * BYTES, BYTES), 0);
    EXPECT_EQ(count_wrong(dst, TENSORS, 30 * BYTES, 10 * BYTES, 2 * BYTES), 0);
    for (uint32_t i = 0; i < BYTES; i++) {
        EXPECT_EQ(rig_tensor(decoder, dst, TENSORS, 0)[i], 0);
    }
    EXPECT_EQ(rig_stats(prompt).keys, 1);
    from[4] = 64;
    EXPECT_STATUS(dd_pull_blocks(decoder, &source, dst, &blocks, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "64");
    from[4] = 12;
    to[0] = 64;
    EXPECT_STATUS(dd_pull_blocks(decoder, &source, dst, &blocks, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "destination");
    stop_pair();
}

TEST(a_large_pull_over_several_connections_is_whole)
{
    enum { TENSORS = 10, BLOCKS = 512, BYTES = 16384 };
    dd_key key = rig_key(DD_KEY_BLOCKS, 0);
    dd_source source = rig_source(PROMPT, DD_KEY_BLOCKS, 0);
    static uint64_t from[BLOCKS];
    static uint64_t to[BLOCKS];
    dd_blocks blocks = {.size = sizeof(blocks), .src = from, .dst = to, .count = BLOCKS};
    dd_error err = {0};
    uint64_t wrong = 0;
    int64_t src;
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    for (uint64_t i = 0; i < BLOCKS; i++) {
        from[i] = i * 37 % BLOCKS;
        to[i] = i * 101 % BLOCKS;
    }
    src = rig_cache(prompt, TENSORS, BLOCKS, BYTES, &key, 1);
    dst = rig_cache(decoder, TENSORS, BLOCKS, BYTES, NULL, 0);
    rig_fill(prompt, src, TENSORS, (uint64_t)BLOCKS * BYTES);
    for (int round = 0; round < 3; round++) {
        EXPECT_OK(dd_pull_blocks(decoder, &source, dst, &blocks, &err));
    }
    for (uint64_t i = 0; i < BLOCKS; i++) {
        wrong += count_wrong(dst, TENSORS, to[i] * BYTES, from[i] * BYTES, BYTES);
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(rig_stats(decoder).bytes_pulled, UINT64_C(3) * TENSORS * BLOCKS * BYTES);
    RIG_AWAIT(rig_stats(prompt).bytes_served == UINT64_C(3) * TENSORS * BLOCKS * BYTES);
    stop_pair();
}

TEST(a_contiguous_source_is_cut_into_blocks_with_a_short_tail)
{
    dd_key key = rig_key(DD_KEY_REQUEST, 5);
    dd_source source = rig_source(PROMPT, DD_KEY_REQUEST, 5);
    uint64_t to[3] = {7, 2, 5};
    dd_blocks blocks = {.size = sizeof(blocks), .dst = to, .count = 3};
    dd_error err = {0};
    int64_t src;
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    src = rig_cache(prompt, 2, 1, 2500, &key, 1);
    dst = rig_cache(decoder, 2, 8, 1000, NULL, 0);
    rig_fill(prompt, src, 2, 2500);
    EXPECT_OK(dd_pull_blocks(decoder, &source, dst, &blocks, &err));
    EXPECT_EQ(count_wrong(dst, 2, 7000, 0, 1000), 0);
    EXPECT_EQ(count_wrong(dst, 2, 2000, 1000, 1000), 0);
    EXPECT_EQ(count_wrong(dst, 2, 5000, 2000, 500), 0);
    EXPECT_EQ(rig_tensor(decoder, dst, 2, 1)[5500], 0);
    EXPECT_STATUS(dd_pull_blocks(decoder, &source, dst, &blocks, &err), DD_NO_CACHE);
    stop_pair();
}

TEST(pieces_over_several_connections_are_whole)
{
    enum { BLOCK = 1000000, BYTES = 10500000, PIECES = 11 };
    dd_key key = rig_key(DD_KEY_PREFIX, 5);
    dd_source source = rig_source(PROMPT, DD_KEY_PREFIX, 5);
    uint64_t to[PIECES];
    dd_blocks blocks = {.size = sizeof(blocks), .dst = to, .count = PIECES};
    dd_error err = {0};
    int64_t src;
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    src = rig_cache(prompt, 2, 1, BYTES, &key, 1);
    dst = rig_cache(decoder, 2, PIECES, BLOCK, NULL, 0);
    rig_fill(prompt, src, 2, BYTES);
    for (uint64_t i = 0; i < PIECES; i++) {
        to[i] = i * 3 % PIECES;
    }
    EXPECT_OK(dd_pull_blocks(decoder, &source, dst, &blocks, &err));
    for (uint64_t i = 0; i < PIECES; i++) {
        uint64_t bytes = i == PIECES - 1 ? BYTES % BLOCK : BLOCK;

        EXPECT_EQ(count_wrong(dst, 2, to[i] * BLOCK, i * BLOCK, bytes), 0);
    }
    stop_pair();
}

TEST(layer_ranges_change_exactly_their_layers)
{
    enum { BYTES = 64 };
    dd_key key = rig_key(DD_KEY_REQUEST, 5);
    dd_source source = rig_source(PROMPT, DD_KEY_REQUEST, 5);
    dd_slice slice = {.size = sizeof(slice)};
    dd_error err = {0};
    int64_t src;
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    src = rig_cache(prompt, 16, 1, BYTES, &key, 1);
    dst = rig_cache(decoder, 32, 1, BYTES, NULL, 0);
    rig_fill(prompt, src, 16, BYTES);
    slice.src_layers = (dd_layers){.first = 0, .count = 8};
    slice.dst_layers = (dd_layers){.first = 8, .count = 8};
    slice.keep_key = true;
    EXPECT_OK(dd_pull(decoder, &source, dst, &slice, &err));
    for (uint32_t t = 0; t < 32; t++) {
        const uint8_t *tensor = rig_tensor(decoder, dst, 32, t);

        for (uint32_t i = 0; i < BYTES; i++) {
            EXPECT_EQ(tensor[i], t < 16 ? 0 : rig_byte(t - 16, i));
        }
    }
    slice.dst_layers.count = 7;
    EXPECT_STATUS(dd_pull(decoder, &source, dst, &slice, &err), DD_INVALID);
    slice.dst_layers.count = 8;
    slice.src_layers.first = 1;
    EXPECT_STATUS(dd_pull(decoder, &source, dst, &slice, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "source");
    /* The key goes when every tensor was pulled once, over all pulls. */
    slice.keep_key = false;
    slice.src_layers = (dd_layers){.first = 0, .count = 5};
    slice.dst_layers = (dd_layers){.first = 0, .count = 5};
    EXPECT_OK(dd_pull(decoder, &source, dst, &slice, &err));
    slice.src_layers = (dd_layers){.first = 5, .count = 3};
    slice.dst_layers = (dd_layers){.first = 0, .count = 3};
    EXPECT_OK(dd_pull(decoder, &source, dst, &slice, &err));
    EXPECT_STATUS(dd_pull(decoder, &source, dst, &slice, &err), DD_NO_CACHE);
    stop_pair();
}

TEST(block_sizes_that_differ_are_refused_with_both)
{
    dd_key key = rig_key(DD_KEY_BLOCKS, 0);
    dd_source source = rig_source(PROMPT, DD_KEY_BLOCKS, 0);
    uint64_t list[1] = {0};
    dd_blocks blocks = {.size = sizeof(blocks), .src = list, .dst = list, .count = 1};
    dd_error err = {0};
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    (void)rig_cache(prompt, 2, 4, 1600, &key, 1);
    dst = rig_cache(decoder, 2, 4, 3200, NULL, 0);
    EXPECT_STATUS(dd_pull_blocks(decoder, &source, dst, &blocks, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "1600");
    EXPECT_CONTAINS(err.text, "3200");
    EXPECT_EQ(rig_tensor(decoder, dst, 2, 0)[0], 0);
    stop_pair();
}

TEST(a_destination_that_is_gone_is_told_before_the_link)
{
    dd_source source = rig_source(77, DD_KEY_REQUEST, 5);
    dd_error err = {0};
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    dst = rig_cache(decoder, 2, 1, 64, NULL, 0);
    EXPECT_STATUS(dd_pull(decoder, &source, dst, NULL, &err), DD_NOT_LINKED);
    EXPECT_CONTAINS(err.text, "77");
    EXPECT_OK(dd_cache_free(decoder, dst, &err));
    EXPECT_STATUS(dd_pull(decoder, &source, dst, NULL, &err), DD_NO_CACHE);
    stop_pair();
}

TEST(the_listening_side_can_pull_too)
{
    dd_key key = rig_key(DD_KEY_PREFIX, 9);
    dd_source source = rig_source(DECODER, DD_KEY_PREFIX, 9);
    dd_error err = {0};
    int64_t src;
    int64_t dst;

    REQUIRE_TRUE(start_pair());
    RIG_AWAIT(rig_stats(prompt).links == 1);
    src = rig_cache(decoder, 2, 1, 100000, &key, 1);
    dst = rig_cache(prompt, 2, 1, 100000, NULL, 0);
    rig_fill(decoder, src, 2, 100000);
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(dd_pull(prompt, &source, dst, NULL, &err));
        EXPECT_EQ(memcmp(rig_tensor(prompt, dst, 2, 1), rig_tensor(decoder, src, 2, 1), 100000), 0);
    }
    dd_engine_destroy(decoder);
    decoder = NULL;
    dd_engine_destroy(prompt);
}

TEST(an_engine_can_link_and_pull_from_itself)
{
    dd_key key = rig_key(DD_KEY_PREFIX, 9);
    dd_source source = rig_source(PROMPT, DD_KEY_PREFIX, 9);
    dd_engine *self = rig_prompt(PROMPT);
    dd_error err = {0};
    int64_t src;
    int64_t dst;

    REQUIRE_TRUE(self != NULL);
    REQUIRE_OK(rig_link(self, PROMPT, self));
    src = rig_cache(self, 2, 1, 1000, &key, 1);
    dst = rig_cache(self, 2, 1, 1000, NULL, 0);
    rig_fill(self, src, 2, 1000);
    EXPECT_OK(dd_pull(self, &source, dst, NULL, &err));
    EXPECT_EQ(memcmp(rig_tensor(self, dst, 2, 1), rig_tensor(self, src, 2, 1), 1000), 0);
    EXPECT_OK(rig_unlink(self, PROMPT, false));
    dd_engine_destroy(self);
}

TEST(views_outlive_cache_and_engine)
{
    dd_engine *engine = rig_decoder(DECODER);
    dd_view *view = NULL;
    dd_error err = {0};
    int64_t cache;

    REQUIRE_TRUE(engine != NULL);
    cache = rig_cache(engine, 2, 1, 1000, NULL, 0);
    REQUIRE_OK(dd_view_open(engine, cache, 0, 1, &view, &err));
    EXPECT_STATUS(dd_view_open(engine, cache, 0, 2, &view, &err), DD_INVALID);
    EXPECT_STATUS(dd_view_open(engine, cache, 1, 0, &view, &err), DD_INVALID);
    EXPECT_EQ(dd_view_bytes(view), 1000);
    EXPECT_OK(dd_cache_free(engine, cache, &err));
    EXPECT_EQ(rig_stats(engine).pool_used_bytes, 2048);
    dd_engine_stop(engine);
    EXPECT_STATUS(dd_cache_free(engine, cache, &err), DD_FINALIZED);
    dd_engine_destroy(engine);
    (void)memset(dd_view_data(view), 1, 1000);
    dd_view_close(view);
}

CHECK_MAIN(RUN(a_pull_brings_every_byte_and_uses_the_key_up);
           RUN(a_key_that_was_pulled_can_be_given_again_at_once);
           RUN(scattered_blocks_go_where_they_belong);
           RUN(a_large_pull_over_several_connections_is_whole);
           RUN(a_contiguous_source_is_cut_into_blocks_with_a_short_tail);
           RUN(pieces_over_several_connections_are_whole);
           RUN(layer_ranges_change_exactly_their_layers);
           RUN(block_sizes_that_differ_are_refused_with_both);
           RUN(a_destination_that_is_gone_is_told_before_the_link);
           RUN(the_listening_side_can_pull_too); RUN(an_engine_can_link_and_pull_from_itself);
           RUN(views_outlive_cache_and_engine);)
