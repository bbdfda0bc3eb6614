/* test_ledger.c - what a ledger was told, captured and read back, is what the ledger says: now and
 * when most was block, by device, path and category. */
#define _GNU_SOURCE /* memfd_create */
#include "ledger/ledger_play.h"
#include "modscope_capture.h"
#include "random.h"
#include "runner.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static ms_watch *watch;
static ms_ledger *ledger;
static ms_peak_tracker *viewer;
static ms_capture *capture;
static ms_reader *reader;
static ms_cursor *cursor;
static int fd;

static void begin(void)
{
    fd = memfd_create("capture", 0);
    CHECK(fd >= 0);
    viewer = ms_peak_tracker_open(ledger);
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
    CHECK_EQ(ms_reader_get_status(reader).damaged, 0);
    CHECK_EQ(ms_reader_get_status(reader).lost, 0);
    ms_cursor_close(cursor);
    ms_reader_close(reader);
}

/* ---- comparing ---- */
static ms_sums of_path(uint32_t device, ms_path path)
{
    ms_sums sums = {{0}};
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);)
        if (block.device == device && block.path == path)
            sums.of[block.category] += (int64_t)block.bytes;
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
                   peak ? ms_peak_tracker_peak_of(viewer, device, path) : ms_ledger_now_of(ledger, device, path), when,
                   device, path);
}

static void check_now(void)
{
    CHECK_EQ(ms_cursor_seek(cursor, UINT64_MAX), MS_OK);
    CHECK_EQ(ms_cursor_blocks(cursor), ms_ledger_blocks(ledger));
    CHECK_EQ(ms_cursor_step(cursor), ms_ledger_step(ledger));
    for (uint32_t device = 0; device < ms_ledger_devices(ledger); device++) {
        check_sums(ms_cursor_now(cursor, device), ms_ledger_now(ledger, device), "in all", device, 0);
        check_held(device, false);
    }
}

static void check_peaks(void)
{
    static ms_survey survey;
    CHECK_EQ(ms_reader_survey(reader, &survey, NULL, NULL), MS_OK);
    CHECK(!survey.is_lower_bound);
    for (uint32_t device = 0; device < ms_ledger_devices(ledger); device++) {
        ms_peak peak = ms_peak_tracker_peak(viewer, device);
        CHECK_EQ(survey.peaks[device].bytes, peak.bytes);
        if (!peak.bytes)
            continue;
        CHECK_EQ(survey.peaks[device].step, peak.step);
        CHECK_EQ(survey.peaks[device].phase, peak.phase);
        CHECK_EQ(ms_cursor_seek(cursor, survey.peaks[device].moment), MS_OK);
        CHECK_EQ(ms_cursor_apply_later_claims(cursor), MS_OK);
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
    CHECK(ms_reader_get_status(reader).ended);
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

/* ---- long enough for key frames ---- */
enum { LIVE = 300, PATHS = 7, LONG = 600000 };

static ms_path paths[PATHS];
static uint64_t live[LIVE];

static void change(ms_thread *thread, uint64_t *random)
{
    uint64_t at = random_below(random, LIVE);
    if (random_below(random, 10) == 0) {
        ms_block_claim(ledger, at, (ms_category)random_below(random, MS_CATEGORY_COUNT), paths[at % PATHS]);
    } else if (live[at]) {
        CHECK_EQ(ms_block_drop(ledger, at), MS_OK);
        live[at] = 0;
    } else {
        live[at] = 1 + random_below(random, 10000);
        CHECK_EQ(ms_block_add(ledger, thread, at, live[at], at % 2), MS_OK);
    }
}

/* Bytes by device at a moment. */
struct then {
    uint64_t moment;
    ms_sums sums[2];
};

static void run_long(ms_thread *thread, struct then *then, int count)
{
    uint64_t random = 1;
    for (int part = 0; part < count; part++) {
        for (int i = 0; i < LONG / count; i++) {
            if (i % 50 == 25)
                ms_call_enter(thread, paths[random_below(&random, PATHS)], 0);
            change(thread, &random);
            if (i % 50 == 45)
                ms_call_leave(thread, 0);
            if (i % 3000 == 1000)
                ms_optimizer_enter(thread);
            if (i % 3000 == 1010)
                ms_optimizer_leave(thread);
        }
        ms_capture_flush(capture);
        open_file();
        then[part] =
            (struct then){ms_reader_get_status(reader).events, {ms_ledger_now(ledger, 0), ms_ledger_now(ledger, 1)}};
        close_file();
    }
}

TEST(a_long_capture_is_right_at_every_moment_whatever_key_frame_it_begins_at)
{
    enum { PARTS = 40 };
    static struct then then[PARTS];
    watch = ms_watch_open(NULL);
    for (int i = 0; i < PATHS; i++) {
        char name[] = {(char)('a' + i), 0};
        CHECK_EQ(ms_path_add(watch, MS_GLOBAL, name, &paths[i]), MS_OK);
    }
    ledger = ms_ledger_open(watch);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    ms_thread *thread = ms_thread_open(watch, 9);
    begin();
    run_long(thread, then, PARTS);
    CHECK_EQ(ms_capture_get_status(capture).lost, 0);
    ms_capture_end(capture, NULL);
    open_file();
    check_now();
    check_peaks();
    for (int part = 0; part < PARTS; part++) {
        int at = part * 17 % PARTS;
        CHECK_EQ(ms_cursor_seek(cursor, then[at].moment), MS_OK);
        CHECK_EQ(ms_cursor_moment(cursor), then[at].moment);
        for (uint32_t device = 0; device < 2; device++)
            check_sums(ms_cursor_now(cursor, device), then[at].sums[device], "then", device, 0);
    }
    close_file();
    close(fd);
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    ms_watch_close(watch);
}
