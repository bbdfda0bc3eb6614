/* slow_allocator.c - torch's rules, each written down as directly as possible. */
#include "slow_allocator.h"

#include <string.h>

#define MIB (UINT64_C(1) << 20)

static bool limited(const struct slow_allocator *slow)
{
    return slow->settings.memory_fraction < 1 && slow->settings.total_memory != MS_UNLIMITED;
}

static uint64_t allowed(const struct slow_allocator *slow)
{
    double bytes = slow->settings.memory_fraction * (double)slow->settings.total_memory;
    return (uint64_t)(slow->settings.rounds_fraction ? bytes + 0.5 : bytes);
}

void slow_open(struct slow_allocator *slow, const ms_allocator_settings *settings)
{
    memset(slow, 0, sizeof *slow);
    slow->settings = *settings;
}

static struct slow_block *new_block(struct slow_allocator *slow)
{
    for (int i = 0; i < SLOW_BLOCKS; i++)
        if (slow->blocks[i].state == SLOW_NONE) {
            slow->blocks[i] = (struct slow_block){.number = ++slow->block_number};
            return &slow->blocks[i];
        }
    return NULL;
}

static struct slow_block *at_address(struct slow_allocator *slow, uint64_t segment, uint64_t address, bool end)
{
    for (int i = 0; i < SLOW_BLOCKS; i++) {
        struct slow_block *block = &slow->blocks[i];
        if (block->state != SLOW_NONE && block->segment == segment &&
            (end ? block->address + block->size : block->address) == address)
            return block;
    }
    return NULL;
}

static struct slow_block *before(struct slow_allocator *slow, const struct slow_block *block)
{
    return at_address(slow, block->segment, block->address, true);
}

static struct slow_block *after(struct slow_allocator *slow, const struct slow_block *block)
{
    return at_address(slow, block->segment, block->address + block->size, false);
}

static bool is_whole(const struct slow_block *block)
{
    return block->address == block->segment_address && block->size == block->segment_size;
}

static uint64_t tie(const struct slow_allocator *slow, const struct slow_block *block)
{
    return slow->settings.ties == MS_TIES_BY_ADDRESS ? 0
           : slow->settings.ties == MS_TIES_BY_BLOCK ? block->number
                                                     : block->segment;
}

/* Whether a comes before b among the free blocks. */
static bool sooner(const struct slow_allocator *slow, const struct slow_block *a, const struct slow_block *b)
{
    if (a->size != b->size)
        return a->size < b->size;
    if (tie(slow, a) != tie(slow, b))
        return tie(slow, a) < tie(slow, b);
    return a->address < b->address;
}

/* The first free block of at least `size` that comes after `last` (or the first of all), on one stream and pool. */
static struct slow_block *first_fit(struct slow_allocator *slow, uint64_t size, uint64_t stream, bool small,
                                    const struct slow_block *last)
{
    struct slow_block *best = NULL;
    for (int i = 0; i < SLOW_BLOCKS; i++) {
        struct slow_block *block = &slow->blocks[i];
        if (block->state == SLOW_FREE && block->small == small && block->stream == stream && block->size >= size &&
            (!last || sooner(slow, last, block)) && (!best || sooner(slow, block, best)))
            best = block;
    }
    return best;
}

static void reserve(struct slow_allocator *slow, int64_t bytes)
{
    slow->reserved += bytes;
    if (slow->reserved > slow->peak_reserved)
        slow->peak_reserved = slow->reserved;
}

/* Join a block with its neighbours of the same state. */
static void join(struct slow_allocator *slow, struct slow_block *block)
{
    struct slow_block *neighbour = before(slow, block);
    if (neighbour && neighbour->state == block->state) {
        block->address = neighbour->address;
        block->size += neighbour->size;
        neighbour->state = SLOW_NONE;
    }
    neighbour = after(slow, block);
    if (neighbour && neighbour->state == block->state) {
        block->size += neighbour->size;
        neighbour->state = SLOW_NONE;
    }
}

static void becomes_free(struct slow_allocator *slow, struct slow_block *block)
{
    block->state = SLOW_FREE;
    join(slow, block);
    block->freed_search = slow->searches[block->small];
}

void slow_synchronize(struct slow_allocator *slow)
{
    for (;;) {
        struct slow_block *oldest = NULL;
        for (int i = 0; i < SLOW_BLOCKS; i++)
            if (slow->blocks[i].state == SLOW_WAITING && (!oldest || slow->blocks[i].freed_order < oldest->freed_order))
                oldest = &slow->blocks[i];
        if (!oldest)
            return;
        oldest->used_elsewhere = false;
        becomes_free(slow, oldest);
    }
}

