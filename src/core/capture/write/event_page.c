/* event_page.c - opening and closing the page that events go to, losing events where there is none, and which paths the
 * events mention. */
#include "core/capture/write/event_page.h"

/* A lost event still consumes a number, so readers can detect the gap, even if the key frame after it is damaged. */
void ms__capture_lose_event(ms_capture *capture)
{
    capture->event++;
    atomic_fetch_add_explicit(&capture->lost, 1, memory_order_relaxed);
}

void ms__capture_close_page(ms_capture *capture)
{
    struct ms__page *page = capture->page;
    capture->page = NULL;
    uint8_t *end = capture->at;
    capture->at = capture->limit = NULL;
    ms__capture_close_notes(capture);
    ms__capture_close_times(capture);
    ms__capture_close_operators(capture);
    ms__capture_close_inputs(capture);
    ms__capture_close_collectives(capture);
    ms__capture_close_stacks(capture);
    if (!page)
        return;
    page->head.kind = MS__CHUNK_EVENTS;
    page->head.size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD;
    page->head.events = (uint32_t)(capture->event - page->head.event);
    page->head.oldest_claimed = capture->oldest_claimed;
    ms__page_queue(capture, page);
}

void ms__capture_start_losing(ms_capture *capture)
{
    ms__capture_close_page(capture);
    capture->losing = true;
    ms__capture_lose_event(capture);
}

void ms__mention_older_path(ms_capture *capture, ms_path path)
{
    for (uint64_t bit; path > MS_UNKNOWN; path = ms_path_parent(capture->watch, path)) {
        uint64_t mentioned = MS__PEEK(capture->mentioned[path / 64]);
        bit = UINT64_C(1) << path % 64;
        if (mentioned & bit)
            return; /* so are its parents */
        MS__STORE(capture->mentioned[path / 64], mentioned | bit);
    }
}

bool ms__capture_open_page(ms_capture *capture)
{
    ms__capture_close_page(capture);
    struct ms__page *page = capture->losing ? NULL : ms__page_take(capture, MS__PAGE_BYTES);
    capture->losing = !page;
    if (!page)
        return false;
    page->head = (struct ms__chunk_head){.event = capture->event, .time = capture->time};
    capture->page = page;
    capture->at = page->bytes + MS__CHUNK_HEAD;
    capture->limit = capture->at + MS__PAGE_BYTES - MS__EVENT_MAX;
    capture->slot = capture->device = capture->path = 0;
    capture->oldest_claimed = MS__NO_CLAIM;
    if (capture->thread) { /* a reader assumes thread 0 at the beginning of a chunk */
        *capture->at++ = MS_OP_THREAD;
        capture->at = ms__put_varint(capture->at, capture->thread);
        capture->event++;
    }
    return true;
}
