/* epoch.c - the replay of an epoch's steps, each of its own shape, through the allocator's model.
 *
 *   state before a step --(the shapes that count in it)--> state after it, and the step's figures
 *
 * Each edge that was replayed is kept. While the next step's edge is known, only the number of the state goes on and
 * the allocator stays behind; a step whose edge is not known needs the allocator in that state, so that what was left
 * out is replayed then, by the shortest known way from the state that it is in. */
#include "replay/epoch.h"

#include "base/array.h"
#include "base/map.h"

#include <stdlib.h>
#include <string.h>

/* ---- open, close ---- */
static void free_variant(struct ms__epoch_variant *variant)
{
    free(variant->actions);
    free(variant->slots);
    free(variant->survivors);
    free(variant->ages);
    free(variant->samples);
}

void ms_epoch_close(ms_epoch *epoch)
{
    if (!epoch)
        return;
    for (uint32_t i = 0; i < epoch->variant_count; i++)
        free_variant(&epoch->variants[i]);
    free(epoch->log);
    free(epoch->steps);
    free(epoch->bytes);
    free(epoch->made_in);
    free(epoch->freed_in);
    free(epoch->ranks);
    free(epoch->tokens);
    free(epoch->sizes);
    free(epoch->slot_bytes);
    free(epoch->features);
    free(epoch->used);
    free(epoch->variants);
    free(epoch);
}

static int copy_features(ms_epoch *epoch, const ms_epoch_source *source)
{
    size_t count = (size_t)source->shape_count * source->width;
    epoch->shape_count = source->shape_count;
    epoch->width = source->width;
    epoch->features = malloc((count + 1) * sizeof *epoch->features);
    if (!epoch->features)
        return MS_ENOMEM;
    for (size_t i = 0; i < count; i++)
        epoch->features[i] = source->features[i];
    return MS_OK;
}

int ms_epoch_open(const ms_epoch_source *source, ms_epoch **opened)
{
    ms_epoch *epoch = calloc(1, sizeof *epoch);
    int error = epoch ? ms__epoch_read_log(epoch, source) : MS_ENOMEM;
    if (!error)
        error = copy_features(epoch, source);
    if (!error)
        error = ms__epoch_fit_sizes(epoch);
    if (error) {
        ms_epoch_close(epoch);
        return error;
    }
    *opened = epoch;
    return MS_OK;
}

/* ---- what is known of sizes ---- */
enum { LEAST_SAMPLES = 3 }; /* any two samples are on a line */

static bool is_inexact(const struct ms__epoch_size *size)
{
    return size->form == MS__SIZE_INEXACT || (size->form == MS__SIZE_LINE && size->seen < LEAST_SAMPLES);
}

static void describe_variant(const ms_epoch *epoch, const struct ms__epoch_variant *variant, ms_epoch_facts *facts)
{
    uint64_t bytes = 0, inexact = 0;
    for (uint32_t i = 0; i < variant->allocation_count; i++) {
        const struct ms__epoch_size *size = &epoch->sizes[variant->slots[i]];
        uint64_t most = 0;
        for (uint32_t j = 0; j < variant->sample_count; j++) {
            uint64_t of = epoch->bytes[epoch->steps[variant->samples[j]].first + i];
            most = of > most ? of : most;
        }
        facts->blocks++;
        facts->varying += size->form != MS__SIZE_CONSTANT;
        facts->inexact += is_inexact(size);
        bytes += most;
        inexact += is_inexact(size) ? most : 0;
    }
    facts->bytes = bytes > facts->bytes ? bytes : facts->bytes;
    facts->inexact_bytes = inexact > facts->inexact_bytes ? inexact : facts->inexact_bytes;
}

ms_epoch_facts ms_epoch_describe(const ms_epoch *epoch)
{
    ms_epoch_facts facts = {.variants = epoch->variant_count, .lag = epoch->lag};
    for (uint32_t i = 0; i < epoch->variant_count; i++)
        describe_variant(epoch, &epoch->variants[i], &facts);
    return facts;
}

