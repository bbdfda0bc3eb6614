/* visit_tensors.h - find the tensors in Python objects. */
#ifndef MST_VISIT_TENSORS_H
#define MST_VISIT_TENSORS_H

#include "torch/state.h"

/* 0, or -1 with an error set, which ends the visit. */
typedef int mst_visit(PyObject *tensor, void *context);

/* Call `visit` for each tensor in `object`, which may be NULL: in lists, tuples, dicts, dataclasses
 * and registered pytree types, however deep. 0, or -1 with an error set. */
int mst_visit_tensors(PyObject *object, mst_visit *visit, void *context);
/* The same for lists, tuples and dicts only. Runs no Python. */
int mst_visit_tensors_in_containers(PyObject *object, mst_visit *visit, void *context);
/* Append the tensors in `object` that require grad to a list. 0, or -1 with an error set. */
int mst_append_grad_tensors(PyObject *object, PyObject *list);

/* ---- inner_tensors.c ---- */

/* Whether a tensor wraps other tensors (its type has __tensor_flatten__). */
bool mst_is_wrapper_subclass(PyObject *tensor);
/* Call `visit` for each tensor in `tensor` that has a storage of its own: the tensor itself, the
 * parts of a sparse tensor, or the tensors that a wrapper subclass holds, for which Python runs.
 * 0, or -1 with an error set. */
int mst_visit_inner_tensors(PyObject *tensor, mst_visit *visit, void *context);

#endif
