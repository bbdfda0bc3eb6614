/* call_times.c - how long the GPU needed for calls, where a capture knows it. Only some steps are measured: a call of
 * another step is given the mean of the measured calls of the same module. */
#include "replay/calls.h"

#include <stdlib.h>

int ms__replay_loader_open_times(ms__replay_loader *loader, ms_reader *reader)
{
    return ms_call_times_read(reader, &loader->times, &loader->time_count);
}

void ms__replay_loader_apply_times(ms__replay_loader *loader, uint64_t number)
{
    ms_replay_stream *stream = loader->stream;
    for (; loader->next_time < loader->time_count && loader->times[loader->next_time].event <= number;
         loader->next_time++) {
        const ms_call_time *time = &loader->times[loader->next_time];
        uint32_t thread = ms__map_index(&loader->by_number, time->thread);
        uint32_t call = thread == MS_REPLAY_NONE ? MS_REPLAY_NONE : ms__replay_loader_call(loader, thread);
        if (call == MS_REPLAY_NONE)
            continue;
        stream->calls[call].nanoseconds = time->nanoseconds;
        stream->has_times = true;
    }
}

void ms__replay_loader_skip_times(ms__replay_loader *loader, uint64_t number)
{
    while (loader->next_time < loader->time_count && loader->times[loader->next_time].event < number)
        loader->next_time++;
}

/* Calls that the GPU did not measure have the mean of their module's calls. */
static int complete_gpu_times(ms_replay_stream *stream)
{
    struct sum {
        uint64_t nanoseconds, count;
    } *sums = calloc((size_t)stream->path_count + 1, sizeof *sums);
    if (!sums)
        return MS_ENOMEM;
    for (uint32_t i = 0; i < stream->call_count; i++) {
        const ms_replay_call *call = &stream->calls[i];
        sums[call->path].nanoseconds += call->nanoseconds;
        sums[call->path].count += call->nanoseconds != 0;
    }
    for (uint32_t i = 0; i < stream->call_count; i++) {
        ms_replay_call *call = &stream->calls[i];
        if (!call->nanoseconds && sums[call->path].count)
            call->nanoseconds = sums[call->path].nanoseconds / sums[call->path].count;
    }
    free(sums);
    return MS_OK;
}

/* What the GPU needs for a recomputation up to event `to`: the time of the call, less that of the calls in it that are
 * not run again. */
static uint64_t gpu_time_until(const ms_replay_stream *stream, uint32_t index, uint32_t to)
{
    uint64_t nanoseconds = stream->calls[index].nanoseconds;
    for (uint32_t i = index + 1; i < stream->call_count && stream->calls[i].begin < stream->calls[index].end; i++) {
        const ms_replay_call *inner = &stream->calls[i];
        if (inner->parent == index && inner->begin >= to)
            nanoseconds -= inner->nanoseconds < nanoseconds ? inner->nanoseconds : nanoseconds;
    }
    return nanoseconds;
}

/* The microseconds between two events; beyond the last one, until that. */
static uint64_t time_between(const ms_replay_stream *stream, uint32_t begin, uint32_t end)
{
    uint32_t last = stream->event_count ? stream->event_count - 1 : 0;
    if (begin >= stream->event_count)
        return 0;
    return stream->events[end < last ? end : last].time - stream->events[begin].time;
}

int ms__replay_loader_complete_times(ms__replay_loader *loader)
{
    ms_replay_stream *stream = loader->stream;
    int error = stream->has_times ? complete_gpu_times(stream) : MS_OK;
    for (uint32_t i = 0; !error && i < stream->call_count; i++) {
        ms_replay_call *call = &stream->calls[i];
        uint32_t to = ms_replay_call_recomputed_to(stream, i);
        call->microseconds = time_between(stream, call->begin, call->end);
        if (to != MS_REPLAY_NONE)
            call->recompute_nanoseconds =
                call->nanoseconds ? gpu_time_until(stream, i, to) : 1000 * time_between(stream, call->begin, to);
    }
    return error;
}
