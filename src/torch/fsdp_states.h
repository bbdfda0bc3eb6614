/* fsdp_states.h - what was allocated around the forward and backward of each FSDP module, for FSDPMemTracker. */
#ifndef MST_FSDP_STATES_H
#define MST_FSDP_STATES_H

#include "torch/state.h"

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

#endif
