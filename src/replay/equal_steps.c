/* equal_steps.c - which steps of a stream are equal: they have the same events, requests, calls and uses, apart
 * from times, and refer to each other at the same distances. */
#include "replay/equal_steps.h"

#include <stddef.h>
#include <stdlib.h>

const struct ms__replay_reference ms__replay_references[MS__REPLAY_REFERENCES] = {
    {MS__REPLAY_BLOCKS, offsetof(ms_replay_block, add), MS__REPLAY_EVENTS},
    {MS__REPLAY_BLOCKS, offsetof(ms_replay_block, drop), MS__REPLAY_EVENTS},
    {MS__REPLAY_BLOCKS, offsetof(ms_replay_block, last_use), MS__REPLAY_USES},
    {MS__REPLAY_BLOCKS, offsetof(ms_replay_block, call), MS__REPLAY_CALLS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, parent), MS__REPLAY_CALLS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, begin), MS__REPLAY_EVENTS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, end), MS__REPLAY_EVENTS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, backward), MS__REPLAY_EVENTS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, last_save), MS__REPLAY_EVENTS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, first_block), MS__REPLAY_BLOCKS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, last_block), MS__REPLAY_BLOCKS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, first_input), MS__REPLAY_USES},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, first_operator), MS__REPLAY_OPERATORS},
    {MS__REPLAY_CALLS, offsetof(ms_replay_call, last_operator), MS__REPLAY_OPERATORS},
    {MS__REPLAY_USES, offsetof(ms_replay_use, block), MS__REPLAY_BLOCKS},
    {MS__REPLAY_USES, offsetof(ms_replay_use, call), MS__REPLAY_CALLS},
    {MS__REPLAY_USES, offsetof(ms_replay_use, event), MS__REPLAY_EVENTS},
    {MS__REPLAY_USES, offsetof(ms_replay_use, earlier), MS__REPLAY_USES},
    {MS__REPLAY_OPERATORS, offsetof(ms_replay_operator, call), MS__REPLAY_CALLS},
    {MS__REPLAY_OPERATORS, offsetof(ms_replay_operator, begin), MS__REPLAY_EVENTS},
    {MS__REPLAY_OPERATORS, offsetof(ms_replay_operator, end), MS__REPLAY_EVENTS},
};

void *ms__replay_item(const ms_replay_stream *stream, enum ms__replay_array array, uint32_t index)
{
    switch (array) {
    case MS__REPLAY_EVENTS:
        return &stream->events[index];
    case MS__REPLAY_BLOCKS:
        return &stream->blocks[index];
    case MS__REPLAY_CALLS:
        return &stream->calls[index];
    case MS__REPLAY_OPERATORS:
        return &stream->operators[index];
    default:
        return &stream->uses[index];
    }
}

/* ---- where steps begin ---- */

/* What was noted before the event that begins a step belongs to the step before it. */
static struct ms__replay_place place_of_event(const ms_replay_stream *stream, struct ms__replay_place from,
                                              uint32_t event)
{
    uint32_t *block = &from.at[MS__REPLAY_BLOCKS], *call = &from.at[MS__REPLAY_CALLS], *use = &from.at[MS__REPLAY_USES],
             *operator= & from.at[MS__REPLAY_OPERATORS];
    from.at[MS__REPLAY_EVENTS] = event;
    while (*block < stream->block_count &&
           (stream->blocks[*block].add == MS_REPLAY_NONE || stream->blocks[*block].add < event))
        ++*block;
    while (*call < stream->call_count && stream->calls[*call].begin < event)
        ++*call;
    while (*use < stream->use_count && stream->uses[*use].event <= event)
        ++*use;
    while (*operator<stream->operator_count && stream->operators[*operator].end <= event)
        ++*operator;
    return from;
}

struct ms__replay_place *ms__replay_list_steps(const ms_replay_stream *stream)
{
    struct ms__replay_place *steps = malloc(((size_t)stream->step_count + 1) * sizeof *steps), at = {.at = {0}};
    for (uint32_t i = 0; steps && i < stream->step_count; i++)
        steps[i] = at = place_of_event(stream, at, stream->steps[i].event);
    if (steps)
        steps[stream->step_count] = (struct ms__replay_place){
            {stream->event_count, stream->block_count, stream->call_count, stream->use_count, stream->operator_count}};
    return steps;
}

/* ---- equal steps ---- */

/* Whether two steps that begin at `base` and `like_base` refer to the same: each to what is at the same distance, or,
 * before the run, to the same thing. */
static bool is_same(uint32_t to, uint32_t base, uint32_t like, uint32_t like_base, uint32_t run)
{
    if (to == MS_REPLAY_NONE || like == MS_REPLAY_NONE || like < run)
        return to == like;
    return to - base == like - like_base;
}

static bool is_event_equal(const ms_replay_event *a, const ms_replay_event *b)
{
    return a->kind == b->kind && a->thread == b->thread && a->phase == b->phase && a->device == b->device &&
           (ms__replay_is_of_block(a) || a->kind == MS_REPLAY_STEP || a->value == b->value);
}

/* How much larger than its request a block is depends on what was free, so it often differs between steps that request
 * the same. A replay asks for what was requested. */
static bool is_block_equal(const ms_replay_block *a, const ms_replay_block *b)
{
    return a->requested == b->requested && a->stream == b->stream && a->segment == b->segment && a->path == b->path &&
           a->device == b->device && a->category == b->category && a->kind == b->kind && a->phase == b->phase &&
           a->drop_phase == b->drop_phase && a->outside == b->outside;
}

