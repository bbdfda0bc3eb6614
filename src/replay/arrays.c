/* arrays.c - arrays that grow, and a hash table from 32-bit keys to indices. */
#include "replay/arrays.h"

#include <stdlib.h>

enum { FIRST_BITS = 6, MAX_BITS = 32 };

bool msp_grow(void **array, uint32_t *room, uint32_t count, size_t size)
{
    if (count <= *room)
        return true;
    uint32_t wanted = *room < MSP_NONE / 2 ? *room * 2 : MSP_NONE - 1;
    wanted = wanted < 64 ? 64 : wanted;
    wanted = wanted < count ? count : wanted;
    void *grown = realloc(*array, wanted * size);
    if (!grown)
        return false;
    *array = grown;
    *room = wanted;
    return true;
}

static uint64_t bucket_mask(const msp_map *map)
{
    return (UINT64_C(1) << map->bits) - 1;
}

static uint64_t home_of(const msp_map *map, uint32_t key)
{
    uint64_t hash = (key ^ map->seed) * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ hash >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return hash >> (64 - map->bits);
}

/* The bucket of the key, or the empty bucket into which it would go. The map must have buckets. */
static uint64_t bucket_of(const msp_map *map, uint32_t key)
{
    uint64_t at = home_of(map, key);
    while (map->buckets[at] && map->buckets[at] >> 32 != key)
        at = (at + 1) & bucket_mask(map);
    return at;
}

uint32_t msp_map_get(const msp_map *map, uint32_t key)
{
    uint64_t bucket = map->count ? map->buckets[bucket_of(map, key)] : 0;
    return bucket ? (uint32_t)bucket - 1 : MSP_NONE;
}

static bool grow_map(msp_map *map)
{
    msp_map grown = {.bits = map->bits ? map->bits + 1 : FIRST_BITS, .count = map->count};
    grown.buckets = grown.bits <= MAX_BITS ? calloc((size_t)1 << grown.bits, sizeof *grown.buckets) : NULL;
    if (!grown.buckets)
        return false;
    grown.seed = map->bits ? map->seed : (uint64_t)(uintptr_t)grown.buckets * UINT64_C(0xBF58476D1CE4E5B9);
    for (uint64_t i = 0; map->bits && i <= bucket_mask(map); i++)
        if (map->buckets[i])
            grown.buckets[bucket_of(&grown, (uint32_t)(map->buckets[i] >> 32))] = map->buckets[i];
    free(map->buckets);
    *map = grown;
    return true;
}

bool msp_map_set(msp_map *map, uint32_t key, uint32_t value)
{
    bool present = map->bits && map->buckets[bucket_of(map, key)];
    bool is_full = !map->bits || (uint64_t)map->count * 2 > bucket_mask(map);
    if (!present && is_full && !grow_map(map))
        return false;
    map->buckets[bucket_of(map, key)] = (uint64_t)key << 32 | (value + 1);
    map->count += !present;
    return true;
}

/* A search stops at an empty bucket. Keys after the removed one that were found by passing over it move back. */
void msp_map_remove(msp_map *map, uint32_t key)
{
    if (!map->count)
        return;
    uint64_t mask = bucket_mask(map), hole = bucket_of(map, key);
    if (!map->buckets[hole])
        return;
    map->count--;
    for (uint64_t at = (hole + 1) & mask; map->buckets[at]; at = (at + 1) & mask) {
        uint64_t home = home_of(map, (uint32_t)(map->buckets[at] >> 32));
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            map->buckets[hole] = map->buckets[at];
            hole = at;
        }
    }
    map->buckets[hole] = 0;
}

void msp_map_close(msp_map *map)
{
    free(map->buckets);
    *map = (msp_map){0};
}
