/* actions.c - an edit as actions, each before one event of the stream:
 *
 *     FREE_KEPT    a block that a checkpointed call keeps is freed: in forward when nothing uses it any more, and in
 *                  backward where a recomputed block is freed earlier than a saved one
 *     RECOMPUTE    before the first node that needs what the call keeps: its forward runs again
 *     DROP_INPUT   when its backward has ended: an input is freed if the program freed it before
 *     END_BLOCK    a block whose end an edit moved is freed
 *     INSERT_DROP, INSERT_ADD    an inserted block
 *
 * A result that a checkpoint keeps and backward does not need lives until the recomputation has come to where forward
 * freed it. */
#include "replay/feed.h"

#include <stdlib.h>

enum action_kind { INSERT_DROP, END_BLOCK, DROP_INPUT, FREE_KEPT, RECOMPUTE, INSERT_ADD };

/* ---- what actions do ---- */
static bool is_kept(const ms__replay_feed *feed, const ms__replay_edited_call *edited, uint32_t block)
{
    return ms_replay_call_keeps(feed->stream, &feed->stream->calls[edited->call], &feed->stream->blocks[block]);
}

static uint8_t role_of(const ms__replay_feed *feed, uint32_t block)
{
    return feed->edit->blocks[block].role;
}

static bool is_only_result(const ms__replay_feed *feed, const ms__replay_edited_call *edited, uint32_t block)
{
    return role_of(feed, block) == MS_REPLAY_RESULT && edited->last != MS_REPLAY_NONE &&
           ms__replay_call_is_in(feed->stream, feed->stream->blocks[block].call, edited->call) &&
           !is_kept(feed, edited, block);
}

/* A checkpoint holds the block no more: it is freed if the program has freed it before event `at`. */
static void let_go(ms__replay_feed *feed, uint32_t block, uint32_t at)
{
    if (--feed->holders[block].count == 0 && (feed->edit->blocks[block].end < at || feed->holders[block].is_over))
        ms__replay_feed_release(feed, &feed->blocks[block]);
}

/* An offloaded block is held on device `to` until it is brought back. */
static int free_kept(ms__replay_feed *feed, uint32_t block, uint32_t to)
{
    if (feed->holders[block].count) {
        feed->holders[block].is_over = true;
        return MS_OK;
    }
    ms__replay_feed_release(feed, &feed->blocks[block]);
    const ms__replay_changed_block *changed = &feed->edit->blocks[block];
    return to == feed->device && changed->device != feed->device
               ? ms__replay_feed_hold_block(feed, block, changed->bytes)
               : MS_OK;
}

static int bring_back(ms__replay_feed *feed, const ms__replay_edited_call *edited)
{
    const ms_replay_call *call = &feed->stream->calls[edited->call];
    int error = MS_OK;
    for (uint32_t i = call->first_block; !error && i < call->last_block; i++) {
        if (!is_kept(feed, edited, i) || ms__replay_call_returns(feed->stream, edited, i))
            continue;
        ms__replay_feed_release(feed, &feed->blocks[i]);
        error = ms__replay_feed_hold_block(feed, i, ms__replay_feed_bytes(feed, i));
    }
    return error;
}

static int make_room_for_actions(ms__replay_feed *feed, uint32_t count)
{
    if (!MS__ARRAY_GROW(feed->temporary, feed->temporary_room, count))
        return MS_ENOMEM;
    if (count)
        memset(feed->temporary, 0, count * sizeof *feed->temporary);
    return MS_OK;
}

/* A recomputation needs a workspace for the thread of backward. It has one if its own nodes took one, or an earlier
 * recomputation did. */
static bool has_workspace(ms__replay_feed *feed, uint32_t workspace, uint32_t before)
{
    const ms_replay_block *blocks = feed->stream->blocks;
    uint64_t bytes = blocks[workspace].requested;
    if (bytes == feed->workspace_bytes)
        return true;
    feed->workspace_bytes = bytes;
    for (uint32_t i = workspace + 1; i < feed->stream->block_count && blocks[i].add < before; i++)
        if (blocks[i].requested == bytes && blocks[i].phase == MS_BACKWARD && ms__replay_is_workspace(&blocks[i]))
            return true;
    return false;
}

/* Replay the call's own events again, up to the last tensor that autograd saves in it: torch stops a recomputation
 * there. A block that is not kept is freed where it was freed in forward, or at the end of the recomputation. */
