/* capture_scene.c - a capture made by hand, and a cursor in it. */
#include "capture_scene.h"
#include "capture_exercise.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct file file;
ms_reader *reader;
ms_cursor *cursor;
static int fd;

void begin_file(void)
{
    file_open(&file);
    file.event = 1;
    file_names(&file, 0, (const char *const[]){"Global", "unknown", "a", "b", "c", NULL});
    file_devices(&file, (const char *const[]){"cpu", "cuda:0", NULL});
    file_key_empty(&file);
}

void begin_file_with_events(void)
{
    begin_file();
    begin_chunk(EVENTS, 1);
    for (int i = 0; i < 100; i++)
        file_op(&file, MS_OP_OPTIMIZER_STEP);
    file_close(&file);
}

void begin_chunk(uint32_t kind, uint64_t event)
{
    file.event = event;
    file_chunk(&file, kind);
}

void begin_events(void)
{
    file_chunk(&file, EVENTS);
}

void end_events(void)
{
    file_close(&file);
}

static void read_fd(void)
{
    CHECK(fd >= 0);
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
}

void read_file(void)
{
    fd = file_fd(&file);
    read_fd();
}

/* The corpus is beside the folder of this file, from where the compiler found it. */
void read_corpus(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%.*s/../../corpus/%s", (int)(strrchr(__FILE__, '/') - __FILE__), __FILE__, name);
    fd = open(path, O_RDONLY);
    read_fd();
}

void unread(void)
{
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    close(fd);
}

void finish_file(void)
{
    unread();
    file_free(&file);
}

void seek(uint64_t moment)
{
    CHECK_EQ(ms_cursor_seek(cursor, moment), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), moment);
}

void seek_with_later_claims(uint64_t moment)
{
    seek(moment);
    CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), moment);
}

bool is_held(uint32_t slot)
{
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);)
        if (block.slot == slot)
            return true;
    return false;
}

ms_captured_block block_in(uint32_t slot)
{
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);)
        if (block.slot == slot)
            return block;
    FAIL("nothing is held in slot %u", slot);
}

int64_t bytes_on(uint32_t device)
{
    ms_sums now = ms_cursor_now(cursor, device);
    int64_t total = 0;
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        total += now.of[i];
    return total;
}

ms_event next_event(void)
{
    ms_event event;
    CHECK_EQ(ms_cursor_next(cursor, UINT32_MAX, &event), MS_OK);
    return event;
}

void exercise_all(const uint8_t *bytes, size_t count)
{
    struct file part = {0};
    file_append(&part, bytes, count);
    int part_fd = file_fd(&part);
    struct heap heap = {0};
    const char *wrong = capture_exercise(part_fd, count, &heap);
    if (wrong)
        FAIL("%zu bytes: %s", count, wrong);
    close(part_fd);
    file_free(&part);
}
