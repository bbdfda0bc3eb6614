/* casts.c - what autocast copies in half precision, found by sizes, owners and order.
 *
 *     forward     the first copy of a weight in its module's forward is kept for backward
 *     backward    add cast, add gradient, drop cast: the gradient in half precision is copied and freed at once */
#include "replay/edit.h"

#include <stdlib.h>

enum { LEAST_BYTES = 4096 }; /* of a gradient: smaller ones have the size of too many other blocks */

struct casts {
    const ms_replay_stream *stream;
    uint32_t device;
    bool *is_cast;
    uint32_t count;
    ms__replay_ordered kept, calls; /* by path: what forward keeps, and the forwards */
};

static bool is_made_in(const struct casts *of, uint32_t block, ms_category category, ms_phase phase)
{
    const ms_replay_block *at = &of->stream->blocks[block];
    return at->category == category && at->phase == phase && at->device == of->device;
}

static bool is_half(uint64_t part, uint64_t whole)
{
    uint64_t rest = whole - part;
    return part <= whole && (part > rest ? part - rest : rest - part) <= MS_REPLAY_ROUNDED;
}

static void mark_cast(struct casts *of, uint32_t block)
{
    of->count += !of->is_cast[block];
    of->is_cast[block] = true;
}

/* The gradient in half precision, which is freed by one of the next two events; MS_REPLAY_NONE: there is none. */
static uint32_t find_gradient_cast(const struct casts *of, uint32_t gradient)
{
    const ms_replay_stream *stream = of->stream;
    const ms_replay_block *block = &stream->blocks[gradient];
    uint32_t found = MS_REPLAY_NONE;
    for (uint32_t i = block->add + 1; block->add != MS_REPLAY_NONE && i <= block->add + 2 && i < stream->event_count;
         i++) {
        uint32_t cast = (uint32_t)stream->events[i].value;
        if (stream->events[i].kind != MS_REPLAY_DROP || !is_made_in(of, cast, MS_TEMP, MS_BACKWARD))
            continue;
        const ms_replay_block *at = &stream->blocks[cast];
        bool is_before = at->add == MS_REPLAY_NONE || at->add < block->add;
        if (is_before && at->path == block->path && is_half(at->requested, block->requested) && cast < found)
            found = cast;
    }
    return found;
}

/* Mark the first copy of the gradient's weight in the last forward before it; if that has none, the latest one. */
static void mark_weight_cast(struct casts *of, const ms_replay_block *gradient)
{
    const ms__replay_ordered *kept = &of->kept;
    uint32_t call = ms__replay_ordered_find(&of->calls, gradient->path, gradient->add);
    bool has_call = call && ms__replay_ordered_has(&of->calls, call - 1, gradient->path);
    uint32_t first = ms__replay_ordered_find(kept, gradient->path, has_call ? of->calls.at[call - 1].value : 0);
    for (uint32_t i = first; ms__replay_ordered_has(kept, i, gradient->path); i++) {
        if (kept->at[i].value >= gradient->add)
            break;
        if (is_half(of->stream->blocks[kept->at[i].index].requested, gradient->requested)) {
            mark_cast(of, kept->at[i].index);
            return;
        }
    }
    for (uint32_t i = first; i-- > 0 && ms__replay_ordered_has(kept, i, gradient->path);)
        if (is_half(of->stream->blocks[kept->at[i].index].requested, gradient->requested)) {
            mark_cast(of, kept->at[i].index);
            return;
        }
}

static bool list_kept_and_calls(struct casts *of)
{
    bool done = true;
    for (uint32_t i = 0; done && i < of->stream->block_count; i++)
        if (is_made_in(of, i, MS_ACTIVATION, MS_FORWARD))
            done = ms__replay_ordered_add(&of->kept, of->stream->blocks[i].path, ms__replay_add_of(of->stream, i), i);
    for (uint32_t i = 0; done && i < of->stream->call_count; i++)
        done = ms__replay_ordered_add(&of->calls, of->stream->calls[i].path, of->stream->calls[i].begin, i);
    ms__replay_ordered_sort(&of->kept);
    ms__replay_ordered_sort(&of->calls);
    return done;
}

static bool is_gradient(const struct casts *of, uint32_t block)
{
    return is_made_in(of, block, MS_GRADIENT, MS_BACKWARD) && of->stream->blocks[block].requested >= LEAST_BYTES;
}

/* Less than half of the bytes of gradients is taken for chance. */
static bool uses_autocast(const struct casts *of)
{
    uint64_t all = 0, copied = 0;
    for (uint32_t i = 0; i < of->stream->block_count; i++) {
        if (!is_gradient(of, i))
            continue;
        all += of->stream->blocks[i].requested;
        if (find_gradient_cast(of, i) != MS_REPLAY_NONE)
            copied += of->stream->blocks[i].requested;
    }
    return copied && copied >= all - copied;
}

bool ms__replay_find_casts(const ms_replay_stream *stream, uint32_t device, bool *is_cast, uint32_t *count)
{
    struct casts of = {.stream = stream, .device = device, .is_cast = is_cast};
    bool is_used = uses_autocast(&of), done = !is_used || list_kept_and_calls(&of);
    for (uint32_t i = 0; done && is_used && i < stream->block_count; i++) {
        uint32_t cast = is_gradient(&of, i) ? find_gradient_cast(&of, i) : MS_REPLAY_NONE;
        if (cast == MS_REPLAY_NONE)
            continue;
        mark_cast(&of, cast);
        mark_weight_cast(&of, &stream->blocks[i]);
    }
    free(of.kept.at);
    free(of.calls.at);
    *count = of.count;
    return done;
}
