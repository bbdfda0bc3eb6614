/* expandable.c - expandable segments: one range of addresses for each stream and pool, to which the GPU's memory is
 * mapped in pages as it is needed. */
#include "core/allocator/model.h"

static uint64_t page_size(const ms_allocator *allocator, const struct ms__pool *pool)
{
    return pool->small ? MS__SMALL_SEGMENT : allocator->settings.large_segment_size;
}

static bool is_available(const struct ms_allocation *block)
{
    return block && !block->given && !block->used_elsewhere;
}

static bool has_room(const struct ms_allocation *block, uint64_t size)
{
    uint64_t room = 0;
    for (; room < size && is_available(block); block = block->next)
        room += block->size;
    return room >= size;
}

static struct ms_allocation *add_segment(ms_allocator *allocator, const struct ms__request *request)
{
    enum { MOST_ADDRESS_BITS = 50 };
    uint64_t page = page_size(allocator, request->pool), total = allocator->settings.total_memory;
    if (total >> MOST_ADDRESS_BITS)
        total = UINT64_C(1) << MOST_ADDRESS_BITS;
    uint64_t size = (total + total / 8 + page - 1) / page * page;
    struct ms__segment *segment = ms__make_segment(allocator, size, true);
    struct ms_allocation like = {.stream = request->stream, .segment = segment, .pool = request->pool};
    struct ms_allocation *block = ms__make_block(allocator, &like, segment->address, size);
    block->mapped = false;
    ms__insert_unmapped(block);
    return block;
}

/* The lowest addresses where the request fits into free and unmapped blocks that follow each other. */
static struct ms_allocation *find_room(ms_allocator *allocator, const struct ms__request *request)
{
    struct ms__tree_key key = {.stream = request->stream};
    struct ms__tree_node *node = ms__tree_find(&request->pool->unmapped, &key);
    for (; node && node->key.stream == request->stream; node = ms__tree_after(&request->pool->unmapped, &node->key)) {
        struct ms_allocation *block = ms__block_of(node);
        if (is_available(block->previous))
            block = block->previous;
        if (has_room(block, request->size))
            return block;
    }
    return add_segment(allocator, request);
}

/* Map at least `size` bytes at the beginning of an unmapped block, which then is free and joined with its neighbours.
 */
static bool map_pages(ms_allocator *allocator, struct ms_allocation *block, uint64_t size)
{
    uint64_t page = page_size(allocator, block->pool), address = block->address;
    size = (size + page - 1) / page * page;
    if (ms__exceeds_capacity(allocator, size))
        return false;
    ms__remove_unmapped(block);
    block->mapped = true;
    if (size < block->size) {
        struct ms_allocation *rest = ms__make_block(allocator, block, block->address + size, block->size - size);
        rest->mapped = false;
        rest->previous = block;
        rest->next = block->next;
        if (rest->next)
            rest->next->previous = rest;
        block->next = rest;
        block->size = size;
        ms__insert_unmapped(rest);
    }
    ms__join(allocator, block, block->previous);
    ms__join(allocator, block, block->next);
    ms__insert_free(allocator, block);
    ms__reserved_changed(allocator, block, MS_PAGES_MAPPED, address, size);
    return true;
}

struct ms_allocation *ms__expand_segment(ms_allocator *allocator, const struct ms__request *request)
{
    struct ms_allocation *block = find_room(allocator, request);
    if (!block->mapped && !map_pages(allocator, block, block->size < request->size ? block->size : request->size))
        return NULL;
    while (block->size < request->size) {
        struct ms_allocation *next = block->next;
        uint64_t missing = request->size - block->size;
        /* Without a next block the request is larger than the whole range of addresses. */
        if (!next || !map_pages(allocator, next, missing < next->size ? missing : next->size))
            return NULL;
        block = next; /* The mapped block has taken in the free one before it. */
    }
    ms__remove_free(block);
    return block;
}

/* Put a part of `block` that stays mapped beside it, as a free block. */
static void keep_part(ms_allocator *allocator, struct ms_allocation *block, uint64_t address, uint64_t size,
                      bool before)
{
    struct ms_allocation *part = ms__make_block(allocator, block, address, size);
    part->previous = before ? block->previous : block;
    part->next = before ? block : block->next;
    if (part->previous)
        part->previous->next = part;
    if (part->next)
        part->next->previous = part;
    ms__insert_free(allocator, part);
}

bool ms__unmap_block(ms_allocator *allocator, struct ms_allocation *block)
{
    if (!ms__reserve_blocks(allocator, 2))
        return false;
    uint64_t page = page_size(allocator, block->pool), base = block->segment->address;
    uint64_t offset = block->address - base, end = offset + block->size;
    uint64_t first = (offset + page - 1) / page * page, last = end / page * page;
    if (first >= last)
        return true;
    ms__remove_free(block);
    if (first > offset)
        keep_part(allocator, block, block->address, first - offset, true);
    if (end > last)
        keep_part(allocator, block, base + last, end - last, false);
    block->address = base + first;
    block->size = last - first;
    block->mapped = false;
    ms__reserved_changed(allocator, block, MS_PAGES_UNMAPPED, block->address, block->size);
    ms__join(allocator, block, block->previous);
    ms__join(allocator, block, block->next);
    if (ms__is_split(block)) {
        ms__insert_unmapped(block);
    } else { /* Nothing of the segment is left. */
        ms__drop_segment(allocator, block->segment);
        ms__spare_block(allocator, block);
    }
    return true;
}
