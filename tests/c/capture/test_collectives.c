/* test_collectives.c - the collectives of a capture and their groups: written as they are launched, and read back, also
 * from damaged files. */
#include "capture_scene.h"
#include "modscope_collectives.h"
#include "writer_scene.h"

#include <string.h>
#include <unistd.h>

static ms_collectives found;

static void check_collective(size_t i, ms_collective_kind kind, uint64_t bytes, uint32_t group, uint64_t nanoseconds)
{
    CHECK(i < found.count);
    CHECK_EQ(found.at[i].kind, kind);
    CHECK_EQ(found.at[i].bytes, bytes);
    CHECK_EQ(found.at[i].group, group);
    CHECK_EQ(found.at[i].nanoseconds, nanoseconds);
}

/* ---- by hand ---- */
enum { COLLECTIVES_CHUNK = 9, PHASE_BITS = 3 };

static void put_collective(uint64_t kind, uint64_t phase, uint64_t later, int64_t path, uint64_t bytes)
{
    file_varint(&file, kind << PHASE_BITS | phase);
    file_varint(&file, later);
    file_zigzag(&file, 5); /* microseconds */
    file_zigzag(&file, 1); /* steps */
    file_zigzag(&file, path);
    file_varint(&file, 3); /* thread */
    file_varint(&file, 7); /* group */
    file_varint(&file, bytes);
    file_varint(&file, 1000);
}

static void put_group(uint64_t number, uint64_t size, const char *name)
{
    file_varint(&file, 0);
    file_varint(&file, number);
    file_varint(&file, size);
    file_string(&file, name);
    file_string(&file, "nccl");
    file_string(&file, "0-7");
}

TEST(collectives_and_groups_are_read)
{
    begin_file_with_events();
    begin_chunk(COLLECTIVES_CHUNK, 20);
    put_collective(1, MS_BACKWARD, 2, 0, 4096);
    put_group(7, 8, "dp");
    put_collective(3, MS_FORWARD, 3, 0, 100);
    put_group(2, 2, "tp");
    put_group(7, 8, "data");
    file_close(&file);
    read_file();
    CHECK_EQ(ms_collectives_read(reader, &found), MS_OK);
    CHECK_EQ(found.count, 2);
    check_collective(0, MS_COLLECTIVE_ALL_REDUCE, 4096, 7, 1000);
    check_collective(1, MS_COLLECTIVE_REDUCE_SCATTER, 100, 7, 1000);
    CHECK_EQ(found.at[0].event, 22);
    CHECK_EQ(found.at[1].event, 25);
    CHECK_EQ(found.at[1].time - found.at[0].time, 5);
    CHECK_EQ(found.at[1].step, 2);
    CHECK_EQ(found.at[0].phase, MS_BACKWARD);
    CHECK_EQ(found.at[1].thread, 3);
    CHECK_EQ(found.group_count, 2);
    CHECK_EQ(found.groups[0].number, 2);
    CHECK(strcmp(found.groups[1].name, "data") == 0); /* the last description holds */
    CHECK(strcmp(found.groups[1].ranks, "0-7") == 0);
    CHECK_EQ(found.groups[1].size, 8);
    ms_collectives_free(reader, &found);
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}

TEST(a_collective_that_cannot_be_read_ends_its_chunk_alone)
{
    begin_file_with_events();
    begin_chunk(COLLECTIVES_CHUNK, 20);
    put_collective(1, MS_FORWARD, 1000, 0, 1); /* after the last event */
    put_collective(1, MS_FORWARD, 0, 0, 1);
    file_close(&file);
    begin_chunk(COLLECTIVES_CHUNK, 20);
    put_collective(1, MS_FORWARD, 0, 1 << 20, 1); /* no such path */
    file_close(&file);
    begin_chunk(COLLECTIVES_CHUNK, 20);
    put_group(0, 2, "no number");
    put_group(5, 2, "not read");
    file_close(&file);
    begin_chunk(COLLECTIVES_CHUNK, 20);
    put_collective(200, MS_FORWARD, 0, 0, 1); /* a kind of a later version is left out */
    put_collective(2, 7, 0, 0, 5);            /* so is a phase */
    file_varint(&file, 0);                    /* a group without the rest */
    file_close(&file);
    read_file();
    CHECK_EQ(ms_collectives_read(reader, &found), MS_OK);
    CHECK_EQ(found.count, 1);
    check_collective(0, MS_COLLECTIVE_ALL_GATHER, 5, 7, 1000);
    CHECK_EQ(found.at[0].phase, MS_IDLE);
    CHECK_EQ(found.group_count, 0);
    ms_collectives_free(reader, &found);
    finish_file();
}

