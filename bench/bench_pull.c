/* Pulls of scattered blocks beside raw sockets that move the same bytes: how much of the rate is
 * left, and what a small pull takes.
 *
 *     bench_pull [--bytes N] [--rounds N] [--streams N] [--congestion NAME] [--seed N]
 *                [--json FILE]
 *
 * Two processes, TCP over the loopback. Both sides of the comparison read and write the same cache
 * memory, block by block in the same shuffled order, over as many connections with the same
 * congestion control; rounds of ours and of raw follow each other in turn. Before the clock runs,
 * each side moves everything once into zeroed memory and every byte is compared. The exit status
 * says whether the bytes were right and nothing failed, never how fast it was.
 *
 * Targets stand at the lines where each process has its own processors. Where the system is free to
 * place the threads, its choice moves both sides by a factor of two and more. */
#include "datadist.h"
#include "raw.h"

#include <inttypes.h>
#include <sys/wait.h>

#define TENSORS 80
#define MAX_ROUNDS 101
#define MAX_RESULTS 32
#define OWNER_ID 1
#define PULLER_ID 2
#define LATENCY_BATCHES 25
#define LATENCY_BATCH 200
#define LATENCY_BYTES 16384
#define LATENCY_BLOCKS 1024

struct options {
    uint64_t bytes;
    uint64_t rounds;
    uint64_t streams;
    uint64_t seed;
    const char *congestion;
    const char *json;
};

/* A cache in which every block of every tensor is pulled. */
struct shape {
    uint64_t tensors;
    uint64_t block_bytes;
    uint64_t blocks; /* of each tensor; 0: no cache, free the last one */
};

/* What the owner says when it is ready. */
struct hello {
    char address[128];
    uint16_t raw_port;
};

/* One process's half. */
struct side {
    const struct options *options;
    const struct group *group;
    int control; /* to the other process */
    dd_engine *engine;
    struct shape shape;
    int64_t cache;
    uint64_t addresses[TENSORS];
    uint64_t *order;     /* block indices: position i of a pull is block order[i] */
    uint64_t *src_order; /* the owner's, at the puller too */
    struct iovec *items; /* tensor by tensor, in this order */
    size_t item_count;
    int raw[RAW_MAX_PARTS]; /* puller */
    struct raw_way way;     /* puller */
};

/* One pair of processes. */
struct group {
    const char *congestion; /* empty: the system's */
    const char *name;       /* of the congestion control */
    enum raw_place place;
};

static const char *const place_names[] = {
    [RAW_ANYWHERE] = "anywhere", [RAW_HALVES] = "halves", [RAW_TOGETHER] = "one core"};

struct report {
    struct raw_result results[MAX_RESULTS];
    size_t count;
};

static uint64_t *block_at(const struct side *side, uint64_t tensor, uint64_t block)
{
    return (uint64_t *)(uintptr_t)(side->addresses[tensor] + block * side->shape.block_bytes);
}

static void fill(const struct side *side)
{
    for (uint64_t t = 0; t < side->shape.tensors; t++) {
        for (uint64_t b = 0; b < side->shape.blocks; b++) {
            raw_fill(block_at(side, t, b), side->shape.block_bytes, t, b);
        }
    }
}

static void clear(const struct side *side)
{
    for (uint64_t t = 0; t < side->shape.tensors; t++) {
        (void)memset(block_at(side, t, 0), 0, side->shape.blocks * side->shape.block_bytes);
    }
}

/* Is block order[i] here what block src_order[i] is at the owner? */
static bool is_right(const struct side *side, const char *who)
{
    for (uint64_t t = 0; t < side->shape.tensors; t++) {
        for (uint64_t b = 0; b < side->shape.blocks; b++) {
            if (!raw_is_filled(block_at(side, t, side->order[b]), side->shape.block_bytes, t,
                               side->src_order[b])) {
                return raw_complain(who, &(dd_error){.text = "the bytes are wrong"});
            }
        }
    }
    return true;
}

/* ---- One side: engine and cache -------------------------------------------------------------- */

