/* test_blocks.c - blocks are added and dropped: their owner and category. */
#include "ledger_scene.h"

TEST(a_new_ledger_is_empty)
{
    ledger_start();
    CHECK_SUMS(held(), NOTHING);
    CHECK_SUMS(held_by(MS_GLOBAL), NOTHING);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), NOTHING);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    CHECK_EQ(ms_ledger_devices(ledger), 0);
    CHECK_EQ(ms_ledger_lost(ledger), 0);
    CHECK_EQ(ms_ledger_step(ledger), 0);
    ledger_end();
}

TEST(a_block_counts_from_its_adding_to_its_dropping)
{
    struct lane *t = ledger_start();
    add(t, 0x1000, 100);
    add(t, 0x2000, 7);
    CHECK_SUMS(held(), [MS_OTHER] = 107);
    CHECK_EQ(ms_ledger_blocks(ledger), 2);
    drop(0x1000);
    CHECK_SUMS(held(), [MS_OTHER] = 7);
    drop(0x2000);
    CHECK_SUMS(held(), NOTHING);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    ledger_end();
}

/* ---- owner and category ---- */

TEST(a_block_added_in_forward_is_an_activation_of_the_innermost_call)
{
    struct lane *t = ledger_start();
    add(t, 1, 1);
    call(t, scene.a);
    add(t, 2, 20);
    call(t, scene.b);
    add(t, 3, 300);
    leave_call(t);
    add(t, 4, 4000);
    leave_call(t);
    add(t, 5, 50000);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_OTHER] = 50001);
    CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = 4020);
    CHECK_SUMS(held_by(scene.b), [MS_ACTIVATION] = 300);
    CHECK_SUMS(held_by(scene.c), NOTHING);
    CHECK_SUMS(held(), [MS_ACTIVATION] = 4320, [MS_OTHER] = 50001);
    ledger_end();
}

TEST(a_block_added_in_backward_is_a_temp_of_the_node_s_call)
{
    struct lane *t = ledger_start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    add(t, 1, 100);
    leave_node(t);
    node(t, t, MS_NO_NUMBER);
    add(t, 2, 20);
    leave_node(t);
    CHECK_SUMS(held_by(scene.a), [MS_TEMP] = 100);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_TEMP] = 20);
    ledger_end();
}

TEST(a_block_added_in_a_node_entered_as_a_path_belongs_to_that_path)
{
    struct lane *t = ledger_start();
    CHECK_EQ(ms_node_enter_as(t->thread, scene.c, t->seq), MS_OK);
    add(t, 1, 100);
    leave_node(t);
    CHECK_SUMS(held_by(scene.c), [MS_TEMP] = 100);
    CHECK_SUMS(held_by(MS_GLOBAL), NOTHING);
    ledger_end();
}

TEST(a_block_added_in_recompute_is_an_activation_of_the_recomputed_call)
{
    struct lane *t = ledger_start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    call(t, scene.b);
    add(t, 1, 100);
    leave_call(t);
    add(t, 2, 20);
    leave_node(t);
    CHECK_SUMS(held_by(scene.b), [MS_ACTIVATION] = 100);
    CHECK_SUMS(held_by(scene.a), [MS_TEMP] = 20);
    ledger_end();
}

TEST(a_block_added_in_an_optimizer_step_is_a_temp)
{
    struct lane *t = ledger_start();
    ms_optimizer_enter(t->thread);
    add(t, 1, 100);
    call(t, scene.a);
    add(t, 2, 20);
    leave_call(t);
    add(t, 3, 3);
    ms_optimizer_leave(t->thread);
    add(t, 4, 4);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_TEMP] = 103, [MS_OTHER] = 4);
    CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = 20);
    ledger_end();
}

TEST(after_an_optimizer_step_that_raised_blocks_are_no_temps)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    ms_optimizer_enter(t->thread);
    add(t, 1, 100);
    leave_call(t);
    add(t, 2, 20);
    CHECK_SUMS(held_by(scene.a), [MS_TEMP] = 100);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_OTHER] = 20);
    ledger_end();
}

TEST(a_block_added_in_an_override_belongs_to_the_override_s_path)
{
    struct lane *t = ledger_start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    override(t, scene.d);
    add(t, 1, 100);
    leave_override(t);
    leave_node(t);
    CHECK_SUMS(held_by(scene.d), [MS_TEMP] = 100);
    CHECK_SUMS(held_by(scene.a), NOTHING);
    ledger_end();
}

TEST(a_block_added_by_no_thread_belongs_to_global)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add(NULL, 1, 100);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_OTHER] = 100);
    CHECK_SUMS(held_by(scene.a), NOTHING);
    ledger_end();
}

