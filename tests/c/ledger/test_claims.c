/* test_claims.c - claims change category and owner: now, at the peaks, and in claim passes. */
#include "ledger_scene.h"

TEST(a_claim_moves_a_block_to_its_category_and_path)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add(t, 1, 100);
    add(t, 2, 20);
    claim(1, MS_PARAMETER, scene.b);
    CHECK_SUMS(held(), [MS_PARAMETER] = 100, [MS_ACTIVATION] = 20);
    CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = 20);
    CHECK_SUMS(held_by(scene.b), [MS_PARAMETER] = 100);
    claim(1, MS_GRADIENT, scene.b);
    claim(1, MS_GRADIENT, scene.b);
    CHECK_SUMS(held_by(scene.b), [MS_GRADIENT] = 100);
    claim(1, MS_GRADIENT, scene.d);
    CHECK_SUMS(held_by(scene.b), NOTHING);
    CHECK_SUMS(held_by(scene.d), [MS_GRADIENT] = 100);
    drop(1);
    CHECK_SUMS(held_by(scene.d), NOTHING);
    CHECK_SUMS(held(), [MS_ACTIVATION] = 20);
    leave_call(t);
    ledger_end();
}

TEST(a_claim_changes_only_the_block_s_own_device)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add_on(t, 1, 100, 1);
    add_on(t, 2, 20, 0);
    claim(1, MS_BUFFER, scene.a);
    CHECK_SUMS(ms_ledger_now(ledger, 1), [MS_BUFFER] = 100);
    CHECK_SUMS(held(), [MS_OTHER] = 20);
    CHECK_SUMS(ms_peak_tracker_peak_of(tracker, 1, scene.a), [MS_BUFFER] = 100);
    CHECK_SUMS(ms_peak_tracker_peak_of(tracker, 0, scene.a), NOTHING);
    ledger_end();
}

/* ---- at the peak ---- */

TEST(a_claim_of_a_block_that_was_live_at_the_peak_moves_it_there_too)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    call(t, scene.a);
    add(t, 1, 100);
    add(t, 2, 20);
    drop(2);
    leave_call(t);
    claim(1, MS_PARAMETER, scene.b);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 120);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_PARAMETER] = 100, [MS_ACTIVATION] = 20);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_ACTIVATION] = 20);
    CHECK_SUMS(peak_of(tracker, scene.b), [MS_PARAMETER] = 100);
    claim(1, MS_OTHER, scene.d);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_OTHER] = 100, [MS_ACTIVATION] = 20);
    CHECK_SUMS(peak_of(tracker, scene.b), NOTHING);
    CHECK_SUMS(peak_of(tracker, scene.d), [MS_OTHER] = 100);
    ledger_end();
}

TEST(a_claim_of_the_block_that_reached_the_peak_changes_the_peak_s_owner)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    claim(1, MS_GRADIENT, scene.a);
    drop(1);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_GRADIENT] = 100);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_GRADIENT] = 100);
    CHECK_SUMS(peak_of(tracker, MS_GLOBAL), NOTHING);
    ledger_end();
}

TEST(a_claim_of_a_block_added_after_the_peak_does_not_change_the_peak)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    drop(1);
    add(t, 2, 20);
    claim(2, MS_PARAMETER, scene.a);
    CHECK_SUMS(held(), [MS_PARAMETER] = 20);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_OTHER] = 100);
    CHECK_SUMS(peak_of(tracker, scene.a), NOTHING);
    CHECK_SUMS(peak_of(tracker, MS_GLOBAL), [MS_OTHER] = 100);
    ledger_end();
}

TEST(a_claim_of_a_new_block_at_an_old_address_does_not_change_the_peak)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    drop(1);
    add(t, 1, 100 - 1);
    claim(1, MS_PARAMETER, scene.a);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_OTHER] = 100);
    add(t, 1, 50);
    claim(1, MS_BUFFER, scene.a);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_OTHER] = 100);
    CHECK_SUMS(held(), [MS_BUFFER] = 50);
    ledger_end();
}

