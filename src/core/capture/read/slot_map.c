/* slot_map.c - small numbers by a number that a file names. */
#include "core/capture/read/slot_map.h"

enum { FEWEST = 64, FEWEST_BITS = 6 };

bool ms__map_grow(const ms_reader *reader, struct ms__map *map, uint32_t count)
{
    uint64_t size = FEWEST;
    uint32_t shift = 64 - FEWEST_BITS;
    for (; size * 6 / 10 < count; size *= 2)
        shift--;
    if (size > UINT32_MAX / 2)
        return false;
    struct ms__map grown = {.slots = ms__reader_alloc(reader, size * sizeof *grown.slots),
                            .most = (uint32_t)(size * 6 / 10),
                            .mask = (uint32_t)size - 1,
                            .shift = shift,
                            .seed = reader->seed};
    if (!grown.slots)
        return false;
    memset(grown.slots, 0, size * sizeof *grown.slots);
    for (uint32_t i = 0; map->slots && i <= map->mask; i++)
        if (map->slots[i])
            ms__map_set(&grown, (uint32_t)(map->slots[i] >> 32), (uint32_t)map->slots[i] - 1);
    ms__reader_free(reader, map->slots);
    *map = grown;
    return true;
}

void ms__map_take(struct ms__map *map, uint32_t at)
{
    uint32_t mask = map->mask, hole = at;
    for (uint64_t slot; (slot = map->slots[at = (at + 1) & mask]) != 0;) {
        uint32_t home = ms__map_home(map, (uint32_t)(slot >> 32));
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        map->slots[hole] = slot;
        hole = at;
    }
    map->slots[hole] = 0;
    map->count--;
}

void ms__map_clear(struct ms__map *map)
{
    if (map->count)
        memset(map->slots, 0, ((size_t)map->mask + 1) * sizeof *map->slots);
    map->count = 0;
}