static int run_again(ms__replay_feed *feed, const ms__replay_edited_call *edited)
{
    const ms_replay_stream *stream = feed->stream;
    const ms_replay_call *call = &stream->calls[edited->call];
    int error = MS_OK;
    for (uint32_t i = call->begin; !error && i <= edited->last; i++) {
        const ms_replay_event *event = &stream->events[i];
        if (event->kind == MS_REPLAY_POSITION && event->thread == call->thread)
            feed->now.path = (ms_path)event->value;
        if (event->kind != MS_REPLAY_ADD && event->kind != MS_REPLAY_DROP)
            continue;
        uint32_t block = (uint32_t)event->value;
        if (!ms__replay_call_is_in(stream, stream->blocks[block].call, edited->call))
            continue;
        if (role_of(feed, block)) {
            if (event->kind == MS_REPLAY_DROP && is_only_result(feed, edited, block))
                let_go(feed, block, edited->backward);
            continue;
        }
        ms__replay_held workspace = {0};
        if (ms__replay_is_workspace(&stream->blocks[block])) {
            feed->block = block;
            if (!has_workspace(feed, block, edited->backward))
                error = ms__replay_feed_hold(feed, &workspace, ms__replay_feed_bytes(feed, block),
                                             stream->blocks[block].stream);
            continue;
        }
        bool kept = is_kept(feed, edited, block);
        ms__replay_held *held = kept ? &feed->blocks[block] : &feed->temporary[block - call->first_block];
        ms__replay_feed_release(
            feed, held); /* Before an add too: a kept block is still held if it is the input of another call. */
        feed->block = block;
        if (event->kind == MS_REPLAY_ADD)
            error = ms__replay_feed_hold(feed, held, ms__replay_feed_bytes(feed, block), stream->blocks[block].stream);
    }
    return error;
}

static int recompute(ms__replay_feed *feed, const ms__replay_edited_call *edited)
{
    const ms_replay_call *call = &feed->stream->calls[edited->call];
    ms_replay_position now = feed->now;
    uint32_t count = call->last_block - call->first_block;
    int error = make_room_for_actions(feed, count);
    if (error || edited->last == MS_REPLAY_NONE)
        return error;
    feed->now.phase = MS_RECOMPUTE;
    for (uint32_t i = call->first_block; i < call->last_block; i++)
        if (feed->blocks[i].bytes && !role_of(feed, i) && is_kept(feed, edited, i))
            ms__replay_feed_release(feed, &feed->blocks[i]); /* its output */
    error = run_again(feed, edited);
    for (uint32_t i = 0; i < count; i++)
        ms__replay_feed_release(feed, &feed->temporary[i]);
    for (uint32_t i = call->first_block; !error && i < call->last_block; i++)
        if (feed->stream->blocks[i].drop > edited->last && is_only_result(feed, edited, i))
            let_go(feed, i, edited->backward);
    feed->now = now;
    return error;
}

int ms__replay_feed_act(ms__replay_feed *feed, const ms__replay_action *action)
{
    const ms_replay_edit *edit = feed->edit;
    const ms__replay_inserted_block *inserted;
    switch (action->kind) {
    case INSERT_DROP:
        ms__replay_feed_release(feed, &feed->inserted[action->index]);
        return MS_OK;
    case INSERT_ADD:
        inserted = &edit->inserted[feed->insertions[action->index]];
        feed->block = MS_REPLAY_NONE;
        return inserted->device == feed->device
                   ? ms__replay_feed_hold(feed, &feed->inserted[action->index], inserted->bytes, inserted->stream)
                   : MS_OK;
    case END_BLOCK:
        if (!feed->holders[action->index].count)
            ms__replay_feed_release(feed, &feed->blocks[action->index]);
        return MS_OK;
    case DROP_INPUT:
        let_go(feed, action->index, action->at);
        return MS_OK;
    case FREE_KEPT:
        return free_kept(feed, action->index, action->to);
    default:
        return action->to == MS_REPLAY_NONE ? recompute(feed, &edit->calls[action->index])
                                            : bring_back(feed, &edit->calls[action->index]);
    }
}

/* ---- which actions an edit has ---- */
static int order_actions(const void *a, const void *b)
{
    const ms__replay_action *first = a, *second = b;
    if (first->at != second->at)
        return first->at < second->at ? -1 : 1;
    if (first->kind != second->kind)
        return first->kind < second->kind ? -1 : 1;
    return first->order < second->order ? -1 : first->order > second->order;
}

static int append_action(ms__replay_feed *feed, ms__replay_action action)
{
    if (feed->action_count == MS_REPLAY_NONE - 1 ||
        !MS__ARRAY_GROW(feed->actions, feed->action_room, feed->action_count + 1))
        return MS_ENOMEM;
    feed->actions[feed->action_count++] = action;
    return MS_OK;
}

