/* test_oom_sweep.c - refuse the 1st, 2nd, 3rd... allocation, once and then for ever, until
 * the scenario needs no more. Nothing leaks, no answer is wrong, and the loss is counted. */
#include "heap.h"
#include "play.h"
#include "random.h"
#include "runner.h"

#include <stdio.h>

enum outcome { UNTOUCHED, REFUSED };

/* Enough paths that the buckets double and a second chunk is needed. */
static void add_paths(struct play *play)
{
    for (int i = 0; i < 400; i++) {
        char name[16];
        ms_path path = 77;
        snprintf(name, sizeof name, "p%d", i);
        int error = ms_path_add(play->model.watch, MS_GLOBAL, name, &path);
        CHECK(error == MS_OK || (error == MS_ENOMEM && path == 77));
        play->model.errors += error != MS_OK;
    }
}

/* Deeper than the stack's first capacity, with overrides and nodes before and after it grows. */
static void deep(struct play *play, uint32_t t)
{
    struct model *model = &play->model;
    for (uint32_t i = 0; i < 150; i++) {
        if (i % 8 == 0)
            model_override_enter(model, t, play->paths[i % PLAY_PATHS]);
        if (i % 8 == 4)
            model_node_enter(model, t, t, model_number(model, t, i % 5));
        model_call_enter(model, t, play->paths[i % PLAY_PATHS]);
        model_make(model, t, 1);
    }
    model_check_thread(model, t);
    while (model->threads[t].depth) {
        model_leave(model, t);
        model_make(model, t, 1);
    }
}

/* Enough calls for several chunks of records; another thread runs their nodes. */
static void wide(struct play *play, uint32_t t, uint32_t u)
{
    struct model *model = &play->model;
    model_call_enter(model, t, play->paths[0]);
    for (uint32_t i = 0; i < 700; i++) {
        model_call_enter(model, t, play->paths[i % PLAY_PATHS]);
        model_make(model, t, 1 + i % 2);
        model_leave(model, t);
        model_make(model, t, i % 5 == 0);
    }
    model_leave(model, t);
    for (uint64_t age = 0; age < 300 && model->threads[t].made; age++) {
        model_node_enter(model, u, t, model_number(model, t, age));
        model_make(model, u, age % 2);
        model_leave(model, u);
    }
}

/* Allocations succeed again: from now on every owner is known. */
static void check_recovery(struct play *play)
{
    struct model *model = &play->model;
    for (int i = 0; i < PLAY_THREADS; i++) {
        const struct model_thread *thread = &model->threads[play->open[i]];
        if (!thread->core || play->paths[1] == MS_UNKNOWN)
            continue;
        model_call_enter(model, play->open[i], play->paths[1]);
        model_make(model, play->open[i], 1);
        model_leave(model, play->open[i]);
        CHECK_EQ(ms_node_path(model->watch, thread->id, model_number(model, play->open[i], 0)), play->paths[1]);
    }
}

static void everything(struct play *play)
{
    add_paths(play);
    deep(play, play->open[0]);
    wide(play, play->open[1], play->open[2]);
    for (int i = 0; i < 6; i++) {
        play->current = 3;
        play_bytes(play, (const uint8_t[]){0, 130, 70, 255, 0}, 5, 0);
        deep(play, play->open[3]);
    }
    play_finish(play);
}

static void random_bytes(struct play *play)
{
    uint8_t bytes[1500];
    uint64_t seed = 12;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random_next(&seed);
    play_bytes(play, bytes, sizeof bytes, 0);
    play_finish(play);
}

static enum outcome run(void (*scenario)(struct play *), long n, bool forever)
{
    struct heap heap = {.refuse_at = n, .forever = forever};
    ms_options options = heap_options(&heap);
    options.calls_kept = 1024;
    options.threads_kept = 2;
    struct play play;
    if (play_open(&play, &options)) {
        scenario(&play);
        if (play.model.failed)
            FAIL("refused allocation %ld%s: %s", n, forever ? " and all later" : "", play.model.wrong);
        if ((play.model.errors > 0) != (ms_watch_lost(play.model.watch) > 0))
            FAIL("refused allocation %ld: %llu events failed, %llu lost", n, (unsigned long long)play.model.errors,
                 (unsigned long long)ms_watch_lost(play.model.watch));
        if (!forever && heap.refused)
            check_recovery(&play);
    } else {
        CHECK(heap.refused);
    }
    play_close(&play);
    if (heap.live)
        FAIL("refused allocation %ld: %ld blocks leaked", n, heap.live);
    return heap.refused ? REFUSED : UNTOUCHED;
}

static void sweep(void (*scenario)(struct play *))
{
    for (int forever = 0; forever <= 1; forever++)
        for (long n = 1; run(scenario, n, forever) == REFUSED; n++)
            ;
}

TEST(every_allocation_of_a_full_scenario_may_be_refused)
{
    sweep(everything);
}

TEST(every_allocation_of_a_random_run_may_be_refused)
{
    sweep(random_bytes);
}
