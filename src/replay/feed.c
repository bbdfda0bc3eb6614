/* feed.c - feeds the events of a stream, with the actions of an edit between them, to the allocator's model. */
#include "replay/feed.h"

#include <stdlib.h>

/* ---- blocks ---- */
static void raise_to(uint64_t *highest, uint64_t value)
{
    if (value > *highest)
        *highest = value;
}

void ms__replay_feed_raise(ms__replay_feed *feed, uint64_t reserved, uint64_t allocated)
{
    raise_to(&feed->figures.high_reserved, reserved);
    raise_to(&feed->figures.high_allocated, allocated);
    if (feed->point) {
        raise_to(&feed->point->reserved, reserved);
        raise_to(&feed->point->allocated, allocated);
    }
}

static void update_figures(ms__replay_feed *feed)
{
    ms_replay_result *result = feed->result;
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
    ms__replay_feed_raise(feed, feed->reserved, feed->allocated);
}

int ms__replay_feed_hold(ms__replay_feed *feed, ms__replay_held *held, uint64_t bytes, uint64_t stream)
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
    return feed->edit && feed->reserved > feed->edit->most_reserved ? MS_EDEVICE : MS_OK; /* the replay ends */
}

int ms__replay_feed_hold_block(ms__replay_feed *feed, uint32_t block, uint64_t bytes)
{
    return ms__replay_feed_hold(feed, &feed->blocks[block], bytes, feed->stream->blocks[block].stream);
}

void ms__replay_feed_release(ms__replay_feed *feed, ms__replay_held *held)
{
    if (!held->bytes)
        return;
    if (feed->allocator)
        ms_allocator_free(feed->allocator, held->allocation);
    else
        feed->allocated -= held->bytes;
    *held = (ms__replay_held){NULL, 0};
    update_figures(feed);
}

uint64_t ms__replay_feed_bytes(const ms__replay_feed *feed, uint32_t block)
{
    const ms_replay_block *of = &feed->stream->blocks[block];
    uint32_t device = feed->edit ? feed->edit->blocks[block].device : of->device;
    if (device != feed->device || (of->outside && feed->allocator))
        return 0;
    return feed->edit ? feed->edit->blocks[block].bytes : of->requested;
}

/* ---- the curve ---- */

static void open_curve(ms__replay_feed *feed)
{
    ms_replay_curve_range *curve = feed->curve;
    curve->filled = 0;
    feed->curve_begin = ms__replay_loop_find(feed->stream, curve->first, curve->is_folded);
    uint32_t end = ms__replay_loop_find(feed->stream, curve->last, curve->is_folded);
    feed->curve_length = end > feed->curve_begin && curve->count ? end - feed->curve_begin : 0;
}

/* Turn to the curve's item of an event. Items without an event of their own are filled too. */
void ms__replay_feed_begin_point(ms__replay_feed *feed, uint32_t at)
{
    ms_replay_curve_range *curve = feed->curve;
    const ms_replay_event *event = &feed->stream->events[at];
    uint32_t index = curve->is_folded ? at : at + feed->later;
    if (index < feed->curve_begin || index - feed->curve_begin >= feed->curve_length) {
        feed->point = NULL;
        return;
    }
    uint32_t item = (uint32_t)((uint64_t)(index - feed->curve_begin) * curve->count / feed->curve_length);
    for (; curve->filled <= item; curve->filled++)
        curve->items[curve->filled] = (ms_replay_curve){.time = ms__replay_loop_time(feed, event),
                                                        .number = ms__replay_loop_number(feed, event),
                                                        .reserved = feed->reserved,
                                                        .allocated = feed->allocated};
    feed->point = &curve->items[item];
}

/* ---- events ---- */
static void begin_event(ms__replay_feed *feed, uint32_t index)
{
    const ms_replay_event *event = &feed->stream->events[index];
    const struct position *position = &feed->threads[event->thread];
    feed->figures = (struct event_figures){feed->reserved, feed->allocated, feed->reserved, feed->allocated};
    feed->now = (ms_replay_position){.number = ms__replay_loop_number(feed, event),
                                     .time = ms__replay_loop_time(feed, event),
                                     .step = feed->step,
                                     .phase = (ms_phase)position->phase,
                                     .path = position->path};
    if (feed->curve)
        ms__replay_feed_begin_point(feed, index);
}

static void compare_reserved(ms__replay_feed *feed, uint32_t block)
{
    if (feed->allocator && feed->stream->blocks[block].device == feed->device)
        feed->result->disagreements += feed->reserved != feed->recorded;
}

