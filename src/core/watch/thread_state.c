/* thread_state.c - what a thread is doing, read from its call stack; and the check of its invariants. */
#include "core/watch/watch.h"

const char *ms_phase_name(ms_phase phase)
{
    switch (phase) {
#define X(name, text) \
    case MS_##name:   \
        return text;
        MS_PHASES(X)
#undef X
    default:
        return "no such phase";
    }
}

MS__HOT ms_phase ms_thread_phase(const ms_thread *thread)
{
    return ms__phase(thread);
}

ms_path ms_thread_path(const ms_thread *thread)
{
    return ms__path_of(thread);
}

/* Whether frame i is the innermost of its context. A call inside a call continues the context, because its path
 * includes the outer path. A call or override inside a node continues it too, because it replaces the node's path: a
 * recomputed call may be of another module than the node. A node, or an override inside a call, begins a context. */
static bool ends_context(const ms_thread *thread, uint32_t i)
{
    if (i + 1 == thread->depth)
        return true;
    uint32_t kind = thread->frames[i].kind, next = thread->frames[i + 1].kind;
    return next == MS__NODE || (next == MS__OVERRIDE && kind == MS__CALL);
}

size_t ms_thread_contexts(const ms_thread *thread, ms_path *paths, size_t capacity)
{
    size_t count = 0;
    for (uint32_t i = 0; i < thread->depth; i++) {
        if (!ends_context(thread, i))
            continue;
        if (count < capacity)
            paths[count] = thread->frames[i].path;
        count++;
    }
    return count;
}

size_t ms_thread_depth(const ms_thread *thread)
{
    return thread->depth + thread->unpushed;
}

const char *ms__thread_check(const ms_thread *thread)
{
    const struct ms__call_ring *ring = &thread->ring;
    uint64_t first = atomic_load(&ring->first), oldest = atomic_load(&ring->oldest), end = atomic_load(&ring->end);
    if (first > oldest || oldest > end || end - oldest > ring->capacity)
        return "first <= oldest <= end <= oldest + capacity";
    for (uint64_t i = oldest; i < end; i++) {
        const struct ms__call_record *record = ms__call_ring_at(ring, i);
        uint64_t outer = atomic_load(&record->outer);
        if (i > oldest && atomic_load(&record->begin) < atomic_load(&ms__call_ring_at(ring, i - 1)->begin))
            return "records are sorted by begin";
        if (outer != MS__NONE && outer >= i)
            return "the index of an outer record is lower";
    }
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < thread->depth; i++)
        nodes += thread->frames[i].kind == MS__NODE;
    return nodes == thread->nodes_open ? NULL : "nodes_open is the number of open nodes";
}
