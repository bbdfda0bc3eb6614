/* run.h - a replay of an epoch while it runs, for steps.c, states.c and run.c. */
#ifndef MS_REPLAY_EPOCH_RUN_H
#define MS_REPLAY_EPOCH_RUN_H

#include "replay/epoch/epoch.h"

#include "base/array.h"
#include "base/map.h"

struct ms__epoch_outcome { /* of a step */
    uint64_t reserved, allocated, retries;
    uint64_t requested, allocated_then, reserved_then; /* where memory ran out */
    uint64_t operator_then;                            /* likewise */
    bool failed;
};

struct ms__epoch_edge {
    struct ms__epoch_outcome outcome;
    uint32_t to; /* a state */
};

struct ms__epoch_pending {
    uint32_t from; /* the state before the step, which was left out */
    uint32_t batch;
};

/* The survivors of a step. */
struct ms__epoch_held {
    ms_allocation **blocks;
    size_t room;
    const struct ms__epoch_variant *variant; /* NULL: of a step of the beginning */
    uint32_t count;
};

enum { MS__EPOCH_RING = MS__EPOCH_MOST_AGE + 1 };

struct ms__epoch_run {
    const ms_epoch *epoch;
    const ms_epoch_batches *batches;
    ms_allocator *allocator;
    ms_allocation **beginning; /* by allocation of the beginning */
    uint64_t beginning_count;
    ms_allocation **made; /* by allocation of the step */
    size_t made_room;
    struct ms__epoch_held ring[MS__EPOCH_RING]; /* by step */
    double *values;                             /* of the products in use: a row for each lag */
    uint32_t *order;                            /* the samples by their distance from the step's shape */
    /* What is known of states. */
    struct ms__map states; /* hash -> a state */
    uint64_t *checks;      /* by state: the other half of its hash */
    size_t check_room;
    uint32_t state_count;
    struct ms__map edge_of; /* state and shapes -> an index of edges */
    struct ms__epoch_edge *edges;
    size_t edge_room;
    uint32_t edge_count;
    uint64_t *numbers; /* a state as numbers */
    size_t number_room;
    struct ms__epoch_pending *pending;
    size_t pending_room, pending_count;
    uint32_t looked, known; /* how often an edge was looked for lately, and found */
    bool is_watching;       /* states are compared */
    uint32_t rest;          /* steps until they are again */
};

/* ---- steps.c ---- */

/* Replay the entries before the first batch whose shape could be other than it was, and the epoch's own first steps:
 * `note` gets the outcome of each of these. MS_EDEVICE: memory ran out; the outcome says where. MS_ENOMEM. */
int ms__epoch_replay_beginning(struct ms__epoch_run *run, const ms_epoch_curves *curves, ms_epoch_result *result);
/* Replay the step of a batch. A step that runs out of memory ends there. MS_ENOMEM. */
int ms__epoch_replay_step(struct ms__epoch_run *run, uint32_t batch, struct ms__epoch_outcome *outcome);
/* The shape of the batch that was `lag` before this one. */
static inline uint32_t ms__epoch_run_shape(const struct ms__epoch_run *run, uint32_t batch, uint32_t lag)
{
    return run->batches->shapes[batch > lag ? batch - lag : 0];
}
static inline struct ms__epoch_held *ms__epoch_held_of(struct ms__epoch_run *run, uint32_t step)
{
    return &run->ring[step % MS__EPOCH_RING];
}

/* ---- states.c ---- */

/* Take the step of a batch. *state: the state before it, and then the one after it; MS_EPOCH_NONE: it is not known.
 * *is_replayed: it was replayed; otherwise it was known. MS_ENOMEM. */
int ms__epoch_take_step(struct ms__epoch_run *run, uint32_t batch, uint32_t *state, struct ms__epoch_outcome *outcome,
                        bool *is_replayed);

/* ---- run.c ---- */

/* The figures of a step count in those of the whole, and in the curves. */
void ms__epoch_note_outcome(const struct ms__epoch_outcome *outcome, uint32_t batch, const ms_epoch_curves *curves,
                            ms_epoch_result *result);

#endif
