/* call_spans.h - call spans: the parts of a thread's time whose peaks are recorded.
 *
 * Each thread has a stack of open spans. In the forward of a root call, while a nested call is open:
 *
 *            path                                     kind                level  frame  peak
 *   open[1]  Block  a nested call                     MS__SPAN_FORWARD    0      2      peaks[1]   <-- innermost
 *   open[0]  Model  the root call                     MS__SPAN_FORWARD    0      1      peaks[0]
 *
 * In its backward, while a node that was created in Block's call runs, and recomputes Block (checkpointing):
 *
 *   open[2]  Block  its forward runs again            MS__SPAN_RECOMPUTE  0      2      peaks[2]   <-- innermost
 *   open[1]  Block  a node created in its call runs   MS__SPAN_BACKWARD   1             peaks[1]
 *   open[0]  Model  Block's call was inside its call  MS__SPAN_BACKWARD   1             peaks[0]
 *
 * A new total is compared only with the innermost span's peak. When a span is popped, its peak passes to the span
 * around it:
 *
 *   pop open[i]:  peaks[i - 1] = max(peaks[i - 1], peaks[i]), and the call stats of open[i] get peaks[i]
 *
 * So at all times, the peak of open[i] so far = max over k >= i of peaks[k].
 *
 * A backward span stays on the stack when its node is left, because the next node is usually of the same call. It is
 * popped when the thread does something else: it begins a node of another call, enters or leaves a call, or begins or
 * ends an optimizer step. Until then the span is suspended: level > nodes_open. New totals are compared with the
 * innermost span that is not suspended. */
#ifndef MS_CALL_SPANS_H
#define MS_CALL_SPANS_H

#include "core/ledger/call_stats.h"

enum ms__span_kind { MS__SPAN_FORWARD, MS__SPAN_RECOMPUTE, MS__SPAN_BACKWARD };

struct ms__span {
    uint64_t record;  /* backward: the call's record in the creator's call ring */
    uint64_t creator; /* backward: the id of the thread that created the nodes */
    struct ms__call_ref call;
    uint32_t kind;
    uint32_t frame;     /* forward, recompute: the thread's depth while it is the innermost call */
    uint32_t level;     /* backward: how many nodes are open while a node of it runs; else 0 */
    bool began_earlier; /* backward: it began, ended and began again */
};

struct ms__span_peak { /* on one device */
    int64_t total;
    ms_sums sums;
};

/* The spans of one thread at a ledger. */
struct ms__thread_spans {
    /* What every block event reads. */
    struct ms__thread_spans *next;
    struct ms__span_peak *innermost_peak; /* by device; NULL: no span is open */
    uint32_t innermost_level;             /* of the innermost span */
    _Atomic uint32_t nodes_open;          /* of the thread, which alone writes it */
    uint32_t devices;                     /* for which each span has a peak */
    uint32_t count, room;                 /* of `open` */
    uint32_t node_calls_room;
    _Atomic bool added_between_nodes; /* a block was added since the latest node was left */

    _Atomic(ms_ledger *) ledger;           /* NULL: none, the ledger was detached */
    struct ms__span *open;                 /* innermost last */
    struct ms__span_peak *peaks;           /* span * devices + device */
    struct ms__span_peak *after_last_node; /* by device: what was allocated when the latest node was left */
    struct ms__span *node_calls;           /* scratch memory of backward_spans.c */
    uint64_t iteration;                    /* of the thread's latest root call; 0: it had none since attaching */
    /* The node that ran last. As long as the next one is of the same call, the spans stay as they are. */
    _Atomic uint64_t last_record;
    uint64_t last_creator; /* the thread alone uses it */
    uint32_t last_level;   /* the thread alone uses it */
};

static inline struct ms__span_peak *ms__span_peaks(const struct ms__thread_spans *spans, uint32_t index)
{
    return spans->peaks + (size_t)index * spans->devices;
}

/* The stats of the span's call; NULL if its path was called in a later iteration. */
static inline struct ms__call_stats *ms__span_stats(const ms_ledger *ledger, const struct ms__span *span)
{
    return ms__call_stats_find(ledger, &span->call, span->kind == MS__SPAN_RECOMPUTE);
}

/* The thread's spans at this ledger, with room for one more. NULL when memory runs out, which is counted as lost, or if
 * the ledger is not attached. */
struct ms__thread_spans *ms__thread_spans_get(ms_ledger *ledger, ms_thread *thread);
/* End all open spans: the thread ends. */
void ms__thread_spans_detach(ms_ledger *ledger, struct ms__thread_spans *spans);
/* End all open spans of all threads: the ledger is detached. */
void ms__spans_detach_all(ms_ledger *ledger);
/* End all open spans of all threads, which stay at the ledger: it keeps no call snapshots any more. */
void ms__spans_end_all(ms_ledger *ledger);
/* Free the thread's spans, which are at no ledger any more. */
void ms__thread_spans_free(ms_thread *thread);

/* Make room for one more span and for every known device. False when memory runs out: nothing changed. */
bool ms__spans_reserve(struct ms__thread_spans *spans);
/* Push a span. Its peak begins at what is allocated now. There is room. */
void ms__span_push(ms_ledger *ledger, struct ms__thread_spans *spans, const struct ms__span *span);
/* Pop the innermost span, a call's. */
void ms__span_pop_call(ms_ledger *ledger, struct ms__thread_spans *spans);
/* Pop the innermost span, a backward's. It ended when the latest node was left. */
void ms__span_pop_backward(ms_ledger *ledger, struct ms__thread_spans *spans);
/* Raise the innermost span's peak to what is allocated now, where that is more. */
void ms__span_raise(const ms_ledger *ledger, struct ms__thread_spans *spans);
/* A node is left: save what is allocated now, in case it is the last node of its backward spans. */
void ms__spans_save_node_end(ms_ledger *ledger, struct ms__thread_spans *spans);
/* Pop the innermost spans that are backward spans of a level above this one: no node of them is open. */
void ms__spans_pop_above(ms_ledger *ledger, struct ms__thread_spans *spans, uint32_t level);
/* Write to the call stats what the open spans know: backwards that are over, and peaks so far. */
void ms__spans_update_stats(ms_ledger *ledger);

/* A device's total grew: compare it with the innermost peak of each thread. ms__span_grow is for rare cases. */
void ms__span_grow(ms_ledger *ledger, struct ms__thread_spans *spans, uint32_t device);
MS__INLINE void ms__spans_grow(ms_ledger *ledger, uint32_t device)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    for (struct ms__thread_spans *spans = ledger->threads; spans; spans = spans->next) {
        if (!spans->innermost_peak)
            continue;
        if (MS__UNLIKELY(device >= spans->devices || spans->innermost_level > MS__PEEK(spans->nodes_open))) {
            ms__span_grow(ledger, spans, device);
            continue;
        }
        struct ms__span_peak *peak = &spans->innermost_peak[device];
        if (totals->total > peak->total)
            *peak = (struct ms__span_peak){totals->total, totals->now};
    }
}

#endif