static bool start_engine(struct side *side, uint64_t id, const char *listen)
{
    char streams[24];
    const char *const settings[][2] = {{"datadist.listen", listen},
                                       {"datadist.tcp.streams", streams},
                                       {"datadist.tcp.congestion", side->group->congestion},
                                       {"datadist.sync_timeout_ms", "120000"},
                                       {"datadist.log_level", "error"},
                                       {NULL, NULL}};

    (void)snprintf(streams, sizeof(streams), "%" PRIu64, side->options->streams);
    side->engine = raw_engine(id, settings);
    return side->engine != NULL;
}

static void drop_cache(struct side *side)
{
    if (side->cache != 0) {
        (void)dd_cache_free(side->engine, side->cache, NULL);
    }
    free(side->order);
    free(side->src_order);
    free(side->items);
    side->cache = 0;
    side->order = NULL;
    side->src_order = NULL;
    side->items = NULL;
    side->item_count = 0;
}

static bool make_cache(struct side *side, const struct shape *shape, bool is_owner)
{
    uint64_t seed = side->options->seed;
    size_t n = 0;

    drop_cache(side);
    side->shape = *shape;
    side->cache = raw_cache(side->engine, shape->tensors, shape->blocks, shape->block_bytes,
                            is_owner, side->addresses);
    if (side->cache == 0) {
        return false;
    }
    side->src_order = raw_shuffle(shape->blocks, raw_mix(seed));
    side->order = raw_shuffle(shape->blocks, raw_mix(is_owner ? seed : seed + 1));
    side->items = malloc(shape->tensors * shape->blocks * sizeof(*side->items));
    if (side->src_order == NULL || side->order == NULL || side->items == NULL) {
        return raw_complain("lists", NULL);
    }
    for (uint64_t t = 0; t < shape->tensors; t++) {
        for (uint64_t b = 0; b < shape->blocks; b++) {
            side->items[n].iov_base = block_at(side, t, side->order[b]);
            side->items[n++].iov_len = shape->block_bytes;
        }
    }
    side->item_count = n;
    return true;
}

/* ---- The owner's process --------------------------------------------------------------------- */

/* Make caches as the puller asks, until it is gone. */
static bool run_owner(struct side *side)
{
    struct raw_served served[RAW_MAX_PARTS];
    struct hello hello = {0};
    struct shape shape;
    int listener = raw_listen(&hello.raw_port);

    if (listener < 0) {
        return raw_complain("raw listener", NULL);
    }
    if (!start_engine(side, OWNER_ID, "127.0.0.1:0") ||
        dd_engine_address(side->engine, hello.address, sizeof(hello.address), NULL) != DD_OK ||
        !raw_say(side->control, &hello, sizeof(hello)) ||
        !raw_serve_all(listener, side->group->congestion, side->options->streams, served,
                       &side->items, &side->item_count)) {
        return false;
    }
    while (raw_hear(side->control, &shape, sizeof(shape))) {
        uint8_t is_made = 1;

        if (shape.blocks == 0) {
            drop_cache(side);
        } else if (make_cache(side, &shape, true)) {
            fill(side);
        } else {
            is_made = 0;
        }
        if (!raw_say(side->control, &is_made, 1)) {
            break;
        }
    }
    drop_cache(side);
    dd_engine_destroy(side->engine);
    return true;
}

/* ---- The puller's process -------------------------------------------------------------------- */

static bool open_puller(struct side *side)
{
    struct hello hello;
    dd_target target = {.size = sizeof(target), .cluster_id = OWNER_ID, .remote = hello.address};
    dd_status result;
    dd_error err = {0};

    if (!raw_hear(side->control, &hello, sizeof(hello))) {
        return raw_complain("owner", NULL);
    }
    if (!start_engine(side, PULLER_ID, "")) {
        return false;
    }
    if (dd_link_open(side->engine, &target, 1, &result, 10000, &err) != DD_OK) {
        return raw_complain("link", &err);
    }
    for (uint64_t i = 0; i < side->options->streams; i++) {
        side->raw[i] = raw_dial(hello.raw_port, side->group->congestion);
        if (side->raw[i] < 0) {
            return raw_complain("raw connections", NULL);
        }
    }
    return true;
}

