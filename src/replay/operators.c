/* operators.c - the operators that ran in calls, where a capture has them, and checkpoints that keep the results of
 * some of them. An operator's results are the blocks that it added and that live when it has ended:
 *
 *     events     [begin                                    end)
 *                 add workspace, add result, drop workspace */
#include "replay/calls.h"
#include "replay/edit.h"

#include <stdlib.h>

/* ---- loading ---- */
int ms__replay_loader_open_operators(ms__replay_loader *loader, ms_reader *reader)
{
    int error = ms_operators_read(reader, &loader->operators);
    loader->stream->operator_names = NULL;
    if (error || !loader->operators.name_count)
        return error;
    size_t bytes = loader->operators.name_count * sizeof *loader->stream->operator_names;
    loader->stream->operator_names = malloc(bytes);
    if (!loader->stream->operator_names)
        return MS_ENOMEM;
    memcpy(loader->stream->operator_names, loader->operators.names, bytes);
    loader->stream->operator_name_count = (uint32_t)loader->operators.name_count;
    return MS_OK;
}

static int add_operator(ms__replay_loader *loader, const ms_operator_run *run)
{
    ms_replay_stream *stream = loader->stream;
    uint32_t thread = ms__map_index(&loader->by_number, run->thread), begin = stream->event_count;
    uint32_t call = thread == MS_REPLAY_NONE ? MS_REPLAY_NONE : ms__replay_loader_call(loader, thread);
    uint32_t changed = run->slot == MS_OPERATOR_NO_SLOT ? MS_REPLAY_NONE : ms__map_index(&loader->by_slot, run->slot);
    if (changed != MS_REPLAY_NONE)
        stream->blocks[changed].is_changed = true;
    if (call == MS_REPLAY_NONE)
        return MS_OK;
    if (stream->operator_count == MS_REPLAY_NONE - 1 ||
        !MS__ARRAY_GROW(stream->operators, loader->operator_room, stream->operator_count + 1))
        return MS_ENOMEM;
    while (begin && stream->events[begin - 1].number >= run->begin)
        begin--;
    stream->operators[stream->operator_count++] = (ms_replay_operator){
        .call = call, .begin = begin, .end = stream->event_count, .name = run->name, .nanoseconds = run->nanoseconds};
    return MS_OK;
}

int ms__replay_loader_apply_operators(ms__replay_loader *loader, uint64_t number)
{
    int error = MS_OK;
    for (; !error && loader->next_operator < loader->operators.count &&
           loader->operators.runs[loader->next_operator].end <= number;
         loader->next_operator++)
        error = add_operator(loader, &loader->operators.runs[loader->next_operator]);
    return error;
}

/* ---- the operators of a call ---- */

static bool is_result(const ms_replay_stream *stream, const ms_replay_operator *operator, uint32_t event)
{
    const ms_replay_event *at = &stream->events[event];
    if (at->kind != MS_REPLAY_ADD || at->thread != stream->calls[operator->call].thread)
        return false;
    const ms_replay_block *block = &stream->blocks[at->value];
    return block->drop == MS_REPLAY_NONE ? !ms__replay_is_workspace(block) : block->drop >= operator->end;
}

static void measure_results(const ms_replay_stream *stream, uint32_t call, uint32_t device,
                            ms_replay_call_operator *found)
{
    const ms_replay_operator *operator= & stream->operators[found->index];
    for (uint32_t i = operator->begin; i < operator->end; i++) {
        if (!is_result(stream, operator, i) || stream->blocks[stream->events[i].value].device != device)
            continue;
        const ms_replay_block *block = &stream->blocks[stream->events[i].value];
        found->bytes += block->bytes;
        found->saved += ms_replay_call_keeps(stream, &stream->calls[call], block) ? block->bytes : 0;
        found->is_changed |= block->is_changed;
    }
}

/* Number the calls of each name, and how many it has. */
static int number_operators(const ms_replay_stream *stream, ms_replay_call_operator *list, uint32_t count)
{
    uint32_t *counts = calloc((size_t)stream->operator_name_count + 1, sizeof *counts);
    if (!counts)
        return MS_ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        list[i].number = ++counts[stream->operators[list[i].index].name];
    for (uint32_t i = 0; i < count; i++)
        list[i].of = counts[stream->operators[list[i].index].name];
    free(counts);
    return MS_OK;
}

int ms_replay_call_operators(const ms_replay_stream *stream, uint32_t call, uint32_t device,
                             ms_replay_call_operator **list, uint32_t *count)
{
    const ms_replay_call *of = &stream->calls[call];
    uint32_t last = of->last_operator == MS_REPLAY_NONE ? stream->operator_count : of->last_operator;
    uint32_t to = ms_replay_call_recomputed_to(stream, call);
    *count = 0;
    *list = malloc(((size_t)(last - of->first_operator) + 1) * sizeof **list);
    if (!*list)
        return MS_ENOMEM;
    for (uint32_t i = of->first_operator; i < last; i++) {
        if (!ms__replay_call_is_in(stream, stream->operators[i].call, call))
            continue;
        ms_replay_call_operator found = {.index = i};
        measure_results(stream, call, device, &found);
        found.is_recomputed = to != MS_REPLAY_NONE && stream->operators[i].begin < to;
        (*list)[(*count)++] = found;
    }
    int error = number_operators(stream, *list, *count);
    if (error)
        free(*list);
    return error;
}

/* ---- the edit ---- */
int ms_replay_edit_checkpoint_keeping(ms_replay_edit *edit, uint32_t call, const uint32_t *operators, uint32_t count)
{
    const ms_replay_stream *stream = edit->stream;
    for (uint32_t i = 0; i < count; i++)
        if (call >= stream->call_count || operators[i] >= stream->operator_count ||
            !ms__replay_call_is_in(stream, stream->operators[operators[i]].call, call))
            return MS_EINVAL;
    int error = ms_replay_edit_checkpoint(edit, call);
    for (uint32_t i = 0; !error && i < count; i++) {
        const ms_replay_operator *operator= & stream->operators[operators[i]];
        for (uint32_t j = operator->begin; j < operator->end; j++) {
            const ms_replay_event *event = &stream->events[j];
            if (event->kind == MS_REPLAY_ADD && event->thread == stream->calls[operator->call].thread)
                edit->blocks[event->value].role =
                    is_result(stream, operator, j) ? MS_REPLAY_RESULT : MS_REPLAY_TEMPORARY;
        }
    }
    return error;
}