void slow_free(struct slow_allocator *slow, int index)
{
    struct slow_block *block = &slow->blocks[index];
    slow->allocated -= (int64_t)block->size;
    if (block->used_elsewhere) {
        block->state = SLOW_WAITING;
        block->freed_order = ++slow->free_order;
    } else {
        becomes_free(slow, block);
    }
}

static uint64_t page(const struct slow_allocator *slow, bool small)
{
    return small ? 2 * MIB : slow->settings.large_segment_size;
}

static void give_back(struct slow_allocator *slow, struct slow_block *block)
{
    reserve(slow, -(int64_t)block->size);
    block->state = SLOW_NONE;
}

static struct slow_block *part(struct slow_allocator *slow, const struct slow_block *of, uint64_t address,
                               uint64_t size)
{
    struct slow_block copy = *of, *block = new_block(slow);
    uint64_t number = block->number;
    *block = copy;
    block->number = number;
    block->address = address;
    block->size = size;
    return block;
}

static void unmap(struct slow_allocator *slow, struct slow_block *block)
{
    uint64_t size = page(slow, block->small), base = block->segment_address;
    uint64_t offset = block->address - base, end = offset + block->size;
    uint64_t first = (offset + size - 1) / size * size, last = end / size * size;
    if (first >= last)
        return;
    if (first > offset)
        part(slow, block, block->address, first - offset)->freed_search = slow->searches[block->small];
    if (end > last)
        part(slow, block, base + last, end - last)->freed_search = slow->searches[block->small];
    block->address = base + first;
    block->size = last - first;
    block->state = SLOW_UNMAPPED;
    reserve(slow, -(int64_t)block->size);
    join(slow, block);
    if (is_whole(block))
        block->state = SLOW_NONE;
}

/* Of the pools for which `wanted` is set. */
static void release_blocks(struct slow_allocator *slow, const bool wanted[SLOW_POOLS])
{
    for (int small = 0; small < 2; small++) {
        /* In order, because a new part of a block gets the next number. */
        static struct slow_block *found[SLOW_BLOCKS];
        int count = 0;
        for (int i = 0; i < SLOW_BLOCKS; i++) {
            struct slow_block *block = &slow->blocks[i];
            if (block->state == SLOW_FREE && block->small == (bool)small && wanted[ms_pool_of_stream(block->stream)])
                found[count++] = block;
        }
        for (int i = 1; i < count; i++)
            for (int k = i; k > 0; k--) {
                struct slow_block *a = found[k - 1], *b = found[k];
                if (a->stream < b->stream || (a->stream == b->stream && sooner(slow, a, b)))
                    break;
                found[k - 1] = b;
                found[k] = a;
            }
        for (int i = 0; i < count; i++) {
            if (!found[i]->expandable && is_whole(found[i]))
                give_back(slow, found[i]);
        }
        for (int i = 0; i < count; i++)
            if (found[i]->state == SLOW_FREE && found[i]->expandable)
                unmap(slow, found[i]);
    }
}

void slow_empty_cache(struct slow_allocator *slow)
{
    bool wanted[SLOW_POOLS];
    for (int i = 0; i < SLOW_POOLS; i++)
        wanted[i] = !slow->users[i];
    slow_synchronize(slow);
    release_blocks(slow, wanted);
}

void slow_empty_pool(struct slow_allocator *slow, uint64_t pool)
{
    bool wanted[SLOW_POOLS] = {false};
    if (slow->users[pool] || !slow->pool_order[pool])
        return;
    wanted[pool] = true;
    slow_synchronize(slow);
    release_blocks(slow, wanted);
}

void slow_hold_pool(struct slow_allocator *slow, uint64_t pool, unsigned flags)
{
    if (!slow->pool_order[pool])
        slow->pool_order[pool] = ++slow->pool_number;
    slow->users[pool]++;
    slow->flags[pool] |= flags;
}

void slow_release_pool(struct slow_allocator *slow, uint64_t pool)
{
    if (slow->users[pool])
        slow->users[pool]--;
}

static uint64_t rounded(const ms_allocator_settings *settings, uint64_t bytes)
{
    if (bytes < 512)
        return 512;
    int interval = 0;
    for (uint64_t size = 2 * MIB; bytes >= size && interval < MS_ROUNDUP_INTERVALS - 1; size *= 2)
        interval++;
    uint64_t divisions = settings->roundup_divisions[interval], power = 1;
    if (divisions <= 1 || bytes <= 512 * divisions)
        return (bytes + 511) / 512 * 512;
    while (power * 2 <= bytes)
        power *= 2;
    if (power / divisions == 0)
        return power == bytes ? bytes : power * 2;
    for (uint64_t size = power;; size += power / divisions)
        if (size >= bytes)
            return size;
}

