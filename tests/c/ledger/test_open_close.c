/* test_open_close.c - a ledger is opened, attached, detached, cleared and closed. */
#include "ledger_scene.h"

#include <string.h>

static void check_refuses(ms_ledger *idle, ms_thread *thread)
{
    CHECK_EQ(ms_block_add(idle, thread, 900, 1, 0), MS_EDETACHED);
    CHECK_EQ(ms_block_add_as(idle, thread, 901, 1, 0, MS_TEMP, scene.a, false), MS_EDETACHED);
    CHECK_EQ(ms_block_add_in(idle, MS_FORWARD, scene.a, 902, 1, 0), MS_EDETACHED);
    CHECK_EQ(ms_block_drop(idle, 1), MS_EDETACHED);
    CHECK_EQ(ms_block_claim(idle, 1, MS_TEMP, scene.a), MS_EDETACHED);
    CHECK_EQ(ms_block_claim_unheld(idle, 1, MS_TEMP, scene.a), MS_EDETACHED);
    CHECK_EQ(ms_block_saved(idle, 1), MS_EDETACHED);
    CHECK_EQ(ms_block_claim_input(idle, 1, scene.a), MS_EDETACHED);
    CHECK_EQ(ms_block_drop_outside(idle, 1, scene.a), MS_EDETACHED);
}

TEST(categories_and_call_states_have_the_names_of_torch)
{
    CHECK(!strcmp(ms_category_name(MS_PARAMETER), "Parameter"));
    CHECK(!strcmp(ms_category_name(MS_OPTSTATE), "Optstate"));
    CHECK(!strcmp(ms_category_name(MS_OTHER), "Other"));
    CHECK(ms_category_name(MS_CATEGORY_COUNT));
    CHECK(!strcmp(ms_call_state_name(MS_PRE_FW), "Pre-Forward"));
    CHECK(!strcmp(ms_call_state_name(MS_POST_BW), "Post-Backward"));
    CHECK(!strcmp(ms_call_state_name(MS_POST_FW_AC), "Post-Forward-AC"));
    CHECK(ms_call_state_name(MS_CALL_STATE_COUNT));
    CHECK(!strcmp(ms_error_text(MS_ENOBLOCK), "the ledger knows no such block"));
    CHECK(!strcmp(ms_error_text(MS_EDETACHED), "the ledger is not attached"));
}

TEST(a_ledger_that_is_not_attached_accepts_no_blocks)
{
    struct lane *t = ledger_start();
    ms_ledger_detach(ledger);
    ms_ledger *from_now_on = ms_ledger_open(scene.watch);
    CHECK(from_now_on);
    check_refuses(from_now_on, t->thread);
    small_call(t, scene.a, 1);
    CHECK_EQ(ms_ledger_blocks(from_now_on), 0);
    CHECK_EQ(ms_ledger_step(from_now_on), 0);
    CHECK_EQ(ms_call_snapshot_count(from_now_on, scene.a, MS_PRE_FW), 0);
    CHECK_EQ(ms_ledger_lost(from_now_on), 0);
    ms_ledger_close(from_now_on);
    ledger_end();
}

TEST(a_detached_ledger_keeps_its_figures)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    call(t, scene.a);
    add(t, 1, 100);
    add(t, 2, 20);
    drop(2);
    leave_call(t);
    ms_ledger_detach(ledger);
    check_refuses(ledger, t->thread);
    small_call(t, scene.d, 1);
    CHECK_SUMS(held(), [MS_ACTIVATION] = 100);
    CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = 100);
    CHECK_EQ(ms_ledger_blocks(ledger), 1);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 120);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_ACTIVATION] = 120);
    CHECK_EQ(ms_ledger_step(ledger), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.d, MS_PRE_FW), 0);
    ledger_end();
}

TEST(a_ledger_attached_again_goes_on)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    add(t, 1, 100);
    ms_ledger_detach(ledger);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    call(t, scene.a);
    add(t, 2, 20);
    drop(1);
    leave_call(t);
    CHECK_SUMS(held(), [MS_ACTIVATION] = 20);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 120);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_FW), 1);
    ledger_end();
}

TEST(a_watch_has_one_ledger_attached)
{
    struct lane *t = ledger_start();
    ms_ledger *other = ms_ledger_open(scene.watch);
    CHECK(other);
    CHECK_EQ(ms_ledger_attach(other), MS_EINVAL);
    CHECK_EQ(ms_block_add(other, t->thread, 1, 1, 0), MS_EDETACHED);
    add(t, 1, 100);
    ms_ledger_detach(ledger);
    CHECK_EQ(ms_ledger_attach(other), MS_OK);
    CHECK_EQ(ms_ledger_attach(ledger), MS_EINVAL);
    CHECK_EQ(ms_block_add(other, t->thread, 1, 7, 0), MS_OK);
    small_call(t, scene.a, 1);
    CHECK_EQ(total(ms_ledger_now(other, 0)), 7);
    CHECK_EQ(ms_call_snapshot_count(other, scene.a, MS_PRE_FW), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW), 0);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    CHECK(!ms_ledger_check(other));
    ms_ledger_detach(other);
    ms_ledger_close(other);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    ledger_end();
}

