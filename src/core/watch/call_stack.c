/* call_stack.c - the stack of what is open on a thread: calls, backward nodes and overrides. Entering and
 * leaving also writes the thread's call ring, and reports to the ledger that is attached. */
#include "core/ledger/call_events.h"
#include "core/watch/node_lookup.h"
#include "core/watch/watch.h"

#include <string.h>

MS__RARE int grow_frames(ms_thread *thread)
{
    uint32_t capacity = thread->capacity ? thread->capacity * 2 : 64;
    struct ms__frame *frames = ms__alloc(thread->watch, capacity * sizeof *frames);
    if (!frames)
        return MS_ENOMEM;
    if (thread->depth)
        memcpy(frames, thread->frames, thread->depth * sizeof *frames);
    ms__free(thread->watch, thread->frames);
    thread->frames = frames;
    thread->capacity = capacity;
    return MS_OK;
}

/* The record of the call or node around frame `at`, or MS__NONE. */
MS__INLINE uint64_t find_outer_record(const ms_thread *thread, uint32_t at)
{
    while (at-- > 0)
        if (thread->frames[at].record < MS__UNRECORDED)
            return thread->frames[at].record;
    return MS__NONE;
}

/* A call we failed to push may still create nodes. Mark every node created until it ends as unknown. */
MS__RARE void enter_unpushed(ms_thread *thread, uint64_t next_number)
{
    uint64_t unknown_to = MS__PEEK(thread->ring.unknown_to);
    if (thread->unpushed++ == 0)
        thread->saved_unknown_to = unknown_to;
    ms__call_ring_mark_unknown(&thread->ring, next_number, UINT64_MAX);
    ms__count_lost(thread->watch);
}

MS__RARE void leave_unpushed(ms_thread *thread, uint64_t next_number)
{
    if (next_number > thread->saved_unknown_to)
        thread->saved_unknown_to = next_number;
    if (--thread->unpushed == 0)
        MS__STORE(thread->ring.unknown_to, thread->saved_unknown_to);
}

/* The ring is about to overwrite the outermost open record. End all open records here, and push new ones for
 * the same calls, so that a call never loses its record while it is open. */
MS__RARE void renew_open_records(ms_thread *thread, uint64_t next_number)
{
    for (uint32_t i = thread->depth; i-- > 0;)
        if (thread->frames[i].record < MS__UNRECORDED)
            ms__call_ring_end(&thread->ring, thread->frames[i].record, next_number);
    for (uint32_t i = 0; i < thread->depth; i++) {
        struct ms__frame *frame = &thread->frames[i];
        if (frame->record < MS__UNRECORDED)
            frame->record = ms__call_ring_push(&thread->ring, next_number, find_outer_record(thread, i), frame->path);
    }
}

/* Push the record of frame `at`. */
MS__INLINE void push_record(ms_thread *thread, uint32_t at)
{
    struct ms__frame *frame = &thread->frames[at];
    frame->record = ms__call_ring_push(&thread->ring, frame->begin, find_outer_record(thread, at), frame->path);
}

/* Renew the open records if the ring is about to overwrite one, and compute when to check again. */
MS__RARE void renew_if_needed(ms_thread *thread, uint64_t next_number)
{
    uint64_t margin = thread->ring.capacity / 4;
    uint64_t end = MS__PEEK(thread->ring.end), outermost = end;
    for (uint32_t i = thread->depth; i-- > 0;)
        if (thread->frames[i].record < MS__UNRECORDED)
            outermost = thread->frames[i].record;
    /* A stack deeper than the margin would fill the ring with copies of itself. */
    if (end - outermost >= thread->ring.capacity - margin && thread->depth < margin) {
        renew_open_records(thread, next_number);
        outermost = end;
    }
    thread->renew_check_at = outermost + thread->ring.capacity - margin;
    if (thread->renew_check_at <= end)
        thread->renew_check_at = end + margin;
}

