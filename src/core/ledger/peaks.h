/* peaks.h - changing totals, and each peak tracker's peak. What runs for every block is inline here; peaks.c has the
 * rest. */
#ifndef MS_PEAKS_H
#define MS_PEAKS_H

#include "core/ledger/ledger.h"

/* A new peak copies nothing. Instead, the first change of a total after the peak saves its old value:
 *
 *   total at the peak = saved.bytes if saved.time > peak_time, else the total now (it did not change since the peak) */
struct ms__saved_total {
    int64_t bytes;
    uint64_t time; /* ledger->time of the change that saved it */
};

struct ms__saved_chunk {
    struct ms__saved_total totals[MS__PATHS_PER_CHUNK * MS__TOTALS_PER_PATH]; /* see ms__total_index */
};

struct ms__device_peak {
    ms_peak peak;
    uint64_t peak_time;             /* ledger->time */
    uint64_t block_since;           /* `since` of the block that made the peak; 0: no block did */
    struct ms__saved_chunk **saved; /* a chunk wherever the device's totals have one */
    struct ms__saved_chunk **kinds; /* the same for the device's totals by kind */
    uint32_t room;                  /* pointers in `saved` */
    uint32_t kinds_room;            /* pointers in `kinds` */
};
static_assert(sizeof(struct ms__device_peak) == 128, "a power of two: every block event indexes an array of these");

struct ms_peak_tracker {
    ms_ledger *ledger;
    ms_peak_tracker *next; /* those without paths come last */
    bool without_paths;    /* nothing is saved: `saved` of all devices is empty */
    struct ms__device_peak devices[MS_MAX_DEVICES];
};

/* A retroactive claim: the block's bytes move to `path` and `category` in each peak at which the block was live.
 * The totals have changed already; `block` is still as it was. */
void ms__peaks_move_block(ms_ledger *ledger, const struct ms__block *block, ms_path path, uint32_t category);
void ms__trackers_close(ms_ledger *ledger);

/* What the total at `index` of a chunk was at the peak; `now` is what it is. */
static inline int64_t ms__total_at_peak(const struct ms__device_peak *device, uint32_t chunk, uint32_t index,
                                        int64_t now)
{
    const struct ms__saved_total *saved = &device->saved[chunk]->totals[index];
    return saved->time > device->peak_time ? saved->bytes : now;
}

/* Make room for the totals of a path, in each tracker too. False when memory runs out: no figure changed. */
bool ms__totals_grow(ms_ledger *ledger, uint32_t device, uint32_t chunk);
MS__INLINE bool ms__totals_reserve(ms_ledger *ledger, uint32_t device, ms_path path)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    uint32_t chunk = path / MS__PATHS_PER_CHUNK;
    return MS__LIKELY(chunk < totals->room && totals->chunks[chunk]) || ms__totals_grow(ledger, device, chunk);
}

MS__INLINE void ms__total_save(const struct ms__device_peak *device, uint32_t chunk, uint32_t index, int64_t now,
                               uint64_t time)
{
    struct ms__saved_total *saved = &device->saved[chunk]->totals[index];
    if (saved->time <= device->peak_time)
        *saved = (struct ms__saved_total){now, time};
}

MS__RARE void ms__total_save_for(const ms_peak_tracker *tracker, uint32_t device, uint32_t chunk, uint32_t index,
                                 int64_t now, uint64_t time)
{
    for (; tracker && !tracker->without_paths; tracker = tracker->next)
        ms__total_save(&tracker->devices[device], chunk, index, now, time);
}

/* Add `bytes` to a total that was reserved. The caller has counted ledger->time up. Most ledgers have one tracker. */
MS__INLINE void ms__total_change(ms_ledger *ledger, uint32_t device, ms_path path, uint32_t category, int64_t bytes)
{
    struct ms__device_totals *totals = &ledger->totals[device];
    uint32_t chunk = path / MS__PATHS_PER_CHUNK, index = ms__total_index(path, category);
    int64_t *total = &totals->chunks[chunk]->bytes[index];
    const ms_peak_tracker *tracker = ledger->trackers;
    if (MS__LIKELY(tracker != NULL) && !tracker->without_paths) {
        ms__total_save(&tracker->devices[device], chunk, index, *total, ledger->time);
        if (MS__UNLIKELY(tracker->next != NULL))
            ms__total_save_for(tracker->next, device, chunk, index, *total, ledger->time);
    }
    *total += bytes;
    totals->now.of[category] += bytes;
}

/* The total of a device grew: a block of `owner` was added by a thread in this phase, whose innermost path is
 * `running`. */
MS__INLINE void ms__peaks_raise(ms_ledger *ledger, uint32_t device, ms_phase phase, ms_path running, ms_path owner)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    for (ms_peak_tracker *tracker = ledger->trackers; tracker; tracker = tracker->next) {
        struct ms__device_peak *peak = &tracker->devices[device];
        if (MS__LIKELY(totals->total <= peak->peak.bytes))
            continue;
        peak->peak = (ms_peak){totals->total, totals->now, ledger->step, phase, running, owner};
        peak->peak_time = peak->block_since = ledger->time;
    }
}

#endif
