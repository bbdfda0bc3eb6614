/* test_rounds.c - rounds and iterations: which calls the moments are of. */
#include "ledger_scene.h"

static size_t entries(ms_path path)
{
    size_t count = ms_call_snapshot_count(ledger, path, MS_PRE_FW);
    CHECK_EQ(ms_call_snapshot_count(ledger, path, MS_POST_FW), count);
    CHECK_EQ(ms_call_snapshot_count(ledger, path, MS_PEAK_FW), count);
    return count;
}

static uint64_t current_step(void)
{
    return ms_ledger_step(ledger);
}

static void optimizer_step(struct lane *lane)
{
    ms_optimizer_enter(lane->thread);
    ms_optimizer_leave(lane->thread);
}

/* ---- rounds ---- */

TEST(a_new_round_takes_the_place_of_the_old_one)
{
    struct lane *t = ledger_start();
    for (uint64_t round = 0; round < 5; round++) {
        call(t, scene.a);
        for (uint64_t i = 0; i <= round % 3; i++)
            small_call(t, scene.b, 1);
        leave_call(t);
        add(t, 1 + round, 10);
        CHECK_EQ(entries(scene.a), 1);
        CHECK_EQ(entries(scene.b), 1 + round % 3);
        CHECK_EQ(total(moment(scene.a, MS_PRE_FW, 0)), 10 * round);
        CHECK_EQ(total(moment(scene.b, MS_POST_FW, round % 3)), 10 * round);
    }
    ledger_end();
}

TEST(a_path_keeps_the_moments_of_the_latest_round_that_called_it)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    small_call(t, scene.b, 0);
    small_call(t, scene.b, 0);
    leave_call(t);
    add(t, 1, 100);
    call(t, scene.a);
    small_call(t, scene.c, 0);
    leave_call(t);
    small_call(t, scene.d, 0);
    CHECK_EQ(entries(scene.b), 2);
    CHECK_EQ(total(moment(scene.b, MS_PRE_FW, 0)), 0);
    CHECK_EQ(entries(scene.a), 1);
    CHECK_EQ(total(moment(scene.a, MS_PRE_FW, 0)), 100);
    CHECK_EQ(entries(scene.c), 1);
    ledger_end();
}

TEST(a_call_in_a_hold_alone_begins_a_round)
{
    struct lane *t = ledger_start();
    small_call(t, scene.a, 0);
    override(t, scene.d);
    small_call(t, scene.a, 0);
    CHECK_EQ(entries(scene.a), 1);
    small_call(t, scene.a, 0);
    leave_override(t);
    CHECK_EQ(entries(scene.a), 1);
    CHECK_EQ(current_step(), 3);
    ledger_end();
}

TEST(a_call_in_a_step_begins_a_round)
{
    struct lane *t = ledger_start();
    small_call(t, scene.a, 0);
    ms_optimizer_enter(t->thread);
    add(t, 1, 100);
    small_call(t, scene.a, 0);
    ms_optimizer_leave(t->thread);
    CHECK_EQ(entries(scene.a), 1);
    CHECK_EQ(total(moment(scene.a, MS_PRE_FW, 0)), 100);
    ledger_end();
}

TEST(a_call_inside_a_node_begins_no_round)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    call(t, scene.a);
    small_call(t, scene.b, 1);
    small_call(t, scene.b, 1);
    leave_call(t);
    node(u, t, 0);
    small_call(u, scene.b, 0);
    leave_node(u);
    CHECK_EQ(entries(scene.a), 1);
    CHECK_EQ(entries(scene.b), 2);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

TEST(the_rounds_of_two_threads_are_two)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    call(t, scene.a);
    call(u, scene.d);
    small_call(t, scene.b, 0);
    small_call(u, scene.c, 0);
    small_call(t, scene.b, 0);
    small_call(u, scene.c, 0);
    leave_call(t);
    leave_call(u);
    CHECK_EQ(entries(scene.b), 2);
    CHECK_EQ(entries(scene.c), 2);
    small_call(u, scene.c, 0);
    CHECK_EQ(entries(scene.b), 2);
    CHECK_EQ(entries(scene.c), 1);
    ledger_end();
}

TEST(a_thread_that_ends_in_a_call_leaves_the_next_round_right)
{
    struct lane *t = ledger_start();
    for (uint64_t i = 0; i < 10; i++) {
        struct lane *u = scene_lane(&scene, 100 + i);
        call(u, scene.a);
        add(u, 1, 100);
        call(u, scene.b);
        end_lane(u);
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_FW), 1);
        drop(1);
    }
    call(t, scene.a);
    add(t, 2, 20);
    drop(2);
    leave_call(t);
    CHECK_EQ(entries(scene.a), 1);
    CHECK_SUMS(moment(scene.a, MS_PEAK_FW, 0), [MS_ACTIVATION] = 20);
    ledger_end();
}

