/* run_python.h - run Python code from C without disturbing the program. */
#ifndef MST_RUN_PYTHON_H
#define MST_RUN_PYTHON_H

#include "torch/state.h"

/* The functions of the Python package that C calls: a module and a function. */
#define MST_PY_PREPARE "modscope._interception", "prepare"                       /* () -> whether it is done */
#define MST_PY_RUN_ONE_NODE "modscope._probes", "run_one_node"                   /* () */
#define MST_PY_CREATE_NODES "modscope._probes", "create_nodes"                   /* () */
#define MST_PY_MAKE_ONE_BLOCK "modscope._probes", "make_one_block"               /* () */
#define MST_PY_SAVE_ONE_TENSOR "modscope._probes", "save_one_tensor"             /* () */
#define MST_PY_REGISTER_STEP_HOOKS "modscope._optimizer_steps", "register_hooks" /* () -> a list of handles */
#define MST_PY_REGISTER_BUILDING_HOOKS "modscope._building", "register_hooks"    /* () -> a list of handles */
#define MST_PY_HAS_OPTIMIZER "modscope._optimizer_steps", "has_optimizer"        /* () -> bool */
#define MST_PY_NAME_UNCALLED "modscope._record", "name_uncalled_modules"         /* () */
#define MST_PY_NUMBER_DEVICE "modscope._devices", "number_device"                /* (torch.device) -> int */
#define MST_PY_NAME_GROUPS "modscope._collectives", "name_groups"                /* () */
#define MST_PY_ADD_OOM_NOTE "modscope._oom_report", "add_note"                   /* (exception) */

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
/* The same for each handle in a list, which is then freed and becomes NULL. */
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

#endif
