/* stack_code.h - how the stacks of blocks are encoded, which the writer and the reader share.
 *
 * Programs repeat themselves, so the stack of the next block is mostly the one that followed the latest two stacks the
 * last time. For a run of blocks whose stacks are predicted in this way, only its length is stored:
 *
 *     2 * n + 1     the next n + 1 blocks have the stacks that are predicted
 *     2 * stack     the next block has this stack */
#ifndef MS_STACK_CODE_H
#define MS_STACK_CODE_H

#include "core/capture/format.h"

enum { MS__STACK_PREDICTIONS = 4096, MS__STACK_CODE_MAX = 10 /* bytes for a block, the run before it included */ };

/* What was seen so far in a chunk; all zero at its start. */
struct ms__stack_history {
    ms_stack latest, before; /* the stacks of the latest block, and of the one before it */
    ms_stack next[MS__STACK_PREDICTIONS];
};

/* Where the prediction for the next block is. */
MS__INLINE ms_stack *ms__stack_prediction(struct ms__stack_history *history)
{
    uint32_t hash = (history->latest * 0x9E3779B1u) ^ (history->before * 0x85EBCA6Bu);
    return &history->next[(hash >> 16) % MS__STACK_PREDICTIONS];
}

/* The next block has this stack. `prediction`: as ms__stack_prediction gave it. */
MS__INLINE void ms__stack_follow(struct ms__stack_history *history, ms_stack *prediction, ms_stack stack)
{
    *prediction = stack;
    history->before = history->latest;
    history->latest = stack;
}

#endif
