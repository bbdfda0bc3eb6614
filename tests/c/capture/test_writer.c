/* test_writer.c - a capture, read back with the reader, agrees with the ledger that it recorded. */
#include "writer_scene.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

TEST(the_end_of_a_capture_agrees_with_the_ledger)
{
    open_scene();
    run(&program, 300);
    ms_capture_status last = end_capture(capture);
    CHECK_EQ(last.lost, 0);
    CHECK_EQ(last.error, 0);
    CHECK_EQ(last.bytes, lseek(fd, 0, SEEK_END));
    CHECK(last.bytes < last.events * 10);
    ms_reader *reader = open_reader(fd);
    ms_reader_status status = ms_reader_get_status(reader);
    CHECK_EQ(status.events, last.events + 1);
    CHECK_EQ(status.lost, 0);
    CHECK(status.ended);
    CHECK(strcmp(ms_reader_device(reader, 2), "cuda:1") == 0);
    ms_path parent;
    uint32_t nth;
    CHECK(strcmp(ms_reader_path(reader, paths[4], &parent, &nth), "m4") == 0);
    CHECK_EQ(parent, paths[3]);
    ms_survey survey = survey_of(reader);
    CHECK_EQ(survey.optimizer_steps, 300);
    CHECK(!survey.is_lower_bound);
    ms_reader_close(reader);
    check_file(fd);
    close_scene();
}

TEST(a_path_that_is_renamed_has_its_last_name_in_the_whole_capture)
{
    open_scene();
    run(&program, 20);
    ms_capture_flush(capture);
    CHECK_EQ(ms_path_show_as(watch, paths[2], "generator"), MS_OK);
    run(&program, 20);
    ms_capture_flush(capture);
    CHECK_EQ(ms_path_show_as(watch, paths[3], "generator.first"), MS_OK);
    end_capture(capture);
    ms_reader *reader = open_reader(fd);
    ms_path parent;
    uint32_t nth;
    CHECK(strcmp(ms_reader_path(reader, paths[2], &parent, &nth), "generator") == 0);
    CHECK(strcmp(ms_reader_path(reader, paths[3], &parent, &nth), "generator.first") == 0);
    CHECK(strcmp(ms_reader_path(reader, paths[4], &parent, &nth), "m4") == 0);
    CHECK_EQ(parent, paths[3]);
    ms_reader_close(reader);
    check_file(fd);
    close_scene();
}

TEST(the_peak_in_a_capture_is_that_of_a_peak_tracker)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        open_all(NULL);
        program = program_open(seed);
        fd = new_file();
        ms_peak_tracker *tracker = ms_peak_tracker_open(watched);
        capture = begin_capture(fd);
        run(&program, 60);
        end_capture(capture);
        ms_reader *reader = open_reader(fd);
        ms_survey survey = survey_of(reader);
        for (uint32_t device = 0; device < 3; device += 2) {
            ms_peak peak = ms_peak_tracker_peak(tracker, device);
            CHECK_EQ(survey.peaks[device].bytes, peak.bytes);
            CHECK_EQ(survey.peaks[device].step, peak.step);
            CHECK_EQ(survey.peaks[device].phase, peak.phase);
            CHECK_EQ(survey.peaks[device].running, peak.running);
            ms_cursor *cursor = cursor_of(reader);
            CHECK_EQ(ms_cursor_seek(cursor, survey.peaks[device].moment), MS_OK);
            CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
            for (ms_path path = 0; path < ms_path_count(watch); path++) {
                ms_sums got = sums_of_path(cursor, device, path),
                        wanted = ms_peak_tracker_peak_of(tracker, device, path);
                CHECK(memcmp(&got, &wanted, sizeof got) == 0);
            }
            ms_cursor_close(cursor);
        }
        ms_reader_close(reader);
        close(fd);
        close_all();
    }
}

TEST(a_capture_that_begins_late_knows_what_was_there)
{
    open_all(NULL);
    program = program_open(7);
    run(&program, 50);
    ms_call_enter(program.thread, paths[5], program.seq);
    fd = new_file();
    capture = begin_capture(fd);
    change_block(&program);
    ms_call_leave(program.thread, program.seq);
    run(&program, 10);
    end_capture(capture);
    check_file(fd);
    close_scene();
}

static const char *name_in(ms_reader *reader, ms_path path)
{
    ms_path parent;
    uint32_t nth;
    return ms_reader_path(reader, path, &parent, &nth);
}