/* Without edits the model gives segments the addresses that they had, as long as it takes the same ones. */
static int add_block(ms__replay_feed *feed, uint32_t block)
{
    uint64_t segment = feed->stream->blocks[block].segment, bytes = ms__replay_feed_bytes(feed, block);
    bool is_placed = segment && bytes && feed->places_segments && !feed->result->disagreements;
    if (is_placed)
        ms_allocator_place_next(feed->allocator, segment);
    int error = ms__replay_feed_hold_block(feed, block, bytes);
    if (is_placed)
        ms_allocator_place_next(feed->allocator, 0);
    return error;
}

/* Whether a block is freed where it was: no checkpoint holds it, and no edit moved its end to a later event. */
static bool drops_here(const ms__replay_feed *feed, uint32_t block)
{
    if (!feed->edit)
        return true;
    return !feed->holders[block].count && feed->edit->blocks[block].end <= feed->stream->blocks[block].drop;
}

static int replay_event(ms__replay_feed *feed, const ms_replay_event *event)
{
    int error = MS_OK;
    switch (event->kind) {
    case MS_REPLAY_ADD:
        error = add_block(feed, (uint32_t)event->value);
        compare_reserved(feed, (uint32_t)event->value);
        break;
    case MS_REPLAY_DROP:
        if (drops_here(feed, (uint32_t)event->value))
            ms__replay_feed_release(feed, &feed->blocks[event->value]);
        compare_reserved(feed, (uint32_t)event->value);
        break;
    case MS_REPLAY_POSITION:
        feed->threads[event->thread] = (struct position){event->phase, (ms_path)event->value};
        break;
    case MS_REPLAY_STEP:
        feed->step = ms__replay_loop_step(feed, event);
        break;
    case MS_REPLAY_RESERVED:
        if (event->device == feed->device)
            feed->recorded = event->value;
        break;
    default:
        if (event->device == feed->device && feed->allocator && !feed->stream->lacked_room)
            error = ms_allocator_empty_cache(feed->allocator);
        if (!error)
            update_figures(feed);
    }
    return error;
}

static int begin_replay(ms__replay_feed *feed)
{
    int error = MS_OK;
    feed->recorded = feed->stream->reserved_first[feed->device];
    for (uint32_t i = 0; !error && i < feed->stream->block_count && feed->stream->blocks[i].add == MS_REPLAY_NONE; i++)
        error = ms__replay_feed_hold_block(feed, i, ms__replay_feed_bytes(feed, i));
    return error;
}

static int replay_events(ms__replay_feed *feed)
{
    uint32_t next = 0, count = feed->edit ? feed->edit->last_event : feed->stream->event_count;
    int error = begin_replay(feed);
    for (uint32_t i = 0; !error; i++) {
        error = ms__replay_loop_turn(feed, &i, &next);
        if (error || i >= count)
            break;
        begin_event(feed, i);
        feed->result->replayed++;
        for (; !error && next < feed->action_count && feed->actions[next].at == i; next++)
            error = ms__replay_feed_act(feed, &feed->actions[next]);
        if (!error)
            error = replay_event(feed, &feed->stream->events[i]);
        if (!error)
            error = ms__replay_loop_note(feed);
    }
    for (; !error && count == feed->stream->event_count && next < feed->action_count; next++)
        error = ms__replay_feed_act(feed, &feed->actions[next]);
    return error;
}

/* ---- the whole ---- */
static int open_feed(ms__replay_feed *feed, const ms_allocator_settings *settings)
{
    feed->blocks = calloc((size_t)feed->stream->block_count + 1, sizeof *feed->blocks);
    feed->threads = calloc((size_t)feed->stream->thread_count + 1, sizeof *feed->threads);
    feed->allocator = settings ? ms_allocator_open(settings, NULL) : NULL;
    feed->places_segments = settings && !feed->edit && !settings->expandable_segments;
    if (!feed->blocks || !feed->threads || (settings && !feed->allocator))
        return MS_ENOMEM;
    return feed->edit ? ms__replay_feed_make_actions(feed) : MS_OK;
}

int ms_replay_run(const ms_replay_stream *stream, const ms_replay_edit *edit, uint32_t device,
                  const ms_allocator_settings *settings, ms_replay_curve_range *curve, ms_replay_result *result)
{
    *result = (ms_replay_result){0};
    if (device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    ms__replay_feed feed = {.stream = stream, .edit = edit, .device = device, .curve = curve, .result = result};
    if (curve)
        open_curve(&feed);
    int error = open_feed(&feed, settings);
    if (!error)
        error = replay_events(&feed);
    if (feed.allocator)
        result->retries = (uint64_t)ms_allocator_read(feed.allocator)->retries + feed.skipped_retries;
    ms_allocator_close(feed.allocator);
    free(feed.blocks);
    free(feed.threads);
    free(feed.inserted);
    free(feed.insertions);
    ms__replay_loop_close(&feed.loop);
    free(feed.holders);
    free(feed.temporary);
    free(feed.actions);
    return error == MS_EDEVICE ? MS_OK : error;
}
