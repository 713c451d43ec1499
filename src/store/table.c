/* The cache table. One lock; memory is allocated and freed without it.
 *
 * An entry's `refs` count who needs its memory: the table while the id or a key is alive, each pin,
 * each view. When the last is gone the memory returns to the pool. */
#include "store/table.h"

#include "base/map.h"
#include "base/mutex.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct entry;

struct key {
    struct entry *entry;
    uint32_t batch;
    dd_key_kind kind;
    uint64_t id;
    uint64_t model_id;
    uint64_t *pulled; /* a bit per tensor, once a pull brought only some */
    uint32_t pulled_count;
};

struct entry {
    struct ddi_entry shown; /* first: what others see */
    struct ddi_pool *pool;  /* holds a reference */
    atomic_uint refs;       /* table, pins, views */
    /* Guarded by table->mu. */
    bool is_id_live;
    uint32_t keeping_keys; /* request and prefix keys */
    size_t key_count;      /* length of keys */
    struct key **keys;     /* by batch index; NULL: none. A blocks key stands at 0 */
};

struct ddi_table {
    struct ddi_pool *pool; /* constant, holds a reference */
    uint32_t device_count; /* constant */
    struct ddi_mutex mu;   /* rank DDI_RANK_TABLE */
    struct ddi_map by_id;  /* guarded by mu; entries whose id or keys are alive */
    struct ddi_map by_key; /* guarded by mu; struct key, owned here */
    int64_t next_id;       /* guarded by mu */
    uint64_t pins;         /* guarded by mu */
};

static struct ddi_map_key id_key(int64_t id)
{
    return (struct ddi_map_key){.a = (uint64_t)id};
}

static struct ddi_map_key name_key(dd_key_kind kind, uint64_t id, uint64_t model_id)
{
    return (struct ddi_map_key){.a = (uint64_t)kind, .b = id, .c = model_id};
}

static const char *kind_name(dd_key_kind kind)
{
    return kind == DD_KEY_REQUEST  ? "request key"
           : kind == DD_KEY_PREFIX ? "prefix key"
                                   : "blocks key";
}

static struct entry *entry_of(struct ddi_entry *shown)
{
    return (struct entry *)shown; /* its first member */
}

static void free_entry(struct entry *entry)
{
    size_t count = (size_t)entry->shown.desc.tensor_count * entry->shown.device_count;

    for (size_t i = 0; entry->shown.tensors != NULL && i < count; i++) {
        ddi_pool_free(entry->pool, (void *)(uintptr_t)entry->shown.tensors[i]);
    }
    ddi_pool_put(entry->pool);
    free(entry->shown.tensors);
    free(entry->keys);
    free(entry);
}

void ddi_entry_hold(struct ddi_entry *entry)
{
    atomic_fetch_add_explicit(&entry_of(entry)->refs, 1, memory_order_relaxed);
}

void ddi_entry_release(struct ddi_entry *entry)
{
    /* Release and acquire: what other holders wrote is seen by the one that frees. */
    if (atomic_fetch_sub_explicit(&entry_of(entry)->refs, 1, memory_order_acq_rel) == 1) {
        free_entry(entry_of(entry));
    }
}

dd_status ddi_table_create(struct ddi_pool *pool, uint32_t device_count, struct ddi_table **out,
                           dd_error *err)
{
    struct ddi_table *table = calloc(1, sizeof(*table));

    if (table == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "cache table");
    }
    ddi_pool_get(pool);
    table->pool = pool;
    table->device_count = device_count;
    table->next_id = 1;
    ddi_mutex_init(&table->mu, DDI_RANK_TABLE);
    *out = table;
    return DD_OK;
}

/* Forget a key; its entry loses it too. */
static void drop_key_locked(struct ddi_table *table, struct key *key)
{
    struct entry *entry = key->entry;

    (void)ddi_map_remove(&table->by_key, name_key(key->kind, key->id, key->model_id));
    entry->keys[key->batch] = NULL;
    if (key->kind != DD_KEY_BLOCKS) {
        entry->keeping_keys--;
    }
    free(key->pulled);
    free(key);
}

