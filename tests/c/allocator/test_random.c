/* test_random.c - random requests and frees, with random settings: the model decides as the slow one does. */
#include "heap.h"
#include "play_allocator.h"
#include "random.h"
#include "runner.h"

#include <string.h>

static void fill(uint8_t *bytes, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)random_next(&seed);
}

TEST(random_requests_are_decided_as_the_slow_model_decides)
{
    uint8_t bytes[2400];
    for (uint64_t seed = 0; seed < 60; seed++) {
        fill(bytes, sizeof bytes, seed);
        const char *wrong = play_allocator(bytes, sizeof bytes, NULL);
        if (wrong)
            FAIL("seed %llu: %s", (unsigned long long)seed, wrong);
    }
}

TEST(every_setting_alone_is_decided_as_the_slow_model_decides)
{
    uint8_t bytes[700];
    for (uint64_t seed = 0; seed < 256; seed++) {
        fill(bytes, sizeof bytes, seed);
        bytes[0] = (uint8_t)seed;
        const char *wrong = play_allocator(bytes, sizeof bytes, NULL);
        if (wrong)
            FAIL("settings %llu: %s", (unsigned long long)seed, wrong);
    }
}

TEST(memory_that_runs_out_leaks_nothing_and_breaks_nothing)
{
    uint8_t bytes[900];
    fill(bytes, sizeof bytes, 5);
    bool ended = false;
    for (long n = 1; n < 40 && !ended; n++) {
        struct heap heap = {.refuse_at = n, .forever = true};
        ms_options options = heap_options(&heap);
        const char *wrong = play_allocator(bytes, sizeof bytes, &options);
        if (wrong && strcmp(wrong, "memory ran out") != 0)
            FAIL("refusing allocation %ld: %s", n, wrong);
        CHECK_EQ(heap.live, 0);
        ended = !wrong;
    }
    CHECK(ended);
}
