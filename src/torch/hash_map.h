/* hash_map.h - a hash map from a pair of machine words to one, for what is looked up at every call.
 *
 * Single keys cannot be deleted: a map whose keys go out of date is cleared and filled again.
 * A pair of zeros is no key. Open addressing, linear probing:
 *
 *     entries  [ a b value | 0 0 - | a b value | a b value | ... ]
 *
 * room is a power of two, and count <= room / 2. */
#ifndef MST_HASH_MAP_H
#define MST_HASH_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mst_entry {
    uint64_t a, b, value; /* a = b = 0: the entry is empty */
};

struct mst_map {
    struct mst_entry *entries;
    size_t room, count;
};

/* The index at which the search for a key begins. */
static inline size_t mst_map_index(const struct mst_map *map, uint64_t a, uint64_t b)
{
    uint64_t hash = (a ^ (b * UINT64_C(0x9E3779B97F4A7C15))) * UINT64_C(0xD6E8FEB86659FD93);
    return (size_t)(hash >> 32) & (map->room - 1);
}

/* A pointer to the value, or NULL. It is valid until the next mst_map_set or mst_map_clear. */
static inline uint64_t *mst_map_get(const struct mst_map *map, uint64_t a, uint64_t b)
{
    if (!map->count)
        return NULL;
    for (size_t i = mst_map_index(map, a, b);; i = (i + 1) & (map->room - 1)) {
        struct mst_entry *entry = &map->entries[i];
        if (entry->a == a && entry->b == b)
            return &entry->value;
        if (!entry->a && !entry->b)
            return NULL;
    }
}

/* Add a key, or change its value. False if memory runs out; the map is then unchanged. */
bool mst_map_set(struct mst_map *map, uint64_t a, uint64_t b, uint64_t value);
void mst_map_clear(struct mst_map *map);

#endif
