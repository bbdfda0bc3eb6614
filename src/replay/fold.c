/* fold.c - leaves out equal steps of streams. Of a run of equal steps five are kept:
 *
 *     other steps | first  second  third | left out ... left out | last but one  last | other steps
 *                                   stands for those
 *
 * The events of the run refer to blocks, calls and uses of the same step and of the one or two before it, always at the
 * same distance. So after the steps between are cut out, all references in the run keep their distances, and those
 * from outside into it are to a step at its end or its beginning. A run with references that go further is not folded.
 */
#include "replay/equal_steps.h"

#include <assert.h>
#include <stdlib.h>

/* A part that is kept: outside of runs, or the beginning or the end of one. */
struct part {
    struct ms__replay_place begin, end, shift; /* shift: how much less the indices are in the folded stream */
    struct ms__replay_place run;               /* where its run begins; NOWHERE: it is outside of runs */
};

static const struct ms__replay_place NOWHERE = {
    {MS_REPLAY_NONE, MS_REPLAY_NONE, MS_REPLAY_NONE, MS_REPLAY_NONE, MS_REPLAY_NONE}};

struct folding {
    const ms_replay_stream *stream;
    ms_replay_stream folded;
    const struct ms__replay_place *steps; /* where each begins, and then where the last one ends */
    struct part *parts;
    uint32_t part_count;
};

/* ---- parts ---- */
static void add_part(struct folding *of, struct ms__replay_place begin, struct ms__replay_place end,
                     struct ms__replay_place run)
{
    struct ms__replay_place shift = begin;
    const struct part *before = of->part_count ? &of->parts[of->part_count - 1] : NULL;
    for (enum ms__replay_array array = MS__REPLAY_EVENTS; before && array < MS__REPLAY_ARRAYS; array++)
        shift.at[array] = before->shift.at[array] + (begin.at[array] - before->end.at[array]);
    of->parts[of->part_count++] = (struct part){begin, end, shift, run};
}

/* Three parts for each run, before it, its beginning and its end; and what is after the last one. */
static bool list_parts(struct folding *of, const struct ms__replay_run *runs, uint32_t run_count)
{
    struct ms__replay_place at = {.at = {0}};
    of->parts = malloc((3 * (size_t)run_count + 1) * sizeof *of->parts);
    for (uint32_t i = 0; of->parts && i < run_count; i++) {
        const struct ms__replay_place *first = &of->steps[runs[i].first], *last = first + runs[i].count;
        add_part(of, at, *first, NOWHERE);
        add_part(of, *first, first[MS__REPLAY_STANDING], *first);
        add_part(of, *(last - MS__REPLAY_AFTER), *last, *first);
        at = *last;
    }
    if (of->parts)
        add_part(of, at, of->steps[of->stream->step_count], NOWHERE);
    return of->parts != NULL;
}

/* ---- references ---- */

/* Change a reference from a part. False: that is to something that is left out. */
static bool move_reference(const struct folding *of, uint32_t from, enum ms__replay_array array, uint32_t *to)
{
    const struct part *source = &of->parts[from];
    uint32_t part = from;
    if (*to == MS_REPLAY_NONE)
        return true;
    if (*to >= source->run.at[array]) { /* in a run: the distance is kept */
        *to -= source->shift.at[array];
        return true;
    }
    while (part && *to < of->parts[part].begin.at[array])
        part--;
    while (part + 1 < of->part_count && *to >= of->parts[part + 1].begin.at[array])
        part++;
    bool is_kept = *to < of->parts[part].end.at[array] || part + 1 == of->part_count;
    if (!is_kept && part >= from) /* what is left out is of the future: it has no part in what was before the run */
        return false;
    const struct part *target = &of->parts[is_kept ? part : part + 1];
    *to -= target->shift.at[array];
    return is_kept || *to + target[-1].shift.at[array] >= target->run.at[array];
}

