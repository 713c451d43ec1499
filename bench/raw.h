/* What the benchmarks of transfers share: processes and how they talk, an engine with its options,
 * contents that can be verified, figures with their spread; and the raw side of the comparison.
 *
 * The raw side is the least that can move the same bytes: blocking sockets, one thread per
 * connection, vectors that were made before the clock runs. No planner, no checks, no time-outs. */
#ifndef DDI_BENCH_RAW_H
#define DDI_BENCH_RAW_H

#include "datadist.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define RAW_REQUEST 64 /* bytes of a request */
#define RAW_TEXT 80
#define RAW_MAX_PARTS 16 /* connections */

/* How one side calls the system. */
struct raw_way {
    uint32_t per_call;  /* vector entries of one call */
    bool waits_for_all; /* MSG_WAITALL: the call returns when its vector is full */
};

/* Pieces [first, first + count) of the vector at the owner. Sent as RAW_REQUEST bytes. */
struct raw_request {
    uint64_t first;
    uint64_t count;
    uint32_t per_call;
    uint8_t unused[RAW_REQUEST - 20];
};

struct raw_figures {
    double median;
    double min;
    double max;
    double p99; /* 0: not known */
};

/* A line of the report. */
struct raw_result {
    char what[RAW_TEXT];
    const char *unit;
    struct raw_figures ours;
    struct raw_figures limit; /* median 0: there is none */
    struct raw_figures ratio; /* ours / limit; spread over pairs of neighbouring rounds */
    double target;            /* of the ratio, or of ours when there is no limit; 0: none */
    bool is_least;            /* the target is the least that is wanted, else the most */
    char note[RAW_TEXT];      /* how the raw side did it; empty: nothing to say */
};

static inline uint64_t raw_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline bool raw_complain(const char *what, const dd_error *err)
{
    (void)fprintf(stderr, "%s: %s\n", what, err != NULL ? err->text : strerror(errno));
    return false;
}

/* ---- Exact reads and writes ------------------------------------------------------------------ */

static inline bool raw_say(int fd, const void *data, size_t n)
{
    const uint8_t *at = data;

    while (n > 0) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);

        if (sent > 0) {
            at += sent;
            n -= (size_t)sent;
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

static inline bool raw_hear(int fd, void *data, size_t n)
{
    uint8_t *at = data;

    while (n > 0) {
        ssize_t got = recv(fd, at, n, MSG_WAITALL);

        if (got > 0) {
            at += got;
            n -= (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            return false;
        }
    }
    return true;
}

/* ---- Processes ------------------------------------------------------------------------------- */

/* Fork, before this process has an engine. Both get a socket to the other. -1 on failure. */
static inline pid_t raw_fork(int *control)
{
    int pair[2];
    pid_t child;

    (void)fflush(stdout);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        return -1;
    }
    child = fork();
    *control = pair[child == 0 ? 1 : 0];
    (void)close(pair[child == 0 ? 0 : 1]);
    return child;
}

/* Where the threads of two processes may run. */
enum raw_place {
    RAW_ANYWHERE, /* the system decides, and may put a sender and its receiver together */
    RAW_HALVES,   /* each process has half of the processors, as if it were a host */
    RAW_TOGETHER  /* all on one processor */
};

/* Keep the calling thread, and those that it starts, to its place among the processors `all`. */
static inline bool raw_pin(enum raw_place place, bool is_owner, const cpu_set_t *all)
{
    int count = CPU_COUNT(all);
    int from = place == RAW_HALVES && !is_owner ? count / 2 : 0;
    int to = place == RAW_TOGETHER ? 1 : place == RAW_HALVES && is_owner ? count / 2 : count;
    cpu_set_t mine;
    int at = 0;

    CPU_ZERO(&mine);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, all)) {
            if (at >= from && at < to) {
                CPU_SET(i, &mine);
            }
            at++;
        }
    }
    return sched_setaffinity(0, sizeof(mine), &mine) == 0;
}

/* The first line of a file, "" when it cannot be read. */
static inline void raw_line(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");

    text[0] = '\0';
    if (file != NULL) {
        if (fgets(text, (int)size, file) == NULL) {
            text[0] = '\0';
        }
        (void)fclose(file);
    }
    text[strcspn(text, "\n")] = '\0';
}

