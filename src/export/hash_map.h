/* hash_map.h - a hash table from 64-bit keys to indices, and arrays that grow.
 *
 * Open addressing with linear probing; at most half of the buckets are in use. Keys come from a file that anybody may
 * have written: the hash is seeded with an address, so that keys cannot be chosen to collide. */
#ifndef MS_EXPORT_HASH_MAP_H
#define MS_EXPORT_HASH_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSE_NONE UINT32_MAX

typedef struct mse_map {
    struct mse_map_bucket {
        uint64_t key;
        uint32_t value;
        bool used;
    } * buckets;
    uint32_t bits; /* log2 of the number of buckets; 0: there are none yet */
    size_t count;
    uint64_t seed;
} mse_map;

/* MSE_NONE: the key is absent. */
uint32_t mse_map_get(const mse_map *map, uint64_t key);
/* False: out of memory, and nothing has changed. Setting a key that is present needs no memory. */
bool mse_map_set(mse_map *map, uint64_t key, uint32_t value);
/* The key may be absent. */
void mse_map_remove(mse_map *map, uint64_t key);
void mse_map_close(mse_map *map);

/* Make an array of `*room` items of `size` bytes large enough for `count` items. False: out of memory. */
bool mse_grow(void **array, size_t *room, size_t count, size_t size);

#endif
