/* test_peaks.c - peaks by category and by path, for each peak tracker. */
#include "ledger_scene.h"

#include <stdio.h>

TEST(a_peak_is_the_most_that_was_held)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 0);
    call(t, scene.a);
    add(t, 1, 100);
    call(t, scene.b);
    add(t, 2, 50);
    drop(1);
    add(t, 3, 20);
    leave_call(t);
    CHECK_SUMS(held(), [MS_ACTIVATION] = 70);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 150);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_ACTIVATION] = 150);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_ACTIVATION] = 100);
    CHECK_SUMS(peak_of(tracker, scene.b), [MS_ACTIVATION] = 50);
    CHECK_SUMS(peak_of(tracker, scene.c), NOTHING);
    CHECK_SUMS(peak_of(tracker, MS_GLOBAL), NOTHING);
    ledger_end();
}

TEST(a_peak_is_by_category)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    uint64_t a = small_call(t, scene.a, 1);
    add_as(1, 1000, MS_PARAMETER, scene.a);
    node(t, t, a);
    add(t, 2, 200);
    drop(1);
    add(t, 3, 30);
    leave_node(t);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_PARAMETER] = 1000, [MS_TEMP] = 200);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_PARAMETER] = 1000, [MS_TEMP] = 200);
    ledger_end();
}

TEST(a_higher_peak_replaces_the_old_one)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    call(t, scene.a);
    add(t, 1, 100);
    leave_call(t);
    drop(1);
    call(t, scene.d);
    add(t, 2, 99);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_ACTIVATION] = 100);
    CHECK_SUMS(peak_of(tracker, scene.d), NOTHING);
    add(t, 3, 2);
    CHECK_SUMS(peak_of(tracker, scene.a), NOTHING);
    CHECK_SUMS(peak_of(tracker, scene.d), [MS_ACTIVATION] = 101);
    leave_call(t);
    ledger_end();
}

TEST(a_path_that_did_not_change_for_many_peaks_is_right_at_the_last_one)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    call(t, scene.a);
    add(t, 1, 100);
    leave_call(t);
    call(t, scene.d);
    for (uint64_t i = 0; i < 50; i++) {
        for (uint64_t k = 0; k <= i; k++)
            add(t, 10 + k, 3);
        for (uint64_t k = 0; k <= i; k++)
            drop(10 + k);
    }
    leave_call(t);
    drop(1);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 250);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_ACTIVATION] = 100);
    CHECK_SUMS(peak_of(tracker, scene.d), [MS_ACTIVATION] = 150);
    CHECK_SUMS(held_by(scene.a), NOTHING);
    ledger_end();
}

TEST(a_peak_begins_at_what_is_held)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add(t, 1, 100);
    drop(1);
    add(t, 2, 30);
    ms_peak_tracker *tracker = open_tracker();
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 30);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_ACTIVATION] = 30);
    drop(2);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 30);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_ACTIVATION] = 30);
    add(t, 3, 29);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 30);
    add(t, 4, 2);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 31);
    leave_call(t);
    ledger_end();
}

TEST(after_a_reset_the_peak_begins_at_what_is_held)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    call(t, scene.a);
    add(t, 1, 100);
    call(t, scene.b);
    add(t, 2, 20);
    drop(1);
    ms_peak_tracker_reset(tracker);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 20);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_ACTIVATION] = 20);
    CHECK_SUMS(peak_of(tracker, scene.a), NOTHING);
    CHECK_SUMS(peak_of(tracker, scene.b), [MS_ACTIVATION] = 20);
    add(t, 3, 5);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 25);
    CHECK_SUMS(peak_of(tracker, scene.b), [MS_ACTIVATION] = 25);
    drop(2);
    drop(3);
    ms_peak_tracker_reset(tracker);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 0);
    CHECK_SUMS(peak_of(tracker, scene.b), NOTHING);
    ledger_end();
}

