/* index.c - a small number by a large one. */
#include "export/index.h"

#include <stdlib.h>

enum { FIRST_BITS = 6 };

static size_t mask_of(const mse_index *index)
{
    return ((size_t)1 << index->bits) - 1;
}

static size_t home(const mse_index *index, uint64_t key)
{
    uint64_t hash = (key ^ index->seed) * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ hash >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return (size_t)(hash >> (64 - index->bits));
}

/* Where it is, or the empty place it would get. There is a table. */
static size_t seek(const mse_index *index, uint64_t key)
{
    size_t at = home(index, key);
    while (index->entries[at].used && index->entries[at].key != key)
        at = (at + 1) & mask_of(index);
    return at;
}

uint32_t mse_index_get(const mse_index *index, uint64_t key)
{
    if (!index->count)
        return MSE_NONE;
    const struct mse_entry *entry = &index->entries[seek(index, key)];
    return entry->used ? entry->value : MSE_NONE;
}

static bool grow(mse_index *index)
{
    mse_index grown = {.bits = index->bits ? index->bits + 1 : FIRST_BITS, .count = index->count};
    grown.entries = calloc((size_t)1 << grown.bits, sizeof *grown.entries);
    if (!grown.entries)
        return false;
    grown.seed = index->bits ? index->seed : (uint64_t)(uintptr_t)grown.entries * UINT64_C(0xBF58476D1CE4E5B9);
    for (size_t i = 0; index->bits && i <= mask_of(index); i++)
        if (index->entries[i].used)
            grown.entries[seek(&grown, index->entries[i].key)] = index->entries[i];
    free(index->entries);
    *index = grown;
    return true;
}

bool mse_index_set(mse_index *index, uint64_t key, uint32_t value)
{
    bool there = index->bits && index->entries[seek(index, key)].used;
    if (!there && (!index->bits || index->count * 2 > mask_of(index)) && !grow(index))
        return false;
    index->entries[seek(index, key)] = (struct mse_entry){.key = key, .value = value, .used = true};
    index->count += !there;
    return true;
}

/* What follows moves back, where it would no longer be found. */
void mse_index_drop(mse_index *index, uint64_t key)
{
    if (!index->count)
        return;
    size_t mask = mask_of(index), hole = seek(index, key);
    if (!index->entries[hole].used)
        return;
    index->count--;
    for (size_t at = (hole + 1) & mask; index->entries[at].used; at = (at + 1) & mask) {
        size_t from = home(index, index->entries[at].key);
        if (((at - from) & mask) >= ((at - hole) & mask)) {
            index->entries[hole] = index->entries[at];
            hole = at;
        }
    }
    index->entries[hole].used = false;
}

void mse_index_close(mse_index *index)
{
    free(index->entries);
    *index = (mse_index){0};
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
