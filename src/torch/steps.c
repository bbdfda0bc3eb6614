/* steps.c - when an optimizer steps: torch's global step hooks, given C functions.
 *
 * torch does not call the second one when a step raises; such a step is found out by the frames. */
#include "torch/memory.h"

static PyObject *pre_handle, *post_handle;
static PyObject *known; /* a dict: id -> weak reference to an optimizer */

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

static PyObject *before_step(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    ms_thread *thread = mst_ledger && count > 0 ? mst_here() : NULL;
    if (thread) {
        mst_steps_heal(thread);
        if (mst_optimizer_add(args[0]) != 0)
            PyErr_Clear();
        ms_step_enter(thread);
    }
    Py_RETURN_NONE;
}

static PyObject *after_step(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    ms_thread *thread = mst_ledger && count > 0 ? mst_here() : NULL;
    if (thread) {
        mst_claim_optimizer(args[0]);
        ms_step_leave(thread);
    }
    Py_RETURN_NONE;
}

/* A step inside a step (an inner optimizer in a closure) is still inside the outer one's frame. */
void mst_steps_heal(ms_thread *thread)
{
    if (ms_thread_phase(thread) != MS_OPTIMIZER || mst_in_optimizer())
        return;
    while (ms_thread_phase(thread) == MS_OPTIMIZER)
        ms_step_leave(thread);
    PyObject *optimizers = mst_optimizers();
    for (Py_ssize_t i = 0; optimizers && i < PyList_GET_SIZE(optimizers); i++)
        mst_claim_optimizer(PyList_GET_ITEM(optimizers, i));
    Py_XDECREF(optimizers);
    PyErr_Clear();
}

static PyMethodDef before_def = {"before_step", (PyCFunction)(void (*)(void))before_step, METH_FASTCALL, NULL};
static PyMethodDef after_def = {"after_step", (PyCFunction)(void (*)(void))after_step, METH_FASTCALL, NULL};

static PyObject *register_hook(const char *how, PyMethodDef *hook)
{
    PyObject *module = PyImport_ImportModule("torch.optim.optimizer");
    PyObject *function = PyCFunction_New(hook, NULL);
    PyObject *handle = module && function ? PyObject_CallMethod(module, how, "O", function) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(function);
    return handle;
}

int mst_steps_on(void)
{
    if (!known && !(known = PyDict_New()))
        return -1;
    pre_handle = register_hook("register_optimizer_step_pre_hook", &before_def);
    post_handle = pre_handle ? register_hook("register_optimizer_step_post_hook", &after_def) : NULL;
    if (post_handle)
        return 0;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    mst_steps_off();
    PyErr_Restore(type, value, traceback);
    return -1;
}

void mst_steps_off(void)
{
    for (int i = 0; i < 2; i++) {
        PyObject **handle = i ? &post_handle : &pre_handle;
        PyObject *result = *handle ? PyObject_CallMethod(*handle, "remove", NULL) : NULL;
        PyErr_Clear();
        Py_XDECREF(result);
        Py_CLEAR(*handle);
    }
    if (known)
        PyDict_Clear(known);
}
