/* kinds.c - totals by kind: changing, reading and checking them. */
#include "core/ledger/kinds.h"
#include "core/ledger/chunk_array.h"

#include <string.h>

const char *ms_kind_name(ms_kind kind)
{
    switch (kind) {
#define X(name, text, category) \
    case MS_KIND_##name:        \
        return text;
        MS_KINDS(X)
#undef X
    default:
        return "";
    }
}

/* ---- changing ---- */

bool ms__saved_kinds_reserve(ms_peak_tracker *tracker, uint32_t device)
{
    const struct ms__device_totals *totals = &tracker->ledger->totals[device];
    struct ms__device_peak *peak = &tracker->devices[device];
    ms_watch *watch = tracker->ledger->watch;
    for (uint32_t chunk = 0; chunk < totals->kinds_room; chunk++) {
        if (!totals->kinds[chunk])
            continue;
        if (!ms__chunk_array_grow(watch, (void ***)&peak->kinds, &peak->kinds_room, chunk))
            return false;
        if (!peak->kinds[chunk] && (peak->kinds[chunk] = ms__alloc(watch, sizeof **peak->kinds)))
            memset(peak->kinds[chunk], 0, sizeof **peak->kinds);
        if (!peak->kinds[chunk])
            return false;
    }
    return true;
}

bool ms__kinds_reserve(ms_ledger *ledger, uint32_t device, ms_path path)
{
    struct ms__device_totals *totals = &ledger->totals[device];
    uint32_t chunk = path / MS__PATHS_PER_KINDS_CHUNK;
    if (MS__LIKELY(chunk < totals->kinds_room && totals->kinds[chunk]))
        return true;
    if (!ms__chunk_array_grow(ledger->watch, (void ***)&totals->kinds, &totals->kinds_room, chunk))
        return false;
    struct ms__totals_chunk *zeros = ms__alloc(ledger->watch, sizeof *zeros);
    if (!zeros)
        return false;
    memset(zeros, 0, sizeof *zeros);
    totals->kinds[chunk] = zeros;
    bool reserved = true;
    for (ms_peak_tracker *tracker = ledger->trackers; tracker && reserved; tracker = tracker->next)
        reserved = ms__saved_kinds_reserve(tracker, device);
    if (!reserved) {
        totals->kinds[chunk] = NULL;
        ms__free(ledger->watch, zeros);
    }
    return reserved;
}

void ms__kind_change(ms_ledger *ledger, uint32_t device, ms_path path, uint32_t kind, int64_t bytes)
{
    uint32_t chunk = path / MS__PATHS_PER_KINDS_CHUNK, index = ms__kind_index(path, kind);
    int64_t *total = &ledger->totals[device].kinds[chunk]->bytes[index];
    for (const ms_peak_tracker *tracker = ledger->trackers; tracker; tracker = tracker->next) {
        const struct ms__device_peak *peak = &tracker->devices[device];
        struct ms__saved_total *saved = &peak->kinds[chunk]->totals[index];
        if (saved->time <= peak->peak_time)
            *saved = (struct ms__saved_total){*total, ledger->time};
    }
    *total += bytes;
}

/* Every total that is changed here changed just now, so that its value at each peak is saved. */
void ms__kinds_move_block(ms_ledger *ledger, const struct ms__block *block, ms_path path, uint32_t kind)
{
    int64_t bytes = (int64_t)block->bytes;
    for (ms_peak_tracker *tracker = ledger->trackers; tracker; tracker = tracker->next) {
        const struct ms__device_peak *peak = &tracker->devices[block->device];
        if (block->since > peak->peak_time)
            continue;
        if (block->kind)
            peak->kinds[block->path / MS__PATHS_PER_KINDS_CHUNK]
                ->totals[ms__kind_index(block->path, block->kind)]
                .bytes -= bytes;
        if (kind)
            peak->kinds[path / MS__PATHS_PER_KINDS_CHUNK]->totals[ms__kind_index(path, kind)].bytes += bytes;
    }
}

void ms__saved_kinds_free(ms_peak_tracker *tracker)
{
    ms_watch *watch = tracker->ledger->watch;
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        struct ms__device_peak *peak = &tracker->devices[device];
        for (uint32_t chunk = 0; chunk < peak->kinds_room; chunk++)
            ms__free(watch, peak->kinds[chunk]);
        ms__free(watch, peak->kinds);
    }
}

void ms__kinds_close(ms_ledger *ledger)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        struct ms__device_totals *totals = &ledger->totals[device];
        for (uint32_t chunk = 0; chunk < totals->kinds_room; chunk++)
            ms__free(ledger->watch, totals->kinds[chunk]);
        ms__free(ledger->watch, totals->kinds);
        totals->kinds = NULL;
        totals->kinds_room = 0;
    }
}

/* ---- reading ---- */

