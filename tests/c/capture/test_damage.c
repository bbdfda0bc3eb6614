/* test_damage.c - captures that are cut off or damaged: what can be known is right, and the rest is passed over. */
#include "capture_scene.h"

#include <stdlib.h>
#include <string.h>

/* A file with a bit of everything: 3 chunks of events, with a key frame before the last. */
static size_t middle, key, last; /* where the second chunk of events, the key frame and the last chunk begin */

static void small_file(void)
{
    file_open(&file);
    file.event = 1;
    file_pairs(&file, INFO, (const char *const[]){"program", "x.py", NULL});
    file_names(&file, 0, (const char *const[]){"Global", "unknown", "a", "b", NULL});
    file_devices(&file, (const char *const[]){"cpu", NULL});
    file_key_empty(&file);
    begin_events();
    file_thread_new(&file, 1, 7);
    file_add(&file, 0, 10, 0); /* 2 */
    end_events();
    middle = file.count;
    begin_events();
    file.later = 5;
    file_position(&file, MS_FORWARD, 2);
    file_add(&file, 1, 20, 0); /* 4 */
    end_events();
    key = file.count;
    file_key_begin(&file, (struct file_key){0});
    file_varint(&file, 1), file_varint(&file, 1), file_varint(&file, 7), file_varint(&file, 1), file_varint(&file, 2);
    file_varint(&file, 0);
    file_varint(&file, 2);
    for (uint32_t i = 0; i < 2; i++) {
        file_varint(&file, 0), file_varint(&file, 10 + 10 * i), file_varint(&file, 0), file_byte(&file, MS_ACTIVATION);
        file_varint(&file, 2 * i), file_varint(&file, 3 - 2 * i), file_varint(&file, 0), file_varint(&file, 0);
    }
    file_close(&file);
    last = file.count;
    begin_events();
    file_claim(&file, 1, MS_PARAMETER, 3, 4, false); /* 5 */
    file_drop(&file, 0);                             /* 6 */
    end_events();
    file_pairs(&file, END, (const char *const[]){"how", "finished", NULL});
}

/* After `moment` events: what small_file holds. */
static int64_t held_after(uint64_t moment)
{
    return (moment > 2 ? 10 : 0) + (moment > 4 ? 20 : 0) - (moment > 6 ? 10 : 0);
}

static void check_all_moments(void)
{
    for (uint64_t moment = 0; moment < 9; moment++) {
        CHECK_EQ(ms_cursor_seek(cursor, moment), MS_OK);
        CHECK(ms_cursor_moment(cursor) <= 7);
        CHECK_EQ(bytes_on(0), held_after(ms_cursor_moment(cursor)));
    }
}

TEST(a_small_capture_is_complete)
{
    small_file();
    read_file();
    check_all_moments();
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    CHECK(!ms_cursor_is_lower_bound(cursor));
    finish_file();
}

/* ---- cut off ---- */
TEST(a_capture_cut_off_anywhere_is_read_as_far_as_it_goes)
{
    small_file();
    size_t whole = file.count;
    for (size_t count = 16; count < whole; count++) {
        file.count = count;
        read_file();
        CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
        CHECK(!ms_reader_get_status(reader).ended);
        check_all_moments();
        CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
        CHECK_EQ(ms_cursor_moment(cursor) == 7, count >= whole - 48 - strlen("\3how\10finished"));
        unread();
        exercise_all(file.bytes, count);
    }
    file_free(&file);
}

TEST(a_capture_that_is_cut_off_has_lost_nothing_before)
{
    small_file();
    file.count = last + 50;
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 5);
    CHECK(!ms_cursor_is_lower_bound(cursor));
    finish_file();
}

TEST(bytes_after_the_last_chunk_are_damage)
{
    small_file();
    file_append(&file, "and then some", 13);
    read_file();
    CHECK_EQ(ms_reader_get_status(reader).damaged, 13);
    finish_file();
}

