/* ledger_scene.h - a scene with a ledger attached, so that a test reads as a list of events. All memory is
 * counted. ms_ledger_check() runs after each of the first 300 events, then ever more rarely.
 *
 *     struct lane *t = ledger_start();
 *     call(t, scene.a); add(t, 1, 100); leave_call(t);
 *     CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = 100);
 *     ledger_end(); */
#ifndef MS_TEST_LEDGER_SCENE_H
#define MS_TEST_LEDGER_SCENE_H

#include "heap.h"
#include "modscope_ledger.h"
#include "runner.h"
#include "scene.h"

extern struct scene scene;
extern ms_ledger *ledger;
extern struct heap ledger_heap;

/* Opens the scene, the ledger and one lane, whose id is 7; attaches the ledger. */
struct lane *ledger_start(void);
/* Closes everything, and fails the test if the sums are wrong, something was lost or memory leaked. */
void ledger_end(void);

/* Each of these fails the test unless the ledger returns MS_OK. The device is 0 unless it is given. */
void add(const struct lane *lane, uint64_t address, uint64_t bytes);
void add_on(const struct lane *lane, uint64_t address, uint64_t bytes, uint32_t device);
void add_as(uint64_t address, uint64_t bytes, ms_category category, ms_path path);
void add_outside(uint64_t address, uint64_t bytes, ms_category category, ms_path path);
void drop(uint64_t address);
void claim(uint64_t address, ms_category category, ms_path path);

/* Opens a peak tracker, or fails the test. */
ms_peak_tracker *open_tracker(void);
/* What a path held at its peak, on device 0. */
ms_sums peak_of(ms_peak_tracker *tracker, ms_path path);

/* Device 0, now. */
ms_sums held(void);
ms_sums held_by(ms_path path);
int64_t total(ms_sums sums);

/* A call snapshot of device 0, and its time; they fail the test if there is none. */
ms_sums call_snapshot(ms_path path, ms_call_state state, size_t index);
uint64_t call_snapshot_time(ms_path path, ms_call_state state, size_t index);

/* Fails the test unless the sums are these. Categories that are not given must be 0. */
#define CHECK_SUMS(got, ...) ledger_check_sums(__FILE__, __LINE__, #got, got, (ms_sums){{__VA_ARGS__}})
#define NOTHING [MS_OTHER] = 0
void ledger_check_sums(const char *file, int line, const char *what, ms_sums got, ms_sums wanted);

#endif
