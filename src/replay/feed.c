/* feed.c - feeds the events of a stream, with an edit, to the allocator's model.
 *
 * An edit becomes actions, each before one event of the stream:
 *
 *     FREE_KEPT    in a checkpointed call or at its end: a block that it keeps for backward is freed
 *     RECOMPUTE    before its backward: its forward runs again
 *     DROP_INPUT   when its backward has ended: its input is freed if the program freed it before
 *     END_BLOCK    a block whose end an edit moved is freed
 *     INSERT_DROP, INSERT_ADD    an inserted block */
#include "replay/edit.h"

#include <stdlib.h>

enum action_kind { INSERT_DROP, END_BLOCK, DROP_INPUT, FREE_KEPT, RECOMPUTE, INSERT_ADD };

struct action {
    uint32_t at;    /* before this event */
    uint32_t kind;  /* actions before the same event are done in the order of their kinds */
    uint32_t order; /* among equal kinds */
    uint32_t index; /* of an inserted block, of a block that is kept, or of an edited call */
    uint32_t to;    /* of an edited call */
};

struct held {
    ms_allocation *allocation; /* NULL without a model */
    uint64_t bytes;            /* 0: it is not held */
};

struct feed {
    const msp_stream *stream;
    const msp_edit *edit; /* or NULL */
    uint32_t device;
    ms_allocator *allocator; /* NULL: no caching allocator */
    bool places_segments;    /* segments get the addresses that were recorded */
    struct held *blocks;     /* by block */
    struct held *inserted;   /* by inserted block */
    uint32_t *holders;       /* by block: how many checkpoints hold it. NULL without an edit */
    struct held *temporary;  /* of a recomputation: by block, relative to the call's first one */
    uint32_t temporary_room;
    struct action *actions;
    uint32_t action_count, action_room;
    struct position {
        uint8_t phase;
        ms_path path;
    } * threads;
    uint64_t step, allocated, reserved, recorded;
    msp_position now;                   /* of the event that is replayed */
    msp_curve_range *curve;             /* or NULL */
    uint32_t curve_begin, curve_length; /* its events */
    msp_curve *point;                   /* the curve's present item, or NULL */
    msp_result *result;
};

/* ---- blocks ---- */
static void update_figures(struct feed *feed)
{
    msp_result *result = feed->result;
    if (feed->allocator) {
        const ms_allocator_stats *stats = ms_allocator_read(feed->allocator);
        feed->allocated = (uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].now;
        feed->reserved = (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].now;
    } else {
        feed->reserved = feed->allocated;
    }
    if (feed->allocated > result->allocated_peak) {
        result->allocated_peak = feed->allocated;
        result->allocated_at = feed->now;
    }
    if (feed->reserved > result->reserved_peak) {
        result->reserved_peak = feed->reserved;
        result->reserved_at = feed->now;
    }
    if (feed->point) {
        feed->point->reserved = feed->reserved > feed->point->reserved ? feed->reserved : feed->point->reserved;
        feed->point->allocated = feed->allocated > feed->point->allocated ? feed->allocated : feed->point->allocated;
    }
}

/* MS_EDEVICE: the request fails. */
static int hold(struct feed *feed, struct held *held, uint64_t bytes, uint64_t stream)
{
    if (!bytes)
        return MS_OK;
    feed->result->requests++;
    if (feed->allocator) {
        int error = ms_allocator_malloc(feed->allocator, bytes, stream, &held->allocation);
        if (error == MS_EDEVICE) {
            feed->result->failed = true;
            feed->result->failed_bytes = bytes;
            feed->result->failed_at = feed->now;
        }
        if (error)
            return error;
    } else {
        feed->allocated += bytes;
    }
    held->bytes = bytes;
    update_figures(feed);
    return MS_OK;
}

static int hold_block(struct feed *feed, uint32_t block, uint64_t bytes)
{
    return hold(feed, &feed->blocks[block], bytes, feed->stream->blocks[block].stream);
}

static void release(struct feed *feed, struct held *held)
{
    if (!held->bytes)
        return;
    if (feed->allocator)
        ms_allocator_free(feed->allocator, held->allocation);
    else
        feed->allocated -= held->bytes;
    *held = (struct held){NULL, 0};
    update_figures(feed);
}

