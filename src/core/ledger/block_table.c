/* block_table.c - the live blocks, by address. */
#include "core/ledger/block_table.h"

#include <string.h>

enum { FEWEST_BITS = 7, FIRST_BLOCKS = 64 };

static void put(struct ms__blocks *blocks, uint64_t slot)
{
    uint32_t at = ms__home(blocks, (uint32_t)(slot >> 32));
    while (blocks->slots[at])
        at = (at + 1) & ms__mask(blocks);
    blocks->slots[at] = slot;
}

static bool grow_table(ms_watch *watch, struct ms__blocks *blocks)
{
    uint32_t old_bits = blocks->slot_bits, bits = old_bits ? old_bits + 1 : FEWEST_BITS;
    uint64_t *old = blocks->slots, *slots = bits < 32 ? ms__alloc(watch, sizeof *slots << bits) : NULL;
    if (!slots)
        return false;
    memset(slots, 0, sizeof *slots << bits);
    blocks->slots = slots;
    blocks->slot_bits = bits;
    blocks->mask = (1u << bits) - 1;
    blocks->shift = 32 - bits;
    blocks->most = (uint32_t)((UINT64_C(6) << bits) / 10);
    for (size_t i = 0; old && i < (size_t)1 << old_bits; i++)
        if (old[i])
            put(blocks, old[i]);
    ms__free(watch, old);
    return true;
}

/* The first chunk is as large as a small program needs; its place in the directory is a whole one's. */
static bool grow_chunks(ms_watch *watch, struct ms__blocks *blocks)
{
    uint32_t number = blocks->room / MS__BLOCK_CHUNK;
    if (!ms__directory_grow(watch, (void ***)&blocks->chunks, &blocks->chunk_room, number))
        return false;
    uint32_t there = blocks->room % MS__BLOCK_CHUNK, wanted = there    ? there * 2
                                                              : number ? MS__BLOCK_CHUNK
                                                                       : FIRST_BLOCKS;
    struct ms__block *chunk = ms__alloc(watch, wanted * sizeof *chunk);
    if (!chunk)
        return false;
    if (there)
        memcpy(chunk, blocks->chunks[number], there * sizeof *chunk);
    ms__free(watch, blocks->chunks[number]);
    blocks->chunks[number] = chunk;
    blocks->room += wanted - there;
    return true;
}

bool ms__blocks_grow(ms_watch *watch, struct ms__blocks *blocks)
{
    if (!blocks->free_first && blocks->used == blocks->room && !grow_chunks(watch, blocks))
        return false;
    /* A table that cannot grow is only slower, until its last slot. */
    if (blocks->count >= blocks->most && !grow_table(watch, blocks))
        return blocks->slot_bits && blocks->count < ms__mask(blocks);
    return true;
}

/* A struct that is free has no bytes. */
struct ms__block *ms__block_next(const struct ms__blocks *blocks, uint32_t *at)
{
    while (*at < blocks->used) {
        struct ms__block *block = ms__block_at(blocks, (*at)++);
        if (block->bytes)
            return block;
    }
    return NULL;
}

void ms__blocks_close(ms_watch *watch, struct ms__blocks *blocks)
{
    for (uint32_t i = 0; i < blocks->chunk_room; i++)
        ms__free(watch, blocks->chunks[i]);
    ms__free(watch, blocks->chunks);
    ms__free(watch, blocks->slots);
    *blocks = (struct ms__blocks){0};
}

uint64_t ms__blocks_memory(const struct ms__blocks *blocks)
{
    uint64_t table = blocks->slot_bits ? sizeof *blocks->slots << blocks->slot_bits : 0;
    return table + (uint64_t)blocks->room * sizeof(struct ms__block) +
           (uint64_t)blocks->chunk_room * sizeof *blocks->chunks;
}

const char *ms__block_table_check(const struct ms__blocks *blocks)
{
    uint32_t count = 0, free = 0;
    for (uint32_t at = 0; ms__block_next(blocks, &at);)
        count++;
    for (uint32_t next = blocks->free_first; next; next = (uint32_t)ms__block_at(blocks, next - 1)->address)
        free++;
    if (count != blocks->count)
        return "every live block is counted";
    if (count + free != blocks->used)
        return "every block is live or free";
    struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(blocks, &at)) != NULL;)
        if (ms__block_find(blocks, block->address) != block)
            return "every live block is found by its address";
    return NULL;
}
