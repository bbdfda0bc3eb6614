/* match.c - which block of one stream is the same tensor as a block of another stream of the same program, run with
 * another batch; and blocks of any batch, on the line through both.
 *
 * Blocks are grouped by step, phase and module. The n-th block of a group in one stream is the n-th of the other. Where
 * the counts differ, because an operator took a workspace in one of them, blocks are skipped whose sizes cannot be
 * those of one tensor with two batches. */
#include "replay/edit.h"

#include <stdlib.h>

struct keyed {
    uint64_t step;
    uint32_t path; /* in the other stream */
    uint32_t block;
    uint8_t phase;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *first = a, *second = b;
    if (first->step != second->step)
        return first->step < second->step ? -1 : 1;
    if (first->phase != second->phase)
        return first->phase < second->phase ? -1 : 1;
    if (first->path != second->path)
        return first->path < second->path ? -1 : 1;
    return first->block < second->block ? -1 : first->block > second->block;
}

static int compare_keys(const struct keyed *first, const struct keyed *second)
{
    struct keyed same = *second;
    same.block = first->block;
    return by_key(first, &same);
}

/* The blocks of a device in the order of their keys; `paths` translates the modules, or is NULL. */
static struct keyed *list_blocks(const ms_replay_stream *stream, const uint32_t *paths, uint32_t device,
                                 uint32_t *count)
{
    struct keyed *list = malloc(((size_t)stream->block_count + 1) * sizeof *list);
    uint64_t step = 0;
    uint32_t event = 0;
    *count = 0;
    for (uint32_t i = 0; list && i < stream->block_count; i++) {
        const ms_replay_block *block = &stream->blocks[i];
        for (; block->add != MS_REPLAY_NONE && event < block->add; event++)
            if (stream->events[event].kind == MS_REPLAY_STEP)
                step = stream->events[event].value;
        uint32_t path = paths ? paths[block->path] : block->path;
        if (block->device == device && !block->outside)
            list[(*count)++] = (struct keyed){step, path, i, block->phase};
    }
    if (list)
        qsort(list, *count, sizeof *list, by_key);
    return list;
}

/* How much smaller the request may be than the block, where a capture does not tell the request. */
static double rounding_of(const ms_replay_block *block)
{
    enum { SMALL = 1 << 20, SMALL_ROUNDING = 511 };
    if (block->requested != block->bytes)
        return 0;
    return block->bytes <= SMALL ? SMALL_ROUNDING : SMALL;
}

/* ---- two groups of equal keys ---- */
struct matching {
    const ms_replay_stream *stream, *other;
    ms_replay_match *match;
    double ratio; /* how many times as large a block of the stream may be as in the other one, or 0: any */
};

/* If both sizes are rounded and may be in the ratio of the batches, take them to be in it. */
static void match_blocks(struct matching *of, uint32_t here, uint32_t there)
{
    const ms_replay_block *block = &of->stream->blocks[here], *matched = &of->other->blocks[there];
    double a = (double)matched->requested, b = (double)block->requested, ratio = of->ratio;
    of->match->bytes[here] = matched->requested;
    of->match->own_bytes[here] = block->requested;
    of->match->matched++;
    if (ratio <= 1 || a == b)
        return;
    double least = a < b / ratio ? a : b / ratio;
    if (a - least <= rounding_of(matched) && b - least * ratio <= rounding_of(block)) {
        of->match->bytes[here] = (uint64_t)(least + 0.5);
        of->match->own_bytes[here] = (uint64_t)(least * ratio + 0.5);
    }
}

static void note_here(struct matching *of, uint32_t block)
{
    of->match->here++;
    of->match->here_bytes += of->stream->blocks[block].bytes;
    if (block < of->match->here_first)
        of->match->here_first = block;
}

static void note_there(struct matching *of, uint32_t block)
{
    of->match->there++;
    of->match->there_bytes += of->other->blocks[block].bytes;
    if (block < of->match->there_first)
        of->match->there_first = block;
}

/* Whether one tensor can have these sizes: between equally large and larger by the ratio of the batches. */
static bool is_plausible(const struct matching *of, uint32_t here, uint32_t there)
{
    double a = (double)of->other->blocks[there].requested, b = (double)of->stream->blocks[here].requested;
    double least = of->ratio > 1 ? 1 : of->ratio, most = of->ratio > 1 ? of->ratio : 1;
    enum { ROUNDING = 1 << 20 }; /* block sizes are up to this much above the request */
    return b >= a * least - ROUNDING && b <= a * most + ROUNDING &&
           of->other->blocks[there].category == of->stream->blocks[here].category;
}

