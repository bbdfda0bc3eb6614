/* slabs.c - memory for the model's own blocks and segments. Spare ones are kept for the next use. */
#include "core/allocator/model.h"

static void spare_segment(ms_allocator *allocator, struct ms__segment *segment)
{
    segment->next_spare = allocator->spare_segments;
    allocator->spare_segments = segment;
}

static bool add_slab(ms_allocator *allocator)
{
    struct ms__slab *slab = allocator->memory.alloc(allocator->memory.context, sizeof *slab);
    if (!slab)
        return false;
    slab->next = allocator->slabs;
    allocator->slabs = slab;
    for (int i = 0; i < MS__SLAB_BLOCKS; i++)
        ms__spare_block(allocator, &slab->blocks[i]);
    for (int i = 0; i < MS__SLAB_SEGMENTS; i++)
        spare_segment(allocator, &slab->segments[i]);
    return true;
}

bool ms__reserve_blocks(ms_allocator *allocator, size_t count)
{
    while (allocator->spare_block_count < count || !allocator->spare_segments)
        if (!add_slab(allocator))
            return false;
    return ms__reserve_addresses(allocator);
}

struct ms_allocation *ms__make_block(ms_allocator *allocator, const struct ms_allocation *like, uint64_t address,
                                     uint64_t size)
{
    struct ms_allocation *block = allocator->spare_blocks;
    assert(block && "blocks are reserved first");
    allocator->spare_blocks = block->listed;
    allocator->spare_block_count--;
    *block = (struct ms_allocation){
        .address = address,
        .size = size,
        .stream = like->stream,
        .segment = like->segment,
        .pool = like->pool,
        .mapped = true,
        .number = ++allocator->block_count,
    };
    return block;
}

void ms__spare_block(ms_allocator *allocator, struct ms_allocation *block)
{
    block->segment = NULL;
    block->listed = allocator->spare_blocks;
    allocator->spare_blocks = block;
    allocator->spare_block_count++;
}

static bool is_taken(const ms_allocator *allocator, uint64_t address, uint64_t size)
{
    for (const struct ms__slab *slab = allocator->slabs; slab; slab = slab->next)
        for (int i = 0; i < MS__SLAB_BLOCKS; i++) {
            const struct ms__segment *segment = slab->blocks[i].segment;
            if (segment && segment->address < address + size && address < segment->address + segment->size)
                return true;
        }
    return false;
}

/* Addresses that the caller gave, and those that the model chooses, may be the same. */
static uint64_t choose_address(ms_allocator *allocator, uint64_t size, bool expandable)
{
    uint64_t address;
    do
        address = ms__take_addresses(allocator, size, expandable);
    while (allocator->placed_segments && is_taken(allocator, address, size));
    return address;
}

struct ms__segment *ms__make_segment(ms_allocator *allocator, uint64_t size, bool expandable)
{
    struct ms__segment *segment = allocator->spare_segments;
    assert(segment && "segments are reserved first");
    allocator->spare_segments = segment->next_spare;
    uint64_t placed = allocator->next_placed;
    allocator->next_placed = 0;
    if (placed && is_taken(allocator, placed, size))
        placed = 0;
    allocator->placed_segments += placed != 0;
    *segment = (struct ms__segment){
        .number = ++allocator->segment_count,
        .address = placed ? placed : choose_address(allocator, size, expandable),
        .size = size,
        .expandable = expandable,
        .placed = placed != 0,
    };
    return segment;
}

void ms__drop_segment(ms_allocator *allocator, struct ms__segment *segment)
{
    if (!segment->placed && !segment->expandable)
        ms__return_addresses(allocator, segment->address, segment->size);
    allocator->placed_segments -= segment->placed;
    spare_segment(allocator, segment);
}

void ms__free_memory(ms_allocator *allocator)
{
    while (allocator->slabs) {
        struct ms__slab *next = allocator->slabs->next;
        allocator->memory.free(allocator->memory.context, allocator->slabs);
        allocator->slabs = next;
    }
    if (allocator->addresses.free)
        allocator->memory.free(allocator->memory.context, allocator->addresses.free);
}

static ms_block_info describe_block(const struct ms_allocation *block)
{
    bool is_waiting = !block->given && block->used_elsewhere;
    return (ms_block_info){
        .address = block->address,
        .bytes = block->size,
        .requested = block->given || is_waiting ? block->requested : 0,
        .stream = block->stream & ((UINT64_C(1) << MS_POOL_SHIFT) - 1),
        .pool = ms_pool_of_stream(block->stream),
        .name = block->name,
        .segment_address = block->segment->address,
        .segment_bytes = block->segment->size,
        .state = block->given ? MS_BLOCK_GIVEN
                 : is_waiting ? MS_BLOCK_WAITING
                              : MS_BLOCK_FREE,
        .is_small = block->pool->small,
        .is_expandable = block->segment->expandable,
    };
}

void ms_allocator_each_block(const ms_allocator *allocator, ms_block_function *function, void *context)
{
    for (const struct ms__slab *slab = allocator->slabs; slab; slab = slab->next)
        for (int i = 0; i < MS__SLAB_BLOCKS; i++)
            if (slab->blocks[i].segment && slab->blocks[i].mapped) {
                ms_block_info info = describe_block(&slab->blocks[i]);
                function(context, &info);
            }
}