/* Make the caches of both sides. */
static bool set_shape(struct side *side, const struct shape *shape)
{
    uint8_t is_made = 0;

    if (!raw_say(side->control, shape, sizeof(*shape)) || !raw_hear(side->control, &is_made, 1) ||
        is_made == 0) {
        return raw_complain("the owner's cache", NULL);
    }
    if (shape->blocks == 0) {
        drop_cache(side);
        return true;
    }
    return make_cache(side, shape, false);
}

/* Pull positions [first, first + count) of every tensor. */
static bool pull_ours(struct side *side, uint64_t first, uint64_t count)
{
    const dd_source source = {
        .size = sizeof(source),
        .cluster_id = OWNER_ID,
        .key = {.size = sizeof(source.key), .kind = DD_KEY_BLOCKS},
    };
    const dd_blocks blocks = {.size = sizeof(blocks),
                              .src = side->src_order + first,
                              .dst = side->order + first,
                              .count = count,
                              .tensors_per_layer = 1};
    dd_error err = {0};

    return dd_pull_blocks(side->engine, &source, side->cache, &blocks, &err) == DD_OK ||
           raw_complain("pull", &err);
}

/* Move everything once, and time it: GB/s, 0 on failure. */
static double rate(struct side *side, bool is_ours)
{
    uint64_t begin_ns = raw_now_ns();
    bool is_whole = is_ours ? pull_ours(side, 0, side->shape.blocks)
                            : raw_pull_all(side->raw, side->options->streams, side->items,
                                           side->item_count, side->way);
    uint64_t ns = raw_now_ns() - begin_ns;
    uint64_t bytes = side->shape.tensors * side->shape.blocks * side->shape.block_bytes;

    return is_whole ? (double)bytes / (double)ns : 0;
}

static bool verify(struct side *side)
{
    side->way = (struct raw_way){.per_call = 256};
    clear(side);
    if (rate(side, true) <= 0 || !is_right(side, "ours")) {
        return false;
    }
    clear(side);
    return rate(side, false) > 0 && is_right(side, "raw");
}

/* Find the way of calling the system in which the raw side is fastest here. */
static bool choose_way(struct side *side)
{
    struct raw_way best = {0};
    double best_rate = 0;

    for (uint32_t per_call = 64; per_call <= 1024; per_call *= 4) {
        for (int waits = 0; waits < 2; waits++) {
            double rates[4];

            side->way = (struct raw_way){.per_call = per_call, .waits_for_all = waits == 1};
            for (size_t i = 0; i < 4; i++) {
                rates[i] = rate(side, false);
                if (rates[i] <= 0) {
                    return false;
                }
            }
            if (raw_figures(rates + 1, 3).median > best_rate) {
                best_rate = raw_figures(rates + 1, 3).median;
                best = side->way;
            }
        }
    }
    side->way = best;
    return true;
}

/* ---- The measurements ------------------------------------------------------------------------ */

static void add(struct report *report, const struct raw_result *result, int digits)
{
    raw_show(result, digits);
    if (report->count < MAX_RESULTS) {
        report->results[report->count++] = *result;
    }
}

static bool measure_rate(struct side *side, struct report *report)
{
    struct raw_result result = {
        .unit = "GB/s", .target = side->group->place == RAW_ANYWHERE ? 0 : 0.9, .is_least = true};
    double ours[MAX_ROUNDS];
    double raw[MAX_ROUNDS];
    double ratios[MAX_ROUNDS];
    uint64_t rounds = side->options->rounds;

    if (!verify(side) || !choose_way(side)) {
        return false;
    }
    if (rate(side, true) <= 0 || rate(side, false) <= 0) { /* warm-up */
        return false;
    }
    for (uint64_t i = 0; i < rounds; i++) {
        bool ours_first = i % 2 == 0;

        if (ours_first) {
            ours[i] = rate(side, true);
        }
        raw[i] = rate(side, false);
        if (!ours_first) {
            ours[i] = rate(side, true);
        }
        if (ours[i] <= 0 || raw[i] <= 0) {
            return false;
        }
        ratios[i] = ours[i] / raw[i];
    }
    (void)snprintf(result.what, sizeof(result.what), "%" PRIu64 " KiB blocks, %s, %s",
                   side->shape.block_bytes / 1024, side->group->name,
                   place_names[side->group->place]);
    (void)snprintf(result.note, sizeof(result.note), "raw: %u entries per call%s",
                   side->way.per_call, side->way.waits_for_all ? ", MSG_WAITALL" : "");
    result.ours = raw_figures(ours, rounds);
    result.limit = raw_figures(raw, rounds);
    result.ratio = raw_figures(ratios, rounds);
    add(report, &result, 2);
    return true;
}

