/* peaks.c - peak trackers: opening, closing and reading them, and the rare part of changing totals. */
#include "core/ledger/chunk_array.h"
#include "core/ledger/kinds.h"

#include <string.h>

static bool reserve_saved_chunk(ms_peak_tracker *tracker, uint32_t device, uint32_t chunk)
{
    if (tracker->without_paths)
        return true;
    struct ms__device_peak *peak = &tracker->devices[device];
    ms_watch *watch = tracker->ledger->watch;
    if (!ms__chunk_array_grow(watch, (void ***)&peak->saved, &peak->room, chunk))
        return false;
    if (!peak->saved[chunk] && (peak->saved[chunk] = ms__alloc(watch, sizeof **peak->saved)))
        memset(peak->saved[chunk], 0, sizeof **peak->saved);
    return peak->saved[chunk] != NULL;
}

bool ms__totals_grow(ms_ledger *ledger, uint32_t device, uint32_t chunk)
{
    struct ms__device_totals *totals = &ledger->totals[device];
    for (ms_peak_tracker *tracker = ledger->trackers; tracker; tracker = tracker->next)
        if (!reserve_saved_chunk(tracker, device, chunk))
            return false;
    if (!ms__chunk_array_grow(ledger->watch, (void ***)&totals->chunks, &totals->room, chunk))
        return false;
    struct ms__totals_chunk *zeros = ms__alloc(ledger->watch, sizeof *zeros);
    if (!zeros)
        return false;
    memset(zeros, 0, sizeof *zeros);
    totals->chunks[chunk] = zeros;
    return true;
}

/* Both totals changed just now, so their values at each peak are saved. */
void ms__peaks_move_block(ms_ledger *ledger, const struct ms__block *block, ms_path path, uint32_t category)
{
    int64_t bytes = (int64_t)block->bytes;
    for (ms_peak_tracker *tracker = ledger->trackers; tracker; tracker = tracker->next) {
        struct ms__device_peak *peak = &tracker->devices[block->device];
        if (block->since > peak->peak_time)
            continue;
        uint32_t from = ms__total_index(block->path, block->category), to = ms__total_index(path, category);
        if (!tracker->without_paths) {
            peak->saved[block->path / MS__PATHS_PER_CHUNK]->totals[from].bytes -= bytes;
            peak->saved[path / MS__PATHS_PER_CHUNK]->totals[to].bytes += bytes;
        }
        peak->peak.sums.of[block->category] -= bytes;
        peak->peak.sums.of[category] += bytes;
        if (block->since == peak->block_since)
            peak->peak.owner = path;
    }
}

static void begin_peak(const ms_ledger *ledger, struct ms__device_peak *peak, uint32_t device)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    peak->peak = (ms_peak){totals->total, totals->now, ledger->step, MS_IDLE, MS_GLOBAL, MS_GLOBAL};
    peak->peak_time = ledger->time;
    peak->block_since = 0;
}

static void free_tracker(ms_peak_tracker *tracker)
{
    ms_watch *watch = tracker->ledger->watch;
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        struct ms__device_peak *peak = &tracker->devices[device];
        for (uint32_t chunk = 0; chunk < peak->room; chunk++)
            ms__free(watch, peak->saved[chunk]);
        ms__free(watch, peak->saved);
    }
    ms__saved_kinds_free(tracker);
    ms__free(watch, tracker);
}

void ms__trackers_close(ms_ledger *ledger)
{
    while (ledger->trackers) {
        ms_peak_tracker *tracker = ledger->trackers;
        ledger->trackers = tracker->next;
        free_tracker(tracker);
    }
}

static bool reserve_saved_chunks(ms_peak_tracker *tracker)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        const struct ms__device_totals *totals = &tracker->ledger->totals[device];
        for (uint32_t chunk = 0; chunk < totals->room; chunk++)
            if (totals->chunks[chunk] && !reserve_saved_chunk(tracker, device, chunk))
                return false;
        if (!ms__saved_kinds_reserve(tracker, device))
            return false;
    }
    return true;
}

static void insert_tracker(ms_ledger *ledger, ms_peak_tracker *tracker)
{
    ms_peak_tracker **at = &ledger->trackers;
    while (tracker->without_paths && *at)
        at = &(*at)->next;
    tracker->next = *at;
    *at = tracker;
}