/* ---- a replay ---- */
struct outcome { /* of a step */
    uint64_t reserved, allocated, retries;
    uint64_t requested, allocated_then, reserved_then; /* where memory ran out */
    bool failed;
};

struct edge {
    struct outcome outcome;
    uint32_t to; /* a state */
};

struct pending {
    uint32_t from; /* the state before the step, which was left out */
    uint32_t batch;
};

/* The survivors of a step. */
struct held {
    ms_allocation **blocks;
    size_t room;
    const struct ms__epoch_variant *variant; /* NULL: of a step of the beginning */
    uint32_t count;
};

enum { RING = MS__EPOCH_MOST_AGE + 1 };

struct run {
    const ms_epoch *epoch;
    const ms_epoch_batches *batches;
    ms_allocator *allocator;
    ms_allocation **beginning; /* by allocation of the beginning */
    uint64_t beginning_count;
    ms_allocation **made; /* by allocation of the step */
    size_t made_room;
    struct held ring[RING]; /* by step */
    double *values;         /* of the products in use: a row for each lag */
    uint32_t *order;        /* the samples by their distance from the step's shape */
    /* What is known of states. */
    struct ms__map states; /* hash -> a state */
    uint64_t *checks;      /* by state: the other half of its hash */
    size_t check_room;
    uint32_t state_count;
    struct ms__map edge_of; /* state and shapes -> an index of edges */
    struct edge *edges;
    size_t edge_room;
    uint32_t edge_count;
    uint64_t *numbers; /* a state as numbers */
    size_t number_room;
    struct pending *pending;
    size_t pending_room, pending_count;
    uint32_t looked, known; /* how often an edge was looked for lately, and found */
    bool is_watching;       /* states are compared */
    uint32_t rest;          /* steps until they are again */
};

enum { MOST_EDGES = 1 << 20, LOOK = 512, REST = 2048, USEFUL = 16 };

/* ---- the beginning: entries of the log ---- */
static struct held *held_of(struct run *run, uint32_t step)
{
    return &run->ring[step % RING];
}

static bool hold(struct held *held, ms_allocation *block)
{
    if (!MS__ARRAY_GROW(held->blocks, held->room, held->count + 1))
        return false;
    held->blocks[held->count++] = block;
    return true;
}

/* Entries [from, to); `step` has them, or MS_EPOCH_NONE. */
static int replay_entries(struct run *run, size_t from, size_t to, uint64_t *made)
{
    uint64_t stream = 0;
    int error = MS_OK;
    for (size_t i = from; !error && i < to; i++) {
        uint64_t value = run->epoch->log[i] >> MS_LOG_KIND_BITS;
        switch (run->epoch->log[i] & ((1U << MS_LOG_KIND_BITS) - 1)) {
        case MS_LOG_ALLOCATE:
            error = ms_allocator_malloc(run->allocator, value, stream, &run->beginning[*made]);
            stream = 0;
            *made += !error;
            break;
        case MS_LOG_FREE:
            ms_allocator_free(run->allocator, run->beginning[value]);
            run->beginning[value] = NULL;
            break;
        case MS_LOG_EMPTY_CACHE:
            error = ms_allocator_empty_cache(run->allocator);
            break;
        case MS_LOG_STREAM:
            stream = value;
            break;
        case MS_LOG_HOLD:
        case MS_LOG_RELEASE:
            error = ms_allocator_log_pool(run->allocator, run->epoch->log[i] & ((1U << MS_LOG_KIND_BITS) - 1), value);
            break;
        default:
            break;
        }
    }
    return error;
}

static struct outcome outcome_now(const struct run *run, int64_t retries)
{
    const ms_allocator_stats *stats = ms_allocator_read(run->allocator);
    return (struct outcome){.reserved = (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].peak,
                            .allocated = (uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].peak,
                            .retries = (uint64_t)(stats->retries - retries)};
}

