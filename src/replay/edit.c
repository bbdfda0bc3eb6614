/* edit.c - edits of a stream: sizes and devices of blocks, blocks that are inserted, calls that are checkpointed. */
#include "replay/edit.h"

#include <stdlib.h>

#define MOST_BYTES (UINT64_C(1) << 62)

msp_edit *msp_edit_open(const msp_stream *stream)
{
    msp_edit *edit = calloc(1, sizeof *edit);
    msp_changed_block *blocks = malloc(((size_t)stream->block_count + 1) * sizeof *blocks);
    uint8_t *marks = calloc((size_t)stream->call_count + 1, 1);
    if (!edit || !blocks || !marks) {
        free(edit);
        free(blocks);
        free(marks);
        return NULL;
    }
    *edit = (msp_edit){.stream = stream, .blocks = blocks, .marks = marks, .last_event = stream->event_count};
    for (uint32_t i = 0; i < stream->block_count; i++)
        blocks[i] = (msp_changed_block){stream->blocks[i].requested, stream->blocks[i].device, stream->blocks[i].drop};
    return edit;
}

void msp_edit_close(msp_edit *edit)
{
    if (!edit)
        return;
    free(edit->blocks);
    free(edit->inserted);
    free(edit->calls);
    free(edit->marks);
    free(edit);
}

/* ---- blocks ---- */

bool msp_block_is_selected(const msp_stream *stream, uint32_t index, const msp_selection *selection)
{
    const msp_block *block = &stream->blocks[index];
    return (!selection->categories || selection->categories >> block->category & 1) &&
           (!selection->phases || selection->phases >> block->phase & 1) &&
           (selection->device == MSP_NONE || selection->device == block->device) &&
           block->bytes >= selection->min_bytes && msp_path_is_below(stream, block->path, selection->root);
}

/* The device is the one that earlier edits gave the block. */
static bool is_selected(const msp_edit *edit, uint32_t index, const msp_selection *selection)
{
    const msp_block *block = &edit->stream->blocks[index];
    return (!selection->categories || selection->categories >> block->category & 1) &&
           (!selection->phases || selection->phases >> block->phase & 1) &&
           (selection->device == MSP_NONE || selection->device == edit->blocks[index].device) &&
           block->bytes >= selection->min_bytes && edit->blocks[index].bytes &&
           msp_path_is_below(edit->stream, block->path, selection->root);
}

static uint64_t scaled(uint64_t bytes, uint64_t numerator, uint64_t denominator)
{
    long double exact = (long double)bytes * (long double)numerator / (long double)denominator;
    if (exact >= (long double)MOST_BYTES)
        return MOST_BYTES;
    uint64_t whole = (uint64_t)exact;
    return whole + ((long double)whole < exact);
}

int msp_edit_scale(msp_edit *edit, const msp_selection *selection, uint64_t numerator, uint64_t denominator,
                   uint64_t *count)
{
    uint64_t selected = 0;
    if (!denominator)
        return MS_EINVAL;
    for (uint32_t i = 0; i < edit->stream->block_count; i++)
        if (is_selected(edit, i, selection)) {
            edit->blocks[i].bytes = scaled(edit->blocks[i].bytes, numerator, denominator);
            selected++;
        }
    if (count)
        *count = selected;
    return MS_OK;
}

