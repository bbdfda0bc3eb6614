/* call_times.c - how long the GPU needed for calls, where a capture knows it. Only some steps are measured: a call of
 * another step is given the mean of the measured calls of the same module. */
#include "replay/calls.h"

#include <stdlib.h>

int msp_loader_open_times(msp_loader *loader, ms_reader *reader)
{
    return ms_call_times_read(reader, &loader->times, &loader->time_count);
}

void msp_loader_apply_times(msp_loader *loader, uint64_t number)
{
    msp_stream *stream = loader->stream;
    for (; loader->next_time < loader->time_count && loader->times[loader->next_time].event <= number;
         loader->next_time++) {
        const ms_call_time *time = &loader->times[loader->next_time];
        uint32_t thread = msp_map_get(&loader->by_number, time->thread);
        uint32_t call = thread == MSP_NONE ? MSP_NONE : msp_loader_call(loader, thread);
        if (call == MSP_NONE)
            continue;
        stream->calls[call].nanoseconds = time->nanoseconds;
        stream->has_times = true;
    }
}

void msp_loader_skip_times(msp_loader *loader, uint64_t number)
{
    while (loader->next_time < loader->time_count && loader->times[loader->next_time].event < number)
        loader->next_time++;
}

int msp_loader_complete_times(msp_loader *loader)
{
    msp_stream *stream = loader->stream;
    struct sum {
        uint64_t nanoseconds, count;
    } * sums;
    if (!stream->has_times)
        return MS_OK;
    sums = calloc(stream->path_count, sizeof *sums);
    if (!sums)
        return MS_ENOMEM;
    for (uint32_t i = 0; i < stream->call_count; i++) {
        const msp_call *call = &stream->calls[i];
        sums[call->path].nanoseconds += call->nanoseconds;
        sums[call->path].count += call->nanoseconds != 0;
    }
    for (uint32_t i = 0; i < stream->call_count; i++) {
        msp_call *call = &stream->calls[i];
        if (!call->nanoseconds && sums[call->path].count)
            call->nanoseconds = sums[call->path].nanoseconds / sums[call->path].count;
    }
    free(sums);
    return MS_OK;
}

uint64_t msp_call_recompute_time(const msp_stream *stream, uint32_t call)
{
    uint32_t to = msp_call_recomputed_to(stream, call);
    uint64_t nanoseconds = stream->calls[call].nanoseconds;
    if (to == MSP_NONE)
        return 0;
    for (uint32_t i = call + 1; i < stream->call_count && stream->calls[i].begin < stream->calls[call].end; i++) {
        const msp_call *inner = &stream->calls[i];
        if (inner->parent == call && inner->begin >= to)
            nanoseconds -= inner->nanoseconds < nanoseconds ? inner->nanoseconds : nanoseconds;
    }
    return nanoseconds;
}
