/* test_survey.c - the survey: one pass over all events. */
#include "capture_scene.h"

static ms_survey survey;

static void look(void)
{
    read_file();
    CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
}

TEST(a_survey_finds_the_peak_of_each_device)
{
    begin_file();
    begin_events();
    file.later = 10;
    file_step(&file, 3);                  /* 1 */
    file_reserved(&file, 1, 4096);        /* 2 */
    file_thread_new(&file, 1, 9);         /* 3 */
    file_position(&file, MS_BACKWARD, 4); /* 4 */
    file.later = 10;
    file_add(&file, 0, 100, 1);                            /* 5 */
    file_add_as(&file, 1, 7, 0, MS_PARAMETER | 3 << 4, 2); /* 6 */
    file_drop(&file, 0);                                   /* 7 */
    file_reserved(&file, 1, 9999);                         /* 8 */
    file_add(&file, 2, 100, 1);                            /* 9: as much, but not more */
    end_events();
    look();
    CHECK_EQ(survey.devices, 2);
    const ms_capture_peak *cuda = &survey.peaks[1];
    CHECK(cuda->bytes == 100 && cuda->moment == 6 && cuda->time == 20 && cuda->step == 3);
    CHECK(cuda->phase == MS_BACKWARD && cuda->running == 4 && cuda->reserved == 4096);
    CHECK_EQ(survey.peaks[0].bytes, 7);
    CHECK_EQ(survey.peaks[0].running, 4);
    CHECK_EQ(survey.peaks[2].bytes, 0);
    CHECK_EQ(survey.peak_reserved[1], 9999);
    CHECK_EQ(survey.steps, 3);
    CHECK(survey.first == 1 && survey.last == 10 && !survey.is_lower_bound);
    finish_file();
}

TEST(a_survey_counts_events_and_what_was_made_in_each_phase)
{
    begin_file();
    begin_events();
    file_position(&file, MS_FORWARD, 2);
    file_add(&file, 0, 100, 0);
    file_add(&file, 1, 50, 0);
    file_position(&file, MS_OPTIMIZER, 0);
    file_add(&file, 2, 1, 0);
    file_optimizer_step(&file);
    file_drop(&file, 1);
    end_events();
    look();
    CHECK_EQ(survey.events[MS_OP_ADD], 3);
    CHECK_EQ(survey.events[MS_OP_DROP], 1);
    CHECK_EQ(survey.events[MS_OP_POSITION], 2);
    CHECK_EQ(survey.phases[MS_FORWARD].blocks, 2);
    CHECK_EQ(survey.phases[MS_FORWARD].bytes, 150);
    CHECK_EQ(survey.phases[MS_OPTIMIZER].bytes, 1);
    CHECK_EQ(survey.optimizer_steps, 1);
    finish_file();
}

TEST(time_counts_for_the_first_of_the_phases_of_all_threads)
{
    begin_file();
    begin_events();
    file.later = 1;
    file_position(&file, MS_FORWARD, 2); /* idle until 1 */
    file.later = 10;
    file_thread_new(&file, 1, 5);
    file.later = 100;
    file_position(&file, MS_BACKWARD, 3); /* forward until 111 */
    file.later = 1000;
    file_position(&file, MS_RECOMPUTE, 3); /* backward until 1111, although thread 0 is in forward */
    file.later = 10000;
    file_position(&file, MS_IDLE, 0); /* recompute until 11111 */
    file.later = 100000;
    file_thread(&file, 0);
    file_position(&file, MS_OPTIMIZER, 0); /* forward until 111111 */
    end_events();
    file.time += 1000000; /* optimizer until the end */
    file_pairs(&file, END, (const char *const[]){NULL});
    look();
    CHECK_EQ(survey.phases[MS_IDLE].time, 1);
    CHECK_EQ(survey.phases[MS_FORWARD].time, 110 + 100000);
    CHECK_EQ(survey.phases[MS_BACKWARD].time, 1000);
    CHECK_EQ(survey.phases[MS_RECOMPUTE].time, 10000);
    CHECK_EQ(survey.phases[MS_OPTIMIZER].time, 1000000);
    finish_file();
}

