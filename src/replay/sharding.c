/* sharding.c - FSDP2 as an edit of the events of one process: sharded parameters, gradients and state, and the buffers
 * of its gathers and reductions. Each unit is sharded on its own, and the rest with the outermost module.
 *
 * Of a unit over W ranks, with N bytes of parameters, one block each, before and after the edit:
 *
 *     forward     the gathered bytes, N in one block, until the next unit has gathered; its parameters while it runs
 *     backward    its parameters, the next unit's gathered bytes, its gradients where they were; then, until the next
 *                 unit has ended, the input of its reduction, N in one block, and until gradients were freed the
 * output, N / W
 *
 * Gathered bytes and outputs are on streams of their own, which share no memory with others. In half precision N is
 * half of that, and what autocast copies in half precision is not: the weights in forward, and their gradients in
 * backward. */
#include "replay/edit.h"

#include <stdlib.h>

/* The numbers of streams that no program has. */
#define GATHER_STREAM (UINT64_C(1) << 40)
#define REDUCE_STREAM (UINT64_C(2) << 40)

struct unit_run { /* one forward of a unit */
    uint32_t unit, begin, end, backward;
};

struct sharding {
    ms_replay_edit *edit;
    const ms_replay_stream *stream;
    const ms_replay_sharding *how;
    ms__replay_ordered parameters, gradients; /* by unit; the rest has the number how->units.count */
    ms__replay_ordered added;                 /* by unit: the blocks that are added in backward */
    uint64_t *bytes;                          /* by unit: gathered */
    bool *is_reduced;                         /* by gradient: it was given another end */
    bool *is_cast;                            /* by block */
    struct unit_run *runs;                    /* by their begins */
    uint32_t run_count;
    size_t run_room;
    struct unit_run **nodes; /* of a step: its runs with a backward, in the order of those */
};

static uint64_t gathered_bytes(const struct sharding *of, uint32_t block)
{
    uint64_t bytes = of->stream->blocks[block].requested;
    return of->how->is_mixed ? ms__replay_scaled(bytes, 1, 2) : bytes;
}

/* ---- lists ---- */
static uint32_t unit_of(const struct sharding *of, ms_path path)
{
    uint32_t unit = of->how->units.around[path];
    return unit == MS_REPLAY_NONE ? of->how->units.count : unit;
}

static bool list_blocks_of_units(struct sharding *of)
{
    bool done = true;
    for (uint32_t i = 0; done && i < of->stream->block_count; i++) {
        const ms_replay_block *block = &of->stream->blocks[i];
        uint32_t unit = unit_of(of, block->path);
        if (block->device != of->how->device)
            continue;
        if (block->category == MS_PARAMETER) {
            done = ms__replay_ordered_add(&of->parameters, unit, i, i);
            of->bytes[unit] += gathered_bytes(of, i);
        }
        if (block->category == MS_GRADIENT)
            done = done && ms__replay_ordered_add(&of->gradients, unit, ms__replay_add_of(of->stream, i), i);
        if (block->phase == MS_BACKWARD && block->add != MS_REPLAY_NONE && unit < of->how->units.count)
            done = done && ms__replay_ordered_add(&of->added, unit, block->add, i);
    }
    ms__replay_ordered_sort(&of->parameters);
    ms__replay_ordered_sort(&of->gradients);
    ms__replay_ordered_sort(&of->added);
    return done;
}

/* Nothing that a call frees tells when its backward begins if it keeps nothing itself, as that of nn.Linear, whose
 * input is another call's: then it begins with the first block that the unit adds in backward, in the same step. */
static uint32_t find_backward(const struct sharding *of, uint32_t unit, const ms_replay_call *call, uint32_t step_end)
{
    if (call->backward != MS_REPLAY_NONE || call->end == MS_REPLAY_NONE)
        return call->backward;
    uint32_t at = ms__replay_ordered_find(&of->added, unit, (uint64_t)call->end + 1);
    bool is_found = ms__replay_ordered_has(&of->added, at, unit) && of->added.at[at].value < step_end;
    return is_found ? (uint32_t)of->added.at[at].value : MS_REPLAY_NONE;
}

