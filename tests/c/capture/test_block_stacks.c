/* test_block_stacks.c - the stacks of blocks: written beside the events, read back at any moment, and damaged. */
#define _POSIX_C_SOURCE 200809L
#include "capture_scene.h"
#include "heap.h"
#include "pack_read.h"
#include "writer_scene.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINES = 300, BLOCKS = 40000 };

static ms_stack stacks[LINES];

static void add_stacks(void)
{
    for (uint32_t i = 0; i < LINES; i++) {
        ms_frame frame = {.file = i % 3 ? "model.py" : "train.py",
                          .function = i % 2 ? "forward" : "model.py",
                          .called = i % 4 == 3 ? NULL
                                    : i % 4    ? "torch.relu"
                                    : i % 9    ? "forward"
                                               : "matmul",
                          .line = i + 1,
                          .end_line = i % 5 ? i + 3 : 0,
                          .column = i % 5 ? 4 : 0,
                          .end_column = i % 5 ? 20 : 0,
                          .outer = i > 10 ? stacks[i - 7] : MS_STACK_NONE,
                          .is_model = i > 50 && i % 6 == 5};
        if (i % 11 == 10)
            frame =
                (ms_frame){.function = "MulBackward0", .outer = stacks[i - 1], .forward = i % 2 ? stacks[i - 9] : 0};
        stacks[i] = ms_stack_add(watch, &frame);
    }
}

static ms_stack stack_for(uint64_t address)
{
    uint64_t random = address * UINT64_C(0x9E3779B97F4A7C15) >> 40;
    return random % 4 ? stacks[address / 16 % 7] : random % 8 ? stacks[random % LINES] : (ms_stack)(random % 2);
}

static void add_blocks(uint64_t first, uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++)
        CHECK_EQ(ms_block_add_at(watched, NULL, stack_for(i * 16), i * 16, i, 0), MS_OK);
}

/* A block's bytes are its address / 16. */
static void check_blocks(ms_cursor *cursor, uint64_t expected)
{
    ms_captured_block block;
    CHECK_EQ(ms_cursor_blocks(cursor), expected);
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);)
        CHECK_EQ(block.stack, stack_for(block.bytes * 16));
}

TEST(every_block_has_its_stack_at_every_moment)
{
    open_all(NULL);
    add_stacks();
    add_blocks(1, 500); /* these are in the first key frame */
    int file = new_file();
    ms_capture *writing = begin_capture(file);
    add_blocks(501, BLOCKS);
    for (uint64_t i = 1; i <= 100; i++)
        ms_block_drop(watched, i * 16);
    add_blocks(100000, 100);
    end_capture(writing);
    ms_reader *read = open_reader(file);
    ms_cursor *cursor = cursor_of(read);
    check_blocks(cursor, 500);
    CHECK_EQ(ms_cursor_seek(cursor, 20000), MS_OK);
    check_blocks(cursor, ms_cursor_blocks(cursor));
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    check_blocks(cursor, 500 + BLOCKS);
    CHECK_EQ(ms_reader_stacks(read), ms_stack_count(watch));
    for (ms_stack stack = MS_STACK_LOST + 1; stack < ms_stack_count(watch); stack++) {
        ms_frame expected, found;
        CHECK(ms_stack_frame(watch, stack, &expected) && ms_reader_stack(read, stack, &found));
        CHECK(strcmp(found.function, expected.function) == 0 && !found.file == !expected.file);
        CHECK(!found.file || strcmp(found.file, expected.file) == 0);
        CHECK(!found.called == !expected.called && (!found.called || strcmp(found.called, expected.called) == 0));
        CHECK_EQ(found.line, expected.line);
        CHECK_EQ(found.end_line, expected.end_line);
        CHECK_EQ(found.column, expected.column);
        CHECK_EQ(found.end_column, expected.end_column);
        CHECK_EQ(found.outer, expected.outer);
        CHECK_EQ(found.forward, expected.forward);
        CHECK_EQ(found.is_model, expected.is_model);
    }
    ms_cursor_close(cursor);
    ms_reader_close(read);
    close(file);
    close_all();
}

TEST(a_program_that_repeats_itself_takes_little_room_for_stacks)
{
    open_all(NULL);
    add_stacks();
    int file = new_file();
    ms_capture *writing = begin_capture(file);
    uint64_t sizes[2];
    for (int with = 0; with < 2; with++) {
        ms_capture_flush(writing);
        uint64_t before = ms_capture_get_status(writing).bytes;
        for (uint64_t i = 1; i <= BLOCKS; i++) {
            ms_stack stack = with ? stacks[i % 200] : (ms_stack)MS_STACK_NONE;
            CHECK_EQ(ms_block_add_at(watched, NULL, stack, 16, 100, 0), MS_OK);
        }
        ms_capture_flush(writing);
        sizes[with] = ms_capture_get_status(writing).bytes - before;
    }
    CHECK(sizes[1] - sizes[0] < BLOCKS / 2);
    end_capture(writing);
    close(file);
    close_all();
}

