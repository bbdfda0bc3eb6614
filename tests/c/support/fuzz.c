/* fuzz.c - what the fuzz targets share, and, with -DFUZZ_STANDALONE, a program that makes its own
 * inputs where there is no libFuzzer: [INPUTS [SEED]]. */
#include "fuzz.h"

#include "random.h"

#include <stdio.h>
#include <stdlib.h>

static long input; /* the number of the input, in the standalone program */

void fuzz_fail(const char *reason)
{
    fprintf(stderr, "input %ld: %s\n", input, reason);
    abort();
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
