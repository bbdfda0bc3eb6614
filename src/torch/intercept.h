/* intercept.h - the interception points of module calls, backward nodes, allocators, saved tensors and more, and
 * the fallback for calls. No Python runs inside an interception point, except the user's hooks. */
#ifndef MST_INTERCEPT_H
#define MST_INTERCEPT_H

#include "torch/state.h"

/* ---- intercept_calls.c ---- */

/* One open call of this thread. */
struct mst_call {
    struct mst_call *outer; /* the open call around it */
    ms_thread *thread;
    PyObject *module; /* borrowed: the caller holds it */
    ms_path path;
    long long graph_task;         /* the graph task it began in, or -1; known only where nodes are not intercepted */
    bool in_node;                 /* mst_call_enter entered a node for it, because nodes are not intercepted */
    struct mst_timed_call *timed; /* its time on a GPU is being measured; else NULL */
};
/* False: the call is not tracked, and must not be left. */
bool mst_call_enter(struct mst_call *call, PyObject *module);
void mst_call_leave(struct mst_call *call);

int mst_calls_intercept(void); /* -1 with an error set */
void mst_calls_restore(void);

/* ---- fallback_hooks.c: torch's global module hooks, which call C functions ---- */
int mst_fallback_register(void); /* -1 with an error set */
void mst_fallback_remove(void);
/* End the calls of this thread that ended without torch calling their hook. */
void mst_fallback_end_abandoned(void);

/* ---- intercept_steps.c: optimizer steps ---- */
int mst_steps_intercept(void); /* -1, without an error set: they cannot be intercepted */
void mst_steps_restore(void);
bool mst_steps_intercepted(void);

/* ---- intercept_fsdp.c: FSDP2, from the moment when the program has imported it ---- */
void mst_fsdp_intercept(void); /* if FSDP2 is imported and not intercepted yet; cheap where it is not imported */
void mst_fsdp_restore(void);

/* ---- intercept_ddp.c: the buckets of DistributedDataParallel, if its slots were found ---- */
void mst_ddp_intercept(void);
void mst_ddp_restore(void);

/* ---- intercept_nodes.c ---- */
int mst_nodes_intercept(void); /* -1 with an error set */
void mst_nodes_restore(void);

/* ---- intercept_created_nodes.c: if its slots were found and verified ---- */
void mst_created_nodes_intercept(void);
void mst_created_nodes_restore(void);

/* ---- node_layout.c: what is read from a node's Python object ---- */

/* The path of the call that created the node. */
ms_path mst_path_of_node(PyObject *node);
/* Whether this thread created the node. True where that is not known. */
bool mst_node_is_of_this_thread(PyObject *node);
/* A machine word of a Node, `offset` bytes from its start. No GIL needed. */
static inline uint64_t mst_node_word(const void *node, int offset)
{
    return __atomic_load_n((const uint64_t *)((const char *)node + offset), __ATOMIC_RELAXED);
}

/* ---- intercept_saved.c ---- */
void mst_saved_intercept(ms_ledger *ledger); /* if mst.intercept_saved; else, and on an error, nothing is intercepted */
void mst_saved_restore(void);

/* ---- intercept_blocks.c ---- */
int mst_blocks_intercept(ms_ledger *ledger); /* -1 with an error set */
void mst_blocks_restore(void);
/* What a virtual device's allocator reports, as a real one does: a block is added (bytes > 0) or dropped, or an
 * allocation failed. No GIL needed. */
void mst_blocks_report(uint64_t address, int64_t bytes, uint64_t reserved, int8_t device_type, int8_t device_index);
void mst_blocks_report_failure(uint64_t bytes, uint64_t allocated, uint64_t reserved, int8_t device_type,
                               int8_t device_index);
/* After a block was added: what the program requested, where an allocator's report does not tell. No GIL needed. */
void mst_blocks_report_request(uint64_t address, uint64_t requested, uint64_t stream);

#endif