TEST(a_capture_knows_its_source_files)
{
    char name[] = "/tmp/modscope_source_XXXXXX";
    int source = mkstemp(name);
    CHECK_EQ(write(source, "x = 1\n", 6), 6);
    open_all(NULL);
    const char *files[] = {"/tmp", "<string>", name, "/dev/zero", name, "missing.py"};
    int file = new_file();
    ms_capture *writing = begin_capture(file);
    for (uint32_t i = 0; i < 6; i++) {
        ms_stack stack = ms_stack_add(watch, &(ms_frame){.file = files[i], .function = "f", .line = i + 1});
        CHECK_EQ(ms_block_add_at(watched, NULL, stack, 16 * (i + 1), 100, 0), MS_OK);
    }
    end_capture(writing);
    ms_reader *read = open_reader(file);
    ms_source found, now;
    CHECK(ms_reader_source(read, 0, &found) && !ms_reader_source(read, 1, &now));
    CHECK(strcmp(found.file, name) == 0 && found.bytes == 6);
    CHECK_EQ(found.checksum, 0xd050a859u);
    CHECK(ms_source_read(name, &now) && now.modified == found.modified && now.checksum == found.checksum);
    CHECK_EQ(pwrite(source, "y", 1, 0), 1);
    CHECK(ms_source_read(name, &now) && now.checksum != found.checksum && now.bytes == found.bytes);
    CHECK_EQ(unlink(name), 0);
    CHECK(!ms_source_read(name, &now));
    ms_reader_close(read);
    close(source);
    close(file);
    close_all();
}

/* ---- packs ---- */
static void check_pack(ms_reader *read, uint64_t first, uint64_t last)
{
    ms_cursor *cursor = cursor_of(read);
    CHECK_EQ(ms_cursor_seek(cursor, last), MS_OK);
    size_t expected = ms_cursor_blocks(cursor);
    CHECK(expected >= 500);
    ms_cursor_close(cursor);
    ms_pack raw;
    struct pack pack;
    ms_captured_block block;
    CHECK_EQ(ms_reader_pack(read, first, last, &raw), MS_OK);
    const char *wrong = pack_read(&pack, raw);
    if (wrong)
        FAIL("not so: %s", wrong);
    for (size_t at = 0; pack_block(&pack, raw.ticks - 1, &at, &block); expected--)
        CHECK_EQ(block.stack, stack_for(block.bytes * 16));
    CHECK_EQ(expected, 0);
    pack_free(&pack);
    ms_pack_free(read, &raw);
}

/* Whether the nth allocation of a pack could be refused. */
static bool refuse_in_pack(int fd, long n)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    ms_reader *read;
    ms_pack raw;
    CHECK_EQ(ms_reader_open(fd, &options, &read), MS_OK);
    heap.refuse_at = heap.asked + n;
    int error = ms_reader_pack(read, 0, UINT64_MAX, &raw);
    CHECK_EQ(error, heap.refused ? MS_ENOMEM : MS_OK);
    if (!error)
        ms_pack_free(read, &raw);
    ms_reader_close(read);
    CHECK_EQ(heap.live, 0);
    return heap.refused;
}

TEST(a_pack_has_the_stacks_of_its_blocks)
{
    open_all(NULL);
    add_stacks();
    add_blocks(1, 500);
    int file = new_file();
    ms_capture *writing = begin_capture(file);
    add_blocks(501, 2000);
    end_capture(writing);
    ms_reader *read = open_reader(file);
    check_pack(read, 0, UINT64_MAX);
    check_pack(read, 300, 800);
    check_pack(read, 0, 0);
    ms_reader_close(read);
    for (long n = 1; refuse_in_pack(file, n); n++)
        ;
    close(file);
    close_all();
}

TEST(equal_blocks_of_two_stacks_have_two_templates)
{
    open_all(NULL);
    add_stacks();
    int file = new_file();
    ms_capture *writing = begin_capture(file);
    for (uint64_t i = 0; i < 6; i++)
        CHECK_EQ(ms_block_add_at(watched, NULL, stacks[i % 2], 16 + 16 * i, 100, 0), MS_OK);
    end_capture(writing);
    ms_reader *read = open_reader(file);
    ms_pack raw;
    CHECK_EQ(ms_reader_pack(read, 0, UINT64_MAX, &raw), MS_OK);
    CHECK(raw.templates == 2 && raw.lifetimes == 6 && raw.stack_count == 2);
    CHECK(raw.stacks[0] == stacks[0] && raw.stacks[1] == stacks[1]);
    ms_pack_free(read, &raw);
    ms_reader_close(read);
    close(file);
    close_all();
}

