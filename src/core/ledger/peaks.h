/* peaks.h - changing cells and finding new peaks. In a header because it is on the way of every
 * block; ledger.c is its one user, cell.c has what is rare. */
#ifndef MS_CELL_H
#define MS_CELL_H

#include "core/ledger/ledger.h"

bool ms__cells_grow(ms_ledger *ledger, uint32_t device, uint32_t chunk);
/* Make sure of the cells of a path. False when memory runs out. */
MS__INLINE bool ms__cells_reserve(ms_ledger *ledger, uint32_t device, ms_path path)
{
    const struct ms__device *on = &ledger->devices[device];
    uint32_t chunk = path / MS__CELL_PATHS;
    return MS__LIKELY(chunk < on->room && on->cells[chunk]) || ms__cells_grow(ledger, device, chunk);
}

/* What a cell was at a viewer's peak is kept, unless it changed since already. */
MS__INLINE void ms__cell_save(const struct ms__view *view, uint32_t chunk, uint32_t at, int64_t now, uint64_t time)
{
    struct ms__saved *saved = &view->seen[chunk]->cells[at];
    if (saved->when <= view->peak_time)
        *saved = (struct ms__saved){now, time};
}

MS__RARE void ms__cell_save_more(const ms_peak_tracker *viewer, uint32_t device, uint32_t chunk, uint32_t at,
                                 int64_t now, uint64_t time)
{
    for (; viewer; viewer = viewer->next)
        ms__cell_save(&viewer->views[device], chunk, at, now, time);
}

/* A cell that is reserved changes, at ledger->time. Mostly there is one viewer. */
MS__INLINE void ms__cell_change(ms_ledger *ledger, uint32_t device, ms_path path, uint32_t category, int64_t bytes)
{
    struct ms__device *on = &ledger->devices[device];
    uint32_t chunk = path / MS__CELL_PATHS, at = ms__cell_at(path, category);
    int64_t *cell = &on->cells[chunk]->now[at];
    const ms_peak_tracker *viewer = ledger->viewers;
    if (MS__LIKELY(viewer != NULL)) {
        ms__cell_save(&viewer->views[device], chunk, at, *cell, ledger->time);
        if (MS__UNLIKELY(viewer->next != NULL))
            ms__cell_save_more(viewer->next, device, chunk, at, *cell, ledger->time);
    }
    *cell += bytes;
    on->now.of[category] += bytes;
}

/* The total of a device grew, by a block of `owner` made by a thread that runs in `running`. */
MS__INLINE void ms__peaks_grow(ms_ledger *ledger, uint32_t device, ms_phase phase, ms_path running, ms_path owner)
{
    const struct ms__device *on = &ledger->devices[device];
    for (ms_peak_tracker *viewer = ledger->viewers; viewer; viewer = viewer->next) {
        struct ms__view *view = &viewer->views[device];
        if (MS__LIKELY(on->total <= view->peak.bytes))
            continue;
        view->peak = (ms_peak){on->total, on->now, ledger->step, phase, running, owner};
        view->peak_time = view->peak_since = ledger->time;
    }
}

#endif
