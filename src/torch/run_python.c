/* run_python.c - run Python code from C without disturbing the program. */
#include "torch/run_python.h"

PyObject *mst_run_python(const char *module, const char *function, PyObject *argument)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *result = NULL;
    if (imported)
        result = argument ? PyObject_CallMethod(imported, function, "(O)", argument)
                          : PyObject_CallMethod(imported, function, NULL);
    Py_XDECREF(imported);
    return result;
}

void mst_clear_error(void)
{
    bool interrupted = PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
    PyErr_Clear();
    if (interrupted)
        PyErr_SetInterrupt();
}

/* dynamo's getter loses a reference in some versions of torch, but its setter returns the previous callback. */
PyObject *mst_dynamo_disable(void)
{
    PyObject *callback = mst.torch.set_eval_frame ? PyObject_CallOneArg(mst.torch.set_eval_frame, Py_None) : NULL;
    if (!callback)
        PyErr_Clear();
    else if (callback == Py_None)
        Py_CLEAR(callback);
    return callback;
}

void mst_dynamo_restore(PyObject *callback)
{
    if (!callback)
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *before = PyObject_CallOneArg(mst.torch.set_eval_frame, callback);
    Py_XDECREF(before);
    Py_DECREF(callback);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

int mst_torch_function_disable(struct mst_torch_function_guard *guard)
{
    guard->manager = PyObject_CallNoArgs(mst.torch.disable_torch_function);
    PyObject *entered = guard->manager ? PyObject_CallMethodNoArgs(guard->manager, mst.interned.__enter__) : NULL;
    if (!entered)
        Py_CLEAR(guard->manager);
    Py_XDECREF(entered);
    return guard->manager ? 0 : -1;
}

void mst_torch_function_restore(struct mst_torch_function_guard *guard)
{
    if (!guard->manager)
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *args[] = {guard->manager, Py_None, Py_None, Py_None};
    PyObject *left = PyObject_VectorcallMethod(mst.interned.__exit__, args, 4, NULL);
    Py_XDECREF(left);
    PyErr_Clear();
    Py_CLEAR(guard->manager);
    PyErr_Restore(type, value, traceback);
}
