/* nodes.c - what a recomputation changes inside of backward nodes: it begins in the first node that needs a saved
 * tensor, and a node frees recomputed tensors earlier than those that autograd saved itself.
 *
 * A node frees what autograd saved after it has reduced its gradients to the shapes of its inputs. What a checkpoint
 * recomputed is freed before that. Of a product with a bias, whose gradient is such a sum, the events are
 *
 *     add gradient of the input, add gradient of the weight      recomputed: freed here
 *     add gradient of the bias, add and drop a workspace
 *     drop gradient of the result                                saved: freed here */
#include "replay/edit.h"

/* ---- the first node that needs a saved tensor ---- */

/* Whether the code of a forward of this module inside of the call let autograd save something. Captures do not note
 * that parameters are saved, as the nodes of a frozen layer save nothing else. */
static bool saves_in(const ms_replay_stream *stream, uint32_t index, ms_path path)
{
    const ms_replay_call *call = &stream->calls[index];
    bool owns = ms__replay_owns_parameter(stream, path);
    for (uint32_t i = index; i < stream->call_count && stream->calls[i].begin < call->end; i++)
        if (stream->calls[i].path == path && (owns || stream->calls[i].saves) &&
            ms__replay_call_is_in(stream, i, index))
            return true;
    return false;
}

uint32_t ms__replay_first_unpack(const ms_replay_stream *stream, uint32_t index, uint32_t end)
{
    const ms_replay_call *call = &stream->calls[index];
    for (uint32_t i = call->backward; stream->has_inputs && end != MS_REPLAY_NONE && i < end; i++) {
        const ms_replay_event *event = &stream->events[i];
        if (event->kind == MS_REPLAY_POSITION && event->phase == MS_BACKWARD &&
            saves_in(stream, index, (ms_path)event->value))
            return i;
    }
    return call->backward;
}

/* ---- the sum for the gradient of a bias ---- */
enum { MOST_EVENTS = 64 }; /* of a node */

/* The events of the thread before event `drop` at the same position: [*from, drop) */
static uint32_t node_begin(const ms_replay_stream *stream, uint32_t drop)
{
    uint32_t from = drop;
    while (from && drop - from < MOST_EVENTS && stream->events[from - 1].thread == stream->events[drop].thread &&
           (stream->events[from - 1].kind == MS_REPLAY_ADD || stream->events[from - 1].kind == MS_REPLAY_DROP ||
            stream->events[from - 1].kind == MS_REPLAY_RESERVED))
        from--;
    return from;
}

/* The requested bytes of the block that the event adds or drops; 0: it does not. */
static uint64_t bytes_at(const ms_replay_stream *stream, uint32_t event, ms_replay_kind kind)
{
    const ms_replay_event *at = &stream->events[event];
    return at->kind == (uint8_t)kind ? stream->blocks[at->value].requested : 0;
}

/* Whether the block can be the gradient of a parameter of its module: of its type, or of half its size. */
static bool is_gradient_size(const ms_replay_stream *stream, const ms_replay_block *block)
{
    return ms__replay_has_parameter(stream, block->path, block->requested, block->device) ||
           ms__replay_has_parameter(stream, block->path, 2 * block->requested, block->device);
}

/* Whether the events add or drop a tensor of so many elements. */
static bool has_tensor(const ms_replay_stream *stream, uint32_t from, uint32_t to, uint64_t elements)
{
    for (uint32_t i = from; i <= to; i++) {
        uint64_t added = bytes_at(stream, i, MS_REPLAY_ADD), dropped = bytes_at(stream, i, MS_REPLAY_DROP);
        for (uint64_t size = 2; size <= 8; size *= 2)
            if (added == elements * size || dropped == elements * size)
                return true;
    }
    return false;
}

/* Whether the call computed a product with as many columns as the bias has bytes, and the events [from, to] have its
 * other operand: of as many rows as the result, and `inner` columns. A convolution has no such operand. */
static bool has_product(const ms_replay_stream *stream, uint32_t call, uint64_t width, uint64_t inner, uint32_t from,
                        uint32_t to)
{
    const ms_replay_call *of = &stream->calls[call];
    for (uint32_t i = of->first_block; i < of->last_block; i++) {
        uint64_t result = stream->blocks[i].requested;
        if (result && result % width == 0 && ms__replay_call_is_in(stream, stream->blocks[i].call, call) &&
            has_tensor(stream, from, to, result / width * inner))
            return true;
    }
    return false;
}

/* Whether event `bias` adds the gradient of a bias, and an event in [from, bias) that of its product's weight. */
static bool is_product(const ms_replay_stream *stream, uint32_t call, uint32_t from, uint32_t bias, uint32_t drop)
{
    uint64_t width = bytes_at(stream, bias, MS_REPLAY_ADD);
    for (uint32_t i = from; i < bias; i++) {
        uint64_t weight = bytes_at(stream, i, MS_REPLAY_ADD);
        if (weight > width && weight % width == 0 &&
            is_gradient_size(stream, &stream->blocks[stream->events[i].value]) &&
            has_product(stream, call, width, weight / width, from, drop))
            return true;
    }
    return false;
}

static uint32_t last_saver(const ms_replay_stream *stream, uint32_t block)
{
    uint32_t use = stream->blocks[block].last_use;
    while (use != MS_REPLAY_NONE && stream->uses[use].kind != MS_REPLAY_SAVE)
        use = stream->uses[use].earlier;
    return use == MS_REPLAY_NONE ? MS_REPLAY_NONE : stream->uses[use].call;
}

uint32_t ms__replay_recomputed_end(const ms_replay_stream *stream, uint32_t block)
{
    uint32_t call = last_saver(stream, block), drop = stream->blocks[block].drop, from = node_begin(stream, drop);
    if (call == MS_REPLAY_NONE || stream->calls[call].last_block == MS_REPLAY_NONE)
        return drop;
    for (uint32_t i = drop; i-- > from;) {
        const ms_replay_event *event = &stream->events[i];
        if (event->kind != MS_REPLAY_ADD)
            continue;
        const ms_replay_block *bias = &stream->blocks[event->value];
        if (bias->drop > drop && is_gradient_size(stream, bias) && is_product(stream, call, from, i, drop))
            return i;
    }
    return drop;
}
