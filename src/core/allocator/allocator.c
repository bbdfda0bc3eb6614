/* allocator.c - requests and frees, as torch's allocator handles them. */
#include "core/allocator/model.h"

#include <stdlib.h>

#define MAX_REQUEST (UINT64_C(1) << 60)

static void *use_malloc(void *context, size_t bytes)
{
    (void)context;
    return malloc(bytes);
}

static void use_free(void *context, void *memory)
{
    (void)context;
    free(memory);
}

ms_allocator *ms_allocator_open(const ms_allocator_settings *settings, const ms_options *options)
{
    static const ms_options standard = {.alloc = use_malloc, .free = use_free};
    if (options && !options->alloc != !options->free)
        return NULL;
    if (!options || !options->alloc)
        options = &standard;
    ms_allocator *allocator = options->alloc(options->context, sizeof *allocator);
    if (!allocator)
        return NULL;
    *allocator = (ms_allocator){.memory = *options};
    if (settings)
        allocator->settings = *settings;
    else
        ms_allocator_settings_default(&allocator->settings, NULL);
    settings = &allocator->settings;
    allocator->small.small = true;
    ms_allocator_set_fraction(allocator, settings->memory_fraction);
    return allocator;
}

void ms_allocator_set_fraction(ms_allocator *allocator, double memory_fraction)
{
    ms_allocator_settings *settings = &allocator->settings;
    settings->memory_fraction = memory_fraction;
    allocator->allowed = MS_UNLIMITED;
    if (memory_fraction < 1 && settings->total_memory != MS_UNLIMITED) {
        double allowed = memory_fraction * (double)settings->total_memory;
        allocator->allowed = (uint64_t)(settings->rounds_fraction ? allowed + 0.5 : allowed);
    }
}

void ms_allocator_set_capacity(ms_allocator *allocator, uint64_t capacity)
{
    allocator->settings.capacity = capacity;
}

int ms_allocator_apply(ms_allocator *allocator, const char *text, char *error, size_t room)
{
    int result = ms_allocator_settings_apply(&allocator->settings, text, error, room);
    ms_allocator_set_fraction(allocator, allocator->settings.memory_fraction);
    return result;
}

void ms_allocator_close(ms_allocator *allocator)
{
    if (!allocator)
        return;
    ms__free_pools(allocator);
    ms__free_memory(allocator);
    allocator->memory.free(allocator->memory.context, allocator);
}

/* ---- sizes ---- */
static unsigned floor_log2(uint64_t value)
{
    return 63u - (unsigned)__builtin_clzll(value);
}

static uint32_t divisions_for(const ms_allocator_settings *settings, uint64_t bytes)
{
    unsigned first = floor_log2(MS__SMALL_REQUEST), log2 = floor_log2(bytes), at = log2 > first ? log2 - first : 0;
    return settings->roundup_divisions[at < MS_ROUNDUP_INTERVALS ? at : MS_ROUNDUP_INTERVALS - 1];
}

uint64_t ms__round_size(const ms_allocator_settings *settings, uint64_t bytes)
{
    if (bytes < MS__MIN_BLOCK)
        return MS__MIN_BLOCK;
    uint32_t divisions = divisions_for(settings, bytes);
    if (divisions <= 1 || bytes <= (uint64_t)MS__MIN_BLOCK * divisions)
        return (bytes + MS__MIN_BLOCK - 1) / MS__MIN_BLOCK * MS__MIN_BLOCK;
    uint64_t power = UINT64_C(1) << floor_log2(bytes), step = power >> floor_log2(divisions);
    if (power == bytes)
        return bytes;
    return step ? (bytes + step - 1) / step * step : power * 2;
}

static uint64_t segment_size(const ms_allocator_settings *settings, uint64_t size)
{
    if (size <= MS__SMALL_REQUEST)
        return MS__SMALL_SEGMENT;
    if (size < MS__MIN_LARGE_SEGMENT)
        return settings->large_segment_size;
    return (size + MS__SEGMENT_ROUNDING - 1) / MS__SEGMENT_ROUNDING * MS__SEGMENT_ROUNDING;
}