TEST(a_survey_knows_the_first_and_the_last_failed_allocation)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 1, 0);
    file_oom(&file, 0, 10, 1, 1);
    file_oom(&file, 0, 10, 1, 1);
    file_drop(&file, 0);
    file_oom(&file, 0, 10, 1, 1);
    end_events();
    look();
    CHECK_EQ(survey.oom_count, 3);
    CHECK_EQ(survey.first_oom, 3);
    CHECK_EQ(survey.last_oom, 6);
    finish_file();
    begin_file();
    look();
    CHECK(survey.oom_count == 0 && survey.first_oom == 0 && survey.last_oom == 0);
    finish_file();
}

static void key_with(uint64_t bytes, uint64_t lost)
{
    file_key_begin(&file, (struct file_key){.lost = lost});
    file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 1);
    file_varint(&file, 0), file_varint(&file, bytes), file_varint(&file, 0), file_byte(&file, MS_PARAMETER);
    file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 0);
    file_close(&file);
}

TEST(what_a_key_frame_holds_counts_for_the_peak)
{
    file_open(&file);
    file.event = 1;
    key_with(500, 0);
    begin_events();
    file_drop(&file, 0);
    end_events();
    look();
    CHECK(survey.peaks[0].bytes == 500 && survey.peaks[0].moment == 1 && survey.peaks[0].running == MS_GLOBAL);
    unread();
    key_with(700, 1); /* after a loss, and nothing comes after it */
    look();
    CHECK(survey.peaks[0].bytes == 700 && survey.peaks[0].moment == 2 && survey.peaks[0].running == MS_UNKNOWN);
    CHECK(survey.is_lower_bound);
    CHECK_EQ(survey.last, 2);
    finish_file();
}

TEST(time_while_events_were_lost_counts_for_no_phase)
{
    begin_file();
    begin_events();
    file.later = 1;
    file_position(&file, MS_FORWARD, 2);
    file.later = 50;
    file_optimizer_step(&file);
    end_events();
    file.time = 1000;
    file.event += 7;
    key_with(1, 7);
    begin_events();
    file.later = 3;
    file_optimizer_step(&file);
    end_events();
    look();
    CHECK_EQ(survey.phases[MS_FORWARD].time, 50);
    CHECK_EQ(survey.phases[MS_IDLE].time, 1 + 3);
    finish_file();
}

TEST(sums_over_all_blocks_saturate)
{
    begin_file();
    begin_events();
    for (int i = 0; i < 5; i++) {
        file_add(&file, 0, INT64_MAX, 0);
        file_drop(&file, 0);
    }
    end_events();
    look();
    CHECK_EQ(survey.peaks[0].bytes, INT64_MAX);
    CHECK(survey.phases[MS_IDLE].bytes == UINT64_MAX);
    CHECK(!survey.is_lower_bound);
    finish_file();
}

/* ---- progress ---- */
static double told[1000];
static int told_count, told_most;

static bool tell(void *context, double done)
{
    CHECK(context == &told);
    CHECK(told_count < 1000);
    told[told_count++] = done;
    return told_count < told_most;
}

TEST(progress_grows_and_can_stop_a_survey)
{
    begin_file();
    for (uint32_t chunk = 0; chunk < 300; chunk++) {
        begin_events();
        file_add(&file, chunk, 1, 0);
        end_events();
    }
    read_file();
    told_most = 1000;
    CHECK_EQ(ms_reader_survey(reader, &survey, tell, &told), MS_OK);
    CHECK(told_count > 50 && told_count <= 300);
    for (int i = 1; i < told_count; i++)
        CHECK(told[i] > told[i - 1] && told[i] <= 1);
    told_count = 0;
    told_most = 10;
    CHECK_EQ(ms_reader_survey(reader, &survey, tell, &told), MS_ESTOPPED);
    CHECK_EQ(told_count, 10);
    finish_file();
}