static uint32_t next_step(const ms_replay_stream *stream, uint32_t event)
{
    do
        event++;
    while (event < stream->event_count && stream->events[event].kind != MS_REPLAY_STEP);
    return event;
}

static bool list_runs(struct sharding *of)
{
    const ms_replay_stream *stream = of->stream;
    for (uint32_t i = 0, step_end = 0; i < stream->call_count; i++) {
        const ms_replay_call *call = &stream->calls[i];
        uint32_t unit = of->how->units.called[call->path];
        while (step_end <= call->begin && step_end < stream->event_count)
            step_end = next_step(stream, step_end);
        if (unit == MS_REPLAY_NONE)
            continue;
        if (!MS__ARRAY_GROW(of->runs, of->run_room, (size_t)of->run_count + 1))
            return false;
        of->runs[of->run_count++] =
            (struct unit_run){unit, call->begin, call->end, find_backward(of, unit, call, step_end)};
    }
    of->nodes = malloc(((size_t)of->run_count + 1) * sizeof *of->nodes);
    return of->nodes != NULL;
}

/* ---- insertions ---- */
static int insert_for(struct sharding *of, uint32_t begin, uint32_t until, uint64_t bytes, uint64_t stream)
{
    if (!bytes || begin >= until)
        return MS_OK;
    return ms_replay_edit_insert(of->edit, begin, until, bytes, of->how->device, stream);
}

/* With mixed precision this rank's part is copied in half precision first. */
static int gather(struct sharding *of, uint32_t begin, uint32_t until, uint32_t unit)
{
    uint64_t bytes = of->bytes[unit];
    int error = MS_OK;
    if (of->how->is_mixed)
        error = insert_for(of, begin, begin + 1, ms__replay_scaled(bytes, 1, of->how->ranks), GATHER_STREAM);
    return error ? error : insert_for(of, begin, until, bytes, GATHER_STREAM);
}

static int insert_parameters(struct sharding *of, uint32_t begin, uint32_t until, uint32_t unit)
{
    int error = MS_OK;
    const ms__replay_ordered *list = &of->parameters;
    for (uint32_t i = ms__replay_ordered_find(list, unit, 0); !error && ms__replay_ordered_has(list, i, unit); i++)
        error = insert_for(of, begin, until, gathered_bytes(of, list->at[i].index), 0);
    return error;
}

/* The gradients that were added since `begin` are copied at `end`; that copy is freed at `until`. With mixed precision
 * the output is copied in the parameters' own precision. */
static int reduce(struct sharding *of, uint32_t unit, uint32_t begin, uint32_t end, uint32_t until)
{
    const ms__replay_ordered *list = &of->gradients;
    uint32_t last_drop = 0;
    uint64_t bytes = 0;
    int error = MS_OK;
    for (uint32_t i = ms__replay_ordered_find(list, unit, begin); !error && ms__replay_ordered_has(list, i, unit);
         i++) {
        if (list->at[i].value > end)
            break;
        uint32_t gradient = list->at[i].index, drop = of->stream->blocks[gradient].drop;
        if (drop <= end)
            continue;
        bytes += gathered_bytes(of, gradient);
        last_drop = drop > last_drop ? drop : last_drop;
        of->is_reduced[i] = true;
        error = ms_replay_edit_end(of->edit, gradient, end + 1);
        if (!error && of->how->is_mixed)
            error = ms_replay_edit_resize(of->edit, gradient, gathered_bytes(of, gradient));
    }
    uint64_t reduced = ms__replay_scaled(bytes, 1, of->how->ranks);
    if (!error)
        error = insert_for(of, end, until, bytes, 0);
    if (!error && of->how->is_mixed)
        error = insert_for(of, end, end + 1, reduced, REDUCE_STREAM);
    return error ? error : insert_for(of, end, last_drop, of->how->is_mixed ? 2 * reduced : reduced, REDUCE_STREAM);
}

