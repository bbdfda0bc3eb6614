/* test_contexts.c - where a thread is: phase, path, contexts, depth. */
#include "runner.h"
#include "scene.h"

static struct scene scene;

static struct lane *start(void)
{
    scene_open(&scene, NULL);
    return scene_lane(&scene, 7);
}

TEST(a_thread_that_does_nothing_is_idle_in_global)
{
    struct lane *t = start();
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    CHECK_EQ(ms_thread_path(t->thread), MS_GLOBAL);
    CHECK_EQ(ms_thread_contexts(t->thread, NULL, 0), 0);
    CHECK_EQ(ms_thread_depth(t->thread), 0);
    scene_close(&scene);
}

TEST(a_forward_is_one_context_however_deep)
{
    struct lane *t = start();
    call(t, scene.a);
    CHECK_CONTEXTS(t, scene.a);
    call(t, scene.b);
    call(t, scene.c);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    CHECK_EQ(ms_thread_path(t->thread), scene.c);
    CHECK_EQ(ms_thread_depth(t->thread), 3);
    CHECK_CONTEXTS(t, scene.c);
    leave_call(t);
    CHECK_EQ(ms_thread_path(t->thread), scene.b);
    CHECK_CONTEXTS(t, scene.b);
    leave_call(t);
    leave_call(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    CHECK_EQ(ms_thread_path(t->thread), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_backward_is_one_context)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    CHECK_EQ(ms_thread_depth(t->thread), 1);
    CHECK_CONTEXTS(t, scene.a);
    leave_node(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_IDLE);
    scene_close(&scene);
}

TEST(a_backward_of_no_call_is_a_context_too)
{
    struct lane *t = start();
    node(t, t, MS_NO_NUMBER);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    CHECK_CONTEXTS(t, MS_GLOBAL);
    leave_node(t);
    scene_close(&scene);
}

TEST(a_backward_inside_a_call_is_a_context_of_its_own)
{
    struct lane *t = start();
    uint64_t c = small_call(t, scene.c, 1);
    call(t, scene.a);
    call(t, scene.b);
    node(t, t, c);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    CHECK_EQ(ms_thread_path(t->thread), scene.c);
    CHECK_CONTEXTS(t, scene.b, scene.c);
    leave_node(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    CHECK_CONTEXTS(t, scene.b);
    scene_close(&scene);
}

TEST(a_recompute_replaces_the_node_it_runs_in)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    call(t, scene.b);
    CHECK_EQ(ms_thread_phase(t->thread), MS_RECOMPUTE);
    CHECK_CONTEXTS(t, scene.b);
    call(t, scene.c);
    CHECK_EQ(ms_thread_phase(t->thread), MS_RECOMPUTE);
    CHECK_EQ(ms_thread_path(t->thread), scene.c);
    CHECK_CONTEXTS(t, scene.c);
    leave_call(t);
    leave_call(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    CHECK_CONTEXTS(t, scene.a);
    scene_close(&scene);
}

TEST(a_backward_inside_a_recompute_is_a_context_of_its_own)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1), d = small_call(t, scene.d, 1);
    node(t, t, a);
    call(t, scene.b);
    node(t, t, d);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    CHECK_CONTEXTS(t, scene.b, scene.d);
    call(t, scene.c);
    CHECK_EQ(ms_thread_phase(t->thread), MS_RECOMPUTE);
    CHECK_CONTEXTS(t, scene.b, scene.c);
    scene_close(&scene);
}

TEST(a_node_inside_a_node_is_a_context_of_its_own)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1), d = small_call(t, scene.d, 1);
    node(t, t, a);
    node(t, t, d);
    CHECK_CONTEXTS(t, scene.a, scene.d);
    leave_node(t);
    CHECK_CONTEXTS(t, scene.a);
    scene_close(&scene);
}

TEST(an_override_replaces_the_path_of_the_node_around_it)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    override(t, scene.d);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    CHECK_EQ(ms_thread_path(t->thread), scene.d);
    CHECK_EQ(ms_thread_depth(t->thread), 2);
    CHECK_CONTEXTS(t, scene.d);
    leave_override(t);
    CHECK_EQ(ms_thread_path(t->thread), scene.a);
    CHECK_CONTEXTS(t, scene.a);
    scene_close(&scene);
}

TEST(an_override_inside_an_override_replaces_it)
{
    struct lane *t = start();
    node(t, t, MS_NO_NUMBER);
    override(t, scene.a);
    override(t, scene.d);
    CHECK_CONTEXTS(t, scene.d);
    leave_override(t);
    CHECK_CONTEXTS(t, scene.a);
    scene_close(&scene);
}

TEST(an_override_inside_a_call_is_a_context_of_its_own)
{
    struct lane *t = start();
    call(t, scene.a);
    override(t, scene.d);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    CHECK_CONTEXTS(t, scene.a, scene.d);
    leave_override(t);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    CHECK_CONTEXTS(t, scene.a);
    scene_close(&scene);
}

TEST(a_call_inside_a_hold)
{
    struct lane *t = start();
    override(t, scene.d);
    call(t, scene.a);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    CHECK_CONTEXTS(t, scene.a);
    leave_call(t);
    leave_override(t);
    node(t, t, MS_NO_NUMBER);
    override(t, scene.d);
    call(t, scene.a);
    CHECK_EQ(ms_thread_phase(t->thread), MS_RECOMPUTE);
    CHECK_CONTEXTS(t, scene.a);
    scene_close(&scene);
}

TEST(contexts_are_counted_beyond_the_room_given)
{
    struct lane *t = start();
    call(t, scene.a);
    node(t, t, MS_NO_NUMBER);
    node(t, t, MS_NO_NUMBER);
    ms_path paths[2] = {77, 77};
    CHECK_EQ(ms_thread_contexts(t->thread, NULL, 0), 3);
    CHECK_EQ(ms_thread_contexts(t->thread, paths, 1), 3);
    CHECK_EQ(paths[0], scene.a);
    CHECK_EQ(paths[1], 77);
    scene_close(&scene);
}

TEST(threads_are_each_somewhere_else)
{
    struct lane *t = start(), *u = scene_lane(&scene, 8);
    uint64_t a = small_call(t, scene.a, 1);
    call(t, scene.d);
    node(u, t, a);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    CHECK_EQ(ms_thread_phase(u->thread), MS_BACKWARD);
    CHECK_CONTEXTS(t, scene.d);
    CHECK_CONTEXTS(u, scene.a);
    scene_close(&scene);
}
