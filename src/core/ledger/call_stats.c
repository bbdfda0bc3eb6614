/* call_stats.c - where moments are kept: the entries of each path's calls, and reading them. */
#include "core/ledger/ledger.h"

#include <string.h>

const char *ms_call_state_name(ms_call_state moment)
{
    switch (moment) {
#define X(name, text) \
    case MS_##name:   \
        return text;
        MS_CALL_STATES(X)
#undef X
    default:
        return "no such moment";
    }
}

struct ms__stat *ms__stat_at(const ms_ledger *ledger, ms_path path)
{
    uint32_t chunk = path / MS__CELL_PATHS;
    if (chunk >= ledger->stats_room || !ledger->stats[chunk])
        return NULL;
    return &ledger->stats[chunk][path % MS__CELL_PATHS];
}

struct ms__stat *ms__stats_grow(ms_ledger *ledger, ms_path path)
{
    uint32_t chunk = path / MS__CELL_PATHS;
    struct ms__stat *stats = NULL;
    if (ms__directory_grow(ledger->watch, (void ***)&ledger->stats, &ledger->stats_room, chunk))
        stats = ms__alloc(ledger->watch, MS__CELL_PATHS * sizeof *stats);
    if (!stats)
        return NULL;
    memset(stats, 0, MS__CELL_PATHS * sizeof *stats);
    ledger->stats[chunk] = stats;
    return &stats[path % MS__CELL_PATHS];
}

static void free_entries(ms_watch *watch, struct ms__entries *entries)
{
    for (uint32_t i = 0; i < entries->room; i++)
        ms__free(watch, entries->at[i].sums);
    ms__free(watch, entries->at);
}

void ms__stats_close(ms_ledger *ledger)
{
    ms_watch *watch = ledger->watch;
    for (uint32_t chunk = 0; chunk < ledger->stats_room; chunk++)
        for (uint32_t row = 0; ledger->stats[chunk] && row < MS__CELL_PATHS; row++) {
            free_entries(watch, &ledger->stats[chunk][row].forward);
            free_entries(watch, &ledger->stats[chunk][row].again);
        }
    for (uint32_t chunk = 0; chunk < ledger->stats_room; chunk++)
        ms__free(watch, ledger->stats[chunk]);
    ms__free(watch, ledger->stats);
    ms__free(watch, ledger->loose);
    ledger->stats = NULL;
    ledger->loose = NULL;
    ledger->stats_room = ledger->loose_count = ledger->loose_room = 0;
}

MS__RARE bool grow_entries(ms_watch *watch, struct ms__entries *entries)
{
    uint32_t room = entries->room ? entries->room * 2 : 1;
    struct ms__entry *at = ms__alloc(watch, room * sizeof *at);
    if (!at)
        return false;
    memset(at, 0, room * sizeof *at);
    if (entries->room)
        memcpy(at, entries->at, entries->room * sizeof *at);
    ms__free(watch, entries->at);
    entries->at = at;
    entries->room = room;
    return true;
}

bool ms__entry_widen(ms_ledger *ledger, struct ms__entry *entry)
{
    uint32_t devices = ledger->device_count ? ledger->device_count : 1;
    ms_sums *sums = ms__alloc(ledger->watch, (size_t)MS__ENTRY_MOMENTS * devices * sizeof *sums);
    if (!sums)
        return false;
    memset(sums, 0, (size_t)MS__ENTRY_MOMENTS * devices * sizeof *sums);
    for (uint32_t moment = 0; moment < MS__ENTRY_MOMENTS && entry->devices; moment++)
        memcpy(sums + (size_t)moment * devices, ms__sums_of(entry, moment, 0), entry->devices * sizeof *sums);
    ms__free(ledger->watch, entry->sums);
    entry->sums = sums;
    entry->devices = devices;
    return true;
}