TEST(a_claim_before_the_peak_is_seen_at_the_peak)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    claim(1, MS_PARAMETER, scene.a);
    add(t, 2, 20);
    drop(1);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_PARAMETER] = 100, [MS_OTHER] = 20);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_PARAMETER] = 100);
    ledger_end();
}

TEST(a_claim_moves_the_block_in_those_peaks_at_which_it_was_live)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *high = open_tracker();
    add(t, 1, 100);
    drop(1);
    ms_peak_tracker *low = open_tracker();
    add(t, 2, 30);
    ms_peak_tracker *late = open_tracker();
    claim(2, MS_BUFFER, scene.d);
    CHECK_SUMS(ms_peak_tracker_peak(high, 0).sums, [MS_OTHER] = 100);
    CHECK_SUMS(ms_peak_tracker_peak(low, 0).sums, [MS_BUFFER] = 30);
    CHECK_SUMS(ms_peak_tracker_peak(late, 0).sums, [MS_BUFFER] = 30);
    CHECK_SUMS(peak_of(high, scene.d), NOTHING);
    CHECK_SUMS(peak_of(low, scene.d), [MS_BUFFER] = 30);
    CHECK_SUMS(peak_of(late, scene.d), [MS_BUFFER] = 30);
    ms_peak_tracker_reset(high);
    claim(2, MS_PARAMETER, scene.a);
    CHECK_SUMS(ms_peak_tracker_peak(high, 0).sums, [MS_PARAMETER] = 30);
    CHECK_SUMS(peak_of(high, scene.a), [MS_PARAMETER] = 30);
    CHECK_SUMS(peak_of(low, scene.d), NOTHING);
    ledger_end();
}

TEST(a_block_claimed_after_a_new_peak_moves_in_the_new_one_only)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    call(t, scene.a);
    add(t, 1, 100);
    drop(1);
    add(t, 2, 60);
    add(t, 3, 41);
    leave_call(t);
    claim(2, MS_PARAMETER, scene.a);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_PARAMETER] = 60, [MS_ACTIVATION] = 41);
    drop(2);
    add(t, 4, 70);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_ACTIVATION] = 41);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_ACTIVATION] = 41, [MS_OTHER] = 70);
    ledger_end();
}

TEST(claims_do_not_change_call_snapshots)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    small_call(t, scene.a, 0);
    claim(1, MS_PARAMETER, scene.a);
    CHECK_SUMS(call_snapshot(scene.a, MS_PRE_FW, 0), [MS_OTHER] = 100);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_OTHER] = 100);
    small_call(t, scene.a, 0);
    CHECK_SUMS(call_snapshot(scene.a, MS_PRE_FW, 0), [MS_PARAMETER] = 100);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_PARAMETER] = 100);
    ledger_end();
}

/* ---- from outside the allocator ---- */

TEST(blocks_from_outside_are_counted_also_on_their_own)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    add_outside(2, 20, MS_PARAMETER, scene.a);
    CHECK_SUMS(held(), [MS_OTHER] = 100, [MS_PARAMETER] = 20);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), [MS_PARAMETER] = 20);
    CHECK_SUMS(ms_ledger_outside(ledger, 1), NOTHING);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 120);
    claim(2, MS_BUFFER, scene.b);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), [MS_BUFFER] = 20);
    drop(2);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), NOTHING);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    ledger_end();
}

/* ---- claim passes ---- */

TEST(blocks_that_objects_held_and_nobody_claims_become_other)
{
    ledger_start();
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        add_as(1 + (uint64_t)i, UINT64_C(1) << i, (ms_category)i, scene.a);
    ms_claims_begin(ledger);
    ms_claims_end(ledger);
    const int64_t gone = 1 << MS_PARAMETER | 1 << MS_BUFFER | 1 << MS_GRADIENT | 1 << MS_OPTSTATE;
    CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = 1 << MS_ACTIVATION, [MS_TEMP] = 1 << MS_TEMP,
               [MS_OTHER] = gone | 1 << MS_OTHER);
    CHECK_EQ(ms_ledger_blocks(ledger), MS_CATEGORY_COUNT);
    ledger_end();
}