/* If nothing names the entry any more, take it out of the table; the caller then releases the
 * table's reference without the lock. */
static bool retire_locked(struct ddi_table *table, struct entry *entry)
{
    if (entry->is_id_live || entry->keeping_keys > 0) {
        return false;
    }
    (void)ddi_map_remove(&table->by_id, id_key(entry->shown.id));
    return true;
}

void ddi_table_destroy(struct ddi_table *table)
{
    if (table == NULL) {
        return;
    }
    for (;;) {
        struct entry *entry;
        size_t at = 0;

        ddi_mutex_lock(&table->mu);
        entry = ddi_map_next(&table->by_id, &at);
        if (entry != NULL) {
            for (size_t i = 0; i < entry->key_count; i++) {
                if (entry->keys[i] != NULL) {
                    drop_key_locked(table, entry->keys[i]);
                }
            }
            entry->is_id_live = false;
            (void)retire_locked(table, entry);
        }
        ddi_mutex_unlock(&table->mu);
        if (entry == NULL) {
            break;
        }
        ddi_entry_release(&entry->shown);
    }
    ddi_map_fini(&table->by_id);
    ddi_map_fini(&table->by_key);
    ddi_mutex_fini(&table->mu);
    ddi_pool_put(table->pool);
    free(table);
}

static dd_status check_keys(const struct ddi_desc *desc, const dd_key *keys, size_t key_count,
                            dd_error *err)
{
    if (key_count > (uint64_t)desc->dims[0]) {
        return ddi_fail(err, DD_INVALID, "%zu keys for a batch of %" PRId64, key_count,
                        desc->dims[0]);
    }
    for (size_t i = 0; i < key_count; i++) {
        switch (keys[i].kind) {
        case DD_KEY_NONE:
        case DD_KEY_REQUEST:
        case DD_KEY_PREFIX:
            break;
        case DD_KEY_BLOCKS:
            if (key_count != 1 || keys[i].id != 0) {
                return ddi_fail(
                    err, DD_INVALID,
                    "a blocks key stands alone and its id is 0, found %zu keys and id %" PRIu64,
                    key_count, keys[i].id);
            }
            break;
        default:
            return ddi_fail(err, DD_INVALID, "kind of key %zu is %d, wanted 0 to 3", i,
                            (int)keys[i].kind);
        }
    }
    return DD_OK;
}

/* An entry with memory, not in the table yet. */
static dd_status create_entry(struct ddi_table *table, const struct ddi_desc *desc,
                              size_t key_count, struct entry **out, dd_error *err)
{
    size_t count = (size_t)desc->tensor_count * table->device_count;
    struct entry *entry = calloc(1, sizeof(*entry));
    dd_status st = DD_OK;

    if (entry == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "cache entry");
    }
    atomic_init(&entry->refs, 1);
    ddi_pool_get(table->pool);
    entry->pool = table->pool;
    entry->shown.desc = *desc;
    entry->shown.device_count = table->device_count;
    entry->is_id_live = true;
    entry->key_count = key_count;
    entry->shown.tensors = calloc(count, sizeof(*entry->shown.tensors));
    entry->keys = calloc(key_count + 1, sizeof(struct key *));
    if (entry->shown.tensors == NULL || entry->keys == NULL) {
        st = ddi_fail(err, DD_NO_MEMORY, "cache entry with %zu tensors", count);
    }
    if (st == DD_OK) {
        st = ddi_pool_check(table->pool, desc->tensor_bytes, count, err);
    }
    for (size_t i = 0; i < count && st == DD_OK; i++) {
        void *addr = NULL;

        st = ddi_pool_alloc(table->pool, desc->tensor_bytes, &addr, err);
        entry->shown.tensors[i] = (uint64_t)(uintptr_t)addr;
    }
    if (st != DD_OK) {
        ddi_error_context(err, "cache of %zu tensors with %" PRIu64 " bytes each", count,
                          desc->tensor_bytes);
        free_entry(entry);
        return st;
    }
    *out = entry;
    return DD_OK;
}

