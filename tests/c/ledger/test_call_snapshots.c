/* test_call_snapshots.c - what was held around calls in forward: before, after, and at the peak. */
#include "ledger_scene.h"

#include <stdio.h>

static void check_counts(ms_path path, size_t pre, size_t post, size_t peak)
{
    CHECK_EQ(ms_call_snapshot_count(ledger, path, MS_PRE_FW), pre);
    CHECK_EQ(ms_call_snapshot_count(ledger, path, MS_POST_FW), post);
    CHECK_EQ(ms_call_snapshot_count(ledger, path, MS_PEAK_FW), peak);
}

TEST(a_path_never_called_has_no_snapshots)
{
    ledger_start();
    ms_sums sums = {{1, 2, 3}};
    uint64_t time = 77;
    for (int i = 0; i < MS_CALL_STATE_COUNT; i++) {
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, (ms_call_state)i), 0);
        CHECK(!ms_call_snapshot_at(ledger, scene.a, (ms_call_state)i, 0, 0, &sums, &time));
    }
    uint64_t input = 77, output = 77;
    ms_call_sizes(ledger, scene.a, &input, &output);
    CHECK_EQ(input, 0);
    CHECK_EQ(output, 0);
    ledger_end();
}

TEST(a_call_has_snapshots_before_after_and_at_the_peak)
{
    struct lane *t = ledger_start();
    add(t, 1, 1000);
    call(t, scene.a);
    add(t, 2, 200);
    drop(1);
    add(t, 3, 30);
    drop(2);
    leave_call(t);
    drop(3);
    check_counts(scene.a, 1, 1, 1);
    CHECK_SUMS(call_snapshot(scene.a, MS_PRE_FW, 0), [MS_OTHER] = 1000);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_ACTIVATION] = 200, [MS_OTHER] = 1000);
    CHECK_SUMS(call_snapshot(scene.a, MS_POST_FW, 0), [MS_ACTIVATION] = 30);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_BW), 0);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW_AC), 0);
    ledger_end();
}

TEST(snapshots_are_by_category)
{
    struct lane *t = ledger_start();
    add_as(1, 1000, MS_PARAMETER, scene.a);
    call(t, scene.a);
    add(t, 2, 200);
    claim(2, MS_BUFFER, scene.a);
    add(t, 3, 30);
    drop(1);
    leave_call(t);
    CHECK_SUMS(call_snapshot(scene.a, MS_PRE_FW, 0), [MS_PARAMETER] = 1000);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_PARAMETER] = 1000, [MS_BUFFER] = 200, [MS_ACTIVATION] = 30);
    CHECK_SUMS(call_snapshot(scene.a, MS_POST_FW, 0), [MS_BUFFER] = 200, [MS_ACTIVATION] = 30);
    ledger_end();
}

TEST(a_call_in_which_nothing_happens_has_its_peak_at_what_is_held)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    call(t, scene.a);
    drop(1);
    leave_call(t);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_OTHER] = 100);
    CHECK_SUMS(call_snapshot(scene.a, MS_POST_FW, 0), NOTHING);
    ledger_end();
}

TEST(an_inner_call_s_peak_is_the_outer_one_s_if_it_is_higher)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add(t, 1, 100);
    call(t, scene.b);
    add(t, 2, 50);
    drop(2);
    call(t, scene.c);
    add(t, 3, 70);
    drop(3);
    leave_call(t);
    add(t, 4, 60);
    drop(4);
    leave_call(t);
    add(t, 5, 10);
    leave_call(t);
    CHECK_SUMS(call_snapshot(scene.b, MS_PRE_FW, 0), [MS_ACTIVATION] = 100);
    CHECK_SUMS(call_snapshot(scene.c, MS_PEAK_FW, 0), [MS_ACTIVATION] = 170);
    CHECK_SUMS(call_snapshot(scene.b, MS_PEAK_FW, 0), [MS_ACTIVATION] = 170);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_ACTIVATION] = 170);
    CHECK_SUMS(call_snapshot(scene.b, MS_POST_FW, 0), [MS_ACTIVATION] = 100);
    CHECK_SUMS(call_snapshot(scene.a, MS_POST_FW, 0), [MS_ACTIVATION] = 110);
    ledger_end();
}

TEST(an_inner_call_s_peak_is_its_own_only)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add(t, 1, 500);
    drop(1);
    call(t, scene.b);
    add(t, 2, 20);
    drop(2);
    leave_call(t);
    add(t, 3, 400);
    drop(3);
    leave_call(t);
    CHECK_SUMS(call_snapshot(scene.b, MS_PEAK_FW, 0), [MS_ACTIVATION] = 20);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_ACTIVATION] = 500);
    ledger_end();
}

