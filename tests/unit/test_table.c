/* The cache table: ids, keys, pins and views, and what keeps memory alive. */
#include "check.h"

#include "store/table.h"

#include <pthread.h>

static struct ddi_pool *pool;
static struct ddi_table *table;

static void set_up(uint64_t limit)
{
    struct ddi_pool_config config = {
        .device = &ddi_cpu_device, .limit_bytes = limit, .limit_fraction = 0.5};

    EXPECT_OK(ddi_pool_create(&config, &pool, NULL));
    EXPECT_OK(ddi_table_create(pool, 1, &table, NULL));
}

static void tear_down(void)
{
    struct ddi_pool_stats stats;

    ddi_table_destroy(table);
    ddi_pool_stats(pool, &stats);
    EXPECT_EQ(stats.used_bytes, 0);
    ddi_pool_put(pool);
}

static dd_status alloc(int64_t batch, const dd_key *keys, size_t key_count, int64_t *cache,
                       dd_error *err)
{
    const int64_t dims[2] = {batch, 100};
    const dd_cache_desc desc = {.size = sizeof(desc),
                                .tensor_count = 4,
                                .data_type = DD_FLOAT32,
                                .dim_count = 2,
                                .dims = dims};

    return ddi_table_alloc(table, &desc, keys, key_count, cache, err);
}

static dd_key key(dd_key_kind kind, uint64_t id)
{
    return (dd_key){.size = sizeof(dd_key), .kind = kind, .id = id};
}

static dd_status find(dd_key_kind kind, uint64_t id, struct ddi_grant *grant)
{
    struct ddi_source_ref ref = {.kind = kind, .id = id};

    return ddi_table_find(table, &ref, grant, NULL);
}

static uint64_t used(void)
{
    struct ddi_pool_stats stats;

    ddi_pool_stats(pool, &stats);
    return stats.used_bytes;
}

static struct ddi_table_stats stats_now(void)
{
    struct ddi_table_stats stats;

    ddi_table_stats(table, &stats);
    return stats;
}

TEST(ids_start_at_one_and_never_come_again)
{
    int64_t first = 0;
    int64_t second = 0;
    dd_error err = {0};

    set_up(0);
    EXPECT_OK(alloc(1, NULL, 0, &first, &err));
    EXPECT_EQ(first, 1);
    EXPECT_OK(ddi_table_free(table, first, &err));
    EXPECT_STATUS(ddi_table_free(table, first, &err), DD_NO_CACHE);
    EXPECT_CONTAINS(err.text, "freed");
    EXPECT_STATUS(ddi_table_free(table, 77, &err), DD_NO_CACHE);
    EXPECT_OK(alloc(1, NULL, 0, &second, &err));
    EXPECT_TRUE(second > first);
    EXPECT_STATUS(ddi_table_free(table, 0, &err), DD_NO_CACHE);
    EXPECT_STATUS(ddi_table_free(table, -1, &err), DD_NO_CACHE);
    tear_down();
}

TEST(a_key_keeps_a_freed_cache_until_it_is_used_up)
{
    dd_key keys[2] = {key(DD_KEY_REQUEST, 5), key(DD_KEY_REQUEST, 6)};
    struct ddi_entry *entry;
    struct ddi_grant grant;
    int64_t cache;

    set_up(0);
    REQUIRE_OK(alloc(2, keys, 2, &cache, NULL));
    EXPECT_OK(ddi_table_free(table, cache, NULL));
    EXPECT_STATUS(ddi_table_pin(table, cache, &entry, NULL), DD_NO_CACHE);
    EXPECT_OK(find(DD_KEY_REQUEST, 6, &grant));
    EXPECT_EQ(grant.batch, 1);
    ddi_table_unpin(table, grant.entry);
    ddi_table_consume(table, &grant, 0, 4);
    ddi_table_consume(table, &grant, 0, 4); /* again: nothing happens */
    EXPECT_STATUS(find(DD_KEY_REQUEST, 6, &grant), DD_NO_CACHE);
    EXPECT_TRUE(used() > 0);
    EXPECT_OK(ddi_table_remove_key(table, &keys[0], NULL));
    EXPECT_OK(ddi_table_remove_key(table, &keys[0], NULL));
    EXPECT_EQ(used(), 0);
    EXPECT_EQ(stats_now().caches, 0);
    tear_down();
}

