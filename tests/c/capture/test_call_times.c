/* test_call_times.c - the times of calls on a GPU: written some time after the calls, and read back, also from damaged
 * files. */
#include "capture_scene.h"
#include "writer_scene.h"

#include <unistd.h>

static ms_call_time *times;
static size_t count;

static void check_time(size_t i, uint64_t event, uint32_t thread, uint64_t nanoseconds)
{
    CHECK(i < count);
    CHECK_EQ(times[i].event, event);
    CHECK_EQ(times[i].thread, thread);
    CHECK_EQ(times[i].nanoseconds, nanoseconds);
}

/* ---- by hand ---- */
enum { TIMES_CHUNK = 8 };

static void put_time(int64_t later, uint64_t thread, uint64_t nanoseconds)
{
    file_zigzag(&file, later);
    file_varint(&file, thread);
    file_varint(&file, nanoseconds);
}

TEST(times_are_read_in_the_order_of_their_calls)
{
    begin_file_with_events();
    begin_chunk(TIMES_CHUNK, 20);
    put_time(-5, 1, 1000);
    put_time(-3, 2, UINT64_MAX);
    file_close(&file);
    begin_chunk(TIMES_CHUNK, 10);
    put_time(3, 0, 7);
    file_close(&file);
    read_file();
    CHECK_EQ(ms_call_times_read(reader, &times, &count), MS_OK);
    CHECK_EQ(count, 3);
    check_time(0, 12, 2, UINT64_MAX);
    check_time(1, 13, 0, 7);
    check_time(2, 15, 1, 1000);
    ms_call_times_free(reader, times);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}

TEST(a_time_that_cannot_be_read_ends_its_chunk_alone)
{
    begin_file_with_events();
    begin_chunk(TIMES_CHUNK, 20);
    put_time(0, (uint64_t)1 << 32, 1); /* no thread */
    put_time(0, 1, 1);
    file_close(&file);
    begin_chunk(TIMES_CHUNK, 20);
    put_time(-21, 1, 1); /* before the first event */
    file_close(&file);
    begin_chunk(TIMES_CHUNK, 20);
    put_time(1000, 1, 1); /* after the last one */
    file_close(&file);
    begin_chunk(TIMES_CHUNK, 20);
    put_time(1, 1, 5);
    file_zigzag(&file, 1); /* without the rest */
    file_close(&file);
    read_file();
    CHECK_EQ(ms_call_times_read(reader, &times, &count), MS_OK);
    CHECK_EQ(count, 1);
    check_time(0, 21, 1, 5);
    ms_call_times_free(reader, times);
    finish_file();
}

TEST(a_file_without_times_has_none)
{
    begin_file_with_events();
    read_file();
    CHECK_EQ(ms_call_times_read(reader, &times, &count), MS_OK);
    CHECK_EQ(count, 0);
    CHECK(times == NULL);
    ms_call_times_free(reader, times);
    finish_file();
}

/* ---- by the writer ---- */
TEST(a_capture_has_the_times_that_become_known_while_it_lasts)
{
    open_all(NULL);
    program = program_open(1);
    ms_call_note_begin(watched, NULL, 1); /* nothing is captured */
    fd = new_file();
    capture = begin_capture(fd);
    CHECK_EQ(ms_block_add(watched, NULL, 4096, 1000, 1), MS_OK); /* events 1, the thread, and 2 */
    ms_call_note_begin(watched, NULL, 2);
    CHECK_EQ(ms_block_add(watched, NULL, 8192, 1000, 1), MS_OK);
    ms_call_note_begin(watched, NULL, 3);
    ms_call_note_begin(watched, NULL, 4);
    ms_call_note_begin(watched, NULL, 4 + 8192); /* it replaces the one before */
    ms_call_note_time(watched, 3, 300);
    ms_call_note_time(watched, 1, 100); /* it began before the capture */
    ms_call_note_time(watched, 4, 400);
    ms_call_note_time(watched, 2, 200);
    ms_call_note_time(watched, 2, 201); /* it is known already */
    ms_call_note_time(watched, 0, 1);   /* no number */
    end_capture(capture);
    ms_call_note_time(watched, 4 + 8192, 500);
    check_file(fd);
    ms_reader *from = open_reader(fd);
    CHECK_EQ(ms_call_times_read(from, &times, &count), MS_OK);
    CHECK_EQ(count, 2);
    check_time(0, 3, 0, 200);
    check_time(1, 4, 0, 300);
    ms_call_times_free(from, times);
    ms_reader_close(from);
    close(fd);
    close_all();
}