TEST(blocks_claimed_between_begin_and_end_stay_what_they_are)
{
    struct lane *t = ledger_start();
    add_as(1, 100, MS_PARAMETER, scene.a);
    add_as(2, 20, MS_GRADIENT, scene.a);
    ms_claims_begin(ledger);
    claim(1, MS_PARAMETER, scene.a);
    add_as(3, 3, MS_OPTSTATE, scene.b);
    call(t, scene.d);
    add(t, 4, 4);
    leave_call(t);
    ms_claims_end(ledger);
    CHECK_SUMS(held_by(scene.a), [MS_PARAMETER] = 100, [MS_OTHER] = 20);
    CHECK_SUMS(held_by(scene.b), [MS_OPTSTATE] = 3);
    CHECK_SUMS(held_by(scene.d), [MS_ACTIVATION] = 4);
    ledger_end();
}

TEST(a_kept_category_stays_though_nobody_claims_it)
{
    ledger_start();
    add_as(1, 100, MS_PARAMETER, scene.a);
    add_as(2, 20, MS_GRADIENT, scene.a);
    add_outside(3, 3, MS_GRADIENT, scene.b);
    for (int pass = 0; pass < 300; pass++) { /* more passes than there are numbers of passes */
        ms_claims_begin(ledger);
        CHECK_EQ(ms_claims_keep(ledger, MS_GRADIENT), MS_OK);
        ms_claims_end(ledger);
        CHECK_SUMS(held(), [MS_GRADIENT] = 23, [MS_OTHER] = 100);
    }
    ms_claims_begin(ledger); /* keeps nothing */
    ms_claims_end(ledger);
    CHECK_SUMS(held(), [MS_OTHER] = 120);
    ledger_end();
}

TEST(categories_are_kept_only_in_a_pass)
{
    ledger_start();
    CHECK_EQ(ms_claims_keep(ledger, MS_GRADIENT), MS_EINVAL);
    ms_claims_begin(ledger);
    CHECK_EQ(ms_claims_keep(ledger, MS_CATEGORY_COUNT), MS_EINVAL);
    ms_claims_end(ledger);
    CHECK_EQ(ms_claims_keep(ledger, MS_GRADIENT), MS_EINVAL);
    ledger_end();
}

TEST(a_claim_counts_for_its_own_pass_only)
{
    ledger_start();
    ms_claims_begin(ledger);
    add_as(1, 100, MS_PARAMETER, scene.a);
    add_outside(2, 20, MS_PARAMETER, scene.a);
    ms_claims_end(ledger);
    CHECK_SUMS(held(), [MS_PARAMETER] = 120);
    claim(1, MS_PARAMETER, scene.a); /* before the next pass, so it does not count there */
    ms_claims_begin(ledger);
    ms_claims_end(ledger);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    ms_claims_begin(ledger);
    claim(1, MS_GRADIENT, scene.a);
    ms_claims_end(ledger);
    CHECK_SUMS(held(), [MS_GRADIENT] = 100);
    ledger_end();
}

TEST(blocks_from_outside_that_nobody_claims_are_dropped)
{
    ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        add_outside(1 + (uint64_t)i, UINT64_C(1) << i, (ms_category)i, scene.a);
    add_outside(100, 1000, MS_PARAMETER, scene.b);
    ms_claims_begin(ledger);
    claim(100, MS_PARAMETER, scene.b);
    ms_claims_end(ledger);
    CHECK_EQ(ms_ledger_blocks(ledger), 1);
    CHECK_SUMS(held(), [MS_PARAMETER] = 1000);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), [MS_PARAMETER] = 1000);
    CHECK_EQ(ms_block_drop(ledger, 1), MS_ENOBLOCK);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 1127);
    ledger_end();
}

