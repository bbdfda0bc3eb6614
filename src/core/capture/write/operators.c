/* operators.c - the operators that run in forwards of modules: in a page of their own, as notes are. A page has the
 * names that occur in it. */
#include "core/capture/write/event_page.h"

#include <string.h>

void ms__capture_close_operators(ms_capture *capture)
{
    struct ms__page *page = capture->operators;
    capture->operators = NULL;
    uint8_t *end = capture->operator_at;
    capture->operator_at = capture->operator_limit = NULL;
    capture->operator_names = 0;
    if (!page)
        return;
    page->head.size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD;
    ms__page_queue(capture, page);
}

static bool open_operators(ms_capture *capture)
{
    ms__capture_close_operators(capture);
    struct ms__page *page = capture->losing ? NULL : ms__page_take(capture, MS__PAGE_BYTES);
    if (!page)
        return false;
    page->head = (struct ms__chunk_head){
        .kind = MS__CHUNK_OPERATORS, .event = capture->event, .time = capture->time, .oldest_claimed = MS__NO_CLAIM};
    capture->operators = page;
    capture->operator_at = page->bytes + MS__CHUNK_HEAD;
    capture->operator_limit = capture->operator_at + MS__PAGE_BYTES - MS__OPERATOR_MAX;
    capture->operator_event = capture->event;
    return true;
}

/* The number of the name in this page; the number of names: it is not there yet. */
static uint32_t number_of_name(const ms_capture *capture, const char *name)
{
    uint32_t i = 0;
    while (i < capture->operator_names && capture->names_of_operators[i] != name)
        i++;
    return i;
}

static uint8_t *put_name(ms_capture *capture, uint8_t *at, const ms_operator *ran)
{
    size_t length = strlen(ran->name);
    length = length < MS_OPERATOR_NAME_MAX ? length : MS_OPERATOR_NAME_MAX;
    capture->names_of_operators[capture->operator_names++] = ran->name;
    at = ms__put_varint(at, length);
    memcpy(at, ran->name, length);
    return ms__put_varint(at + length, ran->flags);
}

/* `slot`: one more than that of the block that the operator changes in place; 0: none, or it is not known. */
static void encode_operator(ms_capture *capture, const ms_thread *thread, const ms_operator *ran, uint64_t events,
                            uint64_t nanoseconds, uint64_t slot)
{
    uint32_t number = number_of_name(capture, ran->name);
    bool is_full = capture->operator_at >= capture->operator_limit || number == MS__OPERATOR_NAMES;
    if (MS__UNLIKELY(is_full) && !open_operators(capture))
        return;
    number = is_full ? 0 : number;
    uint8_t *at = ms__put_varint(capture->operator_at, number);
    if (number == capture->operator_names)
        at = put_name(capture, at, ran);
    at = ms__put_varint(at, capture->event - capture->operator_event);
    at = ms__put_varint(at, events);
    at = ms__put_varint(at, thread->number);
    at = ms__put_varint(at, nanoseconds);
    capture->operator_at = ran->flags & MS_OPERATOR_IN_PLACE ? ms__put_varint(at, slot) : at;
    capture->operator_event = capture->event;
}

uint64_t ms_captured_events(ms_ledger *ledger)
{
    if (!ms__captured(ledger))
        return 0;
    ms__lock(&ledger->lock);
    const ms_capture *capture = MS__PEEK(ledger->captures);
    uint64_t events = capture ? capture->event : 0;
    ms__unlock(&ledger->lock);
    return events;
}

void ms__capture_note_operator(ms_ledger *ledger, const ms_thread *thread, const ms_operator *ran, uint64_t before,
                               uint64_t nanoseconds, uint64_t slot)
{
    const ms_capture *first = MS__PEEK(ledger->captures);
    uint64_t events = first && first->event > before ? first->event - before : 0;
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        encode_operator(capture, thread, ran, events, nanoseconds, slot);
}
