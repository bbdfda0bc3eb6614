/* test_backward.c - call snapshots of backwards, and of recomputes inside them. */
#include "ledger_scene.h"

static void check_counts(ms_path path, size_t pre, size_t peak, size_t post)
{
    CHECK_EQ(ms_call_snapshot_count(ledger, path, MS_PRE_BW), pre);
    CHECK_EQ(ms_call_snapshot_count(ledger, path, MS_PEAK_BW), peak);
    CHECK_EQ(ms_call_snapshot_count(ledger, path, MS_POST_BW), post);
}

static void check_totals(ms_path path, size_t index, int64_t pre, int64_t peak, int64_t post)
{
    CHECK_EQ(total(call_snapshot(path, MS_PRE_BW, index)), pre);
    CHECK_EQ(total(call_snapshot(path, MS_PEAK_BW, index)), peak);
    CHECK_EQ(total(call_snapshot(path, MS_POST_BW, index)), post);
}

/* Run a node that allocates `most` bytes, frees them, and allocates `rest` bytes, which stay. */
static void run(struct lane *lane, const struct lane *creator, uint64_t number, uint64_t most, uint64_t rest)
{
    node(lane, creator, number);
    add(lane, 5000, most);
    drop(5000);
    if (rest)
        add(lane, 6000 + number, rest);
    leave_node(lane);
}

/* a creates node 0, b inside it node 1, a node 2, and d node 3. */
static void forward(struct lane *lane)
{
    call(lane, scene.a);
    make(lane, 1);
    small_call(lane, scene.b, 1);
    make(lane, 1);
    leave_call(lane);
    small_call(lane, scene.d, 1);
}

TEST(backward_begins_with_the_first_node_and_ends_with_one_created_elsewhere)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    forward(t);
    check_counts(scene.a, 0, 0, 0);
    run(t, t, 3, 10, 1);
    run(t, t, 2, 20, 1);
    run(t, t, 1, 50, 1);
    run(t, t, 0, 30, 1);
    node(t, t, MS_NO_NUMBER);
    leave_node(t);
    check_counts(scene.d, 1, 1, 1);
    check_counts(scene.a, 1, 1, 1);
    check_counts(scene.b, 1, 1, 1);
    check_totals(scene.d, 0, 100, 110, 101);
    check_totals(scene.b, 0, 102, 152, 103);
    check_totals(scene.a, 0, 101, 152, 104);
    CHECK_SUMS(call_snapshot(scene.b, MS_PEAK_BW, 0), [MS_OTHER] = 100, [MS_TEMP] = 52);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW), 1);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_OTHER] = 100);
    ledger_end();
}

TEST(the_end_of_backward_is_known_without_reading_the_count)
{
    struct lane *t = ledger_start();
    forward(t);
    run(t, t, 3, 10, 1);
    run(t, t, 1, 20, 1);
    node(t, t, 2);
    check_totals(scene.b, 0, 1, 21, 2);
    leave_node(t);
    CHECK_EQ(total(call_snapshot(scene.a, MS_POST_BW, 0)), 2);
    ledger_end();
}

TEST(backward_of_an_outer_call_begins_with_a_node_of_an_inner_one)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    call(t, scene.b);
    small_call(t, scene.c, 1);
    leave_call(t);
    leave_call(t);
    small_call(t, scene.d, 1);
    run(t, t, 0, 10, 1);
    run(t, t, 1, 20, 1);
    check_totals(scene.a, 0, 0, 10, 1);
    check_totals(scene.b, 0, 0, 10, 1);
    check_totals(scene.c, 0, 0, 10, 1);
    check_totals(scene.d, 0, 1, 21, 2);
    ledger_end();
}

