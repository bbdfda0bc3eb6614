/* calls.h - calls of modules, backward nodes and optimizer steps: how they are intercepted, and where a thread is in
 * them. No Python runs inside an interception point, except the user's hooks. */
#ifndef MST_CALLS_H
#define MST_CALLS_H

#include "torch/process/process.h"

#include "interpose/elf_slot.h"

/* ---- intercept_calls.c: calls of modules ---- */

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

/* Read and replace the vectorcall pointer of a Python function, for an ms_patch. */
ms_function mst_vectorcall_read(const void *function);
int mst_vectorcall_write(void *function, ms_function vectorcall);

int mst_calls_intercept(void); /* -1 with an error set */
void mst_calls_restore(void);

/* ---- fallback_hooks.c: torch's global module hooks, which call C functions ---- */
int mst_fallback_register(void); /* -1 with an error set */
void mst_fallback_remove(void);
/* End the calls of this thread that ended without torch calling their hook. */
void mst_fallback_end_abandoned(void);

/* ---- intercept_nodes.c: when backward nodes run ---- */
int mst_nodes_intercept(void); /* -1 with an error set */
void mst_nodes_restore(void);

/* ---- intercept_created_nodes.c: when nodes are created, if its slots were found and verified ---- */
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

/* ---- intercept_steps.c: optimizer steps ---- */
int mst_steps_intercept(void); /* -1, without an error set: they cannot be intercepted */
void mst_steps_restore(void);
bool mst_steps_intercepted(void);

/* ---- optimizer_steps.c: when optimizers step, and which optimizers are known ---- */
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

/* ---- position.c: the phase and the innermost path of this thread ---- */
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

/* ---- user_hooks.c: the hooks that users register at trackers ---- */
enum mst_hook { MST_PRE_FW, MST_POST_FW, MST_PRE_BW, MST_POST_BW, MST_HOOK_COUNT };

/* Call hook `which` of every active tracker. -1 with the error of the first hook that raised. */
int mst_user_hooks_call(enum mst_hook which, PyObject *const *args, size_t count);
/* Run an entered call with its forward hooks around it; `next` runs the module. The call stays open. */
PyObject *mst_user_hooks_run(struct mst_call *call, PyObject *func, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames, vectorcallfunc next);

/* ---- tracker_api.c ---- */

/* The active trackers: a borrowed tuple, in the order in which they were entered. */
PyObject *mst_active_trackers(void);
PyObject *mst_tracker_hook(PyObject *tracker, enum mst_hook which); /* borrowed; NULL: none, or inactive */

/* ---- backward_hooks.c: the user's hooks around a call's backward. Neither function raises ---- */

/* Before a call runs: register what reports the gradients of its inputs. Returns what
 * mst_backward_hooks_end takes, or NULL: no backward of this call can be reported. */
PyObject *mst_backward_hooks_begin(struct mst_call *call, PyObject *args, PyObject *kwargs);
/* After it has run: register what reports the gradients of its outputs. */
void mst_backward_hooks_end(PyObject *backward_call, PyObject *output);

/* ---- backward_pass.c: when gradients arrive ---- */

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

/* ---- call_sizes.c: the bytes of the blocks that go into a call and come out of it ---- */

/* Report the size of the inputs of the call that is open: `count` positional objects, then `named` keyword arguments.
 * The inputs of a root call are claimed as such. Keeps the error that is set. */
void mst_measure_inputs(const struct mst_call *call, PyObject *const *objects, Py_ssize_t count, Py_ssize_t named);
/* Report the size of its output. Keeps the error that is set. */
void mst_measure_output(const struct mst_call *call, PyObject *output);

/* ---- cuda_times.c: how long a GPU needs for the calls of modules, for captures. Everything needs the GIL ---- */
struct mst_timed_call; /* a call that is being timed */

/* CUDA is in use: a block of it was reported. No GIL needed. */
extern _Atomic bool mst_cuda_in_use;

/* The thread has just entered a call in forward, which is a root call or not. NULL: it is not timed. */
struct mst_timed_call *mst_cuda_time_begin(ms_ledger *ledger, const ms_thread *thread, bool is_root);
/* It is about to be left. */
void mst_cuda_time_end(struct mst_timed_call *call);

/* A capture begins: which steps are timed is counted from now on. */
void mst_cuda_times_recording(void);
/* A capture ends: note the times that are known by now, without waiting for the GPU. */
void mst_cuda_times_note(void);
/* In a forked child: the events belong to the parent. */
void mst_cuda_times_forked(void);

/* ---- node_layout.c: the class of a backward node, read without the GIL ---- */
enum { MST_CLASS_NAME = 256 };
/* The class of a C++ node by its table of virtual functions. False: it is not known. */
bool mst_node_class(const void *table, char name[MST_CLASS_NAME]);
/* The class of a custom Function's node, as autograd names it: "ScaleBackward". The text lives as long as the node.
 * NULL: it is not known. */
const char *mst_custom_class(const void *node);
/* A number that identifies the name, and no table of virtual functions. */
uintptr_t mst_class_key(const char *name);

#endif