static void note_failure(const struct run *run, uint64_t requested, struct outcome *outcome)
{
    const ms_allocator_stats *stats = ms_allocator_read(run->allocator);
    outcome->failed = true;
    outcome->requested = requested;
    outcome->allocated_then = (uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].now;
    outcome->reserved_then = (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].now;
}

/* The survivors of a step of the beginning, for later steps to free: those that are never freed are not among them. */
static int keep_survivors(struct run *run, uint32_t index)
{
    const struct ms__epoch_step *step = &run->epoch->steps[index];
    struct held *held = held_of(run, index);
    held->count = 0;
    held->variant = NULL;
    for (uint64_t i = step->first; i < step->first + step->count; i++)
        if (run->epoch->ranks[i] != MS_EPOCH_NONE &&
            !hold(held, run->epoch->freed_in[i] == MS_EPOCH_NONE ? NULL : run->beginning[i]))
            return MS_ENOMEM;
    return MS_OK;
}

/* A block of the beginning that a step of the beginning frees is gone from the ring too. */
static void forget_freed(struct run *run, uint32_t index)
{
    uint32_t first = index >= RING ? index - RING + 1 : 0;
    for (uint32_t at = first; at <= index; at++) {
        const struct ms__epoch_step *step = &run->epoch->steps[at];
        struct held *held = held_of(run, at);
        uint32_t rank = 0;
        for (uint64_t i = step->first; i < step->first + step->count && rank < held->count; i++)
            if (run->epoch->ranks[i] != MS_EPOCH_NONE) {
                held->blocks[rank] = held->blocks[rank] ? run->beginning[i] : NULL;
                rank++;
            }
    }
}

/* ---- a step of any shape ---- */
#define NAME_LEFT (UINT64_C(1) << 63) /* of all blocks that steps leave for good */

static uint32_t shape_before(const struct run *run, uint32_t batch, uint32_t lag)
{
    return run->batches->shapes[batch > lag ? batch - lag : 0];
}

/* The variant of the nearest sample, of those of this kind if there are such. */
static uint32_t find_variant(const ms_epoch *epoch, uint8_t kind, const uint32_t *order)
{
    for (uint32_t i = 0; i < ms__epoch_sample_count(epoch); i++)
        if (epoch->steps[epoch->first + order[i]].kind == kind)
            return epoch->steps[epoch->first + order[i]].variant;
    return epoch->steps[epoch->first + order[0]].variant;
}

static uint64_t size_of(const struct run *run, const struct ms__epoch_variant *variant, uint32_t allocation,
                        uint32_t shape)
{
    const ms_epoch *epoch = run->epoch;
    const struct ms__epoch_size *size = &epoch->sizes[variant->slots[allocation]];
    if (size->form == MS__SIZE_CONSTANT)
        return (uint64_t)size->constant;
    if (size->form == MS__SIZE_INEXACT)
        return ms__epoch_inexact_size(epoch, variant->slots[allocation], shape, run->order);
    double bytes = size->constant + size->slope * run->values[size->lag * epoch->used_count + size->product];
    return bytes >= 1 ? (uint64_t)(bytes + 0.5) : 1;
}

static void fill_values(struct run *run, uint32_t batch)
{
    const ms_epoch *epoch = run->epoch;
    for (uint32_t lag = 0; lag <= epoch->longest_lag; lag++)
        for (uint32_t i = 0; i < epoch->used_count; i++)
            run->values[lag * epoch->used_count + i] =
                ms__epoch_product_of(epoch, &epoch->used[i], shape_before(run, batch, lag));
}

static void free_earlier(struct run *run, uint32_t batch, const struct ms__epoch_action *action)
{
    ms_allocation **block = NULL;
    if (action->age == MS__EPOCH_OF_BEGINNING) {
        if (action->value < run->beginning_count)
            block = &run->beginning[action->value];
    } else if (action->age <= batch) {
        struct held *held = held_of(run, batch - action->age);
        if (action->value < held->count)
            block = &held->blocks[action->value];
    }
    if (block && *block) {
        ms_allocator_free(run->allocator, *block);
        *block = NULL;
    }
}

