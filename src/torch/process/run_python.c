/* run_python.c - run Python code from C without disturbing the program. */
#include "torch/process/process.h"

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

/* ---- exceptions of signal handlers ----
 * Python runs signal handlers between any two instructions of the main thread, so also while it runs
 * code for us. What a handler raises then looks like an error of that code. Its traceback shows the difference. */

/* The code object that a call of the handler runs: borrowed, or NULL if it is not written in Python. */
static PyObject *code_of_handler(PyObject *handler)
{
    if (PyMethod_Check(handler))
        handler = PyMethod_GET_FUNCTION(handler);
    else if (!PyFunction_Check(handler) && Py_TYPE(handler)->tp_dict)
        handler = PyDict_GetItemString(Py_TYPE(handler)->tp_dict, "__call__");
    return handler && PyFunction_Check(handler) ? PyFunction_GET_CODE(handler) : NULL;
}

static bool is_in_traceback(PyObject *code, PyObject *traceback)
{
    bool found = false;
    for (PyTracebackObject *at = (PyTracebackObject *)traceback; at && !found; at = at->tb_next) {
        PyCodeObject *ran = PyFrame_GetCode(at->tb_frame);
        found = (PyObject *)ran == code;
        Py_DECREF(ran);
    }
    return found;
}

/* No error is set. */
static bool was_raised_by_handler(PyObject *traceback)
{
    enum { SIGNALS = 65 };
    PyObject *name = PyUnicode_InternFromString("_signal");
    PyObject *module = name ? PyImport_GetModule(name) : NULL;
    bool found = false;
    for (int number = 1; module && !found && number < SIGNALS; number++) {
        PyObject *handler = PyObject_CallMethod(module, "getsignal", "i", number);
        PyObject *code = handler ? code_of_handler(handler) : NULL;
        found = code && is_in_traceback(code, traceback);
        Py_XDECREF(handler);
        PyErr_Clear();
    }
    Py_XDECREF(name);
    Py_XDECREF(module);
    PyErr_Clear();
    return found;
}

/* Fetch the error that is set. A new reference to the exception if it is the program's, with its traceback,
 * else NULL. No error is set afterwards. */
static PyObject *fetch_exception_of_program(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!type)
        return NULL;
    bool kept =
        PyErr_GivenExceptionMatches(type, PyExc_KeyboardInterrupt) || (traceback && was_raised_by_handler(traceback));
    if (kept) {
        PyErr_NormalizeException(&type, &value, &traceback);
        if (traceback)
            PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    if (!kept)
        Py_CLEAR(value);
    return value;
}

static int raise_again(void *exception)
{
    PyObject *value = exception;
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(value)), value, PyException_GetTraceback(value));
    return -1;
}

void mst_schedule_exception(PyObject *exception)
{
    if (!exception || Py_AddPendingCall(raise_again, exception) == 0)
        return;
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception); /* Too many are scheduled. */
    PyErr_WriteUnraisable(NULL);
    Py_DECREF(exception);
}

void mst_clear_error(void)
{
    if (UNLIKELY(PyErr_Occurred() != NULL))
        mst_schedule_exception(fetch_exception_of_program());
}

/* A handle is removed by Python code. An exception of the program may end that before it has done anything, so it is
 * tried again, a limited number of times. */
void mst_remove_hook(PyObject *handle)
{
    enum { MOST_TRIES = 100 };
    PyObject *type, *value, *traceback, *first = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    bool again = handle != NULL;
    for (int i = 0; again && i < MOST_TRIES; i++) {
        PyObject *result = PyObject_CallMethod(handle, "remove", NULL);
        PyObject *exception = result ? NULL : fetch_exception_of_program();
        again = exception != NULL;
        if (!first)
            first = Py_XNewRef(exception);
        Py_XDECREF(exception);
        Py_XDECREF(result);
    }
    mst_schedule_exception(first);
    PyErr_Restore(type, value, traceback);
}

void mst_remove_hooks(PyObject **handles)
{
    for (Py_ssize_t i = 0; *handles && PyList_Check(*handles) && i < PyList_GET_SIZE(*handles); i++)
        mst_remove_hook(PyList_GET_ITEM(*handles, i));
    Py_CLEAR(*handles);
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