TEST(a_capture_has_the_names_of_those_older_modules_that_it_mentions)
{
    open_all(NULL);
    program = program_open(7);
    ms_path outer, inner, last, unused[200];
    CHECK_EQ(ms_path_add(watch, MS_GLOBAL, "outer", &outer), MS_OK);
    CHECK_EQ(ms_path_add(watch, outer, "outer.inner", &inner), MS_OK);
    for (int i = 0; i < 200; i++) {
        char name[40];
        snprintf(name, sizeof name, "a_module_that_ran_before.%d", i);
        CHECK_EQ(ms_path_add(watch, MS_GLOBAL, name, &unused[i]), MS_OK);
    }
    CHECK_EQ(ms_path_add(watch, MS_GLOBAL, "last", &last), MS_OK);
    fd = new_file();
    capture = begin_capture(fd);
    for (int round = 0; round < 2; round++) { /* the second finds the names in the file */
        ms_call_enter(program.thread, round ? last : inner, program.seq);
        change_block(&program);
        ms_call_leave(program.thread, program.seq);
        ms_capture_flush(capture);
    }
    ms_path newer;
    CHECK_EQ(ms_path_add(watch, outer, "outer.newer", &newer), MS_OK);
    CHECK_EQ(ms_path_show_as(watch, unused[1], "another_name_of_it"), MS_OK);
    CHECK_EQ(ms_path_show_as(watch, inner, "generator.inner"), MS_OK);
    ms_capture_status status = end_capture(capture);
    CHECK(status.bytes < 2048); /* with the 200 names it has 7,000 */
    ms_reader *reader = open_reader(fd);
    CHECK(strcmp(name_in(reader, outer), "outer") == 0);
    CHECK(strcmp(name_in(reader, inner), "generator.inner") == 0);
    CHECK(strcmp(name_in(reader, last), "last") == 0);
    CHECK(strcmp(name_in(reader, newer), "outer.newer") == 0);
    CHECK(!*name_in(reader, unused[0]) && !*name_in(reader, unused[1]));
    ms_reader_close(reader);
    check_file(fd);
    close_scene();
}

/* A cursor that seeks by a key frame gets to the same state as one that went through all events. */
static void check_by_key(ms_reader *reader, ms_cursor *walked)
{
    ms_cursor *sought = cursor_of(reader);
    CHECK_EQ(ms_cursor_seek(sought, ms_cursor_moment(walked)), MS_OK);
    CHECK_EQ(ms_cursor_moment(sought), ms_cursor_moment(walked));
    CHECK_EQ(ms_cursor_blocks(sought), ms_cursor_blocks(walked));
    CHECK_EQ(ms_cursor_step(sought), ms_cursor_step(walked));
    CHECK_EQ(ms_cursor_optimizer_steps(sought), ms_cursor_optimizer_steps(walked));
    for (uint32_t device = 0; device < 3; device++) {
        ms_sums got = ms_cursor_now(sought, device), wanted = ms_cursor_now(walked, device);
        CHECK(memcmp(&got, &wanted, sizeof got) == 0);
    }
    ms_cursor_close(sought);
}

TEST(a_key_frame_is_what_the_events_before_it_lead_to)
{
    open_scene();
    while (ms_capture_get_status(capture).events < 8 * 131072) {
        ms_capture_flush(capture);
        change_block(&program); /* a page begins with it; a key frame may precede it */
        run(&program, 100);
    }
    CHECK_EQ(end_capture(capture).lost, 0);
    ms_reader *reader = open_reader(fd);
    ms_cursor *walked = cursor_of(reader);
    ms_event event;
    while (ms_cursor_next(walked, UINT32_MAX, &event) == MS_OK)
        if (event.number % 10007 == 0)
            check_by_key(reader, walked);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    ms_cursor_close(walked);
    ms_reader_close(reader);
    close_scene();
}

TEST(two_captures_at_once_each_contain_everything)
{
    open_all(NULL);
    program = program_open(7);
    int first = new_file(), second = new_file();
    ms_capture *outer = begin_capture(first);
    run(&program, 40);
    ms_capture *inner = begin_capture(second);
    run(&program, 40);
    ms_capture_flush(inner);
    check_file(second);
    end_capture(outer);
    check_file(first);
    run(&program, 40);
    end_capture(inner);
    check_file(second);
    close(first);
    close(second);
    close_all();
}

/* Without a flush. The writer needs a quarter of a second, or longer if the machine is busy. */
static void wait_until_written(void)
{
    uint64_t events = ms_capture_get_status(capture).events, written = 0;
    while (written < events) {
        pause_ms(20);
        ms_reader *reader = open_reader(fd);
        written = ms_reader_get_status(reader).events;
        ms_reader_close(reader);
    }
}

TEST(events_are_in_the_file_before_the_capture_ends)
{
    open_scene();
    run(&program, 3);
    wait_until_written();
    check_file(fd);
    run(&program, 3);
    ms_capture_flush(capture);
    ms_reader *reader = open_reader(fd);
    CHECK(!ms_reader_get_status(reader).ended);
    ms_reader_close(reader);
    check_file(fd);
    end_capture(capture);
    close_scene();
}
