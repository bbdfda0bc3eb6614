/* scene.c - see scene.h. */
#include "scene.h"

#include "core/watch/watch.h"
#include "runner.h"

#include <string.h>

void scene_open(struct scene *scene, const ms_options *options)
{
    memset(scene, 0, sizeof *scene);
    scene->watch = ms_watch_open(options);
    CHECK(scene->watch);
    CHECK_EQ(ms_path_add(scene->watch, MS_GLOBAL, "a", &scene->a), MS_OK);
    CHECK_EQ(ms_path_add(scene->watch, scene->a, "b", &scene->b), MS_OK);
    CHECK_EQ(ms_path_add(scene->watch, scene->b, "c", &scene->c), MS_OK);
    CHECK_EQ(ms_path_add(scene->watch, MS_GLOBAL, "d", &scene->d), MS_OK);
}

void scene_open_small(struct scene *scene)
{
    ms_options options = {.calls_kept = 256};
    scene_open(scene, &options);
}

void scene_close(struct scene *scene)
{
    ms_watch_close(scene->watch);
}

struct lane *scene_lane(struct scene *scene, uint64_t id)
{
    CHECK(scene->lane_count < SCENE_LANES);
    struct lane *lane = &scene->lanes[scene->lane_count++];
    *lane = (struct lane){.watch = scene->watch, .thread = ms_thread_open(scene->watch, id), .id = id};
    CHECK(lane->thread);
    return lane;
}

void end_lane(struct lane *lane)
{
    ms_thread_close(lane->thread);
    lane->thread = NULL;
}

static void done(struct lane *lane, int error)
{
    if (error != MS_OK)
        FAIL("an event gave %d: %s", error, ms_error_text(error));
    bool check = ++lane->events <= 1000 || lane->events % 1000 == 0;
    const char *fault = check ? ms__thread_check(lane->thread) : NULL;
    if (fault)
        FAIL("this does not hold: %s", fault);
}

void call(struct lane *lane, ms_path path)
{
    done(lane, ms_call_enter(lane->thread, path, lane->seq));
}

void leave_call(struct lane *lane)
{
    done(lane, ms_call_leave(lane->thread, lane->seq));
}

void override(struct lane *lane, ms_path path)
{
    done(lane, ms_override_enter(lane->thread, path));
}

void leave_override(struct lane *lane)
{
    done(lane, ms_override_leave(lane->thread));
}

void node(struct lane *lane, const struct lane *creator, uint64_t number)
{
    done(lane, ms_node_enter(lane->thread, creator->id, number, lane->seq));
}

void leave_node(struct lane *lane)
{
    done(lane, ms_node_leave(lane->thread, lane->seq));
}

uint64_t make(struct lane *lane, uint64_t count)
{
    lane->seq += count;
    return lane->seq - count;
}

uint64_t small_call(struct lane *lane, ms_path path, uint64_t count)
{
    call(lane, path);
    uint64_t first = make(lane, count);
    leave_call(lane);
    return first;
}

ms_path owner(const struct lane *creator, uint64_t number)
{
    return ms_node_path(creator->watch, creator->id, number);
}

void check_contexts(const struct lane *lane, size_t count, const ms_path *wanted)
{
    ms_path got[16];
    CHECK_EQ(ms_thread_contexts(lane->thread, got, 16), count);
    for (size_t i = 0; i < count; i++)
        if (got[i] != wanted[i])
            FAIL("context %zu is %u, not %u", i, got[i], wanted[i]);
}
