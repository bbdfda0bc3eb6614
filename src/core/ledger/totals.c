/* totals.c - reading what is allocated now. peaks.h changes it. */
#include "core/ledger/ledger.h"

#include <string.h>

const char *ms_category_name(ms_category category)
{
    switch (category) {
#define X(name, text) \
    case MS_##name:   \
        return text;
        MS_CATEGORIES(X)
#undef X
    default:
        return "no such category";
    }
}

int64_t ms__sums_total(const ms_sums *sums)
{
    int64_t total = 0;
    for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++)
        total += sums->of[category];
    return total;
}

void ms__totals_close(ms_ledger *ledger)
{
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        struct ms__device_totals *totals = &ledger->totals[device];
        for (uint32_t chunk = 0; chunk < totals->room; chunk++)
            ms__free(ledger->watch, totals->chunks[chunk]);
        ms__free(ledger->watch, totals->chunks);
        *totals = (struct ms__device_totals){0};
    }
}

uint32_t ms_ledger_devices(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint32_t count = ledger->device_count;
    ms__unlock(&ledger->lock);
    return count;
}

static ms_sums copy_sums(ms_ledger *ledger, const ms_sums *sums)
{
    ms__lock(&ledger->lock);
    ms_sums copy = *sums;
    ms__unlock(&ledger->lock);
    return copy;
}

ms_sums ms_ledger_now(ms_ledger *ledger, uint32_t device)
{
    return device < MS_MAX_DEVICES ? copy_sums(ledger, &ledger->totals[device].now) : (ms_sums){{0}};
}

ms_sums ms_ledger_outside(ms_ledger *ledger, uint32_t device)
{
    return device < MS_MAX_DEVICES ? copy_sums(ledger, &ledger->outside[device]) : (ms_sums){{0}};
}

ms_sums ms_ledger_now_of(ms_ledger *ledger, uint32_t device, ms_path path)
{
    ms_sums sums = {{0}};
    if (device >= MS_MAX_DEVICES)
        return sums;
    ms__lock(&ledger->lock);
    const int64_t *now = ms__totals_of_path(&ledger->totals[device], path);
    if (now)
        memcpy(sums.of, now, sizeof sums.of);
    ms__unlock(&ledger->lock);
    return sums;
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
    uint64_t count = ledger->parameters_dropped;
    ms__unlock(&ledger->lock);
    return count;
}

uint64_t ms_ledger_block_memory(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint64_t bytes = ms__block_table_bytes(&ledger->blocks);
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

uint64_t ms_ledger_step(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint64_t step = ledger->step;
    ms__unlock(&ledger->lock);
    return step;
}

uint64_t ms_ledger_lost(const ms_ledger *ledger)
{
    return atomic_load_explicit(&ledger->lost, memory_order_relaxed);
}

void ms_ledger_count_lost(ms_ledger *ledger)
{
    ms__ledger_count_lost(ledger);
}
