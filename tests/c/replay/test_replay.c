/* test_replay.c - a small training step as a capture, its replay, and its replay with each edit.
 *
 *     Net (2)  calls  Net.a (3)  and  Net.b (4);  each keeps a block for backward and returns another */
#include "capture/capture_exercise.h"
#include "capture/capture_scene.h"
#include "modscope_replay.h"

#include <stdlib.h>

#include <string.h>
#include <unistd.h>

enum { NET = 2, A, B };
enum { KEPT_A, OUTPUT_A, KEPT_B, OUTPUT_B, TEMPORARY }; /* slots; blocks have the same numbers */

static ms_replay_stream *stream;
static ms_replay_edit *edit;
static ms_replay_result result;

static void write_names(void)
{
    const char *names[] = {"Net", "Net.a", "Net.b"};
    file_chunk(&file, NAMES);
    file_varint(&file, NET);
    for (uint32_t i = 0; i < 3; i++) {
        file_varint(&file, i ? NET : MS_GLOBAL);
        file_varint(&file, 0);
        file_string(&file, names[i]);
    }
    file_close(&file);
}

static void write_forward(void)
{
    file_position(&file, MS_FORWARD, NET);
    file_position(&file, MS_FORWARD, A);
    file_add(&file, KEPT_A, 100, 1);
    file_add(&file, OUTPUT_A, 10, 1);
    file_position(&file, MS_FORWARD, NET);
    file_position(&file, MS_FORWARD, B);
    file_add(&file, KEPT_B, 1000, 1);
    file_add(&file, OUTPUT_B, 20, 1);
    file_position(&file, MS_FORWARD, NET);
    file_position(&file, MS_IDLE, MS_GLOBAL);
}

static void write_backward(void)
{
    file_drop(&file, OUTPUT_B); /* the loss saved it; here it is freed before backward */
    file_position(&file, MS_BACKWARD, B);
    file_add(&file, TEMPORARY, 5, 1);
    file_drop(&file, KEPT_B);
    file_drop(&file, OUTPUT_A); /* it is what Net.b took */
    file_position(&file, MS_BACKWARD, A);
    file_drop(&file, KEPT_A);
    file_drop(&file, TEMPORARY);
    file_position(&file, MS_IDLE, MS_GLOBAL);
}

static void load(void)
{
    begin_file();
    write_names();
    begin_events();
    file_step(&file, 7);
    write_forward();
    write_backward();
    end_events();
    read_file();
    CHECK_EQ(ms_replay_stream_load(reader, &stream), MS_OK);
    edit = ms_replay_edit_open(stream);
    CHECK(edit != NULL);
}

static void unload(void)
{
    ms_replay_edit_close(edit);
    ms_replay_stream_free(stream);
    finish_file();
}

/* The highest number of bytes on device 1, without a caching allocator. */
static uint64_t peak(void)
{
    CHECK_EQ(ms_replay_run(stream, edit, 1, NULL, NULL, &result), MS_OK);
    return result.allocated_peak;
}

static uint32_t call_of(ms_path path)
{
    for (uint32_t i = 0; i < stream->call_count; i++)
        if (stream->calls[i].path == path)
            return i;
    FAIL("there is no call of path %u", path);
}

TEST(a_replay_finds_the_calls_and_what_they_keep)
{
    load();
    CHECK_EQ(stream->call_count, 3);
    CHECK_EQ(stream->calls[call_of(A)].parent, call_of(NET));
    CHECK_EQ(stream->calls[call_of(NET)].parent, MS_REPLAY_NONE);
    CHECK_EQ(ms_replay_call_measure(stream, call_of(A), 1).kept, 100);
    CHECK_EQ(ms_replay_call_measure(stream, call_of(A), 1).output, 10);
    CHECK_EQ(ms_replay_call_measure(stream, call_of(B), 1).kept, 1000);
    CHECK_EQ(ms_replay_call_measure(stream, call_of(NET), 1).kept, 1110);
    CHECK_EQ(ms_replay_call_measure(stream, call_of(B), 0).kept, 0);
    CHECK_EQ(stream->calls[call_of(B)].step, 7);
    unload();
}

TEST(a_replay_without_edits_has_the_peak_of_the_run)
{
    load();
    CHECK_EQ(peak(), 1130);
    CHECK_EQ(result.requests, 5);
    CHECK_EQ(result.allocated_at.path, B);
    CHECK_EQ(result.allocated_at.phase, MS_FORWARD);
    CHECK_EQ(result.allocated_at.step, 7);
    unload();
}

