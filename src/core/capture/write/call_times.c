/* call_times.c - how long calls took on a GPU, which is known some time after they ended: in a page of their own, as
 * notes are. Each capture remembers the calls whose time is not known yet by the number that the caller gave them. */
#include "core/capture/write/event_page.h"

enum { PENDING = 8192 }; /* calls whose time is not known yet; a power of two. A later call replaces an earlier one */

void ms__capture_close_times(ms_capture *capture)
{
    struct ms__page *page = capture->times;
    capture->times = NULL;
    uint8_t *end = capture->time_at;
    capture->time_at = capture->time_limit = NULL;
    if (!page)
        return;
    page->head.size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD;
    ms__page_queue(capture, page);
}

static bool open_times(ms_capture *capture)
{
    ms__capture_close_times(capture);
    struct ms__page *page = capture->losing ? NULL : ms__page_take(capture, MS__PAGE_BYTES);
    if (!page)
        return false;
    page->head = (struct ms__chunk_head){
        .kind = MS__CHUNK_TIMES, .event = capture->event, .time = capture->time, .oldest_claimed = MS__NO_CLAIM};
    capture->times = page;
    capture->time_at = page->bytes + MS__CHUNK_HEAD;
    capture->time_limit = capture->time_at + MS__PAGE_BYTES - MS__TIME_MAX;
    capture->time_event = capture->event;
    return true;
}

static struct ms__timed_call *pending_call(ms_capture *capture, uint64_t number)
{
    if (MS__UNLIKELY(!capture->timed_calls)) {
        capture->timed_calls = ms__alloc(capture->watch, PENDING * sizeof *capture->timed_calls);
        if (!capture->timed_calls)
            return NULL;
        memset(capture->timed_calls, 0, PENDING * sizeof *capture->timed_calls);
    }
    return &capture->timed_calls[number & (PENDING - 1)];
}

void ms_call_note_begin(ms_ledger *ledger, const ms_thread *thread, uint64_t number)
{
    if (!ms__captured(ledger) || !number)
        return;
    ms__lock(&ledger->lock);
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        struct ms__timed_call *call = pending_call(capture, number);
        if (call)
            *call = (struct ms__timed_call){number, capture->event, thread ? thread->number : 0};
    }
    ms__unlock(&ledger->lock);
}

static void encode_time(ms_capture *capture, const struct ms__timed_call *call, uint64_t nanoseconds)
{
    if (MS__UNLIKELY(capture->time_at >= capture->time_limit) && !open_times(capture))
        return;
    uint8_t *at = ms__put_zigzag(capture->time_at, (int64_t)(call->event - capture->time_event));
    capture->time_event = call->event;
    capture->time_at = ms__put_varint(ms__put_varint(at, call->thread), nanoseconds);
}

void ms_call_note_time(ms_ledger *ledger, uint64_t number, uint64_t nanoseconds)
{
    if (!ms__captured(ledger) || !number)
        return;
    ms__lock(&ledger->lock);
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        struct ms__timed_call *call = capture->timed_calls ? pending_call(capture, number) : NULL;
        if (!call || call->number != number)
            continue; /* the capture began after the call */
        encode_time(capture, call, nanoseconds);
        call->number = 0;
    }
    ms__unlock(&ledger->lock);
}