/* Microseconds of one pull of one block. */
static double small_pull(struct side *side, uint64_t at, bool is_ours)
{
    uint64_t begin_ns = raw_now_ns();
    bool is_whole = is_ours ? pull_ours(side, at, 1)
                            : raw_pull(side->raw[0], side->items, at, 1, side->way) ||
                                  raw_complain("raw", NULL);

    return is_whole ? (double)(raw_now_ns() - begin_ns) / 1e3 : -1;
}

static bool small_batch(struct side *side, uint64_t batch, bool is_ours, double *us)
{
    for (uint64_t i = 0; i < LATENCY_BATCH; i++) {
        us[i] = small_pull(side, (batch * LATENCY_BATCH + i) % LATENCY_BLOCKS, is_ours);
        if (us[i] < 0) {
            return false;
        }
    }
    return true;
}

static double median_of(const double *values, size_t n)
{
    double copy[LATENCY_BATCH];

    (void)memcpy(copy, values, n * sizeof(*values));
    return raw_figures(copy, n).median;
}

/* Median over all pulls, spread over the medians of batches. Sorts the values. */
static struct raw_figures small_figures(double *us, double *medians)
{
    struct raw_figures spread = raw_figures(medians, LATENCY_BATCHES);
    struct raw_figures figures = raw_figures(us, LATENCY_BATCHES * LATENCY_BATCH);

    figures.min = spread.min;
    figures.max = spread.max;
    figures.p99 = raw_p99(us, LATENCY_BATCHES * LATENCY_BATCH);
    return figures;
}

static bool measure_latency(struct side *side, struct report *report)
{
    static const struct shape shape = {
        .tensors = 1, .block_bytes = LATENCY_BYTES, .blocks = LATENCY_BLOCKS};
    static double us[2][LATENCY_BATCHES * LATENCY_BATCH]; /* raw, ours */
    double medians[2][LATENCY_BATCHES];
    double ratios[LATENCY_BATCHES];
    struct raw_result result = {.unit = "us",
                                .target = side->group->place == RAW_ANYWHERE ? 0 : 2.0};

    if (!set_shape(side, &shape)) {
        return false;
    }
    if (!verify(side)) {
        return false;
    }
    side->way = (struct raw_way){.per_call = 1, .waits_for_all = true};
    for (uint64_t b = 0; b < LATENCY_BATCHES + 1; b++) { /* the first is the warm-up */
        uint64_t at = b > 0 ? b - 1 : 0;

        for (uint64_t turn = 0; turn < 2; turn++) {
            uint64_t who = (b + turn) % 2;
            double *batch = us[who] + at * LATENCY_BATCH;

            if (!small_batch(side, b, who == 1, batch)) {
                return false;
            }
            medians[who][at] = median_of(batch, LATENCY_BATCH);
        }
        ratios[at] = medians[1][at] / medians[0][at];
    }
    (void)snprintf(result.what, sizeof(result.what), "one block of 16 KiB, %s, %s",
                   side->group->name, place_names[side->group->place]);
    result.limit = small_figures(us[0], medians[0]);
    result.ours = small_figures(us[1], medians[1]);
    result.ratio = raw_figures(ratios, LATENCY_BATCHES);
    result.ratio.median = result.ours.median / result.limit.median;
    (void)snprintf(result.note, sizeof(result.note), "p99: ours %.0f, raw %.0f", result.ours.p99,
                   result.limit.p99);
    add(report, &result, 1);
    return true;
}

