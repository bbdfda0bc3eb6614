/* test_oom.c - memory that is refused to a replay: each function says so, and nothing leaks. */
#include "capture/capture_scene.h"
#include "modscope_epoch.h"
#include "modscope_replay.h"
#include "refused_malloc.h"

enum { DEVICE, OTHER_DEVICE };

static ms_replay_stream *stream;
static ms_allocator_settings settings;

static int load(void)
{
    ms_replay_stream *loaded;
    int error = ms_replay_stream_load(reader, &loaded);
    if (error == MS_OK)
        ms_replay_stream_free(loaded);
    return error;
}

static int run(void)
{
    ms_replay_result result;
    return ms_replay_run(stream, NULL, DEVICE, &settings, NULL, &result);
}

static int edit_and_run(void)
{
    ms_replay_edit *edit = ms_replay_edit_open(stream);
    ms_replay_result result;
    if (!edit)
        return MS_ENOMEM;
    uint32_t begin = stream->event_count / 4, end = stream->event_count / 2;
    int error = ms_replay_edit_insert(edit, begin, end, 4096, DEVICE, 0);
    for (uint32_t i = 0; error != MS_ENOMEM && i < stream->call_count; i++)
        error = i % 2 ? ms_replay_edit_checkpoint(edit, i) : ms_replay_edit_offload(edit, i, OTHER_DEVICE);
    if (error != MS_ENOMEM)
        error = ms_replay_edit_zero_grad(edit, NULL);
    if (error == MS_OK)
        error = ms_replay_edit_save_on_cpu(edit, DEVICE, OTHER_DEVICE, NULL);
    if (error == MS_OK)
        error = ms_replay_run(stream, edit, DEVICE, &settings, NULL, &result);
    ms_replay_edit_close(edit);
    return error;
}

static int match(void)
{
    uint32_t paths[256];
    ms_replay_match found;
    CHECK(stream->path_count < 256);
    for (uint32_t i = 0; i < stream->path_count; i++)
        paths[i] = i;
    int error = ms_replay_match_open(stream, stream, paths, DEVICE, 0, &found);
    if (error == MS_OK)
        ms_replay_match_close(&found);
    return error;
}

static int fold(void)
{
    ms_replay_stream *folded;
    int error = ms_replay_stream_load(reader, &folded);
    if (error)
        return error;
    uint32_t events = folded->event_count;
    error = ms_replay_streams_fold(&folded, 1);
    CHECK(error == MS_OK ? folded->event_count < events : folded->event_count == events && !folded->fold_count);
    if (error == MS_OK) {
        ms_replay_result result;
        ms_replay_edit *edit = ms_replay_edit_open(folded);
        error = edit ? ms_replay_edit_zero_grad(edit, NULL) : MS_ENOMEM;
        if (error == MS_OK)
            error = ms_replay_run(folded, edit, DEVICE, &settings, NULL, &result);
        ms_replay_edit_close(edit);
    }
    ms_replay_stream_free(folded);
    return error;
}

static int shard(void)
{
    uint32_t units[256];
    ms_replay_edit *edit = ms_replay_edit_open(stream);
    if (!edit)
        return MS_ENOMEM;
    for (uint32_t i = 0; i < stream->path_count; i++)
        units[i] = i;
    ms_replay_sharding how = {.units = {stream->path_count, units, units},
                              .device = DEVICE,
                              .ranks = 2,
                              .end = stream->event_count,
                              .is_mixed = true};
    int error = ms_replay_edit_shard(edit, &how, NULL);
    if (!error)
        error = ms_replay_edit_shard_over(edit, DEVICE, 2, 4, true, NULL);
    if (!error)
        error = ms_replay_edit_keep_gathered(edit, DEVICE, NULL);
    if (!error)
        error = ms_replay_edit_reshard(edit, &how.units, DEVICE, NULL);
    how.is_mixed = false;
    if (!error)
        error = ms_replay_edit_shard(edit, &how, NULL);
    ms_replay_edit_close(edit);
    return error;
}

