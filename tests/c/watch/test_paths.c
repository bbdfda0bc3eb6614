/* test_paths.c - every distinct (parent, name, nth) is one path. */
#include "heap.h"
#include "runner.h"
#include "scene.h"

#include <stdio.h>
#include <string.h>

TEST(the_two_paths_that_always_are)
{
    ms_watch *watch = ms_watch_open(NULL);
    CHECK(strcmp(ms_path_name(watch, MS_GLOBAL), "Global") == 0);
    CHECK(strcmp(ms_path_name(watch, MS_UNKNOWN), "unknown") == 0);
    CHECK_EQ(ms_path_parent(watch, MS_GLOBAL), MS_GLOBAL);
    CHECK_EQ(ms_path_parent(watch, MS_UNKNOWN), MS_GLOBAL);
    CHECK_EQ(ms_path_depth(watch, MS_GLOBAL), 0);
    CHECK_EQ(ms_path_depth(watch, MS_UNKNOWN), 0);
    ms_watch_close(watch);
}

TEST(a_path_has_its_name_parent_and_depth)
{
    struct scene scene;
    scene_open(&scene, NULL);
    CHECK(strcmp(ms_path_name(scene.watch, scene.c), "c") == 0);
    CHECK_EQ(ms_path_parent(scene.watch, scene.c), scene.b);
    CHECK_EQ(ms_path_parent(scene.watch, scene.a), MS_GLOBAL);
    CHECK_EQ(ms_path_depth(scene.watch, scene.a), 1);
    CHECK_EQ(ms_path_depth(scene.watch, scene.c), 3);
    scene_close(&scene);
}

TEST(a_path_is_shown_by_its_name_until_it_is_renamed)
{
    struct scene scene;
    scene_open(&scene, NULL);
    CHECK(strcmp(ms_path_shown(scene.watch, scene.b), "b") == 0);
    const char *before = ms_path_shown(scene.watch, scene.b);
    CHECK_EQ(ms_path_show_as(scene.watch, scene.b, "generator"), MS_OK);
    CHECK(strcmp(ms_path_shown(scene.watch, scene.b), "generator") == 0);
    CHECK(strcmp(before, "b") == 0);
    CHECK_EQ(ms_path_show_as(scene.watch, scene.b, "discriminator"), MS_OK);
    CHECK(strcmp(ms_path_shown(scene.watch, scene.b), "discriminator") == 0);
    CHECK(strcmp(ms_path_shown(scene.watch, scene.c), "c") == 0);
    scene_close(&scene);
}

TEST(a_renamed_path_is_still_found_by_the_name_that_it_was_added_by)
{
    struct scene scene;
    scene_open(&scene, NULL);
    CHECK_EQ(ms_path_show_as(scene.watch, scene.b, "generator"), MS_OK);
    ms_path again = 0;
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "b", &again), MS_OK);
    CHECK_EQ(again, scene.b);
    CHECK(strcmp(ms_path_name(scene.watch, scene.b), "b") == 0);
    scene_close(&scene);
}

TEST(only_paths_of_modules_are_renamed)
{
    struct scene scene;
    scene_open(&scene, NULL);
    CHECK_EQ(ms_path_show_as(scene.watch, MS_GLOBAL, "x"), MS_EINVAL);
    CHECK_EQ(ms_path_show_as(scene.watch, MS_UNKNOWN, "x"), MS_EINVAL);
    CHECK_EQ(ms_path_show_as(scene.watch, ms_path_count(scene.watch), "x"), MS_EINVAL);
    CHECK_EQ(ms_path_show_as(scene.watch, scene.b, NULL), MS_EINVAL);
    scene_close(&scene);
}

TEST(the_same_name_in_the_same_place_is_the_same_path)
{
    struct scene scene;
    scene_open(&scene, NULL);
    ms_path again = 0;
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "b", &again), MS_OK);
    CHECK_EQ(again, scene.b);
    scene_close(&scene);
}

TEST(the_same_name_elsewhere_is_another_path)
{
    struct scene scene;
    scene_open(&scene, NULL);
    ms_path other = 0;
    CHECK_EQ(ms_path_add(scene.watch, scene.d, "b", &other), MS_OK);
    CHECK(other != scene.b);
    CHECK_EQ(ms_path_parent(scene.watch, other), scene.d);
    scene_close(&scene);
}

TEST(a_module_called_inside_itself_is_another_path)
{
    struct scene scene;
    scene_open(&scene, NULL);
    ms_path inner = 0;
    CHECK_EQ(ms_path_add(scene.watch, scene.a, "a", &inner), MS_OK);
    CHECK(inner != scene.a);
    CHECK_EQ(ms_path_depth(scene.watch, inner), 2);
    scene_close(&scene);
}

