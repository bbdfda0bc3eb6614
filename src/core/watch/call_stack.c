/* call_stack.c - what is open on a thread: calls, backward nodes, holds. */
#include "core/ledger/call_events.h"
#include "core/watch/node_lookup.h"
#include "core/watch/watch.h"

#include <string.h>

MS__RARE int grow(ms_thread *thread)
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

/* The record that encloses frame `at`. */
MS__INLINE uint64_t encloser(const ms_thread *thread, uint32_t at)
{
    while (at-- > 0)
        if (thread->frames[at].record < MS__PENDING)
            return thread->frames[at].record;
    return MS__NONE;
}

/* What has no frame may make nodes: until it ends nothing made from now on can be placed,
 * and after that nothing made meanwhile. */
MS__RARE void enter_unframed(ms_thread *thread, uint64_t seq)
{
    uint64_t unsure_to = MS__PEEK(thread->table.unsure_to);
    if (thread->unframed++ == 0)
        thread->unsure_to = unsure_to;
    ms__call_ring_unsure(&thread->table, seq, UINT64_MAX);
    ms__count_lost(thread->watch);
}

MS__RARE void leave_unframed(ms_thread *thread, uint64_t seq)
{
    if (seq > thread->unsure_to)
        thread->unsure_to = seq;
    if (--thread->unframed == 0)
        MS__STORE(thread->table.unsure_to, thread->unsure_to);
}

/* The ring is about to come round to the outermost open record: end all the open ones
 * here and open them anew at the ring's end, so that what is open is never let go. */
MS__RARE void renew(ms_thread *thread, uint64_t seq)
{
    for (uint32_t i = thread->depth; i-- > 0;)
        if (thread->frames[i].record < MS__PENDING)
            ms__call_ring_end(&thread->table, thread->frames[i].record, seq);
    for (uint32_t i = 0; i < thread->depth; i++) {
        struct ms__frame *frame = &thread->frames[i];
        if (frame->record < MS__PENDING)
            frame->record = ms__call_ring_push(&thread->table, seq, encloser(thread, i), frame->path);
    }
}

/* Give frame `at` its record. */
MS__INLINE void record(ms_thread *thread, uint32_t at)
{
    struct ms__frame *frame = &thread->frames[at];
    frame->record = ms__call_ring_push(&thread->table, frame->in, encloser(thread, at), frame->path);
}

/* Renew what is open if the ring is about to come round to it, and say when to ask again. */
MS__RARE void look_ahead(ms_thread *thread, uint64_t seq)
{
    uint64_t margin = thread->table.kept / 4;
    uint64_t count = MS__PEEK(thread->table.count), outermost = count;
    for (uint32_t i = thread->depth; i-- > 0;)
        if (thread->frames[i].record < MS__PENDING)
            outermost = thread->frames[i].record;
    /* A stack that fills the ring gains nothing from being copied to its end. */
    if (count - outermost >= thread->table.kept - margin && thread->depth < margin) {
        renew(thread, seq);
        outermost = count;
    }
    thread->look_ahead_at = outermost + thread->table.kept - margin;
    if (thread->look_ahead_at <= count)
        thread->look_ahead_at = count + margin;
}

/* Give the pending nodes their records, because nodes are made in them. */
MS__RARE void record_pending(ms_thread *thread)
{
    uint32_t at = thread->depth;
    for (uint32_t left = thread->pending; left; left -= thread->frames[at].record == MS__PENDING)
        at--;
    if (MS__PEEK(thread->table.count) >= thread->look_ahead_at)
        look_ahead(thread, thread->frames[at].in);
    for (; thread->pending; at++) {
        if (thread->frames[at].record != MS__PENDING)
            continue;
        thread->pending--;
        record(thread, at);
    }
    MS__STORE(thread->table.pending_in, UINT64_MAX);
}

MS__INLINE struct ms__frame *push(ms_thread *thread, enum ms__kind kind, ms_path path, uint64_t seq, uint64_t record)
{
    if (MS__UNLIKELY(thread->unframed || (thread->depth == thread->room && grow(thread) != MS_OK))) {
        enter_unframed(thread, seq);
        return NULL;
    }
    struct ms__frame *frame = &thread->frames[thread->depth++];
    *frame = (struct ms__frame){record, seq, path, kind};
    return frame;
}

/* The frame left, or NULL: *error says whether that is right. */
MS__INLINE struct ms__frame *pop(ms_thread *thread, enum ms__kind kind, uint64_t seq, int *error)
{
    *error = MS_OK;
    if (MS__UNLIKELY(thread->unframed)) {
        leave_unframed(thread, seq);
        return NULL;
    }
    if (MS__UNLIKELY(!thread->depth || thread->frames[thread->depth - 1].kind != kind)) {
        *error = MS_EUNBALANCED;
        return NULL;
    }
    return &thread->frames[--thread->depth];
}

