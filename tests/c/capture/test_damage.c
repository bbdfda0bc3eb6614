/* test_damage.c - captures that are cut off, damaged or made to mislead: what can be known is
 * right, and the rest is passed over. */
#include "capture_exercise.h"
#include "capture_scene.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void exercise(const uint8_t *bytes, size_t count)
{
    struct file part = {0};
    file_append(&part, bytes, count);
    int fd = file_fd(&part);
    struct heap heap = {0};
    const char *wrong = capture_exercise(fd, count, &heap);
    if (wrong)
        FAIL("%zu bytes: %s", count, wrong);
    close(fd);
    file_free(&part);
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
        exercise(file.bytes, count);
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
            exercise(file.bytes, file.count);
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

/* ---- impossible events ---- */
static void full_slot(void)
{
    file_add(&file, 0, 1, 0);
}
static void empty_slot(void)
{
    file_drop(&file, 1);
}
static void claim_of_nothing(void)
{
    file_claim(&file, 1, MS_PARAMETER, 0, 1, false);
}
static void claim_too_old(void)
{
    file_claim(&file, 0, MS_PARAMETER, 0, 0, false);
}
static void claim_too_young(void)
{
    file_claim(&file, 0, MS_PARAMETER, 0, 2, true);
}
static void claim_of_the_future(void)
{
    file_op(&file, 2), file_zigzag(&file, 0), file_byte(&file, 0), file_zigzag(&file, 0), file_varint(&file, 1000);
}
static void claim_with_a_phase(void)
{
    file_claim(&file, 0, MS_PARAMETER | 16, 0, 1, false);
}
static void no_category(void)
{
    file_add_as(&file, 1, 1, 0, 7, 0);
}
static void no_phase(void)
{
    file_add_as(&file, 1, 1, 0, 8 << 4, 0);
}
static void slot_below_0(void)
{
    file_op(&file, 0), file_zigzag(&file, -1), file_varint(&file, 1);
}
static void slot_too_high(void)
{
    file_op(&file, 0), file_zigzag(&file, INT64_C(1) << 31), file_varint(&file, 1);
}
static void slot_far_too_high(void)
{
    file_op(&file, 0), file_zigzag(&file, INT64_MAX), file_varint(&file, 1);
}
static void slot_far_too_low(void)
{
    file_op(&file, 0), file_zigzag(&file, INT64_MIN), file_varint(&file, 1);
}
static void path_below_0(void)
{
    file_op(&file, 3), file_zigzag(&file, -1);
}
static void path_too_high(void)
{
    file_op(&file, 3), file_zigzag(&file, INT64_C(1) << 32);
}
static void no_device(void)
{
    file_add(&file, 1, 1, 64);
}
static void no_device_reserved(void)
{
    file_op(&file, 7), file_varint(&file, UINT64_C(1) << 32), file_varint(&file, 1);
}
static void no_device_failed(void)
{
    file_oom(&file, 64, 1, 1, 1);
}
static void thread_too_high(void)
{
    file_op(&file, 4), file_varint(&file, UINT64_C(1) << 32);
}
static void more_bytes_than_can_be(void)
{
    file_add(&file, 1, UINT64_MAX, 0);
}
static void more_bytes_than_can_be_added(void)
{
    file_add(&file, 1, INT64_MAX - 9, 0);
}
static void time_beyond_time(void)
{
    file.later = UINT64_MAX - 5;
    file_optimizer_step(&file);
    file.time = 0;
}
static void no_operation(void)
{
    file_op(&file, 9);
}
static void bits_of_a_drop(void)
{
    file_op(&file, 1 | 16), file_zigzag(&file, 0);
}
static void bits_of_a_step(void)
{
    file_op(&file, 5 | 64), file_varint(&file, 1);
}
static void bits_of_an_add(void)
{
    file_op(&file, 0 | 64), file_zigzag(&file, 1), file_varint(&file, 1);
}
static void number_of_11_bytes(void)
{
    file_op(&file, 5);
    for (int i = 0; i < 10; i++)
        file_byte(&file, 0x80);
    file_byte(&file, 1);
}
static void number_of_65_bits(void)
{
    file_op(&file, 5);
    for (int i = 0; i < 9; i++)
        file_byte(&file, 0xFF);
    file_byte(&file, 2);
}
static void cut_off(void)
{
    file_op(&file, 8), file_byte(&file, 0), file_byte(&file, 0x80);
}
static void fewer_than_announced(void)
{
    file.events += 1;
}

#define X(name)     \
    {               \
#name, name \
    }
static const struct {
    const char *name;
    void (*write)(void);
} impossible[] = {X(full_slot),
                  X(empty_slot),
                  X(claim_of_nothing),
                  X(claim_too_old),
                  X(claim_too_young),
                  X(claim_of_the_future),
                  X(claim_with_a_phase),
                  X(no_category),
                  X(no_phase),
                  X(slot_below_0),
                  X(slot_too_high),
                  X(slot_far_too_high),
                  X(slot_far_too_low),
                  X(path_below_0),
                  X(path_too_high),
                  X(no_device),
                  X(no_device_reserved),
                  X(no_device_failed),
                  X(thread_too_high),
                  X(more_bytes_than_can_be),
                  X(more_bytes_than_can_be_added),
                  X(time_beyond_time),
                  X(no_operation),
                  X(bits_of_a_drop),
                  X(bits_of_a_step),
                  X(bits_of_an_add),
                  X(number_of_11_bytes),
                  X(number_of_65_bits),
                  X(cut_off),
                  X(fewer_than_announced)};
#undef X

TEST(an_impossible_event_ends_its_chunk)
{
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        begin_file();
        begin_events();
        file.later = 10;
        file_add(&file, 0, 10, 0); /* 1 */
        impossible[i].write();
        end_events();
        file.event = 50;
        file_key_empty(&file);
        begin_events();
        file_add(&file, 0, 77, 0); /* 50 */
        end_events();
        read_file();
        next_event();
        ms_event event = next_event();
        if (event.number != 50 || event.bytes != 77)
            FAIL("%s: it went on with event %llu", impossible[i].name, (unsigned long long)event.number);
        if (!ms_reader_get_status(reader).damaged && impossible[i].write != fewer_than_announced)
            FAIL("%s: no damage", impossible[i].name);
        CHECK(ms_cursor_is_lower_bound(cursor));
        CHECK_EQ(ms_cursor_seek(cursor, 49), MS_OK);
        CHECK_EQ(ms_cursor_moment(cursor), 2);
        CHECK_EQ(bytes_on(0), 10);
        CHECK_EQ(ms_cursor_seek_time(cursor, UINT64_MAX), MS_OK);
        CHECK_EQ(bytes_on(0), 77);
        unread();
        exercise(file.bytes, file.count);
        file_free(&file);
    }
}

TEST(the_last_event_ends_where_its_chunk_ends)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 10, 0);
    file_byte(&file, 6);
    end_events();
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 1);
    CHECK(ms_reader_get_status(reader).damaged > 0);
    finish_file();
}

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
        exercise(file.bytes, file.count);
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
        exercise(file.bytes, file.count);
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
    exercise(file.bytes, file.count);
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
