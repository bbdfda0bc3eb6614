/* test_impossible_frames.c - captures with valid checksums and key frames, names or numbers that cannot be: they are
 * skipped, change nothing that is known, and make the reader allocate nothing. */
#include "capture_scene.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- key frames that cannot be: each is a list of numbers, of which the first three are step, optimizer_steps and
 * lost ----
 */
enum { OVER = -1 }; /* ends a list */

static const int64_t no_key_frames[][24] = {
    {0, 0, OVER},
    {0, 0, 0, 0, 0, 0, 0, OVER},                                     /* too long */
    {0, 0, 0, 1, OVER},                                              /* no thread */
    {0, 0, 0, INT64_MAX, 0, 0, OVER},                                /* too many threads */
    {0, 0, 0, 1, 1, 1, 8, 0, 0, 0, OVER},                            /* a thread in no phase */
    {0, 0, 0, 1, INT64_C(1) << 32, 1, 0, 0, 0, 0, OVER},             /* its number too high */
    {0, 0, 0, 1, 0, 1, 0, INT64_C(1) << 32, 0, 0, OVER},             /* its path too high */
    {0, 0, 0, 0, 1, 64, 1, 0, OVER},                                 /* no device */
    {0, 0, 0, 0, INT64_MAX, OVER},                                   /* too many devices */
    {0, 0, 0, 0, 0, INT64_MAX, OVER},                                /* too many blocks */
    {0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, OVER},                /* a block too few */
    {0, 0, 0, 0, 0, 1, INT64_C(1) << 31, 1, 0, 0, 0, 0, 0, 0, OVER}, /* slot too high */
    {0, 0, 0, 0, 0, 1, INT64_MAX, 1, 0, 0, 0, 0, 0, 0, OVER},
    {0, 0, 0, 0, 0, 2, 0x7FFFFFFF, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, OVER},
    {0, 0, 0, 0, 0, 1, 0, 1, 64, 0, 0, 0, 0, 0, OVER},  /* no device */
    {0, 0, 0, 0, 0, 1, 0, 1, 0, 7, 0, 0, 0, 0, OVER},   /* no category */
    {0, 0, 0, 0, 0, 1, 0, 1, 0, 128, 0, 0, 0, 0, OVER}, /* no phase */
    {0, 0, 0, 0, 0, 1, 0, 1, 0, 0, INT64_C(1) << 32, 0, 0, 0, OVER},
    {0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 10, 0, 0, OVER},                                /* made before the first event */
    {0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, OVER},                                 /* before the first step */
    {0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 8, OVER},                                 /* before the beginning */
    {0, 0, 0, 0, 0, 2, 0, INT64_MAX, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, OVER}, /* more than can be */
};

TEST(an_impossible_key_frame_is_skipped)
{
    for (size_t i = 0; i < sizeof no_key_frames / sizeof *no_key_frames; i++) {
        file_open(&file);
        file.event = 9;
        file.time = 7;
        size_t at = file.count;
        file_chunk(&file, KEY);
        for (const int64_t *number = no_key_frames[i]; *number != OVER; number++)
            file_varint(&file, (uint64_t)*number);
        file_close(&file);
        size_t size = file.count - at;
        file.event = 20;
        file_key_empty(&file);
        begin_events();
        file_add(&file, 0, 77, 0);
        end_events();
        read_file();
        if (ms_cursor_moment(cursor) != 20)
            FAIL("key frame %zu was taken", i);
        CHECK_EQ(next_event().bytes, 77);
        CHECK_EQ(ms_reader_get_status(reader).damaged, size);
        CHECK_EQ(ms_cursor_seek(cursor, 10), MS_OK);
        CHECK_EQ(ms_cursor_moment(cursor), 20);
        unread();
        exercise_all(file.bytes, file.count);
        file_free(&file);
    }
}

TEST(an_impossible_key_frame_does_not_change_the_state)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 10, 0);
    end_events();
    file.event = 20;
    file_key_begin(&file, (struct file_key){0});
    file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 1);
    file_append(&file, "\0\1\0\7\0\0\0\0", 8); /* of no category */
    file_close(&file);
    read_file();
    next_event();
    ms_event event;
    CHECK_EQ(ms_cursor_next(cursor, UINT32_MAX, &event), MS_EEND);
    CHECK_EQ(ms_cursor_moment(cursor), 2);
    CHECK_EQ(bytes_on(0), 10);
    finish_file();
}

