/* test_without_call_snapshots.c - a ledger that keeps no call snapshots, or keeps them for some time only. */
#include "ledger_scene.h"

static size_t snapshot_count(ms_path path)
{
    size_t count = 0;
    for (int i = 0; i < MS_CALL_STATE_COUNT; i++)
        count += ms_call_snapshot_count(ledger, path, (ms_call_state)i);
    return count;
}

/* A call of a, in which one of b creates a node and a block; then their backward. */
static void train(struct lane *t, uint64_t address)
{
    uint64_t created = t->seq;
    call(t, scene.a);
    call(t, scene.b);
    make(t, 1);
    add(t, address, 10);
    leave_call(t);
    leave_call(t);
    node(t, t, created);
    add(t, address + 1, 5);
    leave_node(t);
}

TEST(without_call_snapshots_calls_have_none_and_all_else_is_counted)
{
    struct lane *t = ledger_start();
    ms_ledger_keep_call_snapshots(ledger, false);
    ms_peak_tracker *tracker = open_tracker();
    for (uint64_t i = 1; i <= 3; i++) {
        train(t, 10 * i);
        CHECK_EQ(ms_ledger_step(ledger), i);
    }
    CHECK_EQ(snapshot_count(scene.a) + snapshot_count(scene.b), 0);
    CHECK_SUMS(held_by(scene.b), [MS_ACTIVATION] = 30, [MS_TEMP] = 15);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 45);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).step, 3);
    ledger_end();
}

TEST(call_snapshots_that_are_kept_again_are_of_calls_from_then_on)
{
    struct lane *t = ledger_start();
    train(t, 10);
    CHECK(snapshot_count(scene.b) > 0);
    ms_ledger_keep_call_snapshots(ledger, false);
    train(t, 20);
    ms_ledger_keep_call_snapshots(ledger, true);
    CHECK_EQ(snapshot_count(scene.a) + snapshot_count(scene.b), 0);
    node(t, t, 1); /* of the call that had none */
    leave_node(t);
    CHECK_EQ(snapshot_count(scene.a) + snapshot_count(scene.b), 0);
    train(t, 30);
    CHECK_SUMS(call_snapshot(scene.b, MS_PRE_FW, 0), [MS_ACTIVATION] = 20, [MS_TEMP] = 10);
    CHECK_SUMS(call_snapshot(scene.b, MS_POST_BW, 0), [MS_ACTIVATION] = 30, [MS_TEMP] = 15);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_PRE_FW), 1);
    ledger_end();
}

TEST(call_snapshots_may_end_and_begin_inside_a_call_and_a_node)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    call(t, scene.b);
    make(t, 1);
    ms_ledger_keep_call_snapshots(ledger, false);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_POST_FW), 0);
    leave_call(t);
    call(t, scene.c);
    ms_ledger_keep_call_snapshots(ledger, true);
    add(t, 1, 10);
    leave_call(t);
    leave_call(t);
    CHECK_EQ(snapshot_count(scene.a) + snapshot_count(scene.b) + snapshot_count(scene.c), 0);
    CHECK_EQ(ms_ledger_step(ledger), 1); /* the call of c is inside that of a */
    call(t, scene.d);
    make(t, 1);
    leave_call(t);
    node(t, t, 1);
    ms_ledger_keep_call_snapshots(ledger, false);
    add(t, 2, 5);
    leave_node(t);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.d, MS_PRE_BW), 1);
    node(t, t, 1);
    ms_ledger_keep_call_snapshots(ledger, true);
    add(t, 3, 5);
    leave_node(t);
    CHECK_EQ(snapshot_count(scene.d), 0);
    ledger_end();
}
