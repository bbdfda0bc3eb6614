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

/* ---- the log ---- */
static bool write_entry(ms__replay_log *log, ms_log_kind kind, uint64_t value)
{
    ms__replay_numbers *entries = &log->entries;
    if (!MS__ARRAY_GROW(entries->at, entries->room, entries->count + 1))
        return false;
    entries->at[entries->count++] = value << MS_LOG_KIND_BITS | kind;
    return true;
}

/* By its operator, module and phase a request of several steps is found to be the same one. */
static uint64_t owner_of_request(const ms__replay_feed *feed)
{
    const ms__replay_log *log = feed->log;
    uint64_t request = feed->block == MS_REPLAY_NONE ? UINT64_MAX : log->requests[feed->block];
    uint64_t operator= request<log->operator_count ? log->operators[request] : 0;
    uint64_t path = (uint64_t)feed->now.path & (MS_REPLAY_LOG_PATHS - 1);
    return (path << MS_REPLAY_LOG_PHASE_BITS | (uint64_t)feed->now.phase) << 32 | operator;
}

static bool log_request(ms__replay_feed *feed, ms__replay_held *held, uint64_t bytes, uint64_t stream)
{
    ms__replay_log *log = feed->log;
    uint64_t owner = owner_of_request(feed);
    bool done = owner == log->owner || write_entry(log, MS_LOG_OPERATOR, owner);
    feed->block = MS_REPLAY_NONE;
    log->owner = owner;
    held->number = log->written++;
    return done && (!stream || write_entry(log, MS_LOG_STREAM, stream)) && write_entry(log, MS_LOG_ALLOCATE, bytes);
}

/* Before the stream's next request, and what edits do before it. */
static void mark_log(ms__replay_log *log)
{
    for (; log->marked < log->mark_count && log->adds[log->marked] <= log->added; log->marked++)
        log->marks[log->marked] = log->entries.count;
}

int ms__replay_feed_hold(ms__replay_feed *feed, ms__replay_held *held, uint64_t bytes, uint64_t stream)
{
    if (!bytes)
        return MS_OK;
    feed->result->requests++;
    if (feed->log && !log_request(feed, held, bytes, stream))
        return MS_ENOMEM;
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
    feed->block = block;
    int error = ms__replay_feed_hold(feed, &feed->blocks[block], bytes, feed->stream->blocks[block].stream);
    if (feed->layout)
        ms__replay_layout_place(feed, block);
    return error;
}

void ms__replay_feed_release(ms__replay_feed *feed, ms__replay_held *held)
{
    if (!held->bytes)
        return;
    if (feed->log)
        feed->log->is_full |= !write_entry(feed->log, MS_LOG_FREE, held->number);
    if (feed->allocator)
        ms_allocator_free(feed->allocator, held->allocation);
    else
        feed->allocated -= held->bytes;
    *held = (ms__replay_held){0};
    update_figures(feed);
}

uint64_t ms__replay_feed_bytes(const ms__replay_feed *feed, uint32_t block)
{
    const ms_replay_block *of = &feed->stream->blocks[block];
    uint32_t device = feed->edit ? feed->edit->blocks[block].device : of->device;
    if (device != feed->device || (of->outside && (feed->allocator || feed->log)))
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
        if (!error && feed->log && event->device == feed->device && !feed->stream->lacked_room)
            error = write_entry(feed->log, MS_LOG_EMPTY_CACHE, 0) ? MS_OK : MS_ENOMEM;
        if (!error)
            update_figures(feed);
    }
    return error;
}

static bool is_request(const ms__replay_feed *feed, const ms_replay_event *event)
{
    if (event->kind != MS_REPLAY_ADD)
        return false;
    const ms_replay_block *block = &feed->stream->blocks[event->value];
    return block->device == feed->device && !block->outside;
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
        bool is_noted = feed->log && is_request(feed, &feed->stream->events[i]);
        if (is_noted)
            mark_log(feed->log);
        for (; !error && next < feed->action_count && feed->actions[next].at == i; next++)
            error = ms__replay_feed_act(feed, &feed->actions[next]);
        if (!error)
            error = replay_event(feed, &feed->stream->events[i]);
        if (is_noted)
            feed->log->added++;
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
    if (feed->layout)
        ms__replay_layout_begin(feed);
    return feed->edit ? ms__replay_feed_make_actions(feed) : MS_OK;
}