static bool move_references(struct folding *of, uint32_t part)
{
    const struct ms__replay_place *begin = &of->parts[part].begin, *end = &of->parts[part].end,
                                  *shift = &of->parts[part].shift;
    bool done = true;
    for (size_t i = 0; done && i < MS__REPLAY_REFERENCES; i++) {
        enum ms__replay_array from = ms__replay_references[i].from;
        for (uint32_t j = begin->at[from] - shift->at[from]; done && j < end->at[from] - shift->at[from]; j++)
            done = move_reference(of, part, ms__replay_references[i].to,
                                  ms__replay_reference_of(&of->folded, &ms__replay_references[i], j));
    }
    for (uint32_t i = begin->at[MS__REPLAY_EVENTS]; done && i < end->at[MS__REPLAY_EVENTS]; i++) {
        ms_replay_event *event = &of->folded.events[i - shift->at[MS__REPLAY_EVENTS]];
        uint32_t block = (uint32_t)event->value;
        if (ms__replay_is_of_block(event)) {
            done = move_reference(of, part, MS__REPLAY_BLOCKS, &block);
            event->value = block;
        }
    }
    return done;
}

static void move_items(struct folding *of, const struct part *part)
{
    static const size_t sizes[] = {sizeof(ms_replay_event), sizeof(ms_replay_block), sizeof(ms_replay_call),
                                   sizeof(ms_replay_use), sizeof(ms_replay_operator)};
    for (enum ms__replay_array array = MS__REPLAY_EVENTS; array < MS__REPLAY_ARRAYS; array++) {
        uint32_t begin = part->begin.at[array], count = part->end.at[array] - begin;
        if (count)
            memcpy(ms__replay_item(&of->folded, array, begin - part->shift.at[array]),
                   ms__replay_item(of->stream, array, begin), count * sizes[array]);
    }
}

/* Whether every block is added and dropped by the events that it names, and no reference is out of range. */
static bool is_right(const ms_replay_stream *stream)
{
    const uint32_t counts[] = {stream->event_count, stream->block_count, stream->call_count, stream->use_count,
                               stream->operator_count};
    for (size_t i = 0; i < MS__REPLAY_REFERENCES; i++)
        for (uint32_t j = 0; j < counts[ms__replay_references[i].from]; j++) {
            uint32_t to = *ms__replay_reference_of(stream, &ms__replay_references[i], j);
            if (to != MS_REPLAY_NONE && to > counts[ms__replay_references[i].to]) /* an end may be that of all */
                return false;
        }
    for (uint32_t i = 0; i < stream->event_count; i++)
        if (ms__replay_is_of_block(&stream->events[i]) && stream->events[i].value >= stream->block_count)
            return false;
    for (uint32_t i = 0; i < stream->block_count; i++) {
        const ms_replay_block *block = &stream->blocks[i];
        const ms_replay_event *add = block->add < stream->event_count ? &stream->events[block->add] : NULL;
        const ms_replay_event *drop = block->drop < stream->event_count ? &stream->events[block->drop] : NULL;
        if ((block->add != MS_REPLAY_NONE && (!add || add->kind != MS_REPLAY_ADD || add->value != i)) ||
            (block->drop != MS_REPLAY_NONE && (!drop || drop->kind != MS_REPLAY_DROP || drop->value != i)) ||
            (block->last_use != MS_REPLAY_NONE && block->last_use >= stream->use_count) ||
            (block->call != MS_REPLAY_NONE && block->call >= stream->call_count))
            return false;
    }
    for (uint32_t i = 0; i < stream->call_count; i++) {
        const ms_replay_call *call = &stream->calls[i];
        if ((call->parent != MS_REPLAY_NONE && call->parent >= i) ||
            (call->input_count && (uint64_t)call->first_input + call->input_count > stream->use_count))
            return false;
    }
    for (uint32_t i = 0; i < stream->use_count; i++)
        if (stream->uses[i].block >= stream->block_count ||
            (stream->uses[i].earlier != MS_REPLAY_NONE && stream->uses[i].earlier >= i))
            return false;
    return true;
}

/* ---- what stands for what is left out ---- */

