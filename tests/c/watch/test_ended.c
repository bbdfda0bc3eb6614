/* test_ended.c - threads that end: their nodes can be looked up until their calls are discarded. */
#include "core/watch/watch.h"
#include "heap.h"
#include "runner.h"
#include "scene.h"

static struct scene scene;

static void start(uint32_t threads_kept)
{
    ms_options options = {.calls_kept = 256, .threads_kept = threads_kept};
    scene_open(&scene, &options);
}

/* A thread that makes one node in `path` and ends. */
static struct lane *brief_thread(uint64_t id, ms_path path)
{
    struct lane *t = scene_lane(&scene, id);
    small_call(t, path, 1);
    end_lane(t);
    return t;
}

TEST(nodes_of_an_ended_thread_are_found)
{
    start(0);
    struct lane *t = brief_thread(7, scene.a), *u = scene_lane(&scene, 8);
    CHECK_EQ(owner(t, 0), scene.a);
    node(u, t, 0);
    CHECK_EQ(ms_thread_path(u->thread), scene.a);
    leave_node(u);
    scene_close(&scene);
}

TEST(what_a_thread_left_open_when_it_ended_is_found)
{
    start(0);
    struct lane *t = scene_lane(&scene, 7);
    call(t, scene.a);
    make(t, 1);
    call(t, scene.b);
    make(t, 1);
    end_lane(t);
    CHECK_EQ(owner(t, 0), scene.a);
    CHECK_EQ(owner(t, 1), scene.b);
    scene_close(&scene);
}

TEST(a_new_thread_does_not_inherit_what_an_ended_one_left_open)
{
    start(1);
    struct lane *t = scene_lane(&scene, 7);
    call(t, scene.a);
    node(t, t, MS_NO_NUMBER);
    override(t, scene.d);
    end_lane(t);
    for (uint64_t id = 8; id < 12; id++) {
        struct lane *u = scene_lane(&scene, id);
        CHECK_EQ(ms_thread_depth(u->thread), 0);
        CHECK_EQ(ms_thread_phase(u->thread), MS_IDLE);
        CHECK_EQ(ms_thread_path(u->thread), MS_GLOBAL);
        uint64_t none = make(u, 1), d = small_call(u, scene.d, 1);
        CHECK_EQ(owner(u, none), MS_GLOBAL);
        CHECK_EQ(owner(u, d), scene.d);
        end_lane(u);
    }
    scene_close(&scene);
}

TEST(nodes_of_an_ended_thread_that_recorded_nothing_are_global_to_who_looked_there_before)
{
    start(4);
    struct lane *t = scene_lane(&scene, 7), *u = scene_lane(&scene, 8);
    make(t, 2);
    node(u, t, 0);
    leave_node(u);
    end_lane(t);
    small_call(scene_lane(&scene, 9), scene.a, 1); /* in the memory of t */
    node(u, t, 1);
    CHECK_EQ(ms_thread_path(u->thread), MS_GLOBAL);
    CHECK_EQ(owner(t, 1), MS_GLOBAL);
    leave_node(u);
    scene_close(&scene);
}

/* With threads_kept K, the last K threads that ended can be looked up. */
TEST(the_threads_that_ended_last_are_kept)
{
    start(4);
    struct lane *lanes[20];
    for (uint64_t i = 0; i < 20; i++)
        lanes[i] = brief_thread(100 + i, i % 2 ? scene.a : scene.d);
    struct lane *u = scene_lane(&scene, 50);
    for (uint64_t i = 0; i < 20; i++) {
        ms_path got = owner(lanes[i], 0), wanted = i % 2 ? scene.a : scene.d;
        CHECK(got == wanted || (got == MS_UNKNOWN && i < 16));
        if (i < 15)
            CHECK_EQ(got, MS_UNKNOWN);
    }
    end_lane(u);
    scene_close(&scene);
}

TEST(opening_threads_lets_go_no_more_than_there_are_too_many)
{
    start(4);
    struct lane *lanes[5];
    for (uint64_t i = 0; i < 5; i++)
        lanes[i] = scene_lane(&scene, 100 + i);
    for (uint64_t i = 0; i < 5; i++) {
        small_call(lanes[i], scene.a, 1);
        end_lane(lanes[i]);
    }
    for (uint64_t id = 1; id < 10; id++)
        scene_lane(&scene, id);
    for (uint64_t i = 1; i < 5; i++)
        CHECK_EQ(owner(lanes[i], 0), scene.a);
    scene_close(&scene);
}

