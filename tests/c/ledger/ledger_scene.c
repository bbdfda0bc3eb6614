/* ledger_scene.c - see ledger_scene.h. */
#include "ledger_scene.h"

struct scene scene;
ms_ledger *ledger;
struct heap ledger_heap;

static uint64_t steps;

struct lane *ledger_start(void)
{
    ledger_heap = (struct heap){0};
    ms_options options = heap_options(&ledger_heap);
    options.calls_kept = 1024;
    scene_open(&scene, &options);
    ledger = ms_ledger_open(scene.watch);
    CHECK(ledger);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    return scene_lane(&scene, 7);
}

void ledger_end(void)
{
    const char *fault = ms_ledger_check(ledger);
    if (fault)
        FAIL("this does not hold: %s", fault);
    CHECK_EQ(ms_ledger_lost(ledger), 0);
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    CHECK_EQ(ms_watch_lost(scene.watch), 0);
    scene_close(&scene);
    CHECK_EQ(ledger_heap.live, 0);
}

static void done(int error)
{
    if (error != MS_OK)
        FAIL("a block's event gave %d: %s", error, ms_error_text(error));
    bool look = ++steps <= 300 || !(steps & (steps - 1));
    const char *fault = look ? ms_ledger_check(ledger) : NULL;
    if (fault)
        FAIL("this does not hold: %s", fault);
}

void add_on(const struct lane *lane, uint64_t address, uint64_t bytes, uint32_t device)
{
    done(ms_block_add(ledger, lane ? lane->thread : NULL, address, bytes, device));
}

void add(const struct lane *lane, uint64_t address, uint64_t bytes)
{
    add_on(lane, address, bytes, 0);
}

void add_as(uint64_t address, uint64_t bytes, ms_category category, ms_path path)
{
    done(ms_block_add_as(ledger, NULL, address, bytes, 0, category, path, false));
}

void add_outside(uint64_t address, uint64_t bytes, ms_category category, ms_path path)
{
    done(ms_block_add_as(ledger, NULL, address, bytes, 0, category, path, true));
}

void drop(uint64_t address)
{
    done(ms_block_drop(ledger, address));
}

void claim(uint64_t address, ms_category category, ms_path path)
{
    done(ms_block_claim(ledger, address, category, path));
}

ms_sums held(void)
{
    return ms_ledger_now(ledger, 0);
}

ms_sums held_by(ms_path path)
{
    return ms_ledger_now_of(ledger, 0, path);
}

int64_t total(ms_sums sums)
{
    int64_t all = 0;
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        all += sums.of[i];
    return all;
}

ms_sums call_snapshot(ms_path path, ms_call_state state, size_t index)
{
    ms_sums sums = {{0}};
    if (!ms_call_snapshot_at(ledger, path, state, index, 0, &sums, NULL))
        FAIL("path %u has no snapshot %zu of %s", path, index, ms_call_state_name(state));
    return sums;
}

uint64_t call_snapshot_time(ms_path path, ms_call_state state, size_t index)
{
    ms_sums sums;
    uint64_t time = 0;
    if (!ms_call_snapshot_at(ledger, path, state, index, 0, &sums, &time))
        FAIL("path %u has no snapshot %zu of %s", path, index, ms_call_state_name(state));
    return time;
}

void ledger_check_sums(const char *file, int line, const char *what, ms_sums got, ms_sums wanted)
{
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        if (got.of[i] != wanted.of[i])
            runner_fail(file, line, "%s: %s is %lld, not %lld", what, ms_category_name((ms_category)i),
                        (long long)got.of[i], (long long)wanted.of[i]);
}

ms_peak_tracker *open_tracker(void)
{
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    CHECK(tracker);
    return tracker;
}

ms_sums peak_of(ms_peak_tracker *tracker, ms_path path)
{
    return ms_peak_tracker_peak_of(tracker, 0, path);
}
