/* lifetimes.c - edits of when blocks are freed: gradients at the end of a step, and what autograd saves on the CPU. */
#include "replay/edit.h"

#include <stdlib.h>

int ms_replay_edit_end(ms_replay_edit *edit, uint32_t block, uint32_t end)
{
    if (block >= edit->stream->block_count)
        return MS_EINVAL;
    uint32_t add = edit->stream->blocks[block].add;
    if (add != MS_REPLAY_NONE && end <= add)
        return MS_EINVAL;
    edit->blocks[block].end = end;
    return MS_OK;
}

int ms_replay_edit_stop(ms_replay_edit *edit, uint32_t event)
{
    if (event > edit->stream->event_count)
        return MS_EINVAL;
    edit->last_event = event;
    return MS_OK;
}

void ms_replay_edit_stop_above(ms_replay_edit *edit, uint64_t bytes)
{
    edit->most_reserved = bytes;
}

/* ---- gradients ---- */

/* A gradient that lives on into another step, and the block that holds it now. */
struct kept_gradient {
    ms_path path;
    uint64_t bytes;
    uint32_t block;
    uint32_t holder; /* MS_REPLAY_NONE: it was freed when the step began */
    bool is_stored;  /* the gradient exists: from its block's add on */
    bool was_used;   /* a block took its place in this step */
};

struct gradients {
    struct kept_gradient *at; /* by path and bytes, then by block */
    uint32_t count;
};

static int by_owner_and_bytes(const void *a, const void *b)
{
    const struct kept_gradient *first = a, *second = b;
    if (first->path != second->path)
        return first->path < second->path ? -1 : 1;
    if (first->bytes != second->bytes)
        return first->bytes < second->bytes ? -1 : 1;
    return first->block < second->block ? -1 : first->block > second->block;
}

/* By event: the event that begins the next step, or MS_REPLAY_NONE. One item more stands for the beginning. */
static uint32_t *list_step_ends(const ms_replay_stream *stream)
{
    uint32_t *ends = malloc(((size_t)stream->event_count + 1) * sizeof *ends);
    uint32_t end = MS_REPLAY_NONE;
    for (uint32_t i = stream->event_count; ends && i-- > 0;) {
        ends[i] = end;
        if (stream->events[i].kind == MS_REPLAY_STEP)
            end = i;
    }
    if (ends)
        ends[stream->event_count] = end;
    return ends;
}

/* Whether the block lives through the whole next step. One that is freed in the forward of the next step was set to
 * None there. */
static bool is_kept_gradient(const ms_replay_stream *stream, const uint32_t *ends, const ms_replay_block *block)
{
    if (block->category != MS_GRADIENT)
        return false;
    uint32_t end = ends[block->add == MS_REPLAY_NONE ? stream->event_count : block->add];
    if (end == MS_REPLAY_NONE || block->drop == MS_REPLAY_NONE)
        return end != MS_REPLAY_NONE;
    return ends[end] != MS_REPLAY_NONE && block->drop > ends[end];
}

static int list_gradients(const ms_replay_stream *stream, const uint32_t *ends, struct gradients *found)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < stream->block_count; i++)
        count += stream->blocks[i].category == MS_GRADIENT;
    *found = (struct gradients){malloc(((size_t)count + 1) * sizeof *found->at), 0};
    if (!found->at)
        return MS_ENOMEM;
    for (uint32_t i = 0; i < stream->block_count; i++) {
        const ms_replay_block *block = &stream->blocks[i];
        if (is_kept_gradient(stream, ends, block))
            found->at[found->count++] = (struct kept_gradient){.path = block->path,
                                                               .bytes = block->requested,
                                                               .block = i,
                                                               .holder = i,
                                                               .is_stored = block->add == MS_REPLAY_NONE};
    }
    qsort(found->at, found->count, sizeof *found->at, by_owner_and_bytes);
    return MS_OK;
}