/* ---- a step ---- */
static int shard_forward(struct sharding *of, const struct unit_run *runs, uint32_t count, uint32_t step_end)
{
    int error = MS_OK;
    for (uint32_t i = 0; !error && i < count; i++) {
        uint32_t end = runs[i].end == MS_REPLAY_NONE ? step_end : runs[i].end;
        error = gather(of, runs[i].begin, i + 1 < count ? runs[i + 1].begin + 1 : end, runs[i].unit);
        if (!error && (!of->how->keeps_params || runs[i].backward == MS_REPLAY_NONE))
            error = insert_parameters(of, runs[i].begin, end, runs[i].unit);
    }
    return error;
}

/* A unit ends one event before the next one begins: its parameters are freed before its gradients are copied. */
static uint32_t unit_end(const struct sharding *of, uint32_t count, uint32_t at, uint32_t last)
{
    uint32_t begin = of->nodes[at]->backward, following = at + 1 < count ? of->nodes[at + 1]->backward : last;
    return following > begin + 2 ? following - 1 : begin + 1;
}

static int shard_backward(struct sharding *of, uint32_t count, uint32_t last)
{
    bool keeps = of->how->keeps_params;
    int error = MS_OK;
    for (uint32_t i = 0; !error && i < count; i++) {
        const struct unit_run *run = of->nodes[i], *next = i + 1 < count ? of->nodes[i + 1] : NULL;
        uint32_t end = unit_end(of, count, i, last);
        if (i == 0 && !keeps)
            error = gather(of, run->backward, run->backward + 1, run->unit);
        if (!error && next && !keeps)
            error = gather(of, run->backward, next->backward, next->unit);
        if (!error)
            error = insert_parameters(of, keeps ? run->begin : run->backward, end, run->unit);
        if (!error)
            error = reduce(of, run->unit, run->backward, end, next ? unit_end(of, count, i + 1, last) : last);
    }
    return error;
}

/* The event after which the last gradient of the unit was added in [begin, end); 0: none was. */
static uint32_t after_last_gradient(const struct sharding *of, uint32_t unit, uint32_t begin, uint32_t end)
{
    const ms__replay_ordered *list = &of->gradients;
    uint32_t at = ms__replay_ordered_find(list, unit, end);
    bool is_found = at && ms__replay_ordered_has(list, at - 1, unit) && list->at[at - 1].value >= begin;
    return is_found ? (uint32_t)list->at[at - 1].value + 1 : 0;
}

/* About the end of backward: the event after the one that added the last gradient. */
static uint32_t end_of_backward(const struct sharding *of, const struct unit_run *runs, uint32_t count, bool has_root,
                                uint32_t end)
{
    uint32_t begin = count ? runs[0].begin : 0, rest = of->how->units.count;
    uint32_t last = has_root ? after_last_gradient(of, rest, begin, end) : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t after = after_last_gradient(of, runs[i].unit, begin, end);
        last = after > last ? after : last;
    }
    return last ? last : end;
}

static int by_backward(const void *a, const void *b)
{
    const struct unit_run *first = *(struct unit_run *const *)a, *second = *(struct unit_run *const *)b;
    if (first->backward != second->backward)
        return first->backward < second->backward ? -1 : 1;
    return first < second ? -1 : first > second;
}

/* `root`: the outermost call, which runs with the rest of the parameters; NULL: none is known. */
static int shard_step(struct sharding *of, struct unit_run *runs, uint32_t count, const ms_replay_call *root,
                      uint32_t end)
{
    uint32_t rest = of->how->units.count, node_count = 0, last = end_of_backward(of, runs, count, root, end);
    int error = MS_OK;
    for (uint32_t i = 0; i < count; i++)
        if (runs[i].backward != MS_REPLAY_NONE)
            of->nodes[node_count++] = &runs[i];
    qsort(of->nodes, node_count, sizeof *of->nodes, by_backward);
    if (root) {
        error = gather(of, root->begin, (count ? runs[0].begin : root->begin) + 1, rest);
        if (!error)
            error = insert_parameters(of, root->begin, last, rest);
    }
    if (!error)
        error = shard_forward(of, runs, count, end);
    if (!error)
        error = shard_backward(of, node_count, last);
    return error || !root ? error : reduce(of, rest, root->backward, last, last + 1);
}

