/* map.c - small numbers by a number that a file names. */
#include "map.h"

enum { FEWEST_BITS = 6, MOST_BITS = 31 };

static bool fits(uint32_t bits, uint32_t count)
{
    return bits && count <= (UINT64_C(6) << bits) / 10;
}

bool ms__map_reserve(const ms_reader *reader, struct ms__map *map, uint32_t count)
{
    if (MS__LIKELY(fits(map->bits, count)))
        return true;
    struct ms__map grown = {.bits = map->bits ? map->bits : FEWEST_BITS, .seed = reader->seed};
    while (!fits(grown.bits, count))
        if (++grown.bits > MOST_BITS)
            return false;
    size_t bytes = sizeof *grown.slots << grown.bits;
    grown.slots = ms__reader_alloc(reader, bytes);
    if (!grown.slots)
        return false;
    memset(grown.slots, 0, bytes);
    for (size_t i = 0; map->slots && i <= ms__map_mask(map); i++)
        if (map->slots[i])
            ms__map_set(&grown, (uint32_t)(map->slots[i] >> 32), (uint32_t)map->slots[i] - 1);
    ms__reader_free(reader, map->slots);
    *map = grown;
    return true;
}

void ms__map_take(struct ms__map *map, uint32_t at)
{
    uint32_t mask = ms__map_mask(map), hole = at;
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
        memset(map->slots, 0, sizeof *map->slots << map->bits);
    map->count = 0;
}
