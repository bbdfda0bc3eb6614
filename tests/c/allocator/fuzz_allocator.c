/* fuzz_allocator.c - any bytes, as settings, requests and frees, against the slow model. */
#include "fuzz.h"
#include "heap.h"
#include "play_allocator.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct heap heap = {0};
    ms_options options = heap_options(&heap);
    const char *wrong = play_allocator(bytes, count < 3000 ? count : 3000, &options);
    if (wrong)
        fuzz_fail(wrong);
    if (heap.live)
        fuzz_fail("memory leaked");
    return 0;
}
