/* The cache table under random calls, beside a model that anyone can read: a plain array of caches,
 * searched from end to end. After every call both agree on the status, on how many caches, keys and
 * pins there are, and on the bytes in use; whoever holds a cache finds its contents untouched.
 *
 *     DD_SEED=1234 test_table_property     runs the steps of that seed again */
#include "../unit/check.h"

#include "base/clock.h"
#include "store/table.h"

#include <pthread.h>
#include <stdatomic.h>

#define CACHES 48
#define MAX_BATCH 4
#define MAX_TENSORS 6
#define HOLDS 24
#define GRANTS 24
#define ROUNDS 60
#define STEPS 3000
#define LIMIT (UINT64_C(3) << 20)
#define KEY_IDS 6
#define MODELS 2

struct model_key {
    dd_key key; /* kind DD_KEY_NONE: there is none */
    uint32_t pulled;
};

struct model_cache {
    int64_t id; /* 0: the slot was never used */
    bool is_id_live;
    int64_t batch;
    uint32_t tensors;
    uint64_t bytes; /* of a tensor, as the pool counts it */
    struct model_key keys[MAX_BATCH];
    uint32_t holds; /* pins and views */
};

/* A pin or a view. */
struct hold {
    struct model_cache *cache;
    struct ddi_entry *entry; /* NULL: the slot is free */
    bool is_view;
};

struct world {
    struct ddi_pool *pool;
    struct ddi_table *table;
    struct model_cache caches[CACHES];
    struct hold holds[HOLDS];
    struct ddi_grant grants[GRANTS]; /* also of caches long gone */
    int64_t last_id;
    uint64_t pins;
};

static uint64_t random_state;

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % n;
}

/* ---- The model ------------------------------------------------------------------------------- */

static bool is_same(const dd_key *a, const dd_key *b)
{
    return a->kind == b->kind && a->id == b->id && a->model_id == b->model_id;
}

static struct model_key *model_find(struct world *w, const dd_key *key, struct model_cache **owner)
{
    for (int i = 0; i < CACHES; i++) {
        for (int b = 0; b < MAX_BATCH; b++) {
            struct model_key *at = &w->caches[i].keys[b];

            if (at->key.kind != DD_KEY_NONE && is_same(&at->key, key)) {
                *owner = &w->caches[i];
                return at;
            }
        }
    }
    return NULL;
}

static bool is_named(const struct model_cache *cache)
{
    bool is_kept = cache->is_id_live;

    for (int b = 0; b < MAX_BATCH; b++) {
        dd_key_kind kind = cache->keys[b].key.kind;

        is_kept = is_kept || kind == DD_KEY_REQUEST || kind == DD_KEY_PREFIX;
    }
    return is_kept;
}

static struct model_cache *model_cache_of(struct world *w, int64_t id)
{
    for (int i = 0; i < CACHES; i++) {
        if (id > 0 && w->caches[i].id == id && is_named(&w->caches[i])) {
            return &w->caches[i];
        }
    }
    return NULL;
}

static uint64_t model_used(const struct world *w)
{
    uint64_t used = 0;

    for (int i = 0; i < CACHES; i++) {
        const struct model_cache *cache = &w->caches[i];

        used += is_named(cache) || cache->holds > 0 ? cache->tensors * cache->bytes : 0;
    }
    return used;
}

