/* slot_map.h - small numbers by a number that a file names: a slot's block, a thread's place in a list.
 *
 * Open addressing, at most 6 in 10 used. The hash is seeded: whoever wrote the file does not
 * know which numbers would meet in one place. */
#ifndef MS_MAP_H
#define MS_MAP_H

#include "core/capture/read/reader.h"

#define MS__MAP_NONE UINT32_MAX

static inline uint32_t ms__map_home(const struct ms__map *map, uint32_t key)
{
    uint64_t hash = (key ^ map->seed) * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ hash >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(hash >> map->shift);
}

/* Where the key is, or the empty place it would get. There is a table. */
static inline uint32_t ms__map_seek(const struct ms__map *map, uint32_t key)
{
    uint32_t at = ms__map_home(map, key);
    while (map->slots[at] && map->slots[at] >> 32 != key)
        at = (at + 1) & map->mask;
    return at;
}

/* MS__MAP_NONE if it is not there. */
static inline uint32_t ms__map_get(const struct ms__map *map, uint32_t key)
{
    return map->count ? (uint32_t)map->slots[ms__map_seek(map, key)] - 1 : MS__MAP_NONE;
}

/* There is room for it, or it is there. */
static inline void ms__map_set(struct ms__map *map, uint32_t key, uint32_t value)
{
    uint32_t at = ms__map_seek(map, key);
    map->count += !map->slots[at];
    map->slots[at] = (uint64_t)key << 32 | (value + 1);
}

/* Room for so many in all. False when memory runs out. */
bool ms__map_grow(const ms_reader *reader, struct ms__map *map, uint32_t count);
static inline bool ms__map_reserve(const ms_reader *reader, struct ms__map *map, uint32_t count)
{
    return MS__LIKELY(count <= map->most) || ms__map_grow(reader, map, count);
}

/* Take out what ms__map_seek found. What follows moves back, where it would no longer be found. */
void ms__map_take(struct ms__map *map, uint32_t at);
void ms__map_clear(struct ms__map *map);

#endif
