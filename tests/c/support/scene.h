/* scene.h - a watch with a few paths and a lane for each thread, so that a test reads
 * as a list of events. ms__thread_check() runs after each of a lane's first thousand
 * events, then after one in a thousand.
 *
 *     struct lane *t = scene_lane(&scene, 7);
 *     call(t, scene.a); make(t, 2); leave_call(t);
 *     CHECK_EQ(owner(t, 1), scene.a);
 */
#ifndef MS_TEST_SCENE_H
#define MS_TEST_SCENE_H

#include "modscope.h"

#include <stdint.h>

#define SCENE_LANES 64

struct lane {
    ms_watch *watch;
    ms_thread *thread;
    uint64_t id;
    uint64_t seq; /* the number that the next node gets */
    uint64_t events;
};

/* Paths: a, a.b, a.b.c and d. */
struct scene {
    ms_watch *watch;
    ms_path a, b, c, d;
    struct lane lanes[SCENE_LANES];
    uint32_t lane_count;
};

/* options may be NULL. */
void scene_open(struct scene *scene, const ms_options *options);
/* Each thread keeps 256 calls, the smallest number there is. */
void scene_open_small(struct scene *scene);
void scene_close(struct scene *scene);

struct lane *scene_lane(struct scene *scene, uint64_t id);
/* End the thread; owner() still works for its lane. */
void end_lane(struct lane *lane);

/* Each of these fails the test unless the core returns MS_OK. */
void call(struct lane *lane, ms_path path);
void leave_call(struct lane *lane);
void override(struct lane *lane, ms_path path);
void leave_override(struct lane *lane);
void node(struct lane *lane, const struct lane *creator, uint64_t number);
void leave_node(struct lane *lane);

/* Creates nodes; returns the first one's number. */
uint64_t make(struct lane *lane, uint64_t count);
/* A whole call that creates `count` nodes; returns the first one's number. */
uint64_t small_call(struct lane *lane, ms_path path, uint64_t count);

ms_path owner(const struct lane *creator, uint64_t number);
/* Fails the test unless these are the thread's contexts, outermost first. */
void check_contexts(const struct lane *lane, size_t count, const ms_path *wanted);
#define CHECK_CONTEXTS(lane, ...) \
    check_contexts(lane, sizeof((ms_path[]){__VA_ARGS__}) / sizeof(ms_path), (ms_path[]){__VA_ARGS__})

#endif