static bool fits_gpu(const struct slow_allocator *slow, uint64_t bytes)
{
    return slow->settings.capacity == MS_UNLIMITED || (uint64_t)slow->reserved + bytes <= slow->settings.capacity;
}

static struct slow_block *new_segment(struct slow_allocator *slow, uint64_t size, uint64_t stream, bool small)
{
    struct slow_block *block = new_block(slow);
    *block = (struct slow_block){
        .state = SLOW_FREE,
        .segment = ++slow->segment_number,
        .segment_address = slow->next_address,
        .segment_size = size,
        .address = slow->next_address,
        .size = size,
        .stream = stream,
        .number = block->number,
        .small = small,
    };
    slow->next_address += 64 * 1024 * MIB;
    return block;
}

static bool map(struct slow_allocator *slow, struct slow_block *block, uint64_t size)
{
    uint64_t pages = page(slow, block->small);
    size = (size + pages - 1) / pages * pages;
    if (!fits_gpu(slow, size))
        return false;
    reserve(slow, (int64_t)size);
    if (size < block->size)
        part(slow, block, block->address + size, block->size - size);
    block->size = size;
    becomes_free(slow, block);
    return true;
}

static bool available(const struct slow_block *block)
{
    return block && (block->state == SLOW_FREE || block->state == SLOW_UNMAPPED);
}

static struct slow_block *expand(struct slow_allocator *slow, uint64_t size, uint64_t stream, bool small)
{
    struct slow_block *lowest = NULL;
    for (int i = 0; i < SLOW_BLOCKS; i++) {
        struct slow_block *block = &slow->blocks[i];
        if (block->state != SLOW_UNMAPPED || block->stream != stream || block->small != small)
            continue;
        struct slow_block *start = available(before(slow, block)) ? before(slow, block) : block;
        uint64_t room = 0;
        for (struct slow_block *at = start; available(at); at = after(slow, at))
            room += at->size;
        if (room >= size && (!lowest || start->address < lowest->address))
            lowest = start;
    }
    if (!lowest) {
        uint64_t total = slow->settings.total_memory, pages = page(slow, small);
        lowest = new_segment(slow, (total + total / 8 + pages - 1) / pages * pages, stream, small);
        lowest->state = SLOW_UNMAPPED;
        lowest->expandable = true;
    }
    if (lowest->state == SLOW_UNMAPPED && !map(slow, lowest, lowest->size < size ? lowest->size : size))
        return NULL;
    while (lowest->size < size) {
        struct slow_block *next = after(slow, lowest);
        uint64_t missing = size - lowest->size;
        if (!map(slow, next, missing < next->size ? missing : next->size))
            return NULL;
        lowest = next;
    }
    return lowest;
}

static struct slow_block *take(struct slow_allocator *slow, uint64_t size, uint64_t stream, bool small)
{
    uint64_t segment = small             ? 2 * MIB
                       : size < 10 * MIB ? slow->settings.large_segment_size
                                         : (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    if (limited(slow) && (uint64_t)slow->reserved + segment > allowed(slow))
        return NULL;
    if (slow->settings.expandable_segments)
        return expand(slow, size, stream, small);
    if (!fits_gpu(slow, segment))
        return NULL;
    reserve(slow, (int64_t)segment);
    return new_segment(slow, segment, stream, small);
}

static void collect_garbage(struct slow_allocator *slow)
{
    uint64_t threshold = (uint64_t)(slow->settings.garbage_collection_threshold * (double)allowed(slow));
    if ((uint64_t)slow->reserved <= threshold)
        return;
    uint64_t target = (uint64_t)slow->reserved - threshold, collected = 0;
    for (bool any = true; any && collected < target;) {
        double ages = 0, count = 0;
        any = false;
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < SLOW_BLOCKS; i++) {
                struct slow_block *block = &slow->blocks[i];
                if (block->state != SLOW_FREE || block->small || ms_pool_of_stream(block->stream) ||
                    block->expandable || !is_whole(block))
                    continue;
                double age = (double)(slow->searches[0] - block->freed_search);
                if (pass == 0) {
                    ages += age;
                    count++;
                } else if (age >= ages / count) {
                    any = true;
                    collected += block->size;
                    give_back(slow, block);
                }
            }
    }
}

static bool release_oversize(struct slow_allocator *slow, uint64_t size, uint64_t stream, bool small)
{
    uint64_t oversize = slow->settings.max_split_size, needed = size < oversize ? oversize : size, released = 0;
    if (oversize == MS_UNLIMITED)
        return false;
    struct slow_block *block = first_fit(slow, needed, stream, small, NULL);
    if (block) {
        if (block->expandable || !is_whole(block))
            return false;
        give_back(slow, block);
        return true;
    }
    while (released < needed) {
        struct slow_block *largest = NULL;
        for (int i = 0; i < SLOW_BLOCKS; i++) {
            block = &slow->blocks[i];
            if (block->state == SLOW_FREE && block->small == small && block->stream == stream &&
                block->size >= oversize && (!largest || sooner(slow, largest, block)))
                largest = block;
        }
        if (!largest || largest->expandable || !is_whole(largest))
            break;
        released += largest->size;
        give_back(slow, largest);
    }
    return released >= needed;
}

