/* map.c - growing and clearing the map of map.h. */
#include "torch/map.h"

#include <stdlib.h>

static void put(struct mst_map *map, struct mst_entry entry)
{
    size_t i = mst_map_slot(map, entry.a, entry.b);
    while (map->entries[i].a || map->entries[i].b)
        i = (i + 1) & (map->room - 1);
    map->entries[i] = entry;
    map->count++;
}

static bool grow(struct mst_map *map)
{
    struct mst_map wider = {.room = map->room ? map->room * 2 : 64};
    wider.entries = calloc(wider.room, sizeof *wider.entries);
    if (!wider.entries)
        return false;
    for (size_t i = 0; i < map->room; i++)
        if (map->entries[i].a || map->entries[i].b)
            put(&wider, map->entries[i]);
    free(map->entries);
    *map = wider;
    return true;
}

bool mst_map_set(struct mst_map *map, uint64_t a, uint64_t b, uint64_t value)
{
    uint64_t *there = mst_map_get(map, a, b);
    if (there) {
        *there = value;
        return true;
    }
    if (map->count * 2 >= map->room && !grow(map))
        return false;
    put(map, (struct mst_entry){a, b, value});
    return true;
}

void mst_map_clear(struct mst_map *map)
{
    free(map->entries);
    *map = (struct mst_map){0};
}
