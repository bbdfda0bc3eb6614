/* fuzz_events.c - any bytes, as events on a few threads, against the model. */
#include "fuzz.h"
#include "heap.h"
#include "play.h"

/* The first two bytes choose the options' limits and which allocation fails. */
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
            fuzz_fail(play.model.wrong);
        if ((ms_watch_lost(play.model.watch) > 0) != (play.model.errors > 0))
            fuzz_fail("what was lost is not what was refused");
    }
    play_close(&play);
    if (heap.live)
        fuzz_fail("memory leaked");
    return 0;
}
