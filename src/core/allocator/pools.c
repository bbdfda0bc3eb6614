/* pools.c - private pools: who uses them, and what that lets the allocator do with their memory. */
#include "core/allocator/model.h"

struct ms__private_pool *ms__find_pool(const ms_allocator *allocator, uint64_t number)
{
    struct ms__private_pool *pool = number ? allocator->private_pools : NULL;
    while (pool && pool->number != number)
        pool = pool->next;
    return pool;
}

void ms__free_pools(ms_allocator *allocator)
{
    while (allocator->private_pools) {
        struct ms__private_pool *pool = allocator->private_pools;
        allocator->private_pools = pool->next;
        allocator->memory.free(allocator->memory.context, pool);
    }
}

int ms_allocator_hold_pool(ms_allocator *allocator, uint64_t number, unsigned flags)
{
    struct ms__private_pool *pool = ms__find_pool(allocator, number);
    if (!number)
        return MS_OK;
    if (!pool) {
        struct ms__private_pool **last = &allocator->private_pools;
        pool = allocator->memory.alloc(allocator->memory.context, sizeof *pool);
        if (!pool)
            return MS_ENOMEM;
        *pool = (struct ms__private_pool){.number = number};
        while (*last)
            last = &(*last)->next;
        *last = pool;
    }
    pool->users++;
    pool->flags |= flags;
    return MS_OK;
}

void ms_allocator_release_pool(ms_allocator *allocator, uint64_t number)
{
    struct ms__private_pool *pool = ms__find_pool(allocator, number);
    if (pool && pool->users)
        pool->users--;
}

int ms_allocator_empty_pool(ms_allocator *allocator, uint64_t number)
{
    const struct ms__private_pool *pool = ms__find_pool(allocator, number);
    if (!pool || pool->users)
        return MS_OK;
    allocator->stats.synchronizations++;
    ms__finish_events(allocator);
    return ms__release_free(allocator, number) ? MS_OK : MS_ENOMEM;
}

bool ms__may_give_back(const ms_allocator *allocator, uint64_t stream)
{
    const struct ms__private_pool *pool = ms__find_pool(allocator, ms_pool_of_stream(stream));
    return !pool || !pool->users;
}

struct ms_allocation *ms__take_on_oom(ms_allocator *allocator, const struct ms__request *request)
{
    struct ms_allocation *block = NULL;
    const struct ms__private_pool *pool = allocator->private_pools;
    if (ms_pool_of_stream(request->stream))
        return NULL;
    for (; pool && !block; pool = pool->next) {
        struct ms__request of_pool = *request;
        of_pool.stream = ms_stream_in_pool(request->stream, pool->number);
        if (pool->flags & MS_POOL_ON_OOM)
            block = ms__take_free(allocator, &of_pool);
    }
    return block;
}

int ms_allocator_log_pool(ms_allocator *allocator, ms_log_kind kind, uint64_t value)
{
    uint64_t pool = value & ((1U << MS_LOG_POOL_BITS) - 1), flags = value >> MS_LOG_POOL_BITS;
    if (kind == MS_LOG_HOLD)
        return ms_allocator_hold_pool(allocator, pool, (unsigned)flags);
    ms_allocator_release_pool(allocator, pool);
    return flags ? ms_allocator_empty_pool(allocator, pool) : MS_OK;
}
