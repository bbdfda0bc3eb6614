/* peaks.c - bytes by device, path and category: now, and when most was held. */
#include "core/ledger/peaks.h"

#include <string.h>

bool ms__directory_grow(ms_watch *watch, void ***chunks, uint32_t *room, uint32_t at)
{
    if (MS__LIKELY(at < *room))
        return true;
    uint32_t wanted = *room ? *room * 2 : 8;
    while (wanted <= at)
        wanted *= 2;
    void **more = ms__alloc(watch, wanted * sizeof *more);
    if (!more)
        return false;
    memset(more, 0, wanted * sizeof *more);
    if (*room)
        memcpy(more, *chunks, *room * sizeof *more);
    ms__free(watch, *chunks);
    *chunks = more;
    *room = wanted;
    return true;
}

static bool reserve_seen(ms_peak_tracker *viewer, uint32_t device, uint32_t chunk)
{
    struct ms__view *view = &viewer->views[device];
    ms_watch *watch = viewer->ledger->watch;
    if (!ms__directory_grow(watch, (void ***)&view->seen, &view->room, chunk))
        return false;
    if (!view->seen[chunk] && (view->seen[chunk] = ms__alloc(watch, sizeof **view->seen)))
        memset(view->seen[chunk], 0, sizeof **view->seen);
    return view->seen[chunk] != NULL;
}

bool ms__cells_grow(ms_ledger *ledger, uint32_t device, uint32_t chunk)
{
    struct ms__device *on = &ledger->devices[device];
    for (ms_peak_tracker *viewer = ledger->viewers; viewer; viewer = viewer->next)
        if (!reserve_seen(viewer, device, chunk))
            return false;
    if (!ms__directory_grow(ledger->watch, (void ***)&on->cells, &on->room, chunk))
        return false;
    struct ms__cells *cells = ms__alloc(ledger->watch, sizeof *cells);
    if (!cells)
        return false;
    memset(cells, 0, sizeof *cells);
    on->cells[chunk] = cells;
    return true;
}

void ms__peaks_move(ms_ledger *ledger, const struct ms__block *block, ms_path path, uint32_t category)
{
    int64_t bytes = (int64_t)block->bytes;
    for (ms_peak_tracker *viewer = ledger->viewers; viewer; viewer = viewer->next) {
        struct ms__view *view = &viewer->views[block->device];
        if (block->since > view->peak_time)
            continue;
        view->seen[block->path / MS__CELL_PATHS]->cells[ms__cell_at(block->path, block->category)].at -= bytes;
        view->seen[path / MS__CELL_PATHS]->cells[ms__cell_at(path, category)].at += bytes;
        view->peak.sums.of[block->category] -= bytes;
        view->peak.sums.of[category] += bytes;
        if (block->since == view->peak_since)
            view->peak.owner = path;
    }
}

void ms__cells_close(ms_ledger *ledger)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        struct ms__device *on = &ledger->devices[device];
        for (uint32_t chunk = 0; chunk < on->room; chunk++)
            ms__free(ledger->watch, on->cells[chunk]);
        ms__free(ledger->watch, on->cells);
        *on = (struct ms__device){0};
    }
}

/* ---- viewers ---- */
static void begin_view(const ms_ledger *ledger, struct ms__view *view, uint32_t device)
{
    const struct ms__device *on = &ledger->devices[device];
    view->peak = (ms_peak){on->total, on->now, ledger->step, MS_IDLE, MS_GLOBAL, MS_GLOBAL};
    view->peak_time = ledger->time;
    view->peak_since = 0;
}

static void free_viewer(ms_peak_tracker *viewer)
{
    ms_watch *watch = viewer->ledger->watch;
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        struct ms__view *view = &viewer->views[device];
        for (uint32_t chunk = 0; chunk < view->room; chunk++)
            ms__free(watch, view->seen[chunk]);
        ms__free(watch, view->seen);
    }
    ms__free(watch, viewer);
}

