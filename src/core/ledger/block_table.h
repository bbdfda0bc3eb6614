/* block_table.h - the live blocks, by address. In a header because it is on the way of every block;
 * ledger.c is its one user, block.c has what is rare. */
#ifndef MS_BLOCK_H
#define MS_BLOCK_H

#include "core/ledger/ledger.h"

static inline uint32_t ms__tag(uint64_t address)
{
    return (uint32_t)(address * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

/* Where a tag would like to be. */
static inline uint32_t ms__home(const struct ms__blocks *blocks, uint32_t tag)
{
    return tag >> blocks->shift;
}

static inline uint32_t ms__mask(const struct ms__blocks *blocks)
{
    return blocks->mask;
}

static inline struct ms__block *ms__block_at(const struct ms__blocks *blocks, uint32_t number)
{
    return &blocks->chunks[number / MS__BLOCK_CHUNK][number % MS__BLOCK_CHUNK];
}

/* The block, with its slot in *at; or NULL, with the slot that a new one would get. There is a table. */
MS__INLINE struct ms__block *ms__block_seek(const struct ms__blocks *blocks, uint64_t address, uint32_t *at)
{
    uint32_t tag = ms__tag(address), mask = ms__mask(blocks), slot_at = ms__home(blocks, tag);
    for (;; slot_at = (slot_at + 1) & mask) {
        uint64_t slot = blocks->slots[slot_at];
        *at = slot_at;
        if (!slot)
            return NULL;
        if (slot >> 32 != tag)
            continue;
        struct ms__block *block = ms__block_at(blocks, (uint32_t)slot - 1);
        if (MS__LIKELY(block->address == address))
            return block;
    }
}

static inline struct ms__block *ms__block_find(const struct ms__blocks *blocks, uint64_t address)
{
    uint32_t at;
    return blocks->count ? ms__block_seek(blocks, address, &at) : NULL;
}

/* Before a block is added: room for it, in the table and for itself. False when memory runs out. */
bool ms__blocks_grow(ms_watch *watch, struct ms__blocks *blocks);
MS__INLINE bool ms__blocks_reserve(ms_watch *watch, struct ms__blocks *blocks)
{
    bool room = blocks->count < blocks->most && (blocks->free_first || blocks->used < blocks->room);
    return MS__LIKELY(room) || ms__blocks_grow(watch, blocks);
}

/* A block at an empty slot that was sought for it. There is room. Only its address is set. */
MS__INLINE struct ms__block *ms__block_put(struct ms__blocks *blocks, uint64_t address, uint32_t at)
{
    uint32_t number = blocks->free_first;
    struct ms__block *block;
    if (number) {
        block = ms__block_at(blocks, number - 1);
        blocks->free_first = (uint32_t)block->address;
    } else {
        number = ++blocks->used;
        block = ms__block_at(blocks, number - 1);
    }
    block->address = address;
    blocks->slots[at] = (uint64_t)ms__tag(address) << 32 | number;
    blocks->count++;
    return block;
}

/* Take out the block that was found in slot `at`, and move back what would no longer be found. */
MS__INLINE void ms__block_take(struct ms__blocks *blocks, struct ms__block *block, uint32_t at)
{
    uint32_t mask = ms__mask(blocks), number = (uint32_t)blocks->slots[at], hole = at;
    for (uint64_t slot; (slot = blocks->slots[at = (at + 1) & mask]) != 0;) {
        uint32_t home = ms__home(blocks, (uint32_t)(slot >> 32));
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        blocks->slots[hole] = slot;
        hole = at;
    }
    blocks->slots[hole] = 0;
    blocks->count--;
    block->bytes = 0;
    block->address = blocks->free_first;
    blocks->free_first = number;
}

#endif
