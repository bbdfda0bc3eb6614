/* test_kinds.c - kinds of blocks in captures: noted by the writer, and known at every moment since the block was added.
 */
#include "capture_scene.h"
#include "pack_read.h"
#include "writer_scene.h"

#include <unistd.h>

enum { GATHERED = 4096, HELD = 8192, LATE = 12288 };

static ms_reader *from;

static void begin_program(void)
{
    open_all(NULL);
    program = program_open(1);
    fd = new_file();
}

static void read_back(void)
{
    end_capture(capture);
    check_file(fd);
    from = open_reader(fd);
    CHECK_EQ(ms_cursor_open(from, &cursor), MS_OK);
}

static void finish_program(void)
{
    ms_cursor_close(cursor);
    ms_reader_close(from);
    close(fd);
    close_all();
}

static uint8_t kind_in_slot(uint32_t slot)
{
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);)
        if (block.slot == slot)
            return block.kind;
    FAIL("no block in slot %u", slot);
    return 0;
}

TEST(a_kind_holds_since_the_block_was_added)
{
    begin_program();
    CHECK_EQ(ms_block_add(watched, NULL, HELD, 70, 1), MS_OK);
    CHECK_EQ(ms_block_claim_kind(watched, HELD, MS_KIND_SHARDED_PARAM, MS_GLOBAL), MS_OK);
    capture = begin_capture(fd);
    CHECK_EQ(ms_block_add(watched, NULL, GATHERED, 1000, 1), MS_OK);
    CHECK_EQ(ms_block_add(watched, NULL, LATE, 5, 1), MS_OK);
    CHECK_EQ(ms_block_drop(watched, LATE), MS_OK);
    CHECK_EQ(ms_block_claim_kind(watched, GATHERED, MS_KIND_ALL_GATHER, paths[3]), MS_OK);
    CHECK_EQ(ms_block_drop(watched, GATHERED), MS_OK);
    CHECK_EQ(ms_block_add(watched, NULL, GATHERED, 10, 1), MS_OK); /* another block in the same slot */
    read_back();
    CHECK_EQ(kind_in_slot(0), MS_KIND_SHARDED_PARAM); /* it is older than the capture */
    CHECK_EQ(ms_cursor_seek(cursor, 3), MS_OK);
    CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
    CHECK_EQ(kind_in_slot(1), MS_KIND_ALL_GATHER); /* before the event that claims it */
    CHECK_EQ(ms_cursor_kinds(cursor, 1).of[MS_KIND_ALL_GATHER], 1000);
    CHECK_EQ(ms_cursor_kinds(cursor, 1).of[MS_KIND_SHARDED_PARAM], 70);
    CHECK_EQ(ms_cursor_kinds(cursor, 0).of[MS_KIND_SHARDED_PARAM], 0);
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_kinds(cursor, 1).of[MS_KIND_ALL_GATHER], 0);
    CHECK_EQ(ms_cursor_kinds(cursor, 1).of[MS_KIND_SHARDED_PARAM], 70);
    finish_program();
}

TEST(events_say_the_kind_of_their_block)
{
    begin_program();
    capture = begin_capture(fd);
    CHECK_EQ(ms_block_add(watched, NULL, HELD, 70, 1), MS_OK);
    CHECK_EQ(ms_block_claim_kind(watched, HELD, MS_KIND_UNSHARDED_GRAD, paths[1]), MS_OK);
    CHECK_EQ(ms_block_claim(watched, HELD, MS_GRADIENT, paths[2]), MS_OK); /* says nothing new */
    CHECK_EQ(ms_block_drop(watched, HELD), MS_OK);
    read_back();
    CHECK_EQ(ms_cursor_load_later_claims(cursor), MS_OK);
    ms_event event;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(ms_cursor_next(cursor, 1u << MS_OP_ADD | 1u << MS_OP_CLAIM | 1u << MS_OP_DROP, &event), MS_OK);
        CHECK_EQ(event.category, MS_GRADIENT);
        CHECK_EQ(event.kind, MS_KIND_UNSHARDED_GRAD);
    }
    finish_program();
}

