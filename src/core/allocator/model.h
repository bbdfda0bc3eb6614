/* model.h - the structures of the allocator model, and what its files use of each other.
 *
 *   pool (small or large)
 *     free:      a tree of the blocks that may be given to a request
 *     unmapped:  a tree of the address ranges of expandable segments that no memory is behind
 *
 * Blocks are given to requests of their own stream only. A private pool's number is a part of the stream, so that its
 * blocks are in the same trees and are never given to others.
 *
 *   segment  |  block  |  block  |     block     |       each block knows its neighbours in the segment
 *              given     free      given
 */
#ifndef MS_ALLOCATOR_MODEL_H
#define MS_ALLOCATOR_MODEL_H

#include "core/allocator/block_tree.h"
#include "core/base.h"
#include "modscope_allocator.h"

#include <assert.h>
#include <stddef.h>

enum {
    MS__MIN_BLOCK = 512,              /* every size is a multiple of it */
    MS__SMALL_REQUEST = 1 << 20,      /* the largest request that the small pool serves */
    MS__SMALL_SEGMENT = 2 << 20,      /* the segments of the small pool */
    MS__MIN_LARGE_SEGMENT = 10 << 20, /* a request of this size or more gets a segment of its own size ... */
    MS__SEGMENT_ROUNDING = 2 << 20,   /* ... rounded up to a multiple of this */
    MS__LARGE_SEGMENT = 20 << 20      /* the default of large_segment_size */
};

struct ms__pool {
    struct ms__tree free, unmapped;
    bool small;
    uint64_t searches; /* for the age of free blocks, in garbage collection */
};

struct ms__segment {
    uint64_t number, address, size;
    bool expandable;
    bool placed; /* at an address that the caller gave */
    struct ms__segment *next_spare;
};

struct ms_allocation {         /* a block */
    struct ms__tree_node node; /* in its pool's free or unmapped tree, unless it is given to the program */
    uint64_t address, size, requested, stream;
    uint64_t number;       /* the order in which blocks were made */
    uint64_t freed_search; /* the pool's searches when this block became free */
    uint64_t name;         /* what the caller calls it, and its place in the latest ms_allocator_state */
    uint64_t rank;
    struct ms__segment *segment;
    struct ms__pool *pool;
    struct ms_allocation *previous, *next; /* the neighbours in the segment */
    struct ms_allocation *listed;          /* the next one of a temporary list */
    bool given;                            /* to the program */
    bool mapped;                           /* memory is behind it; only parts of expandable segments may have none */
    bool used_elsewhere;                   /* on another stream */
};

enum { MS__SLAB_BLOCKS = 128, MS__SLAB_SEGMENTS = 16 };

struct ms__range {
    uint64_t address, size;
};

struct ms__addresses {
    struct ms__range *free; /* in ascending order, none adjacent to the next */
    size_t count, room;
    uint64_t lowest; /* the lowest chunk's address */
    uint64_t next_expandable;
};

struct ms__slab {
    struct ms__slab *next;
    struct ms_allocation blocks[MS__SLAB_BLOCKS]; /* the spare ones have no segment */
    struct ms__segment segments[MS__SLAB_SEGMENTS];
};

struct ms__private_pool {
    uint64_t number;
    uint64_t users;
    unsigned flags; /* of ms_pool_flags */
    struct ms__private_pool *next;
};

struct ms_allocator {
    ms_allocator_settings settings;
    uint64_t allowed; /* the most bytes that may be reserved by memory_fraction; MS_UNLIMITED */
    struct ms__pool small, large;
    struct ms__private_pool *private_pools;
    ms_allocator_stats stats;
    struct ms__addresses addresses;
    uint64_t next_placed; /* 0 if the caller gave none */
    uint64_t placed_segments;
    uint64_t block_count, segment_count;
    struct ms_allocation *waiting; /* freed, but used on other streams */
    bool delay_events;
    ms_segment_function *on_segment;
    void *on_segment_context;
    /* Memory of the model itself. */
    ms_options memory;
    struct ms_allocation *spare_blocks;
    size_t spare_block_count;
    struct ms__segment *spare_segments;
    struct ms__slab *slabs;
};

struct ms__request {
    uint64_t bytes, size, segment_size, stream;
    struct ms__pool *pool;
};

static inline struct ms_allocation *ms__block_of(struct ms__tree_node *node)
{
    static_assert(offsetof(struct ms_allocation, node) == 0, "a node's address is its block's");
    return (struct ms_allocation *)node;
}

static inline bool ms__is_split(const struct ms_allocation *block)
{
    return block->previous || block->next;
}

/* ---- memory of the model (slabs.c) ---- */
bool ms__reserve_blocks(ms_allocator *allocator, size_t count); /* and one segment */
struct ms_allocation *ms__make_block(ms_allocator *allocator, const struct ms_allocation *like, uint64_t address,
                                     uint64_t size);
