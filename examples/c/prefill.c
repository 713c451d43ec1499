/* The prompt side: "computes" a KV cache, publishes it under a request key, and serves it until it
 * was pulled.
 *
 *     prefill [HOST:PORT]      default 127.0.0.1:0, a free port
 */
#include "pattern.h"

#include <datadist.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(dd_status status, const dd_error *err)
{
    if (status != DD_OK) {
        (void)fprintf(stderr, "prefill: %s: %s\n", dd_status_name(status), err->text);
        exit(1);
    }
}

static void compute(dd_engine *engine, int64_t cache)
{
    uint64_t addresses[TENSORS];
    dd_error err = {0};

    check(dd_cache_addresses(engine, cache, 0, addresses, TENSORS, &err), &err);
    for (uint32_t t = 0; t < TENSORS; t++) {
        uint16_t *tensor = (uint16_t *)(uintptr_t)addresses[t];

        for (uint64_t i = 0; i < (uint64_t)TOKENS * HEADS * HEAD_SIZE; i++) {
            tensor[i] = pattern(t, i);
        }
    }
}

int main(int argc, char **argv)
{
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    const dd_cache_desc desc = {.size = sizeof(desc),
                                .tensor_count = TENSORS,
                                .data_type = DD_FLOAT16,
                                .placement = DD_DEVICE,
                                .dim_count = 4,
                                .dims = dims};
    const dd_key key = {.size = sizeof(key), .kind = DD_KEY_REQUEST, .id = REQUEST_ID};
    dd_stats stats = {.size = sizeof(stats)};
    char address[128];
    dd_engine *engine;
    dd_error err = {0};
    int64_t cache;

    check(dd_engine_create(PROMPT_CLUSTER, DD_ROLE_PROMPT, &engine, &err), &err);
    check(dd_engine_set(engine, "datadist.listen", argc > 1 ? argv[1] : "127.0.0.1:0", &err), &err);
    check(dd_engine_start(engine, &err), &err);
    check(dd_cache_alloc(engine, &desc, &key, 1, &cache, &err), &err);
    compute(engine, cache);
    check(dd_cache_free(engine, cache, &err), &err); /* from here the key keeps it alive */

    check(dd_engine_address(engine, address, sizeof(address), &err), &err);
    (void)printf("prefill: cache is ready, run: decode %s\n", address);
    (void)fflush(stdout);
    do {
        (void)nanosleep(&pause, NULL);
        check(dd_stats_get(engine, &stats, &err), &err);
    } while (stats.keys > 0);
    (void)printf("prefill: %.1f MiB were pulled, memory is free again: %llu bytes in use\n",
                 (double)stats.bytes_served / 1048576.0, (unsigned long long)stats.pool_used_bytes);
    dd_engine_destroy(engine);
    return 0;
}
