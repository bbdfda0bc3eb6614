/* collectives.c - the collectives that threads launch, and the groups that they refer to: in a page of their own, as
 * notes are. A capture that has no room for them loses them; the events are then lost too. */
#include "core/capture/write/event_page.h"
#include "modscope_collectives.h"

#include <string.h>

void ms__capture_close_collectives(ms_capture *capture)
{
    struct ms__page *page = capture->collectives;
    capture->collectives = NULL;
    uint8_t *end = capture->collective_at;
    capture->collective_at = capture->collective_limit = NULL;
    if (!page)
        return;
    page->head.size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD;
    ms__page_queue(capture, page);
}

static bool open_collectives(ms_capture *capture)
{
    ms__capture_close_collectives(capture);
    struct ms__page *page = capture->losing ? NULL : ms__page_take(capture, MS__PAGE_BYTES);
    if (!page)
        return false;
    page->head = (struct ms__chunk_head){
        .kind = MS__CHUNK_COLLECTIVES, .event = capture->event, .time = capture->time, .oldest_claimed = MS__NO_CLAIM};
    capture->collectives = page;
    capture->collective_at = page->bytes + MS__CHUNK_HEAD;
    capture->collective_limit = capture->collective_at + MS__PAGE_BYTES - MS__COLLECTIVE_MAX;
    capture->before = (struct ms__collective_before){.event = capture->event, .time = capture->time};
    return true;
}

/* Where the next collective or group goes; NULL: there is no room. */
static uint8_t *find_room(ms_capture *capture)
{
    if (MS__UNLIKELY(capture->collective_at >= capture->collective_limit) && !open_collectives(capture))
        return NULL;
    return capture->collective_at;
}

static void encode_collective(ms_capture *capture, const ms_thread *thread, const ms_collective *collective,
                              uint64_t delay)
{
    uint8_t *at = find_room(capture);
    capture->collective_count++;
    if (!at) {
        capture->collective_lost = true;
        return;
    }
    struct ms__collective_before *before = &capture->before;
    struct ms__collective_before now = {.event = capture->event,
                                        .time = ms__microseconds(capture) + delay / 1000,
                                        .step = capture->ledger->step,
                                        .path = collective->path ? collective->path
                                                : thread         ? ms__path_of(thread)
                                                                 : MS_GLOBAL};
    uint32_t phase = thread ? (uint32_t)ms__phase(thread) : (uint32_t)MS_IDLE;
    ms__mention_path(capture, now.path);
    at = ms__put_varint(at, ((uint32_t)collective->kind + 1) << MS__COLLECTIVE_PHASE_BITS | phase);
    at = ms__put_varint(at, now.event - before->event);
    at = ms__put_zigzag(at, (int64_t)(now.time - before->time));
    at = ms__put_zigzag(at, (int64_t)(now.step - before->step));
    at = ms__put_zigzag(at, (int64_t)now.path - (int64_t)before->path);
    at = ms__put_varint(at, thread ? thread->number : 0);
    at = ms__put_varint(at, collective->group);
    at = ms__put_varint(at, collective->bytes);
    capture->collective_at = ms__put_varint(at, collective->nanoseconds);
    *before = now;
}

uint64_t ms_collective_note(ms_ledger *ledger, const ms_thread *thread, const ms_collective *collective, uint64_t delay)
{
    if (!ms__captured(ledger) || (uint32_t)collective->kind >= MS_COLLECTIVE_COUNT)
        return 0;
    ms__lock(&ledger->lock);
    uint64_t number = ++ledger->collectives;
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        encode_collective(capture, thread, collective, delay);
    ms__unlock(&ledger->lock);
    return number;
}

static void encode_collective_time(ms_capture *capture, uint64_t later, uint32_t timing, uint64_t nanoseconds)
{
    if (capture->collective_lost || later >= capture->collective_count)
        return; /* It was launched before the capture began. */
    uint8_t *at = find_room(capture);
    if (!at)
        return;
    uint64_t now = ms__microseconds(capture), taken = nanoseconds / 1000;
    uint64_t began = taken < now ? now - taken : 0;
    at = ms__put_varint(at, (uint32_t)MS__COLLECTIVE_TIME << MS__COLLECTIVE_PHASE_BITS | timing);
    at = ms__put_varint(at, 0);
    at = ms__put_zigzag(at, (int64_t)(began - capture->before.time));
    at = ms__put_zigzag(at, 0);
    at = ms__put_zigzag(at, 0);
    at = ms__put_varint(at, 0);
    at = ms__put_varint(at, 0);
    at = ms__put_varint(at, later);
    capture->collective_at = ms__put_varint(at, nanoseconds);
    capture->before.time = began;
}

void ms_collective_note_time(ms_ledger *ledger, uint64_t number, ms_collective_timing timing, uint64_t nanoseconds)
{
    if (!ms__captured(ledger) || !number || timing < MS_COLLECTIVE_EXECUTED || timing >= MS_COLLECTIVE_TIMING_COUNT)
        return;
    ms__lock(&ledger->lock);
    if (number <= ledger->collectives)
        for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
            encode_collective_time(capture, ledger->collectives - number, timing - MS_COLLECTIVE_EXECUTED, nanoseconds);
    ms__unlock(&ledger->lock);
}

static uint8_t *put_text(uint8_t *at, const char *text, size_t most)
{
    const char *end = memchr(text, 0, most);
    size_t size = end ? (size_t)(end - text) : most - 1;
    at = ms__put_varint(at, size);
    memcpy(at, text, size);
    return at + size;
}

static void encode_group(ms_capture *capture, const ms_collective_group *group)
{
    uint8_t *at = find_room(capture);
    if (!at)
        return;
    at = ms__put_varint(at, 0);
    at = ms__put_varint(ms__put_varint(at, group->number), group->size);
    at = put_text(at, group->name, sizeof group->name);
    at = put_text(at, group->backend, sizeof group->backend);
    capture->collective_at = put_text(at, group->ranks, sizeof group->ranks);
}

void ms_collective_note_group(ms_ledger *ledger, const ms_collective_group *group)
{
    if (!ms__captured(ledger) || !group->number)
        return;
    ms__lock(&ledger->lock);
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        encode_group(capture, group);
    ms__unlock(&ledger->lock);
}
