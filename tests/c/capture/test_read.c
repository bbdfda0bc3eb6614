/* test_read.c - metadata and events of captures, checked with files made by hand. */
#define _POSIX_C_SOURCE 200809L
#include "capture_scene.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* What opening these bytes returns. */
static int opened(const void *bytes, size_t count)
{
    struct file any = {0};
    file_append(&any, bytes, count);
    int at = file_fd(&any), error = ms_reader_open(at, NULL, &reader);
    if (!error)
        ms_reader_close(reader);
    close(at);
    file_free(&any);
    return error;
}

TEST(a_file_that_is_not_a_capture_is_refused)
{
    CHECK_EQ(opened("", 0), MS_EFORMAT);
    CHECK_EQ(opened("MODSCOPE\1\0\0\0\0\0\0", 15), MS_EFORMAT);
    CHECK_EQ(opened("MODSCOPF\1\0\0\0\0\0\0\0", 16), MS_EFORMAT);
    CHECK_EQ(opened("MODSCOPE\0\0\0\0\0\0\0\0", 16), MS_EFORMAT);
    CHECK_EQ(opened("MODSCOPE\1\0\0\0\0\0\0\0", 16), MS_OK);
}

TEST(a_newer_major_version_is_refused_and_a_newer_minor_one_is_read)
{
    CHECK_EQ(opened("MODSCOPE\2\0\0\0\0\0\0\0", 16), MS_ENEWER);
    CHECK_EQ(opened("MODSCOPE\0\1\0\0\0\0\0\0", 16), MS_ENEWER);
    CHECK_EQ(opened("MODSCOPE\1\0\7\1\0\0\0\0", 16), MS_OK);
}

TEST(a_file_that_cannot_be_read_says_why)
{
    CHECK_EQ(ms_reader_open(-1, NULL, &reader), MS_EIO);
    CHECK_EQ(errno, EBADF);
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(ms_reader_open(ends[0], NULL, &reader), MS_EIO);
    CHECK_EQ(errno, ESPIPE);
}

TEST(a_capture_of_nothing_has_nothing)
{
    file_open(&file);
    read_file();
    ms_event event;
    const char *key, *value;
    CHECK_EQ(ms_cursor_next(cursor, UINT32_MAX, &event), MS_EEND);
    CHECK_EQ(ms_cursor_seek(cursor, 5), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 0);
    CHECK_EQ(ms_cursor_blocks(cursor), 0);
    CHECK_EQ(ms_cursor_seek_step(cursor, 0), MS_ENOSTEP);
    CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
    CHECK(!ms_reader_info(reader, false, 0, &key, &value));
    CHECK(!ms_reader_get_status(reader).ended);
    CHECK_EQ(ms_reader_get_status(reader).bytes, 16);
    CHECK_EQ(ms_reader_paths(reader), 2);
    CHECK_EQ(ms_reader_devices(reader), 0);
    finish_file();
}

/* ---- metadata ---- */
TEST(info_and_end_are_pairs_of_strings)
{
    file_open(&file);
    file_pairs(&file, INFO, (const char *const[]){"program", "train.py", "rank", "", NULL});
    file.time = 900;
    file_pairs(&file, END, (const char *const[]){"how", "finished", "lost", "12", NULL});
    read_file();
    const char *key, *value;
    CHECK(ms_reader_info(reader, false, 0, &key, &value));
    CHECK(strcmp(key, "program") == 0 && strcmp(value, "train.py") == 0);
    CHECK(ms_reader_info(reader, false, 1, &key, &value));
    CHECK(strcmp(key, "rank") == 0 && strcmp(value, "") == 0);
    CHECK(!ms_reader_info(reader, false, 2, &key, &value));
    CHECK(ms_reader_info(reader, true, 0, &key, &value));
    CHECK(strcmp(key, "how") == 0 && strcmp(value, "finished") == 0);
    CHECK(ms_reader_get_status(reader).ended);
    CHECK_EQ(ms_reader_get_status(reader).lost, 12);
    CHECK_EQ(ms_reader_get_status(reader).duration, 900);
    finish_file();
}

TEST(devices_are_named_by_number)
{
    file_open(&file);
    file_chunk(&file, DEVICES);
    file_varint(&file, 63);
    file_string(&file, "cuda:62");
    file_varint(&file, 0);
    file_string(&file, "cpu");
    file_close(&file);
    read_file();
    CHECK(strcmp(ms_reader_device(reader, 0), "cpu") == 0);
    CHECK(strcmp(ms_reader_device(reader, 63), "cuda:62") == 0);
    CHECK(!ms_reader_device(reader, 1));
    CHECK(!ms_reader_device(reader, 64));
    CHECK_EQ(ms_reader_devices(reader), 64);
    finish_file();
}

