/* test_ring.c - the call ring wraps: old nodes become unknown, and are never attributed to another
 * call; open calls are still found. */
#include "core/watch/watch.h"
#include "runner.h"
#include "scene.h"

#define KEPT 256

static struct scene scene;

static struct lane *start(void)
{
    scene_open_small(&scene);
    return scene_lane(&scene, 7);
}

/* How many of the nodes [0, count) are unknown. The owner of the others must be wanted[number % 2]. */
static uint64_t count_unknown(struct lane *t, uint64_t count, const ms_path wanted[2])
{
    uint64_t unknown = 0;
    for (uint64_t i = 0; i < count; i++) {
        ms_path got = owner(t, i);
        if (got == MS_UNKNOWN)
            unknown++;
        else
            CHECK_EQ(got, wanted[i % 2]);
    }
    return unknown;
}

TEST(the_last_calls_are_kept_and_older_ones_unknown)
{
    struct lane *t = start();
    const ms_path wanted[2] = {scene.a, scene.d};
    for (int i = 0; i < 1000; i++)
        small_call(t, wanted[i % 2], 1);
    CHECK_EQ(count_unknown(t, 1000, wanted), 1000 - KEPT);
    CHECK_EQ(owner(t, 1000 - KEPT - 1), MS_UNKNOWN);
    CHECK_EQ(owner(t, 1000 - KEPT), scene.a);
    CHECK_EQ(owner(t, 999), scene.d);
    scene_close(&scene);
}

TEST(a_ring_not_yet_full_forgets_nothing)
{
    struct lane *t = start();
    const ms_path wanted[2] = {scene.a, scene.d};
    for (int i = 0; i < KEPT; i++)
        small_call(t, wanted[i % 2], 1);
    CHECK_EQ(count_unknown(t, KEPT, wanted), 0);
    scene_close(&scene);
}

TEST(the_ring_is_as_large_as_the_options_say_or_larger)
{
    ms_options options = {.calls_kept = 1000};
    scene_open(&scene, &options);
    struct lane *t = scene_lane(&scene, 7);
    const ms_path wanted[2] = {scene.a, scene.d};
    for (int i = 0; i < 3000; i++)
        small_call(t, wanted[i % 2], 1);
    CHECK_EQ(count_unknown(t, 3000, wanted), 3000 - 1024);
    scene_close(&scene);
}

TEST(calls_without_nodes_push_nothing_out)
{
    struct lane *t = start();
    uint64_t first = small_call(t, scene.d, 1);
    for (int i = 0; i < 10 * KEPT; i++)
        small_call(t, scene.a, 0);
    CHECK_EQ(owner(t, first), scene.d);
    scene_close(&scene);
}

TEST(nodes_of_no_call_that_are_too_old_are_unknown)
{
    struct lane *t = start();
    make(t, 1);
    CHECK_EQ(owner(t, 0), MS_GLOBAL);
    for (int i = 0; i < 2 * KEPT; i++)
        small_call(t, scene.a, 1);
    CHECK_EQ(owner(t, 0), MS_UNKNOWN);
    uint64_t after = make(t, 1);
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_node_too_old_runs_in_unknown_and_so_do_those_it_makes)
{
    struct lane *t = start();
    uint64_t old = small_call(t, scene.a, 1);
    for (int i = 0; i < 2 * KEPT; i++)
        small_call(t, scene.d, 1);
    node(t, t, old);
    CHECK_EQ(ms_thread_path(t->thread), MS_UNKNOWN);
    uint64_t made = make(t, 1);
    leave_node(t);
    CHECK_EQ(owner(t, made), MS_UNKNOWN);
    scene_close(&scene);
}

TEST(a_ring_that_wraps_takes_nothing_from_another_thread)
{
    struct lane *t = start(), *u = scene_lane(&scene, 8);
    uint64_t first = small_call(u, scene.a, 1);
    for (int i = 0; i < 10 * KEPT; i++)
        small_call(t, scene.d, 1);
    CHECK_EQ(owner(u, first), scene.a);
    scene_close(&scene);
}

TEST(a_call_open_for_many_rounds_goes_on_answering)
{
    struct lane *t = start();
    const ms_path wanted[2] = {scene.a, scene.b};
    call(t, scene.a);
    for (int i = 0; i < 20 * KEPT; i++) {
        uint64_t direct = make(t, 1);
        CHECK_EQ(owner(t, direct), scene.a);
        uint64_t inner = small_call(t, scene.b, 1);
        CHECK_EQ(owner(t, inner), scene.b);
    }
    count_unknown(t, t->seq, wanted);
    leave_call(t);
    uint64_t after = make(t, 1);
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    scene_close(&scene);
}

TEST(many_calls_open_for_many_rounds_go_on_answering)
{
    struct lane *t = start();
    ms_path paths[30];
    for (uint32_t i = 0; i < 30; i++) {
        CHECK_EQ(ms_path_add(scene.watch, i ? paths[i - 1] : MS_GLOBAL, "deeper", &paths[i]), MS_OK);
        call(t, paths[i]);
        make(t, 1);
    }
    for (int i = 0; i < 20 * KEPT; i++)
        small_call(t, scene.d, 1);
    for (uint32_t i = 30; i-- > 0;) {
        uint64_t direct = make(t, 1);
        CHECK_EQ(owner(t, direct), paths[i]);
        leave_call(t);
        CHECK_EQ(owner(t, direct), paths[i]);
    }
    uint64_t after = make(t, 1);
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    scene_close(&scene);
}

