/* ledger.h - the ledger itself. Its fields are guarded by ledger->lock, except where another guard is named.
 *
 * The files of this folder depend on each other in one direction:
 *
 *   call_events.c    -> backward_spans.h -> call_spans.h -> call_stats.h -> ledger.h
 *   call_snapshots.c ---------------------> call_spans.h
 *   blocks.c         ---------------------> call_spans.h, reported_backwards.h -> call_stats.h
 *   blocks.c, oom_report.c, check.c ------> peaks.h -> ledger.h
 *                                                      ledger.h -> totals.h, block_table.h */
#ifndef MS_LEDGER_H
#define MS_LEDGER_H

#include "core/ledger/block_table.h"
#include "core/ledger/totals.h"
#include "core/lock.h"
#include "core/watch/watch.h"
#include "modscope_capture.h"

struct ms_ledger {
    /* What every block event reads comes first, so that it is in few cache lines. */
    struct ms__lock lock;
    _Atomic bool attached;               /* written with watch->lock held, too */
    _Atomic bool without_call_snapshots; /* see ms_ledger_keep_call_snapshots */
    bool claiming;                       /* between ms_claims_begin and ms_claims_end */
    uint8_t claim_pass;                  /* number of the latest ms_claims_begin; it wraps */
    uint8_t kept;                        /* bit i: this pass keeps the unclaimed blocks of category i */
    uint32_t device_count;
    uint32_t reported_backward_count;
    uint64_t time; /* number of changes so far */
    ms_peak_tracker *trackers;
    _Atomic(ms_capture *) captures; /* those that record this ledger; written with the lock held */
    struct ms__thread_spans *threads;
    ms_watch *watch;
    uint64_t step;
    uint64_t collectives; /* how many captures have noted */
    struct ms__noted_inputs {
        ms_input largest; /* of the root calls in forward of this step */
        ms_input before;  /* of the steps before; without dimensions if nothing is known of them */
        uint64_t step;    /* 0: none was noted */
    } inputs;
    struct ms__block_table blocks;
    struct ms__device_totals totals[MS_MAX_DEVICES];

    _Atomic uint64_t lost;
    bool optimizer_expected;      /* an optimizer step was entered or announced */
    bool step_open;               /* see ms_ledger_step */
    struct ms__turns {            /* of several optimizers (ms_ledger_expect_optimizers) */
        uint64_t stepped[8];      /* those that have stepped since the latest step ended */
        uint32_t count, expected; /* expected <= 1: they do not step in turn */
        bool lack_order;          /* one stepped again before all others had */
        bool ended;               /* the latest optimizer step ended the step */
    } turns;
    uint32_t iteration_root_calls;      /* root calls of the latest iteration */
    uint64_t iteration;                 /* the number of the latest iteration (call_stats.h) */
    uint64_t parameters_dropped;        /* buffers count, too */
    ms_sums outside[MS_MAX_DEVICES];    /* the part of the totals that is from outside the allocator */
    uint64_t reserved[MS_MAX_DEVICES];  /* what the device's allocator reported last */
    struct ms__path_stats **path_stats; /* by path / MS__PATHS_PER_CHUNK */
    uint32_t path_stats_room;
    uint32_t reported_backward_room;
    struct ms__call_ref *reported_backwards; /* see reported_backwards.h */
    ms_ledger *next;                         /* the next closed ledger of the watch; guarded by watch->lock */
};

/* Whether any capture records this ledger. */
static inline bool ms__captured(const ms_ledger *ledger)
{
    return MS__UNLIKELY(MS__PEEK(ledger->captures) != NULL);
}

/* Whether the calls of this ledger have spans and stats. */
static inline bool ms__keeps_call_snapshots(const ms_ledger *ledger)
{
    return !MS__PEEK(ledger->without_call_snapshots);
}

static inline void ms__ledger_count_lost(ms_ledger *ledger)
{
    atomic_fetch_add_explicit(&ledger->lost, 1, memory_order_relaxed);
}

#endif