TEST(a_block_that_becomes_other_stays_what_it_was_at_the_peak)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add_as(1, 100, MS_PARAMETER, scene.a);
    ms_claims_begin(ledger);
    ms_claims_end(ledger);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_PARAMETER] = 100);
    CHECK_SUMS(peak_of(tracker, scene.a), [MS_PARAMETER] = 100);
    claim(1, MS_GRADIENT, scene.b);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_PARAMETER] = 100);
    CHECK_SUMS(peak_of(tracker, scene.b), NOTHING);
    add(t, 2, 1);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_GRADIENT] = 100, [MS_OTHER] = 1);
    claim(1, MS_OPTSTATE, scene.b);
    CHECK_SUMS(peak_of(tracker, scene.b), [MS_OPTSTATE] = 100);
    ledger_end();
}

TEST(a_claim_counts_for_its_own_pass_after_the_pass_number_wrapped)
{
    ledger_start();
    add_as(1, 100, MS_PARAMETER, scene.a);
    for (int pass = 0; pass < 1000; pass++) {
        add_as(2, 20, MS_GRADIENT, scene.a);
        add_outside(3, 3, MS_BUFFER, scene.a);
        ms_claims_begin(ledger);
        claim(1, MS_PARAMETER, scene.a);
        ms_claims_end(ledger);
        CHECK_SUMS(held(), [MS_PARAMETER] = 100, [MS_OTHER] = 20);
    }
    ledger_end();
}

TEST(dropped_parameters_and_buffers_are_counted)
{
    struct lane *t = ledger_start();
    for (int i = 0; i < MS_CATEGORY_COUNT; i++) {
        add_as(1, 10, (ms_category)i, scene.a);
        drop(1);
    }
    CHECK_EQ(ms_ledger_parameters_dropped(ledger), 2);
    add(t, 1, 10);
    claim(1, MS_PARAMETER, scene.a);
    CHECK_EQ(ms_ledger_parameters_dropped(ledger), 2);
    add(t, 1, 10); /* at the same address */
    CHECK_EQ(ms_ledger_parameters_dropped(ledger), 3);
    claim(1, MS_BUFFER, scene.a);
    claim(1, MS_GRADIENT, scene.a);
    drop(1);
    CHECK_EQ(ms_ledger_parameters_dropped(ledger), 3);
    add_outside(1, 10, MS_PARAMETER, scene.a);
    ms_claims_begin(ledger);
    ms_claims_end(ledger);
    CHECK_EQ(ms_ledger_parameters_dropped(ledger), 4);
    ledger_end();
}

TEST(a_block_that_an_object_holds_is_left_to_it)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add_as(1, 100, MS_TEMP, scene.a);
    CHECK_EQ(ms_block_claim_unheld(ledger, 1, MS_GRADIENT, scene.b), MS_OK);
    CHECK_SUMS(held_by(scene.b), [MS_GRADIENT] = 100);
    CHECK_SUMS(peak_of(tracker, scene.b), [MS_GRADIENT] = 100);
    CHECK_EQ(ms_block_claim_unheld(ledger, 1, MS_GRADIENT, scene.d), MS_OK);
    CHECK_EQ(ms_block_claim_unheld(ledger, 1, MS_PARAMETER, scene.d), MS_OK);
    CHECK_SUMS(held_by(scene.b), [MS_GRADIENT] = 100);
    ms_claims_begin(ledger);
    CHECK_EQ(ms_block_claim_unheld(ledger, 1, MS_GRADIENT, scene.d), MS_OK);
    ms_claims_end(ledger);
    CHECK_SUMS(held_by(scene.b), [MS_GRADIENT] = 100); /* claimed in the pass, so it stays what it was */
    ms_claims_begin(ledger);
    CHECK_EQ(ms_block_claim_unheld(ledger, 1, MS_PARAMETER, scene.d), MS_OK);
    ms_claims_end(ledger);
    CHECK_SUMS(held(), [MS_PARAMETER] = 100);
    CHECK_SUMS(held_by(scene.d), [MS_PARAMETER] = 100);
    CHECK_EQ(ms_block_claim_unheld(ledger, 2, MS_GRADIENT, scene.a), MS_ENOBLOCK);
    CHECK_EQ(ms_block_claim_unheld(ledger, 1, MS_CATEGORY_COUNT, scene.a), MS_EINVAL);
    add(t, 3, 1);
    ledger_end();
}

