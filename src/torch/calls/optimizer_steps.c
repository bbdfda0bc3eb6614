/* optimizer_steps.c - the optimizers that are known; and when they step, where that is not intercepted: the Python side
 * registers torch's global step hooks, which call this.
 *
 * torch does not call the post-step hook when an optimizer step raises. Such an abandoned step
 * is detected by the Python frames of the thread, and ended. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/claims/claims.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

static PyObject *step_hook_handles; /* a list: what removes the hooks; NULL: not registered */
static PyObject *known_optimizers;  /* a dict: id -> weak reference to an optimizer */

int mst_optimizer_add(PyObject *optimizer)
{
    PyObject *id = PyLong_FromVoidPtr(optimizer);
    PyObject *ref = id ? PyWeakref_NewRef(optimizer, NULL) : NULL;
    int error = ref ? PyDict_SetItem(known_optimizers, id, ref) : -1;
    Py_XDECREF(id);
    Py_XDECREF(ref);
    return error;
}

PyObject *mst_optimizers(void)
{
    PyObject *alive = PyList_New(0), *refs = PyDict_Items(known_optimizers);
    for (Py_ssize_t i = 0; alive && refs && i < PyList_GET_SIZE(refs); i++) {
        PyObject *id = PyTuple_GET_ITEM(PyList_GET_ITEM(refs, i), 0);
        PyObject *optimizer = ((PyWeakReference *)PyTuple_GET_ITEM(PyList_GET_ITEM(refs, i), 1))->wr_object;
        if (optimizer == Py_None || Py_REFCNT(optimizer) == 0)
            PyDict_DelItem(known_optimizers, id);
        else if (PyList_Append(alive, optimizer) != 0)
            Py_CLEAR(alive);
    }
    Py_XDECREF(refs);
    return alive;
}

void mst_optimizer_step_begin(ms_thread *thread, PyObject *optimizer)
{
    mst_thread_trains();
    if (mst_optimizer_add(optimizer) != 0)
        PyErr_Clear();
    mst_collectives_name_groups();
    PyObject *callback = mst_dynamo_disable();
    mst_expect_optimizers();
    mst_claim_gradients_at_step(optimizer, true);
    mst_dynamo_restore(callback);
    ms_optimizer_enter(thread);
}

void mst_optimizer_step_end(ms_thread *thread, PyObject *optimizer)
{
    PyObject *callback = mst_dynamo_disable();
    mst_claim_optimizer(optimizer);
    mst_claim_gradients_at_step(optimizer, false);
    mst_outside_inputs_drop_freed(false);
    mst_dynamo_restore(callback);
    ms_optimizer_leave_as(thread, (uint64_t)(uintptr_t)optimizer);
}

static PyObject *optimizer_step_begins(PyObject *self, PyObject *optimizer)
{
    (void)self;
    ms_thread *thread = mst.ledger ? mst_thread_here() : NULL;
    if (thread) {
        mst_optimizer_steps_end_abandoned(thread);
        mst_optimizer_step_begin(thread, optimizer);
    }
    Py_RETURN_NONE;
}

static PyObject *optimizer_step_ends(PyObject *self, PyObject *optimizer)
{
    (void)self;
    ms_thread *thread = mst.ledger ? mst_thread_here() : NULL;
    if (thread)
        mst_optimizer_step_end(thread, optimizer);
    Py_RETURN_NONE;
}

/* Before Python 3.12 the hooks of a step run after what is intercepted of it (intercept_steps.c). */
static PyObject *optimizer_ends_step(PyObject *self, PyObject *optimizer)
{
    (void)self;
    bool is_running = mst_this_thread && ms_thread_phase(mst_this_thread) == MS_OPTIMIZER;
    uint64_t number = is_running ? (uint64_t)(uintptr_t)optimizer : 0;
    return PyBool_FromLong(!mst.ledger || ms_ledger_ends_step(mst_target_ledger(), number));
}

static PyObject *optimizers_lack_order(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyBool_FromLong(mst.ledger && ms_ledger_optimizers_lack_order(mst_target_ledger()));
}

static PyObject *end_running_step(PyObject *self, PyObject *optimizer)
{
    bool is_running = mst.ledger && mst_this_thread && ms_thread_phase(mst_this_thread) == MS_OPTIMIZER;
    return is_running ? optimizer_step_ends(self, optimizer) : Py_NewRef(Py_None);
}

/* The keyword arguments that the frame of an optimizer step holds. They are freed with the frame,
 * also after an error, for which torch calls no hook; freeing them ends the optimizer step. This is
 * a C type, because a KeyboardInterrupt is lost if it is raised in a finalizer written in Python. */
static void free_step_arguments(PyObject *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (mst.ledger && mst_this_thread)
        mst_optimizer_steps_end_abandoned(mst_this_thread);
    PyErr_Restore(type, value, traceback);
    PyDict_Type.tp_dealloc(self);
}

PyTypeObject mst_step_arguments_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.OptimizerStepArguments",
    .tp_doc = "The keyword arguments of an optimizer step; the step ends when they are freed.",
    .tp_base = &PyDict_Type,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = free_step_arguments,
};

PyMethodDef mst_optimizer_steps_methods[] = {
    {"optimizer_step_begins", optimizer_step_begins, METH_O, "An optimizer step begins on this thread."},
    {"optimizer_step_ends", optimizer_step_ends, METH_O, "An optimizer step ended without an error."},
    {"optimizer_ends_step", optimizer_ends_step, METH_O,
     "For its hooks: whether this step of the optimizer ends the training step."},
    {"optimizers_lack_order", optimizers_lack_order, METH_NOARGS,
     "Whether several optimizers were found not to step in turn."},
    {"end_running_step", end_running_step, METH_O, "End the optimizer step that runs on this thread, if one does."},
    {NULL, NULL, 0, NULL},
};

/* An optimizer step inside another one (in a closure) still has the frame of the outer one: nothing is ended then. */
HOT void mst_optimizer_steps_end_abandoned(ms_thread *thread)
{
    if (ms_thread_phase(thread) != MS_OPTIMIZER || mst_steps_intercepted() || mst_in_optimizer_step())
        return;
    while (ms_thread_phase(thread) == MS_OPTIMIZER)
        ms_optimizer_leave(thread);
    PyObject *optimizers = mst_optimizers();
    for (Py_ssize_t i = 0; optimizers && i < PyList_GET_SIZE(optimizers); i++)
        mst_claim_optimizer(PyList_GET_ITEM(optimizers, i));
    Py_XDECREF(optimizers);
    mst_clear_error();
}

int mst_optimizer_hooks_register(void)
{
    if (!known_optimizers && !(known_optimizers = PyDict_New()))
        return -1;
    if (mst_steps_intercept() == 0)
        return 0;
    step_hook_handles = mst_run_python(MST_PY_REGISTER_STEP_HOOKS, NULL);
    return step_hook_handles ? 0 : -1;
}

void mst_optimizer_hooks_remove(void)
{
    mst_steps_restore();
    mst_remove_hooks(&step_hook_handles);
    if (known_optimizers)
        PyDict_Clear(known_optimizers);
}