int msp_edit_move(msp_edit *edit, const msp_selection *selection, uint32_t device, uint64_t *count)
{
    uint64_t selected = 0;
    if (device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    for (uint32_t i = 0; i < edit->stream->block_count; i++)
        if (is_selected(edit, i, selection)) {
            edit->blocks[i].device = device;
            selected++;
        }
    if (count)
        *count = selected;
    return MS_OK;
}

int msp_edit_remove(msp_edit *edit, const msp_selection *selection, uint64_t *count)
{
    return msp_edit_scale(edit, selection, 0, 1, count);
}

int msp_edit_resize(msp_edit *edit, uint32_t block, uint64_t bytes)
{
    if (block >= edit->stream->block_count || bytes > MOST_BYTES)
        return MS_EINVAL;
    edit->blocks[block].bytes = bytes;
    return MS_OK;
}

int msp_edit_insert(msp_edit *edit, uint32_t begin, uint32_t end, uint64_t bytes, uint32_t device, uint64_t stream)
{
    if (begin > edit->stream->event_count || end < begin || device >= MS_MAX_DEVICES || bytes > MOST_BYTES)
        return MS_EINVAL;
    if (edit->inserted_count == MSP_NONE - 1 ||
        !msp_grow((void **)&edit->inserted, &edit->inserted_room, edit->inserted_count + 1, sizeof *edit->inserted))
        return MS_ENOMEM;
    edit->inserted[edit->inserted_count++] = (msp_inserted_block){begin, end, bytes, stream, device};
    return MS_OK;
}

/* ---- calls ---- */
bool msp_call_is_in(const msp_stream *stream, uint32_t call, uint32_t around)
{
    while (call != MSP_NONE && call > around)
        call = stream->calls[call].parent; /* a call begins after the one around it */
    return call == around;
}

static bool is_held_by_object(uint8_t category)
{
    return category == MS_PARAMETER || category == MS_BUFFER || category == MS_GRADIENT || category == MS_OPTSTATE;
}

bool msp_call_keeps(const msp_stream *stream, const msp_call *call, const msp_block *block)
{
    return call->backward != MSP_NONE && call->end != MSP_NONE && block->drop != MSP_NONE &&
           block->drop >= call->backward && block->drop_phase == MS_BACKWARD && !is_held_by_object(block->category) &&
           msp_call_is_in(stream, block->call, (uint32_t)(call - stream->calls));
}

/* The block is one of the call. */
static bool outlives(const msp_block *block, const msp_call *call)
{
    return block->drop == MSP_NONE || block->drop >= call->end;
}

/* Whether the block was added in the call and exists when the call has ended. */
static bool is_outliving(const msp_stream *stream, uint32_t call, uint32_t block)
{
    return outlives(&stream->blocks[block], &stream->calls[call]) &&
           msp_call_is_in(stream, stream->blocks[block].call, call);
}

msp_call_bytes msp_call_measure(const msp_stream *stream, uint32_t index, uint32_t device)
{
    const msp_call *call = &stream->calls[index];
    msp_call_bytes bytes = {0, 0};
    uint32_t last = call->last_block == MSP_NONE ? stream->block_count : call->last_block;
    for (uint32_t i = call->first_block; i < last; i++) {
        const msp_block *block = &stream->blocks[i];
        if (block->device != device || !is_outliving(stream, index, i))
            continue;
        if (msp_call_keeps(stream, call, block))
            bytes.kept += block->bytes;
        else
            bytes.output += block->bytes;
    }
    return bytes;
}

enum { SMALL_PART = 4 }; /* a block below this part of the largest one is no result */

/* The block that the call returns, as far as is known: of those that outlive it, the one that was added last, without
 * those that are much smaller than the largest one (statistics of a normalization, which follow its result). */
static uint32_t result_of_call(const msp_stream *stream, uint32_t index)
{
    const msp_call *call = &stream->calls[index];
    uint64_t largest = 0;
    for (uint32_t i = call->first_block; i < call->last_block; i++)
        if (stream->blocks[i].bytes > largest && is_outliving(stream, index, i))
            largest = stream->blocks[i].bytes;
    for (uint32_t i = call->last_block; i-- > call->first_block;)
        if (stream->blocks[i].bytes >= largest / SMALL_PART && is_outliving(stream, index, i))
            return i;
    return MSP_NONE;
}

uint32_t msp_kept_result(const msp_stream *stream, uint32_t index)
{
    uint32_t result = result_of_call(stream, index);
    bool kept = result != MSP_NONE && msp_call_keeps(stream, &stream->calls[index], &stream->blocks[result]);
    return kept ? result : MSP_NONE;
}

/* Whether the block can be an input of the call: it exists when the call begins, and no object holds it. */
static bool can_be_input(const msp_block *block, const msp_call *call)
{
    return (block->drop == MSP_NONE || block->drop > call->begin) && !is_held_by_object(block->category);
}

/* Whether no other call lies in the call. Calls are in the order of their begins. */
static bool is_innermost(const msp_stream *stream, uint32_t call)
{
    return call + 1 >= stream->call_count || stream->calls[call + 1].parent != call;
}

/* The input of a call, as far as is known: of the blocks that exist when it begins and were added in the same outermost
 * call, the one that was added last. If that was added in an innermost call, it is the result of that call: a
 * normalization adds its statistics after its result. */
static uint32_t input_of_call(const msp_stream *stream, uint32_t index)
{
    const msp_call *call = &stream->calls[index];
    uint32_t root = index;
    while (stream->calls[root].parent != MSP_NONE)
        root = stream->calls[root].parent;
    for (uint32_t i = call->first_block; i-- > stream->calls[root].first_block;) {
        if (!can_be_input(&stream->blocks[i], call) || !msp_call_is_in(stream, stream->blocks[i].call, root))
            continue;
        uint32_t from = stream->blocks[i].call;
        uint32_t result = from != index && is_innermost(stream, from) ? result_of_call(stream, from) : MSP_NONE;
        return result != MSP_NONE && can_be_input(&stream->blocks[result], call) ? result : i;
    }
    return MSP_NONE;
}

/* A checkpoint holds its input until its backward has ended. */
static void hold_input(const msp_stream *stream, msp_edited_call *edited, uint32_t last_drop)
{
    uint32_t input = input_of_call(stream, edited->call);
    if (input == MSP_NONE || last_drop == MSP_NONE || stream->blocks[input].drop >= last_drop)
        return;
    edited->input = input;
    edited->input_end = last_drop;
}

/* A call's output is what outlives it beside what it keeps. If there is no such block, the output is among those that
 * the call keeps. */
static msp_edited_call describe_call(const msp_stream *stream, uint32_t index)
{
    const msp_call *call = &stream->calls[index];
    msp_edited_call edited = {.call = index, .to = MSP_NONE, .output = MSP_NONE, .last = MSP_NONE, .input = MSP_NONE};
    bool has_output = false;
    uint32_t last_drop = MSP_NONE;
    for (uint32_t i = call->first_block; i < call->last_block; i++) {
        const msp_block *block = &stream->blocks[i];
        if (!is_outliving(stream, index, i))
            continue;
        if (msp_call_keeps(stream, call, block)) {
            edited.last = block->add;
            last_drop = last_drop == MSP_NONE || block->drop > last_drop ? block->drop : last_drop;
        } else if (block->drop != MSP_NONE) {
            has_output = true;
        }
    }
    if (!has_output)
        edited.output = msp_kept_result(stream, index);
    if (call->last_save != MSP_NONE && edited.last != MSP_NONE && call->last_save > edited.last)
        edited.last = call->last_save - 1;
    hold_input(stream, &edited, last_drop);
    return edited;
}

uint32_t msp_call_recomputed_to(const msp_stream *stream, uint32_t index)
{
    const msp_call *call = &stream->calls[index];
    if (call->backward == MSP_NONE || call->end == MSP_NONE)
        return MSP_NONE;
    uint32_t last = describe_call(stream, index).last;
    if (last == MSP_NONE)
        return MSP_NONE;
    return last + 1 < call->end ? last + 1 : call->end;
}

/* The next call of the same thread in the same call, or MSP_NONE. */
static uint32_t next_sibling(const msp_stream *stream, uint32_t index)
{
    const msp_call *call = &stream->calls[index];
    for (uint32_t i = index + 1; i < stream->call_count; i++) {
        const msp_call *other = &stream->calls[i];
        if (other->thread == call->thread && other->begin >= call->end)
            return other->parent == call->parent ? i : MSP_NONE;
    }
    return MSP_NONE;
}

/* A block that is no result of its call is freed when the call ends. A result is freed when the next call, which takes
 * it, has ended. */
static uint32_t end_by_calls(const msp_stream *stream, const msp_edited_call *edited, uint32_t block)
{
    uint32_t call = stream->blocks[block].call;
    for (; call != edited->call && result_of_call(stream, call) == block; call = stream->calls[call].parent) {
        uint32_t next = next_sibling(stream, call);
        if (next != MSP_NONE && stream->calls[next].end != MSP_NONE)
            return stream->calls[next].end;
    }
    return stream->calls[call].end;
}

/* Whether the block has half the size of a parameter of its module: then it is a cast of it, as autocast makes it. */
static bool is_cast(const msp_stream *stream, const msp_block *block)
{
    uint32_t from = 0, to = stream->parameter_count;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        const msp_block *parameter = &stream->blocks[stream->parameters[middle]];
        if (parameter->path == block->path && parameter->requested == 2 * block->requested)
            return parameter->device == block->device;
        bool lower = parameter->path < block->path ||
                     (parameter->path == block->path && parameter->requested < 2 * block->requested);
        *(lower ? &from : &to) = lower ? middle + 1 : middle;
    }
    return false;
}