/* The bytes that the block takes on this device. */
static uint64_t bytes_here(const struct feed *feed, uint32_t block)
{
    const msp_block *of = &feed->stream->blocks[block];
    uint32_t device = feed->edit ? feed->edit->blocks[block].device : of->device;
    if (device != feed->device || (of->outside && feed->allocator))
        return 0;
    return feed->edit ? feed->edit->blocks[block].bytes : of->requested;
}

/* ---- actions ---- */
static bool is_kept(const struct feed *feed, const msp_edited_call *edited, uint32_t block)
{
    return msp_call_keeps(feed->stream, &feed->stream->calls[edited->call], &feed->stream->blocks[block]);
}

/* An offloaded block is held on device `to` until it is brought back. */
static int free_kept(struct feed *feed, uint32_t block, uint32_t to)
{
    release(feed, &feed->blocks[block]);
    const msp_changed_block *changed = &feed->edit->blocks[block];
    return to == feed->device && changed->device != feed->device ? hold_block(feed, block, changed->bytes) : MS_OK;
}

static int bring_back(struct feed *feed, const msp_edited_call *edited)
{
    const msp_call *call = &feed->stream->calls[edited->call];
    int error = MS_OK;
    for (uint32_t i = call->first_block; !error && i < call->last_block; i++) {
        if (i == edited->output || !is_kept(feed, edited, i))
            continue;
        release(feed, &feed->blocks[i]);
        error = hold_block(feed, i, bytes_here(feed, i));
    }
    return error;
}

static int make_room(struct feed *feed, uint32_t count)
{
    if (!msp_grow((void **)&feed->temporary, &feed->temporary_room, count, sizeof *feed->temporary))
        return MS_ENOMEM;
    if (count)
        memset(feed->temporary, 0, count * sizeof *feed->temporary);
    return MS_OK;
}

/* Replay the call's own events again, up to the last tensor that autograd saves in it: torch stops a recomputation
 * there. A block that is not kept is freed where it was freed in forward, or at the end of the recomputation. */
static int run_again(struct feed *feed, const msp_edited_call *edited)
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
        bool kept = is_kept(feed, edited, block);
        struct held *held = kept ? &feed->blocks[block] : &feed->temporary[block - call->first_block];
        release(feed, held); /* Before an add too: a kept block is still held if it is the input of another call. */
        if (event->kind == MSP_ADD)
            error = hold(feed, held, bytes_here(feed, block), stream->blocks[block].stream);
    }
    return error;
}

static int recompute(struct feed *feed, const msp_edited_call *edited)
{
    const msp_call *call = &feed->stream->calls[edited->call];
    msp_position now = feed->now;
    uint32_t count = call->last_block - call->first_block;
    int error = make_room(feed, count);
    if (error || edited->last == MSP_NONE)
        return error;
    feed->now.phase = MS_RECOMPUTE;
    if (edited->output != MSP_NONE)
        release(feed, &feed->blocks[edited->output]);
    error = run_again(feed, edited);
    for (uint32_t i = 0; i < count; i++)
        release(feed, &feed->temporary[i]);
    feed->now = now;
    return error;
}

static int act(struct feed *feed, const struct action *action)
{
    const msp_edit *edit = feed->edit;
    switch (action->kind) {
    case INSERT_DROP:
        release(feed, &feed->inserted[action->index]);
        return MS_OK;
    case INSERT_ADD:
        return edit->inserted[action->index].device == feed->device
                   ? hold(feed, &feed->inserted[action->index], edit->inserted[action->index].bytes,
                          edit->inserted[action->index].stream)
                   : MS_OK;
    case END_BLOCK:
        if (!feed->holders[action->index])
            release(feed, &feed->blocks[action->index]);
        return MS_OK;
    case DROP_INPUT:
        if (--feed->holders[action->index] == 0 && edit->blocks[action->index].end < action->at)
            release(feed, &feed->blocks[action->index]);
        return MS_OK;
    case FREE_KEPT:
        return free_kept(feed, action->index, action->to);
    default:
        return action->to == MSP_NONE ? recompute(feed, &edit->calls[action->index])
                                      : bring_back(feed, &edit->calls[action->index]);
    }
}

static int order_actions(const void *a, const void *b)
{
    const struct action *first = a, *second = b;
    if (first->at != second->at)
        return first->at < second->at ? -1 : 1;
    if (first->kind != second->kind)
        return first->kind < second->kind ? -1 : 1;
    return first->order < second->order ? -1 : first->order > second->order;
}