TEST(a_later_node_of_the_call_moves_the_end_of_its_backward)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    small_call(t, scene.b, 2);
    leave_call(t);
    small_call(t, scene.d, 3);
    run(t, t, 4, 5, 1);
    run(t, t, 1, 10, 1);
    run(t, t, 3, 5, 1);
    check_totals(scene.b, 0, 1, 11, 2);
    run(t, t, 0, 40, 1);
    run(t, t, 2, 5, 1);
    check_counts(scene.b, 1, 1, 1);
    check_totals(scene.b, 0, 1, 43, 4);
    check_counts(scene.d, 1, 1, 1);
    CHECK_EQ(total(call_snapshot(scene.d, MS_PRE_BW, 0)), 0);
    CHECK_EQ(total(call_snapshot(scene.d, MS_POST_BW, 0)), 5);
    ledger_end();
}

TEST(an_end_that_moved_has_a_later_time)
{
    struct lane *t = ledger_start();
    forward(t);
    run(t, t, 1, 1, 0);
    run(t, t, 3, 1, 0);
    uint64_t before = call_snapshot_time(scene.b, MS_POST_BW, 0);
    uint64_t begun = call_snapshot_time(scene.d, MS_PRE_BW, 0);
    run(t, t, 1, 1, 0);
    run(t, t, 3, 1, 0);
    CHECK(call_snapshot_time(scene.b, MS_POST_BW, 0) > before);
    CHECK(call_snapshot_time(scene.b, MS_PRE_BW, 0) < begun);
    CHECK_EQ(call_snapshot_time(scene.d, MS_PRE_BW, 0), begun);
    ledger_end();
}

TEST(each_call_of_a_path_has_its_own_backward)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    for (int i = 0; i < 3; i++)
        small_call(t, scene.b, 1);
    leave_call(t);
    small_call(t, scene.d, 1);
    run(t, t, 2, 30, 1);
    run(t, t, 1, 20, 1);
    run(t, t, 0, 10, 1);
    run(t, t, 3, 5, 1);
    check_counts(scene.b, 3, 3, 3);
    check_totals(scene.b, 0, 2, 12, 3);
    check_totals(scene.b, 1, 1, 21, 2);
    check_totals(scene.b, 2, 0, 30, 1);
    check_totals(scene.a, 0, 0, 30, 3);
    ledger_end();
}

TEST(a_new_root_call_replaces_the_backward_of_the_old_one)
{
    struct lane *t = ledger_start();
    for (uint64_t i = 0; i < 3; i++) {
        forward(t);
        check_counts(scene.b, 0, 0, 0);
        add(t, 1, 100 * (i + 1));
        run(t, t, 4 * i + 1, 10, 0);
        run(t, t, 4 * i + 3, 10, 0);
        check_counts(scene.b, 1, 1, 1);
        int64_t held_then = 100 * (int64_t)(i + 1);
        check_totals(scene.b, 0, held_then, held_then + 10, held_then);
    }
    ledger_end();
}

TEST(a_node_of_an_old_root_call_is_not_part_of_the_new_one)
{
    struct lane *t = ledger_start();
    forward(t);
    forward(t);
    run(t, t, 1, 10, 0);
    run(t, t, 3, 10, 0);
    check_counts(scene.b, 0, 0, 0);
    check_counts(scene.a, 0, 0, 0);
    run(t, t, 5, 10, 0);
    run(t, t, 7, 10, 0);
    check_counts(scene.b, 1, 1, 1);
    ledger_end();
}

TEST(backward_may_run_on_another_thread)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    forward(t);
    run(u, t, 3, 10, 1);
    run(u, t, 2, 20, 1);
    run(u, t, 1, 50, 1);
    run(u, t, 0, 30, 1);
    end_lane(u);
    check_totals(scene.d, 0, 0, 10, 1);
    check_totals(scene.b, 0, 2, 52, 3);
    check_totals(scene.a, 0, 1, 52, 4);
    ledger_end();
}

TEST(what_another_thread_allocates_during_a_node_counts)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    forward(t);
    node(u, t, 1);
    add(t, 1, 1000);
    drop(1);
    leave_node(u);
    run(u, t, 3, 1, 0);
    check_totals(scene.b, 0, 0, 1000, 0);
    check_totals(scene.a, 0, 0, 1000, 0);
    ledger_end();
}

