/* hash_map.c - a hash table from 64-bit keys to indices. */
#include "export/hash_map.h"

#include <stdlib.h>

enum { FIRST_BITS = 6 };

static size_t mask_of(const mse_map *map)
{
    return ((size_t)1 << map->bits) - 1;
}

static size_t first_bucket(const mse_map *map, uint64_t key)
{
    uint64_t hash = (key ^ map->seed) * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ hash >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return (size_t)(hash >> (64 - map->bits));
}

/* The bucket of the key, or the empty bucket into which it would go. The map must have buckets. */
static size_t find_bucket(const mse_map *map, uint64_t key)
{
    size_t at = first_bucket(map, key);
    while (map->buckets[at].used && map->buckets[at].key != key)
        at = (at + 1) & mask_of(map);
    return at;
}

uint32_t mse_map_get(const mse_map *map, uint64_t key)
{
    if (!map->count)
        return MSE_NONE;
    const struct mse_map_bucket *bucket = &map->buckets[find_bucket(map, key)];
    return bucket->used ? bucket->value : MSE_NONE;
}

static bool grow_map(mse_map *map)
{
    mse_map grown = {.bits = map->bits ? map->bits + 1 : FIRST_BITS, .count = map->count};
    grown.buckets = calloc((size_t)1 << grown.bits, sizeof *grown.buckets);
    if (!grown.buckets)
        return false;
    grown.seed = map->bits ? map->seed : (uint64_t)(uintptr_t)grown.buckets * UINT64_C(0xBF58476D1CE4E5B9);
    for (size_t i = 0; map->bits && i <= mask_of(map); i++)
        if (map->buckets[i].used)
            grown.buckets[find_bucket(&grown, map->buckets[i].key)] = map->buckets[i];
    free(map->buckets);
    *map = grown;
    return true;
}

bool mse_map_set(mse_map *map, uint64_t key, uint32_t value)
{
    bool present = map->bits && map->buckets[find_bucket(map, key)].used;
    if (!present && (!map->bits || map->count * 2 > mask_of(map)) && !grow_map(map))
        return false;
    map->buckets[find_bucket(map, key)] = (struct mse_map_bucket){.key = key, .value = value, .used = true};
    map->count += !present;
    return true;
}

/* A search stops at an empty bucket. Keys after the removed one that were found by passing over it move back. */
void mse_map_remove(mse_map *map, uint64_t key)
{
    if (!map->count)
        return;
    size_t mask = mask_of(map), hole = find_bucket(map, key);
    if (!map->buckets[hole].used)
        return;
    map->count--;
    for (size_t at = (hole + 1) & mask; map->buckets[at].used; at = (at + 1) & mask) {
        size_t from = first_bucket(map, map->buckets[at].key);
        if (((at - from) & mask) >= ((at - hole) & mask)) {
            map->buckets[hole] = map->buckets[at];
            hole = at;
        }
    }
    map->buckets[hole].used = false;
}

void mse_map_close(mse_map *map)
{
    free(map->buckets);
    *map = (mse_map){0};
}

bool mse_grow(void **array, size_t *room, size_t count, size_t size)
{
    if (count <= *room)
        return true;
    size_t wanted = *room ? *room * 2 : 64;
    wanted = wanted < count ? count : wanted;
    void *grown = wanted <= SIZE_MAX / size ? realloc(*array, wanted * size) : NULL;
    if (!grown)
        return false;
    *array = grown;
    *room = wanted;
    return true;
}