/* The times of the calls of a step become the means of those that it stands for. */
static void take_means(struct folding *of, const struct ms__replay_run *run, uint32_t shift)
{
    const struct ms__replay_place *standing = &of->steps[run->first + MS__REPLAY_BEFORE];
    uint32_t count = run->count - MS__REPLAY_BEFORE - MS__REPLAY_AFTER,
             calls = standing[1].at[MS__REPLAY_CALLS] - standing->at[MS__REPLAY_CALLS];
    assert(count && "a run is longer than what stays before and after it");
    for (uint32_t i = standing->at[MS__REPLAY_CALLS]; i < standing[1].at[MS__REPLAY_CALLS]; i++) {
        ms_replay_call *call = &of->folded.calls[i - shift];
        call->nanoseconds = call->microseconds = call->recompute_nanoseconds = 0;
        call->stands_for = count;
        for (uint32_t j = 0; j < count; j++) {
            const ms_replay_call *one = &of->stream->calls[i + j * calls];
            call->nanoseconds += one->nanoseconds;
            call->microseconds += one->microseconds;
            call->recompute_nanoseconds += one->recompute_nanoseconds;
        }
        call->nanoseconds /= count;
        call->microseconds /= count;
        call->recompute_nanoseconds /= count;
    }
}

static ms_replay_fold describe_fold(const struct folding *of, const struct ms__replay_run *run,
                                    const struct ms__replay_place *shift)
{
    const struct ms__replay_place *first = &of->steps[run->first], *standing = first + MS__REPLAY_BEFORE;
    return (ms_replay_fold){.step = run->first + MS__REPLAY_BEFORE,
                            .left_out = run->count - (MS__REPLAY_LEAST_RUN - 1),
                            .begin = standing->at[MS__REPLAY_EVENTS] - shift->at[MS__REPLAY_EVENTS],
                            .end = standing[1].at[MS__REPLAY_EVENTS] - shift->at[MS__REPLAY_EVENTS],
                            .first_block = standing->at[MS__REPLAY_BLOCKS] - shift->at[MS__REPLAY_BLOCKS],
                            .last_block = standing[1].at[MS__REPLAY_BLOCKS] - shift->at[MS__REPLAY_BLOCKS],
                            .run_begin = first->at[MS__REPLAY_EVENTS] - shift->at[MS__REPLAY_EVENTS],
                            .run_block = first->at[MS__REPLAY_BLOCKS] - shift->at[MS__REPLAY_BLOCKS]};
}

static void move_steps(struct folding *of, const struct ms__replay_run *runs, uint32_t run_count)
{
    const struct part *part = of->parts;
    memcpy(of->folded.steps, of->stream->steps, of->stream->step_count * sizeof *of->folded.steps);
    for (uint32_t i = 0; i < run_count; i++)
        for (uint32_t j = MS__REPLAY_STANDING; j < runs[i].count - MS__REPLAY_AFTER; j++) {
            ms_replay_step *step = &of->folded.steps[runs[i].first + j];
            step->event = of->stream->steps[runs[i].first + MS__REPLAY_BEFORE].event;
            step->is_left_out = true;
        }
    for (uint32_t i = 0; i < of->stream->step_count; i++) {
        while (of->folded.steps[i].event >= part->end.at[MS__REPLAY_EVENTS])
            part++;
        of->folded.steps[i].event -= part->shift.at[MS__REPLAY_EVENTS];
    }
}

/* ---- a stream that is folded ---- */
static bool allocate(struct folding *of, uint32_t run_count)
{
    const ms_replay_stream *stream = of->stream;
    const struct part *last = &of->parts[of->part_count - 1];
    struct ms__replay_place count;
    for (enum ms__replay_array array = MS__REPLAY_EVENTS; array < MS__REPLAY_ARRAYS; array++)
        count.at[array] = last->end.at[array] - last->shift.at[array];
    of->folded = *stream;
    of->folded.event_count = count.at[MS__REPLAY_EVENTS];
    of->folded.block_count = count.at[MS__REPLAY_BLOCKS];
    of->folded.call_count = count.at[MS__REPLAY_CALLS];
    of->folded.use_count = count.at[MS__REPLAY_USES];
    of->folded.operator_count = count.at[MS__REPLAY_OPERATORS];
    of->folded.events = malloc(((size_t)count.at[MS__REPLAY_EVENTS] + 1) * sizeof *stream->events);
    of->folded.blocks = malloc(((size_t)count.at[MS__REPLAY_BLOCKS] + 1) * sizeof *stream->blocks);
    of->folded.calls = malloc(((size_t)count.at[MS__REPLAY_CALLS] + 1) * sizeof *stream->calls);
    of->folded.uses = malloc(((size_t)count.at[MS__REPLAY_USES] + 1) * sizeof *stream->uses);
    of->folded.operators = malloc(((size_t)count.at[MS__REPLAY_OPERATORS] + 1) * sizeof *stream->operators);
    of->folded.steps = malloc(((size_t)stream->step_count + 1) * sizeof *stream->steps);
    of->folded.folds = malloc(((size_t)run_count + 1) * sizeof *stream->folds);
    of->folded.parameters = NULL;
    return of->folded.events && of->folded.blocks && of->folded.calls && of->folded.uses && of->folded.steps &&
           of->folded.folds && of->folded.operators;
}