/* ---- free ---- */

/* The statistics of free blocks in segments that are partly given leave expandable segments out, as torch's do. */
static void count_inactive_split(ms_allocator *allocator, const struct ms_allocation *block, int64_t count,
                                 int64_t bytes)
{
    ms_allocator_stats *stats = &allocator->stats;
    if (block->segment->expandable)
        return;
    if (count > 0)
        ms__stats_add(stats->inactive_split, block->pool, (uint64_t)count);
    else if (count < 0)
        ms__stats_remove(stats->inactive_split, block->pool, (uint64_t)-count);
    if (bytes > 0)
        ms__stats_add(stats->inactive_split_bytes, block->pool, (uint64_t)bytes);
    else if (bytes < 0)
        ms__stats_remove(stats->inactive_split_bytes, block->pool, (uint64_t)-bytes);
}

static void make_free(ms_allocator *allocator, struct ms_allocation *block)
{
    ms_allocator_stats *stats = &allocator->stats;
    ms__stats_remove(stats->active, block->pool, 1);
    ms__stats_remove(stats->active_bytes, block->pool, block->size);
    ms__stats_remove(stats->requested_bytes, block->pool, block->requested);
    uint64_t before = ms__join(allocator, block, block->previous);
    uint64_t after = ms__join(allocator, block, block->next);
    int64_t count = -(before > 0) - (after > 0), bytes = -(int64_t)(before + after);
    if (ms__is_split(block)) {
        count++;
        bytes += (int64_t)block->size;
    }
    count_inactive_split(allocator, block, count, bytes);
    ms__insert_free(allocator, block);
}

void ms_allocator_free(ms_allocator *allocator, ms_allocation *block)
{
    if (!block)
        return;
    ms_allocator_stats *stats = &allocator->stats;
    ms__stats_remove(stats->allocations, block->pool, 1);
    ms__stats_remove(stats->allocated_bytes, block->pool, block->size);
    if (block->size >= allocator->settings.max_split_size)
        ms__stat_remove(&stats->oversize_allocations, 1);
    block->given = false;
    if (block->used_elsewhere) {
        block->listed = allocator->waiting;
        allocator->waiting = block;
    } else {
        make_free(allocator, block);
    }
}

void ms__finish_events(ms_allocator *allocator)
{
    /* In the order in which they were freed. */
    struct ms_allocation *ordered = NULL;
    while (allocator->waiting) {
        struct ms_allocation *block = allocator->waiting;
        allocator->waiting = block->listed;
        block->listed = ordered;
        ordered = block;
    }
    while (ordered) {
        struct ms_allocation *block = ordered;
        ordered = block->listed;
        block->used_elsewhere = false;
        make_free(allocator, block);
    }
}

void ms_allocator_record_stream(ms_allocation *block, uint64_t stream)
{
    if (block && stream != block->stream)
        block->used_elsewhere = true;
}

void ms_allocator_delay_events(ms_allocator *allocator, bool delay)
{
    allocator->delay_events = delay;
}

void ms_allocator_synchronize(ms_allocator *allocator)
{
    ms__finish_events(allocator);
}

int ms_allocator_empty_cache(ms_allocator *allocator)
{
    allocator->stats.synchronizations++;
    ms__finish_events(allocator);
    return ms__release_free(allocator, MS__EVERY_POOL) ? MS_OK : MS_ENOMEM;
}

/* ---- requests ---- */
static bool should_split(const ms_allocator *allocator, const struct ms_allocation *block, uint64_t size)
{
    uint64_t rest = block->size - size;
    const struct ms__private_pool *pool = ms__find_pool(allocator, ms_pool_of_stream(block->stream));
    if (pool && pool->flags & MS_POOL_NO_SPLIT)
        return false;
    if (block->pool->small || allocator->settings.expandable_segments)
        return rest >= MS__MIN_BLOCK;
    return size < allocator->settings.max_split_size && rest > MS__SMALL_REQUEST;
}