/* autocast keeps its casts until the program leaves it: about when the outermost call has ended. */
static uint32_t cast_end(const msp_stream *stream, const msp_edited_call *edited)
{
    const msp_call *call = &stream->calls[edited->call], *root = call;
    while (root->parent != MSP_NONE)
        root = &stream->calls[root->parent];
    return root->end < call->backward ? root->end : call->backward;
}

/* A call that ends later may have used the block: autograd saved it there. It is freed when that call has ended. */
uint32_t msp_unsaved_end(const msp_stream *stream, const msp_edited_call *edited, uint32_t block)
{
    if (is_cast(stream, &stream->blocks[block]))
        return cast_end(stream, edited);
    uint32_t end = end_by_calls(stream, edited, block), used = stream->blocks[block].saved_in;
    if (used == MSP_NONE || !msp_call_is_in(stream, used, edited->call) || stream->calls[used].end == MSP_NONE)
        return end;
    return stream->calls[used].end > end ? stream->calls[used].end : end;
}

/* Whether the call, a call around it or a call in it is edited. */
static bool overlaps_edited(const msp_edit *edit, uint32_t call)
{
    uint8_t marks = edit->marks[call];
    for (; call != MSP_NONE; call = edit->stream->calls[call].parent)
        marks |= edit->marks[call] & MSP_IS_EDITED;
    return marks;
}

static int add_edited_call(msp_edit *edit, uint32_t call, uint32_t to)
{
    const msp_stream *stream = edit->stream;
    if (call >= stream->call_count || overlaps_edited(edit, call))
        return MS_EINVAL;
    if (stream->calls[call].backward == MSP_NONE || stream->calls[call].end == MSP_NONE)
        return MS_OK;
    if (!msp_grow((void **)&edit->calls, &edit->call_room, edit->call_count + 1, sizeof *edit->calls))
        return MS_ENOMEM;
    edit->calls[edit->call_count] = describe_call(stream, call);
    edit->calls[edit->call_count++].to = to;
    edit->marks[call] |= MSP_IS_EDITED;
    for (call = stream->calls[call].parent; call != MSP_NONE; call = stream->calls[call].parent)
        edit->marks[call] |= MSP_HAS_EDITED;
    return MS_OK;
}

int msp_edit_checkpoint(msp_edit *edit, uint32_t call)
{
    return add_edited_call(edit, call, MSP_NONE);
}

int msp_edit_offload(msp_edit *edit, uint32_t call, uint32_t to)
{
    return to < MS_MAX_DEVICES ? add_edited_call(edit, call, to) : MS_EINVAL;
}
