/* steps.c - when an optimizer steps: torch's global step hooks (_optimizer_steps.py) tell.
 *
 * torch does not call the second one when a step raises; such a step is found out by the frames. */
#include "torch/memory.h"

static PyObject *handles; /* a list: what to remove the hooks with */
static PyObject *known;   /* a dict: id -> weak reference to an optimizer */

int mst_optimizer_add(PyObject *optimizer)
{
    PyObject *id = PyLong_FromVoidPtr(optimizer);
    PyObject *ref = id ? PyWeakref_NewRef(optimizer, NULL) : NULL;
    int error = ref ? PyDict_SetItem(known, id, ref) : -1;
    Py_XDECREF(id);
    Py_XDECREF(ref);
    return error;
}

PyObject *mst_optimizers(void)
{
    PyObject *alive = PyList_New(0), *refs = PyDict_Items(known);
    for (Py_ssize_t i = 0; alive && refs && i < PyList_GET_SIZE(refs); i++) {
        PyObject *id = PyTuple_GET_ITEM(PyList_GET_ITEM(refs, i), 0);
        PyObject *optimizer = ((PyWeakReference *)PyTuple_GET_ITEM(PyList_GET_ITEM(refs, i), 1))->wr_object;
        if (optimizer == Py_None || Py_REFCNT(optimizer) == 0)
            PyDict_DelItem(known, id);
        else if (PyList_Append(alive, optimizer) != 0)
            Py_CLEAR(alive);
    }
    Py_XDECREF(refs);
    return alive;
}

static PyObject *step_begins(PyObject *self, PyObject *optimizer)
{
    (void)self;
    ms_thread *thread = mst_ledger ? mst_here() : NULL;
    if (thread) {
        mst_steps_heal(thread);
        if (mst_optimizer_add(optimizer) != 0)
            PyErr_Clear();
        ms_optimizer_enter(thread);
    }
    Py_RETURN_NONE;
}

static PyObject *step_ends(PyObject *self, PyObject *optimizer)
{
    (void)self;
    ms_thread *thread = mst_ledger ? mst_here() : NULL;
    if (thread) {
        mst_claim_optimizer(optimizer);
        ms_optimizer_leave(thread);
    }
    Py_RETURN_NONE;
}

/* A dict that a step's frame holds: it goes when the frame goes, also after an error, of which torch tells nobody. In
 * C, because a Ctrl-C that comes while a finalizer of Python runs is lost. */
static void step_gone(PyObject *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (mst_ledger && mst_mine)
        mst_steps_heal(mst_mine);
    PyErr_Restore(type, value, traceback);
    PyDict_Type.tp_dealloc(self);
}

PyTypeObject mst_step_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.StepArguments",
    .tp_doc = "A step's keyword arguments, whose end is the step's.",
    .tp_base = &PyDict_Type,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = step_gone,
};

PyMethodDef mst_steps_methods[] = {
    {"step_begins", step_begins, METH_O, "An optimizer's step begins in this thread."},
    {"step_ends", step_ends, METH_O, "It ended without an error."},
    {NULL, NULL, 0, NULL},
};

/* A step inside a step (an inner optimizer in a closure) is still inside the outer one's frame. */
void mst_steps_heal(ms_thread *thread)
{
    if (ms_thread_phase(thread) != MS_OPTIMIZER || mst_in_optimizer())
        return;
    while (ms_thread_phase(thread) == MS_OPTIMIZER)
        ms_optimizer_leave(thread);
    PyObject *optimizers = mst_optimizers();
    for (Py_ssize_t i = 0; optimizers && i < PyList_GET_SIZE(optimizers); i++)
        mst_claim_optimizer(PyList_GET_ITEM(optimizers, i));
    Py_XDECREF(optimizers);
    PyErr_Clear();
}

int mst_steps_on(void)
{
    if (!known && !(known = PyDict_New()))
        return -1;
    PyObject *module = PyImport_ImportModule("modscope._optimizer_steps");
    handles = module ? PyObject_CallMethod(module, "register_hooks", NULL) : NULL;
    Py_XDECREF(module);
    return handles ? 0 : -1;
}

void mst_steps_off(void)
{
    for (Py_ssize_t i = 0; handles && PyList_Check(handles) && i < PyList_GET_SIZE(handles); i++) {
        PyObject *result = PyObject_CallMethod(PyList_GET_ITEM(handles, i), "remove", NULL);
        PyErr_Clear();
        Py_XDECREF(result);
    }
    Py_CLEAR(handles);
    if (known)
        PyDict_Clear(known);
}