static void check_world(struct world *w)
{
    struct ddi_table_stats stats;
    struct ddi_pool_stats pool;
    uint64_t caches = 0;
    uint64_t keys = 0;

    for (int i = 0; i < CACHES; i++) {
        caches += is_named(&w->caches[i]);
        for (int b = 0; b < MAX_BATCH; b++) {
            keys += w->caches[i].keys[b].key.kind != DD_KEY_NONE;
        }
    }
    ddi_table_stats(w->table, &stats);
    ddi_pool_stats(w->pool, &pool);
    EXPECT_EQ(stats.caches, caches);
    EXPECT_EQ(stats.keys, keys);
    EXPECT_EQ(stats.pins, w->pins);
    EXPECT_EQ(pool.used_bytes, model_used(w));
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static dd_key random_key(void)
{
    dd_key key = {.size = sizeof(key), .model_id = below(MODELS)};

    key.kind = below(8) == 0 ? DD_KEY_BLOCKS : below(2) == 0 ? DD_KEY_REQUEST : DD_KEY_PREFIX;
    key.id = key.kind == DD_KEY_BLOCKS ? 0 : below(KEY_IDS);
    return key;
}

static int64_t random_id(const struct world *w)
{
    return below(10) == 0 ? (int64_t)below(3) - 1 + w->last_id
                          : w->caches[below(CACHES)].id + (below(20) == 0);
}

static dd_status model_check_keys(struct world *w, const dd_key *keys, size_t count, int64_t batch)
{
    bool is_taken = false;

    if (count > (uint64_t)batch) {
        return DD_INVALID;
    }
    for (size_t i = 0; i < count; i++) {
        struct model_cache *owner;

        if (keys[i].kind == DD_KEY_BLOCKS && (count > 1 || keys[i].id != 0)) {
            return DD_INVALID;
        }
        is_taken = is_taken ||
                   (keys[i].kind != DD_KEY_NONE && model_find(w, &keys[i], &owner) != NULL);
    }
    return is_taken ? DD_KEY_EXISTS : DD_OK;
}

/* Write or verify the contents of a cache: every tensor begins and ends with its id. */
static void touch(const struct ddi_entry *entry, bool is_write)
{
    for (uint32_t t = 0; t < entry->desc.tensor_count; t++) {
        uint8_t *data = (uint8_t *)(uintptr_t)entry->tensors[t];
        uint8_t *ends[2] = {data, data + entry->desc.tensor_bytes - sizeof(int64_t)};

        for (int i = 0; i < 2; i++) {
            if (is_write) {
                (void)memcpy(ends[i], &entry->id, sizeof(entry->id));
            }
            EXPECT_TRUE(memcmp(ends[i], &entry->id, sizeof(entry->id)) == 0);
        }
    }
}

static void model_enter(struct model_cache *cache, const dd_key *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool is_last = keys[i].kind != DD_KEY_NONE;

        for (size_t later = i + 1; later < count; later++) {
            is_last = is_last && !is_same(&keys[i], &keys[later]);
        }
        if (is_last) {
            cache->keys[i].key = keys[i];
        }
    }
}

static void step_alloc(struct world *w)
{
    const int64_t dims[2] = {1 + (int64_t)below(MAX_BATCH), 8 * (1 + (int64_t)below(4000))};
    const dd_cache_desc desc = {.size = sizeof(desc),
                                .tensor_count = 1 + (uint32_t)below(MAX_TENSORS),
                                .data_type = DD_INT8,
                                .dim_count = 2,
                                .dims = dims};
    struct model_cache made = {.is_id_live = true, .batch = dims[0], .tensors = desc.tensor_count};
    struct model_cache *slot = &w->caches[below(CACHES)];
    struct ddi_entry *entry;
    dd_key keys[MAX_BATCH + 1];
    size_t count = below(3) == 0 ? 0 : below((uint64_t)dims[0] + 2);
    dd_status wanted;
    dd_status found;

    if (is_named(slot) || slot->holds > 0) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        keys[i] = below(4) == 0 ? (dd_key){.size = sizeof(dd_key)} : random_key();
        keys[i].id += keys[i].kind == DD_KEY_BLOCKS && below(8) == 0;
    }
    made.bytes = ((uint64_t)(dims[0] * dims[1]) + 511) / 512 * 512;
    wanted = model_check_keys(w, keys, count, dims[0]);
    if (wanted == DD_OK && model_used(w) + made.tensors * made.bytes > LIMIT) {
        wanted = DD_NO_MEMORY;
    }
    found = ddi_table_alloc(w->table, &desc, keys, count, &made.id, NULL);
    EXPECT_EQ(found, wanted);
    if (found != DD_OK || wanted != DD_OK) {
        EXPECT_EQ(made.id, 0);
        return;
    }
    EXPECT_TRUE(made.id > w->last_id);
    w->last_id = made.id;
    model_enter(&made, keys, count);
    *slot = made;
    REQUIRE_OK(ddi_table_pin(w->table, made.id, &entry, NULL));
    EXPECT_EQ(entry->desc.tensor_count, made.tensors);
    touch(entry, true);
    ddi_table_unpin(w->table, entry);
}

