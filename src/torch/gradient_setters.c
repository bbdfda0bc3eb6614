/* gradient_setters.c - whether another thread is setting or deleting the attribute `grad` of a tensor.
 *
 * torch frees the old gradient there without the GIL, before the leaf refers to the new one. Until it has the
 * GIL again, the leaf refers to freed memory. Such a thread is recognized by the instruction that it is at. */
#include "torch/claims.h"

static int store_attr = -1, delete_attr = -1, extended_arg = -1; /* numbers of instructions; -1: not known yet */

static int opcode_number(PyObject *numbers, const char *name)
{
    PyObject *number = numbers ? PyMapping_GetItemString(numbers, name) : NULL;
    int found = number ? (int)PyLong_AsLong(number) : -2;
    Py_XDECREF(number);
    PyErr_Clear();
    return found;
}

static void learn_opcodes(void)
{
    PyObject *module = PyImport_ImportModule("opcode");
    PyObject *numbers = module ? PyObject_GetAttrString(module, "opmap") : NULL;
    store_attr = opcode_number(numbers, "STORE_ATTR");
    delete_attr = opcode_number(numbers, "DELETE_ATTR");
    extended_arg = opcode_number(numbers, "EXTENDED_ARG");
    Py_XDECREF(module);
    Py_XDECREF(numbers);
    PyErr_Clear();
}

/* Whether the instruction at byte `at` sets or deletes an attribute named grad. */
static bool sets_gradient(PyCodeObject *code, int at)
{
    PyObject *bytes = at >= 0 ? PyCode_GetCode(code) : NULL;
    PyObject *names = bytes ? PyObject_GetAttrString((PyObject *)code, "co_names") : NULL;
    bool found = false;
    if (names && at + 1 < PyBytes_GET_SIZE(bytes)) {
        const unsigned char *text = (const unsigned char *)PyBytes_AS_STRING(bytes);
        Py_ssize_t name = text[at + 1];
        if (at >= 2 && text[at - 2] == extended_arg)
            name |= (Py_ssize_t)text[at - 1] << 8;
        if ((text[at] == store_attr || text[at] == delete_attr) && name < PyTuple_GET_SIZE(names))
            found = PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, name), "grad") == 0;
    }
    Py_XDECREF(names);
    Py_XDECREF(bytes);
    PyErr_Clear();
    return found;
}

static bool thread_sets_gradient(PyThreadState *thread)
{
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    bool found = false;
    while (frame && !found) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        found = sets_gradient(code, PyFrame_GetLasti(frame));
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_SETREF(frame, back);
    }
    Py_XDECREF(frame);
    return found;
}

static bool sets_at_fork;       /* while a fork is under way: another thread sets a gradient */
static bool unfinished_at_fork; /* in a child: a thread that does not exist here was replacing a gradient */

void mst_gradient_setters_before_fork(void)
{
    sets_at_fork = mst.ledger && PyGILState_Check() && mst_other_thread_sets_gradient();
}

void mst_gradient_setters_forked(bool accumulating)
{
    unfinished_at_fork |= sets_at_fork || accumulating;
}

bool mst_other_thread_sets_gradient(void)
{
    if (unfinished_at_fork)
        return true;
    PyThreadState *here = PyThreadState_Get();
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here));
    if (thread == here && !PyThreadState_Next(thread))
        return false;
    if (store_attr == -1)
        learn_opcodes();
    while (thread && (thread == here || !thread_sets_gradient(thread)))
        thread = PyThreadState_Next(thread);
    return thread != NULL;
}
