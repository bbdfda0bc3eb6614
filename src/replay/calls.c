/* calls.c - the calls of a capture, which records positions of threads: this phase, this module.
 *
 * A call begins when a thread in forward enters a path, and ends when it leaves it. Its backward begins when a
 * thread in backward enters the path and, before it leaves it, drops a block that the call added. Blocks that are
 * dropped in the nodes of other modules are outputs of the call, which those modules saved. */
#include "replay/calls.h"

static uint32_t depth_of(const msp_stream *stream, ms_path path)
{
    uint32_t depth = 0;
    for (; path != MS_GLOBAL; path = stream->parents[path])
        depth++;
    return depth;
}

/* Set levels to those of `path`. Levels that stay keep their `since`; those that are new have MSP_NONE, and *kept is
 * the number of the first one. */
static int set_levels(const msp_stream *stream, msp_levels *levels, ms_path path, uint32_t *kept)
{
    uint32_t depth = depth_of(stream, path);
    if (!msp_grow((void **)&levels->at, &levels->room, depth, sizeof *levels->at))
        return MS_ENOMEM;
    uint32_t same = 0;
    for (uint32_t i = depth; i-- > 0; path = stream->parents[path]) {
        bool is_kept = i < levels->count && levels->at[i].path == path;
        if (is_kept && !same)
            same = i + 1; /* the levels around it are the same too: each path has one parent */
        if (!is_kept)
            levels->at[i] = (msp_level){path, MSP_NONE}, same = 0;
    }
    levels->count = depth;
    *kept = same;
    return MS_OK;
}

static int open_call(msp_loader *loader, uint32_t thread, uint32_t event, uint32_t level)
{
    msp_stream *stream = loader->stream;
    msp_levels *calls = &loader->threads[thread].calls;
    if (stream->call_count == MSP_NONE - 1 ||
        !msp_grow((void **)&stream->calls, &loader->call_room, stream->call_count + 1, sizeof *stream->calls))
        return MS_ENOMEM;
    stream->calls[stream->call_count] = (msp_call){.path = calls->at[level].path,
                                                   .parent = level ? calls->at[level - 1].since : MSP_NONE,
                                                   .begin = event,
                                                   .end = MSP_NONE,
                                                   .backward = MSP_NONE,
                                                   .last_save = MSP_NONE,
                                                   .first_block = stream->block_count,
                                                   .last_block = MSP_NONE,
                                                   .thread = (uint16_t)thread,
                                                   .step = loader->step};
    calls->at[level].since = stream->call_count++;
    return MS_OK;
}

static void close_calls(msp_loader *loader, const msp_levels *calls, uint32_t from, uint32_t event)
{
    for (uint32_t i = from; i < calls->count; i++) {
        msp_call *call = &loader->stream->calls[calls->at[i].since];
        call->end = event;
        call->last_block = loader->stream->block_count;
    }
}

/* The levels that the two paths share. */
static uint32_t shared_levels(const msp_stream *stream, const msp_levels *levels, ms_path path)
{
    uint32_t shared = depth_of(stream, path);
    for (; path != MS_GLOBAL; path = stream->parents[path], shared--)
        if (shared <= levels->count && levels->at[shared - 1].path == path)
            break;
    return shared;
}

static int move_in_forward(msp_loader *loader, uint32_t thread, uint32_t event, ms_path path)
{
    msp_levels *calls = &loader->threads[thread].calls;
    uint32_t kept;
    close_calls(loader, calls, shared_levels(loader->stream, calls, path), event);
    int error = set_levels(loader->stream, calls, path, &kept);
    for (uint32_t i = kept; !error && i < calls->count; i++)
        error = open_call(loader, thread, event, i);
    return error;
}

static int move_in_backward(msp_loader *loader, uint32_t thread, uint32_t event, ms_path path)
{
    msp_levels *nodes = &loader->threads[thread].nodes;
    uint32_t kept;
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

int msp_loader_move(msp_loader *loader, uint32_t thread, uint32_t event, ms_phase phase, ms_path path)
{
    msp_loading_thread *of = &loader->threads[thread];
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

uint32_t msp_loader_call(const msp_loader *loader, uint32_t thread)
{
    const msp_loading_thread *of = &loader->threads[thread];
    return of->phase == MS_FORWARD && of->calls.count ? of->calls.at[of->calls.count - 1].since : MSP_NONE;
}

/* A call's inputs are noted one after the other. Those that follow uses by other threads are left out. */
static void add_input(msp_stream *stream, uint32_t call)
{
    msp_call *of = &stream->calls[call];
    if (!of->input_count)
        of->first_input = stream->use_count;
    if (of->first_input + of->input_count == stream->use_count)
        of->input_count++;
}

int msp_loader_note_use(msp_loader *loader, uint32_t block, msp_use_kind kind)
{
    msp_stream *stream = loader->stream;
    uint32_t call = msp_loader_call(loader, loader->thread);
    if (call == MSP_NONE && kind != MSP_SAVE)
        return MS_OK;
    if (stream->use_count == MSP_NONE - 1 ||
        !msp_grow((void **)&stream->uses, &loader->use_room, stream->use_count + 1, sizeof *stream->uses))
        return MS_ENOMEM;
    if (kind == MSP_INPUT)
        add_input(stream, call);
    if (kind == MSP_SAVE && call != MSP_NONE)
        stream->calls[call].saves = true;
    for (uint32_t i = call; kind == MSP_SAVE && i != MSP_NONE; i = stream->calls[i].parent)
        stream->calls[i].last_save = stream->event_count;
    stream->uses[stream->use_count] =
        (msp_use){block, call, stream->event_count, stream->blocks[block].last_use, (uint8_t)kind};
    stream->blocks[block].last_use = stream->use_count++;
    return MS_OK;
}

void msp_loader_note_drop(msp_loader *loader, uint32_t thread, const msp_block *block)
{
    const msp_loading_thread *of = &loader->threads[thread];
    if (of->phase != MS_BACKWARD)
        return;
    uint32_t level = of->nodes.count;
    msp_call *calls = loader->stream->calls;
    for (uint32_t i = block->call; i != MSP_NONE; i = calls[i].parent) {
        while (level && of->nodes.at[level - 1].path > calls[i].path)
            level--; /* a path is lower than the paths below it */
        if (level && of->nodes.at[level - 1].path == calls[i].path && calls[i].backward == MSP_NONE)
            calls[i].backward = of->nodes.at[level - 1].since;
    }
}
