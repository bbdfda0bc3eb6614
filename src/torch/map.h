/* map.h - a hash map from two words to one, for what is looked up at every call.
 *
 * No deletion of single keys: what changes often is cleared and filled again.
 * A pair of zeros is no key. */
#ifndef MS_MAP_H
#define MS_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mst_entry {
    uint64_t a, b, value;
};

struct mst_map {
    struct mst_entry *entries; /* room is a power of two, at most half of it used */
    size_t room, count;
};

static inline size_t mst_map_slot(const struct mst_map *map, uint64_t a, uint64_t b)
{
    uint64_t hash = (a ^ (b * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
    return (size_t)(hash >> 32) & (map->room - 1);
}

/* The value's place, or NULL. Valid until the next mst_map_set. */
static inline uint64_t *mst_map_get(const struct mst_map *map, uint64_t a, uint64_t b)
{
    if (!map->count)
        return NULL;
    for (size_t i = mst_map_slot(map, a, b);; i = (i + 1) & (map->room - 1)) {
        struct mst_entry *entry = &map->entries[i];
        if (entry->a == a && entry->b == b)
            return &entry->value;
        if (!entry->a && !entry->b)
            return NULL;
    }
}

/* False when memory runs out; the map is unchanged then. */
bool mst_map_set(struct mst_map *map, uint64_t a, uint64_t b, uint64_t value);
void mst_map_clear(struct mst_map *map);

#endif