int ms_call_enter(ms_thread *thread, ms_path path, uint64_t seq)
{
    if (MS__UNLIKELY(thread->pending))
        record_pending(thread);
    if (MS__UNLIKELY(MS__PEEK(thread->table.count) >= thread->look_ahead_at))
        look_ahead(thread, seq);
    if (MS__UNLIKELY(!push(thread, MS__CALL, path, seq, MS__NONE)))
        return MS_ENOMEM;
    record(thread, thread->depth - 1);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (MS__UNLIKELY(ledger != NULL))
        ms__on_call_enter(ledger, thread, path);
    return MS_OK;
}

/* A step that began inside what was just left is over. */
MS__INLINE void end_steps(ms_thread *thread)
{
    if (MS__UNLIKELY(thread->step_at > thread->depth + 1))
        thread->step_at = thread->steps_open = 0;
}

int ms_call_leave(ms_thread *thread, uint64_t seq)
{
    int error;
    const struct ms__frame *frame = pop(thread, MS__CALL, seq, &error);
    if (MS__UNLIKELY(!frame))
        return error;
    ms__call_ring_end(&thread->table, frame->record, seq);
    end_steps(thread);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (MS__UNLIKELY(ledger != NULL))
        ms__on_call_leave(ledger, thread);
    return MS_OK;
}

/* Any thread that recorded calls may have made the node: only where they agree is it known. */
MS__RARE ms_path path_by_any(ms_watch *watch, uint64_t number)
{
    ms_path answer = MS_GLOBAL;
    bool first = true;
    pthread_mutex_lock(&watch->lock);
    for (ms_thread *thread = watch->threads; thread; thread = thread->next) {
        if (ms__call_ring_empty(&thread->table))
            continue;
        uint64_t hint = 0, from, record;
        ms_path path = ms__call_ring_find(&thread->table, number, &hint, &from, &record);
        answer = first || answer == path ? path : MS_UNKNOWN;
        first = false;
    }
    if (watch->let_go)
        answer = MS_UNKNOWN;
    pthread_mutex_unlock(&watch->lock);
    return answer;
}

/* Look in another thread's table from now on. False: it is not there, and *path says what that means. */
MS__RARE bool turn_to(ms_thread *thread, uint64_t maker, uint64_t number, ms_path *path)
{
    bool gone = false;
    ms_thread *found = maker ? ms__thread_find(thread->watch, maker, &gone) : NULL;
    if (maker == MS_ANY_THREAD)
        *path = path_by_any(thread->watch, number);
    else
        *path = gone ? MS_UNKNOWN : MS_GLOBAL;
    thread->maker = found;
    thread->maker_id = found ? maker : MS__NOBODY;
    thread->hint = 0;
    thread->found_from = UINT64_MAX;
    thread->found_span = 0;
    return found != NULL;
}

/* Mostly made by the same thread as the node before. *record is the call's, in thread->maker's table. */
MS__INLINE ms_path path_of_node(ms_thread *thread, uint64_t maker, uint64_t number, uint64_t *record)
{
    *record = MS__NONE;
    if (number == MS_NO_NUMBER)
        return MS_GLOBAL;
    ms_path path;
    if (MS__UNLIKELY(maker != thread->maker_id) && !turn_to(thread, maker, number, &path))
        return path;
    if (number - thread->found_from <= thread->found_span) {
        *record = thread->found_record;
        return thread->found_path;
    }
    uint64_t from;
    path = ms__call_ring_find(&thread->maker->table, number, &thread->hint, &from, record);
    /* Ended threads are let go by giving their table to a new one. */
    if (MS__UNLIKELY(MS__LOAD(thread->maker->id) != maker)) {
        thread->maker_id = MS__NOBODY;
        *record = MS__NONE;
        return MS_UNKNOWN;
    }
    if (MS__LIKELY(path != MS_UNKNOWN)) {
        thread->found_from = from;
        thread->found_span = number - from;
        thread->found_record = *record;
        thread->found_path = path;
    }
    return path;
}

void ms__thread_settle(ms_thread *thread)
{
    if (thread->pending)
        record_pending(thread);
}

MS__INLINE void announce(ms_thread *thread, const struct ms__frame *frame)
{
    MS__STORE(thread->table.pending_path, frame->path);
    MS__STORE(thread->table.pending_in, frame->in);
}

MS__INLINE int enter_node(ms_thread *thread, ms_path path, uint64_t seq)
{
    if (MS__UNLIKELY(thread->pending && MS__PEEK(thread->table.pending_in) != seq))
        record_pending(thread);
    struct ms__frame *frame = push(thread, MS__NODE, path, seq, MS__PENDING);
    if (MS__UNLIKELY(!frame))
        return MS_ENOMEM;
    thread->pending++;
    thread->nodes_open++;
    announce(thread, frame);
    return MS_OK;
}

