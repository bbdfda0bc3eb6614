/* user_hooks.c - call the user's hooks, and run a call with its forward hooks.
 *
 * Python runs inside an interception point only here and in backward_pass.c. dynamo's frame
 * evaluation is disabled meanwhile. */
#include "torch/calls/calls.h"
#include "torch/process/process.h"

int mst_user_hooks_call(enum mst_hook which, PyObject *const *args, size_t count)
{
    if (!(mst.user_hooks >> which & 1))
        return 0;
    PyObject *trackers = Py_NewRef(mst_active_trackers()); /* A hook may enter or leave trackers. */
    PyObject *callback = mst_dynamo_disable();
    int error = 0;
    for (Py_ssize_t i = 0; !error && i < PyTuple_GET_SIZE(trackers); i++) {
        PyObject *hook = Py_XNewRef(mst_tracker_hook(PyTuple_GET_ITEM(trackers, i), which));
        PyObject *result = hook ? PyObject_Vectorcall(hook, args, count, NULL) : NULL;
        error = hook && !result ? -1 : 0;
        Py_XDECREF(hook);
        Py_XDECREF(result);
    }
    mst_dynamo_restore(callback);
    Py_DECREF(trackers);
    return error;
}

static PyObject *tuple_of(PyObject *const *items, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(items[i]));
    return tuple;
}

/* The call raised: post_fw is still called, without an output. If post_fw raises too, that is only a
 * warning, as in torch, and the first error is kept. */
static void call_post_fw_after_error(PyObject *module, PyObject *inputs)
{
    PyObject *type, *value, *traceback, *args[] = {module, inputs, Py_None};
    PyErr_Fetch(&type, &value, &traceback);
    if (mst_user_hooks_call(MST_POST_FW, args, 3) != 0) {
        PyObject *why_type, *why, *why_traceback;
        PyErr_Fetch(&why_type, &why, &why_traceback);
        PyObject *callback = mst_dynamo_disable();
        PyErr_WarnFormat(
            PyExc_UserWarning, 2,
            "post_fw_hook raised an exception that was silenced as another error was raised in forward: %S",
            why ? why : Py_None);
        mst_clear_error();
        mst_dynamo_restore(callback);
        Py_XDECREF(why_type);
        Py_XDECREF(why);
        Py_XDECREF(why_traceback);
    }
    PyErr_Restore(type, value, traceback);
}

static PyObject *begin_backward_hooks(struct mst_call *call, PyObject *inputs, PyObject *const *values,
                                      PyObject *kwnames)
{
    PyObject *named = NULL;
    if (kwnames && PyTuple_GET_SIZE(kwnames))
        named = tuple_of(values, PyTuple_GET_SIZE(kwnames));
    PyErr_Clear();
    PyObject *backward_call = mst_backward_hooks_begin(call, inputs, named);
    Py_XDECREF(named);
    return backward_call;
}

PyObject *mst_user_hooks_run(struct mst_call *call, PyObject *func, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames, vectorcallfunc next)
{
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *result = NULL, *backward_call = NULL, *module = args[0];
    PyObject *inputs = tuple_of(args + 1, count - 1);
    PyObject *given[] = {module, inputs, NULL};
    if (!inputs) { /* Without memory for them no hook can be called; the program's call must not fail for that. */
        PyErr_Clear();
        return next(func, args, nargsf, kwnames);
    }
    if (mst_user_hooks_call(MST_PRE_FW, given, 2) == 0) {
        if (mst.user_hooks >> MST_PRE_BW)
            backward_call = begin_backward_hooks(call, inputs, args + count, kwnames);
        result = next(func, args, nargsf, kwnames);
    }
    if (!result) {
        call_post_fw_after_error(module, inputs);
    } else {
        given[2] = result;
        if (mst_user_hooks_call(MST_POST_FW, given, 3) != 0)
            Py_CLEAR(result);
        else if (backward_call)
            mst_backward_hooks_end(backward_call, result);
    }
    Py_XDECREF(backward_call);
    Py_XDECREF(inputs);
    return result;
}
