/* event_page.h - appending events to the page that is being filled. It is a header because every event passes through
 * it. All functions need ledger->lock held.
 *
 *     uint8_t *at = ms__begin_event(capture, MS_OP_STEP);
 *     if (at)
 *         ms__end_event(capture, ms__put_varint(at, step)); */
#ifndef MS_EVENT_PAGE_H
#define MS_EVENT_PAGE_H

#include "core/capture/write/writer.h"

/* Close the page that is full, and open the next one. False if there is no page: every event is then lost until a key
 * frame is made. */
bool ms__capture_open_page(ms_capture *capture);
/* Count an event as lost. */
void ms__capture_lose_event(ms_capture *capture);
/* Lose this event and all that follow, until a key frame is made: memory ran out for something that later events
 * refer to. */
void ms__capture_start_losing(ms_capture *capture);

/* The path is older than the capture, and the file mentions it from now on: it needs the path's and its parents' names.
 */
void ms__mention_older_path(ms_capture *capture, ms_path path);

/* Call this for each path that is written, so that the file names it. Newer paths are all named. */
MS__INLINE void ms__mention_path(ms_capture *capture, ms_path path)
{
    if (path < capture->older_paths && !(MS__PEEK(capture->mentioned[path / 64]) >> path % 64 & 1))
        ms__mention_older_path(capture, path);
}

/* Write the first byte of an event, and the time if `now` is later than the event before. Returns where the rest goes;
 * NULL if the event is lost. */
MS__INLINE uint8_t *ms__begin_event_at(ms_capture *capture, uint32_t first, uint64_t now)
{
    if (MS__UNLIKELY(capture->at >= capture->limit) && !ms__capture_open_page(capture)) {
        ms__capture_lose_event(capture);
        return NULL;
    }
    uint8_t *at = capture->at;
    if (now <= capture->time) {
        *at++ = (uint8_t)first;
        return at;
    }
    *at++ = (uint8_t)(first | MS__EVENT_TIMED);
    at = ms__put_varint(at, now - capture->time);
    capture->time = now;
    capture->frequent_events = 0;
    return at;
}

MS__INLINE uint8_t *ms__begin_event(ms_capture *capture, uint32_t first)
{
    return ms__begin_event_at(capture, first, ms__microseconds(capture));
}

/* The same for frequent events: one reads the clock if MS__EVENTS_PER_CLOCK_READ have come since the time last changed.
 */
MS__INLINE uint8_t *ms__begin_frequent_event(ms_capture *capture, uint32_t first)
{
    bool timed = (++capture->frequent_events & capture->clock_read_mask) == 0;
    return ms__begin_event_at(capture, first, timed ? ms__microseconds(capture) : 0);
}

/* The event ends before `at`. */
MS__INLINE void ms__end_event(ms_capture *capture, uint8_t *at)
{
    capture->at = at;
    capture->event++;
}

/* Write `value` as its difference to *latest, and make it the latest. */
MS__INLINE uint8_t *ms__put_relative(uint8_t *at, uint32_t *latest, uint32_t value)
{
    at = ms__put_zigzag(at, (int64_t)value - (int64_t)*latest);
    *latest = value;
    return at;
}

MS__INLINE uint8_t *ms__put_path(ms_capture *capture, uint8_t *at, ms_path path)
{
    ms__mention_path(capture, path);
    return ms__put_relative(at, &capture->path, path);
}

#endif
