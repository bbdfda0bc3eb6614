/* test_any.c - the owner of a node whose creator is not known (MS_ANY_THREAD). */
#include "runner.h"
#include "scene.h"

static struct scene scene;

static ms_path owner_by_any(uint64_t number)
{
    return ms_node_path(scene.watch, MS_ANY_THREAD, number);
}

TEST(any_thread_finds_the_only_thread_that_has_an_answer)
{
    scene_open(&scene, NULL);
    struct lane *t = scene_lane(&scene, 7);
    scene_lane(&scene, 8);
    make(t, 5);
    uint64_t a = small_call(t, scene.a, 1);
    CHECK_EQ(owner_by_any(a), scene.a);
    CHECK_EQ(owner_by_any(0), MS_GLOBAL);
    scene_close(&scene);
}

TEST(any_thread_finds_what_threads_agree_on)
{
    scene_open(&scene, NULL);
    uint64_t a = small_call(scene_lane(&scene, 7), scene.a, 1);
    CHECK_EQ(small_call(scene_lane(&scene, 8), scene.a, 1), a);
    CHECK_EQ(owner_by_any(a), scene.a);
    scene_close(&scene);
}

TEST(any_thread_is_unknown_where_threads_differ)
{
    scene_open(&scene, NULL);
    uint64_t a = small_call(scene_lane(&scene, 7), scene.a, 1);
    small_call(scene_lane(&scene, 8), scene.d, 1);
    CHECK_EQ(owner_by_any(a), MS_UNKNOWN);
    small_call(scene_lane(&scene, 9), scene.a, 1);
    CHECK_EQ(owner_by_any(a), MS_UNKNOWN);
    scene_close(&scene);
}

TEST(any_thread_finds_ended_threads)
{
    scene_open(&scene, NULL);
    struct lane *t = scene_lane(&scene, 7);
    uint64_t a = small_call(t, scene.a, 1);
    end_lane(t);
    CHECK_EQ(owner_by_any(a), scene.a);
    scene_close(&scene);
}

TEST(any_thread_without_a_number_is_global)
{
    scene_open(&scene, NULL);
    call(scene_lane(&scene, 7), scene.a);
    CHECK_EQ(owner_by_any(MS_NO_NUMBER), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_node_of_any_thread_may_run)
{
    scene_open(&scene, NULL);
    struct lane *t = scene_lane(&scene, 7), *u = scene_lane(&scene, 8);
    const struct lane nobody = {.id = MS_ANY_THREAD};
    uint64_t a = small_call(t, scene.a, 1), next = make(t, 1);
    for (int round = 0; round < 2; round++) {
        node(u, &nobody, next);
        leave_node(u);
        node(u, &nobody, a);
        ms_path got = ms_thread_path(u->thread);
        CHECK(got == scene.a || got == MS_UNKNOWN || got == MS_GLOBAL);
        leave_node(u);
        node(u, t, a);
        CHECK_EQ(ms_thread_path(u->thread), scene.a);
        leave_node(u);
    }
    scene_close(&scene);
}

/* "A node created in one of them is MS_UNKNOWN." */
TEST(any_thread_is_unknown_once_threads_were_discarded)
{
    ms_options options = {.threads_kept = 1};
    scene_open(&scene, &options);
    for (uint64_t id = 10; id < 14; id++) {
        struct lane *t = scene_lane(&scene, id);
        t->seq = 100 * id;
        small_call(t, scene.a, 1);
        end_lane(t);
    }
    CHECK_EQ(ms_node_path(scene.watch, 10, 1000), MS_UNKNOWN);
    CHECK_EQ(owner_by_any(1000), MS_UNKNOWN);
    scene_close(&scene);
}