static dd_status check_bound_locked(struct ddi_table *table, const dd_key *keys, size_t key_count,
                                    dd_error *err)
{
    for (size_t i = 0; i < key_count; i++) {
        const struct key *bound =
            keys[i].kind == DD_KEY_NONE
                ? NULL
                : ddi_map_get(&table->by_key, name_key(keys[i].kind, keys[i].id, keys[i].model_id));

        if (bound != NULL) {
            return ddi_fail(err, DD_KEY_EXISTS,
                            "%s %" PRIu64 " (model %" PRIu64 ") names cache %" PRId64 " already",
                            kind_name(keys[i].kind), keys[i].id, keys[i].model_id,
                            bound->entry->shown.id);
        }
    }
    return DD_OK;
}

/* Bind one key to batch index `batch`. Within one call the last of equal keys wins. */
static dd_status bind_locked(struct ddi_table *table, struct entry *entry, const dd_key *name,
                             uint32_t batch, dd_error *err)
{
    struct ddi_map_key at = name_key(name->kind, name->id, name->model_id);
    struct key *key = ddi_map_get(&table->by_key, at);
    dd_status st;

    if (key != NULL) {
        drop_key_locked(table, key);
    }
    key = calloc(1, sizeof(*key));
    if (key == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "cache key");
    }
    *key = (struct key){.entry = entry,
                        .batch = batch,
                        .kind = name->kind,
                        .id = name->id,
                        .model_id = name->model_id};
    st = ddi_map_put(&table->by_key, at, key, err);
    if (st != DD_OK) {
        free(key);
        return st;
    }
    entry->keys[batch] = key;
    entry->keeping_keys += key->kind != DD_KEY_BLOCKS;
    return DD_OK;
}

/* Put a new entry under its id and keys; all or nothing. */
static dd_status enter_locked(struct ddi_table *table, struct entry *entry, const dd_key *keys,
                              dd_error *err)
{
    dd_status st = check_bound_locked(table, keys, entry->key_count, err);

    if (st != DD_OK) {
        return st;
    }
    entry->shown.id = table->next_id++;
    st = ddi_map_put(&table->by_id, id_key(entry->shown.id), entry, err);
    if (st != DD_OK) {
        return st;
    }
    for (size_t i = 0; i < entry->key_count && st == DD_OK; i++) {
        if (keys[i].kind != DD_KEY_NONE) {
            st = bind_locked(table, entry, &keys[i], (uint32_t)i, err);
        }
    }
    if (st != DD_OK) {
        for (size_t i = 0; i < entry->key_count; i++) {
            if (entry->keys[i] != NULL) {
                drop_key_locked(table, entry->keys[i]);
            }
        }
        (void)ddi_map_remove(&table->by_id, id_key(entry->shown.id));
    }
    return st;
}

dd_status ddi_table_alloc(struct ddi_table *table, const dd_cache_desc *desc, const dd_key *keys,
                          size_t key_count, int64_t *cache, dd_error *err)
{
    struct ddi_desc full;
    struct entry *entry = NULL;
    dd_status st = ddi_desc_init(&full, desc, err);

    if (st == DD_OK) {
        st = check_keys(&full, keys, key_count, err);
    }
    if (st == DD_OK) { /* a key in use is the reason even when memory is short too */
        ddi_mutex_lock(&table->mu);
        st = check_bound_locked(table, keys, key_count, err);
        ddi_mutex_unlock(&table->mu);
    }
    if (st == DD_OK) {
        st = create_entry(table, &full, key_count, &entry, err);
    }
    if (st != DD_OK) {
        return st;
    }
    ddi_mutex_lock(&table->mu);
    st = enter_locked(table, entry, keys, err);
    if (st == DD_OK) {
        *cache = entry->shown.id;
    }
    ddi_mutex_unlock(&table->mu);
    if (st != DD_OK) {
        free_entry(entry);
    }
    return st;
}

