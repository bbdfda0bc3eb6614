/* steps.c - the steps of an epoch, each of its own shape, through the allocator's model. */
#include "replay/epoch/run.h"

/* ---- the beginning: entries of the log ---- */
static bool hold(struct ms__epoch_held *held, ms_allocation *block)
{
    if (!MS__ARRAY_GROW(held->blocks, held->room, held->count + 1))
        return false;
    held->blocks[held->count++] = block;
    return true;
}

/* Entries [from, to); `step` has them, or MS_EPOCH_NONE. */
static int replay_entries(struct ms__epoch_run *run, size_t from, size_t to, uint64_t *made)
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

static struct ms__epoch_outcome outcome_now(const struct ms__epoch_run *run, int64_t retries)
{
    const ms_allocator_stats *stats = ms_allocator_read(run->allocator);
    return (struct ms__epoch_outcome){.reserved = (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].peak,
                                      .allocated = (uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].peak,
                                      .retries = (uint64_t)(stats->retries - retries)};
}

/* `token`: of the allocation that failed. */
static void note_failure(const struct ms__epoch_run *run, uint64_t requested, uint64_t token,
                         struct ms__epoch_outcome *outcome)
{
    const ms_allocator_stats *stats = ms_allocator_read(run->allocator);
    outcome->failed = true;
    outcome->requested = requested;
    outcome->operator_then = token >> 1;
    outcome->allocated_then = (uint64_t)stats->allocated_bytes[MS_BOTH_POOLS].now;
    outcome->reserved_then = (uint64_t)stats->reserved_bytes[MS_BOTH_POOLS].now;
}

/* The survivors of a step of the beginning, for later steps to free: those that are never freed are not among them. */
static int keep_survivors(struct ms__epoch_run *run, uint32_t index)
{
    const struct ms__epoch_step *step = &run->epoch->steps[index];
    struct ms__epoch_held *held = ms__epoch_held_of(run, index);
    held->count = 0;
    held->variant = NULL;
    for (uint64_t i = step->first; i < step->first + step->count; i++)
        if (run->epoch->ranks[i] != MS_EPOCH_NONE &&
            !hold(held, run->epoch->freed_in[i] == MS_EPOCH_NONE ? NULL : run->beginning[i]))
            return MS_ENOMEM;
    return MS_OK;
}

