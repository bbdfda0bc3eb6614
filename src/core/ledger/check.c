/* check.c - whether the ledger's invariants hold. For tests: it reads every block and every total. */
#include "core/ledger/kinds.h"

#include <string.h>

static ms_sums sum_totals(const struct ms__device_totals *totals)
{
    ms_sums sums = {{0}};
    for (uint32_t chunk = 0; chunk < totals->room; chunk++)
        for (uint32_t row = 0; totals->chunks[chunk] && row < MS__PATHS_PER_CHUNK; row++)
            for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++)
                sums.of[category] += totals->chunks[chunk]->bytes[ms__total_index(row, category)];
    return sums;
}

static ms_sums sum_totals_at_peak(const struct ms__device_totals *totals, const struct ms__device_peak *peak)
{
    ms_sums sums = {{0}};
    for (uint32_t chunk = 0; chunk < totals->room; chunk++)
        for (uint32_t row = 0; totals->chunks[chunk] && row < MS__PATHS_PER_CHUNK; row++)
            for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++) {
                uint32_t index = ms__total_index(row, category);
                sums.of[category] += ms__total_at_peak(peak, chunk, index, totals->chunks[chunk]->bytes[index]);
            }
    return sums;
}

static const char *check_device(const ms_ledger *ledger, uint32_t device)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    ms_sums blocks = {{0}}, outside = {{0}}, paths = sum_totals(totals);
    int64_t total = 0;
    const struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&ledger->blocks, &at)) != NULL;) {
        if (block->device != device)
            continue;
        blocks.of[block->category] += (int64_t)block->bytes;
        outside.of[block->category] += block->outside ? (int64_t)block->bytes : 0;
        total += (int64_t)block->bytes;
    }
    if (total != totals->total)
        return "total = sum over live blocks";
    if (memcmp(&blocks, &totals->now, sizeof blocks) != 0)
        return "a category = sum over its live blocks";
    if (memcmp(&outside, &ledger->outside[device], sizeof outside) != 0)
        return "outside = sum over live blocks from outside";
    return memcmp(&paths, &totals->now, sizeof paths) == 0 ? NULL : "a category = sum over paths";
}

static const char *check_peak(const ms_ledger *ledger, const ms_peak_tracker *tracker, uint32_t device)
{
    const struct ms__device_peak *peak = &tracker->devices[device];
    ms_sums paths = tracker->without_paths ? peak->peak.sums : sum_totals_at_peak(&ledger->totals[device], peak);
    if (tracker->without_paths && tracker->next && !tracker->next->without_paths)
        return "peak trackers without paths come last";
    if (ms__sums_total(&peak->peak.sums) != peak->peak.bytes)
        return "a peak = sum over its categories";
    return memcmp(&paths, &peak->peak.sums, sizeof paths) == 0 ? NULL : "a peak's category = sum over paths";
}

const char *ms_ledger_check(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    const char *fault = ms__block_table_check(&ledger->blocks);
    for (uint32_t device = 0; !fault && device < MS_MAX_DEVICES; device++) {
        fault = check_device(ledger, device);
        if (!fault)
            fault = ms__kinds_check(ledger, device);
        for (const ms_peak_tracker *tracker = ledger->trackers; !fault && tracker; tracker = tracker->next)
            fault = check_peak(ledger, tracker, device);
    }
    ms__unlock(&ledger->lock);
    return fault;
}
