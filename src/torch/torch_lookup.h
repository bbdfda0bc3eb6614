/* torch_lookup.h - look up the objects of torch that the extension uses (mst.torch), and ask autograd. */
#ifndef MST_TORCH_LOOKUP_H
#define MST_TORCH_LOOKUP_H

#include "torch/state.h"

/* Import torch and set mst.torch and mst.interned. -1 with an ImportError that says what to install. */
int mst_torch_load(void);
/* Whether autograd records what this thread does: false in no_grad and inference_mode. Never raises. */
bool mst_grad_enabled(void);
/* The id of the graph task that runs on this thread; -1 outside backward. Never raises. */
long long mst_graph_task_id(void);
/* The node that runs on this thread: a new reference or NULL. Never raises. */
PyObject *mst_current_node(void);

/* The number that this thread's next node will get; 0 where torch does not export it. No GIL needed. */
static inline uint64_t mst_next_node_number(void)
{
    return mst.torch.next_node_number ? mst.torch.next_node_number() : 0;
}

#endif
