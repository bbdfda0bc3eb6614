/* block_table.h - the live blocks of a ledger, by address. What runs for every block is inline here; block_table.c has
 * the rest. */
#ifndef MS_BLOCK_TABLE_H
#define MS_BLOCK_TABLE_H

#include "core/base.h"

#include <assert.h>

struct ms__block {
    uint64_t address; /* in a free struct: the number + 1 of the next free one, or 0 */
    uint64_t bytes;   /* 0: the struct is free */
    uint64_t since;   /* ledger->time of the add, or of the latest claim that is not retroactive */
    ms_path path;
    uint8_t device, category;
    uint8_t claim_pass; /* ledger->claim_pass of the latest claim, or of the add */
    union {
        struct {
            uint8_t outside : 1; /* a bool */
            uint8_t kind : 7;    /* an ms_kind; kind != 0: category = ms_kind_category(kind) */
        };
        uint8_t marks; /* both, so that one test finds the ordinary block: 0 */
    };
};
static_assert(sizeof(struct ms__block) == 32, "a live block costs at most 64 bytes, and half of them are its struct");
static_assert(MS_PARAMETER < MS_BUFFER && MS_BUFFER < MS_GRADIENT, "parameters and buffers come first");

#define MS__BLOCK_CHUNK 1024u

/*   buckets, by the address's hash              chunks, by the block's number
 *
 *   | hash: 32 bits | number + 1: 32 bits |  --> chunks[number / MS__BLOCK_CHUNK][number % MS__BLOCK_CHUNK]
 *   | 0: the bucket is empty              |
 *
 * Behind the structs of a chunk are the stacks that made the blocks, in the same order.
 *
 * The buckets use open addressing with linear probing: a block is in the first bucket that was empty at or after its
 * home bucket. Removing a block moves later ones back, so there are no tombstones. At most 6 of 10 buckets are used,
 * unless memory ran out when the buckets were to grow.
 *
 *   count + free structs = used <= room */
struct ms__block_table {
    struct ms__block **chunks;
    uint32_t chunk_room; /* pointers in `chunks` */
    uint32_t room;       /* structs in all chunks */
    uint32_t used;       /* structs that were ever used; their numbers are below it */
    uint32_t free_first; /* number + 1 of a free struct that was used; 0: none */
    uint32_t count;      /* live blocks */
    uint32_t count_max;  /* the buckets grow before they hold more blocks */
    uint64_t *buckets;
    uint32_t bucket_bits; /* there are 1 << bucket_bits buckets; 0: none yet */
    uint32_t mask, shift; /* follow from bucket_bits */
};

void ms__block_table_close(ms_watch *watch, struct ms__block_table *table);
/* The next live block: set *at to 0 first, and call until it returns NULL. The caller may remove the block that it
 * got. */
struct ms__block *ms__block_next(const struct ms__block_table *table, uint32_t *at);
uint64_t ms__block_table_bytes(const struct ms__block_table *table);
/* NULL if the invariants hold, else the one that does not. */
const char *ms__block_table_check(const struct ms__block_table *table);

static inline uint32_t ms__address_hash(uint64_t address)
{
    return (uint32_t)(address * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static inline uint32_t ms__home_bucket(const struct ms__block_table *table, uint32_t hash)
{
    return hash >> table->shift;
}

static inline struct ms__block *ms__block_at(const struct ms__block_table *table, uint32_t number)
{
    return &table->chunks[number / MS__BLOCK_CHUNK][number % MS__BLOCK_CHUNK];
}

/* The stack that made the block. The first chunk may be smaller than the others. */
static inline ms_stack *ms__block_stack(const struct ms__block_table *table, uint32_t number)
{
    struct ms__block *chunk = table->chunks[number / MS__BLOCK_CHUNK];
    uint32_t room = MS__LIKELY(table->room >= MS__BLOCK_CHUNK) ? MS__BLOCK_CHUNK : table->room;
    return (ms_stack *)(void *)(chunk + room) + number % MS__BLOCK_CHUNK;
}

/* The block, and its bucket in *bucket_of; or NULL, and the bucket that a new block would get. The table has buckets.
 */
MS__INLINE struct ms__block *ms__block_find_bucket(const struct ms__block_table *table, uint64_t address,
                                                   uint32_t *bucket_of)
{
    uint32_t hash = ms__address_hash(address), mask = table->mask, at = ms__home_bucket(table, hash);
    for (;; at = (at + 1) & mask) {
        uint64_t bucket = table->buckets[at];
        *bucket_of = at;
        if (!bucket)
            return NULL;
        if (bucket >> 32 != hash)
            continue;
        struct ms__block *block = ms__block_at(table, (uint32_t)bucket - 1);
        if (MS__LIKELY(block->address == address))
            return block;
    }
}

static inline struct ms__block *ms__block_find(const struct ms__block_table *table, uint64_t address)
{
    uint32_t bucket;
    return table->count ? ms__block_find_bucket(table, address, &bucket) : NULL;
}

/* The number of the block in this bucket. */
MS__INLINE uint32_t ms__block_number(const struct ms__block_table *table, uint32_t bucket)
{
    return (uint32_t)table->buckets[bucket] - 1;
}

/* Make room for one more block, its bucket included. False when memory runs out: the table holds what it held. */
bool ms__block_table_grow(ms_watch *watch, struct ms__block_table *table);
MS__INLINE bool ms__block_table_reserve(ms_watch *watch, struct ms__block_table *table)
{
    bool has_room = table->count < table->count_max && (table->free_first || table->used < table->room);
    return MS__LIKELY(has_room) || ms__block_table_grow(watch, table);
}

/* Insert a block at the empty bucket that ms__block_find_bucket gave. There is room. Of the block only `address` is
 * set. */
MS__INLINE struct ms__block *ms__block_insert(struct ms__block_table *table, uint64_t address, uint32_t bucket)
{
    uint32_t number = table->free_first;
    struct ms__block *block;
    if (number) {
        block = ms__block_at(table, number - 1);
        table->free_first = (uint32_t)block->address;
    } else {
        number = ++table->used;
        block = ms__block_at(table, number - 1);
    }
    block->address = address;
    table->buckets[bucket] = (uint64_t)ms__address_hash(address) << 32 | number;
    table->count++;
    return block;
}

/* Remove the block that is in this bucket. Blocks after it move back where the empty bucket would end their probe. */
MS__INLINE void ms__block_remove(struct ms__block_table *table, struct ms__block *block, uint32_t bucket)
{
    uint32_t mask = table->mask, number = (uint32_t)table->buckets[bucket], empty = bucket;
    for (uint64_t moved; (moved = table->buckets[bucket = (bucket + 1) & mask]) != 0;) {
        uint32_t home = ms__home_bucket(table, (uint32_t)(moved >> 32));
        if (((bucket - home) & mask) < ((bucket - empty) & mask))
            continue;
        table->buckets[empty] = moved;
        empty = bucket;
    }
    table->buckets[empty] = 0;
    table->count--;
    block->bytes = 0;
    block->address = table->free_first;
    table->free_first = number;
}

#endif
