/* arrays.h - what the files of the replay share: arrays that grow, and a hash table from 32-bit keys to indices. */
#ifndef MSP_ARRAYS_H
#define MSP_ARRAYS_H

#include "replay/replay.h"

#include <string.h>

/* Make an array of `*room` items of `size` bytes large enough for `count` items. False: out of memory, and nothing has
 * changed. */
bool msp_grow(void **array, uint32_t *room, uint32_t count, size_t size);

/* Open addressing with linear probing; at most half of the buckets are in use. Keys come from a file that anybody may
 * have written: the hash is seeded with an address, so that keys cannot be chosen to collide. */
typedef struct msp_map {
    uint64_t *buckets; /* key << 32 | value + 1; 0: empty */
    uint32_t bits;     /* log2 of the number of buckets; 0: there are none yet */
    uint32_t count;
    uint64_t seed;
} msp_map;

/* MSP_NONE: the key is absent. */
uint32_t msp_map_get(const msp_map *map, uint32_t key);
/* The value is below MSP_NONE. False: out of memory, and nothing has changed. */
bool msp_map_set(msp_map *map, uint32_t key, uint32_t value);
/* The key may be absent. */
void msp_map_remove(msp_map *map, uint32_t key);
void msp_map_close(msp_map *map);

#endif