/* Survivors of steps before that are dead by now, where the step's own actions freed others: steps of several variants
 * have different survivors. */
static void free_overdue(struct run *run, uint32_t batch)
{
    for (uint32_t age = 1; age <= run->epoch->longest_age && age <= batch; age++) {
        struct held *held = held_of(run, batch - age);
        for (uint32_t i = 0; held->variant && i < held->count; i++)
            if (held->blocks[i] && held->variant->ages[i] && held->variant->ages[i] <= age) {
                ms_allocator_free(run->allocator, held->blocks[i]);
                held->blocks[i] = NULL;
            }
    }
}

/* Free what the step has allocated so far; what it would have freed of other steps is freed as well. */
static void abandon_step(struct run *run, uint32_t batch, const struct ms__epoch_variant *variant, uint32_t made,
                         uint32_t action)
{
    for (uint32_t i = 0; i < made; i++) {
        ms_allocator_free(run->allocator, run->made[i]);
        run->made[i] = NULL;
    }
    for (uint32_t i = action; i < variant->action_count; i++)
        if (variant->actions[i].kind == MS_LOG_FREE && variant->actions[i].age)
            free_earlier(run, batch, &variant->actions[i]);
    held_of(run, batch)->count = 0;
}

/* What is never freed has one name for good. */
static int leave_survivors(struct run *run, uint32_t batch, const struct ms__epoch_variant *variant)
{
    struct held *held = held_of(run, batch);
    for (uint32_t i = 0; i < variant->survivor_count; i++) {
        ms_allocation *block = run->made[variant->survivors[i]];
        if (!variant->ages[i])
            ms_allocation_set_name(block, NAME_LEFT);
        if (!hold(held, variant->ages[i] ? block : NULL))
            return MS_ENOMEM;
    }
    return MS_OK;
}

static int act(struct run *run, uint32_t batch, const struct ms__epoch_variant *variant, struct outcome *outcome)
{
    uint32_t shape = shape_before(run, batch, run->epoch->lag);
    uint64_t stream = 0;
    uint32_t made = 0;
    for (uint32_t i = 0; i < variant->action_count; i++) {
        const struct ms__epoch_action *action = &variant->actions[i];
        int error = MS_OK;
        uint64_t bytes = 0;
        if (action->kind == MS_LOG_ALLOCATE) {
            bytes = size_of(run, variant, made, shape);
            error = ms_allocator_malloc(run->allocator, bytes, stream, &run->made[made]);
            stream = 0;
            made += !error;
        } else if (action->kind == MS_LOG_FREE && !action->age) {
            ms_allocator_free(run->allocator, run->made[action->value]);
            run->made[action->value] = NULL;
        } else if (action->kind == MS_LOG_FREE) {
            free_earlier(run, batch, action);
        } else if (action->kind == MS_LOG_EMPTY_CACHE) {
            error = ms_allocator_empty_cache(run->allocator);
        } else if (action->kind == MS_LOG_HOLD || action->kind == MS_LOG_RELEASE) {
            error = ms_allocator_log_pool(run->allocator, (ms_log_kind)action->kind, action->value);
        } else {
            stream = action->value;
        }
        if (error == MS_EDEVICE) {
            note_failure(run, bytes, outcome);
            abandon_step(run, batch, variant, made, i);
            return MS_OK;
        }
        if (error)
            return error;
    }
    return leave_survivors(run, batch, variant);
}

