/* totals.c - what is held now, and whether the sums are right. */
#include "core/ledger/ledger.h"

#include <string.h>

uint32_t ms_ledger_devices(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint32_t count = ledger->device_count;
    ms__unlock(&ledger->lock);
    return count;
}

static ms_sums sums_of(ms_ledger *ledger, const ms_sums *sums)
{
    ms__lock(&ledger->lock);
    ms_sums copy = *sums;
    ms__unlock(&ledger->lock);
    return copy;
}

ms_sums ms_ledger_now(ms_ledger *ledger, uint32_t device)
{
    return device < MS_MAX_DEVICES ? sums_of(ledger, &ledger->devices[device].now) : (ms_sums){{0}};
}

ms_sums ms_ledger_outside(ms_ledger *ledger, uint32_t device)
{
    return device < MS_MAX_DEVICES ? sums_of(ledger, &ledger->outside[device]) : (ms_sums){{0}};
}

uint64_t ms_ledger_blocks(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint64_t count = ledger->blocks.count;
    ms__unlock(&ledger->lock);
    return count;
}

uint64_t ms_ledger_parameters_dropped(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint64_t count = ledger->replaced;
    ms__unlock(&ledger->lock);
    return count;
}

uint64_t ms_ledger_block_memory(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint64_t bytes = ms__blocks_memory(&ledger->blocks);
    ms__unlock(&ledger->lock);
    return bytes;
}

uint64_t ms_ledger_time(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint64_t time = ledger->time + 1;
    ms__unlock(&ledger->lock);
    return time;
}

/* ---- for tests ---- */
static const char *device_broken(ms_ledger *ledger, uint32_t device)
{
    const struct ms__device *on = &ledger->devices[device];
    ms_sums blocks = {{0}}, outside = {{0}}, cells = {{0}};
    int64_t total = 0;
    const struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&ledger->blocks, &at)) != NULL;) {
        if (block->device != device)
            continue;
        blocks.of[block->category] += (int64_t)block->bytes;
        outside.of[block->category] += block->outside ? (int64_t)block->bytes : 0;
        total += (int64_t)block->bytes;
    }
    for (uint32_t chunk = 0; chunk < on->room; chunk++)
        for (uint32_t row = 0; on->cells[chunk] && row < MS__CELL_PATHS; row++)
            for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++)
                cells.of[category] += on->cells[chunk]->now[ms__cell_at(row, category)];
    if (total != on->total)
        return "total = sum over live blocks";
    if (memcmp(&blocks, &on->now, sizeof blocks) != 0)
        return "a category = sum over its live blocks";
    if (memcmp(&outside, &ledger->outside[device], sizeof outside) != 0)
        return "outside = sum over live blocks from outside";
    return memcmp(&cells, &on->now, sizeof cells) == 0 ? NULL : "a category = sum over its cells";
}

static const char *peak_broken(const ms_ledger *ledger, const ms_peak_tracker *viewer, uint32_t device)
{
    const struct ms__device *on = &ledger->devices[device];
    const struct ms__view *view = &viewer->views[device];
    ms_sums cells = {{0}};
    int64_t total = 0;
    for (uint32_t chunk = 0; chunk < on->room; chunk++)
        for (uint32_t row = 0; on->cells[chunk] && row < MS__CELL_PATHS; row++)
            for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++) {
                uint32_t at = ms__cell_at(row, category);
                const struct ms__saved *saved = &view->seen[chunk]->cells[at];
                cells.of[category] += saved->when > view->peak_time ? saved->at : on->cells[chunk]->now[at];
            }
    for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++)
        total += view->peak.sums.of[category];
    if (total != view->peak.bytes)
        return "a peak = sum over its categories";
    return memcmp(&cells, &view->peak.sums, sizeof cells) == 0 ? NULL : "a peak's category = sum over its cells";
}

const char *ms_ledger_check(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    const char *broken = ms__block_table_check(&ledger->blocks);
    for (uint32_t device = 0; !broken && device < MS_MAX_DEVICES; device++) {
        broken = device_broken(ledger, device);
        for (const ms_peak_tracker *viewer = ledger->viewers; !broken && viewer; viewer = viewer->next)
            broken = peak_broken(ledger, viewer, device);
    }
    ms__unlock(&ledger->lock);
    return broken;
}
