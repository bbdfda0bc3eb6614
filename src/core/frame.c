/* frame.c - what is open on a thread: calls, backward nodes, holds. */
#include "internal.h"

#include <string.h>

static int grow(ms_thread *thread)
{
    uint32_t room = thread->room ? thread->room * 2 : 64;
    struct ms__frame *frames = ms__alloc(thread->watch, room * sizeof *frames);
    if (!frames)
        return MS_ENOMEM;
    if (thread->depth)
        memcpy(frames, thread->frames, thread->depth * sizeof *frames);
    ms__free(thread->watch, thread->frames);
    thread->frames = frames;
    thread->room = room;
    return MS_OK;
}

/* The record that encloses what is entered next. */
static uint64_t encloser(const ms_thread *thread)
{
    for (uint32_t i = thread->depth; i-- > 0;)
        if (thread->frames[i].record != MS__NONE)
            return thread->frames[i].record;
    return MS__NONE;
}

/* The ring is about to come round to the outermost open record: end all the open ones
 * here and open them anew at the ring's end, so that what is open is never let go. */
static void renew(ms_thread *thread, uint64_t seq)
{
    uint64_t outer = MS__NONE;
    for (uint32_t i = thread->depth; i-- > 0;)
        if (thread->frames[i].record != MS__NONE)
            ms__table_end(&thread->table, thread->frames[i].record, seq);
    for (uint32_t i = 0; i < thread->depth; i++) {
        struct ms__frame *frame = &thread->frames[i];
        if (frame->record == MS__NONE)
            continue;
        frame->record = ms__table_push(thread->watch, &thread->table, seq, outer, frame->path);
        outer = frame->record;
    }
}

/* A call that could not be recorded may make nodes: until it ends nothing made from
 * now on can be placed. */
static void unrecorded(ms_thread *thread, uint64_t seq)
{
    if (thread->unrecorded++ == 0)
        atomic_store_explicit(&thread->table.unsure_from, seq, memory_order_release);
    ms__count_lost(thread->watch);
}

static void recorded_again(ms_thread *thread, uint64_t seq)
{
    if (--thread->unrecorded > 0)
        return;
    atomic_store_explicit(&thread->table.unsure_below, seq, memory_order_release);
    atomic_store_explicit(&thread->table.unsure_from, UINT64_MAX, memory_order_release);
}

static int enter(ms_thread *thread, enum ms__kind kind, ms_path path, uint64_t seq)
{
    if (MS__UNLIKELY(thread->unframed || (thread->depth == thread->room && grow(thread) != MS_OK))) {
        thread->unframed++;
        unrecorded(thread, seq);
        return MS_ENOMEM;
    }
    uint64_t record = MS__NONE;
    int error = MS_OK;
    if (kind != MS__HOLD) {
        struct ms__table *table = &thread->table;
        uint64_t count = atomic_load_explicit(&table->count, memory_order_relaxed);
        if (MS__UNLIKELY(thread->depth && count - thread->frames[0].record >= table->kept - 1 &&
                         thread->frames[0].record != MS__NONE && thread->depth < table->kept / 4))
            renew(thread, seq);
        record = ms__table_push(thread->watch, table, seq, encloser(thread), path);
        if (MS__UNLIKELY(record == MS__NONE)) {
            unrecorded(thread, seq);
            error = MS_ENOMEM;
        }
    }
    thread->frames[thread->depth++] = (struct ms__frame){record, path, kind};
    thread->nodes_open += kind == MS__NODE;
    return error;
}

static int leave(ms_thread *thread, enum ms__kind kind, uint64_t seq)
{
    if (MS__UNLIKELY(thread->unframed)) {
        thread->unframed--;
        recorded_again(thread, seq);
        return MS_OK;
    }
    if (!thread->depth || thread->frames[thread->depth - 1].kind != kind)
        return MS_EEMPTY;
    const struct ms__frame *frame = &thread->frames[--thread->depth];
    thread->nodes_open -= kind == MS__NODE;
    if (kind == MS__HOLD)
        return MS_OK;
    if (MS__UNLIKELY(frame->record == MS__NONE))
        recorded_again(thread, seq);
    else
        ms__table_end(&thread->table, frame->record, seq);
    return MS_OK;
}

int ms_call_enter(ms_thread *thread, ms_path path, uint64_t seq)
{
    return enter(thread, MS__CALL, path, seq);
}

int ms_call_leave(ms_thread *thread, uint64_t seq)
{
    return leave(thread, MS__CALL, seq);
}