static int replay_step(struct run *run, uint32_t batch, struct outcome *outcome)
{
    ms__epoch_order_samples(run->epoch, shape_before(run, batch, run->epoch->lag), run->order);
    uint32_t found = find_variant(run->epoch, run->batches->kinds[batch], run->order);
    const struct ms__epoch_variant *variant = &run->epoch->variants[found];
    struct held *held = held_of(run, batch);
    if (!MS__ARRAY_GROW(run->made, run->made_room, (size_t)variant->allocation_count + 1))
        return MS_ENOMEM;
    held->count = 0; /* what its step left is older than any that is freed */
    held->variant = variant;
    fill_values(run, batch);
    ms_allocator_reset_peaks(run->allocator);
    int64_t retries = ms_allocator_read(run->allocator)->retries;
    struct outcome failure = {.failed = false};
    int error = act(run, batch, variant, &failure);
    if (error)
        return error;
    free_overdue(run, batch);
    *outcome = outcome_now(run, retries);
    if (failure.failed) {
        outcome->failed = true;
        outcome->requested = failure.requested;
        outcome->allocated_then = failure.allocated_then;
        outcome->reserved_then = failure.reserved_then;
    }
    return MS_OK;
}

/* ---- states ---- */
static uint64_t mix_hash(uint64_t hash, uint64_t number, uint64_t factor)
{
    hash = (hash ^ number) * factor;
    return hash ^ hash >> 31;
}

/* What is held has the same name whenever it is as old and of the same variant, by which it is known in the allocator's
 * state. */
static void name_held(struct run *run, uint32_t batch)
{
    for (uint32_t age = 1; age < RING && age <= batch; age++) {
        struct held *held = held_of(run, batch - age);
        uint64_t variant = held->variant ? (uint64_t)(held->variant - run->epoch->variants) + 1 : 0;
        for (uint32_t i = 0; i < held->count; i++)
            if (held->blocks[i])
                ms_allocation_set_name(held->blocks[i], (uint64_t)age << 52 | variant << 32 | i);
    }
}

/* The state before a batch's step, by its hash; *state is MS_EPOCH_NONE if it cannot be told from another. */
static int find_state(struct run *run, uint32_t batch, uint32_t *state)
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

static uint64_t edge_key(const struct run *run, uint32_t state, uint32_t batch)
{
    uint64_t key = mix_hash(state, run->batches->kinds[batch], UINT64_C(0x9E3779B97F4A7C15));
    for (uint32_t lag = 0; lag <= run->epoch->longest_lag || lag <= run->epoch->lag; lag++)
        key = mix_hash(key, shape_before(run, batch, lag), UINT64_C(0xD6E8FEB86659FD93));
    return key;
}

static const struct edge *find_edge(const struct run *run, uint32_t state, uint32_t batch)
{
    uint32_t at = ms__map_index(&run->edge_of, edge_key(run, state, batch));
    return at == UINT32_MAX ? NULL : &run->edges[at];
}

static int add_edge(struct run *run, uint32_t state, uint32_t batch, const struct outcome *outcome, uint32_t to)
{
    if (run->edge_count == MOST_EDGES)
        return MS_OK;
    if (!MS__ARRAY_GROW(run->edges, run->edge_room, (size_t)run->edge_count + 1) ||
        !ms__map_set(&run->edge_of, edge_key(run, state, batch), run->edge_count))
        return MS_ENOMEM;
    run->edges[run->edge_count++] = (struct edge){*outcome, to};
    return MS_OK;
}

/* ---- steps that are left out ---- */
/* The survivors that the ring has are those of the steps that were replayed last: they are as old now as those of the
 * steps that were left out. */
static void move_ring(struct run *run, uint32_t last, uint32_t batch)
{
    uint32_t by = (batch - last) % RING;
    struct held moved[RING];
    for (uint32_t i = 0; i < RING; i++)
        moved[(i + by) % RING] = run->ring[i];
    memcpy(run->ring, moved, sizeof moved);
}

/* From which of the pending steps on they must be replayed, for the allocator to be in the state before `batch`. The
 * allocator is in the state before the first one. Shorter ways are tried first. */