/* A new entry with room for every device known. NULL when memory runs out. */
struct ms__entry *ms__entry_append(ms_ledger *ledger, struct ms__entries *entries)
{
    if (entries->count == entries->room && !grow_entries(ledger->watch, entries))
        return NULL;
    struct ms__entry *entry = &entries->at[entries->count];
    if ((!entry->sums || entry->devices < ledger->device_count) && !ms__entry_widen(ledger, entry))
        return NULL;
    entry->has = 0;
    entry->input = entry->output = 0;
    entries->count++;
    return entry;
}

/* What is held now is what was held at this moment. A device that came since the entry was
 * made may not fit: then it is lost. */
void ms__entry_note(ms_ledger *ledger, struct ms__entry *entry, uint32_t moment)
{
    if (MS__UNLIKELY(entry->devices < ledger->device_count) && !ms__entry_widen(ledger, entry)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    for (uint32_t device = 0; device < ledger->device_count; device++)
        *ms__sums_of(entry, moment, device) = ledger->devices[device].now;
    ms__entry_mark(ledger, entry, moment);
}

/* The entry a span stands for; NULL if a newer round took its place. */
struct ms__entry *ms__entry_of(const ms_ledger *ledger, const struct ms__span *span)
{
    struct ms__stat *stat = ms__stat_at(ledger, span->path);
    struct ms__entries *entries = !stat ? NULL : span->kind == MS__SPAN_AGAIN ? &stat->again : &stat->forward;
    return entries && stat->round == span->round && span->entry < entries->count ? &entries->at[span->entry] : NULL;
}

int64_t ms__total_of(const ms_sums *sums)
{
    int64_t total = 0;
    for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++)
        total += sums->of[category];
    return total;
}

static struct ms__entries *entries_for(const ms_ledger *ledger, ms_path path, ms_call_state moment, uint32_t *slot)
{
    struct ms__stat *stat = ms__stat_at(ledger, path);
    bool again = moment == MS_PRE_FW_AC || moment == MS_POST_FW_AC;
    *slot = again ? moment - MS_PRE_FW_AC : moment;
    return !stat || moment >= MS_CALL_STATE_COUNT ? NULL : again ? &stat->again : &stat->forward;
}

size_t ms_call_snapshot_count(ms_ledger *ledger, ms_path path, ms_call_state moment)
{
    size_t count = 0;
    uint32_t slot;
    ms__lock(&ledger->lock);
    ms__seats_bring_up_to_date(ledger);
    const struct ms__entries *entries = entries_for(ledger, path, moment, &slot);
    for (uint32_t i = 0; entries && i < entries->count; i++)
        count += entries->at[i].has >> slot & 1;
    ms__unlock(&ledger->lock);
    return count;
}

bool ms_call_snapshot_at(ms_ledger *ledger, ms_path path, ms_call_state moment, size_t index, uint32_t device,
                         ms_sums *sums, uint64_t *when)
{
    bool found = false;
    uint32_t slot;
    ms__lock(&ledger->lock);
    ms__seats_bring_up_to_date(ledger);
    struct ms__entries *entries = entries_for(ledger, path, moment, &slot);
    bool on = entries && entries->read_moment == slot && entries->read_index <= index;
    uint32_t i = on ? entries->read_at : 0;
    size_t left = on ? index - entries->read_index : index;
    for (; !found && entries && i < entries->count; i++) {
        const struct ms__entry *entry = &entries->at[i];
        if (!(entry->has >> slot & 1) || left-- != 0)
            continue;
        found = true;
        entries->read_moment = slot;
        entries->read_index = (uint32_t)index;
        entries->read_at = i;
        *sums = device < entry->devices ? *ms__sums_of(entry, slot, device) : (ms_sums){{0}};
        if (when)
            *when = entry->when[slot];
    }
    ms__unlock(&ledger->lock);
    return found;
}

void ms_call_sizes(ms_ledger *ledger, ms_path path, uint64_t *input, uint64_t *output)
{
    ms__lock(&ledger->lock);
    const struct ms__stat *stat = ms__stat_at(ledger, path);
    const struct ms__entry *entry = stat && stat->forward.count ? &stat->forward.at[stat->forward.count - 1] : NULL;
    *input = entry ? entry->input : 0;
    *output = entry ? entry->output : 0;
    ms__unlock(&ledger->lock);
}
