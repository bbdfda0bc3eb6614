/* call_sizes.h - the bytes of the blocks that go into a call and come out of it. */
#ifndef MST_CALL_SIZES_H
#define MST_CALL_SIZES_H

#include "torch/state.h"

/* Report the size of the input or output of the call that is open: `count` positional
 * objects, then `named` keyword arguments. Keeps the error that is set. */
void mst_measure_call(ms_thread *thread, bool output, PyObject *const *objects, Py_ssize_t count, Py_ssize_t named);

#endif
