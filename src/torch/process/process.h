/* process.h - this process and its threads: Python code run from C, signals, and the objects of torch that are looked
 * up once. */
#ifndef MST_PROCESS_H
#define MST_PROCESS_H

#include "torch/process/state.h"

#include "modscope_capture.h"

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