/* An answer never changes, so the reader may repeat one that it found before. Any other is unknown. */
TEST(a_discarded_thread_is_right_or_unknown_to_one_that_looked_there_before)
{
    start(1);
    struct lane *u = scene_lane(&scene, 50), *t = scene_lane(&scene, 7);
    small_call(t, scene.b, 1);
    small_call(t, scene.a, 1);
    end_lane(t);
    node(u, t, 1);
    CHECK_EQ(ms_thread_path(u->thread), scene.a);
    leave_node(u);
    for (uint64_t id = 8; id < 12; id++)
        brief_thread(id, scene.d);
    node(u, t, 1);
    CHECK(ms_thread_path(u->thread) == scene.a || ms_thread_path(u->thread) == MS_UNKNOWN);
    leave_node(u);
    for (int i = 0; i < 2; i++) {
        node(u, t, 0);
        CHECK_EQ(ms_thread_path(u->thread), MS_UNKNOWN);
        leave_node(u);
    }
    scene_close(&scene);
}

TEST(a_thread_used_again_looks_up_its_own_creators)
{
    start(2);
    struct lane *creator = scene_lane(&scene, 1);
    small_call(creator, scene.a, 1);
    for (uint64_t id = 10; id < 20; id++) {
        struct lane *u = scene_lane(&scene, id);
        node(u, creator, 0);
        CHECK_EQ(ms_thread_path(u->thread), scene.a);
        make(u, 1);
        leave_node(u);
        CHECK_EQ(owner(u, 0), scene.a);
        end_lane(u);
    }
    scene_close(&scene);
}

/* Data loaders start and end many threads that call no module. */
TEST(threads_without_calls_push_nothing_out)
{
    start(4);
    struct lane *t = brief_thread(7, scene.a);
    for (uint64_t id = 100; id < 10000; id++) {
        ms_thread *idle = ms_thread_open(scene.watch, id);
        CHECK(idle);
        ms_thread_close(idle);
    }
    CHECK_EQ(owner(t, 0), scene.a);
    CHECK_EQ(ms_node_path(scene.watch, 100, 0), MS_GLOBAL);
    scene_close(&scene);
}

TEST(memory_does_not_grow_with_the_number_of_threads)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    options.calls_kept = 256;
    options.threads_kept = 8;
    scene_open(&scene, &options);
    size_t bytes = 0;
    for (uint64_t id = 1; id < 2000; id++) {
        ms_thread *thread = ms_thread_open(scene.watch, id);
        CHECK(thread);
        CHECK_EQ(ms_call_enter(thread, scene.a, 0), MS_OK);
        CHECK_EQ(ms_call_leave(thread, 1), MS_OK);
        ms_thread_close(thread);
        if (id == 20)
            bytes = heap.live_bytes;
        if (id > 20)
            CHECK_EQ(heap.live_bytes, bytes);
    }
    scene_close(&scene);
    CHECK_EQ(heap.live, 0);
}

TEST(memory_does_not_grow_with_threads_that_call_now_and_then)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    options.calls_kept = 256;
    options.threads_kept = 2;
    scene_open(&scene, &options);
    size_t bytes = 0;
    for (uint64_t id = 1; id < 300; id++) {
        ms_thread *thread = ms_thread_open(scene.watch, id);
        CHECK(thread);
        if (id % 2 == 0) {
            CHECK_EQ(ms_call_enter(thread, scene.a, 0), MS_OK);
            CHECK_EQ(ms_call_leave(thread, 1), MS_OK);
        }
        ms_thread_close(thread);
        if (id == 20)
            bytes = heap.live_bytes;
        if (id > 20)
            CHECK_EQ(heap.live_bytes, bytes);
    }
    scene_close(&scene);
    CHECK_EQ(heap.live, 0);
}

/* Many threads use the same ring in turn, and the indices of its records go on. */
TEST(a_ring_used_by_many_threads_in_turn_mixes_nothing_up)
{
    start(2);
    struct lane reader = {.watch = scene.watch, .id = 5, .thread = ms_thread_open(scene.watch, 5)};
    for (uint64_t id = 100; id < 400; id++) {
        struct lane t = {.watch = scene.watch, .id = id, .thread = ms_thread_open(scene.watch, id)};
        ms_path mine = id % 2 ? scene.a : scene.d;
        for (uint64_t i = 0; i < id; i++) {
            small_call(&t, mine, 1);
            make(&t, 1);
        }
        for (uint64_t i = 0; i < 2 * id; i++) {
            ms_path got = owner(&t, i);
            CHECK(got == (i % 2 ? MS_GLOBAL : mine) || (got == MS_UNKNOWN && i < 2 * (id - 256) && id > 256));
        }
        node(&reader, &t, 2 * id - 2);
        CHECK_EQ(ms_thread_path(reader.thread), mine);
        leave_node(&reader);
        end_lane(&t);
    }
    scene_close(&scene);
}
