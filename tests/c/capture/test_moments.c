/* test_moments.c - moments of a capture: seeking, retroactive claims, losses. */
#include "capture_scene.h"

/* ---- claims ---- */
TEST(a_claim_shows_at_every_moment_since_the_block_was_made)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0);                     /* 1 */
    file_add(&file, 1, 7, 0);                       /* 2 */
    file_claim(&file, 0, MS_GRADIENT, 3, 1, false); /* 3 */
    end_events();
    read_file();
    seek(2);
    CHECK_EQ(block_in(0).category, MS_ACTIVATION);
    CHECK_EQ(block_in(0).path, MS_GLOBAL);
    CHECK_EQ(ms_cursor_now(cursor, 0).of[MS_ACTIVATION], 100);
    for (uint64_t moment = 2; moment <= 4; moment++) {
        seek_with_later_claims(moment);
        CHECK_EQ(block_in(0).category, MS_GRADIENT);
        CHECK_EQ(block_in(0).path, 3);
        CHECK_EQ(ms_cursor_now(cursor, 0).of[MS_GRADIENT], 100);
        CHECK_EQ(ms_cursor_now(cursor, 0).of[MS_ACTIVATION], moment > 2 ? 7 : 0);
    }
    seek_with_later_claims(1);
    CHECK(!is_held(0));
    finish_file();
}

TEST(a_claim_from_now_on_does_not_show_before_it)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0);                      /* 1 */
    file_claim(&file, 0, MS_PARAMETER, 2, 1, false); /* 2 */
    file_claim(&file, 0, MS_OTHER, 2, 1, true);      /* 3 */
    file_claim(&file, 0, MS_OPTSTATE, 4, 3, false);  /* 4 */
    end_events();
    read_file();
    seek_with_later_claims(2);
    CHECK_EQ(block_in(0).category, MS_PARAMETER);
    CHECK_EQ(block_in(0).path, 2);
    seek_with_later_claims(3);
    CHECK_EQ(block_in(0).category, MS_PARAMETER);
    seek(4);
    CHECK_EQ(block_in(0).category, MS_OTHER);
    CHECK_EQ(block_in(0).since_event, 3);
    seek_with_later_claims(4);
    CHECK_EQ(block_in(0).category, MS_OPTSTATE);
    CHECK_EQ(block_in(0).path, 4);
    finish_file();
}

TEST(a_claim_of_the_next_block_in_a_slot_is_not_the_last_ones)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0);                      /* 1 */
    file_drop(&file, 0);                             /* 2 */
    file_add(&file, 0, 50, 0);                       /* 3 */
    file_claim(&file, 0, MS_PARAMETER, 2, 3, false); /* 4 */
    end_events();
    read_file();
    seek_with_later_claims(2);
    CHECK_EQ(block_in(0).category, MS_ACTIVATION);
    seek_with_later_claims(4);
    CHECK_EQ(block_in(0).category, MS_PARAMETER);
    finish_file();
}

TEST(the_last_of_several_claims_holds)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0);                     /* 1 */
    file_claim(&file, 0, MS_GRADIENT, 2, 1, false); /* 2 */
    end_events();
    begin_events();
    file_claim(&file, 0, MS_PARAMETER, 3, 1, false); /* 3 */
    end_events();
    read_file();
    seek_with_later_claims(2);
    CHECK_EQ(block_in(0).category, MS_PARAMETER);
    CHECK_EQ(block_in(0).path, 3);
    finish_file();
}

TEST(claims_are_found_beyond_a_key_frame_and_beyond_damage)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0); /* 1 */
    end_events();
    size_t damaged = file.count;
    begin_events();
    file_optimizer_step(&file); /* 2 */
    end_events();
    file.bytes[damaged + 48] ^= 1;
    file_key_begin(&file, (struct file_key){0});
    file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 1);
    file_varint(&file, 0), file_varint(&file, 100), file_varint(&file, 0), file_byte(&file, MS_ACTIVATION);
    file_varint(&file, 0), file_varint(&file, 2), file_varint(&file, 0), file_varint(&file, 0);
    file_close(&file);
    begin_events();
    file_claim(&file, 0, MS_PARAMETER, 3, 1, false); /* 3 */
    end_events();
    read_file();
    seek_with_later_claims(2);
    CHECK_EQ(block_in(0).category, MS_PARAMETER);
    finish_file();
}

/* The header of the second chunk denies the claim in it. That the claim is not found shows that the chunk is not read.
 */
