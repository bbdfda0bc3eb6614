/* states.c - steps that need no replay: what they do is known, because the allocator was in the same state before.
 *
 *   state before a step --(the shapes that count in it)--> state after it, and the step's figures
 *
 * Each edge that was replayed is kept. While the next step's edge is known, only the number of the state goes on and
 * the allocator stays behind; a step whose edge is not known needs the allocator in that state, so that what was left
 * out is replayed then, by the shortest known way from the state that it is in. */
#include "replay/epoch/run.h"

#include <string.h>

enum { MOST_EDGES = 1 << 20, LOOK = 512, REST = 2048, USEFUL = 16 };

/* ---- states ---- */
static uint64_t mix_hash(uint64_t hash, uint64_t number, uint64_t factor)
{
    hash = (hash ^ number) * factor;
    return hash ^ hash >> 31;
}

/* What is held has the same name whenever it is as old and of the same variant, by which it is known in the allocator's
 * state. */
static void name_held(struct ms__epoch_run *run, uint32_t batch)
{
    for (uint32_t age = 1; age < MS__EPOCH_RING && age <= batch; age++) {
        struct ms__epoch_held *held = ms__epoch_held_of(run, batch - age);
        uint64_t variant = held->variant ? (uint64_t)(held->variant - run->epoch->variants) + 1 : 0;
        for (uint32_t i = 0; i < held->count; i++)
            if (held->blocks[i])
                ms_allocation_set_name(held->blocks[i], (uint64_t)age << 52 | variant << 32 | i);
    }
}

/* The state before a batch's step, by its hash; *state is MS_EPOCH_NONE if it cannot be told from another. */
static int find_state(struct ms__epoch_run *run, uint32_t batch, uint32_t *state)
{
    name_held(run, batch);
    size_t room = ms_allocator_state_room(run->allocator);
    if (!MS__ARRAY_GROW(run->numbers, run->number_room, room + 1) ||
        !MS__ARRAY_GROW(run->checks, run->check_room, (size_t)run->state_count + 1))
        return MS_ENOMEM;
    size_t count = ms_allocator_state(run->allocator, run->numbers);
    uint64_t hash = count, check = ~(uint64_t)count;
    for (size_t i = 0; i < count; i++) {
        hash = mix_hash(hash, run->numbers[i], UINT64_C(0x9E3779B97F4A7C15));
        check = mix_hash(check, run->numbers[i], UINT64_C(0xD6E8FEB86659FD93));
    }
    *state = ms__map_index(&run->states, hash);
    if (*state != UINT32_MAX) {
        *state = run->checks[*state] == check ? *state : MS_EPOCH_NONE;
        return MS_OK;
    }
    run->checks[run->state_count] = check;
    *state = run->state_count;
    return ms__map_set(&run->states, hash, run->state_count++) ? MS_OK : MS_ENOMEM;
}

static uint64_t edge_key(const struct ms__epoch_run *run, uint32_t state, uint32_t batch)
{
    uint64_t key = mix_hash(state, run->batches->kinds[batch], UINT64_C(0x9E3779B97F4A7C15));
    for (uint32_t lag = 0; lag <= run->epoch->longest_lag || lag <= run->epoch->lag; lag++)
        key = mix_hash(key, ms__epoch_run_shape(run, batch, lag), UINT64_C(0xD6E8FEB86659FD93));
    return key;
}

static const struct ms__epoch_edge *find_edge(const struct ms__epoch_run *run, uint32_t state, uint32_t batch)
{
    uint32_t at = ms__map_index(&run->edge_of, edge_key(run, state, batch));
    return at == UINT32_MAX ? NULL : &run->edges[at];
}

static int add_edge(struct ms__epoch_run *run, uint32_t state, uint32_t batch, const struct ms__epoch_outcome *outcome,
                    uint32_t to)
{
    if (run->edge_count == MOST_EDGES)
        return MS_OK;
    if (!MS__ARRAY_GROW(run->edges, run->edge_room, (size_t)run->edge_count + 1) ||
        !ms__map_set(&run->edge_of, edge_key(run, state, batch), run->edge_count))
        return MS_ENOMEM;
    run->edges[run->edge_count++] = (struct ms__epoch_edge){*outcome, to};
    return MS_OK;
}

/* ---- steps that are left out ---- */
/* The survivors that the ring has are those of the steps that were replayed last: they are as old now as those of the
 * steps that were left out. */
