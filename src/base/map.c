/* map.c - add keys to the map of map.h, remove them, and clear it. */
#include "base/map.h"

#include <stdlib.h>

enum { FIRST_SHIFT = 64 - 6 };

/* The entry of the key, or the empty entry into which it would go. The map must have entries. */
static size_t find_entry(const struct ms__map *map, uint64_t key)
{
    size_t at = ms__map_home(map, key);
    while (map->entries[at].value_plus_1 && map->entries[at].key != key)
        at = ms__map_next(map, at);
    return at;
}

static bool grow_map(struct ms__map *map)
{
    struct ms__map grown = {.shift = map->entries ? map->shift - 1 : FIRST_SHIFT, .count = map->count};
    grown.entries = calloc((size_t)1 << (64 - grown.shift), sizeof *grown.entries);
    if (!grown.entries)
        return false;
    grown.seed = map->entries ? map->seed : (uint64_t)(uintptr_t)grown.entries * UINT64_C(0xBF58476D1CE4E5B9);
    for (size_t i = 0; i < ms__map_room(map); i++)
        if (map->entries[i].value_plus_1)
            grown.entries[find_entry(&grown, map->entries[i].key)] = map->entries[i];
    free(map->entries);
    *map = grown;
    return true;
}

bool ms__map_set(struct ms__map *map, uint64_t key, uint64_t value)
{
    bool present = ms__map_has(map, key);
    if (!present && map->count * 2 >= ms__map_room(map) && !grow_map(map))
        return false;
    map->entries[find_entry(map, key)] = (struct ms__map_entry){key, value + 1};
    map->count += !present;
    return true;
}

/* A search stops at an empty entry. Keys after the removed one that were found by passing over it move back. */
void ms__map_remove(struct ms__map *map, uint64_t key)
{
    if (!ms__map_has(map, key))
        return;
    size_t mask = ms__map_room(map) - 1, hole = find_entry(map, key);
    for (size_t at = ms__map_next(map, hole); map->entries[at].value_plus_1; at = ms__map_next(map, at)) {
        size_t home = ms__map_home(map, map->entries[at].key);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            map->entries[hole] = map->entries[at];
            hole = at;
        }
    }
    map->entries[hole].value_plus_1 = 0;
    map->count--;
}

void ms__map_clear(struct ms__map *map)
{
    free(map->entries);
    *map = (struct ms__map){0};
}