/* Push the records of the open nodes that have none, because nodes were created in them. */
MS__RARE void record_nodes(ms_thread *thread)
{
    uint32_t at = thread->depth;
    for (uint32_t left = thread->unrecorded; left; left -= thread->frames[at].record == MS__UNRECORDED)
        at--;
    if (MS__PEEK(thread->ring.end) >= thread->renew_check_at)
        renew_if_needed(thread, thread->frames[at].begin);
    for (; thread->unrecorded; at++) {
        if (thread->frames[at].record != MS__UNRECORDED)
            continue;
        thread->unrecorded--;
        push_record(thread, at);
    }
    MS__STORE(thread->ring.unrecorded_from, UINT64_MAX);
}

MS__INLINE struct ms__frame *push_frame(ms_thread *thread, enum ms__frame_kind kind, ms_path path, uint64_t next_number,
                                        uint64_t record)
{
    if (MS__UNLIKELY(thread->unpushed || (thread->depth == thread->capacity && grow_frames(thread) != MS_OK))) {
        enter_unpushed(thread, next_number);
        return NULL;
    }
    struct ms__frame *frame = &thread->frames[thread->depth++];
    *frame = (struct ms__frame){record, next_number, path, kind};
    return frame;
}

/* Pop the innermost frame. NULL if it is of another kind (*error is MS_EUNBALANCED), or if it had not been
 * pushed for lack of memory (*error is MS_OK). */
MS__INLINE struct ms__frame *pop_frame(ms_thread *thread, enum ms__frame_kind kind, uint64_t next_number, int *error)
{
    *error = MS_OK;
    if (MS__UNLIKELY(thread->unpushed)) {
        leave_unpushed(thread, next_number);
        return NULL;
    }
    if (MS__UNLIKELY(!thread->depth || thread->frames[thread->depth - 1].kind != kind)) {
        *error = MS_EUNBALANCED;
        return NULL;
    }
    return &thread->frames[--thread->depth];
}

MS__HOT int ms_call_enter(ms_thread *thread, ms_path path, uint64_t next_number)
{
    if (MS__UNLIKELY(thread->unrecorded))
        record_nodes(thread);
    if (MS__UNLIKELY(MS__PEEK(thread->ring.end) >= thread->renew_check_at))
        renew_if_needed(thread, next_number);
    if (MS__UNLIKELY(!push_frame(thread, MS__CALL, path, next_number, MS__NONE)))
        return MS_ENOMEM;
    push_record(thread, thread->depth - 1);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (MS__UNLIKELY(ledger != NULL))
        ms__on_call_enter(ledger, thread, path);
    return MS_OK;
}

int ms_call_enter_without_grad(ms_thread *thread, ms_path path, uint64_t next_number)
{
    thread->without_grad = true;
    int error = ms_call_enter(thread, path, next_number);
    thread->without_grad = false;
    return error;
}

/* End the optimizer steps that began inside the call, node or override that was just left: an exception may
 * have skipped their ms_optimizer_leave. */
MS__INLINE void end_optimizer_steps(ms_thread *thread)
{
    if (MS__UNLIKELY(thread->optimizer_at > thread->depth + 1))
        thread->optimizer_at = thread->optimizer_steps_open = 0;
}

MS__HOT int ms_call_leave(ms_thread *thread, uint64_t next_number)
{
    int error;
    const struct ms__frame *frame = pop_frame(thread, MS__CALL, next_number, &error);
    if (MS__UNLIKELY(!frame))
        return error;
    ms__call_ring_end(&thread->ring, frame->record, next_number);
    end_optimizer_steps(thread);
    if (MS__UNLIKELY(thread->evaluation_at > thread->depth))
        thread->evaluation_at = 0;
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (MS__UNLIKELY(ledger != NULL))
        ms__on_call_leave(ledger, thread);
    return MS_OK;
}

/* Every thread that recorded calls may be the creator, so the path is known only where all of them agree. */
MS__RARE ms_path find_path_in_any_thread(ms_watch *watch, uint64_t number)
{
    ms_path answer = MS_GLOBAL;
    bool first = true;
    pthread_mutex_lock(&watch->lock);
    for (ms_thread *thread = watch->threads; thread; thread = thread->next) {
        if (ms__call_ring_empty(&thread->ring))
            continue;
        uint64_t start = 0, from, record;
        ms_path path = ms__call_ring_find(&thread->ring, number, &start, &from, &record);
        answer = first || answer == path ? path : MS_UNKNOWN;
        first = false;
    }
    if (watch->discarded)
        answer = MS_UNKNOWN;
    pthread_mutex_unlock(&watch->lock);
    return answer;
}