TEST(a_curve_of_some_events_has_their_peaks)
{
    ms_replay_curve items[4];
    load();
    ms_replay_curve_range whole = {.items = items, .count = 1, .last = UINT64_MAX};
    CHECK_EQ(ms_replay_run(stream, edit, 1, NULL, &whole, &result), MS_OK);
    CHECK_EQ(whole.filled, 1);
    CHECK_EQ(items[0].allocated, 1130);
    uint64_t at = result.allocated_at.number;
    ms_replay_curve_range before = {.items = items, .count = 4, .last = at};
    CHECK_EQ(ms_replay_run(stream, edit, 1, NULL, &before, &result), MS_OK);
    CHECK_EQ(before.filled, 4);
    CHECK(items[3].allocated < 1130 && items[3].number < at);
    ms_replay_curve_range after = {.items = items, .count = 4, .first = at, .last = at + 1};
    CHECK_EQ(ms_replay_run(stream, edit, 1, NULL, &after, &result), MS_OK);
    CHECK_EQ(after.filled, 1); /* one event has one item */
    CHECK_EQ(items[0].allocated, 1130);
    CHECK_EQ(items[0].number, at);
    ms_replay_curve_range none = {.items = items, .count = 4, .first = at, .last = at};
    CHECK_EQ(ms_replay_run(stream, edit, 1, NULL, &none, &result), MS_OK);
    CHECK_EQ(none.filled, 0);
    unload();
}

TEST(a_checkpointed_call_frees_and_computes_again)
{
    load();
    CHECK_EQ(ms_replay_edit_checkpoint(edit, call_of(B)), MS_OK);
    CHECK_EQ(peak(), 1130); /* forward is as before */
    CHECK_EQ(result.requests, 6);
    CHECK_EQ(ms_replay_edit_scale(edit, &(ms_replay_selection){.device = MS_REPLAY_NONE, .root = B}, 2, 1, NULL),
             MS_OK);
    CHECK_EQ(peak(), 2150); /* the recomputed block has the edited size */
    unload();
}

TEST(checkpointing_the_first_of_two_calls_lowers_the_peak)
{
    load();
    CHECK_EQ(ms_replay_edit_checkpoint(edit, call_of(A)), MS_OK);
    CHECK_EQ(peak(), 1030);
    CHECK_EQ(ms_replay_edit_checkpoint(edit, call_of(A)), MS_EINVAL);
    CHECK_EQ(ms_replay_edit_checkpoint(edit, call_of(NET)), MS_EINVAL);
    CHECK_EQ(ms_replay_edit_checkpoint(edit, stream->call_count), MS_EINVAL);
    unload();
}

TEST(what_is_offloaded_is_on_the_other_device)
{
    load();
    CHECK_EQ(ms_replay_edit_offload(edit, call_of(A), 0), MS_OK);
    CHECK_EQ(peak(), 1030);
    CHECK_EQ(ms_replay_run(stream, edit, 0, NULL, NULL, &result), MS_OK);
    CHECK_EQ(result.allocated_peak, 100);
    unload();
}

TEST(blocks_are_scaled_moved_removed_and_inserted)
{
    uint64_t count;
    load();
    CHECK_EQ(ms_replay_edit_scale(edit, &(ms_replay_selection){.device = 1, .min_bytes = 100}, 1, 3, &count), MS_OK);
    CHECK_EQ(count, 2);
    CHECK_EQ(peak(), 34 + 10 + 334 + 20);
    CHECK_EQ(ms_replay_edit_remove(edit, &(ms_replay_selection){.device = 1, .root = A}, &count), MS_OK);
    CHECK_EQ(count, 2);
    CHECK_EQ(peak(), 334 + 20);
    CHECK_EQ(ms_replay_edit_move(edit, &(ms_replay_selection){.device = 1, .phases = 1u << MS_FORWARD}, 0, NULL),
             MS_OK);
    CHECK_EQ(peak(), 5);
    CHECK_EQ(ms_replay_edit_insert(edit, 3, 5, 4096, 1, 0), MS_OK);
    CHECK_EQ(peak(), 4096);
    CHECK_EQ(ms_replay_edit_insert(edit, 5, 3, 1, 1, 0), MS_EINVAL);
    CHECK_EQ(ms_replay_edit_scale(edit, &(ms_replay_selection){0}, 1, 0, NULL), MS_EINVAL);
    CHECK_EQ(ms_replay_edit_resize(edit, stream->block_count, 1), MS_EINVAL);
    unload();
}