static int shard_steps(struct sharding *of)
{
    const ms_replay_stream *stream = of->stream;
    uint32_t run = 0, call = 0, begin = 0, end;
    int error = MS_OK;
    if (stream->event_count && stream->events[0].kind != MS_REPLAY_STEP)
        begin = next_step(stream, 0);
    for (; !error && begin < stream->event_count && begin < of->how->end; begin = end) {
        const ms_replay_call *root = NULL;
        uint32_t first;
        end = next_step(stream, begin);
        while (run < of->run_count && of->runs[run].begin < begin)
            run++;
        for (first = run; run < of->run_count && of->runs[run].begin < end;)
            run++;
        for (; call < stream->call_count && stream->calls[call].begin < end; call++)
            if (!root && stream->calls[call].begin >= begin && stream->calls[call].parent == MS_REPLAY_NONE &&
                stream->calls[call].backward != MS_REPLAY_NONE)
                root = &stream->calls[call];
        error = shard_step(of, of->runs + first, run - first, root, end);
    }
    return error;
}

/* ---- the whole ---- */

/* Gradients that were kept from step to step are divided where they are. */
static int shard_other_gradients(struct sharding *of)
{
    int error = MS_OK;
    for (uint32_t i = 0; !error && i < of->gradients.count; i++) {
        uint32_t block = of->gradients.at[i].index;
        if (!of->is_reduced[i])
            error = ms_replay_edit_resize(of->edit, block,
                                          ms__replay_scaled(of->stream->blocks[block].requested, 1, of->how->ranks));
    }
    return error;
}

static int divide_blocks(struct sharding *of)
{
    uint32_t ranks = of->how->ranks, device = of->how->device;
    const ms_replay_selection selections[] = {
        {.device = device, .categories = 1u << MS_PARAMETER},
        {.device = device, .categories = 1u << MS_OPTSTATE},
        {.device = device, .categories = 1u << MS_TEMP, .phases = 1u << MS_OPTIMIZER},
    };
    int error = MS_OK;
    for (size_t i = 0; !error && i < sizeof selections / sizeof *selections; i++)
        error = ms_replay_edit_scale(of->edit, &selections[i], 1, ranks, NULL);
    for (uint32_t i = 0; !error && of->is_cast && i < of->stream->block_count; i++)
        if (of->is_cast[i])
            error = ms_replay_edit_resize(of->edit, i, 0);
    return error;
}

/* Find what is sharded, and whether that can be done. */
static int open_sharding(struct sharding *of, bool *is_possible)
{
    uint32_t units = of->how->units.count, casts = 0;
    of->bytes = calloc((size_t)units + 1, sizeof *of->bytes);
    of->is_cast = of->how->is_mixed ? calloc((size_t)of->stream->block_count + 1, sizeof *of->is_cast) : NULL;
    if (!of->bytes || (of->how->is_mixed && !of->is_cast) || !list_blocks_of_units(of) || !list_runs(of))
        return MS_ENOMEM;
    of->is_reduced = calloc((size_t)of->gradients.count + 1, sizeof *of->is_reduced);
    if (!of->is_reduced || (of->is_cast && !ms__replay_find_casts(of->stream, of->how->device, of->is_cast, &casts)))
        return MS_ENOMEM;
    *is_possible = of->parameters.count && (casts || !of->is_cast);
    return MS_OK;
}

int ms_replay_edit_shard(ms_replay_edit *edit, const ms_replay_sharding *how, uint64_t *count)
{
    struct sharding of = {.edit = edit, .stream = edit->stream, .how = how};
    bool is_possible = false;
    if (!how->ranks || how->device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    int error = open_sharding(&of, &is_possible);
    if (!error && is_possible) {
        error = divide_blocks(&of);
        if (!error)
            error = shard_steps(&of);
        if (!error)
            error = shard_other_gradients(&of);
    }
    if (count)
        *count = is_possible ? of.parameters.count : 0;
    free(of.parameters.at);
    free(of.gradients.at);
    free(of.added.at);
    free(of.bytes);
    free(of.is_reduced);
    free(of.is_cast);
    free(of.runs);
    free(of.nodes);
    return error;
}
