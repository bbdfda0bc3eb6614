/* ledger_model.c - blocks in an array, peaks by copying; see ledger_model.h. */
#include "ledger_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const uint32_t lm_device_numbers[LM_DEVICES] = {0, 1, MS_MAX_DEVICES - 1};

void lm_wrong(struct ledger_model *model, const char *format, ...)
{
    if (model->failed)
        return;
    model->failed = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(model->wrong, sizeof model->wrong, format, arguments);
    va_end(arguments);
}

/* Add paths that are far apart, so that each needs its own chunk of totals. */
static bool add_paths(struct ledger_model *model)
{
    for (int i = 1; i < LM_PATHS; i++) {
        char name[40];
        for (int k = 0; k < 24; k++) {
            ms_path path;
            snprintf(name, sizeof name, "unused%d.%d", i, k);
            if (ms_path_add(model->watch, MS_GLOBAL, name, &path) != MS_OK)
                return false;
        }
        snprintf(name, sizeof name, "m%d", i);
        if (ms_path_add(model->watch, model->paths[i / 4], name, &model->paths[i]) != MS_OK)
            return false;
    }
    return true;
}

bool lm_open(struct ledger_model *model, const ms_options *options)
{
    memset(model, 0, sizeof *model);
    model->watch = ms_watch_open(options);
    if (!model->watch || !add_paths(model))
        return false;
    for (uint32_t i = 0; i < LM_THREADS; i++)
        if (!lm_thread_open(model, i))
            return false;
    return true;
}

bool lm_open_ledger(struct ledger_model *model)
{
    model->ledger = ms_ledger_open(model->watch);
    if (!model->ledger)
        return false;
    model->attached = ms_ledger_attach(model->ledger) == MS_OK;
    return model->attached;
}

void lm_close(struct ledger_model *model)
{
    if (model->ledger) {
        ms_ledger_detach(model->ledger);
        ms_ledger_close(model->ledger);
    }
    lm_calls_close(model);
    ms_watch_close(model->watch);
}

/* ---- sums ---- */
struct lm_totals lm_totals_now(const struct ledger_model *model, uint32_t device)
{
    struct lm_totals totals = {{{0}}};
    for (uint32_t i = 0; i < model->block_count; i++) {
        const struct lm_block *block = &model->blocks[i];
        if (block->device == device)
            totals.of[block->path][block->category] += (int64_t)block->bytes;
    }
    return totals;
}

ms_sums lm_sums_of(const struct lm_totals *totals)
{
    ms_sums sums = {{0}};
    for (int path = 0; path < LM_PATHS; path++)
        for (int category = 0; category < MS_CATEGORY_COUNT; category++)
            sums.of[category] += totals->of[path][category];
    return sums;
}

int64_t lm_total(const ms_sums *sums)
{
    int64_t total = 0;
    for (int category = 0; category < MS_CATEGORY_COUNT; category++)
        total += sums->of[category];
    return total;
}

struct lm_sums lm_now(const struct ledger_model *model)
{
    struct lm_sums now = {0};
    for (uint32_t i = 0; i < model->block_count; i++) {
        const struct lm_block *block = &model->blocks[i];
        now.on[block->device].of[block->category] += (int64_t)block->bytes;
    }
    return now;
}

/* ---- blocks ---- */
static struct lm_block *find(struct ledger_model *model, uint64_t address)
{
    for (uint32_t i = 0; i < model->block_count; i++)
        if (model->blocks[i].address == address)
            return &model->blocks[i];
    return NULL;
}

static void remove_block(struct ledger_model *model, struct lm_block *block)
{
    model->parameters_dropped += block->category == MS_PARAMETER || block->category == MS_BUFFER;
    *block = model->blocks[--model->block_count];
}

