/* ledger_play.h - bytes as events of a ledger: any string of bytes is a program that the model
 * can run. The fuzzer and the seeded tests feed the same player. */
#ifndef MS_TEST_LEDGER_PLAY_H
#define MS_TEST_LEDGER_PLAY_H

#include "heap.h"
#include "ledger_model.h"

enum ledger_play_bounds {
    LEDGER_PLAY_ALONE = 1,  /* one thread */
    LEDGER_PLAY_PLAIN = 2,  /* no node whose backward the header does not define */
    LEDGER_PLAY_FOREVER = 4 /* threads do not end, and the ledger stays attached */
};

struct ledger_play {
    struct ledger_model model;
    uint32_t current; /* thread */
    unsigned bounds;
};

/* Open the watch with memory, then the ledger with what `heap` refuses. False if the ledger could not be opened. */
bool ledger_play_open(struct ledger_play *play, struct heap *heap, unsigned bounds);
void ledger_play_close(struct ledger_play *play);
/* Run the bytes to their end, and check every figure after each `between` events. Stops at the first wrong figure. */
void ledger_play_bytes(struct ledger_play *play, const uint8_t *bytes, size_t count, int between);
/* Leaves everything that is open, drops every block, and checks everything before and after. */
void ledger_play_finish(struct ledger_play *play);

#endif