TEST(names_are_copied)
{
    struct scene scene;
    scene_open(&scene, NULL);
    char name[] = "layer";
    ms_path path = 0;
    CHECK_EQ(ms_path_add(scene.watch, scene.a, name, &path), MS_OK);
    name[0] = 'X';
    CHECK(strcmp(ms_path_name(scene.watch, path), "layer") == 0);
    scene_close(&scene);
}

TEST(a_module_may_be_named_like_the_paths_that_always_are)
{
    struct scene scene;
    scene_open(&scene, NULL);
    const char *names[] = {"Global", "unknown", ""};
    for (int i = 0; i < 3; i++) {
        ms_path path = 0, again = 0;
        CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, names[i], &path), MS_OK);
        CHECK(path > MS_UNKNOWN);
        CHECK_EQ(ms_path_depth(scene.watch, path), 1);
        CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, names[i], &again), MS_OK);
        CHECK_EQ(again, path);
    }
    scene_close(&scene);
}

TEST(arguments_out_of_range_leave_the_path_alone)
{
    struct scene scene;
    scene_open(&scene, NULL);
    ms_path path = 77;
    CHECK_EQ(ms_path_add(scene.watch, MS_UNKNOWN, "x", &path), MS_EINVAL);
    CHECK_EQ(ms_path_add(scene.watch, 1000000, "x", &path), MS_EINVAL);
    CHECK_EQ(ms_path_add(scene.watch, UINT32_MAX, "x", &path), MS_EINVAL);
    CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, NULL, &path), MS_EINVAL);
    CHECK_EQ(path, 77);
    CHECK_EQ(ms_watch_lost(scene.watch), 0);
    scene_close(&scene);
}

/* Both names have the same 32-bit FNV-1a hash. */
TEST(names_that_hash_alike_are_different_paths)
{
    struct scene scene;
    scene_open(&scene, NULL);
    ms_path one = 0, other = 0, again = 0;
    CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, "lsexqzd", &one), MS_OK);
    CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, "ztxtxde", &other), MS_OK);
    CHECK(one != other);
    CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, "lsexqzd", &again), MS_OK);
    CHECK_EQ(again, one);
    scene_close(&scene);
}

#define MANY 20000

/* Enough that buckets are doubled and chunks added many times over. */
TEST(many_paths_stay_what_they_were)
{
    static ms_path paths[MANY];
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    ms_watch *watch = ms_watch_open(&options);
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < MANY; i++) {
            char name[32];
            snprintf(name, sizeof name, "layer.%u", (unsigned)i % 100);
            ms_path parent = i < 100 ? MS_GLOBAL : paths[i / 100], path = 0;
            CHECK_EQ(ms_path_add(watch, parent, name, &path), MS_OK);
            if (round == 0)
                paths[i] = path;
            CHECK_EQ(path, paths[i]);
            CHECK(strcmp(ms_path_name(watch, path), name) == 0);
            CHECK_EQ(ms_path_parent(watch, path), parent);
            CHECK_EQ(ms_path_depth(watch, path), ms_path_depth(watch, parent) + 1);
        }
    ms_watch_close(watch);
    CHECK_EQ(heap.live, 0);
}

/* Adds numbered paths until the watch refuses. Returns how many were added. */
static uint32_t fill(ms_watch *watch, int *error)
{
    for (uint32_t i = 0;; i++) {
        char name[32];
        ms_path path = 0;
        snprintf(name, sizeof name, "p%u", (unsigned)i);
        *error = ms_path_add(watch, MS_GLOBAL, name, &path);
        if (*error)
            return i;
    }
}

TEST(a_full_watch_says_so_and_keeps_what_it_has)
{
    ms_options options = {.paths_kept = 600};
    ms_watch *watch = ms_watch_open(&options);
    int error = MS_OK;
    uint32_t count = fill(watch, &error);
    CHECK_EQ(error, MS_EFULL);
    CHECK(count >= 600 && count < 600 + 512);
    ms_path path = 77, again = 0;
    CHECK_EQ(ms_path_add(watch, MS_GLOBAL, "one too many", &path), MS_EFULL);
    CHECK_EQ(path, 77);
    CHECK_EQ(ms_path_add(watch, MS_GLOBAL, "p0", &again), MS_OK);
    CHECK(strcmp(ms_path_name(watch, again), "p0") == 0);
    ms_watch_close(watch);
}

TEST(as_many_paths_fit_as_the_options_say)
{
    for (uint32_t kept = 254; kept <= 258; kept++) {
        ms_options options = {.paths_kept = kept};
        ms_watch *watch = ms_watch_open(&options);
        int error = MS_OK;
        CHECK(fill(watch, &error) >= kept);
        CHECK_EQ(error, MS_EFULL);
        ms_watch_close(watch);
    }
}
