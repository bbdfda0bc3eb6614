/* resharding.c - other arguments of fully_shard as edits of a rank of FSDP2, whose blocks have kinds: whether modules
 * are resharded after their forward, and how many ranks hold one copy of the model. */
#include "replay/edit.h"

#include <stdlib.h>

static bool is_of_kind(const ms_replay_stream *stream, uint32_t block, uint32_t device, ms_kind kind)
{
    return stream->blocks[block].device == device && stream->blocks[block].kind == kind;
}

static bool is_added_in_backward(const ms_replay_stream *stream, uint32_t block)
{
    return stream->blocks[block].phase == MS_BACKWARD || stream->blocks[block].phase == MS_RECOMPUTE;
}

/* ---- parameters that are kept after forward ---- */

/* Among equally large parameters of a module the first that forward gathered is the first that is gathered again.
 * `forward`: the number of an entry up to which they are paired already. */
static int keep_parameter(ms_replay_edit *edit, const ms__replay_ordered *gathered, uint32_t again, uint32_t *forward,
                          uint64_t *kept)
{
    const ms__replay_entry *at = gathered->at;
    while (*forward < gathered->count && is_added_in_backward(edit->stream, at[*forward].index))
        ++*forward;
    if (*forward >= again || at[*forward].key != at[again].key || at[*forward].value != at[again].value)
        return MS_OK;
    ++*kept;
    int error = ms_replay_edit_end(edit, at[(*forward)++].index, edit->stream->blocks[at[again].index].drop);
    return error ? error : ms_replay_edit_resize(edit, at[again].index, 0);
}

static int keep_parameters(ms_replay_edit *edit, const ms__replay_ordered *gathered, uint64_t *kept)
{
    int error = MS_OK;
    for (uint32_t i = 0, forward = 0; !error && i < gathered->count; i++) {
        const ms__replay_entry *at = &gathered->at[i];
        if (i == 0 || at[-1].key != at->key || at[-1].value != at->value)
            forward = i;
        if (is_added_in_backward(edit->stream, at->index))
            error = keep_parameter(edit, gathered, i, &forward, kept);
    }
    return error;
}

int ms_replay_edit_keep_gathered(ms_replay_edit *edit, uint32_t device, uint64_t *count)
{
    const ms_replay_stream *stream = edit->stream;
    ms__replay_ordered gathered = {NULL, 0, 0};
    uint64_t kept = 0;
    bool done = true;
    for (uint32_t i = 0; done && i < stream->block_count; i++)
        if (is_of_kind(stream, i, device, MS_KIND_UNSHARDED_PARAM))
            done = ms__replay_ordered_add(&gathered, stream->blocks[i].path, stream->blocks[i].requested, i);
    ms__replay_ordered_sort(&gathered);
    int error = done ? keep_parameters(edit, &gathered, &kept) : MS_ENOMEM;
    for (uint32_t i = 0; !error && kept && i < stream->block_count; i++)
        if (is_of_kind(stream, i, device, MS_KIND_ALL_GATHER) && is_added_in_backward(stream, i))
            error = ms_replay_edit_resize(edit, i, 0);
    free(gathered.at);
    if (count)
        *count = kept;
    return error;
}

/* ---- other numbers of ranks ---- */
/* The block of about so many bytes that was added right before another one; in between the allocator may reserve
 * memory, which is an event too. MS_REPLAY_NONE: there is none. */
static uint32_t made_before(const ms_replay_stream *stream, uint32_t index, uint32_t device, uint64_t bytes)
{
    enum { LOOKED_AT = 3, COPIES = 1u << MS_ACTIVATION | 1u << MS_TEMP | 1u << MS_OTHER };
    uint32_t add = ms__replay_add_of(stream, index);
    for (uint32_t i = 1; i <= LOOKED_AT && i <= add; i++) {
        const ms_replay_event *event = &stream->events[add - i];
        if (event->kind != MS_REPLAY_ADD)
            continue;
        const ms_replay_block *block = &stream->blocks[event->value];
        uint64_t difference = block->requested > bytes ? block->requested - bytes : bytes - block->requested;
        if (block->device == device && COPIES >> block->category & 1 && difference <= MS_REPLAY_ROUNDED)
            return (uint32_t)event->value;
    }
    return MS_REPLAY_NONE;
}

struct copies {
    ms_replay_edit *edit;
    uint32_t device, before, after;
    ms__replay_ordered ends; /* the events that drop the inputs of reductions; the key is 0 */
    uint32_t step_end;       /* of the step of the latest gradient */
};