static void step_free(struct world *w)
{
    int64_t id = random_id(w);
    struct model_cache *cache = model_cache_of(w, id);
    bool is_there = cache != NULL && cache->is_id_live;

    EXPECT_STATUS(ddi_table_free(w->table, id, NULL), is_there ? DD_OK : DD_NO_CACHE);
    if (is_there) {
        cache->is_id_live = false;
        if (cache->keys[0].key.kind == DD_KEY_BLOCKS) {
            cache->keys[0] = (struct model_key){0};
        }
    }
}

static void step_remove_key(struct world *w)
{
    dd_key key = random_key();
    struct model_cache *owner;
    struct model_key *at = model_find(w, &key, &owner);

    EXPECT_STATUS(ddi_table_remove_key(w->table, &key, NULL),
                  key.kind == DD_KEY_BLOCKS ? DD_INVALID : DD_OK);
    if (at != NULL && key.kind != DD_KEY_BLOCKS) {
        *at = (struct model_key){0};
    }
}

/* Keep a pin, if there is room for it. */
static void keep_pin(struct world *w, struct model_cache *cache, struct ddi_entry *entry)
{
    struct hold *hold = &w->holds[below(HOLDS)];

    EXPECT_EQ(entry->id, cache->id);
    if (hold->entry != NULL) {
        ddi_table_unpin(w->table, entry);
        return;
    }
    *hold = (struct hold){.cache = cache, .entry = entry};
    cache->holds++;
    w->pins++;
}

static void step_pin(struct world *w)
{
    int64_t id = random_id(w);
    struct model_cache *cache = model_cache_of(w, id);
    bool is_there = cache != NULL && cache->is_id_live;
    struct ddi_entry *entry = NULL;

    EXPECT_STATUS(ddi_table_pin(w->table, id, &entry, NULL), is_there ? DD_OK : DD_NO_CACHE);
    if (entry != NULL && is_there) {
        keep_pin(w, cache, entry);
    }
}

static void step_find(struct world *w)
{
    dd_key name = random_key();
    struct ddi_source_ref ref = {.kind = name.kind, .id = name.id, .model_id = name.model_id};
    struct ddi_grant grant = {0};
    struct model_cache *cache = NULL;
    struct model_key *key;
    uint32_t batch = 0;
    bool is_there;

    if (below(2) == 0) {
        ref.kind = DD_KEY_NONE;
        ref.cache = random_id(w);
        ref.batch = (uint32_t)below(MAX_BATCH + 1);
        batch = ref.batch;
        cache = model_cache_of(w, ref.cache);
        is_there = cache != NULL && batch < cache->batch;
        key = is_there && cache->keys[batch].key.kind != DD_KEY_NONE ? &cache->keys[batch] : NULL;
        is_there = is_there && (cache->is_id_live || key != NULL);
    } else {
        key = model_find(w, &name, &cache);
        is_there = key != NULL;
        batch = is_there ? (uint32_t)(key - cache->keys) : 0;
    }
    EXPECT_STATUS(ddi_table_find(w->table, &ref, &grant, NULL), is_there ? DD_OK : DD_NO_CACHE);
    if (grant.entry == NULL || !is_there) {
        return;
    }
    EXPECT_EQ(grant.batch, batch);
    EXPECT_EQ(grant.cache, cache->id);
    if (key != NULL && key->key.kind == DD_KEY_REQUEST) {
        EXPECT_EQ(grant.kind, DD_KEY_REQUEST);
        EXPECT_EQ(grant.key_id, key->key.id);
        EXPECT_EQ(grant.model_id, key->key.model_id);
    } else {
        EXPECT_EQ(grant.kind, DD_KEY_NONE);
    }
    w->grants[below(GRANTS)] = grant;
    keep_pin(w, cache, grant.entry);
}

static void let_go(struct world *w, struct hold *hold)
{
    touch(hold->entry, false);
    hold->cache->holds--;
    if (hold->is_view) {
        ddi_entry_release(hold->entry);
    } else {
        w->pins--;
        ddi_table_unpin(w->table, hold->entry);
    }
    *hold = (struct hold){0};
}

static void step_let_go(struct world *w)
{
    struct hold *hold = &w->holds[below(HOLDS)];

    if (hold->entry != NULL) {
        let_go(w, hold);
    }
}