struct raw_option {
    const char *name;
    uint64_t *number; /* one of both */
    const char **text;
    uint64_t max;
};

/* Parse "--name value" pairs. False when one is unknown or its number is 0 or too large. */
static inline bool raw_parse(int argc, char **argv, const struct raw_option *known, size_t n)
{
    for (int i = 1; i < argc; i += 2) {
        size_t k = 0;

        while (k < n && strcmp(known[k].name, argv[i]) != 0) {
            k++;
        }
        if (k == n || i + 1 == argc) {
            return false;
        }
        if (known[k].text != NULL) {
            *known[k].text = argv[i + 1];
            continue;
        }
        *known[k].number = strtoull(argv[i + 1], NULL, 10);
        if (*known[k].number == 0 || *known[k].number > known[k].max) {
            return false;
        }
    }
    return true;
}

/* ---- Engines and contents -------------------------------------------------------------------- */

/* Start an engine; `settings` are pairs that end in NULL. NULL on failure. */
static inline dd_engine *raw_engine(uint64_t id, const char *const (*settings)[2])
{
    dd_error err = {0};
    dd_engine *engine = NULL;
    dd_status st = dd_engine_create(id, DD_ROLE_MIX, &engine, &err);

    for (; st == DD_OK && (*settings)[0] != NULL; settings++) {
        st = dd_engine_set(engine, (*settings)[0], (*settings)[1], &err);
    }
    if (st == DD_OK) {
        st = dd_engine_start(engine, &err);
    }
    if (st != DD_OK) {
        (void)raw_complain("engine", &err);
        dd_engine_destroy(engine);
        return NULL;
    }
    return engine;
}

/* Allocate `tensors` tensors of blocks, find their addresses. 0 on failure. */
static inline int64_t raw_cache(dd_engine *engine, uint64_t tensors, uint64_t blocks,
                                uint64_t block_bytes, bool has_key, uint64_t *addresses)
{
    const int64_t dims[2] = {(int64_t)blocks, (int64_t)block_bytes};
    const dd_cache_desc desc = {.size = sizeof(desc),
                                .tensor_count = (uint32_t)tensors,
                                .data_type = DD_UINT8,
                                .placement = DD_DEVICE,
                                .dim_count = 2,
                                .dims = dims};
    const dd_key key = {.size = sizeof(key), .kind = DD_KEY_BLOCKS};
    dd_error err = {0};
    int64_t cache = 0;

    if (dd_cache_alloc(engine, &desc, &key, has_key ? 1 : 0, &cache, &err) != DD_OK ||
        dd_cache_addresses(engine, cache, 0, addresses, (uint32_t)tensors, &err) != DD_OK) {
        (void)raw_complain("cache", &err);
        return 0;
    }
    return cache;
}

static inline uint64_t raw_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* Fill a block: words, blocks and tensors all differ. */
static inline void raw_fill(uint64_t *words, uint64_t bytes, uint64_t tensor, uint64_t block)
{
    uint64_t base = raw_mix(tensor << 32 | block);

    for (uint64_t i = 0; i < bytes / 8; i++) {
        words[i] = (base + i) * UINT64_C(0x9E3779B97F4A7C15);
    }
}

static inline bool raw_is_filled(const uint64_t *words, uint64_t bytes, uint64_t tensor,
                                 uint64_t block)
{
    uint64_t base = raw_mix(tensor << 32 | block);

    for (uint64_t i = 0; i < bytes / 8; i++) {
        if (words[i] != (base + i) * UINT64_C(0x9E3779B97F4A7C15)) {
            (void)fprintf(stderr,
                          "tensor %" PRIu64 ", block %" PRIu64 " of the source: byte %" PRIu64
                          " is wrong\n",
                          tensor, block, i * 8);
            return false;
        }
    }
    return true;
}

/* All indices below n, shuffled. NULL: no memory. */
static inline uint64_t *raw_shuffle(uint64_t n, uint64_t seed)
{
    uint64_t *order = malloc(n * sizeof(*order));

    for (uint64_t i = 0; order != NULL && i < n; i++) {
        uint64_t other = raw_mix(seed + i) % (i + 1);

        order[i] = order[other];
        order[other] = i;
    }
    return order;
}