static struct entry *find_id_locked(struct ddi_table *table, int64_t cache, dd_error *err)
{
    struct entry *entry = ddi_map_get(&table->by_id, id_key(cache));

    if (entry != NULL && entry->is_id_live) {
        return entry;
    }
    (void)ddi_fail(err, DD_NO_CACHE, "cache %" PRId64 " does not exist%s", cache,
                   entry != NULL || (cache > 0 && cache < table->next_id) ? ": it was freed" : "");
    return NULL;
}

dd_status ddi_table_free(struct ddi_table *table, int64_t cache, dd_error *err)
{
    struct entry *entry;
    bool is_retired = false;

    ddi_mutex_lock(&table->mu);
    entry = find_id_locked(table, cache, err);
    if (entry != NULL) {
        entry->is_id_live = false;
        if (entry->key_count > 0 && entry->keys[0] != NULL &&
            entry->keys[0]->kind == DD_KEY_BLOCKS) {
            drop_key_locked(table, entry->keys[0]);
        }
        is_retired = retire_locked(table, entry);
    }
    ddi_mutex_unlock(&table->mu);
    if (is_retired) {
        ddi_entry_release(&entry->shown);
    }
    return entry == NULL ? DD_NO_CACHE : DD_OK;
}

/* End a key. Returns its entry if that was the last thing that named it; the caller then releases the
 * table's reference without the lock. */
static struct entry *end_key_locked(struct ddi_table *table, struct key *key)
{
    struct entry *entry = key->entry;

    drop_key_locked(table, key);
    return retire_locked(table, entry) ? entry : NULL;
}

dd_status ddi_table_remove_key(struct ddi_table *table, const dd_key *key, dd_error *err)
{
    struct entry *retired = NULL;
    struct key *found;

    if (key->kind != DD_KEY_REQUEST && key->kind != DD_KEY_PREFIX) {
        return ddi_fail(err, DD_INVALID, "kind of the key is %d, wanted request or prefix",
                        (int)key->kind);
    }
    ddi_mutex_lock(&table->mu);
    found = ddi_map_get(&table->by_key, name_key(key->kind, key->id, key->model_id));
    if (found != NULL) {
        retired = end_key_locked(table, found);
    }
    ddi_mutex_unlock(&table->mu);
    if (retired != NULL) {
        ddi_entry_release(&retired->shown);
    }
    return DD_OK;
}

dd_status ddi_table_pin(struct ddi_table *table, int64_t cache, struct ddi_entry **out,
                        dd_error *err)
{
    struct entry *entry;

    ddi_mutex_lock(&table->mu);
    entry = find_id_locked(table, cache, err);
    if (entry != NULL) {
        ddi_entry_hold(&entry->shown);
        table->pins++;
        *out = &entry->shown;
    }
    ddi_mutex_unlock(&table->mu);
    return entry == NULL ? DD_NO_CACHE : DD_OK;
}