static int append_action(struct feed *feed, struct action action)
{
    if (feed->action_count == MSP_NONE - 1 ||
        !msp_grow((void **)&feed->actions, &feed->action_room, feed->action_count + 1, sizeof *feed->actions))
        return MS_ENOMEM;
    feed->actions[feed->action_count++] = action;
    return MS_OK;
}

static int append_call(struct feed *feed, uint32_t index)
{
    const msp_edited_call *edited = &feed->edit->calls[index];
    const msp_call *call = &feed->stream->calls[edited->call];
    int error = MS_OK;
    for (uint32_t i = call->first_block; !error && i < call->last_block; i++)
        if (i != edited->output && is_kept(feed, edited, i))
            error = append_action(feed, (struct action){.at = msp_unsaved_end(feed->stream, edited, i),
                                                        .kind = FREE_KEPT,
                                                        .order = i,
                                                        .index = i,
                                                        .to = edited->to});
    if (!error && edited->to == MSP_NONE && edited->input != MSP_NONE) {
        feed->holders[edited->input]++;
        error = append_action(
            feed, (struct action){
                      .at = edited->input_end, .kind = DROP_INPUT, .order = edited->input, .index = edited->input});
    }
    /* Where two backwards begin with the same event, that of the later call comes first. */
    return error ? error
                 : append_action(feed, (struct action){.at = call->backward,
                                                       .kind = RECOMPUTE,
                                                       .order = MSP_NONE - edited->call,
                                                       .index = index,
                                                       .to = edited->to});
}

static int append_inserted(struct feed *feed, uint32_t index)
{
    const msp_inserted_block *block = &feed->edit->inserted[index];
    struct action action = {.at = block->begin, .kind = INSERT_ADD, .order = index, .index = index};
    int error = append_action(feed, action);
    action.at = block->end;
    action.kind = INSERT_DROP;
    return error || block->end == MSP_NONE ? error : append_action(feed, action);
}

static int append_ends(struct feed *feed)
{
    int error = MS_OK;
    for (uint32_t i = 0; !error && i < feed->stream->block_count; i++) {
        uint32_t end = feed->edit->blocks[i].end;
        if (end != feed->stream->blocks[i].drop && end != MSP_NONE)
            error = append_action(feed, (struct action){.at = end, .kind = END_BLOCK, .order = i, .index = i});
    }
    return error;
}

static int make_actions(struct feed *feed)
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

/* ---- the curve ---- */