struct ms_allocation *ms__split(ms_allocator *allocator, struct ms_allocation *rest, uint64_t size)
{
    bool was_split = ms__is_split(rest);
    struct ms_allocation *block = ms__make_block(allocator, rest, rest->address, size);
    block->previous = rest->previous;
    if (block->previous)
        block->previous->next = block;
    block->next = rest;
    rest->previous = block;
    rest->address += size;
    rest->size -= size;
    ms__insert_free(allocator, rest);
    if (was_split)
        count_inactive_split(allocator, rest, 0, -(int64_t)size);
    else
        count_inactive_split(allocator, rest, 1, (int64_t)rest->size);
    return block;
}

/* When no free block fits: take memory from the GPU; if it has none, give back what is free, and try again. */
static int take_memory(ms_allocator *allocator, const struct ms__request *request, struct ms_allocation **block)
{
    if (allocator->allowed != MS_UNLIMITED && allocator->settings.garbage_collection_threshold > 0)
        ms__collect_garbage(allocator);
    if ((*block = ms__take_segment(allocator, request)) != NULL)
        return MS_OK;
    if ((*block = ms__take_on_oom(allocator, request)) != NULL)
        return MS_OK;
    if (ms__release_oversize(allocator, request) && (*block = ms__take_segment(allocator, request)) != NULL)
        return MS_OK;
    if (ms_pool_of_stream(request->stream))
        return MS_EDEVICE;
    int error = ms_allocator_empty_cache(allocator);
    if (error || !ms__reserve_blocks(allocator, 4))
        return MS_ENOMEM;
    allocator->stats.retries++;
    *block = ms__take_segment(allocator, request);
    return *block ? MS_OK : MS_EDEVICE;
}

void ms__give(ms_allocator *allocator, struct ms_allocation *block, uint64_t requested)
{
    ms_allocator_stats *stats = &allocator->stats;
    block->given = true;
    block->requested = requested;
    ms__stats_add(stats->allocations, block->pool, 1);
    ms__stats_add(stats->allocated_bytes, block->pool, block->size);
    ms__stats_add(stats->active, block->pool, 1);
    ms__stats_add(stats->active_bytes, block->pool, block->size);
    ms__stats_add(stats->requested_bytes, block->pool, requested);
    if (block->size >= allocator->settings.max_split_size)
        ms__stat_add(&stats->oversize_allocations, 1);
}

/* A whole free block is given to the program. */
static void leave_free(ms_allocator *allocator, const struct ms_allocation *block)
{
    if (ms__is_split(block))
        count_inactive_split(allocator, block, -1, -(int64_t)block->size);
}

int ms_allocator_malloc(ms_allocator *allocator, uint64_t bytes, uint64_t stream, ms_allocation **allocation)
{
    *allocation = NULL;
    if (!bytes)
        return MS_OK;
    ms_allocator_stats *stats = &allocator->stats;
    if (bytes > MAX_REQUEST) {
        stats->failures++;
        return MS_EDEVICE;
    }
    /* A request makes at most four blocks: a new segment, what stays unmapped of it, the block itself and the rest. */
    uint64_t pool = ms_pool_of_stream(stream);
    if (!ms__reserve_blocks(allocator, 4) ||
        (pool && !ms__find_pool(allocator, pool) && ms_allocator_hold_pool(allocator, pool, 0) != MS_OK))
        return MS_ENOMEM;
    if (allocator->waiting && !allocator->delay_events && !pool)
        ms__finish_events(allocator);
    uint64_t size = ms__round_size(&allocator->settings, bytes);
    struct ms__request request = {
        .bytes = bytes,
        .size = size,
        .segment_size = segment_size(&allocator->settings, size),
        .stream = stream,
        .pool = size <= MS__SMALL_REQUEST ? &allocator->small : &allocator->large,
    };
    struct ms_allocation *block = ms__take_free(allocator, &request);
    if (!block) {
        int error = take_memory(allocator, &request, &block);
        if (error) {
            stats->failures += error == MS_EDEVICE;
            return error;
        }
    }
    if (should_split(allocator, block, size))
        block = ms__split(allocator, block, size);
    else
        leave_free(allocator, block);
    ms__give(allocator, block, bytes);
    *allocation = block;
    return MS_OK;
}