TEST(each_peak_tracker_has_its_own_peak)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *first = open_tracker();
    call(t, scene.a);
    add(t, 1, 100);
    drop(1);
    leave_call(t);
    ms_peak_tracker *second = open_tracker();
    call(t, scene.d);
    add(t, 2, 60);
    CHECK_EQ(ms_peak_tracker_peak(first, 0).bytes, 100);
    CHECK_EQ(ms_peak_tracker_peak(second, 0).bytes, 60);
    CHECK_SUMS(peak_of(first, scene.a), [MS_ACTIVATION] = 100);
    CHECK_SUMS(peak_of(first, scene.d), NOTHING);
    CHECK_SUMS(peak_of(second, scene.a), NOTHING);
    CHECK_SUMS(peak_of(second, scene.d), [MS_ACTIVATION] = 60);
    ms_peak_tracker_reset(first);
    drop(2);
    add(t, 3, 61);
    CHECK_EQ(ms_peak_tracker_peak(first, 0).bytes, 61);
    CHECK_EQ(ms_peak_tracker_peak(second, 0).bytes, 61);
    leave_call(t);
    ledger_end();
}

TEST(closing_a_peak_tracker_does_not_change_the_others)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *trackers[5];
    call(t, scene.a);
    for (uint64_t i = 0; i < 5; i++) {
        trackers[i] = open_tracker();
        add(t, 1 + i, 10);
    }
    ms_peak_tracker_close(trackers[0]);
    ms_peak_tracker_close(trackers[2]);
    ms_peak_tracker_close(trackers[4]);
    add(t, 10, 5);
    drop(1);
    for (uint64_t i = 1; i < 5; i += 2) {
        CHECK_EQ(ms_peak_tracker_peak(trackers[i], 0).bytes, 55);
        CHECK_SUMS(peak_of(trackers[i], scene.a), [MS_ACTIVATION] = 55);
    }
    ms_peak_tracker *late = open_tracker();
    CHECK_EQ(ms_peak_tracker_peak(late, 0).bytes, 45);
    CHECK_SUMS(peak_of(late, scene.a), [MS_ACTIVATION] = 45);
    leave_call(t);
    ledger_end();
}

/* What a closed peak tracker had saved must not show in one that is opened at the same address. */
TEST(peak_trackers_opened_and_closed_in_turn_are_independent)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *kept = open_tracker();
    call(t, scene.a);
    for (uint64_t i = 1; i <= 200; i++) {
        add(t, 1, 1000 - i);
        ms_peak_tracker *tracker = open_tracker();
        CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 1000 - (int64_t)i);
        drop(1);
        add(t, 2, 5);
        ms_peak_tracker_reset(tracker);
        CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 5);
        CHECK_SUMS(peak_of(tracker, scene.a), [MS_ACTIVATION] = 5);
        drop(2);
        ms_peak_tracker_close(tracker);
    }
    CHECK_EQ(ms_peak_tracker_peak(kept, 0).bytes, 999);
    leave_call(t);
    ledger_end();
}

TEST(each_device_has_its_own_peak)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    call(t, scene.a);
    add_on(t, 1, 100, 0);
    add_on(t, 2, 20, 3);
    drop(1);
    add_on(t, 3, 40, 3);
    add_on(t, 4, 10, 0);
    drop(2);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 100);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 3).bytes, 60);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 1).bytes, 0);
    CHECK_SUMS(ms_peak_tracker_peak_of(tracker, 0, scene.a), [MS_ACTIVATION] = 100);
    CHECK_SUMS(ms_peak_tracker_peak_of(tracker, 3, scene.a), [MS_ACTIVATION] = 60);
    CHECK_SUMS(ms_peak_tracker_peak_of(tracker, 2, scene.a), NOTHING);
    leave_call(t);
    ledger_end();
}

/* ---- which thread, owner and step ---- */