static void match_groups(struct matching *of, const struct keyed *here, uint32_t here_count, const struct keyed *there,
                         uint32_t there_count)
{
    uint32_t i = 0, j = 0;
    while (i < here_count && j < there_count) {
        uint32_t left_here = here_count - i, left_there = there_count - j;
        if (left_here == left_there || !of->ratio || is_plausible(of, here[i].block, there[j].block))
            match_blocks(of, here[i++].block, there[j++].block);
        else if (left_here > left_there)
            note_here(of, here[i++].block);
        else
            note_there(of, there[j++].block);
    }
    while (i < here_count)
        note_here(of, here[i++].block);
    while (j < there_count)
        note_there(of, there[j++].block);
}

static uint32_t group_length(const struct keyed *list, uint32_t from, uint32_t count)
{
    uint32_t end = from + 1;
    while (end < count && compare_keys(&list[from], &list[end]) == 0)
        end++;
    return end - from;
}

static void match_lists(struct matching *of, const struct keyed *here, uint32_t here_count, const struct keyed *there,
                        uint32_t there_count)
{
    uint32_t i = 0, j = 0;
    while (i < here_count || j < there_count) {
        int order = i == here_count ? 1 : j == there_count ? -1 : compare_keys(&here[i], &there[j]);
        uint32_t n = order <= 0 ? group_length(here, i, here_count) : 0;
        uint32_t m = order >= 0 ? group_length(there, j, there_count) : 0;
        match_groups(of, &here[i], n, &there[j], m);
        i += n;
        j += m;
    }
}

/* ---- the ratio of the batches ---- */
struct weighted {
    double ratio;
    uint64_t bytes;
};

static int by_ratio(const void *a, const void *b)
{
    double first = ((const struct weighted *)a)->ratio, second = ((const struct weighted *)b)->ratio;
    return first < second ? -1 : first > second;
}

enum { LEAST_COUNTED = 1 << 12 }; /* smaller blocks do not tell the ratio: they are rounded */

/* Return the ratio of sizes that most bytes have of the blocks of forward whose sizes differ. */
static int find_ratio(const ms_replay_stream *stream, ms_replay_match *match)
{
    struct weighted *list = malloc(((size_t)stream->block_count + 1) * sizeof *list);
    size_t count = 0;
    if (!list)
        return MS_ENOMEM;
    for (uint32_t i = 0; i < stream->block_count; i++) {
        uint64_t here = stream->blocks[i].requested, there = match->bytes[i];
        if (there != MS_REPLAY_UNMATCHED && there != here && there >= LEAST_COUNTED && here >= LEAST_COUNTED &&
            stream->blocks[i].phase == MS_FORWARD)
            list[count++] = (struct weighted){(double)here / (double)there, here};
    }
    qsort(list, count, sizeof *list, by_ratio);
    uint64_t most = 0, run = 0;
    match->ratio = 1;
    for (size_t i = 0; i < count; i++) {
        run = i && list[i].ratio > list[i - 1].ratio * 1.000001 ? list[i].bytes : run + list[i].bytes;
        if (run > most)
            most = run, match->ratio = list[i].ratio;
    }
    free(list);
    return MS_OK;
}

/* ---- the whole ---- */
static void forget(const ms_replay_stream *stream, ms_replay_match *match)
{
    uint64_t *bytes = match->bytes, *own = match->own_bytes;
    *match = (ms_replay_match){.bytes = bytes,
                               .own_bytes = own,
                               .here_first = MS_REPLAY_NONE,
                               .there_first = MS_REPLAY_NONE,
                               .ratio = match->ratio,
                               .partial_limit = match->partial_limit};
    for (uint32_t i = 0; i < stream->block_count; i++)
        bytes[i] = MS_REPLAY_UNMATCHED;
}

