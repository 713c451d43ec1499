/* The memory pool: two-level segregated fit over chunks whose descriptors live outside the memory.
 *
 * Free chunks are kept in lists by size class (powers of two, each cut into 16), with bitmaps to
 * find a list that fits in constant time. Chunks of a region form a list by address, so that free
 * neighbours merge. */
#include "store/pool.h"

#include "base/map.h"
#include "base/mutex.h"
#include "base/num.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define UNIT UINT64_C(512)
#define LARGE (UINT64_C(2) << 20)   /* from here pieces are aligned to LARGE */
#define GRANULE (UINT64_C(2) << 20) /* memory is committed in these steps */
#define MIN_REGION (UINT64_C(64) << 20)
#define SUB_BITS 4
#define SUB_COUNT (1U << SUB_BITS)
#define CLASS_COUNT 56 /* of units: sizes up to 2^63 bytes */

struct region;

struct chunk {
    struct region *region;
    uint64_t offset;
    uint64_t bytes;       /* multiple of UNIT */
    struct chunk *before; /* by address, in the region */
    struct chunk *after;
    struct chunk *prev_free; /* in the list of its class */
    struct chunk *next_free;
    bool is_free;
};

struct region {
    struct ddi_region memory;
    struct region *next;
    uint64_t used;
    uint64_t committed[]; /* a bit per granule */
};

struct ddi_pool {
    struct ddi_pool_config config; /* constant */
    uint64_t limit;                /* constant */
    atomic_uint refs;              /* engine and entries end in any order */
    struct ddi_mutex mu;           /* rank DDI_RANK_POOL */
    struct ddi_map by_address;     /* guarded by mu; chunks in use */
    struct region *regions;        /* guarded by mu */
    uint64_t region_count;         /* guarded by mu */
    uint64_t used;                 /* guarded by mu */
    uint64_t peak;                 /* guarded by mu */
    uint64_t classes;              /* guarded by mu; a bit per class with free chunks */
    uint32_t subs[CLASS_COUNT];    /* guarded by mu; a bit per list with free chunks */
    struct chunk *lists[CLASS_COUNT][SUB_COUNT]; /* guarded by mu */
};

/* The list where a chunk of this size is kept. */
static void class_of(uint64_t bytes, unsigned *class, unsigned *sub)
{
    uint64_t units = bytes / UNIT;
    unsigned top = 63U - (unsigned)__builtin_clzll(units);

    if (top < SUB_BITS) { /* the smallest sizes are exact, all in class 0 */
        *class = 0;
        *sub = (unsigned)units;
    } else {
        *class = top - SUB_BITS + 1;
        *sub = (unsigned)(units >> (top - SUB_BITS)) & (SUB_COUNT - 1);
    }
}

static void push_free_locked(struct ddi_pool *pool, struct chunk *chunk)
{
    unsigned class;
    unsigned sub;

    class_of(chunk->bytes, &class, &sub);
    chunk->is_free = true;
    chunk->prev_free = NULL;
    chunk->next_free = pool->lists[class][sub];
    if (chunk->next_free != NULL) {
        chunk->next_free->prev_free = chunk;
    }
    pool->lists[class][sub] = chunk;
    pool->subs[class] |= 1U << sub;
    pool->classes |= UINT64_C(1) << class;
}

static void pull_free_locked(struct ddi_pool *pool, struct chunk *chunk)
{
    unsigned class;
    unsigned sub;

    class_of(chunk->bytes, &class, &sub);
    chunk->is_free = false;
    if (chunk->next_free != NULL) {
        chunk->next_free->prev_free = chunk->prev_free;
    }
    if (chunk->prev_free != NULL) {
        chunk->prev_free->next_free = chunk->next_free;
        return;
    }
    pool->lists[class][sub] = chunk->next_free;
    if (chunk->next_free == NULL) {
        pool->subs[class] &= ~(1U << sub);
        if (pool->subs[class] == 0) {
            pool->classes &= ~(UINT64_C(1) << class);
        }
    }
}

