/* test_oom.c - memory that is refused to a reader: nothing leaks, and what it then says is
 * right. */
#include "capture_exercise.h"
#include "capture_model.h"
#include "capture_scene.h"

#include <unistd.h>

static struct model model;
static int fd;

enum outcome { UNTOUCHED, REFUSED };

static enum outcome run(long n, bool forever)
{
    struct heap heap = {.refuse_at = n, .forever = forever};
    const char *wrong = capture_exercise(fd, 5, &heap);
    if (wrong)
        FAIL("refused allocation %ld%s: %s", n, forever ? " and all later" : "", wrong);
    return heap.refused ? REFUSED : UNTOUCHED;
}

TEST(every_allocation_of_a_reader_may_be_refused)
{
    model_run(&model, 3, 500, 1, true, true);
    file_append(&model.file, "no chunk", 8); /* bytes in which the reader must search for a header */
    fd = file_fd(&model.file);
    for (int forever = 0; forever <= 1; forever++)
        for (long n = 1; run(n, forever) == REFUSED; n++)
            ;
    close(fd);
    model_free(&model);
}

/* A cursor that was reset can be used again once there is memory. */
TEST(a_cursor_that_ran_out_of_memory_can_seek_again)
{
    begin_file();
    begin_events();
    for (uint32_t i = 0; i < 200; i++)
        file_add(&file, i, 1, 0);
    end_events();
    fd = file_fd(&file);
    for (long n = 1;; n++) {
        struct heap heap = {0};
        ms_options options = heap_options(&heap);
        CHECK_EQ(ms_reader_open(fd, &options, &reader), MS_OK);
        CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
        heap.refuse_at = heap.asked + n;
        int error = ms_cursor_seek(cursor, 201);
        CHECK_EQ(error, heap.refused ? MS_ENOMEM : MS_OK);
        CHECK_EQ(ms_cursor_blocks(cursor), error ? 0 : 200);
        CHECK_EQ(bytes_on(0), error ? 0 : 200);
        seek(150);
        CHECK_EQ(bytes_on(0), 149);
        CHECK_EQ(next_event().number, 150);
        ms_cursor_close(cursor);
        ms_reader_close(reader);
        CHECK_EQ(heap.live, 0);
        if (!error)
            break;
    }
    close(fd);
    file_free(&file);
}

TEST(a_reader_that_is_given_half_an_allocator_is_refused)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    options.free = NULL;
    begin_file();
    fd = file_fd(&file);
    CHECK_EQ(ms_reader_open(fd, &options, &reader), MS_EINVAL);
    close(fd);
    file_free(&file);
}