TEST(what_autograd_saves_is_an_activation_if_it_was_other)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    add_as(2, 20, MS_PARAMETER, scene.a);
    CHECK_EQ(ms_block_saved(ledger, 1), MS_OK);
    CHECK_EQ(ms_block_saved(ledger, 2), MS_OK);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_ACTIVATION] = 100);
    CHECK_SUMS(peak_of(tracker, MS_GLOBAL), [MS_ACTIVATION] = 100);
    CHECK_SUMS(held_by(scene.a), [MS_PARAMETER] = 20);
    CHECK_EQ(ms_block_saved(ledger, 3), MS_ENOBLOCK);
    ledger_end();
}

TEST(an_input_that_was_made_outside_any_call_gets_an_owner)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    bool known;
    add(t, 1, 100);
    add_as(2, 20, MS_OTHER, scene.a);
    add_as(3, 3, MS_ACTIVATION, MS_GLOBAL);
    CHECK(ms_block_is_unowned(ledger, 1, &known) && known);
    CHECK(!ms_block_is_unowned(ledger, 2, &known) && known);
    CHECK(!ms_block_is_unowned(ledger, 3, &known) && known);
    CHECK(!ms_block_is_unowned(ledger, 4, &known) && !known);
    for (uint64_t address = 1; address <= 3; address++)
        CHECK_EQ(ms_block_claim_input(ledger, address, scene.b), MS_OK);
    CHECK_EQ(ms_block_claim_input(ledger, 4, scene.b), MS_ENOBLOCK);
    CHECK_SUMS(held_by(scene.b), [MS_OTHER] = 100);
    CHECK_SUMS(peak_of(tracker, scene.b), [MS_OTHER] = 100);
    CHECK_SUMS(held_by(scene.a), [MS_OTHER] = 20);
    CHECK_SUMS(held_by(MS_GLOBAL), [MS_ACTIVATION] = 3);
    ledger_end();
}

TEST(only_a_block_from_outside_of_this_owner_is_dropped_as_such)
{
    ledger_start();
    add_outside(1, 100, MS_OTHER, scene.a);
    add_as(2, 20, MS_OTHER, scene.a);
    CHECK_EQ(ms_block_drop_outside(ledger, 1, scene.b), MS_ENOBLOCK);
    CHECK_EQ(ms_block_drop_outside(ledger, 2, scene.a), MS_ENOBLOCK);
    CHECK_EQ(ms_block_drop_outside(ledger, 3, scene.a), MS_ENOBLOCK);
    CHECK_EQ(ms_ledger_blocks(ledger), 2);
    CHECK_EQ(ms_block_drop_outside(ledger, 1, scene.a), MS_OK);
    CHECK_SUMS(held(), [MS_OTHER] = 20);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), NOTHING);
    ledger_end();
}

TEST(a_claim_pass_looks_at_thousands_of_blocks)
{
    struct lane *t = ledger_start();
    for (uint64_t i = 0; i < 6000; i++) {
        ms_category category = i % 2 ? MS_PARAMETER : MS_TEMP;
        CHECK_EQ(ms_block_add_as(ledger, t->thread, i, 1, 0, category, scene.a, i % 3 == 0), MS_OK);
    }
    ms_claims_begin(ledger);
    for (uint64_t i = 0; i < 6000; i += 5)
        CHECK_EQ(ms_block_claim(ledger, i, i % 2 ? MS_PARAMETER : MS_TEMP, scene.a), MS_OK);
    ms_claims_end(ledger);
    /* Of 30 blocks in a row 6 are claimed: 3 parameters, 3 temps; of the other 24, 8 are from
     * outside and go, 8 temps stay, 8 parameters become other. */
    CHECK_SUMS(held(), [MS_PARAMETER] = 3 * 200, [MS_TEMP] = (3 + 8) * 200, [MS_OTHER] = 8 * 200);
    CHECK_EQ(ms_ledger_blocks(ledger), 22 * 200);
    CHECK_EQ(total(ms_ledger_outside(ledger, 0)), 2 * 200);
    ledger_end();
}
