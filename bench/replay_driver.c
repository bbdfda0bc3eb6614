/* replay_driver.c - how long it takes to load a capture of a million events, and to replay it with ten edits.
 *
 * The program is a model of layers, trained: each part of a layer keeps a block for backward and makes a temporary one.
 */
#define _GNU_SOURCE /* memfd_create */
#include "modscope_capture.h"
#include "modscope_replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { LAYERS = 24, PARTS = 8, STEPS = 500, EDITS = 10 };

static ms_path root, layers[LAYERS], parts[LAYERS][PARTS];
static uint64_t next_address = 4096, next_number = 1;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void must(int error, const char *what)
{
    if (error < 0) {
        fprintf(stderr, "%s: %s\n", what, ms_error_text(error));
        exit(1);
    }
}

static void add_paths(ms_watch *watch)
{
    char name[32];
    must(ms_path_add(watch, MS_GLOBAL, "Net", &root), "path");
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "Net.h.%d", i);
        must(ms_path_add(watch, root, name, &layers[i]), "path");
        for (int j = 0; j < PARTS; j++) {
            snprintf(name, sizeof name, "Net.h.%d.%d", i, j);
            must(ms_path_add(watch, layers[i], name, &parts[i][j]), "path");
        }
    }
}

static uint64_t add(ms_ledger *ledger, const ms_thread *thread, uint64_t bytes)
{
    must(ms_block_add(ledger, thread, next_address, bytes, 0), "add");
    return next_address++;
}

static uint64_t size_of(int layer, int part)
{
    return (uint64_t)(1 + part) << (14 + layer % 3 + part % 5);
}

static void forward(ms_ledger *ledger, ms_thread *thread, uint64_t kept[LAYERS][PARTS])
{
    ms_call_enter(thread, root, next_number);
    for (int i = 0; i < LAYERS; i++) {
        ms_call_enter(thread, layers[i], next_number);
        for (int j = 0; j < PARTS; j++) {
            ms_call_enter(thread, parts[i][j], next_number++);
            uint64_t temporary = add(ledger, thread, size_of(i, j) / 2);
            kept[i][j] = add(ledger, thread, size_of(i, j));
            ms_block_drop(ledger, temporary);
            ms_call_leave(thread, next_number);
        }
        ms_call_leave(thread, next_number);
    }
    ms_call_leave(thread, next_number);
}

static void backward(ms_ledger *ledger, ms_thread *thread, uint64_t kept[LAYERS][PARTS])
{
    for (int i = LAYERS; i-- > 0;)
        for (int j = PARTS; j-- > 0;) {
            ms_node_enter_as(thread, parts[i][j], next_number);
            uint64_t temporary = add(ledger, thread, size_of(i, j));
            ms_block_drop(ledger, kept[i][j]);
            ms_block_drop(ledger, temporary);
            ms_node_leave(thread, next_number);
        }
}

static void write_capture(int fd)
{
    ms_watch *watch = ms_watch_open(NULL);
    ms_ledger *ledger = ms_ledger_open(watch);
    ms_capture *capture;
    uint64_t kept[LAYERS][PARTS];
    must(ms_ledger_attach(ledger), "attach");
    must(ms_capture_begin(ledger, fd, NULL, &capture), "begin");
    ms_thread *thread = ms_thread_open(watch, 1);
    add_paths(watch);
    for (int i = 0; i < STEPS; i++) {
        forward(ledger, thread, kept);
        backward(ledger, thread, kept);
        ms_capture_flush(capture);
    }
    ms_thread_close(thread);
    ms_capture_end(capture, NULL);
    ms_ledger_close(ledger);
    ms_watch_close(watch);
}

/* Edit `number`: every fourth checkpoints layers, the others change sizes. */
static ms_replay_edit *make_edit(const ms_replay_stream *stream, int number)
{
    ms_replay_edit *edit = ms_replay_edit_open(stream);
    if (!edit)
        must(MS_ENOMEM, "edit");
    if (number % 4 == 0)
        for (uint32_t i = 0; i < stream->call_count; i++)
            if (stream->calls[i].path == layers[number] || stream->calls[i].path == layers[number + 1])
                must(ms_replay_edit_checkpoint(edit, i), "checkpoint");
    must(ms_replay_edit_scale(edit, &(ms_replay_selection){.device = MS_REPLAY_NONE}, (uint64_t)number + 1, 2, NULL),
         "scale");
    return edit;
}

int main(void)
{
    int fd = memfd_create("capture", 0);
    ms_reader *reader;
    ms_replay_stream *stream;
    ms_allocator_settings settings;
    ms_replay_result result;
    write_capture(fd);
    must(ms_allocator_settings_default(&settings, NULL), "settings");
    double start = now();
    must(ms_reader_open(fd, NULL, &reader), "open");
    must(ms_replay_stream_load(reader, &stream), "load");
    double loaded = now();
    for (int i = 0; i < EDITS; i++) {
        ms_replay_edit *edit = make_edit(stream, i);
        must(ms_replay_run(stream, edit, 0, &settings, NULL, &result), "replay");
        ms_replay_edit_close(edit);
    }
    double done = now();
    printf("%u events, %u blocks, %u calls: loaded in %.2f s, %d replays in %.2f s\n", stream->event_count,
           stream->block_count, stream->call_count, loaded - start, EDITS, done - loaded);
    ms_replay_stream_free(stream);
    ms_reader_close(reader);
    return 0;
}
