/* guesses.c - what a call takes and returns, and when it frees its blocks, as far as the order of blocks tells.
 * Captures of versions before 1.2 have no notes of it. */
#include "replay/edit.h"

enum { SMALL_PART = 4 }; /* a block below this part of the largest one is no result */

/* Return the last of the blocks that outlive the call, without those that are much smaller than the
 * largest one: statistics of a normalization, which follow its result. */
uint32_t ms__replay_guess_result(const ms_replay_stream *stream, uint32_t index)
{
    const ms_replay_call *call = &stream->calls[index];
    uint64_t largest = 0;
    for (uint32_t i = call->first_block; i < call->last_block; i++)
        if (stream->blocks[i].requested > largest && ms__replay_outlives_call(stream, index, i))
            largest = stream->blocks[i].requested;
    for (uint32_t i = call->last_block; i-- > call->first_block;)
        if (stream->blocks[i].requested >= largest / SMALL_PART && ms__replay_outlives_call(stream, index, i))
            return i;
    return MS_REPLAY_NONE;
}

/* Whether the block can be an input of the call: it exists when the call begins, and no object holds it. */
static bool can_be_input(const ms_replay_block *block, const ms_replay_call *call)
{
    return (block->drop == MS_REPLAY_NONE || block->drop > call->begin) &&
           !ms__replay_is_held_by_object(block->category);
}

/* Whether no other call lies in the call. Calls are in the order of their begins. */
static bool is_innermost(const ms_replay_stream *stream, uint32_t call)
{
    return call + 1 >= stream->call_count || stream->calls[call + 1].parent != call;
}

/* Return the last of the blocks that exist when the call begins and were added in the same outermost call.
 * If that was added in an innermost call, it is the result of that call: a normalization adds its statistics after its
 * result. */
uint32_t ms__replay_guess_input(const ms_replay_stream *stream, uint32_t index)
{
    const ms_replay_call *call = &stream->calls[index];
    uint32_t root = index;
    while (stream->calls[root].parent != MS_REPLAY_NONE)
        root = stream->calls[root].parent;
    for (uint32_t i = call->first_block; i-- > stream->calls[root].first_block;) {
        if (!can_be_input(&stream->blocks[i], call) || !ms__replay_call_is_in(stream, stream->blocks[i].call, root))
            continue;
        uint32_t from = stream->blocks[i].call;
        uint32_t result =
            from != index && is_innermost(stream, from) ? ms__replay_guess_result(stream, from) : MS_REPLAY_NONE;
        return result != MS_REPLAY_NONE && can_be_input(&stream->blocks[result], call) ? result : i;
    }
    return MS_REPLAY_NONE;
}

/* The next call of the same thread in the same call, or MS_REPLAY_NONE. */
static uint32_t next_sibling(const ms_replay_stream *stream, uint32_t index)
{
    const ms_replay_call *call = &stream->calls[index];
    for (uint32_t i = index + 1; i < stream->call_count; i++) {
        const ms_replay_call *other = &stream->calls[i];
        if (other->thread == call->thread && other->begin >= call->end)
            return other->parent == call->parent ? i : MS_REPLAY_NONE;
    }
    return MS_REPLAY_NONE;
}

/* A block that is no result of its call is freed when the call ends. A result is freed when the next call, which takes
 * it, has ended. */
static uint32_t end_by_calls(const ms_replay_stream *stream, uint32_t around, uint32_t block)
{
    uint32_t call = stream->blocks[block].call;
    for (; call != around && ms__replay_guess_result(stream, call) == block; call = stream->calls[call].parent) {
        uint32_t next = next_sibling(stream, call);
        if (next != MS_REPLAY_NONE && stream->calls[next].end != MS_REPLAY_NONE)
            return stream->calls[next].end;
    }
    return stream->calls[call].end;
}

/* A call that ends later may have used the block: autograd saved it there last. */
uint32_t ms__replay_guess_end(const ms_replay_stream *stream, uint32_t around, uint32_t block)
{
    uint32_t end = end_by_calls(stream, around, block), use = stream->blocks[block].last_use;
    uint32_t used = use == MS_REPLAY_NONE ? MS_REPLAY_NONE : stream->uses[use].call;
    if (used == MS_REPLAY_NONE || !ms__replay_call_is_in(stream, used, around) ||
        stream->calls[used].end == MS_REPLAY_NONE)
        return end;
    return stream->calls[used].end > end ? stream->calls[used].end : end;
}
