/* loop.c - the replay of a step that stands for equal ones, which are left out. It is repeated for each of them:
 *
 *     first  second  third | third  third ...          what was held of the second and third before a repetition is
 *       |      |       |                               that of the first and second in it
 *       v      v       v
 *     (freed) first  second
 *
 * The state before a repetition is what the allocator holds, and where what the program holds is in it. If it is one
 * that was before an earlier repetition, what follows is the same again: those repetitions are not replayed. States are
 * compared as a whole, so that the figures are those of all repetitions. */
#include "replay/feed.h"

#include <stdlib.h>

static uint32_t events_of(const ms_replay_fold *fold)
{
    return fold->end - fold->begin;
}

static uint32_t blocks_of(const ms_replay_fold *fold)
{
    return fold->last_block - fold->first_block;
}

/* ---- where a repetition is in the capture ---- */
static const ms_replay_step *step_of(const ms__replay_feed *feed)
{
    const ms__replay_loop *loop = &feed->loop;
    return loop->fold && loop->done ? &feed->stream->steps[loop->fold->step + loop->done] : NULL;
}

uint64_t ms__replay_loop_step(const ms__replay_feed *feed, const ms_replay_event *event)
{
    const ms_replay_step *step = step_of(feed);
    return step ? step->number : event->value;
}

uint64_t ms__replay_loop_number(const ms__replay_feed *feed, const ms_replay_event *event)
{
    const ms_replay_step *step = step_of(feed);
    if (!step)
        return event->number;
    uint64_t number = step->first + (event->number - feed->stream->steps[feed->loop.fold->step].first);
    return number < step[1].first ? number : step[1].first;
}

uint64_t ms__replay_loop_time(const ms__replay_feed *feed, const ms_replay_event *event)
{
    const ms_replay_step *step = step_of(feed);
    return step ? step->time + (event->time - feed->stream->steps[feed->loop.fold->step].time) : event->time;
}

