/* backward_spans.h - which backward spans are open while a node runs. */
#ifndef MS_BACKWARD_SPANS_H
#define MS_BACKWARD_SPANS_H

#include "core/ledger/call_spans.h"

/* The thread's innermost call is the latest call of `path`. Store beside its record where its stats are, so that the
 * nodes created in it open backward spans for it. */
bool ms__call_refs_alloc(ms_ledger *ledger, struct ms__call_ring *ring);
MS__INLINE void ms__call_ref_store(ms_ledger *ledger, ms_thread *thread, const struct ms__path_stats *path)
{
    struct ms__call_ring *ring = &thread->ring;
    const struct ms__frame *frame = &thread->frames[thread->depth - 1];
    if (frame->record >= MS__UNRECORDED || !path->forward.count)
        return;
    if (MS__UNLIKELY(!ring->call_refs) && !ms__call_refs_alloc(ledger, ring))
        return;
    ring->call_refs[frame->record & (ring->capacity - 1)] =
        (struct ms__packed_call_ref){(uint32_t)path->iteration, path->forward.count - 1, frame->path};
}

/* A node of `creator`, created in the call of `record` (MS__NONE: in no known call), begins to run while `level` nodes
 * are open, it included. Pop the backward spans of this level that it is not in, and push those that it is in: its
 * call and the calls around it. A span for which memory runs out is counted as lost. */
void ms__spans_move_to_node(ms_ledger *ledger, struct ms__thread_spans *spans, ms_thread *creator, uint64_t record,
                            uint32_t level);

#endif