/* Turn a pin into a view. */
static void step_view(struct world *w)
{
    struct hold *hold = &w->holds[below(HOLDS)];

    if (hold->entry != NULL && !hold->is_view) {
        ddi_entry_hold(hold->entry);
        ddi_table_unpin(w->table, hold->entry);
        hold->is_view = true;
        w->pins--;
    }
}

static void step_consume(struct world *w)
{
    const struct ddi_grant *grant = &w->grants[below(GRANTS)];
    const dd_key name = {.kind = grant->kind, .id = grant->key_id, .model_id = grant->model_id};
    struct model_cache *cache = model_cache_of(w, grant->cache);
    uint32_t tensors = cache != NULL ? cache->tensors : 1;
    uint32_t first = below(2) == 0 ? 0 : (uint32_t)below(tensors);
    uint32_t count = below(2) == 0 ? tensors - first : 1 + (uint32_t)below(tensors - first);
    struct model_cache *owner = NULL;
    struct model_key *key = grant->kind == DD_KEY_REQUEST ? model_find(w, &name, &owner) : NULL;

    ddi_table_consume(w->table, grant, first, count);
    if (key == NULL || owner != cache) {
        return;
    }
    for (uint32_t t = first; t < first + count; t++) {
        key->pulled |= 1U << t;
    }
    if (key->pulled == (1U << tensors) - 1) {
        *key = (struct model_key){0};
    }
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static void set_up(struct ddi_pool **pool, struct ddi_table **table)
{
    struct ddi_pool_config config = {.device = &ddi_cpu_device, .limit_bytes = LIMIT};

    EXPECT_OK(ddi_pool_create(&config, pool, NULL));
    EXPECT_OK(ddi_table_create(*pool, 1, table, NULL));
}

static uint64_t used_of(struct ddi_pool *pool)
{
    struct ddi_pool_stats stats;

    ddi_pool_stats(pool, &stats);
    return stats.used_bytes;
}

/* Pins end before the table, views after it. */
static void end_world(struct world *w)
{
    for (int i = 0; i < HOLDS; i++) {
        if (w->holds[i].entry != NULL && !w->holds[i].is_view) {
            let_go(w, &w->holds[i]);
        }
    }
    ddi_table_destroy(w->table);
    for (int i = 0; i < CACHES; i++) {
        w->caches[i].is_id_live = false;
        (void)memset(w->caches[i].keys, 0, sizeof(w->caches[i].keys));
    }
    EXPECT_EQ(used_of(w->pool), model_used(w));
    for (int i = 0; i < HOLDS; i++) {
        if (w->holds[i].entry != NULL) {
            let_go(w, &w->holds[i]);
        }
    }
    EXPECT_EQ(used_of(w->pool), 0);
    ddi_pool_put(w->pool);
}

TEST(random_calls_agree_with_a_model)
{
    static void (*const steps[])(struct world *) = {
        step_alloc, step_alloc,  step_free,   step_remove_key, step_pin,
        step_find,  step_let_go, step_let_go, step_view,       step_consume,
    };
    static struct world world;

    for (int round = 0; round < ROUNDS && check_failures == 0; round++) {
        (void)memset(&world, 0, sizeof(world));
        set_up(&world.pool, &world.table);
        for (int step = 0; step < STEPS && check_failures == 0; step++) {
            steps[below(sizeof(steps) / sizeof(steps[0]))](&world);
            check_world(&world);
            if (check_failures > 0) {
                (void)fprintf(stderr, "in round %d, step %d\n", round, step);
            }
        }
        end_world(&world);
    }
}

/* ---- Threads --------------------------------------------------------------------------------- */

struct fighter {
    struct ddi_table *table;
    uint64_t seed;
    atomic_int *surprises; /* statuses that cannot be; relaxed, read after the threads have ended */
};

static uint64_t roll(struct fighter *fighter, uint64_t n)
{
    fighter->seed ^= fighter->seed << 13;
    fighter->seed ^= fighter->seed >> 7;
    fighter->seed ^= fighter->seed << 17;
    return (fighter->seed >> 11) % n;
}

static void expect_one_of(struct fighter *fighter, dd_status found, dd_status a, dd_status b)
{
    if (found != DD_OK && found != a && found != b) {
        atomic_fetch_add_explicit(fighter->surprises, 1, memory_order_relaxed);
    }
}

/* Make, find, use up and remove caches under a handful of keys that all threads want. */
static void *fight(void *context)
{
    const int64_t dims[2] = {2, 700};
    const dd_cache_desc desc = {.size = sizeof(desc),
                                .tensor_count = 4,
                                .data_type = DD_INT8,
                                .dim_count = 2,
                                .dims = dims};
    struct fighter *fighter = context;

    for (int i = 0; i < 6000; i++) {
        dd_key keys[2] = {{.size = sizeof(dd_key), .kind = DD_KEY_REQUEST},
                          {.size = sizeof(dd_key), .kind = DD_KEY_PREFIX}};
        struct ddi_source_ref ref = {.kind = DD_KEY_REQUEST, .id = roll(fighter, 4)};
        struct ddi_entry *entry;
        struct ddi_grant grant;
        int64_t cache = 0;
        dd_status st;

        keys[0].id = roll(fighter, 4);
        keys[1].id = roll(fighter, 4);
        st = ddi_table_alloc(fighter->table, &desc, keys, 1 + roll(fighter, 2), &cache, NULL);
        expect_one_of(fighter, st, DD_KEY_EXISTS, DD_NO_MEMORY);
        if (st == DD_OK) {
            expect_one_of(fighter, ddi_table_pin(fighter->table, cache, &entry, NULL), DD_OK,
                          DD_OK);
            expect_one_of(fighter, ddi_table_free(fighter->table, cache, NULL), DD_OK, DD_OK);
            *(uint8_t *)(uintptr_t)entry->tensors[1] = 1;
            ddi_entry_hold(entry);
            ddi_table_unpin(fighter->table, entry);
            ddi_entry_release(entry);
        }
        if (ddi_table_find(fighter->table, &ref, &grant, NULL) == DD_OK) {
            uint32_t first = (uint32_t)roll(fighter, 2) * 2;

            ddi_table_consume(fighter->table, &grant, first, 2 + (first == 0) * 2);
            ddi_table_unpin(fighter->table, grant.entry);
        }
        if (roll(fighter, 4) == 0) {
            expect_one_of(fighter,
                          ddi_table_remove_key(fighter->table, &keys[roll(fighter, 2)], NULL),
                          DD_OK, DD_OK);
        }
    }
    return NULL;
}

TEST(threads_that_want_the_same_keys_leave_nothing_behind)
{
    struct fighter fighters[4];
    pthread_t threads[4];
    atomic_int surprises = 0;
    struct ddi_table_stats stats;
    struct ddi_pool *pool;
    struct ddi_table *table;

    set_up(&pool, &table);
    for (int i = 0; i < 4; i++) {
        fighters[i] =
            (struct fighter){.table = table, .seed = below(1000000) + 1, .surprises = &surprises};
        REQUIRE_TRUE(pthread_create(&threads[i], NULL, fight, &fighters[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    EXPECT_EQ(atomic_load_explicit(&surprises, memory_order_relaxed), 0);
    for (uint64_t id = 0; id < 4; id++) {
        dd_key key = {.size = sizeof(key), .kind = DD_KEY_REQUEST, .id = id};

        EXPECT_OK(ddi_table_remove_key(table, &key, NULL));
        key.kind = DD_KEY_PREFIX;
        EXPECT_OK(ddi_table_remove_key(table, &key, NULL));
    }
    ddi_table_stats(table, &stats);
    EXPECT_EQ(stats.caches, 0);
    EXPECT_EQ(stats.keys, 0);
    EXPECT_EQ(stats.pins, 0);
    EXPECT_EQ(used_of(pool), 0);
    ddi_table_destroy(table);
    ddi_pool_put(pool);
}

int main(void)
{
    const char *seed = getenv("DD_SEED");

    random_state = seed != NULL ? strtoull(seed, NULL, 10) : ddi_clock_ns() | 1;
    (void)printf("DD_SEED=%" PRIu64 "\n", random_state);
    RUN(random_calls_agree_with_a_model);
    RUN(threads_that_want_the_same_keys_leave_nothing_behind);
    (void)printf("%d tests, %d failures\n", check_tests, check_failures);
    return check_failures == 0 ? 0 : 1;
}
