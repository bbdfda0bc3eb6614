/* position.h - the phase and the innermost path of this thread. */
#ifndef MST_POSITION_H
#define MST_POSITION_H

#include "torch/state.h"

enum { MST_MAX_CONTEXTS = 64 };

/* A backward node inside a call, or a call inside a backward node, begins a new context. */
struct mst_position {
    ms_path paths[MST_MAX_CONTEXTS]; /* the innermost path of each context, outermost context first */
    size_t count;
    ms_phase phase;
};

/* This thread's position; idle with no path unless `active`. Asks autograd where nodes are not intercepted. */
struct mst_position mst_position_find(bool active);
/* The path of the innermost context, or MS_GLOBAL. */
ms_path mst_position_innermost(ms_phase *phase);

/* The path of the backward node that this thread runs, as autograd tells it: that of the call which made it, or of the
 * module that owns the leaf whose gradient it accumulates. MS_GLOBAL if there is none. */
ms_path mst_path_of_running_node(void);

/* The context in which a call would begin now: the path around it, with MST_IN_NODE if a
 * backward node is between them. */
#define MST_IN_NODE (UINT64_C(1) << 32)
uint64_t mst_call_context(ms_thread *thread);

/* Whether an optimizer step runs on this thread, by its Python frames. */
bool mst_in_optimizer_step(void);

/* ---- position_api.c: the position as Python objects; new references ---- */
PyObject *mst_position_parents(bool active);
PyObject *mst_position_stack(bool active);
PyObject *mst_position_current(bool active);
PyObject *mst_position_phase(bool active);

#endif