int ms_node_enter(ms_thread *thread, uint64_t maker, uint64_t number, uint64_t seq)
{
    uint64_t record;
    ms_path path = path_of_node(thread, maker, number, &record);
    int error = enter_node(thread, path, seq);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (MS__UNLIKELY(ledger != NULL) && error == MS_OK) {
        if (number == MS_NO_NUMBER)
            ms__on_node_enter_as(ledger, thread);
        else
            ms__on_node_enter(ledger, thread, record == MS__NONE ? NULL : thread->maker, record);
    }
    return error;
}

int ms_node_enter_as(ms_thread *thread, ms_path path, uint64_t seq)
{
    int error = enter_node(thread, path, seq);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (ledger && error == MS_OK)
        ms__on_node_enter_as(ledger, thread);
    return error;
}

/* The node below is the pending one again; it made no node yet, or it would have its record. */
MS__INLINE void announce_below(ms_thread *thread)
{
    uint32_t at = thread->depth;
    while (thread->pending && thread->frames[--at].record != MS__PENDING)
        ;
    if (thread->pending)
        announce(thread, &thread->frames[at]);
    else
        MS__STORE(thread->table.pending_in, UINT64_MAX);
}

MS__INLINE void node_left(ms_thread *thread)
{
    end_steps(thread);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (MS__UNLIKELY(ledger != NULL))
        ms__on_node_leave(ledger, thread);
}

int ms_node_leave(ms_thread *thread, uint64_t seq)
{
    /* Nearly always: one node runs, and it made none. */
    if (MS__LIKELY(thread->pending == 1 && !thread->unframed && MS__PEEK(thread->table.pending_in) == seq &&
                   thread->frames[thread->depth - 1].record == MS__PENDING)) {
        thread->depth--;
        thread->nodes_open--;
        thread->pending = 0;
        MS__STORE(thread->table.pending_in, UINT64_MAX);
        node_left(thread);
        return MS_OK;
    }
    if (MS__UNLIKELY(thread->pending && !thread->unframed && MS__PEEK(thread->table.pending_in) != seq))
        record_pending(thread);
    int error;
    const struct ms__frame *frame = pop(thread, MS__NODE, seq, &error);
    if (MS__UNLIKELY(!frame))
        return error;
    thread->nodes_open--;
    if (MS__LIKELY(frame->record == MS__PENDING)) {
        thread->pending--;
        announce_below(thread);
    } else {
        ms__call_ring_end(&thread->table, frame->record, seq);
    }
    node_left(thread);
    return MS_OK;
}

int ms_override_enter(ms_thread *thread, ms_path path)
{
    return push(thread, MS__OVERRIDE, path, UINT64_MAX, MS__NONE) ? MS_OK : MS_ENOMEM;
}

int ms_override_leave(ms_thread *thread)
{
    int error;
    pop(thread, MS__OVERRIDE, 0, &error);
    end_steps(thread);
    return error;
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
    uint64_t hint = 0, from, record;
    ms_path path = ms__call_ring_find(&thread->table, number, &hint, &from, &record);
    return atomic_load_explicit(&thread->id, memory_order_acquire) == maker ? path : MS_UNKNOWN;
}

void ms_optimizer_enter(ms_thread *thread)
{
    if (thread->steps_open++ == 0)
        thread->step_at = thread->depth + 1;
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (ledger)
        ms__on_optimizer_step(ledger, thread, false);
}

void ms_optimizer_leave(ms_thread *thread)
{
    if (!thread->steps_open)
        return;
    if (--thread->steps_open == 0)
        thread->step_at = 0;
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (ledger)
        ms__on_optimizer_step(ledger, thread, true);
}

ms_phase ms_thread_phase(const ms_thread *thread)
{
    return ms__phase(thread);
}

ms_path ms_thread_path(const ms_thread *thread)
{
    return ms__path_of(thread);
}

/* A call's path tells all the calls around it, and a call or hold inside a node
 * replaces the node's own path: it may be a recomputed sibling of what the node is in. */
static bool ends_context(const ms_thread *thread, uint32_t i)
{
    if (i + 1 == thread->depth)
        return true;
    uint32_t kind = thread->frames[i].kind, next = thread->frames[i + 1].kind;
    return next == MS__NODE || (next == MS__OVERRIDE && kind == MS__CALL);
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

const char *ms__thread_check(const ms_thread *thread)
{
    const struct ms__call_ring *table = &thread->table;
    uint64_t origin = atomic_load(&table->origin), low = atomic_load(&table->low), count = atomic_load(&table->count);
    if (origin > low || low > count || count - low > table->kept)
        return "origin <= low <= count <= low + kept";
    for (uint64_t i = low; i < count; i++) {
        const struct ms__record *record = ms__call_ring_at(table, i);
        uint64_t outer = atomic_load(&record->encloser);
        if (i > low && atomic_load(&record->in) < atomic_load(&ms__call_ring_at(table, i - 1)->in))
            return "records are sorted by where they begin";
        if (outer != MS__NONE && outer >= i)
            return "an encloser stands before what it encloses";
    }
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < thread->depth; i++)
        nodes += thread->frames[i].kind == MS__NODE;
    return nodes == thread->nodes_open ? NULL : "nodes_open counts the open nodes";
}
