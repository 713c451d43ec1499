/* A small hash map with linear probing; removal shifts back, so no tombstones pile up. */
#include "base/map.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 16

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static size_t home(const struct ddi_map *map, const struct ddi_map_key *key)
{
    uint64_t hash = mix(key->a + UINT64_C(0x9E3779B97F4A7C15));

    hash = mix(hash ^ key->b);
    hash = mix(hash ^ key->c);
    return (size_t)hash & (map->capacity - 1);
}

static bool is_equal(const struct ddi_map_key *x, const struct ddi_map_key *y)
{
    return x->a == y->a && x->b == y->b && x->c == y->c;
}

/* The slot of a key, or the free one where it belongs. The map has room. */
static struct ddi_map_slot *find(const struct ddi_map *map, const struct ddi_map_key *key)
{
    size_t at = home(map, key);

    while (map->slots[at].value != NULL && !is_equal(&map->slots[at].key, key)) {
        at = (at + 1) & (map->capacity - 1);
    }
    return &map->slots[at];
}

static dd_status grow(struct ddi_map *map, dd_error *err)
{
    struct ddi_map larger = {.capacity = map->capacity == 0 ? FIRST_CAPACITY : map->capacity * 2,
                             .count = map->count};

    larger.slots = calloc(larger.capacity, sizeof(*larger.slots));
    if (larger.slots == NULL) {
        return ddi_fail(err, DD_NO_MEMORY, "table of %zu entries", larger.capacity);
    }
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->slots[i].value != NULL) {
            *find(&larger, &map->slots[i].key) = map->slots[i];
        }
    }
    free(map->slots);
    *map = larger;
    return DD_OK;
}

void ddi_map_init(struct ddi_map *map)
{
    (void)memset(map, 0, sizeof(*map));
}

void ddi_map_fini(struct ddi_map *map)
{
    free(map->slots);
    ddi_map_init(map);
}

void *ddi_map_get(const struct ddi_map *map, struct ddi_map_key key)
{
    return map->capacity == 0 ? NULL : find(map, &key)->value;
}

dd_status ddi_map_put(struct ddi_map *map, struct ddi_map_key key, void *value, dd_error *err)
{
    struct ddi_map_slot *slot;

    if (map->count * 4 >= map->capacity * 3) { /* also when there is none yet */
        dd_status st = grow(map, err);

        if (st != DD_OK) {
            return st;
        }
    }
    slot = find(map, &key);
    map->count += slot->value == NULL;
    slot->key = key;
    slot->value = value;
    return DD_OK;
}

void *ddi_map_remove(struct ddi_map *map, struct ddi_map_key key)
{
    size_t mask = map->capacity - 1;
    size_t hole;
    void *value;

    if (map->capacity == 0) {
        return NULL;
    }
    hole = (size_t)(find(map, &key) - map->slots);
    value = map->slots[hole].value;
    if (value == NULL) {
        return NULL;
    }
    map->count--;
    /* Entries behind the hole that could not reach their home past it move up. */
    for (size_t at = (hole + 1) & mask; map->slots[at].value != NULL; at = (at + 1) & mask) {
        if (((at - home(map, &map->slots[at].key)) & mask) >= ((at - hole) & mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole].value = NULL;
    return value;
}

void *ddi_map_next(const struct ddi_map *map, size_t *at)
{
    while (*at < map->capacity) {
        void *value = map->slots[(*at)++].value;

        if (value != NULL) {
            return value;
        }
    }
    return NULL;
}