TEST(a_node_open_for_many_rounds_goes_on_owning_what_it_makes)
{
    struct lane *t = start();
    uint64_t a = small_call(t, scene.a, 1);
    node(t, t, a);
    for (int i = 0; i < 5 * KEPT; i++) {
        small_call(t, scene.d, 1);
        uint64_t direct = make(t, 1);
        CHECK_EQ(owner(t, direct), scene.a);
    }
    leave_node(t);
    scene_close(&scene);
}

TEST(a_call_in_which_many_nodes_make_nodes_goes_on_answering)
{
    struct lane *t = start();
    uint64_t d = small_call(t, scene.d, 1);
    call(t, scene.a);
    uint64_t made = d;
    for (int i = 0; i < 5 * KEPT; i++) {
        node(t, t, made);
        made = make(t, 1);
        leave_node(t);
        CHECK_EQ(owner(t, made), scene.d);
    }
    uint64_t direct = make(t, 1);
    CHECK_EQ(owner(t, direct), scene.a);
    leave_call(t);
    CHECK_EQ(owner(t, direct), scene.a);
    scene_close(&scene);
}

TEST(a_call_open_inside_an_override_goes_on_answering_for_many_rounds)
{
    struct lane *t = start();
    override(t, scene.d);
    call(t, scene.a);
    for (int i = 0; i < 3 * KEPT; i++)
        small_call(t, scene.b, 1);
    uint64_t direct = make(t, 1);
    CHECK_EQ(owner(t, direct), scene.a);
    leave_call(t);
    uint64_t after = make(t, 1);
    CHECK_EQ(owner(t, direct), scene.a);
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    CHECK_EQ(owner(t, direct - 1), scene.b);
    leave_override(t);
    scene_close(&scene);
}

/* The node is younger than the last KEPT / 4 calls, so its call's record has not been overwritten. */
TEST(a_young_node_of_a_call_open_for_long_is_still_found)
{
    struct lane *t = start();
    call(t, scene.a);
    for (int i = 0; i < 4 * KEPT; i++) {
        uint64_t direct = make(t, 1);
        for (int k = 0; k < 3; k++)
            small_call(t, scene.b, 1);
        CHECK_EQ(owner(t, direct), scene.a);
    }
    leave_call(t);
    scene_close(&scene);
}

/* Enters and leaves `depth` nested calls. Creates nodes on the way down, on the way up, or not at all. */
static void dive(struct lane *t, uint32_t depth, uint64_t down, uint64_t up)
{
    ms_path paths[4 * KEPT];
    uint64_t firsts[4 * KEPT], lasts[4 * KEPT];
    for (uint32_t i = 0; i < depth; i++) {
        CHECK_EQ(ms_path_add(scene.watch, i ? paths[i - 1] : MS_GLOBAL, "deeper", &paths[i]), MS_OK);
        call(t, paths[i]);
        firsts[i] = make(t, down);
    }
    for (uint32_t i = depth; i-- > 0;) {
        lasts[i] = make(t, up);
        if (up)
            CHECK(owner(t, lasts[i]) == paths[i] || owner(t, lasts[i]) == MS_UNKNOWN);
        leave_call(t);
    }
    for (uint32_t i = 0; i < depth; i++) {
        ms_path first = down ? owner(t, firsts[i]) : paths[i], last = up ? owner(t, lasts[i]) : paths[i];
        CHECK(first == paths[i] || first == MS_UNKNOWN);
        CHECK(last == paths[i] || last == MS_UNKNOWN);
    }
    uint64_t after = small_call(t, scene.d, 1);
    CHECK_EQ(owner(t, after), scene.d);
}

TEST(a_stack_deeper_than_the_ring_is_right_or_unknown)
{
    struct lane *t = start();
    dive(t, 3 * KEPT, 1, 1);
    scene_close(&scene);
}

TEST(a_stack_deeper_than_the_ring_with_nodes_on_the_way_up)
{
    struct lane *t = start();
    dive(t, KEPT + 50, 0, 1);
    scene_close(&scene);
}

TEST(a_stack_deeper_than_the_ring_without_nodes)
{
    struct lane *t = start();
    small_call(t, scene.a, 1);
    dive(t, KEPT + 50, 0, 0);
    scene_close(&scene);
}

TEST(a_deep_stack_with_many_calls_at_its_bottom_is_right_or_unknown)
{
    struct lane *t = start();
    call(t, scene.a);
    for (int i = 0; i < KEPT / 2; i++)
        call(t, scene.b);
    for (int i = 0; i < 2 * KEPT; i++)
        small_call(t, scene.d, 1);
    uint64_t direct = make(t, 1);
    ms_path got = owner(t, direct);
    CHECK(got == scene.b || got == MS_UNKNOWN);
    for (int i = 0; i < KEPT / 2; i++)
        leave_call(t);
    uint64_t outer = make(t, 1);
    got = owner(t, outer);
    CHECK(got == scene.a || got == MS_UNKNOWN);
    leave_call(t);
    got = owner(t, direct);
    CHECK(got == scene.b || got == MS_UNKNOWN);
    got = owner(t, outer);
    CHECK(got == scene.a || got == MS_UNKNOWN);
    scene_close(&scene);
}
