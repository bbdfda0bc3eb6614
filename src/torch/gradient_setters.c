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

/* Whether the instruction at byte `at` sets or deletes the attribute with this index among the code's names. */
static bool sets_name(PyCodeObject *code, int at, Py_ssize_t wanted)
{
    PyObject *bytes = at >= 0 ? PyCode_GetCode(code) : NULL;
    bool found = false;
    if (bytes && at + 1 < PyBytes_GET_SIZE(bytes)) {
        const unsigned char *text = (const unsigned char *)PyBytes_AS_STRING(bytes);
        Py_ssize_t name = text[at + 1];
        if (at >= 2 && text[at - 2] == extended_arg)
            name |= (Py_ssize_t)text[at - 1] << 8;
        found = (text[at] == store_attr || text[at] == delete_attr) && name == wanted;
    }
    Py_XDECREF(bytes);
    PyErr_Clear();
    return found;
}

/* torch runs no Python while it sets a gradient, so the thread's innermost function does that. */
static bool thread_sets_gradient(PyThreadState *thread)
{
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    if (!frame)
        return false;
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool found = false;
    for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(code->co_names); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(code->co_names, i), "grad") == 0)
            found = sets_name(code, PyFrame_GetLasti(frame), i);
    Py_DECREF(code);
    Py_DECREF(frame);
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
