/* test_notes.c - notes about blocks: written while a ledger counts, and read back, also from damaged files. */
#include "capture_scene.h"
#include "writer_scene.h"

#include <unistd.h>

static ms_notes *notes;
static ms_note note;

static void open_notes(ms_reader *from)
{
    CHECK_EQ(ms_notes_open(from, &notes), MS_OK);
}

static void check_next(ms_note_kind kind, uint64_t event, uint32_t slot, uint64_t value)
{
    CHECK_EQ(ms_notes_next(notes, &note), MS_OK);
    CHECK_EQ(note.kind, kind);
    CHECK_EQ(note.event, event);
    CHECK_EQ(note.slot, slot);
    CHECK_EQ(note.value, value);
}

static void check_end(void)
{
    CHECK_EQ(ms_notes_next(notes, &note), MS_EEND);
    ms_notes_close(notes);
}

/* ---- by hand ---- */
enum { NOTES_CHUNK = 7, UNKNOWN_KIND = 7 };

static void put_note(uint64_t later, uint32_t kind, int64_t slot)
{
    file_varint(&file, later << 3 | kind);
    file_zigzag(&file, slot);
}

static void begin_notes(uint64_t event)
{
    file.event = event;
    file_chunk(&file, NOTES_CHUNK);
}

TEST(notes_are_read_in_the_order_of_their_events)
{
    begin_file();
    begin_notes(5);
    put_note(0, MS_NOTE_SAVED, 7);
    put_note(3, MS_NOTE_REQUESTED, -4);
    file_varint(&file, 1000);
    file_close(&file);
    begin_notes(9);
    put_note(1, MS_NOTE_STREAM, 2);
    file_varint(&file, 3);
    put_note(0, MS_NOTE_SEGMENT, 0);
    file_varint(&file, UINT64_MAX);
    file_close(&file);
    read_file();
    open_notes(reader);
    check_next(MS_NOTE_SAVED, 5, 7, 0);
    check_next(MS_NOTE_REQUESTED, 8, 3, 1000);
    check_next(MS_NOTE_STREAM, 10, 2, 3);
    check_next(MS_NOTE_SEGMENT, 10, 2, UINT64_MAX);
    check_end();
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    finish_file();
}

TEST(a_note_that_cannot_be_read_ends_its_chunk_alone)
{
    begin_file();
    begin_notes(1);
    put_note(0, UNKNOWN_KIND, 0);
    put_note(0, MS_NOTE_SAVED, 1);
    file_close(&file);
    begin_notes(2);
    put_note(0, MS_NOTE_SAVED, -1); /* no slot */
    file_close(&file);
    begin_notes(3);
    put_note(0, MS_NOTE_SAVED, (int64_t)1 << 31); /* no slot either */
    file_close(&file);
    begin_notes(4);
    put_note(0, MS_NOTE_REQUESTED, 0); /* without its value */
    file_close(&file);
    begin_notes(3); /* out of order */
    put_note(0, MS_NOTE_SAVED, 0);
    file_close(&file);
    begin_notes(6);
    put_note(0, MS_NOTE_SAVED, 9);
    file_close(&file);
    read_file();
    open_notes(reader);
    check_next(MS_NOTE_SAVED, 6, 9, 0);
    check_end();
    finish_file();
}

