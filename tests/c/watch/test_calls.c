/* test_calls.c - in which call a node was created, as long as no record is overwritten. */
#include "core/watch/watch.h"
#include "runner.h"
#include "scene.h"

#include <stdlib.h>

static struct scene scene;

static struct lane *start(void)
{
    scene_open(&scene, NULL);
    return scene_lane(&scene, 7);
}

TEST(a_thread_without_calls_made_its_nodes_in_global)
{
    struct lane *t = start();
    make(t, 10);
    CHECK_EQ(owner(t, 0), MS_GLOBAL);
    CHECK_EQ(owner(t, 9), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_node_of_a_thread_never_opened_is_global)
{
    start();
    CHECK_EQ(ms_node_path(scene.watch, 12345, 0), MS_GLOBAL);
    CHECK_EQ(ms_node_path(scene.watch, 0, 0), MS_GLOBAL);
    scene_close(&scene);
}

TEST(nodes_before_between_and_after_calls_are_global)
{
    struct lane *t = start();
    uint64_t before = make(t, 3);
    uint64_t first = small_call(t, scene.a, 2);
    uint64_t between = make(t, 3);
    uint64_t second = small_call(t, scene.d, 2);
    uint64_t after = make(t, 1);
    CHECK_EQ(owner(t, before), MS_GLOBAL);
    CHECK_EQ(owner(t, before + 2), MS_GLOBAL);
    CHECK_EQ(owner(t, first), scene.a);
    CHECK_EQ(owner(t, first + 1), scene.a);
    CHECK_EQ(owner(t, between), MS_GLOBAL);
    CHECK_EQ(owner(t, between + 2), MS_GLOBAL);
    CHECK_EQ(owner(t, second), scene.d);
    CHECK_EQ(owner(t, second + 1), scene.d);
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_node_belongs_to_the_innermost_call)
{
    struct lane *t = start();
    call(t, scene.a);
    uint64_t a1 = make(t, 1);
    call(t, scene.b);
    uint64_t b1 = make(t, 1);
    uint64_t c = small_call(t, scene.c, 1);
    uint64_t b2 = make(t, 1);
    leave_call(t);
    uint64_t a2 = make(t, 1);
    leave_call(t);
    CHECK_EQ(owner(t, a1), scene.a);
    CHECK_EQ(owner(t, b1), scene.b);
    CHECK_EQ(owner(t, c), scene.c);
    CHECK_EQ(owner(t, b2), scene.b);
    CHECK_EQ(owner(t, a2), scene.a);
    scene_close(&scene);
}

TEST(calls_that_begin_at_the_same_number)
{
    struct lane *t = start();
    call(t, scene.a);
    call(t, scene.b);
    uint64_t c = small_call(t, scene.c, 2);
    leave_call(t);
    leave_call(t);
    uint64_t after = make(t, 1);
    CHECK_EQ(owner(t, c), scene.c);
    CHECK_EQ(owner(t, c + 1), scene.c);
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    scene_close(&scene);
}

TEST(siblings_share_nothing)
{
    struct lane *t = start();
    call(t, scene.a);
    uint64_t first = small_call(t, scene.b, 2);
    uint64_t second = small_call(t, scene.d, 2);
    uint64_t third = small_call(t, scene.b, 2);
    leave_call(t);
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_EQ(owner(t, first + i), scene.b);
        CHECK_EQ(owner(t, second + i), scene.d);
        CHECK_EQ(owner(t, third + i), scene.b);
    }
    scene_close(&scene);
}

TEST(a_module_that_calls_itself)
{
    struct lane *t = start();
    ms_path inner = 0;
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "a", &inner), MS_OK);
    call(t, scene.a);
    uint64_t outside = make(t, 1);
    uint64_t inside = small_call(t, inner, 1);
    uint64_t again = make(t, 1);
    leave_call(t);
    CHECK_EQ(owner(t, outside), scene.a);
    CHECK_EQ(owner(t, inside), inner);
    CHECK_EQ(owner(t, again), scene.a);
    scene_close(&scene);
}

TEST(an_open_call_answers)
{
    struct lane *t = start();
    call(t, scene.a);
    uint64_t a = make(t, 1);
    CHECK_EQ(owner(t, a), scene.a);
    call(t, scene.b);
    uint64_t b = make(t, 1);
    CHECK_EQ(owner(t, a), scene.a);
    CHECK_EQ(owner(t, b), scene.b);
    leave_call(t);
    uint64_t later = make(t, 1);
    CHECK_EQ(owner(t, later), scene.a);
    scene_close(&scene);
}