TEST(ledgers_of_two_watches_are_independent)
{
    struct lane *t = ledger_start();
    ms_watch *elsewhere = ms_watch_open(NULL);
    ms_ledger *other = ms_ledger_open(elsewhere);
    CHECK_EQ(ms_ledger_attach(other), MS_OK);
    add(t, 1, 100);
    small_call(t, scene.a, 1);
    CHECK_EQ(ms_ledger_blocks(other), 0);
    CHECK_EQ(ms_ledger_step(other), 0);
    CHECK_EQ(ms_block_drop(other, 1), MS_ENOBLOCK);
    ms_ledger_detach(other);
    ms_ledger_close(other);
    ms_watch_close(elsewhere);
    ledger_end();
}

/* ---- clear ---- */

TEST(clear_drops_every_block_and_keeps_the_peak)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    call(t, scene.a);
    for (uint64_t i = 0; i < 100; i++)
        add_on(t, i, 10, i % 2 ? 3 : 0);
    add_outside(1000, 5, MS_PARAMETER, scene.b);
    ms_ledger_clear(ledger);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    CHECK_SUMS(held(), NOTHING);
    CHECK_SUMS(ms_ledger_now(ledger, 3), NOTHING);
    CHECK_SUMS(held_by(scene.a), NOTHING);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), NOTHING);
    CHECK_EQ(ms_block_drop(ledger, 7), MS_ENOBLOCK);
    CHECK_EQ(ms_ledger_devices(ledger), 4);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 505);
    CHECK_SUMS(ms_peak_tracker_peak_of(tracker, 3, scene.a), [MS_ACTIVATION] = 500);
    add(t, 7, 30);
    CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = 30);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 505);
    leave_call(t);
    ledger_end();
}

TEST(clear_within_a_call_shows_in_its_snapshots)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    call(t, scene.a);
    ms_ledger_clear(ledger);
    add(t, 2, 20);
    leave_call(t);
    CHECK_SUMS(call_snapshot(scene.a, MS_PRE_FW, 0), [MS_OTHER] = 100);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_OTHER] = 100);
    CHECK_SUMS(call_snapshot(scene.a, MS_POST_FW, 0), [MS_ACTIVATION] = 20);
    ledger_end();
}

/* ---- close ---- */

TEST(a_block_event_after_close_returns_detached)
{
    struct lane *t = ledger_start();
    for (int i = 0; i < 4; i++) {
        ms_ledger_detach(ledger);
        ms_ledger *other = ms_ledger_open(scene.watch);
        CHECK_EQ(ms_ledger_attach(other), MS_OK);
        for (uint64_t k = 0; k < 3000; k++)
            CHECK_EQ(ms_block_add(other, t->thread, k, 1, 0), MS_OK);
        ms_ledger_detach(other);
        ms_ledger_close(other);
        if (i == 0)
            CHECK_EQ(ms_block_add(other, t->thread, 1, 1, 0), MS_EDETACHED);
        else if (i == 1)
            CHECK_EQ(ms_block_drop(other, 1), MS_EDETACHED);
        else if (i == 2)
            CHECK_EQ(ms_block_claim(other, 1, MS_TEMP, MS_GLOBAL), MS_EDETACHED);
        else
            CHECK_EQ(ms_block_add_as(other, NULL, 1, 1, 0, MS_TEMP, MS_GLOBAL, false), MS_EDETACHED);
        CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    }
    ledger_end();
}

TEST(closing_a_ledger_frees_its_peak_trackers_and_its_memory)
{
    struct lane *t = ledger_start();
    ms_ledger_detach(ledger);
    size_t before = 0;
    for (int pass = 0; pass < 20; pass++) {
        ms_ledger *other = ms_ledger_open(scene.watch);
        CHECK_EQ(ms_ledger_attach(other), MS_OK);
        CHECK(ms_peak_tracker_open(other) && ms_peak_tracker_open(other));
        for (uint64_t i = 0; i < 10000; i++) {
            CHECK_EQ(ms_block_add(other, t->thread, i, 1, 0), MS_OK);
            if (i % 10 == 0)
                small_call(t, scene.a, 0);
        }
        ms_ledger_detach(other);
        ms_ledger_close(other);
        before = before ? before : ledger_heap.live_bytes;
    }
    CHECK(ledger_heap.live_bytes < before + 200000); /* what remains of a closed ledger is small */
    ledger_end();
}