void ms__spare_block(ms_allocator *allocator, struct ms_allocation *block);
struct ms__segment *ms__make_segment(ms_allocator *allocator, uint64_t size, bool expandable);
void ms__drop_segment(ms_allocator *allocator, struct ms__segment *segment);
void ms__free_memory(ms_allocator *allocator);

/* ---- addresses of segments (addresses.c) ---- */
bool ms__reserve_addresses(ms_allocator *allocator);
uint64_t ms__take_addresses(ms_allocator *allocator, uint64_t size, bool expandable);
void ms__return_addresses(ms_allocator *allocator, uint64_t address, uint64_t size);

/* ---- free blocks (blocks.c) ---- */
/* Of equally large blocks, the one for which this is lower is preferred. */
uint64_t ms__tie_of(const ms_allocator *allocator, const struct ms_allocation *block);
void ms__insert_free(ms_allocator *allocator, struct ms_allocation *block);
void ms__remove_free(struct ms_allocation *block);
void ms__insert_unmapped(struct ms_allocation *block);
void ms__remove_unmapped(struct ms_allocation *block);
/* Join `block` with a neighbour that is free too; 0, or the size of the neighbour. */
uint64_t ms__join(ms_allocator *allocator, struct ms_allocation *block, struct ms_allocation *neighbour);
/* Take the block for a request out of the free ones; NULL if none fits. */
struct ms_allocation *ms__take_free(ms_allocator *allocator, const struct ms__request *request);

/* ---- private pools (pools.c) ---- */
struct ms__private_pool *ms__find_pool(const ms_allocator *allocator, uint64_t number); /* NULL: nobody used it */
void ms__free_pools(ms_allocator *allocator);
/* Whether free segments of the stream may go back to the GPU: those of pools with users may not. */
bool ms__may_give_back(const ms_allocator *allocator, uint64_t stream);
/* Take a free block of a private pool for a request that the GPU has no memory for; NULL if there is none. */
struct ms_allocation *ms__take_on_oom(ms_allocator *allocator, const struct ms__request *request);

/* ---- the GPU's memory (segments.c, expandable.c) ---- */
/* A new block for the request, which is in no tree; NULL if the GPU has no memory for it. */
struct ms_allocation *ms__take_segment(ms_allocator *allocator, const struct ms__request *request);
struct ms_allocation *ms__expand_segment(ms_allocator *allocator, const struct ms__request *request);
bool ms__exceeds_capacity(const ms_allocator *allocator, uint64_t bytes);
void ms__reserved_changed(ms_allocator *allocator, const struct ms_allocation *block, ms_segment_change change,
                          uint64_t address, uint64_t bytes);
/* Give the pages of a free block of an expandable segment back. False if memory runs out. */
bool ms__unmap_block(ms_allocator *allocator, struct ms_allocation *block);
void ms__collect_garbage(ms_allocator *allocator);
bool ms__release_oversize(ms_allocator *allocator, const struct ms__request *request);
/* Of one private pool, or with MS__EVERY_POOL of all that may. */
#define MS__EVERY_POOL UINT64_MAX
bool ms__release_free(ms_allocator *allocator, uint64_t pool);
void ms__finish_events(ms_allocator *allocator); /* of blocks that were used on other streams */
/* Divide a block into a new one of this size, which is returned, and the rest, which becomes free. */
struct ms_allocation *ms__split(ms_allocator *allocator, struct ms_allocation *rest, uint64_t size);
/* Give a block that is in no tree to the program. */
void ms__give(ms_allocator *allocator, struct ms_allocation *block, uint64_t requested);
uint64_t ms__round_size(const ms_allocator_settings *settings, uint64_t bytes);

/* ---- statistics ---- */
static inline void ms__stat_add(ms_allocator_stat *stat, uint64_t amount)
{
    stat->now += (int64_t)amount;
    stat->total_added += (int64_t)amount;
    if (stat->now > stat->peak)
        stat->peak = stat->now;
}

static inline void ms__stat_remove(ms_allocator_stat *stat, uint64_t amount)
{
    stat->now -= (int64_t)amount;
    stat->total_removed += (int64_t)amount;
}

/* The same for both pools together and for one of them. */
static inline void ms__stats_add(ms_allocator_stat *stats, const struct ms__pool *pool, uint64_t amount)
{
    ms__stat_add(&stats[MS_BOTH_POOLS], amount);
    ms__stat_add(&stats[pool->small ? MS_SMALL_POOL : MS_LARGE_POOL], amount);
}

static inline void ms__stats_remove(ms_allocator_stat *stats, const struct ms__pool *pool, uint64_t amount)
{
    ms__stat_remove(&stats[MS_BOTH_POOLS], amount);
    ms__stat_remove(&stats[pool->small ? MS_SMALL_POOL : MS_LARGE_POOL], amount);
}

#endif
