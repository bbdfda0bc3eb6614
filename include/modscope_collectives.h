/* modscope_collectives.h - the collectives of torch.distributed in captures: what a rank sent and received, for which
 * module, and when.
 *
 * A collective's bytes are the larger of what the rank puts in and what it gets out: of an all-gather the gathered
 * tensor, of a reduce-scatter the tensor that is scattered. Of reduce_scatter_tensor_coalesced they are what the rank
 * gets out, as torch counts it. */
#ifndef MODSCOPE_COLLECTIVES_H
#define MODSCOPE_COLLECTIVES_H

#include "modscope_capture.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Captures store the numbers, from 1 on. */
#define MS_COLLECTIVES(X)               \
    X(ALL_REDUCE, "all_reduce")         \
    X(ALL_GATHER, "all_gather")         \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_TO_ALL, "all_to_all")         \
    X(BROADCAST, "broadcast")           \
    X(REDUCE, "reduce")                 \
    X(GATHER, "gather")                 \
    X(SCATTER, "scatter")               \
    X(SEND, "send")                     \
    X(RECV, "recv")                     \
    X(BARRIER, "barrier")

typedef enum ms_collective_kind {
#define X(name, text) MS_COLLECTIVE_##name,
    MS_COLLECTIVES(X)
#undef X
        MS_COLLECTIVE_COUNT
} ms_collective_kind;

/* The kind's name, such as "all_gather"; "" if it is none. */
const char *ms_collective_name(ms_collective_kind kind);

/* Longer texts are cut off. */
enum { MS_GROUP_NAME = 64, MS_GROUP_BACKEND = 16, MS_GROUP_RANKS = 160 };

typedef struct ms_collective_group {
    uint32_t number;                /* by which collectives refer to it; not 0 */
    uint32_t size;                  /* how many ranks it has */
    char name[MS_GROUP_NAME];       /* as torch calls it */
    char backend[MS_GROUP_BACKEND]; /* such as "nccl" */
    char ranks[MS_GROUP_RANKS];     /* such as "0-7", or "0-56:8" for every eighth one */
} ms_collective_group;

/* What a collective's time is. Captures store the numbers from MS_COLLECTIVE_EXECUTED on, minus that one. */
#define MS_COLLECTIVE_TIMINGS(X)                                                                         \
    X(NOT_TIMED, "")                                                                                     \
    X(PREDICTED, "predicted") /* a virtual rank's */                                                     \
    X(EXECUTED, "executed")   /* from when a thread of the backend began to execute it until it ended */ \
    X(WAITED, "waited")       /* from its launch until the program's wait for it returned */             \
    X(ON_GPU, "on_gpu")       /* from when its stream on the GPU reached it until it had passed it */

typedef enum ms_collective_timing {
#define X(name, text) MS_COLLECTIVE_##name,
    MS_COLLECTIVE_TIMINGS(X)
#undef X
        MS_COLLECTIVE_TIMING_COUNT
} ms_collective_timing;

/* The timing's name; "" if it is none. */
const char *ms_collective_timing_name(ms_collective_timing timing);

typedef struct ms_collective {
    uint64_t event; /* it was launched after all events with lower numbers */
    uint64_t time;  /* when it began, in microseconds since the capture began */
    uint64_t step;  /* 0: before the first one */
    uint64_t bytes;
    uint64_t nanoseconds; /* how long it took; 0: not known */
    ms_collective_timing timing;
    ms_path path;    /* the module for which it was launched, else the one in which the thread was */
    uint32_t thread; /* its number; 0: not known */
    uint32_t group;  /* its number; 0: not known */
    ms_phase phase;
    ms_collective_kind kind;
} ms_collective;

/* ---- writing ---- */

/* A thread, or NULL, launches a collective: captures note kind, bytes, group and nanoseconds, and find out the rest. A
 * path other than MS_GLOBAL is the module for which it is launched, where that is not the one that the thread is in.
 * It begins `delay` nanoseconds from now. Without captures this does nothing. A capture that loses events, because it
 * has no room, loses collectives too. The result is its number; 0 without captures. */
uint64_t ms_collective_note(ms_ledger *ledger, const ms_thread *thread, const ms_collective *collective,
                            uint64_t delay);
/* How long the collective with this number took, which MS_COLLECTIVE_EXECUTED or a later timing says. It ended now; of
 * an executed one that tells when it began. It may consist of several parts, each of which is told: the first one's
 * begin and the last one's end hold. */
void ms_collective_note_time(ms_ledger *ledger, uint64_t number, ms_collective_timing timing, uint64_t nanoseconds);
/* What a group is. It may be told after the group was used, and again: the last one holds. */
void ms_collective_note_group(ms_ledger *ledger, const ms_collective_group *group);

/* ---- reading ---- */
typedef struct ms_collectives {
    ms_collective *at; /* in the order in which they were launched */
    size_t count;
    ms_collective_group *groups; /* each once, by number */
    size_t group_count;
} ms_collectives;

/* All collectives of a capture. Captures of versions before 1.2 have none. MS_ENOMEM, MS_EIO: *collectives is
 * unchanged. */
int ms_collectives_read(ms_reader *reader, ms_collectives *collectives);
void ms_collectives_free(ms_reader *reader, ms_collectives *collectives);

#ifdef __cplusplus
}
#endif

#endif