void ms__viewers_close(ms_ledger *ledger)
{
    while (ledger->viewers) {
        ms_peak_tracker *viewer = ledger->viewers;
        ledger->viewers = viewer->next;
        free_viewer(viewer);
    }
}

static bool see_all(ms_peak_tracker *viewer)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        const struct ms__device *on = &viewer->ledger->devices[device];
        for (uint32_t chunk = 0; chunk < on->room; chunk++)
            if (on->cells[chunk] && !reserve_seen(viewer, device, chunk))
                return false;
    }
    return true;
}

ms_peak_tracker *ms_peak_tracker_open(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    ms_peak_tracker *viewer = ms__alloc(ledger->watch, sizeof *viewer);
    if (viewer) {
        memset(viewer, 0, sizeof *viewer);
        viewer->ledger = ledger;
        for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
            begin_view(ledger, &viewer->views[device], device);
        if (see_all(viewer)) {
            viewer->next = ledger->viewers;
            ledger->viewers = viewer;
        } else {
            free_viewer(viewer);
            viewer = NULL;
        }
    }
    if (!viewer)
        ms__ledger_count_lost(ledger);
    ms__unlock(&ledger->lock);
    return viewer;
}

void ms_peak_tracker_close(ms_peak_tracker *viewer)
{
    if (!viewer)
        return;
    ms_ledger *ledger = viewer->ledger;
    ms__lock(&ledger->lock);
    for (ms_peak_tracker **at = &ledger->viewers; *at; at = &(*at)->next)
        if (*at == viewer) {
            *at = viewer->next;
            break;
        }
    free_viewer(viewer);
    ms__unlock(&ledger->lock);
}

void ms_peak_tracker_reset(ms_peak_tracker *viewer)
{
    ms_ledger *ledger = viewer->ledger;
    ms__lock(&ledger->lock);
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        begin_view(ledger, &viewer->views[device], device);
    ms__unlock(&ledger->lock);
}

ms_peak ms_peak_tracker_peak(ms_peak_tracker *viewer, uint32_t device)
{
    if (device >= MS_MAX_DEVICES)
        return (ms_peak){0};
    ms__lock(&viewer->ledger->lock);
    ms_peak peak = viewer->views[device].peak;
    ms__unlock(&viewer->ledger->lock);
    return peak;
}

static const int64_t *cells_of(const struct ms__device *on, ms_path path)
{
    uint32_t chunk = path / MS__CELL_PATHS;
    return chunk < on->room && on->cells[chunk] ? &on->cells[chunk]->now[ms__cell_at(path, 0)] : NULL;
}

ms_sums ms_peak_tracker_peak_of(ms_peak_tracker *viewer, uint32_t device, ms_path path)
{
    ms_ledger *ledger = viewer->ledger;
    ms_sums sums = {{0}};
    if (device >= MS_MAX_DEVICES)
        return sums;
    ms__lock(&ledger->lock);
    const int64_t *now = cells_of(&ledger->devices[device], path);
    const struct ms__view *view = &viewer->views[device];
    for (uint32_t category = 0; now && category < MS_CATEGORY_COUNT; category++) {
        const struct ms__saved *saved = &view->seen[path / MS__CELL_PATHS]->cells[ms__cell_at(path, category)];
        sums.of[category] = saved->when > view->peak_time ? saved->at : now[category];
    }
    ms__unlock(&ledger->lock);
    return sums;
}

ms_sums ms_ledger_now_of(ms_ledger *ledger, uint32_t device, ms_path path)
{
    ms_sums sums = {{0}};
    if (device >= MS_MAX_DEVICES)
        return sums;
    ms__lock(&ledger->lock);
    const int64_t *now = cells_of(&ledger->devices[device], path);
    if (now)
        memcpy(sums.of, now, sizeof sums.of);
    ms__unlock(&ledger->lock);
    return sums;
}