static void move_ring(struct ms__epoch_run *run, uint32_t last, uint32_t batch)
{
    uint32_t by = (batch - last) % MS__EPOCH_RING;
    struct ms__epoch_held moved[MS__EPOCH_RING];
    for (uint32_t i = 0; i < MS__EPOCH_RING; i++)
        moved[(i + by) % MS__EPOCH_RING] = run->ring[i];
    memcpy(run->ring, moved, sizeof moved);
}

/* From which of the pending steps on they must be replayed, for the allocator to be in the state before `batch`. The
 * allocator is in the state before the first one. Shorter ways are tried first. */
static size_t find_way(const struct ms__epoch_run *run, uint32_t goal)
{
    uint32_t start = run->pending[0].from;
    if (goal == start)
        return run->pending_count;
    for (size_t length = 1; length < run->pending_count && length <= 8; length++) {
        uint32_t state = start;
        for (size_t i = run->pending_count - length; i < run->pending_count && state != MS_EPOCH_NONE; i++) {
            const struct ms__epoch_edge *edge = find_edge(run, state, run->pending[i].batch);
            state = edge ? edge->to : MS_EPOCH_NONE;
        }
        if (state == goal)
            return run->pending_count - length;
    }
    size_t from = 0;
    for (size_t i = 0; i < run->pending_count; i++)
        if (run->pending[i].from == start)
            from = i;
    return from;
}

/* Bring the allocator into the state `goal`, in which it would be before the step of `batch`. */
static int catch_up(struct ms__epoch_run *run, uint32_t batch, uint32_t goal)
{
    if (!run->pending_count)
        return MS_OK;
    uint32_t first = run->pending[0].batch;
    size_t from = find_way(run, goal);
    uint32_t length = (uint32_t)(run->pending_count - from);
    move_ring(run, first, batch - length);
    struct ms__epoch_outcome outcome;
    int error = MS_OK;
    for (size_t i = from; !error && i < run->pending_count; i++)
        error = ms__epoch_replay_step(run, run->pending[i].batch, &outcome);
    run->pending_count = 0;
    return error;
}

/* ---- a step ---- */
/* Of the latest steps too few were known: what it costs to compare states is spared for some steps. */
static void judge_watching(struct ms__epoch_run *run)
{
    if (run->looked < LOOK)
        return;
    if (run->known * USEFUL < run->looked) {
        run->is_watching = false;
        run->rest = REST;
    }
    run->looked = run->known = 0;
}

static int replay_unwatched(struct ms__epoch_run *run, uint32_t batch, struct ms__epoch_outcome *outcome)
{
    if (--run->rest == 0)
        run->is_watching = true;
    return ms__epoch_replay_step(run, batch, outcome);
}

/* *state: before the batch's step, and then after it; MS_EPOCH_NONE: it is not known. *is_replayed: or it was known. */
int ms__epoch_take_step(struct ms__epoch_run *run, uint32_t batch, uint32_t *state, struct ms__epoch_outcome *outcome,
                        bool *is_replayed)
{
    *is_replayed = true;
    if (!run->is_watching) {
        *state = MS_EPOCH_NONE;
        return replay_unwatched(run, batch, outcome);
    }
    int error = *state == MS_EPOCH_NONE ? find_state(run, batch, state) : MS_OK;
    if (error)
        return error;
    const struct ms__epoch_edge *edge = *state == MS_EPOCH_NONE ? NULL : find_edge(run, *state, batch);
    run->looked++;
    if (edge) {
        run->known++;
        *is_replayed = false;
        *outcome = edge->outcome;
        if (!MS__ARRAY_GROW(run->pending, run->pending_room, run->pending_count + 1))
            return MS_ENOMEM;
        run->pending[run->pending_count++] = (struct ms__epoch_pending){*state, batch};
        *state = edge->to;
        judge_watching(run);
        return run->is_watching ? MS_OK : catch_up(run, batch + 1, *state);
    }
    uint32_t before = *state, after = MS_EPOCH_NONE;
    error = catch_up(run, batch, before);
    if (!error)
        error = ms__epoch_replay_step(run, batch, outcome);
    if (!error)
        error = find_state(run, batch + 1, &after);
    if (!error && before != MS_EPOCH_NONE && after != MS_EPOCH_NONE)
        error = add_edge(run, before, batch, outcome, after);
    *state = after;
    judge_watching(run);
    return error;
}
