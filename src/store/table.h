/* The cache table: what this engine holds, under which ids and keys, and who is using it.
 *
 * An entry is kept alive by its id (until freed), by each request and prefix key, by pins (running
 * transfers) and by views; its memory goes back to the pool when the last of these is gone. */
#ifndef DDI_TABLE_H
#define DDI_TABLE_H

#include "model/desc.h"
#include "store/pool.h"

struct ddi_table;

/* One cache. Constant after creation; what changes is private to table.c. */
struct ddi_entry {
    int64_t id;
    struct ddi_desc desc;
    uint32_t device_count;
    uint64_t *tensors; /* address of tensor t of device d: [d * tensor_count + t] */
};

/* How a peer names a source. */
struct ddi_source_ref {
    dd_key_kind kind; /* DD_KEY_NONE: by cache id */
    uint64_t id;
    uint64_t model_id;
    int64_t cache;
    uint32_t batch; /* by cache id only */
};

/* What a lookup for a peer gives: a pinned entry, and the key that a complete pull uses up. */
struct ddi_grant {
    struct ddi_entry *entry;
    uint32_t batch;
    dd_key_kind kind; /* DD_KEY_REQUEST when a key is to be used up, else DD_KEY_NONE */
    uint64_t key_id;
    uint64_t model_id;
    int64_t cache; /* entry->id, valid after the pin is gone */
};

struct ddi_table_stats {
    uint64_t caches;
    uint64_t keys; /* request, prefix and blocks keys */
    uint64_t pins;
};

/* Takes a reference to `pool`. device_count tensors sets per cache. */
dd_status ddi_table_create(struct ddi_pool *pool, uint32_t device_count, struct ddi_table **out,
                           dd_error *err);

/* Drop all ids and keys and the caller's reference to the table. Pins must be gone; views go on
 * (their entries keep the pool). NULL is fine. */
void ddi_table_destroy(struct ddi_table *table);

/* See dd_cache_alloc. All or nothing. */
dd_status ddi_table_alloc(struct ddi_table *table, const dd_cache_desc *desc, const dd_key *keys,
                          size_t key_count, int64_t *cache, dd_error *err);

/* See dd_cache_free and dd_key_remove. Neither waits. */
dd_status ddi_table_free(struct ddi_table *table, int64_t cache, dd_error *err);
dd_status ddi_table_remove_key(struct ddi_table *table, const dd_key *key, dd_error *err);

/* Pin an entry for local use by id. A freed id is DD_NO_CACHE even while keys keep the entry. */
dd_status ddi_table_pin(struct ddi_table *table, int64_t cache, struct ddi_entry **out,
                        dd_error *err);

/* Pin an entry for a peer. By id: the id must not be freed, or the batch must have a live key.
 * Fails: DD_NO_CACHE (says which key or id, and for a batch index outside: found and limit). */
dd_status ddi_table_find(struct ddi_table *table, const struct ddi_source_ref *ref,
                         struct ddi_grant *out, dd_error *err);

void ddi_table_unpin(struct ddi_table *table, struct ddi_entry *entry);

/* A peer has confirmed that it got tensors [first, first + count) under the grant's key. Uses the
 * key up when all tensors were pulled (over all pulls). Idempotent: a key that is gone, or names
 * another cache meanwhile, is left alone. Needs no pin. */
void ddi_table_consume(struct ddi_table *table, const struct ddi_grant *grant, uint32_t first,
                       uint32_t count);

/* Hold an entry for a view: independent of the table's life. Release from any thread. */
void ddi_entry_hold(struct ddi_entry *entry);
void ddi_entry_release(struct ddi_entry *entry);

void ddi_table_stats(struct ddi_table *table, struct ddi_table_stats *out);

#endif
