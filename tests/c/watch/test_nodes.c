/* test_nodes.c - running backward nodes, and the nodes created meanwhile. */
#include "core/watch/watch.h"
#include "runner.h"
#include "scene.h"

static struct scene scene;

static struct lane *start(void)
{
    scene_open(&scene, NULL);
    return scene_lane(&scene, 7);
}

TEST(a_running_node_is_in_the_call_that_made_it)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1), d = small_call(t, scene.d, 1), none = make(t, 1);
    node(t, t, none);
    CHECK_EQ(ms_thread_path(t->thread), MS_GLOBAL);
    leave_node(t);
    node(t, t, d);
    CHECK_EQ(ms_thread_path(t->thread), scene.d);
    leave_node(t);
    node(t, t, a);
    CHECK_EQ(ms_thread_path(t->thread), scene.a);
    leave_node(t);
    scene_close(&scene);
}

TEST(a_node_may_run_in_a_thread_that_did_not_make_it)
{
    struct lane *t = start(), *u = scene_lane(&scene, 8);
    uint64_t a = small_call(t, scene.a, 1);
    small_call(u, scene.d, 5);
    node(u, t, a);
    CHECK_EQ(ms_thread_path(u->thread), scene.a);
    leave_node(u);
    scene_close(&scene);
}

TEST(a_thread_may_have_any_id_but_the_first_and_the_last)
{
    struct lane *t = start();
    const uint64_t ids[] = {1, UINT64_C(1) << 63, UINT64_MAX - 1};
    CHECK(!ms_thread_open(scene.watch, UINT64_MAX));
    for (int i = 0; i < 3; i++) {
        struct lane *u = scene_lane(&scene, ids[i]);
        node(u, u, MS_NO_NUMBER);
        leave_node(u);
        uint64_t d = small_call(u, scene.d, 1);
        CHECK_EQ(owner(u, d), scene.d);
        struct lane *from_now_on = scene_lane(&scene, 100 + (uint64_t)i);
        node(from_now_on, u, d);
        CHECK_EQ(ms_thread_path(from_now_on->thread), scene.d);
        leave_node(from_now_on);
        node(t, u, d);
        CHECK_EQ(ms_thread_path(t->thread), scene.d);
        leave_node(t);
    }
    scene_close(&scene);
}

TEST(nodes_of_several_threads_may_run_in_turn)
{
    struct lane *t = start(), *u = scene_lane(&scene, 8), *engine = scene_lane(&scene, 9);
    small_call(t, scene.a, 10);
    small_call(u, scene.d, 10);
    for (uint64_t i = 10; i-- > 0;) {
        node(engine, t, i);
        CHECK_EQ(ms_thread_path(engine->thread), scene.a);
        leave_node(engine);
        node(engine, u, i);
        CHECK_EQ(ms_thread_path(engine->thread), scene.d);
        leave_node(engine);
    }
    scene_close(&scene);
}

TEST(a_node_without_a_number_is_in_no_call)
{
    struct lane *t = start();
    call(t, scene.a);
    make(t, 1);
    node(t, t, MS_NO_NUMBER);
    CHECK_EQ(ms_thread_path(t->thread), MS_GLOBAL);
    CHECK_EQ(ms_thread_phase(t->thread), MS_BACKWARD);
    leave_node(t);
    leave_call(t);
    CHECK_EQ(owner(t, MS_NO_NUMBER), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_node_of_a_thread_never_opened_runs_in_global)
{
    struct lane *t = start();
    const struct lane stranger = {.id = 4242};
    node(t, &stranger, 0);
    CHECK_EQ(ms_thread_path(t->thread), MS_GLOBAL);
    leave_node(t);
    scene_close(&scene);
}

TEST(nodes_made_by_a_node_belong_to_its_call)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1), d = small_call(t, scene.d, 1);
    node(t, t, d);
    uint64_t of_d = make(t, 3);
    CHECK_EQ(owner(t, of_d), scene.d);
    leave_node(t);
    uint64_t between = make(t, 1);
    node(t, t, a);
    uint64_t of_a = make(t, 3);
    leave_node(t);
    CHECK_EQ(owner(t, of_d), scene.d);
    CHECK_EQ(owner(t, of_d + 2), scene.d);
    CHECK_EQ(owner(t, between), MS_GLOBAL);
    CHECK_EQ(owner(t, of_a + 2), scene.a);
    scene_close(&scene);
}

TEST(nodes_made_by_a_node_in_another_thread_belong_to_its_call)
{
    struct lane *t = start(), *u = scene_lane(&scene, 8);
    uint64_t a = small_call(t, scene.a, 1);
    node(u, t, a);
    uint64_t second = make(u, 2);
    leave_node(u);
    CHECK_EQ(owner(u, second), scene.a);
    node(t, u, second + 1);
    CHECK_EQ(ms_thread_path(t->thread), scene.a);
    uint64_t third = make(t, 1);
    leave_node(t);
    CHECK_EQ(owner(t, third), scene.a);
    scene_close(&scene);
}

TEST(nodes_made_by_a_node_inside_another_call_belong_to_the_nodes_call)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    call(t, scene.d);
    uint64_t before = make(t, 1);
    node(t, t, a);
    uint64_t meanwhile = make(t, 1);
    leave_node(t);
    uint64_t after = make(t, 1);
    leave_call(t);
    CHECK_EQ(owner(t, before), scene.d);
    CHECK_EQ(owner(t, meanwhile), scene.a);
    CHECK_EQ(owner(t, after), scene.d);
    scene_close(&scene);
}

TEST(nodes_made_by_a_node_of_no_call_are_global)
{
    struct lane *t = start();
    call(t, scene.a);
    node(t, t, MS_NO_NUMBER);
    uint64_t meanwhile = make(t, 1);
    leave_node(t);
    leave_call(t);
    CHECK_EQ(owner(t, meanwhile), MS_GLOBAL);
    scene_close(&scene);
}

TEST(nodes_made_by_a_recomputed_call_are_that_calls)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    uint64_t before = make(t, 1), again = small_call(t, scene.c, 2), after = make(t, 1);
    leave_node(t);
    CHECK_EQ(owner(t, before), scene.a);
    CHECK_EQ(owner(t, again + 1), scene.c);
    CHECK_EQ(owner(t, after), scene.a);
    scene_close(&scene);
}

TEST(an_override_does_not_own_the_nodes_created_in_it)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    override(t, scene.d);
    uint64_t held = make(t, 1);
    uint64_t called = small_call(t, scene.c, 1);
    leave_override(t);
    leave_node(t);
    override(t, scene.d);
    uint64_t alone = make(t, 1);
    leave_override(t);
    CHECK_EQ(owner(t, held), scene.a);
    CHECK_EQ(owner(t, called), scene.c);
    CHECK_EQ(owner(t, alone), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_node_run_twice_is_in_the_same_call_twice)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    for (int i = 0; i < 3; i++) {
        small_call(t, scene.d, 3);
        node(t, t, a);
        CHECK_EQ(ms_thread_path(t->thread), scene.a);
        leave_node(t);
    }
    scene_close(&scene);
}

TEST(nodes_that_make_none_leave_nothing)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    uint64_t count = atomic_load(&t->thread->ring.end);
    for (int i = 0; i < 100000; i++) {
        node(t, t, a);
        leave_node(t);
    }
    CHECK_EQ(atomic_load(&t->thread->ring.end), count);
    scene_close(&scene);
}