TEST(a_block_that_is_scaled_beyond_all_measure_has_the_most_bytes_there_are)
{
    load();
    CHECK_EQ(ms_replay_edit_scale(edit, &(ms_replay_selection){.device = 1}, UINT64_MAX, 1, NULL), MS_OK);
    ms_allocator_settings settings;
    CHECK_EQ(ms_allocator_settings_default(&settings, NULL), MS_OK);
    settings.capacity = 1 << 30;
    CHECK_EQ(ms_replay_run(stream, edit, 1, &settings, NULL, &result), MS_OK);
    CHECK(result.failed && result.failed_bytes == UINT64_C(1) << 62);
    CHECK_EQ(result.failed_at.path, A);
    unload();
}

TEST(a_layout_has_the_addresses_of_the_model)
{
    ms_replay_layout layout;
    ms_allocator_settings settings;
    ms_allocation *held[5] = {NULL};
    load();
    CHECK_EQ(ms_allocator_settings_default(&settings, NULL), MS_OK);
    CHECK_EQ(ms_replay_layout_open(stream, 1, &settings, &layout, &result), MS_OK);
    ms_allocator *model = ms_allocator_open(&settings, NULL); /* asked by hand for what the step asks for */
    const uint64_t bytes[] = {[KEPT_A] = 100, [OUTPUT_A] = 10, [KEPT_B] = 1000, [OUTPUT_B] = 20, [TEMPORARY] = 5};
    for (int block = KEPT_A; block <= OUTPUT_B; block++)
        CHECK_EQ(ms_allocator_malloc(model, bytes[block], 0, &held[block]), MS_OK);
    uint64_t freed = ms_allocation_address(held[OUTPUT_B]);
    CHECK_EQ(layout.addresses[OUTPUT_B], freed);
    ms_allocator_free(model, held[OUTPUT_B]);
    CHECK_EQ(ms_allocator_malloc(model, bytes[TEMPORARY], 0, &held[TEMPORARY]), MS_OK);
    for (int block = KEPT_A; block <= TEMPORARY; block++) {
        if (block == OUTPUT_B)
            continue;
        CHECK_EQ(layout.addresses[block], ms_allocation_address(held[block]));
        CHECK_EQ(layout.bytes[block], ms_allocation_bytes(held[block]));
    }
    CHECK_EQ(layout.addresses[TEMPORARY], freed); /* the free part is used again */
    CHECK_EQ(layout.bytes[KEPT_B], 1024);
    CHECK_EQ(layout.segment_count, 1);
    CHECK_EQ(layout.segments[0].change, MS_SEGMENT_TAKEN);
    CHECK_EQ(layout.segments[0].bytes, 2 << 20);
    CHECK_EQ(layout.segments[0].address, layout.addresses[KEPT_A]);
    CHECK_EQ(layout.segments[0].number, stream->events[stream->blocks[KEPT_A].add].number);
    ms_allocator_close(model);
    ms_replay_layout_close(&layout);
    CHECK_EQ(ms_replay_layout_open(stream, 0, &settings, &layout, &result), MS_OK);
    CHECK(!layout.addresses[KEPT_A] && !layout.segment_count); /* another device has none of it */
    ms_replay_layout_close(&layout);
    CHECK_EQ(ms_replay_layout_open(stream, 1, NULL, &layout, &result), MS_EINVAL);
    CHECK_EQ(ms_replay_layout_open(stream, MS_MAX_DEVICES, &settings, &layout, &result), MS_EINVAL);
    CHECK(!layout.addresses);
    unload();
}

