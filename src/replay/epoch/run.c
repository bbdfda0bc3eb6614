/* run.c - the replay of an epoch: its beginning, and then a step for each batch. */
#include "replay/epoch/run.h"

#include <stdlib.h>

void ms__epoch_note_outcome(const struct ms__epoch_outcome *outcome, uint32_t batch, const ms_epoch_curves *curves,
                            ms_epoch_result *result)
{
    if (curves && curves->reserved)
        curves->reserved[batch] = outcome->reserved;
    if (curves && curves->allocated)
        curves->allocated[batch] = outcome->allocated;
    if (curves && curves->failed)
        curves->failed[batch] = outcome->failed;
    if (outcome->reserved > result->reserved_peak)
        result->reserved_peak = outcome->reserved, result->reserved_at = batch;
    if (outcome->allocated > result->allocated_peak)
        result->allocated_peak = outcome->allocated, result->allocated_at = batch;
    result->retries += outcome->retries;
    if (!outcome->failed)
        return;
    if (result->first_failure == MS_EPOCH_NONE) {
        result->first_failure = batch;
        result->requested = outcome->requested;
        result->failed_operator = outcome->operator_then;
        result->allocated = outcome->allocated_then;
        result->reserved = outcome->reserved_then;
    }
    result->failures++;
}

static int replay_batches(struct ms__epoch_run *run, bool is_first_only, const ms_epoch_curves *curves,
                          ms_epoch_result *result)
{
    uint32_t state = MS_EPOCH_NONE;
    int error = MS_OK;
    for (uint32_t batch = run->epoch->first; !error && batch < run->batches->count; batch++) {
        struct ms__epoch_outcome outcome;
        bool is_replayed;
        error = ms__epoch_take_step(run, batch, &state, &outcome, &is_replayed);
        if (error)
            break;
        ms__epoch_note_outcome(&outcome, batch, curves, result);
        result->replayed += is_replayed;
        result->reserved_end = outcome.reserved;
        if (is_first_only && outcome.failed)
            break;
    }
    return error;
}

static int open_run(struct ms__epoch_run *run, const ms_allocator_settings *settings)
{
    const ms_epoch *epoch = run->epoch;
    run->beginning_count = epoch->steps[epoch->first].first;
    run->allocator = ms_allocator_open(settings, NULL);
    run->beginning = calloc(run->beginning_count + 1, sizeof(ms_allocation *));
    run->values = malloc(((size_t)(epoch->longest_lag + 1) * epoch->used_count + 1) * sizeof *run->values);
    run->order = malloc((size_t)epoch->step_count * sizeof *run->order);
    run->is_watching = true;
    return run->allocator && run->beginning && run->values && run->order ? MS_OK : MS_ENOMEM;
}

static void close_run(struct ms__epoch_run *run)
{
    ms_allocator_close(run->allocator);
    for (uint32_t i = 0; i < MS__EPOCH_RING; i++)
        free(run->ring[i].blocks);
    free(run->beginning);
    free(run->made);
    free(run->values);
    free(run->order);
    ms__map_clear(&run->states);
    free(run->checks);
    ms__map_clear(&run->edge_of);
    free(run->edges);
    free(run->numbers);
    free(run->pending);
}

int ms_epoch_replay(const ms_epoch *epoch, const ms_allocator_settings *settings, const ms_epoch_batches *batches,
                    bool is_first_only, const ms_epoch_curves *curves, ms_epoch_result *result)
{
    struct ms__epoch_run run = {.epoch = epoch, .batches = batches};
    *result = (ms_epoch_result){.first_failure = MS_EPOCH_NONE};
    if (batches->count < epoch->first)
        return MS_EINVAL;
    for (uint32_t i = 0; i < batches->count; i++)
        if (batches->shapes[i] >= epoch->shape_count)
            return MS_EINVAL;
    int error = open_run(&run, settings);
    if (!error)
        error = ms__epoch_replay_beginning(&run, curves, result);
    if (!error)
        error = replay_batches(&run, is_first_only, curves, result);
    close_run(&run);
    return error == MS_EDEVICE ? MS_OK : error;
}
