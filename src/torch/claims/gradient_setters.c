/* gradient_setters.c - whether another thread may be setting or deleting the attribute `grad` of a tensor.
 *
 * torch frees the old gradient there without the GIL, before the leaf refers to the new one. Until it has the
 * GIL again, the leaf refers to freed memory. torch runs no Python meanwhile, so the innermost function of such a
 * thread has "grad" among its names, or among its constants if it uses setattr(). */
#include "torch/claims/claims.h"

static bool has_grad(PyObject *names)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "grad") == 0)
            return true;
    }
    return false;
}

static bool may_set_gradient(PyThreadState *thread)
{
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    if (!frame)
        return false;
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool found = has_grad(code->co_names) || has_grad(code->co_consts);
    Py_DECREF(code);
    Py_DECREF(frame);
    return found;
}

static bool sets_at_fork;       /* while a fork is under way: another thread sets a gradient */
static bool unfinished_at_fork; /* in a child: a thread that does not exist here was replacing a gradient */

void mst_gradient_setters_before_fork(void)
{
    sets_at_fork = mst.ledger && PyGILState_Check() && mst_other_thread_may_set_gradient();
}

void mst_gradient_setters_forked(bool accumulating)
{
    unfinished_at_fork |= sets_at_fork || accumulating;
}

bool mst_other_thread_may_set_gradient(void)
{
    if (unfinished_at_fork)
        return true;
    PyThreadState *here = PyThreadState_Get();
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here));
    while (thread && (thread == here || !may_set_gradient(thread)))
        thread = PyThreadState_Next(thread);
    return thread != NULL;
}
