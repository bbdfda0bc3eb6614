/* reported_backwards.c - see reported_backwards.h. */
#include "core/ledger/reported_backwards.h"

#include <string.h>

void ms__reported_backwards_grow(ms_ledger *ledger, uint32_t device)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    for (uint32_t i = 0; i < ledger->reported_backward_count; i++) {
        struct ms__call_stats *stats = ms__call_stats_find(ledger, &ledger->reported_backwards[i], false);
        if (!stats)
            continue;
        if (device >= stats->devices && !ms__call_stats_widen(ledger, stats)) {
            ms__ledger_count_lost(ledger);
            continue;
        }
        ms_sums *sums = ms__call_sums(stats, MS_PEAK_BW, device);
        if (totals->total > ms__sums_total(sums))
            *sums = totals->now;
    }
}

void ms__reported_backwards_close(ms_ledger *ledger)
{
    ms__free(ledger->watch, ledger->reported_backwards);
    ledger->reported_backwards = NULL;
    ledger->reported_backward_count = ledger->reported_backward_room = 0;
}

static bool reserve_reported_backward(ms_ledger *ledger)
{
    uint32_t count = ledger->reported_backward_count;
    if (count < ledger->reported_backward_room)
        return true;
    uint32_t room = count ? count * 2 : 32;
    struct ms__call_ref *grown = ms__alloc(ledger->watch, room * sizeof *grown);
    if (!grown)
        return false;
    if (count)
        memcpy(grown, ledger->reported_backwards, count * sizeof *grown);
    ms__free(ledger->watch, ledger->reported_backwards);
    ledger->reported_backwards = grown;
    ledger->reported_backward_room = room;
    return true;
}

/* The latest call of the path whose backward has not begun, plus 1; the first call if each has; 0 if there is none. */
static uint32_t find_call_for_backward(const struct ms__path_stats *path)
{
    uint32_t at = path ? path->forward.count : 0;
    while (at > 1 && path->forward.calls[at - 1].recorded & 1u << MS_PRE_BW)
        at--;
    return at;
}

void ms_backward_enter(ms_thread *thread, ms_path path)
{
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (!ledger)
        return;
    ms__lock(&ledger->lock);
    const struct ms__path_stats *found = MS__PEEK(ledger->attached) ? ms__path_stats_find(ledger, path) : NULL;
    uint32_t at = find_call_for_backward(found);
    if (at && !reserve_reported_backward(ledger)) {
        ms__ledger_count_lost(ledger);
    } else if (at) {
        struct ms__call_stats *stats = &found->forward.calls[at - 1];
        if (!(stats->recorded & 1u << MS_PRE_BW)) {
            ms__call_stats_record(ledger, stats, MS_PRE_BW);
            ms__call_stats_record(ledger, stats, MS_PEAK_BW);
        }
        ledger->reported_backwards[ledger->reported_backward_count++] =
            (struct ms__call_ref){.iteration = found->iteration, .path = path, .index = at - 1};
    }
    ms__unlock(&ledger->lock);
}

void ms_backward_leave(ms_thread *thread, ms_path path)
{
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (!ledger)
        return;
    ms__lock(&ledger->lock);
    struct ms__call_ref *open = ledger->reported_backwards;
    uint32_t at = ledger->reported_backward_count;
    while (at && open[at - 1].path != path)
        at--;
    if (at && MS__PEEK(ledger->attached)) {
        struct ms__call_stats *stats = ms__call_stats_find(ledger, &open[at - 1], false);
        if (stats)
            ms__call_stats_record(ledger, stats, MS_POST_BW);
        memmove(&open[at - 1], &open[at], (ledger->reported_backward_count - at) * sizeof *open);
        ledger->reported_backward_count--;
    }
    ms__unlock(&ledger->lock);
}