static ms_peak_tracker *open_tracker(ms_ledger *ledger, bool without_paths)
{
    ms__lock(&ledger->lock);
    ms_peak_tracker *tracker = ms__alloc(ledger->watch, sizeof *tracker);
    if (tracker) {
        memset(tracker, 0, sizeof *tracker);
        tracker->ledger = ledger;
        tracker->without_paths = without_paths;
        for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
            begin_peak(ledger, &tracker->devices[device], device);
        if (reserve_saved_chunks(tracker)) {
            insert_tracker(ledger, tracker);
        } else {
            free_tracker(tracker);
            tracker = NULL;
        }
    }
    if (!tracker)
        ms__ledger_count_lost(ledger);
    ms__unlock(&ledger->lock);
    return tracker;
}

ms_peak_tracker *ms_peak_tracker_open(ms_ledger *ledger)
{
    return open_tracker(ledger, false);
}

ms_peak_tracker *ms_peak_tracker_open_without_paths(ms_ledger *ledger)
{
    return open_tracker(ledger, true);
}

void ms_peak_tracker_close(ms_peak_tracker *tracker)
{
    if (!tracker)
        return;
    ms_ledger *ledger = tracker->ledger;
    ms__lock(&ledger->lock);
    for (ms_peak_tracker **at = &ledger->trackers; *at; at = &(*at)->next)
        if (*at == tracker) {
            *at = tracker->next;
            break;
        }
    free_tracker(tracker);
    ms__unlock(&ledger->lock);
}

void ms_peak_tracker_reset(ms_peak_tracker *tracker)
{
    ms_ledger *ledger = tracker->ledger;
    ms__lock(&ledger->lock);
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        begin_peak(ledger, &tracker->devices[device], device);
    ms__unlock(&ledger->lock);
}

ms_peak ms_peak_tracker_peak(ms_peak_tracker *tracker, uint32_t device)
{
    if (device >= MS_MAX_DEVICES)
        return (ms_peak){0};
    ms__lock(&tracker->ledger->lock);
    ms_peak peak = tracker->devices[device].peak;
    ms__unlock(&tracker->ledger->lock);
    return peak;
}

ms_sums ms_peak_tracker_peak_of(ms_peak_tracker *tracker, uint32_t device, ms_path path)
{
    ms_ledger *ledger = tracker->ledger;
    ms_sums sums = {{0}};
    if (device >= MS_MAX_DEVICES || tracker->without_paths)
        return sums;
    ms__lock(&ledger->lock);
    const int64_t *now = ms__totals_of_path(&ledger->totals[device], path);
    for (uint32_t category = 0; now && category < MS_CATEGORY_COUNT; category++)
        sums.of[category] = ms__total_at_peak(&tracker->devices[device], path / MS__PATHS_PER_CHUNK,
                                              ms__total_index(path, category), now[category]);
    ms__unlock(&ledger->lock);
    return sums;
}

/* Whether a path of an existing chunk has bytes, now or at the peak, which may be NULL. */
static bool has_bytes(const struct ms__device_totals *totals, const struct ms__device_peak *peak, ms_path path)
{
    uint32_t chunk = path / MS__PATHS_PER_CHUNK;
    int64_t any = 0;
    for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++) {
        uint32_t index = ms__total_index(path, category);
        int64_t now = totals->chunks[chunk]->bytes[index];
        any |= peak ? ms__total_at_peak(peak, chunk, index, now) : now;
    }
    return any != 0;
}

bool ms_ledger_find_path(ms_ledger *ledger, ms_peak_tracker *at_peak, uint32_t device, ms_path *path)
{
    if (device >= MS_MAX_DEVICES || (at_peak && at_peak->without_paths))
        return false;
    bool found = false;
    ms__lock(&ledger->lock);
    const struct ms__device_totals *totals = &ledger->totals[device];
    const struct ms__device_peak *peak = at_peak ? &at_peak->devices[device] : NULL;
    for (uint64_t at = *path; !found && at < (uint64_t)totals->room * MS__PATHS_PER_CHUNK; at++) {
        if (!totals->chunks[at / MS__PATHS_PER_CHUNK]) {
            at |= MS__PATHS_PER_CHUNK - 1;
            continue;
        }
        found = has_bytes(totals, peak, (ms_path)at);
        *path = (ms_path)at;
    }
    ms__unlock(&ledger->lock);
    return found;
}
