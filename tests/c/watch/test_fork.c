/* test_fork.c - a process forks while other threads use the watch: the child can go on. */
#include "forks.h"
#include "runner.h"

#include <stdio.h>
#include <string.h>

#define FORKS 200

static struct scene scene;

static void *hammer(void *argument)
{
    uint64_t id = *(const uint64_t *)argument;
    for (unsigned i = 0; !forks_over(); i++) {
        char name[24];
        ms_path path = 0;
        snprintf(name, sizeof name, "p%u", i % 5000);
        ms_path_add(scene.watch, MS_GLOBAL, name, &path);
        ms_thread *thread = ms_thread_open(scene.watch, id + i);
        if (thread)
            ms_thread_close(thread);
    }
    return NULL;
}

/* 0 if all is well, else which step was not. */
static int use_the_watch(void)
{
    ms_path path = 0;
    if (ms_path_add(scene.watch, scene.a, "child", &path) != MS_OK || strcmp(ms_path_name(scene.watch, path), "child"))
        return 1;
    ms_thread *thread = ms_thread_open(scene.watch, 99);
    if (!thread)
        return 2;
    if (ms_call_enter(thread, path, 0) != MS_OK || ms_call_leave(thread, 1) != MS_OK)
        return 3;
    if (ms_node_path(scene.watch, 99, 0) != path)
        return 4;
    if (ms_node_path(scene.watch, 7, 0) != scene.a)
        return 5;
    return 0;
}

TEST(a_child_forked_while_threads_use_the_watch_can_use_it)
{
    forks_open(&scene);
    small_call(scene_lane(&scene, 7), scene.a, 1);
    uint64_t ids[2] = {UINT64_C(1) << 32, UINT64_C(2) << 32};
    forks_run(FORKS, hammer, (void *const[2]){&ids[0], &ids[1]}, use_the_watch);
    scene_close(&scene);
}
