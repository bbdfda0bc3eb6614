/* calls.c - the calls of a capture, which records positions of threads: this phase, this module.
 *
 * A call begins when a thread in forward enters a path, and ends when it leaves it. Its backward begins when a
 * thread in backward enters the path and, before it leaves it, drops a block that the call added. Blocks that are
 * dropped in the nodes of other modules are outputs of the call, which those modules saved. */
#include "replay/calls.h"

static uint32_t depth_of(const ms_replay_stream *stream, ms_path path)
{
    uint32_t depth = 0;
    for (; path != MS_GLOBAL; path = stream->parents[path])
        depth++;
    return depth;
}

/* Set levels to those of `path`. Levels that stay keep their `since`; those that are new have MS_REPLAY_NONE, and *kept
 * is the number of the first one. */
static int set_levels(const ms_replay_stream *stream, ms__replay_levels *levels, ms_path path, uint32_t *kept)
{
    uint32_t depth = depth_of(stream, path);
    if (!MS__ARRAY_GROW(levels->at, levels->room, depth))
        return MS_ENOMEM;
    uint32_t same = 0;
    for (uint32_t i = depth; i-- > 0; path = stream->parents[path]) {
        bool is_kept = i < levels->count && levels->at[i].path == path;
        if (is_kept && !same)
            same = i + 1; /* the levels around it are the same too: each path has one parent */
        if (!is_kept)
            levels->at[i] = (ms__replay_level){path, MS_REPLAY_NONE}, same = 0;
    }
    levels->count = depth;
    *kept = same;
    return MS_OK;
}

static int open_call(ms__replay_loader *loader, uint32_t thread, uint32_t event, uint32_t level)
{
    ms_replay_stream *stream = loader->stream;
    ms__replay_levels *calls = &loader->threads[thread].calls;
    if (stream->call_count == MS_REPLAY_NONE - 1 ||
        !MS__ARRAY_GROW(stream->calls, loader->call_room, stream->call_count + 1))
        return MS_ENOMEM;
    stream->calls[stream->call_count] = (ms_replay_call){.path = calls->at[level].path,
                                                         .parent = level ? calls->at[level - 1].since : MS_REPLAY_NONE,
                                                         .begin = event,
                                                         .end = MS_REPLAY_NONE,
                                                         .backward = MS_REPLAY_NONE,
                                                         .last_save = MS_REPLAY_NONE,
                                                         .first_block = stream->block_count,
                                                         .last_block = MS_REPLAY_NONE,
                                                         .first_operator = stream->operator_count,
                                                         .last_operator = MS_REPLAY_NONE,
                                                         .first_input = MS_REPLAY_NONE,
                                                         .thread = (uint16_t)thread,
                                                         .step = loader->step,
                                                         .stands_for = 1};
    calls->at[level].since = stream->call_count++;
    return MS_OK;
}

static void close_calls(ms__replay_loader *loader, const ms__replay_levels *calls, uint32_t from, uint32_t event)
{
    for (uint32_t i = from; i < calls->count; i++) {
        ms_replay_call *call = &loader->stream->calls[calls->at[i].since];
        call->end = event;
        call->last_block = loader->stream->block_count;
        call->last_operator = loader->stream->operator_count;
    }
}

/* The levels that the two paths share. */
static uint32_t shared_levels(const ms_replay_stream *stream, const ms__replay_levels *levels, ms_path path)
{
    uint32_t shared = depth_of(stream, path);
    for (; path != MS_GLOBAL; path = stream->parents[path], shared--)
        if (shared <= levels->count && levels->at[shared - 1].path == path)
            break;
    return shared;
}

static int move_in_forward(ms__replay_loader *loader, uint32_t thread, uint32_t event, ms_path path)
{
    ms__replay_levels *calls = &loader->threads[thread].calls;
    uint32_t kept = 0;
    close_calls(loader, calls, shared_levels(loader->stream, calls, path), event);
    int error = set_levels(loader->stream, calls, path, &kept);
    for (uint32_t i = kept; !error && i < calls->count; i++)
        error = open_call(loader, thread, event, i);
    return error;
}

