/* live.c - the blocks that are held while a capture is played: when each begins, ends, or becomes something else. */
#include "export/play.h"

#include <stdlib.h>

static mse_block *find(const mse_live *live, uint32_t slot)
{
    uint32_t at = mse_index_get(&live->by_slot, slot);
    return at == MSE_NONE ? NULL : &live->blocks[at];
}

static bool wants(const mse_live *live, uint32_t device)
{
    return live->devices >> device & 1;
}

static int begin(mse_live *live, const mse_block *block, mse_how how)
{
    if (live->count == MSE_NONE ||
        !mse_grow((void **)&live->blocks, &live->room, live->count + 1, sizeof *live->blocks) ||
        !mse_index_set(&live->by_slot, block->slot, (uint32_t)live->count))
        return MS_ENOMEM;
    live->blocks[live->count] = *block;
    return live->watcher->begin(live->self, &live->blocks[live->count++], how);
}

static int end(mse_live *live, mse_block *block, mse_how how)
{
    int error = live->watcher->end(live->self, block, how);
    mse_index_drop(&live->by_slot, block->slot);
    const mse_block *last = &live->blocks[--live->count];
    if (block == last || error)
        return error;
    *block = *last; /* its slot is there: no memory is needed */
    return mse_index_set(&live->by_slot, block->slot, (uint32_t)(block - live->blocks)) ? MS_OK : MS_ENOMEM;
}

static int change(mse_live *live, mse_block *block, uint8_t category, ms_path path)
{
    if (block->category == category && block->path == path)
        return MS_OK;
    mse_block before = *block;
    block->category = category;
    block->path = path;
    return live->watcher->change(live->self, &before, block);
}

/* ---- events ---- */
static int add(mse_live *live, const ms_cursor *cursor, const ms_event *event)
{
    return begin(live,
                 &(mse_block){.bytes = event->bytes,
                              .made_at = event->time,
                              .step = ms_cursor_step(cursor),
                              .id = (int64_t)event->number,
                              .slot = event->slot,
                              .device = event->device,
                              .look = live->look,
                              .path = event->path,
                              .category = event->category,
                              .phase = event->phase},
                 MSE_SEEN);
}

int mse_live_event(mse_live *live, const ms_cursor *cursor, const ms_event *event)
{
    bool of_block = event->op == MS_OP_ADD || event->op == MS_OP_DROP || event->op == MS_OP_CLAIM;
    if (!of_block || !wants(live, event->device))
        return MS_OK;
    mse_block *block = find(live, event->slot);
    if (event->op == MS_OP_ADD)
        return add(live, cursor, event);
    if (!block)
        return MS_OK;
    return event->op == MS_OP_DROP ? end(live, block, MSE_SEEN) : change(live, block, event->category, event->path);
}

/* ---- key frames ---- */
static bool is_same(const mse_block *block, const ms_captured_block *held)
{
    return block->bytes == held->bytes && block->device == held->device && block->made_at == held->made_at &&
           block->step == held->step;
}

static int begin_unseen(mse_live *live, const ms_captured_block *held)
{
    return begin(live,
                 &(mse_block){.bytes = held->bytes,
                              .made_at = held->made_at,
                              .step = held->step,
                              .id = --live->unseen,
                              .slot = held->slot,
                              .device = held->device,
                              .look = live->look,
                              .path = held->path,
                              .category = held->category,
                              .phase = held->phase},
                 MSE_UNSEEN);
}

static int see(mse_live *live, const ms_captured_block *held)
{
    mse_block *block = find(live, held->slot);
    if (!block)
        return begin_unseen(live, held);
    block->look = live->look;
    return change(live, block, held->category, held->path);
}

/* What is there no more goes first, so that it is never more than was held. */
static int end_gone(mse_live *live, const ms_cursor *cursor)
{
    ms_captured_block held;
    int error = MS_OK;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &held);) {
        mse_block *block = find(live, held.slot);
        if (block && is_same(block, &held))
            block->look = live->look;
    }
    for (size_t i = live->count; live->blocks && i-- && !error;)
        if (live->blocks[i].look != live->look)
            error = end(live, &live->blocks[i], MSE_UNSEEN);
    return error;
}

int mse_live_key(mse_live *live, const ms_cursor *cursor)
{
    ms_captured_block held;
    live->look++;
    int error = end_gone(live, cursor);
    for (uint32_t at = 0; !error && ms_cursor_block(cursor, &at, &held);)
        if (wants(live, held.device))
            error = see(live, &held);
    return error;
}

void mse_live_close(mse_live *live)
{
    free(live->blocks);
    mse_index_close(&live->by_slot);
    *live = (mse_live){0};
}
