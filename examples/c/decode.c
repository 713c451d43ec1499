/* The decode side: links to the prompt side, pulls the KV cache and checks every byte.
 *
 *     decode HOST:PORT
 */
#include "pattern.h"

#include <datadist.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(dd_status status, const dd_error *err)
{
    if (status != DD_OK) {
        (void)fprintf(stderr, "decode: %s: %s\n", dd_status_name(status), err->text);
        exit(1);
    }
}

static double seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Count elements that are not what the prompt side computed. */
static uint64_t count_wrong(dd_engine *engine, int64_t cache)
{
    uint64_t addresses[TENSORS];
    uint64_t wrong = 0;
    dd_error err = {0};

    check(dd_cache_addresses(engine, cache, 0, addresses, TENSORS, &err), &err);
    for (uint32_t t = 0; t < TENSORS; t++) {
        const uint16_t *tensor = (const uint16_t *)(uintptr_t)addresses[t];

        for (uint64_t i = 0; i < (uint64_t)TOKENS * HEADS * HEAD_SIZE; i++) {
            wrong += tensor[i] != pattern(t, i);
        }
    }
    return wrong;
}

int main(int argc, char **argv)
{
    const dd_cache_desc desc = {.size = sizeof(desc),
                                .tensor_count = TENSORS,
                                .data_type = DD_FLOAT16,
                                .placement = DD_DEVICE,
                                .dim_count = 4,
                                .dims = dims};
    const dd_source source = {
        .size = sizeof(source),
        .cluster_id = PROMPT_CLUSTER,
        .key = {.size = sizeof(dd_key), .kind = DD_KEY_REQUEST, .id = REQUEST_ID}};
    dd_target target = {.size = sizeof(target), .cluster_id = PROMPT_CLUSTER};
    const double bytes = 2.0 * TENSORS * TOKENS * HEADS * HEAD_SIZE;
    dd_engine *engine;
    dd_error err = {0};
    dd_status result;
    int64_t cache;
    uint64_t wrong;
    double begin;
    double end;

    if (argc != 2) {
        (void)fprintf(stderr, "usage: decode HOST:PORT\n");
        return 2;
    }
    target.remote = argv[1];
    check(dd_engine_create(DECODE_CLUSTER, DD_ROLE_DECODER, &engine, &err), &err);
    check(dd_engine_set(engine, "datadist.sync_timeout_ms", "10000", &err), &err);
    check(dd_engine_start(engine, &err), &err);
    check(dd_link_open(engine, &target, 1, &result, 3000, &err), &err);
    check(dd_cache_alloc(engine, &desc, NULL, 0, &cache, &err), &err);

    begin = seconds();
    check(dd_pull(engine, &source, cache, NULL, &err), &err);
    end = seconds();
    wrong = count_wrong(engine, cache);
    (void)printf("decode: %.1f MiB in %.2f ms, %.2f GB/s, %llu wrong elements\n", bytes / 1048576.0,
                 (end - begin) * 1e3, bytes / (end - begin) / 1e9, (unsigned long long)wrong);
    /* The prompt side ends when its cache is gone, so it may have closed the link before us. */
    (void)dd_link_close(engine, &target, 1, &result, 3000, false, NULL);
    dd_engine_destroy(engine);
    return wrong == 0 ? 0 : 1;
}