/* The index of the first event with this number or a greater one. */
static uint32_t index_of_number(const msp_stream *stream, uint64_t number)
{
    uint32_t from = 0, to = stream->event_count;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (stream->events[middle].number < number)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static void open_curve(struct feed *feed)
{
    msp_curve_range *curve = feed->curve;
    curve->filled = 0;
    feed->curve_begin = index_of_number(feed->stream, curve->first);
    uint32_t end = index_of_number(feed->stream, curve->last);
    feed->curve_length = end > feed->curve_begin && curve->count ? end - feed->curve_begin : 0;
}

/* Turn to the curve's item of an event. Items without an event of their own are filled too. */
static void begin_point(struct feed *feed, uint32_t index)
{
    msp_curve_range *curve = feed->curve;
    const msp_event *event = &feed->stream->events[index];
    if (index < feed->curve_begin || index - feed->curve_begin >= feed->curve_length) {
        feed->point = NULL;
        return;
    }
    uint32_t item = (uint32_t)((uint64_t)(index - feed->curve_begin) * curve->count / feed->curve_length);
    for (; curve->filled <= item; curve->filled++)
        curve->items[curve->filled] = (msp_curve){event->time, event->number, feed->reserved, feed->allocated};
    feed->point = &curve->items[item];
}

/* ---- events ---- */
static void begin_event(struct feed *feed, uint32_t index)
{
    const msp_event *event = &feed->stream->events[index];
    const struct position *position = &feed->threads[event->thread];
    feed->now = (msp_position){.number = event->number,
                               .time = event->time,
                               .step = feed->step,
                               .phase = (ms_phase)position->phase,
                               .path = position->path};
    if (feed->curve)
        begin_point(feed, index);
}

static void compare_reserved(struct feed *feed, uint32_t block)
{
    if (feed->allocator && feed->stream->blocks[block].device == feed->device)
        feed->result->disagreements += feed->reserved != feed->recorded;
}

/* Without edits the model gives segments the addresses that they had, as long as it takes the same ones. */
static int add_block(struct feed *feed, uint32_t block)
{
    uint64_t segment = feed->stream->blocks[block].segment, bytes = bytes_here(feed, block);
    if (segment && bytes && feed->places_segments && !feed->result->disagreements)
        ms_allocator_place_next(feed->allocator, segment);
    return hold_block(feed, block, bytes);
}

/* Whether a block is freed where it was: no checkpoint holds it, and no edit moved its end to a later event. */
static bool drops_here(const struct feed *feed, uint32_t block)
{
    if (!feed->edit)
        return true;
    return !feed->holders[block] && feed->edit->blocks[block].end <= feed->stream->blocks[block].drop;
}

static int replay_event(struct feed *feed, const msp_event *event)
{
    int error = MS_OK;
    switch (event->kind) {
    case MSP_ADD:
        error = add_block(feed, (uint32_t)event->value);
        compare_reserved(feed, (uint32_t)event->value);
        break;
    case MSP_DROP:
        if (drops_here(feed, (uint32_t)event->value))
            release(feed, &feed->blocks[event->value]);
        compare_reserved(feed, (uint32_t)event->value);
        break;
    case MSP_POSITION:
        feed->threads[event->thread] = (struct position){event->phase, (ms_path)event->value};
        break;
    case MSP_STEP:
        feed->step = event->value;
        break;
    case MSP_RESERVED:
        if (event->device == feed->device)
            feed->recorded = event->value;
        break;
    default:
        if (event->device == feed->device && feed->allocator)
            error = ms_allocator_empty_cache(feed->allocator);
        if (!error)
            update_figures(feed);
    }
    return error;
}

static int begin_replay(struct feed *feed)
{
    int error = MS_OK;
    feed->recorded = feed->stream->reserved_first[feed->device];
    for (uint32_t i = 0; !error && i < feed->stream->block_count && feed->stream->blocks[i].add == MSP_NONE; i++)
        error = hold_block(feed, i, bytes_here(feed, i));
    return error;
}

static int replay_events(struct feed *feed)
{
    uint32_t next = 0, count = feed->edit ? feed->edit->last_event : feed->stream->event_count;
    int error = begin_replay(feed);
    for (uint32_t i = 0; !error && i < count; i++) {
        begin_event(feed, i);
        for (; !error && next < feed->action_count && feed->actions[next].at == i; next++)
            error = act(feed, &feed->actions[next]);
        if (!error)
            error = replay_event(feed, &feed->stream->events[i]);
    }
    for (; !error && count == feed->stream->event_count && next < feed->action_count; next++)
        error = act(feed, &feed->actions[next]);
    return error;
}

/* ---- the whole ---- */
static int open_feed(struct feed *feed, const ms_allocator_settings *settings)
{
    feed->blocks = calloc((size_t)feed->stream->block_count + 1, sizeof *feed->blocks);
    feed->threads = calloc((size_t)feed->stream->thread_count + 1, sizeof *feed->threads);
    feed->allocator = settings ? ms_allocator_open(settings, NULL) : NULL;
    feed->places_segments = settings && !feed->edit && !settings->expandable_segments;
    if (!feed->blocks || !feed->threads || (settings && !feed->allocator))
        return MS_ENOMEM;
    return feed->edit ? make_actions(feed) : MS_OK;
}

int msp_replay(const msp_stream *stream, const msp_edit *edit, uint32_t device, const ms_allocator_settings *settings,
               msp_curve_range *curve, msp_result *result)
{
    *result = (msp_result){0};
    if (device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    struct feed feed = {.stream = stream, .edit = edit, .device = device, .curve = curve, .result = result};
    if (curve)
        open_curve(&feed);
    int error = open_feed(&feed, settings);
    if (!error)
        error = replay_events(&feed);
    if (feed.allocator)
        result->retries = (uint64_t)ms_allocator_read(feed.allocator)->retries;
    ms_allocator_close(feed.allocator);
    free(feed.blocks);
    free(feed.threads);
    free(feed.inserted);
    free(feed.holders);
    free(feed.temporary);
    free(feed.actions);
    return error == MS_EDEVICE ? MS_OK : error;
}
