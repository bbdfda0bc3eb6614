/* block_stacks.c - which stack made each block: one code for each add, in a page that belongs to the page of events,
 * and one for each block of a key frame. Nothing is written as long as no block has a stack. */
#include "core/capture/stack_code.h"
#include "core/capture/write/event_page.h"
#include "core/ledger/block_table.h"

MS__INLINE uint8_t *put_stack(struct ms__stack_history *history, uint32_t *run, uint8_t *at, ms_stack stack)
{
    ms_stack *prediction = ms__stack_prediction(history);
    if (MS__LIKELY(*prediction == stack)) {
        ++*run;
    } else {
        if (*run)
            at = ms__put_varint(at, (uint64_t)(*run - 1) << 1 | 1);
        *run = 0;
        at = ms__put_varint(at, (uint64_t)stack << 1);
    }
    ms__stack_follow(history, prediction, stack);
    return at;
}

static uint8_t *put_last_run(uint8_t *at, uint32_t run)
{
    return run ? ms__put_varint(at, (uint64_t)(run - 1) << 1 | 1) : at;
}

/* ---- of adds ---- */

void ms__capture_close_stacks(ms_capture *capture)
{
    struct ms__page *page = capture->stacks;
    uint8_t *end = put_last_run(capture->stack_at, page ? capture->stack_run : 0);
    capture->stacks = NULL;
    capture->stack_at = capture->stack_limit = NULL;
    capture->adds_in_page = 0;
    capture->stacks_missing = false;
    if (!page)
        return;
    page->head.size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD;
    ms__page_queue(capture, page);
}

/* The first block of the page of events that has a stack: the adds before it had none. */
MS__RARE bool open_stack_page(ms_capture *capture)
{
    if (!capture->stack_history)
        capture->stack_history = ms__alloc(capture->watch, sizeof *capture->stack_history);
    struct ms__page *page = capture->stack_history ? ms__page_take(capture, MS__PAGE_BYTES) : NULL;
    capture->stacks_missing = !page;
    if (!page)
        return false;
    page->head = (struct ms__chunk_head){.kind = MS__CHUNK_ADD_STACKS,
                                         .event = capture->page->head.event,
                                         .time = capture->page->head.time,
                                         .oldest_claimed = MS__NO_CLAIM};
    capture->stacks = page;
    capture->stack_at = page->bytes + MS__CHUNK_HEAD;
    capture->stack_limit = capture->stack_at + MS__PAGE_BYTES - (size_t)2 * MS__STACK_CODE_MAX;
    memset(capture->stack_history, 0, sizeof *capture->stack_history);
    capture->stack_run = capture->adds_in_page; /* at first, MS_STACK_NONE is predicted */
    return true;
}

MS__HOT void ms__capture_stack(ms_capture *capture, ms_stack stack)
{
    if (!capture->stacks && (stack == MS_STACK_NONE || capture->stacks_missing || !open_stack_page(capture))) {
        capture->adds_in_page++;
        return;
    }
    capture->stack_at = put_stack(capture->stack_history, &capture->stack_run, capture->stack_at, stack);
    capture->adds_in_page++;
    if (MS__UNLIKELY(capture->stack_at >= capture->stack_limit))
        capture->limit = capture->at; /* the next event begins new pages */
}

/* ---- of the blocks of a key frame ---- */

static bool has_stacks(const struct ms__block_table *blocks)
{
    for (uint32_t at = 0; ms__block_next(blocks, &at) != NULL;)
        if (*ms__block_stack(blocks, at - 1))
            return true;
    return false;
}

void ms__capture_key_frame_stacks(ms_capture *capture)
{
    const struct ms__block_table *blocks = &capture->ledger->blocks;
    if (!has_stacks(blocks))
        return;
    size_t capacity = (size_t)(blocks->count + 1) * MS__STACK_CODE_MAX;
    struct ms__stack_history *history = ms__alloc_zeroed(capture->watch, sizeof *history);
    struct ms__page *page = history && capacity <= UINT32_MAX / 2
                                ? ms__alloc(capture->watch, sizeof *page + MS__CHUNK_HEAD + capacity)
                                : NULL;
    if (page) { /* without it, the blocks of the key frame have no stacks */
        uint8_t *end = page->bytes + MS__CHUNK_HEAD;
        uint32_t run = 0;
        for (uint32_t at = 0; ms__block_next(blocks, &at) != NULL;)
            end = put_stack(history, &run, end, *ms__block_stack(blocks, at - 1));
        end = put_last_run(end, run);
        page->capacity = (uint32_t)capacity;
        page->head = (struct ms__chunk_head){.kind = MS__CHUNK_KEY_STACKS,
                                             .size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD,
                                             .event = capture->event,
                                             .time = capture->time,
                                             .oldest_claimed = MS__NO_CLAIM};
        ms__page_queue(capture, page);
    }
    ms__free(capture->watch, history);
}