static void check_path(ms_path path, const char *name, ms_path parent, uint32_t nth)
{
    ms_path in;
    uint32_t which;
    CHECK(strcmp(ms_reader_path(reader, path, &in, &which), name) == 0);
    CHECK_EQ(in, parent);
    CHECK_EQ(which, nth);
}

static void name(uint64_t parent, uint64_t nth, const char *text)
{
    file_varint(&file, parent);
    file_varint(&file, nth);
    file_string(&file, text);
}

TEST(paths_are_named_in_parts_and_a_path_without_a_name_is_a_question_mark)
{
    file_open(&file);
    file_chunk(&file, NAMES);
    file_varint(&file, 2);
    name(0, 0, "Model");
    name(2, 1, "Model.layer");
    file_close(&file);
    file_chunk(&file, NAMES);
    file_varint(&file, 6);
    name(3, 0, "Model.layer.w");
    file_close(&file);
    read_file();
    CHECK_EQ(ms_reader_paths(reader), 7);
    check_path(0, "Global", 0, 0);
    check_path(1, "unknown", 0, 0);
    check_path(2, "Model", 0, 0);
    check_path(3, "Model.layer", 2, 1);
    check_path(4, "?", 0, 0);
    check_path(5, "?", 0, 0);
    check_path(6, "Model.layer.w", 3, 0);
    finish_file();
}

TEST(the_two_paths_that_are_always_there_keep_their_names)
{
    file_open(&file);
    file_chunk(&file, NAMES);
    file_varint(&file, 0);
    name(0, 0, "x");
    name(0, 0, "y");
    name(1, 0, "z");
    file_close(&file);
    read_file();
    check_path(0, "Global", 0, 0);
    check_path(1, "unknown", 0, 0);
    check_path(2, "z", 1, 0);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}

/* ---- events ---- */
TEST(every_operation_is_read)
{
    begin_file();
    begin_events();
    file.later = 10;
    file_thread_new(&file, 7, 4242);
    file_position(&file, MS_FORWARD, 3);
    file_add(&file, 5, 1000, 1);
    file.later = 5;
    file_claim(&file, 5, MS_GRADIENT, 2, 3, false);
    file_drop(&file, 5);
    file_step(&file, 9);
    file_optimizer_step(&file);
    file_reserved(&file, 1, 1 << 20);
    file_oom(&file, 1, 11, 22, 33);
    end_events();
    read_file();
    CHECK_EQ(ms_cursor_moment(cursor), 1);
    ms_event e = next_event();
    CHECK(e.op == MS_OP_THREAD && e.thread == 7 && e.bytes == 4242 && e.number == 1 && e.time == 10);
    e = next_event();
    CHECK(e.op == MS_OP_POSITION && e.thread == 7 && e.phase == MS_FORWARD && e.path == 3);
    e = next_event();
    CHECK(e.op == MS_OP_ADD && e.slot == 5 && e.bytes == 1000 && e.device == 1 && e.path == 3);
    CHECK(e.category == MS_ACTIVATION && e.phase == MS_FORWARD && e.number == 3 && e.time == 10);
    e = next_event();
    CHECK(e.op == MS_OP_CLAIM && e.slot == 5 && e.bytes == 1000 && e.device == 1 && e.path == 2 && !e.from_now_on);
    CHECK(e.category == MS_GRADIENT && e.time == 15);
    e = next_event();
    CHECK(e.op == MS_OP_DROP && e.slot == 5 && e.bytes == 1000 && e.device == 1 && e.path == 2);
    CHECK_EQ(e.category, MS_GRADIENT);
    e = next_event();
    CHECK(e.op == MS_OP_STEP && e.bytes == 9);
    e = next_event();
    CHECK(e.op == MS_OP_OPTIMIZER_STEP && ms_cursor_optimizer_steps(cursor) == 1);
    e = next_event();
    CHECK(e.op == MS_OP_RESERVED && e.device == 1 && e.bytes == 1 << 20);
    CHECK_EQ(ms_cursor_reserved(cursor, 1), 1 << 20);
    e = next_event();
    CHECK(e.op == MS_OP_OOM && e.device == 1 && e.bytes == 11 && e.allocated == 22 && e.reserved == 33);
    CHECK(e.path == 3 && e.phase == MS_FORWARD && e.thread == 7 && e.number == 9);
    CHECK_EQ(ms_cursor_next(cursor, UINT32_MAX, &e), MS_EEND);
    CHECK_EQ(ms_cursor_moment(cursor), 10);
    CHECK_EQ(ms_cursor_time(cursor), 15);
    CHECK_EQ(ms_reader_get_status(reader).duration, 15);
    CHECK_EQ(ms_reader_get_status(reader).events, 10);
    finish_file();
}

