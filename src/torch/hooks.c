/* hooks.c - the user's hooks around a module's forward. Here, and only here and in
 * walk.c, Python runs inside a place: dynamo's frame evaluation is off meanwhile. */
#include "torch/native.h"

unsigned mst_hooks_wanted;

/* dynamo's own getter loses a reference in some versions of torch; its setter returns what was there. */
PyObject *mst_dynamo_off(void)
{
    PyObject *callback = mst_torch.set_eval_frame ? PyObject_CallOneArg(mst_torch.set_eval_frame, Py_None) : NULL;
    if (!callback)
        PyErr_Clear();
    else if (callback == Py_None)
        Py_CLEAR(callback);
    return callback;
}

void mst_dynamo_on(PyObject *callback)
{
    if (!callback)
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *before = PyObject_CallOneArg(mst_torch.set_eval_frame, callback);
    Py_XDECREF(before);
    Py_DECREF(callback);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

int mst_hooks_call(enum mst_hook which, PyObject *const *args, size_t count)
{
    if (!(mst_hooks_wanted >> which & 1))
        return 0;
    PyObject *trackers = Py_NewRef(mst_active_trackers()); /* a hook may enter or leave some */
    PyObject *callback = mst_dynamo_off();
    int error = 0;
    for (Py_ssize_t i = 0; !error && i < PyTuple_GET_SIZE(trackers); i++) {
        PyObject *hook = Py_XNewRef(mst_tracker_hook(PyTuple_GET_ITEM(trackers, i), which));
        PyObject *result = hook ? PyObject_Vectorcall(hook, args, count, NULL) : NULL;
        error = hook && !result ? -1 : 0;
        Py_XDECREF(hook);
        Py_XDECREF(result);
    }
    mst_dynamo_on(callback);
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

/* The call raised: its post_fw still comes, with no output. What post_fw itself raises is
 * only warned of, as torch does: the first error is the one to tell. */
static void post_after_error(PyObject *module, PyObject *inputs)
{
    PyObject *type, *value, *traceback, *args[] = {module, inputs, Py_None};
    PyErr_Fetch(&type, &value, &traceback);
    if (mst_hooks_call(MST_POST_FW, args, 3) != 0) {
        PyObject *why_type, *why, *why_traceback;
        PyErr_Fetch(&why_type, &why, &why_traceback);
        PyObject *callback = mst_dynamo_off();
        PyErr_WarnFormat(
            PyExc_UserWarning, 2,
            "post_fw_hook raised an exception that was silenced as another error was raised in forward: %S",
            why ? why : Py_None);
        PyErr_Clear();
        mst_dynamo_on(callback);
        Py_XDECREF(why_type);
        Py_XDECREF(why);
        Py_XDECREF(why_traceback);
    }
    PyErr_Restore(type, value, traceback);
}

static PyObject *begin_graph(struct mst_call *call, PyObject *inputs, PyObject *const *values, PyObject *kwnames)
{
    PyObject *named = NULL;
    if (kwnames && PyTuple_GET_SIZE(kwnames))
        named = tuple_of(values, PyTuple_GET_SIZE(kwnames));
    PyErr_Clear();
    PyObject *graph = mst_graph_begin(call, inputs, named);
    Py_XDECREF(named);
    return graph;
}

PyObject *mst_hooks_around(struct mst_call *call, PyObject *func, PyObject *const *args, size_t nargsf,
                           PyObject *kwnames, vectorcallfunc next)
{
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *result = NULL, *graph = NULL, *module = args[0];
    PyObject *inputs = tuple_of(args + 1, count - 1);
    PyObject *given[] = {module, inputs, NULL};
    if (!inputs)
        goto left;
    if (mst_hooks_call(MST_PRE_FW, given, 2) == 0) {
        if (mst_hooks_wanted >> MST_PRE_BW)
            graph = begin_graph(call, inputs, args + count, kwnames);
        result = next(func, args, nargsf, kwnames);
    }
    if (!result) {
        post_after_error(module, inputs);
        goto left;
    }
    given[2] = result;
    if (mst_hooks_call(MST_POST_FW, given, 3) != 0)
        Py_CLEAR(result);
    else if (graph)
        mst_graph_end(graph, result);
left:
    Py_XDECREF(graph);
    Py_XDECREF(inputs);
    return result;
}
