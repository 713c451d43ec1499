/* Resident memory of engines and links, above the caches.
 *
 *     bench_memory [--bytes N] [--links N] [--runs N] [--json FILE]
 *
 * Counted is anonymous memory that is resident (Anonymous in smaps_rollup): heap, stacks, data.
 * Caches are memory files and do not count there; neither does the kernel's own memory, as in
 * socket buffers. A third process watches the two that have engines, so that watching costs them
 * nothing. Every run has fresh processes. */
#include "datadist.h"
#include "raw.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#define TENSORS 80
#define BLOCK_BYTES 16384
#define LINK_BLOCKS 4
#define PULLS 3
#define MAX_LINKS 512
#define MAX_RUNS 51
#define SERVER_ID 1000000

struct options {
    uint64_t bytes;
    uint64_t links;
    uint64_t runs;
    const char *json;
};

/* What the processes tell each other. `address` is where the server listens. */
struct word {
    uint8_t is_good;
    char address[128];
};

/* A watched process, seen from the watcher. It says when it is ready for the base line; then it
 * does a step each time it is told to, and says how that went. */
struct watched {
    pid_t pid;
    int control;
    struct word word;
    double base_kib;
    double peak_kib;
};

/* ---- Watching -------------------------------------------------------------------------------- */

/* Resident anonymous memory of a process, in KiB; negative on failure. */
static double resident_kib(pid_t pid)
{
    char path[64];
    char text[4096];
    const char *line;
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0) {
        (void)close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    line = strstr(text, "\nAnonymous:");
    return line == NULL ? -1 : strtod(line + strlen("\nAnonymous:"), NULL);
}

static void look(struct watched *watched)
{
    double now = resident_kib(watched->pid);

    if (now > watched->peak_kib) {
        watched->peak_kib = now;
    }
}

/* Take the base line: all that the process needs for itself is there. */
static bool begin(struct watched *watched)
{
    if (!raw_hear(watched->control, &watched->word, sizeof(watched->word)) ||
        watched->word.is_good == 0) {
        return raw_complain("a watched process failed", &(dd_error){0});
    }
    watched->base_kib = resident_kib(watched->pid);
    watched->peak_kib = watched->base_kib;
    return watched->base_kib > 0 || raw_complain("smaps_rollup", NULL);
}

/* Tell a process to do its next step, and look at both while it does. */
static bool step(struct watched *actor, const struct word *said, struct watched *other)
{
    struct pollfd item = {.fd = actor->control, .events = POLLIN};

    if (!raw_say(actor->control, said, sizeof(*said))) {
        return raw_complain("a watched process", NULL);
    }
    do {
        look(actor);
        look(other);
    } while (poll(&item, 1, 1) == 0);
    if (!raw_hear(actor->control, &actor->word, sizeof(actor->word)) || actor->word.is_good == 0) {
        return raw_complain("a watched process failed", &(dd_error){0});
    }
    look(actor);
    look(other);
    return true;
}

/* The watched process's end of a step: false when the watcher is done with it. */
static bool await_go(int control, struct word *said)
{
    return raw_hear(control, said, sizeof(*said));
}

static bool report_step(int control, bool is_good, const char *address)
{
    struct word word = {.is_good = is_good};

    (void)snprintf(word.address, sizeof(word.address), "%s", address);
    return raw_say(control, &word, sizeof(word)) && is_good;
}

/* ---- The watched processes ------------------------------------------------------------------- */

static dd_engine *start_engine(uint64_t id, const char *listen)
{
    const char *const settings[][2] = {{"datadist.listen", listen},
                                       {"datadist.sync_timeout_ms", "120000"},
                                       {"datadist.log_level", "error"},
                                       {NULL, NULL}};

    return raw_engine(id, settings);
}

static bool link_to(dd_engine *engine, const char *address)
{
    dd_target target = {.size = sizeof(target), .cluster_id = SERVER_ID, .remote = address};
    dd_status result;
    dd_error err = {0};

    return dd_link_open(engine, &target, 1, &result, 10000, &err) == DD_OK ||
           raw_complain("link", &err);
}

/* Pull all blocks of all tensors. */
static bool pull(dd_engine *engine, int64_t cache, const uint64_t *src, const uint64_t *dst,
                 uint64_t blocks)
{
    const dd_source source = {
        .size = sizeof(source),
        .cluster_id = SERVER_ID,
        .key = {.size = sizeof(source.key), .kind = DD_KEY_BLOCKS},
    };
    const dd_blocks selection = {
        .size = sizeof(selection), .src = src, .dst = dst, .count = blocks, .tensors_per_layer = 1};
    dd_error err = {0};

    return dd_pull_blocks(engine, &source, cache, &selection, &err) == DD_OK ||
           raw_complain("pull", &err);
}

