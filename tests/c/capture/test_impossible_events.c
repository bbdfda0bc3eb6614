/* test_impossible_events.c - captures with valid checksums and events that cannot be: an event that contradicts what is
 * known ends its chunk, and reading continues at the next key frame. */
#include "capture_scene.h"

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
        exercise_all(file.bytes, file.count);
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