TEST(later_claims_are_not_read_from_chunks_that_concern_no_block_here)
{
    for (int honest = 0; honest <= 1; honest++) {
        begin_file();
        begin_events();
        file_add(&file, 0, 100, 0); /* 1 */
        end_events();
        begin_events();
        file_claim(&file, 0, MS_PARAMETER, 3, 1, false); /* 2 */
        if (!honest)
            file.oldest = 2;
        end_events();
        read_file();
        seek_with_later_claims(2);
        CHECK_EQ(block_in(0).category, honest ? MS_PARAMETER : MS_ACTIVATION);
        finish_file();
    }
}

TEST(after_later_claims_were_applied_a_cursor_goes_on_only_after_a_seek)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0);                      /* 1 */
    file_claim(&file, 0, MS_PARAMETER, 2, 1, false); /* 2 */
    end_events();
    read_file();
    seek_with_later_claims(2);
    CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
    ms_event event;
    int64_t peaks[MS_MAX_DEVICES];
    CHECK_EQ(ms_cursor_next(cursor, UINT32_MAX, &event), MS_EINVAL);
    CHECK_EQ(ms_cursor_peaks(cursor, 3, peaks), MS_EINVAL);
    seek(2);
    CHECK_EQ(block_in(0).category, MS_ACTIVATION);
    CHECK_EQ(next_event().category, MS_PARAMETER);
    finish_file();
}

/* ---- seeking ---- */

/* Ten chunks of three events, with a key frame before each third chunk: adds of 1 byte. */
static void many_chunks(void)
{
    begin_file();
    for (uint32_t chunk = 0, slot = 0; chunk < 10; chunk++) {
        if (chunk % 3 == 2) {
            file_key_begin(&file, (struct file_key){.step = slot});
            file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, slot);
            for (uint32_t i = 0; i < slot; i++) {
                file_varint(&file, 0), file_varint(&file, 1), file_varint(&file, 0), file_byte(&file, MS_TEMP);
                file_varint(&file, 0), file_varint(&file, file.event - 1 - i), file_varint(&file, 0);
                file_varint(&file, 0);
            }
            file_close(&file);
        }
        begin_events();
        for (int i = 0; i < 3; i++, slot++) {
            file.later = 10;
            file_add_as(&file, slot, 1, 0, MS_TEMP, 0);
        }
        end_events();
    }
}

TEST(a_seek_from_any_moment_reaches_any_other)
{
    many_chunks();
    read_file();
    for (uint64_t from = 1; from <= 31; from++)
        for (uint64_t to = 1; to <= 31; to++) {
            seek(from);
            CHECK_EQ(bytes_on(0), from - 1);
            seek(to);
            CHECK_EQ(bytes_on(0), to - 1);
            if (to < 31)
                CHECK_EQ(next_event().slot, to - 1);
        }
    finish_file();
}

TEST(beyond_the_end_is_the_end_and_before_the_beginning_is_the_beginning)
{
    many_chunks();
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 31);
    CHECK_EQ(ms_cursor_seek(cursor, 0), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 1);
    finish_file();
}

TEST(a_time_is_the_last_moment_at_or_before_it)
{
    many_chunks();
    read_file();
    for (uint64_t time = 0; time < 320; time += 5) {
        CHECK_EQ(ms_cursor_seek_time(cursor, time), MS_OK);
        CHECK_EQ(ms_cursor_moment(cursor), 1 + (time / 10 < 30 ? time / 10 : 30));
        CHECK(ms_cursor_time(cursor) <= time);
    }
    CHECK_EQ(ms_cursor_seek_time(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 31);
    finish_file();
}

/* Step 0 has events 1 and 2, step 1 has 3 to 5, step 2 none of its own, step 4 the rest; there is no step 3. */
static void steps_in_a_file(void)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 1, 0);
    file_add(&file, 1, 1, 0);
    file_step(&file, 1);
    end_events();
    begin_events();
    file_add(&file, 2, 1, 0);
    file_add(&file, 3, 1, 0);
    file_step(&file, 2);
    file_step(&file, 4);
    file_add(&file, 4, 1, 0);
    end_events();
}

TEST(seeking_a_step_goes_to_its_end)
{
    static const uint64_t end[] = {3, 6, 7, 0, 9};
    steps_in_a_file();
    read_file();
    for (int again = 0; again < 2; again++)
        for (uint64_t step = 0; step <= 4; step++) {
            if (step == 3)
                continue;
            CHECK_EQ(ms_cursor_seek_step(cursor, step), MS_OK);
            CHECK_EQ(ms_cursor_moment(cursor), end[step]);
            CHECK_EQ(ms_cursor_step(cursor), step);
        }
    CHECK_EQ(ms_cursor_seek_step(cursor, 3), MS_ENOSTEP);
    CHECK_EQ(ms_cursor_seek_step(cursor, 5), MS_ENOSTEP);
    CHECK_EQ(block_in(2).step, 1);
    CHECK_EQ(block_in(4).step, 4);
    finish_file();
}

