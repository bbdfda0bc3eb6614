/* test_capture_ledger.c - what a ledger was told, captured and read back, is what the ledger says: now and
 * when most was held, by device, path and category. */
#define _GNU_SOURCE /* memfd_create */
#include "ledger_play.h"
#include "modscope_capture.h"
#include "random.h"
#include "runner.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static ms_watch *watch;
static ms_ledger *ledger;
static ms_viewer *viewer;
static ms_capture *capture;
static ms_reader *reader;
static ms_cursor *cursor;
static int fd;

static void begin(void)
{
    fd = memfd_create("capture", 0);
    CHECK(fd >= 0);
    viewer = ms_viewer_open(ledger);
    CHECK(viewer);
    CHECK_EQ(ms_capture_begin(ledger, fd, NULL, &capture), MS_OK);
}

static void open_file(void)
{
    CHECK_EQ(ms_reader_open(fd, NULL, &reader), MS_OK);
    CHECK_EQ(ms_cursor_open(reader, &cursor), MS_OK);
}

static void close_file(void)
{
    CHECK_EQ(ms_reader_now(reader).damaged, 0);
    CHECK_EQ(ms_reader_now(reader).lost, 0);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
}

/* ---- the same? ---- */
static ms_sums of_path(uint32_t device, ms_path path)
{
    ms_sums sums = {{0}};
    ms_held held;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &held);)
        if (held.device == device && held.path == path)
            sums.of[held.category] += (int64_t)held.bytes;
    return sums;
}

static void check_sums(ms_sums got, ms_sums wanted, const char *when, uint32_t device, ms_path path)
{
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        if (got.of[i] != wanted.of[i])
            FAIL("%s, device %u, path %u, %s: %lld bytes, not %lld", when, device, path, ms_category_name(i),
                 (long long)got.of[i], (long long)wanted.of[i]);
}

/* At the cursor, or (peak) at the viewer's peak. */
static void check_held(uint32_t device, bool peak)
{
    const char *when = peak ? "at the peak" : "now";
    for (ms_path path = 0; path < ms_path_count(watch); path++)
        check_sums(of_path(device, path),
                   peak ? ms_viewer_peak_of(viewer, device, path) : ms_ledger_now_of(ledger, device, path), when,
                   device, path);
}

static void check_now(void)
{
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_blocks(cursor), ms_ledger_blocks(ledger));
    CHECK_EQ(ms_cursor_step(cursor), ms_ledger_iteration(ledger));
    for (uint32_t device = 0; device < ms_ledger_devices(ledger); device++) {
        check_sums(ms_cursor_now(cursor, device), ms_ledger_now(ledger, device), "in all", device, 0);
        check_held(device, false);
    }
}

static void check_peaks(void)
{
    static ms_survey survey;
    CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
    CHECK(!survey.unsure);
    for (uint32_t device = 0; device < ms_ledger_devices(ledger); device++) {
        ms_peak peak = ms_viewer_peak(viewer, device);
        CHECK_EQ(survey.summit[device].bytes, peak.bytes);
        if (!peak.bytes)
            continue;
        CHECK_EQ(survey.summit[device].step, peak.iteration);
        CHECK_EQ(survey.summit[device].phase, peak.phase);
        CHECK_EQ(ms_cursor_seek(cursor, survey.summit[device].moment), MS_OK);
        CHECK_EQ(ms_cursor_settle(cursor), MS_OK);
        check_held(device, true);
    }
}

/* ---- random ledgers ---- */
static void play_some(struct ledger_play *play, uint64_t *random, size_t count)
{
    uint8_t bytes[400];
    CHECK(count <= sizeof bytes);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)random_next(random);
    ledger_play_bytes(play, bytes, count, 1 << 20);
}

static void run(uint64_t seed)
{
    static struct ledger_play play;
    struct heap heap = {0};
    CHECK(ledger_play_open(&play, &heap, seed % 2 ? LEDGER_PLAY_FOREVER : 0));
    watch = play.model.watch;
    ledger = play.model.ledger;
    uint64_t random = seed;
    play_some(&play, &random, random_below(&random, 200)); /* what is there already when it begins */
    begin();
    for (int part = 0; part < 5; part++) {
        play_some(&play, &random, 400);
        ms_capture_flush(capture);
        open_file();
        check_now();
        check_peaks();
        close_file();
    }
    ms_capture_end(capture, NULL);
    open_file();
    CHECK(ms_reader_now(reader).ended);
    check_peaks();
    close_file();
    close(fd);
    ledger_play_close(&play);
}

#ifdef __SANITIZE_THREAD__
#define RUNS 5u
#else
#define RUNS 40u
#endif

TEST(a_random_ledger_is_read_back_as_it_is_and_as_it_was_at_its_peaks)
{
    for (uint64_t seed = 1; seed <= RUNS; seed++)
        run(seed);
}
