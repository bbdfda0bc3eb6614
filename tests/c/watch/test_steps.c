/* test_steps.c - optimizer steps on a thread, and nodes that are entered with their path. */
#include "runner.h"
#include "scene.h"

#include <stdio.h>

static struct scene scene;

static struct lane *start(void)
{
    scene_open(&scene, NULL);
    return scene_lane(&scene, 7);
}

static void enter_as(struct lane *lane, ms_path path)
{
    CHECK_EQ(ms_node_enter_as(lane->thread, path, lane->seq), MS_OK);
}

TEST(a_step_is_the_optimizer_until_it_is_left)
{
    struct lane *t = start();
    ms_optimizer_enter(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_OPTIMIZER);
    CHECK_EQ(ms_thread_path(t->thread), MS_GLOBAL);
    CHECK_EQ(ms_thread_depth(t->thread), 0);
    ms_optimizer_leave(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    scene_close(&scene);
}

TEST(leaving_a_step_that_was_never_entered_changes_nothing)
{
    struct lane *t = start();
    ms_optimizer_leave(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    call(t, scene.a);
    ms_optimizer_leave(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    ms_optimizer_enter(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_OPTIMIZER);
    scene_close(&scene);
}

TEST(what_is_entered_in_a_step_counts_as_what_it_is)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    ms_optimizer_enter(t->thread);
    call(t, scene.d);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    CHECK_EQ(ms_thread_path(t->thread), scene.d);
    leave_call(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_OPTIMIZER);
    node(t, t, a);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    call(t, scene.b);
    CHECK_EQ(ms_thread_phase(t->thread), MS_RECOMPUTE);
    leave_call(t);
    leave_node(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_OPTIMIZER);
    ms_optimizer_leave(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    scene_close(&scene);
}

TEST(a_step_inside_a_call_is_in_that_call)
{
    struct lane *t = start();
    call(t, scene.a);
    ms_optimizer_enter(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_OPTIMIZER);
    CHECK_EQ(ms_thread_path(t->thread), scene.a);
    ms_optimizer_leave(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    leave_call(t);
    scene_close(&scene);
}

TEST(leaving_the_call_around_a_step_ends_the_step)
{
    struct lane *t = start();
    call(t, scene.a);
    call(t, scene.b);
    ms_optimizer_enter(t->thread);
    leave_call(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    CHECK_EQ(ms_thread_path(t->thread), scene.a);
    leave_call(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    scene_close(&scene);
}

TEST(leaving_the_node_or_override_around_a_step_ends_the_step)
{
    struct lane *t = start();
    node(t, t, MS_NO_NUMBER);
    override(t, scene.a);
    ms_optimizer_enter(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_OPTIMIZER);
    leave_override(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    ms_optimizer_enter(t->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_OPTIMIZER);
    leave_node(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    scene_close(&scene);
}

TEST(a_step_ends_with_its_thread)
{
    ms_options options = {.calls_kept = 256, .threads_kept = 1};
    scene_open(&scene, &options);
    for (uint64_t id = 1; id < 20; id++) {
        struct lane *t = scene_lane(&scene, id);
        CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
        small_call(t, scene.a, id % 2);
        ms_optimizer_enter(t->thread);
        end_lane(t);
    }
    scene_close(&scene);
}

TEST(a_step_on_one_thread_is_no_step_on_another)
{
    struct lane *t = start(), *u = scene_lane(&scene, 8);
    ms_optimizer_enter(t->thread);
    CHECK_EQ(ms_thread_phase(u->thread), MS_IDLE);
    ms_optimizer_leave(u->thread);
    CHECK_EQ(ms_thread_phase(t->thread), MS_OPTIMIZER);
    scene_close(&scene);
}

TEST(a_node_entered_as_a_path_is_that_paths)
{
    struct lane *t = start();
    enter_as(t, scene.b);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    CHECK_EQ(ms_thread_path(t->thread), scene.b);
    CHECK_EQ(ms_thread_depth(t->thread), 1);
    CHECK_CONTEXTS(t, scene.b);
    leave_node(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    CHECK_EQ(ms_node_leave(t->thread, t->seq), MS_EUNBALANCED);
    scene_close(&scene);
}

TEST(nodes_made_in_a_node_entered_as_a_path_are_that_paths)
{
    struct lane *t = start();
    uint64_t before = make(t, 1);
    enter_as(t, scene.c);
    uint64_t first = make(t, 2);
    leave_node(t);
    uint64_t after = make(t, 1);
    CHECK_EQ(owner(t, before), MS_GLOBAL);
    CHECK_EQ(owner(t, first), scene.c);
    CHECK_EQ(owner(t, first + 1), scene.c);
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    scene_close(&scene);
}

TEST(nodes_entered_as_paths_mix_with_numbered_ones)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    enter_as(t, scene.d);
    CHECK_CONTEXTS(t, scene.a, scene.d);
    uint64_t inner = make(t, 1);
    leave_node(t);
    uint64_t outer = make(t, 1);
    leave_node(t);
    enter_as(t, scene.b);
    node(t, t, a);
    CHECK_CONTEXTS(t, scene.b, scene.a);
    leave_node(t);
    leave_node(t);
    CHECK_EQ(owner(t, inner), scene.d);
    CHECK_EQ(owner(t, outer), scene.a);
    scene_close(&scene);
}

TEST(paths_are_counted)
{
    scene_open(&scene, NULL);
    CHECK_EQ(ms_path_count(scene.watch), 6);
    CHECK_EQ(scene.d + 1, ms_path_count(scene.watch));
    ms_path again;
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "b", &again), MS_OK);
    CHECK_EQ(ms_path_count(scene.watch), 6);
    for (int i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, name, &again), MS_OK);
        CHECK_EQ(ms_path_count(scene.watch), again + 1);
    }
    scene_close(&scene);
}
