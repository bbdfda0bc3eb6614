/* map.h - a hash map from 64-bit keys to 64-bit values: the one map of src/torch, src/export and src/replay.
 *
 *     entries  [ key, value + 1 | -, 0 | key, value + 1 | key, value + 1 | -, 0 | ... ]     0: the entry is empty
 *
 * Open addressing with linear probing; the number of entries is a power of two, and at most half of them are in use. A
 * key may come from a file that anybody may have written: the hash is seeded with an address, so that nobody can choose
 * keys that collide. A map whose bytes are all zero is empty and ready for use. The caller locks. */
#ifndef MS_BASE_MAP_H
#define MS_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MS__MAP_NONE UINT64_MAX /* no value */

struct ms__map_entry {
    uint64_t key, value_plus_1;
};

struct ms__map {
    struct ms__map_entry *entries; /* NULL: none yet */
    uint64_t seed;
    size_t count;
    uint32_t shift; /* there are 1 << (64 - shift) entries */
};

/* How many entries there are, for those who look at each. Removing a key may move another one to its entry. */
static inline size_t ms__map_room(const struct ms__map *map)
{
    return map->entries ? (size_t)1 << (64 - map->shift) : 0;
}

/* The index at which the search for a key begins. The map must have entries. */
static inline size_t ms__map_home(const struct ms__map *map, uint64_t key)
{
    uint64_t hash = (key ^ map->seed) * UINT64_C(0xD6E8FEB86659FD93);
    return (size_t)((hash ^ hash >> 32) * UINT64_C(0xD6E8FEB86659FD93) >> map->shift);
}

/* The index after `at`. */
static inline size_t ms__map_next(const struct ms__map *map, size_t at)
{
    return (at + 1) & (size_t)(UINT64_MAX >> map->shift);
}

/* The value of a key, or MS__MAP_NONE if the key is absent. Inline, because some maps are looked up at every event. */
static inline uint64_t ms__map_get(const struct ms__map *map, uint64_t key)
{
    if (!map->entries)
        return MS__MAP_NONE;
    size_t at = ms__map_home(map, key);
    while (map->entries[at].key != key && map->entries[at].value_plus_1)
        at = ms__map_next(map, at);
    /* An empty entry may have this key by chance: its value is MS__MAP_NONE, too. */
    return map->entries[at].value_plus_1 - 1;
}

static inline bool ms__map_has(const struct ms__map *map, uint64_t key)
{
    return ms__map_get(map, key) != MS__MAP_NONE;
}

/* The index that is a key's value, or UINT32_MAX if the key is absent. For maps whose values have 32 bits. */
static inline uint32_t ms__map_index(const struct ms__map *map, uint64_t key)
{
    return (uint32_t)ms__map_get(map, key); /* the low half of MS__MAP_NONE is UINT32_MAX */
}

/* The pointer that is a key's value, or NULL if the key is absent. */
static inline void *ms__map_pointer(const struct ms__map *map, uint64_t key)
{
    uint64_t value = ms__map_get(map, key);
    return value != MS__MAP_NONE ? (void *)(uintptr_t)value : NULL;
}

/* Add a key, or change its value, which is below MS__MAP_NONE. False if memory runs out; the map is then unchanged.
 * Changing a value needs no memory. */
bool ms__map_set(struct ms__map *map, uint64_t key, uint64_t value);
/* The key may be absent. */
void ms__map_remove(struct ms__map *map, uint64_t key);
/* Remove all keys, and free the entries. */
void ms__map_clear(struct ms__map *map);

#endif