/* ---- Sockets --------------------------------------------------------------------------------- */

static inline bool raw_tune(int fd, const char *congestion)
{
    const int on = 1;

    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0 &&
           (congestion[0] == '\0' || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
                                                (socklen_t)strlen(congestion)) == 0);
}

/* Listen at a free port of the loopback. -1 on failure. */
static inline int raw_listen(uint16_t *port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        listen(fd, 64) != 0 || getsockname(fd, (struct sockaddr *)&addr, &len) != 0) {
        return -1;
    }
    *port = ntohs(addr.sin_port);
    return fd;
}

static inline int raw_dial(uint16_t port, const char *congestion)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        !raw_tune(fd, congestion)) {
        return -1;
    }
    return fd;
}

static inline int raw_accept(int listener, const char *congestion)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    return fd >= 0 && raw_tune(fd, congestion) ? fd : -1;
}

/* Send or receive a whole vector, a part of it per call. The entries are as before on return. */
static inline bool raw_move(int fd, bool is_send, struct iovec *items, size_t count,
                            struct raw_way way)
{
    int receive_flags = way.waits_for_all ? MSG_WAITALL : 0;
    size_t skip = 0; /* bytes of the first entry that were moved */
    size_t at = 0;

    while (at < count) {
        size_t n = count - at < way.per_call ? count - at : way.per_call;
        struct msghdr message = {.msg_iov = items + at, .msg_iovlen = n};
        struct iovec first = items[at];
        ssize_t moved;

        items[at].iov_base = (uint8_t *)first.iov_base + skip;
        items[at].iov_len = first.iov_len - skip;
        moved = is_send ? sendmsg(fd, &message, MSG_NOSIGNAL)
                        : recvmsg(fd, &message, receive_flags);
        items[at] = first;
        if (moved <= 0 && (moved == 0 || errno != EINTR)) {
            return false;
        }
        skip += moved > 0 ? (size_t)moved : 0;
        while (at < count && skip >= items[at].iov_len) {
            skip -= items[at].iov_len;
            at++;
        }
    }
    return true;
}

/* A connection at the owner, and the vector that it answers from. The vector changes only between
 * requests: the puller waits for the owner's word before it asks again. */
struct raw_served {
    int fd;
    struct iovec *const *items;
    const size_t *count;
};

static inline void *raw_serve(void *context)
{
    struct raw_served *served = context;
    struct raw_request request;

    while (raw_hear(served->fd, &request, sizeof(request))) {
        struct raw_way way = {.per_call = request.per_call};

        if (request.first > *served->count || request.count > *served->count - request.first ||
            !raw_move(served->fd, true, *served->items + request.first, request.count, way)) {
            break;
        }
    }
    (void)close(served->fd);
    return NULL;
}

/* Accept connections, each with a thread of its own that answers until the puller closes. */
static inline bool raw_serve_all(int listener, const char *congestion, uint64_t parts,
                                 struct raw_served *served, struct iovec *const *items,
                                 const size_t *count)
{
    for (uint64_t i = 0; i < parts; i++) {
        pthread_t thread;

        served[i] = (struct raw_served){raw_accept(listener, congestion), items, count};
        if (served[i].fd < 0 || pthread_create(&thread, NULL, raw_serve, &served[i]) != 0) {
            return raw_complain("raw connections", NULL);
        }
        (void)pthread_detach(thread);
    }
    return true;
}

/* Ask for pieces and wait until they are in place. */
static inline bool raw_pull(int fd, struct iovec *items, uint64_t first, uint64_t count,
                            struct raw_way way)
{
    struct raw_request request = {.first = first, .count = count, .per_call = way.per_call};

    return raw_say(fd, &request, sizeof(request)) && raw_move(fd, false, items + first, count, way);
}

struct raw_part {
    int fd;
    struct iovec *items;
    uint64_t first;
    uint64_t count;
    struct raw_way way;
    bool is_whole;
};

static inline void *raw_pull_part(void *context)
{
    struct raw_part *part = context;

    part->is_whole = raw_pull(part->fd, part->items, part->first, part->count, part->way);
    return NULL;
}

