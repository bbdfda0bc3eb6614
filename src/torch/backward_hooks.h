/* backward_hooks.h - what backward_hooks.c (hooks on tensors) and backward_pass.c (when gradients arrive) share. */
#ifndef MST_BACKWARD_HOOKS_H
#define MST_BACKWARD_HOOKS_H

#include "torch/state.h"

struct mst_link;

/* A call whose backward is to be reported to the user's hooks. */
typedef struct mst_backward_call {
    PyObject_HEAD
    PyObject *module;       /* a weak reference */
    PyObject *nodes;        /* a list: the inputs' nodes where there are several inputs, or NULL */
    struct mst_link *links; /* to the hooks on its inputs */
    Py_ssize_t inputs;
    ms_path path;
    uint64_t serial;     /* calls are numbered 1, 2, 3, ... */
    uint64_t first_node; /* the number of the first node that the call may create */
} mst_backward_call;

int mst_backward_pass_init(void); /* -1 with an error set */
/* The gradient of an output of the call arrived: call pre_bw, unless it was called in this backward
 * pass. -1 with the error of a hook. Without memory no hook is called: the program's backward must not fail for that.
 */
int mst_backward_pass_output_grad(mst_backward_call *call, PyObject *grad);
/* The gradient of input `index` arrived: call post_bw if it was the last one, and if pre_bw was
 * called in this backward pass. -1 with the error of a hook. */
int mst_backward_pass_input_grad(mst_backward_call *call, Py_ssize_t index, PyObject *grad);

#endif