/* The last input of a reduction in the step that is freed after the gradient is made. */
static uint32_t end_of_reductions(struct copies *of, uint32_t made)
{
    const ms_replay_stream *stream = of->edit->stream;
    for (; of->step_end < stream->event_count; of->step_end++)
        if (of->step_end > made && stream->events[of->step_end].kind == MS_REPLAY_STEP)
            break;
    uint32_t after = ms__replay_ordered_find(&of->ends, 0, of->step_end);
    return after && of->ends.at[after - 1].value > made ? (uint32_t)of->ends.at[after - 1].value : made + 1;
}

/* The output of a reduction is copied in the gradient's own precision. It is freed at once, but where copies of the
 * model reduce it among them it stays until the end of backward, when the inputs of reductions are freed. */
static int edit_output(struct copies *of, uint32_t gradient, bool in_copies)
{
    const ms_replay_stream *stream = of->edit->stream;
    uint64_t bytes = stream->blocks[gradient].requested;
    uint32_t made = ms__replay_add_of(stream, gradient);
    uint32_t output = made_before(stream, gradient, of->device, ms__replay_scaled(bytes, 1, 2));
    if (output == MS_REPLAY_NONE)
        return MS_OK;
    int error = ms_replay_edit_resize(of->edit, output, ms__replay_scaled(bytes, of->before, 2 * (uint64_t)of->after));
    return error ? error : ms_replay_edit_end(of->edit, output, in_copies ? end_of_reductions(of, made) : made + 1);
}

/* With a MixedPrecisionPolicy a rank's own part is copied in half precision before it is gathered. */
static int edit_copies(struct copies *of, bool in_copies)
{
    const ms_replay_stream *stream = of->edit->stream;
    int error = MS_OK;
    for (uint32_t i = 0; i < stream->block_count; i++)
        if (is_of_kind(stream, i, of->device, MS_KIND_REDUCE_SCATTER) && stream->blocks[i].drop != MS_REPLAY_NONE &&
            !ms__replay_ordered_add(&of->ends, 0, stream->blocks[i].drop, i))
            return MS_ENOMEM;
    ms__replay_ordered_sort(&of->ends);
    for (uint32_t i = 0; !error && i < stream->block_count; i++) {
        uint64_t bytes = stream->blocks[i].requested;
        if (is_of_kind(stream, i, of->device, MS_KIND_SHARDED_GRAD))
            error = edit_output(of, i, in_copies);
        if (!is_of_kind(stream, i, of->device, MS_KIND_ALL_GATHER))
            continue;
        uint32_t part = made_before(stream, i, of->device, ms__replay_scaled(bytes, 1, of->before));
        if (part != MS_REPLAY_NONE)
            error = ms_replay_edit_resize(of->edit, part, ms__replay_scaled(bytes, 1, of->after));
    }
    return error;
}

int ms_replay_edit_shard_over(ms_replay_edit *edit, uint32_t device, uint32_t before, uint32_t after, bool in_copies,
                              uint64_t *count)
{
    struct copies of = {.edit = edit, .device = device, .before = before, .after = after};
    const ms_replay_selection selections[] = {
        {.device = device, .kinds = 1u << MS_KIND_SHARDED_PARAM},
        {.device = device, .kinds = 1u << MS_KIND_SHARDED_GRAD},
        {.device = device, .categories = 1u << MS_OPTSTATE},
        {.device = device, .categories = 1u << MS_TEMP, .phases = 1u << MS_OPTIMIZER},
    };
    uint64_t shards = 0, all = 0;
    int error = before && after ? MS_OK : MS_EINVAL;
    for (size_t i = 0; !error && i < sizeof selections / sizeof *selections; i++, all += shards)
        error = ms_replay_edit_scale(edit, &selections[i], before, after, &shards);
    if (!error)
        error = edit_copies(&of, in_copies);
    free(of.ends.at);
    if (count)
        *count = all;
    return error;
}

/* ---- resharding ---- */

/* A forward of a unit that keeps its parameters until its backward. */
struct kept_forward {
    uint32_t end, backward;
    uint32_t first, count; /* of its parameters */
    uint64_t bytes;
};

struct resharding {
    ms_replay_edit *edit;
    const ms_replay_units *units;
    uint32_t device;
    ms__replay_ordered calls;      /* by unit */
    ms__replay_ordered parameters; /* by call */
    struct kept_forward *forwards;
    uint32_t forward_count;
};

static bool list_unit_calls(struct resharding *of)
{
    const ms_replay_stream *stream = of->edit->stream;
    bool done = true;
    for (uint32_t i = 0; done && i < stream->call_count; i++) {
        const ms_replay_call *call = &stream->calls[i];
        uint32_t unit = of->units->called[call->path];
        if (unit != MS_REPLAY_NONE && call->end != MS_REPLAY_NONE && call->backward != MS_REPLAY_NONE)
            done = ms__replay_ordered_add(&of->calls, unit, call->begin, i);
    }
    ms__replay_ordered_sort(&of->calls);
    return done;
}

