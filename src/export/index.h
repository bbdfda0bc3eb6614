/* index.h - a small number by a large one: a slot's block, a size's heap of places, a thread.
 *
 * Open addressing, at most half of it used. Keys come from a file that anybody may have written:
 * the hash is seeded by an address. */
#ifndef MS_EXPORT_INDEX_H
#define MS_EXPORT_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MSE_NONE UINT32_MAX

typedef struct mse_index {
    struct mse_entry {
        uint64_t key;
        uint32_t value;
        bool used;
    } * entries;
    uint32_t bits; /* 0: no table yet */
    size_t count;
    uint64_t seed;
} mse_index;

/* MSE_NONE if it is not there. */
uint32_t mse_index_get(const mse_index *index, uint64_t key);
/* False when memory runs out, which it does not for a key that is there: nothing has changed. */
bool mse_index_set(mse_index *index, uint64_t key, uint32_t value);
/* It may be absent. */
void mse_index_drop(mse_index *index, uint64_t key);
void mse_index_close(mse_index *index);

/* Make an array of `*room` things of this size hold `count`. False when memory runs out. */
bool mse_grow(void **array, size_t *room, size_t count, size_t size);

#endif