/* The first of the events [from, to) that has this number or a greater one. */
static uint32_t find_number(const ms_replay_stream *stream, uint32_t from, uint32_t to, uint64_t number)
{
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (stream->events[middle].number < number)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

uint32_t ms__replay_loop_find(const ms_replay_stream *stream, uint64_t number, bool is_folded)
{
    uint32_t later = 0;
    for (uint32_t i = 0; !is_folded && i < stream->fold_count; i++) {
        const ms_replay_fold *fold = &stream->folds[i];
        const ms_replay_step *step = &stream->steps[fold->step];
        uint32_t nth = 0; /* the step that has the number */
        while (nth <= fold->left_out && step[nth + 1].first <= number)
            nth++;
        if (nth == 0)
            break;
        if (nth <= fold->left_out)
            return later + nth * events_of(fold) +
                   find_number(stream, fold->begin, fold->end, number - step[nth].first + step->first);
        later += fold->left_out * events_of(fold);
    }
    return later + find_number(stream, 0, stream->event_count, number);
}

/* ---- the state before a repetition ---- */
static bool make_room(ms__replay_numbers *list, size_t more)
{
    return MS__ARRAY_GROW(list->at, list->room, list->count + more);
}

static void put(ms__replay_numbers *list, uint64_t number)
{
    list->at[list->count++] = number;
}

/* What is held has the same name before each repetition, by which it is known in the state of the allocator. Without an
 * allocator only its size counts. */
static void put_held(ms__replay_feed *feed, const ms__replay_held *held, uint64_t name)
{
    if (!feed->allocator)
        put(&feed->loop.state, held->bytes);
    else if (held->bytes)
        ms_allocation_set_name(held->allocation, name);
}

static void put_blocks(ms__replay_feed *feed, uint32_t from, uint32_t to, uint64_t name)
{
    for (uint32_t i = from; i < to; i++) {
        put_held(feed, &feed->blocks[i], name + (i - from));
        if (feed->holders)
            put(&feed->loop.state, 2 * (uint64_t)feed->holders[i].count + feed->holders[i].is_over);
    }
}

/* What lies in the run is described by its distance from the event before which the state is written. */
static void put_insertions(ms__replay_feed *feed, uint32_t event, uint64_t name)
{
    ms__replay_numbers *state = &feed->loop.state;
    for (uint32_t i = 0; feed->edit && i < feed->edit->inserted_count; i++) {
        const ms__replay_inserted_block *block = &feed->edit->inserted[feed->insertions[i]];
        if (!feed->inserted[i].bytes)
            continue;
        bool is_in_run = block->begin >= feed->loop.fold->run_begin;
        put(state, is_in_run);
        put(state, is_in_run ? event - block->begin : block->begin);
        put(state, is_in_run && block->end != MS_REPLAY_NONE ? (uint64_t)block->end - event : block->end);
        put_held(feed, &feed->inserted[i], name++);
    }
}

enum { NO_NAME, FIRST_BLOCK };
#define FIRST_IN_RUN (UINT64_C(1) << 32)
#define FIRST_INSERTION (UINT64_C(2) << 32)

/* `event` and `block`: the first ones that are not replayed yet. */
static int write_state(ms__replay_feed *feed, uint32_t event, uint32_t block)
{
    const ms_replay_fold *fold = feed->loop.fold;
    ms__replay_numbers *state = &feed->loop.state;
    uint32_t before = fold->first_block - fold->run_block; /* blocks of the steps before that may still be held */
    state->count = 0;
    size_t room = (feed->allocator ? ms_allocator_state_room(feed->allocator) : 0) +
                  2 * ((size_t)fold->run_block + before) + (feed->edit ? 4 * (size_t)feed->edit->inserted_count : 0) +
                  2 * (size_t)feed->stream->thread_count + 4;
    if (!make_room(state, room))
        return MS_ENOMEM;
    put_blocks(feed, 0, fold->run_block, FIRST_BLOCK);
    put_blocks(feed, block - before, block, FIRST_IN_RUN);
    put_insertions(feed, event, FIRST_INSERTION);
    if (feed->allocator)
        state->count += ms_allocator_state(feed->allocator, state->at + state->count);
    for (uint32_t i = 0; i < feed->stream->thread_count; i++) {
        put(state, feed->threads[i].phase);
        put(state, feed->threads[i].path);
    }
    put(state, feed->allocated);
    put(state, feed->recorded);
    put(state, feed->workspace_bytes);
    put(state, feed->result->disagreements != 0);
    return MS_OK;
}

static struct figures figures_of(const ms__replay_feed *feed)
{
    uint64_t retries = feed->allocator ? (uint64_t)ms_allocator_read(feed->allocator)->retries : 0;
    return (struct figures){feed->result->requests, retries + feed->skipped_retries, feed->result->disagreements};
}

static void set_anchor(ms__replay_feed *feed)
{
    ms__replay_loop *loop = &feed->loop;
    ms__replay_numbers state = loop->anchor;
    loop->anchor = loop->state;
    loop->state = state;
    loop->at_anchor = figures_of(feed);
    loop->period = 0;
    loop->curve_count = 0;
}

static bool is_at_anchor(const ms__replay_loop *loop)
{
    return loop->state.count == loop->anchor.count &&
           memcmp(loop->state.at, loop->anchor.at, loop->state.count * sizeof *loop->state.at) == 0;
}

/* ---- repetitions ---- */
/* The program never frees it. */
static void lose(ms__replay_held *held)
{
    ms_allocation_set_name(held->allocation, NO_NAME);
    *held = (ms__replay_held){0};
}

static void move_blocks_back(ms__replay_feed *feed)
{
    const ms_replay_fold *fold = feed->loop.fold;
    uint32_t count = blocks_of(fold), kept = fold->first_block - fold->run_block;
    for (uint32_t i = fold->run_block; i < fold->run_block + count; i++)
        lose(&feed->blocks[i]);
    memmove(&feed->blocks[fold->run_block], &feed->blocks[fold->run_block + count], kept * sizeof *feed->blocks);
    memset(&feed->blocks[fold->first_block], 0, count * sizeof *feed->blocks);
    if (!feed->holders)
        return;
    memmove(&feed->holders[fold->run_block], &feed->holders[fold->run_block + count], kept * sizeof *feed->holders);
    memcpy(&feed->holders[fold->first_block], feed->loop.holders, count * sizeof *feed->holders);
}

/* The number of the insertion that is to the step before what this one is to its own, or MS_REPLAY_NONE. */
static uint32_t find_twin(const ms__replay_feed *feed, uint32_t number)
{
    const ms_replay_edit *edit = feed->edit;
    const ms__replay_inserted_block *block = &edit->inserted[feed->insertions[number]];
    uint32_t from = 0, to = number, nth = 0, begin = block->begin - events_of(feed->loop.fold);
    while (number - nth && edit->inserted[feed->insertions[number - nth - 1]].begin == block->begin)
        nth++;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (edit->inserted[feed->insertions[middle]].begin < begin)
            from = middle + 1;
        else
            to = middle;
    }
    return from + nth < number && edit->inserted[feed->insertions[from + nth]].begin == begin ? from + nth
                                                                                              : MS_REPLAY_NONE;
}

static void move_insertions_back(ms__replay_feed *feed)
{
    const ms_replay_fold *fold = feed->loop.fold;
    for (uint32_t i = 0; feed->edit && i < feed->edit->inserted_count; i++) {
        uint32_t begin = feed->edit->inserted[feed->insertions[i]].begin;
        if (!feed->inserted[i].bytes || begin < fold->run_begin + events_of(fold) || begin >= fold->end)
            continue;
        uint32_t twin = find_twin(feed, i);
        if (twin == MS_REPLAY_NONE) {
            lose(&feed->inserted[i]);
            continue;
        }
        lose(&feed->inserted[twin]);
        feed->inserted[twin] = feed->inserted[i];
        feed->inserted[i] = (ms__replay_held){0};
    }
}