/* Look up nodes of this creator from now on. False if the watch does not know the thread: *path is then the
 * answer. */
MS__RARE bool select_creator(ms_thread *thread, uint64_t creator, uint64_t number, ms_path *path)
{
    bool discarded = false;
    ms_thread *found = creator ? ms__thread_find(thread->watch, creator, &discarded) : NULL;
    if (creator == MS_ANY_THREAD)
        *path = find_path_in_any_thread(thread->watch, number);
    else
        *path = discarded ? MS_UNKNOWN : MS_GLOBAL;
    thread->lookup.creator = found;
    thread->lookup.creator_id = found ? creator : MS__NO_THREAD;
    thread->lookup.start = 0;
    thread->lookup.from = UINT64_MAX;
    thread->lookup.span = 0;
    return found != NULL;
}

/* The path of the call in which the node was created. Its creator is usually that of the node before. *record is
 * the index of the call's record in the ring of thread->lookup.creator, or MS__NONE. */
MS__INLINE ms_path find_node_path(ms_thread *thread, uint64_t creator, uint64_t number, uint64_t *record)
{
    *record = MS__NONE;
    if (number == MS_NO_NUMBER)
        return MS_GLOBAL;
    ms_path path;
    if (MS__UNLIKELY(creator != thread->lookup.creator_id) && !select_creator(thread, creator, number, &path))
        return path;
    if (number - thread->lookup.from <= thread->lookup.span) {
        *record = thread->lookup.record;
        return thread->lookup.path;
    }
    uint64_t from;
    path = ms__call_ring_find(&thread->lookup.creator->ring, number, &thread->lookup.start, &from, record);
    /* The creator has ended, and a new thread has taken over its ring: the watch no longer knows the creator. */
    if (MS__UNLIKELY(MS__LOAD(thread->lookup.creator->id) != creator)) {
        *record = MS__NONE;
        select_creator(thread, creator, number, &path);
        return path;
    }
    if (MS__LIKELY(path != MS_UNKNOWN)) {
        thread->lookup.from = from;
        thread->lookup.span = number - from;
        thread->lookup.record = *record;
        thread->lookup.path = path;
    }
    return path;
}

void ms__thread_record_nodes(ms_thread *thread)
{
    if (thread->unrecorded)
        record_nodes(thread);
}

/* Tell readers of the ring that nodes created from now on belong to this frame. */
MS__INLINE void publish_unrecorded(ms_thread *thread, const struct ms__frame *frame)
{
    MS__STORE(thread->ring.unrecorded_path, frame->path);
    MS__STORE(thread->ring.unrecorded_from, frame->begin);
}

MS__INLINE int enter_node(ms_thread *thread, ms_path path, uint64_t next_number)
{
    if (MS__UNLIKELY(thread->unrecorded && MS__PEEK(thread->ring.unrecorded_from) != next_number))
        record_nodes(thread);
    struct ms__frame *frame = push_frame(thread, MS__NODE, path, next_number, MS__UNRECORDED);
    if (MS__UNLIKELY(!frame))
        return MS_ENOMEM;
    thread->unrecorded++;
    thread->nodes_open++;
    publish_unrecorded(thread, frame);
    return MS_OK;
}

MS__HOT int ms_node_enter(ms_thread *thread, uint64_t creator, uint64_t number, uint64_t next_number)
{
    uint64_t record;
    ms_path path = find_node_path(thread, creator, number, &record);
    int error = enter_node(thread, path, next_number);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (MS__UNLIKELY(ledger != NULL) && error == MS_OK) {
        if (number == MS_NO_NUMBER)
            ms__on_node_enter_as(ledger, thread);
        else
            ms__on_node_enter(ledger, thread, record == MS__NONE ? NULL : thread->lookup.creator, record);
    }
    return error;
}