static void grow_peaks(struct ledger_model *model, uint32_t thread, const struct lm_block *block)
{
    const struct lm_thread *by = thread == LM_NO_THREAD ? NULL : &model->threads[thread];
    struct lm_totals totals = lm_totals_now(model, block->device);
    ms_sums sums = lm_sums_of(&totals);
    for (int i = 0; i < LM_TRACKERS; i++) {
        struct lm_peak *peak = &model->trackers[i].peaks[block->device];
        if (!model->trackers[i].core || lm_total(&sums) <= peak->bytes)
            continue;
        *peak = (struct lm_peak){.bytes = lm_total(&sums),
                                 .totals = totals,
                                 .time = model->time,
                                 .since = block->since,
                                 .owner = block->path,
                                 .running = by ? lm_path(by) : 0,
                                 .phase = by ? lm_phase(by) : MS_IDLE,
                                 .step = model->step,
                                 .made = true};
        model->peaks_made++;
    }
}

static void added(struct ledger_model *model, uint32_t thread, struct lm_block made, int error)
{
    if (error == MS_ENOMEM) {
        model->refused++;
        if (!ms_ledger_lost(model->ledger))
            lm_wrong(model, "a block was refused and nothing was lost");
        return;
    }
    if (error != MS_OK)
        lm_wrong(model, "adding gave %d (%s)", error, ms_error_text(error));
    if (!made.bytes)
        return;
    struct lm_block *before = find(model, made.address);
    if (before)
        remove_block(model, before);
    made.since = ++model->time;
    model->blocks[model->block_count++] = made;
    uint32_t number = lm_device_numbers[made.device] + 1;
    model->device_count = number > model->device_count ? number : model->device_count;
    grow_peaks(model, thread, &made);
    lm_calls_grow(model);
}

/* The model has no room, or the header does not define what happens. */
static bool is_avoided(struct ledger_model *model, uint64_t address, uint64_t bytes)
{
    return model->block_count == LM_BLOCKS || (!bytes && find(model, address));
}

void lm_add(struct ledger_model *model, uint32_t thread, uint64_t address, uint64_t bytes, uint32_t device)
{
    if (is_avoided(model, address, bytes))
        return;
    const struct lm_thread *by = thread == LM_NO_THREAD ? NULL : &model->threads[thread];
    ms_phase phase = by ? lm_phase(by) : MS_IDLE;
    struct lm_block made = {.address = address, .bytes = bytes, .device = device, .path = by ? lm_path(by) : 0};
    made.category = phase == MS_BACKWARD || phase == MS_OPTIMIZER ? MS_TEMP
                    : phase == MS_IDLE                            ? MS_OTHER
                                                                  : MS_ACTIVATION;
    uint32_t number = lm_device_numbers[device];
    bool with_phase = bytes % 4 == 1; /* some blocks go through ms_block_add_in, which does the same */
    added(model, thread, made,
          with_phase ? ms_block_add_in(model->ledger, phase, model->paths[made.path], address, bytes, number)
                     : ms_block_add(model->ledger, by ? by->core : NULL, address, bytes, number));
}

void lm_add_as(struct ledger_model *model, uint32_t thread, struct lm_block what)
{
    if (is_avoided(model, what.address, what.bytes))
        return;
    const ms_thread *core = thread == LM_NO_THREAD ? NULL : model->threads[thread].core;
    what.claimed = true;
    added(model, thread, what,
          ms_block_add_as(model->ledger, core, what.address, what.bytes, lm_device_numbers[what.device], what.category,
                          model->paths[what.path], what.outside));
}

void lm_drop(struct ledger_model *model, uint64_t address)
{
    struct lm_block *block = find(model, address);
    int wanted = block ? MS_OK : MS_ENOBLOCK, error = ms_block_drop(model->ledger, address);
    if (error != wanted)
        lm_wrong(model, "dropping gave %d (%s)", error, ms_error_text(error));
    model->time++;
    if (block)
        remove_block(model, block);
}

/* A retroactive claim: move the block now, and in every peak at which it was live. */
static void move_block(struct ledger_model *model, struct lm_block *block, ms_category category, uint32_t path)
{
    for (int i = 0; i < LM_TRACKERS; i++) {
        struct lm_peak *peak = &model->trackers[i].peaks[block->device];
        if (!model->trackers[i].core || block->since > peak->time)
            continue;
        peak->totals.of[block->path][block->category] -= (int64_t)block->bytes;
        peak->totals.of[path][category] += (int64_t)block->bytes;
        if (block->since == peak->since)
            peak->since = 0;
    }
    block->category = category;
    block->path = path;
}