static bool is_right(const uint64_t *addresses, uint64_t tensors, const uint64_t *src,
                     const uint64_t *dst, uint64_t blocks)
{
    for (uint64_t t = 0; t < tensors; t++) {
        for (uint64_t i = 0; i < blocks; i++) {
            const uint64_t *words =
                (const uint64_t *)(uintptr_t)(addresses[t] + dst[i] * BLOCK_BYTES);

            if (!raw_is_filled(words, BLOCK_BYTES, t, src[i])) {
                return false;
            }
        }
    }
    return true;
}

/* Serve: one step, then wait for the end. */
static bool run_server(int control, uint64_t tensors, uint64_t blocks)
{
    uint64_t addresses[TENSORS];
    char address[128] = "";
    struct word said;
    dd_engine *engine;
    bool is_good;

    if (!report_step(control, true, "") || !await_go(control, &said)) {
        return false;
    }
    engine = start_engine(SERVER_ID, "127.0.0.1:0");
    is_good = engine != NULL &&
              dd_engine_address(engine, address, sizeof(address), NULL) == DD_OK &&
              raw_cache(engine, tensors, blocks, BLOCK_BYTES, true, addresses) != 0;
    for (uint64_t t = 0; is_good && t < tensors; t++) {
        for (uint64_t b = 0; b < blocks; b++) {
            raw_fill((uint64_t *)(uintptr_t)(addresses[t] + b * BLOCK_BYTES), BLOCK_BYTES, t, b);
        }
    }
    is_good = report_step(control, is_good, address);
    (void)await_go(control, &said);
    dd_engine_destroy(engine);
    return is_good;
}

/* Pull the large cache: a step to start and link, and one per pull. */
static bool run_puller(int control, uint64_t blocks)
{
    uint64_t *src = raw_shuffle(blocks, 1);
    uint64_t *dst = raw_shuffle(blocks, 2);
    uint64_t addresses[TENSORS];
    struct word said;
    int64_t cache = 0;
    dd_engine *engine = NULL;
    bool is_good = report_step(control, src != NULL && dst != NULL, "") && await_go(control, &said);

    if (is_good) {
        engine = start_engine(1, "");
        is_good = engine != NULL && link_to(engine, said.address);
        cache = is_good ? raw_cache(engine, TENSORS, blocks, BLOCK_BYTES, false, addresses) : 0;
        is_good = report_step(control, cache != 0, "");
    }
    while (is_good && await_go(control, &said)) {
        is_good = report_step(control, pull(engine, cache, src, dst, blocks), "");
    }
    is_good = is_good && is_right(addresses, TENSORS, src, dst, blocks);
    dd_engine_destroy(engine);
    free(src);
    free(dst);
    return is_good;
}

