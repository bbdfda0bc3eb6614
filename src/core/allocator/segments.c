/* segments.c - take segments from the GPU, and give them back. */
#include "core/allocator/model.h"

enum { MAX_RESERVED_BITS = 62 }; /* The sums are of 64 bits with a sign. */

bool ms__exceeds_capacity(const ms_allocator *allocator, uint64_t bytes)
{
    uint64_t reserved = (uint64_t)allocator->stats.reserved_bytes[MS_BOTH_POOLS].now;
    uint64_t most = UINT64_C(1) << MAX_RESERVED_BITS;
    if (allocator->settings.capacity < most)
        most = allocator->settings.capacity;
    return reserved > most || bytes > most - reserved;
}

void ms__reserved_changed(ms_allocator *allocator, const struct ms_allocation *block, ms_segment_change change,
                          uint64_t address, uint64_t bytes)
{
    if (change == MS_SEGMENT_TAKEN || change == MS_PAGES_MAPPED) {
        ms__stats_add(allocator->stats.reserved_bytes, block->pool, bytes);
        allocator->stats.device_allocs++;
    } else {
        ms__stats_remove(allocator->stats.reserved_bytes, block->pool, bytes);
        allocator->stats.device_frees++;
    }
    if (allocator->on_segment)
        allocator->on_segment(allocator->on_segment_context, change, address, bytes, block->stream);
}

struct ms_allocation *ms__take_segment(ms_allocator *allocator, const struct ms__request *request)
{
    uint64_t size = request->segment_size;
    uint64_t reserved = (uint64_t)allocator->stats.reserved_bytes[MS_BOTH_POOLS].now;
    if (allocator->allowed != MS_UNLIMITED && (reserved > allocator->allowed || size > allocator->allowed - reserved))
        return NULL;
    if (allocator->settings.expandable_segments)
        return ms__expand_segment(allocator, request);
    if (ms__exceeds_capacity(allocator, size))
        return NULL;
    struct ms__segment *segment = ms__make_segment(allocator, size, false);
    struct ms_allocation like = {.stream = request->stream, .segment = segment, .pool = request->pool};
    struct ms_allocation *block = ms__make_block(allocator, &like, segment->address, size);
    ms__stats_add(allocator->stats.segments, request->pool, 1);
    if (size >= allocator->settings.max_split_size)
        ms__stat_add(&allocator->stats.oversize_segments, 1);
    ms__reserved_changed(allocator, block, MS_SEGMENT_TAKEN, segment->address, size);
    return block;
}

/* A free block that is a whole segment. */
static void give_back_segment(ms_allocator *allocator, struct ms_allocation *block)
{
    ms__remove_free(block);
    ms__stats_remove(allocator->stats.segments, block->pool, 1);
    if (block->size >= allocator->settings.max_split_size)
        ms__stat_remove(&allocator->stats.oversize_segments, 1);
    ms__reserved_changed(allocator, block, MS_SEGMENT_GIVEN_BACK, block->address, block->size);
    ms__drop_segment(allocator, block->segment);
    ms__spare_block(allocator, block);
}

/* Of the default pool. */
static bool is_collectable(const struct ms_allocation *block)
{
    return !ms_pool_of_stream(block->stream) && !ms__is_split(block) && !block->segment->expandable;
}

static bool is_whole_segment(const struct ms_allocation *block)
{
    return !ms__is_split(block) && !block->segment->expandable;
}

static struct ms_allocation *first_free(const struct ms__pool *pool)
{
    struct ms__tree_node *node = ms__tree_first(&pool->free);
    return node ? ms__block_of(node) : NULL;
}

static struct ms_allocation *free_after(const struct ms__pool *pool, const struct ms__tree_key *key)
{
    struct ms__tree_node *node = ms__tree_after(&pool->free, key);
    return node ? ms__block_of(node) : NULL;
}

/* Give back the segments of the large pool that were not used for longest, until reserved is below the threshold. */
void ms__collect_garbage(ms_allocator *allocator)
{
    struct ms__pool *pool = &allocator->large;
    uint64_t threshold = (uint64_t)(allocator->settings.garbage_collection_threshold * (double)allocator->allowed);
    uint64_t reserved = (uint64_t)allocator->stats.reserved_bytes[MS_BOTH_POOLS].now;
    if (reserved <= threshold)
        return;
    uint64_t ages = 0, count = 0, collected = 0;
    for (struct ms_allocation *block = first_free(pool); block; block = free_after(pool, &block->node.key))
        if (is_collectable(block)) {
            ages += pool->searches - block->freed_search;
            count++;
        }
    for (bool any = true; any && count && collected < reserved - threshold;) {
        double mean_age = (double)ages / (double)count;
        any = false;
        for (struct ms_allocation *block = first_free(pool), *next; block; block = next) {
            next = free_after(pool, &block->node.key);
            uint64_t age = pool->searches - block->freed_search;
            if (!is_collectable(block) || (double)age < mean_age)
                continue;
            any = true;
            collected += block->size;
            ages -= age;
            count--;
            give_back_segment(allocator, block);
        }
    }
}

/* Give back as few blocks as suffice for the request, of those that max_split_size keeps from being split. */
bool ms__release_oversize(ms_allocator *allocator, const struct ms__request *request)
{
    uint64_t oversize = allocator->settings.max_split_size;
    if (oversize == MS_UNLIMITED)
        return false;
    struct ms__pool *pool = request->pool;
    uint64_t needed = request->size < oversize ? oversize : request->size, released = 0;
    struct ms__tree_key key = {.stream = request->stream, .size = needed};
    struct ms__tree_node *found = ms__tree_find(&pool->free, &key);
    if (found && found->key.stream == request->stream) {
        if (!is_whole_segment(ms__block_of(found)))
            return false;
        give_back_segment(allocator, ms__block_of(found));
        return true;
    }
    while (released < needed && (found = ms__tree_before(&pool->free, &key)) != NULL) {
        struct ms_allocation *block = ms__block_of(found);
        if (block->size < oversize || block->stream != request->stream || !is_whole_segment(block))
            break;
        released += block->size;
        give_back_segment(allocator, block);
    }
    return released >= needed;
}

static bool release_blocks(ms_allocator *allocator, struct ms__pool *pool, uint64_t number)
{
    struct ms_allocation *expandable = NULL, **last = &expandable;
    for (struct ms_allocation *block = first_free(pool), *next; block; block = next) {
        next = free_after(pool, &block->node.key);
        bool is_wanted = number == MS__EVERY_POOL ? ms__may_give_back(allocator, block->stream)
                                                  : ms_pool_of_stream(block->stream) == number;
        if (!is_wanted)
            continue;
        if (block->segment->expandable) {
            *last = block;
            last = &block->listed;
        } else if (!ms__is_split(block)) {
            give_back_segment(allocator, block);
        }
    }
    *last = NULL;
    for (struct ms_allocation *block = expandable, *next; block; block = next) {
        next = block->listed;
        if (!ms__unmap_block(allocator, block))
            return false;
    }
    return true;
}

bool ms__release_free(ms_allocator *allocator, uint64_t pool)
{
    return release_blocks(allocator, &allocator->large, pool) && release_blocks(allocator, &allocator->small, pool);
}