TEST(a_pin_holds_memory_that_nobody_names_any_more)
{
    struct ddi_entry *entry;
    int64_t cache;

    set_up(0);
    REQUIRE_OK(alloc(1, NULL, 0, &cache, NULL));
    REQUIRE_OK(ddi_table_pin(table, cache, &entry, NULL));
    EXPECT_OK(ddi_table_free(table, cache, NULL));
    EXPECT_TRUE(used() > 0);
    EXPECT_EQ(stats_now().pins, 1);
    ddi_table_unpin(table, entry);
    EXPECT_EQ(used(), 0);
    EXPECT_EQ(stats_now().pins, 0);
    tear_down();
}

TEST(a_view_holds_memory_past_the_table)
{
    struct ddi_entry *entry;
    int64_t cache;

    set_up(0);
    REQUIRE_OK(alloc(1, NULL, 0, &cache, NULL));
    REQUIRE_OK(ddi_table_pin(table, cache, &entry, NULL));
    ddi_entry_hold(entry);
    ddi_table_unpin(table, entry);
    ddi_table_destroy(table);
    ddi_pool_put(pool);
    (void)memset((void *)(uintptr_t)entry->tensors[0], 1, 400); /* still there */
    ddi_entry_release(entry);
}

TEST(keys_are_refused_while_they_name_a_live_cache)
{
    dd_key keys[1] = {key(DD_KEY_REQUEST, 5)};
    dd_key prefix[1] = {key(DD_KEY_PREFIX, 5)};
    uint64_t before;
    int64_t cache;
    int64_t other = 0;
    dd_error err = {0};

    set_up(0);
    REQUIRE_OK(alloc(1, keys, 1, &cache, &err));
    before = used();
    EXPECT_STATUS(alloc(1, keys, 1, &other, &err), DD_KEY_EXISTS);
    EXPECT_CONTAINS(err.text, "request key 5 (model 0) names cache 1");
    EXPECT_EQ(used(), before);
    EXPECT_EQ(other, 0);
    EXPECT_OK(alloc(1, prefix, 1, &other, &err)); /* another name space */
    keys[0].model_id = 1;
    EXPECT_OK(alloc(1, keys, 1, &other, &err)); /* another model */
    tear_down();
}

TEST(placeholders_repeats_and_too_many_keys)
{
    dd_key keys[4] = {key(DD_KEY_NONE, 0), key(DD_KEY_REQUEST, 1), key(DD_KEY_NONE, 0),
                      key(DD_KEY_REQUEST, 1)};
    struct ddi_grant grant;
    int64_t cache;
    dd_error err = {0};

    set_up(0);
    EXPECT_STATUS(alloc(3, keys, 4, &cache, &err), DD_INVALID);
    EXPECT_CONTAINS(err.text, "4 keys");
    REQUIRE_OK(alloc(4, keys, 4, &cache, &err));
    EXPECT_EQ(stats_now().keys, 1);
    EXPECT_OK(find(DD_KEY_REQUEST, 1, &grant));
    EXPECT_EQ(grant.batch, 3); /* the last one wins */
    ddi_table_unpin(table, grant.entry);
    EXPECT_OK(ddi_table_free(table, cache, &err));
    ddi_table_consume(table, &grant, 0, 4);
    EXPECT_EQ(used(), 0); /* one reference, not two */
    tear_down();
}