TEST(a_block_belongs_to_the_path_of_the_thread_that_adds_it)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    uint64_t a = small_call(t, scene.a, 1);
    call(t, scene.b);
    node(u, t, a);
    add(t, 1, 100);
    add(u, 2, 20);
    CHECK_SUMS(held_by(scene.b), [MS_ACTIVATION] = 100);
    CHECK_SUMS(held_by(scene.a), [MS_TEMP] = 20);
    ledger_end();
}

TEST(a_block_of_an_ended_thread_keeps_its_owner)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    call(u, scene.b);
    add(u, 1, 100);
    end_lane(u);
    CHECK_SUMS(held_by(scene.b), [MS_ACTIVATION] = 100);
    add(t, 2, 20);
    drop(1);
    CHECK_SUMS(held_by(scene.b), NOTHING);
    CHECK_SUMS(held(), [MS_OTHER] = 20);
    ledger_end();
}

TEST(a_block_added_with_a_category_and_path_has_these)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    CHECK_EQ(ms_block_add_as(ledger, t->thread, 1, 100, 0, MS_PARAMETER, scene.b, false), MS_OK);
    CHECK_EQ(ms_block_add_as(ledger, t->thread, 2, 20, 0, MS_OPTSTATE, MS_GLOBAL, false), MS_OK);
    add_as(3, 3, MS_BUFFER, scene.b);
    CHECK_SUMS(held_by(scene.b), [MS_PARAMETER] = 100, [MS_BUFFER] = 3);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_OPTSTATE] = 20);
    CHECK_SUMS(held_by(scene.a), NOTHING);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), NOTHING);
    ledger_end();
}

TEST(a_block_added_in_a_given_phase_is_like_one_of_a_thread_in_that_phase)
{
    static const ms_category wanted[] = {
        [MS_IDLE] = MS_OTHER,    [MS_FORWARD] = MS_ACTIVATION, [MS_RECOMPUTE] = MS_ACTIVATION,
        [MS_BACKWARD] = MS_TEMP, [MS_OPTIMIZER] = MS_TEMP,     [MS_EVALUATION] = MS_ACTIVATION};
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    call(t, scene.a);
    for (int phase = MS_IDLE; phase < MS_PHASE_COUNT; phase++) {
        CHECK_EQ(ms_block_add_in(ledger, (ms_phase)phase, scene.b, 1, 100 + (uint64_t)phase, 0), MS_OK);
        CHECK_EQ(held_by(scene.b).of[wanted[phase]], 100 + phase);
        CHECK_EQ(total(held()), 100 + phase);
        CHECK_EQ(ms_peak_tracker_peak(tracker, 0).phase, phase);
        CHECK_EQ(ms_peak_tracker_peak(tracker, 0).running, scene.b);
        CHECK_EQ(ms_peak_tracker_peak(tracker, 0).owner, scene.b);
    }
    CHECK_EQ(ms_block_add_in(ledger, MS_FORWARD, scene.b, 2, 0, 0), MS_OK);
    CHECK_EQ(ms_block_add_in(ledger, MS_FORWARD, scene.b, 2, 1, MS_MAX_DEVICES), MS_EINVAL);
    CHECK_EQ(ms_ledger_blocks(ledger), 1);
    leave_call(t);
    CHECK_EQ(total(call_snapshot(scene.a, MS_PEAK_FW, 0)), 100 + MS_EVALUATION);
    ledger_end();
}

TEST(an_unknown_category_or_path_is_out_of_range)
{
    struct lane *t = ledger_start();
    ms_path none = ms_path_count(scene.watch);
    add(t, 1, 100);
    CHECK_EQ(ms_block_add_as(ledger, NULL, 2, 1, 0, MS_CATEGORY_COUNT, scene.a, false), MS_EINVAL);
    CHECK_EQ(ms_block_add_as(ledger, NULL, 2, 1, 0, MS_TEMP, none, false), MS_EINVAL);
    CHECK_EQ(ms_block_add_in(ledger, MS_FORWARD, none, 2, 1, 0), MS_EINVAL);
    CHECK_EQ(ms_block_claim(ledger, 1, MS_CATEGORY_COUNT, scene.a), MS_EINVAL);
    CHECK_EQ(ms_block_claim(ledger, 1, MS_TEMP, none), MS_EINVAL);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_OTHER] = 100);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    ledger_end();
}

TEST(every_category_has_its_own_sum_and_name)
{
    ledger_start();
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        add_as(1 + (uint64_t)i, UINT64_C(1) << 4 * i, (ms_category)i, scene.a);
    for (int i = 0; i < MS_CATEGORY_COUNT; i++) {
        CHECK_EQ(held().of[i], INT64_C(1) << 4 * i);
        CHECK_EQ(held_by(scene.a).of[i], INT64_C(1) << 4 * i);
        for (int k = 0; k < i; k++)
            CHECK(ms_category_name((ms_category)i) != ms_category_name((ms_category)k));
    }
    ledger_end();
}
