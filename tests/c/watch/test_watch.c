/* test_watch.c - opening and closing, options, errors, what a failed open leaves. */
#include "heap.h"
#include "runner.h"
#include "scene.h"

#include <stdlib.h>
#include <string.h>

TEST(every_error_has_its_own_text)
{
    const int codes[] = {MS_OK, MS_ENOMEM, MS_EINVAL, MS_EFULL, MS_EUNBALANCED};
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(codes[i], -i);
        CHECK(strlen(ms_error_text(codes[i])) > 0);
        for (int k = 0; k < i; k++)
            CHECK(strcmp(ms_error_text(codes[i]), ms_error_text(codes[k])) != 0);
    }
    CHECK(strcmp(ms_error_text(MS_OK), "no error") == 0);
    CHECK(strcmp(ms_error_text(MS_ENOMEM), "out of memory") == 0);
}

TEST(a_number_that_is_no_error_has_a_text_too)
{
    CHECK(ms_error_text(1) != NULL);
    CHECK(ms_error_text(-1000) != NULL);
}

TEST(a_watch_opens_without_options)
{
    ms_watch *watch = ms_watch_open(NULL);
    CHECK(watch);
    CHECK_EQ(ms_watch_lost(watch), 0);
    ms_watch_close(watch);
}

TEST(closing_no_watch_is_allowed)
{
    ms_watch_close(NULL);
}

TEST(an_allocator_without_its_free_is_refused)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    options.free = NULL;
    CHECK(!ms_watch_open(&options));
    options = heap_options(&heap);
    options.alloc = NULL;
    CHECK(!ms_watch_open(&options));
    CHECK_EQ(heap.asked, 0);
}

TEST(all_memory_comes_from_the_given_allocator_and_goes_back)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    struct scene scene;
    scene_open(&scene, &options);
    struct lane *t = scene_lane(&scene, 1);
    for (int i = 0; i < 2000; i++) {
        call(t, scene.a);
        make(t, 1);
    }
    CHECK(heap.live > 0);
    scene_close(&scene);
    CHECK_EQ(heap.live, 0);
    CHECK_EQ(heap.live_bytes, 0);
}

TEST(a_watch_that_cannot_open_leaves_nothing)
{
    for (long n = 1;; n++) {
        struct heap heap = {.refuse_at = n};
        ms_options options = heap_options(&heap);
        ms_watch *watch = ms_watch_open(&options);
        CHECK((watch == NULL) == (heap.refused > 0));
        ms_watch_close(watch);
        CHECK_EQ(heap.live, 0);
        if (watch)
            break;
    }
}

TEST(closing_a_watch_closes_its_open_threads)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    struct scene scene;
    scene_open(&scene, &options);
    call(scene_lane(&scene, 1), scene.a);
    end_lane(scene_lane(&scene, 2));
    scene_close(&scene);
    CHECK_EQ(heap.live, 0);
}

TEST(watches_know_nothing_of_each_other)
{
    struct scene one, two;
    scene_open(&one, NULL);
    scene_open(&two, NULL);
    struct lane *t = scene_lane(&one, 5), *u = scene_lane(&two, 5);
    uint64_t first = small_call(t, one.a, 1), second = small_call(u, two.d, 1);
    CHECK_EQ(owner(t, first), one.a);
    CHECK_EQ(owner(u, second), two.d);
    scene_close(&one);
    CHECK_EQ(owner(u, second), two.d);
    scene_close(&two);
}

TEST(a_thread_without_an_id_is_not_opened)
{
    ms_watch *watch = ms_watch_open(NULL);
    CHECK(!ms_thread_open(watch, 0));
    ms_watch_close(watch);
}

/* "It stays 0 while memory and the options' limits suffice." */
TEST(nothing_is_lost_while_memory_lasts)
{
    ms_watch *watch = ms_watch_open(NULL);
    CHECK(!ms_thread_open(watch, 0));
    CHECK_EQ(ms_watch_lost(watch), 0);
    ms_watch_close(watch);
}

TEST(memory_does_not_grow_with_the_number_of_calls)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    options.calls_kept = 1024;
    struct scene scene;
    scene_open(&scene, &options);
    struct lane *t = scene_lane(&scene, 1);
    for (int i = 0; i < 2000; i++)
        small_call(t, scene.a, 1);
    size_t bytes = heap.live_bytes;
    for (int i = 0; i < 20000; i++)
        small_call(t, i % 2 ? scene.a : scene.d, 1);
    CHECK_EQ(heap.live_bytes, bytes);
    scene_close(&scene);
}

TEST(a_watch_can_be_used_between_lock_and_unlock_by_readers_of_paths)
{
    struct scene scene;
    scene_open(&scene, NULL);
    ms_watch_lock(scene.watch);
    CHECK(strcmp(ms_path_name(scene.watch, scene.c), "c") == 0);
    ms_watch_unlock(scene.watch);
    ms_path again;
    CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, "a", &again), MS_OK);
    CHECK_EQ(again, scene.a);
    scene_close(&scene);
}