TEST(a_blocks_key_stands_alone_and_ends_with_the_id)
{
    dd_key keys[2] = {key(DD_KEY_BLOCKS, 0), key(DD_KEY_REQUEST, 1)};
    struct ddi_grant grant;
    int64_t cache;

    set_up(0);
    EXPECT_STATUS(alloc(8, keys, 2, &cache, NULL), DD_INVALID);
    keys[0].id = 3;
    EXPECT_STATUS(alloc(8, keys, 1, &cache, NULL), DD_INVALID);
    keys[0].id = 0;
    REQUIRE_OK(alloc(8, keys, 1, &cache, NULL));
    EXPECT_STATUS(ddi_table_remove_key(table, &keys[0], NULL), DD_INVALID);
    EXPECT_OK(find(DD_KEY_BLOCKS, 0, &grant));
    EXPECT_EQ(grant.kind, DD_KEY_NONE); /* nothing to use up */
    EXPECT_OK(ddi_table_free(table, cache, NULL));
    EXPECT_STATUS(find(DD_KEY_BLOCKS, 0, &grant), DD_NO_CACHE);
    EXPECT_TRUE(used() > 0); /* the pin of the first find */
    ddi_table_unpin(table, grant.entry);
    tear_down();
}

TEST(parts_of_a_cache_use_its_key_up_together)
{
    dd_key keys[1] = {key(DD_KEY_REQUEST, 5)};
    struct ddi_grant grant;
    int64_t cache;

    set_up(0);
    REQUIRE_OK(alloc(1, keys, 1, &cache, NULL));
    REQUIRE_OK(find(DD_KEY_REQUEST, 5, &grant));
    ddi_table_unpin(table, grant.entry);
    ddi_table_consume(table, &grant, 0, 2);
    ddi_table_consume(table, &grant, 0, 2);
    ddi_table_consume(table, &grant, 1, 2);
    EXPECT_EQ(stats_now().keys, 1);
    ddi_table_consume(table, &grant, 3, 1);
    EXPECT_EQ(stats_now().keys, 0);
    tear_down();
}

TEST(a_late_confirmation_leaves_a_new_cache_of_that_name_alone)
{
    dd_key keys[1] = {key(DD_KEY_REQUEST, 5)};
    struct ddi_grant grant;
    int64_t cache;

    set_up(0);
    REQUIRE_OK(alloc(1, keys, 1, &cache, NULL));
    REQUIRE_OK(find(DD_KEY_REQUEST, 5, &grant));
    ddi_table_unpin(table, grant.entry);
    EXPECT_OK(ddi_table_remove_key(table, &keys[0], NULL));
    REQUIRE_OK(alloc(1, keys, 1, &cache, NULL));
    ddi_table_consume(table, &grant, 0, 4);
    EXPECT_EQ(stats_now().keys, 1);
    tear_down();
}

TEST(a_peer_finds_by_id_while_the_id_or_the_batch_is_alive)
{
    dd_key keys[1] = {key(DD_KEY_PREFIX, 5)};
    struct ddi_source_ref ref = {.kind = DD_KEY_NONE};
    struct ddi_grant grant;
    dd_error err = {0};

    set_up(0);
    REQUIRE_OK(alloc(2, keys, 1, &ref.cache, NULL));
    ref.batch = 1;
    EXPECT_OK(ddi_table_find(table, &ref, &grant, NULL));
    ddi_table_unpin(table, grant.entry);
    ref.batch = 2;
    EXPECT_STATUS(ddi_table_find(table, &ref, &grant, &err), DD_NO_CACHE);
    EXPECT_CONTAINS(err.text, "2");
    EXPECT_OK(ddi_table_free(table, ref.cache, NULL));
    ref.batch = 1; /* no key: gone with the id */
    EXPECT_STATUS(ddi_table_find(table, &ref, &grant, NULL), DD_NO_CACHE);
    ref.batch = 0;
    EXPECT_OK(ddi_table_find(table, &ref, &grant, NULL));
    EXPECT_EQ(grant.kind, DD_KEY_NONE); /* prefixes are never used up */
    ddi_table_unpin(table, grant.entry);
    tear_down();
}