/* A block of the beginning that a step of the beginning frees is gone from the ring too. */
static void forget_freed(struct ms__epoch_run *run, uint32_t index)
{
    uint32_t first = index >= MS__EPOCH_RING ? index - MS__EPOCH_RING + 1 : 0;
    for (uint32_t at = first; at <= index; at++) {
        const struct ms__epoch_step *step = &run->epoch->steps[at];
        struct ms__epoch_held *held = ms__epoch_held_of(run, at);
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

/* The variant of the nearest sample, of those of this kind if there are such. */
static uint32_t find_variant(const ms_epoch *epoch, uint8_t kind, const uint32_t *order)
{
    for (uint32_t i = 0; i < ms__epoch_sample_count(epoch); i++)
        if (epoch->steps[epoch->first + order[i]].kind == kind)
            return epoch->steps[epoch->first + order[i]].variant;
    return epoch->steps[epoch->first + order[0]].variant;
}

static uint64_t size_of(const struct ms__epoch_run *run, const struct ms__epoch_variant *variant, uint32_t allocation,
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

static void fill_values(struct ms__epoch_run *run, uint32_t batch)
{
    const ms_epoch *epoch = run->epoch;
    for (uint32_t lag = 0; lag <= epoch->longest_lag; lag++)
        for (uint32_t i = 0; i < epoch->used_count; i++)
            run->values[lag * epoch->used_count + i] =
                ms__epoch_product_of(epoch, &epoch->used[i], ms__epoch_run_shape(run, batch, lag));
}

static void free_earlier(struct ms__epoch_run *run, uint32_t batch, const struct ms__epoch_action *action)
{
    ms_allocation **block = NULL;
    if (action->age == MS__EPOCH_OF_BEGINNING) {
        if (action->value < run->beginning_count)
            block = &run->beginning[action->value];
    } else if (action->age <= batch) {
        struct ms__epoch_held *held = ms__epoch_held_of(run, batch - action->age);
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
static void free_overdue(struct ms__epoch_run *run, uint32_t batch)
{
    for (uint32_t age = 1; age <= run->epoch->longest_age && age <= batch; age++) {
        struct ms__epoch_held *held = ms__epoch_held_of(run, batch - age);
        for (uint32_t i = 0; held->variant && i < held->count; i++)
            if (held->blocks[i] && held->variant->ages[i] && held->variant->ages[i] <= age) {
                ms_allocator_free(run->allocator, held->blocks[i]);
                held->blocks[i] = NULL;
            }
    }
}

/* Free what the step has allocated so far; what it would have freed of other steps is freed as well. */
static void abandon_step(struct ms__epoch_run *run, uint32_t batch, const struct ms__epoch_variant *variant,
                         uint32_t made, uint32_t action)
{
    for (uint32_t i = 0; i < made; i++) {
        ms_allocator_free(run->allocator, run->made[i]);
        run->made[i] = NULL;
    }
    for (uint32_t i = action; i < variant->action_count; i++)
        if (variant->actions[i].kind == MS_LOG_FREE && variant->actions[i].age)
            free_earlier(run, batch, &variant->actions[i]);
    ms__epoch_held_of(run, batch)->count = 0;
}

/* What is never freed has one name for good. */
static int leave_survivors(struct ms__epoch_run *run, uint32_t batch, const struct ms__epoch_variant *variant)
{
    struct ms__epoch_held *held = ms__epoch_held_of(run, batch);
    for (uint32_t i = 0; i < variant->survivor_count; i++) {
        ms_allocation *block = run->made[variant->survivors[i]];
        if (!variant->ages[i])
            ms_allocation_set_name(block, NAME_LEFT);
        if (!hold(held, variant->ages[i] ? block : NULL))
            return MS_ENOMEM;
    }
    return MS_OK;
}

static int act(struct ms__epoch_run *run, uint32_t batch, const struct ms__epoch_variant *variant,
               struct ms__epoch_outcome *outcome)
{
    uint32_t shape = ms__epoch_run_shape(run, batch, run->epoch->lag);
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
            note_failure(run, bytes, run->epoch->tokens[run->epoch->steps[variant->samples[0]].first + made], outcome);
            abandon_step(run, batch, variant, made, i);
            return MS_OK;
        }
        if (error)
            return error;
    }
    return leave_survivors(run, batch, variant);
}

int ms__epoch_replay_step(struct ms__epoch_run *run, uint32_t batch, struct ms__epoch_outcome *outcome)
{
    ms__epoch_order_samples(run->epoch, ms__epoch_run_shape(run, batch, run->epoch->lag), run->order);
    uint32_t found = find_variant(run->epoch, run->batches->kinds[batch], run->order);
    const struct ms__epoch_variant *variant = &run->epoch->variants[found];
    struct ms__epoch_held *held = ms__epoch_held_of(run, batch);
    if (!MS__ARRAY_GROW(run->made, run->made_room, (size_t)variant->allocation_count + 1))
        return MS_ENOMEM;
    held->count = 0; /* what its step left is older than any that is freed */
    held->variant = variant;
    fill_values(run, batch);
    ms_allocator_reset_peaks(run->allocator);
    int64_t retries = ms_allocator_read(run->allocator)->retries;
    struct ms__epoch_outcome failure = {.failed = false};
    int error = act(run, batch, variant, &failure);
    if (error)
        return error;
    free_overdue(run, batch);
    *outcome = outcome_now(run, retries);
    if (failure.failed) {
        outcome->failed = true;
        outcome->requested = failure.requested;
        outcome->operator_then = failure.operator_then;
        outcome->allocated_then = failure.allocated_then;
        outcome->reserved_then = failure.reserved_then;
    }
    return MS_OK;
}

/* ---- the epoch's own first steps ---- */
/* Memory that runs out here is a failure before the first batch whose shape could be other than it was. */
int ms__epoch_replay_beginning(struct ms__epoch_run *run, const ms_epoch_curves *curves, ms_epoch_result *result)
{
    const ms_epoch *epoch = run->epoch;
    uint64_t made = 0;
    int error = replay_entries(run, 0, epoch->steps[0].begin, &made);
    for (uint32_t i = 0; !error && i < epoch->first; i++) {
        ms_allocator_reset_peaks(run->allocator);
        int64_t retries = ms_allocator_read(run->allocator)->retries;
        error = replay_entries(run, epoch->steps[i].begin, epoch->steps[i].end, &made);
        struct ms__epoch_outcome outcome = outcome_now(run, retries);
        if (error == MS_EDEVICE)
            note_failure(run, epoch->bytes[made], epoch->tokens[made], &outcome);
        ms__epoch_note_outcome(&outcome, i, curves, result);
        if (!error)
            error = keep_survivors(run, i);
        if (!error)
            forget_freed(run, i);
    }
    if (error == MS_EDEVICE && result->first_failure == MS_EPOCH_NONE) {
        struct ms__epoch_outcome outcome = {.failed = true};
        note_failure(run, epoch->bytes[made], epoch->tokens[made], &outcome);
        ms__epoch_note_outcome(&outcome, 0, NULL, result);
        result->failed_before = true;
    }
    for (uint64_t i = 0; i < run->beginning_count; i++)
        if (run->beginning[i])
            ms_allocation_set_name(run->beginning[i], i + 1);
    return error;
}
