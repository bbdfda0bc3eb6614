/* state.c - what decides how the allocator answers from now on, as numbers that can be compared. */
#include "core/allocator/model.h"

#include <stdlib.h>

struct described { /* a block */
    uint64_t tie, address, previous, size, stream, flags, name;
};

enum { DESCRIBED = sizeof(struct described) / sizeof(uint64_t) };

void ms_allocation_set_name(ms_allocation *allocation, uint64_t name)
{
    if (allocation)
        allocation->name = name;
}

static int compare_described(const void *a, const void *b)
{
    const struct described *first = a, *second = b;
    if (first->tie != second->tie)
        return first->tie < second->tie ? -1 : 1;
    return first->address < second->address ? -1 : first->address > second->address;
}

/* Of a free block its age counts, where garbage is collected by it, and of a given one what the caller calls it. */
static struct described describe(const ms_allocator *allocator, const struct ms_allocation *block)
{
    bool has_age = !block->given && allocator->settings.garbage_collection_threshold > 0;
    uint64_t flags = (uint64_t)block->given | (uint64_t)block->mapped << 1 | (uint64_t)block->used_elsewhere << 2 |
                     (uint64_t)block->pool->small << 3 | (uint64_t)block->segment->expandable << 4;
    return (struct described){.tie = ms__tie_of(allocator, block),
                              .address = block->address,
                              .previous = (uintptr_t)block,
                              .size = block->size,
                              .stream = block->stream,
                              .flags = flags,
                              .name = block->given ? block->name
                                      : has_age    ? block->pool->searches - block->freed_search
                                                   : 0};
}

/* Addresses count only where torch prefers the lower one, and expandable segments are in their order. What counts
 * otherwise is which blocks lie beside each other. */
static size_t put_blocks(const ms_allocator *allocator, struct described *blocks)
{
    size_t count = 0;
    for (const struct ms__slab *slab = allocator->slabs; slab; slab = slab->next)
        for (int i = 0; i < MS__SLAB_BLOCKS; i++)
            if (slab->blocks[i].segment)
                blocks[count++] = describe(allocator, &slab->blocks[i]);
    if (count)
        qsort(blocks, count, sizeof *blocks, compare_described);
    for (size_t i = 0; i < count; i++)
        ((struct ms_allocation *)(uintptr_t)blocks[i].previous)->rank = i + 1;
    for (size_t i = 0; i < count; i++) {
        const struct ms_allocation *block = (const struct ms_allocation *)(uintptr_t)blocks[i].previous;
        bool has_address = allocator->settings.ties == MS_TIES_BY_ADDRESS || block->segment->expandable;
        blocks[i].tie = 0; /* the order says it */
        blocks[i].address = has_address ? block->address : 0;
        blocks[i].previous = block->previous ? block->previous->rank : 0;
    }
    return count * DESCRIBED;
}

size_t ms_allocator_state_room(const ms_allocator *allocator)
{
    size_t count = 0;
    for (const struct ms__slab *slab = allocator->slabs; slab; slab = slab->next)
        for (int i = 0; i < MS__SLAB_BLOCKS; i++)
            count += slab->blocks[i].segment ? DESCRIBED + 1 : 0;
    for (const struct ms__private_pool *pool = allocator->private_pools; pool; pool = pool->next)
        count += 2;
    return count + 2 * allocator->addresses.count + 2;
}

size_t ms_allocator_state(ms_allocator *allocator, uint64_t *numbers)
{
    const struct ms__addresses *space = &allocator->addresses;
    size_t count = put_blocks(allocator, (struct described *)(void *)numbers);
    for (const struct ms_allocation *block = allocator->waiting; block; block = block->listed)
        numbers[count++] = block->rank;
    for (const struct ms__private_pool *pool = allocator->private_pools; pool; pool = pool->next) {
        numbers[count++] = pool->number << 2 | pool->flags;
        numbers[count++] = pool->users;
    }
    numbers[count++] = allocator->next_placed;
    if (allocator->settings.ties != MS_TIES_BY_ADDRESS)
        return count;
    numbers[count++] = space->lowest;
    for (size_t i = 0; i < space->count; i++) {
        numbers[count++] = space->free[i].address;
        numbers[count++] = space->free[i].size;
    }
    return count;
}
