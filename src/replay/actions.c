/* actions.c - an edit as actions, each before one event of the stream:
 *
 *     FREE_KEPT    a block that a checkpointed call keeps is freed: in forward when nothing uses it any more, and in
 *                  backward where a recomputed block is freed earlier than a saved one
 *     RECOMPUTE    before the first node that needs what the call keeps: its forward runs again
 *     DROP_INPUT   when its backward has ended: an input is freed if the program freed it before
 *     END_BLOCK    a block whose end an edit moved is freed
 *     INSERT_DROP, INSERT_ADD    an inserted block */
#include "replay/feed.h"

#include <stdlib.h>

enum action_kind { INSERT_DROP, END_BLOCK, DROP_INPUT, FREE_KEPT, RECOMPUTE, INSERT_ADD };

/* ---- what actions do ---- */
static bool is_kept(const msp_feed *feed, const msp_edited_call *edited, uint32_t block)
{
    return msp_call_keeps(feed->stream, &feed->stream->calls[edited->call], &feed->stream->blocks[block]);
}

/* An offloaded block is held on device `to` until it is brought back. */
static int free_kept(msp_feed *feed, uint32_t block, uint32_t to)
{
    if (feed->holders[block].count) {
        feed->holders[block].is_over = true;
        return MS_OK;
    }
    msp_feed_release(feed, &feed->blocks[block]);
    const msp_changed_block *changed = &feed->edit->blocks[block];
    return to == feed->device && changed->device != feed->device ? msp_feed_hold_block(feed, block, changed->bytes)
                                                                 : MS_OK;
}

static int bring_back(msp_feed *feed, const msp_edited_call *edited)
{
    const msp_call *call = &feed->stream->calls[edited->call];
    int error = MS_OK;
    for (uint32_t i = call->first_block; !error && i < call->last_block; i++) {
        if (!is_kept(feed, edited, i) || msp_call_returns(feed->stream, edited, i))
            continue;
        msp_feed_release(feed, &feed->blocks[i]);
        error = msp_feed_hold_block(feed, i, msp_feed_bytes(feed, i));
    }
    return error;
}

static int make_room(msp_feed *feed, uint32_t count)
{
    if (!msp_grow((void **)&feed->temporary, &feed->temporary_room, count, sizeof *feed->temporary))
        return MS_ENOMEM;
    if (count)
        memset(feed->temporary, 0, count * sizeof *feed->temporary);
    return MS_OK;
}

/* Whether the block is a workspace that a library keeps for each thread: nothing frees it, and no object holds it. */
static bool is_workspace(const msp_block *block)
{
    return block->drop == MSP_NONE && !msp_is_held_by_object(block->category);
}

/* A recomputation needs a workspace for the thread of backward. It has one if its own nodes took one, or an earlier
 * recomputation did. */
static bool has_workspace(msp_feed *feed, uint32_t workspace, uint32_t before)
{
    const msp_block *blocks = feed->stream->blocks;
    uint64_t bytes = blocks[workspace].requested;
    if (bytes == feed->workspace_bytes)
        return true;
    feed->workspace_bytes = bytes;
    for (uint32_t i = workspace + 1; i < feed->stream->block_count && blocks[i].add < before; i++)
        if (blocks[i].requested == bytes && blocks[i].phase == MS_BACKWARD && is_workspace(&blocks[i]))
            return true;
    return false;
}

/* Replay the call's own events again, up to the last tensor that autograd saves in it: torch stops a recomputation
 * there. A block that is not kept is freed where it was freed in forward, or at the end of the recomputation. */
static int run_again(msp_feed *feed, const msp_edited_call *edited)
{
    const msp_stream *stream = feed->stream;
    const msp_call *call = &stream->calls[edited->call];
    int error = MS_OK;
    for (uint32_t i = call->begin; !error && i <= edited->last; i++) {
        const msp_event *event = &stream->events[i];
        if (event->kind == MSP_POSITION && event->thread == call->thread)
            feed->now.path = (ms_path)event->value;
        if (event->kind != MSP_ADD && event->kind != MSP_DROP)
            continue;
        uint32_t block = (uint32_t)event->value;
        if (!msp_call_is_in(stream, stream->blocks[block].call, edited->call))
            continue;
        msp_held workspace = {NULL, 0};
        if (is_workspace(&stream->blocks[block])) {
            if (!has_workspace(feed, block, edited->backward))
                error = msp_feed_hold(feed, &workspace, msp_feed_bytes(feed, block), stream->blocks[block].stream);
            continue;
        }
        bool kept = is_kept(feed, edited, block);
        msp_held *held = kept ? &feed->blocks[block] : &feed->temporary[block - call->first_block];
        msp_feed_release(feed,
                         held); /* Before an add too: a kept block is still held if it is the input of another call. */
        if (event->kind == MSP_ADD)
            error = msp_feed_hold(feed, held, msp_feed_bytes(feed, block), stream->blocks[block].stream);
    }
    return error;
}

static int recompute(msp_feed *feed, const msp_edited_call *edited)
{
    const msp_call *call = &feed->stream->calls[edited->call];
    msp_position now = feed->now;
    uint32_t count = call->last_block - call->first_block;
    int error = make_room(feed, count);
    if (error || edited->last == MSP_NONE)
        return error;
    feed->now.phase = MS_RECOMPUTE;
    for (uint32_t i = call->first_block; i < call->last_block; i++)
        if (feed->blocks[i].bytes && is_kept(feed, edited, i))
            msp_feed_release(feed, &feed->blocks[i]); /* its output */
    error = run_again(feed, edited);
    for (uint32_t i = 0; i < count; i++)
        msp_feed_release(feed, &feed->temporary[i]);
    feed->now = now;
    return error;
}

