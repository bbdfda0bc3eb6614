/* call_ring.c - opening, closing and clearing a thread's table of calls. */
#include "core/watch/watch.h"

int ms__call_ring_open(ms_watch *watch, struct ms__call_ring *table, uint32_t kept)
{
    table->records = ms__alloc(watch, kept * sizeof *table->records);
    if (!table->records)
        return MS_ENOMEM;
    table->kept = kept;
    MS__STORE(table->unsure_from, UINT64_MAX);
    MS__STORE(table->pending_in, UINT64_MAX);
    return MS_OK;
}

void ms__call_ring_close(ms_watch *watch, struct ms__call_ring *table)
{
    ms__free(watch, table->records);
    ms__free(watch, table->call_refs);
}

void ms__call_ring_clear(struct ms__call_ring *table)
{
    uint64_t count = MS__PEEK(table->count);
    MS__STORE(table->low, count);
    MS__STORE(table->origin, count);
    MS__STORE(table->unsure_from, UINT64_MAX);
    MS__STORE(table->unsure_to, 0);
    MS__STORE(table->pending_in, UINT64_MAX);
}