/* A free chunk of at least `bytes`: the first of the next list whose members all fit. */
static struct chunk *find_free_locked(struct ddi_pool *pool, uint64_t bytes)
{
    unsigned class;
    unsigned sub;
    uint32_t subs;
    uint64_t classes;
    struct chunk *head;

    class_of(bytes, &class, &sub);
    head = pool->lists[class][sub];
    if (head != NULL && head->bytes >= bytes) {
        return head; /* often an exact fit: the same shapes come again and again */
    }
    subs = sub + 1 < SUB_COUNT ? pool->subs[class] & (~0U << (sub + 1)) : 0;
    if (subs != 0) {
        return pool->lists[class][__builtin_ctz(subs)];
    }
    classes = class + 1 < 64 ? pool->classes & (~UINT64_C(0) << (class + 1)) : 0;
    if (classes == 0) {
        return NULL;
    }
    class = (unsigned)__builtin_ctzll(classes);
    return pool->lists[class][__builtin_ctz(pool->subs[class])];
}

/* Cut `bytes` off the front of a chunk that is in no list; the rest becomes a new chunk, which the
 * caller has allocated. */
static struct chunk *split(struct chunk *chunk, uint64_t bytes, struct chunk *rest)
{
    *rest = (struct chunk){.region = chunk->region,
                           .offset = chunk->offset + bytes,
                           .bytes = chunk->bytes - bytes,
                           .before = chunk,
                           .after = chunk->after};
    if (rest->after != NULL) {
        rest->after->before = rest;
    }
    chunk->after = rest;
    chunk->bytes = bytes;
    return rest;
}

/* Merge a chunk with the one behind it; both are in no list. */
static void merge(struct chunk *chunk)
{
    struct chunk *gone = chunk->after;

    chunk->bytes += gone->bytes;
    chunk->after = gone->after;
    if (chunk->after != NULL) {
        chunk->after->before = chunk;
    }
    free(gone);
}

static uint64_t alignment_of(uint64_t bytes)
{
    return bytes >= LARGE ? LARGE : UNIT;
}

/* Where an aligned piece of `bytes` begins inside a chunk; false if it does not fit. Regions begin
 * at multiples of LARGE, so offsets are as aligned as addresses. */
static bool place(const struct chunk *chunk, uint64_t bytes, uint64_t *gap)
{
    *gap = ddi_align_up(chunk->offset, alignment_of(bytes)) - chunk->offset;
    return ddi_fits(*gap, bytes, chunk->bytes);
}

/* Take a piece out of the free chunks. Spare descriptors come from the caller, so that nothing can
 * fail in the middle; used ones are set to NULL. */
static struct chunk *take_locked(struct ddi_pool *pool, uint64_t bytes, struct chunk *spare[2])
{
    struct chunk *chunk = find_free_locked(pool, bytes);
    uint64_t gap = 0;

    if (chunk != NULL && !place(chunk, bytes, &gap)) {
        chunk = find_free_locked(pool, bytes + alignment_of(bytes) - UNIT);
    }
    if (chunk == NULL || !place(chunk, bytes, &gap)) {
        return NULL;
    }
    pull_free_locked(pool, chunk);
    if (gap > 0) {
        struct chunk *front = chunk;

        chunk = split(front, gap, spare[0]);
        spare[0] = NULL;
        push_free_locked(pool, front);
    }
    if (chunk->bytes > bytes) {
        push_free_locked(pool, split(chunk, bytes, spare[1]));
        spare[1] = NULL;
    }
    return chunk;
}

static void add_region_locked(struct ddi_pool *pool, struct region *region, struct chunk *whole)
{
    *whole = (struct chunk){.region = region, .bytes = region->memory.bytes};
    region->next = pool->regions;
    pool->regions = region;
    pool->region_count++;
    push_free_locked(pool, whole);
}

