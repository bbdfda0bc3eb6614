/* thread_position.c - the events that say where each thread is, and which of them are not worth writing. */
#include "core/capture/write/thread_position.h"

bool ms__positions_grow(ms_capture *capture, uint32_t number)
{
    uint32_t capacity = capture->position_capacity ? capture->position_capacity * 2 : 16;
    while (capacity <= number)
        capacity *= 2;
    struct ms__thread_position *positions = ms__alloc(capture->watch, capacity * sizeof *positions);
    if (!positions)
        return false;
    memset(positions, 0, capacity * sizeof *positions);
    if (capture->position_capacity)
        memcpy(positions, capture->positions, capture->position_capacity * sizeof *positions);
    ms__free(capture->watch, capture->positions);
    capture->positions = positions;
    capture->position_capacity = capacity;
    return true;
}

/* Write that the events that follow are this thread's. `is_new`: the file does not mention the thread yet. */
static void write_thread(ms_capture *capture, uint32_t number, const struct ms__thread_position *position, bool is_new)
{
    uint8_t *at = ms__begin_frequent_event(capture, MS_OP_THREAD | (is_new ? MS__THREAD_NEW : 0u));
    capture->thread = number;
    if (!at)
        return;
    at = ms__put_varint(at, number);
    ms__end_event(capture, is_new ? ms__put_varint(at, position->id) : at);
}

MS__HOT void ms__write_position(ms_capture *capture, const struct ms__thread_position *position, uint64_t now)
{
    uint8_t *at = ms__begin_event_at(capture, MS_OP_POSITION | (uint32_t)position->phase << MS__POSITION_PHASE, now);
    if (at)
        ms__end_event(capture, ms__put_path(capture, at, position->path));
}

void ms__write_deferred_position(ms_capture *capture, struct ms__thread_position *position)
{
    position->deferred = false;
    if (position->phase == position->deferred_phase && position->path == position->deferred_path)
        return;
    position->phase = position->deferred_phase;
    position->path = position->deferred_path;
    ms__write_position(capture, position, position->deferred_time);
}

void ms__switch_thread(ms_capture *capture, uint32_t number, const struct ms__thread_position *position, bool is_new)
{
    if (capture->thread < capture->position_capacity && capture->thread != number &&
        capture->positions[capture->thread].deferred)
        ms__write_deferred_position(capture, &capture->positions[capture->thread]);
    write_thread(capture, number, position, is_new);
}

/* Nothing is written if the thread goes from a node to another of the same module. ms__capture_write_deferred notices
 * if that takes long. */
MS__HOT static void move_thread(ms_capture *capture, const ms_thread *thread, bool to_node)
{
    struct ms__thread_position *position = ms__select_thread(capture, thread);
    if (!position)
        return;
    uint8_t phase = (uint8_t)ms__phase(thread);
    ms_path path = ms__path_of(thread);
    bool same = position->phase == phase && position->path == path;
    if (same && (to_node || !position->deferred)) {
        position->deferred = false;
        return;
    }
    uint64_t now = ms__microseconds(capture);
    if (position->deferred && (!to_node || now - position->deferred_time > MS__SHORT_GAP_US))
        ms__write_deferred_position(capture, position);
    position->deferred = false;
    if (position->phase == phase && position->path == path)
        return;
    position->phase = phase;
    position->path = path;
    ms__write_position(capture, position, now);
}

MS__HOT void ms__capture_position(ms_ledger *ledger, const ms_thread *thread, bool to_node)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        ms__capture_check_key_frame(capture);
        move_thread(capture, thread, to_node);
    }
}

MS__HOT static struct ms__thread_position *defer_position(ms_capture *capture, const ms_thread *thread, ms_phase phase,
                                                          ms_path path)
{
    struct ms__thread_position *position = ms__select_thread(capture, thread);
    if (!position)
        return NULL;
    position->deferred = true;
    position->deferred_time = ms__microseconds(capture);
    position->deferred_phase = (uint8_t)phase;
    position->deferred_path = path;
    return position;
}

MS__HOT void ms__capture_node_left(ms_ledger *ledger, const ms_thread *thread)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        defer_position(capture, thread, ms__phase(thread), ms__path_of(thread));
}

void ms__capture_thread_ended(ms_ledger *ledger, const ms_thread *thread)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        struct ms__thread_position *position = defer_position(capture, thread, MS_IDLE, MS_GLOBAL);
        if (position)
            ms__write_deferred_position(capture, position);
    }
}

void ms__capture_write_deferred(ms_capture *capture, uint64_t age)
{
    uint64_t now = ms__microseconds(capture);
    for (uint32_t number = 0; number < capture->position_capacity; number++) {
        struct ms__thread_position *position = &capture->positions[number];
        if (!position->deferred || now - position->deferred_time < age)
            continue;
        if (number != capture->thread)
            write_thread(capture, number, position, false);
        ms__write_deferred_position(capture, position);
    }
}
