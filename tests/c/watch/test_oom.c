/* test_oom.c - allocations fail: nothing breaks, nothing leaks, no answer is wrong, and the loss is counted. */
#include "core/watch/watch.h"
#include "heap.h"
#include "play.h"
#include "runner.h"
#include "scene.h"

#include <stdio.h>
#include <string.h>

/* ---- one refusal at a time ---- */

static struct scene scene;
static struct heap heap;

static struct lane *start(void)
{
    memset(&heap, 0, sizeof heap);
    ms_options options = heap_options(&heap);
    options.calls_kept = 1024;
    scene_open(&scene, &options);
    return scene_lane(&scene, 7);
}

static void finish(void)
{
    scene_close(&scene);
    CHECK_EQ(heap.live, 0);
}

static void refuse_from_now_on(void)
{
    heap.refuse_at = heap.asked + 1;
    heap.forever = true;
}

static void refuse_no_more(void)
{
    heap.refuse_at = 0;
}

TEST(a_path_that_cannot_be_renamed_keeps_its_name)
{
    start();
    refuse_from_now_on();
    CHECK_EQ(ms_path_show_as(scene.watch, scene.b, "generator"), MS_ENOMEM);
    CHECK(strcmp(ms_path_shown(scene.watch, scene.b), "b") == 0);
    refuse_no_more();
    CHECK_EQ(ms_path_show_as(scene.watch, scene.b, "generator"), MS_OK);
    finish();
}

/* Enters calls without nodes until the next one needs more room for frames. */
static uint32_t fill_frames(struct lane *t)
{
    call(t, scene.a);
    make(t, 1);
    while (t->thread->depth < t->thread->capacity)
        call(t, scene.a);
    return t->thread->depth;
}

static void leave_all(struct lane *t)
{
    while (ms_thread_depth(t->thread))
        leave_call(t);
}

static bool is_or_unknown(ms_path got, ms_path wanted)
{
    return got == wanted || got == MS_UNKNOWN;
}

TEST(a_refused_call_is_counted_and_left_like_any_other)
{
    struct lane *t = start();
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.a, t->seq), MS_ENOMEM);
    CHECK_EQ(ms_watch_lost(scene.watch), 1);
    CHECK_EQ(ms_thread_depth(t->thread), 1);
    CHECK_EQ(ms_call_enter(t->thread, scene.b, t->seq), MS_ENOMEM);
    CHECK_EQ(ms_thread_depth(t->thread), 2);
    CHECK_EQ(ms_watch_lost(scene.watch), 2);
    leave_call(t);
    leave_call(t);
    CHECK_EQ(ms_call_leave(t->thread, t->seq), MS_EUNBALANCED);
    CHECK_EQ(ms_watch_lost(scene.watch), 2);
    finish();
}

TEST(nodes_of_a_refused_call_are_unknown)
{
    struct lane *t = start();
    uint64_t before = make(t, 1);
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.a, t->seq), MS_ENOMEM);
    uint64_t inside = make(t, 1);
    CHECK_EQ(owner(t, inside), MS_UNKNOWN);
    leave_call(t);
    uint64_t after = make(t, 1);
    CHECK_EQ(owner(t, inside), MS_UNKNOWN);
    CHECK(is_or_unknown(owner(t, before), MS_GLOBAL));
    CHECK_EQ(owner(t, after), MS_GLOBAL);
    finish();
}

/* A backward runs the node that was created last first. Its answer holds for the nodes before it only as far back as
 * the refused call. */
TEST(a_backward_does_not_take_nodes_of_a_refused_call_for_those_around_it)
{
    struct lane *t = start();
    fill_frames(t);
    uint64_t before = make(t, 1);
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.b, t->seq), MS_ENOMEM);
    uint64_t inside = make(t, 1);
    leave_call(t);
    uint64_t after = make(t, 2);
    refuse_no_more();
    leave_all(t);
    const struct {
        uint64_t number;
        ms_path wanted;
    } backward[] = {{after + 1, scene.a}, {after, scene.a}, {inside, MS_UNKNOWN}, {before, scene.a}};
    for (size_t i = 0; i < sizeof backward / sizeof *backward; i++) {
        node(t, t, backward[i].number);
        CHECK_EQ(ms_thread_path(t->thread), backward[i].wanted);
        leave_node(t);
    }
    finish();
}

TEST(calls_after_a_refused_one_answer_again)
{
    struct lane *t = start();
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.a, t->seq), MS_ENOMEM);
    make(t, 1);
    leave_call(t);
    refuse_no_more();
    uint64_t inside = small_call(t, scene.b, 1);
    CHECK_EQ(owner(t, inside), scene.b);
    CHECK_EQ(ms_watch_lost(scene.watch), 1);
    finish();
}

/* "After a failure every answer is the same as before the call, or MS_UNKNOWN if it can no longer be known." */
TEST(nodes_made_before_a_refused_call_are_still_found)
{
    struct lane *t = start();
    uint64_t before = small_call(t, scene.d, 1);
    fill_frames(t);
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.b, t->seq), MS_ENOMEM);
    make(t, 1);
    CHECK_EQ(owner(t, before), scene.d);
    leave_call(t);
    CHECK_EQ(owner(t, before), scene.d);
    leave_all(t);
    finish();
}