TEST(a_mask_chooses_which_events_are_returned_and_the_others_are_applied)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 10, 0);
    file_add(&file, 1, 20, 0);
    file_drop(&file, 0);
    end_events();
    read_file();
    ms_event event;
    CHECK_EQ(ms_cursor_next(cursor, 1u << MS_OP_DROP, &event), MS_OK);
    CHECK(event.op == MS_OP_DROP && event.bytes == 10);
    CHECK_EQ(bytes_on(0), 20);
    finish_file();
}

TEST(an_add_that_is_not_explicit_takes_the_position_of_its_thread)
{
    static const uint8_t category[] = {MS_ACTIVATION, MS_ACTIVATION, MS_ACTIVATION, MS_TEMP, MS_TEMP, MS_ACTIVATION};
    begin_file();
    begin_events();
    for (uint8_t phase = MS_IDLE; phase < MS_PHASE_COUNT; phase++) {
        file_position(&file, phase, 2 + phase % 3);
        file_add(&file, phase, 1, 0);
    }
    file_thread_new(&file, 1, 77);
    file_add(&file, 10, 1, 0);
    end_events();
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    for (uint8_t phase = MS_IDLE; phase < MS_PHASE_COUNT; phase++) {
        ms_captured_block block = block_in(phase);
        CHECK_EQ(block.category, category[phase]);
        CHECK_EQ(block.phase, phase);
        CHECK_EQ(block.path, 2 + phase % 3);
        CHECK(!block.outside);
    }
    CHECK_EQ(block_in(10).path, MS_GLOBAL);
    CHECK_EQ(block_in(10).phase, MS_IDLE);
    finish_file();
}

TEST(a_phase_of_a_later_version_is_shown_as_idle)
{
    begin_file();
    begin_events();
    for (uint8_t phase = MS_PHASE_COUNT; phase <= 7; phase++) {
        file_position(&file, phase, 3);
        file_add(&file, phase, 1, 0);
        file_add_as(&file, 10u + phase, 1, 0, MS_BUFFER | phase << 4, 2);
    }
    end_events();
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    for (uint8_t phase = MS_PHASE_COUNT; phase <= 7; phase++) {
        CHECK_EQ(block_in(phase).phase, MS_IDLE);
        CHECK_EQ(block_in(phase).path, 3);
        CHECK_EQ(block_in(10u + phase).phase, MS_IDLE);
        CHECK_EQ(block_in(10u + phase).category, MS_BUFFER);
    }
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}

TEST(threads_keep_their_position_in_the_next_chunk)
{
    begin_file();
    begin_events();
    file_thread_new(&file, 1, 77);
    file_position(&file, MS_BACKWARD, 4);
    end_events();
    begin_events(); /* it begins with thread 0 */
    file_add(&file, 0, 1, 0);
    file_thread(&file, 1);
    file_add(&file, 1, 1, 0);
    end_events();
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(block_in(0).path, MS_GLOBAL);
    CHECK_EQ(block_in(1).path, 4);
    CHECK_EQ(block_in(1).category, MS_TEMP);
    uint32_t number;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    CHECK(ms_cursor_thread(cursor, 0, &number, &id, &phase, &path));
    CHECK(number == 1 && id == 77 && phase == MS_BACKWARD && path == 4);
    CHECK(!ms_cursor_thread(cursor, 1, &number, &id, &phase, &path));
    finish_file();
}

TEST(slot_device_and_path_start_at_zero_in_every_chunk)
{
    begin_file();
    for (uint32_t i = 0; i < 3; i++) {
        begin_events();
        file_add_as(&file, 100 + i, 1 + i, i % 2, MS_BUFFER | 8 | MS_RECOMPUTE << 4, 4 - i);
        end_events();
    }
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    for (uint32_t i = 0; i < 3; i++) {
        ms_captured_block block = block_in(100 + i);
        CHECK(block.bytes == 1 + i && block.device == i % 2 && block.path == 4 - i && block.outside);
        CHECK(block.category == MS_BUFFER && block.phase == MS_RECOMPUTE);
    }
    finish_file();
}

