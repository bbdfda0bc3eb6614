/* test_pack.c - a pack says of every moment what a cursor says that seeks it and applies later claims. */
#include "capture_model.h"
#include "capture_scene.h"
#include "heap.h"
#include "pack_read.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct pack pack;

static void make_pack(uint64_t first, uint64_t last)
{
    ms_pack raw;
    CHECK_EQ(ms_reader_pack(reader, first, last, &raw), MS_OK);
    const char *wrong = pack_read(&pack, raw);
    if (wrong)
        FAIL("not so: %s", wrong);
}

static void free_pack(void)
{
    ms_pack_free(reader, &pack.raw);
    pack_free(&pack);
}

/* ---- comparing ---- */
static int order(const void *left, const void *right)
{
    const ms_captured_block *a = left, *b = right;
    const uint64_t fields[][2] = {{a->bytes, b->bytes},       {a->device, b->device}, {a->path, b->path},
                                  {a->category, b->category}, {a->phase, b->phase},   {a->outside, b->outside},
                                  {a->made_at, b->made_at},   {a->step, b->step},     {a->stack, b->stack}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i][0] != fields[i][1])
            return fields[i][0] < fields[i][1] ? -1 : 1;
    return 0;
}

enum { MOST_HELD = 4096 };

static void check_blocks(uint64_t tick)
{
    static ms_captured_block wanted[MOST_HELD], got[MOST_HELD];
    size_t many = 0, found = 0, lifetime = 0;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &wanted[many]); many++)
        CHECK(many < MOST_HELD - 1);
    while (pack_block(&pack, tick, &lifetime, &got[found]))
        CHECK(++found < MOST_HELD);
    CHECK_EQ(found, many);
    qsort(wanted, many, sizeof *wanted, order);
    qsort(got, found, sizeof *got, order);
    for (size_t i = 0; i < many; i++)
        CHECK_EQ(order(&got[i], &wanted[i]), 0);
}

static void check_running(uint64_t tick)
{
    static const ms_phase busiest[] = {MS_RECOMPUTE, MS_BACKWARD, MS_OPTIMIZER, MS_FORWARD, MS_EVALUATION};
    uint64_t phase, path;
    pack_running(&pack, tick, &phase, &path);
    for (size_t i = 0; i < sizeof busiest / sizeof *busiest; i++) {
        ms_phase its_phase;
        ms_path its_path;
        uint32_t number;
        uint64_t id;
        bool any = false, same = false;
        for (size_t j = 0; ms_cursor_thread(cursor, j, &number, &id, &its_phase, &its_path); j++)
            if (its_phase == busiest[i]) {
                any = true;
                same |= its_path == path; /* the order of threads depends on where reading began */
            }
        if (!any)
            continue;
        CHECK_EQ(phase, busiest[i]);
        CHECK(same);
        return;
    }
    CHECK_EQ(phase, MS_IDLE);
    CHECK_EQ(path, MS_GLOBAL);
}

static void check_tick(uint64_t tick)
{
    CHECK_EQ(ms_cursor_seek(cursor, pack_moment(&pack, tick)), MS_OK);
    CHECK_EQ(ms_cursor_moment(cursor), pack_moment(&pack, tick));
    CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
    CHECK_EQ(pack_time(&pack, tick), ms_cursor_time(cursor));
    CHECK_EQ(pack_step(&pack, tick), ms_cursor_step(cursor));
    for (uint32_t device = 0; device < ms_reader_devices(reader); device++)
        CHECK_EQ(pack_reserved(&pack, tick, device), ms_cursor_reserved(cursor, device));
    check_blocks(tick);
    check_running(tick);
}

/* Check every tick that is a multiple of `every`, and the last one. Of two ticks with the same moment a cursor shows
 * the second. */
static void check_ticks(uint64_t every)
{
    for (uint64_t tick = 0; tick < pack.raw.ticks; tick += every)
        check_tick(pack_tick(&pack, pack_moment(&pack, tick)));
    check_tick(pack.raw.ticks - 1);
}

/* ---- by hand ---- */
TEST(a_pack_of_nothing_has_one_tick)
{
    begin_file();
    read_file();
    make_pack(0, UINT64_MAX);
    CHECK_EQ(pack.raw.ticks, 1);
    CHECK_EQ(pack.raw.lifetimes, 0);
    CHECK_EQ(pack_moment(&pack, 0), 1);
    free_pack();
    finish_file();
}

TEST(lifetimes_that_are_alike_share_a_template)
{
    begin_file();
    begin_events();
    for (uint32_t i = 0; i < 1000; i++) {
        file_add(&file, 7, 64, 0);
        file_drop(&file, 7);
    }
    file_add(&file, 7, 64, 1);
    end_events();
    read_file();
    make_pack(0, UINT64_MAX);
    CHECK_EQ(pack.raw.ticks, 2002);
    CHECK_EQ(pack.raw.lifetimes, 1001);
    CHECK_EQ(pack.raw.templates, 2);
    check_ticks(97);
    free_pack();
    finish_file();
}

