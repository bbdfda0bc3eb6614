/* call_sizes.h - the bytes of the blocks that go into a call and come out of it. */
#ifndef MST_CALL_SIZES_H
#define MST_CALL_SIZES_H

#include "torch/state.h"

struct mst_call;

/* Report the size of the inputs of the call that is open: `count` positional objects, then `named` keyword arguments.
 * The inputs of a root call are claimed as such. Keeps the error that is set. */
void mst_measure_inputs(const struct mst_call *call, PyObject *const *objects, Py_ssize_t count, Py_ssize_t named);
/* Report the size of its output. Keeps the error that is set. */
void mst_measure_output(const struct mst_call *call, PyObject *output);

#endif