/* Add what a path has of each kind to the sums; at the peak, unless it is NULL. */
static void add_path_kinds(const ms_ledger *ledger, uint32_t device, const struct ms__device_peak *peak, ms_path path,
                           ms_kind_sums *sums)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    uint32_t chunk = path / MS__PATHS_PER_KINDS_CHUNK;
    if (chunk >= totals->kinds_room || !totals->kinds[chunk])
        return;
    for (uint32_t kind = 1; kind < MS_KIND_COUNT; kind++) {
        uint32_t index = ms__kind_index(path, kind);
        const struct ms__saved_total *saved = peak ? &peak->kinds[chunk]->totals[index] : NULL;
        bool changed = saved && saved->time > peak->peak_time;
        sums->of[kind] += changed ? saved->bytes : totals->kinds[chunk]->bytes[index];
    }
}

static ms_kind_sums sum_kinds(const ms_ledger *ledger, uint32_t device, const struct ms__device_peak *peak)
{
    ms_kind_sums sums = {{0}};
    for (ms_path path = 0; path < ledger->totals[device].kinds_room * MS__PATHS_PER_KINDS_CHUNK; path++)
        add_path_kinds(ledger, device, peak, path, &sums);
    return sums;
}

ms_kind_sums ms__kinds_sum(const ms_ledger *ledger, uint32_t device)
{
    return sum_kinds(ledger, device, NULL);
}

static ms_kind_sums path_kinds(const ms_ledger *ledger, uint32_t device, const struct ms__device_peak *peak,
                               ms_path path)
{
    ms_kind_sums sums = {{0}};
    add_path_kinds(ledger, device, peak, path, &sums);
    return sums;
}

ms_kind_sums ms_ledger_kinds(ms_ledger *ledger, uint32_t device)
{
    if (device >= MS_MAX_DEVICES)
        return (ms_kind_sums){{0}};
    ms__lock(&ledger->lock);
    ms_kind_sums sums = sum_kinds(ledger, device, NULL);
    ms__unlock(&ledger->lock);
    return sums;
}

ms_kind_sums ms_ledger_kinds_of(ms_ledger *ledger, uint32_t device, ms_path path)
{
    if (device >= MS_MAX_DEVICES)
        return (ms_kind_sums){{0}};
    ms__lock(&ledger->lock);
    ms_kind_sums sums = path_kinds(ledger, device, NULL, path);
    ms__unlock(&ledger->lock);
    return sums;
}

bool ms_ledger_find_path_with_kinds(ms_ledger *ledger, uint32_t device, ms_path *path)
{
    if (device >= MS_MAX_DEVICES)
        return false;
    ms__lock(&ledger->lock);
    const struct ms__device_totals *totals = &ledger->totals[device];
    uint32_t chunk = *path / MS__PATHS_PER_KINDS_CHUNK;
    while (chunk < totals->kinds_room && !totals->kinds[chunk])
        *path = ++chunk * MS__PATHS_PER_KINDS_CHUNK;
    bool found = chunk < totals->kinds_room;
    ms__unlock(&ledger->lock);
    return found;
}

ms_kind_sums ms_peak_tracker_kinds(ms_peak_tracker *tracker, uint32_t device)
{
    if (device >= MS_MAX_DEVICES)
        return (ms_kind_sums){{0}};
    ms__lock(&tracker->ledger->lock);
    ms_kind_sums sums = sum_kinds(tracker->ledger, device, &tracker->devices[device]);
    ms__unlock(&tracker->ledger->lock);
    return sums;
}

ms_kind_sums ms_peak_tracker_kinds_of(ms_peak_tracker *tracker, uint32_t device, ms_path path)
{
    if (device >= MS_MAX_DEVICES)
        return (ms_kind_sums){{0}};
    ms__lock(&tracker->ledger->lock);
    ms_kind_sums sums = path_kinds(tracker->ledger, device, &tracker->devices[device], path);
    ms__unlock(&tracker->ledger->lock);
    return sums;
}

/* ---- checking ---- */

/* Whether no category holds less than its kinds. */
static bool fit_into_categories(const ms_kind_sums *kinds, const ms_sums *categories)
{
    ms_sums left = *categories;
    bool fit = true;
    for (uint32_t kind = 1; kind < MS_KIND_COUNT; kind++) {
        ms_category category = ms_kind_category((ms_kind)kind);
        left.of[category] -= kinds->of[kind];
        fit &= kinds->of[kind] >= 0 && left.of[category] >= 0;
    }
    return fit;
}

const char *ms__kinds_check(const ms_ledger *ledger, uint32_t device)
{
    ms_kind_sums blocks = {{0}}, totals = sum_kinds(ledger, device, NULL);
    const struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&ledger->blocks, &at)) != NULL;)
        if (block->device == device && block->kind) {
            blocks.of[block->kind] += (int64_t)block->bytes;
            if (ms_kind_category((ms_kind)block->kind) != block->category)
                return "a block's category is that of its kind";
        }
    if (memcmp(&blocks, &totals, sizeof blocks) != 0)
        return "a kind = sum over its live blocks";
    for (const ms_peak_tracker *tracker = ledger->trackers; tracker; tracker = tracker->next) {
        ms_kind_sums kinds = sum_kinds(ledger, device, &tracker->devices[device]);
        if (!fit_into_categories(&kinds, &tracker->devices[device].peak.sums))
            return "at a peak, a category holds at least what its kinds hold";
    }
    return NULL;
}
