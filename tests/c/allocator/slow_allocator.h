/* slow_allocator.h - torch's allocator once more, without trees: every decision looks at every block. */
#ifndef MS_TEST_SLOW_ALLOCATOR_H
#define MS_TEST_SLOW_ALLOCATOR_H

#include "modscope_allocator.h"

enum { SLOW_BLOCKS = 4096, SLOW_POOLS = 4 /* the default one is 0 */ };

enum slow_state { SLOW_NONE, SLOW_FREE, SLOW_GIVEN, SLOW_WAITING, SLOW_UNMAPPED };

struct slow_block {
    enum slow_state state;
    uint64_t segment, segment_address, segment_size; /* the segment's number and range */
    uint64_t address, size, stream, number, freed_search, freed_order;
    bool small, expandable, used_elsewhere;
};

struct slow_allocator {
    ms_allocator_settings settings;
    struct slow_block blocks[SLOW_BLOCKS];
    uint64_t block_number, segment_number, searches[2], free_order, next_address;
    int64_t reserved, allocated, peak_reserved, retries, failures;
    uint64_t users[SLOW_POOLS];
    unsigned flags[SLOW_POOLS];
    uint64_t pool_order[SLOW_POOLS]; /* in which they were used first; 0: never */
    uint64_t pool_number;
    bool delay;
};

void slow_open(struct slow_allocator *slow, const ms_allocator_settings *settings);
/* The index of the block, or a negative error code. */
int slow_malloc(struct slow_allocator *slow, uint64_t bytes, uint64_t stream);
/* Its block at this address, which is in a free block. */
int slow_malloc_at(struct slow_allocator *slow, uint64_t bytes, uint64_t stream, uint64_t address);
void slow_hold_pool(struct slow_allocator *slow, uint64_t pool, unsigned flags);
void slow_release_pool(struct slow_allocator *slow, uint64_t pool);
void slow_empty_pool(struct slow_allocator *slow, uint64_t pool);
void slow_free(struct slow_allocator *slow, int block);
void slow_synchronize(struct slow_allocator *slow);
void slow_empty_cache(struct slow_allocator *slow);

#endif