/* Reserve address space for a piece that found no room. With a limit, twice as much: then gaps
 * before aligned pieces do not use it up. Where that is more than there is, as any other piece. */
static dd_status grow(struct ddi_pool *pool, uint64_t bytes, dd_error *err)
{
    uint64_t least = ddi_max_u64(MIN_REGION, bytes) + LARGE; /* limits are below 2^63 */
    struct ddi_region memory;
    struct region *region;
    struct chunk *whole;
    dd_status st = DDI_AGAIN;

    if (pool->config.limit_bytes > 0) {
        st = pool->config.device->reserve(2 * pool->limit + LARGE, &memory, NULL);
    }
    if (st != DD_OK) {
        st = pool->config.device->reserve(least, &memory, err);
    }
    if (st != DD_OK) {
        return st;
    }
    region = calloc(1, sizeof(*region) + (memory.bytes / GRANULE / 64 + 1) * sizeof(uint64_t));
    whole = calloc(1, sizeof(*whole));
    if (region == NULL || whole == NULL) {
        free(region);
        free(whole);
        pool->config.device->release(&memory);
        return ddi_fail(err, DD_NO_MEMORY, "memory region");
    }
    region->memory = memory;
    ddi_mutex_lock(&pool->mu);
    add_region_locked(pool, region, whole);
    ddi_mutex_unlock(&pool->mu);
    return DD_OK;
}

/* Give a wholly free region back, but keep one against coming and going. Returns the region that
 * the caller releases without the lock. */
static struct region *shrink_locked(struct ddi_pool *pool, struct chunk *chunk)
{
    struct region *region = chunk->region;
    struct region **at;
    bool has_spare = false;

    if (region->used > 0 || pool->config.limit_bytes > 0) {
        return NULL;
    }
    for (struct region *other = pool->regions; other != NULL; other = other->next) {
        has_spare = has_spare || (other != region && other->used == 0);
    }
    if (!has_spare && region->memory.bytes <= MIN_REGION + LARGE) {
        return NULL;
    }
    for (at = &pool->regions; *at != NULL; at = &(*at)->next) {
        if (*at == region) {
            *at = region->next;
            pool->region_count--;
            break;
        }
    }
    pull_free_locked(pool, chunk);
    free(chunk);
    return region;
}

/* Free a chunk in use: merge it with its neighbours. */
static struct region *give_back_locked(struct ddi_pool *pool, struct chunk *chunk)
{
    pool->used -= chunk->bytes;
    chunk->region->used -= chunk->bytes;
    if (chunk->after != NULL && chunk->after->is_free) {
        pull_free_locked(pool, chunk->after);
        merge(chunk);
    }
    if (chunk->before != NULL && chunk->before->is_free) {
        chunk = chunk->before;
        pull_free_locked(pool, chunk);
        merge(chunk);
    }
    push_free_locked(pool, chunk);
    return shrink_locked(pool, chunk);
}

static void release_region(struct ddi_pool *pool, struct region *region)
{
    if (region != NULL) {
        pool->config.device->release(&region->memory);
        free(region);
    }
}

/* Put memory behind a piece. Granules that are there already cost nothing. */
static dd_status commit(struct ddi_pool *pool, struct chunk *chunk, bool *is_fresh, dd_error *err)
{
    struct region *region = chunk->region;
    uint64_t first = chunk->offset / GRANULE;
    uint64_t last = (chunk->offset + chunk->bytes - 1) / GRANULE;
    uint64_t from = last + 1;
    uint64_t to = first;
    uint64_t missing = 0;
    dd_status st;

    ddi_mutex_lock(&pool->mu);
    for (uint64_t i = first; i <= last; i++) {
        if ((region->committed[i / 64] >> (i % 64) & 1) == 0) {
            from = ddi_min_u64(from, i);
            to = i + 1;
            missing++;
        }
    }
    ddi_mutex_unlock(&pool->mu);
    *is_fresh = missing == last + 1 - first;
    if (from > last) {
        return DD_OK;
    }
    st = pool->config.device->commit(&region->memory, from * GRANULE, (to - from) * GRANULE, err);
    if (st != DD_OK) {
        return st;
    }
    ddi_mutex_lock(&pool->mu);
    for (uint64_t i = from; i < to; i++) {
        region->committed[i / 64] |= UINT64_C(1) << (i % 64);
    }
    ddi_mutex_unlock(&pool->mu);
    return DD_OK;
}