/* ---- impossible metadata ---- */
TEST(impossible_names_are_damage_and_names_before_them_count)
{
    static const struct {
        uint64_t first, parent, nth, length;
    } bad[] = {
        {3, 3, 0, 1},          {3, 4, 0, 1},       {3, 0, UINT64_C(1) << 32, 1}, {3, 0, 0, 1000},
        {3, 0, 0, UINT64_MAX}, {1 << 24, 0, 0, 1}, {UINT64_MAX, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file_open(&file);
        file_names(&file, 2, (const char *const[]){"a", NULL});
        size_t at = file.count;
        file_chunk(&file, NAMES);
        file_varint(&file, bad[i].first);
        file_varint(&file, bad[i].parent);
        file_varint(&file, bad[i].nth);
        file_varint(&file, bad[i].length);
        file_byte(&file, 'x');
        file_close(&file);
        read_file();
        CHECK_EQ(ms_reader_paths(reader), 3);
        CHECK_EQ(ms_reader_get_status(reader).damaged, file.count - at);
        unread();
        exercise_all(file.bytes, file.count);
        file_free(&file);
    }
}

TEST(a_string_that_is_cut_off_is_ignored)
{
    for (uint32_t kind = INFO; kind <= END; kind++) {
        if (kind == KEY || kind == EVENTS)
            continue;
        file_open(&file);
        file_chunk(&file, kind);
        file_varint(&file, 1);
        file_byte(&file, 0x80);
        file_close(&file);
        read_file();
        CHECK_EQ(ms_reader_get_status(reader).damaged, file.count - 16);
        finish_file();
    }
}

/* ---- memory ---- */
static size_t asked_most;

static void *measured(void *context, size_t bytes)
{
    (void)context;
    asked_most = bytes > asked_most ? bytes : asked_most;
    return malloc(bytes);
}

static void freed(void *context, void *memory)
{
    (void)context;
    free(memory);
}

/* Chunks that announce more of everything than the file has. */
static void boast(void)
{
    file_open(&file);
    file.event = 1;
    file_chunk(&file, NAMES);
    file_varint(&file, 1 << 23);
    file_varint(&file, 0), file_varint(&file, 0), file_string(&file, "x");
    file_close(&file);
    for (int part = 0; part < 3; part++) {
        file_key_begin(&file, (struct file_key){0});
        for (int i = 0; i < part; i++)
            file_varint(&file, 0);
        file_varint(&file, UINT64_C(1) << 40);
        file_append(&file, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
        file_close(&file);
    }
    file_key_empty(&file);
    begin_events();
    for (uint32_t i = 0; i < 30; i++) {
        file_thread_new(&file, 0xFFFFFFFF - i * 1000003, i);
        file_add(&file, i * 71000011, 1, i);
    }
    file.events = UINT32_MAX;
    end_events();
    file_chunk(&file, INFO);
    file_close(&file);
    memset(file.bytes + file.count - 40, 0xFF, 4); /* 4 GB of info */
    file_sign(file.bytes, file.count, file.count - 48);
}

TEST(no_number_in_a_file_makes_the_reader_allocate_memory)
{
    boast();
    int fd = file_fd(&file);
    ms_options options = {.alloc = measured, .free = freed};
    static ms_survey survey;
    CHECK_EQ(ms_reader_open(fd, &options, &reader), MS_OK);
    CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
    CHECK_EQ(survey.events[MS_OP_ADD], 30);
    CHECK(asked_most <= 64 * 1024); /* the window in which it searches for headers */
    ms_reader_close(reader);
    close(fd);
    exercise_all(file.bytes, file.count);
    file_free(&file);
}

TEST(a_device_without_a_name_counts_once_it_occurs)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 1, 5);
    file_reserved(&file, 9, 1);
    end_events();
    read_file();
    CHECK_EQ(ms_reader_devices(reader), 2);
    next_event();
    CHECK_EQ(ms_reader_devices(reader), 6);
    next_event();
    CHECK_EQ(ms_reader_devices(reader), 10);
    finish_file();
}