int msp_feed_act(msp_feed *feed, const msp_action *action)
{
    const msp_edit *edit = feed->edit;
    switch (action->kind) {
    case INSERT_DROP:
        msp_feed_release(feed, &feed->inserted[action->index]);
        return MS_OK;
    case INSERT_ADD:
        return edit->inserted[action->index].device == feed->device
                   ? msp_feed_hold(feed, &feed->inserted[action->index], edit->inserted[action->index].bytes,
                                   edit->inserted[action->index].stream)
                   : MS_OK;
    case END_BLOCK:
        if (!feed->holders[action->index].count)
            msp_feed_release(feed, &feed->blocks[action->index]);
        return MS_OK;
    case DROP_INPUT:
        if (--feed->holders[action->index].count == 0 &&
            (edit->blocks[action->index].end < action->at || feed->holders[action->index].is_over))
            msp_feed_release(feed, &feed->blocks[action->index]);
        return MS_OK;
    case FREE_KEPT:
        return free_kept(feed, action->index, action->to);
    default:
        return action->to == MSP_NONE ? recompute(feed, &edit->calls[action->index])
                                      : bring_back(feed, &edit->calls[action->index]);
    }
}

/* ---- which actions an edit has ---- */
static int order_actions(const void *a, const void *b)
{
    const msp_action *first = a, *second = b;
    if (first->at != second->at)
        return first->at < second->at ? -1 : 1;
    if (first->kind != second->kind)
        return first->kind < second->kind ? -1 : 1;
    return first->order < second->order ? -1 : first->order > second->order;
}

static int append_action(msp_feed *feed, msp_action action)
{
    if (feed->action_count == MSP_NONE - 1 ||
        !msp_grow((void **)&feed->actions, &feed->action_room, feed->action_count + 1, sizeof *feed->actions))
        return MS_ENOMEM;
    feed->actions[feed->action_count++] = action;
    return MS_OK;
}

static int append_free(msp_feed *feed, const msp_edited_call *edited, uint32_t block)
{
    bool returned = msp_call_returns(feed->stream, edited, block);
    uint32_t end =
        returned ? msp_returned_end(feed->stream, edited, block) : msp_unsaved_end(feed->stream, edited, block);
    msp_action action = {.at = end, .kind = FREE_KEPT, .order = block, .index = block, .to = edited->to};
    int error = end == MSP_NONE || (returned && edited->to != MSP_NONE) ? MS_OK : append_action(feed, action);
    action.at = edited->to == MSP_NONE ? msp_recomputed_end(feed->stream, block) : MSP_NONE;
    return error || action.at >= feed->stream->blocks[block].drop ? error : append_action(feed, action);
}

/* A checkpoint holds what it takes until its backward has ended. */
static int append_input(msp_feed *feed, const msp_edited_call *edited, uint32_t input)
{
    feed->holders[input].count++;
    return append_action(feed, (msp_action){.at = edited->end, .kind = DROP_INPUT, .order = input, .index = input});
}

static int append_call(msp_feed *feed, uint32_t index)
{
    const msp_edited_call *edited = &feed->edit->calls[index];
    const msp_call *call = &feed->stream->calls[edited->call];
    int error = MS_OK;
    for (uint32_t i = call->first_block; !error && i < call->last_block; i++)
        if (is_kept(feed, edited, i))
            error = append_free(feed, edited, i);
    if (edited->to == MSP_NONE && edited->end != MSP_NONE)
        for (uint32_t i = 0, input; !error && (input = msp_call_input(feed->stream, edited, i)) != MSP_NONE; i++)
            error = append_input(feed, edited, input);
    /* Where two backwards begin with the same event, that of the later call comes first. */
    return error ? error
                 : append_action(feed, (msp_action){.at = edited->backward,
                                                    .kind = RECOMPUTE,
                                                    .order = MSP_NONE - edited->call,
                                                    .index = index,
                                                    .to = edited->to});
}

static int append_inserted(msp_feed *feed, uint32_t index)
{
    const msp_inserted_block *block = &feed->edit->inserted[index];
    msp_action action = {.at = block->begin, .kind = INSERT_ADD, .order = index, .index = index};
    int error = append_action(feed, action);
    action.at = block->end;
    action.kind = INSERT_DROP;
    return error || block->end == MSP_NONE ? error : append_action(feed, action);
}

static int append_ends(msp_feed *feed)
{
    int error = MS_OK;
    for (uint32_t i = 0; !error && i < feed->stream->block_count; i++) {
        uint32_t end = feed->edit->blocks[i].end;
        if (end != feed->stream->blocks[i].drop && end != MSP_NONE)
            error = append_action(feed, (msp_action){.at = end, .kind = END_BLOCK, .order = i, .index = i});
    }
    return error;
}

int msp_feed_make_actions(msp_feed *feed)
{
    const msp_edit *edit = feed->edit;
    int error = MS_OK;
    feed->inserted = calloc((size_t)edit->inserted_count + 1, sizeof *feed->inserted);
    feed->holders = calloc((size_t)feed->stream->block_count + 1, sizeof *feed->holders);
    if (!feed->inserted || !feed->holders)
        return MS_ENOMEM;
    for (uint32_t i = 0; !error && i < edit->call_count; i++)
        error = append_call(feed, i);
    for (uint32_t i = 0; !error && i < edit->inserted_count; i++)
        error = append_inserted(feed, i);
    if (!error)
        error = append_ends(feed);
    if (feed->action_count)
        qsort(feed->actions, feed->action_count, sizeof *feed->actions, order_actions);
    return error;
}