/* Pull the whole vector, an equal part on each connection, the first by the calling thread. */
static inline bool raw_pull_all(const int *fds, uint64_t parts, struct iovec *items, size_t count,
                                struct raw_way way)
{
    struct raw_part all[RAW_MAX_PARTS];
    pthread_t threads[RAW_MAX_PARTS];
    uint64_t started = 1;
    bool is_whole = true;

    for (uint64_t i = 0; i < parts; i++) {
        uint64_t first = count * i / parts;

        all[i] = (struct raw_part){fds[i], items, first, count * (i + 1) / parts - first,
                                   way,    false};
    }
    while (started < parts &&
           pthread_create(&threads[started], NULL, raw_pull_part, &all[started]) == 0) {
        started++;
    }
    (void)raw_pull_part(&all[0]);
    for (uint64_t i = 1; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    for (uint64_t i = 0; i < parts; i++) {
        is_whole = is_whole && all[i].is_whole;
    }
    return is_whole || raw_complain("raw", NULL);
}

/* ---- Figures --------------------------------------------------------------------------------- */

static inline int raw_compare(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

/* Sorts the values. */
static inline struct raw_figures raw_figures(double *values, size_t n)
{
    struct raw_figures figures = {0};

    qsort(values, n, sizeof(*values), raw_compare);
    figures.median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    figures.min = values[0];
    figures.max = values[n - 1];
    return figures;
}

/* Of sorted values. */
static inline double raw_p99(const double *values, size_t n)
{
    return values[n * 99 / 100];
}

static inline bool raw_is_met(const struct raw_result *result)
{
    double value = result->limit.median > 0 ? result->ratio.median : result->ours.median;

    return result->is_least ? value >= result->target : value <= result->target;
}

/* Print one line of the table. */
static inline void raw_show(const struct raw_result *r, int digits)
{
    const struct raw_figures *ours = &r->ours;
    const struct raw_figures *limit = &r->limit;
    char spread[2][40];

    (void)snprintf(spread[0], sizeof(spread[0]), "%.*f (%.*f - %.*f)", digits, ours->median, digits,
                   ours->min, digits, ours->max);
    (void)snprintf(spread[1], sizeof(spread[1]), "%.*f (%.*f - %.*f)", digits, limit->median,
                   digits, limit->min, digits, limit->max);
    (void)printf("%-36s %-5s %-22s", r->what, r->unit, spread[0]);
    if (limit->median > 0) {
        (void)printf(" %-22s %.2f (%.2f - %.2f)", spread[1], r->ratio.median, r->ratio.min,
                     r->ratio.max);
    }
    (void)printf("  %s\n", r->note);
    (void)fflush(stdout);
}

static inline void raw_write_figures(FILE *file, const char *name, const struct raw_figures *f)
{
    (void)fprintf(file, ", \"%s\": {\"median\": %.4f, \"min\": %.4f, \"max\": %.4f", name,
                  f->median, f->min, f->max);
    if (f->p99 > 0) {
        (void)fprintf(file, ", \"p99\": %.4f", f->p99);
    }
    (void)fprintf(file, "}");
}

/* Write the report for programs. True when nothing failed. */
static inline bool raw_write_json(const char *path, const char *bench,
                                  const struct raw_result *results, size_t n)
{
    FILE *file = fopen(path, "we");

    if (file == NULL) {
        return false;
    }
    (void)fprintf(file, "{\"bench\": \"%s\", \"results\": [", bench);
    for (size_t i = 0; i < n; i++) {
        const struct raw_result *r = &results[i];

        (void)fprintf(file, "%s\n  {\"what\": \"%s\", \"unit\": \"%s\"", i > 0 ? "," : "", r->what,
                      r->unit);
        raw_write_figures(file, "ours", &r->ours);
        if (r->limit.median > 0) {
            raw_write_figures(file, "limit", &r->limit);
            raw_write_figures(file, "ratio", &r->ratio);
        }
        if (r->target > 0) {
            (void)fprintf(file, ", \"target\": %g, \"target_is\": \"%s\", \"met\": %s", r->target,
                          r->is_least ? "least" : "most", raw_is_met(r) ? "true" : "false");
        }
        (void)fprintf(file, ", \"note\": \"%s\"}", r->note);
    }
    (void)fprintf(file, "\n]}\n");
    return fclose(file) == 0;
}

#endif
