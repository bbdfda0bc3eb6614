/* test_oom_report.c - an allocation that fails: its event in the capture, and the out-of-memory report. */
#include "writer_scene.h"

#include <string.h>

TEST(a_failed_allocation_is_in_the_capture_and_its_report_names_the_owners)
{
    open_all(NULL);
    program = program_open(7);
    fd = new_file();
    ms_peak_tracker *tracker = ms_peak_tracker_open(watched);
    capture = begin_capture(fd);
    ms_call_enter(program.thread, paths[3], 0);
    CHECK_EQ(ms_block_add(watched, program.thread, 1, 3 << 20, 2), MS_OK);
    CHECK_EQ(ms_block_add_as(watched, program.thread, 2, 1 << 20, 2, MS_PARAMETER, paths[1], false), MS_OK);
    CHECK_EQ(ms_block_claim_kind(watched, 2, MS_KIND_SHARDED_PARAM, paths[1]), MS_OK);
    ms_ledger_reserved(watched, 2, 8 << 20);
    char report[4096];
    ms_oom oom = {.device = 2, .requested = UINT64_C(1) << 40, .allocated = 4 << 20, .reserved = 8 << 20};
    size_t length = ms_ledger_oom(watched, program.thread, &oom, report, sizeof report);
    CHECK_EQ(length, strlen(report));
    const char *const parts[] = {"an allocation of 1.00 TiB on cuda:1 failed",
                                 "in step 1, forward of m3",
                                 "allocated on cuda:1: 4.00 MiB",
                                 "Activation 3.00 MiB, Parameter 1.00 MiB",
                                 "of it: Sharded Param 1.00 MiB",
                                 "8.00 MiB, of which 4.00 MiB is free",
                                 "peak so far: 4.00 MiB",
                                 "3.00 MiB  m3: Activation",
                                 "1.00 MiB  m1: Parameter"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(report, parts[i]))
            FAIL("\"%s\" is not in:\n%s", parts[i], report);
    ms_call_leave(program.thread, 0);
    ms_block_drop(watched, 1);
    end_capture(capture);
    ms_reader *reader = open_reader(fd);
    ms_survey survey = survey_of(reader);
    CHECK_EQ(survey.oom_count, 1);
    CHECK_EQ(survey.peak_reserved[2], 8 << 20);
    ms_cursor *cursor = cursor_of(reader);
    CHECK_EQ(ms_cursor_seek(cursor, survey.last_oom - 1), MS_OK);
    ms_event event;
    CHECK_EQ(ms_cursor_next(cursor, 1u << MS_OP_OOM, &event), MS_OK);
    CHECK_EQ(event.bytes, oom.requested);
    CHECK_EQ(event.path, paths[3]);
    CHECK_EQ(event.phase, MS_FORWARD);
    CHECK_EQ(ms_cursor_now(cursor, 2).of[MS_ACTIVATION], 3 << 20);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    ms_peak_tracker_close(tracker);
    close_scene();
}

TEST(a_report_says_that_an_evaluation_ran)
{
    open_all(NULL);
    program = program_open(7);
    ms_oom oom = {.device = 2, .requested = 1 << 20};
    char report[4096];
    const char *const parts[] = {"failed, in evaluation, in m3\n", "failed, in evaluation after step 1, in m3\n"};
    for (size_t i = 0; i < 2; i++) {
        ms_call_enter_without_grad(program.thread, paths[3], 0);
        ms_ledger_oom(watched, program.thread, &oom, report, sizeof report);
        if (!strstr(report, parts[i]))
            FAIL("\"%s\" is not in:\n%s", parts[i], report);
        ms_call_leave(program.thread, 0);
        ms_call_enter(program.thread, paths[3], 0);
        ms_call_leave(program.thread, 0);
        ms_optimizer_enter(program.thread);
        ms_optimizer_leave(program.thread);
    }
    close_scene();
}

TEST(a_report_has_the_frames_above_the_line_without_the_nodes_among_them)
{
    open_all(NULL);
    program = program_open(7);
    ms_stack stack = ms_stack_add(watch, &(ms_frame){.file = "t.py", .function = "main", .line = 9});
    stack = ms_stack_add(watch, &(ms_frame){.function = "Own", .outer = stack});
    stack = ms_stack_add(watch, &(ms_frame){.file = "t.py", .function = "backward", .line = 5, .outer = stack});
    stack = ms_stack_add(watch, &(ms_frame){.function = "aten::empty", .outer = stack});
    char report[4096];
    ms_ledger_oom(watched, program.thread, &(ms_oom){.requested = 100, .stack = stack}, report, sizeof report);
    static const char wanted[] =
        "\n  requested by t.py:5 in backward, by aten::empty\n    called from t.py:9 in main\n  allocated on ";
    if (!strstr(report, wanted))
        FAIL("\"%s\" is not in:\n%s", wanted, report);
    close_all();
}

TEST(a_report_is_cut_off_where_its_room_ends)
{
    open_all(NULL);
    program = program_open(7);
    char whole[4096], part[4096];
    ms_oom oom = {.requested = 100};
    run(&program, 5);
    size_t length = ms_ledger_oom(watched, NULL, &oom, whole, sizeof whole);
    CHECK(length > 100);
    for (size_t room = 0; room <= length + 1; room++) {
        memset(part, '#', sizeof part);
        size_t got = ms_ledger_oom(watched, NULL, &oom, part, room);
        CHECK_EQ(got, room ? room - 1 : 0);
        CHECK(part[room] == '#');
        CHECK(!room || (!memcmp(part, whole, got) && !part[got]));
    }
    close_all();
}
