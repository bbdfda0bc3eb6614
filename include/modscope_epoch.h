/* modscope_epoch.h - an epoch of training steps whose batches have different shapes: how large each allocation of a
 * step is for any shape, and a replay of all steps through the allocator's model.
 *
 *     log of a program that took some steps      |  beginning  | step | step | step | ... |
 *     marks, where each step begins                            ^      ^      ^            ^  (and where the last ends)
 *             |
 *       ms_epoch_open          which allocations and frees a step consists of, and each size as a function of the shape
 *             |
 *       ms_epoch_replay        the beginning, then a step for each batch of the epoch
 *
 * Shapes     A shape is a row of numbers, its features, such as samples and tokens. Two batches of one shape have equal
 *            rows.
 * Steps      Steps of one kind that allocate and free in the same order are of one variant. Steps may have several
 *            kinds, such as those with and without an optimizer step. A step of a shape that the program took
 *            no step of is like one of the nearest shape that it took, with other sizes.
 * Sizes      A size is a constant, or a + b * (a product of features, which may be rounded up), if that is exact to the
 *            byte for all steps of the variant. Otherwise it is not exact: it is interpolated (ms_epoch_facts). What a
 *            step allocates may belong to a batch before it: the programs that load ahead do so. Each allocation has
 *            its own lag.
 * Skipping   A step is not replayed again if a step of the same shapes began when the allocator was in the same state
 *            (ms_allocator_state): its end is known. States are compared by 128 bits of their hash.
 * Memory     malloc and free: about 40 bytes for each entry of the log, and at most 128 MiB for what is known of
 * states. Threads    An epoch never changes after it was opened: any number of threads may replay it at once. */
#ifndef MODSCOPE_EPOCH_H
#define MODSCOPE_EPOCH_H

#include "modscope_allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MS_EPOCH_MOST_FEATURES 4

typedef struct ms_epoch ms_epoch;

/* What is known of a program. Nothing of it is used after ms_epoch_open. */
typedef struct ms_epoch_source {
    const uint64_t *log; /* entries of ms_log_kind */
    size_t entries;
    const uint64_t *marks;  /* steps + 1 indices of entries, in ascending order */
    const uint32_t *shapes; /* of each step */
    const uint8_t *kinds;   /* of each step */
    uint32_t steps;
    uint32_t first; /* the steps before this one are the epoch's own first ones, and are replayed as they were */
    const double *features; /* width numbers for each shape, none negative */
    uint32_t shape_count, width;
} ms_epoch_source;

/* MS_EINVAL: the log frees what it did not allocate, marks or shapes are out of range, there are more features than
 * MS_EPOCH_MOST_FEATURES, or there is no step after `first`. MS_ENOMEM. */
int ms_epoch_open(const ms_epoch_source *source, ms_epoch **epoch);
/* NULL is allowed. */
void ms_epoch_close(ms_epoch *epoch);

typedef struct ms_epoch_facts {
    uint32_t variants;
    uint32_t lag;                  /* of most allocations whose size depends on the shape */
    uint64_t blocks;               /* allocations of all variants */
    uint64_t varying;              /* those whose size depends on the shape */
    uint64_t inexact;              /* those whose size is not known exactly as a function of the shape */
    uint64_t inexact_bytes, bytes; /* of a step: the most of any variant's largest step */
} ms_epoch_facts;
ms_epoch_facts ms_epoch_describe(const ms_epoch *epoch);
/* How many requests of the log precede a step that the program took; of the number of steps: the end of the last one.
 */
uint64_t ms_epoch_requests_before(const ms_epoch *epoch, uint32_t step);
/* The operator of a request of the log, or 0. */
uint64_t ms_epoch_operator_of(const ms_epoch *epoch, uint64_t request);

/* The batches of an epoch, in their order; the first ones are the steps before ms_epoch_source.first. */
typedef struct ms_epoch_batches {
    const uint32_t *shapes;
    const uint8_t *kinds;
    uint32_t count;
} ms_epoch_batches;

/* By batch; each may be NULL. */
typedef struct ms_epoch_curves {
    uint64_t *reserved;  /* the most in its step */
    uint64_t *allocated; /* likewise */
    uint8_t *failed;     /* 1: it ran out of memory */
} ms_epoch_curves;

#define MS_EPOCH_NONE UINT32_MAX

typedef struct ms_epoch_result {
    uint64_t reserved_peak, allocated_peak;
    uint32_t reserved_at, allocated_at; /* the first batch that has it */
    uint64_t reserved_end;
    uint32_t failures;                       /* batches whose step ran out of memory */
    uint32_t first_failure;                  /* a batch, or MS_EPOCH_NONE */
    bool failed_before;                      /* memory ran out before the first batch: nothing else is known */
    uint64_t requested, allocated, reserved; /* where memory ran out first */
    uint64_t failed_operator;                /* of the log, which requested it; 0: not known */
    uint64_t retries;                        /* requests for which everything free was given back first */
    uint32_t replayed;                       /* steps; the others were known */
} ms_epoch_result;

/* A step that runs out of memory ends there: what it holds is freed, and the next one follows. `is_first_only`: the
 * replay ends with the first such step. MS_EINVAL: a batch's shape is out of range, or there are fewer batches than
 * ms_epoch_source.first. MS_ENOMEM. */
int ms_epoch_replay(const ms_epoch *epoch, const ms_allocator_settings *settings, const ms_epoch_batches *batches,
                    bool is_first_only, const ms_epoch_curves *curves, ms_epoch_result *result);

#ifdef __cplusplus
}
#endif
#endif