/* The first pass finds the ratio of the batches, the second one uses it. */
int ms_replay_match_open(const ms_replay_stream *stream, const ms_replay_stream *other, const uint32_t *paths,
                         uint32_t device, uint64_t partial_limit, ms_replay_match *match)
{
    uint32_t here_count, there_count;
    size_t room = ((size_t)stream->block_count + 1) * sizeof *match->bytes;
    *match =
        (ms_replay_match){.bytes = malloc(room), .own_bytes = malloc(room), .ratio = 1, .partial_limit = partial_limit};
    struct keyed *here = list_blocks(stream, paths, device, &here_count);
    struct keyed *there = list_blocks(other, NULL, device, &there_count);
    struct matching matching = {stream, other, match, 0};
    int error = match->bytes && match->own_bytes && here && there ? MS_OK : MS_ENOMEM;
    for (int pass = 0; !error && pass < 2; pass++) {
        forget(stream, match);
        match_lists(&matching, here, here_count, there, there_count);
        if (pass == 0)
            error = find_ratio(stream, match);
        matching.ratio = match->ratio;
    }
    free(here);
    free(there);
    if (error)
        ms_replay_match_close(match);
    return error;
}

void ms_replay_match_close(ms_replay_match *match)
{
    free(match->bytes);
    free(match->own_bytes);
    match->bytes = match->own_bytes = NULL;
}

/* ---- reductions: blocks in which a reduction on a GPU keeps partial results, and how large they are with another
 * batch.
 *
 * A sum of many values for few results is divided among thread blocks, whose partial results lie in one block. torch
 * adds the result, the partial results and the semaphores, and drops the last two at once. The partial results grow
 * with the batch until every multiprocessor has its share of thread blocks, and then stay as they are (ATen's
 * Reduce.cuh). */
enum { MOST_SEMAPHORES = 1 << 16 };

/* The event after this one, without those that only tell what is reserved. */
static uint32_t next_event(const ms_replay_stream *stream, uint32_t event)
{
    do
        event++;
    while (event < stream->event_count && stream->events[event].kind == MS_REPLAY_RESERVED);
    return event;
}

bool ms__replay_is_partial_results(const ms_replay_stream *stream, uint32_t index)
{
    const ms_replay_block *block = &stream->blocks[index];
    if (block->add == MS_REPLAY_NONE || block->drop == MS_REPLAY_NONE)
        return false;
    uint32_t added = next_event(stream, block->add);
    uint32_t dropped = next_event(stream, added);
    if (dropped >= stream->event_count || next_event(stream, dropped) != block->drop)
        return false;
    const ms_replay_event *add = &stream->events[added], *drop = &stream->events[dropped];
    return add->kind == MS_REPLAY_ADD && drop->kind == MS_REPLAY_DROP && add->value == drop->value &&
           stream->blocks[add->value].requested <= MOST_SEMAPHORES;
}

double ms__replay_partial_results(double small, double large, double ratio, double batch, double limit)
{
    double bytes = small * batch, most = limit > large ? limit : large;
    if (small >= large)
        return large;
    if (large < small * ratio * MS_REPLAY_GREW)
        return bytes < large ? bytes : large;
    return limit == 0 || bytes < most ? bytes : most;
}

/* As large as partial results become on this GPU: the size of those that did not grow with the batch. */
static double limit_of_partial_results(const ms_replay_stream *stream, const ms_replay_match *match)
{
    enum { LEAST = 1 << 24 }; /* smaller ones may belong to a reduction that is small itself */
    double limit = (double)match->partial_limit;
    for (uint32_t i = 0; i < stream->block_count; i++) {
        double here = (double)match->own_bytes[i], there = (double)match->bytes[i];
        bool is_less =
            match->bytes[i] != MS_REPLAY_UNMATCHED && here >= LEAST && here < there * match->ratio * MS_REPLAY_GREW;
        if (is_less && here > limit && ms__replay_is_partial_results(stream, i))
            limit = here;
    }
    return limit;
}

int ms_replay_edit_batch(ms_replay_edit *edit, const ms_replay_match *match, double position)
{
    if (!(position >= -1e6 && position <= 1e6))
        return MS_EINVAL;
    double limit = limit_of_partial_results(edit->stream, match);
    for (uint32_t i = 0; i < edit->stream->block_count; i++) {
        if (match->bytes[i] == MS_REPLAY_UNMATCHED || !edit->blocks[i].bytes)
            continue;
        double here = (double)match->own_bytes[i], there = (double)match->bytes[i];
        double exact = there + (here - there) * position;
        if (position > 0 && ms__replay_is_partial_results(edit->stream, i))
            exact = ms__replay_partial_results(there, here, match->ratio, 1 + position * (match->ratio - 1), limit);
        edit->blocks[i].bytes = exact >= 1 ? (uint64_t)(exact + 0.5) : 1;
    }
    return MS_OK;
}
