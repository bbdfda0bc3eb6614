/* block.c - the live blocks, by address. */
#include "ledger.h"

#include <string.h>

enum { FEWEST_BITS = 8 };

static uint32_t tag_of(uint64_t address)
{
    return (uint32_t)(address * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static uint32_t home(const struct ms__blocks *blocks, uint32_t tag)
{
    return tag >> (32 - blocks->slot_bits);
}

static uint32_t mask(const struct ms__blocks *blocks)
{
    return (1u << blocks->slot_bits) - 1;
}

static uint64_t slot_for(uint32_t tag, uint32_t number)
{
    return (uint64_t)tag << 32 | (number + 1);
}

static struct ms__block *block_at(const struct ms__blocks *blocks, uint32_t number)
{
    return &blocks->chunks[number / MS__BLOCK_CHUNK][number % MS__BLOCK_CHUNK];
}

struct ms__block *ms__block_find(const struct ms__blocks *blocks, uint64_t address)
{
    if (!blocks->count)
        return NULL;
    uint32_t tag = tag_of(address), at = home(blocks, tag);
    for (uint64_t slot; (slot = blocks->slots[at]) != 0; at = (at + 1) & mask(blocks)) {
        if (slot >> 32 != tag)
            continue;
        struct ms__block *block = block_at(blocks, (uint32_t)slot - 1);
        if (block->address == address)
            return block;
    }
    return NULL;
}

static void put(struct ms__blocks *blocks, uint64_t slot)
{
    uint32_t at = home(blocks, (uint32_t)(slot >> 32));
    while (blocks->slots[at])
        at = (at + 1) & mask(blocks);
    blocks->slots[at] = slot;
}

MS__RARE bool grow_table(ms_watch *watch, struct ms__blocks *blocks)
{
    uint32_t old_bits = blocks->slot_bits, bits = old_bits ? old_bits + 1 : FEWEST_BITS;
    uint64_t *old = blocks->slots, *slots = bits < 32 ? ms__alloc(watch, sizeof *slots << bits) : NULL;
    if (!slots)
        return false;
    memset(slots, 0, sizeof *slots << bits);
    blocks->slots = slots;
    blocks->slot_bits = bits;
    for (size_t i = 0; old && i < (size_t)1 << old_bits; i++)
        if (old[i])
            put(blocks, old[i]);
    ms__free(watch, old);
    return true;
}

MS__RARE bool grow_chunks(ms_watch *watch, struct ms__blocks *blocks)
{
    if (!ms__directory_grow(watch, (void ***)&blocks->chunks, &blocks->chunk_room, blocks->chunk_count))
        return false;
    struct ms__block *chunk = ms__alloc(watch, MS__BLOCK_CHUNK * sizeof *chunk);
    if (!chunk)
        return false;
    blocks->chunks[blocks->chunk_count++] = chunk;
    return true;
}

struct ms__block *ms__block_new(ms_watch *watch, struct ms__blocks *blocks, uint64_t address)
{
    bool full = !blocks->slot_bits || (uint64_t)blocks->count * 10 >= (UINT64_C(7) << blocks->slot_bits);
    /* A table that cannot grow is only slower, until its last slot. */
    if (MS__UNLIKELY(full) && !grow_table(watch, blocks) && (!blocks->slot_bits || blocks->count >= mask(blocks)))
        return NULL;
    uint32_t number = blocks->free_first - 1;
    if (blocks->free_first) {
        blocks->free_first = (uint32_t)block_at(blocks, number)->address;
    } else {
        if (blocks->used == blocks->chunk_count * MS__BLOCK_CHUNK && !grow_chunks(watch, blocks))
            return NULL;
        number = blocks->used++;
    }
    struct ms__block *block = block_at(blocks, number);
    block->address = address;
    put(blocks, slot_for(tag_of(address), number));
    blocks->count++;
    return block;
}

/* Take the slot at `hole` out, and move back what would no longer be found. */
static void close_hole(struct ms__blocks *blocks, uint32_t hole)
{
    for (uint32_t at = hole;;) {
        at = (at + 1) & mask(blocks);
        uint64_t slot = blocks->slots[at];
        if (!slot)
            break;
        uint32_t wanted = home(blocks, (uint32_t)(slot >> 32));
        if (((at - wanted) & mask(blocks)) < ((at - hole) & mask(blocks)))
            continue;
        blocks->slots[hole] = slot;
        hole = at;
    }
    blocks->slots[hole] = 0;
}

void ms__block_remove(struct ms__blocks *blocks, struct ms__block *block)
{
    uint32_t tag = tag_of(block->address), at = home(blocks, tag);
    while (blocks->slots[at] >> 32 != tag || block_at(blocks, (uint32_t)blocks->slots[at] - 1) != block)
        at = (at + 1) & mask(blocks);
    uint32_t number = (uint32_t)blocks->slots[at] - 1;
    close_hole(blocks, at);
    blocks->count--;
    block->bytes = 0;
    block->address = blocks->free_first;
    blocks->free_first = number + 1;
}

/* A struct that is free has no bytes. */
struct ms__block *ms__block_next(const struct ms__blocks *blocks, uint32_t *at)
{
    while (*at < blocks->used) {
        struct ms__block *block = block_at(blocks, (*at)++);
        if (block->bytes)
            return block;
    }
    return NULL;
}

void ms__blocks_close(ms_watch *watch, struct ms__blocks *blocks)
{
    for (uint32_t i = 0; i < blocks->chunk_count; i++)
        ms__free(watch, blocks->chunks[i]);
    ms__free(watch, blocks->chunks);
    ms__free(watch, blocks->slots);
    *blocks = (struct ms__blocks){0};
}

uint64_t ms__blocks_memory(const struct ms__blocks *blocks)
{
    uint64_t table = blocks->slot_bits ? sizeof *blocks->slots << blocks->slot_bits : 0;
    return table + (uint64_t)blocks->chunk_count * MS__BLOCK_CHUNK * sizeof(struct ms__block) +
           (uint64_t)blocks->chunk_room * sizeof *blocks->chunks;
}

const char *ms__blocks_broken(const struct ms__blocks *blocks)
{
    uint32_t count = 0, free = 0;
    for (uint32_t at = 0; ms__block_next(blocks, &at);)
        count++;
    for (uint32_t next = blocks->free_first; next; next = (uint32_t)block_at(blocks, next - 1)->address)
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
