/* fuzz_events.c - any bytes, as events on a few threads, against the model.
 *
 * With libFuzzer it is a target; with -DFUZZ_STANDALONE a program that makes its own
 * inputs: fuzz_events [INPUTS [SEED]]. */
#include "heap.h"
#include "play.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static long input; /* which of the standalone program's own */

static void fail(const char *reason)
{
    fprintf(stderr, "input %ld: %s\n", input, reason);
    abort();
}

/* The first two bytes choose how small the tables are and which allocation is refused. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 2)
        return 0;
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    options.calls_kept = bytes[0] & 1 ? 256 : 1024;
    options.threads_kept = bytes[0] & 2 ? 3 : 0;
    heap.refuse_at = bytes[0] & 4 ? 1 + bytes[1] % 80 : 0;
    heap.forever = bytes[0] & 8;
    struct play play;
    if (play_open(&play, &options)) {
        play_bytes(&play, bytes + 2, count - 2, 0);
        play_finish(&play);
        if (play.model.failed)
            fail(play.model.wrong);
        if ((ms_lost(play.model.watch) > 0) != (play.model.errors > 0))
            fail("what was lost is not what was refused");
    }
    play_close(&play);
    if (heap.live)
        fail("memory leaked");
    return 0;
}

#ifdef FUZZ_STANDALONE
int main(int argc, char **argv)
{
    long inputs = argc > 1 ? strtol(argv[1], NULL, 10) : 2000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static uint8_t bytes[4096];
    for (input = 0; input < inputs; input++) {
        uint64_t state = seed + (uint64_t)input;
        size_t count = random_below(&state, sizeof bytes);
        for (size_t at = 0; at < count; at++)
            bytes[at] = (uint8_t)random_next(&state);
        LLVMFuzzerTestOneInput(bytes, count);
    }
    printf("%ld inputs agree with the model\n", inputs);
    return 0;
}
#endif
