/* slot_map.c - a hash table from numbers in a file to small numbers. */
#include "core/capture/read/slot_map.h"

enum { MIN_BUCKETS = 64, MIN_BUCKETS_LOG2 = 6 };

bool ms__slot_map_grow(const ms_reader *reader, struct ms__slot_map *map, uint32_t count)
{
    uint64_t size = MIN_BUCKETS;
    uint32_t shift = 64 - MIN_BUCKETS_LOG2;
    for (; size * 6 / 10 < count; size *= 2)
        shift--;
    if (size > UINT32_MAX / 2)
        return false;
    struct ms__slot_map grown = {.buckets = ms__reader_alloc(reader, size * sizeof *grown.buckets),
                                 .limit = (uint32_t)(size * 6 / 10),
                                 .mask = (uint32_t)size - 1,
                                 .shift = shift,
                                 .seed = reader->seed};
    if (!grown.buckets)
        return false;
    memset(grown.buckets, 0, size * sizeof *grown.buckets);
    for (uint32_t i = 0; map->buckets && i <= map->mask; i++)
        if (map->buckets[i])
            ms__slot_map_set(&grown, (uint32_t)(map->buckets[i] >> 32), (uint32_t)map->buckets[i] - 1);
    ms__reader_free(reader, map->buckets);
    *map = grown;
    return true;
}

/* A search stops at an empty bucket. Keys after the removed one that were found by passing over it move back. */
void ms__slot_map_remove(struct ms__slot_map *map, uint32_t at)
{
    uint32_t mask = map->mask, hole = at;
    for (uint64_t bucket; (bucket = map->buckets[at = (at + 1) & mask]) != 0;) {
        uint32_t first = ms__slot_map_first_bucket(map, (uint32_t)(bucket >> 32));
        if (((at - first) & mask) < ((at - hole) & mask))
            continue;
        map->buckets[hole] = bucket;
        hole = at;
    }
    map->buckets[hole] = 0;
    map->count--;
}

void ms__slot_map_clear(struct ms__slot_map *map)
{
    if (map->count)
        memset(map->buckets, 0, ((size_t)map->mask + 1) * sizeof *map->buckets);
    map->count = 0;
}