TEST(calls_without_nodes_leave_nothing)
{
    struct lane *t = start();
    for (int i = 0; i < 100000; i++) {
        call(t, scene.a);
        call(t, scene.b);
        leave_call(t);
        leave_call(t);
    }
    CHECK_EQ(atomic_load(&t->thread->ring.end), 0);
    make(t, 1);
    CHECK_EQ(owner(t, 0), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_call_without_nodes_inside_one_with_nodes_leaves_no_mark)
{
    struct lane *t = start();
    call(t, scene.a);
    uint64_t first = make(t, 1);
    small_call(t, scene.b, 0);
    uint64_t second = make(t, 1);
    small_call(t, scene.b, 0);
    leave_call(t);
    CHECK_EQ(owner(t, first), scene.a);
    CHECK_EQ(owner(t, second), scene.a);
    CHECK_EQ(atomic_load(&t->thread->ring.end), 1);
    scene_close(&scene);
}

TEST(each_thread_has_numbers_of_its_own)
{
    struct lane *t = start(), *u = scene_lane(&scene, 8);
    call(t, scene.a);
    call(u, scene.d);
    make(t, 5);
    make(u, 5);
    leave_call(t);
    make(u, 5);
    leave_call(u);
    CHECK_EQ(owner(t, 3), scene.a);
    CHECK_EQ(owner(u, 3), scene.d);
    CHECK_EQ(owner(t, 7), MS_GLOBAL);
    CHECK_EQ(owner(u, 7), scene.d);
    scene_close(&scene);
}

TEST(numbers_may_begin_anywhere)
{
    struct lane *t = start();
    t->seq = UINT64_MAX - 100;
    uint64_t before = make(t, 2), in = small_call(t, scene.a, 2), after = make(t, 2);
    CHECK_EQ(owner(t, before), MS_GLOBAL);
    CHECK_EQ(owner(t, in), scene.a);
    CHECK_EQ(owner(t, in + 1), scene.a);
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    scene_close(&scene);
}

TEST(numbers_may_be_skipped)
{
    struct lane *t = start();
    t->seq = 1u << 20;
    call(t, scene.a);
    uint64_t first = make(t, 1000000), in = small_call(t, scene.b, 1000000);
    leave_call(t);
    CHECK_EQ(owner(t, first + 999999), scene.a);
    CHECK_EQ(owner(t, in), scene.b);
    CHECK_EQ(owner(t, in + 999999), scene.b);
    CHECK_EQ(owner(t, in + 1000000), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_call_that_makes_more_nodes_than_32_bits_count_is_right_or_unknown)
{
    struct lane *t = start();
    uint64_t first = small_call(t, scene.a, UINT64_C(1) << 33);
    CHECK_EQ(owner(t, first), scene.a);
    ms_path last = owner(t, first + (UINT64_C(1) << 33) - 1);
    CHECK(last == scene.a || last == MS_UNKNOWN);
    scene_close(&scene);
}

TEST(leaving_what_was_never_entered)
{
    struct lane *t = start();
    CHECK_EQ(ms_call_leave(t->thread, 0), MS_EUNBALANCED);
    CHECK_EQ(ms_node_leave(t->thread, 0), MS_EUNBALANCED);
    CHECK_EQ(ms_override_leave(t->thread), MS_EUNBALANCED);
    CHECK_EQ(ms_thread_depth(t->thread), 0);
    CHECK(!ms__thread_check(t->thread));
    scene_close(&scene);
}

TEST(leaving_the_wrong_kind_changes_nothing)
{
    struct lane *t = start();
    call(t, scene.a);
    uint64_t first = make(t, 1);
    CHECK_EQ(ms_node_leave(t->thread, t->seq), MS_EUNBALANCED);
    CHECK_EQ(ms_override_leave(t->thread), MS_EUNBALANCED);
    CHECK_EQ(ms_thread_depth(t->thread), 1);
    CHECK_EQ(ms_thread_path(t->thread), scene.a);
    uint64_t second = make(t, 1);
    leave_call(t);
    CHECK_EQ(owner(t, first), scene.a);
    CHECK_EQ(owner(t, second), scene.a);
    CHECK_EQ(ms_call_leave(t->thread, t->seq), MS_EUNBALANCED);
    scene_close(&scene);
}

#define DEEP 5000

TEST(very_deep_stacks)
{
    static ms_path paths[DEEP];
    struct lane *t = start();
    for (uint32_t i = 0; i < DEEP; i++) {
        CHECK_EQ(ms_path_add(scene.watch, i ? paths[i - 1] : MS_GLOBAL, "deeper", &paths[i]), MS_OK);
        CHECK_EQ(ms_call_enter(t->thread, paths[i], t->seq), MS_OK);
        make(t, 1);
    }
    CHECK_EQ(ms_thread_depth(t->thread), DEEP);
    for (uint32_t i = DEEP; i-- > 0;) {
        CHECK_EQ(ms_thread_path(t->thread), paths[i]);
        make(t, 1);
        CHECK_EQ(ms_call_leave(t->thread, t->seq), MS_OK);
    }
    for (uint32_t i = 0; i < DEEP; i++) {
        CHECK_EQ(owner(t, i), paths[i]);
        CHECK_EQ(owner(t, 2 * DEEP - 1 - i), paths[i]);
    }
    CHECK(!ms__thread_check(t->thread));
    scene_close(&scene);
}

/* In every order of asking, because a search starts where the last one ended. */
TEST(nodes_may_be_asked_for_in_any_order)
{
    struct lane *t = start(), *u = scene_lane(&scene, 8);
    for (int i = 0; i < 500; i++) {
        call(t, scene.a);
        make(t, 1);
        small_call(t, scene.b, 1);
        leave_call(t);
        make(t, 1);
    }
    for (uint64_t stride = 1; stride < 1500; stride += 7)
        for (uint64_t i = 0, at = 0; i < 30; i++, at = (at + stride) % 1500) {
            const ms_path wanted[] = {scene.a, scene.b, MS_GLOBAL};
            node(u, t, at);
            CHECK_EQ(ms_thread_path(u->thread), wanted[at % 3]);
            leave_node(u);
        }
    scene_close(&scene);
}
