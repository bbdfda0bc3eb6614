/* walk.c - goes through a capture from its beginning to a moment, and knows which blocks are held meanwhile. */
#include "export/walk.h"

#include <stdlib.h>

enum { PROGRESS_EVENTS = 4096 }; /* events between two updates of the progress */

static int walk_event(const ms_export_job *job, const ms__export_walk_handler *handler, void *self, ms_cursor *cursor,
                      bool *at_end)
{
    ms_event event;
    int error = ms_cursor_next_or_jump(cursor, &event);
    *at_end = error == MS_EEND || (error == MS_JUMPED && ms_cursor_moment(cursor) > job->last);
    if (*at_end)
        return MS_OK;
    if (error == MS_JUMPED)
        return handler->key_frame(self, cursor, false);
    return error ? error : handler->event(self, cursor, &event);
}

static int walk_events(const ms_export_job *job, const ms__export_walk_handler *handler, void *self, ms_cursor *cursor,
                       ms__export_output *output, double part, double share)
{
    uint64_t events = ms_reader_get_status(job->reader).events;
    double all = (double)(job->last < events ? job->last : events) + 1;
    bool at_end = false;
    int error = handler->key_frame(self, cursor, true);
    for (uint64_t i = 0; !error && !at_end && ms_cursor_moment(cursor) < job->last; i++) {
        error = walk_event(job, handler, self, cursor, &at_end);
        if (i % PROGRESS_EVENTS == 0)
            output->part = part + share * ((double)ms_cursor_moment(cursor) / all);
        if (!error && output->failed)
            error = MS_ESTOPPED;
    }
    return error;
}

int ms__export_walk(const ms_export_job *job, const ms__export_walk_handler *handler, void *self,
                    ms__export_output *output, double part, double share)
{
    ms_cursor *cursor;
    int error = ms_cursor_open(job->reader, &cursor);
    if (error)
        return error;
    error = ms_cursor_load_later_claims(cursor);
    if (!error)
        error = walk_events(job, handler, self, cursor, output, part, share);
    ms_cursor_close(cursor);
    return error;
}

/* ---- the blocks that are held during a walk: when each begins, ends, or changes its owner ---- */

static ms__export_block *find_block(const ms__export_held *held, uint32_t slot)
{
    uint32_t at = ms__map_index(&held->by_slot, slot);
    return at == MS_EXPORT_NONE ? NULL : &held->blocks[at];
}

static bool counts_device(const ms__export_held *held, uint32_t device)
{
    return held->devices >> device & 1;
}

static int add_block(ms__export_held *held, const ms__export_block *block, ms__export_cause cause)
{
    if (held->count == MS_EXPORT_NONE || !MS__ARRAY_GROW(held->blocks, held->room, held->count + 1) ||
        !ms__map_set(&held->by_slot, block->slot, (uint32_t)held->count))
        return MS_ENOMEM;
    held->blocks[held->count] = *block;
    return held->handler->begin(held->self, &held->blocks[held->count++], cause);
}

/* The last block moves into its place. Its slot is in the map, so that setting it needs no memory. */
static int drop_block(ms__export_held *held, ms__export_block *block, ms__export_cause cause)
{
    int error = held->handler->end(held->self, block, cause);
    ms__map_remove(&held->by_slot, block->slot);
    const ms__export_block *last = &held->blocks[--held->count];
    if (block == last || error)
        return error;
    *block = *last;
    return ms__map_set(&held->by_slot, block->slot, (uint32_t)(block - held->blocks)) ? MS_OK : MS_ENOMEM;
}

static int claim_block(ms__export_held *held, ms__export_block *block, uint8_t category, uint8_t kind, ms_path path)
{
    if (block->category == category && block->kind == kind && block->path == path)
        return MS_OK;
    ms__export_block before = *block;
    block->category = category;
    block->kind = kind;
    block->path = path;
    return held->handler->change(held->self, &before, block);
}

/* ---- events ---- */
static int add_by_event(ms__export_held *held, const ms_cursor *cursor, const ms_event *event)
{
    return add_block(held,
                     &(ms__export_block){.bytes = event->bytes,
                                         .made_at = event->time,
                                         .step = ms_cursor_step(cursor),
                                         .id = (int64_t)event->number,
                                         .slot = event->slot,
                                         .device = event->device,
                                         .key_frame = held->key_frames,
                                         .path = event->path,
                                         .stack = event->stack,
                                         .category = event->category,
                                         .kind = event->kind,
                                         .phase = event->phase},
                     MS_EXPORT_BY_EVENT);
}

int ms__export_held_apply_event(ms__export_held *held, const ms_cursor *cursor, const ms_event *event)
{
    bool of_block = event->op == MS_OP_ADD || event->op == MS_OP_DROP || event->op == MS_OP_CLAIM;
    if (!of_block || !counts_device(held, event->device))
        return MS_OK;
    ms__export_block *block = find_block(held, event->slot);
    if (event->op == MS_OP_ADD)
        return add_by_event(held, cursor, event);
    if (!block)
        return MS_OK;
    return event->op == MS_OP_DROP ? drop_block(held, block, MS_EXPORT_BY_EVENT)
                                   : claim_block(held, block, event->category, event->kind, event->path);
}

/* ---- key frames ---- */
static bool is_same_block(const ms__export_block *block, const ms_captured_block *captured)
{
    return block->bytes == captured->bytes && block->device == captured->device &&
           block->made_at == captured->made_at && block->step == captured->step;
}

static int add_by_key_frame(ms__export_held *held, const ms_captured_block *block)
{
    return add_block(held,
                     &(ms__export_block){.bytes = block->bytes,
                                         .made_at = block->made_at,
                                         .step = block->step,
                                         .id = --held->lowest_id,
                                         .slot = block->slot,
                                         .device = block->device,
                                         .key_frame = held->key_frames,
                                         .path = block->path,
                                         .stack = block->stack,
                                         .category = block->category,
                                         .kind = block->kind,
                                         .phase = block->phase},
                     MS_EXPORT_BY_KEY_FRAME);
}

static int add_or_claim(ms__export_held *held, const ms_captured_block *captured)
{
    ms__export_block *block = find_block(held, captured->slot);
    if (!block)
        return add_by_key_frame(held, captured);
    block->key_frame = held->key_frames;
    return claim_block(held, block, captured->category, captured->kind, captured->path);
}

/* Blocks that the key frame does not contain end before new ones begin, so that the sum is never too high. */
static int drop_missing(ms__export_held *held, const ms_cursor *cursor)
{
    ms_captured_block captured;
    int error = MS_OK;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &captured);) {
        ms__export_block *block = find_block(held, captured.slot);
        if (block && is_same_block(block, &captured))
            block->key_frame = held->key_frames;
    }
    for (size_t i = held->count; held->blocks && i-- && !error;)
        if (held->blocks[i].key_frame != held->key_frames)
            error = drop_block(held, &held->blocks[i], MS_EXPORT_BY_KEY_FRAME);
    return error;
}

int ms__export_held_load_key_frame(ms__export_held *held, const ms_cursor *cursor)
{
    ms_captured_block captured;
    held->key_frames++;
    int error = drop_missing(held, cursor);
    for (uint32_t at = 0; !error && ms_cursor_block(cursor, &at, &captured);)
        if (counts_device(held, captured.device))
            error = add_or_claim(held, &captured);
    return error;
}

void ms__export_held_close(ms__export_held *held)
{
    free(held->blocks);
    ms__map_clear(&held->by_slot);
    *held = (ms__export_held){0};
}
