/* test_evaluation.c - root calls without grad: which of them are evaluation, and which belong to a step. */
#include "ledger_scene.h"

static uint64_t current_step(void)
{
    return ms_ledger_step(ledger);
}

static void optimizer_step(struct lane *lane)
{
    ms_optimizer_enter(lane->thread);
    ms_optimizer_leave(lane->thread);
}

static void call_without_grad(struct lane *lane, ms_path path)
{
    CHECK_EQ(ms_call_enter_without_grad(lane->thread, path, lane->seq), MS_OK);
}

/* The phase in a root call without grad. */
static ms_phase phase_without_grad(struct lane *lane, ms_path path)
{
    call_without_grad(lane, path);
    ms_phase phase = ms_thread_phase(lane->thread);
    leave_call(lane);
    CHECK(ms_thread_phase(lane->thread) != MS_EVALUATION);
    return phase;
}

TEST(evaluation_begins_no_step)
{
    struct lane *t = ledger_start();
    for (int i = 0; i < 5; i++)
        CHECK_EQ(phase_without_grad(t, scene.a), MS_EVALUATION);
    CHECK_EQ(current_step(), 0);
    for (uint64_t step = 1; step < 4; step++) {
        small_call(t, scene.a, 0);
        optimizer_step(t);
        for (int i = 0; i < 5; i++)
            CHECK_EQ(phase_without_grad(t, scene.a), MS_EVALUATION);
        CHECK_EQ(current_step(), step);
    }
    ledger_end();
}

TEST(a_root_call_without_grad_in_an_open_step_belongs_to_it)
{
    struct lane *t = ledger_start();
    ms_ledger_expect_optimizer(ledger);
    CHECK_EQ(phase_without_grad(t, scene.d), MS_EVALUATION);
    small_call(t, scene.a, 0);
    CHECK_EQ(phase_without_grad(t, scene.d), MS_FORWARD);
    CHECK_EQ(phase_without_grad(t, scene.a), MS_FORWARD);
    ms_optimizer_enter(t->thread);
    CHECK_EQ(phase_without_grad(t, scene.a), MS_FORWARD); /* a closure */
    ms_optimizer_leave(t->thread);
    CHECK_EQ(phase_without_grad(t, scene.d), MS_EVALUATION);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

TEST(every_call_inside_an_evaluation_is_evaluation)
{
    struct lane *t = ledger_start();
    call_without_grad(t, scene.a);
    call(t, scene.b);
    CHECK_EQ(ms_thread_phase(t->thread), MS_EVALUATION);
    add(t, 1, 100);
    CHECK_SUMS(held_by(scene.b), [MS_ACTIVATION] = 100);
    node(t, t, MS_NO_NUMBER);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    call(t, scene.c);
    CHECK_EQ(ms_thread_phase(t->thread), MS_RECOMPUTE);
    leave_call(t);
    leave_node(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_EVALUATION);
    leave_call(t);
    leave_call(t);
    call(t, scene.a);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    leave_call(t);
    ledger_end();
}

TEST(a_nested_call_without_grad_is_forward)
{
    struct lane *t = ledger_start();
    optimizer_step(t);
    call(t, scene.a);
    optimizer_step(t); /* the step has ended, and the root call has not */
    call_without_grad(t, scene.b);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    leave_call(t);
    leave_call(t);
    CHECK_EQ(current_step(), 1);
    ledger_end();
}

TEST(without_optimizer_steps_a_path_called_again_without_grad_ends_the_step)
{
    struct lane *t = ledger_start();
    for (uint64_t step = 1; step < 4; step++) {
        small_call(t, scene.a, 0);
        CHECK_EQ(phase_without_grad(t, scene.d), MS_FORWARD); /* a teacher */
        CHECK_EQ(phase_without_grad(t, scene.a), MS_EVALUATION);
        CHECK_EQ(phase_without_grad(t, scene.d), MS_EVALUATION);
        CHECK_EQ(current_step(), step);
    }
    ledger_end();
}

TEST(the_peak_of_an_evaluation_has_the_number_of_the_step_before_it)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    small_call(t, scene.a, 0);
    optimizer_step(t);
    call_without_grad(t, scene.a);
    add(t, 1, 100);
    ms_peak peak = ms_peak_tracker_peak(tracker, 0);
    CHECK_EQ(peak.phase, MS_EVALUATION);
    CHECK_EQ(peak.step, 1);
    CHECK_EQ(peak.running, scene.a);
    leave_call(t);
    ledger_end();
}

TEST(each_thread_is_in_an_evaluation_of_its_own)
{
    struct lane *t = ledger_start(), *other = scene_lane(&scene, 8);
    call_without_grad(t, scene.a);
    call(other, scene.d);
    CHECK_EQ(ms_thread_phase(t->thread), MS_EVALUATION);
    CHECK_EQ(ms_thread_phase(other->thread), MS_FORWARD);
    leave_call(t);
    CHECK_EQ(phase_without_grad(t, scene.a), MS_FORWARD); /* the other thread's step is open */
    leave_call(other);
    ledger_end();
}

TEST(an_evaluation_ends_with_its_root_call_after_the_ledger_was_detached)
{
    struct lane *t = ledger_start();
    call_without_grad(t, scene.a);
    ms_ledger_detach(ledger);
    CHECK_EQ(ms_thread_phase(t->thread), MS_EVALUATION);
    leave_call(t);
    call(t, scene.a);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    leave_call(t);
    CHECK_EQ(phase_without_grad(t, scene.a), MS_FORWARD); /* no ledger counts steps */
    ledger_end();
}
