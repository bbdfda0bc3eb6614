/* check.c - the invariants of the model, for tests. */
#include "core/allocator/model.h"

struct found {
    uint64_t reserved, allocated, active, free_count[2],
        unmapped_count[2]; /* counts: of the large and the small pool */
    uint64_t allocations;
};

static bool joinable(const struct ms_allocation *block)
{
    return !block->given && !block->used_elsewhere;
}

static const char *check_block(const struct ms_allocation *block, struct found *found)
{
    const struct ms_allocation *next = block->next;
    if (!block->size || block->size % MS__MIN_BLOCK)
        return "a block's size is a positive multiple of 512";
    if (block->previous && block->previous->next != block)
        return "a block is the next one of its previous one";
    if (next && (next->previous != block || next->segment != block->segment || next->stream != block->stream))
        return "a block's next one is in the same segment, and follows it";
    if (next && block->address + block->size != next->address)
        return "a block ends where the next one begins";
    if (!block->previous && block->address != block->segment->address)
        return "a segment's first block is at its address";
    if (!next && block->address + block->size != block->segment->address + block->segment->size)
        return "a segment's last block ends where it ends";
    if (next && joinable(block) && joinable(next) && block->mapped == next->mapped)
        return "free neighbours are joined";
    if (!block->mapped && (block->given || !block->segment->expandable))
        return "only free blocks of expandable segments are unmapped";
    if (block->given && block->requested > block->size)
        return "a block is at least as large as its request";
    found->reserved += block->mapped ? block->size : 0;
    found->allocated += block->given ? block->size : 0;
    found->allocations += block->given;
    found->active += block->given || block->used_elsewhere ? block->size : 0;
    found->free_count[block->pool->small] += block->mapped && joinable(block);
    found->unmapped_count[block->pool->small] += !block->mapped;
    return NULL;
}

static const char *check_pool(const struct ms__pool *pool, const struct found *found)
{
    uint64_t count;
    if (!ms__tree_is_right(&pool->free, &count) || count != found->free_count[pool->small])
        return "the free blocks are in the tree of free blocks, in order";
    if (!ms__tree_is_right(&pool->unmapped, &count) || count != found->unmapped_count[pool->small])
        return "the unmapped blocks are in the tree of unmapped blocks, in order";
    return NULL;
}

static bool adds_up(const ms_allocator_stat *stats)
{
    return stats[MS_BOTH_POOLS].now == stats[MS_SMALL_POOL].now + stats[MS_LARGE_POOL].now &&
           stats[MS_BOTH_POOLS].peak >= stats[MS_BOTH_POOLS].now;
}

const char *ms_allocator_check(const ms_allocator *allocator)
{
    const ms_allocator_stats *stats = &allocator->stats;
    struct found found = {0};
    for (const struct ms__slab *slab = allocator->slabs; slab; slab = slab->next)
        for (int i = 0; i < MS__SLAB_BLOCKS; i++) {
            const char *wrong = slab->blocks[i].segment ? check_block(&slab->blocks[i], &found) : NULL;
            if (wrong)
                return wrong;
        }
    const char *wrong = check_pool(&allocator->small, &found);
    if (!wrong)
        wrong = check_pool(&allocator->large, &found);
    if (wrong)
        return wrong;
    if ((uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].now != found.reserved)
        return "reserved is the sum of all mapped blocks";
    if ((uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].now != found.allocated ||
        (uint64_t)stats->allocations[MS_BOTH_POOLS].now != found.allocations)
        return "allocated is the sum of the blocks that were given";
    if ((uint64_t)stats->active_bytes[MS_BOTH_POOLS].now != found.active)
        return "active is allocated, and what was freed but is used on other streams";
    if (found.reserved > allocator->settings.capacity)
        return "reserved is at most the capacity";
    if (!adds_up(stats->reserved_bytes) || !adds_up(stats->allocated_bytes) || !adds_up(stats->segments) ||
        !adds_up(stats->inactive_split) || !adds_up(stats->inactive_split_bytes))
        return "both pools' statistics are the sums of each pool's";
    return NULL;
}
