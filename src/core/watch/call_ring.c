/* call_ring.c - opening, closing and clearing a thread's call ring. */
#include "core/watch/watch.h"

int ms__call_ring_open(ms_watch *watch, struct ms__call_ring *ring, uint32_t capacity)
{
    ring->records = ms__alloc(watch, capacity * sizeof *ring->records);
    if (!ring->records)
        return MS_ENOMEM;
    ring->capacity = capacity;
    MS__STORE(ring->unknown_from, UINT64_MAX);
    MS__STORE(ring->unrecorded_from, UINT64_MAX);
    return MS_OK;
}

void ms__call_ring_close(ms_watch *watch, struct ms__call_ring *ring)
{
    ms__free(watch, ring->records);
    ms__free(watch, ring->call_refs);
}

void ms__call_ring_clear(struct ms__call_ring *ring)
{
    uint64_t end = MS__PEEK(ring->end);
    MS__STORE(ring->oldest, end);
    MS__STORE(ring->first, end);
    MS__STORE(ring->unknown_from, UINT64_MAX);
    MS__STORE(ring->unknown_to, 0);
    MS__STORE(ring->unrecorded_from, UINT64_MAX);
}
