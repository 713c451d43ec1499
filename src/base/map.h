/* A small hash map from three numbers to a pointer. Open addressing, no order. Not thread-safe. */
#ifndef DDI_MAP_H
#define DDI_MAP_H

#include "base/status.h"

struct ddi_map_key {
    uint64_t a;
    uint64_t b;
    uint64_t c;
};

struct ddi_map_slot {
    struct ddi_map_key key;
    void *value; /* NULL: free */
};

struct ddi_map {
    struct ddi_map_slot *slots;
    size_t capacity; /* power of two, or 0 */
    size_t count;
};

void ddi_map_init(struct ddi_map *map); /* a zeroed map is initialised too */
void ddi_map_fini(struct ddi_map *map);

void *ddi_map_get(const struct ddi_map *map, struct ddi_map_key key); /* NULL: not there */

/* Set key to value (not NULL), replacing an older one. DD_NO_MEMORY: nothing changed. */
dd_status ddi_map_put(struct ddi_map *map, struct ddi_map_key key, void *value, dd_error *err);

/* Remove a key; returns its value, NULL when it was not there. Never fails. */
void *ddi_map_remove(struct ddi_map *map, struct ddi_map_key key);

/* Walk: *at starts at 0; returns NULL at the end. Nothing may be changed meanwhile. */
void *ddi_map_next(const struct ddi_map *map, size_t *at);

#endif