TEST(a_peak_names_the_running_path_and_the_block_s_owner)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    call(t, scene.a);
    add(t, 1, 100);
    ms_peak peak = ms_peak_tracker_peak(tracker, 0);
    CHECK_EQ(peak.phase, MS_FORWARD);
    CHECK_EQ(peak.running, scene.a);
    CHECK_EQ(peak.owner, scene.a);
    CHECK_EQ(ms_block_add_as(ledger, t->thread, 2, 5, 0, MS_BUFFER, scene.d, false), MS_OK);
    make(t, 1);
    leave_call(t);
    peak = ms_peak_tracker_peak(tracker, 0);
    CHECK_EQ(peak.phase, MS_FORWARD);
    CHECK_EQ(peak.running, scene.a);
    CHECK_EQ(peak.owner, scene.d);
    node(t, t, 0);
    call(t, scene.b);
    add(t, 3, 1);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).phase, MS_RECOMPUTE);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).running, scene.b);
    leave_call(t);
    add(t, 4, 1);
    leave_node(t);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).phase, MS_BACKWARD);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).owner, scene.a);
    ledger_end();
}

TEST(a_peak_in_an_optimizer_step_or_of_no_thread_has_that_phase)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    ms_optimizer_enter(t->thread);
    add(t, 1, 100);
    ms_optimizer_leave(t->thread);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).phase, MS_OPTIMIZER);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).running, MS_GLOBAL);
    call(t, scene.a);
    add(NULL, 2, 1);
    leave_call(t);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).phase, MS_IDLE);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).running, MS_GLOBAL);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).owner, MS_GLOBAL);
    ledger_end();
}

TEST(a_peak_has_the_number_of_its_step)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).step, 0);
    for (uint64_t i = 1; i <= 3; i++) {
        call(t, scene.a);
        if (i < 3)
            add(t, 1 + i, 10);
        leave_call(t);
    }
    CHECK_EQ(ms_ledger_step(ledger), 3);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).step, 2);
    ledger_end();
}

/* ---- many paths ---- */

TEST(a_peak_covers_thousands_of_paths)
{
    enum { PATHS = 5000 };
    static ms_path paths[PATHS];
    struct lane *t = ledger_start();
    ms_peak_tracker *early = open_tracker(), *tracker = open_tracker();
    for (int i = 0; i < PATHS; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", i);
        CHECK_EQ(ms_path_add(scene.watch, scene.a, name, &paths[i]), MS_OK);
    }
    add(NULL, 1, 1);
    for (int i = 0; i < PATHS; i++) {
        call(t, paths[i]);
        add_on(t, 100 + (uint64_t)i, 1 + (uint64_t)i, (uint32_t)i % 2);
        leave_call(t);
    }
    for (uint64_t i = 0; i < PATHS; i += 2)
        drop(100 + i);
    ms_peak_tracker_reset(early);
    for (uint64_t i = 0; i < PATHS; i++) {
        uint32_t device = i % 2;
        int64_t bytes = 1 + (int64_t)i;
        CHECK_EQ(total(ms_peak_tracker_peak_of(tracker, device, paths[i])), bytes);
        CHECK_EQ(total(ms_peak_tracker_peak_of(tracker, !device, paths[i])), 0);
        CHECK_EQ(total(ms_peak_tracker_peak_of(early, device, paths[i])), device ? bytes : 0);
        CHECK_EQ(total(ms_ledger_now_of(ledger, device, paths[i])), device ? bytes : 0);
        CHECK_EQ(ms_call_snapshot_count(ledger, paths[i], MS_POST_FW), 1);
    }
    ms_path never;
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "never called", &never), MS_OK);
    CHECK_SUMS(peak_of(tracker, never), NOTHING);
    CHECK_SUMS(held_by(never), NOTHING);
    CHECK_EQ(ms_call_snapshot_count(ledger, never, MS_PRE_FW), 0);
    ledger_end();
}