static int choose(void)
{
    bool chosen[2], is_covered;
    ms_cover_problem problem = {.candidates = 2,
                                .rows = 1,
                                .costs = (double[]){1, 2},
                                .needed = (int64_t[]){10},
                                .saved = (int64_t[]){3, 5},
                                .lies_in = (uint8_t[]){0, 0, 0, 0}};
    return ms_cover_choose(&problem, 4, chosen, &is_covered);
}

TEST(every_allocation_of_a_folded_replay_may_be_refused)
{
    enum { STEPS = 12, BLOCK = 3 };
    begin_file();
    begin_events();
    for (uint64_t step = 1; step <= STEPS; step++) {
        file_step(&file, step);
        file_position(&file, MS_FORWARD, 2);
        file_add(&file, BLOCK, 4096, DEVICE);
        file_position(&file, MS_BACKWARD, 2);
        file_drop(&file, BLOCK);
    }
    end_events();
    read_file();
    CHECK_EQ(ms_allocator_settings_default(&settings, NULL), MS_OK);
    refuse_each_malloc(fold, MS_ENOMEM);
    finish_file();
}

/* Steps with a block of their shape's size, which the next step frees, and some with one more. */
static int predict_epoch(void)
{
    enum { STEPS = 8, SHAPES = 4 };
    uint64_t log[5 * STEPS];
    size_t marks[STEPS + 1], count = 0, made = 0;
    uint32_t shapes[STEPS], batches[64];
    uint8_t kinds[64] = {0};
    double features[SHAPES];
    for (uint32_t i = 0; i < SHAPES; i++)
        features[i] = 1 + i;
    for (uint32_t i = 0; i < STEPS; i++) {
        marks[i] = count;
        shapes[i] = i % SHAPES;
        uint64_t previous = made - 1;
        log[count++] = (uint64_t)(1 + i % SHAPES) << (20 + MS_LOG_KIND_BITS) | MS_LOG_ALLOCATE;
        made++;
        if (i % 3 == 2) {
            log[count++] = UINT64_C(4096) << MS_LOG_KIND_BITS | MS_LOG_ALLOCATE;
            log[count++] = made++ << MS_LOG_KIND_BITS | MS_LOG_FREE;
        }
        if (i)
            log[count++] = (i % 3 == 0 ? previous - 1 : previous) << MS_LOG_KIND_BITS | MS_LOG_FREE;
    }
    marks[STEPS] = count;
    for (uint32_t i = 0; i < 64; i++)
        batches[i] = i * 7 % SHAPES;
    ms_epoch_source source = {log, count, marks, shapes, kinds, STEPS, 2, features, SHAPES, 1};
    ms_epoch *epoch;
    ms_epoch_result result;
    int error = ms_epoch_open(&source, &epoch);
    if (error)
        return error;
    error = ms_epoch_replay(epoch, &settings, &(ms_epoch_batches){batches, kinds, 64}, false, NULL, &result);
    CHECK(error || (result.first_failure == MS_EPOCH_NONE && result.replayed < 64));
    ms_epoch_close(epoch);
    return error;
}

TEST(every_allocation_of_an_epoch_may_be_refused)
{
    CHECK_EQ(ms_allocator_settings_default(&settings, NULL), MS_OK);
    refuse_each_malloc(predict_epoch, MS_ENOMEM);
}

TEST(every_allocation_of_a_replay_may_be_refused)
{
    read_corpus("runs/gpt-0.1.0.msc");
    CHECK_EQ(ms_replay_stream_load(reader, &stream), MS_OK);
    CHECK_EQ(ms_allocator_settings_default(&settings, NULL), MS_OK);
    refuse_each_malloc(load, MS_ENOMEM);
    refuse_each_malloc(run, MS_ENOMEM);
    refuse_each_malloc(edit_and_run, MS_ENOMEM);
    refuse_each_malloc(match, MS_ENOMEM);
    refuse_each_malloc(shard, MS_ENOMEM);
    refuse_each_malloc(choose, MS_ENOMEM);
    ms_replay_stream_free(stream);
    unread();
}
