/* call_stats.c - storing call stats. call_snapshots.c reads them for the ledger's users. */
#include "core/ledger/call_stats.h"
#include "core/ledger/chunk_array.h"

#include <string.h>

struct ms__path_stats *ms__path_stats_add(ms_ledger *ledger, ms_path path)
{
    uint32_t chunk = path / MS__PATHS_PER_CHUNK;
    struct ms__path_stats *stats = NULL;
    if (ms__chunk_array_grow(ledger->watch, (void ***)&ledger->path_stats, &ledger->path_stats_room, chunk))
        stats = ms__alloc(ledger->watch, MS__PATHS_PER_CHUNK * sizeof *stats);
    if (!stats)
        return NULL;
    memset(stats, 0, MS__PATHS_PER_CHUNK * sizeof *stats);
    ledger->path_stats[chunk] = stats;
    return &stats[path % MS__PATHS_PER_CHUNK];
}

static void free_list(ms_watch *watch, struct ms__call_stats_list *list)
{
    for (uint32_t i = 0; i < list->room; i++)
        ms__free(watch, list->calls[i].sums);
    ms__free(watch, list->calls);
}

void ms__path_stats_close(ms_ledger *ledger)
{
    ms_watch *watch = ledger->watch;
    for (uint32_t chunk = 0; chunk < ledger->path_stats_room; chunk++)
        for (uint32_t row = 0; ledger->path_stats[chunk] && row < MS__PATHS_PER_CHUNK; row++) {
            free_list(watch, &ledger->path_stats[chunk][row].forward);
            free_list(watch, &ledger->path_stats[chunk][row].recompute);
        }
    for (uint32_t chunk = 0; chunk < ledger->path_stats_room; chunk++)
        ms__free(watch, ledger->path_stats[chunk]);
    ms__free(watch, ledger->path_stats);
    ledger->path_stats = NULL;
    ledger->path_stats_room = 0;
}

void ms__path_stats_forget_calls(ms_ledger *ledger)
{
    for (uint32_t chunk = 0; chunk < ledger->path_stats_room; chunk++)
        for (uint32_t row = 0; ledger->path_stats[chunk] && row < MS__PATHS_PER_CHUNK; row++) {
            struct ms__path_stats *path = &ledger->path_stats[chunk][row];
            path->iteration = 0;
            path->forward.count = path->recompute.count = 0;
            path->forward.read_state = path->recompute.read_state = UINT32_MAX;
        }
}

MS__RARE bool grow_list(ms_watch *watch, struct ms__call_stats_list *list)
{
    uint32_t room = list->room ? list->room * 2 : 1;
    struct ms__call_stats *calls = ms__alloc(watch, room * sizeof *calls);
    if (!calls)
        return false;
    memset(calls, 0, room * sizeof *calls);
    if (list->room)
        memcpy(calls, list->calls, list->room * sizeof *calls);
    ms__free(watch, list->calls);
    list->calls = calls;
    list->room = room;
    return true;
}

bool ms__call_stats_widen(ms_ledger *ledger, struct ms__call_stats *stats)
{
    uint32_t devices = ledger->device_count ? ledger->device_count : 1;
    ms_sums *sums = ms__alloc(ledger->watch, (size_t)MS__STATES_PER_CALL * devices * sizeof *sums);
    if (!sums)
        return false;
    memset(sums, 0, (size_t)MS__STATES_PER_CALL * devices * sizeof *sums);
    for (uint32_t state = 0; state < MS__STATES_PER_CALL && stats->devices; state++)
        memcpy(sums + (size_t)state * devices, ms__call_sums(stats, state, 0), stats->devices * sizeof *sums);
    ms__free(ledger->watch, stats->sums);
    stats->sums = sums;
    stats->devices = devices;
    return true;
}

struct ms__call_stats *ms__call_stats_append(ms_ledger *ledger, struct ms__call_stats_list *list)
{
    if (list->count == list->room && !grow_list(ledger->watch, list))
        return NULL;
    struct ms__call_stats *stats = &list->calls[list->count];
    if ((!stats->sums || stats->devices < ledger->device_count) && !ms__call_stats_widen(ledger, stats))
        return NULL;
    stats->recorded = 0;
    stats->input = stats->output = 0;
    list->count++;
    return stats;
}

void ms__call_stats_record(ms_ledger *ledger, struct ms__call_stats *stats, uint32_t state)
{
    if (MS__UNLIKELY(stats->devices < ledger->device_count) && !ms__call_stats_widen(ledger, stats)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    for (uint32_t device = 0; device < ledger->device_count; device++)
        *ms__call_sums(stats, state, device) = ledger->totals[device].now;
    ms__call_stats_mark(ledger, stats, state);
}

struct ms__call_stats *ms__call_stats_find(const ms_ledger *ledger, const struct ms__call_ref *call, bool recompute)
{
    struct ms__path_stats *path = ms__path_stats_find(ledger, call->path);
    struct ms__call_stats_list *list = !path ? NULL : recompute ? &path->recompute : &path->forward;
    return list && path->iteration == call->iteration && call->index < list->count ? &list->calls[call->index] : NULL;
}
