/* test_random.c - long random runs of a ledger; every figure is compared with the model. */
#include "ledger_play.h"
#include "random.h"
#include "runner.h"

#include <inttypes.h>

#define BYTES 6000

/* One OS thread drives all of them, so the thread sanitizer would only be slow. */
#ifdef __SANITIZE_THREAD__
#define RUNS 4
#else
#define RUNS 25
#endif

/* Plays BYTES random bytes, and adds to *seen what the model counted. */
static void run(uint64_t seed, unsigned bounds, struct ledger_model *seen)
{
    static uint8_t bytes[BYTES];
    uint64_t state = seed;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random_next(&state);
    struct heap heap = {0};
    static struct ledger_play play;
    CHECK(ledger_play_open(&play, &heap, bounds));
    ledger_play_bytes(&play, bytes, sizeof bytes, 40);
    ledger_play_finish(&play);
    if (play.model.failed)
        FAIL("seed %" PRIu64 ": %s", seed, play.model.wrong);
    CHECK_EQ(ms_ledger_lost(play.model.ledger), 0);
    *seen = play.model;
    ledger_play_close(&play);
    CHECK_EQ(heap.live, 0);
}

static void run_all(uint64_t first, int count, unsigned bounds)
{
    uint64_t peaks = 0, backwards = 0, calls = 0;
    for (int i = 0; i < count; i++) {
        static struct ledger_model seen;
        run(first + (uint64_t)i, bounds, &seen);
        peaks += seen.peaks_made;
        backwards += seen.backwards;
        calls += seen.call_count;
        CHECK_EQ(seen.block_count, 0);
    }
    /* The runs did reach peaks and backwards. */
    CHECK(peaks > 20 * (uint64_t)count);
    CHECK(calls > 100 * (uint64_t)count);
    CHECK(!(bounds & LEDGER_PLAY_PLAIN) || backwards > 20 * (uint64_t)count);
}

TEST(random_blocks_and_calls_of_one_thread_agree_with_the_model)
{
    run_all(1, RUNS, LEDGER_PLAY_ALONE | LEDGER_PLAY_PLAIN | LEDGER_PLAY_FOREVER);
}

TEST(random_blocks_and_calls_of_several_threads_agree_with_the_model)
{
    run_all(100, RUNS, LEDGER_PLAY_PLAIN | LEDGER_PLAY_FOREVER);
}

TEST(random_blocks_and_calls_with_threads_that_end_agree_with_the_model)
{
    run_all(200, RUNS, LEDGER_PLAY_PLAIN);
}

TEST(random_blocks_and_calls_with_any_node_agree_with_the_model)
{
    run_all(300, RUNS / 2, 0);
}
