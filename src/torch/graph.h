/* graph.h - what graph.c (what hangs on tensors) and walk.c (when gradients come) share. */
#ifndef MS_GRAPH_H
#define MS_GRAPH_H

#include "torch/native.h"

struct mst_link;

typedef struct mst_graph_call {
    PyObject_HEAD
    PyObject *module;       /* weak reference */
    PyObject *nodes;        /* of the inputs where there are several, or NULL */
    struct mst_link *links; /* to the hooks on its inputs */
    Py_ssize_t inputs;
    ms_path path;
    uint64_t serial, begin; /* the how-manieth call; the number of its first node */
} mst_graph_call;

int mst_walk_init(void);
/* The gradient of one of the call's outputs came: pre_bw, unless it came in this walk. */
int mst_walk_pre(mst_graph_call *call, PyObject *grad);
/* The gradient of input `index` came: post_bw if it was the last, and pre_bw came in this walk. */
int mst_walk_grad(mst_graph_call *call, Py_ssize_t index, PyObject *grad);

#endif