static void put_time(uint64_t timing, int64_t begin, uint64_t later, uint64_t nanoseconds)
{
    file_varint(&file, 31u << PHASE_BITS | timing);
    file_varint(&file, 0);
    file_zigzag(&file, begin); /* microseconds, from the collective or time before */
    file_zigzag(&file, 0);
    file_zigzag(&file, 0);
    file_varint(&file, 0);
    file_varint(&file, 0);
    file_varint(&file, later);
    file_varint(&file, nanoseconds);
}

static void check_time(size_t i, ms_collective_timing timing, uint64_t time, uint64_t nanoseconds)
{
    CHECK_EQ(found.at[i].timing, timing);
    CHECK_EQ(found.at[i].time, time);
    CHECK_EQ(found.at[i].nanoseconds, nanoseconds);
}

TEST(times_are_of_the_collective_that_was_launched_so_many_before)
{
    begin_file_with_events();
    begin_chunk(COLLECTIVES_CHUNK, 20);
    put_collective(1, MS_FORWARD, 0, 0, 1); /* at 5, predicted */
    put_collective(2, MS_FORWARD, 0, 0, 2); /* at 10 */
    put_collective(9, MS_FORWARD, 0, 0, 3); /* at 15 */
    put_collective(5, MS_FORWARD, 0, 0, 4); /* at 20 */
    put_time(0, 7, 2, 3000);                /* the second one was executed from 27 on */
    put_time(1, -27, 1, 4000);              /* the third one was waited for: its time is that of its launch */
    file_close(&file);
    begin_chunk(COLLECTIVES_CHUNK, 20);
    put_time(2, 1, 0, 5000);  /* the fourth one, on a GPU */
    put_time(0, 24, 2, 9000); /* another part of the second one, from 25 on */
    put_time(0, 0, 4, 1);     /* there is none */
    put_time(5, 0, 3, 1);     /* a timing of a later version */
    file_close(&file);
    read_file();
    CHECK_EQ(ms_collectives_read(reader, &found), MS_OK);
    CHECK_EQ(found.count, 4);
    check_time(0, MS_COLLECTIVE_PREDICTED, 5, 1000);
    check_time(1, MS_COLLECTIVE_EXECUTED, 25, 9000);
    check_time(2, MS_COLLECTIVE_WAITED, 15, 4000);
    check_time(3, MS_COLLECTIVE_ON_GPU, 20, 5000);
    ms_collectives_free(reader, &found);
    finish_file();
}

TEST(times_do_not_reach_behind_what_cannot_be_read)
{
    begin_file_with_events();
    begin_chunk(COLLECTIVES_CHUNK, 20);
    put_collective(1, MS_FORWARD, 0, 0, 1);
    put_collective(200, MS_FORWARD, 0, 0, 1); /* of a later version: left out */
    put_collective(2, MS_FORWARD, 0, 0, 2);
    put_time(2, 0, 0, 5000);
    put_time(2, 0, 1, 6000);
    file_close(&file);
    read_file();
    CHECK_EQ(ms_collectives_read(reader, &found), MS_OK);
    CHECK_EQ(found.count, 2);
    CHECK_EQ(found.at[0].timing, MS_COLLECTIVE_PREDICTED);
    CHECK_EQ(found.at[1].timing, MS_COLLECTIVE_ON_GPU);
    ms_collectives_free(reader, &found);
    finish_file();
}

TEST(a_file_without_collectives_has_none)
{
    begin_file_with_events();
    read_file();
    CHECK_EQ(ms_collectives_read(reader, &found), MS_OK);
    CHECK_EQ(found.count, 0);
    CHECK(found.at == NULL && found.groups == NULL);
    ms_collectives_free(reader, &found);
    finish_file();
}

