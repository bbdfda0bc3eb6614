/* test_later_claims.c - a cursor that has loaded later claims answers at every moment as one that applied them there.
 */
#include "capture_file.h"
#include "heap.h"
#include "modscope_capture.h"
#include "random.h"
#include "runner.h"

#include <string.h>
#include <unistd.h>

enum { SLOTS = 40, PATHS = 6, CHUNKS = 12, CHUNK_EVENTS = 60, MOMENTS = CHUNKS * CHUNK_EVENTS };

/* Blocks are added, dropped and claimed at random, often long after they were added. */
static void write_chunk(struct file *file, uint64_t *state, uint64_t since_events[SLOTS], bool held[SLOTS])
{
    file_chunk(file, EVENTS);
    for (int i = 0; i < CHUNK_EVENTS; i++) {
        uint32_t slot = (uint32_t)random_below(state, SLOTS), path = (uint32_t)random_below(state, PATHS);
        uint8_t category = (uint8_t)random_below(state, MS_CATEGORY_COUNT);
        uint64_t what = random_below(state, 6), number = file->event;
        file->later = random_below(state, 3);
        if (!held[slot]) {
            file_add_as(file, slot, 1 + random_below(state, 1000), slot % 2, category, path);
            since_events[slot] = number;
            held[slot] = true;
        } else if (what == 0) {
            file_drop(file, slot);
            held[slot] = false;
        } else {
            file_claim(file, slot, category, path, since_events[slot], what == 1);
            since_events[slot] = what == 1 ? number : since_events[slot];
        }
    }
    file_close(file);
}

static int random_capture(uint64_t seed)
{
    static const char *const names[] = {"Global", "unknown", "a", "b", "c", "d", NULL};
    struct file file;
    uint64_t since_events[SLOTS] = {0};
    bool held[SLOTS] = {false};
    file_open(&file);
    file_names(&file, 0, names);
    file_key_empty(&file);
    for (int i = 0; i < CHUNKS; i++)
        write_chunk(&file, &seed, since_events, held);
    int fd = file_fd(&file);
    file_free(&file);
    return fd;
}

static ms_cursor *open_cursor(ms_reader *reader)
{
    ms_cursor *cursor;
    CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
    return cursor;
}

/* A checksum of all blocks that does not depend on their order. */
static uint64_t blocks_of(const ms_cursor *cursor)
{
    uint64_t sum = 0;
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);) {
        uint64_t one = block.bytes << 40 | (uint64_t)block.slot << 24 | block.path << 8 | block.category;
        sum += random_next(&one);
    }
    return sum;
}

static void check_same(const ms_cursor *loaded, ms_reader *reader)
{
    ms_cursor *applied = open_cursor(reader);
    CHECK_EQ(ms_cursor_seek(applied, ms_cursor_moment(loaded)), MS_OK);
    CHECK_EQ(ms_cursor_apply_later_claims(applied), MS_OK);
    for (uint32_t device = 0; device < 2; device++) {
        ms_sums a = ms_cursor_now(loaded, device), b = ms_cursor_now(applied, device);
        CHECK(memcmp(&a, &b, sizeof a) == 0);
    }
    CHECK_EQ(blocks_of(loaded), blocks_of(applied));
    ms_cursor_close(applied);
}

TEST(loaded_claims_give_at_every_moment_what_applied_claims_give)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        int fd = random_capture(seed);
        ms_reader *reader;
        CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
        ms_cursor *cursor = open_cursor(reader);
        CHECK_EQ(ms_cursor_load_later_claims(cursor), MS_OK);
        ms_event event;
        int count = 0;
        for (; ms_cursor_next_or_jump(cursor, &event) == MS_OK; count++)
            check_same(cursor, reader);
        CHECK_EQ(count, MOMENTS);
        CHECK_EQ(ms_cursor_seek(cursor, MOMENTS / 2), MS_OK);
        check_same(cursor, reader);
        ms_cursor_close(cursor);
        ms_reader_close(reader);
        close(fd);
    }
}

TEST(later_claims_can_be_loaded_anywhere_but_not_after_they_were_applied)
{
    int fd = random_capture(99);
    ms_reader *reader;
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    ms_cursor *cursor = open_cursor(reader);
    CHECK_EQ(ms_cursor_seek(cursor, MOMENTS / 3), MS_OK);
    CHECK_EQ(ms_cursor_load_later_claims(cursor), MS_OK);
    check_same(cursor, reader);
    CHECK_EQ(ms_cursor_load_later_claims(cursor), MS_OK);
    CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
    ms_event event;
    CHECK_EQ(ms_cursor_next_or_jump(cursor, &event), MS_OK);
    check_same(cursor, reader);
    ms_cursor_close(cursor);

    cursor = open_cursor(reader);
    CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
    CHECK_EQ(ms_cursor_load_later_claims(cursor), MS_EINVAL);
    CHECK_EQ(ms_cursor_next_or_jump(cursor, &event), MS_EINVAL);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    close(fd);
}