TEST(a_tracker_without_paths_has_the_same_peak_and_nothing_by_path)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *without = ms_peak_tracker_open_without_paths(ledger), *with = open_tracker();
    ms_peak_tracker *second = ms_peak_tracker_open_without_paths(ledger);
    CHECK(without != NULL && second != NULL);
    call(t, scene.a);
    for (uint64_t i = 1; i <= 20; i++) {
        add(t, i, 10 * i);
        if (i % 3 == 0)
            drop(i - 1);
        if (i % 4 == 0)
            claim(i, MS_GRADIENT, scene.d);
    }
    leave_call(t);
    ms_peak_tracker *const trackers[] = {without, second};
    ms_peak wanted = ms_peak_tracker_peak(with, 0);
    for (size_t i = 0; i < 2; i++) {
        ms_peak peak = ms_peak_tracker_peak(trackers[i], 0);
        ledger_check_sums(__FILE__, __LINE__, "the peak's sums", peak.sums, wanted.sums);
        CHECK_EQ(peak.bytes, wanted.bytes);
        CHECK_EQ(peak.owner, wanted.owner);
        CHECK_SUMS(peak_of(trackers[i], scene.a), NOTHING);
        CHECK_SUMS(peak_of(trackers[i], scene.d), NOTHING);
    }
    CHECK(total(peak_of(with, scene.a)) > 0 && total(peak_of(with, scene.d)) > 0);
    ms_peak_tracker_close(with);
    add(t, 100, 5000);
    CHECK_EQ(ms_peak_tracker_peak(without, 0).bytes, total(held()));
    ledger_end();
}

static ms_path found_path(ms_peak_tracker *at_peak, uint32_t device, ms_path from)
{
    ms_path path = from;
    return ms_ledger_find_path(ledger, at_peak, device, &path) ? path : UINT32_MAX;
}

TEST(the_paths_that_have_bytes_are_found_now_and_at_the_peak)
{
    struct lane *t = ledger_start();
    CHECK_EQ(found_path(NULL, 0, 0), UINT32_MAX);
    ms_path last = scene.d;
    for (int i = 0; i < 500; i++) { /* dead models: paths that no block of this ledger has */
        char name[32];
        snprintf(name, sizeof name, "dead%d", i);
        CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, name, &last), MS_OK);
    }
    ms_peak_tracker *tracker = open_tracker();
    ms_peak_tracker *without = ms_peak_tracker_open_without_paths(ledger);
    add_as(1, 100, MS_PARAMETER, scene.a);
    add_as(2, 50, MS_PARAMETER, last);
    drop(1);
    add_on(t, 3, 10, 1);
    CHECK_EQ(found_path(NULL, 0, 0), last);
    CHECK_EQ(found_path(NULL, 0, last), last);
    CHECK_EQ(found_path(NULL, 0, last + 1), UINT32_MAX);
    CHECK_EQ(found_path(NULL, 1, 0), MS_GLOBAL);
    CHECK_EQ(found_path(NULL, 1, 1), UINT32_MAX);
    CHECK_EQ(found_path(NULL, MS_MAX_DEVICES, 0), UINT32_MAX);
    CHECK_EQ(found_path(tracker, 0, 0), scene.a);
    CHECK_EQ(found_path(tracker, 0, scene.a + 1), last);
    CHECK_EQ(found_path(without, 0, 0), UINT32_MAX);
    ms_path path = 0;
    CHECK(!ms_ledger_find_path_with_kinds(ledger, 0, &path));
    CHECK_EQ(ms_block_claim_kind(ledger, 2, MS_KIND_UNSHARDED_PARAM, last), MS_OK);
    CHECK(ms_ledger_find_path_with_kinds(ledger, 0, &path) && path <= last && path > scene.d);
    path = last + 64;
    CHECK(!ms_ledger_find_path_with_kinds(ledger, 0, &path));
    ledger_end();
}