TEST(stacks_that_are_not_known_take_no_room_in_a_pack)
{
    open_all(NULL);
    int file = new_file();
    ms_capture *writing = begin_capture(file);
    CHECK_EQ(ms_block_add_at(watched, NULL, MS_STACK_NONE, 16, 100, 0), MS_OK);
    end_capture(writing);
    ms_reader *read = open_reader(file);
    ms_pack raw;
    struct pack pack;
    CHECK_EQ(ms_reader_pack(read, 0, UINT64_MAX, &raw), MS_OK);
    CHECK(!pack_read(&pack, raw) && raw.templates == 1);
    CHECK_EQ(pack.columns[MS_PACK_STACK].count, 0);
    CHECK(!raw.stacks && !raw.stack_count);
    pack_free(&pack);
    ms_pack_free(read, &raw);
    ms_reader_close(read);
    close(file);
    close_all();
}

/* ---- by hand ---- */
enum { STACKS_CHUNK = 10, ADD_STACKS_CHUNK = 11 };

static void put_events(void)
{
    file.event = 1;
    file_chunk(&file, EVENTS);
    for (int i = 0; i < 3; i++) {
        file_op(&file, MS_OP_ADD);
        file_zigzag(&file, i ? 1 : 0);
        file_varint(&file, 100);
    }
    file_close(&file);
}

static void check_stacks_of_three(ms_stack a, ms_stack b, ms_stack c)
{
    const ms_stack expected[] = {a, b, c};
    ms_cursor *cursor = cursor_of(reader);
    ms_event event;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(ms_cursor_next(cursor, 1u << MS_OP_ADD, &event), MS_OK);
        CHECK_EQ(event.stack, expected[i]);
    }
    ms_cursor_close(cursor);
}

static void put_stack_table(void)
{
    file_chunk(&file, STACKS_CHUNK);
    file_varint(&file, 2);
    for (int i = 0; i < 2; i++) {
        file_varint(&file, 0);
        file_varint(&file, 0);
        file_varint(&file, 0);
        file_varint(&file, 1);
        file_byte(&file, (uint8_t)('a' + i));
    }
    file_close(&file);
}

TEST(a_stack_that_the_file_does_not_name_is_not_known)
{
    begin_file();
    put_stack_table();
    file.event = 1;
    file_chunk(&file, ADD_STACKS_CHUNK);
    file_varint(&file, 2 * 3);
    file_varint(&file, 2 * 4);
    file_varint(&file, 2 * MS_STACK_LOST);
    file_close(&file);
    put_events();
    read_file();
    check_stacks_of_three(3, MS_STACK_NONE, MS_STACK_LOST);
    ms_frame frame;
    CHECK(ms_reader_stack(reader, 3, &frame) && strcmp(frame.function, "b") == 0 && !frame.file);
    CHECK(!ms_reader_stack(reader, 4, &frame));
    finish_file();
}

TEST(blocks_after_the_last_code_have_no_stack)
{
    begin_file();
    put_stack_table();
    file.event = 1;
    file_chunk(&file, ADD_STACKS_CHUNK);
    file_varint(&file, 2 * 2);
    file_close(&file);
    put_events();
    read_file();
    check_stacks_of_three(2, MS_STACK_NONE, MS_STACK_NONE);
    finish_file();
}

TEST(a_table_of_stacks_that_refers_to_nothing_is_damaged)
{
    static const uint8_t tables[][8] = {
        {2, 1, 0, 0, 1, 'f'},       /* the stack around it is number 1, which is none */
        {2, 0, 0, 1},               /* the function of a stack that is not there */
        {2, 0, 2, 0, 1, 'f'},       /* neither a frame nor an operator */
        {2, 0, 1, 0, 1, 'f', 9, 1}, /* the file of a stack before the first */
        {0xFF, 0xFF, 0xFF, 0x7F, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        begin_file();
        file_chunk(&file, STACKS_CHUNK);
        for (size_t at = 0; at < sizeof tables[i]; at++)
            file_byte(&file, tables[i][at]);
        file_close(&file);
        put_events();
        read_file();
        CHECK(ms_reader_get_status(reader).damaged > 0);
        check_stacks_of_three(0, 0, 0);
        finish_file();
    }
}