TEST(with_loaded_claims_an_add_states_what_later_claims_say)
{
    struct file file;
    static const char *const names[] = {"Global", "unknown", "Net", NULL};
    file_open(&file);
    file_names(&file, 0, names);
    file_key_empty(&file);
    file_chunk(&file, EVENTS);
    file_add(&file, 0, 100, 0);
    file_close(&file);
    file_chunk(&file, EVENTS);
    file_claim(&file, 0, MS_GRADIENT, 2, 0, false);
    file_claim(&file, 0, MS_PARAMETER, 2, 0, false);
    file_claim(&file, 0, MS_BUFFER, 1, 0, true);
    file_drop(&file, 0);
    file_close(&file);
    int fd = file_fd(&file);
    static const uint8_t found[] = {MS_PARAMETER, MS_PARAMETER, MS_PARAMETER, MS_BUFFER, MS_BUFFER};
    ms_reader *reader;
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    ms_cursor *cursor = open_cursor(reader);
    CHECK_EQ(ms_cursor_load_later_claims(cursor), MS_OK);
    ms_event event;
    for (size_t i = 0; i < sizeof found; i++) {
        CHECK_EQ(ms_cursor_next_or_jump(cursor, &event), MS_OK);
        CHECK_EQ(event.category, found[i]);
        CHECK_EQ(event.path, i < 3 ? 2 : 1);
    }
    CHECK_EQ(ms_cursor_next_or_jump(cursor, &event), MS_EEND);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    close(fd);
    file_free(&file);
}

TEST(a_gap_is_reported_as_a_jump)
{
    struct file file;
    file_open(&file);
    file_key_empty(&file);
    file_chunk(&file, EVENTS);
    file_add(&file, 0, 100, 0);
    file_close(&file);
    file_key_begin(&file, (struct file_key){.lost = 3});
    for (int i = 0; i < 3; i++)
        file_varint(&file, 0);
    file_close(&file);
    file_chunk(&file, EVENTS);
    file_add(&file, 0, 7, 0);
    file_close(&file);
    int fd = file_fd(&file);
    ms_reader *reader;
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    ms_cursor *cursor = open_cursor(reader);
    CHECK_EQ(ms_cursor_load_later_claims(cursor), MS_OK);
    ms_event event;
    CHECK_EQ(ms_cursor_next_or_jump(cursor, &event), MS_OK);
    CHECK_EQ(event.bytes, 100);
    CHECK_EQ(ms_cursor_next_or_jump(cursor, &event), MS_JUMPED);
    CHECK_EQ(ms_cursor_blocks(cursor), 0);
    CHECK(ms_cursor_is_lower_bound(cursor));
    CHECK_EQ(ms_cursor_next_or_jump(cursor, &event), MS_OK);
    CHECK_EQ(event.bytes, 7);
    CHECK_EQ(ms_cursor_next_or_jump(cursor, &event), MS_EEND);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    close(fd);
    file_free(&file);
}

TEST(a_cursor_that_has_no_memory_for_later_claims_is_unchanged)
{
    int fd = random_capture(5);
    for (long refused = 1;; refused++) {
        struct heap heap = {0};
        ms_options options = heap_options(&heap);
        ms_reader *reader;
        CHECK_EQ(ms_reader_open(fd, &options, &reader), MS_OK);
        ms_cursor *cursor = open_cursor(reader);
        CHECK_EQ(ms_cursor_seek(cursor, MOMENTS / 2), MS_OK);
        uint64_t before = blocks_of(cursor);
        heap.refuse_at = heap.asked + refused;
        int error = ms_cursor_load_later_claims(cursor);
        heap.refuse_at = 0;
        if (error) {
            CHECK_EQ(error, MS_ENOMEM);
            CHECK_EQ(blocks_of(cursor), before);
            CHECK_EQ(ms_cursor_load_later_claims(cursor), MS_OK);
        }
        check_same(cursor, reader);
        ms_cursor_close(cursor);
        ms_reader_close(reader);
        CHECK_EQ(heap.live, 0);
        if (!error)
            break;
        CHECK(refused < 100);
    }
    close(fd);
}