/* Below 2^63 by a good margin, so that no sum of a limit and a piece wraps around. */
static uint64_t limit_of(const struct ddi_pool_config *config)
{
    const uint64_t most = INT64_MAX - LARGE;
    double part;

    if (config->limit_bytes > 0) {
        return ddi_min_u64(config->limit_bytes, most);
    }
    part = config->limit_fraction * (double)config->device->memory();
    return part < (double)most ? (uint64_t)part : most;
}

dd_status ddi_pool_create(const struct ddi_pool_config *config, struct ddi_pool **out,
                          dd_error *err)
{
    struct ddi_pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "memory pool");
    }
    pool->config = *config;
    pool->limit = limit_of(config);
    atomic_init(&pool->refs, 1);
    ddi_mutex_init(&pool->mu, DDI_RANK_POOL);
    ddi_map_init(&pool->by_address);
    *out = pool;
    return DD_OK;
}

void ddi_pool_get(struct ddi_pool *pool)
{
    atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
}

void ddi_pool_put(struct ddi_pool *pool)
{
    /* Release and acquire: what other holders did is seen by the one that frees. */
    if (pool == NULL || atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    /* Every piece is back, so each region is one free chunk: the free lists hold them all. */
    for (unsigned class = 0; class < CLASS_COUNT; class ++) {
        for (unsigned sub = 0; sub < SUB_COUNT; sub++) {
            while (pool->lists[class][sub] != NULL) {
                struct chunk *chunk = pool->lists[class][sub];

                pool->lists[class][sub] = chunk->next_free;
                free(chunk);
            }
        }
    }
    while (pool->regions != NULL) {
        struct region *region = pool->regions;

        pool->regions = region->next;
        release_region(pool, region);
    }
    ddi_map_fini(&pool->by_address);
    ddi_mutex_fini(&pool->mu);
    free(pool);
}

static struct ddi_map_key key_of(const struct chunk *chunk)
{
    return (struct ddi_map_key){.a = (uint64_t)(uintptr_t)chunk->region->memory.addr +
                                     chunk->offset};
}

/* The bytes that a piece counts for. */
static bool round_up(uint64_t bytes, uint64_t *rounded)
{
    if (bytes == 0 || !ddi_add_u64(bytes, UNIT - 1, rounded)) {
        return false;
    }
    *rounded = ddi_align_up(bytes, UNIT);
    return true;
}

static dd_status check_limit_locked(const struct ddi_pool *pool, uint64_t bytes, dd_error *err)
{
    if (ddi_fits(pool->used, bytes, pool->limit)) {
        return DD_OK;
    }
    return ddi_fail(err, DD_NO_MEMORY,
                    "pool: %" PRIu64 " bytes wanted, %" PRIu64 " in use of at most %" PRIu64
                    " (option datadist.pool_bytes)",
                    bytes, pool->used, pool->limit);
}

/* Find room under the limit. DDI_AGAIN: there is none, a region more would help. */
static dd_status try_take(struct ddi_pool *pool, uint64_t bytes, struct chunk *spare[2],
                          struct chunk **out, dd_error *err)
{
    struct chunk *chunk = NULL;
    struct region *gone = NULL;
    dd_status st;

    ddi_mutex_lock(&pool->mu);
    st = check_limit_locked(pool, bytes, err);
    if (st == DD_OK) {
        chunk = take_locked(pool, bytes, spare);
        st = chunk == NULL ? DDI_AGAIN : ddi_map_put(&pool->by_address, key_of(chunk), chunk, err);
    }
    if (chunk != NULL) {
        pool->used += chunk->bytes;
        chunk->region->used += chunk->bytes;
        pool->peak = ddi_max_u64(pool->peak, pool->used);
        if (st != DD_OK) {
            gone = give_back_locked(pool, chunk);
        }
    }
    ddi_mutex_unlock(&pool->mu);
    release_region(pool, gone);
    *out = chunk;
    return st;
}

dd_status ddi_pool_check(struct ddi_pool *pool, uint64_t bytes, uint64_t count, dd_error *err)
{
    uint64_t rounded;
    uint64_t all;
    dd_status st;

    if (!round_up(bytes, &rounded) || !ddi_mul_u64(rounded, count, &all)) {
        return ddi_fail(err, DD_NO_MEMORY, "pool: %" PRIu64 " x %" PRIu64 " bytes cannot be had",
                        count, bytes);
    }
    ddi_mutex_lock(&pool->mu);
    st = check_limit_locked(pool, all, err);
    ddi_mutex_unlock(&pool->mu);
    return st;
}

dd_status ddi_pool_alloc(struct ddi_pool *pool, uint64_t bytes, void **addr, dd_error *err)
{
    struct chunk *spare[2] = {calloc(1, sizeof(struct chunk)), calloc(1, sizeof(struct chunk))};
    struct chunk *chunk = NULL;
    uint64_t rounded;
    uint8_t *piece;
    bool is_fresh;
    dd_status st;

    if (spare[0] == NULL || spare[1] == NULL) {
        st = ddi_fail(err, DD_NO_MEMORY, "piece of memory");
    } else if (!round_up(bytes, &rounded)) {
        st = ddi_fail(err, DD_NO_MEMORY, "pool: %" PRIu64 " bytes cannot be had", bytes);
    } else {
        do {
            st = try_take(pool, rounded, spare, &chunk, err);
        } while (st == DDI_AGAIN && (st = grow(pool, rounded, err)) == DD_OK);
    }
    free(spare[0]);
    free(spare[1]);
    if (st != DD_OK) {
        return st;
    }
    piece = (uint8_t *)chunk->region->memory.addr + chunk->offset;
    st = commit(pool, chunk, &is_fresh, err);
    if (st != DD_OK) {
        ddi_pool_free(pool, piece);
        return st;
    }
    if (pool->config.clear && !is_fresh) {
        (void)memset(piece, 0, bytes);
    }
    *addr = piece; /* on success only: a caller that frees what it got must not free this */
    return DD_OK;
}

void ddi_pool_free(struct ddi_pool *pool, void *addr)
{
    struct region *gone = NULL;
    struct chunk *chunk;

    if (addr == NULL) {
        return;
    }
    ddi_mutex_lock(&pool->mu);
    chunk = ddi_map_remove(&pool->by_address, (struct ddi_map_key){.a = (uint64_t)(uintptr_t)addr});
    if (chunk != NULL) {
        gone = give_back_locked(pool, chunk);
    }
    ddi_mutex_unlock(&pool->mu);
    release_region(pool, gone);
}

void ddi_pool_stats(struct ddi_pool *pool, struct ddi_pool_stats *out)
{
    (void)memset(out, 0, sizeof(*out));
    ddi_mutex_lock(&pool->mu);
    out->limit_bytes = pool->limit;
    out->used_bytes = pool->used;
    out->peak_bytes = pool->peak;
    out->region_count = pool->region_count;
    if (pool->classes != 0) {
        unsigned class = 63U - (unsigned)__builtin_clzll(pool->classes);
        unsigned sub = 31U - (unsigned)__builtin_clz(pool->subs[class]);

        for (struct chunk *at = pool->lists[class][sub]; at != NULL; at = at->next_free) {
            out->largest_free = ddi_max_u64(out->largest_free, at->bytes);
        }
        out->largest_free = ddi_min_u64(out->largest_free, pool->limit - pool->used);
    }
    ddi_mutex_unlock(&pool->mu);
}
