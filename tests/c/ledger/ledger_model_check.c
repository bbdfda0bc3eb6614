/* ledger_model_check.c - compares every figure of the ledger with the model's. */
#include "ledger_model.h"

#include <inttypes.h>
#include <string.h>

/* ---- blocks and peaks ---- */
static ms_sums outside_now(const struct ledger_model *model, uint32_t device)
{
    ms_sums sums = {{0}};
    for (uint32_t i = 0; i < model->block_count; i++) {
        const struct lm_block *block = &model->blocks[i];
        if (block->outside && block->device == device)
            sums.of[block->category] += (int64_t)block->bytes;
    }
    return sums;
}

static void check_sums(struct ledger_model *model, const char *what, uint32_t device, uint32_t path, ms_sums got,
                       const int64_t *wanted)
{
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        if (got.of[i] != wanted[i])
            lm_wrong(model, "%s, device %" PRIu32 ", path %" PRIu32 ": %s is %" PRId64 ", not %" PRId64, what, device,
                     path, ms_category_name((ms_category)i), got.of[i], wanted[i]);
}

static void check_peak(struct ledger_model *model, const struct lm_tracker *tracker, uint32_t device)
{
    const struct lm_peak *wanted = &tracker->peaks[device];
    uint32_t number = lm_device_numbers[device];
    ms_peak got = ms_peak_tracker_peak(tracker->core, number);
    ms_sums sums = lm_sums_of(&wanted->totals);
    if (got.bytes != wanted->bytes)
        lm_wrong(model, "the peak is %" PRId64 ", not %" PRId64, got.bytes, wanted->bytes);
    check_sums(model, "the peak", device, 0, got.sums, sums.of);
    for (uint32_t path = 0; path < LM_PATHS; path++)
        check_sums(model, "the peak of", device, path,
                   ms_peak_tracker_peak_of(tracker->core, number, model->paths[path]), wanted->totals.of[path]);
    if (!wanted->made)
        return;
    /* Whether a step is open is not known after a root call that was lost. */
    bool unknown_step = ms_ledger_lost(model->ledger) && (got.phase == MS_FORWARD || got.phase == MS_EVALUATION) &&
                        (wanted->phase == MS_FORWARD || wanted->phase == MS_EVALUATION);
    if ((got.phase != wanted->phase && !unknown_step) || got.running != model->paths[wanted->running])
        lm_wrong(model, "the peak was made in phase %d, path %" PRIu32, (int)got.phase, got.running);
    if (got.step != wanted->step && !ms_ledger_lost(model->ledger))
        lm_wrong(model, "the peak was in step %" PRIu64 ", not %" PRIu64, got.step, wanted->step);
    if (wanted->since && got.owner != model->paths[wanted->owner])
        lm_wrong(model, "the peak was made by a block of path %" PRIu32, got.owner);
}

static void check_device(struct ledger_model *model, uint32_t device)
{
    uint32_t number = lm_device_numbers[device];
    struct lm_totals totals = lm_totals_now(model, device);
    ms_sums sums = lm_sums_of(&totals), outside = outside_now(model, device);
    check_sums(model, "now", device, 0, ms_ledger_now(model->ledger, number), sums.of);
    check_sums(model, "outside", device, 0, ms_ledger_outside(model->ledger, number), outside.of);
    for (uint32_t path = 0; path < LM_PATHS; path++)
        check_sums(model, "now of", device, path, ms_ledger_now_of(model->ledger, number, model->paths[path]),
                   totals.of[path]);
    for (int i = 0; i < LM_TRACKERS; i++)
        if (model->trackers[i].core)
            check_peak(model, &model->trackers[i], device);
}

/* ---- calls ---- */
static bool fits(const ms_sums *got, const struct lm_sums *wanted, int device)
{
    if (wanted->tied[device])
        return lm_total(got) == lm_total(&wanted->on[device]);
    return memcmp(got, &wanted->on[device], sizeof *got) == 0;
}

/* Read the core's snapshot; false if there is none. */
static bool read_snapshot(struct ledger_model *model, uint32_t path, ms_call_state state, size_t index,
                          struct lm_sums *got)
{
    for (int device = 0; device < LM_DEVICES; device++)
        if (!ms_call_snapshot_at(model->ledger, model->paths[path], state, index, lm_device_numbers[device],
                                 &got->on[device], NULL)) {
            lm_wrong(model, "path %" PRIu32 " has no %s %zu", path, ms_call_state_name(state), index);
            return false;
        }
    return true;
}

static void check_snapshot(struct ledger_model *model, uint32_t path, ms_call_state state, size_t index,
                           const struct lm_sums *wanted, const struct lm_sums *or_this)
{
    struct lm_sums got;
    if (!read_snapshot(model, path, state, index, &got))
        return;
    for (int device = 0; device < LM_DEVICES; device++)
        if (!fits(&got.on[device], wanted, device) && !fits(&got.on[device], or_this, device))
            lm_wrong(model, "path %" PRIu32 ", %s %zu, device %d: total %" PRId64 ", not %" PRId64 " in those parts",
                     path, ms_call_state_name(state), index, device, lm_total(&got.on[device]),
                     lm_total(&wanted->on[device]));
}

