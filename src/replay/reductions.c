/* reductions.c - blocks in which a reduction on a GPU keeps partial results, and how large they are with another batch.
 *
 * A sum of many values for few results is divided among thread blocks, whose partial results lie in one block. torch
 * adds the result, the partial results and the semaphores, and drops the last two at once. The partial results grow
 * with the batch until every multiprocessor has its share of thread blocks, and then stay as they are (ATen's
 * Reduce.cuh). */
#include "replay/edit.h"

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