static int move_in_backward(ms__replay_loader *loader, uint32_t thread, uint32_t event, ms_path path)
{
    ms__replay_levels *nodes = &loader->threads[thread].nodes;
    uint32_t kept = 0;
    if (loader->threads[thread].node_event < loader->forward_event)
        nodes->count = 0; /* those of an earlier backward, also where this one begins outside any module */
    if (path == MS_GLOBAL)
        return MS_OK;
    loader->threads[thread].node_event = event;
    int error = set_levels(loader->stream, nodes, path, &kept);
    for (uint32_t i = kept; !error && i < nodes->count; i++)
        nodes->at[i].since = event;
    return error;
}

int ms__replay_loader_move(ms__replay_loader *loader, uint32_t thread, uint32_t event, ms_phase phase, ms_path path)
{
    ms__replay_loading_thread *of = &loader->threads[thread];
    of->phase = (uint8_t)phase;
    of->path = path;
    if (phase == MS_BACKWARD)
        return move_in_backward(loader, thread, event, path);
    if (phase == MS_FORWARD)
        loader->forward_event = event;
    if (phase == MS_FORWARD || (phase == MS_IDLE && path == MS_GLOBAL))
        return move_in_forward(loader, thread, event, path);
    return MS_OK;
}

uint32_t ms__replay_loader_call(const ms__replay_loader *loader, uint32_t thread)
{
    const ms__replay_loading_thread *of = &loader->threads[thread];
    return of->phase == MS_FORWARD && of->calls.count ? of->calls.at[of->calls.count - 1].since : MS_REPLAY_NONE;
}

/* A call's inputs are noted one after the other. Those that follow uses by other threads are left out. */
static void add_input(ms_replay_stream *stream, uint32_t call)
{
    ms_replay_call *of = &stream->calls[call];
    if (!of->input_count)
        of->first_input = stream->use_count;
    if (of->first_input + of->input_count == stream->use_count)
        of->input_count++;
}

/* Whether the block can hold a Python number of an expression. Autograd saves it without its hooks, so that a
 * checkpoint does not see it. */
static bool is_number(const ms__replay_loader *loader, uint32_t block)
{
    const uint64_t complex_bytes = 16;
    const ms_replay_block *of = &loader->stream->blocks[block];
    return of->device == loader->cpu && of->requested <= complex_bytes;
}

int ms__replay_loader_note_use(ms__replay_loader *loader, uint32_t block, ms_replay_use_kind kind)
{
    ms_replay_stream *stream = loader->stream;
    if (kind == MS_REPLAY_SAVE && is_number(loader, block))
        return MS_OK;
    uint32_t call = ms__replay_loader_call(loader, loader->thread);
    if (call == MS_REPLAY_NONE && kind != MS_REPLAY_SAVE)
        return MS_OK;
    if (stream->use_count == MS_REPLAY_NONE - 1 ||
        !MS__ARRAY_GROW(stream->uses, loader->use_room, stream->use_count + 1))
        return MS_ENOMEM;
    if (kind == MS_REPLAY_INPUT)
        add_input(stream, call);
    if (kind == MS_REPLAY_SAVE && call != MS_REPLAY_NONE)
        stream->calls[call].saves = true;
    for (uint32_t i = call; kind == MS_REPLAY_SAVE && i != MS_REPLAY_NONE; i = stream->calls[i].parent)
        stream->calls[i].last_save = stream->event_count;
    stream->uses[stream->use_count] =
        (ms_replay_use){block, call, stream->event_count, stream->blocks[block].last_use, (uint8_t)kind};
    stream->blocks[block].last_use = stream->use_count++;
    return MS_OK;
}

void ms__replay_loader_note_drop(ms__replay_loader *loader, uint32_t thread, const ms_replay_block *block)
{
    const ms__replay_loading_thread *of = &loader->threads[thread];
    if (of->phase != MS_BACKWARD)
        return;
    uint32_t level = of->nodes.count;
    ms_replay_call *calls = loader->stream->calls;
    for (uint32_t i = block->call; i != MS_REPLAY_NONE; i = calls[i].parent) {
        while (level && of->nodes.at[level - 1].path > calls[i].path)
            level--; /* a path is lower than the paths below it */
        if (level && of->nodes.at[level - 1].path == calls[i].path && calls[i].backward == MS_REPLAY_NONE)
            calls[i].backward = of->nodes.at[level - 1].since;
    }
}