static void close_feed(ms__replay_feed *feed)
{
    ms_allocator_close(feed->allocator);
    free(feed->blocks);
    free(feed->threads);
    free(feed->inserted);
    free(feed->insertions);
    ms__replay_loop_close(&feed->loop);
    free(feed->holders);
    free(feed->temporary);
    free(feed->actions);
}

int ms__replay_feed_run(ms__replay_feed *feed, const ms_allocator_settings *settings)
{
    if (feed->device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    if (feed->curve)
        open_curve(feed);
    int error = open_feed(feed, settings);
    if (!error)
        error = replay_events(feed);
    if (feed->allocator)
        feed->result->retries = (uint64_t)ms_allocator_read(feed->allocator)->retries + feed->skipped_retries;
    close_feed(feed);
    return error == MS_EDEVICE ? MS_OK : error;
}

int ms_replay_run(const ms_replay_stream *stream, const ms_replay_edit *edit, uint32_t device,
                  const ms_allocator_settings *settings, ms_replay_curve_range *curve, ms_replay_result *result)
{
    *result = (ms_replay_result){0};
    ms__replay_feed feed = {.stream = stream, .edit = edit, .device = device, .curve = curve, .result = result};
    return ms__replay_feed_run(&feed, settings);
}

static int number_requests(const ms__replay_feed *feed)
{
    uint32_t next = 0;
    feed->log->requests = malloc(((size_t)feed->stream->block_count + 1) * sizeof *feed->log->requests);
    for (uint32_t i = 0; feed->log->requests && i < feed->stream->block_count; i++) {
        const ms_replay_block *block = &feed->stream->blocks[i];
        bool is_one = block->add != MS_REPLAY_NONE && block->device == feed->device && !block->outside;
        feed->log->requests[i] = is_one ? next++ : MS_REPLAY_NONE;
    }
    return feed->log->requests ? MS_OK : MS_ENOMEM;
}

int ms_replay_log_open(const ms_replay_stream *stream, const ms_replay_edit *edit, uint32_t device,
                       const ms_replay_log_source *source, ms_replay_log *opened)
{
    uint32_t count = source->mark_count;
    if (device >= MS_MAX_DEVICES || stream->fold_count)
        return MS_EINVAL;
    ms_replay_result result = {0};
    *opened = (ms_replay_log){.marks = malloc(((size_t)count + 1) * sizeof *opened->marks)};
    ms__replay_log log = {.adds = source->adds,
                          .marks = opened->marks,
                          .mark_count = count,
                          .operators = source->operators,
                          .operator_count = source->operator_count};
    ms__replay_feed feed = {.stream = stream, .edit = edit, .device = device, .result = &result, .log = &log};
    feed.block = MS_REPLAY_NONE;
    int error = opened->marks ? open_feed(&feed, NULL) : MS_ENOMEM;
    if (!error)
        error = number_requests(&feed);
    if (!error)
        error = replay_events(&feed);
    close_feed(&feed);
    free(log.requests);
    bool is_whole = log.added >= (count ? source->adds[count - 1] : 0);
    for (log.added = UINT64_MAX; log.marks && log.marked < count;)
        mark_log(&log);
    opened->entries = log.entries.at;
    opened->count = log.entries.count;
    if (!error)
        error = log.is_full ? MS_ENOMEM : is_whole ? MS_OK : MS_EINVAL;
    if (error)
        ms_replay_log_close(opened);
    return error;
}

void ms_replay_log_close(ms_replay_log *log)
{
    free(log->entries);
    free(log->marks);
    *log = (ms_replay_log){0};
}