static void check_backward_peak(struct ledger_model *model, const struct lm_call *call, size_t index)
{
    struct lm_sums got;
    if (!read_snapshot(model, call->path, MS_PEAK_BW, index, &got))
        return;
    for (int device = 0; device < LM_DEVICES; device++) {
        int64_t is = lm_total(&got.on[device]);
        int64_t least = lm_total(&call->least.on[device]), most = lm_total(&call->most.on[device]);
        bool known = fits(&got.on[device], &call->least, device) || fits(&got.on[device], &call->most, device);
        if (!known && (is <= least || is >= most))
            lm_wrong(model, "path %" PRIu32 ", backward peak %zu: %" PRId64 ", not %" PRId64 " to %" PRId64, call->path,
                     index, is, least, most);
    }
}

struct count {
    size_t of[MS_CALL_STATE_COUNT];
};

/* The header does not define when a backward counts as ended while nodes are open around it. */
static bool knows_backward(const struct ledger_model *model)
{
    for (int i = 0; i < LM_THREADS; i++)
        if (lm_open_of_kind(&model->threads[i], LM_NODE))
            return false;
    return !model->no_backward;
}

static void check_call(struct ledger_model *model, const struct lm_call *call, struct count *seen)
{
    ms_call_state first = call->recompute ? MS_PRE_FW_AC : MS_PRE_FW,
                  last = call->recompute ? MS_POST_FW_AC : MS_POST_FW;
    check_snapshot(model, call->path, first, seen->of[first]++, &call->pre, &call->pre);
    if (call->ended)
        check_snapshot(model, call->path, last, seen->of[last]++, &call->post, &call->post);
    if (call->ended && !call->recompute)
        check_snapshot(model, call->path, MS_PEAK_FW, seen->of[MS_PEAK_FW]++, &call->peak, &call->peak);
    if (!call->begun || !knows_backward(model))
        return;
    check_snapshot(model, call->path, MS_PRE_BW, seen->of[MS_PRE_BW]++, &call->pre_back, &call->pre_back);
    check_snapshot(model, call->path, MS_POST_BW, seen->of[MS_POST_BW]++, &call->post_back, &call->went_back);
    check_backward_peak(model, call, seen->of[MS_PEAK_BW]++);
}

/* The header does not define the snapshots of a call before it has ended, except the first. */
static void check_path(struct ledger_model *model, uint32_t path)
{
    if (model->open_of[path])
        return;
    struct count seen = {{0}};
    for (uint64_t i = 0; i < model->call_count; i++)
        if (model->calls[i].path == path && model->calls[i].iteration == model->iteration_of[path])
            check_call(model, &model->calls[i], &seen);
    for (int state = 0; state < MS_CALL_STATE_COUNT; state++) {
        bool backward = state == MS_PRE_BW || state == MS_PEAK_BW || state == MS_POST_BW;
        size_t got = ms_call_snapshot_count(model->ledger, model->paths[path], (ms_call_state)state);
        if (got != seen.of[state] && (!backward || knows_backward(model)))
            lm_wrong(model, "path %" PRIu32 " has %zu of %s, not %zu", path, got,
                     ms_call_state_name((ms_call_state)state), seen.of[state]);
    }
}

static void check_calls(struct ledger_model *model)
{
    if (ms_ledger_step(model->ledger) != model->step)
        lm_wrong(model, "step %" PRIu64 ", not %" PRIu64, ms_ledger_step(model->ledger), model->step);
    for (uint32_t path = 1; path < LM_PATHS && !model->failed; path++)
        check_path(model, path);
}

/* ---- all ---- */
void lm_check(struct ledger_model *model)
{
    if (model->failed)
        return;
    model->checks++;
    const char *fault = ms_ledger_check(model->ledger);
    if (fault)
        lm_wrong(model, "this does not hold: %s", fault);
    if (ms_ledger_blocks(model->ledger) != model->block_count)
        lm_wrong(model, "%" PRIu64 " blocks, not %" PRIu32, ms_ledger_blocks(model->ledger), model->block_count);
    if (ms_ledger_parameters_dropped(model->ledger) != model->parameters_dropped)
        lm_wrong(model, "%" PRIu64 " parameters dropped, not %" PRIu64, ms_ledger_parameters_dropped(model->ledger),
                 model->parameters_dropped);
    if (ms_ledger_devices(model->ledger) != model->device_count)
        lm_wrong(model, "%" PRIu32 " devices, not %" PRIu32, ms_ledger_devices(model->ledger), model->device_count);
    for (uint32_t device = 0; device < LM_DEVICES; device++)
        check_device(model, device);
    /* Snapshots that memory ran out for are missing, and counted as lost. Reading them may need memory too. */
    if (model->failed || ms_ledger_lost(model->ledger))
        return;
    check_calls(model);
    model->failed = model->failed && !ms_ledger_lost(model->ledger);
}
