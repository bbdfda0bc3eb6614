/* writer_scene.c - see writer_scene.h. */
#define _GNU_SOURCE
#include "writer_scene.h"

#include "random.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- a disk that can be full or slow: this pwrite replaces that of libc ---- */
_Atomic int disk_error, disk_pause_ms, disk_most;

void pause_ms(int milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    if (disk_pause_ms)
        pause_ms(disk_pause_ms);
    if (disk_error) {
        errno = disk_error;
        return -1;
    }
    if (disk_most && count > (size_t)disk_most)
        count = (size_t)disk_most;
    return (ssize_t)syscall(SYS_pwrite64, fd, bytes, count, at);
}

/* ---- a program whose memory is recorded ---- */
ms_watch *watch;
ms_ledger *watched;
ms_path paths[PATHS];
struct program program;
int fd = -1;
ms_capture *capture;

void open_all(const ms_options *options)
{
    watch = ms_watch_open(options);
    CHECK(watch);
    for (int i = 0; i < PATHS; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", i);
        CHECK_EQ(ms_path_add(watch, i % 3 ? paths[i - 1] : MS_GLOBAL, name, &paths[i]), MS_OK);
    }
    ms_device_set_name(watch, 0, "cpu");
    ms_device_set_name(watch, 2, "cuda:1");
    watched = ms_ledger_open(watch);
    CHECK(watched);
    CHECK_EQ(ms_ledger_attach(watched), MS_OK);
}

void close_all(void)
{
    ms_ledger_detach(watched);
    ms_ledger_close(watched);
    ms_watch_close(watch);
}

struct program program_open(uint64_t id)
{
    struct program program = {.thread = ms_thread_open(watch, id), .random = id, .base = id << 32};
    CHECK(program.thread);
    return program;
}

void change_block(struct program *program)
{
    uint64_t *slot = &program->live[random_below(&program->random, LIVE)];
    uint64_t address = program->base + (uint64_t)(slot - program->live) + 1;
    if (*slot) {
        CHECK_EQ(ms_block_drop(watched, address), MS_OK);
        *slot = 0;
        return;
    }
    *slot = 1 + random_below(&program->random, UINT64_C(1) << random_below(&program->random, 40));
    CHECK_EQ(ms_block_add(watched, program->thread, address, *slot, random_below(&program->random, 5) ? 0 : 2), MS_OK);
}

static void claim_block(struct program *program)
{
    uint64_t at = random_below(&program->random, LIVE);
    ms_category category = (ms_category)random_below(&program->random, MS_CATEGORY_COUNT);
    ms_block_claim(watched, program->base + at + 1, category, paths[random_below(&program->random, PATHS)]);
}

/* A step: a call with calls inside, their nodes, an optimizer step. */
static void run_step(struct program *program)
{
    ms_thread *thread = program->thread;
    uint64_t first = program->seq;
    ms_call_enter(thread, paths[0], program->seq);
    for (int i = 0; i < 6; i++) {
        ms_call_enter(thread, paths[random_below(&program->random, PATHS)], program->seq);
        change_block(program);
        program->seq += 2;
        change_block(program);
        ms_call_leave(thread, program->seq);
    }
    ms_call_leave(thread, program->seq);
    for (uint64_t number = program->seq; number-- > first;) {
        ms_node_enter(thread, program->base >> 32, number, program->seq);
        change_block(program);
        ms_node_leave(thread, program->seq);
    }
    ms_optimizer_enter(thread);
    change_block(program);
    claim_block(program);
    ms_optimizer_leave(thread);
    claim_block(program);
}

void run(struct program *program, int steps)
{
    for (int i = 0; i < steps; i++)
        run_step(program);
}

/* ---- files ---- */
int new_file(void)
{
    char name[] = "/tmp/modscope-writer-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    unlink(name);
    return fd;
}

ms_capture *begin_capture(int fd)
{
    ms_capture *capture = NULL;
    CHECK_EQ(ms_capture_begin(watched, fd, (const char *const[]){"program", "test", NULL}, &capture), MS_OK);
    return capture;
}

ms_capture_status end_capture(ms_capture *capture)
{
    return ms_capture_end(capture, (const char *const[]){"how", "finished", NULL});
}

ms_reader *open_reader(int fd)
{
    ms_reader *reader = NULL;
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    return reader;
}

ms_cursor *cursor_of(ms_reader *reader)
{
    ms_cursor *cursor = NULL;
    CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
    return cursor;
}

ms_sums sums_of_path(ms_cursor *cursor, uint32_t device, ms_path path)
{
    ms_sums sums = {{0}};
    ms_captured_block held;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &held);)
        if (held.device == device && held.path == path)
            sums.of[held.category] += (int64_t)held.bytes;
    return sums;
}

/* The end of the file agrees with the ledger. */
static void check_end(ms_reader *reader)
{
    ms_cursor *cursor = cursor_of(reader);
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_blocks(cursor), ms_ledger_blocks(watched));
    CHECK_EQ(ms_cursor_step(cursor), ms_ledger_step(watched));
    for (uint32_t device = 0; device < 3; device++) {
        ms_sums got = ms_cursor_now(cursor, device), wanted = ms_ledger_now(watched, device);
        CHECK(memcmp(&got, &wanted, sizeof got) == 0);
        for (ms_path path = 0; path < ms_path_count(watch); path++) {
            got = sums_of_path(cursor, device, path);
            wanted = ms_ledger_now_of(watched, device, path);
            CHECK(memcmp(&got, &wanted, sizeof got) == 0);
        }
    }
    ms_cursor_close(cursor);
}

void check_file(int fd)
{
    ms_reader *reader = open_reader(fd);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    check_end(reader);
    ms_reader_close(reader);
}

ms_survey survey_of(ms_reader *reader)
{
    ms_survey survey;
    CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
    return survey;
}

void open_scene(void)
{
    open_all(NULL);
    program = program_open(7);
    fd = new_file();
    capture = begin_capture(fd);
}

void close_scene(void)
{
    close(fd);
    close_all();
}
