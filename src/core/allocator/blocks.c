/* blocks.c - free blocks: their order, joining neighbours, and choosing one for a request. */
#include "core/allocator/model.h"

uint64_t ms__tie_of(const ms_allocator *allocator, const struct ms_allocation *block)
{
    switch (allocator->settings.ties) {
    case MS_TIES_BY_BLOCK:
        return block->number;
    case MS_TIES_BY_SEGMENT:
        return block->segment->number;
    case MS_TIES_BY_ADDRESS:
        break;
    }
    return 0;
}

void ms__insert_free(ms_allocator *allocator, struct ms_allocation *block)
{
    block->freed_search = block->pool->searches;
    block->node.key = (struct ms__tree_key){block->stream, block->size, ms__tie_of(allocator, block), block->address};
    ms__tree_insert(&block->pool->free, &block->node);
}

void ms__remove_free(struct ms_allocation *block)
{
    ms__tree_remove(&block->pool->free, &block->node);
}

void ms__insert_unmapped(struct ms_allocation *block)
{
    block->node.key = (struct ms__tree_key){.stream = block->stream, .address = block->address};
    ms__tree_insert(&block->pool->unmapped, &block->node);
}

void ms__remove_unmapped(struct ms_allocation *block)
{
    ms__tree_remove(&block->pool->unmapped, &block->node);
}

uint64_t ms__join(ms_allocator *allocator, struct ms_allocation *block, struct ms_allocation *neighbour)
{
    if (!neighbour || neighbour->given || neighbour->used_elsewhere || neighbour->mapped != block->mapped)
        return 0;
    if (neighbour->mapped)
        ms__remove_free(neighbour);
    else
        ms__remove_unmapped(neighbour);
    if (block->previous == neighbour) {
        block->address = neighbour->address;
        block->previous = neighbour->previous;
        if (block->previous)
            block->previous->next = block;
    } else {
        block->next = neighbour->next;
        if (block->next)
            block->next->previous = block;
    }
    uint64_t size = neighbour->size;
    block->size += size;
    ms__spare_block(allocator, neighbour);
    return size;
}

/* The size that a block can grow to: the end of an expandable segment has unmapped pages behind it. */
static uint64_t size_with_unmapped(const struct ms_allocation *block)
{
    return block->size + (block->next && !block->next->mapped ? block->next->size : 0);
}

static struct ms_allocation *next_on_stream(const struct ms_allocation *block)
{
    struct ms__tree_node *after = ms__tree_after(&block->pool->free, &block->node.key);
    return after && after->key.stream == block->stream ? ms__block_of(after) : NULL;
}

struct ms_allocation *ms__take_free(ms_allocator *allocator, const struct ms__request *request)
{
    const ms_allocator_settings *settings = &allocator->settings;
    if (!ms_pool_of_stream(request->stream)) /* garbage collection asks for the age of the default pool's blocks */
        request->pool->searches++;
    struct ms__tree_key key = {.stream = request->stream, .size = request->size};
    struct ms__tree_node *found = ms__tree_find(&request->pool->free, &key);
    if (!found || found->key.stream != request->stream)
        return NULL;
    struct ms_allocation *block = ms__block_of(found);
    if (block->segment->expandable)
        for (struct ms_allocation *next = next_on_stream(block);
             next && size_with_unmapped(next) < size_with_unmapped(block); next = next_on_stream(block))
            block = next;
    bool oversize = block->size >= settings->max_split_size;
    if (request->size < settings->max_split_size ? oversize
                                                 : block->size - request->size >= settings->max_non_split_rounding)
        return NULL;
    ms__remove_free(block);
    return block;
}
