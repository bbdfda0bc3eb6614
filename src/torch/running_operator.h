/* running_operator.h - the operator of torch's dispatcher that runs on this thread, where modscope runs it itself. */
#ifndef MST_RUNNING_OPERATOR_H
#define MST_RUNNING_OPERATOR_H

#include "torch/state.h"

/* Its name without the overload, such as "aten::addmm", which is never freed; NULL: not known. */
extern MST_THREAD_LOCAL const char *mst_running_operator;

/* The name of an operator of torch.ops, for mst_running_operator. NULL if it has none; no error is set. */
const char *mst_operator_name(PyObject *operator);

int mst_running_operator_init(void); /* -1 with an error set */
extern PyMethodDef mst_running_operator_methods[];

#endif
