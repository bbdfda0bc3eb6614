/* test_operators.c - the operators of forwards: written and read back, also from damaged files. */
#include "capture_scene.h"
#include "writer_scene.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static ms_operators operators;

static void check_run(size_t i, uint64_t begin, uint64_t end, const char *name, uint64_t nanoseconds, uint32_t slot)
{
    CHECK(i < operators.count);
    CHECK_EQ(operators.runs[i].begin, begin);
    CHECK_EQ(operators.runs[i].end, end);
    CHECK(strcmp(operators.names[operators.runs[i].name].text, name) == 0);
    CHECK_EQ(operators.runs[i].nanoseconds, nanoseconds);
    CHECK_EQ(operators.runs[i].slot, slot);
}

/* ---- by hand ---- */
enum { OPERATORS_CHUNK = 15 };

static void put_new_name(uint64_t number, const char *name, uint64_t flags)
{
    file_varint(&file, number);
    file_string(&file, name);
    file_varint(&file, flags);
}

static void put_run(uint64_t later, uint64_t events, uint64_t nanoseconds)
{
    file_varint(&file, later);
    file_varint(&file, events);
    file_varint(&file, 0); /* the thread */
    file_varint(&file, nanoseconds);
}

TEST(names_are_those_of_the_chunk_and_are_read_once)
{
    begin_file_with_events();
    begin_chunk(OPERATORS_CHUNK, 10);
    put_new_name(0, "aten::addmm", 0);
    put_run(2, 2, 1000);
    put_new_name(1, "aten::relu_", MS_OPERATOR_IN_PLACE);
    put_run(0, 0, 5);
    file_varint(&file, 8); /* slot 7 */
    file_varint(&file, 0);
    put_run(3, 1, 1001);
    file_close(&file);
    begin_chunk(OPERATORS_CHUNK, 50);
    put_new_name(0, "aten::relu_", MS_OPERATOR_IN_PLACE);
    put_run(0, 0, 6);
    file_varint(&file, 0);
    file_close(&file);
    read_file();
    CHECK_EQ(ms_operators_read(reader, &operators), MS_OK);
    CHECK_EQ(operators.count, 4);
    CHECK_EQ(operators.name_count, 2);
    check_run(0, 10, 12, "aten::addmm", 1000, MS_OPERATOR_NO_SLOT);
    check_run(1, 12, 12, "aten::relu_", 5, 7);
    check_run(2, 14, 15, "aten::addmm", 1001, MS_OPERATOR_NO_SLOT);
    check_run(3, 50, 50, "aten::relu_", 6, MS_OPERATOR_NO_SLOT);
    ms_operators_free(reader, &operators);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}

TEST(an_operator_that_cannot_be_read_ends_its_chunk_alone)
{
    begin_file_with_events();
    begin_chunk(OPERATORS_CHUNK, 10);
    put_new_name(0, "aten::mm", 0);
    put_run(1, 0, 1);
    file_varint(&file, 2); /* a name that comes after the next new one */
    put_run(1, 0, 1);
    file_close(&file);
    begin_chunk(OPERATORS_CHUNK, 20);
    put_new_name(0, "aten::mm", 0);
    put_run(1, 30, 2); /* it began before the capture */
    file_close(&file);
    begin_chunk(OPERATORS_CHUNK, 30);
    put_new_name(0, "aten::mm", 0);
    put_run(80, 0, 3); /* after its end */
    file_close(&file);
    begin_chunk(OPERATORS_CHUNK, 40);
    put_new_name(0, "aten::mm", 0);
    put_run(1, 1, 4);
    file_close(&file);
    read_file();
    CHECK_EQ(ms_operators_read(reader, &operators), MS_OK);
    CHECK_EQ(operators.count, 2);
    check_run(0, 11, 11, "aten::mm", 1, MS_OPERATOR_NO_SLOT);
    check_run(1, 40, 41, "aten::mm", 4, MS_OPERATOR_NO_SLOT);
    ms_operators_free(reader, &operators);
    finish_file();
}

TEST(a_file_without_operators_has_none)
{
    begin_file_with_events();
    read_file();
    CHECK_EQ(ms_operators_read(reader, &operators), MS_OK);
    CHECK_EQ(operators.count, 0);
    CHECK(operators.runs == NULL && operators.names == NULL);
    finish_file();
}

/* ---- by the writer ---- */
TEST(a_capture_has_the_operators_that_ran_while_it_lasted)
{
    static char names[300][16], longest[200];
    memset(longest, 'x', sizeof longest - 1);
    open_all(NULL);
    program = program_open(1);
    ms_thread *thread = program.thread;
    ms_operator product = {"aten::mm", 0}, change = {"aten::add_.Tensor", MS_OPERATOR_IN_PLACE}, cut = {longest, 0};
    CHECK_EQ(ms_captured_events(watched), 0);
    ms_operator_note(watched, thread, &product, 0, 1, 0); /* nothing is captured */
    fd = new_file();
    capture = begin_capture(fd);
    uint64_t before = ms_captured_events(watched);
    CHECK_EQ(ms_block_add(watched, thread, 4096, 1000, 1), MS_OK);
    uint64_t after = ms_captured_events(watched);
    CHECK(after > before);
    ms_operator_note(watched, thread, &product, before, 700, 0);
    ms_operator_note(watched, thread, &change, after, 30, 4096);
    ms_operator_note(watched, thread, &change, after, 31, 1); /* of no block that is known */
    ms_operator_note(watched, NULL, &product, after, 1, 0);   /* on no thread */
    ms_operator_note(watched, thread, &cut, after, 2, 0);
    for (int i = 0; i < 300; i++) { /* more names than a chunk has */
        snprintf(names[i], sizeof names[i], "n::%d", i);
        ms_operator_note(watched, thread, &(ms_operator){names[i], 0}, after, (uint64_t)i, 0);
    }
    end_capture(capture);
    check_file(fd);
    ms_reader *from = open_reader(fd);
    CHECK_EQ(ms_operators_read(from, &operators), MS_OK);
    CHECK_EQ(operators.count, 304);
    CHECK_EQ(operators.name_count, 303);
    check_run(0, before, after, "aten::mm", 700, MS_OPERATOR_NO_SLOT);
    check_run(1, after, after, "aten::add_.Tensor", 30, operators.runs[1].slot);
    CHECK(operators.runs[1].slot != MS_OPERATOR_NO_SLOT);
    check_run(2, after, after, "aten::add_.Tensor", 31, MS_OPERATOR_NO_SLOT);
    CHECK_EQ(strlen(operators.names[operators.runs[3].name].text), MS_OPERATOR_NAME_MAX);
    check_run(303, after, after, "n::299", 299, MS_OPERATOR_NO_SLOT);
    ms_operators_free(from, &operators);
    ms_reader_close(from);
    close(fd);
    close_all();
}
