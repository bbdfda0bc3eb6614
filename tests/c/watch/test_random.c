/* test_random.c - long random runs, answer for answer against the model. */
#include "heap.h"
#include "play.h"
#include "random.h"
#include "runner.h"

#include <inttypes.h>
#include <stdlib.h>

#define BYTES 20000

static void fill(uint8_t *bytes, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)random_next(&seed);
}

/* Plays BYTES random bytes and checks every node there is; what the model counted, in *seen. */
static void run(uint64_t seed, uint32_t calls_kept, uint32_t threads_kept, unsigned bounds, struct model *seen)
{
    static uint8_t bytes[BYTES];
    fill(bytes, sizeof bytes, seed);
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    options.calls_kept = calls_kept;
    options.threads_kept = threads_kept;
    struct play play;
    CHECK(play_open(&play, &options));
    play_bytes(&play, bytes, sizeof bytes, bounds);
    play_finish(&play);
    if (play.model.failed)
        FAIL("seed %" PRIu64 ": %s", seed, play.model.wrong);
    CHECK_EQ(ms_watch_lost(play.model.watch), 0);
    CHECK(play.model.known > 1000);
    *seen = play.model;
    play_close(&play);
    CHECK_EQ(heap.live, 0);
}

/* The ring never wraps, so the core must answer everything as the model does. */
TEST(random_events_with_a_big_ring_are_never_unknown)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct model seen;
        run(seed, 1 << 17, 100000, 0, &seen);
        CHECK_EQ(seen.unknowns, 0);
    }
}

TEST(random_events_with_a_small_ring_are_right_or_too_old)
{
    uint64_t unknowns = 0;
    for (uint64_t seed = 100; seed < 140; seed++) {
        struct model seen;
        run(seed, 256, 0, PLAY_SHALLOW | PLAY_FOREVER, &seen);
        CHECK(seen.known > seen.unknowns / 100);
        unknowns += seen.unknowns;
    }
    CHECK(unknowns > 0);
}

TEST(random_events_on_deep_stacks_are_right_or_too_old)
{
    for (uint64_t seed = 200; seed < 240; seed++) {
        struct model seen;
        run(seed, 256, 0, PLAY_FOREVER, &seen);
    }
}

TEST(random_events_with_threads_that_end_are_right_or_discarded)
{
    for (uint64_t seed = 300; seed < 340; seed++) {
        struct model seen;
        run(seed, 1 << 17, 3, PLAY_SHALLOW, &seen);
    }
}

TEST(random_events_with_everything_small_are_right_or_unknown)
{
    for (uint64_t seed = 400; seed < 440; seed++) {
        struct model seen;
        run(seed, 256, 2, 0, &seen);
    }
}