/* ---- by the writer ---- */
TEST(a_capture_has_the_times_of_its_collectives)
{
    const ms_collective reduce = {.kind = MS_COLLECTIVE_ALL_REDUCE, .bytes = 4096};
    open_all(NULL);
    program = program_open(1);
    int before = new_file();
    ms_capture *first = begin_capture(before);
    uint64_t early = ms_collective_note(watched, NULL, &reduce, 0);
    fd = new_file();
    capture = begin_capture(fd);
    uint64_t numbers[3000];
    for (int i = 0; i < 3000; i++)
        numbers[i] = ms_collective_note(watched, NULL, &reduce, 0);
    CHECK(early && numbers[0] == early + 1);
    for (int i = 0; i < 3000; i += 2)
        ms_collective_note_time(watched, numbers[i], MS_COLLECTIVE_WAITED, 1000u + (unsigned)i);
    ms_collective_note_time(watched, early, MS_COLLECTIVE_ON_GPU, 77);
    ms_collective_note_time(watched, numbers[2999] + 1, MS_COLLECTIVE_EXECUTED, 1); /* there is none */
    ms_collective_note_time(watched, 0, MS_COLLECTIVE_EXECUTED, 1);
    ms_collective_note_time(watched, numbers[1], MS_COLLECTIVE_PREDICTED, 1); /* not told later */
    end_capture(capture);
    end_capture(first);
    for (int of = 0; of < 2; of++) {
        ms_reader *from = open_reader(of ? fd : before);
        CHECK_EQ(ms_collectives_read(from, &found), MS_OK);
        size_t more = of ? 0 : 1; /* the first capture has the early one too */
        CHECK_EQ(found.count, 3000 + more);
        for (size_t i = 0; i < 3000; i++) {
            CHECK_EQ(found.at[i + more].timing, i % 2 ? MS_COLLECTIVE_NOT_TIMED : MS_COLLECTIVE_WAITED);
            CHECK_EQ(found.at[i + more].nanoseconds, i % 2 ? 0 : 1000 + i);
        }
        if (more)
            CHECK_EQ(found.at[0].nanoseconds, 77);
        ms_collectives_free(from, &found);
        ms_reader_close(from);
    }
    close(before);
    close(fd);
    close_all();
}

TEST(a_capture_has_the_collectives_that_are_launched_while_it_lasts)
{
    const ms_collective reduce = {.kind = MS_COLLECTIVE_ALL_REDUCE, .bytes = 4096, .group = 1, .nanoseconds = 77};
    const ms_collective gather = {.kind = MS_COLLECTIVE_ALL_GATHER, .bytes = UINT64_MAX, .group = UINT32_MAX};
    const ms_collective none = {.kind = MS_COLLECTIVE_COUNT, .bytes = 1};
    ms_collective_group group = {.number = 1, .size = 64, .backend = "gloo", .ranks = "0-63"};
    memset(group.name, 'n', sizeof group.name); /* too long: it is cut off */
    open_all(NULL);
    program = program_open(1);
    CHECK_EQ(ms_collective_note(watched, NULL, &reduce, 0), 0); /* nothing is captured */
    ms_collective_note_time(watched, 1, MS_COLLECTIVE_EXECUTED, 1000);
    fd = new_file();
    capture = begin_capture(fd);
    CHECK_EQ(ms_block_add(watched, NULL, 4096, 1000, 1), MS_OK);
    ms_collective_note(watched, NULL, &reduce, 600000000000);
    ms_collective_note(watched, NULL, &none, 0);
    ms_collective_note_group(watched, &group);
    for (int i = 0; i < 10000; i++) /* more than one chunk */
        ms_collective_note(watched, NULL, &gather, 0);
    end_capture(capture);
    check_file(fd);
    ms_reader *from = open_reader(fd);
    CHECK_EQ(ms_collectives_read(from, &found), MS_OK);
    CHECK_EQ(found.count, 10001);
    check_collective(0, MS_COLLECTIVE_ALL_REDUCE, 4096, 1, 77);
    CHECK(found.at[0].time >= 600000000);
    CHECK_EQ(found.at[0].path, MS_GLOBAL);
    check_collective(10000, MS_COLLECTIVE_ALL_GATHER, UINT64_MAX, UINT32_MAX, 0);
    CHECK(found.at[10000].time < found.at[0].time);
    CHECK_EQ(found.group_count, 1);
    CHECK_EQ(strlen(found.groups[0].name), sizeof group.name - 1);
    CHECK(strcmp(found.groups[0].backend, "gloo") == 0);
    ms_collectives_free(from, &found);
    ms_reader_close(from);
    close(fd);
    close_all();
}
