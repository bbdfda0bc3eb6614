/* test_root_calls.c - root calls and steps: which calls the snapshots are of. */
#include "ledger_scene.h"

static size_t count_calls(ms_path path)
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

/* ---- root calls ---- */

TEST(without_optimizer_steps_a_new_root_call_replaces_the_old_one)
{
    struct lane *t = ledger_start();
    for (uint64_t root_call = 0; root_call < 5; root_call++) {
        call(t, scene.a);
        for (uint64_t i = 0; i <= root_call % 3; i++)
            small_call(t, scene.b, 1);
        leave_call(t);
        add(t, 1 + root_call, 10);
        CHECK_EQ(count_calls(scene.a), 1);
        CHECK_EQ(count_calls(scene.b), 1 + root_call % 3);
        CHECK_EQ(total(call_snapshot(scene.a, MS_PRE_FW, 0)), 10 * root_call);
        CHECK_EQ(total(call_snapshot(scene.b, MS_POST_FW, root_call % 3)), 10 * root_call);
    }
    ledger_end();
}

TEST(a_path_keeps_the_snapshots_of_the_latest_step_that_called_it)
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
    CHECK_EQ(count_calls(scene.b), 2);
    CHECK_EQ(total(call_snapshot(scene.b, MS_PRE_FW, 0)), 0);
    CHECK_EQ(count_calls(scene.a), 1);
    CHECK_EQ(total(call_snapshot(scene.a, MS_PRE_FW, 0)), 100);
    CHECK_EQ(count_calls(scene.c), 1);
    ledger_end();
}

TEST(a_call_in_an_override_alone_is_a_root_call)
{
    struct lane *t = ledger_start();
    small_call(t, scene.a, 0);
    override(t, scene.d);
    small_call(t, scene.a, 0);
    CHECK_EQ(count_calls(scene.a), 1);
    small_call(t, scene.a, 0);
    leave_override(t);
    CHECK_EQ(count_calls(scene.a), 1);
    CHECK_EQ(current_step(), 3);
    ledger_end();
}

TEST(a_call_in_an_optimizer_step_is_a_root_call)
{
    struct lane *t = ledger_start();
    small_call(t, scene.a, 0);
    ms_optimizer_enter(t->thread);
    add(t, 1, 100);
    small_call(t, scene.a, 0);
    ms_optimizer_leave(t->thread);
    CHECK_EQ(count_calls(scene.a), 2);
    CHECK_EQ(total(call_snapshot(scene.a, MS_PRE_FW, 1)), 100);
    ledger_end();
}

TEST(a_call_inside_a_node_is_no_root_call)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    call(t, scene.a);
    small_call(t, scene.b, 1);
    small_call(t, scene.b, 1);
    leave_call(t);
    node(u, t, 0);
    small_call(u, scene.b, 0);
    leave_node(u);
    CHECK_EQ(count_calls(scene.a), 1);
    CHECK_EQ(count_calls(scene.b), 2);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

TEST(two_threads_have_two_root_calls)
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
    CHECK_EQ(count_calls(scene.b), 2);
    CHECK_EQ(count_calls(scene.c), 2);
    small_call(u, scene.c, 0);
    CHECK_EQ(count_calls(scene.b), 2);
    CHECK_EQ(count_calls(scene.c), 3);
    ledger_end();
}

TEST(after_a_thread_that_ends_in_a_call_the_next_root_call_is_right)
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
    CHECK_EQ(count_calls(scene.a), 1);
    CHECK_SUMS(call_snapshot(scene.a, MS_PEAK_FW, 0), [MS_ACTIVATION] = 20);
    ledger_end();
}

TEST(the_snapshots_of_an_ended_thread_stay)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    add(u, 1, 100);
    small_call(u, scene.a, 1);
    end_lane(u);
    small_call(t, scene.d, 1);
    CHECK_EQ(count_calls(scene.a), 1);
    CHECK_SUMS(call_snapshot(scene.a, MS_POST_FW, 0), [MS_OTHER] = 100);
    ledger_end();
}

TEST(more_root_calls_use_no_more_memory)
{
    struct lane *t = ledger_start();
    size_t before = 0;
    for (int root_call = 0; root_call < 3000; root_call++) {
        call(t, scene.a);
        for (int i = 0; i < 10; i++)
            small_call(t, scene.b, 1);
        leave_call(t);
        optimizer_step(t);
        if (root_call == 1500)
            before = ledger_heap.live_bytes;
    }
    CHECK_EQ(ledger_heap.live_bytes, before);
    ledger_end();
}

/* One micro-batch: a call with two calls inside, and its backward. */
static void micro_batch(struct lane *t)
{
    call(t, scene.a);
    small_call(t, scene.b, 1);
    uint64_t made = small_call(t, scene.b, 1);
    leave_call(t);
    node(t, t, made);
    leave_node(t);
}

TEST(the_snapshots_are_of_all_root_calls_of_a_step)
{
    struct lane *t = ledger_start();
    ms_ledger_expect_optimizer(ledger);
    for (uint64_t step = 0; step < 3; step++) {
        for (uint64_t i = 0; i < 4; i++) {
            add(t, 1 + 4 * step + i, 10);
            micro_batch(t);
        }
        CHECK_EQ(count_calls(scene.a), 4);
        CHECK_EQ(count_calls(scene.b), 8);
        for (uint64_t i = 0; i < 4; i++)
            CHECK_EQ(total(call_snapshot(scene.a, MS_PRE_FW, i)), 10 * (1 + 4 * step + i));
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_PRE_BW), 4);
        CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_BW), 4);
        CHECK_EQ(total(call_snapshot(scene.a, MS_PRE_BW, 3)), 10 * (4 + 4 * step));
        optimizer_step(t);
    }
    ledger_end();
}

