/* notes.c - notes about blocks, for replays: in a page of their own, which is queued with the page of events. A capture
 * that has no room for a note loses it; the events are then lost too, because they need pages as well. */
#include "core/capture/write/event_page.h"
#include "core/ledger/block_table.h"

enum { ROUNDING = 512 }; /* CUDA's allocator rounds requests to multiples of it */

void ms__capture_close_notes(ms_capture *capture)
{
    struct ms__page *page = capture->notes;
    capture->notes = NULL;
    uint8_t *end = capture->note_at;
    capture->note_at = capture->note_limit = NULL;
    if (!page)
        return;
    page->head.size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD;
    ms__page_queue(capture, page);
}

static bool open_notes(ms_capture *capture)
{
    ms__capture_close_notes(capture);
    struct ms__page *page = capture->losing ? NULL : ms__page_take(capture, MS__PAGE_BYTES);
    if (!page)
        return false;
    page->head = (struct ms__chunk_head){
        .kind = MS__CHUNK_NOTES, .event = capture->event, .time = capture->time, .oldest_claimed = MS__NO_CLAIM};
    capture->notes = page;
    capture->note_at = page->bytes + MS__CHUNK_HEAD;
    capture->note_limit = capture->note_at + MS__PAGE_BYTES - MS__NOTE_MAX;
    capture->note_event = capture->event;
    capture->note_slot = 0;
    return true;
}

MS__HOT static void encode_note(ms_capture *capture, ms_note_kind kind, uint32_t number, uint64_t value)
{
    if (MS__UNLIKELY(capture->note_at >= capture->note_limit) && !open_notes(capture))
        return;
    uint8_t *at = capture->note_at;
    at = ms__put_varint(at, (capture->event - capture->note_event) << MS__NOTE_KIND_BITS | (uint32_t)kind);
    at = ms__put_relative(at, &capture->note_slot, number);
    capture->note_event = capture->event;
    capture->note_at = ms__note_has_value(kind) ? ms__put_varint(at, value) : at;
}

static void encode_kind(ms_capture *capture, uint32_t number)
{
    uint64_t age = capture->event - ms__block_origin_of(capture, number).since_event;
    const struct ms__block *block = ms__block_at(&capture->ledger->blocks, number);
    encode_note(capture, MS_NOTE_BLOCK_KIND, number, age << MS__KIND_BITS | block->kind);
    if (capture->notes && capture->event - age < capture->notes->head.oldest_claimed)
        capture->notes->head.oldest_claimed = capture->event - age;
}

void ms__capture_note_kind(ms_ledger *ledger, uint32_t number)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        encode_kind(capture, number);
}

void ms__capture_note_all_kinds(ms_capture *capture)
{
    const struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&capture->ledger->blocks, &at)) != NULL;)
        if (block->kind)
            encode_kind(capture, at - 1);
}

MS__HOT void ms__capture_note(ms_ledger *ledger, ms_note_kind kind, uint32_t number, uint64_t value)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        encode_note(capture, kind, number, value);
}

void ms__capture_note_storage(ms_ledger *ledger, uint32_t number, uint64_t bytes)
{
    const struct ms__block *block = ms__block_at(&ledger->blocks, number);
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        if (block->bytes - bytes < ROUNDING || number >= capture->origin_capacity ||
            capture->origins[number].request_noted)
            continue;
        encode_note(capture, MS_NOTE_REQUESTED, number, bytes);
        capture->origins[number].request_noted = true;
    }
}

void ms__capture_note_request(ms_ledger *ledger, uint32_t number, uint64_t requested, uint64_t stream)
{
    const struct ms__block *block = ms__block_at(&ledger->blocks, number);
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        if (requested < block->bytes)
            encode_note(capture, MS_NOTE_REQUESTED, number, requested);
        if (number < capture->origin_capacity)
            capture->origins[number].request_noted = true;
        if (stream != capture->streams[block->device])
            encode_note(capture, MS_NOTE_STREAM, number, stream);
        capture->streams[block->device] = stream;
    }
}
