/* process.h - the state that all files of the extension modscope._native share, and this process and its threads:
 * Python code run from C, signals, and the objects of torch that are looked up once.
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
#ifndef MST_PROCESS_H
#define MST_PROCESS_H

/* Python.h comes before every other header, because it chooses what these declare. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "modscope.h"
#include "modscope_capture.h"
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
    X(variable) /* in an AccumulateGrad node: the leaf's TensorImpl */       \
    X(sizes)    /* in a TensorImpl: the number of dimensions, then each */   \
    X(dtype)    /* in a TensorImpl: the number of its dtype, in two bytes */

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

/* ---- threads.c: the watch of the process and this thread in it. No GIL needed, except for the init ---- */
int mst_threads_init(void); /* -1 with an error set */

/* Open this thread in the watch; NULL if memory runs out. */
ms_thread *mst_thread_open(void);

/* Whether another thread runs Python. Autograd's own threads do so only in hooks. Needs the GIL. */
bool mst_other_threads_run_python(void);
/* Threads that train: they call root modules or step optimizers, so they may replace gradients. Both need the GIL. */
void mst_thread_trains(void); /* this thread does, until it ends */
bool mst_other_threads_train(void);

/* This thread in the watch; NULL if memory runs out. */
static inline ms_thread *mst_thread_here(void)
{
    return LIKELY(mst_this_thread != NULL) ? mst_this_thread : mst_thread_open();
}

/* ---- run_in_fork.c ---- */
/* Runs C code in a process of its own, which is no child of this one, has no files of it and writes nothing: `run` gets
 * one end of a socket for packets, and the other is returned; -1 with errno set. The process ends when `run` returns,
 * as it should when the socket is closed. */
int mst_fork_apart(void (*run)(int end, const void *argument), const void *argument);

/* ---- run_python.c: run Python code from C without disturbing the program ---- */
/* The functions of the Python package that C calls: a module and a function. */
#define MST_PY_PREPARE "modscope._torch.interception", "prepare"                         /* () -> whether it is done */
#define MST_PY_RUN_ONE_NODE "modscope._torch.probes", "run_one_node"                     /* () */
#define MST_PY_CREATE_NODES "modscope._torch.probes", "create_nodes"                     /* () */
#define MST_PY_MAKE_ONE_BLOCK "modscope._torch.probes", "make_one_block"                 /* () */
#define MST_PY_SAVE_ONE_TENSOR "modscope._torch.probes", "save_one_tensor"               /* () */
#define MST_PY_REGISTER_STEP_HOOKS "modscope._torch.global_hooks", "register_step_hooks" /* () -> a list of handles */
#define MST_PY_REGISTER_BUILDING_HOOKS \
    "modscope._torch.global_hooks", "register_building_hooks"                   /* () -> a list of handles */
#define MST_PY_LIST_OPTIMIZED "modscope._torch.global_hooks", "list_optimized"  /* () -> a list of parameters */
#define MST_PY_NAME_UNCALLED "modscope._record.record", "name_uncalled_modules" /* () */
#define MST_PY_NUMBER_DEVICE "modscope._torch.devices", "number_device"         /* (torch.device) -> int */
#define MST_PY_NAME_GROUPS "modscope._torch.collectives", "name_groups"         /* () */
#define MST_PY_ADD_OOM_NOTE "modscope._torch.oom_report", "add_note"            /* (exception) */

/* Call a function without arguments, or with `argument` unless it is NULL. New reference, or
 * NULL with an error set. */
PyObject *mst_run_python(const char *module, const char *function, PyObject *argument);

/* Clear the error of Python code that we ran: the program must not see it. But what a signal handler
 * of the program raised meanwhile, and a KeyboardInterrupt, is the program's: it is scheduled to be
 * raised again. Required, instead of PyErr_Clear, after anything that may have run Python code. */
void mst_clear_error(void);

/* Python raises it in the main thread as soon as that runs Python code, as it does with a handler's exception.
 * Consumes the reference; NULL is allowed. */
void mst_schedule_exception(PyObject *exception);

/* Remove a hook from torch, by its handle. A signal handler that raises meanwhile does not prevent it;
 * its exception is scheduled to be raised again. NULL is allowed. Keeps the error that is set. */
void mst_remove_hook(PyObject *handle);
/* Remove each hook whose handle is in a list, which is then freed and becomes NULL. */
void mst_remove_hooks(PyObject **handles);

/* Disable dynamo's frame evaluation. Returns what mst_dynamo_restore takes; it may be NULL. */
PyObject *mst_dynamo_disable(void);
/* Keeps the error that is set. */
void mst_dynamo_restore(PyObject *callback);

/* While __torch_function__ is disabled, attributes of tensors are read without running Python. */
struct mst_torch_function_guard {
    PyObject *manager; /* torch's context manager, or NULL: not disabled */
};
int mst_torch_function_disable(struct mst_torch_function_guard *guard);  /* -1 with an error set */
void mst_torch_function_restore(struct mst_torch_function_guard *guard); /* keeps the error that is set */

/* Pause the garbage collector while a registry changes: a finalizer is Python code of the
 * program, which must not run inside an interception point and could change the registry.
 * Returns what mst_gc_resume takes. */
static inline bool mst_gc_pause(void)
{
    return PyGC_Disable();
}

static inline void mst_gc_resume(bool was_enabled)
{
    if (was_enabled)
        PyGC_Enable();
}

/* ---- torch_lookup.c: look up the objects of torch that the extension uses (mst.torch), and ask autograd ---- */
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

/* ---- held_signals.c: hold the program's signal handlers back while something must not be interrupted half-way ---- */

/* Python runs signal handlers between any two instructions of the main thread, so also while it runs code
 * for us, and what a handler raises ends that code. Between hold and release each handler that was set in
 * Python is replaced by a C function, which only notes that the signal came. */

/* Returns what mst_signals_release takes. Holds may be nested. No error is set before and after. */
bool mst_signals_hold(void);
/* Restore the handlers, and call those whose signals came. -1 with an error set if one raised, or if an error was
 * set before: that becomes the context of what a handler raised. A nested release restores nothing. */
int mst_signals_release(bool held);

/* Whether this is the thread that Python calls the main one. Needs the GIL. */
bool mst_in_main_thread(void);

/* ---- sigterm.c: SIGTERM while a capture is written, for capture_writer_api.c ---- */
/* Complete this capture when SIGTERM comes, write `before`, the size of the file and `after` to stderr (nothing if
 * `before` is ""), and die by the signal. For one capture of the process. 0: another one is watched, or the program
 * handles or ignores SIGTERM, or the line is too long; SIGTERM then does what it did before. */
int mst_sigterm_watch(ms_capture *capture, const char *before, const char *after);
/* The capture that is watched also states this rank and world size, as the program's process group knows them. */
void mst_sigterm_tell_rank(const char *rank, const char *world);
/* Before the capture ends: restore the default action, unless the program has set another. */
void mst_sigterm_forget(void);
/* After the capture has ended: die if SIGTERM came before mst_sigterm_forget. */
void mst_sigterm_ended(const ms_capture_status *status);

#endif