TEST(a_block_may_end_earlier_or_later)
{
    load();
    uint64_t before = peak();
    uint32_t block = 0;
    while (stream->blocks[block].drop == MS_REPLAY_NONE || stream->blocks[block].add == MS_REPLAY_NONE)
        block++;
    CHECK_EQ(ms_replay_edit_end(edit, block, stream->blocks[block].add), MS_EINVAL);
    CHECK_EQ(ms_replay_edit_end(edit, stream->block_count, 1), MS_EINVAL);
    CHECK_EQ(ms_replay_edit_end(edit, block, stream->blocks[block].add + 1), MS_OK);
    CHECK(peak() <= before);
    CHECK_EQ(ms_replay_edit_end(edit, block, MS_REPLAY_NONE), MS_OK);
    CHECK(peak() >= before);
    CHECK_EQ(ms_replay_edit_stop(edit, stream->event_count + 1), MS_EINVAL);
    uint64_t whole = peak();
    ms_replay_edit_stop_above(edit, whole);
    CHECK_EQ(peak(), whole);
    ms_replay_edit_stop_above(edit, 0);
    CHECK(peak() > 0 && peak() < whole);
    CHECK(!result.failed);
    unload();
}

/* ---- equal steps ---- */
enum { STEPS = 40, KEPT_STEPS = 5 };

static void write_steps(uint32_t count)
{
    begin_file();
    write_names();
    begin_events();
    for (uint32_t i = 0; i < count; i++) {
        file_step(&file, i + 1);
        write_forward();
        write_backward();
    }
    end_events();
    read_file();
    CHECK_EQ(ms_replay_stream_load(reader, &stream), MS_OK);
}

TEST(of_equal_steps_a_few_are_kept)
{
    write_steps(STEPS);
    edit = NULL;
    uint64_t before = peak(), requests = result.requests, replayed = result.replayed;
    uint32_t events = stream->event_count, calls = stream->call_count;
    CHECK_EQ(ms_replay_streams_fold(&stream, 1), MS_OK);
    CHECK_EQ(stream->fold_count, 1);
    CHECK_EQ(stream->step_count, STEPS);
    const ms_replay_fold *fold = &stream->folds[0];
    uint32_t of_step = fold->end - fold->begin;
    CHECK_EQ(fold->step, 2);
    CHECK_EQ(stream->event_count + fold->left_out * of_step, events);
    CHECK(stream->call_count <= calls / STEPS * KEPT_STEPS);
    CHECK_EQ(stream->calls[fold->step * 3].stands_for, fold->left_out + 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        const ms_replay_step *step = &stream->steps[i];
        CHECK_EQ(step->number, i + 1);
        CHECK_EQ(step->is_left_out, i > fold->step && i <= fold->step + fold->left_out);
        CHECK_EQ(stream->events[step->event].value, step->is_left_out ? fold->step + 1 : i + 1);
    }
    CHECK_EQ(peak(), before);
    CHECK_EQ(result.requests, requests);
    CHECK(result.replayed < replayed / 4);
    CHECK_EQ(ms_replay_streams_fold(&stream, 1), MS_OK); /* it is done once */
    CHECK_EQ(stream->fold_count, 1);
    unload();
}

TEST(a_step_that_stands_for_others_is_edited_for_them)
{
    write_steps(STEPS);
    edit = ms_replay_edit_open(stream);
    for (uint32_t i = 0; i < stream->call_count; i++)
        if (stream->calls[i].path == A)
            CHECK_EQ(ms_replay_edit_checkpoint(edit, i), MS_OK);
    uint64_t before = peak(), requests = result.requests;
    ms_replay_edit_close(edit);
    CHECK_EQ(ms_replay_streams_fold(&stream, 1), MS_OK);
    edit = ms_replay_edit_open(stream);
    for (uint32_t i = 0; i < stream->call_count; i++)
        if (stream->calls[i].path == A)
            CHECK_EQ(ms_replay_edit_checkpoint(edit, i), MS_OK);
    CHECK_EQ(peak(), before);
    CHECK_EQ(result.requests, requests);
    unload();
}

TEST(too_few_equal_steps_are_all_kept)
{
    write_steps(KEPT_STEPS);
    uint32_t events = stream->event_count;
    CHECK_EQ(ms_replay_streams_fold(&stream, 1), MS_OK);
    CHECK_EQ(stream->fold_count, 0);
    CHECK_EQ(stream->event_count, events);
    ms_replay_stream_free(stream);
    finish_file();
}

/* ---- any file ---- */