/* The call whose forward gathered the block and keeps it until its backward, or MS_REPLAY_NONE. */
static uint32_t keeping_call(const struct resharding *of, uint32_t index)
{
    const ms_replay_stream *stream = of->edit->stream;
    const ms_replay_block *block = &stream->blocks[index];
    uint32_t unit = of->units->around[block->path], add = ms__replay_add_of(stream, index);
    uint32_t at = unit == MS_REPLAY_NONE ? 0 : ms__replay_ordered_find(&of->calls, unit, (uint64_t)add + 1);
    if (!at || !ms__replay_ordered_has(&of->calls, at - 1, unit))
        return MS_REPLAY_NONE;
    const ms_replay_call *call = &stream->calls[of->calls.at[at - 1].index];
    bool is_kept = add <= call->end && call->end < call->backward && block->drop > call->backward;
    return is_kept ? of->calls.at[at - 1].index : MS_REPLAY_NONE;
}

static bool list_kept_parameters(struct resharding *of)
{
    const ms_replay_stream *stream = of->edit->stream;
    bool done = true;
    for (uint32_t i = 0; done && i < stream->block_count; i++) {
        if (!is_of_kind(stream, i, of->device, MS_KIND_UNSHARDED_PARAM) || stream->blocks[i].phase != MS_FORWARD)
            continue;
        uint32_t call = keeping_call(of, i);
        if (call != MS_REPLAY_NONE)
            done = ms__replay_ordered_add(&of->parameters, call, i, i);
    }
    ms__replay_ordered_sort(&of->parameters);
    return done;
}

static int by_backwards(const void *a, const void *b)
{
    const struct kept_forward *first = a, *second = b;
    if (first->backward != second->backward)
        return first->backward < second->backward ? -1 : 1;
    return first->first < second->first ? -1 : first->first > second->first;
}

static bool list_forwards(struct resharding *of)
{
    const ms__replay_ordered *list = &of->parameters;
    const ms_replay_stream *stream = of->edit->stream;
    of->forwards = malloc(((size_t)list->count + 1) * sizeof *of->forwards);
    for (uint32_t i = 0; of->forwards && i < list->count; i++) {
        const ms_replay_call *call = &stream->calls[list->at[i].key];
        if (i == 0 || list->at[i].key != list->at[i - 1].key)
            of->forwards[of->forward_count++] = (struct kept_forward){call->end, call->backward, i, 0, 0};
        of->forwards[of->forward_count - 1].count++;
        of->forwards[of->forward_count - 1].bytes += stream->blocks[list->at[i].index].requested;
    }
    if (of->forwards)
        qsort(of->forwards, of->forward_count, sizeof *of->forwards, by_backwards);
    return of->forwards != NULL;
}

/* The first unit of a backward is not gathered in advance. */
static int reshard_forward(struct resharding *of, uint32_t at, uint64_t stream)
{
    const struct kept_forward *forward = &of->forwards[at];
    const ms_replay_block *blocks = of->edit->stream->blocks;
    uint32_t before = at ? forward[-1].backward : 0, since = before > forward->end ? before : forward->backward;
    int error = ms_replay_edit_insert(of->edit, since, forward->backward + 1, forward->bytes, of->device, stream);
    for (uint32_t i = 0; !error && i < forward->count; i++) {
        uint32_t block = of->parameters.at[forward->first + i].index;
        error = ms_replay_edit_end(of->edit, block, forward->end);
        if (!error)
            error = ms_replay_edit_insert(of->edit, forward->backward, blocks[block].drop, blocks[block].requested,
                                          of->device, blocks[block].stream);
    }
    return error;
}

/* The stream on which the first gather was made. */
static uint64_t gather_stream(const ms_replay_stream *stream, uint32_t device)
{
    for (uint32_t i = 0; i < stream->block_count; i++)
        if (is_of_kind(stream, i, device, MS_KIND_ALL_GATHER))
            return stream->blocks[i].stream;
    return 0;
}

int ms_replay_edit_reshard(ms_replay_edit *edit, const ms_replay_units *units, uint32_t device, uint64_t *count)
{
    struct resharding of = {.edit = edit, .units = units, .device = device};
    uint64_t stream = gather_stream(edit->stream, device);
    int error = MS_ENOMEM;
    if (device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    if (list_unit_calls(&of) && list_kept_parameters(&of) && list_forwards(&of))
        error = MS_OK;
    for (uint32_t i = 0; !error && i < of.forward_count; i++)
        error = reshard_forward(&of, i, stream);
    if (count)
        *count = of.parameters.count;
    free(of.calls.at);
    free(of.parameters.at);
    free(of.forwards);
    return error;
}