static bool run_puller(struct side *side, struct report *report)
{
    static const uint64_t block_bytes[] = {16384, 65536, 131072};
    static const struct shape none = {0};
    size_t count = sizeof(block_bytes) / sizeof(block_bytes[0]);
    bool is_good = open_puller(side) && measure_latency(side, report);

    if (side->group->place == RAW_TOGETHER) {
        count = 0; /* a rate there says little: both sides wait for each other's time slice */
    }
    for (size_t i = 0; is_good && i < count; i++) {
        uint64_t blocks = side->options->bytes / TENSORS / block_bytes[i];
        struct shape shape = {
            .tensors = TENSORS, .block_bytes = block_bytes[i], .blocks = blocks > 0 ? blocks : 1};

        is_good = set_shape(side, &none) && set_shape(side, &shape) && measure_rate(side, report);
    }
    drop_cache(side);
    dd_engine_destroy(side->engine);
    return is_good;
}

/* Fork the owner, before this process has an engine, and measure. */
static bool run_group(const struct options *options, const struct group *group,
                      struct report *report)
{
    struct side side = {.options = options, .group = group};
    cpu_set_t all;
    int status = 0;
    bool is_good = sched_getaffinity(0, sizeof(all), &all) == 0;
    pid_t owner = raw_fork(&side.control);

    is_good = is_good && owner >= 0 && raw_pin(group->place, owner == 0, &all);
    if (owner == 0) {
        _exit(is_good && run_owner(&side) ? 0 : 1);
    }
    is_good = is_good && run_puller(&side, report);
    (void)close(side.control); /* the owner ends */
    for (uint64_t i = 0; i < options->streams; i++) {
        if (side.raw[i] > 0) {
            (void)close(side.raw[i]);
        }
    }
    (void)sched_setaffinity(0, sizeof(all), &all);
    return waitpid(owner, &status, 0) == owner && status == 0 && is_good;
}

static bool run_all(const struct options *options, const char *congestion, const char *name,
                    struct report *report)
{
    static const enum raw_place places[] = {RAW_ANYWHERE, RAW_HALVES, RAW_TOGETHER};
    bool is_good = true;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct group group = {congestion, name, places[i]};

        if (places[i] != RAW_HALVES || sysconf(_SC_NPROCESSORS_ONLN) > 1) {
            is_good = run_group(options, &group, report) && is_good;
        }
    }
    return is_good;
}

int main(int argc, char **argv)
{
    struct options options = {
        .bytes = UINT64_C(1) << 30, .rounds = 9, .streams = 2, .seed = 20240607};
    const struct raw_option known[] = {{"--bytes", &options.bytes, NULL, UINT64_C(1) << 40},
                                       {"--rounds", &options.rounds, NULL, MAX_ROUNDS},
                                       {"--streams", &options.streams, NULL, RAW_MAX_PARTS},
                                       {"--seed", &options.seed, NULL, UINT64_MAX},
                                       {"--congestion", NULL, &options.congestion, 0},
                                       {"--json", NULL, &options.json, 0}};
    static struct report report;
    char name[32];
    char available[256];
    bool is_good;

    if (!raw_parse(argc, argv, known, sizeof(known) / sizeof(known[0]))) {
        (void)fprintf(stderr, "usage: bench_pull [--bytes N] [--rounds N] [--streams N] "
                              "[--congestion NAME] [--seed N] [--json FILE]\n");
        return 2;
    }
    raw_line("/proc/sys/net/ipv4/tcp_congestion_control", name, sizeof(name));
    raw_line("/proc/sys/net/ipv4/tcp_available_congestion_control", available, sizeof(available));
    (void)printf("%d tensors, %" PRIu64 " MiB, %" PRIu64 " connections, seed %" PRIu64
                 ", median (least - most) of %" PRIu64 " rounds\n",
                 TENSORS, options.bytes >> 20, options.streams, options.seed, options.rounds);
    (void)printf("%-36s %-5s %-22s %-22s %s\n", "what", "unit", "ours", "raw sockets", "ratio");
    if (options.congestion != NULL) {
        is_good = run_all(&options, options.congestion, options.congestion, &report);
    } else {
        is_good = run_all(&options, "", name, &report);
        if (strcmp(name, "cubic") != 0 && strstr(available, "cubic") != NULL) {
            is_good = run_all(&options, "cubic", "cubic", &report) && is_good;
        }
    }
    if (options.json != NULL &&
        !raw_write_json(options.json, "pull", report.results, report.count)) {
        is_good = raw_complain(options.json, NULL);
    }
    return is_good ? 0 : 1;
}