/* Edits that look at every block, each replayed; the match is with the stream itself. */
static void edit_lifetimes_of_any(const ms_replay_stream *any)
{
    uint32_t *paths = malloc((any->path_count + 1) * sizeof *paths);
    ms_replay_match match;
    for (uint32_t i = 0; i < any->path_count; i++)
        paths[i] = i;
    CHECK_EQ(ms_replay_match_open(any, any, paths, 1, 0, &match), MS_OK);
    CHECK_EQ(match.here + match.there, 0);
    ms_replay_edit *edit = ms_replay_edit_open(any);
    CHECK_EQ(ms_replay_edit_zero_grad(edit, NULL), MS_OK);
    CHECK_EQ(ms_replay_edit_save_on_cpu(edit, 1, 0, NULL), MS_OK);
    CHECK_EQ(ms_replay_edit_batch(edit, &match, 3), MS_OK);
    CHECK_EQ(ms_replay_edit_stop(edit, any->event_count / 2), MS_OK);
    CHECK_EQ(ms_replay_run(any, edit, 1, NULL, NULL, &result), MS_OK);
    CHECK_EQ(ms_replay_run(any, edit, 0, NULL, NULL, &result), MS_OK);
    ms_replay_edit_close(edit);
    ms_replay_match_close(&match);
    free(paths);
}

/* Every module is a unit, in which those below it lie. */
static void shard_any(const ms_replay_stream *any)
{
    uint32_t *units = malloc((any->path_count + 1) * sizeof *units);
    for (uint32_t i = 0; i < any->path_count; i++)
        units[i] = i;
    ms_replay_sharding how = {.units = {any->path_count, units, units}, .device = 1, .ranks = 3, .end = UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        ms_replay_edit *edit = ms_replay_edit_open(any);
        how.is_mixed = i & 1;
        how.keeps_params = i & 2;
        CHECK_EQ(ms_replay_edit_shard(edit, &how, NULL), MS_OK);
        CHECK_EQ(ms_replay_edit_shard_over(edit, 1, 3, 2, i & 1, NULL), MS_OK);
        CHECK_EQ(ms_replay_edit_keep_gathered(edit, 1, NULL), MS_OK);
        CHECK_EQ(ms_replay_edit_reshard(edit, &how.units, 1, NULL), MS_OK);
        CHECK_EQ(ms_replay_run(any, edit, 1, NULL, NULL, &result), MS_OK);
        ms_replay_edit_close(edit);
    }
    free(units);
}

/* Load a capture, and replay it with every call checkpointed that may be. */
static void replay_any(int fd)
{
    ms_reader *of;
    if (ms_reader_open(fd, NULL, &of) != MS_OK)
        return;
    ms_replay_stream *any;
    ms_allocator_settings settings;
    ms_allocator_settings_default(&settings, NULL);
    settings.capacity = UINT64_C(1) << 40;
    CHECK_EQ(ms_replay_stream_load(of, &any), MS_OK);
    CHECK_EQ(ms_replay_streams_fold(&any, 1), MS_OK);
    ms_replay_edit *all = ms_replay_edit_open(any);
    for (uint32_t i = any->call_count; i-- > 0;)
        ms_replay_edit_checkpoint(all, i);
    for (uint32_t device = 0; device < 3; device++)
        CHECK_EQ(ms_replay_run(any, all, device, device ? &settings : NULL, NULL, &result), MS_OK);
    ms_replay_edit_close(all);
    edit_lifetimes_of_any(any);
    shard_any(any);
    ms_replay_stream_free(any);
    ms_reader_close(of);
}

static void replay_with_each_byte_changed(void)
{
    for (size_t at = 16; at < file.count; at++) {
        uint8_t before = file.bytes[at];
        file.bytes[at] ^= (uint8_t)(1u << at % 8);
        for (size_t chunk = 16; chunk + 48 <= file.count;) { /* correct the checksums */
            uint32_t size;
            memcpy(&size, file.bytes + chunk + 8, 4);
            file_sign(file.bytes, file.count, chunk);
            chunk += size <= file.count ? 48 + (size_t)size : file.count;
        }
        int fd = file_fd(&file);
        replay_any(fd);
        close(fd);
        file.bytes[at] = before;
    }
    file_free(&file);
}

TEST(a_damaged_capture_can_be_replayed)
{
    load();
    unload();
    begin_file();
    write_names();
    begin_events();
    write_forward();
    write_backward();
    end_events();
    replay_with_each_byte_changed();
}

TEST(a_damaged_capture_of_equal_steps_can_be_replayed)
{
    write_steps(8);
    CHECK_EQ(ms_replay_streams_fold(&stream, 1), MS_OK);
    CHECK_EQ(stream->fold_count, 1);
    ms_replay_stream_free(stream);
    unread();
    replay_with_each_byte_changed();
}