MS__HOT int ms_node_enter_as(ms_thread *thread, ms_path path, uint64_t next_number)
{
    int error = enter_node(thread, path, next_number);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (ledger && error == MS_OK)
        ms__on_node_enter_as(ledger, thread);
    return error;
}

/* The node around the one that was left runs again. If it is unrecorded, it has created no node yet. */
MS__INLINE void publish_outer_unrecorded(ms_thread *thread)
{
    uint32_t at = thread->depth;
    while (thread->unrecorded && thread->frames[--at].record != MS__UNRECORDED)
        ;
    if (thread->unrecorded)
        publish_unrecorded(thread, &thread->frames[at]);
    else
        MS__STORE(thread->ring.unrecorded_from, UINT64_MAX);
}

MS__INLINE void finish_node_leave(ms_thread *thread)
{
    end_optimizer_steps(thread);
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (MS__UNLIKELY(ledger != NULL))
        ms__on_node_leave(ledger, thread);
}

MS__HOT int ms_node_leave(ms_thread *thread, uint64_t next_number)
{
    /* The usual case: one node runs, and it has created no node. */
    if (MS__LIKELY(thread->unrecorded == 1 && !thread->unpushed &&
                   MS__PEEK(thread->ring.unrecorded_from) == next_number &&
                   thread->frames[thread->depth - 1].record == MS__UNRECORDED)) {
        thread->depth--;
        thread->nodes_open--;
        thread->unrecorded = 0;
        MS__STORE(thread->ring.unrecorded_from, UINT64_MAX);
        finish_node_leave(thread);
        return MS_OK;
    }
    if (MS__UNLIKELY(thread->unrecorded && !thread->unpushed && MS__PEEK(thread->ring.unrecorded_from) != next_number))
        record_nodes(thread);
    int error;
    const struct ms__frame *frame = pop_frame(thread, MS__NODE, next_number, &error);
    if (MS__UNLIKELY(!frame))
        return error;
    thread->nodes_open--;
    if (MS__LIKELY(frame->record == MS__UNRECORDED)) {
        thread->unrecorded--;
        publish_outer_unrecorded(thread);
    } else {
        ms__call_ring_end(&thread->ring, frame->record, next_number);
    }
    finish_node_leave(thread);
    return MS_OK;
}

int ms_override_enter(ms_thread *thread, ms_path path)
{
    return push_frame(thread, MS__OVERRIDE, path, UINT64_MAX, MS__NONE) ? MS_OK : MS_ENOMEM;
}

int ms_override_leave(ms_thread *thread)
{
    int error;
    pop_frame(thread, MS__OVERRIDE, 0, &error);
    end_optimizer_steps(thread);
    return error;
}

ms_path ms_node_path(ms_watch *watch, uint64_t creator, uint64_t number)
{
    if (number == MS_NO_NUMBER)
        return MS_GLOBAL;
    if (creator == MS_ANY_THREAD)
        return find_path_in_any_thread(watch, number);
    bool discarded = false;
    ms_thread *thread = ms__thread_find(watch, creator, &discarded);
    if (!thread)
        return discarded ? MS_UNKNOWN : MS_GLOBAL;
    uint64_t start = 0, from, record;
    ms_path path = ms__call_ring_find(&thread->ring, number, &start, &from, &record);
    return atomic_load_explicit(&thread->id, memory_order_acquire) == creator ? path : MS_UNKNOWN;
}

void ms_optimizer_enter(ms_thread *thread)
{
    if (thread->optimizer_steps_open++ == 0)
        thread->optimizer_at = thread->depth + 1;
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (ledger)
        ms__on_optimizer_step(ledger, thread, false, 0);
}

void ms_optimizer_leave(ms_thread *thread)
{
    ms_optimizer_leave_as(thread, 0);
}

void ms_optimizer_leave_as(ms_thread *thread, uint64_t optimizer)
{
    if (!thread->optimizer_steps_open)
        return;
    if (--thread->optimizer_steps_open == 0)
        thread->optimizer_at = 0;
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (ledger)
        ms__on_optimizer_step(ledger, thread, true, optimizer);
}
