/* fuzz_ledger.c - any bytes, as blocks, calls and nodes on a few threads, against the ledger's model.
 *
 * With libFuzzer it is a target; with -DFUZZ_STANDALONE a program that makes its own
 * inputs: fuzz_ledger [INPUTS [SEED]]. */
#include "ledger_play.h"
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

/* The first two bytes choose what may happen and which allocation is refused. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 2)
        return 0;
    struct heap heap = {.refuse_at = bytes[0] & 16 ? 1 + bytes[1] % 80 : 0, .forever = bytes[0] & 32};
    unsigned bounds = bytes[0] & (LEDGER_PLAY_ALONE | LEDGER_PLAY_PLAIN | LEDGER_PLAY_FOREVER);
    static struct ledger_play play;
    if (ledger_play_open(&play, &heap, heap.refuse_at ? bounds | LEDGER_PLAY_FOREVER : bounds)) {
        ledger_play_bytes(&play, bytes + 2, count - 2, 16);
        ledger_play_finish(&play);
        if (play.model.failed)
            fail(play.model.wrong);
        if (ms_ledger_lost(play.model.ledger) && !heap.refused)
            fail("something was lost and nothing was refused");
        if (play.model.refused && !ms_ledger_lost(play.model.ledger))
            fail("something was refused and nothing was lost");
    } else if (!heap.refused) {
        fail("the ledger could not be opened");
    }
    ledger_play_close(&play);
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
