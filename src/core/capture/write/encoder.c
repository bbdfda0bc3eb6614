/* encoder.c - the ledger's events about blocks, steps and failed allocations, as bytes. The events about threads are
 * in thread_position.c. Everything here runs on the program's threads with ledger->lock held, and never waits. */
#include "core/capture/write/encoder.h"
#include "core/capture/write/thread_position.h"
#include "core/ledger/block_table.h"

/* ---- blocks ---- */

MS__RARE bool grow_origins(ms_capture *capture)
{
    uint32_t capacity = capture->ledger->blocks.room;
    if (capacity < capture->origin_capacity * 2)
        capacity = capture->origin_capacity * 2; /* the ledger grows by equal parts; doubling copies less often */
    struct ms__block_origin *origins = ms__alloc(capture->watch, capacity * sizeof *origins);
    if (!origins)
        return false;
    for (uint32_t i = 0; i < capacity; i++)
        origins[i] = ms__block_origin_of(capture, i);
    ms__free(capture->watch, capture->origins);
    capture->origins = origins;
    capture->origin_capacity = capacity;
    return true;
}

static void encode_add(ms_capture *capture, const ms_thread *thread, ms_phase phase, const struct ms__block *block,
                       uint32_t number)
{
    bool has_room = MS__LIKELY(number < capture->origin_capacity) || grow_origins(capture);
    if (MS__UNLIKELY(!has_room))
        ms__capture_start_losing(capture);
    struct ms__thread_position *position = ms__select_thread(capture, thread);
    uint8_t *at = NULL;
    bool explicit = false;
    if (MS__LIKELY(position && has_room)) {
        if (MS__UNLIKELY(position->deferred))
            ms__write_deferred_position(capture, position);
        uint32_t usual = position->phase == MS_BACKWARD || position->phase == MS_OPTIMIZER ? MS_TEMP : MS_ACTIVATION;
        explicit =
            phase != position->phase || block->path != position->path || block->category != usual || block->outside;
        at = ms__begin_frequent_event(capture, MS_OP_ADD | (explicit ? MS__ADD_EXPLICIT : 0u));
    }
    if (MS__LIKELY(has_room)) /* even if the event is lost: the next key frame describes the block */
        capture->origins[number] = (struct ms__block_origin){.since_event = capture->event,
                                                             .time = capture->time,
                                                             .step = (uint32_t)capture->ledger->step,
                                                             .phase = (uint8_t)phase};
    if (!at)
        return;
    uint8_t *first = capture->at;
    at = ms__put_relative(at, &capture->slot, number);
    at = ms__put_varint(at, block->bytes);
    if (block->device != capture->device) {
        *first |= MS__ADD_DEVICE;
        at = ms__put_varint(at, capture->device = block->device);
    }
    if (explicit) {
        *at++ = ms__attributes(block->category, block->outside, phase);
        at = ms__put_path(capture, at, block->path);
    }
    ms__end_event(capture, at);
    ms__capture_stack(capture, *ms__block_stack(&capture->ledger->blocks, number));
}

MS__HOT void ms__capture_add(ms_ledger *ledger, const ms_thread *thread, ms_phase phase, const struct ms__block *block,
                             uint32_t number)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        encode_add(capture, thread, phase, block, number);
    if (MS__UNLIKELY(block->kind))
        ms__capture_note_kind(ledger, number);
}

/* ledger->blocks still contains the block, so a key frame may precede this event. At an add it cannot: the block is
 * there already, but the events so far do not mention it. */
MS__HOT void ms__capture_drop(ms_ledger *ledger, uint32_t number)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        ms__capture_check_key_frame(capture);
        uint8_t *at = ms__begin_frequent_event(capture, MS_OP_DROP);
        if (at)
            ms__end_event(capture, ms__put_relative(at, &capture->slot, number));
    }
}

MS__HOT void ms__capture_claim(ms_ledger *ledger, uint32_t number, uint32_t category, ms_path path, bool from_now_on)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        uint64_t since_event = ms__block_origin_of(capture, number).since_event;
        uint8_t *at = ms__begin_frequent_event(capture, MS_OP_CLAIM | (from_now_on ? MS__CLAIM_FROM_NOW_ON : 0u));
        if (from_now_on && number < capture->origin_capacity)
            capture->origins[number].since_event = capture->event;
        if (!at)
            continue;
        at = ms__put_relative(at, &capture->slot, number);
        *at++ = ms__attributes(category, false, 0);
        at = ms__put_path(capture, at, path);
        at = ms__put_varint(at, capture->event - since_event);
        if (!from_now_on && since_event < capture->oldest_claimed)
            capture->oldest_claimed = since_event;
        ms__end_event(capture, at);
    }
}

/* ---- steps, reserved memory and failed allocations ---- */

/* The program may be killed at any time: what a finished step did should be in the file then. */
static void hand_over_step(ms_capture *capture)
{
    if (capture->page && capture->time - capture->page->head.time > UINT64_C(1000) * MS__STEP_FLUSH_MS)
        ms__capture_close_page(capture);
}

void ms__capture_step(ms_ledger *ledger)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        uint8_t *at = ms__begin_event(capture, MS_OP_STEP);
        if (at)
            ms__end_event(capture, ms__put_varint(at, ledger->step));
        hand_over_step(capture);
    }
}

void ms__capture_optimizer_step(ms_ledger *ledger, const ms_thread *thread)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        ms__select_thread(capture, thread);
        capture->optimizer_steps++;
        uint8_t *at = ms__begin_event(capture, MS_OP_OPTIMIZER_STEP);
        if (at)
            ms__end_event(capture, at);
        hand_over_step(capture);
    }
}

void ms_ledger_reserved(ms_ledger *ledger, uint32_t device, uint64_t bytes)
{
    if (device >= MS_MAX_DEVICES)
        return;
    ms__lock(&ledger->lock);
    ledger->reserved[device] = bytes;
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        if (capture->reserved[device] == bytes)
            continue;
        capture->reserved[device] = bytes;
        uint8_t *at = ms__begin_frequent_event(capture, MS_OP_RESERVED);
        if (at)
            ms__end_event(capture, ms__put_varint(ms__put_varint(at, capture->device = device), bytes));
    }
    ms__unlock(&ledger->lock);
}

void ms__capture_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        struct ms__thread_position *position = ms__select_thread(capture, thread);
        if (position && position->deferred)
            ms__write_deferred_position(capture, position);
        uint8_t *at = ms__begin_event(capture, MS_OP_OOM);
        if (!at)
            continue;
        at = ms__put_varint(at, capture->device = oom->device);
        at = ms__put_varint(at, oom->requested);
        at = ms__put_varint(at, oom->allocated);
        ms__end_event(capture, ms__put_varint(at, oom->reserved));
        /* The program may end soon, so write the page now, but not at every failure of a series. */
        if (!capture->oom_time || capture->time - capture->oom_time > UINT64_C(1000) * MS__FLUSH_INTERVAL_MS)
            ms__capture_close_page(capture);
        capture->oom_time = capture->time;
    }
}
