/* hash_map.c - add keys to the map of hash_map.h, and clear it. */
#include "torch/hash_map.h"

#include <stdlib.h>

static void insert_entry(struct mst_map *map, struct mst_entry entry)
{
    size_t i = mst_map_index(map, entry.a, entry.b);
    while (map->entries[i].a || map->entries[i].b)
        i = (i + 1) & (map->room - 1);
    map->entries[i] = entry;
    map->count++;
}

static bool grow_map(struct mst_map *map)
{
    struct mst_map larger = {.room = map->room ? map->room * 2 : 64};
    larger.entries = calloc(larger.room, sizeof *larger.entries);
    if (!larger.entries)
        return false;
    for (size_t i = 0; i < map->room; i++)
        if (map->entries[i].a || map->entries[i].b)
            insert_entry(&larger, map->entries[i]);
    free(map->entries);
    *map = larger;
    return true;
}

bool mst_map_set(struct mst_map *map, uint64_t a, uint64_t b, uint64_t value)
{
    uint64_t *found = mst_map_get(map, a, b);
    if (found) {
        *found = value;
        return true;
    }
    if (map->count * 2 >= map->room && !grow_map(map))
        return false;
    insert_entry(map, (struct mst_entry){a, b, value});
    return true;
}

void mst_map_clear(struct mst_map *map)
{
    free(map->entries);
    *map = (struct mst_map){0};
}