TEST(a_ledger_opened_after_another_was_closed_is_empty)
{
    struct lane *t = ledger_start();
    add_outside(1, 100, MS_PARAMETER, scene.a);
    add_on(t, 2, 20, 5);
    add_as(3, 3, MS_BUFFER, scene.a);
    drop(3);
    small_call(t, scene.a, 1);
    ms_optimizer_enter(t->thread);
    ms_optimizer_leave(t->thread);
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    ledger = ms_ledger_open(scene.watch);
    CHECK(ledger);
    CHECK_EQ(ms_block_drop(ledger, 1), MS_EDETACHED);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    CHECK_SUMS(held(), NOTHING);
    CHECK_SUMS(held_by(scene.a), NOTHING);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), NOTHING);
    CHECK_SUMS(ms_ledger_now(ledger, 5), NOTHING);
    CHECK_EQ(ms_ledger_blocks(ledger) + ms_ledger_devices(ledger) + ms_ledger_parameters_dropped(ledger), 0);
    CHECK_EQ(ms_block_drop(ledger, 1), MS_ENOBLOCK);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW), 0);
    CHECK_EQ(ms_peak_tracker_peak(ms_peak_tracker_open(ledger), 5).bytes, 0);
    CHECK_EQ(ms_ledger_step(ledger), 0);
    small_call(t, scene.a, 1);
    CHECK_EQ(ms_ledger_step(ledger), 1);
    small_call(t, scene.a, 1); /* no optimizer step was reported to this ledger */
    CHECK_EQ(ms_ledger_step(ledger), 2);
    ledger_end();
}

/* ---- attaching and detaching while calls are open ---- */

TEST(calls_that_are_open_when_a_ledger_is_attached_have_no_snapshots)
{
    struct lane *t = ledger_start();
    ms_ledger_detach(ledger);
    call(t, scene.a);
    call(t, scene.b);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    add(t, 1, 100);
    CHECK_SUMS(held_by(scene.b), [MS_ACTIVATION] = 100);
    call(t, scene.c);
    add(t, 2, 20);
    leave_call(t);
    leave_call(t);
    leave_call(t);
    for (int i = 0; i < MS_CALL_STATE_COUNT; i++) {
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, (ms_call_state)i), 0);
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, (ms_call_state)i), 0);
    }
    call(t, scene.a);
    call(t, scene.c);
    leave_call(t);
    leave_call(t);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_FW), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.c, MS_POST_FW), 2); /* of the same step */
    CHECK_SUMS(call_snapshot(scene.a, MS_PRE_FW, 0), [MS_ACTIVATION] = 120);
    ledger_end();
}

TEST(a_node_that_is_open_when_a_ledger_is_attached_has_an_owner)
{
    struct lane *t = ledger_start();
    ms_ledger_detach(ledger);
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    add(t, 1, 100);
    leave_node(t);
    CHECK_SUMS(held_by(scene.a), [MS_TEMP] = 100);
    small_call(t, scene.a, 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_FW), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW_AC), 0);
    ledger_end();
}

TEST(a_ledger_detached_and_attached_within_calls_is_right_from_the_next_root_call_on)
{
    struct lane *t = ledger_start();
    for (int i = 0; i < 6; i++) {
        call(t, scene.a);
        call(t, scene.b);
        add(t, 1, 100);
        ms_ledger_detach(ledger);
        if (i % 2)
            leave_call(t);
        if (i % 3 == 0)
            call(t, scene.c);
        CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
        while (ms_thread_depth(t->thread))
            leave_call(t);
        drop(1);
        call(t, scene.a);
        add(t, 2, 30);
        drop(2);
        leave_call(t);
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW), 1);
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_FW), 1);
        CHECK_SUMS(call_snapshot(scene.a, MS_PRE_FW, 0), NOTHING);
        CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_ACTIVATION] = 30);
        CHECK_SUMS(call_snapshot(scene.a, MS_POST_FW, 0), NOTHING);
    }
    ledger_end();
}

TEST(a_ledger_is_opened_and_closed_without_ever_being_attached)
{
    struct lane *t = ledger_start();
    ms_ledger *other = ms_ledger_open(scene.watch);
    CHECK(other && ms_peak_tracker_open(other));
    CHECK_EQ(ms_peak_tracker_peak(ms_peak_tracker_open(other), 0).bytes, 0);
    ms_ledger_close(other);
    add(t, 1, 1);
    ledger_end();
}

/* A block of 1,000 in one ledger's call must not be the peak of a call in the next one. */
TEST(a_thread_has_no_peak_of_an_earlier_ledger)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add(t, 1, 1000);
    drop(1);
    leave_call(t);
    ms_ledger_detach(ledger);
    ms_ledger *next = ms_ledger_open(scene.watch);
    CHECK(next);
    CHECK_EQ(ms_ledger_attach(next), MS_OK);
    call(t, scene.a);
    CHECK_EQ(ms_block_add(next, t->thread, 2, 4, 0), MS_OK);
    leave_call(t);
    ms_sums peak;
    CHECK(ms_call_snapshot_at(next, scene.a, MS_PEAK_FW, 0, 0, &peak, NULL));
    CHECK_EQ(total(peak), 4);
    ms_ledger_close(next);
    ledger_end();
}