TEST(an_evaluation_keeps_the_snapshots_of_its_latest_root_call)
{
    struct lane *t = ledger_start();
    micro_batch(t);
    optimizer_step(t);
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_EQ(ms_call_enter_without_grad(t->thread, scene.a, t->seq), MS_OK);
        small_call(t, scene.c, 0);
        leave_call(t);
        CHECK_EQ(count_calls(scene.a), 1);
        CHECK_EQ(count_calls(scene.c), 1);
        CHECK_EQ(count_calls(scene.b), 2); /* the evaluation did not call it */
    }
    ledger_end();
}

TEST(many_root_calls_in_one_step_use_no_more_memory)
{
    struct lane *t = ledger_start();
    ms_ledger_expect_optimizer(ledger);
    size_t before = 0;
    for (int i = 0; i < 10000; i++) {
        micro_batch(t);
        CHECK(count_calls(scene.a) <= 256);
        if (i == 1000)
            before = ledger_heap.live_bytes;
    }
    CHECK_EQ(ledger_heap.live_bytes, before);
    CHECK_EQ(count_calls(scene.a), 10000 % 256);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

/* ---- steps ---- */

TEST(the_first_step_begins_with_the_first_root_call)
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

TEST(without_optimizer_steps_a_path_s_second_root_call_begins_a_step)
{
    struct lane *t = ledger_start();
    const struct {
        ms_path path;
        uint64_t current_step;
    } root_calls[] = {{scene.a, 1}, {scene.d, 1}, {scene.c, 1}, {scene.a, 2}, {scene.a, 3}, {scene.d, 3},
                      {scene.c, 3}, {scene.c, 4}, {scene.a, 4}, {scene.d, 4}, {scene.d, 5}};
    for (size_t i = 0; i < sizeof root_calls / sizeof root_calls[0]; i++) {
        small_call(t, root_calls[i].path, 0);
        if (current_step() != root_calls[i].current_step)
            FAIL("root call %zu is in step %llu", i, (unsigned long long)current_step());
    }
    ledger_end();
}

TEST(calls_inside_a_root_call_begin_no_step)
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

TEST(with_optimizer_steps_a_step_begins_with_the_root_call_after_one)
{
    struct lane *t = ledger_start();
    small_call(t, scene.a, 0);
    optimizer_step(t);
    CHECK_EQ(current_step(), 1);
    for (uint64_t i = 2; i < 6; i++) {
        small_call(t, scene.a, 0);
        CHECK_EQ(current_step(), i);
        small_call(t, scene.a, 0); /* gradient accumulation: no optimizer step between them */
        small_call(t, scene.d, 0);
        CHECK_EQ(current_step(), i);
        optimizer_step(t);
        optimizer_step(t); /* two optimizers */
        CHECK_EQ(current_step(), i);
    }
    ledger_end();
}

static void step_of(struct lane *t, uint64_t optimizer)
{
    ms_optimizer_enter(t->thread);
    ms_optimizer_leave_as(t->thread, optimizer);
}

TEST(the_last_of_several_optimizers_that_step_in_turn_ends_a_step)
{
    enum { DISCRIMINATOR = 7, GENERATOR = 8 };
    struct lane *t = ledger_start();
    ms_ledger_expect_optimizers(ledger, 2);
    for (uint64_t i = 1; i < 5; i++) {
        small_call(t, scene.a, 0);
        CHECK_EQ(current_step(), i);
        CHECK(!ms_ledger_ends_step(ledger, DISCRIMINATOR));
        step_of(t, DISCRIMINATOR);
        CHECK(!ms_ledger_ends_step(ledger, 0));
        small_call(t, scene.a, 0);
        CHECK_EQ(current_step(), i);
        CHECK(ms_ledger_ends_step(ledger, GENERATOR));
        step_of(t, GENERATOR);
        CHECK(ms_ledger_ends_step(ledger, 0));
    }
    CHECK(!ms_ledger_optimizers_lack_order(ledger));
    ledger_end();
}

TEST(optimizers_that_do_not_step_in_turn_each_end_a_step)
{
    enum { CRITIC = 7, GENERATOR = 8 };
    struct lane *t = ledger_start();
    ms_ledger_expect_optimizers(ledger, 2);
    small_call(t, scene.a, 0);
    step_of(t, CRITIC);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 1);
    step_of(t, CRITIC); /* again, before the other one */
    CHECK(ms_ledger_optimizers_lack_order(ledger));
    for (uint64_t i = 2; i < 5; i++) {
        small_call(t, scene.a, 0);
        CHECK_EQ(current_step(), i);
        step_of(t, i % 2 ? CRITIC : GENERATOR);
        ms_ledger_expect_optimizers(ledger, 2); /* is told again, and changes nothing */
    }
    ledger_end();
}

TEST(once_an_optimizer_step_was_entered_only_these_begin_a_step)
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

TEST(expected_optimizer_steps_count_before_the_first_one)
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

TEST(an_optimizer_step_that_is_never_left_begins_no_step)
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

TEST(leaving_an_optimizer_step_that_was_never_entered_begins_no_step)
{
    struct lane *t = ledger_start();
    ms_ledger_expect_optimizer(ledger);
    small_call(t, scene.a, 0);
    ms_optimizer_leave(t->thread);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

TEST(an_optimizer_step_on_any_thread_counts)
{
    struct lane *t = ledger_start(), *u = scene_lane(&scene, 8);
    small_call(t, scene.a, 0);
    optimizer_step(u);
    small_call(t, scene.a, 0);
    CHECK_EQ(current_step(), 2);
    ledger_end();
}
