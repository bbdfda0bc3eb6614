/* optimizer_steps.h - when optimizers step, and which optimizers are known. */
#ifndef MST_OPTIMIZER_STEPS_H
#define MST_OPTIMIZER_STEPS_H

#include "torch/state.h"

int mst_optimizer_hooks_register(void); /* -1 with an error set */
void mst_optimizer_hooks_remove(void);
/* A step of `optimizer` begins or has ended on this thread: claim its gradients and its state. */
void mst_optimizer_step_begin(ms_thread *thread, PyObject *optimizer);
void mst_optimizer_step_end(ms_thread *thread, PyObject *optimizer);
/* End the optimizer steps of this thread that raised: torch reports no end of them. */
void mst_optimizer_steps_end_abandoned(ms_thread *thread);
int mst_optimizer_add(PyObject *optimizer); /* -1 with an error set */
/* A new list of the optimizers that stepped or were added and are alive; NULL with an error set. */
PyObject *mst_optimizers(void);

#endif