TEST(a_call_refused_for_lack_of_memory_leaves_the_position_of_the_call_around_it)
{
    struct lane *t = start();
    uint32_t depth = fill_frames(t);
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.b, t->seq), MS_ENOMEM);
    CHECK_EQ(ms_thread_depth(t->thread), depth + 1);
    CHECK_EQ(ms_thread_path(t->thread), scene.a);
    CHECK_EQ(ms_thread_phase(t->thread), MS_FORWARD);
    uint64_t inside = make(t, 1);
    CHECK_EQ(owner(t, inside), MS_UNKNOWN);
    leave_call(t);
    uint64_t outside = make(t, 1);
    CHECK_EQ(owner(t, outside), scene.a);
    CHECK_EQ(owner(t, inside), MS_UNKNOWN);
    leave_all(t);
    finish();
}

TEST(a_call_inside_a_refused_override_is_unknown_afterwards)
{
    struct lane *t = start();
    fill_frames(t);
    refuse_from_now_on();
    CHECK_EQ(ms_override_enter(t->thread, scene.d), MS_ENOMEM);
    CHECK_EQ(ms_call_enter(t->thread, scene.b, t->seq), MS_ENOMEM);
    uint64_t inside = make(t, 1);
    leave_call(t);
    leave_override(t);
    CHECK(is_or_unknown(owner(t, inside), scene.b));
    leave_all(t);
    CHECK(is_or_unknown(owner(t, inside), scene.b));
    finish();
}

TEST(a_refused_override_brings_nothing_back_that_was_unknown)
{
    struct lane *t = start();
    fill_frames(t);
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.b, t->seq), MS_ENOMEM);
    uint64_t inside = make(t, 1);
    leave_call(t);
    CHECK_EQ(ms_override_enter(t->thread, scene.d), MS_ENOMEM);
    leave_override(t);
    CHECK(is_or_unknown(owner(t, inside), scene.b));
    leave_all(t);
    finish();
}

TEST(a_refused_override_costs_no_answer)
{
    struct lane *t = start();
    fill_frames(t);
    refuse_from_now_on();
    CHECK_EQ(ms_override_enter(t->thread, scene.d), MS_ENOMEM);
    CHECK_EQ(ms_watch_lost(scene.watch), 1);
    CHECK_EQ(owner(t, 0), scene.a);
    leave_override(t);
    CHECK_EQ(owner(t, 0), scene.a);
    leave_all(t);
    finish();
}

TEST(a_refused_override_after_a_very_long_call_brings_nothing_back)
{
    struct lane *t = start();
    uint64_t first = small_call(t, scene.d, UINT64_C(1) << 33);
    uint64_t last = first + (UINT64_C(1) << 33) - 1;
    CHECK(is_or_unknown(owner(t, last), scene.d));
    fill_frames(t);
    refuse_from_now_on();
    CHECK_EQ(ms_override_enter(t->thread, scene.a), MS_ENOMEM);
    leave_override(t);
    CHECK(is_or_unknown(owner(t, last), scene.d));
    leave_all(t);
    finish();
}

/* The new thread may take over the ring of the ended one, which contains no record. */
TEST(a_thread_that_ended_with_all_its_calls_refused_is_not_global)
{
    struct lane *t = start();
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.a, t->seq), MS_ENOMEM);
    uint64_t inside = make(t, 1);
    leave_call(t);
    end_lane(t);
    CHECK_EQ(owner(t, inside), MS_UNKNOWN);
    refuse_no_more();
    scene_lane(&scene, 8);
    CHECK_EQ(owner(t, inside), MS_UNKNOWN);
    finish();
}

TEST(a_new_thread_does_not_inherit_the_unknown_range_of_an_ended_one)
{
    memset(&heap, 0, sizeof heap);
    ms_options options = heap_options(&heap);
    options.threads_kept = 1;
    scene_open(&scene, &options);
    struct lane *t = scene_lane(&scene, 7);
    refuse_from_now_on();
    CHECK_EQ(ms_call_enter(t->thread, scene.a, t->seq), MS_ENOMEM);
    refuse_no_more();
    end_lane(t);
    for (uint64_t id = 8; id < 12; id++) {
        struct lane *u = scene_lane(&scene, id);
        uint64_t b = small_call(u, scene.b, 1);
        CHECK_EQ(owner(u, b), scene.b);
        end_lane(u);
    }
    finish();
}

TEST(nodes_of_a_thread_that_could_not_be_opened_are_unknown)
{
    start();
    refuse_from_now_on();
    CHECK(!ms_thread_open(scene.watch, 8));
    CHECK_EQ(ms_watch_lost(scene.watch), 1);
    CHECK_EQ(ms_node_path(scene.watch, 8, 0), MS_UNKNOWN);
    finish();
}

TEST(a_refused_path_is_left_alone_and_can_be_added_later)
{
    start();
    refuse_from_now_on();
    ms_path path = 77;
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "new", &path), MS_ENOMEM);
    CHECK_EQ(path, 77);
    CHECK_EQ(ms_watch_lost(scene.watch), 1);
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "b", &path), MS_OK);
    CHECK_EQ(path, scene.b);
    refuse_no_more();
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "new", &path), MS_OK);
    CHECK_EQ(ms_path_parent(scene.watch, path), scene.a);
    finish();
}
