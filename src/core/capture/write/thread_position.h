/* thread_position.h - the positions of threads in a capture. All functions need ledger->lock held. */
#ifndef MS_THREAD_POSITION_H
#define MS_THREAD_POSITION_H

#include "core/capture/write/event_page.h"

/* Make room for the position of thread `number`. False if memory runs out. */
bool ms__positions_grow(ms_capture *capture, uint32_t number);
/* Write the position of the thread that is selected. */
void ms__write_position(ms_capture *capture, const struct ms__thread_position *position, uint64_t now);
/* Write the deferred position of the thread that is selected. */
void ms__write_deferred_position(ms_capture *capture, struct ms__thread_position *position);

/* Select another thread than the one selected so far, whose deferred position is written: from now on the time is the
 * other one's. */
void ms__switch_thread(ms_capture *capture, uint32_t number, const struct ms__thread_position *position, bool is_new);

/* Select the thread: the events that follow are this thread's. `thread` may be NULL: it is not known. Returns NULL if
 * memory runs out. */
MS__INLINE struct ms__thread_position *ms__select_thread(ms_capture *capture, const ms_thread *thread)
{
    uint32_t number = thread ? thread->number : 0;
    uint64_t id = thread ? MS__PEEK(thread->id) : 0;
    if (MS__UNLIKELY(number >= capture->position_capacity) && !ms__positions_grow(capture, number)) {
        ms__capture_start_losing(capture);
        return NULL;
    }
    struct ms__thread_position *position = &capture->positions[number];
    bool is_new = MS__UNLIKELY(!position->known || position->id != id);
    if (is_new)
        *position = (struct ms__thread_position){.known = true, .id = id};
    if (MS__UNLIKELY(number != capture->thread || is_new))
        ms__switch_thread(capture, number, position, is_new);
    if (MS__UNLIKELY(is_new && thread && thread->depth)) { /* its calls began before the capture */
        position->phase = (uint8_t)ms__phase(thread);
        position->path = ms__path_of(thread);
        ms__write_position(capture, position, ms__microseconds(capture));
    }
    return position;
}

#endif