static bool is_held_by_object(ms_category is)
{
    return is == MS_PARAMETER || is == MS_BUFFER || is == MS_GRADIENT || is == MS_OPTSTATE;
}

/* Of several claims the category that comes first is kept; a parameter or buffer does not become optimizer state. */
static bool has_stronger_claim(const struct ledger_model *model, const struct lm_block *block, ms_category category)
{
    ms_category is = block->category;
    if (model->claiming && block->claimed && is_held_by_object(is) && is < category)
        return true;
    return category == MS_OPTSTATE && (is == MS_PARAMETER || is == MS_BUFFER);
}

void lm_claim(struct ledger_model *model, uint64_t address, ms_category category, uint32_t path)
{
    struct lm_block *block = find(model, address);
    int error = ms_block_claim(model->ledger, address, category, model->paths[path]);
    model->time++;
    if (error == MS_ENOMEM && block) {
        model->refused++;
        if (model->claiming) /* the header does not define whether it counts as claimed */
            lm_drop(model, address);
        return;
    }
    if (error != (block ? MS_OK : MS_ENOBLOCK))
        lm_wrong(model, "claiming gave %d (%s)", error, ms_error_text(error));
    if (block && !has_stronger_claim(model, block, category)) {
        block->claimed = true;
        move_block(model, block, category, path);
    }
}

void lm_clear(struct ledger_model *model)
{
    ms_ledger_clear(model->ledger);
    while (model->block_count)
        remove_block(model, &model->blocks[0]);
    model->time++;
}

void lm_claims_begin(struct ledger_model *model)
{
    if (model->claiming)
        return;
    ms_claims_begin(model->ledger);
    model->claiming = true;
    for (uint32_t i = 0; i < model->block_count; i++)
        model->blocks[i].claimed = false;
}

void lm_claims_end(struct ledger_model *model)
{
    if (!model->claiming)
        return;
    ms_claims_end(model->ledger);
    model->claiming = false;
    model->time++;
    for (uint32_t i = model->block_count; i-- > 0;) {
        struct lm_block *block = &model->blocks[i];
        bool held = is_held_by_object(block->category);
        if (!block->claimed && block->outside) {
            remove_block(model, block);
        } else if (!block->claimed && held) {
            block->category = MS_OTHER;
            block->since = model->time;
        }
    }
}

void lm_pause(struct ledger_model *model)
{
    for (uint32_t i = 0; i < LM_THREADS; i++)
        if (model->threads[i].depth || model->threads[i].step_at)
            return;
    ms_ledger_detach(model->ledger);
    if (ms_block_drop(model->ledger, 1) != MS_EDETACHED)
        lm_wrong(model, "a detached ledger took an event");
    if (ms_ledger_attach(model->ledger) != MS_OK)
        lm_wrong(model, "not attached again");
}

/* ---- peak trackers ---- */
static void begin_peaks(struct ledger_model *model, struct lm_tracker *tracker)
{
    for (uint32_t device = 0; device < LM_DEVICES; device++) {
        struct lm_totals totals = lm_totals_now(model, device);
        ms_sums sums = lm_sums_of(&totals);
        tracker->peaks[device] = (struct lm_peak){.bytes = lm_total(&sums), .totals = totals, .time = model->time};
    }
}

void lm_tracker_open(struct ledger_model *model, uint32_t index)
{
    struct lm_tracker *tracker = &model->trackers[index];
    if (tracker->core)
        return;
    tracker->core = ms_peak_tracker_open(model->ledger);
    if (tracker->core)
        begin_peaks(model, tracker);
}

void lm_tracker_close(struct ledger_model *model, uint32_t index)
{
    struct lm_tracker *tracker = &model->trackers[index];
    if (tracker->core)
        ms_peak_tracker_close(tracker->core);
    tracker->core = NULL;
}

void lm_tracker_reset(struct ledger_model *model, uint32_t index)
{
    struct lm_tracker *tracker = &model->trackers[index];
    if (!tracker->core)
        return;
    ms_peak_tracker_reset(tracker->core);
    begin_peaks(model, tracker);
}