TEST(each_device_has_snapshots_and_a_peak_of_its_own)
{
    struct lane *t = ledger_start();
    add_on(t, 1, 100, 0);
    call(t, scene.a);
    add_on(t, 2, 20, 1);
    drop(1);
    drop(2);
    add_on(t, 3, 30, 2);
    leave_call(t);
    static const int64_t wanted[4][3] = {{100, 100, 0}, {0, 20, 0}, {0, 30, 30}, {0, 0, 0}};
    for (uint32_t device = 0; device < 4; device++) {
        ms_sums pre, peak, post;
        CHECK(ms_call_snapshot_at(ledger, scene.a, MS_PRE_FW, 0, device, &pre, NULL));
        CHECK(ms_call_snapshot_at(ledger, scene.a, MS_PEAK_FW, 0, device, &peak, NULL));
        CHECK(ms_call_snapshot_at(ledger, scene.a, MS_POST_FW, 0, device, &post, NULL));
        CHECK_EQ(total(pre), wanted[device][0]);
        CHECK_EQ(total(peak), wanted[device][1]);
        CHECK_EQ(total(post), wanted[device][2]);
    }
    ledger_end();
}

TEST(a_device_that_is_used_late_was_empty_before)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    small_call(t, scene.b, 0);
    add_on(t, 1, 100, MS_MAX_DEVICES - 1);
    small_call(t, scene.b, 0);
    leave_call(t);
    static const int64_t wanted[2] = {0, 100};
    for (size_t i = 0; i < 2; i++) {
        ms_sums sums;
        CHECK(ms_call_snapshot_at(ledger, scene.b, MS_PEAK_FW, i, MS_MAX_DEVICES - 1, &sums, NULL));
        CHECK_EQ(total(sums), wanted[i]);
        CHECK(ms_call_snapshot_at(ledger, scene.b, MS_POST_FW, i, MS_MAX_DEVICES - 1, &sums, NULL));
        CHECK_EQ(total(sums), wanted[i]);
    }
    ledger_end();
}

TEST(each_call_of_a_path_has_its_own_snapshots_in_order)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    for (uint64_t i = 0; i < 100; i++) {
        call(t, scene.b);
        add(t, 1 + i, 10);
        add(t, 1000, 5);
        drop(1000);
        leave_call(t);
        check_counts(scene.b, i + 1, i + 1, i + 1);
    }
    leave_call(t);
    for (size_t i = 0; i < 100; i++) {
        CHECK_EQ(total(call_snapshot(scene.b, MS_PRE_FW, i)), 10 * i);
        CHECK_EQ(total(call_snapshot(scene.b, MS_PEAK_FW, i)), 10 * i + 15);
        CHECK_EQ(total(call_snapshot(scene.b, MS_POST_FW, i)), 10 * i + 10);
    }
    ms_sums sums;
    CHECK(!ms_call_snapshot_at(ledger, scene.b, MS_PRE_FW, 100, 0, &sums, NULL));
    check_counts(scene.a, 1, 1, 1);
    ledger_end();
}

TEST(a_call_that_is_open_has_begun_and_not_ended)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    call(t, scene.a);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_FW), 0);
    CHECK_SUMS(call_snapshot(scene.a, MS_PRE_FW, 0), [MS_OTHER] = 100);
    leave_call(t);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_FW), 1);
    ledger_end();
}

TEST(what_other_threads_hold_counts_in_a_call_s_snapshots)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    add(u, 1, 1);
    call(t, scene.a);
    call(u, scene.d);
    add(u, 2, 20);
    add(t, 3, 300);
    drop(2);
    leave_call(t);
    add(u, 4, 4000);
    leave_call(u);
    CHECK_EQ(total(call_snapshot(scene.a, MS_PRE_FW, 0)), 1);
    CHECK_EQ(total(call_snapshot(scene.a, MS_PEAK_FW, 0)), 321);
    CHECK_EQ(total(call_snapshot(scene.a, MS_POST_FW, 0)), 301);
    CHECK_EQ(total(call_snapshot(scene.d, MS_PRE_FW, 0)), 1);
    CHECK_EQ(total(call_snapshot(scene.d, MS_PEAK_FW, 0)), 4301);
    ledger_end();
}

TEST(calls_nest_hundreds_deep)
{
    enum { DEEP = 500 };
    static ms_path paths[DEEP];
    struct lane *t = ledger_start();
    for (int i = 0; i < DEEP; i++)
        CHECK_EQ(ms_path_add(scene.watch, i ? paths[i - 1] : MS_GLOBAL, "deep", &paths[i]), MS_OK);
    for (uint64_t i = 0; i < DEEP; i++) {
        call(t, paths[i]);
        add(t, 1 + i, 1);
    }
    add(t, 1000, 7);
    drop(1000);
    for (uint64_t i = DEEP; i-- > 0;) {
        leave_call(t);
        drop(1 + i);
    }
    for (int64_t i = 0; i < DEEP; i++) {
        CHECK_EQ(total(call_snapshot(paths[i], MS_PRE_FW, 0)), i);
        CHECK_EQ(total(call_snapshot(paths[i], MS_PEAK_FW, 0)), DEEP + 7);
        CHECK_EQ(total(call_snapshot(paths[i], MS_POST_FW, 0)), i + 1);
    }
    ledger_end();
}