/* ---- by the writer ---- */
TEST(a_capture_has_the_notes_of_its_blocks)
{
    open_all(NULL);
    program = program_open(1);
    fd = new_file();
    capture = begin_capture(fd);
    CHECK_EQ(ms_block_add(watched, NULL, 4096, 1000, 1), MS_OK);
    CHECK_EQ(ms_block_note_request(watched, 4096, 900, 0), MS_OK);
    CHECK_EQ(ms_block_add(watched, NULL, 8192, 500, 1), MS_OK);
    CHECK_EQ(ms_block_note_request(watched, 8192, 500, 2), MS_OK);
    CHECK_EQ(ms_block_note_segment(watched, 8192), MS_OK);
    CHECK_EQ(ms_block_note_request(watched, 4096, 1000, 2), MS_OK); /* nothing new */
    CHECK_EQ(ms_block_note_saved(watched, 4096, 0), MS_OK);
    CHECK_EQ(ms_block_claim(watched, 8192, MS_PARAMETER, MS_GLOBAL), MS_OK);
    CHECK_EQ(ms_block_note_saved(watched, 8192, 0), MS_OK); /* held by an object */
    CHECK_EQ(ms_block_note_saved(watched, 1, 0), MS_ENOBLOCK);
    uint64_t used[] = {4096, 8192, 1}; /* the second is held by an object, and there is no third */
    CHECK_EQ(ms_block_note_uses(watched, used, 3, false), 1500);
    CHECK_EQ(ms_block_note_uses(watched, used, 1, true), 1000);
    CHECK(ms_ledger_is_captured(watched));
    end_capture(capture);
    CHECK(!ms_ledger_is_captured(watched));
    CHECK_EQ(ms_block_note_saved(watched, 1, 0), MS_OK);
    check_file(fd);
    ms_reader *from = open_reader(fd);
    open_notes(from);
    check_next(MS_NOTE_REQUESTED, 3, 0, 900); /* event 1 introduces the thread */
    check_next(MS_NOTE_STREAM, 4, 1, 2);
    check_next(MS_NOTE_SEGMENT, 4, 1, 8192);
    check_next(MS_NOTE_SAVED, 4, 0, 0);
    check_next(MS_NOTE_INPUT, 5, 0, 0); /* event 4 is the claim */
    check_next(MS_NOTE_OUTPUT, 5, 0, 0);
    check_end();
    ms_reader_close(from);
    close(fd);
    close_all();
}

TEST(the_storage_of_a_saved_block_is_noted_once)
{
    open_all(NULL);
    program = program_open(1);
    fd = new_file();
    capture = begin_capture(fd);
    for (int i = 0; i < 2; i++) { /* two blocks, one after the other in the same slot */
        CHECK_EQ(ms_block_add(watched, NULL, 4096, 10000, 1), MS_OK);
        CHECK_EQ(ms_block_note_saved(watched, 4096, 9900), MS_OK); /* rounding */
        CHECK_EQ(ms_block_note_saved(watched, 4096, 9000), MS_OK);
        CHECK_EQ(ms_block_note_saved(watched, 4096, 9000), MS_OK);
        CHECK_EQ(ms_block_drop(watched, 4096), MS_OK);
    }
    end_capture(capture);
    ms_reader *from = open_reader(fd);
    open_notes(from);
    for (uint64_t event = 3; event <= 5; event += 2) {
        check_next(MS_NOTE_SAVED, event, 0, 0);
        check_next(MS_NOTE_SAVED, event, 0, 0);
        check_next(MS_NOTE_REQUESTED, event, 0, 9000);
        check_next(MS_NOTE_SAVED, event, 0, 0);
    }
    check_end();
    ms_reader_close(from);
    close(fd);
    close_all();
}

TEST(more_notes_than_a_page_holds)
{
    enum { COUNT = 100000 };
    open_all(NULL);
    program = program_open(1);
    fd = new_file();
    capture = begin_capture(fd);
    CHECK_EQ(ms_block_add(watched, NULL, 4096, 1000, 1), MS_OK);
    for (int i = 0; i < COUNT; i++)
        CHECK_EQ(ms_block_note_saved(watched, 4096, 0), MS_OK);
    end_capture(capture);
    ms_reader *from = open_reader(fd);
    open_notes(from);
    for (int i = 0; i < COUNT; i++)
        check_next(MS_NOTE_SAVED, 3, 0, 0);
    check_end();
    ms_reader_close(from);
    close(fd);
    close_all();
}
