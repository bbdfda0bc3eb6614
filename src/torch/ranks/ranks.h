/* ranks.h - what distributed training adds: collectives, and the blocks that FSDP2, DDP and pipelines hold. */
#ifndef MST_RANKS_H
#define MST_RANKS_H

#include "torch/process/process.h"

#include "modscope_collectives.h"

/* ---- collectives.c: the collectives of torch.distributed, for captures ---- */

/* This thread launches a collective of the group that `key` identifies: the address of its backend, or a number that
 * Python chose. The result is its number, for mst_collective_took; 0: there is no capture. Any thread; no GIL needed.
 */
uint64_t mst_collective_launched(ms_collective_kind kind, uint64_t bytes, uint64_t key, uint64_t delay,
                                 uint64_t nanoseconds);
/* The collective with this number has ended, after so many nanoseconds. Any thread; no GIL needed. */
void mst_collective_took(uint64_t number, ms_collective_timing timing, uint64_t nanoseconds);
/* The collectives that this thread launches from now on are for this module; MS_GLOBAL: for the one that it is in. */
void mst_collectives_set_owner(ms_path owner);
/* The backend is destroyed: its address may become that of another one. No GIL needed. */
void mst_collective_group_ended(uint64_t key);
/* Ask torch for the names and ranks of groups that were used and have none yet. Needs the GIL, and runs Python only if
 * there are such groups. */
void mst_collectives_name_groups(void);

/* A capture of the ledger began; the last one is about to end; in a forked child. */
void mst_collectives_begin(ms_ledger *ledger);
void mst_collectives_end(void);
void mst_collectives_forked(void);

/* ---- intercept_collectives.c: the functions of torch's backends. Both need the GIL ---- */
void mst_backends_intercept(void);
void mst_backends_restore(void);

/* ---- intercept_gloo.c: how long collectives over gloo take. The first two need the GIL ---- */
void mst_gloo_intercept(void);
void mst_gloo_restore(void);
/* This thread is in a function of a backend that launches the collective with this number; 0: it has left it. The
 * result is the number before. */
uint64_t mst_gloo_set_launching(uint64_t number);
/* The function that launched the collective has returned this c10d::Work. */
void mst_gloo_launched(uint64_t number, uintptr_t work);
/* Called in a forked child. */
void mst_gloo_forked(void);

/* ---- intercept_fsdp.c: FSDP2, from the moment when the program has imported it ---- */
void mst_fsdp_intercept(void); /* if FSDP2 is imported and not intercepted yet; cheap where it is not imported */
void mst_fsdp_restore(void);

/* ---- fsdp_claims.c: claims of what FSDP2's objects hold: parameters, gradients, the buffers of its collectives ----
 */

/* Only plain attributes of its objects are read, so no Python runs, except where a comment says so.
 * Nothing here raises. */

/* Claim the blocks of a tensor with this kind. A block that is not known is added, as for other claims. */
void mst_claim_tensor_kind(PyObject *tensor, ms_kind kind, ms_path path);

/* The path of a module to which bytes with a kind are attributed, called or not; MS_GLOBAL: it is not known. */
ms_path mst_kind_owner(PyObject *module);

/* An FSDPState is about to unshard: claim the sharded parameters of its groups. */
void mst_claim_fsdp_state(PyObject *state);
/* An FSDPParamGroup has unsharded its parameters: claim these, and note that their gradients will be unsharded. */
void mst_claim_fsdp_unsharded(PyObject *group);
/* After a forward or backward: claim what the groups of a state, or a group, keep until later: parameters that are
 * sharded over fewer ranks, gradients that are accumulated without a reduction. */
void mst_claim_fsdp_kept(PyObject *state);
void mst_claim_fsdp_group_kept(PyObject *group);
/* The module whose parameters these are, a list of FSDPParam; MS_GLOBAL: it is not known. */
ms_path mst_fsdp_owner(PyObject *params);
/* foreach_all_gather(params, ...) has returned `result`: claim the gather's output. */
void mst_claim_fsdp_gathered(PyObject *params, PyObject *result);
/* foreach_reduce(params, gradients, ...) begins, and has returned `result`. The latter reads gradients of DTensors. */
void mst_claim_fsdp_reducing(PyObject *params, PyObject *gradients);
void mst_claim_fsdp_reduced(PyObject *params, PyObject *result);

/* In a pass: claim everything that FSDP2 holds for the modules of the registry. Runs Python. */
void mst_claim_fsdp_modules(void);

/* ---- fsdp_states.c: what was allocated around the forward and backward of each FSDP module, for FSDPMemTracker ----
 */
/* The states, with the names that PyTorch's FSDPMemTracker gives them. */
#define MST_FSDP_STATES(X)                          \
    X(BEFORE_PRE_FORWARD, "Before Pre-Forward")     \
    X(AFTER_PRE_FORWARD, "After Pre-Forward")       \
    X(BEFORE_POST_FORWARD, "Before Post-Forward")   \
    X(AFTER_POST_FORWARD, "After Post-Forward")     \
    X(BEFORE_PRE_BACKWARD, "Before Pre-Backward")   \
    X(AFTER_PRE_BACKWARD, "After Pre-Backward")     \
    X(BEFORE_POST_BACKWARD, "Before Post-Backward") \
    X(AFTER_POST_BACKWARD, "After Post-Backward")   \
    X(PRE_FORWARD_RECOMPUTE, "Pre-Forward AC")      \
    X(POST_FORWARD_RECOMPUTE, "Post-Forward AC")    \
    X(PEAK_FORWARD, "Peak Forward")                 \
    X(PEAK_BACKWARD, "Peak Backward")

enum mst_fsdp_state {
#define X(name, text) MST_##name,
    MST_FSDP_STATES(X)
#undef X
        MST_FSDP_STATE_COUNT
};

/* The module, or FSDPParamGroup, is in this state now: record what is allocated. Does nothing unless an FSDPMemTracker
 * is active. A forward inside a backward is a recompute: its states are recorded as those. */
void mst_fsdp_state_record(PyObject *object, enum mst_fsdp_state state);
/* The ledger is about to be detached: no peak is followed any more. */
void mst_fsdp_states_detach(void);

/* ---- intercept_ddp.c: the buckets of DistributedDataParallel, if its slots were found ---- */
void mst_ddp_intercept(void);
void mst_ddp_restore(void);

/* ---- pipeline_claims.c: claims of what the stages of torch.distributed.pipelining hold. Nothing here raises ---- */
/* A root call begins: if a pipeline stage makes it, the stage is known from now on. What the known stages hold is
 * claimed. */
void mst_pipeline_at_root_call(void);
/* Claim what the known stages hold, in a pass. */
void mst_claim_pipeline_stages(void);
/* A tracker or recording begins: the stages of earlier ones are forgotten. */
void mst_pipeline_forget(void);

#endif
