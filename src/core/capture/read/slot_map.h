/* slot_map.h - a hash table from numbers in a file to small numbers: from a slot to the index of its
 * block, from a thread's number to its index.
 *
 *     buckets:  | 0 | key << 32 | value + 1 | key << 32 | value + 1 | 0 | ...     0: empty
 *
 * Open addressing with linear probing; at most 6 of 10 buckets are in use. The hash is seeded, so that the
 * author of a file cannot choose keys that collide. */
#ifndef MS_SLOT_MAP_H
#define MS_SLOT_MAP_H

#include "core/capture/read/reader.h"

#define MS__SLOT_MAP_NONE UINT32_MAX

/* The bucket in which the search for a key begins. */
static inline uint32_t ms__slot_map_first_bucket(const struct ms__slot_map *map, uint32_t key)
{
    uint64_t hash = (key ^ map->seed) * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ hash >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(hash >> map->shift);
}

/* The bucket of the key, or the empty bucket into which it would go. The map must have buckets. */
static inline uint32_t ms__slot_map_find_bucket(const struct ms__slot_map *map, uint32_t key)
{
    uint32_t at = ms__slot_map_first_bucket(map, key);
    while (map->buckets[at] && map->buckets[at] >> 32 != key)
        at = (at + 1) & map->mask;
    return at;
}

/* MS__SLOT_MAP_NONE: the key is absent. */
static inline uint32_t ms__slot_map_get(const struct ms__slot_map *map, uint32_t key)
{
    return map->count ? (uint32_t)map->buckets[ms__slot_map_find_bucket(map, key)] - 1 : MS__SLOT_MAP_NONE;
}

/* The key must be present, or room must have been reserved for it. */
static inline void ms__slot_map_set(struct ms__slot_map *map, uint32_t key, uint32_t value)
{
    uint32_t at = ms__slot_map_find_bucket(map, key);
    map->count += !map->buckets[at];
    map->buckets[at] = (uint64_t)key << 32 | (value + 1);
}

/* Make room for `count` keys in all. False: out of memory. */
bool ms__slot_map_grow(const ms_reader *reader, struct ms__slot_map *map, uint32_t count);
static inline bool ms__slot_map_reserve(const ms_reader *reader, struct ms__slot_map *map, uint32_t count)
{
    return MS__LIKELY(count <= map->limit) || ms__slot_map_grow(reader, map, count);
}

/* Remove the key in the bucket that ms__slot_map_find_bucket found. Other keys may move to other buckets. */
void ms__slot_map_remove(struct ms__slot_map *map, uint32_t at);
void ms__slot_map_clear(struct ms__slot_map *map);

#endif