TEST(what_is_allocated_between_two_nodes_is_in_the_peak)
{
    struct lane *t = ledger_start();
    forward(t);
    run(t, t, 2, 10, 0);
    add(t, 1, 1000);
    node(t, t, 0);
    leave_node(t);
    run(t, t, 3, 1, 0);
    check_totals(scene.a, 0, 0, 1000, 1000);
    ledger_end();
}

/* ---- nested ---- */

TEST(a_backward_inside_a_node_is_part_of_that_node_s_backward)
{
    struct lane *t = ledger_start();
    forward(t);
    node(t, t, 1);
    run(t, t, 3, 70, 1);
    add(t, 10, 5);
    leave_node(t);
    run(t, t, 3, 3, 1);
    check_counts(scene.b, 1, 1, 1);
    check_counts(scene.d, 1, 1, 1);
    check_totals(scene.b, 0, 0, 70, 6);
    CHECK_EQ(total(call_snapshot(scene.d, MS_PRE_BW, 0)), 0);
    CHECK_EQ(total(call_snapshot(scene.d, MS_POST_BW, 0)), 6);
    ledger_end();
}

TEST(what_a_node_allocates_after_a_backward_inside_it_is_in_its_own_peak)
{
    struct lane *t = ledger_start();
    forward(t);
    node(t, t, 1);
    run(t, t, 3, 70, 1);
    add(t, 10, 900);
    drop(10);
    leave_node(t);
    check_totals(scene.d, 0, 0, 70, 1);
    check_totals(scene.b, 0, 0, 901, 1);
    ledger_end();
}

TEST(what_a_call_allocates_after_a_backward_inside_it_is_in_its_peak)
{
    struct lane *t = ledger_start();
    small_call(t, scene.d, 1);
    call(t, scene.a);
    run(t, t, 0, 70, 0);
    add(t, 10, 900);
    drop(10);
    leave_call(t);
    check_totals(scene.d, 0, 0, 70, 0);
    CHECK_EQ(total(call_snapshot(scene.a, MS_PEAK_FW, 0)), 900);
    ledger_end();
}

TEST(a_backward_inside_a_call_is_in_the_call_s_peak)
{
    struct lane *t = ledger_start();
    small_call(t, scene.d, 1);
    call(t, scene.a);
    run(t, t, 0, 70, 1);
    leave_call(t);
    CHECK_EQ(total(call_snapshot(scene.a, MS_PEAK_FW, 0)), 70);
    CHECK_EQ(total(call_snapshot(scene.a, MS_POST_FW, 0)), 1);
    check_totals(scene.d, 0, 0, 70, 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW_AC), 0);
    ledger_end();
}

/* ---- recompute ---- */

TEST(a_recompute_has_snapshots_of_its_own)
{
    struct lane *t = ledger_start();
    forward(t);
    add(t, 1, 100);
    node(t, t, 2);
    add(t, 2, 20);
    call(t, scene.b);
    add(t, 3, 30);
    drop(1);
    leave_call(t);
    leave_node(t);
    run(t, t, 3, 1, 0);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_PRE_FW), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_POST_FW), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_PEAK_FW), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_PRE_FW_AC), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_POST_FW_AC), 1);
    CHECK_SUMS(call_snapshot(scene.b, MS_PRE_FW_AC, 0), [MS_OTHER] = 100, [MS_TEMP] = 20);
    CHECK_SUMS(call_snapshot(scene.b, MS_POST_FW_AC, 0), [MS_ACTIVATION] = 30, [MS_TEMP] = 20);
    CHECK_SUMS(call_snapshot(scene.b, MS_PRE_FW, 0), NOTHING);
    check_totals(scene.a, 0, 100, 150, 50);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW_AC), 0);
    ledger_end();
}