static bool is_call_equal(const ms_replay_call *a, const ms_replay_call *b)
{
    return a->path == b->path && a->thread == b->thread && a->saves == b->saves && a->input_count == b->input_count;
}

/* Whether the items are equal, apart from what they refer to. */
static bool is_item_equal(const ms_replay_stream *stream, enum ms__replay_array array, uint32_t a, uint32_t b)
{
    switch (array) {
    case MS__REPLAY_EVENTS:
        return is_event_equal(&stream->events[a], &stream->events[b]);
    case MS__REPLAY_BLOCKS:
        return is_block_equal(&stream->blocks[a], &stream->blocks[b]);
    case MS__REPLAY_CALLS:
        return is_call_equal(&stream->calls[a], &stream->calls[b]);
    case MS__REPLAY_OPERATORS:
        return stream->operators[a].name == stream->operators[b].name;
    default:
        return stream->uses[a].kind == stream->uses[b].kind;
    }
}

static bool are_references_equal(const ms_replay_stream *stream, const struct ms__replay_place *a,
                                 const struct ms__replay_place *b, const struct ms__replay_place *run)
{
    for (size_t i = 0; i < MS__REPLAY_REFERENCES; i++) {
        enum ms__replay_array from = ms__replay_references[i].from, to = ms__replay_references[i].to;
        for (uint32_t j = 0; j < b[1].at[from] - b->at[from]; j++)
            if (!is_same(*ms__replay_reference_of(stream, &ms__replay_references[i], a->at[from] + j), a->at[to],
                         *ms__replay_reference_of(stream, &ms__replay_references[i], b->at[from] + j), b->at[to],
                         run->at[to]))
                return false;
    }
    return true;
}

/* `a` and `b`: where the steps begin; what follows is where the next ones do. */
static bool are_equal(const ms_replay_stream *stream, const struct ms__replay_place *a,
                      const struct ms__replay_place *b, const struct ms__replay_place *run)
{
    for (enum ms__replay_array array = MS__REPLAY_EVENTS; array < MS__REPLAY_ARRAYS; array++)
        if (a[1].at[array] - a->at[array] != b[1].at[array] - b->at[array])
            return false;
    for (enum ms__replay_array array = MS__REPLAY_EVENTS; array < MS__REPLAY_ARRAYS; array++)
        for (uint32_t i = 0; i < b[1].at[array] - b->at[array]; i++)
            if (!is_item_equal(stream, array, a->at[array] + i, b->at[array] + i))
                return false;
    for (uint32_t i = 0; i < b[1].at[MS__REPLAY_EVENTS] - b->at[MS__REPLAY_EVENTS]; i++) {
        const ms_replay_event *event = &stream->events[a->at[MS__REPLAY_EVENTS] + i],
                              *like = &stream->events[b->at[MS__REPLAY_EVENTS] + i];
        if (ms__replay_is_of_block(event) &&
            !is_same((uint32_t)event->value, a->at[MS__REPLAY_BLOCKS], (uint32_t)like->value, b->at[MS__REPLAY_BLOCKS],
                     run->at[MS__REPLAY_BLOCKS]))
            return false;
    }
    return are_references_equal(stream, a, b, run);
}

/* Whether every block of the step is freed before the third step after it begins, or never: a replay that repeats the
 * step knows the blocks of the two before. */
static bool frees_blocks_soon(const ms_replay_stream *stream, const struct ms__replay_place *step)
{
    uint64_t until = step->at[MS__REPLAY_EVENTS] +
                     (uint64_t)MS__REPLAY_STANDING * (step[1].at[MS__REPLAY_EVENTS] - step->at[MS__REPLAY_EVENTS]);
    for (uint32_t i = step->at[MS__REPLAY_BLOCKS]; i < step[1].at[MS__REPLAY_BLOCKS]; i++)
        if (stream->blocks[i].drop != MS_REPLAY_NONE && stream->blocks[i].drop >= until)
            return false;
    return true;
}

/* How many steps from the first one are equal, in all streams; 0: too few to be folded. */
static uint32_t length_of_run(const ms_replay_stream *const *streams, struct ms__replay_place *const *steps,
                              uint32_t count, uint32_t first)
{
    uint32_t length = streams[0]->step_count - first;
    for (uint32_t i = 0; i < count; i++) {
        const struct ms__replay_place *like = &steps[i][first + MS__REPLAY_BEFORE];
        uint32_t step = first;
        if (length < MS__REPLAY_LEAST_RUN || !frees_blocks_soon(streams[i], like))
            return 0;
        while (step < first + length && are_equal(streams[i], &steps[i][step], like, &steps[i][first]))
            step++;
        length = step - first;
    }
    return length < MS__REPLAY_LEAST_RUN ? 0 : length;
}

int ms__replay_find_runs(const ms_replay_stream *const *streams, struct ms__replay_place *const *steps, uint32_t count,
                         struct ms__replay_run **runs, uint32_t *run_count)
{
    uint32_t step_count = streams[0]->step_count;
    *runs = malloc(((size_t)step_count / MS__REPLAY_LEAST_RUN + 1) * sizeof **runs);
    *run_count = 0;
    if (!*runs)
        return MS_ENOMEM;
    for (uint32_t first = 0, length; first < step_count; first += length ? length : 1) {
        length = length_of_run(streams, steps, count, first);
        if (length)
            (*runs)[(*run_count)++] = (struct ms__replay_run){first, length};
    }
    return MS_OK;
}