/* Fill the curve for repetitions that are as those since the anchor. */
static void repeat_curve(ms__replay_feed *feed, uint32_t count)
{
    uint64_t reserved = feed->reserved, allocated = feed->allocated;
    uint32_t events = events_of(feed->loop.fold), done = feed->loop.done, later = feed->later;
    for (uint32_t i = 0; feed->loop.curve_count && i < count; i++) {
        const struct event_figures *at = &feed->loop.curve[(size_t)(i % feed->loop.period) * events];
        feed->loop.done++;
        feed->later += events;
        for (uint32_t j = 0; j < events; j++, at++) {
            feed->reserved = at->reserved;
            feed->allocated = at->allocated;
            ms__replay_feed_begin_point(feed, feed->loop.fold->begin + j);
            ms__replay_feed_raise(feed, at->high_reserved, at->high_allocated);
        }
    }
    feed->reserved = reserved;
    feed->allocated = allocated;
    feed->loop.done = done;
    feed->later = later;
}

/* The state is that at the anchor: leave out as many repetitions as are whole periods. */
static void skip_periods(ms__replay_feed *feed)
{
    ms__replay_loop *loop = &feed->loop;
    struct figures now = figures_of(feed);
    uint32_t periods = (loop->fold->left_out - loop->done) / loop->period, count = periods * loop->period;
    repeat_curve(feed, count);
    feed->result->requests += periods * (now.requests - loop->at_anchor.requests);
    feed->result->disagreements += periods * (now.disagreements - loop->at_anchor.disagreements);
    feed->skipped_retries += periods * (now.retries - loop->at_anchor.retries);
    loop->done += count;
    feed->later += count * events_of(loop->fold);
    loop->until_anchor = 0; /* what is left is less than a period */
}

static int begin_loop(ms__replay_feed *feed, const ms_replay_fold *fold, uint32_t action)
{
    ms__replay_loop *loop = &feed->loop;
    loop->fold = fold;
    loop->first_action = action;
    loop->done = 0;
    loop->until_anchor = 1;
    if (feed->holders) {
        free(loop->holders);
        loop->holders = malloc(((size_t)blocks_of(fold) + 1) * sizeof *loop->holders);
        if (!loop->holders)
            return MS_ENOMEM;
        memcpy(loop->holders, &feed->holders[fold->first_block], blocks_of(fold) * sizeof *loop->holders);
    }
    int error = write_state(feed, fold->begin, fold->first_block);
    set_anchor(feed);
    return error;
}

/* The step was replayed once more: look whether its end is known. */
static int compare_with_anchor(ms__replay_feed *feed)
{
    ms__replay_loop *loop = &feed->loop;
    int error = write_state(feed, loop->fold->end, loop->fold->last_block);
    loop->period++;
    if (!error && is_at_anchor(loop)) {
        skip_periods(feed);
    } else if (!error && loop->period == loop->until_anchor) {
        set_anchor(feed);
        loop->until_anchor *= 2;
    }
    return error;
}

static int end_step(ms__replay_feed *feed, uint32_t *event, uint32_t *action)
{
    ms__replay_loop *loop = &feed->loop;
    int error = MS_OK;
    if (loop->done < loop->fold->left_out && loop->until_anchor)
        error = compare_with_anchor(feed);
    if (!error && loop->done < loop->fold->left_out) {
        move_blocks_back(feed);
        move_insertions_back(feed);
        loop->done++;
        feed->later += events_of(loop->fold);
        *event = loop->fold->begin;
        *action = loop->first_action;
        return MS_OK;
    }
    loop->fold = NULL;
    loop->next_fold++;
    return error;
}

int ms__replay_loop_turn(ms__replay_feed *feed, uint32_t *event, uint32_t *action)
{
    const ms__replay_loop *loop = &feed->loop;
    const ms_replay_stream *stream = feed->stream;
    if (loop->fold)
        return *event == loop->fold->end ? end_step(feed, event, action) : MS_OK;
    if (loop->next_fold == stream->fold_count || *event != stream->folds[loop->next_fold].begin)
        return MS_OK;
    return begin_loop(feed, &stream->folds[loop->next_fold], *action);
}

int ms__replay_loop_note(ms__replay_feed *feed)
{
    ms__replay_loop *loop = &feed->loop;
    if (!loop->fold || !loop->until_anchor || !feed->curve || !feed->curve_length || feed->curve->is_folded)
        return MS_OK;
    if (!MS__ARRAY_GROW(loop->curve, loop->curve_room, loop->curve_count + 1))
        return MS_ENOMEM;
    loop->curve[loop->curve_count++] = feed->figures;
    return MS_OK;
}

void ms__replay_loop_close(ms__replay_loop *loop)
{
    free(loop->state.at);
    free(loop->anchor.at);
    free(loop->curve);
    free(loop->holders);
}