TEST(recomputes_nest_and_are_in_order)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    forward(t);
    node(u, t, 2);
    call(u, scene.b);
    add(u, 1, 1);
    small_call(u, scene.c, 0);
    add(u, 2, 10);
    small_call(u, scene.c, 0);
    leave_call(u);
    leave_node(u);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.c, MS_PRE_FW_AC), 2);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.c, MS_PRE_FW), 0);
    CHECK_EQ(total(call_snapshot(scene.c, MS_PRE_FW_AC, 0)), 1);
    CHECK_EQ(total(call_snapshot(scene.c, MS_POST_FW_AC, 1)), 11);
    CHECK_EQ(total(call_snapshot(scene.b, MS_POST_FW_AC, 0)), 11);
    CHECK(call_snapshot_time(scene.b, MS_PRE_FW_AC, 0) < call_snapshot_time(scene.c, MS_PRE_FW_AC, 0));
    CHECK(call_snapshot_time(scene.c, MS_POST_FW_AC, 1) < call_snapshot_time(scene.b, MS_POST_FW_AC, 0));
    ledger_end();
}

TEST(a_new_root_call_replaces_the_recomputes_of_the_old_one)
{
    struct lane *t = ledger_start();
    for (uint64_t i = 0; i < 3; i++) {
        forward(t);
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_PRE_FW_AC), 0);
        node(t, t, 4 * i + 2);
        small_call(t, scene.b, 0);
        leave_node(t);
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_PRE_FW_AC), 1);
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_POST_FW_AC), 1);
    }
    ledger_end();
}

/* ---- reported without nodes ---- */

TEST(backward_may_be_reported_without_nodes)
{
    struct lane *t = ledger_start();
    forward(t);
    add(t, 1, 100);
    ms_backward_enter(t->thread, scene.a);
    add(t, 2, 20);
    ms_backward_enter(t->thread, scene.b);
    add(t, 3, 300);
    drop(3);
    ms_backward_leave(t->thread, scene.b);
    drop(2);
    ms_backward_leave(t->thread, scene.a);
    add(t, 4, 4000);
    check_counts(scene.a, 1, 1, 1);
    check_counts(scene.b, 1, 1, 1);
    check_totals(scene.b, 0, 120, 420, 120);
    check_totals(scene.a, 0, 100, 420, 100);
    check_counts(scene.d, 0, 0, 0);
    ledger_end();
}

TEST(reported_backwards_may_end_in_any_order)
{
    struct lane *t = ledger_start();
    forward(t);
    ms_backward_enter(t->thread, scene.a);
    add(t, 1, 1);
    ms_backward_enter(t->thread, scene.d);
    add(t, 2, 10);
    ms_backward_leave(t->thread, scene.a);
    add(t, 3, 100);
    ms_backward_leave(t->thread, scene.d);
    ms_backward_leave(t->thread, scene.d); /* not begun */
    ms_backward_leave(t->thread, scene.c); /* never called */
    check_totals(scene.a, 0, 0, 11, 11);
    check_totals(scene.d, 0, 1, 111, 111);
    check_counts(scene.c, 0, 0, 0);
    ledger_end();
}

TEST(a_device_that_is_first_used_during_backward_is_counted)
{
    struct lane *t = ledger_start();
    forward(t);
    node(t, t, 1);
    add_on(t, 1, 100, 5);
    drop(1);
    add_on(t, 2, 20, 5);
    leave_node(t);
    ms_backward_enter(t->thread, scene.d);
    add_on(t, 3, 300, 6);
    drop(3);
    ms_backward_leave(t->thread, scene.d);
    ms_sums sums;
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.b, MS_POST_BW), 1);
    CHECK(ms_call_snapshot_at(ledger, scene.b, MS_PRE_BW, 0, 5, &sums, NULL) && total(sums) == 0);
    CHECK(ms_call_snapshot_at(ledger, scene.b, MS_PEAK_BW, 0, 5, &sums, NULL) && total(sums) == 100);
    CHECK(ms_call_snapshot_at(ledger, scene.b, MS_POST_BW, 0, 5, &sums, NULL) && total(sums) == 20);
    CHECK(ms_call_snapshot_at(ledger, scene.d, MS_PEAK_BW, 0, 6, &sums, NULL));
    CHECK_EQ(total(sums), 300);
    ledger_end();
}