TEST(a_path_without_a_name_is_unknown)
{
    begin_file();
    begin_events();
    file_add_as(&file, 0, 1, 0, 0, 5);
    file_add_as(&file, 1, 1, 0, 0, UINT32_MAX);
    file_position(&file, MS_FORWARD, 99);
    file_add(&file, 2, 1, 0);
    end_events();
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(block_in(i).path, MS_UNKNOWN);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}

/* ---- key frames ---- */
TEST(a_key_frame_says_everything_that_is_known)
{
    file_open(&file);
    file_names(&file, 2, (const char *const[]){"a", "b", NULL});
    file.event = 100;
    file.time = 5000;
    file_key_begin(&file, (struct file_key){.step = 8, .optimizer_steps = 7});
    file_varint(&file, 1); /* thread 3, id 55, backward, path 2 */
    file_varint(&file, 3), file_varint(&file, 55), file_varint(&file, MS_BACKWARD), file_varint(&file, 2);
    file_varint(&file, 1); /* device 1 has reserved 777 */
    file_varint(&file, 1), file_varint(&file, 777);
    file_varint(&file, 2); /* slots 4 and 6 */
    file_varint(&file, 4), file_varint(&file, 1000), file_varint(&file, 1), file_byte(&file, MS_OPTSTATE | 8 | 4 << 4);
    file_varint(&file, 3), file_varint(&file, 60), file_varint(&file, 2), file_varint(&file, 4000);
    file_varint(&file, 1), file_varint(&file, 5), file_varint(&file, 0), file_byte(&file, MS_PARAMETER);
    file_varint(&file, 2), file_varint(&file, 100), file_varint(&file, 8), file_varint(&file, 5000);
    file_close(&file);
    read_file();
    CHECK_EQ(ms_cursor_moment(cursor), 100);
    CHECK_EQ(ms_cursor_time(cursor), 5000);
    CHECK_EQ(ms_cursor_step(cursor), 8);
    CHECK_EQ(ms_cursor_optimizer_steps(cursor), 7);
    CHECK_EQ(ms_cursor_reserved(cursor, 1), 777);
    CHECK_EQ(ms_cursor_blocks(cursor), 2);
    ms_captured_block block = block_in(4);
    CHECK(block.bytes == 1000 && block.device == 1 && block.category == MS_OPTSTATE && block.outside);
    CHECK(block.phase == MS_OPTIMIZER && block.path == 3 && block.since_event == 40 && block.step == 6 &&
          block.made_at == 1000);
    block = block_in(6);
    CHECK(block.bytes == 5 && block.device == 0 && block.category == MS_PARAMETER && !block.outside);
    CHECK(block.phase == MS_IDLE && block.path == 2 && block.since_event == 0 && block.step == 0 && block.made_at == 0);
    uint32_t number;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    CHECK(ms_cursor_thread(cursor, 0, &number, &id, &phase, &path));
    CHECK(number == 3 && id == 55 && phase == MS_BACKWARD && path == 2);
    CHECK_EQ(ms_reader_devices(reader), 2);
    finish_file();
}

TEST(events_before_the_first_key_frame_cannot_be_known)
{
    file_open(&file);
    begin_events();
    file_add(&file, 0, 10, 0);
    end_events();
    file_key_empty(&file);
    begin_events();
    file_add(&file, 1, 20, 0);
    end_events();
    read_file();
    CHECK_EQ(ms_cursor_moment(cursor), 1);
    CHECK_EQ(next_event().bytes, 20);
    CHECK_EQ(ms_cursor_seek(cursor, 0), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 1);
    CHECK(ms_cursor_is_lower_bound(cursor));
    finish_file();
}

TEST(chunks_of_unknown_kinds_are_skipped)
{
    begin_file();
    for (uint32_t kind = 0; kind < 3; kind++) {
        file_chunk(&file, kind == 0 ? 0 : kind == 1 ? 7 : 0xFFFFFFFF);
        file_string(&file, "something new");
        file_close(&file);
        begin_events();
        file_add(&file, kind, 10, 0);
        end_events();
    }
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(bytes_on(0), 30);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    CHECK(!ms_cursor_is_lower_bound(cursor));
    finish_file();
}

TEST(what_is_written_after_opening_is_not_seen)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 10, 0);
    end_events();
    int fd = file_fd(&file);
    size_t before = file.count;
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    begin_events();
    file_add(&file, 1, 20, 0);
    end_events();
    CHECK_EQ(pwrite(fd, file.bytes + before, file.count - before, (off_t)before), (ssize_t)(file.count - before));
    CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 2);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    CHECK_EQ(ms_reader_get_status(reader).events, 3);
    ms_reader_close(reader);
    close(fd);
    file_free(&file);
}
