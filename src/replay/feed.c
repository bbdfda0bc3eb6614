/* feed.c - feeds the events of a stream, with the actions of an edit between them, to the allocator's model. */
#include "replay/feed.h"

#include <stdlib.h>

/* ---- blocks ---- */
static void update_figures(msp_feed *feed)
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

int msp_feed_hold(msp_feed *feed, msp_held *held, uint64_t bytes, uint64_t stream)
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

int msp_feed_hold_block(msp_feed *feed, uint32_t block, uint64_t bytes)
{
    return msp_feed_hold(feed, &feed->blocks[block], bytes, feed->stream->blocks[block].stream);
}

void msp_feed_release(msp_feed *feed, msp_held *held)
{
    if (!held->bytes)
        return;
    if (feed->allocator)
        ms_allocator_free(feed->allocator, held->allocation);
    else
        feed->allocated -= held->bytes;
    *held = (msp_held){NULL, 0};
    update_figures(feed);
}

uint64_t msp_feed_bytes(const msp_feed *feed, uint32_t block)
{
    const msp_block *of = &feed->stream->blocks[block];
    uint32_t device = feed->edit ? feed->edit->blocks[block].device : of->device;
    if (device != feed->device || (of->outside && feed->allocator))
        return 0;
    return feed->edit ? feed->edit->blocks[block].bytes : of->requested;
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

static void open_curve(msp_feed *feed)
{
    msp_curve_range *curve = feed->curve;
    curve->filled = 0;
    feed->curve_begin = index_of_number(feed->stream, curve->first);
    uint32_t end = index_of_number(feed->stream, curve->last);
    feed->curve_length = end > feed->curve_begin && curve->count ? end - feed->curve_begin : 0;
}

/* Turn to the curve's item of an event. Items without an event of their own are filled too. */
static void begin_point(msp_feed *feed, uint32_t index)
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
static void begin_event(msp_feed *feed, uint32_t index)
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

static void compare_reserved(msp_feed *feed, uint32_t block)
{
    if (feed->allocator && feed->stream->blocks[block].device == feed->device)
        feed->result->disagreements += feed->reserved != feed->recorded;
}

/* Without edits the model gives segments the addresses that they had, as long as it takes the same ones. */
static int add_block(msp_feed *feed, uint32_t block)
{
    uint64_t segment = feed->stream->blocks[block].segment, bytes = msp_feed_bytes(feed, block);
    if (segment && bytes && feed->places_segments && !feed->result->disagreements)
        ms_allocator_place_next(feed->allocator, segment);
    return msp_feed_hold_block(feed, block, bytes);
}

/* Whether a block is freed where it was: no checkpoint holds it, and no edit moved its end to a later event. */
static bool drops_here(const msp_feed *feed, uint32_t block)
{
    if (!feed->edit)
        return true;
    return !feed->holders[block].count && feed->edit->blocks[block].end <= feed->stream->blocks[block].drop;
}

static int replay_event(msp_feed *feed, const msp_event *event)
{
    int error = MS_OK;
    switch (event->kind) {
    case MSP_ADD:
        error = add_block(feed, (uint32_t)event->value);
        compare_reserved(feed, (uint32_t)event->value);
        break;
    case MSP_DROP:
        if (drops_here(feed, (uint32_t)event->value))
            msp_feed_release(feed, &feed->blocks[event->value]);
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

static int begin_replay(msp_feed *feed)
{
    int error = MS_OK;
    feed->recorded = feed->stream->reserved_first[feed->device];
    for (uint32_t i = 0; !error && i < feed->stream->block_count && feed->stream->blocks[i].add == MSP_NONE; i++)
        error = msp_feed_hold_block(feed, i, msp_feed_bytes(feed, i));
    return error;
}

static int replay_events(msp_feed *feed)
{
    uint32_t next = 0, count = feed->edit ? feed->edit->last_event : feed->stream->event_count;
    int error = begin_replay(feed);
    for (uint32_t i = 0; !error && i < count; i++) {
        begin_event(feed, i);
        for (; !error && next < feed->action_count && feed->actions[next].at == i; next++)
            error = msp_feed_act(feed, &feed->actions[next]);
        if (!error)
            error = replay_event(feed, &feed->stream->events[i]);
    }
    for (; !error && count == feed->stream->event_count && next < feed->action_count; next++)
        error = msp_feed_act(feed, &feed->actions[next]);
    return error;
}

/* ---- the whole ---- */
static int open_feed(msp_feed *feed, const ms_allocator_settings *settings)
{
    feed->blocks = calloc((size_t)feed->stream->block_count + 1, sizeof *feed->blocks);
    feed->threads = calloc((size_t)feed->stream->thread_count + 1, sizeof *feed->threads);
    feed->allocator = settings ? ms_allocator_open(settings, NULL) : NULL;
    feed->places_segments = settings && !feed->edit && !settings->expandable_segments;
    if (!feed->blocks || !feed->threads || (settings && !feed->allocator))
        return MS_ENOMEM;
    return feed->edit ? msp_feed_make_actions(feed) : MS_OK;
}

int msp_replay(const msp_stream *stream, const msp_edit *edit, uint32_t device, const ms_allocator_settings *settings,
               msp_curve_range *curve, msp_result *result)
{
    *result = (msp_result){0};
    if (device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    msp_feed feed = {.stream = stream, .edit = edit, .device = device, .curve = curve, .result = result};
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
