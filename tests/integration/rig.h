/* Engines and caches for integration tests: everything through datadist.h. */
#ifndef DDI_RIG_H
#define DDI_RIG_H

#include "../unit/check.h"

#include <stdarg.h>

/* Start an engine; options are key, value pairs that end in NULL. NULL on failure, with text. */
static inline dd_engine *rig_start(uint64_t cluster_id, dd_role role, ...)
{
    dd_engine *engine = NULL;
    dd_error err = {0};
    dd_status st = dd_engine_create(cluster_id, role, &engine, &err);
    const char *key;
    va_list args;

    va_start(args, role);
    while (st == DD_OK && (key = va_arg(args, const char *)) != NULL) {
        st = dd_engine_set(engine, key, va_arg(args, const char *), &err);
    }
    va_end(args);
    if (st == DD_OK) {
        st = dd_engine_start(engine, &err);
    }
    if (st != DD_OK) {
        (void)fprintf(stderr, "engine %" PRIu64 ": %s\n", cluster_id, err.text);
        dd_engine_destroy(engine);
        return NULL;
    }
    return engine;
}

static inline dd_engine *rig_prompt(uint64_t cluster_id)
{
    return rig_start(cluster_id, DD_ROLE_PROMPT, "datadist.listen", "127.0.0.1:0",
                     "datadist.log_level", "error", "datadist.sync_timeout_ms", "20000", NULL);
}

static inline dd_engine *rig_decoder(uint64_t cluster_id)
{
    return rig_start(cluster_id, DD_ROLE_DECODER, "datadist.log_level", "error",
                     "datadist.sync_timeout_ms", "20000", NULL);
}

static inline dd_status rig_link_at(dd_engine *engine, uint64_t peer_id, const char *address,
                                    uint32_t timeout_ms, dd_error *err)
{
    dd_target target = {.size = sizeof(target), .cluster_id = peer_id, .remote = address};
    dd_status result = DD_FAILED;
    dd_status st = dd_link_open(engine, &target, 1, &result, timeout_ms, err);

    EXPECT_EQ(result, st);
    return st;
}

static inline dd_status rig_link(dd_engine *engine, uint64_t peer_id, dd_engine *peer)
{
    char address[128];
    dd_error err = {0};
    dd_status st = dd_engine_address(peer, address, sizeof(address), &err);

    if (st == DD_OK) {
        st = rig_link_at(engine, peer_id, address, 5000, &err);
    }
    if (st != DD_OK && st != DD_ALREADY_LINKED) {
        (void)fprintf(stderr, "link: %s\n", err.text);
    }
    return st;
}

static inline dd_status rig_unlink(dd_engine *engine, uint64_t peer_id, bool force)
{
    dd_target target = {.size = sizeof(target), .cluster_id = peer_id};
    dd_status result = DD_FAILED;

    (void)dd_link_close(engine, &target, 1, &result, 5000, force, NULL);
    return result;
}

/* A cache of bytes: `tensors` tensors of [batch, slice_bytes] uint8. 0 on failure. */
static inline int64_t rig_cache(dd_engine *engine, uint32_t tensors, int64_t batch,
                                int64_t slice_bytes, const dd_key *keys, size_t key_count)
{
    const int64_t dims[2] = {batch, slice_bytes};
    const dd_cache_desc desc = {.size = sizeof(desc),
                                .tensor_count = tensors,
                                .data_type = DD_UINT8,
                                .placement = DD_DEVICE,
                                .dim_count = 2,
                                .dims = dims};
    dd_error err = {0};
    int64_t cache = 0;

    if (dd_cache_alloc(engine, &desc, keys, key_count, &cache, &err) != DD_OK) {
        (void)fprintf(stderr, "alloc: %s\n", err.text);
        return 0;
    }
    return cache;
}

static inline uint8_t *rig_tensor(dd_engine *engine, int64_t cache, uint32_t tensors, uint32_t at)
{
    uint64_t addresses[256] = {0};

    if (tensors > 256 || dd_cache_addresses(engine, cache, 0, addresses, tensors, NULL) != DD_OK) {
        return NULL;
    }
    return (uint8_t *)(uintptr_t)addresses[at];
}

/* The byte at `at` of tensor `t`: neighbours, tensors and blocks all differ. */
static inline uint8_t rig_byte(uint32_t t, uint64_t at)
{
    uint64_t mixed = (at + 1) * UINT64_C(0x9E3779B97F4A7C15) + t * UINT64_C(0xD1B54A32D192ED03);

    return (uint8_t)(mixed >> 56);
}

static inline void rig_fill(dd_engine *engine, int64_t cache, uint32_t tensors, uint64_t bytes)
{
    for (uint32_t t = 0; t < tensors; t++) {
        uint8_t *tensor = rig_tensor(engine, cache, tensors, t);

        for (uint64_t i = 0; i < bytes; i++) {
            tensor[i] = rig_byte(t, i);
        }
    }
}

static inline dd_key rig_key(dd_key_kind kind, uint64_t id)
{
    return (dd_key){.size = sizeof(dd_key), .kind = kind, .id = id};
}

static inline dd_source rig_source(uint64_t cluster_id, dd_key_kind kind, uint64_t id)
{
    return (dd_source){
        .size = sizeof(dd_source), .cluster_id = cluster_id, .key = rig_key(kind, id)};
}

static inline dd_stats rig_stats(dd_engine *engine)
{
    dd_stats stats = {.size = sizeof(stats)};

    EXPECT_OK(dd_stats_get(engine, &stats, NULL));
    return stats;
}

/* Wait, at most 5 s, until `condition` holds. */
#define RIG_AWAIT(condition)                              \
    do {                                                  \
        struct timespec rig_pause = {.tv_nsec = 1000000}; \
        int rig_left = 5000;                              \
        while (!(condition) && rig_left-- > 0) {          \
            (void)nanosleep(&rig_pause, NULL);            \
        }                                                 \
        EXPECT_TRUE(condition);                           \
    } while (0)

#endif