/* ---- flipped bytes ---- */
TEST(after_any_byte_is_flipped_every_answer_is_right)
{
    small_file();
    for (size_t at = 16; at < file.count; at++)
        for (int bit = 0; bit < 8; bit += 7) {
            file.bytes[at] ^= (uint8_t)(1 << bit);
            read_file();
            check_all_moments();
            static ms_survey survey;
            CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
            /* The second key frame is not needed if everything before it is good. */
            CHECK(ms_reader_get_status(reader).damaged > 0 || (at >= key + 48 && at < last));
            unread();
            exercise_all(file.bytes, file.count);
            file.bytes[at] ^= (uint8_t)(1 << bit);
        }
    file_free(&file);
}

TEST(after_a_damaged_chunk_reading_goes_on_at_the_key_frame)
{
    for (size_t at = 0; at < 60; at++) { /* in the header or in what comes after it */
        small_file();
        file.bytes[middle + (at < 52 ? at : 52)] ^= 0x40;
        read_file();
        CHECK_EQ(next_event().number, 1);
        CHECK_EQ(next_event().number, 2);
        CHECK(!ms_cursor_is_lower_bound(cursor));
        CHECK_EQ(next_event().number, 5);
        CHECK(ms_cursor_is_lower_bound(cursor));
        CHECK_EQ(bytes_on(0), 30);
        CHECK_EQ(ms_reader_get_status(reader).damaged, key - middle);
        CHECK_EQ(ms_cursor_seek(cursor, 4), MS_OK);
        CHECK_EQ(ms_cursor_moment(cursor), 3);
        finish_file();
    }
}

TEST(a_damaged_key_frame_does_no_harm_where_events_continue)
{
    small_file();
    file.bytes[key + 50] ^= 1;
    read_file();
    check_all_moments();
    seek(7);
    CHECK_EQ(bytes_on(0), 20);
    CHECK(!ms_cursor_is_lower_bound(cursor));
    CHECK_EQ(ms_reader_get_status(reader).damaged, last - key);
    finish_file();
}

TEST(after_missing_or_extra_bytes_reading_continues_at_the_next_header)
{
    for (size_t by = 1; by < 200; by += 13) {
        small_file();
        memmove(file.bytes + middle + 1, file.bytes + middle + 5, file.count - middle - 5);
        file.count -= 4;
        read_file();
        check_all_moments();
        seek(7);
        CHECK_EQ(ms_reader_get_status(reader).damaged, key - middle - 4);
        unread();
        static uint8_t junk[200];
        memset(junk, 'C', sizeof junk);
        struct file grown = {0};
        file_append(&grown, file.bytes, last - 4);
        file_append(&grown, junk, by);
        file_append(&grown, file.bytes + last - 4, file.count - last + 4);
        file_free(&file);
        file = grown;
        read_file();
        CHECK_EQ(ms_reader_get_status(reader).damaged, key - middle - 4 + by);
        seek(7);
        finish_file();
    }
}

/* The file is searched in windows; the header is put at every position near the end of one. */
TEST(a_header_on_the_border_of_two_windows_is_found)
{
    static uint8_t junk[66000];
    for (size_t by = 65536 - 60; by < 65536 + 60; by++) {
        begin_file();
        file_append(&file, junk, by);
        begin_events();
        file_add(&file, 0, 10, 0);
        end_events();
        read_file();
        CHECK_EQ(ms_reader_get_status(reader).damaged, by);
        CHECK_EQ(next_event().bytes, 10);
        finish_file();
    }
}

TEST(chunks_whose_event_numbers_go_back_are_damaged)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 10, 0);
    file_add(&file, 1, 10, 0);
    end_events();
    size_t back = file.count;
    file.event = 2;
    begin_events();
    file_drop(&file, 0);
    end_events();
    size_t on = file.count;
    begin_events();
    file_drop(&file, 1); /* 3 */
    end_events();
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 4);
    CHECK(is_held(0) && !is_held(1));
    CHECK_EQ(ms_reader_get_status(reader).damaged, on - back);
    finish_file();
}