TEST(another_category_takes_the_kind_away_in_a_capture_too)
{
    begin_program();
    capture = begin_capture(fd);
    CHECK_EQ(ms_block_add(watched, NULL, HELD, 70, 1), MS_OK);
    CHECK_EQ(ms_block_claim_kind(watched, HELD, MS_KIND_SHARDED_GRAD, paths[1]), MS_OK);
    ms_claims_begin(watched);
    ms_claims_end(watched); /* Other from now on */
    CHECK_EQ(ms_block_add(watched, NULL, LATE, 5, 1), MS_OK);
    read_back();
    CHECK_EQ(ms_cursor_seek(cursor, 4), MS_OK);
    CHECK_EQ(kind_in_slot(0), MS_KIND_SHARDED_GRAD);
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(kind_in_slot(0), MS_KIND_NONE);
    CHECK_EQ(ms_cursor_now(cursor, 1).of[MS_OTHER], 75);
    finish_program();
}

/* How many bytes of a pack have the kind at a moment. */
static uint64_t packed_bytes(uint64_t moment, ms_kind kind)
{
    struct pack pack;
    ms_pack raw;
    ms_captured_block block;
    uint64_t bytes = 0;
    CHECK_EQ(ms_reader_pack(from, 0, UINT64_MAX, &raw), MS_OK);
    CHECK(!pack_read(&pack, raw));
    for (size_t at = 0; pack_block(&pack, pack_tick(&pack, moment), &at, &block);)
        bytes += block.kind == kind ? block.bytes : 0;
    pack_free(&pack);
    ms_pack_free(from, &raw);
    return bytes;
}

TEST(packs_have_the_kinds_of_blocks)
{
    begin_program();
    capture = begin_capture(fd);
    CHECK_EQ(ms_block_add(watched, NULL, HELD, 70, 1), MS_OK);
    CHECK_EQ(ms_block_add(watched, NULL, LATE, 70, 1), MS_OK); /* it differs by its kind only */
    CHECK_EQ(ms_block_claim_kind(watched, HELD, MS_KIND_SHARDED_GRAD, paths[1]), MS_OK);
    CHECK_EQ(ms_block_claim_kind(watched, LATE, MS_KIND_BUCKET, paths[1]), MS_OK);
    ms_claims_begin(watched);
    ms_claims_end(watched); /* the first one is Other from now on */
    CHECK_EQ(ms_block_drop(watched, LATE), MS_OK);
    read_back();
    CHECK_EQ(packed_bytes(4, MS_KIND_SHARDED_GRAD), 70); /* before the events that claim them */
    CHECK_EQ(packed_bytes(4, MS_KIND_BUCKET), 70);
    CHECK_EQ(packed_bytes(UINT64_MAX, MS_KIND_SHARDED_GRAD), 0);
    CHECK_EQ(packed_bytes(UINT64_MAX, MS_KIND_BUCKET), 0);
    finish_program();
}

/* ---- by hand ---- */
enum { NOTES = 7 };

static void put_kind(uint64_t later, uint32_t slot, uint64_t value)
{
    file_varint(&file, later << 3 | MS_NOTE_BLOCK_KIND);
    file_zigzag(&file, slot);
    file_varint(&file, value);
}

TEST(a_kind_that_is_not_known_is_none)
{
    begin_file();
    begin_events();
    file_add_as(&file, 0, 10, 0, MS_GRADIENT, 2);
    file_add_as(&file, 1, 20, 0, MS_GRADIENT, 2);
    end_events();
    CHECK_EQ(file.event, 3);
    file_chunk(&file, NOTES);
    file.oldest = 0;
    put_kind(0, 0, 2 << 4 | 15);                   /* a kind of a later version */
    put_kind(0, 1, UINT64_MAX);                    /* older than the file */
    put_kind(0, 0, 1 << 4 | MS_KIND_SHARDED_GRAD); /* slots are relative: the block in slot 1, since event 2 */
    put_kind(0, 5, 1 << 4 | MS_KIND_ALL_GATHER);   /* of a block that is not there */
    file_close(&file);
    read_file();
    seek(3);
    CHECK_EQ(block_in(0).kind, MS_KIND_NONE);
    CHECK_EQ(block_in(1).kind, MS_KIND_SHARDED_GRAD);
    CHECK_EQ(ms_cursor_kinds(cursor, 0).of[MS_KIND_SHARDED_GRAD], 20);
    finish_file();
}