TEST(a_capture_that_began_in_a_later_step_has_none_before)
{
    file_open(&file);
    file.event = 1;
    file_key_begin(&file, (struct file_key){.step = 5});
    file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 0);
    file_close(&file);
    read_file();
    CHECK_EQ(ms_cursor_seek_step(cursor, 4), MS_ENOSTEP);
    CHECK_EQ(ms_cursor_seek_step(cursor, 5), MS_OK);
    finish_file();
}

TEST(peaks_between_two_moments_are_found)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0); /* 1 */
    file_add(&file, 1, 50, 1);  /* 2 */
    file_drop(&file, 0);        /* 3 */
    file_add(&file, 2, 30, 0);  /* 4 */
    file_drop(&file, 2);        /* 5 */
    end_events();
    read_file();
    static const struct {
        uint64_t from, to;
        int64_t cpu, cuda;
    } parts[] = {{1, 1, 0, 0},   {1, 6, 100, 50}, {2, 4, 100, 50},
                 {4, 6, 30, 50}, {1, 2, 100, 0},  {1, UINT64_MAX, 100, 50}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int64_t peaks[MS_MAX_DEVICES];
        seek(parts[i].from);
        CHECK_EQ(ms_cursor_peaks(cursor, parts[i].to, peaks), MS_OK);
        CHECK_EQ(peaks[0], parts[i].cpu);
        CHECK_EQ(peaks[1], parts[i].cuda);
        CHECK_EQ(ms_cursor_moment(cursor), parts[i].to < 6 ? parts[i].to : 6);
    }
    finish_file();
}

TEST(a_series_has_the_most_of_each_column)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0);
    file_drop(&file, 0);
    file_add(&file, 1, 30, 0);
    end_events();
    read_file();
    static const uint64_t bounds[] = {0, 1, 2};
    ms_sums most[2];
    size_t begun;
    seek(1);
    CHECK_EQ(ms_cursor_series(cursor, 0, bounds, 2, most, &begun), MS_OK);
    CHECK_EQ(begun, ms_reader_get_status(reader).duration ? 2 : 1);
    CHECK_EQ(most[0].of[MS_ACTIVATION], 100);
    seek(1);
    CHECK_EQ(ms_cursor_series(cursor, MS_MAX_DEVICES, bounds, 2, most, &begun), MS_EINVAL);
    finish_file();
}

/* ---- losses ---- */

/* 10 bytes in slot 0; then something is lost; then there are 20 bytes in slot 1, and 5 more are added in slot 2. */
static void lose_something(bool with_numbers)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 10, 0);
    end_events();
    file.event += with_numbers ? 2 : 0;
    file_key_begin(&file, (struct file_key){.lost = 2});
    file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 1);
    file_varint(&file, 1), file_varint(&file, 20), file_varint(&file, 0), file_byte(&file, MS_TEMP);
    file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 0), file_varint(&file, 0);
    file_close(&file);
    begin_events();
    file_add(&file, 2, 5, 0);
    end_events();
}

TEST(after_a_loss_all_is_known_again_at_the_key_frame)
{
    for (int with_numbers = 0; with_numbers <= 1; with_numbers++) {
        lose_something(with_numbers);
        read_file();
        CHECK_EQ(next_event().bytes, 10);
        CHECK_EQ(bytes_on(0), 10);
        CHECK(!ms_cursor_is_lower_bound(cursor));
        CHECK_EQ(next_event().bytes, 5);
        CHECK_EQ(bytes_on(0), 25);
        CHECK(!is_held(0));
        CHECK(ms_cursor_is_lower_bound(cursor));
        CHECK_EQ(ms_reader_get_status(reader).lost, 2);
        finish_file();
    }
}

TEST(a_moment_that_was_lost_is_the_last_before_it)
{
    lose_something(true); /* events 2 and 3 */
    read_file();
    CHECK_EQ(ms_cursor_seek(cursor, 3), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), 2);
    CHECK_EQ(bytes_on(0), 10);
    seek(4);
    CHECK_EQ(bytes_on(0), 20);
    finish_file();
}

TEST(where_lost_events_have_no_numbers_the_moment_is_after_them)
{
    lose_something(false);
    read_file();
    seek(1);
    seek(2);
    CHECK_EQ(bytes_on(0), 20);
    CHECK(ms_cursor_is_lower_bound(cursor));
    finish_file();
}

TEST(a_key_frame_that_says_nothing_new_is_not_read)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 10, 0);
    end_events();
    file_key_empty(&file); /* which contradicts the events */
    begin_events();
    file_drop(&file, 0);
    end_events();
    read_file();
    next_event();
    CHECK_EQ(next_event().op, MS_OP_DROP);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}