TEST(a_cache_that_does_not_fit_leaves_nothing_behind)
{
    dd_key keys[1] = {key(DD_KEY_REQUEST, 5)};
    int64_t cache;
    dd_error err = {0};

    set_up(3 * 512); /* three of four tensors */
    EXPECT_STATUS(alloc(1, keys, 1, &cache, &err), DD_NO_MEMORY);
    EXPECT_EQ(used(), 0);
    EXPECT_EQ(stats_now().keys, 0);
    tear_down();
}

TEST(a_cache_that_cannot_fit_is_refused_before_any_memory_is_made)
{
    struct ddi_pool_stats stats;
    int64_t cache;
    dd_error err = {0};

    set_up(3 * 512);
    EXPECT_STATUS(alloc(1, NULL, 0, &cache, &err), DD_NO_MEMORY);
    EXPECT_CONTAINS(err.text, "cache of 4 tensors with 400 bytes each: pool: 2048 bytes wanted, "
                              "0 in use of at most 1536");
    ddi_pool_stats(pool, &stats);
    EXPECT_EQ(stats.peak_bytes, 0);
    tear_down();
}

TEST(a_key_in_use_is_the_reason_even_when_memory_is_short_too)
{
    dd_key keys[1] = {key(DD_KEY_PREFIX, 9)};
    int64_t cache;
    dd_error err = {0};

    set_up(4 * 512);
    REQUIRE_OK(alloc(1, keys, 1, &cache, &err));
    EXPECT_STATUS(alloc(1, NULL, 0, &cache, &err), DD_NO_MEMORY);
    EXPECT_STATUS(alloc(1, keys, 1, &cache, &err), DD_KEY_EXISTS);
    EXPECT_CONTAINS(err.text, "prefix key 9");
    tear_down();
}

static void *hammer(void *context)
{
    uint64_t base = (uint64_t)(uintptr_t)context;

    for (uint64_t i = 0; i < 2000; i++) {
        dd_key keys[1] = {key(DD_KEY_REQUEST, base + i)};
        struct ddi_grant grant;
        int64_t cache;

        if (alloc(1, keys, 1, &cache, NULL) != DD_OK ||
            find(DD_KEY_REQUEST, base + i, &grant) != DD_OK ||
            ddi_table_free(table, cache, NULL) != DD_OK) {
            return (void *)1;
        }
        ddi_table_consume(table, &grant, 0, 4);
        *(uint8_t *)(uintptr_t)grant.entry->tensors[3] = 1; /* pinned: still ours */
        ddi_table_unpin(table, grant.entry);
    }
    return NULL;
}

TEST(threads_share_the_table)
{
    pthread_t threads[4];
    void *failed;

    set_up(0);
    for (uint64_t i = 0; i < 4; i++) {
        (void)pthread_create(&threads[i], NULL, hammer, (void *)(uintptr_t)(i * 100000));
    }
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], &failed);
        EXPECT_TRUE(failed == NULL);
    }
    EXPECT_EQ(used(), 0);
    EXPECT_EQ(stats_now().pins, 0);
    tear_down();
}

CHECK_MAIN(
    RUN(ids_start_at_one_and_never_come_again); RUN(a_key_keeps_a_freed_cache_until_it_is_used_up);
    RUN(a_pin_holds_memory_that_nobody_names_any_more); RUN(a_view_holds_memory_past_the_table);
    RUN(keys_are_refused_while_they_name_a_live_cache); RUN(placeholders_repeats_and_too_many_keys);
    RUN(a_blocks_key_stands_alone_and_ends_with_the_id);
    RUN(parts_of_a_cache_use_its_key_up_together);
    RUN(a_late_confirmation_leaves_a_new_cache_of_that_name_alone);
    RUN(a_peer_finds_by_id_while_the_id_or_the_batch_is_alive);
    RUN(a_cache_that_does_not_fit_leaves_nothing_behind);
    RUN(a_cache_that_cannot_fit_is_refused_before_any_memory_is_made);
    RUN(a_key_in_use_is_the_reason_even_when_memory_is_short_too); RUN(threads_share_the_table);)