static int append_free(ms__replay_feed *feed, const ms__replay_edited_call *edited, uint32_t block)
{
    bool returned = ms__replay_call_returns(feed->stream, edited, block);
    uint32_t end = returned ? ms__replay_returned_end(feed->stream, edited, block)
                            : ms__replay_varied_end(feed->stream, edited, block, feed->edit->variant);
    ms__replay_action action = {.at = end, .kind = FREE_KEPT, .order = block, .index = block, .to = edited->to};
    bool is_never = end == MS_REPLAY_NONE || (returned && edited->to != MS_REPLAY_NONE) || role_of(feed, block);
    int error = is_never ? MS_OK : append_action(feed, action);
    action.at = edited->to == MS_REPLAY_NONE ? ms__replay_recomputed_end(feed->stream, block) : MS_REPLAY_NONE;
    return error || action.at >= feed->stream->blocks[block].drop ? error : append_action(feed, action);
}

/* A checkpoint holds what it takes until its backward has ended. */
static int append_input(ms__replay_feed *feed, const ms__replay_edited_call *edited, uint32_t input)
{
    feed->holders[input].count++;
    return append_action(feed,
                         (ms__replay_action){.at = edited->end, .kind = DROP_INPUT, .order = input, .index = input});
}

static int append_call(ms__replay_feed *feed, uint32_t index)
{
    const ms__replay_edited_call *edited = &feed->edit->calls[index];
    const ms_replay_call *call = &feed->stream->calls[edited->call];
    int error = MS_OK;
    for (uint32_t i = call->first_block; !error && i < call->last_block; i++)
        if (is_kept(feed, edited, i))
            error = append_free(feed, edited, i);
        else
            feed->holders[i].count += is_only_result(feed, edited, i);
    if (edited->to == MS_REPLAY_NONE && edited->end != MS_REPLAY_NONE)
        for (uint32_t i = 0, input;
             !error && (input = ms__replay_call_input(feed->stream, edited, i)) != MS_REPLAY_NONE; i++)
            error = append_input(feed, edited, input);
    /* Where two backwards begin with the same event, that of the later call comes first. */
    return error ? error
                 : append_action(feed, (ms__replay_action){.at = edited->backward,
                                                           .kind = RECOMPUTE,
                                                           .order = MS_REPLAY_NONE - edited->call,
                                                           .index = index,
                                                           .to = edited->to});
}

static int append_inserted(ms__replay_feed *feed, uint32_t index)
{
    uint32_t order = feed->insertions[index];
    const ms__replay_inserted_block *block = &feed->edit->inserted[order];
    ms__replay_action action = {.at = block->begin, .kind = INSERT_ADD, .order = order, .index = index};
    int error = append_action(feed, action);
    action.at = block->end;
    action.kind = INSERT_DROP;
    return error || block->end == MS_REPLAY_NONE ? error : append_action(feed, action);
}

static int append_ends(ms__replay_feed *feed)
{
    int error = MS_OK;
    for (uint32_t i = 0; !error && i < feed->stream->block_count; i++) {
        uint32_t end = feed->edit->blocks[i].end;
        if (end != feed->stream->blocks[i].drop && end != MS_REPLAY_NONE)
            error = append_action(feed, (ms__replay_action){.at = end, .kind = END_BLOCK, .order = i, .index = i});
    }
    return error;
}

static bool order_insertions(ms__replay_feed *feed)
{
    const ms_replay_edit *edit = feed->edit;
    ms__replay_ordered list = {NULL, 0, 0};
    bool done = true;
    feed->insertions = calloc((size_t)edit->inserted_count + 1, sizeof *feed->insertions);
    for (uint32_t i = 0; done && i < edit->inserted_count; i++)
        done = ms__replay_ordered_add(&list, edit->inserted[i].begin, 0, i);
    ms__replay_ordered_sort(&list);
    for (uint32_t i = 0; done && feed->insertions && i < list.count; i++)
        feed->insertions[i] = list.at[i].index;
    free(list.at);
    return done && feed->insertions;
}

int ms__replay_feed_make_actions(ms__replay_feed *feed)
{
    const ms_replay_edit *edit = feed->edit;
    int error = order_insertions(feed) ? MS_OK : MS_ENOMEM;
    feed->inserted = calloc((size_t)edit->inserted_count + 1, sizeof *feed->inserted);
    feed->holders = calloc((size_t)feed->stream->block_count + 1, sizeof *feed->holders);
    if (error || !feed->inserted || !feed->holders)
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