/* By key, or by id and batch index. NULL with text when there is no such source. */
static struct entry *find_source_locked(struct ddi_table *table, const struct ddi_source_ref *ref,
                                        const struct key **key, uint32_t *batch, dd_error *err)
{
    struct entry *entry;

    if (ref->kind != DD_KEY_NONE) {
        *key = ddi_map_get(&table->by_key, name_key(ref->kind, ref->id, ref->model_id));
        if (*key == NULL) {
            (void)ddi_fail(err, DD_NO_CACHE, "no cache under %s %" PRIu64 " (model %" PRIu64 ")",
                           kind_name(ref->kind), ref->id, ref->model_id);
            return NULL;
        }
        *batch = (*key)->batch;
        return (*key)->entry;
    }
    entry = ddi_map_get(&table->by_id, id_key(ref->cache));
    *batch = ref->batch;
    *key = entry != NULL && ref->batch < entry->key_count ? entry->keys[ref->batch] : NULL;
    if (entry == NULL || (!entry->is_id_live && *key == NULL)) {
        (void)ddi_fail(err, DD_NO_CACHE, "cache %" PRId64 " does not exist", ref->cache);
        return NULL;
    }
    if (ref->batch >= (uint64_t)entry->shown.desc.dims[0]) {
        (void)ddi_fail(err, DD_NO_CACHE, "cache %" PRId64 " has no batch index %u, only %" PRId64,
                       ref->cache, ref->batch, entry->shown.desc.dims[0]);
        return NULL;
    }
    return entry;
}

dd_status ddi_table_find(struct ddi_table *table, const struct ddi_source_ref *ref,
                         struct ddi_grant *out, dd_error *err)
{
    const struct key *key = NULL;
    struct entry *entry;
    uint32_t batch;

    ddi_mutex_lock(&table->mu);
    entry = find_source_locked(table, ref, &key, &batch, err);
    if (entry != NULL) {
        ddi_entry_hold(&entry->shown);
        table->pins++;
        *out = (struct ddi_grant){.entry = &entry->shown, .cache = entry->shown.id, .batch = batch};
        if (key != NULL && key->kind == DD_KEY_REQUEST) {
            out->kind = DD_KEY_REQUEST;
            out->key_id = key->id;
            out->model_id = key->model_id;
        }
    }
    ddi_mutex_unlock(&table->mu);
    return entry == NULL ? DD_NO_CACHE : DD_OK;
}

void ddi_table_unpin(struct ddi_table *table, struct ddi_entry *entry)
{
    ddi_mutex_lock(&table->mu);
    table->pins--;
    ddi_mutex_unlock(&table->mu);
    ddi_entry_release(entry);
}

/* Note that tensors [first, first + count) were pulled under a key; true when all were. When there
 * is no memory to note it the key stays: that errs to the safe side. */
static bool count_pulled_locked(struct key *key, uint32_t first, uint32_t count)
{
    uint32_t tensors = key->entry->shown.desc.tensor_count;

    if (first == 0 && count == tensors) {
        return true;
    }
    if (key->pulled == NULL) {
        key->pulled = calloc(tensors / 64 + 1, sizeof(*key->pulled));
        if (key->pulled == NULL) {
            return false;
        }
    }
    for (uint32_t i = first; i < first + count && i < tensors; i++) {
        uint64_t bit = UINT64_C(1) << (i % 64);

        if ((key->pulled[i / 64] & bit) == 0) {
            key->pulled[i / 64] |= bit;
            key->pulled_count++;
        }
    }
    return key->pulled_count == tensors;
}

void ddi_table_consume(struct ddi_table *table, const struct ddi_grant *grant, uint32_t first,
                       uint32_t count)
{
    struct ddi_map_key name = name_key(grant->kind, grant->key_id, grant->model_id);
    struct entry *retired = NULL;
    struct key *key;

    ddi_mutex_lock(&table->mu);
    key = ddi_map_get(&table->by_key, name);
    if (key != NULL && key->entry->shown.id == grant->cache &&
        count_pulled_locked(key, first, count)) {
        retired = end_key_locked(table, key);
    }
    ddi_mutex_unlock(&table->mu);
    if (retired != NULL) {
        ddi_entry_release(&retired->shown);
    }
}

void ddi_table_stats(struct ddi_table *table, struct ddi_table_stats *out)
{
    ddi_mutex_lock(&table->mu);
    out->caches = table->by_id.count;
    out->keys = table->by_key.count;
    out->pins = table->pins;
    ddi_mutex_unlock(&table->mu);
}