TEST(a_later_claim_changes_a_lifetime_and_a_claim_from_now_on_begins_the_next)
{
    begin_file();
    begin_events();
    file_add(&file, 0, 100, 0);                      /* event 1 */
    file_claim(&file, 0, MS_PARAMETER, 2, 1, false); /* it has been so since 1 */
    file_claim(&file, 0, MS_OTHER, 3, 1, true);      /* event 3: from now on */
    file_claim(&file, 0, MS_GRADIENT, 4, 3, false);
    end_events();
    read_file();
    make_pack(0, UINT64_MAX);
    CHECK_EQ(pack.raw.lifetimes, 2);
    CHECK_EQ(pack.columns[MS_PACK_PREVIOUS].count, 2);
    ms_captured_block block;
    size_t at = 0;
    CHECK(pack_block(&pack, 1, &at, &block));
    CHECK_EQ(block.category, MS_PARAMETER);
    CHECK_EQ(block.path, 2);
    at = 0;
    CHECK(pack_block(&pack, 3, &at, &block));
    CHECK_EQ(block.category, MS_GRADIENT);
    CHECK_EQ(block.path, 4);
    check_ticks(1);
    free_pack();
    finish_file();
}

TEST(claims_after_the_last_moment_of_a_pack_count_in_it)
{
    begin_file();
    begin_events();
    file.later = 10;
    file_add(&file, 0, 100, 0);
    file_add(&file, 1, 100, 0);
    file_drop(&file, 1);
    end_events();
    begin_events();
    file_claim(&file, 0, MS_OPTSTATE, 2, 1, false);
    end_events();
    read_file();
    make_pack(2, 3);
    CHECK_EQ(pack.raw.ticks, 2);
    CHECK_EQ(pack_moment(&pack, 0), 2);
    ms_captured_block block;
    size_t at = 0;
    CHECK(pack_block(&pack, 0, &at, &block));
    CHECK_EQ(block.category, MS_OPTSTATE);
    CHECK_EQ(block.made_at, 10);
    check_ticks(1);
    free_pack();
    finish_file();
}

TEST(an_allocation_that_failed_is_in_a_pack)
{
    begin_file();
    begin_events();
    file_position(&file, MS_FORWARD, 3);
    file_oom(&file, 1, 1000, 20, 30);
    end_events();
    read_file();
    make_pack(0, UINT64_MAX);
    const uint64_t wanted[] = {2, 1, 1000, 20, 30, MS_FORWARD, 3};
    CHECK_EQ(pack.columns[MS_PACK_OOM].count, 7);
    CHECK(memcmp(pack.columns[MS_PACK_OOM].at, wanted, sizeof wanted) == 0);
    free_pack();
    finish_file();
}

TEST(times_in_a_pack_do_not_go_back_and_stay_below_two_to_the_53)
{
    begin_file();
    begin_events();
    file.later = 500;
    file_add(&file, 0, 1, 0);
    end_events();
    file.time = 20;
    file_key_begin(&file, (struct file_key){.lost = 1});
    for (int part = 0; part < 3; part++)
        file_varint(&file, 0);
    file_close(&file);
    begin_events();
    file.later = UINT64_C(1) << 60;
    file_add(&file, 0, 1, 0);
    end_events();
    read_file();
    make_pack(0, UINT64_MAX);
    CHECK_EQ(pack.raw.ticks, 4);
    CHECK_EQ(pack_time(&pack, 1), 500);
    CHECK_EQ(pack_time(&pack, 2), 500);
    CHECK_EQ(pack_time(&pack, 3), (UINT64_C(1) << 53) - 1);
    free_pack();
    finish_file();
}

/* ---- random runs ---- */
#ifdef __SANITIZE_THREAD__
#define RUNS 3u
#else
#define RUNS 40u
#endif

static struct model model;

static void check_model(uint64_t random)
{
    int fd = file_fd(&model.file);
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
    make_pack(0, UINT64_MAX);
    check_ticks(3);
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    free_pack();
    for (int i = 0; i < 4; i++) {
        uint64_t first = random_below(&random, model.file.event + 2);
        make_pack(first, first + random_below(&random, 200));
        check_ticks(7);
        free_pack();
    }
    ms_cursor_close(cursor);
    ms_reader_close(reader);
    close(fd);
    model_free(&model);
}

TEST(a_pack_of_a_random_capture_is_what_a_cursor_says)
{
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        model_run(&model, seed, 600, seed % 2, false, true);
        check_model(seed);
    }
}

TEST(a_pack_of_a_capture_with_losses_is_what_a_cursor_says)
{
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        model_run(&model, seed, 600, 1, true, seed % 2);
        check_model(seed);
    }
}

TEST(a_pack_of_a_damaged_capture_is_what_a_cursor_says)
{
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        uint64_t random = seed;
        model_run(&model, seed, 600, 1, seed % 3 == 0, true);
        for (int i = 0; i < 3; i++)
            model_damage(&model, 1 + (int)random_below(&random, (uint64_t)model.chunk_count - 1), random_next(&random));
        check_model(seed);
    }
}

/* ---- memory ---- */

/* Whether the nth allocation, and all later ones, could be refused. */
static bool refuse(int fd, long n, bool forever)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    ms_pack raw;
    CHECK_EQ(ms_reader_open(fd, &options, &reader), MS_OK);
    heap.refuse_at = heap.asked + n;
    heap.forever = forever;
    int error = ms_reader_pack(reader, 0, UINT64_MAX, &raw);
    CHECK_EQ(error, heap.refused ? MS_ENOMEM : MS_OK);
    if (!error)
        ms_pack_free(reader, &raw);
    ms_reader_close(reader);
    CHECK_EQ(heap.live, 0);
    return heap.refused;
}

TEST(every_allocation_of_a_pack_may_be_refused)
{
    model_run(&model, 3, 400, 1, true, true);
    int fd = file_fd(&model.file);
    for (int forever = 0; forever <= 1; forever++)
        for (long n = 1; refuse(fd, n, forever); n++)
            ;
    close(fd);
    model_free(&model);
}