static struct ms_allocation *free_block_at(const ms_allocator *allocator, uint64_t stream, uint64_t address,
                                           uint64_t size)
{
    for (struct ms__slab *slab = allocator->slabs; slab; slab = slab->next)
        for (int i = 0; i < MS__SLAB_BLOCKS; i++) {
            struct ms_allocation *block = &slab->blocks[i];
            if (block->segment && block->mapped && !block->given && !block->used_elsewhere && block->stream == stream &&
                block->address <= address && address - block->address <= block->size &&
                size <= block->size - (address - block->address))
                return block;
        }
    return NULL;
}

int ms_allocator_malloc_at(ms_allocator *allocator, uint64_t bytes, uint64_t stream, uint64_t address,
                           ms_allocation **allocation)
{
    *allocation = NULL;
    uint64_t size = bytes <= MAX_REQUEST ? ms__round_size(&allocator->settings, bytes) : MAX_REQUEST;
    struct ms_allocation *block = free_block_at(allocator, stream, address, size);
    if (!block || address % MS__MIN_BLOCK)
        return MS_EINVAL;
    if (!ms__reserve_blocks(allocator, 4))
        return MS_ENOMEM;
    ms__remove_free(block);
    if (address > block->address) {
        struct ms_allocation *before = ms__split(allocator, block, address - block->address);
        ms__remove_free(block);
        ms__insert_free(allocator, before);
        count_inactive_split(allocator, before, 1, (int64_t)before->size);
    }
    if (block->size > size)
        block = ms__split(allocator, block, size);
    else
        leave_free(allocator, block);
    ms__give(allocator, block, bytes);
    *allocation = block;
    return MS_OK;
}

uint64_t ms_allocation_bytes(const ms_allocation *allocation)
{
    return allocation->size;
}

uint64_t ms_allocation_address(const ms_allocation *allocation)
{
    return allocation->address;
}

uint64_t ms_allocation_requested(const ms_allocation *allocation)
{
    return allocation->requested;
}

/* ---- segments and statistics ---- */
void ms_allocator_on_segment(ms_allocator *allocator, ms_segment_function *function, void *context)
{
    allocator->on_segment = function;
    allocator->on_segment_context = context;
}

void ms_allocator_place_next(ms_allocator *allocator, uint64_t address)
{
    allocator->next_placed = address;
}

const ms_allocator_stats *ms_allocator_read(const ms_allocator *allocator)
{
    return &allocator->stats;
}

/* The statistics with a current value lie before the counters. */
enum { STAT_COUNT = offsetof(ms_allocator_stats, retries) / sizeof(ms_allocator_stat) };

void ms_allocator_reset_peaks(ms_allocator *allocator)
{
    ms_allocator_stat *stat = (ms_allocator_stat *)&allocator->stats;
    for (size_t i = 0; i < STAT_COUNT; i++)
        stat[i].peak = stat[i].now;
}

void ms_allocator_reset_accumulated(ms_allocator *allocator)
{
    ms_allocator_stats *stats = &allocator->stats;
    ms_allocator_stat *stat = (ms_allocator_stat *)stats;
    for (size_t i = 0; i < STAT_COUNT; i++)
        stat[i].total_added = stat[i].total_removed = 0;
    stats->retries = stats->failures = stats->synchronizations = 0;
    stats->device_allocs = stats->device_frees = 0;
}