/* The index of the first gradient with this owner and size, or where it would be inserted. */
static uint32_t find_gradient(const struct gradients *of, ms_path path, uint64_t bytes)
{
    uint32_t from = 0, to = of->count;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        const struct kept_gradient *at = &of->at[middle];
        if (at->path < path || (at->path == path && at->bytes < bytes))
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* A step begins: free every gradient that exists. */
static void end_holders(ms_replay_edit *edit, struct gradients *of, uint32_t event)
{
    for (uint32_t i = 0; i < of->count; i++) {
        if (of->at[i].is_stored && of->at[i].holder != MS_REPLAY_NONE) {
            edit->blocks[of->at[i].holder].end = event;
            of->at[i].holder = MS_REPLAY_NONE;
        }
        of->at[i].was_used = false;
    }
}

/* A block is dropped in backward. If a gradient of its module with its size was freed, the block takes that gradient's
 * place and is not freed. */
static void replace_gradient(ms_replay_edit *edit, struct gradients *of, uint32_t index)
{
    const ms_replay_block *block = &edit->stream->blocks[index];
    if (block->category != MS_TEMP || block->phase != MS_BACKWARD || block->drop_phase != MS_BACKWARD)
        return;
    for (uint32_t i = find_gradient(of, block->path, block->requested); i < of->count; i++) {
        struct kept_gradient *at = &of->at[i];
        if (at->path != block->path || at->bytes != block->requested)
            return;
        if (at->is_stored && at->holder == MS_REPLAY_NONE && !at->was_used) {
            at->holder = index;
            at->was_used = true;
            edit->blocks[index].end = MS_REPLAY_NONE;
            return;
        }
    }
}

static void note_stored(const ms_replay_stream *stream, struct gradients *of, uint32_t index)
{
    const ms_replay_block *block = &stream->blocks[index];
    if (block->category != MS_GRADIENT)
        return;
    for (uint32_t i = find_gradient(of, block->path, block->requested); i < of->count; i++) {
        if (of->at[i].path != block->path || of->at[i].bytes != block->requested)
            return;
        if (of->at[i].block == index)
            of->at[i].is_stored = true;
    }
}

int ms_replay_edit_zero_grad(ms_replay_edit *edit, uint64_t *count)
{
    const ms_replay_stream *stream = edit->stream;
    struct gradients gradients = {NULL, 0};
    uint32_t *ends = list_step_ends(stream);
    int error = ends ? list_gradients(stream, ends, &gradients) : MS_ENOMEM;
    for (uint32_t i = 0; !error && gradients.count && i < stream->event_count; i++) {
        const ms_replay_event *event = &stream->events[i];
        if (event->kind == MS_REPLAY_STEP)
            end_holders(edit, &gradients, i);
        else if (event->kind == MS_REPLAY_ADD)
            note_stored(stream, &gradients, (uint32_t)event->value);
        else if (event->kind == MS_REPLAY_DROP)
            replace_gradient(edit, &gradients, (uint32_t)event->value);
    }
    if (count)
        *count = gradients.count;
    free(gradients.at);
    free(ends);
    return error;
}

/* ---- what autograd saves ---- */
static uint32_t outermost_call(const ms_replay_stream *stream, uint32_t call)
{
    while (call != MS_REPLAY_NONE && stream->calls[call].parent != MS_REPLAY_NONE)
        call = stream->calls[call].parent;
    return call;
}

enum { MOST_EVENTS = 1 << 14 }; /* to look for the nodes of a module in */

/* The latest position before event `before` at which the thread entered backward nodes of the module, or
 * MS_REPLAY_NONE. */
static uint32_t nodes_before(const ms_replay_stream *stream, uint32_t before, uint16_t thread, ms_path path)
{
    for (uint32_t i = before; i-- > 0 && before - i < MOST_EVENTS;) {
        const ms_replay_event *event = &stream->events[i];
        if (event->kind == MS_REPLAY_POSITION && event->thread == thread && event->value == path)
            return event->phase == MS_BACKWARD ? i : MS_REPLAY_NONE;
    }
    return MS_REPLAY_NONE;
}

static uint32_t next_position(const ms_replay_stream *stream, uint32_t position)
{
    uint32_t i = position + 1;
    while (i < stream->event_count && !(stream->events[i].kind == MS_REPLAY_POSITION &&
                                        stream->events[i].thread == stream->events[position].thread))
        i++;
    return i;
}

static uint32_t save_before(const ms_replay_stream *stream, uint32_t use)
{
    while (use != MS_REPLAY_NONE && stream->uses[use].kind != MS_REPLAY_SAVE)
        use = stream->uses[use].earlier;
    return use;
}

/* Each save is a copy of its own, which is allocated again for its node. The first save, whose node runs last, is that
 * of save_block; insert those of the calls that saved the block later. */
static int copy_for_saves(ms_replay_edit *edit, uint32_t block, uint32_t root, uint32_t back)
{
    const ms_replay_stream *stream = edit->stream;
    int error = MS_OK;
    uint32_t earlier;
    for (uint32_t i = save_before(stream, stream->blocks[block].last_use); !error && i != MS_REPLAY_NONE; i = earlier) {
        uint32_t call = stream->uses[i].call;
        earlier = save_before(stream, stream->uses[i].earlier);
        if (earlier == MS_REPLAY_NONE || call == MS_REPLAY_NONE || call == stream->uses[earlier].call ||
            !ms__replay_call_is_in(stream, call, root))
            continue;
        uint32_t begin = nodes_before(stream, back, stream->events[back].thread, stream->calls[call].path);
        if (begin != MS_REPLAY_NONE)
            error = ms_replay_edit_insert(edit, begin, next_position(stream, begin), edit->blocks[block].bytes,
                                          edit->blocks[block].device, stream->blocks[block].stream);
    }
    return error;
}

/* Free the block in forward, and allocate it again before event `back`. */
static int save_block(ms_replay_edit *edit, uint32_t index, const ms__replay_edited_call *root, uint32_t back)
{
    const ms_replay_block *block = &edit->stream->blocks[index];
    uint32_t end = ms__replay_unsaved_end(edit->stream, root, index);
    if (end == MS_REPLAY_NONE || end >= back || (block->add != MS_REPLAY_NONE && end <= block->add))
        return MS_OK;
    uint64_t bytes = edit->blocks[index].bytes;
    edit->blocks[index].end = end;
    int error = ms_replay_edit_insert(edit, back, ms__replay_recomputed_end(edit->stream, index), bytes,
                                      edit->blocks[index].device, block->stream);
    if (!error && edit->stream->has_inputs)
        error = copy_for_saves(edit, index, root->call, back);
    return error ? error : ms_replay_edit_insert(edit, end, back, bytes, root->to, 0);
}

/* The result of an outermost call stays on its device, because the program uses it outside of the call. */
int ms_replay_edit_save_on_cpu(ms_replay_edit *edit, uint32_t from, uint32_t to, uint64_t *bytes)
{
    const ms_replay_stream *stream = edit->stream;
    uint64_t copied = 0;
    if (to >= MS_MAX_DEVICES)
        return MS_EINVAL;
    uint32_t *nodes = calloc((size_t)stream->thread_count + 1, sizeof *nodes); /* where each thread's position began */
    if (!nodes)
        return MS_ENOMEM;
    int error = MS_OK;
    ms__replay_edited_call latest = {
        .call = MS_REPLAY_NONE, .to = to, .output = MS_REPLAY_NONE}; /* the latest outermost call */
    for (uint32_t i = 0; !error && i < stream->event_count; i++) {
        const ms_replay_event *event = &stream->events[i];
        if (event->kind == MS_REPLAY_POSITION)
            nodes[event->thread] = i;
        if (event->kind != MS_REPLAY_DROP || edit->blocks[event->value].device != from ||
            !edit->blocks[event->value].bytes)
            continue;
        uint32_t block = (uint32_t)event->value, root = outermost_call(stream, stream->blocks[block].call);
        if (root == MS_REPLAY_NONE || !ms_replay_call_keeps(stream, &stream->calls[root], &stream->blocks[block]))
            continue;
        if (root != latest.call) {
            latest.call = root;
            latest.output = stream->has_inputs ? MS_REPLAY_NONE : ms__replay_guess_result(stream, root);
        }
        if (ms__replay_call_returns(stream, &latest, block))
            continue;
        copied += edit->blocks[block].bytes;
        error = save_block(edit, block, &latest, nodes[event->thread]);
    }
    free(nodes);
    if (bytes)
        *bytes = copied;
    return error;
}