static size_t find_way(const struct run *run, uint32_t goal)
{
    uint32_t start = run->pending[0].from;
    if (goal == start)
        return run->pending_count;
    for (size_t length = 1; length < run->pending_count && length <= 8; length++) {
        uint32_t state = start;
        for (size_t i = run->pending_count - length; i < run->pending_count && state != MS_EPOCH_NONE; i++) {
            const struct edge *edge = find_edge(run, state, run->pending[i].batch);
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
static int catch_up(struct run *run, uint32_t batch, uint32_t goal)
{
    if (!run->pending_count)
        return MS_OK;
    uint32_t first = run->pending[0].batch;
    size_t from = find_way(run, goal);
    uint32_t length = (uint32_t)(run->pending_count - from);
    move_ring(run, first, batch - length);
    struct outcome outcome;
    int error = MS_OK;
    for (size_t i = from; !error && i < run->pending_count; i++)
        error = replay_step(run, run->pending[i].batch, &outcome);
    run->pending_count = 0;
    return error;
}

/* ---- the whole ---- */
static void note_outcome(const struct outcome *outcome, uint32_t batch, const ms_epoch_curves *curves,
                         ms_epoch_result *result)
{
    if (curves && curves->reserved)
        curves->reserved[batch] = outcome->reserved;
    if (curves && curves->allocated)
        curves->allocated[batch] = outcome->allocated;
    if (curves && curves->failed)
        curves->failed[batch] = outcome->failed;
    if (outcome->reserved > result->reserved_peak)
        result->reserved_peak = outcome->reserved, result->reserved_at = batch;
    if (outcome->allocated > result->allocated_peak)
        result->allocated_peak = outcome->allocated, result->allocated_at = batch;
    result->retries += outcome->retries;
    if (!outcome->failed)
        return;
    if (result->first_failure == MS_EPOCH_NONE) {
        result->first_failure = batch;
        result->requested = outcome->requested;
        result->allocated = outcome->allocated_then;
        result->reserved = outcome->reserved_then;
    }
    result->failures++;
}

/* Memory that runs out here is a failure before the first batch whose shape could be other than it was. */
static int replay_beginning(struct run *run, const ms_epoch_curves *curves, ms_epoch_result *result)
{
    const ms_epoch *epoch = run->epoch;
    uint64_t made = 0;
    int error = replay_entries(run, 0, epoch->steps[0].begin, &made);
    for (uint32_t i = 0; !error && i < epoch->first; i++) {
        ms_allocator_reset_peaks(run->allocator);
        int64_t retries = ms_allocator_read(run->allocator)->retries;
        error = replay_entries(run, epoch->steps[i].begin, epoch->steps[i].end, &made);
        struct outcome outcome = outcome_now(run, retries);
        if (error == MS_EDEVICE)
            note_failure(run, epoch->bytes[made], &outcome);
        note_outcome(&outcome, i, curves, result);
        if (!error)
            error = keep_survivors(run, i);
        if (!error)
            forget_freed(run, i);
    }
    if (error == MS_EDEVICE && result->first_failure == MS_EPOCH_NONE) {
        struct outcome outcome = {.failed = true};
        note_failure(run, epoch->bytes[made], &outcome);
        note_outcome(&outcome, 0, NULL, result);
        result->failed_before = true;
    }
    for (uint64_t i = 0; i < run->beginning_count; i++)
        if (run->beginning[i])
            ms_allocation_set_name(run->beginning[i], i + 1);
    return error;
}

/* Of the latest steps too few were known: what it costs to compare states is spared for some steps. */
static void judge_watching(struct run *run)
{
    if (run->looked < LOOK)
        return;
    if (run->known * USEFUL < run->looked) {
        run->is_watching = false;
        run->rest = REST;
    }
    run->looked = run->known = 0;
}

static int replay_unwatched(struct run *run, uint32_t batch, struct outcome *outcome)
{
    if (--run->rest == 0)
        run->is_watching = true;
    return replay_step(run, batch, outcome);
}

/* *state: before the batch's step, and then after it; MS_EPOCH_NONE: it is not known. *is_replayed: or it was known. */
static int take_step(struct run *run, uint32_t batch, uint32_t *state, struct outcome *outcome, bool *is_replayed)
{
    *is_replayed = true;
    if (!run->is_watching) {
        *state = MS_EPOCH_NONE;
        return replay_unwatched(run, batch, outcome);
    }
    int error = *state == MS_EPOCH_NONE ? find_state(run, batch, state) : MS_OK;
    if (error)
        return error;
    const struct edge *edge = *state == MS_EPOCH_NONE ? NULL : find_edge(run, *state, batch);
    run->looked++;
    if (edge) {
        run->known++;
        *is_replayed = false;
        *outcome = edge->outcome;
        if (!MS__ARRAY_GROW(run->pending, run->pending_room, run->pending_count + 1))
            return MS_ENOMEM;
        run->pending[run->pending_count++] = (struct pending){*state, batch};
        *state = edge->to;
        judge_watching(run);
        return run->is_watching ? MS_OK : catch_up(run, batch + 1, *state);
    }
    uint32_t before = *state, after = MS_EPOCH_NONE;
    error = catch_up(run, batch, before);
    if (!error)
        error = replay_step(run, batch, outcome);
    if (!error)
        error = find_state(run, batch + 1, &after);
    if (!error && before != MS_EPOCH_NONE && after != MS_EPOCH_NONE)
        error = add_edge(run, before, batch, outcome, after);
    *state = after;
    judge_watching(run);
    return error;
}

static int replay_batches(struct run *run, bool is_first_only, const ms_epoch_curves *curves, ms_epoch_result *result)
{
    uint32_t state = MS_EPOCH_NONE;
    int error = MS_OK;
    for (uint32_t batch = run->epoch->first; !error && batch < run->batches->count; batch++) {
        struct outcome outcome;
        bool is_replayed;
        error = take_step(run, batch, &state, &outcome, &is_replayed);
        if (error)
            break;
        note_outcome(&outcome, batch, curves, result);
        result->replayed += is_replayed;
        result->reserved_end = outcome.reserved;
        if (is_first_only && outcome.failed)
            break;
    }
    return error;
}

static int open_run(struct run *run, const ms_allocator_settings *settings)
{
    const ms_epoch *epoch = run->epoch;
    run->beginning_count = epoch->steps[epoch->first].first;
    run->allocator = ms_allocator_open(settings, NULL);
    run->beginning = calloc(run->beginning_count + 1, sizeof(ms_allocation *));
    run->values = malloc(((size_t)(epoch->longest_lag + 1) * epoch->used_count + 1) * sizeof *run->values);
    run->order = malloc((size_t)epoch->step_count * sizeof *run->order);
    run->is_watching = true;
    return run->allocator && run->beginning && run->values && run->order ? MS_OK : MS_ENOMEM;
}

static void close_run(struct run *run)
{
    ms_allocator_close(run->allocator);
    for (uint32_t i = 0; i < RING; i++)
        free(run->ring[i].blocks);
    free(run->beginning);
    free(run->made);
    free(run->values);
    free(run->order);
    ms__map_clear(&run->states);
    free(run->checks);
    ms__map_clear(&run->edge_of);
    free(run->edges);
    free(run->numbers);
    free(run->pending);
}

int ms_epoch_replay(const ms_epoch *epoch, const ms_allocator_settings *settings, const ms_epoch_batches *batches,
                    bool is_first_only, const ms_epoch_curves *curves, ms_epoch_result *result)
{
    struct run run = {.epoch = epoch, .batches = batches};
    *result = (ms_epoch_result){.first_failure = MS_EPOCH_NONE};
    if (batches->count < epoch->first)
        return MS_EINVAL;
    for (uint32_t i = 0; i < batches->count; i++)
        if (batches->shapes[i] >= epoch->shape_count)
            return MS_EINVAL;
    int error = open_run(&run, settings);
    if (!error)
        error = replay_beginning(&run, curves, result);
    if (!error)
        error = replay_batches(&run, is_first_only, curves, result);
    close_run(&run);
    return error == MS_EDEVICE ? MS_OK : error;
}
