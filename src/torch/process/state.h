/* state.h - the state that all files of the extension modscope._native share.
 *
 * How the files are named:
 *     *_api.c         types and functions for Python, which only convert arguments and results
 *     intercept_*.c   an interception point, and the Python functions that find and verify it
 *     fallback_*.c    what replaces an interception point that is not used
 *     *_claims.c      which known object holds which block
 *     the others      one idea each, named by the file
 *
 * Each folder has one header, named after it, which declares what its files define, file by file.
 *
 * Every name that the files share begins with mst_. Everything needs the GIL, except where
 * a comment says otherwise. */
#ifndef MST_STATE_H
#define MST_STATE_H

/* Python.h comes before every other header, because it chooses what these declare. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "modscope.h"
#include "modscope_ledger.h"

#ifdef Py_GIL_DISABLED
#error "modscope needs a Python with the GIL, which guards its tables of modules"
#endif

#include <stdatomic.h>
#include <stdbool.h>

#define HOT __attribute__((hot))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* The objects and functions of torch that the extension uses. NULL: this torch lacks it. */
struct mst_torch {
    PyTypeObject *module, *tensor, *parameter, *ordered_dict, *function_base, *graph_module;
    PyObject *call_impl; /* the Python function nn.Module._call_impl */
    PyCodeObject *call_code, *optimizer_code, *backward_code;
    PyObject *graph_task_id, *current_node, *will_execute, *queue_callback, *grad_enabled;
    PyObject *set_eval_frame, *disable_torch_function;
    PyObject *pytree_nodes;             /* a dict: type -> how to flatten it */
    PyObject *grad;                     /* the descriptor of a tensor's attribute `grad` */
    PyObject *strided;                  /* the layout of tensors that have a storage */
    uint64_t (*next_node_number)(void); /* of this thread */
    uint64_t (*thread_id)(void);
};

/* Interned Python strings. */
/* clang-format off */
#define MST_INTERNED(X)        \
    X(_modules)                \
    X(_parameters)             \
    X(_buffers)                \
    X(__tensor_flatten__)      \
    X(untyped_storage)         \
    X(device)                  \
    X(state)                   \
    X(param_groups)            \
    X(params)                  \
    X(_backward_hooks)         \
    X(_register_hook_dict)     \
    X(grad_fn)                 \
    X(requires_grad)           \
    X(variable)                \
    X(_sequence_nr)            \
    X(compile_subgraph_reason) \
    X(dynamo_ctx)              \
    X(export)                  \
    X(__dataclass_fields__)    \
    X(flatten_fn)              \
    X(kwargs)                  \
    X(profile_hook_step)       \
    X(Global)                  \
    X(forward)                 \
    X(__module__)              \
    X(name)                    \
    X(__enter__)               \
    X(__exit__)
/* clang-format on */
struct mst_interned {
#define X(string) PyObject *string;
    MST_INTERNED(X)
#undef X
};

/* Offsets in bytes into torch's objects; -1: not known. The Python side finds and verifies them. */
#define MST_LAYOUT(X)                                                        \
    X(object)   /* in a tensor's Python object: its TensorImpl */            \
    X(storage)  /* in a TensorImpl: its StorageImpl, or NULL */              \
    X(data)     /* in a StorageImpl: the memory, or NULL */                  \
    X(deleter)  /* in a StorageImpl: the function that frees the memory */   \
    X(device)   /* in a StorageImpl: device type and index, a byte each */   \
    X(size)     /* in a StorageImpl: bytes; negative where symbolic */       \
    X(meta)     /* in a TensorImpl: its AutogradMeta, or NULL */             \
    X(grad)     /* in an AutogradMeta: the gradient's TensorImpl, or NULL */ \
    X(variable) /* in an AccumulateGrad node: the leaf's TensorImpl */

struct mst_layout {
#define X(field) int field;
    MST_LAYOUT(X)
#undef X
};

struct mst_node_layout {
    int number;      /* in a Node: its number; -1: not known */
    int thread;      /* in a Node: the id of the thread that created it; -1: not known */
    int function;    /* in a custom Function's Python object: its Node; -1: not known */
    int object;      /* in a custom Function's Node: its Python object; -1: not known */
    uint64_t custom; /* the first machine word of every custom Function's Node; 0: that or `object` is not known */
};

/* The prediction of the next call: all calls, in the order in which they began. Programs
 * repeat themselves, so the next call is mostly the one that followed last time.
 *
 *     calls   [ embed | block0 | attn | mlp | block1 | attn | mlp | head ]    count = 8
 *                                  ^ next: the call that is expected
 *
 * next <= count <= room. Two entries fit into one cache line. */
struct mst_predicted_call {
    PyObject *module;    /* borrowed: it is compared, and used only if `ref` is still its weak reference */
    PyObject *ref;       /* as in struct mst_module */
    uint64_t context;    /* as in struct mst_module */
    int32_t weakrefs_at; /* offset in bytes from the module to its list of weak references */
    ms_path path;        /* the path of this module in this context */
};

struct mst_call_prediction {
    struct mst_predicted_call *calls;
    size_t count, room, next;
};

/* Fields are guarded by the GIL, except where they are atomic or constant. */
struct mst_state {
    /* ---- constant after the extension is imported; any thread reads them ---- */
    struct mst_torch torch;
    struct mst_interned interned;
    ms_watch *watch; /* the only watch of the process; it has locks of its own */

    /* ---- written at start-up while no tracker is active; any thread reads them ---- */
    struct mst_layout layout;
    struct mst_node_layout node_layout;
    uint64_t cpu_deleter;       /* the function that frees the CPU allocator's memory; 0: not known */
    uint64_t accumulate_vtable; /* the first machine word of every AccumulateGrad node; 0: not known */
    bool intercept_calls;       /* the interception point of calls is verified and used, else the fallback */
    bool intercept_nodes;       /* the same for backward nodes */
    bool intercept_saved;       /* the interception point of saved tensors is verified and used */

    /* ---- interception ---- */
    bool active;         /* at least one tracker is active */
    unsigned user_hooks; /* bit i: an active tracker has the user's hook i (enum mst_hook) */

    /* ---- modules ---- */
    struct mst_registry *registry; /* of the active trackers, or of those that were active last */

    /* ---- memory ---- */
    ms_ledger *ledger;  /* the attached ledger, or NULL */
    bool by_dispatcher; /* the source of blocks is the dispatcher, else torch's allocators; set before
                           gradients_ledger, so that nodes read it without the GIL */
    struct {
        bool due;             /* the tensors of some module are not claimed yet */
        bool awaiting_memory; /* some parameters had no memory when they were claimed */
    } claims;
    _Atomic(ms_ledger *) blocks_ledger;    /* gets the allocators' blocks, or NULL; atomic */
    _Atomic(ms_ledger *) gradients_ledger; /* gets the claims of gradients, or NULL; atomic */
    _Atomic bool oom_report_pending;       /* no exception has the latest out-of-memory report yet; atomic */

    /* ---- written at every call, so it has a cache line of its own ---- */
    _Alignas(64) struct mst_call_prediction prediction; /* of `registry` */
};
extern struct mst_state mst;

/* Two machine words per thread that every call and node reads. The initial-exec model reads
 * them without a function call. */
#if defined(__linux__)
#define MST_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define MST_THREAD_LOCAL _Thread_local
#endif
struct mst_call;
extern MST_THREAD_LOCAL ms_thread *mst_this_thread;     /* this thread in the watch; NULL: not opened yet */
extern MST_THREAD_LOCAL struct mst_call *mst_open_call; /* this thread's innermost open call, or NULL */

#endif