static uint64_t size_to_grow_to(struct slow_allocator *slow, const struct slow_block *block)
{
    const struct slow_block *next = after(slow, block);
    return block->size + (next && next->state == SLOW_UNMAPPED ? next->size : 0);
}

static struct slow_block *choose(struct slow_allocator *slow, uint64_t size, uint64_t stream, bool small)
{
    slow->searches[small] += !ms_pool_of_stream(stream);
    struct slow_block *block = first_fit(slow, size, stream, small, NULL);
    if (!block)
        return NULL;
    while (block->expandable) {
        struct slow_block *next = first_fit(slow, size, stream, small, block);
        if (!next || size_to_grow_to(slow, next) >= size_to_grow_to(slow, block))
            break;
        block = next;
    }
    if (size < slow->settings.max_split_size)
        return block->size >= slow->settings.max_split_size ? NULL : block;
    return block->size >= size + slow->settings.max_non_split_rounding ? NULL : block;
}

/* A free block of a private pool, of those that were used first. */
static struct slow_block *choose_on_oom(struct slow_allocator *slow, uint64_t size, uint64_t stream, bool small)
{
    struct slow_block *block = NULL;
    for (uint64_t order = 1; !block && order <= slow->pool_number; order++)
        for (uint64_t pool = 1; pool < SLOW_POOLS; pool++)
            if (slow->pool_order[pool] == order && slow->flags[pool] & MS_POOL_ON_OOM)
                block = choose(slow, size, ms_stream_in_pool(stream, pool), small);
    return block;
}

int slow_malloc_at(struct slow_allocator *slow, uint64_t bytes, uint64_t stream, uint64_t address)
{
    uint64_t size = rounded(&slow->settings, bytes);
    for (int i = 0; i < SLOW_BLOCKS; i++) {
        struct slow_block *block = &slow->blocks[i], *front;
        uint64_t end = block->address + block->size;
        if (block->state != SLOW_FREE || block->stream != stream || address < block->address || address + size > end)
            continue;
        if (address > block->address)
            part(slow, block, block->address, address - block->address)->freed_search = slow->searches[block->small];
        front = address + size < end ? part(slow, block, address, size) : block;
        if (front != block) {
            block->address = address + size;
            block->size = end - block->address;
            block->freed_search = slow->searches[block->small];
        } else {
            block->address = address;
            block->size = size;
        }
        front->state = SLOW_GIVEN;
        slow->allocated += (int64_t)size;
        return (int)(front - slow->blocks);
    }
    return MS_EINVAL;
}

int slow_malloc(struct slow_allocator *slow, uint64_t bytes, uint64_t stream)
{
    uint64_t pool = ms_pool_of_stream(stream);
    if (pool && !slow->pool_order[pool])
        slow_hold_pool(slow, pool, 0);
    if (!slow->delay && !pool)
        slow_synchronize(slow);
    uint64_t size = rounded(&slow->settings, bytes);
    bool small = size <= MIB;
    struct slow_block *block = choose(slow, size, stream, small);
    if (!block) {
        if (limited(slow) && slow->settings.garbage_collection_threshold > 0)
            collect_garbage(slow);
        block = take(slow, size, stream, small);
        if (!block && !pool)
            block = choose_on_oom(slow, size, stream, small);
        if (!block && release_oversize(slow, size, stream, small))
            block = take(slow, size, stream, small);
        if (!block && !pool) {
            slow_empty_cache(slow);
            slow->retries++;
            block = take(slow, size, stream, small);
        }
    }
    if (!block) {
        slow->failures++;
        return MS_EDEVICE;
    }
    uint64_t rest = block->size - size;
    if (slow->flags[ms_pool_of_stream(block->stream)] & MS_POOL_NO_SPLIT)
        rest = 0;
    if (small || slow->settings.expandable_segments ? rest >= 512
                                                    : size < slow->settings.max_split_size && rest > MIB) {
        struct slow_block *front = part(slow, block, block->address, size);
        block->address += size;
        block->size = rest;
        block->state = SLOW_FREE;
        block->freed_search = slow->searches[small];
        block = front;
    }
    block->state = SLOW_GIVEN;
    slow->allocated += (int64_t)block->size;
    return (int)(block - slow->blocks);
}