TEST(the_moments_of_an_ended_thread_stay)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    add(u, 1, 100);
    small_call(u, scene.a, 1);
    end_lane(u);
    small_call(t, scene.d, 1);
    CHECK_EQ(entries(scene.a), 1);
    CHECK_SUMS(moment(scene.a, MS_POST_FW, 0), [MS_ACTIVATION] = 100);
    ledger_end();
}

TEST(rounds_take_no_more_memory)
{
    struct lane *t = ledger_start();
    size_t before = 0;
    for (int round = 0; round < 3000; round++) {
        call(t, scene.a);
        for (int i = 0; i < 10; i++)
            small_call(t, scene.b, 1);
        leave_call(t);
        optimizer_step(t);
        if (round == 1500)
            before = ledger_heap.live_bytes;
    }
    CHECK_EQ(ledger_heap.live_bytes, before);
    ledger_end();
}

/* ---- iterations ---- */

TEST(iterations_begin_with_the_first_round)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    optimizer_step(t);
    CHECK_EQ(current_step(), 0);
    node(t, t, MS_NO_NUMBER);
    leave_node(t);
    CHECK_EQ(current_step(), 0);
    call(t, scene.a);
    CHECK_EQ(current_step(), 1);
    leave_call(t);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

TEST(without_steps_a_path_s_second_round_is_the_next_iteration)
{
    struct lane *t = ledger_start();
    const struct {
        ms_path path;
        uint64_t current_step;
    } rounds[] = {{scene.a, 1}, {scene.d, 1}, {scene.c, 1}, {scene.a, 2}, {scene.a, 3}, {scene.d, 3},
                  {scene.c, 3}, {scene.c, 4}, {scene.a, 4}, {scene.d, 4}, {scene.d, 5}};
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        small_call(t, rounds[i].path, 0);
        if (current_step() != rounds[i].current_step)
            FAIL("round %zu is in current_step %llu", i, (unsigned long long)current_step());
    }
    ledger_end();
}

TEST(calls_inside_a_round_are_no_rounds)
{
    struct lane *t = ledger_start();
    small_call(t, scene.b, 0);
    call(t, scene.a);
    for (int i = 0; i < 5; i++)
        small_call(t, scene.b, 0);
    leave_call(t);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

TEST(with_steps_an_iteration_begins_with_the_round_after_a_step)
{
    struct lane *t = ledger_start();
    small_call(t, scene.a, 0);
    optimizer_step(t);
    CHECK_EQ(current_step(), 1);
    for (uint64_t i = 2; i < 6; i++) {
        small_call(t, scene.a, 0);
        CHECK_EQ(current_step(), i);
        small_call(t, scene.a, 0); /* accumulates: no step between */
        small_call(t, scene.d, 0);
        CHECK_EQ(current_step(), i);
        optimizer_step(t);
        optimizer_step(t); /* two optimizers */
        CHECK_EQ(current_step(), i);
    }
    ledger_end();
}

TEST(once_a_step_was_entered_only_steps_count)
{
    struct lane *t = ledger_start();
    small_call(t, scene.a, 0);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 2);
    ms_optimizer_enter(t->thread);
    small_call(t, scene.a, 0); /* a closure */
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 2);
    ms_optimizer_leave(t->thread);
    CHECK_EQ(current_step(), 2);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 3);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 3);
    ledger_end();
}

TEST(expected_steps_count_before_the_first_one)
{
    struct lane *t = ledger_start();
    ms_ledger_expect_optimizer(ledger);
    for (int i = 0; i < 4; i++)
        small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 1);
    optimizer_step(t);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 2);
    ledger_end();
}

TEST(a_step_that_is_never_left_begins_no_iteration)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    ms_optimizer_enter(t->thread);
    leave_call(t);
    small_call(t, scene.a, 0);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 1);
    optimizer_step(t);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 2);
    ledger_end();
}

TEST(leaving_a_step_that_was_never_entered_begins_no_iteration)
{
    struct lane *t = ledger_start();
    ms_ledger_expect_optimizer(ledger);
    small_call(t, scene.a, 0);
    ms_optimizer_leave(t->thread);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

TEST(a_step_on_any_thread_counts)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    small_call(t, scene.a, 0);
    optimizer_step(u);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 2);
    ledger_end();
}