/* MS_EINVAL: the stream cannot be folded. */
static int fold_stream(struct folding *of, const struct ms__replay_run *runs, uint32_t run_count)
{
    if (!list_parts(of, runs, run_count) || !allocate(of, run_count))
        return MS_ENOMEM;
    for (uint32_t i = 0; i < of->part_count; i++)
        move_items(of, &of->parts[i]);
    for (uint32_t i = 0; i < of->part_count; i++)
        if (!move_references(of, i))
            return MS_EINVAL;
    if (!is_right(&of->folded))
        return MS_EINVAL;
    move_steps(of, runs, run_count);
    for (uint32_t i = 0; i < run_count; i++) {
        const struct ms__replay_place *shift = &of->parts[3 * i + 1].shift; /* of the beginning of the run */
        take_means(of, &runs[i], shift->at[MS__REPLAY_CALLS]);
        of->folded.folds[of->folded.fold_count++] = describe_fold(of, &runs[i], shift);
    }
    return ms__replay_list_parameters(&of->folded);
}

static void free_folded(ms_replay_stream *folded)
{
    free(folded->events);
    free(folded->blocks);
    free(folded->calls);
    free(folded->uses);
    free(folded->steps);
    free(folded->folds);
    free(folded->operators);
    free(folded->parameters);
}

/* ---- all streams ---- */
static int fold_together(struct folding *of, ms_replay_stream *const *streams, uint32_t count,
                         const struct ms__replay_run *runs, uint32_t run_count)
{
    int error = MS_OK;
    for (uint32_t i = 0; !error && i < count; i++)
        error = fold_stream(&of[i], runs, run_count);
    for (uint32_t i = 0; i < count; i++) {
        ms_replay_stream unused = of[i].folded;
        if (!error) {
            unused = *streams[i];
            *streams[i] = of[i].folded;
        }
        free_folded(&unused);
        free(of[i].parts);
    }
    return error == MS_EINVAL ? MS_OK : error; /* what cannot be folded stays as it is */
}

int ms_replay_streams_fold(ms_replay_stream *const *streams, uint32_t count)
{
    struct folding *of = calloc((size_t)count + 1, sizeof *of);
    struct ms__replay_place **steps = calloc((size_t)count + 1, sizeof *steps);
    struct ms__replay_run *runs = NULL;
    uint32_t run_count = 0;
    int error = of && steps ? MS_OK : MS_ENOMEM;
    for (uint32_t i = 0; !error && i < count; i++) {
        if (streams[i]->step_count != streams[0]->step_count)
            error = MS_EINVAL;
        else if ((steps[i] = ms__replay_list_steps(streams[i])) == NULL)
            error = MS_ENOMEM;
        of[i].stream = streams[i];
        of[i].steps = steps[i];
    }
    if (!error && count && !streams[0]->fold_count)
        error = ms__replay_find_runs((const ms_replay_stream *const *)streams, steps, count, &runs, &run_count);
    if (!error && run_count)
        error = fold_together(of, streams, count, runs, run_count);
    for (uint32_t i = 0; steps && i < count; i++)
        free(steps[i]);
    free(steps);
    free(runs);
    free(of);
    return error;
}
