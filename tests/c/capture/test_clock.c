/* test_clock.c - a capture whose times come from a clock of the caller's, and what ran in that time. */
#define _POSIX_C_SOURCE 200809L
#include "core/capture/format.h"
#include "writer_scene.h"

#include <stdlib.h>
#include <unistd.h>

static uint64_t virtual_now;

static uint64_t read_virtual_now(void)
{
    return virtual_now;
}

static void pass_microseconds(uint64_t microseconds)
{
    virtual_now += microseconds * 1000;
}

static void open_virtual_scene(void)
{
    virtual_now = 5000000;
    ms_capture_use_clock(read_virtual_now);
    open_scene();
    ms_capture_use_clock(NULL);
}

static uint64_t *times_of(ms_reader *reader, uint64_t until)
{
    uint32_t count = ms_reader_paths(reader);
    uint64_t *times = calloc((size_t)count * MS_PHASE_COUNT, sizeof *times);
    ms_cursor *cursor = cursor_of(reader);
    CHECK_EQ(ms_cursor_times(cursor, until, times, count), MS_OK);
    ms_cursor_close(cursor);
    return times;
}

static uint64_t sum_of(const uint64_t *times, uint32_t paths_in_file)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < paths_in_file * MS_PHASE_COUNT; i++)
        sum += times[i];
    return sum;
}

TEST(a_capture_that_began_with_a_clock_of_the_caller_s_keeps_it)
{
    open_virtual_scene();
    pass_microseconds(7);
    ms_call_enter(program.thread, paths[1], 0);
    pass_microseconds(30);
    ms_call_enter(program.thread, paths[2], 0);
    pass_microseconds(500);
    pause_ms(5);
    ms_call_leave(program.thread, 0);
    pass_microseconds(11);
    ms_call_leave(program.thread, 0);
    pass_microseconds(2);
    end_capture(capture);
    ms_reader *reader = open_reader(fd);
    CHECK_EQ(survey_of(reader).phases[MS_FORWARD].time, 541);
    uint64_t *times = times_of(reader, UINT64_MAX);
    CHECK_EQ(times[paths[1] * MS_PHASE_COUNT + MS_FORWARD], 41);
    CHECK_EQ(times[paths[2] * MS_PHASE_COUNT + MS_FORWARD], 500);
    CHECK_EQ(times[MS_GLOBAL * MS_PHASE_COUNT + MS_IDLE], 9);
    CHECK_EQ(sum_of(times, ms_reader_paths(reader)), 550);
    free(times);
    ms_reader_close(reader);
    close_scene();
}

TEST(every_event_has_the_time_of_a_clock_of_the_caller_s)
{
    open_virtual_scene();
    ms_call_enter(program.thread, paths[1], 0);
    for (int i = 0; i < 100; i++) {
        pass_microseconds(1);
        change_block(&program);
    }
    ms_call_leave(program.thread, 0);
    end_capture(capture);
    ms_reader *reader = open_reader(fd);
    ms_cursor *cursor = cursor_of(reader);
    ms_event event;
    uint64_t expected = 1;
    while (ms_cursor_next(cursor, UINT32_MAX, &event) == MS_OK)
        if (event.op == MS_OP_ADD || event.op == MS_OP_DROP)
            CHECK_EQ(event.time, expected++);
    CHECK_EQ(expected, 101);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    close_scene();
}

TEST(the_time_of_a_thread_ends_when_another_thread_goes_on)
{
    open_virtual_scene();
    struct program main_thread = program_open(77);
    ms_node_enter_as(program.thread, paths[1], 0);
    pass_microseconds(100);
    ms_node_leave(program.thread, 0);
    ms_optimizer_enter(main_thread.thread);
    pass_microseconds(40);
    ms_optimizer_leave(main_thread.thread);
    end_capture(capture);
    ms_reader *reader = open_reader(fd);
    ms_survey survey = survey_of(reader);
    CHECK_EQ(survey.phases[MS_BACKWARD].time, 100);
    CHECK_EQ(survey.phases[MS_OPTIMIZER].time, 40);
    ms_reader_close(reader);
    close_scene();
}

static int event_chunks_in_file(void)
{
    int found = 0;
    struct ms__chunk_head head;
    uint8_t bytes[MS__CHUNK_HEAD];
    for (off_t at = MS__FILE_HEAD; pread(fd, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes;) {
        CHECK(ms__head_get(bytes, &head));
        found += head.kind == MS__CHUNK_EVENTS;
        at += MS__CHUNK_HEAD + (off_t)head.size;
    }
    return found;
}

static int chunks_of_steps(int steps, uint64_t microseconds)
{
    open_virtual_scene();
    for (int i = 0; i < steps; i++) {
        ms_optimizer_enter(program.thread);
        pass_microseconds(microseconds);
        ms_optimizer_leave(program.thread);
    }
    end_capture(capture);
    int found = event_chunks_in_file();
    close_scene();
    return found;
}

/* A program that is killed then leaves each of its steps but perhaps the last, unless they are very short. */
TEST(the_events_of_a_long_step_are_written_when_it_ends)
{
    CHECK(chunks_of_steps(40, 25000) >= 40);
    CHECK(chunks_of_steps(40, 1000) < 20);
}

TEST(captures_have_the_system_s_time_after_that)
{
    open_virtual_scene();
    int other_fd = new_file();
    ms_capture *other = begin_capture(other_fd);
    pause_ms(3);
    end_capture(other);
    end_capture(capture);
    ms_reader *reader = open_reader(other_fd);
    CHECK(ms_reader_get_status(reader).duration >= 3000);
    ms_reader_close(reader);
    reader = open_reader(fd);
    CHECK_EQ(ms_reader_get_status(reader).duration, 0);
    ms_reader_close(reader);
    close_scene();
}
