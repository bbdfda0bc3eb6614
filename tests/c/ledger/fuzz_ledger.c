/* fuzz_ledger.c - any bytes, as blocks, calls and nodes on a few threads, against the ledger's model. */
#include "fuzz.h"
#include "ledger_play.h"

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
            fuzz_fail(play.model.wrong);
        if (ms_ledger_lost(play.model.ledger) && !heap.refused)
            fuzz_fail("something was lost and nothing was refused");
        if (play.model.refused && !ms_ledger_lost(play.model.ledger))
            fuzz_fail("something was refused and nothing was lost");
    } else if (!heap.refused) {
        fuzz_fail("the ledger could not be opened");
    }
    ledger_play_close(&play);
    if (heap.live)
        fuzz_fail("memory leaked");
    return 0;
}