/* The table of the thread that made a node: mostly the same one as for the last node. */
static ms_path path_of_node(ms_thread *thread, uint64_t maker, uint64_t number)
{
    if (number == MS_NO_NUMBER)
        return MS_GLOBAL;
    if (MS__UNLIKELY(maker != thread->maker_id || !thread->maker)) {
        bool gone = false;
        ms_thread *found = ms__thread_find(thread->watch, maker, &gone);
        if (!found)
            return gone ? MS_UNKNOWN : MS_GLOBAL;
        thread->maker = found;
        thread->maker_id = maker;
        thread->hint = 0;
    }
    ms_path path = ms__table_find(&thread->maker->table, number, &thread->hint);
    /* Ended threads are let go by giving their table to a new one. */
    if (MS__UNLIKELY(atomic_load_explicit(&thread->maker->id, memory_order_acquire) != maker)) {
        thread->maker = NULL;
        return MS_UNKNOWN;
    }
    return path;
}

int ms_node_enter(ms_thread *thread, uint64_t maker, uint64_t number, uint64_t seq)
{
    return enter(thread, MS__NODE, path_of_node(thread, maker, number), seq);
}

int ms_node_leave(ms_thread *thread, uint64_t seq)
{
    return leave(thread, MS__NODE, seq);
}

int ms_hold_enter(ms_thread *thread, ms_path path)
{
    return enter(thread, MS__HOLD, path, 0);
}

int ms_hold_leave(ms_thread *thread)
{
    return leave(thread, MS__HOLD, 0);
}

static ms_path path_by_any(ms_watch *watch, uint64_t number)
{
    ms_path answer = MS_GLOBAL;
    pthread_mutex_lock(&watch->lock);
    for (ms_thread *thread = watch->threads; thread; thread = thread->next) {
        uint64_t hint = 0;
        ms_path path = ms__table_find(&thread->table, number, &hint);
        if (path != MS_GLOBAL)
            answer = answer == MS_GLOBAL || answer == path ? path : MS_UNKNOWN;
    }
    pthread_mutex_unlock(&watch->lock);
    return answer;
}

ms_path ms_node_path(ms_watch *watch, uint64_t maker, uint64_t number)
{
    if (number == MS_NO_NUMBER)
        return MS_GLOBAL;
    if (maker == MS_ANY_THREAD)
        return path_by_any(watch, number);
    bool gone = false;
    ms_thread *thread = ms__thread_find(watch, maker, &gone);
    if (!thread)
        return gone ? MS_UNKNOWN : MS_GLOBAL;
    uint64_t hint = 0;
    ms_path path = ms__table_find(&thread->table, number, &hint);
    return atomic_load_explicit(&thread->id, memory_order_acquire) == maker ? path : MS_UNKNOWN;
}

ms_phase ms_thread_phase(const ms_thread *thread)
{
    if (!thread->depth)
        return MS_IDLE;
    if (thread->frames[thread->depth - 1].kind != MS__CALL)
        return MS_BACKWARD;
    return thread->nodes_open ? MS_RECOMPUTE : MS_FORWARD;
}

ms_path ms_thread_path(const ms_thread *thread)
{
    return thread->depth ? thread->frames[thread->depth - 1].path : MS_GLOBAL;
}

/* A call's path tells all the calls around it, and a call or hold inside a node
 * replaces the node's own path: it may be a recomputed sibling of what the node is in. */
static bool ends_context(const ms_thread *thread, uint32_t i)
{
    if (i + 1 == thread->depth)
        return true;
    uint32_t kind = thread->frames[i].kind, next = thread->frames[i + 1].kind;
    return next == MS__NODE || (next == MS__HOLD && kind == MS__CALL);
}

size_t ms_thread_contexts(const ms_thread *thread, ms_path *paths, size_t room)
{
    size_t count = 0;
    for (uint32_t i = 0; i < thread->depth; i++) {
        if (!ends_context(thread, i))
            continue;
        if (count < room)
            paths[count] = thread->frames[i].path;
        count++;
    }
    return count;
}

size_t ms_thread_depth(const ms_thread *thread)
{
    return thread->depth + thread->unframed;
}

const char *ms__thread_broken(const ms_thread *thread)
{
    const struct ms__table *table = &thread->table;
    uint64_t origin = atomic_load(&table->origin), low = atomic_load(&table->low), count = atomic_load(&table->count);
    if (origin > low || low > count || count - low > table->kept)
        return "origin <= low <= count <= low + kept";
    for (uint64_t i = low; i < count; i++) {
        const struct ms__record *record = ms__table_at(table, i);
        uint64_t outer = atomic_load(&record->encloser);
        if (i > low && atomic_load(&record->in) < atomic_load(&ms__table_at(table, i - 1)->in))
            return "records are sorted by where they begin";
        if (outer != MS__NONE && outer >= i)
            return "an encloser stands before what it encloses";
    }
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < thread->depth; i++)
        nodes += thread->frames[i].kind == MS__NODE;
    return nodes == thread->nodes_open ? NULL : "nodes_open counts the open nodes";
}