/* ---- order ---- */

TEST(snapshots_of_different_paths_are_ordered)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    small_call(t, scene.b, 0);
    small_call(t, scene.c, 0);
    small_call(t, scene.b, 0);
    leave_call(t);
    uint64_t order[] = {
        call_snapshot_time(scene.a, MS_PRE_FW, 0),  call_snapshot_time(scene.b, MS_PRE_FW, 0),
        call_snapshot_time(scene.b, MS_POST_FW, 0), call_snapshot_time(scene.c, MS_PRE_FW, 0),
        call_snapshot_time(scene.c, MS_POST_FW, 0), call_snapshot_time(scene.b, MS_PRE_FW, 1),
        call_snapshot_time(scene.b, MS_POST_FW, 1), call_snapshot_time(scene.a, MS_POST_FW, 0),
    };
    for (size_t i = 1; i < sizeof order / sizeof order[0]; i++)
        CHECK(order[i - 1] < order[i]);
    ledger_end();
}

TEST(time_separates_older_snapshots_from_newer_ones)
{
    struct lane *t = ledger_start();
    small_call(t, scene.a, 0);
    uint64_t time = ms_ledger_time(ledger);
    small_call(t, scene.d, 0);
    CHECK(call_snapshot_time(scene.a, MS_PRE_FW, 0) < time);
    CHECK(call_snapshot_time(scene.a, MS_POST_FW, 0) < time);
    CHECK(call_snapshot_time(scene.d, MS_PRE_FW, 0) >= time);
    CHECK(call_snapshot_time(scene.d, MS_POST_FW, 0) >= time);
    ledger_end();
}

TEST(time_grows_with_every_event)
{
    struct lane *t = ledger_start();
    uint64_t time[8] = {ms_ledger_time(ledger)};
    add(t, 1, 1);
    time[1] = ms_ledger_time(ledger);
    claim(1, MS_PARAMETER, scene.a);
    time[2] = ms_ledger_time(ledger);
    drop(1);
    time[3] = ms_ledger_time(ledger);
    call(t, scene.a);
    time[4] = ms_ledger_time(ledger);
    leave_call(t);
    time[5] = ms_ledger_time(ledger);
    for (int i = 1; i < 6; i++)
        CHECK(time[i - 1] < time[i]);
    ledger_end();
}

/* ---- the sizes of inputs and outputs ---- */

static void check_sizes(ms_path path, uint64_t in, uint64_t out)
{
    uint64_t input = 77, output = 77;
    ms_call_sizes(ledger, path, &input, &output);
    CHECK_EQ(input, in);
    CHECK_EQ(output, out);
}

TEST(a_size_is_of_the_innermost_call)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    ms_call_set_size(t->thread, false, 100);
    call(t, scene.b);
    ms_call_set_size(t->thread, false, 20);
    ms_call_set_size(t->thread, true, 30);
    leave_call(t);
    ms_call_set_size(t->thread, true, 400);
    leave_call(t);
    ms_call_set_size(t->thread, true, 5000); /* no call is open */
    check_sizes(scene.a, 100, 400);
    check_sizes(scene.b, 20, 30);
    check_sizes(scene.c, 0, 0);
    ledger_end();
}

TEST(the_sizes_of_a_path_are_of_its_latest_call)
{
    struct lane *t = ledger_start();
    for (uint64_t i = 1; i <= 3; i++) {
        call(t, scene.a);
        for (uint64_t k = 1; k <= 3; k++) {
            call(t, scene.b);
            ms_call_set_size(t->thread, false, 10 * i + k);
            ms_call_set_size(t->thread, true, 20 * i + k);
            leave_call(t);
            check_sizes(scene.b, 10 * i + k, 20 * i + k);
        }
        leave_call(t);
    }
    small_call(t, scene.b, 0);
    check_sizes(scene.b, 0, 0);
    ledger_end();
}

TEST(a_size_set_by_one_thread_is_not_of_another_thread_s_call)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    call(t, scene.a);
    call(u, scene.d);
    ms_call_set_size(u->thread, false, 8);
    ms_call_set_size(t->thread, false, 7);
    check_sizes(scene.a, 7, 0);
    check_sizes(scene.d, 8, 0);
    ledger_end();
}