/* Many engines, one more each step, that link and pull once. */
static bool run_clients(int control)
{
    static dd_engine *engines[MAX_LINKS];
    const uint64_t src[LINK_BLOCKS] = {3, 0, 2, 1};
    const uint64_t dst[LINK_BLOCKS] = {1, 3, 0, 2};
    struct word said;
    uint64_t count = 0;
    bool is_good = report_step(control, true, "");

    while (is_good && count < MAX_LINKS && await_go(control, &said)) {
        uint64_t address;
        int64_t cache = 0;
        dd_engine *engine = start_engine(count + 1, "");

        is_good = engine != NULL && link_to(engine, said.address);
        if (is_good) {
            cache = raw_cache(engine, 1, LINK_BLOCKS, BLOCK_BYTES, false, &address);
        }
        is_good = cache != 0 && pull(engine, cache, src, dst, LINK_BLOCKS) &&
                  is_right(&address, 1, src, dst, LINK_BLOCKS);
        engines[count++] = engine;
        is_good = report_step(control, is_good, "");
    }
    for (uint64_t i = 0; i < count; i++) {
        dd_engine_destroy(engines[i]);
    }
    return is_good;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* True when the process has ended well. */
static bool finish(struct watched *watched)
{
    int status = 0;

    (void)close(watched->control);
    return waitpid(watched->pid, &status, 0) == watched->pid && status == 0;
}

/* Fork a server and a client; `blocks` 0: many small clients. */
static bool fork_both(struct watched *server, struct watched *client, uint64_t blocks)
{
    server->pid = raw_fork(&server->control);
    if (server->pid == 0) {
        _exit(
            run_server(server->control, blocks > 0 ? TENSORS : 1, blocks > 0 ? blocks : LINK_BLOCKS)
                ? 0
                : 1);
    }
    client->pid = server->pid > 0 ? raw_fork(&client->control) : -1;
    if (client->pid == 0) {
        (void)close(server->control);
        _exit((blocks > 0 ? run_puller(client->control, blocks) : run_clients(client->control))
                  ? 0
                  : 1);
    }
    return client->pid > 0 || raw_complain("fork", NULL);
}

/* MiB that the engine that pulls and the one that serves take at most. */
static bool measure_engines(uint64_t bytes, double *puller_mib, double *server_mib)
{
    struct watched server = {0};
    struct watched client = {0};
    uint64_t blocks = bytes / TENSORS / BLOCK_BYTES;
    bool is_good;

    if (!fork_both(&server, &client, blocks > 0 ? blocks : 1)) {
        return false;
    }
    is_good = begin(&server) && begin(&client) && step(&server, &server.word, &client) &&
              step(&client, &server.word, &server);
    for (int i = 0; is_good && i < PULLS; i++) {
        is_good = step(&client, &server.word, &server);
    }
    *puller_mib = (client.peak_kib - client.base_kib) / 1024;
    *server_mib = (server.peak_kib - server.base_kib) / 1024;
    is_good = finish(&client) && is_good;
    return finish(&server) && is_good;
}

/* KiB that each further link takes at the engine that listens, and that each further engine with
 * one link takes in the process of many. */
static bool measure_links(uint64_t links, double *link_kib, double *engine_kib)
{
    struct watched server = {0};
    struct watched client = {0};
    double server_first = 0;
    double client_first = 0;
    bool is_good;

    if (!fork_both(&server, &client, 0)) {
        return false;
    }
    is_good = begin(&server) && begin(&client) && step(&server, &server.word, &client);
    for (uint64_t i = 0; is_good && i < links + 1; i++) {
        is_good = step(&client, &server.word, &server);
        if (i == 0) { /* threads and pools exist now */
            server_first = resident_kib(server.pid);
            client_first = resident_kib(client.pid);
        }
    }
    *link_kib = (resident_kib(server.pid) - server_first) / (double)links;
    *engine_kib = (resident_kib(client.pid) - client_first) / (double)links;
    is_good = finish(&client) && is_good;
    return finish(&server) && is_good;
}

int main(int argc, char **argv)
{
    struct options options = {.bytes = UINT64_C(1) << 30, .links = 64, .runs = 5};
    const struct raw_option known[] = {{"--bytes", &options.bytes, NULL, UINT64_C(1) << 40},
                                       {"--links", &options.links, NULL, MAX_LINKS - 1},
                                       {"--runs", &options.runs, NULL, MAX_RUNS},
                                       {"--json", NULL, &options.json, 0}};
    struct raw_result results[] = {
        {.what = "engine that pulls, at most", .unit = "MiB", .target = 16},
        {.what = "engine that serves, at most", .unit = "MiB", .target = 16},
        {.what = "one more link, at the listening end", .unit = "KiB", .target = 64},
        {.what = "one more engine with a link", .unit = "KiB", .target = 16384}};
    const size_t count = sizeof(results) / sizeof(results[0]);
    static double values[4][MAX_RUNS];

    if (!raw_parse(argc, argv, known, sizeof(known) / sizeof(known[0]))) {
        (void)fprintf(stderr,
                      "usage: bench_memory [--bytes N] [--links N] [--runs N] [--json FILE]\n");
        return 2;
    }
    for (uint64_t run = 0; run < options.runs; run++) {
        if (!measure_engines(options.bytes, &values[0][run], &values[1][run]) ||
            !measure_links(options.links, &values[2][run], &values[3][run])) {
            return 1;
        }
    }
    (void)printf("resident memory above caches; pulls of %" PRIu64 " MiB, %" PRIu64
                 " links; median (least - most) of %" PRIu64 " runs\n",
                 options.bytes >> 20, options.links, options.runs);
    for (size_t i = 0; i < count; i++) {
        results[i].ours = raw_figures(values[i], options.runs);
        raw_show(&results[i], 2);
    }
    if (options.json != NULL && !raw_write_json(options.json, "memory", results, count)) {
        return raw_complain(options.json, NULL) ? 0 : 1;
    }
    return 0;
}
