/* key_frame.c - key frames: chunks that describe everything held at one moment, so that reading can start there. */
#include "core/capture/write/event_page.h"
#include "core/ledger/block_table.h"

/* A key frame that is being built in a page of its own. */
struct key_frame {
    struct ms__page *page;
    uint8_t *at; /* where the next byte goes */
};

/* Make room for `bytes` more bytes. False if memory runs out. */
static bool reserve_bytes(ms_capture *capture, struct key_frame *frame, size_t bytes)
{
    size_t used = frame->page ? (size_t)(frame->at - frame->page->bytes) : MS__CHUNK_HEAD;
    if (frame->page && used + bytes <= MS__CHUNK_HEAD + (size_t)frame->page->capacity)
        return true;
    size_t capacity = frame->page ? (size_t)frame->page->capacity * 2 : MS__PAGE_BYTES;
    struct ms__page *page =
        capacity <= UINT32_MAX / 2 ? ms__alloc(capture->watch, sizeof *page + MS__CHUNK_HEAD + capacity) : NULL;
    if (!page)
        return false;
    if (frame->page)
        memcpy(page->bytes, frame->page->bytes, used);
    ms__free(capture->watch, frame->page);
    page->capacity = (uint32_t)capacity;
    *frame = (struct key_frame){page, page->bytes + used};
    return true;
}

static bool put_threads(ms_capture *capture, struct key_frame *frame)
{
    uint64_t known = 0;
    for (uint32_t i = 0; i < capture->position_capacity; i++)
        known += capture->positions[i].known;
    if (!reserve_bytes(capture, frame, MS__EVENT_MAX))
        return false;
    frame->at = ms__put_varint(frame->at, known);
    for (uint32_t i = 0; i < capture->position_capacity; i++) {
        const struct ms__thread_position *position = &capture->positions[i];
        if (!position->known)
            continue;
        if (!reserve_bytes(capture, frame, MS__EVENT_MAX))
            return false;
        frame->at = ms__put_varint(frame->at, i);
        frame->at = ms__put_varint(frame->at, position->id);
        frame->at = ms__put_varint(frame->at, position->phase);
        ms__mention_path(capture, position->path);
        frame->at = ms__put_varint(frame->at, position->path);
    }
    return true;
}

static bool put_devices(ms_capture *capture, struct key_frame *frame)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < MS_MAX_DEVICES; i++)
        count += capture->reserved[i] != 0;
    if (!reserve_bytes(capture, frame, (size_t)(count + 1) * 2 * MS__VARINT_MAX))
        return false;
    frame->at = ms__put_varint(frame->at, count);
    for (uint32_t i = 0; i < MS_MAX_DEVICES; i++) {
        if (!capture->reserved[i])
            continue;
        frame->at = ms__put_varint(frame->at, i);
        frame->at = ms__put_varint(frame->at, capture->reserved[i]);
    }
    return true;
}

static bool put_blocks(ms_capture *capture, struct key_frame *frame)
{
    const struct ms__block_table *blocks = &capture->ledger->blocks;
    if (!reserve_bytes(capture, frame, MS__EVENT_MAX))
        return false;
    frame->at = ms__put_varint(frame->at, blocks->count);
    const struct ms__block *block;
    uint32_t next_slot = 0; /* after the block before */
    for (uint32_t at = 0; (block = ms__block_next(blocks, &at)) != NULL; next_slot = at) {
        if (!reserve_bytes(capture, frame, (size_t)2 * MS__EVENT_MAX))
            return false;
        struct ms__block_origin origin = ms__block_origin_of(capture, at - 1);
        frame->at = ms__put_varint(frame->at, at - 1 - next_slot);
        frame->at = ms__put_varint(frame->at, block->bytes);
        frame->at = ms__put_varint(frame->at, block->device);
        *frame->at++ = ms__attributes(block->category, block->outside, origin.phase);
        ms__mention_path(capture, block->path);
        frame->at = ms__put_varint(frame->at, block->path);
        frame->at = ms__put_varint(frame->at, capture->event - origin.since_event);
        frame->at = ms__put_varint(frame->at, capture->ledger->step - origin.step);
        frame->at = ms__put_varint(frame->at, capture->time - origin.time);
    }
    return true;
}

static bool make_key_frame(ms_capture *capture)
{
    struct key_frame frame = {0};
    uint64_t now = ms__microseconds(capture);
    capture->time = now > capture->time ? now : capture->time; /* so that no block is younger than the key frame */
    bool made = reserve_bytes(capture, &frame, MS__EVENT_MAX);
    if (made) {
        frame.at = ms__put_varint(frame.at, capture->ledger->step);
        frame.at = ms__put_varint(frame.at, capture->optimizer_steps);
        frame.at = ms__put_varint(frame.at, atomic_load_explicit(&capture->lost, memory_order_relaxed));
        made = put_threads(capture, &frame) && put_devices(capture, &frame) && put_blocks(capture, &frame);
    }
    if (!made) {
        ms__free(capture->watch, frame.page);
        return false;
    }
    frame.page->head = (struct ms__chunk_head){.kind = MS__CHUNK_KEY,
                                               .size = (uint32_t)(frame.at - frame.page->bytes) - MS__CHUNK_HEAD,
                                               .event = capture->event,
                                               .time = capture->time,
                                               .oldest_claimed = MS__NO_CLAIM};
    ms__page_queue(capture, frame.page);
    ms__capture_key_frame_stacks(capture);
    capture->key_frame_event = capture->event;
    return true;
}

static bool is_key_frame_due(const ms_capture *capture)
{
    uint64_t since = capture->event - capture->key_frame_event;
    return capture->losing || (since >= MS__KEY_FRAME_EVENTS &&
                               since >= (uint64_t)MS__KEY_FRAME_EVENTS_PER_BLOCK * capture->ledger->blocks.count);
}

void ms__capture_make_key_frame_if_due(ms_capture *capture)
{
    if (MS__LIKELY(!is_key_frame_due(capture)) ||
        (capture->losing && (capture->write_failed || !ms__queue_has_room(capture))))
        return;
    ms__capture_close_page(capture);
    bool noted = !capture->losing; /* the file has all notes so far */
    if (!make_key_frame(capture))
        return;
    capture->losing = false;
    if (!noted)
        ms__capture_note_all_kinds(capture);
}
