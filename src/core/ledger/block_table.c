/* block_table.c - the rare part of the block table: growing, closing, checking. */
#include "core/ledger/block_table.h"
#include "core/ledger/chunk_array.h"
#include "core/watch/watch.h"

#include <string.h>

enum { FIRST_BUCKET_BITS = 7, FIRST_BLOCKS = 64 };

static void insert_bucket(struct ms__block_table *table, uint64_t bucket)
{
    uint32_t at = ms__home_bucket(table, (uint32_t)(bucket >> 32));
    while (table->buckets[at])
        at = (at + 1) & table->mask;
    table->buckets[at] = bucket;
}

static bool grow_buckets(ms_watch *watch, struct ms__block_table *table)
{
    uint32_t old_bits = table->bucket_bits, bits = old_bits ? old_bits + 1 : FIRST_BUCKET_BITS;
    uint64_t *old = table->buckets, *buckets = bits < 32 ? ms__alloc(watch, sizeof *buckets << bits) : NULL;
    if (!buckets)
        return false;
    memset(buckets, 0, sizeof *buckets << bits);
    table->buckets = buckets;
    table->bucket_bits = bits;
    table->mask = (1u << bits) - 1;
    table->shift = 32 - bits;
    table->count_max = (uint32_t)((UINT64_C(6) << bits) / 10);
    for (size_t i = 0; old && i < (size_t)1 << old_bits; i++)
        if (old[i])
            insert_bucket(table, old[i]);
    ms__free(watch, old);
    return true;
}

/* The first chunk begins small and doubles until it is whole, so that a small program pays for few blocks. */
static bool grow_chunks(ms_watch *watch, struct ms__block_table *table)
{
    uint32_t number = table->room / MS__BLOCK_CHUNK;
    if (!ms__chunk_array_grow(watch, (void ***)&table->chunks, &table->chunk_room, number))
        return false;
    uint32_t old_room = table->room % MS__BLOCK_CHUNK;
    uint32_t new_room = old_room ? old_room * 2 : number ? MS__BLOCK_CHUNK : FIRST_BLOCKS;
    struct ms__block *chunk = ms__alloc(watch, new_room * (sizeof *chunk + sizeof(ms_stack)));
    if (!chunk)
        return false;
    if (old_room) {
        memcpy(chunk, table->chunks[number], old_room * sizeof *chunk);
        memcpy(chunk + new_room, table->chunks[number] + old_room, old_room * sizeof(ms_stack));
    }
    ms__free(watch, table->chunks[number]);
    table->chunks[number] = chunk;
    table->room += new_room - old_room;
    return true;
}

bool ms__block_table_grow(ms_watch *watch, struct ms__block_table *table)
{
    if (!table->free_first && table->used == table->room && !grow_chunks(watch, table))
        return false;
    /* Buckets that cannot grow only make probes longer, as long as one stays empty. */
    if (table->count >= table->count_max && !grow_buckets(watch, table))
        return table->bucket_bits && table->count < table->mask;
    return true;
}

struct ms__block *ms__block_next(const struct ms__block_table *table, uint32_t *at)
{
    while (*at < table->used) {
        struct ms__block *block = ms__block_at(table, (*at)++);
        if (block->bytes)
            return block;
    }
    return NULL;
}

void ms__block_table_close(ms_watch *watch, struct ms__block_table *table)
{
    for (uint32_t i = 0; i < table->chunk_room; i++)
        ms__free(watch, table->chunks[i]);
    ms__free(watch, table->chunks);
    ms__free(watch, table->buckets);
    *table = (struct ms__block_table){0};
}

uint64_t ms__block_table_bytes(const struct ms__block_table *table)
{
    uint64_t buckets = table->bucket_bits ? sizeof *table->buckets << table->bucket_bits : 0;
    return buckets + (uint64_t)table->room * (sizeof(struct ms__block) + sizeof(ms_stack)) +
           (uint64_t)table->chunk_room * sizeof *table->chunks;
}

const char *ms__block_table_check(const struct ms__block_table *table)
{
    uint32_t live = 0, free = 0;
    for (uint32_t at = 0; ms__block_next(table, &at);)
        live++;
    for (uint32_t next = table->free_first; next; next = (uint32_t)ms__block_at(table, next - 1)->address)
        free++;
    if (live != table->count)
        return "every live block is counted";
    if (live + free != table->used)
        return "every block is live or free";
    struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(table, &at)) != NULL;)
        if (ms__block_find(table, block->address) != block)
            return "every live block is found by its address";
    return NULL;
}
